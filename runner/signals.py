"""Who is told of a signal, and for how long."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

STOPS: Final = (signal.SIGINT, signal.SIGTERM)
"""The signals by which people and machines ask a program to stop."""


@contextmanager
def told(handler: Callable[[int, Any], object], *numbers: signal.Signals) -> Generator[None]:
    """Let signals reach a handler for a while; whoever had them before gets them back.

    What is ignored on purpose stays so, and outside the main thread nobody is told of signals.
    """
    before: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, had in before.items():
            signal.signal(number, had)
