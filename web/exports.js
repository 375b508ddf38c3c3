// What is in view as a file: SVG and PNG as drawn, CSV with the numbers.
import {ink} from "./colour.js";
import {headName, keyToken, queryToken, shown, shownName} from "./page.js";
import {cellsOf, levelOf, paintMap} from "./paint.js";
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
    const row = new Float64Array(j1 - j0);
    for (let i = i0; i < i1; ++i) {
      view.source.segment(i, j0, j1, row);
      row.forEach((value, n) => {
        if (value === -2) return;
        const pair =
            `${i} ${visibleToken(queryToken(i))} → ${j0 + n} ${visibleToken(keyToken(j0 + n))}`;
        parts.push(
            `<rect x="${round(left + (j0 + n - k0) * x)}" y="${round(top + (i - q0) * y)}" width="${
                round(x)}" height="${round(y)}" ` +
            `fill="${view.scale.css(value)}"><title>${escaped(pair)}: ${
                value === -3 ? say("filtered") : Number(value.toPrecision(6))}</title></rect>`);
      });
    }
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

// A field of a CSV. A token that a spreadsheet would take for a formula gets an apostrophe in
// front.
function field(token) {
  const text = visibleToken(token, true);
  return `"${(/^[=+\-@]/.test(text) ? "'" : "") + text.replaceAll('"', '""')}"`;
}

// One line for each cell in view; where only tiles can be drawn, one for each tile.
export function csvOf(map) {
  const { source } = shown, window = map.window(), { w, h } = map.geometry,
                 { i0, i1, j0, j1 } = cellsOf(window, source);
  const start = `${field(shownName())},${field(shown.layer.name ?? state.layer)},${state.head}`;
  const value = (x) => (x === -2 || x === -3 ? "" : String(Number(x.toPrecision(9))));
  const kind = (x, usual) => (x === -2 ? "hidden" : x === -3 ? "filtered" : usual);
  const what = source.difference ? "difference" : "weight";
  if (levelOf(source, window, w, h) === "tiles") {
    const lines = [`run,layer,head,query,queries,key,keys,mean_${what},largest_${what},kind`],
          { queries, keys } = source.tiles;
    for (let r = Math.floor(i0 / queries); r * queries < i1; ++r) {
      for (let c = Math.floor(j0 / keys); c * keys < j1; ++c) {
        const mean = source.tile(r, c, "mean");
        lines.push([
          start, r * queries, queries, c * keys, keys, value(mean),
          value(source.tile(r, c, "maximum")), kind(mean, "about")
        ].join(","));
      }
    }
    return lines.join("\r\n") + "\r\n";
  }
  const cells = (i1 - i0) * (j1 - j0);
  if (cells > kMostLines)
    throw new RangeError(say("export_too_large", { n: cells, most: kMostLines }));
  const lines = [`run,layer,head,query,key,query_token,key_token,${what},kind`],
        row = new Float64Array(j1 - j0);
  for (let i = i0; i < i1; ++i) {
    source.segment(i, j0, j1, row);
    row.forEach((weight, n) => {
      const j = j0 + n;
      lines.push([
        start, i, j, field(queryToken(i)), field(keyToken(j)), value(weight),
        kind(weight, source.isExact(i, j) ? "exact" : "about")
      ].join(","));
    });
  }
  return lines.join("\r\n") + "\r\n";
}
