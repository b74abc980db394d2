"""The trials of a run and their attempts: the core of its state, which every run needs.

`RunTrials` says what an event means for the stage of a trial, and keeps the sums over all trials and over each variant in step.
It asks nothing about capabilities that a run may not have; what an event itself reports (usage, a worker, a need) goes to the
projection that counts it.

- Steps come before it: they look at the attempt in flight, and at the failures before the present one.
- Everything else comes after it, and sees the new stage.
"""

import copy
import math
import sys
from array import array
from collections import Counter

import attrs

from evaljournal.journal import Record, events
from evaljournal.replay.state.answers import Answers
from evaljournal.replay.state.attempt_warnings import AttemptWarnings
from evaljournal.replay.state.output_sample import OutputSample
from evaljournal.replay.state.policy import PolicyState
from evaljournal.replay.state.session_errors import ERROR_CHARS
from evaljournal.replay.state.sessions import Sessions
from evaljournal.replay.state.totals import Totals, UsageParts, Variants
from evaljournal.replay.state.trial import (
    NO_SLOT,
    WORKER_ENDS,
    RetryHistory,
    RunningAttempt,
    TrialState,
    pack_input,
)
from evaljournal.replay.state.usage import cost_of
from evaljournal.replay.state.workers import RunWorkers
from evaljournal.replay.text import as_words


@attrs.define(eq=False)
class AttemptTotals:
    outputs: int = 0
    latencies: "array[float]" = attrs.field(factory=lambda: array("d"))
    """The latency of each output that has one: seconds of the attempt that returned it, and of the steps that it
    reused, without set-up, teardown and the seconds that its steps waited for rate limits."""
    retries: Counter[str] = attrs.field(factory=Counter[str])
    """By cause."""
    errors: Counter[str] = attrs.field(factory=Counter[str])
    """By type."""
    timeouts: int = 0
    interrupted: int = 0
    """Number of interrupted attempts; their calls may have been paid for."""
    interrupted_trials: set[str] = attrs.field(factory=set[str])
    """Trials whose last attempt was interrupted, and may have called something."""
    repeated_calls: int = 0
    """Calls of interrupted attempts that were repeated, and may have been paid for: completed steps that were not reused, and
    one for each attempt, which may have made more."""
    late_returns: int = 0
    """Attempts that returned after they had timed out or been abandoned."""

    @property
    def repeated(self) -> int:
        """Interrupted attempts whose trials were attempted again."""
        return self.interrupted - len(self.interrupted_trials)


class RunTrials(dict[str, TrialState]):
    """In which stage is each trial, and what is in flight? Name → trial."""

    __slots__ = (  # Every record of a trial reads some of them; with slots, folding it takes a sixth less time.
        "_idle_since",
        "_policy",
        "_sessions",
        "_usage",
        "answers",
        "attempts",
        "backing_off",
        "done_at",
        "done_before",
        "output_sample",
        "running",
        "totals",
        "variants",
        "warnings",
        "workers",
    )

    def __init__(self) -> None:
        super().__init__()
        self.totals = Totals()
        self.variants = Variants()
        self.running: dict[str, RunningAttempt] = {}
        """Trial → its attempt in flight."""
        self.backing_off: dict[str, float] = {}
        """Trial → end of its backoff, in seconds of `t`."""
        self.attempts = AttemptTotals()
        self.warnings = AttemptWarnings()
        self.workers = RunWorkers()
        self.answers = Answers()
        self.output_sample = OutputSample()
        self.done_before = 0
        """Trials that were done when the current session started."""
        self.done_at = 0.0
        """When a trial last ended in the current session, in seconds of `t`; 0 if none has."""
        self._idle_since = 0.0
        """When the last attempt ended while no other was in flight."""

    def connect(self, sessions: Sessions, policy: PolicyState, usage: UsageParts) -> None:
        """Set the projections that it reads and reports to; they need the trials first."""
        self._sessions = sessions
        self._policy = policy
        self._usage = usage

    def has_noted_tokens(self, name: str) -> bool:
        """Return whether the attempt in flight at a trial has noted tokens or a cost."""
        attempt = self.running.get(name)
        usages = () if attempt is None else attempt.usages or ()
        return any(isinstance(usage, dict) and any("token" in key or "cost" in key for key in usage) for usage in usages)

    def note_answer(self, event: events.Noted) -> None:
        trial = self.get(event.trial)
        if trial is None or not event.attempt or trial.attempts != event.attempt or trial.stage != "running":
            return
        if (answer := self.answers.read(event.name, event.value)) is not None:
            trial.answer = answer

    def _move(self, trial: TrialState, stage: str) -> None:
        """Change the stage of a trial; who takes part in `running` and `backing_off` is up to the caller."""
        old_stage, stages = trial.stage, self.totals.stages
        stages[old_stage] -= 1
        stages[stage] += 1
        if self.variants:
            by_variant = self.variants[trial.variant].stages
            by_variant[old_stage] -= 1
            by_variant[stage] += 1
        trial.stage = stage

    def _end_attempt(self, event: events.AttemptEnd, trial: TrialState, stage: str, t: float) -> RunningAttempt:
        attempt = self.running.pop(event.trial)
        if not self.running:
            self._idle_since = t
        if event.worker:
            self.workers.count(event, t)
        self._move(trial, stage)
        return attempt

    def _on_run_started(self, event: events.RunStarted, _: Record) -> None:
        self.answers.use_settings(self._sessions.settings)
        self.totals.scores.set_versions(event.scorers)

    def _on_session_started(self, _: events.SessionStarted, record: Record) -> None:
        for name, end_t in self.backing_off.items():  # `t` restarts; the rest of a backoff still applies.
            self.backing_off[name] = max(0.0, end_t - self._sessions.previous_end)
        self.done_before, self.done_at, self._idle_since = self.totals.done, 0.0, 0.0
        self.answers.use_settings(self._sessions.settings)
        if self._sessions.adoption is not None:
            old_start, new_start = self._sessions.adoption
            self.totals.scores.set_versions(new_start.scorers)
            if not old_start.is_replacement:
                self.variants.adopt(old_start.definition, new_start.definition, (record.segment, record.offset))

    def _on_trial_enqueued(self, event: events.TrialEnqueued, record: Record) -> None:
        totals, variant = self.totals, event.variant
        old_trial = self.get(event.trial)
        if old_trial is not None:
            totals.stages[old_trial.stage] -= 1
            if self.variants:
                self.variants[old_trial.variant].stages[old_trial.stage] -= 1
        if variant or self.variants:
            variant = sys.intern(variant)
            self.variants.enqueue(variant, event.repeat, self, totals.scores, self._copied_totals)
        if (variant or event.repeat > 1) and not totals.scores.is_grouped_by_case:
            totals.scores.group_by_case(self.values())

        case = event.trial if event.case == event.trial else sys.intern(event.case)  # Repeats share one string.
        attempts = old_trial.attempts if old_trial is not None else 0
        packed_trial = pack_input(record, event.fingerprint, event.repeat)
        self[event.trial] = TrialState("queued", packed_trial, case, variant, attempts)
        totals.stages["queued"] += 1

    def _copied_totals(self) -> Totals:
        return copy.deepcopy(self.totals)

    def _on_attempt_started(self, event: events.AttemptStarted, record: Record) -> None:
        name = event.trial
        trial = self[name]
        if trial.stage == "backing_off":
            backoff_end = self.backing_off.pop(name)
            if not self.running:
                self._count_backoff(trial, backoff_end, record.t)
        self._move(trial, "running")

        if event.batch:
            self.running[name] = RunningAttempt(event.attempt, NO_SLOT, record.t, None)
        else:
            self.running[name] = RunningAttempt(event.attempt, event.slot, record.t, event.key)
        trial.attempts = event.attempt
        self.totals.attempts += 1
        if self.variants:
            self.variants[trial.variant].attempts += 1

        if event.need is not None:
            has_queue = self.totals.stages["queued"] > 0
            self._policy.start_attempt(name, event.key, event.need, record.t, has_queue=has_queue)
        if name in self.attempts.interrupted_trials:
            self.attempts.interrupted_trials.remove(name)
            self.attempts.repeated_calls += 1

    def _count_backoff(self, trial: TrialState, backoff_end: float, t: float) -> None:
        """Count the time in which nothing was in flight until the backoff of a trial ended, as after a single Retry-After."""
        stages, history = self.totals.stages, trial.retry_history
        reason = "rate_limited" if history is not None and history.category == "rate_limited" else "backoff"
        if not (stages["queued"] or stages["interrupted"]):
            self._policy.count_idle(reason, self._idle_since, min(t, backoff_end), t)

    def _on_attempt_succeeded(self, event: events.AttemptSucceeded, record: Record) -> None:
        name = event.trial
        trial = self[name]
        attempt = self._end_attempt(event, trial, "scoring", record.t)
        if not (repeated_error := self._sessions.errors.repeated_errors[""]).is_over:
            repeated_error.end()

        self.attempts.outputs += 1
        latency = event.elapsed if attempt.latency is None else attempt.latency
        if attempt.slot == NO_SLOT:
            latency = math.nan
        if not math.isnan(latency):
            self.attempts.latencies.append(latency)
        cost = math.nan
        if event.usage is not None or attempt.usages is not None:
            cost = cost_of([*(attempt.usages or ()), event.usage])
            self._usage.add(event.usage, name)
        trial.set_output(record, latency, cost)

        if self.variants:
            self.output_sample.add(trial, event.output)
        if event.output == "":
            trial.answer = self.answers.empty(trial.answer)
        if trial.answer is not None:
            self._count_answer(trial, 1)

    def _count_answer(self, trial: TrialState, change: int) -> None:
        self.totals.count_answer(trial.answer, change)
        if self.variants:
            self.variants[trial.variant].count_answer(trial.answer, change)

    def _on_attempt_failed(self, event: events.AttemptFailed | events.AttemptTimedOut, record: Record) -> None:
        trial, errors = self[event.trial], self._sessions.errors
        attempt = self._end_attempt(event, trial, "unsettled", record.t)
        trial.answer = None
        history = trial.retry_history = trial.retry_history or RetryHistory()
        if isinstance(event, events.AttemptFailed):
            history.count_failure(event.category, event.retry_after)
            history.error, history.error_type = f"{event.error}: {event.message}"[:ERROR_CHARS], event.error
            history.location = event.location
            self.attempts.errors[event.error] += 1
            repeated_error = errors.repeated_errors[""]
            repeated_error.count_attempt(event.trial, event.category, event.error, event.location, event.message)
        else:
            history.count_failure("timed_out")
            history.error, history.error_type, history.location = f"timed out after {event.timeout:g} s", "", ""
            self.attempts.timeouts += 1
        errors.count_attempt(history.error, record.t, self.attempts.outputs)
        self._usage.end_without_output(attempt, event.usage, event.trial)

    _on_attempt_timed_out = _on_attempt_failed

    def _on_attempt_interrupted(self, event: events.AttemptInterrupted, record: Record) -> None:
        trial = self[event.trial]
        attempt = self._end_attempt(event, trial, "interrupted", record.t)
        trial.answer = None
        if event.reason in WORKER_ENDS:
            history = trial.retry_history = trial.retry_history or RetryHistory()
            history.count_failure(event.reason)
            history.error = f"{as_words(event.reason)}: {event.detail}"[:ERROR_CHARS]
            history.error_type = history.location = ""
        elif trial.retry_history is not None:
            trial.retry_history.category = "interrupted"
        if attempt.slot != NO_SLOT:  # Otherwise it has called nothing.
            self.attempts.interrupted += 1
            self.attempts.interrupted_trials.add(event.trial)
        self._usage.end_without_output(attempt, None, event.trial)

    def _on_attempt_returned_late(self, _: events.AttemptReturnedLate, __: Record) -> None:
        self.attempts.late_returns += 1

    def _on_retry_scheduled(self, event: events.RetryScheduled, record: Record) -> None:
        trial = self[event.trial]
        self._move(trial, "backing_off")
        self.backing_off[event.trial] = record.t + event.delay
        if trial.retry_history is not None:
            if event.reason == "requested":
                trial.retry_history = RetryHistory(error=trial.error, reason=trial.reason)
            else:
                trial.retry_history.count_retry(event.reason, event.delay)
        self.attempts.retries[event.reason] += 1

    def _on_trial_completed(self, event: events.TrialCompleted, record: Record) -> None:
        trial = self[event.trial]
        self._move(trial, "completed")
        self.done_at = record.t
        if trial.retry_history is not None:
            self._count_recovered(trial, 1)

    def _count_recovered(self, trial: TrialState, change: int) -> None:
        self.totals.recovered += change
        if self.variants:
            self.variants[trial.variant].recovered += change

    def _on_trial_failed(self, event: events.TrialFailed, record: Record) -> None:
        trial = self[event.trial]
        self._move(trial, "failed")
        self.done_at = record.t
        history = trial.retry_history = trial.retry_history or RetryHistory()
        type_ = "" if event.reason == "ambiguous" else history.error_type
        self._sessions.errors.repeated_errors[""].count(type_, history.location)
        history.reason = event.reason

    def _on_trial_withdrawn(self, event: events.TrialWithdrawn, _: Record) -> None:
        trial = self[event.trial]
        self._count_recovered(trial, -trial.recovered)
        self._count_answer(trial, -1)
        if trial.stage == "backing_off":
            del self.backing_off[event.trial]
        self._move(trial, "withdrawn")
        self.totals.scores.remove(event.trial, trial)
