// What fills the plot of a map, as a small picture: cells where they are known, and tiles as tiles,
// each one colour with an outline, and its other number (largest, or mean) as a corner.
import {kSide} from "./blocks.js";
import {ink, mixed} from "./colour.js";
import {FILTERED, HIDDEN, isMark, UNKNOWN} from "./data.js";
import {state} from "./state.js";
import {isWeighted} from "./values.js";

const kViewWork = 3e8;  // multiplications that a view may cost; below it every cell is computed
const kCells = 5e6;
const kCorner = 10;   // px of a tile from which on its corner is drawn
const kFrame = 8;     // px of a tile from which on its outline has four sides
const kStripes = 6;   // px from a stripe to the next; of a cell from which on tiles are striped
const kStripe = 0.2;  // of its colour in a stripe

// How a window [q0, q1, k0, k1] is drawn on w x h px: "cells", "merged" (several cells a pixel, all
// of them computed) or "tiles".
export function levelOf(source, [q0, q1, k0, k1], w, h) {
  const cells = (q1 - q0) * (k1 - k0), wide = w / (k1 - k0) >= 1 && h / (q1 - q0) >= 1;
  const affordable = cells <= kCells && cells * source.cost <= kViewWork;
  if (wide && affordable) return "cells";
  if (!source.tiles) return wide ? "cells" : "merged";
  return source.exact && affordable ? "merged" : "tiles";
}

// Whether tiles are seen at this level.
export function showsTiles(source, level) {
  return level === "tiles" || (!source.exact && Boolean(source.tiles));
}

// How far apart, in px, the stripes of tiles are on w x h px; 0 for none. They lie where single
// cells are seen: what shows of a tile between cells that are known is not to look like a cell.
export function stripesOf(source, window, w, h) {
  const [q0, q1, k0, k1] = window, level = levelOf(source, window, w, h);
  const wide = Math.min(w / (k1 - k0), h / (q1 - q0)) >= kStripes;
  return level === "cells" && wide && showsTiles(source, level) ? kStripes : 0;
}

// The stripes on the colour of a tile: dark, light only on what is darkest, and how much of that;
// faint as its outline where there is next to none.
export function stripeInk(scale, value) {
  const faint = scale.pixel(value) === scale.pixel(0);
  return [scale.inkOn(value, 0.08), faint ? kStripe / 3 : kStripe];
}

// What the colours of tiles are: over heads the page has only one of both.
export function tileKind(source) { return source.which ?? state.tile; }

// Whether tiles have a corner with their other number.
export function hasCorners(source) {
  return Boolean(source.tiles?.maximum) && !source.difference && !isWeighted(source);
}

// Whole cells of a window.
export function cellsOf([q0, q1, k0, k1], source) {
  return {
    i0: Math.max(0, Math.floor(q0)),
    i1: Math.min(source.queries, Math.ceil(q1)),
    j0: Math.max(0, Math.floor(k0)),
    j1: Math.min(source.keys, Math.ceil(k1))
  };
}

// A canvas of rows x columns pixels that `paint` fills.
function picture(rows, columns, paint) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  paint(new Uint32Array(image.data.buffer));
  context.putImageData(image, 0, 0);
  return canvas;
}

// One pixel a cell.
function cellPicture({ blocks, scale }, { i0, i1, j0, j1 }) {
  const columns = j1 - j0;
  return picture(i1 - i0, columns, (pixels) => {
    blocks.each(i0, i1, j0, j1, (i, j, value) => {
      pixels[(i - i0) * columns + j - j0] = scale.pixel(value);
    });
  });
}

// One pixel a pixel: the mean of the visible cells on it, or the one furthest from 0.
function mergedPicture({ source, blocks, scale, tile, window: [q0, q1, k0, k1] }, w, h) {
  const { i0, i1, j0, j1 } = cellsOf([q0, q1, k0, k1], source);
  const values = new Float32Array(w * h).fill(HIDDEN), counts = new Uint32Array(w * h);
  const furthest = tile === "maximum" || source.difference;
  blocks.each(i0, i1, j0, j1, (i, j, value) => {
    const x = Math.floor(((j + 0.5 - k0) / (k1 - k0)) * w),
          y = Math.floor(((i + 0.5 - q0) / (q1 - q0)) * h);
    if (x < 0 || y < 0 || x >= w || y >= h) return;
    const at = y * w + x;
    if (isMark(value)) {
      if (counts[at] === 0 && value !== HIDDEN) values[at] = value;
      return;
    }
    if (counts[at]++ === 0) values[at] = value;
    else if (!furthest) values[at] += value;
    else if (Math.abs(value) > Math.abs(values[at]) || Number.isNaN(value)) values[at] = value;
  });
  return picture(h, w, (pixels) => {
    for (let n = 0; n < pixels.length; ++n) {
      pixels[n] = scale.pixel(counts[n] > 1 && !furthest ? values[n] / counts[n] : values[n]);
    }
  });
}

// How long the legs of a tile's corner are: too short to be taken for a cell; 0 for none.
export function cornerOf(width, height, ratio = 1) {
  const size = Math.min(width, height) / ratio;
  return size < kCorner ? 0 : ratio * Math.min(12, Math.max(5, 0.3 * size));
}

// Of each pixel along a side: its cell, its tile, how many pixels lie between it and the tile's
// two ends, and whether it is on the tile's outline.
function axis(begin, end, length, size, all) {
  const step = (end - begin) / length, sides = size / step >= kFrame ? 2 : 1;
  const cell = new Int32Array(length), tile = new Int32Array(length);
  const into = new Float32Array(length), left = new Float32Array(length);
  const edge = new Uint8Array(length);
  for (let n = 0; n < length; ++n) {
    const at = begin + (n + 0.5) * step;
    cell[n] = Math.min(Math.floor(at), all - 1);
    tile[n] = Math.floor(cell[n] / size);
    const from = tile[n] * size, to = Math.min(from + size, all);
    into[n] = (at - from) / step;
    left[n] = (to - at) / step;
    edge[n] = at - from < step || (sides === 2 && to - at <= step) ? 1 : 0;
  }
  return { cell, tile, into, left, edge, pitch: size / step };
}

// The colours of the tiles in view: { fill, corner, line, stripe } by tile.
function tileColours({ source, scale, tile }, down, across, apart) {
  const r0 = down.tile[0], r1 = down.tile.at(-1) + 1, c0 = across.tile[0],
        c1 = across.tile.at(-1) + 1, columns = c1 - c0, size = (r1 - r0) * columns;
  const fill = new Uint32Array(size), corner = new Uint32Array(size);
  const line = new Uint32Array(size), stripe = new Uint32Array(size);
  const cornered = hasCorners(source);
  const dark = Math.min(down.pitch, across.pitch) >= kFrame ? 0.5 : 0.2, muted = ink("muted");
  for (let r = r0; r < r1; ++r) {
    for (let c = c0; c < c1; ++c) {
      const at = (r - r0) * columns + c - c0, value = source.tile(r, c, tile);
      fill[at] = corner[at] = line[at] = stripe[at] = scale.pixel(value);
      if (value === HIDDEN || value === FILTERED) continue;
      // An outline tells a colour from that of cells; where there is next to none, it is faint.
      line[at] = mixed(fill[at], muted, fill[at] === scale.ramp[0] ? dark / 3 : dark);
      if (apart) stripe[at] = mixed(fill[at], ...stripeInk(scale, value));
      if (cornered && value >= 0)
        corner[at] = scale.pixel(source.tile(r, c, tile === "mean" ? "maximum" : "mean"));
    }
  }
  return { fill, corner, line, stripe, r0, c0, columns };
}

// Of a pixel (x, y), at x - y + h, whether it lies on a stripe.
function stripesAt(apart, wide, w, h) {
  const on = new Uint8Array(w + h);
  if (apart === 0) return on;
  const first = apart * Math.ceil(h / apart) - h;
  return on.map((_, n) => ((n + first) % apart < wide ? 1 : 0));
}

// Tiles, and on them the cells that are known; a pixel of the picture is one of the screen.
function tilePicture(view, size, level, ratio) {
  const w = Math.round(size.w * ratio), h = Math.round(size.h * ratio);
  const { source, blocks, scale, window: [q0, q1, k0, k1] } = view, { tiles } = source;
  const down = axis(q0, q1, h, tiles.queries, source.queries),
        across = axis(k0, k1, w, tiles.keys, source.keys);
  const apart = ratio * stripesOf(source, view.window, size.w, size.h);
  const { fill, corner, line, stripe, r0, c0, columns } = tileColours(view, down, across, apart);
  const leg = cornerOf(across.pitch, down.pitch, ratio);
  const striped = stripesAt(apart, ratio, w, h);
  return picture(h, w, (pixels) => {
    let parts = [], last = -1;
    for (let y = 0; y < h; ++y) {
      const i = down.cell[y], base = (down.tile[y] - r0) * columns - c0,
            inner = (i % kSide) * kSide;
      if (level === "cells" && Math.floor(i / kSide) !== last) {
        last = Math.floor(i / kSide);
        parts = blocks.rowAt(i);
      }
      const [begin, end] = source.range(i);
      for (let x = 0; x < w; ++x) {
        const j = across.cell[x];
        if (j < begin || j >= end) continue;  // hidden: the hatching below shows
        const part = level === "cells" ? parts[Math.floor(j / kSide)] : null;
        const value = part ? part[inner + (j % kSide)] : UNKNOWN, at = base + across.tile[x];
        pixels[y * w + x] = value !== UNKNOWN     ? scale.pixel(value)
            : down.edge[y] || across.edge[x]      ? line[at]
            : down.left[y] + across.into[x] < leg ? corner[at]
            : striped[x - y + h]                  ? stripe[at]
                                                  : fill[at];
      }
    }
    if (level === "tiles") dots(view, pixels, w, h);
  });
}

// Known cells smaller than a pixel: the one furthest from 0 is that pixel.
function dots({ source, scale, window: [q0, q1, k0, k1] }, pixels, w, h) {
  if (source.needsRows || source.heads) return;
  const { i0, i1, j0, j1 } = cellsOf([q0, q1, k0, k1], source), best = new Float32Array(w * h);
  for (let i = i0; i < i1; ++i) {
    const y = Math.floor(((i + 0.5 - q0) / (q1 - q0)) * h);
    if (y < 0 || y >= h) continue;
    source.known(i, (j, value) => {
      const x = Math.floor(((j + 0.5 - k0) / (k1 - k0)) * w);
      if (j < j0 || j >= j1 || x < 0 || x >= w || Math.abs(value) <= Math.abs(best[y * w + x]))
        return;
      best[y * w + x] = value;
      pixels[y * w + x] = scale.pixel(value);
    });
  }
}

// The plot's content and where it goes, in px of the plot; ratio: pixels of the screen to a px.
export function plotPicture(view, {w, h}, ratio) {
  const { source, window } = view, [q0, q1, k0, k1] = window;
  const level = levelOf(source, window, w, h), whole = { x: 0, y: 0, w, h };
  if (showsTiles(source, level))
    return { image: tilePicture(view, { w, h }, level, ratio), ...whole };
  if (level === "merged")
    return { image: mergedPicture(view, Math.round(w), Math.round(h)), ...whole };
  const cells = cellsOf(window, source), x = w / (k1 - k0), y = h / (q1 - q0);
  return {
    image: cellPicture(view, cells),
    x: (cells.j0 - k0) * x,
    y: (cells.i0 - q0) * y,
    w: (cells.j1 - cells.j0) * x,
    h: (cells.i1 - cells.i0) * y
  };
}
