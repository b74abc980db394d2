"""Evaluations from Python, in scripts and notebook cells."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trio

import evaljournal
from evaljournal import Case, Evaluation, RunFailed, UsageError, evaluation
from evaljournal.journal.errors import JournalLocked, NotAJournal
from evaljournal.replay import load

CASES = [Case(name=f"case-{number}", input=number, expected=number) for number in range(3)]


def same(number: int) -> int:
    return number


def inverse(number: int) -> int:
    """Fail with 0."""
    return 1 // number


def right(output: int, case: Case[int, int]) -> bool:
    """Return whether the output is as expected."""
    return output == case.expected


def test_dir_lists_all_names() -> None:
    """`dir` lists every public name before it is imported."""
    assert set(evaljournal.__all__) <= set(dir(evaljournal))


def test_an_outcome_is_printed_as_a_summary(tmp_path: Path) -> None:
    """The text of an outcome is the summary; its repr is short."""
    defined = evaluation(cases=CASES)(same)
    defined.score(right)
    outcome = evaljournal.run(defined, tmp_path / "run")

    first, scores, counts, *_ = str(outcome).splitlines()
    assert f"same finished: 3 of 3 trials done, in {tmp_path / 'run'}" == first
    assert (True, True) == (
        scores.startswith("  right  100.0 %  3 of 3 passed"),
        counts.startswith("  3 outputs · 0 errors · "),
    )
    assert "resume" not in str(outcome)  # The evaluation is not in a file, so there is no command to resume it.
    assert f"Outcome(path={tmp_path / 'run'!r}, head={outcome.head!r}, stop_reason='', detail='')" == repr(outcome)


def test_gates_decide_whether_an_outcome_has_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`run` prints the summary and the gates that were not reached; `check` raises if there are any."""
    defined = evaluation(cases=CASES)(same)

    @defined.score
    def positive(output: int) -> bool:
        return output > 0

    outcome = evaljournal.run(defined, tmp_path / "run", fail_under=["positive=0.6", "positive>=0.99"])

    assert [("positive=0.6", True), ("positive>=0.99", False)] == [(gate.gate, gate.passed) for gate in outcome.gates]
    assert not outcome.passed
    problem = "positive>=0.99: the mean of positive is 0.6667"
    with pytest.raises(RunFailed) as failed:
        outcome.check()
    assert [f"gate did not pass: {problem}"] == failed.value.problems
    printed = capsys.readouterr().out
    assert f"{outcome.summary_text}\n" == printed
    assert [f"next: evaljournal report {tmp_path / 'run'} --open", f"gate did not pass: {problem}"] == printed.splitlines()[-2:]
    assert str(outcome).endswith(f"gate did not pass: {problem}")


def test_an_outcome_passes_without_gates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished run without failures passes, and prints nothing if it is quiet; a failed or stopped one does not pass."""
    outcome = evaljournal.run(evaluation(cases=CASES)(same), tmp_path / "run", quiet=True)
    outcome.check()
    broken = evaluation(cases=CASES, slots=1)(inverse)
    failed = evaljournal.run(broken, tmp_path / "failed", quiet=True, retry={"errors": 0})
    stopped = evaljournal.run(broken, tmp_path / "stopped", quiet=True, retry={"errors": 0}, fail_fast=True)

    assert (True, [], "") == (outcome.passed, outcome.gates, capsys.readouterr().out)
    assert ["1 trial with an error"] == failed.problems
    assert ["not finished: stopped (too many errors)"] == stopped.problems


def test_what_cannot_be_run_is_rejected(tmp_path: Path) -> None:
    """A function that is not an evaluation, and a missing run, are errors with a hint."""
    with pytest.raises(UsageError, match=r"is not an evaluation; write @evaluation\(cases=…\) above the function"):
        evaljournal.run(same, tmp_path / "run")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(NotAJournal, match=r"start one without resume=True"):
        evaljournal.run(evaluation(cases=CASES)(same), tmp_path / "run", resume=True)
    with pytest.raises(UsageError, match="is not an evaluation"):
        evaljournal.rescore(same)  # type: ignore[arg-type]  # that is the point

    assert [] == list(tmp_path.iterdir())


RUNS = Path("runs/same")


def define_scored() -> Evaluation[int, int, int]:
    """Return an evaluation with a scorer."""
    defined = evaluation(cases=CASES)(same)
    defined.score(right)
    return defined


def test_a_run_without_a_path_gets_the_next_number() -> None:
    """The run is below `runs/` and the evaluation's name; other files there are ignored."""
    (RUNS / "notes").mkdir(parents=True)
    (RUNS / "0007").mkdir()

    assert RUNS / "0008" == evaljournal.run(define_scored()).path
    assert RUNS / "0009" == trio.run(evaljournal.arun, define_scored()).path
    assert RUNS / "0010" == evaljournal.run(define_scored(), None, slots=1).path
    assert RUNS / "0010" == evaljournal.rescore(define_scored(), all_outputs=True).outcome.path


def test_a_number_taken_meanwhile_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process takes the next number, the one after is used."""
    first = evaljournal.run(define_scored())
    numbers = [first.path, first.path, RUNS / "0005"]
    monkeypatch.setattr("evaljournal.runner.runs.paths.next_path", lambda *_: numbers.pop(0))
    second = evaljournal.run(evaluation(cases=iter(CASES), name="same")(same))

    assert (RUNS / "0005", 3) == (second.path, second.state.completed)  # Its cases can be read only once.
    with pytest.raises(UsageError, match=r"no free number under runs.same"):
        monkeypatch.setattr("evaljournal.runner.runs.paths.next_path", lambda *_: first.path)
        trio.run(evaljournal.arun, define_scored())
    assert first.head == load(first.path).state.head


def test_the_newest_run_that_is_not_finished_is_resumed() -> None:
    """Without a path, `resume=True` resumes the newest unfinished run."""

    def stopped(question: int) -> int:
        raise evaljournal.Fatal(question)

    names = [
        evaljournal.run(evaluation(cases=CASES, name="same", fail_fast=True, slots=1)(stopped)).path.name for _ in range(2)
    ]
    evaljournal.run(define_scored())
    resumed = evaljournal.run(define_scored(), resume=True, adopt=True, fail_fast=False, retry_failed=True)
    resumed_next = trio.run(
        lambda: evaljournal.arun(define_scored(), resume=True, adopt=True, fail_fast=False, retry_failed=True)
    )

    assert ["0001", "0002"] == names
    assert (RUNS / "0002", "", 3) == (resumed.path, resumed.stop_reason, resumed.state.completed)
    assert (RUNS / "0001", "", 3) == (resumed_next.path, resumed_next.stop_reason, resumed_next.state.completed)
    with pytest.raises(UsageError, match=r"nothing to resume under runs.same/: all 3 runs are finished"):
        evaljournal.run(define_scored(), resume=True)


def test_no_run_to_resume_is_an_error() -> None:
    """Resuming or re-scoring without a run is an error with a hint, and creates nothing."""
    with pytest.raises(UsageError, match=r"there is no run; pass a path, or start one without resume=True"):
        evaljournal.run(define_scored(), resume=True)
    with pytest.raises(UsageError, match=r"there is no run under runs.same/"):
        evaljournal.rescore(define_scored())

    assert not RUNS.exists()


def test_a_run_being_written_is_not_skipped() -> None:
    """If the newest unfinished run is being written, that is an error; an older one is not resumed instead."""

    @evaluation(cases=CASES[:1], name="same")
    def from_within(_: int) -> str:
        with pytest.raises(JournalLocked, match="0001") as error:
            evaljournal.run(from_within, resume=True)
        return error.typename

    assert {"case-0": "JournalLocked"} == dict(load(evaljournal.run(from_within).path).outputs())


def cells(*sources: str) -> dict[str, Any]:
    """Run cells as a notebook does: each compiled under its own name, inside a running loop."""
    names: dict[str, Any] = {
        "__name__": "__main__",
        "CASES": CASES,
        "same": same,
        "runner": evaljournal,
        "evaluation": evaluation,
    }

    async def kernel() -> None:
        for source in sources:
            exec(compile(source, f"<cell {hash(source)}>", "exec"), names)  # noqa: S102  # that is what a notebook does

    asyncio.run(kernel())
    return names


SCORER = "@it.score\ndef right(output, case):\n    return output {} case.expected\n"


def test_a_cell_is_run_again() -> None:
    """A scorer whose cell is run again replaces the earlier one."""
    names = cells("it = evaluation(cases=CASES)(same)", SCORER.format("=="), SCORER.format("=="), SCORER.format("!="))

    assert names["it"].scorers.keys() == {"right"}
    assert names["it"].scorers["right"].function is names["right"]


@pytest.mark.parametrize(
    "source",
    [
        SCORER.format("==") + SCORER.format("!="),
        f"def add(it):\n    {SCORER.format('==').replace(chr(10), chr(10) + '    ')}\nadd(it)\nadd(it)",
        "from evaljournal.scorers import exact, iexact\nit.score(name='right')(exact)\nit.score(name='right')(iexact)",
    ],
)
def test_two_scorers_of_one_name_are_rejected(source: str) -> None:
    """Two different scorers of the same name are rejected."""
    with pytest.raises(UsageError, match="'same' has a scorer 'right' already"):
        cells("it = evaluation(cases=CASES)(same)", source)


def test_outputs_are_rescored(tmp_path: Path) -> None:
    """A changed scorer scores the recorded outputs, in a script and inside a loop; the task is not called."""
    path = tmp_path / "run"
    names = cells(
        "it = evaluation(cases=CASES)(same)",
        SCORER.format("=="),
        f"runner.run(it, {str(path)!r})",
        SCORER.format("!="),
        f"done = runner.rescore(it, {str(path)!r})",
    )
    done, state = names["done"], load(path).state
    rescored = evaljournal.rescore(names["it"], path)

    assert (3, 0, 0) == (done.outputs, done.already_scored, done.unscored)
    assert (0.0, 3) == (state.scores["right"].mean, len(state.trials.attempts.latencies))
    assert (0, 3) == (rescored.outputs, rescored.already_scored)
    assert 3 == evaljournal.rescore(names["it"], path, all_outputs=True).outputs
