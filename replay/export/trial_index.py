"""An index of the trials of a run, from which their details are read one trial at a time.

One pass over the records keeps a few hundred bytes per trial: the locations of its records. Inputs, outputs, reasons and
tracebacks are read from disk when a trial is requested, so that a run of any size can be exported in little memory.
"""

import bisect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs

from journal import Record
from journal.events import AttemptStarted, Noted, RetryScheduled, TrialCompleted, TrialEnqueued, TrialFailed, TrialWithdrawn
from replay.export.source import Source
from replay.state import RunState
from replay.timeline import Timeline
from replay.trial import TrialDetails
from replay.trial_state import Value, packed, unpacked
from replay.usage import is_amount, noted_usage

_MAX_WHOLE: Final = 1 << 40
"""Integers in usage up to here cannot add up to more than 64 bits."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


@attrs.define
class _Entry:
    locations: tuple[int, ...] = ()
    """Packed locations of its records, without those that add no details: completions, and starts without a request."""
    enqueued: int = 0
    """Nanoseconds since 1970, like `ended`."""
    ended: int = 0
    """0 until it is completed or has failed."""
    ended_at: str = ""


class TrialIndex:
    """The trials of a run, by name."""

    def __init__(self, source: Source, state: RunState) -> None:
        self.source = source
        self.state = state
        self.timeline = Timeline()
        self.ended: dict[str, None] = {}
        """Trials that are completed or have failed, in the order of their ends."""
        self.usage_names: dict[str, bool] = {}
        """Names of all numbers in usage and notes, and whether all are integers whose sums fit 64 bits."""
        self._entries: dict[str, _Entry] = {}

    @classmethod
    def of(cls, source: Source) -> "TrialIndex":
        """Index a run; it ends before the first record that is invalid."""
        index = cls(source, source.run.state)
        for record in source.records():
            try:
                index.apply(record)
            except (KeyError, TypeError, ValueError, AttributeError) as exc:
                source.stop_before(record.seq, f"invalid record ({exc})")
                return cls.of(source)
        return index

    def apply(self, record: Record) -> None:
        """Add the next record, which the state has applied."""
        self.timeline.apply(record)
        event = record.event
        trial = getattr(event, "trial", "")
        if isinstance(event, TrialEnqueued):
            entry = self._entries.setdefault(trial, _Entry())
            entry.enqueued, entry.ended, entry.ended_at = self._wall_time(record), 0, ""
        elif trial not in self._entries:
            return
        entry = self._entries[trial]
        if not isinstance(event, TrialCompleted) and not (isinstance(event, AttemptStarted) and event.request is None):
            entry.locations = (*entry.locations, packed(record))
        match event:
            case TrialCompleted() | TrialFailed():
                entry.ended, entry.ended_at = self._wall_time(record), record.at
                self.ended[trial] = None
            case RetryScheduled() | TrialWithdrawn():
                entry.ended, entry.ended_at = 0, ""
                self.ended.pop(trial, None)
            case Noted():
                self._add_usage_names(noted_usage(event.name, event.value))
            case _:
                self._add_usage_names(getattr(event, "usage", None))

    def _add_usage_names(self, usage: Any) -> None:
        if isinstance(usage, dict):
            for name, value in usage.items():
                if is_amount(value):
                    is_whole = isinstance(value, int) and abs(value) <= _MAX_WHOLE
                    self.usage_names[name] = is_whole and self.usage_names.get(name, True)

    def trials(self, *stages: str) -> Iterator[TrialDetails]:
        """Return every trial in the order of enqueueing, or only those in some stages."""
        for name, trial in self.state.trials.items():
            if not stages or trial.stage in stages:
                yield self.trial(name)

    def trial(self, name: str) -> TrialDetails:
        """Read one trial from disk."""
        entry = self._entries[name]
        details = TrialDetails(name)
        for location in entry.locations:
            details.apply(self.source.find(unpacked(location)), self.timeline)
        details.stage, details.truncated = self.state.trials[name].stage, self.state.is_truncated(name)
        details.ended_at = entry.ended_at
        if details.stage == "withdrawn":
            details.scores.clear()
        details.finish(self.timeline)
        return details

    def enqueued(self, trial: str) -> int:
        """Return when a trial was enqueued, in nanoseconds since 1970."""
        return self._entries[trial].enqueued

    def end_time(self, trial: str) -> int:
        """Return when a trial ended, in nanoseconds since 1970; 0 if it has not."""
        return self._entries[trial].ended

    @property
    def scorers(self) -> list[str]:
        """All scorers, in the order of the definition."""
        return list(self.state.scores)

    def values(self, scorer: str) -> Iterator[Value]:
        """Return the current values of a scorer."""
        for trial in self.state.trials.values():
            if (score := trial.scores.get(scorer)) is not None:
                yield score[1]

    def wall_time(self, seq: int, t: float) -> int:
        """Return the wall time of `t` in the session of a record, in nanoseconds since 1970, on the timeline's axis."""
        return self.session_time(bisect.bisect_right(self.timeline.sessions, seq, key=lambda session: session.seq), t)

    def session_time(self, session: int, t: float) -> int:
        """Return the wall time of `t` in a session (from 1), in nanoseconds since 1970."""
        first, current = self.timeline.sessions[0], self.timeline.sessions[session - 1]
        return _nanoseconds(first.at) + round((current.offset + t - first.start) * 1_000_000) * 1_000

    @staticmethod
    def iso_time(nanoseconds: int) -> str:
        """Return nanoseconds since 1970 as text, within the years that Python supports."""
        return (_EPOCH + timedelta(microseconds=min(max(0, nanoseconds // 1_000), _LATEST))).isoformat()

    def _wall_time(self, record: Record) -> int:
        sessions = self.timeline.sessions
        return self.wall_time(record.seq, record.t) if sessions and sessions[0].seq <= record.seq else _nanoseconds(record.at)


def _nanoseconds(at: str) -> int:
    """Return a record's wall time in nanoseconds since 1970; 0 if it is invalid."""
    try:
        return (datetime.fromisoformat(at) - _EPOCH) // timedelta(microseconds=1) * 1_000
    except (ValueError, TypeError):
        return 0
