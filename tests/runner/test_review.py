"""Labels of outputs: they are written to the journal of a review, replaced there, and carried over to other runs."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from evaljournal.journal import Event, read, verify
from evaljournal.journal.copies.salvage import salvage
from evaljournal.journal.disk.lock import is_held
from evaljournal.journal.errors import JournalDamaged, JournalError, JournalLocked
from evaljournal.journal.events import ReviewSaved, TrialEnqueued, TrialWithdrawn
from evaljournal.replay import load
from evaljournal.replay.review import labels as review_labels
from evaljournal.replay.review.labels import Label, Review, labels_by_trial, read_review
from evaljournal.runner.review import journal as review_journal
from evaljournal.runner.review.journal import Annotation, annotate, writing_review
from evaljournal.runner.runs.paths import runs_under
from evaljournal.runner.runs.verification import verify as verify_run
from tests.journal.samples import (
    annotated,
    complete_run,
    content,
    cut_tail,
    flip,
    overwrite,
    segment,
    session,
    started,
    trial,
    write_sync,
)


def write_run(path: Path, *events: Event, run: str = "1" * 32) -> Path:
    """Write a run with these trials; by default, with two whose output is `Lima`."""
    write_sync(path, [started(), session(), *(events or complete_run(2)[2:-1])], run=run)
    return path


def label(run: Path, trial: str = "case-1", **fields: Any) -> list[Label]:
    """Record a label."""
    fields = {"name": "exact", "value": True, "reviewer": "ada", **fields}
    return trio.run(annotate, load(run), [Annotation(trial=trial, **fields)])


def test_a_label_is_recorded_in_the_review(tmp_path: Path) -> None:
    """A label is recorded with the content of the case and the output; the journal of the run is not written."""
    run = write_run(tmp_path / "run")
    before = content(run)
    (recorded,) = label(run, note="right", is_blind=True)
    review = read_review(run)

    assert annotated("case-1", note="right", is_blind=True) == [record.event for record in read(run / "review")][-2]
    assert [recorded] == review.labels == review.history
    assert ("1" * 32, load(run).state.head, "capitals") == (review.run, review.head, review.evaluation)
    assert before == {name: data for name, data in content(run).items() if not name.startswith("review/")}
    assert verify(run / "review").ok


def test_a_killed_import_records_nothing(tmp_path: Path) -> None:
    """After every record of an import, its labels count all or not at all, and the next writer continues."""
    run = write_run(tmp_path / "run")
    label(run, "case-2")
    before = segment(run / "review").read_bytes()
    annotations = [Annotation(trial="case-1", name="exact", value=True, reviewer=f"reviewer {number}") for number in range(5)]
    trio.run(partial(annotate, load(run), annotations, is_import=True))
    intact = segment(run / "review").read_bytes()
    counts = []
    for lines in range(intact.count(b"\n") - before.count(b"\n") + 1):
        overwrite(segment(run / "review"), intact)
        if lines:
            cut_tail(segment(run / "review"), lines)
        counts.append(len(read_review(run).labels))
        label(run, reviewer="joan")

        verified = verify_run(run).review
        assert (counts[-1] + 1, ()) == (len(read_review(run).labels), verified and verified.findings)
    assert [6, *[1] * 7] == counts


@pytest.mark.parametrize(("is_killed", "labels"), [(False, 6), (True, 1)])
def test_salvage_keeps_whether_an_import_counts(tmp_path: Path, *, is_killed: bool, labels: int) -> None:
    """With one label damaged, the others of a complete import count in the copy, and those of a killed one do not."""
    run = write_run(tmp_path / "run")
    label(run, "case-2")
    label(run, "case-2", reviewer="joan")
    annotations = [Annotation(trial="case-1", name="exact", value=True, reviewer=f"reviewer {number}") for number in range(5)]
    trio.run(partial(annotate, load(run), annotations, is_import=True))
    if is_killed:
        cut_tail(segment(run / "review"), 2)
    file = segment(run / "review")
    overwrite(file, file.read_bytes().replace(b'"reviewer":"joan"', b'"reviewer":"jean"'))
    copy = trio.run(partial(salvage, run / "review", tmp_path / "run2" / "review"))

    assert copy is not None
    state = Review()
    for record in read(tmp_path / "run2" / "review"):
        state.apply(record)
    assert labels == len(state.labels)


def test_an_import_can_be_repeated(tmp_path: Path) -> None:
    """Importing the same labels again writes nothing."""
    run = write_run(tmp_path / "run")
    annotations = [Annotation(trial="case-1", name="exact", value=True, reviewer="ada")]
    trio.run(partial(annotate, load(run), annotations, is_import=True))
    before = content(run)
    trio.run(partial(annotate, load(run), annotations, is_import=True))

    assert before == content(run)


def test_damage_to_the_newest_labels_is_found(tmp_path: Path) -> None:
    """A changed byte in any label of the last writer is damage, not a torn tail: the next writer stops and moves nothing."""
    run = write_run(tmp_path / "run")
    annotations = [Annotation(trial="case-1", name="exact", value=True, reviewer=f"reviewer {number}") for number in range(60)]
    trio.run(annotate, load(run), annotations)
    file = segment(run / "review")
    intact = file.read_bytes()
    for line in (3, 20, 62):
        overwrite(file, intact)
        flip(file, sum(map(len, intact.splitlines(keepends=True)[: line - 1])) + 60)
        damaged = content(run / "review")
        with pytest.raises(JournalDamaged, match=f"damaged at record {line} "):
            read_review(run)
        with pytest.raises(JournalDamaged):
            label(run)

        assert not verify(run / "review").ok
        assert damaged == content(run / "review")


def test_labels_before_an_error_are_confirmed(tmp_path: Path) -> None:
    """If a writer ends with an error, the labels that it has recorded are confirmed, too."""
    run = write_run(tmp_path / "run")

    async def main() -> None:
        async with writing_review(load(run)) as review:
            review.append(annotated("case-1"))
            raise RuntimeError("an error in the block")

    with pytest.raises(RuntimeError):
        trio.run(main)
    *_, last_record = read(run / "review")

    assert (ReviewSaved(labels=1), last_record.seq - 1) == (last_record.event, last_record.d)


def test_a_second_label_of_a_reviewer_replaces_the_first(tmp_path: Path) -> None:
    """The newest label of each reviewer counts; the earlier one stays in the journal."""
    run = write_run(tmp_path / "run")
    (first,), (other,), (second,) = label(run), label(run, reviewer="grace"), label(run, value=False, note="looked again")
    review = read_review(run)

    assert first.seq == second.replaces
    assert [first, other, second] == review.history
    assert {("ada", False), ("grace", True)} == {(item.reviewer, item.value) for item in review.labels}


def test_reviewers_can_write_at_the_same_time(tmp_path: Path) -> None:
    """Ten reviewers who start at the same moment, before there is a review, all succeed; each label is recorded once."""
    run = write_run(tmp_path / "run")
    loaded_run = load(run)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                annotation = Annotation(trial="case-1", name="exact", value=True, reviewer=f"reviewer {number}")
                nursery.start_soon(annotate, loaded_run, [annotation])

    trio.run(main)

    assert {f"reviewer {number}" for number in range(10)} == {item.reviewer for item in read_review(run).labels}
    assert verify(run / "review").ok
    assert ["journal-000001.jsonl"] == sorted(file.name for file in (run / "review").glob("journal-*"))


def test_a_writer_that_holds_the_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process does not release the lock, the error names it."""
    run = write_run(tmp_path / "run")
    monkeypatch.setattr(review_journal, "LOCK_TIMEOUT", 0.0)

    async def main() -> None:
        async with writing_review(load(run)):
            await annotate(load(run), [Annotation(trial="case-1", name="exact", value=True, reviewer="ada")])

    with pytest.raises(JournalLocked, match="is being written by process"):
        trio.run(main)


def test_the_review_of_another_run_is_rejected(tmp_path: Path) -> None:
    """A review that was copied from another run is neither read nor written."""
    run, other_run = write_run(tmp_path / "1"), write_run(tmp_path / "2", run="2" * 32)
    label(other_run)
    (other_run / "review").rename(run / "review")
    for call in (partial(read_review, run), partial(label, run)):
        with pytest.raises(JournalError, match=f"is the review of another run, {'2' * 32}"):
            call()


@pytest.mark.parametrize("kind", ["run", "symlink", "file"])
def test_only_a_review_is_read(tmp_path: Path, kind: str) -> None:
    """A run, a symlink or a file in the place of the review is rejected, and not changed."""
    run = write_run(tmp_path / "run")
    if kind == "run":
        write_run(run / "review")
    elif kind == "file":
        (run / "review").write_text("x")
    else:
        label(write_run(tmp_path / "other"))
        (run / "review").symlink_to(tmp_path / "other" / "review")
    before = content(tmp_path)
    with pytest.raises(JournalError):
        label(run)

    assert before == {name: data for name, data in content(tmp_path).items() if name.endswith("LOCK") <= (name in before)}


def test_a_review_is_not_a_run(tmp_path: Path) -> None:
    """The review of a run is not listed among the runs."""
    run = write_run(tmp_path / "capitals" / "1")
    label(run)

    assert [run] == [*runs_under(tmp_path)] == [*runs_under(run)]


def test_labels_are_carried_over(tmp_path: Path) -> None:
    """A label holds in another run of the evaluation with the same case and output; a label given there replaces it."""
    first = write_run(tmp_path / "1", *trial("case-1"), *trial("case-2"))
    second = write_run(tmp_path / "2", *trial("case-1"), *trial("case-2", "Quito"), run="2" * 32)
    label(first)
    label(first, "case-2")
    label(first, "case-1", name="tone", value="polite")
    (own,) = label(second, name="tone", value="rude")
    labels = labels_by_trial(load(second), read_review(second))

    assert ["case-1"] == list(labels)
    assert {("exact", True, "1" * 32), ("tone", "rude", "")} == {(i.name, i.value, i.carried_from) for i in labels["case-1"]}
    assert own in labels["case-1"]


def test_a_label_of_a_changed_output_does_not_count(tmp_path: Path) -> None:
    """If a case was changed and enqueued again, labels of its earlier output no longer belong to the trial."""
    run = write_run(tmp_path / "run")
    label(run)
    again = [TrialEnqueued(trial="case-1", case="case-1", repeat=1, input="?", fingerprint="f2")]
    write_sync(run, [session(2), TrialWithdrawn(trial="case-1", reason="changed"), *again], new=False)

    assert {} == labels_by_trial(load(run), read_review(run))


def test_a_label_needs_one_fold_of_the_review(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The review is read once for each label, in a thread, while its lock is held."""
    run = write_run(tmp_path / "run")
    label(run)
    threads: list[bool] = []

    def fold_review(path: Path) -> Review:
        threads.append(threading.current_thread() is threading.main_thread())
        assert is_held(path)
        return original(path)

    original = review_labels.fold_review
    monkeypatch.setattr(review_labels, "fold_review", fold_review)
    label(run, value=False)

    assert [False] == threads
