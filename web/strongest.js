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
const kWork = 1e8;    // multiplications that the list may cost
const kCloseUp = 48;  // cells about a cell that was chosen here

// The strongest cells [{ i, j, value }], and what cells that are not known are at most (0: all
// are).
function strongestOf(source, count = kListed) {
  const best = [], row = new Float64Array(source.keys);
  const take = (i, j, value) => {
    const size = Math.abs(value);
    if (!(size > 0) || (best.length === count && size <= Math.abs(best.at(-1).value))) return;
    if (best.some((each) => each.i === i && each.j === j)) return;
    best.push({ i, j, value });
    best.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    best.length = Math.min(best.length, count);
  };
  const scan = source.exact && source.queries * source.keys * source.cost <= kWork;
  const tiles = scan ? null : tileBounds(source);
  let others = 0;
  for (let i = 0; i < source.queries; ++i) {
    if (scan) {
      source.segment(i, 0, source.keys, row);
      for (let j = 0; j < row.length; ++j)
        if (!isMark(row[j])) take(i, j, row[j]);
    } else {
      source.known(i, (j, value) => take(i, j, value));
      others = Math.max(others, source.mostInRow ? Math.min(source.mostInRow(i), tiles(i)) : 1);
    }
  }
  return { best, others };
}

// For each query what its tiles say of its keys, looked up once for each row of tiles.
function tileBounds(source) {
  const { rows, queries } = source.tiles ?? {};
  if (!rows || isWeighted(source)) return () => Infinity;
  const most = Array.from({ length: rows }, (_, row) => mostInTiles(source, row * queries));
  return (i) => most[Math.floor(i / queries)];
}

export class StrongestView {
  constructor(root) {
    this.list = element("ol", { class: "strongest" });
    this.note = element("p", { class: "fine" });
    root.append(this.list, this.note);
  }

  show() {
    const { source } = shown;
    fill(this.list);
    fill(this.note);
    if (!source || source.needsRows || source.a?.needsRows || (source.heads && !source.exact))
      return;
    const { best, others } = strongestOf(source);
    fill(this.list, best.map(({ i, j, value }) => this.line(source, i, j, value)));
    const least = best.length < kListed ? 0 : Math.abs(best.at(-1).value);
    if (others > least)
      fill(
          this.note,
          others < 1 || isWeighted(source) ? say("strongest_others", { most: mostWords(others) })
                                           : say("strongest_stored"));
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
