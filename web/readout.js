// What is said of a cell: above the map, in the table, in exports and explanations. A cell of which
// the page holds no more than a tile has no number of its own; then the tile is described.
import {element, fill, number, signed} from "./dom.js";
import {placeElement, shown} from "./page.js";
import {say} from "./text.js";

// "12" or "12–15".
export function rangeWords(begin, count) {
  return count === 1 ? String(begin) : `${begin}–${begin + count - 1}`;
}

// Two digits, rounded by `round`: away from what lies between two numbers.
function outward(value, round) {
  if (value === 0) return "0";
  const step = 10 ** (Math.floor(Math.log10(value)) - 1);
  return number(Number((round(value / step) * step).toPrecision(2)), 2);
}

// A tile in words: over which cells its mean is taken, and between which numbers the largest lies.
export function tileWords(tile, difference) {
  if (!tile) return say("unknown_is");
  const { mean, largest } = tile;
  const queries = rangeWords(tile.query, tile.queries), keys = rangeWords(tile.key, tile.keys);
  if (Number.isNaN(mean)) return say("tile_nan", { queries, keys });
  if (difference) return say("tile_difference", { queries, keys, mean: signed(mean, 2) });
  const from = largest && outward(largest[0], Math.floor),
        to = largest && outward(largest[1], Math.ceil);
  if (largest && tile.queries * tile.keys === 1) return say("tile_single", { from, to });
  const words = say("tile_mean", { queries, keys, mean: number(mean, 2) });
  return largest ? words + say("tile_largest", { from, to }) : words;
}

// The rest of the sentence about a cell.
function details(cell, difference) {
  if (cell.kind === "tile" || cell.kind === "unknown") return tileWords(cell.tile, difference);
  if (cell.kind === "hidden") return say(`hidden_${cell.reason}`);
  if (cell.kind === "filtered") {
    return cell.before === undefined || cell.before === null
        ? say("filtered_plain")
        : say("filtered_is", { weight: number(cell.before) });
  }
  if (cell.a !== undefined) return `${number(cell.b)} − ${number(cell.a)}`;
  return cell.before !== undefined && cell.before !== cell.weight
      ? say("renormalised_is", { weight: number(cell.before) })
      : "";
}

// Fills the readout with what is at a cell, or with what to do. Its height never changes: what lies
// below it stays under the pointer.
export function tellCell(readout, at) {
  for (const name of ["query", "key", "weight", "kind"]) delete readout.dataset[name];
  if (!at) return fill(readout, element("span", { class: "more" }, say("point_at")));
  const [i, j] = at, { source } = shown, cell = source.cell(i, j);
  Object.assign(readout.dataset, { query: i, key: j, weight: cell.weight ?? "", kind: cell.kind });
  const value = cell.kind !== "exact" ? "—"
      : Number.isNaN(cell.weight)     ? say("nan")
      : source.difference             ? signed(cell.weight)
                                      : number(cell.weight);
  const words = details(cell, source.difference);
  fill(
      readout,
      element(
          "span", { class: "pair" }, placeElement(i, "query"),
          element("span", { class: "muted" }, " → "), placeElement(j, "key")),
      element("span", { class: "value figure" }, value),
      element(
          "span",
          { class: `kind ${cell.kind}`, title: cell.kind === "exact" ? say("exact_is") : null },
          say(cell.kind)),
      element("span", { class: "more muted", title: words || null }, words));
}
