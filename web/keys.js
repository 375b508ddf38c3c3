// The keyboard: every key of the page, and the list of them.
import {copyLink, moveLeast} from "./controls.js";
import {element} from "./dom.js";
import {hasTwoRuns, runOf, shown} from "./page.js";
import {metricNames, neighbour} from "./scores.js";
import {choose, pinned, state} from "./state.js";
import {say} from "./text.js";
import {zoomHere} from "./zoom.js";

const kKeys = [
  ["] [", "key_heads"],      ["} {", "key_layers"],    ["1 2 3 4", "key_views"],
  ["← ↑ → ↓", "key_arrows"], ["Shift ←", "key_pan"],   ["Home End PgUp PgDn", "key_ends"],
  ["+ − 0", "key_zoom"],     ["Enter", "key_choose"],  ["t", "key_reverse"],
  ["m", "key_combine"],      ["f c r", "key_filters"], ["/", "key_pattern"],
  ["g", "key_goto"],         ["i", "key_pin"],         ["n", "key_norms"],
  ["p P", "key_p"],          ["h H", "key_least"],     ["s a o", "key_bend"],
  ["v", "key_compare"],      ["S G X", "key_export"],  ["y", "key_link"],
  ["T", "key_table"],        ["l", "key_language"],    ["?", "key_help"],
  ["Esc", "key_escape"],
];

export function helpDialog() {
  const list = kKeys.flatMap(
      ([keys, words]) =>
          [element("dt", {}, keys.split(" ").map((key) => element("kbd", {}, key))),
           element("dd", {}, say(words))]);
  const dialog = element(
      "dialog", { class: "help", "aria-label": say("help") },
      element(
          "div", { class: "row" }, element("h2", {}, say("help")),
          element(
              "button", { type: "button", class: "quiet", onclick: () => dialog.close() },
              say("close"))),
      element("dl", {}, list));
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  return dialog;
}

function next(all, value, step = 1) {
  return all[(all.indexOf(value) + step + all.length) % all.length];
}

// views: { grid, map, text, explain, dialog, linkPlace, goTo, files: { svg, png, csv }, pattern }
export function listenToKeys(views) {
  const toLayer = (step) => {
    const layers = runOf(state.show).layers,
          layer = (state.layer + step + layers.length) % layers.length;
    if (layers.length > 0) choose({ layer, head: Math.min(state.head, layers[layer].heads - 1) });
  };
  const p = (by) => choose({ p: Math.min(1, Math.max(0.05, Number((state.p + by).toFixed(2)))) });
  const actions = {
    "]": () => choose(neighbour(1)),
    "[": () => choose(neighbour(-1)),
    "}": () => toLayer(1),
    "{": () => toLayer(-1),
    1: () => views().grid.focus(),
    2: () => views().map.canvas.focus(),
    3: () => views().text.focus(),
    4: () => views().explain.focus(),
    "+": () => zoomHere(0.5),
    "=": () => zoomHere(0.5),
    "-": () => zoomHere(2),
    0: () => choose({ zoom: null }),
    t: () => choose({ reverse: !state.reverse }),
    m: () => choose({ combine: next(["sum", "mean"], state.combine) }),
    f: () => choose({ noFirst: !state.noFirst }),
    c: () => choose({ noSpecial: !state.noSpecial }),
    r: () => choose({ renormalise: !state.renormalise }),
    "/": () => views().pattern().focus(),
    g: () => views().goTo.input.focus(),
    i: () => state.over === "none" && choose({ pins: pinned(state.pins, state.layer, state.head) }),
    n: () => choose({ norms: !state.norms }),
    p: () => p(-0.05),
    P: () => p(0.05),
    h: () => moveLeast(-4),
    H: () => moveLeast(4),
    s: () => choose({ bend: next(["linear", "sqrt", "log"], state.bend) }),
    a: () => choose({ tile: next(["mean", "maximum"], state.tile) }),
    o: () => choose({ sort: next(["order", "label", "selection", ...metricNames()], state.sort) }),
    v: () => hasTwoRuns() && choose({ show: next(["a", "b", "difference"], state.show) }),
    S: () => views().files.svg(),
    G: () => views().files.png(),
    X: () => views().files.csv(),
    y: () => copyLink(views().linkPlace),
    T: () => choose({ table: !state.table }),
    l: () => choose({ language: next(["en", "zh"], state.language) }),
    "?": () => views().dialog.showModal(),
    Escape: () => choose(state.cell ? { cell: null } : { chosen: [] }),
  };
  const needsSource = new Set(["+", "=", "-", "S", "G", "X"]);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || views().dialog.open) return;
    const typing = event.target.matches("input[type=text], input[type=number], select, textarea");
    if (typing && event.key === "Escape") event.target.blur();
    if (typing || !(event.key in actions) || (needsSource.has(event.key) && !shown.source)) return;
    event.preventDefault();
    actions[event.key]();
  });
}
