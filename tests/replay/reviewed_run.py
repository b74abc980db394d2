"""Runs with a judge and human labels, written to disk."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaljournal.journal import Event, verify
from evaljournal.journal.events import Annotated, ReviewSampled, ReviewStarted
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.format.blobs import digest
from tests.journal.samples import finished, session, started, write_sync
from tests.replay.trial_events import answered, name_of

RUN = "1" * 32


def annotation(trial: str, value: Any, *, output: Any, reviewer: str = "ada", **fields: Any) -> Annotated:
    """Return a label of an output of the trial of a case."""
    case = trial.partition("@")[0].partition("#")[0]
    label = {"case": case, "fingerprint": f"f-{case}", "output": digest(output), "name": "judge", **fields}
    return Annotated(trial=trial, value=value, reviewer=reviewer, **label)


def sampled(
    probabilities: Mapping[str, float],
    *,
    sample: int = 1,
    method: Any = "uniform",
    name: str = "judge",
    population: int = 2_000,
) -> ReviewSampled:
    """Return a sample of trials."""
    head = "0123456789abcdef0123456789abcdef"
    trials = dict(probabilities)
    return ReviewSampled(
        sample=sample, name=name, method=method, n=len(trials), seed=1, head=head, population=population, trials=trials
    )


def write_review(run: Path, events: Iterable[Event]) -> None:
    """Write the review of a run."""
    start = ReviewStarted(run=RUN, head=verify(run).head, evaluation="capitals")
    write_sync(run / "review", [start, *events], confirm=False, run="2" * 32)


def write_run(
    path: Path, scores: Sequence[Any], *, variant: str = "", repeats: int = 1, output: str = "", gates: Sequence[str] = ()
) -> list[str]:
    """Write a run with these scores of a judge, `repeats` of them per case, and gates; return the names of its trials."""
    trials = [(f"c{index // repeats}", index % repeats + 1, score) for index, score in enumerate(scores)]
    events = [
        event
        for case, repeat, score in trials
        for event in answered(case, {"judge": score}, repeat=repeat, variant=variant, output=output or f"out {case} {repeat}")
    ]
    start = evolve_fact(started(), scorers={"judge": "v1"})
    if gates:
        start = evolve_fact(start, settings={**start.settings, "fail_under": list(gates)})
    write_sync(path, [start, session(), *events, finished(len(trials))], confirm=False, run=RUN)
    return [name_of(case, repeat, variant) for case, repeat, _ in trials]


def write_reviewed_run(
    path: Path, table: Sequence[int], unlabeled: tuple[int, int] = (300, 100), *, gates: Sequence[str] = (), **sample: Any
) -> list[str]:
    """Write a run of which a uniform sample has labels.

    `table` has the numbers of true passes, false fails, false passes and true fails; `unlabeled` those of passes and fails of
    the judge without a label. Return the names of the trials with a label.
    """
    pairs = [pair for pair, count in zip([(1, 1), (0, 1), (1, 0), (0, 0)], table, strict=True) for _ in range(count)]
    names = write_run(path, [bool(judge) for judge, _ in pairs] + [True] * unlabeled[0] + [False] * unlabeled[1], gates=gates)
    labeled = names[: len(pairs)]
    labels = [
        annotation(trial, bool(label), output=f"out {trial} 1", sample=1)
        for trial, (_, label) in zip(labeled, pairs, strict=True)
    ]
    probability = len(pairs) / len(names)
    write_review(path, [sampled(dict.fromkeys(labeled, probability), **sample), *labels])
    return labeled
