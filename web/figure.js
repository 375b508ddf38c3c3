// The map as a figure for a paper: what is drawn on the page, under the head's name, on white,
// without hover, chosen cell or dashed windows. SVG and PNG share the lines that draw the map.
import {asFigure, ink} from "./colour.js";
import {FILTERED, HIDDEN, UNKNOWN} from "./data.js";
import {keyToken, queryToken, shownTitle} from "./page.js";
import {paintContent, paintMap} from "./paint.js";
import {cellsOf, cornerOf, hasCorners, levelOf, plotPicture, showsTiles, stripeInk, stripesOf} from "./plot.js";
import {differenceWords, rounded, tileWords} from "./readout.js";
import {SvgPen} from "./svg.js";
import {say} from "./text.js";
import {visibleToken} from "./tokens.js";

const kHeader = 30;             // px for the name of the head
const kMostRectangles = 20000;  // of an SVG; more cells become one picture in it
const kScale = 3;               // pixels of a PNG to a px of the page

// The view of a figure: light colours, nothing chosen, every cell computed.
function figureView(map) {
  const view = map.view(), { source, blocks, window } = view, { w, h } = map.geometry;
  const { i0, i1, j0, j1 } = cellsOf(window, source);
  if (levelOf(source, window, w, h) !== "tiles") blocks.finish(i0, i1, j0, j1);
  return {...view, hover: null, cell: null, chosen: [], marks: false };
}

function paintFigure(context, map, view, content) {
  const { width, height } = map.geometry;
  context.fillStyle = ink("paper");
  context.fillRect(0, 0, width, height + kHeader);
  context.fillStyle = ink("ink");
  context.font = `600 14px ${ink("sans")}`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(visibleToken(shownTitle()), 8, kHeader / 2 + 2);
  context.save();
  context.translate(0, kHeader);
  paintMap(context, map.geometry, view, content);
  context.restore();
}

export function figureCanvas(map) {
  const { width, height } = map.geometry, canvas = document.createElement("canvas");
  canvas.width = kScale * width;
  canvas.height = kScale * (height + kHeader);
  const context = canvas.getContext("2d");
  context.scale(kScale, kScale);
  asFigure(() => paintFigure(context, map, figureView(map), paintContent(kScale)));
  return canvas;
}

export function svgOf(map) {
  const { width, height } = map.geometry;
  return asFigure(() => {
    const pen = new SvgPen(width, height + kHeader, visibleToken(shownTitle()));
    paintFigure(pen, map, figureView(map), vectorContent);
    return pen.finish();
  });
}

// What fills the plot, as rectangles, or, where they would be too many, as one picture.
function vectorContent(pen, { w, h }, view) {
  const { source, window } = view, cells = cellsOf(window, source);
  const level = levelOf(source, window, w, h);
  pen.hatch(0, 0, w, h, ink("hatch"));
  if (level !== "cells" || (cells.i1 - cells.i0) * (cells.j1 - cells.j0) > kMostRectangles) {
    const { image, ...place } = plotPicture(view, { w, h }, kScale);
    return pen.drawImage(image, place.x, place.y, place.w, place.h);
  }
  if (showsTiles(source, level)) vectorTiles(pen, { w, h }, view, cells);
  vectorCells(pen, { w, h }, view, cells);
}

function vectorCells(pen, { w, h }, { source, scale, window: [q0, q1, k0, k1] }, cells) {
  const { i0, i1, j0, j1 } = cells, x = w / (k1 - k0), y = h / (q1 - q0);
  const row = new Float64Array(j1 - j0);
  for (let i = i0; i < i1; ++i) {
    source.segment(i, j0, j1, row);
    row.forEach((value, n) => {
      if (value === HIDDEN || value === UNKNOWN) return;
      const j = j0 + n,
            pair = `${i} ${visibleToken(queryToken(i))} → ${j} ${visibleToken(keyToken(j))}`;
      pen.fillStyle = scale.css(value);
      const cell = source.error ? source.cell(i, j) : null,
            off = cell?.off ?? (cell?.error ?? 0) * Math.abs(value);
      const words = value === FILTERED ? say("filtered")
          : Number.isNaN(value)        ? say("nan")
          : Math.abs(value) <= off     ? differenceWords(value, off)
                                       : rounded(value, off, off ? 4 : 6);
      pen.fillRect((j - k0) * x, (i - q0) * y, x, y, `${pair}: ${words}`);
    });
  }
}

// Tiles with their stripes, outline and corner; what is hidden inside is hatched again.
function vectorTiles(pen, { w, h }, view, { i0, i1, j0, j1 }) {
  const { source, scale, tile, window: [q0, q1, k0, k1] } = view, { tiles } = source;
  const apart = stripesOf(source, view.window, w, h);
  const x = w / (k1 - k0), y = h / (q1 - q0), other = tile === "mean" ? "maximum" : "mean";
  const leg = cornerOf(tiles.keys * x, tiles.queries * y), cornered = leg && hasCorners(source);
  for (let r = Math.floor(i0 / tiles.queries); r * tiles.queries < i1; ++r) {
    for (let c = Math.floor(j0 / tiles.keys); c * tiles.keys < j1; ++c) {
      const value = source.tile(r, c, tile), at = source.tileAt(r * tiles.queries, c * tiles.keys);
      if (value === HIDDEN || value === FILTERED || !at) continue;
      const box = [(at.key - k0) * x, (at.query - q0) * y, at.keys * x, at.queries * y];
      pen.fillStyle = scale.css(value);
      pen.fillRect(...box, `${say("tile")}: ${tileWords(at, source.difference)}`);
      if (apart) pen.stripes(...box, apart, ...stripeInk(scale, value));
      const second = cornered ? source.tile(r, c, other) : -1, [px, py, pw, ph] = box;
      pen.fillStyle = scale.css(second);
      if (second >= 0) pen.shape([[px, py + ph - leg], [px, py + ph], [px + leg, py + ph]]);
      pen.strokeStyle = ink("muted");
      pen.lineWidth = 1;
      pen.strokeRect(px + 0.5, py + 0.5, pw - 1, ph - 1);
    }
  }
  hatchHidden(pen, { x, y }, view, { i0, i1, j0, j1 });
}

function hatchHidden(pen, { x, y }, { source, window: [q0, , k0] }, { i0, i1, j0, j1 }) {
  const row = new Float64Array(j1 - j0);
  for (let i = i0; i < i1; ++i) {
    source.segment(i, j0, j1, row);
    for (let n = 0; n < row.length; ++n) {
      let end = n;
      while (end < row.length && row[end] === HIDDEN) ++end;
      if (end === n) continue;
      const box = [(j0 + n - k0) * x, (i - q0) * y, (end - n) * x, y];
      pen.fillStyle = ink("surface");
      pen.fillRect(...box);
      pen.hatch(...box, ink("hatch"));
      n = end;
    }
  }
}
