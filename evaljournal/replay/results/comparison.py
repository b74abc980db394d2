"""Compare two runs or variants: the trials that were fixed, broke or changed, and the difference of each score.

`pairing` selects the trials, computes the differences and decides on them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from evaljournal.journal import JournalError, Record
from evaljournal.journal.events import AttemptSucceeded
from evaljournal.journal.format.blobs import digest
from evaljournal.replay.results.pairing import Key, PairedDifference, Pairing, decide, score
from evaljournal.replay.results.pairwise import order_scorers
from evaljournal.replay.results.summary import Latency, latencies, latency, models_of, output_latencies
from evaljournal.replay.state.definition import changes, has_one_model, identity, load_definition
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.totals import Totals
from evaljournal.replay.state.trial import DONE_STAGES, TrialState, Value
from evaljournal.replay.text import plural

SLOWER_FACTOR: Final = 2.0
"""Minimum ratio of B's time to A's for a trial to be listed as slower."""
SLOWER_SECONDS: Final = 0.1
"""Minimum difference in seconds for a trial to be listed as slower."""
_TASK_CHANGES: Final = frozenset({"task", "model", "dialect", "base_url", "variant", "live_model"})
"""First words of changes of a definition after which another model may be asked for."""
_DIGEST_BYTES: Final = 8
_ADDRESS: Final = re.compile(r"\bat 0x[0-9a-f]+", re.IGNORECASE)


class NothingInCommon(JournalError):
    """The two runs have no trial in common."""


def _ids(side: "Side") -> dict[Key, str]:
    has_all_variants, variant = side.variant is None, side.variant
    return {
        (trial.case, trial.variant if has_all_variants else "", trial.repeat): trial_id
        for trial_id, trial in side.state.trials.items()
        if trial.stage != "withdrawn" and (has_all_variants or trial.variant == variant)
    }


@attrs.frozen(eq=False)
class Side:
    """A run, or one variant of it."""

    state: RunState
    output_digests: Mapping[str, bytes] = attrs.field(factory=dict[str, bytes])
    """Trial → digest of its output, as `output_digests()` returns it; needed to find changed outputs."""
    variant: str | None = None
    """None: all of the run."""
    ids: Mapping[Key, str] = attrs.field(default=attrs.Factory(_ids, takes_self=True), repr=False)
    """Key → id of the trials that were not withdrawn."""

    @property
    def totals(self) -> Totals:
        return self.state.totals if self.variant is None else self.state.variants[self.variant]

    def has_scorer(self, scorer: str) -> bool:
        """Return whether the run has a scorer, even if it has scored nothing; `judge.tone` belongs to `judge`."""
        scorers = self.state.started.scorers if self.state.started else {}
        return scorer in self.totals.scores or scorer.partition(".")[0] in scorers

    @property
    def trials(self) -> dict[Key, TrialState]:
        """The trials that were not withdrawn."""
        return {key: self.state.trials[trial_id] for key, trial_id in self.ids.items()}

    @property
    def trials_per_case(self) -> float:
        """Its number of trials per case, over variants and repeats."""
        return len(self.ids) / len({case for case, _, _ in self.ids})

    @property
    def answers(self) -> "SideAnswers":
        totals, variants = self.totals, self.state.variants
        names = [*variants] if self.variant is None else [self.variant]
        models = {name: models_of(variants[name]) for name in names} if variants else {"": models_of(totals)}
        excluded = {outcome: count for outcome, count in totals.excluded.items() if count}
        definition = load_definition(self.state.started.definition) if self.state.started else None
        known_models = {name: counts for name, counts in models.items() if counts and has_one_model(definition, name)}
        return SideAnswers(totals.declined, totals.truncated, excluded, known_models)

    @property
    def latency(self) -> Latency:
        if self.variant is None:
            return latency(latencies(self.state))
        return latency(output_latencies(self.trials.values()))


@attrs.frozen
class SideAnswers:
    """How the answers of chat models in a run or a variant ended, and which models gave them."""

    declined: int
    truncated: int
    excluded: Mapping[str, int]
    """`declined` or `truncated` → number of these outputs that are not scored."""
    models: Mapping[str, Mapping[str, int]]
    """Variant (empty: none) → model that answered → number of outputs; without unknown models, and those that cases name."""

    @property
    def mixed_models(self) -> dict[str, Mapping[str, int]]:
        """Those of `models` that have several models: an alias or a gateway has changed the model within the variant."""
        return {variant: models for variant, models in self.models.items() if len(models) > 1}


def sides_by_variant(state: RunState) -> dict[str, Side]:
    """Return each variant of a run as a side, in one pass over the trials."""
    ids: dict[str, dict[Key, str]] = {variant: {} for variant in state.variants}
    for trial_id, trial in state.trials.items():
        if trial.stage != "withdrawn" and state.variants:
            ids[trial.variant][trial.case, "", trial.repeat] = trial_id
    return {variant: Side(state, variant=variant, ids=variant_ids) for variant, variant_ids in ids.items()}


def output_digests(outputs: Iterable[tuple[str, Any]]) -> dict[str, bytes]:
    """Return a digest of each trial's output; the order of keys in it does not matter, except in a blob."""
    return {trial: _digest(output) for trial, output in outputs}


def _digest(output: Any) -> bytes:
    return bytes.fromhex(digest(output)[: 2 * _DIGEST_BYTES])


def add_digest(digests: dict[str, bytes], record: Record) -> None:
    """Add the digest of the output in a record, if it has one; while a run is loaded, this takes less than `output_digests`."""
    event = record.event
    if isinstance(event, AttemptSucceeded):
        digests[event.trial] = _digest(event.output)


@attrs.frozen
class TrialChange:
    trial: str
    """Its id in B."""
    stage_a: str
    stage_b: str
    """How it ended in each run: `completed` or `failed`."""
    scores: Mapping[str, tuple[Value | None, Value | None]]
    """Scorer → its two values, where they differ; None for a missing one."""
    output_changed: bool


@attrs.frozen
class SlowerTrial:
    """A trial whose output took much longer in B."""

    trial: str
    seconds_a: float
    seconds_b: float


@attrs.frozen
class Comparison:
    """Run B compared with run A."""

    trials_a: int
    trials_b: int
    common: int
    """Trials with the same case, repeat and content in both, and the same variant if whole runs are compared."""
    compared: int
    """Common trials that are done in both."""
    not_done: int
    unchanged: int
    """Compared trials with the same output and scores, or with the same error."""
    fixed: Sequence[TrialChange]
    """A score went from fail to pass, or a failed trial now completes without a failing score; and nothing broke."""
    broken: Sequence[TrialChange]
    """A score went from pass to fail, or a completed trial now fails."""
    changed: Sequence[TrialChange]
    """Any other difference in output, label, number or error."""
    slower: Sequence[SlowerTrial]
    """Trials with an output in both that took much longer in B; largest difference first."""
    only_a: Sequence[str]
    only_b: Sequence[str]
    different_content: Sequence[str]
    """Trials that are in both but with different content; they are not compared."""
    definition_changes: Sequence[str]
    """What differs between the definitions, as in `history`: `model a → b`, `cases`, `file a.json`, `scorer exact`."""
    answers_a: SideAnswers
    answers_b: SideAnswers
    model_drift: bool
    """Whether the two were served by different models, although they requested the same model."""
    scorers_only_a: Sequence[str]
    scorers_only_b: Sequence[str]
    """Scorers that the other run does not have; their values are not compared."""
    scores: Mapping[str, PairedDifference]
    latency: PairedDifference
    """Latency per output in seconds, compared in the same way but tested alone."""
    completion: PairedDifference
    """Share of trials with all scores, compared in the same way but tested alone: others are in no mean."""
    groups: Mapping[str, Mapping[str, PairedDifference]] | None
    """Group → scorer → difference over its cases; None if no grouping was requested."""


def compare(a: Side, b: Side, *, groups: Mapping[str, str] | None = None) -> Comparison:
    """Compare run B with run A; with `groups` (trial of A → group), also the scores of each group.

    Raises:
        NothingInCommon: No trial is in both runs with the same content.
    """
    ids_a, ids_b = a.ids, b.ids
    states_a, states_b = a.trials, b.trials
    pairing = Pairing(states_a, states_b)
    if not pairing.common_keys:
        raise _nothing_in_common(a, b, pairing)

    done_keys = [
        key for key in pairing.common_keys if states_a[key].stage in DONE_STAGES and states_b[key].stage in DONE_STAGES
    ]
    scorers, definition_changes = common_scorers(a, b), _definition_changes(a, b)
    changes: dict[str, list[TrialChange]] = {"fixed": [], "broken": [], "changed": []}
    for key in done_keys:
        output_changed = a.output_digests.get(ids_a[key]) != b.output_digests.get(ids_b[key])
        kind, change = _classify(ids_b[key], states_a[key], states_b[key], scorers, output_changed=output_changed)
        if kind != "unchanged":
            changes[kind].append(change)

    return Comparison(
        trials_a=len(states_a),
        trials_b=len(states_b),
        common=len(pairing.common_keys),
        compared=len(done_keys),
        not_done=len(pairing.common_keys) - len(done_keys),
        unchanged=len(done_keys) - sum(map(len, changes.values())),
        fixed=changes["fixed"],
        broken=changes["broken"],
        changed=changes["changed"],
        slower=_slower_trials((ids_b[key], states_a[key], states_b[key]) for key in pairing.common_keys),
        only_a=[ids_a[key] for key in pairing.only_a],
        only_b=[ids_b[key] for key in pairing.only_b],
        different_content=[ids_b[key] for key in pairing.different_content],
        definition_changes=definition_changes,
        answers_a=a.answers,
        answers_b=b.answers,
        model_drift=a.variant == b.variant
        and _TASK_CHANGES.isdisjoint(change.partition(" ")[0] for change in definition_changes)
        and any(b.answers.models.get(variant, models).keys() != models.keys() for variant, models in a.answers.models.items()),
        scorers_only_a=[scorer for scorer in a.totals.scores if not b.has_scorer(scorer)],
        scorers_only_b=[scorer for scorer in b.totals.scores if not a.has_scorer(scorer)],
        scores=decide(pairing.scores(scorers)),
        latency=decide({"": pairing.latency()}, is_time=True)[""],
        completion=decide({"": pairing.completion(scorers)})[""],
        groups=None
        if groups is None
        else _decide_groups(pairing, scorers, {key: groups[trial_id] for key, trial_id in ids_a.items() if trial_id in groups}),
    )


def _decide_groups(
    pairing: Pairing, scorers: Sequence[str], groups: Mapping[Key, str]
) -> dict[str, dict[str, PairedDifference]]:
    """Compare the scores of each group; those of all groups are tested together."""
    scores_by_group = pairing.group_scores(scorers, groups)
    differences = decide(
        {(group, scorer): value for group, scores in scores_by_group.items() for scorer, value in scores.items()}
    )
    return {group: {scorer: differences[group, scorer] for scorer in scores} for group, scores in scores_by_group.items()}


def common_scorers(a: Side, b: Side) -> list[str]:
    """Return the scorers that both have, without those of single orders."""
    names = [scorer for scorer in {**a.totals.scores, **b.totals.scores} if a.has_scorer(scorer) and b.has_scorer(scorer)]
    omitted = order_scorers(a.state) | order_scorers(b.state)
    return [name for name in names if name not in omitted]


def _nothing_in_common(a: Side, b: Side, pairing: Pairing) -> NothingInCommon:
    sides_with_variants = [name for name, side in (("A", a), ("B", b)) if side.variant is None and any(side.state.variants)]
    hint = f"; {sides_with_variants[0]} has variants: pass one of them as RUN@VARIANT" if len(sides_with_variants) == 1 else ""
    return NothingInCommon(
        f"the two runs have no trial in common: {plural(len(pairing.only_a), 'trial')} only in A, "
        f"{len(pairing.only_b):,} only in B, {len(pairing.different_content):,} with different content{hint}"
    )


def _definition_changes(a: Side, b: Side) -> list[str]:
    """Return what differs between the definitions; of two variants, only one that both have by the same name counts."""
    identities: list[dict[str, Any]] = []
    for side in (a, b):
        run_identity = {} if side.state.started is None else identity(side.state.started)
        if run_identity and (a.variant is not None or b.variant is not None):
            variants = run_identity["variants"].items()
            run_identity["variants"] = {name: value for name, value in variants if name == a.variant == b.variant}
        identities.append(run_identity)
    return list(changes(*identities))


def _classify(
    trial_id: str, a: TrialState, b: TrialState, scorers: Iterable[str], *, output_changed: bool
) -> tuple[Literal["unchanged", "fixed", "broken", "changed"], TrialChange]:
    scores = {scorer: (score(a, scorer), score(b, scorer)) for scorer in scorers}
    changed_scores = {scorer: pair for scorer, pair in scores.items() if pair[0] != pair[1]}
    has_outputs = a.output_location is not None and b.output_location is not None
    change = TrialChange(trial_id, a.stage, b.stage, changed_scores, output_changed and has_outputs)

    stages, pairs = (a.stage, b.stage), changed_scores.values()
    lost_scores = (name for name, (value_a, _) in changed_scores.items() if value_a is True)
    if (
        stages == ("completed", "failed")
        or any(value_a is True and value_b is False for value_a, value_b in pairs)
        or any(name.partition(".")[0] in b.unscored for name in lost_scores)
    ):
        return "broken", change

    if any(value_a is False and value_b is True for value_a, value_b in pairs):
        return "fixed", change
    if stages == ("failed", "completed"):
        return "changed" if any(value_b is False for _, value_b in pairs) else "fixed", change

    is_same = not (changed_scores or change.output_changed) and (a.stage == "completed" or _error(a) == _error(b))
    return "unchanged" if is_same else "changed", change


def _error(trial: TrialState) -> str:
    """Return a trial's error without memory addresses (`<object at 0x7f3a…>`)."""
    return _ADDRESS.sub("at 0x…", trial.error)


def _slower_trials(pairs: Iterable[tuple[str, TrialState, TrialState]]) -> list[SlowerTrial]:
    slower_trials: list[SlowerTrial] = []
    for trial_id, a, b in pairs:
        before, after = a.latency, b.latency
        if before is None or after is None:
            continue
        if after >= SLOWER_FACTOR * before and after - before >= SLOWER_SECONDS:
            slower_trials.append(SlowerTrial(trial_id, before, after))
    return sorted(slower_trials, key=lambda trial: trial.seconds_a - trial.seconds_b)
