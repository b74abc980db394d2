"""Memory of replies in flight: small replies are read immediately, but only a few large ones at a time.

Together they take at most `SMALL_REPLY` bytes for each call and `MAX_BYTES` for each of `LARGE_REPLIES`.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self, TypeVar

import trio

from evaljournal.journal.threads import run_in_thread
from evaljournal.runner.retries.classify import Fatal

T = TypeVar("T")

MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of a reply that is read; an endless stream must not fill the memory."""

SMALL_REPLY: Final = 1024 * 1024
"""Bytes of a reply that are read without waiting for other replies."""

MAX_VALUES: Final = 1_000_000
"""Maximum number of JSON values in a reply; each takes up to 100 bytes of memory and 0.3 µs, however short it is."""

LARGE_REPLIES: Final = 4
"""Replies of more than `SMALL_REPLY` bytes that are read at the same time; others wait."""

MAX_PARSED_IN_LOOP: Final = 128 * 1024
"""Bytes of a reply that the event loop parses itself, because a thread would take longer."""

_places: trio.lowlevel.RunVar[trio.Semaphore] = trio.lowlevel.RunVar("evaljournal_large_replies")


class ReplyTooLarge(Fatal):
    """The reply is larger than `MAX_BYTES`, or has too many values."""


class ReplyMemory:
    """The memory of one reply, until it is parsed."""

    def __init__(self, label: str = "the reply", *, max_small: int | None = None, places: trio.Semaphore | None = None) -> None:
        """Account for a reply; with more than `max_small` bytes, it takes one of `places` (default: the run's)."""
        self._label = label
        self._max_small = SMALL_REPLY if max_small is None else max_small
        self._places = places
        self._size = 0
        self._place: trio.Semaphore | None = None
        """Set while the reply occupies one of the places for large replies."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._place is not None:
            self._place.release()
            self._place = None

    async def add(self, count: int) -> None:
        """Account for received bytes; wait for a place when the reply becomes large."""
        self._size += count
        if self._size > MAX_BYTES:
            raise ReplyTooLarge(f"{self._label} is larger than {MAX_BYTES // 1024 // 1024} MiB; it may be endless")
        if self._size > self._max_small:
            await self.take_place()

    async def take_place(self) -> None:
        """Wait for one of the places for large replies."""
        if self._place is None:
            place = self._places or _semaphore()
            await place.acquire()
            self._place = place

    async def parse(self, function: Callable[[], T]) -> T:
        """Call a function that parses the reply; if it is large, in a thread, which keeps the place until it ends."""
        if self._size <= MAX_PARSED_IN_LOOP and self._place is None:
            return function()
        token, place = trio.lowlevel.current_trio_token(), self._place
        self._place = None

        def parse() -> T:
            try:
                return function()
            finally:
                if place is not None:
                    with suppress(trio.RunFinishedError):
                        token.run_sync_soon(place.release)

        return await run_in_thread(parse, abandon_on_cancel=True)


def _semaphore() -> trio.Semaphore:
    try:
        return _places.get()
    except LookupError:
        semaphore = trio.Semaphore(LARGE_REPLIES)
        _places.set(semaphore)
        return semaphore


def check_values(body: bytes, separators: bytes = b",[{", label: str = "the reply") -> None:
    """Raise a `ReplyTooLarge` if a body has too many JSON values."""
    if len(body) > MAX_VALUES and has_too_many_values(body, separators):
        raise ReplyTooLarge(f"{label} has more than {MAX_VALUES:,} values")


def has_too_many_values(body: bytes, separators: bytes = b",[{") -> bool:
    """Return whether a body has more than `MAX_VALUES` JSON values; each follows a separator outside a string."""
    if len(body) <= MAX_VALUES or _count(body, separators) <= MAX_VALUES:
        return False
    unescaped_body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    has_too_many_strings = unescaped_body.count(b'"') > 4 * MAX_VALUES  # Two quotes for a value, two for its key.
    return has_too_many_strings or _count(b"".join(unescaped_body.split(b'"')[::2]), separators) > MAX_VALUES


def _count(body: bytes, separators: bytes) -> int:
    return sum(body.count(separator) for separator in separators)
