"""Policies that decide by the passing of time alone, and endpoints that stop responding, on a virtual clock."""

from typing import Any

import attrs
import trio

from evaljournal import Retry
from evaljournal.journal import read
from evaljournal.journal.events import AttemptStarted, IntakePaused, IntakeResumed, LimitChanged
from evaljournal.replay.auditing.auditor import audit
from evaljournal.runner.concurrency.policy import Decision, Signal, Started, StartPermit
from evaljournal.runner.testing import Hang, Return, Scripted, events_of
from tests.journal.disk import SimulatedDisk
from tests.runner.test_scoring import evaluation_of, run_fixed
from tests.runs import PATH

SILENCE = 5.0


class Patient:
    """A fixed limit that discounts what is in flight when nothing has ended for a while, and starts again a second later."""

    def __init__(self, slots: int) -> None:
        self.state: Any = None
        self.limit = slots
        self._in_flight: set[str] = set()
        self._last_end = 0.0
        self._until: float | None = None

    def observe(self, signal: Signal) -> Decision:
        changes: tuple[LimitChanged | IntakePaused | IntakeResumed, ...] = ()
        if isinstance(signal, Started):
            if self._until is not None:
                self._until, self._last_end, changes = None, signal.t, (IntakeResumed(reason="no_response", evidence=""),)
            self._in_flight.add(signal.attempt)
        else:
            self._in_flight.discard(signal.attempt)
            self._last_end = signal.t
        return Decision(limit=self.limit, changes=changes)

    def may_start(self, t: float) -> StartPermit:
        if self._until is not None and t < self._until:
            return StartPermit(open=False, check_at=self._until)
        if len(self._in_flight) < self.limit:
            return StartPermit(open=True, probe=self._until is not None)
        return StartPermit(open=False, check_at=self._last_end + SILENCE)

    def elapse(self, t: float) -> Decision:
        if len(self._in_flight) < self.limit or t < self._last_end + SILENCE:
            return Decision(limit=self.limit)
        self._in_flight.clear()
        self._until = t + 1.0
        return Decision(
            limit=self.limit, changes=(IntakePaused(until=self._until, reason="no_response", evidence=f"silent at {t}"),)
        )


async def hung_run() -> SimulatedDisk:
    """Record a run of which the first two attempts hang until they time out."""
    script = Scripted(lambda name, n: Hang() if name in ("case-0", "case-1") and n == 1 else Return("yes", 1.0))

    async def task(name: str) -> Any:
        await trio.lowlevel.checkpoint()
        return await script(name)

    disk = SimulatedDisk()
    await run_fixed(evaluation_of(task, 12, slots=2, timeout=60.0, retry=Retry(errors=0)), disk, policy_factory=Patient)
    return disk


async def test_attempts_start_beside_those_that_hang() -> None:
    """After a pause because an endpoint does not respond, hung attempts do not count against the limit."""
    disk = await hung_run()
    events = events_of(PATH, files=disk)
    ended = next(
        record.t for record in read(PATH, files=disk) if getattr(record.event, "trial", "") == "case-11" and record.t > 6
    )

    assert ["no_response"] == [event.reason for event in events if isinstance(event, IntakePaused)]
    assert 1 == sum(isinstance(event, IntakeResumed) for event in events)
    assert {0, 1, 2, 3} == {event.slot for event in events if isinstance(event, AttemptStarted)}
    assert ended < 15


async def test_a_start_after_hung_attempts_is_a_probe() -> None:
    """The first start after the pause is recorded as a probe; without that, an audit finds it."""
    disk = await hung_run()
    records = list(read(PATH, files=disk))
    unmarked = [
        record._replace(event=attrs.evolve(record.event, probe=False))  # type: ignore[misc]  # an event is an attrs class
        if isinstance(record.event, AttemptStarted)
        else record
        for record in records
    ]
    starts = [record.event for record in records if isinstance(record.event, AttemptStarted)]

    assert ["case-2"] == [event.trial for event in starts if event.probe]
    assert () == audit(records).findings
    assert ["breaker"] == [finding.check for finding in audit(unmarked).findings]
