"""Find the evaluation that a run was started from."""

import contextlib
import shlex
from pathlib import Path
from typing import Final

from journal import JournalError, read, segments
from journal.events import RunStarted, SessionStarted
from journal.files import DISK
from journal.reader import fetch
from runner.cli._no_code_options import evaluation_from_reference, is_option_reference
from runner.definition.loading import LoadedEvaluation, find
from runner.errors import MissingVariable, UsageError
from runner.suggest import command

_SESSION_LINE: Final = b'"type":"session_started"'


def run_start(path: Path) -> tuple[RunStarted, str] | None:
    """Return the event that starts a run and its time; None if the journal ends before it."""
    for record in read(path, load_blobs=False):
        if isinstance(record.event, RunStarted):
            return record.event, record.at
    return None


def _moved_task(path: Path) -> str:
    """Return the last recorded new location of the evaluation; empty if there is none.

    Only the lines of sessions are parsed, from the end.
    """
    for number in reversed(segments.numbers(path, DISK)):
        with DISK.read(str(path / segments.name(number))) as stream:
            lines = stream.read()
        place = len(lines)
        while (place := lines.rfind(_SESSION_LINE, 0, place)) >= 0:
            with contextlib.suppress(JournalError):  # Reading the whole journal reports the damage.
                event = fetch(path, number, lines.rfind(b"\n", 0, place) + 1, load_blobs=False).event
                adopted = event.adopted if isinstance(event, SessionStarted) else None
                if isinstance(adopted, dict) and isinstance(task := adopted.get("task"), str):
                    return task
    return ""


def locate_evaluation(path: Path, reference: str | None = None, *, verb: str = "resume") -> LoadedEvaluation:
    """Load the evaluation of a run from `reference`, or from where the run was started."""
    if reference is not None:
        return _load(reference)
    reference = _recorded_reference(path, verb)
    try:
        loaded = _load(reference)
        source = loaded.evaluation.cases.source
        if verb == "resume" and isinstance(source, Path) and not source.exists():
            raise UsageError(f"the dataset {source} does not exist")
    except MissingVariable:
        raise  # The evaluation was found.
    except UsageError as exc:
        moved = command(verb, path, f" --task {shlex.quote(reference)}")
        raise UsageError(
            f"{exc}\n{path} was started from {reference}. Run this from that directory, or pass the new location: {moved}"
        ) from exc
    return loaded


def _load(reference: str) -> LoadedEvaluation:
    from runner.cli.run import run  # noqa: PLC0415  # it needs this module

    return evaluation_from_reference(reference, run) if is_option_reference(reference) else find(reference)


def _recorded_reference(path: Path, verb: str) -> str:
    start = run_start(path)
    locate = command(verb, path, " --task REFERENCE")
    if start is None:
        raise UsageError(f"{path} ends before its evaluation was recorded; pass it: {locate}")
    started, _ = start
    task = _moved_task(path) or started.task
    if not task:
        call = "run(…, resume=True)" if verb == "resume" else "rescore(…)"
        raise UsageError(
            f"{path} was started from Python, with {started.evaluation!r}; use `{call}` there, or pass its location: {locate}"
        )
    return task
