"""A real browser: the Chromium that is on the PATH. Where there is none the tests fail, and say so; they are never skipped."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import attrs
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE: Final = 20_000
"""Milliseconds that a page may take for anything; far more than it takes."""


@attrs.define
class Tab:
    """A page in the browser, and everything that it said, asked for or stumbled over."""

    page: Page
    said: list[str] = attrs.field(factory=list)
    requests: list[str] = attrs.field(factory=list)

    def ask(self, script: str, given: Any = None) -> Any:
        """Evaluate an expression in the page."""
        return self.page.evaluate(script, given)

    def text(self, selector: str) -> str:
        """Read what stands in an element."""
        return (self.page.text_content(selector) or "").replace("\u00a0", " ").strip()

    def numbers(self) -> dict[str, int]:
        """Read the numbers that the scrubber shows."""
        read = "() => Object.fromEntries([...document.querySelectorAll('[data-now]')].map(e => [e.dataset.now, e.textContent]))"
        return {name: int(text.replace(",", "")) for name, text in self.ask(read).items()}

    def rows(self) -> list[str]:
        """Read the names of the trials that the table shows."""
        names: list[str] = self.ask("() => [...document.querySelectorAll('[data-trial]')].map(e => e.dataset.trial)")
        return names

    def go(self, seq: int) -> None:
        """Move the scrubber to a record, and wait until it is shown."""
        self.page.fill("#seq", str(seq))
        self.page.press("#seq", "Enter")
        self.page.wait_for_function(
            "seq => document.getElementById('what').textContent.startsWith(`seq ${grouped(seq)} ·`)", arg=seq
        )


Opens = Callable[..., Tab]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Start the browser once for all tests of this folder."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail(f"no browser is on the PATH ({', '.join(NAMES)}); `apt-get install chromium` installs one")
    with sync_playwright() as driver:
        # Without a sandbox of its own, which a machine for tests seldom allows: nothing is opened but our own files.
        started = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opens(browser: Browser) -> Iterator[Opens]:
    """Give a function that opens an address, and waits until the page has drawn itself."""
    contexts = []

    def opened(address: str, *, width: int = 1280, scheme: Literal["light", "dark"] = "light") -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        tab = Tab(context.new_page())
        tab.page.on("console", lambda message: tab.said.append(message.text))
        tab.page.on("pageerror", lambda error: tab.said.append(str(error)))
        tab.page.on("dialog", lambda dialog: tab.said.append(dialog.message))
        tab.page.on("request", lambda request: tab.requests.append(request.url))
        tab.page.goto(address)
        tab.page.wait_for_selector("main:not([aria-busy])")
        return tab

    yield opened
    for context in contexts:
        context.close()
