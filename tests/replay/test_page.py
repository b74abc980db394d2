"""A page is one file that says what replay says, is the same each time, and carries nothing that could be taken for markup."""

import base64
import gzip
import hashlib
import random
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from journal import Event, Record
from journal.errors import InvalidRecord
from journal.events import AttemptStarted, AttemptSucceeded, FileEvent, TrialCompleted
from replay import LoadedRun, load
from replay.export.page import is_page, policy
from replay.export.page_columns import columns
from replay.export.page_content import FULL_SIZE, MIN_VALUE_LENGTH, VALUE_LENGTH, Content, value_length
from replay.summary import in_json, summarise
from runner.cli import cli
from tests.journal.samples import (
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
    whole_run,
    written,
)
from tests.replay.histories import history
from tests.replay.stories import LARGE, eventful

PAGE = Path(__file__).parents[2] / "replay" / "page"


def report(*args: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(cli, ["report", *map(str, args)])


def data_of(file: Path) -> Any:
    """Open what a page carries."""
    found = re.search(rb'id="data">([^<]*)</script>', file.read_bytes())
    assert found is not None
    return orjson.loads(gzip.decompress(base64.b64decode(found[1])))


def test_page_says_what_replay_says(tmp_path: Path) -> None:
    """The summary, the audit and the steps in a page are those of `replay`; nothing is counted a second time."""
    run = eventful(tmp_path / "run")
    assert 0 == report(run, "-o", tmp_path / "report.html").exit_code

    (told,) = data_of(tmp_path / "report.html")["runs"]
    assert orjson.loads(orjson.dumps(in_json(summarise(load(run).state)))) == told["summary"]
    assert ("stopped", 50, 50) == (told["status"], told["columns"]["seq"], len(told["columns"]["events"]["t"]))
    limits = load(run).timeline().steps("limit")
    assert [value for _, value, _ in limits if value] == list(_summed(told["columns"]["series"]["limit"]["value"]))


def _summed(deltas: list[int]) -> list[int]:
    total, values = 0, []
    for delta in deltas:
        total += delta
        values.append(total)
    return values


def test_steps_that_share_a_moment_are_one(tmp_path: Path) -> None:
    """Where one attempt hands its slot over to the next in the same moment, the number in flight does not fall and rise."""
    a = AttemptSucceeded(trial="a", attempt=1, output="x", elapsed=1.0)
    events: list[Event] = [started(), session(), enqueued("a"), enqueued("b")]
    events += [AttemptStarted(trial="a", attempt=1, slot=0), a]
    events += [AttemptStarted(trial="b", attempt=1, slot=0), TrialCompleted(trial="a", attempts=1)]
    times = iter([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 3.0, 4.0, 5.0])
    written(tmp_path / "run", events, stamp=lambda: ("2026-11-15T00:00:00.000000Z", next(times)))

    content_, history = _taken(tmp_path / "run")

    flight = columns(content_, history.state)["series"]["in_flight"]
    assert ([0, 1, 1], [0, 1_000_000, 2_000_000]) == (_summed(flight["value"]), _summed(flight["t"]))


def _taken(run: Path) -> tuple[Content, Any]:
    taken = Content()

    def take(history: LoadedRun, record: Record) -> None:
        history.take(record)
        taken.take(history, record)

    return taken, load(run, take=take)


def test_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    """Two reports of one run are the same file, and making them changes nothing in the run."""
    run = eventful(tmp_path / "run")
    before = content(run)

    assert [0, 0] == [report(run, "-o", tmp_path / name).exit_code for name in ("one.html", "two.html")]

    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert before == content(run)


def test_policy_names_every_script_and_style(tmp_path: Path) -> None:
    """Each script and style that stands in the page is allowed by its hash, and nothing else is: no source, no connection."""
    report(eventful(tmp_path / "run"), "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()

    allowed = set(re.findall(r"'sha256-([^']+)'", page[: page.index("<title>")]))
    parts = re.findall(r"<(?:script|style)(?: id=\"dark\"[^>]*)?>(.*?)</(?:script|style)>", page, re.DOTALL)
    assert allowed == {base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts}
    assert "default-src 'none'" in policy(connect="'none'")
    assert not re.search(r"unsafe|https?:|\*", policy(connect="'none'"))


def test_no_script_makes_markup_of_text() -> None:
    """No script of ours has a way to make elements out of text, or to run it."""
    ours = [file for file in PAGE.glob("*.js") if not file.name.startswith("uPlot")]

    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|setHTML"
    assert len(ours) > 1
    assert [] == [file.name for file in ours if re.search(forbidden, file.read_text())]
    assert [] == [file.name for file in PAGE.iterdir() if file.suffix in {".js", ".css"} and "</s" in file.read_text()]


@pytest.mark.parametrize("sheets", [("page.css",), ("page.css", "dark.css")])
def test_everything_can_be_read(sheets: tuple[str, ...]) -> None:
    """Letters stand out from the ground as WCAG's AA asks for, those on bars too, and bars as it asks for graphics."""
    colours: dict[str, str] = {}
    for sheet in sheets:
        colours |= re.findall(r"--([\w-]+): (#[0-9a-f]{6})", (PAGE / sheet).read_text())
    pale = {"end-open", "end-succeeded", "end-rate-limited"}
    endings = {name for name in colours if name.startswith("end-")}

    pairs = [(name, ground) for name in ("ink", "soft", "faint", "accent", "bad") for ground in ("ground", "raised")]
    pairs += [("on-pale" if name in pale else "on-bar", name) for name in endings - {"end-interrupted"}]
    assert [] == [pair for pair in pairs if _contrast(*(colours[name] for name in pair)) < 4.5]
    assert [] == [name for name in endings if _contrast(colours[name], colours["ground"]) < 3]


def _contrast(one: str, other: str) -> float:
    """Tell how much lighter one colour is than another, as WCAG counts it."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((light(one), light(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_vendored_files_are_what_they_were() -> None:
    """The library that draws lines stands beside its licence, and is byte for byte what its hashes say."""
    for line in (PAGE / "uPlot.sha256").read_text().splitlines():
        expected, name = line.split()

        assert expected == hashlib.sha256((PAGE / name).read_bytes()).hexdigest()
    assert "The MIT License" in (PAGE / "uPlot.LICENSE").read_text()


def test_large_values_are_cut(tmp_path: Path) -> None:
    """Of a value in a blob a page has the beginning, and how long it is; a blob that is gone is no reason to fail."""
    run = eventful(tmp_path / "run")
    report(run, "-o", tmp_path / "report.html")

    (told,) = data_of(tmp_path / "report.html")["runs"]
    columns = told["columns"]["trials"]
    output = columns["output"][columns["name"].index("oslo")]
    assert {"beginning": LARGE[:VALUE_LENGTH], "length": len(LARGE) + 2} == output

    for blob in run.glob("blobs/*/*.json"):
        blob.unlink()
    assert 0 == report(run, "-o", tmp_path / "report.html").exit_code
    (told,) = data_of(tmp_path / "report.html")["runs"]
    assert {"beginning": "", "length": len(LARGE) + 2} in told["columns"]["trials"]["output"]


def test_cut_through_an_escape(tmp_path: Path) -> None:
    """A large text is cut between two characters, wherever its JSON has escapes."""
    for text in ('"' * 300_000, "\n" * 300_000, "a" + "\\" * 300_000, "\x00" * 100_000, "é" * 200_000, "\U0001f600" * 90_000):
        run = tmp_path / hashlib.sha256(text.encode()).hexdigest()[:8]
        written(run, [started(), session(), *trial("a", text)])

        taken, _ = _taken(run)

        (cut,) = taken.outputs
        assert isinstance(cut, dict)
        assert cut["beginning"]
        assert text.startswith(cut["beginning"])


def test_large_journals_carry_less_of_each_value() -> None:
    """The larger a journal is, the less is carried of each value, down to a few lines."""
    assert [VALUE_LENGTH, VALUE_LENGTH // 4, MIN_VALUE_LENGTH] == [
        value_length(FULL_SIZE),
        value_length(4 * FULL_SIZE),
        value_length(10_000 * FULL_SIZE),
    ]


def test_a_report_replaces_a_report_and_nothing_else(tmp_path: Path) -> None:
    """An earlier report is replaced; any other file, a directory and a run are left alone."""
    run = eventful(tmp_path / "run")
    target, mine = tmp_path / "report.html", tmp_path / "mine.html"
    mine.write_text("<p>mine</p>")

    assert [0, 0] == [report(run, "-o", target).exit_code, report(run, "-o", target).exit_code]
    refused = report(run, "-o", mine)
    assert (2, "<p>mine</p>") == (refused.exit_code, mine.read_text())
    assert f"{mine} exists; nothing was written: --force replaces it" in refused.output
    assert 2 == report(run, "-o", run / "report.html").exit_code
    assert 2 == report(run, "-o", tmp_path).exit_code
    assert 2 == report(run, "-o", tmp_path / "nowhere" / "report.html").exit_code
    assert 0 == report(run, "-o", mine, "--force").exit_code
    assert is_page(mine)


def test_what_is_no_run(tmp_path: Path) -> None:
    """A directory without a journal is refused by both commands, and nothing is written."""
    for command in (["report", str(tmp_path), "-o", str(tmp_path / "report.html")], ["view", str(tmp_path)]):
        result = CliRunner().invoke(cli, command)

        assert (2, "") == (result.exit_code, result.stdout)
        assert "Error:" in result.stderr
    assert [] == list(tmp_path.iterdir())


def test_damage_is_shown_up_to_where_it_is(tmp_path: Path) -> None:
    """A damaged run is shown as far as it can be trusted, says so, and the code is 4."""
    run = eventful(tmp_path / "run")
    flip(segment(run), len(b"".join(lines_of(run)[:20])) + 30)

    result = report(run, "-o", tmp_path / "report.html")

    (told,) = data_of(tmp_path / "report.html")["runs"]
    assert (4, "damaged", 20) == (result.exit_code, told["status"], told["columns"]["seq"])
    assert "shown up to the damage" in result.stderr


@pytest.mark.parametrize("seed", range(6))
def test_what_makes_no_sense_is_shown_up_to_there(seed: int, tmp_path: Path) -> None:
    """A journal whose hashes hold, but whose events could not have happened so, is shown as far as it makes sense."""
    dice = random.Random(seed)
    events = [record.event for record in history(seed, 120) if not isinstance(record.event, FileEvent)]
    for _ in range(5):
        one, other = dice.randrange(len(events)), dice.randrange(len(events))
        events[one], events[other] = events[other], events[one]
    run = forge(tmp_path / "run", [opened(), *events])

    result = report(run, "-o", tmp_path / "report.html")

    (told,) = data_of(tmp_path / "report.html")["runs"]
    assert result.exit_code in {0, 4}
    assert (4 if told["status"] == "damaged" else 0) == result.exit_code
    assert len(told["columns"]["events"]["t"]) == told["columns"]["seq"] <= len(events) + 1


def test_somebody_who_does_not_understand(tmp_path: Path) -> None:
    """Where somebody who looks on cannot make sense of a record, that record is named, and the history ends there."""
    written(tmp_path / "run", whole_run())

    def take(history: LoadedRun, record: Record) -> None:
        history.take(record)
        if record.seq == 7:
            raise KeyError("seven")

    found = load(tmp_path / "run", take=take)

    assert isinstance(found.problem, InvalidRecord)
    assert "record 7" in str(found.problem)
    assert 7 == found.seq


def test_nothing_in_common(tmp_path: Path) -> None:
    """Two runs that have no trial in common are not put beside each other, and nothing is written."""
    for name in ("a", "b"):
        written(tmp_path / name, [started(), session(), *trial(f"only-{name}")])

    result = report(tmp_path / "a", tmp_path / "b", "-o", tmp_path / "report.html")

    assert (2, False) == (result.exit_code, (tmp_path / "report.html").exists())
    assert "no trial in common" in result.stderr


def test_opens_the_browser_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--open` shows the file that was written; without it nothing is opened."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    written(tmp_path / "run", whole_run())

    report(tmp_path / "run", "-o", tmp_path / "one.html")
    report(tmp_path / "run", "-o", tmp_path / "two.html", "--open")

    assert [(tmp_path / "two.html").as_uri()] == opened
