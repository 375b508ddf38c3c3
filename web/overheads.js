// All heads of a layer as one source: the mean or the largest of their weights, cell by cell where
// every head is known there, elsewhere the tiles that the page holds of them.
import {HIDDEN, isMark, log8Range, UNKNOWN} from "./data.js";
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
  }

  // Of the heads that see a cell; UNKNOWN if one of them is.
  segment(i, j0, j1, out, at = 0) {
    const n = j1 - j0, sums = new Float64Array(n), seen = new Uint16Array(n);
    const unknown = new Uint8Array(n);
    if (this.part.length < n) this.part = new Float64Array(n);
    for (const head of this.heads) {
      head.segment(i, j0, j1, this.part);
      for (let m = 0; m < n; ++m) {
        const value = this.part[m];
        if (value === HIDDEN) continue;
        if (value === UNKNOWN) unknown[m] = 1;
        else sums[m] = this.which === "mean" ? sums[m] + value : this.larger(sums[m], value);
        ++seen[m];
      }
    }
    for (let m = 0; m < n; ++m) {
      const count = this.which === "mean" ? seen[m] : 1;
      out[at + m] = seen[m] === 0 ? HIDDEN : unknown[m] ? UNKNOWN : sums[m] / count;
    }
  }

  larger(a, b) { return Number.isNaN(b) || b > a ? b : a; }

  known(i, use) {
    const value = new Float64Array(1), tried = new Set();
    this.heads[0].known(i, (j) => {
      if (tried.has(j)) return;
      tried.add(j);
      this.segment(i, j, j + 1, value);
      if (!isMark(value[0])) use(j, value[0]);
    });
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
    const most = combine(seen.map((cell) => cell.weight ?? cell.most ?? 1));
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
  constructor(plain) {
    super(plain.heads.map((head) => new Weighted(head)), plain.tiles, plain.which);
    Object.assign(this, { plain, weighted: true });
  }

  cell(i, j) { return {...super.cell(i, j), tile: null, plainError: 0 }; }
  tile(row, column) { return this.plain.tile(row, column) === HIDDEN ? HIDDEN : UNKNOWN; }
  topTile() { return this.largest(); }
}
