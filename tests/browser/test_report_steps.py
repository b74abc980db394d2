"""The drawer of a report shows the steps of each attempt as a waterfall."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import OpenTab, Tab
from tests.browser.pages import capitals, command_json, write_report
from tests.replay.agent_run import ANSWER, QUESTION, agent_run, nested_run


@pytest.fixture
def tab(tmp_path: Path, open_tab: OpenTab) -> Tab:
    """Open the report of an agent's run, with the drawer of one trial."""
    tab = open_tab(write_report(tmp_path / "report.html", agent_run(tmp_path / "run")) + "#trial=weather")
    tab.page.wait_for_selector("#drawer:not([hidden])")
    return tab


def bars(tab: Tab) -> list[Any]:
    """Return class, left edge and width in percent of each bar."""
    bars_of_tab: list[Any] = tab.evaluate(
        """() => [...document.querySelectorAll('.steps .step-bar')].map(bar =>
            [bar.className.trim(), Math.round(parseFloat(bar.style.left)), Math.round(parseFloat(bar.style.width))])"""
    )
    return bars_of_tab


def test_waterfall(tab: Tab) -> None:
    """Every step has a bar at its time; reused and failed ones are marked, and nested ones follow their caller."""
    assert [
        ["step-bar model", 0, 25],
        ["step-bar tool", 25, 25],
        ["step-bar model failed", 50, 25],
        ["step-bar model reused", 17, 0],
        ["step-bar tool reused", 33, 0],
        ["step-bar model", 33, 17],
        ["step-bar other", 50, 33],
        ["step-bar tool", 50, 17],
    ] == bars(tab)
    assert ["1", "2", "3", "1", "2", "3", "4", "5"] == tab.texts(".step-number")
    assert ["1 ms", "1 ms", "✕ 1 ms", "reused", "reused", "1 ms", "2 ms", "1 ms"] == tab.texts(".step-time")
    assert "0em" == tab.evaluate("() => document.querySelectorAll('.step-name')[6].style.paddingLeft")
    assert "1em" == tab.evaluate("() => document.querySelectorAll('.step-name')[7].style.paddingLeft")
    assert [] == tab.messages


def test_latency_and_time_to_completion(tab: Tab) -> None:
    """The drawer has both times of the trial; the latency includes the reused steps."""
    assert "latency 8 ms · time to completion 14 ms" == tab.texts("#drawer .status ~ .faint")[1]


def test_the_colors_of_reused_and_failed_steps(tab: Tab) -> None:
    """A reused step is hollow, and a failed one has the color of errors."""
    backgrounds = tab.evaluate(
        "() => [...document.querySelectorAll('.steps .step-bar')].map(bar => getComputedStyle(bar).backgroundColor)"
    )

    assert "rgba(0, 0, 0, 0)" == backgrounds[3] == backgrounds[4]
    assert 4 == len({*backgrounds[:3], *backgrounds[5:7]})


def test_keyboard(tab: Tab) -> None:
    """A step is opened with the keyboard; its messages and tool calls can be scrolled with it."""
    tab.page.focus(".steps summary")
    tab.page.keyboard.press("Enter")

    assert ["system", "user", "reply"] == tab.texts("details[open] .message h4")
    assert ["Use the tools.", QUESTION, 'get_weather({"city":"Lima"})'] == tab.texts("details[open] .message pre")
    assert "seq 6 model · input tokens 100 · output tokens 20 · cost $0.250" == tab.text("details[open] p")
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("Tab")
    assert "PRE" == tab.evaluate("() => document.activeElement.tagName")
    name = tab.evaluate("() => document.querySelectorAll('.steps summary')[2].getAttribute('aria-label')")
    assert "step 3, model, chat.completions gpt-5-mini, failed after 1 ms" == name


def test_a_continued_conversation_shows_its_new_messages(tab: Tab) -> None:
    """A step shows the messages that it added; a reused one shows those of the step that was executed."""
    tab.evaluate("() => { for (const index of [3, 5]) document.querySelectorAll('.steps details')[index].open = true; }")

    assert ["system", "user", "reply", "assistant", "tool", "reply"] == tab.texts("details[open] .message h4")
    assert [ANSWER] == tab.texts("details[open] .message pre")[-1:]
    assert [
        "seq 12 model · reused from attempt 1",
        "seq 14 model · input tokens 100 · output tokens 20 · cost $0.250 · after the messages of step 1",
    ] == tab.texts("details[open] > p")


def test_divergence_and_unreadable_results_are_reported(tab: Tab) -> None:
    """The drawer has the words of `show` about reused steps, divergence and results that could not be read."""
    assert "reused 2 of 2 steps and continued at step 3" in tab.text("#drawer")

    tab.evaluate("() => { location.hash = '#trial=route'; }")
    tab.page.wait_for_function("() => document.getElementById('drawer-title').textContent === 'route'")

    assert "reused 1 of 2 steps and diverged at step 2" in tab.text("#drawer")
    assert "step walk is executed again; its result could not be read: blobs/ab/cd is missing" in tab.text("#drawer")


def test_a_reused_step_includes_the_steps_inside_it(tmp_path: Path, open_tab: OpenTab) -> None:
    """Steps inside a reused step do not count as unused."""
    tab = open_tab(write_report(tmp_path / "report.html", nested_run(tmp_path / "run")) + "#trial=a")
    tab.page.wait_for_selector("#drawer:not([hidden])")

    assert ["reused 1 of 1 step and continued at step 2"] == tab.texts(".trajectory > p:not(.step-legend)")


def test_the_record_of_a_step(tab: Tab, tmp_path: Path) -> None:
    """A step leads to the state at its end."""
    tab.page.click(".steps summary")
    tab.page.click(".steps details[open] .link")
    tab.page.wait_for_function("() => document.getElementById('event').textContent.startsWith('seq 6 ·')")

    replayed = command_json("replay", str(tmp_path / "run"), "--at", "6")
    assert 1 == replayed["steps"]["completed"] == int(tab.text("#step-counter dd"))


def test_tile(tab: Tab) -> None:
    """The summary has the executed and the reused steps, and what was not paid for again."""
    tile = next(text for text in tab.texts(".tile") if text.startswith("steps"))

    assert "steps101 failed3 steps reused, $0.500 not paid again" == tile


def test_a_run_without_steps(tmp_path: Path, open_tab: OpenTab) -> None:
    """A run without steps shows nothing about steps."""
    tab = open_tab(write_report(tmp_path / "report.html", capitals(tmp_path / "run")) + "#trial=peru")
    tab.page.wait_for_selector("#drawer:not([hidden])")

    assert ([], False) == (tab.texts(".trajectory"), tab.page.is_visible("#step-counter"))
    assert not any(text.startswith("steps") for text in tab.texts(".tile"))


def test_two_runs(tmp_path: Path, open_tab: OpenTab) -> None:
    """In a comparison, each run's attempts have their steps."""
    one, two = agent_run(tmp_path / "one"), agent_run(tmp_path / "two")
    tab = open_tab(write_report(tmp_path / "report.html", one, two) + "#trial=weather")
    tab.page.wait_for_selector("#drawer:not([hidden])")

    assert 16 == len(bars(tab))
    assert [] == tab.messages
