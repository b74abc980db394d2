"""Rows: one for a trial, an attempt or an event; and the formats that are nothing but rows.

A row is made when it is its turn, so that memory does not grow with what the rows hold. JSONL says everything as it is. In CSV
and Parquet each column has one type, and a value that may be anything is text where it is text, and JSON where it is not.
"""

import csv
import io
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import attrs
import orjson

from journal import Event, Record
from journal.codec import RECORD_MEMBERS, event_type
from journal.events import (
    AttemptEnding,
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    Extension,
    Noted,
    SessionStarted,
    fields_of,
)
from replay.export.source import Source
from replay.export.story import Result, Story
from replay.text import as_text
from replay.usage import is_amount, noted

Rows = Literal["trials", "attempts", "events"]
Row = dict[str, Any]
Kind = Literal["text", "whole", "number", "yes or no", "any"]


@attrs.frozen
class Column:
    """A column of a table, and where in a row its value is."""

    name: str
    kind: Kind
    of: Callable[[Row], Any]


@attrs.frozen
class Table:
    """Rows, and what is in them."""

    rows: Iterator[Row]
    columns: list[Column]


def table(source: Source, rows: Rows) -> Table:
    """Make a table of a run."""
    match rows:
        case "trials":
            return _trials(source)
        case "attempts":
            return Table(_attempts(source), _columns(ATTEMPT))
        case "events":
            return Table(_events(source), _EVENT_COLUMNS)


def jsonl(source: Source, rows: Rows) -> Iterator[bytes]:
    """Write a JSON object a line, with everything as it is."""
    for row in table(source, rows).rows:
        yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def as_csv(source: Source, rows: Rows) -> Iterator[bytes]:
    """Write comma-separated values that a spreadsheet takes for what they are, and never for a formula."""
    made = table(source, rows)
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\r\n")  # As RFC 4180 has it; older Pythons quote no CR that ends no line.

    def written(cells: list[str]) -> bytes:
        line.seek(0)
        line.truncate()
        writer.writerow(cells)
        return line.getvalue().encode()

    yield written([_harmless(column.name) for column in made.columns])
    for row in made.rows:
        yield written([_cell(column, column.of(row)) for column in made.columns])


def plain(column: Column, value: Any) -> Any:
    """Make a value fit its column: what may be anything is text where it is text, and JSON where it is not."""
    if value is None:
        return None
    match column.kind:
        case "any":
            return as_text(value)
        case "number":
            return float(value)
        case _:
            return value


def _cell(column: Column, value: Any) -> str:
    fitting = plain(column, value)
    if fitting is None:
        return ""
    if isinstance(fitting, bool):
        return "true" if fitting else "false"
    return _harmless(fitting) if isinstance(fitting, str) else repr(fitting)


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠", "'")
"""What makes a spreadsheet take text for a formula, in some country or other; and the mark that we put before it."""


def _harmless(text: str) -> str:
    """Mark text that a spreadsheet would calculate or run: dataset and model may have been told what to say.

    The mark is an apostrophe; text that begins with one gets another, so whoever takes one off has the text as it was.
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def _columns(names: dict[str, Kind]) -> list[Column]:
    return [Column(name, kind, _member(name)) for name, kind in names.items()]


def _member(name: str) -> Callable[[Row], Any]:
    return lambda row: row[name]


def _inner(name: str, inner: str) -> Callable[[Row], Any]:
    return lambda row: row[name].get(inner)


# A row for each trial.

TRIAL: Final[dict[str, Kind]] = {
    "trial": "text",
    "case": "text",
    "repeat": "whole",
    "stage": "text",
    "input": "any",
    "expected": "any",
    "metadata": "any",
    "output": "any",
    "truncated": "yes or no",
    "attempts": "whole",
    "cause": "text",
    "error": "text",
    "message": "text",
    "enqueued_at": "text",
    "ended_at": "text",
    "waited": "number",
    "backed_off": "number",
    "served": "number",
    "scored": "number",
    "fingerprint": "text",
}


def _trials(source: Source) -> Table:
    story = Story.of(source)
    columns = _columns(TRIAL)
    for scorer in story.scorers:
        types = {type(value) for value in story.values(scorer)}
        kind: Kind = "yes or no" if types == {bool} else "number" if types <= {int, float} else "any"
        columns.append(Column(f"score.{scorer}", kind, _inner("scores", scorer)))
        columns.append(Column(f"reason.{scorer}", "text", _inner("reasons", scorer)))
    used = dict.fromkeys(name for life in story.lives.values() for usage in (life.usage or {}).values() for name in usage)
    columns += [Column(f"usage.{name}", "number", _inner("usage", name)) for name in used]
    columns.append(Column("unscored", "any", lambda row: row["unscored"] or None))
    return Table((_trial(result) for result in story.results()), columns)


def _trial(result: Result) -> Row:
    asked, times = result.asked, result.times
    error, message = result.error
    return {
        "trial": asked.trial,
        "case": asked.case,
        "repeat": asked.repeat,
        "stage": result.stage,
        "input": asked.input,
        "expected": asked.expected,
        "metadata": asked.metadata,
        "output": result.output,
        "truncated": result.truncated if result.stage in {"answered", "completed"} else None,
        "scores": {scorer: score.value for scorer, score in result.scores.items()},
        "reasons": {scorer: score.reason for scorer, score in result.scores.items() if score.reason},
        "unscored": {scorer: f"{failed.error}: {failed.message}" for scorer, failed in result.unscored.items()},
        "attempts": result.attempts,
        "cause": result.cause or None,
        "error": error or None,
        "message": message or None,
        "enqueued_at": result.enqueued_at,
        "ended_at": result.ended_at or None,
        "waited": round(times.waited, 6),
        "backed_off": round(times.backed_off, 6),
        "served": round(times.served, 6),
        "scored": round(times.scored, 6),
        "usage": result.usage,
        "fingerprint": asked.fingerprint,
    }


# A row for each attempt, in the order in which they ended; those that have not come last.

ATTEMPT: Final[dict[str, Kind]] = {
    "trial": "text",
    "attempt": "whole",
    "session": "whole",
    "slot": "whole",
    "started_at": "text",
    "start": "number",
    "ended_at": "text",
    "end": "number",
    "ending": "text",
    "elapsed": "number",
    "output": "any",
    "error": "text",
    "message": "text",
    "category": "text",
    "retry_after": "number",
    "timeout": "number",
    "why": "text",
    "traceback": "text",
    "usage": "any",
}
_ENDINGS: Final[dict[type[Event], str]] = {
    AttemptSucceeded: "succeeded",
    AttemptFailed: "failed",
    AttemptTimedOut: "timed_out",
    AttemptInterrupted: "interrupted",
}


def _attempts(source: Source) -> Iterator[Row]:
    session = 0
    running: dict[str, Row] = {}
    for record in source.records():
        event = record.event
        match event:
            case SessionStarted():
                session = event.n
            case AttemptStarted():
                running[event.trial] = dict.fromkeys(ATTEMPT) | {
                    "trial": event.trial,
                    "attempt": event.attempt,
                    "session": session,
                    "slot": event.slot,
                    "started_at": record.at,
                    "start": record.t,
                }
            case Noted(trial=trial) if trial in running and running[trial]["attempt"] == event.attempt:
                running[trial]["usage"] = _added(running[trial]["usage"], noted(event))
            case AttemptSucceeded() | AttemptFailed() | AttemptTimedOut() | AttemptInterrupted() if event.trial in running:
                yield _ended(running.pop(event.trial), record, source.whole(event))
            case _:
                pass
    yield from running.values()


def _ended(row: Row, record: Record, event: Event) -> Row:
    assert isinstance(event, AttemptEnding)
    said = {name: value for name, value in _members(event).items() if name in ATTEMPT}
    before = row["usage"]
    row |= said | {"ended_at": record.at, "end": record.t, "ending": _ENDINGS[type(event)]}
    row["usage"] = _added(before, said.get("usage"))
    return row


def _added(usage: Any, more: Any) -> Any:
    """Put two accounts of what was used together: numbers are added up, of anything else the later counts."""
    if not isinstance(more, dict):
        return usage
    both = dict(usage or {})
    for name, value in more.items():
        earlier = both.get(name)
        both[name] = earlier + value if is_amount(earlier) and is_amount(value) else value
    return both


# A row for each event: in JSONL the line as it is on disk, but with large values in their places.


def _typed(name: str, kind: type) -> Callable[[Row], Any]:
    """Find a member that not every event has; in somebody else's event it may be anything."""
    return lambda row: value if isinstance(value := row.get(name), kind) else None


_EVENT_COLUMNS: Final = [
    *_columns({"seq": "whole", "at": "text", "t": "number", "type": "text"}),
    Column("trial", "text", _typed("trial", str)),
    Column("attempt", "whole", _typed("attempt", int)),
    Column("event", "any", lambda row: {name: value for name, value in row.items() if name not in RECORD_MEMBERS}),
    *_columns({"d": "whole", "h": "text"}),
]


def _events(source: Source) -> Iterator[Row]:
    for record in source.records():
        event = record.event
        own = {"seq": record.seq, "at": record.at, "t": record.t, "type": event_type(event)}
        yield own | _members(source.whole(event)) | {"d": record.d, "h": record.h}


def _members(event: Event) -> Row:
    """Take an event apart; what has its default is left out, as it is on disk."""
    if isinstance(event, Extension):
        return dict(event.data)
    values = ((field, getattr(event, field.name)) for field in fields_of(type(event)))
    return {field.name: value for field, value in values if value != field.default}
