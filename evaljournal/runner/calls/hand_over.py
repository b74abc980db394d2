"""Calls that another thread makes for a trio task: of plain functions in a pool of threads, of asyncio functions in their loop.

To wake a thread costs more than the rest of such a call: a system call, after which both threads want the interpreter. So no
thread is woken twice for what it can do at once.
"""

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, Protocol, Self

import outcome
import trio

from evaljournal.journal.threads import InThread
from evaljournal.runner.calls import OnLateResult

MAX_RESULT_DELAY: Final = 0.01
"""Seconds that the result of an asyncio call waits for those of others; more if one call blocks the event loop for longer."""


class LeakedCancellation(Exception):
    """The function raised a cancellation that was not requested."""


class HandedOver(Protocol):
    """What a thread of a pool executes."""

    def run(self) -> None:
        """Execute it in the thread; must not raise."""
        ...

    def deliver(self) -> None:
        """Process that it has ended; called in the thread of trio."""
        ...


class _Call:
    """A call that another thread makes, and the trio task that waits for it."""

    __slots__ = ("_waiter", "context", "function", "is_abandoned", "on_late", "results", "value")

    def __init__(self, function: Callable[[Any], Any], value: Any, on_late: OnLateResult) -> None:
        self.function = function
        self.value = value
        self.on_late = on_late
        self.context = contextvars.copy_context()
        self.results: list[outcome.Outcome[Any]] = []
        """The result, until it is returned: a variable would be part of a reference cycle; see `run_in_thread`."""
        self.is_abandoned = False
        self._waiter: trio.lowlevel.Task | None = None

    def run(self) -> None:
        self.results.append(outcome.capture(self.context.run, self.function, self.value))

    async def wait(self) -> None:
        self._waiter = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)

    def _stop_waiting(self, _: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    def deliver(self) -> None:
        """Wake the task that waits for the result, or report a late one; called in the thread of trio."""
        if self.is_abandoned:
            self.on_late("succeeded" if isinstance(self.results.pop(), outcome.Value) else "failed")
        elif self._waiter is not None:
            trio.lowlevel.reschedule(self._waiter)


class ThreadPool:
    """Threads for plain functions: as many as there are calls in flight at the same time, until the pool is closed.

    A call that is cancelled is abandoned: its thread ends it, and takes the next one. Threads take calls from one queue, and
    report results with one wake-up of trio for all that end before it looks. That costs a seventh of
    `trio.to_thread.run_sync`, which looks for a thread, names it and takes a token of a limiter for each call. Functions can
    therefore not use `trio.from_thread` without a token.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[HandedOver | None] = SimpleQueue()
        self.threads = 0
        self._calls_in_flight = 0
        """Abandoned ones included, which still occupy a thread."""
        self._ended_calls: deque[HandedOver] = deque()
        self._is_woken = False
        """Whether trio is going to look at the calls that have ended."""
        self._waking = threading.Lock()

    async def __aenter__(self) -> Self:
        self._token = trio.lowlevel.current_trio_token()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        while self.threads:
            self.end_thread()

    def add_thread(self) -> None:
        threading.Thread(target=self._work, name="evaljournal-function", daemon=True).start()
        self.threads += 1

    def end_thread(self) -> None:
        """Let the next thread that looks for a call end instead."""
        self._calls.put(None)
        self.threads -= 1

    def start(self, call: HandedOver) -> None:
        """Hand over a call to the threads there are."""
        self._calls.put(call)
        self._calls_in_flight += 1

    async def call(self, function: Callable[[Any], Any], value: Any, on_late: OnLateResult) -> Any:
        if self.threads <= self._calls_in_flight:
            self.add_thread()
        call = _Call(function, value, on_late)
        self.start(call)
        try:
            await call.wait()
        except trio.Cancelled:
            call.is_abandoned = True
            raise
        return call.results.pop().unwrap()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            self._ended_calls.append(call)
            del call  # A thread that waits must not keep it in memory.
            with self._waking:
                if not self._is_woken:
                    self._is_woken = True
                    with suppress(trio.RunFinishedError):  # It was abandoned, and the run is over.
                        self._token.run_sync_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_woken = False  # First: a call that ends from now on wakes trio again.
        for _ in range(len(self._ended_calls)):
            self._calls_in_flight -= 1
            self._ended_calls.popleft().deliver()


class SharedThreads(ThreadPool):
    """Threads for many short calls: one is enough, until a call takes long; see `runner.engine.plain_scorers`."""

    def __init__(self, limit: int, in_thread: InThread | None = None) -> None:
        """Start up to `limit` threads; with `in_thread`, for tests on a virtual clock, that executes the calls."""
        super().__init__()
        self.limit = limit
        self._in_thread = in_thread

    def start(self, call: HandedOver) -> None:
        """Hand over a call. If the system allows no thread at all, it is made here, and blocks the loop."""
        if self._in_thread is not None:
            trio.lowlevel.spawn_system_task(self._run, call, self._in_thread)
            return
        if not self.threads:
            self.grow(0)
        if self.threads:
            super().start(call)
        else:
            call.run()
            self._token.run_sync_soon(call.deliver)

    def grow(self, abandoned: int) -> None:
        """Start another thread, unless there are enough; `abandoned` ones do not count."""
        if self._in_thread is None and self.threads < self.limit + abandoned:
            with suppress(RuntimeError):  # The system allows no more.
                self.add_thread()

    async def _run(self, call: HandedOver, in_thread: InThread) -> None:
        await in_thread(call.run)
        call.deliver()


class _AsyncioCall(_Call):
    __slots__ = ("count_call", "task", "turn")

    def __init__(
        self, function: Callable[[Any], Awaitable[Any]], value: Any, on_late: OnLateResult, count_call: Callable[..., None]
    ) -> None:
        super().__init__(function, value, on_late)
        self.count_call = count_call
        self.task: asyncio.Task[None] | None = None
        self.turn: list[None] = []
        """The turn of asyncio in which it began: not empty once that is over."""


class AsyncioThread:
    """An asyncio loop in its own thread, started when it is first needed and shared by all calls.

    The calls of one turn of trio are handed over together, and the results of one turn of asyncio come back together. A result
    waits for the other calls that asyncio runs in the same turn, but for no more than one that blocks the loop.

    With both loops in one thread, a call would cost half as much. But a task that blocks its loop would then block timeouts,
    Ctrl-C and the screen, too.
    """

    def __init__(self, *, grace: float, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._grace = grace
        self._loop = loop
        """A loop that already runs elsewhere, because clients created in it work in no other; None: one is started."""
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._new_calls: list[_AsyncioCall] = []
        self._has_sender = False
        self._sender: trio.lowlevel.Task | None = None
        """The task that hands them over in the next turn, while it waits for the first one."""
        self._ended_calls: list[_AsyncioCall] = []
        """Calls whose results are not handed back yet; only the thread of asyncio uses them."""
        self._first_ended_at = 0.0

    async def __aenter__(self) -> Self:
        self._token = trio.lowlevel.current_trio_token()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        self._wake_sender()
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread = self._thread
            # The thread is a daemon: if no other thread can be started to wait for it, it is abandoned.
            with trio.CancelScope(shield=True), trio.move_on_after(self._grace), suppress(RuntimeError):
                await trio.to_thread.run_sync(thread.join, abandon_on_cancel=True)

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._serve, args=(loop,), name="evaljournal-asyncio", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # The system allows no more threads; the next call tries again.
                loop.close()
                raise
            self._loop, self._thread = loop, thread
        return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while not self._is_closing:  # A task may stop the loop that it shares with others, or raise SystemExit in it.
                with suppress(SystemExit, KeyboardInterrupt):
                    loop.run_forever()

            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks and loop.run_until_complete(asyncio.wait(tasks, timeout=1))[1]:
                loop.run_forever()  # A task that ignores its cancellation would spin when it is destroyed, so it is kept.
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    async def call(
        self,
        function: Callable[[Any], Awaitable[Any]],
        value: Any,
        on_late: OnLateResult,
        count_call: Callable[..., None],
    ) -> Any:
        """Await an asyncio function from trio. Cancellation is passed on, and waits for the function for `grace` seconds.

        `count_call` is called in the thread, with the seconds of a call that returned and whether it has waited for anything.
        """
        loop, call = self._start(), _AsyncioCall(function, value, on_late, count_call)
        self._new_calls.append(call)
        if not self._has_sender:
            self._has_sender = True
            trio.lowlevel.spawn_system_task(self._keep_sending)
        self._wake_sender()

        try:
            await call.wait()
        except trio.Cancelled:
            if call in self._new_calls:
                self._new_calls.remove(call)
                raise

            loop.call_soon_threadsafe(lambda: call.task and call.task.cancel())
            with trio.CancelScope(shield=True), trio.move_on_after(self._grace):
                if not call.results:
                    await call.wait()
            call.is_abandoned = not call.results
            if call.is_abandoned or isinstance(getattr(call.results[0], "error", None), LeakedCancellation):
                raise
            # It returned although it was cancelled: the caller treats the result as late.
        return call.results.pop().unwrap()

    def _wake_sender(self) -> None:
        if self._sender is not None:
            trio.lowlevel.reschedule(self._sender)
            self._sender = None

    async def _keep_sending(self) -> None:
        def abort(_: object) -> trio.lowlevel.Abort:
            self._sender = None
            return trio.lowlevel.Abort.SUCCEEDED

        while not self._is_closing:
            if self._new_calls:
                calls, self._new_calls = self._new_calls, []
                try:
                    self._start().call_soon_threadsafe(self._start_calls, calls)
                except RuntimeError as exc:  # The loop is closed.
                    for call in calls:
                        call.results.append(outcome.Error(exc))
                        call.deliver()
            self._sender = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)

    # The rest runs in the thread of asyncio.

    def _start_calls(self, calls: list[_AsyncioCall]) -> None:
        loop, turn = asyncio.get_running_loop(), list[None]()
        for call in calls:
            call.turn = turn
            call.task = loop.create_task(self._run(call, loop), context=call.context)
        loop.call_soon(turn.append, None)  # After all of them have run until they wait for the first time.

    async def _run(self, call: _AsyncioCall, loop: asyncio.AbstractEventLoop) -> None:
        start_time = loop.time()
        try:
            result: outcome.Outcome[Any] = outcome.Value(await call.function(call.value))
            call.count_call(loop.time() - start_time, has_waited=bool(call.turn))
        except asyncio.CancelledError as exc:
            error = LeakedCancellation("the task raised asyncio.CancelledError without being cancelled")
            error.__cause__ = exc
            result = outcome.Error(error)
        except BaseException as exc:  # noqa: BLE001  # a SystemExit would end the loop for all other calls
            result = outcome.Error(exc)
        call.results.append(result)
        del result  # Its traceback refers to this frame; see `run_in_thread`.

        now = loop.time()
        if not self._ended_calls:
            self._first_ended_at = now if call.turn else start_time
            loop.call_soon(self._hand_back)
        self._ended_calls.append(call)
        if now - self._first_ended_at > MAX_RESULT_DELAY:
            self._hand_back()

    def _hand_back(self) -> None:
        calls, self._ended_calls = self._ended_calls, []
        if calls:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(_deliver_all, calls)


def _deliver_all(calls: list[_AsyncioCall]) -> None:
    for call in calls:
        call.deliver()


class FunctionThreads:
    """The threads in which the functions of a session are called; they end with it, or later if they were abandoned."""

    def __init__(self, *, grace: float, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """See `AsyncioThread` for the arguments."""
        self.plain = ThreadPool()
        self.asyncio = AsyncioThread(grace=grace, loop=loop)

    async def __aenter__(self) -> Self:
        await self.plain.__aenter__()
        await self.asyncio.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.plain.__aexit__()
        await self.asyncio.__aexit__()
