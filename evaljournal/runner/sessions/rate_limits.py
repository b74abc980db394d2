"""Rate-limit keys of a task and its scorers, their default slots, their policies, and their known limits."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from evaljournal.journal.events import SCORER_PREFIX
from evaljournal.replay.text import as_text
from evaljournal.runner.calls import OpenableTask, Sized, is_async
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.calls.recorded_output import RecordedOutput
from evaljournal.runner.concurrency import POLICIES
from evaljournal.runner.concurrency.key_policy import KeyPolicy
from evaljournal.runner.concurrency.policy import Policy
from evaljournal.runner.data.case import MAX_NAME, Case
from evaljournal.runner.data.templates import Fields
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.hooks import Hooks
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.engine.jobs import Job, TrialWork
from evaljournal.runner.engine.recorder import Recorder
from evaljournal.runner.errors import UsageError
from evaljournal.runner.gates.known_limits import KeyLimits, KnownLimits
from evaljournal.runner.scorers.scorer import Scorer
from evaljournal.runner.secrets.masking import mask

ASYNC_SLOTS: Final = 100
"""Default slots of endpoints, chat models and async functions."""
THREAD_SLOTS: Final = 32
"""Default slots of plain functions, each of which takes a thread."""


def default_slots(callee: Callable[..., Any], shards: int = 1) -> int:
    """Return how many calls of a task or a scorer may be in flight in each shard, unless the user sets `slots`."""
    slots = getattr(callee, "default_slots", None)
    if not isinstance(slots, int):
        slots = ASYNC_SLOTS if is_async(callee) else THREAD_SLOTS
    return max(1, slots // shards)


@attrs.frozen
class TaskKeys:
    """The rate-limit keys of attempts: one for all, one per value of a field, or one per endpoint and model of the variants."""

    limit_key: str | None
    """The field of a case, or the parameter of a variant, that holds the key."""
    parameters: Mapping[str, Mapping[str, Any]]
    """Variant → its parameters."""
    by_variant: Mapping[str, str]
    """Variant → its key, unless there is a `limit_key`."""
    tasks: Mapping[str, object]
    """Key → a task whose attempts have it; with `limit_key`, variant → its task."""

    @classmethod
    def of(cls, evaluation: Evaluation[Any, Any, Any], limit_key: str | None) -> "TaskKeys":
        parameters, tasks = {name: variant.parameters for name, variant in evaluation.variants.items()}, evaluation.tasks
        by_variant = {} if limit_key is not None else _keys_by_variant(tasks)
        by_key: dict[str, object] = {}
        for variant, task in tasks.items():
            by_key.setdefault(by_variant.get(variant, variant), task)
        return cls(limit_key, parameters, by_variant, by_key)

    @property
    def has_several(self) -> bool:
        return self.limit_key is not None or len(self.tasks) > 1

    def key_of(self, case: Case, variant: str) -> str:
        if self.limit_key is None:
            return self.by_variant[variant]
        parameters = self.parameters.get(variant, {})
        key = parameters[self.limit_key] if self.limit_key in parameters else Fields(case).get(self.limit_key)
        if len(text := as_text(key)) > MAX_NAME:
            raise UsageError(
                f"the rate-limit key {text[:40]!r}… has {len(text):,} characters; at most {MAX_NAME:,} are allowed"
            )
        return text

    def check(self, case: Case) -> None:
        """Raise a `UsageError` if a case has no rate-limit key."""
        for variant in self.parameters or ("",):
            self.key_of(case, variant)


def _keys_by_variant(tasks: Mapping[str, object]) -> dict[str, str]:
    """Return variant → the key that it shares with the variants of the same endpoint, API key and model."""
    keys: dict[tuple[str, str | None, str], str] = {}
    names: Counter[str] = Counter()
    for task in tasks.values():
        limit = _rate_limit(task)
        if limit not in keys:
            name = mask(" ".join(filter(None, (limit[0], limit[2], _location(task)))))
            names[name] += 1
            keys[limit] = name if names[name] == 1 else f"{name} ({names[name]})"
    if len(keys) == 1:
        return dict.fromkeys(tasks, "")
    return {variant: keys[_rate_limit(task)] for variant, task in tasks.items()}


def _rate_limit(task: object) -> tuple[str, str | None, str]:
    """Return the kind, the endpoint with API key, and the model of a task: calls with the same values share a rate limit."""
    return str(getattr(task, "__name__", "")) if isinstance(task, OpenableTask) else "", _identity(task), _model(task)


def _model(callee: object) -> str:
    """Return the model of a chat or a judge; empty for others."""
    return "" if _identity(callee) is None else str(getattr(getattr(callee, "chat", callee), "model", ""))


def _location(task: object) -> str:
    """Return the host of a task, and the path of an endpoint."""
    url = urlsplit(str(getattr(task, "address", "")))
    return url.netloc.rpartition("@")[2] + ("" if _model(task) else url.path)


def scorer_keys(scorers: Iterable[Scorer], tasks: TaskKeys) -> dict[str, str]:
    """Return the rate-limit keys of scorers by name.

    Scorers that call the same model of an endpoint with the same API key share a rate-limit key. If the task calls it, too, and
    has no `limit_key`, they share the task's key.
    """
    shared_keys: dict[tuple[str | None, str], str] = {}
    for key, task in tasks.tasks.items() if tasks.limit_key is None else ():
        shared_keys.setdefault((_identity(task), _model(task)), key)

    keys: dict[str, str] = {}
    for scorer in scorers:
        identity, own_key = _identity(scorer.function), f"{SCORER_PREFIX}{scorer.name}"
        limit = identity, _model(scorer.function)
        keys[scorer.name] = own_key if identity is None else shared_keys.setdefault(limit, own_key)
    return keys


def _identity(callee: object) -> str | None:
    """Return a value that all calls under one rate limit share, if any; it may contain a secret and must not be recorded."""
    identity: str | None = getattr(callee, "rate_limit_identity", None)
    return identity


def scorer_slots(scorers: Mapping[str, Scorer], tasks: TaskKeys, slots: int | None, shards: int = 1) -> dict[str, int]:
    """Return the slots of the scorers that have a rate-limit key of their own, by name."""
    keys = scorer_keys(scorers.values(), tasks)
    return {
        name: slots or default_slots(scorer.function, shards)
        for name, scorer in scorers.items()
        if not scorer.is_local and keys[name] == f"{SCORER_PREFIX}{name}"
    }


def limit_identity(key: str, tasks: TaskKeys, scorers: Mapping[str, Scorer]) -> tuple[object, ...] | None:
    """Return what identifies the rate limit of a key in this process: endpoint, API key and model; None if that is unknown.

    It may contain a secret and must not be recorded. With a `limit_key`, its value belongs to the identity.
    """
    if tasks.limit_key is not None and not _is_scorer_key(key, scorers):
        return tasks.limit_key, key, *map(_identity, tasks.tasks.values())
    callee = _callee(key, tasks, scorers)
    identity = _identity(callee)
    return None if identity is None else (identity, _model(callee))


def _is_scorer_key(key: str, scorers: Mapping[str, Scorer]) -> bool:
    return key.startswith(SCORER_PREFIX) and key.removeprefix(SCORER_PREFIX) in scorers


def _callee(key: str, tasks: TaskKeys, scorers: Mapping[str, Scorer]) -> object:
    """Return the task or the scorer whose calls have a key; with a `limit_key`, the first task."""
    if _is_scorer_key(key, scorers):
        return scorers[key.removeprefix(SCORER_PREFIX)].function
    return tasks.tasks[key] if tasks.limit_key is None else next(iter(tasks.tasks.values()))


def limits_by_key(
    known_limits: KnownLimits, tasks: TaskKeys, scorers: Mapping[str, Scorer], *, sees_calls: bool
) -> Callable[[str], KeyLimits | None]:
    """Return a function that returns the known limits of a rate-limit key.

    There are none for recorded outputs, which call nothing, and for a function or a command whose calls are seen
    (`sees_calls`): each call waits for the limits of its own key. If they are not seen, declared limits apply to the attempts;
    without any, nothing could show one.
    """

    def limits(key: str) -> KeyLimits | None:
        callee, is_scorer = _callee(key, tasks, scorers), _is_scorer_key(key, scorers)
        if isinstance(callee, RecordedOutput) or (_identity(callee) is None and (is_scorer or sees_calls)):
            return None
        identity = limit_identity(key, tasks, scorers) or object()  # Other runs cannot share limits without an endpoint.
        model = _model(callee) if is_scorer or tasks.limit_key is None else key
        if _identity(callee) is None and not known_limits.declared(model):
            return None
        return known_limits.of(
            identity, key=key, model=model, host=urlsplit(str(getattr(callee, "address", ""))).hostname or ""
        )

    return limits


def has_elastic_slots(key: str, tasks: TaskKeys, scorers: Mapping[str, Scorer], settings: Settings, hooks: Hooks) -> bool:
    """Return whether the slots of a key may follow from its known limits, if the user has not chosen them.

    Only calls of async functions, endpoints and chat models cost so little that there may be many: no processes, threads or
    workers, and nothing that is set up for each attempt.
    """
    callee: Any = _callee(key, tasks, scorers)
    is_light = is_async(callee) and not hasattr(callee, "default_slots")
    return is_light and settings.workers is None and (not hooks or _is_scorer_key(key, scorers))


def call_size(job: Job, tasks: Mapping[str, object]) -> CallSize:
    """Return the size of the call that a job makes; `tasks` are those of the variants."""
    if isinstance(job, TrialWork):
        task = tasks[job.state.variant]
        return task.call_size(job.case) if isinstance(task, Sized) else CallSize()
    judge: object = job.scorer.scorer.function
    return judge.call_size(job.input) if isinstance(judge, Sized) else CallSize()


def policy_maker(
    settings: Settings,
    slots_by_scorer: Mapping[str, int],
    recorder: Recorder,
    *,
    policy_factory: Callable[[int], Policy] | None,
) -> Callable[[str], KeyPolicy]:
    state = recorder.state
    make_policy = policy_factory or (lambda slots: POLICIES[settings.policy](slots, trials=state.sessions.planned or None))
    slots_by_key = {f"{SCORER_PREFIX}{name}": slots for name, slots in slots_by_scorer.items()}

    def policy(key: str) -> KeyPolicy:
        slots = slots_by_key.get(key, settings.slots or 0)
        return KeyPolicy(make_policy, slots, patience=settings.retry.rate_limits, key=key)

    return policy
