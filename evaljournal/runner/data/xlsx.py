"""Sheets of Excel workbooks; needs `pip install 'evaljournal[xlsx]'`."""

import importlib
import zipfile
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final

from evaljournal.runner.data.columns import list_names
from evaljournal.runner.data.tables import Row, json_value, reject_duplicates
from evaljournal.runner.errors import UsageError

_MAX_SIZE: Final = 1 << 30
"""Bytes of a workbook after decompression; its texts are held in memory."""
_SMALL_SIZE: Final = 64 << 20
_MAX_RATIO: Final = 200
"""A workbook of more than `_SMALL_SIZE` may have this many times the size of its file; XML is usually compressed to a tenth."""
_MAX_ROWS: Final = 1_048_576
"""Excel's limit; a file can claim to have more."""


def xlsx_rows(path: Path, sheet: str | None) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a sheet, by default the first one, with their numbers; its first row has the names of the columns."""
    try:
        openpyxl: Any = importlib.import_module("openpyxl")
    except ImportError as exc:
        raise UsageError("Excel files need openpyxl: pip install 'evaljournal[xlsx]'", path=path) from exc

    number = 0
    with path.open("rb") as file:
        try:
            _check_size(file, path)
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            rows = _rows(_sheet(book, sheet, path))
            header = _header(next(rows, ()), path)

            formulas = cache(lambda: _formula_cells(openpyxl.load_workbook(file, read_only=True), sheet, path))
            for number, cells in enumerate(rows, 2):
                if number > _MAX_ROWS:
                    raise UsageError(f"the sheet has more than {_MAX_ROWS:,} rows", path=path)
                values = [_value(cell, formulas, path) for cell in cells]
                if any(value is not None for value in values[len(header) :]):
                    raise UsageError(f"row {number:,} has a value in a column without a name; name it in row 1", path=path)
                if any(value is not None for value in values):
                    yield number, dict(zip(header, [*values, *[None] * len(header)], strict=False))
        except (UsageError, OSError):
            raise
        except Exception as exc:  # openpyxl raises any exception for an invalid file.
            raise UsageError(f"after row {number:,}: not a valid Excel file: {exc}", path=path) from exc


def _check_size(file: BinaryIO, path: Path) -> None:
    """Reject a file that would become very large: no part can be larger than the size that the archive has for it."""
    with zipfile.ZipFile(file) as archive:
        size = sum(part.file_size for part in archive.infolist())
    limit = min(_MAX_SIZE, max(_SMALL_SIZE, _MAX_RATIO * path.stat().st_size))
    if size > limit:
        raise UsageError(f"the file has {size:,} bytes after decompression; at most {limit:,} are allowed", path=path)


def _sheet(book: Any, name: str | None, path: Path) -> Any:
    sheets = {sheet.title: sheet for sheet in book.worksheets}
    if name is not None and name not in sheets:
        raise UsageError(f"no sheet {name!r}; sheets: {list_names(sheets)}", path=path)
    return next(iter(sheets.values())) if name is None else sheets[name]


def _rows(sheet: Any) -> Iterator[Any]:
    sheet.reset_dimensions()  # They may be wrong.
    return iter(sheet.rows)


def _header(cells: Any, path: Path) -> list[str]:
    names = ["" if cell.value is None else str(cell.value) for cell in cells]
    while names and not names[-1]:
        names.pop()
    if "" in names:
        raise UsageError(f"column {names.index('') + 1} has no name in row 1", path=path)
    reject_duplicates(names, path, place=" in row 1")
    return names


def _value(cell: Any, formulas: Any, path: Path) -> Any:
    """Return the value of a cell, or the stored value of its formula; an empty cell is None."""
    value, kind = cell.value, cell.data_type
    if value is None and hasattr(cell, "coordinate"):  # Otherwise it is not in the file.
        if kind == "str":
            return ""  # The text of a formula.
        if cell.coordinate in formulas():
            problem = f"{cell.coordinate} has a formula without a stored value"
            raise UsageError(f"{problem}; open the file in a spreadsheet program and save it", path=path)
    if kind == "e":
        raise UsageError(f"{cell.coordinate} has the error {value}; correct the formula", path=path)
    if isinstance(value, datetime) and "h" not in cell.number_format.lower():
        value = value.date()
    return json_value(value)


def _formula_cells(book: Any, sheet: str | None, path: Path) -> frozenset[str]:
    """Return the coordinates of all cells with a formula."""
    rows = _rows(_sheet(book, sheet, path))
    return frozenset(cell.coordinate for cells in rows for cell in cells if cell.data_type == "f")
