"""Comparisons as text: two runs trial by trial, and a table of runs and variants with differences from a baseline."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from evaljournal.replay.render.phrases import (
    brief_score,
    changed_text,
    compared_text,
    excluded_texts,
    in_time_unit,
    mean_text,
    n_text,
    score_value_text,
    sentence,
    served_text,
    side_answers_text,
    unpaired_text,
    versions_text,
)
from evaljournal.replay.results.comparison import Comparison, TrialChange
from evaljournal.replay.results.pairing import PairedDifference
from evaljournal.replay.results.summary import ScoreSummary
from evaljournal.replay.results.table import ComparisonTable, Row
from evaljournal.replay.text import UNKNOWN, columns, duration, money, number, or_dash, plural, printable, stage_text

_WIDTH: Final = 120
_NAME_CHARS: Final = 40
_MAX_NAME_CHARS: Final = 4_000
_MAX_NAMES: Final = 3


def lines(comparison: Comparison, *, limit: int | None) -> Iterator[str]:
    """Yield a comparison as lines; each list shows at most `limit` trials and the number of the others."""
    if unpaired := unpaired_text(comparison):
        yield f"{plural(comparison.common, 'common trial')}, {unpaired}"
    else:
        yield f"the same {plural(comparison.common, 'trial')} in both runs"
    if comparison.not_done:
        yield f"{comparison.not_done:,} of {comparison.common:,} common trials are not done in both runs and are not compared"
    if comparison.definition_changes:
        yield f"changed from A to B: {changed_text(comparison.definition_changes)}"
    for side, scorers in (("A", comparison.scorers_only_a), ("B", comparison.scorers_only_b)):
        if scorers:
            yield f"scorers only in {side}: {', '.join(printable(scorer, 24) for scorer in scorers)}"

    yield compared_text(comparison)
    yield from _score_lines(comparison.scores)
    if (comparisons := max((difference.comparisons for difference in comparison.scores.values()), default=0)) > 1:
        yield _holm_note(comparisons)
    yield from answer_lines(comparison)
    latency, unit = in_time_unit(comparison.latency)
    yield f"latency  {sentence(latency, 'B is ', unit=unit)}"
    for label, scores in (comparison.groups or {}).items():
        yield f"{printable(label, 40)}:"
        yield from (f"  {row}" for row in _score_lines(scores))

    for title, changes in (("broken", comparison.broken), ("fixed", comparison.fixed), ("changed", comparison.changed)):
        rows = [f"{printable(change.trial)}: {change_text(change)}" for change in islice(changes, limit)]
        yield from _list(title, rows, len(changes))
    times = ((printable(trial.trial), duration(trial.seconds_a), duration(trial.seconds_b)) for trial in comparison.slower)
    rows = [f"{trial}: {time_a} → {time_b}" for trial, time_a, time_b in islice(times, limit)]
    yield from _list("slower", rows, len(comparison.slower))
    for title, names in (
        ("only in A", comparison.only_a),
        ("only in B", comparison.only_b),
        ("different content (not compared)", comparison.different_content),
    ):
        yield from _list(title, [printable(name) for name in islice(names, limit)], len(names))


def answer_lines(comparison: Comparison, a: str = "A", b: str = "B") -> Iterator[str]:
    """Yield how many answers of each side are not complete, and which models served them if there were several."""
    sides = {a: comparison.answers_a, b: comparison.answers_b}
    texts = {name: side_answers_text(answers) for name, answers in sides.items()}
    if any(texts.values()):
        yield f"answers  {'; '.join(f'{name}: {text}' if text else f'{name}: all complete' for name, text in texts.items())}"
    if comparison.model_drift:
        yield f"{a} and {b} requested the same model, but different models answered:"
    for name, answers in sides.items():
        by_variant = answers.models if comparison.model_drift else answers.mixed_models
        for variant, models in by_variant.items():
            yield f"{name}{f'@{_name(variant)}' if variant else ''} was {served_text(models)}"


def _score_lines(scores: Mapping[str, PairedDifference]) -> Iterator[str]:
    rows: list[tuple[str, str]] = []
    for scorer, difference in scores.items():
        text = sentence(difference, "B is ")
        if difference.mean_a is not None and difference.mean_b is not None:
            text += f"; {mean_text(difference.kind, difference.mean_a)} → {mean_text(difference.kind, difference.mean_b)}"
            text += f", {difference.higher:,} better, {difference.lower:,} worse" if difference.kind == "pass" else ""
        if difference.missing:
            noun = "trial" if difference.kind == "label" else "case"
            text += f"; excluded: {plural(difference.missing, noun)} not scored in both"
        if difference.scorer_changed:
            text += "; the scorer differs between A and B"
        rows.append((printable(scorer, 24), text))
    yield from columns(rows)


def _list(title: str, rows: Sequence[str], count: int) -> Iterator[str]:
    if count:
        yield f"{title} ({count:,}):"
        yield from (f"  {row}" for row in rows)
        if count > len(rows):
            yield f"  … and {count - len(rows):,} more (--all lists all)"


def change_text(change: TrialChange) -> str:
    """Return what differs in a trial: `exact pass → fail, output changed`."""
    parts = [f"{stage_text(change.stage_a)} → {stage_text(change.stage_b)}"] if change.stage_a != change.stage_b else []
    parts += [
        f"{printable(scorer, 24)} {score_value_text(a)} → {score_value_text(b)}" for scorer, (a, b) in change.scores.items()
    ]
    if change.output_changed:
        parts.append("output changed")
    return ", ".join(parts) or "a different error"


def table_lines(table: ComparisonTable) -> Iterator[str]:
    yield from _rows(table)
    if any(row.is_pareto_optimal for row in table.rows):
        front = f"* on the Pareto front of {_name(table.score or '')} against cost"
        yield f"{front}: no other row scores higher at the same or a lower cost per trial, or the same at a lower cost"
    scorers = dict.fromkeys(scorer for row in table.rows for scorer in row.differences)
    for scorer in scorers:
        rows = [(_row_name(row.name), sentence(row.differences[scorer])) for row in table.rows if scorer in row.differences]
        yield ""
        yield f"{_name(scorer)}, compared with {_row_name(table.baseline)}:"
        yield from (f"  {line}" for line in columns(rows))
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
    names = _pad("", marked_names, left=True)
    columns = [_pad(*column) for column in table_columns(table)]
    while columns:
        block, width = [names], len(names[0])
        while columns and (len(block) == 1 or width + 2 + len(columns[0][0]) <= _WIDTH):
            width += 2 + len(columns[0][0])
            block.append(columns.pop(0))
        for cells in zip(*block, strict=True):
            yield "  ".join(cells).rstrip()
        if columns:
            yield ""


def table_columns(table: ComparisonTable) -> Iterator[tuple[str, list[str]]]:
    """Yield the header and the cells of each column of a table."""
    rows = table.rows
    for scorer in dict.fromkeys(scorer for row in rows for scorer in row.scores):
        yield _name(scorer), [_score_text(row.scores.get(scorer), row) for row in rows]
    yield "OUTPUTS", [f"{row.completed:,}" for row in rows]
    yield "ERRORS", [f"{row.failed:,}" for row in rows]
    for outcome in ("declined", "truncated"):
        counts: list[int] = [getattr(row.answers, outcome) for row in rows]
        if any(counts):
            yield outcome.upper(), [f"{count:,}" for count in counts]
    yield "P50", [or_dash(row.latency.p50, duration) for row in rows]
    yield "P95", [or_dash(row.latency.p95, duration) for row in rows]
    if any(row.tokens is not None for row in rows):
        yield "TOKENS", [or_dash(row.tokens, number) for row in rows]
    if any(row.cost is not None for row in rows):
        signs = (">" if row.unpriced_calls and row.cost is not None else "" for row in rows)
        yield "COST", [f"{sign}{or_dash(row.cost, money)}" for sign, row in zip(signs, rows, strict=True)]
    if any(row.cost_per_pass is not None for row in rows):
        title = "PER PASS" if len(rows[0].scores) == 1 else f"PER PASS OF {_name(table.score or '')}"
        yield title, [or_dash(row.cost_per_pass, money) for row in rows]


def _pad(header: str, cells: Sequence[str], *, left: bool = False) -> Sequence[str]:
    width = max(map(len, (header, *cells)))
    return [f"{cell:<{width}}" if left else f"{cell:>{width}}" for cell in (header, *cells)]


def _score_text(score: ScoreSummary | None, row: Row) -> str:
    """Return a mean with its interval, and n where it is not the number of completed trials: `84.3 % (79.8–88.0)`."""
    if score is None:
        return UNKNOWN
    text = brief_score(score)
    return text if score.mean is None or score.numbers == row.completed else f"{text}, {n_text(score.numbers)}"


def _holm_note(comparisons: int) -> str:
    return f"p-values are Holm-corrected across {comparisons:,} comparisons"


def notes(table: ComparisonTable) -> Iterator[str]:
    if table.comparisons > 1:
        yield _holm_note(table.comparisons)
    baseline = _row_name(table.baseline)
    for row in table.rows:
        for note in (*_overlap_notes(row, baseline), *_difference_notes(row, baseline), *_row_notes(row)):
            yield f"{_row_name(row.name)}: {note}"


def _difference_notes(row: Row, baseline: str) -> Iterator[str]:
    differences = {_name(scorer): difference for scorer, difference in row.differences.items()}
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
    for models in row.answers.mixed_models.values():
        yield served_text(models)
    if excluded := excluded_texts(row.answers):
        yield f"excluded: {', '.join(excluded)}"
    if row.unpriced_calls:
        yield f"{plural(row.unpriced_calls, 'call')} without a price; the cost is incomplete"
    for scorer, score in row.scores.items():
        if versions := versions_text(score.versions, score.from_older_version):
            yield f"{plural(score.scored, 'score')} of {_name(scorer)} {versions}"
        if score.failed:
            yield f"{plural(score.failed, 'error')} of the scorer {_name(scorer)}"
