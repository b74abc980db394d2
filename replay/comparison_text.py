"""A comparison of two runs as text, for `diff` and the report page."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from replay.comparison import Change, Comparison, Paired
from replay.state import Value
from replay.text import digits, duration, number, plural, printable


def sentence(paired: Paired, *, more: str = "higher", less: str = "lower", unit: str = "") -> str:
    """Say in one plain sentence whether B differs from A: `not distinguishable at n = 143`, `B is better by 6.2 points`."""
    if not paired.n:
        return "nothing to compare: no case has it in both"
    of = f"n = {paired.n:,}"
    if paired.kind == "label":
        return f"{paired.other:,} of {plural(paired.n, 'label')} changed"
    if paired.kind == "number" and not paired.other:
        return f"no difference in any of {paired.n:,}"
    if paired.difference is None or paired.low is None or paired.high is None:
        return f"not distinguishable at {of}"
    by, low, high = paired.difference, paired.low, paired.high
    if paired.kind == "pass":
        unit, more, less = " points", "better", "worse"

    def said(value: float) -> str:
        return f"{100 * value:.1f}" if paired.kind == "pass" else digits(value, 3)

    if not paired.is_distinguishable:
        sign = "" if said(by).startswith("-") else "+"
        return f"not distinguishable at {of} (B less A: {sign}{said(by)}{unit}, 95 %: {said(low)} to {said(high)})"
    if by < 0:
        low, high = -high, -low
    return f"B is {more if by > 0 else less} by {said(abs(by))}{unit} (95 %: {said(low)} to {said(high)}, {of})"


def lines(comparison: Comparison, *, most: int | None) -> Iterator[str]:
    """Tell a comparison to people; lists are cut after `most`, and say so."""
    yield _datasets(comparison)
    if comparison.open:
        yield f"{comparison.open:,} of the {comparison.common:,} in common are not done in both, and not compared"
    if not comparison.is_same_task:
        yield "the task was changed between the two"
    for where, scorers in (("A", comparison.scorers_only_a), ("B", comparison.scorers_only_b)):
        if scorers:
            yield f"only {where} has the scorers {', '.join(printable(each, 24) for each in scorers)}"
    counts = (len(comparison.fixed), len(comparison.broke), len(comparison.changed), comparison.same)
    told = ", ".join(f"{count:,} {kind}" for count, kind in zip(counts, ("fixed", "broke", "changed", "the same"), strict=True))
    yield f"{plural(comparison.compared, 'trial')} compared: {told}"
    yield from _score_lines(comparison.scores)
    yield f"answers  {sentence(comparison.latency, more='slower', less='faster', unit=' s')}"
    for label, scores in (comparison.groups or {}).items():
        yield f"{printable(label, 40)}:"
        yield from (f"  {row}" for row in _score_lines(scores))
    for title, changes in (("broke", comparison.broke), ("fixed", comparison.fixed), ("changed", comparison.changed)):
        yield from _list(title, [f"{printable(each.trial)}: {_in_words(each)}" for each in islice(changes, most)], len(changes))
    slower = [f"{printable(each.trial)}: {duration(each.a)} → {duration(each.b)}" for each in islice(comparison.slower, most)]
    yield from _list("slower", slower, len(comparison.slower))
    for title, names in (
        ("only in A", comparison.only_a),
        ("only in B", comparison.only_b),
        ("same name, different case (not compared)", comparison.different),
    ):
        yield from _list(title, [printable(name) for name in islice(names, most)], len(names))


def _datasets(comparison: Comparison) -> str:
    apart = [
        f"{len(names):,} {where}"
        for names, where in (
            (comparison.only_a, "only in A"),
            (comparison.only_b, "only in B"),
            (comparison.different, "with the same name and other content"),
        )
        if names
    ]
    if not apart:
        return f"the same {plural(comparison.common, 'trial')} in both"
    return f"not the same trials: {comparison.common:,} in common, {', '.join(apart)}"


def _score_lines(scores: Mapping[str, Paired]) -> Iterator[str]:
    names = {scorer: printable(scorer, 24) for scorer in scores}
    wide = max(map(len, names.values()), default=0)
    for scorer, paired in scores.items():
        said = sentence(paired)
        if paired.kind == "pass" and paired.n and paired.a is not None and paired.b is not None:
            said += f"; {100 * paired.a:.1f} % → {100 * paired.b:.1f} %, {paired.higher:,} better, {paired.lower:,} worse"
        elif paired.a is not None and paired.b is not None:
            said += f"; {digits(paired.a, 3)} → {digits(paired.b, 3)}"
        if paired.missing:
            what = "trial" if paired.kind == "label" else "case"
            said += f"; not in it: {plural(paired.missing, what)} without a score in both"
        if paired.is_other_version:
            said += "; the scorer itself was changed"
        yield f"{names[scorer]:<{wide}}  {said}"


def _list(title: str, shown: Sequence[str], count: int) -> Iterator[str]:
    if count:
        yield f"{title} ({count:,}):"
        yield from (f"  {each}" for each in shown)
        if count > len(shown):
            yield f"  … and {count - len(shown):,} more (--all names every one)"


def _in_words(change: Change) -> str:
    parts = [f"{_ENDS[change.a]} → {_ENDS[change.b]}"] if change.a != change.b else []
    parts += [f"{printable(scorer, 24)} {_values(was, now)}" for scorer, (was, now) in change.scores.items()]
    if change.output:
        parts.append("another output")
    return ", ".join(parts) or "failed in another way"


_ENDS: Final = {"completed": "answered", "failed": "failed"}


def _values(was: Value | None, now: Value | None) -> str:
    if was is None or now is None:
        return f"was {_value(was)}" if was is not None else _value(now)
    return f"{_value(was)} → {_value(now)}"


def _value(value: Value | None) -> str:
    match value:
        case bool():
            return "pass" if value else "fail"
        case str():
            return printable(value, 24)
        case _:
            return number(value or 0.0)
