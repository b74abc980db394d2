"""The known rate limits of a session: who waits for them, and what is recorded of them."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Final
from weakref import WeakValueDictionary

import attrs
import trio

from evaljournal.journal.events import RateLimitSeen
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.state.known_limits import MAX_SLOTS, MINUTE
from evaljournal.replay.text import as_words, window_text
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.concurrency.limits import AdmittedCall, Limits
from evaljournal.runner.retries.limit_headers import advertised_limits
from evaljournal.runner.steps.attempt_steps import OverLimit

_RECHECK: Final = 1.0
"""Seconds after which a waiting call looks at the limits again: a reply may have shown more room."""
_RECORDED_CHANGE: Final = 0.05
"""Change of a limit, as a share, from which it is recorded again."""
_OTHER_DESCRIPTORS: Final = 100
"""Descriptors that a run needs besides those of its calls: the journal, pipes, and the files of the task."""
_shared: Final[WeakValueDictionary[tuple[object, ...], Limits]] = WeakValueDictionary()
_shared_lock: Final = threading.Lock()


def shared_limits(identity: object, host: str = "") -> Limits:
    """Return the limits that all runs of this process share for an endpoint, an API key and a model; `host` is the endpoint's.

    Runs with virtual clocks share only with runs of the same clock.
    """
    key = (identity, type(clock := trio.lowlevel.current_clock()).__name__ == "SystemClock" or id(clock))
    with _shared_lock:
        limits = _shared.get(key)
        if limits is None:
            limits = _shared[key] = Limits(host)
        return limits


def shared_clock() -> Callable[[], float]:
    """Return a function that returns the time of the clock that runs with shared limits have in common, in any thread."""
    clock = trio.lowlevel.current_clock()
    return time.monotonic if type(clock).__name__ == "SystemClock" else clock.current_time


@attrs.define(eq=False)
class KeyLimits:
    """The known limits of one rate-limit key, as a session uses them. Call it in the loop of the run."""

    key: str
    """Its name in records."""
    limits: Limits
    """Shared with the other runs of this process."""
    _host: str
    _reads_headers: bool
    _record: Callable[[RateLimitSeen], object]
    _wall: Callable[[], float]
    now: Callable[[], float] = attrs.field(init=False, factory=shared_clock)
    """Returns the time that `limits` use."""
    _queue: trio.StrictFIFOLock = attrs.field(init=False, factory=trio.StrictFIFOLock)
    """The calls inside attempts start in the order in which they came, so that none is overtaken again and again."""
    _recorded: dict[str, tuple[RateLimitSeen, float]] = attrs.field(init=False, factory=dict[str, tuple[RateLimitSeen, float]])
    """Header → the limit as this run recorded it last, and when: other runs may have seen it before."""

    _closed_until: float = attrs.field(init=False, default=0.0)

    @property
    def is_closed(self) -> bool:
        """Whether a provider has asked to send nothing for a while."""
        return self._closed_until > self.now()

    def close(self, seconds: float) -> None:
        """Let the calls inside attempts wait: one of them had this `Retry-After`."""
        self._closed_until = max(self._closed_until, self.now() + seconds)

    @property
    def needs_sizes(self) -> bool:
        """Whether the sizes of calls matter: a limit is known, or replies may still show one."""
        return not self.limits.is_silent

    def day_wait(self) -> float:
        """Return the seconds until the declared limit per day allows another call; 0: now."""
        return self.limits.day_limit_wait(self.now())

    async def admit(self, size: CallSize) -> AdmittedCall:
        """Wait until a call inside an attempt may start, and start it; raise `OverLimit` if it never can."""
        self.check(size)
        async with self._queue:
            while self.is_closed:  # noqa: ASYNC110  # time alone opens it
                await trio.sleep(self._closed_until - self.now())
            while isinstance(admitted := self.limits.admit(size, self.now()), float):  # noqa: ASYNC110  # time alone makes room
                await trio.sleep(min(admitted, _RECHECK))
            return admitted

    def check(self, size: CallSize) -> None:
        """Raise `OverLimit` if a call needs more than a limit allows."""
        if (impossible := self.limits.impossible(size)) is not None:
            seen, need = impossible
            raise OverLimit(
                f"the request needs {need:,.0f} {as_words(seen.unit)}, but the limit is {seen.size:,.0f} "
                f"per {window_text(seen.window)} ({seen.header}, {seen.source})"
            )

    def read(self, call: AdmittedCall, status: int, headers: Mapping[str, str]) -> None:
        """Read the limits in the headers of the reply to a call; a 429 counts without any, too."""
        advertised = advertised_limits(headers, self._wall(), self._host) if self._reads_headers else []
        is_429 = status == HTTPStatus.TOO_MANY_REQUESTS
        if advertised or is_429:
            self.limits.read(call, advertised, self.now(), is_429=is_429)
            self.record_changes()

    def record_changes(self) -> None:
        """Record the limits that are new to this run or have changed.

        A size is recorded at most once a minute: behind a gateway, sizes may alternate.
        """
        for seen in self.limits.seen():
            recorded, recorded_at = self._recorded.get(seen.header, (None, 0.0))
            if seen is recorded:
                continue
            if recorded is not None and recorded.is_believed == seen.is_believed:
                is_changed = abs(seen.size - recorded.size) >= _RECORDED_CHANGE * recorded.size
                if not is_changed or self.now() < recorded_at + MINUTE:
                    continue
            self._recorded[seen.header] = seen, self.now()
            self._record(evolve_fact(seen, key=self.key))


class KnownLimits:
    """The known limits of a session, by endpoint, API key and model."""

    def __init__(
        self,
        record: Callable[[RateLimitSeen], object],
        wall: Callable[[], float],
        declared: Callable[[str], Mapping[str, float]],
        recent_needs: Callable[[str], Iterable[tuple[float, Mapping[str, float]]]],
        *,
        reads_headers: bool = True,
    ) -> None:
        """`declared` returns the declared limits of a model.

        `recent_needs` returns the recorded needs of a key, each with the seconds since. Without `reads_headers`, only
        declared limits apply.
        """
        self._reads_headers = reads_headers
        self._record = record
        self._wall = wall
        self.declared = declared
        self._recent_needs = recent_needs
        self._by_identity: dict[object, KeyLimits] = {}

    def get(self, identity: object) -> KeyLimits | None:
        """Return the limits of an endpoint, API key and model, if they were used before. Call it from any thread."""
        return self._by_identity.get(identity)

    def of(self, identity: object, *, key: str, model: str, host: str) -> KeyLimits:
        """Return the limits of an endpoint, API key and model (`identity`), which may contain a secret; `key` is their name."""
        limits = self._by_identity.get(identity)
        if limits is None:
            # A run that ignores headers does not share the limits that others read in them.
            shared = shared_limits(identity if self._reads_headers else (identity, "declared"), host)
            limits = KeyLimits(key, shared, host, self._reads_headers, self._record, self._wall)
            self._by_identity[identity] = limits
            now = limits.now()
            limits.limits.declare(self.declared(model), now)
            limits.record_changes()
            limits.limits.restore((now - seconds, need) for seconds, need in self._recent_needs(key))
        return limits


def max_slots(used_slots: int) -> int:
    """Return how many slots may follow from known limits if other rate-limit keys have `used_slots`.

    A call takes a descriptor. Too many would fail, so this is no more than the process may still open.
    """
    try:
        import resource  # noqa: PLC0415  # not on Windows

        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except ImportError:
        return MAX_SLOTS
    if descriptors == resource.RLIM_INFINITY:
        return MAX_SLOTS
    return max(0, min(MAX_SLOTS, descriptors - _OTHER_DESCRIPTORS - used_slots))
