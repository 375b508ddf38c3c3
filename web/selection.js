// What the selection asks of every head of every layer, and the answers: the weight of the chosen
// cell, the largest weight of the chosen query, or all that the chosen key receives. Where a head's
// own weight is not in the page, the answer is what it is at most.
import {openLayer, openStored, PageError, unpack} from "./data.js";
import {Head} from "./head.js";
import {layersShown, normed, runOf, shown, sourceOf} from "./page.js";
import {state} from "./state.js";

const kMostChosen = 64;   // queries that are looked at
let answers = new Map();  // "layer.head" -> { value, bound: "" | "most" | "least", key, bars }
let version = 0;

// What is asked: { kind: "cell" | "query" | "key", ... }, or null.
export function asked() {
  const { cell, chosen, reverse } = state, layer = shown.layer;
  if (!layer) return null;
  if (cell && cell[0] < layer.queries && cell[1] < layer.keys)
    return { kind: "cell", i: cell[0], j: cell[1] };
  const within = chosen.filter((n) => n < (reverse ? layer.keys : layer.queries));
  if (within.length === 0) return null;
  return { kind: reverse ? "key" : "query", chosen: within.slice(0, kMostChosen) };
}

export function isAsked() { return asked() !== null; }

export function answerOf(layer, head) { return answers.get(`${layer}.${head}`) ?? null; }

// Unpacks what answers need of all layers, one after the other, before somebody asks.
export async function prepareAnswers() {
  for (const layer of shown.page.runs.flatMap((run) => run.layers)) {
    await new Promise((done) => setTimeout(done, 20));
    await openStored(layer).catch(() => {});  // whoever shows the layer tells what is broken
  }
}

// Asks all heads again. Resolves to false if the selection changed meanwhile.
export async function askAll() {
  const mine = ++version, question = asked(), found = new Map();
  if (question) {
    const layers = runOf(state.show).layers.map((_, at) => at);
    await Promise.all(layers.map((at) => askLayer(at, question, found)));
  }
  if (mine !== version) return false;
  answers = found;
  return true;
}

async function askLayer(at, question, found) {
  try {
    const parts = await Promise.all(layersShown(at).map((layer) => askOne(layer, question)));
    const [a, b] = parts;
    a.forEach((answer, head) => {
      if (b === undefined) return found.set(`${at}.${head}`, answer);
      const known = answer.bound === "" && b[head]?.bound === "";
      found.set(
          `${at}.${head}`,
          { value: known ? b[head].value - answer.value : NaN, bound: "", bars: null });
    });
  } catch (error) {
    if (!(error instanceof PageError)) throw error;  // the layer's own view tells it
  }
}

// The answers of all heads of a layer of one run.
async function askOne(layer, question) {
  const heads = Array.from({ length: layer?.heads ?? 0 }, (_, h) => h);
  if (question.kind === "key") {
    const [mass, open] = await Promise.all([unpack(layer.mass), openStored(layer)]);
    return heads.map((h) => askKeys(new Head(layer, open, h), mass, question.chosen));
  }
  const tell = (head) =>
      (question.kind === "cell" ? askCell(head, question) : askQueries(head, question.chosen));
  const whole = !layer.rows || state.norms, open = await (whole ? openLayer : openStored)(layer);
  const found = heads.map((h) => tell(new Head(layer, open, h)));
  if (whole || !layer.q || !layer.k || found.every(({ bound }) => bound === "")) return found;
  const more = await openLayer(layer);
  return found.map((answer, h) => (answer.bound ? tell(new Head(layer, more, h)) : answer));
}

function askCell(head, { i, j }) {
  if (i >= head.queries || j >= head.keys) return { value: NaN, bound: "", bars: null };
  const cell = normed(head).cell(i, j);
  if (cell.weight !== null) return { value: cell.weight, bound: "", bars: null };
  return { value: cell.most ?? 1, bound: "most", bars: null };
}

// The largest weight of each chosen query, of the keys that filters keep; of several their mean.
function askQueries(head, chosen) {
  const source = sourceOf(head, shown.kept), bars = new Float32Array(head.keys);
  let sum = 0, bound = "", key = -1, all = 0;
  for (const i of chosen) {
    if (i >= head.queries) continue;
    let best = -1, known = false;
    const take = (j, value) => {
      known = true;
      if (value > bars[j]) bars[j] = value;
      if (value > best) [best, key] = [value, j];
    };
    const scan = head.exact && (source !== head || !head.rows?.has(i));
    if (head.rows?.has(i) && !scan) source.known(i, take);
    if (scan) {
      const row = new Float64Array(head.keys);
      source.segment(i, 0, head.keys, row);
      row.forEach((value, j) => {
        if (value >= 0) take(j, value);
      });
    }
    // Where filters or norms are on, a key that is not stored may weigh more.
    if (!known && (scan || head.rows?.whole(i))) best = 0;
    else if (!known && head.rows?.has(i)) [best, bound] = [head.rows.most(i), "most"];
    else if (!known) best = NaN;
    else if (source !== head && !head.exact && !head.rows.whole(i) && best < head.rows.most(i))
      bound = "least";
    sum += best;
    ++all;
  }
  return { value: all ? sum / all : NaN, bound, key: all === 1 ? key : -1, bars };
}

// What the chosen keys receive from all queries, and from which.
function askKeys(head, mass, chosen) {
  const { rows, queries, keys } = head, bars = new Float32Array(queries);
  const bound = mass ? "" : "least";
  let value = 0;
  for (const j of chosen) {
    value += mass ? mass[head.h * keys + j] ?? NaN : 0;
    rows?.addColumn(j, bars);
  }
  if (!mass) value = bars.reduce((sum, each) => sum + each, 0);
  return { value: mass || rows ? value : NaN, bound, bars, upright: true };
}
