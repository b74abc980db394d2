"""The event loop of a session, as seen from other threads."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import trio


class RunLoop:
    """The thread and the trio loop of a session."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._token = trio.lowlevel.current_trio_token()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the loop's thread: now, or soon if this is another thread. After the end of the loop, drop it."""
        if threading.get_ident() == self._thread:
            function(*arguments)
            return
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function, *arguments)
