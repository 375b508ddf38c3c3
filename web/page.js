// What is shown now: the run, layer and head of the state, opened, with filters in between. Views
// ask here and never open data themselves.
import {openLayer, overHeadsOf, PageError} from "./data.js";
import {element} from "./dom.js";
import {Difference, Filtered, filtersActive, keptKeys} from "./filters.js";
import {Head} from "./head.js";
import {OverHeads, WeightedOverHeads} from "./overheads.js";
import {state} from "./state.js";
import {say} from "./text.js";
import {tokenAt, tokenElement} from "./tokens.js";
import {commonNorms, Weighted} from "./values.js";

// page: the data; run: whose tokens are shown; head: without filters (null for a difference);
// source: what is drawn; kept: keys that the filters keep (null: all); bad: the error of the
// pattern.
export const shown = {
  page: null,
  run: null,
  layer: null,
  head: null,
  heads: [],
  source: null,
  kept: null,
  bad: "",
  error: "",
  version: 0,
  loading: Promise.resolve(),
};

export function runOf(show) { return shown.page.runs[show === "b" ? 1 : 0]; }

// A run's name, for the reader; of what is shown, also "after − before".
export function runName(n) { return String(shown.page.runs[n].name || "AB"[n]); }

export function shownName() {
  return state.show === "difference" ? `${runName(1)} − ${runName(0)}`
                                     : runName(state.show === "b" ? 1 : 0);
}

// The layers of number `at` that are shown: one, or those of both runs for a difference.
export function layersShown(at) {
  const runs = state.show === "difference" ? shown.page.runs : [runOf(state.show)];
  return runs.map((run) => run.layers[at]);
}

export function hasTwoRuns() { return shown.page.runs.length === 2; }

// Opens what the state names. Returns false if another call came in between.
export async function refresh() {
  const version = ++shown.version,
        runs = state.show === "difference" ? shown.page.runs : [runOf(state.show)];
  const [run] = runs, layers = runs.map((each) => each.layers[state.layer]);
  let heads = [], error = "";
  try {
    layers.forEach(checkLayer);
    if (layers.length === 2) checkSame(layers);
    heads = await Promise.all(layers.map((layer) => headOf(layer, state.head, state.over)));
  } catch (caught) {
    if (!(caught instanceof PageError)) throw caught;
    error = caught.message;
  }
  if (version !== shown.version) return false;
  const head = heads.length === 1 && !heads[0].heads ? heads[0] : null;
  Object.assign(shown, { run, layer: layers[0] ?? null, heads, error, head });
  refilter();
  return true;
}

// A head, or all heads of the layer as one ("mean", "maximum").
export async function headOf(layer, head, over = "none") {
  const open = await openLayer(layer);
  if (over === "none") return new Head(layer, open, head);
  const all = Array.from({ length: layer.heads }, (_, h) => new Head(layer, open, h));
  return new OverHeads(all, await overHeadsOf(layer, over), over);
}

// A head, or all of them as one, the weights times the norms of the values if the state says so:
// times those that all of `layers` have, the head's and that of the other run in a difference.
export function normed(head, layers = [head.layer]) {
  const name = state.norms ? commonNorms(layers) : null;
  if (!name) return head;
  return head.heads ? new WeightedOverHeads(head, name) : new Weighted(head, name);
}

// Which norms those of the shown head are.
export function normsShown() { return commonNorms(shown.heads.map(({ layer }) => layer)); }

// A head with what the state puts around it: norms of the values, filters.
function sourceAround(head, kept, layers) {
  const inner = normed(head, layers);
  return filtersActive(state) || state.renormalise ? new Filtered(inner, state, kept) : inner;
}

// The same of the head of one run, or the difference of that of both.
export function sourceOf(heads, kept, layers = heads.map(({layer}) => layer)) {
  const sources = heads.map((head) => sourceAround(head, kept, layers));
  return sources.length === 2 ? new Difference(...sources) : sources[0];
}

function checkLayer(layer) {
  if (!layer) throw new PageError(say("empty_layer"));
  for (const name of ["heads", "key_heads", "queries", "keys", "d"]) {
    if (!Number.isInteger(layer[name]) || layer[name] < 0) {
      throw new PageError(
          say("error_field", { layer: layer.name ?? "?", name, found: String(layer[name]) }));
    }
  }
  if (layer.queries === 0 || layer.keys === 0 || layer.heads === 0) {
    throw new PageError(
        say("empty_sequence", { queries: layer.queries, keys: layer.keys, heads: layer.heads }));
  }
}

function checkSame([a, b]) {
  for (const name of ["heads", "queries", "keys"]) {
    if (a[name] !== b[name])
      throw new PageError(say("error_not_alike", { name, a: a[name], b: b[name] }));
  }
}

// Puts the filters of the state around the heads.
export function refilter() {
  shown.source = null;
  if (shown.heads.length === 0) return;
  const { kept, bad } = keptKeys(state, shown.run, shown.heads[0].keys);
  shown.bad = bad;
  shown.kept = kept;
  shown.source = sourceOf(shown.heads, kept);
}

export function queryToken(i) { return tokenAt(shown.run.tokens, i + queryStart()); }

// Where query 0 stands in the tokens: they may be those of the keys, of which the queries are a
// part.
export function queryStart() {
  const { run, layer } = shown;
  const part = selfAttention() && layer.queries < layer.keys && run.tokens?.length === layer.keys;
  return part ? layer.query_offset ?? 0 : 0;
}

export function keyToken(j) { return tokenAt(shown.run.key_tokens ?? shown.run.tokens, j); }

// A place by number and token, or by number alone where the run has no tokens.
export function placeElement(n, side, words = "") {
  const tokens = side === "query" ? shown.run.tokens : shown.run.key_tokens ?? shown.run.tokens;
  const token = tokens ? tokenElement(side === "query" ? queryToken(n) : keyToken(n)) : null;
  return element(
      "span", { class: "place" }, element("span", { class: "muted" }, `${words}${n} `), token);
}

// Queries and keys are positions of one text. With fewer queries than keys (a decoder's last
// tokens) the text is that of the keys, if tokens has as many.
export function selfAttention() {
  const { run, layer } = shown;
  return !run.key_tokens &&
      (layer.queries === layer.keys ||
       (run.tokens !== null && run.tokens.length === layer.keys && layer.queries < layer.keys));
}

// Layers that are only numbered are so in the page's language; other names stay as they are.
export function layerName(layer) {
  const name = String(layer?.name ?? "?"), [, n] = /^layer (\d+)$/.exec(name) ?? [];
  return n === undefined ? name : say("layer_name", { n });
}

export function headName(layer, head) {
  return say("head_name", { layer: layerName(layer), head });
}

// The name of what the map shows; as a title with the run where there are two.
export function shownHead() {
  if (state.over === "none") return headName(shown.layer, state.head);
  return say(`over_${state.over}`, { layer: layerName(shown.layer) });
}

export function shownTitle() {
  return hasTwoRuns() ? `${shownHead()} · ${shownName()}` : shownHead();
}

// The metric that is the score of a label, by its name.
const kScoreOf = {
  "previous token": "previous",
  "first token": "first",
  selective: "first",
  "current token": "diagonal",
  induction: "induction",
  "duplicate token": "duplicate",
  local: "local",
  uniform: "evenness",
  mixed: "maximum",
};

// What the head does most: { text, scores, definition }. Of a difference the text is "before →
// after", and both scores are of one metric: of what the head does after, or, where that is nothing
// in particular, of what it did before; where the labels differ, `metric` names it.
export function labelOf(at, head) {
  const layers = layersShown(at),
        labels = layers.map((layer) => labelIn(layer, head)).filter(Boolean);
  if (labels.length === 0) return null;
  const [a, b = a] = labels;
  if (a.name === b.name)
    return { text: a.text, scores: labels.map(({ score }) => score), definition: a.definition };
  const [name = "maximum"] =
      [b, a].map((label) => kScoreOf[label.name]).filter((each) => each && each !== "maximum");
  return {
    text: `${a.text} → ${b.text}`,
    metric: say(`metric_${name}`),
    scores: layers.map((layer) => layer?.metrics?.[name]?.[head] ?? NaN),
    definition: say(`metric_${name}_is`)
  };
}

// In the page's language; unknown names stay as they are.
function labelIn(layer, head) {
  const label = layer?.labels?.[head];
  if (!label?.name) return null;
  const name = String(label.name), key = `label_${name.replace(/[ -]/g, "_")}`, known = say(key);
  const definition = say(`${key}_is`);
  return {
    name,
    text: known === key ? name : known,
    score: label.score,
    definition: definition === `${key}_is` ? "" : definition
  };
}
