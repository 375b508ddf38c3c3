// Everything that is switched: the header, sorting, colours, filters, the choice of run.
import {largestDifference, largestIn, searchedAll, searchedWhole, searchFinished, searchMetNaN} from "./compare.js";
import {element, fill, number, press, segmented} from "./dom.js";
import {filtersActive} from "./filters.js";
import {hasTwoRuns, headName, placeElement, runName, shown} from "./page.js";
import {differenceWords, leastWords, meansWords, rangeWords} from "./readout.js";
import {metricNames, sortChoices} from "./scores.js";
import {address, choose, kDefaults, state} from "./state.js";
import {say, sayWith} from "./text.js";
import {hasNorms} from "./values.js";
import {zoomHere} from "./zoom.js";

// A list of choices in groups [title, [[value, words], ...]]; one without a title stands alone.
function select(label, groups, key) {
  const option = ([value, words]) =>
      element("option", { value, selected: value === state[key] }, words);
  const parts = groups.map(
      ([title, choices]) =>
          (title ? element("optgroup", { label: title }, choices.map(option))
                 : choices.map(option)));
  return element(
      "label", { class: "field" }, element("span", {}, label),
      element(
          "select", { "data-key": key, onchange: (event) => choose({ [key]: event.target.value }) },
          parts));
}

export function headControls() {
  const change = (name) => state.show === "difference" && name !== "difference";
  const metrics = metricNames().map((name) => {
    const metric = say(`metric_${name}`);
    return [name, change(name) ? say("change_of", { metric }) : metric];
  });
  const colours = [["selection", say("colour_selection")], ["none", say("none")], ...metrics];
  return [
    select(say("sort"), sortChoices(), "sort"), select(say("colour_by"), [["", colours]], "colour")
  ];
}

export function mapControls(map) {
  const bend = segmented(
      say("bend"), ["linear", "sqrt", "log"].map((name) => [name, say(name)]), state.bend,
      (value) => choose({ bend: value }));
  const tile = segmented(
      say("tiles_show"), ["mean", "maximum"].map((name) => [name, say(name)]), state.tile,
      (value) => choose({ tile: value }));
  const zoom =
      [
        ["+", "zoom_in", () => zoomHere(0.5)], ["−", "zoom_out", () => zoomHere(2)],
        ["⤢", "zoom_fit", () => choose({ zoom: null })]
      ]
          .map(
              ([sign, key, act]) => element(
                  "button", {
                    type: "button",
                    class: "icon",
                    title: say(key),
                    "aria-label": say(key),
                    onclick: () => shown.source && act()
                  },
                  sign));
  const labelled = (words, group) =>
      element("div", { class: "field" }, element("span", {}, words), group);
  return [
    element("div", { class: "buttons" }, zoom), labelled(say("bend"), bend),
    labelled(say("tiles_show"), tile),
    shown.page.runs.some((run) => run.layers.some(hasNorms)) ? check("norms") : null
  ];
}

export function check(key, words = key) {
  return element(
      "label", { class: "check" }, element("input", {
        type: "checkbox",
        "data-key": key,
        checked: state[key],
        onchange: (event) => choose({ [key]: event.target.checked })
      }),
      element("span", {}, say(words)));
}

// The threshold's slider runs over decades: 0, then 10^-4 to 1.
const kSteps = 80;
const leastOf = (step) =>
    (step === 0 ? 0 : Number((10 ** (-4 + (4 * step) / kSteps)).toPrecision(2)));
const stepOf = (least) => (least <= 0 ? 0 : Math.round(((Math.log10(least) + 4) * kSteps) / 4));

export function moveLeast(by) {
  choose({ least: leastOf(Math.min(kSteps, Math.max(0, stepOf(state.least) + by))) });
}

export class Filters {
  constructor(root) { this.root = root; }

  build() {
    const range = (key, label, help, properties, read) => {
      const output = element("output", { class: "figure" });
      const input = element("input", {
        type: "range",
        "aria-label": label,  // its label element belongs to the output, the first in it
        "data-key": key,
        ...properties,
        title: help,
        oninput: () => choose({ [key]: read(Number(input.value)) })
      });
      this[key] = { input, output };
      return element(
          "label", { class: "field range", title: help }, element("span", {}, label, " ", output),
          input);
    };
    this.pattern = element("input", {
      type: "text",
      "data-key": "pattern",
      placeholder: say("pattern_hint"),
      spellcheck: "false",
      autocomplete: "off",
      "aria-describedby": "pattern-bad",
      oninput: () => choose({ pattern: this.pattern.value })
    });
    this.far = element("input", {
      type: "number",
      class: "number",
      min: 0,
      step: 1,
      "data-key": "far",
      title: say("far_is"),
      oninput: () => choose({ far: Math.max(0, Math.floor(Number(this.far.value) || 0)) })
    });
    this.bad = element("p", { id: "pattern-bad", class: "note error", role: "alert" });
    // As high without words as with them: what is switched stays under the pointer.
    this.limits = element("p", { class: "fine limits", role: "status" });
    this.clear = element(
        "button", { type: "button", class: "quiet", onclick: () => clearFilters() },
        say("filters_off"));
    fill(
        this.root,
        range(
            "p", say("top_p"), say("top_p_is"), { min: 0.05, max: 1, step: 0.01 },
            (value) => value),
        range(
            "least", say("threshold"), say("threshold_is"), { min: 0, max: kSteps, step: 1 },
            leastOf),
        element(
            "label", { class: "field", title: say("far_is") }, element("span", {}, say("far")),
            this.far),
        element("label", { class: "field" }, element("span", {}, say("pattern")), this.pattern),
        element(
            "div", { class: "checks" }, check("noFirst", "no_first"),
            shown.page.runs.some((run) => run.special.length) ? check("noSpecial", "no_special")
                                                              : null,
            check("renormalise")),
        element("div", { class: "clear" }, this.clear, this.limits), this.bad);
    this.show();
  }

  // What the filters do not do to what is drawn.
  tellLimits(words) {
    if (this.limits.textContent !== words) fill(this.limits, words);
  }

  show() {
    this.p.input.value = state.p;
    this.p.output.value = number(state.p, 3);
    this.least.input.value = stepOf(state.least);
    this.least.output.value = number(state.least, 2);
    if (Number(this.far.value) !== state.far || this.far.value === "") this.far.value = state.far;
    if (this.pattern.value !== state.pattern) this.pattern.value = state.pattern;
    for (const box of this.root.querySelectorAll("input[type=checkbox]"))
      box.checked = state[box.dataset.key];
    fill(this.bad, shown.bad ? say("pattern_bad", { what: shown.bad }) : "");
    this.pattern.setAttribute("aria-invalid", String(Boolean(shown.bad)));
    this.clear.disabled = !filtersActive(state) && !state.renormalise;
  }
}

function clearFilters() {
  const names = ["p", "least", "far", "noFirst", "noSpecial", "renormalise", "pattern"];
  choose(Object.fromEntries(names.map((name) => [name, kDefaults[name]])));
}

// The choice of run, and what the difference is at most.
export class Runs {
  constructor(root) { this.root = root; }

  build() {
    if (!hasTwoRuns()) return fill(this.root);
    const a = runName(0), b = runName(1);
    this.group = segmented(
        say("compare"), [["a", a], ["b", b], ["difference", `${b} − ${a}`]], state.show,
        (value) => choose({ show: value }));
    this.words = element("p", { class: "largest", role: "status" });
    fill(this.root, this.group, this.words);
    this.show();
  }

  show() {
    if (!this.group) return;
    press(this.group, state.show);
    if (state.show !== "difference") return fill(this.words);
    const all = largestDifference(), here = largestIn(state.layer, state.head), parts = [];
    const whole = searchedAll();
    // Of tiles only between which numbers the means differ is known, and the range of cells.
    const figure = (entry) => element(
        "strong", { class: "figure" },
        entry.kind === "tile"        ? meansWords(entry.means)
            : entry.kind === "least" ? leastWords(entry.value)
                                     : differenceWords(entry.value, entry.off));
    const place = ({ i, j, queries, keys, kind }) => kind === "tile"
        ? say("tile_place", { queries: rangeWords(i, queries), keys: rangeWords(j, keys) })
        : `${say("query")} ${i} → ${say("key")} ${j}`;
    if (!all?.value)
      parts.push(element(
          "span", { class: "all" },
          say(!searchFinished()    ? "searching"
                  : !whole         ? "no_difference_about"
                  : searchMetNaN() ? "no_difference_finite"
                                   : "no_difference")));
    else {
      const layer = shown.page.runs[0].layers[all.layer];
      parts.push(
          element(
              "span", { class: "all" },
              sayWith(
                  whole ? "largest_difference" : "largest_known",
                  { value: figure(all), place: `${headName(layer, all.head)}, ${place(all)}` })),
          element(
              "button", {
                type: "button",
                class: "quiet",
                onclick: () => choose({
                  layer: all.layer,
                  head: all.head,
                  cell: [all.i, all.j],
                  chosen: [all.i],
                  reverse: false,
                  over: "none"
                })
              },
              say("go_there")));
    }
    if (here && all?.value && shown.source) {
      parts.push(element(
          "span", { class: "here" },
          here.value === 0
              ? say(searchedWhole(state.layer) ? "no_difference_here" : "no_difference_known_here")
              : here.kind === "tile"
              ? sayWith("largest_tile_here", { value: figure(here), place: place(here) })
              : sayWith("largest_here", {
                  value: figure(here),
                  query: placeElement(here.i, "query"),
                  key: placeElement(here.j, "key")
                })));
    }
    if (!searchFinished() && all?.value)
      parts.push(element("span", { class: "muted" }, say("searching")));
    fill(this.words, parts);
    const told = [...this.words.children].filter(({ localName }) => localName !== "button");
    this.words.title =
        told.map(({ textContent }) => textContent).join("\n");  // where it is cut off
  }
}

// Copies the address; where the browser does not let it, shows it to be copied by hand.
export async function copyLink(place) {
  const link = location.href.split("#")[0] + address();
  try {
    await navigator.clipboard.writeText(link);
    fill(place, say("link_copied"));
    setTimeout(() => fill(place), 2500);
  } catch {
    const input = element("input", {
      type: "text",
      value: link,
      readonly: true,
      "aria-label": say("link_by_hand"),
      class: "link"
    });
    fill(place, input);
    input.select();
  }
}
