"""What has changed since a run was started: settings, task, scorers and cases."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import attrs

from journal.events import RunStarted
from replay import RunState, TrialState
from replay.definition import definition_diff, variant_fingerprints
from replay.sessions import PINNED
from replay.text import plural
from runner.data.case import Trial
from runner.definition.budget import merge_budget
from runner.definition.settings import EXPERIMENT_SETTINGS, Settings
from runner.errors import InvalidSetting, UsageError
from runner.retries.retry import NUMBERS

_MAX_EXAMPLES: Final = 5
_BUDGETS: Final = ("budget", "budget_per_trial")
"""Settings of which a later session replaces single units."""

_EXPLANATIONS: Final = {
    "task_fingerprint": "the task has changed",
    "dataset_fingerprint": "the cases have changed",
    "scorers": "scorers were added, removed or changed",
}


def effective_settings(own: Settings, overrides: Mapping[str, Any], recorded: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """Return the settings of a session, and the names of those that are overridden in it and in all later sessions.

    Precedence: `overrides`, then those of earlier sessions (in `recorded`), then the evaluation's `own` settings.
    """
    names = [field.name for field in attrs.fields(Settings) if field.name != "retry"]
    overridden = recorded.get("overridden")
    earlier_names = overridden if isinstance(overridden, list) else []
    earlier_settings = {
        name: recorded[name]
        for name in names
        if name in earlier_names and name in recorded and (name not in overrides or name in _BUDGETS)
    }
    workers = earlier_settings.get("workers")
    # A journal must not name a command to run or a cluster to trust.
    if isinstance(workers, Mapping) and workers.get("kind") != "processes":
        kind = "on Ray" if workers.get("kind") == "ray" else "that a command starts"
        raise UsageError(f"the run used workers {kind}", hint="pass them again: --workers, or workers=… in Python")
    # Only the numbers of `retry` can be read from a journal; its other fields are functions and classes.
    retry, recorded_retry = overrides.get("retry", {}), recorded.get("retry")
    numbers: dict[str, Any] = {}
    if isinstance(retry, Mapping) and isinstance(recorded_retry, Mapping):
        numbers = {
            name: recorded_retry[name] for name in NUMBERS if f"retry.{name}" in earlier_names and name in recorded_retry
        }
    try:
        settings = own.changed({**earlier_settings, "retry": numbers})
    except (UsageError, TypeError) as exc:
        raise InvalidSetting(exc) from exc
    retry_names = {*numbers, *(retry if isinstance(retry, Mapping) else ())}
    names = [name for name in names if name in earlier_settings or name in overrides]
    budgets = {name: merge_budget(name, getattr(settings, name), overrides[name]) for name in _BUDGETS if name in overrides}
    return settings.changed({**overrides, **budgets}), names + [f"retry.{name}" for name in NUMBERS if name in retry_names]


def changes(before: RunStarted, current: RunStarted) -> dict[str, Any]:
    """Return the fields that identify a run and have changed, with their new values."""
    changed = {field: new for field in PINNED if (new := getattr(current, field)) != getattr(before, field)}
    variants = variant_fingerprints(current.definition)
    return changed if variants == variant_fingerprints(before.definition) else {**changed, "variants": variants}


def adopted_changes(before: RunStarted, current: RunStarted, *, trusted: bool = False) -> dict[str, Any] | None:
    """Return what a session records as adopted: changes, and a new location of the task, which is not a change of the task.

    A location that the user `trusted` is recorded even if it is unchanged: the earlier record may be another user's.
    """
    location = {"task": current.task} if current.task and (trusted or current.task != before.task) else {}
    return {**changes(before, current), **location} or None


def differences(before: RunStarted, current: RunStarted, settings: Mapping[str, Any]) -> list[str]:
    """Describe the changes, field by field, that make the run another experiment; with a diff of the definition.

    Settings other than `EXPERIMENT_SETTINGS` may change from one session to the next.
    """
    changed = changes(before, current)
    fields = [
        _EXPLANATIONS.get(field) or f"{field}: {getattr(before, field)!r} is now {new!r}"
        for field, new in changed.items()
        if field != "variants"
    ]
    fields += _changed_variants(variant_fingerprints(before.definition), variant_fingerprints(current.definition))
    diff = [f"  {line}" for line in definition_diff(before.definition, current.definition)] if changed else []
    experiment = [
        f"setting {name}: {settings[name]!r} is now {current.settings.get(name)!r}"
        for name in EXPERIMENT_SETTINGS
        if name in settings and settings[name] != current.settings.get(name)
    ]
    return [*fields, *diff, *experiment]


def _changed_variants(before: Mapping[str, str], current: Mapping[str, str]) -> Iterator[str]:
    """Describe which variants were added, changed or removed, and what adopting that means."""
    added = [name for name in current if name not in before]
    changed = [name for name in current if name in before and current[name] != before[name]]
    removed = [name for name in before if name not in current]
    if added and not before:
        yield f"the run has no variants, and the evaluation has {examples(added)}; its trials would be withdrawn"
    elif added:
        yield f"{plural(len(added), 'variant')} added: {examples(added)}"
    if changed:
        yield f"{plural(len(changed), 'variant')} changed: {examples(changed)}; only their trials would run again"
    if removed:
        yield f"{plural(len(removed), 'variant')} removed: {examples(removed)}; their trials would be withdrawn"


def changed_cases(state: RunState, trials: Iterable[Trial]) -> Iterator[str]:
    """Describe which of the admitted cases have changed or were removed."""
    recorded = {name: trial for name, trial in state.trials.items() if trial.stage != "withdrawn"}
    changed: dict[str, None] = {}
    removed = dict.fromkeys(trial.case for trial in recorded.values())
    for trial in trials:
        removed.pop(trial.case.name, None)
        if trial.id in recorded and not is_same(recorded[trial.id], trial):
            changed[trial.case.name] = None
    for names, change in ((changed, "changed"), (removed, "removed")):
        if names:
            yield f"{plural(len(names), 'case')} {change}: {examples(names)}"
    if not changed and not removed:
        yield "the cases run so far are unchanged; others were added, changed or removed"


def is_same(state: TrialState, trial: Trial) -> bool:
    """Return whether a recorded trial has the case, content, variant and repeat of this one."""
    recorded = state.case, state.fingerprint, state.variant, state.repeat
    return recorded == (trial.case.name, trial.case.fingerprint, trial.variant, trial.repeat)


def examples(names: Iterable[str]) -> str:
    """List the first few names."""
    first = list(islice(names, _MAX_EXAMPLES + 1))
    return ", ".join(map(repr, first[:_MAX_EXAMPLES])) + (", …" if len(first) > _MAX_EXAMPLES else "")
