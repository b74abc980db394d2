"""The records of a run as tables, from which its timeline, its trials, the exports and the report are queried.

The tables are in a private SQLite database: a temporary file without a name, which is in memory as long as it is small. One
`match` over the events fills it. A row has the numbers of the records that opened and closed it. Values are JSON; large ones
stay references to blobs. Text of a journal is only ever a parameter of a statement.
"""

import hashlib
import heapq
import json
import math
import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, get_args

import attrs
import orjson

from evaljournal.journal import Blob, Event, Record, events
from evaljournal.journal.format.lifecycle import END_STAGES, TRIAL_RULES
from evaljournal.replay.state.known_limits import is_valid, parse_need
from evaljournal.replay.state.pauses import BREAKER_REASONS
from evaljournal.replay.state.sessions import BETWEEN_SESSIONS, SessionTime, SessionTimes
from evaljournal.replay.state.trial import NO_SLOT
from evaljournal.replay.state.usage import is_amount, noted_usage

IDLE, QUEUED, BACKING_OFF, RUNNING, SCORING = range(5)
"""What a trial spends its time with; it is idle before it is enqueued and after it is done."""

_PHASES: Final = {"queued": QUEUED, "interrupted": QUEUED, "backing_off": BACKING_OFF, "running": RUNNING, "scoring": SCORING}
"""Stage → phase; in all other stages a trial is idle."""
_STAGE_AFTER: Final[dict[type[Event], tuple[str, int]]] = {
    kind: (stage := next(iter(row.values())), _PHASES.get(stage, IDLE))
    for kind, row in TRIAL_RULES.items()
    if any(row[stage] != stage for stage in row)
}
"""Events that change the stage of a trial → its new stage and phase."""

TIMELINE_EVENTS: Final = frozenset({*_STAGE_AFTER, *get_args(events.PolicyEvent), *BETWEEN_SESSIONS})
"""The events that an index needs for times and series."""

MAX_INT64: Final = (1 << 63) - 1
_MAX_INTEGER: Final = 1 << 40
"""Maximum integer in usage; sums of such integers fit into 64 bits."""
_FLUSH_RECORDS: Final = 4_096
_FLUSH_BYTES: Final = 8 << 20
"""Records and bytes of values after which rows are written."""
_CACHE_KIB: Final = 32 << 10


@attrs.define(eq=False)
class AttemptRow:
    id: int
    """From 0, in the order of their starts."""
    trial: int
    attempt: int
    previous: int
    """Id of the trial's previous attempt; -1 for the first."""
    slot: int
    session: int
    seq: int
    started_at: str
    start: float
    reuses: int
    spent: float
    request: bytes | str | None
    request_id: int
    """Id of the attempt that holds its request; -1 if the request is unknown."""
    queue_time: float
    """Seconds before it that the trial was ready to start."""
    backoff_time: float
    need: bytes | str | None
    """What it takes from known rate limits."""
    changed: int
    """The last record that changed it."""
    end_seq: int = 0
    """0 while in flight."""
    ended_at: str = ""
    """Wall time of the record of its end; empty while in flight, or if its process ended first."""
    end: float = 0.0
    outcome: str = ""
    """One of `OUTCOMES`."""
    elapsed: float | None = None
    error: int | None = None
    """Id in `errors`, unless it was interrupted."""
    reason: str = ""
    """Why it was interrupted."""
    detail: str = ""
    timeout: float | None = None
    retry_after: float | None = None
    output: bytes | str | None = None
    usage: bytes | str | None = None
    worker: str = ""
    late_outcome: str = ""
    retry_seq: int = 0
    """The record that scheduled its retry; 0 if there is none."""
    retry_end: int = 0
    """The record that ended the backoff before its retry."""
    retry_delay: float | None = None
    retry_due: float = 0.0
    """When the retry may start, in seconds of `t`."""
    retry_reason: str = ""
    batch: int = 0
    """The batch whose result it uses; 0: none."""
    line: int = 0


@attrs.define(eq=False)
class TrialRow:
    id: int
    """From 0, in the order of enqueueing."""
    name: str
    case: str = ""
    variant: str = ""
    repeat: int = 1
    fingerprint: str = ""
    input: bytes | str | None = None
    expected: bytes | str | None = None
    metadata: bytes | str | None = None
    enqueue_seq: int = 0
    enqueue_t: float = 0.0
    enqueued_at: str = ""
    end_seq: int = 0
    """The record that completed or failed it; 0 while it is open."""
    end_t: float = 0.0
    ended_at: str = ""
    reason: str = ""
    """Why it failed or was withdrawn."""
    seq: int = 0
    """Its last record."""
    stage: str = "absent"
    phase: int = IDLE
    phase_start: float = 0.0
    backoff_end: float = 0.0
    queue_time: float = 0.0
    backoff_time: float = 0.0
    run_time: float = 0.0
    scoring_time: float = 0.0
    earlier_queue_time: float = 0.0
    """Seconds before its last attempt started."""
    earlier_backoff_time: float = 0.0
    attempts: int = 0
    attempt: int = -1
    """Id of its last attempt."""
    output: int = -1
    """Id of the attempt that returned its output."""
    last_attempt: AttemptRow | None = attrs.field(default=None, init=False)
    scores: dict[str, list[Any]] = attrs.field(factory=dict[str, list[Any]], init=False)
    """Scorer → the row of its value."""
    calls: dict[str, list[Any]] = attrs.field(factory=dict[str, list[Any]], init=False)
    """Scorer → the row of its call in flight."""


def _columns(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(cls) if field.init)


OUTCOMES: Final = ("", "succeeded", "failed", "rate_limited", "unavailable", "fatal", "timed_out", "interrupted")
"""How an attempt ended: empty while in flight, otherwise the category of its failure. The categories `error` and `parse_error`,
and those of later versions, are `failed`."""
SERIES: Final = ("in_flight", "queued", "backing_off", "paused", "limit", "pace")
TABLES: Final = {
    "trials": _columns(TrialRow),
    "attempts": _columns(AttemptRow),
    "errors": ("id", "seq", "category", "error", "message", "traceback"),
    "steps": (
        *("seq", "trial", "attempt", "t", "at", "number", "parent", "completed_seq", "name", "kind", "elapsed", "continues"),
        *("reusable", "input", "output", "usage", "error", "message", "need", "waited"),
    ),
    "scores": (
        *("seq", "trial", "scorer", "version", "t", "elapsed", "value", "reason", "error", "message", "traceback", "end_seq"),
    ),
    "calls": (
        *("seq", "trial", "scorer", "call", "session", "outcome", "elapsed", "error", "message", "retry_after", "retry_delay"),
    ),
    "notes": ("seq", "trial", "attempt", "name", "value"),
    "needs": ("seq", "session", "t", "key", "need"),
    "rate_limits": ("seq", "session", "t", "key", "unit", "size", "window", "source", "header", "is_believed"),
    "policy": ("seq", "session", "t", "kind", "before", "after", "until", "reason", "evidence", "key", "end_seq"),
}
"""Table → columns; the first is the key. `steps.attempt` is the id of the attempt, `notes.attempt` its number in the trial. A
reused step has no `kind`, and only a failed one has an `error`. `needs` has what attempts, scorer calls and steps took from
known rate limits, and when they started. `scores.end_seq` is the record that replaced or removed it."""

TRIAL_INDEXES: Final = (("trials", "name"), ("steps", "trial"), ("scores", "trial"), ("calls", "trial"), ("notes", "trial"))
"""Table and column of the indexes that are created when a single trial is read for the first time."""
CHANGE_INDEXES: Final = (("trials", "seq"), ("attempts", "changed"), ("scores", "end_seq"))
"""Table and column of the indexes for reading only the rows that have changed since a record."""
_TRIAL: Final = attrgetter(*TABLES["trials"])
_ATTEMPT: Final = attrgetter(*TABLES["attempts"])


def temporary_directory() -> str:
    """Return where SQLite creates the temporary file of a large index."""
    if os.name == "nt":
        return tempfile.gettempdir()
    names = (os.environ.get("SQLITE_TMPDIR"), os.environ.get("TMPDIR"), "/var/tmp", "/usr/tmp", "/tmp")  # noqa: S108  # as SQLite
    return next((name for name in names if name and os.path.isdir(name) and os.access(name, os.W_OK | os.X_OK)), ".")


class Index:
    """The tables of a run up to some record."""

    def __init__(self, path: Path = Path(), *, has_values: bool = True, has_step_values: bool = True) -> None:
        """Index the run in a directory, where its blobs are; without all values, or those of steps, if they are not needed."""
        self.path = path
        self._has_values = has_values
        self._has_step_values = has_step_values
        self.seq = 0
        self.axis = SessionTimes()
        self.usage_names: dict[str, bool] = {}
        """Names of all numbers in usage and notes, and whether all are integers whose sums fit 64 bits."""
        self.last_trial: TrialRow | None = None
        """The trial of the last record."""
        self.trial_count = self.attempt_count = self.point_count = 0
        self.session_points: list[int] = []
        """Id of the first point of each session."""
        import sqlite3  # noqa: PLC0415  # `status` does not need it

        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        for statement in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            self._database.execute(f"PRAGMA {statement}")
        self._database.execute("BEGIN")  # Never committed: nothing outlives this object.
        self._pending: dict[str, list[Any]] = {}
        self._logs: dict[str, list[Any]] = {}
        self._log_sizes: Counter[str] = Counter()
        self._inserts: dict[str, str] = {}
        for table, columns in TABLES.items():
            self.add_table(table, columns)
        self._points = self.add_log("points", ("t", "seq", *SERIES))
        """`t`, record and the values of all series, for each change of one."""
        self._pending_bytes = 0
        self._flushed_seq = 0
        self._indexes: set[tuple[str, str]] = set()
        self._trials: dict[str, TrialRow] = {}
        """Open trials, and those that were changed since rows were last written."""
        self._withdrawn: set[str] = set()
        self._changed_trials: dict[int, TrialRow] = {}
        self._changed_attempts: dict[int, AttemptRow] = {}
        self._error_ids: dict[bytes, int] = {}
        """Hash of an error → its id."""
        self._counts = [0] * 5
        """Phase → number of trials."""
        self._limits: dict[str, int] = {}
        self._paces: dict[str, int] = {}
        self._limit: int | None = None
        self._pace: int | None = None
        self._pauses: dict[str, float] = {}
        """Rate-limit key → end of its pause; infinite while the circuit breaker is open."""
        self._paused = 0
        self._pause_rows: dict[str, list[Any]] = {}
        """Rate-limit key → row of its pause."""
        self._backoff_ends: list[tuple[float, str]] = []
        """Heap of the end of each backoff and its trial; outdated entries are skipped."""
        self._suspended_phases: dict[str, int] = {}
        """Open trials of earlier sessions that the current one does not continue, with their phases."""

    @property
    def sessions(self) -> list[SessionTime]:
        return self.axis.sessions

    @property
    def now(self) -> float:
        """Time of the last record of a session."""
        return self.sessions[-1].end if self.sessions else 0.0

    def add_table(self, table: str, columns: Iterable[str]) -> list[Any]:
        """Create a table whose first column is its key; return the list to which its rows are added."""
        key, *others = columns
        names = "".join(f', "{name}"' for name in others)
        self._database.execute(f'CREATE TABLE {table} ("{key}" INTEGER PRIMARY KEY{names})')
        self._inserts[table] = f"INSERT OR REPLACE INTO {table} VALUES (?{', ?' * len(others)})"  # noqa: S608  # our own names
        return self._pending.setdefault(table, [])

    def add_log(self, name: str, columns: Iterable[str]) -> list[Any]:
        """Create a table for many short rows that are only read in order; return the list to which they are added.

        A chunk of rows is one row of the table: a JSON list for each column, which takes a fraction of the time.
        """
        self.add_table(name, ("end", *columns))
        return self._logs.setdefault(name, [])

    def log(self, name: str, column: str, start: int = 0) -> Iterator[Any]:
        """Yield a column of a log, from the row with this number on."""
        query = f'SELECT end, "{column}" FROM {name} WHERE end > ? ORDER BY end'  # noqa: S608  # our own names
        chunks = ((end, orjson.loads(chunk)) for end, chunk in self.rows(query, start))
        return chain.from_iterable(chunk[max(0, len(chunk) - (end - start)) :] for end, chunk in chunks)

    def rows(self, query: str, *parameters: Any) -> Iterator[Any]:
        self.flush()
        return self._database.execute(query, parameters)

    def row(self, query: str, *parameters: Any) -> Any:
        return next(self.rows(query, *parameters), None)

    def flush(self) -> None:
        """Write all rows that were added or changed; forget trials that are done."""
        if self._flushed_seq == self.seq:
            return
        for trial in self._changed_trials.values():
            if trial.stage in END_STAGES:
                self._trials.pop(trial.name, None)

        self._insert("trials", map(_TRIAL, self._changed_trials.values()))
        self._insert("attempts", map(_ATTEMPT, self._changed_attempts.values()))
        self._changed_trials.clear()
        self._changed_attempts.clear()
        for table, rows in self._pending.items():
            if rows:
                self._insert(table, rows)
                rows.clear()

        for name, rows in self._logs.items():
            if rows:
                self._log_sizes[name] += len(rows)
                self._insert(name, [(self._log_sizes[name], *map(orjson.dumps, zip(*rows, strict=True)))])
                rows.clear()

        self._flushed_seq, self._pending_bytes = self.seq, 0

    def _insert(self, table: str, rows: Iterable[Any]) -> None:
        self._database.executemany(self._inserts[table], rows)

    def skip(self, record: Record) -> None:
        """Advance the time to that of the next record, and ignore its event, unless it starts a session."""
        self._advance(record)
        self.seq = record.seq

    def _advance(self, record: Record) -> float | None:
        """Return the time of the next record in its session, after what has happened without a record since the last one."""
        t = self.axis.apply(record)
        self.last_trial = None
        if record.event.__class__ is events.SessionStarted:
            self._begin_session(record.t, record.seq)
        elif t is not None and (self._pauses or (self._backoff_ends and self._backoff_ends[0][0] <= t)):
            self._pass_time(t)
        return t

    def apply(self, record: Record) -> None:  # noqa: C901, PLR0912  # one case for each event
        if not self.seq % _FLUSH_RECORDS or self._pending_bytes > _FLUSH_BYTES:
            self.flush()
        event, seq, t = record.event, record.seq, self._advance(record)
        if t is not None:
            match event:
                case events.AttemptStarted():
                    self._start_attempt(event, record, t)
                case (
                    events.AttemptSucceeded() | events.AttemptFailed() | events.AttemptTimedOut() | events.AttemptInterrupted()
                ):
                    self._end_attempt(event, record, t)
                case events.TrialScored() | events.ScoringFailed():
                    self._score(event, record)
                case events.TrialCompleted() | events.TrialFailed():
                    trial = self._changed_trial(event.trial, seq)
                    trial.end_seq, trial.end_t, trial.ended_at = seq, record.t, record.at
                    if isinstance(event, events.TrialFailed):
                        trial.reason = event.reason
                    self._set_stage(trial, event, t, seq)
                case events.TrialEnqueued():
                    self._enqueue(event, record, t)
                case events.StepCompleted() | events.StepFailed() | events.StepReused():
                    self._add_step(event, record)
                case events.Noted():
                    self._note(event, seq)
                case events.ScorerCallStarted():
                    self._add_call(self._changed_trial(event.trial, seq), event, seq)
                    self._add_need(event, t, seq)
                case events.ScorerCallFailed():
                    self._fail_call(self._changed_trial(event.trial, seq), event, seq)
                case events.RetryScheduled():
                    self._schedule_retry(event, t, seq)
                case events.AttemptReturnedLate():
                    attempt = self._attempt(self._changed_trial(event.trial, seq), event.attempt)
                    if attempt is not None:
                        self._changed_attempt(attempt, seq).late_outcome = event.outcome
                case events.TrialWithdrawn():
                    self._withdraw(event, t, seq)
                case events.LimitChanged() | events.PaceChanged():
                    self._change_policy(event, t, seq)
                case events.IntakePaused() | events.IntakeResumed():
                    self._pause(event, t, seq)
                case events.RateLimitSeen() if is_valid(event):
                    values = event.unit, event.size, event.window, event.source, event.header, event.is_believed
                    self._pending["rate_limits"].append((seq, len(self.sessions), t, event.key, *values))
                case _:
                    pass
        self.seq = seq

    # Trials and attempts.

    def trial(self, name: str) -> TrialRow:
        """Return a trial; raise a `KeyError` if there is none."""
        trial = self._trials.get(name)
        if trial is None:
            self.create_indexes(TRIAL_INDEXES)
            row = self._database.execute("SELECT * FROM trials WHERE name = ?", (name,)).fetchone()
            if row is None:
                raise KeyError(name)
            trial = TrialRow(*row)
        return trial

    def create_indexes(self, indexes: Iterable[tuple[str, str]]) -> None:
        """Create the indexes on these columns that do not exist yet; until then rows are written faster."""
        for table, column in indexes:
            if (table, column) not in self._indexes:
                self._indexes.add((table, column))
                self._database.execute(f"CREATE INDEX {table}_by_{column} ON {table} ({column})")

    def attempts(self, trial: TrialRow) -> list[AttemptRow]:
        """Return the attempts of a trial, in order."""
        self.flush()
        attempts, attempt_id = list[AttemptRow](), trial.attempt
        while attempt_id >= 0:
            attempts.append(self.attempt(attempt_id))
            attempt_id = attempts[-1].previous
        return attempts[::-1]

    def attempt(self, attempt_id: int) -> AttemptRow:
        """Return an attempt whose row has been written."""
        return AttemptRow(*self._database.execute("SELECT * FROM attempts WHERE id = ?", (attempt_id,)).fetchone())

    def _attempt(self, trial: TrialRow, number: int) -> AttemptRow | None:
        """Return an attempt of a trial by its number, usually the last one."""
        last_attempt = trial.last_attempt
        if last_attempt is None or last_attempt.attempt == number:
            return last_attempt
        return next((attempt for attempt in self.attempts(trial) if attempt.attempt == number), None)

    def _changed_trial(self, name: str, seq: int) -> TrialRow:
        """Return a trial that a record changes; raise a `KeyError` if there is none."""
        trial = self._trials.get(name)
        if trial is None:
            trial = self._trials[name] = self.trial(name)
            if trial.attempt >= 0:
                trial.last_attempt = self.attempt(trial.attempt)
            execute = self._database.execute

            scores = execute("SELECT * FROM scores WHERE trial = ? AND end_seq = 0 AND value IS NOT NULL", (trial.id,))
            trial.scores = {row[2]: list(row) for row in scores}
            calls = execute("SELECT * FROM calls WHERE trial = ? AND outcome = ''", (trial.id,))
            trial.calls = {row[2]: list(row) for row in calls}

        trial.seq = seq
        self.last_trial = self._changed_trials[trial.id] = trial
        return trial

    def _changed_attempt(self, attempt: AttemptRow, seq: int) -> AttemptRow:
        attempt.changed = seq
        self._changed_attempts[attempt.id] = attempt
        return attempt

    def _enqueue(self, event: events.TrialEnqueued, record: Record, t: float) -> None:
        name = event.trial
        if name not in self._trials and name not in self._withdrawn:
            self._trials[name] = TrialRow(self.trial_count, name)
            self.trial_count += 1
        trial = self._changed_trial(name, record.seq)
        self._withdrawn.discard(name)
        trial.case, trial.variant, trial.repeat, trial.fingerprint = event.case, event.variant, event.repeat, event.fingerprint
        trial.input, trial.expected = self._json(event.input), self._json(event.expected)
        trial.metadata = self._json(event.metadata)
        trial.enqueue_seq, trial.enqueue_t, trial.enqueued_at = record.seq, record.t, record.at
        trial.end_seq, trial.ended_at, trial.reason, trial.output = 0, "", "", -1
        self._set_stage(trial, event, t, record.seq)

    def _set_stage(self, trial: TrialRow, event: Event, t: float, seq: int, phase: int | None = None) -> None:
        """Move a trial to its stage after an event, and to the phase of that stage, or to this one."""
        if trial.stage == "backing_off" and trial.last_attempt is not None:
            self._changed_attempt(trial.last_attempt, seq).retry_end = seq
        trial.stage, new_phase = _STAGE_AFTER[event.__class__]
        self._move(trial, new_phase if phase is None else phase, t, seq)

    def _move(self, trial: TrialRow, phase: int, t: float, seq: int) -> None:
        old_phase, counts = trial.phase, self._counts
        if old_phase == phase:
            return
        _add_time(trial, t)
        trial.phase, trial.phase_start = phase, t
        counts[old_phase] -= 1
        counts[phase] += 1
        if QUEUED <= old_phase <= RUNNING or QUEUED <= phase <= RUNNING:
            self._add_point(t, seq)

    def _add_point(self, t: float, seq: int) -> None:
        _, queued, backing_off, in_flight, _ = self._counts
        self._points.append((t, seq, in_flight, queued, backing_off, self._paused, self._limit, self._pace))
        self.point_count += 1

    def _start_attempt(self, event: events.AttemptStarted, record: Record, t: float) -> None:
        seq = record.seq
        trial = self._changed_trial(event.trial, seq)
        # An attempt that uses a line of a batch is never in flight: its trial was in the queue until then.
        self._set_stage(trial, event, t, seq, QUEUED if event.batch else None)

        previous, attempt_id, request = trial.last_attempt, self.attempt_count, self._json(event.request)
        earlier_request_id = -1 if previous is None else previous.request_id
        trial.last_attempt = self._changed_attempts[attempt_id] = AttemptRow(
            attempt_id,
            trial.id,
            event.attempt,
            trial.attempt,
            NO_SLOT if event.batch else event.slot,
            len(self.sessions),
            seq,
            record.at,
            t,
            event.reuses,
            event.spent,
            request,
            attempt_id if request is not None else earlier_request_id,
            trial.queue_time - trial.earlier_queue_time,
            trial.backoff_time - trial.earlier_backoff_time,
            self._json(event.need),
            seq,
            batch=event.batch,
            line=event.line,
        )

        self._add_need(event, t, seq)
        trial.earlier_queue_time, trial.earlier_backoff_time = trial.queue_time, trial.backoff_time
        trial.attempt = attempt_id
        trial.attempts += 1
        self.attempt_count += 1

    def _end_attempt(self, event: events.AttemptEnd, record: Record, t: float) -> None:
        seq = record.seq
        trial = self._changed_trial(event.trial, seq)
        attempt, is_interrupted = trial.last_attempt, isinstance(event, events.AttemptInterrupted)
        has_ended = attempt is None or attempt.outcome != ""  # It ended with its process, and this is the record of its end.
        if attempt is None or (has_ended and not (is_interrupted and attempt.outcome == "interrupted")):
            raise KeyError(f"an attempt at {event.trial}")

        self._changed_attempt(attempt, seq)
        attempt.end_seq, attempt.ended_at, attempt.elapsed, attempt.worker = seq, record.at, event.elapsed, event.worker
        if not has_ended:
            attempt.end = t

        match event:
            case events.AttemptSucceeded():
                attempt.outcome, attempt.output, trial.output = "succeeded", self._json(event.output), attempt.id
            case events.AttemptFailed():
                attempt.outcome = event.category if event.category in OUTCOMES else "failed"
                attempt.error = self._error_id(seq, event.category, event.error, event.message, event.traceback)
                attempt.retry_after = event.retry_after
            case events.AttemptTimedOut():
                attempt.outcome, attempt.timeout = "timed_out", event.timeout
                attempt.error = self._error_id(seq, "timed_out", "timeout", f"timed out after {event.timeout:g} s", "")
            case events.AttemptInterrupted():
                attempt.outcome, attempt.reason, attempt.detail = "interrupted", event.reason, event.detail

        if not isinstance(event, events.AttemptInterrupted) and event.usage is not None:
            attempt.usage = self._json(event.usage)
            self._add_usage_names(event.usage)
        self._set_stage(trial, event, t, seq)

    def _error_id(self, seq: int, *texts: str) -> int:
        key = hashlib.sha256(orjson.dumps(texts)).digest()
        error_id = self._error_ids.get(key)
        if error_id is None:
            error_id = self._error_ids[key] = len(self._error_ids)
            self._pending["errors"].append((error_id, seq, *texts))
        return error_id

    def _schedule_retry(self, event: events.RetryScheduled, t: float, seq: int) -> None:
        trial = self._changed_trial(event.trial, seq)
        trial.end_seq, trial.ended_at, trial.reason = 0, "", ""
        self._set_stage(trial, event, t, seq, BACKING_OFF if event.delay > 0 else QUEUED)
        if event.delay > 0:
            trial.backoff_end = t + event.delay
            heapq.heappush(self._backoff_ends, (trial.backoff_end, trial.name))
        if trial.last_attempt is not None:
            attempt = self._changed_attempt(trial.last_attempt, seq)
            attempt.retry_seq, attempt.retry_end, attempt.retry_due = seq, 0, t + event.delay
            attempt.retry_delay, attempt.retry_reason = event.delay, event.reason

    def _withdraw(self, event: events.TrialWithdrawn, t: float, seq: int) -> None:
        trial = self._changed_trial(event.trial, seq)
        trial.end_seq, trial.ended_at, trial.reason = 0, "", event.reason
        for row in trial.scores.values():
            row[-1] = seq
            self._rewrite("scores", row)
        trial.scores.clear()
        self._withdrawn.add(event.trial)
        self._set_stage(trial, event, t, seq)

    # Steps, scores and notes.

    def _add_step(self, event: events.StepEvent, record: Record) -> None:
        trial = self._changed_trial(event.trial, record.seq)
        attempt = self._attempt(trial, event.attempt)
        if attempt is None:
            return

        row: tuple[Any, ...] = (record.seq, trial.id, attempt.id, record.t, record.at, event.step, event.parent)
        if isinstance(event, events.StepReused):
            row += (event.completed_seq, "", "", 0.0, 0, True, None, None, None, None, "", None, 0.0)
        else:
            row += (getattr(event, "source_seq", 0), event.name, event.kind, event.elapsed, event.continues)
            if isinstance(event, events.StepCompleted):
                values = self._step_value(event.input), self._step_value(event.output), self._step_value(event.usage)
                row += (event.reusable, *values, None, "")
                self._add_usage_names(event.usage)
            else:
                row += (False, self._step_value(event.input), None, None, event.error, event.message)
            row += (self._json(event.need), event.waited)
            self._add_need(event, record.t - event.elapsed, record.seq)

        self._pending["steps"].append(row)

    def _add_need(
        self,
        event: events.AttemptStarted | events.ScorerCallStarted | events.StepCompleted | events.StepFailed,
        t: float,
        seq: int,
    ) -> None:
        if need := parse_need(event.need):
            self._pending["needs"].append((seq, len(self.sessions), t, event.key, orjson.dumps(need)))

    def _step_value(self, value: Any) -> bytes | str | None:
        return self._json(value) if self._has_step_values else None

    def _score(self, event: events.TrialScored | events.ScoringFailed, record: Record) -> None:
        seq = record.seq
        trial = self._changed_trial(event.trial, seq)
        if trial.calls:
            self._end_call(trial, event)
        if isinstance(event, events.TrialScored):
            result: tuple[Any, ...] = (_score_json(event.value), event.reason, "", "", "")
        else:
            result = (None, "", event.error, event.message, event.traceback)

        row = [seq, trial.id, event.scorer, event.version, record.t, event.elapsed, *result, 0]
        if isinstance(event, events.TrialScored):
            old_row = trial.scores.get(event.scorer)
            if old_row is not None:
                old_row[-1] = seq
                self._rewrite("scores", old_row)
            trial.scores[event.scorer] = row

        self._pending["scores"].append(row)

    def _rewrite(self, table: str, row: list[Any]) -> None:
        """Write a changed row again, unless it will be written anyway."""
        if row[0] <= self._flushed_seq:
            self._pending[table].append(row)

    def _add_call(self, trial: TrialRow, event: events.ScorerCallStarted | events.ScorerCallFailed, seq: int) -> None:
        row = [seq, trial.id, event.scorer, event.call, len(self.sessions), "", None, "", "", None, None]
        trial.calls[event.scorer] = row
        self._pending["calls"].append(row)

    def _fail_call(self, trial: TrialRow, event: events.ScorerCallFailed, seq: int) -> None:
        row = trial.calls.get(event.scorer)
        if row is None or row[4] != len(self.sessions):  # The first call of a plain function has no start record.
            self._add_call(trial, event, seq)
        self._end_call(trial, event)

    def _end_call(self, trial: TrialRow, event: events.ScorerCallFailed | events.TrialScored | events.ScoringFailed) -> None:
        row = trial.calls.pop(event.scorer.partition(".")[0], None)
        if row is None or row[4] != len(self.sessions):  # The call of an earlier session was interrupted.
            return
        row[5:] = "succeeded", event.elapsed, "", "", None, None
        if isinstance(event, events.ScorerCallFailed):
            row[5:] = event.category, event.elapsed, event.error, event.message, event.retry_after, event.delay
        self._rewrite("calls", row)

    def _note(self, event: events.Noted, seq: int) -> None:
        if not event.trial:
            return  # It belongs to the run.
        try:
            trial = self._changed_trial(event.trial, seq)
        except KeyError:
            return  # Salvage has lost the start of its trial.
        self._pending["notes"].append((seq, trial.id, event.attempt, event.name, self._json(event.value)))
        self._add_usage_names(noted_usage(event.name, event.value))
        if trial.last_attempt is not None and trial.last_attempt.attempt == event.attempt:
            self._changed_attempt(trial.last_attempt, seq)

    def _add_usage_names(self, usage: Any) -> None:
        if isinstance(usage, dict):
            for name, value in usage.items():
                if is_amount(value):
                    is_integer = isinstance(value, int) and abs(value) <= _MAX_INTEGER
                    self.usage_names[name] = is_integer and self.usage_names.get(name, True)

    # Sessions and the policy.

    def _begin_session(self, t: float, seq: int) -> None:
        """Start a session: `t` restarts, and attempts in flight ended with their process."""
        session, suspended = self.sessions[-1], self._suspended_phases
        open_trials = [trial for name, trial in self._trials.items() if trial.stage not in END_STAGES and name not in suspended]
        if session.number > 1:
            self._carry_over(open_trials, self.sessions[-2].end, t, seq)

        if session.is_independent:
            for trial in open_trials:
                suspended[trial.name], trial.phase = trial.phase, IDLE
            open_trials = []
            self._backoff_ends.clear()
            if not session.shard:  # It is one of the merged run itself, which continues all of them.
                open_trials = [self._trials[name] for name in suspended]
                for trial in open_trials:
                    self._changed_trials[trial.id] = trial
                    trial.phase, trial.phase_start = suspended[trial.name], t
                    if trial.phase == BACKING_OFF:
                        heapq.heappush(self._backoff_ends, (trial.backoff_end, trial.name))
                suspended.clear()

        for row in self._pause_rows.values():
            row[-1] = seq
            self._rewrite("policy", row)
        for per_session in (self._limits, self._paces, self._pauses, self._pause_rows):
            per_session.clear()

        self._counts = [0] * 5
        for trial in open_trials:
            self._counts[trial.phase] += 1
        self._paused, self._limit, self._pace = 0, None, 0 if self._pace else None
        self.session_points.append(self.point_count)
        self._add_point(t, seq)

    def _carry_over(self, open_trials: list[TrialRow], end: float, t: float, seq: int) -> None:
        """Keep the phases of open trials in a new session that starts at `t`; the previous session ended at `end`."""
        self._backoff_ends.clear()
        for trial in open_trials:
            self._changed_trials[trial.id] = trial
            _add_time(trial, end)
            trial.phase_start = t
            attempt = trial.last_attempt
            if trial.stage == "running" and attempt is not None and not attempt.outcome:
                self._changed_attempt(attempt, seq)
                attempt.end, attempt.outcome, attempt.end_seq = end, "interrupted", seq
                trial.phase = QUEUED
            elif trial.phase == BACKING_OFF:
                trial.backoff_end -= end
                if trial.backoff_end > t:
                    heapq.heappush(self._backoff_ends, (trial.backoff_end, trial.name))
                else:
                    trial.phase = QUEUED
            if trial.stage == "backing_off" and attempt is not None:
                retry_due = trial.backoff_end if trial.phase == BACKING_OFF else 0.0
                self._changed_attempt(attempt, seq).retry_due = max(0.0, retry_due)

    def _pass_time(self, t: float) -> None:
        """End the backoffs and pauses that have expired."""
        while self._backoff_ends and self._backoff_ends[0][0] <= t:
            end, name = heapq.heappop(self._backoff_ends)
            trial = self._trials.get(name)
            if trial is not None and trial.phase == BACKING_OFF and trial.backoff_end == end:
                self._changed_trials[trial.id] = trial
                self._move(trial, QUEUED, end, self.seq)
        for end, key in sorted((end, key) for key, end in self._pauses.items() if end <= t):
            del self._pauses[key]
            self._count_paused(end, self.seq)

    def _count_paused(self, t: float, seq: int) -> None:
        if len(self._pauses) != self._paused:
            self._paused = len(self._pauses)
            self._add_point(t, seq)

    def _change_policy(self, event: events.LimitChanged | events.PaceChanged, t: float, seq: int) -> None:
        is_limit, key = isinstance(event, events.LimitChanged), event.key
        values = event.before, event.after, None, event.reason, event.evidence, key, 0
        self._pending["policy"].append((seq, len(self.sessions), t, "limit" if is_limit else "pace", *values))
        if key.startswith(events.SCORER_PREFIX):
            return  # It applies to scorer calls, not to attempts.
        if isinstance(event, events.LimitChanged):
            self._limits[key] = event.after
            self._limit = sum(self._limits.values())
        else:
            self._paces[key] = round(1_000 * (event.after or 0.0))
            self._pace = sum(self._paces.values())
        self._add_point(t, seq)

    def _pause(self, event: events.IntakePaused | events.IntakeResumed, t: float, seq: int) -> None:
        key = event.key
        if (row := self._pause_rows.pop(key, None)) is not None:
            row[-1] = seq
            self._rewrite("policy", row)

        if isinstance(event, events.IntakeResumed):
            self._pauses.pop(key, None)
        else:
            values = None, None, event.until, event.reason, event.evidence, key, 0
            row = self._pause_rows[key] = [seq, len(self.sessions), t, "pause", *values]
            self._pending["policy"].append(row)
            is_open = event.reason in BREAKER_REASONS
            if (is_open or event.until > t) and not key.startswith(events.SCORER_PREFIX):
                self._pauses[key] = math.inf if is_open else event.until

        self._count_paused(t, seq)

    # Values.

    def _json(self, value: Any) -> bytes | str | None:
        """Return a value as JSON, or a reference to its blob as text."""
        if value is None or not self._has_values:
            return None
        if isinstance(value, Blob):
            return f"{value.sha256} {value.bytes}"
        try:
            text = orjson.dumps(value)
        except TypeError:  # A foreign value that is nested deeper than orjson writes.
            text = json.dumps(value, ensure_ascii=False).encode()
        self._pending_bytes += len(text)
        return text

    def value(self, column: bytes | str | None) -> Any:
        """Return the value in a column; a large one as a `Blob`."""
        if isinstance(column, str):
            sha256, _, size = column.partition(" ")
            return Blob(sha256=sha256, bytes=int(size), path=self.path)
        return None if column is None else orjson.loads(column)

    @staticmethod
    def score(column: bytes | None) -> Any:
        """Return the value of a score; None if the scorer failed."""
        if column is None:
            return None
        try:
            return orjson.loads(column)
        except ValueError:
            return json.loads(column)  # NaN or infinite.


def _score_json(value: float | str) -> bytes:
    """Return a score as JSON that keeps NaN and infinities."""
    return json.dumps(value).encode() if isinstance(value, float) and not math.isfinite(value) else orjson.dumps(value)


def _add_time(trial: TrialRow, t: float) -> None:
    seconds = t - trial.phase_start
    if trial.phase == QUEUED:
        trial.queue_time += seconds
    elif trial.phase == BACKING_OFF:
        trial.backoff_time += seconds
    elif trial.phase == RUNNING:
        trial.run_time += seconds
    elif trial.phase == SCORING:
        trial.scoring_time += seconds
