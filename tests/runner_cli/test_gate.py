"""`gate`: verdicts on a run against a baseline, their exit codes, and runs that cannot be compared."""

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import Result

from evaljournal.journal.events import AttemptStarted, RunStopped, TrialScored
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.results.sensitivity import detectable_drop
from evaljournal.replay.statistics import paired_shares
from tests.journal.samples import flip, forge, opened, segment, session, started, write_trials
from tests.replay.trial_events import answered, failed
from tests.runner_cli.commands import evaljournal, printed, rejected

N = 60


def gate(*arguments: object) -> Result:
    return evaljournal("gate", *arguments)


def run(path: Path, passed: int, *, n: int = N, broken: int = 0, usage: Any = None, **options: Any) -> Path:
    """Write a run of `n` trials of which the first `passed` pass and the last `broken` fail."""
    trials = [answered(f"case-{at}", {"exact": at < passed}, usage=usage) for at in range(n - broken)]
    return write_trials(path, *trials, *(failed(f"case-{at}") for at in range(n - broken, n)), **options)


def rules(path: Path, text: str) -> Path:
    (path / "gate.toml").write_text(text)
    return path / "gate.toml"


@pytest.mark.parametrize(
    ("passed", "verdict", "code"),
    [(50, "passed", 0), (48, "passed", 0), (47, "too_little_evidence", 5), (45, "regressed", 1), (60, "passed", 0)],
)
def test_the_verdict_is_that_of_the_test(tmp_path: Path, passed: int, verdict: str, code: int) -> None:
    """Of 60 cases, 50 pass in the baseline: 3 broken cases are too little evidence, 5 broken are a regression."""
    result = gate(run(tmp_path / "b", passed), "--baseline", run(tmp_path / "a", 50), "--json")
    report = orjson.loads(result.stdout)
    check = report["checks"][0]
    estimate = paired_shares([1.0 if passed > 50 else -1.0] * abs(passed - 50) + [0.0] * (N - abs(passed - 50)))

    assert (code, verdict) == (result.exit_code, report["verdict"])
    assert ("exact", "max_drop", 0.02, N) == (check["name"], check["rule"], check["bound"], check["n"])
    assert [estimate.low, estimate.high, estimate.mean] == [check["low"], check["high"], pytest.approx(check["difference"])]
    assert [estimate.p_worse, max(0, 50 - passed)] == [check["p"], check["lower"]]
    assert {32} == {len(report[name]["head"]) for name in ("baseline", "run")}


def test_the_evidence_is_printed(tmp_path: Path) -> None:
    """The test, the cases that broke and were fixed, and with too little evidence what would decide, are printed."""
    passed = gate(run(tmp_path / "b", 18, n=20), "--baseline", run(tmp_path / "a", 20, n=20))
    undecided = gate(run(tmp_path / "d", 17, n=20), "--baseline", tmp_path / "a")

    assert [0, "passed"] == [passed.exit_code, passed.stdout.splitlines()[-1]]
    assert "one-sided tests that the run is worse: McNemar's for pass/fail, sign-flip for numbers\n" in passed.stdout
    assert "n = 20, p = 0.25); 2 cases broke, 0 were fixed; drop tolerated: 2.0 points\n" in passed.stdout
    assert [5, "too little evidence"] == [undecided.exit_code, undecided.stdout.splitlines()[-1]]
    decision = "drop tolerated: 2.0 points; about 14 more cases, or --no-broken, would decide\n"
    assert f"n = 20, p = 0.13); 3 cases broke, 0 were fixed; {decision}" in undecided.stdout


def repeated(path: Path, passed: Sequence[Sequence[bool]]) -> Path:
    """Write a run in which each case has these results."""
    return write_trials(
        path,
        *(
            answered(f"case-{at}", {"exact": value}, repeat=repeat)
            for at, values in enumerate(passed)
            for repeat, value in enumerate(values, 1)
        ),
    )


def test_minimum_detectable_drops(tmp_path: Path) -> None:
    """They follow from the repeats of the baseline, or from other runs with its definition, never from the run itself."""
    unknown = gate(run(tmp_path / "b", 50), "--baseline", run(tmp_path / "a", 50))
    run(tmp_path / "c", 47)
    history = list[dict[str, Any]]()
    for passed in (50, 40):
        history.append(printed("gate", run(tmp_path / "d", passed), "--baseline", tmp_path / "a"))
        shutil.rmtree(tmp_path / "d")
    before = repeated(tmp_path / "repeats" / "a", [[True, at > 6] for at in range(N)])
    after = repeated(tmp_path / "repeats" / "b", [[True, True]] * N)

    reason = "the baseline has no repeats, and its directory no other run with its definition"
    assert f"minimum detectable drop unknown: {reason}; run the baseline twice, or with --repeats 3\n" in unknown.stdout
    assert ["history", "history"] == [report["noise_source"] for report in history]
    assert history[0]["minimum_detectable_drops"] == history[1]["minimum_detectable_drops"]
    report = printed("gate", after, "--baseline", before)
    drops = detectable_drop(N, 7 / N * 0.5, 0.05, is_share=True)
    assert ["repeats", {"exact": pytest.approx(drops)}] == [report["noise_source"], report["minimum_detectable_drops"]]
    assert "points (exact), from the baseline's repeats\n" in gate(after, "--baseline", before).stdout


def test_errors_are_a_regression(tmp_path: Path) -> None:
    """Trials with an error have no score, so their share is compared, too; a regression outranks a score that passed."""
    result = gate(run(tmp_path / "b", 50, broken=20), "--baseline", run(tmp_path / "a", 50), "--json")
    checks = {check["name"]: (check["verdict"], check["n"]) for check in orjson.loads(result.stdout)["checks"]}

    assert 1 == result.exit_code
    assert {"exact": ("passed", 40), "completed": ("regressed", 60)} == checks


def scored(path: Path, *, lost: int = 0) -> Path:
    """Write a run of 60 trials whose outputs pass, but the scorer failed on the last `lost`."""
    values: list[bool | Exception] = [True] * (N - lost) + [RuntimeError()] * lost
    return write_trials(path, *(answered(f"case-{at}", {"exact": value}) for at, value in enumerate(values)))


@pytest.mark.parametrize(("lost", "verdict", "code"), [(1, "passed", 0), (20, "regressed", 1), (N, "regressed", 1)])
def test_scorer_errors_are_a_regression(tmp_path: Path, lost: int, verdict: str, code: int) -> None:
    """Outputs that could not be scored are in no mean, so that the mean of the others proves nothing."""
    arguments = (scored(tmp_path / "b", lost=lost), "--baseline", scored(tmp_path / "a"))
    result = gate(*arguments, "--json")
    report = orjson.loads(result.stdout)
    checks = {check["name"]: (check["verdict"], check["lower"]) for check in report["checks"]}

    assert (code, verdict) == (result.exit_code, report["verdict"])
    assert (verdict, lost) == checks["completed"]
    assert 1 == gate(*arguments, "--no-broken").exit_code


def test_errors_fail_a_gate_without_a_baseline(tmp_path: Path) -> None:
    """An error is in no mean: it fails the gate, as it fails the run."""
    cases = [
        (run(tmp_path / "a", 50, broken=1), "1 trial with an error"),
        (scored(tmp_path / "b", lost=2), "2 outputs not scored"),
    ]
    for path, problem in cases:
        result = gate(path, "--fail-under", "exact=0.5")

        assert 1 == result.exit_code
        assert f"passed              exact=0.5\nfailed              {problem}" in result.stdout
        assert printed("gate", path, "--fail-under", "exact=0.5")["problems"][0].startswith(problem)
    assert 0 == gate(scored(tmp_path / "c"), "--fail-under", "exact=0.5").exit_code


def test_a_run_of_errors_is_a_regression(tmp_path: Path) -> None:
    """If no trial of the run has an output, there is no score to compare, and the errors decide."""
    result = gate(run(tmp_path / "b", 0, n=10, broken=10), "--baseline", run(tmp_path / "a", 10, n=10))

    assert 1 == result.exit_code
    assert "regressed           trials with all scores 100.0 % → 0.0 %" in result.stdout


def test_two_runs_of_errors_cannot_be_compared(tmp_path: Path) -> None:
    """If neither run has an output, nothing was compared, so the gate does not pass."""
    runs = [run(tmp_path / name, 0, n=3, broken=3) for name in "ab"]

    assert "neither of the runs has an output" in rejected("gate", runs[1], "--baseline", runs[0])


def test_no_broken(tmp_path: Path) -> None:
    """With --no-broken, one broken trial fails the gate and is listed, even if the score does not differ."""
    before, after = run(tmp_path / "a", 50), run(tmp_path / "b", 49)
    result = gate(after, "--baseline", before, "--no-broken")

    assert 1 == result.exit_code
    assert "regressed           broken 1 trial (required: none)\n" in result.stdout
    assert "\n  case-49: exact pass → fail\nregressed\n" in result.stdout
    assert ["case-49"] == printed("gate", after, "--baseline", before, "--no-broken")["broken_trials"]
    assert 0 == gate(after, "--baseline", before).exit_code == gate(before, "--baseline", after, "--no-broken").exit_code


@pytest.mark.parametrize(
    ("text", "code", "verdicts"),
    [
        ("[score.exact]\nmax_drop = 0.2\n", 0, ["passed", "passed"]),
        ("[score.exact]\nat_least = 0.9\n", 1, ["regressed", "passed"]),
        ("[score.exact]\nat_least = 0.7\n[score.completed]\nmax_drop = 0.2\n", 0, ["passed", "passed"]),
        ("[score.completed]\nmax_drop = 0.2\n[p95]\nat_most = 100\n", 0, ["passed", "passed"]),
        ("[score.completed]\nmax_drop = 0.2\n[p95]\nat_most_ratio = 0.5\n", 1, ["passed", "regressed"]),
    ],
)
def test_rules(tmp_path: Path, text: str, code: int, verdicts: list[str]) -> None:
    """A rules file replaces the default for scores; the share of completed trials is always checked."""
    file = rules(tmp_path, text)
    result = gate(run(tmp_path / "b", 50), "--baseline", run(tmp_path / "a", 50), "--rules", file, "--json")

    assert (code, verdicts) == (result.exit_code, [check["verdict"] for check in orjson.loads(result.stdout)["checks"]])


USAGE = {"cost": 0.02, "judge.cost": 0.01, "input_tokens": 90, "output_tokens": 10, "judge.input_tokens": 50}


@pytest.mark.parametrize(
    ("rule", "code", "value"),
    [
        ("[cost]\nat_most = 0.91", 0, 0.9),
        ("[cost]\nat_most = 0.9", 0, 0.9),  # The sum of the costs is not exactly 0.9.
        ("[cost]\nat_most = 0.89", 1, 0.9),
        ("[cost]\nat_most_ratio = 1.51", 0, 1.5),
        ("[cost]\nat_most_ratio = 1.49", 1, 1.5),
        ("[tokens]\nat_most = 4500", 0, 4500),
        ("[tokens]\nat_most = 4499", 1, 4500),
        ("[tokens]\nat_most_ratio = 0.9", 1, 1.0),
    ],
)
def test_limits_of_cost_and_tokens(tmp_path: Path, rule: str, code: int, value: float) -> None:
    """An absolute limit is that of the whole run, a ratio is per trial; judges count."""
    baseline = run(tmp_path / "a", 60, usage={**USAGE, "judge.cost": 0.0})
    after = run(tmp_path / "b", 30, n=30, usage=USAGE)
    file = rules(tmp_path, f"[score.completed]\nmax_drop = 0.5\n{rule}\n")
    result = gate(after, "--baseline", baseline, "--rules", file, "--json")

    assert (code, pytest.approx(value)) == (result.exit_code, orjson.loads(result.stdout)["checks"][-1]["value"])


def test_calls_without_a_price(tmp_path: Path) -> None:
    """A sum without the calls that have no price is not compared."""
    runs = [run(tmp_path / name, 60, usage={"cost": 1.0, "unpriced_calls": 1}) for name in "ab"]
    file = rules(tmp_path, "[cost]\nat_most = 500\n")

    assert "60 calls have no price" in rejected("gate", runs[1], "--baseline", runs[0], "--rules", file)


def test_a_regression_outranks_too_little_evidence(tmp_path: Path) -> None:
    """One rule that is not met decides, whatever the others are."""
    file = rules(tmp_path, "[score.exact]\nmax_drop = 0.01\n[p95]\nat_most = 0.1\n")
    result = gate(run(tmp_path / "b", 3, n=4), "--baseline", run(tmp_path / "a", 4, n=4), "--rules", file, "--json")
    report = orjson.loads(result.stdout)

    assert ["too_little_evidence", "passed", "regressed"] == [check["verdict"] for check in report["checks"]]
    assert (1, "regressed") == (result.exit_code, report["verdict"])


def test_labels_are_not_checked(tmp_path: Path) -> None:
    """Labels have no mean; a rule for one is an error."""
    for name, tone in (("a", "kind"), ("b", "rude")):
        write_trials(tmp_path / name, *(answered(f"case-{at}", {"exact": True, "tone": tone}) for at in range(300)))
    result = gate(tmp_path / "b", "--baseline", tmp_path / "a", "--json")
    file = rules(tmp_path, "[score.tone]\nmax_drop = 0.1\n")

    assert (0, ["exact", "completed"]) == (
        result.exit_code,
        [check["name"] for check in orjson.loads(result.stdout)["checks"]],
    )
    assert 2 == gate(tmp_path / "b", "--baseline", tmp_path / "a", "--rules", file).exit_code


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "contains no rule"),
        ("[score]\nexact = 1\n", "[score.exact] needs max_drop or at_least"),
        ("[[score.exact]]\nmax_drop = 0.1\n", "[[score.exact]] is a list of tables; write [score.exact]"),
        ("[score.exact]\nmax_dorp = 0.2\n", "unknown key 'max_dorp'; did you mean 'max_drop'"),
        ("[costs]\nat_most = 1\n", "unknown key 'costs'; did you mean 'cost'"),
        ("[cost]\nat_most = -1\n", "expected a number that is not negative"),
        ("[cost]\nat_most = nan\n", "expected a number that is not negative"),
        ("[score.other]\nmax_drop = 0.2\n", "no numbers of 'other' in common"),
        ("[cost]\nat_most = 5\n", "there is no 'cost'"),
        ("not toml", "not valid TOML"),
    ],
)
def test_a_wrong_rule_is_an_error(tmp_path: Path, text: str, problem: str) -> None:
    """The file or the score is named, with exit code 2."""
    runs = (run(tmp_path / "b", 50), "--baseline", run(tmp_path / "a", 50))

    assert problem in rejected("gate", *runs, "--rules", rules(tmp_path, text))


def test_an_unfinished_run_is_not_compared(tmp_path: Path) -> None:
    """The cases of an unfinished run may differ from those of the baseline in more than chance."""
    unfinished, finished_run = run(tmp_path / "b", 50, ending=RunStopped(reason="interrupted")), run(tmp_path / "a", 50)
    result, swapped = gate(unfinished, "--baseline", finished_run), gate(finished_run, "--baseline", unfinished)

    assert (2, True) == (result.exit_code, "the run is not finished" in result.stderr)
    assert (2, True) == (swapped.exit_code, "the baseline is not finished" in swapped.stderr)


@pytest.mark.parametrize("change", ["older task", "versions", "unscored"])
def test_results_of_several_versions_are_not_compared(tmp_path: Path, change: str) -> None:
    """Outputs of an older task, scores of two versions of a scorer, and missing scores are errors."""
    events = [event for at in range(3) for event in answered(f"case-{at}", {"exact": True})]
    scored = next(event for event in events if isinstance(event, TrialScored))
    if change == "versions":
        events[events.index(scored)] = evolve_fact(scored, version="other")
    elif change == "unscored":
        events.remove(scored)
    else:
        events += [RunStopped(reason="interrupted"), evolve_fact(session(2), adopted={"task_fingerprint": "new"})]
    write_trials(tmp_path / "b", events)
    result = gate(tmp_path / "b", "--baseline", run(tmp_path / "a", 3, n=3))

    assert 2 == result.exit_code
    assert "the run has" in result.stderr


def test_a_scorer_that_one_run_lacks(tmp_path: Path) -> None:
    """A score of the baseline is not skipped silently; a rules file names what is checked. A new scorer has no baseline."""

    def write(name: str, *scorers: str) -> Path:
        trials = (answered(f"case-{at}", dict.fromkeys(scorers, True)) for at in range(300))
        return write_trials(tmp_path / name, *trials, scorers={})

    old, new = write("old", "exact"), write("new", "exact", "tone")
    file = rules(tmp_path, "[score.exact]\nmax_drop = 0.05\n")
    result = gate(old, "--baseline", new)

    assert (2, True) == (result.exit_code, "the run has no scorer 'tone', which the baseline has" in result.stderr)
    assert 0 == gate(old, "--baseline", new, "--rules", file).exit_code
    assert 0 == gate(new, "--baseline", old).exit_code


def test_no_case_in_common(tmp_path: Path) -> None:
    """Runs of other cases are not compared; the error shows which of the two has which cases."""
    baseline = write_trials(tmp_path / "a", answered("x", {"exact": True}))
    result = gate(run(tmp_path / "b", 5), "--baseline", baseline)

    assert 2 == result.exit_code
    assert f"the baseline {baseline} (A) and {tmp_path / 'b'} (B) cannot be compared" in result.stderr
    assert "no trial in common: 1 trial only in A" in result.stderr


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_run_that_breaks_the_rules_of_the_writer(tmp_path: Path, name: str) -> None:
    """Records that `verify` rejects, such as an attempt 0, are not compared."""
    baseline, other = run(tmp_path / "a", 50), run(tmp_path / "b", 50)
    trial = [evolve_fact(event, attempt=0) if isinstance(event, AttemptStarted) else event for event in answered("x")]
    shutil.rmtree(tmp_path / name)
    forge(tmp_path / name, [opened(), started(), session(), *trial])
    result = gate(other, "--baseline", baseline)

    assert (4, "", True) == (result.exit_code, result.stdout, "expected attempt 1, got attempt 0" in result.stderr)
    assert 4 == evaljournal("verify", tmp_path / name).exit_code


@pytest.mark.parametrize("options", [["--baseline", "a"], ["--baseline", "a", "--json"], ["--fail-under", "exact>=0.5"]])
def test_a_damaged_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    """Damage is an error with its own exit code; nothing is shown of the run."""
    monkeypatch.chdir(tmp_path)
    run(Path("a"), 50)
    flip(segment(run(Path("b"), 50)), 3_000)
    result = gate("b", *options)

    assert (4, "") == (result.exit_code, result.stdout)
    assert result.stderr.startswith("Error: b is damaged at record ")


def test_newest_is_the_newest_other_finished_run(tmp_path: Path) -> None:
    """Unfinished runs, other evaluations and the run itself are skipped."""
    runs = tmp_path / "runs"
    expected = run(runs / "0001", 50)
    run(runs / "0002", 50, ending=RunStopped(reason="interrupted"))
    run(runs / "0003", 50, evaluation="other")
    report = orjson.loads(gate(run(runs / "0004", 50), "--baseline", "newest", "--json").stdout)

    assert str(expected) == report["baseline"]["path"]
    alone = gate(run(tmp_path / "alone" / "0001", 50), "--baseline", "newest")
    assert (2, True) == (alone.exit_code, "no other finished run of 'capitals'" in alone.stderr)


def test_the_run_itself_is_not_its_baseline(tmp_path: Path) -> None:
    """A directory of runs names its newest run; if that is the run, there is nothing to compare."""
    newest = run(tmp_path / "runs" / "0001", 50)
    result = gate(newest, "--baseline", newest.parent)

    assert (2, True) == (result.exit_code, "is the run itself" in result.stderr)


def test_the_order_of_records_does_not_matter(tmp_path: Path) -> None:
    """The same results in another order give the same checks."""
    names = [f"case-{at}" for at in range(N)]
    baseline, reports = run(tmp_path / "a", 50), []
    for seed in range(2):
        random.Random(seed).shuffle(names)
        trials = (answered(name, {"exact": int(name[5:]) < 45}) for name in names)
        path = write_trials(tmp_path / f"b{seed}", *trials)
        reports.append(printed("gate", path, "--baseline", baseline)["checks"])

    assert reports[0] == reports[1]
