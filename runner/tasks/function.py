"""The user's own function, called in the loop that it was written for.

There are three kinds: `async def` for trio, which is awaited as it is; `async def` for asyncio, which runs on one asyncio loop
in one thread of its own; and plain `def`, which runs in threads. All can be cancelled; what resists is abandoned, and said so.
"""

import asyncio
import contextvars
import functools
import math
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Final, Literal, Self

import outcome
import trio

from journal.threads import InThread
from runner.retries.classify import Fatal
from runner.scorers.scorer import is_async
from runner.tasks import OnLateResult

Loop = Literal["trio", "asyncio"]

_NOT_IN_TRIO: Final = "must be called from async context"
"""What trio says when something of its own is awaited elsewhere."""

_NOT_IN_ASYNCIO: Final = ("no running event loop", "unrecognized yield message")
"""What asyncio says when it is wanted elsewhere, and what trio says when something of asyncio's is awaited in it."""


class WrongLoop(Fatal):
    """The function was called in a loop that it is not written for; the next call would end the same way."""


class _WantsTrio(Exception):
    """The first thing that the function awaited was trio's."""


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
        in_thread: InThread | None = None,
    ) -> None:
        self._function = function
        self.takes_trial = False
        self._asyncio = asyncio_thread
        self._threads = trio.CapacityLimiter(math.inf)  # Slots are the limit; a thread that was abandoned holds none of them.
        self._run_plain = in_thread
        """What runs plain functions instead of threads; a test on a virtual clock must not wait for real ones."""
        self.loop = loop or (detect_loop(function) if is_async(function) else None)
        """The loop that it runs in; None for a plain function, and for one of which nothing is known until it first waits."""
        if not is_async(function):
            self.call: Callable[[Any, OnLateResult], Awaitable[Any]] = self._in_thread
        elif self.loop == "trio":
            self.call = self._in_trio
        elif self.loop == "asyncio":
            self.call = self._in_asyncio
        else:
            self.call = self._find_out

    async def _in_trio(self, value: Any, _: OnLateResult) -> Any:
        # In a context of its own, as in a thread or in asyncio: what one attempt sets, the slot's next must not see.
        context = contextvars.copy_context()
        try:
            return await _stepped(context.run(self._function, value), context)
        except (RuntimeError, TypeError) as exc:
            if not any(sign in str(exc) for sign in _NOT_IN_ASYNCIO):
                raise
            raise WrongLoop(f"the function needs asyncio, and was called in trio; say loop='asyncio' ({exc})") from exc

    async def _in_asyncio(self, value: Any, late: OnLateResult) -> Any:
        try:
            return await self._asyncio.call(self._function, value, late)
        except RuntimeError as exc:
            if not _is_about_trio(exc):
                raise
            raise WrongLoop(f"the function needs trio, and was called in asyncio; say loop='trio' ({exc})") from exc

    async def _find_out(self, value: Any, late: OnLateResult) -> Any:
        """Call it in asyncio; if the first thing that it waits for is trio's, call it again, where it belongs.

        A call that does not wait at all tells nothing. Several first calls may be on their way at once.
        """
        try:
            return await self._asyncio.call(self._probe, value, late)
        except _WantsTrio:
            self.loop, self.call = "trio", self._in_trio
        return await self._in_trio(value, late)

    async def _probe(self, value: Any) -> Any:
        waited = False

        def look(wanted: object) -> None:
            nonlocal waited
            if type(wanted).__module__.partition(".")[0] == "trio" or _is_trio_trap(wanted):
                raise _WantsTrio if not waited else WrongLoop("the function awaits asyncio and trio; it can only have one")
            if not waited:
                waited, self.loop, self.call = True, "asyncio", self._in_asyncio

        try:
            return await _stepped(self._function(value), None, look)
        except RuntimeError as exc:
            if waited or not _is_about_trio(exc):
                raise
            raise _WantsTrio from exc

    async def _in_thread(self, value: Any, late: OnLateResult) -> Any:
        if self._run_plain is not None:
            return await self._run_plain(lambda: self._function(value))
        token = trio.lowlevel.current_trio_token()
        lock = threading.Lock()
        abandoned = False
        ended: list[outcome.Outcome[Any]] = []

        def call() -> outcome.Outcome[Any]:
            result: outcome.Outcome[Any] = outcome.capture(self._function, value)
            with lock:
                ended.append(result)
                is_late = abandoned
            if is_late:
                _tell(token, late, result)
            return result

        try:
            result = await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)
        except trio.Cancelled:
            with lock:
                abandoned = True
            if ended:  # It came back between the cancellation and now.
                _tell(token, late, ended[0])
            raise
        return result.unwrap()


def _is_about_trio(exc: RuntimeError) -> bool:
    return _NOT_IN_TRIO in str(exc) or ("bad yield" in str(exc) and "trio." in str(exc))


def _is_trio_trap(wanted: object) -> bool:
    return isinstance(wanted, type) and wanted.__module__.partition(".")[0] == "trio"


@types.coroutine
def _stepped(
    awaitable: Any, context: contextvars.Context | None, look: Callable[[object], None] | None = None
) -> Generator[Any, Any, Any]:
    """Await something step by step: each step in a context, if one is given, and with a look at what it waits for."""
    if not isinstance(awaitable, types.CoroutineType):
        return (yield from awaitable.__await__())
    coroutine: Coroutine[Any, Any, Any] = awaitable
    step: Callable[[Any], Any] = coroutine.send
    given: Any = None
    while True:
        try:
            wanted = step(given) if context is None else context.run(step, given)
        except StopIteration as end:
            return end.value
        try:
            if look is not None:
                look(wanted)
            step, given = coroutine.send, (yield wanted)
        except (_WantsTrio, WrongLoop):
            coroutine.close()
            raise
        except BaseException as exc:  # noqa: BLE001  # whatever is thrown in here is meant for the coroutine
            step, given = coroutine.throw, exc


def _tell(token: trio.lowlevel.TrioToken, late: OnLateResult, result: outcome.Outcome[Any]) -> None:
    with suppress(trio.RunFinishedError):  # The run may be over; then nobody keeps a journal any more.
        token.run_sync_soon(late, "succeeded" if isinstance(result, outcome.Value) else "failed")


def detect_loop(function: Callable[..., Any]) -> Loop | None:
    """Guess from the names that a function uses which loop it is written for; None if they do not tell."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__wrapped__", function)
    if not hasattr(function, "__code__"):
        function = getattr(function, "__call__", function)  # noqa: B004  # an object is read by the method that is called
    code = getattr(function, "__code__", None)
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

    def __init__(self, *, grace: float, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._grace = grace
        self._loop = loop
        """One that runs elsewhere may be given: clients that were made in it work in no other."""
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

    async def call(self, function: Callable[[Any], Awaitable[Any]], value: Any, late: OnLateResult) -> Any:
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
            if abandoned or isinstance(getattr(results[0], "error", None), LeakedCancellation):
                raise
            # It answered its cancellation with a result: as with trio's own, that is late, and whoever asked will say so.
        return results[0].unwrap()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        if pending and loop.run_until_complete(asyncio.wait(pending, timeout=1))[1]:
            loop.run_forever()  # What ignores its end would spin where it is thrown away; so it is kept till the process ends.
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
