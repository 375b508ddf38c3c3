// A whole text as a strip of colours: the largest value of each pixel, and below it, in a lower
// row, the largest mean of its tiles.
import {element} from "./dom.js";
import {kNumber, kTile} from "./shades.js";
import {say} from "./text.js";

const kMostWide = 1024;  // pixels

// shade(n) is { value, known } or null; tokens [from, to) are framed; go(n) where somebody clicked.
export function textStrip(count, shade, [from, to], scale, go) {
  const words = { "aria-label": say("text_strip"), title: say("text_strip") };
  const w = Math.min(count, kMostWide),
        canvas = element("canvas", { class: "strip", width: w, height: 4, role: "img", ...words });
  const context = canvas.getContext("2d"), image = context.createImageData(w, 4);
  const pixels = new Uint32Array(image.data.buffer);
  for (const [known, top] of [[kTile, 3], [kNumber, 0]]) {
    const best = new Float64Array(w).fill(NaN);
    for (let n = 0; n < count; ++n) {
      const at = Math.floor((n / count) * w), here = shade(n);
      if (here?.known === known && !(Math.abs(here.value) <= Math.abs(best[at])))
        best[at] = here.value;
    }
    best.forEach((here, x) => {
      if (Number.isNaN(here)) return;
      for (let y = top; y < 4; ++y) pixels[y * w + x] = scale.pixel(here);
    });
  }
  context.putImageData(image, 0, 0);
  const part = element("span", { class: "strip-part" });
  part.style.left = `${(100 * from) / count}%`;
  part.style.width = `${(100 * (to - from)) / count}%`;
  const click = (event) => {
    const box = canvas.getBoundingClientRect();
    go(((event.clientX - box.left) / box.width) * count);
  };
  return element("div", { class: "strip-box", onclick: click }, canvas, part);
}
