"""The public views of a run: each accepts the path of a run, a loaded run, or the data that it is computed from."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from evaljournal.journal import JournalError, Record
from evaljournal.replay.results import comparison, summary
from evaljournal.replay.results.comparison import Comparison, Side, output_digests
from evaljournal.replay.results.summary import Summary
from evaljournal.replay.runs.loaded_run import LoadedRun, load, split_variant, variant_problem
from evaljournal.replay.state.run import RunState

if TYPE_CHECKING:
    from evaljournal.replay.auditing.findings import Audit, RulesFactory

Run = Path | str | LoadedRun


def summarize(run: Run | RunState, *, groups: Mapping[str, str] | None = None) -> Summary:
    """Return the results of a run; with `groups` (trial → group, from `Grouping`), also the results of each group."""
    return summary.summarize(run if isinstance(run, RunState) else _open(run).state, groups=groups)


def compare(a: Run | Side, b: Run | Side, *, groups: Mapping[str, str] | None = None) -> Comparison:
    """Compare run B with run A; with `groups` (trial of A → group), also the scores of each group.

    A run is a path, a loaded run, or `RUN@VARIANT` for one variant of it.

    Raises:
        NothingInCommon: No trial is in both runs with the same content.
        JournalError: The journal at a path is damaged, or a run does not have the variant.
    """
    return comparison.compare(_side(a), _side(b), groups=groups)


def audit(run: Run | Iterable[Record], *, rules: "RulesFactory | None" = None) -> "Audit":
    """Audit a run, or its records, starting with the first; without `rules`, retries are not recomputed."""
    from evaljournal.replay.auditing import auditor as auditing  # noqa: PLC0415  # no other view needs it

    records = _open(run).records() if isinstance(run, Path | str | LoadedRun) else run
    return auditing.audit(records, rules=rules)


def _open(run: Run) -> LoadedRun:
    """Return a loaded run; raise an error if the journal at a path is damaged."""
    if isinstance(run, LoadedRun):
        return run
    loaded_run = load(run)
    if loaded_run.problem is not None:
        raise loaded_run.problem
    return loaded_run


def _side(run: Run | Side) -> Side:
    if isinstance(run, Side):
        return run
    variant: str | None = None
    if isinstance(run, str):
        run, variant = split_variant(run)
    loaded_run = _open(run)
    if problem := variant_problem(loaded_run, variant):
        raise JournalError(problem, path=loaded_run.path)
    return Side(loaded_run.state, output_digests(loaded_run.outputs(load_blobs=False)), variant)
