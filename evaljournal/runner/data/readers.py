"""Readers of dataset files: JSONL, JSON, CSV, TSV, Parquet and Excel.

Each yields rows one at a time with their position, exactly as they are in the file, without converting values: a CSV file has
only strings. Dates and decimals of Parquet and Excel are text. Errors name the file and the line or, in these two, the row.
"""

import codecs
import csv
import importlib
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from evaljournal.runner.data.tables import BATCH_ROWS, Row, duplicates, json_rows, reject_duplicates
from evaljournal.runner.errors import UsageError, suggest

NumberedRow = tuple[int, Row]
"""A row with the line it starts on, or, in Parquet and Excel, its number; counted from 1."""

_OTHER_UNICODE = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_FIELD_LIMIT = 2**31 - 1
"""Characters in one CSV field; Python's default of 131,072 is too small for long prompts."""

_MIN_EXPANDED = 64 << 20
_MAX_EXPANSION = 1_000
"""A column of a Parquet file may have `_MIN_EXPANDED` bytes in a group of rows, or this many times the size of the file."""
_VALUE_BYTES = 32
"""Bytes of a value in a list."""
_USUAL_RATIO = 100
"""If a column is compressed more, each row may have a text that is stored once, so few rows are read at a time."""
_BATCH_BYTES = 16 << 20
"""Maximum bytes of a column in these rows, or one row."""

_SEPARATORS = (";", "\t", ",", "|")
"""Separators that are detected in the first line of a file."""
_SHEET = re.compile(r"(?P<path>.+\.xlsx)#(?P<sheet>[^/\\]+)", re.IGNORECASE)
_DELIMITER_LINE = re.compile(r'"?sep=([^"\r\n])"?\r?\n?', re.IGNORECASE)


def split_sheet(source: str) -> tuple[str, str | None]:
    """Split `qa.xlsx#Sheet` into the path of a workbook and the name of a sheet."""
    match = _SHEET.fullmatch(source)
    return (match["path"], match["sheet"]) if match else (source, None)


def rows(path: Path, delimiter: str | None = None, sheet: str | None = None) -> Iterator[NumberedRow]:
    """Yield the rows of a file; its suffix selects the format. A CSV file may have a `delimiter`, a workbook a `sheet`."""
    try:
        reader = _READERS[_suffix(path)]
        if delimiter is not None and reader is not _csv:
            raise UsageError("only a CSV file has a delimiter", path=path)
        if sheet is not None:
            yield from _xlsx(path, sheet)
        else:
            yield from reader(path) if delimiter is None else _csv(path, delimiter)
    except OSError as exc:
        raise UsageError(f"cannot read the file: {exc.strerror or exc}{_similar_files(path)}", path=path) from exc


def _similar_files(path: Path) -> str:
    """Return the dataset files in the same directory whose names are similar, as a question."""
    try:
        names = [file.name for file in path.parent.iterdir() if file.suffix.lower() in _READERS and file.name != path.name]
    except OSError:
        return ""
    return suggest(path.name, names, render=lambda name: str(path.parent / name))


def place(path: Path, number: int) -> str:
    """Return the position of a row: `qa.jsonl, line 17`."""
    return f"{path}, {'row' if _suffix(path) in {'.parquet', '.xlsx'} else 'line'} {number:,}"


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        hint = "" if suffix else "save piped data to a file, because a resumed run reads it again"
        raise UsageError(f"unknown suffix {suffix!r}, expected one of {', '.join(_READERS)}", path=path, hint=hint)
    return suffix


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield lines that end with LF; other line separators may be part of a value."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line.startswith(_OTHER_UNICODE):
                raise UsageError("the file is UTF-16 or UTF-32; save it as UTF-8", path=path)
            try:
                yield number, (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode()
            except UnicodeDecodeError as exc:
                position = f"byte 0x{line[exc.start]:02x} at column {exc.start + 1:,}"
                raise UsageError(f"not UTF-8 ({position}); save the file as UTF-8", path=path, line=number) from exc


def _row(pairs: list[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"duplicate key {duplicates(key for key, _ in pairs)[0]!r}")
    return row


_JSON = json.JSONDecoder(object_pairs_hook=_row)
"""Python's decoder: orjson converts large integers to floats and ignores duplicate keys. NaN is rejected later, with the
name of its field."""

_SPACE = re.compile(r"[ \t\r\n]*")


def _json_error(exc: ValueError | RecursionError) -> str:
    match exc:
        case json.JSONDecodeError():
            problem = exc.msg.removesuffix(" at")
            return f"not JSON: {problem[:1].lower()}{problem[1:]} at column {exc.colno:,}"
        case RecursionError():
            return "nested too deeply"
        case _:
            return str(exc)


def _object(row: object, path: Path, number: int) -> Row:
    if not isinstance(row, dict):
        raise UsageError(f"expected an object, got {type(row).__name__}", path=path, line=number)
    return row  # pyright: ignore[reportUnknownVariableType]  # JSON's keys are strings


def _jsonl(path: Path) -> Iterator[NumberedRow]:
    for number, line in _lines(path):
        if line.isspace():
            continue
        try:
            row = _JSON.decode(line)
        except (ValueError, RecursionError) as exc:
            raise UsageError(_json_error(exc), path=path, line=number) from exc
        yield number, _object(row, path, number)


def _json(path: Path) -> Iterator[NumberedRow]:
    """Yield the objects of one list; the text is read as a whole, the objects one at a time."""
    text = "".join(line for _, line in _lines(path))

    def skip_space(start: int) -> int:
        space = _SPACE.match(text, start)
        return space.end() if space else start

    def error_at(start: int, reason: str) -> UsageError:
        return UsageError(reason, path=path, line=text.count("\n", 0, start) + 1)

    start = skip_space(0)
    if text.startswith("{", start) and (rows := _skill(text, path)) is not None:
        yield from rows
        return
    if not text.startswith("[", start):
        raise error_at(start, "expected a list of objects; if each line is an object, name the file .jsonl")
    start = skip_space(start + 1)
    line, counted_to = 1, 0  # Counted incrementally: from the start each time would be quadratic.
    is_closed = text.startswith("]", start)
    while not is_closed:
        line, counted_to = line + text.count("\n", counted_to, start), start
        try:
            row, start = _JSON.raw_decode(text, start)
        except (ValueError, RecursionError) as exc:
            raise error_at(exc.pos if isinstance(exc, json.JSONDecodeError) else start, _json_error(exc)) from exc
        yield line, _object(row, path, line)
        start = skip_space(start)
        is_closed = text.startswith("]", start)
        if not is_closed:
            if not text.startswith(",", start):
                raise error_at(start, "expected ',' or ']' after an object")
            start = skip_space(start + 1)
    end = skip_space(start + 1)
    if end < len(text):
        raise error_at(end, f"unexpected text after the list: {text[end : end + 20]!r}")


def _skill(text: str, path: Path) -> Iterator[NumberedRow] | None:
    """Return the rows of a skill's `evals.json`, whose lines are unknown; None for another object."""
    try:
        value = _JSON.decode(text)
    except (ValueError, RecursionError):
        return None
    from evaljournal.runner.data.skills import is_skill, skill_rows  # noqa: PLC0415  # only a JSON object needs it

    if not is_skill(value):
        return None
    return ((1, row) for row in skill_rows(value, path))


def _declared_delimiter(path: Path) -> str | None:
    """Return the separator that a first line `sep=;` names, as Excel writes and reads it; None without such a line."""
    match = _DELIMITER_LINE.fullmatch(next((line for _, line in _lines(path)), ""))
    return match[1] if match else None


def _delimiter(path: Path) -> str:
    """Return the separator of the header: that of the suffix if it separates columns, otherwise the only other that does."""
    usual_delimiter = "\t" if _suffix(path) == ".tsv" else ","
    counts: dict[str, int] = {}
    for separator in (usual_delimiter, *(other for other in _SEPARATORS if other != usual_delimiter)):
        try:
            counts[separator] = len(next(csv.reader((line for _, line in _lines(path)), delimiter=separator, strict=True), ()))
        except csv.Error:
            counts[separator] = 0
        if counts[usual_delimiter] > 1:
            return usual_delimiter

    others = [separator for separator, count in counts.items() if count > 1]
    if len(others) > 1:
        names = " or ".join(map(repr, others))
        raise UsageError(f"fields may be separated by {names}; add -s delimiter=… (delimiter=… in Python)", path=path, line=1)
    return others[0] if others else usual_delimiter


def _csv(path: Path, delimiter: str | None = None) -> Iterator[NumberedRow]:
    csv.field_size_limit(_FIELD_LIMIT)
    declared_delimiter = _declared_delimiter(path)
    skipped = 0 if declared_delimiter is None else 1
    if is_detected := delimiter is None:
        delimiter = declared_delimiter or _delimiter(path)

    reader = csv.reader((line for _, line in islice(_lines(path), skipped, None)), delimiter=delimiter, strict=True)
    try:
        header = next(reader, list[str]())
        reject_duplicates(header, path, place=" in the header", line=skipped + 1)
        end = skipped + reader.line_num
        for fields in reader:
            start, end = end + 1, skipped + reader.line_num
            if fields and len(fields) != len(header):
                hint = (
                    f"the columns are separated by {delimiter!r}; `run -s delimiter=…` sets another separator"
                    if is_detected
                    else ""
                )
                raise UsageError(f"{len(fields)} columns, expected {len(header)}", path=path, line=start, hint=hint)
            if fields:
                yield start, dict(zip(header, fields, strict=True))
    except csv.Error as exc:
        raise UsageError(str(exc), path=path, line=skipped + reader.line_num) from exc


def _parquet(path: Path) -> Iterator[NumberedRow]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as exc:
        raise UsageError("Parquet needs pyarrow: pip install 'evaljournal[parquet]'", path=path) from exc

    number = 0
    try:
        with path.open("rb") as handle, parquet.ParquetFile(handle, pre_buffer=False) as file:
            reject_duplicates(file.schema_arrow.names, path)
            for batch in file.iter_batches(batch_size=_batch_rows(file.metadata, path)):
                for row in json_rows(batch.to_pylist()):
                    number += 1
                    yield number, row
    except ValueError as exc:  # pyarrow's errors
        raise UsageError(f"after row {number:,}: {exc}", path=path) from exc


def _batch_rows(metadata: Any, path: Path) -> int:
    """Return how many rows of a Parquet file are read at a time; raise a UsageError if it declares far more data than it has.

    A few bytes can stand for gigabytes: a compressed text, a text that all rows refer to, or a list of nulls.
    """
    rows, file_size = BATCH_ROWS, path.stat().st_size
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            size = column.total_uncompressed_size
            expanded_size = max(size, column.num_values * _VALUE_BYTES if column.num_values > group.num_rows else 0)
            if expanded_size > max(_MIN_EXPANDED, _MAX_EXPANSION * file_size):
                problem = f"column {column.path_in_schema!r} has {expanded_size:,} bytes after decompression"
                hint = "write it with smaller row groups, or as JSONL"
                raise UsageError(f"{problem}, more than a file of {file_size:,} bytes may have", path=path, hint=hint)
            if size > _USUAL_RATIO * column.total_compressed_size:
                rows = min(rows, max(1, _BATCH_BYTES // size))
    return rows


def _xlsx(path: Path, sheet: str | None = None) -> Iterator[NumberedRow]:
    from evaljournal.runner.data.xlsx import xlsx_rows  # noqa: PLC0415  # few datasets are workbooks

    return xlsx_rows(path, sheet)


_READERS = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".xlsx": _xlsx,
}
