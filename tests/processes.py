"""Processes that a test starts, and that do not outlive it."""

import subprocess
from types import TracebackType


class Process(subprocess.Popen[str]):
    """A process that is ended where its test fails: to wait for it would turn every failure into a hang."""

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, traceback)
