"""A process that records labels is killed with SIGKILL at random moments: no label that it acknowledged is lost."""

import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from evaljournal.replay.review.labels import read_review
from evaljournal.runner.runs.verification import verify
from tests.journal.samples import complete_run, fake_clock, write_sync
from tests.processes import start_forked, wait_until
from tests.runner_cli.commands import evaljournal, process

pytestmark = pytest.mark.slow

TRIALS = 300
PROGRAM = """
import sys, trio
from pathlib import Path
from evaljournal.replay import load
from evaljournal.runner.review.journal import Annotation, annotate

run, reviewer = load(Path("run")), sys.argv[1]
for number in range(1, 301):
    annotation = Annotation(trial=f"case-{number}", name="exact", value=number % 2 == 0, reviewer=reviewer)
    trio.run(annotate, run, [annotation])
    with Path(f"{reviewer}.ledger").open("a") as ledger:
        ledger.write(f"{number}\\n")
"""
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 15))]


@pytest.fixture
def reviewed_run() -> Path:
    """Write a run to review."""
    write_sync(Path("run"), complete_run(TRIALS), confirm=False, clock=fake_clock(1.0))
    return Path("run")


@pytest.mark.parametrize("seed", SEEDS)
def test_no_acknowledged_label_is_lost(reviewed_run: Path, seed: int) -> None:
    """Two reviewers label until they are killed: every acknowledged label is recorded, and at most one more of each."""
    rng, ledger = random.Random(seed), set[tuple[str, str]]()
    for reviewer in ("ada", "grace", "joan"):
        names = [reviewer, f"{reviewer} 2"]
        processes = [start_forked(["python", "-c", PROGRAM, name]) for name in names]
        assert wait_until(lambda: all(Path(f"{name}.ledger").exists() for name in names))  # noqa: B023  # called at once
        time.sleep(rng.uniform(0, 0.3))  # Real time: these are real processes.
        for killed, name in zip(processes, names, strict=True):
            killed.send_signal(signal.SIGKILL)
            assert -signal.SIGKILL == killed.end()[0]
            ledger |= {(name, f"case-{number}") for number in Path(f"{name}.ledger").read_text().split()}
        recorded = {(label.reviewer, label.trial) for label in read_review(reviewed_run).labels}

        assert set() == ledger - recorded
        assert max(Counter(name for name, _ in recorded - ledger).values(), default=0) <= 1
    assert 0 == evaljournal("annotate", reviewed_run, "case-7", "exact=yes", "--reviewer", "mary").exit_code
    assert "ok" == verify(reviewed_run).verdict


@pytest.mark.parametrize("seed", SEEDS)
def test_an_interrupted_import_is_repeated(reviewed_run: Path, seed: int) -> None:
    """An import that was killed can be repeated until it ends: every label is then recorded once."""
    rng, path = random.Random(seed), Path("labels.jsonl")
    rows = ({"trial": f"case-{number}", "name": "exact", "value": "no", "reviewer": "ada"} for number in range(1, TRIALS + 1))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for _ in range(4):
        killed = process("annotate", "run", "--import", "labels.jsonl")
        time.sleep(rng.uniform(0, 0.6))
        killed.send_signal(signal.SIGKILL)
        _, printed, _ = killed.end()
        if printed:  # It was acknowledged.
            assert TRIALS == len(read_review(reviewed_run).labels)
    assert 0 == evaljournal("annotate", reviewed_run, "--import", path).exit_code
    review = read_review(reviewed_run)

    assert [f"case-{number}" for number in range(1, TRIALS + 1)] == [label.trial for label in review.history]
    assert "ok" == verify(reviewed_run).verdict
