"""A missing program skips the tests that need it, unless programs are required."""

import pytest

from tests.browser.conftest import browser_path
from tests.programs import REQUIRE_PROGRAMS


@pytest.mark.parametrize(("required", "outcome"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_missing_program(required: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a browser on the PATH a test is skipped with a reason; with EVALJOURNAL_REQUIRE_PROGRAMS=1 it fails."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv(REQUIRE_PROGRAMS, required)

    with pytest.raises(outcome, match=r"no chromium or .* on the PATH; install one with `apt-get install chromium`"):
        browser_path()
