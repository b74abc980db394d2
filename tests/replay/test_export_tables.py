"""The tables, read back with common readers: JSONL, CSV and Parquet agree with the journal."""

import csv
import io
import itertools
import re
import tracemalloc
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import attrs
import orjson
import pyarrow.parquet  # type: ignore[import-untyped]  # it has no types
import pytest

from evaljournal.journal import Event
from evaljournal.journal.events import AttemptStarted, Noted, TrialCompleted, TrialScored
from evaljournal.replay.export import FORMATS, Rows, Source, TableFile
from tests.journal.samples import enqueued, lines_of, session, started, trial, write_sync
from tests.replay.eventful_run import FORMULA, LARGE, UNSAFE, export_of, scored


@pytest.fixture(autouse=True)
def _any_size() -> Iterator[None]:
    """Let Python's CSV reader accept large cells."""
    before = csv.field_size_limit(1 << 20)
    yield
    csv.field_size_limit(before)


def rows_of(path: Path, rows: Rows = "trials") -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in export_of(path, "jsonl", rows).splitlines()]


def cells_of(path: Path, rows: Rows = "trials") -> list[dict[str, str]]:
    """Read the CSV with Python's reader, and remove the apostrophe as documented."""
    read = csv.DictReader(io.StringIO(export_of(path, "csv", rows).decode(), newline=""))
    return [{name: re.sub(r"(^|[;\t\r\n])'", r"\1", cell) for name, cell in row.items()} for row in read]


def columns_of(path: Path, rows: Rows = "trials") -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = pyarrow.parquet.read_table(io.BytesIO(export_of(path, "parquet", rows))).to_pylist()
    return table


def test_trial_row(run: Path) -> None:
    """A row has everything about a trial, as it was recorded."""
    assert {
        "trial": "peru",
        "case": "peru",
        "repeat": 1,
        "stage": "completed",
        "input": "The capital of Peru?",
        "expected": "Lima",
        "metadata": {"difficulty": "easy", "id": 7},
        "request": None,
        "output": "Lima",
        "truncated": False,
        "declined": False,
        "served_model": None,
        "scores": {"exact": True, "tone": "polite", "closeness": 1.0},
        "reasons": {"tone": "+ it says please"},
        "scorer_errors": {},
        "attempts": 1,
        "reason": None,
        "error": None,
        "message": None,
        "enqueued_at": "2026-11-15T00:00:00.005000Z",
        "ended_at": "2026-11-15T00:00:00.018000Z",
        "queue_time": 0.006,
        "backoff_time": 0.0,
        "run_time": 0.003,
        "scoring_time": 0.004,
        "latency": 0.25,
        "time_to_completion": 0.013,
        "usage": {"tokens": 12, "input_tokens": 5, "cost": 0.5},
        "fingerprint": "f-peru",
    } == rows_of(run)[0]


def test_answers_and_served_model(tmp_path: Path) -> None:
    """Rows have whether the token limit ended the output, whether the model declined, and which model answered."""
    events: list[Event] = [enqueued("open")]
    for name, outcome in (("a", "truncated"), ("b", "declined"), ("c", "")):
        note = Noted(name="evaljournal.answer", value={"outcome": outcome, "model": f"m-{name}"}, trial=name, attempt=1)
        events[-1:-1] = [*trial(name)[:2], note, *trial(name)[2:]]
    write_sync(tmp_path / "run", [started(), session(), *events])
    names = ("truncated", "declined", "served_model")
    expected = [(True, False, "m-a"), (False, True, "m-b"), (False, False, "m-c"), (None, None, None)]

    assert expected == [tuple(row[name] for name in names) for row in rows_of(tmp_path / "run")]
    assert expected == [tuple(row[name] for name in names) for row in columns_of(tmp_path / "run")]
    assert ["true", "false", "false", ""] == [row["truncated"] for row in cells_of(tmp_path / "run")]


def test_every_trial_has_one_row(run: Path) -> None:
    """Trials are in the order in which they were enqueued; failed ones have an error, and withdrawn ones no score."""
    names = ("trial", "stage", "reason", "error", "message", "scores")

    assert [
        ("chad", "failed", "timed_out", "timeout", "timed out after 30 s", {}),
        ("chad#2", "completed", None, None, None, {"exact": False}),
        ("oslo", "completed", None, None, None, {}),
        ("gone", "withdrawn", "removed", None, None, {}),
        ("later", "running", None, None, None, {}),
    ] == [tuple(row[name] for name in names) for row in rows_of(run)[1:]]


def test_large_values(run: Path) -> None:
    """A value stored in a blob is in its row."""
    assert LARGE == rows_of(run)[3]["output"]
    assert LARGE == next(row["output"] for row in rows_of(run, "events") if row.get("trial") == "oslo" and "output" in row)


def test_csv(run: Path) -> None:
    """CSV has the same trials: text unchanged, other values as JSON, null as an empty cell."""
    peru, chad, repeat, oslo, *_ = cells_of(run)

    assert ("The capital of Peru?", "Lima", "true", "polite", "+ it says please", "1.0") == tuple(
        peru[name] for name in ("input", "output", "score.exact", "score.tone", "reason.tone", "score.closeness")
    )
    assert {"difficulty": "easy", "id": 7} == orjson.loads(peru["metadata"])
    assert ('{"q":"Chad?"}', "", "") == (chad["input"], chad["output"], chad["score.exact"])
    assert (UNSAFE, {"answer": UNSAFE}) == (repeat["reason.exact"], orjson.loads(repeat["output"]))
    assert (FORMULA, LARGE) == (oslo["input"], oslo["output"])


FIRST = "=+-@\t\r\n＝＋－＠'"


@pytest.mark.parametrize("first", FIRST)
def test_formulas_are_prefixed(tmp_path: Path, first: str) -> None:
    """Text that a spreadsheet would evaluate is prefixed; removing the prefix restores it."""
    text = f"{first}1+1"
    score = TrialScored(trial=text, scorer=f"{text}s", version="v", value=text, reason=text, elapsed=0.1)
    trial_enqueued = enqueued(text, text)
    attempt = AttemptStarted(trial=text, attempt=1, slot=0)
    events: list[Event] = [trial_enqueued, attempt, trial(text, text)[2], score, TrialCompleted(trial=text, attempts=1)]
    write_sync(tmp_path / "run", [started(), session(), *events])
    table = list(csv.reader(io.StringIO(export_of(tmp_path / "run", "csv").decode(), newline="")))

    assert [] == [cell for row in table for cell in row if cell.startswith(tuple(FIRST[:-1]))]
    assert text == cells_of(tmp_path / "run")[0]["output"]


def test_numbers_are_not_prefixed(tmp_path: Path) -> None:
    """A negative score stays a number."""
    events = trial("a")
    events[3] = scored("a", "exact", -0.5)
    write_sync(tmp_path / "run", [started(), session(), *events])

    assert b",-0.5," in export_of(tmp_path / "run", "csv")


def test_parquet(run: Path) -> None:
    """Parquet has the same trials, with types: a pass is a boolean, a score a number, a label text."""
    peru, chad, repeat, oslo, *_ = columns_of(run)

    assert (1, True, "polite", 1.0, 12.0, 0.006) == tuple(
        peru[name] for name in ("repeat", "score.exact", "score.tone", "score.closeness", "usage.tokens", "queue_time")
    )
    assert (None, None, "timed_out") == (chad["output"], chad["score.exact"], chad["reason"])
    assert UNSAFE == repeat["reason.exact"]
    assert (FORMULA, LARGE, {"exact": "ValueError: no verdict"}) == (
        oslo["input"],
        oslo["output"],
        orjson.loads(oslo["scorer_errors"]),
    )


def test_requests(tmp_path: Path) -> None:
    """A trial has the request of its last attempt, which is recorded with the first."""
    trial_events = trial("a", retries=1)
    trial_events[1] = attrs.evolve(trial_events[1], request={"body": 1})  # type: ignore[misc]  # an event is an attrs class
    write_sync(tmp_path / "run", [started(), session(), *trial_events, *trial("b")])

    assert [{"body": 1}, None] == [row["request"] for row in rows_of(tmp_path / "run")]
    assert [{"body": 1}, {"body": 1}, None] == [row["request"] for row in rows_of(tmp_path / "run", "attempts")]


def test_parquet_types(tmp_path: Path) -> None:
    """Times are UTC timestamps; scores and usage that are whole numbers are integers, unless one is too large."""
    usage = [{"tokens": 3, "cost": 1, "large": 1}, {"tokens": 4, "cost": 0.5, "large": 2**63}]
    trials = [trial("a"), trial("b")]
    for index, trial_events in enumerate(trials):
        name = "ab"[index]
        trial_events[2] = attrs.evolve(trial_events[2], usage=usage[index])  # type: ignore[misc]  # an event is an attrs class
        trial_events[3:4] = [
            scored(name, "rank", index),
            scored(name, "size", 2**63 * index),
            scored(name, "mean", index + 0.5),
        ]
    write_sync(tmp_path / "run", [started(), session(), *trials[0], *trials[1]])
    read = {
        rows: pyarrow.parquet.read_table(io.BytesIO(export_of(tmp_path / "run", "parquet", rows))) for rows in get_args(Rows)
    }
    types = {rows: {field.name: str(field.type) for field in table.schema} for rows, table in read.items()}

    assert {"timestamp[us, tz=UTC]"} == {
        types[rows][name]
        for rows, names in {
            "trials": ("enqueued_at", "ended_at"),
            "attempts": ("started_at", "ended_at"),
            "events": ("at",),
        }.items()
        for name in names
    }
    assert ["int64", "double", "double", "int64", "double", "double"] == [
        types["trials"][name]
        for name in ("score.rank", "score.size", "score.mean", "usage.tokens", "usage.cost", "usage.large")
    ]
    assert datetime(2026, 11, 15, 0, 0, 0, 4_000, tzinfo=UTC) == read["trials"]["enqueued_at"][0].as_py()
    assert ["3", "4"] == [row["usage.tokens"] for row in cells_of(tmp_path / "run")]


def test_scores_of_mixed_types(tmp_path: Path) -> None:
    """The column of a scorer that returns numbers and labels is text."""
    trials = [trial("a"), trial("b")]
    trials[0][3], trials[1][3] = scored("a", "exact", 0.5), scored("b", "exact", "none")
    write_sync(tmp_path / "run", [started(), session(), *trials[0], *trials[1]])

    assert ["0.5", "none"] == [row["score.exact"] for row in columns_of(tmp_path / "run")]
    assert ["0.5", "none"] == [row["score.exact"] for row in cells_of(tmp_path / "run")]


def test_attempt_rows(run: Path) -> None:
    """Attempts are in the order of their ends, with their outcomes; open ones come last."""
    rows = rows_of(run, "attempts")

    assert [
        ("peru", 1, 1, 0, "succeeded"),
        ("chad", 1, 1, 1, "failed"),
        ("chad", 2, 1, 1, "timed_out"),
        ("gone", 1, 1, 1, "succeeded"),
        ("chad#2", 1, 1, 0, "interrupted"),
        ("chad#2", 2, 2, 0, "succeeded"),
        ("oslo", 1, 2, 1, "succeeded"),
        ("later", 1, 2, 0, None),
    ] == [(row["trial"], row["attempt"], row["session"], row["slot"], row["outcome"]) for row in rows]
    assert ("RateLimited", "slow down", "rate_limited", 1.5) == tuple(
        rows[1][name] for name in ("error", "message", "category", "retry_after")
    )
    assert {"tokens": 12, "input_tokens": 5, "cost": 0.5} == rows[0]["usage"]
    assert "process_died" == rows[4]["reason"]


def test_notes_of_mixed_types(tmp_path: Path) -> None:
    """Numbers with the same name are summed; otherwise the last value counts."""
    notes = [Noted(name="model", value=value, trial="a", attempt=1) for value in ("small", 3, 4, "large")]
    notes.append(Noted(name="usage", value={"cost": 0.5, "cached": True, "model": 1}, trial="a", attempt=1))
    write_sync(tmp_path / "run", [started(), session(), enqueued("a"), AttemptStarted(trial="a", attempt=1, slot=0), *notes])

    assert [{"model": 1, "cost": 0.5, "cached": True}] == [row["usage"] for row in rows_of(tmp_path / "run", "attempts")]
    assert [{"model": 8, "cost": 0.5}] == [row["usage"] for row in rows_of(tmp_path / "run")]


def test_event_rows(run: Path) -> None:
    """The row of an event equals its line, except for values in blobs."""
    lines = [orjson.loads(line) for line in lines_of(run)]

    assert [line for line in lines if "blobs" not in line] == [
        row for row, line in zip(rows_of(run, "events"), lines, strict=True) if "blobs" not in line
    ]


@pytest.mark.parametrize(("rows", "names"), [("attempts", ("outcome", "trial")), ("events", ("type", "at"))])
def test_rows_agree_across_formats(run: Path, rows: Rows, names: tuple[str, ...]) -> None:
    """CSV and Parquet have the rows of JSONL."""
    objects, cells = ([tuple(row[name] for name in names) for row in get(run, rows)] for get in (rows_of, cells_of))
    columns = [tuple(row[name] for name in names) for row in columns_of(run, rows)]

    assert [tuple(value or "" for value in row) for row in objects] == cells
    assert [row[0] for row in objects] == [row[0] for row in columns]


def test_fields_of_events_are_one_column(run: Path) -> None:
    """In Parquet, fields that only some events have are JSON in one column."""
    scores = [orjson.loads(row["event"])["value"] for row in columns_of(run, "events") if row["type"] == "trial_scored"]

    assert [True, "polite", 1.0, False, False] == scores


@pytest.mark.parametrize("name", FORMATS)
def test_exports_are_deterministic(run: Path, name: str) -> None:
    """Two exports of a run are equal."""
    assert export_of(run, name) == export_of(run, name)


@pytest.mark.parametrize("name", FORMATS)
def test_run_without_trials(tmp_path: Path, name: str) -> None:
    """Every format can export a run that was interrupted before its first trial; those with a line per trial are empty."""
    write_sync(tmp_path / "started", [started(), session()])
    write_sync(tmp_path / "bare", [])

    assert b"" != export_of(tmp_path / "started", name) or name in {"jsonl", "atif"}
    assert b"" != export_of(tmp_path / "bare", name) or name in {"jsonl", "atif"}


def export(path: Path, name: str) -> None:
    """Export a run, and discard the bytes."""
    format_, source = FORMATS[name], Source(path)
    pieces = format_.write(source, "trials") if isinstance(format_, TableFile) else format_.write(source)
    for piece in pieces:
        deque(piece[1] if isinstance(piece, tuple) else (), maxlen=0)


def peak_of(path: Path, name: str) -> int:
    """Export a run, discard the bytes, and return the peak memory."""
    tracemalloc.start()
    export(path, name)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "parquet"])
def test_memory_does_not_grow_with_outputs(tmp_path: Path, name: str) -> None:
    """25 more large outputs need less memory than one of them. Parquet, which buffers rows, is excluded."""
    for size in (15, 40):  # 15 are more than a request of traces.
        trials = itertools.chain.from_iterable(trial(f"t{n}", f"{n:04}" * 80_000) for n in range(size))
        write_sync(tmp_path / str(size), [started(), session(), *trials])
    export(tmp_path / "15", name)  # Imports and caches do not count.

    assert peak_of(tmp_path / "40", name) - peak_of(tmp_path / "15", name) < 4 * 80_000
