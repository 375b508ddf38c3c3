// Scores of heads: the metrics of the page, of either run or how much they changed, and the answer
// to the selection. By them heads are sorted, in groups, and coloured.
import {leastDifferenceOf} from "./compare.js";
import {scores} from "./dom.js";
import {hasTwoRuns, labelOf, layerName, layersShown, runName, runOf, shown} from "./page.js";
import {answerOf, isAsked} from "./selection.js";
import {state} from "./state.js";
import {say} from "./text.js";

const kMetrics = [
  "entropy", "evenness", "maximum", "distance", "previous", "first", "diagonal", "local",
  "duplicate", "induction", "contribution"
];

// Metrics that the page has, for the lists.
export function metricNames() {
  const layers = shown.page.runs.flatMap((run) => run.layers);
  const names = kMetrics.filter((name) => layers.some((layer) => layer.metrics?.[name]));
  return state.show === "difference" ? [...names, "difference"] : names;
}

// The metric of a head in each run that is shown; "name@a" and "name@b" are of one run.
export function metricsOf(at, head, name) {
  if (name === "difference") return [leastDifferenceOf(at, head)];
  const [metric, run] = name.split("@");
  const layers = run ? [runOf(run).layers[at]] : layersShown(at);
  return layers.map((layer) => layer?.metrics?.[metric]?.[head] ?? NaN);
}

// Groups of choices for the list of sorts: [title, [[value, words], ...]].
export function sortChoices() {
  const word = (name) => say(`metric_${name}`), names = metricNames();
  const groups = [
    ["", [["order", say("order")], ["label", say("by_label")], ["selection", say("by_selection")]]]
  ];
  const change = state.show === "difference";
  groups.push(
      [change ? say("change") : say("metrics_word"), names.map((name) => [name, word(name)])]);
  for (const run of hasTwoRuns() ? ["a", "b"] : []) {
    if (run === state.show) continue;
    const title = runName(run === "b" ? 1 : 0);
    groups.push([
      title,
      names.filter((name) => name !== "difference")
          .map((name) => [`${name}@${run}`, `${word(name)} · ${title}`])
    ]);
  }
  return groups;
}

export function isSort(value) {
  return sortChoices().some(([, choices]) => choices.some(([each]) => each === value));
}

// By what heads are sorted and coloured: the metric, how much it changed between two runs, or the
// weight where the selection is, and where only its bound is known that.
export function rankOf(at, head, name) {
  if (name === "selection") {
    const answer = answerOf(at, head);
    return answer ? Math.abs(answer.value) : NaN;
  }
  const [a, b] = metricsOf(at, head, name);
  return b === undefined ? a : Math.abs(b - a);
}

// What the grid is coloured by: the selection if there is one, a metric, or nothing (null).
export function colouredBy() {
  if (state.colour !== "selection") return state.colour === "none" ? null : state.colour;
  return isAsked() ? "selection" : null;
}

// The score that stands beside a head's name, in words; what is only a bound has its sign.
export function scoreWords(at, head, name) {
  return name === "selection" ? answerWords(answerOf(at, head)) : scores(metricsOf(at, head, name));
}

export function answerWords(answer) {
  if (!answer || Number.isNaN(answer.value)) return answer ? "–" : "";
  const { off = 0, bound } = answer, [sign, round, way] = kRounding[bound] ?? [];
  const value = bound === "within" ? Math.abs(answer.value) : answer.value;
  if (bound) return sign + shortScore(value + way * off, round);
  if (value !== 0 && Math.abs(value) <= off) return `±${shortScore(off, Math.ceil)}`;
  return shortScore(value, Math.round, off);
}

// A bound is rounded so that it stays one.
const kRounding = {
  most: ["≤", Math.ceil, 1],
  least: ["≥", Math.floor, -1],
  within: ["±", Math.ceil, 1]
};

const kTiny = 0.00095;  // below, three decimals would round to one wrong digit

// 0.143, 12.3, 2e−4: short enough to stand beside a name, and no decimal of what is off by at most
// `off` that is not known.
function shortScore(value, round = Math.round, off = 0) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  const first = -Math.floor(Math.log10(size)), most = size < kTiny ? first : size < 10 ? 3 : 1;
  const digits = off ? Math.min(most, Math.max(first, -Math.ceil(Math.log10(2 * off)))) : most;
  const rounded = round(value * 10 ** digits) / 10 ** digits;
  const text = size < kTiny ? rounded.toExponential(0) : rounded.toFixed(Math.max(0, digits));
  return text.replaceAll("-", "−");
}

function allHeads() {
  const all = [];
  runOf(state.show).layers.forEach((layer, at) => {
    for (let head = 0; head < (layer.heads ?? 0); ++head) all.push({ layer: at, head });
  });
  return all;
}

// Ends of the groups of a sort, as shares of the largest score.
const kShares = [0.5, 0.1, 0.01, -Infinity];

// Every head in the order of the state, in groups: [{ title, heads: [{ layer, head }] }].
export function groupsOfHeads() {
  const all = allHeads();
  if (state.sort === "order") {
    const layers = shown.page.runs[0].layers;
    return grouped(all, ({ layer }) => layer).map(({ heads }) => {
      const at = heads[0].layer;
      return { title: layerName({ name: layers[at]?.name ?? at }), heads };
    });
  }
  if (state.sort === "label") {
    const text = ({ layer, head }) => labelOf(layer, head)?.text ?? "–", count = new Map();
    for (const each of all) count.set(text(each), (count.get(text(each)) ?? 0) + 1);
    const title = (each) => `${text(each)} · ${count.get(text(each))}`;
    const score = ({ layer, head }) => labelOf(layer, head)?.scores.at(-1) ?? 0;
    const sorted = all.sort(
        (a, b) =>
            (text(a) < text(b)       ? -1
                 : text(a) > text(b) ? 1
                                     : score(b) - score(a)));
    return grouped(sorted, title);
  }
  const rank = new Map(all.map((each) => [each, rankOf(each.layer, each.head, state.sort)]));
  const value = (each) => (Number.isNaN(rank.get(each)) ? -Infinity : rank.get(each));
  const sorted = all.sort((a, b) => value(b) - value(a) || 0), top = value(sorted[0]);
  const share = (each) =>
      (value(each) === -Infinity ? -1 : kShares.findIndex((end) => value(each) >= end * top));
  return grouped(sorted, share).map(({ heads }) => {
    const known = heads.filter((each) => Number.isFinite(value(each)));
    if (known.length === 0) return { title: say("group_none", { n: heads.length }), heads };
    const [high, low] = [known[0], known.at(-1)].map(rankWords);
    return { title: `${high === low ? high : `${high} – ${low}`} · ${heads.length}`, heads };
  });
}

// How high a head stands in the sort, in words.
function rankWords({ layer, head }) {
  const rank = rankOf(layer, head, state.sort);
  return state.sort === "selection" ? answerWords({...answerOf(layer, head), value: rank })
                                    : shortScore(rank);
}

function grouped(heads, title) {
  const groups = [];
  for (const each of heads) {
    const name = title(each);
    if (groups.at(-1)?.title !== name) groups.push({ title: name, heads: [] });
    groups.at(-1).heads.push(each);
  }
  return groups;
}

// The head `step` places further in this order.
export function neighbour(step) {
  const all = groupsOfHeads().flatMap(({ heads }) => heads);
  if (all.length === 0) return {};
  const at = all.findIndex(({ layer, head }) => layer === state.layer && head === state.head);
  return {...all[(at + step + all.length) % all.length], over: "none" };
}
