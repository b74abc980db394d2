"""A run in the formats of others: one module for each, and the table of them.

A format makes bytes of a run, a piece at a time, and nothing else: the same run gives the same bytes, on any day and on any
machine. Where the bytes go is somebody else's to see to.
"""

from collections.abc import Callable, Iterator
from typing import Final

import attrs

from replay.export.chrome_trace import chrome_trace
from replay.export.inspect_log import inspect
from replay.export.junit import junit
from replay.export.nat import nat
from replay.export.otlp import otlp
from replay.export.parquet import MissingExtra, parquet
from replay.export.source import Source
from replay.export.tables import Rows, as_csv, jsonl

__all__ = ["FORMATS", "File", "Files", "Format", "MissingExtra", "Rows", "Source", "TableFile"]


@attrs.frozen
class TableFile:
    """One file of rows."""

    what: str
    make: Callable[[Source, Rows], Iterator[bytes]]
    is_text: bool = True


@attrs.frozen
class File:
    """One file."""

    what: str
    make: Callable[[Source], Iterator[bytes]]
    is_text: bool = True


@attrs.frozen
class Files:
    """Several files in one directory."""

    what: str
    make: Callable[[Source], Iterator[tuple[str, Iterator[bytes]]]]


Format = TableFile | File | Files

FORMATS: Final[dict[str, Format]] = {
    "jsonl": TableFile("a JSON object a line, everything as it is", jsonl),
    "csv": TableFile("comma-separated values, safe to open in a spreadsheet", as_csv),
    "parquet": TableFile("a Parquet file (needs the extra `parquet`)", parquet, is_text=False),
    "nat": Files("the files of NeMo Agent Toolkit's `nat eval`, in a directory", nat),
    "junit": File("JUnit XML for CI: a failed trial is an error, a scorer that said false a failure", junit),
    "chrome-trace": File("a trace for Perfetto: slots, counters, retries, pauses", chrome_trace),
    "otlp": File("OpenTelemetry spans as OTLP JSON, with the conventions for generative AI", otlp),
    "inspect": File("an `.eval` log that Inspect reads and shows", inspect, is_text=False),
}
