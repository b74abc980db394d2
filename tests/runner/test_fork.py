"""Forks and salvaged runs: resumed, they end like the run that they come from."""

import errno
import itertools
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from evaljournal import Case, Fatal, RateLimited, Retry, arun, evaluation, step
from evaljournal.journal import JournalError, Record, read, salvage, verify
from evaljournal.journal.events import (
    AttemptInterrupted,
    AttemptStarted,
    JournalRecovered,
    StepCompleted,
    StepReused,
    TrialEnqueued,
)
from evaljournal.journal.format.lifecycle import END_STAGES
from evaljournal.replay import load
from evaljournal.replay.auditing.auditor import audit
from evaljournal.replay.state.run import RunState
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.runs.fork import fork
from evaljournal.runner.testing import Action, Fail, Hang, Return, Scripted, deterministic_options, inline
from tests.journal.samples import UnsyncedDisk, flip, segment

SCRIPT: dict[str, list[Action]] = {
    "well": [Return("fine", 1.0)],
    "limited": [Fail(RateLimited(2.0), 0.5), Return("in the end", 1.0)],
    "ill": [Fail(ConnectionError("down"), 0.5), Fail(ConnectionError("down"), 0.5), Return("again", 1.0)],
    "wrong": [Fail(Fatal("never"), 0.5)],
    "stuck": [Hang()],
}


class FastDisk(UnsyncedDisk):
    """A disk without syncs and pauses."""

    def pause(self, seconds: float = 0.0) -> None:
        """Do nothing."""


def outcome(state: RunState) -> dict[str, Any]:
    """Return how each trial ended."""
    return {name: (trial.stage, trial.scores) for name, trial in state.trials.items()}


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.exhaustive)])
async def test_a_fork_at_any_record_ends_like_its_run(tmp_path: Path, stride: int) -> None:
    """Forked at any record, the new run verifies, keeps what was done and ends in the same way; the source is unchanged."""
    old, files = tmp_path / "old", FastDisk()
    task = Scripted(SCRIPT)

    async def ask(name: str) -> Any:
        return await task(name)

    cases = [Case(name=name, input=name) for name in SCRIPT]
    defined = evaluation(cases=cases, slots=2, timeout=3, retry=Retry(errors=4, timeouts=1, base_delay=1.0), loop="trio")(ask)

    @defined.score
    def is_long(output: str, case: Case[str, str]) -> bool:
        return len(output) > 5

    original = await arun(defined, old, files=files, policy="fixed", **deterministic_options())
    assert ["completed"] * 3 + ["failed"] * 2 == [trial.stage for trial in original.state.trials.values()]
    for seq in range(2, len(list(read(old))) + 1, stride):
        new = tmp_path / f"new-{seq}"
        forked = await fork(old, new, seq, files=files, in_thread=inline)
        done = {name for name, trial in load(old, seq).trials.items() if trial.stage in END_STAGES}
        assert (seq, done) == (forked.seq, {name for name, trial in forked.state.trials.items() if trial.stage in END_STAGES})

        task.calls.clear()
        resumed = await arun(defined, new, resume=True, files=files, policy="fixed", **deterministic_options())
        assert outcome(original.state) == outcome(resumed.state)
        assert not done & set(task.calls)
        assert (True, ()) == (verify(new).ok, audit(read(new), rules=retry_rules).findings)
    assert verify(old, expect_head=original.head).ok


async def test_attempts_in_flight_at_a_fork_are_recorded_as_forked(tmp_path: Path) -> None:
    """Attempts that were open at the fork are `forked`; those of a later session of the fork that died are `process_died`."""
    old, new, files = tmp_path / "old", tmp_path / "new", FastDisk()

    def first_start(path: Path, session: int) -> Record:
        """Find the first start of an attempt in a session."""
        records = itertools.dropwhile(lambda record: getattr(record.event, "session", 0) != session, read(path))
        return next(record for record in records if isinstance(record.event, AttemptStarted))

    await arun(define_two_cases(), old, files=files, **deterministic_options())
    await fork(old, new, first_start(old, 1).seq, files=files, in_thread=inline)
    await arun(define_two_cases(), new, resume=True, files=files, **deterministic_options())
    next_record = list(read(new))[first_start(new, 2).seq]
    os.truncate(segment(new, next_record.segment), next_record.offset)
    await arun(define_two_cases(), new, resume=True, files=files, **deterministic_options())

    reasons = [record.event.reason for record in read(new) if isinstance(record.event, AttemptInterrupted)]
    assert ["forked", "process_died"] == reasons
    assert (True, ()) == (verify(new).ok, audit(read(new), rules=retry_rules).findings)


async def test_an_existing_target_is_rejected(tmp_path: Path) -> None:
    """A dangling link counts as existing."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(JournalError, match="already exists"):
        await fork(tmp_path / "old", tmp_path / "link", in_thread=inline)

    assert not (tmp_path / "nowhere").exists()


class Full(FastDisk):
    """A disk with space for a number of writes, or that fails in another way after them."""

    def __init__(self, writes: int, failure: BaseException | None = None) -> None:
        self.writes = writes
        self.failure = failure or OSError(errno.ENOSPC, "no space left")

    def write(self, fd: int, data: memoryview) -> int:
        """Write the data, or raise once the space is used up."""
        self.writes -= 1
        if self.writes < 0:
            raise self.failure
        return super().write(fd, data)


def define_two_cases() -> Any:
    """Return an evaluation with two cases."""

    @evaluation(cases=[Case(name="a", input=1), Case(name="b", input=2)], loop="trio")
    async def doubled(number: int) -> int:
        return number * 2

    return doubled


async def test_a_salvaged_run_repeats_lost_trials(tmp_path: Path) -> None:
    """A finished run that has lost a trial is unfinished: resumed, it runs the trial again, and the audit passes."""
    await arun(define_two_cases(), tmp_path / "old", files=FastDisk(), **deterministic_options())
    lost = next(record for record in read(tmp_path / "old") if record.event.__class__ is TrialEnqueued)
    flip(segment(tmp_path / "old"), lost.offset + 60)
    await salvage(tmp_path / "old", tmp_path / "new", files=FastDisk(), in_thread=inline)
    before = load(tmp_path / "new").state
    outcome = await arun(define_two_cases(), tmp_path / "new", resume=True, files=FastDisk(), **deterministic_options())

    assert ("", 1) == (before.outcome, before.completed)
    assert ("finished", 2) == (outcome.state.outcome, outcome.state.completed)
    assert (True, ()) == (verify(tmp_path / "new").ok, audit(read(tmp_path / "new"), rules=retry_rules).findings)


STEPS = 5


class StepAgent:
    """An agent that makes one call per step; its calls are counted."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, int]] = Counter()
        self.__name__ = "agent"

    async def __call__(self, name: str) -> str:
        """Take all steps."""
        reply = name
        for number in range(STEPS):
            reply = await step("turn", self.ask, name, number, reply)
        return reply

    async def ask(self, name: str, number: int, reply: str) -> str:
        """Call a model; the first call of some steps is rate limited."""
        self.calls[name, number] += 1
        await trio.sleep(1)
        if number in {1, 3} and self.calls[name, number] == 1:
            raise RateLimited(1.0)
        return f"{reply}.{number}"


def tear(path: Path) -> None:
    """Append a part of a record to a journal."""
    with segment(path, len(list(path.glob("journal-*")))).open("ab") as file:
        file.write(b'{"torn')


async def interrupted_agent(path: Path, agent: StepAgent, files: FastDisk) -> Any:
    """Run an agent on two cases in three sessions, with a torn record at the end of each of the first two."""
    cases = [Case(name=name, input=name) for name in "ab"]
    defined: Any = evaluation(cases=cases, slots=2, timeout=60, loop="trio")(agent)
    for session in range(2):
        with trio.move_on_after(4.2):
            await arun(defined, path, resume=session > 0, files=files, policy="fixed", **deterministic_options())
        tear(path)
    return await arun(defined, path, resume=True, files=files, policy="fixed", **deterministic_options())


async def test_a_fork_inside_a_trajectory_continues_there(tmp_path: Path) -> None:
    """Forked at any record, even of a run with several sessions, exactly the steps that were not completed are executed."""
    old, files, agent = tmp_path / "old", FastDisk(), StepAgent()
    original = await interrupted_agent(old, agent, files)
    defined: Any = evaluation(cases=[Case(name=name, input=name) for name in "ab"], slots=2, timeout=60, loop="trio")(agent)
    assert (2, 3) == (original.state.completed, len(original.state.sessions))
    assert original.state.steps.reused > STEPS
    assert 2 == sum(isinstance(record.event, JournalRecovered) for record in read(old))
    for seq in range(3, len(list(read(old))) + 1, 5):
        new = tmp_path / f"new-{seq}"
        await fork(old, new, seq, files=files, in_thread=inline)
        copied = [record.event for record in read(old) if record.seq <= seq]
        completed = {(event.trial, event.output) for event in copied if isinstance(event, StepCompleted)}
        agent.calls = Counter(dict.fromkeys(agent.calls, 1))  # No rate limits.
        before = Counter(agent.calls)
        resumed = await arun(defined, new, resume=True, files=files, policy="fixed", **deterministic_options())

        assert outcome(original.state) == outcome(resumed.state)
        assert 2 * STEPS - len(completed) == (agent.calls - before).total()
        assert (True, ()) == (verify(new).ok, audit(read(new), rules=retry_rules).findings)


async def test_a_salvaged_run_refers_to_its_own_steps(tmp_path: Path) -> None:
    """After a lost record all others have new numbers; a reused step names the record of the step in the new run."""
    old, new, files, agent = tmp_path / "old", tmp_path / "new", FastDisk(), StepAgent()
    await interrupted_agent(old, agent, files)
    lost = next(record for record in read(old) if isinstance(record.event, StepCompleted))
    flip(segment(old, lost.segment), lost.offset + 60)
    await salvage(old, new, files=files, in_thread=inline)
    records = {record.seq: record.event for record in read(new)}
    reused = [(event, records[event.completed_seq]) for event in records.values() if isinstance(event, StepReused)]

    assert len(reused) > STEPS
    assert all(isinstance(step, StepCompleted) and step.trial == event.trial for event, step in reused)
