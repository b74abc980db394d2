"""The drawer of a report: the transcript of an agent, the calls of a judge, and what is shown first."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaljournal import Case, Command, Retry, evaluation, scorers
from evaljournal.journal import Event
from evaljournal.journal.events import AttemptStarted, AttemptSucceeded, StepReplayed, TrialCompleted
from evaljournal.journal.fact import evolve_fact
from evaljournal.runner.testing import Return, Scripted
from tests.browser.conftest import OpenTab, Tab
from tests.browser.pages import capitals, command_json, write_report
from tests.browser.support_run import OUTPUT, POLICY, REASON, support_run
from tests.journal.samples import enqueued, session, started, write_sync
from tests.replay.agent_run import ANSWER, MODEL, QUESTION, agent_run, completed, nested_run, reply, request
from tests.runs import AnyEvaluation, run_real
from tests.server import Server


@pytest.fixture
def tab(tmp_path: Path, open_tab: OpenTab) -> Tab:
    """Open the report of an agent's run, with the drawer of one trial."""
    return open_trial(open_tab, write_report(tmp_path / "report.html", agent_run(tmp_path / "run")), "weather")


@pytest.fixture
def open_support(tmp_path: Path, open_tab: OpenTab) -> Callable[[str], Tab]:
    """Return a function that opens a trial of the support agent."""
    address = write_report(tmp_path / "report.html", support_run(tmp_path / "run"))
    return lambda trial: open_trial(open_tab, address, trial)


def open_trial(open_tab: OpenTab, address: str, trial: str) -> Tab:
    """Open a report with the drawer of a trial."""
    tab = open_tab(f"{address}#trial={trial}")
    tab.page.wait_for_selector("#drawer:not([hidden])")
    return tab


def turns(tab: Tab) -> list[list[str]]:
    """Return label, preview and time of each turn that is shown."""
    rows: list[list[str]] = tab.evaluate(
        """() => [...document.querySelectorAll('.turn')].filter(turn => turn.offsetHeight).map(turn =>
            [...turn.querySelectorAll('.turn-label, .turn-preview, .error-text:not(.turn-preview *), .step-time')].map(part =>
                (part.classList.contains('turn-label') ? part.firstChild : part).textContent.trim()))"""
    )
    return rows


def bars(tab: Tab) -> list[Any]:
    """Return class, left edge and width in percent of each bar."""
    bars_of_tab: list[Any] = tab.evaluate(
        """() => [...document.querySelectorAll('.step-bar')].map(bar =>
            [bar.className.trim(), Math.round(parseFloat(bar.style.left)), Math.round(parseFloat(bar.style.width))])"""
    )
    return bars_of_tab


def test_what_did_the_agent_do_before_it_failed(open_report: OpenTab, tmp_path: Path) -> None:
    """One click on the trial shows the error, and every message and tool call before it, each once."""
    tab = open_report(support_run(tmp_path / "run"))

    tab.page.click("[data-trial=address]")

    assert "ConnectionError: no route to warehouse:5060" == tab.text("#drawer .status + pre.error")
    assert "reused 2 of 2 steps and continued at step 3" in tab.text("#drawer")
    assert [
        ["system", "You are the support agent of a shop. Use the tools; never guess an order's state."],
        ["user", "Please send order 18 to Calle Lima 5."],
        ["assistant", "calls find_order", "reused"],
        ["tool", 'find_order {"order":18} → {"order":18,"state":"packed"}', "reused"],
        ["assistant", "I will change the address.", "0.8 s"],
        [
            "tool",
            'change_address {"order":18,"to":"Calle Lima 5"} → {"ok":false,"error":"the order has left the warehouse"}',
            "0.2 s",
        ],
        ["assistant", "calls call_warehouse", "0.8 s"],
        ["tool", 'call_warehouse {"order":18} → ConnectionError: no route to warehouse:5060', "✕ 0.1 s"],
        ["error", "ConnectionError: no route to warehouse:5060"],
    ] == turns(tab)
    assert [] == tab.messages


def test_where_did_the_judge_misread(open_report: OpenTab, tmp_path: Path) -> None:
    """Two clicks show the verdict, the reason, and the prompt and the reply as text, with the judged output marked."""
    tab = open_report(support_run(tmp_path / "run"))

    tab.page.click("[data-trial=refund]")
    assert ["polite✓ pass", f"judge✗ fail{REASON}"] == tab.texts(".scores tr:not(.judge-row)")
    tab.page.click("text=Judge gpt-4o: prompt and 1 reply")

    assert ["prompt", "reply"] == tab.texts(".judge h4")
    assert OUTPUT == tab.text(".judge .judged")
    assert tab.text(".judge pre").startswith("Does the answer state the refund and that shipping is not refunded?\n")
    assert "verdict: incorrect" == tab.text(".judge .verdict")
    assert "evaljournal.judge " not in tab.text("#drawer")


def test_several_judges(server: Server, tmp_path: Path, open_tab: OpenTab) -> None:
    """Each judge's calls are below its own score; a reply without a verdict is followed by the reminder."""
    replies = {
        "fair": "reply:It names the city. verdict: correct",
        "strict": "reply:I cannot tell,reply:Not at all. verdict: incorrect",
    }
    judged: AnyEvaluation = evaluation(cases=[Case(name="a", input="a", expected="y")], loop="trio")(
        Scripted({"a": [Return("x")]})
    )
    for name, steps in replies.items():
        judge = scorers.judge("small", base_url=server.url(f"report-{name}", steps, "v1"))
        judged.score(name=name, retry=Retry(errors=2, base_delay=0.01))(judge)
    run_real(judged, tmp_path / "run")
    tab = open_trial(open_tab, write_report(tmp_path / "report.html", tmp_path / "run"), "a")

    tab.page.keyboard.press("e")

    assert ["fair✓ pass", "strict✗ fail"] == [
        text.split("It names")[0].split("Not at")[0] for text in tab.texts(".scores tr:not(.judge-row)")
    ]
    assert [["prompt", "reply"], ["prompt", "reply 1 of 2", "reminder", "reply 2 of 2"]] == [
        block.locator("h4").all_text_contents() for block in tab.page.locator(".judge").all()
    ]
    assert ["verdict: correct", "verdict: incorrect"] == tab.texts(".judge .verdict")


def test_what_decides_comes_first(open_support: Callable[[str], Tab]) -> None:
    """The scores are followed by the output and the expected one, the input, the transcript, the attempts and the records."""
    tab = open_support("refund")

    parts = "[...document.querySelectorAll('#drawer :is(.scores, h3, .records)')]"
    script = f"() => {parts}.map(part => part.className || part.textContent)"
    assert ["scores", "Output", "Expected", "Input", "Transcript", "Attempts", "records"] == tab.evaluate(script)
    assert "without the shipping" in tab.texts("mark.removed")


def test_superseded_attempts_are_folded(open_support: Callable[[str], Tab]) -> None:
    """The transcript of an earlier attempt opens on demand."""
    tab = open_support("address")
    assert 9 == len(turns(tab))

    tab.page.click("text=Transcript: 3 steps")

    assert ["assistant", "BadStatus: 429 Too Many Requests", "✕ 0.1 s"] in turns(tab)


def test_content_is_created_on_demand(open_support: Callable[[str], Tab]) -> None:
    """A turn has its text only once it is open: JSON as a tree with its numbers unchanged, Markdown as text, in full height."""
    tab = open_support("refund")
    assert (0, 0) == (tab.page.locator(".turn .part").count(), tab.page.locator(".turn details[open]").count())

    tab.page.click(".turn b:has-text('find_order')")
    tab.page.click(".turn b:has-text('read_policy')")

    tree = tab.text(".turn .json details")
    assert '"price": 40.0' in tree
    assert '"address": {"city": "Lima"}' in tree
    assert POLICY == tab.text(".turn:has-text('read_policy') details[open] .part pre")
    overflowing = (
        "() => [...document.querySelectorAll('#drawer pre')].filter(pre => pre.scrollHeight > pre.clientHeight + 1).length"
    )
    assert 0 == tab.evaluate(overflowing)


def test_json_is_shown_exactly(tmp_path: Path, open_tab: OpenTab) -> None:
    """Numbers keep their digits, strings have their lines, deeply nested JSON is no tree, and invalid JSON is text."""
    values = ['{"id":12345678901234567890,"share":1.0,"<b>":"\\u202e"}', "[" * 8_000 + "]" * 8_000, '{"a": NaN}', "[]"]
    tab = open_trial(open_tab, write_report(tmp_path / "report.html", capitals(tmp_path / "run")), "peru")

    shown = tab.evaluate("values => values.map(value => valueElement([value]).textContent)", values)
    indented = tab.evaluate("values => values.map(value => fullText([value]))", values)

    assert '{"id": 12345678901234567890, "share": 1.0, "<b>": "\\u202e"}' == shown[0]
    assert '{\n  "id": 12345678901234567890,\n  "share": 1.0,\n  "<b>": "\\u202e"\n}' == indented[0]
    assert values[1] == "".join(shown[1].split())
    assert (values[2:], values[2:]) == (shown[2:], indented[2:])
    assert '{1 field}"a": two\nlines' == tab.evaluate('() => valueElement(\'{"a": "two\\\\nlines"}\').textContent')


def test_keys(open_support: Callable[[str], Tab]) -> None:
    """`e` opens everything and closes it again, arrows and j and k go to other trials, Escape closes the drawer."""
    tab = open_support("refund")

    tab.page.keyboard.press("e")
    assert 0 == tab.page.locator("#drawer details:not([open])").count()
    assert OUTPUT == tab.text(".judge .judged")
    tab.page.keyboard.press("e")
    assert 0 == tab.page.locator("#drawer details[open]").count()
    titles = []
    for key in ("ArrowRight", "ArrowLeft", "j", "k"):
        tab.page.keyboard.press(key)
        titles.append(tab.text("#drawer-title"))
    assert ["address", "refund", "address", "refund"] == titles
    tab.page.keyboard.press("Escape")
    assert tab.page.is_hidden("#drawer")


def test_a_step_is_opened_with_the_keyboard(tab: Tab) -> None:
    """Enter opens a turn; it has the record, the usage, and how to see the state at its end."""
    tab.page.focus(".turn.model summary")
    tab.page.keyboard.press("Enter")

    assert f"seq 12 · {MODEL} · reused from attempt 1" == tab.text(".turn.model details[open] > p")
    tab.page.focus(".turn.model:has-text('21 °C') summary")
    tab.page.keyboard.press("Enter")
    usage = "input tokens 100 · output tokens 20 · cost $0.250"
    assert f"seq 14 · {MODEL} · {usage}" == tab.text(".turn.model:has-text('21 °C') details[open] > p")


def test_bars(tab: Tab) -> None:
    """Every step has a bar at its time; reused and failed ones are marked, and nested ones are indented."""
    assert [
        ["step-bar model reused", 17, 0],
        ["step-bar tool reused", 33, 0],
        ["step-bar model", 33, 17],
        ["step-bar other", 50, 33],
        ["step-bar tool", 50, 17],
    ] == bars(tab)
    assert ["1", "2", "3", "4", "5"] == tab.texts(".turn-number")
    margins = tab.evaluate("() => [...document.querySelectorAll('.turn')].map(turn => turn.style.marginLeft)")
    assert ["0em"] * 6 + ["1em"] == margins
    colors = tab.evaluate("() => [...document.querySelectorAll('.step-bar')].map(bar => getComputedStyle(bar).backgroundColor)")
    assert ("rgba(0, 0, 0, 0)", 4) == (colors[0], len(set(colors)))
    assert [] == tab.messages


def test_a_conversation_is_shown_once(tab: Tab) -> None:
    """A request shows only the messages that no earlier request, reply or tool step has shown."""
    assert [
        ["system", "Use the tools."],
        ["user", QUESTION],
        ["assistant", "calls get_weather", "reused"],
        ["tool", 'get_weather {"city":"Lima"} → {"celsius":21}', "reused"],
        ["assistant", ANSWER, "1 ms"],
    ] == turns(tab)[:5]


def test_a_repeated_conversation_without_references(tmp_path: Path, open_tab: OpenTab) -> None:
    """A client that sends all messages again, and runs tools outside of steps: each result belongs to the call with its id."""
    yes: dict[str, Any] = {"role": "user", "content": "yes"}
    functions = [{"name": "look", "arguments": f'{{"at":{number}}}'} for number in (1, 2)]
    calls = [{"id": f"c{number}", "function": function} for number, function in enumerate(functions, 1)]
    asked = {"role": "assistant", "content": "Look?"}
    results = [{"role": "tool", "tool_call_id": f"c{number}", "content": f"seen {number}"} for number in (2, 1)]
    requests: list[list[Any]] = [
        [yes],
        [yes, asked, yes],
        [yes, asked, yes, {"role": "assistant", "tool_calls": calls}, *results],
    ]
    replies: list[dict[str, Any]] = [{"content": "Look?"}, {"tool_calls": calls}, {"content": "done"}]
    steps = [
        completed("a", 1, number, MODEL, kind="model", input=request(*messages), output=reply(**message))
        for number, (messages, message) in enumerate(zip(requests, replies, strict=True), 1)
    ]
    write_sync(tmp_path / "run", [started(), session(), enqueued("a"), AttemptStarted(trial="a", attempt=1, slot=0), *steps])
    tab = open_trial(open_tab, write_report(tmp_path / "report.html", tmp_path / "run"), "a")

    assert [
        ["user", "yes"],
        ["assistant", "Look?"],
        ["user", "yes"],
        ["assistant", "calls look, look"],
        ["tool", 'look {"at":1} → seen 1'],
        ["tool", 'look {"at":2} → seen 2'],
        ["assistant", "done"],
    ] == [turn[:2] for turn in turns(tab)]


def test_a_long_transcript(tmp_path: Path, open_tab: OpenTab) -> None:
    """Of many steps, the first and the last ones are shown; a button shows the others. No content is in the document."""
    steps = [completed("a", 1, number, "read", kind="tool", output=f"{number} " + "x" * 5_000) for number in range(1, 401)]
    write_sync(tmp_path / "run", [started(), session(), enqueued("a"), AttemptStarted(trial="a", attempt=1, slot=0), *steps])
    tab = open_trial(open_tab, write_report(tmp_path / "report.html", tmp_path / "run"), "a")

    numbers = tab.texts(".turn-number")
    assert (300, "100", "201") == (len(numbers), numbers[99], numbers[100])
    assert 200_000 > len(tab.text(".transcript"))
    tab.page.click("text=Show 100 more steps and messages")
    assert [str(number) for number in range(1, 401)] == tab.texts(".turn-number")


def test_divergence_and_unreadable_results_are_reported(tab: Tab) -> None:
    """The drawer has the words of `show` about reused steps, divergence and results that could not be read."""
    assert "reused 2 of 2 steps and continued at step 3" in tab.text("#drawer")

    tab.evaluate("() => { location.hash = '#trial=route'; }")
    tab.page.wait_for_function("() => document.getElementById('drawer-title').textContent === 'route'")

    assert "reused 1 of 2 steps and diverged at step 2" in tab.text("#drawer")
    assert "step walk is executed again; its result could not be read: blobs/ab/cd is missing" in tab.text("#drawer")


def test_a_reused_step_includes_the_steps_inside_it(tmp_path: Path, open_tab: OpenTab) -> None:
    """Steps inside a reused step do not count as unused."""
    tab = open_trial(open_tab, write_report(tmp_path / "report.html", nested_run(tmp_path / "run")), "a")

    assert "reused 1 of 1 step and continued at step 2" == tab.text(".transcript-head + p")


def test_the_record_of_a_step(tab: Tab, tmp_path: Path) -> None:
    """A step leads to the state at its end."""
    tab.page.click("text=Transcript: 3 steps")
    tab.page.click(".attempts .turn.model summary")
    tab.page.click(".attempts .turn.model details[open] .link")
    tab.page.wait_for_function("() => document.getElementById('event').textContent.startsWith('seq 6 ·')")

    replayed = command_json("replay", str(tmp_path / "run"), "--at", "6")
    assert 1 == replayed["steps"]["completed"] == int(tab.text("#step-counter dd"))


def test_records(tab: Tab) -> None:
    """The latency is at the top; times, slots and the command are in the folded records."""
    assert tab.text("#drawer .status").endswith(", 2 attempts, 6 steps · latency 8 ms")
    tab.page.click(".records > summary")
    assert tab.text(".records p").endswith(" · time to completion 14 ms")


def test_tile(tab: Tab) -> None:
    """The summary has the executed and the reused steps, and what was not paid for again."""
    tile = next(text for text in tab.texts(".tile") if text.startswith("steps"))

    assert "steps101 failed3 steps reused, $0.500 not paid again" == tile


def test_a_run_without_steps(tmp_path: Path, open_tab: OpenTab) -> None:
    """A run without steps shows nothing about steps."""
    tab = open_trial(open_tab, write_report(tmp_path / "report.html", capitals(tmp_path / "run")), "peru")

    assert ([], False) == (tab.texts(".transcript"), tab.page.is_visible("#step-counter"))
    assert not any(text.startswith("steps") for text in tab.texts(".tile"))


def test_two_runs(tmp_path: Path, open_tab: OpenTab) -> None:
    """In a comparison, the drawer has the transcripts of both runs."""
    one, two = agent_run(tmp_path / "one"), agent_run(tmp_path / "two")
    tab = open_trial(open_tab, write_report(tmp_path / "report.html", one, two), "weather")

    assert 10 == len(bars(tab))
    assert ["Transcript in A, attempt 2", "Transcript in B, attempt 2"] == tab.texts(".transcript-head h3")
    assert [] == tab.messages


def test_narrow_screen(tmp_path: Path, open_tab: OpenTab) -> None:
    """On a phone, nothing in the open drawer is wider than the screen."""
    address = write_report(tmp_path / "report.html", support_run(tmp_path / "run"))
    tab = open_tab(f"{address}#trial=refund", width=400)
    tab.page.wait_for_selector("#drawer:not([hidden])")
    tab.page.keyboard.press("e")

    widths = "() => [document.getElementById('drawer').scrollWidth, document.getElementById('drawer').clientWidth]"
    scroll_width, width = tab.evaluate(widths)
    assert (scroll_width, True) == (width, width <= 400)


def test_a_diff_is_beside_the_transcript(tmp_path: Path, open_tab: OpenTab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drawer lists the changed files with the diff; what an agent has written is text."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/a.txt").write_text("old\n")
    task = Command("echo '</script><img src=x onerror=document.title=1>' > a.txt", shell=True)  # noqa: S604  # of the test
    run_real(evaluation(cases=[Case(name="peru", input=1)], name="fix", workspace=tmp_path / "repo")(task), tmp_path / "run")
    tab = open_trial(open_tab, write_report(tmp_path / "report.html", tmp_path / "run"), "peru")

    assert "a.txt modified" == tab.evaluate("() => document.querySelector('.changed-files').textContent")
    assert ["-old", "+</script><img src=x onerror=document.title=1>"] == tab.evaluate(
        "() => [...document.querySelectorAll('.diff-removed, .diff-added')].map(line => line.textContent.trim())"
    )
    assert 0 == tab.evaluate("() => document.querySelectorAll('#drawer img').length")


def test_replies_of_another_run(tmp_path: Path, open_tab: OpenTab) -> None:
    """The head has what was not paid and what `what-if` has replaced; a replayed step has no time, and the trial no latency."""
    reply_fields: dict[str, Any] = {
        "source_run": "r",
        "source_seq": 9,
        "source_head": "h",
        "unpaid": {"cost": 0.5},
        "elapsed": 0.0,
    }
    step = StepReplayed(trial="a", attempt=1, step=1, name=MODEL, fingerprint="f", kind="model", output="Lima", **reply_fields)
    run_started = evolve_fact(started(), settings={"live_from": 2, "live_model": "small"})
    events: list[Event] = [enqueued("a"), AttemptStarted(trial="a", attempt=1, slot=0), step]
    events += [AttemptSucceeded(trial="a", attempt=1, output="Lima", elapsed=1.0), TrialCompleted(trial="a", attempts=1)]
    write_sync(tmp_path / "run", [run_started, session(), *events])

    tab = open_trial(open_tab, write_report(tmp_path / "report.html", tmp_path / "run"), "a")

    assert ["replayed: 1 reply, $0.500 not paid", "what-if: calls from step 2 on to small"] == tab.texts(".replies")
    assert [["assistant", "Lima", "replayed"]] == turns(tab)
    assert "–not measured" in tab.texts(".tile")[1].removeprefix("latency")
    assert [] == tab.messages
