"""What the user has written, made into what can be asked; it is open as long as a session lasts."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from journal.threads import InThread, run_in_thread
from runner.scorers.scorer import OpenScorer, Scorer, ScorerInput
from runner.tasks import OpenableTask, Task
from runner.tasks.function import AsyncioThread, FunctionTask, Loop


class Opening:
    """Makes what can be asked of functions, and opens what has to be opened; all of it is closed with the stack."""

    def __init__(self, stack: AsyncExitStack, run: str, *, grace: float, in_thread: InThread) -> None:
        self._stack = stack
        self._run = run
        self._grace = grace
        self._instead = None if in_thread is run_in_thread else in_thread
        self._thread: AsyncioThread | None = None

    async def task(self, asked: Any, loop: Loop | None) -> Task:
        """Open a task."""
        return await self._open(asked, asked, loop)

    async def scorer(self, scorer: Scorer, key: str) -> OpenScorer:
        """Open a scorer whose calls count for a rate-limit key."""
        return OpenScorer(scorer=scorer, task=await self._open(scorer.function, _as_task(scorer), None), key=key)

    async def _open(self, asked: object, function: Callable[[Any], Any], loop: Loop | None) -> Task:
        if isinstance(asked, OpenableTask):
            return await self._stack.enter_async_context(asked.open_session(self._run))
        if self._thread is None:
            self._thread = await self._stack.enter_async_context(AsyncioThread(grace=self._grace))
        return FunctionTask(function, loop=loop, asyncio_thread=self._thread, in_thread=self._instead)


def _as_task(scorer: Scorer) -> Callable[[Any], Any]:
    """Let a scorer, which takes an output and a case, be asked like any other task."""
    function: Any = scorer.function
    if scorer.is_async:

        async def call(judged: ScorerInput) -> Any:
            return await function(judged.output, judged.case)

        call.__wrapped__ = function  # type: ignore[attr-defined]  # which loop it needs is seen from its own code
        return call
    return lambda judged: function(judged.output, judged.case)
