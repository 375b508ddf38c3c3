// The part of a canvas context that the map is drawn with, written as SVG: rectangles, text, lines
// and pictures, with transforms and clips. No styles, no variables, nothing but plain elements.
const kAnchors = {
  left: "start",
  center: "middle",
  right: "end"
};

function escaped(text) {
  return String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
}

const round = (value) => Number(value.toFixed(2));

export class SvgPen {
  constructor(width, height, title) {
    this.parts = [
      `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${
          width}" height="${height}">`,
      `<title>${escaped(title)}</title>`
    ];
    Object.assign(
        this,
        { fillStyle: "#000000", strokeStyle: "#000000", lineWidth: 1, font: "12px sans-serif" });
    Object.assign(this, { textAlign: "left", textBaseline: "alphabetic", path: [], clips: 0 });
    this.striped = new Set();
    this.groups = [0];  // open elements of each save()
    this.ruler = document.createElement("canvas").getContext("2d");
  }

  open(element) {
    this.parts.push(element);
    ++this.groups[this.groups.length - 1];
  }

  save() { this.groups.push(0); }
  restore() { this.parts.push("</g>".repeat(this.groups.pop())); }
  translate(x, y) { this.open(`<g transform="translate(${round(x)} ${round(y)})">`); }
  rotate(angle) { this.open(`<g transform="rotate(${round((angle * 180) / Math.PI)})">`); }
  beginPath() { this.path = []; }
  rect(x, y, w, h) { this.path.push([x, y, w, h]); }

  clip() {
    const name = `clip-${++this.clips}`;
    this.parts.push(
        `<clipPath id="${name}">${this.path.map((box) => this.box(box)).join("")}</clipPath>`);
    this.open(`<g clip-path="url(#${name})">`);
  }

  box([x, y, w, h], more = "", inside = "") {
    const place = `x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${round(h)}"`;
    return inside ? `<rect ${place}${more}>${inside}</rect>` : `<rect ${place}${more}/>`;
  }

  // words: a title of the rectangle, which readers see as a hint
  fillRect(x, y, w, h, words = "") {
    this.parts.push(this.box(
        [x, y, w, h], ` fill="${escaped(this.fillStyle)}"`,
        words && `<title>${escaped(words)}</title>`));
  }

  stroked() {
    return ` fill="none" stroke="${escaped(this.strokeStyle)}" stroke-width="${this.lineWidth}"`;
  }

  strokeRect(x, y, w, h) { this.parts.push(this.box([x, y, w, h], this.stroked())); }
  stroke() {
    for (const box of this.path) this.parts.push(this.box(box, this.stroked()));
  }

  // most: px; wider words are set closer, as a canvas does it
  fillText(text, x, y, most = Infinity) {
    const [, weight, size, family] = /^(?:(\d+) )?([\d.]+)px (.*)$/.exec(this.font);
    this.ruler.font = this.font;
    const closer = this.ruler.measureText(text).width > most
        ? ` textLength="${round(most)}" lengthAdjust="spacingAndGlyphs"`
        : "";
    const middle = this.textBaseline === "middle" ? 0.35 * Number(size) : 0;
    this.parts.push(`<text x="${round(x)}" y="${round(y + middle)}" font-family="${
        escaped(family)}" font-size="${size}"${
        weight ? ` font-weight="${weight}"` : ""} text-anchor="${kAnchors[this.textAlign]}"${
        closer} fill="${escaped(this.fillStyle)}">${escaped(text)}</text>`);
  }

  drawImage(canvas, x, y, w, h) {
    this.parts.push(`<image x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${
        round(h)}" preserveAspectRatio="none" image-rendering="optimizeSpeed" href="${
        canvas.toDataURL("image/png")}"/>`);
  }

  // Diagonal lines over a rectangle, for what is hidden.
  hatch(x, y, w, h, colour) {
    if (!this.hatched)
      this.parts.push(
          `<pattern id="hidden" width="8" height="8" patternUnits="userSpaceOnUse"><path d="M-1 9L9 -1M-1 1L1 -1M7 9L9 7" stroke="${
              colour}"/></pattern>`);
    this.hatched = true;
    this.parts.push(this.box([x, y, w, h], ' fill="url(#hidden)"'));
  }

  // Stripes over a rectangle, the other way; share: how much of the colour is in them.
  stripes(x, y, w, h, apart, colour, share) {
    const name = `stripes-${colour.slice(1)}-${Math.round(100 * share)}`, end = apart + 1;
    if (!this.striped.has(name))
      this.parts.push(`<pattern id="${name}" x="0.5" width="${apart}" height="${
          apart}" patternUnits="userSpaceOnUse"><path d="M-1 -1L${end} ${end}M-1 ${apart - 1}L1 ${
          end}M${apart - 1} -1L${end} 1" stroke="${colour}" stroke-width="0.7" stroke-opacity="${
          round(share)}"/></pattern>`);
    this.striped.add(name);
    this.parts.push(this.box([x, y, w, h], ` fill="url(#${name})"`));
  }

  // A triangle, or any other closed shape.
  shape(points) {
    this.parts.push(
        `<polygon points="${points.map((at) => at.map(round).join(",")).join(" ")}" fill="${
            escaped(this.fillStyle)}"/>`);
  }

  finish() { return this.parts.join("\n") + "\n</svg>\n"; }
}
