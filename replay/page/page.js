// The page: its sections in order, its address, its keys, and updates of a live run.
"use strict";

const DARK = document.getElementById("dark"), SYSTEM_MEDIA = DARK.media;

class Page {
  constructor(data, live) {
    this.live = live;
    this.theme = "";
    this.runs = data.runs.map((run) => new Run(run));
    this.comparison = data.comparison;
    this.index = this.runs.length - 1;
    this.main = document.getElementById("page");
    this.drawer = new Drawer(document.getElementById("drawer"), {
      onClose: (hasFocus) => { if (!hasFocus) this.trials.focus(); this.saveAddress(); },
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
    this.themeButton = el("button", { type: "button", id: "theme", "aria-label": "Switch between light and dark", text: this.themeLabel, onclick: () => this.setTheme(this.isDark ? "light" : "dark") });
    this.top = el("header", { class: "top" });
    this.comparisonSection = el("section", { "aria-labelledby": "compared-title", hidden: !this.comparison });
    this.trials = new TrialsView(this.runs, this.comparison, { onOpen: (name) => this.openName(name), onChange: () => this.saveAddress() });
    this.breakdown = new BreakdownView(this.runs, { onValue: (metadata) => { this.trials.filterMetadata(metadata); this.trials.element.scrollIntoView({ block: "start" }); } });
    this.chooser = el("section", { class: "chooser", hidden: !this.comparison });
    this.tiles = el("section", { class: "tiles", id: "summary", "aria-label": "Summary" });
    this.errors = el("section", { "aria-labelledby": "errors-title" });
    this.audit = el("footer", { class: "foot" });
    this.buildRun();
    this.draw();
  }

  // The views of the chosen run.
  buildRun() {
    this.history = new HistoryView(this.run, { onSeq: () => this.saveAddress(), onTrial: (trial) => this.open(trial) });
    this.times = new TimesView(this.runs, this.run);
    this.variants = new VariantsView(this.run, { onVariant: (name) => { this.trials.filterVariant(name); this.trials.element.scrollIntoView({ block: "start" }); } });
    const { filter = "all", query = "" } = this.grid || {};
    this.grid = new GridView(this.run, { filter, query, onOpen: (trial) => this.open(trial), onChange: () => this.saveAddress() });
    const results = [this.trials.element, this.breakdown.element], runSections = [this.tiles, this.variants.element, this.grid.element];
    this.main.replaceChildren(this.top, this.comparisonSection, ...(this.comparison ? [...results, this.chooser, ...runSections] : [...runSections, ...results]),
      this.errors, this.history.element, this.times.element, this.audit);
  }

  draw() {
    this.drawTop();
    if (this.comparison) refill(this.comparisonSection, ...comparisonTable(this.comparison, this.runs));
    this.drawRun();
    this.trials.update();
    this.breakdown.update();
    document.title = `${oneLine(this.run.info.summary.evaluation || "run", 60)} · ${this.runs.map((run) => oneLine(run.info.name, 40)).join(" and ")}`;
  }

  drawRun() {
    this.tiles.replaceChildren(...summaryTiles(this.run));
    fitTiles(this.tiles);
    refill(this.chooser, el("div", { class: "chips", role: "group", "aria-label": "Run shown below" }, el("span", { class: "faint", text: "Shown below: run" }), this.runs.map((run, index) =>
      el("button", { type: "button", "data-run": "AB"[index], "aria-pressed": String(index === this.index), onclick: () => this.chooseRun(index) }, `${"AB"[index]} `, el("b", { text: oneLine(run.info.path, 60) })))));
    this.errors.hidden = !this.run.errorGroups.length;
    refill(this.errors, ...errorsSection(this.run, { onTrials: (group) => { this.trials.filterErrors({ run: this.run, group }); this.trials.element.scrollIntoView({ block: "start" }); }, onSeq: (seq) => this.showRecord(seq) }));
    refill(this.audit, ...auditSection(this.run));
    this.variants.update();
    this.grid.update();
    this.history.update();
    this.times.update();
  }

  drawTop() {
    const { info } = this.run, { summary } = info;
    const startText = summary.started_at ? `${escapeInvisible(summary.started_at.slice(0, 19)).replace("T", " ")} UTC` : "not started";
    const durationText = summary.sessions ? `, took ${duration(summary.elapsed)}` : "";
    const shards = this.run.shards.filter(({ name }) => name).length;
    const sessions = summary.sessions > 1 || shards ? `, ${plural(summary.sessions, "session")}${shards ? `, merged from ${plural(shards, "shard")}` : ""}${summary.crashes ? `, ${groupDigits(summary.crashes)} without a final record` : ""}` : "";
    const status = this.comparison ? this.runs.map((run, index) => el("span", {}, el("b", { text: "AB"[index] }), ` ${oneLine(run.info.path, 80)}, ${run.info.status}`))
      : [el("span", { class: `badge ${info.status}`, text: info.status }), this.live ? el("span", { id: "live", class: "live", text: this.live.text }) : "", el("span", { text: oneLine(info.path, 120) }), el("span", { text: `${startText}${durationText}${sessions}` })];
    refill(this.top,
      this.themeButton, el("p", { class: "eyebrow" }, status),
      el("h1", { text: escapeInvisible(this.comparison ? this.comparison.headline : info.headline).replace(/ (?=[%=])|(?<==) /g, "\u00a0") }),
      ...this.runs.map((run) => (run.info.problem ? el("p", { class: "banner", role: "alert", text: `Shown up to the damage: ${escapeInvisible(run.info.problem)}` }) : "")));
  }

  chooseRun(index) {
    if (index === this.index) return;
    this.index = index;
    this.buildRun();
    this.drawRun();
    this.trials.refresh();
    this.saveAddress();
  }

  redraw() {
    if (this.frame || this.isPaper) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.fit();
      this.trials.refresh();
      this.grid.refresh();
    });
  }

  fit() {
    measure();
    fitTiles(this.tiles);
    this.variants.draw();
    this.history.draw();
    this.times.draw();
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
    const folds = [this.variants.element, this.audit].flatMap((element) => [...element.querySelectorAll("details")]);
    if (isPaper) this.openDetails = folds.filter((details) => details.open);
    for (const details of folds) details.open = isPaper || this.openDetails.includes(details);
    if (!isPaper) return this.setTheme(this.theme);
    this.fit();
    this.trials.refresh();
    this.trials.render(true);
  }

  showRecord(seq) {
    this.history.go(seq);
    this.history.element.scrollIntoView({ block: "start" });
  }

  // Open a trial of a run.
  open(trial, run = this.run) { this.openName(this.trials.rowsOf[this.runs.indexOf(run)][trial].name); }

  openName(name) {
    const row = this.trials.byName.get(name);
    if (!row) return;
    this.trials.select(name);
    this.drawer.open(name, this.trials.sides(row), this.comparison && row.trials.includes(-1) ? "AB"[row.trials.indexOf(-1)] : "");
    this.saveAddress();
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
      if (this.trials.filter !== "all") parameters.set("filter", this.trials.filter);
      if (this.trials.query) parameters.set("q", this.trials.query);
      if (this.trials.variant) parameters.set("variant", this.trials.variant);
      if (this.trials.metadata) parameters.set("meta", this.trials.metadata);
      if (this.grid.filter !== "all") parameters.set("cases", this.grid.filter);
      if (this.grid.query) parameters.set("cases_q", this.grid.query);
      if (this.theme) parameters.set("theme", this.theme);
      if (this.comparison && this.index === 0) parameters.set("run", "A");
      const address = parameters.toString();
      if (address !== location.hash.slice(1)) history.replaceState(null, "", `#${address}`);
    }, 120);
  }

  readAddress() {
    const parameters = new URLSearchParams(location.hash.slice(1));
    if (location.hash && !location.hash.includes("=")) return; // An anchor.
    this.isReading = true;
    this.setTheme(parameters.get("theme"));
    if (this.comparison) this.chooseRun(parameters.get("run") === "A" ? 0 : 1);
    this.trials.query = parameters.get("q") || "";
    this.trials.filterVariant(parameters.get("variant") || "");
    this.trials.filterMetadata(parameters.get("meta") || "");
    this.grid.query = parameters.get("cases_q") || "";
    this.grid.choose(parameters.get("cases") || "all");
    this.trials.choose(parameters.get("filter") || "all");
    this.history.go(parameters.has("seq") ? Number(parameters.get("seq")) : this.run.seq);
    if (parameters.has("trial")) this.openName(parameters.get("trial"));
    else this.drawer.close();
    this.isReading = false;
  }

  onKey(event) {
    const isTyping = event.target.closest?.("input[type=search], input[type=number], select, textarea");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (isTyping) event.target.blur();
      else this.drawer.close();
      return;
    }
    if (isTyping || (this.drawer.isOpen && this.drawer.onKey(event))) return;
    const isSlider = event.target === this.history.slider;
    const keys = {
      "/": () => this.trials.search.focus(),
      j: () => this.step(1),
      k: () => this.step(-1),
      Enter: () => { if (this.trials.selectedName !== null) this.openName(this.trials.selectedName); },
      ArrowLeft: () => isSlider || this.history.step(event.shiftKey ? -10 : -1),
      ArrowRight: () => isSlider || this.history.step(event.shiftKey ? 10 : 1),
      "+": () => this.history.zoomHere(0.6),
      "-": () => this.history.zoomHere(1 / 0.6),
      0: () => this.history.fit(),
    };
    const action = Object.hasOwn(keys, event.key) && keys[event.key];
    const nativeTargets = { Enter: "button, a, summary", ArrowLeft: "pre", ArrowRight: "pre" }[event.key]; // Elements that handle the key themselves.
    if (!action || (nativeTargets && event.target.closest?.(nativeTargets))) return;
    if (!isSlider || !event.key.startsWith("Arrow")) event.preventDefault();
    action();
  }

  step(by) {
    this.trials.move(by);
    if (this.drawer.isOpen && this.trials.selectedName !== null) this.openName(this.trials.selectedName);
  }

  update(data) {
    this.run.update(data);
    this.draw();
    if (this.drawer.isOpen && data.columns.trials.name.includes(this.drawer.name)) this.openName(this.drawer.name);
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
