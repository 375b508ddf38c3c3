// The page of `attend explain --html`. Everything shown is in the JSON block "data", and reaches
// the document as text only: a token may hold any characters. A cell knows how it was made
// (matrix.how[row][column] = [text, [[matrix, row, column], ...]]); pointing at it shows that and
// marks the cells it was made of.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const words = {
  en: {
    hint:
        "Point at a number, or walk to it with Tab and the arrow keys. Enter keeps it, Escape lets go.",
    given: "given",
    from: "made of",
    note: "the notes",
    truth: "true",
    why: "why",
    other: "中文",
    part: (rows, columns) => `top left ${rows} x ${columns}`,
    range: (rows, columns) => `rows ${rows}, columns ${columns}`
  },
  zh: {
    hint: "把鼠标移到数字上，或用 Tab 与方向键走到它。回车固定，Esc 松开。",
    given: "给定",
    from: "来自",
    note: "笔记",
    truth: "正确",
    why: "原因",
    other: "English",
    part: (rows, columns) => `左上角 ${rows} x ${columns}`,
    range: (rows, columns) => `第 ${rows} 行，第 ${columns} 列`
  },
};
let language = data.language, kept = null;
const cells = new Map();     // "matrix,row,column" -> td
const matrices = new Map();  // name -> matrix
const say = (phrase) => phrase[language];

function make(tag, parent, text, kind) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  if (parent) parent.append(element);
  return element;
}

const digits = (value) => typeof value === "string" ? value : String(Number(value.toPrecision(7)));
const keyOf = (name, row, column) => `${name},${row},${column}`;
// Of the whole matrix, of which only a part may be shown.
function placeOf(name, row, column) {
  const [top, left] = matrices.get(name).first;
  return `${name}[${top + row}, ${left + column}]`;
}
const tokenName = (list, n) => n < list.length ? list[n] : String(n);

function drawMatrix(parent, matrix) {
  matrices.set(matrix.name, matrix);
  const rows = matrix.values.length, columns = rows ? matrix.values[0].length : 0;
  const figure = make("figure", parent);
  const caption = make("figcaption", figure, `${matrix.name} `);
  const whole = rows === matrix.shape[0] && columns === matrix.shape[1];
  const [top, left] = matrix.first, moved = top > 0 || left > 0;
  const part = whole ? ""
      : moved ? words[language].range(`${top}-${top + rows - 1}`, `${left}-${left + columns - 1}`)
              : words[language].part(rows, columns);
  make("span", caption, `[${matrix.shape.join(", ")}] ${part}`);
  const table = make("table", figure, undefined, matrix.only_shades ? "grid small" : "grid");
  table.setAttribute("aria-label", matrix.name);
  if (matrix.across && !matrix.only_shades) {
    const head = make("tr", make("thead", table));
    if (matrix.down) make("th", head);
    for (let c = 0; c < columns; ++c) make("th", head, tokenName(data.key_tokens, c)).scope = "col";
  }
  const body = make("tbody", table);
  matrix.values.forEach((row, r) => {
    const line = make("tr", body);
    if (matrix.down) make("th", line, tokenName(data.tokens, r)).scope = "row";
    row.forEach((value, c) => {
      const cell = make("td", line, digits(value));
      cell.tabIndex = r === 0 && c === 0 ? 0 : -1;
      cell.dataset.at = JSON.stringify([matrix.name, r, c]);
      if (matrix.weights && typeof value === "number")
        cell.style.backgroundColor = `rgba(var(--heat), ${Math.min(1, value) * 0.75})`;
      cells.set(keyOf(matrix.name, r, c), cell);
    });
  });
}

function drawTable(parent, table) {
  const element = make("table", make("div", parent, undefined, "scroll"), undefined, "plain");
  const head = make("tr", make("thead", element));
  table.header.forEach((name) => {
    make("th", head, say(name)).scope = "col";
  });
  const body = make("tbody", element);
  for (const row of table.rows) {
    const line = make("tr", body);
    row.forEach((cell) => make("td", line, say(cell)));
  }
}

function drawStep(parent, step, number) {
  const section = make("section", parent);
  section.id = `step-${step.id}`;
  make("h2", section, `${number}  ${say(step.title)}`);
  if (step.formula) make("div", section, step.formula, "formula");
  if (step.shapes) make("div", section, step.shapes, "formula");
  if (step.drawing.length) make("pre", section, step.drawing.map(say).join("\n"));
  if (step.matrices.length) {
    const row = make("div", section, undefined, "matrices");
    step.matrices.forEach((matrix) => drawMatrix(row, matrix));
  }
  if (step.table) drawTable(section, step.table);
  step.remarks.forEach((remark) => make("p", section, say(remark)));
  for (const claim of step.claims) {
    const list = make("dl", make("div", section, undefined, "claim"));
    for (const [name, phrase] of [
             ["note", claim.said], ["truth", claim.true], ["why", claim.why]]) {
      make("dt", list, words[language][name]);
      make("dd", list, say(phrase));
    }
  }
}

const panel = document.getElementById("panel");

function clearMarks() {
  for (const cell of document.querySelectorAll("td.source, td.here"))
    cell.classList.remove("source", "here");
}

function showHint() {
  clearMarks();
  panel.replaceChildren();
  make("p", panel, words[language].hint, "dim");
}

function show(cell) {
  const [name, row, column] = JSON.parse(cell.dataset.at), matrix = matrices.get(name);
  const [text, from] = matrix.how[row][column];
  clearMarks();
  cell.classList.add("here");
  panel.replaceChildren();
  make("p", panel, `${placeOf(name, row, column)} = ${digits(matrix.values[row][column])}`);
  make("p", panel, text || words[language].given, "formula");
  if (!from.length) return;
  const line = make("div", panel, `${words[language].from}: `);
  for (const [source, r, c] of from) {
    const target = cells.get(keyOf(source, r, c));
    if (!target) continue;
    target.classList.add("source");
    const button = make("button", line, `${placeOf(source, r, c)} = ${target.textContent}`);
    button.addEventListener("click", () => {
      kept = null;
      target.focus();
      target.scrollIntoView({ block: "center" });
    });
  }
}

function walk(cell, event) {
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const [name, row, column] = JSON.parse(cell.dataset.at);
  if (event.key === "Enter") kept = kept === cell ? null : cell;
  const move = moves[event.key];
  const next = move && cells.get(keyOf(name, row + move[0], column + move[1]));
  if (!next) return;
  event.preventDefault();
  cell.tabIndex = -1;
  next.tabIndex = 0;
  kept = null;
  next.focus();
}

function draw() {
  const main = document.getElementById("main");
  cells.clear();
  kept = null;
  main.replaceChildren();
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  document.title = say(data.title);
  const header = make("header", main);
  make("h1", header, say(data.title));
  const other = make("button", header, words[language].other);
  other.id = "language";
  other.addEventListener("click", () => {
    language = language === "en" ? "zh" : "en";
    draw();
  });
  const opening = make("section", main);
  data.opening.forEach((phrase) => make("p", opening, say(phrase)));
  data.steps.forEach((step, n) => drawStep(main, step, n + 1));
  showHint();
}

const cellOf = (event) => event.target.closest && event.target.closest("td[data-at]");
document.addEventListener("mouseover", (event) => {
  const cell = cellOf(event);
  if (cell && !kept) show(cell);
});
document.addEventListener("focusin", (event) => {
  const cell = cellOf(event);
  if (cell && !kept) show(cell);
});
document.addEventListener("click", (event) => {
  const cell = cellOf(event);
  if (!cell) return;
  kept = kept === cell ? null : cell;
  show(cell);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    kept = null;
    showHint();
  }
  const cell = cellOf(event);
  if (cell) walk(cell, event);
});
draw();
