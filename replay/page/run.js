// A run: the columns that the journal was put into, and the state after any of its records.
// What each record changed is in the data; here it is only added up.
"use strict";

const EVERY = 512; // Records from one kept sum to the next.

const COUNTED = ["recovered", "started", "succeeded", "failed", "timed_out", "interrupted", "repeated_calls", "returned_late"];
const AT = Object.fromEntries(COUNTED.map((name, at) => [name, 16 + at]));

const EFFECTS = {
  attempt_started: (sums, flag) => { sums[AT.started] += 1; sums[AT.repeated_calls] += flag; },
  attempt_succeeded: (sums) => { sums[AT.succeeded] += 1; },
  attempt_failed: (sums) => { sums[AT.failed] += 1; },
  attempt_timed_out: (sums) => { sums[AT.timed_out] += 1; },
  attempt_interrupted: (sums) => { sums[AT.interrupted] += 1; },
  attempt_returned_late: (sums) => { sums[AT.returned_late] += 1; },
  trial_completed: (sums, flag) => { sums[AT.recovered] += flag; },
  trial_withdrawn: (sums, flag) => { sums[AT.recovered] -= flag; },
};

function summed(deltas) {
  let total = 0;
  return deltas.map((delta) => (total += delta));
}

// Where the last entry stands that is not larger; -1 if all are.
function lastAt(column, wanted, begin = 0, end = column.length) {
  let low = begin, high = end;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] <= wanted) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

class Run {
  constructor(told) {
    this.seq = 0;
    this.events = { t: [], type: [], trial: [], move: [], flag: [] };
    this.x = []; // Seconds of each event on the one axis of all sessions.
    this.base = []; // Where the seconds of each session begin on it.
    this.sums = [new Int32Array(16 + COUNTED.length)];
    this.spans = { trial: [], attempt: [], slot: [], session: [], start: [], duration: [], ending: [], seq: [], end_seq: [], waited: [], backed_off: [], details: [] };
    this.lanes = []; // Slot → its attempts, in order.
    this.trials = { name: [], case: [], stage: [], recovered: [], elapsed: [], waited: [], backed_off: [], served: [], scored: [], cause: [], input: [], expected: [], metadata: [], output: [], scores: [], reasons: [], attempts: [] };
    this.numbers = new Map(); // Name → number of a trial.
    this.steps = {};
    this.waits = new Map();
    this.errors = [];
    this.scores = []; // Scorer → what it had said after each time that it said something.
    this.take(told);
  }

  get end() {
    const last = this.sessions.length - 1;
    return last < 0 ? 1 : Math.max(this.base[last] + this.sessions[last].end, 1e-3);
  }

  take(told) {
    const { columns, ...facts } = told;
    this.facts = facts;
    this.types = columns.types;
    this.effects = this.types.map((type) => EFFECTS[type]);
    this.stages = columns.stages;
    this.endings = columns.endings;
    this.scorers = columns.scorers;
    this.limits = columns.limits;
    this.marks = columns.limit_changes;
    this.paces = columns.pace_changes;
    this.pauses = columns.pauses;
    this.groups = columns.error_groups;
    for (const error of columns.errors) this.errors.push(error);
    for (const wait of columns.backoffs) this.waits.set(wait[1], wait);
    this.placeSessions(columns.sessions);
    this.takeEvents(columns.events);
    this.takeTrials(columns.trials);
    this.takeSpans(columns.spans);
    this.takeScores(columns.score_log);
    for (const [name, steps] of Object.entries(columns.series)) {
      const known = (this.steps[name] ||= { x: [], value: [] });
      const sessions = summed(steps.session), values = summed(steps.value);
      summed(steps.t).forEach((t, at) => {
        known.x.push(this.base[sessions[at] - 1] + t / 1e6);
        known.value.push(values[at]);
      });
    }
    this.seq = columns.seq;
    this.endX = this.end;
  }

  // Sessions stand one behind the other; the time between two, be it days, is a narrow gap.
  placeSessions(sessions) {
    this.sessions = sessions;
    for (let at = this.base.length; at < sessions.length; at++) {
      const session = sessions[at];
      if (!at) {
        this.base.push(-session.start);
        continue;
      }
      const before = sessions[at - 1], ended = this.base[at - 1] + before.end;
      const apart = session.offset + session.start - before.offset - before.end;
      this.base.push(ended + Math.max(0, Math.min(apart, Math.max(0.3, 0.02 * ended))) - session.start);
    }
  }

  takeEvents(columns) {
    const { events } = this, t = summed(columns.t), trials = summed(columns.trial);
    let session = Math.max(0, lastAt(this.sessions.map((each) => each.seq), this.seq + 1));
    let sums = this.counts(this.seq);
    for (let at = 0; at < t.length; at++) {
      const seq = this.x.length + 1;
      while (session + 1 < this.sessions.length && this.sessions[session + 1].seq <= seq) session += 1;
      events.t.push(t[at]);
      events.type.push(columns.type[at]);
      events.trial.push(trials[at]);
      events.move.push(columns.move[at]);
      events.flag.push(columns.flag[at]);
      const x = this.sessions.length && this.sessions[session].seq <= seq ? this.base[session] + t[at] / 1e6 : 0;
      this.x.push(Math.max(x, this.x.length ? this.x[this.x.length - 1] : 0));
      this.add(sums, seq - 1);
      if (seq % EVERY === 0) this.sums.push(sums.slice());
    }
  }

  takeTrials(columns) {
    const { trials } = this;
    const places = summed(columns.index);
    for (const name of Object.keys(trials)) {
      if (name === "scores" || name === "attempts") continue;
      places.forEach((place, at) => { trials[name][place] = columns[name][at]; });
    }
    columns.scores.forEach((values, scorer) => {
      const known = (trials.scores[scorer] ||= []);
      places.forEach((place, at) => { known[place] = values[at]; });
    });
    places.forEach((place) => {
      this.numbers.set(trials.name[place], place);
      trials.attempts[place] ||= [];
    });
  }

  takeSpans(columns) {
    const { spans } = this;
    const places = summed(columns.index);
    const whole = { ...columns, start: summed(columns.start), seq: summed(columns.seq), end_seq: summed(columns.end_seq) };
    places.forEach((place, at) => {
      const isNew = place >= spans.seq.length;
      for (const name of Object.keys(spans)) spans[name][place] = whole[name][at];
      if (isNew) {
        (this.lanes[spans.slot[place]] ||= []).push(place);
        this.trials.attempts[spans.trial[place]].push(place);
      }
    });
    for (let slot = 0; slot < this.lanes.length; slot++) this.lanes[slot] ||= [];
  }

  takeScores(columns) {
    summed(columns.seq).forEach((seq, at) => {
      const said = (this.scores[columns.scorer[at]] ||= { seq: [], scored: [], numbers: [], total: [] });
      const last = said.seq.length - 1, times = columns.count[at], value = columns.value[at];
      said.seq.push(seq);
      said.scored.push((last < 0 ? 0 : said.scored[last]) + times);
      said.numbers.push((last < 0 ? 0 : said.numbers[last]) + (value === null ? 0 : times));
      said.total.push((last < 0 ? 0 : said.total[last]) + (value === null ? 0 : times * value));
    });
  }

  add(sums, at) {
    const { move, flag, type } = this.events;
    if (move[at]) {
      sums[move[at] >> 4] -= 1;
      sums[move[at] & 15] += 1;
    }
    const effect = this.effects[type[at]];
    if (effect) effect(sums, flag[at]);
  }

  counts(seq) {
    const kept = Math.floor(seq / EVERY), sums = this.sums[kept].slice();
    for (let at = kept * EVERY; at < seq; at++) this.add(sums, at);
    return sums;
  }

  // The state after a record, under the names that `evaljournal replay --at SEQ --json` has for it.
  stateAt(seq) {
    const sums = this.counts(seq);
    const stage = Object.fromEntries(this.stages.map((name, at) => [name, sums[at]]));
    let enqueued = 0;
    this.stages.forEach((name, at) => { if (name !== "absent" && name !== "withdrawn") enqueued += sums[at]; });
    const limit = lastAt(this.limits.map((each) => each[0]), seq);
    const scores = {};
    this.scores.forEach((said, scorer) => {
      const at = lastAt(said.seq, seq);
      if (at >= 0) scores[this.scorers[scorer]] = { scored: said.scored[at], numbers: said.numbers[at], mean: said.numbers[at] ? said.total[at] / said.numbers[at] : null };
    });
    return {
      seq,
      trials: {
        enqueued,
        answered: stage.completed + stage.answered,
        completed: stage.completed,
        failed: stage.failed,
        recovered: sums[AT.recovered],
        open: enqueued - stage.completed - stage.failed,
        queued: stage.queued,
        running: stage.running,
        being_scored: stage.answered,
        unsettled: stage.unsettled,
        interrupted: stage.interrupted,
        backing_off: stage.backing_off,
        withdrawn: stage.withdrawn,
      },
      attempts: Object.fromEntries(COUNTED.slice(1).map((name) => [name, sums[AT[name]]])),
      limit: limit < 0 ? null : this.limits[limit][1],
      scores,
    };
  }

  // The attempts that hold a slot after a record.
  runningAt(seq) {
    const { spans } = this, found = [];
    for (const lane of this.lanes) {
      let low = 0, high = lane.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (spans.seq[lane[middle]] <= seq) low = middle + 1;
        else high = middle;
      }
      const span = low ? lane[low - 1] : -1;
      if (span >= 0 && (!spans.end_seq[span] || spans.end_seq[span] > seq)) found.push(span);
    }
    return found;
  }

  backingOffAt(seq) {
    const found = [];
    for (const wait of this.waits.values()) {
      if (wait[1] <= seq && (!wait[2] || wait[2] > seq)) found.push(wait);
    }
    return found.sort((a, b) => a[3] - b[3]);
  }

  pausesAt(seq) {
    return this.pauses.filter((pause) => pause[0] <= seq && (!pause[7] || pause[7] > seq));
  }

  // When a pause began and ended on the axis: when its time was over, or sooner by a record or with its session. An open
  // circuit breaker is closed by a record only.
  reachOf(pause) {
    const [, session, from, until, cause, , , over] = pause, base = this.base[session - 1];
    const ended = Math.min(PROBING.has(cause) ? Infinity : until / 1e6, Math.max(this.sessions[session - 1].end, from / 1e6));
    return [base + from / 1e6, Math.min(base + ended, over ? this.x[over - 1] : Infinity)];
  }

  sessionAt(seq) {
    return lastAt(this.sessions.map((each) => each.seq), seq);
  }

  seqAt(x) {
    return Math.max(1, lastAt(this.x, x) + 1);
  }

  // When an attempt began and ended on the axis; one that is open lasts until the last moment that is known of.
  startOf(span) {
    return this.base[this.spans.session[span] - 1] + this.spans.start[span] / 1e6;
  }

  endOf(span) {
    return this.spans.ending[span] ? this.startOf(span) + this.spans.duration[span] / 1e6 : this.endX;
  }

  endingOf(span) {
    return this.endings[this.spans.ending[span]];
  }

  stageOf(trial) {
    return this.stages[this.trials.stage[trial]];
  }

  isWrong(trial) {
    return this.trials.scores.some((values) => values[trial] === false);
  }

  errorOf(trial) {
    const { attempts } = this.trials;
    for (let at = attempts[trial].length - 1; at >= 0; at--) {
      const details = this.spans.details[attempts[trial][at]];
      if (details && details.error !== undefined) return this.errors[details.error];
    }
    return null;
  }
}
