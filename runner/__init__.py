"""Run evaluations and record every attempt. Part of evaljournal.

The public names are imported when they are first used, so that the command line starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from runner.api import arun as arun
    from runner.api import rescore as rescore
    from runner.api import run as run
    from runner.data.case import Case as Case
    from runner.data.dataset import Dataset as Dataset
    from runner.definition.evaluation import Evaluation as Evaluation
    from runner.definition.evaluation import evaluation as evaluation
    from runner.definition.settings import Settings as Settings
    from runner.engine.options import RunOptions as RunOptions
    from runner.engine.rescore import RescoreResult as RescoreResult
    from runner.engine.session import Outcome as Outcome
    from runner.errors import RunFailed as RunFailed
    from runner.errors import UsageError as UsageError
    from runner.notes import note as note
    from runner.recompute.verification import RunVerification as RunVerification
    from runner.recompute.verification import verify as verify
    from runner.retries.classify import Fatal as Fatal
    from runner.retries.classify import RateLimited as RateLimited
    from runner.retries.retry import Retry as Retry
    from runner.scorers.scorer import Score as Score
    from runner.steps.durable import durable as durable
    from runner.steps.durable import step as step
    from runner.tasks.chat import Chat as Chat
    from runner.tasks.command import Command as Command
    from runner.tasks.endpoint import Endpoint as Endpoint
    from runner.tasks.gateway_env import gateway_env as gateway_env
    from runner.tasks.recorded_output import RecordedOutput as RecordedOutput
    from runner.workers.processes import CommandWorkers as CommandWorkers
    from runner.workers.processes import ProcessWorkers as ProcessWorkers
    from runner.workers.ray import RayWorkers as RayWorkers

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
        raise AttributeError(f"module 'runner' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"runner.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
