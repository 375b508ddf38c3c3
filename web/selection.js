// What the selection asks of every head of every layer, and the answers: the weight of the chosen
// cell, the largest weight of the chosen query, or all that the chosen key receives. Where a head's
// own weight is not in the page, the answer is what it is at most. The mean and the largest over
// the heads of a layer answer as heads do. Filters and norms hold as on the map; what cannot be
// told with them is left empty.
import {answer} from "./answers.js";
import {isMark, openLayer, openStored, PageError, UNKNOWN, unpack} from "./data.js";
import {Head} from "./head.js";
import {OverHeads} from "./overheads.js";
import {layersShown, runOf, shown} from "./page.js";
import {prepareKeys} from "./received.js";
import {state} from "./state.js";

const kMostChosen = 64;  // queries or keys that are looked at
const kIdle = 100;       // ms after which a page that is never idle goes on preparing
const kPause = 20;  // ms between two parts of it in browsers that do not tell when they are idle
const kPart = 10;   // ms of preparing at once
// "layer.head", "layer.mean" and "layer.maximum" -> { value, off (by at most), bound: "" | "most" |
// "least", mark (why there is no value), key, bars (of the keys of a query or the queries of a key,
// with marks), mostAt(n) (what is not known of a bar is at most that), whole (nothing of the bars
// is not known) }
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
  const kept = within.slice(0, kMostChosen);
  return { kind: reverse ? "key" : "query", chosen: kept, of: within.length };
}

export function isAsked() { return asked() !== null; }

export function answerOf(layer, head) { return answers.get(`${layer}.${head}`) ?? null; }

// That of the mean ("mean") or largest ("maximum") over the heads of a layer.
export function answerOver(layer, over) { return answers.get(`${layer}.${over}`) ?? null; }

// The largest number that a card draws of an answer.
export function largestDrawn({value, bars, mostAt}) {
  if (!bars) return Math.abs(value) || 0;
  let top = 0;
  bars.forEach((own, n) => {
    if (!isMark(own) && Math.abs(own) > top) top = Math.abs(own);
    if (Math.abs(mostAt(n)) > top) top = Math.abs(mostAt(n));
  });
  return top;
}

// Unpacks what answers need of all layers before somebody asks, and then works out what keys need,
// a head at a time, while the page has nothing else to do.
export async function prepareAnswers() {
  const layers = shown.page.runs.flatMap((run) => run.layers);
  for (const layer of layers) {
    await idle();
    await prepareLayer(layer).catch(() => {});  // whoever shows the layer tells what is broken
  }
  performance.mark("prepared");
}

function idle() {
  return new Promise(
      (done) =>
          (window.requestIdleCallback ? requestIdleCallback(done, { timeout: kIdle })
                                      : setTimeout(done, kPause)));
}

async function prepareLayer(layer) {
  const [open] = await Promise.all([openStored(layer), unpack(layer.mass)]);
  const { heads } = headsWith(layer, open);
  for (let n = 0, end = performance.now() + kPart; n < heads.length; ++n) {
    prepareKeys(heads[n]);
    if (performance.now() < end) continue;
    await idle();
    end = performance.now() + kPart;
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

// Which cards over heads a layer has.
const kOver = ["mean", "maximum"];

async function askLayer(at, question, found) {
  try {
    const layers = layersShown(at),
          parts = await Promise.all(layers.map((layer) => headsOf(layer, question)));
    const [{ heads, over }] = parts;
    const tell = (name, n) => {
      const all = parts.map((part) => (n < 0 ? part?.over[name] : part?.heads[n]) ?? null);
      found.set(`${at}.${name}`, answer(all, question));
    };
    heads.forEach((_, n) => tell(n, n));
    Object.keys(over).forEach((name) => tell(name, -1));
  } catch (error) {
    if (!(error instanceof PageError)) throw error;  // the layer's own view tells it
  }
}

// Makes a head keep the row that it was asked for last: the mean and the largest ask for it again.
function keepRow(head) {
  const plain = head.segment.bind(head);
  let row = null, kept = -1;
  head.segment = (i, j0, j1, out, at = 0) => {
    if (j1 - j0 < head.keys) return plain(i, j0, j1, out, at);
    row ??= new Float64Array(head.keys);
    if (kept !== i) plain(i, 0, head.keys, row);
    kept = i;
    out.set(row, at);
  };
}

// What was opened of a layer -> its heads, and the mean and largest over them: one choice after the
// other asks the same.
const headsOpened = new WeakMap();

function headsWith(layer, open) {
  if (!headsOpened.has(open)) {
    const heads = Array.from({ length: layer.heads ?? 0 }, (_, h) => new Head(layer, open, h));
    const over = layer.over_heads && heads.length ? kOver : [];
    heads.forEach(keepRow);
    headsOpened.set(open, {
      heads,
      over: Object.fromEntries(over.map((which) => [which, new OverHeads(heads, null, which)]))
    });
  }
  return headsOpened.get(open);
}

// The heads of a layer, and the mean and largest over them; null where the other run has no such
// layer. q and k are unpacked only where they are needed: once rows, windows and filters leave
// something open.
async function headsOf(layer, question) {
  if (!layer) return null;
  const asRows = state.p < 1 || state.renormalise;  // look at whole rows
  const mass = question.kind === "key" ? await unpack(layer.mass) : null;
  const of = (open) => {
    const parts = headsWith(layer, open);
    for (const head of parts.heads) Object.assign(head, { mass, columns: null });
    return parts;
  };
  if (state.norms || !layer.rows || asRows) return of(await openLayer(layer));
  const stored = of(await openStored(layer));
  if (!layer.q || !layer.k) return stored;
  const known = (head) => {
    const { bound, whole, mark } = answer([head], question);
    return bound === "" && whole !== false && mark !== UNKNOWN;
  };
  const all = [...stored.heads, ...Object.values(stored.over)];
  return all.every(known) ? stored : of(await openLayer(layer));
}
