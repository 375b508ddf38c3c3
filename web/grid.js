// All heads of all layers: a card each with its picture, name, score and label, drawn when it comes
// into sight, in the groups of the sort, and with them the mean and the largest over the heads of
// each layer; above them a matrix of all scores. The selection recolours them all.
import {Scale} from "./colour.js";
import {FILTERED, HIDDEN, PageError, UNKNOWN} from "./data.js";
import {clamp, dress, element, fill, scores, write} from "./dom.js";
import {Overview} from "./overview.js";
import {hasTwoRuns, headName, keyToken, labelOf, layerName, layersShown, runOf} from "./page.js";
import {storingFlag} from "./readout.js";
import {answerWords, colouredBy, groupsOfHeads, neighbour, rankOf, scoreWords} from "./scores.js";
import {answerOf, answerOver, askAll, asked, isAsked, largestDrawn} from "./selection.js";
import {choose, state} from "./state.js";
import {say} from "./text.js";
import {drawsCells, paintAnswer, paintThumb} from "./thumb.js";
import {shortToken} from "./tokens.js";

const kDense = 48;   // heads: more of them are cards of two lines beside their picture
const kDrawing = 8;  // ms of drawing cards out of sight between two frames

// Why a card has no number, where it answers the selection.
function whyNot(answer) {
  const words = [[HIDDEN, "hidden"], [FILTERED, "filtered"], [UNKNOWN, "unknown"]];
  const [, key] = words.find(([mark]) => mark === answer?.mark) ?? [];
  return key ? say(key) : null;
}

function tellPressed(button, is) {
  if (button.getAttribute("aria-pressed") !== String(is))
    button.setAttribute("aria-pressed", String(is));
}

// Whether tiles are of several cells each.
function isOfSeveral(tiles) { return Boolean(tiles && tiles.queries * tiles.keys > 1); }

// How each part of what a card says and shows beside its picture is put on it.
const kOfCard = {
  score: ({ score }, words) => write(score, words),
  label: ({ label }, words) => write(label, words),
  spoken: ({ button }, words) => button.setAttribute("aria-label", words),
  title: ({ button }, words) => button.setAttribute("title", words),
  width: ({ bar }, width) => bar.style.setProperty("width", width),
  colour: ({ bar }, colour) => bar.style.setProperty("background-color", colour),
};

export class Grid {
  constructor(root) {
    this.cards = element("div", { class: "cards" });
    this.over = [];  // cards of mean and largest over the heads: { button, layer, over, score }
    this.overview = new Overview((layer, head) => this.pick({ layer, head }));
    this.root = root;
    this.root.append(this.overview.root, this.cards);
    this.buttons = new Map();
    this.inSight = new Set();    // cards
    this.stale = new Set();      // cards whose picture is not yet what it should be
    this.turns = new WeakMap();  // of each card, what draw() was last called for
    this.looks = new WeakMap();  // of each card, what it says
    this.observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) this.inSight.delete(target);
        else this.inSight.add(target);
        if (isIntersecting && this.stale.delete(target)) this.draw(target);
      }
    }, { rootMargin: "200px" });
    root.addEventListener("keydown", (event) => this.key(event));
    this.hint = element("p", { class: "hint" });
    const tell = (event) => {
      const thumb = event.target.closest?.(".thumb");
      if (thumb) fill(this.hint, thumb.getAttribute("aria-label"));
      else if (event.type !== "focusin") fill(this.hint, this.usualHint());
    };
    for (const name of ["pointerover", "focusin"]) root.addEventListener(name, tell);
    for (const name of ["pointerleave", "focusout"])
      root.addEventListener(name, () => fill(this.hint, this.usualHint()));
    this.overview.tell = (words) => fill(this.hint, words || this.usualHint());
  }

  // Makes all cards anew: after a change of run or language.
  build() {
    this.observer.disconnect();
    this.inSight.clear();
    this.stale.clear();
    this.buttons.clear();
    const all = runOf(state.show)
                    .layers.flatMap(
                        (layer, at) => Array.from(
                            { length: layer.heads ?? 0 }, (_, head) => this.card(at, head)));
    this.root.classList.toggle("dense", all.length > kDense);
    this.root.classList.toggle("two", hasTwoRuns());
    this.buildOver();
    this.arrange();
    for (const { button } of this.places()) {
      this.stale.add(button);
      this.observer.observe(button);
    }
  }

  // Every card.
  places() { return [...this.buttons.values(), ...this.over]; }

  card(layer, head) {
    const bar = element("span", { class: "bar" }), score = element("span", { class: "figure" });
    const about = state.show === "difference" && !drawsCells(layersShown(layer));
    const title = element(
        "span", { class: "thumb-name" }, `L${layer}H${head}`,
        about ? element("span", { class: "about" }, "≈") : null);
    const label = element("span", { class: "thumb-label" });
    const button = element(
        "button", {
          type: "button",
          class: "thumb",
          "data-layer": layer,
          "data-head": head,
          tabindex: "-1",
          onclick: () => this.pick({ layer, head })
        },
        element("canvas", { width: 1, height: 1, "aria-hidden": "true" }),
        element(
            "span", { class: "thumb-words" }, element("span", { class: "thumb-top" }, title, score),
            bar, label));
    const own = runOf(state.show).layers[layer], does = labelOf(layer, head);
    const
        place = { button, layer, head, name: headName(own, head), does, bar, score, label, about };
    this.buttons.set(`${layer}.${head}`, place);
    return place;
  }

  // Cards of the mean and of the largest weight over the heads of each layer.
  buildOver() {
    this.over = runOf(state.show).layers.flatMap((layer, at) => {
      if (!layer.over_heads) return [];
      return ["mean", "maximum"].map((over) => {
        const words = say(`over_${over}`, { layer: layerName(layer) }),
              score = element("span", { class: "figure" });
        const button = element(
            "button", {
              type: "button",
              class: "thumb over",
              "data-layer": at,
              "data-over": over,
              tabindex: "-1",
              "aria-label": words,
              title: words,
              onclick: () => this.pick({ layer: at, over })
            },
            element("canvas", { width: 1, height: 1, "aria-hidden": "true" }),
            element(
                "span", { class: "thumb-words" },
                element(
                    "span", { class: "thumb-top" },
                    element("span", { class: "thumb-name" }, `L${at}`), score),
                element("span", { class: "bar" }),
                element("span", { class: "thumb-label" }, say(`over_${over}_row`))));
        return { button, layer: at, over, score, words };
      });
    });
  }

  // Puts the cards in the order of the state, in groups with a title each: those over heads with
  // their layer, or at the end.
  arrange() {
    if (this.buttons.size === 0) return;  // not built yet
    const ordered = state.sort === "order",
          row = (title, places) =>
              [element("p", { class: "head-layer" }, element("bdi", {}, title)),
               element(
                   "div", { class: "head-row", role: "group", "aria-label": title },
                   places.map(({ button }) => button))];
    const rows = groupsOfHeads().flatMap(({ title, heads }) => {
      const places = heads.map(({ layer, head }) => this.buttons.get(`${layer}.${head}`));
      const over = ordered ? this.over.filter(({ layer }) => layer === heads[0].layer) : [];
      return row(title, [...places, ...over]);
    });
    for (const over of ordered || !this.over.length ? [] : ["mean", "maximum"])
      rows.push(...row(say(`over_${over}_row`), this.over.filter((each) => each.over === over)));
    fill(this.cards, rows);
    this.label();
  }

  // Scores, labels and bars of all cards, and what the screen reader says of them.
  label() {
    const coloured = colouredBy(), question = coloured === "selection" ? asked() : null;
    const by = coloured ?? (["order", "label"].includes(state.sort) ? null : state.sort);
    const ranks =
        [...this.buttons.values()].map((at) => (by ? rankOf(at.layer, at.head, by) : NaN));
    const top = ranks.reduce((a, b) => (b > a ? b : a), 0);
    const scale = new Scale({ bend: "linear", top: 1 });
    const metric = by && by !== "selection" ? say(`metric_${by.split("@")[0]}`) : null;
    this.root.classList.toggle("answering", coloured === "selection");  // no picture is of tiles
    [...this.buttons.values()].forEach((place, n) => {
      const { layer, head, name, does, about } = place;
      const answer = by === "selection" ? answerOf(layer, head) : null, key = answer?.key ?? -1;
      const figure = by ? scoreWords(layer, head, by) : scores(does?.scores ?? []);
      const words = key >= 0 ? this.keyWords(key) : does?.text ?? "";
      const spoken = [
        name, metric ?? does?.text, key >= 0 ? words : null,
        by === "selection" ? whyNot(answer) : null,
        !by && does?.metric && figure ? `${does.metric} ${figure}` : figure,
        about && coloured !== "selection" ? say("tiles_about") : null
      ].filter(Boolean).join(", ");
      const lines = [spoken, does?.definition, this.pictureWords(layer, head, null, question)];
      const share = top > 0 && ranks[n] >= 0 ? ranks[n] / top : 0;
      this.dress(place, {
        score: this.short(figure),
        label: words,
        spoken,
        title: lines.filter(Boolean).join("\n"),
        width: by ? `${clamp(100 * share, share > 0 ? 4 : 0, 100)}%` : "0",
        colour: scale.css(0.35 + 0.65 * share)
      });
    });
    for (const place of this.over) {
      const { layer, over, words } = place, answer = question && answerOver(layer, over);
      const figure = answerWords(answer), key = answer?.key >= 0 ? this.keyWords(answer.key) : null;
      const spoken = [words, whyNot(answer), key, figure].filter(Boolean).join(", ");
      const title = [spoken, this.pictureWords(layer, 0, over, question)];
      this.dress(
          place, { score: this.short(figure), spoken, title: title.filter(Boolean).join("\n") });
    }
    this.overview.draw(by ?? "maximum");
    fill(this.hint, this.usualHint());
    this.mark();
  }

  dress(place, look) {
    this.looks.set(place.button, dress(kOfCard, place, look, this.looks.get(place.button) ?? {}));
  }

  // What the picture of a card is, where it does not have every weight, and what would store those.
  pictureWords(layer, head, over, question) {
    const own = runOf(state.show).layers[layer], { queries, keys, tiles } = own;
    const answer = !question ? null : over ? answerOver(layer, over) : answerOf(layer, head);
    const stored = (part) =>
        (over || !part ? null : say("stored_by", { flag: storingFlag(layer, head, part) }));
    if (answer) {
      if (!answer.bound && answer.whole !== false) return null;
      const { kind, i, j, chosen } = question, [n] = chosen ?? [];
      return stored(
          kind === "cell"         ? [i, 1, j, 1]
              : chosen.length > 1 ? null
              : kind === "query"  ? [n, 1, 0, keys]
                                  : [0, queries, n, 1]);
    }
    if (!isOfSeveral(tiles) || drawsCells(layersShown(layer))) return null;
    const size = { what: say(over ?? state.tile), queries: tiles.queries, keys: tiles.keys };
    const all = layersShown(layer).every((each) => each?.q) ? null : stored([0, queries, 0, keys]);
    return [say("card_tiles", size), all].filter(Boolean).join("; ");
  }

  // Without the 0 before the point where cards are narrow.
  short(figure) {
    return this.buttons.size > kDense ? figure.replace(/^([≤≥±−]?)0\./, "$1.") : figure;
  }

  // What a card answers to the selection; null where it is coloured by something else.
  answer(layer, head, over) {
    if (colouredBy() !== "selection") return null;
    return over ? answerOver(layer, over) : answerOf(layer, head);
  }

  keyWords(key) {
    const token = shortToken(keyToken(key), 9);
    return token === String(key) ? `→ ${key}` : `→ ${key} ${token}`;
  }

  usualHint() {
    if (colouredBy() === "selection") return this.questionWords();
    const about = this.root.querySelector(".about") ? say("heads_about")
        : this.drawsTiles()                         ? say("heads_tiles", { what: say(state.tile) })
                                                    : "";
    return [this.questionWords(), about].filter(Boolean).join(" ");
  }

  // Whether some pictures are of tiles, each of several cells.
  drawsTiles() {
    return runOf(state.show)
        .layers.some(({ tiles }, at) => isOfSeveral(tiles) && !drawsCells(layersShown(at)));
  }

  // What the colours of the grid say.
  questionWords() {
    const question = colouredBy() === "selection" ? asked() : null;
    if (!question) return say("heads_hint");
    const { chosen, of, kind } = question, apart = state.show === "difference" ? "_difference" : "";
    if (kind === "cell") return say(`asked_cell${apart}`, question);
    const n = chosen.length > 1 ? `${chosen[0]} …` : chosen[0];
    const cut = of > chosen.length ? ` ${say("asked_first", { n: chosen.length, of })}` : "";
    return say(`asked_${kind}${apart}`, { n }) + cut;
  }

  // Asks every head for the weight where the selection is, and shows the answers.
  ask() {
    if (!isAsked() && !this.answered) return;
    this.asking = askAll().then((current) => {
      if (!current) return;
      this.answered = isAsked();
      if (state.sort === "selection") this.arrange();
      else this.label();
      this.redraw();
      performance.clearMarks("answered");
      performance.mark("answered");
      return this.drawAnswers();
    });
    return this.asking;
  }

  // The scale of answers: as the map's from 0 to 1, or to the largest that is drawn of them.
  selectionScale() {
    if (colouredBy() !== "selection") return null;
    const difference = state.show === "difference";
    const one = !difference && !state.norms && state.same;
    const all = one ? [] : [...this.buttons.values()].map((at) => answerOf(at.layer, at.head));
    const top = all.reduce((most, each) => Math.max(most, each ? largestDrawn(each) : 0), 0);
    return new Scale({ bend: state.bend, top: one ? 1 : top, difference });
  }

  // Where the views stand below each other, the reader is taken to the map.
  pick({ layer, head, over = "none" }) {
    choose(over === "none" ? { layer, head, over } : { layer, over });
    const one = document.getElementById("one");
    if (one.getBoundingClientRect().top > innerHeight - 200) one.scrollIntoView();
  }

  async draw(button) {
    const { layer, head, over } = button.dataset, at = Number(layer);
    const canvas = button.querySelector("canvas");
    const answer = this.answer(at, Number(head), over), turn = {};
    this.turns.set(button, turn);
    const wanted = () => this.turns.get(button) === turn;
    try {
      let tiles = false;
      if (answer) paintAnswer(canvas, answer, this.scale ?? this.selectionScale());
      else tiles = await paintThumb(canvas, at, Number(head ?? 0), over ?? "none", wanted);
      if (wanted()) button.classList.toggle("tiles", tiles);
    } catch (error) {
      if (!(error instanceof PageError)) throw error;
      if (!wanted()) return;
      button.classList.add("broken");
      button.title = error.message;
      this.looks.delete(button);
    }
    button.dataset.drawn = "";  // for whoever looks at the page with a program
  }

  // Draws all cards again: after a change of colours. Those in sight at once, others when they are.
  redraw() {
    this.scale = this.selectionScale();
    for (const { button } of this.places()) {
      if (this.inSight.has(button)) this.draw(button);
      else this.stale.add(button);
    }
  }

  // Answers of cards out of sight, in slices.
  async drawAnswers() {
    const scale = this.scale;
    for (let end = 0; this.scale === scale && scale && this.stale.size > 0;) {
      const [button] = this.stale;
      this.stale.delete(button);
      await this.draw(button);
      if (performance.now() < end) continue;
      await new Promise((done) => setTimeout(done));
      end = performance.now() + kDrawing;
    }
  }

  mark() {
    for (const { button, layer, head } of this.buttons.values()) {
      const current = layer === state.layer && head === state.head;
      tellPressed(button, current && state.over === "none");
      if (button.tabIndex !== (current ? 0 : -1)) button.tabIndex = current ? 0 : -1;
    }
    for (const { button, layer, over } of this.over)
      tellPressed(button, layer === state.layer && over === state.over);
    this.overview.mark();
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
    choose({ layer: next.layer, head: next.head, over: "none" });
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
