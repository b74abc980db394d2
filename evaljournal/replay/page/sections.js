// The sections on errors, times and the audit.
"use strict";

const SHOWN_ERRORS = 30;
const SHOWN_WORKERS = 50;
const TIMES = { queue_time: "waiting to start", backoff_time: "in backoff", run_time: "in attempts", scoring_time: "being scored" };

function errorsSection(run, { onTrials, onSeq }) {
  const groups = run.errorGroups.map(([category, error, message], group) => ({ category, error, message, group, attempts: 0, trials: new Set(), last: 0 }));
  run.spans.details.forEach((details, span) => {
    if (!details || details.error === undefined) return;
    const group = groups[run.errors[details.error][4]];
    group.attempts += 1;
    group.trials.add(run.spans.trial[span]);
    group.last = Math.max(group.last, run.spans.end_seq[span]);
  });
  groups.sort((a, b) => b.attempts - a.attempts);
  const rows = groups.slice(0, SHOWN_ERRORS).map(({ category, error, message, group, attempts, trials, last }) => el("tr", {}, numberCell(groupDigits(attempts)),
    el("td", { class: "num" }, link(groupDigits(trials.size), () => onTrials(group), { "aria-label": `Show the ${plural(trials.size, "trial")} with this error` })),
    el("td", { class: "num" }, link(`seq ${groupDigits(last)}`, () => onSeq(last), { title: "Show the state at this record" })),
    el("td", { class: "tight" }, outcomeMark(category === "error" ? "failed" : category), ` ${asWords(category)}`), el("td", { class: "tight", text: oneLine(error, 60) }), el("td", { text: oneLine(message, 300) })));
  return [sectionHead("errors-title", "Errors", "grouped by category, type and message; numbers in messages are ignored"),
    table("errors", ["attempts", "trials", "last", "category", "error", "message"], rows),
    groups.length > SHOWN_ERRORS ? el("p", { class: "faint", text: `and ${plural(groups.length - SHOWN_ERRORS, "more group")}` }) : ""];
}

// How well each scorer agrees with human labels, and the outputs on which they disagree.
function reviewSection(run, { onTrial }) {
  if (!run.info.review.length) return [];
  return [sectionHead("review-title", "Review", "scores compared with human labels"),
    ...run.info.review.map(({ name, basis, corrected, confusion, rows, trials }) => el("div", { class: "review" }, name ? el("h3", { text: oneLine(name, 60) }) : "",
      el("p", { class: "hint", text: escapeInvisible(basis) }), corrected ? el("p", { text: escapeInvisible(corrected) }) : "",
      confusion.length ? table("confusion", confusion[0].map((cell) => escapeInvisible(cell)), confusion.slice(1).map(([score, ...counts]) => el("tr", {}, el("th", { scope: "row", text: escapeInvisible(score) }), counts.map(numberCell)))) : "",
      rows.length ? table("agreement", ["agreement", "95 % confidence interval"], rows.map(([figure, text]) => el("tr", {}, el("th", { scope: "row", text: figure }), el("td", { text: escapeInvisible(text) })))) : "",
      trials.length ? table("disagreements", ["disagreement", "score", "label", "notes"], trials.slice(0, SHOWN_ERRORS).map(([trial, ...cells]) => el("tr", {}, el("td", {}, link(oneLine(trial, 60), () => onTrial(trial))), cells.map((cell) => el("td", { text: oneLine(cell, 300) }))))) : "",
      trials.length > SHOWN_ERRORS ? el("p", { class: "faint", text: `and ${plural(trials.length - SHOWN_ERRORS, "more disagreement")}` }) : ""))];
}

// The totals of each worker; workers that ended early come first.
function workersTable(workers) {
  if (!workers) return [];
  const rows = Object.entries(workers).sort(([, a], [, b]) => (b.died || b.lost ? 1 : 0) - (a.died || a.lost ? 1 : 0));
  return [el("h3", { text: "Workers" }),
    table("workers", ["worker", "attempts", "busy", "died", "lost", "last end"], rows.slice(0, SHOWN_WORKERS).map(([name, { attempts, busy, died, lost, detail }]) => el("tr", {},
      el("th", { scope: "row", text: oneLine(name, 40) }), ...[groupDigits(attempts), duration(busy), groupDigits(died), groupDigits(lost)].map(numberCell), el("td", { text: oneLine(detail, 60) })))),
    rows.length > SHOWN_WORKERS ? el("p", { class: "faint", text: `and ${plural(rows.length - SHOWN_WORKERS, "more worker")}` }) : ""];
}

// The batches of requests: what the provider reported, and what their results cost.
function batchesTable(batches) {
  if (!batches.length) return [];
  const time = (text) => (text ? oneLine(text.slice(0, 16).replace("T", " "), 16) : "–");
  return [el("h3", { text: "Batches" }),
    table("batches", ["batch", "state", "lines", "results", "submitted (UTC)", "expires (UTC)", "cost"], batches.slice(0, SHOWN_WORKERS).map((batch) => el("tr", {},
      el("th", { scope: "row", text: `${batch.batch}${batch.scorer ? ` (${oneLine(batch.scorer, 24)})` : ""}` }), el("td", { text: oneLine(asWords(batch.state), 24) }),
      ...[groupDigits(batch.lines), groupDigits(batch.is_open ? batch.completed : batch.results), time(batch.submitted_at), time(batch.is_open ? batch.expires : null), batch.cost === null ? "–" : money(batch.cost)].map(numberCell)))),
    batches.length > SHOWN_WORKERS ? el("p", { class: "faint", text: `and ${plural(batches.length - SHOWN_WORKERS, "more batch", "more batches")}` }) : ""];
}

class TimesView {
  constructor(sides, run) {
    Object.assign(this, { sides, run });
    this.element = el("section", { "aria-labelledby": "times-title" });
    this.plot = el("div", { class: "plot", role: "img", "aria-label": "Distribution of latencies" });
    this.histogram = new Histogram(this.plot);
    this.note = el("p", { class: "hint" });
    this.split = el("div", {});
    this.workers = el("div", {});
    const keys = sides.length > 1 ? el("div", { class: "chart-label" }, ["A", "B"].map((label) => el("span", { class: "key" }, el("i", { class: `swatch line run-${label.toLowerCase()}` }), label))) : "";
    this.element.append(sectionHead("times-title", "Where the time went"),
      el("div", { class: "two" }, el("div", {}, el("h3", { text: "Latency" }), this.plot, this.note, keys), this.split), this.workers);
  }

  update() {
    const { trials } = this.run, sum = (values) => values.reduce((total, value) => total + value, 0);
    const totals = Object.entries(TIMES).map(([name, label]) => ({ name, label, time: sum(trials[name]) })), totalTime = sum(totals.map(({ time }) => time)) || 1;
    const share = (time) => (time && time / totalTime < 0.005 ? "< 1 %" : `${Math.round((100 * time) / totalTime)} %`);
    this.split.replaceChildren(el("h3", { text: "Total time of all trials" }),
      el("div", { class: "split", role: "img", "aria-label": totals.map(({ label, time }) => `${label} ${share(time)}`).join(", ") }, totals.map(({ name, time }) => {
        const part = el("i", { class: `part ${name}` });
        part.style.flexGrow = String(time / totalTime);
        return part;
      })),
      el("dl", { class: "split-legend" }, totals.map(({ name, label, time }) => el("div", {}, el("dt", {}, el("i", { class: `swatch fill ${name}` }), label), el("dd", { class: "num", text: microseconds(time) }), el("dd", { class: "num faint", text: share(time) })))));
    this.workers.replaceChildren(...workersTable(this.run.info.summary.workers), ...batchesTable(this.run.info.summary.batches));
    this.draw();
  }

  draw() {
    if (!this.plot.clientWidth) return; // Folded.
    const times = ({ run, trials }) => trials.map((trial) => run.trials.latency[trial]).filter((value) => value !== null).map((value) => value / 1e6), { latency } = this.run.info.summary;
    const sets = this.sides.length > 1
      ? this.sides.map((side, index) => ({ label: "AB"[index], times: times(side), tint: `run-${"ab"[index]}`, fill: `run-${"ab"[index]}-fill`, dash: index ? undefined : [5, 3], marks: [] }))
      : [{ label: "outputs", times: times(this.sides[0]), tint: "flight", fill: "flight-fill", marks: [["p50", latency.p50], ["p95", latency.p95]] }];
    this.histogram.draw(sets, Math.floor(this.plot.clientWidth));
    setText(this.note, this.histogram.note || (this.histogram.plot ? "" : this.run.info.summary.trials.completed ? "Not measured." : "No outputs yet."));
  }
}

const pairs = (entries) => el("dl", { class: "pairs" }, entries.map(([name, value]) => el("div", {}, el("dt", { text: oneLine(name, 60) }), el("dd", { text: escapeInvisible(value) }))));
const foldedPairs = (title, entries) => el("details", {}, el("summary", { text: title }), pairs(entries));

function sessionText({ at, pid, host, outcome, adopted, shard }) {
  const names = Array.isArray(adopted) ? adopted : Object.keys(adopted || {});
  return `${shard ? `shard ${shard}, ` : ""}${at}, process ${pid} on ${host}: ${outcome ? asWords(outcome) : "no final record"}${names.length ? `; adopted changes: ${names.join(", ")}` : ""}`;
}

function auditSection({ info, seq }) {
  const { audit, next_command, verify_command } = info, { totals } = audit;
  const problems = audit.findings.length + audit.findings_omitted;
  const result = audit.ok
    ? `✓ Audit OK: ${plural(totals.enqueued, "trial")} = ${groupDigits(totals.completed)} completed + ${groupDigits(totals.failed)} failed + ${groupDigits(totals.withdrawn)} withdrawn + ${groupDigits(totals.open)} open; ${plural(audit.decisions_reproduced, "retry and budget decision")} reproduced.`
    : `✕ Audit failed: ${plural(problems, "finding")}.`;
  return [
    el("h2", { text: "Audit" }),
    el("p", { class: audit.ok ? "audit ok" : "audit failed", text: result }),
    audit.findings.length ? el("ul", {}, audit.findings.slice(0, 20).map((finding) => el("li", { text: `record ${groupDigits(finding.seq)} (${finding.check}): ${escapeInvisible(finding.message)}` }))) : "",
    info.claims.length ? el("ul", { class: "claims" }, info.claims.map((text) => el("li", { text: `Claim: ${escapeInvisible(text)}` }))) : "",
    el("p", { class: "faint", text: audit.notes.map((note) => escapeInvisible(note)).join(" · ") }),
    el("p", { class: "faint" }, "The hash of every record was checked when this page was written, up to ", el("code", { text: `seq ${groupDigits(seq)}` }), ", head ", el("code", { id: "head", text: info.head }), ". To check files and blobs as well: ", el("code", { text: verify_command }), ".", next_command === verify_command ? "" : [" Next: ", el("code", { text: next_command })]),
    el("div", { class: "more" },
      foldedPairs("Settings", Object.entries(info.settings)),
      foldedPairs("Environment", Object.entries(info.environment)),
      el("details", {}, el("summary", { text: "Definition" }), pairs(Object.entries(info.definition)), info.definition_text ? el("pre", { tabindex: 0, text: escapeInvisible(info.definition_text) }) : ""),
      foldedPairs("Sessions", info.sessions.map((session) => [`${session.number}`, sessionText(session)]))),
  ];
}
