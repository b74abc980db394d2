"""Signal handlers that can be nested and removed in any order."""

import signal
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
"""Signals that ask a program to stop; SIGHUP is sent when its terminal is closed."""

POLL_INTERVAL: Final = 0.5
"""Seconds between wake-ups of a main thread that waits for another thread: a signal just before the wait does not wake it."""

_MAX_CAUSES: Final = 10
"""Maximum length of a chain of causes, which may contain a cycle."""

Handler = Callable[[int, FrameType | None], object]


class _Entry:
    def __init__(self, handler: Handler, *, chain: bool) -> None:
        self.handler = handler
        self.chain = chain
        self.old_handler: Any = None
        """The system-level handler to restore; None if another entry restores it."""


_entries: Final[dict[int, list[_Entry]]] = {}
"""Signal → its handlers, the latest last. They may end in any order: several runs can be waited for concurrently."""


def _dispatch(number: int, frame: FrameType | None) -> None:
    for entry in reversed(_entries.get(number, ())):
        entry.handler(number, frame)
        if not entry.chain:
            return


@contextmanager
def handle_signals(handler: Handler, *numbers: int, chain: bool = False) -> Generator[bool]:
    """Install a signal handler for the duration of the block; yields whether it was installed.

    It is called instead of earlier handlers or, with `chain`, before them. Ignored signals stay ignored, and nothing is
    installed outside the main thread.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handled_signals = [number for number in numbers if is_main and signal.getsignal(number) not in (signal.SIG_IGN, None)]
    with ExitStack() as stack:
        for number in handled_signals:
            stack.enter_context(_install(number, _Entry(handler, chain=chain)))
        yield bool(handled_signals)


def reinstall_handlers() -> None:
    """Install the current handlers again at system level, where a C library may have replaced them."""
    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            handler = signal.getsignal(number)
            if handler is not None:
                signal.signal(number, handler)


def is_from_signal(exc: BaseException) -> bool:
    """Return whether an exception is, or contains, a KeyboardInterrupt that a signal handler raised.

    The handler is then in its traceback. Python's default handler leaves no trace; if it is installed, the result is True.
    """
    if isinstance(exc, BaseExceptionGroup):
        return any(map(is_from_signal, exc.exceptions))
    if not isinstance(exc, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    handlers = [signal.getsignal(number) for number in STOP_SIGNALS]
    codes = {_code(handler) for handler in handlers} - {None}
    return signal.default_int_handler in handlers or any(code in codes for code in _codes(exc))


def _code(handler: Any) -> object:
    """Return the code object of a handler; None if it is not written in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    if not hasattr(handler, "__code__"):
        handler = getattr(handler, "__call__", handler)  # noqa: B004  # the code of a callable object
    return getattr(handler, "__code__", None)


def _codes(exc: BaseException) -> Iterator[object]:
    """Yield the code objects in the traceback of an exception, then of its causes."""
    link: BaseException | None = exc
    for _ in range(_MAX_CAUSES):
        if link is None:
            return
        frame = link.__traceback__
        while frame is not None:
            yield frame.tb_frame.f_code
            frame = frame.tb_next
        link = link.__cause__ or link.__context__


async def until_signal(call: Callable[[], Awaitable[object]], *numbers: int) -> bool:
    """Await a call inside trio until it returns or one of the signals arrives; return whether it returned."""
    import trio  # noqa: PLC0415  # slow to import

    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope, handle_signals(lambda *_: token.run_sync_soon(scope.cancel), *numbers):
        await call()
    return not scope.cancelled_caught


@contextmanager
def _install(number: int, entry: _Entry) -> Generator[None]:
    entries = _entries.setdefault(number, [])
    entries.append(entry)
    if signal.getsignal(number) is not _dispatch:
        entry.old_handler = signal.signal(number, _dispatch)

    try:
        yield
    finally:
        index = entries.index(entry)
        if entry is not entries[-1]:  # The next one restores what this one has replaced.
            next_entry = entries[index + 1]
            next_entry.old_handler = entry.old_handler if next_entry.old_handler is None else next_entry.old_handler
        elif entry.old_handler is not None and signal.getsignal(number) is _dispatch:
            signal.signal(number, entry.old_handler)  # A handler that other code has installed since is kept.
        del entries[index]
