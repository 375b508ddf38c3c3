// The page's elements, put together: the header, the four views with what switches them, the foot.
import {check, copyLink, Filters, headControls, mapControls, Runs} from "./controls.js";
import {element, fill, segmented} from "./dom.js";
import {ExplainView} from "./explain.js";
import {saveCsv, savePng, saveSvg} from "./exports.js";
import {GoTo} from "./goto.js";
import {Grid} from "./grid.js";
import {helpDialog} from "./keys.js";
import {MapView} from "./map.js";
import {runOf, shown} from "./page.js";
import {Pins} from "./pins.js";
import {TextView} from "./shading.js";
import {choose, pinned, state} from "./state.js";
import {StrongestView} from "./strongest.js";
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
  const [first, ...rest] = all,
                list = element("ul", {}, rest.map((note) => element("li", {}, note)));
  const words = [element("strong", {}, say("notes")), " ", first];
  return element(
      "div", { class: "page-notes", role: "note" },
      rest.length ? element("details", {}, element("summary", {}, words), list) : words);
}

// "12 layers × 12 heads · 512 queries × 512 keys · every cell is exact"
function summary() {
  const run = runOf(state.show), [layer] = run.layers;
  if (!layer) return say("no_layers");
  const all = shown.page.runs.flatMap((each) => each.layers);
  const exact = all.every((each) => each.q && each.k && each.lse);
  const reduced = all.filter((each) => !each.q || !each.k);
  const rows = reduced.every((each) => each.rows) ? reduced[0]?.rows : null;
  const tiled = all.some((each) => each.tiles?.queries * each.tiles?.keys > 1);
  const count = (n, word) => `${n} ${say(n === 1 ? `${word}_word_1` : `${word}_word`)}`;
  return [
    `${count(run.layers.length, "layer")} × ${count(layer.heads, "head")}`,
    `${count(layer.queries, "query")} × ${count(layer.keys, "key")}`,
    exact && !tiled ? say("all_exact")
        : exact     ? say("cells_exact")
        : rows      ? say(rows.count < layer.queries ? "some_rows" : "all_rows",
                     { k: rows.k, from: rows.from, to: rows.from + rows.count - 1 })
               : say("some_about")
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

function header(title, dialog, linkPlace, goTo) {
  // A reader of English may have no font for the other name.
  const other = state.language === "zh" ? "中文" : "ZH";
  const languages = segmented(
      say("language"), [["en", "EN", "English"], ["zh", other, "中文"]], state.language,
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
          "div", { class: "actions" }, goTo.root,
          element(
              "div", { class: "link-box" }, button(say("link"), () => copyLink(linkPlace)),
              linkPlace),
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
        files = savers(map, message), pins = new Pins(map);
  const filterBox =
      element("div", { class: "filters", role: "group", "aria-label": say("filters") });
  const table = element("div", { class: "table-box" });
  const tableButton = button("", () => choose({ table: !state.table }), { "data-key": "table" });
  const pin = button(  // as high from the first layout on
      say("pin"), () => choose({ pins: pinned(state.pins, state.layer, state.head) }),
      { "data-key": "pin" });
  const same = check("same"), mapTools = element("div", { class: "row tools" }, mapControls(map));
  const saves = Object.keys(files).map(
      (kind) => button(kind.toUpperCase(), () => files[kind](), { "data-export": kind }));
  const exports =
      element("div", { class: "exports", role: "group", "aria-label": say("export") }, saves);
  map.root.append(
      element("div", { class: "head-title" }, map.title, map.label, pin, exports), map.note,
      mapTools, message, map.readout, map.frame,
      element("div", { class: "below" }, map.legend.root, same, map.legend.meaning, map.level),
      pins.root, element("h3", {}, say("filters")), filterBox, element("h3", {}, say("metrics")),
      map.metrics, element("div", { class: "row table-row" }, tableButton), table);
  return {
    files,
    table,
    tableButton,
    mapTools,
    pins,
    pin,
    same: same.firstChild,
    filters: new Filters(filterBox)
  };
}

// Fills the root, and returns the parts that change later.
export function buildPage(root) {
  const title = String(shown.page.title || "attend"), dialog = helpDialog();
  document.title = title;
  const linkPlace = element("span", { class: "link-place", role: "status" }), goTo = new GoTo();
  const grid = new Grid(element("div", { class: "heads" })),
        headFields = element("div", { class: "row" });
  const map = new MapView(
      element("section", { id: "one", "aria-labelledby": "map-title", tabindex: "-1" }));
  const parts = oneHead(map), runs = new Runs(element("div", { class: "runs" }));
  const textSection = section("text", say("text")), text = new TextView(textSection);
  const explainBody = element("div"),
        explainSection = section("explain", say("explain"), explainBody);
  const strongSection = section("strong", say("strongest")),
        strongest = new StrongestView(strongSection);
  map.pointed = (cell) => text.mark(cell);
  text.pointed = (cell) => shown.source && map.point(cell);
  const toMap = (event) => {
    event.preventDefault();
    map.canvas.focus();
  };
  fill(
      root, element("a", { class: "skip", href: "#", onclick: toMap }, say("skip")),
      header(title, dialog, linkPlace, goTo), notes(), runs.root,
      element(
          "main", {}, section("heads", say("heads"), grid.hint, headFields, grid.root), map.root,
          element("div", { class: "side" }, textSection, strongSection, explainSection)),
      element("footer", {}, say("made_by", { who: String(shown.page.made_by || "attend") })),
      dialog);
  fill(headFields, headControls());
  parts.filters.build();
  map.limits = (words) => parts.filters.tellLimits(words);
  runs.build();
  text.build();
  return {
    ...parts,
    grid,
    map,
    text,
    runs,
    dialog,
    linkPlace,
    goTo,
    strongest,
    headFields,
    explain: explainSection,
    explainView: new ExplainView(explainBody),
    pattern: () => parts.filters.pattern
  };
}
