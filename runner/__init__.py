"""Acts: make an evaluation happen, and record every step of it.

What a user needs is here; it is imported when it is first asked for, so that the command line can start without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from runner.case import Case
    from runner.dataset import Dataset
    from runner.definition import Evaluation, evaluation
    from runner.doors import arun, rescore, run
    from runner.errors import UsageError
    from runner.failure import Fatal, RateLimited
    from runner.notes import note
    from runner.recorder import stamps
    from runner.rescoring import Rescored
    from runner.retry import Retry
    from runner.score import Score
    from runner.session import Outcome

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
    "Case": "case",
    "Dataset": "dataset",
    "Evaluation": "definition",
    "Fatal": "failure",
    "RateLimited": "failure",
    "Rescored": "rescoring",
    "Retry": "retry",
    "Score": "score",
    "UsageError": "errors",
    "evaluation": "definition",
    "note": "notes",
    "Outcome": "session",
    "arun": "doors",
    "rescore": "doors",
    "run": "doors",
    "stamps": "recorder",
}
"""Name → the module that it lives in."""


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'runner' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"runner.{_ROOMS[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})  # Or a notebook would offer none of them.
