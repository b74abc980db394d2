"""The columns of a page: the tables of a run's index and its `Content`, in full or since a `PageCursor`.

Columns are iterators over queries, so that only a part of a column is in memory. Some contain differences between consecutive
numbers, which compress well. Times are in microseconds; times of sessions are in seconds.
"""

import heapq
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, groupby, islice, pairwise, starmap
from operator import itemgetter, neg, sub
from typing import Any, Final, NamedTuple, get_args

import orjson

from evaljournal.journal.errors import BlobDamaged
from evaljournal.journal.format.blobs import Blob
from evaljournal.journal.format.codec import MAX_INTEGER
from evaljournal.journal.format.lifecycle import STAGES
from evaljournal.replay.index import BACKING_OFF, CHANGE_INDEXES, OUTCOMES, QUEUED, RUNNING, SCORING, TRIAL_INDEXES, Index
from evaljournal.replay.page.page_content import KINDS, MESSAGE_CHARS, STAGE_NUMBERS, TYPES, Content
from evaljournal.replay.page.page_text import MICRO, Text, json_text, microseconds, page_text, truncate, visible_text
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.runs.limit_use import LimitSeries, limit_series
from evaljournal.replay.runs.timeline import SeriesName, points, sums
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.tally import is_summable
from evaljournal.replay.state.trial import TrialState
from evaljournal.replay.state.usage import JUDGE_NOTE
from evaljournal.replay.state.workspaces import CHANGES, recorded_changes
from evaljournal.replay.text import reason_text

_CHUNK: Final = 4_096
"""Entries of a column that are encoded at once."""
_NOTE_CHARS: Final = 300
_MAX_NOTES: Final = 100
_MAX_FILES: Final = 200
_SERIES: Final[tuple[SeriesName, ...]] = get_args(SeriesName)
_OUTCOME_NUMBERS: Final = {outcome: number for number, outcome in enumerate(OUTCOMES)}


class PageCursor(NamedTuple):
    """The part of a run that a page has received."""

    seq: int = 0
    points: int = 0
    """Number of points of the series; the end of a delay can add one long after the record that announced the delay."""

    def __str__(self) -> str:
        return f"{self.seq}-{self.points}"

    @classmethod
    def parse(cls, text: str) -> "PageCursor":
        """Parse a cursor from `str(cursor)`; return an empty one if the text is invalid."""
        match = re.fullmatch(r"([0-9]{1,15})-([0-9]{1,15})", text)
        return cls() if match is None else cls(int(match[1]), int(match[2]))

    @classmethod
    def end(cls, content: Content) -> "PageCursor":
        """Return the cursor of a page that has everything."""
        return cls(content.index.seq, content.index.point_count)


def columns(content: Content, state: RunState, cursor: PageCursor = PageCursor()) -> dict[str, Any]:  # noqa: B008  # immutable
    """Return the columns of a run, or only their changes since the cursor."""
    index = content.index
    if cursor.seq > index.seq:
        cursor = PageCursor()  # It belongs to another run.

    after_seq = cursor.seq
    index.create_indexes(TRIAL_INDEXES)
    if after_seq:
        index.create_indexes(CHANGE_INDEXES)

    def events(column: str) -> Iterator[int]:
        return index.log("events", column, after_seq)

    return {
        "from": after_seq,
        "seq": index.seq,
        "types": TYPES,
        "stages": STAGES,
        "outcomes": OUTCOMES,
        "scorers": list(content.scorers),
        "variants": _variants(state),
        "events": {
            "t": _deltas(events("t")),
            "type": events("type"),
            "trial": _deltas(events("trial")),
            "stage_change": events("stage_change"),
            "count_change": events("count_change"),
        },
        "sessions": [view_json(session) for session in index.sessions],
        "limits": content.limits,
        "limit_changes": _policy(index, "limit"),
        "pace_changes": _policy(index, "pace"),
        "pauses": [
            (seq, session, t, microseconds(max(until, t / MICRO)), reason, evidence, key, end_seq)
            for seq, session, t, reason, evidence, key, until, end_seq in _policy(index, "pause", "until", "end_seq")
        ],
        "backoffs": [
            (trial, seq, end_seq, microseconds(due_time), reason)
            for trial, seq, end_seq, due_time, reason in index.rows(_BACKOFFS, after_seq)
        ],
        "score_log": _score_log(content, after_seq),
        "errors": list(content.errors(after_seq)),
        "error_groups": [[category, error, example] for (category, error, _), (_, example) in content.groups.items()],
        "spans": _spans(content, after_seq),
        **({"steps": _steps(content, after_seq)} if content.steps.count else {}),
        **({"judge_calls": _judge_calls(content, after_seq)} if content.steps.judge_calls else {}),
        "trials": _trials(content, state, after_seq),
        "rate_limits": [{"label": series.label, **_use_columns(series)} for series in limit_series(index)],
        "series": {name: partial(_series, index, name, cursor.points) for name in _SERIES},
    }


_BACKOFFS: Final = """
    SELECT trial, retry_seq, retry_end, retry_due, retry_reason FROM attempts
    WHERE retry_seq > 0 AND changed > ? ORDER BY retry_seq
"""


def _policy(index: Index, kind: str, *other_columns: str) -> list[Any]:
    """Return the changes of the limit or the pace, or the pauses: seq, session, t, …, reason, evidence, key, …"""
    values = "" if other_columns else "before, after, "
    names = "".join(f", {name}" for name in other_columns)
    query = f"SELECT seq, session, t, {values}reason, substr(evidence, 1, {MESSAGE_CHARS}), key{names} FROM policy"  # noqa: S608
    rows = index.rows(f"{query} WHERE kind = ? ORDER BY seq", kind)
    return [(seq, session, microseconds(t), *values) for seq, session, t, *values in rows]


def _score_log(content: Content, after_seq: int) -> dict[str, Iterator[Any]]:
    """Return record, scorer, 1 (or -1 where a score is replaced), and the number; NaN if it is in no mean."""
    index = content.index
    has_replaced_scores = index.row("SELECT 1 FROM scores WHERE end_seq > ?", after_seq) is not None

    def column(name: str) -> Iterator[Any]:
        query = "SELECT {seq} AS seq, {count} AS count, {name} FROM scores WHERE {seq} > ? AND value IS NOT NULL ORDER BY {seq}"
        scores = query.format(seq="scores.seq", count=1, name="1" if name == "count" else name)
        if not has_replaced_scores:
            return map(itemgetter(2), index.rows(scores, after_seq))
        replaced_scores = query.format(seq="end_seq", count=-1, name={"count": "-1", "scores.seq": "end_seq"}.get(name, name))
        both = index.rows(scores, after_seq), index.rows(replaced_scores, after_seq)
        return map(itemgetter(2), heapq.merge(*both, key=itemgetter(0, 1)))

    def number(value: Any) -> float:
        return float(value) if is_summable(value) else math.nan

    return {
        "seq": _deltas(column("scores.seq")),
        "scorer": map(content.scorers.__getitem__, column("scorer")),
        "count": column("count"),
        "value": map(number, map(index.score, column("value"))),
    }


def _spans(content: Content, after_seq: int) -> dict[str, Any]:
    index = content.index

    def column(name: str) -> Iterator[Any]:
        query = f"SELECT {name} FROM attempts WHERE changed > ? ORDER BY id"  # noqa: S608  # our own names
        return map(itemgetter(0), index.rows(query, after_seq))

    ends = map(microseconds, column("iif(outcome = '', start, end)"))
    return {
        "index": _deltas(column("id")),
        "trial": column("trial"),
        "attempt": column("attempt"),
        "slot": column("slot"),
        "session": column("session"),
        "start": _deltas(map(microseconds, column("start"))),
        "duration": map(sub, ends, map(microseconds, column("start"))),
        "outcome": map(_OUTCOME_NUMBERS.__getitem__, column("outcome")),
        "seq": _deltas(column("seq")),
        "end_seq": _deltas(column("end_seq")),
        "queue_time": map(microseconds, column("queue_time")),
        "backoff_time": map(microseconds, column("backoff_time")),
        "details": _details(content, after_seq),
    }


_DETAILS: Final = """
    SELECT trial, attempt, request, reuses, error, retry_after, reason, usage, worker, detail, late_outcome, retry_delay,
        retry_reason, retry_seq, batch, line
    FROM attempts WHERE changed > ? ORDER BY id
"""
_NOTES: Final = "SELECT name, value FROM notes WHERE trial = ? AND attempt = ? AND name != ? ORDER BY seq"
"""The notes of an attempt without those that `judge_calls` has."""


def _details(content: Content, after_seq: int) -> Iterator[Any]:
    """Yield error, usage, notes and retry of each attempt; 0 if there are none."""
    index, length = content.index, content.length
    has_notes = index.row("SELECT 1 FROM notes LIMIT 1") is not None

    for trial, attempt, *values in index.rows(_DETAILS, after_seq):
        request, reuses, error, retry_after, reason, usage, worker, detail, late_outcome, *retry, batch, line = values
        delay, retry_reason, retry_seq = retry
        details = {
            "request": _text(content, request),
            "reuses": reuses or None,
            "error": error,
            "retry_after": retry_after,
            "reason": reason or None,
            "usage": _shorten(index.value(usage), length),
            "worker": _shorten(worker or None, length),
            "detail": _shorten(detail or None, length),
            "late_outcome": late_outcome or None,
            "batch": f"batch {batch}, line {line}" if batch else None,
            **({"retry_in": delay, "retry_reason": retry_reason} if retry_seq else {}),
        }

        rows = index.rows(_NOTES, trial, attempt, JUDGE_NOTE) if has_notes else ()
        values_by_name = [(name, index.value(value)) for name, value in rows]
        notes = [(name, _shorten(value, length)) for name, value in values_by_name if name != CHANGES]
        for value in (value for name, value in values_by_name if name == CHANGES):
            details["changes"] = _changes(value, length)
        if notes:
            details["notes"] = notes[:_MAX_NOTES]
        if len(notes) > _MAX_NOTES:
            details["more_notes"] = len(notes) - _MAX_NOTES
        yield {name: value for name, value in details.items() if value is not None} or 0


def _changes(value: Any, length: int) -> dict[str, Any]:
    try:
        files, diff = recorded_changes(value.load() if isinstance(value, Blob) else value)
    except BlobDamaged:
        return {"files": [], "count": 0, "diff": ""}
    listed = [[visible_text(file["path"][:_NOTE_CHARS]), str(file["change"])[:20]] for file in files[:_MAX_FILES]]
    text = visible_text(diff[:length])
    return {"files": listed, "count": len(files), "diff": text, "more": max(0, len(diff) - length)}


def _shorten(value: Any, length: int) -> Any:
    """Return a number as it is, and at most `_NOTE_CHARS` characters of anything else."""
    if value is None or value.__class__ in {bool, int, float}:
        return value if not isinstance(value, int) or abs(value) < MAX_INTEGER else str(value)
    text = visible_text(page_text(value, length))
    return text if len(text) <= _NOTE_CHARS else f"{text[: _NOTE_CHARS - 1]}…"


def _text(content: Content, column: bytes | str | None) -> Text:
    if isinstance(column, str):
        return page_text(content.index.value(column), content.length)
    return json_text(column, content.full_length)


_STEP_OUTCOME: Final = "iif(kind = '', 2, iif(error IS NOT NULL, 1, iif(reusable, 0, 3)))"
"""How a step ended: completed, failed, reused, or completed and never reused."""


def _steps(content: Content, after_seq: int) -> dict[str, Any]:
    def column(name: str) -> Iterator[Any]:
        steps = "page_steps JOIN steps USING (seq)"
        query = f"SELECT {name} FROM {steps} WHERE page_steps.seq > ? ORDER BY page_steps.seq"  # noqa: S608  # our own names
        return map(itemgetter(0), content.index.rows(query, after_seq))

    return {
        "names": list(content.steps.names),
        "kinds": KINDS,
        "omitted": content.steps.omitted,
        "seq": _deltas(column("page_steps.seq")),
        "span": _deltas(column("attempt")),
        "number": column("number"),
        "parent": column("parent"),
        "completed_seq": column("completed_seq"),
        "end": _deltas(map(microseconds, column("t"))),
        "duration": map(microseconds, column("elapsed")),
        "name": column("name_number"),
        "kind": (KINDS.index(kind) if kind else 0 for kind in column("kind")),
        "outcome": column(_STEP_OUTCOME),
        "content": (0 if text is None else orjson.Fragment(text) for text in column("content")),
    }


def _judge_calls(content: Content, after_seq: int) -> dict[str, Any]:
    def column(name: str) -> Iterator[Any]:
        query = f"SELECT {name} FROM page_judge_calls WHERE seq > ? ORDER BY seq"  # noqa: S608  # our own names
        return map(itemgetter(0), content.index.rows(query, after_seq))

    return {"seq": _deltas(column("seq")), "span": _deltas(column("span")), "content": map(orjson.Fragment, column("content"))}


def _trials(content: Content, state: RunState, after_seq: int) -> dict[str, Any]:
    index = content.index
    variants = {name: number for number, name in enumerate(_variants(state))}
    has_reasons = int(index.row("SELECT 1 FROM scores WHERE reason != '' OR value IS NULL") is not None)

    def rows(names: str) -> Iterator[Any]:
        return index.rows(f"SELECT {names} FROM trials WHERE seq > ? ORDER BY id", after_seq)  # noqa: S608  # our own names

    def column(name: str) -> Iterator[Any]:
        return map(itemgetter(0), rows(name))

    def times(name: str, phase: int) -> Iterator[int]:
        now = index.now
        trials = rows(f"{name}, phase, phase_start")
        return (
            microseconds(seconds + (now - start if current_phase == phase else 0.0)) for seconds, current_phase, start in trials
        )

    def texts(name: str) -> Iterator[Text]:
        return (_text(content, value) for value in column(name))

    def per_trial(get: Callable[[TrialState], Any]) -> Iterator[Any]:
        return (get(state.trials[name]) for name in column("name"))

    def score(scorer: str, trial: TrialState) -> Any:
        return _score_json(trial.scores.get(scorer, ("", None))[1])

    by_variant = {
        "variant": (variants[variant] for variant in column("variant")),
        "fingerprint": column("fingerprint"),
    }
    outputs = "SELECT output FROM attempts WHERE id = trials.output"
    return {
        "index": _deltas(column("id")),
        "name": column("name"),
        "case": (0 if case == name else case for case, name in rows('"case", name')),
        "repeat": column("repeat"),
        **(by_variant if state.variants else {}),
        "stage": (STAGE_NUMBERS[stage] for stage in column("stage")),
        "recovered": per_trial(lambda trial: int(trial.recovered)),
        **({"answer": per_trial(_answer_text)} if state.totals.answers else {}),
        "latency": per_trial(lambda trial: None if (seconds := trial.latency) is None else microseconds(seconds)),
        "queue_time": times("queue_time", QUEUED),
        "backoff_time": times("backoff_time", BACKING_OFF),
        "run_time": times("run_time", RUNNING),
        "scoring_time": times("scoring_time", SCORING),
        "reason": (reason_text(reason) if reason else 0 for reason in column("reason")),
        "input": texts("input"),
        "expected": texts("expected"),
        "metadata": texts("metadata"),
        "output": texts(f"({outputs})"),
        "scores": [per_trial(partial(score, scorer)) for scorer in content.scorers],
        "score_reasons": (has_reasons and _score_reasons(content, *row) for row in rows("id, enqueue_seq, stage")),
    }


def _answer_text(trial: TrialState) -> str | int:
    """Return the outcome of an answer that is not complete: `declined`, `truncated (excluded)`; 0 for all others."""
    return f"{trial.answer_outcome}{' (excluded)' if trial.is_excluded else ''}" or 0


_REASONS: Final = """
    SELECT scorer, reason, error, message, value IS NULL FROM scores WHERE trial = ? AND seq > ? ORDER BY seq
"""


def _score_reasons(content: Content, trial: int, enqueue_seq: int, stage: str) -> dict[str, Any] | int:
    """Return scorer → the reason for its value, or the error if it failed; 0 if there are none."""
    reasons: dict[str, Any] = {}
    for scorer, reason, error, message, has_failed in content.index.rows(_REASONS, trial, enqueue_seq):
        number = str(content.scorers[scorer])
        reasons.pop(number, None)
        if has_failed:
            reasons[number] = {"error": f"{error}: {message}"[:MESSAGE_CHARS]}
        elif reason:
            reasons[number] = truncate(reason, content.length)
    return 0 if stage == "withdrawn" else reasons or 0


def _variants(state: RunState) -> list[str]:
    """Return the names of the variants, including removed ones; trials without a variant have the first, empty name."""
    return ["", *filter(None, state.variants)]


def _series(index: Index, name: SeriesName, start: int) -> dict[str, Any]:
    """Return a series; times count from the start of the session. If a time has several values, only the last one is kept."""
    columns: dict[str, array[int]] = {"t": array("q"), "value": array("q"), "session": array("i")}
    for (t, session), group in groupby(_points(index, name, start), itemgetter(0, 2)):
        *_, (_, value, _) = group
        for column, number in zip(columns.values(), (t, value, session), strict=True):
            column.append(number)
    return {column: _deltas(numbers) for column, numbers in columns.items()}


def _use_columns(series: LimitSeries) -> dict[str, Iterator[int]]:
    """Return the use of a rate limit, in percent; times count from the start of the session."""
    return {
        "t": _deltas(microseconds(point.t) for point in series.points),
        "value": _deltas(point.percent for point in series.points),
        "session": _deltas(point.session for point in series.points),
    }


def _points(index: Index, name: SeriesName, start: int) -> Iterator[tuple[int, int, int]]:
    """Yield the time in its session, the value and the session of each point from row `start` on.

    If sessions overlap, all points are sums over them, in the order of wall time; only sessions after all of these add points.
    """
    if index.axis.overlap and not start:
        offsets = [session.offset for session in index.sessions]
        for t, value, _, session in sums(index, name):
            yield microseconds(t - offsets[session - 1]), value, session
        return
    for session, end in enumerate((*index.session_points[1:], index.point_count), start=1):
        if end > start:
            yield from ((microseconds(t), value, session) for t, value, _ in points(index, name, session, start))


def _deltas(numbers: Iterable[int]) -> Iterator[int]:
    return map(neg, starmap(sub, pairwise(chain((0,), numbers))))


def _score_json(value: Any) -> Any:
    """Return a score for JSON, which has no NaN and no infinities: they become text."""
    return value if not isinstance(value, float) or value - value == 0 else str(value)


def encode_json(value: Any) -> Iterator[bytes]:
    """Yield a value as JSON, in pieces; an iterator in it becomes a list, and a function is called for its result."""
    match value:
        case partial():
            yield from encode_json(value())
        case dict() if all(isinstance(name, str) for name in value):
            yield from _join(b"{", (chain((orjson.dumps(name), b":"), encode_json(value[name])) for name in value), b"}")
        case list() if any(isinstance(item, dict | Iterator) for item in value):
            yield from _join(b"[", map(encode_json, value), b"]")
        case Iterator():
            chunks = iter(lambda: list(islice(value, _CHUNK)), [])
            yield from _join(b"[", ((orjson.dumps(chunk)[1:-1],) for chunk in chunks), b"]")
        case _:
            yield orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def _join(start: bytes, items: Iterable[Iterable[bytes]], end: bytes) -> Iterator[bytes]:
    yield start
    for index, item in enumerate(items):
        if index:
            yield b","
        yield from item
    yield end
