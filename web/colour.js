// Colours of weights. Both scales change lightness in one direction only (weights) or in two from
// the middle (differences: blue and orange), so they can be told apart with any colour vision and
// in grey.
import {FILTERED, HIDDEN, UNKNOWN} from "./data.js";

const kSequential = {
  light: ["#f3f1ea", "#d3e2de", "#9cc8cd", "#5ba1bd", "#2f739f", "#1d4779", "#111f4b"],
  dark: ["#1b1e25", "#1d3350", "#235a7f", "#388ba4", "#77bfb3", "#cfe9bf", "#fffbe3"],
};
const kDiverging = {
  light: ["#0b3c7d", "#3f83bd", "#a5cbe2", "#f3f1ea", "#f6c18b", "#d9752b", "#8a3503"],
  dark: ["#9fd4ff", "#4a93cf", "#23507a", "#1b1e25", "#7a4317", "#cf7a2c", "#ffd09b"],
};

function channels(hex) { return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)); }

// 256 colours as 32-bit pixels (alpha first on little endian) from evenly spaced stops.
function ramp(stops) {
  const colours = stops.map(channels), pixels = new Uint32Array(256);
  for (let n = 0; n < 256; ++n) {
    const x = (n / 255) * (colours.length - 1), at = Math.min(Math.floor(x), colours.length - 2);
    const [r, g, b] =
        colours[at].map((low, c) => Math.round(low + (colours[at + 1][c] - low) * (x - at)));
    pixels[n] = (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  }
  return pixels;
}

const kRamps = {
  sequential: { light: ramp(kSequential.light), dark: ramp(kSequential.dark) },
  diverging: { light: ramp(kDiverging.light), dark: ramp(kDiverging.dark) },
};
const kNotANumber = {
  light: 0xff5b1ac2,
  dark: 0xff9c6cff
};  // magenta: on no scale
const kLeftOut = {
  light: 0xffffffff,
  dark: 0xff13110f
};  // as empty paper
const kUnknown = {
  light: 0xffc2c7c9,
  dark: 0xff453f3c
};  // grey: neither seen nor hidden

// A figure for a paper is drawn in colours of its own, whatever the reader's screen has.
const kFigureInk = {
  paper: "#ffffff",
  surface: "#ffffff",
  ink: "#000000",
  muted: "#3a3a3a",
  line: "#8a8a8a",
  hatch: "#cfcfcf",
  accent: "#000000",
  mark: "#0f6b6b",
  strip: "#8a8a8a",
  sans: "Helvetica, Arial, sans-serif",
  mono: "Menlo, Consolas, monospace"
};
let forFigure = false;

// Calls draw() with the colours of a figure.
export function asFigure(draw) {
  forFigure = true;
  try {
    return draw();
  } finally {
    forFigure = false;
  }
}

function theme() {
  return !forFigure && matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

// x in [0, 1] -> [0, 1]; log spans four decades.
const kBends = {
  linear: (x) => x,
  sqrt: Math.sqrt,
  log: (x) => (x <= 1e-4 ? 0 : 1 + Math.log10(x) / 4),
};
const kUnbends = {
  linear: (y) => y,
  sqrt: (y) => y * y,
  log: (y) => 10 ** (4 * (y - 1))
};

// A scale: pixel(value) for canvas, css(value) for elements, value(y) to label the legend.
export class Scale {
  constructor({ bend = "sqrt", top = 1, difference = false, known = false, beyond = false }) {
    // known: top is the largest difference; beyond: some values are above top
    Object.assign(this, { bend, top: top > 0 ? top : 1, difference, known, beyond });
    const now = theme();
    this.ramp = kRamps[difference ? "diverging" : "sequential"][now];
    this.nan = kNotANumber[now];
    this.leftOut = kLeftOut[now];
    this.unknown = kUnknown[now];
  }

  // Place on the legend, 0 to 1.
  place(value) {
    const x = Math.min(Math.abs(value) / this.top, 1), y = kBends[this.bend](x);
    return this.difference ? 0.5 + (value < 0 ? -y : y) / 2 : y;
  }

  value(y) {
    if (!this.difference) return this.top * kUnbends[this.bend](y);
    return Math.sign(y - 0.5) * this.top * kUnbends[this.bend](Math.abs(2 * y - 1));
  }

  pixel(value) {
    if (value === HIDDEN) return 0;  // transparent: the hatching below shows
    if (value === FILTERED) return this.leftOut;
    if (value === UNKNOWN) return this.unknown;
    if (Number.isNaN(value)) return this.nan;
    return this.ramp[Math.round(255 * this.place(value))];
  }

  css(value) { return cssColour(this.pixel(value)); }

  // Black or white, whichever has more contrast to the colour of this value: at least 4 to 1 on
  // both scales. dark: how light a colour is at most that has white.
  inkOn(value, dark = 0.18) {
    const pixel = this.pixel(value), linear = (shift) => (((pixel >> shift) & 255) / 255) ** 2.2;
    return 0.2126 * linear(0) + 0.7152 * linear(8) + 0.0722 * linear(16) > dark ? "#14161c"
                                                                                : "#ffffff";
  }
}

export function cssColour(pixel) {
  return `rgb(${pixel & 255}, ${(pixel >> 8) & 255}, ${(pixel >> 16) & 255})`;
}

const inks = {
  light: {},
  dark: {}
};

// A colour of the stylesheet, for canvas.
export function ink(name) {
  if (forFigure) return kFigureInk[name];
  const known = inks[theme()];
  known[name] ??= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  return known[name];
}

// A pixel with a share of a colour "#rrggbb" mixed in.
export function mixed(pixel, hex, share) {
  const other = channels(hex);
  const part = (shift, n) => Math.round(((pixel >> shift) & 255) * (1 - share) + other[n] * share)
      << shift;
  return (255 << 24 | part(16, 2) | part(8, 1) | part(0, 0)) >>> 0;
}
