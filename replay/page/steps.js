// The steps of an attempt: a waterfall whose rows open to show messages, tool calls and usage.
"use strict";

const NOT_REUSED = "evaljournal.step_not_reused";
const SHOWN_STEPS = 300;
const STEP_FAILED = 1, STEP_REUSED = 2, STEP_NOT_REUSABLE = 3; // 0: completed.

// The step that has the content of a step: itself, or the completed step that it reuses; -1 if the page does not have it.
function sourceOf(run, step) {
  const { seq, completed_seq, outcome } = run.steps;
  if (outcome[step] !== STEP_REUSED) return step;
  const index = lastIndex(seq, completed_seq[step]);
  return index >= 0 && seq[index] === completed_seq[step] && outcome[index] !== STEP_REUSED ? index : -1;
}

// Steps as [depth, step] in the order of their starts, each after its caller: the same as replay.runs.trajectory.steps_with_depth.
function stepsWithDepth(run, steps) {
  const { number, parent } = run.steps, sortedSteps = [...steps].sort((a, b) => number[a] - number[b]);
  const numbers = new Set(sortedSteps.map((step) => number[step])), callees = new Map();
  for (const step of sortedSteps) {
    const caller = parent[step] > 0 && parent[step] < number[step] && numbers.has(parent[step]) ? parent[step] : 0;
    if (!callees.has(caller)) callees.set(caller, []);
    callees.get(caller).push(step);
  }
  const take = (caller) => { const steps = callees.get(caller) || []; callees.delete(caller); return steps.reverse(); };
  const stack = take(0).map((step) => [0, step]), result = [];
  while (stack.length) {
    const [depth, step] = stack.pop();
    result.push([depth, step]);
    stack.push(...take(number[step]).map((callee) => [depth + 1, callee]));
  }
  return result;
}

function stepCount(run, trial) {
  const steps = run.trials.attempts[trial].flatMap((span) => run.stepsOf.get(span) || []);
  const count = steps.filter((step) => run.steps.outcome[step] !== STEP_REUSED).length;
  return count ? `, ${plural(count, "step")}` : "";
}

// The steps that an attempt reused from earlier attempts: the same text as replay.render.trajectory.reuse_text.
function reuseText(run, span, steps) {
  const { outcome, number, parent, span: spans } = run.steps, { attempt, trial, details } = run.spans, firstAttempt = details[span]?.reuses;
  if (!firstAttempt || run.stepsOmitted) return "";
  const earlierAttempts = run.trials.attempts[trial[span]].filter((other) => attempt[other] >= firstAttempt && attempt[other] < attempt[span]);
  const earlierSteps = earlierAttempts.flatMap((other) => run.stepsOf.get(other) || []), caller = new Map(), byNumber = new Map();
  for (const step of earlierSteps) { // Each use of a step replaces its caller.
    const source = sourceOf(run, step);
    byNumber.set(`${spans[step]} ${number[step]}`, source);
    if (source >= 0) caller.set(source, `${spans[step]} ${parent[step]}`);
  }
  const reusedSteps = steps.filter((step) => outcome[step] === STEP_REUSED), reusedCount = reusedSteps.length, reusedSources = new Set(reusedSteps.map((step) => sourceOf(run, step)));
  const isUsed = (step) => { // Reused, or called by a reused step.
    for (let depth = 0; step !== undefined && depth <= earlierSteps.length; depth++) {
      if (reusedSources.has(step)) return true;
      step = byNumber.get(caller.get(step));
    }
    return false;
  };
  const reusable = reusedCount + earlierSteps.filter((step) => outcome[step] === 0 && !isUsed(step)).length;
  const executedNumbers = steps.filter((step) => outcome[step] !== STEP_REUSED && outcome[step] !== STEP_NOT_REUSABLE).map((step) => number[step]);
  const continuation = !executedNumbers.length ? "" : ` and ${reusedCount < reusable ? "diverged" : "continued"} at step ${groupDigits(Math.min(...executedNumbers))}`;
  return `reused ${groupDigits(reusedCount)} of ${plural(reusable, "step")}${continuation}`;
}

function notReusedText(value) {
  const { step, problem } = parseObject([String(value)]);
  return step === undefined ? `a step is executed again; its result could not be read: ${oneLine(value, 300)}` : `step ${oneLine(step, 40)} is executed again; its result could not be read: ${oneLine(problem, 200)}`;
}

function stepList(run, span, drawer) {
  const steps = run.stepsOf.get(span) || [], head = reuseText(run, span, steps);
  if (!steps.length) return head ? el("p", { class: "faint", text: head }) : "";
  const rows = stepsWithDepth(run, steps), inFull = () => el("code", { text: `${run.info.show_command} ${shellQuote(run.trials.name[run.spans.trial[span]])}` });
  return el("div", { class: "trajectory" },
    head ? el("p", { class: "faint", text: head }) : "",
    el("p", { class: "faint step-legend", "aria-hidden": "true" }, [...run.stepKinds, "failed", "reused"].map((kind) => el("span", {}, el("i", { class: `step-bar ${kind}` }), kind))),
    el("ol", { class: "steps", "aria-label": `Steps of attempt ${run.spans.attempt[span]}` }, rows.slice(0, SHOWN_STEPS).map(([depth, step]) => stepRow(run, span, step, depth, drawer))),
    rows.length > SHOWN_STEPS ? el("p", { class: "faint" }, `and ${plural(rows.length - SHOWN_STEPS, "more step")}; in full: `, inFull()) : "",
    run.stepsOmitted ? el("p", { class: "faint" }, "This page does not have all steps of the run; in full: ", inFull()) : "");
}

function stepRow(run, span, step, depth, drawer) {
  const { steps } = run, source = sourceOf(run, step), outcome = steps.outcome[step];
  const name = source < 0 ? "step" : run.stepNames[steps.name[source]], kind = source < 0 ? "other" : run.stepKinds[steps.kind[source]];
  const outcomeText = outcome === STEP_REUSED ? "reused" : outcome === STEP_FAILED ? "failed" : "";
  const label = el("span", { class: "step-name" }, el("span", { class: "step-number", text: groupDigits(steps.number[step]) }), el("span", { class: "step-text", text: oneLine(name, 80) }));
  label.style.paddingLeft = `${Math.min(depth, 8)}em`;
  const bar = el("i", { class: `step-bar ${kind} ${outcomeText}` }), start = run.spans.start[span];
  const total = Math.max(1, 1e6 * (run.endOf(span) - run.startOf(span))), share = (time) => 100 * Math.min(1, Math.max(0, time / total));
  bar.style.left = `${share(steps.end[step] - steps.duration[step] - start)}%`;
  bar.style.width = `${share(steps.duration[step])}%`;
  return el("li", { class: outcomeText }, el("details", {},
    el("summary", { "aria-label": `step ${steps.number[step]}, ${kind}, ${oneLine(name, 80)}, ${outcomeText || "completed"}${outcomeText === "reused" ? "" : ` after ${microseconds(steps.duration[step])}`}` },
      label, el("span", { class: "step-track", "aria-hidden": "true" }, bar), el("span", { class: "step-time", text: outcomeText === "reused" ? outcomeText : `${outcomeText === "failed" ? "✕ " : ""}${microseconds(steps.duration[step])}` })),
    ...stepContent(run, span, step, source, drawer)));
}

function stepContent(run, span, step, source, drawer) {
  const { steps } = run, trial = run.spans.trial[span];
  const content = (source >= 0 && steps.content[source]) || {}, isReused = steps.outcome[step] === STEP_REUSED;
  const kind = source < 0 ? "" : run.stepKinds[steps.kind[source]], from = source < 0 ? "an earlier attempt" : `attempt ${run.spans.attempt[steps.span[source]]}`;
  const usage = isReused ? [] : Object.entries(content.usage || {}).map(([name, value]) => amount(name, value));
  const notes = [kind, isReused ? `reused from ${from}` : "", ...usage, content.continues ? `after the messages of step ${groupDigits(content.continues)}` : ""].filter(Boolean).join(" · ");
  const part = (label, value) => el("div", { class: "message" }, el("h4", { text: label }), drawer.content(value, run, trial));
  return [
    el("p", { class: "faint" }, link(`seq ${groupDigits(steps.seq[step])}`, () => drawer.onSeq(run, steps.seq[step]), { title: "Show the state at the end of this step" }), ` ${notes}`),
    ...(content.messages || []).map(([role, text]) => part(oneLine(role, 40) || "message", text)),
    content.input === undefined ? "" : part("input", content.input),
    content.reply === undefined ? "" : part("reply", content.reply),
    content.output === undefined ? "" : part("output", content.output),
    content.error === undefined ? "" : el("pre", { class: "error", tabindex: 0, text: escapeInvisible(content.error) }),
    content.shortened ? el("p", { class: "truncated" }, "The page has no room for its messages. In full: ", el("code", { text: `${run.info.show_command} ${shellQuote(run.trials.name[trial])} --steps full` })) : "",
  ];
}
