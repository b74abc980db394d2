"""The public names of evaljournal: `from evaljournal import Case, evaluation`.

A name is imported when it is first used, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module

from evaljournal.lazy_names import TYPE_CHECKING, lazy_names

if TYPE_CHECKING:
    from typing import Any, Final

    from evaljournal import executors as executors
    from evaljournal import journal as journal
    from evaljournal import promptfoo as promptfoo
    from evaljournal import replay as replay
    from evaljournal import scorers as scorers
    from evaljournal import testing as testing
    from evaljournal.replay.export.frames import load as load
    from evaljournal.replay.views import audit as audit
    from evaljournal.replay.views import compare as compare
    from evaljournal.replay.views import summarize as summarize
    from evaljournal.runner.api import arun as arun
    from evaljournal.runner.api import rescore as rescore
    from evaljournal.runner.api import run as run
    from evaljournal.runner.data.case import Case as Case
    from evaljournal.runner.data.dataset import Dataset as Dataset
    from evaljournal.runner.definition.evaluation import Evaluation as Evaluation
    from evaljournal.runner.definition.evaluation import evaluation as evaluation
    from evaljournal.runner.definition.settings import Settings as Settings
    from evaljournal.runner.errors import RunFailed as RunFailed
    from evaljournal.runner.errors import UsageError as UsageError
    from evaljournal.runner.http.reply import IncompleteReply as IncompleteReply
    from evaljournal.runner.http.reply import InvalidReply as InvalidReply
    from evaljournal.runner.notes import note as note
    from evaljournal.runner.retries.classify import Fatal as Fatal
    from evaljournal.runner.retries.classify import RateLimited as RateLimited
    from evaljournal.runner.retries.retry import Retry as Retry
    from evaljournal.runner.scorers.scorer import Score as Score
    from evaljournal.runner.sessions.options import RunOptions as RunOptions
    from evaljournal.runner.sessions.rescore import RescoreResult as RescoreResult
    from evaljournal.runner.sessions.session import Outcome as Outcome
    from evaljournal.runner.steps.durable import durable as durable
    from evaljournal.runner.steps.durable import step as step
    from evaljournal.runner.tasks.chat import Chat as Chat
    from evaljournal.runner.tasks.command import Command as Command
    from evaljournal.runner.tasks.dialects.dialect import Answer as Answer
    from evaljournal.runner.tasks.dialects.dialect import ChatRequest as ChatRequest
    from evaljournal.runner.tasks.dialects.dialect import Dialect as Dialect
    from evaljournal.runner.tasks.endpoint import Endpoint as Endpoint
    from evaljournal.runner.tasks.gateway_env import gateway_env as gateway_env
    from evaljournal.runner.tasks.recorded_output import RecordedOutput as RecordedOutput
    from evaljournal.runner.verification import RunVerification as RunVerification
    from evaljournal.runner.verification import verify as verify
    from evaljournal.runner.workers.processes import CommandWorkers as CommandWorkers
    from evaljournal.runner.workers.processes import ProcessWorkers as ProcessWorkers
    from evaljournal.runner.workers.ray import RayWorkers as RayWorkers

_MODULES: Final = {
    "Answer": "runner.tasks.dialects.dialect",
    "Case": "runner.data.case",
    "Chat": "runner.tasks.chat",
    "ChatRequest": "runner.tasks.dialects.dialect",
    "Command": "runner.tasks.command",
    "CommandWorkers": "runner.workers.processes",
    "Dataset": "runner.data.dataset",
    "Dialect": "runner.tasks.dialects.dialect",
    "Endpoint": "runner.tasks.endpoint",
    "Evaluation": "runner.definition.evaluation",
    "Fatal": "runner.retries.classify",
    "IncompleteReply": "runner.http.reply",
    "InvalidReply": "runner.http.reply",
    "Outcome": "runner.sessions.session",
    "ProcessWorkers": "runner.workers.processes",
    "RateLimited": "runner.retries.classify",
    "RayWorkers": "runner.workers.ray",
    "RecordedOutput": "runner.tasks.recorded_output",
    "RescoreResult": "runner.sessions.rescore",
    "Retry": "runner.retries.retry",
    "RunFailed": "runner.errors",
    "RunOptions": "runner.sessions.options",
    "RunVerification": "runner.verification",
    "Score": "runner.scorers.scorer",
    "Settings": "runner.definition.settings",
    "UsageError": "runner.errors",
    "arun": "runner.api",
    "audit": "replay.views",
    "compare": "replay.views",
    "durable": "runner.steps.durable",
    "evaluation": "runner.definition.evaluation",
    "gateway_env": "runner.tasks.gateway_env",
    "load": "replay.export.frames",
    "note": "runner.notes",
    "rescore": "runner.api",
    "run": "runner.api",
    "step": "runner.steps.durable",
    "summarize": "replay.views",
    "verify": "runner.verification",
}
"""Public name → the module that defines it."""
_SUBMODULES: Final = ("executors", "journal", "promptfoo", "replay", "scorers", "testing")

__all__ = [*_MODULES, *_SUBMODULES]  # pyright: ignore[reportUnsupportedDunderAll]  # the names are imported above


_import_name = lazy_names(__name__, _MODULES)


def __getattr__(name: str) -> Any:
    return import_module(f"evaljournal.{name}") if name in _SUBMODULES else _import_name(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
