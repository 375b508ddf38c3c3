// All heads at once as a matrix, a row a layer, a column a head, in the colours of their scores.
import {ink, Scale} from "./colour.js";
import {clamp, element} from "./dom.js";
import {headName, runOf} from "./page.js";
import {rankOf, scoreWords} from "./scores.js";
import {answerOf} from "./selection.js";
import {state} from "./state.js";
import {say} from "./text.js";

const kHigh = 170;  // px: of the matrix at most

export class Overview {
  // pick(layer, head): where somebody clicked
  constructor(pick) {
    this.canvas = element("canvas", { class: "matrix", role: "img" });
    this.root = element("div", { class: "overview" }, this.canvas);
    this.tell = () => {};
    this.by = "maximum";
    this.canvas.addEventListener("click", (event) => {
      const at = this.at(event);
      if (at) pick(at.layer, at.head);
    });
    this.canvas.addEventListener("pointermove", (event) => this.tell(this.words(this.at(event))));
    this.canvas.addEventListener("pointerleave", () => this.tell(""));
  }

  shape() {
    const layers = runOf(state.show).layers;
    return [layers.length, Math.max(0, ...layers.map((layer) => layer.heads ?? 0))];
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect(), [layers, heads] = this.shape();
    const layer = Math.floor(((event.clientY - box.top) / box.height) * layers),
          head = Math.floor(((event.clientX - box.left) / box.width) * heads);
    const own = runOf(state.show).layers[layer];
    return own && head >= 0 && head < own.heads ? { layer, head } : null;
  }

  words(at) {
    if (!at) return "";
    const name = headName(runOf(state.show).layers[at.layer], at.head);
    const metric = this.by === "selection" ? say("weight") : say(`metric_${this.by.split("@")[0]}`);
    return [name, metric, scoreWords(at.layer, at.head, this.by)].filter(Boolean).join(", ");
  }

  // by: a metric or "selection".
  draw(by) {
    const [layers, heads] = this.shape(), values = [];
    this.by = by;
    this.root.hidden = layers < 2 || heads < 2;
    if (this.root.hidden) return;
    for (let n = 0; n < layers * heads; ++n)
      values.push(rankOf(Math.floor(n / heads), n % heads, by));
    const known = values.filter(Number.isFinite);
    const difference = by === "selection" && state.show === "difference";
    this.scale = new Scale({ bend: "linear", top: Math.max(0, ...known), difference });
    this.values = values;
    this.mark();
    this.canvas.setAttribute("aria-label", say("overview_label", { layers, heads }));
  }

  // Draws at the next frame, when the width is known without another layout.
  mark() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.paint();
    });
  }

  // The matrix, and a frame about the head that is shown.
  paint() {
    if (this.root.hidden || !this.values) return;
    const [layers, heads] = this.shape(), w = this.root.clientWidth || 320;
    const x = w / heads, y = clamp(kHigh / layers, 5, 14), ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(w * ratio);
    this.canvas.height = Math.round(y * layers * ratio);
    this.canvas.style.height = `${y * layers}px`;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    this.values.forEach((value, n) => {
      if (Number.isNaN(value)) return;
      const layer = Math.floor(n / heads), head = n % heads, px = head * x, py = layer * y;
      const answer = this.by === "selection" ? answerOf(layer, head) : null;
      context.fillStyle = this.scale.css(answer?.bound ? 0 : answer?.value ?? value);
      context.fillRect(px, py, x - 1, y - 1);
      if (!answer?.bound) return;
      context.fillStyle = this.scale.css(answer.value);
      context.beginPath();
      context.moveTo(px + x - 1, py);
      context.lineTo(px + x - 1, py + y - 1);
      context.lineTo(px, py + y - 1);
      context.fill();
    });
    if (state.over !== "none") return;
    context.strokeStyle = ink("accent");
    context.lineWidth = 2;
    context.strokeRect(state.head * x, state.layer * y, x - 1, y - 1);
  }
}
