"""Ownership of a run: a list, in the user's state directory, of the records that the user has written.

Each run has a file in `own-runs/`, named after its id, with the hashes of its start, of those of its sessions, and of the last
record of each session. A hash follows from the run's id and from every byte up to its record, so a record that is listed was
written by this user on this machine, after the same records. The code that a listed start names may then be executed without
`--trust`, and up to a listed end, recorded replies may be used.
"""

import os
import shlex
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from evaljournal.journal.disk.files import DISK, create, make_directory
from evaljournal.journal.errors import StateUnavailable
from evaljournal.journal.events import Record, RunStarted, SegmentOpened, SessionStarted
from evaljournal.journal.format.chain import HASH
from evaljournal.journal.readers.reader import read

Start = RunStarted | SessionStarted
"""The events that name code or settings."""


def state_directory() -> Path:
    """Return the directory of the user's state: `$XDG_STATE_HOME/evaljournal`, or where the platform keeps such files."""
    state_home = Path(os.environ.get("XDG_STATE_HOME", ""))
    if state_home.is_absolute():  # A relative path would be a directory that another user may have prepared.
        return state_home / "evaljournal"
    try:
        home = Path.home()
    except RuntimeError as exc:
        raise StateUnavailable("the user has no home directory") from exc

    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        base = home / ".local" / "state"

    if not base.is_absolute():
        raise StateUnavailable(f"the home directory {home} is not an absolute path")
    return base / "evaljournal"


def private_directory(path: Path) -> Path:
    """Return a directory of the user's state, created if needed; raise if it is a symlink or another user can write to it."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        make_directory(DISK, str(path))
        status = os.lstat(path)

    if not stat.S_ISDIR(status.st_mode):
        raise StateUnavailable(f"{path} is not a directory, or is a symlink; remove it")

    if os.name == "posix" and status.st_uid != os.geteuid():
        raise StateUnavailable(f"the directory {path} belongs to another user; remove it")
    if os.name == "posix" and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        command = f"chmod go-w {shlex.quote(str(path))}"
        raise StateUnavailable(f"the directory {path} is writable by other users; run `{command}`")
    return path


def own_runs_problem() -> str:
    """Return why the list of the user's own runs cannot be used; empty if it can."""
    try:
        _own_runs()
    except StateUnavailable as exc:
        return exc.message
    return ""


def _own_runs() -> Path:
    try:
        return private_directory(private_directory(state_directory()) / "own-runs")
    except OSError as exc:
        raise StateUnavailable(f"the list of your own runs cannot be used: {exc}") from exc


def own_hashes(run: str) -> frozenset[str]:
    """Return the hashes of the records of a run that the user has written; none if they cannot be read."""
    if not HASH.fullmatch(run):
        return frozenset()
    try:
        with DISK.read(str(_own_runs() / run)) as stream:  # Symlinks are not followed.
            return frozenset(line for line in stream.read().decode("ascii", "replace").split("\n") if HASH.fullmatch(line))
    except (StateUnavailable, OSError):
        return frozenset()


def add_own_hashes(run: str, hashes: Iterable[str]) -> None:
    """Add records to the list, atomically and durably. Raises `StateUnavailable`."""
    directory, lines = _own_runs(), sorted(own_hashes(run).union(hashes))
    try:
        create(DISK, str(directory), run, "".join(f"{line}\n" for line in lines).encode())
    except OSError as exc:
        raise StateUnavailable(f"the list of your own runs cannot be written: {exc}") from exc


def start_events(path: Path, on_record: Callable[[Record], object] | None = None) -> list[tuple[Start, bool]]:
    """Return the start of each session, newest first, then that of the run, each with whether the user has written it.

    This reads the whole journal; `on_record` is called with each record. Only what a reader has verified and parsed counts as a
    start, so what is checked here is what other readers use.
    """
    starts: list[tuple[Start, bool]] = []
    hashes: frozenset[str] = frozenset()
    for record in read(path, load_blobs=False):
        event = record.event
        if isinstance(event, SegmentOpened) and record.seq == 1:
            hashes = own_hashes(event.run)
        elif isinstance(event, Start):
            starts.insert(0, (event, record.h in hashes))
        if on_record is not None:
            on_record(record)
    return starts


def is_own_run(path: Path) -> bool:
    """Return whether the user has started the run and all of its sessions; this reads the whole journal."""
    return all(is_own for _, is_own in start_events(path))
