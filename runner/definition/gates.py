"""Gates: minimum scores of a run, such as `exact=0.9`, or `exact>=0.9@lower` for the lower end of the confidence interval."""

import re
from collections.abc import Iterable
from typing import Final, Literal, Self

import attrs

from evaljournal.replay import RunState
from evaljournal.replay.results.summary import score_of
from evaljournal.replay.state.scores import Scores
from evaljournal.replay.text import plural, printable
from evaljournal.runner.errors import InvalidSetting, UsageError
from evaljournal.runner.suggest import suggest

_GATE: Final = re.compile(
    r"\s*+(?P<scorer>\w[\w.-]*+)\s*+(?:>=|=)\s*+(?P<minimum>-?(?:\d++(?:\.\d++)?|\.\d++))"
    r"\s*+(?P<percent>%?)\s*+(?:@\s*+(?P<bound>mean|lower))?\s*+"
)
"""The pattern does not backtrack, because an untrusted run may contain a gate of any length."""


@attrs.frozen
class Gate:
    """The minimum of a scorer's mean, or of the lower end of its 95 % confidence interval, in each variant."""

    text: str
    scorer: str
    minimum: float
    bound: Literal["mean", "lower"]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a gate."""
        match = _GATE.fullmatch(text)
        if match is None:
            raise UsageError("expected SCORER=NUMBER: exact=0.9, or 'exact>=0.9@lower'", setting="fail_under", value=text)
        minimum = float(match["minimum"]) / (100 if match["percent"] else 1)
        return cls(text, match["scorer"], minimum, "lower" if match["bound"] == "lower" else "mean")

    def problem(self, state: RunState) -> str:
        """Return why the gate did not pass; empty if it passed. Every variant must reach it."""
        variants = {f"variant {name}: ": state.variants[name].scores for name in state.variants.names}
        reasons = {prefix: self._reason(scores) for prefix, scores in (variants or {"": state.scores}).items()}
        problems = [f"{printable(prefix)}{reason}" for prefix, reason in reasons.items() if reason]
        return f"{self.text}: {'; '.join(problems)}" if problems else ""

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
        return f"{'the lower end' if self.bound == 'lower' else 'the mean'} of {self.scorer} is {value:.4g}"


@attrs.frozen
class GateResult:
    """The result of a gate in a run."""

    gate: str
    """The gate as it was written, such as `exact=0.9`."""
    problem: str
    """Why it did not pass; empty if it did."""

    @property
    def passed(self) -> bool:
        """Whether it passed."""
        return not self.problem


def gate_results(state: RunState) -> list[GateResult]:
    """Return the result of each gate of a run; raise `InvalidSetting` if a recorded one is invalid.

    The gates of a shard are checked in the merged run.
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
    return [GateResult(gate.text, gate.problem(state)) for gate in gates]


def gate_problems(state: RunState) -> list[str]:
    """Return a line for each gate that did not pass."""
    return [f"gate did not pass: {result.problem}" for result in gate_results(state) if not result.passed]


def problems(state: RunState, scorers: Iterable[str] = ()) -> list[str]:
    """Return why a finished run did not pass: errors, unscored outputs, and gates that did not pass.

    Only the run's own scorers and `scorers` count: another scorer that failed in a `rescore` is ignored.
    """
    scorer_names = {*(state.started.scorers if state.started else ()), *scorers}
    unscored_outputs = {name: tally.failed for name, tally in state.scores.items() if name.partition(".")[0] in scorer_names}
    return [
        *([f"{plural(state.failed, 'trial')} with an error"] if state.failed else ()),
        *(f"{plural(count, 'output')} not scored by {name}" for name, count in unscored_outputs.items() if count),
        *gate_problems(state),
    ]


def check_gates(gates: Iterable[str], scorers: Iterable[str]) -> None:
    """Reject a gate on a score of an unknown scorer."""
    names = list(scorers)
    for gate in gates:
        name = Gate.parse(gate).scorer
        if name.partition(".")[0] not in {scorer.partition(".")[0] for scorer in names}:
            raise UsageError(f"no scorer {name!r}{suggest(name, names)}", setting="fail_under", value=gate)
