"""The findings and notes of an audit: each rule detects its violations."""

import functools
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from evaljournal import RateLimited
from evaljournal.journal import Record, read
from evaljournal.journal.events import (
    AttemptEnd,
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    PaceChanged,
    RetryScheduled,
    RunFinished,
    RunStarted,
    TrialCompleted,
    TrialFailed,
    TrialScored,
)
from evaljournal.journal.fact import evolve_fact, fields_of
from evaljournal.replay.auditing.auditor import Auditor, audit
from evaljournal.replay.auditing.findings import MAX_FINDINGS, Audit, Finding
from evaljournal.replay.auditing.rules import TIME_TOLERANCE
from evaljournal.runner.concurrency.fixed import Fixed
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.sessions.api import arun
from evaljournal.runner.testing import Return, Scripted, deterministic_options
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import enqueued, examples, forge, opened, session, started
from tests.replay.recorded_run import (
    Change,
    audit_of,
    changing,
    doubling,
    index_of,
    records_of_run,
    removing,
    run_virtually,
    with_settings,
)
from tests.runs import PATH, define, numbered_cases


def in_an_occupied_slot(records: Sequence[Record]) -> list[Record]:
    """Move the last attempt that starts while another is in flight to the slot of that one; no later start depends on it."""
    held: dict[str, int] = {}
    moved: tuple[AttemptStarted, int] | None = None
    for record in records:
        event = record.event
        if isinstance(event, AttemptStarted):
            moved = (event, next(iter(held.values()))) if held else moved
            held[event.trial] = event.slot
        elif isinstance(event, AttemptEnd):
            held.pop(event.trial, None)
    assert moved is not None
    start, slot = moved
    return changing(AttemptStarted, values={"trial": start.trial, "attempt": start.attempt}, slot=slot)(records)


def shorter_elapsed(records: Sequence[Record]) -> list[Record]:
    """Shorten the last attempt whose duration an earlier record contradicts; no decision follows it."""
    for before, record in reversed(list(pairwise(records))):
        event = record.event
        if isinstance(event, AttemptSucceeded) and before.t - (record.t - event.elapsed) > 0.02:
            return changing(AttemptSucceeded, values={"trial": event.trial}, elapsed=0.01)(records)
    raise AssertionError("no attempt can be shortened")


def a_second_probe(records: Sequence[Record]) -> list[Record]:
    """Let a probe start while an earlier one has not ended."""
    first, second = (index_of(records, AttemptStarted, n, probe=True) for n in (0, 1))
    return [*records[: first + 1], records[second], *records[first + 1 : second], *records[second + 1 :]]


CHANGES: dict[str, tuple[str, Change]] = {
    "occupied slot": ("slots", in_an_occupied_slot),
    "slot above the limit": ("slots", changing(AttemptStarted, 3, slot=24)),
    "limit below the attempts in flight": ("limit", changing(LimitChanged, after=1)),
    "limit above the slots": ("limit", changing(LimitChanged, after=25)),
    "limit of 0": ("limit", changing(LimitChanged, -1, after=0)),
    "wrong previous limit": ("limit", changing(LimitChanged, 2, before=3)),
    "start during a pause": ("intake", changing(IntakePaused, values={"reason": "unavailable"}, until=1000.0)),
    "end of no pause": ("intake", doubling(IntakeResumed)),
    "early retry": ("delay", changing(RetryScheduled, delay=1000.0)),
    "shorter attempt": ("elapsed", shorter_elapsed),
    "longer attempt": ("elapsed", changing(AttemptSucceeded, elapsed=3.0)),
    "other timeout": ("elapsed", changing(AttemptTimedOut, timeout=3.5)),
    "early timeout": ("elapsed", changing(AttemptTimedOut, timeout=5.0)),
    "longer scorer call": ("elapsed", changing(TrialScored, -1, elapsed=500.0)),
    "time goes back": ("time", lambda records: [*records[:9], records[9]._replace(t=records[9].t - 5), *records[10:]]),
    "wrong number completed": ("totals", changing(RunFinished, completed=3)),
    "wrong number failed": ("totals", changing(RunFinished, failed=0)),
    "wrong number withdrawn": ("totals", changing(RunFinished, withdrawn=1)),
    "wrong head": ("totals", changing(RunFinished, head="0" * 32)),
    "missing initial limit": ("limit", removing(LimitChanged)),
    "missing pause": ("breaker", removing(IntakePaused)),
    "other category": ("retry", changing(AttemptFailed, values={"category": "unavailable"}, category="error")),
    "start that is not a probe": ("breaker", changing(AttemptStarted, values={"probe": True}, probe=False)),
    "probe without an outage": ("breaker", changing(AttemptStarted, 3, probe=True)),
    "two probes": ("breaker", a_second_probe),
    "other delay": ("retry", changing(RetryScheduled, delay=0.0)),
    "other cause of a retry": ("retry", changing(RetryScheduled, reason="requested")),
    "other cause of a failure": ("retry", changing(TrialFailed, reason="exhausted")),
    "unserializable": ("retry", changing(TrialFailed, reason="unserializable")),
}


@pytest.mark.parametrize(("check", "change"), CHANGES.values(), ids=CHANGES.keys())
def test_each_rule_detects_violations(check: str, change: Change) -> None:
    """A violation is a finding of its rule."""
    result = audit(change(records_of_run()), rules=retry_rules)

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
        "other cause of a retry",
        "other cause of a failure",
    ],
)
def test_one_change_is_one_finding(name: str) -> None:
    """A change that nothing else depends on is one finding, at its own record."""
    check, change = CHANGES[name]
    records = change(records_of_run())
    seq = next(new.seq for new, old in zip(records, records_of_run(), strict=True) if new != old)
    result = audit(records, rules=retry_rules)

    assert [(seq, check)] == [(finding.seq, finding.check) for finding in result.findings]


def test_audit_without_rules() -> None:
    """Without `rules`, retries are not recomputed, and a delay is still checked."""
    late = changing(RetryScheduled, delay=1000.0)(records_of_run())

    assert {"delay"} == {finding.check for finding in audit(late).findings}
    assert audit(records_of_run()).ok


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"seed": "seven"}, "retries of session 1 were not recomputed: the journal does not record the seed"),
        ({"retry": [1]}, "retries of session 1 were not recomputed: invalid settings"),
    ],
)
def test_unknown_settings_are_a_note(settings: dict[str, Any], text: str) -> None:
    """Retries that cannot be recomputed are a note, not a finding."""
    result = audit(with_settings(**settings)(records_of_run()), rules=retry_rules)

    assert "retry" not in {finding.check for finding in result.findings}
    assert any(note.startswith(text) for note in result.notes)
    assert 0 == result.decisions_reproduced


def test_custom_policy(disk: SimulatedDisk) -> None:
    """A run with a custom policy is checked by the same rules."""

    class Careful(Fixed):
        """One at a time, whatever was allowed."""

        def __init__(self, slots: int) -> None:
            super().__init__(min(slots, 1))

    evaluation = define(Scripted(lambda *_: Return(1, 1)), numbered_cases(4), slots=3)
    run_virtually(functools.partial(arun, evaluation, PATH, **deterministic_options(), files=disk, policy_factory=Careful))
    result = audit_of(disk)

    assert ((), ()) == (result.findings, result.notes)


def test_other_release_is_a_note() -> None:
    """A retry that differs is a note if another release started the run."""
    records = changing(RetryScheduled, -1, delay=0.0)(records_of_run())
    result = audit(changing(RunStarted, environment={"evaljournal": "0.0.1"})(records), rules=retry_rules)

    assert () == result.findings
    assert any("the run was started by evaljournal 0.0.1" in note for note in result.notes)


def test_illegal_record_ends_the_audit(tmp_path: Path) -> None:
    """An illegal record is a finding, and nothing after it is checked."""
    path = forge(
        tmp_path, [opened(), started(), session(), enqueued("a"), TrialCompleted(trial="a", attempts=0), enqueued("a")]
    )
    result = audit(read(path), rules=retry_rules)

    assert [(5, "lifecycle")] == [(finding.seq, finding.check) for finding in result.findings]
    assert "nothing after record 5 was checked" in result.notes


def test_totals_are_counted_twice() -> None:
    """Enqueued trials must equal the sum of completed, failed, withdrawn and open ones."""
    auditor = Auditor()
    for record in records_of_run():
        auditor.apply(record)
    auditor._lifecycle.open_trials += 1

    finding = Finding(records_of_run()[-1].seq, "totals", "150 trials enqueued, but 151 accounted for")
    assert (finding,) == auditor.result().findings


def test_findings_are_limited() -> None:
    """Findings above the maximum are only counted."""
    result = audit(doubling(TrialScored, times=251)(changing(TrialScored, elapsed=1e9)(records_of_run())))

    assert (MAX_FINDINGS, 251) == (len(result.findings), len(result.findings) + result.findings_omitted)


NUMBERS = st.sampled_from([0, -1, 1, 10**18, -(10**18), 1e300, -1e300, 1e-300, 5e-324, 0.1, 3])


@examples(60)
@given(choices=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10), NUMBERS), min_size=1, max_size=5))
def test_any_number(choices: list[tuple[int, int, float]]) -> None:
    """Any numbers in the records can be audited."""
    records = list(records_of_run())
    for place, field, number in choices:
        record = records[place % len(records)]
        kinds = {field.name: field.type for field in fields_of(type(record.event))}
        names = [name for name, kind in kinds.items() if "float" in str(kind) or kind is int]
        if names:
            name = names[field % len(names)]
            value = int(number) if kinds[name] is int else float(number)
            records[place % len(records)] = record._replace(event=evolve_fact(record.event, **{name: value}))

    assert isinstance(audit(records, rules=retry_rules), Audit)


def test_time_tolerance() -> None:
    """Times may differ by their rounding, and not by more."""
    succeeded: Any = records_of_run()[index_of(records_of_run(), AttemptSucceeded)].event

    for tolerances, is_accepted in ((0.5, True), (3, False)):
        elapsed = succeeded.elapsed + TIME_TOLERANCE * tolerances
        assert is_accepted == audit(changing(AttemptSucceeded, elapsed=elapsed)(records_of_run())).ok


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


def test_starts_above_their_pace(disk: SimulatedDisk) -> None:
    """Starts at twice the recorded pace are findings; starts at the recorded pace are not."""
    run_virtually(
        functools.partial(
            arun, define(LimitedEndpoint(), numbered_cases(150), slots=24), PATH, **deterministic_options(7), files=disk
        )
    )
    records = list(read(PATH, files=disk))
    halved = [
        record._replace(event=evolve_fact(record.event, after=record.event.after / 2))
        if isinstance(record.event, PaceChanged) and record.event.after
        else record
        for record in records
    ]

    assert audit(records).ok
    assert {"pace"} == {finding.check for finding in audit(halved).findings}
