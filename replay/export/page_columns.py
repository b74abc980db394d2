"""The JSON columns of a page: what a `Content` has collected, in full or since a `Cursor`.

Sorted numbers are stored as differences, which compress well. Times are in microseconds.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain, islice, pairwise
from operator import sub
from typing import Any, Final, NamedTuple, get_args

import attrs

from journal.lifecycle import STAGES
from replay.export.page_content import MICRO, TYPES, Content
from replay.state import RunState
from replay.timeline import StepName
from replay.timeline_columns import OUTCOMES

_SERIES: Final[tuple[StepName, ...]] = get_args(StepName)


class Cursor(NamedTuple):
    """How much of a run a page has received."""

    seq: int = 0
    series: tuple[int, ...] = (0,) * len(_SERIES)
    """Points of each series; a delay that a record announces can add one long after that record."""

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
        return cls(len(content.t), tuple(len(content.timeline.columns(name)[0]) for name in _SERIES))


def columns(content: Content, state: RunState, cursor: Cursor = Cursor()) -> dict[str, Any]:  # noqa: B008  # immutable
    """Return the columns of a run, or only what has changed since the cursor."""
    if cursor.seq > len(content.t):
        cursor = Cursor()  # It belongs to another run.
    first = cursor.seq
    trials: Sequence[int] = range(len(content.stage))
    spans: Sequence[int] = range(len(content.span_trial))
    if first:
        trials = sorted({number for number in content.trial[first:] if number >= 0})
        spans = sorted(set(content.changed_spans[1][bisect_right(content.changed_spans[0], first) :]))
    scored = bisect_right(content.score_log[0], first)
    errors = zip(content.errors, content.group_of, strict=True)
    return {
        "from": first,
        "seq": len(content.t),
        "types": TYPES,
        "stages": STAGES,
        "outcomes": OUTCOMES,
        "scorers": list(content.scorers),
        "events": {
            "t": _deltas(content.t[first:]),
            "type": list(content.type[first:]),
            "trial": _deltas(content.trial[first:]),
            "move": list(content.moves[first:]),
            "flag": list(content.flags[first:]),
        },
        "sessions": [attrs.asdict(session) for session in content.timeline.sessions],
        "limits": content.limits,
        "limit_changes": content.limit_changes,
        "pace_changes": content.pace_changes,
        "pauses": content.pauses,
        "backoffs": [row for row in content.backoffs if not first or row[1] > first or not 0 < row[2] <= first],
        "score_log": {
            "seq": _deltas(content.score_log[0][scored:]),
            "scorer": list(content.score_log[1][scored:]),
            "count": list(content.score_log[2][scored:]),
            "value": content.score_log[3][scored:],
        },
        "errors": [[*error, group] for error, group in islice(errors, bisect_right(content.error_seq, first), None)],
        "error_groups": [[category, error, example] for (category, error, _), (_, example) in content.groups.items()],
        "spans": _spans(content, spans),
        "trials": _trials(content, trials, state),
        "series": {name: _series(content, name, at) for name, at in zip(_SERIES, cursor.series, strict=True)},
    }


def _spans(content: Content, indexes: Sequence[int]) -> dict[str, Any]:
    spans = content.timeline.spans
    starts, ends = _micro(spans.start, indexes), _micro(spans.end, indexes)
    return {
        "index": _deltas(indexes),
        "trial": _select(content.span_trial, indexes),
        "attempt": _select(spans.attempt, indexes),
        "slot": _select(spans.slot, indexes),
        "session": _select(spans.session, indexes),
        "start": _deltas(starts),
        "duration": list(map(sub, ends, starts)),
        "outcome": _select(spans.outcome, indexes),
        "seq": _deltas(_select(spans.seq, indexes)),
        "end_seq": _deltas(_select(spans.end_seq, indexes)),
        "queue_time": _micro(spans.queue_time, indexes),
        "backoff_time": _micro(spans.backoff_time, indexes),
        "details": [content.details[index] or 0 for index in indexes],
    }


def _trials(content: Content, indexes: Sequence[int], state: RunState) -> dict[str, Any]:
    names, times = content.timeline.times.names, content.timeline.times
    spent = [times[names[index]] for index in indexes]
    states = [state.trials[names[index]] for index in indexes]
    return {
        "index": _deltas(indexes),
        "name": [names[index] for index in indexes],
        "case": [content.cases[index] or 0 for index in indexes],
        "stage": [content.stage[index] for index in indexes],
        "recovered": [int(trial.recovered) for trial in states],
        "elapsed": [None if trial.output_location is None else round(trial.elapsed * MICRO) for trial in states],
        "queue_time": [round(times.queue_time * MICRO) for times in spent],
        "backoff_time": [round(times.backoff_time * MICRO) for times in spent],
        "run_time": [round(times.run_time * MICRO) for times in spent],
        "scoring_time": [round(times.scoring_time * MICRO) for times in spent],
        "reason": [content.reasons[index] or 0 for index in indexes],
        "input": [content.case_data[index][0] for index in indexes],
        "expected": [content.case_data[index][1] for index in indexes],
        "metadata": [content.case_data[index][2] for index in indexes],
        "output": [content.outputs[index] for index in indexes],
        "scores": [[_finite(content.scores[index].get(scorer)) for index in indexes] for scorer in content.scorers.values()],
        "score_reasons": [content.score_reasons[index] or 0 for index in indexes],
    }


def _series(content: Content, name: StepName, first: int) -> dict[str, Any]:
    """Return a step function in the seconds of each session; of several values at one time, only the last."""
    times, values, begins = content.timeline.columns(name)
    points: list[tuple[int, int, int]] = []
    for session, (begin, end) in enumerate(pairwise((*begins, len(times))), start=1):
        for index in range(max(begin, first), end):
            t = round(times[index] * MICRO)
            if points and points[-1][::2] == (t, session):
                points.pop()
            points.append((t, values[index], session))
    return {name: _deltas([point[index] for point in points]) for index, name in enumerate(("t", "value", "session"))}


def _select(column: Sequence[int], indexes: Iterable[int]) -> list[int]:
    return list(map(column.__getitem__, indexes))


def _micro(column: Sequence[float], indexes: Iterable[int]) -> list[int]:
    return [round(column[index] * MICRO) for index in indexes]


def _deltas(numbers: Sequence[int]) -> list[int]:
    """Return the difference between each number and the one before."""
    return list(map(sub, numbers, chain((0,), numbers)))


def _finite(value: Any) -> Any:
    """Return a score; NaN and infinities, which JSON lacks, as text."""
    return value if not isinstance(value, float) or value - value == 0 else str(value)
