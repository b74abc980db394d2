"""A run of an unreliable task, and changes to the records of a run."""

import functools
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio
import trio.testing

from evaljournal import Fatal, RateLimited
from evaljournal.journal import Record, read, verify
from evaljournal.journal.events import FileEvent, RunStarted
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.auditing.auditor import audit
from evaljournal.replay.auditing.findings import Audit
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.sessions.api import arun
from evaljournal.runner.testing import deterministic_options
from tests.journal.disk import SimulatedDisk
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
        self.in_flight = 0

    async def __call__(self, value: str) -> str:
        self.in_flight += 1
        try:
            return await self._answer(value)
        finally:
            self.in_flight -= 1

    async def _answer(self, value: str) -> str:
        if self.in_flight > 16:
            await trio.sleep(0.02)
            raise RateLimited
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


Change = Callable[[Sequence[Record]], list[Record]]
"""Changes records; their numbers and hashes stay as they are."""


def index_of(records: Sequence[Record], kind: type, n: int = 0, **fields: Any) -> int:
    """Return the index of the n-th record whose event has this type and these fields."""
    indexes = [
        index
        for index, record in enumerate(records)
        if isinstance(record.event, kind) and all(getattr(record.event, name) == value for name, value in fields.items())
    ]
    return indexes[n]


def changing(kind: type, n: int = 0, *, values: Mapping[str, Any] | None = None, **fields: Any) -> Change:
    """Replace fields of the n-th event of a type, of those with these values."""

    def change(records: Sequence[Record]) -> list[Record]:
        index = index_of(records, kind, n, **(values or {}))
        changed = records[index]._replace(event=evolve_fact(records[index].event, **fields))
        return [*records[:index], changed, *records[index + 1 :]]

    return change


def removing(kind: type, n: int = 0) -> Change:
    """Remove the n-th event of a type."""
    return lambda records: [*records[: (index := index_of(records, kind, n))], *records[index + 1 :]]


def doubling(kind: type, n: int = 0, *, times: int = 2) -> Change:
    """Repeat the n-th event of a type, so that it is there this many times."""
    return lambda records: [*records[: (index := index_of(records, kind, n))], *[records[index]] * times, *records[index + 1 :]]


def with_settings(**settings: Any) -> Change:
    """Change settings of the run."""

    def change(records: Sequence[Record]) -> list[Record]:
        started: Any = records[index_of(records, RunStarted)].event
        return changing(RunStarted, settings={**started.settings, **settings})(records)

    return change
