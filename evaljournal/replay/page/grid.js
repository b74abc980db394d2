// The layout of results with one row for each case, and a column for each variant: its score and output.
"use strict";

class CasesLayout {
  constructor(side) {
    Object.assign(this, { run: side.run, unit: "case", resultName: "variant", wrongName: "failing", rows: [], variants: [], hasTargets: true });
    this.changes = { differ: { label: "differ", keep: (row) => row.differs } };
  }

  get isPresent() { return Boolean(this.run.info.variants); }
  get scorers() { return this.run.scorerNames; }

  // A row has the trials of a case for each variant, and their values of a score; a case whose content has changed has a row for each content.
  update(scorerName) {
    if (!this.isPresent) return;
    const { run } = this, { trials } = run, rows = new Map();
    this.variants = run.info.variants.rows.map(({ name }) => name);
    const columns = run.variants.map((name) => this.variants.indexOf(name));
    this.scorer = this.scorers.includes(scorerName) ? scorerName : run.info.variants.score ?? this.scorers[0] ?? "";
    for (const trial of trials.name.keys()) {
      const column = columns[trials.variant[trial]];
      if (column < 0 || run.stageOf(trial) === "withdrawn") continue;
      const name = run.caseOf(trial), key = `${trials.fingerprint[trial]}\n${name}`;
      if (!rows.has(key)) rows.set(key, { case: name, name: key, number: rows.size, members: [], cells: this.variants.map(() => []) });
      rows.get(key).cells[column].push(trial);
      rows.get(key).members.push([run, trial]);
    }
    this.rows = [...rows.values()];
    this.byTrial = new Map(this.rows.flatMap((row) => row.members.map(([, trial]) => [trial, row])));
    this.hasExpected = trials.expected.some((value) => value !== null);
    const scorer = run.scorers.indexOf(this.scorer);
    for (const row of this.rows) {
      for (const cell of row.cells) cell.sort((a, b) => trials.repeat[a] - trials.repeat[b]);
      row.results = row.cells.map((cell) => cellResult(run, cell, scorer));
      row.differs = new Set(row.results.map(({ value }) => value).filter((value) => value !== null)).size > 1;
      row.rank = Math.min(...row.members.map(([, trial]) => wrongness(run, trial)), 0) * (row.differs ? 100 : 1);
    }
    this.range = numberRange(trials.scores[scorer] || []);
  }

  // Cases on which variants differ come before those that fail with all of them.
  order = ({ rank }) => rank;
  isWrong = ({ rank }) => rank < 0;
  rowOf(trial) { return this.byTrial.get(trial); }
  columnOf(row, trial) { return row.cells.findIndex((cell) => cell.includes(trial)); }

  // The name of the first trial of a case with a variant.
  trialAt(row, column) {
    const [trial] = row.cells[column] || [];
    return trial === undefined ? null : this.run.trials.name[trial];
  }

  columns() {
    const { run } = this, { trials } = run, trialOf = (row) => row.members[0][1];
    return [
      { id: "number", label: "case", min: 10, share: 0.9, priority: 0, isTitle: true, cell: (row) => [el("div", { class: "title", text: oneLine(row.case, 200) }), textBlock(rawText(trials.input[trialOf(row)]), { class: "text faint" })], key: ({ number }) => number },
      ...(this.hasExpected ? [textColumn("expected", 8, 0.7, 3, (row) => trials.expected[trialOf(row)])] : []),
      ...this.variants.map((name, column) => ({
        id: `variant-${name}`, label: oneLine(name, 60), name, min: 13, share: 1, priority: column < 2 ? 1 : 4, isResult: true, kind: "result", target: column,
        cellKind: (row) => row.results[column].kind, cell: (row) => this.cell(row, column), key: (row) => row.results[column].level ?? row.results[column].share ?? Infinity,
      })),
    ];
  }

  cell(row, column) {
    const { run } = this, trials = row.cells[column], { text, level } = row.results[column];
    if (!trials.length) return el("span", { class: "faint", text: NONE });
    const trial = trials.find((candidate) => run.stageOf(candidate) === "completed") ?? trials[0], bar = level !== null && this.range ? el("i", { class: "level", "aria-hidden": "true" }) : "";
    if (bar) bar.style.width = `${(100 * (level - this.range[0])) / (this.range[1] - this.range[0])}%`;
    return [el("div", { class: "mark", text }), bar, outputCell(run, trial)].flat();
  }
}

// The smallest and the largest number of a score: 0 and 1 if all are between them; null without different numbers.
function numberRange(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (typeof value !== "number") continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low >= 0 && high <= 1 ? [0, 1] : low < high ? [low, high] : null;
}

// The result of the repeats of a case with one variant: a kind (for its color), a text, the mean of its numbers for a bar, and a
// value to compare with other variants; null if there is no result yet.
function cellResult(run, trials, scorer) {
  const completedTrials = trials.filter((trial) => run.stageOf(trial) === "completed"), failedCount = trials.filter((trial) => run.stageOf(trial) === "failed").length, openCount = trials.length - completedTrials.length - failedCount;
  const scores = completedTrials.map((trial) => run.scoreOf(scorer, trial)).filter((value) => value !== null);
  const othersText = countList([[failedCount, failedCount === 1 ? "error" : "errors"], [openCount, "open"]], ", "), suffix = trials.length > 1 && othersText ? `, ${othersText}` : "";
  const result = (kind, text, value, level = null) => ({ kind, text: text + suffix, level, share: typeof value === "number" ? value : undefined, value: JSON.stringify([value, failedCount / trials.length]) });
  const isNumber = (value) => typeof value === "number", mean = (values) => values.reduce((sum, value) => sum + Number(value), 0) / values.length;
  if (!completedTrials.length) {
    const stage = STAGES[failedCount ? "failed" : trials.length ? run.stageOf(trials[0]) : "queued"], text = trials.length > 1 ? othersText : `${stage.glyph} ${stage.label}`;
    return { kind: failedCount ? "failed" : "open", text, level: null, value: failedCount && !openCount ? "failed" : null };
  }
  if (scorer < 0) return result("unscored", completedTrials.length < trials.length || trials.length > 1 ? `${completedTrials.length} of ${trials.length} with output` : "", [...new Set(completedTrials.map((trial) => rawText(run.trials.output[trial])))].sort());
  if (!scores.length) return { kind: "unscored", text: `not scored${suffix}`, level: null, value: null };
  if (scores.every((value) => typeof value === "boolean")) {
    const passCount = scores.filter(Boolean).length, kind = passCount === trials.length ? "pass" : passCount ? "mixed" : "fail";
    return result(kind, trials.length > 1 ? `${{ pass: "✓", mixed: "±", fail: "✗" }[kind]} ${passCount} of ${trials.length} pass` : PASS_TEXTS[scores[0]], passCount / scores.length);
  }
  if (scores.every(isNumber)) return result("value", trials.length > 1 ? `mean ${digits(mean(scores), 3)}, n = ${scores.length}` : digits(scores[0], 3), mean(scores), mean(scores));
  const counts = new Map();
  for (const value of scores.map(String)) counts.set(value, (counts.get(value) || 0) + 1);
  const [[label, count]] = [...counts].sort((a, b) => b[1] - a[1]);
  return result("value", trials.length > 1 ? `${oneLine(label, 24)} ${count} of ${trials.length}` : oneLine(label, 24), [...counts].sort());
}
