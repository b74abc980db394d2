"""A fork at any point goes on like the run that it came from; and so does what was salvaged."""

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from journal import JournalError, Record, read, salvage, verify
from journal.errors import DiskFull
from journal.events import AttemptInterrupted, AttemptStarted, TrialEnqueued
from journal.lifecycle import ENDED
from replay import load
from replay.auditing import audit
from replay.state import RunState
from runner import Case, Fatal, RateLimited, Retry, arun, evaluation
from runner.fork import fork
from runner.recompute.rules import session_rules
from runner.testing import Answer, Fail, Hang, Scripted, Step, inline, repeatable
from tests.journal.samples import Fleeting, content, flip, segment

SCRIPT: dict[str, list[Step]] = {
    "well": [Answer("fine", 1.0)],
    "unauthorized": [Fail(RateLimited(2.0), 0.5), Answer("in the end", 1.0)],
    "ill": [Fail(ConnectionError("down"), 0.5), Fail(ConnectionError("down"), 0.5), Answer("again", 1.0)],
    "wrong": [Fail(Fatal("never"), 0.5)],
    "stuck": [Hang()],
}


class Restless(Fleeting):
    """A disk that neither makes sure of anything nor ever rests."""

    def pause(self) -> None:
        """Do nothing."""


def outcome(state: RunState) -> dict[str, Any]:
    """Tell how each trial ended."""
    return {name: (trial.stage, trial.scores) for name, trial in state.trials.items()}


async def test_a_fork_at_any_record_ends_like_its_run(tmp_path: Path) -> None:
    """Wherever a run is forked, the new one is whole, keeps what was done and comes to the same end; the old one stays."""
    old, files = tmp_path / "old", Restless()
    task = Scripted(SCRIPT)

    async def ask(name: str) -> Any:
        return await task(name)

    cases = [Case(name=name, input=name) for name in SCRIPT]
    made = evaluation(cases=cases, slots=2, timeout=3, retry=Retry(errors=4, timeouts=1, base_delay=1.0), loop="trio")(ask)

    @made.score
    def is_long(output: str, case: Case[str, str]) -> bool:
        return len(output) > 5

    whole = await arun(made, old, files=files, policy="fixed", **repeatable())
    assert ["completed"] * 3 + ["failed"] * 2 == [trial.stage for trial in whole.state.trials.values()]
    for at in range(2, len(list(read(old))) + 1):
        new = tmp_path / f"new-{at}"
        forked = await fork(old, new, at, files=files, in_thread=inline)
        done = {name for name, trial in load(old, at).trials.items() if trial.stage in ENDED}
        assert (at, done) == (forked.seq, {name for name, trial in forked.state.trials.items() if trial.stage in ENDED})

        task.calls.clear()
        again = await arun(made, new, resume=True, files=files, policy="fixed", **repeatable())
        assert outcome(whole.state) == outcome(again.state)
        assert not done & set(task.calls)
        assert (True, ()) == (verify(new).holds, audit(read(new), remake=session_rules).findings)
    assert verify(old, expect_head=whole.head).holds


async def test_what_was_in_the_air_at_a_fork_did_not_die(tmp_path: Path) -> None:
    """Attempts that a fork has cut off are told as that; those of a session of its own that died afterwards, as dead."""
    old, new, files = tmp_path / "old", tmp_path / "new", Restless()

    def after(path: Path, session: int) -> Record:
        """Find the first start of an attempt in a session."""
        records = itertools.dropwhile(lambda record: getattr(record.event, "n", 0) != session, read(path))
        return next(record for record in records if isinstance(record.event, AttemptStarted))

    await arun(one(), old, files=files, **repeatable())
    await fork(old, new, after(old, 1).seq, files=files, in_thread=inline)
    await arun(one(), new, resume=True, files=files, **repeatable())
    behind = list(read(new))[after(new, 2).seq]
    os.truncate(segment(new, behind.segment), behind.offset)
    await arun(one(), new, resume=True, files=files, **repeatable())

    cut = [record.event.why for record in read(new) if isinstance(record.event, AttemptInterrupted)]
    assert ["forked", "process_died"] == cut
    assert (True, ()) == (verify(new).holds, audit(read(new), remake=session_rules).findings)


async def test_nothing_is_written_where_something_is(tmp_path: Path) -> None:
    """A link that leads nowhere is something, too."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(JournalError, match="exists already"):
        await fork(tmp_path / "old", tmp_path / "link", in_thread=inline)

    assert not (tmp_path / "nowhere").exists()


class Full(Restless):
    """A disk that has space for so many writes."""

    def __init__(self, writes: int) -> None:
        self.writes = writes

    def write(self, fd: int, data: memoryview) -> int:
        """Take it, or nothing more."""
        self.writes -= 1
        if self.writes < 0:
            raise OSError(errno.ENOSPC, "no space left")
        return super().write(fd, data)


def one() -> Any:
    """Make an evaluation with two cases."""

    @evaluation(cases=[Case(name="a", input=1), Case(name="b", input=2)], loop="trio")
    async def doubled(number: int) -> int:
        return number * 2

    return doubled


async def test_where_there_is_no_space_there_is_no_fork(tmp_path: Path) -> None:
    """A fork that does not fit leaves nothing behind, is not to be resumed, and says what to do."""
    await arun(one(), tmp_path / "old", files=Restless(), **repeatable())
    before = content(tmp_path)
    for writes in range(3):
        with pytest.raises(DiskFull, match=r"no space left for .*/new .*nothing is left of it.* Make space, and try again$"):
            await fork(tmp_path / "old", tmp_path / "new", files=Full(writes), in_thread=inline)
        assert before == content(tmp_path)
    await fork(tmp_path / "old", tmp_path / "new", files=Restless(), in_thread=inline)

    assert verify(tmp_path / "new").holds


async def test_a_salvaged_run_that_was_finished_goes_on_with_what_is_lost(tmp_path: Path) -> None:
    """A finished run that has lost a trial is not finished any more: a resumption asks it again, and the log agrees."""
    await arun(one(), tmp_path / "old", files=Restless(), **repeatable())
    lost = next(record for record in read(tmp_path / "old") if record.event.__class__ is TrialEnqueued)
    flip(segment(tmp_path / "old"), lost.offset + 60)
    await salvage(tmp_path / "old", tmp_path / "new", files=Restless(), in_thread=inline)
    before = load(tmp_path / "new").state
    outcome = await arun(one(), tmp_path / "new", resume=True, files=Restless(), **repeatable())

    assert ("", 1) == (before.ending, before.completed)
    assert ("finished", 2) == (outcome.state.ending, outcome.state.completed)
    assert (True, ()) == (verify(tmp_path / "new").holds, audit(read(tmp_path / "new"), remake=session_rules).findings)
