// The page with all runs: for each evaluation the trend of its score, a table of its runs, and the cases that changed.
"use strict";

const WIDTH = 960, HEIGHT = 200, LEFT = 52, RIGHT = 12, TOP = 12, BOTTOM = 24, SERIES = 6;
const MARKS = { p: "✓", f: "✗", e: "E", m: "±", "-": "·" };
const SCORE = -5; // The column of the score, from the end.
const SHOWN_CASES = 200, SHOWN_OUTCOMES = 40;

const variantsOf = (history) => [...new Set(history.points.map((point) => point.variant))];
const startedAt = (point) => (point.started_at ? escapeInvisible(point.started_at.slice(0, 16)).replace("T", " ") : NONE);

// The means of a score with their 95 % confidence intervals, a line for each variant.
function trend(history) {
  const scoredPoints = history.points.filter((point) => point.score && !point.is_partial);
  if (scoredPoints.length < 2) return "";
  const paths = [...new Set(history.points.map((point) => point.path))];
  const lows = scoredPoints.map(({ score }) => score.low ?? score.mean), highs = scoredPoints.map(({ score }) => score.high ?? score.mean);
  let low = Math.min(...lows), high = Math.max(...highs);
  if (low === high) { low -= 0.5; high += 0.5; }
  const order = new Map(paths.map((path, index) => [path, index]));
  const x = (path) => LEFT + ((order.get(path) + 0.5) / paths.length) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const label = (value) => (scoredPoints[0].score.kind === "pass" ? percent(value) : digits(value, 3));
  const chart = svg("svg", { class: "trend", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Trend of ${oneLine(history.scorer, 40)} over ${plural(paths.length, "run")}` });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const value = low + share * (high - low);
    chart.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }), svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, label(value)));
  }
  for (const [path, anchor] of [[paths[0], "start"], [paths.at(-1), "end"]]) {
    const point = history.points.find((other) => other.path === path);
    chart.append(svg("text", { x: x(path), y: HEIGHT - 6, "text-anchor": paths.length === 1 ? "middle" : anchor }, startedAt(point)));
  }
  const variants = variantsOf(history), gap = Math.min(8, (WIDTH - LEFT - RIGHT) / paths.length / (variants.length + 1)); // Distance between the whiskers of a run.
  variants.forEach((variant, index) => {
    const points = scoredPoints.filter((point) => point.variant === variant), series = svg("g", { class: `series-${index % SERIES}` });
    const center = (path) => x(path) + gap * (index - (variants.length - 1) / 2);
    series.append(svg("polyline", { class: "mean", points: points.map(({ path, score }) => `${center(path)},${y(score.mean)}`).join(" ") }));
    for (const { path, score, cells } of points) {
      if (score.low !== null && score.high !== null) series.append(svg("line", { class: "whisker", x1: center(path), x2: center(path), y1: y(score.low), y2: y(score.high) }));
      series.append(svg("circle", { class: "dot", cx: center(path), cy: y(score.mean), r: 3 }, svg("title", {}, `${oneLine(path, 120)}${variant ? ` @${oneLine(variant, 40)}` : ""}: ${cells.at(SCORE)}`)));
    }
    chart.append(series);
  });
  return chart;
}

function legend(history) {
  const variants = variantsOf(history);
  if (variants.length < 2) return "";
  return el("ul", { class: "series" }, variants.map((variant, index) => el("li", {}, el("i", { class: `swatch line series-${index % SERIES}` }), ` ${oneLine(variant || "no variant", 40)}`)));
}

function runsTable(history, links, comparisons) {
  const rows = [...history.points].reverse().map(({ path, previous, broken, fixed, cells: [name, ...cells] }) => {
    const report = links.get(path), comparison = comparisons.get(JSON.stringify([previous, path])), show = (item) => oneLine(item, 40), changed = cells.pop();
    return el("tr", { "data-run": path }, el("td", {}, report ? el("a", { href: report, text: name }) : name), cells.map((text, index) => el("td", { class: index < cells.length - 1 ? "tight" : "", text })),
      el("td", {}, el("div", {}, changed, changedNames("broken", broken, show), changedNames("fixed", fixed, show), comparison ? el("a", { href: comparison, text: "trial by trial" }) : "")));
  });
  return table("runs", history.heads, rows);
}

function changedCases(kind, cases) {
  if (!cases.length) return "";
  const items = cases.slice(0, SHOWN_CASES).map((item) => el("li", {},
    el("span", { class: "marks", text: [...item.outcomes].slice(-SHOWN_OUTCOMES).map((outcome) => MARKS[outcome]).join("") }), ` ${oneLine(item.case, 120)}${item.variant ? ` @${oneLine(item.variant, 40)}` : ""}`,
    item.since === null ? "" : el("span", { class: "faint", text: ` since ${oneLine(item.since, 120)}` })));
  if (cases.length > SHOWN_CASES) items.push(el("li", { class: "faint", text: `and ${groupDigits(cases.length - SHOWN_CASES)} more` }));
  return el("details", { class: "changed", "data-kind": kind }, el("summary", { text: `${kind}: ${plural(cases.length, "case")}` }), el("ul", {}, items));
}

function historySection(history, links, comparisons, index) {
  const id = `evaluation-${index}`, runs = new Set(history.points.map((point) => point.path)).size;
  return el("section", { "aria-labelledby": id }, sectionHead(id, `${oneLine(history.evaluation, 80)}: ${plural(runs, "run")}`, history.basis),
    trend(history), legend(history), runsTable(history, links, comparisons),
    history.command ? el("p", { class: "faint command" }, "Trial by trial: ", el("code", { text: history.command })) : "", ["broken", "fixed", "flaky"].map((kind) => changedCases(kind, history[kind])));
}

openEmbedded(({ histories, links, comparisons }) => {
  for (const history of histories) {
    const [heads, ...rows] = history.table;
    Object.assign(history, { heads, points: history.points.map((point, index) => ({ ...point, cells: rows[index] })) });
  }
  const main = document.getElementById("page"), reports = new Map(links), pairs = new Map(comparisons.map(([a, b, address]) => [JSON.stringify([a, b]), address]));
  main.replaceChildren(el("header", { class: "top" }, el("h1", { text: document.title })),
    ...(histories.length ? histories.map((history, index) => historySection(history, reports, pairs, index)) : [el("p", { class: "nothing", text: "No runs." })]));
  main.removeAttribute("aria-busy");
});
