"""What if: the attempts of a run once more, on a virtual clock, under another policy or with other slots.

The engine is the one that made the run; only the task is a stand-in, which takes as long as it took then, and fails where it
failed then. So the figures are a bound and no forecast: how long an answer takes depends on the load, and whether a call is
refused on the rate, and both are here what they were under the policy that was recorded.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio
import trio.testing

from journal import Record
from journal.events import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    FailureCategory,
    FileEvent,
    JournalRecovered,
    JournalSalvaged,
    RetryScheduled,
    ScorerCallFailed,
    ScorerCallStarted,
    ScoringFailed,
    SessionStarted,
    TrialEnqueued,
    TrialEvent,
    TrialScored,
)
from replay import RunState
from replay.state import DONE
from runner.api import arun
from runner.data.case import Case
from runner.definition.evaluation import Evaluation, evaluation
from runner.engine.null_files import NullFiles
from runner.errors import UsageError
from runner.recompute.rules import recorded_policy, recorded_retry
from runner.retries.classify import Failure, RateLimited
from runner.retries.retry import Retry
from runner.testing import Answer, Fail, Hang, Scripted, Step, repeatable

BOUND: Final = (
    "a bound, not a forecast: an answer takes as long as it took, and a call is refused where it was, under the recorded load; "
    "with more at once both may be worse, with less better"
)

_KEY: Final = "key"
_AT_ONCE: Final[tuple[Step, ...]] = (Answer(output=True),)
"""What a scorer does of which no call was recorded for a trial."""


@attrs.frozen(kw_only=True)
class Figures:
    """What a run took."""

    policy: str | None
    """None where the journal does not say."""
    slots: int | None
    """The most attempts at one time that were allowed."""
    duration: float
    """Seconds, those between two sessions not counted."""
    calls: int
    rejected: int
    """Calls that met a rate limit."""
    most_in_flight: int
    completed: int
    failed: int


@attrs.define
class Course:
    """What a trial met, attempt by attempt."""

    steps: list[Step] = attrs.field(factory=list)
    """Those since it was last taken up anew, because it had failed and somebody asked for more."""
    calls: int = 0
    """All that were made, those that were cut off included."""
    rejected: int = 0
    key: str = ""
    """Which back end it was put to, where there were several."""
    calls_of: dict[str, list[Step]] = attrs.field(factory=dict[str, list[Step]])
    """Scorer → its calls."""


class Recording:
    """What is known of a run: how its trials went, and what it took."""

    def __init__(self) -> None:
        self._state = RunState()
        self._courses: dict[str, Course] = {}
        self._scorer_keys: dict[str, str] = {}
        """Scorer → the rate-limit key of its calls."""
        self._called: set[tuple[str, str]] = set()
        """Calls of scorers in flight: trial and scorer."""
        self._began = 0.0
        self._now = 0.0
        self._duration = 0.0
        """Seconds of the sessions before."""
        self._most_in_flight = 0
        self._longest = 0.0
        """The longest timeout that an attempt has exceeded."""
        self._longest_calls: defaultdict[str, float] = defaultdict(float)
        """Scorer → the longest call that has exceeded its timeout."""

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Recording":
        """Take in all records of a run, or those before its damage."""
        recording = cls()
        for record in records:
            recording.take(record)
        return recording

    def take(self, record: Record) -> None:
        """Take in one record."""
        self._state.apply(record)
        event = record.event
        if isinstance(event, SessionStarted):
            self._duration += self._now - self._began
            self._began = record.t
            self._called.clear()
        if not isinstance(event, FileEvent | JournalRecovered | JournalSalvaged):  # These stand between two sessions.
            self._now = record.t
        if isinstance(event, TrialEnqueued):
            self._courses[event.trial] = Course()
        elif isinstance(event, TrialEvent):
            self._take_step(event, self._courses[event.trial])
            self._take_call(event, self._courses[event.trial])

    def _take_call(self, event: TrialEvent, course: Course) -> None:
        """Take in what became of a scorer's call."""
        match event:
            case ScorerCallStarted():
                self._scorer_keys[event.scorer] = event.key
                self._called.add((event.trial, event.scorer))
            case ScorerCallFailed():
                self._called.discard((event.trial, event.scorer))
                if event.category == "timed_out":
                    self._longest_calls[event.scorer] = max(self._longest_calls[event.scorer], event.elapsed)
                    course.calls_of.setdefault(event.scorer, []).append(Hang())
                else:
                    failure = Failure(kind=event.category, retry_after=event.retry_after)
                    course.calls_of.setdefault(event.scorer, []).append(Fail(_Recorded(failure), event.elapsed))
            case TrialScored() | ScoringFailed():
                scorer = event.scorer.partition(".")[0]
                if (event.trial, scorer) in self._called:
                    self._called.discard((event.trial, scorer))
                    course.calls_of.setdefault(scorer, []).append(Answer(output=True, after=event.elapsed))
            case _:
                pass

    def _take_step(self, event: TrialEvent, course: Course) -> None:
        match event:
            case AttemptStarted():
                course.calls += 1
                course.key = event.key
                self._most_in_flight = max(self._most_in_flight, len(self._state.running))
            case AttemptSucceeded():
                course.steps.append(Answer(None, event.elapsed))
            case AttemptFailed():
                course.rejected += event.category == "rate_limited"
                failure = Failure(kind=event.category, retry_after=event.retry_after)
                course.steps.append(Fail(_Recorded(failure), event.elapsed))
            case AttemptTimedOut():
                self._longest = max(self._longest, event.timeout)
                course.steps.append(Hang())
            case RetryScheduled(cause="asked" | "stopped"):
                course.steps.clear()
            case _:
                pass

    @property
    def ended(self) -> dict[str, Course]:
        """The trials that came to an end, and of which it is known how, in the order in which they were taken in."""
        trials = self._state.trials
        return {name: course for name, course in self._courses.items() if course.steps and trials[name].stage in DONE}

    @property
    def left_out(self) -> int:
        """How many trials did not come to an end, or nothing is known of how they did."""
        return self._state.total - len(self.ended)

    @property
    def figures(self) -> Figures:
        """What it took, the trials that are left out not counted, but for the time."""
        courses = self.ended
        slots = self._state.settings.get("slots")
        failed = sum(self._state.trials[name].stage == "failed" for name in courses)
        return Figures(
            policy=recorded_policy(self._state.settings),
            slots=slots if isinstance(slots, int) else None,
            duration=round(self._duration + self._now - self._began, 6),
            calls=sum(course.calls for course in courses.values()),
            rejected=sum(course.rejected for course in courses.values()),
            most_in_flight=self._most_in_flight,
            completed=len(courses) - failed,
            failed=failed,
        )

    def again(self, *, policy: str | None = None, slots: int | None = None) -> Figures:
        """Make the run again on a virtual clock, as it was recorded but for what is given."""
        courses, settings = self.ended, self._state.settings
        if not courses:
            raise UsageError("no trial of this run came to an end, so there is nothing to simulate")
        recorded = self.figures
        policy, chosen = policy or recorded.policy, slots or recorded.slots
        if policy is None or chosen is None:
            raise UsageError("the journal does not say by which policy and with how many slots it was run; give both")
        task = _Played(courses, chosen)
        it = self._evaluation(task, courses)
        seed = settings.get("seed")
        # Where no other slots are given, those of the scorers are the recorded ones, too.
        options = {**repeatable(seed if isinstance(seed, int) else 0), "policy": policy, "slots": slots, "files": _AtOnce()}
        if any(course.key for course in courses.values()):
            options["limit_key"] = _KEY

        async def main() -> Any:
            return await arun(it, Path("simulation"), **options)

        state = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)).state
        return Figures(
            policy=policy,
            slots=chosen,
            duration=round(state.t, 6),
            calls=state.attempts,
            rejected=task.rate_limit_failures,
            most_in_flight=task.most_in_flight,
            completed=state.completed,
            failed=state.failed,
        )

    def _evaluation(self, task: "_Played", courses: dict[str, Course]) -> Evaluation[Any, Any, Any]:
        settings = self._state.settings
        retry = recorded_retry(settings) if "retry" in settings else Retry()
        timeout = settings.get("timeout") or self._longest or None
        it: Evaluation[Any, Any, Any] = evaluation(
            cases=[Case(name=name, input=name, metadata={_KEY: course.key}) for name, course in courses.items()],
            loop="trio",
            timeout=timeout,
            retry=attrs.evolve(retry, classify=_kind),
        )(task)

        recorded = settings.get("scorer_slots")
        for scorer, key in self._scorer_keys.items():
            slots = recorded.get(scorer) if isinstance(recorded, dict) else None
            calls = {name: course.calls_of.get(scorer, _AT_ONCE) for name, course in courses.items()}
            played = _PlayedScorer(calls, slots, "" if key else task.rate_limit_identity)
            it.score(name=scorer, timeout=self._longest_calls.get(scorer))(played)
        return it


def _is_refusal(step: Step) -> bool:
    return isinstance(step, Fail) and isinstance(step.exc, _Recorded) and step.exc.failure.kind == "rate_limited"


class _Recorded(RateLimited):
    """What an attempt raised then; only what it meant is known."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.retry_after)
        self.failure = failure


def _kind(exc: BaseException) -> FailureCategory | None:
    return exc.failure.kind if isinstance(exc, _Recorded) else None


class _Played(Scripted):
    """Stands in for the task: it does what was recorded."""

    def __init__(self, courses: dict[str, Course], slots: int) -> None:
        super().__init__({name: course.steps for name, course in courses.items()})
        self.default_slots = slots
        self.rate_limit_identity = f"simulation {id(self)}"  # No other run is to share its policy.
        self.rate_limit_failures = 0

    def _step(self, value: Any, times: int) -> Step:
        step = super()._step(value, times)
        self.rate_limit_failures += _is_refusal(step)
        return step


class _PlayedScorer:
    """Stands in for a scorer whose calls were recorded."""

    fingerprint = "simulated"

    def __init__(self, calls: Mapping[str, Iterable[Step]], slots: int | None, identity: str) -> None:
        self._calls = Scripted(calls)
        self.default_slots = slots
        self.rate_limit_identity = identity

    async def __call__(self, _: Any, case: Case) -> Any:
        await trio.lowlevel.checkpoint()  # So that it is recognised as a function for trio.
        return await self._calls(case.name)


class _AtOnce(NullFiles):
    """Takes no real time either: nobody lives through a simulation."""

    def pause(self) -> None:
        pass
