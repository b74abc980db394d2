"""The replies in the journal of a run. One pass notes where the records of each trial are; a trial's are read when it is run.

The journal may be foreign: it was verified by its reader, and nothing in it is executed.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from evaljournal.journal import Blob, Record, events, read
from evaljournal.journal.disk.lock import is_held
from evaljournal.journal.disk.segments import is_run
from evaljournal.journal.ownership import own_hashes
from evaljournal.journal.readers.reader import RecordReader
from evaljournal.replay.runs.trajectory import StepDetails, Trajectory, recorded_step
from evaljournal.replay.state.answers import ANSWER
from evaljournal.replay.state.trial import pack_location, unpack_location
from evaljournal.replay.state.usage import JUDGE_NOTE, JUDGE_USAGE
from evaljournal.replay.state.usage_parts import REPLAYED
from evaljournal.runner.data.fingerprint import canonical, digest
from evaljournal.runner.errors import UsageError, command
from evaljournal.runner.steps.attempt_steps import Key
from evaljournal.runner.steps.replies.recorded import (
    Origin,
    RecordedAnswer,
    RecordedReply,
    RecordedVerdict,
    TrialKey,
    TrialReplies,
)

_NOTES: Final = frozenset({ANSWER, JUDGE_NOTE, JUDGE_USAGE, REPLAYED})
_NAME_CHARS: Final = 80
_DESTINATION: Final = ("base_url", "url", "method", "output_path", "error_path", "done_path")
"""Where a call goes, and which part of the reply is the output."""


def request_key(request: Any) -> str:
    """Return what identifies the request of an attempt."""
    return digest(canonical(request, "the request"))


def destination(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a task's definition that decides, besides the request, what an answer is."""
    return {name: definition[name] for name in _DESTINATION if definition.get(name) is not None}


def question_key(version: str, texts: Iterable[str]) -> str:
    """Return what identifies a question to a judge: the version of the judge, its prompt and perhaps a reminder."""
    return digest(orjson.dumps([version, *texts]))


@attrs.define
class _Entry:
    """Where the records of a trial are."""

    trial: str
    case: str
    locations: "array[int]" = attrs.field(factory=lambda: array("q"))
    """Packed locations, in the order of the records."""


@attrs.define(eq=False)
class RunReplies:
    """The replies in a run."""

    name: str
    path: Path
    run: str
    head: str
    versions: dict[str, str]
    """Version of each scorer."""
    definition: Any
    """What the run has recorded about its task."""
    is_own: bool
    """Whether this user has written it on this machine."""
    _entries: dict[TrialKey, list[_Entry]]
    _pool: dict[Key, "array[int]"] = attrs.field(factory=dict[Key, "array[int]"])
    """Key → packed locations of all steps that have it; empty unless replies of any trial are used."""

    def destination(self, variant: str) -> dict[str, Any]:
        """Return where the calls of a variant went; see `destination`."""
        definition: Mapping[str, Any] = self.definition if isinstance(self.definition, Mapping) else {}
        variants = definition.get("variants") or {}
        parameters = (variants.get(variant) or {}).get("parameters") or {}
        changes = {name: value for name, value in parameters.items() if value is not None}
        return destination({**(definition.get("task") or {}), **changes})

    @property
    def identity(self) -> dict[str, str]:
        """The id of the run and its last record."""
        return {"run": self.run, "head": self.head}

    def find(self, key: TrialKey, case: str) -> TrialReplies | None:
        """Return what is recorded for a trial; None: nothing. Of several trials with the key, that of the case of this name."""
        entries = self._entries.get(key, ())
        named_entries = [entry for entry in entries if entry.case == case] if len(entries) > 1 else entries
        if len(entries) > 1 and not named_entries:
            raise ambiguous(self.name, [entry.case for entry in entries])
        return self._read(named_entries[0]) if named_entries else None

    def trials(self) -> Iterable[tuple[TrialKey, str, TrialReplies]]:
        """Yield all trials with their keys and the names of their cases, for `pack`."""
        for key, entries in self._entries.items():
            for entry in entries:
                yield key, entry.case, self._read(entry)

    def pooled(self, key: Key, used_seqs: set[int]) -> RecordedReply | None:
        """Return the first reply of any trial that has a key and is not used yet."""
        for location in self._pool.get(key, ()):
            with RecordReader(self.path) as reader:
                record = reader.find(*unpack_location(location))
            if record.seq not in used_seqs and isinstance(record.event, events.StepCompleted):
                _, details, _ = recorded_step(record)
                return _reply(self.run, record.event, record, details)
        return None

    def _read(self, entry: _Entry) -> TrialReplies:
        with RecordReader(self.path) as reader:
            records = [reader.find(*unpack_location(location)) for location in entry.locations]
        trial = _TrialReader(self.run, entry.trial, self.versions)
        for record in records:
            trial.add(record)
        return trial.result()


def ambiguous(name: str, cases: Sequence[str]) -> UsageError:
    """Return the error of a case whose content several recorded cases have, none of them with its name."""
    names = " and ".join(repr(case[:_NAME_CHARS]) for case in cases[:2])
    return UsageError(f"{name} has several cases with this content, {names}; give the case one of their names")


def open_run(name: str, *, pools: bool = False) -> RunReplies:
    """Read a run once, and note where its replies are; raise a `UsageError` if it has none, or is being written.

    With `pools`, the replies of all trials can be used by any one.
    """
    path = Path(name)
    if not is_run(path):
        raise UsageError(f"{name} is not a run and not a packed file of replies")
    if is_held(path):
        hint = f"wait for its end, or interrupt it; {command('status', path)} shows it"
        raise UsageError(f"{name} is a run in progress", hint=hint)
    scan = _Scan()
    for record in read(path, load_blobs=False):
        scan.add(record)
        if pools and isinstance(event := record.event, events.StepCompleted):
            scan.pool.setdefault((event.name, event.fingerprint), array("q")).append(pack_location(record))
    if not scan.has_replies:
        hint = "calls are recorded by steps (durable), -s durable=http, --gateway, and for chat models and endpoints"
        raise UsageError(f"{name} has recorded no replies", hint=hint)
    definition = scan.definition.load() if isinstance(scan.definition, Blob) else scan.definition
    return RunReplies(name, path, scan.run, scan.head, scan.versions, definition, scan.is_own, scan.entries(), scan.pool)


class _Scan:
    """One pass over a journal."""

    def __init__(self) -> None:
        self.run = self.head = ""
        self.versions: dict[str, str] = {}
        self.definition: Any = None
        self.has_replies = False
        self._starts: list[str] = []
        """Hashes of the starts of the run and its sessions."""
        self.pool: dict[Key, array[int]] = {}
        self._trials: dict[str, tuple[TrialKey, _Entry]] = {}

    @property
    def is_own(self) -> bool:
        """Whether this user has written it on this machine: its sessions, and all records up to the end of the last one."""
        return own_hashes(self.run).issuperset([*self._starts, self.head])

    def entries(self) -> dict[TrialKey, list[_Entry]]:
        """Return the trials by key."""
        entries: dict[TrialKey, list[_Entry]] = {}
        for key, entry in self._trials.values():
            entries.setdefault(key, []).append(entry)
        return entries

    def add(self, record: Record) -> None:
        """Add the next record."""
        self.head = record.h
        if isinstance(record.event, events.RunStarted | events.SessionStarted):
            self._starts.append(record.h)
        match event := record.event:
            case events.SegmentOpened():
                self.run = event.run
            case events.RunStarted():
                self.versions, self.definition = dict(event.scorers), event.definition
            case events.SessionStarted(adopted=dict(adopted)):
                self.versions |= adopted.get("scorers") or {}
                self.definition = event.definition or self.definition
            case events.TrialEnqueued():
                self._trials[event.trial] = (event.fingerprint, event.variant, event.repeat), _Entry(event.trial, event.case)
            case events.TrialWithdrawn():
                self._trials.pop(event.trial, None)
            case _:
                self._locate(record)

    def _locate(self, record: Record) -> None:
        """Keep the location of a record that a reply may come from."""
        match event := record.event:
            case events.StepCompleted():
                self.has_replies = True
            case events.StepFailed() | events.StepReused() | events.AttemptSucceeded():
                pass
            case events.AttemptStarted() if event.request is not None:
                self.has_replies = True
            case events.Noted() if event.name in _NOTES:
                self.has_replies = True
            case _:
                return
        if event.trial in self._trials:
            self._trials[event.trial][1].locations.append(pack_location(record))


class _TrialReader:
    """The replies in the records of a trial."""

    def __init__(self, run: str, trial: str, versions: Mapping[str, str]) -> None:
        """`versions` are those of the scorers."""
        self._run, self._trial, self._versions = run, trial, versions
        self._trajectory = Trajectory()
        self._executed: dict[int, tuple[events.StepCompleted | events.StepFailed, Record]] = {}
        self._attempts: dict[int, list[tuple[RecordedReply, int]]] = {}
        """Attempt → its steps, each with the number of its caller."""
        self._request: Any = None
        self._notes: dict[str, dict[str, Any]] = {}
        """Name → last note of that name."""
        self._has_output = False
        self._answer: RecordedAnswer | None = None
        self._verdicts: list[RecordedVerdict] = []

    def add(self, record: Record) -> None:
        """Add the next record."""
        match event := record.event:
            case events.AttemptStarted():
                self._request = event.request
            case events.AttemptSucceeded():
                self._has_output = True
                if self._request is not None:
                    self._answer = self._new_answer(event.output, record)
            case events.Noted(value=dict(value)):
                self._notes[event.name] = value
                if event.name == JUDGE_NOTE:
                    self._verdicts.append(self._verdict(value, record))
            case events.StepCompleted() | events.StepFailed() | events.StepReused():
                self._add_step(event, record)
            case _:
                pass

    def result(self) -> TrialReplies:
        """Return the replies; without an output, also those of earlier attempts."""
        steps, used_seqs = list[RecordedReply](), set[int]()
        for number in sorted(self._attempts, reverse=True)[: 1 if self._has_output else None]:
            replies = [pair for pair in self._attempts[number] if pair[0].seq not in used_seqs]
            used_seqs.update(reply.seq for reply, _ in replies)
            steps += _tree(replies)
        verdicts = tuple(self._verdicts)
        return TrialReplies(trial=self._trial, steps=tuple(steps), answer=self._answer, verdicts=verdicts)

    def _new_answer(self, output: Any, record: Record) -> RecordedAnswer:
        facts = dict(self._notes.pop(ANSWER, {}))
        usage = facts.pop("usage", None) or self._notes.pop(REPLAYED, {}).get("unpaid")
        return RecordedAnswer(
            request=self._request,
            key=request_key(self._request),
            output=output,
            facts=facts,
            usage=usage,
            origin=self._origin(record),
        )

    def _verdict(self, value: dict[str, Any], record: Record) -> RecordedVerdict:
        scorer = str(value.get("scorer", ""))
        used = self._notes.pop(JUDGE_USAGE, {})
        return RecordedVerdict(
            scorer=scorer,
            key=question_key(
                self._versions.get(scorer, ""), [str(value[name]) for name in ("prompt", "reminder") if name in value]
            ),
            reply=str(value.get("reply", "")),
            model=str(used.get("served_model", "")),
            usage=used.get("usage") or self._notes.pop(REPLAYED, {}).get("unpaid"),
            origin=self._origin(record),
        )

    def _add_step(self, event: events.StepCompleted | events.StepFailed | events.StepReused, record: Record) -> None:
        number, details, completed_seq = recorded_step(record)
        if not isinstance(event, events.StepReused):
            self._executed[record.seq] = event, record
        step = self._trajectory.add(number, details, completed_seq)
        executed = self._executed.get(completed_seq or record.seq)
        if step is not None and executed is not None and executed[0].phase == "task":
            self._attempts.setdefault(number, []).append((_reply(self._run, *executed, step), step.parent))

    def _origin(self, record: Record) -> Origin:
        return Origin(run=self._run, seq=record.seq, head=record.h)


def _reply(run: str, event: events.StepCompleted | events.StepFailed, record: Record, step: StepDetails) -> RecordedReply:
    """Return the reply of a step that an event has recorded, and that has this place in the attempt."""
    is_replayed = isinstance(event, events.StepReplayed)
    return RecordedReply(
        seq=record.seq,
        output=step.output,
        usage=event.unpaid if isinstance(event, events.StepReplayed) else step.usage,
        step=step.number,
        name=event.name,
        kind=event.kind,
        fingerprint=event.fingerprint,
        origin=Origin(run=run, seq=record.seq, head=record.h),
        input=step.input,
        reusable=is_replayed or bool(step.error) or step.reusable,
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
