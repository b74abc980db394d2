"""Digests: the results of a run in a compact form, for lists of runs and histories.

A digest has the results of each variant, and the content, the outcome and the scores of each case. It can be kept as JSON.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import orjson

from evaljournal.replay.render.ending import ending_text, total_trials
from evaljournal.replay.results.summary import latency, models_of, output_latencies, score_of
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.runs.loaded_run import LoadedRun
from evaljournal.replay.state.definition import identity, requested_models
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.tally import Tally, is_summable, main_scorer
from evaljournal.replay.state.totals import Totals
from evaljournal.replay.state.trial import TrialState, outcome_of
from evaljournal.replay.state.usage import as_integer, total

VERSION: Final = 8
"""Version of the JSON; change it with the fields."""

PASSED: Final = "p"
FAILED: Final = "f"
"""Completed, with a false score."""
ERROR: Final = "e"
"""The trial or one of its scorers failed."""
MIXED: Final = "m"
"""Some repeats passed, and some did not."""
OPEN: Final = "-"


@attrs.frozen(kw_only=True)
class ScoreDigest:
    """The mean of one scorer's numbers."""

    kind: Literal["pass", "number"]
    cases: int
    """Cases with a number."""
    mean: float
    low: float | None
    high: float | None
    """95 % confidence interval of the mean."""
    version: str
    """Version of the scorer; empty if there are values of several."""


@attrs.frozen(kw_only=True)
class VariantDigest:
    """The results of one variant of a run, or of a run without variants."""

    variant: str = ""
    """Empty without variants."""
    completed: int = 0
    failed: int = 0
    p95: float | None = None
    """95th percentile of the latency of outputs, in seconds."""
    cost: float | None = None
    """Cost of task and judges in dollars; None if unknown."""
    unpriced_calls: int = 0
    """Calls without a price; the cost does not include them."""
    scores: Mapping[str, ScoreDigest] = attrs.field(factory=dict[str, ScoreDigest])
    """Scorer → its mean, in the order of the definition; scorers with labels only are omitted."""


@attrs.frozen(kw_only=True)
class CaseColumns:
    """The cases of one variant, in columns, because most runs have the same cases."""

    cases: Sequence[str] = ()
    fingerprints: Sequence[str] = ()
    """The content of each case."""
    outcomes: str = ""
    """A letter for each case: `PASSED`, `FAILED`, `ERROR`, `MIXED` or `OPEN`."""
    values: Mapping[str, Sequence[Any]] = attrs.field(factory=dict[str, Sequence[Any]])
    """Scorer → for each case its number, None, or a list of the numbers of its repeats."""


@attrs.frozen(kw_only=True)
class RunDigest:
    evaluation: str | None = None
    started_at: str | None = None
    identity: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """What its results depend on, as `definition.identity` returns it; empty if unknown."""
    shard: str = ""
    """The shard that it contains, such as `3/8`; empty: all cases."""
    status: str
    """As in `LoadedRun.status`, or `unreadable`."""
    outcome: str
    """How it ended, in a few words."""
    completed: int | None = None
    failed: int | None = None
    trials: int | None = None
    """Total number of trials; None if unknown."""
    elapsed: float | None = None
    """Seconds of all sessions."""
    head: str = ""
    """The hash of the last record."""
    cost: float | None = None
    """Cost in dollars, including that of removed variants; None if unknown."""
    models: Sequence[str] = ()
    """The models that its definition names; if it names none, those that answered."""
    variants: Sequence[VariantDigest] = ()

    @property
    def is_usable(self) -> bool:
        return self.status not in {"damaged", "unreadable"}

    @property
    def has_results(self) -> bool:
        """Whether it has results, not only counts."""
        return bool(self.variants)

    @property
    def scorers(self) -> list[str]:
        """The scorers with a mean."""
        return list(dict.fromkeys(name for variant in self.variants for name in variant.scores))

    def means_of(self, scorer: str) -> list[ScoreDigest]:
        """Return the mean of a scorer in each variant that has one."""
        return [variant.scores[scorer] for variant in self.variants if scorer in variant.scores]

    @property
    def git(self) -> str:
        """The git revision; empty if unknown."""
        return str(self.identity.get("revision", ""))


def digest(run: LoadedRun) -> tuple[RunDigest, list[CaseColumns]]:
    """Return the digest of a run, and the cases of each of its variants."""
    state, run_started = run.state, run.state.started
    variants = list(_trials_by_variant(state))
    run_digest = RunDigest(
        evaluation=run_started.evaluation if run_started else None,
        started_at=state.sessions[0].at if state.sessions else None,
        identity={} if run_started is None else identity(run_started),
        shard=run_started.shard if run_started else "",
        status=run.status,
        outcome=short_ending(run),
        completed=state.completed,
        failed=state.failed,
        trials=total_trials(state),
        elapsed=state.elapsed,
        head=state.head,
        cost=_cost(state.usage),
        models=(requested_models(run_started.definition) if run_started else []) or list(models_of(state.totals)),
        variants=[_variant_digest(*variant) for variant in variants],
    )
    return run_digest, [_case_columns(trials, totals.scores) for _, trials, totals in variants]


def short_ending(run: LoadedRun) -> str:
    """Return how a run ended in a few words, for a table."""
    if run.problem is not None or run.is_live:
        return run.status
    return ending_text(run.state) if run.state.outcome else "no final record"


def _trials_by_variant(state: RunState) -> Iterator[tuple[str, list[TrialState], Totals]]:
    """Yield each variant that was not removed with its trials and sums; without variants, those of the run."""
    trials: dict[str, list[TrialState]] = {variant: [] for variant in state.variants or ("",)}
    for trial in state.trials.values():
        if trial.stage != "withdrawn":
            trials[trial.variant].append(trial)
    for variant, totals in (state.variants or {"": state.totals}).items():
        if trials[variant] or not state.variants:
            yield variant, trials[variant], totals


def _variant_digest(variant: str, trials: Sequence[TrialState], totals: Totals) -> VariantDigest:
    return VariantDigest(
        variant=variant,
        completed=totals.completed,
        failed=totals.failed,
        p95=latency(output_latencies(trials)).p95,
        cost=_cost(totals.usage),
        unpriced_calls=as_integer(total(totals.usage, "unpriced_calls") or 0),
        scores={name: score for name, tally in totals.scores.items() if (score := score_digest(tally)) is not None},
    )


def _cost(usage: Mapping[str, float]) -> float | None:
    cost = total(usage, "cost")
    return None if cost is None else float(cost)


def score_digest(tally: Tally) -> ScoreDigest | None:
    """Return the mean of a scorer's numbers; None without numbers."""
    score = score_of(tally)
    if score.mean is None:
        return None
    return ScoreDigest(
        kind="pass" if score.kind == "pass" else "number",
        cases=score.cases,
        mean=score.mean,
        low=score.low,
        high=score.high,
        version=tally.version if score.versions == 1 else "",
    )


def first_score(run: RunDigest) -> str | None:
    """Return the scorer whose mean is listed for a run: the main one of the first variant with scores."""
    return next((main_scorer((name, score.kind) for name, score in v.scores.items()) for v in run.variants if v.scores), None)


def _case_columns(trials: Iterable[TrialState], scores: Mapping[str, Tally]) -> CaseColumns:
    fingerprints: dict[str, str] = {}
    outcomes: dict[str, str] = {}
    values: dict[str, dict[str, list[float]]] = {name: {} for name, tally in scores.items() if tally.numbers}
    for trial in trials:
        case, outcome = trial.case, _LETTERS[outcome_of(trial)]
        fingerprints[case] = trial.fingerprint
        outcomes[case] = _combine(outcomes[case], outcome) if case in outcomes else outcome
        for scorer, (_, value) in trial.scores.items():
            if is_summable(value):
                values[scorer].setdefault(case, []).append(value)
    return CaseColumns(
        cases=list(fingerprints),
        fingerprints=list(fingerprints.values()),
        outcomes="".join(outcomes.values()),
        values={scorer: [_case_value(by_case.get(case)) for case in fingerprints] for scorer, by_case in values.items()},
    )


_LETTERS: Final = {"passed": PASSED, "failure": FAILED, "error": ERROR, "skipped": OPEN}


def _combine(outcome: str, other_outcome: str) -> str:
    """Return the outcome of two repeats; an error does not count if the other repeat has a result."""
    for letter in (OPEN, ERROR):
        if letter in (outcome, other_outcome):
            return other_outcome if outcome == letter else outcome
    return outcome if outcome == other_outcome else MIXED


def _case_value(numbers: list[float] | None) -> Any:
    return None if numbers is None else numbers[0] if len(numbers) == 1 else numbers


def to_json(run_digest: RunDigest, columns: Sequence[CaseColumns]) -> tuple[bytes, bytes]:
    """Return a digest as two lines of JSON: the run, and the cases of its variants."""
    run_json, cases_json = map(orjson.dumps, (view_json(run_digest), [view_json(variant) for variant in columns]))
    return run_json + b"\n", cases_json + b"\n"


def run_from_json(line: bytes) -> RunDigest:
    """Return the run from its line of `to_json`."""
    fields = orjson.loads(line)
    for variant in fields["variants"]:
        variant["scores"] = {name: ScoreDigest(**score) for name, score in variant["scores"].items()}
    return RunDigest(**{**fields, "variants": [VariantDigest(**variant) for variant in fields["variants"]]})


def columns_from_json(line: bytes) -> list[CaseColumns]:
    """Return the cases of a run's variants from their line of `to_json`."""
    return [CaseColumns(**variant) for variant in orjson.loads(line)]
