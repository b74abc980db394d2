"""What each worker has done."""

import pytest

from evaljournal.journal.events import AttemptSucceeded, Noted
from evaljournal.replay.state.workers import WORKER_ENDED, RunWorkers, WorkerTotals, ended_workers, worker_lines


def counted(*attempts: tuple[int, float, float]) -> WorkerTotals:
    """Return the totals after attempts that ended: session, start and end."""
    totals = WorkerTotals()
    for session, start, end in attempts:
        event = AttemptSucceeded(trial="a", attempt=1, output=1, elapsed=end - start, worker="w")
        totals.count(event, end, session)
    return totals


@pytest.mark.parametrize(
    ("attempts", "busy"),
    [
        ([(1, 0.0, 1.0), (1, 1.5, 2.0)], 1.5),
        ([(1, 0.0, 1.0), (1, 0.5, 2.0)], 2.0),
        ([(1, 1.0, 2.0), (1, 3.0, 4.0), (1, 0.0, 5.0)], 5.0),
        ([(1, 1.0, 2.0), (1, 0.0, 2.0), (1, 0.0, 2.0)], 2.0),
        ([(1, 0.0, 4.0), (2, 0.0, 4.0), (2, 3.0, 5.0)], 9.0),
        ([*((1, 2.0 * n, 2.0 * n + 1) for n in range(1000))], 1000.0),
    ],
    ids=["one after the other", "overlap", "one covers all", "equal", "two sessions", "many"],
)
def test_busy_time(attempts: list[tuple[int, float, float]], busy: float) -> None:
    """Time in which several attempts ran counts once; the times of each session start at 0."""
    assert busy == counted(*attempts).busy


def test_busy_time_is_never_longer_than_the_time() -> None:
    """An attempt that covers more periods than are kept does not count their time twice."""
    short = [(1, 2.0 * n + 0.5, 2.0 * n + 1) for n in range(1000)]

    assert 500 <= counted(*short, (1, 0.0, 2000.0)).busy <= 2000


def test_ends() -> None:
    """A worker of the same name may end in several sessions."""
    totals = counted((1, 0.0, 1.0))
    for reason in ("worker_died", "worker_died", "worker_lost", "something else"):
        totals.count_end({"reason": reason, "detail": f"{reason} \x1b"})

    assert "worker died 2 times, worker lost" == totals.ends
    lines = list(worker_lines({"v": counted(), "w": totals}))
    assert "2 workers, 2 died, 1 lost:" == lines[0]
    assert r"  w  1 attempt, busy for 1 s · worker died 2 times, worker lost: something else \x1b" == lines[1]


def test_the_last_end() -> None:
    """The worker that ended last is shown, whichever was counted first."""
    workers = RunWorkers()
    for name in ("v", "w"):
        workers.count(AttemptSucceeded(trial="a", attempt=1, output=1, elapsed=1.0, worker=name), 1.0)
    for name, detail in (("w", "signal 9"), ("v", "signal 11")):
        value = {"worker": name, "reason": "worker_died", "detail": detail}
        workers.note_end(Noted(trial="", attempt=0, name=WORKER_ENDED, value=value))

    assert ["2 of 2 workers ended, last: signal 11"] == list(ended_workers(workers))
