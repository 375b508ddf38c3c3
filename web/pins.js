// Heads that are pinned, side by side below the map: the same part of each, the same cell marked,
// and the weight there.
import {within} from "./apart.js";
import {Blocks} from "./blocks.js";
import {PageError} from "./data.js";
import {element, fill} from "./dom.js";
import {scaleOf} from "./mapscale.js";
import {headName, headOf, labelOf, layersShown, shown, sourceOf} from "./page.js";
import {paintContent, paintMap} from "./paint.js";
import {cellsOf, levelOf} from "./plot.js";
import {cellFigure, differenceWords, isBounded, mostWords, outward} from "./readout.js";
import {choose, pinned, state} from "./state.js";
import {say} from "./text.js";

// A difference that lies between two numbers, as cards tell it.
function withinWords({ value, off, bound }) {
  return bound ? `± ${outward(Math.abs(value), Math.ceil)}` : differenceWords(value, off);
}

export class Pins {
  constructor(map) {
    this.map = map;
    this.root = element("div", { class: "pins" });
    this.parts = [];
    map.painted = (view) => this.draw(view);
  }

  // New sources: after a change of pins, run or filters.
  async show() {
    const places = state.pins.map((pin) => pin.split(".").map(Number));
    const parts = await Promise.all(places.map(([layer, head]) => this.part(layer, head)));
    if (String(places) !== String(state.pins.map((pin) => pin.split(".").map(Number)))) return;
    this.parts = parts.filter(Boolean);
    fill(this.root, this.parts.map(({ root }) => root));
    this.map.draw();
  }

  async part(layer, head) {
    const layers = layersShown(layer);
    if (layers.some((each) => !each || head >= each.heads)) return null;
    let source;
    try {
      source = sourceOf(await Promise.all(layers.map((each) => headOf(each, head))), shown.kept);
    } catch (error) {
      if (!(error instanceof PageError)) throw error;
      return null;
    }
    const canvas = element("canvas", { class: "pin-map", "aria-hidden": "true" });
    const value = element("span", { class: "figure" }), name = `L${layer}H${head}`;
    const full = headName(layers[0], head);
    const go = element(
        "button", {
          type: "button",
          class: "pin-name",
          title: full,
          onclick: () => choose({ layer, head, over: "none" })
        },
        element("strong", {}, name), " ", labelOf(layer, head)?.text ?? "");
    const close = element(
        "button", {
          type: "button",
          class: "icon small",
          "aria-label": say("unpin", { head: full }),
          title: say("unpin", { head: full }),
          onclick: () => choose({ pins: pinned(state.pins, layer, head) })
        },
        "×");
    const root = element(
        "div", { class: "pin", "data-pin": `${layer}.${head}` },
        element("div", { class: "pin-top" }, go, close), canvas, value);
    const part = { root, canvas, value, source, at: [layer, head], top: {}, kept: {} };
    part.blocks = new Blocks(source, () => this.map.draw());
    canvas.addEventListener("click", (event) => this.click(event, part));
    return part;
  }

  click(event, { canvas, source }) {
    const box = canvas.getBoundingClientRect(), [q0, q1, k0, k1] = this.map.window();
    const i = Math.floor(q0 + ((event.clientY - box.top) / box.height) * (q1 - q0)),
          j = Math.floor(k0 + ((event.clientX - box.left) / box.width) * (k1 - k0));
    if (i < source.queries && j < source.keys) this.map.choose(i, j, event.shiftKey);
  }

  // As the map was drawn: its window, hover and cell.
  draw(view) {
    const { geometry } = this.map, ratio = window.devicePixelRatio || 1;
    for (const part of this.parts) {
      const { canvas, source, blocks } = part;
      if (source.queries !== shown.source.queries || source.keys !== shown.source.keys) continue;
      const w = canvas.clientWidth || 200, h = Math.round((w * geometry.h) / geometry.w);
      const place = { left: 0, top: 0, w, h, plain: true };
      const cells = cellsOf(view.window, source);
      if (levelOf(source, view.window, w, h) !== "tiles")
        blocks.want(cells.i0, cells.i1, cells.j0, cells.j1);
      const scale = scaleOf(source, blocks, view.window, place, part.at, part.top);
      const key = [
        view.window, w, h, ratio, scale.bend, scale.top, scale.ramp[200], view.tile, blocks.version
      ].join();
      canvas.width = Math.round(w * ratio);
      canvas.height = Math.round(h * ratio);
      canvas.style.height = `${h}px`;
      const context = canvas.getContext("2d");
      context.scale(ratio, ratio);
      paintMap(
          context, place, {...view, source, blocks, scale }, paintContent(ratio, part.kept, key));
      part.value.textContent = this.words(source, view.hover ?? view.cell);
    }
  }

  words(source, at) {
    if (!at) return " ";
    const cell = source.cell(...at), start = `${at[0]} → ${at[1]}: `;
    if (isBounded(cell)) return start + mostWords(cell.most);
    if (cell.between) return start + withinWords(within(cell.between));
    if (cell.kind !== "exact") return start + say(cell.kind);
    return start + cellFigure(cell, source.difference);
  }
}
