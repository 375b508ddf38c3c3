// Puts the page together: reads the data, builds the views, and tells them what changed. Whatever
// goes wrong ends as words on the page.
import {searchDifferences} from "./compare.js";
import {check, copyLink, Filters, headControls, mapControls, Runs} from "./controls.js";
import {openLayer, PageError, readPage} from "./data.js";
import {element, fill, segmented} from "./dom.js";
import {ExplainView} from "./explain.js";
import {colourOf, csvOf, saveCsv, savePng, saveSvg, svgOf} from "./exports.js";
import {Grid, metricNames} from "./grid.js";
import {Head} from "./head.js";
import {helpDialog, listenToKeys} from "./keys.js";
import {MapView} from "./map.js";
import {hasTwoRuns, refilter, refresh, runOf, shown} from "./page.js";
import {TextView} from "./shading.js";
import {choose, listen, readAddress, startState, state} from "./state.js";
import {showTable} from "./table.js";
import {say, setLanguage} from "./text.js";

const root = document.getElementById("page");
let views = null;
let settled = Promise.resolve();

function problem(message) {
  return element(
      "div", { class: "problem", role: "alert" }, element("strong", {}, say("error_title")), " ",
      message);
}

// What the reader should know before looking: the page's own notes, and tokens that do not fit.
function notes() {
  const all = [...shown.page.notes];
  for (const run of shown.page.runs) {
    const layer = run.layers[0], keyTokens = run.key_tokens ?? run.tokens;
    if (layer && keyTokens && keyTokens.length < layer.keys) {
      all.push(say("few_tokens", { found: keyTokens.length, needed: layer.keys }));
    }
  }
  return all;
}

function summary() {
  const run = runOf(state.show), [layer] = run.layers;
  if (!layer) return say("no_layers");
  const exact = run.layers.every((each) => each.q && each.k && each.lse);
  const counts = {
    layer: run.layers.length,
    head: layer.heads,
    query: layer.queries,
    key: layer.keys
  };
  const words = Object.entries(counts).map(
      ([name, n]) => [`${name}_word`, say(n === 1 ? `${name}_word_1` : `${name}_word`)]);
  const { layer: layers, head: heads, query: queries, key: keys } = counts;
  return `${say("summary", { layers, heads, queries, keys, ...Object.fromEntries(words) })} · ` +
      say(exact ? "all_exact" : "some_about");
}

function section(id, title, ...children) {
  return element(
      "section", { id, "aria-labelledby": `${id}-h`, tabindex: "-1" },
      element("h2", { id: `${id}-h` }, title), children);
}

// The whole page anew: at the start, and in another language.
function build() {
  setLanguage(state.language);
  const page = shown.page, title = String(page.title || "attend");
  document.title = title;
  const map = new MapView(
      element("section", { id: "one", "aria-labelledby": "map-title", tabindex: "-1" }));
  const linkPlace = element("span", { class: "link-place", role: "status" }),
        message = element("p", { class: "note error", role: "alert" });
  const guarded = (act) => () => {
    try {
      fill(message);
      act(map);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      fill(message, error.message);
    }
  };
  const files = { svg: guarded(saveSvg), png: guarded(savePng), csv: guarded(saveCsv) };
  const dialog = helpDialog(), runs = new Runs(element("div", { class: "runs" }));
  const languages = segmented(
      say("language"), [["en", "EN"], ["zh", "中文"]], state.language,
      (language) => choose({ language }));
  const header = element(
      "header", {},
      element(
          "div", { class: "title" }, element("h1", {}, element("bdi", {}, title)),
          element("p", { class: "muted" }, summary())),
      element(
          "div", { class: "actions" }, linkPlace,
          element(
              "button", { type: "button", class: "quiet", onclick: () => copyLink(linkPlace) },
              say("link")),
          element(
              "button", {
                type: "button",
                class: "quiet",
                "aria-keyshortcuts": "?",
                onclick: () => dialog.showModal()
              },
              say("help"), " ", element("kbd", {}, "?")),
          languages));

  const grid = new Grid(element("div", { class: "heads" })),
        headFields = element("div", { class: "row" });
  const heads = section("heads", say("heads"), grid.hint, headFields, grid.root);
  const filterBox =
            element("div", { class: "filters", role: "group", "aria-label": say("filters") }),
        filters = new Filters(filterBox);
  const exportRow = element(
      "div", { class: "row exports" }, element("span", { class: "muted" }, say("export")),
      ["svg", "png", "csv"].map(
          (kind) => element(
              "button",
              { type: "button", class: "quiet", "data-export": kind, onclick: () => files[kind]() },
              kind.toUpperCase())),
      message);
  const table = element("div", { class: "table-box" }),
        tableButton = element("button", {
          type: "button",
          class: "quiet",
          "data-key": "table",
          onclick: () => choose({ table: !state.table })
        });
  exportRow.append(tableButton);
  const sameBox = check("same");
  map.root.append(
      map.title, map.label, map.note, element("div", { class: "row tools" }, mapControls(map)),
      map.readout, map.frame, element("div", { class: "below" }, map.legend, sameBox, map.level),
      element("h3", {}, say("filters")), filterBox, element("h3", {}, say("metrics")), map.metrics,
      exportRow, table);
  const textSection = section("text", say("text")), text = new TextView(textSection);
  map.pointed = (cell) => text.mark(cell);
  text.pointed = (cell) => shown.source && map.point(cell);
  const explainSection = section("explain", say("explain")), explainBody = element("div"),
        explain = new ExplainView(explainBody);
  explainSection.append(explainBody);
  const noteList = notes();
  fill(
      root,
      element(
          "a", {
            class: "skip",
            href: "#",
            onclick: (event) => {
              event.preventDefault();
              map.canvas.focus();
            }
          },
          say("skip")),
      header,
      noteList.length
          ? element(
                "div", { class: "page-notes", role: "note" }, element("strong", {}, say("notes")),
                element("ul", {}, noteList.map((note) => element("li", {}, note))))
          : null,
      runs.root,
      element(
          "main", {}, heads, map.root,
          element("div", { class: "side" }, textSection, explainSection)),
      element("footer", {}, say("made_by", { who: String(page.made_by || "attend") })), dialog);
  views = {
    grid,
    map,
    text,
    explain: explainSection,
    explainView: explain,
    dialog,
    linkPlace,
    files,
    filters,
    runs,
    table,
    tableButton,
    headFields,
    same: sameBox.firstChild,
    mapTools: map.root.querySelector(".tools"),
    pattern: () => filters.pattern
  };
  fill(headFields, headControls());
  filters.build();
  runs.build();
  text.build();
  grid.build();
}

function showViews() {
  views.map.show();
  views.text.show();
  views.explainView.show().catch(unexpected);
  showTable(views.table);
  views.filters.show();
  views.runs.show();
  views.tableButton.textContent = say(state.table ? "table_hide" : "table_show");
}

// What each change of the state makes new.
function update(changed) {
  const any = (...names) => names.some((name) => changed.has(name));
  if (any("language")) {
    build();
    return load();
  }
  if (any("show")) {
    fill(views.headFields, headControls());
    views.grid.build();
  } else if (any("sort", "colour")) views.grid.build();
  else if (any("bend", "tile", "same")) views.grid.redraw();
  if (any("bend", "tile", "same")) {
    fill(views.mapTools, mapControls(views.map));
    views.same.checked = state.same;
  }
  if (any("sort")) views.headFields.querySelector('[data-key="sort"]').value = state.sort;
  if (any("colour")) views.headFields.querySelector('[data-key="colour"]').value = state.colour;
  if (any("layer", "head", "show")) {
    clampState();
    views.grid.mark();
    return load();
  }
  if (any("p", "least", "noFirst", "noSpecial", "renormalise", "pattern")) {
    refilter();
    return showViews();
  }
  if (any("bend")) views.text.show();
  if (any("chosen", "reverse", "combine")) views.text.show();
  if (any("cell")) {
    views.map.tell();
    views.explainView.show().catch(unexpected);
  }
  if (any("table")) showViews();
  views.map.draw();
}

// The state may come from a link to another page: heads and layers that are not there become the
// last, metrics that are not there none.
function clampState() {
  const metrics = metricNames();
  if (!metrics.includes(state.sort)) state.sort = "order";
  if (!metrics.includes(state.colour)) state.colour = "none";
  const layers = runOf(state.show).layers;
  state.layer = Math.min(Math.floor(state.layer), Math.max(0, layers.length - 1));
  state.head = Math.min(Math.floor(state.head), Math.max(0, (layers[state.layer]?.heads ?? 1) - 1));
}

function load() {
  settled = refresh()
                .then((current) => {
                  if (current) showViews();
                })
                .catch(unexpected);
}

function unexpected(error) {
  fill(
      root, problem(say("error_unexpected", { what: String(error?.message ?? error) })),
      ...root.childNodes);
}

function start() {
  setLanguage(document.documentElement.lang.startsWith("zh") ? "zh" : "en");
  shown.page = readPage();
  const language = shown.page.language === "zh" ? "zh" : "en";
  startState({ language });
  setLanguage(state.language);
  if (state.show !== "a" && !hasTwoRuns()) state.show = "a";
  clampState();
  build();
  listen(update);
  listenToKeys(() => views);
  addEventListener("hashchange", () => choose(readAddress(location.hash)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    views.grid.redraw();
    views.map.legendKey = "";
    showViews();
  });
  load();
  if (hasTwoRuns()) {
    searchDifferences((done) => {
      views.runs.done = done;
      views.runs.show();
      if (state.show !== "difference" || !shown.layer) return;
      views.map.describe(shown.layer);
      if (done && (state.sort === "difference" || state.colour === "difference"))
        views.grid.build();
      else views.grid.redraw();
      views.map.draw();
    }).catch(unexpected);
  }
}

// For the console, and for whoever looks at the page with a program.
window.attend = {
  state,
  choose,
  svg: () => svgOf(views.map),
  csv: () => csvOf(views.map),
  colour: colourOf,
  geometry: () => views.map.geometry,
  shape: () => [shown.source.queries, shown.source.keys],
  settled: () => settled,
  // The weight of one cell before filters: { weight, kind }.
  weight: async (layer, head, query, key, run = 0) => {
    const data = shown.page.runs[run].layers[layer];
    return new Head(data, await openLayer(data), head).cell(query, key);
  },
};

addEventListener("error", (event) => unexpected(event.error ?? event.message));
addEventListener("unhandledrejection", (event) => unexpected(event.reason));
try {
  start();
} catch (error) {
  if (error instanceof PageError) fill(root, problem(error.message));
  else {
    unexpected(error);
    throw error;
  }
}
