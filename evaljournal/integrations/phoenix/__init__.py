"""The executor interface of the Phoenix evals library on top of this engine.

    from evaljournal.executors import AsyncExecutor

    outputs, details = AsyncExecutor(generate, concurrency=16, journal="runs/answers").run(prompts)

An executor turns its function and its inputs into an evaluation, runs it like `run`, and derives the result of every input from
the records. Differences from Phoenix are in `docs/migrating.md`.
"""

from evaljournal.integrations.phoenix.controller import ConcurrencyController
from evaljournal.integrations.phoenix.execution import Incomplete
from evaljournal.integrations.phoenix.executor import AsyncExecutor, Executor, SyncExecutor, get_executor_on_sync_context
from evaljournal.integrations.phoenix.results import ExecutionDetails, ExecutionStatus
from evaljournal.runner.retries.classify import Fatal, RateLimited

__all__ = [
    "AsyncExecutor",
    "ConcurrencyController",
    "ExecutionDetails",
    "ExecutionStatus",
    "Executor",
    "Fatal",
    "Incomplete",
    "RateLimited",
    "SyncExecutor",
    "get_executor_on_sync_context",
]
