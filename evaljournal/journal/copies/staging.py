"""Create a run from others (fork, merge, salvage); it gets its name when it is complete.

Until then its directory is beside the target and has a name that starts with a dot. If the copy fails, the directory is
removed; one that a killed process left is removed when the same target is created again.
"""

import contextlib
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from evaljournal.journal import events
from evaljournal.journal.disk.files import Files, retry_interrupted
from evaljournal.journal.disk.lock import is_held
from evaljournal.journal.errors import (
    DiskFull,
    IllegalEvent,
    JournalError,
    JournalExists,
    JournalFailed,
    JournalLocked,
    WriteFailed,
)
from evaljournal.journal.events import Event, Record
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.ownership import add_own_hashes, own_runs_problem
from evaljournal.journal.threads import InThread
from evaljournal.journal.writers.segment_file import NO_SPACE
from evaljournal.journal.writers.writer import Durability, Journal, writing


def check_target(source: Path, target: Path, files: Files) -> None:
    """Raise if the target exists, or is inside the source."""
    if files.exists(str(target)):
        raise JournalExists(f"{target} already exists", path=target, hint="choose_path")
    if source.resolve() in target.resolve().parents:
        raise JournalError(f"{target} is inside {source}, which is only read", path=target, hint="choose_path")


class RunCopy:
    def __init__(self, source: Record) -> None:
        self.journal: Journal
        self.source = source
        """The record that is being copied; its times are those of the new record."""
        self._are_own = True
        self._starts: list[str] = []
        """Hashes of the copied starts of the run and its sessions."""
        self._steps: dict[str, dict[int, int]] = {}
        """Open trial → record of a completed step in the source → record of its copy."""

    def append(self, event: Event, *, is_own: bool) -> Record:
        """Append the event of `source`, with the number that the record of a reused step has here; `is_own`: of the source.

        Raises `IllegalEvent` if that step was not copied.
        """
        if isinstance(event, events.StepReused):
            completed_seq = self._steps.get(event.trial, {}).get(event.completed_seq)
            if completed_seq is None:
                raise IllegalEvent("StepReused", "the step that it reuses is lost")
            event = evolve_fact(event, completed_seq=completed_seq)

        copy = self.journal.append(event)
        match event:
            case events.StepCompleted():
                self._steps.setdefault(event.trial, {})[self.source.seq] = copy.seq
            case events.TrialCompleted() | events.TrialFailed() | events.TrialWithdrawn():
                self._steps.pop(event.trial, None)
            case events.RunStarted() | events.SessionStarted():
                self._are_own = self._are_own and is_own
                self._starts.append(copy.h)
            case _:
                pass
        return copy

    def list_starts(self) -> None:
        """List the starts as the user's own if all of their sources are; otherwise `resume` needs `--trust`."""
        if self._are_own and not own_runs_problem():
            add_own_hashes(self.journal.run, self._starts)


@asynccontextmanager
async def copied_run(
    target: Path,
    source: Record,
    *,
    run: str | None = None,
    durability: Durability = "sync",
    files: Files,
    in_thread: InThread,
) -> AsyncGenerator[RunCopy]:
    """Yield a new run, which gets its name when the block ends; its first record has the times of `source`."""
    copy = RunCopy(source)

    def clock() -> tuple[str, float]:
        return copy.source.at, copy.source.t

    async with (
        staged_run(target, files=files, in_thread=in_thread) as draft,
        writing(draft, new=True, run=run, clock=clock, durability=durability, files=files, in_thread=in_thread) as copy.journal,
    ):
        yield copy
        await in_thread(copy.list_starts)


@asynccontextmanager
async def staged_run(target: Path, *, files: Files, in_thread: InThread) -> AsyncGenerator[Path]:
    """Yield a path for a new run; when the block ends without an exception, it is renamed to the target."""
    draft = target.with_name(f".{target.name}.new")
    await in_thread(lambda: _remove(draft, target, files))
    try:
        yield draft
        await in_thread(lambda: _publish(draft, target, files))
    except BaseException as exc:
        with trio.CancelScope(shield=True), contextlib.suppress(OSError, JournalError):
            await in_thread(lambda: _remove(draft, target, files))
        if isinstance(exc, JournalFailed | OSError) or (type(exc) is JournalError and isinstance(exc.__cause__, OSError)):
            raise _target_error(exc, draft, target, files) from exc
        raise


def _target_error(exc: JournalError | OSError, draft: Path, target: Path, files: Files) -> JournalError:
    """Return the error with the path of the target instead of the staging path."""
    leftover = f"; {draft} could not be removed" if files.exists(str(draft)) else ""
    reason = f"({exc.__cause__ or exc}){leftover}; the source is unchanged"
    if isinstance(exc, DiskFull) or (isinstance(exc, OSError) and exc.errno in NO_SPACE):
        return DiskFull(f"no space left for {target} {reason}", path=target, hint="free_space")
    if isinstance(exc, WriteFailed):
        return WriteFailed(f"cannot write {target} {reason}", path=target, hint="choose_path")
    return JournalError(f"cannot write {target} {reason}", path=target, hint="choose_path")


def _publish(draft: Path, target: Path, files: Files) -> None:
    """Rename a complete run to its target, durably."""
    if files.exists(str(target)):
        raise JournalExists(f"{target} was created by another process in the meantime", path=target, hint="choose_path")
    retry_interrupted(lambda: files.replace(str(draft), str(target)))
    try:
        retry_interrupted(lambda: files.sync_directory(str(target.parent)))
    except OSError:
        retry_interrupted(lambda: files.replace(str(target), str(draft)))  # The new name might be lost.
        raise


def _remove(draft: Path, target: Path, files: Files) -> None:
    if not files.exists(str(draft)):
        return
    if is_held(draft, files):
        raise JournalLocked(f"{target} is being created by another process", path=target, hint="choose_path")
    trash = f"{draft}-{uuid.uuid4().hex}"
    retry_interrupted(lambda: files.replace(str(draft), trash))  # Atomic, in case another process is about to publish it.
    files.remove_tree(trash)
