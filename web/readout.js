// What is said of a cell: above the map, in the table, in exports and explanations. A cell of which
// the page holds no more than a tile has no number of its own; then the tile is described.
import {isMark} from "./data.js";
import {element, fill, number, signed} from "./dom.js";
import {placeElement, shown} from "./page.js";
import {state} from "./state.js";
import {say} from "./text.js";

// "12" or "12–15".
export function rangeWords(begin, count) {
  return count === 1 ? String(begin) : `${begin}–${begin + count - 1}`;
}

// Two digits, rounded by `round`: away from what lies between two numbers.
export function outward(value, round) {
  if (value === 0) return "0";
  const step = 10 ** (Math.floor(Math.log10(Math.abs(value))) - 1);
  const end = Number((round(value / step) * step).toPrecision(2));
  return number(
      end, Math.abs(end) < 1e-4 ? 3 : 2);  // number() leaves out one beside a power of ten
}

// "0.0087–0.0095"
function between([from, to]) {
  const ends = [outward(from, Math.floor), outward(to, Math.ceil)];
  return ends[0] === ends[1] ? ends[0] : ends.join("–");
}

// Whether all that is known of a cell's own weight is what it is at most.
export function isBounded({weight, most}) { return weight === null && most !== undefined; }

// "≤ 0.0032": rounded up.
export function mostWords(most) { return `≤ ${outward(most, Math.ceil)}`; }

// How many digits, `most` or fewer, a number deserves that is off by at most `off`: the last one is
// off by at most a half.
function deserved(value, off, most = 4) {
  if (!off || !Number.isFinite(value) || value === 0) return most;
  const digits = Math.floor(Math.log10(Math.abs(value))) - Math.ceil(Math.log10(2 * off)) + 1;
  return Math.max(1, Math.min(most, digits));
}

// A number that is off by at most `off`, with the digits that it deserves, `most` or fewer.
export function rounded(value, off, most) {
  return Number(value.toPrecision(deserved(value, off, most)));
}

// Such a number in words: digits before the point that are not known become 0.
function inWords(value, off, most, write) {
  const digits = deserved(value, off, most), large = off > 0 && Math.abs(value) >= 10 ** digits;
  return write(large ? rounded(value, off, most) : value, digits);
}

// A number with a relative error.
export function figure(value, error = 0) {
  return inWords(value, error * Math.abs(value), 4, number);
}

// A difference of numbers that are off by at most `off` together.
export function differenceWords(value, off = 0, most = 4) {
  if (value === 0 || !(Math.abs(value) <= off)) return inWords(value, off, most, signed);
  return `± ${outward(off, Math.ceil)}`;
}

// A difference that is at least `value`, in words: rounded towards 0.
export function leastWords(value) {
  const towards = value > 0 ? Math.floor : Math.ceil;
  return say("at_least", { value: (value > 0 ? "+" : "") + outward(value, towards) });
}

// Between which numbers the means of a tile's two runs differ.
export function meansWords([from, to]) {
  return say("of_means", { from: outward(from, Math.floor), to: outward(to, Math.ceil) });
}

// A number of a blob that is off by at most `off`; what became 0 is no more than that.
export function storedFigure(value, off) {
  return value === 0 && off > 0 ? mostWords(off) : inWords(value, off, 4, number);
}

// What would store a part of a head: [query, queries, key, keys].
export function storingFlag(layer, head, part) { return `--window ${[layer, head, ...part]}`; }

// What would store a cell of the head that is shown.
export function windowFlag(i, j) { return storingFlag(state.layer, state.head, [i, 1, j, 1]); }

// A tile in words: over which cells its mean is taken, and between which numbers the largest lies.
export function tileWords(tile, difference) {
  if (!tile || isMark(tile.mean)) return say("unknown_is");
  const { mean, means, largest, over } = tile;
  const queries = rangeWords(tile.query, tile.queries), keys = rangeWords(tile.key, tile.keys);
  if (Number.isNaN(mean)) return say("tile_nan", { queries, keys });
  if (difference) {
    const [from, to] =
        [[means[0], Math.floor], [means[1], Math.ceil]].map((end) => outward(...end));
    const words = over === "maximum" ? "tile_difference_over" : "tile_difference";
    return say(words, { queries, keys, from, to });
  }
  const from = largest && outward(largest[0], Math.floor),
        to = largest && outward(largest[1], Math.ceil);
  if (largest && tile.queries * tile.keys === 1) return say("tile_single", { from, to });
  const words =
      say(over === "maximum" ? "tile_over" : "tile_mean", { queries, keys, mean: between(means) });
  return largest ? words + say("tile_largest", { from, to }) : words;
}

// Between which numbers the difference of a cell lies, and what would store it in both runs.
function betweenRuns({ between: [from, to] }, i, j) {
  const ends = { from: outward(from, Math.floor), to: outward(to, Math.ceil) };
  const flag = state.over === "none" ? say("stored_by", { flag: windowFlag(i, j) }) : null;
  return [say("difference_between", ends), flag].filter(Boolean).join("; ");
}

// The rest of the sentence about a cell.
function details(cell, difference, i, j) {
  if (isBounded(cell) && cell.kind !== "unknown") {
    const stored =
        state.over === "none" && !difference ? say("stored_by", { flag: windowFlag(i, j) }) : "";
    return [stored, cell.tile ? tileWords(cell.tile, difference) : ""].filter(Boolean).join("; ");
  }
  if (cell.between) return [betweenRuns(cell, i, j), tileWords(cell.tile, true)].join("; ");
  if (cell.kind === "tile" || cell.kind === "unknown") return tileWords(cell.tile, difference);
  if (cell.kind === "hidden") return say(`hidden_${cell.reason}`);
  if (cell.kind === "filtered") {
    return cell.before === undefined || cell.before === null
        ? say("filtered_plain")
        : say("filtered_is", { weight: cellFigure({...cell, weight: cell.before }, false) });
  }
  if (Number.isNaN(cell.weight)) return "";
  if (cell.a !== undefined) return `${figure(cell.b, cell.error)} − ${figure(cell.a, cell.error)}`;
  const words = [];
  if (cell.norm !== undefined)
    words.push(`${figure(cell.plain, cell.plainError)} × ${figure(cell.norm, cell.normError)}`);
  if (cell.before !== undefined && cell.before !== cell.weight)
    words.push(say("renormalised_is", { weight: figure(cell.before, cell.error) }));
  if (cell.plainError ?? cell.error) words.push(say("rounded_is"));
  return words.join("; ");
}

// The number of a cell, or its bound, or a dash.
function valueWords(cell, difference) {
  if (isBounded(cell) && cell.kind !== "unknown") return mostWords(cell.most);
  if (cell.kind !== "exact") return "—";
  return cellFigure(cell, difference);
}

// The number of a cell that has one, if it is a number.
export function cellFigure(cell, difference) {
  if (Number.isNaN(cell.weight)) return say("nan");
  return difference ? differenceWords(cell.weight, cell.off) : figure(cell.weight, cell.error);
}

// Fills the readout with what is at a cell, or with what to do. Its height never changes: what lies
// below it stays under the pointer.
export function tellCell(readout, at) {
  for (const name of ["query", "key", "weight", "kind", "most"]) delete readout.dataset[name];
  if (!at) return fill(readout, element("span", { class: "more" }, say("point_at")));
  const [i, j] = at, { source } = shown, cell = source.cell(i, j);
  Object.assign(readout.dataset, { query: i, key: j, weight: cell.weight ?? "", kind: cell.kind });
  if (isBounded(cell)) readout.dataset.most = cell.most;
  const words = details(cell, source.difference, i, j);
  fill(
      readout,
      element(
          "span", { class: "pair" }, placeElement(i, "query"),
          element("span", { class: "muted" }, " → "), placeElement(j, "key")),
      element("span", { class: "value figure" }, valueWords(cell, source.difference)),
      element(
          "span",
          { class: `kind ${cell.kind}`, title: cell.kind === "exact" ? say("exact_is") : null },
          say(cell.kind === "tile" && isBounded(cell) ? "bound" : cell.kind)),
      element("span", { class: "more muted", title: words || null }, words));
}
