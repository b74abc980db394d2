"""`evaljournal import --atif`: a case of each trajectory. The file is untrusted; what is not recognized is omitted."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from evaljournal.replay.provider.reports import fields_of, objects_of
from evaljournal.replay.text import as_text
from evaljournal.runner.data.traces import Message, annotation, case_of, documents
from evaljournal.runner.errors import UsageError

_ROLES: Final = {"agent": "assistant", "system": "system", "user": "user"}


def cases(path: Path, expected: str | None) -> Iterator[dict[str, Any]]:
    """Yield the row of a case for each trajectory with a message of a user."""
    for number, document in enumerate(documents(path), 1):
        steps = document.get("steps")
        if not isinstance(steps, list) or not str(document.get("schema_version", "")).startswith("ATIF"):
            raise UsageError(f"object {number} is no trajectory: it needs schema_version 'ATIF-…' and steps", path=path)
        steps = objects_of(steps)

        extra = fields_of(document.get("extra"))
        ids = (extra.get("trial"), document.get("trajectory_id"), document.get("session_id"), f"{path.stem}-{number}")
        name = next(value for value in ids if isinstance(value, str) and value.strip())

        messages = [message for step in steps for message in [_message(step)] if message["content"] or "tool_calls" in message]
        annotations = (extra, *(fields_of(step.get("extra")) for step in reversed(steps)))
        if (row := case_of(name, messages, annotation(expected, *annotations))) is not None:
            yield row


def _message(step: Mapping[str, Any]) -> Message:
    results = dict[str, list[str]]()
    for result in objects_of(fields_of(step.get("observation")).get("results")):
        results.setdefault(as_text(result.get("source_call_id")), []).append(_text(result.get("content")))
    calls = [
        {
            "name": as_text(call.get("function_name")),
            "arguments": call.get("arguments"),
            "result": "\n".join(results.get(as_text(call.get("tool_call_id")), [])),
        }
        for call in objects_of(step.get("tool_calls"))
    ]
    role = _ROLES.get(as_text(step.get("source")), "user")
    return {"role": role, "content": _text(step.get("message"))} | ({"tool_calls": calls} if calls else {})


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in objects_of(content) if isinstance(part.get("text"), str))
    return "" if content is None else as_text(content)
