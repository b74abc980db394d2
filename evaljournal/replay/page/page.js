// The page: its sections in order, its address, its keys, and updates of a live run.
"use strict";

const DARK = document.getElementById("dark"), SYSTEM_MEDIA = DARK.media;

const KEYS = [
  ["/", "search"], ["j k", "next and previous row; with an open trial, next and previous trial, also → ←"], ["e", "in an open trial: expand all; again: close all"], ["↑ ↓ ← →", "move between rows and cells, when one has the focus"], ["Enter", "open the selected trial"],
  ["Esc", "close the trial, or leave the search"], ["← →", "in Execution: previous and next record; with Shift, ten records"], ["+ - 0", "in Execution: zoom in, zoom out, show all"], ["?", "this list"],
];

class Page {
  constructor(data, live) {
    this.live = live;
    this.theme = "";
    this.runs = data.runs.map((run) => new Run(run));
    this.comparison = data.comparison;
    this.index = this.runs.length - 1;
    this.keys = document.getElementById("keys");
    this.main = document.getElementById("page");
    this.drawer = new Drawer(document.getElementById("drawer"), {
      onClose: (hasFocus) => { if (!hasFocus) this.results.focus(); this.saveAddress(); },
      onSeq: (run, seq) => { this.chooseRun(this.runs.indexOf(run)); this.showRecord(seq); },
      onTrial: (run, trial) => this.open(trial, run),
      onStep: (by) => this.step(by),
    });
    this.build();
    this.readAddress();
    window.addEventListener("hashchange", () => this.readAddress());
    window.addEventListener("resize", () => this.redraw());
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.setTheme(this.theme));
    window.addEventListener("beforeprint", () => this.setPaper(true));
    window.addEventListener("afterprint", () => this.setPaper(false));
    document.addEventListener("keydown", (event) => this.onKey(event));
    this.main.removeAttribute("aria-busy");
  }

  // The run whose summary, errors, history and audit are shown; the trials are of all runs.
  get run() { return this.runs[this.index]; }

  build() {
    measure();
    this.sides = this.comparison ? this.comparison.sides.map(({ run, variant }, index) => new Side(this.runs[run], variant, "AB"[index])) : [new Side(this.run, null, "")];
    this.themeButton = el("button", { type: "button", id: "theme", class: "quiet", "aria-label": "Switch between light and dark", text: this.themeLabel, onclick: () => this.setTheme(this.isDark ? "light" : "dark") });
    this.keysButton = el("button", { type: "button", class: "quiet", "aria-label": "Keys", text: "?", onclick: () => this.showKeys() });
    this.top = el("header", { class: "top" });
    this.comparisonSection = el("section", { "aria-labelledby": "compared-title", hidden: !this.comparison });
    this.results = new ResultsView(this.sides, this.comparison, { onOpen: (name) => this.openName(name), onChange: () => this.saveAddress() });
    this.breakdown = new BreakdownView(this.sides, { onValue: (filter) => this.showResults(() => this.results.addFilter(filter)) });
    this.chooser = el("section", { class: "chooser", hidden: this.runs.length < 2 });
    this.tiles = el("section", { class: "tiles", id: "summary", "aria-label": "Summary" });
    this.errors = el("section", { "aria-labelledby": "errors-title" });
    this.review = el("section", { "aria-labelledby": "review-title" });
    this.audit = el("footer", { class: "foot" });
    this.executionNote = el("span", { class: "hint" });
    this.execution = el("details", { id: "execution", ontoggle: () => this.drawExecution() }, el("summary", {}, el("h2", { text: "Execution" }), this.executionNote));
    this.buildRun();
    this.draw();
  }

  // The views of the chosen run.
  buildRun() {
    this.history = new HistoryView(this.run, { onSeq: () => this.saveAddress(), onTrial: (trial) => this.open(trial) });
    this.times = new TimesView(this.sides, this.run);
    this.variants = new VariantsView(this.run, { actions: this.scoreActions, onVariant: (name) => this.showResults(() => { if (!this.comparison) this.results.chooseLayout("trials"); this.results.setFilters([["variant", "", name]]); }) });
    this.execution.replaceChildren(this.execution.firstChild, this.history.element, this.times.element, this.audit);
    const results = [this.results.element, this.breakdown.element], runSections = [this.tiles, this.variants.element, this.errors, this.review];
    this.main.replaceChildren(this.top, this.comparisonSection, ...(this.comparison ? [...results, this.chooser, ...runSections] : [...runSections, ...results]), this.execution);
  }

  draw() {
    this.drawTop();
    if (this.comparison) refill(this.comparisonSection, ...comparisonTable(this.comparison, this.sides));
    this.drawRun();
    this.results.update();
    this.breakdown.update();
    document.title = `${oneLine(this.run.info.summary.evaluation || "run", 60)} · ${this.runs.map((run) => oneLine(run.info.name, 40)).join(" and ")}`;
  }

  // What the link of a score does; null in a comparison.
  get scoreActions() {
    return this.comparison ? null : { onFilter: (filter) => this.showResults(() => this.results.setFilters([filter])), onSort: (name) => this.showResults(() => this.results.sortByScore(name)) };
  }

  drawRun() {
    const { run } = this, { attempts } = run.info.summary;
    this.tiles.replaceChildren(...summaryTiles(run, this.scoreActions));
    fitTiles(this.tiles);
    refill(this.chooser, el("div", { class: "chips", role: "group", "aria-label": "Run shown below" }, el("span", { class: "faint", text: "Shown below: run" }), this.runs.map((other, index) =>
      el("button", { type: "button", "data-run": "AB"[index], "aria-pressed": String(index === this.index), onclick: () => this.chooseRun(index) }, `${"AB"[index]} `, el("b", { text: oneLine(other.info.path, 60) })))));
    this.errors.hidden = !run.errorGroups.length;
    refill(this.errors, ...errorsSection(run, { onTrials: (group) => this.showResults(() => this.results.setFilters([["error", run.errorGroups[group][1], group]])), onSeq: (seq) => this.showRecord(seq) }));
    this.review.hidden = !run.info.review.length;
    refill(this.review, ...reviewSection(run, { onTrial: (name) => this.openName(name) }));
    refill(this.audit, ...auditSection(run));
    setText(this.executionNote, `${plural(attempts.started, "attempt")}${attempts.failed + attempts.timed_out ? `, ${groupDigits(attempts.failed + attempts.timed_out)} failed` : ""}; concurrency history, where the time went, audit ${run.info.audit.ok ? "OK" : "failed"}, definition`);
    this.variants.update();
    this.history.update();
    this.times.update();
  }

  // Change what the results show, and scroll there.
  showResults(change) {
    change();
    this.results.element.scrollIntoView({ block: "start" });
  }

  drawExecution() {
    if (!this.execution.open) return;
    this.history.draw();
    this.times.draw();
  }

  drawTop() {
    const { info } = this.run, { summary } = info;
    const startText = summary.started_at ? `${escapeInvisible(summary.started_at.slice(0, 19)).replace("T", " ")} UTC` : "not started";
    const durationText = summary.sessions ? `, took ${duration(summary.elapsed)}` : "";
    const shards = this.run.shards.filter(({ name }) => name).length;
    const sessions = summary.sessions > 1 || shards ? `, ${plural(summary.sessions, "session")}${shards ? `, merged from ${plural(shards, "shard")}` : ""}${summary.crashes ? `, ${groupDigits(summary.crashes)} without a final record` : ""}` : "";
    const status = this.comparison ? this.sides.map(({ run, variant, label }) => el("span", {}, el("b", { text: label }), ` ${oneLine(run.info.path, 80)}${variant === null ? "" : ` @${oneLine(variant, 60)}`}, ${run.info.status}`))
      : [el("span", { class: `badge ${info.status}`, text: info.status }), this.live ? el("span", { id: "live", class: "live", text: this.live.text }) : "", el("span", { text: oneLine(info.path, 120) }), el("span", { text: `${startText}${durationText}${sessions}` })];
    refill(this.top,
      el("div", { class: "corner" }, this.keysButton, this.themeButton), el("p", { class: "eyebrow" }, status),
      el("h1", { text: escapeInvisible(this.comparison ? this.comparison.headline : info.headline).replace(/ (?=[%=])|(?<==) /g, "\u00a0") }),
      ...(this.comparison ? [] : info.replies.map((text) => el("p", { class: "replies", text: escapeInvisible(text) }))),
      this.sinceLine(),
      ...this.runs.map((run) => (run.info.problem ? el("p", { class: "banner", role: "alert", text: `Shown up to the damage: ${escapeInvisible(run.info.problem)}` }) : "")),
      ...this.runs.map((run, index) => (run.info.audit.ok ? "" : el("p", { class: "banner", role: "alert" }, `The audit of ${oneLine(run.info.path, 80)} failed: `, link("findings", () => { this.chooseRun(index); this.execution.open = true; this.audit.scrollIntoView({ block: "start" }); })))));
  }

  // What changed from A to B, or since the previous run: the definition, and the trials that broke or were fixed, which can be opened.
  sinceLine() {
    const since = this.comparison ? this.comparison.since : this.run.info.since;
    if (!since) return "";
    const { path, scores, changed, broken, fixed, command } = since, open = (name) => link(oneLine(name, 60), () => this.openName(name));
    return el("div", { id: "since" }, path === undefined ? "" : el("span", {}, "Since the previous run, ", el("b", { text: oneLine(path, 120) }), scores.length ? `: ${scores.map((text) => escapeInvisible(text)).join(", ")}` : ""),
      el("span", {}, el("b", { text: "changed: " }), escapeInvisible(changed) || "nothing in the recorded definition"), changedNames("broken", broken, open), changedNames("fixed", fixed, open), broken.length || fixed.length ? "" : el("span", { text: "no trial broke or was fixed" }),
      command ? el("span", { class: "faint" }, "trial by trial: ", el("code", { text: escapeInvisible(command) })) : "");
  }

  chooseRun(index) {
    if (index === this.index) return;
    this.index = index;
    this.buildRun();
    this.drawRun();
    this.results.refresh();
    this.saveAddress();
  }

  redraw() {
    if (this.frame || this.isPaper) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.fit();
      this.results.render();
    });
  }

  fit() {
    measure();
    fitTiles(this.tiles);
    this.variants.draw();
    this.drawExecution();
  }

  get isDark() { return this.theme ? this.theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches; }
  get themeLabel() { return this.isDark ? "☀ light" : "☾ dark"; }

  // "light", "dark", or anything else for the system's theme.
  setTheme(theme) {
    this.theme = ["light", "dark"].includes(theme) ? theme : "";
    DARK.media = { light: "not all", dark: "screen" }[this.theme] || SYSTEM_MEDIA;
    this.themeButton.textContent = this.themeLabel;
    this.redraw();
    this.saveAddress();
  }

  // Lay the page out for paper, which is always light, or for the screen again.
  setPaper(isPaper) {
    this.isPaper = isPaper;
    DARK.media = "not all";
    document.documentElement.classList.toggle("paper", isPaper);
    const folds = [...this.main.querySelectorAll("details")].filter((details) => details !== this.results.chooser);
    if (isPaper) this.openDetails = folds.filter((details) => details.open);
    for (const details of folds) unfold(details, isPaper || this.openDetails.includes(details));
    if (!isPaper) return this.setTheme(this.theme);
    this.fit();
    this.results.render(true);
  }

  showRecord(seq) {
    this.execution.open = true;
    this.history.draw();
    this.history.go(seq);
    this.history.element.scrollIntoView({ block: "start" });
  }

  // Open a trial of a run; in a comparison, its row.
  open(trial, run = this.run) {
    const row = this.comparison && this.sides.map((side, index) => side.run === run && this.results.layout.rowsOf[index].get(trial)).find(Boolean);
    this.openName(row ? row.name : run.trials.name[trial]);
  }

  openName(name) {
    const { layout } = this.results;
    if (this.comparison) {
      const row = layout.byName.get(name);
      if (!row) return;
      this.results.select(row);
      this.drawer.element.classList.toggle("compared", row.members.length > 1);
      this.drawer.open(name, layout.sidesOf(row), row.trials.includes(-1) ? "AB"[row.trials.indexOf(-1)] : "");
    } else {
      const trial = this.run.numbers.get(name), row = layout.rowOf(trial);
      if (trial === undefined) return;
      if (row) this.results.select(row, layout.hasTargets ? layout.columnOf(row, trial) : 0);
      this.drawer.open(name, [[this.run, trial, ""]], "");
    }
    this.saveAddress();
  }

  showKeys() {
    this.keys.replaceChildren(el("h2", { id: "keys-title", text: "Keys" }), el("dl", { class: "pairs" }, KEYS.map(([keys, text]) => el("div", {}, el("dt", {}, keys.split(" ").flatMap((key) => [el("kbd", { text: key }), " "])), el("dd", { text })))),
      link("Close", () => this.keys.close()));
    this.keys.showModal();
  }

  // Save the state of the page in the URL's fragment, so that a link shows the same.
  saveAddress() {
    if (this.isReading || this.isSaving) return;
    this.isSaving = true;
    setTimeout(() => {
      this.isSaving = false;
      const parameters = new URLSearchParams();
      if (this.drawer.isOpen) parameters.set("trial", this.drawer.name);
      if (!this.history.isFollowing) parameters.set("seq", this.history.seq);
      const { filter, query, filters, layoutName, scorer, sort } = this.results;
      if (layoutName) parameters.set("by", layoutName);
      if (scorer) parameters.set("score", scorer);
      if (filter !== "all") parameters.set("filter", filter);
      if (query) parameters.set("q", query);
      for (const other of filters) parameters.append("where", JSON.stringify(other));
      if (sort) parameters.set("sort", `${sort.down ? "-" : ""}${sort.by}`);
      if (this.theme) parameters.set("theme", this.theme);
      if (this.runs.length > 1 && this.index === 0) parameters.set("run", "A");
      const address = parameters.toString();
      if (location.protocol === "about:") return; // In a notebook, the page has no URL of its own.
      if (address !== location.hash.slice(1)) history.replaceState(null, "", `#${address}`);
    }, 120);
  }

  readAddress() {
    const parameters = new URLSearchParams(location.hash.slice(1));
    if (location.hash && !location.hash.includes("=")) return; // An anchor.
    this.isReading = true;
    this.setTheme(parameters.get("theme"));
    if (this.runs.length > 1) this.chooseRun(parameters.get("run") === "A" ? 0 : 1);
    const sort = parameters.get("sort");
    this.results.restore({
      query: parameters.get("q") || "", layoutName: parameters.get("by") || "", scorer: parameters.get("score") || "", filter: parameters.get("filter") || "all", filters: parameters.getAll("where").map(parseFilter).filter(isFilter),
      sort: sort ? { by: sort.replace(/^-/, ""), down: sort.startsWith("-") } : null,
    });
    if (parameters.has("seq")) this.execution.open = true;
    this.history.go(parameters.has("seq") ? Number(parameters.get("seq")) : this.run.seq);
    if (parameters.has("trial")) this.openName(parameters.get("trial"));
    else this.drawer.close();
    this.isReading = false;
  }

  onKey(event) {
    const isTyping = event.target.closest?.("input[type=search], input[type=number], select, textarea");
    if (event.ctrlKey || event.metaKey || event.altKey || this.keys.open) return;
    if (event.key === "Escape") {
      if (isTyping) event.target.blur();
      else if (this.results.chooser.open) this.results.chooser.open = false;
      else this.drawer.close();
      return;
    }
    if (isTyping || (this.drawer.isOpen && this.drawer.onKey(event))) return;
    const { history, results } = this, isSlider = event.target === history.slider;
    const executionKeys = {
      ArrowLeft: () => isSlider || history.step(event.shiftKey ? -10 : -1),
      ArrowRight: () => isSlider || history.step(event.shiftKey ? 10 : 1),
      "+": () => history.zoomHere(0.6),
      "-": () => history.zoomHere(1 / 0.6),
      0: () => history.fit(),
    };
    const keys = {
      "/": () => { results.search.focus(); results.search.select(); },
      "?": () => this.showKeys(),
      j: () => this.step(1),
      k: () => this.step(-1),
      Enter: () => { if (results.selectedTrial !== null) this.openName(results.selectedTrial); },
      ...(this.execution.open ? executionKeys : {}),
    };
    const action = Object.hasOwn(keys, event.key) && keys[event.key];
    const nativeTargets = { Enter: "button, a, summary, label, input", ArrowLeft: "pre", ArrowRight: "pre" }[event.key]; // Elements that handle the key themselves.
    if (!action || (nativeTargets && event.target.closest?.(nativeTargets))) return;
    if (!isSlider || !event.key.startsWith("Arrow")) event.preventDefault();
    action();
  }

  step(by) {
    const name = this.results.move(by);
    if (this.drawer.isOpen && name !== null) this.openName(name);
  }

  update(data) {
    this.run.update(data);
    this.draw();
    if (this.drawer.isOpen && data.columns.trials.name.includes(this.drawer.name)) this.openName(this.drawer.name);
  }
}

function parseFilter(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

// Receive the run from the server, then its changes. After a lost connection, EventSource continues from the last event.
function listen() {
  const live = { text: "connecting …" };
  let page = null;
  const source = new EventSource("events");
  const show = (text, isOn) => {
    live.text = text;
    const mark = document.getElementById("live");
    if (mark) { setText(mark, text); mark.classList.toggle("on", isOn); }
  };
  source.addEventListener("run", (event) => {
    const data = JSON.parse(event.data);
    if (!page) window.page = page = new Page({ runs: [data], comparison: null }, live);
    else if (data.columns.from === page.run.seq) page.update(data);
    else if (data.columns.from === 0) { page.runs[0] = new Run(data); page.build(); }
    const isLive = data.status === "running";
    show(`${isLive ? "live" : "up to date"} · seq ${groupDigits(data.columns.seq)}`, isLive);
  });
  source.addEventListener("error", () => show(source.readyState === EventSource.CLOSED ? "server closed" : "reconnecting …", false));
}

if (EMBEDDED) openEmbedded((data) => { window.page = new Page(data, null); });
else listen();
