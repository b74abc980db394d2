// Results by a metadata key: for each of its values the trials, errors and scores. In a comparison, of A and B.
"use strict";

class BreakdownView {
  constructor(sides, { onValue }) {
    Object.assign(this, { sides, onValue });
    this.select = el("select", { id: "breakdown-key", "aria-label": "Metadata key", onchange: () => { this.key = this.select.value; this.draw(); } });
    this.content = el("div", {});
    this.element = el("section", { "aria-labelledby": "breakdown-title" },
      el("div", { class: "section-head" }, el("h2", { id: "breakdown-title" }, "Results by ", this.select)), this.content);
  }

  update() {
    const keys = metadataValues(this.sides);
    this.element.hidden = !keys.size;
    if (!keys.has(this.key)) this.key = keys.keys().next().value;
    this.select.replaceChildren(...[...keys.keys()].map((key) => el("option", { value: key, text: oneLine(key, 40) })));
    if (keys.size) this.draw();
  }

  // Value → for each run its trials, errors and scores; null is the value of trials that do not have the key.
  groups() {
    const groups = new Map();
    this.sides.forEach(({ run, trials }, index) => {
      for (const trial of trials) {
        if (run.stageOf(trial) === "withdrawn") continue;
        const value = metadataValue(run, trial, this.key);
        if (!groups.has(value)) groups.set(value, this.sides.map(() => ({ trials: 0, failed: 0, scores: new Map() })));
        const group = groups.get(value)[index];
        group.trials += 1;
        group.failed += run.stageOf(trial) === "failed";
        run.scorers.forEach((name, scorer) => addScore(group.scores, name, run.scoreOf(scorer, trial)));
      }
    });
    return [...groups].sort(([a], [b]) => (a === null) - (b === null) || (a < b ? -1 : 1));
  }

  draw() {
    const { run } = this.sides.at(-1), scorers = run.scorerNames;
    const rows = this.groups().map(([value, groups]) => {
      const cell = (text) => numberCell([...new Set(groups.map(text))].join(" → "));
      return el("tr", { "data-value": value ?? "" },
        el("td", {}, link(value === null ? "none" : oneLine(value, 60), () => this.onValue(["metadata", this.key, value]), { "aria-label": `Show the trials with ${oneLine(this.key, 40)} ${value === null ? "missing" : oneLine(value, 60)}` })),
        cell(({ trials }) => groupDigits(trials)), cell(({ failed }) => groupDigits(failed)),
        scorers.map((name) => cell(({ scores }) => meanText(run.info.summary.scores[name]?.kind, scores.get(name)))));
    });
    refill(this.content, table("breakdown", [oneLine(this.key, 40), "trials", "errors", ...scorers.map((name) => oneLine(name, 30))], rows),
      this.sides.length > 1 ? el("p", { class: "hint", text: "A → B; one number where both are equal." }) : "");
  }
}

function addScore(scores, name, value) {
  if (value === null) return;
  if (!scores.has(name)) scores.set(name, { numbers: 0, total: 0, labels: new Map() });
  const score = scores.get(name);
  if (typeof value === "string") score.labels.set(value, (score.labels.get(value) || 0) + 1);
  else {
    score.numbers += 1;
    score.total += Number(value);
  }
}

// The mean of a scorer, or its most frequent label.
function meanText(kind, score) {
  if (!score) return NONE;
  if (score.numbers) return kind === "pass" ? percent(score.total / score.numbers) : digits(score.total / score.numbers, 3);
  const [label, count] = [...score.labels].sort((a, b) => b[1] - a[1])[0], total = [...score.labels.values()].reduce((sum, count) => sum + count, 0);
  return `${oneLine(label, 24)} ${Math.round((100 * count) / total)} %`;
}
