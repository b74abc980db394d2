"""`report --all`: one page with all runs, their trend with intervals, and links to their reports."""

import os
import shlex
from pathlib import Path
from urllib.parse import unquote

import attrs
import pytest
from click.testing import CliRunner

from evaljournal.journal import Event
from evaljournal.replay.text import money
from evaljournal.runner.cli import cli
from evaljournal.runner.cli.commands import report as report_command
from tests.browser.conftest import OpenTab, Tab
from tests.browser.pages import write_report
from tests.browser.test_report_page import HOSTILE
from tests.journal.samples import finished, flip, segment, session, started, write_sync
from tests.replay.trial_events import answered


def write_index(target: Path, directory: Path) -> str:
    """Write the page with the command; return its address."""
    result = CliRunner().invoke(cli, ["report", "--all", str(directory), "-o", str(target)], catch_exceptions=False)
    assert 0 == result.exit_code, result.output
    return target.as_uri()


def run(path: Path, passed: int, *, variants: tuple[str, ...] = ("",), git: str = "8ac6b06f", name: str = "capitals") -> Path:
    """Write a run of ten cases of which the first `passed` pass."""
    events: list[Event] = [
        event
        for variant in variants
        for at in range(10)
        for event in answered(f"case-{at}", {"exact": at < passed}, variant=variant, usage={"cost": 0.25})
    ]
    start = attrs.evolve(started(), evaluation=name, environment={"git": git})  # type: ignore[misc]  # an event is an attrs class
    write_sync(path, [start, session(), *events, finished(10)])
    return path


def rows(tab: Tab) -> list[list[str]]:
    """Return the cells of the first table."""
    script = "() => [...document.querySelector('.runs tbody').rows].map(row => [...row.cells].map(cell => cell.textContent))"
    cells: list[list[str]] = tab.evaluate(script)
    return [[text.replace("\u00a0", " ") for text in row] for row in cells]


def test_all_runs_on_one_page(tmp_path: Path, open_tab: OpenTab) -> None:
    """Each run has a row, the newest first, and a dot with a whisker in the trend; nothing is requested."""
    for number, passed in enumerate((10, 7, 8), start=1):
        run(tmp_path / "runs" / "capitals" / f"000{number}", passed, git=f"{number}ac6b06f")
    address = write_index(tmp_path / "index.html", tmp_path / "runs")
    tab = open_tab(address)

    assert ([], [address]) == (tab.messages, tab.requests)
    assert "1 evaluation, 3 runs" == tab.text("h1")
    assert [f"{tmp_path}/runs/capitals/000{number}"[-80:] for number in (3, 2, 1)] == [row[0][-80:] for row in rows(tab)]
    assert ["3ac6b06", "10", "80.0 % (49.0–94.3)", "0.25 s", money(2.5), ""] == rows(tab)[0][2:-1]
    assert [
        "revision 2ac6b06 → 3ac6b06fixed (1): case-7",
        "revision 1ac6b06 → 2ac6b06broken (3): case-7, case-8, case-9",
        "",
    ] == [row[-1] for row in rows(tab)]
    assert (3, 3) == (len(tab.texts(".trend .dot")), len(tab.texts(".trend .whisker")))
    assert ["broken: 2 cases", "fixed: 1 case"] == tab.texts("summary")
    assert ["✓✗✓ case-7"] == [text.split(" since ")[0] for text in tab.texts("[data-kind=fixed] li")]
    heights = tab.evaluate("() => [...document.querySelectorAll('.dot')].map(dot => Number(dot.getAttribute('cy')))")
    assert heights[0] < heights[2] < heights[1]


def test_words_of_the_table_are_whole(tmp_path: Path, open_tab: OpenTab) -> None:
    """At 1,300 pixels, no word of the table of runs is broken, except in the paths."""
    for number, passed in enumerate((10, 7), start=1):
        run(tmp_path / "runs" / "capitals" / f"000{number}", passed, variants=("mini", "large"), git=f"{number}ac6b06f")
    tab = open_tab(write_index(tmp_path / "index.html", tmp_path / "runs"), width=1300)

    broken_words = """() => {
      const texts = document.evaluate("//table//th//text() | //td[position() > 1]//text()", document, null, 7);
      return Array.from({ length: texts.snapshotLength }, (_, index) => texts.snapshotItem(index)).flatMap((text) =>
        [...text.data.matchAll(/[\\p{L}\\d]+/gu)].filter(({ 0: word, index }) => {
          const range = document.createRange();
          range.setStart(text, index);
          range.setEnd(text, index + word.length);
          return range.getClientRects().length > 1;
        }).map(([word]) => word));
    }"""
    assert [] == tab.evaluate(broken_words)
    assert tab.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_a_series_for_each_variant(tmp_path: Path, open_tab: OpenTab) -> None:
    """Variants have rows and lines of their own, and a legend."""
    for number in (1, 2):
        run(tmp_path / "runs" / f"{number}", 5 + number, variants=("mini", "large"))
    tab = open_tab(write_index(tmp_path / "index.html", tmp_path / "runs"))

    assert ["mini", "large"] == tab.texts(".series li")
    assert 2 == len(tab.texts(".trend .mean"))
    assert 4 == len(set(tab.evaluate("() => [...document.querySelectorAll('.dot')].map(dot => dot.getAttribute('cx'))")))
    assert ["large", "mini", "large", "mini"] == [row[1] for row in rows(tab)]


def test_links_to_reports(tmp_path: Path, open_tab: OpenTab) -> None:
    """A run is linked if its report is next to the page; a file that is not a report is not linked."""
    first, _, third = (run(tmp_path / "runs" / "capitals" / name, 5) for name in ("1", "2", "a b?#%"))
    site = tmp_path / "site"
    site.mkdir()
    write_report(site / "capitals-1.html", first)
    (site / "capitals-2.html").write_text("<p>mine</p>")
    write_report(site / "capitals-a b?#%.html", third)
    tab = open_tab(write_index(site / "index.html", tmp_path / "runs"))
    links = dict(zip(tab.texts(".runs a"), tab.evaluate("() => [...document.links].map(link => link.href)"), strict=True))

    assert {str(first)[-119:], str(third)[-119:]} == {name[-119:] for name in links}
    assert {site / "capitals-1.html", site / "capitals-a b?#%.html"} == {
        Path(unquote(link.removeprefix("file://"))) for link in links.values()
    }
    tab.page.click(".runs a >> nth=0")
    tab.page.wait_for_selector("main:not([aria-busy]) #summary")


def test_what_changed_since_the_previous_run(tmp_path: Path, open_tab: OpenTab) -> None:
    """The row of a run has what changed and which cases broke; one click opens the report of both runs, which repeats it."""
    runs = [
        run(tmp_path / "runs" / "capitals" / f"000{number}", passed, git=str(number)) for number, passed in ((1, 9), (2, 7))
    ]
    write_report(tmp_path / "capitals-0001--capitals-0002.html", *runs)
    tab = open_tab(write_index(tmp_path / "index.html", tmp_path / "runs"))

    assert "revision 1 → 2broken (2): case-7, case-8trial by trial" == rows(tab)[0][-1]
    assert f"Trial by trial: {shlex.join(['evaljournal', 'report', *map(str, runs)])}" == tab.text(".command")
    tab.page.click("text=trial by trial >> nth=0")
    tab.page.wait_for_selector("main:not([aria-busy]) #summary")
    assert ["changed: revision 1 → 2", "broken (2): case-7, case-8"] == tab.texts("#since > span")
    assert tab.evaluate("() => document.getElementById('since').getBoundingClientRect().bottom < innerHeight")


def test_a_report_has_what_changed_since_the_previous_run(
    tmp_path: Path, open_tab: OpenTab, open_report: OpenTab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of a run names the previous run, the change of the score and of the definition, and the cases, which it opens.

    A run of another evaluation, a later one and a damaged one are not the previous run. Large runs are not compared.
    """
    monkeypatch.chdir(tmp_path)
    paths = [Path("runs") / f"000{number}" for number in (1, 2, 3)]
    for number, passed in enumerate((9, 7, 10)):
        run(paths[number], passed, git=str(number))
    run(Path("runs/0001-other"), 1, name="rivers")
    flip(segment(run(Path("runs/0001-damaged"), 1)), 3_000)
    addresses = [write_report(tmp_path / f"{path.name}.html", path) for path in paths]
    tab = open_tab(addresses[1])

    assert [
        "Since the previous run, runs/0001: exact 90.0 % → 70.0 %",
        "changed: revision 0 → 1",
        "broken (2): case-7, case-8",
        "trial by trial: evaljournal report runs/0001 runs/0002",
    ] == tab.texts("#since > span")
    tab.page.click("#since [data-kind=broken] button >> nth=1")
    assert "case-8" in tab.text("#drawer")
    assert 0 == open_tab(addresses[0]).page.locator("#since").count()
    monkeypatch.setattr(report_command, "FULL_SIZE", 1_000)
    assert 0 == open_report(paths[1]).page.locator("#since").count()


def test_damaged_runs_are_listed(tmp_path: Path, open_tab: OpenTab) -> None:
    """A damaged run has a row that reports the damage; the others are shown."""
    for number in (1, 2, 3):
        run(tmp_path / "runs" / f"{number}", 5)
    flip(segment(tmp_path / "runs" / "2"), 3_000)
    tab = open_tab(write_index(tmp_path / "index.html", tmp_path / "runs"))

    assert ["", "damaged", ""] == [row[-2] for row in rows(tab)]
    assert 2 == len(tab.texts(".trend .dot"))


def test_no_runs(tmp_path: Path, open_tab: OpenTab) -> None:
    """The page of a directory without runs states that there are none."""
    (tmp_path / "runs").mkdir()
    tab = open_tab(write_index(tmp_path / "index.html", tmp_path / "runs"))

    assert ([], "No runs.") == (tab.messages, tab.text(".nothing"))


def test_hostile_names(tmp_path: Path, open_tab: OpenTab) -> None:
    """Names of evaluations, runs, variants, cases, scorers and revisions are shown as text, and nothing in them is executed."""
    for number, text in enumerate(text[:20_000] for text in HOSTILE):
        name = text[:60].replace("/", "⁄").replace("\0", "")
        for part in ("a", "b"):
            events = [
                *answered(text, {text: part == "a"}, variant=text[:200]),
                *answered("x", {text: True}, variant=text[:200]),
            ]
            start = attrs.evolve(started(), evaluation=text, environment={"git": text})  # type: ignore[misc]  # an event is an attrs class
            write_sync(tmp_path / "runs" / f"{number}{part}" / name, [start, session(), *events, finished(2)])
        report = tmp_path / f"{number}a-{name}.html"
        if len(os.fsencode(report.name)) < 200:
            write_report(report, tmp_path / "runs" / f"{number}a" / name)
    address = write_index(tmp_path / "index.html", tmp_path / "runs")
    tab = open_tab(address)

    assert ([], [address]) == (tab.messages, tab.requests)
    assert tab.evaluate("() => window.pwned") is None
    assert f"{len(HOSTILE)} evaluations, {2 * len(HOSTILE)} runs" == tab.text("h1")
    assert 2 * len(HOSTILE) == len(tab.texts("[data-run]"))
    assert [] == tab.evaluate(
        "() => [...document.querySelectorAll('main :is(script, img, style, iframe, textarea)')].map(x => x.tagName)"
    )
    assert {"file:"} == set(tab.evaluate("() => [...document.links].map(link => link.protocol)"))
    assert not {"\u202e", "\x1b", "\ufeff"} & set("".join(tab.texts("main")))
    width: int = tab.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert 0 == width
