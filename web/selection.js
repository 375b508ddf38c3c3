// What the selection asks of every head of every layer, and the answers: the weight of the chosen
// cell, the largest weight of the chosen query, or all that the chosen key receives. Where a head's
// own weight is not in the page, the answer is what it is at most.
import {errorOf, FILTERED, HIDDEN, isMark, openLayer, openStored, PageError, UNKNOWN, unpack} from "./data.js";
import {kComputed} from "./filters.js";
import {Head} from "./head.js";
import {layersShown, normed, runOf, shown, sourceOf} from "./page.js";
import {state} from "./state.js";

const kMostChosen = 64;  // queries that are looked at
// "layer.head" -> { value, off (by at most), bound: "" | "most" | "least", mark (why there is no
// value), key, bars (of the keys of a query or the queries of a key, with marks), mostAt(n) (what
// is not known of a bar is at most that), whole (nothing of the bars is not known) }
let answers = new Map();
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

// The mean or the largest of the weights that the heads of a layer give the chosen cell, of those
// that see it. Answers of single heads do not tell what all of them make of a query or key, nor the
// largest of a difference: then the card stays empty. Null where no head answers.
export function answerOver(layer, over) {
  const all =
      [...answers].filter(([place]) => place.startsWith(`${layer}.`)).map(([, each]) => each);
  if (all.length === 0) return null;
  if (!answersOver(over)) return { value: NaN, bound: "", mark: FILTERED };
  const seeing = all.filter(({ mark }) => mark !== HIDDEN),
        values = seeing.map(({ value }) => value);
  if (seeing.length === 0) return all[0];
  if (seeing.some(({ mark }) => mark)) return { value: NaN, bound: "", mark: UNKNOWN };
  const value =
      over === "mean" ? values.reduce((a, b) => a + b, 0) / values.length : Math.max(...values);
  const counts = ({ bound, value: own }) => bound && (over === "mean" || own === value);
  const offs = seeing.map(({ off = 0 }) => off);
  const off = over === "mean" ? offs.reduce((a, b) => a + b, 0) / offs.length : Math.max(...offs);
  return { value, off, bound: seeing.some(counts) ? "most" : "" };
}

// Whether cards of the mean or the largest over heads answer what is asked.
export function answersOver(over) {
  return asked()?.kind === "cell" && (over === "mean" || state.show !== "difference");
}

// The largest number that a card draws of an answer.
export function largestDrawn({value, bars, mostAt}) {
  if (!bars) return Math.abs(value) || 0;
  let top = 0;
  bars.forEach((own, n) => {
    if (own > top) top = own;
    if (mostAt(n) > top) top = mostAt(n);
  });
  return top;
}

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
      found.set(`${at}.${head}`, difference(answer, b[head]));
    });
  } catch (error) {
    if (!(error instanceof PageError)) throw error;  // the layer's own view tells it
  }
}

// What the mask hides in one of two runs counts as 0 there.
function difference(a, b) {
  const value = (answer) => (answer?.mark === HIDDEN ? 0 : answer?.value ?? NaN);
  if (a.mark && b?.mark) return { value: NaN, bound: "", mark: a.mark };
  if (a.bound || b?.bound) return { value: NaN, bound: "", mark: UNKNOWN };
  const off = (answer) => Math.max(answer?.off ?? 0, kComputed * Math.abs(value(answer)));
  return { value: value(b) - value(a), off: off(a) + off(b), bound: "" };
}

// The answers of all heads of a layer of one run.
async function askOne(layer, question) {
  if (!layer) return [];  // the other run has more of them
  const heads = Array.from({ length: layer.heads ?? 0 }, (_, h) => h);
  // Top-p and renormalising look at whole rows, where the layer has them.
  const asRows = question.kind === "query" && (state.p < 1 || state.renormalise) && layer.q;
  const whole = state.norms || !layer.rows || asRows;
  const open = await (whole ? openLayer : openStored)(layer), mass = await unpack(layer.mass);
  const tell = (head) => kAsking[question.kind](head, question, mass);
  const found = heads.map((h) => tell(new Head(layer, open, h)));
  const known = (answer) => answer.bound === "" && answer.whole !== false;
  if (whole || !layer.q || !layer.k || found.every(known)) return found;
  const more = await openLayer(layer);
  return found.map((answer, h) => (known(answer) ? answer : tell(new Head(layer, more, h))));
}

function askCell(head, { i, j }) {
  const inside = i < head.queries && j < head.keys;
  const cell = inside ? normed(head).cell(i, j) : { kind: "hidden" };
  if (cell.kind === "hidden") return { value: NaN, bound: "", mark: HIDDEN };
  if (cell.weight !== null) return { value: cell.weight, off: cell.weight * cell.error, bound: "" };
  return { value: cell.most, bound: "most" };
}

// Of two numbers or marks the one to be seen: the larger number, else what is not known.
function seen(a, b) { return isMark(a) && isMark(b) ? Math.min(a, b) : Math.max(a, b); }

// The largest weight of each chosen query, of the keys that filters keep; of several their mean.
// Where filters or norms are on, a key that is not stored may weigh more than those that are.
function askQueries(head, { chosen }) {
  const source = sourceOf(head, shown.kept), row = new Float32Array(head.keys);
  const bars = new Float32Array(head.keys).fill(HIDDEN), bounds = new Set();
  const others = new Float32Array(head.keys);  // what a weight that is not known is at most
  let sum = 0, key = -1, all = 0, off = 0, whole = true;
  for (const i of chosen) {
    if (i >= head.queries) continue;
    source.segment(i, 0, head.keys, row);
    let best = Number.isNaN(head.lse(i)) ? NaN : 0;
    for (let j = 0; j < row.length; ++j) {
      bars[j] = seen(bars[j], row[j]);
      if (row[j] > best) [best, key] = [row[j], j];
    }
    off += best * source.error;
    if (row.includes(UNKNOWN)) {
      const other = source.mostInRow(i);
      whole = false;
      for (let j = 0; j < row.length; ++j)
        if (row[j] === UNKNOWN) others[j] = Math.max(others[j], other);
      if (best === 0) bounds.add("most");
      else if (best < other && (source !== head || !head.rows?.has(i))) bounds.add("least");
      best ||= other;
    }
    sum += best;
    ++all;
  }
  const [bound = ""] = bounds, value = all > 0 && bounds.size < 2 ? sum / all : NaN;
  const mostAt = (j) => others[j];
  return { value, off: off / all, bound, key: all === 1 ? key : -1, bars, mostAt, whole };
}

// What the chosen keys receive from all queries, and from which of them.
function askKeys(head, { chosen }, mass) {
  const source = normed(head), { queries, keys, rows, h } = head;
  const bars = new Float32Array(queries).fill(HIDDEN), one = new Float32Array(1);
  const missing = new Int16Array(queries);  // how many of the chosen keys are not known
  const error = (mass ? errorOf(head.layer.mass) : 0) + (source.normError ?? 0);
  let value = mass ? 0 : NaN, longest = 0;
  for (const j of chosen) {
    if (j >= keys) continue;
    const norm = source.norms?.[j] ?? 1;
    longest = Math.max(longest, norm);
    value += (mass?.[h * keys + j] ?? NaN) * norm;
    for (let i = 0; i < queries && head.exact; ++i) {
      source.segment(i, j, j + 1, one);
      bars[i] = seen(bars[i], one[0]);
    }
    if (head.exact) continue;
    for (let i = 0; i < queries; ++i) {
      if (head.hiddenBy(i, j)) continue;
      const broken = head.isNaN(i);
      bars[i] = broken ? NaN : seen(bars[i], UNKNOWN);
      if (!broken) ++missing[i];
    }
    rows?.column(j, (i, weight) => {
      if (Number.isNaN(bars[i])) return;
      bars[i] = seen(bars[i], weight * norm);
      --missing[i];
    });
  }
  longest *= 1 + (source.normError ?? 0);
  const mostAt = (i) => (missing[i] > 0 ? head.mostInRow(i) * longest : 0);
  const whole = !missing.some((n) => n > 0);
  return { value, off: value * error, bound: "", bars, mostAt, whole, upright: true };
}

const kAsking = {
  cell: askCell,
  query: askQueries,
  key: askKeys
};
