"""The public names of evaljournal: `from evaljournal import Case, evaluation`.

A name is imported when it is first used, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # True for type checkers, as in `typing`, whose import takes longer than all others here.
if TYPE_CHECKING:
    from typing import Any, Final

    from evaljournal import executors, journal, replay, scorers, testing
    from evaljournal.replay import audit, compare, load, summarize
    from evaljournal.runner import (
        Case,
        Chat,
        Command,
        CommandWorkers,
        Dataset,
        Endpoint,
        Evaluation,
        Fatal,
        Outcome,
        ProcessWorkers,
        RateLimited,
        RayWorkers,
        RecordedOutput,
        RescoreResult,
        Retry,
        RunFailed,
        RunOptions,
        RunVerification,
        Score,
        Settings,
        UsageError,
        arun,
        durable,
        evaluation,
        gateway_env,
        note,
        rescore,
        run,
        step,
        verify,
    )

__all__ = [
    "Case",
    "Chat",
    "Command",
    "CommandWorkers",
    "Dataset",
    "Endpoint",
    "Evaluation",
    "Fatal",
    "Outcome",
    "ProcessWorkers",
    "RateLimited",
    "RayWorkers",
    "RecordedOutput",
    "RescoreResult",
    "Retry",
    "RunFailed",
    "RunOptions",
    "RunVerification",
    "Score",
    "Settings",
    "UsageError",
    "arun",
    "audit",
    "compare",
    "durable",
    "evaluation",
    "executors",
    "gateway_env",
    "journal",
    "load",
    "note",
    "replay",
    "rescore",
    "run",
    "scorers",
    "step",
    "summarize",
    "testing",
    "verify",
]

_VIEWS: Final = ("audit", "compare", "load", "summarize")
_SUBMODULES: Final = ("executors", "journal", "replay", "scorers", "testing")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'evaljournal' has no attribute {name!r}")
    if name in _SUBMODULES:
        return import_module(f"evaljournal.{name}")
    value = globals()[name] = getattr(import_module(f"evaljournal.{'replay' if name in _VIEWS else 'runner'}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
