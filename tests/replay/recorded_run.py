"""A run of an unreliable task, and changes to its records that keep the hashes correct."""

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import trio
import trio.testing

from evaljournal import Fatal, RateLimited
from evaljournal.journal import Record, read, verify, writing
from evaljournal.journal.events import FileEvent, RunFinished
from evaljournal.replay.auditing.auditor import audit
from evaljournal.replay.auditing.findings import Audit
from evaljournal.runner.api import arun
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.testing import deterministic_options, inline
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import RUN
from tests.replay.trial_events import TimedEvent
from tests.runs import PATH, define, numbered_cases


def run_virtually(main: Callable[[], Any]) -> Any:
    """Run an async function on a virtual clock."""
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def audit_of(disk: SimulatedDisk) -> Audit:
    """Return the audit of an intact journal on a simulated disk."""
    assert verify(PATH, files=disk).ok
    return audit(read(PATH, files=disk), rules=retry_rules)


class UnreliableTask:
    """A task that is rate limited, unavailable, slow, hung or right, depending on the input and the time."""

    __name__ = "unreliable"

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def __call__(self, value: str) -> str:
        self.calls[value] += 1
        times, number = self.calls[value], random.Random(value).random()
        await trio.sleep(0.05 + number / 2)
        if times == 1 and number < 0.05:
            await trio.sleep_forever()
        if times == 1 and number < 0.15:
            raise RateLimited(1.25)
        if number > 0.95:
            raise Fatal("never")
        if 2 < trio.current_time() < 5:
            raise ConnectionError("unavailable")
        return value


@functools.cache
def records_of_run(policy: str = "adaptive", slots: int = 24) -> tuple[Record, ...]:
    """Return the records of a run of the unreliable task, without those about files."""
    evaluation = define(UnreliableTask(), numbered_cases(150), slots=slots, timeout=4)

    @evaluation.score
    async def right(output: str, case: Any) -> bool:
        await trio.sleep(0.01)
        return True

    disk = SimulatedDisk()
    run_virtually(functools.partial(arun, evaluation, PATH, **deterministic_options(7), files=disk, policy=policy))
    return tuple(record for record in read(PATH, files=disk) if not isinstance(record.event, FileEvent))


def rewrite(events: Iterable[TimedEvent]) -> list[Record]:
    """Write the events to a new journal with correct hashes and head, so that only the rules can fail."""
    disk, now = SimulatedDisk(), 0.0

    async def main() -> None:
        nonlocal now
        async with writing(
            PATH, new=True, clock=lambda: ("2026-11-15T00:00:00Z", now), files=disk, in_thread=inline, run=RUN
        ) as journal:
            for t, event in events:
                now = t
                has_correct_head = isinstance(event, RunFinished) and event.head in heads
                journal.append(attrs.evolve(event, head=journal.head) if has_correct_head else event)  # type: ignore[misc]

    heads = {record.h for record in records_of_run("adaptive")} | {record.h for record in records_of_run("aimd")}
    trio.run(main)
    assert verify(PATH, files=disk).ok
    return list(read(PATH, files=disk))


def recorded_events(policy: str = "adaptive") -> list[TimedEvent]:
    return [(record.t, record.event) for record in records_of_run(policy)]


def index_of(events: list[TimedEvent], kind: type, n: int = 0, **fields: Any) -> int:
    """Return the index of the n-th event of a type with these fields."""
    indexes = [
        index
        for index, (_, event) in enumerate(events)
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
    ]
    return indexes[n]


def change_event(events: list[TimedEvent], index: int, **fields: Any) -> list[TimedEvent]:
    """Replace fields of one event."""
    t, event = events[index]
    return [*events[:index], (t, attrs.evolve(event, **fields)), *events[index + 1 :]]  # type: ignore[misc]  # an event is an attrs class
