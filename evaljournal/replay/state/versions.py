"""The versions of a run's task and variants: which outputs are from an older version than the current one.

A version is known by the location of the record that adopted the next one, so a trial needs no field for it: the location of
its output says which version it is from.
"""

import bisect
from collections.abc import Mapping

from evaljournal.journal import Record, events
from evaljournal.journal.events import RunStarted
from evaljournal.replay.state.definition import changed_files, code_version
from evaljournal.replay.state.trial import Location, TrialState


class VersionLog:
    """The fingerprints that a task or a variant had before each of its changes."""

    def __init__(self) -> None:
        self._changes: list[tuple[Location, str]] = []
        """Location of each change, and the fingerprint before it."""

    def change(self, location: Location, old_fingerprint: str) -> None:
        """Add a change that is later than all others."""
        self._changes.append((location, old_fingerprint))

    def is_older(self, location: Location, fingerprint: str) -> bool:
        """Return whether the version in force at a record differs from the current one, which has this fingerprint."""
        return self._fingerprint_at(location, fingerprint) != fingerprint

    def number(self, location: Location, fingerprint: str) -> int:
        """Return the number of the version in force at a record, from 1; the current one has this fingerprint."""
        return self.versions(fingerprint).index(self._fingerprint_at(location, fingerprint)) + 1

    def versions(self, fingerprint: str) -> list[str]:
        """Return the fingerprints of the different versions, in order; the current one has this fingerprint."""
        return list(dict.fromkeys([*(version for _, version in self._changes), fingerprint]))

    def _fingerprint_at(self, location: Location, fingerprint: str) -> str:
        index = bisect.bisect_right(self._changes, (location, ""))
        return self._changes[index][1] if index < len(self._changes) else fingerprint


class TaskVersions:
    """From which version of the task is each output? A version includes the files that the task depends on."""

    def __init__(self, trials: Mapping[str, TrialState]) -> None:
        self._trials = trials
        self._log = VersionLog()
        self._current = ""
        """The version that was adopted last; empty if there is only one."""
        self.older_outputs = 0
        """Current outputs from an older version."""

    @property
    def count(self) -> int:
        return len(self._log.versions(self._current))

    def number(self, trial: TrialState) -> int | None:
        """Return the number of the version that a trial's output is from, from 1; None without an output."""
        location = trial.output_location
        return None if location is None else self._log.number(location, self._current)

    def adopt(self, old_start: RunStarted, new_start: RunStarted, location: Location) -> bool:
        """Apply a definition that was adopted at this location; return whether the task is another one."""
        has_changed_files = changed_files(old_start.definition, new_start.definition)
        if new_start.task_fingerprint == old_start.task_fingerprint and not has_changed_files:
            return False
        self._log.change(location, f"{old_start.task_fingerprint} {code_version(old_start.definition)}")
        self._current = f"{new_start.task_fingerprint} {code_version(new_start.definition)}"
        current_trials = (trial for trial in self._trials.values() if trial.stage != "withdrawn")
        self.older_outputs = sum(map(self._is_older, current_trials))
        return True

    def _is_older(self, trial: TrialState) -> bool:
        location = trial.output_location
        return location is not None and self._log.is_older(location, self._current)

    def _on_trial_withdrawn(self, event: events.TrialWithdrawn, _: Record) -> None:
        self.older_outputs -= self._is_older(self._trials[event.trial])
