// Draws a head into a canvas context: hatching, cells or tiles, rulers, marks, strips, colour bar.
// It knows nothing of the screen, so the same lines draw the map, the pinned heads and the figure.
import {ink} from "./colour.js";
import {HIDDEN, isMark, UNKNOWN} from "./data.js";
import {cellsOf, levelOf, plotPicture} from "./plot.js";
import {paintRulers} from "./ruler.js";
import {paintBar, paintStrips, paintTitles} from "./strips.js";

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

// geometry: { left, top, w, h } of the plot inside the canvas, { strip, bar } around it, or
// `plain` for nothing around it; view: {
// source, blocks, scale, tile, window, hover, cell, chosen, reverse, queryToken, keyToken, strips,
// words (of the colour bar), marks }. `content` draws what fills the plot.
export function paintMap(context, geometry, view, content) {
  const { left, top, w, h } = geometry;
  context.save();
  context.translate(left, top);
  context.save();
  context.beginPath();
  context.rect(0, 0, w, h);
  context.clip();
  context.fillStyle = ink("surface");
  context.fillRect(0, 0, w, h);
  content(context, geometry, view);
  if (levelOf(view.source, view.window, w, h) === "cells") paintCells(context, geometry, view);
  if (view.marks) paintMarks(context, geometry, view);
  context.restore();
  context.strokeStyle = ink("line");
  context.lineWidth = 1;
  context.strokeRect(-0.5, -0.5, w + 1, h + 1);
  context.restore();
  if (!geometry.plain) paintRulers(context, geometry, view);
  if (geometry.strip) paintStrips(context, geometry, view);
  if (geometry.bar) {
    paintTitles(context, geometry);
    paintBar(context, geometry, view.scale, view.words);
  }
}

// What fills the plot of a canvas: hatching, and a picture of cells or tiles above it. The picture
// is kept in `kept` as long as `key` stays the same.
export function paintContent(ratio, kept = {}, key = null) {
  return (context, { w, h }, view) => {
    context.fillStyle = hatching(context, ink("hatch"));
    context.fillRect(0, 0, w, h);
    if (key === null || kept.key !== key)
      Object.assign(kept, { key, picture: plotPicture(view, { w, h }, ratio) });
    const { image, ...place } = kept.picture;
    context.imageSmoothingEnabled = false;
    context.drawImage(image, place.x, place.y, place.w, place.h);
  };
}

// Lines around large cells that are known, and their numbers where they fit. Beside tiles what is
// hidden has none: a tile cut by the mask is not to look like cells.
function paintCells(context, { w, h }, view) {
  const { source, blocks, scale, window } = view, [q0, q1, k0, k1] = window;
  const x = w / (k1 - k0), y = h / (q1 - q0), { i0, i1, j0, j1 } = cellsOf(window, source);
  if (Math.min(x, y) < 14) return;
  context.strokeStyle = ink("surface");
  context.lineWidth = 1;
  context.beginPath();
  blocks.each(i0, i1, j0, j1, (i, j, value) => {
    if (value === UNKNOWN || (value === HIDDEN && !source.exact)) return;
    context.rect((j - k0) * x, (i - q0) * y, x, y);
  });
  context.stroke();
  if (x < 28 || y < 17) return;
  context.font = `11px ${ink("mono")}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  blocks.each(i0, i1, j0, j1, (i, j, value) => {
    if (Math.abs(value) < 0.005 || isMark(value)) return;
    context.fillStyle = scale.inkOn(value);
    context.fillText(cellNumber(value), (j + 0.5 - k0) * x, (i + 0.5 - q0) * y);
  });
}

// Two decimals, ".97", or of what is 10 and more none.
function cellNumber(value) {
  if (Number.isNaN(value)) return "NaN";
  return value.toFixed(Math.abs(value) < 10 ? 2 : 0).replace("0.", ".").replace("-", "−");
}

// The chosen rows (or columns), exact windows, the cell under the pointer and the chosen cell; of a
// cell that is not known its tile as well, or, where nothing else is known of it, its tile alone.
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
    const { tile, kind } = source.cell(i, j);
    if (kind !== "tile") box(i, j, 1, 1);
    if (!tile) return;
    if (kind !== "tile") context.lineWidth = 1;
    box(tile.query, tile.key, tile.queries, tile.keys);
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
