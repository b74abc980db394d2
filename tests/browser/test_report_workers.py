"""The report of a run in workers: a table of them, and the worker of each attempt."""

from pathlib import Path

from journal.events import (
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    RetryScheduled,
    TrialCompleted,
    TrialEnqueued,
)
from tests.browser.conftest import OpenTab
from tests.browser.pages import write_report
from tests.journal.samples import session, started, write_sync

NAME = "<b>gpu</b>/4711"
"""The name of a worker on another machine, which may be anything."""


def test_workers(tmp_path: Path, open_tab: OpenTab) -> None:
    """Those that ended early come first; names are text. The drawer has the worker and why it ended."""
    write_sync(
        tmp_path / "run",
        [
            started(),
            session(),
            TrialEnqueued(trial="peru", case="peru", repeat=1, input=1, fingerprint="f"),
            AttemptStarted(trial="peru", attempt=1, slot=0),
            AttemptInterrupted(trial="peru", attempt=1, reason="worker_died", detail="signal 11", elapsed=0.5, worker=NAME),
            RetryScheduled(trial="peru", attempt=2, delay=0.0, reason="worker_died"),
            AttemptStarted(trial="peru", attempt=2, slot=0),
            AttemptSucceeded(trial="peru", attempt=2, output="Lima", elapsed=0.25, worker="process 1"),
            TrialCompleted(trial="peru", attempts=2),
        ],
    )
    tab = open_tab(write_report(tmp_path / "report.html", tmp_path / "run") + "#trial=peru")
    tab.page.wait_for_selector("#drawer:not([hidden])")

    assert [NAME, "1", "0.5 s", "worker died: signal 11", "process 1", "1", "0.25 s", ""] == tab.texts(
        "table.workers tbody th, table.workers tbody td"
    )
    heads = " ".join(tab.texts("#drawer .attempt-head"))
    assert "(worker died: signal 11)" in heads
    assert f"worker {NAME}" in " ".join(tab.texts("#drawer p.faint"))
    assert [] == tab.messages
