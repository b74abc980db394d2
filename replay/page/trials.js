// The table of trials: search, filters, sorting. In a comparison, A and B side by side. Only visible rows are in the document.
"use strict";

const SHOWN_SCORERS = 4;
const SHOWN_ATTEMPTS = 10;
const SHOWN_VALUES = 40; // A metadata key with more values is treated as an identifier and is no filter.
const PRINTED_ROWS = 500;

const DONE = ["completed", "failed", "withdrawn"];

// Filters of trials; in a comparison, a row is kept if either run has such a trial.
const FILTERS = {
  all: { label: "all", keep: () => true },
  wrong: { label: "wrong", keep: (run, trial) => run.isWrong(trial) },
  failed: { label: "failed", keep: (run, trial) => run.stageOf(trial) === "failed" },
  recovered: { label: "recovered", keep: (run, trial) => run.trials.recovered[trial] === 1 },
  slowest: { label: "slowest 5 %", keep: (run, trial) => run.trials.latency[trial] !== null && run.trials.latency[trial] / 1e6 >= run.info.summary.latency.p95 },
  open: { label: "open", keep: (run, trial) => !DONE.includes(run.stageOf(trial)) },
};

// How a trial differs between A and B, in the order of the table.
const CHANGES = {
  broken: "broken", fixed: "fixed", changed: "changed", only_a: "only in A", only_b: "only in B",
  different: "different content", open: "not done in both", same: "same",
};

// The values of each metadata key: Map of key → Map of value → count.
function metadataValues(runs) {
  const keys = new Map();
  for (const run of runs) {
    for (const trial of run.trials.name.keys()) {
      for (const [key, value] of Object.entries(run.metadataOf(trial))) {
        if (value === null) continue;
        if (!keys.has(key)) keys.set(key, new Map());
        const counts = keys.get(key), label = typeof value === "string" ? value : JSON.stringify(value);
        if (counts.size <= SHOWN_VALUES) counts.set(label, (counts.get(label) || 0) + 1);
      }
    }
  }
  return new Map([...keys].filter(([, counts]) => counts.size <= SHOWN_VALUES).slice(0, 30));
}

// The value of a metadata key as text; null if the trial has none.
function metadataValue(run, trial, key) {
  const metadata = run.metadataOf(trial), value = Object.hasOwn(metadata, key) ? metadata[key] : null;
  return value === null ? null : typeof value === "string" ? value : JSON.stringify(value);
}

class TrialsView {
  constructor(runs, comparison, { onOpen, onChange }) {
    Object.assign(this, { runs, comparison, onOpen, onChange, filter: "all", query: "", metadata: "" });
    this.variant = ""; // Name of a variant; empty for all.
    this.errors = null; // {run, group}: only trials with an error of this group.
    this.sort = { by: comparison ? "change" : "number", down: false };
    this.selectedName = null; // Name of a trial.
    this.matches = [];
    this.build();
  }

  build() {
    this.search = el("input", { type: "search", id: "search", placeholder: "Search names, inputs, outputs, errors", "aria-label": "Search trials", oninput: () => { this.query = this.search.value; this.refresh(); this.onChange(); } });
    this.chips = el("div", { class: "chips", role: "group", "aria-label": "Filters" });
    this.metadataSelect = el("select", { id: "metadata", "aria-label": "Filter by metadata", onchange: () => this.filterMetadata(this.metadataSelect.value) });
    this.variantSelect = el("select", { id: "variant", "aria-label": "Filter by variant", onchange: () => this.filterVariant(this.variantSelect.value) });
    this.count = el("p", { class: "count", role: "status", id: "count" });
    this.head = el("div", { class: "row head", role: "row" });
    this.body = el("div", { class: "body", role: "presentation" });
    this.scroller = el("div", { class: "scroller", role: "rowgroup", onscroll: () => this.render() }, this.head, this.body);
    this.table = el("div", { class: "table", role: "grid", "aria-label": "Trials", "aria-readonly": "true", onkeydown: (event) => this.onKey(event) }, this.scroller);
    this.element = el("section", { "aria-labelledby": "trials-title" },
      sectionHead("trials-title", this.comparison ? "Trials in A and B" : "Trials", [el("kbd", { text: "/" }), " search, ", el("kbd", { text: "j" }), " ", el("kbd", { text: "k" }), " rows, ", el("kbd", { text: "Enter" }), " open, ", el("kbd", { text: "Esc" }), " close"]),
      el("div", { class: "tools" }, this.search, this.chips, this.variantSelect, this.metadataSelect), this.count, this.table);
  }

  update() {
    if (this.comparison) {
      this.pairRows();
      this.readChanges();
    } else {
      this.rows = this.runs[0].trials.name.map((name, number) => ({ name, number, trials: [number] }));
      this.rowsOf = [this.rows];
    }
    this.byName = new Map(this.rows.map((row) => [row.name, row]));
    this.variants = [...new Set(this.runs.flatMap((run) => run.variants))].filter(Boolean);
    this.hasExpected = this.runs.some((run) => run.trials.expected.some((value) => value !== null));
    this.drawVariants();
    this.drawMetadata();
    this.refresh();
  }

  // A row has the number of the trial in each run, -1 if a run does not have the trial. As in `compare`, trials with the same case,
  // variant and repeat are in one row. The row's name is the id of the trial, unless another row has this name.
  pairRows() {
    const byKey = new Map(), names = new Set();
    this.rows = [];
    this.rowsOf = this.runs.map(() => []); // Run → trial → its row.
    for (const index of [1, 0]) {
      const run = this.runs[index];
      for (const trial of run.trials.name.keys()) {
        const key = JSON.stringify([run.caseOf(trial), run.variantOf(trial), run.trials.repeat[trial]]);
        let row = byKey.get(key);
        if (!row || row.trials[index] >= 0) {
          let name = run.trials.name[trial];
          while (names.has(name)) name += ` (${"AB"[index]})`;
          row = { name, number: this.rows.length, trials: [-1, -1] };
          names.add(name);
          byKey.set(key, row);
          this.rows.push(row);
        }
        row.trials[index] = trial;
        this.rowsOf[index][trial] = row;
      }
    }
  }

  readChanges() {
    const { comparison } = this, [, runB] = this.runs, rowOf = (name) => this.rowsOf[1][runB.numbers.get(name)];
    for (const row of this.rows) row.change = row.trials.includes(-1) ? (row.trials[0] < 0 ? "only_b" : "only_a") : this.sides(row).every(([run, trial]) => ["completed", "failed"].includes(run.stageOf(trial))) ? "same" : "open";
    for (const name of comparison.different_content) rowOf(name).change = "different";
    for (const kind of ["broken", "fixed", "changed"]) {
      for (const details of comparison[kind]) Object.assign(rowOf(details.trial), { change: kind, details });
    }
    for (const slower of comparison.slower) rowOf(slower.trial).slower = slower;
  }

  // The runs that have the trial of a row, each as [run, number of the trial, label of the run].
  sides(row) {
    return this.runs.map((run, index) => [run, row.trials[index], this.comparison ? "AB"[index] : ""]).filter(([, trial]) => trial >= 0);
  }

  get columns() {
    const width = this.scroller.clientWidth / parseFloat(getComputedStyle(document.documentElement).fontSize);
    return (this.comparison ? this.comparisonColumns(width) : this.runColumns(width)).filter((column) => (column.from || 0) <= width);
  }

  // In a column, `from` is the minimum width of the table in rem, and `key` returns the value by which rows are sorted.
  runColumns(width) {
    const [run] = this.runs, { trials } = run;
    const scorers = run.scorerNames.slice(0, SHOWN_SCORERS).map((name, index) => {
      const scorer = run.scorers.indexOf(name), kind = run.info.summary.scores[name].kind === "number" ? "num" : "";
      return { id: `score-${index}`, label: oneLine(name, 20), size: width < 30 ? "3.8rem" : "minmax(4.4rem, 0.4fr)", from: index && 58 + 6 * index, kind, cell: ({ number }) => this.scoreCell(scorer, number), key: ({ number }) => sortKey(run.scoreOf(scorer, number)) };
    });
    return [
      { id: "number", label: "trial", size: "minmax(5rem, 1.1fr)", cell: ({ name }) => oneLine(name, 120), key: ({ number }) => number },
      ...this.variantColumns(),
      this.textColumn("input", "input", 46, 1.5),
      ...(this.hasExpected ? [this.textColumn("expected", "expected", 58, 1.2)] : []),
      this.outputColumn("output", "output", 0),
      ...scorers,
      { id: "status", label: width < 36 ? "" : "status", name: "status", size: width < 36 ? "1.2rem" : "5.6rem", cell: ({ number }) => stageMark(run.stageOf(number), width < 36), key: ({ number }) => STAGES[run.stageOf(number)].label },
      { id: "attempts", label: "attempts", size: "5.2rem", from: 66, cell: ({ number }) => attemptMarks(run, number), key: ({ number }) => trials.attempts[number].length },
      this.timeColumn("latency", "latency", 66),
      this.timeColumn("queue_time", "waited", 92),
      this.timeColumn("backoff_time", "backoff", 92),
    ];
  }

  comparisonColumns(width) {
    const runB = this.runs[1], scorers = runB.scorerNames.slice(0, 2).map((name) => ({
      id: `score-${name}`, label: oneLine(name, 20), size: "minmax(6rem, 0.5fr)", from: 66, cell: (row) => this.pairCell(row, (run, trial) => scoreText(run.scoreOf(run.scorers.indexOf(name), trial))), key: (row) => sortKey(this.lastValue(row, (run, trial) => run.scoreOf(run.scorers.indexOf(name), trial))),
    }));
    return [
      { id: "number", label: "trial", size: "minmax(5rem, 1fr)", cell: ({ name }) => oneLine(name, 120), key: ({ number }) => number },
      ...this.variantColumns(),
      this.textColumn("input", "input", 60, 1.2),
      ...(this.hasExpected ? [this.textColumn("expected", "expected", 50, 1)] : []),
      this.outputColumn("output-a", "A output", 0),
      this.outputColumn("output-b", "B output", 1),
      ...scorers,
      { id: "change", label: "change", size: width < 30 ? "4.4rem" : "minmax(5rem, 1.2fr)", cell: (row) => el("span", { class: `change ${row.change}`, text: width < 30 ? CHANGES[row.change] : changeText(row, width < 66 ? [] : runB.scorerNames.slice(0, 2)) }), key: (row) => Object.keys(CHANGES).indexOf(row.change) },
      { id: "latency", label: "latency", size: "8.4rem", from: 92, cell: (row) => this.pairCell(row, (run, trial) => (run.trials.latency[trial] === null ? NONE : microseconds(run.trials.latency[trial]))), key: (row) => this.lastValue(row, (run, trial) => run.trials.latency[trial] ?? -1) },
    ];
  }

  variantColumns() {
    const name = (row) => this.lastValue(row, (run, trial) => run.variantOf(trial));
    return this.variants.length ? [{ id: "variant", label: "variant", size: "minmax(4rem, 0.6fr)", from: 50, cell: (row) => oneLine(name(row), 60) || NONE, key: (row) => this.variants.indexOf(name(row)) }] : [];
  }

  textColumn(id, label, from, share) {
    const text = (row) => rawText(this.lastValue(row, (side, trial) => side.trials[id][trial]));
    return { id, label, size: `minmax(5rem, ${share}fr)`, from, cell: (row) => oneLine(text(row), 160), key: (row) => text(row).slice(0, 80) };
  }

  outputColumn(id, label, index) {
    const run = this.runs[index], text = (row) => (row.trials[index] < 0 ? "" : rawText(run.trials.output[row.trials[index]]));
    return { id, label, size: "minmax(5rem, 1.5fr)", cell: (row) => this.outputCell(run, row.trials[index]), key: (row) => text(row).slice(0, 80) };
  }

  timeColumn(id, label, from) {
    const values = this.runs[0].trials[id];
    return { id, label, size: "5rem", from, kind: "num", cell: ({ number }) => (values[number] ? microseconds(values[number]) : NONE), key: ({ number }) => values[number] ?? -1 };
  }

  // The value of the last run that has the trial.
  lastValue(row, value) {
    const [run, trial] = this.sides(row).at(-1);
    return value(run, trial);
  }

  pairCell(row, text) {
    const [a, b] = this.runs.map((run, index) => (row.trials[index] < 0 ? NONE : text(run, row.trials[index])));
    return el("span", { class: a === b ? "faint" : "", text: a === b ? a : `${a} → ${b}` });
  }

  scoreCell(scorer, trial) {
    const [run] = this.runs, value = run.scoreOf(scorer, trial), error = run.trials.score_reasons[trial]?.[scorer]?.error;
    if (value === null) return error ? el("span", { class: "unscored", title: escapeInvisible(error), text: "error" }) : NONE;
    return scoreMark(value);
  }

  outputCell(run, trial) {
    if (trial < 0) return el("span", { class: "faint", text: NONE });
    const error = run.stageOf(trial) === "failed" ? run.errorOf(trial) : null;
    return error ? el("span", { class: "error-text", text: oneLine(`${error[1]}: ${error[2]}`, 160) }) : oneLine(rawText(run.trials.output[trial]), 160);
  }

  drawVariants() {
    this.variantSelect.replaceChildren(el("option", { value: "", text: "all variants" }), ...this.variants.map((name) => el("option", { value: name, text: oneLine(name, 40) })));
    this.variantSelect.hidden = !this.variants.length;
    this.variantSelect.value = this.variant;
  }

  drawMetadata() {
    const keys = metadataValues(this.runs);
    this.metadataSelect.replaceChildren(el("option", { value: "", text: "all metadata" }),
      ...[...keys].map(([key, counts]) => el("optgroup", { label: oneLine(key, 40) }, [[null, 0], ...[...counts].sort((a, b) => b[1] - a[1])].map(([value, count]) =>
        el("option", { value: JSON.stringify([key, value]), text: `${oneLine(key, 30)}: ${value === null ? "none" : `${oneLine(value, 40)} (${groupDigits(count)})`}` })))));
    this.metadataSelect.hidden = !keys.size;
    this.metadataSelect.value = this.metadata;
  }

  // The filters of this table: id → label and whether it keeps a row.
  get filters() {
    const [run] = this.runs;
    if (!this.comparison) return Object.fromEntries(Object.entries(FILTERS).map(([id, { label, keep }]) => [id, { label, keep: ({ number }) => keep(run, number) }]));
    const trialFilters = Object.entries(FILTERS).map(([id, { label, keep }]) => [id, { label, keep: (row) => this.sides(row).some(([run, trial]) => keep(run, trial)) }]);
    const changes = Object.entries(CHANGES).filter(([id]) => id !== "open").map(([id, label]) => [id, { label, keep: (row) => row.change === id }]);
    return Object.fromEntries([trialFilters[0], ...changes, ["slower", { label: "slower", keep: (row) => row.slower !== undefined }], ...trialFilters.slice(1)]);
  }

  drawChips() {
    const chips = Object.entries(this.filters).map(([id, { label, keep }]) => [id, label, this.rows.reduce((count, row) => count + keep(row), 0)]);
    const group = this.errors && this.errors.run.errorGroups[this.errors.group];
    refill(this.chips, ...chips.filter(([id, , count]) => id === "all" || count || id === this.filter).map(([id, label, count]) =>
      el("button", { type: "button", "data-filter": id, "aria-pressed": String(this.filter === id), onclick: () => this.choose(id) }, `${label} `, el("b", { text: groupDigits(count) }))),
      group ? el("button", { type: "button", class: "group", "aria-pressed": "true", onclick: () => this.filterErrors(null), text: `error ${oneLine(group[1], 30)} ✕`, "aria-label": "Remove the filter by error" }) : "");
  }

  choose(filter) {
    this.filter = Object.hasOwn(this.filters, filter) ? filter : "all";
    if (filter === "slowest") this.sort = { by: "latency", down: true };
    this.refresh();
    this.onChange();
  }

  // Filter by [key, value] as JSON; an unknown one filters nothing.
  filterMetadata(metadata) {
    this.metadata = [...this.metadataSelect.options].some((option) => option.value === metadata) ? metadata : "";
    this.refresh();
    this.onChange();
  }

  // Filter by the name of a variant; an unknown one filters nothing.
  filterVariant(name) {
    this.variant = this.variants.includes(name) ? name : "";
    this.refresh();
    this.onChange();
  }

  filterErrors(errors) {
    this.errors = errors;
    this.refresh();
  }

  hasError(row) {
    const { run, group } = this.errors, trial = row.trials[this.runs.indexOf(run)];
    return trial >= 0 && run.trials.attempts[trial].some((span) => run.errors[run.spans.details[span]?.error]?.[4] === group);
  }

  refresh() {
    const { keep } = this.filters[this.filter], query = this.query.trim().toLowerCase();
    const [key, value] = this.metadata ? JSON.parse(this.metadata) : [];
    this.matches = this.rows.filter((row) => keep(row)
      && (!this.variant || this.sides(row).some(([run, trial]) => run.variantOf(trial) === this.variant))
      && (!this.metadata || this.sides(row).some(([run, trial]) => metadataValue(run, trial, key) === value))
      && (!this.errors || this.hasError(row))
      && (!query || this.sides(row).some(([run, trial]) => run.searchText(trial).includes(query))));
    const { columns } = this, column = columns.find(({ id }) => id === this.sort.by) || columns[0];
    if (column.id !== "number" || this.sort.down) {
      const keys = new Map(this.matches.map((row) => [row, column.key(row)])), sign = this.sort.down ? -1 : 1;
      this.matches.sort((a, b) => { const x = keys.get(a), y = keys.get(b); return x < y ? -sign : x > y ? sign : a.number - b.number; });
    }
    if (this.search.value !== this.query) this.search.value = this.query;
    if (this.variantSelect.value !== this.variant) this.variantSelect.value = this.variant;
    if (this.metadataSelect.value !== this.metadata) this.metadataSelect.value = this.metadata;
    this.drawChips();
    this.drawHead(columns);
    const { length } = this.matches;
    this.table.setAttribute("aria-rowcount", length + 1);
    setText(this.count, length === this.rows.length ? plural(length, "trial") : `${groupDigits(length)} of ${plural(this.rows.length, "trial")}`);
    this.table.style.setProperty("--row", `${ROW}px`);
    this.table.style.setProperty("--columns", columns.map(({ size }) => size).join(" "));
    this.body.style.height = `${Math.max(1, length) * ROW}px`;
    this.scroller.style.height = `${(Math.min(14.5, Math.max(1, length)) + 1) * ROW + 2}px`;
    this.render();
  }

  drawHead(columns) {
    refill(this.head, ...columns.map(({ id, label, name, kind }) => {
      const isSorted = this.sort.by === id && (id !== "number" || this.sort.down);
      return el("div", { class: `cell ${kind || ""}`, role: "columnheader", "aria-sort": isSorted ? (this.sort.down ? "descending" : "ascending") : "none" },
        el("button", { type: "button", "data-sort": id, "aria-label": label ? null : name, text: `${label}${isSorted ? (this.sort.down ? " ↓" : " ↑") : ""}`, onclick: () => {
          this.sort = { by: id, down: this.sort.by === id ? !this.sort.down : kind === "num" };
          this.refresh();
        } }));
    }));
  }

  // Create the rows in view; all of them (up to PRINTED_ROWS) for paper. A focused row keeps the focus.
  render(isPaper) {
    const { matches, columns } = this, focusedName = this.body.contains(document.activeElement) && document.activeElement.dataset.trial;
    const firstIndex = isPaper ? 0 : Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - 4);
    const endIndex = isPaper ? Math.min(matches.length, PRINTED_ROWS) : Math.min(matches.length, firstIndex + Math.ceil(this.scroller.clientHeight / ROW) + 9);
    const visibleRows = matches.slice(firstIndex, endIndex), currentName = visibleRows.some(({ name }) => name === this.selectedName) ? this.selectedName : visibleRows[0]?.name;
    const rows = visibleRows.map((row, index) => this.rowElement(row, firstIndex + index, columns, row.name === currentName));
    if (!rows.length) rows.push(el("p", { class: "nothing", text: this.rows.length ? "No trial matches." : "No trials yet." }));
    if (isPaper && endIndex < matches.length) rows.push(el("p", { class: "nothing", text: `and ${plural(matches.length - endIndex, "more trial")}` }));
    this.body.replaceChildren(...rows);
    if (focusedName) rows.find((row) => row.dataset.trial === focusedName)?.focus({ preventScroll: true });
  }

  rowElement(row, index, columns, isCurrent) {
    const element = el("div", { class: "row", role: "row", tabindex: isCurrent ? 0 : -1, "data-trial": row.name, "aria-rowindex": index + 2, "aria-selected": String(row.name === this.selectedName), onclick: () => this.open(row) },
      columns.map((column) => el("div", { class: `cell ${column.kind || ""}`, role: "gridcell" }, column.cell(row))));
    element.style.transform = `translateY(${index * ROW}px)`;
    return element;
  }

  open(row) {
    this.selectedName = row.name;
    this.render();
    this.onOpen(row.name);
  }

  // Keys while the focus is on a row.
  onKey(event) {
    const row = this.byName.get(event.target.dataset.trial);
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / ROW) - 1), end = this.matches.length;
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, End: end, Home: -end };
    if (event.key === "Enter" || event.key === " ") this.open(row);
    else if (Object.hasOwn(steps, event.key)) {
      this.selectedName = row.name;
      this.move(steps[event.key]);
      this.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // Move the selection by a number of rows.
  move(by) {
    const index = this.matches.findIndex(({ name }) => name === this.selectedName);
    if (!this.matches.length) return;
    this.select(this.matches[Math.min(Math.max(0, index < 0 ? 0 : index + by), this.matches.length - 1)].name);
    this.scroller.scrollIntoView({ block: "nearest" });
  }

  select(name) {
    this.selectedName = name;
    const index = this.matches.findIndex((row) => row.name === name), { scroller } = this, top = index * ROW;
    if (index >= 0 && top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top + ROW > scroller.scrollTop + scroller.clientHeight - ROW) scroller.scrollTop = top + 2 * ROW - scroller.clientHeight;
    this.render();
  }

  // Focus the selected row; if none is selected, the first one.
  focus() { this.body.querySelector('[tabindex="0"]')?.focus({ preventScroll: true }); }
}

const sortKey = (value) => value === true ? 1 : value === false ? 0 : value ?? -Infinity;

// The changes from A to B; scores that have a column of their own are omitted.
function changeText({ change, details, slower }, columns) {
  const parts = [];
  if (details && details.stage_a !== details.stage_b) parts.push(`${STAGES[details.stage_a].label} → ${STAGES[details.stage_b].label}`);
  const scores = Object.entries(details?.scores || {});
  for (const [scorer, [a, b]] of scores.filter(([name]) => !columns.includes(name))) parts.push(`${oneLine(scorer, 24)} ${scoreText(a)} → ${scoreText(b)}`);
  if (details?.output_changed) parts.push("output changed");
  if (details && !parts.length && !scores.length) parts.push("failed with a different error");
  if (slower) parts.push("slower");
  return [CHANGES[change], parts.join(", ")].filter(Boolean).join(": ");
}

function stageMark(stage, isShort) {
  const { glyph, label } = STAGES[stage];
  return el("span", { class: `stage ${stage}`, title: isShort ? label : null }, el("i", { text: glyph, role: isShort ? "img" : null, "aria-label": isShort ? label : null, "aria-hidden": isShort ? null : "true" }), isShort ? "" : ` ${label}`);
}

// A mark for each attempt, with the color and the letter of its outcome.
function attemptMarks(run, trial) {
  const attempts = run.trials.attempts[trial], visibleAttempts = attempts.slice(-SHOWN_ATTEMPTS);
  const label = (span) => OUTCOMES[run.outcomeOf(span)].label;
  return el("span", { class: "pips", role: "img", "aria-label": `${plural(attempts.length, "attempt")}: ${visibleAttempts.map(label).join(", ")}` },
    attempts.length > visibleAttempts.length ? el("span", { class: "faint", text: `+${attempts.length - visibleAttempts.length}` }) : "",
    visibleAttempts.map((span) => outcomeMark(run.outcomeOf(span), { title: `attempt ${run.spans.attempt[span]}: ${label(span)}` })));
}
