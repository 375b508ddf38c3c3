// What a head, or the mean or largest over heads, answers in the difference of two runs. Of what
// one of the runs does not store it is known between which two numbers the difference lies.
import {mostOfOthers, nothing, seen} from "./answers.js";
import {HIDDEN, isMark, UNKNOWN} from "./data.js";
import {Difference, kComputed} from "./filters.js";
import {askKeys} from "./received.js";

// Whichever is further from 0; what is not a number is furthest.
export function further(a, b) { return Number.isNaN(a) || Math.abs(a) >= Math.abs(b) ? a : b; }

// The end further from 0 of the differences that two values may have: a mark that is not known
// stands for anything from 0 to what it is at most, and others for 0.
function furthestEnd(a, mostA, b, mostB) {
  const least = (value) => (isMark(value) ? 0 : value);
  const high = (value, most) => (value === UNKNOWN ? most : least(value));
  return further(least(b) - high(a, mostA), high(b, mostB) - least(a));
}

// A difference that lies between two numbers: their middle, with what it is off by at most, or, if
// that is too much even for one digit, the end further from 0.
export function within([from, to]) {
  const value = (from + to) / 2, off = (to - from) / 2;
  if (2 * off <= 10 ** Math.floor(Math.log10(Math.abs(value)))) return { value, off, bound: "" };
  return { value: further(from, to), bound: "within" };
}

// Bars of a difference: of each place the differences that are known, and how far they may be from
// 0 where they are not.
class Bars {
  constructor(n) {
    this.bars = new Float32Array(n).fill(HIDDEN);
    this.others = new Float32Array(n);
  }

  add(a, mostA, b, mostB) {
    for (let n = 0; n < this.bars.length; ++n) {
      const own = Difference.of(a[n], b[n]);
      this.bars[n] = seen(this.bars[n], own);
      if (own === UNKNOWN)
        this.others[n] = further(this.others[n], furthestEnd(a[n], mostA(n), b[n], mostB(n)));
    }
  }

  answer() {
    const { bars, others } = this, whole = !others.some((other) => other !== 0);
    return { bars, mostAt: (n) => others[n], whole };
  }
}

// What the chosen keys receive more in the second run, and from which queries.
export function askKeysApart(heads, question) {
  const [{ queries }] = heads, bars = new Bars(queries), total = { value: 0, off: 0, bound: "" };
  let mark;
  for (const j of question.chosen) {
    const [a, b] = heads.map((head) => askKeys(head, {...question, chosen: [j] }, heads));
    if (a.mark || b.mark) {
      if (a.mark === UNKNOWN || b.mark === UNKNOWN) return nothing(UNKNOWN);
      mark ??= a.mark;
      continue;
    }
    mark = null;
    bars.add(a.bars, a.mostAt, b.bars, b.mostAt);
    for (const [sign, one] of [[-1, a], [1, b]]) {
      // A sum that is only bounded from above is anything from 0 on; one from below anything.
      const half = one.bound === "most" ? one.value / 2 : 0;
      total.value += sign * (one.value - half);
      total.off += Math.max(one.off ?? 0, kComputed * Math.abs(one.value)) + half;
      if (one.bound === "least") total.value = NaN;
    }
  }
  if (mark) return nothing(mark);
  return {...total, ...bars.answer(), upright: true };
}

// The difference that is furthest from 0 of those that are known of the chosen queries, and those
// of all keys.
export function askQueriesApart(source, heads, {chosen}) {
  if (source.lacksRows) return nothing(UNKNOWN);
  const { keys } = source, rows = [0, 1].map(() => new Float32Array(keys)), bars = new Bars(keys);
  const row = new Float32Array(keys), over = [source.a, source.b].map(boundOver);
  let best = null, mark = HIDDEN, isNaN = false;
  for (const i of chosen) {
    if (i >= source.queries) continue;
    const most = [source.a, source.b].map((each, n) => {
      const others = new Float32Array(keys);
      each.segment(i, 0, keys, rows[n]);
      mostOfOthers(each, over[n], i, rows[n], others);
      return (j) => others[j];
    });
    bars.add(rows[0], most[0], rows[1], most[1]);
    for (let j = 0; j < keys; ++j) {
      const value = Difference.of(rows[0][j], rows[1][j]);
      if (Number.isNaN(value)) isNaN = true;
      else if (isMark(value)) mark = Math.min(mark, value);
      else if (!best || Math.abs(value) > Math.abs(best.value)) best = { i, j, value };
    }
  }
  const drawn = bars.answer();
  if (isNaN) return { value: NaN, bound: "", ...drawn };
  if (!best) return {...nothing(mark), ...(mark === UNKNOWN ? drawn : {}) };
  const { weight, off } = source.cell(best.i, best.j),
                      key = weight && chosen.length === 1 ? best.j : -1;
  return { value: weight ?? best.value, off: off ?? 0, bound: "", key, ...drawn };
}

// Of a source over heads whoever can bound whole rows of it; null of a head.
function boundOver(source) {
  if (!source.heads) return null;
  const over = source.head ?? source;
  over.bound();
  return over;
}
