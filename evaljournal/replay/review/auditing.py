"""Check the rules that the records of a review must follow, and draw its samples again."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from evaljournal.journal import Record, read
from evaljournal.journal.events import Annotated, AttemptSucceeded, ReviewSampled, ReviewStarted
from evaljournal.journal.format.blobs import digest
from evaljournal.replay.auditing.findings import Findings
from evaljournal.replay.review.labels import Label, OutputKey, Review, Sample, draw_sample, run_id
from evaljournal.replay.runs.loaded_run import LoadedRun, reject_invalid_record


class ReviewAuditor:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.review = Review()
        self.findings = Findings()
        self.samples_reproduced = 0
        """Samples that were drawn again from their seed, with the same result."""
        self._started = 0
        """The first record."""
        self._drawn: dict[str, list[tuple[Sample, Sequence[Label]]]] = {}
        """Hash of the last record of the run that was read → samples, each with the labels before it."""

    def apply(self, record: Record) -> None:
        """Check the next record of the review; its values must not be in blobs."""
        review = self.review
        with reject_invalid_record(self._path, lambda: record.seq):
            match record.event:
                case ReviewStarted():
                    self._started = record.seq
                case ReviewSampled(sample=number) if number != len(review.samples) + 1:
                    self.findings.add(record, "sample", f"expected sample {len(review.samples) + 1}, got sample {number}")
                case Annotated() as event:
                    self.findings.add_all(record, "label", _label_problems(event, review))
                case _:
                    pass

            earlier_labels = list(review.newest.values()) if isinstance(record.event, ReviewSampled) else []
            review.apply(record)
            if isinstance(record.event, ReviewSampled):
                sample = review.samples[record.event.sample]
                self._drawn.setdefault(sample.head, []).append((sample, earlier_labels))

    def compare(self, run_path: Path) -> None:
        """Compare the review with its run: the run's id, the heads and outputs that it names, and its samples."""
        review, id_ = self.review, run_id(run_path)
        if review.run != id_:
            self.findings.add_at(self._started, "run", f"it is the review of run {review.run!r:.80}, but this is run {id_}")
        run, heads = LoadedRun(run_path), {review.head: [self._started]}
        for sample in review.samples.values():
            heads.setdefault(sample.head, []).append(sample.seq)

        labeled, outputs = {label.trial for label in review.history}, defaultdict[str, set[OutputKey]](set)
        for record in read(run_path, load_blobs=False):
            event = record.event
            run.apply(record)
            if isinstance(event, AttemptSucceeded) and event.trial in labeled:
                trial = run.state.trials[event.trial]
                outputs[event.trial].add(OutputKey(trial.case, trial.fingerprint, digest(event.output)))
            if heads.pop(record.h, None):
                self._draw_again(run)

        for head, seqs in heads.items():
            self.findings.add_all_at(seqs, "run", f"the run has no record with the hash {head!r:.80}")
        seqs = [label.seq for label in review.history if label.key not in outputs[label.trial]]
        self.findings.add_all_at(seqs, "label", "this trial of the run never had this output")

    def _draw_again(self, run: LoadedRun) -> None:
        for sample, labels in self._drawn.get(run.state.head, ()):
            population, probabilities = draw_sample(
                run, labels, name=sample.name, method=sample.method, n=sample.n, seed=sample.seed
            )
            if (population, list(probabilities.items())) == (sample.population, list(sample.trials.items())):
                self.samples_reproduced += 1
            else:
                text = f"seed {sample.seed} draws other trials, or with other probabilities, from {population:,} outputs"
                self.findings.add_at(sample.seq, "sample", text)


def _label_problems(event: Annotated, review: Review) -> Iterator[str]:
    key = OutputKey(event.case, event.fingerprint, event.output)
    earlier_label = review.newest.get((key, event.name, event.reviewer))
    expected = 0 if earlier_label is None else earlier_label.seq
    if event.replaces != expected:
        yield f"it replaces record {event.replaces}, but the reviewer's newest label for this output is record {expected}"
    sample = 0 if event.carried_from else review.sample_of(event.trial, event.name)
    if event.sample != sample:
        yield f"it was given for sample {event.sample}, but its trial was last drawn for sample {sample}"
    if event.carried_from == review.run:
        yield "it was carried over from the run itself"
