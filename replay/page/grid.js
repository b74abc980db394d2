// The grid of cases and variants: result and output of each, a filter for cases on which variants differ, and a search. Only
// visible cells are in the document.
"use strict";

const CASE_WIDTH = 12; // Widths in rem.
const CELL_WIDTH = 10.5;
const CELL_TEXT = 200;

const GRID_FILTERS = { all: { label: "all", keep: () => true }, differ: { label: "differ", keep: (row) => row.differs } };

class GridView {
  constructor(run, { filter, query, onOpen, onChange }) {
    Object.assign(this, { run, filter, query, onOpen, onChange });
    this.scorer = ""; // Name of the score in the cells.
    this.rows = [];
    this.matches = [];
    this.currentCell = { row: 0, column: 0 }; // The cell that Tab reaches.
    this.search = el("input", { type: "search", id: "grid-search", placeholder: "Search cases, inputs, outputs", "aria-label": "Search cases", oninput: () => { this.query = this.search.value; this.refresh(); this.onChange(); } });
    this.chips = el("div", { class: "chips", role: "group", "aria-label": "Filters of cases" });
    this.scorerSelect = el("select", { id: "grid-score", "aria-label": "Score in the cells", onchange: () => { this.scorer = this.scorerSelect.value; this.update(); } });
    this.count = el("p", { class: "count", role: "status" });
    this.head = el("div", { class: "row head", role: "row" });
    this.body = el("div", { class: "body", role: "presentation" });
    this.scroller = el("div", { class: "scroller", role: "rowgroup", onscroll: () => this.scroll() }, this.head, this.body);
    this.table = el("div", { class: "table grid", role: "grid", "aria-label": "Cases and variants", "aria-readonly": "true", onkeydown: (event) => this.onKey(event) }, this.scroller);
    this.element = el("section", { class: "cases", "aria-labelledby": "grid-title", hidden: true });
  }

  build() {
    this.element.append(sectionHead("grid-title", "Cases and variants", [...["←", "↑", "↓", "→"].flatMap((key) => [el("kbd", { text: key }), " "]), "cells, ", el("kbd", { text: "Enter" }), " open"]),
      el("div", { class: "tools" }, this.search, this.chips, this.scorerSelect), this.count, this.table);
  }

  // A row has the trials of a case for each variant; a case whose content has changed has a row for each content.
  update() {
    const { run } = this, { trials } = run, rows = new Map();
    this.element.hidden = !run.info.variants;
    if (this.element.hidden) return;
    if (!this.element.firstChild) this.build();
    this.variants = run.info.variants.rows.map(({ name }) => name);
    const columns = run.variants.map((name) => this.variants.indexOf(name)), names = run.scorerNames;
    if (!names.includes(this.scorer)) this.scorer = run.info.variants.score ?? names[0] ?? "";
    this.scorerSelect.replaceChildren(...names.map((name) => el("option", { value: name, text: oneLine(name, 40) })));
    this.scorerSelect.hidden = names.length < 2;
    this.scorerSelect.value = this.scorer;
    for (const trial of trials.name.keys()) {
      const column = columns[trials.variant[trial]];
      if (column < 0 || run.stageOf(trial) === "withdrawn") continue;
      const name = run.caseOf(trial), key = `${trials.fingerprint[trial]}\n${name}`;
      if (!rows.has(key)) rows.set(key, { name, cells: this.variants.map(() => []) });
      rows.get(key).cells[column].push(trial);
    }
    this.rows = [...rows.values()];
    const scorer = run.scorers.indexOf(this.scorer);
    for (const row of this.rows) {
      for (const cell of row.cells) cell.sort((a, b) => trials.repeat[a] - trials.repeat[b]);
      row.results = row.cells.map((cell) => cellResult(run, cell, scorer));
      row.differs = new Set(row.results.map(({ value }) => value).filter((value) => value !== null)).size > 1;
    }
    this.range = numberRange(run.trials.scores[scorer] || []);
    this.refresh();
  }

  choose(filter) {
    this.filter = Object.hasOwn(GRID_FILTERS, filter) ? filter : "all";
    this.refresh();
    this.onChange();
  }

  refresh() {
    if (this.element.hidden) return;
    const { keep } = GRID_FILTERS[this.filter], query = this.query.trim().toLowerCase();
    this.matches = this.rows.filter((row) => keep(row) && (!query || row.cells.some((cell) => cell.some((trial) => this.run.searchText(trial).includes(query)))));
    if (this.search.value !== this.query) this.search.value = this.query;
    refill(this.chips, ...Object.entries(GRID_FILTERS).map(([id, filter]) => el("button", { type: "button", "data-cases": id, "aria-pressed": String(this.filter === id), onclick: () => this.choose(id) }, `${filter.label} `, el("b", { text: groupDigits(this.rows.filter(filter.keep).length) }))));
    const { length } = this.matches, rem = parseFloat(getComputedStyle(document.documentElement).fontSize), room = this.scroller.clientWidth || 60 * rem;
    setText(this.count, length === this.rows.length ? plural(length, "case") : `${groupDigits(length)} of ${plural(this.rows.length, "case")}`);
    this.caseWidth = Math.round(Math.min(CASE_WIDTH * rem, 0.34 * room));
    this.cellWidth = Math.max(Math.round(Math.min(CELL_WIDTH * rem, 0.6 * room)), Math.floor((room - this.caseWidth) / this.variants.length));
    this.rowHeight = 2 * ROW;
    this.table.setAttribute("aria-rowcount", length + 1);
    this.table.setAttribute("aria-colcount", this.variants.length + 1);
    this.table.style.setProperty("--row", `${this.rowHeight}px`);
    this.table.style.setProperty("--head", `${ROW}px`);
    this.table.style.setProperty("--columns", `${this.caseWidth}px repeat(${this.variants.length}, ${this.cellWidth}px)`);
    this.head.style.width = this.body.style.width = `${this.caseWidth + this.variants.length * this.cellWidth}px`;
    this.body.style.height = `${Math.max(1, length) * this.rowHeight}px`;
    this.scroller.style.height = `${Math.min(7.5, Math.max(1, length)) * this.rowHeight + ROW + 18}px`;
    this.currentCell = { row: Math.min(this.currentCell.row, Math.max(0, length - 1)), column: Math.min(this.currentCell.column, this.variants.length - 1) };
    this.render();
  }

  // The first row and column in view.
  get firstInView() { return [Math.floor(this.scroller.scrollTop / this.rowHeight), Math.floor(this.scroller.scrollLeft / this.cellWidth)]; }

  scroll() { if (String(this.firstInView) !== String(this.renderedFrom)) this.render(); }

  // Create the cells in view, and the current one; a focused cell keeps the focus.
  render() {
    const { scroller, matches, rowHeight, cellWidth, currentCell } = this, hasFocus = this.body.contains(document.activeElement);
    const [top, left] = (this.renderedFrom = this.firstInView);
    const firstRow = Math.max(0, top - 1), endRow = Math.min(matches.length, top + Math.ceil(scroller.clientHeight / rowHeight) + 2);
    const firstColumn = Math.max(0, left - 1), endColumn = Math.min(this.variants.length, left + Math.ceil(scroller.clientWidth / cellWidth) + 1);
    const columns = Array.from({ length: endColumn - firstColumn }, (_, index) => firstColumn + index);
    if (!columns.includes(currentCell.column)) columns.push(currentCell.column);
    const rows = Array.from({ length: endRow - firstRow }, (_, index) => firstRow + index);
    if (currentCell.row < matches.length && !rows.includes(currentCell.row)) rows.push(currentCell.row);
    this.head.replaceChildren(placeInColumn(el("div", { class: "cell case", role: "columnheader", text: "case" }), 0), ...columns.map((column) => placeInColumn(el("div", { class: "cell", role: "columnheader", "data-column": column, title: oneLine(this.variants[column], 200), text: oneLine(this.variants[column], 60) }), column + 1)));
    this.body.replaceChildren(...(rows.length ? rows.map((index) => this.rowElement(index, columns)) : [el("p", { class: "nothing", text: this.rows.length ? "No case matches." : "No cases yet." })]));
    if (hasFocus) this.focus();
  }

  rowElement(index, columns) {
    const row = this.matches[index], { run } = this, trial = row.cells.find((cell) => cell.length)[0];
    const element = el("div", { class: "row", role: "row", "aria-rowindex": index + 2 },
      placeInColumn(el("div", { class: "cell case", role: "rowheader" }, el("b", { text: oneLine(row.name, 120) }), el("span", { class: "faint", text: oneLine(rawText(run.trials.input[trial]), CELL_TEXT) })), 0),
      columns.map((column) => placeInColumn(this.cell(row, index, column), column + 1)));
    element.style.transform = `translateY(${index * this.rowHeight}px)`;
    return element;
  }

  cell(row, index, column) {
    const trials = row.cells[column], { kind, text, level } = row.results[column], isCurrent = index === this.currentCell.row && column === this.currentCell.column;
    const element = el("div", { class: `cell result ${kind}`, role: "gridcell", tabindex: isCurrent ? 0 : -1, "data-case": row.name, "data-row": index, "data-column": column, onclick: () => this.open(index, column) });
    if (!trials.length) element.append(el("span", { class: "faint", text: NONE }));
    else element.append(el("span", { class: "mark", text }), el("span", { class: "output", dir: "auto", text: this.output(trials) }));
    if (level !== null && this.range) {
      const bar = el("i", { class: "level", "aria-hidden": "true" }), [low, high] = this.range;
      bar.style.width = `${(100 * (level - low)) / (high - low)}%`;
      element.append(bar);
    }
    return element;
  }

  // The output of the first trial that has one; otherwise an error.
  output(trials) {
    const { run } = this, trial = trials.find((candidate) => run.stageOf(candidate) === "completed") ?? trials[0], error = run.stageOf(trial) === "failed" ? run.errorOf(trial) : null;
    return oneLine(error ? `${error[1]}: ${error[2]}` : rawText(run.trials.output[trial]), CELL_TEXT);
  }

  open(row, column) {
    const [trial] = this.matches[row].cells[column];
    this.move(row, column);
    if (trial !== undefined) this.onOpen(trial);
  }

  // Make a cell the current one, scroll it into view and focus it.
  move(row, column) {
    const { scroller, rowHeight, cellWidth, caseWidth } = this, top = row * rowHeight, left = column * cellWidth;
    this.currentCell = { row, column };
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top + rowHeight > scroller.scrollTop + scroller.clientHeight - ROW) scroller.scrollTop = top + rowHeight + ROW - scroller.clientHeight;
    if (left < scroller.scrollLeft) scroller.scrollLeft = left;
    else if (left + cellWidth > scroller.scrollLeft + scroller.clientWidth - caseWidth) scroller.scrollLeft = left + cellWidth + caseWidth - scroller.clientWidth;
    this.render();
    this.focus();
  }

  focus() { this.body.querySelector('[tabindex="0"]')?.focus({ preventScroll: true }); }

  // Keys while the focus is on a cell.
  onKey(event) {
    if (event.target.dataset.row === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const { row, column } = this.currentCell, page = Math.max(1, Math.floor(this.scroller.clientHeight / this.rowHeight) - 1), end = this.variants.length;
    const steps = { ArrowDown: [1, 0], ArrowUp: [-1, 0], PageDown: [page, 0], PageUp: [-page, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], End: [0, end], Home: [0, -end] };
    if (event.key === "Enter" || event.key === " ") this.open(row, column);
    else if (Object.hasOwn(steps, event.key)) {
      const [down, right] = steps[event.key];
      this.move(Math.min(Math.max(0, row + down), this.matches.length - 1), Math.min(Math.max(0, column + right), end - 1));
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function placeInColumn(element, column) {
  element.style.gridColumn = String(column + 1);
  element.setAttribute("aria-colindex", column + 1);
  return element;
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
  const othersText = countList([[failedCount, "failed"], [openCount, "open"]], ", "), suffix = trials.length > 1 && othersText ? `, ${othersText}` : "";
  const result = (kind, text, value, level = null) => ({ kind, text: text + suffix, level, value: JSON.stringify([value, failedCount / trials.length]) });
  const isNumber = (value) => typeof value === "number", mean = (values) => values.reduce((sum, value) => sum + Number(value), 0) / values.length;
  if (!completedTrials.length) {
    const stage = STAGES[failedCount ? "failed" : trials.length ? run.stageOf(trials[0]) : "queued"], text = trials.length > 1 ? othersText : `${stage.glyph} ${stage.label}`;
    return { kind: failedCount ? "failed" : "open", text, level: null, value: failedCount && !openCount ? "failed" : null };
  }
  if (scorer < 0) return result("unscored", completedTrials.length < trials.length || trials.length > 1 ? `${completedTrials.length} of ${trials.length} ok` : "", [...new Set(completedTrials.map((trial) => rawText(run.trials.output[trial])))].sort());
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
