"""Real processes that are killed and interrupted: a run can always be resumed, and only attempts in flight are repeated."""

import random
import signal
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaljournal.journal import verify
from evaljournal.journal.events import (
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    RunFinished,
    RunStopped,
    SessionStarted,
    TrialCompleted,
)
from evaljournal.runner.testing import events_of
from tests.processes import TIMEOUT, Forked, Forks, forks_of, wait_until
from tests.runs import events

pytestmark = pytest.mark.slow

CASES = 60
SLOTS = 3
KILLS = 5
"""Kills per run."""

SCRIPT = textwrap.dedent(
    """
    import os, sys
    import trio
    import evaljournal.runner.sessions.session
    from evaljournal import Case, evaluation, run
    sys.path.insert(0, sys.argv[1])  # A package in the environment may contain a directory `tests`.
    from tests.processes import forked_arguments

    path, calls, write_ahead, seconds, grace = forked_arguments()
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
    sys.exit(3 if outcome.stop_reason else 0)
    """
) % (CASES, SLOTS)


class Run:
    """One run, resumed by consecutive processes."""

    def __init__(self, forks: Forks, folder: Path, *, write_ahead: bool = False) -> None:
        self.path = folder / "run"
        self._forks = forks
        self._calls = folder / "calls"
        self._write_ahead = write_ahead
        self._process: Forked | None = None

    def start(self, *, seconds: float = 0.02, grace: float = 5.0) -> None:
        """Start the next process, whose attempts take `seconds`, and wait until it is about to run."""
        self._process = self._forks.start(self.path, self._calls, self._write_ahead, seconds, grace)
        assert "ready\n" == self._process.stdout.readline(), self.end()

    def wait_called(self, calls: int) -> None:
        """Wait until the task has been called `calls` times in all processes together: then signals are handled."""
        assert wait_until(lambda: self.calls.total() >= calls), "no call"

    def wait_session(self) -> None:
        """Wait until a session is recorded; on a busy machine, a process may be killed before that."""
        assert wait_until(lambda: self.count(SessionStarted) > 0), "no session"

    def signal(self, number: signal.Signals) -> None:
        self._running.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Wait for the process to end; return its exit code and standard error."""
        code, _, err = self._running.end(TIMEOUT)
        return code, err

    def finish(self) -> None:
        """Resume until the run is finished, and check that every trial was completed once."""
        self.start()

        assert (0, "") == self.end()
        assert verify(self.path).ok
        events = events_of(self.path)
        names = [f"case-{number}" for number in range(CASES)]
        assert sorted(names) == sorted(event.trial for event in events if isinstance(event, TrialCompleted))
        outputs = {event.trial: event.output for event in events if isinstance(event, AttemptSucceeded)}
        assert {f"case-{number}": number * number for number in range(CASES)} == outputs
        assert CASES == self.count(AttemptSucceeded)
        assert isinstance(events[-1], RunFinished)
        assert (CASES, 0) == (events[-1].completed, events[-1].failed)
        assert set(range(CASES)) == set(self.calls)

    def count(self, kind: type) -> int:
        exists = self.path.is_dir() and any(self.path.glob("*.jsonl"))
        return sum(isinstance(event, kind) for event in events_of(self.path)) if exists else 0

    @property
    def calls(self) -> Counter[int]:
        """Case → number of calls."""
        return Counter(map(int, self._calls.read_text().split())) if self._calls.exists() else Counter()

    @property
    def repeated_calls(self) -> int:
        """Number of repeated calls, when the run is finished."""
        return self.calls.total() - CASES

    @property
    def _running(self) -> Forked:
        assert self._process is not None
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with forks_of(SCRIPT, tmp_path_factory.mktemp("script")) as forks:
        yield forks


@pytest.fixture
def run(forks: Forks, tmp_path: Path) -> Iterator[Run]:
    run = Run(forks, tmp_path)
    yield run
    run.close()


@pytest.mark.parametrize(
    ("seed", "write_ahead"),
    [
        *((0, False), (3, True)),
        *(pytest.param(seed, seed > 2, marks=pytest.mark.exhaustive) for seed in (1, 2, *range(4, 8))),
    ],
)
def test_killed_again_and_again(forks: Forks, tmp_path: Path, seed: int, write_ahead: bool) -> None:  # noqa: FBT001  # parametrized
    """A run that is killed five times with SIGKILL can be resumed each time; only attempts in flight are repeated.

    The start of an attempt may be written after its call was made. With `write_ahead` it is on disk before, so that every
    repeated call has an `AttemptInterrupted`, and there are at most as many as slots.
    """
    rng = random.Random(seed)
    run = Run(forks, tmp_path, write_ahead=write_ahead)
    unrecorded = 0
    try:
        for kill in range(KILLS):
            run.start(seconds=0.05)  # A second of work in all: the run is not finished before the last kill.
            time.sleep(rng.uniform(0, 0.2))  # Real time: it is a real process.
            if kill == KILLS - 1:
                run.wait_session()
            run.signal(signal.SIGKILL)
            code, err = run.end()
            assert (-signal.SIGKILL, "") == (code, err), f"kill {kill + 1}"

            before, unrecorded = unrecorded, run.calls.total() - run.count(AttemptStarted)
            in_flight = run.count(AttemptStarted) - run.count(AttemptSucceeded) - run.count(AttemptInterrupted)
            assert 0 <= in_flight <= SLOTS
            assert unrecorded - before <= (0 if write_ahead else SLOTS)
        run.finish()
    finally:
        run.close()

    interrupted = events(run.path, AttemptInterrupted)
    assert {"process_died"} >= {event.reason for event in interrupted}
    assert len(interrupted) <= KILLS * SLOTS
    if write_ahead:
        assert 0 <= run.repeated_calls <= len(interrupted)
    else:
        assert run.repeated_calls == len(interrupted) + unrecorded
    assert KILLS >= run.count(SessionStarted) - 1 >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_lets_attempts_finish(run: Run, number: signal.Signals) -> None:
    """After one signal no attempt starts, those in flight finish, and the exit code is 3; no call is repeated."""
    rng = random.Random(number)
    for stop in range(4):
        before = run.calls.total()
        run.start()
        run.wait_called(before + 1)
        time.sleep(rng.uniform(0, 0.05))
        run.signal(number)

        assert (3, "") == run.end(), f"stop {stop + 1}"
        assert verify(run.path).ok
        assert isinstance(events_of(run.path)[-1], RunStopped)
    run.finish()

    assert (0, 0) == (run.repeated_calls, run.count(AttemptInterrupted))
    assert (4, 5) == (run.count(RunStopped), run.count(SessionStarted))


def test_signals_at_any_moment(run: Run) -> None:
    """Signals at any moment, even before or after they are handled, leave a valid journal that can be resumed."""
    rng = random.Random(3)
    stops = 0
    for _ in range(8):
        run.start()
        for number in rng.choice([(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGINT, signal.SIGINT)]):
            time.sleep(rng.uniform(0, 0.1))
            run.signal(number)
        code, err = run.end()

        # Stopped, finished already, or killed by either signal before it was handled. Python's exit code after an interrupt is
        # its own: 1 if a second one came while it printed the traceback of the first.
        is_interrupted = err.rstrip().endswith("KeyboardInterrupt")
        assert code in {3, 0, -signal.SIGTERM, -signal.SIGINT} or is_interrupted, err
        stops += 1
    run.finish()

    assert 0 <= run.repeated_calls <= stops * SLOTS
