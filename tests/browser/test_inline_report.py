"""The report inside a notebook: it works in its frame, and cannot reach the notebook."""

from pathlib import Path

import evaljournal
from evaljournal import Case, evaluation
from tests.browser.conftest import OpenTab

NAME = "<img src=x onerror=alert(1)>"


def test_the_report_works_in_a_sandbox(tmp_path: Path, open_tab: OpenTab) -> None:
    """A trial opens in the frame without an error; the frame has no access to the page around it."""

    @evaluation(cases=[Case(name=NAME, input="a", expected="b")])
    def echo(text: str) -> str:
        return text

    @echo.score
    def same(output: str, expected: str) -> bool:
        return output == expected

    outcome = evaljournal.run(echo, tmp_path / "run", quiet=True)
    html = f"<!doctype html><main>{outcome._repr_html_()}{outcome.report()._repr_html_()}</main>"
    (tmp_path / "notebook.html").write_text(html)
    tab = open_tab((tmp_path / "notebook.html").as_uri())
    frame = tab.page.frames[1]
    frame.wait_for_selector("main:not([aria-busy])")
    frame.locator("[data-trial]").first.click()
    frame.wait_for_selector(f"text={NAME}")
    tab.page.wait_for_timeout(300)  # The page saves its address after 120 ms.

    assert [] == tab.messages
    assert "SecurityError" == frame.evaluate(
        "() => { try { return parent.document.title } catch (error) { return error.name } }"
    )
