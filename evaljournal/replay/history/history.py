"""The history of an evaluation: its results run by run, and the cases that broke, were fixed or are flaky.

The runs are compared on the cases of the reference, usually the newest finished run, that have the same name and content in all
of them. Pure functions of digests.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, pairwise
from typing import Any, Final, Literal, NamedTuple

import attrs

from evaljournal.replay.history.digest import (
    ERROR,
    MIXED,
    OPEN,
    PASSED,
    CaseColumns,
    RunDigest,
    ScoreDigest,
    VariantDigest,
    first_score,
    score_digest,
)
from evaljournal.replay.state.definition import changes, definition_key
from evaljournal.replay.state.tally import Tally

_MIN_SHARE: Final = 0.5
"""A run with a smaller share of the cases of the largest run (`--limit 1`) is not the reference; a run that would leave a
smaller share of the cases of the reference in common is not part of the trend."""


class Entry(NamedTuple):
    path: str
    run: RunDigest
    columns: Sequence[CaseColumns]


@attrs.frozen(kw_only=True)
class Point:
    """The results of a run, or of one variant of it."""

    path: str
    variant: str
    """Empty without variants."""
    started_at: str | None
    git: str
    """The git revision; empty if unknown."""
    changed: Sequence[str] = ()
    """What differs from the previous run: `model a → b`, `cases`, `file a.json`, `scorer exact`."""
    previous: str | None = None
    """The last earlier run with results for these cases; None if there is none."""
    broken: Sequence[str] = ()
    """Cases that passed in `previous` and no longer do."""
    fixed: Sequence[str] = ()
    """Cases that did not pass in `previous` and now do."""
    head: str
    status: str
    """`running`, `finished`, `stopped`, `interrupted`, `damaged` or `unreadable`; the last two have no results."""
    outcome: str
    """How the run ended, in a few words."""
    cases: int
    """All cases of the run."""
    common: int
    """Cases of the mean: those in common with all runs of the trend; if `is_partial`, with the reference."""
    has_other_data: bool
    """Whether it has cases that are missing in the reference or have different content there."""
    is_partial: bool
    """Whether it has too few cases of the reference to be part of the trend."""
    score: ScoreDigest | None
    """The mean over the common cases; None without numbers."""
    scorer_changed: bool
    """Whether the scorer's version is not that of the reference."""
    failed: int
    p95: float | None
    """95th percentile of the latency of all outputs, in seconds."""
    cost: float | None
    """Cost of all cases, in dollars; None if unknown."""
    unpriced_calls: int
    """Calls that the cost does not include."""


@attrs.frozen(kw_only=True)
class CaseHistory:
    case: str
    variant: str
    outcomes: str
    """A letter for each run, oldest first: `p` passed, `f` false score, `e` error, `m` repeats differ, `-` no result."""
    since: str | None
    """The first run in which it was broken or fixed; None for a flaky case."""


@attrs.frozen(kw_only=True)
class History:
    """The runs of an evaluation, oldest first."""

    evaluation: str
    scorer: str | None
    """The score that is shown; None if there is no score with numbers."""
    reference: str | None
    """The run on whose cases the others are compared; None without results."""
    cases: int
    """Cases of the reference."""
    common: int
    """Cases of the reference that all runs of the trend have in common."""
    runs: Sequence[str]
    """Paths of the usable runs, oldest first; each letter of `CaseHistory.outcomes` belongs to one."""
    points: Sequence[Point]
    broken: Sequence[CaseHistory]
    """Cases that passed in an earlier run and no longer do."""
    fixed: Sequence[CaseHistory]
    """Cases with a false score in an earlier run that pass now."""
    flaky: Sequence[CaseHistory]
    """Cases with different results under the same definition: in two runs, or in the repeats of one."""


def histories(entries: Iterable[Entry], *, last: int | None = None, scorer: str | None = None) -> list[History]:
    """Return the history of each evaluation, sorted by name; with `last`, only that many newest runs."""
    by_name = entries_by_evaluation(entries)
    return [_history(name, runs[-last:] if last else runs, scorer) for name, runs in sorted(by_name.items())]


def entries_by_evaluation(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return evaluation → its runs, oldest first."""
    by_name: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.run.started_at or "", entry.path)):
        by_name.setdefault(entry.run.evaluation or "", []).append(entry)
    return by_name


def _history(evaluation: str, entries: Sequence[Entry], scorer: str | None) -> History:
    usable_entries = [entry for entry in entries if entry.run.is_usable]
    reference = _reference(usable_entries)
    fingerprints = {} if reference is None else _fingerprints(reference)
    if reference is not None and scorer is None:
        scorer = first_score(reference.run)

    common_cases = _common_cases(usable_entries, reference, fingerprints)
    version = None if reference is None or scorer is None else _version(reference, scorer)
    rows = _outcome_rows(usable_entries, fingerprints)

    differences = {
        key: fields for variant, row in rows.items() for key, fields in _differences(usable_entries, variant, row, fingerprints)
    }
    changed = changed_since([entry.run for entry in entries])
    points = [
        attrs.evolve(point, changed=names, **differences.get((point.path, point.variant), {}))
        for entry, names in zip(entries, changed, strict=True)
        for point in _points(entry, fingerprints, common_cases, scorer, version)
    ]

    return History(
        evaluation=evaluation,
        scorer=scorer,
        reference=None if reference is None else reference.path,
        cases=len(fingerprints),
        common=len(common_cases),
        runs=[entry.path for entry in usable_entries],
        points=points,
        **_changes(usable_entries, fingerprints, rows),
    )


def _reference(entries: Sequence[Entry]) -> Entry | None:
    """Return the newest finished run, or the newest run if none is finished; one with few cases is skipped."""
    nonempty_entries = [entry for entry in entries if any(columns.cases for columns in entry.columns)]
    candidates = [entry for entry in nonempty_entries if entry.run.status == "finished"] or nonempty_entries
    sizes = [len(_fingerprints(entry)) for entry in candidates]
    large_entries = [entry for entry, size in zip(candidates, sizes, strict=True) if size >= _MIN_SHARE * max(sizes)]
    return large_entries[-1] if large_entries else None


def _common_cases(entries: Sequence[Entry], reference: Entry | None, fingerprints: Mapping[str, str]) -> set[str]:
    """Return the cases that the reference and the other runs have in common; the newest runs count first.

    A run with which fewer than half of the cases of the reference would be left is ignored.
    """
    cases = set(fingerprints)
    for entry in (*filter(None, [reference]), *reversed(entries)):
        for columns in entry.columns:
            common_cases = cases.intersection(compress(columns.cases, _common_flags(columns, fingerprints)))
            if len(common_cases) >= _MIN_SHARE * len(fingerprints):
                cases = common_cases
    return cases


def _common_flags(columns: CaseColumns, fingerprints: Mapping[str, str]) -> list[bool]:
    """Return for each case whether the reference has it with the same content."""
    if _has_same_cases(columns, fingerprints):
        return [True] * len(fingerprints)
    cases = zip(columns.cases, columns.fingerprints, strict=True)
    return [fingerprints.get(case) == fingerprint for case, fingerprint in cases]


def _fingerprints(entry: Entry) -> dict[str, str]:
    fingerprints: dict[str, str] = {}
    for columns in entry.columns:
        fingerprints.update(zip(columns.cases, columns.fingerprints, strict=True))
    return fingerprints


def _version(entry: Entry, scorer: str) -> str | None:
    return next((variant.scores[scorer].version for variant in entry.run.variants if scorer in variant.scores), None)


def _points(
    entry: Entry, fingerprints: Mapping[str, str], common_cases: set[str], scorer: str | None, version: str | None
) -> Iterator[Point]:
    run = entry.run
    is_usable = run.is_usable and run.variants
    variants, all_columns = (run.variants, entry.columns) if is_usable else ([VariantDigest()], [CaseColumns()])
    for variant, columns in zip(variants, all_columns, strict=True):
        flags = _common_flags(columns, fingerprints)
        is_partial = not common_cases.issubset(compress(columns.cases, flags))
        common_flags = flags
        if not is_partial:
            common_flags = [flag and case in common_cases for case, flag in zip(columns.cases, flags, strict=True)]
        score = _score(variant, columns, common_flags, scorer)

        yield Point(
            path=entry.path,
            variant=variant.variant,
            started_at=run.started_at,
            git=run.git,
            head=run.head,
            status=run.status,
            outcome=run.outcome,
            cases=len(columns.cases),
            common=sum(common_flags),
            has_other_data=not all(flags),
            is_partial=is_partial,
            score=score,
            scorer_changed=score is not None and score.version != version,
            failed=variant.failed,
            p95=variant.p95,
            cost=variant.cost,
            unpriced_calls=variant.unpriced_calls,
        )


def _score(variant: VariantDigest, columns: CaseColumns, flags: Sequence[bool], scorer: str | None) -> ScoreDigest | None:
    score = None if scorer is None else variant.scores.get(scorer)
    if score is None or scorer is None or all(flags):
        return score

    values = columns.values[scorer]
    tally = Tally(by_case={} if any(isinstance(value, list) for value in values) else None)
    for case, value, is_common in zip(columns.cases, values, flags, strict=True):
        if is_common and value is not None:
            for number in value if isinstance(value, list) else (value,):
                tally.add(number, 1, case)
    common_score = score_digest(tally)
    return None if common_score is None else attrs.evolve(common_score, version=score.version)


def _outcome_rows(entries: Sequence[Entry], fingerprints: Mapping[str, str]) -> dict[str, list[str]]:
    """Return variant → for each run the outcomes of the cases of the reference, in their order."""
    rows: dict[str, list[str]] = {}
    for index, (_, run, all_columns) in enumerate(entries):
        for variant, columns in zip(run.variants, all_columns, strict=True):
            row = rows.setdefault(variant.variant, [OPEN * len(fingerprints)] * len(entries))
            row[index] = _outcomes(columns, fingerprints)
    return rows


def _differences(
    entries: Sequence[Entry], variant: str, row: Sequence[str], fingerprints: Mapping[str, str]
) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Yield for each run of a variant what differs from the previous run with results: fields of its `Point`."""
    runs = [(entry.path, outcomes) for entry, outcomes in zip(entries, row, strict=True) if outcomes.strip(OPEN)]
    for (previous, before), (path, after) in pairwise(runs):
        cases = [pair for pair in zip(fingerprints, before, after, strict=True) if OPEN not in pair[1:]]
        broken = [case for case, old, new in cases if old == PASSED != new]
        fixed = [case for case, old, new in cases if old != PASSED == new]
        yield (path, variant), {"previous": previous, "broken": broken, "fixed": fixed}


def _changes(
    entries: Sequence[Entry], fingerprints: Mapping[str, str], rows: Mapping[str, Sequence[str]]
) -> dict[str, list[CaseHistory]]:
    changes: dict[str, list[CaseHistory]] = {"broken": [], "fixed": [], "flaky": []}
    for name, by_run in rows.items():
        keys = [definition_key(run.identity, name) for _, run, _ in entries]
        for case, letters in zip(fingerprints, zip(*by_run, strict=True), strict=True):
            kind, start = case_change("".join(letters), keys)
            if kind != "unchanged":
                path = None if start is None else entries[start].path
                changes[kind].append(CaseHistory(case=case, variant=name, outcomes="".join(letters), since=path))
    return changes


def _outcomes(columns: CaseColumns, fingerprints: Mapping[str, str]) -> str:
    """Return the outcomes of the cases of the reference, in their order."""
    if _has_same_cases(columns, fingerprints):
        return columns.outcomes
    cases = zip(columns.cases, columns.fingerprints, columns.outcomes, strict=True)
    outcomes = {case: outcome for case, fingerprint, outcome in cases if fingerprints.get(case) == fingerprint}
    return "".join(outcomes.get(case, OPEN) for case in fingerprints)


def _has_same_cases(columns: CaseColumns, fingerprints: Mapping[str, str]) -> bool:
    return columns.cases == [*fingerprints] and columns.fingerprints == [*fingerprints.values()]


def changed_since(runs: Sequence[RunDigest]) -> list[tuple[str, ...]]:
    """Return what differs between each run and the one before it, oldest first; a run of which nothing is known is skipped."""
    previous: Mapping[str, Any] = {}
    changed: list[tuple[str, ...]] = []
    for run in runs:
        changed.append(tuple(changes(previous, run.identity)))
        previous = run.identity or previous
    return changed


def case_change(
    outcomes: str, definitions: Sequence[bytes | None]
) -> tuple[Literal["unchanged", "broken", "fixed", "flaky"], int | None]:
    """Return how a case changed over some runs, and the index of the first run in which it is broken or fixed (None otherwise).

    It is flaky if two runs with the same definition, or repeats of one, differ; None is a definition of its own. An error
    before a later result does not count, because an outage is no change of the case; one at the end counts as not passing.
    """
    if len({*outcomes} - {OPEN, ERROR}) <= 1 and not outcomes.endswith((ERROR, OPEN, MIXED)):
        return "unchanged", None

    results = [(index, outcome) for index, outcome in enumerate(outcomes) if outcome != OPEN]
    end = len(results)
    while end and results[end - 1][1] == ERROR:
        end -= 1
    results = [(index, outcome) for index, outcome in results[:end] if outcome != ERROR] + results[end : end + 1]
    if any(outcome == MIXED for _, outcome in results):
        return "flaky", None

    passes = [outcome == PASSED for _, outcome in results]
    flips = [index for index in range(1, len(passes)) if passes[index] != passes[index - 1]]
    if not flips:
        return "unchanged", None

    known_results = {
        (key, outcome) for index, outcome in results if outcome != ERROR and (key := definitions[index]) is not None
    }
    if len({key for key, _ in known_results}) < len(known_results):
        return "flaky", None
    return "fixed" if passes[-1] else "broken", results[flips[-1]][0]
