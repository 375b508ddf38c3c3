// One head of one layer: which keys a query sees, its scores and weights. With q, k and lse
// embedded a weight is computed here and is exact; otherwise windows and the stored keys of rows
// are known, and of every other cell what it weighs at most, and its tile: mean and largest weight
// of a range of cells.
//   s = scale q_i . k_j;  s = softcap tanh(s / softcap);  s += bias - slope |position - j|;  p =
//   exp(s - lse_i)
import {HIDDEN, kLog16Error, log8Range, UNKNOWN} from "./data.js";
import {Rows} from "./rows.js";

// Cells of a head that is small: all of them are computed wherever it is shown.
export const kSmall = 64 * 64;

// All but the highest 1/200 of some weights (a Float32Array, which it sorts) are at most this.
export function highest(weights) {
  const last = weights.sort().length - 1;
  return weights[Math.ceil(0.995 * last)] || weights[last] || 0;
}

// What the cells of a row of tiles weigh at most, those that filters leave out aside.
export function mostInTiles(source, row) {
  let most = 0;
  for (let column = 0; column < source.tiles.columns; ++column)
    most = Math.max(most, source.mostIn(row, column));
  return most;
}

export class Head {
  constructor(layer, open, h) {
    Object.assign(this, { layer, open, h });
    this.queries = layer.queries;
    this.keys = layer.keys;
    this.d = layer.d;
    this.offset = layer.query_offset ?? 0;
    this.length = Math.min(layer.key_length ?? layer.keys, layer.keys);
    this.kh = Math.floor(h / (layer.heads / layer.key_heads));
    this.rowsOfLse = open.lse ? open.lse.length / layer.heads : 0;  // all, or those of `rows`
    this.exact = Boolean(open.q && open.k && this.rowsOfLse === this.queries);
    this.cost = this.exact ? this.d : 1;        // of one cell, in multiplications
    this.error = this.exact ? 0 : kLog16Error;  // relative, of the weights that are known
    this.tiles = open.tiles;
    this.tops = {};
    this.mostInRows = [];  // of tiles
    this.windows = open.windows.filter((window) => window.head === h && window.weights);
    const sink = layer.sinks?.[h];
    this.rows = open.rows
        ? new Rows(open.rows, h, (i) => this.lse(i), Number.isFinite(sink) ? sink : null)
        : null;
  }

  // Keys [begin, end) that query i may see by position, as in the library.
  range(i) {
    const position = i + this.offset, [left, right] = this.layer.window ?? [-1, -1];
    let begin = 0, end = this.length;
    if (this.layer.causal) end = Math.min(end, position + 1);
    if (right >= 0) end = Math.min(end, position + right + 1);
    if (left >= 0) begin = Math.max(0, position - left);
    return [begin, Math.max(begin, end)];
  }

  // Queries [begin, end) that may see key j by position.
  queriesOf(j) {
    const first = j - this.offset, [left, right] = this.layer.window ?? [-1, -1];
    let begin = 0, end = j < this.length ? this.queries : 0;
    if (this.layer.causal) begin = first;
    if (right >= 0) begin = Math.max(begin, first - right);
    if (left >= 0) end = Math.min(end, first + left + 1);
    begin = Math.min(Math.max(0, begin), this.queries);
    return [begin, Math.max(begin, end)];
  }

  masked(i, j) {
    const mask = this.open.mask;
    if (!mask) return false;
    const plane = this.layer.mask.shape[0] === 1 ? 0 : this.h;
    const n = (plane * this.queries + i) * this.keys + j;
    return ((mask[n >> 3] >> (n & 7)) & 1) === 0;
  }

  tileNumber(i, j) {
    const { rows, columns, queries, keys } = this.tiles;
    return (this.h * rows + Math.floor(i / queries)) * columns + Math.floor(j / keys);
  }

  tileHidden(number) {
    const { rows, columns, visible, visibleHeads } = this.tiles;
    return visible !== null &&
        visible[visibleHeads === 1 ? number % (rows * columns) : number] === 0;
  }

  // The value of tile [row, column]: kind is "mean" or "maximum". A tile's bytes know no NaN; a row
  // that is not a number has such an lse.
  tile(row, column, kind) {
    const number = (this.h * this.tiles.rows + row) * this.tiles.columns + column;
    if (this.tileHidden(number)) return HIDDEN;
    return this.nanRows().has(row) ? NaN : (this.tiles[kind] ?? this.tiles.mean)[number];
  }

  // The tile that holds cell (i, j): the cells it covers, the mean of those that are visible as it
  // is stored, and between which numbers it and the largest of them lie (null: the page does not
  // say). Null without tiles.
  tileAt(i, j) {
    if (!this.tiles) return null;
    const { queries, keys, maximum } = this.tiles, row = Math.floor(i / queries),
                                   column = Math.floor(j / keys);
    const mean = this.tile(row, column, "mean"), query = row * queries, key = column * keys;
    return {
      query,
      queries: Math.min(queries, this.queries - query),
      key,
      keys: Math.min(keys, this.keys - key),
      mean,
      means: log8Range(mean),
      largest: maximum && !Number.isNaN(mean) ? log8Range(this.tile(row, column, "maximum")) : null
    };
  }

  // Whether the weights of query i are not numbers.
  isNaN(i) {
    return Number.isNaN(this.lse(i)) ||
        Number.isNaN(this.open.entropy?.[this.h * this.queries + i] ?? 0);
  }

  // Rows of tiles with such a query; kept with what was opened of the layer.
  nanRows() {
    const all = this.open.nanRows ??= [];
    if (all[this.h]) return all[this.h];
    const found = all[this.h] = new Set();
    for (let i = 0; i < this.queries; ++i)
      if (this.isNaN(i)) found.add(Math.floor(i / this.tiles.queries));
    return found;
  }

  // Why key j is hidden from query i: the name of the rule, or "".
  hiddenBy(i, j) {
    const position = i + this.offset, [left, right] = this.layer.window ?? [-1, -1];
    if (j >= this.length) return "key_length";
    if (this.layer.causal && j > position) return "causal";
    if ((right >= 0 && j > position + right) || (left >= 0 && j < position - left)) return "window";
    if (this.masked(i, j)) return "mask";
    if (this.exact) return "";
    if (this.tiles && this.tileHidden(this.tileNumber(i, j))) return "mask";
    return this.rows?.whole(i) && this.rows.find(i, j) === undefined ? "mask" : "";
  }

  bias(i, j) {
    if (!this.open.bias) return 0;
    const [planes, rows, keys] = this.layer.bias.shape;
    return this.open.bias[((planes === 1 ? 0 : this.h) * rows + (rows === 1 ? 0 : i)) * keys + j];
  }

  alibi(i, j) {
    const slope = this.layer.alibi?.[this.h];
    return slope ? -slope * Math.abs(i + this.offset - j) : 0;
  }

  // 0 of a row whose lse is not in the page.
  lse(i) {
    const n = this.rowsOfLse, at = n === this.queries ? i : i - (this.open.rows?.from ?? 0);
    return at >= 0 && at < n ? this.open.lse[this.h * n + at] : 0;
  }

  dot(i, j) {
    const { q, k } = this.open, d = this.d;
    const a = (this.h * this.queries + i) * d, b = (this.kh * this.keys + j) * d;
    let sum = 0;
    for (let c = 0; c < d; ++c) sum += q[a + c] * k[b + c];
    return sum;
  }

  // The same of keys [j0, j1). Four at a time: an addition need not wait for that of another sum.
  dots(i, j0, j1) {
    const { q, k } = this.open, d = this.d, a = (this.h * this.queries + i) * d;
    const sums = new Float64Array(Math.max(0, j1 - j0));
    let j = j0;
    for (; j + 4 <= j1; j += 4) {
      const b = (this.kh * this.keys + j) * d;
      let first = 0, second = 0, third = 0, fourth = 0;
      for (let c = 0; c < d; ++c) {
        const x = q[a + c];
        first += x * k[b + c];
        second += x * k[b + d + c];
        third += x * k[b + 2 * d + c];
        fourth += x * k[b + 3 * d + c];
      }
      sums[j - j0] = first;
      sums[j - j0 + 1] = second;
      sums[j - j0 + 2] = third;
      sums[j - j0 + 3] = fourth;
    }
    for (; j < j1; ++j) sums[j - j0] = this.dot(i, j);
    return sums;
  }

  // Every stage of the score, as explained on the page.
  score(i, j) {
    const dot = this.dot(i, j), raw = this.layer.scale * dot, softcap = this.layer.softcap || 0;
    const bias = this.bias(i, j), alibi = this.alibi(i, j);
    const cap = (s) => (softcap ? softcap * Math.tanh(s / softcap) : s);
    const final =
        this.layer.bias_before_softcap ? cap(raw + bias + alibi) : cap(raw) + bias + alibi;
    return { dot, raw, capped: cap(raw), bias, alibi, final };
  }

  // Weights of query i for the keys [j0, j1) into out, HIDDEN where hidden, UNKNOWN where the page
  // has no more than a tile.
  segment(i, j0, j1, out, at = 0) {
    const [begin, end] = this.range(i);
    if (!this.exact) return this.stored(i, j0, j1, out, at);
    const lse = this.lse(i);
    const first = Math.max(j0, begin), last = Math.min(j1, end), { scale } = this.layer;
    const plain = !this.layer.softcap && !this.open.bias && !this.layer.alibi;
    const dots = plain ? this.dots(i, first, last) : null;
    out.fill(HIDDEN, at, at + j1 - j0);
    for (let j = first; j < last; ++j) {
      if (this.masked(i, j)) continue;
      const score = plain ? scale * dots[j - first] : this.score(i, j).final;
      out[at + j - j0] = Math.exp(score - lse);
    }
  }

  stored(i, j0, j1, out, at) {
    const [begin, end] = this.range(i), { rows } = this, nan = this.isNaN(i);
    const others = nan ? NaN : rows?.whole(i) ? HIDDEN : UNKNOWN;
    const side = this.tiles?.keys ?? this.keys, stop = Math.min(j1, end);
    out.fill(HIDDEN, at, at + j1 - j0);
    for (let j = Math.max(j0, begin); j < stop;) {
      const last = Math.min(stop, (Math.floor(j / side) + 1) * side);
      if (!this.tiles || !this.tileHidden(this.tileNumber(i, j)))
        out.fill(others, at + j - j0, at + last - j0);
      j = last;
    }
    for (let j = Math.max(j0, begin); this.open.mask && j < stop; ++j)
      if (this.masked(i, j)) out[at + j - j0] = HIDDEN;
    this.known(i, (j, weight) => {
      if (j >= j0 && j < j1) out[at + j - j0] = weight;
    });
  }

  // Calls use(key, weight) for the weights of query i that are stored, the more precise ones last.
  known(i, use) {
    this.rows?.each(i, use);
    for (const { query, queries, key, keys, weights } of this.windows) {
      if (i < query || i >= query + queries) continue;
      const [begin, end] = this.range(i);
      for (let j = Math.max(key, begin); j < Math.min(key + keys, end); ++j)
        if (!this.masked(i, j)) use(j, weights[(i - query) * keys + j - key]);
    }
  }

  // Whether a cell lies in a stored window.
  inWindow(i, j) {
    return this.windows.some(
        (w) => i >= w.query && i < w.query + w.queries && j >= w.key && j < w.key + w.keys);
  }

  // What a key of query i that is not stored weighs at most.
  mostInRow(i) {
    if (this.exact || this.isNaN(i)) return 0;
    if (this.rows?.has(i)) return this.rows.whole(i) ? 0 : this.rows.most(i);
    if (!this.tiles) return 1;
    const row = Math.floor(i / this.tiles.queries);
    return this.mostInRows[row] ??= mostInTiles(this, row);
  }

  // What the cells of a tile weigh at most. Of a tile with a row that is not a number nothing is
  // known: its other rows may have any weight.
  mostIn(row, column) {
    return this.tiles.maximum ? log8Range(this.tile(row, column, "maximum"))[1] : 1;
  }

  // What a visible cell that is not known weighs at most.
  most(i, j) {
    const { queries, keys } = this.tiles ?? {};
    const tile = queries ? this.mostIn(Math.floor(i / queries), Math.floor(j / keys)) : 1;
    return Math.min(tile, this.rows ? this.rows.most(i) : 1);
  }

  // { weight, kind: "exact" | "hidden" | "bound" | "tile" | "unknown", reason, error, most, tile }.
  // A cell that is not known has no weight (null): of a stored row it is at most `most`, and of its
  // tile the page knows mean and largest, if there are tiles. `error` is relative.
  cell(i, j) {
    const reason = this.hiddenBy(i, j);
    if (reason) return { weight: 0, kind: "hidden", reason };
    const value = new Float64Array(1);
    this.segment(i, j, j + 1, value);
    if (value[0] === HIDDEN) return { weight: 0, kind: "hidden", reason: "mask" };
    const error = this.inWindow(i, j) ? 0 : this.error;
    if (value[0] !== UNKNOWN && !(value[0] === 0 && error))  // a rounded 0 is only very small
      return { weight: value[0], kind: "exact", error };
    const tile = this.tileAt(i, j), stored = this.rows?.has(i);
    const kind = stored ? "bound" : tile ? "tile" : "unknown";
    return { weight: null, kind, most: stored || tile ? this.most(i, j) : 1, tile };
  }

  // The largest weight of the head, for the colour scale.
  largest() {
    const { maximum } = this.open, { tiles, rows } = this;
    const all = maximum ? maximum.subarray(this.h * this.queries, (this.h + 1) * this.queries)
        : tiles         ? this.plane(tiles.maximum ? "maximum" : "mean")
                        : [];
    let largest = 0;
    if (!maximum && rows)
      for (let i = rows.from; i < rows.from + rows.count; ++i)
        rows.each(i, (_, weight) => {
          if (weight > largest) largest = weight;
        });
    if (largest > 0) return largest;
    for (const value of all)
      if (value > largest) largest = value;
    return largest;
  }

  plane(kind) {
    const size = this.tiles.rows * this.tiles.columns;
    return this.tiles[kind].subarray(this.h * size, (this.h + 1) * size);
  }

  // The end of the tiles' colour scale: all but the highest 1/200 of the visible tiles. The first
  // rows of a causal head have few keys and high means, and would leave all others pale.
  topTile(kind) {
    if (this.tops[kind] !== undefined) return this.tops[kind];
    const base = this.h * this.tiles.rows * this.tiles.columns;
    this.tops[kind] = highest(this.plane(this.tiles[kind] ? kind : "mean")
                                  .filter((value, n) => value >= 0 && !this.tileHidden(base + n)));
    return this.tops[kind];
  }
}
