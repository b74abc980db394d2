"""The data of a page, collected record by record: events, attempts, trials and the policy's decisions.

A page shows the state after any record without the journal, so the data of each event include its changes. Counts, scores and
times come from the run's state and its timeline. Most data that grow with the run are on disk. `page_columns` encodes them.
"""

import hashlib
import math
import re
from typing import Any, Final

import orjson

from evaljournal.journal import Event, Record, events
from evaljournal.journal.format.codec import TYPE_NAMES
from evaljournal.journal.format.lifecycle import STAGES, TRIAL_RULES
from evaljournal.replay.page.page_steps import PageSteps
from evaljournal.replay.page.page_text import MICRO, Text, microseconds, page_text, truncate, visible_text
from evaljournal.replay.page.page_timeline import Timeline
from evaljournal.replay.runs.loaded_run import LoadedRun
from evaljournal.replay.runs.scratch import Column, Scratch, Values
from evaljournal.replay.state.handlers import handlers
from evaljournal.replay.state.tally import is_summable
from evaljournal.replay.text import as_words

VALUE_LENGTH: Final = 16_384
"""Maximum characters of a value on a page; a longer one is truncated, and the page has the command that shows it in full."""
FULL_SIZE: Final = 64 << 20
"""Bytes of a journal above which values are truncated to less than `VALUE_LENGTH`, so that a browser can open the page. For
larger journals, this is also the maximum number of characters of all inputs, and of all outputs."""
MIN_VALUE_LENGTH: Final = 40
TYPES: Final = (*TYPE_NAMES.values(), "x-")
"""The names of event types, in the order of their numbers on a page."""

_TRACEBACK_CHARS: Final = 6_000
"""Maximum length of a traceback; its end is kept."""
_MESSAGE_CHARS: Final = 1_000
_NOTE_CHARS: Final = 300
_MAX_NOTES: Final = 100
"""Maximum number of notes shown for one attempt."""
_SCALARS: Final = frozenset({bool, int, float})

_TYPE_NUMBERS: Final[dict[type[Event], int]] = {
    **{kind: number for number, kind in enumerate(TYPE_NAMES)},
    events.Extension: len(TYPE_NAMES),
}
STAGE_NUMBERS: Final = {stage: number for number, stage in enumerate(STAGES)}
_BACKING_OFF: Final = STAGE_NUMBERS["backing_off"]
_TRIAL_EVENTS: Final = frozenset(TRIAL_RULES)
_STAGE_EVENTS: Final = frozenset(kind for kind, row in TRIAL_RULES.items() if any(row[stage] != stage for stage in row))
"""Events that can change the stage of a trial."""
_COUNTED_EVENTS: Final = frozenset({events.AttemptStarted, events.TrialCompleted, events.TrialWithdrawn})
"""Events that can change the number of recovered trials or of repeated calls."""
_SCORE_EVENTS: Final = frozenset({events.TrialScored, events.TrialWithdrawn})
"""Events that can remove a score."""
_LIMIT_EVENTS: Final = frozenset({events.RunStarted, events.SessionStarted, events.LimitChanged})
"""Events that can change the concurrency limit."""
_VARIABLE_PARTS: Final = re.compile(r"\d+(?:\.\d+)?|0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}")
"""Parts of an error message that differ between occurrences of the same error."""


def value_length(size: int, trials: int = 0) -> int:
    """Return the maximum characters of a value on the page of a journal with `size` bytes and `trials` trials."""
    if size <= FULL_SIZE:
        return VALUE_LENGTH
    return max(MIN_VALUE_LENGTH, min(VALUE_LENGTH * FULL_SIZE // size, FULL_SIZE // max(1, trials)))


class Content:
    """Everything that a page shows of a run so far."""

    def __init__(self, size: int = 0) -> None:
        """Prepare for a journal of `size` bytes."""
        scratch = Scratch()
        self.timeline = Timeline(scratch)
        self._size, self._length = size, value_length(size)

        # One entry for each event.
        self.t = Column[int]("q", scratch)
        """Time in its session in microseconds; for an event between two sessions, the last time before it."""
        self.type = Column[int]("B", scratch)
        self.trial = Column[int]("l", scratch)
        """Number of the trial; -1 for an event without one."""
        self.stage_changes = Column[int]("B", scratch)
        """16 × the stage before + the stage after; 0 if the stage does not change."""
        self.count_changes = Column[int]("l", scratch)
        """Change of the number of recovered trials or of repeated calls."""

        self.limits: list[tuple[int, int | None]] = []
        """Record that changed the concurrency limit, and the new limit."""
        self.limit_changes: list[tuple[Any, ...]] = []
        """seq, session, t, before, after, reason, evidence, key."""
        self.pace_changes: list[tuple[Any, ...]] = []
        """The same members; before and after are in starts per second, None if starts are not paced."""
        self.pauses: list[list[Any]] = []
        """seq, session, t, planned end, reason, evidence, key, and the record that ended the pause (0 until then)."""
        self.backoffs: list[list[Any]] = []
        """Trial, the record that started the backoff, the record that ended it (0 until then), due time, reason."""

        # One entry for each trial; a `Text`, unless stated otherwise.
        self.inputs, self.expected, self.metadata, self.outputs = (Values(scratch) for _ in range(4))
        self.reasons = Values(scratch)
        """Why a trial failed or was withdrawn."""
        self.score_reasons = Values(scratch)
        """Scorer → the reason for its value, or the error if it failed."""

        self.scorers: dict[str, int] = {}
        self.score_log = (
            Column[int]("q", scratch),
            Column[int]("l", scratch),
            Column[int]("b", scratch),
            Column[float]("d", scratch),
        )
        """Record, scorer, 1 (or -1 where a score is replaced), and the number; NaN if it is in no mean."""

        # One entry for each attempt, in the order of the timeline's spans.
        self.details = Values(scratch)
        """Error, usage, notes and retry of an attempt."""
        self.changed_spans = Column[int]("q", scratch), Column[int]("l", scratch)
        """Record that changed an attempt, and the attempt; one entry for each change."""

        self.steps = PageSteps(scratch)

        self.errors = Values(scratch)
        """Category, type, message, traceback and group of every distinct error."""
        self.groups: dict[tuple[str, str, str], tuple[int, str]] = {}
        """Category, type and message without numbers → number of the group, and the first message."""
        self.error_seq = Column[int]("q", scratch)
        """The record in which each error occurred first."""

        self._error_numbers: dict[bytes, int] = {}
        """Hash of an error → its number."""
        self._planned_trials = self._trials = self._recovered_trials = self._repeated_calls = 0
        self._limit: int | None = None
        self._backoff_indexes: dict[int, int] = {}
        """Trial in backoff → index in `backoffs`."""
        self._open_spans: dict[int, int] = {}
        """Trial → its attempt in flight."""

    def apply(self, run: LoadedRun, record: Record) -> None:
        """Apply the next record, to the run and to the content."""
        event, seq, state, timeline = record.event, record.seq, run.state, self.timeline
        kind = event.__class__
        number, stage_change, count_change = -1, 0, 0
        name: str = event.trial if kind in _TRIAL_EVENTS else ""  # type: ignore[union-attr]  # these events have a trial
        trial = state.trials.get(name)
        old_stage = STAGE_NUMBERS[trial.stage] if trial is not None else 0
        scores = trial.scores if trial is not None and kind in _SCORE_EVENTS else None
        run.apply(record)
        timeline.apply(record)
        if kind in _TRIAL_EVENTS:
            number = timeline.times.numbers[name]
            if kind in _STAGE_EVENTS:
                stage_change = self._stage_change(number, old_stage, STAGE_NUMBERS[state.trials[name].stage], seq)
        elif kind is events.Noted and event.trial in state.trials:  # type: ignore[union-attr]  # a note may have a trial
            number = timeline.times.numbers[event.trial]  # type: ignore[union-attr]  # this note has one
        for scorer, (_, value) in scores.items() if scores else ():
            if kind is events.TrialWithdrawn or scorer == event.scorer:  # type: ignore[union-attr]  # it is a `TrialScored`
                self._log_score(seq, self.scorers[scorer], -1, value)
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, event, number, record)
        if kind in _COUNTED_EVENTS:
            count_change = abs(state.recovered - self._recovered_trials) or state.repeated_calls - self._repeated_calls
            self._recovered_trials, self._repeated_calls = state.recovered, state.repeated_calls
        elif kind in _LIMIT_EVENTS:
            self._planned_trials = state.planned
            if state.limit != self._limit:
                self._limit = state.limit
                self.limits.append((seq, self._limit))
        sessions = timeline.sessions
        self.t.append(round(sessions[-1].end * MICRO) if sessions else 0)
        self.type.append(_TYPE_NUMBERS[kind])
        self.trial.append(number)
        self.stage_changes.append(stage_change)
        self.count_changes.append(count_change)

    def _stage_change(self, number: int, old_stage: int, new_stage: int, seq: int) -> int:
        """Return the change of a trial's stage as one number, 0 if the stage is the same."""
        if old_stage == new_stage:
            return 0
        if old_stage == _BACKING_OFF:
            self.backoffs[self._backoff_indexes.pop(number)][2] = seq
        return old_stage << 4 | new_stage

    def _on_trial_enqueued(self, event: events.TrialEnqueued, number: int, _: Record) -> None:
        if number & number - 1 == 0:  # The total may be unknown; it is at least `number`.
            self._length = value_length(self._size, max(self._planned_trials, number))
        self.inputs[number], self.expected[number] = self._text(event.input), self._text(event.expected)
        self.metadata[number] = self._text(event.metadata)
        if number == self._trials:
            self._trials += 1
        else:  # It was withdrawn, and is enqueued again.
            self.outputs[number] = self.score_reasons[number] = self.reasons[number] = None

    def _on_attempt_started(self, event: events.AttemptStarted, number: int, record: Record) -> None:
        span = self._open_spans[number] = len(self.timeline.spans) - 1
        self._mark_changed(record.seq, span)
        self._add_details(span, request=self._text(event.request), reuses=event.reuses or None)

    def _end_attempt(self, event: events.AttemptEnd, number: int, record: Record) -> None:
        span = self._open_spans.pop(number, None)
        if span is None:
            span = self.timeline.times.span[number]
        self._mark_changed(record.seq, span)
        fields = attempt_fields(event)
        if isinstance(event, events.AttemptSucceeded):
            self.outputs[number] = self._text(fields["output"])
        elif not isinstance(event, events.AttemptInterrupted):
            category, error, message = fields["category"], fields["error"], fields["message"]
            self._add_details(span, error=self._error_number(record.seq, category, error, message, fields.get("traceback", "")))
        usage = self._shorten(fields.get("usage"))
        self._add_details(span, retry_after=fields.get("retry_after"), reason=fields.get("reason"), usage=usage)
        worker, detail = self._shorten(event.worker or None), self._shorten(fields.get("detail") or None)
        self._add_details(span, worker=worker, detail=detail)

    _on_attempt_succeeded = _on_attempt_failed = _on_attempt_timed_out = _on_attempt_interrupted = _end_attempt

    def _on_attempt_returned_late(self, event: events.AttemptReturnedLate, number: int, _: Record) -> None:
        if self.timeline.times.span[number] >= 0:
            self._add_details(self.timeline.times.span[number], **attempt_fields(event))

    def _add_step(self, event: events.StepEvent, number: int, record: Record) -> None:
        if (span := self._open_spans.get(number)) is not None:
            self.steps.add(event, span, record, self._length)

    _on_step_completed = _on_step_failed = _on_step_reused = _add_step

    def _on_retry_scheduled(self, event: events.RetryScheduled, number: int, record: Record) -> None:
        due_time = microseconds(self.timeline.times.now + event.delay)
        self._backoff_indexes[number] = len(self.backoffs)
        self.backoffs.append([number, record.seq, 0, due_time, event.reason])
        span = self.timeline.times.span[number]
        if span >= 0:
            self._add_details(span, retry_in=event.delay, retry_reason=event.reason)
            self._mark_changed(record.seq, span)

    def _on_trial_scored(self, event: events.TrialScored, number: int, record: Record) -> None:
        scorer = self.scorers.setdefault(event.scorer, len(self.scorers))
        self._log_score(record.seq, scorer, 1, event.value)
        if event.reason or self.score_reasons[number]:
            self._set_score_reason(number, scorer, truncate(event.reason, self._length) if event.reason else None)

    def _on_scoring_failed(self, event: events.ScoringFailed, number: int, _: Record) -> None:
        scorer = self.scorers.setdefault(event.scorer, len(self.scorers))
        self._set_score_reason(number, scorer, {"error": f"{event.error}: {event.message}"[:_MESSAGE_CHARS]})

    def _on_trial_failed(self, event: events.TrialFailed, number: int, _: Record) -> None:
        self.reasons[number] = event.reason

    def _on_trial_withdrawn(self, event: events.TrialWithdrawn, number: int, _: Record) -> None:
        self.score_reasons[number], self.reasons[number] = None, event.reason

    def _on_noted(self, event: events.Noted, number: int, record: Record) -> None:
        span = self.timeline.times.span[number] if number >= 0 else -1
        if span >= 0 and self.timeline.spans.attempt[span] == event.attempt:
            details = self.details[span] or {}
            notes = details.setdefault("notes", [])
            if len(notes) < _MAX_NOTES:
                notes.append((event.name, self._shorten(event.value)))
            else:
                details["more_notes"] = details.get("more_notes", 0) + 1
            self.details[span] = details
            self._mark_changed(record.seq, span)

    def _add_policy_change(self, event: events.LimitChanged | events.PaceChanged, _: int, record: Record) -> None:
        change = (event.before, event.after, event.reason, event.evidence[:_MESSAGE_CHARS], event.key)
        changes = self.limit_changes if isinstance(event, events.LimitChanged) else self.pace_changes
        changes.append((record.seq, len(self.timeline.sessions), self._now, *change))

    _on_limit_changed = _on_pace_changed = _add_policy_change

    def _on_intake_paused(self, event: events.IntakePaused, _: int, record: Record) -> None:
        self._end_pauses(record.seq, event.key)
        planned_end = microseconds(max(event.until, self.timeline.times.now))
        pause = (planned_end, event.reason, event.evidence[:_MESSAGE_CHARS], event.key)
        self.pauses.append([record.seq, len(self.timeline.sessions), self._now, *pause, 0])

    def _on_intake_resumed(self, event: events.IntakeResumed, _: int, record: Record) -> None:
        self._end_pauses(record.seq, event.key)

    def _on_session_started(self, _: events.SessionStarted, __: int, record: Record) -> None:
        self._end_pauses(record.seq, None)
        for span in self._open_spans.values():  # Interrupted: their process has exited.
            self._mark_changed(record.seq, span)
        for index in self._backoff_indexes.values():  # `t` starts at 0 again.
            number = self.backoffs[index][0]
            self.backoffs[index][3] = microseconds(max(0.0, self.timeline.times.backoff_end[number]))

    def _end_pauses(self, seq: int, key: str | None) -> None:
        """End the pause of a rate-limit key, or all pauses."""
        for pause in reversed(self.pauses):
            if pause[1] != len(self.timeline.sessions) and key is not None:
                return
            if not pause[7] and (key is None or pause[6] == key):
                pause[7] = seq
                if key is not None:
                    return

    @property
    def _now(self) -> int:
        return round(self.timeline.times.now * MICRO)

    def _mark_changed(self, seq: int, span: int) -> None:
        self.changed_spans[0].append(seq)
        self.changed_spans[1].append(span)

    def _add_details(self, span: int, **details: Any) -> None:
        details = {name: value for name, value in details.items() if value is not None}
        if details:
            self.details[span] = {**(self.details[span] or {}), **details}

    def _set_score_reason(self, number: int, scorer: int, reason: Any) -> None:
        reasons = self.score_reasons[number] or {}
        reasons.pop(str(scorer), None)
        if reason is not None:
            reasons[str(scorer)] = reason
        self.score_reasons[number] = reasons or None

    def _error_number(self, seq: int, category: str, error: str, message: str, traceback: str) -> int:
        message = message[:_MESSAGE_CHARS]
        texts = category, error, message, traceback[-_TRACEBACK_CHARS:]
        key = hashlib.sha256(orjson.dumps(texts)).digest()
        number = self._error_numbers.get(key)
        if number is None:
            number = self._error_numbers[key] = len(self.error_seq)
            self.error_seq.append(seq)
            group = category, error, _VARIABLE_PARTS.sub("#", message)
            self.errors[number] = *texts, self.groups.setdefault(group, (len(self.groups), message))[0]
        return number

    def _log_score(self, seq: int, scorer: int, count: int, value: Any) -> None:
        seqs, scorers, counts, values = self.score_log
        seqs.append(seq)
        scorers.append(scorer)
        counts.append(count)
        values.append(float(value) if is_summable(value) else math.nan)

    def _text(self, value: Any) -> Text:
        return page_text(value, self._length)

    def _shorten(self, value: Any) -> Any:
        """Return a number as it is, and at most `_NOTE_CHARS` characters of anything else."""
        if value is None or value.__class__ in _SCALARS:
            return value if not isinstance(value, int) or abs(value) < 1 << 53 else str(value)
        text = visible_text(self._text(value))
        return text if len(text) <= _NOTE_CHARS else f"{text[: _NOTE_CHARS - 1]}…"


_HANDLERS: Final = handlers(Content)


def attempt_fields(event: Event) -> dict[str, Any]:  # noqa: PLR0911  # one for each event
    """Return the fields of `AttemptDetails` that an event sets."""
    match event:
        case events.AttemptStarted():
            return {"reuses": event.reuses, "spent": event.spent}
        case events.AttemptSucceeded():
            return {"output": event.output, "usage": event.usage, "worker": event.worker}
        case events.AttemptFailed():
            names = ("category", "error", "message", "traceback", "retry_after", "usage", "worker")
            return {name: getattr(event, name) for name in names}
        case events.AttemptTimedOut():
            timeout, message = event.timeout, f"timed out after {event.timeout:g} s"
            fields = {"category": "timed_out", "error": "timeout", "message": message, "timeout": timeout}
            return {**fields, "usage": event.usage, "worker": event.worker}
        case events.AttemptInterrupted():
            message = f"interrupted: {as_words(event.reason)}{f' ({event.detail})' if event.detail else ''}"
            fields = {"category": "interrupted", "error": "interrupted", "message": message, "reason": event.reason}
            return {**fields, "detail": event.detail, "worker": event.worker}
        case events.AttemptReturnedLate():
            return {"late_outcome": event.outcome}
        case events.RetryScheduled():
            return {"retry_delay": event.delay, "retry_reason": event.reason}
        case _:
            return {}
