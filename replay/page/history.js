// The concurrency history, and the scrubber over it: who held which slot when, and the state after any record.
"use strict";

const NOW = [
  ["running", "running"],
  ["queued", "queued"],
  ["backing_off", "in backoff"],
  ["being_scored", "being scored"],
  ["completed", "ok"],
  ["failed", "failed"],
  ["recovered", "recovered"],
];

class HistoryView {
  constructor(run, { onSeq, onTrial }) {
    this.run = run;
    this.onSeq = onSeq;
    this.onTrial = onTrial;
    this.seq = run.seq;
    this.follows = true;
    this.zoomed = null;
    this.made = [];
    this.build();
  }

  get view() {
    const margin = 0.004 * this.run.endX;
    return this.zoomed || [0, this.run.endX + margin];
  }

  build() {
    this.lanes = el("canvas", { role: "img", "aria-label": "Every attempt as a bar, a lane for each slot" });
    this.upper = el("div", { class: "plot", role: "img", "aria-label": "Attempts in flight, the limit and the pace of starts, over time" });
    this.lower = el("div", { class: "plot", role: "img", "aria-label": "Trials queued, and in backoff, over time" });
    this.veil = el("div", { class: "veil" });
    this.line = el("div", { class: "scrub-line" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.area = el("div", { class: "timeline" },
      el("div", { class: "chart-label", text: "slots" }), this.lanes,
      this.key([["in flight", "flight", "fill"], ["limit", "limit", "line"], ["pace, starts/s (own scale)", "pace", "line"]]), this.upper,
      this.key([["queued", "queue", "fill"], ["in backoff", "backoff", "line"]]), this.lower,
      this.veil, this.line, this.tip);
    this.charts = [
      new StepChart(this.upper, [{ name: "in_flight", label: "in flight", tint: "flight", fill: "flight-fill" }, { name: "limit", label: "limit", tint: "limit", dash: [5, 3] }, { name: "pace", label: "pace", tint: "pace", scale: "pace" }], { showAxis: false, height: 100, showsPolicy: true }),
      new StepChart(this.lower, [{ name: "queued", label: "queued", tint: "queue", fill: "queue-fill" }, { name: "backing_off", label: "in backoff", tint: "backoff" }], { showAxis: true, height: 108 }),
    ];
    this.slider = el("input", { type: "range", min: 1, max: this.run.seq, value: this.seq, step: 1, id: "scrub", "aria-label": "Record: the state is shown after it", oninput: () => this.go(Number(this.slider.value)) });
    this.field = el("input", { type: "number", min: 1, max: this.run.seq, value: this.seq, id: "seq", "aria-label": "Number of the record", onchange: () => (this.field.value ? this.go(Number(this.field.value)) : this.show()) });
    this.what = el("p", { class: "what", id: "what", "aria-live": "polite" });
    this.counts = Object.fromEntries([...NOW, ["limit", "limit"], ["attempts", "attempts"]].map(([name]) => [name, el("dd", { "data-now": name })]));
    const labels = [...NOW, ["limit", "limit"], ["attempts", "attempts"]];
    this.now = el("dl", { class: "now", id: "now" }, labels.map(([name, label]) => el("div", {}, el("dt", { text: label }), this.counts[name])));
    this.said = el("p", { class: "said" });
    this.decided = el("p", { class: "said", id: "decided" });
    this.holders = el("ul", { class: "holders", "aria-label": "Attempts that hold a slot" });
    this.waiting = el("ul", { class: "holders", "aria-label": "Trials in backoff" });
    this.counted = el("ul", { class: "legend", "aria-label": "How attempts ended" });
    this.decisions = el("div", {});
    this.element = el("section", { "aria-labelledby": "history-title" },
      el("div", { class: "section-head" }, el("h2", { id: "history-title", text: "History" }),
        el("p", { class: "hint" }, "Drag over the lanes, or ", el("kbd", { text: "←" }), " ", el("kbd", { text: "→" }), " for one record at a time; ", el("kbd", { text: "+" }), " ", el("kbd", { text: "−" }), " ", el("kbd", { text: "0" }), " to zoom")),
      this.area,
      this.counted,
      el("div", { class: "scrubber" },
        el("button", { type: "button", "aria-label": "One record back", onclick: () => this.step(-1), text: "←" }),
        this.slider,
        el("button", { type: "button", "aria-label": "One record on", onclick: () => this.step(1), text: "→" }),
        el("label", {}, "record ", this.field, el("span", { class: "of" }))),
      this.what, this.decided, this.now, this.said, el("div", { class: "sides" }, this.holders, this.waiting), this.decisions);
    this.area.addEventListener("pointerdown", (event) => this.grab(event));
    this.area.addEventListener("pointermove", (event) => this.hover(event));
    this.area.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    this.area.addEventListener("dblclick", (event) => this.open(event));
    this.area.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.7 : 1 / 0.7, this.xOf(event));
    }, { passive: false });
  }

  key(entries) {
    return el("div", { class: "chart-label" }, entries.map(([label, tint, kind]) => el("span", { class: "key" }, el("i", { class: `swatch ${kind} ${tint}` }), label)));
  }

  xOf(event) {
    const box = this.area.getBoundingClientRect(), view = this.view;
    const share = (event.clientX - box.left - GUTTER) / (box.width - GUTTER - EDGE);
    return view[0] + Math.min(1, Math.max(0, share)) * (view[1] - view[0]);
  }

  grab(event) {
    if (event.button !== 0) return;
    this.area.setPointerCapture(event.pointerId);
    this.drags = true;
    this.go(this.run.seqAt(this.xOf(event)));
    const done = () => {
      this.drags = false;
      this.area.removeEventListener("pointerup", done);
      this.area.removeEventListener("pointercancel", done);
    };
    this.area.addEventListener("pointerup", done);
    this.area.addEventListener("pointercancel", done);
  }

  spanAt(event) {
    const box = this.lanes.getBoundingClientRect(), { run } = this;
    if (event.clientY < box.top || event.clientY > box.bottom || event.clientX < box.left + GUTTER) return -1;
    const slot = Math.floor((event.clientY - box.top - 1) / laneHeight(Math.max(1, run.lanes.length)));
    const lane = run.lanes[slot];
    if (!lane) return -1;
    const x = this.xOf(event), near = (2 * (this.view[1] - this.view[0])) / (box.width - GUTTER - EDGE);
    const at = firstSpan(run, lane, x - near);
    return at < lane.length && run.startOf(lane[at]) <= x + near ? lane[at] : -1;
  }

  hover(event) {
    if (this.drags) {
      this.tip.hidden = true;
      this.go(this.run.seqAt(this.xOf(event)));
      return;
    }
    const span = this.spanAt(event), told = span < 0 ? this.tellPause(event) : this.tellSpan(span);
    this.tip.hidden = !told;
    if (!told) return;
    this.tip.replaceChildren(...told);
    const box = this.area.getBoundingClientRect(), left = event.clientX - box.left;
    this.tip.style.left = `${Math.max(0, Math.min(left + 12, box.width - this.tip.offsetWidth - 2))}px`;
    this.tip.style.top = `${event.clientY - box.top + 16}px`;
  }

  tellSpan(span) {
    const { run } = this, { spans } = run, details = spans.details[span] || {};
    const error = details.error === undefined ? null : run.errors[details.error];
    return [
      el("strong", { text: oneLine(run.trials.name[spans.trial[span]], 60) }),
      el("span", { text: `attempt ${spans.attempt[span]}, ${ENDINGS[run.endingOf(span)].words} after ${duration(run.endOf(span) - run.startOf(span))}` }),
      error ? el("span", { text: oneLine(`${error[1]}: ${error[2]}`, 100) }) : "",
      el("span", { class: "faint", text: `slot ${spans.slot[span]} · seq ${grouped(spans.seq[span])}` }),
    ];
  }

  // Why nothing could start there, or at which pace, if that was so.
  tellPause(event) {
    const { run } = this, x = this.xOf(event), chart = this.upper.getBoundingClientRect();
    if (event.clientY < this.lanes.getBoundingClientRect().top || event.clientY > chart.bottom) return null;
    const pause = run.pauses.filter(isOfAttempts).findLast((each) => { const [from, to] = run.reachOf(each); return from <= x && x <= to; });
    if (pause) return [el("strong", { text: pauseText(pause, (pause[3] - pause[2]) / 1e6) }), el("span", { text: oneLine(pause[5], 200) }), el("span", { class: "faint", text: `seq ${grouped(pause[0])}` })];
    const pace = event.clientY >= chart.top ? paceAt(run, x) : 0;
    return pace ? [el("strong", { text: paceText(pace) })] : null;
  }

  open(event) {
    const span = this.spanAt(event);
    if (span >= 0) this.onTrial(this.run.spans.trial[span]);
  }

  zoom(by, around) {
    const [from, to] = this.view, whole = this.run.endX * 1.004;
    const wide = Math.min(whole, Math.max(1e-4, (to - from) * by));
    const start = Math.min(Math.max(0, around - ((around - from) / (to - from)) * wide), whole - wide);
    this.zoomed = wide >= whole ? null : [start, start + wide];
    this.draw();
  }

  zoomHere(by) {
    this.zoom(by, this.run.x[this.seq - 1]);
  }

  fit() {
    this.zoomed = null;
    this.draw();
  }

  step(by) {
    this.go(this.seq + by);
  }

  go(seq, { quiet } = {}) {
    if (!Number.isFinite(seq)) return;
    this.seq = Math.min(Math.max(1, Math.round(seq)), this.run.seq);
    this.follows = this.seq === this.run.seq;
    if (!quiet) this.onSeq(this.seq);
    if (!this.asked) {
      this.asked = requestAnimationFrame(() => {
        this.asked = 0;
        this.show();
      });
    }
  }

  // Redraw the state at the record, from what the page has.
  show() {
    const { run, seq } = this, x = run.x[seq - 1], view = this.view;
    if (this.zoomed && (x < view[0] || x > view[1])) {
      const wide = view[1] - view[0], start = Math.min(Math.max(0, x - wide / 2), Math.max(0, run.endX * 1.004 - wide));
      this.zoomed = [start, start + wide];
      this.draw();
      return;
    }
    const wide = this.wide - GUTTER - EDGE, left = GUTTER + ((x - view[0]) / (view[1] - view[0])) * wide;
    this.line.style.transform = `translateX(${left}px)`;
    this.veil.style.left = `${left}px`;
    this.slider.max = this.field.max = run.seq;
    this.slider.value = seq;
    if (document.activeElement !== this.field) this.field.value = seq;
    put(this.element.querySelector(".of"), `of ${grouped(run.seq)}`);
    const state = run.stateAt(seq);
    for (const [name] of NOW) put(this.counts[name], grouped(state.trials[name]));
    put(this.counts.limit, state.limit === null ? NONE : grouped(state.limit));
    put(this.counts.attempts, grouped(state.attempts.started));
    const scores = Object.entries(state.scores).filter(([, said]) => said.mean !== null).slice(0, 4);
    put(this.said, scores.length ? `by then ${scores.map(([name, said]) => this.saidBy(name, said)).join(" · ")}` : "no score by then");
    this.describe();
    this.list();
  }

  saidBy(name, said) {
    const kind = this.run.facts.summary.scores[name];
    return `${oneLine(name, 30)} ${kind && kind.kind === "pass" ? percent(said.mean) : digits(said.mean, 3)} of ${grouped(said.numbers)}`;
  }

  describe() {
    const { run, seq } = this, { events } = run, trial = events.trial[seq - 1];
    const session = run.sessionAt(seq);
    const parts = [`seq ${grouped(seq)}`, words(run.types[events.type[seq - 1]])];
    const where = run.sessions.length > 1 && session >= 0 ? `, session ${session + 1}` : "";
    this.what.replaceChildren(parts.join(" · "), trial >= 0 ? " · " : "", trial >= 0 ? el("a", { href: `#trial=${encodeURIComponent(run.trials.name[trial])}&seq=${seq}`, text: oneLine(run.trials.name[trial], 60), onclick: (event) => { event.preventDefault(); this.onTrial(trial); } }) : "", ` · ${(events.t[seq - 1] / 1e6).toFixed(3)} s${where}`);
    for (const pause of run.pausesAt(seq)) {
      const left = (pause[3] - events.t[seq - 1]) / 1e6;
      if (left > 0 || PROBING.has(pause[4])) this.what.append(el("span", { class: "paused", text: ` · ${pauseText(pause, left)}` }));
    }
    const pace = paceAt(run, run.x[seq - 1]);
    if (pace) this.what.append(el("span", { class: "paced", text: ` · ${paceText(pace)}` }));
    const last = this.made[lastAt(this.made.map((each) => each.seq), seq)];
    if (last) this.decided.replaceChildren("last decision: ", el("button", { type: "button", class: "link", text: `seq ${grouped(last.seq)}`, onclick: () => this.go(last.seq) }), ` · ${last.what}: ${last.why}`);
    else put(this.decided, "no decision about the limit by then");
  }

  list() {
    const { run, seq } = this, { spans } = run, now = run.x[seq - 1];
    const running = run.runningAt(seq), most = 9;
    const rows = running.slice(0, most).map((span) => el("li", {}, el("span", { class: "slot", text: `slot ${spans.slot[span]}` }), el("span", { class: "name", text: oneLine(run.trials.name[spans.trial[span]], 40) }), el("span", { class: "faint", text: `attempt ${spans.attempt[span]} · ${duration(Math.max(0, now - run.startOf(span)))}` })));
    if (!rows.length) rows.push(el("li", { class: "faint", text: "no slot is held" }));
    if (running.length > most) rows.push(el("li", { class: "faint", text: `and ${grouped(running.length - most)} more` }));
    this.holders.replaceChildren(...rows);
    const waits = run.waits.size > 20000 && this.drags ? [] : run.backingOffAt(seq);
    const others = waits.slice(0, most).map((wait) => el("li", {}, el("span", { class: "slot", text: duration(Math.max(0, (wait[3] - run.events.t[seq - 1]) / 1e6)) }), el("span", { class: "name", text: oneLine(run.trials.name[wait[0]], 40) }), el("span", { class: "faint", text: `backoff: ${oneLine(words(wait[4]), 40)}` })));
    if (waits.length > most) others.push(el("li", { class: "faint", text: `and ${grouped(waits.length - most)} more` }));
    this.waiting.replaceChildren(...others);
  }

  draw() {
    this.wide = Math.floor(this.area.clientWidth);
    if (this.wide < GUTTER + EDGE + 20) return;
    drawLanes(this.lanes, this.run, this.view, this.wide);
    for (const chart of this.charts) chart.draw(this.run, this.view, this.wide);
    this.drawLegend();
    this.made = this.decisionsOf(this.run);
    this.drawDecisions();
    this.show();
  }

  // What was decided about the limit, the pace and pauses, in order, and why.
  decisionsOf(run) {
    const rate = (pace) => (pace === null ? "not paced" : `${digits(pace, 3)}/s`);
    const told = (what, cause, evidence, key) => ({ what: `${what}${key ? ` (${oneLine(key, 40)})` : ""}`, why: `${oneLine(words(cause), 40)}${evidence ? `, ${oneLine(evidence, 200)}` : ""}` });
    return [
      ...run.marks.map(([seq, , t, before, after, ...why]) => ({ seq, t, ...told(`limit ${before} → ${after}`, ...why) })),
      ...run.paces.map(([seq, , t, before, after, ...why]) => ({ seq, t, ...told(`pace ${rate(before)} → ${rate(after)}`, ...why) })),
      ...run.pauses.map(([seq, , t, until, ...why]) => ({ seq, t, ...told(`${PROBING.has(why[0]) ? "probe in" : "paused for"} ${micro(until - t)}`, ...why.slice(0, 3)) })),
    ].sort((a, b) => a.seq - b.seq);
  }

  drawLegend() {
    const { run } = this, counts = new Map();
    for (const ending of run.spans.ending) counts.set(ending, (counts.get(ending) || 0) + 1);
    const entries = [...counts.entries()].sort((a, b) => a[0] - b[0]).map(([ending, count]) => {
      const name = run.endings[ending], said = ENDINGS[name];
      return el("li", {}, el("i", { class: `pip end-${(name || "open").replaceAll("_", "-")}`, text: said.letter, "aria-hidden": "true" }), `${said.words} `, el("b", { text: grouped(count) }));
    });
    if (run.pauses.length) entries.push(el("li", {}, el("i", { class: "swatch pause" }), "paused ", el("b", { text: grouped(run.pauses.length) })));
    const outages = stretchesOf(run).filter(({ cause }) => PROBING.has(cause)).length;
    if (outages) entries.push(el("li", {}, el("i", { class: "swatch breaker" }), "circuit breaker open ", el("b", { text: grouped(outages) })));
    if (run.sessions.length > 1) entries.push(el("li", {}, el("i", { class: "swatch gap" }), "between two sessions ", el("b", { text: grouped(run.sessions.length - 1) })));
    this.counted.replaceChildren(...entries);
  }

  drawDecisions() {
    const { made } = this, most = 200;
    if (!made.length) return this.decisions.replaceChildren();
    refill(this.decisions, el("details", {},
      el("summary", { text: `${plural(made.length, "decision")} about limit, pace and pauses, with causes` }),
      el("div", { class: "scrolls" }, el("table", { class: "facts" }, el("thead", {}, el("tr", {}, ["seq", "at", "decision", "why"].map((head) => el("th", { scope: "col", text: head })))),
        el("tbody", {}, made.slice(0, most).map((each) => el("tr", {},
          el("td", {}, el("button", { type: "button", class: "link", text: grouped(each.seq), onclick: () => this.go(each.seq) })),
          el("td", { class: "num", text: `${(each.t / 1e6).toFixed(3)} s` }),
          el("td", { class: "tight", text: each.what }),
          el("td", { text: each.why })))))),
      made.length > most ? el("p", { class: "faint", text: `and ${grouped(made.length - most)} more` }) : ""));
  }

  update() {
    if (this.follows) this.seq = this.run.seq;
    this.draw();
  }
}
