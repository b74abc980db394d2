"""docs/export.md lists the formats and columns that exist."""

import re
from pathlib import Path

from evaljournal.replay.export import FORMATS, Directory
from evaljournal.replay.export.tables import ATTEMPT_COLUMNS, LABEL_COLUMNS, SCORE_COLUMNS, STEP_COLUMNS, TRIAL_COLUMNS

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text()


def generated_part(name: str) -> str:
    match = re.search(rf"<!-- {name}: generated -->\n(.*?)\n<!-- /{name} -->", PAGE, re.DOTALL)
    return "" if match is None else match[1]


def test_table_of_formats() -> None:
    """The page lists every format, in order and with its description."""
    rows = ["| format | what it is | destination |", "|---|---|---|"]
    for name, format_ in FORMATS.items():
        destination = (
            "a directory"
            if isinstance(format_, Directory)
            else "a file, or standard output"
            if format_.is_text
            else "a file, or a pipe"
        )
        rows.append(f"| `{name}` | {format_.description} | {destination} |")

    assert "\n".join(rows) == generated_part("formats")


def test_columns() -> None:
    """The page lists every column."""
    assert ", ".join(f"`{name}`" for name in TRIAL_COLUMNS) == generated_part("trials")
    assert ", ".join(f"`{name}`" for name in ATTEMPT_COLUMNS) == generated_part("attempts")
    assert ", ".join(f"`{name}`" for name in STEP_COLUMNS) == generated_part("steps")
    assert ", ".join(f"`{name}`" for name in SCORE_COLUMNS) == generated_part("scores")
    assert ", ".join(f"`{name}`" for name in LABEL_COLUMNS) == generated_part("labels")
