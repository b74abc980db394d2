"""Opens the tasks and the scorers of an evaluation for the duration of a session."""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from evaljournal.journal.threads import InThread, run_in_thread
from evaljournal.runner.scorers.scorer import OpenScorer, Scorer, ScorerInput
from evaljournal.runner.tasks import OpenableTask, Task
from evaljournal.runner.tasks.function import AsyncioThread, FunctionTask, Loop
from evaljournal.runner.workers.driver import Workers
from evaljournal.runner.workers.remote_task import RemoteScorer, RemoteTask


class TaskOpener:
    """Converts functions to tasks, and opens tasks that hold connections; all are closed with the stack."""

    def __init__(
        self, stack: AsyncExitStack, run: str, *, grace: float, in_thread: InThread, workers: Workers | None = None
    ) -> None:
        """Scorers that are defined with `workers=True` are called in `workers`, and tasks are if `workers.runs_tasks`."""
        self._stack = stack
        self._run = run
        self._grace = grace
        self._in_thread = None if in_thread is run_in_thread else in_thread
        self._workers = workers
        self._thread: AsyncioThread | None = None

    async def tasks(self, tasks: Mapping[str, Any], loop: Loop | None, *, gateway: bool) -> dict[str, Task]:
        """Open the tasks of all variants; with `gateway`, their attempts call models through one."""
        open_tasks: dict[str, Task] = {variant: await self._open(task, task, loop) for variant, task in tasks.items()}
        if (workers := self._workers) is not None and workers.runs_tasks:
            open_tasks = {variant: RemoteTask(task, variant, workers) for variant, task in open_tasks.items()}
        if not gateway:
            return open_tasks
        from evaljournal.runner.gateway.gateway import GatewayTask, open_gateway  # noqa: PLC0415  # an HTTP client is slow to import
        from evaljournal.runner.gateway.providers import providers_from_environment  # noqa: PLC0415  # an HTTP client is slow to import

        shared_gateway = await self._stack.enter_async_context(open_gateway(providers_from_environment()))
        return {variant: GatewayTask(task, shared_gateway) for variant, task in open_tasks.items()}

    async def scorer(self, scorer: Scorer, key: str) -> OpenScorer:
        """Open a scorer with its rate-limit key."""
        if scorer.workers and self._workers is not None:
            return OpenScorer(scorer=scorer, task=RemoteScorer(scorer.name, self._workers), key=key)
        return OpenScorer(scorer=scorer, task=await self._open(scorer.function, _as_task(scorer), None), key=key)

    async def _open(self, target: object, function: Callable[[Any], Any], loop: Loop | None) -> Task:
        if isinstance(target, OpenableTask):
            return await self._stack.enter_async_context(target.open_session(self._run))
        if self._thread is None:
            self._thread = await self._stack.enter_async_context(AsyncioThread(grace=self._grace))
        return FunctionTask(function, loop=loop, asyncio_thread=self._thread, in_thread=self._in_thread)


def _as_task(scorer: Scorer) -> Callable[[Any], Any]:
    """Return a function with one argument that calls a scorer."""
    if scorer.is_async:

        async def call(scorer_input: ScorerInput) -> Any:
            return await scorer.call(scorer_input)

        call.__wrapped__ = scorer.function  # type: ignore[attr-defined]  # the event loop is detected from the scorer's code
        return call
    return scorer.call
