"""The workers of a session: the evaluation that they import, and how many attempts each runs concurrently."""

import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from evaljournal.runner.calls import OpenableTask, is_async
from evaljournal.runner.calls.arguments import arguments_of
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.errors import MissingVariable, UsageError
from evaljournal.runner.retries.retry import Retry
from evaljournal.runner.sessions.rate_limits import TaskKeys
from evaljournal.runner.workers.pool import WorkerPool

if TYPE_CHECKING:
    from evaljournal.runner.workers.driver import Workers

ASYNC_PLACES: Final = 16
"""Attempts that a worker runs concurrently if they mostly wait: those of async functions, endpoints and chat models."""


def check_workers(evaluation: Evaluation[Any, Any, Any], settings: Settings) -> None:
    """Raise a `UsageError` if an evaluation cannot run in the workers of its settings, or needs workers and has none."""
    pool = settings.workers
    if pool is None:
        if name := next((scorer.name for scorer in evaluation.scorers.values() if scorer.workers), None):
            problem = f"scorer {name!r} runs in workers, but the run has none"
            raise UsageError(problem, hint="--workers processes, or workers=ProcessWorkers() in Python, starts some")
        return

    if not pool.runs_tasks and not any(scorer.workers for scorer in evaluation.scorers.values()):
        raise UsageError("only scorers run in the workers, but no scorer is defined with workers=True")
    if settings.offline:
        problem = "workers are other processes, whose connections are not prevented; remove workers"
        raise UsageError(problem, setting="offline", value=True)
    if settings.replies and pool.runs_tasks:
        problem = "attempts in workers cannot be answered from recorded replies; remove workers"
        raise UsageError(problem, setting="replies", value=", ".join(settings.replies))
    if settings.gateway and pool.runs_tasks and not (pool.is_local and all(map(_starts_processes, evaluation.tasks.values()))):
        problem = "in workers, only commands on this machine call models through the gateway"
        raise UsageError(problem, setting="gateway", value=True)

    own_retry, retry = evaluation.settings.retry, settings.retry
    if (own_retry.on, own_retry.fail_on, own_retry.classify) != (retry.on, retry.fail_on, retry.classify):
        raise UsageError("workers classify exceptions with the retry=… of @evaluation; put on, fail_on and classify there")


def new_workers(
    pool: WorkerPool, evaluation: Evaluation[Any, Any, Any], settings: Settings, variants: Sequence[str], reference: str
) -> "Workers":
    """Return the workers of a session with these variants.

    Workers build tasks without code from their arguments, and import others from `reference`, or if it is empty, from the file
    of the evaluation.
    """
    from evaljournal.runner.workers.driver import STOP_GRACE, Workers  # noqa: PLC0415  # few runs need it

    variants = variants if pool.runs_tasks else ()
    places = pool.concurrency or min((_default_places(evaluation.tasks[name]) for name in variants), default=1)

    tasks = _tasks_as_data(evaluation, variants)
    reference = "" if tasks else reference or _reference(evaluation)
    opening = {
        "task": reference if pool.is_local else _relative_reference(reference),
        "tasks": tasks,
        "fingerprint": evaluation.fingerprint,
        "variants": {name: evaluation.variants[name].fingerprint if name else "" for name in variants},
        "scorers": {scorer.name: scorer.version for scorer in evaluation.scorers.values() if scorer.workers},
        "loop": settings.loop,
        "timeout": settings.timeout,
        "grace": settings.grace,
        "durable": list(settings.durable),
        "key_without": list(settings.key_without),
        "write_ahead": settings.write_ahead,
        "environment": _environment(pool.environment),
    }

    has_one_key = not TaskKeys.of(evaluation, settings.limit_key).has_several
    is_limited = has_one_key and not opening["scorers"]
    slots = settings.slots if is_limited and settings.slots is not None else math.inf
    stop_grace = settings.grace if "teardown" in evaluation.hooks else STOP_GRACE
    return Workers(pool, opening, places=places, grace=settings.grace, stop_grace=stop_grace, slots=slots)


def _tasks_as_data(evaluation: Evaluation[Any, Any, Any], variants: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of the tasks by variant; empty if a worker needs the user's code for a task, scorer or exception."""
    retry = evaluation.settings.retry
    has_own_rules = type(retry) is not Retry or retry.on or retry.fail_on or retry.classify
    if has_own_rules or evaluation.hooks or any(scorer.workers for scorer in evaluation.scorers.values()):
        return {}
    tasks = {name: arguments_of(evaluation.tasks[name]) for name in variants}
    return {} if None in tasks.values() else tasks


def _environment(names: Sequence[str]) -> dict[str, str]:
    for name in names:
        if name not in os.environ:
            raise MissingVariable(f"the environment variable {name!r}, which the workers need, is not set")
    return {name: os.environ[name] for name in names}


def _default_places(task: Any) -> int:
    is_mostly_waiting = not _starts_processes(task) if isinstance(task, OpenableTask) else is_async(task)
    return ASYNC_PLACES if is_mostly_waiting else 1


def _starts_processes(task: Any) -> bool:
    return getattr(task, "starts_processes", False) is True


def _relative_reference(reference: str) -> str:
    """Return a reference relative to the current directory, if the file is below it: other machines may have it elsewhere."""
    path = Path(reference)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else reference


def _reference(evaluation: Evaluation[Any, Any, Any]) -> str:
    """Return the file and the variable of an evaluation that was run from Python."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        for name, value in list(vars(module).items()):
            if value is evaluation:
                return f"{Path(file).resolve()}:{name}"
    raise UsageError(
        f"workers import the evaluation from its file, but {evaluation.name!r} is not a variable of an imported module"
    )
