"""Policies that decide by the passing of time alone, and endpoints that stop responding, on a virtual clock."""

from typing import Any

import trio

from evaljournal import Retry
from evaljournal.journal import read
from evaljournal.journal.events import AttemptStarted, IntakePaused, IntakeResumed, LimitChanged
from evaljournal.replay.auditing import audit
from evaljournal.runner.concurrency.policy import Decision, Policy, Signal, Started, StartPermit
from evaljournal.runner.recompute.rules import SessionRules
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

    def take(self, signal: Signal) -> Decision:
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
            return StartPermit(open=True)
        return StartPermit(open=False, check_at=self._last_end + SILENCE)

    def elapse(self, t: float) -> Decision:
        if len(self._in_flight) < self.limit or t < self._last_end + SILENCE:
            return Decision(limit=self.limit)
        self._in_flight.clear()
        self._until = t + 1.0
        return Decision(
            limit=self.limit, changes=(IntakePaused(until=self._until, reason="no_response", evidence=f"silent at {t}"),)
        )


def session_rules(*_: Any) -> SessionRules:
    """Return the rules of a session that was run by this policy."""

    def policy(_: str) -> Policy:
        return Patient(2)

    return SessionRules(policy, Retry(errors=0), 0, "")


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


async def test_an_audit_recomputes_what_time_alone_decides() -> None:
    """A decision of a timer is recomputed at its recorded time; one that comes too early is found."""
    disk = await hung_run()
    records = list(read(PATH, files=disk))
    result = audit(records, rules=session_rules)

    assert () == result.findings
    assert result.decisions_reproduced >= 3
    early = [record._replace(t=4.0) if isinstance(record.event, IntakePaused) else record for record in records]
    assert "policy" in {finding.check for finding in audit(early, rules=session_rules).findings}
