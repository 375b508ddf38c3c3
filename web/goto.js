// The go-to field: "5.3 300 17" is layer 5, head 3, query 300, key 17; any part may be left out
// ("L5", "h3", "q300", "k17"), and what is no number is looked for in the text.
import {element, fill} from "./dom.js";
import {queryStart, runOf, shown} from "./page.js";
import {choose, state} from "./state.js";
import {say} from "./text.js";
import {reveal} from "./zoom.js";

// What was written: { layer, head, query, key, text }, without what it does not say.
function readPlace(written) {
  const place = {}, both = /^\s*l?(\d+)\s*[.:/h]\s*h?(\d+)(?=\s|$|[,;])[\s,;]*/i.exec(written);
  const one = both ? null : /^\s*([lh])\s*(\d+)(?=\s|$|[,;])[\s,;]*/i.exec(written);
  if (both) [place.layer, place.head] = [Number(both[1]), Number(both[2])];
  if (one) place[one[1].toLowerCase() === "l" ? "layer" : "head"] = Number(one[2]);
  const rest = written.slice((both ?? one)?.[0].length ?? 0).trim();
  const pair = /^q?\s*(\d+)(?:(?:\s*(?:,|→|->)\s*|\s+)k?\s*(\d+))?$/i.exec(rest);
  const key = /^k\s*(\d+)$/i.exec(rest);
  if (pair) place.query = Number(pair[1]);
  if (pair?.[2] !== undefined) place.key = Number(pair[2]);
  else if (key) place.key = Number(key[1]);
  else if (rest && !pair) place.text = rest.replace(/^"(.+)"$/, "$1");
  return place;
}

// The next token at which a text begins, after token `from`; -1 if there is none.
function findText(tokens, text, from) {
  const starts = [];
  let whole = "";
  for (const token of tokens) {
    starts.push(whole.length);
    whole += String(token).toLowerCase();
  }
  if (from + 1 >= tokens.length) return -1;
  let at = whole.indexOf(text.toLowerCase(), starts[from + 1]);
  if (at < 0) return -1;
  while (at < whole.length - 1 && /\s/.test(whole[at])) ++at;  // of " cat" the word
  let n = 0;
  while (n + 1 < starts.length && starts[n + 1] <= at) ++n;
  return n;
}

// The next place at which a text begins, { query } or { key }, after what is chosen, and then from
// the first on; null if it is nowhere. Keys may have a text of their own, which comes second.
function findPlace(text) {
  const { tokens, key_tokens: keyTokens } = runOf(state.show), start = queryStart();
  const sides = [{ tokens, at: (n) => (n < start ? { key: n } : { query: n - start }) }];
  if (keyTokens) sides.push({ tokens: keyTokens, at: (n) => ({ key: n }) });
  const [chosen] = state.chosen, side = keyTokens && state.reverse ? 1 : 0;
  const from = chosen === undefined ? -1 : state.reverse ? chosen : chosen + start;
  const after = [...sides.slice(side), ...sides.slice(0, side + 1)];
  for (const [turn, { tokens: own, at }] of after.entries()) {
    const n = findText(own ?? [], text, turn === 0 ? from : -1);
    if (n >= 0) return at(n);
  }
  return null;
}

// The changes of the state that go to a place, or { error } in words.
function changesFor(place) {
  const layers = runOf(state.show).layers, at = place.layer ?? state.layer, layer = layers[at];
  const none = (what, n, count) => ({ error: say(`goto_no_${what}`, { n, last: count - 1 }) });
  if (!layer) return none("layer", at, layers.length);
  if (place.head >= layer.heads) return none("head", place.head, layer.heads);
  const names = place.layer !== undefined || place.head !== undefined,
        head = place.head ?? Math.min(state.head, layer.heads - 1);
  const changes = names ? { layer: at, head, over: "none" } : {};
  let { query, key } = place;
  if (place.text !== undefined) {
    const found = findPlace(place.text);
    if (!found) return { error: say("goto_no_text", { text: place.text }) };
    ({ query, key } = found);
  }
  if (query >= layer.queries) return none("query", query, layer.queries);
  if (key >= layer.keys) return none("key", key, layer.keys);
  if (query !== undefined && key !== undefined)
    Object.assign(changes, { cell: [query, key], chosen: [query], reverse: false });
  else if (query !== undefined)
    Object.assign(changes, { cell: null, chosen: [query], reverse: false });
  else if (key !== undefined) Object.assign(changes, { cell: null, chosen: [key], reverse: true });
  return changes;
}

export class GoTo {
  constructor() {
    this.words = element("span", { class: "goto-words", role: "status" });
    this.input = element("input", {
      type: "text",
      class: "goto",
      placeholder: say("goto_hint"),
      "aria-label": say("goto"),
      title: say("goto_is"),
      spellcheck: "false",
      autocomplete: "off",
      onkeydown: (event) => {
        if (event.key === "Enter") this.go();
      },
      oninput: () => this.tell("")
    });
    this.root = element("div", { class: "goto-box" }, this.input, this.words);
  }

  tell(words) {
    fill(this.words, words);
    this.input.setAttribute("aria-invalid", String(Boolean(words)));
  }

  async go() {
    if (!this.input.value.trim() || !shown.layer) return;
    const { error, ...changes } = changesFor(readPlace(this.input.value));
    this.tell(error ?? "");
    if (error) return;
    choose(changes);
    await shown.loading;
    if (!shown.source) return;
    const [i, j] = state.cell ?? [], [n] = state.chosen;
    const window = state.zoom ?? [0, 0, 0, 0];
    if (state.cell) reveal(i, j);
    else if (n !== undefined)
      reveal(...(state.reverse ? [Math.ceil(window[0]), n] : [n, Math.ceil(window[2])]));
    const one = document.getElementById("one");
    if (one.getBoundingClientRect().top > innerHeight - 200) one.scrollIntoView();
  }
}
