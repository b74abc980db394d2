// The concurrency history: attempts by slot, concurrency and queue over time, and a scrubber that shows the state after any record.
"use strict";

const COUNTERS = [
  ["running", "running"], ["queued", "queued"], ["backing_off", "in backoff"], ["scoring", "being scored"],
  ["completed", "outputs"], ["failed", "errors"], ["recovered", "retried"], ["limit", "limit"], ["attempts", "attempts"],
];

const LIMIT_TINTS = ["pace", "limit", "run-b", "backoff"];

class HistoryView {
  constructor(run, { onSeq, onTrial }) {
    Object.assign(this, { run, onSeq, onTrial, seq: run.seq, isFollowing: true, zoomRange: null, decisions: [] });
    this.build();
  }

  get view() { return this.zoomRange || [0, 1.004 * this.run.endX]; }

  build() {
    this.lanes = el("canvas", { role: "img" });
    this.workerNames = el("div", { class: "lane-labels" });
    this.upper = el("div", { class: "plot", role: "img", "aria-label": "Attempts in flight, concurrency limit and pace of starts over time" });
    this.lower = el("div", { class: "plot", role: "img", "aria-label": "Trials queued and in backoff over time" });
    this.limitKey = el("div", { class: "chart-label", hidden: true });
    this.limits = el("div", { class: "plot", role: "img", "aria-label": "Used share of each rate limit over time, in percent", id: "limits", hidden: true });
    this.veil = el("div", { class: "veil" });
    this.laterShards = el("div", { class: "veil", hidden: true });
    this.line = el("div", { class: "scrub-line" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.area = el("div", { class: "timeline" },
      (this.lanesLabel = el("div", { class: "chart-label" })), this.lanes, this.workerNames,
      this.key([["in flight", "flight", "fill"], ["limit", "limit", "line"], ["pace, starts/s (own scale)", "pace", "line"]]), this.upper,
      this.limitKey, this.limits,
      this.key([["queued", "queue", "fill"], ["in backoff", "backoff", "line"]]), this.lower,
      this.veil, this.laterShards, this.line, this.tip);
    this.charts = [
      new StepChart(this.upper, [{ name: "in_flight", label: "in flight", tint: "flight", fill: "flight-fill" }, { name: "limit", label: "limit", tint: "limit", dash: [5, 3] }, { name: "pace", label: "pace", tint: "pace", scale: "pace" }], { showsAxis: false, height: 100, showsPolicy: true }),
      new StepChart(this.lower, [{ name: "queued", label: "queued", tint: "queue", fill: "queue-fill" }, { name: "backing_off", label: "in backoff", tint: "backoff" }], { showsAxis: true, height: 108 }),
    ];
    this.limitChart = new StepChart(this.limits, [], { showsAxis: false, height: 72 });
    this.slider = el("input", { type: "range", min: 1, max: this.run.seq, value: this.seq, step: 1, id: "scrub", "aria-label": "Record whose state is shown", oninput: () => this.go(Number(this.slider.value)) });
    this.field = el("input", { type: "number", min: 1, max: this.run.seq, value: this.seq, id: "seq", "aria-label": "Record number", onchange: () => (this.field.value ? this.go(Number(this.field.value)) : this.show()) });
    this.event = el("p", { class: "event", id: "event", "aria-live": "polite" });
    this.counters = Object.fromEntries(COUNTERS.map(([name]) => [name, el("dd", { "data-counter": name })]));
    this.stepCounter = el("dd", {});
    this.stepCell = el("div", { id: "step-counter", hidden: true }, el("dt", { text: "steps" }), this.stepCounter);
    this.scoreLine = el("p", { class: "state-line" });
    this.decisionLine = el("p", { class: "state-line", id: "decision" });
    this.running = el("ul", { class: "slots", "aria-label": "Attempts in flight" });
    this.backingOff = el("ul", { class: "slots", "aria-label": "Trials in backoff" });
    this.legend = el("ul", { class: "legend", "aria-label": "Attempts by outcome" });
    this.idle = el("p", { class: "idle", id: "idle" });
    this.decisionList = el("div", {});
    this.element = el("section", { "aria-labelledby": "history-title" },
      sectionHead("history-title", "Concurrency history", ["Drag over the lanes, or ", el("kbd", { text: "←" }), " ", el("kbd", { text: "→" }), " for one record at a time; ", el("kbd", { text: "+" }), " ", el("kbd", { text: "−" }), " ", el("kbd", { text: "0" }), " to zoom"]),
      this.area, this.legend, this.idle,
      el("div", { class: "scrubber" },
        el("button", { type: "button", "aria-label": "Previous record", onclick: () => this.step(-1), text: "←" }),
        this.slider,
        el("button", { type: "button", "aria-label": "Next record", onclick: () => this.step(1), text: "→" }),
        el("label", {}, "record ", this.field, el("span", { class: "of" }))),
      this.event, this.decisionLine,
      el("dl", { class: "counters" }, COUNTERS.map(([name, label]) => el("div", {}, el("dt", { text: label }), this.counters[name])), this.stepCell),
      this.scoreLine, el("div", { class: "sides" }, this.running, this.backingOff), this.decisionList);
    this.area.addEventListener("pointerdown", (event) => this.grab(event));
    this.area.addEventListener("pointermove", (event) => this.hover(event));
    this.area.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    for (const name of ["pointerup", "pointercancel"]) this.area.addEventListener(name, () => { this.isDragging = false; });
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
    this.isDragging = true;
    const lane = this.laneAt(event);
    this.shard = lane < 0 ? this.run.shardAt(this.seq) : this.run.shards.findLastIndex(({ firstLane, lanes }) => lanes.length && firstLane <= lane);
    this.go(this.run.seqAt(this.xOf(event), this.shard));
  }

  // Index of the lane at the pointer; -1 if there is none.
  laneAt(event) {
    const box = this.lanes.getBoundingClientRect(), count = this.run.drawnLanes.length;
    const lane = Math.floor((event.clientY - box.top - 1) / laneHeight(count));
    return event.clientY < box.top || event.clientY > box.bottom || lane >= count ? -1 : Math.max(0, lane);
  }

  spanAt(event) {
    const box = this.lanes.getBoundingClientRect(), { run } = this, lane = run.drawnLanes[this.laneAt(event)];
    if (!lane || event.clientX < box.left + GUTTER) return -1;
    const x = this.xOf(event), tolerance = (2 * (this.view[1] - this.view[0])) / (box.width - GUTTER - EDGE);
    const index = firstSpan(run, lane, x - tolerance);
    return index < lane.length && run.startOf(lane[index]) <= x + tolerance ? lane[index] : -1;
  }

  hover(event) {
    if (this.isDragging) {
      this.tip.hidden = true;
      this.go(this.run.seqAt(this.xOf(event), this.shard));
      return;
    }
    const span = this.spanAt(event), content = span < 0 ? this.policyTip(event) : this.spanTip(span);
    this.tip.hidden = !content;
    if (!content) return;
    this.tip.replaceChildren(...content);
    const box = this.area.getBoundingClientRect(), left = event.clientX - box.left;
    this.tip.style.left = `${Math.max(0, Math.min(left + 12, box.width - this.tip.offsetWidth - 2))}px`;
    this.tip.style.top = `${event.clientY - box.top + 16}px`;
  }

  spanTip(span) {
    const { run } = this, { spans } = run, details = spans.details[span] || {};
    const error = details.error === undefined ? null : run.errors[details.error];
    return [
      el("strong", { text: oneLine(run.trials.name[spans.trial[span]], 60) }),
      el("span", { text: `attempt ${spans.attempt[span]}, ${OUTCOMES[run.outcomeOf(span)].label} after ${duration(run.endOf(span) - run.startOf(span))}` }),
      error ? el("span", { text: oneLine(`${error[1]}: ${error[2]}`, 100) }) : "",
      el("span", { class: "faint", text: `${this.slotName(span)}${workerOf(details)} · seq ${groupDigits(spans.seq[span])}` }),
    ];
  }

  // The pause, or the pace of starts, at the pointer.
  policyTip(event) {
    const { run } = this, x = this.xOf(event), chart = this.upper.getBoundingClientRect();
    if (event.clientY < this.lanes.getBoundingClientRect().top || event.clientY > chart.bottom) return null;
    const pause = run.pauses.filter(pausesAttempts).findLast((candidate) => { const [from, to] = run.pauseRange(candidate); return from <= x && x <= to; });
    if (pause) return [el("strong", { text: pauseText(pause, (pause[3] - pause[2]) / 1e6) }), el("span", { text: oneLine(pause[5], 200) }), el("span", { class: "faint", text: `seq ${groupDigits(pause[0])}` })];
    const pace = event.clientY >= chart.top ? paceAt(run, x) : 0;
    return pace ? [el("strong", { text: paceText(pace) })] : null;
  }

  open(event) {
    const span = this.spanAt(event);
    if (span >= 0) this.onTrial(this.run.spans.trial[span]);
  }

  zoom(by, center) {
    const [from, to] = this.view, full = this.run.endX * 1.004;
    const width = Math.min(full, Math.max(1e-4, (to - from) * by));
    const start = Math.min(Math.max(0, center - ((center - from) / (to - from)) * width), full - width);
    this.zoomRange = width >= full ? null : [start, start + width];
    this.draw();
  }

  zoomHere(by) { this.zoom(by, this.run.x[this.seq - 1]); }

  fit() {
    this.zoomRange = null;
    this.draw();
  }

  step(by) { this.go(this.seq + by); }

  go(seq) {
    if (!Number.isFinite(seq)) return;
    this.seq = Math.min(Math.max(1, Math.round(seq)), this.run.seq);
    this.isFollowing = this.seq === this.run.seq;
    this.onSeq(this.seq);
    this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.show(); });
  }

  // Show the state after the record.
  show() {
    if (!this.width) return; // Folded.
    const { run, seq } = this, x = run.x[seq - 1], view = this.view;
    if (this.zoomRange && (x < view[0] || x > view[1])) {
      const width = view[1] - view[0], start = Math.min(Math.max(0, x - width / 2), Math.max(0, run.endX * 1.004 - width));
      this.zoomRange = [start, start + width];
      this.draw();
      return;
    }
    const width = this.width - GUTTER - EDGE, left = GUTTER + ((x - view[0]) / (view[1] - view[0])) * width;
    this.line.style.transform = `translateX(${left}px)`;
    this.placeVeil(left);
    this.slider.max = this.field.max = run.seq;
    this.slider.value = seq;
    if (document.activeElement !== this.field) this.field.value = seq;
    setText(this.element.querySelector(".of"), `of ${groupDigits(run.seq)}`);
    const state = run.stateAt(seq);
    const counts = { ...state.trials, limit: state.limit, attempts: state.attempts.started };
    for (const [name] of COUNTERS) setText(this.counters[name], counts[name] === null ? NONE : groupDigits(counts[name]));
    this.stepCell.hidden = !run.info.summary.steps;
    setText(this.stepCounter, groupDigits(state.steps.completed + state.steps.failed));
    const scores = Object.entries(state.scores).filter(([, score]) => score.mean !== null).slice(0, 4);
    setText(this.scoreLine, scores.length ? `scores so far: ${scores.map(([name, score]) => this.scoreText(name, score)).join(" · ")}` : "no scores yet");
    this.describe();
    this.list();
  }

  labelWorkers(workers) {
    const height = laneHeight(this.run.drawnLanes.length);
    let freePixel = 0; // The first pixel with room for a name.
    this.workerNames.replaceChildren(...workers.flatMap(({ name, firstLane }) => {
      const top = firstLane * height + 1;
      if (top < freePixel) return [];
      freePixel = top + 12 * UNIT;
      const label = el("span", { text: oneLine(name, 40), title: oneLine(name, 200) });
      label.style.top = `${this.lanes.offsetTop + top}px`;
      return [label];
    }));
  }

  // Dim everything after the record. In a merged run, dim only lanes: those of the record's shard after its time, and all lanes of
  // the shards whose records follow.
  placeVeil(left) {
    const { run, veil, laterShards } = this;
    veil.style.left = `${left}px`;
    laterShards.hidden = !run.isMerged;
    if (!run.isMerged) return;
    const height = laneHeight(run.lanes.length), top = this.lanes.offsetTop + 1, [firstLane, end] = run.lanesOf(run.sessionAt(this.seq) + 1 || 1);
    Object.assign(veil.style, { top: `${top + firstLane * height}px`, bottom: "auto", height: `${(end - firstLane) * height}px` });
    Object.assign(laterShards.style, { left: `${GUTTER}px`, top: `${top + end * height}px`, bottom: "auto", height: `${(run.lanes.length - end) * height}px` });
  }

  slotName(span) {
    const { run } = this, shard = run.shardName(run.shardOf[run.spans.session[span] - 1]);
    return `${shard ? `${shard}, ` : ""}slot ${run.spans.slot[span]}`;
  }

  scoreText(name, { mean, numbers }) {
    const isShare = this.run.info.summary.scores[name]?.kind === "pass";
    return `${oneLine(name, 30)} ${isShare ? percent(mean) : digits(mean, 3)} (n = ${groupDigits(numbers)})`;
  }

  describe() {
    const { run, seq } = this, { events } = run, trial = events.trial[seq - 1];
    const session = run.sessionAt(seq);
    const parts = [`seq ${groupDigits(seq)}`, asWords(run.types[events.type[seq - 1]])];
    const sessionNote = run.sessions.length > 1 && session >= 0 ? `, session ${session + 1}${run.isMerged ? ` (${run.shardName(run.shardOf[session])})` : ""}` : "";
    this.event.replaceChildren(parts.join(" · "), trial >= 0 ? " · " : "", trial >= 0 ? el("a", { href: `#trial=${encodeURIComponent(run.trials.name[trial])}&seq=${seq}`, text: oneLine(run.trials.name[trial], 60), onclick: (event) => { event.preventDefault(); this.onTrial(trial); } }) : "", ` · ${(events.t[seq - 1] / 1e6).toFixed(3)} s${sessionNote}`);
    for (const pause of run.pausesAt(seq)) {
      const left = (pause[3] - events.t[seq - 1]) / 1e6;
      if (left > 0 || PROBING.has(pause[4])) this.event.append(el("span", { class: "paused", text: ` · ${pauseText(pause, left)}` }));
    }
    const pace = paceAt(run, run.x[seq - 1]);
    if (pace) this.event.append(el("span", { class: "paced", text: ` · ${paceText(pace)}` }));
    const lastDecision = this.decisions[lastIndex(this.decisions.map((decision) => decision.seq), seq)];
    if (lastDecision) this.decisionLine.replaceChildren("last decision: ", link(`seq ${groupDigits(lastDecision.seq)}`, () => this.go(lastDecision.seq)), ` · ${lastDecision.decision}: ${lastDecision.reason}`);
    else setText(this.decisionLine, "no policy decision yet");
  }

  list() {
    const { run, seq } = this, { spans } = run, now = run.x[seq - 1];
    const spansInFlight = run.runningAt(seq), maxRows = 9;
    const rows = spansInFlight.slice(0, maxRows).map((span) => el("li", {}, el("span", { class: "slot", text: this.slotName(span) }), el("span", { class: "name", text: oneLine(run.trials.name[spans.trial[span]], 40) }), el("span", { class: "faint", text: `attempt ${spans.attempt[span]} · ${duration(Math.max(0, now - run.startOf(span)))}` })));
    if (!rows.length) rows.push(el("li", { class: "faint", text: "no attempt in flight" }));
    if (spansInFlight.length > maxRows) rows.push(el("li", { class: "faint", text: `and ${groupDigits(spansInFlight.length - maxRows)} more` }));
    this.running.replaceChildren(...rows);
    const backoffs = run.backoffs.size > 20000 && this.isDragging ? [] : run.backoffsAt(seq);
    const backoffRows = backoffs.slice(0, maxRows).map((backoff) => el("li", {}, el("span", { class: "slot", text: duration(Math.max(0, (backoff[3] - run.events.t[seq - 1]) / 1e6)) }), el("span", { class: "name", text: oneLine(run.trials.name[backoff[0]], 40) }), el("span", { class: "faint", text: `backoff: ${oneLine(asWords(backoff[4]), 40)}` })));
    if (backoffs.length > maxRows) backoffRows.push(el("li", { class: "faint", text: `and ${groupDigits(backoffs.length - maxRows)} more` }));
    this.backingOff.replaceChildren(...backoffRows);
  }

  draw() {
    this.width = Math.floor(this.area.clientWidth);
    if (this.width < GUTTER + EDGE + 20) return;
    const workers = this.run.workerLanes();
    setText(this.lanesLabel, this.run.isMerged ? "slots of each shard" : workers ? "workers" : "slots");
    this.lanes.setAttribute("aria-label", `Attempts as bars, one lane for each ${workers ? "attempt that a worker runs at once" : "slot"}`);
    drawLanes(this.lanes, this.run, this.view, this.width);
    this.labelWorkers(workers || []);
    for (const chart of this.charts) chart.draw(this.run, this.view, this.width);
    this.drawLimits();
    this.show();
  }

  // The used share of the known rate limits, if there are any.
  drawLimits() {
    const series = this.run.rateLimits.slice(0, LIMIT_TINTS.length).map(({ name, label }, index) => ({ name, label, tint: LIMIT_TINTS[index], dash: LIMIT_TINTS[index] === "limit" ? [5, 3] : undefined }));
    this.limitKey.hidden = this.limits.hidden = !series.length;
    if (!series.length) return;
    this.limitChart.series = series;
    refill(this.limitKey, "used, % of ", ...this.key(series.map(({ label, tint }) => [oneLine(label, 80), tint, "line"])).children);
    this.limitChart.draw(this.run, this.view, this.width);
  }

  // Changes of the limit and the pace, and pauses, in order, with reason and evidence.
  decisionsOf(run) {
    const rate = (pace) => (pace === null ? "unlimited" : `${digits(pace, 3)}/s`);
    const entry = (seq, t, decision, reason, evidence, key) => ({ seq, t, decision: `${decision}${key ? ` (${oneLine(key, 40)})` : ""}`, reason: `${oneLine(asWords(reason), 40)}${evidence ? `, ${oneLine(evidence, 200)}` : ""}` });
    return [
      ...run.limitChanges.map(([seq, , t, before, after, ...reason]) => entry(seq, t, `limit ${before} → ${after}`, ...reason)),
      ...run.paceChanges.map(([seq, , t, before, after, ...reason]) => entry(seq, t, `pace ${rate(before)} → ${rate(after)}`, ...reason)),
      ...run.pauses.map(([seq, , t, until, ...reason]) => entry(seq, t, `${PROBING.has(reason[0]) ? "probe in" : "paused for"} ${microseconds(until - t)}`, ...reason.slice(0, 3))),
    ].sort((a, b) => a.seq - b.seq);
  }

  drawIdle() {
    const reasons = idleReasons(this.run);
    this.idle.hidden = !reasons.length;
    refill(this.idle, ...(reasons.length ? [el("b", { text: "Slots were idle: " }), reasons.slice(0, 6).join(" · "), reasons.length > 6 ? ` · ${groupDigits(reasons.length - 6)} more` : ""] : []));
  }

  drawLegend() {
    const { run } = this, counts = new Map();
    for (const outcome of run.spans.outcome) counts.set(outcome, (counts.get(outcome) || 0) + 1);
    const entries = [...counts.entries()].sort((a, b) => a[0] - b[0]).map(([outcome, count]) =>
      el("li", {}, outcomeMark(run.outcomes[outcome], { "aria-hidden": "true" }), `${OUTCOMES[run.outcomes[outcome]].label} `, el("b", { text: groupDigits(count) })));
    if (run.pauses.length) entries.push(el("li", {}, el("i", { class: "swatch pause" }), "pauses ", el("b", { text: groupDigits(run.pauses.length) })));
    const outages = pauseRanges(run).filter(({ reason }) => PROBING.has(reason)).length;
    if (outages) entries.push(el("li", {}, el("i", { class: "swatch breaker" }), "circuit breaker open ", el("b", { text: groupDigits(outages) })));
    if (run.sessionRanges.length > 1) entries.push(el("li", {}, el("i", { class: "swatch gap" }), "gaps between sessions ", el("b", { text: groupDigits(run.sessionRanges.length - 1) })));
    this.legend.replaceChildren(...entries);
  }

  drawDecisions() {
    const { decisions } = this, maxRows = 200;
    if (!decisions.length) return this.decisionList.replaceChildren();
    refill(this.decisionList, el("details", {},
      el("summary", { text: `${plural(decisions.length, "decision")} about limit, pace and pauses` }),
      table("decisions", ["seq", "time", "decision", "reason"], decisions.slice(0, maxRows).map(({ seq, t, decision, reason }) => el("tr", {},
        el("td", {}, link(groupDigits(seq), () => this.go(seq))), numberCell(`${(t / 1e6).toFixed(3)} s`), el("td", { class: "tight", text: decision }), el("td", { text: reason })))),
      decisions.length > maxRows ? el("p", { class: "faint", text: `and ${groupDigits(decisions.length - maxRows)} more` }) : ""));
  }

  update() {
    if (this.isFollowing) this.seq = this.run.seq;
    this.decisions = this.decisionsOf(this.run);
    this.drawLegend();
    this.drawIdle();
    this.drawDecisions();
    this.draw();
  }
}
