// The steps of an attempt: their order, and which of them were reused.
"use strict";

const NOT_REUSED = "evaljournal.step_not_reused";
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
