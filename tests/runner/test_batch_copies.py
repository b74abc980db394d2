"""Runs with batches that are forked, merged and salvaged."""

from pathlib import Path

import pytest

from evaljournal.journal import Event, read, salvage, verify
from evaljournal.journal.events import BatchCollected, BatchPrepared, BatchSubmitted, RunStopped
from evaljournal.replay import load
from evaljournal.replay.auditing.auditor import audit
from evaljournal.runner.runs.fork import fork
from evaljournal.runner.testing import inline
from tests.journal.samples import flip, segment, write
from tests.replay.batch_run import batch_run
from tests.runner.test_fork import FastDisk

FILES = FastDisk()


async def test_a_fork_of_a_stopped_run_ends_its_batch(tmp_path: Path) -> None:
    """Also after the end of the session, the batch that was not submitted is ended as forked."""
    events = batch_run()
    prepared = [type(event) for event in events].index(BatchPrepared)
    await write(tmp_path / "old", [*events[: prepared + 1], RunStopped(reason="interrupted")])
    result = await fork(tmp_path / "old", tmp_path / "new", files=FILES, in_thread=inline)

    assert {} == result.state.batches.lines.open
    assert (True, ()) == (verify(tmp_path / "new").ok, audit(read(tmp_path / "new")).findings)


@pytest.mark.parametrize("kind", [BatchPrepared, BatchSubmitted, BatchCollected])
@pytest.mark.parametrize("number", [0, 1])
async def test_results_survive_a_lost_batch_event(tmp_path: Path, kind: type[Event], number: int) -> None:
    """Salvage keeps every output if one event of a batch is lost; the copy verifies."""
    await write(tmp_path / "old", batch_run())
    lost = [record for record in read(tmp_path / "old") if isinstance(record.event, kind)][number]
    flip(segment(tmp_path / "old"), lost.offset + 40)
    result = await salvage(tmp_path / "old", tmp_path / "new", files=FILES, in_thread=inline)
    state = load(tmp_path / "new").state

    assert (1, ["completed"] * 3) == (result.lost, [trial.stage for trial in state.trials.values()])
    assert (True, ()) == (verify(tmp_path / "new").ok, audit(read(tmp_path / "new")).findings)
