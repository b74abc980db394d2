"""The export formats: those of the core, and others by entry points.

One that another package adds in the group `evaljournal.formats` is a `TableFile`, a `File` or a `Directory`, as here. It only
reads its source: an export of the same records has the same bytes.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, cast

import attrs

from evaljournal import entry_points
from evaljournal.replay.export.junit import junit
from evaljournal.replay.export.markdown import markdown
from evaljournal.replay.export.parquet import parquet
from evaljournal.replay.export.source import Source
from evaljournal.replay.export.tables import Rows, as_csv, jsonl


@attrs.frozen
class TableFile:
    """A format with one file of rows."""

    description: str
    write: Callable[[Source, Rows], Iterator[bytes]]
    is_text: bool = True


@attrs.frozen
class File:
    """A format with one file."""

    description: str
    write: Callable[[Source], Iterator[bytes]]
    is_text: bool = True
    compare: Callable[..., Iterator[bytes]] | None = None
    """Write a run compared with a baseline, or a `variant` with a `baseline_variant`; None if the format has no comparison."""
    write_variants: Callable[[Source], Iterator[tuple[str, Iterator[bytes]]]] | None = None
    """Write a file for each variant of a run with variants; None if the format has one file for all."""


@attrs.frozen
class Directory:
    """A format with several files in one directory."""

    description: str
    write: Callable[[Source], Iterator[tuple[str, Iterator[bytes]]]]
    write_json: Callable[[Source], Iterator[bytes]] | None = None
    """Write one file of JSON instead; None if the format has no such file."""
    write_steps: Callable[[Source, str], Iterator[tuple[str, Iterator[bytes]]]] | None = None
    """Write only steps of these types, separated by commas; None if the format has no such choice."""


Format = TableFile | File | Directory

_GROUP: Final = "formats"
BUILT_IN: Final[Mapping[str, Format]] = {
    "jsonl": TableFile("one JSON object per line, all values unchanged", jsonl),
    "csv": TableFile("comma-separated values, safe to open in a spreadsheet", as_csv),
    "parquet": TableFile("a Parquet file (needs the extra `parquet`)", parquet, is_text=False),
    "junit": File("JUnit XML for CI: a trial with an error is an error, a false score is a failure", junit),
    "markdown": File("Markdown for a pull request: the results, and the trials that did not pass", markdown, compare=markdown),
}


class _Formats(Mapping[str, Format]):
    """Name → format. Only a name that is not built in is looked up in entry points, and only then it is imported."""

    def __getitem__(self, name: str) -> Format:
        """Return a format; raise an `ImportError` if it cannot be imported or is none."""
        if name in BUILT_IN:
            return BUILT_IN[name]
        entry = entry_points.find(_GROUP, name)
        if entry is None:
            raise KeyError(name)
        noun = "a TableFile, a File or a Directory"
        return cast("Format", entry_points.checked(entry, ImportError, entry.load, Format, noun=noun, verb="is"))

    def __iter__(self) -> Iterator[str]:
        yield from BUILT_IN
        yield from entry_points.names(_GROUP, excluding=BUILT_IN)

    def __len__(self) -> int:
        return sum(1 for _ in self)


FORMATS: Final[Mapping[str, Format]] = _Formats()
