"""The known limits of a lane: a job starts only if every limit of its rate-limit key has room for its call.

A lane whose jobs make no call that limits apply to has no such gate. It is the last gate of its lane, because it takes the need
of a call from the limits at once: they are shared with the other runs of the process.

A call that needs more than a limit ever allows is admitted without taking anything, and fails before it is sent: it would wait
forever otherwise. If a declared limit per day is used up and nothing is in flight, the session stops.

**How many slots the rate of a limit needs**: 1.5 times the rate times the latency (Little's law). Known limits decide when
calls start, so the policy need not find out how many may be in flight: at first all slots are used. Then their number follows
from the latency. That is the mean of as many calls as there are slots, because the first calls to end are the quickest ones.
After a change, the measurement begins once as many calls have ended: a server that cannot serve what its limits allow only gets
slower, and the policy lowers the limit before it is raised again.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from evaljournal.journal.events import AttemptSucceeded, LimitUnit, Record, ScoringFailed, TrialScored
from evaljournal.replay.state.known_limits import CallRate
from evaljournal.replay.state.usage import ANSWER, JUDGE_USAGE
from evaljournal.replay.text import as_words, day_limit_text, duration, rate_limit_text
from evaljournal.runner.calls.call_size import CallSize
from evaljournal.runner.calls.notes import REPLY_NOTE
from evaljournal.runner.concurrency.limits import AdmittedCall
from evaljournal.runner.concurrency.policy import Change
from evaljournal.runner.engine.jobs import Job, Lane, StartGate
from evaljournal.runner.engine.scheduler import Scheduler
from evaljournal.runner.gates.known_limits import KeyLimits, max_slots

_SMALL_RAISE: Final = 1.1
"""Ratio from which a limit is raised: the mean latency varies all the time."""
_MAX_GROWTH: Final = 3
"""Growth at once: a server that only gets slower is noticed by its latency before the next raise."""


class NeededSlots:
    """The mean latency of the calls since the number of slots last changed."""

    def __init__(self) -> None:
        """Begin without a known rate."""
        self._is_known = False
        self._skipped = 0
        """Calls that are not measured, because they started before the last change."""
        self._successes = 0
        self._seconds = 0.0

    def measure(self, seconds: float) -> None:
        """Count a call that was answered after this many seconds."""
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
    """Lets the jobs of one lane wait for the known limits of its key."""

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
        """Return what the call takes from the limits, if one is known."""
        call: LimitedJob | None = job.permits.get(self)
        need: dict[LimitUnit, float] | None = None
        if call is not None and call.admitted is not None:
            need = self.limits.limits.recorded_need(call.admitted)
        return {"need": need}

    def noted(self, job: Job, name: str, value: Any) -> None:
        """Read the limits in the head of the reply, and the tokens of the call."""
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
        return [] if raised is None else lane.policy.raise_slots(*raised)

    def call_of(self, job: Job) -> LimitedJob | None:
        """Return the call of a job in flight."""
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
