// The strongest cells of the head that is shown, after filters: of all its cells, or of those that
// the page holds, and what the others are at most.
import {element, fill, signed} from "./dom.js";
import {placeElement, shown} from "./page.js";
import {figure, mostWords} from "./readout.js";
import {choose} from "./state.js";
import {say} from "./text.js";
import {zoomTo} from "./zoom.js";

const kListed = 8;
const kWork = 1e8;    // multiplications that the list may cost
const kCloseUp = 48;  // cells about a cell that was chosen here

// The strongest cells [{ i, j, value }], and what cells that are not known are at most (0: all
// are).
export function strongestOf(source, count = kListed) {
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
  let others = 0;
  for (let i = 0; i < source.queries; ++i) {
    if (scan) {
      source.segment(i, 0, source.keys, row);
      for (let j = 0; j < row.length; ++j)
        if (row[j] > -1.5) take(i, j, row[j]);
    } else {
      source.known(i, (j, value) => take(i, j, value));
      others = Math.max(others, mostOf(source, i));
    }
  }
  return { best, others: scan ? 0 : others };
}

// What a key of query i that is not stored weighs at most; 1 where that is not known.
function mostOf(source, i) {
  const head = source.head?.head ?? source.head ?? source, { rows } = head;
  if (!rows?.has(i) || source.difference || source.heads) return 1;
  return rows.whole(i) ? 0 : rows.most(i);
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
          others < 1 ? say("strongest_others", { most: mostWords(others) })
                     : say("strongest_stored"));
  }

  line(source, i, j, value) {
    const { error } = source.cell(i, j);
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
                source.difference ? signed(value, 3) : figure(value, error))));
  }
}
