// The layout of results with one row for each trial in A and B: both outputs in full with the words that differ, and what changed.
"use strict";

// How a trial differs between A and B, in the order of the rows.
const CHANGES = {
  broken: "broken", fixed: "fixed", changed: "changed", only_a: "only in A", only_b: "only in B",
  different: "different content", open: "not done in both", same: "same",
};

// Both texts as nodes, with the words marked that differ, unless they are too long to compare.
const markedTexts = (a, b) => difference(a, b) ?? [[escapeInvisible(a)], [escapeInvisible(b)]];

class PairsLayout {
  constructor(sides, comparison) {
    Object.assign(this, { sides, comparison, unit: "trial", resultName: "score", wrongName: "broken", isPresent: true, hasTargets: false, rows: [] });
    this.changes = { ...Object.fromEntries(Object.entries(CHANGES).filter(([id]) => id !== "open").map(([id, label]) => [id, { label, keep: (row) => row.change === id }])), slower: { label: "slower", keep: (row) => row.slower !== undefined } };
  }

  // A row has the number of the trial in each side, -1 if a side does not have it. As in `compare`, trials with the same case, variant
  // and repeat are in one row; of two variants, those with the same case and repeat. The row's name is the id of the trial, unless
  // another row has this name.
  update() {
    const byKey = new Map(), names = new Set(), isWhole = this.sides.some(({ variant }) => variant === null);
    this.rows = [];
    this.rowsOf = this.sides.map(() => new Map()); // Side → trial → its row.
    for (const index of [1, 0]) {
      const { run, trials, label } = this.sides[index];
      for (const trial of trials) {
        const key = JSON.stringify([run.caseOf(trial), isWhole ? run.variantOf(trial) : "", run.trials.repeat[trial]]);
        let row = byKey.get(key);
        if (!row || row.trials[index] >= 0) {
          const repeat = run.trials.repeat[trial];
          let name = isWhole ? run.trials.name[trial] : `${run.caseOf(trial)}${repeat > 1 ? `#${repeat}` : ""}`;
          while (names.has(name)) name += ` (${label})`;
          row = { name, number: this.rows.length, trials: [-1, -1], members: [] };
          names.add(name);
          byKey.set(key, row);
          this.rows.push(row);
        }
        row.trials[index] = trial;
        this.rowsOf[index].set(trial, row);
      }
    }
    this.byName = new Map(this.rows.map((row) => [row.name, row]));
    for (const row of this.rows) row.members = this.sides.map(({ run }, index) => [run, row.trials[index]]).filter(([, trial]) => trial >= 0);
    this.hasExpected = this.rows.some(({ members }) => members.some(([run, trial]) => run.trials.expected[trial] !== null));
    this.readChanges();
  }

  readChanges() {
    const { comparison } = this, [, { run }] = this.sides, rowOf = (name) => this.rowsOf[1].get(run.numbers.get(name));
    for (const row of this.rows) row.change = row.trials.includes(-1) ? (row.trials[0] < 0 ? "only_b" : "only_a") : row.members.every(([side, trial]) => ["completed", "failed"].includes(side.stageOf(trial))) ? "same" : "open";
    for (const name of comparison.different_content) rowOf(name).change = "different";
    for (const kind of ["broken", "fixed", "changed"]) for (const details of comparison[kind]) Object.assign(rowOf(details.trial), { change: kind, details });
    for (const slower of comparison.slower) rowOf(slower.trial).slower = slower;
  }

  order = (row) => Object.keys(CHANGES).indexOf(row.change);
  isWrong = (row) => row.change === "broken";
  trialAt(row) { return row.name; }

  // The trials of a row as [run, number of the trial, label of the side].
  sidesOf(row) { return this.sides.map(({ run, label }, index) => [run, row.trials[index], label]).filter(([, trial]) => trial >= 0); }

  // The value of the last side that has the trial.
  last(row, value) { return value(...row.members.at(-1)); }

  // A text of the case; both texts if A and B differ.
  caseText(row, name) {
    const texts = this.sidesOf(row).map(([run, trial, label]) => [label, rawText(run.trials[name][trial])]);
    return texts.every(([, text]) => text === texts[0][1]) ? texts[0][1] : texts.map(([label, text]) => `${label}: ${text}`).join("\n");
  }

  columns() {
    const scorers = scorersOf(this.sides), output = (index, label) => ({ id: `output-${label.toLowerCase()}`, label, min: 16, share: 2, priority: 1, cell: (row) => this.output(row, index), key: (row) => (row.trials[index] < 0 ? "" : outputText(this.sides[index].run, row.trials[index]).slice(0, 80)) });
    return [
      { id: "number", label: "trial", min: 7, share: 0.8, priority: 0, isTitle: true, kind: "title", cell: ({ name }) => oneLine(name, 200), key: ({ number }) => number },
      { id: "change", label: "change", min: 6, share: 0.6, priority: 1, cell: (row) => this.change(row), key: this.order },
      textColumn("input", 9, 0.9, 5, (row) => this.caseText(row, "input")),
      ...(this.hasExpected ? [textColumn("expected", 9, 0.9, 4, (row) => this.caseText(row, "expected"))] : []),
      output(0, "A"), output(1, "B"),
      ...scorers.map((name) => ({ ...scoreColumn(name, "", (row) => this.scorePair(row, name), (row) => this.last(row, (run, trial) => run.scoreOf(run.scorers.indexOf(name), trial))), min: 6 })),
      { id: "latency", label: "latency", min: 6, priority: 7, cell: (row) => this.pair(row, (run, trial) => (run.trials.latency[trial] === null ? NONE : microseconds(run.trials.latency[trial]))), key: (row) => this.last(row, (run, trial) => run.trials.latency[trial] ?? -1) },
    ];
  }

  output(row, index) {
    const { run } = this.sides[index], trial = row.trials[index];
    if (trial < 0) return el("span", { class: "faint", text: NONE });
    if (!row.members[1] || row.change === "same" || row.members.some(([side, number]) => side.stageOf(number) !== "completed")) return outputCell(run, trial);
    row.texts ||= markedTexts(...row.members.map(([side, number]) => ellipsis(fullText(side.trials.output[number]) ?? "")));
    return outputCell(run, trial, row.texts[index].map((node) => (typeof node === "string" ? node : node.cloneNode(true))));
  }

  change({ change, details, slower }) {
    const parts = [];
    if (details && details.stage_a !== details.stage_b) parts.push(`${STAGES[details.stage_a].label} → ${STAGES[details.stage_b].label}`);
    if (details?.output_changed) parts.push("output changed");
    if (details && !parts.length && !Object.keys(details.scores).length) parts.push("another error");
    if (slower) parts.push("slower");
    return [el("b", { class: `change ${change}`, text: CHANGES[change] }), ...(parts.length ? [el("div", { class: "faint", text: parts.join(", ") })] : [])];
  }

  pair(row, text, kind = "") {
    const [a, b] = this.sides.map(({ run }, index) => (row.trials[index] < 0 ? NONE : text(run, row.trials[index])));
    return el("span", { class: a === b ? "faint" : kind, text: a === b ? a : `${a} → ${b}` });
  }

  // Whether more or less of a number is better is unknown; only passes have a color.
  scorePair(row, name) {
    const value = (run, trial) => run.scoreOf(run.scorers.indexOf(name), trial), [a, b] = row.trials.map((trial, index) => (trial < 0 ? null : value(this.sides[index].run, trial)));
    return this.pair(row, (run, trial) => scoreText(value(run, trial)), b === false && a === true ? "worse" : b === true && a === false ? "better" : "");
  }
}
