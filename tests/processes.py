"""Child processes of tests: every wait has a limit, and none outlives its test."""

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[1]
"""The repository; tests run in a temporary directory."""
TIMEOUT = 60.0
"""Seconds to wait for a child process, unless a test needs less."""


class Process(subprocess.Popen[str]):
    """A `Popen` with text pipes and bounded waits; it is killed if its `with` block fails."""

    def __init__(self, args: list[str], **options: Any) -> None:
        super().__init__(args, text=True, encoding="utf-8", **options)

    def wait(self, timeout: float | None = None) -> int:
        return super().wait(TIMEOUT if timeout is None else timeout)

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002  # as in Popen
        return super().communicate(input, TIMEOUT if timeout is None else timeout)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is not None:
            self.kill()
        try:
            super().__exit__(kind, value, traceback)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
