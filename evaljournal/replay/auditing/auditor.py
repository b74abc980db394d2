"""Check whether a run followed its own rules.

`journal.verify` checks that a journal is undamaged. An audit checks whether its events are possible: slots, delays, times,
totals, and every start against the recorded limits, pauses and paces; retries and budgets are recomputed, the decisions of
policies are not. A finding means that a record breaks a rule, not that it is damaged. The retry rules of a session belong to
the runner; the caller passes a function that rebuilds them from its settings.
"""

from collections.abc import Iterable, Sequence
from typing import Final, get_args

from evaljournal.journal import Record, events
from evaljournal.journal.errors import IllegalEvent
from evaljournal.journal.fact import non_default_fields
from evaljournal.journal.format.codec import event_type
from evaljournal.journal.format.lifecycle import Lifecycle
from evaljournal.replay.auditing.findings import Audit, Finding, Findings, RetryDecision, RetryRules, RulesFactory, TrialTotals
from evaljournal.replay.auditing.rules import (
    TIME_TOLERANCE,
    LimitRules,
    StartRules,
    StepRules,
    batch_problems,
    end_problems,
    limit_problems,
    start_problems,
    stop_problems,
)
from evaljournal.replay.render.summary import version_notes
from evaljournal.replay.state.handlers import handlers
from evaljournal.replay.state.pauses import NO_RESPONSE
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.totals import REPLAYED
from evaljournal.replay.text import plural


def audit(records: Iterable[Record], *, rules: RulesFactory | None = None) -> Audit:
    """Audit the records of a run, starting with the first; without `rules`, retries are not recomputed."""
    auditor = Auditor(rules)
    for record in records:
        auditor.apply(record)
    return auditor.result()


class Auditor:
    def __init__(
        self, rules: RulesFactory | None = None, state: RunState | None = None, lifecycle: Lifecycle | None = None
    ) -> None:
        """Keep its own state and lifecycle, or use the caller's.

        The caller applies each record to `lifecycle` before `apply`, and to `state` after it.
        """
        self._rules_factory = rules
        self._owns_state = state is None
        self._owns_lifecycle = lifecycle is None
        self._lifecycle = Lifecycle() if lifecycle is None else lifecycle
        self.state = RunState() if state is None else state
        self._findings = Findings()
        self._add, self._add_all = self._findings.add, self._findings.add_all
        self._before_run = 1, 0, 0
        """The first record of the sessions that continue each other, and the findings kept and counted before it."""
        self._is_over = False
        """Whether a record was invalid; the records after it are not checked."""
        self._open_trials: int | None = None
        """Number of open trials at that record."""

        self._t = 0.0
        """`t` of the previous record in this session."""
        self._t_before_notes = 0.0
        """`t` of the previous record in this session that is not a note."""
        self._hash = ""
        """Hash of the last record that is not a file event."""
        self._slots: dict[int, str] = {}
        self._starts = StartRules(self.state)
        self._limits = LimitRules(self.state, self._findings.add_at)
        self._hung_attempts = 0
        """Attempts in flight when an endpoint stopped responding, in this session."""
        self._highest_limit = 0
        """Highest concurrency limit of attempts in this session."""
        self._calls: dict[tuple[str, str], int] = {}
        """Trial that is not completed and scorer → number of the last call in this session."""
        self._output_times: dict[str, float] = {}
        """Trial that waits for scores → `t` of its output in this session."""
        self._steps = StepRules(self.state)
        self._retry_rules: RetryRules | None = None
        """The retry rules of the session; None if retries are not recomputed."""
        self._probes: set[str] = set()
        """Trials whose last attempt in this session was a probe."""
        self._decisions_reproduced = 0

    def apply(self, record: Record) -> None:
        if self._is_over:
            return
        is_file_event = record.event.__class__ in _FILE_EVENTS
        try:
            if not is_file_event:
                if self._owns_lifecycle:
                    self._lifecycle.advance(record.event)
                self._check(record)
            if self._owns_state:
                self.state.apply(record)
        except IllegalEvent as exc:
            self._stop(record, str(exc))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
            self._stop(record, f"invalid record ({type(exc).__name__}: {exc})")
        if not is_file_event:
            self._hash = record.h

    def result(self) -> Audit:
        self._limits.flush()
        state = self.state
        totals = TrialTotals(
            enqueued=len(state.trials),
            completed=state.completed,
            failed=state.failed,
            withdrawn=state.totals.stages["withdrawn"],
            open=self._lifecycle.open_trials if self._open_trials is None else self._open_trials,
        )

        accounted_trials = totals.completed + totals.failed + totals.withdrawn + totals.open
        findings, count = list(self._findings.findings), self._findings.count
        if not self._is_over and totals.enqueued != accounted_trials:
            count += 1
            message = f"{plural(totals.enqueued, 'trial')} enqueued, but {accounted_trials:,} accounted for"
            findings.append(Finding(state.seq, "totals", message))

        return Audit(
            findings=tuple(findings),
            findings_omitted=count - len(findings),
            notes=(*self._findings.notes, *version_notes(state)),
            totals=totals,
            decisions_reproduced=self._decisions_reproduced,
            budget={} if state.budget is None else state.budget.use(),
        )

    def _on_step_completed(self, event: events.StepEvent, record: Record) -> None:
        self._add_all(record, "steps", self._steps.end(event))
        if not isinstance(event, events.StepReused) and event.need is not None:
            self._limits.step(event, record)

    _on_step_failed = _on_step_reused = _on_step_replayed = _on_step_completed

    def _on_rate_limit_seen(self, event: events.RateLimitSeen, record: Record) -> None:
        self._limits.see(event, record)

    def _on_noted(self, event: events.Noted, record: Record) -> None:
        self._limits.note(event, record)

    def _stop(self, record: Record, message: str) -> None:
        self._add(record, "lifecycle", message)
        self._findings.note(f"nothing after record {record.seq:,} was checked")
        self._is_over, self._open_trials = True, self._lifecycle.open_trials

    def _check(self, record: Record) -> None:
        event = record.event
        if isinstance(event, events.SessionStarted):
            self._begin_session(event, record)
        elif isinstance(event, events.JournalSalvaged):
            self._note_gaps(event, record)
        elif self._lifecycle.stage == "in_session" or isinstance(event, events.RunStopped | events.RunFinished):
            if record.t < self._t:
                message = f"its time, {record.t:.6f} s, is earlier than the previous record's, {self._t:.6f} s"
                self._add(record, "time", message)
            check = _CHECKS.get(event.__class__)
            if check is not None:
                check(self, event, record)
            self._t = max(self._t, record.t)
            if event.__class__ is not events.Noted:
                self._t_before_notes = self._t

    def _begin_session(self, event: events.SessionStarted, record: Record) -> None:
        self._t, self._t_before_notes, self._highest_limit, self._hung_attempts = record.t, record.t, 0, 0
        is_independent = self.state.sessions.is_independent(event.session)
        if is_independent and self.state.sessions.merged:  # What was salvaged before it was merged is one shard.
            self._before_run = record.seq, len(self._findings.findings), self._findings.count
        self._starts = StartRules(self.state)
        self._limits.begin_session(record, is_independent=is_independent)
        for per_session in (self._slots, self._calls, self._output_times, self._probes):
            per_session.clear()
        self._retry_rules = self._rules_of(event)

    def _rules_of(self, event: events.SessionStarted) -> RetryRules | None:
        run_started = self.state.started
        if self._rules_factory is None or run_started is None:
            return None
        settings = {**self.state.settings, **(event.settings if isinstance(event.settings, dict) else {})}
        rules = self._rules_factory(run_started, settings)
        if isinstance(rules, str):
            self._findings.note(f"retries of session {event.session} were not recomputed: {rules}")
            return None
        return rules

    def _note_gaps(self, event: events.JournalSalvaged, record: Record) -> None:
        """Remove the findings about salvaged records: those of a shard that was salvaged before it was merged, or all."""
        self._limits.flush()
        first_seq, length, count = self._before_run
        if event.kept > record.seq - first_seq + 1:  # More than the shard has: the merged run was salvaged.
            first_seq, length, count = 1, 0, 0
        self._findings.truncate(length, count)
        gaps = "were salvaged from a damaged journal, with gaps: only their order was checked"
        self._findings.note(f"records {first_seq:,} to {record.seq:,} {gaps}")

    def _check_score(self, event: events.TrialScored | events.ScoringFailed, record: Record) -> None:
        call_id = event.trial, event.scorer.partition(".")[0]
        if call_id in self._starts:
            self._check_call_end(call_id, event.elapsed, record)
        else:
            self._check_unstarted(event, record)

    def _check_unstarted(
        self, event: events.TrialScored | events.ScoringFailed | events.ScorerCallFailed, record: Record
    ) -> None:
        """Check the end of a call without a start record."""
        output_at = self._output_times.get(event.trial)
        origin = "the session started" if output_at is None else "the output"
        self._check_elapsed(record, event.elapsed, 0.0, record.t - (output_at or 0.0), origin)

    _on_trial_scored = _on_scoring_failed = _check_score

    def _on_scorer_call_started(self, event: events.ScorerCallStarted, record: Record) -> None:
        call_id = event.trial, event.scorer
        subject = f"call of {event.scorer!r} for {event.trial!r}"
        if call_id in self._starts:
            self._add(record, "calls", f"{subject} starts while call {self._calls[call_id]} is in flight")
            self._starts.end(call_id)
        expected = self._calls.get(call_id, 0) + 1
        if event.call != expected:
            self._add(record, "calls", f"{subject}: expected call {expected}, got call {event.call}")
        self._calls[call_id] = event.call

        if event.batch:
            self._starts.add(call_id)
            self._check_line(event, record)
            return

        backoff_end = self.state.scoring.delayed.get(call_id, 0.0)
        if record.t < backoff_end - TIME_TOLERANCE:
            self._add(record, "delay", f"{subject} starts at {record.t:.6f} s, before its backoff ends at {backoff_end:.6f} s")
        for check, message in self._starts.start(call_id, subject, event, record):
            self._add(record, check, message)
        if event.need is not None:
            self._limits.start(event, record)

    def _on_scorer_call_failed(self, event: events.ScorerCallFailed, record: Record) -> None:
        call_id = event.trial, event.scorer
        if event.call == 1 and call_id not in self._starts and call_id not in self._calls:
            self._calls[call_id] = 1  # The first call of a plain function has no start record.
            self._check_unstarted(event, record)
            return
        if call_id not in self._starts or event.call != self._calls[call_id]:
            message = f"call {event.call} of {event.scorer!r} for {event.trial!r} fails, but is not in flight"
            self._add(record, "calls", message)
            self._starts.end(call_id)
            return
        self._check_call_end(call_id, event.elapsed, record)

    def _check_call_end(self, call_id: tuple[str, str], elapsed: float, record: Record) -> None:
        self._starts.end(call_id)
        if self.state.batches.lines.is_in_use(*call_id):
            self._check_elapsed(record, elapsed, 0.0, 0.0, "the line of a batch was read")
            return
        start = self.state.scoring.open[call_id].start
        self._check_elapsed(record, elapsed, self._t_before_notes - start, record.t - start, "the call started")

    def _on_trial_completed(self, event: events.TrialCompleted, _: Record) -> None:
        self._output_times.pop(event.trial, None)
        self._limits.end(event.trial)
        if self._calls and self.state.started is not None:
            for scorer in self.state.started.scorers:
                self._calls.pop((event.trial, scorer), None)

    def _on_attempt_interrupted(self, event: events.AttemptInterrupted, record: Record) -> None:
        if event.reason not in {"process_died", "forked"}:  # These belong to an earlier session.
            self._check_end(event, record)

    def _check_attempt_end(self, event: events.AttemptEnd, record: Record) -> None:
        self._add_all(record, "budget", end_problems(self.state, event) if self.state.budget is not None else ())
        self._check_end(event, record)

    _on_attempt_succeeded = _on_attempt_failed = _on_attempt_timed_out = _check_attempt_end

    def _on_attempt_started(self, event: events.AttemptStarted, record: Record) -> None:
        self._steps.clear(event.trial)
        if event.batch:
            self._probes.discard(event.trial)
            self._check_line(event, record)
        else:
            self._check_start(event, record)

    def _check_start(self, event: events.AttemptStarted, record: Record) -> None:
        state = self.state
        trial = state.trials[event.trial]
        if trial.stage == "interrupted" and trial.ended_with_worker:
            self._add(record, "retry", f"{event.trial!r} starts, although no retry was recorded after its worker ended")
        holder = self._slots.get(event.slot)
        if holder is not None:
            self._add(record, "slots", f"{event.trial!r} starts in slot {event.slot}, which {holder!r} still holds")
        self._slots[event.slot] = event.trial

        # Not `early`: earlier versions did not stop after two trials.
        if state.sessions.errors.repeated_errors[""].stops_run(state.settings, early=False):
            self._add(record, "stop", f"{event.trial!r} starts, although the first trials ended with the same error")

        has_budget = state.budget is not None and state.budget.limits and event.key != REPLAYED
        if has_budget or event.reserved is not None:
            self._check_budget(record, list(start_problems(state, event)))
        if state.steps.open or event.reuses or event.spent:
            self._add_all(record, "steps", self._steps.start(event))

        (self._probes.add if event.probe else self._probes.discard)(event.trial)
        for check, message in self._starts.start(event.trial, repr(event.trial), event, record):
            self._add(record, check, message)
        if event.need is not None:
            self._limits.start(event, record)

        if event.key in state.policy.limits and event.slot >= max(self._highest_limit + self._hung_attempts, len(self._slots)):
            message = f"{event.trial!r} starts in slot {event.slot}, but there were never more than {self._highest_limit} slots"
            self._add(record, "slots", message)
        backoff_end = state.trials.backing_off.get(event.trial, 0.0)
        if record.t < backoff_end - TIME_TOLERANCE:
            message = f"{event.trial!r} starts at {record.t:.6f} s, before its backoff ends at {backoff_end:.6f} s"
            self._add(record, "delay", message)

    def _check_line(self, event: events.AttemptStarted | events.ScorerCallStarted, record: Record) -> None:
        """Check an attempt or a call that uses a line of a batch; it calls nothing, so no limit applies to it."""
        if event.need is not None or event.probe or (isinstance(event, events.AttemptStarted) and event.reserved is not None):
            message = f"{event.trial!r} uses line {event.line} of batch {event.batch}, but has a need, a reserve or is a probe"
            self._add(record, "batches", message)

    def _check_batch(self, event: events.BatchPrepared | events.BatchCollected, record: Record) -> None:
        for check, message in batch_problems(self.state, event):
            self._add(record, check, message)

    _on_batch_prepared = _on_batch_collected = _check_batch

    def _check_budget(self, record: Record, problems: Sequence[str]) -> None:
        """Add the problems of a budget decision; if there are none, count the decision as reproduced."""
        self._add_all(record, "budget", problems)
        self._decisions_reproduced += not problems

    def _check_end(self, event: events.AttemptEnd, record: Record) -> None:
        attempt = self.state.trials.running[event.trial]
        self._starts.end(event.trial)
        if self._slots.get(attempt.slot) == event.trial:
            del self._slots[attempt.slot]
        if isinstance(event, events.AttemptSucceeded):
            self._output_times[event.trial] = record.t
        if event.elapsed is None:
            return

        if self.state.batches.lines.is_in_use(event.trial):
            self._check_elapsed(record, event.elapsed, 0.0, 0.0, "the line of a batch was read")
            return

        # `elapsed` is measured when the attempt returns and recorded immediately. Only notes may come between: an exception's
        # text and an output's conversion to JSON are user code.
        low, high = self._t_before_notes - attempt.start, record.t - attempt.start
        self._check_elapsed(record, event.elapsed, low, high, "the attempt started")

        if isinstance(event, events.AttemptTimedOut):
            timeout = self._steps.timeout(event.trial, self.state.settings.get("timeout", event.timeout))
            if event.elapsed < event.timeout - TIME_TOLERANCE:
                self._add(record, "elapsed", f"timed out after {event.elapsed:g} s, before its timeout of {event.timeout:g} s")
            if timeout != event.timeout:
                self._add(record, "elapsed", f"its timeout is {event.timeout:g} s, but the settings have timeout={timeout!r}")

    def _check_elapsed(self, record: Record, elapsed: float, low: float, high: float, origin: str) -> None:
        if not low - TIME_TOLERANCE <= elapsed <= high + TIME_TOLERANCE:
            message = f"elapsed is {elapsed:.6f} s, but {max(low, 0):.6f} to {high:.6f} s have passed since {origin}"
            self._add(record, "elapsed", message)

    def _check_policy(self, event: events.PolicyEvent, record: Record) -> None:
        state = self.state
        if isinstance(event, events.LimitChanged):
            limits = {**state.policy.limits, event.key: event.after}
            attempt_limits = (limit for key, limit in limits.items() if not key.startswith(events.SCORER_PREFIX))
            self._highest_limit = max(self._highest_limit, sum(attempt_limits))
            self._add_all(record, "limit", limit_problems(state, event))
        elif isinstance(event, events.IntakeResumed) and event.key not in state.policy.pauses:
            self._add(record, "intake", "it ends a pause, but starts were not paused")
        elif isinstance(event, events.IntakePaused) and event.reason == NO_RESPONSE:
            self._hung_attempts = len(self._slots)
        self._starts.change(event)

    _on_limit_changed = _on_pace_changed = _on_intake_paused = _on_intake_resumed = _check_policy

    def _on_retry_scheduled(self, event: RetryDecision, record: Record) -> None:
        """Recompute the decision to retry a trial or to let it fail."""
        rules, trial = self._retry_rules, self.state.trials[event.trial]
        if event.trial in self.state.batches.uncalled_trials and isinstance(event, events.TrialFailed):
            self._add(record, "retry", f"{event.trial!r} fails, but its last attempt used a line of a batch and called nothing")
            return
        if rules is None:
            return

        over_limit = self.state.is_over_budget(event.trial)
        expected = rules.settle(event, trial, probe=event.trial in self._probes, over_limit=over_limit)
        if expected == event:
            self._decisions_reproduced += 1
            return

        message = f"the retry rules decide {_event_text(expected)}, but the record is {_event_text(event)}"
        message = f"after attempt {trial.attempts} of {event.trial!r} {message}"
        if rules.caveat:
            self._findings.note(f"record {record.seq:,}: {message}; but {rules.caveat}")
        else:
            self._add(record, "retry", message)

    _on_trial_failed = _on_retry_scheduled

    def _check_end_of_run(self, event: events.RunStopped | events.RunFinished, record: Record) -> None:
        if isinstance(event, events.RunFinished):
            self._check_totals(event, record)
            for number in self.state.batches.lines.open:
                self._add(record, "batches", f"it finishes the run, but batch {number} has not ended")
        elif event.reason == "batches" and not self.state.batches.lines.open:
            self._add(record, "stop", "it stops the run because of batches, but none is open")
        elif event.reason == "budget":
            self._check_budget(record, list(stop_problems(self.state, event)))
        elif event.reason == "same_error":
            if self.state.sessions.has_same_error:
                self._decisions_reproduced += 1
            else:
                self._add(record, "stop", "it stops the run for the same error, but the first trials did not end with one")

    _on_run_stopped = _on_run_finished = _check_end_of_run

    def _check_totals(self, event: events.RunFinished, record: Record) -> None:
        state = self.state
        counts = {"completed": state.completed, "failed": state.failed, "withdrawn": state.totals.stages["withdrawn"]}
        for name, count in counts.items():
            if getattr(event, name) != count:
                self._add(record, "totals", f"it has {getattr(event, name):,} {name}, but a recount gives {count:,}")
        if event.elapsed is not None and abs(event.elapsed - state.elapsed) > TIME_TOLERANCE:
            self._add(record, "totals", f"it has {event.elapsed} s, but the sessions took {state.elapsed} s")
        if event.head not in ("", self._hash):
            self._add(record, "totals", f"its head is {event.head!r}, but the head before it is {self._hash!r}")


def _event_text(event: RetryDecision) -> str:
    return " ".join([event_type(event), *(f"{name}={value!r}" for name, value in non_default_fields(event).items())])


_FILE_EVENTS: Final = frozenset(get_args(events.FileEvent))
_CHECKS: Final = handlers(Auditor)
