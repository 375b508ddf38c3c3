// The picture of a head in the grid: its tiles (of the difference of small heads, its cells), or,
// where something is selected, the weight that the head gives there.
import {seen} from "./answers.js";
import {further} from "./apart.js";
import {Scale} from "./colour.js";
import {differenceOf} from "./compare.js";
import {HIDDEN, isMark, openLayer, openTiles, overHeadsOf, PageError, tilesOf, UNKNOWN} from "./data.js";
import {Difference} from "./filters.js";
import {Head, kSmall} from "./head.js";
import {OverHeads} from "./overheads.js";
import {layersShown} from "./page.js";
import {state} from "./state.js";
import {say} from "./text.js";

const kBins = 96;  // of the keys of a query, or the queries of a key

// Layers whose difference a thumbnail draws from the weights themselves. Tiles are rounded to steps
// of 2^(1/8): a difference below a step would vanish in them, and others grow to a whole one.
export function drawsCells(layers) {
  return layers.length === 2 &&
      layers.every(
          (layer) => layer?.q && layer.k && layer.lse && layer.queries * layer.keys <= kSmall);
}

// A size that a canvas has already would still empty it, and cost it its memory.
function resize(canvas, rows, columns) {
  if (canvas.width !== columns) canvas.width = columns;
  if (canvas.height !== rows) canvas.height = rows;
}

const images = new Map();  // "rows x columns" -> what pictures of that size are painted in

// What is hidden stays transparent, so that the hatching of the style shows. `paint` sets every
// pixel.
function put(canvas, rows, columns, paint) {
  const size = `${rows} x ${columns}`;
  if (!images.has(size)) images.set(size, new ImageData(columns, rows));
  const image = images.get(size);
  resize(canvas, rows, columns);
  paint(new Uint32Array(image.data.buffer));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// The tiles of a head, or of all heads as one; throws a PageError where there are none. Draws
// nothing if the picture is no longer wanted once the data is there. Resolves to whether it has
// drawn tiles of several cells.
export async function paintThumb(canvas, at, h, over = "none", wanted = () => true) {
  const layers = layersShown(at), cells = over === "none" && drawsCells(layers);
  const heads = await Promise.all(layers.map((layer) => headFor(layer, h, over, cells)));
  if (!wanted()) return false;
  const source = heads.length === 2 ? new Difference(...heads) : heads[0];
  if (!source.tiles && !cells) throw new PageError(say("no_tiles"));
  const top = source.difference ? differenceOf(null, null)
      : state.same              ? 1
                                : source.topTile(state.tile);
  const scale = new Scale({ bend: state.bend, top, difference: source.difference });
  if (cells) {
    paintCellsOf(canvas, source, scale);
    return false;
  }
  const { rows, columns, queries, keys } = source.tiles;
  put(canvas, rows, columns, (pixels) => {
    for (let n = 0; n < pixels.length; ++n)
      pixels[n] = scale.pixel(source.tile(Math.floor(n / columns), n % columns, state.tile));
  });
  return queries * keys > 1;
}

async function headFor(layer, h, over, cells) {
  if (!layer) throw new PageError(say("no_tiles"));
  if (cells) return new Head(layer, await openLayer(layer), h);
  const tiles = over === "none" ? await tilesOf(layer) : await overHeadsOf(layer, over);
  if (!tiles) throw new PageError(say("no_tiles"));
  const open = await openTiles(layer, tiles);
  if (over === "none") return new Head(layer, open, h);
  const all = Array.from({ length: layer.heads }, (_, n) => new Head(layer, open, n));
  return new OverHeads(all, tiles, over);
}

function paintCellsOf(canvas, source, scale) {
  const { queries, keys } = source, row = new Float64Array(keys);
  put(canvas, queries, keys, (pixels) => {
    for (let i = 0; i < queries; ++i) {
      source.segment(i, 0, keys, row);
      row.forEach((value, j) => {
        pixels[i * keys + j] = scale.pixel(value);
      });
    }
  });
}

// An answer to the selection: one colour for a weight, half of the square for a bound; of a query
// its keys from left to right, of a key its queries from top to bottom.
export function paintAnswer(canvas, answer, scale) {
  if (answer.bars) return paintBars(canvas, answer, scale);
  const context = canvas.getContext("2d"), { value, bound, mark } = answer;
  resize(canvas, 16, 16);
  context.clearRect(0, 0, 16, 16);
  if (mark === HIDDEN) return;
  context.fillStyle = scale.css(mark ?? (bound ? 0 : value));
  context.fillRect(0, 0, 16, 16);
  if (!bound) return;
  context.fillStyle = scale.css(value);
  context.beginPath();
  context.moveTo(16, 0);
  context.lineTo(16, 16);
  context.lineTo(0, 16);
  context.fill();
}

// The strongest of each bin; half of it where one that is not known may be stronger.
function paintBars(canvas, { bars, mostAt, upright }, scale) {
  const n = Math.min(bars.length, kBins), best = new Float32Array(n).fill(HIDDEN);
  const most = new Float32Array(n).fill(HIDDEN);
  for (let at = 0; at < bars.length; ++at) {
    const bin = Math.floor((at * n) / bars.length), value = bars[at];
    if (value === HIDDEN) continue;
    const known = value === UNKNOWN ? 0 : value;
    best[bin] = seen(best[bin], known);
    most[bin] = seen(most[bin], isMark(known) ? known : further(known, mostAt(at)));
  }
  put(canvas, upright ? n : 2, upright ? 2 : n, (pixels) => {
    for (let at = 0; at < n; ++at) {
      pixels[upright ? 2 * at : at] = scale.pixel(best[at]);
      pixels[upright ? 2 * at + 1 : n + at] = scale.pixel(most[at]);
    }
  });
}
