"""Who is told of a signal, and for how long."""

import signal
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""The signals by which people and machines ask a program to stop."""

POLL_INTERVAL: Final = 0.5
"""Seconds until a main thread that waits for another looks up: a signal that comes just before it falls asleep does not wake
it, and nobody would be told."""

_DEEPEST: Final = 10
"""How far back is looked for what an exception was raised for; one may come round to itself."""

Handler = Callable[[int, FrameType | None], object]


class _Listener:
    """Somebody who is told of a signal."""

    def __init__(self, handler: Handler, *, shares: bool) -> None:
        self.handler = handler
        self.shares = shares
        self.instead_of: Any = None
        """The handler that gets the signal back when this one ends; None if that is for another to see to."""


_listeners: Final[dict[int, list[_Listener]]] = {}
"""Signal → who is told of it, the latest last. They may end in any order: several runs can be waited for at once."""


def _ring(number: int, frame: FrameType | None) -> None:
    for listener in reversed(_listeners.get(number, ())):
        listener.handler(number, frame)
        if not listener.shares:
            return


@contextmanager
def handle_signals(handler: Handler, *numbers: int, shares: bool = False) -> Generator[bool]:
    """Let signals reach a handler for a while, and say whether they can; whoever had them before gets them back.

    It is told instead of those who came before it, or, where it `shares`, as well as they. What is ignored on purpose stays so,
    and outside the main thread nobody is told of signals.
    """
    hears = threading.current_thread() is threading.main_thread()
    heard = [number for number in numbers if hears and signal.getsignal(number) not in (signal.SIG_IGN, None)]
    with ExitStack() as stack:
        for number in heard:
            stack.enter_context(_listening(number, _Listener(handler, shares=shares)))
        yield bool(heard)


def is_from_signal(exc: BaseException) -> bool:
    """Say whether an exception is an interruption by a signal, or holds one; code may also raise KeyboardInterrupt of itself.

    A signal's handler has raised it then, in the main thread, and stands in its traceback. One handler leaves no trace,
    Python's own: where that is in force, nothing can be told, and the interruption counts.
    """
    if isinstance(exc, BaseExceptionGroup):
        return any(map(is_from_signal, exc.exceptions))
    if not isinstance(exc, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    handlers = [signal.getsignal(number) for number in STOP_SIGNALS]
    codes = {_code(handler) for handler in handlers} - {None}
    return signal.default_int_handler in handlers or any(code in codes for code in _codes(exc))


def _code(handler: Any) -> object:
    """Find the code that a handler runs; None for one that is not written in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    if not hasattr(handler, "__code__"):
        handler = getattr(handler, "__call__", handler)  # noqa: B004  # an object is known by the method that is called
    return getattr(handler, "__code__", None)


def _codes(exc: BaseException) -> Iterator[object]:
    """Go through the code that an exception came out of, and then that of what it was raised for: it may be raised anew."""
    link: BaseException | None = exc
    for _ in range(_DEEPEST):
        if link is None:
            return
        place = link.__traceback__
        while place is not None:
            yield place.tb_frame.f_code
            place = place.tb_next
        link = link.__cause__ or link.__context__


async def until_signal(call: Callable[[], Awaitable[object]], *numbers: int) -> bool:
    """Do something inside trio until it is done, or until one of the signals comes; say whether it came to its own end."""
    import trio  # noqa: PLC0415  # the command line starts without it

    loop = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope, handle_signals(lambda *_: loop.run_sync_soon(scope.cancel), *numbers):
        await call()
    return not scope.cancelled_caught


@contextmanager
def _listening(number: int, listener: _Listener) -> Generator[None]:
    others = _listeners.setdefault(number, [])
    others.append(listener)
    if signal.getsignal(number) is not _ring:
        listener.instead_of = signal.signal(number, _ring)
    try:
        yield
    finally:
        place = others.index(listener)
        if listener is not others[-1]:
            after = others[place + 1]
            after.instead_of = listener.instead_of if after.instead_of is None else after.instead_of
        elif listener.instead_of is not None and signal.getsignal(number) is _ring:
            signal.signal(number, listener.instead_of)  # Not where somebody has put their own in its place: that stays.
        del others[place]
