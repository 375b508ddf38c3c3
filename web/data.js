// The data that stands in the page: JSON that describes it, and blobs (base64 of deflate-raw bytes)
// that are unpacked when a view first needs them. Everything is checked here, once; what is broken
// becomes a PageError whose words are shown on the page.
import {say} from "./text.js";

export class PageError extends Error {}

// In place of a number: what the mask hides, what a filter leaves out, and what only its tile tells
// about. Far below every weight, difference, and either of them times a norm.
export const HIDDEN = -(2 ** 120);
export const FILTERED = 2 * HIDDEN;
export const UNKNOWN = 4 * HIDDEN;

export function isMark(value) { return value <= HIDDEN; }

export function readPage() {
  const node = document.getElementById("data");
  if (!node) throw new PageError(say("error_no_data"));
  let page;
  try {
    page = JSON.parse(node.textContent);
  } catch (error) {
    throw new PageError(say("error_json", { what: error.message }));
  }
  if (page === null || typeof page !== "object" || !/^attend\.view\/2\b/.test(page.format ?? "")) {
    throw new PageError(say("error_format", { found: String(page?.format ?? "?") }));
  }
  page.notes = Array.isArray(page.notes) ? page.notes.map(String) : [];
  page.runs = Array.isArray(page.runs) ? page.runs.slice(0, 2) : [];
  if (page.runs.length === 0) throw new PageError(say("error_no_runs"));
  for (const run of page.runs) {
    run.layers = Array.isArray(run.layers) ? run.layers : [];
    run.special = Array.isArray(run.special) ? run.special : [];
    if (!Array.isArray(run.tokens)) run.tokens = null;
    if (!Array.isArray(run.key_tokens)) run.key_tokens = null;
  }
  return page;
}

// log8: byte 0 is 0, byte n is 2^((n - 255) / 8).
const kLog8 = Float32Array.from({ length: 256 }, (_, n) => (n === 0 ? 0 : 2 ** ((n - 255) / 8)));

// Between which numbers lies what log8 rounded to `value`: half a step, 2^(1/16), to either side;
// whatever is below the smallest step but 0 was rounded up to it.
export function log8Range(value) {
  if (Number.isNaN(value)) return [0, 1];  // a tile with a row that is not a number
  if (!(value > 0)) return [0, 0];
  return [value <= kLog8[1] ? 0 : value * 2 ** (-1 / 16), Math.min(1, value * 2 ** (1 / 16))];
}

// log16: n is 2^(-n / 2048), 65535 is 0.
const kLog16 = new Float32Array(65536);
for (let n = 0; n < 65535; ++n) kLog16[n] = n < 2048 ? 2 ** (-n / 2048) : kLog16[n - 2048] / 2;

// The relative error of what log16 rounded, half a step; what is below its last half step became 0.
export const kLog16Error = 2 ** (1 / 4096) - 1;
export const kLog16Least = 2 ** (-65534.5 / 2048);

const kLeastHalf = 2 ** -25;  // f16: half of the least step above 0

// What a number of a blob may be off by: rounding is in proportion, but not next to 0. There an f16
// has steps of 2^-24, and a log16 of 0 is anything below the least that it can tell.
export function offOf({type, scale = 1}, value) {
  if (type === "f16") return Math.max(2 ** -11 * Math.abs(value), kLeastHalf);
  if (type === "log16") return value === 0 ? scale * kLog16Least : kLog16Error * Math.abs(value);
  return 0;
}

function halves(bytes) {
  if (typeof Float16Array !== "undefined") return new Float32Array(new Float16Array(bytes.buffer));
  const bits = new Uint16Array(bytes.buffer);
  return Float32Array.from(bits, (h) => {
    const exponent = (h >> 10) & 31, fraction = h & 1023, sign = h & 0x8000 ? -1 : 1;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024)
                    : sign * fraction * 2 ** -24;
  });
}

const kDecoders = {
  f32: (bytes) => new Float32Array(bytes.buffer),
  f16: halves,
  bf16: (bytes) => {
    const bits = new Uint16Array(bytes.buffer), wide = new Uint32Array(bits.length);
    for (let n = 0; n < bits.length; ++n) wide[n] = bits[n] << 16;
    return new Float32Array(wide.buffer);
  },
  i32: (bytes) => new Int32Array(bytes.buffer),
  u16: (bytes) => new Uint16Array(bytes.buffer),
  u8: (bytes) => bytes,
  bits: (bytes) => bytes,  // looked up bit by bit
  log8: (bytes) => {
    const weights =
        new Float32Array(bytes.length);  // a plain loop: twenty times faster than from()
    for (let n = 0; n < bytes.length; ++n) weights[n] = kLog8[bytes[n]];
    return weights;
  },
  log16: (bytes, { scale = 1 }) => {
    const bits = new Uint16Array(bytes.buffer), numbers = new Float32Array(bits.length);
    for (let n = 0; n < bits.length; ++n) numbers[n] = scale * kLog16[bits[n]];
    return numbers;
  },
};
const kBitsOf = {
  f32: 32,
  f16: 16,
  bf16: 16,
  log16: 16,
  i32: 32,
  u16: 16,
  u8: 8,
  log8: 8,
  bits: 1
};

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text), bytes = new Uint8Array(binary.length);
  for (let n = 0; n < binary.length; ++n) bytes[n] = binary.charCodeAt(n);
  return bytes;
}

async function inflate(reference) {
  const node = document.getElementById(`blob-${reference.blob}`);
  if (!node) throw new PageError(say("error_blob_missing", { blob: reference.blob }));
  if (typeof DecompressionStream === "undefined") throw new PageError(say("error_old_browser"));
  const size = reference.shape.reduce((product, n) => product * n, 1);
  let bytes;
  try {
    const { readable, writable } = new DecompressionStream("deflate-raw"),
                               writer = writable.getWriter();
    const written = writer.write(fromBase64(node.textContent.trim())).then(() => writer.close());
    const [buffer] = await Promise.all([new Response(readable).arrayBuffer(), written]);
    bytes = new Uint8Array(buffer);
  } catch {
    throw new PageError(say("error_blob_broken", { blob: reference.blob }));
  }
  const expected = Math.ceil((size * kBitsOf[reference.type]) / 8);
  if (bytes.length !== expected) {
    throw new PageError(
        say("error_blob_size", { blob: reference.blob, expected, found: bytes.length }));
  }
  return kDecoders[reference.type](bytes, reference);
}

const unpacked = new Map();

// The numbers of a blob, or null where there is none. Unpacked once, however many ask.
export function unpack(reference) {
  if (reference === null || reference === undefined) return Promise.resolve(null);
  if (!(reference.type in kDecoders) || !Array.isArray(reference.shape)) {
    return Promise.reject(new PageError(say("error_blob_type", { found: String(reference.type) })));
  }
  if (!unpacked.has(reference.blob)) unpacked.set(reference.blob, inflate(reference));
  return unpacked.get(reference.blob);
}

// The tiles of a layer: what the overview needs, and no more. Null if it has none.
export async function tilesOf(layer) {
  const tiles = layer.tiles;
  if (!tiles) return null;
  const [mean, maximum, visible] =
      await Promise.all([tiles.mean, tiles.maximum, tiles.visible].map(unpack));
  const { rows, columns, queries, keys } = tiles;
  const sound = mean && mean.length === layer.heads * rows * columns &&
      rows * queries >= layer.queries && columns * keys >= layer.keys;
  if (!sound) throw new PageError(say("error_tiles", { layer: layer.name }));
  return {
    rows,
    columns,
    queries,
    keys,
    mean,
    maximum,
    visible,
    visibleHeads: visible ? visible.length / (rows * columns) : 0
  };
}

// The stored rows of a layer: { from, count, k, keys, weights, none (the key that is none) }, or
// null.
async function rowsOf(layer) {
  const { rows } = layer;
  if (!rows) return null;
  const [keys, weights] = await Promise.all([rows.keys, rows.weights].map(unpack));
  const { from, count, k } = rows, whole = [from, count, k].every(Number.isInteger);
  const sound = whole && from >= 0 && from + count <= layer.queries && keys && weights &&
      keys.length === layer.heads * count * k && weights.length === keys.length;
  if (!sound) throw new PageError(say("error_rows", { layer: layer.name }));
  return { from, count, k, keys, weights, none: rows.keys.type === "u16" ? 65535 : -1 };
}

// Mean and maximum over the heads of a layer as the tiles of one head; null without.
export async function overHeadsOf(layer, which) {
  const over = layer.over_heads, tiles = over && (await tilesOf(layer));
  if (!tiles) return null;
  const plane = await unpack(over[which]), { rows, columns } = tiles, visible = tiles.visible;
  if (plane?.length !== rows * columns)
    throw new PageError(say("error_tiles", { layer: layer.name }));
  const seen = visible && new Uint8Array(rows * columns);
  visible?.forEach((value, n) => {
    seen[n % seen.length] = Math.max(seen[n % seen.length], value);
  });
  return {...tiles, mean: plane, maximum: null, visible: seen, visibleHeads: 1 };
}

const kParts = ["q", "k", "lse", "mask", "bias", "maximum", "value_norm", "output_norm"];
const opened = new WeakMap(), openedRows = new WeakMap();

// What the map needs of a layer, checked against its shape; v, entropy and mass are unpacked by who
// shows them.
export function openLayer(layer) {
  if (!opened.has(layer)) opened.set(layer, openParts(layer, kParts));
  return opened.get(layer);
}

// What is needed to tell single weights and what they are at most: rows, windows and tiles, without
// q and k.
export function openStored(layer) {
  if (!openedRows.has(layer)) openedRows.set(layer, openParts(layer, ["lse", "mask"]));
  return openedRows.get(layer);
}

// What is needed to draw tiles, and to know which of them have rows that are not numbers; of the
// rows only where they begin.
export async function openTiles(layer, tiles = tilesOf(layer)) {
  const parts = await Promise.all([tiles, unpack(layer.lse), entropyOf(layer)]);
  const [own, lse, entropy] = parts;
  return { tiles: own, lse, entropy, rows: layer.rows, windows: [] };
}

// Where lse is not there for every row, entropy tells which of them are not numbers; else null.
async function entropyOf(layer) {
  if ((layer.lse?.shape?.[1] ?? 0) >= layer.queries) return null;
  const entropy = await unpack(layer.entropy).catch(() => null);
  return entropy?.length === layer.heads * layer.queries ? entropy : null;
}

async function openParts(layer, names) {
  const arrays = await Promise.all(names.map((name) => unpack(layer[name])));
  const open = Object.fromEntries(names.map((name, n) => [name, arrays[n]]));
  const { heads, key_heads: keyHeads, queries, keys, d } = layer;
  const sizes = {
    q: heads * queries * d,
    k: keyHeads * keys * d,
    lse: heads * (layer.lse?.shape?.[1] ?? queries),
    maximum: heads * queries,
    value_norm: keyHeads * keys,
    output_norm: heads * keys
  };
  for (const [name, size] of Object.entries(sizes)) {
    if (open[name] && open[name].length !== size) {
      throw new PageError(say(
          "error_shape", { layer: layer.name, name, expected: size, found: open[name].length }));
    }
  }
  open.entropy = await entropyOf(layer);
  [open.rows, open.tiles] = await Promise.all([rowsOf(layer), tilesOf(layer)]);
  open.windows = await Promise.all(
      (layer.windows ??
       []).map(async (window) => ({...window, weights: await unpack(window.weights) })));
  return open;
}
