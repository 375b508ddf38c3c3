// The page's elements, put together: the header, the four views with what switches them, the foot.
import {check, copyLink, Filters, headControls, mapControls, Runs} from "./controls.js";
import {element, fill, segmented} from "./dom.js";
import {ExplainView} from "./explain.js";
import {saveCsv, savePng, saveSvg} from "./exports.js";
import {Grid} from "./grid.js";
import {helpDialog} from "./keys.js";
import {MapView} from "./map.js";
import {runOf, shown} from "./page.js";
import {TextView} from "./shading.js";
import {choose, state} from "./state.js";
import {say} from "./text.js";

// What the reader should know before looking: the page's own notes, and tokens that do not fit.
function notes() {
  const all = [...shown.page.notes];
  for (const run of shown.page.runs) {
    const layer = run.layers[0], keyTokens = run.key_tokens ?? run.tokens;
    if (layer && keyTokens && keyTokens.length < layer.keys) {
      all.push(say("few_tokens", { found: keyTokens.length, needed: layer.keys }));
    }
  }
  if (all.length === 0) return null;
  const list = element("ul", {}, all.map((note) => element("li", {}, note)));
  return element(
      "div", { class: "page-notes", role: "note" }, element("strong", {}, say("notes")), list);
}

// "12 layers × 12 heads · 512 queries × 512 keys · every cell is exact"
function summary() {
  const run = runOf(state.show), [layer] = run.layers;
  if (!layer) return say("no_layers");
  const all = shown.page.runs.flatMap((each) => each.layers);
  const exact = all.every((each) => each.q && each.k && each.lse);
  const tiled = all.some((each) => each.tiles?.queries * each.tiles?.keys > 1);
  const count = (n, word) => `${n} ${say(n === 1 ? `${word}_word_1` : `${word}_word`)}`;
  return [
    `${count(run.layers.length, "layer")} × ${count(layer.heads, "head")}`,
    `${count(layer.queries, "query")} × ${count(layer.keys, "key")}`,
    say(!exact      ? "some_about"
            : tiled ? "cells_exact"
                    : "all_exact")
  ].join(" · ");
}

function section(id, title, ...children) {
  return element(
      "section", { id, "aria-labelledby": `${id}-h`, tabindex: "-1" },
      element("h2", { id: `${id}-h` }, title), children);
}

function button(words, onclick, more = {}) {
  return element("button", { type: "button", class: "quiet", onclick, ...more }, words);
}

function header(title, dialog, linkPlace) {
  const languages = segmented(
      say("language"), [["en", "EN"], ["zh", "中文"]], state.language,
      (language) => choose({ language }));
  const help = button(
      [say("help"), " ", element("kbd", {}, "?")], () => dialog.showModal(),
      { "aria-keyshortcuts": "?" });
  return element(
      "header", {},
      element(
          "div", { class: "title" }, element("h1", {}, element("bdi", {}, title)),
          element("p", { class: "muted" }, summary())),
      element(
          "div", { class: "actions" }, linkPlace, button(say("link"), () => copyLink(linkPlace)),
          help, languages));
}

// Saving the map; what cannot be saved is told in `message`.
function savers(map, message) {
  const guarded = (save) => () => {
    try {
      fill(message);
      save(map);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      fill(message, error.message);
    }
  };
  return { svg: guarded(saveSvg), png: guarded(savePng), csv: guarded(saveCsv) };
}

// The middle of the page: one head, its filters, scores, exports and table.
function oneHead(map) {
  const message = element("p", { class: "note error", role: "alert" }),
        files = savers(map, message);
  const filterBox =
      element("div", { class: "filters", role: "group", "aria-label": say("filters") });
  const table = element("div", { class: "table-box" });
  const tableButton = button("", () => choose({ table: !state.table }), { "data-key": "table" });
  const same = check("same"), mapTools = element("div", { class: "row tools" }, mapControls(map));
  const saves = Object.keys(files).map(
      (kind) => button(kind.toUpperCase(), () => files[kind](), { "data-export": kind }));
  map.root.append(
      map.title, map.label, map.note, mapTools, map.readout, map.frame,
      element("div", { class: "below" }, map.legend.root, same, map.level),
      element("h3", {}, say("filters")), filterBox, element("h3", {}, say("metrics")), map.metrics,
      element(
          "div", { class: "row exports" }, element("span", { class: "muted" }, say("export")),
          saves, tableButton, message),
      table);
  return {
    files,
    table,
    tableButton,
    mapTools,
    same: same.firstChild,
    filters: new Filters(filterBox)
  };
}

// Fills the root, and returns the parts that change later.
export function buildPage(root) {
  const title = String(shown.page.title || "attend"), dialog = helpDialog();
  document.title = title;
  const linkPlace = element("span", { class: "link-place", role: "status" });
  const grid = new Grid(element("div", { class: "heads" })),
        headFields = element("div", { class: "row" });
  const map = new MapView(
      element("section", { id: "one", "aria-labelledby": "map-title", tabindex: "-1" }));
  const parts = oneHead(map), runs = new Runs(element("div", { class: "runs" }));
  const textSection = section("text", say("text")), text = new TextView(textSection);
  const explainBody = element("div"),
        explainSection = section("explain", say("explain"), explainBody);
  map.pointed = (cell) => text.mark(cell);
  text.pointed = (cell) => shown.source && map.point(cell);
  const toMap = (event) => {
    event.preventDefault();
    map.canvas.focus();
  };
  fill(
      root, element("a", { class: "skip", href: "#", onclick: toMap }, say("skip")),
      header(title, dialog, linkPlace), notes(), runs.root,
      element(
          "main", {}, section("heads", say("heads"), grid.hint, headFields, grid.root), map.root,
          element("div", { class: "side" }, textSection, explainSection)),
      element("footer", {}, say("made_by", { who: String(shown.page.made_by || "attend") })),
      dialog);
  fill(headFields, headControls());
  parts.filters.build();
  runs.build();
  text.build();
  grid.build();
  return {
    ...parts,
    grid,
    map,
    text,
    runs,
    dialog,
    linkPlace,
    headFields,
    explain: explainSection,
    explainView: new ExplainView(explainBody),
    pattern: () => parts.filters.pattern
  };
}
