"""The setting `workers`: from text, as on the command line and in a configuration file, and from the record in a journal.

A kind of another package is an entry point of the group `evaljournal.workers`: a function of the text after the colon, or of
None if there is no colon, that returns a `WorkerPool`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from evaljournal import entry_points
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import mask
from evaljournal.runner.workers.pool import WorkerPool
from evaljournal.runner.workers.processes import CommandWorkers, ProcessWorkers

_COUNTS: Final = re.compile(r"([0-9]{1,20})(?:x([0-9]{1,20}))?")
"""Number of workers, and of attempts that each runs concurrently: `8`, `8x16`."""


def parse_workers(value: Any) -> Any:
    """Return the pool that a setting describes: `processes:8x16`, `command:8:ssh …`; `none` and None: no workers.

    With `scorers:` before it, only scorers run there. A journal's record of `ProcessWorkers` is parsed, too. Any other value
    is left to the validator. An error about a part of a text names the whole text.
    """
    if isinstance(value, Mapping):
        if value.get("kind") != "processes":  # A journal must not name a command to run, or a cluster to trust.
            return value
        return ProcessWorkers(value["workers"], concurrency=value["concurrency"], runs_tasks=value.get("tasks", True))
    if not isinstance(value, str):
        return value
    try:
        return _parse_text(value)
    except UsageError as exc:
        part = "" if exc.setting is None else f"{exc.setting.removeprefix('workers.')}={exc.value!r}: "
        hint = f"; {exc.hint}" if exc.hint else ""
        raise UsageError(f"{part}{exc.message}{hint}", setting="workers", value=mask(value)) from exc


def _parse_text(text: str) -> Any:
    kind, colon, argument = text.partition(":")
    match kind:
        case "none" if not colon:
            return None
        case "scorers":
            pool = _parse_text(argument)
            return attrs.evolve(pool, runs_tasks=False) if getattr(pool, "runs_tasks", False) else text
        case "processes":
            counts = _COUNTS.fullmatch(argument)
            return ProcessWorkers(**_counts(counts)) if counts else text if colon else ProcessWorkers()
        case "command":
            head, _, line = argument.partition(":")
            counts = _COUNTS.fullmatch(head)
            return CommandWorkers(line, **_counts(counts)) if counts else CommandWorkers(argument)
        case _ if entry := entry_points.find("workers", kind):
            return entry_points.checked(
                entry,
                UsageError,
                lambda: entry.load()(argument if colon else None),
                WorkerPool,
                noun="a WorkerPool",
                verb="returned",
            )
    return text


def _counts(counts: re.Match[str]) -> dict[str, Any]:
    return {"workers": int(counts[1]), "concurrency": int(counts[2]) if counts[2] else None}
