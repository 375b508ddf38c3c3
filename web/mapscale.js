// The colour scale of a map: from 0 to 1 for all heads, or to what is high in this one.
import {Scale} from "./colour.js";
import {differenceOf, searchedWhole, searchFinished} from "./compare.js";
import {filtersActive} from "./filters.js";
import {highest, kSmall} from "./head.js";
import {cellsOf, levelOf, showsTiles} from "./plot.js";
import {state} from "./state.js";
import {isWeighted} from "./values.js";

const kSample = 65536;  // cells in view that are looked at for the end of the scale

// The end of the cells' scale: the largest weight of a small head; of others, as for tiles, all but
// the highest 1/200 of the cells in view, so that the first rows of a causal head leave the others
// their colours. Until the view is computed the end stays as it was; `kept` holds it.
function topCell(source, blocks, window, kept) {
  const { i0, i1, j0, j1 } = cellsOf(window, source);
  if (source.queries * source.keys <= kSmall) return source.largest();
  if (!source.exact && source.tiles) return source.topTile(state.tile);
  const key = String([i0, i1, j0, j1]);
  if (kept.key !== key && blocks.has(i0, i1, j0, j1)) {
    const step = Math.ceil(Math.sqrt(((i1 - i0) * (j1 - j0)) / kSample)), values = [];
    for (let i = i0; i < i1; i += step)
      for (let j = j0; j < j1; j += step) values.push(blocks.value(i, j));
    const value = highest(Float32Array.from(values).filter((each) => each >= 0));
    Object.assign(kept, { key, value });
  }
  return kept.value ?? (source.tiles ? source.topTile(state.tile) : source.largest());
}

// Whether differences on the map may be above the end of their scale: it is the largest that is
// known of the heads themselves, of means and before filters.
function endsBelow(source, layer, level, top) {
  if (!searchFinished() || filtersActive(state) || state.renormalise) return true;
  if (source.exact && !searchedWhole(layer)) return true;
  return showsTiles(source, level) && top < source.topTile(state.tile);
}

// Of the head at (layer, head) of the page, or of all for a difference over heads.
export function scaleOf(source, blocks, window, {w, h}, at, kept) {
  const level = levelOf(source, window, w, h), tiles = level === "tiles";
  const differs = () => (state.same || !at ? differenceOf(null, null) : differenceOf(...at));
  const known = differs() > 0;  // not yet, or in layers of unequal sizes never
  const weighted = isWeighted(source);
  const top = source.difference ? (known && !weighted ? differs() : source.largest())
      : weighted                ? source.largest()
      : state.same              ? 1
      : tiles                   ? source.topTile(state.tile)
                                : topCell(source, blocks, window, kept);
  return new Scale({
    bend: state.bend,
    top,
    known,
    difference: source.difference,
    beyond: source.difference
        ? known && !weighted && endsBelow(source, at?.[0] ?? state.layer, level, top)
        : top < (tiles && !weighted ? 1 : source.largest())
  });
}
