// All heads of a layer as one source: the mean or the largest of their weights, cell by cell where
// every head is known there, elsewhere the tiles that the page holds of them.
import {HIDDEN, log8Range, UNKNOWN} from "./data.js";
import {mostInTiles} from "./head.js";
import {Weighted} from "./values.js";

export class OverHeads {
  // heads: all of the layer; tiles: as of one head, their mean the plane of `which`.
  constructor(heads, tiles, which) {
    const [{ queries, keys, offset, layer, open, d }] = heads;
    Object.assign(this, { heads, tiles, which, queries, keys, offset, layer, open, d, h: 0 });
    this.exact = heads.every((head) => head.exact);
    this.cost = heads.reduce((sum, head) => sum + head.cost, 0);
    this.error = Math.max(...heads.map((head) => head.error));
    this.windows = [];
    this.part = new Float64Array(0);
    this.mosts = this.leasts = null;
    // Whether the heads may see different cells, of which the page holds too little to tell.
    this.apart = heads.some((head) => !head.exact && head.tiles?.visibleHeads > 1);
  }

  // Makes segments of whole rows fill `mosts` and `leasts`: what cells that are UNKNOWN are at
  // most, and at least (what one head knows is no more than the largest).
  bound() {
    this.mosts = new Float32Array(this.keys);
    this.leasts = new Float32Array(this.keys);
  }

  // Of the heads that see a cell; UNKNOWN if one of them is.
  segment(i, j0, j1, out, at = 0) {
    const n = j1 - j0, most = n === this.keys ? this.mosts : null;
    const sums = new Float64Array(n), seen = new Uint16Array(n);
    const unknown = new Uint16Array(n), mean = this.which === "mean";
    if (this.part.length < n) this.part = new Float64Array(n);
    const [begin, end] = this.range(i), first = Math.max(0, begin - j0);
    const last = Math.min(n, end - j0);  // all others are hidden by position
    most?.fill(0, 0, n);
    for (const head of this.heads) {
      const own = most ? head.mostInRow(i) : 0, { queries, keys } = head.tiles ?? {};
      let others = own, column = -1;
      head.segment(i, j0, j1, this.part);
      for (let m = first; m < last; ++m) {
        const value = this.part[m];
        if (value === HIDDEN) continue;
        if (value === UNKNOWN) ++unknown[m];
        else sums[m] = mean ? sums[m] + value : this.larger(sums[m], value);
        if (most && value === UNKNOWN) {
          if (keys && column !== Math.floor((j0 + m) / keys)) {
            column = Math.floor((j0 + m) / keys);
            others = Math.min(own, head.mostIn(Math.floor(i / queries), column));
          }
          most[m] = mean && !this.apart ? most[m] + others : Math.max(most[m], others);
        }
        ++seen[m];
      }
    }
    for (let m = 0; most && m < n; ++m) {
      const known = sums[m] * (1 + this.error);  // what is known may be rounded down
      this.leasts[m] = mean ? 0 : sums[m];
      if (!mean) most[m] = Math.max(most[m], known);
      else if (this.apart) most[m] = Math.max(most[m], known / Math.max(1, seen[m] - unknown[m]));
      else most[m] = (most[m] + known) / seen[m];
    }
    for (let m = 0; m < n; ++m) {
      const count = this.which === "mean" ? seen[m] : 1;
      out[at + m] = seen[m] === 0 ? HIDDEN : unknown[m] ? UNKNOWN : sums[m] / count;
    }
  }

  larger(a, b) { return Number.isNaN(b) || b > a ? b : a; }

  // Cells that one of the heads stores, and all others know or hide.
  known(i, use) {
    const stored = this.heads.map((head) => {
      const own = new Map();
      head.known(i, (j, weight) => own.set(j, weight));
      return own;
    });
    const one = new Float64Array(1), of = (n, j) => {
      if (stored[n].has(j)) return stored[n].get(j);
      this.heads[n].segment(i, j, j + 1, one);
      return one[0];
    };
    for (const j of new Set(stored.flatMap((own) => [...own.keys()]))) {
      let value = 0, seen = 0, n = 0;
      for (; n < this.heads.length; ++n) {
        const own = of(n, j);
        if (own === UNKNOWN) break;
        if (own === HIDDEN) continue;
        value = this.which === "mean" ? value + own : this.larger(value, own);
        ++seen;
      }
      if (n === this.heads.length && seen > 0) use(j, this.which === "mean" ? value / seen : value);
    }
  }

  cell(i, j) {
    const cells = this.heads.map((head) => head.cell(i, j)),
          seen = cells.filter((cell) => cell.kind !== "hidden");
    if (seen.length === 0) return cells[0];
    const combine = (values) =>
        (this.which === "mean" ? values.reduce((a, b) => a + b, 0) / values.length
                               : values.reduce((a, b) => this.larger(a, b), 0));
    const error = Math.max(...seen.map((cell) => cell.error ?? 0));
    if (seen.every((cell) => cell.kind === "exact"))
      return { weight: combine(seen.map((cell) => cell.weight)), kind: "exact", error };
    const known = seen.filter(({ weight }) => weight !== null)
                      .map((each) => each.weight * (1 + (each.error ?? 0)));
    const bounds = seen.filter(({ weight }) => weight === null).map(({ most }) => most ?? 1);
    // A head that may not see the cell may not count: the mean of those that do is no more than
    // that of the known ones, or the largest bound.
    const most = this.apart ? Math.max(...bounds, known.length ? combine(known) : 0)
                            : combine([...known, ...bounds]);
    return { weight: null, kind: "bound", most, tile: this.tileAt(i, j) };
  }

  // A mean is no more than the largest.
  mostIn(row, column) { return Math.max(...this.heads.map((head) => head.mostIn(row, column))); }

  // 0 where every head stores all that query i sees.
  mostInRow(i) {
    if (this.heads.every((head) => head.mostInRow(i) === 0)) return 0;
    return this.tiles ? mostInTiles(this, Math.floor(i / this.tiles.queries)) : 1;
  }

  range(i) { return this.heads[0].range(i); }
  most(i, j) { return this.cell(i, j).most ?? 1; }

  tile(row, column) {
    const number = row * this.tiles.columns + column;
    if (this.tiles.visible && this.tiles.visible[number] === 0) return HIDDEN;
    return this.heads.some((head) => head.nanRows().has(row)) ? NaN : this.tiles.mean[number];
  }

  tileAt(i, j) {
    if (!this.tiles) return null;
    const { queries, keys } = this.tiles, row = Math.floor(i / queries),
                          column = Math.floor(j / keys);
    const query = row * queries, key = column * keys, mean = this.tile(row, column);
    return {
      query,
      queries: Math.min(queries, this.queries - query),
      key,
      keys: Math.min(keys, this.keys - key),
      mean,
      means: log8Range(mean),
      largest: null,
      over: this.which
    };
  }

  largest() { return Math.max(...this.heads.map((head) => head.largest())); }

  topTile() {
    let top = 0;
    for (const value of this.tiles.mean) top = Math.max(top, value);
    return top;
  }
}

// The mean or the largest of weights times norms; of tiles it knows no product.
export class WeightedOverHeads extends OverHeads {
  constructor(plain, name) {
    super(plain.heads.map((head) => new Weighted(head, name)), plain.tiles, plain.which);
    Object.assign(this, { plain, weighted: true });
  }

  cell(i, j) { return {...super.cell(i, j), tile: null, plainError: 0 }; }
  tile(row, column) { return this.plain.tile(row, column) === HIDDEN ? HIDDEN : UNKNOWN; }
  topTile() { return this.largest(); }
}
