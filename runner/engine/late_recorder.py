"""Records events that may arrive at any time and from any thread: notes, and endings of abandoned attempts."""

from functools import partial
from typing import Any

import attrs

from journal.errors import Unserialisable
from journal.events import AttemptInterrupted, AttemptReturnedLate, Noted
from runner.data.to_json import plain
from runner.engine.recorder import Recorder
from runner.engine.run_loop import RunLoop
from runner.engine.shutdown import Shutdown
from runner.engine.trial_work import TrialWork
from runner.notes import Sink


class LateRecorder:
    """Records events unless the session is over or the journal has failed."""

    def __init__(self, recorder: Recorder, loop: RunLoop, shutdown: Shutdown) -> None:
        self._recorder = recorder
        self._loop = loop
        self._shutdown = shutdown

    def record(self, event: Noted | AttemptReturnedLate | AttemptInterrupted) -> None:
        """Record an event, or drop it."""
        if not self._shutdown.is_over and self._recorder.journal.failure is None:
            self._recorder.record(event)

    def sink(self, work: TrialWork) -> Sink:
        """Return what takes the notes of the attempt or the scorer call in flight."""
        return partial(self._loop.call, self._note, work.trial, work.state.attempts)

    def _note(self, trial: str, attempt: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            event = Noted(name=name, value=plain(value), trial=trial, attempt=attempt)
            try:
                self.record(event)
            except Unserialisable as exc:
                self.record(attrs.evolve(event, value=str(exc)))  # type: ignore[misc]  # a fact is an attrs class
