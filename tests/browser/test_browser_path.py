"""A missing browser skips the browser tests, unless a browser is required."""

import pytest

from tests.browser.conftest import REQUIRE_BROWSER, browser_path


@pytest.mark.parametrize(("required", "outcome"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_missing_browser(required: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a browser on the PATH a test is skipped with a reason; with EVALJOURNAL_REQUIRE_BROWSER=1 it fails."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv(REQUIRE_BROWSER, required)

    with pytest.raises(outcome, match="no browser on the PATH"):
        browser_path()
