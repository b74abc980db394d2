// The variants of a run: their results in a table, their differences from the baseline, and a chart of score against cost.
"use strict";

const LOG_RATIO = 30; // Costs that differ by more than this factor are on a logarithmic axis.
const HEAD_WIDTH = 9, COLUMN_WIDTH = 11; // In rem, of the table.
const LABEL = 28; // Characters of a variant's name in the chart.

class VariantsView {
  constructor(run, { onVariant, actions }) {
    Object.assign(this, { run, onVariant, actions });
    this.tables = el("div", {});
    this.title = el("h3", {});
    this.plot = el("div", { class: "scatter-box" });
    this.note = el("p", { class: "hint" });
    this.chart = el("div", { class: "scatter-chart" }, this.title, this.plot, this.note);
    this.differences = el("div", {});
    this.element = el("section", { "aria-labelledby": "variants-title", hidden: true });
  }

  update() {
    const { variants } = this.run.info;
    this.element.hidden = !variants;
    if (!variants) return;
    if (!this.element.firstChild) this.element.append(sectionHead("variants-title", "Variants", "as in evaljournal compare"), this.tables, this.chart, this.differences);
    const { score, notes, differences } = variants, otherScorers = Object.keys(differences).filter((name) => name !== score);
    refill(this.differences, ...(Object.hasOwn(differences, score) ? differenceTable(variants, score) : []),
      otherScorers.length ? el("details", { class: "differences" }, el("summary", { text: `Differences of ${otherScorers.map((name) => oneLine(name, 30)).join(", ")}` }), otherScorers.flatMap((name) => differenceTable(variants, name))) : "",
      notes.length ? el("details", { class: "notes" }, el("summary", { text: `Notes: ${oneLine(notes[0], 100)}${notes.length > 1 ? `; ${groupDigits(notes.length - 1)} more` : ""}` }), el("ul", {}, notes.map((note) => el("li", { text: escapeInvisible(note) })))) : "");
    this.draw();
  }

  // A column for each variant; those that do not fit are in a further table.
  results({ heads, rows, baseline, best }) {
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize), count = Math.max(2, Math.floor((this.tables.clientWidth / rem - HEAD_WIDTH) / COLUMN_WIDTH));
    const title = (row) => el("th", { scope: "col", "data-variant": row.name }, link(oneLine(row.name, 60), () => this.onVariant(row.name), { title: "Show the trials of this variant" }),
      row.name === best ? el("span", { class: "tag better", text: "best" }) : "", row.name === baseline ? el("span", { class: "tag", text: "baseline" }) : "", row.is_pareto_optimal ? el("span", { class: "tag front", text: "◆ Pareto front" }) : "");
    const showLink = (head) => { const score = this.run.info.scores.find(({ title }) => title === head), show = score ? scoreLink(score, this.actions) : ""; return show ? el("p", { class: "note" }, show) : ""; };
    return Array.from({ length: Math.ceil(rows.length / count) }, (_, index) => rows.slice(index * count, (index + 1) * count)).map((block) => el("table", { class: "data variants" },
      el("thead", {}, el("tr", {}, el("td", {}), block.map(title))), el("tbody", {}, heads.map((head, number) => el("tr", {}, el("th", { scope: "row" }, head.toLowerCase(), showLink(head)), block.map((row) => numberCell(row.cells[number])))))));
  }

  draw() {
    const { variants } = this.run.info;
    if (!variants) return;
    refill(this.tables, ...this.results(variants));
    const { score, rows } = variants, points = rows.filter((row) => row.score).map((row) => ({ name: oneLine(row.name, LABEL), cost: row.cost, score: row.score, isOptimal: row.is_pareto_optimal }));
    const missingCount = rows.length - points.length, isLog = hasLogScale(points);
    setText(this.title, score === null ? "Score against cost" : `${oneLine(score, 40)} against cost per trial`);
    this.plot.replaceChildren(...(points.length ? [scatter(points, Math.floor(this.plot.clientWidth), isLog)] : []));
    setText(this.note, score === null ? "No chart: no score has passes or numbers." : !points.length ? "No chart: the cost of every variant is unknown or incomplete." : [
      "Bars are 95 % confidence intervals; ◆ and the line: Pareto front.", isLog ? "The axis of costs is logarithmic." : "", missingCount ? `Not shown, because cost or score is unknown or incomplete: ${plural(missingCount, "variant")}.` : ""].filter(Boolean).join(" "));
  }
}

// The paired differences of the variants from the baseline.
function differenceTable({ differences, baseline }, scorer) {
  return [el("h3", { class: "differences", text: `${oneLine(scorer, 40)}, compared with ${oneLine(baseline, 60)}` }),
    table("paired with-p", ["", oneLine(baseline, 30), "variant", "difference", "95 % CI", "n", "", ""], differences[scorer].map(pairedRow))];
}

// About `count` round values between two numbers; on a logarithmic scale 1, 2 and 5 times a power of ten.
function ticks(low, high, count, isLog) {
  if (isLog) {
    const values = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) values.push(...[1, 2, 5].map((digit) => digit * 10 ** power));
    const visibleValues = values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    return visibleValues.length > count ? visibleValues.filter((value) => Number.isInteger(Number(Math.log10(value).toFixed(6)))) : visibleValues;
  }
  const minStep = (high - low) / count, power = 10 ** Math.floor(Math.log10(minStep)), step = power * [1, 2, 5, 10].find((digit) => digit * power >= minStep * 0.999);
  return Array.from({ length: Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9) + 1 }, (_, index) => (Math.ceil(low / step - 1e-9) + index) * step);
}

// A scale from [low, high] to pixels.
function scaleOf(low, high, from, to, isLog) {
  const transform = isLog ? Math.log : (value) => value;
  return (value) => from + ((transform(value) - transform(low)) / (transform(high) - transform(low))) * (to - from);
}

function hasLogScale(points) {
  const costs = points.map(({ cost }) => cost), low = Math.min(...costs);
  return low > 0 && Math.max(...costs) / low > LOG_RATIO;
}

function scatter(points, width, isLog) {
  const size = 11 * UNIT, left = 58 * UNIT, right = 14 * UNIT, top = 12 * UNIT, bottom = 26 * UNIT, height = Math.round(220 * UNIT);
  const costs = points.map(({ cost }) => cost);
  const [lowCost, highCost] = isLog ? [Math.min(...costs) / 1.6, Math.max(...costs) * 1.6] : [0, 1.12 * Math.max(...costs) || 1];
  const isPass = points.every(({ score }) => score.kind === "pass"), bounds = points.flatMap(({ score }) => (hasInterval(score) ? [score.low, score.high, score.mean] : [score.mean]));
  const margin = 0.08 * (Math.max(...bounds) - Math.min(...bounds)) || 0.05 * Math.abs(bounds[0]) || 0.5;
  const low = Math.max(isPass ? 0 : -Infinity, Math.min(...bounds) - margin), high = Math.min(isPass ? 1 : Infinity, Math.max(...bounds) + margin);
  const x = scaleOf(lowCost, highCost, left, width - right, isLog), y = scaleOf(low, high, height - bottom, top);
  const chart = svg("svg", { class: "scatter", width, height, viewBox: `0 0 ${width} ${height}`, "font-size": size, role: "img", "aria-label": `Score against cost per trial: ${points.map(({ name, cost, score }) => `${name} ${score.text} for ${money(cost)}`).join(", ")}` });
  const text = (content, attributes) => svg("text", attributes, content);
  for (const value of ticks(low, high, 5)) chart.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }), text(isPass ? `${digits(100 * value, 3)} %` : digits(value, 3), { x: left - 8, y: y(value) + size / 3, "text-anchor": "end" }));
  for (const value of ticks(lowCost, highCost, Math.max(2, width / (110 * UNIT)), isLog)) chart.append(svg("line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: height - bottom }), text(money(value), { x: x(value), y: height - bottom + 1.5 * size, "text-anchor": "middle" }));
  const paretoPoints = points.filter(({ isOptimal }) => isOptimal).sort((a, b) => a.cost - b.cost);
  chart.append(svg("polyline", { class: "front", points: paretoPoints.map(({ cost, score }) => `${x(cost)},${y(score.mean)}`).join(" ") }));
  for (const { name, cost, score, isOptimal } of points) {
    const [cx, cy, r] = [x(cost), y(score.mean), 5 * UNIT];
    chart.append(svg("g", { class: isOptimal ? "point on-front" : "point" },
      svg("title", {}, `${name}: ${score.text} for ${money(cost)} per trial`),
      ...(hasInterval(score) ? [svg("line", { class: "whisker", x1: cx, x2: cx, y1: y(score.low), y2: y(score.high) })] : []),
      isOptimal ? svg("path", { class: "dot", d: `M${cx} ${cy - 1.3 * r}l${1.3 * r} ${1.3 * r}l${-1.3 * r} ${1.3 * r}l${-1.3 * r} ${-1.3 * r}z` }) : svg("circle", { class: "dot", cx, cy, r })));
  }
  chart.append(...labels(points.map(({ name, cost, score }) => [name, x(cost), y(score.mean)]), width, height - bottom, size));
  return chart;
}

// The names of points next to them, each where it covers no other name or point; a name without such a position is only in the table.
function labels(points, width, height, size) {
  const context = document.createElement("canvas").getContext("2d"), gap = 10 * UNIT;
  context.font = `${size}px system-ui, sans-serif`;
  const boxes = points.map(([, x, y]) => [x - 6 * UNIT, y - 6 * UNIT, x + 6 * UNIT, y + 6 * UNIT]);
  return points.flatMap(([name, x, y], index) => {
    const length = context.measureText(name).width;
    const positions = [1, -1, 0, 2, -2].flatMap((step) => [[x + gap, y + step * 1.2 * size], [x - gap - length, y + step * 1.2 * size]]);
    const position = positions.find(([from, middle]) => {
      const box = [from, middle - 0.6 * size, from + length, middle + 0.6 * size];
      return box[0] >= 0 && box[2] <= width && box[1] >= 0 && box[3] <= height && !boxes.some((other, number) => number !== index && box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]) && boxes.push(box);
    });
    return position ? [svg("text", { class: "name", x: position[0], y: position[1] + size / 3 }, name)] : [];
  });
}
