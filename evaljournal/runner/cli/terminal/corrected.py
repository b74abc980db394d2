"""The corrected scores of runs, as lines and as JSON.

Most runs have no labels; finding that out takes no time, and imports nothing.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaljournal.journal import JournalError
from evaljournal.journal.disk.segments import REVIEW, is_run
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.runs.loaded_run import LoadedRun
from evaljournal.replay.text import printable
from evaljournal.runner.cli.terminal.errors import render

if TYPE_CHECKING:
    from evaljournal.replay.results.comparison import Side
    from evaljournal.replay.review.reviewed import Reviewed


def has_labels(path: Path) -> bool:
    """Return whether a run has a review with the labels of people."""
    return is_run(path / REVIEW)


def corrected_json(view: LoadedRun, variant: str | None = None) -> dict[str, Any] | None:
    """Return the corrected scores of a run or a variant as JSON; None without a review, which takes no time."""
    reviewed = _review_of(view)
    if reviewed is None:
        return None
    from evaljournal.replay.results.comparison import Side  # noqa: PLC0415  # most runs have no review

    return {name: view_json(score) for name, score in reviewed.corrected(Side(view.state, variant=variant)).items()}


def _review_of(view: LoadedRun) -> "Reviewed | None":
    """Return a run with the labels of its review; None if it has none."""
    if not has_labels(view.path):
        return None
    from evaljournal.replay.review.reviewed import open_review  # noqa: PLC0415  # most runs have no review

    return open_review(view)


def corrected_lines(view: LoadedRun, variant: str | None = None) -> Iterator[str]:
    """Yield a line for each corrected score of a variant, or of a run: of each of its variants, if it has any."""
    try:
        reviewed = _review_of(view)
    except JournalError as exc:  # The run itself can be shown.
        yield f"no corrected scores: {render(exc)}"
        return
    if reviewed is None:
        return
    from evaljournal.replay.results.comparison import Side  # noqa: PLC0415  # most runs have no review
    from evaljournal.replay.review import text  # noqa: PLC0415  # most runs have no review

    names: Sequence[str | None] = view.state.variants.names if variant is None else [variant]
    for name in names or [None]:
        prefix = f"{printable(name, 40)}: " if name is not None and variant is None else ""
        lines = text.corrected_lines(reviewed.corrected(Side(view.state, variant=name)))
        yield from (f"{prefix}{line}" for line in lines)


_Compared = tuple[LoadedRun, "Side"]


def difference_lines(a: _Compared, b: _Compared) -> Iterator[str]:
    """Yield the corrected scores of both runs, and their corrected differences."""
    for name, (run, side) in (("A", a), ("B", b)):
        yield from (f"{name}  {line}" for line in corrected_lines(run, side.variant))
    reviews = _review_of(a[0]), _review_of(b[0])
    if reviews[0] is not None and reviews[1] is not None:
        from evaljournal.replay.review import reviewed, text  # noqa: PLC0415  # most runs have no review

        kinds = {name: score.kind for name, score in reviews[0].corrected(a[1]).items()}
        yield from text.difference_lines(reviewed.corrected_differences((reviews[0], a[1]), (reviews[1], b[1])), kinds)


def difference_json(a: _Compared, b: _Compared) -> dict[str, Any] | None:
    """Return the corrected scores of both runs and their corrected differences; None if no run has a review."""
    reviews = _review_of(a[0]), _review_of(b[0])
    if reviews == (None, None):
        return None
    from evaljournal.replay.review.reviewed import corrected_differences  # noqa: PLC0415  # most runs have no review

    differences = corrected_differences((reviews[0], a[1]), (reviews[1], b[1]))
    sides = {name: corrected_json(run, side.variant) for name, (run, side) in (("a", a), ("b", b))}
    return {**sides, "differences": {name: view_json(difference, omit="p") for name, difference in differences.items()}}
