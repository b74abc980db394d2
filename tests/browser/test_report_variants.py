"""The variants of a run on a report: their table, score against cost, the grid of cases, and two runs with variants."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import orjson

from evaljournal.journal import Event, read
from evaljournal.journal.events import AttemptSucceeded, Noted
from evaljournal.replay import LoadedRun
from evaljournal.replay.page.page_columns import PageCursor, encode_json
from evaljournal.replay.state.answers import ANSWER
from evaljournal.runner.runs.page import PageReader
from tests.browser.conftest import OpenTab, Tab
from tests.browser.pages import command_json, write_report
from tests.browser.test_report_page import HOSTILE, assert_harmless
from tests.journal.samples import finished, session, started, write_sync
from tests.replay.trial_events import answered, attempt_started, enqueued, failed

COSTS = {"mini": 0.001, "large": 0.01, "slow": 0.02}
WRONG = {"mini": ("peru", "chad"), "large": ("peru",), "slow": ("peru",)}


def cell(case: str, variant: str, *, passed: bool, **more: Any) -> list[Event]:
    """Return the events of a trial of a variant."""
    output = f"{case} by {variant}"
    return answered(case, {"exact": passed}, variant=variant, output=output, usage={"cost": COSTS.get(variant, 0.1)}, **more)


def three_variants(path: Path) -> Path:
    """Write a run of four cases: `large` is right where `mini` is not in one, and `slow` fails in another."""
    events: list[Event] = []
    for case in ("peru", "chad", "oslo"):
        for variant, wrong in WRONG.items():
            events += cell(case, variant, passed=case not in wrong)
    events += cell("rome", "mini", passed=True) + cell("rome", "large", passed=True) + failed("rome", variant="slow")
    write_sync(path, [started(), session(), *events, enqueued("late", variant="mini")])
    return path


def test_warnings_have_a_tile(tmp_path: Path, open_report: OpenTab) -> None:
    """What makes the results doubtful is in a tile, as the end of the run prints it; without a warning there is none."""
    reply = {"outcome": "truncated", "model": "m"}
    note = Noted(name=ANSWER, value=reply, trial="peru", attempt=1)
    output = AttemptSucceeded(trial="peru", attempt=1, output="", elapsed=0.1)
    tab = open_report([enqueued("peru"), attempt_started("peru"), note, output])
    other_tab = open_report(three_variants(tmp_path / "other"))

    tiles = dict(zip(tab.texts(".tile h3"), tab.texts(".tile"), strict=True))
    assert (
        "warnings11 of 1 output is empty: the token limit was reached before any text; raise --max-tokens" == tiles["warnings"]
    )
    assert "warnings" not in other_tab.texts(".tile h3")


def grid(tab: Tab) -> dict[str, list[str]]:
    """Return the marks in the rows of the grid, by case."""
    script = """() => [...document.querySelectorAll('.body .row')].map(row => [
        row.querySelector('.title').textContent,
        [...row.querySelectorAll('.result')].map(cell => cell.firstChild.textContent),
    ])"""
    return dict(tab.evaluate(script))


def cells(tab: Tab, selector: str) -> list[list[str]]:
    """Return the cells of a table."""
    script = "table => [...document.querySelector(table).tBodies[0].rows].map(row => [...row.cells].map(x => x.innerText))"
    rows: list[list[str]] = tab.evaluate(script, selector)
    return [[text.replace("\u00a0", " ") for text in row] for row in rows]


def test_table_of_variants(tmp_path: Path, open_report: OpenTab) -> None:
    """The table has the figures of `compare`, best, baseline and front are marked, and a name filters the trials."""
    run = three_variants(tmp_path / "run")
    table = command_json("compare", str(run))
    tab = open_report(run)

    names = ["mini", "large", "slow"]
    assert names == tab.texts("table.variants thead .link") == [row["name"] for row in table["rows"]]
    _, mini, _, slow = zip(*cells(tab, "table.variants"), strict=True)
    assert ("50.0 % (15.0–85.0)", "4", "0", "0.25 s", "0.25 s", "$0.00400", "$0.00200") == mini
    assert ("3", "1") == slow[1:3]
    assert ["mini", "large"] == [row["name"] for row in table["rows"] if row["is_pareto_optimal"]]
    assert ["◆ Pareto front", "best", "baseline", "◆ Pareto front"] == tab.texts("table.variants .tag")
    assert "best: large, 75.0 % (30.1–95.4) exact" in tab.text("h1")
    difference = table["rows"][0]["differences"]["exact"]["difference"]
    assert ["mini", f"{100 * difference:.1f} points"] == [cells(tab, "table.with-p")[0][at] for at in (0, 3)]
    assert "mini: 1 trial not done" in tab.texts(".notes li")

    tab.page.click("[data-variant=slow] .link")
    assert ["peru@slow", "rome@slow", "chad@slow", "oslo@slow"] == tab.rows()
    assert "slow" == tab.cells("peru@slow")["variant"]
    tab.page.wait_for_function("() => location.hash.includes('by=trials') && location.hash.includes('slow')")
    for event, is_open in (("beforeprint", True), ("afterprint", False)):
        tab.evaluate("name => window.dispatchEvent(new Event(name))", event)
        assert is_open is tab.evaluate("() => document.querySelector('.notes').open")
    assert [] == tab.messages


def test_a_phone_clips_nothing(tmp_path: Path, open_report: OpenTab) -> None:
    """On a narrow screen, rows are cards with all scores, and no cell of a table ends outside the screen."""
    run = three_variants(tmp_path / "run")
    pages = [[run], [Path(f"{run}@large"), Path(f"{run}@mini")]]
    outside = """() => [...document.querySelectorAll('main :is(td, th, .cell, .text, .chips > *)')]
        .filter(each => each.offsetParent && each.getBoundingClientRect().right > 400).map(each => each.textContent)"""
    for runs in pages:
        tab = open_report(*runs, width=400)

        assert ([], False) == (tab.evaluate(outside), tab.page.is_visible(".row.head"))
        assert 400 >= tab.evaluate("() => document.documentElement.scrollWidth")
    assert "pass → fail" in tab.page.inner_text("[data-trial=chad]")


def test_score_against_cost(tmp_path: Path, open_report: OpenTab) -> None:
    """Each variant is a point with its name and interval; the front is a line; variants without a cost are not shown."""
    run = three_variants(tmp_path / "run")
    tab = open_report(run)

    assert ["mini", "large", "slow"] == tab.texts(".scatter .name")
    assert (3, 3, 2) == tuple(tab.page.locator(f".scatter {name}").count() for name in (".dot", ".whisker", ".on-front"))
    places = tab.evaluate(
        "() => [...document.querySelectorAll('.scatter .dot, .scatter .whisker')].map(x => x.getBoundingClientRect().x)"
    )
    assert len(places) == len([x for x in places if x > 0])
    front = tab.evaluate("() => [...document.querySelector('.scatter .front').points].map(({x, y}) => [x, y])")
    assert front[0][0] < front[1][0]
    assert front[0][1] > front[1][1]

    free = [event for variant in ("a", "b") for event in answered("peru", {"exact": True}, variant=variant)]
    tab = open_report(free)
    assert 0 == tab.page.locator(".scatter").count()
    assert "No chart: the cost of every variant is unknown or incomplete." == tab.text(".scatter-chart .hint")


def test_grid_of_cases(tmp_path: Path, open_tab: OpenTab, open_report: OpenTab) -> None:
    """The results show each case with each variant, those that differ first; a cell opens its trial."""
    tab = open_report(three_variants(tmp_path / "run"))

    assert ["case", "mini", "large", "slow"] == tab.texts(".table .head .cell")
    assert {
        "peru": ["✗ fail", "✗ fail", "✗ fail"],
        "chad": ["✗ fail", "✓ pass", "✓ pass"],
        "oslo": ["✓ pass", "✓ pass", "✓ pass"],
        "rome": ["✓ pass", "✓ pass", "✕ error"],
        "late": ["○ queued", "–", "–"],
    } == grid(tab)
    assert ["chad", "rome", "peru", "oslo", "late"] == list(grid(tab))
    tab.page.click("[data-filter=differ]")
    assert ["chad", "rome"] == list(grid(tab))
    tab.page.fill("#search", "CHAD by large")
    assert ["chad"] == list(grid(tab))
    assert "1 of 5 cases, failing first" == tab.text("#count")

    tab.page.click("[data-trial='chad@large']")
    assert "chad@large" == tab.text("#drawer-title")
    assert "chad by large" in tab.text("#drawer")
    tab.page.click("#drawer nav button:has-text('slow')")
    assert "chad@slow" == tab.text("#drawer-title")
    tab.page.wait_for_function("() => location.hash.includes('trial=chad%40slow')")
    reopened = open_tab(tab.page.url)
    assert ("chad@slow", ["chad"]) == (reopened.text("#drawer-title"), list(grid(reopened)))
    tab.page.keyboard.press("Escape")
    tab.page.fill("#search", "")
    tab.page.click("[data-filter=all]")
    tab.page.click("[data-layout=trials]")
    assert ["peru@mini", "peru@large", "peru@slow", "chad@mini", "rome@slow"] == tab.rows()[:5]


def test_keys_in_the_grid(tmp_path: Path, open_report: OpenTab) -> None:
    """Arrow keys move between cells, Enter opens one, and Esc returns to it."""
    tab = open_report(three_variants(tmp_path / "run"))
    seq = tab.evaluate("() => page.history.seq")

    tab.page.focus(".body [tabindex='0']")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "Enter"):
        tab.page.keyboard.press(key)
    assert "rome@large" == tab.text("#drawer-title")
    tab.page.keyboard.press("j")
    assert "peru@large" == tab.text("#drawer-title")
    tab.page.keyboard.press("Escape")
    assert "peru@large" == tab.evaluate("() => document.activeElement.dataset.trial")
    assert seq == tab.evaluate("() => page.history.seq")
    assert 1 == tab.page.locator(".body [tabindex='0']").count()


def test_two_variants_side_by_side(tmp_path: Path, open_report: OpenTab) -> None:
    """`report @A @B` compares two variants of a run: what they are, broken cases first, and both outputs of a case."""
    run = three_variants(tmp_path / "run")
    tab = open_report(Path(f"{run}@large"), Path(f"{run}@mini"))

    assert tab.text("h1").endswith("4 trials compared: 1 broken, 0 fixed, 3 changed, 0 unchanged.")
    assert ["A large", "B mini"] == tab.texts(".facts th[scope=col]")
    assert ["chad", "peru", "oslo", "rome", "late"] == tab.rows()
    assert ("chad by large", "chad by mini", "pass → fail") == tuple(
        tab.cells("chad")[name] for name in ("output-a", "output-b", "score-exact")
    )
    assert "only in B" == tab.cells("late")["change"]
    tab.page.click("[data-trial=chad]")
    assert ["Output in A", "Output in B"] == [text for text in tab.texts("#drawer h3") if text.startswith("Output")]
    assert ["$0.0400", "$0.00400"] == tab.texts(".paired tr:has-text('cost') td")[:2]
    assert [] == tab.messages


def test_repeats_and_kinds_of_scores(open_tab: OpenTab, open_report: OpenTab) -> None:
    """Repeats share a cell that counts them; another score can be shown, also by the URL; equal means do not differ."""
    events: list[Event] = []
    for variant, passes in {"a": (True, True, False), "b": (True, True, True)}.items():
        for repeat, passed in enumerate(passes, start=1):
            scores = {"exact": passed, "near": 0.25 * repeat, "tone": "warm" if passed else "curt"}
            events += answered("peru", scores, variant=variant, repeat=repeat)
    events += answered("chad", {"exact": True}, variant="a") + failed("chad", variant="a", repeat=2)
    tab = open_report(events)

    assert {"peru": ["± 2 of 3 pass", "✓ 3 of 3 pass"], "chad": ["± 1 of 2 pass, 1 error", "–"]} == grid(tab)
    assert ["all 2", "differ 1"] == tab.texts("[data-filter]")[:2]
    tab.page.select_option("#grid-score", "near")
    assert {"peru": ["mean 0.5, n = 3", "mean 0.5, n = 3"], "chad": ["not scored, 1 error", "–"]} == grid(tab)
    assert ["all 2", "fails 1"] == tab.texts("[data-filter]")[:2]
    tab.page.select_option("#grid-score", "tone")
    assert ["warm 2 of 3", "warm 3 of 3"] == grid(tab)["peru"]
    tab.page.click("[data-trial='peru@a']")
    assert ["a #1", "a #2", "a #3", "b #1", "b #2", "b #3"] == tab.texts("#drawer nav button")
    tab.page.wait_for_function("() => location.hash.includes('score=tone')")
    assert ["warm 2 of 3", "warm 3 of 3"] == grid(open_tab(tab.page.url))["peru"]


def test_lowest_numbers_first_with_variants(open_report: OpenTab) -> None:
    """The table of variants has a link to the trials with the lowest numbers of a score first."""
    numbers = {"peru": (0.5, 1.0), "chad": (0.75, 0.0)}
    pairs = [(case, variant, number) for case, values in numbers.items() for variant, number in zip("ab", values, strict=True)]
    events = [event for case, variant, number in pairs for event in answered(case, {"near": number}, variant=variant)]
    tab = open_report(events)

    tab.page.click("table.variants .note .link")
    assert ["chad@b", "peru@a", "chad@a", "peru@b"] == tab.rows()


def test_variants_of_a_live_page(tmp_path: Path, open_report: OpenTab) -> None:
    """Updates of a live page add variants, cases and results; the filter, the search and the focus stay."""
    first = [started(), session(), *cell("peru", "mini", passed=True), enqueued("chad", variant="mini")]
    write_sync(tmp_path / "run", first)
    tab = open_report(tmp_path / "run")
    assert [False, False] == [tab.page.is_visible(name) for name in ("[data-layout=cases]", "table.variants")]

    reader, run = PageReader(0), LoadedRun(tmp_path / "run")
    for at, more in enumerate((cell("peru", "large", passed=False), cell("oslo", "large", passed=True))):
        write_sync(tmp_path / "run", [session(2 + at), *more], new=False)
        for record in islice(read(tmp_path / "run"), run.seq, None):
            reader.apply(run, record)
        seq = tab.evaluate("() => page.run.seq")
        data = reader.run(run).data(PageCursor(seq))
        tab.evaluate("data => page.update(data)", orjson.loads(b"".join(encode_json(data))))
        if not at:
            assert {"peru": ["✓ pass", "✗ fail"], "chad": ["○ queued", "–"]} == grid(tab)
            tab.page.fill("#search", "by large")
            tab.page.focus(".body [tabindex='0']")

    assert {"peru": ["✓ pass", "✗ fail"], "oslo": ["–", "✓ pass"]} == grid(tab)
    assert "peru@mini" == tab.evaluate("() => document.activeElement.dataset.trial")
    assert ["mini", "large"] == tab.texts("table.variants thead .link")
    assert [] == tab.messages


def test_changed_content_is_another_row(open_report: OpenTab) -> None:
    """Trials of a case with different content are not in one row."""
    events = [*cell("peru", "mini", passed=True, fingerprint="old"), *cell("peru", "large", passed=False, fingerprint="new")]
    tab = open_report(events)

    assert [["–", "✗ fail"], ["✓ pass", "–"]] == tab.evaluate(
        "() => page.results.matches.map(row => row.results.map((result, at) => row.cells[at].length ? result.text : '–'))"
    )
    assert 0 == tab.page.locator("[data-filter=differ]").count()


def hostile_variants(path: Path, names: Sequence[str]) -> Path:
    """Write a run in which cases, variants and outputs are hostile."""
    events = [
        event
        for at, case in enumerate(HOSTILE[:6])
        for number, variant in enumerate(names)
        for event in answered(
            case[:500], {HOSTILE[2]: number > at, "__proto__": 0.5}, variant=variant, output=case[:2_000], usage={"cost": 0.1}
        )
    ]
    write_sync(path, [started(), session(), *events, finished(6)])
    return path


def test_hostile_variants(tmp_path: Path, open_tab: OpenTab) -> None:
    """Names with markup, quotes, bidi controls, NULs or thousands of characters are only text, and many fit on the page."""
    names = [*(text[:3_000] for text in HOSTILE), "'\"><b>", *(f"v{number}" for number in range(12))]
    run = hostile_variants(tmp_path / "run", names)
    address = write_report(tmp_path / "report.html", run)
    tab = open_tab(address, width=600)

    for column in range(len(HOSTILE) + 1):
        tab.evaluate("column => page.results.open(page.results.matches[column % 6], column)", column)
        tab.evaluate("name => page.variants.onVariant(name)", names[column])
        assert 6 == len(tab.rows())
        tab.evaluate("() => { page.results.setFilters([]); page.results.chooseLayout('cases'); }")
    tab.page.fill("#search", HOSTILE[0])

    assert_harmless(tab)
    assert [address] == tab.requests
    assert "a…" == tab.evaluate("() => oneLine('a\U0001f600\U0001f600', 3)")  # A character is not split.
    assert len(names) == len(tab.texts("table.variants thead .link")) == tab.page.locator(".scatter .dot").count()
    assert 0 == tab.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")


def test_two_runs_with_variants(tmp_path: Path, open_report: OpenTab) -> None:
    """Two runs are compared by equal variants, as in `compare`, whatever the ids; a switch selects whose variants are shown."""
    runs = [tmp_path / "a", tmp_path / "b"]
    for run, passed in zip(runs, (True, False), strict=True):
        events = [*cell("peru", "mini", passed=passed), *cell("peru", "large", passed=True)]
        # The same id in both, but not the same case and variant.
        events += cell("oslo", "x", passed=True) if passed else answered("oslo@x", {"exact": True}, fingerprint="f-oslo")
        write_sync(run, [attrs.evolve(started(), evaluation=run.name), session(), *events])  # type: ignore[misc]  # an event is an attrs class
    comparison = command_json("compare", *map(str, runs))
    tab = open_report(*runs)

    changes = {name: tab.cells(name)["change"] for name in tab.rows()}
    assert ["peru@mini"] == [change["trial"] for change in comparison["broken"]]
    assert changes["peru@mini"].startswith("broken")
    assert ("same", "only in B", "only in A") == tuple(changes[name] for name in ("peru@large", "oslo@x", "oslo@x (A)"))
    assert (["oslo@x"], ["oslo@x"]) == (comparison["only_a"], comparison["only_b"])
    assert ["mini", "large"] == tab.texts("table.variants thead .link")
    tab.page.click("[data-run=A]")
    assert ["mini", "large", "x"] == tab.texts("table.variants thead .link")
    tab.evaluate("() => page.open(page.runs[0].numbers.get('oslo@x'), page.runs[0])")
    assert "oslo@x (A)" == tab.text("#drawer-title")
    assert "not in run B" in tab.text("#drawer")
    assert [] == tab.messages
