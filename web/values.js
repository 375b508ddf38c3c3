// Weights times the norm of what they carry: p times the norm of v_j, or of v_j W^O of this head
// where the page has it. It answers as a head does; of tiles it knows no product.
import {HIDDEN, isMark, offOf, UNKNOWN} from "./data.js";

// Whether a layer has norms to weigh with.
export function hasNorms(layer) { return Boolean(layer?.output_norm ?? layer?.value_norm); }

// Which norms all of some layers have, those of a difference: weights times unlike norms have none.
// Null without any.
export function commonNorms(layers) {
  const all = (name) => layers.every((layer) => layer?.[name]);
  return all("output_norm") ? "output_norm" : all("value_norm") ? "value_norm" : null;
}

// Whether what a source tells are weights times norms.
export function isWeighted(source) {
  const inner = source.a ?? source;
  return Boolean(inner.weighted || inner.head?.weighted);
}

// The norms of a head's keys.
function normsOf({ open, h, kh, keys }, name) {
  const at = name === "output_norm" ? h : kh;
  return open[name].subarray(at * keys, (at + 1) * keys);
}

// The relative error of the norms: that of numbers next to 0 is larger.
function errorOfNorms(norms, reference) {
  if (reference.type !== "f16") return offOf(reference, 1);
  const least = norms.reduce((a, b) => (b > 0 && b < a ? b : a), Infinity);
  return least < Infinity ? offOf(reference, least) / least : 0;
}

function largestOf(norms) { return norms.reduce((a, b) => (b > a ? b : a), 0); }

export class Weighted {
  // name: which norms, "output_norm" or "value_norm"
  constructor(head, name) {
    const { queries, keys, offset, exact, tiles, windows, layer, open, h, kh, d, cost } = head;
    Object.assign(
        this, { head, queries, keys, offset, exact, tiles, windows, layer, open, h, kh, d, cost });
    this.norms = normsOf(head, name);
    this.reference = layer[name];
    this.normError = errorOfNorms(this.norms, this.reference);
    this.error = head.error + this.normError;
    this.weighted = true;
  }

  segment(i, j0, j1, out, at = 0) {
    this.head.segment(i, j0, j1, out, at);
    for (let j = j0; j < j1; ++j)
      if (!isMark(out[at + j - j0])) out[at + j - j0] *= this.norms[j];
  }

  known(i, use) { this.head.known(i, (j, weight) => use(j, weight * this.norms[j])); }

  cell(i, j) {
    const cell = this.head.cell(i, j), norm = this.norms[j];
    if (cell.kind === "hidden") return cell;
    if (cell.weight !== null) {
      const weighed = {
        plain: cell.weight,
        plainError: cell.error,
        norm,
        normError: this.normError
      };
      return {...cell, weight: cell.weight * norm, error: cell.error + this.normError, ...weighed };
    }
    return {...cell, kind: "bound", most: this.raised(cell.most, norm), tile: null };
  }

  // What is at most `most` times a norm is at most: norms are rounded, too.
  raised(most, norm) { return most * (norm + offOf(this.reference, norm)); }

  range(i) { return this.head.range(i); }
  most(i, j) { return this.raised(this.head.most(i, j), this.norms[j]); }
  mostInRow(i) {
    this.topNorm ??= largestOf(this.norms);
    return this.raised(this.head.mostInRow(i), this.topNorm);
  }

  mostIn(row, column) {
    const { keys } = this.tiles;
    const norm = largestOf(this.norms.subarray(column * keys, (column + 1) * keys));
    return this.raised(this.head.mostIn(row, column), norm);
  }

  tile(row, column) { return this.head.tile(row, column, "mean") === HIDDEN ? HIDDEN : UNKNOWN; }

  // Where the tile of a cell lies; its numbers have no product.
  tileAt(i, j) {
    const tile = this.head.tileAt(i, j);
    return tile && {...tile, mean: isMark(tile.mean) ? tile.mean : UNKNOWN, largest: null };
  }

  topTile() { return this.largest(); }

  // Of what is stored, or of all cells of an exact head.
  largest() {
    if (this.top !== undefined) return this.top;
    this.top = 0;
    for (let i = 0; i < this.queries; ++i)
      this.known(i, (_, value) => {
        if (value > this.top) this.top = value;
      });
    if (this.exact) this.searchOthers();
    return this.top;
  }

  // Raises the top to that of all cells. A key that is not stored has at most the weight that its
  // row leaves: of each row, keys of large norms as long as one may still be above the top.
  searchOthers() {
    const { norms, head } = this, one = new Float64Array(1);
    const order = Uint32Array.from(norms.keys()).sort((a, b) => norms[b] - norms[a]);
    for (let i = 0; i < this.queries; ++i) {
      const most = head.rows?.most(i) ?? 1;
      for (let n = 0; n < order.length && most * norms[order[n]] > this.top; ++n) {
        this.segment(i, order[n], order[n] + 1, one);
        if (one[0] > this.top) this.top = one[0];
      }
    }
  }
}
