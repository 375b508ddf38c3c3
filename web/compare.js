// The largest difference between two runs, of every head and of all: first from the tiles, then
// from the cells that are stored, or, where both runs are exact and it is affordable, from every
// cell, in slices between frames. Of a cell that one run stores and the other only bounds it is
// known what it is at least: where attention moved to a key, only one of both has it among its
// largest.
import {isMark, openLayer, openStored, openTiles, PageError} from "./data.js";
import {Difference} from "./filters.js";
import {Head} from "./head.js";
import {shown} from "./page.js";

const kSearchWork = 4e9;  // multiplications for the search in all heads
const kSearchSlice = 12;  // ms of work between two frames

// "layer.head" -> { value, i, j, kind: "exact" | "least" | "tile", drawn }: of cells how far the
// value may be off, or no less than it; of tiles { queries, keys }, from (i, j) on, and { means },
// between which numbers it lies; drawn: the largest that has a colour of its own
const found = new Map();
const searched = new Set();  // layers of which every cell was looked at
let largest = null;          // { layer, head, value, i, j, kind }
let drawn = NaN;             // of all heads
let broken = false;          // some cells are not numbers
let finished = false;

// |difference| of a head, as far as it has a colour; of all heads with null.
export function differenceOf(layer, head) {
  return layer === null ? drawn : found.get(`${layer}.${head}`)?.drawn ?? NaN;
}

// |difference| of a head, or what it is at least.
export function leastDifferenceOf(layer, head) {
  return Math.abs(found.get(`${layer}.${head}`)?.value ?? NaN);
}

// Whether every cell of both runs was looked at.
export function searchedAll() {
  return searched.size === Math.max(...shown.page.runs.map((run) => run.layers.length));
}

// Whether some of them are not numbers.
export function searchMetNaN() { return broken; }

// Whether all is known that will be.
export function searchFinished() { return finished; }

// Whether that is so of every cell of a layer.
export function searchedWhole(layer) { return searched.has(layer); }

export function largestDifference() { return largest; }

export function largestIn(layer, head) { return found.get(`${layer}.${head}`) ?? null; }

function keep(layer, head, entry) {
  found.set(`${layer}.${head}`, entry);
  largest = null;
  drawn = NaN;
  for (const [place, each] of found) {
    if (!(each.drawn <= drawn)) drawn = each.drawn;
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
  best.means = source.tileAt(best.i, best.j).means;
  best.drawn = Math.abs(best.value);
  return best;
}

function alike(a, b) {
  return a && b && a.heads === b.heads && a.queries === b.queries && a.keys === b.keys;
}

const pause = () => new Promise((resolve) => setTimeout(resolve));

// The cell that differs most of those that `each(i, take, atLeast)` goes through for query i, or
// `best` if none differs more; in slices between frames. Its value is that of the cell itself: what
// is stored of a row is rounded even where the page can compute it.
async function fromCells(source, best, each) {
  let most = best, end = performance.now() + kSearchSlice, colour = best?.drawn ?? 0;
  for (let i = 0; i < source.queries; ++i) {
    const above = (value) => Math.abs(value) > Math.abs(most?.value ?? 0);
    each(
        i,
        (j, value) => {
          if (Number.isNaN(value)) broken = true;
          if (isMark(value)) return;
          if (above(value)) most = { value, i, j, kind: "exact" };
          if (Math.abs(value) > colour) colour = Math.abs(value);
        },
        (j, value) => {
          if (above(value)) most = { value, i, j, kind: "least" };
        });
    if (performance.now() < end) continue;
    await pause();
    end = performance.now() + kSearchSlice;
  }
  if (most === best) return best && {...best, drawn: colour };
  const { weight, off, least } = source.cell(most.i, most.j);
  return {...most, value: weight ?? least, off, drawn: colour };
}

function everyCell(source) {
  const row = new Float32Array(source.keys);
  return fromCells(source, { value: 0, i: 0, j: 0, kind: "exact" }, (i, take) => {
    source.segment(i, 0, source.keys, row);
    for (let j = 0; j < row.length; ++j) take(j, row[j]);
  });
}

function storedCells(source, best) {
  return fromCells(source, best, (i, take, atLeast) => source.known(i, take, atLeast));
}

const isExact = (layer) => Boolean(layer.q && layer.k && layer.lse);

// Calls use(at, layers) for the layers that both runs have, one after the other.
async function eachPair(use) {
  const [a, b] = shown.page.runs.map((run) => run.layers);
  for (let at = 0; at < Math.min(a.length, b.length); ++at) {
    if (!alike(a[at], b[at])) continue;
    try {
      await use(at, [a[at], b[at]]);
    } catch (error) {
      if (!(error instanceof PageError)) throw error;  // the layer's own view tells it
    }
  }
}

// Searches all heads; calls tell() whenever more is known.
export async function searchDifferences(tell) {
  let work = 0;  // of every cell where both are exact
  await eachPair(async (at, layers) => {
    const open = await Promise.all(layers.map((layer) => openTiles(layer)));
    const [{ heads, queries, keys, d }] = layers;
    for (let head = 0; head < heads; ++head) {
      const both = new Difference(...layers.map((layer, n) => new Head(layer, open[n], head)));
      if (both.tiles) keep(at, head, fromTiles(both));
    }
    if (layers.every(isExact)) work += 2 * heads * queries * keys * d;
  });
  tell();
  await eachPair(async (at, layers) => {
    const whole = layers.every(isExact) && work <= kSearchWork;
    const open = await Promise.all(
        layers.map((layer) => (isExact(layer) ? openLayer(layer) : openStored(layer))));
    for (let head = 0; head < layers[0].heads; ++head) {
      const both = new Difference(...layers.map((layer, n) => new Head(layer, open[n], head)));
      const most = whole ? await everyCell(both) : await storedCells(both, largestIn(at, head));
      if (most) keep(at, head, most);
    }
    if (whole) searched.add(at);
    tell();
  });
  finished = true;
  tell();
}
