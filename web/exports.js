// What is in view as a file: SVG and PNG as drawn, CSV with the numbers.
import {FILTERED, HIDDEN, isMark} from "./data.js";
import {figureCanvas, svgOf} from "./figure.js";
import {keyToken, queryToken, shown, shownName} from "./page.js";
import {cellsOf, levelOf} from "./plot.js";
import {rounded} from "./readout.js";
import {state} from "./state.js";
import {say} from "./text.js";
import {visibleToken} from "./tokens.js";

const kMostLines = 1e6;  // of a CSV

function save(blob, ending) {
  const link = document.createElement("a"), head = state.over === "none" ? state.head : state.over;
  link.href = URL.createObjectURL(blob);
  link.download = `attend-layer-${state.layer}-head-${head}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

export function savePng(map) { figureCanvas(map).toBlob((blob) => save(blob, "png"), "image/png"); }

export function saveSvg(map) { save(new Blob([svgOf(map)], { type: "image/svg+xml" }), "svg"); }

export function saveCsv(map) { save(new Blob([csvOf(map)], { type: "text/csv" }), "csv"); }

// A field of a CSV. A token that a spreadsheet would take for a formula gets an apostrophe in
// front.
function field(token) {
  const text = visibleToken(token, true);
  return `"${(/^[=+\-@]/.test(text) ? "'" : "") + text.replaceAll('"', '""')}"`;
}

function kindOf(value, usual) {
  if (!isMark(value)) return usual;
  return value === HIDDEN ? "hidden" : value === FILTERED ? "filtered" : "unknown";
}
const figureOf = (value) => (isMark(value) ? "" : String(Number(value.toPrecision(9))));

// A cell that is known: what was rounded for the page has the digits that it deserves, and what
// may be no more than rounding is 0.
function knownFigure(source, i, j, value) {
  if (source.exact) return figureOf(value);
  const { error = source.error, off = error * Math.abs(value) } = source.cell(i, j);
  return String(Math.abs(value) <= off ? 0 : rounded(value, off, 9));
}

// What is in view: a line for each cell, or, where the page knows or draws tiles, a line for each
// tile, and one for each cell that is known besides.
export function csvOf(map) {
  const { source } = shown, window = map.window(), { w, h } = map.geometry;
  const cells = cellsOf(window, source), count = (cells.i1 - cells.i0) * (cells.j1 - cells.j0);
  const start = `${field(shownName())},${field(shown.layer.name ?? state.layer)},${
      state.over === "none" ? state.head : state.over}`;
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
      const j = j0 + n, kind = kindOf(value, "exact");
      const tokens = `${field(queryToken(i))},${field(keyToken(j))}`;
      const figure = kind === "exact" ? knownFigure(source, i, j, value) : figureOf(value);
      lines.push([start, i, j, tokens, figure, kind].join(","));
    });
  }
  return lines;
}

// A tile has numbers between which its mean lies, and between which its largest weight does, a cell
// its weight; of a difference a tile has the difference of the means. Over heads a tile has only
// one of both.
function tileLines(start, { i0, i1, j0, j1 }, onlyTiles) {
  const { source } = shown, { queries, keys } = source.tiles, row = new Float64Array(j1 - j0);
  const what = source.difference ? "difference" : "weight";
  const lines = [
    `run,layer,head,query,queries,key,keys,${what},mean_from,mean_to,largest_from,largest_to,kind`
  ];
  const add = (...parts) => lines.push([start, ...parts].join(","));
  for (let r = Math.floor(i0 / queries); r * queries < i1; ++r) {
    for (let c = Math.floor(j0 / keys); c * keys < j1; ++c) {
      const tile = source.tileAt(r * queries, c * keys), mean = source.tile(r, c, "mean");
      const maxima = source.which === "maximum", none = isMark(mean) || Number.isNaN(mean);
      const ends = (range) => (none || !range ? ["", ""] : range.map((value) => figureOf(value)));
      add(tile.query, tile.queries, tile.key, tile.keys, "", ...ends(maxima ? null : tile.means),
          ...ends(maxima ? tile.means : tile.largest), kindOf(mean, "tile"));
    }
  }
  for (let i = i0; i < i1 && !onlyTiles; ++i) {
    source.segment(i, j0, j1, row);
    row.forEach((value, n) => {
      if (!isMark(value))
        add(i, 1, j0 + n, 1, knownFigure(source, i, j0 + n, value), "", "", "", "", "exact");
    });
  }
  return lines;
}
