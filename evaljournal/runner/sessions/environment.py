"""The process, the machine and the versions of a session."""

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import attrs

from evaljournal.journal.errors import StateUnavailable
from evaljournal.journal.ownership import add_own_hashes
from evaljournal.version import installed_version


@attrs.frozen(kw_only=True)
class Environment:
    """Where a session runs, as it is recorded; tests pass a fixed one."""

    pid: int
    host: str
    boot_id: str
    versions: dict[str, str]
    run: str | None = None
    """Id of a new run; None for a random one."""
    lists_runs: bool = False
    """Whether sessions are added to the list of the user's own runs; see `journal.ownership`."""

    @classmethod
    def current(cls) -> "Environment":
        host, versions = socket.gethostname(), _versions()
        return cls(pid=os.getpid(), host=host, boot_id=_boot_id(), versions=versions, lists_runs=True)

    def list_own(self, run: str, hashes: Sequence[str]) -> None:
        """List the starts of a run and of its session as the user's own, if this is not a test."""
        if self.lists_runs:
            list_own(run, hashes)

    def list_end(self, run: str, head: str) -> None:
        """List the last record of a session, and so all before it, as the user's own, if this is not a test."""
        if self.lists_runs:
            with suppress(StateUnavailable):  # The start has printed a warning.
                add_own_hashes(run, [head])


def list_own(run: str, hashes: Sequence[str]) -> None:
    """List the starts of a run and of its session as the user's own; if that is impossible, print a warning."""
    try:
        add_own_hashes(run, hashes)
    except StateUnavailable as exc:
        sys.stderr.write(f"Warning: {exc.message}; `evaljournal resume` of this run will need --trust\n")


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    versions |= {package: version for package in ("evaljournal", "trio", "orjson") if (version := installed_version(package))}
    try:
        command = ["git", "rev-parse", "HEAD"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=2, check=True)  # noqa: S603  # the git on the path
        versions["git"] = result.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass  # No git, or not a repository.
    return versions


def _boot_id() -> str:
    """Return the boot id of the machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
