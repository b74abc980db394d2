"""The public face of the three packages: what is in `__all__` is promised, so a change to it is made here first."""

import journal
import replay
import runner
import runner.executors


def test_the_journals_face() -> None:
    """What `journal` offers."""
    assert [
        "Blob",
        "Durability",
        "Event",
        "Journal",
        "JournalError",
        "Lines",
        "Reading",
        "Record",
        "Salvaged",
        "Stamp",
        "Verification",
        "fetch",
        "follow",
        "read",
        "salvage",
        "verify",
        "writing",
    ] == journal.__all__


def test_the_replays_face() -> None:
    """What `replay` offers."""
    assert ["History", "RunState", "Span", "Summary", "Timeline", "Times", "TrialState", "fold", "load"] == replay.__all__


def test_the_runners_face() -> None:
    """What `runner` offers, and that each of it can really be had."""
    assert [
        "Case",
        "Dataset",
        "Evaluation",
        "Fatal",
        "Outcome",
        "RateLimited",
        "Retry",
        "Score",
        "UsageError",
        "arun",
        "evaluation",
        "note",
        "run",
        "stamps",
    ] == runner.__all__
    assert all(getattr(runner, name).__name__ == name for name in runner.__all__)


def test_the_executors_face() -> None:
    """What `runner.executors` offers: Phoenix's six names, and what goes with them."""
    assert [
        "AsyncExecutor",
        "ConcurrencyController",
        "ExecutionDetails",
        "ExecutionStatus",
        "Fatal",
        "Incomplete",
        "RateLimited",
        "SyncExecutor",
        "get_executor_on_sync_context",
    ] == runner.executors.__all__
