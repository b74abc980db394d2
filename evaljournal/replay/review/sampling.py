"""Which outputs are labeled: a random sample that anyone can compute again from its seed and the records.

The random order is that of the SHA-256 of seed and trial, so it does not depend on a random number generator.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

from evaljournal.replay.results.pairing import score
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


Stratum = Callable[[str], Hashable]
_Trials = Mapping[str, TrialState]


def _stratified(trials: _Trials, names: Sequence[str], name: str) -> Stratum:
    """One stratum for each score, or each quarter of the numbers; rare labels are one stratum."""
    values = {trial: score(trials[trial], name) for trial in names}
    numbers = sorted(value for value in values.values() if isinstance(value, int | float) and not isinstance(value, bool))
    bounds = [numbers[len(numbers) * quarter // _STRATA] for quarter in range(1, _STRATA)] if numbers else []
    common_values = {value for value, _ in Counter(values.values()).most_common(_STRATA)}

    def stratum(trial: str) -> Hashable:
        value = values[trial]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return sum(value >= bound for bound in bounds)
        return repr(value) if value in common_values else ""

    return stratum


def _disagreements(trials: _Trials, names: Sequence[str], name: str, labels: Mapping[str, Sequence[Label]]) -> Stratum:
    """Two strata: outputs with a contradiction between scorers that pass or fail, repeats or labels, and all others."""
    repeats: defaultdict[tuple[str, str], set[Value | None]] = defaultdict(set)
    for trial in names:
        repeats[trials[trial].case, trials[trial].variant].add(score(trials[trial], name))

    def disagrees(trial: str) -> bool:
        state = trials[trial]
        verdicts = {value for _, value in state.scores.values() if isinstance(value, bool)}
        answers = {label.value for label in labels.get(trial, ()) if label.name == name}
        own_score = score(state, name)
        if answers and own_score is not None:
            answers.add(own_score)
        return max(len(verdicts), len(answers), len(repeats[state.case, state.variant])) > 1

    return disagrees


def draw_sample(
    run: LoadedRun, labels: Iterable[Label], *, name: str, method: str, n: int, seed: int
) -> tuple[int, dict[str, float]]:
    """Draw from the outputs of a run, given the labels of its review.

    Return the size of the population, and the drawn trials in the order in which they are labeled, each with the probability
    that it was drawn. Every stratum gets the same number; of a small one, all are drawn, and the others get more. So every
    output has a positive probability, unless there are more strata than outputs to draw: then there is only one.
    """
    trials = run.state.trials
    names = sorted(population(trials, name), key=lambda trial: hashlib.sha256(f"{seed}\n{trial}".encode()).digest())
    stratum: Stratum | None = None  # All outputs are one stratum.
    if method == "stratified":
        stratum = _stratified(trials, names, name)
    elif method == "disagreements":
        stratum = _disagreements(trials, names, name, labels_of_outputs(run, labels))
    strata: defaultdict[Hashable, list[str]] = defaultdict(list)
    for trial in names:
        strata[stratum and stratum(trial)].append(trial)
    probabilities: dict[str, float] = {}
    groups = sorted(strata.values(), key=len) if len(strata) <= n else [names]
    for number, group in enumerate(groups):
        size = min(len(group), (n - len(probabilities)) // (len(groups) - number))
        probabilities |= dict.fromkeys(group[:size], size / len(group))
    return len(names), {trial: probabilities[trial] for trial in names if trial in probabilities}
