"""The columns of a page: the data of a `Content`, in full or since a `Cursor`.

Columns are iterators, so that only a part of a column is in memory. Some contain differences between consecutive numbers, which
compress well. Times are in microseconds; times of sessions are in seconds.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, islice, pairwise, repeat, starmap
from operator import itemgetter, neg, sub
from typing import Any, Final, NamedTuple, get_args

import orjson

from evaljournal.journal.format.lifecycle import STAGES
from evaljournal.replay.page.page_content import STAGE_NUMBERS, TYPES, Content
from evaljournal.replay.page.page_steps import KINDS, PageSteps
from evaljournal.replay.page.page_text import MICRO, microseconds
from evaljournal.replay.page.page_timeline import SeriesName
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.runs.scratch import Column, Scratch, Values
from evaljournal.replay.runs.timeline_columns import BACKING_OFF, OUTCOMES, QUEUED, RUNNING, SCORING
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.trial import TrialState

_BATCH: Final = 4_096
"""Entries of a column that are encoded at once."""
_SERIES: Final[tuple[SeriesName, ...]] = get_args(SeriesName)


class Cursor(NamedTuple):
    """The part of a run that a page has received."""

    seq: int = 0
    series: tuple[int, ...] = (0,) * len(_SERIES)
    """Number of points of each series; the end of a delay can add one long after the record that announced the delay."""

    def __str__(self) -> str:
        return "-".join(map(str, (self.seq, *self.series)))

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Parse a cursor from `str(cursor)`; return an empty one if the text is invalid."""
        numbers = [int(part) for part in text.split("-") if re.fullmatch(r"[0-9]{1,15}", part)]
        return cls(numbers[0], tuple(numbers[1:])) if len(numbers) == len(_SERIES) + 1 else cls()

    @classmethod
    def end(cls, content: Content) -> "Cursor":
        """Return the cursor of a page that has everything."""
        return cls(len(content.t), tuple(len(content.timeline.series(name).t) for name in _SERIES))


def columns(content: Content, state: RunState, cursor: Cursor = Cursor()) -> dict[str, Any]:  # noqa: B008  # immutable
    """Return the columns of a run, or only their changes since the cursor."""
    if cursor.seq > len(content.t):
        cursor = Cursor()  # It belongs to another run.
    after_seq = cursor.seq
    trials: Sequence[int] = range(len(content.timeline.times))
    spans: Sequence[int] = range(len(content.timeline.spans))
    if after_seq:
        trials = sorted({number for number in content.trial.values(after_seq) if number >= 0})
        spans = sorted(set(content.changed_spans[1].values(bisect_right(content.changed_spans[0], after_seq))))
    score_start, error_start = bisect_right(content.score_log[0], after_seq), bisect_right(content.error_seq, after_seq)
    seqs, scorers, counts, values = content.score_log
    return {
        "from": after_seq,
        "seq": len(content.t),
        "types": TYPES,
        "stages": STAGES,
        "outcomes": OUTCOMES,
        "scorers": list(content.scorers),
        "variants": _variants(state),
        "events": {
            "t": _deltas(content.t.values(after_seq)),
            "type": content.type.values(after_seq),
            "trial": _deltas(content.trial.values(after_seq)),
            "stage_change": content.stage_changes.values(after_seq),
            "count_change": content.count_changes.values(after_seq),
        },
        "sessions": [view_json(session) for session in content.timeline.sessions],
        "limits": content.limits,
        "limit_changes": content.limit_changes,
        "pace_changes": content.pace_changes,
        "pauses": content.pauses,
        "backoffs": [row for row in content.backoffs if not after_seq or row[1] > after_seq or not 0 < row[2] <= after_seq],
        "score_log": {
            "seq": _deltas(seqs.values(score_start)),
            "scorer": scorers.values(score_start),
            "count": counts.values(score_start),
            "value": values.values(score_start),
        },
        "errors": _fragments(content.errors, range(error_start, len(content.error_seq))),
        "error_groups": [[category, error, example] for (category, error, _), (_, example) in content.groups.items()],
        "spans": _spans(content, spans),
        **({"steps": _steps(content.steps, after_seq)} if len(content.steps) else {}),
        "trials": _trials(content, trials, state),
        "series": {name: _series(content, name, start) for name, start in zip(_SERIES, cursor.series, strict=True)},
    }


def _spans(content: Content, indexes: Sequence[int]) -> dict[str, Any]:
    spans = content.timeline.spans
    ends, starts = _to_microseconds(spans.end.select(indexes)), _to_microseconds(spans.start.select(indexes))
    return {
        "index": _deltas(indexes),
        "trial": spans.trial.select(indexes),
        "attempt": spans.attempt.select(indexes),
        "slot": spans.slot.select(indexes),
        "session": spans.session.select(indexes),
        "start": _deltas(_to_microseconds(spans.start.select(indexes))),
        "duration": map(sub, ends, starts),
        "outcome": spans.outcome.select(indexes),
        "seq": _deltas(spans.seq.select(indexes)),
        "end_seq": _deltas(spans.end_seq.select(indexes)),
        "queue_time": _to_microseconds(spans.waits(spans.queue_time, indexes)),
        "backoff_time": _to_microseconds(spans.waits(spans.backoff_time, indexes)),
        "details": _fragments(content.details, indexes, b"0"),
    }


def _steps(steps: PageSteps, after_seq: int) -> dict[str, Any]:
    start = bisect_right(steps.seq, after_seq)
    return {
        "names": list(steps.names),
        "kinds": KINDS,
        "omitted": steps.omitted,
        "seq": _deltas(steps.seq.values(start)),
        "span": _deltas(steps.span.values(start)),
        "number": steps.number.values(start),
        "parent": steps.parent.values(start),
        "name": steps.name.values(start),
        "kind": steps.kind.values(start),
        "outcome": steps.outcome.values(start),
        "completed_seq": steps.completed_seq.values(start),
        "end": _deltas(steps.end.values(start)),
        "duration": steps.duration.values(start),
        "content": _fragments(steps.content, range(start, len(steps)), b"0"),
    }


def _trials(content: Content, indexes: Sequence[int], state: RunState) -> dict[str, Any]:
    names, times = content.timeline.times.names, content.timeline.times
    variants = {name: number for number, name in enumerate(_variants(state))}

    def per_trial(get: Callable[[TrialState], Any]) -> Iterator[Any]:
        return (get(state.trials[names[index]]) for index in indexes)

    def score(scorer: str, trial: TrialState) -> Any:
        return _score_json(trial.scores.get(scorer, ("", None))[1])

    return {
        "index": _deltas(indexes),
        "name": (names[index] for index in indexes),
        "case": (0 if (case := state.trials[names[index]].case) == names[index] else case for index in indexes),
        "repeat": per_trial(lambda trial: trial.repeat),
        **(
            {
                "variant": per_trial(lambda trial: variants[trial.variant]),
                "fingerprint": per_trial(lambda trial: trial.fingerprint),
            }
            if state.variants
            else {}
        ),
        "stage": per_trial(lambda trial: STAGE_NUMBERS[trial.stage]),
        "recovered": per_trial(lambda trial: int(trial.recovered)),
        "latency": per_trial(lambda trial: None if trial.output_location is None else microseconds(trial.latency)),
        "queue_time": _to_microseconds(times.seconds(QUEUED, indexes)),
        "backoff_time": _to_microseconds(times.seconds(BACKING_OFF, indexes)),
        "run_time": _to_microseconds(times.seconds(RUNNING, indexes)),
        "scoring_time": _to_microseconds(times.seconds(SCORING, indexes)),
        "reason": _fragments(content.reasons, indexes, b"0"),
        "input": _fragments(content.inputs, indexes),
        "expected": _fragments(content.expected, indexes),
        "metadata": _fragments(content.metadata, indexes),
        "output": _fragments(content.outputs, indexes),
        "scores": [per_trial(partial(score, scorer)) for scorer in content.scorers],
        "score_reasons": _fragments(content.score_reasons, indexes, b"0"),
    }


def _variants(state: RunState) -> list[str]:
    """Return the names of the variants, including removed ones; trials without a variant have the first, empty name."""
    return ["", *filter(None, state.variants)]


def _series(content: Content, name: SeriesName, first_index: int) -> dict[str, Any]:
    """Return a series; times count from the start of the session. If a time has several values, only the last one is kept."""
    scratch = Scratch()
    points = {column: Column[int]("q", scratch) for column in ("t", "value", "session")}
    appends = [column.append for column in points.values()]
    for count, ((t, session), group) in enumerate(groupby(_points(content, name, first_index), itemgetter(0, 2))):
        *_, (_, value, _) = group
        for append, number in zip(appends, (t, value, session), strict=True):
            append(number)
        if not count % _BATCH:
            scratch.trim()
    return {column: _deltas(numbers.values()) for column, numbers in points.items()}


def _points(content: Content, name: SeriesName, first_index: int) -> Iterator[tuple[int, int, int]]:
    """Yield the time in its session, the value and the session of each point from `first_index` on.

    All points of a merged run are sums over its shards, in the order of wall time; only sessions after all shards add points.
    """
    timeline = content.timeline
    if timeline.is_merged and not first_index:
        offsets = [session.offset for session in timeline.sessions]
        for t, value, _, session in timeline.sums(name):
            yield round((t - offsets[session - 1]) * MICRO), value, session
        return
    series = timeline.series(name)
    for session, (start, end) in enumerate(pairwise((*series.starts, len(series.t))), start=1):
        indexes = range(max(start, first_index), end)
        yield from zip(_to_microseconds(series.t.select(indexes)), series.value.select(indexes), repeat(session))


def _to_microseconds(times: Iterable[float]) -> Iterator[int]:
    return (round(seconds * MICRO) for seconds in times)


def _deltas(numbers: Iterable[int]) -> Iterator[int]:
    """Return the difference between each number and the previous one."""
    return map(neg, starmap(sub, pairwise(chain((0,), numbers))))


def _fragments(values: Values, indexes: Sequence[int], null_json: bytes = b"null") -> Iterator[orjson.Fragment]:
    return (orjson.Fragment(null_json if value == b"null" else value) for value in values.select(indexes))


def _score_json(value: Any) -> Any:
    """Return a score for JSON, which has no NaN and no infinities: they become text."""
    return value if not isinstance(value, float) or value - value == 0 else str(value)


def encode_json(value: Any) -> Iterator[bytes]:
    """Yield a value as JSON, in pieces; an iterator in it becomes a list."""
    match value:
        case dict() if all(isinstance(name, str) for name in value):
            yield from _join(b"{", (chain((orjson.dumps(name), b":"), encode_json(value[name])) for name in value), b"}")
        case list() if any(isinstance(item, dict | Iterator) for item in value):
            yield from _join(b"[", map(encode_json, value), b"]")
        case Iterator():
            batches = iter(lambda: list(islice(value, _BATCH)), [])
            yield from _join(b"[", ((orjson.dumps(batch)[1:-1],) for batch in batches), b"]")
        case _:
            yield orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def _join(start: bytes, items: Iterable[Iterable[bytes]], end: bytes) -> Iterator[bytes]:
    yield start
    for index, item in enumerate(items):
        if index:
            yield b","
        yield from item
    yield end
