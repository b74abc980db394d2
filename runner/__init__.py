"""Run evaluations and record every step. Part of evaljournal.

The public names are imported when they are first used, so that the command line starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from runner.api import arun, rescore, run
    from runner.data.case import Case
    from runner.data.dataset import Dataset
    from runner.definition.evaluation import Evaluation, evaluation
    from runner.definition.settings import Settings
    from runner.engine.options import RunOptions
    from runner.engine.rescore import Rescored
    from runner.engine.session import Outcome
    from runner.errors import UsageError
    from runner.notes import note
    from runner.recompute.verification import RunVerification, verify
    from runner.retries.classify import Fatal, RateLimited
    from runner.retries.retry import Retry
    from runner.scorers.scorer import Score
    from runner.tasks.chat import Chat
    from runner.tasks.command import Command
    from runner.tasks.endpoint import Endpoint
    from runner.tasks.recorded_output import RecordedOutput

__all__ = [
    "Case",
    "Chat",
    "Command",
    "Dataset",
    "Endpoint",
    "Evaluation",
    "Fatal",
    "Outcome",
    "RateLimited",
    "RecordedOutput",
    "Rescored",
    "Retry",
    "RunOptions",
    "RunVerification",
    "Score",
    "Settings",
    "UsageError",
    "arun",
    "evaluation",
    "note",
    "rescore",
    "run",
    "verify",
]

_MODULES: Final = {
    "Case": "data.case",
    "Chat": "tasks.chat",
    "Command": "tasks.command",
    "Dataset": "data.dataset",
    "Endpoint": "tasks.endpoint",
    "Evaluation": "definition.evaluation",
    "Fatal": "retries.classify",
    "Outcome": "engine.session",
    "RateLimited": "retries.classify",
    "RecordedOutput": "tasks.recorded_output",
    "Rescored": "engine.rescore",
    "Retry": "retries.retry",
    "RunOptions": "engine.options",
    "RunVerification": "recompute.verification",
    "Score": "scorers.scorer",
    "Settings": "definition.settings",
    "UsageError": "errors",
    "arun": "api",
    "evaluation": "definition.evaluation",
    "note": "notes",
    "rescore": "api",
    "run": "api",
    "verify": "recompute.verification",
}
"""Public name → the module that defines it."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'runner' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"runner.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
