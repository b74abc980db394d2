"""The public views take paths and loaded runs."""

from pathlib import Path

import pytest

import evaljournal
from evaljournal.journal.errors import JournalDamaged, JournalError
from tests.journal.samples import complete_run, flip, segment, write_sync
from tests.runs import define_real, numbered_cases, run_real


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run of two trials."""
    write_sync(tmp_path / "run", complete_run())
    return tmp_path / "run"


def test_paths_and_loaded_runs(run: Path) -> None:
    """A path as text, a path and a loaded run give the same results."""
    loaded_run = evaljournal.load(run)

    for same_run in (str(run), run, loaded_run):
        assert (2, 2) == ((comparison := evaljournal.compare(same_run, loaded_run)).compared, comparison.unchanged)
        assert loaded_run.summary() == evaljournal.summarize(same_run)
        assert evaljournal.audit(evaljournal.journal.read(run)) == evaljournal.audit(same_run)
        assert evaljournal.verify(run) == evaljournal.verify(same_run)


def test_variants(tmp_path: Path) -> None:
    """RUN@VARIANT is one variant of a run; an unknown one is an error."""

    def join(question: str, word: str) -> str:
        return f"{question} {word}"

    variants = define_real(join, numbered_cases(3), variants={"word": ["a", "b"]})
    run_real(variants, path := tmp_path / "run@home")
    comparison = evaljournal.compare(f"{path}@a", f"{path}@b")

    assert (3, 3) == (comparison.compared, len(comparison.changed))
    with pytest.raises(JournalError, match="no variant 'c'"):
        evaljournal.compare(f"{path}@c", path)


def test_a_damaged_run_is_not_compared(run: Path) -> None:
    """A view of a path raises an error for a damaged journal; a loaded run describes the damage, and is used as it is."""
    flip(segment(run), segment(run).stat().st_size // 2)

    with pytest.raises(JournalDamaged):
        evaljournal.summarize(run)
    assert evaljournal.load(run).state.completed == evaljournal.summarize(evaljournal.load(run)).trials.completed
