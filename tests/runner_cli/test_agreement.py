"""The command `agreement`, and corrected scores in other commands."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.journal.samples import flip, segment
from tests.replay.reviewed_run import annotation, sampled, write_review, write_reviewed_run, write_run
from tests.runner_cli.commands import evaljournal

CORRECTED = "judge 70.2 %, corrected 63.5 % (95 % CI 53.4–72.6 %, 66 of 1,066 reviewed, uniform sample 1)"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 1,066 outputs with a judge, of which a uniform sample of 66 has labels."""
    write_reviewed_run(tmp_path / "run", (40, 3, 8, 15), (700, 300))
    return tmp_path / "run"


def as_json(*arguments: object) -> Any:
    """Return what a command prints as JSON."""
    result = evaljournal(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_agreement(run: Path) -> None:
    """The text has the figures and the disagreements; --all lists all of them."""
    result = evaljournal("agreement", run)

    assert result.exit_code == 0
    assert result.stdout.startswith(f"judge: 66 outputs labelled by ada (66); 66 with the score visible\n  {CORRECTED}\n")
    assert "Gwet's AC1        0.71 (95 % CI 0.5" in result.stdout
    assert "… and 1 more; --all lists them" in result.stdout
    assert "c50: score pass, label fail" in evaljournal("agreement", run, "--all").stdout


def test_agreement_as_json(run: Path) -> None:
    """JSON has a list with one object for each question."""
    (result,) = as_json("agreement", run, "--question", "judge")

    assert ("judge", "pass", 66, True, 11) == (
        *(result[key] for key in ("question", "kind", "labels", "is_sampled")),
        len(result["disagreements"]),
    )
    assert {"value", "low", "high"} == set(result["ac1"])


def test_no_labels(tmp_path: Path, run: Path) -> None:
    """Without labels, or with an unknown question, the error names what to do."""
    write_run(tmp_path / "other", [True])
    missing = evaljournal("agreement", tmp_path / "other")
    unknown = evaljournal("agreement", run, "--question", "juge")

    assert (2, 2) == (missing.exit_code, unknown.exit_code)
    assert "has no labels; draw a sample with `evaljournal review " in missing.stderr
    assert "has no labels of 'juge'; did you mean 'judge'?" in unknown.stderr


def test_a_damaged_review(run: Path) -> None:
    """A damaged review is an error with exit code 4, and the run itself stays readable."""
    flip(segment(run / "review"), 400)

    assert 4 == evaljournal("agreement", run).exit_code
    assert 0 == evaljournal("show", run, "c0").exit_code


def test_status(run: Path) -> None:
    """`status` shows the corrected score below the judge's, and has it as JSON."""
    corrected = as_json("status", run)["corrected"]["judge"]

    assert f"\n  {CORRECTED}\n" in evaljournal("status", run).stdout
    assert ("ppi", 66, 1_066) == (corrected["method"], corrected["labels"], corrected["trials"])


def test_status_without_a_review(tmp_path: Path) -> None:
    """Without a review, `corrected` is null."""
    write_run(tmp_path / "run", [True, False])

    assert as_json("status", tmp_path / "run")["corrected"] is None


def test_status_of_a_variant(tmp_path: Path) -> None:
    """A variant has its own corrected score; a run with variants has a line for each of them."""
    names = write_run(tmp_path / "run", [True, False] * 40, variant="mini")
    labels = [annotation(name, index % 3 > 0, output=f"out c{index} 1") for index, name in enumerate(names)]
    write_review(tmp_path / "run", [sampled(dict.fromkeys(names, 1.0)), *labels])
    text = "judge 50.0 %, corrected 66.2 % (95 % CI 55.0–75.9 %, 80 of 80 reviewed, uniform sample 1)"

    assert f"  {text}\n" in evaljournal("status", f"{tmp_path / 'run'}@mini").stdout
    assert f"  mini: {text}\n" in evaljournal("status", tmp_path / "run").stdout
    assert "ppi" == as_json("status", f"{tmp_path / 'run'}@mini")["corrected"]["judge"]["method"]
