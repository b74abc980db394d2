"""Rows of tables in memory: pandas and polars DataFrames, and datasets of Hugging Face. None of these packages is imported.

Every value is a JSON value, equal for all tables and for the Parquet and Excel files of `runner.data.readers`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from types import NoneType
from typing import Any, Final, cast
from uuid import UUID

from evaljournal.runner.data.columns import list_names
from evaljournal.runner.errors import UsageError

Row = dict[str, Any]

BATCH_ROWS: Final = 1024
_JSON_TYPES: Final = frozenset({str, int, float, bool, NoneType})
_MAX_EXACT: Final = 2**53
"""Above this, a float does not have every whole number."""


def reject_unsupported(source: object) -> None:
    """Raise a UsageError if cases cannot be read from an object that looks like a table, or like several."""
    kind = type(source).__name__
    if _reader(source) is not None:
        return

    if "datasets." in type(source).__module__ and isinstance(source, Mapping):
        splits = cast("Mapping[str, Any]", source)
        example = next(iter(splits), "test")
        raise UsageError(f"cases is a {kind} with the splits {list_names(splits)}; pass one, as in cases=data[{example!r}]")
    if kind == "LazyFrame":
        raise UsageError("cases is a LazyFrame; pass the result of its collect()")
    if isinstance(source, Mapping | bytes) or hasattr(source, "columns"):
        raise UsageError(f"cases of type {kind} are not supported; pass a list of dicts or a DataFrame of pandas or polars")


def table_rows(source: object) -> Iterator[Row] | None:
    """Yield the rows of a table; None if it is not one."""
    reader = _reader(source)
    return None if reader is None else reader(source)


def _reader(source: object) -> Callable[[Any], Iterator[Row]] | None:
    names = (f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(source).__mro__)
    return next((_READERS[name] for name in names if name in _READERS), None)


def json_rows(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        yield {name: value if type(value) in _JSON_TYPES else json_value(value) for name, value in row.items()}


def json_value(value: Any) -> Any:  # noqa: PLR0911  # one return for each kind of value
    """Convert a value of a table: dates, times, decimals and UUIDs to text, arrays to lists, and a missing value to None.

    Other values are returned unchanged; the dataset rejects those that JSON cannot represent, such as bytes.
    """
    match value:
        case Mapping():
            return {key: json_value(item) for key, item in cast("Mapping[str, Any]", value).items()}
        case list() | tuple():
            return [json_value(item) for item in cast("list[Any]", value)]
        case _ if type(value).__name__ in {"NaTType", "NAType"}:  # pandas' missing values; NaT is a datetime.
            return None
        case date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case _ if getattr(getattr(value, "dtype", None), "kind", None) in {"m", "M"}:
            return value  # Of numpy; nanoseconds would become integers.
        case _ if hasattr(value, "tolist"):
            return json_value(value.tolist())
        case _:
            return value


def _pandas_rows(frame: Any) -> Iterator[Row]:
    """Yield the rows of a pandas DataFrame; a level of its index that has a name is a column."""
    if repeated_names := duplicates(frame.columns):
        raise UsageError(f"duplicate columns: {list_names(repeated_names)}")
    columns = {name: frame.iloc[:, position].array for position, name in enumerate(frame.columns)}

    levels: Row = {}
    for level, name in enumerate(frame.index.names):
        array = frame.index.get_level_values(level).array
        if name is not None and name not in columns:
            levels[name] = array
        elif name is not None and array.tolist() != columns[name].tolist():
            raise UsageError(f"the index and a column are named {name!r}, but their values differ; rename one of them")
    columns = levels | columns

    converters = [_pandas_converter(name, array) for name, array in columns.items()]
    for start in range(0, len(frame), BATCH_ROWS):
        arrays = (array[start : start + BATCH_ROWS] for array in columns.values())
        values = (convert(array) for convert, array in zip(converters, arrays, strict=True))
        for row in zip(*values, strict=True):
            yield dict(zip(columns, row, strict=True))


def _pandas_converter(name: object, array: Any) -> Callable[[Any], list[Any]]:
    """Return a function that converts a part of a pandas column to JSON values.

    pandas converts integers to floats if one of them is missing; if all others are whole numbers, they become integers again.
    """
    is_missing = array.isna()
    is_integer = False
    if str(array.dtype).startswith("float") and is_missing.any():  # "Float64", which has missing values of its own, is exact.
        numbers = array[~is_missing].tolist()
        is_integer = all(map(float.is_integer, map(float, numbers)))
        if is_integer and any(abs(number) > _MAX_EXACT for number in numbers):
            raise UsageError(
                f"the column {name!r} has missing values, so pandas has converted its integers to floats, and some have more "
                "digits than a float; read the column with dtype 'Int64', or convert it to 'Float64' if it has no integers"
            )

    def convert(part: Any) -> list[Any]:
        values = part.astype(object).tolist()
        is_missing = part.isna()
        if is_missing.any():
            values = [None if missing else value for value, missing in zip(values, is_missing.tolist(), strict=True)]
        if is_integer:
            return [None if value is None else int(value) for value in values]
        return [value if type(value) in _JSON_TYPES else json_value(value) for value in values]

    return convert


def duplicates(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def reject_duplicates(names: Iterable[str], path: Path, *, place: str = "", line: int | None = None) -> None:
    if repeated_names := sorted(duplicates(names)):
        problem = f"duplicate columns{place}: {', '.join(map(repr, repeated_names))}"
        raise UsageError(problem, path=path, line=line)


def _polars_rows(frame: Any) -> Iterator[Row]:
    return json_rows(frame.iter_rows(named=True))


def _dataset_rows(dataset: Any) -> Iterator[Row]:
    """Yield the rows as they are stored: images and sounds are not decoded."""
    for batch in dataset.with_format("arrow").iter(batch_size=BATCH_ROWS):
        yield from json_rows(batch.to_pylist())


def _stream_rows(dataset: Any) -> Iterator[Row]:
    """Yield the rows of a dataset that is streamed; none is read ahead."""
    for row in dataset.with_format("arrow"):
        yield from json_rows(row.to_pylist())


_READERS: Final[dict[str, Callable[[Any], Iterator[Row]]]] = {
    "pandas.DataFrame": _pandas_rows,
    "polars.DataFrame": _polars_rows,
    "datasets.Dataset": _dataset_rows,
    "datasets.IterableDataset": _stream_rows,
}
