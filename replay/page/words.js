// How things are said: numbers, times, texts from elsewhere, and the elements that hold them.
// Every text reaches the page as the content of a text node, and in no other way.
"use strict";

const NONE = "–";
const FOCUSED = "a, button, input, select, summary, [tabindex]";

function grouped(value) {
  return Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

function digits(value, most) {
  if (value === 0) return "0";
  const places = Math.max(0, most - 1 - Math.floor(Math.log10(Math.abs(value))));
  return places > 12 ? value.toExponential(most - 1) : String(Number(value.toFixed(Math.min(places, 12))));
}

function number(value) {
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? grouped(value) : digits(value, 4);
}

// 0.93 ms, 0.24 s, 12 s, 3 min 20 s, 10 min, 2 h 5 min: as the commands say it.
function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds > 0 && seconds < 0.1) return `${digits(1000 * seconds, 2)} ms`;
  if (seconds < 10) return `${digits(Math.max(0, seconds), 2)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return whole % 60 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${whole / 60} min`;
  const minutes = Math.floor((whole % 3600) / 60);
  return `${grouped(Math.floor(whole / 3600))} h${minutes ? ` ${minutes} min` : ""}`;
}

function micro(value) {
  return duration(value / 1e6);
}

function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

function plural(count, one, many) {
  return `${grouped(count)} ${count === 1 ? one : many || `${one}s`}`;
}

function words(name) {
  return String(name).replaceAll("_", " ");
}

// Characters that show nothing, or turn the text around, are told by their names.
function visible(text) {
  return String(text).replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff0-\ufffc]/g,
    (char) => (char === "\r" ? "⟨CR⟩" : `⟨U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`),
  );
}

function oneLine(text, most) {
  const line = String(text).slice(0, most + 1).replace(/\s+/g, " ");
  return visible(line.length > most ? `${line.slice(0, most - 1)}…` : line);
}

// A value of the run, as the data have it: a text, the JSON of something else, or the beginning of a long one.
function plain(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "string") return value;
  if (!Array.isArray(value)) return value.beginning;
  try {
    const parsed = JSON.parse(value[0]);
    // A number that JavaScript cannot hold is left as it stands.
    return JSON.stringify(parsed) === value[0] ? JSON.stringify(parsed, null, 2) : value[0];
  } catch {
    return value[0];
  }
}

function raw(value) {
  return value === null || value === undefined ? "" : typeof value === "string" ? value : Array.isArray(value) ? value[0] : value.beginning;
}

// Make an element. What begins with "on" listens; "text" is its text; everything else is an attribute.
function el(tag, given, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return made;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Put other children into an element; what had the focus there has it still, and what was unfolded is.
function refill(element, ...children) {
  const place = [...element.querySelectorAll(FOCUSED)].indexOf(document.activeElement);
  const open = [...element.querySelectorAll("details")].map((each) => each.open);
  element.replaceChildren(...children);
  element.querySelectorAll("details").forEach((each, at) => { each.open = Boolean(open[at]); });
  if (place >= 0) element.querySelectorAll(FOCUSED)[place]?.focus({ preventScroll: true });
}

const ENDINGS = {
  "": { letter: "…", words: "going on" },
  succeeded: { letter: "", words: "answered" },
  failed: { letter: "E", words: "error" },
  rate_limited: { letter: "R", words: "rate limited" },
  unavailable: { letter: "U", words: "unavailable" },
  fatal: { letter: "F", words: "fatal" },
  timed_out: { letter: "T", words: "timed out" },
  interrupted: { letter: "I", words: "cut off" },
};

const STAGES = {
  queued: { glyph: "○", words: "queued" },
  running: { glyph: "◔", words: "running" },
  answered: { glyph: "◑", words: "being scored" },
  unsettled: { glyph: "◌", words: "unsettled" },
  interrupted: { glyph: "◌", words: "cut off" },
  backing_off: { glyph: "◷", words: "in backoff" },
  completed: { glyph: "●", words: "ok" },
  failed: { glyph: "✕", words: "failed" },
  withdrawn: { glyph: "–", words: "withdrawn" },
};
