// A run: the columns of its journal, and its state after any record. The data contain the changes of each record.
"use strict";

const MAX_WORKER_LANES = 200; // If workers have more, the chart has a lane for each slot.
const CHECKPOINT = 512; // Records from one stored state to the next.

const ATTEMPT_COUNTS = ["started", "succeeded", "failed", "timed_out", "interrupted", "repeated_calls", "returned_late"];
const STEP_COUNTS = ["completed", "failed", "reused"];
const COUNTS = ["recovered", ...ATTEMPT_COUNTS.map((name) => `attempt_${name}`), ...STEP_COUNTS.map((name) => `step_${name}`)];
const COUNT = Object.fromEntries(COUNTS.map((name, index) => [name, 16 + index])); // The first 16 count trials by stage.

const EFFECTS = {
  ...Object.fromEntries(COUNTS.slice(1).map((name) => [name, (counts) => { counts[COUNT[name]] += 1; }])),
  attempt_started: (counts, count_change) => { counts[COUNT.attempt_started] += 1; counts[COUNT.attempt_repeated_calls] += count_change; },
  trial_completed: (counts, count_change) => { counts[COUNT.recovered] += count_change; },
  trial_withdrawn: (counts, count_change) => { counts[COUNT.recovered] -= count_change; },
};

function runningSums(deltas) {
  let total = 0;
  return deltas.map((delta) => (total += delta));
}

// Index of the first entry of a sorted column, or of a part of it, for which a condition does not hold.
function countWhile(column, condition, low = 0, high = column.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (condition(column[middle])) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Index of the last entry of a sorted column that is not larger than a value; -1 if there is none.
const lastIndex = (column, value) => countWhile(column, (entry) => entry <= value) - 1;

class Run {
  constructor(data) {
    this.seq = 0;
    this.events = { t: [], type: [], trial: [], stage_change: [], count_change: [] };
    this.x = []; // Seconds of each event on the common axis of all sessions.
    this.base = []; // Where t = 0 of each session is on that axis.
    this.shards = []; // Name, first record and slots of each shard of a merged run, and of its own sessions; otherwise one entry.
    this.shardOf = []; // Session → index of its shard.
    this.checkpoints = [new Int32Array(16 + COUNTS.length)];
    this.spans = { trial: [], attempt: [], slot: [], session: [], start: [], duration: [], outcome: [], seq: [], end_seq: [], queue_time: [], backoff_time: [], details: [] };
    this.steps = { seq: [], span: [], number: [], parent: [], name: [], kind: [], outcome: [], completed_seq: [], end: [], duration: [], content: [] };
    this.stepsOf = new Map(); // Attempt → its steps, in the order in which they ended.
    this.judgeCalls = new Map(); // Attempt → the calls of judges: scorer, model, prompt, reminder and reply.
    this.stepNames = [];
    this.stepKinds = [];
    this.stepsOmitted = 0;
    this.workers = undefined; // The lanes of each worker, computed when they are needed; null: the chart has a lane for each slot.
    this.lanes = []; // The attempts in each slot, in order; the slots of one shard follow those of another.
    this.trials = { name: [], case: [], variant: [], repeat: [], fingerprint: [], stage: [], recovered: [], answer: [], latency: [], queue_time: [], backoff_time: [], run_time: [], scoring_time: [], reason: [], input: [], expected: [], metadata: [], output: [], scores: [], score_reasons: [], attempts: [] };
    this.numbers = new Map(); // Name → number of a trial.
    this.metadata = []; // Trial → its metadata, parsed when first needed.
    this.texts = []; // Trial → its text for searches, created when first needed.
    this.series = {};
    this.backoffs = new Map();
    this.errors = [];
    this.scores = []; // Scorer → running totals, with the record after which they hold.
    this.update(data);
  }

  update(data) {
    const { columns, labels, ...info } = data;
    this.info = info;
    if (labels) this.labels = labels; // Trial → its labels; an update has none.
    const { types, stages, outcomes, scorers, variants, limits, limit_changes: limitChanges, pace_changes: paceChanges, pauses, error_groups: errorGroups } = columns;
    Object.assign(this, { types, stages, outcomes, scorers, variants, limits, limitChanges, paceChanges, pauses, errorGroups });
    this.effects = types.map((type) => EFFECTS[type]);
    for (const error of columns.errors) this.errors.push(error);
    for (const backoff of columns.backoffs) this.backoffs.set(backoff[1], backoff);
    this.placeSessions(columns.sessions);
    this.addEvents(columns.events);
    this.addTrials(columns.trials);
    this.addSpans(columns.spans);
    this.addScores(columns.score_log);
    if (columns.steps) this.addSteps(columns.steps);
    if (columns.judge_calls) this.addJudgeCalls(columns.judge_calls);
    for (const [name, points] of Object.entries(columns.series)) this.addPoints((this.series[name] ||= { x: [], value: [] }), points);
    this.rateLimits = columns.rate_limits.map(({ label, ...points }, index) => {
      const name = `rate_limit_${index}`;
      this.addPoints((this.series[name] = { x: [], value: [] }), points);
      return { name, label };
    });
    this.seq = columns.seq;
    this.endX = this.sessionRanges.length ? Math.max(this.sessionRanges.at(-1)[1], 1e-3) : 1;
  }

  addPoints(series, points) {
    const sessions = runningSums(points.session), values = runningSums(points.value);
    runningSums(points.t).forEach((t, index) => {
      series.x.push(this.base[sessions[index] - 1] + t / 1e6);
      series.value.push(values[index]);
    });
  }

  // Sessions are on one axis; the time in which there was none is a narrow gap, however long it was. Only shards overlap.
  placeSessions(sessions) {
    this.sessions = sessions;
    this.sessionRanges = []; // Ranges of the axis with sessions, in order.
    let wallEnd = 0;
    const wallStart = ({ offset, start }) => offset + start;
    for (const session of [...sessions].sort((a, b) => wallStart(a) - wallStart(b) || a.number - b.number)) {
      const lastRange = this.sessionRanges.at(-1), start = wallStart(session), length = session.end - session.start;
      const gap = lastRange ? Math.min(start - wallEnd, Math.max(0.3, 0.02 * lastRange[1])) : 0, from = lastRange ? lastRange[1] + gap : 0;
      this.base[session.number - 1] ??= from - session.start;
      wallEnd = lastRange ? Math.max(wallEnd, start + length) : start + length;
      if (lastRange && gap < -1e-6) lastRange[1] = Math.max(lastRange[1], from + length);
      else this.sessionRanges.push([from, from + length]);
    }
    for (let index = this.shardOf.length; index < sessions.length; index++) {
      const name = sessions[index].shard;
      if (!index || this.shards.at(-1).name !== name) this.shards.push({ name, from: index ? sessions[index].seq : 1, lanes: [] });
      this.shardOf.push(this.shards.length - 1);
    }
  }

  addEvents(columns) {
    const { events } = this, t = runningSums(columns.t), trials = runningSums(columns.trial);
    let session = Math.max(0, this.sessionAt(this.seq + 1));
    const counts = this.countsAt(this.seq);
    for (let index = 0; index < t.length; index++) {
      const seq = this.x.length + 1;
      const shard = this.shardOf[session];
      while (session + 1 < this.sessions.length && this.sessions[session + 1].seq <= seq) session += 1;
      events.t.push(t[index]);
      events.trial.push(trials[index]);
      for (const name of ["type", "stage_change", "count_change"]) events[name].push(columns[name][index]);
      const x = this.sessions.length && this.sessions[session].seq <= seq ? this.base[session] + t[index] / 1e6 : 0;
      this.x.push(Math.max(x, this.x.length && shard === this.shardOf[session] ? this.x[this.x.length - 1] : 0));
      this.apply(counts, seq - 1);
      if (seq % CHECKPOINT === 0) this.checkpoints.push(counts.slice());
    }
  }

  addTrials(columns) {
    const { trials } = this, indexes = runningSums(columns.index);
    for (const name of Object.keys(trials)) {
      if (name === "scores" || name === "attempts") continue;
      indexes.forEach((trial, index) => { trials[name][trial] = columns[name]?.[index] ?? (name === "variant" ? 0 : null); });
    }
    columns.scores.forEach((values, scorer) => {
      const scores = (trials.scores[scorer] ||= []);
      indexes.forEach((trial, index) => { scores[trial] = values[index]; });
    });
    indexes.forEach((trial) => {
      this.numbers.set(trials.name[trial], trial);
      trials.attempts[trial] ||= [];
      delete this.metadata[trial];
      delete this.texts[trial];
    });
  }

  addSpans(columns) {
    const { spans } = this;
    const values = { ...columns, start: runningSums(columns.start), seq: runningSums(columns.seq), end_seq: runningSums(columns.end_seq) };
    runningSums(columns.index).forEach((span, index) => {
      const isNew = span >= spans.seq.length;
      for (const name of Object.keys(spans)) spans[name][span] = values[name][index];
      if (isNew) {
        (this.shards[this.shardOf[spans.session[span] - 1]].lanes[spans.slot[span]] ||= []).push(span);
        this.trials.attempts[spans.trial[span]].push(span);
      }
    });
    this.workers = undefined;
    this.lanes = [];
    for (const shard of this.shards) {
      shard.firstLane = this.lanes.length;
      for (let slot = 0; slot < shard.lanes.length; slot++) this.lanes.push((shard.lanes[slot] ||= []));
    }
  }

  // The lanes of the chart: those of the workers, or one for each slot.
  get drawnLanes() { return this.workerLanes()?.flatMap(({ lanes }) => lanes) ?? this.lanes; }

  // Name, first lane and lanes of each worker, one for each attempt that ran in it at the same time; null without workers, with
  // shards, or with too many lanes. Only the end of an attempt names its worker.
  workerLanes() {
    if (this.workers === undefined) this.workers = this.isMerged ? null : this.groupByWorker();
    return this.workers;
  }

  groupByWorker() {
    const groups = new Map(), { details } = this.spans;
    if (!details.some((fields) => fields?.worker)) return null;
    let count = 0;
    for (let span = 0; span < details.length; span++) {
      const worker = details[span]?.worker || "";
      if (!groups.has(worker)) groups.set(worker, []);
      const lanes = groups.get(worker), lane = lanes.find((candidate) => this.endOf(candidate.at(-1)) <= this.startOf(span));
      if (lane) lane.push(span);
      else if (++count > MAX_WORKER_LANES) return null;
      else lanes.push([span]);
    }
    const byName = new Intl.Collator("en", { numeric: true });
    const workersByName = [...groups].sort(([a], [b]) => (a && b ? byName.compare(a, b) : a ? -1 : 1));
    let firstLane = 0;
    return workersByName.map(([name, lanes]) => ({ name: name || "other", firstLane: (firstLane += lanes.length) - lanes.length, lanes }));
  }

  addSteps(columns) {
    Object.assign(this, { stepNames: columns.names, stepKinds: columns.kinds, stepsOmitted: columns.omitted });
    const values = { ...columns, seq: runningSums(columns.seq), span: runningSums(columns.span), end: runningSums(columns.end) };
    values.seq.forEach((_, index) => {
      for (const [name, column] of Object.entries(this.steps)) column.push(values[name][index]);
      const span = values.span[index];
      if (!this.stepsOf.has(span)) this.stepsOf.set(span, []);
      this.stepsOf.get(span).push(this.steps.seq.length - 1);
    });
  }

  addJudgeCalls(columns) {
    runningSums(columns.span).forEach((span, index) => {
      if (!this.judgeCalls.has(span)) this.judgeCalls.set(span, []);
      this.judgeCalls.get(span).push(columns.content[index]);
    });
  }

  addScores(columns) {
    runningSums(columns.seq).forEach((seq, index) => {
      const totals = (this.scores[columns.scorer[index]] ||= { seq: [], scored: [], numbers: [], total: [] });
      const lastTotal = totals.seq.length - 1, count = columns.count[index], value = columns.value[index];
      totals.seq.push(seq);
      totals.scored.push((lastTotal < 0 ? 0 : totals.scored[lastTotal]) + count);
      totals.numbers.push((lastTotal < 0 ? 0 : totals.numbers[lastTotal]) + (value === null ? 0 : count));
      totals.total.push((lastTotal < 0 ? 0 : totals.total[lastTotal]) + (value === null ? 0 : count * value));
    });
  }

  apply(counts, index) {
    const { stage_change, count_change, type } = this.events;
    if (stage_change[index]) {
      counts[stage_change[index] >> 4] -= 1;
      counts[stage_change[index] & 15] += 1;
    }
    const effect = this.effects[type[index]];
    if (effect) effect(counts, count_change[index]);
  }

  countsAt(seq) {
    const checkpoint = Math.floor(seq / CHECKPOINT), counts = this.checkpoints[checkpoint].slice();
    for (let index = checkpoint * CHECKPOINT; index < seq; index++) this.apply(counts, index);
    return counts;
  }

  // The state after a record, with the names of `evaljournal replay --at SEQ --json`.
  stateAt(seq) {
    const counts = this.countsAt(seq);
    const stage = Object.fromEntries(this.stages.map((name, index) => [name, counts[index]]));
    const { queued, running, scoring, unsettled, interrupted, backing_off, completed, failed, withdrawn } = stage;
    const openTrials = queued + running + scoring + unsettled + interrupted + backing_off;
    const limit = lastIndex(this.limits.map(([from]) => from), seq);
    const scores = {};
    this.scorerNames.forEach((name) => {
      const totals = this.scores[this.scorers.indexOf(name)], index = totals ? lastIndex(totals.seq, seq) : -1;
      if (index >= 0) scores[name] = { scored: totals.scored[index], numbers: totals.numbers[index], mean: totals.numbers[index] ? totals.total[index] / totals.numbers[index] : null };
    });
    return {
      seq,
      trials: {
        enqueued: openTrials + completed + failed, with_output: completed + scoring, completed, failed, recovered: counts[COUNT.recovered],
        open: openTrials, queued, running, scoring, unsettled, interrupted, backing_off, withdrawn,
      },
      attempts: Object.fromEntries(ATTEMPT_COUNTS.map((name) => [name, counts[COUNT[`attempt_${name}`]]])),
      steps: Object.fromEntries(STEP_COUNTS.map((name) => [name, counts[COUNT[`step_${name}`]]])),
      limit: limit < 0 ? null : this.limits[limit][1],
      scores,
    };
  }

  // The attempts in flight after a record.
  runningAt(seq) {
    const { spans } = this;
    return this.lanes.map((lane) => lane[countWhile(lane, (span) => spans.seq[span] <= seq) - 1])
      .filter((span) => span !== undefined && (!spans.end_seq[span] || spans.end_seq[span] > seq));
  }

  backoffsAt(seq) {
    return [...this.backoffs.values()].filter(([, from, to]) => from <= seq && (!to || to > seq)).sort((a, b) => a[3] - b[3]);
  }

  pausesAt(seq) { return this.pauses.filter((pause) => pause[0] <= seq && (!pause[7] || pause[7] > seq)); }

  // Start and end of a pause on the axis. It ends at its planned time, or earlier by a record or with its session; an open
  // circuit breaker is closed by a record only.
  pauseRange(pause) {
    const [, session, from, until, reason, , , endSeq] = pause, base = this.base[session - 1];
    const endTime = Math.min(PROBING.has(reason) ? Infinity : until / 1e6, Math.max(this.sessions[session - 1].end, from / 1e6));
    const isEnded = endSeq && !(this.sessions[session]?.seq <= endSeq); // Otherwise the pause ended with its session, or is open.
    return [base + from / 1e6, Math.min(base + endTime, isEnded ? this.x[endSeq - 1] : Infinity)];
  }

  sessionAt(seq) { return lastIndex(this.sessions.map((session) => session.seq), seq); }
  shardAt(seq) { return this.shardOf[Math.max(0, this.sessionAt(seq))] ?? 0; }
  get isMerged() { return this.shards.some(({ name }) => name); }

  // "shard 1/3"; the sessions after the merge have resumed the run.
  shardName(shard) { return this.isMerged ? (this.shards[shard].name ? `shard ${this.shards[shard].name}` : "resumed") : ""; }

  // The first lane of a session's shard, and the first lane after the shard.
  lanesOf(session) {
    const { firstLane, lanes } = this.shards[this.shardOf[session - 1]];
    return [firstLane, firstLane + lanes.length];
  }

  // The last record of a shard at a time.
  seqAt(x, shard) {
    const firstSeq = this.shards[shard]?.from ?? 1, nextSeq = this.shards[shard + 1]?.from ?? this.seq + 1;
    return Math.max(firstSeq, countWhile(this.x, (entry) => entry <= x, firstSeq - 1, nextSeq - 1));
  }

  // Start and end of an attempt on the axis; one in flight lasts until the last record of its session.
  startOf(span) { return this.base[this.spans.session[span] - 1] + this.spans.start[span] / 1e6; }
  endOf(span) { return this.spans.outcome[span] ? this.startOf(span) + this.spans.duration[span] / 1e6 : this.base[this.spans.session[span] - 1] + this.sessions[this.spans.session[span] - 1].end; }
  outcomeOf(span) { return this.outcomes[this.spans.outcome[span]]; }

  // All scorers in the order of the definition; `scorers` has them in the order of their first scores.
  get scorerNames() { return Object.keys(this.info.summary.scores); }
  stageOf(trial) { return this.stages[this.trials.stage[trial]]; }
  scoreOf(scorer, trial) { return this.trials.scores[scorer]?.[trial] ?? null; }

  // The scorers whose scores of a trial fail.
  failingScorers(trial) { return this.scorers.filter((_, scorer) => this.trials.scores[scorer]?.[trial] === false); }
  scorerError(scorer, trial) { return this.trials.score_reasons[trial]?.[scorer]?.error; }

  // Whether the answer of a trial is "declined" or "truncated", excluded or not.
  hasAnswer(trial, outcome) { return Boolean(this.trials.answer[trial]?.toString().startsWith(outcome)); }

  caseOf(trial) { return this.trials.case[trial] || this.trials.name[trial]; }
  variantOf(trial) { return this.variants[this.trials.variant[trial]]; }
  get hasVariants() { return this.variants.length > 1; }

  // All trials of the same case with the same content, by variant and repeat.
  trialsOfCase(trial) {
    const { trials } = this, name = this.caseOf(trial);
    return [...trials.name.keys()]
      .filter((other) => trials.fingerprint[other] === trials.fingerprint[trial] && this.caseOf(other) === name && this.stageOf(other) !== "withdrawn")
      .sort((a, b) => trials.variant[a] - trials.variant[b] || trials.repeat[a] - trials.repeat[b]);
  }

  // The text of a trial that is searched, in lower case.
  searchText(trial) {
    const { trials } = this, error = this.errorOf(trial);
    return (this.texts[trial] ??= [
      trials.name[trial], this.caseOf(trial), ...["input", "expected", "output", "metadata"].map((name) => rawText(trials[name][trial])), error ? `${error[1]} ${error[2]}` : "",
      ...this.scorers.map((_, scorer) => this.scoreOf(scorer, trial)).filter((value) => typeof value === "string"),
      ...Object.values(trials.score_reasons[trial] || {}).map((reason) => reason.error ?? rawText(reason)), ...this.judgeCallsOf(trial).map(({ reply }) => rawText(reply)),
    ].join("\n").toLowerCase());
  }

  // The calls of judges for the outputs of a trial, in order.
  judgeCallsOf(trial) { return this.trials.attempts[trial].flatMap((span) => this.judgeCalls.get(span) || []); }

  // The last error of a trial as [category, type, message, traceback, group], or null.
  errorOf(trial) {
    const span = this.trials.attempts[trial].findLast((attempt) => this.spans.details[attempt]?.error !== undefined);
    return span === undefined ? null : this.errors[this.spans.details[span].error];
  }

  // A trial's metadata as an object; empty if it has none, or if they are truncated.
  metadataOf(trial) { return (this.metadata[trial] ||= parseObject(this.trials.metadata[trial])); }
}

function parseObject(value) {
  if (!Array.isArray(value)) return {};
  try {
    const object = JSON.parse(value[0]);
    return object !== null && typeof object === "object" && !Array.isArray(object) ? object : {};
  } catch {
    return {};
  }
}
