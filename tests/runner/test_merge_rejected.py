"""Shards that are rejected, hostile or foreign, and merges that fail: nothing but a complete run is at the target."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from evaljournal import UsageError
from evaljournal.journal import JournalError, read, verify, writing
from evaljournal.journal.errors import DiskFull, InvalidRecord, JournalExists, JournalLocked
from evaljournal.journal.events import AttemptSucceeded, JournalSalvaged, RunFinished, TrialWithdrawn
from evaljournal.journal.ownership import Start, add_own_hashes, start_events
from evaljournal.replay import load
from evaljournal.replay.auditing.auditor import audit
from evaljournal.runner.errors import RunChanged
from evaljournal.runner.runs.merge import merge
from evaljournal.runner.testing import inline
from tests.journal.samples import content, finished, write
from tests.runner.test_fork import Full
from tests.runner.test_merge import FILES, OFFLINE, run_shards, shard_events, ticking
from tests.runner.test_shards import echo
from tests.runner_cli.commands import evaljournal
from tests.runs import define, numbered_cases


async def test_findings_of_other_shards_are_kept(tmp_path: Path) -> None:
    """An audit ignores the gaps of a salvaged shard only, not what is wrong in the shards before it."""
    events = shard_events("1/2", "a")
    wrong = [attrs.evolve(event, elapsed=1e6) if isinstance(event, AttemptSucceeded) else event for event in events]  # type: ignore[misc]  # attrs classes
    await write(tmp_path / "1", wrong, **OFFLINE)
    await write(tmp_path / "2", [*shard_events("2/2", "b"), salvaged_event()], **OFFLINE)
    await merge([tmp_path / "1", tmp_path / "2"], tmp_path / "new", **OFFLINE)
    late = [record.seq for record in read(tmp_path / "new") if getattr(record.event, "trial", "") == "b"]

    findings = audit(read(tmp_path / "new")).findings
    assert findings
    assert all(finding.seq < late[0] for finding in findings)


async def test_a_shard_with_wrong_totals_is_rejected(tmp_path: Path) -> None:
    """The totals of the merged run replace those of its shards, so a shard with wrong ones is not merged."""
    await write(tmp_path / "1", [*shard_events("1/1", "a")[:-1], finished(2)], **OFFLINE)
    with pytest.raises(InvalidRecord, match="its totals"):
        await merge([tmp_path / "1"], tmp_path / "new", **OFFLINE)

    assert ["1"] == os.listdir(tmp_path)


def salvaged_event() -> Any:
    """Return the record that a salvage adds."""
    return JournalSalvaged(run="0" * 32, kept=8, lost=1, excluded=0)


async def test_shards_that_do_not_belong_together_are_rejected(tmp_path: Path) -> None:
    """The same shard twice, another number of shards, evaluation, dataset or seed, a whole run and a live run are rejected."""
    changes: dict[str, Any] = {
        "first": {},
        "same": {},
        "count": {"shard": "2/3"},
        "evaluation": {"evaluation": "rivers"},
        "dataset": {"dataset_fingerprint": "other"},
        "seed": {"settings": {"slots": 2, "seed": 1}},
        "undivided": {"shard": ""},
        "invalid": {"shard": "9/8"},
    }
    for name, change in changes.items():
        events = shard_events("1/2" if name in {"first", "same"} else "2/2", name)
        settings = {"settings": {"slots": 2, "seed": 0}}
        await write(tmp_path / name, [attrs.evolve(events[0], **{**settings, **change}), *events[1:]], **OFFLINE)
    for name in list(changes)[1:]:
        with pytest.raises(RunChanged if name in {"evaluation", "dataset", "seed"} else UsageError):
            await merge([tmp_path / "first", tmp_path / name], tmp_path / "new", **OFFLINE)
    async with writing(tmp_path / "live", new=True, **OFFLINE) as journal:
        journal.append(shard_events("2/2", "live")[0])
        with pytest.raises(JournalLocked):
            await merge([tmp_path / "first", tmp_path / "live"], tmp_path / "new", **OFFLINE)
    with pytest.raises(JournalExists):
        await merge([tmp_path / "first"], tmp_path / "same", **OFFLINE)
    with pytest.raises(JournalError, match="is inside"):
        await merge([tmp_path / "first"], tmp_path / "first" / "new", **OFFLINE)

    assert {*changes, "live"} == set(os.listdir(tmp_path))


WITHDRAWN = [TrialWithdrawn(trial="a", reason="removed"), RunFinished(completed=0, failed=0, withdrawn=1, head="")]


@pytest.mark.parametrize("ends", [[finished()], WITHDRAWN])
async def test_a_trial_in_two_shards_is_rejected(tmp_path: Path, ends: list[Any]) -> None:
    """A trial that two shards have is an error, even if one has withdrawn it; no target is created."""
    first, second = shard_events("1/2", "a"), shard_events("2/2", "a")
    first[-1:] = ends
    await write(tmp_path / "1", first, **OFFLINE)
    await write(tmp_path / "2", second, **OFFLINE)
    before = content(tmp_path)
    with pytest.raises(UsageError, match=r"the trial 'a' of .*/2 is also in another shard"):
        await merge([tmp_path / "1", tmp_path / "2"], tmp_path / "new", **OFFLINE)

    assert before == content(tmp_path)


HOSTILE = ["\x1b[31mred", "../../etc", "<script>alert(1)</script>", "case\nnext", "\u202e"]


def test_hostile_names_and_paths_are_escaped(tmp_path: Path) -> None:
    """Names of another user's shards are copied as they are, and printed without control characters."""
    for number, name in enumerate(HOSTILE, 1):
        path = tmp_path / f"{number}\x1b[31m"
        events = shard_events(f"{number}/{len(HOSTILE) + 1}", name, evaluation="\x1b[31mevaluation")
        trio.run(partial(write, path, events, **OFFLINE))
    result = evaljournal("merge", *tmp_path.iterdir(), "-o", tmp_path / "new")
    names = list(load(tmp_path / "new").trials)
    trio.run(
        partial(
            write,
            tmp_path / "again",
            shard_events("6/6", HOSTILE[0], evaluation="\x1b[31mevaluation"),
            files=FILES,
            in_thread=inline,
        )
    )
    overlap = evaljournal("merge", tmp_path / "1\x1b[31m", tmp_path / "again", "-o", tmp_path / "other")

    assert (3, sorted(HOSTILE)) == (result.exit_code, sorted(names))
    assert 2 == overlap.exit_code
    assert "\x1b" not in result.output + overlap.output


async def test_only_the_users_own_shards_are_listed(tmp_path: Path) -> None:
    """The merged run is the user's own if all shards are; with one foreign shard, `resume` requires --trust."""
    for number, is_own in ((1, True), (2, True), (3, False)):
        path, events = tmp_path / str(number), shard_events(f"{number}/3", f"case-{number}")
        async with writing(path, new=True, clock=ticking(0), **OFFLINE) as journal:
            for event in events:
                record = journal.append(event)
                if is_own and isinstance(event, Start):
                    add_own_hashes(journal.run, [record.h])
    own = await merge([tmp_path / "1", tmp_path / "2"], tmp_path / "own", **OFFLINE)
    await merge([tmp_path / str(number) for number in (1, 2, 3)], tmp_path / "mixed", **OFFLINE)

    assert 2 == len(own.state.sessions)
    assert [True] * 3 == [is_listed for _, is_listed in start_events(tmp_path / "own")]
    assert [False] * 4 == [is_listed for _, is_listed in start_events(tmp_path / "mixed")]


async def test_a_shard_that_changes_during_the_merge_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head that is recorded is that of the records that were copied."""
    shards = await run_shards(define(echo, numbered_cases(3)), tmp_path)
    before = content(tmp_path)
    monkeypatch.setattr("evaljournal.runner.runs.merge.sealed_head", lambda _: "0" * 32)
    with pytest.raises(JournalError, match="was changed while it was merged"):
        await merge(shards, tmp_path / "new", **OFFLINE)

    assert before == content(tmp_path)


@pytest.mark.parametrize("writes", [0, 1, 2])
@pytest.mark.parametrize(("failure", "expected"), [(None, DiskFull), (KeyboardInterrupt(), KeyboardInterrupt)])
async def test_a_full_disk_or_a_signal_leaves_nothing(
    tmp_path: Path, failure: BaseException | None, expected: type[BaseException], writes: int
) -> None:
    """A merge that does not fit on the disk, or that is interrupted, leaves no files, and can be repeated."""
    shards = await run_shards(define(echo, numbered_cases(6)), tmp_path)
    before = content(tmp_path)
    with pytest.raises((expected, BaseExceptionGroup)) as raised:
        await merge(shards, tmp_path / "new", files=Full(writes, failure), in_thread=inline)

    assert isinstance(raised.value, expected) or raised.group_contains(expected)
    assert before == content(tmp_path)
    assert verify((await merge(shards, tmp_path / "new", **OFFLINE)).path).ok
