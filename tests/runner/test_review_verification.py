"""`verify` of a review: forged records with correct hashes are reported, one test per rule."""

from pathlib import Path
from typing import Any

import pytest
import trio

from evaljournal.journal import Event
from evaljournal.journal.events import Annotated, ReviewSampled, ReviewStarted
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay import load
from evaljournal.runner.review.journal import Annotation, annotate, take_sample
from evaljournal.runner.runs.verification import RunVerification, verify
from evaljournal.runner.testing import events_of
from tests.journal.samples import RUN, complete_run, cut_tail, fake_clock, flip, segment, session, trial, write_sync

OTHER_SAMPLE = "seed 1 draws other trials, or with other probabilities, from 6 outputs"


def label(run: Path, name: str, *, value: bool = True, reviewer: str = "ada") -> None:
    """Record a label."""
    trio.run(annotate, load(run), [Annotation(trial=name, name="exact", value=value, reviewer=reviewer)])


def reviewed_run(path: Path) -> Path:
    """Write a run with a review: a label, two samples, and labels that replace each other and are given for a sample."""
    write_sync(path, complete_run(6), confirm=False, clock=fake_clock(1.0))
    label(path, "case-1")
    trio.run(lambda: take_sample(load(path), name="exact", method="uniform", n=3, seed=1))
    for name in (f"case-{number}" for number in range(1, 7)):
        label(path, name, value=name != "case-2")
    label(path, "case-2")
    label(path, "case-2", value=False, reviewer="grace")
    trio.run(lambda: take_sample(load(path), name="exact", method="disagreements", n=4, seed=2))
    return path


def forged(path: Path, change: Any) -> RunVerification:
    """Write the review again, with its list of events changed, and verify the run."""
    run = reviewed_run(path)
    events = change(events_of(run / "review"))
    for file in (run / "review").iterdir():
        file.unlink()
    write_sync(run / "review", events, run="7" * 32)
    return verify(run)


def findings(verification: RunVerification) -> list[tuple[str, str]]:
    """Return the findings about the review."""
    assert verification.review is not None
    return [(finding.check, finding.message) for finding in verification.review.findings]


def changing(kind: type[Event], **fields: Any) -> Any:
    """Return a function that changes these fields in all events of this kind."""
    return lambda events: [evolve_fact(event, **fields) if type(event) is kind else event for event in events]


def test_a_review_is_verified(tmp_path: Path) -> None:
    """A review by the writer's rules has no findings; its samples are drawn again."""
    verification = verify(reviewed_run(tmp_path / "run"))

    assert verification.review is not None
    assert ("ok", 2, 7, 2) == (
        verification.verdict,
        verification.review.samples,
        verification.review.labels,
        verification.review.reviewers,
    )


def test_a_review_is_valid_while_its_run_goes_on(tmp_path: Path) -> None:
    """Samples are drawn from the records up to their head, so outputs of a later session do not change them."""
    run = reviewed_run(tmp_path / "run")
    write_sync(run, [session(2), *trial("case-7", "Quito")], new=False, clock=fake_clock(1.0))

    assert "ok" == verify(run).verdict


@pytest.mark.parametrize(
    ("change", "check", "message"),
    [
        (changing(ReviewStarted, run="8" * 32), "run", f"it is the review of run '{'8' * 32}', but this is run {RUN}"),
        (changing(ReviewStarted, head="8" * 32), "run", f"the run has no record with the hash '{'8' * 32}'"),
        (changing(ReviewSampled, head="8" * 32), "run", f"the run has no record with the hash '{'8' * 32}'"),
        (changing(ReviewSampled, seed=3), "sample", "seed 3 draws other trials, or with other probabilities, from 6 outputs"),
        (changing(ReviewSampled, population=7), "sample", OTHER_SAMPLE),
        (changing(ReviewSampled, n=2), "sample", OTHER_SAMPLE),
        (changing(ReviewSampled, trials={"case-1": 0.5}), "sample", OTHER_SAMPLE),
        (changing(ReviewSampled, sample=4), "sample", "expected sample 1, got sample 4"),
        (changing(Annotated, output="0" * 64), "label", "this trial of the run never had this output"),
        (changing(Annotated, trial="case-9"), "label", "this trial of the run never had this output"),
        (changing(Annotated, case="peru"), "label", "this trial of the run never had this output"),
        (changing(Annotated, fingerprint="f2"), "label", "this trial of the run never had this output"),
        (
            changing(Annotated, replaces=5),
            "label",
            "it replaces record 5, but the reviewer's newest label for this output is record 0",
        ),
        (
            changing(Annotated, replaces=0),
            "label",
            "it replaces record 0, but the reviewer's newest label for this output is record 7",
        ),
        (changing(Annotated, sample=2), "label", "it was given for sample 2, but its trial was last drawn for sample 0"),
        (changing(Annotated, sample=0), "label", "it was given for sample 0, but its trial was last drawn for sample 1"),
        (changing(Annotated, carried_from=RUN), "label", "it was carried over from the run itself"),
    ],
)
def test_a_forged_review_is_reported(tmp_path: Path, change: Any, check: str, message: str) -> None:
    """A review that the writer could not have written is reported, although its hashes are correct."""
    verification = forged(tmp_path / "run", change)

    assert "invalid" == verification.verdict
    assert (check, message) in findings(verification)


def test_a_sample_after_its_labels_is_reported(tmp_path: Path) -> None:
    """A sample that was drawn after its outputs were labeled does not have these labels."""

    def move_sample(events: list[Event]) -> list[Event]:
        sample = next(event for event in events if isinstance(event, ReviewSampled))
        events.remove(sample)
        return [*events[:-1], sample]

    problem = "it was given for sample 1, but its trial was last drawn for sample 0"
    assert ("label", problem) in findings(forged(tmp_path / "run", move_sample))


@pytest.mark.parametrize("trials", [["case-1"], {"case-1": 0}, {"case-1": 1.5}, {"case-1": True}, {"case-1": "1"}, None])
def test_a_sample_with_wrong_values_is_invalid(tmp_path: Path, trials: Any) -> None:
    """The probabilities of a sample must be numbers above 0, up to 1."""
    verification = forged(tmp_path / "run", changing(ReviewSampled, trials=trials))

    assert "invalid" == verification.verdict
    assert verification.review is not None
    assert "record 5" in str(verification.review.journal.problem)


def test_damage_of_a_review_is_found(tmp_path: Path) -> None:
    """A changed byte of the review is damage, although the journal of the run is intact."""
    run = reviewed_run(tmp_path / "run")
    flip(segment(run / "review"), 600)
    verification = verify(run)

    assert "damaged" == verification.verdict
    assert verification.journal.ok


def test_a_label_that_was_removed_from_the_middle_is_found(tmp_path: Path) -> None:
    """Removed lines are found by the watermark of those after them; the very end is not protected, as in every journal."""
    run = reviewed_run(tmp_path / "run")
    file = segment(run / "review")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:6], *lines[7:]]))

    assert "damaged" == verify(run).verdict
    file.write_bytes(b"".join(lines))
    cut_tail(file, 1)
    assert "ok" == verify(run).verdict
