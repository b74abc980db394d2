"""A packed file: the replies of a run as one compressed text file, without what an offline run does not need.

JSON lines in gzip, the same bytes for the same run, so that it can be kept in a repository. The first line names the run; the
others are records of its journal, each with its number and its hash there, and read as those of a run. Requests are not in
them, only their fingerprints, so a miss cannot show the first difference; pass the run itself for that.

A packed file may be foreign: its records are checked when they are decoded, and no more than a bounded amount is decompressed.
"""

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import orjson

from evaljournal.journal import Record, events
from evaljournal.journal.disk.files import DISK
from evaljournal.journal.fact import evolve_fact, non_default_fields
from evaljournal.journal.format.codec import decode, event_type
from evaljournal.replay.state.usage import JUDGE_NOTE
from evaljournal.runner.errors import UsageError, command
from evaljournal.runner.secrets.masking import mask_output
from evaljournal.runner.secrets.shapes import mask_shapes
from evaljournal.runner.steps.replies.recorded import RecordedReply, TrialReplies, fingerprint_of
from evaljournal.runner.steps.replies.source import QUESTION, ReplySource, TrialRecords

FORMAT: Final = "evaljournal-replies"
VERSION: Final = 1
MAX_BYTES: Final = 1 << 30
"""Maximum bytes of the text; a few bytes can decompress to any number."""
MAX_LINE: Final = 1 << 26
"""Maximum bytes of a line, which is a record: as JSON values, it takes many times as much."""
_GZIP: Final = b"\x1f\x8b"
_OMITTED: Final = {"elapsed": 0.0, "waited": 0.0, "need": None, "continues": 0}
"""What no reply contains."""


def pack(source: ReplySource) -> tuple[bytes, list[str]]:
    """Return the packed file of a run, and the trials whose outputs contain what looks like a secret."""
    suspicious: list[str] = []
    lines = [orjson.dumps({"format": FORMAT, "version": VERSION, **source.identity}, option=orjson.OPT_SORT_KEYS)]
    for entry, records, replies in source.trials():
        fingerprint, variant, repeat = entry.key
        enqueued = events.TrialEnqueued(
            trial=entry.trial, case=entry.case, fingerprint=fingerprint, variant=variant, repeat=repeat, input=None
        )
        packed = [_line(0, "", enqueued)]
        packed += [_line(record.seq, record.h, event) for record, event in _packed_events(source, entry, records, replies)]

        if any(mask_shapes(text.decode()) != text.decode() for text in packed):
            suspicious.append(entry.trial)
        if (size := max(map(len, packed))) >= MAX_LINE:
            raise UsageError(f"a reply of {entry.trial} has {size:,} bytes; a packed file has at most {MAX_LINE:,}")
        lines += packed
    return gzip.compress(b"\n".join([*lines, b""]), mtime=0), suspicious


def _line(seq: int, h: str, event: events.Event) -> bytes:
    # The keys of an output keep their order: an agent may write them into its next request.
    return orjson.dumps(mask_output({"seq": seq, "h": h, "type": event_type(event), **non_default_fields(event)}))


def _packed_events(
    source: ReplySource, entry: TrialRecords, records: Iterable[Record], replies: TrialReplies
) -> Iterator[tuple[Record, events.Event]]:
    """Yield the records of a trial that its replies are read from, with only what is needed of their events."""
    answered: dict[int, RecordedReply] = {reply.seq: reply for reply in (*replies.all_steps, *replies.calls)}
    recorded_again = {inner.seq for caller in (*replies.steps, *replies.calls) for inner in caller.all_inner}

    for record in records:
        event: Any = record.event
        match event:
            case events.AttemptStarted(trial=trial, attempt=number):
                request = fingerprint_of(source.asked(event.request, entry.key[1]))
                event = events.AttemptStarted(trial=trial, attempt=number, slot=0, request=request)
            case events.AttemptSucceeded(trial=trial, attempt=number):
                output = event.output if record.seq in answered else None
                event = events.AttemptSucceeded(trial=trial, attempt=number, output=output, elapsed=0.0)
            case events.TrialScored() | events.ScoringFailed():
                continue  # The replies of judges before it are packed with what they were asked.
            case events.Noted(name=name, value=value) if name == JUDGE_NOTE:
                if record.seq not in answered or not isinstance(value, dict):
                    continue
                reply = {"scorer": value.get("scorer"), "reply": value.get("reply"), QUESTION: answered[record.seq].fingerprint}
                event = evolve_fact(event, value=reply)
            case events.StepCompleted() | events.StepFailed():
                if record.seq not in answered:
                    continue
                step_input = answered[record.seq].input if record.seq in recorded_again else None
                event = evolve_fact(event, input=step_input, **_OMITTED)
            case _:
                pass
        yield record, event


def open_packed(name: str, *, pools: bool = False) -> ReplySource:
    """Read a packed file; raise a `UsageError` if it is damaged, too large, or of another version."""
    try:
        with DISK.read(name) as stream:
            content = stream.read()
        lines = list(_lines_of(name, content))
        header = orjson.loads(lines[0])
        if header["format"] != FORMAT:
            raise ValueError("it is another format")  # the same error as for other damage
        if header["version"] != VERSION:
            hint = f"pack the run again: {command('pack RUN -o', Path(name))}"
            problem = f"{name} has version {header['version']!r:.20} of the packed format; this evaljournal reads {VERSION}"
            raise UsageError(problem, hint=hint)

        def records_at(numbers: Iterable[int]) -> list[Record]:
            return [_record(number, lines[number]) for number in numbers]

        source = ReplySource(name, records_at, sha256(content).hexdigest())
        for number in range(1, len(lines)):
            source.add(*records_at([number]))
        source.run, source.head = _text(header["run"]), _text(header["head"])
        source.end_pass(pools=pools)
    except (LookupError, TypeError, ValueError, AttributeError, OSError, EOFError, zlib.error) as exc:
        raise UsageError(f"{name} is not a packed file, or is damaged ({exc})") from exc
    return source


def _record(number: int, line: bytes) -> Record:
    """Return the record in a line, whose number takes the place of its offset."""
    fields = orjson.loads(line)
    if fields["seq"].__class__ is not int or fields["seq"] < 0:
        raise ValueError(f"seq is {fields['seq']!r:.40}")
    return Record(fields["seq"], "", 0.0, decode(fields), 0, _text(fields["h"]), 0, number)


def _lines_of(name: str, content: bytes) -> Iterator[bytes]:
    """Yield the lines of a file, which may be compressed; raise a `UsageError` at the limit of their bytes."""
    raw, remaining = io.BytesIO(content), MAX_BYTES
    stream = gzip.GzipFile(fileobj=raw) if content.startswith(_GZIP) else raw
    while line := stream.readline(min(remaining, MAX_LINE) + 1):
        remaining -= len(line)
        if remaining < 0:
            raise UsageError(f"{name} decompresses to more than {MAX_BYTES >> 20:,} MiB")
        if len(line) > MAX_LINE:
            raise UsageError(f"{name} has a line of more than {MAX_LINE >> 20:,} MiB")
        yield line


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, not {value!r:.40}")
    return value
