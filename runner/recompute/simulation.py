"""Simulate a recorded run on a virtual clock with another policy or number of slots.

The engine is the real one; the task is replaced by one that replays the recorded latencies and failures. The figures are
estimates, because latencies and failures depend on the load, and the recorded ones are those of the recorded policy.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio
import trio.testing

from journal import Record, events
from replay import RunState
from replay.trial_state import DONE_STAGES
from runner.data.case import Case
from runner.definition.evaluation import Evaluation, evaluation
from runner.engine.null_files import NullFiles
from runner.engine.rate_limits import recorded_policy
from runner.engine.session import Session
from runner.errors import UsageError
from runner.retries.classify import Failure, RateLimited
from runner.retries.retry import Retry
from runner.testing import Action, Fail, Hang, Return, Scripted, deterministic_options

LIMITATION: Final = (
    "an estimate: latencies and rate limits are those of the recorded load; "
    "both may be worse with more concurrent calls, and better with fewer"
)

_KEY: Final = "key"
_DEFAULT_ACTIONS: Final[tuple[Action, ...]] = (Return(output=True),)
"""Actions of a scorer for a trial without a recorded call."""


@attrs.frozen(kw_only=True)
class Figures:
    """Duration, calls and results of a run."""

    policy: str | None
    """None if the journal does not record it."""
    slots: int | None
    duration: float
    """Seconds, without the time between sessions."""
    calls: int
    rate_limited: int
    max_in_flight: int
    completed: int
    failed: int


@attrs.define
class TrialScript:
    """The recorded attempts of a trial."""

    actions: list[Action] = attrs.field(factory=list)
    """The attempts, without interrupted ones, since the last retry with reason `requested` or `stopped`."""
    calls: int = 0
    """All attempts, interrupted ones included."""
    rate_limited: int = 0
    key: str = ""
    scorer_calls: defaultdict[str, list[Action]] = attrs.field(factory=lambda: defaultdict(list))
    """The recorded calls of each scorer."""


class Recording:
    """The parts of a journal that a simulation needs."""

    def __init__(self) -> None:
        self._state = RunState()
        self._scripts: dict[str, TrialScript] = {}
        self._scorer_keys: dict[str, str] = {}
        """Scorer → the rate-limit key of its calls."""
        self._open_calls: set[tuple[str, str]] = set()
        """Trial and scorer of each call in flight."""
        self._max_in_flight = 0
        self._longest_timeout = 0.0
        """The longest timeout that an attempt exceeded."""
        self._longest_call_timeouts: defaultdict[str, float] = defaultdict(float)
        """Scorer → its longest call that timed out."""

    @property
    def seq(self) -> int:
        """The last record that was applied."""
        return self._state.seq

    def apply(self, record: Record) -> None:
        """Apply one record."""
        self._state.apply(record)
        event = record.event
        if isinstance(event, events.SessionStarted):
            self._open_calls.clear()
        elif isinstance(event, events.TrialEnqueued):
            self._scripts[event.trial] = TrialScript()
        elif isinstance(event, events.TrialEvent):
            self._add_attempt(event, self._scripts[event.trial])
            self._add_call(event, self._scripts[event.trial])

    def _add_call(self, event: events.TrialEvent, script: TrialScript) -> None:
        match event:
            case events.ScorerCallStarted():
                self._scorer_keys[event.scorer] = event.key
                self._open_calls.add((event.trial, event.scorer))
            case events.ScorerCallFailed():
                self._open_calls.discard((event.trial, event.scorer))
                if event.category == "timed_out":
                    self._longest_call_timeouts[event.scorer] = max(self._longest_call_timeouts[event.scorer], event.elapsed)
                    script.scorer_calls[event.scorer].append(Hang())
                else:
                    script.scorer_calls[event.scorer].append(_fail_action(event.category, event))
            case events.TrialScored() | events.ScoringFailed():
                scorer = event.scorer.partition(".")[0]
                if (event.trial, scorer) in self._open_calls:
                    self._open_calls.discard((event.trial, scorer))
                    script.scorer_calls[scorer].append(Return(output=True, after=event.elapsed))

    def _add_attempt(self, event: events.TrialEvent, script: TrialScript) -> None:
        match event:
            case events.AttemptStarted():
                script.calls += 1
                script.key = event.key
                self._max_in_flight = max(self._max_in_flight, len(self._state.running))
            case events.AttemptSucceeded():
                script.actions.append(Return(None, event.elapsed))
            case events.AttemptFailed():
                script.rate_limited += event.category == "rate_limited"
                script.actions.append(_fail_action(event.category, event))
            case events.AttemptTimedOut():
                self._longest_timeout = max(self._longest_timeout, event.timeout)
                script.actions.append(Hang())
            case events.RetryScheduled(reason="requested" | "stopped"):
                script.actions.clear()

    @property
    def done_trials(self) -> dict[str, TrialScript]:
        """The trials that are done and have recorded attempts, in the order of enqueueing."""
        trials = self._state.trials
        return {name: script for name, script in self._scripts.items() if script.actions and trials[name].stage in DONE_STAGES}

    @property
    def excluded_count(self) -> int:
        """Number of trials that cannot be simulated: not done, or without recorded attempts."""
        return self._state.total - len(self.done_trials)

    @property
    def figures(self) -> Figures:
        """The recorded figures; excluded trials count for `duration` and `max_in_flight` only."""
        scripts = self.done_trials
        slots = self._state.settings.get("slots")
        failed_count = sum(self._state.trials[name].stage == "failed" for name in scripts)
        return Figures(
            policy=recorded_policy(self._state.settings),
            slots=slots if isinstance(slots, int) else None,
            duration=self._state.elapsed,
            calls=sum(script.calls for script in scripts.values()),
            rate_limited=sum(script.rate_limited for script in scripts.values()),
            max_in_flight=self._max_in_flight,
            completed=len(scripts) - failed_count,
            failed=failed_count,
        )

    def simulate(self, *, policy: str | None = None, slots: int | None = None) -> Figures:
        """Run the recording on a virtual clock, with another policy or number of slots."""
        scripts, settings = self.done_trials, self._state.settings
        if not scripts:
            raise UsageError("no trial of this run is done; there is nothing to simulate")
        figures = self.figures
        policy, slot_count = policy or figures.policy, slots or figures.slots
        if policy is None or slot_count is None:
            raise UsageError("the journal does not record the policy and the slots", hint="pass both: --policy and --slots")
        task = _RecordedTask(scripts, slot_count)
        evaluation = self._evaluation(task, scripts)
        seed = settings.get("seed")
        # Without `slots`, scorers have their recorded slots, too.
        options = {
            **deterministic_options(seed if isinstance(seed, int) else 0),
            "policy": policy,
            "slots": slots,
            "limit_key": _KEY if any(script.key for script in scripts.values()) else None,
            "files": _NullFiles(),
        }
        session = Session(evaluation, Path("simulation"), **options)
        state = trio.run(session.run, clock=trio.testing.MockClock(autojump_threshold=0)).state
        return Figures(
            policy=policy,
            slots=slot_count,
            duration=round(state.t, 6),
            calls=state.attempts,
            rate_limited=task.rate_limit_failures,
            max_in_flight=task.max_in_flight,
            completed=state.completed,
            failed=state.failed,
        )

    def _evaluation(self, task: "_RecordedTask", scripts: dict[str, TrialScript]) -> Evaluation[Any, Any, Any]:
        settings = self._state.settings
        retry = Retry.from_settings(settings) if "retry" in settings else Retry()
        timeout = settings.get("timeout") or self._longest_timeout or None
        simulated_evaluation: Evaluation[Any, Any, Any] = evaluation(
            cases=[Case(name=name, input=name, metadata={_KEY: script.key}) for name, script in scripts.items()],
            loop="trio",
            timeout=timeout,
            stop_on_same_error=None,
            retry=attrs.evolve(retry, classify=_category),
        )(task)

        scorer_slots = settings.get("scorer_slots")
        for scorer, key in self._scorer_keys.items():
            slots = scorer_slots.get(scorer) if isinstance(scorer_slots, dict) else None
            calls = {name: script.scorer_calls.get(scorer, _DEFAULT_ACTIONS) for name, script in scripts.items()}
            scorer_task = _RecordedScorer(calls, slots, "" if key else task.rate_limit_identity)
            simulated_evaluation.score(name=scorer, timeout=self._longest_call_timeouts.get(scorer))(scorer_task)
        return simulated_evaluation


class _RecordedFailure(RateLimited):
    """The failure of a recorded attempt; its exception is not recorded."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.retry_after)
        self.failure = failure


def _fail_action(category: events.FailureCategory, event: events.AttemptFailed | events.ScorerCallFailed) -> Fail:
    return Fail(_RecordedFailure(Failure(category=category, retry_after=event.retry_after)), event.elapsed)


def _category(exc: BaseException) -> events.FailureCategory | None:
    return exc.failure.category if isinstance(exc, _RecordedFailure) else None


class _RecordedTask(Scripted):
    def __init__(self, scripts: dict[str, TrialScript], slots: int) -> None:
        super().__init__({name: script.actions for name, script in scripts.items()})
        self.default_slots = slots
        self.rate_limit_identity = f"simulation {id(self)}"  # No other run may share its policy.
        self.rate_limit_failures = 0

    def _action(self, value: Any, call: int) -> Action:
        action = super()._action(value, call)
        if isinstance(action, Fail) and isinstance(action.exc, _RecordedFailure):
            self.rate_limit_failures += action.exc.failure.category == "rate_limited"
        return action


class _RecordedScorer:
    fingerprint = "simulated"

    def __init__(self, calls: Mapping[str, Iterable[Action]], slots: int | None, identity: str) -> None:
        self._calls = Scripted(calls)
        self.default_slots = slots
        self.rate_limit_identity = identity

    async def __call__(self, case: Case) -> Any:
        await trio.lowlevel.checkpoint()  # So that trio is detected as the event loop.
        return await self._calls(case.name)


class _NullFiles(NullFiles):
    """A file system that discards everything and takes no real time."""

    def pause(self, seconds: float = 0.0) -> None:
        pass
