"""Find the evaluation that a run was started from."""

import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import attrs
import click
import orjson

from evaljournal.journal.events import SessionStarted
from evaljournal.journal.ownership import Start, own_runs_problem, start_events
from evaljournal.replay import RunState
from evaljournal.replay.text import printable
from evaljournal.runner.cli.options.no_code import DEFINITION, Definition, build_evaluation, is_definition_record
from evaljournal.runner.cli.options.values import to_keys
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.definition.loading import LoadedEvaluation, load_evaluation
from evaljournal.runner.errors import MissingVariable, UsageError, command
from evaljournal.runner.runs.changes import recorded_overrides
from evaljournal.runner.runs.paths import run_start

_MAX_SHOWN: Final = 20_000
"""Maximum characters of a recorded location or definition that are shown."""
_MAX_ESCAPED: Final = 16 * _MAX_SHOWN
"""Maximum characters after control characters are escaped and quotes are added, so that nothing is omitted."""
_MAX_SETTING: Final = 200
"""Maximum characters of a setting that are shown."""
_MAX_SETTINGS: Final = 50
"""Maximum number of settings that are shown; evaljournal has fewer."""
_BLANKS: Final = re.compile(r"\s{4,}")
"""Blanks that could move the rest of a command out of sight."""


def locate_evaluation(
    path: Path,
    reference: str | None = None,
    *,
    verb: str = "resume",
    trust: bool = False,
    state: RunState | None = None,
    values: Mapping[str, Any] | None = None,
) -> LoadedEvaluation:
    """Load the evaluation of a run from `reference`, or from what the run has recorded: its location or its definition.

    `values` are those that the command has got; those of keys that define an evaluation without code replace the recorded ones.

    In the second case, or with `state`, the whole journal is read, once, and its records are applied to `state`.
    Without a reference or `trust`, nothing that the journal of another user or machine names is imported, executed or read.
    With a reference, but without `trust`, `state` has none of the settings that were passed in earlier sessions of such a run.
    """
    if reference is not None and state is None:
        return load_reference(reference, values)

    starts = start_events(path, None if state is None else state.apply)
    recorded_reference, is_own = _recorded_reference(starts)
    enter_offline({**(state.settings if state is not None and verb == "resume" else {}), **(values or {})})
    if reference is not None:
        if state is not None and not (is_own or trust):
            state.settings.pop("overridden", None)  # No recorded setting applies.
        return load_reference(reference, values)

    if not recorded_reference:
        raise _no_reference_error(path, verb)
    if not (is_own or trust):
        raise _foreign_run_error(path, verb, recorded_reference, starts, own_runs_problem())

    try:
        loaded_evaluation = load_reference(recorded_reference, values)
        source = loaded_evaluation.evaluation.cases.source
        if verb == "resume" and isinstance(source, Path) and not source.exists():
            raise UsageError(f"the dataset {source} does not exist")
    except MissingVariable:
        raise  # The evaluation was found.
    except UsageError as exc:
        is_record = is_definition_record(recorded_reference)
        origin = "in another directory, or a file was moved" if is_record else f"from {recorded_reference}"
        location = " --task REFERENCE" if not is_record else " -s KEY=FILE" if verb != "cancel" else " --task FILE.toml"
        raise UsageError(
            f"{exc}\n{path} was started {origin}. Run this from that directory, or pass the new location: "
            f"{command(verb, path, location)}"
        ) from exc

    if is_definition_record(recorded_reference):
        _report_edited_file(Definition.decode(recorded_reference), command(verb, path, " --task FILE.toml"))
    return loaded_evaluation


def enter_offline(settings: Mapping[str, Any]) -> None:
    """With the setting `offline`, prevent connections from now on: an evaluation may create clients when it is imported."""
    if settings.get("offline"):
        from evaljournal.runner.steps.replies.offline import offline  # noqa: PLC0415  # few runs need it

        click.get_current_context().with_resource(offline())


def load_reference(reference: str, values: Mapping[str, Any] | None = None) -> LoadedEvaluation:
    """Load the evaluation that a reference names: a location in a Python file, a configuration file, or a recorded definition.

    `values` of keys that define an evaluation without code replace those that it has.
    """
    changes = {name: value for name, value in (values or {}).items() if name in DEFINITION}
    if is_definition_record(reference):
        definition = Definition.decode(reference)
        return build_evaluation(attrs.evolve(definition, options={**definition.options, **changes}))
    if reference.endswith(".toml"):
        return build_evaluation(Definition.read(Path(reference), changes), is_new=True)
    if changes:
        raise UsageError(
            f"{next(iter(to_keys(changes)))} describes an evaluation without code, and {reference} is one in Python"
        )
    return load_evaluation(reference)


def _report_edited_file(definition: Definition, usage: str) -> None:
    """Print a note if the configuration file of a run has changed: the run continues with what it has recorded."""
    if definition.path:
        with contextlib.suppress(UsageError, OSError):
            file = Definition.read(Path(definition.path))
            if Definition.decode(attrs.evolve(file, options=definition.options).encode()) != definition:
                note = f"{definition.path} has changed; the run uses what it has recorded. To use the file: {usage}"
                echo(printable(note.replace("FILE.toml", shlex.quote(definition.path)), _MAX_SHOWN), err=True)


def _recorded_reference(starts: Iterable[tuple[Start, bool]]) -> tuple[str, bool]:
    """Return the last recorded reference, empty if there is none, and whether the user has written it and what follows it."""
    is_own = True
    for event, is_listed in starts:
        is_own = is_own and is_listed  # A later session that is not the user's own may have changed settings.
        fields: object = event.adopted if isinstance(event, SessionStarted) else {"task": event.task}
        reference = fields.get("task") if isinstance(fields, dict) else None  # A session records only a new reference.
        if isinstance(reference, str) and reference:
            return reference, is_own
    return "", is_own


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


def _foreign_run_error(path: Path, verb: str, reference: str, starts: Sequence[tuple[Start, bool]], problem: str) -> UsageError:
    """Return the error that shows what a run of another user or machine would execute, and with which settings."""
    lines = [
        printable(_BLANKS.sub(lambda blanks: f" ({len(blanks[0]):,} blanks) ", line), _MAX_ESCAPED)
        for line in _first_characters(_definition_lines(reference), _MAX_SHOWN)
    ]
    if (omitted := sum(map(len, _definition_lines(reference))) - _MAX_SHOWN) > 0:
        lines.append(f"… and {omitted:,} more characters; {command('log', path, ' --json')} prints them")

    recorded_settings: dict[str, Any] = {}
    for event, _ in reversed(starts):
        recorded_settings |= event.settings or {}

    origin = (
        f"cannot be recognized as your own ({problem})"
        if problem
        else "is not in the list of runs that you have started or last resumed on this machine"
    )

    return UsageError(
        "\n  ".join([f"{path} {origin}. Its journal names what `{verb}` would import or execute:", *lines])
        + settings_text(recorded_overrides(recorded_settings))
        + f"\nNothing was executed. If you trust it, add --trust: {command(verb, path, ' --trust')}"
        + f"\nTo use an evaluation of your own: {command(verb, path, ' --task REFERENCE')}"
    )


def _first_characters(lines: Iterable[str], limit: int) -> Iterator[str]:
    for line in lines:
        if limit > 0:
            yield line[:limit]
        limit -= len(line)


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return lines with settings that another user or machine has recorded; empty if there are none."""
    lines = [f"{printable(name)}: {printable(value, _MAX_SETTING)}" for name, value in islice(settings.items(), _MAX_SETTINGS)]
    if len(settings) > _MAX_SETTINGS:
        lines.append(f"… and {len(settings) - _MAX_SETTINGS:,} more")
    return "\n  ".join(["\nThese recorded settings would replace those of the evaluation:", *lines]) if lines else ""


def _definition_lines(reference: str) -> list[str]:
    """Return a recorded location, or the keys of a recorded definition, one per line."""
    if not is_definition_record(reference):
        return [reference]
    try:
        layers = Definition.decode(reference).layers
    except UsageError:
        return [reference]
    return [f"{key} = {orjson.dumps(value).decode()}" for layer in layers for key, value in to_keys(layer).items()]
