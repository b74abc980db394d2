"""Tables with one row per trial, attempt, step, score or event, as JSONL and CSV.

Rows are produced one at a time, so memory does not grow with the contents of a file. JSONL keeps every value as it is. In CSV,
Parquet and polars each column has one type; a column of mixed values holds text as it is and any other value as JSON.
"""

import csv
import io
import re
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import Any, Final, Literal, get_args

import attrs
import orjson

from evaljournal.journal import JournalError, events
from evaljournal.journal.fact import non_default_fields
from evaljournal.journal.format.codec import RECORD_FIELDS, event_type
from evaljournal.replay.export.source import Source
from evaljournal.replay.index import MAX_INT64, TRIAL_INDEXES
from evaljournal.replay.runs.trajectory import StepDetails
from evaljournal.replay.runs.trial import AttemptDetails, ScoreDetails, TrialDetails, read_attempt
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.usage import is_amount, noted_usage
from evaljournal.replay.text import as_text

Rows = Literal["trials", "attempts", "steps", "scores", "labels", "events"]
Row = dict[str, Any]
Kind = Literal["text", "time", "integer", "number", "boolean", "any"]


class MissingExtra(JournalError):
    """A required optional package is not installed."""


@attrs.frozen
class Column:
    name: str
    kind: Kind
    get: Callable[[Row], Any]


@attrs.frozen
class Table:
    rows: Iterator[Row]
    columns: list[Column]


def table(source: Source, rows: Rows) -> Table:
    match rows:
        case "trials":
            content = _trials(source)
        case "attempts":
            content = Table(_attempts(source), _columns(ATTEMPT_COLUMNS))
        case "steps":
            content = Table(_steps(source), _columns(STEP_COLUMNS))
        case "scores":
            content = _scores(source)
        case "labels":
            content = Table(_labels(source), _columns(LABEL_COLUMNS))
        case "events":
            return Table(_events(source), _EVENT_COLUMNS)
        case _:  # From Python.
            raise JournalError(f"rows must be one of {', '.join(map(repr, get_args(Rows)))}, not {rows!r}")
    return _with_variants(content, source.state) if source.state.variants else content


def _with_variants(content: Table, state: RunState) -> Table:
    trial, *other_columns = content.columns
    rows = ({"trial": row["trial"], "variant": state.trials[row["trial"]].variant, **row} for row in content.rows)
    return Table(rows, [trial, Column("variant", "text", itemgetter("variant")), *other_columns])


def jsonl(source: Source, rows: Rows) -> Iterator[bytes]:
    for row in table(source, rows).rows:
        yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def as_csv(source: Source, rows: Rows) -> Iterator[bytes]:
    """Write comma-separated values that a spreadsheet does not evaluate as formulas."""
    content = table(source, rows)
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\r\n")  # RFC 4180; with "\n", older Pythons do not quote a CR.

    def encode_row(cells: list[str]) -> bytes:
        line.seek(0)
        line.truncate()
        writer.writerow(cells)
        return line.getvalue().encode()

    yield encode_row([without_formula(column.name) for column in content.columns])
    for row in content.rows:
        yield encode_row([_cell(column, column.get(row)) for column in content.columns])


def typed_value(column: Column, row: Row) -> Any:
    value = column_value(column, column.get(row))
    return value if column.kind != "time" else datetime.fromisoformat(value) if value else None


def column_value(column: Column, value: Any) -> Any:
    if value is None or column.kind not in {"any", "number"}:
        return value
    return as_text(value) if column.kind == "any" else float(value)


def _cell(column: Column, value: Any) -> str:
    cell = column_value(column, value)
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return without_formula(cell) if isinstance(cell, str) else repr(cell)


_START: Final = re.compile(r"[ \"]*[=+\-@\t\r\n＝＋－＠']")
_FORMULA: Final = re.compile(r"[;\t\r\n](?:(?<=[;\t])(?=[ \"]*[=+\-@\t\r\n＝＋－＠'])|(?=[ \"]*[=@＝＠']))")
"""Where a formula may begin: at the start of a cell; after a semicolon or a tab, which separate cells in some locales; and
after a line break, where + and - begin lists instead. An apostrophe in these places matches too, so that it is doubled.

As one pattern, which may match an empty text, it would be tried at every character: ten times as long for a large output."""


def without_formula(text: str) -> str:
    """Insert an apostrophe where a spreadsheet would evaluate the text; datasets and outputs are untrusted.

    An apostrophe in such a place gets another one, so removing one from each place always restores the text.
    """
    return ("'" if _START.match(text) else "") + _FORMULA.sub(r"\g<0>'", text)


def _columns(kinds: dict[str, Kind]) -> list[Column]:
    return [Column(name, kind, itemgetter(name)) for name, kind in kinds.items()]


def _nested_field(name: str, key: str) -> Callable[[Row], Any]:
    return lambda row: row[name].get(key)


def _time(name: str) -> Callable[[TrialDetails], float]:
    return lambda trial: round(getattr(trial.times, name), 6)


def _error(name: str) -> Callable[[TrialDetails], str | None]:
    return lambda trial: getattr(trial.last_error, name, None)


_TRIAL_FIELDS: Final[dict[str, tuple[Kind | None, Callable[[TrialDetails], Any]]]] = {
    "trial": ("text", attrgetter("trial")),
    "case": ("text", attrgetter("case")),
    "repeat": ("integer", attrgetter("repeat")),
    "stage": ("text", attrgetter("stage")),
    "input": ("any", attrgetter("input")),
    "expected": ("any", attrgetter("expected")),
    "metadata": ("any", attrgetter("metadata")),
    "request": ("any", attrgetter("request")),
    "output": ("any", attrgetter("output")),
    "truncated": ("boolean", lambda trial: trial.truncated if trial.stage in {"scoring", "completed"} else None),
    "declined": ("boolean", lambda trial: trial.declined if trial.stage in {"scoring", "completed"} else None),
    "served_model": ("text", lambda trial: trial.served_model or None),
    "scores": (None, lambda trial: {scorer: score.value for scorer, score in trial.values.items()}),
    "reasons": (None, lambda trial: {scorer: score.reason for scorer, score in trial.values.items() if score.reason}),
    "scorer_errors": (
        None,
        lambda trial: {name: f"{score.error}: {score.message}" for name, score in trial.scorer_failures.items()},
    ),
    "attempts": ("integer", lambda trial: len(trial.attempts)),
    "reason": ("text", lambda trial: trial.reason or None),
    "error": ("text", _error("error")),
    "message": ("text", _error("message")),
    "enqueued_at": ("time", attrgetter("enqueued_at")),
    "ended_at": ("time", lambda trial: trial.ended_at or None),
    "queue_time": ("number", _time("queue_time")),
    "backoff_time": ("number", _time("backoff_time")),
    "run_time": ("number", _time("run_time")),
    "scoring_time": ("number", _time("scoring_time")),
    "latency": ("number", attrgetter("latency")),
    "time_to_completion": ("number", attrgetter("time_to_completion")),
    "usage": (None, attrgetter("usage")),
    "fingerprint": ("text", attrgetter("fingerprint")),
}
"""Field of a row → the kind of its column, and how to get its value; a field without a kind becomes several columns."""

TRIAL_COLUMNS: Final[dict[str, Kind]] = {name: kind for name, (kind, _) in _TRIAL_FIELDS.items() if kind is not None}


def _trials(source: Source) -> Table:
    columns = _columns(TRIAL_COLUMNS)
    for scorer in source.scorers:
        columns.append(Column(f"score.{scorer}", _score_kind(source.state, {scorer}), _nested_field("scores", scorer)))
        columns.append(Column(f"reason.{scorer}", "text", _nested_field("reasons", scorer)))
    columns += [
        Column(f"usage.{name}", "integer" if is_integer else "number", _nested_field("usage", name))
        for name, is_integer in source.index.usage_names.items()
    ]
    columns.append(Column("scorer_errors", "any", lambda row: row["scorer_errors"] or None))

    rows = ({name: get(trial) for name, (_, get) in _TRIAL_FIELDS.items()} for trial in source.trials())
    return _with_labels(Table(rows, columns), source) if source.labels else Table(rows, columns)


def _with_labels(content: Table, source: Source) -> Table:
    """Add the labels of each trial: by name and reviewer, in columns such as `label.judge.ada`."""
    by_trial: dict[str, dict[str, dict[str, Any]]] = {}
    for trial, labels in source.labels.items():
        for label in labels:
            by_trial.setdefault(trial, {}).setdefault(label.name, {})[label.reviewer] = label.value

    names = sorted({(name, reviewer) for labels in by_trial.values() for name in labels for reviewer in labels[name]})
    columns = [Column(f"label.{name}.{reviewer}", "any", _label_field(name, reviewer)) for name, reviewer in names]
    rows = ({**row, "labels": by_trial.get(row["trial"], {})} for row in content.rows)
    return Table(rows, [*content.columns, *columns])


def _label_field(name: str, reviewer: str) -> Callable[[Row], Any]:
    return lambda row: row["labels"].get(name, {}).get(reviewer)


LABEL_COLUMNS: Final[dict[str, Kind]] = {
    "trial": "text",
    "name": "text",
    "value": "any",
    "reviewer": "text",
    "note": "text",
    "at": "time",
    "is_blind": "boolean",
    "sample": "integer",
    "carried_from": "text",
    "output": "text",
    "seq": "integer",
}


def _labels(source: Source) -> Iterator[Row]:
    """Return the labels of current outputs by trial; of a reviewer, the newest of each name."""
    for labels in source.labels.values():
        for label in labels:
            row = {name: getattr(label, name) for name in LABEL_COLUMNS}
            yield row | {name: row[name] or None for name in ("note", "sample", "carried_from")}


def _score_kind(state: RunState, scorers: Collection[str]) -> Kind:
    types = {_type(score) for trial in state.trials.values() for name, (_, score) in trial.scores.items() if name in scorers}
    return "boolean" if types == {bool} else "integer" if types == {int} else "number" if types <= {int, float} else "any"


def _type(value: object) -> type:
    """Return the type of a score; an integer that does not fit into 64 bits is a float."""
    return float if type(value) is int and abs(value) > MAX_INT64 else type(value)


ATTEMPT_COLUMNS: Final[dict[str, Kind]] = {
    "trial": "text",
    "attempt": "integer",
    "session": "integer",
    "slot": "integer",
    "batch": "integer",
    "line": "integer",
    "started_at": "time",
    "start": "number",
    "ended_at": "time",
    "end": "number",
    "outcome": "text",
    "elapsed": "number",
    "request": "any",
    "output": "any",
    "error": "text",
    "message": "text",
    "category": "text",
    "retry_after": "number",
    "timeout": "number",
    "reason": "text",
    "traceback": "text",
    "usage": "any",
    "need": "any",
}

_ATTEMPTS: Final = """
    SELECT attempts.id, name FROM attempts JOIN trials ON trials.id = trial
    ORDER BY outcome = '', attempts.end_seq, attempts.id
"""
_NOTES: Final = "SELECT name, value FROM notes WHERE trial = ? AND attempt = ? AND seq BETWEEN ? AND ? ORDER BY seq"


def _attempts(source: Source) -> Iterator[Row]:
    """Return the attempts in the order of their ends; those in flight come last."""
    index = source.index
    index.create_indexes(TRIAL_INDEXES)
    for attempt_id, source.trial_name in index.rows(_ATTEMPTS):
        row = index.attempt(attempt_id)
        attempt = read_attempt(index, source.trial_name, row, source.load)
        span, last_seq = attempt.span, row.end_seq or index.seq
        request = row if row.request_id in {row.id, -1} else index.attempt(row.request_id)

        usage = None
        for name, value in index.rows(_NOTES, row.trial, row.attempt, row.seq, last_seq):
            usage = _merge_usage(usage, noted_usage(name, index.value(value)))

        fields: Row = {
            "trial": span.trial,
            "attempt": span.attempt,
            "session": span.session,
            "slot": None if span.batch else span.slot,
            "batch": span.batch or None,
            "line": span.line or None,
            "started_at": row.started_at,
            "start": span.start,
            "ended_at": attempt.ended_at or None,
            "end": span.end if span.outcome else None,
            "outcome": (span.outcome if span.outcome in _OTHER_OUTCOMES else "failed") if span.outcome else None,
            "elapsed": None if span.batch else row.elapsed,
            "request": source.load(index.value(request.request)),
            "output": attempt.output,
            "error": attempt.error or None,
            "message": attempt.message if attempt.category else None,
            "category": attempt.category or None,
            "retry_after": attempt.retry_after,
            "timeout": attempt.timeout,
            "reason": attempt.reason or None,
            "traceback": attempt.traceback or None,
            "usage": _merge_usage(usage, attempt.usage),
            "need": attempt.need,
        }
        fields |= {"detail": attempt.detail} if attempt.reason else {}
        yield fields | ({"worker": attempt.worker} if span.outcome else {})


_OTHER_OUTCOMES: Final = frozenset({"succeeded", "timed_out", "interrupted"})
"""Outcomes that are not a category of failures."""

_STEP_FIELDS: Final[dict[str, tuple[Kind, Callable[[AttemptDetails, StepDetails], Any]]]] = {
    "trial": ("text", lambda attempt, _: attempt.span.trial),
    "attempt": ("integer", lambda attempt, _: attempt.span.attempt),
    "step": ("integer", lambda _, step: step.number),
    "parent": ("integer", lambda _, step: step.parent or None),
    "name": ("text", lambda _, step: step.name),
    "kind": ("text", lambda _, step: step.kind),
    "outcome": ("text", lambda _, step: step.outcome),
    "reused_from": ("integer", lambda _, step: step.reused_from or None),
    "session": ("integer", lambda attempt, _: attempt.span.session),
    "start": ("number", lambda _, step: round(step.start, 6)),
    "ended_at": ("time", lambda _, step: step.at),
    "end": ("number", lambda _, step: step.t),
    "elapsed": ("number", lambda _, step: step.elapsed),
    "input": ("any", lambda _, step: step.input),
    "output": ("any", lambda _, step: step.output),
    "error": ("text", lambda _, step: step.error or None),
    "message": ("text", lambda _, step: step.message or None),
    "usage": ("any", lambda _, step: step.usage),
    "need": ("any", lambda _, step: step.need),
    "waited": ("number", lambda _, step: step.waited),
    "seq": ("integer", lambda _, step: step.seq),
}

STEP_COLUMNS: Final[dict[str, Kind]] = {name: kind for name, (kind, _) in _STEP_FIELDS.items()}


def _steps(source: Source) -> Iterator[Row]:
    """Return the steps by trial and attempt, in the order of their starts, each with its complete input."""
    for trial in source.trials() if source.state.steps else ():
        for attempt in trial.attempts:
            for step in sorted(attempt.steps, key=lambda step: step.number):
                yield {name: get(attempt, step) for name, (_, get) in _STEP_FIELDS.items()}


_SCORE_FIELDS: Final[dict[str, tuple[Kind, Callable[[ScoreDetails], Any]]]] = {
    "scorer": ("text", attrgetter("scorer")),
    "score": ("any", attrgetter("value")),
    "reason": ("text", lambda score: score.reason or None),
    "error": ("text", lambda score: score.error or None),
    "message": ("text", lambda score: score.message or None),
    "elapsed": ("number", attrgetter("elapsed")),
    "version": ("text", attrgetter("version")),
    "seq": ("integer", attrgetter("seq")),
}

SCORE_COLUMNS: Final[dict[str, Kind]] = {"trial": "text", **{name: kind for name, (kind, _) in _SCORE_FIELDS.items()}}


def _scores(source: Source) -> Table:
    """Return the scores and the errors of scorers by trial; of a re-scored output, only the new ones."""
    rows = (
        {"trial": trial.trial, **{name: get(score) for name, (_, get) in _SCORE_FIELDS.items()}}
        for trial in source.trials()
        for score in trial.scores.values()
    )
    return Table(rows, _columns({**SCORE_COLUMNS, "score": _score_kind(source.state, source.scorers)}))


def _merge_usage(usage: Any, addition: Any) -> Any:
    """Merge two usages: numbers are added; any other value is replaced by the later one."""
    if not isinstance(addition, dict):
        return usage
    sums = dict(usage or {})
    for name, value in addition.items():
        amount = sums.get(name)
        sums[name] = amount + value if is_amount(amount) and is_amount(value) else value
    return sums


def _typed_field(name: str, kind: type) -> Callable[[Row], Any]:
    """Return a getter for a field that only some events have, and that may have any type in an extension event."""
    return lambda row: value if isinstance(value := row.get(name), kind) else None


_EVENT_COLUMNS: Final = [
    *_columns({"seq": "integer", "at": "time", "t": "number", "type": "text"}),
    Column("trial", "text", _typed_field("trial", str)),
    Column("attempt", "integer", _typed_field("attempt", int)),
    Column("event", "any", lambda row: {name: value for name, value in row.items() if name not in RECORD_FIELDS}),
    *_columns({"d": "integer", "h": "text"}),
]


def _events(source: Source) -> Iterator[Row]:
    """Yield the fields of each record, with large values instead of references."""
    for record in source.records():
        event = source.with_blobs(record.event)
        record_fields = {"seq": record.seq, "at": record.at, "t": record.t, "type": event_type(event)}
        fields = event.data if isinstance(event, events.Extension) else non_default_fields(event)
        yield record_fields | dict(fields) | {"d": record.d, "h": record.h}
