"""The table of all export formats."""

from collections.abc import Callable, Iterator
from typing import Final

import attrs

from evaljournal.integrations.inspect.log import inspect, inspect_variants
from evaljournal.integrations.nat.files import nat
from evaljournal.integrations.otlp.export import otlp, otlp_json
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


Format = TableFile | File | Directory

FORMATS: Final[dict[str, Format]] = {
    "jsonl": TableFile("one JSON object per line, all values unchanged", jsonl),
    "csv": TableFile("comma-separated values, safe to open in a spreadsheet", as_csv),
    "parquet": TableFile("a Parquet file (needs the extra `parquet`)", parquet, is_text=False),
    "nat": Directory("the files of NeMo Agent Toolkit's `nat eval`, in a directory", nat),
    "junit": File("JUnit XML for CI: a trial with an error is an error, a false score is a failure", junit),
    "markdown": File("Markdown for a pull request: the results, and the trials that did not pass", markdown, compare=markdown),
    "otlp": Directory(
        "OpenTelemetry spans as OTLP protobuf, one request per file in a directory; with --json, one per line of a file",
        otlp,
        write_json=otlp_json,
    ),
    "inspect": File(
        "an `.eval` log for Inspect; for a run with variants, one log per variant in a directory",
        inspect,
        is_text=False,
        write_variants=inspect_variants,
    ),
}
