// One head: the map with its rulers, strips and colour bar, and the values under the pointer.
import {Blocks} from "./blocks.js";
import {unpack} from "./data.js";
import {clamp, element, fill, scores} from "./dom.js";
import {Gestures} from "./gestures.js";
import {Legend} from "./legend.js";
import {scaleOf} from "./mapscale.js";
import {keyToken, labelOf, queryToken, shown, shownHead} from "./page.js";
import {paintContent, paintMap} from "./paint.js";
import {cellsOf, cornerOf, hasCorners, levelOf, showsTiles, stripesOf, tileKind} from "./plot.js";
import {tellCell} from "./readout.js";
import {kTitle, labelWidth} from "./ruler.js";
import {metricNames, metricsOf} from "./scores.js";
import {choose, state} from "./state.js";
import {say} from "./text.js";
import {isWeighted} from "./values.js";
import {zoomWindow} from "./zoom.js";

const kBelow = 84;    // px of the legend and what it says below the map
const kNarrow = 480;  // px: below, the colour bar lies under the plot

export class MapView {
  constructor(root) {
    this.root = root;
    this.hover = null;    // the cell under the pointer, here or in the text
    this.pointer = null;  // where the pointer is, if it is over the map
    this.kept = {};       // the plot as it was drawn last
    this.strips = null;
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
    addEventListener("resize", () => this.layout());
  }

  // The source of the state: new blocks, new scale. Called after the head or a filter changed.
  show() {
    const { source, layer } = shown;
    this.hover = null;
    this.blocks = source ? new Blocks(source, () => this.draw()) : null;
    this.top = {};  // of the colour scale of cells, and the view it belongs to
    this.kept = {};
    this.root.classList.toggle("empty", !source);
    fill(this.note, shown.error || (source && this.hasNaN() ? say("note_nan") : ""));
    this.note.classList.toggle("error", Boolean(shown.error));
    if (!layer) return fill(this.title, say("map"));
    this.describe(layer);
    if (!source) return;
    this.canvas.setAttribute(
        "aria-label",
        say("map_label", { head: shownHead(), queries: source.queries, keys: source.keys }));
    this.openStrips().catch(() => {});  // broken numbers here cost only the strips
    this.layout();
    this.tell();
  }

  // Entropy of the rows and mass of the keys of the head, before filters; of a difference none.
  async openStrips() {
    const { head } = shown;
    this.strips = null;
    if (!head) return;
    const { layer, h } = head;
    const [entropy, mass] = await Promise.all([layer.entropy, layer.mass].map(unpack));
    if (head !== shown.head) return;
    const part = (all, n) =>
        (all?.length === layer.heads * n ? all.subarray(h * n, (h + 1) * n) : null);
    this.strips = { entropy: part(entropy, head.queries), mass: part(mass, head.keys) };
    this.draw();
  }

  hasNaN() {
    return shown.heads.flatMap((head) => head.heads ?? [head]).some((head) => {
      const { queries, d, h, open } = head, size = queries * d;
      for (let i = 0; i < queries; ++i)
        if (head.isNaN(i)) return true;
      return open.q?.subarray(h * size, (h + 1) * size).some(Number.isNaN);
    });
  }

  describe(layer) {
    fill(this.title, element("bdi", {}, shownHead()));
    this.title.title = shownHead();  // where it is cut off
    const one = state.over === "none", label = one ? labelOf(state.layer, state.head) : null;
    const figure = scores(label?.scores ?? [], 3);
    fill(this.label, label ? [element("strong", {}, label.text), " ",
      figure ? element("span", { class: "figure" }, label.metric ? `${label.metric} ` : "", figure)
             : null,
      label.definition ? element("span", { class: "definition" }, label.definition) : null] : []);
    fill(this.metrics, (one ? metricNames() : []).map((name) => {
      const values = metricsOf(state.layer, state.head, name);
      return element(
          "div", { title: say(`metric_${name}_is`) }, element("dt", {}, say(`metric_${name}`)),
          element("dd", { class: "figure", "data-metric": name }, scores(values, 3) || "–"));
    }));
  }

  window() { return zoomWindow(); }

  resize() {
    if (this.frame.clientWidth !== this.geometry?.width) this.layout();
  }

  // The plot is as wide as there is room, its cells at most 64 px, never taller than wide, and not
  // taller than what a screen shows of it together with the legend.
  layout() {
    if (!shown.source) return;
    const { queries, keys } = shown.source, room = this.frame.clientWidth, small = room < kNarrow;
    if (room === 0) return;
    const most = small ? 66 : 104, across = labelWidth(queries, queryToken),
          up = labelWidth(keys, keyToken), strip = small ? 12 : 18;
    const left = Math.round(clamp(across + 16, 36, most)) + kTitle,
          top = Math.round(clamp(0.8 * up + 20, 36, most - 12)) + kTitle;
    const right = small ? strip + 10 : strip + 84, bottom = strip + (small ? 50 : 8);
    const w = Math.floor(Math.min(room - left - right, 64 * keys));
    const above = this.frame.getBoundingClientRect().top + scrollY;
    const height =
        innerWidth < 1000 ? innerHeight - 300 : innerHeight - above - top - bottom - kBelow;
    const tallest = Math.min(w, Math.max(280, height), 64 * queries);
    const h = Math.floor(clamp((w * queries) / keys, Math.min(64, 64 * queries), tallest));
    const bar = small ? { x: left, y: top + h + strip + 12, w, h: 9 }
                      : { x: left + w + strip + 14, y: top + 20, w: 12, h: Math.max(40, h - 20) };
    this.geometry = { left, top, w, h, strip, bar, width: room, height: top + h + bottom };
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(room * ratio);
    this.canvas.height = Math.round(this.geometry.height * ratio);
    this.canvas.style.height = `${this.geometry.height}px`;
    this.draw();
  }

  scale() {
    const at = state.over === "none" ? [state.layer, state.head] : null;
    return scaleOf(shown.source, this.blocks, this.window(), this.geometry, at, this.top);
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
      keyToken,
      strips: this.strips,
      words: this.words(),
      marks: true
    };
  }

  // What the colours mean, in a word.
  words() {
    if (isWeighted(shown.source)) return say("norms_short");
    return say(shown.source.difference ? "difference" : "weight");
  }

  inside(cell) {
    const { queries, keys } = shown.source ?? {};
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
          view = this.view(), { scale } = view;
    const key = [
      window, w, h, ratio, scale.bend, scale.top, scale.ramp[200], view.tile, this.blocks.version
    ].join();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    paintMap(context, this.geometry, view, paintContent(ratio, this.kept, key));
    this.canvas.dataset.level = level;
    this.canvas.dataset.whole = String(whole);
    if (whole && !performance.getEntriesByName("drawn").length) performance.mark("drawn");
    this.canvas.classList.toggle("zoomed", state.zoom !== null);
    this.tellLevel(level, i1 - i0, j1 - j0);
    const nan = Boolean(this.note.textContent), grey = isWeighted(source);
    const tiles = showsTiles(source, level), { queries, keys } = source.tiles ?? {};
    const unknown = tiles ? grey : !source.exact;
    const leg = tiles && cornerOf((keys * w) / (j1 - j0), (queries * h) / (i1 - i0));
    const corners = leg > 0 && hasCorners(source);
    const striped = stripesOf(source, window, w, h) > 0;
    this.legend.draw(scale, { nan, tiles, corners, striped, unknown });
    this.follow();
    this.painted?.(view);
  }

  tellLevel(level, queries, keys) {
    const { source } = shown, tiles = source.tiles;
    let words = level === "merged" ? say("level_merged", { queries, keys }) : "";
    const sizes = { queries: tiles?.queries, keys: tiles?.keys, what: say(tileKind(source)) };
    if (showsTiles(source, level)) {
      const of = isWeighted(source) ? "_norms" : source.difference ? "_difference" : "";
      words = say((source.exact ? "level_tiles" : "level_only_tiles") + of, sizes);
    }
    if (this.level.textContent !== words) fill(this.level, words);
    this.limits?.(
        source.lacksRows                                    ? say("needs_exact")
            : source.needsRows && showsTiles(source, level) ? say("level_filter")
                                                            : "");
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
    const box = this.canvas.getBoundingClientRect(), { left, top, w, h, strip } = this.geometry;
    const x = event.clientX - box.left - left, y = event.clientY - box.top - top;
    const [q0, q1, k0, k1] = this.window(), { queries, keys } = shown.source;
    const i = Math.floor(q0 + (y / h) * (q1 - q0)), j = Math.floor(k0 + (x / w) * (k1 - k0));
    return {
      i: clamp(i, 0, queries - 1),
      j: clamp(j, 0, keys - 1),
      x,
      y,
      onPlot: x >= 0 && y >= 0 && x < w && y < h,
      onRows: (x < 0 || (x > w && x < w + strip + 6)) && y >= 0 && y < h,
      onColumns: (y < 0 || (y > h && y < h + strip + 6)) && x >= 0 && x < w
    };
  }

  choose(i, j, add) {
    const n = state.reverse ? j : i, others = state.chosen.filter((each) => each !== n);
    const chosen = !add            ? [n]
        : state.chosen.includes(n) ? others
                                   : [...others, n].sort((a, b) => a - b);
    choose({ cell: [i, j], chosen });
  }
}
