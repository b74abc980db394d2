"""Rate-limit keys of a task and its scorers, their default slots, and their policies."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

from journal.events import SCORER_PREFIX
from runner.concurrency import POLICIES
from runner.concurrency.aimd import AIMD_NUMBERS, Aimd
from runner.concurrency.policy import Policy
from runner.concurrency.registry import REGISTRY, Identity
from runner.definition.evaluation import Evaluation
from runner.definition.settings import Settings
from runner.engine.recorder import Recorder
from runner.scorers.scorer import Scorer
from runner.tasks import is_async

ASYNC_SLOTS: Final = 100
"""Default slots of endpoints, chat models and async functions."""
THREAD_SLOTS: Final = 32
"""Default slots of plain functions, each of which takes a thread."""


@runtime_checkable
class Identified(Protocol):
    """A task or a scorer with the identity of the rate limit of its calls."""

    @property
    def rate_limit_identity(self) -> str:
        """The same for all calls under one rate limit; it may contain a secret and must not be recorded."""
        ...


def default_slots(called: Callable[..., Any]) -> int:
    """Return how many calls of a task or a scorer may be in flight unless the user sets `slots`."""
    slots = getattr(called, "default_slots", None)
    if isinstance(slots, int):
        return slots
    return ASYNC_SLOTS if is_async(called) else THREAD_SLOTS


def scorer_keys(scorers: Iterable[Scorer], task: object, limit_key: str | None) -> dict[str, str]:
    """Return the rate-limit keys of scorers by name.

    Scorers that call the same endpoint with the same API key share one: that of the task, or that of the first of them.
    """
    shared: dict[str | None, str] = {} if limit_key is not None else {_identity(task): ""}
    shared.pop(None, None)
    keys: dict[str, str] = {}
    for scorer in scorers:
        identity, own = _identity(scorer.function), f"{SCORER_PREFIX}{scorer.name}"
        keys[scorer.name] = own if identity is None else shared.setdefault(identity, own)
    return keys


def _identity(called: object) -> str | None:
    return called.rate_limit_identity if isinstance(called, Identified) else None


def scorer_slots(scorers: Mapping[str, Scorer], task: object, limit_key: str | None, slots: int | None) -> dict[str, int]:
    """Return the slots of the scorers that have a rate-limit key of their own, by name."""
    keys = scorer_keys(scorers.values(), task, limit_key)
    return {
        name: slots or default_slots(scorer.function)
        for name, scorer in scorers.items()
        if not scorer.is_local and keys[name] == f"{SCORER_PREFIX}{name}"
    }


def shared_identity(key: str, task: object, scorers: Mapping[str, Scorer], limit_key: str | None) -> Identity | None:
    """Return what identifies a rate limit across the runs of a process; None if it must not be shared."""
    if key.startswith(SCORER_PREFIX) and key.removeprefix(SCORER_PREFIX) in scorers:
        identity = _identity(scorers[key.removeprefix(SCORER_PREFIX)].function)
        return None if identity is None else ("endpoint", identity)
    identity = _identity(task)
    if limit_key is not None:
        return "limit_key", limit_key, key, identity
    return None if identity is None else ("endpoint", identity)


def recorded_policy(settings: Mapping[str, Any]) -> str | None:
    """Return the name of the policy of a session; None if the journal does not record it."""
    policy = settings.get("policy")
    return policy if isinstance(policy, str) else None


def new_policy(name: str, slots: int, settings: Mapping[str, Any], trials: int) -> Policy:
    """Return a policy as the settings of a session describe it. 0 `trials`: unknown."""
    aimd: Mapping[str, Any] | None = settings.get("aimd")
    if name != "aimd" or aimd is None:
        return POLICIES[name](slots, trials=trials or None)
    numbers: dict[str, Any] = {name: float(aimd[name]) for name in AIMD_NUMBERS}
    return Aimd(slots, **numbers)


def policies(
    evaluation: Evaluation[Any, Any, Any],
    settings: Settings,
    slots_by_scorer: Mapping[str, int],
    recorder: Recorder,
    limits: Callable[[int], Policy] | None,
) -> Callable[[str], Policy]:
    """Return a function that makes the policy of a rate-limit key, or joins the one that another run of this process uses."""
    new = limits or partial(POLICIES[settings.policy], trials=recorder.state.planned or None)
    slots_by_key = {f"{SCORER_PREFIX}{name}": slots for name, slots in slots_by_scorer.items()}

    def policy(key: str) -> Policy:
        slots = slots_by_key.get(key, settings.slots or 0)
        identity = shared_identity(key, evaluation.task, evaluation.scorers, settings.limit_key)
        if identity is None or limits is not None or settings.policy == "fixed":
            return new(slots)
        run, now = recorder.journal.run, recorder.clock.now()
        return REGISTRY.join((settings.policy, *identity), run, slots, now, partial(new, slots))

    return policy
