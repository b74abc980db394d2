"""The golden merged run: the same shards are merged into the same bytes.

One shard was finished in two sessions, one was stopped at its deadline, and one was missing; `resume` ran the other trials
after the merge. After an intended change, `python -m tests.cases.test_golden_merge` writes it again.
"""

import re
import tempfile
from pathlib import Path

import trio

from evaljournal.journal import read, verify
from evaljournal.journal.events import RunFinished, RunStopped
from evaljournal.replay import load
from evaljournal.replay.auditing.auditor import audit
from evaljournal.replay.state.shards import missing_shards
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.runs.merge import merge
from evaljournal.runner.sessions.api import arun
from evaljournal.runner.testing import events_of, inline
from tests.cases.test_golden_run import golden_evaluation, golden_options, run_seeded
from tests.journal.samples import content, overwrite
from tests.runner.test_fork import FastDisk
from tests.runner_cli.commands import evaljournal, printed

GOLDEN = Path(__file__).parents[1] / "golden" / "merged-v2"
SHARDS = {"1/3": 2, "2/3": 1}
"""Shard → its sessions."""


def run_golden(directory: Path) -> dict[str, bytes]:
    """Run two shards at the same time, merge them, and resume the merged run; return its files."""
    files, target = FastDisk(), directory / "merged"

    async def run_shard(shard: str, sessions: int) -> None:
        evaluation, path = golden_evaluation(), directory / shard[0]
        for session in range(sessions):
            deadline = 5 if session == 0 else 30
            options = golden_options(run=shard[0] * 32) | {"resume": session > 0, "shard": shard, "deadline": deadline}
            await arun(evaluation, path, **options, files=files)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for shard, sessions in SHARDS.items():
                nursery.start_soon(run_shard, shard, sessions)
        await merge([directory / shard[0] for shard in SHARDS], target, run="0" * 32, files=files, in_thread=inline)
        await arun(golden_evaluation(), target, **golden_options(), deadline=30, files=files, resume=True)

    run_seeded(main)
    return {name: data for name, data in content(target).items() if not name.endswith("LOCK")}


def test_the_golden_merged_run_is_reproduced(tmp_path: Path) -> None:
    """The same shards give the same bytes."""
    assert content(GOLDEN) == run_golden(tmp_path)


def test_the_golden_merged_run_has_its_figures() -> None:
    """The hash chain is intact, and every retry is reproduced; sessions, outcomes, results and duration are unchanged."""
    state = load(GOLDEN).state
    ends = [event for event in events_of(GOLDEN) if isinstance(event, RunStopped | RunFinished)]
    figures = state.completed, state.failed, state.totals.attempts, state.sessions.planned, round(state.elapsed, 3)

    assert (True, ()) == (verify(GOLDEN).ok, audit(read(GOLDEN), rules=retry_rules).findings)
    assert ["1/3", "1/3", "2/3", ""] == [session.shard for session in state.sessions]
    assert ["3/3"] == [str(shard) for shard in missing_shards(state.sessions.merged.shards)]
    assert [RunStopped, RunStopped, RunStopped, RunFinished] == [type(end) for end in ends]
    assert (10, 2, 19, 12, 15.361) == figures


def test_views_of_the_golden_merged_run() -> None:
    """`status` has the wall time of the shards, and `show` the shard of each session."""
    status, shown = printed("status", GOLDEN), printed("show", GOLDEN, "malta")
    trial = evaljournal("show", GOLDEN, "malta").stdout

    assert (15.361, []) == (round(status["elapsed"], 3), status["missing_shards"])
    assert "took 15 s in 4 sessions, merged from 2 shards" in evaljournal("status", GOLDEN).stdout
    assert [3, 4, 4] == [attempt["session"] for attempt in shown["attempts"]]
    assert ["session 3 (shard 2/3)", *["session 4"] * 2] == re.findall(r"session \d+(?: \(shard .*?\))?", trial)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        GOLDEN.mkdir(parents=True, exist_ok=True)
        for name, data in run_golden(Path(temporary)).items():
            overwrite(GOLDEN / name, data)
