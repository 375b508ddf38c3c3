// The part of a head that the map shows: [q0, q1, k0, k1] in cells, kept in the state, and how it
// moves.
import {clamp} from "./dom.js";
import {shown} from "./page.js";
import {choose, state} from "./state.js";

const kLeast = 8;  // cells: the closest zoom

export function zoomWindow() {
  const { queries, keys } = shown.source;
  if (!state.zoom) return [0, queries, 0, keys];
  const [q0, q1, k0, k1] = state.zoom;
  const span = (from, to, all) => {
    const size = clamp(to - from || all, Math.min(kLeast, all), all),
          begin = clamp(from, 0, all - size);
    return [begin, begin + size];
  };
  return [...span(q0, q1, queries), ...span(k0, k1, keys)];
}

// Zooms by a factor about the chosen cell, if it is in view, else about the middle.
export function zoomHere(factor) {
  const [q0, q1, k0, k1] = zoomWindow(), [i, j] = state.cell ?? [-1, -1];
  // Shares of what is left beside the cell, so that all of it stays in view.
  const across = (j - k0) / Math.max(1, k1 - k0 - 1), down = (i - q0) / Math.max(1, q1 - q0 - 1);
  const within = (share) => share >= 0 && share <= 1;
  if (within(across) && within(down)) zoomBy(factor, across, down);
  else zoomBy(factor);
}

// Zooms by a factor about a point of the plot given as shares of its sides.
export function zoomBy(factor, across = 0.5, down = 0.5) {
  const { queries, keys } = shown.source, [q0, q1, k0, k1] = zoomWindow();
  const span = (from, to, all, share) => {
    const size = clamp((to - from) * factor, Math.min(kLeast, all), all);
    const begin = clamp(from + (to - from - size) * share, 0, all - size);
    return [begin, begin + size];
  };
  const next = [...span(q0, q1, queries, down), ...span(k0, k1, keys, across)];
  const all = next[1] - next[0] >= queries && next[3] - next[2] >= keys;
  choose({ zoom: all ? null : next });
}

export function pan(rows, columns) {
  const { queries, keys } = shown.source, [q0, q1, k0, k1] = zoomWindow();
  const dq = clamp(rows, -q0, queries - q1), dk = clamp(columns, -k0, keys - k1);
  if (state.zoom && (dq || dk)) choose({ zoom: [q0 + dq, q1 + dq, k0 + dk, k1 + dk] });
}

// Moves the view so that a cell is in it.
export function reveal(i, j) {
  const [q0, q1, k0, k1] = zoomWindow();
  const need = (n, from, to) => (n < from ? n - from : n + 1 > to ? n + 1 - to : 0);
  pan(need(i, q0, q1), need(j, k0, k1));
}

// A window of `side` cells about a cell.
export function zoomTo(i, j, side) {
  const { queries, keys } = shown.source;
  const from = (n, all) => clamp(n + 0.5 - side / 2, 0, Math.max(0, all - side));
  const q = from(i, queries), k = from(j, keys);
  choose({ zoom: [q, Math.min(queries, q + side), k, Math.min(keys, k + side)] });
}
