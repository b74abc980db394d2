// Everything about one trial, in a panel at the side; in a comparison, of both runs. What decides comes first: the scores and why, the
// output and what was expected, and what the task did; then its attempts and what the run recorded about them.
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
    const isSame = this.isOpen && this.name === name, scroll = isSame ? this.element.scrollTop : 0, restore = isSame ? this.saveView() : () => this.element.querySelector("h2").focus({ preventScroll: true });
    if (!this.isOpen) this.opener = document.activeElement;
    this.name = name;
    const [run, trial] = sides.at(-1);
    this.element.replaceChildren(...[
      this.head(name),
      this.variants(run, trial),
      ...sides.flatMap((side) => this.status(...side)),
      missingRun ? el("p", { class: "faint", text: `not in run ${missingRun}` }) : "",
      this.scores(sides),
      ...this.outputs(sides),
      this.caseBlock("Input", "input", sides),
      ...sides.flatMap((side) => this.transcript(...side)),
      ...sides.flatMap((side) => this.changes(...side)),
      ...sides.flatMap((side) => this.attempts(...side)),
      this.caseBlock("Metadata", "metadata", sides),
      ...sides.map((side) => this.records(...side)),
    ].filter(Boolean));
    this.element.hidden = false;
    restore();
    this.element.scrollTop = scroll;
  }

  // A function that opens and closes the same parts again, and sets the focus, after the content was replaced.
  saveView() {
    const keyed = () => [...this.element.querySelectorAll("[data-key]")], states = new Map(keyed().map((element) => [element.dataset.key, element.open]));
    const focusKey = document.activeElement?.closest("[data-key]")?.dataset.key;
    return () => {
      for (const element of keyed()) {
        const isOpen = states.get(element.dataset.key);
        if (element.tagName === "DETAILS" && isOpen !== undefined) unfold(element, isOpen);
        if (element.dataset.key === focusKey) (element.querySelector("summary") ?? element).focus({ preventScroll: true });
      }
    };
  }

  head(name) {
    const button = (label, title, text, onclick) => el("button", { type: "button", class: "close", "data-key": label, "aria-label": label, title, onclick, text });
    return el("header", {}, el("h2", { id: "drawer-title", tabindex: -1, text: escapeInvisible(name) }),
      button("Previous trial", "Previous trial (k, ←)", "‹", () => this.onStep(-1)),
      button("Next trial", "Next trial (j, →)", "›", () => this.onStep(1)),
      button("Close", "Close (Esc)", "✕", () => this.close()));
  }

  // Handle a key while the drawer is open; return whether it was one of its keys.
  onKey(event) {
    const actions = { e: () => this.expandAll(), ArrowLeft: () => this.onStep(-1), ArrowRight: () => this.onStep(1) };
    if (!Object.hasOwn(actions, event.key) || event.shiftKey) return false;
    event.preventDefault();
    actions[event.key]();
    return true;
  }

  // Open all parts, including those inside others; if all are open, close them.
  expandAll() {
    const closed = () => [...this.element.querySelectorAll("details:not([open])")];
    if (!closed().length) return this.element.querySelectorAll("details").forEach((details) => { details.open = false; });
    for (let parts = closed(); parts.length; parts = closed()) parts.forEach((part) => unfold(part));
  }

  // The trials of the same case, to switch to.
  variants(run, trial) {
    const trials = run.hasVariants ? run.trialsOfCase(trial) : [];
    if (trials.length < 2) return "";
    const label = (other) => `${oneLine(run.variantOf(other), 30) || "no variant"}${trials.some((candidate) => run.trials.repeat[candidate] > 1) ? ` #${run.trials.repeat[other]}` : ""}`;
    return el("nav", { class: "chips", "aria-label": "Trials of this case" }, trials.slice(0, SHOWN_TRIALS).map((other) => el("button", { type: "button", "aria-pressed": String(other === trial), "data-key": `trial ${other}`, onclick: () => this.onTrial(run, other), text: label(other) })),
      trials.length > SHOWN_TRIALS ? el("span", { class: "faint", text: `and ${plural(trials.length - SHOWN_TRIALS, "more trial")}` }) : "");
  }

  // The stage and the latency; of a trial without an output, its last error.
  status(run, trial, label) {
    const { trials } = run, stage = run.stageOf(trial), reason = trials.reason[trial] ? ` (${trials.reason[trial]})` : "";
    const latency = trials.latency[trial] === null ? "" : ` · latency ${microseconds(trials.latency[trial])}`, error = stage === "failed" ? run.errorOf(trial) : null;
    return [
      el("p", { class: "status" }, label ? el("b", { text: `${label} ` }) : "", stageMark(stage), `${reason}, ${plural(trials.attempts[trial].length, "attempt")}${stepCount(run, trial)}${latency}${trials.answer[trial] ? ` · ${trials.answer[trial]}` : ""}`),
      error ? el("pre", { class: "error", dir: "auto", text: escapeInvisible(`${error[1]}: ${error[2]}`) }) : "",
    ];
  }

  scores(sides) {
    const names = [...new Set(sides.flatMap(([run]) => run.scorerNames))], callsBySide = sides.map(([run, trial]) => judgeCallsByScorer(run, trial));
    const judgeRow = (run, trial, name, calls, reason) => (calls ? el("tr", { class: "judge-row" }, el("td", { colspan: 3 }, judgeElement(run, trial, name, calls, reason, this))) : "");
    const rows = names.flatMap((name) => sides.map(([run, trial, label], side) => {
      const scorer = run.scorers.indexOf(name), value = run.scoreOf(scorer, trial), reason = run.trials.score_reasons[trial]?.[scorer], calls = callsBySide[side].get(name);
      callsBySide[side].delete(name);
      if (value === null && !reason && !calls) return [];
      return [el("tr", {}, el("th", { scope: "row", text: `${escapeInvisible(name)}${label ? ` in ${label}` : ""}` }),
        el("td", {}, value === null ? el("span", { class: "unscored", text: "no score" }) : scoreMark(value)),
        el("td", { class: `reason${reason?.error ? " error-text" : ""}`, dir: "auto", text: reason ? escapeInvisible(reason.error ?? fullText(reason)) : "" })), judgeRow(run, trial, name, calls, reason?.error ? null : reason)];
    })).flat();
    sides.forEach(([run, trial], side) => rows.push(...[...callsBySide[side]].map(([name, calls]) => judgeRow(run, trial, name, calls, null)))); // Of scorers that have no score, or whose name is unknown.
    for (const [run, trial] of sides) {
      for (const { name, value, reviewer, note, carried_from: origin } of run.labels?.[run.trials.name[trial]] ?? []) {
        rows.push(el("tr", { class: "label-row" }, el("th", { scope: "row", text: `label ${escapeInvisible(name)}` }), el("td", {}, scoreMark(value)),
          el("td", { class: "reason", dir: "auto", text: escapeInvisible(`${reviewer}${origin ? ", carried over from another run" : ""}${note ? `: ${note}` : ""}`) })));
      }
    }
    return rows.length ? el("table", { class: "scores" }, el("tbody", {}, rows)) : "";
  }

  // Expected and actual output, with the differences marked; of two runs, their outputs side by side.
  outputs(sides) {
    const [run, trial] = sides.at(-1), expected = run.trials.expected[trial], output = run.trials.output[trial];
    const expectedBlock = (marks) => (expected === null ? "" : this.block("Expected", expected, run, trial, marks));
    if (sides.length > 1) return [this.caseBlock("Expected", "expected", sides), this.pair("Output", "output", sides)];
    if (!run.trials.attempts[trial].some((span) => run.outcomeOf(span) === "succeeded")) return [expectedBlock()];
    if (expected === null || output === null) return [expectedBlock(), this.block("Output", output, run, trial)];
    if (fullText(expected) === fullText(output)) return [this.block("Output (as expected)", output, run, trial)];
    const passes = run.scorers.map((_, scorer) => run.scoreOf(scorer, trial)).filter((value) => typeof value === "boolean");
    const [expectedMarks, outputMarks] = passes.length && passes.every(Boolean) ? [] : difference(fullText(expected), fullText(output)) || [];
    return [el("div", { class: "pair" }, this.block("Output", output, run, trial, outputMarks), expectedBlock(expectedMarks))];
  }

  // A value of a case; of both runs if it differs between them. A case always has an input.
  caseBlock(title, name, sides) {
    const values = sides.map(([run, trial]) => run.trials[name][trial]), [run, trial] = sides[0];
    if (new Set(values.map((value) => JSON.stringify(value))).size > 1) return this.pair(title, name, sides);
    return values[0] === null && name !== "input" ? "" : this.block(title, values[0], run, trial);
  }

  // A value of both runs side by side, with the differences marked.
  pair(title, name, sides) {
    const values = sides.map(([run, trial]) => run.trials[name][trial]), marks = difference(...values.map((value) => fullText(value) ?? "")) || [];
    return el("div", { class: "pair" }, sides.map(([run, trial, label], index) => this.block(`${title} in ${label}`, values[index], run, trial, marks[index])));
  }

  block(title, value, run, trial, marks) {
    return el("div", { class: "block" }, el("h3", { text: title }), this.content(value, run, trial, marks));
  }

  // A value, or its text as `nodes` with differences marked; if it is truncated, also the command that prints all of it.
  content(value, run, trial, nodes) {
    const isTruncated = value && typeof value === "object" && !Array.isArray(value);
    const size = isTruncated && (value.bytes === undefined ? `of ${groupDigits(value.length)} characters` : `characters of ${groupDigits(value.bytes)} bytes`);
    return [nodes ? el("pre", { dir: "auto" }, nodes) : valueElement(value),
      isTruncated ? el("p", { class: "truncated" }, `First ${groupDigits(value.beginning.length)} ${size}. In full: `, this.showCommand(run, trial, " --json")) : ""];
  }

  showCommand(run, trial, options = "") {
    return el("code", { text: `${run.info.show_command} ${shellQuote(run.trials.name[trial])}${options}` });
  }

  // The attempt whose transcript is shown: the last one, or the last one with steps.
  shownAttempt(run, trial) {
    const attempts = run.trials.attempts[trial];
    return attempts.findLast((span) => run.stepsOf.has(span));
  }

  transcript(run, trial, label) {
    const span = this.shownAttempt(run, trial);
    if (span === undefined) return [];
    const attempts = run.trials.attempts[trial], number = attempts.length > 1 ? `, attempt ${run.spans.attempt[span]}` : "";
    return [el("div", { class: "section-head transcript-head" }, el("h3", { text: `Transcript${label ? ` in ${label}` : ""}${number}` }), link("Expand all", () => this.expandAll(), { "data-key": "Expand all", title: "Open everything; again: close (e)" })),
      ...transcriptElement(run, span, this)];
  }

  // The files that the last attempt has changed in its workspace, and the diff.
  changes(run, trial, label) {
    const span = run.trials.attempts[trial].findLast((attempt) => (run.spans.details[attempt] || {}).changes);
    if (span === undefined) return [];
    const { files, count, diff, more } = run.spans.details[span].changes, key = `diff ${run.info.path} ${span}`;
    const kind = (line) => (/^(---|\+\+\+|@@)/.test(line) ? "diff-head" : line[0] === "+" ? "diff-added" : line[0] === "-" ? "diff-removed" : "");
    const lines = () => el("pre", { class: "file-diff" }, diff.split("\n").map((line) => el("span", { class: kind(line), text: `${escapeInvisible(line)}\n` })));
    return [el("h3", { text: `Changed files${label ? ` in ${label}` : ""}` }),
      count ? el("ul", { class: "changed-files" }, files.map(([path, change]) => el("li", {}, el("code", { text: escapeInvisible(path) }), ` ${change}`))) : el("p", { class: "faint", text: "none" }),
      count > files.length ? el("p", { class: "faint", text: `and ${groupDigits(count - files.length)} more` }) : "",
      diff ? fold("Diff", () => [lines(), more ? el("p", { class: "faint" }, `${groupDigits(more)} more characters: `, this.showCommand(run, trial)) : ""], { "data-key": key, isOpen: true }) : ""];
  }

  attempts(run, trial, label) {
    return [el("h3", { text: label ? `Attempts in ${label}` : "Attempts" }), el("ol", { class: "attempts" }, run.trials.attempts[trial].map((span) => this.attempt(run, span)))];
  }

  attempt(run, span) {
    const { spans } = run, trial = spans.trial[span], details = spans.details[span] || {}, outcome = run.outcomeOf(span);
    const error = details.error === undefined ? null : run.errors[details.error], steps = run.stepsOf.get(span);
    const key = (name) => ({ "data-key": `${name} ${run.info.path} ${span}` });
    const line = (text) => el("p", { class: "faint", text });
    return el("li", {},
      el("div", { class: "attempt-head" }, outcomeMark(outcome, { "aria-hidden": "true" }),
        el("b", { text: `attempt ${spans.attempt[span]}` }), ` ${OUTCOMES[outcome].label}${details.reason ? ` (${asWords(details.reason)}${details.detail ? `: ${oneLine(details.detail, 60)}` : ""})` : ""} after ${duration(run.endOf(span) - run.startOf(span))}`,
        link(`seq ${groupDigits(spans.seq[span])}`, () => this.onSeq(run, spans.seq[span]), { title: "Show the state at the start of this attempt" })),
      error ? fold(el("span", { class: "error-text", text: oneLine(`${error[1]}: ${error[2]}`, PREVIEW_CHARS) }), () => el("pre", { class: "error", dir: "auto", text: escapeInvisible(`${error[1]}: ${error[2]}${error[3] ? `\n\n${error[3]}` : ""}`) }), key("error")) : "",
      steps && span !== this.shownAttempt(run, trial) ? fold(`Transcript: ${plural(steps.length, "step")}`, () => transcriptElement(run, span, this), key("transcript")) : "",
      !steps && details.reuses ? line(reuseText(run, span, [])) : "",
      details.request === undefined ? "" : fold("Request", () => this.content(details.request, run, trial), key("request")),
      details.retry_after === undefined ? "" : line(`Retry-After: ${duration(details.retry_after)}`),
      details.late_outcome ? line(`returned late (${asWords(details.late_outcome)}); result discarded`) : "",
      details.retry_in === undefined ? "" : line(`retry in ${duration(details.retry_in)} (${asWords(details.retry_reason)})`),
      ...(details.notes || []).filter(([name]) => name === NOT_REUSED).map(([, value]) => line(notReusedText(value))));
  }

  // Times, places, usage and notes: what was recorded besides the results.
  records(run, trial, label) {
    const { trials, spans } = run, total = Object.keys(TIMES).reduce((sum, name) => sum + trials[name][trial], 0);
    const isDone = ["completed", "failed"].includes(run.stageOf(trial)), line = (text) => el("p", { class: "faint", text });
    const noteText = ([name, value]) => `${oneLine(name, 40)} ${typeof value === "number" ? number(value) : oneLine(value, 200)}`;
    const attempt = (span) => {
      const details = spans.details[span] || {}, notes = [...(details.usage === undefined ? [] : [["usage", details.usage]]), ...(details.notes || []).filter(([name]) => name !== NOT_REUSED)];
      return [el("h4", { text: `attempt ${spans.attempt[span]}` }),
        line(`waited ${microseconds(spans.queue_time[span])} · backoff ${microseconds(spans.backoff_time[span])} · ${details.batch || `slot ${spans.slot[span]}`}${workerOf(details)} · session ${spans.session[span]}`),
        notes.length ? line(notes.map(noteText).join(" · ")) : "",
        details.more_notes ? line(`and ${plural(details.more_notes, "more note")}`) : ""];
    };
    return fold(`Records${label ? ` in ${label}` : ""}`, () => [
      line(`waited ${microseconds(trials.queue_time[trial])} · backoff ${microseconds(trials.backoff_time[trial])} · in attempts ${microseconds(trials.run_time[trial])} · scoring ${microseconds(trials.scoring_time[trial])}${isDone ? ` · time to completion ${microseconds(total)}` : ""}`),
      ...trials.attempts[trial].flatMap(attempt),
      el("p", { class: "faint command" }, "In full: ", this.showCommand(run, trial)),
    ], { class: "records", "data-key": `records ${run.info.path}` });
  }
}
