// One head: the map with its rulers, zoom, the values under the pointer and the legend.
import {Blocks} from "./blocks.js";
import {Scale} from "./colour.js";
import {differenceOf} from "./compare.js";
import {clamp, element, fill, scores} from "./dom.js";
import {Gestures} from "./gestures.js";
import {metricNames, metricsOf} from "./grid.js";
import {highest, kSmall} from "./head.js";
import {Legend} from "./legend.js";
import {headName, keyToken, labelOf, queryToken, shown} from "./page.js";
import {cellsOf, levelOf, paintMap} from "./paint.js";
import {tellCell} from "./readout.js";
import {labelWidth} from "./ruler.js";
import {choose, state} from "./state.js";
import {say} from "./text.js";

const kLeast = 8;       // cells: the closest zoom
const kSample = 65536;  // cells in view that are looked at for the colour scale

export class MapView {
  constructor(root) {
    this.root = root;
    this.hover = null;    // the cell under the pointer, here or in the text
    this.pointer = null;  // where the pointer is, if it is over the map
    this.title = element("h2", { id: "map-title" });
    this.label = element("p", { class: "label" });
    this.metrics = element("dl", { class: "metrics" });
    this.note = element("p", { class: "note", role: "status" });
    this.canvas = element(
        "canvas", { id: "map", tabindex: "0", role: "img", "aria-describedby": "readout level" });
    this.frame = element("div", { class: "map-frame" }, this.canvas);
    this.readout = element("p", { id: "readout", class: "readout", "aria-live": "polite" });
    this.level = element("p", { id: "level", class: "level" });
    this.legend = new Legend();
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
      figure ? element("span", { class: "figure" }, label.metric ? `${label.metric} ` : "", figure)
             : null,
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
    const differs = () =>
        (state.same ? differenceOf(null, null) : differenceOf(state.layer, state.head));
    const known = differs() > 0;  // not yet, or in layers of unequal sizes never
    const top = source.difference ? (known ? differs() : source.largest())
        : state.same              ? 1
        : tiles                   ? source.topTile(state.tile)
                                  : this.topCell();
    return new Scale({
      bend: state.bend,
      top,
      known,
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
    if (!source.exact && source.tiles) return source.topTile(state.tile);
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
    const tiles = level === "tiles" || (!source.exact && source.tiles);
    const unknown = !source.exact && !source.tiles;
    this.legend.draw(view.scale, { nan: Boolean(this.note.textContent), tiles, unknown });
    this.follow();
  }

  tellLevel(level, queries, keys) {
    const { source } = shown, tiles = source.tiles;
    let words = level === "merged" ? say("level_merged", { queries, keys }) : "";
    const sizes = { queries: tiles?.queries, keys: tiles?.keys, what: say(state.tile) };
    if (level === "tiles" || (!source.exact && tiles)) {
      words = say(source.exact ? "level_tiles" : "level_only_tiles", sizes);
      if (source.exact && (state.p < 1 || state.renormalise)) words += " " + say("level_filter");
    }
    if (!source.exact && (state.p < 1 || state.renormalise)) words += " " + say("needs_exact");
    if (this.level.textContent !== words) fill(this.level, words);
  }

  // The cell under the pointer, here or in the text; whoever listens hears of it.
  point(cell) {
    if (String(cell) === String(this.hover)) return;
    this.hover = cell && this.inside(cell);
    this.tell();
    this.draw();
    this.pointed?.(this.hover);
  }

  // The view moved under the pointer: what is there now?
  follow() {
    if (!this.pointer || !shown.source) return;
    const { clientX, clientY } = this.pointer;
    if (document.elementFromPoint(clientX, clientY) !== this.canvas) return this.leave();
    const { i, j, onPlot } = this.cellAt(this.pointer);
    this.point(onPlot ? [i, j] : null);
  }

  // The pointer is no longer over the map.
  leave() {
    this.pointer = null;
    if (shown.source) this.point(null);
  }

  // Says what is under the pointer, or in the chosen cell.
  tell() { tellCell(this.readout, this.hover ?? this.inside(state.cell)); }

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

  // Zooms by a factor about the chosen cell, if it is in view, else about the middle.
  zoomHere(factor) {
    const [q0, q1, k0, k1] = this.window(), [i, j] = this.inside(state.cell) ?? [-1, -1];
    // Shares of what is left beside the cell, so that all of it stays in view.
    const across = (j - k0) / Math.max(1, k1 - k0 - 1), down = (i - q0) / Math.max(1, q1 - q0 - 1);
    const within = (share) => share >= 0 && share <= 1;
    if (within(across) && within(down)) this.zoomBy(factor, across, down);
    else this.zoomBy(factor);
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
