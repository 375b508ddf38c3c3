// What is known of the tokens of a text: one value for each, of what the chosen queries see or of
// who sees the chosen keys.
import {FILTERED, isMark, UNKNOWN} from "./data.js";
import {shown} from "./page.js";
import {differenceWords, figure} from "./readout.js";
import {state} from "./state.js";
import {say} from "./text.js";

// Nothing that the chosen ones see (hidden by the mask), left out by a filter, its number, or a
// tile that it is in. Of several chosen ones the last of these holds.
export const kHidden = 0;
export const kLeft = 1;
export const kNumber = 2;
export const kTile = 3;
const kTextWork = 5e8;  // multiplications that one choice may cost
const kMostCells = 64;  // chosen ones of which a difference is told cell by cell

// One value for each key (or query), summed over the chosen ones, and what is known of it; where
// only tiles are known, their means are summed.
export function shades() {
  const { source } = shown, { reverse } = state, n = reverse ? source.queries : source.keys;
  const chosen = state.chosen.filter((each) => each < (reverse ? source.keys : source.queries));
  const rows = reverse ? n : chosen.length, whole = source.needsRows;
  if (chosen.length === 0) return { chosen, sums: null };
  if (rows * (whole || !reverse ? source.keys : chosen.length) * source.cost > kTextWork)
    return { chosen, sums: null, tooMany: true };
  const sums = new Float64Array(n), known = new Uint8Array(n),
        part = new Float64Array(reverse ? 1 : n), { queries, keys } = source.tiles ?? {};
  const add = (at, i, j, value) => {
    const mean = value === UNKNOWN && source.tiles
        ? source.tile(Math.floor(i / queries), Math.floor(j / keys), "mean")
        : UNKNOWN;
    if (!isMark(value)) sums[at] += value;
    else if (!isMark(mean)) sums[at] += mean;
    known[at] = Math.max(
        known[at],
        value === UNKNOWN        ? kTile
            : value === FILTERED ? kLeft
            : isMark(value)      ? kHidden
                                 : kNumber);
  };
  if (reverse) {
    for (let i = 0; i < n; ++i)
      for (const j of chosen) {
        source.segment(i, j, j + 1, part);
        add(i, i, j, part[0]);
      }
  } else {
    for (const i of chosen) {
      source.segment(i, 0, n, part);
      part.forEach((value, j) => add(j, i, j, value));
    }
  }
  if (state.combine === "mean")
    for (let at = 0; at < n; ++at) sums[at] /= chosen.length;
  return { chosen, sums, known };
}

// The value of query or key `n` in words, with the digits that it deserves.
export function shadeFigure(value, n, chosen) {
  const { source } = shown;
  if (Number.isNaN(value)) return say("nan");
  if (!source.difference) return figure(value, source.error);
  const { reverse, combine } = state;
  let off = 0;  // of the sum, at most
  for (const each of chosen.slice(0, kMostCells))
    off += source.cell(...(reverse ? [n, each] : [each, n])).off ?? 0;
  if (chosen.length > kMostCells) off = 2 * chosen.length * source.error;
  return differenceWords(value, combine === "mean" ? off / chosen.length : off);
}
