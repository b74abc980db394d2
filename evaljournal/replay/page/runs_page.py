"""The live page of a directory: its evaluations and runs, from their digests.

Texts of runs are sent as JSON, and the page shows them as text only.
"""

from collections.abc import Mapping
from typing import Any, Final

from evaljournal.replay.history.digest import RunDigest, first_score
from evaljournal.replay.page.page import INDEX_STYLES, SCRIPTS, STYLES, page_end, page_start, security_policy
from evaljournal.replay.render.phrases import estimate_text, range_text
from evaljournal.replay.text import escape_controls, printable

_SCRIPTS: Final = ("format.js", "dom.js", "runs.js")


def runs_page(title: str) -> bytes:
    """Return the page, which gets the runs from the server that it was loaded from."""
    return page_start(title, "index.html", _SCRIPTS, INDEX_STYLES, connect="'self'") + page_end(_SCRIPTS)


def runs_policy() -> str:
    """Return a Content-Security-Policy for this page and those of its runs; each has a stricter one of its own."""
    return security_policy(dict.fromkeys((*SCRIPTS, *_SCRIPTS)), {**STYLES, **INDEX_STYLES}, connect="'self'")


def run_row(path: str, address: str, run: RunDigest) -> Mapping[str, Any]:
    """Return what the page shows of a run; `address` is that of its page."""
    scorer = first_score(run)
    scores = [] if scorer is None else run.means_of(scorer)
    return {
        "path": escape_controls(path),  # It need not be valid UTF-8.
        "address": address,
        "evaluation": run.evaluation or "",
        "models": run.models,
        "started_at": run.started_at or "",
        "status": run.status,
        "outcome": printable(run.outcome, 200),
        "completed": run.completed,
        "failed": run.failed,
        "trials": run.trials,
        "scorer": printable(scorer or "", 40),
        "score": "" if not scores else estimate_text(scores[0]) if len(scores) == 1 else range_text(scores),
        "variants": len(run.variants),
        "cost": run.cost,
        "elapsed": run.elapsed,
    }
