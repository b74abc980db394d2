"""Tests of commands run in a directory of their own: a command without RUN looks for `runs/` in the working directory."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to the test's own temporary directory."""
    monkeypatch.chdir(tmp_path)
