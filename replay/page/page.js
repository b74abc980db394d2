// The page from top to bottom; what its address asks for; its keys; and what comes while the run goes on.
"use strict";

async function opened(text) {
  const packed = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const DARK = document.getElementById("dark"), BY_SYSTEM = DARK.media; // Paper is light, whatever the screen is.

class Page {
  constructor(told, live) {
    this.live = live;
    this.theme = "";
    this.runs = told.runs.map((each) => new Run(each));
    this.comparison = told.comparison;
    this.at = this.runs.length - 1;
    this.main = document.getElementById("page");
    this.drawer = new Drawer(document.getElementById("drawer"), { onClose: () => this.remember(), onSeq: (seq) => { this.history.go(seq); this.history.element.scrollIntoView({ block: "start" }); } });
    this.build();
    this.readAddress();
    window.addEventListener("hashchange", () => this.readAddress());
    window.addEventListener("resize", () => this.redraw());
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint(this.theme));
    window.addEventListener("beforeprint", () => this.lay(true));
    window.addEventListener("afterprint", () => this.lay(false));
    document.addEventListener("keydown", (event) => this.press(event));
    this.main.removeAttribute("aria-busy");
  }

  get run() {
    return this.runs[this.at];
  }

  build() {
    measure();
    this.history = new HistoryView(this.run, { onSeq: () => this.remember(), onTrial: (trial) => this.open(trial) });
    this.trials = new TrialsView(this.run, { onTrial: (trial) => this.open(trial), onChange: () => this.remember() });
    this.top = el("header", { class: "top" });
    this.painter = el("button", { type: "button", id: "theme", "aria-label": "Change between light and dark", text: this.isDark ? "☀ light" : "☾ dark", onclick: () => this.paint(this.isDark ? "light" : "dark") });
    this.tiles = el("section", { class: "tiles", "aria-label": "Results" });
    this.compared = el("section", { "aria-labelledby": "compared-title", hidden: !this.comparison });
    this.times = el("section", { class: "times", "aria-labelledby": "times-title" });
    this.errors = el("section", { "aria-labelledby": "errors-title" });
    this.foot = el("footer", { class: "foot" });
    this.main.replaceChildren(this.top, this.compared, this.tiles, this.history.element, this.times, this.errors, this.trials.element, this.foot);
    this.draw();
  }

  draw() {
    this.drawTop();
    if (this.comparison) this.drawCompared();
    this.drawTiles();
    this.drawTimes();
    this.drawErrors();
    this.drawFoot();
    this.history.update();
    this.trials.update();
    document.title = `${oneLine(this.run.facts.summary.evaluation || "a run", 60)} · ${this.runs.map((run) => oneLine(run.facts.name, 40)).join(" and ")}`;
  }

  redraw() {
    if (this.waits || this.isPaper) return;
    this.waits = requestAnimationFrame(() => {
      this.waits = 0;
      this.fit();
      this.trials.refresh();
    });
  }

  fit() {
    measure();
    this.fitTiles();
    this.history.draw();
    this.drawHistogram();
  }

  get isDark() {
    return this.theme ? this.theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  }

  // Light, dark, or as the system is, which is told by nothing.
  paint(theme) {
    this.theme = ["light", "dark"].includes(theme) ? theme : "";
    DARK.media = { light: "not all", dark: "screen" }[this.theme] || BY_SYSTEM;
    this.painter.textContent = this.isDark ? "☀ light" : "☾ dark";
    this.redraw();
    this.remember();
  }

  // Lay the page out for paper, or for the screen again.
  lay(isPaper) {
    this.isPaper = isPaper;
    DARK.media = "not all";
    document.documentElement.classList.toggle("paper", isPaper);
    const folds = [...this.foot.querySelectorAll("details")];
    if (isPaper) this.unfolded = folds.filter((each) => each.open);
    for (const each of folds) each.open = isPaper || this.unfolded.includes(each);
    if (!isPaper) return this.paint(this.theme);
    this.fit();
    this.trials.render(true);
  }

  drawTop() {
    const { facts } = this.run, { summary } = facts;
    const when = summary.started_at ? `${visible(summary.started_at.slice(0, 19)).replace("T", " ")} UTC` : "not begun";
    const sessions = summary.sessions > 1 ? `, in ${plural(summary.sessions, "session")}${summary.crashes ? `, ${grouped(summary.crashes)} without a last word` : ""}` : "";
    const told = this.comparison ? this.runs.map((run, at) => el("span", {}, el("b", { text: "AB"[at] }), ` ${oneLine(run.facts.path, 80)}, ${STATUSES[run.facts.status]}`))
      : [el("span", { class: `badge ${facts.status}`, text: STATUSES[facts.status] }), this.live ? el("span", { id: "live", class: "live", text: this.live.words }) : "", el("span", { text: oneLine(facts.path, 120) }), el("span", { text: `${when}${sessions}` })];
    refill(this.top,
      this.painter, el("p", { class: "eyebrow" }, told),
      el("h1", { text: visible(this.comparison ? this.comparison.headline : facts.headline).replace(/ (?=[%=])|(?<==) /g, "\u00a0") }),
      facts.problem ? el("p", { class: "banner", role: "alert", text: `This is how far the journal can be trusted: ${visible(facts.problem)}` }) : "");
  }

  chooser() {
    return el("div", { class: "chips", role: "group", "aria-label": "Which run is shown below" }, el("span", { class: "faint", text: "Below: run" }), this.runs.map((run, at) =>
      el("button", { type: "button", "data-run": "AB"[at], "aria-pressed": String(at === this.at), onclick: () => this.choose(at) }, `${"AB"[at]} `, el("b", { text: oneLine(run.facts.path, 60) }))));
  }

  choose(at) {
    this.at = at;
    this.drawer.close();
    this.build();
    this.remember();
  }

  tile(title, figure, ...notes) {
    return el("div", { class: "tile" }, el("h3", { text: title }), el("p", { class: "figure" }, figure), notes.filter(Boolean).map((note) => (typeof note === "string" ? el("p", { class: "note", text: note.replace(/(?<=\d) (?=(?:%|s|ms|min|h)(?![\p{L}\d]))/gu, "\u00a0") }) : note)));
  }

  scoreTile(name, score) {
    const title = oneLine(name, 40), isShare = score.passed !== null, show = isShare ? percent : (value) => digits(value, 3);
    const missing = [[this.run.facts.summary.trials.failed, "failed"], [score.not_scored, "could not be scored"], [score.beyond, "not finite"], [Object.hasOwn(this.run.facts.summary.unscored, name) && this.run.facts.summary.unscored[name], "without a score"]].filter(([count]) => count).map(([count, why]) => `${grouped(count)} ${why}`).join(", ");
    const mixed = !score.from_older_version ? "" : score.versions === 1 ? "all by an older version of the scorer" : `by ${plural(score.versions, "version")} of the scorer, ${grouped(score.from_older_version)} by an older one`;
    const without = [missing ? `not in it: ${missing}` : "", mixed].filter(Boolean).join("; ");
    if (score.mean === null) {
      const labels = Object.entries(score.labels).slice(0, 4);
      return this.tile(title, labels.length ? oneLine(labels[0][0], 24) : NONE, labels.map(([label, count]) => `${oneLine(label, 24)} ${Math.round((100 * count) / score.scored)} %`).join(" · ") || "nothing yet", `n = ${grouped(score.scored)}`, without);
    }
    const of = `${isShare ? grouped(score.passed) : "mean"} of n = ${grouped(score.numbers)}`;
    const range = score.low === null ? "" : isShare ? `95 %: ${(100 * score.low).toFixed(1)}–${(100 * score.high).toFixed(1)} %` : `95 %: ${digits(score.low, 3)} to ${digits(score.high, 3)}`;
    const several = score.passes.filter((each) => each.k > 1).map((each) => `pass@${each.k} ${percent(each.at_least_one)}, pass^${each.k} ${percent(each.all)}`);
    return this.tile(title, show(score.mean), isShare && score.low !== null ? interval(score) : "", of, range, ...several, without);
  }

  drawTiles() {
    const { facts } = this.run, { summary } = facts, { trials, attempts, latency } = summary;
    const tiles = Object.entries(summary.scores).map(([name, score]) => this.scoreTile(name, score));
    const counts = [[trials.failed, "failed"], [trials.recovered, "recovered"], [trials.open, "open"], [trials.withdrawn, "withdrawn"]].filter(([count, name]) => count || name === "failed");
    tiles.push(this.tile("trials", el("span", {}, grouped(trials.completed), el("small", { text: " ok" })), counts.map(([count, name]) => `${grouped(count)} ${name}`).join(" · "), `of ${plural(Math.max(trials.enqueued, facts.total || 0), "trial")}`));
    tiles.push(this.tile("time to an answer", duration(latency.p50), latency.answers ? `p50 of ${plural(latency.answers, "answer")}` : "nothing answered yet", ...(latency.answers ? [`p95 ${duration(latency.p95)}`, `longest ${duration(latency.max)}`] : []), summary.from_older_task ? `${grouped(summary.from_older_task)} by an older version of the task` : "", summary.truncated ? `${grouped(summary.truncated)} cut short by the limit of tokens` : ""));
    const cost = Object.entries(facts.usage), lost = Object.entries(facts.usage_lost).filter(([, value]) => value);
    if (cost.length) {
      const first = cost.find(([name]) => /cost/i.test(name)) || cost[0];
      tiles.push(this.tile(oneLine(words(first[0]), 30), number(first[1]), cost.filter(([name]) => name !== first[0]).slice(0, 4).map(([name, value]) => `${oneLine(words(name), 24)} ${number(value)}`).join(" · "), lost.length ? `without an output: ${lost.slice(0, 3).map(([name, value]) => `${oneLine(words(name), 24)} ${number(value)}`).join(" · ")}` : ""));
    }
    tiles.push(this.tile("attempts", grouped(attempts.started), [[attempts.failed, "failed"], [attempts.timed_out, "timed out"], [attempts.interrupted, "cut off"]].filter(([count]) => count).map(([count, name]) => `${grouped(count)} ${name}`).join(" · ") || "none went wrong", attempts.repeated_calls ? `${plural(attempts.repeated_calls, "call")} may have been paid twice` : "no call paid twice", attempts.returned_late ? `${grouped(attempts.returned_late)} came late` : ""));
    this.tiles.replaceChildren(...tiles);
    this.fitTiles();
  }

  // As many in a row as there is room for, and no row with a few only.
  fitTiles() {
    const count = this.tiles.children.length, most = Math.max(1, Math.floor(this.tiles.clientWidth / (172 * UNIT)));
    this.tiles.style.gridTemplateColumns = `repeat(${Math.ceil(count / Math.ceil(count / most))}, 1fr)`;
  }

  drawCompared() {
    const { comparison } = this;
    const points = (value) => (100 * value).toFixed(1), plainly = (value) => digits(value, 3);
    const rows = Object.entries(comparison.scores).map(([name, paired]) => (paired.kind === "pass" ? this.pairedRow(oneLine(name, 40), paired, comparison.outcomes[name], percent, points, " points") : this.pairedRow(oneLine(name, 40), paired, comparison.outcomes[name], plainly, plainly)));
    rows.push(this.pairedRow("time to an answer", comparison.latency, comparison.latency_outcome, duration, duration));
    const lists = [["broke", comparison.broke], ["fixed", comparison.fixed], ["changed", comparison.changed], ["slower", comparison.slower]];
    const only = [[comparison.only_a, "only in A"], [comparison.only_b, "only in B"], [comparison.different, "with the same name and other content"]].filter(([names]) => names.length).map(([names, what]) => `${grouped(names.length)} ${what}`);
    if (!comparison.is_same_task) only.push("the task's source was changed");
    refill(this.compared,
      el("div", { class: "section-head" }, el("h2", { id: "compared-title", text: "B against A" }), el("p", { class: "hint", text: [`${plural(comparison.compared, "trial")} done in both`, ...only].join(" · ") })),
      el("div", { class: "scrolls" }, el("table", { class: "facts paired" }, el("thead", {}, el("tr", {}, ["", "A", "B", "difference", "95 % range", "n", ""].map((head) => el("th", { scope: "col", text: head })))), el("tbody", {}, rows))),
      el("div", { class: "lists" }, lists.map(([kind, entries]) => this.changes(kind, entries))), this.chooser());
  }

  pairedRow(name, paired, said, show, showDifference, unit = "") {
    const sign = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${showDifference(Math.abs(value))}`;
    return el("tr", {}, el("th", { scope: "row", text: name }), el("td", { class: "num", text: paired.a === null ? NONE : show(paired.a) }), el("td", { class: "num", text: paired.b === null ? NONE : show(paired.b) }),
      el("td", { class: "num", text: paired.difference === null ? NONE : `${sign(paired.difference)}${unit}` }), el("td", { class: "num", text: paired.low === null ? NONE : `${sign(paired.low)} to ${sign(paired.high)}` }), el("td", { class: "num", text: grouped(paired.n) }), el("td", { class: paired.is_distinguishable ? "told" : "faint", text: visible(said) }));
  }

  changes(kind, entries) {
    const most = 200;
    return el("div", { class: "list", "data-list": kind }, el("h3", {}, `${kind} `, el("b", { text: grouped(entries.length) })),
      el("ul", {}, entries.slice(0, most).map((each) => el("li", {}, el("button", { type: "button", class: "link", text: oneLine(each.trial, 60), onclick: () => this.openName(each.trial) }), el("span", { class: "faint", text: ` ${kind === "slower" ? `${duration(each.a)} → ${duration(each.b)}` : inWords(each)}` })))),
      entries.length > most ? el("p", { class: "faint", text: `and ${grouped(entries.length - most)} more` }) : "");
  }

  drawTimes() {
    const { run } = this, { trials } = run, total = { waited: 0, backed_off: 0, served: 0, scored: 0 };
    for (const name of Object.keys(total)) for (const value of trials[name]) total[name] += value;
    const all = Object.values(total).reduce((sum, value) => sum + value, 0) || 1;
    const share = (value) => { const whole = Math.round((100 * value) / all); return value && !whole ? "< 1 %" : `${whole} %`; };
    const labels = { waited: "waiting for a slot", backed_off: "in backoff", served: "in service", scored: "being scored" };
    this.histogramAt = el("div", { class: "plot", role: "img", "aria-label": "How many answers took how long" });
    this.histogram = new Histogram(this.histogramAt);
    this.histogramNote = el("p", { class: "hint" });
    this.times.replaceChildren(
      el("div", { class: "section-head" }, el("h2", { id: "times-title", text: "Where the time went" })),
      el("div", { class: "two" },
        el("div", {}, el("h3", { text: "Answers, by how long they took" }), this.histogramAt, this.histogramNote, this.comparison ? el("div", { class: "chart-label" }, el("span", { class: "key" }, el("i", { class: "swatch line run-a" }), "A"), el("span", { class: "key" }, el("i", { class: "swatch line run-b" }), "B")) : ""),
        el("div", {}, el("h3", { text: "The time of all trials together" }),
          el("div", { class: "split", role: "img", "aria-label": Object.entries(labels).map(([name, label]) => `${label} ${share(total[name])}`).join(", ") }, Object.keys(labels).map((name) => {
            const part = el("i", { class: `part ${name}` });
            part.style.flexGrow = String(total[name] / all);
            return part;
          })),
          el("dl", { class: "split-legend" }, Object.entries(labels).map(([name, label]) => el("div", {}, el("dt", {}, el("i", { class: `swatch fill ${name}` }), label), el("dd", { class: "num", text: micro(total[name]) }), el("dd", { class: "num faint", text: share(total[name]) })))))));
    this.drawHistogram();
  }

  drawHistogram() {
    const timesOf = (run) => run.trials.elapsed.filter((value) => value !== null).map((value) => value / 1e6);
    const marks = (run) => [["p50", run.facts.summary.latency.p50], ["p95", run.facts.summary.latency.p95]];
    const sets = this.comparison
      ? this.runs.map((run, at) => ({ label: "AB"[at], times: timesOf(run), tint: `run-${"ab"[at]}`, fill: `run-${"ab"[at]}-fill`, dash: at ? undefined : [5, 3], marks: [] }))
      : [{ label: "answers", times: timesOf(this.run), tint: "flight", fill: "flight-fill", marks: marks(this.run) }];
    this.histogram.draw(sets, Math.floor(this.histogramAt.clientWidth));
    put(this.histogramNote, this.histogram.beyond || (this.histogram.plot ? "" : "Nothing was answered yet."));
  }

  drawErrors() {
    const { run } = this, counts = run.groups.map(() => ({ attempts: 0, trials: new Set(), last: 0 }));
    run.spans.details.forEach((details, span) => {
      if (!details || details.error === undefined) return;
      const group = counts[run.errors[details.error][4]];
      group.attempts += 1;
      group.trials.add(run.spans.trial[span]);
      group.last = Math.max(group.last, run.spans.end_seq[span]);
    });
    this.errors.hidden = !run.groups.length;
    const order = [...counts.keys()].sort((a, b) => counts[b].attempts - counts[a].attempts), most = 30;
    refill(this.errors,
      el("div", { class: "section-head" }, el("h2", { id: "errors-title", text: "Errors" }), el("p", { class: "hint", text: "by class and message; numbers in messages are taken as alike" })),
      el("div", { class: "scrolls" }, el("table", { class: "facts errors" }, el("thead", {}, el("tr", {}, ["attempts", "trials", "last", "class", "error", "message"].map((head) => el("th", { scope: "col", text: head })))),
        el("tbody", {}, order.slice(0, most).map((group) => {
          const [category, error, message] = run.groups[group], ending = category === "error" ? "failed" : category;
          return el("tr", {}, el("td", { class: "num", text: grouped(counts[group].attempts) }),
            el("td", { class: "num" }, el("button", { type: "button", class: "link", text: grouped(counts[group].trials.size), "aria-label": "Show these trials", onclick: () => { this.trials.chooseGroup(group); this.trials.element.scrollIntoView({ block: "start" }); } })),
            el("td", { class: "num" }, el("button", { type: "button", class: "link", text: `seq ${grouped(counts[group].last)}`, title: "Show the run as it stood then", onclick: () => { this.history.go(counts[group].last); this.history.element.scrollIntoView({ block: "start" }); } })),
            el("td", { class: "tight" }, el("i", { class: `pip end-${ending.replaceAll("_", "-")}`, text: ENDINGS[ending]?.letter ?? "?" }), ` ${words(category)}`), el("td", { class: "tight", text: oneLine(error, 60) }), el("td", { text: oneLine(message, 300) }));
        })))),
      order.length > most ? el("p", { class: "faint", text: `and ${plural(order.length - most, "more kind")}` }) : "");
  }

  drawFoot() {
    const { facts } = this.run, { audit } = facts, { totals } = audit;
    const pairs = (entries) => el("dl", { class: "pairs" }, entries.map(([name, value]) => el("div", {}, el("dt", { text: oneLine(name, 60) }), el("dd", { text: visible(value) }))));
    const found = audit.findings.length + audit.more;
    const agrees = `The log and the rules agree: ${plural(totals.enqueued, "trial")} = ${grouped(totals.completed)} completed + ${grouped(totals.failed)} failed + ${grouped(totals.withdrawn)} withdrawn + ${grouped(totals.open)} open; ${plural(audit.decisions, "decision")} recomputed, all equal.`;
    refill(this.foot,
      el("h2", { text: "Proof" }),
      el("p", { class: audit.agrees ? "audit ok" : "audit not" }, audit.agrees ? `✓ ${agrees}` : `✕ The log and the rules disagree in ${plural(found, "place")}.`),
      audit.findings.length ? el("ul", {}, audit.findings.slice(0, 20).map((each) => el("li", { text: `record ${grouped(each.seq)} (${each.check}): ${visible(each.what)}` }))) : "",
      el("p", { class: "faint", text: audit.notes.map((note) => visible(note)).join(" · ") }),
      el("p", { class: "faint" }, "Every record's hash was checked when this page was made, up to ", el("code", { text: `seq ${grouped(this.run.seq)}` }), ", head ", el("code", { id: "head", text: facts.head }), ". Files and large values too: ", el("code", { text: facts.verify }), ".", facts.next === facts.verify ? "" : " Next: ", facts.next === facts.verify ? "" : el("code", { text: facts.next })),
      el("div", { class: "more" },
        el("details", {}, el("summary", { text: "Settings" }), pairs(Object.entries(facts.settings))),
        el("details", {}, el("summary", { text: "Environment" }), pairs(Object.entries(facts.environment))),
        el("details", {}, el("summary", { text: "What was pinned" }), pairs(Object.entries(facts.definition))),
        el("details", {}, el("summary", { text: "Sessions" }), pairs(facts.sessions.map((life) => [`${life.n}`, `${life.at}, process ${life.pid} on ${life.host}: ${life.ended ? words(life.ended) : "no ending"}${life.adopted.length ? `; adopted what had changed: ${life.adopted.join(", ")}` : ""}`])))));
  }

  open(trial) {
    this.trials.select(trial);
    const other = this.comparison ? { run: this.runs[1 - this.at], label: "AB"[1 - this.at], own: "AB"[this.at] } : null;
    this.drawer.open(this.run, trial, other);
    this.remember();
  }

  openName(name) {
    const trial = this.run.numbers.get(name);
    if (trial !== undefined) this.open(trial);
  }

  // What is shown is in the address, so that it can be sent to somebody.
  remember() {
    if (this.isReading || this.isAsked) return;
    this.isAsked = true;
    setTimeout(() => {
      this.isAsked = false;
      const asked = new URLSearchParams();
      if (this.drawer.isOpen) asked.set("trial", this.run.trials.name[this.drawer.trial]);
      if (!this.history.follows) asked.set("seq", this.history.seq);
      if (this.trials.filter !== "all") asked.set("filter", this.trials.filter);
      if (this.trials.query) asked.set("q", this.trials.query);
      if (this.trials.meta) asked.set("meta", this.trials.meta);
      if (this.theme) asked.set("theme", this.theme);
      if (this.comparison && this.at === 0) asked.set("run", "A");
      const address = asked.toString();
      if (address !== location.hash.slice(1)) history.replaceState(null, "", `#${address}`);
    }, 120);
  }

  readAddress() {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (location.hash && !location.hash.includes("=")) return; // A place on the page.
    this.isReading = true;
    this.paint(asked.get("theme"));
    if (this.comparison && (asked.get("run") === "A") !== (this.at === 0)) this.choose(asked.get("run") === "A" ? 0 : 1);
    this.trials.query = asked.get("q") || "";
    this.trials.meta = this.trials.offers(asked.get("meta"));
    this.trials.choose(asked.get("filter") || "all");
    this.history.go(asked.has("seq") ? Number(asked.get("seq")) : this.run.seq);
    if (asked.has("trial")) this.openName(asked.get("trial"));
    else this.drawer.close();
    this.isReading = false;
  }

  press(event) {
    const isTyping = event.target.closest?.("input[type=search], input[type=number], select, textarea");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (isTyping) event.target.blur();
      else this.drawer.close();
      return;
    }
    if (isTyping) return;
    const isSlider = event.target === this.history.slider;
    const keys = {
      "/": () => this.trials.search.focus(),
      j: () => this.step(1),
      k: () => this.step(-1),
      Enter: () => { if (this.trials.selected >= 0) this.open(this.trials.selected); },
      ArrowLeft: () => isSlider || this.history.step(event.shiftKey ? -10 : -1),
      ArrowRight: () => isSlider || this.history.step(event.shiftKey ? 10 : 1),
      "+": () => this.history.zoomHere(0.6),
      "-": () => this.history.zoomHere(1 / 0.6),
      0: () => this.history.fit(),
    };
    const act = keys[event.key];
    const own = { Enter: "button, a, summary", ArrowLeft: "pre", ArrowRight: "pre" }[event.key]; // What the key means something to by itself.
    if (!act || (own && event.target.closest?.(own))) return;
    if (!isSlider || !event.key.startsWith("Arrow")) event.preventDefault();
    act();
  }

  step(by) {
    this.trials.move(by);
    if (this.drawer.isOpen && this.trials.selected >= 0) this.open(this.trials.selected);
  }

  take(told) {
    this.run.take(told);
    this.draw();
    if (this.drawer.isOpen && told.columns.trials.name.includes(this.run.trials.name[this.drawer.trial])) this.open(this.drawer.trial);
  }
}

const STATUSES = { running: "going on", finished: "finished", stopped: "stopped", interrupted: "interrupted", damaged: "damaged" };

function interval(score) {
  const range = el("i", { class: "range" }), point = el("i", { class: "point" });
  range.style.left = `${100 * score.low}%`;
  range.style.width = `${100 * (score.high - score.low)}%`;
  point.style.left = `${100 * score.mean}%`;
  return el("div", { class: "interval", "aria-hidden": "true" }, range, point);
}

function inWords(change) {
  const parts = change.a === change.b ? [] : [`${change.a === "completed" ? "answered" : change.a} → ${change.b === "completed" ? "answered" : change.b}`];
  const value = (said) => (said === null ? NONE : said === true ? "pass" : said === false ? "fail" : typeof said === "number" ? digits(said, 3) : oneLine(said, 24));
  for (const [scorer, [was, now]] of Object.entries(change.scores)) parts.push(`${oneLine(scorer, 24)} ${value(was)} → ${value(now)}`);
  if (change.output) parts.push("another output");
  return parts.join(", ") || "failed in another way";
}

// A live page is told what is new; one that was cut off asks again from where it stands.
function listen() {
  const live = { words: "connecting …" };
  let page = null;
  const source = new EventSource("events");
  const say = (text, isOn) => {
    live.words = text;
    const mark = document.getElementById("live");
    if (mark) { put(mark, text); mark.classList.toggle("on", isOn); }
  };
  source.addEventListener("run", (event) => {
    const told = JSON.parse(event.data);
    if (!page) window.page = page = new Page({ runs: [told], comparison: null }, live);
    else if (told.columns.from === page.run.seq) page.take(told);
    else if (told.columns.from === 0) { page.runs[0] = new Run(told); page.build(); }
    const isLive = told.status === "running";
    say(`${isLive ? "live" : "up to date"} · seq ${grouped(told.columns.seq)}`, isLive);
  });
  source.addEventListener("error", () => say(source.readyState === EventSource.CLOSED ? "the server is gone" : "connecting again …", false));
}

const embedded = document.getElementById("data").textContent;
if (embedded) {
  opened(embedded).then((told) => { window.page = new Page(told, null); }).catch((problem) => {
    document.getElementById("opening").textContent = `This page cannot be opened: ${problem.message}`;
  });
} else {
  listen();
}
