// The legend below the map: what its colour bar means, and the marks that are no number.
import {element, fill} from "./dom.js";
import {normsShown, runName, shown} from "./page.js";
import {state} from "./state.js";
import {say} from "./text.js";
import {isWeighted} from "./values.js";

export class Legend {
  constructor() {
    this.root = element("div", { class: "legend" });
    this.meaning = element("p", { class: "fine scale-is" });
    this.key = "";
  }

  // Anew at the next draw(): after a change of the colours.
  forget() { this.key = ""; }

  draw(scale, { nan, tiles, corners, striped, unknown }) {
    const { source } = shown, { bend, top, difference, known, beyond } = scale;
    const marks = ["hidden", "filtered"];
    if (tiles) marks.push((corners ? "tile" : "plain") + (striped ? "_striped" : ""));
    if (unknown) marks.push("unknown");
    if (source.windows.length) marks.push("window");
    if (nan) marks.push("nan");
    const key = JSON.stringify([
      bend, top, difference, known, beyond, scale.ramp[128], state.language, state.same, marks,
      isWeighted(source)
    ]);
    if (this.key === key) return;
    this.key = key;
    const swatch = (name) => element(
        "span", { class: "swatch-label" }, element("span", { class: `swatch ${name}` }),
        say(`legend_${name}`));
    fill(this.root, marks.map(swatch));
    fill(this.meaning, this.means(scale));
  }

  // What the ends of the scale are.
  means({ difference, known }) {
    if (difference && isWeighted(shown.source))
      return say("scale_difference_norms", { b: runName(1) });
    if (difference && !known) return say("scale_difference_unknown", { b: runName(1) });
    if (difference)
      return say(state.same ? "scale_difference" : "scale_difference_own", { b: runName(1) });
    if (isWeighted(shown.source))
      return say(normsShown() === "output_norm" ? "scale_output" : "scale_values");
    return say(state.same ? "scale_same" : "scale_own");
  }
}
