// The results: search, filters, columns, sorting and pages of rows. A layout has the rows and the columns: one row for each trial
// (below), for each case with its variants (grid.js), or for each trial in A and B (pairs.js).
"use strict";

const PAGE_ROWS = 50;
const PRINTED_ROWS = 500;
const SHOWN_ATTEMPTS = 10;
const SHOWN_REASONS = 3;
const CARD_WIDTH = 44; // In rem; on a narrower page, each row is a card. The same as in page.css.
const CELL_CHARS = 4000;

// A run, or one variant of it, with its label in a comparison.
class Side {
  constructor(run, variant, label) { Object.assign(this, { run, variant, label }); }

  get trials() { return [...this.run.trials.name.keys()].filter((trial) => this.variant === null || this.run.variantOf(trial) === this.variant); }
}

class ResultsView {
  constructor(sides, comparison, { onOpen, onChange }) {
    Object.assign(this, { sides, onOpen, onChange, filter: "all", query: "", filters: [], matches: [], pageIndex: 0, isFull: Boolean(comparison) });
    this.layouts = comparison ? { pairs: new PairsLayout(sides, comparison) } : { cases: new CasesLayout(sides[0]), trials: new TrialsLayout(sides[0]) };
    this.layoutName = ""; // Empty: the first layout that has rows.
    this.scorer = ""; // Name of the score in the cells of cases; empty: the first one.
    this.sort = null; // {by, down}; null: the order of the layout, failing first.
    this.chosenColumns = new Map(); // Id of a column → whether to show it; otherwise it is shown if there is room.
    this.selected = null; // {name, column}: name of a row and index of a trial in it.
    this.build();
  }

  get layout() { return this.layouts[this.layoutName] || Object.values(this.layouts).find((layout) => layout.isPresent); }

  build() {
    this.search = el("input", { type: "search", id: "search", placeholder: "Search inputs, outputs, reasons, labels, errors", "aria-label": "Search results", oninput: () => { this.query = this.search.value; this.change(); } });
    this.chips = el("div", { class: "chips", role: "group", "aria-label": "Results" });
    this.switch = el("div", { class: "chips", role: "group", "aria-label": "Rows" });
    this.add = el("select", { id: "filter", "aria-label": "Add a filter", onchange: () => this.addFilter(JSON.parse(this.add.value)) });
    this.active = el("div", { class: "chips active", role: "group", "aria-label": "Filters" });
    this.scorerSelect = el("select", { id: "grid-score", "aria-label": "Score in the cells", onchange: () => { this.scorer = this.scorerSelect.value; this.update(); this.onChange(); } });
    this.fullBox = el("input", { type: "checkbox", id: "full", onchange: () => { this.isFull = this.fullBox.checked; this.render(); } });
    this.columnBox = el("div", { class: "choices" });
    this.columnSummary = el("summary", {});
    this.chooser = el("details", { class: "columns", id: "columns" }, this.columnSummary, this.columnBox);
    this.count = el("p", { class: "count", role: "status", id: "count" });
    this.head = el("div", { class: "row head", role: "row" });
    this.body = el("div", { class: "body", role: "rowgroup" });
    this.table = el("div", { class: "table", role: "grid", "aria-label": "Results", "aria-readonly": "true", onkeydown: (event) => this.onKey(event) }, this.head, this.body);
    this.pager = el("nav", { class: "pager", "aria-label": "Pages of results" });
    this.element = el("section", { class: "results", "aria-labelledby": "results-title" },
      sectionHead("results-title", "Results", [el("kbd", { text: "/" }), " search, ", el("kbd", { text: "j" }), " ", el("kbd", { text: "k" }), " rows, ", el("kbd", { text: "Enter" }), " open, ", el("kbd", { text: "?" }), " all keys"]),
      el("div", { class: "tools" }, this.search, this.add, this.switch, this.scorerSelect), el("div", { class: "tools" }, this.chips, this.active),
      el("div", { class: "tools under" }, this.count, el("label", { class: "check" }, this.fullBox, " full text"), this.chooser), this.table, this.pager);
  }

  update() {
    for (const layout of Object.values(this.layouts)) layout.update(this.scorer);
    const layouts = Object.entries(this.layouts).filter(([, { isPresent }]) => isPresent), { cases } = this.layouts;
    refill(this.switch, ...layouts.map(([id, layout]) => el("button", { type: "button", "data-layout": id, "aria-pressed": String(layout === this.layout), onclick: () => this.chooseLayout(id), text: `by ${layout.unit}` })));
    this.switch.hidden = layouts.length < 2;
    const names = this.layout === cases ? cases.scorers : [];
    this.scorerSelect.replaceChildren(...names.map((name) => el("option", { value: name, text: oneLine(name, 40) })));
    this.scorerSelect.hidden = names.length < 2;
    if (names.length) this.scorerSelect.value = cases.scorer;
    this.add.replaceChildren(el("option", { value: "null", text: "Add a filter …" }), ...filterGroups(this.sides).map(([title, options]) => el("optgroup", { label: oneLine(title, 40) },
      options.map(([filter, count]) => el("option", { value: JSON.stringify(filter), text: `${oneLine(FILTERS[filter[0]].text(filter[1], filter[2]), 60)}${count === null ? "" : ` (${groupDigits(count)})`}` })))));
    this.add.hidden = this.add.options.length < 2;
    this.refresh();
  }

  // Show the rows after a change of a filter, the order or the layout, and save it in the address.
  change() {
    this.pageIndex = 0;
    this.refresh();
    this.onChange();
  }

  // Show what an address names; nothing is drawn again if that is shown already.
  restore(state) {
    const names = Object.keys(state), shown = () => JSON.stringify(names.map((name) => this[name])), before = shown();
    Object.assign(this, state);
    if (!this.layouts[this.layoutName]?.isPresent) this.layoutName = "";
    if (!Object.hasOwn(this.results, this.filter)) this.filter = "all";
    if (shown() !== before) { this.pageIndex = 0; this.update(); }
  }

  chooseLayout(name) {
    Object.assign(this, { layoutName: this.layouts[name]?.isPresent ? name : "", sort: null });
    this.pageIndex = 0;
    this.update();
    this.onChange();
  }

  choose(filter) {
    this.filter = Object.hasOwn(this.results, filter) ? filter : "all";
    if (filter === "slowest") this.sort = { by: "latency", down: true };
    this.change();
  }

  // Replace the filters; what is no filter is ignored.
  setFilters(filters) {
    this.filters = filters.filter(isFilter);
    this.change();
  }

  addFilter(filter) {
    this.add.value = "null";
    if (filter) this.setFilters([...this.filters.filter((other) => JSON.stringify(other) !== JSON.stringify(filter)), filter]);
  }

  // Show the trials with the lowest values of a score first.
  sortByScore(name) {
    if (this.layouts.trials) this.chooseLayout("trials");
    this.sort = { by: `score-${name}`, down: false };
    this.change();
  }

  // The chips: id → label and whether it keeps a row. A row is kept if one of its trials is.
  get results() {
    const { changes = {} } = this.layout, keepRow = (keep) => (row) => row.members.some(([run, trial]) => keep(run, trial));
    const results = Object.entries(RESULTS).map(([id, { label, keep }]) => [id, { label, keep: id === "all" ? keep : keepRow(keep) }]);
    return Object.fromEntries([results[0], ...Object.entries(changes), ...results.slice(1)]);
  }

  drawChips(rows) {
    const chips = Object.entries(this.results).map(([id, { label, keep }]) => [id, label, rows.reduce((count, row) => count + keep(row), 0)]);
    refill(this.chips, ...chips.filter(([id, , count]) => id === "all" || count || id === this.filter).map(([id, label, count]) =>
      el("button", { type: "button", "data-filter": id, "aria-pressed": String(this.filter === id), onclick: () => this.choose(id) }, `${label} `, el("b", { text: groupDigits(count) }))));
    refill(this.active, ...this.filters.map((filter) => {
      const [kind, name, value] = filter, remove = () => this.setFilters(this.filters.filter((other) => other !== filter)), text = oneLine(FILTERS[kind].text(name, value), 40);
      if (!Array.isArray(value)) return el("button", { type: "button", "aria-pressed": "true", "aria-label": `Remove the filter ${text}`, onclick: remove, text: `${text} ✕` });
      const bound = (index, label) => el("input", { type: "number", step: "any", "aria-label": `${label} of ${oneLine(name, 40)}`, value: value[index], onchange: (event) => {
        if (event.target.value !== "") value[index] = Number(event.target.value);
        this.change();
      } });
      return el("span", { class: "range-filter" }, `${oneLine(name, 40)} from `, bound(0, "Minimum"), " to ", bound(1, "Maximum"), el("button", { type: "button", "aria-label": `Remove the filter of ${oneLine(name, 40)}`, onclick: remove, text: "✕" }));
    }));
  }

  refresh() {
    const { layout } = this, query = this.query.trim().toLowerCase(), { keep } = this.results[this.filter] || RESULTS.all;
    const rows = layout.rows.filter((row) => row.members.some(([run, trial]) => matchesAll(this.filters, run, trial) && (!query || run.searchText(trial).includes(query))));
    this.matches = rows.filter(keep);
    const columns = this.columns, { by, down } = this.sort || {}, column = columns.find(({ id }) => id === by), key = column ? column.key : layout.order;
    const keys = new Map(this.matches.map((row) => [row, key(row)])), sign = down ? -1 : 1;
    this.matches.sort((a, b) => { const x = keys.get(a), y = keys.get(b); return x < y ? -sign : x > y ? sign : a.number - b.number; });
    if (this.search.value !== this.query) this.search.value = this.query;
    this.drawChips(rows);
    const { length } = this.matches, total = layout.rows.length, others = length - this.matches.filter((row) => layout.isWrong(row)).length;
    setText(this.count, `${length === total ? plural(length, layout.unit) : `${groupDigits(length)} of ${plural(total, layout.unit)}`}${column || !length || others === length ? "" : `, ${layout.wrongName} first`}`);
    this.table.setAttribute("aria-rowcount", length + 1);
    this.render();
  }

  // The width of the table in rem.
  get width() { return (this.table.clientWidth || 1000) / parseFloat(getComputedStyle(document.documentElement).fontSize); }

  // All columns of the layout. `min` is the minimum width in rem, `share` the share of the room that is left, `priority` the order in
  // which columns get room, and `key` returns the value by which rows are sorted.
  get columns() { return this.layout.columns(); }

  // The columns that were chosen, and of the others those that have room.
  fit(columns) {
    const width = this.width, isCards = width < CARD_WIDTH, isChosen = ({ id }) => this.chosenColumns.get(id), shown = new Set(columns.filter(isChosen));
    const cost = ({ min }) => min + 0.9;
    let room = isCards ? Infinity : width - [...shown].reduce((sum, column) => sum + cost(column), 0);
    for (const column of columns.filter(({ id }) => !this.chosenColumns.has(id)).sort((a, b) => a.priority - b.priority)) {
      if (isCards ? column.priority > 5 : shown.size > 1 && room < cost(column)) continue;
      shown.add(column);
      room -= cost(column);
    }
    return columns.filter((column) => shown.has(column));
  }

  drawHead(columns) {
    this.table.style.setProperty("--columns", columns.map(({ min, share }) => `minmax(${share ? 0 : min}rem, ${share || 0.3}fr)`).join(" "));
    refill(this.head, ...columns.map(({ id, label, name, kind }) => {
      const isSorted = this.sort?.by === id;
      return el("div", { class: `cell ${kind || ""}`, role: "columnheader", "aria-sort": isSorted ? (this.sort.down ? "descending" : "ascending") : "none" },
        el("button", { type: "button", "data-sort": id, title: name ? oneLine(name, 200) : null, text: `${label}${isSorted ? (this.sort.down ? " ↓" : " ↑") : ""}`, onclick: () => {
          const isDownFirst = kind === "num";
          this.sort = !isSorted ? { by: id, down: isDownFirst } : this.sort.down === isDownFirst ? { by: id, down: !isDownFirst } : null;
          this.change();
        } }));
    }));
  }

  drawChooser(columns, shownColumns) {
    const hiddenScores = columns.filter((column) => column.isResult && !shownColumns.includes(column)).length;
    setText(this.columnSummary, `Columns: ${shownColumns.length} of ${columns.length}${hiddenScores ? `, ${plural(hiddenScores, this.layout.resultName)} hidden` : ""}`);
    this.columnSummary.classList.toggle("hides", hiddenScores > 0);
    refill(this.columnBox, ...columns.map((column) => el("label", { class: "check" }, el("input", { type: "checkbox", "data-column": column.id, checked: shownColumns.includes(column), onchange: (event) => {
      this.chosenColumns.set(column.id, event.target.checked);
      this.render();
    } }), ` ${oneLine(column.name || column.label, 60)}`)));
  }

  // Create the rows of the page; for paper, up to PRINTED_ROWS. A focused row keeps the focus.
  render(isPaper) {
    const { matches, layout, columns } = this, shownColumns = this.fit(columns), focused = this.body.contains(document.activeElement) && document.activeElement.dataset.trial;
    const pages = Math.max(1, Math.ceil(matches.length / PAGE_ROWS));
    this.pageIndex = Math.min(Math.max(0, this.pageIndex), pages - 1);
    const first = isPaper ? 0 : this.pageIndex * PAGE_ROWS, end = Math.min(matches.length, first + (isPaper ? PRINTED_ROWS : PAGE_ROWS)), rows = matches.slice(first, end);
    this.fullBox.checked = this.isFull;
    this.table.classList.toggle("full", this.isFull);
    this.table.classList.toggle("cards", this.width < CARD_WIDTH);
    this.drawHead(shownColumns);
    this.drawChooser(columns, shownColumns);
    const current = rows.find(({ name }) => name === this.selected?.name) || rows[0];
    const elements = rows.map((row, index) => this.rowElement(row, first + index, shownColumns, row === current));
    if (!rows.length) elements.push(el("p", { class: "nothing", text: layout.rows.length ? `No ${layout.unit} matches.` : "No trials yet." }));
    if (isPaper && end < matches.length) elements.push(el("p", { class: "nothing", text: `and ${plural(matches.length - end, `more ${layout.unit}`)}` }));
    this.body.replaceChildren(...elements);
    if (!isPaper && !this.isFull) clampTexts(this.body);
    const turn = (by, label, text) => el("button", { type: "button", "aria-label": label, disabled: this.pageIndex + by < 0 || this.pageIndex + by >= pages, onclick: () => this.turn(by), text });
    refill(this.pager, turn(-1, "Previous page", "‹"), el("span", { text: `${groupDigits(first + 1)}–${groupDigits(end)} of ${groupDigits(matches.length)}` }), turn(1, "Next page", "›"));
    this.pager.hidden = pages < 2;
    if (focused) (this.target(focused) || this.body.querySelector('[tabindex="0"]'))?.focus({ preventScroll: true });
  }

  turn(by) {
    this.pageIndex += by;
    this.selected = null;
    this.render();
    this.element.scrollIntoView({ block: "start" });
  }

  // A row, or each cell with a trial, opens the trial.
  rowElement(row, index, columns, isCurrent) {
    const { layout, selected } = this, isSelected = row.name === selected?.name;
    const opens = (element, name, column) => {
      const isTarget = isCurrent && column === (isSelected ? selected.column : 0);
      for (const [attribute, value] of Object.entries({ tabindex: isTarget ? 0 : -1, "data-trial": name, "data-index": column, "aria-selected": String(isSelected && isTarget) })) element.setAttribute(attribute, value);
      element.addEventListener("click", () => { if (getSelection().isCollapsed) this.open(row, column); });
    };
    const element = el("div", { class: "row", role: "row", "data-row": row.name, "aria-rowindex": index + 2 }, columns.map((column) => {
      const cell = el("div", { class: `cell ${column.kind || ""} ${column.cellKind?.(row) ?? ""}`, role: "gridcell", "data-label": column.isTitle ? null : column.label }, column.cell(row));
      if (column.target !== undefined && layout.trialAt(row, column.target)) opens(cell, layout.trialAt(row, column.target), column.target);
      return cell;
    }));
    if (!layout.hasTargets) opens(element, row.name, 0);
    return element;
  }

  target(name) { return [...this.body.querySelectorAll("[data-trial]")].find((element) => element.dataset.trial === name); }

  open(row, column) {
    this.selected = { name: row.name, column };
    this.onOpen(this.layout.trialAt(row, column));
  }

  // Keys while the focus is on a row or a cell.
  onKey(event) {
    const element = event.target.closest("[data-trial]");
    if (!element || element !== event.target || event.ctrlKey || event.metaKey || event.altKey) return;
    const row = this.matches.find(({ name }) => name === element.closest("[data-row]").dataset.row), column = Number(element.dataset.index), end = this.matches.length;
    const rows = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, End: end, Home: -end }, cells = { ArrowRight: 1, ArrowLeft: -1 };
    if (event.key === "Enter" || event.key === " ") this.open(row, column);
    else if (Object.hasOwn(rows, event.key)) {
      this.selected = { name: row.name, column };
      this.move(rows[event.key]);
      this.focus();
    } else if (this.layout.hasTargets && Object.hasOwn(cells, event.key)) {
      const targets = [...element.closest("[data-row]").querySelectorAll("[data-trial]")], next = targets[targets.indexOf(element) + cells[event.key]];
      if (next) { this.select(row, Number(next.dataset.index)); this.focus(); }
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // Move the selection by a number of rows; return the name of the selected trial.
  move(by) {
    if (!this.matches.length) return null;
    const index = this.matches.findIndex(({ name }) => name === this.selected?.name), column = this.selected?.column ?? 0;
    const row = this.matches[index < 0 ? this.pageIndex * PAGE_ROWS : Math.min(Math.max(0, index + by), this.matches.length - 1)];
    this.select(row, column);
    return this.selectedTrial;
  }

  get selectedTrial() {
    const row = this.matches.find(({ name }) => name === this.selected?.name);
    return row ? this.layout.trialAt(row, this.selected.column) : null;
  }

  // Select a row, turn to its page and scroll it into view.
  select(row, column = 0) {
    this.selected = { name: row.name, column };
    const index = this.matches.indexOf(row);
    if (index >= 0) this.pageIndex = Math.floor(index / PAGE_ROWS);
    this.render();
    this.body.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest", behavior: "instant" });
  }

  // Focus the selected row; if none is selected, the first one.
  focus() { this.body.querySelector('[tabindex="0"]')?.focus({ preventScroll: true }); }
}

// One row for each trial of a run.
class TrialsLayout {
  constructor(side) { Object.assign(this, { side, run: side.run, unit: "trial", resultName: "score", wrongName: "failing", isPresent: true, hasTargets: false }); }

  update() {
    const { run } = this;
    this.rows = run.trials.name.map((name, number) => ({ name, number, members: [[run, number]] }));
    this.hasExpected = run.trials.expected.some((value) => value !== null);
  }

  order = ({ number }) => wrongness(this.run, number);
  isWrong = ({ number }) => wrongness(this.run, number) < 0;
  trialAt(row) { return row.name; }
  rowOf(trial) { return this.rows[trial]; }

  columns() {
    const { run } = this, { trials } = run, time = (id, label, priority) => ({ id, label, min: 4, priority, kind: "num", cell: ({ number }) => (trials[id][number] ? microseconds(trials[id][number]) : NONE), key: ({ number }) => trials[id][number] ?? -1 });
    return [
      { id: "number", label: "trial", min: 7, share: 1, priority: 0, isTitle: true, kind: "title", cell: ({ name }) => oneLine(name, 200), key: ({ number }) => number },
      ...(run.hasVariants ? [{ id: "variant", label: "variant", min: 5, share: 0.6, priority: 5, cell: ({ number }) => oneLine(run.variantOf(number), 60) || NONE, key: ({ number }) => trials.variant[number] }] : []),
      textColumn("input", 9, 1.2, 4, ({ number }) => trials.input[number]),
      ...(this.hasExpected ? [textColumn("expected", 9, 1, 3, ({ number }) => trials.expected[number])] : []),
      { id: "output", label: "output", min: 14, share: 2, priority: 1, cell: ({ number }) => outputCell(run, number), key: ({ number }) => outputText(run, number).slice(0, 80) },
      ...run.scorerNames.map((name) => scoreColumn(name, run.info.summary.scores[name].kind, ({ number }) => scoreCell(run, run.scorers.indexOf(name), number), ({ number }) => run.scoreOf(run.scorers.indexOf(name), number))),
      { id: "status", label: "status", min: 5, priority: 6, cell: ({ number }) => stageMark(run.stageOf(number)), key: ({ number }) => STAGES[run.stageOf(number)].label },
      { id: "attempts", label: "attempts", min: 5, priority: 7, cell: ({ number }) => attemptMarks(run, number), key: ({ number }) => trials.attempts[number].length },
      time("latency", "latency", 5), time("queue_time", "waited", 8), time("backoff_time", "backoff", 9),
    ];
  }
}

const sortKey = (value) => value === true ? 1 : value === false ? 0 : value ?? Infinity;

// The order of trials: those that fail, most failing scores first; then errors, scorer errors, open trials, and the others.
function wrongness(run, trial) {
  const failingCount = run.failingScorers(trial).length, stage = run.stageOf(trial);
  if (failingCount) return -3 - failingCount;
  if (stage === "failed") return -2;
  return run.scorers.some((_, scorer) => run.scorerError(scorer, trial)) ? -1 : DONE.includes(stage) ? 1 : 0;
}

function textColumn(id, min, share, priority, value) {
  return { id, label: id, min, share, priority, cell: (row) => textBlock(rawText(value(row))), key: (row) => rawText(value(row)).slice(0, 80) };
}

function scoreColumn(name, kind, cell, value) {
  const label = oneLine(name, 24), longest = Math.max(...label.split(/[\s_.-]/).map((word) => word.length));
  return { id: `score-${name}`, label, name, min: Math.min(8, Math.max(3.6, 0.5 * longest + 0.6)), priority: 2, isResult: true, kind: kind === "number" ? "score num-score" : "score", cell, key: (row) => sortKey(value(row)) };
}

// A text that is clamped to a few lines; a long one shows its beginning and its end.
const textBlock = (text, attributes) => el("div", { class: "text", dir: "auto", ...attributes }, ellipsis(text));

// A text without empty lines; the middle of a long one is omitted.
function ellipsis(text) {
  const lines = (part) => escapeInvisible(part.replace(/\n\s*\n/g, "\n"));
  return text.length <= CELL_CHARS ? lines(text) : `${lines(text.slice(0, CELL_CHARS / 2))}\n⋯\n${lines(text.slice(-CELL_CHARS / 2))}`;
}

// Show the first and the last lines of each text that has more lines than its box. All are measured before one is changed.
function clampTexts(element) {
  const texts = [...element.querySelectorAll(".text")].filter((text) => text.scrollHeight > text.clientHeight + 2);
  for (const text of texts) {
    const nodes = [...text.childNodes], copies = nodes.map((node) => node.cloneNode(true));
    text.classList.add("clamped");
    text.replaceChildren(el("span", { class: "beginning" }, nodes), el("span", { class: "end", "aria-hidden": "true" }, el("span", {}, copies)));
  }
}

function outputText(run, trial) {
  const error = run.stageOf(trial) === "failed" ? run.errorOf(trial) : null;
  return error ? `${error[1]}: ${error[2]}` : rawText(run.trials.output[trial]);
}

// The output of a trial, or its error; and why scores fail. `nodes` are the output with marked differences.
function outputCell(run, trial, nodes) {
  const isError = run.stageOf(trial) === "failed" && run.errorOf(trial);
  const reasons = run.scorers.map((name, scorer) => [name, run.scorerError(scorer, trial) || (run.scoreOf(scorer, trial) === false ? rawText(run.trials.score_reasons[trial]?.[scorer]) : "")]).filter(([, reason]) => reason);
  return [nodes ? el("div", { class: "text", dir: "auto" }, nodes) : textBlock(outputText(run, trial), isError ? { class: "text error-text" } : {}),
    run.trials.answer[trial] ? el("p", { class: "why" }, el("b", { text: run.trials.answer[trial] })) : "",
    ...reasons.slice(0, SHOWN_REASONS).map(([name, reason]) => el("p", { class: "why" }, el("b", { text: `${oneLine(name, 30)}: ` }), oneLine(reason, 300)))];
}

function scoreCell(run, scorer, trial) {
  const value = run.scoreOf(scorer, trial), error = run.scorerError(scorer, trial);
  if (value === null) return error ? el("span", { class: "unscored", title: escapeInvisible(error), text: "scorer error" }) : el("span", { class: "faint", text: NONE });
  return scoreMark(value);
}

function stageMark(stage) {
  const { glyph, label } = STAGES[stage];
  return el("span", { class: `stage ${stage}` }, el("i", { text: glyph, "aria-hidden": "true" }), ` ${label}`);
}

// A mark for each attempt, with the color and the letter of its outcome.
function attemptMarks(run, trial) {
  const attempts = run.trials.attempts[trial], visibleAttempts = attempts.slice(-SHOWN_ATTEMPTS);
  const label = (span) => OUTCOMES[run.outcomeOf(span)].label;
  return el("span", { class: "pips", role: "img", "aria-label": `${plural(attempts.length, "attempt")}: ${visibleAttempts.map(label).join(", ")}` },
    attempts.length > visibleAttempts.length ? el("span", { class: "faint", text: `+${attempts.length - visibleAttempts.length}` }) : "",
    visibleAttempts.map((span) => outcomeMark(run.outcomeOf(span), { title: `attempt ${run.spans.attempt[span]}: ${label(span)}` })));
}
