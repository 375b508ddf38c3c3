// What may stand between a head and its picture: filters that leave weights out, and the difference
// of two heads. Both answer the same questions as a Head (segment, cell, tile), so that no view
// knows which of them it shows.
//   1. left out: the first token, special tokens, tokens that the pattern does not match, and keys
//      nearer to the query than a distance
//   2. top-p: of the rest, the largest weights until their sum is p of the rest's sum
//   3. threshold: weights below it
//   4. renormalise, if switched on: what is left is divided by its sum
import {FILTERED, HIDDEN, isMark, log8Range, UNKNOWN} from "./data.js";
import {tokenAt} from "./tokens.js";

// Which keys stay, or null for all; `bad` is the message of a pattern that cannot be read.
export function keptKeys(state, run, keys) {
  let pattern = null, bad = "";
  try {
    if (state.pattern) pattern = new RegExp(state.pattern, "iu");
  } catch (error) {
    bad = error.message;
  }
  if (!pattern && !state.noFirst && !state.noSpecial) return { kept: null, bad };
  const tokens = run.key_tokens ?? run.tokens, kept = new Uint8Array(keys).fill(1);
  if (state.noFirst && keys > 0) kept[0] = 0;
  if (state.noSpecial)
    for (const j of run.special)
      if (j >= 0 && j < keys) kept[j] = 0;
  if (pattern)
    for (let j = 0; j < keys; ++j)
      if (!pattern.test(tokenAt(tokens, j))) kept[j] = 0;
  return { kept, bad };
}

// Weights carry the rounding of lse (f32), stored ones their own: 1/10 must not fall below a
// threshold of 0.1, nor a tie apart.
const kSlack = 1 - 1e-6;

export function filtersActive(state) {
  return state.p < 1 || state.least > 0 || state.far > 0 || state.noFirst || state.noSpecial ||
      state.pattern !== "";
}

export class Filtered {
  constructor(head, state, kept) {
    const { p, far, renormalise } = state, least = state.least * (kSlack - head.error);
    Object.assign(this, { head, kept, p, far, least, renormalise });
    const { queries, keys, exact, error, tiles, windows, offset, heads, which } = head;
    Object.assign(this, { queries, keys, exact, error, tiles, windows, offset, heads, which });
    const rows = this.p < 1 || this.renormalise;
    this.needsRows = exact && rows;
    this.lacksRows = !exact && rows;  // then neither is done, and weights are as they were
    this.cost = this.needsRows ? 2 * head.cost : head.cost;
    this.rules = new Map();
  }

  // Whether key j of query i stays in spite of the first rule.
  keeps(i, j) {
    return (!this.kept || this.kept[j] === 1) && Math.abs(i + this.offset - j) >= this.far;
  }

  // For query i: the smallest weight that stays, and what the others are multiplied with.
  rule(i) {
    if (!this.needsRows) return { cut: this.least, factor: 1 };
    if (this.rules.has(i)) return this.rules.get(i);
    const row = new Float64Array(this.keys);
    this.head.segment(i, 0, this.keys, row);
    const left = row.filter((weight, j) => weight >= 0 && this.keeps(i, j));
    let cut = this.least, sum = 0;
    if (this.p < 1) {
      left.sort().reverse();
      const enough = this.p * left.reduce((total, weight) => total + weight, 0);
      for (let n = 0; n < left.length; ++n) {
        sum += left[n];
        if (sum >= enough * kSlack) {
          cut = Math.max(cut, left[n] * kSlack);
          break;
        }
      }
    }
    const stays = left.reduce((total, weight) => (weight >= cut ? total + weight : total), 0);
    const rule = { cut, factor: this.renormalise && stays > 0 ? 1 / stays : 1 };
    this.rules.set(i, rule);
    return rule;
  }

  // What the threshold is compared with: a weight that is not known may be as large as its bound.
  apply(weight, i, j, rule) {
    if (weight === HIDDEN) return HIDDEN;
    if (!this.keeps(i, j)) return FILTERED;
    if (rule.cut > 0 && (weight === UNKNOWN ? this.head.most(i, j) : weight) < rule.cut)
      return FILTERED;
    return weight === UNKNOWN ? UNKNOWN : weight * rule.factor;
  }

  segment(i, j0, j1, out, at = 0) {
    this.head.segment(i, j0, j1, out, at);
    const rule = this.rule(i);
    for (let j = j0; j < j1; ++j) out[at + j - j0] = this.apply(out[at + j - j0], i, j, rule);
  }

  known(i, use) {
    const rule = this.rule(i);
    this.head.known(i, (j, weight) => {
      const left = this.apply(weight, i, j, rule);
      if (left !== FILTERED) use(j, left);
    });
  }

  // A tile is left out if all its cells are by the first rule, or if even its largest weight is
  // below the threshold.
  tile(row, column, kind) {
    const value = this.head.tile(row, column, kind);
    if (value === HIDDEN) return HIDDEN;
    const largest = this.tiles.maximum ? this.head.tile(row, column, "maximum") : UNKNOWN;
    if (largest >= 0 && log8Range(largest)[1] < this.least) return FILTERED;
    const { queries, keys } = this.tiles, begin = column * keys,
                          end = Math.min(begin + keys, this.keys);
    if (this.kept && !this.kept.subarray(begin, end).includes(1)) return FILTERED;
    const first = row * queries + this.offset,
          last = Math.min(row * queries + queries, this.queries) - 1 + this.offset;
    return Math.max(last - begin, end - 1 - first) < this.far ? FILTERED : value;
  }

  mostIn(row, column) {
    const value = this.tile(row, column, "maximum");
    if (value === HIDDEN || value === FILTERED) return 0;
    return this.needsRows && this.renormalise ? Infinity : this.head.mostIn(row, column);
  }

  cell(i, j) {
    const cell = this.head.cell(i, j);
    if (cell.kind === "hidden") return cell;
    const weight = this.apply(cell.weight ?? UNKNOWN, i, j, this.rule(i));
    if (weight === UNKNOWN) return cell;
    return weight === FILTERED ? {...cell, weight: 0, before: cell.weight, kind: "filtered" }
                               : {...cell, weight, before: cell.weight };
  }

  range(i) { return this.head.range(i); }
  tileAt(i, j) { return this.head.tileAt(i, j); }
  most(i, j) { return this.head.most(i, j); }
  mostInRow(i) { return this.head.mostInRow(i); }
  largest() { return this.renormalise ? 1 : this.head.largest(); }
  topTile(kind) { return this.head.topTile(kind); }
}

export const kComputed = 1e-6;  // relative error of a weight that is computed here: lse has 32 bits

// Between which numbers the weight of a cell lies.
function endsOf({ weight, error = 0, most = 1 }) {
  return weight === null ? [0, most] : [weight * (1 - error), weight * (1 + error)];
}

// Run B minus run A. What one of them hides counts as 0 there.
export class Difference {
  constructor(a, b) {
    const { queries, keys, offset, heads, which } = a;
    Object.assign(this, { a, b, queries, keys, offset, heads, which, difference: true });
    this.exact = a.exact && b.exact;
    this.error = Math.max(a.error, b.error);
    this.cost = a.cost + b.cost;
    const same =
        a.tiles && b.tiles && a.tiles.queries === b.tiles.queries && a.tiles.keys === b.tiles.keys;
    this.tiles = same ? a.tiles : null;
    this.needsRows = Boolean(a.needsRows || b.needsRows);
    this.lacksRows = Boolean(a.lacksRows || b.lacksRows);
    this.windows = [];
    this.other = new Float32Array(0);
    this.tops = {};
  }

  static of(a, b) {
    if (Number.isNaN(a) || Number.isNaN(b)) return NaN;
    if (a === UNKNOWN || b === UNKNOWN) return UNKNOWN;
    if (isMark(a) && isMark(b)) return a === HIDDEN && b === HIDDEN ? HIDDEN : FILTERED;
    return (isMark(b) ? 0 : b) - (isMark(a) ? 0 : a);
  }

  segment(i, j0, j1, out, at = 0) {
    if (this.other.length < j1 - j0) this.other = new Float32Array(j1 - j0);
    this.a.segment(i, j0, j1, this.other);
    this.b.segment(i, j0, j1, out, at);
    for (let n = 0; n < j1 - j0; ++n) out[at + n] = Difference.of(this.other[n], out[at + n]);
  }

  // Keys that either of them sees by position.
  range(i) {
    const [a, b] = [this.a.range(i), this.b.range(i)];
    return [Math.min(a[0], b[0]), Math.max(a[1], b[1])];
  }

  // Cells that are stored in one of them, and known or hidden in the other; and those of which the
  // other knows what they are at most, for atLeast(key, value): they differ by no less than that.
  known(i, use, atLeast = null) {
    const [a, b] = [this.a, this.b].map((head) => {
      const stored = new Map();
      head.known(i, (j, weight) => stored.set(j, weight));
      return stored;
    });
    const one = new Float64Array(1), weight = (head, stored, j) => {
      if (stored.has(j)) return stored.get(j);
      head.segment(i, j, j + 1, one);
      return one[0];
    };
    for (const j of new Set([...a.keys(), ...b.keys()])) {
      const own = weight(this.a, a, j), other = weight(this.b, b, j);
      const value = Difference.of(own, other);
      if (!isMark(value)) use(j, value);
      else if (value === UNKNOWN && atLeast) {
        const most = (own === UNKNOWN ? this.a : this.b).most(i, j),
              stored = own === UNKNOWN ? other : own;
        if (!isMark(stored) && stored > most)
          atLeast(j, own === UNKNOWN ? stored - most : most - stored);
      }
    }
  }

  tile(row, column, kind) {
    return Difference.of(this.a.tile(row, column, kind), this.b.tile(row, column, kind));
  }

  cell(i, j) {
    const a = this.a.cell(i, j), b = this.b.cell(i, j);
    if (a.kind === "hidden" && b.kind === "hidden") return a;
    if (Number.isNaN(a.weight) || Number.isNaN(b.weight))
      return { weight: NaN, kind: "exact", error: 0, off: 0 };
    const shown = [a, b].filter((cell) => cell.kind !== "hidden");
    const kind = shown.every((cell) => cell.kind === "filtered") ? "filtered"
        : shown.some((cell) => cell.weight === null)             ? "tile"
                                                                 : "exact";
    const error = Math.max(a.error ?? 0, b.error ?? 0);
    const off = ({ weight, error: own }) => Math.abs(weight) * Math.max(own ?? 0, kComputed);
    if (kind !== "tile")
      return {
        weight: b.weight - a.weight,
        a: a.weight,
        b: b.weight,
        kind,
        error,
        off: off(a) + off(b)
      };
    const tile = this.tileAt(i, j), [from, to] = [a, b].map(endsOf);
    const between = [to[0] - from[1], to[1] - from[0]];
    const least = between[0] > 0 ? between[0] : Math.min(between[1], 0);  // its end nearer to 0
    return { weight: null, kind: tile ? "tile" : "unknown", between, least, tile };
  }

  // The tile of both runs: the difference of the means, and between which numbers it lies. What
  // differs most inside is not known.
  tileAt(i, j) {
    if (!this.tiles) return null;
    const a = this.a.tileAt(i, j), b = this.b.tileAt(i, j);
    const means = [b.means[0] - a.means[1], b.means[1] - a.means[0]];
    return {...b, mean: Difference.of(a.mean, b.mean), means, largest: null };
  }

  // Neither is below 0.
  mostIn(row, column) { return Math.max(this.a.mostIn(row, column), this.b.mostIn(row, column)); }

  topTile(kind) { return this.tops[kind] ??= this.findTop(kind); }

  findTop(kind) {
    let largest = 0;
    for (let row = 0; row < this.tiles.rows; ++row) {
      for (let column = 0; column < this.tiles.columns; ++column) {
        const value = this.tile(row, column, kind);
        if (!isMark(value) && Math.abs(value) > largest) largest = Math.abs(value);
      }
    }
    return largest;
  }

  largest() {
    return (this.tiles && this.topTile("mean")) || Math.max(this.a.largest(), this.b.largest()) ||
        1;
  }
}
