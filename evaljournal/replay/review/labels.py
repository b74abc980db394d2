"""The labels and samples of a run's review, read from its journal in `RUN/review/`.

A label belongs to the content of a case and of an output, so it also holds in other runs of the evaluation that have both.

Which outputs are labeled is a random sample that anyone can compute again from its seed and the records. The random order is
that of the SHA-256 of seed and trial, so it does not depend on a random number generator.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import attrs

from evaljournal.journal import Event, JournalError, Record, read
from evaljournal.journal.disk.segments import REVIEW, is_run
from evaljournal.journal.events import Annotated, ReviewSampled, ReviewSaved, ReviewStarted, SegmentOpened
from evaljournal.journal.fact import evolve_fact, fact, fields_of
from evaljournal.journal.format.blobs import digest
from evaljournal.replay.results.pairing import score
from evaljournal.replay.runs.loaded_run import LoadedRun, read_values, reject_invalid_record
from evaljournal.replay.state.trial import TrialState, Value
from evaljournal.replay.state.usage import is_amount

Method = Literal["uniform", "stratified", "disagreements"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)
_STRATA: Final = 4
"""Strata of numbers, and of labels without the rare ones."""


class OutputKey(NamedTuple):
    """What a label belongs to."""

    case: str
    fingerprint: str
    """Fingerprint of the case's content."""
    output: str
    """Digest of the output."""


@fact
class Label(Annotated):
    """A label that a reviewer gave to an output; empty text withdraws the reviewer's earlier one."""

    seq: int
    """Its record in the journal of the review."""
    at: str

    @property
    def key(self) -> OutputKey:
        return OutputKey(self.case, self.fingerprint, self.output)


@fact
class Sample(ReviewSampled):
    """Trials that were drawn at random before they were labeled."""

    seq: int
    """Its record in the journal of the review."""


LabelKey = tuple[OutputKey, str, str]
"""An output, the name of a label and its reviewer."""


@attrs.define
class Review:
    """The state of a review after some record."""

    run: str = ""
    """Id of the run; empty without a review."""
    head: str = ""
    """Hash of the run's last record when the review started."""
    evaluation: str = ""
    samples: dict[int, Sample] = attrs.field(factory=dict[int, Sample])
    history: list[Label] = attrs.field(factory=list[Label])
    """All labels in the order in which they were given, also those that were replaced."""
    newest: dict[LabelKey, Label] = attrs.field(factory=dict[LabelKey, Label])
    """The newest label of each reviewer, also if it withdraws an earlier one."""
    imported: list[Label] = attrs.field(factory=list[Label])
    """Labels of an import that is not complete; they do not count."""
    is_importing: bool = False

    @property
    def labels(self) -> list[Label]:
        """The labels that count: the newest of each reviewer for each output and name."""
        return [label for label in self.newest.values() if label.value != ""]

    def answers(self, sample: Sample) -> list[Label]:
        """Return the labels that count for a sample: given after it was drawn, or carried over from another run."""
        return [
            label
            for label in self.labels
            if label.name == sample.name and label.trial in sample.trials and (label.seq > sample.seq or label.carried_from)
        ]

    def sample_of(self, trial: str, name: str) -> int:
        """Return the newest sample that a trial was drawn for; 0 if there is none."""
        return max((id_ for id_, item in self.samples.items() if item.name == name and trial in item.trials), default=0)

    def apply(self, record: Record) -> None:
        """Apply the next record; its values must not be in blobs."""
        match record.event:
            case ReviewStarted() as event:
                self.run, self.head, self.evaluation = event.run, event.head, event.evaluation
            case ReviewSampled() as event:
                _check_probabilities(event.trials)
                self.samples[event.sample] = Sample(seq=record.seq, **_fields(event))
            case Annotated() as event:
                label = Label(seq=record.seq, at=record.at, **_fields(event))
                if self.is_importing:
                    self.imported.append(label)
                else:
                    self._add(label)
            case ReviewSaved() as event:
                for label in self.imported if event.imports == "completed" else ():
                    self._add(label)
                self.imported.clear()
                self.is_importing = event.imports == "begun"

    def _add(self, label: Label) -> None:
        self.history.append(label)
        self.newest[label.key, label.name, label.reviewer] = label


def _fields(event: Event) -> dict[str, Any]:
    return {field.name: getattr(event, field.name) for field in fields_of(type(event))}


def _check_probabilities(probabilities: Any) -> None:
    if not isinstance(probabilities, dict):
        raise TypeError("trials is not an object")
    for trial, probability in probabilities.items():
        if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 < probability <= 1:
            raise ValueError(f"the probability of {trial!r:.80} is {probability!r:.80}")


def review_path(run: Path) -> Path:
    """Return the directory of a run's review; raise if it is a file, or a symlink, which could point elsewhere."""
    path = run / REVIEW
    if path.is_symlink():
        raise JournalError(f"{path} is a symlink; a review is a directory in its run", path=path)
    if path.is_file():
        raise JournalError(f"{path} is a file; a review is a directory in its run; move the file elsewhere", path=path)
    return path


def run_id(path: Path) -> str:
    """Return the id of the run or the review at a path; empty without a record."""
    header = next(iter(read(path, load_blobs=False)), None)
    return header.event.run if header is not None and isinstance(header.event, SegmentOpened) else ""


def read_review(run: Path) -> Review:
    """Read the review of a run; an empty one if it has none.

    Raises:
        JournalError: The journal of the review is damaged, or belongs to another run.
    """
    path = review_path(run)
    review = fold_review(path) if is_run(path) else Review()
    if review.run and review.run != run_id(run):
        raise JournalError(f"{path} is the review of another run, {review.run}; move it to that run", path=path)
    return review


def fold_review(path: Path) -> Review:
    review, seq = Review(), 1
    with reject_invalid_record(path, lambda: seq):
        for record in read(path):
            seq = record.seq
            review.apply(record)
    if not review.run and seq > 1:
        raise JournalError(f"{path} is not the journal of a review; move it elsewhere", path=path)
    return review


def has_output(trial: TrialState) -> bool:
    """Return whether a trial has an output that can be labeled."""
    return trial.output_location is not None and trial.stage in {"scoring", "completed"}


def output_keys(run: LoadedRun, trials: Iterable[str]) -> dict[str, OutputKey]:
    """Return what a label of each of these trials belongs to; trials without an output are left out."""
    states = run.state.trials
    names = [name for name in trials if has_output(states[name])]
    return {
        values.trial: OutputKey(states[values.trial].case, states[values.trial].fingerprint, digest(values.output))
        for values in read_values(run.path, states, names)
    }


def labels_by_trial(run: LoadedRun, review: Review) -> dict[str, list[Label]]:
    """Return the labels of each trial's current output: those of its review, and those of other runs that have this output.

    Other runs are those of the same evaluation in the same directory. A reviewer's own label in this run replaces theirs.
    """
    return labels_of_outputs(run, (*_labels_of_other_runs(run, review), *review.newest.values()))


def labels_of_outputs(run: LoadedRun, labels: Iterable[Label]) -> dict[str, list[Label]]:
    """Return those of the labels that belong to the current output of a trial, by trial; of equal ones, the last counts."""
    by_key: dict[OutputKey, dict[tuple[str, str], Label]] = {}
    for label in labels:
        by_key.setdefault(label.key, {})[label.name, label.reviewer] = label
    cases = {key[:2] for key in by_key}
    names = [name for name, trial in run.state.trials.items() if (trial.case, trial.fingerprint) in cases]
    by_trial = {
        trial: [evolve_fact(label, trial=trial) for label in by_key[key].values() if label.value != ""]
        for trial, key in output_keys(run, names).items()
        if key in by_key
    }
    return {trial: own for trial, own in by_trial.items() if own}


def _labels_of_other_runs(run: LoadedRun, review: Review) -> Iterator[Label]:
    """Yield the labels of the other runs in the directory of a run, in the order in which they were given."""
    own_id = review.run or run_id(run.path)
    evaluation = run.state.started.evaluation if run.state.started else ""
    labels: list[Label] = []
    for path in run.path.resolve().parent.glob(f"*/{REVIEW}"):
        try:
            other = Review() if path.is_symlink() or not is_run(path) else fold_review(path)
        except (JournalError, OSError):
            continue  # `verify` of that run reports it.
        if other.evaluation == evaluation and other.run != own_id:
            labels += [evolve_fact(label, sample=0, replaces=0, carried_from=other.run) for label in other.newest.values()]
    yield from sorted(labels, key=lambda label: label.at)


def population(trials: Mapping[str, TrialState], name: str) -> list[str]:
    """Return the trials that can be drawn: those with an output, and with a score of this name if there are any."""
    outputs = [trial for trial, state in trials.items() if has_output(state) and not state.is_excluded]
    return [trial for trial in outputs if trials[trial].score(name) is not None] or outputs


Stratum = Callable[[str], Hashable]
_Trials = Mapping[str, TrialState]


def _stratified(trials: _Trials, names: Sequence[str], name: str) -> Stratum:
    """One stratum for each score, or each quarter of the numbers; rare labels are one stratum."""
    values = {trial: score(trials[trial], name) for trial in names}
    numbers = sorted(filter(is_amount, values.values()))
    bounds = [numbers[len(numbers) * quarter // _STRATA] for quarter in range(1, _STRATA)] if numbers else []
    common_values = {value for value, _ in Counter(values.values()).most_common(_STRATA)}

    def stratum(trial: str) -> Hashable:
        value = values[trial]
        if is_amount(value):
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
