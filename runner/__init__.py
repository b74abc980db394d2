"""Acts: make an evaluation happen, and record every step of it.

What a user needs is here; it is imported when it is first asked for, so that the command line can start without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from runner.api import arun, rescore, run
    from runner.data.case import Case
    from runner.data.dataset import Dataset
    from runner.definition.evaluation import Evaluation, evaluation
    from runner.engine.recorder import stamps
    from runner.engine.rescore import Rescored
    from runner.engine.session import Outcome
    from runner.errors import UsageError
    from runner.notes import note
    from runner.retries.classify import Fatal, RateLimited
    from runner.retries.retry import Retry
    from runner.scorers.scorer import Score

__all__ = [
    "Case",
    "Dataset",
    "Evaluation",
    "Fatal",
    "Outcome",
    "RateLimited",
    "Rescored",
    "Retry",
    "Score",
    "UsageError",
    "arun",
    "evaluation",
    "note",
    "rescore",
    "run",
    "stamps",
]

_ROOMS: Final = {
    "Case": "data.case",
    "Dataset": "data.dataset",
    "Evaluation": "definition.evaluation",
    "Fatal": "retries.classify",
    "RateLimited": "retries.classify",
    "Rescored": "engine.rescore",
    "Retry": "retries.retry",
    "Score": "scorers.scorer",
    "UsageError": "errors",
    "evaluation": "definition.evaluation",
    "note": "notes",
    "Outcome": "engine.session",
    "arun": "api",
    "rescore": "api",
    "run": "api",
    "stamps": "engine.recorder",
}
"""Name → the module that it lives in."""


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'runner' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"runner.{_ROOMS[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})  # Or a notebook would offer none of them.
