"""The command `agreement`, and corrected scores in other commands."""

import html
import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.journal.samples import flip, segment
from tests.processes import run_command
from tests.replay.reviewed_run import annotation, sampled, write_review, write_reviewed_run, write_run
from tests.runner_cli.commands import evaljournal, printed, rejected

CORRECTED = "judge 70.7 %, corrected 63.8 % (95 % CI 53.2–73.3 %, 66 of 266 reviewed, uniform sample 1)"


@pytest.fixture(scope="module")
def written_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 266 outputs with a judge, of which a uniform sample of 66 has labels."""
    path = tmp_path_factory.mktemp("written") / "run"
    write_reviewed_run(path, (40, 3, 8, 15), (140, 60))
    return path


@pytest.fixture
def run(tmp_path: Path, written_run: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(written_run, tmp_path / "run")


def test_agreement(run: Path) -> None:
    """The text has the figures and the disagreements; --all lists all of them."""
    result = evaljournal("agreement", run)

    assert result.exit_code == 0
    assert result.stdout.startswith(f"judge: 66 outputs labeled by ada (66); 66 with the score visible\n  {CORRECTED}\n")
    assert "\n  pass   40          8\n" in result.stdout
    assert "Gwet's AC1            0.71 (95 % CI 0.5" in result.stdout
    assert "… and 1 more; --all lists them" in result.stdout
    assert "c50: score pass, label fail" in evaljournal("agreement", run, "--all").stdout


def test_agreement_as_json(run: Path) -> None:
    """JSON has a list with one object for each question: the confusion table, the rates and the disagreements."""
    (result,) = printed("agreement", run, "--question", "judge")
    counts = {(cell["judge"], cell["label"]): cell["count"] for cell in result["confusion"]}
    rates = [(result[name]["mean"], result[name]["n"]) for name in ("true_pass_rate", "true_fail_rate")]

    assert ("judge", "pass", 66, True) == tuple(result[key] for key in ("question", "kind", "labels", "is_sampled"))
    assert {(True, True): 40, (False, True): 3, (True, False): 8, (False, False): 15} == counts
    assert [pytest.approx((40 / 43, 43)), pytest.approx((15 / 23, 23))] == rates
    assert [f"c{index}" for index in range(40, 51)] == [item["trial"] for item in result["disagreements"]]
    assert {"value", "low", "high"} == set(result["ac1"])


def test_no_labels(tmp_path: Path, run: Path) -> None:
    """Without labels, or with an unknown question, the error names what to do."""
    write_run(tmp_path / "other", [True])

    assert "has no labels; draw a sample with `evaljournal review " in rejected("agreement", tmp_path / "other")
    assert "has no labels of 'juge'; did you mean 'judge'?" in rejected("agreement", run, "--question", "juge")


def test_a_damaged_review(run: Path) -> None:
    """A damaged review is an error with exit code 4, and the run itself stays readable."""
    flip(segment(run / "review"), 400)

    assert 4 == evaljournal("agreement", run).exit_code
    shown, status = evaljournal("show", run, "c0"), evaljournal("status", run)
    assert (0, 0) == (shown.exit_code, status.exit_code)
    assert "no labels: " in shown.stderr
    assert "\n  no corrected scores: " in status.stdout


def test_status(run: Path) -> None:
    """`status` shows the corrected score below the judge's, and has it as JSON."""
    corrected = printed("status", run)["corrected"]["judge"]
    counts = {"drawn": 66, "labeled": 66, "counted": 66, "population": 2_000, "outputs": 266}

    assert f"\n  {CORRECTED}\n" in evaljournal("status", run).stdout
    assert ("ppi", 66, 266, 66, 0) == tuple(corrected[name] for name in ("method", "labels", "trials", "cases", "unsampled"))
    assert [{"id": 1, "method": "uniform", "missing": "", **counts}] == corrected["samples"]
    assert pytest.approx(188 / 266) == corrected["judge"]


def test_status_without_a_review(tmp_path: Path) -> None:
    """Without a review, `corrected` is null, and `status` does not even import the modules of reviews."""
    write_run(tmp_path / "run", [True, False])
    program = (
        "import sys; from evaljournal.runner.cli import cli; cli(['status', 'run'], standalone_mode=False); "
        "print([name for name in sys.modules if name.startswith('evaljournal.replay.review')])"
    )
    output = run_command(sys.executable, "-c", program, cwd=tmp_path, check=True).stdout

    assert output.endswith("\n[]\n")
    assert printed("status", tmp_path / "run")["corrected"] is None


def test_status_of_a_variant(tmp_path: Path) -> None:
    """A variant has its own corrected score; a run with variants has a line for each of them."""
    names = write_run(tmp_path / "run", [True, False] * 40, variant="mini")
    labels = [annotation(name, index % 3 > 0, output=f"out c{index} 1") for index, name in enumerate(names)]
    write_review(tmp_path / "run", [sampled(dict.fromkeys(names, 1.0)), *labels])
    text = "judge 50.0 %, corrected 66.2 % (95 % CI 55.0–75.9 %, 80 of 80 reviewed, uniform sample 1)"

    assert f"  {text}\n" in evaljournal("status", f"{tmp_path / 'run'}@mini").stdout
    assert f"  mini: {text}\n" in evaljournal("status", tmp_path / "run").stdout
    assert "ppi" == printed("status", f"{tmp_path / 'run'}@mini")["corrected"]["judge"]["method"]


@pytest.mark.parametrize(
    ("gate", "code", "text"),
    [
        ("corrected:judge>=0.5@lower", 0, "passed"),
        ("corrected:judge>=60%", 0, "passed"),
        ("corrected:judge>=0.65", 1, "the corrected judge is 0.6385"),
        (
            "corrected:judge>=0.6@lower",
            5,
            "the 95 % interval of the corrected judge is 0.5318 to 0.733; more labels would decide",
        ),
        ("corrected:judge>=0.8@lower", 1, "the 95 % interval of the corrected judge is 0.5318 to 0.733"),
        ("agreement:judge>=0.5@lower", 0, "passed"),
        pytest.param("agreement:judge>=0.7", 0, "passed", marks=pytest.mark.exhaustive),
        ("agreement:judge>=0.7@lower", 5, "the 95 % interval of the agreement of judge is 0."),
        pytest.param(
            *("agreement:judge>=0.95@lower", 1, "the 95 % interval of the agreement of judge is 0."),
            marks=pytest.mark.exhaustive,
        ),
        ("judge>=0.9", 1, "the mean of judge is 0.7068"),
    ],
)
def test_gates(run: Path, gate: str, code: int, text: str) -> None:
    """A gate on a review passes, fails, or is undecided if more labels would decide; `gate` and `resume` check it."""
    result = evaljournal("gate", run, "--fail-under", gate)
    resumed = evaljournal("resume", run, "--fail-under", gate)

    assert (code, code) == (result.exit_code, resumed.exit_code), result.output
    assert text in result.stdout
    assert (text in resumed.stderr) == bool(code)


@pytest.mark.parametrize(
    ("gate", "code"), [("corrected:judge>=0.6", 0), ("corrected:judge>=0.65", 1), ("corrected:judge>=0.6@lower", 5)]
)
def test_a_recorded_gate_of_a_watched_run(tmp_path: Path, gate: str, code: int) -> None:
    """`watch` checks the gates of a run on its review, too."""
    write_reviewed_run(tmp_path / "run", (40, 3, 8, 15), (140, 60), gates=[gate])

    assert code == evaljournal("watch", tmp_path / "run").exit_code


@pytest.mark.parametrize("gate", ["corrected:judge>=0.1", "corrected:judge>=0.1@lower", "agreement:judge>=0.1"])
def test_undecided_gates(tmp_path: Path, gate: str) -> None:
    """Without labels, without a sample, or with fewer than 30 labels of one, a gate on the review is undecided."""
    names = write_run(tmp_path / "none", [True] * 80)
    write_run(tmp_path / "unsampled", [True] * 80)
    labels = [annotation(name, index % 2 == 0, output=f"out {name} 1") for index, name in enumerate(names)]
    write_review(tmp_path / "unsampled", labels)
    write_reviewed_run(tmp_path / "few", (29, 0, 0, 0))
    write_reviewed_run(tmp_path / "early", (40, 3, 8, 15), population=400)
    texts = {
        "none": "there are no labels of judge yet",
        "unsampled": "0 labels of a random sample",
        "few": "29 labels of a random sample; at least 30 are needed",
        "early": "drawn when 400 of 466 outputs existed: draw another sample",
    }
    for name, text in texts.items():
        result = evaljournal("gate", tmp_path / name, "--fail-under", gate, "--json")

        assert (5, "too_little_evidence") == (result.exit_code, json.loads(result.stdout)["verdict"])
        assert text in json.loads(result.stdout)["gates"][0]["problem"]


def test_a_corrected_gate_on_labels(tmp_path: Path) -> None:
    """A gate on the corrected score of a scorer that gives labels is a usage error."""
    write_run(tmp_path / "run", ["good", "bad"] * 20)
    problems = [rejected(name, tmp_path / "run", "--fail-under", "corrected:judge>=0.9") for name in ("gate", "resume")]

    assert all("the scores of judge are labels, which have no mean" in problem for problem in problems)


def test_gates_with_a_baseline(tmp_path: Path, run: Path) -> None:
    """With a baseline, the worst verdict counts."""
    shutil.copytree(run, tmp_path / "base")
    passed = evaljournal("gate", run, "--baseline", tmp_path / "base")
    result = evaljournal("gate", run, "--baseline", tmp_path / "base", "--fail-under", "corrected:judge>=0.9@lower")

    assert (0, 1) == (passed.exit_code, result.exit_code)
    assert "failed              corrected:judge>=0.9@lower: the 95 % interval" in result.stdout


def test_a_gate_without_a_baseline_cannot_regress(run: Path) -> None:
    """A score below a minimum has failed: nothing is known about an earlier run."""
    result = evaljournal("gate", run, "--fail-under", "corrected:judge>=0.9")

    assert (1, "failed") == (result.exit_code, result.stdout.splitlines()[-1])
    assert "failed" == json.loads(evaljournal("gate", run, "--fail-under", "judge>=0.9", "--json").stdout)["verdict"]


def test_a_gate_on_labels_alone(tmp_path: Path) -> None:
    """If the labels are too few to correct a score, a gate on it names what it compares."""
    write_reviewed_run(tmp_path / "few", (35, 0, 0, 5))
    result = evaljournal("gate", tmp_path / "few", "--fail-under", "corrected:judge>=0.95")

    assert 1 == result.exit_code
    assert "the mean of the labels of judge is 0.875\n" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "pass --baseline, or --fail-under alone"),
        (("--no-broken", "--fail-under", "judge=1"), "pass --baseline, or --fail-under alone"),
        (("--suite", "--baseline", "newest", "--fail-under", "judge=1"), "--fail-under applies to a run, not to a suite"),
        (("--fail-under", "corrected:juge=1"), "no scorer 'juge'; did you mean 'judge'?"),
        (("--fail-under", "correct:judge=1"), "expected SCORER=NUMBER"),
        (("--fail-under", "judge=90"), "--fail-under judge=90: judge is at most 1; did you mean 0.9?"),
        (("--fail-under", "agreement:judge>=70@lower"), "judge is at most 1; did you mean 0.7?"),
        (("--fail-under", "judge=900"), "--fail-under judge=900: judge is at most 1"),
    ],
)
def test_wrong_gates(run: Path, arguments: tuple[str, ...], text: str) -> None:
    """Options that do not fit, unknown scorers and mistyped gates are usage errors."""
    assert text in rejected("gate", run, *arguments)


def test_compare(tmp_path: Path, run: Path) -> None:
    """Two runs have both corrected scores and the corrected difference; a table has those of each row."""
    write_reviewed_run(tmp_path / "other", (30, 3, 8, 25), (140, 60))
    text = evaljournal("compare", run, tmp_path / "other").stdout
    corrected = printed("compare", run, tmp_path / "other")["corrected"]
    difference = corrected["differences"]["judge"]

    assert f"\nA  {CORRECTED}\n" in text
    assert "\njudge, corrected: -" in text
    assert difference["mean"] == pytest.approx(corrected["b"]["judge"]["mean"] - corrected["a"]["judge"]["mean"])
    assert difference["low"] < difference["mean"] < difference["high"]
    rows = printed("compare", run, tmp_path / "other", "--baseline", run)["rows"]
    assert ["ppi", "ppi"] == [row["corrected"]["judge"]["method"] for row in rows]
    assert f"{run}: {CORRECTED}\n" in evaljournal("compare", run, tmp_path / "other", "--baseline", run).stdout


def test_compare_without_a_review(tmp_path: Path, run: Path) -> None:
    """If only one run has a review, there is no corrected difference; if none has, `corrected` is null."""
    for name in ("other", "another"):
        write_run(tmp_path / name, [True] * 266)

    assert {} == printed("compare", run, tmp_path / "other")["corrected"]["differences"]
    assert printed("compare", tmp_path / "another", tmp_path / "other")["corrected"] is None


def test_history(run: Path) -> None:
    """`history` has the corrected scores of runs that have a review."""
    assert f"\nrun: {CORRECTED}\n" in evaljournal("history", run.parent).stdout
    assert 66 == printed("history", run.parent)[0]["corrected"][str(run)]["judge"]["labels"]


def test_markdown(run: Path) -> None:
    """The Markdown export has the corrected score, the agreement and the disagreements."""
    text = html.unescape(evaljournal("export", run, "--format", "markdown").stdout)

    assert CORRECTED in text
    assert "| pass | 40 | 8 |" in text
    assert "| Gwet's AC1 | 0.71 (95 % CI " in text
    assert "**11 disagreements:**" in text
