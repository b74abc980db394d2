"""The report of a run in workers: a table of them, and the worker of each attempt."""

import itertools
from pathlib import Path

import pytest

from evaljournal.journal.events import (
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    Noted,
    RetryScheduled,
    TrialCompleted,
    TrialEnqueued,
)
from evaljournal.replay.state.workers import WORKER_ENDED
from tests.browser.conftest import OpenTab
from tests.journal.samples import session, started, write_sync

NAME = "<b>gpu</b>/4711"
"""The name of a worker on another machine, which may be anything."""


def test_workers(tmp_path: Path, open_report: OpenTab) -> None:
    """Workers that ended early come first; names are text. The drawer has the worker and why it ended."""
    seconds = itertools.count()
    write_sync(
        tmp_path / "run",
        [
            started(),
            session(),
            TrialEnqueued(trial="peru", case="peru", repeat=1, input=1, fingerprint="f"),
            AttemptStarted(trial="peru", attempt=1, slot=0),
            Noted(name=WORKER_ENDED, value={"worker": NAME, "reason": "worker_died", "detail": "signal 11"}),
            AttemptInterrupted(trial="peru", attempt=1, reason="worker_died", detail="signal 11", elapsed=0.5, worker=NAME),
            RetryScheduled(trial="peru", attempt=2, delay=0.0, reason="worker_died"),
            AttemptStarted(trial="peru", attempt=2, slot=0),
            AttemptSucceeded(trial="peru", attempt=2, output="Lima", elapsed=0.25, worker="process 1"),
            TrialCompleted(trial="peru", attempts=2),
        ],
        clock=lambda: ("2026-11-15T00:00:00Z", float(next(seconds))),
    )
    tab = open_report(tmp_path / "run", fragment="#trial=peru", execution=True)
    tab.page.wait_for_selector("#drawer:not([hidden])")

    assert [NAME, "1", "0.5 s", "1", "0", "signal 11", "process 1", "1", "0.25 s", "0", "0", ""] == tab.texts(
        "table.workers tbody th, table.workers tbody td"
    )
    assert [NAME, "process 1"] == tab.texts(".lane-labels span")
    tab.page.click("#drawer .records > summary")
    tab.page.wait_for_selector("#drawer .attempt-head")
    heads = " ".join(tab.texts("#drawer .attempt-head"))
    assert "(worker died: signal 11)" in heads
    assert f"worker {NAME}" in " ".join(tab.texts("#drawer p.faint"))
    assert [] == tab.messages


def test_lanes(tmp_path: Path, open_report: OpenTab) -> None:
    """A worker has as many lanes as attempts that it ran at once; those whose worker is unknown come last."""
    names = ["process 10", "process 2", "process 10", ""]
    trials = [f"t{number}" for number in range(4)]
    seconds = itertools.count()
    write_sync(
        tmp_path / "run",
        [
            started(),
            session(),
            *(TrialEnqueued(trial=trial, case=trial, repeat=1, input=1, fingerprint="f") for trial in trials),
            *(AttemptStarted(trial=trial, attempt=1, slot=slot) for slot, trial in enumerate(trials)),
            *(
                AttemptSucceeded(trial=trial, attempt=1, output=1, elapsed=0.5, worker=name)
                for trial, name in zip(trials, names, strict=True)
                if name
            ),
        ],
        clock=lambda: ("2026-11-15T00:00:00Z", float(next(seconds))),
    )
    tab = open_report(tmp_path / "run", execution=True)
    labels = tab.page.locator(".lane-labels span")
    tops = [box["y"] for number in range(3) if (box := labels.nth(number).bounding_box())]

    assert ["process 2", "process 10", "other"] == tab.texts(".lane-labels span")
    assert (tops[2] - tops[1]) / (tops[1] - tops[0]) == pytest.approx(2, abs=0.1)
    canvas = tab.page.locator(".timeline canvas").first.bounding_box()
    assert canvas is not None
    tab.page.mouse.move(canvas["x"] + 0.75 * canvas["width"], canvas["y"] + 5)
    assert "worker process 2" in tab.text(".tip")
    assert [] == tab.messages
