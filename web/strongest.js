// The strongest cells of the head that is shown, after filters: of all its cells, or of those that
// the page holds, and what the others are at most.
import {isMark} from "./data.js";
import {element, fill} from "./dom.js";
import {mostInTiles} from "./head.js";
import {placeElement, shown} from "./page.js";
import {cellFigure, mostWords} from "./readout.js";
import {choose} from "./state.js";
import {say} from "./text.js";
import {isWeighted} from "./values.js";
import {zoomTo} from "./zoom.js";

const kListed = 8;
const kLine = 28;        // px of each, as in the style
const kAtOnce = 1e8;     // multiplications of a search before the page goes on
const kMostWork = 4e9;   // of a whole search
const kStoredRow = 500;  // that reading what is stored of a row takes as long as
const kSearching = 12;   // ms of a search between two frames
const kCloseUp = 48;     // cells about a cell that was chosen here

// The cells furthest from 0, of equal ones those that came first.
class Best {
  constructor() { this.cells = []; }

  // What a cell must exceed.
  least() { return this.cells.length < kListed ? 0 : Math.abs(this.cells.at(-1).value); }

  take(i, j, value) {
    if (!(Math.abs(value) > this.least())) return;
    if (this.cells.some((each) => each.i === i && each.j === j)) return;
    this.cells.push({ i, j, value });
    this.cells.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    this.cells.length = Math.min(this.cells.length, kListed);
  }
}

// The parts of a head in which all cells are computed, and what these are at most: the whole of it
// where that costs little, else its tiles, the largest first. Where a filter looks at whole rows,
// so do the parts.
function partsOf(source) {
  const { queries, keys, tiles } = source, whole = { i0: 0, i1: queries, j0: 0, j1: keys };
  if (!tiles || queries * keys * source.cost <= kAtOnce) return [{...whole, most: Infinity }];
  const parts = [], columns = source.needsRows ? 1 : tiles.columns;
  for (let row = 0; row < tiles.rows; ++row) {
    const i0 = row * tiles.queries, i1 = Math.min(i0 + tiles.queries, queries);
    for (let column = 0; column < columns; ++column) {
      const most = source.needsRows ? mostInTiles(source, row) : source.mostIn(row, column);
      const j0 = column * tiles.keys, j1 = columns === 1 ? keys : Math.min(j0 + tiles.keys, keys);
      if (most > 0) parts.push({ i0, i1, j0, j1, most });
    }
  }
  return parts.sort((a, b) => (a.most === b.most ? 0 : b.most - a.most));
}

// Looks through a head that is exact; yields after each step what was done so far, and returns what
// all cells that it did not look at are at most.
function* searchCells(source, best) {
  const row = new Float64Array(source.keys);
  let work = 0;
  for (const { i0, i1, j0, j1, most } of partsOf(source)) {
    if (most <= best.least()) return most;
    for (let i = i0; i < i1; ++i) {
      if (work > kMostWork) return most;
      source.segment(i, j0, j1, row);
      for (let j = j0; j < j1; ++j)
        if (!isMark(row[j - j0])) best.take(i, j, row[j - j0]);
      work += (j1 - j0) * source.cost;
      yield work;
    }
  }
  return 0;
}

// The same of what is stored of a head.
function* searchStored(source, best) {
  const { rows = 0, queries } = source.tiles ?? {};
  const tiles = Array.from({ length: rows }, (_, row) => mostInTiles(source, row));
  let others = 0;
  for (let i = 0; i < source.queries; ++i) {
    source.known(i, (j, value) => best.take(i, j, value));
    const inTiles = rows ? tiles[Math.floor(i / queries)] : Infinity;
    others = Math.max(others, Math.min(source.mostInRow?.(i) ?? Infinity, inTiles));
    yield(i + 1) * kStoredRow * source.cost;
  }
  return others;
}

export class StrongestView {
  constructor(root) {
    this.list = element("ol", { class: "strongest" });
    this.note = element("p", { class: "fine" });
    this.asked = 0;
    root.append(this.list, this.note);
  }

  // What takes longer is found between frames; until then the note says so.
  async show() {
    const asked = ++this.asked, { source } = shown, best = new Best();
    const lines = source ? Math.min(kListed, source.queries * source.keys) : 0;
    this.list.style.minHeight = `${lines * kLine}px`;  // what lies below stays where it is
    if (!source) return this.clear();
    if (source.lacksRows) {
      this.clear();
      return fill(this.note, say("needs_exact"));
    }
    const search = source.exact ? searchCells(source, best) : searchStored(source, best);
    let step = search.next();
    while (!step.done && step.value <= kAtOnce) step = search.next();
    if (!step.done) {
      this.clear();
      fill(this.note, say("searching"));
    }
    for (let end = 0; !step.done; step = search.next()) {
      if (performance.now() < end) continue;
      await new Promise((done) => setTimeout(done));
      if (asked !== this.asked) return;
      end = performance.now() + kSearching;
    }
    this.tell(source, best, step.value);
  }

  clear() {
    fill(this.list);
    fill(this.note);
  }

  // others: what the cells that are not among them are at most.
  tell(source, best, others) {
    fill(this.list, best.cells.map(({ i, j, value }) => this.line(source, i, j, value)));
    fill(this.note);
    if (!(others > best.least())) return;
    const known = others < 1 || (isWeighted(source) && others < Infinity),
          values = { most: mostWords(others) };
    if (source.exact)
      fill(this.note, known ? say("strongest_computed_others", values) : say("strongest_computed"));
    else fill(this.note, known ? say("strongest_others", values) : say("strongest_stored"));
  }

  line(source, i, j, value) {
    const pick = () => {
      choose({ cell: [i, j], chosen: [i], reverse: false });
      if (Math.max(source.queries, source.keys) > 2 * kCloseUp) zoomTo(i, j, kCloseUp);
    };
    return element(
        "li", {},
        element(
            "button", { type: "button", onclick: pick, "data-cell": `${i},${j}` },
            element(
                "span", { class: "cell-pair" }, placeElement(i, "query"),
                element("span", { class: "muted" }, " → "), placeElement(j, "key")),
            element(
                "span", { class: "figure" },
                cellFigure({...source.cell(i, j), weight: value }, source.difference))));
  }
}
