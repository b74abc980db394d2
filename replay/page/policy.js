// What the policy decided, in words and on the charts: pauses, the open circuit breaker, and the pace of starts.
"use strict";

// Causes with which the circuit breaker is open: only probes start, until a record ends the pause.
const PROBING = new Set(["unavailable", "no_response", "all_rate_limited"]);

const CAUSES = {
  retry_after: "Retry-After",
  rate_limited: "429, short pause",
  unavailable: "endpoint unavailable",
  no_response: "endpoint does not respond",
  all_rate_limited: "every call is rate limited",
};

const SCORER = "scorer:";

function isOfAttempts(pause) {
  return !pause[6].startsWith(SCORER);
}

// "Retry-After: 12 s", "endpoint unavailable; probing"; with the rate-limit key, where there is one.
function pauseText(pause, seconds) {
  const [, , , , cause, , key] = pause, said = Object.hasOwn(CAUSES, cause) ? CAUSES[cause] : oneLine(words(cause), 60);
  const name = key.startsWith(SCORER) ? `scorer ${oneLine(key.slice(SCORER.length), 24)}: ` : key ? `${oneLine(key, 24)}: ` : "";
  return `${name}${said}${PROBING.has(cause) ? "; probing" : `: ${duration(seconds)}`}`;
}

function paceText(pace) {
  return `rate limit: ${digits(pace, pace < 100 ? 2 : 3)} starts/s`;
}

// Starts per second at a moment on the axis; 0 where starts are not paced.
function paceAt(run, x) {
  const { pace } = run.steps, at = pace ? lastAt(pace.x, x) : -1;
  return at < 0 ? 0 : pace.value[at] / 1000;
}

// The pauses of attempts as stretches of time; the breaker's, which begins anew with each failed probe, as one.
function stretchesOf(run) {
  const found = [];
  for (const pause of run.pauses.filter(isOfAttempts)) {
    const [from, to] = run.reachOf(pause), [seq, , , , cause, , key] = pause;
    const before = found.findLast((each) => each.key === key);
    if (PROBING.has(cause) && before && before.cause === cause && before.over === seq) {
      before.to = to;
      before.over = pause[7];
    } else {
      found.push({ from, to, cause, key, over: pause[7], text: pauseText(pause, (pause[3] - pause[2]) / 1e6) });
    }
  }
  return found;
}

// Shade the pauses of a chart, behind its lines.
function shadePauses(plot, run) {
  const pen = plot.ctx, { left, top, width, height } = plot.bbox;
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
  for (const { from, to, cause } of stretchesOf(run)) {
    pen.fillStyle = colour(PROBING.has(cause) ? "breaker" : "pause");
    const start = plot.valToPos(from, "x", true);
    pen.fillRect(start, top, Math.max(1, plot.valToPos(to, "x", true) - start), height);
  }
  pen.restore();
}

// Write a label on a piece of the ground, so that no line crosses it.
function writeLabel(pen, text, { left, top, high, tint }) {
  pen.fillStyle = colour("ground");
  pen.globalAlpha = 0.8;
  pen.fillRect(left - 0.2 * high, top, pen.measureText(text).width + 0.4 * high, high);
  pen.globalAlpha = 1;
  pen.fillStyle = colour(tint);
  pen.fillText(text, left, top + 0.1 * high);
}

// Name the shaded stretches and the steps of the pace, where there is room.
function labelPolicy(plot, run) {
  const pen = plot.ctx, { left, top, width, height } = plot.bbox, ratio = window.devicePixelRatio || 1;
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
  const high = Math.round(10 * UNIT * ratio) * 1.2;
  pen.font = `${Math.round(10 * UNIT * ratio)}px system-ui, sans-serif`;
  pen.textAlign = "left";
  pen.textBaseline = "top";
  for (const { from, to, text } of stretchesOf(run)) {
    const start = Math.max(left, plot.valToPos(from, "x", true)), end = Math.min(left + width, plot.valToPos(to, "x", true));
    if (pen.measureText(text).width + 8 * ratio < end - start) writeLabel(pen, text, { left: start + 4 * ratio, top: top + 0.35 * height, high, tint: "ink" });
  }
  const { pace } = run.steps;
  let free = left;
  for (let at = 0; pace && at < pace.x.length; at++) {
    if (!pace.value[at]) continue;
    const x = Math.max(plot.valToPos(pace.x[at], "x", true), left), next = at + 1 < pace.x.length ? plot.valToPos(pace.x[at + 1], "x", true) : Infinity;
    const text = `${digits(pace.value[at] / 1000, 2)}/s`, wide = pen.measureText(text).width;
    if (x < free || next < left || x + wide > left + width) continue;
    writeLabel(pen, text, { left: x + 3 * ratio, top: plot.valToPos(pace.value[at] / 1000, "pace", true) - high - 2 * ratio, high, tint: "pace" });
    free = x + wide + 40 * ratio;
  }
  pen.restore();
}
