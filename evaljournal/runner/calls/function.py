"""A user's function as a task, called in the event loop that it was written for.

An `async def` for trio runs in the run's own loop, one for asyncio on an asyncio loop in its own thread, and a plain `def` in
a thread. A call that does not respond to its cancellation, such as that of a plain `def`, is abandoned.
"""

import contextvars
import functools
import inspect
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, cast

from evaljournal.journal.clock import loop_clock
from evaljournal.journal.threads import InThread
from evaljournal.runner.calls import OnLateResult, is_async
from evaljournal.runner.calls.hand_over import FunctionThreads
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal

_UNLIMITED_STACK: Final = 8 << 20
"""Bytes of a thread's stack if the stack has no limit; Linux uses 2 to 8 MiB."""
Loop = Literal["trio", "asyncio"]
LOOPS: Final[tuple[Loop, ...]] = ("trio", "asyncio")

MIN_BLOCKED: Final = 0.1
"""Seconds from which a call that never waits in its event loop counts as one that blocks it."""

_NOT_IN_TRIO: Final = "must be called from async context"
"""Part of trio's error when one of its functions is awaited in another loop."""

_NOT_IN_ASYNCIO: Final = ("no running event loop", "unrecognized yield message")
"""Part of asyncio's error when it is used in another loop, and of trio's when an asyncio object is awaited."""


class WrongLoop(Fatal):
    """The function was called in an event loop that it is not written for."""


class FunctionTask:
    takes_trial: bool = False

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        loop: Loop | None,
        threads: FunctionThreads,
        in_thread: InThread | None = None,
    ) -> None:
        self._function = function
        self._threads = threads
        self._run_plain = in_thread
        """Runs plain functions instead of a thread, for tests on a virtual clock."""
        self.loop = resolve_loop(function, loop)
        """The event loop it is called in; None for a plain function."""
        self._now = loop_clock()
        self.blocking_calls = 0
        """Number of consecutive calls, up to the last one, that blocked the event loop from their start to their end."""

        calls = {None: self._call_in_thread, "trio": self._call_in_trio, "asyncio": self._call_in_asyncio}
        self.call: Callable[[Any, OnLateResult], Awaitable[Any]] = calls[self.loop]

    async def _call_in_trio(self, value: Any, _: OnLateResult) -> Any:
        # As in a thread or in asyncio: variables that the function sets must not affect the slot's next attempt.
        context, start = contextvars.copy_context(), self._now()
        try:
            result, has_waited = await _await_in_context(context.run(self._function, value), context)
        except (RuntimeError, TypeError) as exc:
            if not any(text in str(exc) for text in _NOT_IN_ASYNCIO):
                raise
            raise WrongLoop(f"the function needs asyncio but was called in trio; pass loop='asyncio' ({exc})") from exc
        is_blocking = not has_waited and self._now() - start >= MIN_BLOCKED
        self.blocking_calls = self.blocking_calls + 1 if is_blocking else 0
        return result

    async def _call_in_asyncio(self, value: Any, on_late: OnLateResult) -> Any:
        try:
            return await self._threads.asyncio.call(self._function, value, on_late, self._count_call)
        except RuntimeError as exc:
            if _NOT_IN_TRIO not in str(exc) and not ("bad yield" in str(exc) and "trio." in str(exc)):
                raise
            raise WrongLoop(f"the function needs trio but was called in asyncio; pass loop='trio' ({exc})") from exc

    def _count_call(self, seconds: float, *, has_waited: bool) -> None:
        self.blocking_calls = 0 if has_waited or seconds < MIN_BLOCKED else self.blocking_calls + 1

    async def _call_in_thread(self, value: Any, on_late: OnLateResult) -> Any:
        if self._run_plain is not None:
            return await self._run_plain(lambda: self._function(value))
        return await self._threads.plain.call(self._function, value, on_late)


def check_threads(slots: int, trials: int) -> None:
    """Raise a `UsageError` if a limit of the address space (`ulimit -v`) has no room for a thread per slot.

    A new thread that gets no memory ends before it runs any code, and `threading.Thread.start` waits for it forever: nothing
    but `kill -9` would end the run.
    """
    try:
        import resource  # noqa: PLC0415  # not on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        stack = threading.stack_size() or resource.getrlimit(resource.RLIMIT_STACK)[0]
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    if limit == resource.RLIM_INFINITY:
        return
    if stack == resource.RLIM_INFINITY:
        stack = _UNLIMITED_STACK
    room = max(0, limit - used) // 2  # The other half is for the data of the run.
    threads = min(slots, trials or slots)
    if threads * stack > room:
        needs = f"{threads:,} threads need {threads * stack >> 20:,} MiB of address space for their stacks"
        fewer = f"pass --slots {room // stack}, or " if room >= stack else ""
        leaves = f"the limit (ulimit -v) leaves {room >> 20:,} MiB"
        raise UsageError(f"{needs}, and {leaves}; {fewer}raise the limit", setting="slots", value=slots)


@types.coroutine
def _await_in_context(awaitable: Any, context: contextvars.Context) -> Generator[Any, Any, tuple[Any, bool]]:
    """Await a coroutine whose code runs in a context; return its result, and whether it has waited for anything."""
    if not isinstance(awaitable, types.CoroutineType):
        return (yield from awaitable.__await__()), True

    advance: Callable[[Any], Any] = awaitable.send
    value: Any = None
    has_waited = False
    while True:
        try:
            message = context.run(advance, value)
        except StopIteration as end:
            return end.value, has_waited
        has_waited = True
        try:
            advance, value = awaitable.send, (yield message)
        except BaseException as exc:  # noqa: BLE001  # to be thrown into the coroutine
            advance, value = awaitable.throw, exc


def resolve_loop(function: Callable[..., Any], loop: Loop | None) -> Loop | None:
    """Return the loop to call a function in: the one that was set, or the one its code uses; None for a plain function.

    Raises a UsageError if its code uses both.
    """
    if not is_async(function):
        return None
    loops: list[Loop] = [loop] if loop is not None else detect_loops(function)
    if len(loops) > 1:
        name = getattr(function, "__name__", repr(function))
        raise UsageError(f"{name} uses trio and asyncio; pass loop='trio' or loop='asyncio'")
    return loops[0]


def detect_loops(function: object) -> list[Loop]:
    """Return the event loops that a coroutine function, or a coroutine, uses according to its code (default: asyncio).

    Its own code decides; if it uses neither, the code of the user's functions and classes that it refers to.
    """
    definitions, visited_ids = [function], set[int]()
    while definitions:
        modules, next_definitions = set[str](), list[object]()
        for definition in definitions:
            for value in _referenced_values(definition):
                modules.add(_root_module(value))
                target = value if isinstance(value, type | types.FunctionType | types.MethodType) else type(value)
                if id(target) not in visited_ids and _is_followed(target):
                    visited_ids.add(id(target))
                    next_definitions.append(target)

        loops: list[Loop] = [loop for loop in LOOPS if loop in modules]
        if loops:
            return loops
        definitions = next_definitions
    return ["asyncio"]


def _referenced_values(value: object) -> Iterator[object]:
    """Yield the values of the global and enclosing names that a function's, class's or coroutine's code uses."""
    if inspect.isclass(value):
        for attribute in vars(value).values():
            yield from _referenced_values(attribute)
        return
    if inspect.iscoroutine(value):
        yield from _named_values(value.cr_code, value.cr_frame.f_globals if value.cr_frame else {})
        return

    while isinstance(value, functools.partial):
        value = cast("object", value.func)
    value = getattr(value, "__wrapped__", value)
    if not hasattr(value, "__code__"):
        value = getattr(value, "__call__", value)  # noqa: B004  # the code of an object is that of its `__call__`

    function = getattr(value, "__func__", value)
    if isinstance(function, types.FunctionType):
        yield from _named_values(function.__code__, function.__globals__)
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # It is still empty.
                yield cell.cell_contents


def _named_values(code: types.CodeType, variables: dict[str, Any]) -> Iterator[object]:
    yield from (variables[name] for name in code.co_names if name in variables)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _named_values(constant, variables)


def _root_module(value: object) -> str:
    if isinstance(value, types.ModuleType):
        name = value.__name__
    else:
        is_definition = isinstance(value, type | types.FunctionType | types.MethodType | types.BuiltinFunctionType)
        name = (value if is_definition else type(value)).__module__ or ""
    return name.partition(".")[0]


def _is_followed(definition: type | types.FunctionType | types.MethodType) -> bool:
    """Return whether a function or a class is the user's, or ours; those of other libraries may support both loops."""
    root, file = _root_module(definition), getattr(sys.modules.get(definition.__module__), "__file__", None) or ""
    return root == "evaljournal" or (root not in sys.stdlib_module_names and "site-packages" not in file)
