"""The known rate limits of a session: who waits for them, and what is recorded of them.

**The gate of a lane**: a job starts only if every limit of its rate-limit key has room for its call. A lane whose jobs make no
call that limits apply to has no such gate. It is the last gate of its lane, because it takes the need of a call from the limits
at once: they are shared with the other runs of the process.

A call that needs more than a limit ever allows is admitted without taking anything, and fails before it is sent: it would wait
forever otherwise. If a declared limit per day is used up and nothing is in flight, the session stops.

**How many slots the rate of a limit needs**: 1.5 times the rate times the latency (Little's law). Known limits decide when
calls start, so the policy need not find out how many may be in flight: at first all slots are used. Then their number follows
from the latency. That is the mean of as many calls as there are slots, because the first calls to end are the quickest ones.
After a change, the measurement begins once as many calls have ended: a server that cannot serve what its limits allow only gets
slower, and the policy lowers the limit before it is raised again.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final
from weakref import WeakValueDictionary

import attrs
import trio

from evaljournal.journal.events import AttemptSucceeded, RateLimitSeen, Record, ScoringFailed, TrialScored
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.state.answers import ANSWER
from evaljournal.replay.state.known_limits import KNOWN_LIMIT, MAX_SLOTS, MINUTE, CallRate
from evaljournal.replay.state.usage import JUDGE_USAGE
from evaljournal.replay.text import as_words, day_limit_text, duration, rate_limit_text, window_text
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.calls.notes import REPLY_NOTE
from evaljournal.runner.concurrency.limits import AdmittedCall, Limits
from evaljournal.runner.concurrency.policy import Change
from evaljournal.runner.engine.jobs import Job, Lane, StartGate
from evaljournal.runner.engine.scheduler import Scheduler
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

_SMALL_RAISE: Final = 1.1
"""Ratio from which a limit is raised: the mean latency varies all the time."""
_MAX_GROWTH: Final = 3
"""Growth at once: a server that only gets slower is noticed by its latency before the next raise."""


def shared_limits(identity: object, host: str = "") -> Limits:
    """Return the limits that all runs of this process share for an endpoint, an API key and a model; `host` is the endpoint's.

    Runs with virtual clocks share only with runs of the same clock.
    """
    clock = trio.lowlevel.current_clock()
    key = (identity, type(clock).__name__ == "SystemClock" or id(clock))
    with _shared_lock:
        return _shared.setdefault(key, Limits(host))


def shared_clock() -> Callable[[], float]:
    """Return a function that returns the time of the clock that runs with shared limits have in common, in any thread."""
    clock = trio.lowlevel.current_clock()
    return time.monotonic if type(clock).__name__ == "SystemClock" else clock.current_time


@attrs.define(eq=False)
class KeyLimits:
    """The known limits of one rate-limit key, as a session uses them. Call it in the loop of the run."""

    key: str
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


class NeededSlots:
    """The mean latency of the calls since the number of slots last changed."""

    def __init__(self) -> None:
        self._is_known = False
        self._skipped = 0
        """Calls that are not measured, because they started before the last change."""
        self._successes = 0
        self._seconds = 0.0

    def measure(self, seconds: float) -> None:
        if self._skipped:
            self._skipped -= 1
        elif self._is_known:
            self._successes += 1
            self._seconds += seconds

    def is_measured(self, limit: int) -> bool:
        """Return whether as many calls were measured as the limit allows, or none was needed yet."""
        return self._successes >= limit or not self._is_known

    def raised(self, rate: CallRate, limit: int, max_slots: int) -> tuple[int, str] | None:
        """Return the slots that a rate needs, at most `max_slots`, and the evidence; None if they are not more.

        With the first rate, that is 0: all slots are used, and no more yet. Call it when all that the limit allows are in use
        and the latency is measured.
        """
        text = rate_limit_text(rate.limit.unit, rate.limit.size, rate.limit.window)
        if not self._is_known:
            self._is_known = True
            return 0, f"{text}: the known limit decides when calls start"

        latency = self._seconds / self._successes
        self._successes, self._seconds = 0, 0.0
        needed_slots = rate.slots(latency)
        slots = min(needed_slots, max_slots, _MAX_GROWTH * limit)
        if slots <= _SMALL_RAISE * limit:
            return None

        self._skipped = slots
        need = "" if rate.limit.unit == "requests" else f" and {rate.need:,.0f} {as_words(rate.limit.unit)}"
        return slots, f"{text} at {duration(latency)}{need} per call need {needed_slots:,} slots"


@attrs.define(eq=False)
class LimitedJob:
    """The next or current call of a job, as the limits of its key count it."""

    size: CallSize
    admitted: AdmittedCall | None = None
    """None if it cannot start, or has ended."""
    usage: Mapping[str, Any] | None = None
    """Its tokens, once they are noted."""


class LimitsGate(StartGate):
    def __init__(
        self, limits: KeyLimits, size_of: Callable[[Job], CallSize], scheduler: Scheduler, *, is_elastic: bool
    ) -> None:
        """`size_of` returns the size of the call that a job makes.

        `is_elastic`: the slots of the lane follow from its limits, because the user has not chosen them and a slot costs
        little.
        """
        self.limits = limits
        self._size_of = size_of
        self._scheduler = scheduler
        self._is_elastic = is_elastic
        self._needed_slots = NeededSlots()

    def admit(self, job: Job, now: float) -> float | None:
        """Take the need of a call from the limits, or return when to ask again."""
        key_limits = self.limits
        size = CallSize() if key_limits.limits.is_silent else self._size_of(job)
        job.permits[self] = call = LimitedJob(size)
        if key_limits.limits.impossible(size) is not None:
            return None  # It fails before anything is sent, and takes nothing.

        admitted = key_limits.limits.admit(size, key_limits.now())
        if not isinstance(admitted, float):
            call.admitted = admitted
            return None

        if key_limits.day_wait() > 0:
            if self._scheduler.is_idle:
                stop_at_day_limit(key_limits, self._scheduler)
            return math.inf
        return now + admitted

    def check(self, job: Job) -> None:
        """Raise `OverLimit` if the call needs more than a limit allows."""
        call: LimitedJob | None = job.permits.get(self)
        if call is not None and call.admitted is None:
            self.limits.check(call.size)

    def fields(self, job: Job) -> Mapping[str, Any]:
        call: LimitedJob | None = job.permits.get(self)
        if call is None or call.admitted is None:
            return {"need": None}
        return {"need": self.limits.limits.recorded_need(call.admitted)}

    def noted(self, job: Job, name: str, value: Any) -> None:
        call: LimitedJob | None = job.permits.get(self)
        if call is None or call.admitted is None:
            return
        if name == REPLY_NOTE:
            self._read_reply(job, call.admitted, value["status"], value["headers"])
        elif (usage := _usage_of_call(name, value)) is not None:
            call.usage = usage

    def _read_reply(self, job: Job, admitted: AdmittedCall, status: int, headers: Mapping[str, str]) -> None:
        """Read the limits in the head of the reply to a call, which may allow the next start."""
        scheduler, lane = self._scheduler, job.lane
        if scheduler.shutdown.is_over:
            return
        self.limits.read(admitted, status, headers)
        lane.closed_until = 0.0
        if lane.may_rise and (events := self.raise_limit(lane)):
            scheduler.apply(lane, events)
        scheduler.wake()

    def leave(self, job: Job, *, is_answered: bool) -> None:
        """Replace the estimated need of a call by what it has used."""
        call: LimitedJob | None = job.permits.get(self)
        if call is None:
            return
        if call.admitted is not None and is_answered:
            self.limits.limits.end(call.admitted, call.usage)
        call.admitted = None

    def observe(self, job: Job, record: Record) -> Iterable[Change]:
        """Let the slots of the lane follow from its limits."""
        if self.limits.limits.is_silent:
            return ()
        if isinstance(record.event, AttemptSucceeded | TrialScored | ScoringFailed):
            self._needed_slots.measure(max(record.event.elapsed - job.waited, 0.0))
        return self.raise_limit(job.lane) if job.lane.may_rise else ()

    def raise_limit(self, lane: Lane) -> list[Change]:
        """Let the limit of a lane follow from the rate of its known limits, if there are any; return the change to record."""
        if not self._needed_slots.is_measured(lane.policy.limit) or (rate := self.limits.limits.call_rate) is None:
            return []
        other_slots = sum(other.policy.limit for other in self._scheduler.queues.lanes.values() if other is not lane)
        raised = self._needed_slots.raised(rate, lane.policy.limit, max_slots(other_slots) if self._is_elastic else 0)
        return [] if raised is None else lane.policy.raise_slots(*raised, reason=KNOWN_LIMIT)

    def call_of(self, job: Job) -> LimitedJob | None:
        call: LimitedJob | None = job.permits.get(self)
        return call


def stop_at_day_limit(limits: KeyLimits, scheduler: Scheduler) -> None:
    """Stop the session if a declared limit per day is used up."""
    if (day_wait := limits.day_wait()) > 0:
        scheduler.shutdown.stop("quota", day_limit_text(day_wait, scheduler.recorder.clock.wall()))


def _usage_of_call(name: str, value: Any) -> Mapping[str, Any] | None:
    """Return the usage of a call in a note of the task or the judge, if there is one."""
    if name in {ANSWER, JUDGE_USAGE} and isinstance(value, dict):
        value = value.get("usage")
    elif name != "usage":
        return None
    return value if isinstance(value, dict) and value else None
