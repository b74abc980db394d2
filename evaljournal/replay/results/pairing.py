"""Pairs of trials of two runs or two variants, and the difference of each score over them.

Two trials are a pair if their case, repeat and content are equal, and their variant if runs are compared. Failures and missing
scores are not part of a difference; they are counted next to it.

**Decisions**: whether a score got worse or better. One rule for `compare`, the report and Markdown. A score is worse or better
if the two-sided test of its paired difference has a p-value below 5 %, Holm-corrected over the scores of one command, and if
the difference is not negligible. The test is exact for passes and for few cases; otherwise it draws signs, with a constant
seed. A gate asks another question, whether a score is worse, and has a rule of its own: `gate`.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, Literal, TypeVar

import attrs

from evaljournal.replay.state.tally import is_summable
from evaljournal.replay.state.trial import DONE_STAGES, TrialState, Value
from evaljournal.replay.statistics import LEVEL, holm, paired_numbers, paired_shares

Verdict = Literal["worse", "better", "no_difference_found"]
Key = tuple[str, str, int]
"""Case, variant and repeat of a trial; the variant is empty if only one is compared."""

NEGLIGIBLE: Final = 0.01
"""A difference below this share of the baseline's mean is none."""
CLOCK_RESOLUTION: Final = 1e-6
"""Seconds to which times are recorded."""
KeyT = TypeVar("KeyT")


@attrs.frozen(kw_only=True)
class PairedDifference:
    """The difference of one score over the cases with a value in both runs: B minus A."""

    kind: Literal["pass", "number", "label"]
    n: int
    """Cases compared; repeats and variants of a case count as one. For labels, trials."""
    missing: int
    """Common cases (or trials) that are excluded because they failed, are open or were not scored in one of the runs."""
    changed: int
    """Cases whose value differs."""
    higher: int = 0
    lower: int = 0
    """Cases whose value is higher, and lower, in B; 0 for labels."""
    mean_a: float | None = None
    mean_b: float | None = None
    """Means over the cases compared; None for labels."""
    difference: float | None = None
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    """95 % confidence interval of the difference."""
    p: float | None = None
    """Two-sided p-value: of McNemar's exact test for passes, of the sign-flip test for numbers and repeats; None for labels."""
    p_worse: float | None = None
    """One-sided p-value of the same test: that B is lower."""
    verdict: Verdict | None = None
    """Whether B is worse than A; None for labels, and without values in both. This and the following are set by `decide`."""
    p_adjusted: float | None = None
    """The p-value, Holm-corrected over the differences that are tested together."""
    comparisons: int = 0
    """Their number."""
    scorer_changed: bool
    """Whether the two runs used different versions of the scorer."""


_Numbers = Sequence[float]
_Pair = tuple[list[TrialState], list[TrialState]]
"""The trials of one case and variant in A and in B; the numbers of repeats may differ."""
_Cases = Mapping[str, Mapping[str, _Pair]]
"""Case → variant → its trials."""


class Pairing:
    """The trials that two runs or variants have in common, by case."""

    def __init__(self, a: Mapping[Key, TrialState], b: Mapping[Key, TrialState]) -> None:
        shared_keys = [key for key in a if key in b]
        self.common_keys = [key for key in shared_keys if a[key].fingerprint == b[key].fingerprint]
        matching_keys = set(self.common_keys)
        self.different_content = [key for key in shared_keys if key not in matching_keys]
        """Trials with the same case, variant and repeat, and different content."""
        self.only_a = [key for key in a if key not in b]
        self.only_b = [key for key in b if key not in a]

        self._a, self._b = a, b
        fingerprints = {key[:2]: a[key].fingerprint for key in self.common_keys}
        self._cases: dict[str, dict[str, _Pair]] = {}
        for case, variant in sorted(fingerprints):  # The order of records does not change a result.
            self._cases.setdefault(case, {})[variant] = ([], [])

        for side, trials in enumerate((a, b)):
            for (case, variant, _), trial in trials.items():
                if fingerprints.get((case, variant)) == trial.fingerprint:
                    self._cases[case][variant][side].append(trial)

    def scores(self, scorers: Iterable[str]) -> dict[str, PairedDifference]:
        return {scorer: self._compare_scorer(scorer, self._cases) for scorer in scorers}

    def group_scores(self, scorers: Sequence[str], groups: Mapping[Key, str]) -> dict[str, dict[str, PairedDifference]]:
        cases_by_group: dict[str, dict[str, Mapping[str, _Pair]]] = {}
        for key in sorted(self.common_keys):
            if key in groups:
                cases_by_group.setdefault(groups[key], {})[key[0]] = self._cases[key[0]]
        return {
            label: {scorer: self._compare_scorer(scorer, cases) for scorer in scorers}
            for label, cases in sorted(cases_by_group.items())
        }

    def latency(self) -> PairedDifference:
        return self._compare_measurements("number", attrgetter("latency"))

    def completion(self, scorers: Iterable[str]) -> PairedDifference:
        """Compare the share of trials that have an output which is not excluded and that none of `scorers` has failed to score.

        Others have no score. Where the worst outputs are those that cannot be scored, the scores alone would improve.
        """
        names = {scorer.partition(".")[0] for scorer in scorers}

        def is_scored(trial: TrialState) -> bool | None:
            if trial.stage not in DONE_STAGES:
                return None
            return trial.stage == "completed" and not trial.is_excluded and names.isdisjoint(trial.unscored)

        return self._compare_measurements("pass", is_scored)

    def _compare_measurements(
        self, kind: Literal["pass", "number"], measure: Callable[[TrialState], float | None]
    ) -> PairedDifference:
        a, b = array("d"), array("d")
        for pairs in _values(self._cases, measure):
            _append_means(a, b, pairs)
        return compare_values(kind, a, b, cases=len(self._cases), scorer_changed=False, is_share=kind == "pass")

    def _compare_scorer(self, scorer: str, cases: _Cases) -> PairedDifference:
        a, b = array("d"), array("d")
        types: set[type] = set()
        is_share = True

        for pairs in _values(cases, lambda trial: number(trial, scorer)):
            numbers = [value for pair in pairs for side in pair for value in side]
            types.update(map(type, numbers))
            is_share = is_share and all(value in (0, 1) for value in numbers)
            _append_means(a, b, pairs)
        versions_a, versions_b = (
            {
                version_and_value[0]
                for variants in cases.values()
                for pair in variants.values()
                for trial in pair[side]
                if (version_and_value := trial.score(scorer)) is not None
            }
            for side in (0, 1)
        )
        scorer_changed = bool(versions_a and versions_b) and versions_a != versions_b
        if not a and (labels := self._compare_labels(scorer, cases, scorer_changed=scorer_changed)).n:
            return labels
        kind: Literal["pass", "number"] = "pass" if types == {bool} else "number"
        return compare_values(kind, a, b, cases=len(cases), scorer_changed=scorer_changed, is_share=is_share)

    def _compare_labels(self, scorer: str, cases: _Cases, *, scorer_changed: bool) -> PairedDifference:
        """Compare labels trial by trial; repeats of a case cannot be averaged."""
        keys = [key for key in self.common_keys if key[0] in cases]
        pairs = [(score(self._a[key], scorer), score(self._b[key], scorer)) for key in keys]
        labels = [(label_a, label_b) for label_a, label_b in pairs if isinstance(label_a, str) and isinstance(label_b, str)]
        changed_count = sum(label_a != label_b for label_a, label_b in labels)
        n, missing_count = len(labels), len(keys) - len(labels)
        return PairedDifference(kind="label", n=n, missing=missing_count, changed=changed_count, scorer_changed=scorer_changed)


def score(trial: TrialState, scorer: str) -> Value | None:
    version_and_value = trial.score(scorer)
    return None if version_and_value is None else version_and_value[1]


def number(trial: TrialState, scorer: str) -> float | None:
    """Return a trial's value of a scorer if it is a number or a pass; None otherwise."""
    value = score(trial, scorer)
    return value if is_summable(value) else None


def _values(cases: _Cases, measure: Callable[[TrialState], float | None]) -> Iterator[Sequence[tuple[_Numbers, _Numbers]]]:
    """Yield the values of each case with values in both runs: for each variant, those of its repeats in A and in B."""
    for variants in cases.values():
        sides = (
            [[value for trial in side if (value := measure(trial)) is not None] for side in pair] for pair in variants.values()
        )
        if pairs := [(a, b) for a, b in sides if a and b]:
            yield pairs


def _append_means(a: "array[float]", b: "array[float]", pairs: Sequence[tuple[_Numbers, _Numbers]]) -> None:
    """Append the mean of a case in A and in B: over its variants, the means over their repeats."""
    for means, side in ((a, 0), (b, 1)):
        means.append(sum(sum(pair[side]) / len(pair[side]) for pair in pairs) / len(pairs))


def compare_values(
    kind: Literal["pass", "number"], a: _Numbers, b: _Numbers, *, cases: int, scorer_changed: bool, is_share: bool
) -> PairedDifference:
    """Compare the numbers of cases in A and in B; `cases` counts all cases. With `is_share`, the numbers are pass rates."""
    differences = [value_b - value_a for value_a, value_b in zip(a, b, strict=True)]
    n = len(differences)
    if not n:
        return PairedDifference(kind=kind, n=0, missing=cases, changed=0, scorer_changed=scorer_changed)

    estimate = paired_shares(differences) if is_share else paired_numbers(differences)
    return PairedDifference(
        kind=kind,
        n=n,
        missing=cases - n,
        changed=sum(difference != 0 for difference in differences),
        higher=sum(difference > 0 for difference in differences),
        lower=sum(difference < 0 for difference in differences),
        mean_a=sum(a) / n,
        mean_b=sum(b) / n,
        difference=estimate.mean,
        standard_error=estimate.standard_error,
        low=estimate.low,
        high=estimate.high,
        p=estimate.p,
        p_worse=estimate.p_worse,
        scorer_changed=scorer_changed,
    )


def decide(differences: Mapping[KeyT, PairedDifference], *, is_time: bool = False) -> dict[KeyT, PairedDifference]:
    """Return the differences with their verdicts; they are the scores of one command, and tested together.

    With `is_time` they are seconds: less is better, and a difference below the clock's resolution is none.
    """
    p_values = [difference.p for difference in differences.values() if difference.p is not None]
    comparisons, adjusted_p_values = len(p_values), iter(holm(p_values))
    return {
        key: difference if difference.p is None else _decided(difference, next(adjusted_p_values), comparisons, is_time=is_time)
        for key, difference in differences.items()
    }


def _decided(difference: PairedDifference, p_adjusted: float, comparisons: int, *, is_time: bool) -> PairedDifference:
    amount = difference.difference or 0.0
    negligible = max(NEGLIGIBLE * abs(difference.mean_a or 0.0), CLOCK_RESOLUTION if is_time else 0.0)
    is_found = p_adjusted < 1 - LEVEL and abs(amount) >= negligible
    return attrs.evolve(
        difference,
        verdict=("worse" if (amount < 0) != is_time else "better") if is_found else "no_difference_found",
        p_adjusted=p_adjusted,
        comparisons=comparisons,
    )
