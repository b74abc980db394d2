"""Totals of each worker of a run: the attempts that ended in it, the time in which it was busy, and how it ended.

Only the end of an attempt names its worker, so the trials count it there; an attempt in the process of the run has none.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from evaljournal.journal import Record, events
from evaljournal.replay.state.trial import WORKER_ENDS
from evaljournal.replay.text import as_words, duration, plural, printable

WORKER_ENDED: Final = f"{events.NOTE_PREFIX}worker_ended"
"""Name of the note that a worker has ended: `worker`, `reason` (`worker_died` or `worker_lost`) and `detail`."""
_MAX_WORKERS: Final = 8
"""Maximum number of workers to list; `status --json` has all."""
_MAX_PERIODS: Final = 64
"""Maximum number of periods that a later attempt may overlap with; older periods no longer change."""


@attrs.define
class WorkerTotals:
    """One worker. An attempt that has not ended is not counted: only its end names the worker."""

    attempts: int = 0
    busy: float = 0.0
    """Seconds in which it ran at least one of them."""
    died: int = 0
    """How often it ended because of an attempt; more than once if several sessions have a worker of this name."""
    lost: int = 0
    """How often it ended for another or an unknown reason."""
    detail: str = ""
    """Details of its last end, such as `signal 11`."""
    _session: int = attrs.field(default=0, init=False)
    _periods: list[tuple[float, float]] = attrs.field(factory=list[tuple[float, float]], init=False)
    """When it was busy in this session, without overlaps, in order."""
    _fixed_until: float = attrs.field(default=0.0, init=False)
    """End of the last period that no longer changes."""

    def count(self, event: events.AttemptEnd, t: float, session: int) -> None:
        self.attempts += 1
        if session != self._session:  # Its times start at 0 again.
            self._session, self._fixed_until = session, 0.0
            self._periods.clear()

        start, end = max(t - (event.elapsed or 0.0), self._fixed_until), t
        while self._periods and self._periods[-1][1] >= start:
            old_start, old_end = self._periods.pop()
            self.busy -= old_end - old_start
            start, end = min(start, old_start), max(end, old_end)

        self._periods.append((start, end))
        self.busy += end - start
        if len(self._periods) > _MAX_PERIODS:
            self._fixed_until = self._periods.pop(0)[1]

    def count_end(self, value: Mapping[str, Any]) -> None:
        self.died += value.get("reason") == "worker_died"
        self.lost += value.get("reason") == "worker_lost"
        self.detail = str(value.get("detail", ""))

    @property
    def ends(self) -> str:
        """How it ended, as text; empty if it did not."""
        counts = zip((self.died, self.lost), WORKER_ENDS, strict=True)
        return ", ".join(f"{as_words(name)}{f' {count:,} times' if count > 1 else ''}" for count, name in counts if count)


class RunWorkers(dict[str, WorkerTotals]):
    """What has each worker done? By name; empty if all attempts ran in the process of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.last_end = ""
        """Details of the last end of any of them."""
        self._sessions = 0

    def count(self, event: events.AttemptEnd, t: float) -> None:
        self._of(event.worker).count(event, t, self._sessions)

    def note_end(self, event: events.Noted) -> None:
        if isinstance(event.value, dict):
            totals = self._of(str(event.value.get("worker", "")))
            totals.count_end(event.value)
            if totals.ends:
                self.last_end = totals.detail

    def _of(self, name: str) -> WorkerTotals:
        return self.get(name) or self.setdefault(name, WorkerTotals())

    def _on_session_started(self, _: events.SessionStarted, __: Record) -> None:
        self._sessions += 1


def ended_workers(workers: RunWorkers) -> Iterator[str]:
    """Yield how many workers ended before the run, if any did."""
    if count := sum(bool(totals.ends) for totals in workers.values()):
        yield f"{count:,} of {plural(len(workers), 'worker')} ended, last: {printable(workers.last_end, 60)}"


def worker_lines(workers: Mapping[str, WorkerTotals]) -> Iterator[str]:
    """Yield the workers of a run, those that ended early first."""
    if not workers:
        return
    counts = {
        "died": sum(totals.died for totals in workers.values()),
        "lost": sum(totals.lost for totals in workers.values()),
    }
    ends = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    yield f"{plural(len(workers), 'worker')}{f', {ends}' if ends else ''}:"

    visible_workers = sorted(workers.items(), key=lambda item: not item[1].ends)[:_MAX_WORKERS]
    width = max(len(printable(name, 40)) for name, _ in visible_workers)
    for name, totals in visible_workers:
        end = f" · {totals.ends}: {printable(totals.detail, 60)}" if totals.ends else ""
        yield f"  {printable(name, 40):<{width}}  {plural(totals.attempts, 'attempt')}, busy for {duration(totals.busy)}{end}"
    if len(workers) > _MAX_WORKERS:
        yield f"  and {plural(len(workers) - _MAX_WORKERS, 'more worker')}"
