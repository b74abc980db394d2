"""Fork a run: copy its records up to a point into a new run, which can be resumed from there.

Any prefix of a journal is a valid state. The copy has a hash chain of its own, and its first record names the source.
"""

from pathlib import Path
from typing import Any

import attrs

from journal import Event, JournalError, writing
from journal.events import FileEvent, JournalRecovered, RunFinished, RunStarted, SegmentOpened
from journal.files import DISK, Files
from journal.lifecycle import Lifecycle
from journal.ownership import SignatureCopier
from journal.staging import check_target, staged_run
from journal.threads import InThread, run_in_thread
from replay import LoadedRun, RunState, load


@attrs.frozen
class Forked:
    """A new run, and where it was forked."""

    path: Path
    state: RunState
    seq: int
    """The last record of the source that was copied."""


async def fork(
    source: Path | str, target: Path | str, at: int | None = None, *, files: Files = DISK, in_thread: InThread = run_in_thread
) -> Forked:
    """Copy the records of a run, up to record `at` or all of them, into a new run; the source is only read."""
    source, target = Path(source), Path(target)
    history, origin = await in_thread(lambda: _check(source, target, at, files))
    state = RunState()
    records = history.records(load_blobs=True)
    current = next(records)  # The header of the source's first file.
    signatures = SignatureCopier(source)
    signatures.key_of(current)
    async with (
        staged_run(target, files=files, in_thread=in_thread) as place,
        writing(place, new=True, clock=lambda: (current.at, current.t), files=files, in_thread=in_thread) as journal,
    ):
        for record in records:
            key = signatures.key_of(record)
            if isinstance(record.event, FileEvent | JournalRecovered):
                continue  # These are about the files of the source.
            current = record
            state.apply(journal.append(_adapted(record.event, origin, journal.head), key=key))
            await journal.wait_room()
    return Forked(target, state, history.seq)


def _check(source: Path, target: Path, at: int | None, files: Files) -> tuple[LoadedRun, dict[str, Any]]:
    """Check that every record can be copied, before anything is written; return the loaded source and its identity."""
    check_target(source, target, files)
    history = load(source, at)
    if history.problem is not None:
        raise history.problem
    if history.state.started is None:
        raise JournalError(f"{source} cannot be forked at record {history.seq:,}: the run had not started by then")
    run = ""
    lifecycle = Lifecycle()
    for record in history.records(load_blobs=True):
        if isinstance(record.event, SegmentOpened):
            run = record.event.run
        lifecycle.replay_record(record, source)
    origin = {"run": run, "seq": history.seq, "h": history.state.head}
    if history.state.sessions and not history.state.outcome:
        origin["session"] = history.state.sessions[-1].number  # It ends here, but may continue in the source.
    earlier = history.state.started.forked_from
    return history, origin if earlier is None else {**origin, "forked_from": earlier}


def _adapted(event: Event, origin: dict[str, Any], head: str) -> Event:
    """Return an event with references to its journal adapted to the new one."""
    match event:
        case RunStarted():
            return attrs.evolve(event, forked_from=origin)  # type: ignore[misc]  # a fact is an attrs class
        case RunFinished():
            return attrs.evolve(event, head=head)  # type: ignore[misc]  # the same
        case _:
            return event
