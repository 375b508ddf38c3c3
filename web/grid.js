// All heads of all layers as thumbnails: one pixel a tile (of the difference of small heads, a
// cell), drawn when they come into sight. Sorted by layer or by a metric, with a bar in the
// metric's colour.
import {Scale} from "./colour.js";
import {differenceOf} from "./compare.js";
import {openLayer, PageError, tilesOf, unpack} from "./data.js";
import {clamp, element, fill, scores} from "./dom.js";
import {Difference} from "./filters.js";
import {Head, kSmall} from "./head.js";
import {headName, labelOf, layerName, layersShown, runOf, shown} from "./page.js";
import {choose, state} from "./state.js";
import {say} from "./text.js";

const kMetrics = [
  "entropy", "evenness", "maximum", "distance", "previous", "first", "diagonal", "local",
  "duplicate", "induction", "contribution"
];

// Metrics that the page has, for the lists.
export function metricNames() {
  const layers = shown.page.runs.flatMap((run) => run.layers);
  const names = kMetrics.filter((name) => layers.some((layer) => layer.metrics?.[name]));
  return state.show === "difference" ? [...names, "difference"] : names;
}

// The metric of a head in each run that is shown.
export function metricsOf(at, head, name) {
  if (name === "difference") return [differenceOf(at, head)];
  return layersShown(at).map((layer) => layer?.metrics?.[name]?.[head] ?? NaN);
}

// By what heads are sorted and coloured: the metric, or how much it changed between two runs.
function rankOf(at, head, name) {
  const [a, b] = metricsOf(at, head, name);
  return b === undefined ? a : Math.abs(b - a);
}

// Every head as { layer, head }, in the order of the state.
function orderedHeads() {
  const run = runOf(state.show), all = [];
  run.layers.forEach((layer, at) => {
    for (let head = 0; head < (layer.heads ?? 0); ++head) all.push({ layer: at, head });
  });
  if (state.sort === "order") return all;
  const value = ({ layer, head }) => rankOf(layer, head, state.sort);
  return all.map((each) => [each, value(each)])
      .sort(
          ([, a], [, b]) => (Number.isNaN(b) ? 0 : b) - (Number.isNaN(a) ? 0 : a) ||
              Number.isNaN(a) - Number.isNaN(b))
      .map(([each]) => each);
}

// The head `step` places further in this order.
export function neighbour(step) {
  const all = orderedHeads();
  const at = all.findIndex(({ layer, head }) => layer === state.layer && head === state.head);
  return all[(at + step + all.length) % all.length];
}

// Layers whose difference a thumbnail draws from the weights themselves. Tiles are rounded to steps
// of 2^(1/8): a difference below a step would vanish in them, and others grow to a whole one.
function drawsCells(layers) {
  return layers.length === 2 &&
      layers.every(
          (layer) => layer?.q && layer.k && layer.lse && layer.queries * layer.keys <= kSmall);
}

export class Grid {
  constructor(root) {
    this.root = root;
    this.buttons = new Map();
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        this.observer.unobserve(entry.target);
        this.draw(entry.target);
      }
    }, { rootMargin: "200px" });
    root.addEventListener("keydown", (event) => this.key(event));
    this.hint = element("p", { class: "hint" });
    const tell = (event) => {
      const thumb = event.target.closest?.(".thumb");
      fill(this.hint, thumb ? thumb.getAttribute("aria-label") : this.usualHint());
    };
    for (const name of ["pointerover", "focusin", "pointerleave", "focusout"]) {
      root.addEventListener(
          name,
          name === "pointerleave" || name === "focusout" ? () => fill(this.hint, this.usualHint())
                                                         : tell);
    }
  }

  // Makes all buttons anew: after a change of order, run or language.
  build() {
    const all = orderedHeads(), dense = all.length > 48, rows = [];
    this.observer.disconnect();
    this.buttons.clear();
    const range = state.colour === "none" ? null : this.range(all);
    let row = null, last = -1;
    for (const place of all) {
      if (!row || (state.sort === "order" && place.layer !== last)) {
        row = element("div", { class: "head-row", role: "group" });
        if (state.sort === "order") {
          const own = shown.page.runs[0].layers[place.layer];
          const name = layerName({ name: own?.name ?? place.layer });
          row.setAttribute("aria-label", name);
          rows.push(element("p", { class: "head-layer" }, element("bdi", {}, name)));
        }
        rows.push(row);
        last = place.layer;
      }
      row.append(this.button(place, range));
    }
    this.root.classList.toggle("dense", dense);
    const widest = Math.max(...shown.page.runs[0].layers.map((layer) => layer.heads ?? 1));
    this.root.style.setProperty("--columns", String(Math.min(widest, 16)));
    fill(this.root, rows);
    fill(this.hint, this.usualHint());
    for (const { button } of this.buttons.values()) this.observer.observe(button);
    this.mark();
  }

  usualHint() {
    const about = this.root.querySelector(".about") ? ` ${say("heads_about")}` : "";
    return say("heads_hint") + about;
  }

  range(all) {
    const values =
        all.map(({ layer, head }) => rankOf(layer, head, state.colour)).filter(Number.isFinite);
    return { low: Math.min(...values), high: Math.max(...values) };
  }

  button({ layer, head }, range) {
    const own = runOf(state.show).layers[layer], label = labelOf(layer, head);
    const metric = state.colour !== "none" ? state.colour
        : state.sort !== "order"           ? state.sort
                                           : null;
    const figure = scores(metric ? metricsOf(layer, head, metric) : label?.scores ?? []);
    const words = metric ? say(`metric_${metric}`) : label?.text;
    const scored = !metric && label?.metric && figure ? `${label.metric} ${figure}` : figure;
    const name = headName(own, head);
    const about = state.show === "difference" && !drawsCells(layersShown(layer));
    const spoken =
        [name, words, scored, about ? say("tiles_about") : null].filter(Boolean).join(", ");
    const bar = element("span", { class: "bar" });
    const value = range ? rankOf(layer, head, metric) : NaN;
    if (Number.isFinite(value)) {
      const scale = new Scale({ bend: "linear", top: 1 });
      const share = range.high > range.low ? (value - range.low) / (range.high - range.low) : 1;
      bar.style.backgroundColor = scale.css(0.2 + 0.8 * share);
      bar.style.width = `${clamp((100 * value) / range.high || 0, 8, 100)}%`;
    }
    const button = element(
        "button", {
          type: "button",
          class: "thumb",
          "data-layer": layer,
          "data-head": head,
          tabindex: "-1",
          "aria-label": spoken,
          title: label?.definition ? `${spoken}\n${label.definition}` : spoken,
          onclick: () => this.pick(layer, head),
        },
        element("canvas", { width: 1, height: 1, "aria-hidden": "true" }), range ? bar : null,
        element(
            "span", { class: "thumb-name" },
            state.sort === "order" ? String(head) : `${layer}.${head}`,
            about ? element("span", { class: "about" }, "≈") : null,
            figure ? element("span", { class: "figure" }, figure) : null),
        element("span", { class: "thumb-label" }, words ?? ""));
    this.buttons.set(`${layer}.${head}`, { button, layer, head });
    return button;
  }

  // Where the views stand below each other, the reader is taken to the map.
  pick(layer, head) {
    choose({ layer, head });
    const one = document.getElementById("one");
    if (one.getBoundingClientRect().top > innerHeight - 200) one.scrollIntoView();
  }

  async draw(button) {
    const at = Number(button.dataset.layer), h = Number(button.dataset.head);
    const canvas = button.querySelector("canvas"), layers = layersShown(at);
    const cells = drawsCells(layers);
    try {
      const heads = await Promise.all(layers.map(async (layer) => {
        if (cells) return new Head(layer, await openLayer(layer), h);
        const tiles = layer && (await tilesOf(layer));
        return tiles && new Head(layer, { tiles, lse: await unpack(layer.lse), windows: [] }, h);
      }));
      if (heads.some((head) => !head)) throw new PageError(say("no_tiles"));
      const source = heads.length === 2 ? new Difference(...heads) : heads[0];
      if (!source.tiles && !cells) throw new PageError(say("no_tiles"));
      const top = source.difference ? differenceOf(null, null)
          : state.same              ? 1
                                    : source.topTile(state.tile);
      const scale = new Scale({ bend: state.bend, top, difference: source.difference });
      if (cells) paintCellsOf(canvas, source, scale);
      else paintTiles(canvas, source, scale);
    } catch (error) {
      if (!(error instanceof PageError)) throw error;
      button.classList.add("broken");
      button.title = error.message;
    }
  }

  // Draws again what has been drawn: after a change of colours.
  redraw() {
    for (const { button } of this.buttons.values()) {
      this.observer.unobserve(button);
      this.observer.observe(button);
    }
  }

  mark() {
    for (const { button, layer, head } of this.buttons.values()) {
      const current = layer === state.layer && head === state.head;
      button.setAttribute("aria-pressed", String(current));
      button.tabIndex = current ? 0 : -1;
    }
  }

  focus() { this.buttons.get(`${state.layer}.${state.head}`)?.button.focus(); }

  // Arrows go to the neighbours as they are seen; rows are found by their place on the screen.
  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1 }, vertical = { ArrowUp: -1, ArrowDown: 1 };
    let next = null;
    if (event.key in steps) next = neighbour(steps[event.key]);
    else if (event.key in vertical) next = this.above(vertical[event.key]);
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    choose({ layer: next.layer, head: next.head });
    this.focus();
  }

  above(direction) {
    const here = this.buttons.get(`${state.layer}.${state.head}`)?.button.getBoundingClientRect();
    let best = null, least = Infinity;
    for (const place of this.buttons.values()) {
      const box = place.button.getBoundingClientRect(), dy = (box.top - here.top) * direction;
      const distance = dy * 4 + Math.abs(box.left - here.left);
      if (dy > 4 && distance < least) [best, least] = [place, distance];
    }
    return best;
  }
}

// What is hidden stays transparent, so that the hatching of the style shows.
function paintPixels(canvas, rows, columns, paint) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  paint(new Uint32Array(image.data.buffer));
  context.putImageData(image, 0, 0);
}

function paintTiles(canvas, source, scale) {
  const { rows, columns } = source.tiles;
  paintPixels(canvas, rows, columns, (pixels) => {
    for (let row = 0; row < rows; ++row) {
      for (let column = 0; column < columns; ++column) {
        pixels[row * columns + column] = scale.pixel(source.tile(row, column, state.tile));
      }
    }
  });
}

function paintCellsOf(canvas, source, scale) {
  const { queries, keys } = source, row = new Float64Array(keys);
  paintPixels(canvas, queries, keys, (pixels) => {
    for (let i = 0; i < queries; ++i) {
      source.segment(i, 0, keys, row);
      row.forEach((value, j) => {
        pixels[i * keys + j] = scale.pixel(value);
      });
    }
  });
}
