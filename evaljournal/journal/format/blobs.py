"""Large values, stored beside the segments under the SHA-256 of their content.

The record contains a reference instead. `journal.writers.blob_writer` writes them.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from evaljournal.journal.disk.files import DISK, MAX_SIZE, Files, is_unreadable
from evaljournal.journal.errors import BlobDamaged, BlobUnreadable, Unserializable
from evaljournal.journal.events import Event, Record
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.format.codec import EVENT_TYPES, PAYLOAD_FIELDS, RECORD_FIELDS, Blobs, encode_payloads

LIMIT: Final = 256 << 10
"""Bytes of JSON; a longer value is stored as a blob."""

PARENTS: Final = 2
"""Number of directories between the run's directory and a blob."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@attrs.frozen
class Blob:
    """A large value that is not loaded yet."""

    sha256: str
    bytes: int
    path: Path
    """The run's directory."""

    def load(self, files: Files = DISK) -> Any:
        """Read the value; raise `BlobDamaged` if it is missing or changed."""
        try:
            return orjson.loads(content(self, files))
        except ValueError as exc:  # The hash is correct, but another program wrote it.
            raise BlobDamaged(self.path, location(self.sha256), f"is not JSON ({exc})") from exc


def digest(value: Any) -> str:
    """Return the SHA-256 of a value as JSON with sorted keys; of one in a blob, that of the blob, as it was written."""
    if isinstance(value, Blob):
        return value.sha256
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def content(blob: Blob, files: Files = DISK) -> bytes:
    """Return the JSON of a blob; raise `BlobDamaged` if it is missing or changed."""
    file = location(blob.sha256)
    try:
        with files.read(os.path.join(str(blob.path), file), PARENTS) as stream:
            data = stream.read(blob.bytes + 1)
    except FileNotFoundError as exc:
        raise BlobDamaged(blob.path, file, "is missing") from exc
    except OSError as exc:
        if not is_unreadable(exc):
            raise
        raise BlobUnreadable(blob.path, file, f"cannot be read ({exc.strerror})") from exc
    if hashlib.sha256(data).hexdigest() != blob.sha256 or len(data) != blob.bytes:
        raise BlobDamaged(blob.path, file, "was changed after it was written")
    return data


def location(sha256: str) -> str:
    """Return the path of a blob, relative to the run's directory."""
    return f"blobs/{sha256[:2]}/{sha256}.json"


def large_values(event: Event) -> tuple[Blobs, dict[str, bytes]]:
    """Return the field `blobs` for the fields of an event that must be stored as blobs, and their JSON by SHA-256."""
    references: dict[str, dict[str, Any]] = {}
    contents: dict[str, bytes] = {}
    for field, text in encode_payloads(event).items():
        if len(text) > MAX_SIZE:
            reason = f"has {len(text):,} bytes as JSON; at most {MAX_SIZE:,} are allowed"
            raise Unserializable(type(event).__name__, field, reason)
        if len(text) > LIMIT:
            sha256 = hashlib.sha256(text).hexdigest()
            references[field], contents[sha256] = {"sha256": sha256, "bytes": len(text)}, text
    return references, contents


def blobs_of(event: Event) -> dict[str, Blob]:
    """Return the fields of an event whose blobs are not loaded."""
    fields = PAYLOAD_FIELDS.get(type(event), ())
    return {field: value for field in fields if isinstance(value := getattr(event, field), Blob)}


def with_loaded_blobs(record: Record, files: Files) -> Record:
    """Return the record with the blobs of its event loaded."""
    values = {field: blob.load(files) for field, blob in blobs_of(record.event).items()}
    return record._replace(event=evolve_fact(record.event, **values)) if values else record


def unloaded_blobs(blobs: Blobs, type_: str, path: Path) -> dict[str, Blob]:
    """Return the blobs that a line refers to, by field, without loading them.

    The journal may be foreign: a reference must not point outside its directory, or replace a field that is not a payload.
    """
    allowed_fields = PAYLOAD_FIELDS[EVENT_TYPES[type_]] if type_ in EVENT_TYPES else blobs.keys() - RECORD_FIELDS
    for field, blob in blobs.items():
        if field not in allowed_fields:
            raise ValueError(f"{field} cannot be a blob")
        if not _SHA256.fullmatch(blob["sha256"]):
            raise ValueError(f"{blob['sha256']!r} is not a SHA-256")
        if blob["bytes"].__class__ is not int or blob["bytes"] < 0:
            raise ValueError(f"{blob['bytes']!r} is not the size of a blob")
    return {field: Blob(sha256=blob["sha256"], bytes=blob["bytes"], path=path) for field, blob in blobs.items()}
