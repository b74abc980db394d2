"""The history of an evaluation as text: a table of its runs, a sparkline, and the cases that changed."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from evaljournal.replay.history.history import History, Point
from evaljournal.replay.render.phrases import changed_text, estimate_text, range_text
from evaljournal.replay.text import duration, money, or_dash, plural, printable

_BARS: Final = "▁▂▃▄▅▆▇█"
_MISSING: Final = "·"
_MARKS: Final = {"p": "✓", "f": "✗", "e": "E", "m": "±", "-": _MISSING}
_MAX_CASES: Final = 10
"""Maximum number of cases to list, of each kind."""
_MAX_RUNS: Final = 20
"""Maximum number of outcomes of a case to show, the newest ones."""


def sparkline(values: Sequence[float | None]) -> str:
    """Return a bar for each value, between the smallest and the largest; a dot for a missing one."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return _MISSING * len(values)
    low, width = min(numbers), max(numbers) - min(numbers)
    maximum = len(_BARS) - 1
    heights = (None if value is None else round(maximum * (value - low) / width) if width else maximum // 2 for value in values)
    return "".join(_MISSING if height is None else _BARS[height] for height in heights)


def basis_text(history: History) -> str:
    """Return on which cases the runs are compared: `compared on the 40 cases of runs/a/0003`; empty without a reference."""
    if history.reference is None:
        return ""
    share = f"{history.common:,} of " if history.common < history.cases else ""
    return f"compared on {share}the {plural(history.cases, 'case')} of {printable(history.reference, 200)}"


def table(history: History) -> list[tuple[str, ...]]:
    """Return the table of the runs; the first row is the header."""
    has_variants = any(point.variant for point in history.points)
    score = printable(history.scorer, 24) if history.scorer is not None else "SCORE"
    variant = ("VARIANT",) if has_variants else ()
    rows = [("RUN", *variant, "STARTED", "GIT", "CASES", score, "P95", "COST", "NOTES", "CHANGED")]
    for point in history.points:
        variant = (printable(point.variant, 40) or "-",) if has_variants else ()
        start_time = printable(point.started_at or "-")[:16].replace("T", " ")
        git = printable(point.git, 40)[:7] or "-"
        mean = "-" if point.score is None else estimate_text(point.score)
        p95, cost = or_dash(point.p95, duration), or_dash(point.cost, money)
        notes = "; ".join(_notes(point, history.scorer or "", history.cases))
        figures = f"{point.common:,}", mean, p95, cost
        rows.append((printable(point.path, 200), *variant, start_time, git, *figures, notes, changed_text(point.changed)))
    return rows


def _notes(point: Point, scorer: str, cases: int) -> Iterator[str]:
    if point.status in {"damaged", "unreadable"}:
        yield f"{point.status}: {printable(point.outcome, 100)}" if point.outcome != point.status else point.status
        return
    if point.status != "finished":
        yield printable(point.outcome, 60)
    if point.has_other_data:
        yield f"other data: {point.common:,} of {plural(point.cases, 'case')} in common"
    elif point.common < cases:
        yield f"{point.common:,} of the {plural(cases, 'case')}"
    if point.scorer_changed:
        yield f"other version of {printable(scorer, 24)}"
    if point.failed:
        yield plural(point.failed, "error")
    if point.unpriced_calls:
        yield f"{plural(point.unpriced_calls, 'call')} without a price"


def trend_lines(history: History) -> Iterator[str]:
    """Yield the sparkline of each variant, with its smallest and its largest mean."""
    for variant in dict.fromkeys(point.variant for point in history.points):
        points = [point for point in history.points if point.variant == variant]
        trend = [None if point.is_partial else point.score for point in points]
        scores = [score for score in trend if score is not None]
        if len(scores) > 1:
            bars = sparkline([None if score is None else score.mean for score in trend])
            label = f"{printable(history.scorer or '', 24)}{f'@{printable(variant, 40)}' if variant else ''}"
            yield f"{label}  {bars}  {range_text(scores)}"


def change_lines(history: History) -> Iterator[str]:
    for kind, cases in (("broken", history.broken), ("fixed", history.fixed), ("flaky", history.flaky)):
        if cases:
            yield f"{kind}: {plural(len(cases), 'case')}"
        for case in islice(cases, _MAX_CASES):
            marks = "".join(_MARKS[outcome] for outcome in case.outcomes[-_MAX_RUNS:])
            name = printable(case.case, 60) + (f"@{printable(case.variant, 40)}" if case.variant else "")
            suffix = f"  since {printable(case.since, 200)}" if case.since is not None else ""
            yield f"  {marks}  {name}{suffix}"
        if len(cases) > _MAX_CASES:
            yield f"  … and {len(cases) - _MAX_CASES:,} more"
