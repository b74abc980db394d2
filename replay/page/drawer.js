// All there is to know of one trial, at the side of the page.
"use strict";

const MOST_TOKENS = 1200; // Of each of two texts that are compared word by word; longer ones only at their ends.

function tokens(text) {
  return text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];
}

function isBlank(token) {
  return !token.trim();
}

// Mark which words of either text the other does not have, in order. Blanks decide nothing: every text is full of them.
function difference(a, b) {
  const one = tokens(a), two = tokens(b);
  let begin = 0, endOne = one.length, endTwo = two.length;
  while (begin < endOne && begin < endTwo && one[begin] === two[begin]) begin += 1;
  while (endOne > begin && endTwo > begin && one[endOne - 1] === two[endTwo - 1]) { endOne -= 1; endTwo -= 1; }
  const keptOne = new Uint8Array(one.length).fill(1), keptTwo = new Uint8Array(two.length).fill(1);
  keptOne.fill(0, begin, endOne);
  keptTwo.fill(0, begin, endTwo);
  const rows = endOne - begin, columns = endTwo - begin;
  if (rows && columns && rows <= MOST_TOKENS && columns <= MOST_TOKENS) {
    const lengths = new Uint16Array((rows + 1) * (columns + 1)), wide = columns + 1;
    for (let row = rows - 1; row >= 0; row--) {
      for (let column = columns - 1; column >= 0; column--) {
        lengths[row * wide + column] = one[begin + row] === two[begin + column] ? lengths[(row + 1) * wide + column + 1] + (isBlank(one[begin + row]) ? 1 : 32) : Math.max(lengths[(row + 1) * wide + column], lengths[row * wide + column + 1]);
      }
    }
    for (let row = 0, column = 0; row < rows && column < columns;) {
      if (one[begin + row] === two[begin + column]) { keptOne[begin + row] = keptTwo[begin + column] = 1; row += 1; column += 1; }
      else if (lengths[(row + 1) * wide + column] >= lengths[row * wide + column + 1]) row += 1;
      else column += 1;
    }
  }
  return [marked(one, keptOne, "gone"), marked(two, keptTwo, "new")];
}

function marked(parts, kept, kind) {
  const nodes = [];
  for (let at = 1; at + 1 < parts.length; at++) if (kept[at] && isBlank(parts[at]) && !kept[at - 1] && !kept[at + 1]) kept[at] = 0;
  for (let at = 0; at < parts.length;) {
    let end = at;
    while (end < parts.length && kept[end] === kept[at]) end += 1;
    const text = visible(parts.slice(at, end).join(""));
    nodes.push(kept[at] ? text : el("mark", { class: kind, text }));
    at = end;
  }
  return nodes;
}

class Drawer {
  constructor(element, { onClose, onSeq }) {
    this.element = element;
    this.onClose = onClose;
    this.onSeq = onSeq;
    this.trial = -1;
  }

  get isOpen() {
    return !this.element.hidden;
  }

  close() {
    if (!this.isOpen) return;
    this.element.hidden = true;
    this.trial = -1;
    this.before?.focus({ preventScroll: true });
    this.onClose();
  }

  // Show a trial; where the same stands in another run, that beside it.
  open(run, trial, other) {
    const isSame = this.isOpen && this.trial === trial && this.run === run;
    if (!this.isOpen) this.before = document.activeElement;
    this.run = run;
    this.trial = trial;
    const { trials } = run, stage = run.stageOf(trial), scroll = isSame ? this.element.scrollTop : 0;
    const cause = trials.cause[trial] ? ` (${words(trials.cause[trial])})` : "";
    const times = `waited ${micro(trials.waited[trial])} · backoff ${micro(trials.backed_off[trial])} · service ${micro(trials.served[trial])} · scoring ${micro(trials.scored[trial])}`;
    const fill = isSame ? refill : (element, ...children) => element.replaceChildren(...children);
    fill(this.element,
      el("header", {}, el("h2", { id: "drawer-title", tabindex: -1, text: visible(trials.name[trial]) }),
        el("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => this.close(), text: "✕" })),
      el("p", { class: "status" }, el("i", { class: `stage ${stage}`, text: STAGES[stage].glyph }), ` ${STAGES[stage].words}${cause}, ${plural(trials.attempts[trial].length, "attempt")}`, trials.recovered[trial] ? ", recovered after a failure" : ""),
      el("p", { class: "faint", text: times }),
      this.scores(run, trial),
      this.block("Input", trials.input[trial], run, trial),
      ...this.answers(run, trial),
      ...(other ? this.otherRun(run, trial, other) : []),
      el("h3", { text: "Attempts" }),
      el("ol", { class: "attempts" }, trials.attempts[trial].map((span) => this.attempt(run, span))),
      trials.metadata[trial] === null ? "" : this.block("Metadata", trials.metadata[trial], run, trial),
      el("p", { class: "faint command" }, "all of it: ", el("code", { text: `${run.facts.show} ${quoted(trials.name[trial])}` })));
    this.element.hidden = false;
    this.element.scrollTop = scroll;
    if (!isSame) this.element.querySelector("h2").focus({ preventScroll: true });
  }

  scores(run, trial) {
    const { trials, scorers } = run, reasons = trials.reasons[trial] || {};
    const rows = scorers.map((name, scorer) => {
      const value = trials.scores[scorer]?.[trial], reason = reasons[scorer];
      if ((value === null || value === undefined) && !reason) return null;
      const failed = reason && reason.error !== undefined;
      return el("tr", {}, el("th", { scope: "row", text: visible(name) }),
        el("td", {}, value === null || value === undefined ? el("span", { class: "unscored", text: "could not judge" }) : scoreMark(value)),
        el("td", { class: "reason", text: reason ? visible(failed ? reason.error : plain(reason)) : "" }));
    }).filter(Boolean);
    return rows.length ? el("table", { class: "scores" }, el("tbody", {}, rows)) : "";
  }

  answers(run, trial) {
    const { trials } = run, expected = plain(trials.expected[trial]), output = plain(trials.output[trial]);
    const has = run.trials.attempts[trial].some((span) => run.endingOf(span) === "succeeded");
    if (expected === null || !has || output === null) {
      return [expected === null ? "" : this.block("Expected", trials.expected[trial], run, trial), has ? this.block("Output", trials.output[trial], run, trial) : ""];
    }
    if (expected === output) return [this.block("Output, as expected", trials.output[trial], run, trial)];
    const [gone, fresh] = difference(expected, output);
    return [el("div", { class: "pair" },
      this.block("Expected", trials.expected[trial], run, trial, gone), this.block("Output", trials.output[trial], run, trial, fresh))];
  }

  otherRun(run, trial, { run: other, label, own }) {
    const at = other.numbers.get(run.trials.name[trial]);
    if (at === undefined) return [el("p", { class: "faint", text: `not in run ${label}` })];
    const mine = plain(run.trials.output[trial]) ?? "", theirs = plain(other.trials.output[at]) ?? "";
    const [a, b] = difference(theirs, mine);
    return [el("h3", { text: `Run ${label} beside run ${own}` }), el("div", { class: "pair" },
      this.block(`Output in ${label}`, other.trials.output[at], other, at, a), this.block(`Output in ${own}`, run.trials.output[trial], run, trial, b)),
      el("p", { class: "faint" }, `Scores in ${label}:`), this.scores(other, at)];
  }

  block(title, value, run, trial, content) {
    const isCut = value && typeof value === "object" && !Array.isArray(value);
    const text = plain(value);
    return el("div", { class: "block" }, el("h3", { text: title }),
      el("pre", { tabindex: 0, dir: "auto" }, content || visible(text === null ? "null" : text)),
      isCut ? el("p", { class: "cut" }, `the first ${grouped(value.beginning.length)} of ${grouped(value.length)}; the whole: `, el("code", { text: `${run.facts.show} ${quoted(run.trials.name[trial])} --json` })) : "");
  }

  attempt(run, span) {
    const { spans } = run, details = spans.details[span] || {}, ending = run.endingOf(span), said = ENDINGS[ending];
    const error = details.error === undefined ? null : run.errors[details.error];
    const used = { ...(details.usage === undefined ? {} : { usage: details.usage }), ...(details.notes || {}) };
    return el("li", {},
      el("div", { class: "attempt-head" }, el("i", { class: `pip end-${(ending || "open").replaceAll("_", "-")}`, text: said.letter, "aria-hidden": "true" }),
        el("b", { text: `attempt ${spans.attempt[span]}` }), ` ${said.words}${details.why ? ` (${words(details.why)})` : ""} after ${duration(run.endOf(span) - run.startOf(span))}`,
        el("button", { type: "button", class: "link", text: `seq ${grouped(spans.seq[span])}`, title: "Show the run as it stood when it began", onclick: () => this.onSeq(spans.seq[span]) })),
      el("p", { class: "faint", text: `waited ${micro(spans.waited[span])}, backoff ${micro(spans.backed_off[span])} · slot ${spans.slot[span]} · session ${spans.session[span]}` }),
      error ? el("pre", { class: "error", tabindex: 0, text: visible(`${error[1]}: ${error[2]}`) }) : "",
      error && error[3] ? el("details", {}, el("summary", { text: "Traceback" }), el("pre", { tabindex: 0, text: visible(error[3]) })) : "",
      details.retry_after === undefined ? "" : el("p", { class: "faint", text: `asked to be left alone for ${duration(details.retry_after)}` }),
      details.late_ending ? el("p", { class: "faint", text: `came back after it had been given up (${words(details.late_ending)}); not used` }) : "",
      details.retry_in === undefined ? "" : el("p", { class: "faint", text: `to be tried again in ${duration(details.retry_in)}: ${words(details.retry_cause)}` }),
      Object.keys(used).length ? el("p", { class: "faint used", text: Object.entries(used).map(([name, value]) => `${oneLine(name, 40)} ${typeof value === "number" ? number(value) : oneLine(value, 200)}`).join(" · ") }) : "");
  }
}

function quoted(name) {
  return /^[\w@%+=:,./-]+$/.test(name) ? name : `'${visible(name).replaceAll("'", "'\"'\"'")}'`;
}
