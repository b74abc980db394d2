"""A comparison of two runs as text: all of it for `diff`, and verdicts for other views."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from replay.comparison import Comparison, TrialChange
from replay.pairing import PairedDifference
from replay.text import digits, duration, number, plural, printable
from replay.trial_state import Value


def short_verdict(paired: PairedDifference, *, higher: str = "higher", lower: str = "lower") -> str:
    """Return in a few words whether B differs from A: `B is better`, `no significant difference`."""
    if not paired.n:
        return "nothing to compare"
    if paired.kind == "label":
        return f"{paired.changed:,} of {plural(paired.n, 'label')} changed"
    if paired.kind == "number" and not paired.changed:
        return "no difference"
    if not paired.significant or paired.difference is None:
        return "no significant difference"
    if paired.kind == "pass":
        higher, lower = "better", "worse"
    return f"B is {higher if paired.difference > 0 else lower}"


def sentence(paired: PairedDifference, *, higher: str = "higher", lower: str = "lower", unit: str = "") -> str:
    """Return whether B differs from A, with the interval: `B is better by 6.2 points (95 % CI 1.2 to 11.3, n = 143)`."""
    words = short_verdict(paired, higher=higher, lower=lower)
    if not paired.n:
        return f"{words}: no case has a value in both"
    if paired.kind == "label":
        return words
    if paired.difference is None or paired.low is None or paired.high is None or words == "no difference":
        return f"{words} (n = {paired.n:,})"
    difference, low, high = paired.difference, paired.low, paired.high
    unit = " points" if paired.kind == "pass" else unit
    if not paired.significant:
        amount = signed(in_unit(paired, difference))
        interval = f"95 % CI {in_unit(paired, low)} to {in_unit(paired, high)}"
        return f"{words} (B − A: {amount}{unit}, {interval}, n = {paired.n:,})"
    if difference < 0:
        low, high = -high, -low
    interval = f"95 % CI {in_unit(paired, low)} to {in_unit(paired, high)}"
    return f"{words} by {in_unit(paired, abs(difference))}{unit} ({interval}, n = {paired.n:,})"


def in_unit(paired: PairedDifference, value: float) -> str:
    """Return a difference of passes in points, and one of numbers with three digits."""
    return f"{100 * value:.1f}" if paired.kind == "pass" else digits(value, 3)


def signed(amount: str) -> str:
    """Return an amount with its sign."""
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
    yield f"latency  {sentence(comparison.latency, higher='slower', lower='faster', unit=' s')}"
    for label, scores in (comparison.groups or {}).items():
        yield f"{printable(label, 40)}:"
        yield from (f"  {row}" for row in _score_lines(scores))
    for title, changes in (("broken", comparison.broken), ("fixed", comparison.fixed), ("changed", comparison.changed)):
        rows = [f"{printable(change.trial)}: {_change(change)}" for change in islice(changes, limit)]
        yield from _list(title, rows, len(changes))
    times = ((printable(trial.trial), duration(trial.seconds_a), duration(trial.seconds_b)) for trial in comparison.slower)
    slower = [f"{trial}: {before} → {after}" for trial, before, after in islice(times, limit)]
    yield from _list("slower", slower, len(comparison.slower))
    for title, names in (
        ("only in A", comparison.only_a),
        ("only in B", comparison.only_b),
        ("same name, different content (not compared)", comparison.different_content),
    ):
        yield from _list(title, [printable(name) for name in islice(names, limit)], len(names))


def _datasets(comparison: Comparison) -> str:
    lists = {"only in A": comparison.only_a, "only in B": comparison.only_b}
    lists["with the same name and different content"] = comparison.different_content
    differences = [f"{len(names):,} {description}" for description, names in lists.items() if names]
    if not differences:
        return f"the same {plural(comparison.common, 'trial')} in both runs"
    return f"{plural(comparison.common, 'common trial')}, {', '.join(differences)}"


def _score_lines(scores: Mapping[str, PairedDifference]) -> Iterator[str]:
    names = {scorer: printable(scorer, 24) for scorer in scores}
    width = max(map(len, names.values()), default=0)
    for scorer, paired in scores.items():
        text = sentence(paired)
        if paired.kind == "pass" and paired.n and paired.mean_a is not None and paired.mean_b is not None:
            text += f"; {100 * paired.mean_a:.1f} % → {100 * paired.mean_b:.1f} %"
            text += f", {paired.higher:,} better, {paired.lower:,} worse"
        elif paired.mean_a is not None and paired.mean_b is not None:
            text += f"; {digits(paired.mean_a, 3)} → {digits(paired.mean_b, 3)}"
        if paired.missing:
            noun = "trial" if paired.kind == "label" else "case"
            text += f"; excluded: {plural(paired.missing, noun)} not scored in both"
        if paired.scorer_changed:
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
