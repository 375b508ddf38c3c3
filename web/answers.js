// The answer of one head, of the mean or largest over heads, or of either in the difference of two
// runs, to what the selection asks.
import {askKeysApart, askQueriesApart, further, within} from "./apart.js";
import {FILTERED, HIDDEN, isMark, UNKNOWN} from "./data.js";
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
    return b ? askKeysApart(heads, question) : askKeys(a, question, heads);
  const source = sourceOf(heads, shown.kept);
  if (question.kind === "cell") return askCell(source, question);
  return b ? askQueriesApart(source, heads, question) : askQueries(source, a, question);
}

function askCell(source, { i, j }) {
  const inside = i < source.queries && j < source.keys;
  const cell = inside ? source.cell(i, j) : { kind: "hidden" };
  if (cell.kind === "hidden") return nothing(HIDDEN);
  if (cell.kind === "filtered") return nothing(FILTERED);
  if (source.lacksRows) return nothing(UNKNOWN);
  if (cell.weight !== null)
    return { value: cell.weight, off: cell.off ?? cell.weight * cell.error, bound: "" };
  return source.difference ? within(cell.between) : { value: cell.most, bound: "most" };
}

// Of two numbers or marks the one to be seen: the number further from 0, else what is not known.
export function seen(a, b) {
  if (isMark(a) || isMark(b)) return isMark(a) && isMark(b) ? Math.min(a, b) : Math.max(a, b);
  return further(a, b);
}

// A threshold is about the mean or largest, of which a bound for every key costs too much.
function cannotTell(source, head) {
  return source.lacksRows || (head.heads && !head.exact && state.least > 0);
}

// The largest weight of each chosen query, of the keys that filters keep; of several their mean.
// Where filters or norms are on, a key that is not stored may weigh more than those that are.
function askQueries(source, head, { chosen }) {
  if (cannotTell(source, head)) return nothing(UNKNOWN);
  const row = new Float32Array(head.keys), { length } = row, bounds = new Set();
  const bars = chosen.length === 1 ? row : new Float32Array(length).fill(HIDDEN);
  const others = new Float32Array(length);  // what a weight that is not known is at most
  const over = head.heads ? source.head ?? source : null;
  over?.bound();
  let sum = 0, key = -1, all = 0, off = 0, whole = true;
  for (const i of chosen) {
    if (i >= head.queries) continue;
    source.segment(i, 0, length, row);
    let best = 0, unknown = false;
    for (let j = 0; j < length; ++j) {
      const value = row[j];
      if (value > best) [best, key] = [value, j];
      else if (value === UNKNOWN) unknown = true;
      else if (Number.isNaN(value)) best = NaN;
    }
    for (let j = 0; bars !== row && j < length; ++j) bars[j] = seen(bars[j], row[j]);
    off += best * source.error;
    if (unknown) {
      whole = false;
      for (let j = 0; over && j < length; ++j)
        if (row[j] === UNKNOWN && over.leasts[j] > best) [best, key] = [over.leasts[j], j];
      const other = mostOfOthers(source, over, i, row, others);
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

// What those weights of query i that are not known are at most, each of them into others where that
// is more, and all together: of a head no more than the row or the tile allows.
export function mostOfOthers(source, over, i, row, others) {
  const own = over ? 0 : source.mostInRow(i), tiles = over ? null : source.tiles;
  const side = tiles?.keys ?? row.length;
  let most = 0;
  for (let begin = 0; begin < row.length; begin += side) {
    const end = Math.min(begin + side, row.length);
    let inTile = NaN;  // once it is needed
    for (let j = begin; j < end; ++j) {
      if (row[j] !== UNKNOWN) continue;
      if (!over && Number.isNaN(inTile))
        inTile = tiles ? source.mostIn(Math.floor(i / tiles.queries), begin / side) : Infinity;
      const at = over ? over.mosts[j] : Math.min(own, inTile);
      if (at > others[j]) others[j] = at;
      if (at > most) most = at;
    }
  }
  return most;
}
