// The text, shaded by what the chosen queries see (or by who sees the chosen keys). Long texts are
// shown a page at a time, below a strip of the whole.
import {Scale} from "./colour.js";
import {differenceOf} from "./compare.js";
import {kLog16Error, offOf, unpack} from "./data.js";
import {clamp, element, fill, number, press, segmented} from "./dom.js";
import {keyToken, placeElement, queryStart, queryToken, selfAttention, shown} from "./page.js";
import {figure, storedFigure, tileWords} from "./readout.js";
import {kHidden, kLeft, kNumber, kTile, shadeFigure, shades} from "./shades.js";
import {choose, state} from "./state.js";
import {say, sayWith} from "./text.js";
import {textStrip} from "./textstrip.js";
import {tokenElement, visibleToken} from "./tokens.js";

const kPage = 480;       // tokens shown at once
const kStrongest = 6;    // of a choice, listed below the text
const kStrongLine = 28;  // px of each of them, as in the style
const kStrongNote = 47;  // px of what is said below them of tokens in tiles

export class TextView {
  constructor(root) {
    this.starts = {};  // of each text, the first token that is shown, and for what was chosen
    this.heading = element("p", { class: "chosen" });
    this.controls = element("div", { class: "row" });
    this.body = element("div", { class: "texts" });
    this.list = element("ol", { class: "strongest" });
    this.facts = element("p", { class: "fine facts" });
    const told = element("div", { class: "told" }, this.heading, this.facts);
    root.append(this.controls, told, this.body, this.list);
    root.addEventListener("keydown", (event) => this.key(event));
    root.addEventListener("pointerover", (event) => this.hover(event.target.closest?.(".piece")));
    root.addEventListener("pointerleave", () => this.hover(null));
  }

  build() {
    this.direction = segmented(
        say("direction"),
        [[false, say("sees")], [true, say("seen_by")]].map(
            ([value, words]) => [String(value), words]),
        String(state.reverse), (value) => choose({ reverse: value === "true" }));
    this.combine = segmented(
        say("combine"), [["sum", say("sum")], ["mean", say("mean")]], state.combine,
        (value) => choose({ combine: value }));
    fill(this.controls, this.direction, this.combine);
  }

  // Where token n of a text is a query, and where a key. Queries of the same text start at the
  // offset.
  places() {
    const { layer } = shown, offset = queryStart();
    return {
      offset,
      query: (n) => (n - offset >= 0 && n - offset < layer.queries ? n - offset : -1)
    };
  }

  show() {
    const { source } = shown;
    if (!source) {
      for (const part of [this.heading, this.facts, this.body, this.list]) fill(part);
      return;
    }
    press(this.direction, state.reverse);
    press(this.combine, state.combine);
    const { chosen, sums, known, tooMany } = shades();
    // As the map's; a sum over several may be more.
    let top = !state.same ? 0 : source.difference ? differenceOf(null, null) || 0 : 1;
    if (sums)
      for (const value of sums) top = Math.max(top, Math.abs(value) || 0);
    this.scale = new Scale({ bend: state.bend, top, difference: source.difference });
    this.tellChosen(chosen, tooMany);
    this.tellFacts(chosen).catch(
        () => fill(this.facts));  // broken numbers here cost only this line
    this.shading = sums !== null;
    const self = selfAttention(), { offset } = this.places();
    const shade = sums ? (n) => ({ value: sums[n], known: known[n], chosen }) : () => null;
    const parts = [];
    if (self) {
      const value =
          state.reverse ? (n) => (this.places().query(n) < 0 ? null : shade(n - offset)) : shade;
      const marked = new Set(state.reverse ? chosen : chosen.map((i) => i + offset));
      parts.push(this.text("text", source.keys, keyToken, value, marked));
    } else {
      const marked = new Set(chosen), empty = new Set();
      parts.push(
          element("h3", {}, say("text_queries")),
          this.text(
              "queries", source.queries, queryToken, state.reverse ? shade : () => null,
              state.reverse ? empty : marked));
      parts.push(
          element("h3", {}, say("text_keys")),
          this.text(
              "keys", source.keys, keyToken, state.reverse ? () => null : shade,
              state.reverse ? marked : empty));
    }
    fill(this.body, parts);
    cancelAnimationFrame(this.pending);  // in the frame, which lays out the page once
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.scroll();
    });
    this.tellStrongest(chosen, sums, known);
  }

  // Keeps each text where it was, unless no chosen token would be in sight.
  scroll() {
    for (const box of this.body.querySelectorAll(".tokens")) {
      const place = this.starts[box.dataset.side];
      box.scrollTop = place.scrolled ?? 0;
      const chosen = [...box.querySelectorAll('[aria-selected="true"]')],
            top = (piece) => piece.offsetTop - box.offsetTop;
      const inSight = (piece) => top(piece) + piece.offsetHeight > box.scrollTop &&
          top(piece) < box.scrollTop + box.clientHeight;
      if (chosen.length && !chosen.some(inSight))
        box.scrollTop = top(chosen[0]) - box.clientHeight / 2;
    }
  }

  tellChosen(chosen, tooMany) {
    this.heading.classList.toggle("one", chosen.length === 1);  // the facts stand below it
    if (tooMany) return fill(this.heading, say("text_too_many"));
    if (chosen.length === 0) return fill(this.heading, say("chosen_none"));
    const token = state.reverse ? keyToken : queryToken;
    const names = chosen.slice(0, 4).flatMap((n, at) => [at ? ", " : "", tokenElement(token(n))]);
    const words = chosen.length > 4
        ? sayWith(
              "chosen_many", { first: element("span", {}, names), n: String(chosen.length - 4) })
        : names;
    fill(this.heading, sayWith(state.reverse ? "chosen_seen" : "chosen_sees", {
           tokens: element("span", {}, words)
         }));
  }

  // What is known of a single chosen row or column, before filters, with as many digits as are
  // stored.
  async tellFacts(chosen) {
    const { head } = shown, [n] = chosen;
    const tell = (words) => {
      fill(this.facts, words);
      this.facts.title = words;  // where it is cut off
    };
    tell("");
    if (!head || chosen.length !== 1) return;
    const { layer, h, queries, keys } = head, name = state.reverse ? "mass" : "entropy";
    const all = await unpack(layer[name]);
    if (head !== shown.head || !all || state.chosen[0] !== n) return;
    const stored = all[h * (state.reverse ? keys : queries) + n];
    const value = storedFigure(stored, offOf(layer[name], stored));
    if (state.reverse) return tell(say("facts_key", { mass: value }));
    let maximum = head.open.maximum ? number(head.open.maximum[h * queries + n]) : null;
    if (!maximum)
      head.rows?.each(n, (_, weight) => {
        maximum ??= figure(weight, kLog16Error);
      });
    tell(say(maximum ? "facts_query" : "facts_entropy", { entropy: value, maximum }));
  }

  // The largest of the values that are known. Their room is kept: what lies below stays where it
  // is.
  tellStrongest(chosen, sums, known) {
    const { source } = shown, count = state.reverse ? source.queries : source.keys;
    const room = Math.min(kStrongest, count) * kStrongLine + (source.exact ? 0 : kStrongNote);
    this.list.style.minHeight = `${room}px`;
    if (!sums) return fill(this.list);
    const best = [], size = (n) => Math.abs(sums[n]);
    for (let n = 0; n < sums.length; ++n) {
      if (known[n] !== kNumber || !(size(n) > 0)) continue;
      if (best.length === kStrongest && size(n) <= size(best.at(-1))) continue;
      best.push(n);
      best.sort((a, b) => size(b) - size(a));
      best.length = Math.min(best.length, kStrongest);
    }
    const tiles =
        known.includes(kTile) ? element("li", { class: "fine" }, say("strongest_known")) : null;
    const lines = best.map((n) => {
      const bar = element("span", { class: "bar" });
      bar.style.width = `${(100 * size(n)) / size(best[0])}%`;
      bar.style.backgroundColor = this.scale.css(sums[n]);
      const cell = state.reverse ? [n, chosen[0]] : [chosen[0], n];
      return element(
          "li", {},
          element(
              "button", { type: "button", onclick: () => choose({ cell }) },
              placeElement(n, state.reverse ? "query" : "key"),
              element("span", { class: "track" }, bar),
              element("span", { class: "figure" }, shadeFigure(sums[n], n, chosen))));
    });
    fill(this.list, lines, tiles);
  }

  // A text of `count` tokens: shade(n) is { value, known } or null (not to be shaded), marked are
  // the chosen ones.
  text(side, count, token, shade, marked) {
    const long = count > kPage, first = marked.size ? Math.min(...marked) : 0;
    const place = this.starts[side] ??= { start: first - kPage / 2, seen: `${[...marked]}` };
    const begin = () => (long ? clamp(Math.floor(place.start), 0, count - kPage) : 0);
    const onPage = (n) => n >= begin() && n < begin() + kPage;
    if (place.seen !== `${[...marked]}` && marked.size && ![...marked].some(onPage))
      place.start = first - kPage / 2;
    place.seen = `${[...marked]}`;
    const turn = (start) => {
      place.start = clamp(start, 0, count - kPage);
      this.show();
    };
    const from = begin(), to = Math.min(count, from + kPage);
    const keep = () => {  // a box that was just made is not yet where it will be
      if (!this.pending) place.scrolled = tokens.scrollTop;
    };
    const tokens = element("div", {
      class: "tokens",
      role: "listbox",
      "aria-multiselectable": "true",
      "data-side": side,
      onscroll: keep,
      onpointerdown: keep,  // may come before the frame that tells of the scrolling
      "aria-label":
          say(side === "queries"    ? "text_queries"
                  : side === "keys" ? "text_keys"
                                    : "text")
    });
    for (let n = from; n < to; ++n)
      tokens.append(this.token(side, n, token(n), shade(n), marked.has(n)));
    const active = tokens.querySelector('[aria-selected="true"]') ?? tokens.firstElementChild;
    if (active) active.tabIndex = 0;
    if (!long) return tokens;
    const button = (words, pages) =>
        element("button", { type: "button", onclick: () => turn(from + pages * kPage) }, words);
    return element(
        "div", {}, textStrip(count, shade, [from, to], this.scale, (n) => turn(n - kPage / 2)),
        element(
            "div", { class: "row pages" }, button(say("earlier"), -1),
            element("span", { class: "muted" }, say("text_page", { from, to: to - 1, all: count })),
            button(say("later"), 1)),
        tokens);
  }

  token(side, n, token, shade, marked) {
    const value = shade?.known === kNumber ? shade.value : null, words = this.words(n, shade);
    const node = element(
        "span", {
          class: "piece",
          role: "option",
          tabindex: "-1",
          "aria-selected": String(marked),
          "data-n": n,
          "data-value": value === null ? null : value,
          title: words ? `${n} · ${words}` : String(n)
        },
        visibleToken(token, true));
    if (value !== null) {
      node.style.backgroundColor = this.scale.css(value);
      node.style.color = this.scale.inkOn(value);
    } else if (shade?.known === kTile) {
      node.classList.add("in-tile");
      node.style.borderBottomColor = this.scale.css(shade.value);
    } else if (shade && !marked) node.classList.add(shade.known === kLeft ? "left-out" : "unseen");
    const pick = (event) => this.pick(side, n, event.shiftKey || event.ctrlKey || event.metaKey);
    node.addEventListener("click", pick);
    return node;
  }

  // What a token's hint says: its number, or why it has none.
  words(n, shade) {
    if (!shade) return "";
    const { source } = shown, { chosen, reverse } = state;
    const at = reverse && selfAttention() ? n - this.places().offset : n;
    if (shade.known === kNumber) return shadeFigure(shade.value, at, shade.chosen);
    if (shade.known === kLeft) return say("filtered_plain");
    if (shade.known === kHidden) return say("hidden");
    return chosen.length > 1 || !source.tiles
        ? say("tile")
        : tileWords(
              source.tileAt(...(reverse ? [at, chosen[0]] : [chosen[0], at])), source.difference);
  }

  // A token under the pointer is a cell of the map: that of the first chosen query (or key). Where
  // it goes is the business of `pointed`.
  hover(piece) {
    const [first] = state.chosen;
    if (!piece || first === undefined || !shown.source) return this.pointed?.(null);
    const n = Number(piece.dataset.n), { side } = piece.parentNode.dataset, { reverse } = state;
    if (side === (reverse ? "keys" : "queries")) return this.pointed?.(null);  // of its own side
    const query = side === "text" ? this.places().query(n) : n;
    this.pointed?.(reverse ? (query < 0 ? null : [query, first]) : [first, n]);
  }

  // Marks the token that belongs to a cell of the map.
  mark(cell) {
    this.body.querySelector(".pointed")?.classList.remove("pointed");
    if (!cell) return;
    const self = selfAttention(), offset = self ? this.places().offset : 0;
    const side = self   ? "text"
        : state.reverse ? "queries"
                        : "keys",
          n = state.reverse ? cell[0] + offset : cell[1];
    this.body.querySelector(`[data-side="${side}"] [data-n="${n}"]`)?.classList.add("pointed");
  }

  // Choosing a token: in a text of its own side, or, where both sides are one text, for the
  // direction.
  pick(side, n, add) {
    const { query } = this.places(), reverse = side === "text" ? state.reverse : side === "keys";
    const index = reverse || side !== "text" ? n : query(n);
    if (index < 0) return;
    const before = add && reverse === state.reverse ? state.chosen : [];
    const chosen =
        before.includes(index) ? before.filter((each) => each !== index) : [...before, index];
    choose({ chosen: chosen.sort((a, b) => a - b), reverse });
    const piece = this.body.querySelector(`[data-side="${side}"] [data-n="${n}"]`);
    piece?.focus({ preventScroll: true });  // it is where it was
  }

  focus() { this.body.querySelector('.tokens [tabindex="0"]')?.focus(); }

  key(event) {
    const piece = event.target.closest?.(".piece");
    if (!piece) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -8, ArrowDown: 8 },
          pieces = [...piece.parentNode.children];
    if (event.key in steps) {
      const next = pieces[clamp(pieces.indexOf(piece) + steps[event.key], 0, pieces.length - 1)];
      piece.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    } else if (event.key === "Enter" || event.key === " ") {
      this.pick(piece.parentNode.dataset.side, Number(piece.dataset.n), event.shiftKey);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
