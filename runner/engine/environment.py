"""The process, the machine, the versions and the user's key of a session."""

import os
import platform
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import attrs

from evaljournal.journal.errors import KeyUnavailable
from evaljournal.journal.ownership import user_key


@attrs.frozen(kw_only=True)
class Environment:
    """Where a session runs, as it is recorded; tests pass a fixed one."""

    pid: int
    host: str
    boot_id: str
    versions: dict[str, str]
    run: str | None = None
    """Id of a new run; None for a random one."""
    key: bytes | None = attrs.field(default=None, repr=False)
    """Key that signs the records that start the run and the session; see `journal.ownership`. It is not recorded."""
    key_problem: str = ""
    """Why there is no key."""

    @classmethod
    def current(cls) -> "Environment":
        """Return the environment of this process."""
        key, problem = None, ""
        try:
            key = user_key()
        except KeyUnavailable as exc:
            problem = exc.message
        host, versions = socket.gethostname(), _versions()
        return cls(pid=os.getpid(), host=host, boot_id=_boot_id(), versions=versions, key=key, key_problem=problem)

    def warn_without_key(self) -> None:
        """Print a warning if the start of this session cannot be signed."""
        if self.key_problem:
            sys.stderr.write(f"Warning: {self.key_problem}; `evaljournal resume` of this run will need --trust\n")


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


def installed_version(package: str = "evaljournal") -> str:
    """Return the installed version of a package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
