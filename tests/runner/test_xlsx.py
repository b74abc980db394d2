"""Excel workbooks as datasets: values as they are stored, or an error that names the cell."""

import re
import sys
import zipfile
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from evaljournal.runner.data import xlsx
from tests.runner.test_dataset import cases, error_of

HEADER = ["id", "question", "answer"]


def save(path: Path, *rows: list[Any], **sheets: list[list[Any]]) -> Path:
    """Write a workbook; `rows` are those of its first sheet."""
    book = openpyxl.Workbook()
    for name, content in {"First": list(rows), **sheets}.items():
        sheet = book.create_sheet(name)
        for row in content:
            sheet.append(row)
    del book["Sheet"]
    book.save(path)
    return path


def edit(path: Path, change: Callable[[str], str], part: str = "xl/worksheets/sheet1.xml") -> Path:
    """Change a part of a workbook."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts[part] = change(parts[part].decode()).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def test_values(tmp_path: Path) -> None:
    """Numbers, texts, booleans, dates and times are read as they are; an empty row is skipped, an empty cell is null."""
    path = save(
        tmp_path / "qa.xlsx",
        ["question", "answer", "day", "at", "time"],
        ["0042", 42, date(2024, 1, 2), datetime.fromisoformat("2024-01-02T03:04:05"), time(3, 4)],
        [],
        [True, 0.5, None, None],
    )
    first, second = cases(path)

    assert ("0042", 42, {"day": "2024-01-02", "at": "2024-01-02T03:04:05", "time": "03:04:00"}) == (
        first.input,
        first.expected,
        first.metadata,
    )
    assert (True, 0.5, {"day": None, "at": None, "time": None}) == (second.input, second.expected, second.metadata)


def test_sheets(tmp_path: Path) -> None:
    """The first sheet is read, or the one that is named; an unknown name lists the sheets."""
    path = save(tmp_path / "qa.xlsx", HEADER, ["a", "b", "c"], **{"Second sheet": [HEADER, ["d", "e", "f"]]})

    assert (["a"], ["d"]) == ([case.name for case in cases(path)], [case.name for case in cases(f"{path}#Second sheet")])
    assert "no sheet 'Third'; sheets: 'First', 'Second sheet'" in error_of(f"{path}#Third")


def test_formulas(tmp_path: Path) -> None:
    """The stored value of a formula is read, also an empty text; without one, and for an error, the cell is named."""
    path = save(tmp_path / "qa.xlsx", HEADER, ["a", "=1+1", "x"])

    assert "B2 has a formula without a stored value; open the file in a spreadsheet program and save it" in error_of(path)

    formula = re.compile(r'<c r="B2"><f>1\+1</f><v */></c>')
    for cell, value in {
        '<c r="B2"><f>1+1</f><v>2</v></c>': 2,
        '<c r="B2" t="str"><f>1+1</f><v>two</v></c>': "two",
        '<c r="B2" t="str"><f>1+1</f><v></v></c>': "",
        '<c r="B2"/>': None,
    }.items():
        new_path = save(tmp_path / "new.xlsx", HEADER, ["a", "=1+1", "x"])
        edit(new_path, lambda text, cell=cell: formula.sub(cell, text))  # type: ignore[misc]  # a default value
        assert [value] == [case.input for case in cases(new_path)]
    edit(path, lambda text: formula.sub('<c r="B2" t="e"><f>1+1</f><v>#REF!</v></c>', text))
    assert "B2 has the error #REF!" in error_of(path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["id", "id", "question"], [1, 2, 3]], "duplicate columns in row 1: 'id'"),
        ([["id", None, "question"], [1, 2, 3]], "column 2 has no name in row 1"),
        ([["id", "question"], [1, 2, 3]], "row 2 has a value in a column without a name"),
        ([["id", "question"], [1, timedelta(days=40)]], "row 2: input is of type timedelta"),
        ([["id", "question"], [1.5, "x"]], "qa.xlsx, row 2: the id in 'id' is 1.5"),
        ([], "has no cases"),
    ],
)
def test_an_invalid_sheet_is_rejected(rows: list[list[Any]], message: str, tmp_path: Path) -> None:
    """The error names the row."""
    assert message in error_of(save(tmp_path / "qa.xlsx", *rows))


def test_a_hostile_file_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no workbook, a row with a huge number, nested entities and a large archive are errors."""
    path = tmp_path / "qa.xlsx"
    path.write_bytes(b"PK")
    assert "not a valid Excel file" in error_of(path)

    monkeypatch.setattr(xlsx, "_MAX_ROWS", 10_000)  # Not a million, of which each is read.
    edit(save(path, HEADER, ["a", "b", "c"]), lambda text: text.replace('r="2"', 'r="99999999999"'))
    assert "the sheet has more than 10,000 rows" in error_of(path)

    entities = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(9))
    doctype = f'<!DOCTYPE worksheet [<!ENTITY e0 "{"x" * 100}">{entities}]>'
    edit(save(path, HEADER, ["a", "=1", "c"]), lambda text: doctype + text.replace("<f>1</f>", "<f>&e9;</f>"))
    assert "not a valid Excel file" in error_of(path)

    save(path, HEADER, ["a", "b", "c"])
    with zipfile.ZipFile(path) as archive:
        size = sum(part.file_size for part in archive.infolist())
    monkeypatch.setattr(xlsx, "_MAX_SIZE", size - 1)
    assert f"the file has {size:,} bytes after decompression; at most {size - 1:,} are allowed" in error_of(path)


def test_xlsx_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without openpyxl, the error names what to install."""
    monkeypatch.setitem(sys.modules, "openpyxl", None)

    assert "pip install 'evaljournal[xlsx]'" in error_of(tmp_path / "qa.xlsx")
