"""`compare`, and `RUN@VARIANT` wherever one variant can be compared."""

from pathlib import Path

import orjson
import pytest

from evaljournal.journal.events import TrialWithdrawn
from evaljournal.runner.cli.arguments import RunReference, find_reference
from evaljournal.runner.errors import UsageError
from tests.journal.samples import flip, segment, write_trials
from tests.replay.trial_events import answered
from tests.runner_cli.commands import evaljournal, printed, rejected

COUNT = 60


def run(path: Path, **passes: int) -> Path:
    """Write a run in which so many of 60 cases pass in each variant."""
    trials = (
        answered(f"c{number}", {"exact": number < passed}, variant=variant.replace("none", ""), usage={"cost": 0.01})
        for number in range(COUNT)
        for variant, passed in passes.items()
    )
    return write_trials(path, *trials)


def test_variants_of_a_run(tmp_path: Path) -> None:
    """A run with variants has a row for each; the others are compared with the best, or with --baseline."""
    path = run(tmp_path / "run", mini=50, large=58, tiny=30)
    table, with_tiny = printed("compare", path), printed("compare", path, "--baseline", "tiny")

    assert ["mini", "large", "tiny"] == [row["name"] for row in table["rows"]]
    assert ("large", "tiny", 2) == (table["baseline"], with_tiny["baseline"], table["comparisons"])
    assert {str(path)} == {row["path"] for row in table["rows"]}
    assert ["mini", "large", "tiny"] == [row["variant"] for row in table["rows"]]
    assert ["worse", {}, "worse"] == [row["differences"] and row["differences"]["exact"]["verdict"] for row in table["rows"]]
    assert ["better", "better", {}] == [
        row["differences"] and row["differences"]["exact"]["verdict"] for row in with_tiny["rows"]
    ]
    output = evaljournal("compare", path).stdout.splitlines()
    assert f"{path}  head {table['rows'][0]['head']}" == output[0]
    assert "exact, compared with large:" in output


def test_several_runs(tmp_path: Path) -> None:
    """Runs and variants of runs are rows; the baseline is named as the row, or in any other way that names it."""
    a, b = run(tmp_path / "a", none=50), run(tmp_path / "b", mini=50, large=58)
    names = [str(a), f"{b}@mini", f"{b}@large"]

    assert names == [row["name"] for row in printed("compare", a, b, "--baseline", a)["rows"]]
    for baseline in (f"{b}@large", f"{tmp_path}/./b@large"):
        table = printed("compare", a, f"{b}@large", a, "--baseline", baseline)
        assert (names[2], [names[0], names[2]]) == (table["baseline"], [row["name"] for row in table["rows"]])


def test_without_arguments_the_previous_run_is_compared(tmp_path: Path) -> None:
    """The newest run is compared with the one before it of the same evaluation; if it has variants, these are."""
    first = run(tmp_path / "runs" / "capitals" / "0001", none=50)
    assert "only one row" in rejected("compare")
    second = run(tmp_path / "runs" / "capitals" / "0002", none=58)
    pair = printed("compare")
    run(tmp_path / "runs" / "capitals" / "0003", mini=50, large=58)

    assert [str(path.relative_to(tmp_path)) for path in (first, second)] == [pair["a"], pair["b"]]
    assert ["mini", "large"] == [row["name"] for row in printed("compare")["rows"]]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("a",), "only one row: a"),
        (("b@mini",), "only one row: mini"),
        (("a", "b@lage"), "b has no variant 'lage'; its variants: mini, large"),
        (("a@mini", "b"), "a has no variants"),
        (("b", "--baseline", "lage"), "--baseline lage is not a row; the rows: mini, large"),
        (("b", "c"), "c does not exist"),
        (("a", "other"), "no trial in common"),
        (("a", "other", "--baseline", "a"), "no row has a trial in common with a"),
        (("b", "--all"), "--by and --all require exactly two runs"),
    ],
)
def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], problem: str) -> None:
    """The exit code is 2, and the error lists the valid choices."""
    monkeypatch.chdir(tmp_path)
    run(Path("a"), none=50)
    run(Path("b"), mini=50, large=58)
    write_trials(Path("other"), answered("x", {"exact": True}))

    assert problem in rejected("compare", *arguments)


def test_too_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign run may have as many variants as trials."""
    path = run(tmp_path / "run", mini=50, large=58, tiny=30)
    monkeypatch.setattr("evaljournal.runner.cli.commands.compare._MAX_ROWS", 2)

    assert "3 rows; at most 2 can be compared" in evaljournal("compare", path).stderr
    assert 0 == evaljournal("compare", f"{path}@mini", f"{path}@large", "--baseline", "mini").exit_code


def test_a_damaged_run(tmp_path: Path) -> None:
    """What is before the damage is compared; the exit code is 4."""
    path = run(tmp_path / "run", mini=50, large=58)
    flip(segment(path), 30_000)
    result = evaljournal("compare", path)

    assert (4, True, True) == (result.exit_code, "compared with mini" in result.stdout, "up to the damage" in result.stderr)


def test_damage_before_the_first_trial(tmp_path: Path) -> None:
    """The damage is reported, not that the runs have nothing in common."""
    path, damaged = run(tmp_path / "run", none=50), run(tmp_path / "damaged", none=50)
    flip(segment(damaged), 1_500)
    results = [
        evaljournal("compare", damaged, path),
        evaljournal("export", path, "--format", "markdown", "--baseline", damaged, "-o", tmp_path / "summary.md"),
    ]

    assert [4, 4] == [result.exit_code for result in results]


def test_removed_variants_are_not_compared(tmp_path: Path) -> None:
    """A variant whose trials were all withdrawn is neither a row nor the baseline."""
    trials = [answered("c1", {"exact": True}, variant=variant) for variant in ("old", "mini", "large")]
    withdrawn = TrialWithdrawn(trial="c1@old", reason="removed")
    result = evaljournal("compare", write_trials(tmp_path / "run", *trials, [withdrawn]))

    assert (0, False, True) == (result.exit_code, "old" in result.stdout, "compared with mini" in result.stdout)


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that contains an @ comes first; without a run, it is the newest."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "a@b", "runs/capitals/0001", "runs/o@x/0001"):
        run(Path(name), none=1)

    assert [
        RunReference(Path("a@b")),
        RunReference(Path("a"), "c"),
        RunReference(Path("a@b"), "c"),
        RunReference(Path("runs/o@x/0001"), "mini"),
        RunReference(Path("runs/capitals/0001"), "mini"),
        RunReference(Path("runs/o@x/0001")),
        RunReference(Path("runs/o@x/0001"), "mini"),
    ] == [find_reference(name) for name in ("a@b", "a@c", "a@b@c", "@mini", "capitals@mini", "o@x", "o@x@mini")]
    assert "a@b@c" == str(find_reference("a@b@c"))
    with pytest.raises(UsageError, match="nowhere does not exist"):
        find_reference("nowhere@mini")
    assert "this command takes a whole run, not its variant 'c'" in evaljournal("verify", "a@c").stderr


def test_diff_of_variants(tmp_path: Path) -> None:
    """Two variants of a run are compared trial by trial."""
    path = run(tmp_path / "run", mini=50, large=58)
    comparison = printed("compare", f"{path}@mini", f"{path}@large")

    assert ("mini", "large", str(path)) == (comparison["variant_a"], comparison["variant_b"], comparison["b"])
    assert [f"c{number}@large" for number in range(50, 58)] == [change["trial"] for change in comparison["fixed"]]
    text = evaljournal("compare", f"{path}@mini", f"{path}@large").stdout
    assert f"B  {path}@large: capitals, finished, 60 outputs of 60" in text
    assert 2 == evaljournal("compare", path, f"{path}@lage").exit_code


@pytest.mark.parametrize(("variant", "baseline", "code"), [("large", "mini", 0), ("mini", "large", 1)])
def test_gate_of_variants(tmp_path: Path, variant: str, baseline: str, code: int) -> None:
    """A variant is checked against another one."""
    path = run(tmp_path / "run", mini=45, large=60)
    result = evaljournal("gate", f"{path}@{variant}", "--baseline", f"{path}@{baseline}", "--json")
    report = orjson.loads(result.stdout)

    assert (code, variant, baseline) == (result.exit_code, report["run"]["variant"], report["baseline"]["variant"])
    assert COUNT == report["common"]


def test_gate_of_a_variant_against_the_newest_run(tmp_path: Path) -> None:
    """`newest` is the same variant of the newest other run."""
    run(tmp_path / "0001", mini=60, large=10)
    result = evaljournal("gate", f"{run(tmp_path / '0002', mini=60, large=60)}@large", "--baseline", "newest", "--json")
    report = orjson.loads(result.stdout)

    assert (str(tmp_path / "0001"), "large", 0) == (report["baseline"]["path"], report["baseline"]["variant"], result.exit_code)
