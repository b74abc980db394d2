"""Model calls inside an attempt: each waits for the known rate limits of its key before it is sent.

A call that gets a rate limit, or whose provider is overloaded, waits in the same place and is sent again, because an agent
that has changed files would repeat every change in the next attempt. Only when the retry settings of the task are used up
does the attempt end.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from evaljournal.runner.calls.call_size import CallSize, max_output, text_bytes
from evaljournal.runner.calls.http.identity import base_of, key_digest
from evaljournal.runner.retries.classify import Failure, Fatal, classify


class NotSent(Fatal):
    """A call that will not be made; nothing was sent."""


class ReplayedFailure(Exception):
    """A call that fails as it did when it was recorded; nothing was sent."""

    def __init__(self, error: str, message: str, *, is_repeated: bool) -> None:
        """`is_repeated`: the provider rejected the call, and the same call was sent again."""
        super().__init__(message)
        self.error = error
        status = message.partition(" ")[0]
        self.status_code = int(status) if error.startswith("evaljournal.") and status.isdecimal() else None
        """The status of the reply; None: there was none."""
        self.is_repeated = is_repeated and self.status_code in REJECTED_STATUSES


class OverLimit(NotSent):
    """A request needs more than a rate limit allows in a whole window; nothing was sent."""


class AttemptEnded(Exception):
    """The attempt of a call that waited for a rate limit has ended; nothing was sent."""


class LimitedCall(NamedTuple):
    """A model call before it is sent."""

    base_url: str
    """The URL without the part that names the endpoint of the API; empty: the task itself calls its model."""
    key_digests: tuple[str, ...]
    """Digests of the API keys, which are never recorded."""
    model: str
    size: CallSize


class CallAdmission(NamedTuple):
    """What is recorded of a call that was admitted."""

    key: str = ""
    """Name of its rate-limit key."""
    need: dict[Any, float] | None = None
    """What it takes from the known limits; None: none is known."""
    waited: float = 0.0
    """Seconds that it waited for them."""


NO_ADMISSION: Final = CallAdmission()
REJECTED_STATUSES: Final = frozenset({429, 498, 503, 529})
"""Statuses with which a provider says that it has not processed a call, because of a rate limit or its load."""


class CallGate(Protocol):
    """Where the model calls of an attempt wait. A call is identified by the number of its step."""

    def admit_now(self, step: int, call: LimitedCall, /, *, can_wait: bool) -> CallAdmission | None:
        """Admit a call if no limit of its key is known, or if it cannot wait; None: it may have to wait. From any thread."""
        ...

    async def admit(self, step: int, call: LimitedCall, /) -> CallAdmission:
        """Wait, in the loop of the run or the worker, until a call may start; raise `OverLimit` if it never can."""
        ...

    def read(self, step: int, status: int, headers: Mapping[str, str], /) -> None:
        """Read the limits in the head of the reply to a call; names of headers are in lower case. From any thread."""
        ...

    def end(self, step: int, usage: Any, /) -> None:
        """Count a call that was answered. From any thread."""
        ...

    async def wait_again(self, step: int, failure: Failure, /) -> float | None:
        """Wait, in the loop of the run or the worker, until a call that was rejected may be sent again.

        Returns the seconds that it waited; None if it may not: its retry settings are used up, or the attempt has ended.
        """
        ...

    @property
    def failure(self) -> Fatal | None:
        """The error of a call that can never start, which fails the trial."""
        ...

    def close(self) -> None:
        """End the calls that still wait: the attempt has ended."""
        ...


def limited_call(url: str, keys: Iterable[str], content: Any, body: bytes) -> LimitedCall:
    """Return the model call of a request: its URL, API keys, body as a JSON value, and body."""
    parameters = content if isinstance(content, dict) else {}
    model = parameters.get("model")
    size = CallSize(text_bytes(body), max_output(parameters))
    digests = tuple(sorted({key_digest(key.encode()) for key in keys}))
    return LimitedCall(base_of(url.partition("?")[0]), digests, model if isinstance(model, str) else "", size)


def rejection_of(exc: Exception) -> Failure | None:
    """Return what an error means if the call may be sent again: it was rate limited, or the provider was overloaded."""
    failure = classify(exc, now=time.time())
    is_overloaded = failure.category == "unavailable" and getattr(exc, "status_code", None) in REJECTED_STATUSES
    return failure if failure.stop_reason is None and (is_overloaded or failure.category == "rate_limited") else None
