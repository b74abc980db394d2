"""Sample events and journals. The clock counts, so the same events give the same bytes."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_args, get_origin

import attrs
import orjson
import trio
from hypothesis import settings

from evaljournal.journal import Clock, Durability, Event, Record, writing
from evaljournal.journal.disk import segments
from evaljournal.journal.disk.files import Files
from evaljournal.journal.events import (
    Annotated,
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    BatchCollected,
    BatchPrepared,
    BatchSubmitted,
    RetryScheduled,
    RunFinished,
    RunStarted,
    SessionStarted,
    TrialCompleted,
    TrialEnqueued,
    TrialScored,
)
from evaljournal.journal.fact import evolve_fact, fields_of
from evaljournal.journal.format import chain
from evaljournal.journal.format.codec import encode, is_payload
from evaljournal.journal.threads import InThread
from evaljournal.replay.text import as_text

T = TypeVar("T")
E = TypeVar("E", bound=Event)

RUN = "0123456789abcdef0123456789abcdef"
"""Id of every run that is written here."""


class Options(TypedDict, total=False):
    """Options of `journal.writing`."""

    new: bool
    run: str
    clock: Clock
    durability: Durability
    files: Files
    roll_at: int
    in_thread: InThread
    seal: bool


class UnsyncedDisk(Files):
    """A disk that never syncs, for speed."""

    def fdatasync(self, fd: int) -> None:
        """Do nothing."""

    def fsync(self, fd: int) -> None:
        """Do nothing."""

    def sync_directory(self, path: str) -> None:
        """Do nothing."""


UNSYNCED_DISK = UnsyncedDisk()


def examples(number: int) -> settings:
    """Return hypothesis settings for this number of examples, or fewer in a slice: see `tests/conftest.py`."""
    return settings(max_examples=min(number, settings().max_examples))


def fake_clock(seconds: float = 0.001) -> Clock:
    """Return a clock that counts: `at` in milliseconds, `t` in steps of this many seconds."""
    ticks = itertools.count(1)

    def read() -> tuple[str, float]:
        tick = next(ticks)
        return f"2026-11-15T00:{tick // 60_000 % 60:02}:{tick // 1_000 % 60:02}.{tick % 1_000:03}000Z", round(tick * seconds, 6)

    return read


async def inline(call: Callable[[], T], /) -> T:
    """Make a blocking call without a thread, so that the order of events is deterministic."""
    await trio.lowlevel.checkpoint()
    return call()


def started() -> RunStarted:
    """Return the start of a run."""
    return RunStarted(
        evaluation="capitals",
        task="evals/capitals.py:capitals",
        task_fingerprint="t1",
        scorers={"exact": "v1"},
        dataset="3 cases",
        dataset_fingerprint="d1",
        settings={"slots": 2},
        settings_fingerprint="s1",
        durability="sync",
        environment={"python": "3.11"},
    )


def session(n: int = 1) -> SessionStarted:
    """Return the start of a session."""
    return SessionStarted(session=n, pid=4711, host="here", boot_id="b1")


def finished(completed: int = 1) -> RunFinished:
    """Return the end of the run."""
    return RunFinished(completed=completed, failed=0, withdrawn=0, head="")


def enqueued(name: str, question: Any = "Where is the capital?") -> TrialEnqueued:
    """Return the event that enqueues a trial."""
    return TrialEnqueued(trial=name, case=name, repeat=1, input=question, fingerprint="f1")


def trial(name: str, output: Any = "Lima", *, retries: int = 0) -> list[Event]:
    """Return all events of a trial that completes after this number of retries."""
    events: list[Event] = [enqueued(name)]
    for attempt in range(1, retries + 1):
        events += [
            AttemptStarted(trial=name, attempt=attempt, slot=0),
            AttemptFailed(trial=name, attempt=attempt, error="OSError", message="no", category="unavailable", elapsed=0.25),
            RetryScheduled(trial=name, attempt=attempt + 1, delay=0.5, reason="unavailable"),
        ]
    last = retries + 1
    return [
        *events,
        AttemptStarted(trial=name, attempt=last, slot=0),
        AttemptSucceeded(trial=name, attempt=last, output=output, elapsed=0.25),
        TrialScored(trial=name, scorer="exact", version="v1", value=True, elapsed=0.125),
        TrialCompleted(trial=name, attempts=last),
    ]


def annotated(trial: str, *, value: Any = True, **fields: Any) -> Annotated:
    """Return a label of the output `Lima` of a trial."""
    digest = hashlib.sha256(b'"Lima"').hexdigest()
    label = {"case": trial, "fingerprint": "f1", "output": digest, "name": "exact", "reviewer": "ada", **fields}
    return Annotated(trial=trial, value=value, **label)


def complete_run(trials: int = 2) -> list[Event]:
    """Return all events of a run with this number of trials."""
    trial_events = itertools.chain.from_iterable(trial(f"case-{number}") for number in range(1, trials + 1))
    return [started(), session(), *trial_events, finished(trials)]


async def write(path: Path, events: Iterable[Event], *, confirm: bool = True, **options: Unpack[Options]) -> list[Record]:
    """Write a journal: by default a new one, without threads, waiting for each record to be durable."""
    arguments: Options = {"new": True, "run": RUN, "clock": fake_clock(), "in_thread": inline, "files": UNSYNCED_DISK}
    arguments.update(options)
    records: list[Record] = []
    async with writing(path, **arguments) as journal:
        for event in events:
            records.append(journal.append(event))
            if confirm:
                await journal.wait_durable(records[-1].seq)
    return records


def write_sync(path: Path, events: Iterable[Event], *, confirm: bool = True, **options: Unpack[Options]) -> list[Record]:
    """Call `write` from a synchronous test."""

    async def main() -> list[Record]:
        return await write(path, events, confirm=confirm, **options)

    return trio.run(main)


def write_trials(path: Path, *trials: Iterable[Event], ending: Event | None = None, **changes: Any) -> Path:
    """Write a run with these trials, finished unless it has another ending; `changes` are those of its start."""
    events = [evolve_fact(started(), **changes), session(), *itertools.chain(*trials)]
    write_sync(path, [*events, ending or finished(len(trials))], confirm=False)
    return path


def segment(path: Path, number: int = 1) -> Path:
    """Return the path of a segment."""
    return path / segments.name(number)


def lines_of(path: Path) -> list[bytes]:
    """Return all lines of a journal with LF, across its segments."""
    return [line for file in sorted(path.glob("journal-*.jsonl")) for line in file.read_bytes().splitlines(keepends=True)]


def content(path: Path) -> dict[str, bytes]:
    """Return the content of every file of a run."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def overwrite(file: Path, data: bytes) -> None:
    """Overwrite a file, even a read-only one."""
    if file.exists():
        file.chmod(0o600)
    file.write_bytes(data)


def flip(file: Path, byte: int, mask: int = 1) -> None:
    """Flip bits in one byte of a file."""
    data = bytearray(file.read_bytes())
    data[byte] ^= mask
    overwrite(file, bytes(data))


def cut_tail(file: Path, lines: int) -> None:
    """Remove complete lines from the end of a file."""
    overwrite(file, b"".join(file.read_bytes().splitlines(keepends=True)[:-lines]))


def opened(**fields: str) -> dict[str, Any]:
    """Return the fields of a first record."""
    return {"type": "segment_opened", "format": "evaljournal", "version": segments.VERSION, "run": RUN, "segment": 1, **fields}


def event_fields(event: Event) -> dict[str, Any]:
    """Return an event as the fields of a line."""
    fields: dict[str, Any] = orjson.loads(encode(event, 1, "", 0.0) + b"}")
    return {name: value for name, value in fields.items() if name not in ("seq", "at", "t")}


def forge(path: Path, entries: Iterable[Event | dict[str, Any]], *, d: int = 0) -> Path:
    """Append lines with correct hashes and any content to the first segment; missing numbers and times are added."""
    path.mkdir(parents=True, exist_ok=True)
    lines = lines_of(path)
    h = orjson.loads(lines[-1])["h"].encode() if lines else chain.GENESIS
    for seq, entry in enumerate(entries, start=len(lines) + 1):
        fields = entry if isinstance(entry, dict) else event_fields(entry)
        defaults = {"seq": seq, "at": "2026-11-15T00:00:00.000000Z", "t": 0.5}
        without_d = {name: value for name, value in fields.items() if name != "d"}
        body = as_text({**defaults, **without_d, "d": fields.get("d", d)}).encode()[:-1]
        h = chain.link(RUN.encode(), h, body).encode()
        lines.append(chain.add_hash(body, h))
    overwrite(segment(path), b"".join(lines))
    return path


def change_with_hashes(path: Path, old: bytes, new: bytes) -> None:
    """Change a text in the first segment of a run, and compute all hashes again; without its last line, it is not sealed."""
    lines, h = lines_of(path)[:-1], chain.GENESIS
    run = orjson.loads(lines[0])["run"].encode()
    for number, line in enumerate(lines):
        body = (chain.split(line.rstrip(b"\n")) or (b"", b""))[0].replace(old, new)
        h = chain.link(run, h, body).encode()
        lines[number] = chain.add_hash(body, h)
    overwrite(segment(path), b"".join(lines))


_VALUES: dict[Any, Any] = {str: "x", int: 1, float: 0.5, bool: True, Mapping: {}, list: ["x"]}


def sample(kind: type[E], /, *, every_field: bool = False, **values: Any) -> E:
    """Return an event with some value in each required field, or in every field; `values` of other fields are ignored."""

    def value_of(field: "attrs.Attribute[Any]") -> Any:
        if is_payload(field):
            return {"cost": 0.5}
        origin, options = get_origin(field.type), get_args(field.type)
        return options[0] if origin is Literal else _VALUES[options[0] if origin is UnionType else origin or field.type]

    fields = [field for field in fields_of(kind) if every_field or field.default is attrs.NOTHING or field.name in values]
    return kind(**{field.name: values[field.name] if field.name in values else value_of(field) for field in fields})


def prepared(*trials: str, batch: int = 1, scorer: str = "", reserved: Any = None) -> BatchPrepared:
    """Return the preparation of a batch with a line for each of these trials."""
    return BatchPrepared(
        batch=batch,
        trials=list(trials),
        scorer=scorer,
        model="mini",
        api="openai",
        address="https://api.example/v1",
        prefix=f"ej-{RUN[:16]}-{batch}-",
        digest="0" * 64,
        bytes=100 * len(trials),
        reserved=reserved,
        tokens=10 * len(trials),
        account="fedcba9876543210",
    )


def submitted(*trials: str, batch: int = 1, scorer: str = "") -> list[Event]:
    """Return the preparation and the submission of a batch."""
    return [prepared(*trials, batch=batch, scorer=scorer), BatchSubmitted(batch=batch, id=f"batch_{batch}")]


def collected(results: int, missing: int = 0, *, batch: int = 1, state: str = "completed") -> BatchCollected:
    """Return the end of a batch."""
    return BatchCollected(batch=batch, state=state, results=results, missing=missing)


def from_line(name: str, line: int, *, batch: int = 1, attempt: int = 1, output: Any = "Lima") -> list[Event]:
    """Return an attempt that uses a line of a batch and has an output."""
    return [
        AttemptStarted(trial=name, attempt=attempt, slot=0, batch=batch, line=line),
        AttemptSucceeded(trial=name, attempt=attempt, output=output, elapsed=0.0),
    ]
