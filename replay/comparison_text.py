"""A comparison of two runs as text: all of it for `compare A B`, and verdicts for other views."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from evaljournal.replay.comparison import Comparison, TrialChange
from evaljournal.replay.pairing import PairedDifference
from evaljournal.replay.text import digits, duration, number, plural, printable
from evaljournal.replay.trial_state import Value


def short_verdict(difference: PairedDifference, words: tuple[str, str] = ("higher", "lower")) -> str:
    """Return in a few words whether B differs from A: `B is better`, `no significant difference`.

    `words` are for a higher and a lower value of B; passes are better or worse.
    """
    if not difference.n:
        return "nothing to compare"
    if difference.kind == "label":
        return f"{difference.changed:,} of {plural(difference.n, 'label')} changed"
    if difference.kind == "number" and not difference.changed:
        return "no difference"
    if not difference.significant or difference.difference is None:
        return "no significant difference"
    words = ("better", "worse") if difference.kind == "pass" else words
    return f"B is {words[difference.difference < 0]}"


def sentence(difference: PairedDifference, words: tuple[str, str] = ("higher", "lower"), unit: str = "") -> str:
    """Return whether B differs from A, with the interval: `B is better by 6.2 points (95 % CI 1.2 to 11.3, n = 143)`."""
    verdict = short_verdict(difference, words)
    if not difference.n:
        return f"{verdict}: no case has a value in both"
    if difference.kind == "label":
        return verdict
    kind, mean, low, high = difference.kind, difference.difference, difference.low, difference.high
    if mean is None or low is None or high is None or verdict == "no difference":
        return f"{verdict} (n = {difference.n:,})"
    unit = " points" if kind == "pass" else unit
    if difference.significant and mean < 0:
        low, high = -high, -low
    interval = f"95 % CI {in_unit(kind, low)} to {in_unit(kind, high)}"
    if difference.significant:
        return f"{verdict} by {in_unit(kind, abs(mean))}{unit} ({interval}, n = {difference.n:,})"
    return f"{verdict} (B − A: {add_sign(in_unit(kind, mean))}{unit}, {interval}, n = {difference.n:,})"


def in_unit(kind: str, value: float) -> str:
    """Return a difference of pass rates in points, and any other difference with three digits."""
    return f"{100 * value:.1f}" if kind == "pass" else digits(value, 3)


def add_sign(amount: str) -> str:
    """Return an amount with a sign: `+1.4`, `-0.2`."""
    return amount if amount.startswith("-") else f"+{amount}"


def lines(comparison: Comparison, *, limit: int | None) -> Iterator[str]:
    """Yield a comparison as lines; each list shows at most `limit` trials and the number of the others."""
    yield _datasets(comparison)
    if comparison.not_done:
        yield f"{comparison.not_done:,} of {comparison.common:,} common trials are not done in both runs and are not compared"
    if not comparison.same_task:
        yield "the task differs between A and B"
    for side, scorers in (("A", comparison.scorers_only_a), ("B", comparison.scorers_only_b)):
        if scorers:
            yield f"scorers only in {side}: {', '.join(printable(scorer, 24) for scorer in scorers)}"
    yield (
        f"{plural(comparison.compared, 'trial')} compared: {len(comparison.fixed):,} fixed, {len(comparison.broken):,} broken, "
        f"{len(comparison.changed):,} changed, {comparison.unchanged:,} unchanged"
    )
    yield from _score_lines(comparison.scores)
    yield f"latency  {sentence(comparison.latency, ('slower', 'faster'), ' s')}"
    for label, scores in (comparison.groups or {}).items():
        yield f"{printable(label, 40)}:"
        yield from (f"  {row}" for row in _score_lines(scores))
    for title, changes in (("broken", comparison.broken), ("fixed", comparison.fixed), ("changed", comparison.changed)):
        rows = [f"{printable(change.trial)}: {_change(change)}" for change in islice(changes, limit)]
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


def _datasets(comparison: Comparison) -> str:
    lists = {"only in A": comparison.only_a, "only in B": comparison.only_b}
    lists["with different content"] = comparison.different_content
    differences = [f"{len(names):,} {description}" for description, names in lists.items() if names]
    if not differences:
        return f"the same {plural(comparison.common, 'trial')} in both runs"
    return f"{plural(comparison.common, 'common trial')}, {', '.join(differences)}"


def _score_lines(scores: Mapping[str, PairedDifference]) -> Iterator[str]:
    names = {scorer: printable(scorer, 24) for scorer in scores}
    width = max(map(len, names.values()), default=0)
    for scorer, difference in scores.items():
        text = sentence(difference)
        if difference.kind == "pass" and difference.n and difference.mean_a is not None and difference.mean_b is not None:
            text += f"; {100 * difference.mean_a:.1f} % → {100 * difference.mean_b:.1f} %"
            text += f", {difference.higher:,} better, {difference.lower:,} worse"
        elif difference.mean_a is not None and difference.mean_b is not None:
            text += f"; {digits(difference.mean_a, 3)} → {digits(difference.mean_b, 3)}"
        if difference.missing:
            noun = "trial" if difference.kind == "label" else "case"
            text += f"; excluded: {plural(difference.missing, noun)} not scored in both"
        if difference.scorer_changed:
            text += "; the scorer differs between A and B"
        yield f"{names[scorer]:<{width}}  {text}"


def _list(title: str, rows: Sequence[str], count: int) -> Iterator[str]:
    if count:
        yield f"{title} ({count:,}):"
        yield from (f"  {row}" for row in rows)
        if count > len(rows):
            yield f"  … and {count - len(rows):,} more (--all lists all)"


def _change(change: TrialChange) -> str:
    parts = [f"{change.stage_a} → {change.stage_b}"] if change.stage_a != change.stage_b else []
    parts += [f"{printable(scorer, 24)} {_value(a)} → {_value(b)}" for scorer, (a, b) in change.scores.items()]
    if change.output_changed:
        parts.append("output changed")
    return ", ".join(parts) or "failed with a different error"


def _value(value: Value | None) -> str:
    if value is None:
        return "no score"
    if isinstance(value, bool):
        return "pass" if value else "fail"
    return printable(value, 24) if isinstance(value, str) else number(value)
