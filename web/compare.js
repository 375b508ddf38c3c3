// The largest difference between two runs, of every head and of all: first from the tiles, then,
// where both runs are exact and it is affordable, from every cell, in slices between frames.
import {isMark, openLayer, PageError, tilesOf} from "./data.js";
import {Difference} from "./filters.js";
import {Head} from "./head.js";
import {shown} from "./page.js";

const kSearchWork = 4e9;  // multiplications for the search in all heads

// "layer.head" -> { value, i, j, kind }, of tiles { queries, keys } as well, from (i, j) on
const found = new Map();
let largest = null;  // { layer, head, value, i, j, kind }
let finished = false;

// |difference| of a head, as far as it is known; of all heads with null.
export function differenceOf(layer, head) {
  const entry = layer === null ? largest : found.get(`${layer}.${head}`);
  return entry ? Math.abs(entry.value) : NaN;
}

// Whether all is known that will be.
export function searchFinished() { return finished; }

export function largestDifference() { return largest; }

export function largestIn(layer, head) { return found.get(`${layer}.${head}`) ?? null; }

function keep(layer, head, entry) {
  found.set(`${layer}.${head}`, entry);
  largest = null;
  for (const [place, each] of found) {
    if (largest && !(Math.abs(each.value) > Math.abs(largest.value))) continue;
    const [l, h] = place.split(".").map(Number);
    largest = { layer: l, head: h, ...each };
  }
}

function fromTiles(source) {
  const { rows, columns, queries, keys } = source.tiles,
                                       best = { value: 0, i: 0, j: 0, kind: "tile" };
  for (let row = 0; row < rows; ++row) {
    for (let column = 0; column < columns; ++column) {
      const value = source.tile(row, column, "mean");
      if (!isMark(value) && Math.abs(value) > Math.abs(best.value))
        Object.assign(best, { value, i: row * queries, j: column * keys });
    }
  }
  best.queries = Math.min(queries, source.queries - best.i);
  best.keys = Math.min(keys, source.keys - best.j);
  return best;
}

function alike(a, b) {
  return a && b && a.heads === b.heads && a.queries === b.queries && a.keys === b.keys;
}

const pause = () => new Promise((resolve) => setTimeout(resolve));

async function fromCells(source) {
  const best = { value: 0, i: 0, j: 0, kind: "exact" }, row = new Float32Array(source.keys);
  let end = performance.now() + 12;
  for (let i = 0; i < source.queries; ++i) {
    source.segment(i, 0, source.keys, row);
    for (let j = 0; j < row.length; ++j) {
      if (!isMark(row[j]) && Math.abs(row[j]) > Math.abs(best.value))
        Object.assign(best, { value: row[j], i, j });
    }
    if (performance.now() < end) continue;
    await pause();
    end = performance.now() + 12;
  }
  return best;
}

// Searches all heads; calls tell() whenever more is known.
export async function searchDifferences(tell) {
  const [a, b] = shown.page.runs, exact = [];
  for (let at = 0; at < Math.min(a.layers.length, b.layers.length); ++at) {
    const layers = [a.layers[at], b.layers[at]];
    if (!alike(...layers)) continue;
    try {
      const tiles = await Promise.all(layers.map(tilesOf));
      for (let head = 0; head < layers[0].heads; ++head) {
        const both = new Difference(
            ...layers.map((layer, n) => new Head(layer, { tiles: tiles[n], windows: [] }, head)));
        if (both.tiles) keep(at, head, fromTiles(both));
      }
      if (layers.every((layer) => layer.q && layer.k && layer.lse)) exact.push(at);
    } catch (error) {
      if (!(error instanceof PageError)) throw error;  // the layer's own view tells it
    }
  }
  tell();
  const work = exact.reduce((sum, at) => {
    const { heads, queries, keys, d } = a.layers[at];
    return sum + 2 * heads * queries * keys * d;
  }, 0);
  if (work <= kSearchWork) {
    for (const at of exact) {
      const layers = [a.layers[at], b.layers[at]], open = await Promise.all(layers.map(openLayer));
      for (let head = 0; head < layers[0].heads; ++head) {
        const [one, two] = layers.map((layer, n) => new Head(layer, open[n], head));
        keep(at, head, await fromCells(new Difference(one, two)));
      }
      tell();
    }
  }
  finished = true;
  tell();
}
