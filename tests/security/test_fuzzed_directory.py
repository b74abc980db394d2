"""Property: whatever a run directory contains, a command that reads it ends as documented and does nothing else.

Every field of every event gets values of all types, and every file is replaced by links, pipes, sockets and files of any size.
A seeded sample runs in every test run; `pytest -m exhaustive` runs all combinations.
"""

import itertools
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from evaljournal.journal import events
from evaljournal.journal.fact import fields_of
from evaljournal.journal.format.codec import EVENT_TYPES, MAX_INTEGER, MAX_TIME, TYPE_NAMES, decode
from tests.journal.samples import RUN, event_fields, forge, opened, overwrite, sample, write_sync
from tests.processes import Forks
from tests.security import commands
from tests.security.test_foreign_directory import EVIL, LARGE, SECRET, SPECIAL, controls

pytestmark = pytest.mark.slow

SAMPLE = 3
"""Directories that are chosen at random in each of the quick tests."""
STRIDE = 6
"""Each of them is read by one command in six, so that consecutive ones are read by different commands."""
BATCH = 24
"""Directories that one process reads: a new process for each would take most of the time."""
CODES = {0, 1, 2, 3, 4, 5}
"""Documented exit codes of a command that reads a run."""
PEAK_KB = 1_000_000
"""Maximum memory of a process that runs all commands, about 150 MB of modules included."""
DEEP: Any = json.loads("[" * 200 + "]" * 200)
VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "zero": 0,
    "negative": -1,
    "large": (1 << 63) - 1,
    "fraction": 0.1,
    "huge": 1e308,
    "empty": "",
    "text": "case-1",
    "evil": EVIL,
    "long": "9" * 400_000,
    "list": [],
    "lists": [[EVIL], {"a": 1}],
    "object": {},
    "objects": {EVIL: {EVIL: [EVIL]}, "k": None, "slots": EVIL, "fail_under": ["9" * 1_000], "task": [], "scorers": 1},
    "deep": DEEP,
}


every = partial(sample, every_field=True)


def event_samples() -> list[dict[str, Any]]:
    """Return a run with every type of event, each with all of its fields."""
    call: dict[str, Any] = {"probe": False, "need": None, "batch": 0, "line": 0}

    def start(attempt: int, **fields: Any) -> events.Event:
        fields = {"reuses": 0, "spent": 0.0, "other_runs": None, **call, **fields}
        return every(events.AttemptStarted, trial="case-1", attempt=attempt, slot=0, **fields)

    def step(kind: type[events.Event], number: int, **fields: Any) -> events.Event:
        return every(kind, trial="case-1", step=number, input={"messages": ["a"]}, need=None, **fields)

    run_events: list[events.Event] = [
        every(
            events.RunStarted,
            task="evals/capitals.py:capitals",
            definition={"task": {"prompt": "p"}, "scorers": {"exact": {"source": "s"}}},
            settings={"slots": 2, "timeout": 30.0, "fail_under": ["exact=0.5"], "policy": "fixed"},
            forked_from={"run": RUN, "seq": 3, "h": "0" * 32, "session": 1, "forked_from": None},
            shard="1/2",
            merged_from=[{"run": RUN, "shard": "1/2", "head": "0" * 32, "trials": 3, "sessions": 1}],
        ),
        every(events.SessionStarted, settings={"slots": 3}, adopted=None, definition=None),
        every(events.LimitChanged, after=2),
        every(events.PaceChanged),
        every(events.RateLimitSeen, unit="tokens", source="advertised", is_believed=False),
        *(every(events.TrialEnqueued, trial=name, case=name) for name in ("case-1", "case-2", "case-3")),
        start(1),
        every(events.Noted, name="evaljournal.quota", trial="case-1"),
        step(events.StepCompleted, 1, parent=0, continues=0),
        step(events.StepCompleted, 2, parent=1, continues=1, reusable=False),
        step(events.StepFailed, 4, parent=3, continues=2),
        every(events.AttemptFailed, trial="case-1", category="rate_limited"),
        every(events.RetryScheduled, trial="case-1", attempt=2, reason="rate_limited"),
        every(events.IntakePaused, until=5.0, reason="retry_after"),
        every(events.IntakeResumed, reason="retry_after"),
        start(2, reuses=1, spent=0.5),
        every(events.StepReused, trial="case-1", attempt=2, completed_seq=12, parent=0),
        every(
            events.StepReplayed,
            trial="case-1",
            attempt=2,
            step=7,
            parent=0,
            continues=0,
            need=None,
            reusable=False,
            usage=None,
            elapsed=0.0,
            source_run=RUN,
            source_seq=3,
            source_head="0" * 32,
        ),
        every(events.AttemptTimedOut, trial="case-1", attempt=2),
        every(events.AttemptReturnedLate, trial="case-1", attempt=2),
        every(events.RetryScheduled, trial="case-1", attempt=3, reason="timed_out"),
        start(3),
        every(events.AttemptInterrupted, trial="case-1", attempt=3, reason="stopped"),
        every(events.RunStopped, other_runs=None),
        every(events.JournalRecovered),
        every(events.SessionStarted, session=2, settings={"slots": 3}, adopted={"task": "evals/x.py:x"}),
        start(4),
        every(events.Noted, name="usage", trial="case-1", attempt=4),
        every(events.AttemptSucceeded, trial="case-1", attempt=4, output="Lima"),
        every(events.ScorerCallStarted, trial="case-1", scorer="judge", key="scorer:judge", **call),
        every(events.ScorerCallFailed, trial="case-1", scorer="judge", category="unavailable"),
        every(events.ScorerCallStarted, trial="case-1", scorer="judge", call=2, key="scorer:judge", **call),
        every(events.TrialScored, trial="case-1", scorer="judge", value=0.5),
        every(events.ScoringFailed, trial="case-1", scorer="exact"),
        every(events.TrialCompleted, trial="case-1", attempts=4),
        events.AttemptStarted(trial="case-2", attempt=1, slot=1),
        every(events.AttemptFailed, trial="case-2", category="fatal"),
        every(events.TrialFailed, trial="case-2", reason="fatal"),
        every(events.BatchPrepared, trials=["case-3"], scorer="", version=""),
        every(events.BatchSubmitted, expires="2027-01-16T08:00:00Z"),
        every(events.BatchChanged, state="expired", completed=0, expires="2027-01-16T08:00:00Z"),
        every(events.BatchCollected, state="expired", results=0, unused=0),
        every(events.TrialWithdrawn, trial="case-3"),
        events.Extension(type="x-weather", data={"sun": 1}),
        every(events.RunFinished, head=""),
        every(events.JournalSalvaged, run=RUN),
        every(events.SegmentSealed, run=RUN, sha256=""),
    ]
    first = opened(previous_h="")
    return [{**first, "previous_seq": 0, "previous_bytes": 0, "previous_sha256": ""}, *map(event_fields, run_events)]


def changed_fields() -> Iterator[tuple[int, str, str]]:
    """Yield every event and field with every value; an event type is changed once, where it is first used."""
    samples = event_samples()
    types = [fields["type"] for fields in samples]
    for name in dict.fromkeys(types):
        index = types.index(name)
        for field, value in itertools.product([*samples[index], "seq", "at", "t", "d", "blobs"], [*VALUES, "missing"]):
            yield index, field, value


def write_changed(run: Path, index: int, field: str, value: str) -> None:
    """Write the run with one field changed, and correct hashes."""
    samples = event_samples()
    if value == "missing":
        samples[index].pop(field, None)
    else:
        samples[index][field] = VALUES[value]
    forge(run, samples if index == len(samples) - 1 else samples[:-1])  # The seal of this file would be wrong.


NAMES = (
    "journal-000001.jsonl",
    "journal-000002.jsonl",
    "journal-000003.jsonl",
    "journal-999999.jsonl",
    "LOCK",
    "torn",
    "blobs",
    "blobs/XX",
    "blobs/XX/FILE",
    ".journal-000001.jsonl.new",
)
CONTENTS: dict[str, bytes | int] = {
    "nothing": b"",
    "zeros": bytes(8 << 20),
    "line feeds": b"\n" * (8 << 20),
    "starts": b'{"seq":5,"at":"\n' * (1 << 19),
    "hashes": b'{"seq":5,"at":"2026","t":0,"type":"noted","d":4,"h":"00000000000000000000000000000000"}\n' * 20_000,
    "one line": b'{"seq":5,"at":"2026","t":0,"x":' * 100_000,
    "sparse": 200 << 20,
    "50 GB": 50 << 30,
}
"""Content of a file; a number is the size of a sparse one."""
KINDS = ("removed", *SPECIAL, *CONTENTS, *(f"tail of {name}" for name in CONTENTS))


def write_replaced(run: Path, name: str, kind: str) -> None:
    """Write a run of two segments with a blob and a torn tail, and replace one of its files."""
    from tests.journal.samples import session, started, trial

    write_sync(run, [started(), session(), *trial("case-1", output=LARGE)])
    write_sync(run, [session(2), *trial("case-2")], new=False)
    (blob,) = run.glob("blobs/*/*.json")
    file = {"blobs/XX": blob.parent, "blobs/XX/FILE": blob}.get(name, run / name)
    is_tail, new_content = kind.startswith("tail of "), CONTENTS.get(kind.removeprefix("tail of "))
    if not is_tail or not file.is_file():
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
    if kind in SPECIAL:
        SPECIAL[kind](file)
    elif isinstance(new_content, int):
        with file.open("ab") as stream:
            stream.truncate(new_content)
    elif new_content is not None:
        overwrite(file, (file.read_bytes() if file.exists() else b"") + new_content)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """A process that has imported the commands."""
    server = Forks(Path(commands.__file__))
    yield server
    server.close()


def listing(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Return mode, size and modification time of everything in a directory."""
    paths = [Path(root, name) for root, subdirectories, files in os.walk(directory) for name in (*subdirectories, *files)]
    status = {str(path): path.lstat() for path in paths}
    return {name: (entry.st_mode, entry.st_size, entry.st_mtime_ns) for name, entry in status.items()}


def check(forks: Forks, directories: Mapping[Path, object], stride: int) -> Iterator[tuple[Any, dict[str, int]]]:
    """Read the run in each directory with every `stride`-th command, in one process; yield its case and the exit codes."""
    before = {}
    for directory in directories:
        for name in ("home", "out", "evals", "run"):
            (directory / name).mkdir(exist_ok=True)
        (directory / "home" / "id_rsa").write_text(SECRET)
        for canary in ("evals", "run"):
            (directory / canary / "capitals.py").write_text("raise SystemExit(99)")
        before[directory] = listing(directory / "run"), listing(directory / "home")
    child = forks.start(stride, *directories)
    code, _, err = child.end(20 * commands.SECONDS)
    unread = [case for directory, case in directories.items() if not (directory / "out" / commands.RESULTS).exists()]
    assert (0, "", []) == (code, err, unread), (unread[:1], err[-2_000:])
    for directory, case in directories.items():
        report = json.loads((directory / "out" / commands.RESULTS).read_text())
        yield case, {name.replace(str(directory), ""): number for name, (number, _) in report["results"].items()}

        assert [] == report["actions"], case
        assert report["peak_kb"] < PEAK_KB, case
        assert {} == {name: result for name, result in report["results"].items() if result[0] not in CODES}, case
        for name, (_, text) in report["results"].items():
            assert SECRET not in text, (case, name)
            if "--json" not in name:
                assert set() == controls(text), (case, name)
        assert before[directory] == (listing(directory / "run"), listing(directory / "home")), case
        shutil.rmtree(directory)


def is_invalid(index: int, field: str, value: str) -> bool:
    """Whether the changed event has a field of a wrong type."""
    fields = {**event_samples()[index], field: VALUES.get(value)}
    if value == "missing" or field in {"seq", "at", "t", "d", "blobs", "type", "format", "version"}:
        return False  # An unknown format is a usage error, and so is an unknown event.
    try:
        decode(orjson.loads(orjson.dumps(fields)))
    except (ValueError, KeyError, TypeError):
        return True
    return False


def check_all(
    forks: Forks, tmp_path: Path, cases: Sequence[Any], write: Callable[..., None], stride: int
) -> Iterator[tuple[Any, dict[str, int]]]:
    """Write the run of each case, and check several of them per process; yield each case and its exit codes."""
    for first in range(0, len(cases), BATCH):
        directories = {tmp_path / f"{number}": case for number, case in enumerate(cases[first : first + BATCH])}
        for directory, case in directories.items():
            directory.mkdir()
            write(directory / "run", *case)
        yield from check(forks, directories, stride)


def test_every_event_is_changed() -> None:
    """The sample run has every type of event of a run."""
    review_types = {TYPE_NAMES[kind] for kind in get_args(events.ReviewEvent)}

    assert (EVENT_TYPES.keys() - review_types) | {"x-weather"} == {fields["type"] for fields in event_samples()}


PARTS = [None, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in range(8))]
OUT_OF_RANGE = (
    ("attempt_succeeded", "elapsed", "huge"),
    ("retry_scheduled", "delay", "negative"),
    ("intake_paused", "until", "large"),
    ("limit_changed", "after", "large"),
    ("pace_changed", "after", "huge"),
    ("session_started", "session", "large"),
    ("step_completed", "parent", "large"),
)


@pytest.mark.parametrize("part", PARTS)
def test_changed_fields(forks: Forks, tmp_path: Path, part: int | None) -> None:
    """Every field of every event, or a sample, with values of all types: a wrong type or a number out of range is damage."""
    cases, stride = [*changed_fields()][part or 0 :: 8], 6  # With 6, every case is read by one of `readers`.
    if part is None:
        types = [fields["type"] for fields in event_samples()]
        out_of_range = [(types.index(event), field, value) for event, field, value in OUT_OF_RANGE]
        cases, stride = [*random.Random(0).sample([*changed_fields()], SAMPLE), *out_of_range], STRIDE
    readers = {"diff /run /run", *(f"{name} /run" for name in ("verify", "status", "log", "show", "watch", "replay"))}
    for case, codes in check_all(forks, tmp_path, cases, write_changed, stride):
        assert not is_invalid(*case) or {4} >= {codes[command] for command in readers & codes.keys()}, case


LARGE_FILES = [
    *(("journal-000002.jsonl", f"tail of {kind}") for kind in ("line feeds", "50 GB", "hashes")),
    ("blobs/XX/FILE", "50 GB"),
]


@pytest.mark.parametrize("part", PARTS[:2])
def test_replaced_files(forks: Forks, tmp_path: Path, part: int | None) -> None:
    """Every file, or a sample, replaced by links, special files and other content, which take neither much memory nor time."""
    cases = [*itertools.product(NAMES, KINDS)]
    checked = [(cases, 4)]
    if part is None:
        checked = [(random.Random(0).sample(cases, SAMPLE), 4), (LARGE_FILES, 12)]  # A command needs seconds for some of these.
    for some, stride in checked:
        for _ in check_all(forks, tmp_path, some, write_replaced, stride):
            pass


IDENTIFIERS = {
    "value",
    "attempt",
    "attempts",
    "session",
    "step",
    "parent",
    "continues",
    "call",
    "batch",
    "line",
    "results",
    "missing",
}


def write_extreme(run: Path, kind: str) -> None:
    """Write a run in which every number that does not identify anything is the largest or the smallest that is valid."""
    samples = event_samples()[:-1]
    for fields in samples[1:]:
        for field in fields_of(EVENT_TYPES[fields["type"]]) if fields["type"] in EVENT_TYPES else ():
            numbers = {int, float} & {field.type, *get_args(field.type)}
            if numbers and field.name not in IDENTIFIERS:
                fields[field.name] = 0 if kind == "smallest" else MAX_TIME if float in numbers else MAX_INTEGER
    forge(run, samples)


@pytest.mark.parametrize("kind", ["largest", "smallest"])
def test_extreme_numbers(forks: Forks, tmp_path: Path, kind: str) -> None:
    """Every view shows a run with numbers at their limits: views do not check what readers have checked."""
    for _, codes in check_all(forks, tmp_path, [(kind,)], write_extreme, 1):
        assert {0, 1, 3} >= {codes[f"{name} /run"] for name in ("status", "log", "show", "watch", "replay")}


def write_later_version(run: Path, kind: str) -> None:
    """Write a run with an extension; or with an event, and all reasons and categories, that only a later version has."""
    samples = event_samples()[:-1]
    samples.insert(5, {"type": "x-tariff" if kind == "known" else "tariff_changed", "trials": 3, "reason": "size"})
    for fields in samples if kind == "later" else ():
        fields.update({name: "of_a_later_version" for name in ("reason", "category") if name in fields})
    forge(run, samples)


def test_a_later_minor_version(forks: Forks, tmp_path: Path) -> None:
    """With unknown events, reasons and categories, every command and export ends as it does without them."""
    known, later = [codes for _, codes in check_all(forks, tmp_path, [("known",), ("later",)], write_later_version, 1)]

    assert known == later
    assert {0, 1, 3} >= {later[f"{name} /run"] for name in ("status", "log", "show", "watch", "replay")}
