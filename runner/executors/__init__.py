"""The executor interface of the Phoenix evals library, over this engine: change one import, and gain a journal.

    from runner.executors import AsyncExecutor

    outputs, details = AsyncExecutor(generate, concurrency=16, journal="runs/answers").run(prompts)

There is no second engine behind it. An executor makes an evaluation of its function and its inputs, runs it as `runner.run`
does, and tells what became of every input from what was recorded. `docs/migrating.md` says what is the same and what is not.
"""

from runner.executors.controller import ConcurrencyController
from runner.executors.details import ExecutionDetails, ExecutionStatus
from runner.executors.execution import Incomplete
from runner.executors.executor import AsyncExecutor, SyncExecutor, get_executor_on_sync_context
from runner.retries.classify import Fatal, RateLimited

__all__ = [
    "AsyncExecutor",
    "ConcurrencyController",
    "ExecutionDetails",
    "ExecutionStatus",
    "Fatal",
    "Incomplete",
    "RateLimited",
    "SyncExecutor",
    "get_executor_on_sync_context",
]
