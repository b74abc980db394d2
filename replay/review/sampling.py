"""Which outputs are labeled: a random sample that anyone can compute again from its seed and the records.

The random order is that of the SHA-256 of seed and trial, so it does not depend on a random number generator.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

from evaljournal.replay.review.labels import Label, has_output, labels_of_outputs
from evaljournal.replay.runs.loaded_run import LoadedRun
from evaljournal.replay.state.trial import TrialState, Value

Method = Literal["uniform", "stratified", "disagreements"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)
_STRATA: Final = 4
"""Strata of numbers, and of labels without the rare ones."""


def population(trials: Mapping[str, TrialState], name: str) -> list[str]:
    """Return the trials that can be drawn: those with an output, and with a score of this name if there are any."""
    outputs = [trial for trial, state in trials.items() if has_output(state) and not state.is_excluded]
    return [trial for trial in outputs if trials[trial].score(name) is not None] or outputs


def draw(
    trials: Mapping[str, TrialState], labels: Mapping[str, Sequence[Label]], *, name: str, method: str, n: int, seed: int
) -> dict[str, float]:
    """Return the drawn trials in the order in which they are labeled, each with the probability that it was drawn.

    Every stratum gets the same number; of a small one, all are drawn, and the others get more. So every output has a positive
    probability, unless there are more strata than outputs to draw: then there is only one.
    """
    names = sorted(population(trials, name), key=lambda trial: hashlib.sha256(f"{seed}\n{trial}".encode()).digest())
    strata: defaultdict[Hashable, list[str]] = defaultdict(list)
    stratum = _STRATUM[method](trials, labels, names, name)
    for trial in names:
        strata[stratum(trial)].append(trial)
    probabilities: dict[str, float] = {}
    groups = sorted(strata.values(), key=len) if len(strata) <= n else [names]
    for number, group in enumerate(groups):
        size = min(len(group), (n - len(probabilities)) // (len(groups) - number))
        probabilities |= dict.fromkeys(group[:size], size / len(group))
    return {trial: probabilities[trial] for trial in names if trial in probabilities}


Stratum = Callable[[str], Hashable]
_Trials = Mapping[str, TrialState]
_Labels = Mapping[str, Sequence[Label]]


def _value(trial: TrialState, name: str) -> Value | None:
    score = trial.score(name)
    return None if score is None else score[1]


def _uniform(*_: object) -> Stratum:
    return lambda _: None


def _stratified(trials: _Trials, _: _Labels, names: Sequence[str], name: str) -> Stratum:
    """One stratum for each score, or each quarter of the numbers; rare labels are one stratum."""
    values = {trial: _value(trials[trial], name) for trial in names}
    numbers = sorted(value for value in values.values() if isinstance(value, int | float) and not isinstance(value, bool))
    bounds = [numbers[len(numbers) * quarter // _STRATA] for quarter in range(1, _STRATA)] if numbers else []
    common_values = {value for value, _ in Counter(values.values()).most_common(_STRATA)}

    def stratum(trial: str) -> Hashable:
        value = values[trial]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return sum(value >= bound for bound in bounds)
        return repr(value) if value in common_values else ""

    return stratum


def _disagreements(trials: _Trials, labels: _Labels, names: Sequence[str], name: str) -> Stratum:
    """Two strata: outputs with a contradiction between scorers that pass or fail, repeats or labels, and all others."""
    repeats: defaultdict[tuple[str, str], set[Value | None]] = defaultdict(set)
    for trial in names:
        repeats[trials[trial].case, trials[trial].variant].add(_value(trials[trial], name))

    def disagrees(trial: str) -> bool:
        state = trials[trial]
        verdicts = {value for _, value in state.scores.values() if isinstance(value, bool)}
        answers = {label.value for label in labels.get(trial, ()) if label.name == name}
        score = _value(state, name)
        if answers and score is not None:
            answers.add(score)
        return max(len(verdicts), len(answers), len(repeats[state.case, state.variant])) > 1

    return disagrees


_STRATUM: Final[Mapping[str, Callable[..., Stratum]]] = {
    "uniform": _uniform,
    "stratified": _stratified,
    "disagreements": _disagreements,
}


def draw_sample(
    run: LoadedRun, labels: Iterable[Label], *, name: str, method: str, n: int, seed: int
) -> tuple[int, dict[str, float]]:
    """Draw from the outputs of a run, given the labels of its review; return the size of the population, and the sample."""
    trials = run.state.trials
    by_trial = labels_of_outputs(run, labels) if method == "disagreements" else {}
    return len(population(trials, name)), draw(trials, by_trial, name=name, method=method, n=n, seed=seed)
