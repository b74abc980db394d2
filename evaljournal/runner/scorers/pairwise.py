"""Pairwise judging: a judge compares each output of a run with the output of the same trial in another run.

It is asked in both orders, each by a scorer of its own, so that each call is recorded, retried and paid once. `BothOrders`
combines the two verdicts. Nothing of the other run is executed: its outputs are read from its journal.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, cast

import attrs

from evaljournal.journal.events import AttemptSucceeded, Record
from evaljournal.journal.readers.reader import fetch, read
from evaljournal.replay import RunState, fold
from evaljournal.replay.results.comparison import Side
from evaljournal.replay.results.pairwise import LOSS, TIE, WIN, combine
from evaljournal.replay.runs.trajectory import StepDetails
from evaljournal.replay.text import as_text, plural
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.fingerprint import canonical, digest
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.scorers.llm_judge import CHOICES, RUBRIC, Judge
from evaljournal.runner.scorers.scorer import Score, Scorer, ScorerInput

PAIR_RUBRIC: Final = """Which of two answers to a question is better? Their order and their length do not matter.

Question:
{input}

Expected answer (null: unknown):
{expected}

First answer:
{first_output}

Second answer:
{second_output}"""
FIELDS: Final = ("first_output", "second_output")
Order = Literal["first", "second"]
"""The position of the output of the run that is scored."""


class OtherRun:
    """The run, or one variant of it, with whose outputs those of a run are compared; they are read when they are needed."""

    def __init__(self, path: Path, variant: str | None = None) -> None:
        records = read(path, load_blobs=False)
        self.path, self.variant = path, variant
        outputs: dict[str, list[int]] = {}
        """Trial → the records of its outputs."""
        self.state = fold(_note_outputs(records, outputs))
        self.run = records.run
        self.replaced = {trial: seqs[-1] for trial, seqs in sorted(outputs.items()) if len(seqs) > 1}
        """Trial whose output replaced another one → the record of the last; part of the judge's version."""
        if variant is not None and variant not in self.state.variants:
            raise UsageError(f"{path} has no variant {variant!r}{suggest(variant, self.state.variants)}")
        self.pairs: dict[str, str] = {}
        """Trial of the run that is scored → the trial that its output is compared with; set by `pair`."""
        self.unpaired: Counter[str] = Counter()
        """Why trials of that run are not compared → their number; set by `pair`."""

    @property
    def matches_variants(self) -> bool:
        """Whether outputs are compared with those of the same variant; otherwise all are compared with one."""
        return self.variant is None and any(self.state.variants)

    @property
    def name(self) -> str:
        """Its name in the names of scores: the variant, or the name of its directory."""
        text = "".join(char if char.isalnum() else "-" for char in self.variant or self.path.resolve().name)
        return text.strip("-") or "other"

    def pair(self, own_run: str, state: RunState) -> None:
        """Set `pairs`: the trials with equal names and contents that have an output in both runs.

        Variants are part of the names, unless the other run has none or one of them was selected.

        Raises:
            UsageError: There are none, or the run would be compared with itself.
        """
        if own_run == self.run and self.variant is None:
            hint = "pass RUN@VARIANT to compare its variants with one of them" if any(state.variants) else ""
            raise UsageError(f"--against {self.path} is the run that is scored", hint=hint)

        others = Side(self.state, variant=self.variant).ids
        self.pairs, self.unpaired = {}, Counter()
        for (case, variant, repeat), trial in Side(state).ids.items():
            if own_run == self.run and variant == self.variant:
                continue
            other_trial = others.get((case, variant if self.matches_variants else "", repeat))
            if other_trial is None:
                self.unpaired[f"not in {self.path}"] += 1
            elif state.trials[trial].fingerprint != self.state.trials[other_trial].fingerprint:
                self.unpaired["with different content"] += 1
            elif not (state.trials[trial].is_scorable and self.state.trials[other_trial].is_scorable):
                self.unpaired["without an output in both"] += 1
            else:
                self.pairs[trial] = other_trial

        if not self.pairs:
            counts = self.unpaired_text or "the run has no trials"
            raise UsageError(f"no trial has an output to compare with one of {self.path}: {counts}")

    @property
    def unpaired_text(self) -> str:
        """The trials that are not compared: `3 trials with different content`; empty if all are."""
        return ", ".join(f"{plural(count, 'trial')} {problem}" for problem, count in self.unpaired.items())

    def output(self, trial: str) -> Any:
        """Return the output that the output of a trial is compared with."""
        location = self.state.trials[self.pairs[trial]].output_location
        assert location is not None
        event = fetch(self.path, *location).event
        assert isinstance(event, AttemptSucceeded)
        return event.output

    def notes(self, scorers: Mapping[str, Scorer], own_run: str, path: Path) -> Iterator[dict[str, Any]]:
        """Yield what a run records of each judge and of this run, so that results can be checked when it is gone."""
        against: dict[str, Any] = {"run": self.run, "path": str(self.path), "head": self.state.head, "seq": self.state.seq}
        against["variant"] = None if self.matches_variants else self.variant or ""
        for name, scorer in scorers.items():
            if scorer.combines:
                judge = cast("PairJudge", scorers[scorer.combines[0]].function)
                yield {
                    "scorer": name,
                    "orders": list(scorer.combines),
                    "versions": {own_name: scorers[own_name].version for own_name in (name, *scorer.combines)},
                    "judge": {"model": judge.chat.model, "version": judge.judge_fingerprint},
                    "pairs": len(self.pairs),
                    "run": own_run,
                    "path": str(path),
                    "against": against,
                }


def _note_outputs(records: Iterable[Record], outputs: dict[str, list[int]]) -> Iterator[Record]:
    for record in records:
        if isinstance(record.event, AttemptSucceeded):
            outputs.setdefault(record.event.trial, []).append(record.seq)
        yield record


@attrs.frozen(kw_only=True)
class PairJudge(Judge):
    """A judge that compares two outputs, in one of the two orders."""

    __name__ = "pair_judge"

    required_fields: ClassVar[Sequence[Sequence[str]]] = tuple((name,) for name in FIELDS)

    other_run: OtherRun = attrs.field(eq=False, repr=False)
    order: Order

    @property
    def judge_fingerprint(self) -> str:
        """Digest of the model and the rubric, without the order and the other run."""
        return super().fingerprint

    @property
    def definition(self) -> dict[str, Any]:
        against = {"run": self.other_run.run, "variant": self.other_run.variant}
        return {**super().definition, "against": against, "order": self.order}

    @property
    def fingerprint(self) -> str:
        other_run = self.other_run
        parts = [self.judge_fingerprint, other_run.run, other_run.variant, self.order]
        return digest(canonical([*parts, other_run.replaced] if other_run.replaced else parts, "the judge"))

    def scorer_prompt(self, scorer_input: ScorerInput) -> str:
        outputs = [scorer_input.output, self.other_run.output(scorer_input.trial)]
        return self.prompt(outputs if self.order == "first" else outputs[::-1], scorer_input.case)

    def prompt(self, output: Any, case: Case, _: Sequence[StepDetails] = ()) -> str:
        """Return the prompt for a pair of outputs, in their order."""
        return self.fill(dict(zip(FIELDS, map(as_text, output or ("", "")), strict=True)), case)

    def details(self, scorer_input: ScorerInput) -> dict[str, Any]:
        output = as_text(self.other_run.output(scorer_input.trial))
        against = {
            "run": self.other_run.run,
            "trial": self.other_run.pairs[scorer_input.trial],
            "output_sha256": hashlib.sha256(output.encode(errors="surrogatepass")).hexdigest(),
        }
        return {"order": self.order, "against": against}


@attrs.frozen
class BothOrders:
    """The score of a pair: `win` or `loss` if both orders agree on it, otherwise `tie`."""

    __name__ = "pairwise"
    is_local: ClassVar[bool] = True

    combines: tuple[str, str]
    """The scorers of the two orders."""
    fingerprint: str

    @property
    def definition(self) -> dict[str, Any]:
        return {"combines": list(self.combines)}

    def __call__(self) -> Score:
        """Raise an error: it needs the scores of a trial."""
        raise NotImplementedError

    def combine(self, scores: Mapping[str, Any]) -> Score:
        """Return the score of a trial that has these values of the current scorers."""
        missing = [name for name in self.combines if name not in scores]
        if missing:
            raise Fatal(f"no verdict of {' and '.join(missing)}")
        first, second = (scores[name] for name in self.combines)
        return Score(combine(first, second), f"first: {first}, second: {second}")


def pairwise_scorers(name: str, judge: Judge, other_run: OtherRun) -> Iterator[tuple[str, Any]]:
    """Yield the scorers of a pairwise judge with their names; one with the default rubric gets that for pairs."""
    if not isinstance(judge, Judge):
        raise UsageError(f"{judge!r} is not a judge, which `judge(MODEL)` returns")
    if dict(judge.choices) != dict(CHOICES):
        raise UsageError("a pairwise judge has its own choices (first, second, tie); remove choice")

    rubric = PAIR_RUBRIC if judge.rubric == RUBRIC else judge.rubric
    full_name = f"{name}-vs-{other_run.name}"
    orders: dict[Order, tuple[str, str]] = {"first": (WIN, LOSS), "second": (LOSS, WIN)}
    judges = [
        PairJudge(
            chat=judge.chat,
            rubric=rubric,
            choices={"first": first, "second": second, TIE: TIE},
            timeout=judge.timeout,
            other_run=other_run,
            order=order,
        )
        for order, (first, second) in orders.items()
    ]
    names = f"{full_name}-first", f"{full_name}-second"
    yield from zip(names, judges, strict=True)
    yield full_name, BothOrders(names, digest(canonical([pair_judge.fingerprint for pair_judge in judges], "the judge")))
