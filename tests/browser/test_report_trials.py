"""The results on a report: the table of trials, the drawer, the breakdown by metadata and the comparison of two runs."""

import json
from pathlib import Path

import attrs
import pytest

from evaljournal.journal import Event
from evaljournal.journal.events import (
    AttemptStarted,
    AttemptSucceeded,
    Noted,
    TrialCompleted,
    TrialEnqueued,
    TrialScored,
)
from tests.browser.conftest import OpenTab
from tests.browser.pages import capitals, command_json, write_report
from tests.journal.samples import session, started, write_sync
from tests.replay.eventful_run import eventful_run
from tests.replay.trial_events import answered


def trial(name: str, *, output: str, expected: str, passed: bool = False) -> list[Event]:
    """Return the events of a completed trial."""
    return [
        TrialEnqueued(trial=name, case=name, repeat=1, input=f"capital of {name}?", expected=expected, fingerprint=f"f-{name}"),
        AttemptStarted(trial=name, attempt=1, slot=0),
        AttemptSucceeded(trial=name, attempt=1, output=output, elapsed=1.0),
        TrialScored(trial=name, scorer="exact", version="1", value=passed, reason="another city", elapsed=0.0),
        TrialCompleted(trial=name, attempts=1),
    ]


def test_results_come_first(tmp_path: Path, open_tab: OpenTab) -> None:
    """The summary is followed by the trials, the breakdown, the errors, the concurrency history and the audit."""
    headings = "h1, #summary h3:first-child, h2"
    tab = open_tab(write_report(tmp_path / "report.html", capitals(tmp_path / "run")))

    titles = [title for title in tab.texts(headings) if title]
    assert ["exact", "trials", "latency", "attempts"] == titles[1:5]
    assert ["Trials", "Results by level", "Errors", "Concurrency history", "Where the time went", "Audit"] == titles[5:]
    both = open_tab(write_report(tmp_path / "both.html", capitals(tmp_path / "a"), capitals(tmp_path / "b")))
    assert ["B compared with A", "Trials in A and B", "Results by level"] == both.texts("h2")[:3]


def test_columns_of_the_table(tmp_path: Path, open_tab: OpenTab) -> None:
    """A row has input, expected output, output, score and status; a failed trial shows its error."""
    path = tmp_path / "run"
    write_sync(path, [started(), session(), *trial("peru", output="Cusco " * 100, expected="Lima")])
    tab = open_tab(write_report(tmp_path / "report.html", path))

    cells = tab.cells("peru")
    assert ["number", "input", "expected", "output", "score-0", "status"] == list(cells)[:6]
    assert ("capital of peru?", "Lima", "✗ fail", "● ok") == tuple(
        cells[name] for name in ("input", "expected", "score-0", "status")
    )
    assert cells["output"].startswith("Cusco Cusco")
    assert 160 == len(cells["output"])

    failed = open_tab(write_report(tmp_path / "failed.html", capitals(tmp_path / "other"))).cells("gone")
    assert ("ValueError: no such city", "✕ failed") == (failed["output"], failed["status"])
    assert "expected" not in failed


def test_filters_search_and_sort(tmp_path: Path, open_tab: OpenTab) -> None:
    """The table is filtered by result, text and metadata, and sorted by a column."""
    tab = open_tab(write_report(tmp_path / "report.html", capitals(tmp_path / "run", wrong=["chad"])))
    assert ["peru", "chad", "oslo", "rome", "gone"] == tab.rows()

    for name, expected in {"wrong": ["chad"], "failed": ["gone"], "recovered": ["oslo"]}.items():
        tab.page.click(f"[data-filter={name}]")
        assert expected == tab.rows()
    tab.page.click("[data-filter=all]")
    tab.page.select_option("#metadata", label="level: hard (2)")
    assert ["chad", "rome"] == tab.rows()
    tab.page.select_option("#metadata", label="level: none")
    assert ["gone"] == tab.rows()
    tab.page.select_option("#metadata", index=0)
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("no such CITY")
    assert ["gone"] == tab.rows()
    tab.page.fill("#search", "")
    tab.page.click("[data-sort=attempts]")
    tab.page.click("[data-sort=attempts]")
    assert "oslo" == tab.rows()[0]
    tab.page.click("[data-sort=output]")
    assert "gone" == tab.rows()[0]
    assert [] == tab.messages


def test_scorers_are_in_the_order_of_the_definition(tmp_path: Path, open_tab: OpenTab) -> None:
    """The columns of scorers do not depend on which one scored first."""
    run_started = attrs.evolve(started(), scorers={"exact": "v1", "tone": "v1"})  # type: ignore[misc]  # an event is an attrs class
    write_sync(tmp_path / "run", [run_started, session(), *answered("a", {"tone": "rude", "exact": True})])
    tab = open_tab(write_report(tmp_path / "report.html", tmp_path / "run") + "#trial=a")

    assert ["exact", "tone"] == tab.texts("[data-sort^=score]")
    assert ("✓ pass", "rude") == (tab.cells("a")["score-0"], tab.cells("a")["score-1"])
    assert ["exact", "tone"] == tab.texts("#drawer .scores th")


def test_large_runs_are_virtualized(tmp_path: Path, open_tab: OpenTab) -> None:
    """Of many rows only those in view are in the document; scrolling shows the others."""
    events = [event for number in range(300) for event in answered(f"case-{number:03}", {"exact": True})]
    write_sync(tmp_path / "run", [started(), session(), *events])
    tab = open_tab(write_report(tmp_path / "report.html", tmp_path / "run"))

    assert "case-000" == tab.rows()[0]
    assert 40 > len(tab.rows())
    tab.evaluate("() => { page.trials.scroller.scrollTop = 1e6; }")
    tab.page.wait_for_selector("[data-trial=case-299]")
    assert 40 > len(tab.rows())


def test_rows_by_keyboard(tmp_path: Path, open_tab: OpenTab) -> None:
    """Tab reaches a row, arrow keys move between rows, Enter opens one, and closing returns the focus to it."""
    tab = open_tab(write_report(tmp_path / "report.html", capitals(tmp_path / "run")))
    focused = "() => document.activeElement.dataset.trial"

    tab.page.focus("[data-sort=latency]")
    tab.page.keyboard.press("Tab")
    assert "peru" == tab.evaluate(focused)
    tab.page.keyboard.press("ArrowDown")
    assert "chad" == tab.evaluate(focused)
    assert "solid" == tab.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    tab.page.keyboard.press("End")
    assert "gone" == tab.evaluate(focused)
    tab.page.keyboard.press("ArrowUp")
    tab.page.keyboard.press("Enter")
    assert "rome" == tab.text("#drawer h2")
    tab.page.keyboard.press("Escape")
    assert "rome" == tab.evaluate(focused)


def test_selection_keys(tmp_path: Path, open_tab: OpenTab) -> None:
    """`j` and `k` select a row, Enter opens it, Esc closes it; the address names the open trial."""
    tab = open_tab(write_report(tmp_path / "report.html", capitals(tmp_path / "run")))

    for key in "jjj":
        tab.page.keyboard.press(key)
    tab.page.keyboard.press("k")
    tab.page.keyboard.press("Enter")
    assert "chad" == tab.text("#drawer h2")
    tab.page.wait_for_function("() => location.hash === '#trial=chad'")

    tab.page.keyboard.press("j")
    assert "oslo" == tab.text("#drawer h2")
    assert "OSError: no" in tab.text("#drawer .attempts")

    tab.page.keyboard.press("Escape")
    assert tab.page.is_hidden("#drawer")


def test_drawer_steps_by_buttons(tmp_path: Path, open_tab: OpenTab) -> None:
    """Two buttons in the drawer open the previous and the next trial, where there is no keyboard."""
    tab = open_tab(write_report(tmp_path / "report.html", capitals(tmp_path / "run")), width=400)

    tab.page.click("[data-trial=chad]")
    tab.page.click("[aria-label='Next trial']")
    assert "oslo" == tab.text("#drawer h2")
    tab.page.click("[aria-label='Previous trial']")
    assert "chad" == tab.text("#drawer h2")


def test_controls_keep_the_focus(tmp_path: Path, open_tab: OpenTab) -> None:
    """A control that is used by keyboard keeps the focus, and closing the drawer returns it."""
    tab = open_tab(write_report(tmp_path / "report.html", capitals(tmp_path / "run", wrong=["chad"])))
    focused = "() => document.activeElement.textContent"

    tab.page.focus("[data-filter=wrong]")
    tab.page.keyboard.press("Enter")
    assert ["chad"] == tab.rows()
    assert "wrong 1" == tab.evaluate(focused)

    tab.page.keyboard.press("j")
    tab.evaluate("() => page.openName(page.trials.selectedName)")
    assert "chad" == tab.evaluate(focused)
    tab.page.keyboard.press("Escape")
    assert "wrong 1" == tab.evaluate(focused)


def test_difference_is_marked(tmp_path: Path, open_tab: OpenTab) -> None:
    """The drawer marks the words that differ between expected and actual output."""
    events = trial("a", output="Cusco is the capital", expected="Lima is the capital")
    write_sync(tmp_path / "run", [started(), session(), *events])

    tab = open_tab(write_report(tmp_path / "report.html", tmp_path / "run") + "#trial=a")

    assert ["Lima"] == tab.texts("mark.removed")
    assert ["Cusco"] == tab.texts("mark.added")
    assert "another city" in tab.text("#drawer .scores")


def test_no_difference_is_marked_in_a_passed_trial(tmp_path: Path, open_tab: OpenTab) -> None:
    """An output that passed may differ from the expected one; nothing is struck through."""
    events = trial("a", output="The capital is Lima", expected="Lima", passed=True)
    write_sync(tmp_path / "run", [started(), session(), *events])
    tab = open_tab(write_report(tmp_path / "report.html", tmp_path / "run") + "#trial=a")
    assert ([], []) == (tab.texts("mark.removed"), tab.texts("mark.added"))


def test_drawer_shows_request_and_all_notes(tmp_path: Path, open_tab: OpenTab) -> None:
    """The request of an attempt is shown as text, and of several notes with one name each one; the definition is below."""
    events = trial("a", output="Lima", expected="Lima", passed=True)
    events[1] = AttemptStarted(trial="a", attempt=1, slot=0, request={"body": {"q": "<b>Peru</b>"}})
    events[2:2] = [Noted(name="step", value=value, trial="a", attempt=1) for value in ("search", "read", "answer")]
    definition = {"task": {"name": "chat", "prompt": "Answer: {input}\n<i>briefly</i>"}}
    run_started = attrs.evolve(started(), definition=definition)  # type: ignore[misc]  # an event is an attrs class
    write_sync(tmp_path / "run", [run_started, session(), *events])

    tab = open_tab(write_report(tmp_path / "report.html", tmp_path / "run") + "#trial=a")
    tab.page.keyboard.press("e")
    assert {"body": {"q": "<b>Peru</b>"}} == json.loads(tab.text(".attempts details .json"))
    assert "step search · step read · step answer" in tab.text("#drawer .records")
    outside = "(pre) => !pre.closest('#drawer')"
    shown = tab.evaluate(f"() => [...document.querySelectorAll('details pre')].filter({outside}).at(-1).textContent")
    assert "task:\n  name: chat\n  prompt:\n    Answer: {input}\n    <i>briefly</i>" == shown


def test_deep_link(tmp_path: Path, open_tab: OpenTab) -> None:
    """An address with a trial and a record opens them."""
    address = write_report(tmp_path / "report.html", eventful_run(tmp_path / "run"))

    tab = open_tab(f"{address}#trial=chad%232&seq=20")
    tab.page.wait_for_function("() => document.getElementById('event').textContent.startsWith('seq 20 ·')")

    assert "chad#2" == tab.text("#drawer h2")
    assert "20" == tab.page.input_value("#seq")
    assert "chad" == open_tab(f"{address}#trial=chad").text("#drawer h2")


def test_address_has_the_filters(tmp_path: Path, open_tab: OpenTab) -> None:
    """Search, filter and metadata are part of the address; an address without them, or with invalid ones, shows all."""
    address = write_report(tmp_path / "report.html", capitals(tmp_path / "run", wrong=["chad", "oslo"]))

    tab = open_tab(address)
    tab.page.click("[data-filter=wrong]")
    tab.page.select_option("#metadata", label="level: hard (2)")
    tab.page.wait_for_function("() => location.hash.includes('meta=')")
    assert ["chad"] == open_tab(tab.page.url).rows()
    tab.evaluate("() => { location.hash = 'seq=4'; }")
    tab.page.wait_for_function("() => page.trials.matches.length === 5")
    tab.evaluate("() => { location.hash = 'meta=nonsense&filter=constructor&seq=nonsense&trial=nonsense'; }")
    tab.page.wait_for_function("() => page.trials.matches.length === 5")
    assert [] == tab.messages


@pytest.mark.parametrize("key", ["level", "region"])
def test_breakdown_by_metadata(key: str, tmp_path: Path, open_tab: OpenTab) -> None:
    """The breakdown by a chosen key has the counts and means of `status --by`; a value filters the trials."""
    more = answered("lagos", {"exact": False}, metadata={"level": "hard", "region": "africa"})
    run = capitals(tmp_path / "run", wrong=["chad"], more=more)
    tab = open_tab(write_report(tmp_path / "report.html", run))

    tab.page.select_option("#breakdown-key", key)
    rows = [[cell.strip() for cell in row.split("\t")] for row in tab.page.locator(".breakdown tbody tr").all_inner_texts()]

    groups = command_json("status", str(run), "--by", key)["groups"]
    expected = []
    for name, group in groups.items():
        mean = f"{100 * group['scores']['exact']['mean']:.1f} %" if group["scores"] else "–"
        expected.append([name, str(group["trials"]["enqueued"]), str(group["trials"]["failed"]), mean])
    assert sorted(row[1:] for row in expected) == sorted(row[1:] for row in rows)
    value = {"level": "hard", "region": "africa"}[key]
    assert next(row for row in expected if row[0] == value) in rows
    tab.page.click(f"[data-value={value}] button")
    assert {"level": ["chad", "rome", "lagos"], "region": ["lagos"]}[key] == tab.rows()


def test_no_breakdown_without_metadata(tmp_path: Path, open_tab: OpenTab) -> None:
    """A run whose cases have no metadata has no breakdown."""
    write_sync(tmp_path / "run", [started(), session(), *trial("peru", output="Lima", expected="Lima", passed=True)])
    tab = open_tab(write_report(tmp_path / "report.html", tmp_path / "run"))

    assert tab.page.is_hidden("#breakdown-title")
    assert tab.page.is_hidden("#metadata")


def test_two_runs_side_by_side(tmp_path: Path, open_tab: OpenTab) -> None:
    """A comparison has the paired differences, and for each trial both outputs and what changed."""
    a = capitals(tmp_path / "a", wrong=["chad", "oslo"], more=answered("only-a"))
    b = capitals(tmp_path / "b", wrong=["rome"], seconds=0.5)
    tab = open_tab(write_report(tmp_path / "report.html", a, b))

    exact, latency, failed = tab.texts(".paired tbody tr")[:3]
    assert exact.startswith("exact50.0 %75.0 %+25.0 points")
    assert latency.startswith("latency0.25 s0.5 s")
    assert "failed trials110" == failed
    assert ["rome", "chad", "oslo", "only-a", "peru", "gone"] == tab.rows()
    cells = tab.cells("rome")
    assert ("Lima", "Cusco", "pass → fail") == (cells["output-a"], cells["output-b"], cells["score-exact"])
    assert "broken: output changed, slower" == cells["change"]
    assert ("Lima", "–", "only in A") == tuple(tab.cells("only-a")[name] for name in ("output-a", "output-b", "change"))
    tab.page.click("[data-filter=fixed]")
    assert ["chad", "oslo"] == tab.rows()
    tab.page.click("[data-filter=slower]")
    assert {"peru", "chad", "oslo", "rome"} == set(tab.rows())
    assert "50.0 % → 100.0 %" in tab.text("[data-value=easy]")
    assert [] == tab.messages


def test_drawer_of_two_runs(tmp_path: Path, open_tab: OpenTab) -> None:
    """The drawer of a comparison has both outputs with the difference marked, both scores and both lists of attempts."""
    a, b = capitals(tmp_path / "a"), capitals(tmp_path / "b", wrong=["rome"])
    tab = open_tab(write_report(tmp_path / "report.html", a, b))

    tab.page.click("[data-trial=rome]")
    headings = tab.texts("#drawer h3")
    assert ["Output in A", "Output in B", "Input", "Attempts in A", "Attempts in B", "Metadata"] == headings
    assert (["Lima"], ["Cusco"]) == (tab.texts("mark.removed"), tab.texts("mark.added"))
    assert ["exact in A✓ pass", "exact in B✗ fail"] == tab.texts("#drawer .scores tr")


def test_chosen_run(tmp_path: Path, open_tab: OpenTab) -> None:
    """A switch chooses the run of the sections below the trials; the trials keep their filter."""
    a, b = capitals(tmp_path / "a", wrong=["chad", "oslo"]), capitals(tmp_path / "b")
    tab = open_tab(write_report(tmp_path / "report.html", a, b))
    assert "100.0 %" == tab.texts("#summary .figure")[0]

    tab.page.click("[data-filter=fixed]")
    tab.page.click("[data-run=A]")
    assert "50.0 %" == tab.texts("#summary .figure")[0]
    assert ["chad", "oslo"] == tab.rows()
    tab.page.wait_for_function("() => location.hash.includes('run=A')")
    assert "50.0 %" == open_tab(tab.page.url).texts("#summary .figure")[0]


def test_scores_of_several_versions(tmp_path: Path, open_tab: OpenTab) -> None:
    """The summary shows how many scores and outputs are from an older version."""
    path = tmp_path / "run"
    adopted = {"task_fingerprint": "t2", "scorers": {"exact": "v2"}}
    second = attrs.evolve(session(2), adopted=adopted)  # type: ignore[misc]  # an event is an attrs class
    write_sync(path, [started(), session(), *answered("peru", {"exact": True})])
    write_sync(path, [second, *answered("oslo", {"exact": False}, version="v2")], new=False)
    tab = open_tab(write_report(tmp_path / "report.html", path))

    summary = tab.text("#summary")
    assert "from 2 versions of the scorer, 1 from an older one" in summary
    assert "1 from an older version of the task" in summary


def test_unscored_outputs_are_counted(tmp_path: Path, open_tab: OpenTab) -> None:
    """The summary of a scorer has the number of outputs without its score."""
    path = tmp_path / "run"
    write_sync(path, [started(), session(), *answered("peru", {"exact": True}), *answered("oslo")])

    assert "excluded: 1 unscored" in open_tab(write_report(tmp_path / "report.html", path)).text("#summary")


def test_truncated_outputs_are_counted(tmp_path: Path, open_tab: OpenTab) -> None:
    """The summary has the number of outputs that the token limit truncated."""
    path, note = tmp_path / "run", Noted(name="evaljournal.finish_reason", value="length", trial="peru", attempt=1)
    events = answered("peru")
    write_sync(path, [started(), session(), *events[:2], note, *events[2:]])

    assert "1 truncated by the token limit" in open_tab(write_report(tmp_path / "report.html", path)).text("#summary")
