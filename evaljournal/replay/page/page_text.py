"""Values on a page: texts of limited length, and times in microseconds."""

import json
from typing import Any, Final

import orjson

from evaljournal.journal.errors import BlobDamaged
from evaljournal.journal.format.blobs import Blob, content
from evaljournal.replay.text import as_text

MICRO: Final = 1_000_000
Text = str | list[str] | dict[str, Any] | None
"""A value on a page: a text; any other value as JSON, in a list of one; or the `beginning` of a truncated value, with its
`length` in characters, or in `bytes` if it is in a blob."""


def microseconds(seconds: float) -> int:
    return round(seconds * MICRO)


def page_text(value: Any, length: int) -> Text:
    """Return a value with at most `length` characters."""
    if value is None:
        return None
    if isinstance(value, str):
        return truncate(value, length)
    return _beginning(value, length) if isinstance(value, Blob) else json_text(as_text(value).encode(), length)


def json_text(text: bytes | None, length: int) -> Text:
    """Return a value that is given as JSON with at most `length` characters."""
    if text is None:
        return None
    if text.startswith(b'"'):
        return truncate(orjson.loads(text), length)
    shown_text = truncate(text.decode(), length)
    return [shown_text] if isinstance(shown_text, str) else shown_text


def truncate(text: str, length: int) -> Text:
    """Return a text, or its beginning and its length if it is longer."""
    return text if len(text) <= length else {"beginning": text[:length], "length": len(text)}


def visible_text(text: Text) -> str:
    return text["beginning"] if isinstance(text, dict) else text[0] if isinstance(text, list) else text or ""


def _beginning(blob: Blob, length: int) -> Text:
    """Read the beginning of a blob; empty if the blob is damaged: it may be a link to another file, which must not be shown."""
    try:
        text = content(blob)[: 4 * length].decode(errors="ignore")
    except (BlobDamaged, OSError):
        return {"beginning": "", "bytes": blob.bytes}
    if text.startswith('"'):
        text = text[1 : length + 1]
        for excess in range(12):  # The text may end within an escape sequence, or a pair of them.
            try:
                text = json.loads(f'"{text[: len(text) - excess]}"')
                break
            except ValueError:
                continue
    return {"beginning": text[:length], "bytes": blob.bytes}
