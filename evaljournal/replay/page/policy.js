// The policy's decisions as text and on the charts: pauses, the circuit breaker and the pace of starts.
"use strict";

// Reasons that open the circuit breaker: only probes start, until a record ends the pause.
const PROBING = new Set(["unavailable", "no_response", "all_rate_limited"]);

const PAUSE_REASONS = {
  retry_after: "Retry-After",
  rate_limited: "429, short pause",
  unavailable: "endpoint unavailable",
  no_response: "endpoint does not respond",
  all_rate_limited: "every call is rate limited",
};

const SCORER = "scorer:";

const pausesAttempts = (pause) => !pause[6].startsWith(SCORER);

// "Retry-After", "endpoint unavailable; probing"; with the rate-limit key, if there is one.
function reasonText(reason, key) {
  const text = Object.hasOwn(PAUSE_REASONS, reason) ? PAUSE_REASONS[reason] : oneLine(asWords(reason), 60);
  const name = key.startsWith(SCORER) ? `scorer ${oneLine(key.slice(SCORER.length), 24)}: ` : key ? `${oneLine(key, 24)}: ` : "";
  return `${name}${text}${PROBING.has(reason) ? "; probing" : ""}`;
}

// "Retry-After: 12 s", "endpoint unavailable; probing".
function pauseText(pause, seconds) {
  const [, , , , reason, , key] = pause;
  return `${reasonText(reason, key)}${PROBING.has(reason) ? "" : `: ${duration(seconds)}`}`;
}

const paceNumber = (pace) => digits(pace, pace < 100 ? 2 : 3);
const paceText = (pace) => `pace: ${paceNumber(pace)} starts/s`;

// Starts per second at a time on the axis; 0 where starts are not paced.
function paceAt(run, x) {
  const { pace } = run.series, index = pace ? lastIndex(pace.x, x) : -1;
  return index < 0 ? 0 : pace.value[index] / 1000;
}

// The pauses of attempts as ranges of time. An open breaker has a pause for each failed probe; they are one range.
function pauseRanges(run) {
  const ranges = [];
  for (const pause of run.pauses.filter(pausesAttempts)) {
    const [from, to] = run.pauseRange(pause), [seq, session, , , reason, , key, endSeq] = pause;
    const previousRange = ranges.findLast((range) => range.key === key);
    if (PROBING.has(reason) && previousRange && previousRange.reason === reason && previousRange.endSeq === seq) {
      previousRange.to = to;
      previousRange.endSeq = endSeq;
    } else {
      const seconds = (pause[3] - pause[2]) / 1e6;
      ranges.push({ from, to, reason, key, endSeq, session, text: pauseText(pause, seconds), shortText: PROBING.has(reason) ? "probing" : duration(seconds) });
    }
  }
  return ranges;
}

// The times in which trials were queued, no pause was in force, and fewer attempts were in flight than the limit allows.
function* idleTimes(run) {
  const names = ["pace", "queued", "in_flight", "limit", "paused"], series = names.map((name) => run.series[name]);
  const indexes = series.map(() => -1);
  for (let x = 0; x < run.endX;) {
    series.forEach(({ x: times }, index) => { while (indexes[index] + 1 < times.length && times[indexes[index] + 1] <= x) indexes[index] += 1; });
    const [pace, queued, inFlight, limit, paused] = series.map(({ value }, index) => (indexes[index] < 0 ? 0 : value[indexes[index]]));
    const nextX = Math.min(run.endX, ...series.map(({ x: times }, index) => times[indexes[index] + 1] ?? Infinity));
    const range = run.sessionRanges.findLast(([from]) => from <= x), rangeEnd = range ? Math.min(nextX, range[1]) : x;
    if (queued && !paused && (!limit || inFlight < limit) && rangeEnd > x) yield { x, seconds: rangeEnd - x, pace };
    x = nextX;
  }
}

// Seconds in which only the pace kept slots idle.
function pacedTime(run) {
  let seconds = 0, low = Infinity, high = 0;
  for (const time of run.series.pace?.value.some(Boolean) ? idleTimes(run) : []) {
    if (!time.pace) continue;
    seconds += time.seconds;
    low = Math.min(low, time.pace / 1000);
    high = Math.max(high, time.pace / 1000);
  }
  return { seconds, low, high };
}

// Label of a known rate limit → seconds in which it kept slots idle: of several, the one that was used most.
function limitedTimes(run) {
  const seconds = new Map();
  for (const time of run.rateLimits.length ? idleTimes(run) : []) {
    if (time.pace) continue;
    const uses = run.rateLimits.map(({ name, label }) => { const { x, value } = run.series[name], index = lastIndex(x, time.x); return { label, value: index < 0 ? -1 : value[index] }; });
    const { label, value } = uses.reduce((best, use) => (use.value > best.value ? use : best));
    if (value >= 0) seconds.set(label, (seconds.get(label) || 0) + time.seconds);
  }
  return seconds;
}

// Why slots were idle, the longest time first: "pace: 4.2 starts/s, 58 s".
function idleReasons(run) {
  const totals = new Map();
  for (const { from, to, reason, key } of pauseRanges(run)) {
    const text = reasonText(reason, key), total = totals.get(text) || { seconds: 0, count: 0 };
    totals.set(text, { seconds: total.seconds + to - from, count: total.count + 1 });
  }
  const reasons = [...totals].map(([text, { seconds, count }]) => ({ seconds, text: `${text}: ${duration(seconds)}${count > 1 ? ` in ${plural(count, "pause")}` : ""}` }));
  const { seconds, low, high } = pacedTime(run);
  if (seconds) {
    const range = paceNumber(low) === paceNumber(high) ? paceText(high) : `pace: ${paceNumber(low)} to ${paceNumber(high)} starts/s`;
    reasons.push({ seconds, text: `${range}, ${duration(seconds)}` });
  }
  for (const [label, time] of limitedTimes(run)) reasons.push({ seconds: time, text: `rate limit: ${oneLine(label, 80)}, ${duration(time)}` });
  return reasons.sort((a, b) => b.seconds - a.seconds).map(({ text }) => text);
}

// Restrict drawing to the area of a plot while `draw` runs.
function drawClipped(plot, draw) {
  const context = plot.ctx, { left, top, width, height } = plot.bbox;
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  draw(context);
  context.restore();
}

// Shade the pauses behind the lines of a chart.
function shadePauses(plot, run) {
  drawClipped(plot, (context) => {
    for (const { from, to, reason } of pauseRanges(run)) {
      context.fillStyle = color(PROBING.has(reason) ? "breaker" : "pause");
      const start = plot.valToPos(from, "x", true);
      context.fillRect(start, plot.bbox.top, Math.max(1, plot.valToPos(to, "x", true) - start), plot.bbox.height);
    }
  });
}

// Draw a label on the background color, so that it can be read over lines.
function drawLabel(context, text, { left, top, height, tint }) {
  context.fillStyle = color("ground");
  context.globalAlpha = 0.8;
  context.fillRect(left - 0.2 * height, top, context.measureText(text).width + 0.4 * height, height);
  context.globalAlpha = 1;
  context.fillStyle = color(tint);
  context.fillText(text, left, top + 0.1 * height);
}

// Label the pauses and the changes of the pace, where there is room.
function labelPolicy(plot, run) {
  const { left, top, width, height } = plot.bbox, ratio = window.devicePixelRatio || 1, right = left + width;
  drawClipped(plot, (context) => {
    const line = Math.round(10 * UNIT * ratio) * 1.2;
    context.font = `${Math.round(10 * UNIT * ratio)}px system-ui, sans-serif`;
    context.textAlign = "left";
    context.textBaseline = "top";
    for (const { from, to, text, shortText } of pauseRanges(run)) {
      const start = Math.max(left, plot.valToPos(from, "x", true)), end = Math.min(right, plot.valToPos(to, "x", true));
      const label = [text, shortText].find((candidate) => context.measureText(candidate).width + 8 * ratio < end - start);
      if (label) drawLabel(context, label, { left: start + 4 * ratio, top: top + 0.35 * height, height: line, tint: "ink" });
    }
    const { pace } = run.series;
    let freeX = left;
    for (let index = 0; pace && index < pace.x.length; index++) {
      const value = pace.value[index] / 1000;
      if (!value) continue;
      const x = Math.max(plot.valToPos(pace.x[index], "x", true), left);
      const nextX = index + 1 < pace.x.length ? plot.valToPos(pace.x[index + 1], "x", true) : right;
      const widthOf = (text) => context.measureText(text).width + 6 * ratio;
      const text = [paceText(value), `${paceNumber(value)}/s`].find((label, index) => index || x + widthOf(label) < Math.min(nextX, right));
      if (x < freeX || nextX < left || x + widthOf(text) > right) continue;
      drawLabel(context, text, { left: x + 3 * ratio, top: plot.valToPos(value, "pace", true) - line - 2 * ratio, height: line, tint: "pace" });
      freeX = x + widthOf(text) + 34 * ratio;
    }
  });
}
