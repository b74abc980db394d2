"""The sessions of a run: the definition and the settings that apply, the changes that each adopted, and their times.

`Sessions` is the first of the projections of a state: the others read the settings, the definition and the end of the previous
session from it when a session starts, so it must already know the new one.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, get_args

import attrs

from evaljournal.journal import Record, events
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.state.definition import changes, identity
from evaljournal.replay.state.session_errors import SessionErrors
from evaljournal.replay.state.shards import MergedShards
from evaljournal.replay.state.versions import TaskVersions

IDENTITY_FIELDS: Final = ("evaluation", "task_fingerprint", "dataset_fingerprint", "scorers")
"""The fields of `RunStarted` that may change only if the user adopts the change."""

_RUN_EVENTS = (events.JournalRecovered, events.JournalSalvaged, events.RunStarted, events.Extension)
BETWEEN_SESSIONS: Final = frozenset({*get_args(events.FileEvent), *_RUN_EVENTS})
"""Events that may be recorded outside a session; they have no position on the axis."""


@attrs.define
class SessionState:
    """One session: one process lifetime of the run."""

    number: int
    seq: int
    at: str
    pid: int
    host: str
    outcome: str = ""
    """`finished`, or the reason it stopped; empty while it runs or if it crashed."""
    shard: str = ""
    """The shard that it belongs to, in a merged run."""
    adopted: tuple[str, ...] = ()
    """The changes since the previous session: `task`, `cases`, `file prompt.json`, `scorer exact`."""


def seconds_between(start: str, end: str) -> float:
    """Return the seconds between two wall times."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def covered_seconds(periods: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that periods cover together; they may overlap."""
    seconds, covered_until = 0.0, -math.inf
    for start, end in sorted(periods):
        if end > covered_until:
            seconds += end - max(start, covered_until)
            covered_until = end
    return seconds


class Sessions(list[SessionState]):
    """Which sessions has the run had, what do the definition and the settings say now, and how did the last session end?"""

    __slots__ = (  # As in `RunTrials`: every record sets `previous_t`.
        "_end_t",
        "_periods",
        "_start",
        "adoption",
        "errors",
        "has_new_task",
        "merged",
        "outcome",
        "planned",
        "previous_end",
        "previous_t",
        "repairs",
        "settings",
        "started",
        "task_versions",
    )

    def __init__(self, task_versions: TaskVersions) -> None:
        super().__init__()
        self.task_versions = task_versions
        self.errors = SessionErrors()
        self.started: events.RunStarted | None = None
        """The definition of the run, with adopted changes applied."""
        self.merged = MergedShards()
        self.planned = 0
        """Planned number of trials; 0 if unknown."""
        self.settings: dict[str, Any] = {}
        self.outcome = ""
        """`finished`, or the reason the last session stopped; empty while it runs or if it crashed."""
        self.repairs = Counter[str]()
        """How often a torn tail was set aside (`recovered`), and its records were copied from a damaged journal, with gaps
        (`salvaged`); of a merged run, those of its shards."""
        self.adoption: tuple[events.RunStarted, events.RunStarted] | None = None
        """The definition before and after the changes that the current session adopted; None if it adopted none."""
        self.has_new_task = False
        """Whether the task is one of these changes."""
        self.previous_t = 0.0
        """`t` of the record before the last one; set with every record, because `t` restarts with a session."""
        self.previous_end = 0.0
        """`t` of the last record of the previous session."""
        self._periods: list[tuple[float, float]] = []
        """Start and end of the sessions before the current one, in seconds; those of a merged run may overlap."""
        self._start = 0.0
        """When `t` of the current session was 0: at the end of the previous one, or, in a merged run, by its wall time."""
        self._end_t: float | None = None
        """`t` of the record that ended the current session; the seal after it does not count."""

    def elapsed(self, t: float) -> float:
        """Return the seconds of all sessions, of which the last is at `t`; the time between sessions does not count.

        Of a merged run, it is the wall time of its shards, which may have run at the same time.
        """
        return round(covered_seconds([*self._periods, self._current_period(t)]), 6)

    def _current_period(self, t: float) -> tuple[float, float]:
        return self._start, self._start + (t if self._end_t is None else self._end_t)

    @property
    def has_same_error(self) -> bool:
        """Whether the first trials of this session, or the first outputs of a scorer, failed with the error that stops it."""
        return any(error.stops_run(self.settings) for error in self.errors.repeated_errors.values())

    def is_independent(self, number: int) -> bool:
        """Return whether a session continues no earlier one: the first of a run and, in a merged run, of each shard."""
        return self.merged.is_first(number)

    def _on_run_started(self, event: events.RunStarted, _: Record) -> None:
        self.started = event
        self.merged = MergedShards(event)
        self.planned = event.trials
        self.settings = dict(event.settings)

    def _on_session_started(self, event: events.SessionStarted, record: Record) -> None:
        self.previous_end = self.previous_t
        if self:
            self._periods.append(self._current_period(self.previous_end))
            self._start = self._periods[-1][1]
        shard = self.merged.of_session(event.session)
        if self.merged:
            first_at = self[0].at if self else record.at
            self._start = seconds_between(first_at, record.at) - record.t
        self._end_t = None

        session = SessionState(number=event.session, seq=record.seq, at=record.at, pid=event.pid, host=event.host)
        session.shard = str(shard or "")
        self.append(session)
        self.outcome = ""

        if event.git and self.started is not None:
            environment = {**self.started.environment, "git": event.git}
            self.started = evolve_fact(self.started, environment=environment)
        self.adoption, self.has_new_task = None, False
        if event.adopted is not None:
            self._adopt(event.adopted, event.definition, record)
        self.settings.update(event.settings or {})
        if shard is None:
            self.planned = event.trials or self.planned

    def _adopt(self, adopted_fields: Any, definition: Any, record: Record) -> None:
        if self.started is None or not isinstance(adopted_fields, dict):
            return
        old_start = self.started
        new_fields = {name: adopted_fields[name] for name in (*IDENTITY_FIELDS, "task") if name in adopted_fields}
        new_fields = {name: value for name, value in new_fields.items() if _is_like(value, getattr(old_start, name))}
        new_fields["definition"] = old_start.definition if definition is None else definition
        new_start = self.started = evolve_fact(old_start, **new_fields)

        self.adoption = old_start, new_start
        self[-1].adopted = tuple(changes(identity(old_start), identity(new_start)))
        if not old_start.is_replacement:  # Otherwise it is unknown what the trials so far were run with.
            self.has_new_task = self.task_versions.adopt(old_start, new_start, (record.segment, record.offset))

    def _on_journal_recovered(self, _: events.JournalRecovered, __: Record) -> None:
        self.repairs["recovered"] += 1

    def _on_journal_salvaged(self, _: events.JournalSalvaged, __: Record) -> None:
        self.repairs["salvaged"] += 1

    def _on_run_stopped(self, event: events.RunStopped | events.RunFinished, record: Record) -> None:
        self.outcome = event.reason if isinstance(event, events.RunStopped) else "finished"
        self._end_t = record.t
        if self:
            self[-1].outcome = self.outcome

    _on_run_finished = _on_run_stopped


def _is_like(value: Any, old_value: str | Mapping[str, str]) -> bool:
    """Return whether an adopted value has the type of the old one: text, or a mapping to text; a foreign run may have any."""
    texts = [value] if isinstance(old_value, str) else value.values() if isinstance(value, Mapping) else [None]
    return all(isinstance(text, str) for text in texts)


@attrs.define
class SessionTime:
    number: int
    """From 1."""
    seq: int
    at: str
    """Wall time of its first record."""
    start: float
    """Time of its first record, in seconds of its own `t`."""
    end: float
    """Time of its last record."""
    offset: float
    """Wall-clock seconds between zero of the axis and zero of the session's `t`. Zero of the axis is that of the first session,
    or the start of a merged run; only sessions of different shards of it overlap."""
    is_independent: bool = False
    shard: str = ""


class SessionTimes:
    """The sessions of a run on one axis, up to some record."""

    def __init__(self) -> None:
        self.sessions: list[SessionTime] = []
        self._shards = MergedShards()
        self._merged_start = "", 0.0
        """Wall time and `t` of the start of a merged run; its axis begins where that `t` is 0."""

    @property
    def overlap(self) -> bool:
        """Whether sessions may overlap: those of the shards of a merged run."""
        return bool(self._shards)

    def apply(self, record: Record) -> float | None:
        """Return the time of the next record in its session; None if the record has no position on the axis."""
        event = record.event
        kind = event.__class__
        if kind in BETWEEN_SESSIONS:
            if isinstance(event, events.RunStarted):
                self._shards, self._merged_start = MergedShards(event), (record.at, record.t)
            return None

        if kind is events.SessionStarted:
            self._begin_session(record)
            return record.t

        if not self.sessions:
            raise KeyError("a session")
        session = self.sessions[-1]
        session.end = max(session.end, record.t)  # `t` of a foreign record may decrease.
        return session.end

    def _begin_session(self, record: Record) -> None:
        number = len(self.sessions) + 1
        session = SessionTime(number, record.seq, record.at, record.t, record.t, 0.0, self._shards.is_first(number))
        if self.overlap:
            session.shard = str(self._shards.of_session(number) or "")
            session.offset = self._merged_offset(session)
        elif self.sessions:
            first_session, last_session = self.sessions[0], self.sessions[-1]
            elapsed = seconds_between(first_session.at, session.at) + first_session.start - session.start
            session.offset = max(elapsed, last_session.offset + last_session.end - session.start)
        self.sessions.append(session)

    def _merged_offset(self, session: SessionTime) -> float:
        """Return the offset of a session of a merged run: from its wall time, but after the previous session of its shard.

        The sessions of the merged run itself follow all shards.
        """
        start_at, t = self._merged_start
        offset = seconds_between(start_at, session.at) + t - session.start
        if session.shard and session.is_independent:
            return offset
        earlier_sessions = self.sessions[-1:] if session.shard else self.sessions
        ends = [earlier_session.offset + earlier_session.end for earlier_session in earlier_sessions]
        return max([offset, *(end - session.start for end in ends)])
