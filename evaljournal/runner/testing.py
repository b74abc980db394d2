"""Fakes to test evaluations on a virtual clock, without a network: scripted tasks, an endpoint, deterministic runs."""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import trio

from evaljournal.journal import Event, read
from evaljournal.journal.disk.files import DISK, Files
from evaljournal.journal.events import FileEvent
from evaljournal.runner.retries.classify import RateLimited
from evaljournal.runner.sessions.environment import Environment

T = TypeVar("T")

__all__ = ["Action", "Fail", "Hang", "Return", "Scripted", "SimulatedEndpoint", "deterministic_options", "events_of", "inline"]


@attrs.frozen
class Return:
    """Return an output."""

    output: Any
    after: float = 0.0
    """Seconds until it returns."""


@attrs.frozen
class Fail:
    """Raise an exception."""

    exc: BaseException
    after: float = 0.0


@attrs.frozen
class Hang:
    """Never return."""


Action = Return | Fail | Hang


class Scripted:
    """A task for trio that follows a script: for each input, one action per call; the last one is repeated."""

    def __init__(self, script: Mapping[Any, Iterable[Action]] | Callable[[Any, int], Action]) -> None:
        self._script = script if callable(script) else {key: list(actions) for key, actions in script.items()}
        self.calls: Counter[Any] = Counter()
        """Number of calls by input."""
        self.in_flight = 0
        self.max_in_flight = 0
        self.__name__ = "scripted"

    async def __call__(self, value: Any) -> Any:
        self.calls[value] += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)

        try:
            match self._action(value, self.calls[value]):
                case Return(output, after):
                    await trio.sleep(after)
                    return output
                case Fail(exc, after):
                    await trio.sleep(after)
                    raise exc.with_traceback(None)  # The same exception may be raised often, and would collect tracebacks.
                case Hang():
                    await trio.sleep_forever()
        finally:
            self.in_flight -= 1

    def _action(self, value: Any, call: int) -> Action:
        if callable(self._script):
            return self._script(value, call)
        actions = self._script[value]
        return actions[min(call, len(actions)) - 1]


@attrs.define(eq=False, slots=False)
class SimulatedEndpoint:
    """An endpoint with latency, a rate limit, a concurrency limit and outages. Deterministic on trio's clock.

    Reply times vary by up to 25 %, so that replies arrive in a different order than their calls started. A failure takes a
    tenth of the latency.
    """

    __name__ = "simulated_endpoint"

    _respond: Callable[[Any], Any]
    _latency: float = attrs.field(default=0.1, kw_only=True)
    _rate: float | None = attrs.field(default=None, kw_only=True)
    _burst: int = attrs.field(default=1, kw_only=True)
    _max_in_flight: int | None = attrs.field(default=None, kw_only=True)
    _retry_after: float | None = attrs.field(default=None, kw_only=True)
    _tokens: float = attrs.field(
        init=False,
        default=attrs.Factory(lambda endpoint: float(endpoint._burst), takes_self=True),  # noqa: SLF001  # the instance itself
    )
    _refilled_at: float | None = attrs.field(init=False, default=None)
    _random: random.Random = attrs.field(init=False, factory=lambda: random.Random(0))  # noqa: S311  # times of replies
    down_until: float = attrs.field(init=False, default=0.0)
    """Time on trio's clock until which every call raises a ConnectionError."""
    served: int = attrs.field(init=False, default=0)
    rejected: int = attrs.field(init=False, default=0)
    in_flight: int = attrs.field(init=False, default=0)

    async def __call__(self, value: Any) -> Any:
        """Respond to a call, or raise `RateLimited` or, during an outage, `ConnectionError`."""
        now = trio.current_time()
        if now < self.down_until:
            await self._reject()
            raise ConnectionError("endpoint unavailable")
        if not self._admits(now):
            await self._reject()
            raise RateLimited(self._retry_after)
        self.in_flight += 1
        try:
            await self._sleep(self._latency)
        finally:
            self.in_flight -= 1
        self.served += 1
        return self._respond(value)

    async def _reject(self) -> None:
        self.rejected += 1
        await self._sleep(self._latency / 10)

    async def _sleep(self, mean: float) -> None:
        await trio.sleep(mean * self._random.uniform(0.75, 1.25))

    def _admits(self, now: float) -> bool:
        if self._max_in_flight is not None and self.in_flight >= self._max_in_flight:
            return False
        if self._rate is None:
            return True
        elapsed = 0.0 if self._refilled_at is None else now - self._refilled_at
        self._tokens = min(float(self._burst), self._tokens + elapsed * self._rate)
        self._refilled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def events_of(path: Path | str, *, files: Files = DISK) -> list[Event]:
    """Return the events of a run, without those about the journal's own files."""
    return [record.event for record in read(path, files=files) if not isinstance(record.event, FileEvent)]


async def inline(call: Callable[[], T], /) -> T:
    """Make a blocking call without a thread, so that the order of events is deterministic. The call cannot be cancelled."""
    await trio.lowlevel.cancel_shielded_checkpoint()
    return call()


def deterministic_options(seed: int = 0) -> dict[str, Any]:
    """Return options with which `arun` writes the same bytes each time, if clock and scheduler are deterministic, too."""
    run = hashlib.sha256(f"evaljournal {seed}".encode()).hexdigest()[:32]
    return {
        "seed": seed,
        "in_thread": inline,
        "wall": lambda: 1_800_000_000.0 + trio.current_time(),
        "environment": lambda: Environment(pid=1, host="here", boot_id="", versions={}, run=run),
    }
