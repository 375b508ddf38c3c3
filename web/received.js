// What a key receives from all queries, of a head or over the heads of a layer, and from which of
// them.
import {nothing, seen} from "./answers.js";
import {FILTERED, HIDDEN, isMark, offOf, UNKNOWN} from "./data.js";
import {kComputed} from "./filters.js";
import {normed, shown, sourceOf} from "./page.js";
import {state} from "./state.js";

const kKeyWork = 3e7;  // multiplications of a head for what a key receives after top-p

// The weights of key j, with marks, and what those that are not known are at most: { out, most },
// kept with the head. It reads what is stored of the key, not row by row, as segments do.
function column(head, j) {
  head.columns ??= new Map();
  if (!head.columns.has(j)) head.columns.set(j, readColumn(head, j));
  return head.columns.get(j);
}

// What a weight of each query that is not stored is at most: NaN of those that are not numbers,
// HIDDEN of those that have stored all they see. Of all keys, and worked out once, so it is kept
// with what was opened of the layer.
function boundsOf(head) {
  const all = head.open.bounds ??= [], { h, queries, rows } = head;
  if (all[h]) return all[h];
  const bounds = all[h] = new Float32Array(queries);
  for (let i = 0; i < queries; ++i)
    bounds[i] = head.isNaN(i) ? NaN : rows?.whole(i) ? HIDDEN : head.mostInRow(i);
  return bounds;
}

// Works out ahead what a choice of any key needs of a head.
export function prepareKeys(head) {
  if (head.exact) return;
  boundsOf(head);
  head.rows?.orderByKey(head.keys);
}

// Of key j for the queries [begin, end): what is hidden, and what the others are at most.
function boundColumn(head, j, begin, end, out, most) {
  const { tiles, rows } = head, bounds = boundsOf(head), side = tiles?.queries ?? end;
  for (let i = begin; i < end;) {
    const last = Math.min(end, (Math.floor(i / side) + 1) * side);
    if (tiles && head.tileHidden(head.tileNumber(i, j))) i = last;
    const inTile =
        tiles && i < last ? head.mostIn(Math.floor(i / side), Math.floor(j / tiles.keys)) : 1;
    for (; i < last; ++i) {
      const bound = bounds[i];
      if (bound === HIDDEN || head.masked(i, j)) continue;
      out[i] = Number.isNaN(bound) ? NaN : UNKNOWN;
      most[i] = Number.isNaN(bound) ? 0 : rows?.has(i) ? Math.min(bound, inTile) : inTile;
    }
  }
}

function readColumn(head, j) {
  const { queries, rows } = head, one = new Float32Array(1), [begin, end] = head.queriesOf(j);
  const out = new Float32Array(queries).fill(HIDDEN), most = new Float32Array(queries);
  if (head.exact)
    for (let i = begin; i < end; ++i) {
      head.segment(i, j, j + 1, one);
      out[i] = one[0];
    }
  else boundColumn(head, j, begin, end, out, most);
  const store = (i, weight) => {
    if (Number.isNaN(out[i])) return;
    out[i] = weight;
    most[i] = 0;
  };
  if (head.exact) return { out, most };
  rows?.column(j, store);
  for (const { query, queries: count, key, keys, weights } of head.windows)
    for (let i = query; i < query + count && j >= key && j < key + keys; ++i)
      if (out[i] !== HIDDEN) store(i, weights[(i - query) * keys + j - key]);
  return { out, most };
}

// The same of the mean or the largest over heads.
function columnOver({ which, apart: unlike, error }, columns) {
  const mean = which === "mean", n = columns[0].out.length;
  const out = new Float32Array(n), most = new Float32Array(n);
  for (let i = 0; i < out.length; ++i) {
    let sum = 0, count = 0, bound = 0, unknown = 0;
    for (const column of columns) {
      const value = column.out[i], other = column.most[i];
      if (value === HIDDEN) continue;
      ++count;
      if (value === UNKNOWN) {
        ++unknown;
        bound = mean && !unlike ? bound + other : Math.max(bound, other);
      } else sum = mean || Number.isNaN(value) ? sum + value : Math.max(sum, value);
    }
    const known = sum * (1 + error);  // what is known may be rounded down
    out[i] = count === 0 ? HIDDEN : unknown ? UNKNOWN : mean ? sum / count : sum;
    most[i] = !unknown ? 0
        : !mean        ? Math.max(bound, known)
        : unlike       ? Math.max(bound, known / Math.max(1, count - unknown))
                       : (bound + known) / count;
  }
  return { out, most };
}

// What the chosen keys receive from all queries, and from which of them.
export function askKeys(head, question, runs) {
  const layers = runs.map(({ layer }) => layer), source = sourceOf([head], shown.kept, layers);
  const plain = normed(head, layers), filtered = source !== plain, { queries, keys } = head;
  if (source.needsRows && queries * keys * source.cost > kKeyWork) return nothing(UNKNOWN);
  if (source.lacksRows || (filtered && !head.exact && (state.far > 0 || state.least > 0)))
    return nothing(UNKNOWN);
  const inside = question.chosen.filter((j) => j < keys),
        chosen = inside.filter((j) => !shown.kept || shown.kept[j] === 1);
  if (inside.length > 0 && chosen.length === 0) return nothing(FILTERED);
  let bars = new Float32Array(queries).fill(HIDDEN), others = new Float32Array(queries);
  const each = head.heads ? plain.heads : [plain], over = head.heads ? plain : null;
  const total = { value: 0, off: 0, bound: "" };
  for (const j of chosen) {
    const exact = head.exact && (over || filtered) ? columnOf(source, j) : null;
    const columns = exact ? [exact] : each.map((own) => weighed(own, j));
    const { out, most } = over && !exact ? columnOver(over, columns) : columns[0];
    if (exact || !(each[0].head ?? each[0]).mass) add(total, sumOf(out, most, source.error));
    else {
      const received = each.map((own) => massOf(own, j));
      add(total, over ? massOver(over, received) : received[0]);
    }
    if (chosen.length === 1) [bars, others] = [out, most];
    for (let i = 0; chosen.length > 1 && i < queries; ++i) {
      bars[i] = seen(bars[i], out[i]);
      others[i] = Math.max(others[i], most[i]);
    }
  }
  const whole = !others.some((other) => other > 0);
  return {...total, bars, mostAt: (i) => others[i], whole, upright: true };
}

// The column of a head, or of one that is weighed by norms.
function weighed(own, j) {
  const { norms, head } = own;
  if (!norms) return column(own, j);
  const { out, most } = column(head, j);
  return {
    out: out.map((value) => (isMark(value) ? value : value * norms[j])),
    most: most.map((value) => own.raised(value, norms[j]))
  };
}

function add(total, { value, off, bound = "" }) {
  total.value += value;
  total.off += off;
  total.bound ||= bound;
}

// What key j receives of a head, times its norm; a stored 0 is only very small.
function massOf(own, j) {
  const { layer, h, keys, mass } = own.head ?? own;
  const norm = own.norms?.[j] ?? 1, error = own.normError ?? 0;
  const value = mass ? mass[h * keys + j] : NaN, off = mass ? offOf(layer.mass, value) : 0;
  if (value === 0 && off > 0) return { value: off * norm * (1 + error), off: 0, bound: "most" };
  return { value: value * norm, off: (off + error * value) * norm };
}

// The same over heads: the mean is that of the heads where they see the same, and the largest of
// each query makes no less than the largest of the sums.
function massOver({ heads, which }, received) {
  const values = received.map(({ value }) => value), [{ layer }] = heads;
  const shared = [layer.mask, layer.tiles?.visible].every((each) => !each || each.shape[0] === 1);
  if (which === "maximum") {
    const [value, off] =
        received.reduce((most, { value, off }) => (value > most[0] ? [value, off] : most), [-1, 0]);
    return { value, off, bound: "least" };
  }
  if (!shared) return { value: NaN, off: 0 };
  const mean = (all) => all.reduce((a, b) => a + b, 0) / all.length;
  const most = received.some(({ bound }) => bound);
  return {
    value: mean(values),
    off: mean(received.map(({ off }) => off)),
    bound: most ? "most" : ""
  };
}

// Key j of an exact source.
function columnOf(source, j) {
  const out = new Float32Array(source.queries), one = new Float64Array(1);
  for (let i = 0; i < out.length; ++i) {
    source.segment(i, j, j + 1, one);
    out[i] = one[0];
  }
  return { out, most: new Float32Array(out.length) };
}

// All weights of a key, with what those that are not known are at most.
function sumOf(out, most, error) {
  const known = out.reduce((sum, weight) => (isMark(weight) ? sum : sum + weight), 0);
  const others = most.reduce((sum, bound) => sum + bound, 0);
  const off = known * Math.max(error, kComputed);
  return { value: known + others, off, bound: others > 0 ? "most" : "" };
}
