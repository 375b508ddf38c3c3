// Puts the page together: reads the data, builds the views, and tells them what changed. Whatever
// goes wrong ends as words on the page.
import {buildPage} from "./build.js";
import {differenceOf, searchDifferences, searchFinished} from "./compare.js";
import {headControls, mapControls} from "./controls.js";
import {openLayer, PageError, readPage} from "./data.js";
import {element, fill} from "./dom.js";
import {csvOf} from "./exports.js";
import {svgOf} from "./figure.js";
import {Head} from "./head.js";
import {listenToKeys} from "./keys.js";
import {hasTwoRuns, refilter, refresh, runOf, shown} from "./page.js";
import {isSort, metricNames} from "./scores.js";
import {prepareAnswers} from "./selection.js";
import {choose, listen, readAddress, startState, state} from "./state.js";
import {ticksOf} from "./strips.js";
import {showTable} from "./table.js";
import {say, setLanguage} from "./text.js";

const kLong = 64;  // keys
const root = document.getElementById("page");
let views = null;
let settled = Promise.resolve();

function problem(message) {
  return element(
      "div", { class: "problem", role: "alert" }, element("strong", {}, say("error_title")), " ",
      message);
}

// The whole page anew: at the start, and in another language.
function build() {
  setLanguage(state.language);
  views = buildPage(root);
}

// The map, and a frame later all others: it is what the reader waits for.
async function showAll() {
  views.map.show();
  const frame = new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  await Promise.race([frame, new Promise((done) => setTimeout(done, 200))]);  // a tab in the back
  showOthers();
}

function showViews() {
  views.map.show();
  showOthers();
}

function showOthers() {
  if (views.grid.buttons.size === 0) views.grid.build();
  views.text.show();
  views.explainView.show().catch(unexpected);
  views.strongest.show();
  showTable(views.table);
  views.filters.show();
  views.runs.show();
  showPins();
  views.tableButton.textContent = say(state.table ? "table_hide" : "table_show");
}

function showPins() {
  const here = state.pins.includes(`${state.layer}.${state.head}`);
  views.pin.textContent = say(here ? "pin_off" : "pin");
  views.pin.disabled = state.over !== "none";
  views.pins.show().catch(unexpected);
}

// What each change of the state makes new.
function update(changed) {
  clampState();
  const any = (...names) => names.some((name) => changed.has(name));
  if (any("language")) {
    build();
    return load();
  }
  if (any("show")) {
    fill(views.headFields, headControls());
    views.grid.build();
  } else if (any("sort")) views.grid.arrange();
  if (any("colour", "bend", "tile", "same")) {
    views.grid.label();
    views.grid.redraw();
  }
  if (any("bend", "tile", "same")) {
    fill(views.mapTools, mapControls(views.map));
    views.same.checked = state.same;
  }
  if (any("sort")) views.headFields.querySelector('[data-key="sort"]').value = state.sort;
  if (any("colour")) views.headFields.querySelector('[data-key="colour"]').value = state.colour;
  if (any("layer", "head", "show", "over")) {
    views.grid.mark();
    return load();
  }
  const filters = any("p", "least", "far", "noFirst", "noSpecial", "renormalise", "pattern");
  if (filters || any("norms")) {
    if (any("norms")) fill(views.mapTools, mapControls(views.map));
    refilter();
    ask();
    return showViews();
  }
  if (any("cell", "chosen", "reverse")) ask();
  if (any("pins")) showPins();
  if (any("bend", "same")) views.text.show();
  if (any("chosen", "reverse", "combine")) views.text.show();
  if (any("cell")) {
    views.map.tell();
    views.explainView.show().catch(unexpected);
  }
  if (any("table")) showViews();
  views.map.draw();
}

// The grid answers the selection.
function ask() { return views.grid.ask()?.catch(unexpected); }

// The state may come from a link to another page: heads and layers that are not there become the
// last, metrics that are not there none, and a run that is not there the first.
function clampState() {
  if (!hasTwoRuns()) state.show = "a";
  if (!isSort(state.sort)) state.sort = "order";
  if (!["selection", "none", ...metricNames()].includes(state.colour)) state.colour = "selection";
  const layers = runOf(state.show).layers;
  state.layer = Math.min(Math.floor(state.layer), Math.max(0, layers.length - 1));
  state.head = Math.min(Math.floor(state.head), Math.max(0, (layers[state.layer]?.heads ?? 1) - 1));
}

function load() {
  settled = shown.loading = refresh()
                                .then((current) => {
                                  if (current) return showAll();
                                })
                                .then(ask)
                                .catch(unexpected);
}

function unexpected(error) {
  if (root.querySelectorAll(".problem").length >= 3) return;
  fill(
      root, problem(say("error_unexpected", { what: String(error?.message ?? error) })),
      ...root.childNodes);
}

function start() {
  setLanguage(document.documentElement.lang.startsWith("zh") ? "zh" : "en");
  shown.page = readPage();
  const language = shown.page.language === "zh" ? "zh" : "en";
  const show = shown.page.open === 1 && hasTwoRuns() ? "b" : "a";
  // Weights of long rows are small: 1/512 has a place on a logarithmic scale from 0 to 1.
  const long = shown.page.runs.some((run) => run.layers.some((layer) => layer.keys > kLong));
  startState({ language, show, bend: long ? "log" : "sqrt" });
  setLanguage(state.language);
  clampState();
  build();
  listen(update);
  listenToKeys(() => views);
  addEventListener("hashchange", () => choose(readAddress(location.hash)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    views.grid.redraw();
    views.map.legend.forget();
    showViews();
  });
  load();
  settled.then(prepareAnswers);
  if (hasTwoRuns()) {
    let top = NaN;  // of the thumbnails' scale as drawn
    searchDifferences(() => {
      views.runs.show();
      if (state.show !== "difference" || !shown.layer) return;
      views.map.describe(shown.layer);
      if (searchFinished() && (state.sort === "difference" || state.colour === "difference"))
        views.grid.arrange();
      if (top !== differenceOf(null, null)) views.grid.redraw();
      if (top !== differenceOf(null, null)) views.text.show();
      top = differenceOf(null, null);
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
  geometry: () => views.map.geometry,
  shape: () => [shown.source.queries, shown.source.keys],
  settled: async () => {
    await settled;
    await views?.grid.asking;  // none on a page that cannot be read
  },
  // The colour bar: its words, and 256 colours from one end to the other.
  scale: () => {
    const scale = views.map.scale();
    const colours =
        [...scale.ramp].map((pixel) => [0, 8, 16].map((shift) => (pixel >> shift) & 255));
    return { ticks: ticksOf(scale).map(([, words]) => words), colours };
  },
  // The weight of one cell before filters: { weight, kind }, or null where there is no such cell.
  weight: async (layer, head, query, key, run = 0) => {
    const data = shown.page.runs[run]?.layers[layer];
    const within = (n, count) => Number.isInteger(n) && n >= 0 && n < count;
    if (!data || !within(head, data.heads) || !within(query, data.queries) ||
        !within(key, data.keys))
      return null;
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
