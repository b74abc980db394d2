"""`verify --sources`: every reply that a run has replayed is in its source, with the same name, fingerprint, output and hash.

The sources are those that the run has recorded. A journal is verified completely, so a record that was changed in it, and all
that follow it, no longer have their hashes; a packed file must have the digest that was recorded.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from evaljournal.journal import JournalError, Record, events, read
from evaljournal.journal.disk.files import DISK
from evaljournal.journal.format.blobs import with_loaded_blobs
from evaljournal.journal.readers.verification import Verifier
from evaljournal.replay.auditing.findings import Finding
from evaljournal.replay.state.totals import REPLAYED
from evaljournal.replay.state.usage import JUDGE_NOTE
from evaljournal.replay.text import printable
from evaljournal.runner.errors import UsageError
from evaljournal.runner.runs.verification import SourceVerification
from evaljournal.runner.steps.replies.packed import open_packed

_CHECK = "sources"
_Place = tuple[str, int]
"""Id of a run, and a record there."""
_Content = tuple[str, str, str, bytes]
"""Hash of the record, name and fingerprint of a step, and its output as JSON."""
_Replayed = tuple[int, _Place, _Content]
"""A record of the run that has replayed a reply, the place of the reply in its source, and what it has of it."""


def verify_sources(path: Path) -> SourceVerification:
    """Compare each replayed reply of an intact run with its source."""
    sources: list[Any] = []
    replayed: list[_Replayed] = []
    notes: dict[str, tuple[int, dict[str, Any]]] = {}
    for record in read(path):
        if isinstance(record.event, events.RunStarted | events.SessionStarted) and isinstance(record.event.settings, dict):
            recorded = record.event.settings.get("reply_sources")
            sources = recorded if isinstance(recorded, list) else sources
        if (reply := _replayed(record, notes)) is not None:
            replayed.append(reply)

    contents: dict[_Place, _Content] = {}
    findings: list[Finding] = []
    places = {place for _, place, _ in replayed}
    for source in sources:
        fields = source if isinstance(source, dict) else {}
        name = str(fields.get("path", ""))
        try:
            contents.update(_contents(name, fields, places))
        except (UsageError, JournalError, OSError) as exc:
            findings.append(Finding(1, _CHECK, f"the source {printable(name)} cannot be used: {printable(str(exc), 300)}"))

    for seq, place, content in replayed:
        if problem := _difference(place, content, contents.get(place)):
            findings.append(Finding(seq, _CHECK, problem))
    return SourceVerification(len(replayed) - sum(finding.seq > 1 for finding in findings), tuple(findings))


def _replayed(record: Record, notes: dict[str, tuple[int, dict[str, Any]]]) -> _Replayed | None:
    """Return the reply that a record has replayed; `notes` has the last note of each trial about an answer or a verdict."""
    match event := record.event:
        case events.StepReplayed():
            content = event.source_head, event.name, event.fingerprint, _json(event.output)
            return record.seq, (event.source_run, event.source_seq), content
        case events.Noted(name=name, value=dict(value)) if name == REPLAYED:
            notes[event.trial] = record.seq, value
            return None
        case events.AttemptSucceeded() if event.trial in notes:
            output: Any = event.output
        case events.Noted(name=name, value=dict(value)) if name == JUDGE_NOTE and event.trial in notes:
            output = value.get("reply")
        case _:
            return None

    seq, fields = notes.pop(event.trial)
    source_seq = fields.get("seq")
    place = str(fields.get("run", "")), source_seq if isinstance(source_seq, int) else 0
    return seq, place, (str(fields.get("head", "")), "", "", _json(output))


def _difference(place: _Place, own: _Content, content: _Content | None) -> str:
    run, seq = place
    if content is None:
        return f"its reply is not in a source: record {seq} of run {printable(run, 40)}"
    names = ("hash", "name", "fingerprint", "output")
    differences = [name for name, value, other in zip(names, own, content, strict=True) if value != other]
    return f"its reply differs from record {seq} of its source: {', '.join(differences)}" if differences else ""


def _contents(name: str, fields: dict[str, Any], places: set[_Place]) -> Iterator[tuple[_Place, _Content]]:
    """Yield the records of a source that replies came from; raise if it is not the one that was recorded."""
    if Path(name).is_file():
        packed = open_packed(name)
        if packed.sha256 != fields.get("sha256"):
            raise UsageError("it was changed after the run has used it")
        yield from (((packed.run, record.seq), _content(record)) for _, records, _ in packed.trials() for record in records)
        return

    verifier, run, has_head = Verifier(Path(name)), "", False
    for record in verifier:
        if isinstance(record.event, events.SegmentOpened):
            run = record.event.run
        has_head = has_head or record.h == fields.get("head")
        if (run, record.seq) in places:
            yield (run, record.seq), _content(with_loaded_blobs(record, DISK))
    problem = verifier.result().problem
    if problem is not None or not has_head:
        raise UsageError(str(problem or "it does not have the record that was its last one when the run started"))


def _content(record: Record) -> _Content:
    event = record.event
    if isinstance(event, events.StepCompleted):
        return record.h, event.name, event.fingerprint, _json(event.output)
    if isinstance(event, events.Noted):
        return record.h, "", "", _json(event.value.get("reply") if isinstance(event.value, dict) else None)
    return record.h, "", "", _json(getattr(event, "output", None))


def _json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
