// Draws a head into a canvas context: hatching, cells or tiles, rulers, marks. It knows nothing of
// the screen, so the same lines draw the map and the exported picture.
import {ink} from "./colour.js";
import {FILTERED, HIDDEN, UNKNOWN} from "./data.js";
import {paintRulers} from "./ruler.js";

const kOutline = 7;     // px: smaller tiles would be all outline
const kViewWork = 3e8;  // multiplications that a view may cost; below it every cell is computed
const kCells = 5e6;

// How a window [q0, q1, k0, k1] is drawn on w x h px: "cells", "merged" (several cells a pixel, all
// of them computed) or "tiles".
export function levelOf(source, [q0, q1, k0, k1], w, h) {
  const cells = (q1 - q0) * (k1 - k0), wide = w / (k1 - k0) >= 1 && h / (q1 - q0) >= 1;
  const affordable = cells <= kCells && cells * source.cost <= kViewWork;
  if (wide && affordable) return "cells";
  if (!source.tiles) return wide ? "cells" : "merged";
  return source.exact && affordable ? "merged" : "tiles";
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

function picture(rows, columns, pixel) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  pixel(new Uint32Array(image.data.buffer));
  context.putImageData(image, 0, 0);
  return canvas;
}

// A picture with one pixel a cell. Cells that are not known, or whose blocks are not there yet, are
// a part of their tile, in its one colour.
function cellPicture({ source, blocks, scale, tile }, { i0, i1, j0, j1 }) {
  const columns = j1 - j0, { queries, keys } = source.tiles ?? {};
  const inTile = (i, j) =>
      (source.tiles ? source.tile(Math.floor(i / queries), Math.floor(j / keys), tile) : UNKNOWN);
  return picture(i1 - i0, columns, (pixels) => {
    if (source.tiles) {
      for (let i = i0; i < i1; ++i) {
        for (let j = j0; j < j1; ++j) {
          if (blocks.at(i, j)) continue;
          pixels[(i - i0) * columns + j - j0] = scale.pixel(inTile(i, j));
        }
      }
    }
    blocks.each(i0, i1, j0, j1, (i, j, value) => {
      pixels[(i - i0) * columns + j - j0] = scale.pixel(value === UNKNOWN ? inTile(i, j) : value);
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
    if (value < -1.5) {
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

// The plot's content: a small picture and where it goes, in px of the plot.
function content(view, geometry) {
  const { source, scale, tile, window } = view, [q0, q1, k0, k1] = window, { w, h } = geometry;
  const level = levelOf(source, window, w, h), x = w / (k1 - k0), y = h / (q1 - q0);
  const { i0, i1, j0, j1 } = cellsOf(window, source);
  if (level === "merged") {
    return { image: mergedPicture(view, Math.round(w), Math.round(h)), x: 0, y: 0, w, h };
  }
  if (level === "cells") {
    return {
      image: cellPicture(view, { i0, i1, j0, j1 }),
      x: (j0 - k0) * x,
      y: (i0 - q0) * y,
      w: (j1 - j0) * x,
      h: (i1 - i0) * y
    };
  }
  const { queries, keys } = source.tiles;
  const r0 = Math.floor(i0 / queries), r1 = Math.ceil(i1 / queries);
  const c0 = Math.floor(j0 / keys), c1 = Math.ceil(j1 / keys);
  const image = picture(r1 - r0, c1 - c0, (pixels) => {
    for (let r = r0; r < r1; ++r) {
      for (let c = c0; c < c1; ++c)
        pixels[(r - r0) * (c1 - c0) + c - c0] = scale.pixel(source.tile(r, c, tile));
    }
  });
  return {
    image,
    x: (c0 * keys - k0) * x,
    y: (r0 * queries - q0) * y,
    w: (c1 - c0) * keys * x,
    h: (r1 - r0) * queries * y
  };
}

let hatchings = {};

function hatching(context, colour) {
  if (!hatchings[colour]) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 8;
    const pen = canvas.getContext("2d");
    pen.strokeStyle = colour;
    pen.lineWidth = 1.2;
    pen.beginPath();
    for (const at of [-8, 0, 8]) {
      pen.moveTo(at - 1, 9);
      pen.lineTo(at + 9, -1);
    }
    pen.stroke();
    hatchings[colour] = canvas;
  }
  return context.createPattern(hatchings[colour], "repeat");
}

// geometry: { left, top, w, h } of the plot inside the canvas; view: { source, blocks, scale, tile,
// window, hover, cell, chosen, reverse, queryToken, keyToken }.
export function paintMap(context, geometry, view) {
  const { left, top, w, h } = geometry;
  context.save();
  context.translate(left, top);
  context.save();
  context.beginPath();
  context.rect(0, 0, w, h);
  context.clip();
  context.fillStyle = ink("surface");
  context.fillRect(0, 0, w, h);
  context.fillStyle = hatching(context, ink("hatch"));
  context.fillRect(0, 0, w, h);
  const picture = content(view, geometry);
  context.imageSmoothingEnabled = false;
  context.drawImage(picture.image, picture.x, picture.y, picture.w, picture.h);
  const level = levelOf(view.source, view.window, w, h);
  if (level === "cells") paintCells(context, geometry, view);
  if (level !== "merged") outlineTiles(context, geometry, view, level);
  paintMarks(context, geometry, view);
  context.restore();
  context.strokeStyle = ink("line");
  context.lineWidth = 1;
  context.strokeRect(-0.5, -0.5, w + 1, h + 1);
  context.restore();
  paintRulers(context, geometry, view);
}

// Lines around large cells that are known, and their numbers where they fit.
function paintCells(context, { w, h }, view) {
  const { source, blocks, scale, window } = view, [q0, q1, k0, k1] = window;
  const x = w / (k1 - k0), y = h / (q1 - q0), { i0, i1, j0, j1 } = cellsOf(window, source);
  if (Math.min(x, y) < 14) return;
  context.strokeStyle = ink("surface");
  context.lineWidth = 1;
  context.beginPath();
  blocks.each(i0, i1, j0, j1, (i, j, value) => {
    if (value !== UNKNOWN) context.rect((j - k0) * x, (i - q0) * y, x, y);
  });
  context.stroke();
  if (x < 38 || y < 20) return;
  context.font = `11px ${ink("mono")}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  blocks.each(i0, i1, j0, j1, (i, j, value) => {
    if (Math.abs(value) < 0.005 || value < -1.5) return;
    context.fillStyle = scale.inkOn(value);
    const text = Number.isNaN(value) ? "NaN" : value.toFixed(2).replace("0.", ".");
    context.fillText(text.replace("-", "−"), (j + 0.5 - k0) * x, (i + 0.5 - q0) * y);
  });
}

// Outlines of the tiles in view: of all, or where cells are drawn of those with a cell that is not
// known.
function outlineTiles(context, { w, h }, view, level) {
  const { source, blocks, window } = view, [q0, q1, k0, k1] = window;
  if (!source.tiles || (source.exact && level === "cells")) return;
  const { queries, keys } = source.tiles, x = w / (k1 - k0), y = h / (q1 - q0);
  if (Math.min(queries * y, keys * x) < kOutline) return;
  const { i0, i1, j0, j1 } = cellsOf(window, source);
  const unknown = (i, j) => {
    const block = blocks.at(i, j);
    return !block || blocks.value(i, j) === UNKNOWN;
  };
  context.strokeStyle = ink("muted");
  context.lineWidth = 1;
  context.beginPath();
  for (let i = i0 - (i0 % queries); i < i1; i += queries) {
    for (let j = j0 - (j0 % keys); j < j1; j += keys) {
      const value = source.tile(i / queries, j / keys, "mean");
      if (value === HIDDEN || value === FILTERED) continue;
      const rows = Math.min(i + queries, i1), columns = Math.min(j + keys, j1);
      if (level === "cells" && !someCell(Math.max(i, i0), rows, Math.max(j, j0), columns, unknown))
        continue;
      const down = Math.min(i + queries, source.queries) - i,
            across = Math.min(j + keys, source.keys) - j;
      context.rect((j - k0) * x, (i - q0) * y, across * x, down * y);
    }
  }
  context.globalAlpha = 0.5;
  context.stroke();
  context.globalAlpha = 1;
}

function someCell(i0, i1, j0, j1, test) {
  for (let i = i0; i < i1; ++i)
    for (let j = j0; j < j1; ++j)
      if (test(i, j)) return true;
  return false;
}

// The chosen rows (or columns), exact windows, the cell under the pointer and the chosen cell; of a
// cell that is not known the tile.
function paintMarks(context, { w, h }, view) {
  const { source, window, hover, cell, chosen, reverse } = view, [q0, q1, k0, k1] = window;
  const x = w / (k1 - k0), y = h / (q1 - q0);
  const box = (i, j, rows, columns) => context.strokeRect(
      (j - k0) * x, (i - q0) * y, Math.max(columns * x, 2), Math.max(rows * y, 2));
  context.strokeStyle = ink("mark");
  context.setLineDash([4, 3]);
  context.lineWidth = 1;
  for (const part of source.windows) box(part.query, part.key, part.queries, part.keys);
  context.setLineDash([]);
  const place = ([i, j]) => {
    const { tile } = source.cell(i, j);
    if (tile) box(tile.query, tile.key, tile.queries, tile.keys);
    else box(i, j, 1, 1);
  };
  context.fillStyle = ink("accent");
  for (const n of chosen) {
    if (reverse) context.fillRect((n - k0) * x, 0, Math.max(x, 2), 3);
    else context.fillRect(0, (n - q0) * y, 3, Math.max(y, 2));
  }
  if (hover) {
    context.strokeStyle = ink("ink");
    context.lineWidth = 1;
    place(hover);
  }
  if (cell) {
    context.strokeStyle = ink("accent");
    context.lineWidth = 2;
    place(cell);
  }
}
