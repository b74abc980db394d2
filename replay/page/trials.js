// The trials: searched, filtered and sorted; only the rows that can be seen are there.
"use strict";

const SHOWN_SCORERS = 4;
const MOST_PIPS = 10;
const MOST_VALUES = 40; // Values of a key of the metadata that can be filtered by; a key with more is an identity.
const PRINTED = 500;

const FILTERS = {
  all: { words: "all", keep: () => true },
  wrong: { words: "wrong", keep: (run, trial) => run.isWrong(trial) },
  failed: { words: "failed", keep: (run, trial) => run.stageOf(trial) === "failed" },
  recovered: { words: "recovered", keep: (run, trial) => run.trials.recovered[trial] === 1 },
  slowest: { words: "slowest", keep: (run, trial) => run.trials.elapsed[trial] !== null && run.trials.elapsed[trial] / 1e6 >= run.facts.summary.latency.p95 },
  open: { words: "open", keep: (run, trial) => !["completed", "failed", "withdrawn"].includes(run.stageOf(trial)) },
};

class TrialsView {
  constructor(run, { onTrial, onChange }) {
    this.run = run;
    this.onTrial = onTrial;
    this.onChange = onChange;
    this.filter = "all";
    this.query = "";
    this.meta = "";
    this.group = null;
    this.sort = { by: "number", down: false };
    this.selected = -1;
    this.found = [];
    this.texts = new Map();
    this.build();
  }

  build() {
    this.search = el("input", { type: "search", id: "search", placeholder: "Search names, inputs, outputs, errors", "aria-label": "Search the trials", oninput: () => { this.query = this.search.value; this.refresh(); this.onChange(); } });
    this.chips = el("div", { class: "chips", role: "group", "aria-label": "Filters" });
    this.metadata = el("select", { id: "metadata", "aria-label": "Filter by metadata", onchange: () => { this.meta = this.metadata.value; this.refresh(); this.onChange(); } });
    this.count = el("p", { class: "count", role: "status", id: "count" });
    this.head = el("div", { class: "row head", role: "row" });
    this.inner = el("div", { class: "inner" });
    this.scroller = el("div", { class: "scroller", tabindex: 0, role: "rowgroup", "aria-label": "Trials", onscroll: () => this.render() }, this.head, this.inner);
    this.table = el("div", { class: "table", role: "grid", "aria-label": "Trials", "aria-readonly": "true" }, this.scroller);
    this.element = el("section", { "aria-labelledby": "trials-title" },
      el("div", { class: "section-head" }, el("h2", { id: "trials-title", text: "Trials" }),
        el("p", { class: "hint" }, el("kbd", { text: "/" }), " search, ", el("kbd", { text: "j" }), " ", el("kbd", { text: "k" }), " rows, ", el("kbd", { text: "Enter" }), " opens, ", el("kbd", { text: "Esc" }), " closes")),
      el("div", { class: "tools" }, this.search, this.chips, this.metadata), this.count, this.table);
  }

  get columns() {
    const { run } = this, { trials } = run;
    const scorers = run.scorers.slice(0, SHOWN_SCORERS).map((name, scorer) => ({
      id: `score-${scorer}`, label: oneLine(name, 20), kind: run.facts.summary.scores[name]?.kind === "number" ? "score num" : "score", cell: (trial) => this.scoreCell(scorer, trial), key: (trial) => orderOf(trials.scores[scorer]?.[trial]),
    }));
    return [
      { id: "number", label: "trial", kind: "name", cell: (trial) => this.nameCell(trial), key: (trial) => trial },
      { id: "attempts", label: "attempts", kind: "pips", cell: (trial) => pips(run, trial), key: (trial) => trials.attempts[trial].length },
      ...scorers,
      { id: "elapsed", label: "answered in", kind: "num", cell: (trial) => (trials.elapsed[trial] === null ? NONE : micro(trials.elapsed[trial])), key: (trial) => trials.elapsed[trial] ?? -1 },
      { id: "waited", label: "waited", kind: "num less", cell: (trial) => micro(trials.waited[trial]), key: (trial) => trials.waited[trial] },
      { id: "backed_off", label: "backoff", kind: "num less", cell: (trial) => (trials.backed_off[trial] ? micro(trials.backed_off[trial]) : NONE), key: (trial) => trials.backed_off[trial] },
      { id: "output", label: "output", kind: "text least", cell: (trial) => this.outputCell(trial), key: (trial) => raw(trials.output[trial]).slice(0, 80) },
    ];
  }

  nameCell(trial) {
    const stage = this.run.stageOf(trial), said = STAGES[stage];
    return [el("i", { class: `stage ${stage}`, text: said.glyph, title: said.words, "aria-label": said.words, role: "img" }), el("span", { text: oneLine(this.run.trials.name[trial], 120) })];
  }

  scoreCell(scorer, trial) {
    const value = this.run.trials.scores[scorer]?.[trial], reasons = this.run.trials.reasons[trial];
    if (value === null || value === undefined) return reasons && reasons[scorer]?.error ? el("span", { class: "unscored", title: visible(reasons[scorer].error), text: "could not" }) : NONE;
    return scoreMark(value);
  }

  outputCell(trial) {
    const { trials } = this.run, error = this.run.stageOf(trial) === "failed" ? this.run.errorOf(trial) : null;
    return error ? el("span", { class: "faint", text: oneLine(`${error[1]}: ${error[2]}`, 160) }) : oneLine(raw(trials.output[trial]), 160);
  }

  text(trial) {
    let text = this.texts.get(trial);
    if (text === undefined) {
      const { trials } = this.run, error = this.run.errorOf(trial);
      const parts = [trials.name[trial], trials.case[trial] || "", raw(trials.input[trial]), raw(trials.expected[trial]), raw(trials.output[trial]), raw(trials.metadata[trial])];
      text = [...parts, error ? `${error[1]} ${error[2]}` : ""].join("\n").toLowerCase();
      this.texts.set(trial, text);
    }
    return text;
  }

  labelOf(trial, key) {
    const metadata = this.run.trials.metadata[trial];
    if (!Array.isArray(metadata)) return undefined;
    try {
      const value = JSON.parse(metadata[0])?.[key];
      return value === undefined || value === null ? undefined : typeof value === "string" ? value : JSON.stringify(value);
    } catch {
      return undefined;
    }
  }

  drawMetadata() {
    const keys = new Map();
    for (const metadata of this.run.trials.metadata) {
      if (!Array.isArray(metadata)) continue;
      let parsed;
      try { parsed = JSON.parse(metadata[0]); } catch { continue; }
      if (parsed === null || typeof parsed !== "object" || Array.isArray(parsed)) continue;
      for (const [key, value] of Object.entries(parsed)) {
        if (value === null) continue;
        const counts = keys.get(key) || new Map();
        keys.set(key, counts);
        const label = typeof value === "string" ? value : JSON.stringify(value);
        if (counts.size <= MOST_VALUES) counts.set(label, (counts.get(label) || 0) + 1);
      }
    }
    const groups = [...keys.entries()].filter(([, counts]) => counts.size <= MOST_VALUES).slice(0, 30);
    this.metadata.replaceChildren(el("option", { value: "", text: "any metadata" }),
      ...groups.map(([key, counts]) => el("optgroup", { label: oneLine(key, 40) }, [...counts.entries()].sort((a, b) => b[1] - a[1]).map(([label, count]) => el("option", { value: JSON.stringify([key, label]), text: `${oneLine(key, 30)}: ${oneLine(label, 40)} (${grouped(count)})` })))));
    this.metadata.hidden = !groups.length;
    this.metadata.value = this.meta;
  }

  drawChips() {
    const { run } = this, all = run.trials.name.keys();
    const counts = Object.fromEntries(Object.keys(FILTERS).map((name) => [name, 0]));
    for (const trial of all) for (const [name, { keep }] of Object.entries(FILTERS)) if (keep(run, trial)) counts[name] += 1;
    refill(this.chips, ...Object.entries(FILTERS).filter(([name]) => name === "all" || counts[name] || name === this.filter).map(([name, filter]) =>
      el("button", { type: "button", "data-filter": name, "aria-pressed": String(this.filter === name), onclick: () => this.choose(name) }, `${filter.words} `, el("b", { text: grouped(counts[name]) }))),
      this.group === null ? "" : el("button", { type: "button", class: "group", "aria-pressed": "true", onclick: () => this.chooseGroup(null), text: `with ${oneLine(run.groups[this.group][1], 30)} ✕`, "aria-label": "All errors again" }));
  }

  choose(name) {
    this.filter = FILTERS[name] ? name : "all";
    if (name === "slowest") this.sort = { by: "elapsed", down: true };
    this.refresh();
    this.onChange();
  }

  // A choice that the metadata have; nothing if it is none.
  offers(meta) {
    return [...this.metadata.options].some((option) => option.value === meta) ? meta : "";
  }

  chooseGroup(group) {
    this.group = group;
    this.refresh();
  }

  hasGroup(trial) {
    const { spans, errors, trials } = this.run;
    return trials.attempts[trial].some((span) => spans.details[span]?.error !== undefined && errors[spans.details[span].error][4] === this.group);
  }

  refresh() {
    const { run } = this, keep = FILTERS[this.filter].keep, query = this.query.trim().toLowerCase();
    const meta = this.meta ? JSON.parse(this.meta) : null;
    const found = [];
    for (const trial of run.trials.name.keys()) {
      if (!keep(run, trial)) continue;
      if (meta && this.labelOf(trial, meta[0]) !== meta[1]) continue;
      if (this.group !== null && !this.hasGroup(trial)) continue;
      if (query && !this.text(trial).includes(query)) continue;
      found.push(trial);
    }
    const column = this.columns.find((each) => each.id === this.sort.by) || this.columns[0];
    if (column.id !== "number" || this.sort.down) {
      const keys = new Map(found.map((trial) => [trial, column.key(trial)])), sign = this.sort.down ? -1 : 1;
      found.sort((a, b) => { const x = keys.get(a), y = keys.get(b); return x < y ? -sign : x > y ? sign : a - b; });
    }
    this.found = found;
    if (this.search.value !== this.query) this.search.value = this.query;
    if (this.metadata.value !== this.meta) this.metadata.value = this.meta;
    this.drawChips();
    this.drawHead();
    this.table.setAttribute("aria-rowcount", found.length + 1);
    put(this.count, found.length === run.trials.name.length ? plural(found.length, "trial") : `${grouped(found.length)} of ${plural(run.trials.name.length, "trial")}`);
    this.scroller.style.setProperty("--row", `${ROW}px`);
    this.inner.style.height = `${Math.max(1, found.length) * ROW}px`;
    this.scroller.style.height = `${(Math.min(14.5, Math.max(1, found.length)) + 1) * ROW + 2}px`;
    this.render();
  }

  drawHead() {
    const { columns } = this;
    this.element.style.setProperty("--scorers", String(Math.min(SHOWN_SCORERS, this.run.scorers.length)));
    refill(this.head, ...columns.map((column) => {
      const isSorted = this.sort.by === column.id && (column.id !== "number" || this.sort.down);
      return el("div", { class: `cell ${column.kind}`, role: "columnheader", "aria-sort": isSorted ? (this.sort.down ? "descending" : "ascending") : "none" },
        el("button", { type: "button", text: `${column.label}${isSorted ? (this.sort.down ? " ↓" : " ↑") : ""}`, onclick: () => {
          this.sort = { by: column.id, down: this.sort.by === column.id ? !this.sort.down : column.kind.startsWith("num") };
          this.refresh();
        } }));
    }));
  }

  render(all) {
    const { found } = this;
    const first = all ? 0 : Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - 4);
    const last = all ? Math.min(found.length, PRINTED) : Math.min(found.length, first + Math.ceil(this.scroller.clientHeight / ROW) + 9);
    const { columns } = this, rows = [];
    for (let at = first; at < last; at++) rows.push(this.row(found[at], at, columns));
    if (!rows.length) rows.push(el("p", { class: "nothing", text: this.run.trials.name.length ? "No trial is like that." : "No trial was taken in yet." }));
    if (all && last < found.length) rows.push(el("p", { class: "nothing", text: `and ${plural(found.length - last, "more trial")}` }));
    this.inner.replaceChildren(...rows);
  }

  row(trial, at, columns) {
    const row = el("div", { class: "row", role: "row", "data-trial": this.run.trials.name[trial], "aria-rowindex": at + 2, "aria-selected": String(trial === this.selected), onclick: () => { this.selected = trial; this.render(); this.onTrial(trial); } },
      columns.map((column) => el("div", { class: `cell ${column.kind}`, role: "gridcell" }, column.cell(trial))));
    row.style.transform = `translateY(${at * ROW}px)`;
    return row;
  }

  move(by) {
    const at = this.found.indexOf(this.selected);
    const next = Math.min(Math.max(0, at < 0 ? 0 : at + by), this.found.length - 1);
    if (!this.found.length) return;
    this.select(this.found[next]);
    this.scroller.scrollIntoView({ block: "nearest" });
  }

  select(trial) {
    this.selected = trial;
    const at = this.found.indexOf(trial), { scroller } = this;
    if (at >= 0) {
      const top = at * ROW;
      if (top < scroller.scrollTop) scroller.scrollTop = top;
      else if (top + ROW > scroller.scrollTop + scroller.clientHeight - ROW) scroller.scrollTop = top + 2 * ROW - scroller.clientHeight;
    }
    this.render();
  }

  update() {
    this.texts.clear();
    this.drawMetadata();
    this.refresh();
  }
}

function orderOf(value) {
  return value === true ? 1 : value === false ? 0 : value ?? -Infinity;
}

function scoreMark(value) {
  if (value === true) return el("span", { class: "pass", text: "✓ pass" });
  if (value === false) return el("span", { class: "fail", text: "✗ fail" });
  return el("span", { class: typeof value === "number" ? "value" : "label", text: typeof value === "number" ? digits(value, 3) : oneLine(value, 40) });
}

// A small mark for each attempt: its colour, and its letter, say how it ended.
function pips(run, trial) {
  const attempts = run.trials.attempts[trial], shown = attempts.slice(-MOST_PIPS);
  const marks = shown.map((span) => {
    const ending = run.endingOf(span), said = ENDINGS[ending];
    return el("i", { class: `pip end-${(ending || "open").replaceAll("_", "-")}`, title: `attempt ${run.spans.attempt[span]}: ${said.words}`, text: said.letter });
  });
  const more = attempts.length > shown.length ? el("span", { class: "faint", text: `+${attempts.length - shown.length}` }) : "";
  return el("span", { class: "pips", role: "img", "aria-label": `${plural(attempts.length, "attempt")}: ${shown.map((span) => ENDINGS[run.endingOf(span)].words).join(", ")}` }, more, marks);
}
