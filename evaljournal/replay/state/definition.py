"""The recorded definition of a run as text, and what differs between two definitions."""

import difflib
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import orjson

from evaljournal.journal import Blob
from evaljournal.journal.errors import BlobDamaged
from evaljournal.journal.events import RunStarted
from evaljournal.replay.text import as_text, printable

_WIDTH: Final = 500
_MAX_DIFF: Final = 60
"""Maximum number of lines of a diff."""
_MAX_VALUE: Final = 40
"""Maximum length of a parameter of the task whose two values are shown."""
_REVISION_CHARS: Final = 64
_SUBSTITUTION: Final = ("live_from", "live_model", "live_system")
_RESULT_SETTINGS: Final = {"on_declined": "score", "on_truncated": "score", **dict.fromkeys(_SUBSTITUTION, "")}
"""Settings that the results depend on → their defaults, which are not recorded."""


def load_definition(definition: Any) -> Any:
    """Load a definition that is stored as a blob; None if the blob is damaged, which `verify` reports."""
    try:
        return definition.load() if isinstance(definition, Blob) else definition
    except BlobDamaged:
        return None


def substitution(settings: Any) -> dict[str, Any]:
    """Return what `what-if` has replaced in the calls of a run: `live_from`, `live_model`, `live_system`; empty: nothing.

    A run with a substitution is an experiment, and none of the evaluation as it is defined.
    """
    return {name: value for name in _SUBSTITUTION if (value := _fields(settings).get(name)) is not None}


def definition_of_run(run_started: RunStarted) -> Any:
    """Return the recorded definition with the substitution of `what-if`, to be shown; None if it is damaged."""
    definition = load_definition(run_started.definition)
    return {**definition, **substitution(run_started.settings)} if isinstance(definition, dict) else definition


def variant_fingerprints(definition: Any) -> dict[str, str]:
    """Return variant → fingerprint of a recorded definition; empty if it has no variants."""
    return {name: str(variant.get("fingerprint", "")) for name, variant in _variants(definition).items()}


def variant_parameters(definition: Any, variant: str) -> dict[str, Any]:
    """Return the parameters of a variant in a recorded definition; empty if they are not recorded."""
    return _fields(_variants(definition).get(variant, {}).get("parameters"))


def has_one_model(definition: Any, variant: str) -> bool:
    """Return whether the task of a variant, or of the evaluation, has the same model for all cases, as far as is recorded."""
    model = _task(definition, variant).get("model")
    return not isinstance(model, str) or "{" not in model


def lacks_max_tokens(definition: Any, variant: str) -> bool:
    """Return whether the task of a variant, or of the evaluation, is a chat model without a token limit of its answers."""
    task = _task(definition, variant)
    return "model" in task and not any(name.startswith("max_") and name.endswith("tokens") for name in task)


def _task(definition: Any, variant: str) -> dict[str, Any]:
    return _fields(_variants(definition).get(variant, {}).get("task") or _fields(definition).get("task"))


def requested_models(definition: Any) -> list[str]:
    """Return the models that the tasks of a recorded definition name: of the variants, or of the evaluation."""
    models = (_task(definition, name).get("model") for name in _variants(definition) or ("",))
    return list(dict.fromkeys(model for model in models if isinstance(model, str)))


def used_task(definition: Any, variant: str | None) -> dict[str, Any]:
    """Return the recorded task of a variant; of a run with variants (None), what all of them have in common."""
    names = list(_variants(definition)) if variant is None else [variant]
    tasks = [_task(definition, name) for name in names] or [_task(definition, "")]
    return {name: value for name, value in tasks[0].items() if all(task.get(name) == value for task in tasks)}


def changed_files(old_definition: Any, new_definition: Any) -> dict[str, str]:
    """Return path → `changed`, `added` or `removed` of the files that differ between two recorded definitions.

    It is empty if one of them has no files. A file that was only moved is unchanged. One that only one of them has counts only
    if both were recorded in the same way, with or without opened files.
    """
    old_includes_opened, old_files = recorded_files(old_definition)
    new_includes_opened, new_files = recorded_files(new_definition)
    if not (old_files and new_files):
        return {}

    changes = {path: "changed" for path, value in old_files.items() if new_files.get(path, value) != value}
    if old_includes_opened == new_includes_opened:
        removed_files = {path: value for path, value in old_files.items() if path not in new_files}
        added_files = {path: value for path, value in new_files.items() if path not in old_files}
        changes |= {path: "removed" for path, value in removed_files.items() if value not in added_files.values()}
        changes |= {path: "added" for path, value in added_files.items() if value not in removed_files.values()}
    return changes


def code_version(definition: Any) -> str:
    """Return a digest of the code files of a recorded definition; empty if it has none."""
    files = sorted(recorded_files(definition)[1].items())
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16] if files else ""


def recorded_files(definition: Any) -> tuple[bool, dict[str, str]]:
    """Return whether opened files are among the files of a definition, and path → digest."""
    code = _fields(_fields(load_definition(definition)).get("code"))
    digests = {path: value for path, value in _fields(code.get("files")).items() if isinstance(value, str)}
    return code.get("includes_opened") is True, digests


def _variants(definition: Any) -> dict[str, dict[str, Any]]:
    variants = _fields(_fields(load_definition(definition)).get("variants"))
    return {name: variant for name, variant in variants.items() if isinstance(variant, dict)}


def _fields(value: Any) -> dict[str, Any]:
    """Return a recorded object; a foreign journal may have anything in its place."""
    return value if isinstance(value, dict) else {}


def identity(run_started: RunStarted) -> dict[str, Any]:
    """Return what the results of a run depend on, as a JSON object for `changes`: much smaller than its definition.

    The parameters of a task without code (model, prompt, address) are included, long ones as digests.
    """
    definition, settings = _fields(load_definition(run_started.definition)), _fields(run_started.settings)
    task, git = _fields(definition.get("task")), run_started.environment.get("git")
    parameters = {} if "source" in task else task
    includes_opened, files = recorded_files(definition)

    return {
        "name": run_started.evaluation,
        "task": run_started.task_fingerprint,
        "parameters": {name: _short(value) for name, value in parameters.items() if value is not None},
        "cases": run_started.dataset_fingerprint,
        "revision": git[:_REVISION_CHARS] if isinstance(git, str) else "",
        "scorers": dict(run_started.scorers),
        "variants": variant_fingerprints(definition),
        "code": {"includes_opened": includes_opened, "files": files},
        "answers": {name: _short(value) for name in _RESULT_SETTINGS if (value := settings.get(name)) is not None},
    }


def _short(value: Any) -> str:
    text = as_text(value)
    return text if len(text) <= _MAX_VALUE else hashlib.sha256(text.encode(errors="replace")).hexdigest()


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs between two runs, given their identities: `model a → b`, `cases`, `file a.json`, `scorer b (new)`.

    Nothing is known of a run without an identity. `task` is a change of its code, or of parameters that are not recorded.
    """
    if not (old and new):
        return
    if old["name"] != new["name"]:
        yield "name"
    if old["task"] != new["task"]:
        are_known = old["parameters"] and new["parameters"]
        changed_parameters = list(_changed_values(old["parameters"], new["parameters"])) if are_known else []
        yield from changed_parameters or ["task"]

    if old["cases"] != new["cases"]:
        yield "cases"

    yield from (f"file {path}" for path in changed_files(old, new))
    yield from _changed_names("scorer", old["scorers"], new["scorers"])
    yield from _changed_names("variant", old["variants"], new["variants"])
    yield from _changed_values({**_RESULT_SETTINGS, **old.get("answers", {})}, {**_RESULT_SETTINGS, **new.get("answers", {})})
    yield from _changed_values({"revision": old["revision"][:7]}, {"revision": new["revision"][:7]})


def _changed_values(old_values: Mapping[str, str], new_values: Mapping[str, str]) -> Iterator[str]:
    for name in {**old_values, **new_values}:
        old_value, new_value = old_values.get(name, ""), new_values.get(name, "")
        if old_value != new_value:
            is_short = max(len(old_value), len(new_value)) <= _MAX_VALUE
            yield f"{name} {old_value or 'none'} → {new_value or 'none'}" if is_short else name


def _changed_names(kind: str, old_names: Mapping[str, str], new_names: Mapping[str, str]) -> Iterator[str]:
    for name in {**old_names, **new_names}:
        if old_names.get(name) != new_names.get(name):
            change = " (new)" if name not in old_names else " (removed)" if name not in new_names else ""
            yield f"{kind} {name}{change}"


def definition_key(run_identity: Mapping[str, Any], variant: str) -> bytes | None:
    """Return a value that is equal for two runs of a variant if nothing recorded differs but the cases; None if unknown."""
    if not run_identity or not run_identity["task"]:
        return None
    fields = {name: value for name, value in run_identity.items() if name not in {"name", "cases"}}
    return orjson.dumps({**fields, "variants": run_identity["variants"].get(variant)}, option=orjson.OPT_SORT_KEYS)


def definition_lines(definition: Any, indent: str = "") -> Iterator[str]:
    """Yield a definition as indented lines without control characters; fields without a value are omitted."""
    if not isinstance(definition, Mapping):
        return
    for name, value in cast("Mapping[str, Any]", definition).items():
        label = printable(name)
        if value is None or value in ({}, []):
            continue
        if isinstance(value, Mapping):
            yield f"{indent}{label}:"
            yield from definition_lines(value, f"{indent}  ")
        elif isinstance(value, str) and "\n" in value:
            yield f"{indent}{label}:"
            yield from (f"{indent}  {printable(line.expandtabs(4), _WIDTH)}".rstrip() for line in value.splitlines())
        else:
            yield f"{indent}{label}: {printable(as_text(value), _WIDTH)}"


def definition_diff(old_definition: Any, new_definition: Any) -> list[str]:
    """Return the removed (`-`) and added (`+`) lines with their context; empty if a definition is not recorded."""
    old_definition = load_definition(old_definition)
    if old_definition is None or new_definition is None:
        return []
    lines = difflib.unified_diff(
        list(definition_lines(old_definition)), list(definition_lines(new_definition)), lineterm="", n=2
    )
    diff = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    omitted_count = len(diff) - _MAX_DIFF
    return diff if omitted_count <= 0 else [*diff[:_MAX_DIFF], f"… {omitted_count:,} more lines"]
