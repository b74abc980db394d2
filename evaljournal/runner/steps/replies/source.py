"""A source of recorded replies: the records of a run, or of a packed file, that answer the calls of its trials.

One pass notes where the records of each trial are; a trial's are read when it is run. The records may be foreign: those of a
run were verified by their reader, those of a packed file are decoded like those of a run, and nothing in them is executed.

**Which version of a judge gave a reply** is in the end of its call, the score or the failure that follows: the judge of a
re-scoring is not in the definition of the run. A reply whose call has no end in its session, because the process died, is not
used.
"""

from array import array
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import attrs

from evaljournal.journal import Blob, Record, events, read
from evaljournal.journal.disk.lock import is_held
from evaljournal.journal.disk.segments import is_run
from evaljournal.journal.ownership import own_hashes
from evaljournal.journal.readers.reader import RecordReader
from evaljournal.replay.runs.trajectory import StepDetails, Trajectory, recorded_step
from evaljournal.replay.state.answers import ANSWER
from evaljournal.replay.state.definition import used_task, variant_parameters
from evaljournal.replay.state.totals import REPLAYED
from evaljournal.replay.state.trial import pack_location, unpack_location
from evaljournal.replay.state.usage import JUDGE_NOTE, JUDGE_USAGE
from evaljournal.runner.errors import UsageError, command
from evaljournal.runner.steps.attempt_steps import Key
from evaljournal.runner.steps.replies.recorded import (
    CALL,
    RecordedReply,
    TrialKey,
    TrialReplies,
    fingerprint_of,
    judge_name,
)

QUESTION: Final = "question"
"""In a packed file, the fingerprint of what a judge was asked, in place of its prompt."""
_NOTES: Final = frozenset({ANSWER, JUDGE_NOTE, JUDGE_USAGE, REPLAYED})
HOW_TO_RECORD: Final = (
    "calls of chat models, endpoints and judges are recorded; `-s durable=http` records the model calls of a function, "
    "--gateway those of a command"
)
_NAME_CHARS: Final = 80
_DESTINATION: Final = ("base_url", "url", "method", "output_path", "error_path", "done_path")
"""Where a call goes, and which part of the reply is the output."""


def asked_of(request: Any, definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the call of a chat model or an endpoint asks: its request, and the parts of its definition that matter."""
    destination = {name: definition[name] for name in _DESTINATION if definition.get(name) is not None}
    return {**destination, "request": request}


def asked_of_judge(version: str, texts: Iterable[str]) -> list[str]:
    """Return what a judge is asked: the version of the judge, its prompt and perhaps a reminder."""
    return [version, *texts]


@attrs.define
class TrialRecords:
    key: TrialKey
    trial: str
    case: str
    locations: "array[int]" = attrs.field(factory=lambda: array("q"))
    """Packed locations, in the order of the records."""
    has_output: bool = False


@attrs.define(eq=False)
class ReplySource:
    """A run, or a packed file, with recorded replies. Its methods may be called in any thread."""

    name: str
    """Its path, as the user has passed it."""
    records_at: Callable[[Iterable[int]], list[Record]]
    """Reads the records at packed locations."""
    sha256: str = ""
    """SHA-256 of a packed file; empty: it is a run."""
    run: str = ""
    head: str = ""
    """Hash of the last record of the run."""
    definition: Any = None
    """What the run has recorded about its task."""
    has_replies: bool = attrs.field(init=False, default=False)
    _starts: list[tuple[int, str]] = attrs.field(init=False, factory=list[tuple[int, str]])
    """The records that start the run and its sessions, with their hashes."""
    _trials: dict[str, TrialRecords] = attrs.field(init=False, factory=dict[str, TrialRecords])
    _pool: dict[Key, list[TrialRecords]] = attrs.field(init=False, factory=dict[Key, list[TrialRecords]])
    """Key → trials with a reply that has it; empty unless replies of any trial are used."""
    _entries: dict[TrialKey, list[TrialRecords]] = attrs.field(init=False, factory=dict[TrialKey, list[TrialRecords]])

    _repeats: int = attrs.field(init=False, default=1)

    def add(self, record: Record) -> None:
        """Add the next record of the first pass."""
        self.head = record.h
        match event := record.event:
            case events.SegmentOpened():
                self.run = event.run
            case events.RunStarted() | events.SessionStarted():
                self._starts.append((record.seq, record.h))
                self.definition = event.definition or self.definition
            case events.TrialEnqueued():
                key = event.fingerprint, event.variant, event.repeat
                self._trials[event.trial] = TrialRecords(key, event.trial, event.case)
            case events.TrialWithdrawn():
                self._trials.pop(event.trial, None)
            case events.AttemptStarted(request=None):
                pass
            case events.Noted() if event.name not in _NOTES:
                pass
            case (
                events.AttemptStarted()
                | events.AttemptSucceeded()
                | events.Noted()
                | events.StepCompleted()
                | events.StepFailed()
                | events.StepReused()
                | events.TrialScored()
                | events.ScoringFailed()
            ) if (entry := self._trials.get(event.trial)) is not None:
                self.has_replies |= isinstance(event, events.AttemptStarted | events.Noted | events.StepCompleted)
                entry.has_output |= isinstance(event, events.AttemptSucceeded)
                entry.locations.append(pack_location(record))
            case _:
                pass

    def end_pass(self, *, pools: bool) -> None:
        """End the first pass; with `pools`, the replies of all trials can be used by any one."""
        for entry in self._trials.values():
            self._repeats = max(self._repeats, entry.key[2])
            self._entries.setdefault(entry.key, []).append(entry)
            for key in {reply.key for reply in self._read(entry).usable_elsewhere} if pools else ():
                self._pool.setdefault(key, []).append(entry)

    @property
    def is_own(self) -> bool:
        """Whether this user has written it on this machine: its sessions, and all records up to the end of the last one."""
        return not self.sha256 and own_hashes(self.run).issuperset([*(h for _, h in self._starts), self.head])

    @property
    def identity(self) -> dict[str, str]:
        """What a later session must find again: the run, its last record, and the digest of a packed file."""
        return {"run": self.run, "head": self.head, **({"sha256": self.sha256} if self.sha256 else {})}

    def find(self, key: TrialKey, case: str) -> TrialReplies | None:
        """Return what is recorded for a trial; None: nothing. Of several trials with the key, that of the case of this name."""
        entries = self._entries.get(key, ())
        named_entries = [entry for entry in entries if entry.case == case] if len(entries) > 1 else entries
        if len(entries) > 1 and not named_entries:
            names = " and ".join(repr(entry.case[:_NAME_CHARS]) for entry in entries[:2])
            raise UsageError(f"{self.name} has several cases with this content, {names}; give the case one of their names")
        return self._read(named_entries[0]) if named_entries else None

    def has_output(self, key: TrialKey) -> bool:
        """Return whether a trial, or the first repeat of one that has fewer, has a recorded output."""
        fingerprint, variant, repeat = key
        recorded_key = key if repeat <= self._repeats else (fingerprint, variant, 1)
        return any(entry.has_output for entry in self._entries.get(recorded_key, ()))

    def pooled(self, key: Key, used: AbstractSet[str]) -> RecordedReply | None:
        """Return the first reply of any trial that has a key and is not used yet."""
        replies = (reply for entry in self._pool.get(key, ()) for reply in self._read(entry).usable_elsewhere)
        return next((reply for reply in replies if reply.key == key and reply.head not in used), None)

    def trials(self) -> Iterator[tuple[TrialRecords, list[Record], TrialReplies]]:
        for entry in self._trials.values():
            records = self.records_at(entry.locations)
            yield entry, records, self._replies_in(entry, records)

    def _read(self, entry: TrialRecords) -> TrialReplies:
        return self._replies_in(entry, self.records_at(entry.locations))

    def _replies_in(self, entry: TrialRecords, records: Iterable[Record]) -> TrialReplies:
        trial = _TrialReader(self, entry)
        for record in records:
            trial.add(record)
        try:
            return trial.result()
        except RecursionError as exc:
            raise UsageError(f"{self.name}: the steps of {entry.trial[:_NAME_CHARS]!r} are nested too deeply") from exc

    def asked(self, request: Any, variant: str) -> dict[str, Any]:
        parameters = variant_parameters(self.definition, variant)
        changes = {name: value for name, value in parameters.items() if value is not None}
        return asked_of(request, {**used_task(self.definition, variant), **changes})

    def session_at(self, seq: int) -> int:
        return bisect(self._starts, seq, key=itemgetter(0))


def open_run(name: str, *, pools: bool = False) -> ReplySource:
    """Read a run once, and note where its replies are; raise a `UsageError` if it has none, or is being written.

    With `pools`, the replies of all trials can be used by any one.
    """
    path = Path(name)
    if not is_run(path):
        raise UsageError(f"{name} is not a run and not a packed file of replies")
    if is_held(path):
        hint = f"wait for its end, or interrupt it; {command('status', path)} shows it"
        raise UsageError(f"{name} is a run in progress", hint=hint)

    source = ReplySource(name, partial(_records_at, path))
    for record in read(path, load_blobs=False):
        source.add(record)

    if not source.has_replies:
        raise UsageError(f"{name} has recorded no replies", hint=HOW_TO_RECORD)
    if isinstance(source.definition, Blob):
        source.definition = source.definition.load()
    source.end_pass(pools=pools)
    return source


def _records_at(path: Path, locations: Iterable[int]) -> list[Record]:
    with RecordReader(path) as reader:
        return [reader.find(*unpack_location(location)) for location in locations]


class _TrialReader:
    def __init__(self, source: ReplySource, entry: TrialRecords) -> None:
        self._source, self._entry = source, entry
        self._trajectory = Trajectory()
        self._executed: dict[int, tuple[events.StepCompleted | events.StepFailed, Record]] = {}
        self._attempts: dict[int, list[tuple[RecordedReply, int]]] = {}
        """Attempt → its steps, each with the number of its caller."""
        self._request: Any = None
        self._notes: dict[str, dict[str, Any]] = {}
        """Name → last note of that name."""
        self._answer: RecordedReply | None = None
        self._verdicts: list[RecordedReply] = []
        self._open_verdicts: list[tuple[str, list[str], RecordedReply]] = []
        """Scorer, prompt and reminder, and reply of each call of a judge whose end has not been read."""

    def add(self, record: Record) -> None:
        match event := record.event:
            case events.AttemptStarted():
                self._request = event.request
            case events.AttemptSucceeded():
                if self._request is not None:
                    asked = None if self._source.sha256 else self._source.asked(self._request, self._entry.key[1])
                    fingerprint = self._request if asked is None else fingerprint_of(asked)
                    self._answer = self._reply_to_call((CALL, str(fingerprint)), asked, event.output, ANSWER, record)
            case events.Noted(value=dict(value)):
                self._notes[event.name] = value
                if event.name == JUDGE_NOTE:
                    self._add_verdict(value, record)
            case events.TrialScored(scorer=name, version=version) | events.ScoringFailed(scorer=name, version=version):
                self._end_verdicts(name.partition(".")[0], version, record)
            case events.StepCompleted() | events.StepFailed() | events.StepReused():
                self._add_step(event, record)
            case _:
                pass

    def result(self) -> TrialReplies:
        """Return the replies; without an output, also those of earlier attempts."""
        steps, used_seqs = list[RecordedReply](), set[int]()
        for number in sorted(self._attempts, reverse=True)[: 1 if self._entry.has_output else None]:
            replies = [pair for pair in self._attempts[number] if pair[0].seq not in used_seqs]
            used_seqs.update(reply.seq for reply, _ in replies)
            steps += _tree(replies)
        answer = [] if self._answer is None else [attrs.evolve(self._answer, inner=tuple(steps))]
        calls = *answer, *self._verdicts
        return TrialReplies(steps=tuple(steps), calls=calls)

    def _reply_to_call(self, key: Key, asked: Any, output: Any, note: str, record: Record) -> RecordedReply:
        """Return the reply to a call that is no step; a note before it has its usage."""
        facts = dict(self._notes.pop(note, {}))
        return RecordedReply(
            seq=record.seq,
            name=key[0],
            fingerprint=key[1],
            input=asked,
            output=output,
            usage=facts.pop("usage", None) or self._notes.pop(REPLAYED, {}).get("unpaid"),
            facts=facts,
            run=self._source.run,
            head=record.h,
        )

    def _add_verdict(self, value: Mapping[str, Any], record: Record) -> None:
        """Add the reply of a judge: in a packed file with what it was asked, otherwise at the end of its call."""
        scorer = str(value.get("scorer", ""))
        key = judge_name(scorer), str(value.get(QUESTION, ""))
        reply = self._reply_to_call(key, None, str(value.get("reply", "")), JUDGE_USAGE, record)
        if QUESTION in value:
            self._verdicts.append(reply)
        else:
            texts = [str(value[name]) for name in ("prompt", "reminder") if name in value]
            self._open_verdicts.append((scorer, texts, reply))

    def _end_verdicts(self, scorer: str, version: str, end: Record) -> None:
        """Add the replies of a judge to the calls that a record of the same session ends."""
        session = self._source.session_at(end.seq)
        for name, texts, reply in self._open_verdicts:
            if name == scorer and self._source.session_at(reply.seq) == session:
                asked = asked_of_judge(version, texts)
                self._verdicts.append(attrs.evolve(reply, fingerprint=fingerprint_of(asked), input=asked))
        self._open_verdicts = [verdict for verdict in self._open_verdicts if verdict[0] != scorer]

    def _add_step(self, event: events.StepCompleted | events.StepFailed | events.StepReused, record: Record) -> None:
        number, details, completed_seq = recorded_step(record)
        if not isinstance(event, events.StepReused):
            self._executed[record.seq] = event, record
        step = self._trajectory.add(number, details, completed_seq)
        executed = self._executed.get(completed_seq or record.seq)
        if step is not None and executed is not None and executed[0].phase == "task":
            self._attempts.setdefault(number, []).append((self._reply(*executed, step), step.parent))

    def _reply(self, event: events.StepCompleted | events.StepFailed, record: Record, step: StepDetails) -> RecordedReply:
        """Return the reply of a step that an event has recorded, and that has this place in the attempt."""
        return RecordedReply(
            seq=record.seq,
            output=step.output,
            usage=event.unpaid if isinstance(event, events.StepReplayed) else step.usage,
            step=step.number,
            name=event.name,
            kind=event.kind,
            fingerprint=event.fingerprint,
            run=self._source.run,
            head=record.h,
            input=step.input,
            reusable=isinstance(event, events.StepReplayed) or bool(step.error) or step.reusable,
            error=step.error,
            message=step.message,
        )


def _tree(replies: Iterable[tuple[RecordedReply, int]]) -> tuple[RecordedReply, ...]:
    """Return the steps that the task itself called, with those inside them; each comes with the number of its caller."""
    ordered = sorted(replies, key=lambda pair: pair[0].step)
    numbers = {reply.step for reply, _ in ordered}
    by_parent: dict[int, list[RecordedReply]] = {}
    for reply, parent in ordered:
        by_parent.setdefault(parent if parent in numbers and parent < reply.step else 0, []).append(reply)

    def with_inner(reply: RecordedReply) -> RecordedReply:
        inner = by_parent.get(reply.step)
        return attrs.evolve(reply, inner=tuple(map(with_inner, inner))) if inner else reply

    return tuple(map(with_inner, by_parent.get(0, ())))
