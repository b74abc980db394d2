"""Where a session runs: the process, the machine, and the versions of what it is run with.

What is found here is recorded for people, and decides nothing.
"""

import os
import platform
import socket
import subprocess
from pathlib import Path

import attrs

from journal.release import release


@attrs.frozen(kw_only=True)
class Environment:
    """What a session records of the place where it runs; a test that wants the same bytes again gives its own."""

    pid: int
    host: str
    boot_id: str
    """Identity of the machine's boot."""
    versions: dict[str, str]
    run: str | None = None
    """The identity of a new run; None to draw one."""

    @classmethod
    def here(cls) -> "Environment":
        """Look around."""
        return cls(pid=os.getpid(), host=socket.gethostname(), boot_id=_boot(), versions=_versions())


def _versions() -> dict[str, str]:
    """Say what the run was run with: versions of Python, of packages and of the platform, and the git revision."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    found |= {package: known for package in ("evaljournal", "trio", "orjson") if (known := release(package))}
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607  # whichever git the user has
            capture_output=True,
            text=True,
            timeout=2,
            check=True,
        )
        found["git"] = head.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass  # Not every evaluation lives in a repository.
    return found


def _boot() -> str:
    """Tell this boot of the machine from others; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
