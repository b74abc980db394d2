"""A run with a budget in processes that are killed with SIGKILL: calls in flight count, so that it is not exceeded."""

import signal
import textwrap
from pathlib import Path

import pytest

from evaljournal.runner.verification import verify
from tests.processes import TIMEOUT, Forked, Forks, wait_until

pytestmark = pytest.mark.slow

BUDGET = 40
"""Calls that the budget pays for."""
KILLS = 3
SLOTS = 4
SCRIPT = textwrap.dedent(
    """
    import os, sys
    import trio
    import evaljournal.runner.engine.session
    from evaljournal import Case, evaluation, note, run
    sys.path.append(sys.argv[1])
    from tests.processes import forked_arguments

    path, calls = forked_arguments()
    log = os.open(calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @evaluation(
        cases=[Case(name=f"case-{number}", input=number) for number in range(200)], slots=%d, budget={"cost": %d / 100},
        write_ahead=True,
    )
    async def task(number):
        os.write(log, b".")
        await trio.sleep(0.02)
        note(cost=0.01)
        return number

    resume = os.path.isdir(path) and any(name.endswith(".jsonl") for name in os.listdir(path))
    outcome = run(task, path, resume=resume, signals=True, policy="fixed", quiet=True)
    print(outcome.stop_reason)
    """
) % (SLOTS, BUDGET)


def wait_calls(log: Path, count: int) -> None:
    """Wait until the task has been called `count` times, in all processes together."""
    assert wait_until(lambda: log.exists() and log.stat().st_size >= count), "no call"


def test_killed_again_and_again(tmp_path: Path) -> None:
    """However often a run is killed, it makes no more calls than its budget pays for, and `verify` passes."""
    (tmp_path / "task.py").write_text(SCRIPT)
    path, log = tmp_path / "run", tmp_path / "calls"
    forks, process = Forks(tmp_path / "task.py"), None

    def start() -> Forked:
        return forks.start(path, log)

    try:
        for kill in range(KILLS):
            process = start()
            wait_calls(log, 7 * (kill + 1))
            process.send_signal(signal.SIGKILL)
            assert -signal.SIGKILL == process.end(TIMEOUT)[0]
        for _ in range(2):  # The second time, it stops immediately.
            process = start()
            assert (0, "budget\n", "") == process.end(TIMEOUT)
    finally:
        if process is not None:
            process.close()
        forks.close()

    result = verify(path)
    use, calls = result.audit.budget["cost"], log.stat().st_size
    assert (True, 0.0) == (result.ok, use.overshoot)
    assert BUDGET - KILLS * SLOTS <= calls <= BUDGET
    assert calls <= round(100 * use.spent) <= BUDGET
