// Where the number of one cell comes from, in the four steps of attention, recomputed from the q,
// k, v and lse that stand in the page.
import {ink, Scale} from "./colour.js";
import {isMark, unpack} from "./data.js";
import {element, fill, number, signed} from "./dom.js";
import {hasTwoRuns, placeElement, shown} from "./page.js";
import {cellFigure, isBounded, mostWords, tileWords, windowFlag} from "./readout.js";
import {state} from "./state.js";
import {say} from "./text.js";

// Bars around a middle line, one for each number: orange up and more than 0, blue down and less, as
// on the map of a difference.
function bars(values, words) {
  const canvas = element(
      "canvas", { class: "bars", role: "img", "aria-label": words, width: 560, height: 72 });
  let top = 0;
  for (const value of values) top = Math.max(top, Math.abs(value) || 0);
  const scale = new Scale({ bend: "sqrt", top, difference: true }),
        context = canvas.getContext("2d");
  const step = 560 / values.length, gap = step > 6 ? 2 : step > 3 ? 1 : 0;
  context.fillStyle = ink("line");
  context.fillRect(0, 35.5, 560, 1);
  values.forEach((value, c) => {
    const height = top > 0 ? (35 * Math.abs(value)) / top : 0;
    context.fillStyle = scale.css(value > 0 ? 0.6 * top : -0.6 * top);
    context.fillRect(c * step, value > 0 ? 36 - height : 36, Math.max(1, step - gap), height);
  });
  return canvas;
}

function line(words, value, extra = {}) {
  return element(
      "div", { class: "line", ...extra }, element("span", {}, words),
      element("span", { class: "figure" }, value));
}

function step(title, ...lines) { return element("li", {}, element("h3", {}, title), lines); }

// What softmax needs to know of the whole row: the largest score m, sum of exp(s - m), sink
// included.
function rowOf(head, i) {
  const [begin, end] = head.range(i), scores = [];
  for (let j = begin; j < end; ++j)
    if (!head.masked(i, j)) scores.push(head.score(i, j).final);
  const sink = head.layer.sinks?.[head.h];
  if (Number.isFinite(sink)) scores.push(sink);
  let m = -Infinity;
  for (const s of scores) m = Math.max(m, s);
  let sum = 0;
  for (const s of scores) sum += Math.exp(s - m);
  return { m, sum, lse: m + Math.log(sum), sink: Number.isFinite(sink) };
}

export class ExplainView {
  constructor(root) {
    this.root = root;
    this.asked = 0;
  }

  async show() {
    const asked = ++this.asked, { source, heads } = shown, cell = state.cell;
    if (!source || !cell || cell[0] >= source.queries || cell[1] >= source.keys) {
      return fill(this.root, element("p", { class: "muted" }, say("explain_none")));
    }
    if (state.over !== "none")
      return fill(this.root, element("p", { class: "muted" }, say("explain_over")));
    const [i, j] = cell, parts = [];
    const pair = element(
        "p", { class: "pair" }, placeElement(i, "query", `${say("query")} `),
        element("span", { class: "muted" }, " → "), placeElement(j, "key", `${say("key")} `));
    for (const [n, head] of heads.entries()) {
      const v = head.exact ? await unpack(head.layer.v) : null;
      let name = null;
      if (asked !== this.asked) return;
      if (heads.length === 2 || (hasTwoRuns() && state.show !== "difference")) {
        const run = heads.length === 2 ? shown.page.runs[n] : shown.run;
        name = element(
            "h3", { class: "run-name" }, `${say("explain_run")} `,
            element("bdi", {}, String(run.name ?? n)));
      }
      parts.push(element(
          "div", {}, name, head.exact ? this.steps(head, i, j, v) : this.cannot(head, i, j)));
    }
    fill(this.root, pair, element("div", { class: "explanations" }, parts));
  }

  // What the page knows without q and k, and how to have the cell in it.
  cannot(head, i, j) {
    const cell = head.cell(i, j),
          why = head.layer.why ? String(head.layer.why) : say("explain_why");
    const known = isBounded(cell) ? mostWords(cell.most) : cellFigure(cell, false);
    const name = String(shown.page.command ?? "attend view");
    const command = `${name} … ${windowFlag(i, j)}`;
    return element(
        "div", {},
        known ? line(say("weight"), `${known} · ${say(isBounded(cell) ? "bound" : cell.kind)}`)
              : null,
        cell.tile ? element("p", { class: "note" }, say("tile"), ": ", tileWords(cell.tile, false))
                  : null,
        cell.weight === null ? element(
                                   "p", { class: "fine" }, say("store_it"), " ",
                                   element("code", { class: "command" }, command))
                             : null,
        element("p", { class: "note" }, say("explain_not", { why })));
  }

  steps(head, i, j, v) {
    const hidden = head.hiddenBy(i, j),
          list = element(
              "ol", { class: "steps" }, this.scores(head, i, j), this.mask(head, i, j, hidden));
    if (hidden) {
      list.append(step(say("step_softmax"), element("p", { class: "note" }, say("hidden_zero"))));
      return list;
    }
    const row = rowOf(head, i), s = head.score(i, j).final, p = Math.exp(s - head.lse(i));
    list.append(step(
        say("step_softmax"), line(say("row_maximum"), number(row.m, 6)),
        line(say("exp"), number(Math.exp(s - row.m), 6)),
        line(
            say(row.sink ? "row_sum_sink" : "row_sum"), number(row.sum, 6), { "data-step": "sum" }),
        line(say("weight_is"), number(p, 6), { class: "line result", "data-step": "weight" }),
        element(
            "p", { class: "fine" },
            say("check", { difference: number(Math.abs(row.lse - head.lse(i)), 2) }))));
    list.append(
        v ? this.product(head, i, j, p, v)
          : step(say("step_values"), element("p", { class: "note" }, say("explain_no_v"))));
    return list;
  }

  scores(head, i, j) {
    const { q, k } = head.open, d = head.d, a = (head.h * head.queries + i) * d,
                 b = (head.kh * head.keys + j) * d;
    const products = Array.from({ length: d }, (_, c) => q[a + c] * k[b + c]),
          { dot, raw } = head.score(i, j);
    const cells = (values) =>
        values.map((value) => element("td", { class: "figure" }, number(value)));
    const rows = products.map(
        (product, c) => element(
            "tr", {}, element("th", { scope: "row" }, String(c)),
            cells([q[a + c], k[b + c], product])));
    const header = ["", "q", "k", "q × k"].map((words) => element("th", { scope: "col" }, words));
    const table = element(
        "details", { open: d <= 4 }, element("summary", {}, say("all_products", { n: d })),
        element(
            "table", { class: "products" }, element("thead", {}, element("tr", {}, header)),
            element("tbody", {}, rows)));
    return step(
        say("step_scores"),
        d > 1 ? [
          element("p", { class: "fine" }, say("products"), " · ", say("bars_are")),
          bars(products, say("products"))
        ]
              : null,
        table, line(say("dot"), number(dot, 6), { "data-step": "dot" }),
        line(
            say("times_scale", { scale: number(head.layer.scale) }), number(raw, 6),
            { "data-step": "raw" }));
  }

  mask(head, i, j, hidden) {
    const { capped, bias, alibi, final, raw } = head.score(i, j), lines = [],
                                            { softcap } = head.layer;
    const added = [
      head.open.bias ? line(say("bias"), signed(bias, 6)) : null,
      head.layer.alibi ? line(say("alibi"), signed(alibi, 6)) : null
    ].filter(Boolean);
    if (head.layer.bias_before_softcap) lines.push(...added);
    if (softcap)
      lines.push(line(
          say("softcap", { cap: number(softcap) }),
          number(head.layer.bias_before_softcap ? final : capped, 6)));
    if (!head.layer.bias_before_softcap) lines.push(...added);
    if (hidden) lines.push(element("p", { class: "note" }, say(`hidden_${hidden}`)));
    else if (lines.length === 0) lines.push(element("p", { class: "fine" }, say("nothing_added")));
    lines.push(line(
        say("score"), hidden ? "−∞" : number(lines.length === 1 && !softcap ? raw : final, 6),
        { class: "line result" }));
    return step(say("step_mask"), lines);
  }

  product(head, i, j, p, v) {
    const dv = head.layer.dv, base = head.kh * head.keys * dv, mine = [],
          whole = new Float64Array(dv);
    for (let c = 0; c < dv; ++c) mine.push(p * v[base + j * dv + c]);
    const row = new Float64Array(head.keys);
    head.segment(i, 0, head.keys, row);
    row.forEach((weight, key) => {
      if (!isMark(weight))
        for (let c = 0; c < dv; ++c) whole[c] += weight * v[base + key * dv + c];
    });
    const length = (values) => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
    return step(
        say("step_values"),
        element("p", { class: "fine" }, say("value_times"), " · ", say("bars_are")),
        bars(mine, say("value_times")),
        line(
            say("value_norm"), `${number(length(mine))} · ${number(length([...whole]))}`,
            { "data-step": "values" }));
  }
}
