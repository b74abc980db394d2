"""Run evaluations and record every attempt. Part of evaljournal.

The public names are imported when they are first used, so that the command line starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from evaljournal.runner.api import arun as arun
    from evaljournal.runner.api import rescore as rescore
    from evaljournal.runner.api import run as run
    from evaljournal.runner.data.case import Case as Case
    from evaljournal.runner.data.dataset import Dataset as Dataset
    from evaljournal.runner.definition.evaluation import Evaluation as Evaluation
    from evaljournal.runner.definition.evaluation import evaluation as evaluation
    from evaljournal.runner.definition.settings import Settings as Settings
    from evaljournal.runner.engine.options import RunOptions as RunOptions
    from evaljournal.runner.engine.rescore import RescoreResult as RescoreResult
    from evaljournal.runner.engine.session import Outcome as Outcome
    from evaljournal.runner.errors import RunFailed as RunFailed
    from evaljournal.runner.errors import UsageError as UsageError
    from evaljournal.runner.notes import note as note
    from evaljournal.runner.recompute.verification import RunVerification as RunVerification
    from evaljournal.runner.recompute.verification import verify as verify
    from evaljournal.runner.retries.classify import Fatal as Fatal
    from evaljournal.runner.retries.classify import RateLimited as RateLimited
    from evaljournal.runner.retries.retry import Retry as Retry
    from evaljournal.runner.scorers.scorer import Score as Score
    from evaljournal.runner.steps.durable import durable as durable
    from evaljournal.runner.steps.durable import step as step
    from evaljournal.runner.tasks.chat import Chat as Chat
    from evaljournal.runner.tasks.command import Command as Command
    from evaljournal.runner.tasks.endpoint import Endpoint as Endpoint
    from evaljournal.runner.tasks.gateway_env import gateway_env as gateway_env
    from evaljournal.runner.tasks.recorded_output import RecordedOutput as RecordedOutput
    from evaljournal.runner.workers.processes import CommandWorkers as CommandWorkers
    from evaljournal.runner.workers.processes import ProcessWorkers as ProcessWorkers
    from evaljournal.runner.workers.ray import RayWorkers as RayWorkers

_MODULES: Final = {
    "Case": "data.case",
    "Chat": "tasks.chat",
    "Command": "tasks.command",
    "CommandWorkers": "workers.processes",
    "Dataset": "data.dataset",
    "Endpoint": "tasks.endpoint",
    "Evaluation": "definition.evaluation",
    "Fatal": "retries.classify",
    "Outcome": "engine.session",
    "ProcessWorkers": "workers.processes",
    "RateLimited": "retries.classify",
    "RayWorkers": "workers.ray",
    "RecordedOutput": "tasks.recorded_output",
    "RescoreResult": "engine.rescore",
    "Retry": "retries.retry",
    "RunFailed": "errors",
    "RunOptions": "engine.options",
    "RunVerification": "recompute.verification",
    "Score": "scorers.scorer",
    "Settings": "definition.settings",
    "UsageError": "errors",
    "arun": "api",
    "durable": "steps.durable",
    "evaluation": "definition.evaluation",
    "gateway_env": "tasks.gateway_env",
    "note": "notes",
    "rescore": "api",
    "run": "api",
    "step": "steps.durable",
    "verify": "recompute.verification",
}
"""Public name → the module that defines it."""

__all__ = [*_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]  # the names are imported above


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'evaljournal.runner' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"evaljournal.runner.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
