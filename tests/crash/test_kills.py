"""Real processes, really stopped: whatever ends a run, it goes on afterwards, and pays only for what was in the air."""

import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal import verify
from journal.events import (
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    RunFinished,
    RunStopped,
    SessionStarted,
    TrialCompleted,
)
from runner.testing import events_of
from tests.processes import Process

CASES = 60
SLOTS = 3
KILLS = 5
"""In one run; there are five such runs."""
LONGEST = 15.0
"""Seconds after which a process that should have ended counts as hanging."""

SCRIPT = textwrap.dedent(
    """
    import os, sys
    import trio
    from runner import Case, evaluation, run

    path, calls, write_ahead, seconds, grace = sys.argv[1:]
    log = os.open(calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @evaluation(
        cases=[Case(name=f"case-{number}", input=number) for number in range(%d)],
        slots=%d,
        write_ahead=write_ahead == "True",
    )
    async def task(number):
        os.write(log, b"%%d\\n" %% number)
        await trio.sleep(float(seconds))
        return number * number

    @task.score
    async def judge(output, case):
        await trio.sleep(float(seconds) / 4)
        return output == case.input ** 2

    print("ready", flush=True)
    resume = any(name.endswith(".jsonl") for name in os.listdir(path)) if os.path.isdir(path) else False
    outcome = run(task, path, resume=resume, signals=True, policy="fixed", grace=float(grace))
    sys.exit(3 if outcome.stopped else 0)
    """
) % (CASES, SLOTS)


class Lives:
    """One run, lived by one process after the other."""

    def __init__(self, folder: Path, *, write_ahead: bool = False) -> None:
        self.path = folder / "run"
        self._calls = folder / "calls"
        self._script = folder / "it.py"
        self._script.write_text(SCRIPT)
        self._write_ahead = write_ahead
        self._process: Process | None = None

    def begin(self, *, seconds: float = 0.02, grace: float = 5.0) -> None:
        """Start the next process, whose attempts take so long, and wait until it is about to run."""
        command = [sys.executable, str(self._script), str(self.path), str(self._calls)]
        self._process = Process(
            [*command, str(self._write_ahead), str(seconds), str(grace)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": ""},
        )
        assert self._process.stdout is not None
        assert "ready\n" == self._process.stdout.readline(), self.end()

    def wait_called(self, calls: int) -> None:
        """Wait until the task has been called so often, in all lives together: then signals are heeded."""
        until = time.monotonic() + LONGEST
        while self.calls.total() < calls and self._running.poll() is None:
            assert time.monotonic() < until, "nothing is called"
            time.sleep(0.002)

    def wait_begun(self) -> None:
        """Wait until a session is in the journal: on a busy machine, a process may not come so far before it is killed."""
        until = time.monotonic() + LONGEST
        while not self.count(SessionStarted):
            assert time.monotonic() < until, "no session begins"
            time.sleep(0.002)

    def signal(self, number: signal.Signals) -> None:
        self._running.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Wait for the process to end; give its exit code, and what it said."""
        try:
            _, said = self._running.communicate(timeout=LONGEST)
        finally:
            self._running.kill()
        return self._running.returncode, said

    def finish(self) -> None:
        """Go on to the end, and see that everything is there once."""
        self.begin()

        assert (0, "") == self.end()
        assert verify(self.path).holds
        events = events_of(self.path)
        names = [f"case-{number}" for number in range(CASES)]
        assert sorted(names) == sorted(event.trial for event in events if isinstance(event, TrialCompleted))
        answers = {event.trial: event.output for event in events if isinstance(event, AttemptSucceeded)}
        assert {f"case-{number}": number * number for number in range(CASES)} == answers
        assert CASES == self.count(AttemptSucceeded)
        assert isinstance(events[-1], RunFinished)
        assert (CASES, 0) == (events[-1].completed, events[-1].failed)
        assert set(range(CASES)) == set(self.calls)

    def count(self, kind: type) -> int:
        is_there = self.path.is_dir() and any(self.path.glob("*.jsonl"))
        return sum(isinstance(event, kind) for event in events_of(self.path)) if is_there else 0

    @property
    def calls(self) -> Counter[int]:
        """Case → how often the task was called for it."""
        return Counter(map(int, self._calls.read_text().split())) if self._calls.exists() else Counter()

    @property
    def extra(self) -> int:
        """How many calls there were for nothing; to be asked at the end."""
        return self.calls.total() - CASES

    @property
    def _running(self) -> Process:
        assert self._process is not None
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    run = Lives(tmp_path)
    yield run
    run.close()


@pytest.mark.parametrize(("seed", "write_ahead"), [(0, False), (1, False), (2, False), (3, True), (4, True)])
def test_killed_again_and_again(tmp_path: Path, seed: int, write_ahead: bool) -> None:  # noqa: FBT001  # one of two modes
    """A run that is killed with -9 five times goes on each time; only what was in the air is called again.

    A start is recorded, and reaches the system a moment later, while the call is on its way. With `write_ahead` it is on disk
    before: then every call that was for nothing has its `AttemptInterrupted`, and there are never more than slots.
    """
    chance = random.Random(seed)
    lives = Lives(tmp_path, write_ahead=write_ahead)
    unrecorded = 0
    try:
        for kill in range(KILLS):
            lives.begin(seconds=0.05)  # A second of work in all: it cannot be done before the last kill.
            time.sleep(chance.uniform(0, 0.2))  # Real processes know no virtual time.
            if kill == KILLS - 1:
                lives.wait_begun()
            lives.signal(signal.SIGKILL)
            code, said = lives.end()
            assert (-signal.SIGKILL, "") == (code, said), f"kill {kill + 1}"

            before, unrecorded = unrecorded, lives.calls.total() - lives.count(AttemptStarted)
            in_flight = lives.count(AttemptStarted) - lives.count(AttemptSucceeded) - lives.count(AttemptInterrupted)
            assert 0 <= in_flight <= SLOTS
            assert unrecorded - before <= (0 if write_ahead else SLOTS)
        lives.finish()
    finally:
        lives.close()

    interrupted = [event for event in events_of(lives.path) if isinstance(event, AttemptInterrupted)]
    assert {"process_died"} >= {event.why for event in interrupted}
    assert len(interrupted) <= KILLS * SLOTS
    if write_ahead:
        assert 0 <= lives.extra <= len(interrupted)
    else:
        assert lives.extra == len(interrupted) + unrecorded
    assert KILLS >= lives.count(SessionStarted) - 1 >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_lets_what_is_in_the_air_land(lives: Lives, number: signal.Signals) -> None:
    """Asked to stop, a run starts nothing more, lets short attempts end, and exits with 3: no call is made for nothing."""
    chance = random.Random(number)
    for stop in range(4):
        before = lives.calls.total()
        lives.begin()
        lives.wait_called(before + 1)
        time.sleep(chance.uniform(0, 0.05))
        lives.signal(number)

        assert (3, "") == lives.end(), f"stop {stop + 1}"
        assert verify(lives.path).holds
        assert isinstance(events_of(lives.path)[-1], RunStopped)
    lives.finish()

    assert (0, 0) == (lives.extra, lives.count(AttemptInterrupted))
    assert (4, 5) == (lives.count(RunStopped), lives.count(SessionStarted))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_grace_is_bounded(lives: Lives, number: signal.Signals) -> None:
    """What does not end within the grace is cut, recorded as interrupted, and called once more by the next session."""
    for stop in range(2):
        lives.begin(seconds=60, grace=0.2)
        lives.wait_called((stop + 1) * SLOTS)
        began = time.monotonic()
        lives.signal(number)

        assert (3, "") == lives.end()
        assert 0.2 <= time.monotonic() - began < 3
        assert verify(lives.path).holds
    lives.finish()

    assert 2 * SLOTS == lives.extra == lives.count(AttemptInterrupted)


def test_a_second_interrupt_cuts_at_once(lives: Lives) -> None:
    """Ctrl-C twice does not wait for the grace; what was cut is recorded, and called once more."""
    chance = random.Random(2)
    for stop in range(4):
        lives.begin(seconds=60, grace=60)
        lives.wait_called((stop + 1) * SLOTS)
        began = time.monotonic()
        lives.signal(signal.SIGINT)
        time.sleep(chance.uniform(0.02, 0.2))
        lives.signal(signal.SIGINT)

        assert (3, "") == lives.end(), f"stop {stop + 1}"
        assert time.monotonic() - began < 3
        assert verify(lives.path).holds
        assert isinstance(events_of(lives.path)[-1], RunStopped)
    lives.finish()

    assert 4 * SLOTS == lives.extra == lives.count(AttemptInterrupted)


def test_signals_at_any_moment(lives: Lives) -> None:
    """Whatever comes, even before signals are heeded or after they are no more, the journal holds and the run goes on."""
    chance = random.Random(3)
    stops = 0
    for _ in range(8):
        lives.begin()
        for number in chance.choice([(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGINT, signal.SIGINT)]):
            time.sleep(chance.uniform(0, 0.1))
            lives.signal(number)
        code, said = lives.end()

        # There are four ways to end: asked to stop, done already, and killed by either before it could be asked.
        assert code in {3, 0, -signal.SIGTERM, -signal.SIGINT}, said
        stops += 1
    lives.finish()

    assert 0 <= lives.extra <= stops * SLOTS
