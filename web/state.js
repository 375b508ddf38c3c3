// What the reader has chosen: one object, the whole of it in the address (#layer=3&head=7...), so
// that a link shows the same page. Views listen; nobody keeps a choice of their own.
import {clamp} from "./dom.js";

export const kDefaults = {
  language: "en",
  show: "a",
  layer: 0,
  head: 0,
  over: "none",
  pins: [],
  zoom: null,
  cell: null,
  chosen: [],
  reverse: false,
  combine: "sum",
  p: 1,
  least: 0,
  far: 0,
  norms: false,
  noFirst: false,
  noSpecial: false,
  renormalise: false,
  pattern: "",
  bend: "sqrt",
  same: true,
  tile: "mean",
  sort: "order",
  colour: "selection",
  table: false,
};
const kChoices = {
  language: ["en", "zh"],
  show: ["a", "b", "difference"],
  over: ["none", "mean", "maximum"],
  combine: ["sum", "mean"],
  bend: ["linear", "sqrt", "log"],
  tile: ["mean", "maximum"],
};

export const state = {...kDefaults};
const listeners = [];
let writing = 0, defaults = kDefaults;

export function listen(listener) { listeners.push(listener); }

// Changes the state; listeners hear which keys changed.
export function choose(changes) {
  const changed = new Set();
  for (const [key, value] of Object.entries(changes)) {
    if (JSON.stringify(state[key]) === JSON.stringify(value)) continue;
    state[key] = value;
    changed.add(key);
  }
  if (changed.size === 0) return;
  clearTimeout(writing);  // browsers limit how often an address may change
  writing = setTimeout(writeAddress, 120);
  for (const listener of listeners) listener(changed);
}

// [2, 5, 6, 7] <-> "2,5-7"
function writeRanges(numbers) {
  const parts = [];
  for (let n = 0; n < numbers.length; ++n) {
    const first = numbers[n];
    while (numbers[n + 1] === numbers[n] + 1) ++n;
    parts.push(first === numbers[n] ? `${first}` : `${first}-${numbers[n]}`);
  }
  return parts.join(",");
}

function readRanges(text) {
  const numbers = new Set();
  for (const part of text.split(",")) {
    const match = /^(\d{1,9})(?:-(\d{1,9}))?$/.exec(part);
    if (!match) continue;
    const first = Number(match[1]), last = Math.min(Number(match[2] ?? first), first + 4095);
    for (let n = first; n <= last; ++n) numbers.add(n);
  }
  return [...numbers].sort((a, b) => a - b);
}

// "3.1,5.0": layer and head of those that are pinned.
const kMostPins = 6;

function readPins(text) {
  return [...new Set(text.split(",").filter((pin) => /^\d{1,5}\.\d{1,5}$/.test(pin)))].slice(
      0, kMostPins);
}

// With a head pinned, or no longer; the oldest gives way.
export function pinned(pins, layer, head) {
  const pin = `${layer}.${head}`;
  return pins.includes(pin) ? pins.filter((each) => each !== pin)
                            : [...pins, pin].slice(-kMostPins);
}

export function address() {
  const words = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (JSON.stringify(value) === JSON.stringify(defaults[key])) continue;
    if (key === "chosen") words.set(key, writeRanges(value));
    else if (key === "zoom") words.set(key, value.map((x) => Number(x.toFixed(3))).join(","));
    else if (typeof value === "boolean") words.set(key, value ? "1" : "0");
    else words.set(key, String(value));
  }
  return "#" + words.toString();
}

function writeAddress() {
  try {
    history.replaceState(null, "", address());
  } catch {
    // a page inside another (srcdoc) has no address of its own; "copy link" still tells it
  }
}

// What an address says; whatever makes no sense in it is passed over.
export function readAddress(hash) {
  const words = new URLSearchParams(hash.replace(/^#/, "")), read = {...defaults };
  const numbers = (text, count) => {
    const all = text.split(",").map(Number);
    return all.length === count && all.every(Number.isFinite) ? all : null;
  };
  for (const [key, text] of words) {
    if (!Object.hasOwn(kDefaults, key)) continue;
    if (Object.hasOwn(kChoices, key)) read[key] = kChoices[key].includes(text) ? text : read[key];
    else if (key === "chosen") read.chosen = readRanges(text);
    else if (key === "pins") read.pins = readPins(text);
    else if (key === "zoom") read.zoom = numbers(text, 4);
    else if (key === "cell")
      read.cell = numbers(text, 2)?.map((x) => Math.max(0, Math.floor(x))) ?? null;
    else if (typeof kDefaults[key] === "boolean") read[key] = text === "1";
    else if (typeof kDefaults[key] === "number") read[key] = Math.max(0, Number(text) || 0);
    else read[key] = text;
  }
  read.p = clamp(read.p || 1, 0.01, 1);
  read.least = clamp(read.least, 0, 1);
  return read;
}

// The first state: the page's own defaults, then the address.
export function startState(own) {
  defaults = {...kDefaults, ...own };
  Object.assign(state, readAddress(location.hash));
}
