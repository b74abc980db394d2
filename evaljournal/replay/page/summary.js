// The summary: tiles of one run, and the table of differences between two.
"use strict";

function tile(title, figure, ...notes) {
  const keepUnits = (text) => text.replace(/(?<=\d) (?=(?:%|s|ms|min|h)(?![\p{L}\d]))/gu, "\u00a0"); // Keep a number and its unit on one line.
  return el("div", { class: "tile" }, el("h3", { text: title }), el("p", { class: "figure" }, figure), notes.filter(Boolean).map((note) => (typeof note === "string" ? el("p", { class: "note", text: keepUnits(note) }) : note)));
}

function intervalBar([low, high, mean]) {
  const range = el("i", { class: "range" }), point = el("i", { class: "point" });
  range.style.left = `${100 * low}%`;
  range.style.width = `${100 * (high - low)}%`;
  point.style.left = `${100 * mean}%`;
  return el("div", { class: "interval", "aria-hidden": "true" }, range, point);
}

// A link that shows the trials that fail a score, or those with the lowest numbers first; empty in a comparison.
function scoreLink({ name, fails, kind }, actions) {
  if (!actions) return "";
  if (fails) return link(`show ${groupDigits(fails)} that ${fails === 1 ? "fails" : "fail"}`, () => actions.onFilter(["score", name, false]));
  return kind === "number" ? link("show the lowest first", () => actions.onSort(name)) : "";
}

function scoreTile(score, actions) {
  const { title, figure, notes, bar } = score, show = scoreLink(score, actions);
  return tile(title, figure || NONE, bar ? intervalBar(bar) : "", ...(figure ? notes : ["no scores yet", ...notes]), show ? el("p", { class: "note" }, show) : "");
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

function summaryTiles({ info }, actions) {
  const { summary, usage, usage_without_output } = info, { trials, attempts, steps, latency } = summary;
  const tiles = info.variants ? [] : info.scores.map((score) => scoreTile(score, actions)); // Means over all variants have no meaning.
  tiles.push(tile("trials", el("span", {}, groupDigits(trials.completed), el("small", { text: trials.completed === 1 ? " output" : " outputs" })), countList([[trials.failed, trials.failed === 1 ? "error" : "errors"], [trials.recovered, "retried"], [trials.open, "open"], [trials.withdrawn, "withdrawn"]]) || "no errors", `of ${plural(Math.max(trials.enqueued, info.total || 0), "trial")}`));
  tiles.push(tile("latency", duration(latency.p50), ...(latency.count ? [`median of ${plural(latency.count, "output")}`, `p95 ${duration(latency.p95)}`, `longest ${duration(latency.max)}`] : [trials.completed ? "not measured" : "no outputs yet"]),
    summary.from_older_task ? `${groupDigits(summary.from_older_task)} from an older version of the task` : "", trials.truncated ? `${groupDigits(trials.truncated)} truncated` : "", trials.declined ? `${groupDigits(trials.declined)} declined` : ""));
  const costs = Object.entries(usage), lost = Object.entries(usage_without_output).filter(([, value]) => value);
  if (costs.length) {
    const mainCost = costs.find(([name]) => name === "cost") || costs.find(([name]) => /cost/i.test(name)) || costs[0];
    tiles.push(tile(oneLine(asWords(mainCost[0]), 30), /cost/i.test(mainCost[0]) ? money(mainCost[1]) : number(mainCost[1]), Object.hasOwn(usage, "judge.cost") ? `of this, judges: ${money(usage["judge.cost"])}` : "", usageText(costs.filter(([name]) => ![mainCost[0], "judge.cost"].includes(name)).slice(0, 6), summary.unpriced_models), lost.length ? `of this, attempts without an output: ${usageText(lost.slice(0, 3))}` : ""));
  }
  if (summary.budget) tiles.push(...budgetTiles(summary.budget));
  tiles.push(tile("attempts", groupDigits(attempts.started), countList([[attempts.failed, "failed"], [attempts.timed_out, "timed out"], [attempts.interrupted, "interrupted"], [attempts.returned_late, "returned late"]]) || "none failed",
    attempts.repeated_calls ? `${steps ? "calls in flight" : `up to ${plural(attempts.repeated_calls, "attempt")}`} may have been paid for twice` : ""));
  if (summary.warnings.length) tiles.push(tile("warnings", groupDigits(summary.warnings.length), ...summary.warnings));
  if (steps) {
    const savings = Object.entries(info.usage_saved).map(([name, value]) => (name === "cost" ? money(value) : amount(name, value)));
    tiles.push(tile("steps", groupDigits(steps.completed + steps.failed), steps.failed ? `${groupDigits(steps.failed)} failed` : "none failed",
      steps.reused ? `${plural(steps.reused, "step")} reused${savings.length ? `, ${savings.slice(0, 3).join(" · ")} not paid again` : ""}` : ""));
  }
  return tiles;
}

// As many tiles in a row as there is room for, in rows of about equal length.
function fitTiles(tiles) {
  const count = tiles.children.length, room = tiles.clientWidth < 640 ? 1 : Math.max(1, Math.floor(tiles.clientWidth / (150 * UNIT)));
  tiles.style.gridTemplateColumns = `repeat(${Math.ceil(count / Math.ceil(count / room))}, 1fr)`;
}

// A row of a table of differences.
function pairedRow({ name, cells, verdict, effect }) {
  const kind = effect || "faint";
  return el("tr", {}, el("th", { scope: "row", text: name }), cells.map(numberCell), el("td", { class: kind, text: escapeInvisible(verdict) }));
}

// A row with the figure of each side and no interval; less is better.
function countRow(name, a, b, format = number) {
  const kind = b < a ? "better" : b > a ? "worse" : "faint";
  return el("tr", {}, el("th", { scope: "row", text: name }), numberCell(format(a)), numberCell(format(b)), el("td", { class: `num ${kind}`, text: a === b ? NONE : `${b > a ? "+" : "−"}${format(Math.abs(b - a))}` }), el("td", {}), el("td", {}), el("td", {}));
}

// What A and B are, and the differences between them.
function comparisonTable(comparison, sides) {
  const [usageA, usageB] = comparison.sides.map(({ usage }) => usage), names = [...new Set([...Object.keys(usageA), ...Object.keys(usageB)])];
  const usageOf = (usage, name) => (Object.hasOwn(usage, name) ? usage[name] : 0);
  const rows = [...comparison.rows.map(pairedRow), countRow("errors", ...comparison.sides.map(({ errors }) => errors))];
  for (const name of names.slice(0, 5)) rows.push(countRow(oneLine(asWords(name), 30), usageOf(usageA, name), usageOf(usageB, name), /cost/i.test(name) ? money : number));
  const [different, equal] = [true, false].map((isDifferent) => comparison.facts.filter(({ a, b }) => (a !== b) === isDifferent));
  return [sectionHead("compared-title", "What are A and B?"), factsTable(different, sides),
    equal.length ? el("details", { class: "facts-equal" }, el("summary", { text: `The same in both: ${equal.map(({ name }) => oneLine(name, 30)).join(", ")}` }), el("dl", { class: "pairs" }, equal.map(({ name, a }) => el("div", {}, el("dt", { text: oneLine(name, 60) }), el("dd", {}, textBlock(a)))))) : "",
    el("div", { class: "section-head" }, el("h3", { class: "heading", text: "Which is better?" }), el("p", { class: "hint", text: comparison.note })), table("paired", ["", "A", "B", "difference", "95 % CI", "n", ""], rows)];
}

// The facts that differ, with the words that differ.
function factsTable(facts, sides) {
  const title = ({ run, variant, label }) => el("th", { scope: "col" }, el("b", { text: `${label} ` }), oneLine(variant ?? run.info.path, 80));
  return el("table", { class: "data facts" }, el("thead", {}, el("tr", {}, el("td", {}), sides.map(title))),
    el("tbody", {}, facts.map(({ name, a, b }) => el("tr", {}, el("th", { scope: "row", text: oneLine(name, 60) }), markedTexts(a ?? "", b ?? "").map((nodes, index) => el("td", { class: [a, b][index] === null ? "faint" : "" }, [a, b][index] === null ? NONE : nodes))))));
}
