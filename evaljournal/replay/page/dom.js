// Creating and changing elements. All text goes into text nodes, never into markup.
"use strict";

const FOCUSABLE = "a, button, input, select, summary, [tabindex]";

// Create an element. "text" is its text, "on…" adds a listener, everything else is an attribute.
function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return element;
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Replace the children of an element; the focus within it and opened <details> are kept.
function refill(element, ...children) {
  const focusIndex = [...element.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
  const openStates = [...element.querySelectorAll("details")].map((details) => details.open);
  element.replaceChildren(...children.filter((child) => child !== ""));
  element.querySelectorAll("details").forEach((details, index) => unfold(details, Boolean(openStates[index])));
  if (focusIndex >= 0) element.querySelectorAll(FOCUSABLE)[focusIndex]?.focus({ preventScroll: true });
}

const link = (text, onclick, attributes) => el("button", { type: "button", class: "link", text, onclick, ...attributes });

const MAX_COLUMNS = 12; // In a table with more, and on a narrow page, each row is a list of its cells with their labels.

function table(kind, heads, rows) {
  for (const row of rows) [...row.children].forEach((cell, index) => { if (heads[index]) cell.setAttribute("data-label", heads[index]); });
  return el("table", { class: `data ${kind} ${heads.length > MAX_COLUMNS ? "listed" : "narrow-listed"}` },
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col", text: head })))), el("tbody", {}, rows));
}

const SHOWN_NAMES = 6;

// The number and the first names of the cases that broke or were fixed; `show` makes a node of a name.
function changedNames(kind, names, show) {
  if (!names.length) return "";
  const more = names.length - SHOWN_NAMES;
  return el("span", { class: "changed-names", "data-kind": kind }, el("b", { class: `change ${kind}`, text: `${kind} (${groupDigits(names.length)}): ` }), names.slice(0, SHOWN_NAMES).flatMap((name, index) => [index ? ", " : "", show(name)]), more > 0 ? `, and ${groupDigits(more)} more` : "");
}

const numberCell = (text) => el("td", { class: "num", text });
const sectionHead = (id, title, hint) => el("div", { class: "section-head" }, el("h2", { id, text: title }), hint ? el("p", { class: "hint" }, hint) : "");
const outcomeClass = (outcome) => `end-${(outcome || "open").replaceAll("_", "-")}`;

// A small square with the color and the letter of an outcome.
const outcomeMark = (outcome, attributes) => el("i", { class: `pip ${outcomeClass(outcome)}`, text: OUTCOMES[outcome]?.letter ?? "?", ...attributes });

const PASS_TEXTS = { true: "✓ pass", false: "✗ fail" };

function scoreMark(value) {
  if (typeof value === "boolean") return el("span", { class: value ? "pass" : "fail", text: PASS_TEXTS[value] });
  return el("span", { class: "value", text: typeof value === "number" ? digits(value, 3) : oneLine(value, 40) });
}
