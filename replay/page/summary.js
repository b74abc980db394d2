// The summary: tiles of one run, and the table of differences between two.
"use strict";

function tile(title, figure, ...notes) {
  const keepUnits = (text) => text.replace(/(?<=\d) (?=(?:%|s|ms|min|h)(?![\p{L}\d]))/gu, "\u00a0"); // Keep a number and its unit on one line.
  return el("div", { class: "tile" }, el("h3", { text: title }), el("p", { class: "figure" }, figure), notes.filter(Boolean).map((note) => (typeof note === "string" ? el("p", { class: "note", text: keepUnits(note) }) : note)));
}

function intervalBar({ low, high, mean }) {
  const range = el("i", { class: "range" }), point = el("i", { class: "point" });
  range.style.left = `${100 * low}%`;
  range.style.width = `${100 * (high - low)}%`;
  point.style.left = `${100 * mean}%`;
  return el("div", { class: "interval", "aria-hidden": "true" }, range, point);
}

function scoreTile(name, score, summary) {
  const isShare = score.passed !== null, unscoredCount = Object.hasOwn(summary.unscored, name) ? summary.unscored[name] : 0;
  const exclusions = countList([[summary.trials.failed, "failed"], [score.failed, score.failed === 1 ? "scorer failure" : "scorer failures"], [score.out_of_range, "not finite or too large"], [unscoredCount, "unscored"]], ", ");
  const versionText = !score.from_older_version ? "" : score.versions === 1 ? "all from an older version of the scorer" : `from ${plural(score.versions, "version")} of the scorer, ${groupDigits(score.from_older_version)} from an older one`;
  const notes = [exclusions ? `excluded: ${exclusions}` : "", versionText].filter(Boolean).join("; ");
  if (score.mean === null) {
    const labels = Object.entries(score.labels).slice(0, 4);
    return tile(oneLine(name, 40), labels.length ? oneLine(labels[0][0], 24) : NONE, labels.map(([label, count]) => `${oneLine(label, 24)} ${Math.round((100 * count) / score.scored)} %`).join(" · ") || "no scores yet", `n = ${groupDigits(score.scored)}`, notes);
  }
  const format = isShare ? (value) => (100 * value).toFixed(1) : (value) => digits(value, 3);
  return tile(oneLine(name, 40), isShare ? percent(score.mean) : digits(score.mean, 3), isShare && score.low !== null ? intervalBar(score) : "",
    isShare ? `${groupDigits(score.passed)} of ${groupDigits(score.numbers)} passed` : `mean of ${groupDigits(score.numbers)}`,
    score.low === null ? "" : `95 % CI ${format(score.low)} to ${format(score.high)}${isShare ? " %" : ""}`,
    ...score.pass_at_k.filter(({ k }) => k > 1).map((pass) => `pass@${pass.k} ${percent(pass.at_least_one)}, pass^${pass.k} ${percent(pass.all)}`), notes);
}

const usageText = (usage, models = {}) => usage.map(([name, value]) => amount(name, value, Object.hasOwn(models, name) ? models[name] : [])).join(" · ");

function budgetTiles({ run, more_trials, per_trial, trials_exceeded }) {
  const format = (unit, value) => (unit === "cost" ? money(value) : number(value));
  const tiles = Object.entries(run).map(([unit, use]) => tile(`budget: ${asWords(unit)}`, format(unit, use.spent), `spent of ${format(unit, use.limit)}`,
    more_trials === null ? "" : `enough for about ${plural(more_trials, "more trial")}`,
    `worst possible overshoot: ${use.overshoot ? format(unit, use.overshoot) : "none"}`));
  const limits = Object.entries(per_trial).map(([unit, limit]) => `${asWords(unit)} ${format(unit, limit)}`);
  if (limits.length) tiles.push(tile("budget per trial", groupDigits(trials_exceeded), `${trials_exceeded === 1 ? "trial" : "trials"} exceeded ${limits.join(" or ")}`));
  return tiles;
}

function summaryTiles({ info }) {
  const { summary, usage, usage_without_output } = info, { trials, attempts, steps, latency } = summary;
  const tiles = Object.entries(summary.scores).map(([name, score]) => scoreTile(name, score, summary));
  tiles.push(tile("trials", el("span", {}, groupDigits(trials.completed), el("small", { text: " ok" })), countList([[trials.failed, "failed"], [trials.recovered, "recovered"], [trials.open, "open"], [trials.withdrawn, "withdrawn"]]) || "none failed", `of ${plural(Math.max(trials.enqueued, info.total || 0), "trial")}`));
  tiles.push(tile("latency", duration(latency.p50), ...(latency.count ? [`median of ${plural(latency.count, "output")}`, `p95 ${duration(latency.p95)}`, `longest ${duration(latency.max)}`] : ["no outputs yet"]),
    summary.from_older_task ? `${groupDigits(summary.from_older_task)} from an older version of the task` : "", summary.truncated ? `${groupDigits(summary.truncated)} truncated by the token limit` : ""));
  const costs = Object.entries(usage), lost = Object.entries(usage_without_output).filter(([, value]) => value);
  if (costs.length) {
    const mainCost = costs.find(([name]) => name === "cost") || costs.find(([name]) => /cost/i.test(name)) || costs[0];
    tiles.push(tile(oneLine(asWords(mainCost[0]), 30), /cost/i.test(mainCost[0]) ? money(mainCost[1]) : number(mainCost[1]), usageText(costs.filter(([name]) => name !== mainCost[0]).slice(0, 6), summary.unpriced_models), lost.length ? `of this, attempts without an output: ${usageText(lost.slice(0, 3))}` : ""));
  }
  if (summary.budget) tiles.push(...budgetTiles(summary.budget));
  tiles.push(tile("attempts", groupDigits(attempts.started), countList([[attempts.failed, "failed"], [attempts.timed_out, "timed out"], [attempts.interrupted, "interrupted"], [attempts.returned_late, "returned late"]]) || "none failed",
    attempts.repeated_calls ? `${steps ? "calls in flight" : `up to ${plural(attempts.repeated_calls, "attempt")}`} may have been paid for twice` : ""));
  if (steps) {
    const savings = Object.entries(info.usage_saved).map(([name, value]) => (name === "cost" ? money(value) : amount(name, value)));
    tiles.push(tile("steps", groupDigits(steps.completed + steps.failed), steps.failed ? `${groupDigits(steps.failed)} failed` : "none failed",
      steps.reused ? `${plural(steps.reused, "step")} reused${savings.length ? `, ${savings.slice(0, 3).join(" · ")} not paid again` : ""}` : ""));
  }
  return tiles;
}

// As many tiles in a row as there is room for, in rows of about equal length.
function fitTiles(tiles) {
  const count = tiles.children.length, room = Math.max(1, Math.floor(tiles.clientWidth / (172 * UNIT)));
  tiles.style.gridTemplateColumns = `repeat(${Math.ceil(count / Math.ceil(count / room))}, 1fr)`;
}

const formatSigned = (value, format) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${format(Math.abs(value))}`;

function pairedRow(name, paired, verdict, format, formatDifference, unit = "") {
  const optionalCell = (value, text) => numberCell(value === null ? NONE : text(value));
  return el("tr", {}, el("th", { scope: "row", text: name }), optionalCell(paired.mean_a, format), optionalCell(paired.mean_b, format),
    optionalCell(paired.difference, (value) => `${formatSigned(value, formatDifference)}${unit}`),
    optionalCell(paired.low, (low) => `${formatSigned(low, formatDifference)} to ${formatSigned(paired.high, formatDifference)}`),
    numberCell(groupDigits(paired.n)), el("td", { class: paired.significant ? "distinct" : "faint", text: escapeInvisible(verdict) }));
}

// A row with the figure of each run and no interval.
function countRow(name, a, b) {
  return el("tr", {}, el("th", { scope: "row", text: name }), numberCell(number(a)), numberCell(number(b)), numberCell(formatSigned(b - a, number)), numberCell(""), numberCell(""), el("td", {}));
}

function comparisonTable(comparison, [a, b]) {
  const points = (value) => (100 * value).toFixed(1), plainNumber = (value) => digits(value, 3);
  const rows = Object.entries(comparison.scores).map(([name, paired]) => (paired.kind === "pass" ? pairedRow(oneLine(name, 40), paired, comparison.verdicts[name], percent, points, " points") : pairedRow(oneLine(name, 40), paired, comparison.verdicts[name], plainNumber, plainNumber)));
  rows.push(pairedRow("latency", comparison.latency, comparison.latency_verdict, duration, duration));
  const names = new Set([...Object.keys(a.info.usage), ...Object.keys(b.info.usage)]), usageOf = ({ info }, name) => (Object.hasOwn(info.usage, name) ? info.usage[name] : 0);
  rows.push(countRow("failed trials", a.info.summary.trials.failed, b.info.summary.trials.failed));
  for (const name of [...names].slice(0, 5)) rows.push(countRow(oneLine(asWords(name), 30), usageOf(a, name), usageOf(b, name)));
  const notes = [`${plural(comparison.compared, "trial")} done in both`, countList([[comparison.only_a.length, "only in A"], [comparison.only_b.length, "only in B"], [comparison.different_content.length, "with different content"]]), comparison.same_task ? "" : "the task differs"];
  return [sectionHead("compared-title", "B compared with A", notes.filter(Boolean).join(" · ")), table("paired", ["", "A", "B", "difference", "95 % CI", "n", ""], rows)];
}
