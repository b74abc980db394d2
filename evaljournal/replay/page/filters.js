// Filters of results. A chip keeps trials by result; further filters, each as [kind, name, value], keep them by score, variant,
// metadata or error. Several values of one name are alternatives; filters of different names must all match.
"use strict";

const SHOWN_VALUES = 40; // A metadata key with more values is no filter.
const DONE = ["completed", "failed", "withdrawn"];

const RESULTS = {
  all: { label: "all", keep: () => true },
  fails: { label: "fails", keep: (run, trial) => run.failingScorers(trial).length > 0 },
  errors: { label: "errors", keep: (run, trial) => run.stageOf(trial) === "failed" },
  scorer_errors: { label: "scorer errors", keep: (run, trial) => run.scorers.some((_, scorer) => run.scorerError(scorer, trial)) },
  truncated: { label: "truncated", keep: (run, trial) => run.hasAnswer(trial, "truncated") },
  declined: { label: "declined", keep: (run, trial) => run.hasAnswer(trial, "declined") },
  retried: { label: "retried", keep: (run, trial) => run.trials.recovered[trial] === 1 },
  slowest: { label: "slowest 5 %", keep: (run, trial) => run.trials.latency[trial] !== null && run.trials.latency[trial] / 1e6 >= run.info.summary.latency.p95 },
  open: { label: "open", keep: (run, trial) => !DONE.includes(run.stageOf(trial)) },
};

const FILTERS = {
  score: {
    keep(run, trial, name, value) {
      const scorer = run.scorers.indexOf(name), score = run.scoreOf(scorer, trial);
      if (value === null) return Boolean(run.scorerError(scorer, trial));
      return Array.isArray(value) ? typeof score === "number" && score >= value[0] && score <= value[1] : score === value;
    },
    text: (name, value) => `${name} ${value === null ? "scorer error" : typeof value === "boolean" ? (value ? "passes" : "fails") : Array.isArray(value) ? "from … to …" : `is ${value}`}`,
  },
  variant: { keep: (run, trial, _, value) => run.variantOf(trial) === value, text: (_, value) => `variant ${value}` },
  metadata: { keep: (run, trial, name, value) => metadataValue(run, trial, name) === value, text: (name, value) => `${name}: ${value ?? "none"}` },
  error: { keep: (run, trial, name, value) => run.errorGroups[value]?.[1] === name && run.trials.attempts[trial].some((span) => run.errors[run.spans.details[span]?.error]?.[4] === value), text: (name) => `error ${name}` },
};

// Whether a trial matches all filters.
function matchesAll(filters, run, trial) {
  return filters.every(([kind, name]) => filters.some((other) => other[0] === kind && other[1] === name && FILTERS[kind].keep(run, trial, name, other[2])));
}

const isFilter = (filter) => Array.isArray(filter) && filter.length === 3 && Object.hasOwn(FILTERS, filter[0]);

// The values of each metadata key that groups cases: Map of key → Map of value → count. A key with more values than half of the
// cases is an identifier or a text.
function metadataValues(sides) {
  const keys = new Map(), cases = new Set();
  for (const { run, trials } of sides) {
    for (const trial of trials) {
      cases.add(run.caseOf(trial));
      for (const [key, value] of Object.entries(run.metadataOf(trial))) {
        if (value === null) continue;
        if (!keys.has(key)) keys.set(key, new Map());
        const counts = keys.get(key), label = typeof value === "string" ? value : JSON.stringify(value);
        if (counts.size <= SHOWN_VALUES) counts.set(label, (counts.get(label) || 0) + 1);
      }
    }
  }
  return new Map([...keys].filter(([, counts]) => counts.size <= Math.min(SHOWN_VALUES, cases.size / 2)).slice(0, 30));
}

// The value of a metadata key as text; null if the trial has none.
function metadataValue(run, trial, key) {
  const metadata = run.metadataOf(trial), value = Object.hasOwn(metadata, key) ? metadata[key] : null;
  return value === null ? null : typeof value === "string" ? value : JSON.stringify(value);
}

// The filters that some trial matches, as [title of the group, [filter, count]…]; a range of numbers has no count.
function filterGroups(sides) {
  const groups = [], byCount = (counts) => [...counts].sort((a, b) => b[1] - a[1]).slice(0, SHOWN_VALUES);
  for (const name of scorersOf(sides)) {
    const counts = new Map();
    let low = Infinity, high = -Infinity;
    for (const { run, trials } of sides) {
      const scorer = run.scorers.indexOf(name);
      for (const trial of trials) {
        const score = run.scoreOf(scorer, trial);
        if (typeof score === "number") { low = Math.min(low, score); high = Math.max(high, score); }
        else if (score !== null || run.scorerError(scorer, trial)) counts.set(score, (counts.get(score) || 0) + 1);
      }
    }
    const options = byCount(counts).sort(([a], [b]) => (b === false) - (a === false)).map(([value, count]) => [["score", name, value], count]);
    if (low < high) options.unshift([["score", name, [low, high]], null]);
    if (options.length) groups.push([name, options]);
  }
  const variants = new Map();
  for (const { run, trials } of sides) if (run.hasVariants) for (const trial of trials) variants.set(run.variantOf(trial), (variants.get(run.variantOf(trial)) || 0) + 1);
  variants.delete("");
  if (variants.size > 1) groups.push(["variant", [...variants].map(([name, count]) => [["variant", "", name], count])]);
  for (const [key, counts] of metadataValues(sides)) groups.push([key, [...byCount(counts).map(([value, count]) => [["metadata", key, value], count]), [["metadata", key, null], null]]]);
  return groups;
}

const scorersOf = (sides) => [...new Set(sides.flatMap(({ run }) => run.scorerNames))];
