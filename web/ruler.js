// The rulers of the map: every token where there is room for it, else positions at round steps.
import {ink} from "./colour.js";
import {shortToken} from "./tokens.js";

export const kTitle = 14;     // px of the name of an axis
const kPitch = 13;            // px that a label needs
const kLean = Math.PI / 3.4;  // of the labels above the columns

// Labels of one side: [{ at (px), text, index }]. The window is [begin, end) on `length` px.
function rulerLabels(begin, end, length, token) {
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
    labels.push({ at: (n + 0.5 - begin) * pixels, text: String(n), index: n });
  }
  return labels;
}

// The next of 1, 2, 5, 10, 20, 50 ...
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least) ?? 10 * power;
}

const widths = new Map();  // of labels, px

// px that the widest label needs, of the first tokens: enough to tell how much room a ruler takes.
export function labelWidth(count, token) {
  const context = document.createElement("canvas").getContext("2d");
  const font = context.font = `600 12px ${ink("sans")}`;
  let widest = context.measureText(String(count)).width;
  for (let n = 0; n < Math.min(count, 500); ++n) {
    const words = token(n), label = `${font} ${words}`;
    if (!widths.has(label)) widths.set(label, context.measureText(shortToken(words, 13)).width);
    widest = Math.max(widest, widths.get(label));
  }
  return widest;
}

// Both rulers, around the plot. The row and column of the cell under the pointer are always named;
// chosen queries (or keys) are in the accent.
export function paintRulers(context, {left, top, w, h, bar}, view) {
  const [q0, q1, k0, k1] = view.window, [row, column] = view.hover ?? view.cell ?? [-1, -1];
  const title = bar ? kTitle : 0;  // px that the name of the axis takes
  const chosen = new Set(view.chosen), small = left - title < 80, size = small ? 11 : 12;
  const write = (label, isChosen, x, y, most) => {
    context.fillStyle = ink(isChosen ? "accent" : label.strong ? "ink" : "muted");
    context.font = `${label.strong || isChosen ? "600 " : ""}${size}px ${ink("sans")}`;
    context.fillText(shortToken(label.text, small ? 8 : 13), x, y, most);
  };
  context.textBaseline = "middle";
  clipped(context, 0, top - 8, left, h + 16, () => {
    context.textAlign = "right";
    for (const label of namedLabels(q0, q1, h, view.queryToken, row)) {
      write(
          label, !view.reverse && chosen.has(label.index), left - 8, top + label.at,
          left - 12 - title);
    }
  });
  clipped(context, left - 10, 0, w + 80, top, () => {
    context.textAlign = "left";
    for (const label of namedLabels(k0, k1, w, view.keyToken, column)) {
      context.save();
      context.translate(left + label.at, top - 7);
      context.rotate(-kLean);
      write(
          label, view.reverse && chosen.has(label.index), 0, 0,
          (top - 12 - title) / Math.sin(kLean));
      context.restore();
    }
  });
}

function clipped(context, x, y, w, h, paint) {
  context.save();
  context.beginPath();
  context.rect(x, y, w, h);
  context.clip();
  paint();
  context.restore();
}

// The labels that lie on the ruler, the one of `index` (-1: none) among them and marked strong; its
// neighbours give way.
function namedLabels(begin, end, length, token, index) {
  const labels = rulerLabels(begin, end, length, token)
                     .map((label) => ({...label, strong: label.index === index }));
  if (index >= 0 && index >= begin - 1 && index < end && !labels.some((label) => label.strong)) {
    const at = (index + 0.5 - begin) * (length / (end - begin));
    const rest = labels.filter((label) => Math.abs(label.at - at) >= kPitch);
    labels.splice(0, labels.length, ...rest, { at, text: token(index), index, strong: true });
  }
  return labels.filter((label) => label.at >= -1 && label.at <= length + 1);
}
