// Values as elements: JSON as a tree whose numbers keep their digits, everything else as text.
"use strict";

const JSON_TOKENS = /"[^"\\]*(?:\\[^][^"\\]*)*"|[[\]{},:]|[^\s[\]{},:"]+/g;
const TREE_CHARS = 1 << 16; // Longer JSON is text with indentation.
const INLINE_CHARS = 72;
const OPEN_DEPTH = 3; // Objects and lists at this depth are closed at first, unless they are short.
const MAX_DEPTH = 64; // JSON that is nested more deeply is text, with indentation up to here.

const isJson = (text) => { try { JSON.parse(text); return true; } catch { return false; } };

// JSON with indentation. It is not parsed: a number that JavaScript cannot represent must not be changed.
function indentJson(text) {
  const parts = text.match(JSON_TOKENS) || [], lines = [];
  let depth = 0;
  const newLine = () => `\n${"  ".repeat(Math.min(depth, MAX_DEPTH))}`;
  parts.forEach((token, index) => {
    const isEmpty = (token === "{" || token === "[") && "}]".includes(parts[index + 1]);
    if (token === "{" || token === "[") { depth += 1; lines.push(token, isEmpty ? "" : newLine()); }
    else if (token === "}" || token === "]") { depth -= 1; lines.push(["{", "["].includes(parts[index - 1]) ? "" : newLine(), token); }
    else lines.push(token, token === "," ? newLine() : token === ":" ? " " : "");
  });
  return lines.join("");
}

// The text of a value with JSON indented; null if there is no value.
function fullText(value) {
  if (value === null || value === undefined) return null;
  return Array.isArray(value) && isJson(value[0]) ? indentJson(value[0]) : rawText(value);
}

// An object or a list as {isList, fields: [[key, value]], size}, any other value as its JSON; null if it is nested too deeply.
function parseJson(text) {
  const parts = text.match(JSON_TOKENS);
  let index = 0, isTooDeep = false;
  const read = (depth) => {
    const token = parts[index++];
    if (token !== "{" && token !== "[") return token;
    if (depth > MAX_DEPTH) { isTooDeep = true; index = parts.length; }
    const isList = token === "[", fields = [];
    let size = 2;
    while (index < parts.length && parts[index] !== "}" && parts[index] !== "]") {
      if (parts[index] === ",") index += 1;
      const key = isList ? null : parts[index];
      if (!isList) index += 2;
      const value = read(depth + 1);
      fields.push([key, value]);
      size += (key?.length ?? 0) + (value.size ?? (value.includes("\\n") ? INLINE_CHARS : value.length)) + 4; // A text of several lines is not inline.
    }
    index += 1;
    return { isList, fields, size };
  };
  const value = read(0);
  return isTooDeep ? null : value;
}

function inlineJson(value) {
  if (typeof value === "string") return value;
  const fields = value.fields.map(([key, field]) => `${key === null ? "" : `${key}: `}${inlineJson(field)}`).join(", ");
  return value.isList ? `[${fields}]` : `{${fields}}`;
}

function jsonTree(value, depth = 0, key = null) {
  const label = key === null ? "" : el("span", { class: "json-key", text: `${escapeInvisible(key)}: ` });
  if (typeof value === "string") {
    const text = value.startsWith('"') ? JSON.parse(value) : "";
    if (text.length > INLINE_CHARS || text.includes("\n")) return el("div", {}, label, el("div", { class: "json-text", dir: "auto", text: escapeInvisible(text) }));
    return el("div", {}, label, el("span", { class: value.startsWith('"') ? "json-string" : "json-literal", text: escapeInvisible(value) }));
  }
  if (value.size <= INLINE_CHARS) return el("div", {}, label, escapeInvisible(inlineJson(value)));
  const count = plural(value.fields.length, value.isList ? "item" : "field");
  return fold([label, el("span", { class: "faint", text: value.isList ? `[${count}]` : `{${count}}` })], () => value.fields.map(([name, field], index) => jsonTree(field, depth + 1, name ?? String(index))), { isOpen: depth < OPEN_DEPTH });
}

// A <details> whose content is created when it is first opened.
function fold(summary, content, { isOpen = false, ...attributes } = {}) {
  const details = el("details", attributes, el("summary", { onclick: () => details.fill() }, summary));
  let isFilled = false;
  details.fill = () => { if (!isFilled) { isFilled = true; details.append(...[content()].flat().filter(Boolean)); } };
  if (isOpen) unfold(details);
  return details;
}

function unfold(details, isOpen = true) {
  if (isOpen) details.fill?.();
  details.open = isOpen;
}

// A value as text, or as a tree if it is JSON, also if it is a text that contains JSON.
function valueElement(value) {
  const text = rawText(value), mayBeJson = Array.isArray(value) || (typeof value === "string" && /^\s*[[{]/.test(value));
  if (mayBeJson && text.length <= TREE_CHARS && /^\s*[[{]/.test(text) && isJson(text)) {
    const tree = parseJson(text);
    if (tree) return el("div", { class: "json" }, jsonTree(tree));
  }
  return el("pre", { dir: "auto", text: escapeInvisible(fullText(value) ?? "null") });
}
