// Charts: lanes of attempts on a canvas; step lines and histograms with uPlot. Colors come from the style sheet.
"use strict";

// Sizes in pixels follow the font size of the page.
let UNIT = 1;
let GUTTER = 52; // Left of every chart on the time axis, for the labels of its y axis; 3.4rem in the style sheet.
let EDGE = 20; // Right of it, for half of the last label of the x axis.

function measure() {
  const size = parseFloat(getComputedStyle(document.documentElement).fontSize);
  UNIT = size / 15.4;
  GUTTER = Math.round(3.4 * size);
  EDGE = Math.round(1.3 * size);
}

// The size must be an integer: uPlot parses it to scale it to the screen.
const font = (size, weight = "normal") => `${weight} ${Math.round(size * UNIT)}px system-ui, sans-serif`;
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const palette = () => Object.fromEntries(Object.keys(OUTCOMES).map((outcome) => [outcome, color(outcomeClass(outcome))]));

// Labels of the time axis, all in one format: 2.5 s, 1:05 or 2:01:05, with enough decimals to differ.
function timeLabels(splits) {
  const maxSplit = Math.max(...splits), step = splits.length > 1 ? splits[1] - splits[0] : 1;
  let places = 0;
  while (places < 6 && Math.abs(step - Number(step.toFixed(places))) > step / 1000) places += 1;
  const twoDigits = (value) => value.toFixed(places).padStart(places ? places + 3 : 2, "0");
  return splits.map((split) => {
    if (maxSplit < 60) return `${split.toFixed(places)} s`;
    const minutes = Math.floor(split / 60 + 1e-9), seconds = twoDigits(Math.max(0, split - 60 * minutes));
    return maxSplit < 3600 ? `${minutes}:${seconds}` : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${seconds}`;
  });
}

// Set the size of a canvas and return its cleared context.
function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

const laneHeight = (slots) => Math.min(20 * UNIT, Math.max(2, (300 * UNIT) / Math.max(1, slots)));

// A bar for each attempt: filled if it succeeded, striped and lettered if it failed, hollow if it was interrupted.
function drawLanes(canvas, run, view, width) {
  const lanes = run.drawnLanes, rows = Math.max(1, lanes.length), rowHeight = laneHeight(rows), height = Math.ceil(rows * rowHeight) + 2;
  const context = prepare(canvas, width, height);
  const plotWidth = width - GUTTER - EDGE, scale = plotWidth / (view[1] - view[0]);
  const colors = palette(), faint = color("faint");
  const inks = { ink: color("ink"), ground: color("ground"), onBar: color("on-bar"), onPale: color("on-pale") };
  context.save();
  context.rect(GUTTER, 0, plotWidth, height);
  context.clip();
  const shade = (from, to, tint, { minWidth = 0, lanes = [0, rows] } = {}) => {
    context.fillStyle = color(tint);
    context.fillRect(GUTTER + (from - view[0]) * scale, lanes[0] * rowHeight, Math.max(minWidth, (to - from) * scale), (lanes[1] - lanes[0]) * rowHeight + 2);
  };
  for (let index = 1; index < run.sessionRanges.length; index++) shade(run.sessionRanges[index - 1][1], run.sessionRanges[index][0], "hair", { minWidth: 1 });
  for (const { from, to, reason, session } of pauseRanges(run)) shade(from, to, PROBING.has(reason) ? "breaker" : "pause", { lanes: run.isMerged ? run.lanesOf(session) : undefined });
  context.restore();
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const { lane, text, isShard } of laneLabels(run, rowHeight)) {
    context.fillStyle = isShard ? inks.ink : faint;
    context.font = font(10, isShard ? "600" : "normal");
    context.fillText(text, GUTTER - 8, Math.max((lane + 0.5) * rowHeight + 1, 6 * UNIT), GUTTER - 10);
  }
  for (const { firstLane } of (run.workerLanes() || run.shards).slice(1)) {
    context.fillStyle = faint;
    context.fillRect(0, firstLane * rowHeight + 0.5, width - EDGE, 1);
  }
  lanes.forEach((lane, index) => drawLane(context, run, lane, { view, scale, plotWidth, top: index * rowHeight + 1, rowHeight, colors, inks }));
}

// The numbers of slots, at a distance that leaves room for each; the first slot of a shard has the name of the shard instead.
function laneLabels(run, rowHeight) {
  const labels = [], spacing = Math.max(1, Math.ceil((14 * UNIT) / rowHeight));
  if (run.workerLanes()) return labels; // Their names are text on top of the chart.
  let freeLane = 0; // The first lane with room for a label.
  run.shards.forEach(({ name, firstLane, lanes }) => {
    const label = run.isMerged ? name || "resumed" : "";
    for (let slot = 0; slot < lanes.length; slot += spacing) {
      if (firstLane + slot < freeLane || (slot && slot + spacing > lanes.length && run.isMerged)) continue;
      labels.push({ lane: firstLane + slot, text: slot || !label ? String(slot) : label, isShard: !slot && label !== "" });
      freeLane = firstLane + slot + spacing;
    }
  });
  return labels;
}

function drawLane(context, run, lane, { view, scale, plotWidth, top, rowHeight, colors, inks }) {
  const { spans } = run, gap = rowHeight > 6 ? 1.5 : rowHeight > 3 ? 0.5 : 0;
  // Attempts shorter than a pixel share a column of pixels, divided by the time of each outcome, the longest on top.
  let column = -1, times = new Map();
  const drawColumn = () => {
    const total = [...times.values()].reduce((sum, time) => sum + time, 0), [largest, ...smaller] = [...times.entries()].sort((a, b) => b[1] - a[1]);
    times = new Map();
    if (!largest) return;
    let bottom = top + rowHeight - gap;
    context.fillStyle = colors[largest[0]];
    context.fillRect(GUTTER + column, top + gap, 1, rowHeight - 2 * gap);
    for (const [outcome, time] of smaller) {
      const part = Math.min(bottom - top - gap, Math.max(2, (time / total) * (rowHeight - 2 * gap))); // At least 2 pixels, to be visible.
      context.fillStyle = colors[outcome];
      context.fillRect(GUTTER + column, bottom - part, 1, part);
      bottom -= part;
    }
  };
  for (let index = firstSpan(run, lane, view[0]); index < lane.length; index++) {
    const span = lane[index], start = run.startOf(span);
    if (start > view[1]) break;
    const outcome = run.outcomes[spans.outcome[span]];
    let left = (start - view[0]) * scale, right = (run.endOf(span) - view[0]) * scale;
    if (right - left < 1) {
      const middle = Math.min(Math.max(0, Math.floor((left + right) / 2)), plotWidth - 1);
      if (middle !== column) drawColumn();
      column = middle;
      times.set(outcome, (times.get(outcome) || 0) + right - left);
      continue;
    }
    left = Math.max(left, 0);
    right = Math.min(right, plotWidth);
    if (right - left > 3) right -= 0.8;
    drawBar(context, outcome, { left: GUTTER + left, width: right - left, top: top + gap, height: rowHeight - 2 * gap, colors, ...inks }, spans.attempt[span]);
  }
  drawColumn();
}

// Index of the first attempt in a lane that ends at a time or later.
const firstSpan = (run, lane, x) => countWhile(lane, (span) => run.endOf(span) < x);

function drawBar(context, outcome, { left, width, top, height, colors, ink, ground, onBar, onPale }, attempt) {
  context.fillStyle = colors[outcome];
  if (outcome === "interrupted" && width > 3) {
    context.strokeStyle = colors[outcome];
    context.lineWidth = 1;
    context.setLineDash([3, 2]);
    context.strokeRect(left + 0.5, top + 0.5, width - 1, height - 1);
    context.setLineDash([]);
  } else {
    context.globalAlpha = outcome === "" ? 0.55 : 1;
    context.fillRect(left, top, width, height);
    context.globalAlpha = 1;
  }
  const isFailure = outcome !== "succeeded" && outcome !== "" && outcome !== "interrupted";
  if (isFailure && width > 8 && height > 8) {
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    context.strokeStyle = ground;
    context.globalAlpha = 0.28;
    context.lineWidth = 1.2;
    context.beginPath();
    for (let x = left - height; x < left + width; x += 5) {
      context.moveTo(x, top + height);
      context.lineTo(x + height, top);
    }
    context.stroke();
    context.restore();
  }
  const label = `${OUTCOMES[outcome].letter}${attempt > 1 ? attempt : ""}`;
  if (label && height > 9 && width > (7 * label.length + 4) * UNIT) {
    context.font = font(10, "600");
    context.textAlign = "left";
    context.fillStyle = outcome === "interrupted" ? ink : ["", "succeeded", "rate_limited"].includes(outcome) ? onPale : onBar;
    context.fillText(label, left + 3, top + height / 2 + 0.5);
  }
}

// The value of a series for each pixel: the one that lasts longest, so that a slot that is handed over draws no spike;
// if it changes often within a pixel, the mean over its time.
const MANY_CHANGES = 6;

function samples(series, view, count) {
  const { x, value } = series, step = (view[1] - view[0]) / count, values = new Array(count).fill(null);
  if (!x.length) return values;
  let index = Math.max(0, lastIndex(x, view[0]));
  for (let column = 0; column < count; column++) {
    const from = view[0] + column * step, to = from + step;
    while (index + 1 < x.length && x[index + 1] <= from) index += 1;
    if (x[index] >= to) continue;
    let bestValue = value[index], bestTime = (index + 1 < x.length ? Math.min(x[index + 1], to) : to) - Math.max(from, x[index]);
    let times = new Map([[bestValue, bestTime]]), sum = bestValue * bestTime, changes = 0;
    for (let next = index + 1; next < x.length && x[next] < to; next++) {
      const valueTime = (next + 1 < x.length ? Math.min(x[next + 1], to) : to) - x[next], time = (times.get(value[next]) || 0) + valueTime;
      times.set(value[next], time);
      sum += value[next] * valueTime;
      changes += 1;
      if (time > bestTime) { bestTime = time; bestValue = value[next]; }
    }
    values[column] = changes < MANY_CHANGES ? bestValue : sum / (to - Math.max(from, x[0]));
  }
  return values;
}

// Steps between two labels of the time axis: decimal below ten seconds, as on a clock above.
const SECONDS = [...[-6, -5, -4, -3, -2, -1, 0].flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`))), 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, ...[1, 2, 5, 10, 20, 50, 100].map((days) => 86400 * days)];

function axes(side) {
  const ink = color("faint"), hair = color("hair");
  const sharedOptions = { stroke: ink, font: font(11), ticks: { show: false } };
  return [
    { ...sharedOptions, show: side !== "none", size: 24 * UNIT, gap: 4 * UNIT, grid: { show: false }, values: (_, splits) => timeLabels(splits), incrs: SECONDS, space: 80 * UNIT },
    { ...sharedOptions, size: GUTTER, gap: 6, grid: { stroke: hair, width: 1 }, space: 24 * UNIT, incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 500000, 1000000], values: (_, splits) => splits.map((split) => (Number.isInteger(split) ? groupDigits(split) : "")) },
  ];
}

// Step lines on the same time axis as the lanes.
class StepChart {
  constructor(holder, series, { showsAxis, height, showsPolicy }) {
    Object.assign(this, { holder, series, showsAxis, height, showsPolicy, plot: null });
  }

  draw(run, view, width) {
    const count = Math.max(2, Math.min(4000, Math.floor(width - GUTTER - EDGE)));
    const step = (view[1] - view[0]) / count, x = Array.from({ length: count }, (_, index) => view[0] + index * step);
    const data = [x, ...this.series.map(({ name, scale }) => {
      const values = samples(run.series[name], view, count);
      return values.map((value, index) => (x[index] > run.endX ? null : scale === "pace" ? value / 1000 || null : value));
    })];
    if (this.plot) this.plot.destroy();
    const steppedPath = uPlot.paths.stepped({ align: 1 });
    this.plot = new uPlot({
      width, height: Math.round(this.height * UNIT), padding: [6 * UNIT, EDGE, this.showsAxis ? 0 : 7 * UNIT, 0], legend: { show: false }, cursor: { show: false },
      scales: { x: { time: false, range: () => view }, y: { range: (_, low, high) => [-0.02 * Math.max(1, high || 0), Math.max(1, high || 0) * 1.08] }, pace: { range: (_, low, high) => [0, (high || 1) * 1.5] } },
      hooks: this.showsPolicy ? { drawClear: [(plot) => shadePauses(plot, run)], draw: [(plot) => labelPolicy(plot, run)] } : {},
      axes: axes(this.showsAxis ? "both" : "none"),
      series: [{}, ...this.series.map(({ label, tint, fill, dash, scale }) => ({
        label, scale: scale || "y", stroke: color(tint), width: 1.5, dash, fill: fill ? color(fill) : undefined, paths: steppedPath, points: { show: false }, spanGaps: false,
      }))],
    }, data, this.holder);
  }
}

// The distribution of latencies; those of two runs are overlaid.
class Histogram {
  constructor(holder) {
    Object.assign(this, { holder, plot: null });
  }

  draw(sets, width) {
    const times = sets.flatMap((set) => set.times);
    if (this.plot) this.plot.destroy();
    this.plot = null;
    this.note = "";
    if (!times.length) return;
    const sortedTimes = Float64Array.from(times).sort(), maxLatency = sortedTimes[sortedTimes.length - 1];
    const maxTime = Math.min(maxLatency, 1.6 * sortedTimes[Math.ceil(0.99 * sortedTimes.length) - 1]) || 1e-6;
    this.note = maxLatency > maxTime ? `Latencies from ${duration(maxTime)} to ${duration(maxLatency)} are in the last bar.` : "";
    const bins = Math.max(8, Math.min(60, Math.ceil(2 * Math.cbrt(times.length)), Math.floor(width / (12 * UNIT)))), step = maxTime / bins;
    const x = Array.from({ length: bins + 1 }, (_, bin) => bin * step);
    const histograms = sets.map((set) => {
      const counts = new Array(bins + 1).fill(0);
      for (const time of set.times) counts[Math.min(bins - 1, Math.floor(time / step))] += 1;
      counts[bins] = counts[bins - 1];
      return counts;
    });
    const steppedPath = uPlot.paths.stepped({ align: 1 });
    this.plot = new uPlot({
      width, height: Math.round(150 * UNIT), padding: [14 * UNIT, EDGE, 0, 0], legend: { show: false }, cursor: { show: false },
      scales: { x: { time: false, range: () => [0, maxTime] }, y: { range: (_, low, high) => [0, Math.max(1, high || 0) * 1.05] } },
      axes: [{ ...axes("both")[0], incrs: undefined, values: (_, splits) => splits.map((split) => duration(split)) }, axes("both")[1]],
      series: [{}, ...sets.map((set) => ({ label: set.label, stroke: color(set.tint), width: 1.5, dash: set.dash, fill: color(set.fill), paths: steppedPath, points: { show: false } }))],
      hooks: { draw: [(plot) => this.mark(plot, sets)] },
    }, [x, ...histograms], this.holder);
  }

  mark(plot, sets) {
    const context = plot.ctx, ratio = window.devicePixelRatio || 1;
    context.save();
    context.font = `${10 * UNIT * ratio}px system-ui, sans-serif`;
    for (const set of sets) {
      const marks = set.marks.filter(([, value]) => value !== null).map(([label, value]) => [label, plot.valToPos(value, "x", true)]);
      marks.forEach(([label, x], index) => {
        if (x > plot.bbox.left + plot.bbox.width) return;
        context.strokeStyle = context.fillStyle = color(set.tint);
        context.setLineDash([3 * ratio, 3 * ratio]);
        context.beginPath();
        context.moveTo(x, plot.bbox.top);
        context.lineTo(x, plot.bbox.top + plot.bbox.height);
        context.stroke();
        const isNear = index + 1 < marks.length && marks[index + 1][1] - x < 30 * UNIT * ratio; // Labels must not overlap.
        context.textAlign = isNear ? "right" : "left";
        context.fillText(label, x + (isNear ? -3 : 3) * ratio, plot.bbox.top - 3 * ratio);
      });
    }
    context.restore();
  }
}
