"""Large values, kept beside the journal under the hash of their content.

A value above the limit would make the log unreadable by eye and slow to scan, so the record says where it is instead. A blob
is on disk, whole and synced, before the record that points to it is written.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from journal.codec import EVENT_TYPES, PAYLOAD_FIELDS, RECORD_MEMBERS, Blobs
from journal.errors import BlobDamaged
from journal.events import Event
from journal.files import DISK, Files, create, make_directory, retry_interrupted

LIMIT: Final = 256 << 10
"""A value whose JSON is longer than this many bytes is kept in a blob."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@attrs.frozen
class Blob:
    """A large value that has not been loaded."""

    sha256: str
    bytes: int
    path: Path
    """The run's directory."""

    def load(self, files: Files = DISK) -> Any:
        """Read the value, and check that it is the one that was written."""
        place = location(self.sha256)
        try:
            with files.read(os.path.join(str(self.path), place)) as stream:
                data = stream.read()
        except FileNotFoundError as exc:
            raise BlobDamaged(f"{self.path}: {place} is missing; the record that names it cannot be read whole") from exc
        if hashlib.sha256(data).hexdigest() != self.sha256 or len(data) != self.bytes:
            raise BlobDamaged(f"{self.path}: {place} was changed after it was written")
        try:
            return orjson.loads(data)
        except ValueError as exc:  # Properly named, but not written by us.
            raise BlobDamaged(f"{self.path}: {place} is not JSON ({exc})") from exc


def location(sha256: str) -> str:
    """Tell where a blob is kept, relative to the run's directory."""
    return f"blobs/{sha256[:2]}/{sha256}.json"


def too_large(event: Event) -> dict[str, bytes]:
    """Find the fields of an event whose values must not stand in a line, each with its JSON."""
    values = ((field, getattr(event, field)) for field in PAYLOAD_FIELDS.get(type(event), ()))
    texts = ((field, orjson.dumps(value)) for field, value in values if value is not None)
    return {field: text for field, text in texts if len(text) > LIMIT}


def references(large: Mapping[str, bytes]) -> Blobs:
    """Make the member `blobs`, which says where the values are."""
    return {field: {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)} for field, text in large.items()}


def loaded(event: Event, files: Files) -> Event:
    """Put the values themselves in the place of those that were kept in blobs."""
    fields = PAYLOAD_FIELDS.get(type(event), ())
    values = {field: value.load(files) for field in fields if isinstance(value := getattr(event, field), Blob)}
    whole: Any = event  # Which kind of event it is, the fields have said.
    return attrs.evolve(whole, **values) if values else event


def referred(blobs: Blobs, kind: str, path: Path) -> dict[str, Blob]:
    """Turn a line's member `blobs` into the values that it stands for, unloaded.

    A journal may come from elsewhere: it must neither lead us out of its directory nor replace what is not the user's data.
    """
    allowed = PAYLOAD_FIELDS[EVENT_TYPES[kind]] if kind in EVENT_TYPES else blobs.keys() - RECORD_MEMBERS
    for field, blob in blobs.items():
        if field not in allowed:
            raise ValueError(f"{field} is not kept in a blob")
        if not _SHA256.fullmatch(blob["sha256"]):
            raise ValueError(f"{blob['sha256']!r} is not the hash of a blob")
    return {field: Blob(sha256=blob["sha256"], bytes=blob["bytes"], path=path) for field, blob in blobs.items()}


def store(files: Files, path: Path, sha256: str, data: bytes) -> None:
    """Put a blob on disk, unless it is there already."""
    place = os.path.join(str(path), location(sha256))
    directory, name = os.path.split(place)
    if files.size(place) == len(data):
        with files.read(place) as stream:
            if stream.read() == data:
                make_directory(files, directory)
                retry_interrupted(lambda: files.sync_directory(directory))  # Who wrote it may have died before that.
                return
    make_directory(files, directory)
    create(files, directory, name, data)
