"""Lines of the open batches of a run: which trial each is for, and which are not used yet.

`Lifecycle` rejects events that break these rules; `RunState` uses the same class to know what a run waits for. No clock, disk
or network here.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import attrs

from evaljournal.journal import events
from evaljournal.journal.errors import IllegalEvent
from evaljournal.journal.events import Event

TASK = ""
"""The place of a scorer's name for the lines of the task."""
_UNPROCESSED: Final = frozenset({"not_sent", "forked", "failed", "cancelled", "canceled"})
"""States in `batch_collected` of a batch whose lines without a result were not processed: they cost nothing."""


@attrs.define(eq=False)
class OpenBatch:
    """A batch that was prepared and has not ended."""

    scorer: str
    trials: Sequence[str]
    is_submitted: bool = False
    open_lines: int = 0
    """Number of lines that are neither used nor in flight, and whose trial was not withdrawn."""
    in_flight: int = 0
    """Number of attempts and scorer calls that use one of its lines and have not ended."""
    used_lines: int = 0


class BatchLines:
    """The open batches and their lines."""

    def __init__(self) -> None:
        self.last_batch = 0
        self.open: dict[int, OpenBatch] = {}
        """Number → batch."""
        self._lines: dict[str, dict[str, tuple[int, int]]] = {}
        """Scorer → trial → batch and line that is not used."""
        self._in_flight: dict[tuple[str, str], tuple[int, int]] = {}
        """Trial and scorer → batch and line that its attempt or call in flight uses."""
        self._missed = Counter[tuple[str, str]]()
        """Trial and scorer → batches since its last attempt or call that had its line and no result for it."""

    def line_of(self, trial: str, scorer: str = TASK) -> tuple[int, int] | None:
        """Return the batch and the line that a trial waits for; None if it waits for none."""
        return self._lines.get(scorer, {}).get(trial)

    def place_of(self, trial: str, scorer: str = TASK) -> tuple[int, int] | None:
        """Return the batch and the line that a trial waits for or that its attempt or call in flight uses."""
        return self.line_of(trial, scorer) or self._in_flight.get((trial, scorer))

    def missed_batches(self, trial: str, scorer: str = TASK) -> int:
        """Return how many batches had a line for a trial and no result, since its last attempt or call."""
        return self._missed[trial, scorer]

    def is_in_use(self, trial: str, scorer: str = TASK) -> bool:
        """Return whether an attempt or a call in flight uses a line for a trial."""
        return (trial, scorer) in self._in_flight

    def trials_in_flight(self, batch: int) -> list[str]:
        """Return the trials whose attempt or call in flight uses a line of a batch."""
        return [trial for (trial, _), line in self._in_flight.items() if line[0] == batch]

    def batch_in_use(self, trial: str) -> int:
        """Return the batch that an attempt or a call in flight for a trial uses; 0 if there is none."""
        return next((line[0] for (name, _), line in self._in_flight.items() if name == trial), 0)

    def open_lines(self, batch: int) -> dict[int, str]:
        """Return the lines of an open batch that are not used: line → trial."""
        lines, trials = self._lines.get(self.open[batch].scorer, {}), self.open[batch].trials
        return {line: trial for line, trial in enumerate(trials, 1) if lines.get(trial) == (batch, line)}

    def advance(self, event: Event) -> None:  # noqa: C901, PLR0912  # one branch for each event
        """Apply an event; raise `IllegalEvent`, and change nothing, if the batches do not allow it."""
        match event:
            case events.BatchPrepared():
                self._prepare(event)
            case events.BatchSubmitted():
                batch = self._batch(event, event.batch)
                if batch.is_submitted:
                    raise IllegalEvent("BatchSubmitted", f"batch {event.batch} was submitted before")
                batch.is_submitted = True
            case events.BatchChanged():
                if not self._batch(event, event.batch).is_submitted:
                    raise IllegalEvent("BatchChanged", f"batch {event.batch} was not submitted")
            case events.BatchCollected():
                self._end(event)
            case events.AttemptStarted():
                self._start(event, TASK)
            case events.ScorerCallStarted():
                self._start(event, event.scorer)
            case events.AttemptSucceeded() | events.AttemptFailed() | events.AttemptTimedOut():
                self._use(event.trial, TASK)
            case events.AttemptInterrupted():
                self._release(event.trial, TASK)
            case events.ScorerCallFailed() | events.TrialScored() | events.ScoringFailed():
                self._use(event.trial, event.scorer.partition(".")[0])
            case events.TrialFailed():
                if (line := self.line_of(event.trial)) is not None:
                    raise IllegalEvent("TrialFailed", f"it waits for line {line[1]} of batch {line[0]}", trial=event.trial)
            case events.TrialWithdrawn():
                for lines in self._lines.values():
                    if (line := lines.pop(event.trial, None)) is not None:
                        self.open[line[0]].open_lines -= 1
            case events.SessionStarted():  # A scorer call that was interrupted has no end.
                for trial, scorer in [call for call in self._in_flight if call[1] != TASK]:
                    self._release(trial, scorer)
            case _:
                pass

    def _prepare(self, event: events.BatchPrepared) -> None:
        number, trials = event.batch, {line: trial for line, trial in enumerate(event.trials, 1) if trial}
        if number != self.last_batch + 1:
            raise IllegalEvent("BatchPrepared", f"expected batch {self.last_batch + 1}, got batch {number}")
        if not trials or len(set(trials.values())) != len(trials):
            raise IllegalEvent("BatchPrepared", f"batch {number} has no lines, or two lines for one trial")
        for trial in trials.values():
            if (place := self.place_of(trial, event.scorer)) is not None:
                raise IllegalEvent("BatchPrepared", f"it is in line {place[1]} of batch {place[0]}", trial=trial)
        self.last_batch = number
        self.open[number] = OpenBatch(event.scorer, event.trials, open_lines=len(trials))
        self._lines.setdefault(event.scorer, {}).update((trial, (number, line)) for line, trial in trials.items())

    def _batch(self, event: Event, number: int) -> OpenBatch:
        batch = self.open.get(number)
        if batch is None:
            raise IllegalEvent(type(event).__name__, f"batch {number} is not open")
        return batch

    def _end(self, event: events.BatchCollected) -> None:
        batch = self._batch(event, event.batch)
        if batch.in_flight and not batch.scorer:
            raise IllegalEvent("BatchCollected", f"a result of batch {event.batch} is in use")
        for trial in self.trials_in_flight(event.batch):  # A scorer call whose end salvage could not read.
            self._release(trial, batch.scorer)
        lines = self._lines[batch.scorer]
        for line, trial in enumerate(batch.trials, 1):
            if lines.get(trial) == (event.batch, line):
                del lines[trial]
                if event.state not in _UNPROCESSED:
                    self._missed[trial, batch.scorer] += 1
        batch.open_lines = 0
        del self.open[event.batch]

    def _start(self, event: events.AttemptStarted | events.ScorerCallStarted, scorer: str) -> None:
        line = self.line_of(event.trial, scorer)
        if not event.batch:
            if line is not None:
                reason = f"it waits for line {line[1]} of batch {line[0]}"
                raise IllegalEvent(type(event).__name__, reason, trial=event.trial)
            self._missed.pop((event.trial, scorer), None)
            return
        if line != (event.batch, event.line) or not self.open[event.batch].is_submitted:
            reason = f"it does not wait for line {event.line} of batch {event.batch}"
            raise IllegalEvent(type(event).__name__, reason, trial=event.trial)
        del self._lines[scorer][event.trial]
        self._missed.pop((event.trial, scorer), None)
        self._in_flight[event.trial, scorer] = line
        batch = self.open[event.batch]
        batch.open_lines -= 1
        batch.in_flight += 1

    def _use(self, trial: str, scorer: str) -> None:
        if (line := self._in_flight.pop((trial, scorer), None)) is not None:
            batch = self.open[line[0]]
            batch.in_flight -= 1
            batch.used_lines += 1

    def _release(self, trial: str, scorer: str) -> None:
        """Make the line of an interrupted attempt or call available again: its result can be read again."""
        if (line := self._in_flight.pop((trial, scorer), None)) is not None:
            self._lines[scorer][trial] = line
            self.open[line[0]].in_flight -= 1
            self.open[line[0]].open_lines += 1
