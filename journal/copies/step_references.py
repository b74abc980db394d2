"""References between the records of steps, adapted to a copy of a journal, in which records have other numbers."""

from evaljournal.journal.errors import IllegalEvent
from evaljournal.journal.events import Event, Record, StepCompleted, StepReused, TrialCompleted, TrialFailed, TrialWithdrawn
from evaljournal.journal.fact import evolve_fact


class StepReferences:
    """The completed steps of open trials, by their records in the source and in the copy."""

    def __init__(self) -> None:
        self._copies: dict[str, dict[int, int]] = {}
        """Trial → record in the source → record in the copy."""

    def __bool__(self) -> bool:
        return bool(self._copies)

    def adapt(self, event: Event) -> Event:
        """Return an event that names the record of a step in the copy; raise `IllegalEvent` if that step was not copied."""
        if not isinstance(event, StepReused):
            return event
        copy = self._copies.get(event.trial, {}).get(event.completed_seq)
        if copy is None:
            raise IllegalEvent("StepReused", "the step that it reuses is lost")
        return evolve_fact(event, completed_seq=copy)

    def add(self, source: Record, copy: Record) -> None:
        """Keep the number of a record that was copied, if a later one may refer to it."""
        match copy.event:
            case StepCompleted(trial=trial):
                self._copies.setdefault(trial, {})[source.seq] = copy.seq
            case TrialCompleted(trial=trial) | TrialFailed(trial=trial) | TrialWithdrawn(trial=trial) if self._copies:
                self._copies.pop(trial, None)
            case _:
                pass
