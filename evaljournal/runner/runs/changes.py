"""What has changed since a run was started: settings, task, scorers and cases."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, cast

import attrs

from evaljournal.journal.events import RunStarted
from evaljournal.replay import RunState, TrialState
from evaljournal.replay.state.definition import changed_files, definition_diff, load_definition, variant_fingerprints
from evaljournal.replay.state.sessions import IDENTITY_FIELDS
from evaljournal.replay.text import plural, printable
from evaljournal.runner.data.case import Trial
from evaljournal.runner.definition.limits import parse_budget, parse_limits
from evaljournal.runner.definition.settings import EXPERIMENT_SETTINGS, OMITTED_DEFAULTS, Settings
from evaljournal.runner.errors import InvalidSetting, UsageError
from evaljournal.runner.retries.retry import NUMERIC_FIELDS

_MAX_EXAMPLES: Final = 5
_PLAIN_SETTINGS: Final = tuple(field.name for field in attrs.fields(Settings) if field.name != "retry")
_MERGED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "budget": partial(parse_budget, "budget"),
    "budget_per_trial": partial(parse_budget, "budget_per_trial"),
    "limits": parse_limits,
}
"""Settings whose values a later session can replace one by one → what parses them, with the earlier values."""

_EXPLANATIONS: Final = {
    "task_fingerprint": "the task has changed",
    "dataset_fingerprint": "the cases have changed",
    "scorers": "scorers were added, removed or changed",
}
_FILE_CHANGES: Final = {"changed": "has changed", "added": "is new", "removed": "is no longer used"}


def effective_settings(
    own_settings: Settings, overrides: Mapping[str, Any], recorded_settings: Mapping[str, Any]
) -> tuple[Settings, list[str]]:
    """Return the settings of a session, and the names of those that are overridden in it and in all later sessions.

    Precedence: `overrides`, then those of earlier sessions (in `recorded_settings`), then `own_settings` of the evaluation.
    """
    recorded_values = recorded_overrides(recorded_settings)
    recorded_numbers = recorded_values.pop("retry", {})
    earlier_settings = {name: value for name, value in recorded_values.items() if name not in overrides or name in _MERGED}
    workers = earlier_settings.get("workers")
    # A journal must not name a command to run or a cluster to trust.
    if isinstance(workers, Mapping) and workers.get("kind") != "processes":
        kind = "on Ray" if workers.get("kind") == "ray" else "that a command starts"
        raise UsageError(f"the run used workers {kind}", hint="pass them again: --workers, or workers=… in Python")

    retry = overrides.get("retry", {})
    numbers: dict[str, Any] = recorded_numbers if isinstance(retry, Mapping) else {}
    try:
        settings = own_settings.with_values({**earlier_settings, "retry": numbers})
    except (UsageError, TypeError) as exc:
        raise InvalidSetting(exc) from exc

    retry_names = {*numbers, *(retry if isinstance(retry, Mapping) else ())}
    names = [name for name in _PLAIN_SETTINGS if name in earlier_settings or name in overrides]
    merged = {name: parse(overrides[name], getattr(settings, name)) for name, parse in _MERGED.items() if name in overrides}
    return settings.with_values({**overrides, **merged}), names + [
        f"retry.{name}" for name in NUMERIC_FIELDS if name in retry_names
    ]


def recorded_overrides(recorded_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded settings that were passed in earlier sessions, and apply to later ones.

    Only the numbers of `retry` can be read from a journal; its other fields are functions and classes.
    """
    recorded_names = recorded_settings.get("overridden")
    names = recorded_names if isinstance(recorded_names, list) else []
    values = {name: recorded_settings[name] for name in _PLAIN_SETTINGS if name in names and name in recorded_settings}
    retry = recorded_settings.get("retry")
    numbers = retry if isinstance(retry, Mapping) else {}
    numbers = {name: numbers[name] for name in NUMERIC_FIELDS if f"retry.{name}" in names and name in numbers}
    return values | ({"retry": numbers} if numbers else {})


def changes(old_start: RunStarted, new_start: RunStarted) -> dict[str, Any]:
    """Return the fields that identify a run and have changed, with their new values."""
    changed_fields = [field for field in IDENTITY_FIELDS if getattr(new_start, field) != getattr(old_start, field)]
    new_values: dict[str, Any] = {field: getattr(new_start, field) for field in changed_fields}
    variants = variant_fingerprints(new_start.definition)
    if variants != variant_fingerprints(old_start.definition):
        new_values["variants"] = variants
    files = changed_files(old_start.definition, new_start.definition)
    return {**new_values, "files": files} if files else new_values


def adopted_changes(old_start: RunStarted, new_start: RunStarted, *, trusted: bool = False) -> dict[str, Any] | None:
    """Return the changes that a session records as adopted, and the location of the task if it is new.

    A location that the user `trusted` is recorded even if it is unchanged: the earlier record may be another user's.
    """
    location = {"task": new_start.task} if new_start.task and (trusted or new_start.task != old_start.task) else {}
    return {**changes(old_start, new_start), **location} or None


def differences(old_start: RunStarted, new_start: RunStarted, settings: Mapping[str, Any]) -> list[str]:
    """Describe the changes that make the run another experiment, field by field and with a diff of the definition.

    Settings other than `EXPERIMENT_SETTINGS` may change from one session to the next.
    """
    new_values = changes(old_start, new_start)
    field_changes = [
        _EXPLANATIONS.get(field) or f"{field}: {getattr(old_start, field)!r} is now {value!r}"
        for field, value in new_values.items()
        if field not in {"variants", "files"}
    ]
    file_changes = [f"{printable(path)} {_FILE_CHANGES[change]}" for path, change in new_values.get("files", {}).items()]
    variant_changes = _variant_changes(variant_fingerprints(old_start.definition), variant_fingerprints(new_start.definition))

    definitions = _without_code(old_start.definition), _without_code(new_start.definition)
    diff = [f"  {line}" for line in definition_diff(*definitions)] if new_values else []

    old_settings = {**OMITTED_DEFAULTS, **settings}
    new_settings = {**OMITTED_DEFAULTS, **{name: value for name, value in new_start.settings.items() if value is not None}}
    setting_changes = [
        f"setting {name}: {old_settings[name]!r} is now {new_settings.get(name)!r}"
        for name in EXPERIMENT_SETTINGS
        if name in old_settings and old_settings[name] != new_settings.get(name)
    ]

    return [*field_changes, *file_changes, *variant_changes, *diff, *setting_changes]


def _without_code(definition: Any) -> Any:
    """Return a definition without the digests of its files."""
    definition = load_definition(definition)
    if not isinstance(definition, Mapping):
        return definition
    return {name: value for name, value in cast("Mapping[str, Any]", definition).items() if name != "code"}


def _variant_changes(old_variants: Mapping[str, str], new_variants: Mapping[str, str]) -> Iterator[str]:
    added_names = [name for name in new_variants if name not in old_variants]
    changed_names = [name for name in new_variants if name in old_variants and new_variants[name] != old_variants[name]]
    removed_names = [name for name in old_variants if name not in new_variants]
    if added_names and not old_variants:
        yield f"the run has no variants, and the evaluation has {examples(added_names)}; its trials would be withdrawn"
    elif added_names:
        yield f"{plural(len(added_names), 'variant')} added: {examples(added_names)}"
    if changed_names:
        yield f"{plural(len(changed_names), 'variant')} changed: {examples(changed_names)}; only their trials would run again"
    if removed_names:
        yield f"{plural(len(removed_names), 'variant')} removed: {examples(removed_names)}; their trials would be withdrawn"


def case_changes(state: RunState, trials: Iterable[Trial]) -> Iterator[str]:
    recorded_trials = {name: trial for name, trial in state.trials.items() if trial.stage != "withdrawn"}
    changed_cases: dict[str, None] = {}
    removed_cases = dict.fromkeys(trial.case for trial in recorded_trials.values())
    for trial in trials:
        removed_cases.pop(trial.case.name, None)
        if trial.id in recorded_trials and not is_same(recorded_trials[trial.id], trial):
            changed_cases[trial.case.name] = None
    for names, change in ((changed_cases, "changed"), (removed_cases, "removed")):
        if names:
            yield f"{plural(len(names), 'case')} {change}: {examples(names)}"
    is_known = state.started is not None and not state.started.is_replacement
    if is_known and not changed_cases and not removed_cases:
        yield "the cases run so far are unchanged; others were added, changed or removed"


def is_same(state: TrialState, trial: Trial) -> bool:
    recorded_identity = state.case, state.fingerprint, state.variant, state.repeat
    return recorded_identity == (trial.case.name, trial.case.fingerprint, trial.variant, trial.repeat)


def examples(names: Iterable[str]) -> str:
    """List the first few names."""
    first_names = list(islice(names, _MAX_EXAMPLES + 1))
    return ", ".join(map(repr, first_names[:_MAX_EXAMPLES])) + (", …" if len(first_names) > _MAX_EXAMPLES else "")
