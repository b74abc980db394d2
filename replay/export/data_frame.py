"""Tables as pandas DataFrames."""

from importlib import import_module
from pathlib import Path
from typing import Any

from replay.export.parquet import MissingExtra
from replay.export.source import Source
from replay.export.tables import Rows, table


def data_frame(path: Path, rows: Rows) -> Any:
    """Return a table with the columns of a Parquet file; values that are JSON in a file are objects here."""
    try:
        pandas: Any = import_module("pandas")
    except ImportError as exc:
        raise MissingExtra("a DataFrame needs pandas, which is not installed: pip install pandas") from exc
    with Source(path) as source:
        content = table(source, rows)
        records = [[column.get(row) for column in content.columns] for row in content.rows]
    frame = pandas.DataFrame(records, columns=[column.name for column in content.columns])
    for column in content.columns:
        if column.kind == "time":
            frame[column.name] = pandas.to_datetime(frame[column.name], utc=True, errors="coerce", format="ISO8601")
    return frame
