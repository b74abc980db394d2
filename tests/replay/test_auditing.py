"""The audit: runs of the engine pass, and each rule detects its violations."""

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from journal import Event, Record, blobs, read, salvage, verify, writing
from journal.errors import DiskFull
from journal.events import (
    AttemptEnd,
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    FileEvent,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    PaceChanged,
    RetryScheduled,
    RunFinished,
    RunStarted,
    RunStopped,
    SessionStarted,
    TrialCompleted,
    TrialFailed,
    TrialScored,
)
from journal.fact import fields_of
from replay import fold
from replay.audit_types import Audit, Finding
from replay.auditing import Auditor, audit
from replay.decision_rules import TIME_TOLERANCE
from replay.findings import MAX_FINDINGS
from runner import Case, Fatal, RateLimited, Retry
from runner.api import arun
from runner.concurrency.fixed import Fixed
from runner.fork import fork
from runner.recompute.rules import session_rules
from runner.recompute.verification import verify as verify_run
from runner.testing import Action, Fail, Hang, Return, Scripted, SimulatedEndpoint, deterministic_options, inline
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import RUN, enqueued, examples, forge, opened, overwrite, session, started, write_sync
from tests.journal.test_format import GOLDEN
from tests.runs import PATH, define, flaky_evaluation, numbered_cases, run_until_power_failure


def run_virtually(main: Callable[[], Any]) -> Any:
    """Run an async function on a virtual clock."""
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def audit_of(disk: SimulatedDisk) -> Audit:
    """Return the audit of an intact journal on a simulated disk."""
    assert verify(PATH, files=disk).ok
    return audit(read(PATH, files=disk), rules=session_rules)


class UnreliableTask:
    """A task that is rate limited, unavailable, slow, hung or right, depending on the input and the time."""

    __name__ = "difficult"

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def __call__(self, value: str) -> str:
        self.calls[value] += 1
        times, number = self.calls[value], random.Random(value).random()
        await trio.sleep(0.05 + number / 2)
        if times == 1 and number < 0.05:
            await trio.sleep_forever()
        if times == 1 and number < 0.15:
            raise RateLimited(1.25)
        if number > 0.95:
            raise Fatal("never")
        if 2 < trio.current_time() < 5:
            raise ConnectionError("unavailable")
        return value


@functools.cache
def records_of_run(policy: str = "adaptive", slots: int = 24) -> tuple[Record, ...]:
    """Return the records of a run of the difficult task."""
    evaluation = define(UnreliableTask(), numbered_cases(150), slots=slots, timeout=4)

    @evaluation.score
    async def right(output: str, case: Any) -> bool:
        await trio.sleep(0.01)
        return True

    disk = SimulatedDisk()
    run_virtually(functools.partial(arun, evaluation, PATH, **deterministic_options(7), files=disk, policy=policy))
    return tuple(record for record in read(PATH, files=disk) if not isinstance(record.event, FileEvent))


TimedEvent = tuple[float, Event]
"""The `t` of an event, and the event."""


def rewrite(events: Iterable[TimedEvent]) -> list[Record]:
    """Write the events to a new journal with correct hashes and head, so that only the rules can fail."""
    disk, now = SimulatedDisk(), 0.0

    async def main() -> None:
        nonlocal now
        async with writing(PATH, new=True, clock=lambda: ("now", now), files=disk, in_thread=inline, run=RUN) as journal:
            for t, event in events:
                now = t
                is_true = isinstance(event, RunFinished) and event.head in heads
                journal.append(attrs.evolve(event, head=journal.head) if is_true else event)  # type: ignore[misc]

    heads = {record.h for record in records_of_run("adaptive")} | {record.h for record in records_of_run("aimd")}
    trio.run(main)
    assert verify(PATH, files=disk).ok
    return list(read(PATH, files=disk))


def recorded_events(policy: str = "adaptive") -> list[TimedEvent]:
    return [(record.t, record.event) for record in records_of_run(policy)]


def index_of(events: list[TimedEvent], kind: type, n: int = 0, **fields: Any) -> int:
    """Return the index of the n-th event of a type with these fields."""
    fits = [
        index
        for index, (_, event) in enumerate(events)
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
    ]
    return fits[n]


def change_event(events: list[TimedEvent], index: int, **fields: Any) -> list[TimedEvent]:
    """Replace fields of one event."""
    t, event = events[index]
    return [*events[:index], (t, attrs.evolve(event, **fields)), *events[index + 1 :]]  # type: ignore[misc]  # a fact is an attrs class


def end_of(events: list[TimedEvent], trial: str, attempt: int) -> int:
    outcomes = AttemptSucceeded | AttemptFailed | AttemptTimedOut
    return next(
        index
        for index, (_, event) in enumerate(events)
        if isinstance(event, outcomes) and (event.trial, event.attempt) == (trial, attempt)
    )


@pytest.mark.parametrize("policy", ["adaptive", "aimd", "fixed"])
def test_every_prefix_passes(policy: str) -> None:
    """Under every policy, a difficult run passes the audit after each of its records."""
    auditor = Auditor(session_rules)
    for record in records_of_run(policy):
        auditor.apply(record)
        assert auditor.result().ok

    result = auditor.result()
    kinds = {type(record.event) for record in records_of_run(policy)}
    assert {LimitChanged, IntakePaused, IntakeResumed, RetryScheduled, TrialFailed, AttemptTimedOut} <= kinds
    decided = LimitChanged | PaceChanged | IntakePaused | IntakeResumed | RetryScheduled | TrialFailed
    assert sum(isinstance(record.event, decided) for record in records_of_run(policy)) == result.decisions_reproduced
    assert () == result.notes
    assert (150, 150) == (result.totals.enqueued, result.totals.completed + result.totals.failed)


STEPS = st.one_of(
    st.builds(Return, st.just("yes"), st.sampled_from([0.0, 0.1, 3.0])),
    st.builds(
        Fail,
        st.sampled_from([ConnectionError("c"), ValueError("v"), RateLimited(1.5), RateLimited(), Fatal("f")]),
        st.sampled_from([0.0, 0.1, 1 / 3]),
    ),
    st.just(Hang()),
)


@examples(40)
@given(
    scripts=st.lists(st.lists(STEPS, min_size=1, max_size=4), min_size=1, max_size=15),
    slots=st.integers(1, 5),
    policies=st.tuples(*[st.sampled_from(["adaptive", "aimd", "fixed"])] * 2),
    stop=st.floats(0, 30),
    seed=st.integers(0, 2**31),
)
def test_every_run_passes(scripts: list[list[Action]], slots: int, policies: tuple[str, str], stop: float, seed: int) -> None:
    """Any script of tasks passes, stopped at any time and resumed with another policy and other slots."""
    task = Scripted({f"case-{number}": steps for number, steps in enumerate(scripts)})
    evaluation = define(task, numbered_cases(len(scripts)), slots=slots, timeout=2, retry=Retry(rate_limits=20))
    disk = SimulatedDisk()
    options = {**deterministic_options(seed), "files": disk, "grace": 0.5}
    run_virtually(lambda: arun(evaluation, PATH, **options, policy=policies[0], deadline=stop + 0.001))
    run_virtually(lambda: arun(evaluation, PATH, **options, resume=True, policy=policies[1], slots=slots + 1, deadline=None))

    result = audit_of(disk)
    assert ((), ()) == (result.findings, result.notes)
    assert len(scripts) == result.totals.completed + result.totals.failed


@pytest.mark.parametrize("seq", range(3, 120, 9))
def test_runs_after_power_failures_pass(seq: int) -> None:
    """A run with three power failures, resumed each time, passes."""
    evaluation, _ = flaky_evaluation(12)
    disk = SimulatedDisk()
    run_until_power_failure(evaluation, disk, seq)
    for crash in (1, 2, 3):
        disk = disk.after_power_failure(random.Random(seq * 10 + crash))
        is_there = disk.is_directory(str(PATH)) and any(name.startswith("journal-") for name in disk.list_directory(str(PATH)))
        if is_there:
            assert () == audit_of(disk).findings
        run_until_power_failure(evaluation, disk, seq + 30 * crash if crash < 3 else 10**9, resume=is_there)

    result = audit_of(disk)
    assert ((), ()) == (result.findings, result.notes)
    assert 12 == result.totals.completed + result.totals.failed


def test_run_on_a_full_disk_passes() -> None:
    """Decisions that could not be written because the disk was full are not missing."""
    full = 0
    for writes in range(3, 60, 3):
        evaluation, _ = flaky_evaluation(12)
        disk, remaining = SimulatedDisk(), [writes]

        def before(call: str, remaining: list[int] = remaining) -> int | None:
            remaining[0] -= call == "write"
            if call == "write" and remaining[0] == 0:
                raise OSError(28, "no space")
            return None

        disk.on_call = before
        try:
            outcome = run_virtually(functools.partial(arun, evaluation, PATH, **deterministic_options(), files=disk))
        except DiskFull:
            continue
        full += outcome.stopped == "disk_full"
        disk.on_call = lambda _: None
        assert () == audit_of(disk).findings

    assert full > 3


def test_abandoned_attempt_is_a_signal() -> None:
    """An attempt abandoned at a stop is recorded as interrupted, and is a signal to the policy."""

    async def stubborn(_: Any) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    disk = SimulatedDisk()
    evaluation = define(stubborn, numbered_cases(3), slots=2, timeout=None, deadline=5)
    run_virtually(lambda: arun(evaluation, PATH, **deterministic_options(), files=disk, grace=1))

    assert any(isinstance(record.event, AttemptInterrupted) for record in read(PATH, files=disk))
    assert ((), ()) == (audit_of(disk).findings, audit_of(disk).notes)


@pytest.mark.parametrize("policy", ["adaptive", "aimd", "fixed"])
def test_each_key_has_its_own_policy(policy: str) -> None:
    """Each rate-limit key has its own limits, pauses and decisions, in every session."""
    endpoints = {
        "a": SimulatedEndpoint(lambda _: 1, latency=0.5, rate=2, burst=2, retry_after=1.5),
        "b": SimulatedEndpoint(lambda _: 1, latency=0.2),
    }

    async def ask(value: Any) -> Any:
        return await endpoints[value["model"]](value)

    evaluation = define(ask, [Case(name=f"{key}{n}", input={"model": key}) for n in range(30) for key in "ab"], slots=4)
    disk = SimulatedDisk()
    options = {**deterministic_options(), "files": disk, "policy": policy, "limit_key": "model"}
    run_virtually(functools.partial(arun, evaluation, PATH, **options, deadline=5.0, grace=0))
    run_virtually(functools.partial(arun, evaluation, PATH, **options, resume=True, deadline=None))
    result = audit_of(disk)
    records = list(read(PATH, files=disk))
    swapped = [
        record._replace(event=attrs.evolve(record.event, key="b"))  # type: ignore[misc]  # a fact is an attrs class
        if isinstance(record.event, AttemptStarted)
        else record
        for record in records
    ]

    assert ((), ()) == (result.findings, result.notes)
    assert {"a", "b"} == {record.event.key for record in records if isinstance(record.event, LimitChanged)}
    assert result.decisions_reproduced > 10
    assert {"limit", "policy"} & {finding.check for finding in audit(swapped, rules=session_rules).findings}


def test_a_stop_for_the_same_error_is_recomputed() -> None:
    """A stop without twenty equal failures is a finding, and so is an attempt after them."""
    disk = SimulatedDisk()
    evaluation = define(Scripted(lambda *_: Fail(Fatal("no"), 1)), numbered_cases(60), slots=4)
    run_virtually(functools.partial(arun, evaluation, PATH, **deterministic_options(), files=disk))
    records = list(read(PATH, files=disk))

    def with_changed(kind: type, **fields: Any) -> Audit:
        index = next(index for index, record in enumerate(records) if isinstance(record.event, kind))
        event: Any = records[index].event
        changed_record = records[index]._replace(event=attrs.evolve(event, **fields))
        return audit([*records[:index], changed_record, *records[index + 1 :]], rules=session_rules)

    result, settings = audit_of(disk), {**fold(records).settings, "stop_on_same_error": 10}
    decided = LimitChanged | PaceChanged | IntakePaused | IntakeResumed | TrialFailed | RunStopped
    assert ((), ()) == (result.findings, result.notes)
    assert sum(isinstance(record.event, decided) for record in records) == result.decisions_reproduced
    for kind, fields in ((AttemptFailed, {"location": "elsewhere.py:1"}), (RunStarted, {"settings": settings})):
        assert {"stop"} == {finding.check for finding in with_changed(kind, **fields).findings}


def test_cancelled_runs_pass() -> None:
    """Attempts that end because their run was cancelled are not signals to the policy."""
    disk = SimulatedDisk()
    evaluation = define(UnreliableTask(), numbered_cases(60), slots=24, timeout=4)

    async def main() -> None:
        for seconds in (1.0, 2.9, 6.0):
            with trio.move_on_after(seconds):
                await arun(evaluation, PATH, **deterministic_options(), files=disk, resume=seconds > 1)
        await arun(evaluation, PATH, **deterministic_options(), files=disk, resume=True)

    run_virtually(main)
    result = audit_of(disk)
    causes = [record.event.reason for record in read(PATH, files=disk) if isinstance(record.event, AttemptInterrupted)]

    assert ((), ()) == (result.findings, result.notes)
    assert causes.count("cancelled") > 3


Change = Callable[[list[TimedEvent]], list[TimedEvent]]


def in_an_occupied_slot(events: list[TimedEvent]) -> list[TimedEvent]:
    """Move one of the last attempts to an occupied slot; no later start depends on it."""
    last = index_of(events, AttemptStarted, -3)
    held: dict[str, int] = {}
    for _, event in events[:last]:
        if isinstance(event, AttemptStarted):
            held[event.trial] = event.slot
        elif isinstance(event, AttemptEnd):
            held.pop(event.trial, None)
    return change_event(events, last, slot=next(iter(held.values())))


def shorter_elapsed(events: list[TimedEvent]) -> list[TimedEvent]:
    """Shorten the last attempt whose duration an earlier record contradicts; no decision follows it."""
    for index in range(len(events) - 1, 0, -1):
        t, event = events[index]
        if isinstance(event, AttemptSucceeded) and events[index - 1][0] - (t - event.elapsed) > 0.02:
            return change_event(events, index, elapsed=0.01)
    raise AssertionError("no attempt can be shortened")


def changing(kind: type, n: int = 0, *, values: Mapping[str, Any] | None = None, **fields: Any) -> Change:
    """Replace fields of the n-th event of a type, of those with these values."""
    return lambda events: change_event(events, index_of(events, kind, n, **(values or {})), **fields)


def removing(kind: type, n: int = 0) -> Change:
    """Remove the n-th event of a type."""
    return lambda events: [*events[: (index := index_of(events, kind, n))], *events[index + 1 :]]


def doubling(kind: type, n: int = 0) -> Change:
    """Write the n-th event of a type twice."""
    return lambda events: [*events[: (index := index_of(events, kind, n))], events[index], *events[index:]]


CHANGES: dict[str, tuple[str, Change]] = {
    "occupied slot": ("slots", in_an_occupied_slot),
    "slot above the limit": ("slots", changing(AttemptStarted, 3, slot=24)),
    "negative slot": ("slots", changing(AttemptStarted, 3, slot=-1)),
    "limit below the attempts in flight": ("limit", changing(LimitChanged, after=1)),
    "limit above the slots": ("limit", changing(LimitChanged, after=25)),
    "limit of 0": ("limit", changing(LimitChanged, -1, after=0)),
    "wrong previous limit": ("limit", changing(LimitChanged, 2, before=3)),
    "start during a pause": ("intake", changing(IntakePaused, values={"reason": "unavailable"}, until=1000.0)),
    "end of no pause": ("intake", doubling(IntakeResumed)),
    "early retry": ("delay", changing(RetryScheduled, delay=1000.0)),
    "shorter attempt": ("elapsed", shorter_elapsed),
    "longer attempt": ("elapsed", changing(AttemptSucceeded, elapsed=3.0)),
    "negative duration": ("elapsed", changing(AttemptFailed, elapsed=-1.0)),
    "other timeout": ("elapsed", changing(AttemptTimedOut, timeout=3.5)),
    "early timeout": ("elapsed", changing(AttemptTimedOut, timeout=5.0)),
    "longer scorer call": ("elapsed", changing(TrialScored, -1, elapsed=500.0)),
    "time goes back": ("time", lambda events: [*events[:9], (events[9][0] - 5, events[9][1]), *events[10:]]),
    "wrong number completed": ("totals", changing(RunFinished, completed=3)),
    "wrong number failed": ("totals", changing(RunFinished, failed=0)),
    "wrong number withdrawn": ("totals", changing(RunFinished, withdrawn=1)),
    "wrong head": ("totals", changing(RunFinished, head="0" * 32)),
    "missing initial limit": ("policy", removing(LimitChanged)),
    "other initial limit": ("policy", changing(LimitChanged, reason="climbing")),
    "missing limit": ("policy", removing(LimitChanged, 1)),
    "missing pause": ("policy", removing(IntakePaused)),
    "repeated pause": ("policy", doubling(IntakePaused, -1)),
    "other evidence": ("policy", changing(IntakePaused, evidence="because")),
    "other category": ("policy", changing(AttemptFailed, values={"category": "unavailable"}, category="error")),
    "other delay": ("retry", changing(RetryScheduled, delay=0.0)),
    "other cause of a retry": ("retry", changing(RetryScheduled, reason="requested")),
    "other cause of a failure": ("retry", changing(TrialFailed, reason="exhausted")),
    "unserializable": ("retry", changing(TrialFailed, reason="unserializable")),
}


@pytest.mark.parametrize(("check", "change"), CHANGES.values(), ids=CHANGES.keys())
def test_each_rule_detects_violations(check: str, change: Change) -> None:
    """A violation in a journal with correct hashes is a finding of its rule."""
    result = audit(rewrite(change(recorded_events())), rules=session_rules)

    assert check in {finding.check for finding in result.findings}


@pytest.mark.parametrize(
    "name",
    [
        "occupied slot",
        "slot above the limit",
        "shorter attempt",
        "longer scorer call",
        "wrong number completed",
        "wrong head",
        "other evidence",
        "other cause of a retry",
        "other cause of a failure",
    ],
)
def test_one_change_is_one_finding(name: str) -> None:
    """A change that nothing else depends on is one finding, at its own record."""
    check, change = CHANGES[name]
    events = change(recorded_events())
    index = next(index for index, (new, old) in enumerate(zip(events, recorded_events(), strict=True)) if new != old)
    records = rewrite(events)
    result = audit(records, rules=session_rules)

    event_records = [record for record in records if not isinstance(record.event, FileEvent)]
    assert [(event_records[index].seq, check)] == [(finding.seq, finding.check) for finding in result.findings]


def test_audit_without_rules() -> None:
    """Without `rules`, slots, times, delays and totals are still checked."""
    events = changing(RetryScheduled, delay=1000.0)(recorded_events())

    assert {"delay"} == {finding.check for finding in audit(rewrite(events)).findings}
    assert audit(rewrite(recorded_events())).ok


def test_one_policy_finding_per_session() -> None:
    """After the first decision that differs, the later ones of its session are not compared."""
    events = removing(LimitChanged, 1)(recorded_events())
    result = audit(rewrite(events), rules=session_rules)

    assert 1 == sum(finding.check == "policy" for finding in result.findings)
    assert any("decisions of session 1 after record" in note for note in result.notes)


def with_settings(events: list[TimedEvent], **settings: Any) -> list[TimedEvent]:
    index = index_of(events, RunStarted)
    run_started: Any = events[index][1]
    return change_event(events, index, settings={**run_started.settings, **settings})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"policy": "bold"}, "decisions of session 1 were not recomputed: policy 'bold' is not a built-in policy"),
        ({"policy": None}, "decisions of session 1 were not recomputed: the journal does not record the policy and the seed"),
        ({"seed": "seven"}, "decisions of session 1 were not recomputed: the journal does not record the policy and the seed"),
        (
            {"slots": 0},
            "decisions of session 1 were not recomputed: invalid settings (a policy needs at least one slot, not 0)",
        ),
        ({"retry": [1]}, "decisions of session 1 were not recomputed: invalid settings"),
    ],
)
def test_unknown_policy_is_a_note(settings: dict[str, Any], text: str) -> None:
    """Decisions that cannot be recomputed are a note, not a finding."""
    result = audit(rewrite(with_settings(recorded_events(), **settings)), rules=session_rules)

    assert set() == {finding.check for finding in result.findings} & {"policy", "retry"}
    assert any(note.startswith(text) for note in result.notes)
    assert 0 == result.decisions_reproduced


def test_custom_policy_is_a_note() -> None:
    """A run with a custom policy has a note, and is checked by all other rules."""

    class Careful(Fixed):
        """One at a time, whatever was allowed."""

        def __init__(self, slots: int) -> None:
            super().__init__(min(slots, 1))

    disk = SimulatedDisk()
    evaluation = define(Scripted(lambda *_: Return(1, 1)), numbered_cases(4), slots=3)
    run_virtually(functools.partial(arun, evaluation, PATH, **deterministic_options(), files=disk, limits=Careful))
    result = audit_of(disk)

    assert () == result.findings
    assert result.notes[0].startswith("decisions of session 1 were not recomputed: policy ")
    assert result.notes[0].endswith("Careful' is not a built-in policy")


def test_other_release_is_a_note() -> None:
    """A decision that differs is a note if another release started the run."""
    events = changing(IntakePaused, evidence="because")(recorded_events())
    events = changing(RunStarted, environment={"evaljournal": "0.0.1"})(events)
    result = audit(rewrite(events), rules=session_rules)

    assert () == result.findings
    assert any("the run was started by evaljournal 0.0.1" in note for note in result.notes)


def test_settings_of_a_session() -> None:
    """Rules are built from the settings of the session."""
    events = changing(SessionStarted, settings={"policy": "aimd"})(recorded_events())
    result = audit(rewrite(events), rules=session_rules)

    assert ["policy"] == [finding.check for finding in result.findings if finding.check == "policy"]


def test_illegal_record_ends_the_audit(tmp_path: Path) -> None:
    """An illegal record is a finding, and nothing after it is checked."""
    path = forge(
        tmp_path, [opened(), started(), session(), enqueued("a"), TrialCompleted(trial="a", attempts=0), enqueued("a")]
    )
    result = audit(read(path), rules=session_rules)

    assert [(5, "lifecycle")] == [(finding.seq, finding.check) for finding in result.findings]
    assert "nothing after record 5 was checked" in result.notes


def test_totals_are_counted_twice() -> None:
    """Enqueued trials must equal the sum of completed, failed, withdrawn and open ones."""
    auditor = Auditor()
    for record in records_of_run("adaptive"):
        auditor.apply(record)
    auditor._lifecycle.open += 1

    finding = Finding(records_of_run("adaptive")[-1].seq, "totals", "150 trials enqueued, but 151 accounted for")
    assert (finding,) == auditor.result().findings


def test_findings_are_limited() -> None:
    """Findings above the maximum are only counted."""
    events = changing(TrialScored, elapsed=1e9)(recorded_events())
    index = index_of(events, TrialScored)
    result = audit(rewrite([*events[:index], *[events[index]] * 250, *events[index:]]))

    assert (MAX_FINDINGS, 251) == (len(result.findings), len(result.findings) + result.findings_omitted)


NUMBERS = st.sampled_from([0, -1, 1, 10**18, -(10**18), 1e300, -1e300, 1e-300, 5e-324, 0.1, 3])


@examples(60)
@given(choices=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10), NUMBERS), min_size=1, max_size=5))
def test_any_number(choices: list[tuple[int, int, float]]) -> None:
    """Any numbers in the records can be audited."""
    events = recorded_events()
    for place, field, number in choices:
        index = place % len(events)
        t, event = events[index]
        kinds = {field.name: field.type for field in fields_of(type(event))}
        names = [name for name, kind in kinds.items() if "float" in str(kind) or kind is int]
        if names:
            name = names[field % len(names)]
            value = int(number) if kinds[name] is int else float(number)
            events[index] = (t, attrs.evolve(event, **{name: value}))  # type: ignore[misc]
    records = [record._replace(t=t, event=event) for record, (t, event) in zip(records_of_run("adaptive"), events, strict=True)]

    assert isinstance(audit(records, rules=session_rules), Audit)


async def test_salvaged_journal(tmp_path: Path) -> None:
    """Salvaged records have gaps and are not checked against each other; later sessions are."""
    evaluation, _ = flaky_evaluation(12)
    await arun(evaluation, tmp_path / "run", **deterministic_options())
    file = tmp_path / "run" / "journal-000001.jsonl"
    file.chmod(0o600)
    lines = file.read_bytes().splitlines(keepends=True)
    middle = next(index for index, line in enumerate(lines) if index > len(lines) // 2 and b"attempt_succeeded" in line)
    lines[middle] = lines[middle].replace(b'"t":', b'"t":1')
    file.write_bytes(b"".join(lines))
    await salvage(tmp_path / "run", tmp_path / "new")
    salvaged = audit(read(tmp_path / "new"), rules=session_rules)
    await arun(evaluation, tmp_path / "new", **deterministic_options(), resume=True)
    resumed = audit(read(tmp_path / "new"), rules=session_rules)

    assert (True, True) == (salvaged.ok, resumed.ok)
    assert any("salvaged from a damaged journal" in note for note in salvaged.notes)
    assert resumed.decisions_reproduced > salvaged.decisions_reproduced


async def test_forks_pass(tmp_path: Path) -> None:
    """A run forked between an event and its decision passes, and so does its continuation."""
    await arun(define(UnreliableTask(), numbered_cases(60), slots=24, timeout=4), tmp_path / "run", **deterministic_options())
    records = list(read(tmp_path / "run"))
    decisions = [record.seq for record in records if isinstance(record.event, LimitChanged | IntakePaused | IntakeResumed)]
    for seq in decisions[::3]:
        await fork(tmp_path / "run", tmp_path / str(seq), seq - 1, in_thread=inline)

        assert () == audit(read(tmp_path / str(seq)), rules=session_rules).findings
    last = tmp_path / str(decisions[::3][-1])
    await arun(define(UnreliableTask(), numbered_cases(60), slots=24, timeout=4), last, **deterministic_options(), resume=True)
    resumed = audit(read(last), rules=session_rules)
    assert ((), 0) == (resumed.findings, resumed.totals.open)


def test_golden_run_passes() -> None:
    """The golden run still passes, with every decision reproduced."""
    result = audit(read(GOLDEN.parent / "run-v1"), rules=session_rules)

    assert ((), ()) == (result.findings, result.notes)
    assert result.decisions_reproduced > 10


def test_handwritten_journal() -> None:
    """The golden journal was written by hand, so its hashes are correct, but not its times and head."""
    result = audit(read(GOLDEN), rules=session_rules)

    assert verify(GOLDEN).ok
    assert {"elapsed", "delay", "limit", "totals", "budget", "retry"} == {finding.check for finding in result.findings}
    assert (3, 1, 1, 1, 0) == attrs.astuple(result.totals)


def test_time_tolerance() -> None:
    """Times may differ by their rounding, and not by more."""
    events, index = recorded_events(), index_of(recorded_events(), AttemptSucceeded)
    elapsed: Any = events[index][1]

    assert audit(rewrite(change_event(events, index, elapsed=elapsed.elapsed + TIME_TOLERANCE / 2))).ok
    assert not audit(rewrite(change_event(events, index, elapsed=elapsed.elapsed + TIME_TOLERANCE * 3))).ok


def test_missing_decision_on_a_full_disk() -> None:
    """The last decision may be missing after a full disk, but not after another stop."""
    index = index_of(recorded_events(), LimitChanged, 2)
    events = recorded_events()[:index]
    full = audit(rewrite([*events, (events[-1][0], RunStopped(reason="disk_full"))]), rules=session_rules)
    stopped = audit(rewrite([*events, (events[-1][0], RunStopped(reason="interrupted"))]), rules=session_rules)

    assert () == full.findings
    assert ["policy"] == [finding.check for finding in stopped.findings]


def test_smallest_run_passes() -> None:
    """A run of one trial in one slot passes."""
    disk = SimulatedDisk()
    evaluation = define(Scripted({"a": [Return(1)]}), [Case(name="a", input="a")], slots=1)
    run_virtually(lambda: arun(evaluation, PATH, **deterministic_options(), files=disk))

    assert (True, 1) == (audit_of(disk).ok, audit_of(disk).totals.completed)


class LimitedEndpoint:
    """An endpoint that accepts five calls per second."""

    __name__ = "limited"

    def __init__(self) -> None:
        self.tokens, self.filled = 5.0, 0.0

    async def __call__(self, value: str) -> str:
        now = trio.current_time()
        self.tokens, self.filled = min(5.0, self.tokens + 5 * (now - self.filled)), now
        granted = self.tokens >= 1
        self.tokens -= granted
        await trio.sleep(0.2 if granted else 0.05)
        if not granted:
            raise RateLimited(1.0)
        return value


def test_start_ahead_of_its_pace() -> None:
    """An attempt that starts ahead of its pace is a finding."""
    disk = SimulatedDisk()
    run_virtually(
        functools.partial(
            arun, define(LimitedEndpoint(), numbered_cases(150), slots=24), PATH, **deterministic_options(7), files=disk
        )
    )
    events: list[TimedEvent] = [
        (record.t, record.event) for record in read(PATH, files=disk) if not isinstance(record.event, FileEvent)
    ]
    paced = index_of(events, PaceChanged)
    index = next(
        index
        for index, (t, event) in enumerate(events)
        if index > paced + 100 and isinstance(event, AttemptStarted) and event.attempt == 1 and t - events[index - 1][0] > 0.02
    )
    (t, event), earlier = events[index], events[index - 1][0]
    assert isinstance(event, AttemptStarted)
    end = end_of(events, event.trial, event.attempt)
    outcome: Any = events[end][1]
    events = change_event(
        [*events[:index], (earlier, event), *events[index + 1 :]], end, elapsed=round(outcome.elapsed + t - earlier, 6)
    )

    result = audit(rewrite(events), rules=session_rules)
    assert "policy" in {finding.check for finding in result.findings}


def test_an_audit_ends_before_a_damaged_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record whose blob is damaged is not part of the audit, neither in its state nor in its totals."""
    monkeypatch.setattr(blobs, "LIMIT", 300)
    path = tmp_path / "run"
    write_sync(path, [started(), session(), enqueued("a"), enqueued("b", "x" * 400), enqueued("c")])
    overwrite(next(path.glob("blobs/*/*.json")), b'"y"')
    verification = verify_run(path)

    assert "damaged" == verification.verdict
    assert () == verification.audit.findings
    assert (1, 1) == (verification.audit.totals.enqueued, verification.audit.totals.open)
