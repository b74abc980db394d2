"""Built-in tasks as data: the target and the arguments of its class, from which another process builds the same task."""

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import attrs

from evaljournal.runner.data.to_json import to_json

TARGETS: Final = {
    "endpoint": "Endpoint",
    "chat": "Chat",
    "command": "Command",
    "acp": "Acp",
    "output_key": "RecordedOutput",
}


def new_task(target: str, arguments: Mapping[str, Any]) -> Any:
    class_name = TARGETS[target]
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", class_name).lower()
    module = import_module(f"evaljournal.runner.calls.{name}")  # Imported here: an HTTP client is slow to import.
    return getattr(module, class_name)(**arguments)


def arguments_of(task: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the target of a task and its arguments, which JSON can represent; None for any other task, such as a function."""
    target = next((target for target, name in TARGETS.items() if type(task).__name__ == name), None)
    if target is None or not type(task).__module__.startswith("evaljournal.runner.calls."):
        return None
    fields = [field for field in attrs.fields(type(task)) if field.init]
    # Defaults are omitted: one of them is a file of this machine.
    values = {field.name: value for field in fields if (value := getattr(task, field.name)) != field.default}
    return target, {name: str(value) if isinstance(value, Path) else to_json(value) for name, value in values.items()}
