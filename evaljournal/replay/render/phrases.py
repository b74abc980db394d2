"""The words for trials, scores and differences: output or error, means, confidence intervals, n, verdicts, waits.

Every view lays these strings out: text, Markdown, tables, and the page, which gets them ready. No other module words them.
"""

from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from evaljournal.replay.results.summary import ScoreSummary, TrialCounts
from evaljournal.replay.state.totals import Totals
from evaljournal.replay.text import BELOW_IN_MS, UNKNOWN, columns, digits, duration, number, one_line, plural, printable

if TYPE_CHECKING:
    from evaljournal.replay.results.comparison import Comparison, SideAnswers
    from evaljournal.replay.results.pairing import PairedDifference
    from evaljournal.replay.results.pairwise import PairwiseSummary, Ranking

_CHANGED_CHARS: Final = 100
_MAX_LABELS: Final = 6
"""Maximum number of labels to list, most frequent first."""
_MAX_SERVED: Final = 4
"""Maximum number of served models to list, most frequent first."""
_MIN_P: Final = 0.0001


def score_value_text(value: float | str | None) -> str:
    """Return the value of a score: `pass`, `fail`, a number, a label."""
    if value is None:
        return "no score"
    if isinstance(value, bool):
        return "pass" if value else "fail"
    if isinstance(value, str):
        return printable(value, 24)
    return f"{value:,}" if isinstance(value, int) else number(value)


class MeanWithInterval(Protocol):
    """A mean with its 95 % confidence interval."""

    @property
    def kind(self) -> str: ...
    @property
    def mean(self) -> float | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def mean_text(kind: str, mean: float | None, unit: str = "") -> str:
    """Return a mean: `93.3 %` for passes, `0.82` for other numbers."""
    if mean is None:
        return UNKNOWN
    return f"{100 * mean:.1f} %" if kind == "pass" else f"{digits(mean, 3)}{unit}"


def interval_text(kind: str, low: float | None, high: float | None) -> str:
    """Return the confidence interval of a mean: `84.1–97.4`, `0.79 to 0.85`; empty if there is none."""
    if low is None or high is None:
        return ""
    return f"{100 * low:.1f}–{100 * high:.1f}" if kind == "pass" else f"{digits(low, 3)} to {digits(high, 3)}"


def ci_text(interval: str) -> str:
    """Return a confidence interval with its level: `95 % CI 0.79 to 0.85`, `no interval`."""
    return f"95 % CI {interval}" if interval else "no interval"


def share_interval_text(kind: str, low: float | None, high: float | None) -> str:
    """Return the confidence interval of a mean with its unit: `84.1–97.4 %`, `0.79 to 0.85`; empty if there is none."""
    interval = interval_text(kind, low, high)
    return f"{interval} %" if interval and kind == "pass" else interval


def n_text(n: int) -> str:
    """Return the number of values behind a figure: `n = 143`."""
    return f"n = {n:,}"


def waited_text(seconds: float, cause: str = "") -> str:
    """Return how long a start was delayed, and why: `waited 1.3 s (all 16 slots busy)`."""
    return f"waited {duration(seconds)}{f' ({cause})' if cause else ''}"


def estimate_text(estimate: MeanWithInterval) -> str:
    """Return a mean with its 95 % confidence interval: `93.3 % (84.1–97.4)`."""
    interval = interval_text(estimate.kind, estimate.low, estimate.high)
    return f"{mean_text(estimate.kind, estimate.mean)}{f' ({interval})' if interval else ''}"


def range_text(estimates: Sequence[MeanWithInterval]) -> str:
    """Return the smallest and the largest mean of a score: `78.3 % to 93.3 %`."""
    ends = [choose(estimates, key=lambda estimate: estimate.mean or 0.0) for choose in (min, max)]
    return " to ".join(mean_text(end.kind, end.mean) for end in ends[: len(estimates)])


def brief_score(score: ScoreSummary) -> str:
    """Return the mean of a score with its interval, or the most frequent label with its share: `yes 60 %`."""
    return estimate_text(score) if score.mean is not None else next(_label_shares(score), UNKNOWN)


def _label_shares(score: ScoreSummary) -> Iterator[str]:
    return (f"{printable(label, 24)} {100 * count / score.scored:.0f} %" for label, count in score.labels.items())


def excluded_texts(answers: "TrialCounts | Totals | SideAnswers") -> list[str]:
    """Return how many answers are not scored: `2 declined`, `1 truncated`."""
    return [f"{count:,} {outcome}" for outcome, count in answers.excluded.items() if count]


def side_answers_text(answers: "TrialCounts | Totals | SideAnswers") -> str:
    """Return the answers that are not complete: `3 declined · 1 truncated, excluded: 2 declined`; empty if all are."""
    excluded = ", ".join(excluded_texts(answers))
    return ", ".join(filter(None, (answers_text(answers), excluded and f"excluded: {excluded}")))


def answers_text(trials: "TrialCounts | Totals | SideAnswers") -> str:
    """Return how many scored answers are not complete: `3 declined · 1 truncated`; empty if all are."""
    counts = {"declined": trials.declined, "truncated": trials.truncated}
    counts = {outcome: count - trials.excluded.get(outcome, 0) for outcome, count in counts.items()}
    return " · ".join(f"{count:,} {outcome}" for outcome, count in counts.items() if count)


def served_text(models: Mapping[str, int]) -> str:
    """Return which models gave how many outputs: `served by small-2026-01-01 (40) and small-2026-05-01 (10)`."""
    names = [f"{printable(model, 60)} ({count:,})" for model, count in islice(models.items(), _MAX_SERVED)]
    names += [f"{plural(len(models) - _MAX_SERVED, 'other model')}"] if len(models) > _MAX_SERVED else []
    return f"served by {' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))}"


@attrs.frozen
class ScoreText:
    """The results of a scorer as strings, each empty if there is nothing to report."""

    figure: str
    """The mean, or the most frequent label."""
    basis: str
    """What the mean is of: `53 of 58 passed`, `mean of 58 scored in 20 cases`."""
    interval: str
    """`95 % CI 81.4–96.3 %`."""
    labels: str
    """`yes 60 %, no 40 %  of 58 scored`."""
    exclusions: str
    """`2 errors, 1 scorer error`."""
    answers: str
    """How many of the scored answers were not complete: `3 declined · 1 truncated`."""
    versions: str
    """Which versions of the scorer the values are from, if not all are from the current one."""

    @property
    def notes(self) -> str:
        return "; ".join(filter(None, (self.exclusions and f"excluded: {self.exclusions}", self.versions)))


def describe_score(score: ScoreSummary, *, trials: TrialCounts | Totals | None = None, unscored_outputs: int = 0) -> ScoreText:
    """Return the results of a scorer; the errors and the excluded ones of `trials`, and `unscored_outputs`, are excluded."""
    failed_trials = 0 if trials is None else trials.failed
    cases = f" in {plural(score.cases, 'case')}" if score.cases < score.numbers else ""
    is_pass, interval = score.passed is not None, share_interval_text(score.kind, score.low, score.high)
    basis = f"{score.passed:,} of {score.numbers:,}{cases} passed" if is_pass else f"mean of {score.numbers:,} scored{cases}"
    labels = ", ".join(islice(_label_shares(score), _MAX_LABELS))
    if omitted_count := max(0, len(score.labels) - _MAX_LABELS):
        labels += f" and {plural(omitted_count, 'more label')}"
    message = f" ({one_line(score.error, 200)})" if score.error else ""
    counts = [
        (failed_trials, plural(failed_trials, "error")),
        *((1, text) for text in (excluded_texts(trials) if trials is not None else ())),
        (score.failed, f"{plural(score.failed, 'scorer error')}{message}"),
        (score.out_of_range, f"{score.out_of_range:,} not finite or too large"),
        (unscored_outputs, f"{unscored_outputs:,} unscored"),
    ]
    return ScoreText(
        figure=next(_label_shares(score), "") if score.mean is None else mean_text(score.kind, score.mean),
        basis="" if score.mean is None else basis,
        interval=ci_text(interval) if interval else "",
        labels=f"{labels}  of {score.scored:,} scored" if labels else "",
        exclusions=", ".join(text for count, text in counts if count),
        answers="" if trials is None else answers_text(trials),
        versions=versions_text(score.versions, score.from_older_version),
    )


def score_text(score: ScoreSummary, *, trials: TrialCounts | Totals | None = None) -> str:
    """Return a scorer's results: `91.4 %  53 of 58 passed (95 % CI 81.4–96.3 %) · 3 declined; excluded: 2 errors`."""
    text = describe_score(score, trials=trials)
    mean = f"{text.figure}  {text.basis}" if text.basis else ""
    results = " ".join(filter(None, (mean, text.interval and f"({text.interval})", text.labels)))
    if not results:
        return f"no score: {text.exclusions}" if text.exclusions else "no score yet"
    return "; ".join(filter(None, (" · ".join(filter(None, (results, text.answers))), text.notes)))


def pass_at_k_texts(score: ScoreSummary) -> Iterator[tuple[str, str]]:
    """Yield `pass@4 97.5 %` and `pass^4 81.0 %` for each k, if cases have repeats."""
    for estimate in score.pass_at_k:
        if estimate.k > 1:
            yield f"pass@{estimate.k} {100 * estimate.at_least_one:.1f} %", f"pass^{estimate.k} {100 * estimate.all:.1f} %"


def versions_text(versions: int, from_older_version: int) -> str:
    """Return which versions of a scorer its values are from; empty if all are from the current one."""
    if not from_older_version:
        return ""
    if versions == 1:
        return "all from an older version of the scorer"
    return f"from {plural(versions, 'version')} of the scorer, {from_older_version:,} from an older one"


def signed_difference(kind: str, difference: float, unit: str = "") -> str:
    """Return a difference with its sign: `+6.2 points` of passes, `-0.38` of other numbers."""
    text = size_text(kind, difference, unit)
    return text if text.startswith("-") else f"+{text}"


def _amount(kind: str, value: float) -> str:
    return f"{100 * value:.1f}" if kind == "pass" else digits(value, 3)


def difference_interval(kind: str, low: float | None, high: float | None) -> str:
    """Return the confidence interval of a difference: `1.2 to 11.3`; empty if there is none."""
    return "" if low is None or high is None else f"{_amount(kind, low)} to {_amount(kind, high)}"


def figures(kind: str, difference: float, low: float | None, high: float | None, n: int, *notes: str, unit: str = "") -> str:
    """Return a difference with its 95 % confidence interval: `+6.2 points (95 % CI 1.2 to 11.3, n = 143)`."""
    interval = difference_interval(kind, low, high)
    details = (ci_text(interval), n_text(n), *filter(None, notes))
    return f"{signed_difference(kind, difference, unit)} ({', '.join(details)})"


def difference_cells(difference: "PairedDifference", unit: str) -> list[str]:
    """Return the cells of a table: both means, the difference, its 95 % confidence interval, and n."""
    kind, low, high = difference.kind, difference.low, difference.high
    means = [mean_text(kind, mean, unit) for mean in (difference.mean_a, difference.mean_b)]
    amount = UNKNOWN if difference.difference is None else signed_difference(kind, difference.difference, unit)
    return [*means, amount, difference_interval(kind, low, high) or UNKNOWN, f"{difference.n:,}"]


def verdict(difference: "PairedDifference", subject: str = "", *, is_time: bool = False) -> str:
    """Return in a few words whether B differs from A: `B is better` with the subject `B is `, `no difference found`.

    Times are slower or faster.
    """
    if not difference.n:
        return "no case has a value in both"
    if difference.kind == "label":
        return f"{difference.changed:,} of {plural(difference.n, 'label')} changed"
    if difference.verdict is None or difference.verdict == "no_difference_found":
        return "no difference found"
    words = {"worse": "slower", "better": "faster"} if is_time else {"worse": "worse", "better": "better"}
    return f"{subject}{words[difference.verdict]}"


def sentence(difference: "PairedDifference", subject: str = "", *, unit: str = "") -> str:
    """Return a verdict with its evidence: `B is better: +6.2 points (95 % CI 1.2 to 11.3, n = 143, p = 0.02)`."""
    result = verdict(difference, subject, is_time=bool(unit))
    if not difference.n or difference.kind == "label":
        return result
    if difference.difference is None or (difference.kind == "number" and not difference.changed):
        return f"{result} ({n_text(difference.n)})"
    low, high, n = difference.low, difference.high, difference.n
    return (
        f"{result}: {figures(difference.kind, difference.difference, low, high, n, p_text(difference.p_adjusted), unit=unit)}"
    )


def in_time_unit(difference: "PairedDifference") -> tuple["PairedDifference", str]:
    """Return a difference of seconds with its unit; in milliseconds if both means are shown so by `duration`."""
    means = (difference.mean_a, difference.mean_b)
    if any(mean is None or mean >= BELOW_IN_MS for mean in means):
        return difference, " s"
    names = ("mean_a", "mean_b", "difference", "standard_error", "low", "high")
    values = ((name, getattr(difference, name)) for name in names)
    return attrs.evolve(difference, **{name: 1000 * value for name, value in values if value is not None}), " ms"


def p_text(p: float | None) -> str:
    """Return a p-value: `p = 0.4`; empty if there is none."""
    return "" if p is None else f"p < {_MIN_P:.4f}" if p < _MIN_P else f"p = {digits(p, 2)}"


def size_text(kind: str, size: float, unit: str = "") -> str:
    """Return the size of a difference: `4.2 points` of passes, `0.38` of other numbers."""
    return f"{_amount(kind, size)}{' points' if kind == 'pass' else unit}"


def compared_text(comparison: "Comparison", baseline: str = "") -> str:
    """Return what became of the trials: `3 trials compared: 0 broken, 1 fixed, 0 changed, 2 unchanged`."""
    changes: Mapping[str, Sized] = {"broken": comparison.broken, "fixed": comparison.fixed, "changed": comparison.changed}
    counts = "".join(f"{len(trials):,} {kind}, " for kind, trials in changes.items())
    return f"{plural(comparison.compared, 'trial')} compared{baseline}: {counts}{comparison.unchanged:,} unchanged"


def unpaired_text(comparison: "Comparison", a: str = "A", b: str = "B") -> str:
    """Return the trials that are not compared: `2 only in A, 1 with different content`; empty if there are none."""
    lists: Mapping[str, Sized] = {
        f"only in {a}": comparison.only_a,
        f"only in {b}": comparison.only_b,
        "with different content": comparison.different_content,
    }
    return ", ".join(f"{len(trials):,} {place}" for place, trials in lists.items() if trials)


def changed_text(changed: Sequence[str]) -> str:
    """Return what differs between two definitions, shortened: `model a → b, scorer exact`."""
    return printable(", ".join(changed), _CHANGED_CHARS)


def pairwise_text(result: "PairwiseSummary", subject: str = "") -> str:
    """Return the verdicts of a pairwise judge: `27 wins, 15 losses, 18 ties against runs/qa/0001; better: …; 3 of 60 flips`."""
    other = f"{result.path}@{result.variant}" if result.variant else result.path
    counts = f"{plural(result.wins, 'win')}, {plural(result.losses, 'loss', 'losses')}, {plural(result.ties, 'tie')}"
    flips = f"position flips: {result.flips:,} of {result.pairs:,} ({100 * result.flips / result.pairs:.1f} %)"
    flips += f", {result.flips_to_first:,} to the first output" if result.flips else ""
    return f"{counts} against {printable(other, 80)}; {sentence(result.difference, subject)}; {flips}"


def ranking_lines(ranking: "Ranking") -> Iterator[str]:
    """Yield a ranking as lines: the strength of each side with its interval, and its wins, losses and ties."""
    model = printable(ranking.model, 40)
    if not ranking.strengths:
        yield f"no ranking by {model}: it compared {ranking.sides:,} runs and variants; at most 50 are ranked"
        return
    yield f"ranking by {model} (Bradley-Terry with ties, {plural(ranking.cases, 'case')}):"
    rows: list[tuple[str, str]] = []
    for strength in ranking.strengths:
        interval = difference_interval("number", strength.low, strength.high)
        amount = signed_difference("number", strength.strength)
        counts = f"{strength.wins:,} won, {strength.losses:,} lost, {strength.ties:,} tied"
        rows.append((printable(strength.name, 40), f"{amount} ({ci_text(interval)}); {counts}"))
    yield from (f"  {line}" for line in columns(rows))
