// The rulers of the map: every token where there is room for it, else positions at round steps.
import {ink} from "./colour.js";
import {shortToken} from "./tokens.js";

const kPitch = 13;  // px that a label needs

// Labels of one side: [{ at (px), text, index }]. The window is [begin, end) on `length` px.
export function rulerLabels(begin, end, length, token) {
  const pixels = length / (end - begin), labels = [];
  const first = Math.max(0, Math.floor(begin));
  if (pixels >= kPitch) {
    for (let n = first; n < end; ++n) {
      labels.push({ at: (n + 0.5 - begin) * pixels, text: token(n), index: n });
    }
    return labels;
  }
  const step = roundStep((4 * kPitch) / pixels);
  for (let n = Math.ceil(first / step) * step; n < end; n += step) {
    labels.push({ at: (n + 0.5 - begin) * pixels, text: String(n), index: n, tick: true });
  }
  return labels;
}

// The next of 1, 2, 5, 10, 20, 50 ...
export function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least) ?? 10 * power;
}

// px that the widest label needs, of the first tokens: enough to tell how much room a ruler takes.
export function labelWidth(count, token) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `600 12px ${ink("sans")}`;
  let widest = context.measureText(String(count)).width;
  for (let n = 0; n < Math.min(count, 500); ++n) {
    widest = Math.max(widest, context.measureText(shortToken(token(n), 13)).width);
  }
  return widest;
}
