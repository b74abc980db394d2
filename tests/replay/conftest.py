"""Fixtures of the tests of replay."""

from pathlib import Path

import pytest

from tests.replay.eventful_run import eventful_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write the eventful run."""
    return eventful_run(tmp_path / "run")
