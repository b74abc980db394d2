"""The user's own function, called in the loop that it was written for.

There are three kinds: `async def` for trio, which is awaited as it is; `async def` for asyncio, which runs on one asyncio loop
in one thread of its own; and plain `def`, which runs in threads. All can be cancelled; what resists is abandoned, and said so.
"""

import asyncio
import contextvars
import threading
import types
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Literal, Self

import outcome
import trio

from journal.writer import InThread
from runner.score import is_async
from runner.tasks import Ending

Late = Callable[[Ending], None]
Loop = Literal["trio", "asyncio"]

_NOT_IN_TRIO: Final = "must be called from async context"
"""What trio says when something of its own is awaited elsewhere."""


class LeakedCancellation(Exception):
    """The function raised a cancellation that nobody had asked for."""


class FunctionTask:
    """A function as a task."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        loop: Loop | None,
        asyncio_thread: "AsyncioThread",
        slots: int,
        in_thread: InThread | None = None,
    ) -> None:
        self._function = function
        self._asyncio = asyncio_thread
        self._threads = trio.CapacityLimiter(slots)
        self._run_plain = in_thread
        """What runs plain functions instead of threads; a test on a virtual clock must not wait for real ones."""
        self.loop = loop or (guessed_loop(function) if is_async(function) else None)
        """The loop that it runs in; None for a plain function, and for one of which nothing is known before its first call."""
        self._may_be_trio = is_async(function) and self.loop is None
        if not is_async(function):
            self.ask: Callable[[Any, Late], Awaitable[Any]] = self._in_thread
        elif self.loop == "trio":
            self.ask = self._in_trio
        else:
            self.ask = self._in_asyncio

    async def _in_trio(self, value: Any, _: Late) -> Any:
        return await self._function(value)

    async def _in_asyncio(self, value: Any, late: Late) -> Any:
        try:
            result = await self._asyncio.call(self._function, value, late)
        except RuntimeError as exc:
            if not self._may_be_trio or _NOT_IN_TRIO not in str(exc):
                raise
            # It wants trio after all. Nothing has been awaited, so it can be called again where it belongs.
            self.loop, self.ask, self._may_be_trio = "trio", self._in_trio, False
            return await self._in_trio(value, late)
        self._may_be_trio = False
        return result

    async def _in_thread(self, value: Any, late: Late) -> Any:
        if self._run_plain is not None:
            return await self._run_plain(lambda: self._function(value))
        token = trio.lowlevel.current_trio_token()
        abandoned = threading.Event()

        def call() -> outcome.Outcome[Any]:
            result: outcome.Outcome[Any] = outcome.capture(self._function, value)
            if abandoned.is_set():
                _tell(token, late, result)
            return result

        try:
            result = await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)
        except trio.Cancelled:
            abandoned.set()
            raise
        return result.unwrap()


def _tell(token: trio.lowlevel.TrioToken, late: Late, result: outcome.Outcome[Any]) -> None:
    with suppress(trio.RunFinishedError):  # The run may be over; then nobody keeps a journal any more.
        token.run_sync_soon(late, "succeeded" if isinstance(result, outcome.Value) else "failed")


def guessed_loop(function: Callable[..., Any]) -> Loop | None:
    """Guess from the names that a function uses which loop it is written for; None if they do not tell."""
    function = getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None) or getattr(getattr(function, "__call__", None), "__code__", None)  # noqa: B004
    if code is None:
        return None
    modules = getattr(function, "__globals__", {})
    roots = {
        value.__name__.partition(".")[0] for name in _names(code) if isinstance(value := modules.get(name), types.ModuleType)
    }
    if "trio" in roots:
        return "trio"
    return "asyncio" if "asyncio" in roots else None


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


class AsyncioThread:
    """One asyncio loop in one thread, started when it is first needed; many calls share it, and none can block the journal."""

    def __init__(self, *, grace: float) -> None:
        self._grace = grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread = self._thread
            with trio.CancelScope(shield=True), trio.move_on_after(self._grace):
                await trio.to_thread.run_sync(thread.join, abandon_on_cancel=True)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(loop,), name="evaljournal-asyncio", daemon=True)
            self._thread.start()
        return self._loop

    async def call(self, function: Callable[[Any], Awaitable[Any]], value: Any, late: Late) -> Any:
        """Await an asyncio function from trio; cancelling this cancels that, and waits for it to end, but not for ever."""
        loop = self._started()
        token = trio.lowlevel.current_trio_token()
        done = trio.Event()
        results: list[outcome.Outcome[Any]] = []
        tasks: list[asyncio.Task[None]] = []
        context = contextvars.copy_context()
        abandoned = False

        async def guarded() -> None:
            try:
                result: outcome.Outcome[Any] = outcome.Value(await function(value))
            except asyncio.CancelledError as exc:
                leaked = LeakedCancellation("the task raised asyncio.CancelledError, and nobody had cancelled it")
                leaked.__cause__ = exc
                result = outcome.Error(leaked)
            except BaseException as exc:  # noqa: BLE001  # a SystemExit in here would end the loop for all others
                result = outcome.Error(exc)
            if abandoned:
                _tell(token, late, result)
                return
            results.append(result)
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        def start() -> None:
            tasks.append(loop.create_task(guarded(), context=context))

        loop.call_soon_threadsafe(start)
        try:
            await done.wait()
        except trio.Cancelled:
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            with trio.CancelScope(shield=True), trio.move_on_after(self._grace):
                await done.wait()
            abandoned = not done.is_set()
            raise
        return results[0].unwrap()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        loop.run_until_complete(asyncio.wait(pending, timeout=1)) if pending else None
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
