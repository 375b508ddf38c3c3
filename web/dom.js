// Small helpers to make elements. Text only ever arrives as textContent, so no token can become
// markup.

// element("button", { class: "x", onclick: f, "aria-label": "..." }, "text", child, ...)
export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked" || key === "disabled") node[key] = value;
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// Puts new children in, and leaves the node where it is.
export function fill(node, ...children) {
  node.replaceChildren(
      ...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
}

// Puts the parts of a look that are others than before on whoever has it: puts are { part: (who,
// value) => ... }. Returns what it looks like now.
export function dress(puts, who, now, before) {
  for (const part in puts)
    if (now[part] !== before[part]) puts[part](who, now[part]);
  return now;
}

// Words in place of others: their node stays.
export function write(node, words) {
  if (node.firstChild && words) node.firstChild.data = words;
  else node.textContent = words;
}

// A row of buttons of which one is pressed: choices are [value, words, hint or nothing].
export function segmented(label, choices, value, choose) {
  const buttons = choices.map(
      ([choice, words, title]) => element(
          "button", {
            type: "button",
            title,
            "data-value": choice,
            "aria-pressed": String(choice === value),
            onclick: () => choose(choice),
          },
          words));
  return element("div", { class: "segmented", role: "group", "aria-label": label }, buttons);
}

export function press(group, value) {
  for (const button of group.children) {
    button.setAttribute("aria-pressed", String(button.dataset.value === String(value)));
  }
}

// Four digits that count: 0.9731, 0.01234, 1.2e-7; not a number is said in words by the caller.
export function number(value, digits = 4) {
  if (!Number.isFinite(value)) return String(value).replace("Infinity", "∞").replace("-", "−");
  const size = Math.abs(Number(value.toPrecision(digits)));  // 0.99996 is 1.000
  let text;
  if (value === 0) text = "0";
  else if (size < 1e-4 || size >= 1e7) text = value.toExponential(Math.max(0, digits - 2));
  else if (Number.isInteger(value)) text = String(value);
  else text = value.toFixed(Math.max(0, Math.min(6, digits - 1 - Math.floor(Math.log10(size)))));
  return text.replace("-", "−");
}

// Scores beside each other: as many decimals for all, 0.83, 1.00; of two runs "0.14 → 0.97". What
// would become 0 keeps its digits. Empty if none is a number.
export function scores(values, decimals = 2) {
  if (!values.some(Number.isFinite)) return "";
  const one = (value) =>
      (!Number.isFinite(value) ? "–"
           : value !== 0 && Math.abs(value) < 0.5 * 10 ** -decimals
           ? number(value, 2)
           : value.toFixed(decimals).replace("-", "−"));
  return values.map(one).join(" → ");
}

export function signed(value, digits = 4) { return (value > 0 ? "+" : "") + number(value, digits); }

export function clamp(value, low, high) { return Math.min(Math.max(value, low), high); }
