// The weights as a real table, for screen readers and for copying, up to 64 tokens. It is always
// there for them, and shown to everybody on request.
import {FILTERED, HIDDEN, UNKNOWN} from "./data.js";
import {element, fill, number} from "./dom.js";
import {keyToken, queryToken, shown, shownHead} from "./page.js";
import {differenceWords, mostWords, tileWords} from "./readout.js";
import {state} from "./state.js";
import {say} from "./text.js";
import {visibleToken} from "./tokens.js";

const kMostTokens = 64;

function unknownWords(cell, source) {
  return cell.kind === "bound" ? mostWords(cell.most) : tileWords(cell.tile, source.difference);
}

export function showTable(root) {
  const { source } = shown;
  root.classList.toggle("visually-hidden", !state.table);
  if (!source) return fill(root);
  const n = Math.max(source.queries, source.keys);
  if (n > kMostTokens)
    return fill(root, element("p", { class: "muted" }, say("table_too_long", { n })));
  const header =
      element("tr", {}, element("th", { scope: "col" }, `${say("query")} \\ ${say("key")}`));
  for (let j = 0; j < source.keys; ++j)
    header.append(element("th", { scope: "col" }, element("bdi", {}, visibleToken(keyToken(j)))));
  const body = element("tbody"), row = new Float64Array(source.keys);
  for (let i = 0; i < source.queries; ++i) {
    source.segment(i, 0, source.keys, row);
    const cells = [...row].map((value, j) => {
      if (value === HIDDEN) return element("td", { class: "hidden-cell" }, say("hidden"));
      if (value === FILTERED) return element("td", {}, say("filtered"));
      // A stored 0 is only very small, and the rounding of a difference is that of two weights.
      const cell = value === UNKNOWN || value === 0 || source.difference ? source.cell(i, j) : null;
      if (cell?.weight === null)
        return element("td", { class: "tile-cell" }, unknownWords(cell, source));
      const words = Number.isNaN(value) ? say("nan")
          : source.difference           ? differenceWords(value, cell.off, 3)
                                        : number(value, 3);
      return element("td", { class: "figure" }, words);
    });
    body.append(element(
        "tr", {}, element("th", { scope: "row" }, element("bdi", {}, visibleToken(queryToken(i)))),
        cells));
  }
  fill(
      root,
      element(
          "div", {
            class: "table-scroll",
            tabindex: state.table ? "0" : null,
            role: "region",
            "aria-label": say("table")
          },
          element(
              "table", { class: "weights" },
              element("caption", {}, say("table_caption", { head: shownHead() })),
              element("thead", {}, header), body)));
}
