// Everything about one trial, in a panel at the side; in a comparison, of both runs.
"use strict";

const SHOWN_TRIALS = 60;

// A name as an argument for a shell.
const shellQuote = (name) => /^[\w@%+=:,./-]+$/.test(name) ? name : `'${escapeInvisible(name).replaceAll("'", "'\"'\"'")}'`;

class Drawer {
  constructor(element, { onClose, onSeq, onTrial, onStep }) {
    Object.assign(this, { element, onClose, onSeq, onTrial, onStep, name: null });
  }

  get isOpen() { return !this.element.hidden; }

  close() {
    if (!this.isOpen) return;
    this.element.hidden = true;
    this.name = null;
    if (this.opener?.isConnected) this.opener.focus({ preventScroll: true });
    this.onClose(Boolean(this.opener?.isConnected));
  }

  // Show a trial. `sides` has [run, number of the trial, label of the run] for each run that has it.
  open(name, sides, missingRun) {
    const isSame = this.isOpen && this.name === name, scroll = isSame ? this.element.scrollTop : 0;
    if (!this.isOpen) this.opener = document.activeElement;
    this.name = name;
    const [run, trial] = sides.at(-1), { trials } = run;
    const fill = isSame ? refill : (element, ...children) => element.replaceChildren(...children);
    fill(this.element,
      el("header", {}, el("h2", { id: "drawer-title", tabindex: -1, text: escapeInvisible(name) }),
        el("button", { type: "button", class: "close", "aria-label": "Previous trial", title: "Previous trial (k)", onclick: () => this.onStep(-1), text: "‹" }),
        el("button", { type: "button", class: "close", "aria-label": "Next trial", title: "Next trial (j)", onclick: () => this.onStep(1), text: "›" }),
        el("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => this.close(), text: "✕" })),
      this.variants(run, trial),
      ...sides.flatMap((side) => this.status(...side)),
      missingRun ? el("p", { class: "faint", text: `not in run ${missingRun}` }) : "",
      this.scores(sides),
      this.block("Input", trials.input[trial], run, trial),
      ...this.outputs(sides),
      ...sides.flatMap(([side, number, label]) => [el("h3", { text: label ? `Attempts in ${label}` : "Attempts" }), el("ol", { class: "attempts" }, side.trials.attempts[number].map((span) => this.attempt(side, span)))]),
      trials.metadata[trial] === null ? "" : this.block("Metadata", trials.metadata[trial], run, trial),
      el("p", { class: "faint command" }, "In full: ", sides.map(([side, number]) => el("code", { text: `${side.info.show_command} ${shellQuote(side.trials.name[number])}` }))));
    this.element.hidden = false;
    this.element.scrollTop = scroll;
    if (!isSame) this.element.querySelector("h2").focus({ preventScroll: true });
  }

  // The trials of the same case, to switch to.
  variants(run, trial) {
    const trials = run.hasVariants ? run.trialsOfCase(trial) : [];
    if (trials.length < 2) return "";
    const label = (other) => `${oneLine(run.variantOf(other), 30) || "no variant"}${trials.some((candidate) => run.trials.repeat[candidate] > 1) ? ` #${run.trials.repeat[other]}` : ""}`;
    return el("nav", { class: "chips", "aria-label": "Trials of this case" }, trials.slice(0, SHOWN_TRIALS).map((other) => el("button", { type: "button", "aria-pressed": String(other === trial), onclick: () => this.onTrial(run, other), text: label(other) })),
      trials.length > SHOWN_TRIALS ? el("span", { class: "faint", text: `and ${plural(trials.length - SHOWN_TRIALS, "more trial")}` }) : "");
  }

  status(run, trial, label) {
    const { trials } = run, reason = trials.reason[trial] ? ` (${asWords(trials.reason[trial])})` : "";
    const latency = trials.latency[trial] === null ? [] : [`latency ${microseconds(trials.latency[trial])}`];
    const total = Object.keys(TIMES).reduce((sum, name) => sum + trials[name][trial], 0);
    const timeToCompletion = ["completed", "failed"].includes(run.stageOf(trial)) ? [`time to completion ${microseconds(total)}`] : [];
    return [
      el("p", { class: "status" }, label ? el("b", { text: `${label} ` }) : "", stageMark(run.stageOf(trial)), `${reason}, ${plural(trials.attempts[trial].length, "attempt")}${stepCount(run, trial)}`, trials.recovered[trial] ? ", recovered after a failure" : ""),
      el("p", { class: "faint", text: `waited ${microseconds(trials.queue_time[trial])} · backoff ${microseconds(trials.backoff_time[trial])} · in attempts ${microseconds(trials.run_time[trial])} · scoring ${microseconds(trials.scoring_time[trial])}` }),
      el("p", { class: "faint", text: [...latency, ...timeToCompletion].join(" · ") }),
    ];
  }

  scores(sides) {
    const names = [...new Set(sides.flatMap(([run]) => run.scorerNames))];
    const rows = names.flatMap((name) => sides.map(([run, trial, label]) => {
      const scorer = run.scorers.indexOf(name), value = run.scoreOf(scorer, trial), reason = run.trials.score_reasons[trial]?.[scorer];
      if (value === null && !reason) return null;
      return el("tr", {}, el("th", { scope: "row", text: `${escapeInvisible(name)}${label ? ` in ${label}` : ""}` }),
        el("td", {}, value === null ? el("span", { class: "unscored", text: "scorer failure" }) : scoreMark(value)),
        el("td", { class: "reason", text: reason ? escapeInvisible(reason.error ?? fullText(reason)) : "" }));
    })).filter(Boolean);
    return rows.length ? el("table", { class: "scores" }, el("tbody", {}, rows)) : "";
  }

  // Expected and actual output, with the differences marked; of two runs, their outputs side by side.
  outputs(sides) {
    const [run, trial] = sides.at(-1), expected = run.trials.expected[trial], [a, b] = sides.map(([side, number]) => side.trials.output[number]);
    const expectedBlock = (marks) => (expected === null ? "" : this.block("Expected", expected, run, trial, marks));
    if (sides.length > 1) {
      const marks = difference(fullText(a) ?? "", fullText(b) ?? "") || [];
      return [expectedBlock(), el("div", { class: "pair" }, sides.map(([side, number, label], index) => this.block(`Output in ${label}`, side.trials.output[number], side, number, marks[index])))];
    }
    if (!run.trials.attempts[trial].some((span) => run.outcomeOf(span) === "succeeded")) return [expectedBlock()];
    if (expected === null || a === null) return [expectedBlock(), this.block("Output", a, run, trial)];
    if (fullText(expected) === fullText(a)) return [this.block("Output (as expected)", a, run, trial)];
    const passes = run.scorers.map((_, scorer) => run.scoreOf(scorer, trial)).filter((value) => typeof value === "boolean");
    const [expectedMarks, outputMarks] = passes.length && passes.every(Boolean) ? [] : difference(fullText(expected), fullText(a)) || [];
    return [el("div", { class: "pair" }, expectedBlock(expectedMarks), this.block("Output", a, run, trial, outputMarks))];
  }

  block(title, value, run, trial, content) {
    return el("div", { class: "block" }, el("h3", { text: title }), this.content(value, run, trial, content));
  }

  content(value, run, trial, marks) {
    const isTruncated = value && typeof value === "object" && !Array.isArray(value);
    const size = isTruncated && (value.bytes === undefined ? `of ${groupDigits(value.length)} characters` : `characters of ${groupDigits(value.bytes)} bytes`);
    return [el("pre", { tabindex: 0, dir: "auto" }, marks || escapeInvisible(fullText(value) ?? "null")),
      isTruncated ? el("p", { class: "truncated" }, `First ${groupDigits(value.beginning.length)} ${size}. In full: `, el("code", { text: `${run.info.show_command} ${shellQuote(run.trials.name[trial])} --json` })) : ""];
  }

  attempt(run, span) {
    const { spans } = run, trial = spans.trial[span], details = spans.details[span] || {}, outcome = run.outcomeOf(span);
    const error = details.error === undefined ? null : run.errors[details.error];
    const notes = [...(details.usage === undefined ? [] : [["usage", details.usage]]), ...(details.notes || []).filter(([name]) => name !== NOT_REUSED)];
    const line = (text) => el("p", { class: "faint", text });
    return el("li", {},
      el("div", { class: "attempt-head" }, outcomeMark(outcome, { "aria-hidden": "true" }),
        el("b", { text: `attempt ${spans.attempt[span]}` }), ` ${OUTCOMES[outcome].label}${details.reason ? ` (${asWords(details.reason)}${details.detail ? `: ${oneLine(details.detail, 60)}` : ""})` : ""} after ${duration(run.endOf(span) - run.startOf(span))}`,
        link(`seq ${groupDigits(spans.seq[span])}`, () => this.onSeq(run, spans.seq[span]), { title: "Show the state at the start of this attempt" })),
      line(`waited ${microseconds(spans.queue_time[span])} · backoff ${microseconds(spans.backoff_time[span])} · slot ${spans.slot[span]}${workerOf(details)} · session ${spans.session[span]}`),
      details.request === undefined ? "" : el("details", {}, el("summary", { text: "Request" }), this.content(details.request, run, trial)),
      stepList(run, span, this),
      error ? el("pre", { class: "error", tabindex: 0, text: escapeInvisible(`${error[1]}: ${error[2]}`) }) : "",
      error && error[3] ? el("details", {}, el("summary", { text: "Traceback" }), el("pre", { tabindex: 0, text: escapeInvisible(error[3]) })) : "",
      details.retry_after === undefined ? "" : line(`Retry-After: ${duration(details.retry_after)}`),
      details.late_outcome ? line(`returned late (${asWords(details.late_outcome)}); result discarded`) : "",
      details.retry_in === undefined ? "" : line(`retry in ${duration(details.retry_in)} (${asWords(details.retry_reason)})`),
      ...(details.notes || []).filter(([name]) => name === NOT_REUSED).map(([, value]) => line(notReusedText(value))),
      notes.length ? line(notes.map(([name, value]) => `${oneLine(name, 40)} ${typeof value === "number" ? number(value) : oneLine(value, 200)}`).join(" · ")) : "",
      details.more_notes ? line(`and ${plural(details.more_notes, "more note")}; in full: ${run.info.show_command} ${shellQuote(run.trials.name[trial])}`) : "");
  }
}
