"""Rows out of files, exactly as the files have them.

One function for each format: it yields every row with the place where it stands, one at a time, and raises a
`UsageError` that names the file and the place. What the columns mean is not its business; that is `runner.data.dataset`.
Nothing is ever evaluated, guessed or converted: a CSV has only text, and JSON says itself what is a number.
"""

import codecs
import csv
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.errors import UsageError

Row = dict[str, Any]
Placed = tuple[int, Row]
"""A row and its place: the line on which it begins, or, where there are no lines, its number; counted from 1."""

_OTHER_UNICODE = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_FIELD_LIMIT = 2**31 - 1
"""Characters in one field of a CSV. Python's own limit of 131,072 is less than a long prompt."""

_SEPARATORS = (";", "\t", ",")
"""What stands between the fields where it should be something else: spreadsheets write what the country is used to."""


def rows(path: Path) -> Iterator[Placed]:
    """Yield the rows of a file, by the format that its name ends in."""
    try:
        yield from _READERS[_known(path)](path)
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror or exc}") from exc


def place(path: Path, at: int) -> str:
    """Say where a row stands: `qa.jsonl, line 17`."""
    return f"{path}, {'row' if _known(path) == '.parquet' else 'line'} {at:,}"


def _known(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        pipe = "" if suffix else "; save what comes through a pipe: a run that is resumed reads it again"
        raise UsageError(f"{path} ends in {suffix!r}; a dataset is one of {', '.join(_READERS)}{pipe}")
    return suffix


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield lines as they end in LF and nothing else: other characters that break lines may stand inside a value."""
    with path.open("rb") as file:
        for at, line in enumerate(file, 1):
            if at == 1 and line.startswith(_OTHER_UNICODE):
                raise UsageError(f"{path} is UTF-16 or UTF-32; save it as UTF-8")
            try:
                yield at, (line.removeprefix(codecs.BOM_UTF8) if at == 1 else line).decode()
            except UnicodeDecodeError as exc:
                bad = f"byte 0x{line[exc.start]:02x} at column {exc.start + 1:,}"
                raise UsageError(f"{path}, line {at:,}: not UTF-8 ({bad}); save the file as UTF-8") from exc


def _members(pairs: list[tuple[str, Any]]) -> Row:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object, so one of its values would be lost")
    return found


_JSON = json.JSONDecoder(object_pairs_hook=_members)
"""Python's own: orjson makes floats of large integers and takes the last of two equal keys. NaN passes, and is refused
with the name of its field when the row becomes a case."""

_SPACE = re.compile(r"[ \t\r\n]*")


def _wrong(exc: ValueError | RecursionError) -> str:
    match exc:
        case json.JSONDecodeError():
            what = exc.msg.removesuffix(" at")  # Some of Python's words end so already.
            return f"not JSON: {what[:1].lower()}{what[1:]} at column {exc.colno:,}"
        case RecursionError():
            return "nested too deeply"
        case _:
            return str(exc)


def _object(row: object, path: Path, at: int) -> Row:
    if not isinstance(row, dict):
        raise UsageError(f"{path}, line {at:,}: every row is an object, {{…}}; this one is of type {type(row).__name__}")
    return row  # pyright: ignore[reportUnknownVariableType]  # JSON's keys are text


def _jsonl(path: Path) -> Iterator[Placed]:
    for at, line in _lines(path):
        if line.isspace():
            continue
        try:
            row = _JSON.decode(line)
        except (ValueError, RecursionError) as exc:
            raise UsageError(f"{path}, line {at:,}: {_wrong(exc)}") from exc
        yield at, _object(row, path, at)


def _json(path: Path) -> Iterator[Placed]:
    """Yield the objects of one list. The text is held whole, the objects one at a time."""
    text = "".join(line for _, line in _lines(path))

    def skip(start: int) -> int:
        found = _SPACE.match(text, start)
        return found.end() if found else start

    def wrong(start: int, why: str) -> UsageError:
        return UsageError(f"{path}, line {text.count(chr(10), 0, start) + 1:,}: {why}")

    start = skip(0)
    if not text.startswith("[", start):
        raise wrong(start, "a JSON dataset is a list, […]; name the file .jsonl if each of its lines is an object")
    start = skip(start + 1)
    line, counted = 1, 0  # Counted on from row to row: from the start each time would be quadratic.
    closed = text.startswith("]", start)
    while not closed:
        line, counted = line + text.count("\n", counted, start), start
        try:
            row, start = _JSON.raw_decode(text, start)
        except (ValueError, RecursionError) as exc:
            raise wrong(exc.pos if isinstance(exc, json.JSONDecodeError) else start, _wrong(exc)) from exc
        yield line, _object(row, path, line)
        start = skip(start)
        closed = text.startswith("]", start)
        if not closed:
            if not text.startswith(",", start):
                raise wrong(start, "after an object, ',' or ']' was expected")
            start = skip(start + 1)
    rest = skip(start + 1)
    if rest < len(text):
        raise wrong(rest, f"something follows the list: {text[rest : rest + 20]!r}")


def _separated(path: Path, delimiter: str) -> Iterator[Placed]:
    csv.field_size_limit(_FIELD_LIMIT)
    reader = csv.reader((line for _, line in _lines(path)), delimiter=delimiter, strict=True)
    try:
        header = next(reader, list[str]())
        if twice := sorted({name for name in header if header.count(name) > 1}):
            raise UsageError(f"{path}, line 1: the header names {', '.join(map(repr, twice))} twice")
        others = [each for each in _SEPARATORS if each != delimiter and each in "".join(header)]
        if len(header) == 1 and others:
            raise UsageError(f"{path}, line 1: its fields are separated by {others[0]!r}; save it with {delimiter!r} instead")
        end = reader.line_num
        for fields in reader:
            start, end = end + 1, reader.line_num
            if fields and len(fields) != len(header):
                raise UsageError(f"{path}, line {start:,}: {len(fields)} fields, but the header names {len(header)}")
            if fields:
                yield start, dict(zip(header, fields, strict=True))
    except csv.Error as exc:
        raise UsageError(f"{path}, line {reader.line_num:,}: {exc}") from exc


def _csv(path: Path) -> Iterator[Placed]:
    return _separated(path, ",")


def _tsv(path: Path) -> Iterator[Placed]:
    return _separated(path, "\t")


def _parquet(path: Path) -> Iterator[Placed]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as exc:
        raise UsageError(f"{path} needs pyarrow to be read: pip install 'evaljournal[parquet]'") from exc
    at = 0
    try:
        with path.open("rb") as handle, parquet.ParquetFile(handle) as file:
            names: list[str] = file.schema_arrow.names
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise UsageError(f"{path}: the columns {', '.join(map(repr, twice))} are there twice")
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    at += 1
                    yield at, row
    except ValueError as exc:  # pyarrow's errors about content are ValueErrors
        raise UsageError(f"{path}, after row {at:,}: {exc}") from exc


_READERS = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
}
