"""What each worker of a run has done: the attempts that ended in it, their time, and how it ended."""

from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from journal import events
from replay.text import duration, plural, printable, spaced
from replay.trial_state import WORKER_ENDS

_MAX_WORKERS: Final = 8
"""Maximum number of workers to list; `status --json` has all."""


@attrs.define
class WorkerTotals:
    """One worker. An attempt that has not ended is not counted: only its end names the worker."""

    attempts: int = 0
    """Attempts that ended in it."""
    seconds: float = 0.0
    """Sum of their times; they may have run at once."""
    end: str = ""
    """`worker_died` or `worker_lost` if it ended while it ran attempts; empty if it did not."""
    detail: str = ""
    """What is known about its end, such as `signal 11`."""

    def count(self, event: events.AttemptEnd) -> None:
        """Count the end of an attempt."""
        self.attempts += 1
        self.seconds += event.elapsed or 0.0
        if isinstance(event, events.AttemptInterrupted) and event.reason in WORKER_ENDS:
            self.end, self.detail = event.reason, event.detail


def ended_workers(workers: Mapping[str, WorkerTotals]) -> Iterator[str]:
    """Yield how many workers ended while they ran attempts, if any did."""
    ended = [totals for totals in workers.values() if totals.end]
    if ended:
        yield f"{len(ended):,} of {plural(len(workers), 'worker')} ended, last: {printable(ended[-1].detail, 60)}"


def worker_lines(workers: Mapping[str, WorkerTotals]) -> Iterator[str]:
    """Yield the workers of a run, those that ended early first."""
    if not workers:
        return
    died, lost = (sum(totals.end == end for totals in workers.values()) for end in WORKER_ENDS)
    ends = ", ".join(f"{count:,} {name}" for count, name in ((died, "died"), (lost, "lost")) if count)
    yield f"{plural(len(workers), 'worker')}{f', {ends}' if ends else ''}:"
    listed = sorted(workers.items(), key=lambda item: not item[1].end)[:_MAX_WORKERS]
    width = max(len(printable(name, 40)) for name, _ in listed)
    for name, totals in listed:
        end = f" · {spaced(totals.end)}: {printable(totals.detail, 60)}" if totals.end else ""
        yield f"  {printable(name, 40):<{width}}  {plural(totals.attempts, 'attempt')}, {duration(totals.seconds)}{end}"
    if len(workers) > _MAX_WORKERS:
        yield f"  and {plural(len(workers) - _MAX_WORKERS, 'more worker')}"
