"""The scores of a run: replaced, from several versions of a scorer, missing, and of withdrawn trials."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal import Event
from evaljournal.journal.events import TrialScored, TrialWithdrawn
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay import fold
from evaljournal.replay.render.ending import final_report
from evaljournal.replay.render.phrases import score_text, score_value_text
from evaljournal.replay.results.summary import summarize
from tests.journal.samples import examples, session, started
from tests.replay.summaries import chain, summary_of
from tests.replay.trial_events import answered, failed, records, state_of

PASS, FAIL = True, False


def test_scores_are_in_the_order_of_the_definition() -> None:
    """The order of the scorers is that of `run_started`, whichever scored first; adopted scorers change it."""
    run_started = evolve_fact(started(), scorers={"exact": "v1", "judge": "v1", "tone": "v1"})
    scored = answered("a", {"tone": "rude", "other": 1, "judge.style": 0.5, "judge.length": 1, "exact": PASS})
    adopted = evolve_fact(session(2), adopted={"scorers": {"tone": "v1", "exact": "v1"}})
    first = records(scored, run_started)
    later = first[-1]._replace(seq=len(first) + 1, event=adopted)

    assert ["exact", "judge.style", "judge.length", "tone", "other"] == list(summarize(fold(first)).scores)
    assert ["tone", "exact", "judge.style", "judge.length", "other"] == list(summarize(fold([*first, later])).scores)


def test_replaced_score() -> None:
    """A later score of the same scorer replaces the first, also one of another kind."""
    new_scores = [TrialScored(trial=name, scorer="exact", version="v2", value=PASS, elapsed=0.0) for name in ("a", "b")]
    exact = summary_of(answered("a", {"exact": "good"}), answered("b", {"exact": 0.5}), list(new_scores)).scores["exact"]

    assert ("pass", 2, 2, 1.0, {}) == (exact.kind, exact.scored, exact.passed, exact.mean, exact.labels)


def test_a_withdrawn_trial_has_no_reasons() -> None:
    """The reason of a failing score is removed with the score."""
    scored = TrialScored(trial="a", scorer="exact", version="v1", value=FAIL, elapsed=0.0, reason="too long")
    events = [*answered("a", {}), scored]

    assert {("a", "exact"): "too long"} == state_of(events).scores.reasons
    assert {} == state_of([*events, TrialWithdrawn(trial="a", reason="changed")]).scores.reasons


@pytest.mark.parametrize(
    ("value", "text"),
    [(PASS, "pass"), (1_234_567, "1,234,567"), (2**63 - 1, "9,223,372,036,854,775,807"), (0.5, "0.5"), (1e6, "1,000,000")],
)
def test_the_value_of_a_score(value: float, text: str) -> None:
    """An integer is shown in full and grouped, whatever its type."""
    assert text == score_value_text(value)


SCORED = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["v1", "v2", "v3", ""]), st.booleans()) | st.integers(0, 3), max_size=20
)
"""A trial that is scored by a version, or the number of a trial that is withdrawn."""


@examples(200)
@given(SCORED)
def test_number_of_scorer_versions(steps: list[Any]) -> None:
    """After any scores, replacements and withdrawals, the versions counted are those of the current scores."""
    events = chain(*(answered(str(number), {}) for number in range(4)))
    last, versions_by_trial = "", dict[int, str]()
    for step in steps:
        if isinstance(step, int):
            if step in versions_by_trial:
                events += [TrialWithdrawn(trial=str(step), reason="changed"), *answered(str(step), {})]
                del versions_by_trial[step]
            continue
        number, last, value = step
        versions_by_trial[number] = last
        events.append(TrialScored(trial=str(number), scorer="exact", version=last, value=value, elapsed=0.0))
    state = state_of(events)
    summary = summarize(state, groups={str(number): str(number % 2) for number in range(4)})
    groups = summary.groups or {}

    for scores, numbers in ((summary.scores, (0, 1, 2, 3)), (groups["0"].scores, (0, 2)), (groups["1"].scores, (1, 3))):
        versions = [versions_by_trial[number] for number in numbers if number in versions_by_trial]
        counted = (scores["exact"].versions, scores["exact"].from_older_version) if "exact" in scores else (0, 0)
        assert (len(set(versions)), sum(version != last for version in versions)) == counted


def test_scores_of_several_versions() -> None:
    """A mean over two versions of a scorer shows how many are from the older one, and the command to re-score."""
    new_scores: list[Event] = [TrialScored(trial="a", scorer="exact", version="v2", value=PASS, elapsed=0.0)]
    trials = chain(answered("a", {"exact": FAIL, "near": 1.0}), answered("b", {"exact": PASS}), new_scores)
    state = state_of(trials)
    rescored = state_of([*trials, TrialScored(trial="b", scorer="exact", version="v2", value=PASS, elapsed=0.0)])

    text = "100.0 %  2 of 2 passed (95 % CI 34.2–100.0 %)"
    assert f"{text}; from 2 versions of the scorer, 1 from an older one" == score_text(summarize(state).scores["exact"])
    assert "\nre-score everything with one version of exact: evaljournal rescore 'my run'\n" in final_report(
        state, path="my run"
    )
    assert text == score_text(summarize(rescored).scores["exact"])
    assert "rescore" not in final_report(rescored, path="my run")


def test_score_after_a_failed_scorer() -> None:
    """A failed scorer is no longer counted once the output has its score."""
    new_scores: list[Event] = [TrialScored(trial="a", scorer="judge.tone", version="v1", value=PASS, elapsed=0.0)]
    scores = summary_of(answered("a", {"judge": ValueError()}), answered("b", {"judge": ValueError()}), new_scores).scores

    assert (1, 1) == (scores["judge"].failed, scores["judge.tone"].scored)


def test_unscored_outputs() -> None:
    """Outputs that a scorer neither scored nor failed on are counted, and the command to score them is shown."""
    trials = [
        answered("lost"),
        answered("scored", {"exact": PASS}),
        answered("in parts", {"exact.tone": PASS, "exact.facts": FAIL}),
        answered("failed at", {"exact": ValueError()}),
        failed("no output"),
        [*answered("gone"), TrialWithdrawn(trial="gone", reason="removed")],
    ]

    assert {"exact": 1} == summary_of(*trials).unscored
    assert "1 output not scored by exact: evaljournal rescore r\n" in final_report(state_of(chain(*trials)), path="r")


def test_withdrawn_trial() -> None:
    """A withdrawn trial is counted as withdrawn only: in no mean, and not as recovered."""
    withdrawn = answered("b", {"exact": FAIL, "judge": ValueError()}, failures=1)
    summary = summary_of(answered("a", {"exact": PASS}), withdrawn, [TrialWithdrawn(trial="b", reason="removed")])

    assert (1, 1, 0, 1) == (
        summary.trials.enqueued,
        summary.trials.completed,
        summary.trials.recovered,
        summary.trials.withdrawn,
    )
    assert (1, 1.0, 0) == (summary.scores["exact"].scored, summary.scores["exact"].mean, summary.scores["judge"].failed)
    assert (1, 2) == (summary.latency.count, summary.attempts.succeeded)
