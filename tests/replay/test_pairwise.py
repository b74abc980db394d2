"""Results of pairwise judges, computed from recorded verdicts."""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from evaljournal.journal.events import Noted
from evaljournal.replay import RunState
from evaljournal.replay.render.phrases import ranking_lines
from evaljournal.replay.results.pairwise import combine, pairwise_summaries, rankings
from evaljournal.replay.state.scorer_calls import PAIRWISE
from evaljournal.replay.statistics import mcnemar
from tests.replay.trial_events import answered, run_state

NOTE: dict[str, Any] = {
    "scorer": "judge",
    "orders": ["judge-first", "judge-second"],
    "versions": {"judge": "v1", "judge-first": "v1", "judge-second": "v1"},
    "judge": {"model": "m", "version": "1"},
    "run": "b",
    "path": "runs/b",
    "against": {"run": "a", "path": "runs/a", "variant": "", "head": "h"},
}
ORDERS = {"win": ("win", "win"), "loss": ("loss", "loss"), "tie": ("tie", "tie"), "flip": ("win", "loss")}


def judged(verdicts: Iterable[tuple[str, int, str]], note: Mapping[str, Any] = NOTE, variant: str = "") -> list[Any]:
    """Return the events of trials with these cases, repeats and verdicts, and the note of the judge."""
    events: list[Any] = [Noted(name=PAIRWISE, value=dict(note))]
    for case, repeat, verdict in verdicts:
        first, second = ORDERS[verdict]
        scores = {"judge-first": first, "judge-second": second, note["scorer"]: combine(first, second)}
        events += answered(case, scores, repeat=repeat, variant=variant)
    return events


def cases(prefix: str = "", **counts: int) -> list[tuple[str, int, str]]:
    """Return this number of cases for each verdict."""
    verdicts = itertools.chain.from_iterable(itertools.repeat(verdict, count) for verdict, count in counts.items())
    return [(f"{prefix}{number:04}", 1, verdict) for number, verdict in enumerate(verdicts)]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [("win", "win", "win"), ("loss", "loss", "loss"), ("win", "loss", "tie"), ("win", "tie", "tie"), ("tie", "tie", "tie")],
)
def test_the_verdict_of_both_orders(first: str, second: str, verdict: str) -> None:
    """Orders that disagree are a tie."""
    assert [verdict, verdict] == [combine(first, second), combine(second, first)]


def test_the_sign_test_of_cases() -> None:
    """Without repeats, the p-value is that of the sign test of wins and losses; ties do not count."""
    result = pairwise_summaries(run_state(judged(cases(win=12, loss=3, tie=4, flip=6))))["judge"]

    assert (25, 12, 3, 10, 6, 6) == (
        *(result.pairs, result.wins, result.losses, result.ties),
        *(result.flips, result.flips_to_first),
    )
    assert mcnemar(12, 3) == result.difference.p
    assert ("better", 9 / 25) == (result.difference.verdict, result.difference.difference)


def test_repeats_of_a_case_count_once() -> None:
    """With repeats, the mean of each case is tested: ten wins of one case are no evidence."""
    one_case = pairwise_summaries(run_state(judged([("peru", repeat, "win") for repeat in range(1, 11)])))["judge"]
    verdicts = [(f"case{case}", repeat, "win" if repeat == 1 or case < 3 else "loss") for case in range(5) for repeat in (1, 2)]
    several_cases = pairwise_summaries(run_state(judged(verdicts)))["judge"]

    assert (1, 1.0, "no_difference_found") == (one_case.difference.n, one_case.difference.p, one_case.difference.verdict)
    assert (5, mcnemar(3, 0)) == (several_cases.difference.n, several_cases.difference.p)


@pytest.mark.parametrize(
    "value",
    [
        *({"judge": 1}, {"judge": []}, {"orders": ["a"]}, {"orders": [1, 2]}, {"against": None}, {"against": {}}),
        *({"versions": None}, {"versions": {"judge": "v1"}}),
    ],
)
def test_a_foreign_note(value: Any) -> None:
    """A note in another form is ignored."""
    state = run_state([*judged(cases(win=1)), Noted(name=PAIRWISE, value={**NOTE, **value})])

    assert ({}, []) == (pairwise_summaries(state), rankings([state]))


def test_verdicts_of_another_judge() -> None:
    """Verdicts of a judge, or against a run, that is not that of the last note count in no summary and no ranking."""
    events = judged([("a", 1, "win"), ("b", 1, "loss")])
    versions = dict.fromkeys(NOTE["versions"], "v2")
    new_verdict = answered("c", dict.fromkeys(versions, "tie"), version="v2")
    state = run_state([*events, Noted(name=PAIRWISE, value={**NOTE, "versions": versions}), *new_verdict])
    result = pairwise_summaries(state)["judge"]

    assert (0, 0, 1) == (result.wins, result.losses, result.ties)


def compared(run: str, other_run: str, **counts: int) -> RunState:
    """Return the state of a run that was compared with another."""
    against = {**NOTE["against"], "run": other_run, "path": f"runs/{other_run}"}
    return run_state(judged(cases(run + other_run, **counts), {**NOTE, "run": run, "path": f"runs/{run}", "against": against}))


def test_the_strengths_of_the_model() -> None:
    """Verdicts in the proportions of Davidson's model give its strengths."""
    strengths, tie_weight, n = {"a": 0.9, "b": 0.0, "c": -0.9}, 0.6, 600
    states: list[RunState] = []
    for one, other in itertools.combinations(strengths, 2):
        weights = [math.exp(strengths[one]), math.exp(strengths[other])]
        weights.append(tie_weight * math.sqrt(math.prod(weights)))
        wins, losses, ties = (round(n * weight / sum(weights)) for weight in weights)
        states.append(compared(one, other, win=wins, loss=losses, tie=ties))
    (ranking,) = rankings(states)
    (reversed_ranking,) = rankings(states[::-1])

    assert ranking == reversed_ranking
    assert ["runs/a", "runs/b", "runs/c"] == [side.name for side in ranking.strengths]
    assert list(strengths.values()) == pytest.approx([side.strength for side in ranking.strengths], abs=0.02)
    assert all(side.low < side.strength < side.high for side in ranking.strengths)
    assert 0.1 < max(side.high - side.low for side in ranking.strengths) < 0.4


def test_a_side_that_always_loses() -> None:
    """A side without a win or a tie has a finite strength."""
    (ranking,) = rankings([compared("a", "b", win=5, loss=5), compared("c", "a", loss=10)])

    assert ("runs/c", (0, 10, 0)) == (
        ranking.strengths[-1].name,
        (ranking.strengths[-1].wins, ranking.strengths[-1].losses, ranking.strengths[-1].ties),
    )
    assert -5 < ranking.strengths[-1].low <= ranking.strengths[-1].strength < -1


def test_only_ties() -> None:
    """Sides that always tie have the same strength."""
    (ranking,) = rankings([compared("a", "b", tie=9), compared("b", "c", tie=9)])

    assert [0.0, 0.0, 0.0] == pytest.approx([side.strength for side in ranking.strengths], abs=1e-6)


def test_sides_without_a_connection() -> None:
    """Two sides have no ranking, and those that were never compared, directly or through others, are not ranked together."""
    assert [] == rankings([compared("a", "b", win=3), compared("c", "d", win=3)])


def test_rankings_have_an_order() -> None:
    """Several rankings of one judge are in the order of their runs, whatever the order of the comparisons."""
    states = [compared(f"{group}{number}", f"{group}0", win=2, loss=1) for group in "cabd" for number in (1, 2)]

    assert ["a", "b", "c", "d"] == [min(side.name for side in ranking.strengths)[5] for ranking in rankings(states)]


def test_too_many_sides() -> None:
    """More sides than can be ranked are reported."""
    (ranking,) = rankings(compared(f"run{number}", "a", win=1) for number in range(50))

    assert (51, ()) == (ranking.sides, ranking.strengths)
    assert ["no ranking by m: it compared 51 runs and variants; at most 50 are ranked"] == list(ranking_lines(ranking))
