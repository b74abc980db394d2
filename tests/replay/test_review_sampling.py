"""Samples for a review: random, reproducible, with the probabilities that they state."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evaljournal.journal.events import TrialScored
from evaljournal.replay import LoadedRun, load
from evaljournal.replay.review.labels import METHODS, Method, draw_sample
from tests.journal.samples import enqueued, session, started, trial, write_sync


def write_run(path: Path, scores: dict[str, list[Any]]) -> LoadedRun:
    """Write a run with one trial for each element of these scores by scorer, and load it."""
    events: list[Any] = [started(), session()]
    for number in range(len(next(iter(scores.values())))):
        name = f"t{number}"
        *opening, _, completed = trial(name)
        score: dict[str, Any] = {"trial": name, "version": "v1", "elapsed": 0.1}
        scored = [TrialScored(scorer=scorer, value=values[number], **score) for scorer, values in scores.items()]
        events += [*opening, *scored, completed]
    write_sync(path, [*events, enqueued("open")], confirm=False)
    return load(path)


def sample(run: LoadedRun, n: int, method: Method = "uniform", seed: int = 1, name: str = "judge") -> dict[str, float]:
    """Draw a sample."""
    return draw_sample(run, (), name=name, method=method, n=n, seed=seed)[1]


def test_a_sample_is_the_same_everywhere(tmp_path: Path) -> None:
    """The order is that of the SHA-256 of seed and trial; trials without an output are not drawn."""
    run = write_run(tmp_path / "run", {"judge": [True] * 6})

    assert ["t2", "t3", "t5"] == list(sample(run, 3))
    assert ["t2", "t3", "t5", "t1", "t0", "t4"] == list(sample(run, 100))
    assert ["t5", "t1", "t4"] == list(sample(run, 3, seed=2))


@pytest.mark.parametrize("method", METHODS)
def test_the_probabilities_are_those_of_the_draw(tmp_path: Path, method: Method) -> None:
    """Over 3,000 seeds, each output is drawn as often as its probability states, and never with probability 0."""
    scores = [number % 5 != 0 for number in range(20)]
    run, seeds = write_run(tmp_path / "run", {"judge": scores, "exact": [True] * 20}), range(3_000)
    draws = [sample(run, 6, method, seed) for seed in seeds]
    counts = Counter(trial for draw in draws for trial in draw)
    probabilities = {trial: draw[trial] for draw in draws for trial in draw}

    assert 20 == len(counts)
    assert {6} == {len(draw) for draw in draws}
    assert all(abs(counts[trial] / len(seeds) - probabilities[trial]) < 0.04 for trial in counts)
    assert (1 if method == "uniform" else 2) == len(set(probabilities.values()))


def test_strata_have_equal_sizes(tmp_path: Path) -> None:
    """A stratified sample has as many failing as passing outputs; if there are fewer, it has all of them."""
    run = write_run(tmp_path / "run", {"judge": [number < 3 for number in range(40)]})

    assert {True: 2, False: 2} == Counter(int(name[1:]) < 3 for name in sample(run, 4, "stratified"))
    assert {True: 3, False: 17} == Counter(int(name[1:]) < 3 for name in sample(run, 20, "stratified"))


def test_numbers_are_stratified_by_quarter(tmp_path: Path) -> None:
    """Of numbers, each quarter gets the same share."""
    run = write_run(tmp_path / "run", {"judge": [number / 40 for number in range(40)]})

    assert {0: 3, 1: 3, 2: 3, 3: 3} == Counter(int(name[1:]) // 10 for name in sample(run, 12, "stratified"))


def test_rare_labels_are_one_stratum(tmp_path: Path) -> None:
    """The four most frequent labels are strata, and all others together, so that every output can be drawn."""
    run = write_run(tmp_path / "run", {"judge": [*"aaaabbbbccccdddd", *"efghijk"]})

    assert Counter({"a": 2, "b": 2, "c": 2, "d": 2, "-": 2}) == Counter(
        "aaaabbbbccccdddd-------"[int(name[1:])] for name in sample(run, 10, "stratified")
    )


def test_contradicting_scores_are_half_of_the_sample(tmp_path: Path) -> None:
    """Half of the outputs, or as many as there are, have scores that contradict each other."""
    run = write_run(tmp_path / "run", {"judge": [True] * 20, "exact": [number > 2 for number in range(20)]})

    assert {True: 2, False: 2} == Counter(int(name[1:]) <= 2 for name in sample(run, 4, "disagreements"))


def test_without_a_score_all_outputs_can_be_drawn(tmp_path: Path) -> None:
    """A question that no scorer answers is drawn from all outputs; one that a scorer answers, from the scored ones."""
    run = write_run(tmp_path / "run", {"judge": [True] * 5})

    assert (5, 5) == (len(sample(run, 9, name="tone")), len(sample(run, 9)))
