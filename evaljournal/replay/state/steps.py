"""The completed steps of open trials: which of them the next attempt may reuse, and the usage that this saves.

A step is recognized by its trial, its name and its fingerprint, never by its position: code that takes another path makes a
new call and never gets the result of a different call.
"""

import itertools
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import attrs

from evaljournal.journal import Record, events
from evaljournal.replay.state.known_limits import RecordedLimits
from evaljournal.replay.state.sessions import Sessions, covered_seconds
from evaljournal.replay.state.totals import UsageParts
from evaljournal.replay.state.trial import INTERRUPTED, RunningAttempt, TrialState, pack_location
from evaljournal.replay.state.trials import RunTrials
from evaljournal.replay.state.usage import add, subtract

Reuse = Literal["transient", "interrupted", "always", "never"]
"""After which ends of an attempt the next one reuses its steps. `transient`: interrupted, rate limited, unavailable, or
unauthorized."""

REUSES: Final[tuple[Reuse, ...]] = ("transient", "interrupted", "always", "never")
NOT_REUSED: Final = f"{events.NOTE_PREFIX}step_not_reused"
"""The note that a completed step is executed again because its result cannot be read: `step` and `problem`."""
_TRANSIENT: Final = INTERRUPTED | {"rate_limited", "unavailable", "fatal"}
"""Ends that the task did not cause. A fatal failure ends its trial, unless it stopped the run: unauthorized, or no credit."""
_MIN_TIMEOUT: Final = 0.1
"""Minimum share of its timeout that an attempt gets, even if earlier attempts, whose steps it reuses, took longer."""


def keeps_steps(reuse: str, end: str) -> bool:
    """Return whether steps are reused after an attempt with this end: `interrupted`, or the category of its failure."""
    match reuse:
        case "never":
            return False
        case "always":
            return True
        case "interrupted":
            return end in INTERRUPTED
        case _:
            return end in _TRANSIENT


def records_model_calls(settings: Mapping[str, Any]) -> bool:
    """Return whether the model calls of the task's HTTP clients should be steps: `durable="http"`."""
    durable = settings.get("durable")
    return isinstance(durable, list) and "http" in durable


def _without_waits(attempt: RunningAttempt, seconds: float) -> float:
    """Return the seconds of an attempt that ends without set-up, teardown and its waits for rate limits."""
    return seconds if attempt.waits is None else max(0.0, round(seconds - covered_seconds(attempt.waits), 6))


def remaining_timeout(timeout: float | None, seconds_spent: float) -> float | None:
    """Return the timeout of an attempt that reuses steps of attempts which took `spent` seconds; None: no timeout."""
    return timeout if timeout is None or not seconds_spent else round(max(timeout - seconds_spent, timeout * _MIN_TIMEOUT), 6)


class RecordedStep(NamedTuple):
    """A completed step that may be reused."""

    seq: int
    location: int
    """Packed location of its record."""
    attempt: int
    name: str
    fingerprint: str
    usage: Any
    """Including that of the steps inside it."""
    number: int
    """Its number in the attempt that executed it."""
    parent: tuple[int, int]
    """The attempt that used it last, and the number of the step there that called it; 0: the task itself."""
    times: tuple[float, float, float]
    """When its attempt started, when it ended, and the seconds that it took."""
    reused_seqs: Sequence[int]
    """The completed steps inside it that were reused or contain reused steps."""

    @property
    def period(self) -> tuple[float, float]:
        """Its start and its end, in seconds of its session; not before the start of the attempt."""
        attempt_start, end, elapsed = self.times
        return min(end, max(attempt_start, end - elapsed)), end  # `elapsed` of a foreign record may be any number.


_new_step: Callable[[type[RecordedStep], tuple[Any, ...]], RecordedStep] = tuple.__new__
"""Create a recorded step, in half the time of `RecordedStep(…)`."""


@attrs.define
class TrialSteps:
    """The steps of a trial that has not ended."""

    first_attempt: int
    """The first attempt whose steps may be reused."""
    steps: dict[int, RecordedStep] = attrs.field(factory=dict[int, RecordedStep])
    """Record → step, in the order of their completion."""
    seconds_spent: float = 0.0
    """Seconds that the attempts from `first_attempt` on were in flight, without the current one."""
    seconds_not_counted: float = 0.0
    """The part of them up to the last interruption or timeout, which does not count against the next timeout."""
    is_continued: bool = False
    """Whether the last attempt could reuse steps."""
    is_productive: bool = False
    """Whether the attempt in flight has completed a step."""
    not_reusable: int = 0
    """Completed steps of the attempt in flight that may not be reused."""
    inner_usage: dict[int, dict[str, Any]] = attrs.field(factory=dict[int, dict[str, Any]])
    """Step in flight → usage of the steps inside it."""
    reused_seqs: dict[int, list[int]] = attrs.field(factory=dict[int, list[int]])
    """Step in flight, or 0 for the task itself → the completed steps inside it that were reused or contain reused steps."""

    def start(self, attempt: int, reuses: int) -> int:
        """Start an attempt; return how many completed calls it has to repeat, because it may not reuse them."""
        repeated_calls, self.not_reusable, self.is_productive = self.not_reusable, 0, False
        self.is_continued = reuses > 0
        self.inner_usage.clear()
        self.reused_seqs.clear()
        if not reuses:
            repeated_calls += len(self.steps)
            self.first_attempt, self.seconds_spent, self.seconds_not_counted = attempt, 0.0, 0.0
            self.steps.clear()
        return repeated_calls

    def add(self, event: events.StepCompleted, record: Record, location: int, attempt_start: float) -> None:
        """Add a step that was completed; `location` is the packed one of its record."""
        self.is_productive = True
        usage = event.usage
        if self.inner_usage and (inner_usage := self.inner_usage.pop(event.step, None)) is not None:
            add(inner_usage, usage)
            usage = inner_usage
        if event.parent:
            self.add_inner_usage(event.parent, usage)

        reused_seqs = self.reused_seqs.pop(event.step, ()) if self.reused_seqs else ()
        if event.reusable:
            seq, attempt, name, fingerprint = record.seq, event.attempt, event.name, event.fingerprint
            times = (attempt_start, record.t, event.elapsed)
            values = (seq, location, attempt, name, fingerprint, usage, event.step, (attempt, event.parent), times, reused_seqs)
            self.steps[seq] = _new_step(RecordedStep, values)
        else:
            self.not_reusable += 1

        if reused_seqs:
            self.add_reused(event.parent, (record.seq,) if event.reusable else reused_seqs)

    def reuse(self, event: events.StepReused) -> RecordedStep | None:
        """Move a completed step into the attempt that reuses it, and return it; None if it is unknown."""
        step = self.steps.get(event.completed_seq)
        if step is not None:
            self.steps[step.seq] = step._replace(parent=(event.attempt, event.parent))
            self.add_inner_usage(event.parent, step.usage)
            self.add_reused(event.parent, (step.seq,))
        return step

    def add_inner_usage(self, parent: int, usage: Any) -> None:
        """Add usage to the step `parent`, which contains the step that reported it; 0: none does."""
        if parent and usage is not None:
            add(self.inner_usage.setdefault(parent, {}), usage)

    def add_reused(self, parent: int, seqs: Iterable[int]) -> None:
        """Add completed steps to the step `parent`, in which they were used; 0: the task itself used them."""
        self.reused_seqs.setdefault(parent, []).extend(seqs)

    def reused_seconds(self, attempt: int) -> float:
        """Return the seconds that the steps which an attempt reused took in the attempts that executed them.

        Concurrent steps of an attempt count once. A step that is reused alone counts, even if another step called it: that
        one is executed again, in less time. If a reused step had itself reused steps of earlier attempts, these count, too.
        """
        steps, stack = dict[int, RecordedStep](), list(itertools.chain.from_iterable(self.reused_seqs.values()))
        while stack:
            seq = stack.pop()
            if seq not in steps and (step := self.steps.get(seq)) is not None:
                steps[seq] = step
                stack += step.reused_seqs
        attempts = {step.attempt for step in steps.values()} - {attempt}
        return sum(covered_seconds(step.period for step in steps.values() if step.attempt == number) for number in attempts)

    def spend(self, seconds: float, *, resets_timeout: bool) -> None:
        """Add the seconds of an attempt that has ended; `resets_timeout`: the next one has its full timeout."""
        self.seconds_spent += seconds
        if resets_timeout:
            self.seconds_not_counted = self.seconds_spent

    def __iter__(self) -> Iterator[RecordedStep]:
        return iter(self.steps.values())


def reuse_of(steps: TrialSteps | None, trial: TrialState, reuse: str) -> tuple[int, float]:
    """Return the first attempt whose steps the next attempt at a trial reuses, and the seconds that count against its timeout.

    Both are 0 if it reuses none. A timeout discards the steps of its attempt, because the task may be the cause, unless the
    attempt could itself reuse steps: these were completed in time, and replaying them takes time again.
    """
    if steps is None:
        return 0, 0.0
    end = _last_end(trial)
    if not keeps_steps(reuse, end) and not (end == "timed_out" and steps.is_continued):
        return 0, 0.0
    return steps.first_attempt, round(steps.seconds_spent - steps.seconds_not_counted, 6)


def earlier_reuse_of(steps: TrialSteps | None, trial: TrialState, reuse: str) -> tuple[int, float]:
    """Return the same by the rule of journals in which interruptions and timeouts were treated like other ends."""
    if steps is None or not keeps_steps(reuse, _last_end(trial)):
        return 0, 0.0
    return steps.first_attempt, round(steps.seconds_spent, 6)


def _last_end(trial: TrialState) -> str:
    history = trial.retry_history
    return "interrupted" if trial.stage == "interrupted" or history is None else history.category


@attrs.define(eq=False)
class RunSteps:
    """Which steps have attempts completed, which of them can the next attempt reuse, and what does this save?

    It is attached with the first step, or by the setting that makes model calls steps, and comes before the trials: an event
    that ends an attempt finds it in flight, and a failure finds those before it.
    """

    _trials: RunTrials
    _usage: UsageParts
    _sessions: Sessions
    _known_limits: RecordedLimits
    open: dict[str, TrialSteps] = attrs.field(factory=dict[str, TrialSteps])
    """Open trial → its completed steps, if it has any."""
    records: dict[str, "array[int]"] = attrs.field(factory=dict[str, "array[int]"])
    """Trial that is not done → packed locations of the records of its steps, without those that it may not reuse."""
    keeps_records: bool = False
    """Whether `records` also has the trials that were completed."""
    last_seq: int = 0
    """The last record of a step."""
    completed: int = 0
    failed: int = 0
    reused: int = 0
    attempts_without_steps: int = 0
    """Attempts with an output and without a step, although the model calls of the task should be steps."""
    before_session: int = 0
    """Number of steps executed before the current session."""
    seconds_waited: float = 0.0
    """Seconds that steps have waited for known rate limits."""
    usage_saved: Counter[str] = attrs.field(factory=Counter[str])
    """Usage of the steps that were reused, which was not paid again."""

    def _locate(self, event: events.StepEvent, record: Record) -> int:
        """Keep the location of a step's record, and return it, packed."""
        locations = self.records.get(event.trial)
        if locations is None:
            locations = self.records[event.trial] = array("q")
        location = pack_location(record)
        locations.append(location)
        self.last_seq = record.seq
        return location

    def _on_session_started(self, _: events.SessionStarted, __: Record) -> None:
        self.before_session = self.executed
        if self._sessions.has_new_task:
            self.open.clear()

    def _on_attempt_started(self, event: events.AttemptStarted, _: Record) -> None:
        if not self.records:
            return
        if not event.reuses:
            self.records.pop(event.trial, None)
        if (steps := self.open.get(event.trial)) is not None:
            repeated_calls = steps.start(event.attempt, event.reuses)
            if event.trial in self._trials.attempts.interrupted_trials:
                self._trials.attempts.repeated_calls += repeated_calls

    def _on_attempt_succeeded(self, event: events.AttemptSucceeded, _: Record) -> None:
        attempt, steps = self._trials.running[event.trial], self.open.get(event.trial)
        if not attempt.ended_steps and records_model_calls(self._sessions.settings):
            self.attempts_without_steps += 1
        if attempt.latency is not None:
            return
        latency = _without_waits(attempt, event.elapsed)
        if steps is not None and steps.reused_seqs:
            latency = round(latency + steps.reused_seconds(event.attempt), 6)
        attempt.latency = latency

    def _on_attempt_failed(self, event: events.AttemptFailed | events.AttemptTimedOut, _: Record) -> None:
        if (steps := self.open.get(event.trial)) is None:
            return
        category = event.category if isinstance(event, events.AttemptFailed) else "timed_out"
        seconds = _without_waits(self._trials.running[event.trial], event.elapsed)
        steps.spend(seconds, resets_timeout=category == "timed_out")
        history = self._trials[event.trial].retry_history
        is_kept = steps.is_productive and keeps_steps(self._sessions.settings.get("reuse_steps", ""), category)
        if is_kept and history is not None:
            history.reset()

    _on_attempt_timed_out = _on_attempt_failed

    def _on_attempt_interrupted(self, event: events.AttemptInterrupted, _: Record) -> None:
        if (steps := self.open.get(event.trial)) is not None:
            attempt, elapsed = self._trials.running[event.trial], event.elapsed
            if elapsed is None:  # It ended with its process, no later than the last record.
                elapsed = max(0.0, self._sessions.previous_end - attempt.start)
            steps.spend(_without_waits(attempt, elapsed), resets_timeout=True)

    def _on_step_completed(self, event: events.StepCompleted, record: Record) -> None:
        attempt = self._trials.running[event.trial]
        if event.phase != "task":
            self._end_phase(event, record, attempt)
            return

        location = self._locate(event, record)
        self.completed += 1
        steps = self.open.get(event.trial)
        if steps is None:
            steps = self.open[event.trial] = TrialSteps(event.attempt)
        steps.add(event, record, location, attempt.start)

        self._add_need(event, record, attempt)
        attempt.end_step(event.name, record.t)
        if event.usage is not None:
            self._usage.add(event.usage, event.trial)
            attempt.add_usage(event.usage)

    def _on_step_failed(self, event: events.StepFailed, record: Record) -> None:
        attempt = self._trials.running[event.trial]
        if event.phase != "task":
            self._end_phase(event, record, attempt)
            return

        self._locate(event, record)
        self.failed += 1
        steps = self.open.get(event.trial)
        if steps is not None and (reused_seqs := steps.reused_seqs.pop(event.step, None)):
            steps.add_reused(event.parent, reused_seqs)  # They belong to its caller now.

        self._add_need(event, record, attempt)
        attempt.end_step(event.name, record.t)

    def _on_step_reused(self, event: events.StepReused, record: Record) -> None:
        attempt = self._trials.running[event.trial]
        self._locate(event, record)
        self.reused += 1
        steps = self.open.get(event.trial)
        step = None if steps is None else steps.reuse(event)
        attempt.end_step("" if step is None else step.name, record.t)
        if step is not None and step.usage is not None:  # Its usage belongs to this attempt now.
            add(self.usage_saved, step.usage)
            subtract(self._usage.without_output, step.usage)
            attempt.add_usage(step.usage)

    def _on_step_replayed(self, event: events.StepReplayed, record: Record) -> None:
        self._locate(event, record)
        self._usage.add_replayed(event.unpaid)
        attempt = self._trials.running[event.trial]
        attempt.latency = math.nan
        attempt.end_step(event.name, record.t)

    def _end_phase(self, event: events.StepCompleted | events.StepFailed, record: Record, attempt: RunningAttempt) -> None:
        """Count a set-up or a teardown; its time is not part of the attempt's."""
        self._locate(event, record)
        self.completed += isinstance(event, events.StepCompleted)
        self.failed += isinstance(event, events.StepFailed)
        attempt.add_wait(record.t - event.elapsed, record.t)

    def _add_need(self, event: events.StepCompleted | events.StepFailed, record: Record, attempt: RunningAttempt) -> None:
        """Count what a step took from known limits, and how long it waited for them."""
        start = record.t - event.elapsed
        if event.need is not None:
            self._known_limits.inner_waits[event.key] = event.waited
            self._known_limits.add(event.key, event.need, start)
        if event.waited > 0:
            self.seconds_waited += event.waited
            attempt.add_wait(start - event.waited, start)

    def _on_trial_completed(self, event: events.TrialCompleted, _: Record) -> None:
        if self.records:
            self.open.pop(event.trial, None)
            if not self.keeps_records:
                self.records.pop(event.trial, None)

    def _on_trial_failed(self, event: events.TrialFailed | events.TrialWithdrawn, _: Record) -> None:
        self.open.pop(event.trial, None)
        self.records.pop(event.trial, None)

    _on_trial_withdrawn = _on_trial_failed

    @property
    def executed(self) -> int:
        return self.completed + self.failed

    def __bool__(self) -> bool:
        return bool(self.last_seq)
