"""People label outputs in a browser: by keyboard, on a phone, several at a time, and through a kill of the server."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evaljournal import Case, evaluation, run, step
from evaljournal.journal import verify
from evaljournal.replay.review.labels import read_review
from tests.browser.conftest import OpenTab, Tab
from tests.processes import Forked
from tests.runner_cli.commands import evaljournal, process

MARKUP = "<img src=x onerror=alert(1)>"

StartReview = Callable[..., tuple[Forked, str]]


@pytest.fixture
def start_review() -> Iterator[StartReview]:
    """Return a function that starts `evaljournal review`, and returns the process and the address."""
    processes: list[Forked] = []

    def start(*arguments: object) -> tuple[Forked, str]:
        server = process("review", *arguments)
        processes.append(server)
        assert server.stdout is not None
        return server, server.stdout.readline().strip()

    yield start
    for server in processes:
        server.kill()
        server.communicate()


def recorded_run(count: int = 60) -> Path:
    """Record a run whose judge passes all outputs except every fifth."""
    cases = [Case(name=f"case-{number:02}", input=number, expected=f"{number}") for number in range(count)]

    @evaluation(cases=cases, name="qa")
    def answer(number: int) -> Any:
        result = step("search", "found {}".format, f"query {number}") if number % 2 else None
        return {"answer": number, "markup": MARKUP, "source": result}

    @answer.score
    def judge(output: Any) -> bool:
        return bool(output["answer"] % 5)

    return run(answer, quiet=True).path


def press(tab: Tab, key: str, saved: int) -> None:
    """Press a key and wait until this number of outputs is labeled, and the next one is shown."""
    tab.page.keyboard.press(key)
    tab.page.wait_for_function("count => review.labeled === count && !review.isSaving", arg=saved)
    tab.page.wait_for_function("() => review.index < 0 || review.details.has(review.index)")


def labels(path: Path) -> dict[str, Any]:
    """Return the labels that count, by trial."""
    return {label.trial: label.value for label in read_review(path).labels}


def test_50_labels_by_keyboard(start_review: StartReview, open_tab: OpenTab) -> None:
    """A reviewer labels a sample of 50 by keyboard; every label is recorded, and the page shows the end."""
    path = recorded_run()
    _, address = start_review(path, "--sample", 50, "--seed", 1, "--reviewer", "ada")
    tab = open_tab(address)
    expected: dict[str, bool] = {}
    for count in range(50):
        trial = tab.evaluate("() => review.item.trial")
        is_right = bool(int(trial.removeprefix("case-")) % 7)
        press(tab, "1" if is_right else "2", count + 1)
        expected[trial] = is_right

    review = read_review(path)
    assert "All outputs of the sample are labeled." == tab.text(".done")
    assert "judge: 50 of 50 outputs labeled" == tab.text("h1")
    assert expected == labels(path)
    assert (50, {("ada", False, 1)}) == (len(review.history), {(x.reviewer, x.is_blind, x.sample) for x in review.labels})
    assert verify(path).ok
    assert [] == tab.messages
    assert all(url.startswith(address) for url in tab.requests)


def test_notes_skips_and_undo(start_review: StartReview, open_tab: OpenTab) -> None:
    """`n` writes a note, `s` skips until the end, `u` withdraws the last label; nothing is deleted from the journal."""
    path = recorded_run(3)
    _, address = start_review(path, "--sample", 3)
    tab = open_tab(address)
    order = tab.evaluate("() => review.trials.map(item => item.trial)")
    tab.page.keyboard.press("s")
    tab.page.wait_for_function("trial => review.item.trial === trial", arg=order[1])
    tab.page.keyboard.press("n")
    tab.page.wait_for_function("() => document.activeElement.matches('textarea, input')")
    tab.page.keyboard.type("1 is not 2")
    tab.page.keyboard.press("Escape")
    press(tab, "2", 1)
    press(tab, "1", 2)
    press(tab, "u", 1)
    shown_after_undo = tab.evaluate("() => review.item.trial")
    press(tab, "2", 2)
    shown_last = tab.evaluate("() => review.item.trial")
    press(tab, "1", 3)
    history = [(label.trial, label.value, label.note) for label in read_review(path).history]

    assert (order[2], order[0]) == (shown_after_undo, shown_last)
    assert [
        (order[1], False, "1 is not 2"),
        (order[2], True, ""),
        (order[2], "", ""),
        (order[2], False, ""),
        (order[0], True, ""),
    ] == history


def test_blind_mode(start_review: StartReview, open_tab: OpenTab) -> None:
    """With --blind, the page and its requests have no scores, and labels record it; otherwise the scores are shown."""
    path = recorded_run(4)
    _, address = start_review(path, "--sample", 4, "--blind")
    tab = open_tab(address)
    tab.page.wait_for_selector(".output")
    blind_text, has_scores = tab.text("main"), tab.page.locator(".scores").count()
    press(tab, "1", 1)
    _, open_address = start_review(path)
    other = open_tab(open_address)
    other.page.wait_for_selector(".scores")

    assert (0, True) == (has_scores, "blind: scores are hidden" in blind_text)
    assert [] == tab.evaluate("() => review.details.get(0).scores")
    assert [True] == [label.is_blind for label in read_review(path).labels]


def test_contents_are_text(start_review: StartReview, open_tab: OpenTab) -> None:
    """Input, expected output, output and trajectory are shown; markup in them stays text."""
    path = recorded_run(2)
    _, address = start_review(path, "--sample", 2)
    tab = open_tab(address)
    tab.page.wait_for_selector(".output")
    while tab.evaluate("() => review.item.trial") != "case-01":
        tab.page.keyboard.press("ArrowRight")
        tab.page.wait_for_function("() => review.details.has(review.index)")
    tab.page.click(".trajectory summary")
    text = tab.text("main")

    assert all(part in text for part in ("Input", "Expected", MARKUP, "search", "found query 1"))
    assert 0 == tab.page.locator("main img").count()
    assert [] == tab.messages


@pytest.mark.parametrize("width", [320, 390])
def test_on_a_phone(start_review: StartReview, open_tab: OpenTab, width: int) -> None:
    """On a narrow screen, labels are given by touch, the buttons are large, and nothing is wider than the screen."""
    path = recorded_run(3)
    _, address = start_review(path, "--sample", 3)
    tab = open_tab(address, width=width)
    tab.page.wait_for_selector(".output")
    sizes = tab.evaluate("() => [...document.querySelectorAll('.label-buttons button')].map(each => each.offsetHeight)")
    tab.page.click(".label-buttons [data-label=no]")
    tab.page.wait_for_function("() => review.labeled === 1 && !review.isSaving")
    tab.page.screenshot(path="phone.png")

    assert min(sizes) >= 40
    assert width >= tab.evaluate("() => document.documentElement.scrollWidth")
    assert [False] == list(labels(path).values())


def test_two_reviewers_at_once(start_review: StartReview, open_tab: OpenTab) -> None:
    """Two browsers with different reviewers and `annotate` beside them record every label."""
    path = recorded_run(12)
    _, address = start_review(path, "--sample", 10, "--reviewer", "ada")
    _, other_address = start_review(path, "--reviewer", "grace")
    ada, grace = open_tab(address), open_tab(other_address)
    trials = ada.evaluate("() => review.trials.map(item => item.trial)")
    for count, trial in enumerate(trials, start=1):
        ada.page.keyboard.press("1")
        grace.page.keyboard.press("2")
        assert 0 == evaljournal("annotate", path, trial, "judge=yes", "--reviewer", "alan").exit_code
        for tab in (ada, grace):
            tab.page.wait_for_function("count => review.labeled === count && !review.isSaving", arg=count)
            tab.page.wait_for_function("() => review.index < 0 || review.details.has(review.index)")
    counted = [(label.reviewer, label.value) for label in read_review(path).labels]

    assert {("ada", True): 10, ("grace", False): 10, ("alan", True): 10} == {pair: counted.count(pair) for pair in counted}
    assert verify(path / "review").ok


def test_another_reviewer_in_the_same_browser(start_review: StartReview, open_tab: OpenTab) -> None:
    """The name in the page selects the reviewer; each has labels of their own."""
    path = recorded_run(2)
    _, address = start_review(path, "--sample", 2, "--reviewer", "ada")
    tab = open_tab(address)
    press(tab, "1", 1)
    tab.page.fill("#reviewer", "grace")
    tab.page.press("#reviewer", "Enter")
    tab.page.wait_for_function("() => review.reviewer === 'grace' && review.labeled === 0")
    tab.page.evaluate("() => document.activeElement.blur()")
    press(tab, "2", 1)

    assert [("ada", True), ("grace", False)] == [(label.reviewer, label.value) for label in read_review(path).labels]


def test_the_server_is_killed(start_review: StartReview, open_tab: OpenTab) -> None:
    """After kill -9, no acknowledged label is missing; the page shows what is not saved, and the next server continues."""
    path = recorded_run(12)
    server, address = start_review(path, "--sample", 12, "--reviewer", "ada")
    tab = open_tab(address)
    for count in range(5):
        press(tab, "1", count + 1)
    acknowledged = tab.evaluate("() => review.trials.filter(item => item.label !== null).map(item => item.trial)")
    server.send_signal(signal.SIGKILL)
    server.wait()
    tab.page.keyboard.press("1")
    tab.page.wait_for_selector(".saved.failed")
    _, new_address = start_review(path, "--reviewer", "ada")
    new_tab = open_tab(new_address)

    assert tab.text(".saved").startswith("not saved: no connection to the server")
    assert set(acknowledged) == set(labels(path))
    assert (5, 5) == (len(acknowledged), new_tab.evaluate("() => review.labeled"))
    assert new_tab.evaluate("() => review.item.trial") not in acknowledged
    press(new_tab, "2", 6)
    assert 6 == len(labels(path))


def test_labels_belong_to_the_reviewer_that_is_shown(start_review: StartReview, open_tab: OpenTab) -> None:
    """Clicks while something is being saved wait for it: a label after a new name is the new reviewer's, and none is lost."""
    path = recorded_run(3)
    _, address = start_review(path, "--sample", 3, "--reviewer", "ada")
    tab = open_tab(address)
    tab.page.wait_for_function("() => review.details.has(review.index)")
    first = tab.evaluate("() => review.item.trial")
    tab.evaluate("""() => {
        const input = document.getElementById("reviewer");
        input.value = "grace";
        input.dispatchEvent(new Event("change"));
        review.label("no");
        return review.queue;
    }""")
    tab.evaluate("""() => {
        review.go(0);
        review.changeNote(review.trials[0], "why");
        review.note.value = "why";
        review.label("yes");
        return review.queue;
    }""")
    tab.evaluate("() => { review.changeReviewer('ada'); review.undo(); return review.queue; }")
    history = [(label.trial, label.value, label.note, label.reviewer) for label in read_review(path).history]

    assert [(first, False, "", "grace"), (first, False, "why", "grace"), (first, True, "why", "grace")] == history
