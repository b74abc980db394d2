"""Find the evaluation that a run was started from."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

from evaljournal.journal.events import Record, SessionStarted
from evaljournal.journal.ownership import own_runs_problem, start_events
from evaljournal.replay.text import printable
from evaljournal.runner.cli.options.no_code import evaluation_from_reference, is_option_reference
from evaljournal.runner.definition.loading import LoadedEvaluation, load_evaluation
from evaljournal.runner.errors import MissingVariable, UsageError
from evaljournal.runner.run_paths import run_start
from evaljournal.runner.suggest import command

_MAX_SHOWN: Final = 20_000
"""Maximum characters of a reference that are shown, one option per line."""
_MAX_ESCAPED: Final = 16 * _MAX_SHOWN
"""Maximum characters after control characters are escaped and quotes are added, so that nothing is omitted."""
_BLANKS: Final = re.compile(r"\s{4,}")
"""Blanks that could move the rest of a command out of sight."""


def locate_evaluation(
    path: Path,
    reference: str | None = None,
    *,
    verb: str = "resume",
    trust: bool = False,
    on_record: Callable[[Record], object] | None = None,
) -> LoadedEvaluation:
    """Load the evaluation of a run from `reference`, or from where the run was started.

    In the second case the whole journal is read, and `on_record` is called with each record.
    Without a reference or `trust`, nothing that the journal of another user or machine names is imported, executed or read.
    """
    if reference is not None:
        return load_reference(reference)
    reference = _recorded_reference(path, verb, trust=trust, on_record=on_record)
    try:
        loaded_evaluation = load_reference(reference)
        source = loaded_evaluation.evaluation.cases.source
        if verb == "resume" and isinstance(source, Path) and not source.exists():
            raise UsageError(f"the dataset {source} does not exist")
    except MissingVariable:
        raise  # The evaluation was found.
    except UsageError as exc:
        new_reference = shlex.quote(reference) if is_option_reference(reference) else "REFERENCE"
        new_command = command(verb, path, f" --task {new_reference}")
        raise UsageError(
            f"{exc}\n{path} was started from {reference}. Run this from that directory, or pass the new location: {new_command}"
        ) from exc
    return loaded_evaluation


def load_reference(reference: str) -> LoadedEvaluation:
    """Load the evaluation that a reference names: a location in a file, or a command line."""
    return evaluation_from_reference(reference) if is_option_reference(reference) else load_evaluation(reference)


def _recorded_reference(path: Path, verb: str, *, trust: bool, on_record: Callable[[Record], object] | None) -> str:
    """Return the last recorded reference of the evaluation; reject one that another user or machine has recorded."""
    is_own = True
    for event, is_listed in start_events(path, on_record):
        is_own = is_own and is_listed  # A later session that is not the user's own may have changed settings.
        fields: object = event.adopted if isinstance(event, SessionStarted) else {"task": event.task}
        reference = fields.get("task") if isinstance(fields, dict) else None  # A session records only a new reference.
        if isinstance(reference, str) and reference:
            if not (is_own or trust):
                raise _foreign_run_error(path, verb, reference, own_runs_problem())
            return reference
    raise _no_reference_error(path, verb)


def _no_reference_error(path: Path, verb: str) -> UsageError:
    start = run_start(path)  # Raises if the journal is damaged.
    locate = command(verb, path, " --task REFERENCE")
    if start is None:
        return UsageError(f"nothing was recorded in {path}; start it again: {command('run … -o', path)}")
    if start[0].is_replacement:
        return UsageError(f"{path} was salvaged without the location of its evaluation; pass it: {locate}")
    call = "rescore(…)" if verb == "rescore" else "run(…, resume=True)"
    name = printable(start[0].evaluation)
    return UsageError(f"{path} was started from Python, with {name!r}; use `{call}` there, or pass its location: {locate}")


def _foreign_run_error(path: Path, verb: str, reference: str, problem: str) -> UsageError:
    """Return the error that shows what a run of another user or machine would execute."""
    lines = [
        printable(_BLANKS.sub(lambda blanks: f" ({len(blanks[0]):,} blanks) ", line), _MAX_ESCAPED)
        for line in _option_lines(reference[:_MAX_SHOWN])
    ]
    if len(reference) > _MAX_SHOWN:
        lines.append(f"… and {len(reference) - _MAX_SHOWN:,} more characters; {command('log', path, ' --json')} prints them")
    origin = (
        f"cannot be recognized as your own ({problem})"
        if problem
        else "is not in the list of runs that you have started or last resumed on this machine"
    )
    return UsageError(
        "\n  ".join([f"{path} {origin}. Its journal names what `{verb}` would import or execute:", *lines])
        + f"\nNothing was executed. If you trust it, add --trust: {command(verb, path, ' --trust')}"
        + f"\nTo use an evaluation of your own: {command(verb, path, ' --task REFERENCE')}"
    )


def _option_lines(reference: str) -> list[str]:
    """Return a recorded reference, one option per line."""
    if not is_option_reference(reference):
        return [reference]
    try:
        words = shlex.split(reference)
    except ValueError:
        return [reference]
    lines: list[str] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append(word)
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines
