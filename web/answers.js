// The answer of one head, of the mean or largest over heads, or of either in the difference of two
// runs, to what the selection asks.
import {FILTERED, HIDDEN, isMark, UNKNOWN} from "./data.js";
import {kComputed} from "./filters.js";
import {shown, sourceOf} from "./page.js";
import {askKeys} from "./received.js";
import {state} from "./state.js";

export const nothing = (mark) => ({value: NaN, bound: "", mark});

// The answer of a head, or of that of both runs for their difference.
export function answer(heads, question) {
  if (heads.some((head) => !head)) return nothing(UNKNOWN);
  const [a, b] = heads;
  if (b && (a.queries !== b.queries || a.keys !== b.keys)) return nothing(UNKNOWN);
  if (question.kind === "key")
    return b ? apart(askKeys(a, question, heads), askKeys(b, question, heads))
             : askKeys(a, question, heads);
  const source = sourceOf(heads, shown.kept);
  if (question.kind === "cell") return askCell(source, question);
  return b ? askQueriesApart(source, question) : askQueries(source, a, question);
}

// What the mask hides in one of two runs counts as 0 there.
function apart(a, b) {
  const value = (one) => (one.mark === HIDDEN ? 0 : one.value);
  if (a.mark && b.mark) return nothing(a.mark);
  if (a.bound || b.bound) return nothing(UNKNOWN);
  const off = (one) => Math.max(one.off ?? 0, kComputed * Math.abs(value(one)));
  return { value: value(b) - value(a), off: off(a) + off(b), bound: "" };
}

function askCell(source, { i, j }) {
  const inside = i < source.queries && j < source.keys;
  const cell = inside ? source.cell(i, j) : { kind: "hidden" };
  if (cell.kind === "hidden") return nothing(HIDDEN);
  if (cell.kind === "filtered") return nothing(FILTERED);
  if (source.lacksRows) return nothing(UNKNOWN);
  if (cell.weight !== null)
    return { value: cell.weight, off: cell.off ?? cell.weight * cell.error, bound: "" };
  return source.difference ? nothing(UNKNOWN) : { value: cell.most, bound: "most" };
}

// Of two numbers or marks the one to be seen: the larger number, else what is not known.
export function seen(a, b) { return isMark(a) && isMark(b) ? Math.min(a, b) : Math.max(a, b); }

// A threshold is about the mean or largest, of which a bound for every key costs too much.
function cannotTell(source, head) {
  return source.lacksRows || (head.heads && !head.exact && state.least > 0);
}

// The largest weight of each chosen query, of the keys that filters keep; of several their mean.
// Where filters or norms are on, a key that is not stored may weigh more than those that are.
function askQueries(source, head, { chosen }) {
  if (cannotTell(source, head)) return nothing(UNKNOWN);
  const row = new Float32Array(head.keys);
  const bars = new Float32Array(head.keys).fill(HIDDEN), bounds = new Set();
  const others = new Float32Array(head.keys);  // what a weight that is not known is at most
  const over = head.heads ? source.head ?? source : null;
  over?.bound();
  let sum = 0, key = -1, all = 0, off = 0, whole = true;
  for (const i of chosen) {
    if (i >= head.queries) continue;
    source.segment(i, 0, head.keys, row);
    let best = 0;
    for (let j = 0; j < row.length; ++j) {
      bars[j] = seen(bars[j], row[j]);
      if (row[j] > best) [best, key] = [row[j], j];
      if (Number.isNaN(row[j])) best = NaN;
    }
    off += best * source.error;
    if (row.includes(UNKNOWN)) {
      const own = over ? 0 : source.mostInRow(i);
      let other = own;
      whole = false;
      for (let j = 0; j < row.length; ++j) {
        if (row[j] !== UNKNOWN) continue;
        if (over?.least[j] > best) [best, key] = [over.least[j], j];
        const at = over ? over.most[j] : own;
        others[j] = Math.max(others[j], at);
        other = Math.max(other, at);
      }
      if (best === 0) bounds.add("most");
      else if (best < other && (source !== head || over || !head.rows?.has(i))) bounds.add("least");
      best ||= other;
    }
    sum += best;
    ++all;
  }
  const [bound = ""] = bounds, value = all > 0 && bounds.size < 2 ? sum / all : NaN;
  const mostAt = (j) => others[j];
  return { value, off: off / all, bound, key: all === 1 ? key : -1, bars, mostAt, whole };
}

// The difference that is furthest from 0 of those that are known of the chosen queries.
function askQueriesApart(source, { chosen }) {
  if (source.lacksRows) return nothing(UNKNOWN);
  const row = new Float32Array(source.keys);
  let best = null, mark = HIDDEN, whole = true;
  for (const i of chosen) {
    if (i >= source.queries) continue;
    source.segment(i, 0, source.keys, row);
    for (let j = 0; j < row.length; ++j) {
      if (isMark(row[j])) mark = Math.min(mark, row[j]);
      else if (!best || !(Math.abs(row[j]) <= Math.abs(best.value))) best = { i, j, value: row[j] };
      if (Number.isNaN(row[j])) return { value: NaN, bound: "" };
      if (row[j] === UNKNOWN) whole = false;
    }
  }
  if (!best) return {...nothing(mark), whole };
  const { weight, off } = source.cell(best.i, best.j),
                      key = weight && chosen.length === 1 ? best.j : -1;
  return { value: weight ?? best.value, off: off ?? 0, bound: "", key, whole };
}
