// Along the edges of the map: the entropy of every row, the mass that every key receives, the
// names of the axes, and the colour bar. Drawn with fillRect and fillText alone.
import {cssColour, ink} from "./colour.js";
import {number, signed} from "./dom.js";
import {say} from "./text.js";

const kBarSteps = 64;  // of the colour bar

// Means of values over the pixels of a side, or one for each cell where cells are larger: calls
// use(from, to, mean) in px.
function runs(values, begin, end, length, use) {
  const step = (end - begin) / length, cells = step < 1;
  const count = cells ? Math.ceil(end) - Math.floor(begin) : length;
  for (let n = 0; n < count; ++n) {
    const from = cells ? Math.floor(begin) + n : Math.floor(begin + n * step);
    const to = cells ? from + 1 : Math.max(from + 1, Math.floor(begin + (n + 1) * step));
    let sum = 0;
    for (let at = from; at < to; ++at) sum += values[at] ?? 0;
    if (cells) use(Math.max(0, (from - begin) / step), Math.min(length, (to - begin) / step), sum);
    else use(n, n + 1, sum / (to - from));
  }
}

// view.strips: { entropy: of the rows, mass: of the keys }, either may be null.
export function paintStrips(context, {left, top, w, h, strip}, view) {
  const [q0, q1, k0, k1] = view.window, { entropy, mass } = view.strips ?? {};
  const nan = cssColour(view.scale.nan);
  // How long a bar is, in its colour: all of the strip for what is not a number.
  const bar = (share) => {
    context.fillStyle = Number.isNaN(share) ? nan : ink("strip");
    return Number.isNaN(share) ? strip : strip * Math.min(1, share);
  };
  context.font = `10px ${ink("sans")}`;
  if (entropy) {
    const most = Math.log(Math.max(2, view.source.keys));
    runs(entropy, q0, q1, h, (from, to, value) => {
      const gap = to - from > 6 ? 1 : 0, size = bar(value / most);
      if (size > 0) context.fillRect(left + w + 3, top + from + gap / 2, size, to - from - gap);
    });
  }
  if (mass) {
    const seen = mass.subarray(Math.floor(k0), Math.ceil(k1));
    const most = seen.reduce((a, b) => (b > a ? b : a), 0);
    runs(mass, k0, k1, w, (from, to, value) => {
      const gap = to - from > 6 ? 1 : 0, size = bar(value / (most || 1));
      if (size > 0) context.fillRect(left + from + gap / 2, top + h + 3, to - from - gap, size);
    });
  }
  context.fillStyle = ink("muted");
  context.textBaseline = "middle";
  context.textAlign = "right";
  if (mass) context.fillText(say("strip_mass"), left - 8, top + h + 3 + strip / 2);
  context.textAlign = "left";
  if (entropy && strip > 14)
    context.fillText(say("strip_entropy"), left + w + 3, top + h + 3 + strip / 2);
}

// "query" and "key" on the axes.
export function paintTitles(context, {left, top, w, h}) {
  context.fillStyle = ink("ink");
  context.font = `600 12px ${ink("sans")}`;
  context.textBaseline = "middle";
  context.textAlign = "center";
  context.fillText(say("key"), left + w / 2, 7);
  context.save();
  context.translate(7, top + h / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(say("query"), 0, 0);
  context.restore();
}

// What stands beside the colour bar: [place from 0 to 1, words].
export function ticksOf(scale) {
  const { difference, bend, beyond } = scale;
  return [0, 0.25, 0.5, 0.75, 1].map((y) => {
    const least = difference ? beyond : bend === "log";
    const sign = y === 1 && beyond ? "≥ " : y === 0 && least ? "≤ " : "";
    return [y, sign + (difference ? signed(scale.value(y), 2) : number(scale.value(y), 2))];
  });
}

// The colour bar: upright on the right, or lying below the plot where that is too narrow.
export function paintBar(context, {bar: {x, y, w, h}}, scale, words) {
  const upright = h > w;
  for (let n = 0; n < kBarSteps; ++n) {
    context.fillStyle = scale.css(scale.value((n + 0.5) / kBarSteps));
    const from = n / kBarSteps, more = n < kBarSteps - 1 ? 0.6 : 0;  // no seam between two steps
    if (upright)
      context.fillRect(x, y + h * (1 - from - 1 / kBarSteps) - more, w, h / kBarSteps + more);
    else context.fillRect(x + w * from, y, w / kBarSteps + more, h);
  }
  context.strokeStyle = ink("line");
  context.lineWidth = 1;
  context.strokeRect(x - 0.5, y - 0.5, w + 1, h + 1);
  context.fillStyle = ink("muted");
  context.font = `10px ${ink("mono")}`;
  context.textBaseline = "middle";
  for (const [at, text] of ticksOf(scale)) {
    if (!upright && w < 330 && at % 0.5) continue;  // they would overlap
    context.textAlign = upright || at === 0 ? "left" : at === 1 ? "right" : "center";
    if (upright) context.fillText(text, x + w + 4, y + h * (1 - at));
    else context.fillText(text, x + w * at, y + h + 8);
  }
  context.font = `10px ${ink("sans")}`;
  context.textAlign = upright ? "left" : "center";
  if (upright) context.fillText(words, x, y - 12);
  else context.fillText(words, x + w / 2, y + h + 21);
}
