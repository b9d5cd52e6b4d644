// Text: elements and figures as text. Every text from the tree becomes a text node, and never HTML.

export const $ = (id) => document.getElementById(id);

// Makes an element. A child that is not an element becomes a text node.
export function el(kind, attributes = {}, ...children) {
  const element = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  element.append(...children);
  return element;
}

// Sets an attribute if it has another value. `null` removes it.
export function set(element, name, value) {
  const text = value === null ? null : String(value);
  if (element.getAttribute(name) === text) return;
  if (text === null) element.removeAttribute(name);
  else element.setAttribute(name, text);
}

// Sets the text of an element that has no other children.
export function put(element, text) {
  if (element.put === text) return;
  element.put = text;
  // A new text node would have the browser lay out more. A translator of pages puts an element in its place.
  if (element.firstChild instanceof Text) element.firstChild.data = text;
  else element.textContent = text;
}

const UNITS = ["", "K", "M", "G", "T"];

// Bytes, rounded to three digits: "12.3M". `null` is no limit.
export function bytes(value) {
  if (value === null) return "max";
  let unit = 0;
  while (value >= 1023.5 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  if (unit === 0) return String(value);
  const digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  const text = value.toFixed(digits);
  return (digits > 0 ? text.replace(/\.?0+$/, "") : text) + UNITS[unit];
}

// Bytes without rounding, as a control file takes them: "64M", "1000".
export function exact(value) {
  if (value === null) return "max";
  let unit = 0;
  while (value > 0 && value % 1024 === 0 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return value + UNITS[unit];
}

const COUNT = new Intl.NumberFormat("en");

export const count = (value) => COUNT.format(value);

export function percent(value) {
  return (value > 0 && value < 9.95 ? value.toFixed(1) : value.toFixed(0)) + " %";
}

// A duration in microseconds.
export function duration(us) {
  if (us < 1000) return us + " µs";
  if (us < 1e6) return (us / 1000).toFixed(us < 1e4 ? 1 : 0) + " ms";
  if (us < 6e7) return (us / 1e6).toFixed(1) + " s";
  return Math.floor(us / 6e7) + " min " + Math.floor((us % 6e7) / 1e6) + " s";
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB");
}

// The part of the limit that is used, from 0; `null` without a limit.
export function used(usage, max) {
  if (max === null) return null;
  return max > 0 ? usage / max : usage > 0 ? Infinity : 0;
}

// The level of usage as a class.
export function level(ratio) {
  return ratio === null ? "none" : ratio >= 0.9 ? "full" : ratio >= 0.75 ? "near" : "ok";
}

// The used part of the limit as text, rounded down: 100 % is full.
export function partText(ratio) {
  return (ratio >= 0.9 ? "! " : "") + (ratio === Infinity ? "more than all" : percent(ratio < 0.1 ? 100 * ratio : Math.floor(100 * ratio)));
}

export function usedText(ratio, max) {
  return ratio === null ? "no limit" : partText(ratio) + " of " + bytes(max);
}
