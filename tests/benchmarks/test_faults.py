"""The scenarios of `python -m benchmarks faults`, smaller; those with kills are in `tests/crash`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks._figures import Figures
from benchmarks.fault_scenarios import large_runs, limits, verdicts

pytestmark = pytest.mark.slow


def test_signals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP changes nothing; SIGHUP and SIGTERM stop a run, which `resume` completes."""
    monkeypatch.setattr(limits, "TRIALS", 60)
    figures = Figures()
    limits.signals(figures, tmp_path)
    assert 0 == figures.missed


@pytest.mark.parametrize("scenario", [limits.few_files, limits.little_memory])
def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Figures, Path], None]) -> None:
    """With too few files or too little memory, failures are recorded, and the other trials complete."""
    monkeypatch.setattr(limits, "TRIALS", 40)
    figures = Figures()
    scenario(figures, tmp_path)
    assert 0 == figures.missed


def test_valid_runs_verify(tmp_path: Path) -> None:
    """`verify` reports nothing about a valid run of each policy."""
    figures = Figures()
    verdicts.verified_runs(figures, tmp_path, runs=3)
    assert 0 == figures.missed


def test_memory_of_a_large_run(tmp_path: Path) -> None:
    """Commands read a generated run with little memory; 100,000 trials are read by `python -m benchmarks faults`."""
    figures = Figures()
    large_runs.large_run(figures, tmp_path, trials=1_000)
    assert 0 == figures.missed
