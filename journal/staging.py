"""A run that is made out of another one: its name appears when it is whole, and not before.

Until then it stands beside its place, under a name that begins with a dot, which nobody takes for a run's. Where the staged_run
ends early, at a full disk above all, what there is of it is taken away; what a kill leaves, the next who comes takes away.
"""

import contextlib
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from journal.errors import DiskFull, JournalError, JournalExists, JournalFailed, JournalLocked, WriteFailed
from journal.files import Files, retry_interrupted
from journal.lock import is_held
from journal.segment_file import NO_SPACE
from journal.threads import InThread


def check_target(source: Path, target: Path, files: Files) -> None:
    """Refuse to make a copy where something is already, or inside of what is copied."""
    if files.exists(str(target)):
        raise JournalExists(f"{target} exists already, and nothing is ever overwritten; choose another place")
    if source.resolve() in target.resolve().parents:
        raise JournalError(f"{target} lies in {source}, which is only read; choose a place outside of it")


@asynccontextmanager
async def staged_run(target: Path, *, files: Files, in_thread: InThread) -> AsyncGenerator[Path]:
    """Give a place to write a new run to; it becomes the target, in one step, when the block ends well."""
    place = target.with_name(f".{target.name}.new")
    await in_thread(lambda: _clear(place, target, files))
    try:
        yield place
        await in_thread(lambda: _put(place, target, files))
    except BaseException as exc:
        with trio.CancelScope(shield=True), contextlib.suppress(OSError, JournalError):
            await in_thread(lambda: _clear(place, target, files))
        if isinstance(exc, JournalFailed | OSError) or (type(exc) is JournalError and isinstance(exc.__cause__, OSError)):
            raise _refused(exc, place, target, files) from exc
        raise


def _refused(exc: JournalError | OSError, place: Path, target: Path, files: Files) -> JournalError:
    """Say of the copy, and not of the place where it was made, why there is none."""
    left = f"{place} is what there is of it" if files.exists(str(place)) else "nothing is left of it"
    rest = f"({exc.__cause__ or exc}); {left}, and what was copied is as it was"
    if isinstance(exc, DiskFull) or (isinstance(exc, OSError) and exc.errno in NO_SPACE):
        return DiskFull(f"there is no space left for {target} {rest}. Make space, and try again")
    kind = WriteFailed if isinstance(exc, WriteFailed) else JournalError
    return kind(f"{target} cannot be written {rest}. See to that, and try again")


def _put(place: Path, target: Path, files: Files) -> None:
    """Give a run that is whole its name, for good."""
    if files.exists(str(target)):
        raise JournalExists(f"{target} has come into being meanwhile, and nothing is ever overwritten; choose another place")
    retry_interrupted(lambda: files.replace(str(place), str(target)))
    try:
        retry_interrupted(lambda: files.sync_directory(str(target.parent)))
    except OSError:
        retry_interrupted(lambda: files.replace(str(target), str(place)))  # It might be forgotten, and is not to be relied on.
        raise


def _clear(place: Path, target: Path, files: Files) -> None:
    """Take away what is left of a copy that did not come to its end."""
    if not files.exists(str(place)):
        return
    if is_held(place, files):
        raise JournalLocked(f"{target} is being made by another process; choose another place, or wait for it")
    aside = f"{place}-{uuid.uuid4().hex}"
    retry_interrupted(
        lambda: files.replace(str(place), aside)
    )  # In one step, so that a rename under way succeeds or fails as a whole.
    files.remove(aside)
