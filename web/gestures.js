// Pointer and keyboard on the map: wheel and pinch zoom about the pointer, a drag moves the view, a
// click chooses a cell, or on a ruler its query or key; arrows move the chosen cell.
import {clamp} from "./dom.js";
import {shown} from "./page.js";
import {choose, state} from "./state.js";
import {pan, reveal, zoomBy} from "./zoom.js";

export class Gestures {
  constructor(map) {
    this.map = map;
    this.pointers = new Map();  // those that are down, and where
    this.moved = false;         // since they came down: a drag, not a click
    this.listen();
  }

  listen() {
    const { canvas } = this.map;
    canvas.addEventListener("wheel", (event) => {
      if (!shown.source) return;
      const factor =
          Math.exp(clamp(event.deltaY * (event.deltaMode === 1 ? 30 : 1), -300, 300) / 400);
      if (factor > 1 && !state.zoom) return;  // all is shown already: the page scrolls
      event.preventDefault();
      const { x, y } = this.map.cellAt(event), { w, h } = this.map.geometry;
      zoomBy(factor, clamp(x / w, 0, 1), clamp(y / h, 0, 1));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !shown.source) return;
      this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      this.moved = this.pointers.size > 1;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => {
      if (!this.pointers.delete(event.pointerId) || this.moved || !shown.source) return;
      const { i, j, onPlot, onRows, onColumns } = this.map.cellAt(event);
      const add = event.shiftKey || event.ctrlKey || event.metaKey;
      if (onPlot) this.map.choose(i, j, add);
      else if (onRows || onColumns) {
        const n = onRows ? i : j, same = state.reverse === onColumns;
        const before = same && add ? state.chosen.filter((each) => each !== n) : [];
        choose({ reverse: onColumns, chosen: [...before, n].sort((a, b) => a - b) });
      }
    });
    canvas.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => {
      if (this.pointers.size === 0) this.map.leave();
    });
    addEventListener("scroll", () => this.map.follow(), { capture: true, passive: true });
    canvas.addEventListener("dblclick", () => choose({ zoom: null }));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  move(event) {
    if (!shown.source || !this.map.geometry) return;
    const last = this.pointers.get(event.pointerId), now = { x: event.clientX, y: event.clientY };
    if (event.pointerType !== "touch")
      this.map.pointer = { clientX: event.clientX, clientY: event.clientY };
    if (!last) {
      const { i, j, onPlot } = this.map.cellAt(event), hover = onPlot ? [i, j] : null;
      return this.map.point(hover);
    }
    const [q0, q1, k0, k1] = this.map.window(), { w, h } = this.map.geometry;
    if (this.pointers.size === 2) this.pinch(event.pointerId, now);
    else if (this.moved || Math.hypot(now.x - last.x, now.y - last.y) > 4) {
      this.moved = true;
      pan(((last.y - now.y) / h) * (q1 - q0), ((last.x - now.x) / w) * (k1 - k0));
    } else return;
    this.pointers.set(event.pointerId, now);
  }

  pinch(moving, now) {
    const [a, b] = [...this.pointers.entries()].map(
        ([id, at]) => ({ before: at, after: id === moving ? now : at }));
    const distance = (p, q) => Math.hypot(p.x - q.x, p.y - q.y);
    const factor = distance(a.before, b.before) / Math.max(1, distance(a.after, b.after));
    const middle = { clientX: (a.after.x + b.after.x) / 2, clientY: (a.after.y + b.after.y) / 2 };
    const { x, y } = this.map.cellAt(middle), { w, h } = this.map.geometry;
    zoomBy(factor, clamp(x / w, 0, 1), clamp(y / h, 0, 1));
  }

  key(event) {
    if (!shown.source || event.ctrlKey || event.metaKey || event.altKey) return;
    const { queries, keys } = shown.source, [q0, q1, k0, k1] = this.map.window();
    const [i, j] = this.map.inside(state.cell) ?? [Math.floor(q0), Math.floor(k0)];
    const moves = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      PageUp: [Math.round(q0 - q1), 0],
      PageDown: [Math.round(q1 - q0), 0],
      Home: [0, -j],
      End: [0, keys - 1 - j]
    };
    if (event.key in moves) {
      const [down, right] = moves[event.key];
      if (event.shiftKey && event.key.startsWith("Arrow"))
        pan(down * (q1 - q0) / 4, right * (k1 - k0) / 4);
      else {
        const next =
            state.cell ? [clamp(i + down, 0, queries - 1), clamp(j + right, 0, keys - 1)] : [i, j];
        this.map.leave();  // until the pointer moves again, the keys point
        choose({ cell: next });
        reveal(...next);
      }
    } else if (event.key === "Enter" || event.key === " ") this.map.choose(i, j, event.shiftKey);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
