"""Messages in the shape of chat completions, as dialects with another shape convert them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from evaljournal.replay.text import as_text
from evaljournal.runner.calls.http.reply import InvalidReply
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import excerpt

_SYSTEM_ROLES: Final = ("system", "developer")


@attrs.frozen
class AttachedPart:
    url: str
    """Its address; empty if the message contains its data."""
    media_type: str
    """Empty if it is unknown."""
    data: str = attrs.field(repr=False)
    """In base64; empty if it has an address."""
    name: str
    """Name of the file; empty if it is unknown."""
    is_image: bool


def split_system(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[Mapping[str, Any]]]:
    """Return the contents of the system prompts, and the other messages."""
    system = [message.get("content") for message in messages if message.get("role") in _SYSTEM_ROLES]
    return system, [message for message in messages if message.get("role") not in _SYSTEM_ROLES]


def parts_of(content: Any) -> list[Any]:
    """Return the content of a message as parts; a text is one part, and no content is none."""
    if content is None:
        return []
    return content if isinstance(content, list) else [{"type": "text", "text": as_text(content)}]


def attachment_of(part: Any) -> AttachedPart | None:
    """Return the image or file in a part of a message; None if the part is of another type."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            name, is_image = "", True
        case {"type": "file", "file": {"file_data": str(url), **file}}:
            name, is_image = as_text(file.get("filename") or ""), False
        case _:
            return None

    if url.startswith(("https://", "http://")):
        return AttachedPart(url, "", "", name, is_image)
    head, comma, data = url.partition(",")
    media_type, _, encoding = head.removeprefix("data:").partition(";")
    if not (comma and head.startswith("data:") and media_type and encoding.endswith("base64")):
        raise UsageError(f"an image or file must be a URL of the form data:image/png;base64,…, not {excerpt(url, 50)!r}")
    return AttachedPart("", media_type.lower(), data, name, is_image)


def calls_of(message: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return id, name and arguments of the tool calls of an assistant's message."""
    calls: list[tuple[str, str, dict[str, Any]]] = []
    for call in message.get("tool_calls") or ():
        match call:
            case {"id": str(call_id), "function": {"name": str(name), "arguments": str(text)}} if (
                arguments := _arguments(text)
            ) is not None:
                calls.append((call_id, name, arguments))
            case _:
                shape = '{"id": …, "type": "function", "function": {"name": …, "arguments": "{…}"}}'
                raise UsageError(f"a tool call in a message must have the form {shape}, not {excerpt(as_text(call), 200)!r}")
    return calls


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        arguments = read_json(text or "{}")
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def tool_call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """Return a tool call of a reply in the shape of chat completions; arguments that are a text stay as they are."""
    try:
        is_text = isinstance(arguments, str)
        text = arguments if is_text else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError) as exc:
        raise InvalidReply(f"the arguments of the tool call {excerpt(name, 100)!r} are not JSON: {exc}") from exc
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def join_turns(turns: Sequence[tuple[str, list[Any]]]) -> list[tuple[str, list[Any]]]:
    """Join the parts of consecutive turns of one role: some APIs require that roles alternate."""
    joined_turns: list[tuple[str, list[Any]]] = []
    for role, parts in turns:
        if joined_turns and joined_turns[-1][0] == role:
            joined_turns[-1] = (role, [*joined_turns[-1][1], *parts])
        else:
            joined_turns.append((role, parts))
    return joined_turns
