"""Everything recorded about one trial and its attempts, for `show`, the exports and the report page.

`attempt_fields` defines the fields of an attempt that each event sets. `TrialDetails` collects the records of one trial;
the times come from a timeline.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Final

import attrs

from evaljournal.journal import Event, Record, events
from evaljournal.journal.errors import BlobDamaged
from evaljournal.replay.state import RunState
from evaljournal.replay.text import as_words
from evaljournal.replay.timeline import Timeline
from evaljournal.replay.timeline_columns import Span, Times
from evaljournal.replay.trajectory import StepDetails, Trajectory
from evaljournal.replay.trial_state import DONE_STAGES
from evaljournal.replay.usage import add, noted_usage
from evaljournal.replay.waits import Wait

_NO_TIMES: Final = Times(queue_time=0.0, backoff_time=0.0, run_time=0.0, scoring_time=0.0, attempts=0)


def attempt_fields(event: Event) -> dict[str, Any]:  # noqa: PLR0911  # one for each event
    """Return the fields of `AttemptDetails` that an event sets."""
    match event:
        case events.AttemptStarted():
            return {"reuses": event.reuses, "spent": event.spent}
        case events.AttemptSucceeded():
            return {"output": event.output, "usage": event.usage, "worker": event.worker}
        case events.AttemptFailed():
            names = ("category", "error", "message", "traceback", "retry_after", "usage", "worker")
            return {name: getattr(event, name) for name in names}
        case events.AttemptTimedOut():
            timeout, message = event.timeout, f"timed out after {event.timeout:g} s"
            fields = {"category": "timed_out", "error": "timeout", "message": message, "timeout": timeout}
            return {**fields, "usage": event.usage, "worker": event.worker}
        case events.AttemptInterrupted():
            message = f"interrupted: {as_words(event.reason)}{f' ({event.detail})' if event.detail else ''}"
            fields = {"category": "interrupted", "error": "interrupted", "message": message, "reason": event.reason}
            return {**fields, "detail": event.detail, "worker": event.worker}
        case events.AttemptReturnedLate():
            return {"late_outcome": event.outcome}
        case events.RetryScheduled():
            return {"retry_delay": event.delay, "retry_reason": event.reason}
        case _:
            return {}


def attempt_number(event: Event) -> int:
    """Return the number of the attempt that an event is about; 0 if it is about none."""
    return getattr(event, "attempt", 0) - isinstance(event, events.RetryScheduled)  # A retry names the next attempt.


@attrs.define
class AttemptDetails:
    """One attempt."""

    span: Span
    """Slot, session, times and outcome."""
    waits: Sequence[Wait] = ()
    """Waits before its start, longest first; set only for `show`."""
    category: str = ""
    """Category of its failure, `timed_out` or `interrupted`; empty without a failure."""
    error: str = ""
    message: str = ""
    traceback: str = ""
    reason: str = ""
    """Why it was interrupted: `cancelled`, `forked`, `process_died`, `stopped`, `worker_died` or `worker_lost`."""
    detail: str = ""
    """Details of the reason, such as `signal 11`."""
    worker: str = ""
    """Name of the worker that ran it; empty: the process of the run, or unknown."""
    retry_after: float | None = None
    timeout: float | None = None
    """The timeout that it exceeded, in seconds."""
    request: Any = None
    """The request that it sent; None if it is not recorded."""
    output: Any = None
    usage: Any = None
    notes: list[tuple[str, Any]] = attrs.field(factory=list)
    late_outcome: str = ""
    """How it ended after it had timed out or been abandoned."""
    retry_delay: float | None = None
    """Seconds of backoff before its retry."""
    retry_reason: str = ""
    reuses: int = 0
    """The first attempt whose steps it may reuse; 0: none."""
    spent: float = 0.0
    """Seconds of the attempts whose steps it may reuse."""
    unused_steps: int = 0
    """Completed steps of earlier attempts that it may reuse and has not reused."""
    steps: list[StepDetails] = attrs.field(factory=list)
    """In the order in which they ended."""
    ended_at: str = ""
    """Wall time; empty while in flight."""

    def apply(self, event: Event) -> None:
        """Apply an event of the attempt."""
        if isinstance(event, events.Noted):
            self.notes.append((event.name, event.value))
        for name, value in attempt_fields(event).items():
            setattr(self, name, value)

    @property
    def has_output(self) -> bool:
        """Whether it returned an output."""
        return self.span.outcome == "succeeded"

    @property
    def own_usage(self) -> dict[str, float]:
        """Sums of the numbers in its usage and its notes."""
        sums: dict[str, float] = {}
        for name, value in self.notes:
            add(sums, noted_usage(name, value))
        add(sums, self.usage)
        return sums

    @property
    def step_usage(self) -> dict[str, float]:
        """Sums of the numbers in the usage of the steps that it executed."""
        sums: dict[str, float] = {}
        for step in self.steps:
            add(sums, None if step.is_reused else step.usage)
        return sums

    @property
    def total_usage(self) -> dict[str, float]:
        """Sums of the numbers in its usage, its notes and the steps that it executed."""
        sums = self.own_usage
        add(sums, self.step_usage)
        return sums

    @property
    def reused_steps(self) -> int:
        """Number of its steps that were reused."""
        return sum(step.is_reused for step in self.steps)

    @property
    def first_executed_step(self) -> int:
        """Number of its first step that was executed and may be reused later; 0 if there is none."""
        return min((step.number for step in self.steps if not step.is_reused and step.reusable), default=0)

    @property
    def diverged_at(self) -> int:
        """Number of the first step that differs from earlier attempts; 0 if it reused all of their steps."""
        return self.first_executed_step if self.unused_steps else 0


@attrs.frozen
class ScoreDetails:
    """The value of one scorer, or its failure."""

    scorer: str
    version: str
    seq: int
    t: float
    """When it was recorded, in seconds of its session."""
    elapsed: float
    value: bool | int | float | str | None = None
    """None if the scorer failed."""
    reason: str = ""
    error: str = ""
    message: str = ""
    traceback: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the scorer failed."""
        return self.value is None


@attrs.define
class ScorerCallDetails:
    """One call of a scorer; built-in scorers that only compute make none."""

    scorer: str
    call: int
    """From 1, per scorer and session."""
    session: int
    seq: int
    """The record of its start."""
    waits: Sequence[Wait] = ()
    """Waits before its start, longest first."""
    outcome: str = ""
    """`succeeded`, or the category of its failure; empty while in flight or if its process ended first."""
    elapsed: float | None = None
    error: str = ""
    message: str = ""
    retry_after: float | None = None
    retry_delay: float | None = None
    """Seconds of backoff before the next call; None if there is none."""


@attrs.define
class TrialDetails:
    """One trial."""

    trial: str
    case: str = ""
    variant: str = ""
    repeat: int = 1
    fingerprint: str = ""
    enqueued_at: str = ""
    """Wall time."""
    ended_at: str = ""
    """Wall time; empty until it is completed or has failed."""
    seq: int = 0
    """Its last record."""
    stage: str = "queued"
    """One of `journal.lifecycle.STAGES`."""
    reason: str = ""
    """Why it failed or was withdrawn."""
    input: Any = None
    expected: Any = None
    metadata: Any = None
    request: Any = None
    """The request of its last attempt."""
    output: Any = None
    truncated: bool = False
    """Whether the output was truncated by the token limit."""
    attempts: list[AttemptDetails] = attrs.field(factory=list)
    scorer_calls: list[ScorerCallDetails] = attrs.field(factory=list)
    scores: dict[str, ScoreDetails] = attrs.field(factory=dict)
    """Scorer → its latest value or failure."""
    superseded_scores: list[ScoreDetails] = attrs.field(factory=list)
    """Earlier values and failures, in order."""
    notes: list[tuple[str, Any]] = attrs.field(factory=list)
    """Notes that belong to no attempt."""
    times: Times = _NO_TIMES
    latency: float | None = None
    """Seconds of the attempt that returned the output, and of the steps that it reused; None without an output."""
    time_to_completion: float | None = None
    """Seconds from enqueueing until it was completed or failed: waits, backoff, all attempts and scoring, without the time
    between sessions; None while it is open."""
    problem: BlobDamaged | None = None
    """A damaged blob; its value is left as a `Blob`."""
    _trajectory: Trajectory = attrs.field(factory=Trajectory, init=False, repr=False)

    def apply(self, record: Record, timeline: Timeline, waits: Sequence[Wait] = ()) -> None:  # noqa: C901, PLR0912  # one fold
        """Add a record of the trial, which the timeline has applied; `waits` are those before the start that it records."""
        self.seq = record.seq
        event = record.event
        match event:
            case events.TrialEnqueued():
                self.case, self.variant, self.repeat = event.case, event.variant, event.repeat
                self.fingerprint = event.fingerprint
                self.input, self.expected, self.metadata = event.input, event.expected, event.metadata
                self.enqueued_at, self.ended_at, self.output, self.reason = record.at, "", None, ""
                self.scores.clear()  # It may have been withdrawn, and is enqueued again with other content.
                self.superseded_scores.clear()
            case events.AttemptStarted(request=request) if request is not None:
                self.request = request
            case events.AttemptSucceeded():
                self.output = event.output
            case events.RetryScheduled():
                self.ended_at = self.reason = ""
            case events.ScorerCallStarted():
                self.scorer_calls.append(ScorerCallDetails(event.scorer, event.call, len(timeline.sessions), record.seq, waits))
            case events.ScorerCallFailed():
                self._end_call(event)
            case events.TrialScored() | events.ScoringFailed():
                self._end_call(event)
                self._score(event, record)
            case events.TrialCompleted():
                self.ended_at = record.at
            case events.TrialFailed():
                self.ended_at, self.reason = record.at, event.reason
            case events.TrialWithdrawn():
                self.ended_at, self.reason = "", event.reason
            case events.Noted(attempt=0):
                self.notes.append((event.name, event.value))
        number = attempt_number(event)
        if number > len(self.attempts):
            spans = timeline.attempts(self.trial)[len(self.attempts) : number]
            self.attempts += [AttemptDetails(span, waits) for span in spans]
        if 1 <= number <= len(self.attempts):
            attempt = self.attempts[number - 1]
            attempt.apply(event)
            if isinstance(event, events.AttemptEnd):
                attempt.ended_at = record.at
            if isinstance(event, events.StepEvent) and (step := self._trajectory.apply(record)) is not None:
                attempt.steps.append(step)
                attempt.unused_steps = self._trajectory.unused_steps
            if isinstance(event, events.AttemptStarted):
                attempt.request = self.request
                self._trajectory.start(event)
                attempt.unused_steps = self._trajectory.unused_steps

    def finish(self, timeline: Timeline, state: RunState) -> None:
        """Copy the final times and spans from the timeline, and other values from the state, after the last record."""
        trial = state.trials[self.trial]
        self.stage, self.truncated = trial.stage, state.is_truncated(self.trial)
        self.times = timeline.times[self.trial]
        self.latency = None if trial.output_location is None else trial.latency
        self.time_to_completion = self.times.total if self.stage in DONE_STAGES else None
        spans = timeline.attempts(self.trial)
        for attempt, span in zip(self.attempts, spans, strict=False):
            attempt.span = span
        self.attempts += [AttemptDetails(span) for span in spans[len(self.attempts) :]]
        for previous_attempt, attempt in itertools.pairwise(self.attempts):
            if attempt.request is None:  # It is recorded once per session.
                attempt.request = previous_attempt.request

    @property
    def failures(self) -> list[AttemptDetails]:
        """The attempts that ended without an output."""
        return [attempt for attempt in self.attempts if attempt.category]

    @property
    def failure(self) -> str:
        """Why the trial failed, with its last error, in one line."""
        last_error = self.last_error
        return f"{self.reason}: {last_error.error}: {last_error.message}" if last_error else self.reason

    @property
    def last_error(self) -> AttemptDetails | None:
        """The last attempt without an output; None for a completed trial."""
        return self.failures[-1] if self.failures and self.stage != "completed" else None

    @property
    def usage(self) -> dict[str, float]:
        """Sums over all attempts, including failed attempts, and all notes."""
        sums: dict[str, float] = {}
        for attempt in self.attempts:
            add(sums, attempt.total_usage)
        for name, value in self.notes:
            add(sums, noted_usage(name, value))
        return sums

    @property
    def values(self) -> dict[str, ScoreDetails]:
        """Scorer → its latest value."""
        return {scorer: score for scorer, score in self.scores.items() if not score.has_failed}

    @property
    def scorer_failures(self) -> dict[str, ScoreDetails]:
        """Scorer → its failure."""
        return {scorer: score for scorer, score in self.scores.items() if score.has_failed}

    def _end_call(self, event: events.ScorerCallFailed | events.TrialScored | events.ScoringFailed) -> None:
        scorer = event.scorer.partition(".")[0]
        call = next((call for call in reversed(self.scorer_calls) if call.scorer == scorer and not call.outcome), None)
        if call is None:
            return
        call.outcome, call.elapsed = "succeeded", event.elapsed
        if isinstance(event, events.ScorerCallFailed):
            call.outcome, call.error, call.message = event.category, event.error, event.message
            call.retry_after, call.retry_delay = event.retry_after, event.delay

    def _score(self, event: events.TrialScored | events.ScoringFailed, record: Record) -> None:
        names = ("value", "reason") if isinstance(event, events.TrialScored) else ("error", "message", "traceback")
        result = {name: getattr(event, name) for name in names}
        score = ScoreDetails(event.scorer, event.version, record.seq, record.t, event.elapsed, **result)
        base = event.scorer.partition(".")[0]
        if base != event.scorer and base in self.scores and self.scores[base].has_failed:
            self.superseded_scores.append(self.scores.pop(base))
        if (old_score := self.scores.pop(event.scorer, None)) is not None:
            self.superseded_scores.append(old_score)
        self.scores[event.scorer] = score
