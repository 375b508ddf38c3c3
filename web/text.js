// The words of the page in the language that was chosen.
import {kEnglish} from "./words_en.js";
import {kChinese} from "./words_zh.js";

let words = kEnglish;

export function setLanguage(language) {
  words = language === "zh" ? kChinese : kEnglish;
  document.documentElement.lang = language === "zh" ? "zh" : "en";
}

// The words of a key; a key that does not exist is returned as it is.
export function say(key, values = {}) {
  return (words[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
}

// Words in which some {names} become elements: a list of strings and elements.
export function sayWith(key, values) {
  return (words[key] ?? key)
      .split(/\{(\w+)\}/)
      .map((part, n) => (n % 2 ? values[part] ?? "" : part));
}
