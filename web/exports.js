// What is in view as a file: SVG and PNG as drawn, CSV with the numbers.
import {ink} from "./colour.js";
import {FILTERED, HIDDEN, UNKNOWN} from "./data.js";
import {headName, keyToken, queryToken, shown, shownName} from "./page.js";
import {cellsOf, levelOf, paintMap} from "./paint.js";
import {tileWords} from "./readout.js";
import {rulerLabels} from "./ruler.js";
import {state} from "./state.js";
import {say} from "./text.js";
import {shortToken, visibleToken} from "./tokens.js";

const kMostRectangles = 20000;  // of an SVG; more cells become one picture in it
const kMostLines = 1e6;         // of a CSV

function save(blob, ending) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `attend-layer-${state.layer}-head-${state.head}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function escaped(text) {
  return String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
}

// The map on a canvas of its own, twice as fine, on the page's background.
function drawn(map) {
  const { width, height } = map.geometry, canvas = document.createElement("canvas");
  canvas.width = 2 * width;
  canvas.height = 2 * height;
  const context = canvas.getContext("2d");
  context.scale(2, 2);
  context.fillStyle = ink("paper");
  context.fillRect(0, 0, width, height);
  paintMap(context, map.geometry, {...map.view(), hover: null });
  return canvas;
}

export function savePng(map) { drawn(map).toBlob((blob) => save(blob, "png"), "image/png"); }

export function saveSvg(map) { save(new Blob([svgOf(map)], { type: "image/svg+xml" }), "svg"); }

export function saveCsv(map) { save(new Blob([csvOf(map)], { type: "text/csv" }), "csv"); }

export function svgOf(map) {
  const { left, top, w, h, width, height } = map.geometry, view = map.view(),
                                         [q0, q1, k0, k1] = view.window;
  const x = w / (k1 - k0), y = h / (q1 - q0),
        { i0, i1, j0, j1 } = cellsOf(view.window, view.source);
  const title = `${headName(shown.layer, state.head)}`, parts = [];
  parts.push(
      `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${
          width}" height="${height}" font-family="sans-serif" font-size="12">`,
      `<title>${escaped(visibleToken(title))}</title>`,
      `<defs><pattern id="hidden" width="8" height="8" patternUnits="userSpaceOnUse"><path d="M-1 9L9 -1M-1 1L1 -1M7 9L9 7" stroke="${
          ink("hatch")}"/></pattern>`,
      `<clipPath id="plot"><rect x="${left}" y="${top}" width="${w}" height="${
          h}"/></clipPath></defs>`,
      `<rect width="${width}" height="${height}" fill="${ink("paper")}"/>`,
      `<rect x="${left}" y="${top}" width="${w}" height="${h}" fill="url(#hidden)" stroke="${
          ink("line")}"/>`,
      '<g clip-path="url(#plot)">');
  if ((i1 - i0) * (j1 - j0) <= kMostRectangles &&
      levelOf(view.source, view.window, w, h) === "cells") {
    const place = (j, i, columns, rows) => `x="${round(left + (j - k0) * x)}" y="${
        round(top + (i - q0) * y)}" width="${round(columns * x)}" height="${round(rows * y)}"`;
    const row = new Float64Array(j1 - j0), tiles = new Set(), cells = [];
    for (let i = i0; i < i1; ++i) {
      view.source.segment(i, j0, j1, row);
      row.forEach((value, n) => {
        const j = j0 + n;
        if (value === HIDDEN) return;
        if (value === UNKNOWN) return tiles.add(tileNumber(view.source, i, j));
        const pair = `${i} ${visibleToken(queryToken(i))} → ${j} ${visibleToken(keyToken(j))}`;
        cells.push(
            `<rect ${place(j, i, 1, 1)} fill="${view.scale.css(value)}"><title>${escaped(pair)}: ${
                value === FILTERED ? say("filtered")
                                   : Number(value.toPrecision(6))}</title></rect>`);
      });
    }
    for (const tile of [...tiles].map((n) => tileOfNumber(view.source, n)).filter(Boolean)) {
      parts.push(`<rect ${place(tile.key, tile.query, tile.keys, tile.queries)} fill="${
          view.scale.css(tile[view.tile])}" stroke="${ink("muted")}"><title>${say("tile")}: ${
          escaped(tileWords(tile, view.source.difference))}</title></rect>`);
    }
    parts.push(...cells);
  } else {
    const full = drawn(map), plot = document.createElement("canvas");
    plot.width = 2 * w;
    plot.height = 2 * h;
    plot.getContext("2d").drawImage(full, -2 * left, -2 * top);
    parts.push(`<image x="${left}" y="${top}" width="${w}" height="${h}" href="${
        plot.toDataURL("image/png")}"/>`);
  }
  parts.push("</g>");
  for (const label of rulerLabels(q0, q1, h, queryToken)) {
    parts.push(`<text x="${left - 8}" y="${round(top + label.at + 4)}" text-anchor="end" fill="${
        ink("muted")}">${escaped(shortToken(label.text, 13))}</text>`);
  }
  for (const label of rulerLabels(k0, k1, w, keyToken)) {
    parts.push(`<text transform="translate(${round(left + label.at)} ${
        top -
        7}) rotate(-53)" fill="${ink("muted")}">${escaped(shortToken(label.text, 13))}</text>`);
  }
  return parts.join("\n") + "\n</svg>\n";
}

function round(value) { return Number(value.toFixed(2)); }

// Tiles by number, and back: with their value for each kind of colour. Null without tiles.
function tileNumber(source, i, j) {
  if (!source.tiles) return -1;
  const { columns, queries, keys } = source.tiles;
  return Math.floor(i / queries) * columns + Math.floor(j / keys);
}

function tileOfNumber(source, n) {
  if (n < 0) return null;
  const { columns, queries, keys } = source.tiles, row = Math.floor(n / columns),
                                 column = n % columns;
  return {
    ...source.tileAt(row * queries, column * keys),
    mean: source.tile(row, column, "mean"),
    maximum: source.tile(row, column, "maximum")
  };
}

// A field of a CSV. A token that a spreadsheet would take for a formula gets an apostrophe in
// front.
function field(token) {
  const text = visibleToken(token, true);
  return `"${(/^[=+\-@]/.test(text) ? "'" : "") + text.replaceAll('"', '""')}"`;
}

const kindOf = (value, usual) =>
    (value === HIDDEN         ? "hidden"
         : value === FILTERED ? "filtered"
                              : usual);
const figureOf = (value) => (value < -1.5 ? "" : String(Number(value.toPrecision(9))));

// What is in view: a line for each cell, or, where the page knows or draws tiles, a line for each
// tile, and one for each cell that is known besides.
export function csvOf(map) {
  const { source } = shown, window = map.window(), { w, h } = map.geometry;
  const cells = cellsOf(window, source), count = (cells.i1 - cells.i0) * (cells.j1 - cells.j0);
  const start = `${field(shownName())},${field(shown.layer.name ?? state.layer)},${state.head}`;
  const zoomedOut = levelOf(source, window, w, h) === "tiles";
  if (!zoomedOut && count > kMostLines)
    throw new RangeError(say("export_too_large", { n: count, most: kMostLines }));
  const lines = zoomedOut || (!source.exact && source.tiles) ? tileLines(start, cells, zoomedOut)
                                                             : cellLines(start, cells);
  return lines.join("\r\n") + "\r\n";
}

function cellLines(start, { i0, i1, j0, j1 }) {
  const { source } = shown, row = new Float64Array(j1 - j0);
  const what = source.difference ? "difference" : "weight";
  const lines = [`run,layer,head,query,key,query_token,key_token,${what},kind`];
  for (let i = i0; i < i1; ++i) {
    source.segment(i, j0, j1, row);
    row.forEach((value, n) => {
      const j = j0 + n, kind = kindOf(value, value === UNKNOWN ? "unknown" : "exact");
      const tokens = `${field(queryToken(i))},${field(keyToken(j))}`;
      lines.push([start, i, j, tokens, figureOf(value), kind].join(","));
    });
  }
  return lines;
}

// A tile has a mean and two numbers between which its largest weight lies, a cell its weight; of a
// difference a tile has the difference of the means.
function tileLines(start, { i0, i1, j0, j1 }, onlyTiles) {
  const { source } = shown, { queries, keys } = source.tiles, row = new Float64Array(j1 - j0);
  const what = source.difference ? "difference" : "weight";
  const lines =
      [`run,layer,head,query,queries,key,keys,${what},mean_${what},largest_from,largest_to,kind`];
  const add = (...parts) => lines.push([start, ...parts].join(","));
  for (let r = Math.floor(i0 / queries); r * queries < i1; ++r) {
    for (let c = Math.floor(j0 / keys); c * keys < j1; ++c) {
      const tile = source.tileAt(r * queries, c * keys), mean = source.tile(r, c, "mean");
      const [from, to] = mean < -1.5 || !tile.largest ? ["", ""] : tile.largest.map(figureOf);
      add(tile.query, tile.queries, tile.key, tile.keys, "", figureOf(mean), from, to,
          kindOf(mean, "tile"));
    }
  }
  for (let i = i0; i < i1 && !onlyTiles; ++i) {
    source.segment(i, j0, j1, row);
    row.forEach((value, n) => {
      if (value > -1.5 || Number.isNaN(value))
        add(i, 1, j0 + n, 1, figureOf(value), "", "", "", "exact");
    });
  }
  return lines;
}
