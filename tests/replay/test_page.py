"""A page is one file with the numbers of `replay`, the same bytes each time, and no untrusted markup."""

import base64
import gzip
import hashlib
import itertools
import os
import random
import re
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from click.testing import CliRunner, Result

from evaljournal.journal import Event, Record
from evaljournal.journal.errors import InvalidRecord
from evaljournal.journal.events import AttemptStarted, AttemptSucceeded, FileEvent, TrialCompleted
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.page.page import is_page, security_policy
from evaljournal.replay.page.page_columns import columns
from evaljournal.replay.page.page_content import FULL_SIZE, MIN_VALUE_LENGTH, VALUE_LENGTH, Content, value_length
from evaljournal.replay.page.page_text import visible_text
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.runs.loaded_run import LoadedRun, load
from evaljournal.runner.cli import cli
from tests.journal.samples import (
    complete_run,
    content,
    enqueued,
    flip,
    forge,
    lines_of,
    opened,
    segment,
    session,
    started,
    trial,
    write_sync,
)
from tests.replay.eventful_run import LARGE, eventful_run
from tests.replay.random_runs import random_records
from tests.replay.trial_events import answered

PAGE = Path(__file__).parents[2] / "evaljournal" / "replay" / "page"


def report(*args: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(cli, ["report", *map(str, args)])


def page_data(file: Path) -> Any:
    """Return the data that is embedded in a page."""
    match = re.search(rb'id="data">([^<]*)</script>', file.read_bytes())
    assert match is not None
    return orjson.loads(gzip.decompress(base64.b64decode(match[1])))


def data_of(file: Path) -> Any:
    """Return the data of the run that is embedded in a page."""
    (run_data,) = page_data(file)["runs"]
    return run_data


def test_page_agrees_with_replay(tmp_path: Path) -> None:
    """The summary and the series of a page are those of `replay`."""
    run = eventful_run(tmp_path / "run")
    assert 0 == report(run, "-o", tmp_path / "report.html").exit_code

    run_data = data_of(tmp_path / "report.html")
    assert orjson.loads(orjson.dumps(attrs.asdict(summarize(load(run).state)))) == run_data["summary"]
    assert ("stopped", 50, 50) == (run_data["status"], run_data["columns"]["seq"], len(run_data["columns"]["events"]["t"]))
    limits = load(run).timeline().points("limit")
    assert [value for _, value, _ in limits if value] == list(_cumulative(run_data["columns"]["series"]["limit"]["value"]))


def _cumulative(deltas: list[int]) -> list[int]:
    total, values = 0, []
    for delta in deltas:
        total += delta
        values.append(total)
    return values


def test_values_at_one_time_are_merged(tmp_path: Path) -> None:
    """If an attempt starts at the time at which another ends, the number in flight does not drop."""
    a = AttemptSucceeded(trial="a", attempt=1, output="x", elapsed=1.0)
    events: list[Event] = [started(), session(), enqueued("a"), enqueued("b")]
    events += [AttemptStarted(trial="a", attempt=1, slot=0), a]
    events += [AttemptStarted(trial="b", attempt=1, slot=0), TrialCompleted(trial="a", attempts=1)]
    times = iter([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 3.0, 4.0, 5.0])
    write_sync(tmp_path / "run", events, clock=lambda: ("2026-11-15T00:00:00.000000Z", next(times)))

    page_content = Content()
    loaded = load(tmp_path / "run", apply=page_content.apply)

    flight = {name: list(column) for name, column in columns(page_content, loaded.state)["series"]["in_flight"]().items()}
    assert ([0, 1, 1], [0, 1_000_000, 2_000_000]) == (_cumulative(flight["value"]), _cumulative(flight["t"]))


def _trials(run: Path, size: int = 0) -> dict[str, list[Any]]:
    """Return the columns of trials of a journal with this size."""
    page_content = Content(size)
    loaded = load(run, apply=page_content.apply)
    return {name: list(column) for name, column in columns(page_content, loaded.state)["trials"].items()}


def test_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    """Two reports of a run are equal, and the run is not changed."""
    run = eventful_run(tmp_path / "run")
    before = content(run)

    assert [0, 0] == [report(run, "-o", tmp_path / name).exit_code for name in ("one.html", "two.html")]

    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert before == content(run)


def test_policy_allows_only_our_scripts_and_styles(tmp_path: Path) -> None:
    """The policy allows each script and style of the page by its hash, and no source and no connection."""
    report(eventful_run(tmp_path / "run"), "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()

    allowed = set(re.findall(r"'sha256-([^']+)'", page[: page.index("<title>")]))
    parts = re.findall(r"<(?:script|style)(?: id=\"dark\"[^>]*)?>(.*?)</(?:script|style)>", page, re.DOTALL)
    assert allowed == {base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts}
    assert "default-src 'none'" in security_policy(connect="'none'")
    assert not re.search(r"unsafe|https?:|\*", security_policy(connect="'none'"))


def test_scripts_create_no_markup_from_text() -> None:
    """No script uses an API that turns text into elements or code."""
    scripts = [file for file in PAGE.glob("*.js") if not file.name.startswith("uPlot")]

    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|setHTML"
    assert len(scripts) > 1
    assert [] == [file.name for file in scripts if re.search(forbidden, file.read_text())]
    assert [] == [file.name for file in PAGE.iterdir() if file.suffix in {".js", ".css"} and "</s" in file.read_text()]


@pytest.mark.parametrize("sheets", [("page.css",), ("page.css", "dark.css")])
def test_contrast(sheets: tuple[str, ...]) -> None:
    """Text has the contrast of WCAG AA, on bars too; bars have the contrast required of graphics."""
    colors: dict[str, str] = {}
    for sheet in sheets:
        colors |= re.findall(r"--([\w-]+): (#[0-9a-f]{6})", (PAGE / sheet).read_text())
    pale = {"end-open", "end-succeeded", "end-rate-limited"}
    outcomes = {name for name in colors if name.startswith("end-")}

    pairs = [(name, ground) for name in ("ink", "soft", "faint", "accent", "bad", "pace") for ground in ("ground", "raised")]
    pairs += [(name, "accent-soft") for name in ("ink", "soft", "accent", "bad")]  # On the selected row.
    pairs += [(name, ground) for name in ("better", "worse") for ground in ("ground", "raised")]
    pairs += [("ink", "added"), ("ink", "removed"), ("ink", "differs")]  # Marked words.
    pairs += [(name, "worse-soft") for name in ("ink", "soft", "worse")]  # In the cells of the grid.
    pairs += [("on-pale" if name in pale else "on-bar", name) for name in outcomes - {"end-interrupted"}]
    assert [] == [pair for pair in pairs if _contrast(*(colors[name] for name in pair)) < 4.5]
    assert [] == [name for name in outcomes if _contrast(colors[name], colors["ground"]) < 3]


def _contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colors as defined by WCAG."""

    def luminance(color: str) -> float:
        parts = [int(color[index : index + 2], 16) / 255 for index in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def test_vendored_files_are_unchanged() -> None:
    """The vendored library has its license and the recorded hashes."""
    for line in (PAGE / "uPlot.sha256").read_text().splitlines():
        expected, name = line.split()

        assert expected == hashlib.sha256((PAGE / name).read_bytes()).hexdigest()
    assert "The MIT License" in (PAGE / "uPlot.LICENSE").read_text()


def test_large_values_are_truncated(tmp_path: Path) -> None:
    """A page has the beginning and the length of a value in a blob."""
    report(eventful_run(tmp_path / "run"), "-o", tmp_path / "report.html")

    run_data = data_of(tmp_path / "report.html")
    trials = run_data["columns"]["trials"]
    output = trials["output"][trials["name"].index("oslo")]
    assert {"beginning": LARGE[:VALUE_LENGTH], "bytes": len(LARGE) + 2} == output


@pytest.mark.skipif(os.name == "nt", reason="needs hard links")
@pytest.mark.parametrize("is_link", [False, True])
def test_a_missing_blob(tmp_path: Path, *, is_link: bool) -> None:
    """Of a missing blob a page has the length, and nothing of a private file that a foreign run has a hard link to instead."""
    run = eventful_run(tmp_path / "run")
    (tmp_path / "private").write_text("sesame" * 1_000)
    for blob in run.glob("blobs/*/*.json"):
        blob.unlink()
        if is_link:
            os.link(tmp_path / "private", blob)
    assert 0 == report(run, "-o", tmp_path / "report.html").exit_code

    assert {"beginning": "", "bytes": len(LARGE) + 2} in data_of(tmp_path / "report.html")["columns"]["trials"]["output"]
    assert "sesame" not in (tmp_path / "report.html").read_text()


def test_truncation_within_an_escape(tmp_path: Path) -> None:
    """A large text is truncated between two characters, wherever its JSON has escapes."""
    for text in ('"' * 300_000, "\n" * 300_000, "a" + "\\" * 300_000, "\x00" * 100_000, "é" * 200_000, "\U0001f600" * 90_000):
        run = tmp_path / hashlib.sha256(text.encode()).hexdigest()[:8]
        write_sync(run, [started(), session(), *trial("a", text)])

        (output,) = _trials(run)["output"]
        assert isinstance(output, dict)
        assert output["beginning"]
        assert text.startswith(output["beginning"])


@pytest.mark.parametrize(("size", "length"), [(1 << 20, 100_000), (FULL_SIZE // 2, 2 * VALUE_LENGTH), (0, VALUE_LENGTH)])
def test_values_of_small_journals_are_complete(size: int, length: int, tmp_path: Path) -> None:
    """A value in a record is complete on the page of a small journal, and shortened the more, the larger the journal is."""
    write_sync(tmp_path / "run", [started(), session(), enqueued("a", "x" * 100_000)])

    (value,) = _trials(tmp_path / "run", size)["input"]
    assert length == len(visible_text(value))


@pytest.mark.parametrize(
    ("size", "trials", "length"),
    [
        (FULL_SIZE, 0, VALUE_LENGTH),
        (4 * FULL_SIZE, 0, VALUE_LENGTH // 4),
        (10_000 * FULL_SIZE, 0, MIN_VALUE_LENGTH),
        (FULL_SIZE, 1_000_000, VALUE_LENGTH),
        (4 * FULL_SIZE, 1_000_000, FULL_SIZE // 1_000_000),
        (4 * FULL_SIZE, 1_000_000_000, MIN_VALUE_LENGTH),
    ],
)
def test_pages_of_large_journals_have_shorter_values(size: int, trials: int, length: int) -> None:
    """The larger a journal and the more trials it has, the shorter are its values; a small one is shown in full."""
    assert length == value_length(size, trials)


@pytest.mark.parametrize("planned", [0, 64])
def test_values_of_many_trials(planned: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are shorter the more trials there are, whether or not their number was known."""
    monkeypatch.setattr("evaljournal.replay.page.page_content.FULL_SIZE", 6_400)
    events = [enqueued(f"t{number}", "x" * 1_000) for number in range(64)]
    start = attrs.evolve(started(), trials=planned)  # type: ignore[misc]  # an event is an attrs class
    write_sync(tmp_path / "run", [start, session(), *events])

    assert [{"beginning": "x" * 100, "length": 1_000}] * 64 == _trials(tmp_path / "run", 12_800)["input"]


def test_report_replaces_only_a_report(tmp_path: Path) -> None:
    """An earlier report is replaced; any other file, a directory and a run are not."""
    run = eventful_run(tmp_path / "run")
    target, other_file = tmp_path / "report.html", tmp_path / "mine.html"
    other_file.write_text("<p>mine</p>")

    assert [0, 0] == [report(run, "-o", target).exit_code, report(run, "-o", target).exit_code]
    rejected = report(run, "-o", other_file)
    assert (2, "<p>mine</p>") == (rejected.exit_code, other_file.read_text())
    assert f"{other_file} exists; pass --force to replace it" in rejected.output
    assert 2 == report(run, "-o", run / "report.html").exit_code
    assert 2 == report(run, "-o", tmp_path).exit_code
    assert 2 == report(run, "-o", tmp_path / "nowhere" / "report.html").exit_code
    assert 0 == report(run, "-o", other_file, "--force").exit_code
    assert is_page(other_file)


def test_directory_without_a_journal(tmp_path: Path) -> None:
    """Both commands reject a directory without a journal and write nothing."""
    for command in (["report", str(tmp_path), "-o", str(tmp_path / "report.html")], ["view", str(tmp_path)]):
        result = CliRunner().invoke(cli, command)

        assert (2, "") == (result.exit_code, result.stdout)
        assert "Error:" in result.stderr
    assert [] == list(tmp_path.iterdir())


def test_damaged_run(tmp_path: Path) -> None:
    """A damaged run is shown up to the damage, with a warning and exit code 4."""
    run = eventful_run(tmp_path / "run")
    flip(segment(run), len(b"".join(lines_of(run)[:20])) + 30)

    result = report(run, "-o", tmp_path / "report.html")

    run_data = data_of(tmp_path / "report.html")
    assert (4, "damaged", 20) == (result.exit_code, run_data["status"], run_data["columns"]["seq"])
    assert f"evaljournal verify {run}" == run_data["next_command"]
    assert "shown up to the damage" in result.stderr


def test_headline_has_the_scorer_with_passes(tmp_path: Path) -> None:
    """The headline has the first scorer with passes, even if a label or a number was recorded before."""
    events = answered("peru", {"tone": "polite", "length": 3.5, "exact": True})
    write_sync(tmp_path / "run", [started(), session(), *events])

    report(tmp_path / "run", "-o", tmp_path / "report.html")

    run_data = data_of(tmp_path / "report.html")
    assert "1 trial done, 100.0 % exact, no errors." == run_data["headline"].partition(". ")[2]


@pytest.mark.parametrize("seed", range(6))
def test_illegal_events(seed: int, tmp_path: Path) -> None:
    """A journal with correct hashes and illegal events is shown up to the first illegal one."""
    rng = random.Random(seed)
    events = [record.event for record in random_records(seed, 120) if not isinstance(record.event, FileEvent)]
    for _ in range(5):
        first, second = rng.randrange(len(events)), rng.randrange(len(events))
        events[first], events[second] = events[second], events[first]
    run = forge(tmp_path / "run", [opened(), *events])

    result = report(run, "-o", tmp_path / "report.html")

    run_data = data_of(tmp_path / "report.html")
    assert result.exit_code in {0, 4}
    assert (4 if run_data["status"] == "damaged" else 0) == result.exit_code
    assert len(run_data["columns"]["events"]["t"]) == run_data["columns"]["seq"] <= len(events) + 1


def test_record_that_raises(tmp_path: Path) -> None:
    """A record at which `apply` raises is named as the problem, and loading ends there."""
    write_sync(tmp_path / "run", complete_run())

    def apply(run: LoadedRun, record: Record) -> None:
        run.apply(record)
        if record.seq == 7:
            raise KeyError("seven")

    loaded = load(tmp_path / "run", apply=apply)

    assert isinstance(loaded.problem, InvalidRecord)
    assert "record 7" in str(loaded.problem)
    assert 7 == loaded.seq


def test_nothing_in_common(tmp_path: Path) -> None:
    """Two runs without a common trial are rejected, and nothing is written."""
    for name in ("a", "b"):
        write_sync(tmp_path / name, [started(), session(), *trial(f"only-{name}")])

    result = report(tmp_path / "a", tmp_path / "b", "-o", tmp_path / "report.html")

    assert (2, False) == (result.exit_code, (tmp_path / "report.html").exists())
    assert "no trial in common" in result.stderr


def chat_run(path: Path) -> Path:
    """Write a run of two variants of a chat model."""
    tasks = {name: {"name": "chat", "model": f"{name}-model", "temperature": 0.2} for name in ("big", "small")}
    variants = {name: {"parameters": {"chat": f"{name}-model"}, "task": task} for name, task in tasks.items()}
    start = evolve_fact(started(), definition={"task": tasks["big"], "variants": variants})
    trials = [answered("peru", variant=name) for name in tasks]
    write_sync(path, [start, session(), *itertools.chain.from_iterable(trials)])
    return path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("run@big run@small", {"model": ["big-model", "small-model"], "temperature": ["0.2", "0.2"]}),
        ("run other", {"temperature": ["0.2", "0.2"]}),
    ],
)
def test_the_sides_of_a_comparison_have_the_task_that_was_used(
    tmp_path: Path, arguments: str, expected: dict[str, list[str]]
) -> None:
    """The model of a variant is its own, not that of the first; a run of several variants has what they have in common."""
    for name in ("run", "other"):
        chat_run(tmp_path / name)
    result = report(*(tmp_path / argument for argument in arguments.split()), "-o", tmp_path / "report.html")

    assert 0 == result.exit_code, result.output
    facts = {fact["name"]: [fact["a"], fact["b"]] for fact in page_data(tmp_path / "report.html")["comparison"]["facts"]}
    assert expected == {name: values for name, values in facts.items() if name in {"model", "temperature"}}


def test_open_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--open` opens the file in a browser; without it nothing is opened."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    write_sync(tmp_path / "run", complete_run())

    report(tmp_path / "run", "-o", tmp_path / "one.html")
    report(tmp_path / "run", "-o", tmp_path / "two.html", "--open")

    assert [(tmp_path / "two.html").as_uri()] == opened
