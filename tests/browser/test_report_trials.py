"""The results on a report: the table of trials, the drawer, the breakdown by metadata and the comparison of two runs."""

import json
from pathlib import Path

import attrs
import pytest

from evaljournal.journal import Event
from evaljournal.journal.events import AttemptStarted, AttemptSucceeded, Noted, TrialCompleted, TrialEnqueued, TrialScored
from tests.browser.conftest import OpenTab
from tests.browser.pages import capitals, command_json, write_report
from tests.journal.samples import session, started, write_sync
from tests.replay.eventful_run import eventful_run
from tests.replay.trial_events import answered, failed
from tests.runner_cli.commands import evaljournal


def trial(name: str, *, output: str, expected: str, passed: bool = False, question: str = "capital") -> list[Event]:
    """Return the events of a completed trial."""
    text, fingerprint = f"{question} of {name}?", f"{question} {name} {expected}"
    return [
        TrialEnqueued(trial=name, case=name, repeat=1, input=text, expected=expected, fingerprint=fingerprint),
        AttemptStarted(trial=name, attempt=1, slot=0),
        AttemptSucceeded(trial=name, attempt=1, output=output, elapsed=1.0),
        TrialScored(trial=name, scorer="exact", version="1", value=passed, reason="another city", elapsed=0.0),
        TrialCompleted(trial=name, attempts=1),
    ]


def test_results_come_first(tmp_path: Path, open_report: OpenTab) -> None:
    """The summary is followed by errors and results; how the run was executed is folded at the end."""
    headings = "h1, #summary h3:first-child, h2"
    tab = open_report(capitals(tmp_path / "run"))

    titles = [title for title in tab.texts(headings) if title]
    assert ["exact", "trials", "latency", "attempts"] == titles[1:5]
    assert ["Errors", "Results", "Results by level", "Execution"] == titles[5:9]
    assert ["Concurrency history", "Where the time went", "Audit"] == titles[9:]
    assert [False, False] == [tab.page.is_visible(name) for name in ("#history-title", "#execution footer")]
    tab.page.click("#execution > summary")
    assert tab.page.is_visible("#history-title")
    both = open_report(capitals(tmp_path / "a"), capitals(tmp_path / "b"))
    assert ["What are A and B?", "Results", "Results by level"] == both.texts("h2")[:3]


def test_columns_of_the_table(tmp_path: Path, open_report: OpenTab) -> None:
    """A row has input, expected output, output, scores and status; a trial without an output shows its error."""
    path = tmp_path / "run"
    write_sync(path, [started(), session(), *trial("peru", output="Cusco", expected="Lima")])
    tab = open_report(path)

    cells = tab.cells("peru")
    assert ["number", "input", "expected", "output", "score-exact", "status"] == list(cells)[:6]
    assert ("capital of peru?", "Lima", "✗ fail", "● output") == tuple(
        cells[name] for name in ("input", "expected", "score-exact", "status")
    )
    assert "Cuscoexact: another city" == cells["output"]  # With the reason why it fails.

    failed = open_report(capitals(tmp_path / "other")).cells("gone")
    assert ("ValueError: no such city", "✕ error") == (failed["output"], failed["status"])
    assert "expected" not in failed


def test_long_text_shows_its_beginning_and_its_end(open_report: OpenTab) -> None:
    """Of a long output, a cell has the first and the last lines; nothing scrolls inside the page, and `full text` shows all."""
    output = "\n".join(f"line {number}" for number in range(200))
    tab = open_report(trial("peru", output=output, expected="Lima"))
    visible = """text => {
        const box = page.results.body.querySelector('.clamped').getBoundingClientRect(), range = document.createRange();
        return [...page.results.body.querySelectorAll('.clamped > *')].some(part => {
            const walker = document.createTreeWalker(part, NodeFilter.SHOW_TEXT), frame = part.getBoundingClientRect();
            for (let node = walker.nextNode(); node; node = walker.nextNode()) {
                const at = node.data.indexOf(text);
                if (at < 0) continue;
                range.setStart(node, at);
                range.setEnd(node, at + text.length);
                const line = range.getBoundingClientRect();
                if (line.top >= frame.top - 2 && line.bottom <= frame.bottom + 2) return true;
            }
            return false;
        });
    }"""

    assert [True, False, True] == [tab.evaluate(visible, line) for line in ("line 0\n", "line 100\n", "line 199")]
    scrolling = """() => [...document.querySelectorAll('main *')].filter(
        each => ['auto', 'scroll'].includes(getComputedStyle(each).overflowY)).map(each => each.className)"""
    assert [] == tab.evaluate(scrolling)
    tab.page.check("#full")
    assert 200 < len(tab.page.inner_text("[data-trial=peru] .text >> nth=2").splitlines()) + 1


def test_failing_trials_come_first(open_report: OpenTab) -> None:
    """Trials that fail most scores come first, then errors and scorer errors; the others keep their order."""
    events = [
        *answered("fine", {"exact": True, "polite": True}),
        *answered("one", {"exact": False, "polite": True}),
        *answered("unscored", {"exact": True, "polite": ValueError()}),
        *failed("gone"),
        *answered("two", {"exact": False, "polite": False}),
        *answered("good", {"exact": True, "polite": True}),
    ]
    tab = open_report(events)

    assert ["two", "one", "gone", "unscored", "fine", "good"] == tab.rows()
    assert "6 trials, failing first" == tab.text("#count")
    tab.page.click("[data-sort=number]")
    assert ["fine", "one", "unscored", "gone", "two", "good"] == tab.rows()
    assert ["all 6", "fails 2", "errors 1", "scorer errors 1"] == tab.texts("[data-filter]")[:4]


def many_scores(path: Path) -> Path:
    """Write a run with twelve scorers, labels and numbers among them."""
    names = [f"check number {number}" for number in range(10)]
    events = [
        event
        for number, tone in enumerate(["warm", "curt", "warm", "cold"])
        for event in answered(
            f"case-{number}",
            {**dict.fromkeys(names, True), "tone": tone, "closeness": 0.25 * number},
            output=f"answer {number}",
        )
    ]
    write_sync(path, [attrs.evolve(started(), scorers={}), session(), *events])  # type: ignore[misc]  # an event is an attrs class
    return path


def test_all_scores_are_columns(tmp_path: Path, open_report: OpenTab) -> None:
    """Every score that has room is a column; the page names how many have none, and a chosen column is shown."""
    tab = open_report(many_scores(tmp_path / "run"), width=1000)

    shown = len(tab.texts("[data-sort^=score]"))
    assert 6 <= shown < 12
    assert tab.text("#columns summary").endswith(f", {12 - shown} scores hidden")
    tab.page.click("#columns summary")
    tab.page.check("[data-column='score-closeness']")
    assert "0.75" == tab.cells("case-3")["score-closeness"]
    tab.page.uncheck("[data-column='output']")
    assert "output" not in tab.cells("case-3")
    assert 1000 >= tab.evaluate("() => document.documentElement.scrollWidth")
    wide = open_report(tmp_path / "run", width=2400)
    assert 12 == len(wide.texts("[data-sort^=score]"))


def test_filters_by_label_and_range(tmp_path: Path, open_tab: OpenTab, open_report: OpenTab) -> None:
    """Results are filtered by the label of a score and by a range of numbers; several labels are alternatives."""
    tab = open_report(many_scores(tmp_path / "run"))

    tab.page.select_option("#filter", label="tone is warm (2)")
    assert ["case-0", "case-2"] == tab.rows()
    tab.page.select_option("#filter", label="tone is cold (1)")
    assert ["case-0", "case-2", "case-3"] == tab.rows()
    tab.page.select_option("#filter", label="closeness from … to …")
    tab.page.fill("[aria-label='Minimum of closeness']", "0.3")
    tab.page.press("[aria-label='Minimum of closeness']", "Enter")
    assert ["case-2", "case-3"] == tab.rows()
    tab.page.wait_for_function("() => location.hash.includes('0.3')")
    assert ["case-2", "case-3"] == open_tab(tab.page.url).rows()
    tab.page.click("[aria-label='Remove the filter tone is warm']")
    assert ["case-3"] == tab.rows()
    tab.page.click(".tile:has-text('closeness') .link")
    tab.page.click("[aria-label='Remove the filter of closeness']")
    tab.page.click("[aria-label='Remove the filter tone is cold']")
    assert ["case-0", "case-1", "case-2", "case-3"] == tab.rows()
    assert [] == tab.messages


def test_search_in_reasons_labels_and_judge_replies(open_report: OpenTab) -> None:
    """A search finds the reason of a score, a label, the error of a scorer and the reply of a judge."""
    events = [
        *trial("peru", output="Cusco", expected="Lima"),
        *answered("chad", {"tone": "sarcastic"}),
        *answered("oslo", {"tone": OverflowError()}),
        *answered("rome", {"tone": "warm"}),
    ]
    reply = {"model": "judge", "prompt": "Is it polite?", "reply": "A greeting is missing."}
    events.insert(-2, Noted(name="evaljournal.judge", value=reply, trial="rome", attempt=1))
    tab = open_report(events)

    for text, expected in {
        "another CITY": ["peru"],
        "sarcas": ["chad"],
        "overflow": ["oslo"],
        "greeting is": ["rome"],
        "lima": ["peru", "oslo", "chad", "rome"],
    }.items():
        tab.page.fill("#search", text)
        assert expected == tab.rows()


def test_truncated_and_declined_outputs_have_a_chip(tmp_path: Path, open_report: OpenTab) -> None:
    """Outputs that the token limit truncated, or that the model declined, can be selected; without any there is no chip."""
    events: list[Event] = []
    for name, outcome in {"peru": "truncated", "chad": "declined", "oslo": ""}.items():
        first, *others = answered(name)
        note = Noted(name="evaljournal.answer", value={"outcome": outcome}, trial=name, attempt=1)
        events += [first, others[0], note, *others[1:]]
    tab = open_report(events)

    for name, expected in {"truncated": ["peru"], "declined": ["chad"]}.items():
        tab.page.click(f"[data-filter={name}]")
        assert expected == tab.rows()
        assert name in tab.text(f"[data-row={expected[0]}]")
        tab.page.click(f"[data-row={expected[0]}]")
        assert f"latency 0.25 s · {name}" in tab.text("#drawer .status")
        tab.page.keyboard.press("Escape")
    other = open_report(capitals(tmp_path / "other"))
    assert ["all", "errors", "retried", "slowest"] == other.evaluate(
        "() => [...document.querySelectorAll('[data-filter]')].map(each => each.dataset.filter)"
    )


def test_filters_search_and_sort(tmp_path: Path, open_report: OpenTab) -> None:
    """The results are filtered by result, text and metadata, and sorted by a column."""
    tab = open_report(capitals(tmp_path / "run", wrong=["chad"]))
    assert ["chad", "gone", "peru", "oslo", "rome"] == tab.rows()

    for name, expected in {"fails": ["chad"], "errors": ["gone"], "retried": ["oslo"]}.items():
        tab.page.click(f"[data-filter={name}]")
        assert expected == tab.rows()
    tab.page.click("[data-filter=all]")
    tab.page.select_option("#filter", label="level: hard (2)")
    assert ["chad", "rome"] == tab.rows()
    tab.page.click("[aria-label='Remove the filter level: hard']")
    tab.page.select_option("#filter", label="level: none")
    assert ["gone"] == tab.rows()
    tab.page.click("[aria-label='Remove the filter level: none']")
    tab.page.click(".tile:has-text('exact') .link")
    assert ["chad"] == tab.rows()
    tab.page.click("[aria-label='Remove the filter exact fails']")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("no such CITY")
    assert ["gone"] == tab.rows()
    tab.page.fill("#search", "")
    tab.page.click("[data-sort=attempts]")
    tab.page.click("[data-sort=attempts]")
    assert "oslo" == tab.rows()[0]
    tab.page.click("[data-sort=output]")
    assert "chad" == tab.rows()[0]
    assert [] == tab.messages


def test_scorers_are_in_the_order_of_the_definition(tmp_path: Path, open_report: OpenTab) -> None:
    """The columns of scorers do not depend on which one scored first."""
    run_started = attrs.evolve(started(), scorers={"exact": "v1", "tone": "v1"})  # type: ignore[misc]  # an event is an attrs class
    write_sync(tmp_path / "run", [run_started, session(), *answered("a", {"tone": "rude", "exact": True})])
    tab = open_report(tmp_path / "run", fragment="#trial=a")

    assert ["exact", "tone"] == tab.texts("[data-sort^=score]")
    assert ("✓ pass", "rude") == (tab.cells("a")["score-exact"], tab.cells("a")["score-tone"])
    assert ["exact", "tone"] == tab.texts("#drawer .scores th")


def test_large_runs_have_pages(open_report: OpenTab) -> None:
    """Of many rows only one page is in the document; buttons and keys turn it."""
    events = [event for number in range(120) for event in answered(f"case-{number:03}", {"exact": True})]
    tab = open_report(events)

    assert ["case-000", "case-049"] == [tab.rows()[0], tab.rows()[-1]]
    tab.page.click("[aria-label='Next page']")
    assert ["case-050", "case-099"] == [tab.rows()[0], tab.rows()[-1]]
    tab.page.focus("[data-trial=case-099]")
    tab.page.keyboard.press("ArrowDown")
    assert "case-100" == tab.evaluate("() => document.activeElement.dataset.trial")
    assert 20 == len(tab.rows())
    tab.page.fill("#search", "case-00")
    assert (10, False) == (len(tab.rows()), tab.page.is_visible(".pager"))


def test_rows_by_keyboard(tmp_path: Path, open_report: OpenTab) -> None:
    """Tab reaches a row, arrow keys move between rows, Enter opens one, and closing returns the focus to it."""
    tab = open_report(capitals(tmp_path / "run"))
    focused = "() => document.activeElement.dataset.trial"

    tab.page.locator("[data-sort]").last.focus()
    tab.page.keyboard.press("Tab")
    assert "gone" == tab.evaluate(focused)
    tab.page.keyboard.press("ArrowDown")
    assert "peru" == tab.evaluate(focused)
    assert "solid" == tab.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    tab.page.keyboard.press("End")
    assert "rome" == tab.evaluate(focused)
    tab.page.keyboard.press("ArrowUp")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    assert "rome" == tab.text("#drawer h2")
    tab.page.keyboard.press("Escape")
    assert "rome" == tab.evaluate(focused)


def test_selection_keys(tmp_path: Path, open_report: OpenTab) -> None:
    """`j` and `k` select a row, Enter opens it, Esc closes it; the address names the open trial."""
    tab = open_report(capitals(tmp_path / "run"))

    for key in "jjjj":
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
    tab.page.keyboard.press("?")
    assert "next and previous row" in tab.text("#keys")
    tab.page.keyboard.press("Escape")
    assert tab.page.is_hidden("#keys")


def test_drawer_steps_by_buttons(tmp_path: Path, open_report: OpenTab) -> None:
    """Two buttons in the drawer open the previous and the next trial, where there is no keyboard."""
    tab = open_report(capitals(tmp_path / "run"), width=400)

    tab.page.click("[data-trial=chad]")
    tab.page.click("[aria-label='Next trial']")
    assert "oslo" == tab.text("#drawer h2")
    tab.page.click("[aria-label='Previous trial']")
    assert "chad" == tab.text("#drawer h2")


def test_controls_keep_the_focus(tmp_path: Path, open_report: OpenTab) -> None:
    """A control that is used by keyboard keeps the focus, and closing the drawer returns it."""
    tab = open_report(capitals(tmp_path / "run", wrong=["chad"]))
    focused = "() => document.activeElement.textContent"

    tab.page.focus("[data-filter=fails]")
    tab.page.keyboard.press("Enter")
    assert ["chad"] == tab.rows()
    assert "fails 1" == tab.evaluate(focused)

    tab.page.keyboard.press("j")
    tab.evaluate("() => page.openName(page.results.selectedTrial)")
    assert "chad" == tab.evaluate(focused)
    tab.page.keyboard.press("Escape")
    assert "fails 1" == tab.evaluate(focused)


@pytest.mark.parametrize(
    ("output", "passed", "marked"),
    [("Cusco is the capital", False, (["Lima"], ["Cusco"])), ("The capital: Lima", True, ([], []))],
)
def test_differences_are_marked(output: str, marked: object, open_report: OpenTab, *, passed: bool) -> None:
    """The drawer marks the words that differ between expected and actual output, unless the output passed."""
    events = trial("a", output=output, expected="Lima is the capital", passed=passed)
    tab = open_report(events, fragment="#trial=a")

    assert marked == (tab.texts("mark.removed"), tab.texts("mark.added"))
    assert "another city" in tab.text("#drawer .scores")


def test_drawer_shows_request_and_all_notes(tmp_path: Path, open_report: OpenTab) -> None:
    """The request of an attempt is shown as text, and of several notes with one name each one; the definition is below."""
    events = trial("a", output="Lima", expected="Lima", passed=True)
    events[1] = AttemptStarted(trial="a", attempt=1, slot=0, request={"body": {"q": "<b>Peru</b>"}})
    events[2:2] = [Noted(name="step", value=value, trial="a", attempt=1) for value in ("search", "read", "answer")]
    definition = {"task": {"name": "chat", "prompt": "Answer: {input}\n<i>briefly</i>"}}
    run_started = attrs.evolve(started(), definition=definition)  # type: ignore[misc]  # an event is an attrs class
    write_sync(tmp_path / "run", [run_started, session(), *events])

    tab = open_report(tmp_path / "run", fragment="#trial=a")
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
    """Search and filters are part of the address; an address without them, or with invalid ones, shows all."""
    address = write_report(tmp_path / "report.html", capitals(tmp_path / "run", wrong=["chad", "oslo"]))

    tab = open_tab(address)
    tab.page.click("[data-filter=fails]")
    tab.page.select_option("#filter", label="level: hard (2)")
    tab.page.wait_for_function("() => location.hash.includes('where=')")
    assert ["chad"] == open_tab(tab.page.url).rows()
    tab.evaluate("() => { location.hash = 'seq=4'; }")
    tab.page.wait_for_function("() => page.results.matches.length === 5")
    tab.evaluate(
        "() => { location.hash = 'where=nonsense&where=[1,2,3]&by=x&sort=x&filter=constructor&seq=nonsense&trial=nonsense'; }"
    )
    tab.page.wait_for_function("() => page.results.matches.length === 5")
    assert [] == tab.messages


@pytest.mark.parametrize("key", ["level", "region"])
def test_breakdown_by_metadata(key: str, tmp_path: Path, open_report: OpenTab) -> None:
    """The breakdown by a chosen key has the counts and means of `status --by`; a value filters the trials."""
    more = answered("lagos", {"exact": False}, metadata={"level": "hard", "region": "africa"})
    run = capitals(tmp_path / "run", wrong=["chad"], more=more)
    tab = open_report(run)

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
    assert {"level": ["chad", "lagos", "rome"], "region": ["lagos"]}[key] == tab.rows()


def test_metadata_that_groups_no_cases_is_not_offered(open_report: OpenTab) -> None:
    """A key with more values than half of the cases is neither a filter nor a breakdown; repeats are no further cases."""
    metadata = {f"case-{number}": {"facts": f"fact {min(number, 2)}", "level": number % 2} for number in range(4)}
    trials = [(case, values, repeat) for case, values in metadata.items() for repeat in (1, 2, 3)]
    events = [event for case, values, repeat in trials for event in answered(case, repeat=repeat, metadata=values)]
    tab = open_report(events)

    assert ["Add a filter …", "level: 0 (6)", "level: 1 (6)", "level: none"] == tab.texts("#filter option")
    assert ["level"] == tab.texts("#breakdown-key option")


def test_no_breakdown_without_metadata(open_report: OpenTab) -> None:
    """A run whose cases have no metadata has no breakdown."""
    tab = open_report(trial("peru", output="Lima", expected="Lima", passed=True))

    assert tab.page.is_hidden("#breakdown-title")
    assert ["Add a filter …", "exact passes (1)"] == tab.texts("#filter option")


def test_two_runs_side_by_side(tmp_path: Path, open_report: OpenTab) -> None:
    """A comparison has the paired differences, and for each trial both outputs and what changed; broken trials come first."""
    a = capitals(tmp_path / "a", wrong=["chad", "oslo"], more=answered("only-a"))
    b = capitals(tmp_path / "b", wrong=["rome"], seconds=0.5)
    tab = open_report(a, b)

    exact, latency, errors = tab.texts(".paired tbody tr")[:3]
    assert exact.startswith("exact50.0 %75.0 %+25.0 points")
    assert latency.startswith("latency0.25 s0.5 s")
    assert "errors11–" == errors
    assert ["rome", "chad", "oslo", "only-a", "peru", "gone"] == tab.rows()
    cells = tab.cells("rome")
    assert ("Lima", "Cusco", "pass → fail") == (cells["output-a"], cells["output-b"], cells["score-exact"])
    assert "brokenoutput changed, slower" == cells["change"]
    assert ("Lima", "–", "only in A") == tuple(tab.cells("only-a")[name] for name in ("output-a", "output-b", "change"))
    assert (["pass → fail"], ["fail → pass"] * 2) == (tab.texts(".table .worse"), tab.texts(".table .better"))
    marks = "() => [...document.querySelectorAll('.table mark')].map(mark => getComputedStyle(mark).backgroundColor)"
    assert 1 == len(set(tab.evaluate(marks)))  # A color is not a side.
    tab.page.click("[data-filter=fixed]")
    assert ["chad", "oslo"] == tab.rows()
    tab.page.click("[data-filter=slower]")
    assert {"peru", "chad", "oslo", "rome"} == set(tab.rows())
    assert "50.0 % → 100.0 %" in tab.text("[data-value=easy]")
    assert [] == tab.messages


def with_definition(path: Path, model: str, cost: float) -> Path:
    """Write a run of a chat model, with its definition and cost."""
    task = {"name": "chat", "model": model, "prompt": f"Answer {'briefly' if cost < 1 else 'at length'}.", "temperature": 0.2}
    git = {"git": f"{model}-revision"}
    run_started = attrs.evolve(started(), task_fingerprint=model, definition={"task": task}, environment=git)  # type: ignore[misc]  # an event is an attrs class
    write_sync(path, [run_started, session(), *answered("peru", {"exact": True}, usage={"cost": cost})])
    return path


def test_the_page_shows_what_a_and_b_are(tmp_path: Path, open_report: OpenTab) -> None:
    """What differs is at the top, in words as in `history`, then in full; the rest is folded. Costs have a currency."""
    runs = [with_definition(tmp_path / "a", "mini", 0.5), with_definition(tmp_path / "b", "large", 1.5)]
    tab = open_report(*runs)

    rows = [[cell.strip() for cell in row.split("\t")] for row in tab.page.locator(".facts tbody tr").all_inner_texts()]
    assert [
        ["model", "mini", "large"],
        ["prompt", "Answer briefly.", "Answer at length."],
        ["revision", "mini-revision", "large-revision"],
    ] == rows
    assert "The same in both: task name, temperature, cases, scorer exact" == tab.text(".facts-equal summary")
    changed = "model mini → large, prompt Answer briefly. → Answer at length."
    assert f"changed: {changed}, revision mini-re → large-r" == tab.texts("#since > span")[0]
    assert ["cost", "$0.500", "$1.50", "+$1.00"] == tab.texts(".paired tbody tr:last-child > *")[:4]
    assert ["+$1.00"] == tab.texts(".paired .worse")


def test_drawer_of_two_runs(tmp_path: Path, open_report: OpenTab) -> None:
    """The drawer of a comparison has both outputs with the difference marked, both scores and both lists of attempts."""
    a, b = capitals(tmp_path / "a"), capitals(tmp_path / "b", wrong=["rome"])
    tab = open_report(a, b)

    tab.page.click("[data-trial=rome]")
    headings = tab.texts("#drawer h3")
    assert ["Output in A", "Output in B", "Input", "Attempts in A", "Attempts in B", "Metadata"] == headings
    assert (["Lima"], ["Cusco"]) == (tab.texts("#drawer mark.removed"), tab.texts("#drawer mark.added"))
    assert ["exact in A✓ pass", "exact in B✗ fail"] == tab.texts("#drawer .scores tr")


def test_different_content_is_shown_of_both_runs(tmp_path: Path, open_report: OpenTab) -> None:
    """A case whose input or expected output differs between two runs shows both, in the table and in the drawer."""
    contents = {"a": ("Cusco", "capital"), "b": ("Lima", "largest city")}
    for name, (expected, question) in contents.items():
        same, different = (
            trial("chad", output="x", expected="x"),
            trial("peru", output="Lima", expected=expected, question=question),
        )
        write_sync(tmp_path / name, [started(), session(), *same, *different])
    tab = open_report(tmp_path / "a", tmp_path / "b")

    cells = tab.cells("peru")
    assert ("A: Cusco\nB: Lima", "A: capital of peru?\nB: largest city of peru?") == (cells["expected"], cells["input"])
    assert ("x", "capital of chad?") == (tab.cells("chad")["expected"], tab.cells("chad")["input"])
    tab.page.click("[data-trial=peru]")
    blocks = ["Expected in ACusco", "Expected in BLima", "Output in ALima", "Output in BLima"]
    assert [*blocks, "Input in Acapital of peru?", "Input in Blargest city of peru?"] == tab.texts("#drawer .block")


def test_chosen_run(tmp_path: Path, open_tab: OpenTab, open_report: OpenTab) -> None:
    """A switch chooses the run of the sections below the trials; the trials keep their filter."""
    a, b = capitals(tmp_path / "a", wrong=["chad", "oslo"]), capitals(tmp_path / "b")
    tab = open_report(a, b)
    assert "100.0 %" == tab.texts("#summary .figure")[0]

    tab.page.click("[data-filter=fixed]")
    tab.page.click("[data-run=A]")
    assert "50.0 %" == tab.texts("#summary .figure")[0]
    assert ["chad", "oslo"] == tab.rows()
    tab.page.wait_for_function("() => location.hash.includes('run=A')")
    assert "50.0 %" == open_tab(tab.page.url).texts("#summary .figure")[0]


def test_scores_of_several_versions(tmp_path: Path, open_report: OpenTab) -> None:
    """The summary shows how many scores and outputs are from an older version."""
    path = tmp_path / "run"
    adopted = {"task_fingerprint": "t2", "scorers": {"exact": "v2"}}
    second = attrs.evolve(session(2), adopted=adopted)  # type: ignore[misc]  # an event is an attrs class
    write_sync(path, [started(), session(), *answered("peru", {"exact": True})])
    write_sync(path, [second, *answered("oslo", {"exact": False}, version="v2")], new=False)
    tab = open_report(path)

    summary = tab.text("#summary")
    assert "from 2 versions of the scorer, 1 from an older one" in summary
    assert "1 from an older version of the task" in summary


def test_unscored_and_truncated_outputs_are_counted(open_report: OpenTab) -> None:
    """The summary has the number of outputs without a score, and of those that the token limit truncated."""
    note = Noted(name="evaljournal.answer", value={"outcome": "truncated"}, trial="peru", attempt=1)
    events = answered("peru")
    summary = open_report([*events[:2], note, *events[2:], *answered("oslo", {"exact": True})]).text("#summary")

    assert "excluded: 1 unscored" in summary
    assert "1 truncated" in summary


def test_labels_in_the_drawer(tmp_path: Path, open_report: OpenTab) -> None:
    """The drawer shows human labels with reviewer and note below the scores; markup in them is text."""
    path = capitals(tmp_path / "run")
    note = "<img src=x onerror=alert(1)>"
    evaljournal("annotate", path, "peru", "exact=no", "tone=polite", "--reviewer", "ada", "--note", note)
    tab = open_report(path, fragment="#trial=peru")

    assert ["label exact", "label tone"] == tab.texts("#drawer .label-row th")
    assert [f"ada: {note}"] * 2 == tab.texts("#drawer .label-row .reason")
    assert 0 == tab.page.locator("#drawer img").count()
