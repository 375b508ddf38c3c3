// One head: the map with its rulers, zoom, the values under the pointer and the legend.
import {Blocks} from "./blocks.js";
import {Scale} from "./colour.js";
import {clamp, element, fill, number, scores, signed} from "./dom.js";
import {Gestures} from "./gestures.js";
import {highest, kSmall} from "./head.js";
import {cellsOf, levelOf, paintMap} from "./paint.js";
import {labelWidth} from "./ruler.js";
import {headName, keyToken, labelOf, placeElement, queryToken, shown} from "./page.js";
import {metricNames, metricsOf} from "./grid.js";
import {differenceOf} from "./compare.js";
import {choose, state} from "./state.js";
import {say} from "./text.js";

const kLeast = 8;       // cells: the closest zoom
const kSample = 65536;  // cells in view that are looked at for the colour scale

export class MapView {
  constructor(root) {
    this.root = root;
    this.hover = null;
    this.title = element("h2", { id: "map-title" });
    this.label = element("p", { class: "label" });
    this.metrics = element("dl", { class: "metrics" });
    this.note = element("p", { class: "note", role: "status" });
    this.canvas =
        element("canvas", { id: "map", tabindex: "0", role: "img", "aria-describedby": "readout" });
    this.frame = element("div", { class: "map-frame" }, this.canvas);
    this.readout = element("p", { id: "readout", class: "readout", "aria-live": "polite" });
    this.level = element("p", { class: "level" });
    this.legend = element("div", { class: "legend" });
    this.legendKey = "";
    new Gestures(this);
    // Not at once: a layout inside the observer changes what it observes.
    new ResizeObserver(() => requestAnimationFrame(() => this.resize())).observe(this.frame);
  }

  // The source of the state: new blocks, new scale. Called after the head or a filter changed.
  show() {
    const { source, layer } = shown;
    this.hover = null;
    this.blocks = source ? new Blocks(source, () => this.draw()) : null;
    this.top = {};  // of the colour scale of cells, and the view it belongs to
    this.root.classList.toggle("empty", !source);
    fill(this.note, shown.error || (source && this.hasNaN() ? say("note_nan") : ""));
    this.note.classList.toggle("error", Boolean(shown.error));
    if (!layer) return fill(this.title, say("map"));
    this.describe(layer);
    if (!source) return;
    this.canvas.setAttribute(
        "aria-label",
        say("map_label",
            { head: headName(layer, state.head), queries: source.queries, keys: source.keys }));
    this.layout();
    this.tell();
  }

  hasNaN() {
    return shown.heads.some((head) => {
      const { lse, q } = head.open, rows = head.queries;
      return lse?.subarray(head.h * rows, (head.h + 1) * rows).some(Number.isNaN) ||
          (q &&
           q.subarray(head.h * rows * head.d, (head.h + 1) * rows * head.d).some(Number.isNaN));
    });
  }

  describe(layer) {
    fill(this.title, element("bdi", {}, headName(layer, state.head)));
    const label = labelOf(state.layer, state.head), figure = scores(label?.scores ?? [], 3);
    fill(this.label, label ? [element("strong", {}, label.text), " ",
      figure ? element("span", { class: "figure" }, figure) : null,
      label.definition ? element("span", { class: "definition" }, label.definition) : null] : []);
    fill(this.metrics, metricNames().map((name) => {
      const values = metricsOf(state.layer, state.head, name);
      return element(
          "div", { title: say(`metric_${name}_is`) }, element("dt", {}, say(`metric_${name}`)),
          element("dd", { class: "figure", "data-metric": name }, scores(values, 3) || "–"));
    }));
  }

  window() {
    const { queries, keys } = shown.source;
    if (!state.zoom) return [0, queries, 0, keys];
    const [q0, q1, k0, k1] = state.zoom;
    const span = (from, to, all) => {
      const size = clamp(to - from || all, Math.min(kLeast, all), all),
            begin = clamp(from, 0, all - size);
      return [begin, begin + size];
    };
    return [...span(q0, q1, queries), ...span(k0, k1, keys)];
  }

  resize() {
    if (this.frame.clientWidth !== this.geometry?.width) this.layout();
  }

  // The plot is as wide as there is room, its cells at most 64 px, and never much taller than wide.
  layout() {
    if (!shown.source) return;
    const { source } = shown, { queries, keys } = source, room = this.frame.clientWidth;
    if (room === 0) return;
    const most = room < 480 ? 66 : 104, across = labelWidth(source.queries, queryToken),
          up = labelWidth(source.keys, keyToken);
    const left = Math.round(clamp(across + 16, 36, most)),
          top = Math.round(clamp(0.8 * up + 20, 36, most - 12));
    const right = Math.round(
        clamp(0.6 * up, 12, room < 480 ? 24 : 44));  // the last label leans over the edge
    const w = Math.floor(Math.min(room - left - right, 64 * keys));
    const tallest = Math.min(w, Math.max(280, window.innerHeight - 300), 64 * queries);
    const h = Math.floor(clamp((w * queries) / keys, Math.min(64, 64 * queries), tallest));
    this.geometry = { left, top, w, h, width: room, height: top + h + 12 };
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(room * ratio);
    this.canvas.height = Math.round(this.geometry.height * ratio);
    this.canvas.style.height = `${this.geometry.height}px`;
    this.draw();
  }

  scale() {
    const { source } = shown, { w, h } = this.geometry;
    const tiles = levelOf(source, this.window(), w, h) === "tiles";
    const top = source.difference ? differenceOf(state.layer, state.head) || source.largest()
        : state.same              ? 1
        : tiles                   ? source.topTile(state.tile)
                                  : this.topCell();
    return new Scale({
      bend: state.bend,
      top,
      difference: source.difference,
      beyond: !source.difference && top < (tiles ? 1 : source.largest())
    });
  }

  // The end of the cells' colour scale: the largest weight of a small head; of others, as for
  // tiles, all but the highest 1/200 of the cells in view, so that the first rows of a causal head
  // leave the others their colours. Until the view is computed the end stays as it was.
  topCell() {
    const { source } = shown, { i0, i1, j0, j1 } = cellsOf(this.window(), source);
    if (source.queries * source.keys <= kSmall) return source.largest();
    const key = String([i0, i1, j0, j1]);
    if (this.top.key !== key && this.blocks.has(i0, i1, j0, j1)) {
      const step = Math.ceil(Math.sqrt(((i1 - i0) * (j1 - j0)) / kSample)), values = [];
      for (let i = i0; i < i1; i += step)
        for (let j = j0; j < j1; j += step) values.push(this.blocks.value(i, j));
      this.top = { key, value: highest(Float32Array.from(values).filter((value) => value >= 0)) };
    }
    return this.top.value ?? (source.tiles ? source.topTile(state.tile) : source.largest());
  }

  view() {
    return {
      source: shown.source,
      blocks: this.blocks,
      scale: this.scale(),
      tile: state.tile,
      window: this.window(),
      hover: this.hover,
      cell: this.inside(state.cell),
      chosen: state.chosen,
      reverse: state.reverse,
      queryToken,
      keyToken
    };
  }

  inside(cell) {
    const { queries, keys } = shown.source;
    return cell && cell[0] < queries && cell[1] < keys ? cell : null;
  }

  draw() {
    this.canvas.dataset.whole = "false";
    if (this.pending || !this.geometry) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      if (shown.source && this.blocks) this.paint();
    });
  }

  paint() {
    const { source } = shown, { w, h, width, height } = this.geometry, window = this.window();
    const level = levelOf(source, window, w, h), { i0, i1, j0, j1 } = cellsOf(window, source);
    const whole = level === "tiles" || this.blocks.want(i0, i1, j0, j1);
    const context = this.canvas.getContext("2d"), ratio = this.canvas.width / width,
          view = this.view();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    paintMap(context, this.geometry, view);
    this.canvas.dataset.level = level;
    this.canvas.dataset.whole = String(whole);
    if (whole && !performance.getEntriesByName("drawn").length) performance.mark("drawn");
    this.canvas.classList.toggle("zoomed", state.zoom !== null);
    this.tellLevel(level, i1 - i0, j1 - j0);
    this.drawLegend(view.scale);
  }

  tellLevel(level, queries, keys) {
    const { source } = shown, tiles = source.tiles;
    let words = level === "merged" ? say("level_merged", { queries, keys }) : "";
    if (level === "tiles") {
      words = say("level_tiles", { queries: tiles.queries, keys: tiles.keys });
      if (state.p < 1 || state.renormalise) words += " " + say("level_filter");
    }
    if (!source.exact && (state.p < 1 || state.renormalise)) words += " " + say("needs_exact");
    if (this.level.textContent !== words) fill(this.level, words);
  }

  drawLegend(scale) {
    const { source } = shown;
    const key = JSON.stringify([
      scale.bend, scale.top, scale.difference, scale.beyond, scale.ramp[128], state.language,
      source.windows.length
    ]);
    if (this.legendKey === key) return;
    this.legendKey = key;
    const ramp = element("canvas", { width: 256, height: 1, "aria-hidden": "true", class: "ramp" });
    const context = ramp.getContext("2d"), image = context.createImageData(256, 1);
    new Uint32Array(image.data.buffer).set(scale.ramp);
    context.putImageData(image, 0, 0);
    const ticks = [0, 0.25, 0.5, 0.75, 1].map(
        (y) => element(
            "span", {}, y === 1 && scale.beyond ? "≥ " : "",
            scale.difference ? signed(scale.value(y), 2) : number(scale.value(y), 2)));
    const swatch = (name) => element(
        "span", { class: "swatch-label" }, element("span", { class: `swatch ${name}` }),
        say(`legend_${name}`));
    fill(
        this.legend,
        element("div", { class: "ramp-box" }, ramp, element("div", { class: "ticks" }, ticks)),
        element(
            "div", { class: "swatches" }, swatch("hidden"), swatch("filtered"),
            this.note.textContent ? swatch("nan") : null,
            source.windows.length ? swatch("window") : null));
  }

  // The cell under the pointer, here or in the text; whoever listens hears of it.
  point(cell) {
    if (String(cell) === String(this.hover)) return;
    this.hover = cell && this.inside(cell);
    this.tell();
    this.draw();
    this.pointed?.(this.hover);
  }

  // Says what is under the pointer, or in the chosen cell.
  tell() {
    const at = this.hover ?? this.inside(state.cell);
    if (!at) return fill(this.readout, say("point_at"));
    const [i, j] = at, cell = shown.source.cell(i, j);
    Object.assign(
        this.readout.dataset, { query: i, key: j, weight: String(cell.weight), kind: cell.kind });
    const value = Number.isNaN(cell.weight) ? say("nan")
        : shown.source.difference           ? signed(cell.weight)
                                            : number(cell.weight);
    const more = cell.a !== undefined ? `${number(cell.b)} − ${number(cell.a)}`
        : cell.kind === "about"  ? say("about_is", {
             queries: shown.source.tiles?.queries,
             keys: shown.source.tiles?.keys,
             maximum: number(cell.maximum)
          })
        : cell.kind === "hidden" ? say(`hidden_${cell.reason}`)
        : cell.kind === "filtered" ? say("filtered_is", { weight: number(cell.before ?? 0) })
        : cell.before !== undefined && cell.before !== cell.weight
        ? say("renormalised_is", { weight: number(cell.before) })
        : "";
    fill(
        this.readout,
        element(
            "span", { class: "pair" }, placeElement(i, "query"),
            element("span", { class: "muted" }, " → "), placeElement(j, "key")),
        element(
            "span", { class: "value figure" },
            cell.kind === "hidden" || cell.kind === "filtered" ? "—" : value),
        element(
            "span",
            { class: `kind ${cell.kind}`, title: cell.kind === "exact" ? say("exact_is") : null },
            say(cell.kind)),
        more ? element("span", { class: "muted" }, more) : null);
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect(), { left, top, w, h } = this.geometry;
    const x = event.clientX - box.left - left, y = event.clientY - box.top - top;
    const [q0, q1, k0, k1] = this.window(), { queries, keys } = shown.source;
    const i = Math.floor(q0 + (y / h) * (q1 - q0)), j = Math.floor(k0 + (x / w) * (k1 - k0));
    return {
      i: clamp(i, 0, queries - 1),
      j: clamp(j, 0, keys - 1),
      x,
      y,
      onPlot: x >= 0 && y >= 0 && x < w && y < h,
      onRows: x < 0 && y >= 0 && y < h,
      onColumns: y < 0 && x >= 0 && x < w
    };
  }

  // Zooms by a factor about a point of the plot given as shares of its sides.
  zoomBy(factor, across = 0.5, down = 0.5) {
    const { queries, keys } = shown.source, [q0, q1, k0, k1] = this.window();
    const span = (from, to, all, share) => {
      const size = clamp((to - from) * factor, Math.min(kLeast, all), all);
      const begin = clamp(from + (to - from - size) * share, 0, all - size);
      return [begin, begin + size];
    };
    const next = [...span(q0, q1, queries, down), ...span(k0, k1, keys, across)];
    const all = next[1] - next[0] >= queries && next[3] - next[2] >= keys;
    choose({ zoom: all ? null : next });
  }

  pan(rows, columns) {
    const { queries, keys } = shown.source, [q0, q1, k0, k1] = this.window();
    const dq = clamp(rows, -q0, queries - q1), dk = clamp(columns, -k0, keys - k1);
    if (state.zoom && (dq || dk)) choose({ zoom: [q0 + dq, q1 + dq, k0 + dk, k1 + dk] });
  }

  // Moves the view so that a cell is in it.
  reveal(i, j) {
    const [q0, q1, k0, k1] = this.window();
    const need = (n, from, to) => (n < from ? n - from : n + 1 > to ? n + 1 - to : 0);
    this.pan(need(i, q0, q1), need(j, k0, k1));
  }

  choose(i, j, add) {
    const n = state.reverse ? j : i, others = state.chosen.filter((each) => each !== n);
    const chosen = !add            ? [n]
        : state.chosen.includes(n) ? others
                                   : [...others, n].sort((a, b) => a - b);
    choose({ cell: [i, j], chosen });
  }
}
