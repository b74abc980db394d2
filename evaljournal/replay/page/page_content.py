"""The data of a page that are not in the index of the run: its events with the changes that they cause, and its steps.

A page shows the state after any record without the journal, so the data of each event include its changes. `page_columns`
encodes them together with the tables of the index.

**Steps**, and the calls of judges: a page has at most `MAX_STEPS` steps, and at most `MAX_CHARS` characters of their inputs and
outputs, and of the prompts and replies of judges; the fewer remain, the fewer a value gets. A step that continues a
conversation has only the new messages. A reused step has no content of its own; it names the record of the completed step.
"""

from collections.abc import Iterator
from typing import Any, Final

import orjson

from evaljournal.journal import Blob, Event, Record, events
from evaljournal.journal.errors import BlobDamaged
from evaljournal.journal.format import blobs
from evaljournal.journal.format.codec import TYPE_NAMES
from evaljournal.journal.format.lifecycle import STAGES, TRIAL_RULES
from evaljournal.replay.index import Index
from evaljournal.replay.page.page_text import MICRO, Text, page_text, visible_text
from evaljournal.replay.provider.messages import Message, messages_of, reply_of
from evaljournal.replay.provider.reports import fields_of
from evaljournal.replay.runs.loaded_run import LoadedRun
from evaljournal.replay.state.usage import JUDGE_NOTE, is_amount
from evaljournal.replay.text import as_text, printable, without_variable_parts

MAX_STEPS: Final = 200_000
MAX_CHARS: Final = 32 << 20
KINDS: Final = ("model", "tool", "other")
_SHARE: Final = 128
"""One value gets at most 1/128 of the remaining characters."""
_MIN_CHARS: Final = 40
_MAX_MESSAGES: Final = 50
"""Maximum messages of a step, and tool calls of a message."""
_NAME_CHARS: Final = 200
_ERROR_CHARS: Final = 1_000
_MAX_UNITS: Final = 8
"""Maximum amounts of usage per step."""

VALUE_LENGTH: Final = 16_384
"""Maximum characters of a value in a blob, of a step or of a judge on a page; a longer one is truncated, and the page has the
command that shows it in full."""
FULL_SIZE: Final = 64 << 20
"""Bytes of a journal above which values are truncated to less than `VALUE_LENGTH`, so that a browser can open the page. For
larger journals, this is also the maximum number of characters of all inputs, and of all outputs."""
MIN_VALUE_LENGTH: Final = 40
TYPES: Final = (*TYPE_NAMES.values(), "x-")
"""The names of event types, in the order of their numbers on a page."""
MESSAGE_CHARS: Final = 1_000

_TYPE_NUMBERS: Final[dict[type[Event], int]] = {
    **{kind: number for number, kind in enumerate(TYPE_NAMES)},
    events.Extension: len(TYPE_NAMES),
}
STAGE_NUMBERS: Final = {stage: number for number, stage in enumerate(STAGES)}
_TRIAL_EVENTS: Final = frozenset(TRIAL_RULES)
_COUNTED_EVENTS: Final = frozenset({events.AttemptStarted, events.TrialCompleted, events.TrialWithdrawn})
"""Events that can change the number of recovered trials or of repeated calls."""
_LIMIT_EVENTS: Final = frozenset({events.RunStarted, events.SessionStarted, events.LimitChanged})
"""Events that can change the concurrency limit."""


class PageSteps:
    """The steps that have ended, one entry for each."""

    def __init__(self, index: Index) -> None:
        self._rows = index.add_table("page_steps", ("seq", "name_number", "content"))
        """Record of a step, number of its name, and its content as JSON; everything else is in the table `steps`."""
        self._judge_calls = index.add_table("page_judge_calls", ("seq", "span", "content"))
        self.count = self.judge_calls = 0
        self.names: dict[str, int] = {}
        self.omitted = 0
        self._remaining_chars = MAX_CHARS

    def add(self, event: events.StepEvent, seq: int, length: int) -> None:
        """Add a step that the record `seq` ends; each of its values gets at most `length` characters."""
        if self.count >= MAX_STEPS:
            self.omitted += 1
            return
        number, content = 0, None
        if not isinstance(event, events.StepReused):
            number = self.names.setdefault(printable(event.name, _NAME_CHARS), len(self.names))
            content = orjson.dumps(self._content(event, length))
        self._rows.append((seq, number, content))
        self.count += 1

    def _content(self, event: events.StepCompleted | events.StepFailed, length: int) -> dict[str, Any] | None:
        content: dict[str, Any] = {}
        if isinstance(event, events.StepReplayed):
            content["replayed"] = 1
        if event.continues:
            content["continues"] = event.continues
        if isinstance(event, events.StepFailed):
            content["error"] = f"{event.error}: {event.message}"[:_ERROR_CHARS]
        elif isinstance(event.usage, dict):
            amounts = {printable(name, 40): value for name, value in event.usage.items() if is_amount(value)}
            content["usage"] = dict(list(amounts.items())[:_MAX_UNITS])

        length = min(length, self._remaining_chars // _SHARE)
        if length < _MIN_CHARS:
            content["shortened"] = 1
            return content

        is_model = event.kind == "model"
        request = fields_of(event.input) if is_model else {}
        if messages := messages_of(request) if request else []:
            has_prompt = event.continues and (request.get("system") or request.get("instructions"))
            content["messages"] = self._messages(messages[1:] if has_prompt else messages, length)  # The prompt is the same.
        else:
            content["input"] = self._text(event.input, length)

        if isinstance(event, events.StepCompleted):
            reply = reply_of(event.output) if is_model else None
            if reply is None:
                content["output"] = self._text(event.output, length)
            else:
                content["reply"] = self._message(reply, length)
        return content

    def add_judge_call(self, value: Any, span: int, seq: int, length: int) -> None:
        if isinstance(value, Blob):
            try:
                value = orjson.loads(blobs.content(value))
            except (BlobDamaged, OSError, ValueError):
                value = None

        call = value if isinstance(value, dict) else {}
        length = min(length, self._remaining_chars // _SHARE)
        content: dict[str, Any] = {name: as_text(call.get(name, ""))[:_NAME_CHARS] for name in ("scorer", "model")}
        if call and length >= _MIN_CHARS:
            texts = {name: call[name] for name in ("prompt", "reminder", "reply") if name in call}
            content |= {name: self._text(text, length) for name, text in texts.items()}
        self._judge_calls.append((seq, span, orjson.dumps(content)))
        self.judge_calls += 1

    def _messages(self, messages: list[Message], length: int) -> list[Any]:
        """Return the last messages."""
        omitted_count = max(0, len(messages) - _MAX_MESSAGES)
        omission = [["", f"({omitted_count:,} earlier messages)"]] if omitted_count else []
        return omission + [self._message(message, length) for message in messages[omitted_count:]]

    def _message(self, message: Message, length: int) -> list[Any]:
        """Return the role and the text of a message, its tool calls (name, arguments and id), and the id that it answers."""
        calls = [
            (call.name[:_NAME_CHARS], self._text(call.arguments, length), call.id[:_NAME_CHARS])
            for call in message.tool_calls[:_MAX_MESSAGES]
        ]
        parts = [message.role[:_MIN_CHARS], self._text(message.text, length), calls, message.call_id[:_NAME_CHARS]]
        return parts if parts[3] else parts[:3] if calls else parts[:2]

    def _text(self, value: Any, length: int) -> Text:
        """Return a value after subtracting its length from the remaining characters; it gets no more than a share of them."""
        text = page_text(value, max(_MIN_CHARS, min(length, self._remaining_chars // _SHARE)))
        self._remaining_chars -= len(visible_text(text))
        return text


def value_length(size: int, trials: int) -> int:
    """Return the maximum characters of a value on the page of a journal with `size` bytes and `trials` trials."""
    if size <= FULL_SIZE:
        return VALUE_LENGTH
    return max(MIN_VALUE_LENGTH, min(VALUE_LENGTH * FULL_SIZE // size, FULL_SIZE // max(1, trials)))


class Content:
    """Everything that a page shows of a run so far."""

    def __init__(self, size: int = 0) -> None:
        """Prepare for a journal of `size` bytes."""
        self.index = Index(has_step_values=False)
        self._size = size
        self._events = self.index.add_log("events", ("t", "type", "trial", "stage_change", "count_change"))
        """Time in its session in microseconds (for an event between two sessions, the last time before it), type, number of the
        trial (-1 for an event without one), 16 × the stage before + the stage after (0 if the stage does not change), and the
        change of the number of recovered trials or of repeated calls."""
        self.limits: list[tuple[int, int | None]] = []
        """Record that changed the concurrency limit, and the new limit."""
        self.scorers: dict[str, int] = {}
        self.steps = PageSteps(self.index)
        self.groups: dict[tuple[str, str, str], tuple[int, str]] = {}
        """Category, type and message without numbers of an error → number of the group, and the first message."""
        self._planned_trials = self._recovered_trials = self._repeated_calls = 0
        self._limit: int | None = None

    @property
    def length(self) -> int:
        """Maximum characters of a value."""
        return value_length(self._size, max(self._planned_trials, self.index.trial_count))

    @property
    def full_length(self) -> int:
        """Maximum characters of a value that is in a record itself: all of it, if the journal is small."""
        return min(blobs.LIMIT, VALUE_LENGTH * FULL_SIZE // self._size) if 0 < self._size <= FULL_SIZE else self.length

    def apply(self, run: LoadedRun, record: Record) -> None:
        """Apply the next record, to the run and to the content."""
        event, state, index = record.event, run.state, self.index
        kind, stage_change, count_change = event.__class__, 0, 0
        trial = state.trials.get(event.trial) if kind in _TRIAL_EVENTS else None  # type: ignore[union-attr]  # it has a trial
        old_stage = 0 if trial is None else STAGE_NUMBERS[trial.stage]

        index.path = run.path
        run.apply(record)
        index.apply(record)
        row = index.last_trial
        if row is not None and kind in _TRIAL_EVENTS:
            stage = STAGE_NUMBERS[state.trials[row.name].stage]
            stage_change = 0 if stage == old_stage else old_stage << 4 | stage

        if isinstance(event, events.TrialScored | events.ScoringFailed):
            self.scorers.setdefault(event.scorer, len(self.scorers))
        elif isinstance(event, events.StepEvent) and row is not None and row.last_attempt is not None:
            self.steps.add(event, record.seq, self.length)
        elif isinstance(event, events.Noted) and event.name == JUDGE_NOTE and row is not None and row.last_attempt is not None:
            self.steps.add_judge_call(event.value, row.last_attempt.id, record.seq, self.length)
        elif kind in _COUNTED_EVENTS:
            count_change = (
                abs(state.totals.recovered - self._recovered_trials)
                or state.trials.attempts.repeated_calls - self._repeated_calls
            )
            self._recovered_trials, self._repeated_calls = state.totals.recovered, state.trials.attempts.repeated_calls
        elif kind in _LIMIT_EVENTS:
            self._planned_trials = state.sessions.planned
            if state.policy.limit != self._limit:
                self._limit = state.policy.limit
                self.limits.append((record.seq, self._limit))

        number = -1 if row is None else row.id
        self._events.append((round(index.now * MICRO), _TYPE_NUMBERS[kind], number, stage_change, count_change))

    def errors(self, after_seq: int) -> Iterator[tuple[str, str, str, str, int]]:
        """Yield category, type, message, traceback and group of the errors that occurred first after a record."""
        for seq, category, error, message, traceback in self.index.rows(_ERRORS, MESSAGE_CHARS, -_TRACEBACK_CHARS):
            group = category, error, without_variable_parts(message)
            number, _ = self.groups.setdefault(group, (len(self.groups), message))
            if seq > after_seq:
                yield category, error, message, traceback, number


_TRACEBACK_CHARS: Final = 6_000
"""Maximum length of a traceback; its end is kept."""
_ERRORS: Final = "SELECT seq, category, error, substr(message, 1, ?), substr(traceback, ?) FROM errors ORDER BY id"
