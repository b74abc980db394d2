"""The process, the machine and the versions of a session. They are recorded and displayed, and decide nothing."""

import os
import platform
import socket
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import attrs


@attrs.frozen(kw_only=True)
class Environment:
    """What a session records about where it runs; tests pass a fixed one."""

    pid: int
    host: str
    boot_id: str
    """Identifies the boot of the machine."""
    versions: dict[str, str]
    run: str | None = None
    """Id of a new run; None for a random one."""

    @classmethod
    def here(cls) -> "Environment":
        """Return the environment of this process."""
        return cls(pid=os.getpid(), host=socket.gethostname(), boot_id=_boot(), versions=_versions())


def _versions() -> dict[str, str]:
    """Return the versions of Python, the platform and packages, and the git revision."""
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    versions |= {package: version for package in ("evaljournal", "trio", "orjson") if (version := installed_version(package))}
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607  # the git on the path
            capture_output=True,
            text=True,
            timeout=2,
            check=True,
        )
        versions["git"] = head.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass  # No git, or not a repository.
    return versions


def _boot() -> str:
    """Return the boot id of the machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def installed_version(package: str = "evaljournal") -> str:
    """Return the installed version of a package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
