"""The workers of a session: what they import, and how many attempts each runs at once."""

import sys
from pathlib import Path
from typing import Any, Final

from runner.definition.evaluation import Evaluation
from runner.engine.plan import Plan
from runner.errors import UsageError
from runner.tasks import OpenableTask, is_async
from runner.workers.driver import Workers
from runner.workers.pool import WorkerPool

ASYNC_PLACES: Final = 16
"""Attempts that a worker runs at once, if they mostly wait: async functions, endpoints, chat models."""


def new_workers(pool: WorkerPool, evaluation: Evaluation[Any, Any, Any], plan: Plan, reference: str) -> Workers:
    """Return the workers of a session; `reference` is where the evaluation is defined, if that is known."""
    settings, tasks = plan.settings, plan.evaluation.tasks
    own, given = evaluation.settings.retry, settings.retry
    if (own.on, own.fail_on, own.classify) != (given.on, given.fail_on, given.classify):
        problem = "workers classify exceptions with the retry=… of @evaluation; put on, fail_on and classify there"
        raise UsageError(problem)
    variants = {name: plan.evaluation.variants[name].fingerprint if name else "" for name in plan.variants}
    places = pool.concurrency or min(_default_places(tasks[name]) for name in plan.variants)
    opening = {
        "task": reference or _reference(evaluation),
        "fingerprint": evaluation.fingerprint,
        "variants": variants,
        "scorers": {scorer.name: scorer.version for scorer in evaluation.scorers.values() if scorer.workers},
        "loop": settings.loop,
        "durable": list(settings.durable),
        "write_ahead": settings.write_ahead,
    }
    return Workers(pool, opening, places=places, grace=settings.grace)


def _default_places(task: Any) -> int:
    if isinstance(task, OpenableTask):
        return 1 if getattr(task, "starts_processes", False) else ASYNC_PLACES
    return ASYNC_PLACES if is_async(task) else 1


def _reference(evaluation: Evaluation[Any, Any, Any]) -> str:
    """Return the file and the variable of an evaluation that was run from Python."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        for name, value in list(vars(module).items()):
            if value is evaluation:
                return f"{Path(file).resolve()}:{name}"
    raise UsageError(f"workers import the evaluation from its file, but {evaluation.name!r} is no variable of a module")
