// Formatting of numbers, times and untrusted text, and the labels of stages and outcomes.
"use strict";

const NONE = "–";

const groupDigits = (value) => Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");

function digits(value, count) {
  if (value === 0) return "0";
  const places = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(value))));
  return places > 12 ? value.toExponential(count - 1) : String(Number(value.toFixed(Math.min(places, 12))));
}

function number(value) {
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? groupDigits(value) : digits(value, 4);
}

// $1,234.50, $0.0234, $0.0000234: the same as replay.text.money.
function money(dollars) {
  if (!(Math.abs(dollars) < 1)) return `$${groupDigits(Math.trunc(dollars))}${dollars.toFixed(2).slice(-3)}`;
  return `$${dollars.toFixed(dollars === 0 ? 2 : Math.min(12, Math.max(2, 2 - Math.floor(Math.log10(Math.abs(dollars))))))}`;
}

// A sum of usage: the same as in replay.render.summary. `models` are those whose calls have no price.
function amount(name, value, models = []) {
  const label = oneLine(asWords(name.replace("judge.", "judge ")), 30);
  if (!/^(?:judge\.)?unpriced_calls$/.test(name)) return `${label} ${/cost/i.test(name) ? money(value) : number(value)}`;
  const names = models.slice(0, 3).map((model) => oneLine(model, 40));
  if (models.length > 3) names.push(`${models.length - 3} more`);
  return `${plural(value, label.replace("unpriced calls", "call"))} without a price${names.length ? ` (${names.join(", ")})` : ""}`;
}

// 0.93 ms, 0.24 s, 12 s, 3 min 20 s, 10 min, 2 h 5 min: the same as replay.text.duration.
function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds > 0 && seconds < 0.1) return `${digits(1000 * seconds, 2)} ms`;
  if (seconds < 10) return `${digits(Math.max(0, seconds), 2)} s`;
  const wholeSeconds = Math.round(seconds);
  if (wholeSeconds < 60) return `${wholeSeconds} s`;
  if (wholeSeconds < 3600) return wholeSeconds % 60 ? `${Math.floor(wholeSeconds / 60)} min ${wholeSeconds % 60} s` : `${wholeSeconds / 60} min`;
  const minutes = Math.floor((wholeSeconds % 3600) / 60);
  return `${groupDigits(Math.floor(wholeSeconds / 3600))} h${minutes ? ` ${minutes} min` : ""}`;
}

const microseconds = (value) => duration(value / 1e6);
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const plural = (count, one, many) => `${groupDigits(count)} ${count === 1 ? one : many || `${one}s`}`;

// Counts with their names, without zeros: "2 failed · 1 open".
const countList = (counts, separator = " · ") => counts.filter(([count]) => count).map(([count, name]) => `${groupDigits(count)} ${name}`).join(separator);

// A name from the journal as words: "rate_limited" as "rate limited".
const asWords = (name) => String(name).replaceAll("_", " ");
const workerOf = (details) => (details.worker ? ` · worker ${oneLine(details.worker, 40)}` : "");

// Control characters, and characters that are invisible or change the direction of text, are shown by their code.
function escapeInvisible(text) {
  return String(text).replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff0-\ufffc]/g,
    (char) => (char === "\r" ? "⟨CR⟩" : `⟨U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`),
  );
}

function oneLine(text, length) {
  const line = String(text).slice(0, length + 1).replace(/\s+/g, " ");
  return escapeInvisible(line.length > length ? `${line.slice(0, length - 1).replace(/[\ud800-\udbff]$/, "")}…` : line); // Without half a surrogate pair.
}

// A value in the data is a text, the JSON of another value in an array, or {beginning, length} or {beginning, bytes} if it is truncated.
function rawText(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : Array.isArray(value) ? value[0] : value.beginning;
}

// A score in a few characters.
function scoreText(value) {
  if (value === null || value === undefined) return NONE;
  if (value === true || value === false) return value ? "pass" : "fail";
  return typeof value === "number" ? digits(value, 3) : oneLine(value, 24);
}

const hasInterval = ({ low, high }) => low !== null && high !== null;

const OUTCOMES = {
  "": { letter: "…", label: "in flight" },
  succeeded: { letter: "", label: "succeeded" },
  failed: { letter: "E", label: "failed" },
  rate_limited: { letter: "R", label: "rate limited" },
  unavailable: { letter: "U", label: "unavailable" },
  fatal: { letter: "F", label: "fatal error" },
  timed_out: { letter: "T", label: "timed out" },
  interrupted: { letter: "I", label: "interrupted" },
};

const STAGES = {
  queued: { glyph: "○", label: "queued" },
  running: { glyph: "◔", label: "running" },
  scoring: { glyph: "◑", label: "being scored" },
  unsettled: { glyph: "◌", label: "unsettled" },
  interrupted: { glyph: "◌", label: "interrupted" },
  backing_off: { glyph: "◷", label: "in backoff" },
  completed: { glyph: "●", label: "output" },
  failed: { glyph: "✕", label: "error" },
  withdrawn: { glyph: "–", label: "withdrawn" },
};
