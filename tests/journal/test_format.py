"""The published format: the page matches the code, an independent reader can read it, golden journals stay readable."""

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import attrs
import orjson
import pytest

from evaljournal.journal import Event, read, verify
from evaljournal.journal.disk import segments
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptReturnedLate,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    BatchChanged,
    BatchCollected,
    BatchPrepared,
    BatchSubmitted,
    Extension,
    FileEvent,
    IntakePaused,
    IntakeResumed,
    JournalRecovered,
    JournalSalvaged,
    LimitChanged,
    Noted,
    PaceChanged,
    RateLimitSeen,
    RetryScheduled,
    ReviewSampled,
    ReviewSaved,
    RunFinished,
    RunStopped,
    ScorerCallFailed,
    ScorerCallStarted,
    ScoringFailed,
    StepCompleted,
    StepFailed,
    StepReused,
    TrialCompleted,
    TrialFailed,
    TrialScored,
    TrialWithdrawn,
)
from evaljournal.journal.fact import evolve_fact, fields_of
from evaljournal.journal.format.codec import EVENT_TYPES, is_payload
from evaljournal.journal.format.lifecycle import END_STAGES, STAGES, TRIAL_RULES
from tests.journal import independent_reader as independent
from tests.journal.samples import (
    annotated,
    complete_run,
    content,
    enqueued,
    finished,
    review_started,
    session,
    started,
    trial,
    write_sync,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "v2"
"""A run in two sessions, three segments, with a blob."""
CALLS = GOLDEN.with_name("v2-calls")
KNOWN_LIMITS = GOLDEN.with_name("v2-limits")
"""Scorer calls and a pace."""
BATCHES = GOLDEN.with_name("v2.1-batches")
"""Batches of a task and of a judge, in two sessions; written with version 2.1, the others with 2.0."""
REVIEW = GOLDEN.with_name("v2.1-review")
"""Samples and labels of a review."""
HEAD = "ec5e445527e29fcfb5df1a0d03577211"
"""Hash of the last record of the golden journal."""

ROOT = Path(__file__).parents[2]
FROZEN = ROOT / "tests" / "golden" / "format-2.json"
"""The events and fields of version 2.0; never changed."""
PAGES = [ROOT / "docs" / "format.md"]


def diagram() -> str:
    """Return the stages of a trial as a Mermaid state diagram."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for event, row in TRIAL_RULES.items():
        for before, after in row.items():
            if event not in (AttemptReturnedLate, TrialWithdrawn):  # Legal nearly everywhere: too many arrows.
                arrows.setdefault((before, after), []).append(event.__name__)
    lines = [
        f"    {'[*]' if before == 'absent' else before} --> {after}: {' or '.join(names)}"
        for (before, after), names in arrows.items()
    ]
    ends = [f"    {stage} --> [*]" for stage in STAGES if stage in END_STAGES]
    note = "    note right of withdrawn: TrialWithdrawn, from every stage except running"
    return "\n".join(["stateDiagram-v2", *lines, note, *ends])


def events_table() -> str:
    """Return the table of all events."""
    rows = ["| type | field | value | meaning |", "|---|---|---|---|"]
    for name, kind in EVENT_TYPES.items():
        first, *_ = (kind.__doc__ or "").strip().splitlines()
        rows.append(f"| **`{name}`** | | | {first} |")
        meanings = _meanings(kind)
        rows += [f"| | {_name(field)} | {_value(field)} | {meanings.get(field.name, '')} |" for field in fields_of(kind)]
    return "\n".join(rows)


def _meanings(kind: type) -> dict[str, str]:
    """Return the docstring of each field of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    meanings = {}
    for field, text in itertools.pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            meanings[field.target.id] = " ".join(str(text.value.value).split())
    return meanings


def _name(field: "attrs.Attribute[Any]") -> str:
    default = "" if field.default is attrs.NOTHING else f" [{orjson.dumps(field.default).decode()}]"
    return f"`{field.name}`{default}"


def _value(field: "attrs.Attribute[Any]") -> str:
    if is_payload(field):
        return "any †"
    kind: Any = field.type
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is Mapping:
        return "object of text"
    if get_origin(kind) is list:
        return "list of text"
    names = {str: "text", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return " or ".join(names[part] for part in get_args(kind) or (kind,))


def generated(page: str) -> str:
    """Return the page with its generated parts replaced."""
    for mark, text in (("events", events_table()), ("diagram", f"```mermaid\n{diagram()}\n```")):
        pattern = rf"(<!-- {mark}: [^\n]*-->\n).*?(<!-- /{mark} -->)"
        escaped = text.replace("\\", r"\\")
        page = re.sub(pattern, rf"\1{escaped}\n\2", page, flags=re.DOTALL)
    return page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_pages_list_every_event_and_draw_the_lifecycle(path: Path) -> None:
    """`docs/format.md` has the events, fields, defaults and the diagram that the code has."""
    page = path.read_text()

    assert generated(page) == page
    assert "stateDiagram" in page


def golden_events() -> list[list[Event]]:
    """Return a run in two sessions with all events. The format is frozen: put new fields into a new golden journal."""
    first: list[Event] = [
        attrs.evolve(started(), shard="1/2"),  # type: ignore[misc]  # an event is an attrs class
        session(1),
        *trial("lima", {"text": "Lima ✓", "tokens": [1, 2.5, None, True]}, retries=1),
        LimitChanged(before=4, after=8, reason="growth", evidence="8 successes at 4 in flight"),
        enqueued("quito", "x" * 262_200),
        AttemptStarted(trial="quito", attempt=1, slot=1),
        Noted(name="usage", value={"tokens": 12}, trial="quito", attempt=1),
        AttemptTimedOut(trial="quito", attempt=1, timeout=30.0, elapsed=30.001),
        RetryScheduled(trial="quito", attempt=2, delay=0.75, reason="timed_out"),
        AttemptReturnedLate(trial="quito", attempt=1, outcome="succeeded", elapsed=31.5),
        IntakePaused(until=44.5, reason="Retry-After"),
        IntakeResumed(reason="Retry-After is over"),
        AttemptStarted(trial="quito", attempt=2, slot=1),
        StepCompleted(
            trial="quito",
            attempt=2,
            step=1,
            name="ask",
            kind="model",
            fingerprint="0123456789abcdef",
            input={"question": "Quito?"},
            output="Ecuador",
            elapsed=0.125,
            usage={"tokens": 7},
        ),
        StepFailed(
            trial="quito",
            attempt=2,
            step=2,
            name="look_up",
            kind="tool",
            fingerprint="fedcba9876543210",
            input={"city": "Quito"},
            error="ConnectionError",
            message="no route",
            elapsed=0.25,
        ),
        StepCompleted(
            trial="quito",
            attempt=2,
            step=4,
            name="ask",
            kind="model",
            fingerprint="00112233445566ff",
            input={"messages": ["Quito?", "Ecuador"]},
            output=None,
            elapsed=0.125,
            parent=3,
            reusable=False,
        ),
        StepCompleted(
            trial="quito",
            attempt=2,
            step=5,
            name="ask",
            kind="model",
            fingerprint="8899aabbccddeeff",
            input={"messages": ["Sure?"]},
            output=["Yes"],
            elapsed=0.125,
            continues=4,
        ),
        AttemptInterrupted(trial="quito", attempt=2, reason="worker_died", detail="signal 9", elapsed=0.5, worker="process 3"),
        Extension(type="x-weather", data={"sky": "blue"}),
        RunStopped(reason="interrupted"),
    ]
    second: list[Event] = [
        session(2),
        AttemptStarted(trial="quito", attempt=3, slot=0, reuses=2, spent=0.5, reserved={"cost": 0.25}),
        StepReused(trial="quito", attempt=3, step=1, completed_seq=24),
        AttemptFailed(trial="quito", attempt=3, error="ValueError", message="no", category="fatal", elapsed=0.1),
        TrialFailed(trial="quito", attempts=3, reason="fatal"),
        attrs.evolve(enqueued("sucre"), variant="mini"),  # type: ignore[misc]  # an event is an attrs class
        TrialWithdrawn(trial="sucre", reason="removed"),
        ScoringFailed(trial="lima", scorer="judge", version="v2", error="OSError", message="no", elapsed=0.2),
        RunFinished(completed=1, failed=1, withdrawn=1, head="0123456789abcdef0123456789abcdef"),
    ]
    return [first, second]


def scorer_call_events() -> list[Event]:
    """Return a run with scorer calls that succeed, fail and time out, and with a policy that is shared with another run."""
    call: dict[str, Any] = {"trial": "lima", "scorer": "judge", "key": "scorer:judge"}
    failed: dict[str, Any] = {"trial": "lima", "scorer": "judge", "error": "BadStatus", "elapsed": 0.5}
    *opening, scored, completed = trial("lima")
    return [
        started(),
        session(1),
        *opening,
        LimitChanged(before=0, after=16, reason="start", key="scorer:judge"),
        PaceChanged(before=None, after=4.25, reason="rate_limit", evidence="429 at 9 in flight", key="scorer:judge"),
        ScorerCallStarted(call=1, **call),
        scored,
        ScorerCallFailed(call=1, message="429", category="rate_limited", retry_after=2.0, delay=2.0, **failed),
        ScorerCallStarted(call=2, probe=True, **call),
        ScorerCallFailed(call=2, message="no answer within 0.5 s", category="timed_out", delay=0.25, **failed),
        ScorerCallStarted(call=3, **call),
        ScorerCallFailed(call=3, message="500", category="unavailable", **failed),
        ScoringFailed(trial="lima", scorer="judge", version="v1", error="BadStatus", message="500", elapsed=0.5),
        completed,
        ScorerCallStarted(trial="lima", scorer="judge", call=4),
        TrialScored(trial="lima", scorer="judge.tone", version="v2", value=1.0, elapsed=0.5),
        finished(1),
    ]


def known_limit_events() -> list[Event]:
    """Return a run with a declared and an advertised limit, and with the needs of attempts, steps and scorer calls."""
    need = {"requests": 1, "tokens": 812}
    step: dict[str, Any] = {"trial": "lima", "attempt": 1, "name": "ask", "kind": "model", "fingerprint": "0123456789abcdef"}
    enqueue, attempt, *ending = trial("lima")
    assert isinstance(attempt, AttemptStarted)
    return [
        started(),
        session(1),
        RateLimitSeen(unit="requests", size=500, window=60.0, source="declared", header="rpm"),
        enqueue,
        evolve_fact(attempt, need=need),
        RateLimitSeen(
            unit="tokens", size=200_000.0, window=60.0, source="advertised", header="x-ratelimit-limit-tokens", key="small"
        ),
        StepCompleted(step=1, output="Lima", elapsed=0.5, key="small", need=need, waited=1.25, **step),
        StepFailed(step=2, error="OSError", message="no", elapsed=0.5, key="small", need=need, waited=0.25, **step),
        RateLimitSeen(
            unit="tokens",
            size=200_000.0,
            window=60.0,
            source="advertised",
            header="x-ratelimit-limit-tokens",
            is_believed=False,
            key="small",
        ),
        *ending[:-2],
        ScorerCallStarted(trial="lima", scorer="judge", call=1, key="scorer:judge", need={"requests": 1}),
        *ending[-2:],
        finished(1),
    ]


def batch_events() -> list[list[Event]]:
    """Return a run in two sessions: a batch of the task with a result, an error and a missing line, then a batch of a judge."""
    batch: dict[str, Any] = {"model": "mini", "api": "openai", "address": "https://api.example/v1", "digest": "0" * 64}
    ids = {"account": "fedcba9876543210", "prefix": "ej-0123456789abcdef-1-"}
    failed: dict[str, Any] = {"error": "BadStatus", "message": "429", "category": "rate_limited", "elapsed": 0.0}
    score: dict[str, Any] = {"trial": "lima", "scorer": "judge", "elapsed": 0.0}
    first: list[Event] = [
        started(),
        session(1),
        *(enqueued(name) for name in ("lima", "quito", "sucre")),
        BatchPrepared(
            batch=1, trials=["sucre", "lima", "quito"], bytes=812, tokens=99, reserved={"cost": 0.75}, **batch, **ids
        ),
        BatchSubmitted(batch=1, id="batch_1", file="file_1", expires="2026-11-16T00:19:51Z"),
        BatchChanged(batch=1, state="in_progress", completed=0, failed=0, total=3),
        RunStopped(reason="batches"),
    ]
    second: list[Event] = [
        session(2),
        BatchChanged(
            batch=1, state="expired", completed=1, failed=1, total=3, expires="2026-11-16T00:20:00Z", message="window ended"
        ),
        AttemptStarted(trial="lima", attempt=1, slot=0, batch=1, line=2),
        AttemptInterrupted(trial="lima", attempt=1, reason="cancelled", elapsed=0.0),
        AttemptStarted(trial="lima", attempt=2, slot=0, batch=1, line=2),
        AttemptSucceeded(trial="lima", attempt=2, output="Peru", elapsed=0.0, usage={"cost": 0.125}),
        AttemptStarted(trial="quito", attempt=1, slot=0, batch=1, line=3),
        AttemptFailed(trial="quito", attempt=1, **failed),
        RetryScheduled(trial="quito", attempt=2, delay=0.0, reason="rate_limited"),
        BatchCollected(batch=1, state="expired", results=2, missing=1, unused=1, message="window ended"),
        BatchPrepared(batch=2, trials=["lima"], scorer="judge", bytes=99, tokens=9, **batch, **ids),
        BatchSubmitted(batch=2, id="batch_2"),
        ScorerCallStarted(trial="lima", scorer="judge", call=1, batch=2, line=1),
        TrialScored(version="v1", value=True, **score),
        BatchCollected(batch=2, state="completed", results=1, missing=0),
        TrialCompleted(trial="lima", attempts=2),
        BatchPrepared(batch=3, trials=["quito", "sucre"], bytes=500, tokens=66, **batch, **ids),
        BatchCollected(batch=3, state="not_sent", results=0, missing=2),
        RunStopped(reason="interrupted"),
    ]
    return [first, second]


def review_events() -> list[Event]:
    """Return a review with a sample, labels of all types, and one that replaces another."""
    drawn: dict[str, Any] = {
        "method": "stratified",
        "n": 3,
        "seed": 7,
        "head": "fedcba9876543210fedcba9876543210",
        "population": 12,
    }
    return [
        review_started(),
        annotated("lima", note="chosen, not drawn"),
        ReviewSampled(sample=1, name="exact", **drawn, trials={"quito": 0.25, "lima": 1.0, "sucre": 0.25}),
        annotated("quito", value=False, sample=1, is_blind=True),
        annotated("quito", value=True, sample=1, replaces=5),
        annotated("lima", value=4.5, name="fluency", reviewer="grace"),
        annotated("sucre", value="unclear ✓", carried_from="fedcba9876543210fedcba9876543210"),
        ReviewSaved(labels=5),
    ]


def write_golden(path: Path) -> None:
    """Write the golden journal: sealed files, a blob, two sessions."""
    for number, events in enumerate(golden_events()):
        write_sync(path, events, new=number == 0, roll_at=4000)


def test_the_golden_journal_stays_readable() -> None:
    """The golden journal of version 2 is read as it was written, and verifies."""
    events = [record.event for record in read(GOLDEN) if not isinstance(record.event, FileEvent)]

    assert list(itertools.chain.from_iterable(golden_events())) == events
    assert HEAD == verify(GOLDEN, expect_head=HEAD).head
    assert verify(GOLDEN).ok


def test_golden_journals_contain_every_event_type() -> None:
    """The golden journals contain every event except those of recovery and salvage."""
    kinds = {type(record.event) for path in (GOLDEN, CALLS, KNOWN_LIMITS, BATCHES, REVIEW) for record in read(path)}

    assert {JournalRecovered, JournalSalvaged} == set(get_args(Event)) - kinds


def test_the_same_events_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same events give the bytes of the golden journal, except for the minor version."""
    monkeypatch.setattr(segments, "VERSION", "2.0")
    write_golden(tmp_path / "run")

    assert content(GOLDEN) == {name: data for name, data in content(tmp_path / "run").items() if name != "LOCK"}


@pytest.mark.parametrize(
    ("golden", "events"), [(CALLS, scorer_call_events()), (KNOWN_LIMITS, known_limit_events())], ids=["calls", "limits"]
)
def test_other_runs_give_the_same_bytes(
    golden: Path, events: list[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scorer calls and known limits give the bytes of their golden journals, and are read back."""
    monkeypatch.setattr(segments, "VERSION", "2.0")
    write_sync(tmp_path / "run", events)

    assert content(golden) == {name: data for name, data in content(tmp_path / "run").items() if name != "LOCK"}
    assert events == [record.event for record in read(golden) if not isinstance(record.event, FileEvent)]
    assert verify(golden).ok


def test_batches_give_the_same_bytes(tmp_path: Path) -> None:
    """Batches give the bytes of their golden journal, in two sessions, and are read back."""
    for number, events in enumerate(batch_events()):
        write_sync(tmp_path / "run", events, new=number == 0)

    assert content(BATCHES) == {name: data for name, data in content(tmp_path / "run").items() if name != "LOCK"}
    assert list(itertools.chain.from_iterable(batch_events())) == [
        record.event for record in read(BATCHES) if not isinstance(record.event, FileEvent)
    ]
    assert verify(BATCHES).ok


def test_the_same_review_gives_the_same_bytes(tmp_path: Path) -> None:
    """A review, written in two parts, gives the bytes of its golden journal, and is read back."""
    write_sync(tmp_path / "run", review_events()[:3], seal=False)
    write_sync(tmp_path / "run", review_events()[3:], new=False, seal=False)

    assert content(REVIEW) == {name: data for name, data in content(tmp_path / "run").items() if name != "LOCK"}
    assert review_events() == [record.event for record in read(REVIEW) if not isinstance(record.event, FileEvent)]
    assert verify(REVIEW).ok


def test_independent_reader_reads_a_journal(tmp_path: Path) -> None:
    """A reader written from the page alone reads a journal with several segments, sessions and blobs."""
    write_sync(tmp_path / "run", [*complete_run(5)[:-1], Noted(name="long", value=["x" * 300_000])], roll_at=2000)
    write_sync(tmp_path / "run", [session(2), finished(5)], new=False)

    assert [record.h for record in read(tmp_path / "run")] == [line["h"] for line in independent.read(tmp_path / "run")]
    assert ["x" * 300_000] == next(line["value"] for line in independent.read(tmp_path / "run") if line["type"] == "noted")
    assert len(list(read(GOLDEN))) == len(independent.read(GOLDEN))


def format_description() -> dict[str, dict[str, list[str]]]:
    """Return event type → field → its kind of value and its default."""
    return {
        name: {field.name: [_value(field), _name(field)] for field in fields_of(kind)}
        for name, kind in EVENT_TYPES.items()
        if not name.startswith("x-")
    }


def test_version_2_is_frozen() -> None:
    """Fields with a default, events that change no stage, and reasons may be added. Any other change needs version 3."""
    frozen: dict[str, dict[str, list[str]]] = orjson.loads(FROZEN.read_bytes())
    current = format_description()
    assert current["run_stopped"]["reason"][0].startswith(frozen["run_stopped"]["reason"][0])
    current["run_stopped"]["reason"] = frozen["run_stopped"]["reason"]

    assert frozen == {name: {field: current[name].get(field) for field in fields} for name, fields in frozen.items()}
    assert frozen.keys() <= current.keys()
    assert all("[" in default for name in frozen for field, (_, default) in current[name].items() if field not in frozen[name])


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(generated(page.read_text()))
