"""`history` and `ls`: what they print, which runs they find, and their cache of digests."""

import os
from pathlib import Path
from typing import Any

import pytest

from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.ownership import state_directory
from evaljournal.replay import LoadedRun
from evaljournal.runner.cli import digests as _digests
from evaljournal.runner.cli.terminal.display import open_run
from tests.journal.samples import flip, segment, session, started, write_sync, write_trials
from tests.replay.trial_events import answered
from tests.runner_cli.commands import evaljournal, printed, rejected


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start with an empty cache."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(name: str, passed: int, *, n: int = 4, evaluation: str = "capitals") -> Path:
    """Write a run of `n` trials under runs/, of which the first `passed` pass, with a task of its own."""
    trials = (answered(f"case-{at}", {"exact": at < passed}, usage={"cost": 0.5}) for at in range(n))
    return write_trials(Path("runs") / name, *trials, evaluation=evaluation, task_fingerprint=name)


def cache_files() -> list[Path]:
    return sorted((state_directory() / "digests").glob("*"))


def test_history_prints_the_runs() -> None:
    """A line for each run, the sparkline, and the cases that changed."""
    run("capitals/0001", 4), run("capitals/0002", 3)
    lines = evaljournal("history").stdout.splitlines()

    assert "capitals: 2 runs, compared on the 4 cases of runs/capitals/0002" == lines[0]
    assert ["RUN", "STARTED", "GIT", "CASES", "exact", "P95", "COST", "NOTES", "CHANGED"] == lines[1].split()
    assert "runs/capitals/0001  2026-11-15 00:00  -    4      100.0 % (51.0–100.0)  0.25 s  $2.00" == lines[2]
    assert ["exact  █▁  75.0 % to 100.0 %", "broken: 1 case", "  ✓✗  case-3  since runs/capitals/0002"] == lines[4:]


def test_history_printed() -> None:
    """`--json` has every number, and all cases that changed."""
    run("capitals/0001", 4), run("capitals/0002", 3)
    (history,) = printed("history")

    names = ("evaluation", "scorer", "reference", "cases")
    assert ("capitals", "exact", "runs/capitals/0002", 4) == tuple(history[name] for name in names)
    assert [(1.0, 4, 2.0), (0.75, 4, 2.0)] == [
        (point["score"]["mean"], point["common"], point["cost"]) for point in history["points"]
    ]
    assert {32} == {len(point["head"]) for point in history["points"]}
    assert [{"case": "case-3", "variant": "", "outcomes": "pf", "since": "runs/capitals/0002"}] == history["broken"]


def test_which_runs_are_shown(tmp_path: Path) -> None:
    """The argument is a directory under runs/, any directory, or the name of an evaluation; the default is all runs."""
    run("capitals/0001", 4), run("mine", 4), run("rivers/0001", 4, evaluation="rivers of the world")

    assert ["capitals", "rivers of the world"] == [history["evaluation"] for history in printed("history")]
    assert [["runs/capitals/0001"]] == [history["runs"] for history in printed("history", "capitals")]
    assert [["runs/rivers/0001"]] == [history["runs"] for history in printed("history", "rivers of the world")]
    assert [[str(tmp_path / "runs/rivers/0001")]] == [
        history["runs"] for history in printed("history", tmp_path / "runs/rivers")
    ]
    assert [["runs/mine"]] == [
        history["runs"] for history in printed("history", "--last", "1", "runs") if history["evaluation"] == "capitals"
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["capitols"], "no evaluation 'capitols' under runs/, and no such directory; did you mean 'capitals'?"),
        (["--score", "exat"], "no run has a numeric score 'exat'; did you mean 'exact'?"),
        (["--last", "0"], "0 is not in the range x>=1"),
    ],
)
def test_wrong_arguments(arguments: list[str], problem: str) -> None:
    """A wrong argument is an error with exit code 2; a wrong name has a suggestion."""
    run("capitals/0001", 4)

    assert problem in rejected("history", *arguments)


def test_no_runs() -> None:
    """Without runs, the hint is on standard error, and the exit code is 0, as that of `ls`."""
    result = evaljournal("history")

    assert (0, "") == (result.exit_code, result.stdout)
    assert "no runs under runs/" in result.stderr
    assert [] == printed("history")


def test_only_shards() -> None:
    """Shards are not shown, but the hint names the command that merges them."""
    write_trials(Path("runs/capitals/0001-1of2"), answered("case-1", {"exact": True}), shard="1/2")

    for argument in ((), ("capitals",)):
        result = evaljournal("history", *argument)
        assert (0, "", True) == (result.exit_code, result.stdout, "only shards under runs" in result.stderr)
        assert "evaljournal merge" in result.stderr


def test_a_damaged_run_does_not_hide_the_others() -> None:
    """A damaged run is listed as such, whether the damage is in its first record or later; the others are shown."""
    run("capitals/0001", 4)
    flip(segment(run("capitals/0002", 4)), 3_000)
    segment(run("capitals/0003", 4)).write_bytes(b"not a journal\n")
    (history,) = printed("history")

    assert {"runs/capitals/0001": "finished", "runs/capitals/0002": "damaged", "runs/capitals/0003": "damaged"} == {
        point["path"]: point["status"] for point in history["points"]
    }
    assert ["runs/capitals/0001"] == history["runs"]
    assert [4, 0, 0] == [point["common"] for point in sorted(history["points"], key=lambda point: str(point["path"]))]
    assert 1 == len(cache_files())


def test_ls_shows_score_cost_and_duration() -> None:
    """The first score, the cost and the duration of each run."""
    run("capitals/0001", 3)
    (entry,) = printed("ls")
    header, line = evaljournal("ls").stdout.splitlines()

    assert (2.0, 0.75) == (entry["cost"], entry["variants"][0]["scores"]["exact"]["mean"])
    assert ["OUTPUTS", "ERRORS", "TRIALS", "SCORE", "COST", "DURATION", "ENDED", "CHANGED"] == header.split()[3:]
    assert "  4        0       4       exact 75.0 %  $2.00  24 ms     finished" in line


def test_ls_shows_what_changed() -> None:
    """Each run is compared with the one of the same evaluation before it, even if another evaluation ran in between."""
    changes: list[dict[str, Any]] = [{}, {"evaluation": "other"}, {"task_fingerprint": "t2", "scorers": {"exact": "v2"}}]
    for number, fields in enumerate(changes):
        write_trials(Path(f"runs/{number}"), answered("peru", {"exact": True}), **fields)

    assert [[], [], ["task", "scorer exact"]] == [entry["changed"] for entry in printed("ls")]
    assert evaljournal("ls").stdout.endswith("finished  task, scorer exact\n")


def test_ls_shows_the_range_over_variants() -> None:
    """A run with variants has the smallest and the largest mean of its first score."""
    trials = (answered("peru", {"exact": variant != "mini"}, variant=variant) for variant in ("mini", "large", "huge"))
    write_trials(Path("runs/a"), *trials)

    assert "exact 0.0 % to 100.0 %" in evaljournal("ls").stdout
    assert ["mini", "large", "huge"] == [variant["variant"] for variant in printed("ls")[0]["variants"]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list of the runs that are read from their journals."""
    paths: list[Path] = []

    def open_and_record(path: Path) -> LoadedRun:
        paths.append(path)
        return open_run(path)

    monkeypatch.setattr(_digests, "open_run", open_and_record)
    return paths


@pytest.mark.parametrize(("command", "other"), [("ls", "history"), ("history", "ls")])
def test_a_run_is_read_once(opened: list[Path], command: str, other: str) -> None:
    """The second listing reads no journal, and neither does the other command; it prints the same."""
    paths = [run("capitals/0001", 4), run("capitals/0002", 3)]
    first = evaljournal(command).stdout

    assert paths == opened
    assert first == evaljournal(command).stdout
    evaljournal(other)
    assert paths == opened


def test_ls_does_not_read_a_large_run(opened: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are in the last record; score and cost are listed once `history` has read the run. An unfinished run is read."""
    monkeypatch.setattr(_digests, "_MAX_READ_BYTES", 1_000)
    path = run("capitals/0001", 3)
    unfinished = Path("runs/capitals/0002")
    write_sync(unfinished, [started(), session(), *answered("peru", {"exact": True})])
    large, small = printed("ls")

    assert [unfinished] == opened
    assert ("capitals", "finished", 4, None, []) == tuple(
        large[key] for key in ("evaluation", "status", "completed", "cost", "variants")
    )
    assert 1.0 == small["variants"][0]["scores"]["exact"]["mean"]
    evaljournal("history")
    assert [unfinished, path] == opened
    assert 2.0 == printed("ls")[0]["cost"]


def test_ls_shows_the_revision_of_a_large_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The git revision of a run that is not read is that of its first record."""
    monkeypatch.setattr(_digests, "_MAX_READ_BYTES", 1_000)
    trials = (answered(f"case-{number}", {"exact": True}) for number in range(9))
    write_trials(Path("runs/large"), *trials, environment={"git": "e" * 40})

    assert [(None, "e" * 40)] == [(run["cost"], run["git"]) for run in printed("ls")]


@pytest.mark.parametrize(
    "adopted",
    [{"scorers": ["a"]}, {"scorers": {"exact": ["a"]}}, {"evaluation": 3, "task": None, "dataset_fingerprint": {}}],
)
@pytest.mark.parametrize("command", ["ls", "history"])
def test_adopted_values_of_the_wrong_type_do_not_hide_the_runs(command: str, adopted: dict[str, Any]) -> None:
    """Of the changes that a foreign run has adopted, those with the type of the old values apply."""
    run("capitals/0001", 3)
    second = evolve_fact(session(2), adopted={**adopted, "task_fingerprint": "t2"})
    write_trials(Path("runs/capitals/0002"), [*answered("peru", {"exact": True}), second])

    assert [["capitals", 4], ["capitals", 1]] == [[entry["evaluation"], entry["completed"]] for entry in printed("ls")]
    assert 0 == evaljournal(command).exit_code


def test_a_changed_run_is_read_again(opened: list[Path]) -> None:
    """Another run at the same path, even one of the same size and time, is read."""
    path = run("capitals/0001", 4)
    status, text = segment(path).stat(), segment(path).read_bytes()
    before = printed("history")[0]["points"][0]
    segment(path).write_bytes(text.replace(b'"value":true', b'"value":null', 1)[: len(text)])
    evaljournal("history")
    assert [path] * 2 == opened  # Its time has changed.
    for file in path.rglob("*"):
        file.unlink()
    path.rmdir()
    run("capitals/0001", 4, evaluation="kapitals")
    os.utime(segment(path), ns=(status.st_atime_ns, status.st_mtime_ns))
    (history,) = printed("history")

    assert (len(text), status.st_mtime_ns) == (segment(path).stat().st_size, segment(path).stat().st_mtime_ns)
    assert "kapitals" == history["evaluation"]
    assert before["head"] != history["points"][0]["head"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda data: data[:-40],
        lambda data: data.replace(b'"mean":0.75', b'"mean":"<b>"'),
        lambda data: data.replace(b'"cases":["case-0",', b'"cases":['),
        lambda data: data.split(b"\n", 1)[0] + b"\n[]\n[]\n",
        lambda data: b"\xff" * len(data),
    ],
)
def test_an_invalid_entry_is_computed_again(opened: list[Path], damage: Any) -> None:
    """A truncated, foreign or damaged entry changes nothing, and is replaced."""
    path = run("capitals/0001", 3)
    expected = printed("history")
    (file,) = cache_files()
    data = file.read_bytes()
    assert damage(data) != data
    file.write_bytes(damage(data))

    assert expected == printed("history")
    assert [path, path] == opened
    assert data == file.read_bytes()


def test_an_entry_of_another_run_is_not_used(opened: list[Path]) -> None:
    """An entry that was moved to the name of another run's is computed again."""
    paths = [run("capitals/0001", 4), run("capitals/0002", 1)]
    expected = printed("history")
    first, second = cache_files()
    second.write_bytes(first.read_bytes())

    assert expected == printed("history")
    assert 3 == len(opened)
    assert set(paths) == set(opened)


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
@pytest.mark.parametrize("is_link", [True, False])
def test_a_cache_that_others_may_change_is_not_used(tmp_path: Path, *, is_link: bool) -> None:
    """Digests are neither read from nor written to a directory that is a symlink or that other users can write to."""
    run("capitals/0001", 4)
    directory = state_directory() / "digests"
    directory.parent.mkdir(parents=True)
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared").chmod(0o755 if is_link else 0o777)
    (directory.symlink_to if is_link else (tmp_path / "prepared").rename)(tmp_path / "prepared" if is_link else directory)
    assert 0 == evaljournal("history").exit_code

    assert [] == cache_files()


def test_the_cache_may_be_missing(opened: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a directory for it, every run is read, and nothing fails."""
    path = run("capitals/0001", 4)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    assert printed("history") == printed("history")
    assert [path, path] == opened


def test_nothing_is_written_beside_the_runs() -> None:
    """The cache is in the user's directory."""
    run("capitals/0001", 4)
    before = sorted(Path("runs").rglob("*"))
    evaljournal("ls"), evaljournal("history")

    assert before == sorted(Path("runs").rglob("*"))
    assert [0o600] == [file.stat().st_mode & 0o777 for file in cache_files()]


def test_old_entries_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache keeps a limited number of entries."""
    monkeypatch.setattr(_digests, "_MAX_ENTRIES", 2)
    for at in range(3):
        run(f"capitals/000{at}", 4)
        evaljournal("ls")
        for age, file in enumerate(sorted(cache_files(), key=lambda file: file.stat().st_mtime_ns)):
            os.utime(file, (age, age))

    assert 2 == len(cache_files())
