"""Gates: minimum scores of a run, such as `exact=0.9`, or `exact>=0.9@lower` for the lower end of the confidence interval.

`agreement:judge>=0.7@lower` and `corrected:judge>=0.9@lower` are about the review of a run: how well its judge agrees with
human labels, and the corrected score. They are undecided without enough labels of a random sample.
"""

import re
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

import attrs

from evaljournal.replay import LoadedRun, RunState
from evaljournal.replay.results.summary import score_of
from evaljournal.replay.state.scores import Scores
from evaljournal.replay.state.tally import Tally
from evaljournal.replay.text import plural, printable
from evaljournal.runner.errors import InvalidSetting, UsageError, suggest

if TYPE_CHECKING:
    from evaljournal.replay.results.comparison import Side
    from evaljournal.replay.review.reviewed import Reviewed

_GATE: Final = re.compile(
    r"\s*+(?:(?P<figure>agreement|corrected)\s*+:\s*+)?(?P<scorer>\w[\w.-]*+)\s*+(?:>=|=)\s*+(?P<minimum>-?(?:\d++(?:\.\d++)?|\.\d++))"
    r"\s*+(?P<percent>%?)\s*+(?:@\s*+(?P<bound>mean|lower))?\s*+"
)
"""The pattern does not backtrack, because an untrusted run may contain a gate of any length."""


@attrs.frozen
class Gate:
    """The minimum of a scorer's mean, of the lower end of its 95 % confidence interval, or of its review, in each variant."""

    text: str
    scorer: str
    minimum: float
    bound: Literal["mean", "lower"]
    figure: str = ""
    """`agreement` or `corrected`: of the review; empty: of the scores."""

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _GATE.fullmatch(text)
        if match is None:
            raise UsageError("expected SCORER=NUMBER: exact=0.9, or 'exact>=0.9@lower'", setting="fail_under", value=text)
        minimum = float(match["minimum"]) / (100 if match["percent"] else 1)
        return cls(text, match["scorer"], minimum, "lower" if match["bound"] == "lower" else "mean", match["figure"] or "")

    def is_share(self, tally: Tally | None) -> bool:
        """Return whether the figure is at most 1: a pass rate, or an agreement."""
        return self.figure == "agreement" or (tally is not None and tally.kind == "pass")

    def as_share(self) -> str:
        """Return the minimum that was probably meant if it was written in percent: `; did you mean 0.9?`."""
        return f"; did you mean {self.minimum / 100:g}?" if self.minimum <= 100 else ""  # noqa: PLR2004 - percent

    def result(self, state: RunState, path: Path | None = None, variant: str | None = None) -> "GateResult":
        """Return whether the gate passes, in every variant or in one; one about a review is undecided without `path`."""
        from evaljournal.replay.results.comparison import Side  # noqa: PLC0415  # most runs have no gates

        reviewed = self._review(state, path) if self.figure else None
        reasons: dict[str, tuple[str, bool]] = {}
        names: Sequence[str | None] = state.variants.names if variant is None else [variant]
        for name in names or [None]:
            side = Side(state, variant=name)
            reason = self._review_reason(reviewed, side) if self.figure else (self._reason(side.totals.scores), False)
            reasons["" if name is None else f"variant {name}: "] = reason

        problems = {prefix: reason for prefix, reason in reasons.items() if reason[0]}
        text = "; ".join(f"{printable(prefix)}{reason}" for prefix, (reason, _) in problems.items())
        is_undecided = bool(problems) and all(undecided for _, undecided in problems.values())
        return GateResult(self.text, f"{self.text}: {text}" if problems else "", is_undecided)

    def _review(self, state: RunState, path: Path | None) -> "Reviewed | None":
        from evaljournal.replay.review.reviewed import open_review  # noqa: PLC0415  # most gates need no review

        return None if path is None else open_review(LoadedRun(path, state, seq=state.seq))

    def _review_reason(self, reviewed: "Reviewed | None", side: "Side") -> tuple[str, bool]:
        """Return why the review does not reach the minimum, and whether it is undecided; empty if it does."""
        from evaljournal.replay.review.correction import MIN_LABELS  # noqa: PLC0415  # most gates need no review
        from evaljournal.replay.review.reviewed import agreement  # noqa: PLC0415
        from evaljournal.replay.review.text import samples_text  # noqa: PLC0415

        tally = side.totals.scores.get(self.scorer)
        if self.figure == "corrected" and tally is not None and tally.kind == "label":
            return f"the scores of {self.scorer} are labels, which have no mean", False
        if reviewed is None or self.scorer not in reviewed.names:
            return f"there are no labels of {self.scorer} yet; draw a sample with `evaljournal review`", True

        score = reviewed.corrected(side).get(self.scorer)
        if self.figure == "agreement":
            result = agreement(reviewed, side, self.scorer)
            name, labels, figures = f"the agreement of {self.scorer}", result.labels if result.is_sampled else 0, None
            if result.coefficient is not None:
                figures = attrs.astuple(result.coefficient)
        elif score is not None:
            name = f"the corrected {self.scorer}" if score.method == "ppi" else f"the mean of the labels of {self.scorer}"
            labels, figures = score.labels, (score.mean, score.low, score.high)
        else:
            return f"the labels of {self.scorer} are texts, which have no mean", False

        if labels < MIN_LABELS:
            samples = f": {samples_text(score)}" if score is not None and score.samples else ""
            return f"{plural(labels, 'label')} of a random sample; at least {MIN_LABELS} are needed{samples}", True
        return self._figure_reason(name, *(figures or (None, None, None)))

    def _figure_reason(self, name: str, value: float | None, low: float | None, high: float | None) -> tuple[str, bool]:
        """Return why a figure of the review does not reach the minimum, and whether it is undecided; empty if it does."""
        if self.bound == "mean":
            is_passed = value is not None and value >= self.minimum
            return ("", False) if is_passed else (f"{name} is {_number(value)}", value is None)
        if low is not None and low >= self.minimum:
            return "", False
        is_undecided = high is None or high >= self.minimum
        more = "; more labels would decide" if is_undecided else ""
        return f"the 95 % interval of {name} is {_number(low)} to {_number(high)}{more}", is_undecided

    def _reason(self, scores: Scores) -> str:
        """Return why these scores do not reach the minimum; empty if they do."""
        tally = scores.get(self.scorer)
        if tally is None:
            return f"there is no score {self.scorer!r}"

        score = score_of(tally)
        value = score.mean if self.bound == "mean" else score.low
        if value is None:
            problem = "has too few values for a confidence interval"
            if score.mean is None:
                problem = "has no mean"
            elif score.standard_error == 0:
                mean = f"{score.mean:.4g}"
                problem = f"is {mean} for every case, which gives no confidence interval; omit @lower, or score from 0 to 1"
            return f"{self.scorer} {problem}"

        if value >= self.minimum:
            return ""

        maximum = f", and at most 1{self.as_share()}" if self.minimum > 1 and self.is_share(tally) else ""
        return f"{'the lower end' if self.bound == 'lower' else 'the mean'} of {self.scorer} is {value:.4g}{maximum}"


@attrs.frozen
class GateResult:
    gate: str
    """The gate as it was written, such as `exact=0.9`."""
    problem: str
    """Why it did not pass; empty if it did."""
    is_undecided: bool = False
    """Whether it did not pass because the labels of a review are too few to decide."""

    @property
    def passed(self) -> bool:
        return not self.problem


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def gate_results(state: RunState, path: Path | None = None) -> list[GateResult]:
    """Return the result of each gate of a run; raise `InvalidSetting` if a recorded one is invalid.

    The gates of a shard are checked in the merged run. Those about a review need the path of the run.
    """
    if state.started is not None and state.started.shard:
        return []

    texts = state.settings.get("fail_under") or []
    if not isinstance(texts, list):
        raise InvalidSetting(f"fail_under={texts!r:.80}: expected a list")
    try:
        gates = [Gate.parse(str(text)) for text in texts]
    except UsageError as exc:
        raise InvalidSetting(exc) from exc
    return [gate.result(state, path) for gate in gates]


def gate_problems(state: RunState, path: Path | None = None) -> list[str]:
    """Return a line for each gate that did not pass."""
    return [
        f"gate {'is undecided' if result.is_undecided else 'did not pass'}: {result.problem}"
        for result in gate_results(state, path)
        if not result.passed
    ]


def problems(state: RunState, path: Path | None = None) -> list[str]:
    """Return why a finished run did not pass: errors, unscored outputs, and gates that did not pass."""
    return [*trial_problems(state), *gate_problems(state, path)]


def trial_problems(state: RunState, scorers: Iterable[str] = (), variant: str | None = None) -> list[str]:
    """Return what did not pass apart from gates, in all variants or in one: errors and unscored outputs.

    Only the run's own scorers and `scorers` count: another scorer that failed in a `rescore` is ignored.
    """
    totals = state.totals if variant is None else state.variants[variant]
    scorer_names = {*(state.started.scorers if state.started else ()), *scorers}
    unscored_outputs = {name: tally.failed for name, tally in totals.scores.items() if name.partition(".")[0] in scorer_names}
    failed = totals.stages["failed"]
    return [
        *([f"{plural(failed, 'trial')} with an error"] if failed else ()),
        *(f"{plural(count, 'output')} not scored by {name}" for name, count in unscored_outputs.items() if count),
    ]


def check_gates(
    gates: Iterable[str], scorers: Iterable[str], scores: Scores | None = None, *, shares: Container[str] = ()
) -> None:
    """Reject a gate on a score of an unknown scorer, on the corrected score of one that gives labels, or above the maximum.

    The scores of `shares` are at most 1, as are pass rates and agreements.
    """
    names = list(scorers)
    for gate in gates:
        parsed_gate = Gate.parse(gate)
        name, tally = parsed_gate.scorer, None if scores is None else scores.get(parsed_gate.scorer)
        if parsed_gate.figure == "corrected" and tally is not None and tally.kind == "label":
            raise UsageError(f"the scores of {name} are labels, which have no mean", setting="fail_under", value=gate)
        if parsed_gate.minimum > 1 and (parsed_gate.is_share(tally) or name in shares):
            raise UsageError(f"{name} is at most 1{parsed_gate.as_share()}", setting="fail_under", value=gate)
        if name.partition(".")[0] not in {scorer.partition(".")[0] for scorer in names}:
            raise UsageError(f"no scorer {name!r}{suggest(name, names)}", setting="fail_under", value=gate)
