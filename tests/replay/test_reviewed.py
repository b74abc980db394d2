"""A run joined with its review: which labels correct a score, what the texts say about them, and how a judge is checked."""

import errno
from pathlib import Path
from typing import Any

import pytest

from evaljournal.journal import Event
from evaljournal.journal.events import Noted, ReviewStarted
from evaljournal.replay import load
from evaljournal.replay.results.comparison import Side
from evaljournal.replay.review.correction import CorrectedScore
from evaljournal.replay.review.labels import Review, labels_by_trial, read_review
from evaljournal.replay.review.reviewed import (
    Agreement,
    Cell,
    Consistency,
    PositionFlips,
    Rate,
    Reviewed,
    agreement,
    open_review,
)
from evaljournal.replay.review.text import agreement_lines, corrected_text, difference_lines, rate_text
from evaljournal.replay.statistics import Estimate
from tests.journal.samples import finished, session, started, write_sync
from tests.replay.reviewed_run import RUN, annotation, sampled, write_review, write_reviewed_run, write_run
from tests.replay.test_pairwise import NOTE, cases, judged
from tests.replay.trial_events import answered


def reviewed(path: Path) -> Reviewed:
    """Return a run that has a review."""
    result = open_review(load(path))
    assert result is not None
    return result


def corrected(path: Path, variant: str | None = None) -> CorrectedScore:
    """Return the corrected score of the judge."""
    run = reviewed(path)
    return run.corrected(Side(run.run.state, variant=variant))["judge"]


def agreement_of(path: Path, name: str = "judge") -> Agreement:
    """Return the agreement of a scorer."""
    run = reviewed(path)
    return agreement(run, Side(run.run.state), name)


def labels(names: list[str], values: list[Any], **fields: Any) -> list[Event]:
    """Return labels of the first trials of a run."""
    pairs = zip(names, values, strict=False)
    return [annotation(name, value, output=f"out {name.partition('#')[0]} 1", **fields) for name, value in pairs]


def test_labels_outside_the_sample_are_not_used(tmp_path: Path) -> None:
    """Labels of outputs that someone chose do not change a corrected score; their number is shown."""
    path = tmp_path / "run"
    write_reviewed_run(path, (40, 3, 8, 15))
    before = corrected(path)
    names = write_run(tmp_path / "other", [True] * 66 + [True] * 300 + [False] * 100)
    drawn = sampled(dict.fromkeys(names[:66], 66 / 466))
    values = [True] * 40 + [True] * 3 + [False] * 8 + [False] * 15
    pairs = [True] * 40 + [False] * 3 + [True] * 8 + [False] * 15 + [True] * 300 + [False] * 100
    chosen = labels(names[450:], [False] * 10)
    write_run(tmp_path / "chosen", pairs)
    write_review(tmp_path / "chosen", [drawn, *labels(names, values, sample=1), *chosen])
    after = corrected(tmp_path / "chosen")

    assert (before.mean, before.low, 10) == (after.mean, after.low, after.unsampled)
    assert corrected_text(after).endswith("; not used: 10 labels that count for no random sample")


def test_labels_without_a_sample(tmp_path: Path) -> None:
    """Labels without any sample never correct a score, however many there are."""
    names = write_run(tmp_path / "run", [True] * 100)
    write_review(tmp_path / "run", labels(names, [True, False] * 40))
    score = corrected(tmp_path / "run")

    assert ("none", None, 80) == (score.method, score.mean, score.unsampled)
    assert corrected_text(score).startswith("not corrected: only 80 labels that count for no random sample; draw one")


def test_too_few_labels(tmp_path: Path) -> None:
    """With too few labels, their own share is shown with Wilson's interval, and the text says so."""
    write_reviewed_run(tmp_path / "run", (15, 0, 5, 0))

    assert corrected_text(corrected(tmp_path / "run")) == (
        "labels alone 75.0 % (95 % CI 53.1–88.8 %, 20 of 420 reviewed, uniform sample 1); "
        "too few for a correction, which needs 30 labels and 10 of each class"
    )


def write_sampled_run(path: Path, scores: list[bool], labeled: list[int], **fields: Any) -> list[str]:
    """Write a run and a sample of its first 100 trials, of which those with these numbers have the label of their score."""
    names = write_run(path, scores)
    chosen = labels([names[index] for index in labeled], [scores[index] for index in labeled], sample=1)
    write_review(path, [sampled(dict.fromkeys(names[:100], 0.5), **fields), *chosen])
    return names


def test_labels_after_a_gap_do_not_count(tmp_path: Path) -> None:
    """If reviewers label the passes of a sample only, no label after the first output that they left out counts."""
    scores = [index % 20 != 12 and index % 4 != 3 for index in range(200)]
    scores[3] = scores[7] = scores[11] = True
    write_sampled_run(tmp_path / "run", scores, [index for index in range(100) if scores[index]])
    score = corrected(tmp_path / "run")

    assert ("labels", 12, 61) == (score.method, score.labels, score.unsampled)
    assert "uniform sample 1 (73 of 100 labeled, 12 count: label them in order, next is c12)" in corrected_text(score)
    assert corrected_text(score).endswith("; not used: 61 labels that count for no random sample")


@pytest.mark.parametrize(
    ("labeled", "fields", "text"),
    [
        (range(40), {}, "40 of 200 reviewed, uniform sample 1 (40 of 100 labeled)"),
        (range(1, 100), {}, "not corrected: uniform sample 1 (99 of 100 labeled, 0 count: label them in order, next is c0)"),
        *(
            (range(99), {"method": method}, f"not corrected: {method} sample 1 (99 of 100 labeled, none counts before all are")
            for method in ("stratified", "disagreements")
        ),
        (range(100), {"method": "stratified"}, "100 of 200 reviewed, stratified sample 1)"),
        (
            range(100),
            {"population": 120},
            "not corrected: uniform sample 1 (drawn when 120 of 200 outputs existed: draw another sample)",
        ),
    ],
)
def test_an_open_sample(tmp_path: Path, labeled: range, fields: dict[str, Any], text: str) -> None:
    """The labels of a uniform sample count as far as they go, those of strata when all are labeled.

    A sample that was drawn before all outputs existed corrects nothing.
    """
    write_sampled_run(tmp_path / "run", [True, False] * 100, list(labeled), **fields)

    assert text in corrected_text(corrected(tmp_path / "run"))


def test_labels_of_equal_outputs_do_not_extend_a_sample(tmp_path: Path) -> None:
    """A label also holds for equal outputs, but those after the last output that was labeled itself do not count."""
    names = write_run(tmp_path / "run", [True, False] * 40, repeats=4, output="same")
    order = [*names[0::4], *names[1::4], *names[2::4]]
    given = [annotation(name, index % 2 == 0, output="same", sample=1) for index, name in enumerate(names[0::4])]
    write_review(tmp_path / "run", [sampled(dict.fromkeys(order, 0.75)), *given[:15]])
    before = corrected(tmp_path / "run")
    write_run(tmp_path / "all", [True, False] * 40, repeats=4, output="same")
    write_review(tmp_path / "all", [sampled(dict.fromkeys(order[:25], 0.3)), *given])
    complete = corrected(tmp_path / "all")

    assert (15, 0) == (before.labels, before.unsampled)
    assert "(45 of 60 labeled, 15 count" in corrected_text(before)
    assert 25 == complete.labels


def test_labels_of_other_runs_are_not_read(tmp_path: Path) -> None:
    """A corrected score depends on the review of its run only: other runs can be added, damaged or deleted."""
    names = write_reviewed_run(tmp_path / "run", (40, 3, 8, 15))
    before = corrected(tmp_path / "run")
    write_run(tmp_path / "other", [True] * 66)
    start = ReviewStarted(run="3" * 32, head=load(tmp_path / "other").state.head, evaluation="capitals")
    other_labels = labels(names, [False] * 66, reviewer="grace")
    write_sync(tmp_path / "other" / "review", [start, *other_labels], confirm=False, run="4" * 32)

    assert before == corrected(tmp_path / "run")


def test_a_review_of_another_run_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The labels of a run are found although the review of a run beside it belongs to another user."""
    names = write_reviewed_run(tmp_path / "run", (40, 3, 8, 15))
    write_reviewed_run(tmp_path / "other", (40, 3, 8, 15))
    review = read_review(tmp_path / "run")

    def fail(path: Path) -> Review:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("evaljournal.replay.review.labels.fold_review", fail)

    assert names == list(labels_by_trial(load(tmp_path / "run"), review))


def test_labels_before_the_sample_are_not_of_it(tmp_path: Path) -> None:
    """A label that was given before the sample was drawn is not an answer to it."""
    names = write_run(tmp_path / "run", [True, False] * 20)
    write_review(tmp_path / "run", [*labels(names, [True, False] * 20), sampled(dict.fromkeys(names, 1.0))])

    assert ("none", 40) == (corrected(tmp_path / "run").method, corrected(tmp_path / "run").unsampled)


def test_a_label_of_another_output_does_not_count(tmp_path: Path) -> None:
    """If the trial has another output than the one that was labeled, the label is not used."""
    names = write_run(tmp_path / "run", [True, False] * 20)
    other = [annotation(name, value=True, output="another", sample=1) for name in names]
    write_review(tmp_path / "run", [sampled(dict.fromkeys(names, 1.0)), *other])

    assert [] == reviewed(tmp_path / "run").names


def test_two_samples_are_combined(tmp_path: Path) -> None:
    """Each of two samples counts in proportion to its labels, with its own probabilities."""
    names = write_run(tmp_path / "run", [True] * 90 + [False] * 10)
    drawn = [sampled(dict.fromkeys(names[:10], 0.1)), sampled({names[0]: 0.5, names[99]: 0.25}, sample=2, method="stratified")]
    write_review(tmp_path / "run", [*drawn, *labels(names, [True] * 10), *labels(names[99:], [False])])
    weights = reviewed(tmp_path / "run").weights("judge")

    assert {names[0]: 10 / 12 / 0.1 + 2 / 12 / 0.5, names[1]: 10 / 12 / 0.1, names[99]: 2 / 12 / 0.25} == pytest.approx(
        {name: weights[name] for name in (names[0], names[1], names[99])}
    )


def test_reviewers_who_disagree(tmp_path: Path) -> None:
    """The label of an output is the mean of its reviewers' labels; without a majority, only α uses it."""
    names = write_run(tmp_path / "run", [True, False, True])
    events = [*labels(names, [True, True, False]), *labels(names, [True, False], reviewer="grace")]
    write_review(tmp_path / "run", [sampled(dict.fromkeys(names, 1.0)), *events])
    result = agreement_of(tmp_path / "run")

    assert (1, {"ada": 3, "grace": 2}) == (result.tied, result.reviewers)
    assert [Cell(judge=True, label=False, count=1), Cell(judge=True, label=True, count=1)] == result.confusion
    assert corrected(tmp_path / "run").mean == pytest.approx((1 + 0.5 + 0) / 3)
    assert result.alpha_reviewers is not None


def test_agreement_of_numbers(tmp_path: Path) -> None:
    """Numbers have α and a corrected mean, and no confusion table."""
    names = write_run(tmp_path / "run", [float(index % 5) for index in range(60)])
    values = [float((index + (index % 3 == 0)) % 5) for index in range(40)]
    write_review(tmp_path / "run", [sampled(dict.fromkeys(names[:40], 40 / 60)), *labels(names, values)])
    result = agreement_of(tmp_path / "run")

    assert ("number", [], None, None) == (result.kind, result.confusion, result.ac1, result.true_pass_rate)
    assert result.coefficient == result.alpha is not None
    assert result.corrected is not None
    assert ("ppi", "number") == (result.corrected.method, result.corrected.kind)


def test_numbers_as_labels_of_scores_that_are_texts(tmp_path: Path) -> None:
    """If labels are numbers, outputs with a score that is a text are left out, and the text states how many."""
    names = write_run(tmp_path / "run", ["good", 1.0, 2.0, 3.0, "bad"])
    write_review(tmp_path / "run", [sampled(dict.fromkeys(names, 1.0)), *labels(names, [1.0, 1.0, 2.0, 4.0, 5.0])])
    result = agreement_of(tmp_path / "run")

    assert (3, 2) == (result.labels, result.unscored)
    assert result.alpha is not None
    assert "; not used: 2 outputs with a score that is no number" in next(agreement_lines(result, limit=1))


def test_agreement_of_texts(tmp_path: Path) -> None:
    """Labels that are texts have AC1 and κ, and no corrected score."""
    names = write_run(tmp_path / "run", ["good", "bad", "odd"] * 10)
    write_review(tmp_path / "run", [sampled(dict.fromkeys(names, 1.0)), *labels(names, ["good", "bad", "bad"] * 10)])
    result = agreement_of(tmp_path / "run")

    assert ("label", None, 10) == (result.kind, result.corrected, len(result.disagreements))
    assert result.ac1 is not None


def test_a_question_without_a_scorer(tmp_path: Path) -> None:
    """Labels of a name that no scorer has are compared between reviewers only."""
    names = write_run(tmp_path / "run", [True] * 6)
    events = [
        *labels(names, [True, False] * 3, name="polite"),
        *labels(names, [True, True] * 3, name="polite", reviewer="grace"),
    ]
    write_review(tmp_path / "run", events)
    result = agreement_of(tmp_path / "run", "polite")

    assert (None, None, [], 6) == (result.ac1, result.alpha, result.confusion, result.labels)
    assert result.alpha_reviewers is not None
    assert not result.is_sampled


def test_consistency(tmp_path: Path) -> None:
    """Of the pairs of equal outputs of one case, those with the same score are counted."""
    names = write_run(tmp_path / "run", [True, True, False, False, False, False], repeats=3, output="same")
    write_review(tmp_path / "run", [annotation(names[0], value=True, output="same")])

    assert Consistency(pairs=6, same=4) == agreement_of(tmp_path / "run").consistency


def test_errors_over_length(tmp_path: Path) -> None:
    """A judge that lets long outputs pass although they are wrong has a larger error on the longer half."""
    outputs = ["x" * (3 if index % 2 else 255) for index in range(40)]
    events = [event for index, output in enumerate(outputs) for event in answered(f"c{index}", {"judge": True}, output=output)]
    write_sync(tmp_path / "run", [started(), session(), *events, finished(40)], confirm=False, run=RUN)
    values = [annotation(f"c{index}", len(output) < 9, output=output) for index, output in enumerate(outputs)]
    write_review(tmp_path / "run", values)
    length = agreement_of(tmp_path / "run").length
    assert length is not None

    assert (40, 0.0, 1.0, 1.0) == pytest.approx((length.n, length.error_without, length.error_with, length.difference))


def test_own_family(tmp_path: Path) -> None:
    """A judge that is kinder to models of its own family is noticed, if the models are known."""

    def trial(index: int) -> list[Event]:
        model = "other-1" if index % 2 else "openai/gpt-5-mini"
        enqueue, start, *others = answered(f"c{index}", {"judge": True}, output=f"out {index}")
        answer = Noted(trial=f"c{index}", attempt=1, name="evaljournal.answer", value={"outcome": "", "model": model})
        judge = Noted(trial=f"c{index}", attempt=1, name="evaljournal.judge", value={"scorer": "judge", "model": "gpt-5"})
        return [enqueue, start, answer, others[0], judge, *others[1:]]

    events = [event for index in range(40) for event in trial(index)]
    write_sync(tmp_path / "run", [started(), session(), *events, finished(40)], confirm=False, run=RUN)
    write_review(tmp_path / "run", [annotation(f"c{i}", i % 2 == 1 or i % 4 == 0, output=f"out {i}") for i in range(40)])
    family = agreement_of(tmp_path / "run").own_family
    assert family is not None

    assert (40, 0.5) == pytest.approx((family.n, family.difference))


def test_position_flips(tmp_path: Path) -> None:
    """The flips of a pairwise judge are those of the pairs that it was shown in both orders."""
    events = judged(cases(win=6, flip=2, tie=1))
    write_sync(tmp_path / "run", [started(), session(), *events, finished(9)], confirm=False, run=RUN)
    write_review(tmp_path / "run", [annotation("0000", "win", output="Lima", name=NOTE["scorer"])])
    result = agreement_of(tmp_path / "run", str(NOTE["scorer"]))

    assert PositionFlips(pairs=9, flips=2, to_first=2) == result.position_flips
    assert any("2 of 9 pairs (22.2 %), 2 to the first position" in line for line in agreement_lines(result, limit=1))


def test_figures_without_an_interval_say_so() -> None:
    """A rate or a difference of too few outputs for an interval is shown with its n, and without one."""
    rate = Rate(1.0, None, None, 2)
    difference = Estimate(0.5, None, None, None)

    assert "100.0 % (no interval, n = 2)" == rate_text(rate)
    assert ["judge, corrected: +50.0 points (no interval)"] == list(difference_lines({"judge": difference}, {"judge": "pass"}))
