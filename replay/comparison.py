"""Compare two runs trial by trial: what was fixed, what broke, what changed, and the difference of each score.

A trial is compared only with the trial of the other run that has the same name and the same content. Failures and missing
scores are counted next to each difference and are never part of it. The text of a comparison is in `comparison_text`.
"""

import hashlib
import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import attrs
import orjson

from journal import Blob, JournalError, Record
from journal.events import AttemptSucceeded
from replay.state import RunState
from replay.statistics import paired_numbers, paired_shares
from replay.tally import is_summable
from replay.text import plural
from replay.trial_state import DONE, TrialState, Value

SLOWER_FACTOR: Final = 2.0
"""A trial is listed as slower if it takes at least this many times as long, …"""
SLOWER_SECONDS: Final = 0.1
"""… and at least this many seconds longer."""
_DIGEST_BYTES: Final = 8
_ADDRESS: Final = re.compile(r"\bat 0x[0-9a-f]+", re.IGNORECASE)


class NothingInCommon(JournalError):
    """The two runs have no trial in common."""


@attrs.frozen
class Side:
    """One of the two runs."""

    state: RunState
    outputs: Mapping[str, bytes]
    """Trial → digest of its output, from `outputs`."""

    def has(self, scorer: str) -> bool:
        """Return whether the run has a scorer, even if it has scored nothing; `judge.tone` belongs to `judge`."""
        pinned = self.state.started.scorers if self.state.started else {}
        return scorer in self.state.scores or scorer.partition(".")[0] in pinned

    @property
    def trials(self) -> dict[str, TrialState]:
        """The trials that were not withdrawn."""
        return {name: trial for name, trial in self.state.trials.items() if trial.stage != "withdrawn"}


def outputs(records: Iterable[Record]) -> dict[str, bytes]:
    """Return a digest of each trial's last output; the order of keys in it does not matter."""
    digests: dict[str, bytes] = {}
    for record in records:
        event = record.event
        if isinstance(event, AttemptSucceeded):
            value = event.output
            text = value.sha256.encode() if isinstance(value, Blob) else orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
            digests[event.trial] = hashlib.sha256(text).digest()[:_DIGEST_BYTES]
    return digests


@attrs.frozen
class Change:
    """What differs in one trial."""

    trial: str
    stage_a: str
    stage_b: str
    """How it ended in each run: `completed` or `failed`."""
    scores: Mapping[str, tuple[Value | None, Value | None]]
    """Scorer → its two values, where they differ; None for a missing one."""
    output_changed: bool


@attrs.frozen
class Slower:
    """A trial whose output took much longer in B."""

    trial: str
    seconds_a: float
    seconds_b: float


@attrs.frozen(kw_only=True)
class Paired:
    """One scorer's values of the cases that have one in both runs; differences are B minus A."""

    kind: Literal["pass", "number", "label"]
    n: int
    """Cases compared, repeats of a case taken together; for labels, trials."""
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
    significant: bool = False
    """Whether the interval excludes 0."""
    squared_differences: float | None = None
    """Sum of the squared differences, if every value is 0 or 1."""
    scorer_changed: bool
    """Whether the two runs used different versions of the scorer."""


@attrs.frozen
class Comparison:
    """Run B compared with run A."""

    trials_a: int
    trials_b: int
    common: int
    """Trials with the same name and content in both."""
    compared: int
    """Common trials that are done in both."""
    not_done: int
    """Common trials that are not."""
    unchanged: int
    """Compared trials with the same output and the same scores."""
    fixed: Sequence[Change]
    """A score went from fail to pass, or a failed trial now completes without a failing score; and nothing broke."""
    broken: Sequence[Change]
    """A score went from pass to fail, or a completed trial now fails."""
    changed: Sequence[Change]
    """Any other difference in output, label, number or error."""
    slower: Sequence[Slower]
    """Trials with an output in both that took much longer in B; largest difference first."""
    only_a: Sequence[str]
    only_b: Sequence[str]
    different_content: Sequence[str]
    """Trials with the same name and different content; they are not compared."""
    same_task: bool
    """Whether the task's fingerprint is the same."""
    scorers_only_a: Sequence[str]
    scorers_only_b: Sequence[str]
    """Scorers that the other run does not have; their values are not compared."""
    scores: Mapping[str, Paired]
    latency: Paired
    """Seconds per output, compared in the same way."""
    completion: Paired
    """Share of trials that were completed, compared in the same way: failed trials have no score."""
    groups: Mapping[str, Mapping[str, Paired]] | None
    """Group → scorer → the same for its cases; None if no grouping was requested."""


def compare(a: Side, b: Side, *, groups: Mapping[str, str] | None = None) -> Comparison:
    """Compare run B with run A; with `groups` (trial → group), also the scores of each group.

    Raises:
        NothingInCommon: The runs have no trial with the same name and content.
    """
    trials_a, trials_b = a.trials, b.trials
    both = [name for name in trials_a if name in trials_b]
    common = [name for name in both if trials_a[name].fingerprint == trials_b[name].fingerprint]
    if not common:
        raise NothingInCommon(
            f"the two runs have no trial in common: {plural(len(trials_a) - len(both), 'trial')} only in A, "
            f"{len(trials_b) - len(both):,} only in B, {len(both):,} with the same name and different content"
        )
    done = [name for name in common if trials_a[name].stage in DONE and trials_b[name].stage in DONE]
    scorers = [scorer for scorer in {**a.state.scores, **b.state.scores} if a.has(scorer) and b.has(scorer)]
    changes: dict[str, list[Change]] = {"fixed": [], "broken": [], "changed": []}
    for name in done:
        output_changed = a.outputs.get(name) != b.outputs.get(name)
        kind, change = _change(name, trials_a[name], trials_b[name], scorers, output_changed=output_changed)
        if kind != "unchanged":
            changes[kind].append(change)
    matched = set(common)
    pairing = _Pairing(common, trials_a, trials_b, scorers)
    return Comparison(
        trials_a=len(trials_a),
        trials_b=len(trials_b),
        common=len(common),
        compared=len(done),
        not_done=len(common) - len(done),
        unchanged=len(done) - sum(map(len, changes.values())),
        fixed=changes["fixed"],
        broken=changes["broken"],
        changed=changes["changed"],
        slower=_slower(common, trials_a, trials_b),
        only_a=[name for name in trials_a if name not in trials_b],
        only_b=[name for name in trials_b if name not in trials_a],
        different_content=[name for name in both if name not in matched],
        same_task=_task(a) == _task(b),
        scorers_only_a=[scorer for scorer in a.state.scores if not b.has(scorer)],
        scorers_only_b=[scorer for scorer in b.state.scores if not a.has(scorer)],
        scores=pairing.scores(pairing.cases),
        latency=pairing.latency(),
        completion=pairing.completion(),
        groups=None if groups is None else pairing.grouped(groups),
    )


def _task(side: Side) -> str | None:
    return side.state.started.task_fingerprint if side.state.started else None


def _change(
    name: str, a: TrialState, b: TrialState, scorers: Iterable[str], *, output_changed: bool
) -> tuple[Literal["unchanged", "fixed", "broken", "changed"], Change]:
    """Classify one trial, and return what differs in it."""
    scores = {scorer: (_score(a, scorer), _score(b, scorer)) for scorer in scorers}
    differing = {scorer: pair for scorer, pair in scores.items() if pair[0] != pair[1]}
    has_outputs = a.output_location is not None and b.output_location is not None
    change = Change(name, a.stage, b.stage, differing, output_changed and has_outputs)
    stages = a.stage, b.stage
    if stages == ("completed", "failed") or any(before is True and after is False for before, after in differing.values()):
        return "broken", change
    if any(before is False and after is True for before, after in differing.values()):
        return "fixed", change
    if stages == ("failed", "completed"):
        return "changed" if any(after is False for _, after in differing.values()) else "fixed", change
    is_same = not (differing or change.output_changed) and (a.stage == "completed" or _error(a) == _error(b))
    return "unchanged" if is_same else "changed", change


def _error(trial: TrialState) -> str:
    """Return a trial's error without memory addresses (`<object at 0x7f3a…>`)."""
    return _ADDRESS.sub("at 0x…", trial.error)


def _score(trial: TrialState, scorer: str) -> Value | None:
    score = trial.scores.get(scorer)
    return None if score is None else score[1]


def _slower(common: Iterable[str], a: Mapping[str, TrialState], b: Mapping[str, TrialState]) -> list[Slower]:
    slower: list[Slower] = []
    for name in common:
        before, after = a[name].elapsed, b[name].elapsed
        is_slower = after >= SLOWER_FACTOR * before and after - before >= SLOWER_SECONDS
        if is_slower and a[name].output_location and b[name].output_location:
            slower.append(Slower(name, before, after))
    return sorted(slower, key=lambda trial: trial.seconds_a - trial.seconds_b)


_Numbers = Sequence[float]
_Pair = tuple[list[TrialState], list[TrialState]]
"""The trials of one case in A and in B; the numbers of repeats may differ."""


class _Pairing:
    """The cases that both runs have, with their trials in each."""

    def __init__(
        self, common: Iterable[str], a: Mapping[str, TrialState], b: Mapping[str, TrialState], scorers: Sequence[str]
    ) -> None:
        self._common = {name: a[name].case for name in common}
        self._a, self._b = a, b
        self._scorers = scorers
        fingerprints = {case: a[name].fingerprint for name, case in self._common.items()}
        self.cases: dict[str, _Pair] = {case: ([], []) for case in fingerprints}
        for side, trials in enumerate((a, b)):
            for trial in trials.values():
                if fingerprints.get(trial.case) == trial.fingerprint:
                    self.cases[trial.case][side].append(trial)

    def scores(self, cases: Mapping[str, _Pair]) -> dict[str, Paired]:
        """Compare the values of every common scorer for some cases."""
        return {scorer: self._scorer(scorer, cases) for scorer in self._scorers}

    def grouped(self, groups: Mapping[str, str]) -> dict[str, dict[str, Paired]]:
        """Compare the scores of each group; equal cases have equal metadata."""
        cases_of: dict[str, dict[str, _Pair]] = {}
        for name, case in self._common.items():
            if name in groups:
                cases_of.setdefault(groups[name], {})[case] = self.cases[case]
        return {label: self.scores(cases) for label, cases in sorted(cases_of.items())}

    def latency(self) -> Paired:
        a, b = array("d"), array("d")
        for pair in self.cases.values():
            times_a, times_b = ([trial.elapsed for trial in trials if trial.output_location is not None] for trials in pair)
            if times_a and times_b:
                a.append(sum(times_a) / len(times_a))
                b.append(sum(times_b) / len(times_b))
        return _paired("number", a, b, cases=len(self.cases), scorer_changed=False)

    def completion(self) -> Paired:
        """Compare the share of each case's trials that were completed, among those that are done."""
        a, b = array("d"), array("d")
        for pair in self.cases.values():
            done_a, done_b = ([trial.stage == "completed" for trial in trials if trial.stage in DONE] for trials in pair)
            if done_a and done_b:
                a.append(sum(done_a) / len(done_a))
                b.append(sum(done_b) / len(done_b))
        return _paired("pass", a, b, cases=len(self.cases), scorer_changed=False, is_share=True)

    def _scorer(self, scorer: str, cases: Mapping[str, _Pair]) -> Paired:
        a, b = array("d"), array("d")
        versions: tuple[set[str], set[str]] = set(), set()
        types: set[type] = set()
        is_share = True
        for pair in cases.values():
            scores = [[trial.scores[scorer] for trial in trials if scorer in trial.scores] for trials in pair]
            for side, values in zip(versions, scores, strict=True):
                side.update(version for version, _ in values)
            numbers_a, numbers_b = ([value for _, value in values if is_summable(value)] for values in scores)
            if numbers_a and numbers_b:
                types.update(map(type, (*numbers_a, *numbers_b)))
                is_share = is_share and all(value in (0, 1) for value in (*numbers_a, *numbers_b))
                a.append(sum(numbers_a) / len(numbers_a))
                b.append(sum(numbers_b) / len(numbers_b))
        scorer_changed = versions[0] != versions[1]
        if not a and (labels := self._labels(scorer, cases, scorer_changed=scorer_changed)).n:
            return labels
        kind: Literal["pass", "number"] = "pass" if types == {bool} else "number"
        return _paired(kind, a, b, cases=len(cases), scorer_changed=scorer_changed, is_share=is_share)

    def _labels(self, scorer: str, cases: Mapping[str, _Pair], *, scorer_changed: bool) -> Paired:
        """Compare labels trial by trial; repeats of a case cannot be averaged."""
        names = [name for name, case in self._common.items() if case in cases]
        pairs = [(_score(self._a[name], scorer), _score(self._b[name], scorer)) for name in names]
        labels = [(before, after) for before, after in pairs if isinstance(before, str) and isinstance(after, str)]
        changed = sum(before != after for before, after in labels)
        missing = len(names) - len(labels)
        return Paired(kind="label", n=len(labels), missing=missing, changed=changed, scorer_changed=scorer_changed)


def _paired(
    kind: Literal["pass", "number"], a: _Numbers, b: _Numbers, *, cases: int, scorer_changed: bool, is_share: bool = False
) -> Paired:
    differences = [after - before for before, after in zip(a, b, strict=True)]
    n, estimate = len(differences), None
    if n:
        estimate = paired_shares(differences) if is_share else paired_numbers(differences)
    low, high = (estimate.low, estimate.high) if estimate else (None, None)
    return Paired(
        kind=kind,
        n=n,
        missing=cases - n,
        changed=sum(difference != 0 for difference in differences),
        higher=sum(difference > 0 for difference in differences),
        lower=sum(difference < 0 for difference in differences),
        mean_a=sum(a) / n if n else None,
        mean_b=sum(b) / n if n else None,
        difference=estimate.mean if estimate else None,
        standard_error=estimate.standard_error if estimate else None,
        low=low,
        high=high,
        significant=low is not None and high is not None and (low > 0 or high < 0),
        squared_differences=math.fsum(difference**2 for difference in differences) if is_share else None,
        scorer_changed=scorer_changed,
    )
