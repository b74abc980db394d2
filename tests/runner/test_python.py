"""An evaluation as somebody meets it who writes Python, in a script or in the cells of a notebook."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import runner
from journal.errors import NotAJournal
from replay import load
from runner import Case, UsageError, evaluation

CASES = [Case(name=f"case-{number}", input=number, expected=number) for number in range(3)]


def same(number: int) -> int:
    """Give the number back."""
    return number


def right(output: int, case: Case[int, int]) -> bool:
    """Say whether it is what was expected."""
    return output == case.expected


def test_everything_is_offered() -> None:
    """Whoever asks what there is to be used is told, though nothing of it is imported yet."""
    assert set(runner.__all__) <= set(dir(runner))


def test_an_outcome_is_told_to_people(tmp_path: Path) -> None:
    """What a run returns prints as what came of it, and is short where it is one of many."""
    it = evaluation(cases=CASES)(same)
    it.score(right)
    outcome = runner.run(it, tmp_path / "run")

    first, counts, scores, *_ = str(outcome).splitlines()
    assert f"same finished: 3 of 3 trials done, in {tmp_path / 'run'}" == first
    assert ("  3 ok of 3 done", True) == (counts, scores.startswith("  right  100.0 %  3 of 3 right"))
    assert "next:" not in str(outcome)  # The commands do not know an evaluation that is in no file.
    assert f"Outcome(path={tmp_path / 'run'!r}, head={outcome.head!r}, stopped='', why='')" == repr(outcome)


def test_what_cannot_be_run_is_named(tmp_path: Path) -> None:
    """A function that is no evaluation, and a run that is not there, are refused with what to do."""
    with pytest.raises(UsageError, match=r"is no evaluation; make one of the function: @evaluation\(cases=…\)"):
        runner.run(same, tmp_path / "run")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(NotAJournal, match=r"without resume=True begins it"):
        runner.run(evaluation(cases=CASES)(same), tmp_path / "run", resume=True)

    assert [] == list(tmp_path.iterdir())


def cells(*sources: str) -> dict[str, Any]:
    """Run cells as a notebook does: each is a file of its own that is nowhere, beside a loop that runs."""
    names: dict[str, Any] = {"__name__": "__main__", "CASES": CASES, "same": same, "runner": runner, "evaluation": evaluation}

    async def kernel() -> None:
        for source in sources:
            exec(compile(source, f"<cell {hash(source)}>", "exec"), names)  # noqa: S102  # that is what a notebook does

    asyncio.run(kernel())
    return names


SCORER = "@it.score\ndef right(output, case):\n    return output {} case.expected\n"


def test_a_cell_is_run_again() -> None:
    """A scorer whose cell is run again, changed or not, takes the place of the one before."""
    names = cells("it = evaluation(cases=CASES)(same)", SCORER.format("=="), SCORER.format("=="), SCORER.format("!="))

    assert names["it"].scorers.keys() == {"right"}
    assert names["it"].scorers["right"].function is names["right"]


@pytest.mark.parametrize(
    "source",
    [
        SCORER.format("==") + SCORER.format("!="),
        f"def made(it):\n    {SCORER.format('==').replace(chr(10), chr(10) + '    ')}\nmade(it)\nmade(it)",
        "from runner.scorers import exact, iexact\nit.score(name='right')(exact)\nit.score(name='right')(iexact)",
    ],
)
def test_two_scorers_of_one_name_are_a_slip(source: str) -> None:
    """Two scorers of the same name are refused in one file, from one maker, and where they are two functions."""
    with pytest.raises(UsageError, match="'same' has a scorer 'right' already"):
        cells("it = evaluation(cases=CASES)(same)", source)


def test_outputs_are_scored_anew(tmp_path: Path) -> None:
    """A scorer that was changed judges the outputs that are there, in a script and beside a loop; the task is not asked."""
    path = tmp_path / "run"
    names = cells(
        "it = evaluation(cases=CASES)(same)",
        SCORER.format("=="),
        f"runner.run(it, {str(path)!r})",
        SCORER.format("!="),
        f"done = runner.rescore(it, {str(path)!r})",
    )
    done, state = names["done"], load(path).state
    again = runner.rescore(names["it"], path)

    assert (3, 0, 0) == (done.outputs, done.current, done.left)
    assert (0.0, 3) == (state.scores["right"].mean, len(state.latencies))
    assert (0, 3) == (again.outputs, again.current)
    assert 3 == runner.rescore(names["it"], path, again=True).outputs
