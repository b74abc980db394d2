"""`compare` with two runs, and `status --by`."""

from pathlib import Path

import pytest

from evaljournal.journal import read
from tests.journal.samples import content, flip, segment, write_trials
from tests.replay.trial_events import answered, failed
from tests.runner_cli.commands import evaljournal, printed, rejected

PASS, FAIL = True, False


@pytest.fixture
def a(tmp_path: Path) -> Path:
    """Write a run of three trials, one of which fails."""
    return write_trials(
        tmp_path / "a",
        answered("peru", {"exact": PASS}, metadata={"difficulty": "easy"}),
        answered("chile", {"exact": FAIL}, output="Lima", metadata={"difficulty": "hard"}),
        failed("cuba", metadata={"difficulty": "hard"}),
    )


@pytest.fixture
def b(tmp_path: Path) -> Path:
    """Write another run, in which one trial is fixed and one is new."""
    return write_trials(
        tmp_path / "b",
        answered("peru", {"exact": PASS}, metadata={"difficulty": "easy"}),
        answered("chile", {"exact": PASS}, output="Santiago", metadata={"difficulty": "hard"}),
        failed("cuba", metadata={"difficulty": "hard"}),
        answered("japan", {"exact": PASS}, metadata={"difficulty": "easy"}),
    )


def test_diff_as_text(a: Path, b: Path) -> None:
    """The comparison is on standard output, with exit code 0; neither run is changed."""
    before = content(a), content(b)
    result = evaljournal("compare", a, b)

    assert (0, "") == (result.exit_code, result.stderr)
    assert [
        f"A  {a}: capitals, finished, 2 outputs, 1 error of 3",
        f"B  {b}: capitals, finished, 3 outputs, 1 error of 4",
        "3 common trials, 1 only in B",
        "3 trials compared: 0 broken, 1 fixed, 0 changed, 2 unchanged",
        (
            "exact  no difference found: +50.0 points (95 % CI -56.3 to 100.0, n = 2, p = 1); "
            "50.0 % → 100.0 %, 1 better, 0 worse; excluded: 1 case not scored in both"
        ),
        "latency  no difference found (n = 2)",
        "fixed (1):",
        "  chile: exact fail → pass, output changed",
        "only in B (1):",
        "  japan",
    ] == result.stdout.splitlines()
    assert before == (content(a), content(b))


def test_a_worse_run_is_not_an_error(a: Path, b: Path) -> None:
    """A worse run exits with 0; groups are compared, too."""
    result = evaljournal("compare", b, a, "--by", "difficulty")

    assert (0, True) == (result.exit_code, "broken (1):\n  chile: exact pass → fail" in result.stdout)
    assert "\nhard:\n  exact  no difference found: -100.0 points" in result.stdout


def test_diff_as_json(a: Path, b: Path) -> None:
    """JSON has both paths, every trial and every figure."""
    answer = printed("compare", a, b, "--by", "difficulty")
    groups = {label: (scores["exact"]["n"], scores["exact"]["higher"]) for label, scores in answer["groups"].items()}
    stages = {"stage_a": "completed", "stage_b": "completed"}

    assert (str(a), str(b), None, None) == (answer["a"], answer["b"], answer["problem_a"], answer["problem_b"])
    assert [{"trial": "chile", **stages, "scores": {"exact": [FAIL, PASS]}, "output_changed": True}] == answer["fixed"]
    assert ["japan"] == answer["only_b"]
    assert {"easy": (1, 0), "hard": (1, 1)} == groups


def test_diff_all(tmp_path: Path) -> None:
    """A long list is shortened; `--all` lists every trial."""
    worse = write_trials(tmp_path / "worse", *(answered(f"c{number}", {"exact": FAIL}) for number in range(22)))
    better = write_trials(tmp_path / "better", *(answered(f"c{number}", {"exact": PASS}) for number in range(22)))

    text = evaljournal("compare", worse, better).stdout
    assert "\nexact  B is better: +100.0 points (95 % CI " in text
    assert "  … and 12 more (--all lists all)\n" in text
    assert "  c21: exact fail → pass\n" in evaljournal("compare", worse, better, "--all").stdout


def test_diff_of_runs_without_common_trials(a: Path, tmp_path: Path) -> None:
    """Two runs without a common trial exit with 2."""
    other = write_trials(tmp_path / "other", answered("peru", fingerprint="something else"))
    result = evaljournal("compare", a, other)

    assert (2, "") == (result.exit_code, result.stdout)
    assert "no trial in common: 2 trials only in A, 0 only in B, 1 with different content" in result.stderr


@pytest.mark.parametrize("arguments", [["a", "nothing"], ["nothing", "a"], ["a"], ["a", "b", "--by", "dificulty"]])
def test_diff_rejects_wrong_arguments(a: Path, b: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing run, a missing argument or an unknown key exits with 2."""
    monkeypatch.chdir(a.parent)
    problem = rejected("compare", *arguments)

    assert problem.startswith("Error: ")
    assert "--by" not in arguments or "did you mean 'difficulty'?" in problem


def test_diff_goes_up_to_the_damage(a: Path, b: Path) -> None:
    """A damaged run is compared up to the damage, with exit code 4."""
    flip(segment(b), list(read(b))[9].offset + 60)
    result = evaljournal("compare", a, b)

    assert 4 == result.exit_code
    assert f"B  {b}: capitals, damaged" in result.stdout
    assert f"shown up to the damage: {b} is damaged at record 10" in result.stderr


def test_status_and_diff_agree_about_a_damaged_run(tmp_path: Path, a: Path) -> None:
    """`status` and `compare` count up to the damage, of all planned trials; the next command is salvage."""
    broken = tmp_path / "broken"
    write_trials(broken, *map(answered, ("peru", "oslo", "rome", "bern")), trials=20)
    flip(segment(broken), list(read(broken))[-3].offset + 60)
    status, answer = evaljournal("status", broken), printed("status", broken)

    assert "3 of 20 · 15 %" == status.stdout.splitlines()[1].lstrip("━─ ")
    assert f"B  {broken}: capitals, damaged, 3 outputs of 20" in evaljournal("compare", a, broken).stdout
    assert ("damaged", f"evaljournal salvage {broken} -o NEW") == (answer["status"], answer["next_command"])


def test_status_by_a_key_of_the_metadata(a: Path) -> None:
    """Each group has its counts and scores, before the totals."""
    result = evaljournal("status", a, "--by", "difficulty")

    assert 0 == result.exit_code
    assert [
        "by difficulty:",
        "  easy  1 output of 1 trial",
        "    exact  100.0 %  1 of 1 passed (95 % CI 20.7–100.0 %)",
        "  hard  1 output of 2 trials · 1 error",
        "    exact  0.0 %  0 of 1 passed (95 % CI 0.0–79.3 %); excluded: 1 error",
        f"capitals finished: 3 of 3 trials done, in {a}",
    ] == result.stdout.splitlines()[:6]


def test_status_by_as_json(a: Path) -> None:
    """JSON has the groups; without a key it has none."""
    groups = printed("status", a, "--by", "difficulty")["groups"]

    assert {"easy": 0, "hard": 1} == {label: group["trials"]["failed"] for label, group in groups.items()}
    assert printed("status", a)["groups"] is None


def test_status_by_an_unknown_key(a: Path) -> None:
    """An unknown key is rejected with suggestions."""
    assert "has 'difficult' in its metadata; did you mean 'difficulty'?" in rejected("status", a, "--by", "difficult")
