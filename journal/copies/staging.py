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

from evaljournal.journal.disk.files import Files, retry_interrupted
from evaljournal.journal.disk.lock import is_held
from evaljournal.journal.errors import DiskFull, JournalError, JournalExists, JournalFailed, JournalLocked, WriteFailed
from evaljournal.journal.threads import InThread
from evaljournal.journal.writers.segment_file import NO_SPACE


def check_target(source: Path, target: Path, files: Files) -> None:
    """Raise if the target exists, or is inside the source."""
    if files.exists(str(target)):
        raise JournalExists(f"{target} already exists", path=target, hint="choose_path")
    if source.resolve() in target.resolve().parents:
        raise JournalError(f"{target} is inside {source}, which is only read", path=target, hint="choose_path")


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
