"""A session whose calls take the seconds that a run has recorded, on a virtual clock, and write nothing.

It is the real session: the same scheduler, gates, policies and retries, behind other limits, slots or none of them. So how long
a run would have taken is not a formula of its own that could differ from what a run does. What is not known is not simulated:
how the provider would have answered other calls. A call takes its recorded seconds whatever the load.

**What is replaced**: tasks and scorers wait for their recorded seconds and end as they ended; the journal is discarded; budget,
deadline and limits on failures do not apply, because what was recorded is what is computed.

**Rate limits of the provider.** A call that was rate limited is so again, unless limits are declared: they stand for those of
the provider, and calls that keep them are not rate limited.

**Same input, same result.** No thread, no random number of its own, and trio's choice between tasks that are ready at the same
time is seeded.
"""

import random
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

import attrs
import trio

from evaljournal.journal.fact import evolve_fact
from evaljournal.replay import RunState
from evaljournal.replay.state.steps import REUSES
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.calls.http.identity import rate_limit_identity
from evaljournal.runner.calls.notes import engine_note
from evaljournal.runner.data.case import Case, Trial
from evaljournal.runner.data.dataset import Dataset
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.definition.variants import Variant
from evaljournal.runner.retries.classify import Description, RemoteError
from evaljournal.runner.scorers.scorer import ScorerInput
from evaljournal.runner.sessions.environment import Environment
from evaljournal.runner.sessions.null_files import NullFiles
from evaljournal.runner.sessions.plan import Plan, scheduling_settings
from evaljournal.runner.sessions.rate_limits import ASYNC_SLOTS, TaskKeys
from evaljournal.runner.sessions.session import Session
from evaljournal.runner.sessions.what_if.recorded import InnerCall, RecordedAttempt, RecordedCalls, RecordedTrial
from evaljournal.runner.steps.attempt_steps import AttemptSteps, LimitedCall, Step, current_steps
from evaljournal.runner.steps.durable_requests import MODEL_CALLS
from evaljournal.runner.steps.inputs import step_input
from evaljournal.runner.steps.waiting import admit_in_loop

T = TypeVar("T")

_NAME: Final = "what-if"
_URL: Final = "https://recorded"
"""Stands for the providers of the calls inside attempts: limits apply to each model."""
_INPUT: Final = step_input(None, "call")
_START: Final = 1_800_000_000.0
"""The wall time of the start; no result depends on it."""


class _NoDisk(NullFiles):
    def pause(self, seconds: float = 0.0) -> None:
        """Return at once: the clock is virtual."""


def recompute(calls: RecordedCalls, *, limits: Mapping[str, Any] | None = None, slots: int | None = None) -> float:
    """Return how many seconds a run takes with other slots, or under other limits; None: as recorded.

    `limits` are all that are declared, those of the run included.
    """
    from trio.testing import MockClock  # noqa: PLC0415  # only for virtual time

    _seed_scheduler()
    session = _Recomputation(calls, limits, slots)
    return trio.run(session.run, clock=MockClock(autojump_threshold=0)).state.elapsed


def _seed_scheduler() -> None:
    """Let trio choose between ready tasks in the same way each time; it has no public setting."""
    from trio._core import _run  # noqa: PLC0415  # only for virtual time

    getattr(_run, "_r", random.Random()).seed(0)  # noqa: S311  # the order of tasks


class _Recomputation(Session):
    def __init__(self, calls: RecordedCalls, limits: Mapping[str, Any] | None, slots: int | None) -> None:
        environment = Environment(pid=1, host="", boot_id="", versions={}, run="0" * 32)
        super().__init__(
            Evaluation(
                RecordedTask({}, Settings(), None, ""),
                cases=Dataset([]),
                settings=Settings(),
                name=_NAME,
            ),
            Path(_NAME),
            files=_NoDisk(),
            in_thread=_inline,
            wall=lambda: _START + trio.current_time(),
            environment=lambda: environment,
        )

        self._calls = calls
        self._limits = limits
        self._slots = slots

    def _plan(self, state: RunState) -> Plan:  # noqa: ARG002  # it is new
        calls, recorded = self._calls, self._calls.state
        assert recorded.started is not None
        settings = _settings(recorded.settings, self._limits, self._slots)
        if calls.agent_keys:  # Their calls are seen, so that limits apply to these, and not to the attempts.
            settings = attrs.evolve(settings, durable=(MODEL_CALLS,))

        trials = calls.ended_trials
        remaining = {name: _remaining(trial, replays_429s=self._limits is None) for name, trial in trials.items()}
        tasks = {
            key: RecordedTask(
                remaining,
                settings,
                None if key in calls.agent_keys else _identity(key),
                key if recorded.settings.get("limit_key") else calls.models.get(key, ""),
            )
            for key in dict.fromkeys(trial.key for trial in trials.values())
        }

        task = next(iter(tasks.values()))
        names = dict.fromkeys(recorded.trials[name].variant for name in trials)
        variants = {name: Variant(name, {}, task) for name in names} if any(names) else None
        evaluation: Evaluation[Any, Any, Any] = Evaluation(
            task, cases=Dataset([]), settings=settings, name=_NAME, variants=variants
        )

        for scorer in calls.scorers:
            key, model = calls.scorer_keys.get(scorer, ""), calls.judge_models.get(scorer, "")
            is_shared = scorer in calls.scorer_keys and key in tasks
            identity = _identity(key) if is_shared or model else None
            judge = RecordedTask(remaining, settings, identity, tasks[key].model if is_shared else model, scorer)
            evaluation.score(name=scorer, timeout=None)(judge)

        self.evaluation = evaluation
        if len(tasks) == 1:  # A session names its only lane by an empty key.
            tasks = {"": task}
        keys = _Keys(None, {}, dict.fromkeys(names, ""), tasks, trials)

        slots = _scorer_slots(recorded.settings, calls.scorers, self._slots)
        started = evolve_fact(
            recorded.started,
            definition=None,
            settings={**settings.to_json(), "scorer_slots": slots, "overridden": []},
            trials=recorded.sessions.planned,
            merged_from=None,
            forked_from=None,
        )

        has_default = recorded.settings.get("slots") == ASYNC_SLOTS and "slots" not in (
            recorded.settings.get("overridden") or ()
        )
        chosen = None if has_default and not self._slots else settings.slots
        return Plan(settings, _enqueued(recorded, trials), started, slots, evaluation, keys, list(names), chosen_slots=chosen)


def _enqueued(recorded: RunState, names: Iterable[str]) -> Iterator[Trial]:
    """Yield trials; the input of each is its id."""
    for name in names:
        trial = recorded.trials[name]
        yield Trial(case=Case(name=trial.case, input=name), variant=trial.variant, repeat=trial.repeat)


def _settings(recorded: Mapping[str, Any], limits: Mapping[str, Any] | None, slots: int | None) -> Settings:
    """Return the recorded settings that decide when calls start."""
    reuse = recorded.get("reuse_steps")
    return scheduling_settings(
        recorded,
        slots=slots or recorded.get("slots") or ASYNC_SLOTS,
        limits=recorded.get("limits") if limits is None else limits,
        stop_on_same_error=None,
        record_requests=False,
        reuse_steps=reuse if reuse in REUSES else "never",  # Retries depend on it, although no step is reusable.
        durability="os",
        grace=0.0,
    )


def _scorer_slots(recorded: Mapping[str, Any], scorers: list[str], slots: int | None) -> dict[str, int]:
    own_slots = recorded.get("scorer_slots")
    own_slots = own_slots if isinstance(own_slots, dict) else {}
    return {scorer: slots or own_slots[scorer] for scorer in scorers if isinstance(own_slots.get(scorer), int)}


def _identity(key: str) -> str:
    """Return what the calls of a rate-limit key share: other endpoints, accounts and models have other keys."""
    return rate_limit_identity(_URL, (key,))


def _remaining(trial: RecordedTrial, *, replays_429s: bool) -> dict[str, list[RecordedAttempt]]:
    """Return scorer → its calls that are repeated, the next one last; empty: the attempts."""

    def is_repeated(call: RecordedAttempt) -> bool:
        return replays_429s or call.failure is None or call.failure.category != "rate_limited"

    return {scorer: list(filter(is_repeated, reversed(calls))) for scorer, calls in trial.calls.items()}


_NOTHING: Final = RecordedAttempt(0.0)
"""What follows the last recorded call: an output or a score, at once."""
_DESCRIPTION: Final = Description(type="recorded", message="", traceback="")


@attrs.frozen(eq=False)
class _Keys(TaskKeys):
    """The recorded rate-limit key of each trial."""

    trials: Mapping[str, RecordedTrial]

    def key_of(self, case: Case, variant: str) -> str:  # noqa: ARG002  # the trial has it
        return self.trials[case.input].key


@attrs.frozen(eq=False)
class RecordedTask:
    """A task, or a scorer, whose calls take their recorded seconds.

    With a `rate_limit_identity`, each is one call of a model, which rate limits apply to. Without one, they apply to the model
    calls inside it that were recorded as steps.
    """

    __name__ = "recorded"
    fingerprint: ClassVar[str] = _NAME
    takes_trial: ClassVar[bool] = False
    takes_trajectory: ClassVar[bool] = False
    definition: ClassVar[Mapping[str, Any]] = {}

    _remaining: Mapping[str, dict[str, list[RecordedAttempt]]]
    """Trial → its calls that were not made yet."""
    _settings: Settings
    rate_limit_identity: str | None
    model: str
    _scorer: str = ""
    """Its name; empty: it is a task."""

    @asynccontextmanager
    async def open_session(self, _: str, /) -> AsyncGenerator[Self]:
        await trio.lowlevel.checkpoint()
        yield self

    async def __call__(self, output: Any) -> Any:
        """Return nothing: it is called in a session only."""

    def call_size(self, value: Case | ScorerInput, /) -> CallSize:
        """Return the size of the next call for a case or an output."""
        calls = self._calls(value.input if isinstance(value, Case) else value.trial)
        return (calls[-1] if calls else _NOTHING).size

    def _calls(self, trial: str) -> list[RecordedAttempt]:
        return self._remaining[trial].get(self._scorer, [])

    async def call(self, value: Any, _: object, /) -> Any:
        """Take the recorded seconds, and end as recorded; a score is no result. An input is the id of its trial."""
        calls = self._calls(value.trial if self._scorer else value)
        call = calls.pop() if calls else _NOTHING
        if call.has_timed_out and self._settings.timeout is not None:
            await trio.sleep_forever()
        if call.calls:
            await _make_calls(call)
        else:
            await trio.sleep(call.seconds)
        if call.failure is not None:
            raise RemoteError(call.failure, _DESCRIPTION)
        if self._settings.limits is not None and call.usage is not None:
            engine_note(answer={"usage": call.usage})
        return True


async def _make_calls(attempt: RecordedAttempt) -> None:
    """Make the model calls of an attempt, each as long after the one before it as recorded, and wait for its end."""
    steps = current_steps()
    assert steps is not None
    async with trio.open_nursery() as nursery:
        for number in attempt.first_calls:
            nursery.start_soon(_make_call_and_next, steps, attempt.calls, number, nursery)
    await trio.sleep(attempt.tail)


async def _make_call_and_next(
    steps: AttemptSteps, calls: tuple[InnerCall, ...], number: int | None, nursery: trio.Nursery
) -> None:
    while number is not None:
        call = calls[number]
        await trio.sleep(call.gap)
        step = Step(call.model, "model", _INPUT, reusable=False)
        step.call = LimitedCall(_URL, (), call.model, call.size)
        steps.begin(step)
        await admit_in_loop(steps, step)
        await trio.sleep(call.seconds)
        steps.complete(step, None, call.usage)
        number, *others = call.next or (None,)
        for other in others:
            nursery.start_soon(_make_call_and_next, steps, calls, other, nursery)


async def _inline(call: Callable[[], T], /) -> T:
    """Make a blocking call without a thread: a virtual clock does not wait for one."""
    await trio.lowlevel.cancel_shielded_checkpoint()
    return call()
