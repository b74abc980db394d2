"""A packed file: the replies of a run as one compressed text file, without what an offline run does not need.

JSON lines in gzip, the same bytes for the same run, so that it can be kept in a repository. The first line names the run; each
other one is a trial: its key, and the keys and the outputs of its calls. Requests are not in it, only their fingerprints, so a
miss cannot show the first difference; pass the run itself for that.

A packed file may be foreign: what it says is checked when it is read, and no more than a bounded amount is decompressed.
"""

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, get_args

import attrs
import orjson

from evaljournal.journal.disk.files import DISK
from evaljournal.journal.events import StepKind
from evaljournal.runner.errors import UsageError, command
from evaljournal.runner.secrets.masking import mask_output
from evaljournal.runner.secrets.shapes import mask_shapes
from evaljournal.runner.steps.attempt_steps import Key
from evaljournal.runner.steps.replies.journal import RunReplies, ambiguous
from evaljournal.runner.steps.replies.recorded import (
    Origin,
    RecordedAnswer,
    RecordedReply,
    RecordedVerdict,
    TrialKey,
    TrialReplies,
)

FORMAT: Final = "evaljournal-replies"
VERSION: Final = 1
MAX_BYTES: Final = 1 << 30
"""Maximum bytes of the text; a few bytes can decompress to any number."""
MAX_LINE: Final = 1 << 26
"""Maximum bytes of a line, which is a trial: as JSON values, it takes many times as much."""
_MAX_DEPTH: Final = 64
_GZIP: Final = b"\x1f\x8b"


def pack(replies: RunReplies) -> tuple[bytes, list[str]]:
    """Return the packed file of a run, and the trials whose outputs contain what looks like a secret."""
    suspicious: list[str] = []
    variants: dict[str, dict[str, Any]] = {}
    lines: list[bytes] = []
    for key, case, trial in replies.trials():
        variants.setdefault(key[1], replies.destination(key[1]))
        line = mask_output(_trial_json(key, case, trial))
        text = orjson.dumps(line, option=orjson.OPT_SORT_KEYS)
        if mask_shapes(text.decode()) != text.decode():
            suspicious.append(trial.trial)
        if len(text) >= MAX_LINE:
            raise UsageError(f"the replies of {trial.trial} have {len(text):,} bytes; a packed file has at most {MAX_LINE:,}")
        lines.append(text)
    header = {"format": FORMAT, "version": VERSION, **replies.identity, "scorers": replies.versions, "tasks": variants}
    text = b"\n".join([orjson.dumps(header, option=orjson.OPT_SORT_KEYS), *sorted(lines), b""])
    return gzip.compress(text, mtime=0), suspicious


def _trial_json(key: TrialKey, case: str, replies: TrialReplies) -> dict[str, Any]:
    answer = replies.answer
    line: dict[str, Any] = {"key": list(key), "case": case, "trial": replies.trial}
    line |= {"steps": [_step_json(reply, is_inner=False) for reply in replies.steps]} if replies.steps else {}
    if answer is not None:
        values = {"request": answer.key, "output": answer.output, "facts": answer.facts, "usage": answer.usage}
        line["answer"] = {**_present(values), **_place(answer.origin)}
    if replies.verdicts:
        line["verdicts"] = [
            {
                "scorer": verdict.scorer,
                "question": verdict.key,
                "reply": verdict.reply,
                **_present({"model": verdict.model, "usage": verdict.usage}),
                **_place(verdict.origin),
            }
            for verdict in replies.verdicts
        ]
    return line


def _step_json(reply: RecordedReply, *, is_inner: bool) -> dict[str, Any]:
    values = {
        "output": reply.output,
        "input": reply.input if is_inner else None,
        "usage": reply.usage,
        "error": reply.error,
        "message": reply.message,
        "inner": [_step_json(inner, is_inner=True) for inner in reply.inner],
        "again": not reply.reusable,
    }
    place = {"step": reply.step, "name": reply.name, "kind": reply.kind, "fingerprint": reply.fingerprint}
    return {**place, **_present(values), **_place(reply.origin)}


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in values.items() if value is not None and value is not False and value not in ("", [], {})
    }


def _place(origin: Origin) -> dict[str, Any]:
    return {"seq": origin.seq, "head": origin.head}


@attrs.define(eq=False)
class PackedReplies:
    """The replies in a packed file."""

    name: str
    run: str
    head: str
    digest: str
    """SHA-256 of the file."""
    versions: dict[str, str]
    _tasks: dict[str, dict[str, Any]]
    _lines: dict[TrialKey, list[tuple[str, bytes]]]
    """Key → names of the cases, and their lines, which are parsed when they are needed."""
    _pool: dict[Key, list[RecordedReply]] = attrs.field(init=False, factory=dict[Key, list[RecordedReply]])
    is_own: bool = False

    @property
    def identity(self) -> dict[str, str]:
        """The run that was packed, its last record, and the digest of the file."""
        return {"run": self.run, "head": self.head, "sha256": self.digest}

    def destination(self, variant: str) -> dict[str, Any]:
        """Return where the calls of a variant went."""
        return self._tasks.get(variant, {})

    def find(self, key: TrialKey, case: str) -> TrialReplies | None:
        """Return what is recorded for a trial; None: nothing. Of several trials with the key, that of the case of this name."""
        lines = self._lines.get(key, [])
        named_lines = [line for line in lines if line[0] == case] if len(lines) > 1 else lines
        if len(lines) > 1 and not named_lines:
            raise ambiguous(self.name, [name for name, _ in lines])
        return self._parse(named_lines[0][1]) if named_lines else None

    def trials(self) -> Iterator[tuple[TrialKey, str, TrialReplies]]:
        """Yield all trials with their keys and the names of their cases."""
        for key, lines in self._lines.items():
            for case, line in lines:
                yield key, case, self._parse(line)

    def pooled(self, key: Key, used_seqs: set[int]) -> RecordedReply | None:
        """Return the first reply of any trial that has a key and is not used yet."""
        return next((reply for reply in self._pool.get(key, ()) if reply.origin.seq not in used_seqs), None)

    def fill_pool(self) -> None:
        """Let the replies of all trials be used by any one."""
        for _, _, trial in self.trials():
            for reply in trial.steps:
                for step in (reply, *reply.all_inner):
                    if not step.error:
                        self._pool.setdefault(step.key, []).append(step)

    def _parse(self, line: bytes) -> TrialReplies:
        try:
            return _trial(orjson.loads(line), self.run)
        except (LookupError, TypeError, ValueError, AttributeError) as exc:
            raise _damaged(self.name, exc) from exc


def open_packed(name: str, *, pools: bool = False) -> PackedReplies:
    """Read a packed file; raise a `UsageError` if it is damaged, too large, or of another version."""
    try:
        with DISK.read(name) as stream:
            content = stream.read()
        lines = _lines_of(name, content)
        header = orjson.loads(next(lines, b""))
        if header["format"] != FORMAT:
            raise ValueError("it is another format")  # the same error as for other damage
        if header["version"] != VERSION:
            hint = f"pack the run again: {command('pack RUN -o', Path(name))}"
            problem = f"{name} has version {header['version']!r:.20} of the packed format; this evaljournal reads {VERSION}"
            raise UsageError(problem, hint=hint)
        by_key: dict[TrialKey, list[tuple[str, bytes]]] = {}
        for line in lines:
            fields = orjson.loads(line)
            fingerprint, variant, repeat = fields["key"]
            by_key.setdefault((_text(fingerprint), _text(variant), _count(repeat)), []).append((_text(fields["case"]), line))
        versions = {_text(key): _text(value) for key, value in header["scorers"].items()}
        tasks = {_text(key): dict(value) for key, value in header["tasks"].items()}
        packed = PackedReplies(
            name, _text(header["run"]), _text(header["head"]), sha256(content).hexdigest(), versions, tasks, by_key
        )
    except UsageError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OSError, EOFError, zlib.error) as exc:
        raise _damaged(name, exc) from exc
    if pools:
        packed.fill_pool()
    return packed


def _damaged(name: str, exc: Exception) -> UsageError:
    return UsageError(f"{name} is not a packed file, or is damaged ({exc})")


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


def _trial(fields: Any, run: str) -> TrialReplies:
    answer = fields.get("answer")
    return TrialReplies(
        trial=_text(fields["trial"]),
        steps=tuple(_steps(fields.get("steps", ()), run)),
        answer=None if answer is None else _answer(answer, run),
        verdicts=tuple(_verdict(verdict, run) for verdict in fields.get("verdicts", ())),
    )


def _answer(fields: Any, run: str) -> RecordedAnswer:
    facts, usage = fields.get("facts", {}), fields.get("usage")
    key, output = _text(fields["request"]), fields.get("output")
    return RecordedAnswer(request=None, key=key, output=output, facts=facts, usage=usage, origin=_origin(fields, run))


def _verdict(fields: Any, run: str) -> RecordedVerdict:
    return RecordedVerdict(
        scorer=_text(fields["scorer"]),
        key=_text(fields["question"]),
        reply=_text(fields["reply"]),
        model=_text(fields.get("model", "")),
        usage=fields.get("usage"),
        origin=_origin(fields, run),
    )


def _steps(steps: Iterable[Any], run: str, depth: int = 0) -> Iterator[RecordedReply]:
    if depth > _MAX_DEPTH:
        raise ValueError("steps are nested too deeply")
    for fields in steps:
        if fields["kind"] not in get_args(StepKind):
            raise ValueError(f"unknown kind of step {fields['kind']!r:.40}")
        yield RecordedReply(
            seq=_count(fields["seq"]),
            output=fields.get("output"),
            usage=fields.get("usage"),
            step=_count(fields["step"]),
            name=_text(fields["name"]),
            kind=fields["kind"],
            fingerprint=_text(fields["fingerprint"]),
            origin=_origin(fields, run),
            input=fields.get("input"),
            reusable=not fields.get("again", False),
            error=_text(fields.get("error", "")),
            message=_text(fields.get("message", "")),
            inner=tuple(_steps(fields.get("inner", ()), run, depth + 1)),
        )


def _origin(fields: Any, run: str) -> Origin:
    return Origin(run=run, seq=_count(fields["seq"]), head=_text(fields["head"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, not {value!r:.40}")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"expected a number, not {value!r:.40}")
    return value
