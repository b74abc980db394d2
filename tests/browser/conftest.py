"""Browser tests: pages are opened in the Chromium on the PATH.

Without a browser these tests are skipped, or fail in CI; see `tests.programs`.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
import pytest

from evaljournal.journal import Event
from tests.browser.pages import write_report
from tests.journal.samples import session, started, write_sync
from tests.programs import find_program, import_optional

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT: Final = 60_000
"""Milliseconds that a page may take for anything."""


@attrs.define
class Tab:
    """A page in the browser, with its console messages, errors and dialogs, and its requests."""

    page: "Page"
    messages: list[str] = attrs.field(factory=list)
    requests: list[str] = attrs.field(factory=list)

    def evaluate(self, script: str, argument: Any = None) -> Any:
        """Evaluate a function in the page."""
        return self.page.evaluate(script, argument)

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return (self.page.text_content(selector) or "").replace("\u00a0", " ").strip()

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements that match."""
        return [text.replace("\u00a0", " ").strip() for text in self.page.locator(selector).all_text_contents()]

    def counters(self) -> dict[str, int]:
        """Return the counters of the scrubber."""
        script = "() => [...document.querySelectorAll('[data-counter]')].map(each => [each.dataset.counter, each.textContent])"
        return {name: int(text.replace(",", "")) for name, text in self.evaluate(script)}

    def rows(self) -> list[str]:
        """Return the names of the trials in the table."""
        names: list[str] = self.evaluate("() => [...document.querySelectorAll('[data-trial]')].map(row => row.dataset.trial)")
        return names

    def cells(self, trial: str) -> dict[str, str]:
        """Return the cells of a trial's row by column."""
        script = """trial => {
            const row = [...document.querySelectorAll('[data-trial]')].find(each => each.dataset.trial === trial);
            const heads = [...document.querySelectorAll('[data-sort]')].map(each => each.dataset.sort);
            return [...row.children].map((cell, index) => [heads[index], cell.textContent]);
        }"""
        return dict(self.evaluate(script, trial))

    def open_execution(self) -> None:
        """Unfold the section on the execution, and wait until it is drawn."""
        self.evaluate("() => { page.execution.open = true; }")
        self.page.wait_for_function("() => page.history.width > 0 && !page.history.frame")

    def go_to(self, seq: int) -> None:
        """Move the scrubber to a record and wait until it is shown."""
        self.open_execution()
        self.page.fill("#seq", str(seq))
        self.page.press("#seq", "Enter")
        self.page.wait_for_function(
            "seq => document.getElementById('event').textContent.startsWith(`seq ${groupDigits(seq)} ·`)", arg=seq
        )


OpenTab = Callable[..., Tab]


def browser_path() -> str:
    """Return the path of a browser."""
    return find_program(*BROWSERS, package="chromium")


@pytest.fixture(scope="package")
def browser() -> Iterator["Browser"]:
    """Start the browser once for all tests of this package."""
    path = browser_path()
    with import_optional("playwright.sync_api").sync_playwright() as driver:
        # Test machines seldom allow Chromium's sandbox; only our own files are opened.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_tab(browser: "Browser") -> Iterator[OpenTab]:
    """Return a function that opens an address and waits until the page is drawn."""
    contexts = []

    def open_address(
        address: str, *, width: int = 1280, scheme: Literal["light", "dark"] = "light", execution: bool = False
    ) -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT)
        tab = Tab(context.new_page())
        tab.page.on("console", lambda message: tab.messages.append(message.text))
        tab.page.on("pageerror", lambda error: tab.messages.append(str(error)))
        tab.page.on("dialog", lambda dialog: tab.messages.append(dialog.message))
        tab.page.on("request", lambda request: tab.requests.append(request.url))
        tab.page.goto(address)
        tab.page.wait_for_selector("main:not([aria-busy])")
        if execution:
            tab.open_execution()
        return tab

    yield open_address
    for context in contexts:
        context.close()


@pytest.fixture
def open_report(tmp_path: Path, open_tab: OpenTab) -> OpenTab:
    """Return a function that writes the report of some runs, each a path or the events of its trials, and opens it."""
    directories = (tmp_path / f"report-{number}" for number in range(100))

    def open_runs(*runs: Path | Sequence[Event], fragment: str = "", **options: Any) -> Tab:
        directory, paths = next(directories), list[Path]()
        directory.mkdir()
        for number, run in enumerate(runs):
            paths.append(run if isinstance(run, Path) else directory / str(number))
            if not isinstance(run, Path):
                write_sync(paths[-1], [started(), session(), *run])
        return open_tab(write_report(directory / "report.html", *paths) + fragment, **options)

    return open_runs
