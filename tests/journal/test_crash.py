"""Real processes that are killed: every acknowledged record is in the journal afterwards."""

import random
import signal
import textwrap
import time
from pathlib import Path

import pytest
import trio

from evaljournal.journal import read, verify
from evaljournal.journal.events import SessionStarted
from tests.journal.samples import fake_clock, session, write
from tests.processes import Forks

pytestmark = pytest.mark.slow

KILLS = 50

WRITER = textwrap.dedent(
    """
    import os, sys
    import trio
    from evaljournal.journal import read, writing
    from evaljournal.journal.errors import NotAJournal
    from evaljournal.journal.events import SessionStarted
    from pathlib import Path
    sys.path.append(sys.argv[1])
    from tests.journal.samples import started, trial
    from tests.processes import forked_arguments

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

    trio.run(main, Path(*forked_arguments()))
    """
)


def test_fifty_kills_lose_no_acknowledged_record(tmp_path: Path) -> None:
    """A writer is killed fifty times at random moments; no acknowledged record is lost."""
    rng = random.Random(0)
    run = tmp_path / "run"
    acknowledged: dict[int, str] = {}
    (tmp_path / "writer.py").write_text(WRITER)
    forks = Forks(tmp_path / "writer.py")
    for kill in range(KILLS):
        writer = forks.start(run)
        first = writer.stdout.readline()
        time.sleep(rng.uniform(0, 0.03))  # Real time: the writer is a real process.
        writer.send_signal(signal.SIGKILL)
        code, printed, err = writer.end()
        assert (-signal.SIGKILL, "") == (code, err)
        for line in (first + printed).splitlines(keepends=True):
            if line.endswith("\n"):
                seq, h = line.split()
                acknowledged[int(seq)] = h

        present = {record.seq: record.h for record in read(run)}
        assert acknowledged.items() <= present.items(), f"after kill {kill + 1}"
    forks.close()

    async def resume() -> None:
        sessions = sum(isinstance(record.event, SessionStarted) for record in read(run))
        await write(run, [session(sessions + 1)], new=False, clock=fake_clock())

    trio.run(resume)
    assert len(acknowledged) >= KILLS
    assert verify(run).ok
