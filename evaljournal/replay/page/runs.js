// The live page of a directory: its evaluations and runs with filters, and the comparison of two runs.
"use strict";

const SHOWN_RUNS = 200, STATES = ["running", "finished", "stopped", "interrupted", "damaged", "unreadable"];
const NO_EVALUATION = "(unknown)", ANY = "", PAIR = 2;
const FILTERS = ["evaluation", "model", "status", "from", "to"];

const newestFirst = (a, b) => (a.started_at < b.started_at ? 1 : a.started_at > b.started_at ? -1 : a.path < b.path ? 1 : -1);
const costOf = (runs) => (runs.some(({ cost }) => cost !== null) ? money(runs.reduce((sum, { cost }) => sum + (cost || 0), 0)) : NONE);
const dateOf = (run) => run.started_at.slice(0, 10);
const runLink = (run) => el("a", { class: "link", href: run.address, text: oneLine(run.path, 120) });
const runScore = (run) => (run.score ? `${oneLine(run.scorer, 40)} ${run.score}` : NONE);
const stateMark = (run) => el("span", { class: `badge ${STATES.includes(run.status) ? run.status : ""}`, text: run.status, title: oneLine(run.outcome, 200) });

function trialsText({ completed, failed, trials }) {
  if (completed === null) return NONE;
  const done = completed + (failed || 0);
  return `${groupDigits(done)}${trials !== null && trials !== done ? ` of ${groupDigits(trials)}` : ""}${failed ? `, ${plural(failed, "error")}` : ""}`;
}

class RunsPage {
  constructor() {
    this.runs = new Map();
    this.selected = [];
    this.shown = SHOWN_RUNS;
    this.main = document.getElementById("page");
    this.live = el("span", { id: "live", class: "live", text: "reading …" });
    this.count = el("p", { class: "count", role: "status" });
    this.compare = el("a", { class: "link", id: "compare", target: "_blank", rel: "noopener" });
    const choice = (name, label) => el("label", { class: "check" }, `${label} `, el("select", { id: name, onchange: () => this.filter() }));
    const day = (name, label) => el("label", { class: "check" }, `${label} `, el("input", { id: name, type: "date", onchange: () => this.filter() }));
    this.evaluations = el("div", {});
    this.list = el("div", {});
    this.more = el("p", { class: "pager" });
    this.main.replaceChildren(
      el("header", { class: "top" }, el("p", { class: "eyebrow" }, this.live, el("span", { text: document.title })), el("h1", {}),
        el("div", { class: "tools" }, choice("evaluation", "evaluation"), choice("model", "model"), choice("status", "state"), day("from", "from"), day("to", "to"), link("show all", () => this.reset()))),
      el("section", { "aria-labelledby": "evaluations" }, sectionHead("evaluations", "Evaluations", ""), this.evaluations),
      el("section", { "aria-labelledby": "runs" }, sectionHead("runs", "Runs", "Select two runs to compare them."),
        el("div", { class: "tools" }, this.count, this.compare), this.list, this.more));
    this.main.removeAttribute("aria-busy");
    this.readAddress();
    window.addEventListener("hashchange", () => { this.readAddress(); this.draw(); });
  }

  update({ is_first, is_complete, rows, removed }) {
    if (is_first) this.runs.clear();
    for (const row of rows) this.runs.set(row.path, row);
    for (const path of removed) this.runs.delete(path);
    this.selected = this.selected.filter((path) => this.runs.has(path));
    this.isComplete = is_complete;
    this.draw();
  }

  // The filters are in the URL's fragment, so that a link shows the same.
  readAddress() {
    const parameters = new URLSearchParams(location.hash.slice(1));
    this.wanted = Object.fromEntries(FILTERS.map((name) => [name, parameters.get(name) || ANY]));
    for (const name of ["from", "to"]) document.getElementById(name).value = this.wanted[name];
  }

  filter() {
    this.wanted = Object.fromEntries(FILTERS.map((name) => [name, document.getElementById(name).value]));
    this.shown = SHOWN_RUNS;
    const parameters = new URLSearchParams(Object.entries(this.wanted).filter(([, value]) => value));
    history.replaceState(null, "", `#${parameters}`);
    this.draw();
  }

  reset() {
    for (const name of FILTERS) document.getElementById(name).value = ANY;
    this.filter();
  }

  matches(run) {
    const { evaluation, model, status, from, to } = this.wanted;
    return (!evaluation || (run.evaluation || NO_EVALUATION) === evaluation) && (!model || run.models.includes(model)) && (!status || run.status === status)
      && (!from || dateOf(run) >= from) && (!to || (run.started_at && dateOf(run) <= to));
  }

  draw() {
    const runs = [...this.runs.values()].sort(newestFirst), matching = runs.filter((run) => this.matches(run));
    const running = runs.filter(({ status }) => status === "running").length;
    this.offer("evaluation", new Set(runs.map(({ evaluation }) => evaluation || NO_EVALUATION)));
    this.offer("model", new Set(runs.flatMap(({ models }) => models)));
    this.offer("status", new Set(runs.map(({ status }) => status)));
    setText(this.main.querySelector("h1"), runs.length || this.isComplete ? `${plural(runs.length, "run")}${running ? `, ${groupDigits(running)} running` : ""}` : "Reading the runs …");
    setText(this.count, `${plural(matching.length, "run")}${matching.length < runs.length ? ` of ${groupDigits(runs.length)}` : ""}, ${costOf(matching)}`);
    refill(this.evaluations, this.evaluationsTable(matching));
    refill(this.list, this.runsTable(matching.slice(0, this.shown)));
    const rest = matching.length - this.shown;
    refill(this.more, rest > 0 ? link(`show ${groupDigits(Math.min(rest, SHOWN_RUNS))} more of ${groupDigits(rest)}`, () => { this.shown += SHOWN_RUNS; this.draw(); }) : "");
    this.drawCompare();
  }

  // The choices of a filter; the chosen one stays, even if no run has it now.
  offer(name, values) {
    const select = document.getElementById(name), wanted = this.wanted[name];
    const options = [ANY, ...[...values, ...(wanted && !values.has(wanted) ? [wanted] : [])].sort()];
    if (options.length !== select.options.length || options.some((value, index) => select.options[index].value !== value))
      select.replaceChildren(...options.map((value) => el("option", { value, text: value === ANY ? "all" : oneLine(value, 60) })));
    select.value = wanted;
  }

  evaluationsTable(runs) {
    const byName = groups(runs);
    if (!byName.size) return el("p", { class: "nothing", text: "No runs." });
    const rows = [...byName].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, own]) => {
      const [newest] = own, running = own.filter(({ status }) => status === "running").length;
      return el("tr", { "data-evaluation": name }, el("td", {}, link(oneLine(name, 60), () => { document.getElementById("evaluation").value = name; this.filter(); })),
        numberCell(groupDigits(own.length)), numberCell(running ? groupDigits(running) : ""), el("td", {}, runLink(newest)), el("td", { class: "tight" }, stateMark(newest)),
        el("td", { text: runScore(newest) }), el("td", { class: "tight", text: startOf(newest) }), numberCell(costOf(own)));
    });
    return table("evaluations", ["evaluation", "runs", "running", "newest run", "state", "score", "started", "cost of all"], rows);
  }

  runsTable(runs) {
    const rows = runs.map((run) => el("tr", { "data-run": run.path },
      el("td", {}, el("input", { type: "checkbox", "aria-label": `Compare ${oneLine(run.path, 120)}`, checked: this.selected.includes(run.path), onchange: (event) => this.select(run.path, event.target.checked) })),
      el("td", {}, runLink(run)), el("td", { text: oneLine(run.evaluation || NO_EVALUATION, 60) }), el("td", { text: run.models.map((model) => oneLine(model, 60)).join(", ") || NONE }),
      el("td", { class: "tight", text: startOf(run) }), el("td", { class: "tight" }, stateMark(run)), el("td", { text: trialsText(run) }),
      el("td", {}, runScore(run), run.variants > 1 ? el("span", { class: "faint", text: ` ${plural(run.variants, "variant")}` }) : ""),
      numberCell(run.cost === null ? NONE : money(run.cost)), numberCell(duration(run.elapsed))));
    return runs.length ? table("runs", ["", "run", "evaluation", "model", "started", "state", "trials", "score", "cost", "duration"], rows) : "";
  }

  // Select a run; of three, the one that was selected first is deselected.
  select(path, isSelected) {
    this.selected = [...this.selected.filter((other) => other !== path), ...(isSelected ? [path] : [])].slice(-PAIR);
    for (const row of this.list.querySelectorAll("tr[data-run]")) row.querySelector("input").checked = this.selected.includes(row.dataset.run);
    this.drawCompare();
  }

  drawCompare() {
    const runs = this.selected.map((path) => this.runs.get(path)).sort(newestFirst).reverse();
    this.compare.hidden = runs.length !== PAIR;
    if (this.compare.hidden) return;
    setText(this.compare, `compare ${oneLine(runs[0].path, 60)} with ${oneLine(runs[1].path, 60)}`);
    this.compare.href = `compare?${new URLSearchParams({ a: runs[0].address, b: runs[1].address })}`;
  }
}

function startOf(run) { return run.started_at ? escapeInvisible(run.started_at.slice(0, 16)).replace("T", " ") : NONE; }

function groups(runs) {
  const byName = new Map();
  for (const run of runs) {
    const name = run.evaluation || NO_EVALUATION;
    if (!byName.has(name)) byName.set(name, []);
    byName.get(name).push(run);
  }
  return byName;
}

const page = new RunsPage(), source = new EventSource("events");
window.page = page;
const show = (text, isOn) => { setText(page.live, text); page.live.classList.toggle("on", isOn); };
source.addEventListener("runs", (event) => {
  page.update(JSON.parse(event.data));
  show(page.isComplete ? "live" : "reading …", page.isComplete);
});
source.addEventListener("error", () => show(source.readyState === EventSource.CLOSED ? "server closed" : "reconnecting …", false));
