"""Tables as Parquet files; needs `pip install 'evaljournal[parquet]'`."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from evaljournal.replay.export.source import Source
from evaljournal.replay.export.spool import Spool
from evaljournal.replay.export.tables import Column, Kind, MissingExtra, Rows, table, typed_value

_GROUP_ROWS: Final = 10_000
_GROUP_CHARS: Final = 16 << 20
"""Maximum characters of text in a row group, which is held in memory."""


def parquet(source: Source, rows: Rows) -> Iterator[bytes]:
    """Write a table, one row group at a time."""
    try:
        pa: Any = import_module("pyarrow")  # Optional, slow to import, and untyped.
        writer_type: Any = import_module("pyarrow.parquet").ParquetWriter
    except ImportError as exc:
        raise MissingExtra("Parquet needs pyarrow, which is not installed: pip install 'evaljournal[parquet]'") from exc

    types: dict[Kind, Any] = {
        "text": pa.string(),
        "time": pa.timestamp("us", tz="UTC"),
        "integer": pa.int64(),
        "number": pa.float64(),
        "boolean": pa.bool_(),
        "any": pa.string(),
    }

    content = table(source, rows)
    schema = pa.schema([(column.name, types[column.kind]) for column in content.columns])
    spool = Spool()
    with writer_type(spool, schema) as writer:
        for group in _row_groups(content.rows, content.columns):
            arrays = [pa.array(values, type=field.type) for values, field in zip(group, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            yield spool.pop()
    yield spool.pop()


def _row_groups(rows: Iterator[dict[str, Any]], columns: list[Column]) -> Iterator[list[list[Any]]]:
    group: list[list[Any]] = [[] for _ in columns]
    size = 0
    for row in rows:
        for column, values in zip(columns, group, strict=True):
            value = typed_value(column, row)
            values.append(value)
            size += len(value) if isinstance(value, str) else 0
        if len(group[0]) >= _GROUP_ROWS or size >= _GROUP_CHARS:
            yield group
            group, size = [[] for _ in columns], 0
    if group[0]:
        yield group
