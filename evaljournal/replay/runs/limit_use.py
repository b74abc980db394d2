"""The used share of each known rate limit over time, from the index of a run."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import attrs

from evaljournal.replay.index import Index
from evaljournal.replay.text import printable, rate_limit_text

_MAX_POINTS: Final = 400
"""Maximum points of a limit in one session."""
_MIN_INTERVAL: Final = 0.1
"""Minimum seconds between two points."""
_LIMITS: Final = "SELECT session, t, key, unit, size, window, source, header FROM rate_limits WHERE is_believed ORDER BY seq"


class UsePoint(NamedTuple):
    """A time and the share of a limit that is used then."""

    session: int
    t: float
    percent: int
    """What the calls of the last window needed, in percent of the limit."""


@attrs.frozen
class LimitSeries:
    label: str
    """`200k tokens per minute (advertised)`, after the rate-limit key, if there are several."""
    points: Sequence[UsePoint]


class _LimitRow(NamedTuple):
    session: int
    t: float
    key: str
    unit: str
    size: float
    window: float
    source: str
    header: str


def limit_series(index: Index) -> list[LimitSeries]:
    """Return the used share of each limit over time; none if sessions overlap."""
    limits: dict[tuple[str, str], list[_LimitRow]] = {}
    for row in map(_LimitRow._make, index.rows(_LIMITS)):
        limits.setdefault((row.key, row.header), []).append(row)
    if not limits or index.axis.overlap:
        return []

    needs: dict[tuple[int, str], list[tuple[float, Any]]] = {}
    for session, key, t, need in index.rows("SELECT session, key, t, need FROM needs ORDER BY t"):
        needs.setdefault((session, key), []).append((t, index.value(need)))

    has_several_keys = len({key for key, _ in limits}) > 1
    series: list[LimitSeries] = []
    for (key, _), rows in limits.items():
        limit, points = rows[-1], list[UsePoint]()
        for session in index.sessions:
            amounts = [(t, need.get(limit.unit, 0.0)) for t, need in needs.get((session.number, key), ())]
            points += _points([row for row in rows if row.session == session.number], amounts, session.end)
        name = f"{printable(key, 40)}: " if has_several_keys else ""
        label = f"{name}{rate_limit_text(limit.unit, limit.size, limit.window)} ({printable(limit.source)})"
        series.append(LimitSeries(label, points))
    return series


def _points(rows: Sequence[_LimitRow], amounts: Sequence[tuple[float, float]], end: float) -> Iterator[UsePoint]:
    """Yield the use of a limit in a session, at regular times from where it was first seen."""
    if not rows:
        return
    times, sums = [t for t, _ in amounts], [0.0]
    for _, amount in amounts:
        sums.append(sums[-1] + amount)

    start, change_times = rows[0].t, [row.t for row in rows]
    interval = max((end - start) / _MAX_POINTS, _MIN_INTERVAL)
    for number in range(int(max(end - start, 0.0) / interval) + 1):
        t = start + number * interval
        limit = rows[bisect_right(change_times, t) - 1]
        used = sums[bisect_right(times, t)] - sums[bisect_right(times, t - limit.window)]
        yield UsePoint(limit.session, t, round(100 * used / limit.size))
