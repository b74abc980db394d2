"""Images and files that columns of a case name: reading them, and their digests in the case's fingerprint.

Datasets are untrusted: a path cannot leave the dataset's directory, and only regular files of a limited size that are not
hidden are read.
"""

import base64
import binascii
import contextlib
import functools
import hashlib
import mimetypes
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, Final, Literal

from attrs import evolve, frozen

from evaljournal.journal.disk.files import Files
from evaljournal.replay.text import as_text
from evaljournal.runner.data.case import Case, content_name
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.data.templates import Fields, MissingField
from evaljournal.runner.errors import UsageError

Kind = Literal["image", "file"]

MAX_SIZE: Final = 20 << 20
"""Maximum bytes of an image or a file; providers take 20 to 50 MB in a request."""
_MAX_CASE_SIZE: Final = 64 << 20
"""Maximum characters of all images and files of a case in base64: more than providers take."""
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[\w.+-]+)*;base64,", re.ASCII)
_SIGNATURES: Final = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "image/bmp": re.compile(rb"BM"),
    "image/tiff": re.compile(rb"II\*\0|MM\0\*"),
    "image/heic": re.compile(rb".{4}ftyp(?:he|mif1|msf1)", re.DOTALL),
    "image/heif": re.compile(rb".{4}ftyp(?:he|mif1|msf1)", re.DOTALL),
    "image/avif": re.compile(rb".{4}ftyp(?:avi[fs]|mif1)", re.DOTALL),
}


class InvalidAttachment(UsageError):
    """A column of images or files has a value that cannot be sent; only that case has an error."""


@frozen(kw_only=True)
class CaseFile:
    kind: Kind
    name: str
    """Name of the file; of a data URL, the column with an extension."""
    media_type: str
    data: str
    """The content in base64."""


def attachments_of(case: Case, columns: Mapping[Kind, Iterable[str]]) -> list[CaseFile]:
    """Read the images and files of a case; raise an `InvalidAttachment` if it lacks a column or a value cannot be sent."""
    attachments: list[CaseFile] = []
    values = (
        (kind, column, value) for kind, names in columns.items() for column in names for value in column_values(case, column)
    )
    for kind, column, value in values:
        attachments.append(_from_url(kind, column, value) if value.startswith("data:") else _from_file(kind, case, value))
        if sum(len(attachment.data) for attachment in attachments) > _MAX_CASE_SIZE:
            raise InvalidAttachment(f"the images and files of the case are larger than {_MAX_CASE_SIZE >> 20} MiB in base64")
    return attachments


def attachment_records(case: Case, columns: Mapping[Kind, Iterable[str]]) -> list[dict[str, Any]]:
    """Return the images and files of a case as its request records them: without their content."""
    records: list[dict[str, Any]] = []
    for column in (column for names in columns.values() for column in names):
        with contextlib.suppress(InvalidAttachment):  # The attempt reports it.
            for value in column_values(case, column):
                if value.startswith("data:"):
                    records.append({"column": column, "data_url": f"{value[:40]}…", "length": len(value)})
                else:
                    records.append({"column": column, "path": value, **case.files.get(value, {})})
    return records


def add_file_digests(
    case: Case, columns: Iterable[str], directory: Path, previous_files: Mapping[str, Mapping[str, Any]]
) -> Case:
    """Return a case with the digests of the files that its columns name; they are part of its fingerprint.

    `previous_files` are those of the case before it: many questions may be about one document, which is then read once.
    """
    files: dict[str, Mapping[str, Any]] = {}
    for column in columns:
        with contextlib.suppress(InvalidAttachment):  # The attempt reports it.
            for path in column_values(case, column):
                if not path.startswith("data:"):
                    files[path] = previous_files.get(path) or _describe(directory, path)

    if not files:
        return case
    is_named_by_user = case.name != content_name(case.input, case.fingerprint)
    new_case = evolve(case, files=files, directory=str(directory))
    return new_case if is_named_by_user else evolve(new_case, name=content_name(case.input, new_case.fingerprint))


def column_values(case: Case, column: str) -> list[str]:
    """Return the paths and data URLs in a column; none if it is null or empty."""
    try:
        value = Fields(case).get(column)
    except MissingField as exc:
        raise InvalidAttachment(str(exc)) from exc
    if isinstance(value, str) and value.startswith("["):  # A list in a CSV file.
        with contextlib.suppress(ValueError):  # Otherwise, it is a path.
            value = read_json(value)

    values = value if isinstance(value, list | tuple) else [] if value is None or value == "" else [value]
    for item in values:
        if not isinstance(item, str) or not item:
            raise InvalidAttachment(
                f"column {column!r} must have a path, a data: URL or a list of them, not {as_text(item)[:80]!r}"
            )
    return list(values)


def _from_url(kind: Kind, column: str, url: str) -> CaseFile:
    match = _DATA_URL.match(url)
    if match is None:
        raise InvalidAttachment(f"column {column!r}: {url[:80]!r} is not of the form data:image/png;base64,…")
    if len(url) - match.end() > -(-MAX_SIZE // 3) * 4:
        raise InvalidAttachment(f"column {column!r}: the data: URL is larger than {MAX_SIZE >> 20} MiB")

    try:
        content = base64.b64decode(url[match.end() :], validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidAttachment(f"column {column!r}: the data: URL is not valid base64: {exc}") from exc

    media_type = match[1].lower()
    name = f"{column}{_media_types().guess_extension(media_type) or ''}"
    return _attachment(kind, name, media_type, content, f"column {column!r}")


def _from_file(kind: Kind, case: Case, path: str) -> CaseFile:
    recorded_file = case.files.get(path, {})
    if "error" in recorded_file:
        raise InvalidAttachment(recorded_file["error"])
    content = read_file(Path(case.directory), path)
    if recorded_file and recorded_file["sha256"] != hashlib.sha256(content).hexdigest():
        raise InvalidAttachment(f"{path}: the file was changed after the case was read; `resume --adopt` uses the new one")

    media_type, encoding = _media_types().guess_type(path, strict=False)
    if media_type is None or encoding is not None:  # Such as text that is compressed.
        raise InvalidAttachment(f"{path}: unknown file extension; rename the file, or use a data: URL")
    return _attachment(kind, PurePath(path).name, media_type, content, path)


@functools.cache
def _media_types() -> mimetypes.MimeTypes:
    """Return the media types of the standard library; those of the machine could differ on the next one."""
    media_types = mimetypes.MimeTypes()
    for extension, media_type in (
        (".webp", "image/webp"),
        (".heic", "image/heic"),
        (".heif", "image/heif"),
        (".avif", "image/avif"),
    ):
        media_types.add_type(media_type, extension)  # Unknown before Python 3.13.
    return media_types


def _attachment(kind: Kind, name: str, media_type: str, content: bytes, place: str) -> CaseFile:
    """Return an attachment; the first bytes of an image must be those of its media type."""
    if kind == "image" and media_type not in _SIGNATURES:
        raise InvalidAttachment(f"{place}: {media_type!r} is not a supported image type; use {', '.join(_SIGNATURES)}")
    signature = _SIGNATURES.get(media_type)
    if signature is not None and not signature.match(content):
        raise InvalidAttachment(f"{place}: the content is not {media_type}")
    return CaseFile(kind=kind, name=name, media_type=media_type, data=base64.b64encode(content).decode())


def _describe(directory: Path, path: str) -> dict[str, Any]:
    try:
        content = read_file(directory, path)
    except InvalidAttachment as exc:
        return {"error": exc.message}
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def read_file(directory: Path, path: str) -> bytes:
    """Read a file in a directory or below; the path must be relative, without `..`, and no part of it hidden or a symlink.

    Its directories are opened one by one, so none can be replaced by a symlink meanwhile; type and size are those of the
    opened file.
    """
    if path.startswith(("http://", "https://")):
        raise InvalidAttachment(f"{path[:200]}: URLs are not fetched; use a file, or a data: URL")

    parts = PurePath(path).parts
    if not parts or PurePath(path).anchor or ".." in parts:
        raise InvalidAttachment(f"{path[:200]!r} is not a path relative to the dataset, without '..'")
    if any(part.startswith(".") for part in parts):  # Such as `.env` or `.git/config`, which a dataset should not select.
        raise InvalidAttachment(f"{path[:200]!r} is a hidden file, or in a hidden directory; rename it, or use a data: URL")

    try:
        fd = Files().open(os.path.join(directory, *parts), os.O_RDONLY, parents=len(parts) - 1)
        with open(fd, "rb") as file:
            content = file.read(MAX_SIZE + 1)
    except OSError as exc:
        raise InvalidAttachment(f"{path[:200]}: cannot be read: {exc.strerror}") from exc
    except ValueError as exc:  # A NUL byte, or a lone surrogate.
        raise InvalidAttachment(f"{path[:200]!r} is not a path: {exc}") from exc
    if len(content) > MAX_SIZE:
        raise InvalidAttachment(f"{path[:200]}: larger than {MAX_SIZE >> 20} MiB")
    return content
