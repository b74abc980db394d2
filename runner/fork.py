"""A new run that goes on from a point of an old one.

The records up to that point are written again, into a journal of their own with a chain of its own; its first fact says where
they come from. Nothing is added: any beginning of a journal is a valid state of a run, and `resume` goes on with it, as if the
process had died there.
"""

from pathlib import Path
from typing import Any

import attrs

from journal import Event, JournalError, writing
from journal.events import (
    FileEvent,
    JournalRecovered,
    RunFinished,
    RunStarted,
    SegmentOpened,
)
from journal.files import DISK, Files
from journal.lifecycle import Lifecycle
from journal.staging import check_target, staged_run
from journal.threads import InThread, run_in_thread
from replay import LoadedRun, RunState, load


@attrs.frozen
class Forked:
    """What was taken over."""

    path: Path
    """The new run."""
    state: RunState
    """Where it stands."""
    seq: int
    """The last record of the old run that was taken over."""


async def fork(
    source: Path | str, target: Path | str, at: int | None = None, *, files: Files = DISK, in_thread: InThread = run_in_thread
) -> Forked:
    """Write the records of a run, up to record `at` or all of them, into a new run; the old one is only read."""
    source, target = Path(source), Path(target)
    history, origin = await in_thread(lambda: _look_over(source, target, at, files))
    state = RunState()
    records = history.records(load_blobs=True)
    current = next(records)  # It only says how the old file began.
    async with (
        staged_run(target, files=files, in_thread=in_thread) as place,
        writing(place, new=True, stamp=lambda: (current.at, current.t), files=files, in_thread=in_thread) as journal,
    ):
        for record in records:
            if isinstance(record.event, FileEvent | JournalRecovered):
                continue  # These speak of files that stay behind.
            current = record
            state.apply(journal.append(_as_own(record.event, origin, journal.head)))
            await journal.wait_room()
    return Forked(target, state, history.seq)


def _look_over(source: Path, target: Path, at: int | None, files: Files) -> tuple[LoadedRun, dict[str, Any]]:
    """Make sure that every record can be taken over, before anything is written; tell where they come from."""
    check_target(source, target, files)
    history = load(source, at)
    if history.problem is not None:
        raise history.problem
    if history.state.started is None:
        raise JournalError(f"{source} cannot be forked at record {history.seq:,}: the run had not begun by then")
    run = ""
    lifecycle = Lifecycle()
    for record in history.records(load_blobs=True):
        if isinstance(record.event, SegmentOpened):
            run = record.event.run
        lifecycle.replay_record(record, source)
    origin = {"run": run, "seq": history.seq, "h": history.state.head}
    if history.state.sessions and not history.state.ending:
        origin["session"] = history.state.sessions[-1].n  # Here it ends, but where it comes from it may go on.
    earlier = history.state.started.forked_from
    return history, origin if earlier is None else {**origin, "forked_from": earlier}


def _as_own(event: Event, origin: dict[str, Any], head: str) -> Event:
    """Let a fact say of the new journal what it said of the old one."""
    match event:
        case RunStarted():
            return attrs.evolve(event, forked_from=origin)  # type: ignore[misc]  # a fact is an attrs class
        case RunFinished():
            return attrs.evolve(event, head=head)  # type: ignore[misc]  # the same
        case _:
            return event
