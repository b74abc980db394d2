"""Sums over the trials of each variant, which a run keeps while it is in progress."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal import Event
from evaljournal.journal.events import Noted, ScoringFailed, TrialScored, TrialWithdrawn
from evaljournal.replay import summarize
from evaljournal.replay.state.totals import Totals
from tests.replay.trial_events import answered, enqueued, failed, name_of, state_of

VARIANTS = ("mini", "large", "")


def figures(totals: Totals) -> tuple[Any, ...]:
    """Return what two sums must agree on."""
    scores = {scorer: (tally.scored, tally.failed, tally.mean, tally.cases) for scorer, tally in totals.scores.items()}
    stages = {stage: n for stage, n in totals.stages.items() if n}
    return stages, totals.attempts, totals.recovered, dict(totals.usage), scores


def test_case_variant_and_repeat() -> None:
    """Case, variant and repeat are those of the record, not parts of the trial's id."""
    state = state_of([enqueued("a@b#2", 3, variant="mini")])
    (trial,) = state.trials.values()

    assert ("a@b#2", "mini", 3) == (trial.case, trial.variant, trial.repeat)


def test_variants_are_no_repeats_of_each_other() -> None:
    """No pass@k is computed over the variants of a case; the interval over all trials is clustered by case."""
    events = [answered(case, {"exact": True}, variant=variant) for case in "abc" for variant in ("mini", "large")]
    score = summarize(state_of([event for trial in events for event in trial])).scores["exact"]

    assert (6, 3, []) == (score.numbers, score.cases, list(score.pass_at_k))


def trial_events(case: str, variant: str, repeat: int, kind: str) -> list[Event]:
    """Return the events of a trial."""
    name = name_of(case, repeat, variant)
    options: Any = {"variant": variant, "repeat": repeat, "failures": repeat - 1, "usage": {"cost": repeat}}
    judge_usage = Noted(trial=name, name="evaljournal.judge_usage", value={"usage": {"cost": 0.25}})
    trial = [*answered(case, {"exact": repeat % 2 == 0}, **options), judge_usage]
    match kind:
        case "withdrawn":
            return [*trial, TrialWithdrawn(trial=name, reason="changed")]
        case "re-scored":
            return [*trial, TrialScored(trial=name, scorer="exact", version="v2", value=True, elapsed=0.0)]
        case "unscored":
            broken = answered(case, {"exact": ValueError()}, variant=variant, repeat=repeat)
            return [*broken, TrialScored(trial=name, scorer="exact", version="v1", value=0.5, elapsed=0.0)]
        case "broken":
            failure = ScoringFailed(trial=name, scorer="tone", version="v1", error="E", message="", elapsed=0.0)
            return [*trial[:-2], failure, *trial[-2:]]
        case "failed":
            return failed(case, variant=variant, repeat=repeat, usage={"cost": 3})
        case _:
            return trial


KINDS = ("completed", "withdrawn", "re-scored", "unscored", "broken", "failed")
TRIALS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(VARIANTS), st.integers(1, 3), st.sampled_from(KINDS)),
    unique_by=lambda trial: trial[:3],
    max_size=12,
)


@given(TRIALS)
def test_the_sums_of_a_variant_are_those_of_a_run_with_only_its_trials(trials: list[tuple[str, str, int, str]]) -> None:
    """Whatever the order of variants, repeats, withdrawals and scores, the sums equal those of a run of that variant alone."""
    state = state_of([event for trial in trials for event in trial_events(*trial)])

    has_variants = any(variant for _, variant, _, _ in trials)
    assert list(dict.fromkeys(trial[1] for trial in trials) if has_variants else ()) == list(state.variants)
    for variant, totals in state.variants.items():
        alone = state_of([event for trial in trials if trial[1] == variant for event in trial_events(*trial)])
        expected = Totals(alone.totals.stages, alone.totals.attempts, alone.totals.recovered, alone.usage, alone.scores)
        assert figures(expected) == figures(totals)
    stages = sum((Counter(totals.stages) for totals in state.variants.values()), Counter[str]())
    assert not has_variants or {stage: n for stage, n in state.totals.stages.items() if n} == dict(stages)


def test_answers_before_the_first_variant() -> None:
    """The answers of trials before the first one with a variant are those of the trials without a variant."""
    answer = Noted(trial="a", attempt=1, name="evaljournal.answer", value={"model": "m", "outcome": "truncated"})
    queued, started, *rest = answered("a", {})
    totals = state_of([queued, started, answer, *rest, *answered("b", {}, variant="mini")]).variants[""]

    assert ({"m": 1}, {"truncated": 1}) == (dict(totals.models), dict(totals.answers))
    assert {"m"}.isdisjoint(totals.truncation_causes)
