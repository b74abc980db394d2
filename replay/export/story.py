"""What became of every trial, told one at a time.

One pass over the records keeps a few hundred bytes about each trial, and where its long parts stand. Inputs, outputs, reasons
and tracebacks stay on disk until the trial is told, so that a run of any size can be exported in little memory.
"""

import bisect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs

from journal import Record
from journal.events import (
    AttemptEnding,
    AttemptFailed,
    AttemptInterrupted,
    AttemptSucceeded,
    AttemptTimedOut,
    Noted,
    RetryScheduled,
    ScoringFailed,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
    TrialWithdrawn,
)
from replay.export.source import Source
from replay.state import Place, RunState, Value
from replay.timeline import Timeline, Times
from replay.usage import add, noted

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Setback = AttemptFailed | AttemptTimedOut | AttemptInterrupted
"""How an attempt can end that gives no output."""


@attrs.define
class Life:
    """What a trial went through, beyond what `TrialState` keeps; the long parts by their places."""

    cause: str = ""
    """Why it was given up."""
    ended_at: str = ""
    ended: int = 0
    """The same, as `Story.wall` tells it."""
    endings: tuple[Place, ...] = ()
    """Where the end of each of its attempts is told."""
    scores: dict[str, Place] | None = None
    """Scorer → where its latest verdict is."""
    unscored: dict[str, Place] | None = None
    """Scorer → where it is told that it failed, unless it has judged since."""
    usage: dict[int, dict[str, float]] | None = None
    """Attempt → the sums of every number that was noted about it or came with it."""


@attrs.frozen(kw_only=True)
class Result:
    """A trial, with everything that became of it."""

    asked: TrialEnqueued
    stage: str
    """As in `journal.lifecycle.STAGES`."""
    attempts: int
    output: Any
    """None where there is none, too; the stage tells."""
    cause: str
    """Why it was given up; empty unless it was."""
    setbacks: tuple[Setback, ...]
    """How its attempts that gave no output ended."""
    scores: dict[str, TrialScored]
    unscored: dict[str, ScoringFailed]
    enqueued_at: str
    ended_at: str
    """Empty while it has not come to its end."""
    enqueued: int
    """In nanoseconds since 1970, as is `ended`."""
    ended: int
    times: Times
    used: dict[int, dict[str, float]]
    """Attempt → the sums of every number that was noted about it or came with it: tokens, cost."""
    truncated: bool
    """Whether the limit of tokens has cut its output short."""

    @property
    def error(self) -> tuple[str, str]:
        """The type and the message of what went wrong last; both empty where nothing did, or it was made good."""
        return described(self.setbacks[-1]) if self.setbacks and self.stage != "completed" else ("", "")

    @property
    def failure(self) -> str:
        """Why it was given up, and what went wrong last, in one line."""
        kind, message = self.error
        return f"{self.cause}: {kind}: {message}" if kind else self.cause

    @property
    def usage(self) -> dict[str, float]:
        """What all attempts used together, those that failed included."""
        sums: dict[str, float] = {}
        for used in self.used.values():
            add(sums, used)
        return sums


def described(setback: Setback) -> tuple[str, str]:
    """Tell how an attempt ended that gave no output: a type and a message."""
    match setback:
        case AttemptFailed():
            return setback.error, setback.message
        case AttemptTimedOut():
            return "timeout", f"timed out after {setback.timeout:g} s"
        case AttemptInterrupted():
            return "interrupted", f"cut off: {setback.why}"


class Story:
    """A run, and the trials of it."""

    def __init__(self, source: Source, state: RunState) -> None:
        self.source = source
        self.state = state
        self.timeline = Timeline()
        self.lives: dict[str, Life] = {}
        self.ended: dict[str, None] = {}
        """The trials that have come to their end, in that order."""

    @classmethod
    def of(cls, source: Source) -> "Story":
        """Take in a whole run."""
        story = cls(source, source.history.state)
        for record in source.records():
            try:
                story.take(record)
            except (KeyError, TypeError, ValueError, AttributeError) as exc:  # Whole, but not written by us.
                source.stop_before(record.seq, f"it makes no sense here ({exc})")
                return cls.of(source)
        return story

    def take(self, record: Record) -> None:
        """Take in one record, which the state has taken in already."""
        self.timeline.apply(record)
        event, place = record.event, (record.segment, record.offset)
        match event:
            case TrialEnqueued():
                before = self.lives.get(event.trial)
                self.lives[event.trial] = Life() if before is None else Life(endings=before.endings)
            case AttemptSucceeded() | AttemptFailed() | AttemptTimedOut() | AttemptInterrupted():
                life = self.lives[event.trial]
                life.endings = (*life.endings, place)
                self._use(event.trial, event.attempt, getattr(event, "usage", None))
            case TrialScored():
                life = self.lives[event.trial]
                life.scores = {**(life.scores or {}), event.scorer: place}
                if life.unscored is not None:
                    life.unscored.pop(event.scorer.partition(".")[0], None)
            case ScoringFailed():
                life = self.lives[event.trial]
                life.unscored = {**(life.unscored or {}), event.scorer: place}
            case Noted(trial=trial) if trial:
                self._use(trial, event.attempt, noted(event))
            case TrialCompleted() | TrialFailed():
                life = self.lives[event.trial]
                life.ended_at, life.ended = record.at, self._moment(record)
                life.cause = event.cause if isinstance(event, TrialFailed) else ""
                self.ended[event.trial] = None
            case RetryScheduled() | TrialWithdrawn() if event.trial in self.ended:
                del self.ended[event.trial]
                life = self.lives[event.trial]
                life.cause, life.ended_at, life.ended = "", "", 0
            case _:
                pass

    def _use(self, trial: str, attempt: int, usage: Any) -> None:
        if isinstance(usage, dict) and trial in self.lives:
            life = self.lives[trial]
            life.usage = life.usage or {}
            add(life.usage.setdefault(attempt, {}), usage)

    def results(self, *stages: str) -> Iterator[Result]:
        """Tell every trial, in the order in which they were taken in; or only those that stand in one of these stages."""
        for trial, state in self.state.trials.items():
            if not stages or state.stage in stages:
                yield self.result(trial)

    def result(self, trial: str) -> Result:
        """Tell one trial."""
        state, life, find = self.state.trials[trial], self.lives[trial], self.source.find
        enqueued = find(state.asked)
        assert isinstance(enqueued.event, TrialEnqueued)
        output = None
        if state.answer is not None:
            answer = find(state.answer).event
            assert isinstance(answer, AttemptSucceeded)
            output = answer.output
        setbacks = (find(place).event for place in life.endings if place != state.answer)
        scores = {} if state.scores is None else {scorer: find(place).event for scorer, place in (life.scores or {}).items()}
        unscored = {scorer: find(place).event for scorer, place in (life.unscored or {}).items()}
        return Result(
            asked=enqueued.event,
            stage=state.stage,
            attempts=state.attempts,
            output=output,
            cause=life.cause,
            setbacks=tuple(each for each in setbacks if not isinstance(each, AttemptSucceeded)),  # type: ignore[misc]  # endings
            scores=scores,  # type: ignore[arg-type]  # what stands at the place of a verdict
            unscored=unscored,  # type: ignore[arg-type]  # the same
            enqueued_at=enqueued.at,
            ended_at=life.ended_at,
            enqueued=self._moment(enqueued),
            ended=life.ended,
            times=self.timeline.times[trial],
            used=life.usage or {},
            truncated=self.state.is_truncated(trial),
        )

    def endings(self, trial: str) -> dict[int, AttemptEnding]:
        """Tell how every attempt of a trial ended, by its number."""
        found = (self.source.find(place).event for place in self.lives[trial].endings)
        return {event.attempt: event for event in found if isinstance(event, AttemptEnding)}

    def judged(self, trial: str) -> list[tuple[int, TrialScored | ScoringFailed]]:
        """Tell when each scorer judged a trial, or failed to, and what it said."""
        life = self.lives[trial]
        places = [*(life.scores or {}).values(), *(life.unscored or {}).values()]
        records = [self.source.find(place) for place in sorted(places)]
        return [
            (self._moment(record), record.event) for record in records if isinstance(record.event, TrialScored | ScoringFailed)
        ]

    @property
    def scorers(self) -> list[str]:
        """Every scorer that was heard of, in the order in which they first were."""
        return list(self.state.scores)

    def values(self, scorer: str) -> Iterator[Value]:
        """Tell what a scorer said, of those trials that count."""
        for state in self.state.trials.values():
            if state.scores is not None and scorer in state.scores:
                yield state.scores[scorer][1]

    def wall(self, session: int, t: float) -> int:
        """Tell a moment of a session in nanoseconds since 1970, on the one axis that the timeline puts the sessions on."""
        first, this = self.timeline.sessions[0], self.timeline.sessions[session - 1]
        return moment(first.at) + round((this.offset + t - first.start) * 1_000_000) * 1_000

    def _moment(self, record: Record) -> int:
        sessions = self.timeline.sessions
        session = bisect.bisect_right(sessions, record.seq, key=lambda each: each.seq)
        return self.wall(session, record.t) if session else moment(record.at)


def moment(at: str) -> int:
    """Read the wall time of a record, in nanoseconds since 1970; 0 where it is none."""
    try:
        return (datetime.fromisoformat(at) - EPOCH) // timedelta(microseconds=1) * 1_000
    except (ValueError, TypeError):
        return 0
