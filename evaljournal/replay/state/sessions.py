"""The sessions of a run: the changes that each adopted, and their position on one axis."""

from datetime import datetime
from typing import Final, get_args

import attrs

from evaljournal.journal import Record, events
from evaljournal.replay.state.shards import MergedShards

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


@attrs.define
class SessionTime:
    """When a session took place."""

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
    shard: str = ""
    """The shard that it belongs to, in a merged run."""


class SessionTimes:
    """The sessions of a run on one axis, up to some record."""

    def __init__(self) -> None:
        self.sessions: list[SessionTime] = []
        self.shards = MergedShards()
        self._merged_start = "", 0.0
        """Wall time and `t` of the start of a merged run; its axis begins where that `t` is 0."""

    def apply(self, record: Record) -> float | None:
        """Return the time of the next record in its session; None if the record has no position on the axis."""
        event = record.event
        kind = event.__class__
        if kind in BETWEEN_SESSIONS:
            if isinstance(event, events.RunStarted):
                self.shards, self._merged_start = MergedShards(event), (record.at, record.t)
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
        session = SessionTime(len(self.sessions) + 1, record.seq, record.at, record.t, record.t, 0.0)
        if self.shards:
            session.shard = str(self.shards.of_session(session.number) or "")
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
        if session.shard and self.shards.is_first(session.number):
            return offset
        earlier_sessions = self.sessions[-1:] if session.shard else self.sessions
        ends = [earlier_session.offset + earlier_session.end for earlier_session in earlier_sessions]
        return max([offset, *(end - session.start for end in ends)])
