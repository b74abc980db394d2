"""Programs that outlive their attempt: they are recognized by a variable in their environment, and ended.

Every program of an attempt inherits the variable, also one that has left its process group, and a run that was killed could
record nothing more: no list of process ids is kept, so none can be out of date, and no id that was reused is ever ended. Not
found is a program that clears its environment.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

RUN: Final = "EVALJOURNAL_RUN"
"""The variable with the id of the run."""
WORKSPACE: Final = "EVALJOURNAL_WORKSPACE"
_PROC: Final = Path("/proc")
_ROUNDS: Final = 20
"""How often new programs are searched for: one may start another while it is ended."""


def end_programs(name: str, value: str) -> int:
    """End the programs of this user whose environment has a variable with this value, but not this process; return how many."""
    if sys.platform == "win32":
        return 0
    entry, ended = f"{name}={value}", set[int]()
    spared = _own_processes()

    for _ in range(_ROUNDS):
        pids = _processes(entry) - spared
        for pid in pids:
            _end(pid, entry)
        ended |= pids
        if not pids:
            break
        time.sleep(0.02)
    return len(ended)


def _own_processes() -> set[int]:
    """Return this process and those that have started it."""
    pids, pid = {os.getpid()}, os.getppid()
    with contextlib.suppress(OSError):
        while pid > 1:
            pids.add(pid)
            pid = int((_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return pids


def _processes(entry: str) -> set[int]:
    if not _PROC.is_dir():
        return _listed_processes(entry)
    return {int(name) for name in os.listdir(_PROC) if name.isdecimal() and _has(int(name), entry)}


def _has(pid: int, entry: str) -> bool:
    try:
        content = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:  # It has ended, or belongs to another user.
        return False
    return os.fsencode(entry) in content.split(b"\0")


def _listed_processes(entry: str) -> set[int]:
    """Return the same where there is no /proc; the values of these variables contain no spaces there."""
    result = subprocess.run(["ps", "axeww", "-o", "pid=,command="], capture_output=True, check=False)  # noqa: S607
    processes = (line.strip().partition(" ") for line in result.stdout.decode(errors="replace").splitlines())
    return {int(pid) for pid, _, text in processes if pid.isdecimal() and entry in text.split(" ")}


def _end(pid: int, entry: str) -> None:
    """Kill a process, unless its id was reused since it was found."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if not hasattr(os, "pidfd_open") or not _PROC.is_dir():
            os.kill(pid, signal.SIGKILL)
            return
        process = os.pidfd_open(pid)
        try:
            if _has(pid, entry):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
