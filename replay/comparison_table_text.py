"""A comparison table as text, for `evaljournal compare`: its rows, the differences, and notes."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from evaljournal.replay.comparison_table import ComparisonTable, Difference, Row
from evaljournal.replay.comparison_text import add_sign, in_unit, sentence
from evaljournal.replay.summary_text import versions_text
from evaljournal.replay.summary_types import Score
from evaljournal.replay.text import digits, duration, money, number, plural, printable

_WIDTH: Final = 120
_NAME_CHARS: Final = 40
_MAX_NAME_CHARS: Final = 4_000
_MAX_NAMES: Final = 3
"""Number of trials to name, of those that are not compared."""
_MIN_P: Final = 0.0001
_Column = Sequence[str]
"""Header and cells, of equal width."""


def lines(table: ComparisonTable) -> Iterator[str]:
    """Yield a table as lines."""
    yield from _rows(table)
    if any(row.is_pareto_optimal for row in table.rows):
        front = f"* on the Pareto front of {_name(table.score or '')} against cost"
        yield f"{front}: no other row scores higher at the same or a lower cost per trial, or the same at a lower cost"
    scorers = dict.fromkeys(scorer for row in table.rows for scorer in row.differences)
    for scorer in scorers:
        rows = [row for row in table.rows if scorer in row.differences]
        width = max(len(_row_name(row.name)) for row in rows)
        yield ""
        yield f"{_name(scorer)}, compared with {_row_name(table.baseline)}:"
        for row in rows:
            yield f"  {_row_name(row.name):<{width}}  {_difference_text(row.differences[scorer])}"
    if note_lines := list(notes(table)):
        yield ""
        yield from note_lines


def _name(name: str) -> str:
    return printable(name, _NAME_CHARS)


def _row_name(name: str) -> str:
    """Return a name; of a long one only the end, where runs and variants differ."""
    text = printable(name, _MAX_NAME_CHARS)
    return text if len(text) <= _NAME_CHARS else f"…{text[1 - _NAME_CHARS :]}"


def _rows(table: ComparisonTable) -> Iterator[str]:
    """Yield the columns side by side; those that do not fit are in a further table below."""
    marked_names = [f"{'*' if row.is_pareto_optimal else ' '} {_row_name(row.name)}" for row in table.rows]
    names = _column("", marked_names, left=True)
    columns = list(_columns(table))
    while columns:
        block, width = [names], len(names[0])
        while columns and (len(block) == 1 or width + 2 + len(columns[0][0]) <= _WIDTH):
            width += 2 + len(columns[0][0])
            block.append(columns.pop(0))
        for cells in zip(*block, strict=True):
            yield "  ".join(cells).rstrip()
        if columns:
            yield ""


def _columns(table: ComparisonTable) -> Iterator[_Column]:
    rows = table.rows
    for scorer in dict.fromkeys(scorer for row in rows for scorer in row.scores):
        scores = [row.scores.get(scorer) for row in rows]
        yield _column(
            _name(scorer), ["-" if score is None else _score_text(score, row) for score, row in zip(scores, rows, strict=True)]
        )
    yield _column("OK", [f"{row.completed:,}" for row in rows])
    yield _column("FAILED", [f"{row.failed:,}" for row in rows])
    yield _column("P50", [_duration_text(row.latency.p50) for row in rows])
    yield _column("P95", [_duration_text(row.latency.p95) for row in rows])
    if any(row.tokens is not None for row in rows):
        yield _column("TOKENS", ["-" if row.tokens is None else number(row.tokens) for row in rows])
    if any(row.cost is not None for row in rows):
        costs = ((row.cost, ">" if row.unpriced_calls else "") for row in rows)
        yield _column("COST", ["-" if cost is None else f"{sign}{money(cost)}" for cost, sign in costs])
    if any(row.cost_per_pass is not None for row in rows):
        title = "PER PASS" if len(rows[0].scores) == 1 else f"PER PASS OF {_name(table.score or '')}"
        yield _column(title, ["-" if row.cost_per_pass is None else money(row.cost_per_pass) for row in rows])


def _column(header: str, cells: Sequence[str], *, left: bool = False) -> _Column:
    width = max(map(len, (header, *cells)))
    return [f"{cell:<{width}}" if left else f"{cell:>{width}}" for cell in (header, *cells)]


def _duration_text(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _score_text(score: Score, row: Row) -> str:
    """Return a mean with its interval, and n where it is not the number of completed trials: `84.3 % (79.8–88.0)`."""
    if score.mean is None:
        label, count = next(iter(score.labels.items()), ("", 0))
        return f"{printable(label, 16)} {100 * count / score.scored:.0f} %" if count else "-"
    if score.kind == "pass":
        text, ends = f"{100 * score.mean:.1f} %", [f"{100 * end:.1f}" for end in (score.low, score.high) if end is not None]
    else:
        text, ends = digits(score.mean, 3), [digits(end, 3) for end in (score.low, score.high) if end is not None]
    separator = "–" if score.kind == "pass" else " to "
    interval = f" ({separator.join(ends)})" if ends else ""
    return f"{text}{interval}" + (f", n = {score.numbers:,}" if score.numbers != row.completed else "")


def verdict(difference: Difference) -> tuple[str, str, str]:
    """Return the p-value, how a row differs from the baseline, and the minimum detectable difference.

    For example `p = 0.4`, `not distinguishable` and `minimum detectable difference: 4.2 points`; the first and the last may be
    empty.
    """
    paired_difference, p = difference.paired_difference, difference.p_adjusted
    mean, kind = paired_difference.difference, paired_difference.kind
    if p is None or mean is None or (kind == "number" and not paired_difference.changed):
        return "", sentence(paired_difference), ""
    p_value = f"p < {_MIN_P:.4f}" if p < _MIN_P else f"p = {digits(p, 2)}"
    if difference.is_distinguishable:
        words = ("better", "worse") if kind == "pass" else ("higher", "lower")
        return p_value, words[mean < 0], ""
    power = "n is too small to detect any difference"
    if difference.minimum_detectable is not None:
        unit = " points" if kind == "pass" else ""
        power = f"minimum detectable difference: {in_unit(kind, difference.minimum_detectable)}{unit}"
    return p_value, "not distinguishable", power


def _difference_text(difference: Difference) -> str:
    p_value, result, power = verdict(difference)
    paired_difference, kind = difference.paired_difference, difference.paired_difference.kind
    mean, low, high = paired_difference.difference, paired_difference.low, paired_difference.high
    if not p_value or mean is None:
        return result
    interval = "no interval" if low is None or high is None else f"95 % CI {in_unit(kind, low)} to {in_unit(kind, high)}"
    unit = " points" if kind == "pass" else ""
    details = f"at n = {paired_difference.n:,} ({add_sign(in_unit(kind, mean))}{unit}, {interval}, {p_value})"
    return "; ".join(filter(None, (f"{result} {details}", power)))


def notes(table: ComparisonTable) -> Iterator[str]:
    """Yield notes on a table: corrections, trials that are not compared, incomplete figures."""
    if table.comparisons > 1:
        yield f"p-values are Holm-corrected across {table.comparisons:,} comparisons"
    baseline = _row_name(table.baseline)
    for row in table.rows:
        for note in (*_overlap_notes(row, baseline), *_difference_notes(row, baseline), *_row_notes(row)):
            yield f"{_row_name(row.name)}: {note}"


def _difference_notes(row: Row, baseline: str) -> Iterator[str]:
    differences = {_name(scorer): difference.paired_difference for scorer, difference in row.differences.items()}
    if changed_scorers := [scorer for scorer, difference in differences.items() if difference.scorer_changed]:
        yield f"not the same version of the scorer as in {baseline}: {', '.join(changed_scorers)}"
    exclusions = [
        f"{scorer} {plural(difference.missing, 'trial' if difference.kind == 'label' else 'case')}"
        for scorer, difference in differences.items()
        if difference.missing
    ]
    if exclusions:
        yield f"excluded, because not scored in both: {', '.join(exclusions)}"


def _overlap_notes(row: Row, baseline: str) -> Iterator[str]:
    if row.overlap is None:
        return
    lists = (
        (f"only in {baseline}", row.overlap.only_baseline),
        ("only here", row.overlap.only_row),
        ("with different content", row.overlap.different_content),
    )
    parts = [f"{len(trials):,} {place} ({_first_names(trials)})" for place, trials in lists if trials]
    if parts:
        yield f"{plural(row.overlap.common, 'trial')} in common with {baseline}; not compared: {', '.join(parts)}"


def _first_names(trials: Sequence[str]) -> str:
    names = [printable(name, 24) for name in islice(trials, _MAX_NAMES)]
    return ", ".join([*names, *(["…"] if len(trials) > _MAX_NAMES else [])])


def _row_notes(row: Row) -> Iterator[str]:
    if row.open:
        yield f"{plural(row.open, 'trial')} not done"
    if row.from_older_task:
        yield f"its run has {plural(row.from_older_task, 'output')} from an older version of the task"
    if row.unpriced_calls:
        yield f"{plural(row.unpriced_calls, 'call')} without a price; the cost is incomplete"
    for scorer, score in row.scores.items():
        if versions := versions_text(score.versions, score.from_older_version):
            yield f"{plural(score.scored, 'score')} of {_name(scorer)} {versions}"
        if score.failed:
            yield f"{_name(scorer)} failed for {plural(score.failed, 'output')}"
