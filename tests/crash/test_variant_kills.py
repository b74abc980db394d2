"""A run with variants in a real process that is killed, and resumed with another variant."""

import random
import signal
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaljournal import verify
from evaljournal.journal.events import AttemptInterrupted, AttemptSucceeded, TrialEnqueued
from evaljournal.runner.testing import events_of
from tests.processes import TIMEOUT, Forks, wait_until

pytestmark = pytest.mark.slow

CASES = 12
SLOTS = 3
VARIANTS = ("nano", "mini", "medium", "large")

SCRIPT = textwrap.dedent(
    """
    import os, sys
    import trio
    import evaljournal.runner.engine.session
    from evaljournal import Case, evaluation, run
    sys.path.append(sys.argv[1])
    from tests.processes import forked_arguments

    path, calls, variants, seconds = forked_arguments()
    log = os.open(calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @evaluation(
        cases=[Case(name=f"case-{number}", input=f"case-{number}") for number in range(%d)],
        variants={name: {"model": name} for name in variants.split()},
        slots=%d,
        write_ahead=True,
    )
    async def task(value, *, model):
        os.write(log, f"{value} {model}\\n".encode())
        await trio.sleep(float(seconds))
        return f"{model} {value}"

    print("ready", flush=True)
    resume = os.path.isdir(path)
    outcome = run(task, path, resume=resume, adopt=resume, policy="fixed", quiet=True)
    sys.exit(3 if outcome.stop_reason else 0)
    """
) % (CASES, SLOTS)


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes that run the script."""
    script = tmp_path_factory.mktemp("script") / "task.py"
    script.write_text(SCRIPT)
    forks = Forks(script)
    yield forks
    forks.close()


def call_counts(file: Path) -> Counter[tuple[str, ...]]:
    """Return the number of calls by case and model."""
    return Counter(tuple(line.split()) for line in file.read_text().splitlines()) if file.exists() else Counter()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_killed_run_is_resumed_with_a_fifth_variant(forks: Forks, tmp_path: Path, seed: int) -> None:
    """After SIGKILL in a run with four variants, exactly the open trials and those of the adopted variant are called."""
    path, kill_after = tmp_path / "run", random.Random(seed).randrange(8, 40)
    process = forks.start(path, tmp_path / "before", " ".join(VARIANTS), 0.02)
    assert wait_until(lambda: call_counts(tmp_path / "before").total() >= kill_after), "no call"
    process.send_signal(signal.SIGKILL)
    process.end(TIMEOUT)
    done = {event.trial for event in events_of(path) if isinstance(event, AttemptSucceeded)}
    all_variants = (*VARIANTS, "huge")
    resumed = forks.start(path, tmp_path / "after", " ".join(all_variants), 0.001)

    code, _, errors = resumed.end(TIMEOUT)
    assert (0, "") == (code, errors)
    trials = {(f"case-{number}", model) for number in range(CASES) for model in all_variants}
    expected = {trial for trial in trials if "@".join(trial) not in done}
    assert CASES < len(expected) < len(trials)
    assert dict.fromkeys(expected, 1) == call_counts(tmp_path / "after")
    events = events_of(path)
    enqueued = Counter((event.case, event.variant) for event in events if isinstance(event, TrialEnqueued))
    assert dict.fromkeys(trials, 1) == enqueued
    assert sum(isinstance(event, AttemptInterrupted) for event in events) <= SLOTS
    assert verify(path).ok
