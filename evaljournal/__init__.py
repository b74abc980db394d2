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
    from evaljournal.integrations.ray.workers import RayWorkers as RayWorkers
    from evaljournal.replay.export.frames import load as load
    from evaljournal.replay.views import audit as audit
    from evaljournal.replay.views import compare as compare
    from evaljournal.replay.views import summarize as summarize
    from evaljournal.runner.calls.acp import Acp as Acp
    from evaljournal.runner.calls.chat import Chat as Chat
    from evaljournal.runner.calls.command import Command as Command
    from evaljournal.runner.calls.dialects.dialect import Answer as Answer
    from evaljournal.runner.calls.dialects.dialect import ChatRequest as ChatRequest
    from evaljournal.runner.calls.dialects.dialect import Dialect as Dialect
    from evaljournal.runner.calls.endpoint import Endpoint as Endpoint
    from evaljournal.runner.calls.gateway_env import gateway_env as gateway_env
    from evaljournal.runner.calls.http.reply import IncompleteReply as IncompleteReply
    from evaljournal.runner.calls.http.reply import InvalidReply as InvalidReply
    from evaljournal.runner.calls.notes import note as note
    from evaljournal.runner.calls.recorded_output import RecordedOutput as RecordedOutput
    from evaljournal.runner.calls.workspaces import current_workspace as current_workspace
    from evaljournal.runner.data.case import Case as Case
    from evaljournal.runner.data.dataset import Dataset as Dataset
    from evaljournal.runner.definition.evaluation import Evaluation as Evaluation
    from evaljournal.runner.definition.evaluation import evaluation as evaluation
    from evaljournal.runner.definition.settings import Settings as Settings
    from evaljournal.runner.errors import RunFailed as RunFailed
    from evaljournal.runner.errors import UsageError as UsageError
    from evaljournal.runner.retries.classify import Fatal as Fatal
    from evaljournal.runner.retries.classify import RateLimited as RateLimited
    from evaljournal.runner.retries.retry import Retry as Retry
    from evaljournal.runner.runs.verification import RunVerification as RunVerification
    from evaljournal.runner.runs.verification import verify as verify
    from evaljournal.runner.scorers.scorer import Score as Score
    from evaljournal.runner.sessions.api import arun as arun
    from evaljournal.runner.sessions.api import rescore as rescore
    from evaljournal.runner.sessions.api import run as run
    from evaljournal.runner.sessions.options import RunOptions as RunOptions
    from evaljournal.runner.sessions.rescore import RescoreResult as RescoreResult
    from evaljournal.runner.sessions.session import Outcome as Outcome
    from evaljournal.runner.steps.durable import durable as durable
    from evaljournal.runner.steps.durable import step as step
    from evaljournal.runner.workers.processes import CommandWorkers as CommandWorkers
    from evaljournal.runner.workers.processes import ProcessWorkers as ProcessWorkers

_MODULES: Final = {
    "Acp": "runner.calls.acp",
    "Answer": "runner.calls.dialects.dialect",
    "Case": "runner.data.case",
    "Chat": "runner.calls.chat",
    "ChatRequest": "runner.calls.dialects.dialect",
    "Command": "runner.calls.command",
    "CommandWorkers": "runner.workers.processes",
    "Dataset": "runner.data.dataset",
    "Dialect": "runner.calls.dialects.dialect",
    "Endpoint": "runner.calls.endpoint",
    "Evaluation": "runner.definition.evaluation",
    "Fatal": "runner.retries.classify",
    "IncompleteReply": "runner.calls.http.reply",
    "InvalidReply": "runner.calls.http.reply",
    "Outcome": "runner.sessions.session",
    "ProcessWorkers": "runner.workers.processes",
    "RateLimited": "runner.retries.classify",
    "RayWorkers": "integrations.ray.workers",
    "RecordedOutput": "runner.calls.recorded_output",
    "RescoreResult": "runner.sessions.rescore",
    "Retry": "runner.retries.retry",
    "RunFailed": "runner.errors",
    "RunOptions": "runner.sessions.options",
    "RunVerification": "runner.runs.verification",
    "Score": "runner.scorers.scorer",
    "Settings": "runner.definition.settings",
    "UsageError": "runner.errors",
    "arun": "runner.sessions.api",
    "audit": "replay.views",
    "compare": "replay.views",
    "current_workspace": "runner.calls.workspaces",
    "durable": "runner.steps.durable",
    "evaluation": "runner.definition.evaluation",
    "gateway_env": "runner.calls.gateway_env",
    "load": "replay.export.frames",
    "note": "runner.calls.notes",
    "rescore": "runner.sessions.api",
    "run": "runner.sessions.api",
    "step": "runner.steps.durable",
    "summarize": "replay.views",
    "verify": "runner.runs.verification",
}
"""Public name → the module that defines it."""
_SUBMODULES: Final = ("executors", "journal", "promptfoo", "replay", "scorers", "testing")

__all__ = [*_MODULES, *_SUBMODULES]  # pyright: ignore[reportUnsupportedDunderAll]  # the names are imported above


_import_name = lazy_names(__name__, _MODULES)


def __getattr__(name: str) -> Any:
    return import_module(f"evaljournal.{name}") if name in _SUBMODULES else _import_name(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
