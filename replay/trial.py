"""All there is to know of one trial: what was asked, every attempt, what came of it and what it waited for, the scores.

A story takes one record after the other, beside a timeline that has taken the same.
"""

from collections.abc import Sequence
from typing import Any, Final

import attrs

from journal import Event, Record
from journal.errors import BlobDamaged
from journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    Noted,
    RetryScheduled,
    ScorerCallFailed,
    ScorerCallStarted,
    ScoringFailed,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
    TrialWithdrawn,
)
from replay.timeline import Span, Timeline, Times
from replay.waits import Wait

_NO_TIME: Final = Times(waited=0.0, backed_off=0.0, served=0.0, scored=0.0, attempts=0)


@attrs.define
class AttemptStory:
    """One attempt."""

    at: str
    """Wall time of its start."""
    span: Span
    """When it held which slot, and how it ended."""
    waited: float
    """Seconds before it, ready to start."""
    backed_off: float
    """Seconds before it, in backoff."""
    waits: Sequence[Wait] = ()
    """What it waited for before it started, the longest first."""
    why: str = ""
    """Why it was interrupted."""
    error: str = ""
    message: str = ""
    traceback: str = ""
    retry_after: float | None = None
    timeout: float | None = None
    """Seconds that it was given, where they were not enough."""
    usage: Any = None
    notes: list[tuple[str, Any]] = attrs.field(factory=list)
    late: str = ""
    """How it ended after it had been given up."""
    retry_in: float | None = None
    """Seconds of backoff that were scheduled after it."""
    retry_cause: str = ""

    def take(self, event: Event) -> None:
        """Take in what is said of the attempt, or follows from it."""
        match event:
            case AttemptSucceeded():
                self.usage = event.usage
            case AttemptFailed():
                self.error, self.message, self.traceback = event.error, event.message, event.traceback
                self.retry_after, self.usage = event.retry_after, event.usage
            case AttemptTimedOut():
                self.timeout, self.usage = event.timeout, event.usage
            case AttemptInterrupted():
                self.why = event.why
            case AttemptReturnedLate():
                self.late = event.ending
            case RetryScheduled():
                self.retry_in, self.retry_cause = event.delay, event.cause
            case Noted():
                self.notes.append((event.name, event.value))
            case _:
                pass


@attrs.frozen
class Judgement:
    """What one scorer said, or why it could not."""

    scorer: str
    version: str
    seq: int
    elapsed: float
    value: bool | int | float | str | None = None
    """None where the scorer failed."""
    reason: str = ""
    error: str = ""
    message: str = ""
    traceback: str = ""


@attrs.define
class CallStory:
    """One call of a scorer that is not built in."""

    scorer: str
    call: int
    """From 1, per scorer within a session."""
    session: int
    seq: int
    """The record that began it."""
    waits: Sequence[Wait] = ()
    """What it waited for before it started, the longest first."""
    ending: str = ""
    """`succeeded`, or the category of its failure; empty while it is in flight, or if its process ended first."""
    elapsed: float | None = None
    error: str = ""
    message: str = ""
    retry_after: float | None = None
    retry_in: float | None = None
    """Seconds of backoff before the next call; None if there is none."""

    def end(self, event: ScorerCallFailed | TrialScored | ScoringFailed) -> None:
        """Take in how it ended."""
        self.ending, self.elapsed = "succeeded", event.elapsed
        if isinstance(event, ScorerCallFailed):
            self.ending, self.error, self.message = event.category, event.error, event.message
            self.retry_after, self.retry_in = event.retry_after, event.delay


@attrs.define
class TrialStory:
    """One trial."""

    trial: str
    case: str = ""
    repeat: int = 1
    fingerprint: str = ""
    at: str = ""
    """Wall time when it was taken in."""
    seq: int = 0
    """The last record that speaks of it."""
    stage: str = "queued"
    """As in `journal.lifecycle.STAGES`."""
    cause: str = ""
    """Why it was given up, or withdrawn."""
    input: Any = None
    expected: Any = None
    metadata: Any = None
    output: Any = None
    attempts: list[AttemptStory] = attrs.field(factory=list)
    calls: list[CallStory] = attrs.field(factory=list)
    """Calls of scorers, in order; built-in scorers that only compute make none."""
    scores: dict[str, Judgement] = attrs.field(factory=dict)
    """Scorer → the latest that it said."""
    superseded: list[Judgement] = attrs.field(factory=list)
    """What scorers said before they said something else, in that order."""
    times: Times = _NO_TIME
    problem: BlobDamaged | None = None
    """What is wrong with a value that was kept beside the journal; a `Blob` stands for it."""

    def take(self, record: Record, told: Timeline, waits: Sequence[Wait] = ()) -> None:
        """Take in a record of the trial, which the timeline has taken; `waits` is what the start in it waited for."""
        self.seq = record.seq
        event = record.event
        match event:
            case TrialEnqueued():
                self.case, self.repeat, self.fingerprint, self.at = event.case, event.repeat, event.fingerprint, record.at
                self.input, self.expected, self.metadata = event.input, event.expected, event.metadata
                self.output, self.cause = None, ""  # It may have been withdrawn, and comes back as another.
                self.scores.clear()
                self.superseded.clear()
            case AttemptStarted():
                times, earlier = told.times[self.trial], self.attempts
                waited = times.waited - sum(each.waited for each in earlier)
                backed_off = times.backed_off - sum(each.backed_off for each in earlier)
                self.attempts.append(AttemptStory(record.at, told.spans[-1], waited, backed_off, waits))
                self.cause = ""
            case ScorerCallStarted():
                self.calls.append(CallStory(event.scorer, event.call, len(told.sessions), record.seq, waits))
            case ScorerCallFailed():
                self._end_call(event)
            case TrialScored() | ScoringFailed():
                self._end_call(event)
                if (before := self.scores.pop(event.scorer, None)) is not None:
                    self.superseded.append(before)
                self.scores[event.scorer] = _judgement(event, record.seq)
            case TrialFailed(cause=why) | TrialWithdrawn(why=why):
                self.cause = why
            case AttemptSucceeded():
                self.output = event.output
            case _:
                pass
        number = getattr(event, "attempt", 0) - isinstance(event, RetryScheduled)  # Which names the attempt to come.
        if 1 <= number <= len(self.attempts):
            self.attempts[number - 1].take(event)
        self.look(told)

    def _end_call(self, event: ScorerCallFailed | TrialScored | ScoringFailed) -> None:
        scorer = event.scorer.partition(".")[0]
        call = next((call for call in reversed(self.calls) if call.scorer == scorer and not call.ending), None)
        if call is not None:
            call.end(event)

    def look(self, told: Timeline) -> None:
        """See how the time was spent so far."""
        self.times = told.times[self.trial]
        if self.attempts:
            self.attempts[-1].span = told.last_span(self.trial)


def _judgement(event: TrialScored | ScoringFailed, seq: int) -> Judgement:
    said = Judgement(event.scorer, event.version, seq, event.elapsed)
    if isinstance(event, TrialScored):
        return attrs.evolve(said, value=event.value, reason=event.reason)
    return attrs.evolve(said, error=event.error, message=event.message, traceback=event.traceback)
