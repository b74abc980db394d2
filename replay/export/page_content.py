"""What a page shows of a run, in columns: every event, every attempt, every trial, and what was decided on the way.

A page can go back to any record by itself, so it is given what each event changed; everything else is told by the state, the
summary and the timeline, and only put into a form here that is small in a file and quick to open. A `Content` takes one record
after the other. What has come since somebody last looked can be told alone, so that a live page is told little.
"""

import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, pairwise
from operator import sub
from typing import Any, Final, NamedTuple, get_args

import orjson

from journal import Blob, Event, Record
from journal.blobs import location
from journal.codec import NAMES
from journal.events import (
    AttemptEnding,
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    Extension,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    Noted,
    PaceChanged,
    RetryScheduled,
    RunStarted,
    ScoringFailed,
    SessionStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialFailed,
    TrialScored,
    TrialWithdrawn,
)
from journal.files import DISK
from journal.lifecycle import STAGES, TRIAL
from replay.loaded_run import LoadedRun
from replay.state import RunState
from replay.tally import can_be_summed
from replay.timeline import ENDINGS, Name, Timeline

LONGEST: Final = 16_384
"""Characters of a value that a page carries; of a longer one it has the beginning, and says how to see the rest."""
AMPLE: Final = 64 << 20
"""Bytes of a journal up to which that is so. Of a larger one less is carried of each value, so that the page can be opened."""
LEAST: Final = 200
_TRACEBACK: Final = 6_000
"""Characters of a traceback; its end says most."""
_MESSAGE: Final = 1_000
_NOTE: Final = 300
_MICRO: Final = 1_000_000
_PLAIN: Final = frozenset({bool, int, float})

_TYPES: Final = (*NAMES.values(), "x-")
_TYPE: Final[dict[type[Event], int]] = {**{kind: at for at, kind in enumerate(NAMES)}, Extension: len(NAMES)}
_STAGE: Final = {stage: number for number, stage in enumerate(STAGES)}
_BACKING_OFF: Final = _STAGE["backing_off"]
_OF_A_TRIAL: Final = frozenset(TRIAL)
_MOVING: Final = frozenset(kind for kind, moves in TRIAL.items() if any(before != after for before, after in moves.items()))
"""What can take a trial to another stage."""
_COUNTED: Final = frozenset({AttemptStarted, TrialCompleted, TrialWithdrawn})
"""What can change how many trials have recovered, or how many attempts were made again."""
_OF_THE_LIMIT: Final = frozenset({RunStarted, SessionStarted, LimitChanged})
"""What can change how many attempts may run at once."""
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)?|0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}")
"""What differs between two messages that say the same: times, addresses, identities."""

Text = str | list[str] | dict[str, Any] | None
"""A value as a page has it: a text as it is, the JSON of anything else in a list of one, or `cut` and how long it is `of`."""


class Cursor(NamedTuple):
    """How much of a content somebody has."""

    seq: int = 0
    steps: tuple[int, ...] = (0,) * len(get_args(Name))
    """Steps of each function: a time that a record named may pass long after the record."""

    def __str__(self) -> str:
        return "-".join(map(str, (self.seq, *self.steps)))

    @classmethod
    def read(cls, text: str) -> "Cursor":
        """Read what was written so; nothing where it was not."""
        numbers = [int(part) for part in text.split("-") if re.fullmatch(r"[0-9]{1,15}", part)]
        return cls(numbers[0], tuple(numbers[1:])) if len(numbers) == len(get_args(Name)) + 1 else cls()


def longest(size: int) -> int:
    """Tell how many characters of each value a page carries of a journal of so many bytes."""
    return LONGEST if size <= AMPLE else max(LEAST, LONGEST * AMPLE // size)


class Content:
    """The columns so far, and who stands where, to tell what the next event changes."""

    def __init__(self, most: int = LONGEST) -> None:  # noqa: PLR0915  # a page has as many columns as there are things to see
        self.told = Timeline()
        self._most = most
        self._t = array("q")
        """Microseconds in the session of each event; those between two sessions have the time of the last."""
        self._type = bytearray()
        self._trial = array("l")
        """The trial's number; -1 where it is about none."""
        self._moves = bytearray()
        """The stage before, times 16, and the stage after."""
        self._flags = bytearray()
        """1 where a trial has now recovered, or no longer has; or where an attempt is made again that was cut off."""
        self._recovered = self._made_again = 0
        self._limit: int | None = None
        self.limits: list[tuple[int, int | None]] = []
        """From which record on how many attempts might run at once."""
        self.marks: list[tuple[Any, ...]] = []
        """What was decided about the limit: seq, session, t, before, after, cause, evidence, key."""
        self.paces: list[tuple[Any, ...]] = []
        """What was decided about the pace of starts: the same, in starts per second, null where they were not paced."""
        self.pauses: list[list[Any]] = []
        """Record, session, t, until when as was said, cause, evidence, key; and the record that ended it, 0 while none has."""
        self.waits: list[list[Any]] = []
        """Trial, the record that began a back-off, the one that ended it (0 while none has), when it is due, and its cause."""
        self._waiting: dict[int, int] = {}

        self._stage = bytearray()
        self.cases: list[str | None] = []
        """None where the trial has the name of its case."""
        self.asked: list[tuple[Text, Text, Text]] = []
        """Input, expected and metadata of each trial."""
        self.outputs: list[Text] = []
        self.causes: list[str] = []
        self.said: list[dict[int, Any]] = []
        """Scorer → value, of each trial."""
        self.reasons: list[dict[int, Any] | None] = []
        """Scorer → the reason, or why there is no value."""
        self.scorers: dict[str, int] = {}
        self._scored: tuple[array[int], array[int], array[int], list[float | None]] = (array("q"), array("l"), array("b"), [])
        """Record, scorer, 1 or (taken back) -1, and the number, None where it is in no mean."""

        self._span_trial = array("l")
        self.details: list[dict[str, Any] | None] = []
        """What more is known of each attempt."""
        self._open: dict[int, int] = {}
        """Trial → its attempt that is going on."""
        self._touched: tuple[array[int], array[int]] = (array("q"), array("l"))
        """The records that changed an attempt, and which."""
        self.errors: dict[tuple[str, str, str, str], int] = {}
        """Category, type, message and traceback of everything that went wrong."""
        self.groups: dict[tuple[str, str, str], tuple[int, str]] = {}
        """The same without what differs from one time to the next → its number, and a message as it was."""
        self._error_seq = array("q")
        """The record that first told of each."""
        self._group_of: list[int] = []
        self._waited: tuple[array[float], array[float]] = (array("d"), array("d"))
        """Seconds before each attempt: ready, and in back-off."""
        self._waited_before: tuple[array[float], array[float]] = (array("d"), array("d"))
        """The same of each trial, over all its attempts so far."""

    def take(self, history: LoadedRun, record: Record) -> None:
        """Take in a record that the history has just taken."""
        event, seq, state, told = record.event, record.seq, history.state, self.told
        told.apply(record)
        kind = event.__class__
        number = move = flag = 0
        if kind in _OF_A_TRIAL:
            number = told.times.numbers[event.trial]  # type: ignore[union-attr]  # each of these has one
            if kind in _MOVING:
                move = self._move(number, _STAGE[state.trials[event.trial].stage], seq)  # type: ignore[union-attr]  # the same
        else:
            number = told.times.numbers.get(event.trial, -1) if kind is Noted else -1  # type: ignore[union-attr]  # the same
        meaning = _MEANINGS.get(kind)
        if meaning is not None:
            meaning(self, event, number, record)
        if kind in _COUNTED:
            flag = state.recovered != self._recovered or state.repeated_calls != self._made_again
            self._recovered, self._made_again = state.recovered, state.repeated_calls
        elif kind in _OF_THE_LIMIT and state.limit != self._limit:
            self._limit = state.limit
            self.limits.append((seq, self._limit))
        sessions = told.sessions
        self._t.append(round(sessions[-1].end * _MICRO) if sessions else 0)
        self._type.append(_TYPE[kind])
        self._trial.append(number)
        self._moves.append(move)
        self._flags.append(flag)

    def _move(self, number: int, after: int, seq: int) -> int:
        """Let a trial go to another stage; give the move in one number, 0 if it stays."""
        if number == len(self._stage):
            self._add()
        before = self._stage[number]
        if before == after:
            return 0
        self._stage[number] = after
        if before == _BACKING_OFF:
            self.waits[self._waiting.pop(number)][2] = seq
        return before << 4 | after

    def _add(self) -> None:
        """Make room for a trial that is new."""
        self._stage.append(0)
        self.cases.append(None)
        self.asked.append((None, None, None))
        self.outputs.append(None)
        self.causes.append("")
        self.said.append({})
        self.reasons.append(None)
        for column in self._waited_before:
            column.append(0.0)

    def _trial_enqueued(self, event: TrialEnqueued, number: int, _: Record) -> None:
        self.cases[number] = None if event.case == event.trial else event.case
        self.asked[number] = self._text(event.input), self._text(event.expected), self._text(event.metadata)
        self.outputs[number] = None
        self.said[number], self.reasons[number], self.causes[number] = {}, None, ""

    def _attempt_started(self, _event: AttemptStarted, number: int, record: Record) -> None:
        self._open[number] = len(self._span_trial)
        self._touch(record.seq, len(self._span_trial))
        self._span_trial.append(number)
        self.details.append(None)
        waited, backed_off = self._waited
        waited_before, backed_off_before = self._waited_before
        _, ready, in_back_off, *_ = self.told.times.spent
        waited.append(ready[number] - waited_before[number])
        backed_off.append(in_back_off[number] - backed_off_before[number])
        waited_before[number], backed_off_before[number] = ready[number], in_back_off[number]

    def _attempt_ended(self, event: AttemptEnding, number: int, record: Record) -> None:
        span = self._open.pop(number, None)
        if span is None:
            span = self.told.times.span[number]
        self._touch(record.seq, span)
        if isinstance(event, AttemptSucceeded):
            self.outputs[number] = self._text(event.output)
        elif isinstance(event, AttemptFailed):
            self._detail(span, error=self._error(record.seq, event.category, event.error, event.message, event.traceback))
            self._detail(span, retry_after=event.retry_after)
        elif isinstance(event, AttemptTimedOut):
            self._detail(span, error=self._error(record.seq, "timed_out", "timeout", f"timed out after {event.limit:g} s", ""))
        else:
            self._detail(span, why=event.why)
            return
        if event.usage is not None:
            self._detail(span, usage=self._short(event.usage))

    def _returned_late(self, event: AttemptReturnedLate, number: int, _: Record) -> None:
        if self.told.times.span[number] >= 0:
            self._detail(self.told.times.span[number], late=event.ending)

    def _retry_scheduled(self, event: RetryScheduled, number: int, record: Record) -> None:
        due = round((self.told.times.now + event.delay) * _MICRO)
        self._waiting[number] = len(self.waits)
        self.waits.append([number, record.seq, 0, due, event.cause])
        span = self.told.times.span[number]
        if span >= 0:
            self._detail(span, retry_in=event.delay, retry_cause=event.cause)
            self._touch(record.seq, span)

    def _trial_scored(self, event: TrialScored, number: int, record: Record) -> None:
        scorer = self.scorers.setdefault(event.scorer, len(self.scorers))
        said = self.said[number]
        if scorer in said:
            self._log_score(record.seq, scorer, -1, said[scorer])
        self._log_score(record.seq, scorer, 1, event.value)
        said[scorer] = event.value
        if event.reason or self.reasons[number]:
            self._reason(number, scorer, _cut(event.reason, self._most) if event.reason else None)

    def _scoring_failed(self, event: ScoringFailed, number: int, _: Record) -> None:
        scorer = self.scorers.setdefault(event.scorer, len(self.scorers))
        self._reason(number, scorer, {"error": f"{event.error}: {event.message}"[:_MESSAGE]})

    def _trial_failed(self, event: TrialFailed, number: int, _: Record) -> None:
        self.causes[number] = event.cause

    def _trial_withdrawn(self, event: TrialWithdrawn, number: int, record: Record) -> None:
        for scorer, value in self.said[number].items():
            self._log_score(record.seq, scorer, -1, value)
        self.said[number], self.reasons[number], self.causes[number] = {}, None, event.why

    def _noted(self, event: Noted, number: int, record: Record) -> None:
        span = self.told.times.span[number] if number >= 0 else -1
        if span >= 0 and self.told.spans.attempt[span] == event.attempt:
            details = self.details[span]
            if details is None:
                details = self.details[span] = {}
            details.setdefault("notes", {})[event.name] = self._short(event.value)
            self._touch(record.seq, span)

    def _rule_changed(self, event: LimitChanged | PaceChanged, _: int, record: Record) -> None:
        what = (event.before, event.after, event.cause, event.evidence[:_MESSAGE], event.key)
        changes = self.marks if isinstance(event, LimitChanged) else self.paces
        changes.append((record.seq, len(self.told.sessions), self._now, *what))

    def _intake_paused(self, event: IntakePaused, _: int, record: Record) -> None:
        self._end_pauses(record.seq, event.key)
        until = round(max(event.until, self.told.times.now) * _MICRO)
        what = (until, event.cause, event.evidence[:_MESSAGE], event.key)
        self.pauses.append([record.seq, len(self.told.sessions), self._now, *what, 0])

    def _intake_resumed(self, event: IntakeResumed, _: int, record: Record) -> None:
        self._end_pauses(record.seq, event.key)

    def _session_started(self, _: SessionStarted, __: int, record: Record) -> None:
        self._end_pauses(record.seq, None)
        for span in self._open.values():  # Their process is gone.
            self._touch(record.seq, span)
        for place in self._waiting.values():  # Seconds count anew; what is left of a wait is waited for.
            number = self.waits[place][0]
            self.waits[place][3] = round(max(0.0, self.told.times.due[number]) * _MICRO)

    def _end_pauses(self, seq: int, key: str | None) -> None:
        for pause in reversed(self.pauses):
            if pause[1] != len(self.told.sessions) and key is not None:
                return
            if not pause[7] and (key is None or pause[6] == key):
                pause[7] = seq
                if key is not None:
                    return

    @property
    def _now(self) -> int:
        return round(self.told.times.now * _MICRO)

    def _touch(self, seq: int, span: int) -> None:
        self._touched[0].append(seq)
        self._touched[1].append(span)

    def _detail(self, span: int, **what: Any) -> None:
        known = {name: value for name, value in what.items() if value is not None}
        if known:
            self.details[span] = {**(self.details[span] or {}), **known}

    def _reason(self, number: int, scorer: int, reason: Any) -> None:
        known = self.reasons[number] or {}
        known.pop(scorer, None)
        if reason is not None:
            known[scorer] = reason
        self.reasons[number] = known or None

    def _error(self, seq: int, category: str, error: str, message: str, traceback: str) -> int:
        message = message[:_MESSAGE]
        found = category, error, message, traceback[-_TRACEBACK:]
        number = self.errors.get(found)
        if number is None:
            number = self.errors[found] = len(self.errors)
            self._error_seq.append(seq)
            alike = category, error, _NUMBERS.sub("#", message)
            self._group_of.append(self.groups.setdefault(alike, (len(self.groups), message))[0])
        return number

    def _log_score(self, seq: int, scorer: int, times: int, value: Any) -> None:
        seqs, scorers, all_times, values = self._scored
        seqs.append(seq)
        scorers.append(scorer)
        all_times.append(times)
        values.append(float(value) if can_be_summed(value) else None)

    def _text(self, value: Any) -> Text:
        if value is None:
            return None
        if isinstance(value, str):
            return _cut(value, self._most)
        if isinstance(value, Blob):
            return _beginning(value, self._most)
        text = orjson.dumps(value).decode()
        return [text] if len(text) <= self._most else {"cut": text[: self._most], "of": len(text)}

    def _short(self, value: Any) -> Any:
        """Keep a small value as it is, and of a large one the beginning."""
        if value is None or value.__class__ in _PLAIN:
            return value if not isinstance(value, int) or abs(value) < 1 << 53 else str(value)
        text = self._text(value)
        text = text["cut"] if isinstance(text, dict) else text[0] if isinstance(text, list) else text
        return _head(text or "", _NOTE)

    @property
    def cursor(self) -> Cursor:
        """How much there is."""
        return Cursor(len(self._t), tuple(len(self.told.columns(name)[0]) for name in get_args(Name)))

    def since(self, known: Cursor, state: RunState) -> dict[str, Any]:
        """Tell everything, or what somebody does not know yet who knows so much."""
        if known.seq > len(self._t):
            known = Cursor()  # Of another run, or made up.
        first = known.seq
        everything = not first
        trials: Sequence[int] = range(len(self._stage))
        spans: Sequence[int] = range(len(self._span_trial))
        if not everything:
            trials = sorted({number for number in self._trial[first:] if number >= 0})
            spans = sorted(set(self._touched[1][bisect_right(self._touched[0], first) :]))
        scored = bisect_right(self._scored[0], first)
        errors = zip(self.errors, self._group_of, strict=True)
        return {
            "from": first,
            "seq": len(self._t),
            "types": _TYPES,
            "stages": STAGES,
            "endings": ENDINGS,
            "scorers": list(self.scorers),
            "events": {
                "t": _deltas(self._t[first:]),
                "type": list(self._type[first:]),
                "trial": _deltas(self._trial[first:]),
                "move": list(self._moves[first:]),
                "flag": list(self._flags[first:]),
            },
            "sessions": [
                {"n": each.n, "seq": each.seq, "at": each.at, "start": each.start, "end": each.end, "offset": each.offset}
                for each in self.told.sessions
            ],
            "limits": self.limits,
            "marks": self.marks,
            "paces": self.paces,
            "pauses": self.pauses,
            "waits": [wait for wait in self.waits if everything or wait[1] > first or not 0 < wait[2] <= first],
            "scored": {
                "seq": _deltas(self._scored[0][scored:]),
                "scorer": list(self._scored[1][scored:]),
                "times": list(self._scored[2][scored:]),
                "value": self._scored[3][scored:],
            },
            "errors": [[*error, group] for error, group in islice(errors, bisect_right(self._error_seq, first), None)],
            "groups": [[category, error, example] for (category, error, _), (_, example) in self.groups.items()],
            "spans": self._tell_spans(spans),
            "trials": self._tell_trials(trials, state),
            "steps": {name: self._tell_steps(name, at) for name, at in zip(get_args(Name), known.steps, strict=True)},
        }

    def _tell_spans(self, which: Sequence[int]) -> dict[str, Any]:
        spans = self.told.spans
        starts, ends = _micro(spans.start, which), _micro(spans.end, which)
        return {
            "at": _deltas(which),
            "trial": _those(self._span_trial, which),
            "attempt": _those(spans.attempt, which),
            "slot": _those(spans.slot, which),
            "session": _those(spans.session, which),
            "start": _deltas(starts),
            "took": list(map(sub, ends, starts)),
            "ending": _those(spans.ending, which),
            "seq": _deltas(_those(spans.seq, which)),
            "end_seq": _deltas(_those(spans.end_seq, which)),
            "waited": _micro(self._waited[0], which),
            "backed_off": _micro(self._waited[1], which),
            "details": [self.details[at] or 0 for at in which],
        }

    def _tell_trials(self, which: Sequence[int], state: RunState) -> dict[str, Any]:
        names, times = self.told.times.names, self.told.times
        spent = [times[names[at]] for at in which]
        states = [state.trials[names[at]] for at in which]
        return {
            "at": _deltas(which),
            "name": [names[at] for at in which],
            "case": [self.cases[at] or 0 for at in which],
            "stage": [self._stage[at] for at in which],
            "recovered": [int(each.recovered) for each in states],
            "elapsed": [None if each.answer is None else round(each.elapsed * _MICRO) for each in states],
            "waited": [round(each.waited * _MICRO) for each in spent],
            "backed_off": [round(each.backed_off * _MICRO) for each in spent],
            "served": [round(each.served * _MICRO) for each in spent],
            "scored": [round(each.scored * _MICRO) for each in spent],
            "cause": [self.causes[at] or 0 for at in which],
            "input": [self.asked[at][0] for at in which],
            "expected": [self.asked[at][1] for at in which],
            "metadata": [self.asked[at][2] for at in which],
            "output": [self.outputs[at] for at in which],
            "scores": [[_json(self.said[at].get(scorer)) for at in which] for scorer in self.scorers.values()],
            "reasons": [self.reasons[at] or 0 for at in which],
        }

    def _tell_steps(self, name: Name, first: int) -> dict[str, Any]:
        """Tell a step function in the seconds of each session; of several steps at one moment the last is what holds."""
        t, value, begins = self.told.columns(name)
        told: tuple[list[int], list[int], list[int]] = ([], [], [])
        for session, (begin, end) in enumerate(pairwise((*begins, len(t))), start=1):
            for at in range(max(begin, first), end):
                moment = round(t[at] * _MICRO)
                if told[0] and told[0][-1] == moment and told[2][-1] == session:
                    told[1][-1] = value[at]
                else:
                    told[0].append(moment)
                    told[1].append(value[at])
                    told[2].append(session)
        return {"t": _deltas(told[0]), "value": _deltas(told[1]), "session": _deltas(told[2])}


def _those(column: Sequence[int], which: Iterable[int]) -> list[int]:
    return list(map(column.__getitem__, which))


def _micro(column: Sequence[float], which: Iterable[int]) -> list[int]:
    """Tell seconds in microseconds."""
    return [round(column[at] * _MICRO) for at in which]


def _deltas(numbers: Sequence[int]) -> list[int]:
    """Tell how much larger each number is than the one before: that is short, and much of it alike."""
    return list(map(sub, numbers, chain((0,), numbers)))


def _json(value: Any) -> Any:
    """Keep a score as it is; a number that JSON does not have is told by its name."""
    return value if not isinstance(value, float) or value - value == 0 else str(value)


def _head(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _cut(text: str, most: int) -> Text:
    return text if len(text) <= most else {"cut": text[:most], "of": len(text)}


def _beginning(blob: Blob, most: int) -> Text:
    """Read the beginning of a large value; whether it is what was written, `verify` says."""
    try:
        with DISK.read(str(blob.path / location(blob.sha256))) as stream:
            text = stream.read(4 * most).decode(errors="ignore")
    except OSError:
        return {"cut": "", "of": blob.bytes}
    if text.startswith('"'):
        text = text[1 : most + 1]
        for broken in range(12):  # The cut may have gone through an escape, or through a pair of them.
            try:
                text = json.loads(f'"{text[: len(text) - broken]}"')
                break
            except ValueError:
                continue
    return {"cut": text[:most], "of": blob.bytes}


_MEANINGS: Final[dict[type[Event], Callable[[Content, Any, int, Record], None]]] = {
    TrialEnqueued: Content._trial_enqueued,
    AttemptStarted: Content._attempt_started,
    AttemptSucceeded: Content._attempt_ended,
    AttemptFailed: Content._attempt_ended,
    AttemptTimedOut: Content._attempt_ended,
    AttemptInterrupted: Content._attempt_ended,
    AttemptReturnedLate: Content._returned_late,
    RetryScheduled: Content._retry_scheduled,
    TrialScored: Content._trial_scored,
    ScoringFailed: Content._scoring_failed,
    TrialFailed: Content._trial_failed,
    TrialWithdrawn: Content._trial_withdrawn,
    Noted: Content._noted,
    LimitChanged: Content._rule_changed,
    PaceChanged: Content._rule_changed,
    IntakePaused: Content._intake_paused,
    IntakeResumed: Content._intake_resumed,
    SessionStarted: Content._session_started,
}
