// The legend of the map: the colours with their numbers, what the scale means, and the marks that
// are no number.
import {element, fill, number, signed} from "./dom.js";
import {runName, shown} from "./page.js";
import {state} from "./state.js";
import {say} from "./text.js";

export class Legend {
  constructor() {
    this.root = element("div", { class: "legend" });
    this.key = "";
  }

  // Anew at the next draw(): after a change of the colours.
  forget() { this.key = ""; }

  draw(scale, { nan, tiles, unknown }) {
    const { source } = shown, { bend, top, difference, known, beyond } = scale;
    const marks = ["hidden", "filtered"];
    if (tiles) marks.push("tile");
    if (unknown) marks.push("unknown");
    if (source.windows.length) marks.push("window");
    if (nan) marks.push("nan");
    const key = JSON.stringify(
        [bend, top, difference, known, beyond, scale.ramp[128], state.language, state.same, marks]);
    if (this.key === key) return;
    this.key = key;
    const ramp = element("canvas", { width: 256, height: 1, "aria-hidden": "true", class: "ramp" });
    const context = ramp.getContext("2d"), image = context.createImageData(256, 1);
    new Uint32Array(image.data.buffer).set(scale.ramp);
    context.putImageData(image, 0, 0);
    const ticks = [0, 0.25, 0.5, 0.75, 1].map(
        (y) => element(
            "span", {},
            y === 1 && beyond                              ? "≥ "
                : y === 0 && !difference && bend === "log" ? "≤ "
                                                           : "",
            difference ? signed(scale.value(y), 2) : number(scale.value(y), 2)));
    const swatch = (name) => element(
        "span", { class: "swatch-label" }, element("span", { class: `swatch ${name}` }),
        say(`legend_${name}`));
    fill(
        this.root,
        element(
            "div", { class: "ramp-box" }, ramp, element("div", { class: "ticks" }, ticks),
            element("p", { class: "fine scale-is" }, this.meaning(scale))),
        element("div", { class: "swatches" }, marks.map(swatch)));
  }

  // What the ends of the scale are.
  meaning({ difference, known }) {
    if (difference && !known) return say("scale_difference_unknown", { b: runName(1) });
    if (difference)
      return say(state.same ? "scale_difference" : "scale_difference_own", { b: runName(1) });
    return say(state.same ? "scale_same" : "scale_own");
  }
}
