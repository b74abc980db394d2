"""The setting `workers`: from text, as the command line and a configuration file have it, and from what a journal records."""

from collections.abc import Mapping
from typing import Any

from runner.workers.processes import CommandWorkers, ProcessWorkers
from runner.workers.ray import RayWorkers


def parse_workers(value: Any) -> Any:
    """Return the pool that a setting describes: `processes:8`, `ray`, `command:ssh …`; `none` and None: no workers.

    What a journal records of a pool is parsed, too. Anything else is left to the validator.
    """
    if isinstance(value, Mapping):
        is_processes = value.get("kind") == "processes"  # A journal must not name a command to run, or a cluster to trust.
        return ProcessWorkers(value["workers"], concurrency=value["concurrency"]) if is_processes else value
    if not isinstance(value, str):
        return value
    kind, _, argument = value.partition(":")
    if value in {"none", "processes"}:
        return None if value == "none" else ProcessWorkers()
    if kind == "ray":
        return RayWorkers(argument if ":" in value else None)
    if kind == "processes" and argument.isdecimal():
        return ProcessWorkers(int(argument))
    return CommandWorkers(argument) if kind == "command" else value
