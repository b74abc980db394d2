"""An evaluation as somebody meets it who writes Python, in a script or in the cells of a notebook."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trio

import runner
from journal.errors import JournalLocked, NotAJournal
from replay import load
from runner import Case, Evaluation, UsageError, evaluation

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
    assert ("  3 ok of 3 done", True) == (counts, scores.startswith("  right  100.0 %  3 of 3 passed"))
    assert "resume" not in str(outcome)  # The command line does not know an evaluation that is in no file.
    assert f"Outcome(path={tmp_path / 'run'!r}, head={outcome.head!r}, stopped='', why='')" == repr(outcome)


def test_what_cannot_be_run_is_named(tmp_path: Path) -> None:
    """A function that is no evaluation, and a run that is not there, are refused with what to do."""
    with pytest.raises(UsageError, match=r"is not an evaluation; write @evaluation\(cases=…\) above the function"):
        runner.run(same, tmp_path / "run")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(NotAJournal, match=r"start one without resume=True"):
        runner.run(evaluation(cases=CASES)(same), tmp_path / "run", resume=True)
    with pytest.raises(UsageError, match="is not an evaluation"):
        runner.rescore(same)  # type: ignore[arg-type]  # that is the point

    assert [] == list(tmp_path.iterdir())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in a directory of one's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUNS = Path("runs/same")


def made() -> Evaluation[int, int, int]:
    """Make an evaluation with a scorer."""
    it = evaluation(cases=CASES)(same)
    it.score(right)
    return it


@pytest.mark.usefixtures("here")
def test_a_run_without_a_path_gets_the_next_number() -> None:
    """As from the command line, it is under `runs/` and the evaluation's name; what else is there is let be."""
    (RUNS / "notes").mkdir(parents=True)
    (RUNS / "0007").mkdir()

    assert RUNS / "0008" == runner.run(made()).path
    assert RUNS / "0009" == trio.run(runner.arun, made()).path
    assert RUNS / "0010" == runner.run(made(), None, slots=1).path
    assert RUNS / "0010" == runner.rescore(made(), again=True).outcome.path


@pytest.mark.usefixtures("here")
def test_a_number_that_somebody_takes_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process begins a run under the number that was free a moment ago, the one after is taken."""
    first = runner.run(made())
    numbers = [first.path, first.path, RUNS / "0005"]
    monkeypatch.setattr("runner.run_paths.next_path", lambda _: numbers.pop(0))
    second = runner.run(evaluation(cases=iter(CASES), name="same")(same))

    assert (RUNS / "0005", 3) == (second.path, second.state.completed)  # Though its cases could be read only once.
    with pytest.raises(UsageError, match=r"no free number under runs.same"):
        monkeypatch.setattr("runner.run_paths.next_path", lambda _: first.path)
        trio.run(runner.arun, made())
    assert first.head == load(first.path).state.head


@pytest.mark.usefixtures("here")
def test_the_newest_run_that_is_not_finished_is_resumed() -> None:
    """Without a path, `resume=True` goes on with the newest run that can be gone on with; one that is finished is not."""

    def stopped(question: int) -> int:
        raise runner.Fatal(question)

    names = [runner.run(evaluation(cases=CASES, name="same", fail_fast=True, slots=1)(stopped)).path.name for _ in range(2)]
    runner.run(made())
    resumed = runner.run(made(), resume=True, adopt=True, fail_fast=False, retry_failed=True)
    other = trio.run(lambda: runner.arun(made(), resume=True, adopt=True, fail_fast=False, retry_failed=True))

    assert ["0001", "0002"] == names
    assert (RUNS / "0002", "", 3) == (resumed.path, resumed.stopped, resumed.state.completed)
    assert (RUNS / "0001", "", 3) == (other.path, other.stopped, other.state.completed)
    with pytest.raises(UsageError, match=r"nothing to resume under runs.same/: all 3 runs are finished"):
        runner.run(made(), resume=True)


@pytest.mark.usefixtures("here")
def test_where_there_is_no_run_none_is_taken_up() -> None:
    """To resume or to score anew where nothing was run is refused with what to do, and makes nothing."""
    with pytest.raises(UsageError, match=r"there is no run; pass a path, or start one without resume=True"):
        runner.run(made(), resume=True)
    with pytest.raises(UsageError, match=r"there is no run under runs.same/"):
        runner.rescore(made())

    assert not RUNS.exists()


@pytest.mark.usefixtures("here")
def test_a_run_that_goes_on_is_not_passed_over() -> None:
    """If the newest run that is not finished is being written, that is said; an older one is not taken in its place."""

    @evaluation(cases=CASES[:1], name="same")
    def from_within(_: int) -> str:
        with pytest.raises(JournalLocked, match="0001") as refused:
            runner.run(from_within, resume=True)
        return refused.typename

    assert {"case-0": "JournalLocked"} == dict(load(runner.run(from_within).path).outputs())


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
