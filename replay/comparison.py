"""Compare two runs trial by trial: what was fixed, what broke, what changed, and whether the scores can be told apart.

Only what is the same thing is compared: a trial of one run and a trial of the other that have the same name and the same
content. A name that stands for something else in the other run is a different case, and two datasets are never called the same
because their names agree. Failures and missing scores are counted beside every difference; they are in none.
"""

import hashlib
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import orjson

from journal import Blob, JournalError, Record
from journal.events import AttemptSucceeded
from replay.state import DONE, RunState, TrialState, Value
from replay.statistics import Estimate, paired_numbers, paired_shares
from replay.tally import can_be_summed
from replay.text import plural

SLOWER: Final = 2.0
"""How many times as long an answer takes that is called slower; single times vary, and half as long again is nothing."""
SLOWER_BY: Final = 0.1
"""Seconds that it takes longer at least: below, it is the machine that varies."""
_DIGEST: Final = 8
_ADDRESS: Final = re.compile(r"\bat 0x[0-9a-f]+", re.IGNORECASE)


class NothingInCommon(JournalError):
    """The two runs have no trial in common: there is nothing to compare."""


@attrs.frozen
class Side:
    """One of the two runs."""

    state: RunState
    outputs: Mapping[str, bytes]
    """Trial → digest of its output, as `outputs` finds it."""

    def has(self, scorer: str) -> bool:
        """Say whether a scorer is the run's, be it that it had nothing to judge; `judge.tone` is one of `judge`'s."""
        pinned = self.state.started.scorers if self.state.started else {}
        return scorer in self.state.scores or scorer.partition(".")[0] in pinned

    @property
    def trials(self) -> dict[str, TrialState]:
        """Those that count."""
        return {name: trial for name, trial in self.state.trials.items() if trial.stage != "withdrawn"}


def outputs(records: Iterable[Record]) -> dict[str, bytes]:
    """Digest every output, so that two can be compared although neither is kept; the order of keys does not count."""
    found: dict[str, bytes] = {}
    for record in records:
        event = record.event
        if isinstance(event, AttemptSucceeded):
            value = event.output
            text = value.sha256.encode() if isinstance(value, Blob) else orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
            found[event.trial] = hashlib.sha256(text).digest()[:_DIGEST]
    return found


@attrs.frozen
class Change:
    """What is different about a trial."""

    trial: str
    a: str
    b: str
    """How it ended in either run: `completed` or `failed`."""
    scores: Mapping[str, tuple[Value | None, Value | None]]
    """Scorer → what it said in either run, where that differs; None where it said nothing."""
    output: bool
    """Whether the outputs differ."""


@attrs.frozen
class Slower:
    """A trial whose answer took much longer."""

    trial: str
    a: float
    b: float
    """Seconds in either run."""


@attrs.frozen(kw_only=True)
class Paired:
    """What one scorer said of the cases that have its value in both runs: B's mean less A's."""

    kind: Literal["pass", "number", "label"]
    n: int
    """Cases that are compared, the repeats of a case taken together; of labels, trials."""
    missing: int
    """Those in common that are not, because they failed, are open or were not scored, in either run."""
    other: int
    """Those whose value in B is another one."""
    higher: int = 0
    lower: int = 0
    """Those for which it is higher, and lower; of labels, neither."""
    a: float | None = None
    b: float | None = None
    """The means over those cases; None for labels."""
    difference: float | None = None
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    """The range that holds the true difference 95 times in 100."""
    is_distinguishable: bool = False
    """Whether that range leaves out 0."""
    is_other_version: bool
    """Whether the scorer itself was changed between the two: then it may be the scorer that differs."""


@attrs.frozen
class Comparison:
    """Two runs, side by side: B against A."""

    trials_a: int
    trials_b: int
    common: int
    """Trials that both have, with the same name and the same content."""
    compared: int
    """Those of them that are done in both."""
    open: int
    """Those that are not."""
    same: int
    """Those that ended alike: the same output, the same scores."""
    fixed: Sequence[Change]
    """Something that did not hold holds now, and nothing broke: a pass, or an answer where there was none and nothing fails."""
    broke: Sequence[Change]
    """Something that held no longer holds, whatever else was fixed."""
    changed: Sequence[Change]
    """Another output, label or number; a wrong answer where there was none; or it failed both times, in another way."""
    slower: Sequence[Slower]
    """Of all that were answered in both, whatever else is different; the longest first."""
    only_a: Sequence[str]
    only_b: Sequence[str]
    different: Sequence[str]
    """Names that stand for something else in the other run."""
    is_same_task: bool
    """Whether the task was the same, by its source."""
    scorers_only_a: Sequence[str]
    scorers_only_b: Sequence[str]
    """Scorers that the other run does not have; nothing that they say is compared."""
    scores: Mapping[str, Paired]
    latency: Paired
    """Seconds of the answers, in the same way."""
    groups: Mapping[str, Mapping[str, Paired]] | None
    """Group → scorer → the same, of its cases alone; None where nobody asked."""


def compare(a: Side, b: Side, *, groups: Mapping[str, str] | None = None) -> Comparison:
    """Compare run B with run A; with `groups` (trial → group), also the scores of each group by itself."""
    ours, theirs = a.trials, b.trials
    both = [name for name in ours if name in theirs]
    common = [name for name in both if ours[name].fingerprint == theirs[name].fingerprint]
    if not common:
        raise NothingInCommon(
            f"the two runs have no trial in common: {plural(len(ours) - len(both), 'trial')} only in the first, "
            f"{len(theirs) - len(both):,} only in the second, {len(both):,} with the same name and other content"
        )
    done = [name for name in common if ours[name].stage in DONE and theirs[name].stage in DONE]
    scorers = [scorer for scorer in {**a.state.scores, **b.state.scores} if a.has(scorer) and b.has(scorer)]
    kinds: dict[str, list[Change]] = {"fixed": [], "broke": [], "changed": []}
    for name in done:
        is_other = a.outputs.get(name) != b.outputs.get(name)
        kind, change = _change(name, ours[name], theirs[name], scorers, is_other=is_other)
        if kind != "same":
            kinds[kind].append(change)
    matched = set(common)
    pairing = _Pairing(common, ours, theirs, scorers)
    return Comparison(
        trials_a=len(ours),
        trials_b=len(theirs),
        common=len(common),
        compared=len(done),
        open=len(common) - len(done),
        same=len(done) - sum(map(len, kinds.values())),
        fixed=kinds["fixed"],
        broke=kinds["broke"],
        changed=kinds["changed"],
        slower=_slower(common, ours, theirs),
        only_a=[name for name in ours if name not in theirs],
        only_b=[name for name in theirs if name not in ours],
        different=[name for name in both if name not in matched],
        is_same_task=_task(a) == _task(b),
        scorers_only_a=[scorer for scorer in a.state.scores if not b.has(scorer)],
        scorers_only_b=[scorer for scorer in b.state.scores if not a.has(scorer)],
        scores=pairing.scores(pairing.cases),
        latency=pairing.latency(),
        groups=None if groups is None else pairing.grouped(groups),
    )


def _task(side: Side) -> str | None:
    return side.state.started.task_fingerprint if side.state.started else None


def _change(name: str, a: TrialState, b: TrialState, scorers: Iterable[str], *, is_other: bool) -> tuple[str, Change]:
    """Say what is different about a trial, and which of the four it is: the same, fixed, broke, or changed."""
    differing: dict[str, tuple[Value | None, Value | None]] = {}
    for scorer in scorers:
        before, after = _said(a, scorer), _said(b, scorer)
        if before != after:
            differing[scorer] = before, after
    change = Change(name, a.stage, b.stage, differing, is_other and a.answer is not None and b.answer is not None)
    ends = a.stage, b.stage
    if ends == ("completed", "failed") or any(was is True and now is False for was, now in differing.values()):
        return "broke", change
    if any(was is False and now is True for was, now in differing.values()):
        return "fixed", change
    if ends == ("failed", "completed"):
        return "changed" if any(now is False for _, now in differing.values()) else "fixed", change
    is_same = not (differing or change.output) and (a.stage == "completed" or _error(a) == _error(b))
    return "same" if is_same else "changed", change


def _error(trial: TrialState) -> str:
    """Tell an error without what is another in every process: `<object at 0x7f3a…>`."""
    return _ADDRESS.sub("at 0x…", trial.error)


def _said(trial: TrialState, scorer: str) -> Value | None:
    said = (trial.scores or {}).get(scorer)
    return None if said is None else said[1]


def _slower(common: Iterable[str], a: Mapping[str, TrialState], b: Mapping[str, TrialState]) -> list[Slower]:
    found = (Slower(name, a[name].elapsed, b[name].elapsed) for name in common if a[name].answer and b[name].answer)
    much = (each for each in found if each.b >= SLOWER * each.a and each.b - each.a >= SLOWER_BY)
    return sorted(much, key=lambda each: each.a - each.b)


_Pair = tuple[list[TrialState], list[TrialState]]
"""The trials of one case in A, and in B; a run may have asked it more often than the other."""


class _Pairing:
    """The cases that both runs have, each with its trials in either."""

    def __init__(
        self,
        common: Iterable[str],
        a: Mapping[str, TrialState],
        b: Mapping[str, TrialState],
        scorers: Sequence[str],
    ) -> None:
        self._common = {name: a[name].case for name in common}
        self._a, self._b = a, b
        self._scorers = scorers
        self.cases: dict[str, _Pair] = {}
        content = {case: a[name].fingerprint for name, case in self._common.items()}
        for case in content:
            self.cases[case] = [], []
        for at, trials in enumerate((a, b)):
            for trial in trials.values():
                if content.get(trial.case) == trial.fingerprint:
                    self.cases[trial.case][at].append(trial)

    def scores(self, cases: Mapping[str, _Pair]) -> dict[str, Paired]:
        """Compare what every scorer that both runs have said of these cases."""
        return {scorer: self._score(scorer, cases) for scorer in self._scorers}

    def grouped(self, groups: Mapping[str, str]) -> dict[str, dict[str, Paired]]:
        """Do so for each group by itself; what is the same case has the same metadata."""
        parts: dict[str, dict[str, _Pair]] = {}
        for name, case in self._common.items():
            if name in groups:
                parts.setdefault(groups[name], {})[case] = self.cases[case]
        return {label: self.scores(cases) for label, cases in sorted(parts.items())}

    def latency(self) -> Paired:
        """Compare how long the answers took."""
        a, b = array("d"), array("d")
        for pair in self.cases.values():
            times = [[trial.elapsed for trial in trials if trial.answer is not None] for trials in pair]
            if times[0] and times[1]:
                a.append(sum(times[0]) / len(times[0]))
                b.append(sum(times[1]) / len(times[1]))
        return _paired("number", a, b, of=len(self.cases), is_other_version=False)

    def _score(self, scorer: str, cases: Mapping[str, _Pair]) -> Paired:
        a, b = array("d"), array("d")
        versions: tuple[set[str], set[str]] = set(), set()
        kinds: set[type] = set()
        is_share = True
        for pair in cases.values():
            said = [[trial.scores[scorer] for trial in trials if trial.scores and scorer in trial.scores] for trials in pair]
            for known, values in zip(versions, said, strict=True):
                known.update(version for version, _ in values)
            numbers = [[value for _, value in values if can_be_summed(value)] for values in said]
            if numbers[0] and numbers[1]:
                kinds.update(map(type, (*numbers[0], *numbers[1])))
                is_share = is_share and all(value in (0, 1) for value in (*numbers[0], *numbers[1]))
                a.append(sum(numbers[0]) / len(numbers[0]))
                b.append(sum(numbers[1]) / len(numbers[1]))
        is_other = versions[0] != versions[1]
        if not a and (labels := self._labels(scorer, cases, is_other_version=is_other)).n:
            return labels
        kind: Literal["pass", "number"] = "pass" if kinds == {bool} else "number"
        return _paired(kind, a, b, of=len(cases), is_other_version=is_other, is_share=is_share)

    def _labels(self, scorer: str, cases: Mapping[str, _Pair], *, is_other_version: bool) -> Paired:
        """Compare labels trial by trial: they have no mean in which the repeats of a case could be taken together."""
        names = [name for name, case in self._common.items() if case in cases]
        pairs = [(_said(self._a[name], scorer), _said(self._b[name], scorer)) for name in names]
        both = [(was, now) for was, now in pairs if isinstance(was, str) and isinstance(now, str)]
        other = sum(was != now for was, now in both)
        missing = len(names) - len(both)
        return Paired(kind="label", n=len(both), missing=missing, other=other, is_other_version=is_other_version)


def _paired(
    kind: Literal["pass", "number"],
    a: "array[float]",
    b: "array[float]",
    *,
    of: int,
    is_other_version: bool,
    is_share: bool = False,
) -> Paired:
    differences = [after - before for before, after in zip(a, b, strict=True)]
    n = len(differences)
    found: Estimate | None = None
    if n:
        found = paired_shares(differences) if is_share else paired_numbers(differences)
    low, high = (found.low, found.high) if found else (None, None)
    return Paired(
        kind=kind,
        n=n,
        missing=of - n,
        other=sum(each != 0 for each in differences),
        higher=sum(each > 0 for each in differences),
        lower=sum(each < 0 for each in differences),
        a=sum(a) / n if n else None,
        b=sum(b) / n if n else None,
        difference=found.mean if found else None,
        standard_error=found.standard_error if found else None,
        low=low,
        high=high,
        is_distinguishable=low is not None and high is not None and (low > 0 or high < 0),
        is_other_version=is_other_version,
    )


def in_json(comparison: Comparison) -> dict[str, Any]:
    """Say a comparison in values that JSON has, under names that stay."""
    return attrs.asdict(comparison)
