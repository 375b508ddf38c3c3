// A part of a text as elements, one for each token. They stay, and what changes is only what they
// show: making hundreds of them anew for every choice would cost more than all answers to it.
import {dress, element} from "./dom.js";
import {visibleToken} from "./tokens.js";

// How each part of a look is put on a piece.
const kOfPiece = {
  selected: (piece, is) => piece.setAttribute("aria-selected", String(is)),
  value: (piece, value) =>
      (value === null ? piece.removeAttribute("data-value")
                      : piece.setAttribute("data-value", value)),
  title: (piece, words) => piece.setAttribute("title", words),
  kind: (piece, name) => piece.setAttribute("class", name ? `piece ${name}` : "piece"),
  ground: (piece, colour) => piece.style.setProperty("background-color", colour),
  ink: (piece, colour) => piece.style.setProperty("color", colour),
  line: (piece, colour) => piece.style.setProperty("border-bottom-color", colour),
};

// A piece before anything is known of it.
const kPlain = {
  selected: null,
  value: null,
  title: "",
  kind: "",
  ground: "",
  ink: "",
  line: ""
};

export class Pieces {
  // The tokens from number `from` on, inside `box`.
  constructor(box, from, tokens) {
    Object.assign(this, { box, from, tokens });
    this.looks = tokens.map(() => kPlain);
    this.nodes = tokens.map(
        (token, n) => element(
            "span", { class: "piece", role: "option", tabindex: "-1", "data-n": from + n },
            visibleToken(token, true)));
    box.append(...this.nodes);
  }

  isOf(from, tokens) {
    return this.from === from && this.tokens.length === tokens.length &&
        tokens.every((token, n) => token === this.tokens[n]);
  }

  // Gives each token n the look look(n): some or all parts of kPlain. Keys come to the first that
  // is selected.
  show(look) {
    this.nodes.forEach((piece, n) => {
      this.looks[n] = dress(kOfPiece, piece, {...kPlain, ...look(this.from + n) }, this.looks[n]);
    });
    for (const piece of this.box.querySelectorAll('[tabindex="0"]')) piece.tabIndex = -1;
    const active = this.nodes[Math.max(0, this.looks.findIndex(({ selected }) => selected))];
    if (active) active.tabIndex = 0;
  }
}
