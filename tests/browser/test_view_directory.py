"""The live page of a directory in a browser: filters, two runs side by side, the page of a run, and hostile names."""

from pathlib import Path
from typing import Any

from tests.browser.conftest import OpenTab
from tests.browser.test_view import start_process as start_process  # noqa: PLC0414  # a fixture
from tests.journal.samples import write_trials
from tests.replay.trial_events import answered

HOSTILE = "<img src=x onerror=alert(1)>\u202e"


def run(name: str, model: str, passed: int, evaluation: str = "capitals") -> None:
    trials = (answered(f"case-{at}", {"exact": at < passed}, usage={"cost": 0.5}) for at in range(4))
    fields: dict[str, Any] = {"evaluation": evaluation, "definition": {"task": {"model": model}}}
    write_trials(Path("runs") / name, *trials, **fields)


def test_the_page_of_a_directory(tmp_path: Path, start_process: Any, open_tab: OpenTab) -> None:
    """Runs are filtered by evaluation and model; two are compared, and one is opened; a new run appears by itself."""
    run("capitals/0001", "small", 1)
    run("capitals/0002", "large", 3)
    run("cities/0001", HOSTILE, 2, HOSTILE)
    tab = open_tab(start_process("view").stdout.readline().strip())
    tab.page.wait_for_function("() => page.isComplete && page.runs.size === 3")

    def rows() -> list[str]:
        return sorted(tab.evaluate("() => [...document.querySelectorAll('tr[data-run]')].map((row) => row.dataset.run)"))

    assert "3 runs" == tab.text("h1")
    assert "3 runs, $6.00" == tab.text(".count")
    assert "exact 75.0 % (30.1–95.4)" in tab.text("tr[data-run='runs/capitals/0002']")
    tab.page.select_option("#evaluation", "capitals")
    assert ["runs/capitals/0001", "runs/capitals/0002"] == rows()
    tab.page.select_option("#model", "large")
    assert ["runs/capitals/0002"] == rows()
    assert "#evaluation=capitals&model=large" in tab.page.url
    tab.page.click("text=show all")

    run("capitals/0003", "large", 4)
    tab.page.wait_for_function("() => page.runs.size === 4")
    for name in ("0003", "0001"):
        tab.page.check(f"tr[data-run='runs/capitals/{name}'] input")
    assert "compare runs/capitals/0001 with runs/capitals/0003" == tab.text("#compare")
    with tab.page.expect_popup() as popup:
        tab.page.click("#compare")
    popup.value.wait_for_selector("main:not([aria-busy])")
    assert "4 trials compared: 0 broken, 3 fixed, 0 changed, 1 unchanged." in popup.value.inner_text("h1")

    tab.page.click("tr[data-run='runs/capitals/0002'] a")
    tab.page.wait_for_selector("#live:has-text('up to date')")
    assert tab.text("h1").startswith("capitals: finished. All 4 trials done, 75.0")
    assert [] == tab.messages
