"""Real processes that are killed: every acknowledged record is in the journal afterwards."""

import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import trio

from journal import read, verify
from journal.events import SessionStarted
from tests.journal.samples import fake_clock, session, write
from tests.processes import ROOT, Process

KILLS = 50

WRITER = textwrap.dedent(
    """
    import os, sys
    import trio
    from journal import read, writing
    from journal.errors import NotAJournal
    from journal.events import SessionStarted
    from tests.journal.samples import started, trial
    from pathlib import Path

    async def main(path):
        try:
            sessions = sum(isinstance(record.event, SessionStarted) for record in read(path))
            new = False
        except NotAJournal:
            sessions, new = 0, True
        async with writing(path, new=new, roll_at=20_000) as journal:
            if journal.lifecycle.stage == "new":
                journal.append(started())
            journal.append(SessionStarted(session=sessions + 1, pid=os.getpid(), host="", boot_id=""))
            for number in range(1_000_000):
                for event in trial(f"{sessions}-{number}", "x" * (number % 700), retries=number % 2):
                    record = journal.append(event)
                if number % 5 == 0:
                    await journal.wait_durable(record.seq)
                    print(record.seq, record.h, flush=True)
                else:
                    await trio.lowlevel.checkpoint()

    trio.run(main, Path(sys.argv[1]))
    """
)


@pytest.mark.timeout(600)  # fifty processes
def test_fifty_kills_lose_no_acknowledged_record(tmp_path: Path) -> None:
    """A writer is killed fifty times at random moments; no acknowledged record is lost."""
    chance = random.Random(0)
    run = tmp_path / "run"
    acknowledged: dict[int, str] = {}
    for kill in range(KILLS):
        with Process([sys.executable, "-c", WRITER, str(run)], stdout=subprocess.PIPE, cwd=ROOT) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            time.sleep(chance.uniform(0, 0.03))  # Real time: the writer is a real process.
            writer.kill()
            printed = first + writer.stdout.read()
        for line in printed.splitlines(keepends=True):
            if line.endswith("\n"):
                seq, h = line.split()
                acknowledged[int(seq)] = h

        present = {record.seq: record.h for record in read(run)}
        assert acknowledged.items() <= present.items(), f"after kill {kill + 1}"

    async def resume() -> None:
        sessions = sum(isinstance(record.event, SessionStarted) for record in read(run))
        await write(run, [session(sessions + 1)], new=False, clock=fake_clock())

    trio.run(resume)
    assert len(acknowledged) >= KILLS
    assert verify(run).ok
