"""Find the evaluation that a run was started from."""

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from journal import segments
from journal.errors import command
from runner.definition.loading import LoadedEvaluation, find
from runner.errors import MissingVariable, UsageError

if TYPE_CHECKING:
    pass
from typing import TYPE_CHECKING

from journal import JournalError, read
from journal.events import RunStarted, SessionStarted
from journal.files import DISK
from journal.reader import fetch

if TYPE_CHECKING:
    pass
from runner.cli._no_code_options import evaluation_from_reference, is_option_reference

_SESSION: Final = b'"type":"session_started"'


def first_records(path: Path) -> tuple[RunStarted, str] | None:
    """Find what a run is a run of, and when it began, without reading on; None if it had not come so far."""
    for record in read(path, load_blobs=False):
        if isinstance(record.event, RunStarted):
            return record.event, record.at
    return None


def task_since(path: Path) -> str:
    """Find where a later session has found the evaluation, if it was not where it was at first.

    Sessions are few among many records: only their lines are read, from the end.
    """
    for number in reversed(segments.numbers(path, DISK)):
        with DISK.read(str(path / segments.name(number))) as stream:
            lines = stream.read()
        place = len(lines)
        while (place := lines.rfind(_SESSION, 0, place)) >= 0:
            with contextlib.suppress(JournalError):  # It may be torn, or damaged: whoever reads the whole of it will say so.
                event = fetch(path, number, lines.rfind(b"\n", 0, place) + 1, load_blobs=False).event
                adopted = event.adopted if isinstance(event, SessionStarted) else None
                if isinstance(adopted, dict) and isinstance(task := adopted.get("task"), str):
                    return task
    return ""


def locate_evaluation(path: Path, reference: str | None = None, *, verb: str = "resume") -> LoadedEvaluation:
    """Find the evaluation of a run: where it is said to be now, or where it was when the run began."""
    if reference is not None:
        return _found_at(reference)
    reference = _recorded_reference(path, verb)
    try:
        found = _found_at(reference)
        source = found.evaluation.cases.source
        if verb == "resume" and isinstance(source, Path) and not source.exists():
            raise UsageError(f"there is no file {source}, which holds the cases")
    except MissingVariable:
        raise  # It is where it was, and so is all else.
    except UsageError as exc:
        now = command(verb, path, f" --task {shlex.quote(reference)}")
        raise UsageError(
            f"{exc}\n{path} was begun with {reference}; go to where that is, or, if it was moved, say what it is now: {now}"
        ) from exc
    return found


def _found_at(reference: str) -> LoadedEvaluation:
    from runner.cli.run import run  # noqa: PLC0415  # it needs this module

    return evaluation_from_reference(reference, run) if is_option_reference(reference) else find(reference)


def _recorded_reference(path: Path, verb: str) -> str:
    first = first_records(path)
    if first is None:
        raise UsageError(
            f"{path} was cut off before it said what it is a run of; {command(verb, path, ' --task REFERENCE')} says it"
        )
    started, _ = first
    task = task_since(path) or started.task
    if not task:
        there = "`runner.run(…, resume=True)` resumes" if verb == "resume" else "`runner.rescore(…)` scores"
        raise UsageError(
            f"{path} was begun from Python, with {started.evaluation!r}; {there} it there, "
            f"or say where that is: {command(verb, path, ' --task REFERENCE')}"
        )
    return task
