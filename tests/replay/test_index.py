"""The index: how its tables are filled."""

from evaljournal.journal.events import Noted
from evaljournal.replay.index import Index
from tests.journal.samples import enqueued
from tests.replay.trial_events import records


def test_note_of_the_run() -> None:
    """A note of the run creates no SQL index, which would slow down all later rows."""
    index = Index()
    for record in records([enqueued("a"), Noted(name="disk", value="full")]):
        index.apply(record)

    assert (0,) == index.row("SELECT count(*) FROM sqlite_master WHERE type = 'index'")
