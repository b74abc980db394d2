"""Tables as Parquet files; `pip install 'evaljournal[parquet]'`."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from journal import JournalError
from replay.export.source import Source
from replay.export.spool import Spool
from replay.export.tables import Column, Kind, Rows, plain, table

_GROUP_ROWS: Final = 10_000
_GROUP_BYTES: Final = 16 << 20
"""A group of rows is held in memory until it has so many rows, or so many characters of text."""


class MissingExtra(JournalError):
    """A package is needed that is not installed."""


def parquet(source: Source, rows: Rows) -> Iterator[bytes]:
    """Write a table, a group of rows at a time."""
    try:
        pa: Any = import_module("pyarrow")  # An extra, slow to import, and not typed.
        writer_of: Any = import_module("pyarrow.parquet").ParquetWriter
    except ImportError as exc:
        raise MissingExtra("Parquet needs a package that is not installed: pip install 'evaljournal[parquet]'") from exc
    types: dict[Kind, Any] = {
        "text": pa.string(),
        "whole": pa.int64(),
        "number": pa.float64(),
        "yes or no": pa.bool_(),
        "any": pa.string(),
    }
    made = table(source, rows)
    schema = pa.schema([(column.name, types[column.kind]) for column in made.columns])
    spool = Spool()
    with writer_of(spool, schema) as writer:
        for group in _groups(made.rows, made.columns):
            arrays = [pa.array(values, type=field.type) for values, field in zip(group, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            yield spool.taken()
    yield spool.taken()


def _groups(rows: Iterator[dict[str, Any]], columns: list[Column]) -> Iterator[list[list[Any]]]:
    """Turn rows into columns, so many at a time."""
    group: list[list[Any]] = [[] for _ in columns]
    size = 0
    for row in rows:
        for column, values in zip(columns, group, strict=True):
            value = plain(column, column.of(row))
            values.append(value)
            size += len(value) if isinstance(value, str) else 0
        if len(group[0]) >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield group
            group, size = [[] for _ in columns], 0
    if group[0]:
        yield group
