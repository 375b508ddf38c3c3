// Tokens as readers see them. A token is data of unknown origin: whatever has no glyph of its own,
// or would reorder its neighbours, is shown as a mark, and every token stands in an element of its
// own.
import {element} from "./dom.js";

// Marks for what has no glyph: controls, soft hyphen, bidi and zero-width marks, line separators,
// tags.
const kUnseen = new RegExp(
    "[\\u0000-\\u001f\\u007f-\\u00a0\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f" +
        "\\u2028-\\u202f\\u205f-\\u206f\\u3164\\ufeff\\uffa0\\ufff0-\\ufffb\\ufffe\\uffff\\ud800-\\udfff\\u{e0000}-\\u{e0fff}]",
    "gu");

function mark(character) {
  const code = character.codePointAt(0);
  if (character === "\n") return "⏎";
  if (character === "\t") return "⇥";
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  return `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
}

// The token with marks. Spaces at its ends become a dot, unless it is part of running text.
export function visibleToken(token, running = false) {
  if (token === "") return "∅";
  const text = token.replace(kUnseen, mark);
  return running ? text : text.replace(/^ +| +$/g, (spaces) => "·".repeat(spaces.length));
}

export function shortToken(token, length = 18) {
  const letters = [...visibleToken(token)];
  return letters.length <= length ? letters.join("") : letters.slice(0, length - 1).join("") + "…";
}

// A token inside a sentence of the page: isolated, so that right-to-left letters stay inside.
export function tokenElement(token, attributes = {}) {
  const letters = [...visibleToken(token)];
  const text = letters.length <= 40 ? letters.join("") : letters.slice(0, 39).join("") + "…";
  return element("bdi", { class: "token", ...attributes }, text);
}

// Tokens of a run, or positions where it has none (or too few).
export function tokenAt(tokens, index) {
  return tokens && index < tokens.length ? String(tokens[index]) : String(index);
}
