"""Runs with batches that are forked, merged and salvaged."""

from pathlib import Path

import attrs
import pytest

from evaljournal import UsageError
from evaljournal.journal import Event, read, salvage, verify
from evaljournal.journal.events import BatchCollected, BatchPrepared, BatchSubmitted, RunFinished, RunStopped
from evaljournal.replay import load
from evaljournal.replay.auditing.auditor import audit
from evaljournal.runner.fork import fork
from evaljournal.runner.merge import merge
from evaljournal.runner.testing import inline
from tests.journal.samples import flip, segment, write
from tests.replay.batch_run import batch_run
from tests.runner.test_fork import FastDisk

FILES = FastDisk()


def shard(number: int) -> list[Event]:
    """Return the events of one of two shards, each with three batches."""
    first, *events = batch_run(*(f"{name}{number}" for name in "abc"))
    return [attrs.evolve(first, shard=f"{number}/2"), *events]  # type: ignore[misc]  # an event is an attrs class


async def test_an_unsubmitted_batch_is_not_part_of_a_fork(tmp_path: Path) -> None:
    """Forked between preparation and submission, the new run ends the batch as forked; the source may still submit it."""
    await write(tmp_path / "old", batch_run())
    prepared, submitted = (
        next(record.seq for record in read(tmp_path / "old") if isinstance(record.event, kind))
        for kind in (BatchPrepared, BatchSubmitted)
    )
    early = await fork(tmp_path / "old", tmp_path / "early", prepared, files=FILES, in_thread=inline)
    late = await fork(tmp_path / "old", tmp_path / "late", submitted, files=FILES, in_thread=inline)

    assert (["forked"], {}) == ([batch.state for batch in early.state.batches.values()], early.state.batch_lines.open)
    assert {1: "a", 2: "b", 3: "c"} == late.state.batch_lines.open_lines(1)
    for name in ("early", "late"):
        assert (True, ()) == (verify(tmp_path / name).ok, audit(read(tmp_path / name)).findings)


async def test_a_fork_of_a_stopped_run_ends_its_batch(tmp_path: Path) -> None:
    """Also after the end of the session, the batch that was not submitted is ended as forked."""
    events = batch_run()
    prepared = [type(event) for event in events].index(BatchPrepared)
    await write(tmp_path / "old", [*events[: prepared + 1], RunStopped(reason="interrupted")])
    result = await fork(tmp_path / "old", tmp_path / "new", files=FILES, in_thread=inline)

    assert {} == result.state.batch_lines.open
    assert (True, ()) == (verify(tmp_path / "new").ok, audit(read(tmp_path / "new")).findings)


async def test_merged_shards_have_their_batches(tmp_path: Path) -> None:
    """The batches of the second shard are numbered after those of the first; the merged run verifies."""
    for number in (1, 2):
        await write(tmp_path / str(number), shard(number))
    result = await merge([tmp_path / "1", tmp_path / "2"], tmp_path / "new", files=FILES, in_thread=inline)

    assert [1, 2, 3, 4, 5, 6] == list(result.state.batches)
    assert (True, ()) == (verify(tmp_path / "new").ok, audit(read(tmp_path / "new")).findings)
    assert 6 == sum(isinstance(record.event, BatchCollected) for record in read(tmp_path / "new"))
    assert isinstance(list(read(tmp_path / "new"))[-2].event, RunFinished)


async def test_a_shard_with_an_open_batch_is_rejected(tmp_path: Path) -> None:
    """A shard whose batch is open is named, with the commands that end it; nothing is at the target."""
    events = shard(2)
    await write(tmp_path / "1", shard(1))
    await write(tmp_path / "2", events[: [type(event) for event in events].index(RunStopped) + 1])
    with pytest.raises(UsageError, match="2 has 1 open batch") as raised:
        await merge([tmp_path / "1", tmp_path / "2"], tmp_path / "new", files=FILES, in_thread=inline)

    assert f"evaljournal resume {tmp_path / '2'} --wait" in str(raised.value.hint)
    assert not (tmp_path / "new").exists()


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
