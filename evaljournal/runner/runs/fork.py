"""Fork a run: copy its records up to a point into a new run, which can be resumed from there.

Any prefix of a journal is a valid state. The copy has a hash chain of its own, and its `RunStarted` names the source.
"""

from pathlib import Path
from typing import Any

import attrs

from evaljournal.journal import Event, JournalError
from evaljournal.journal.copies.staging import check_target, copied_run
from evaljournal.journal.disk.files import DISK, Files
from evaljournal.journal.events import (
    BatchCollected,
    FileEvent,
    JournalRecovered,
    Noted,
    RunFinished,
    RunStarted,
    RunStopped,
    SegmentOpened,
)
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.ownership import own_hashes
from evaljournal.journal.threads import InThread, run_in_thread
from evaljournal.replay import LoadedRun, RunState
from evaljournal.replay.runs.loaded_run import load, reject_invalid_record
from evaljournal.replay.state.set_ups import TORN_DOWN
from evaljournal.replay.state.shards import first_shards


@attrs.frozen
class ForkResult:
    path: Path
    state: RunState
    seq: int
    """The last record of the source that was copied."""


async def fork(
    source: Path | str, target: Path | str, at: int | None = None, *, files: Files = DISK, in_thread: InThread = run_in_thread
) -> ForkResult:
    """Copy the records of a run, up to record `at` or all of them, into a new run; the source is only read."""
    source, target = Path(source), Path(target)
    source_run = await in_thread(lambda: _check(source, target, at, files))

    state = RunState()
    records = iter(source_run.records(load_blobs=True))
    header = next(records)  # Not copied: the new journal writes its own header.
    assert isinstance(header.event, SegmentOpened)
    origin, own_starts = _origin(header.event.run, source_run.state), own_hashes(header.event.run)
    async with copied_run(target, header, files=files, in_thread=in_thread) as copy:
        for record in records:
            if isinstance(record.event, FileEvent | JournalRecovered):
                continue  # These are about the files of the source.
            copy.source = record
            with reject_invalid_record(source, lambda: copy.source.seq):
                event = _adapt(record.event, source_run, origin, copy.journal.head)
                state.apply(copy.append(event, is_own=record.h in own_starts))
            await copy.journal.wait_room()

        for number, batch in list(state.batches.lines.open.items()):
            if not batch.is_submitted:  # The source may submit it later, and only the source may use its results.
                end = BatchCollected(batch=number, state="forked", results=0, missing=len(batch.trials))
                state.apply(copy.journal.append(end))
        for trial, attempt in [*state.set_ups.open, *state.set_ups.died]:  # The source may use them, and tears them down.
            state.apply(copy.journal.append(Noted(name=TORN_DOWN, value={"by": "source"}, trial=trial, attempt=attempt)))
    return ForkResult(target, state, source_run.seq)


def _check(source: Path, target: Path, at: int | None, files: Files) -> LoadedRun:
    """Check that a run can be forked there, before anything is written; return it."""
    check_target(source, target, files)
    source_run = load(source, at)
    if source_run.problem is not None:
        raise source_run.problem
    if source_run.state.started is None:
        hint = "" if at is None else "; pass a later record with --at"
        raise JournalError(f"{source} cannot be forked at record {source_run.seq:,}: the run had not started by then{hint}")
    return source_run


def _origin(run: str, state: RunState) -> dict[str, Any]:
    origin: dict[str, Any] = {"run": run, "seq": state.seq, "h": state.head}
    if state.sessions and not state.outcome:
        origin["session"] = state.sessions[-1].number  # It ends here, but may continue in the source.
    previous_fork = state.started.forked_from if state.started else None
    return origin if previous_fork is None else {**origin, "forked_from": previous_fork}


def _adapt(event: Event, source_run: LoadedRun, origin: dict[str, Any], head: str) -> Event:
    """Return an event with references to its journal adapted to the new one.

    If the copy ends before the last session of the merged shards, `RunFinished` becomes `RunStopped`.
    """
    match event:
        case RunStarted():
            shards = first_shards(event.merged_from, len(source_run.state.sessions))
            return evolve_fact(event, forked_from=origin, merged_from=shards)
        case RunFinished() if source_run.state.sessions.merged.sessions > len(source_run.state.sessions):
            return RunStopped(reason="interrupted")
        case RunFinished():
            return evolve_fact(event, head=head)
        case _:
            return event
