"""Every journal that the runner writes keeps to the rules, and each rule notices when one does not."""

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from journal import Event, Record, read, salvage, verify, writing
from journal.errors import DiskFull
from journal.events import (
    AttemptEnding,
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
    fields_of,
)
from replay.audit_types import Audit, Finding
from replay.auditing import MAX_FINDINGS, TIME_TOLERANCE, Auditor, audit
from runner import Case, Fatal, RateLimited, Retry
from runner.api import arun
from runner.concurrency import Fixed
from runner.fork import fork
from runner.recompute.rules import session_rules
from runner.testing import Answer, Fail, Hang, Scripted, SimulatedEndpoint, Step, inline, repeatable
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import RUN, enqueued, examples, forge, opened, session, started
from tests.journal.test_format import GOLDEN
from tests.runs import PATH, define, flaky_evaluation, numbered_cases, run_until_power_cut


def virtually(main: Callable[[], Any]) -> Any:
    """Run it on a clock that does not wait."""
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def judged(disk: SimulatedDisk) -> Audit:
    """Audit what stands on a disk, which is whole."""
    assert verify(PATH, files=disk).holds
    return audit(read(PATH, files=disk), rules=session_rules)


class Difficult:
    """A task that is rate limited, unavailable, slow, hung or right, as decided by the name and the time alone."""

    __name__ = "difficult"

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def __call__(self, value: str) -> str:
        self.calls[value] += 1
        times, luck = self.calls[value], random.Random(value).random()
        await trio.sleep(0.05 + luck / 2)
        if times == 1 and luck < 0.05:
            await trio.sleep_forever()
        if times == 1 and luck < 0.15:
            raise RateLimited(1.25)
        if luck > 0.95:
            raise Fatal("never")
        if 2 < trio.current_time() < 5:
            raise ConnectionError("unavailable")
        return value


@functools.cache
def recorded(policy: str = "adaptive", slots: int = 24) -> tuple[Record, ...]:
    """Play a difficult run to its end."""
    it = define(Difficult(), numbered_cases(150), slots=slots, timeout=4)

    @it.score
    async def right(output: str, case: Any) -> bool:
        await trio.sleep(0.01)
        return True

    disk = SimulatedDisk()
    virtually(functools.partial(arun, it, PATH, **repeatable(7), files=disk, policy=policy))
    return tuple(record for record in read(PATH, files=disk) if not isinstance(record.event, FileEvent))


Told = tuple[float, Event]
"""When it was told, and what."""


def retold(told: Iterable[Told]) -> list[Record]:
    """Write a journal anew, with an honest chain and an honest head, so that nothing but the rules can object."""
    disk, now = SimulatedDisk(), 0.0

    async def main() -> None:
        nonlocal now
        async with writing(PATH, new=True, clock=lambda: ("now", now), files=disk, in_thread=inline, run=RUN) as journal:
            for t, event in told:
                now = t
                is_true = isinstance(event, RunFinished) and event.head in heads
                journal.append(attrs.evolve(event, head=journal.head) if is_true else event)  # type: ignore[misc]

    heads = {record.h for record in recorded("adaptive")} | {record.h for record in recorded("aimd")}
    trio.run(main)
    assert verify(PATH, files=disk).holds
    return list(read(PATH, files=disk))


def story(policy: str = "adaptive") -> list[Told]:
    return [(record.t, record.event) for record in recorded(policy)]


def place(told: list[Told], kind: type, n: int = 0, **fields: Any) -> int:
    """Find the n-th event of a kind, of those that have these fields."""
    fits = [
        at
        for at, (_, event) in enumerate(told)
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
    ]
    return fits[n]


def changed(told: list[Told], at: int, **fields: Any) -> list[Told]:
    """Tell one event otherwise."""
    t, event = told[at]
    return [*told[:at], (t, attrs.evolve(event, **fields)), *told[at + 1 :]]  # type: ignore[misc]  # a fact is an attrs class


def ended_of(told: list[Told], trial: str, attempt: int) -> int:
    endings = AttemptSucceeded | AttemptFailed | AttemptTimedOut
    return next(
        at
        for at, (_, event) in enumerate(told)
        if isinstance(event, endings) and (event.trial, event.attempt) == (trial, attempt)
    )


@pytest.mark.parametrize("policy", ["adaptive", "aimd", "fixed"])
def test_a_run_keeps_to_the_rules_after_every_record(policy: str) -> None:
    """Under every policy, a difficult run agrees with the rules after each of its records, wherever it might be cut off."""
    auditor = Auditor(session_rules)
    for record in recorded(policy):
        auditor.apply(record)
        assert auditor.result().ok

    result = auditor.result()
    kinds = {type(record.event) for record in recorded(policy)}
    assert {LimitChanged, IntakePaused, IntakeResumed, RetryScheduled, TrialFailed, AttemptTimedOut} <= kinds
    decided = LimitChanged | PaceChanged | IntakePaused | IntakeResumed | RetryScheduled | TrialFailed
    assert sum(isinstance(record.event, decided) for record in recorded(policy)) == result.decisions_reproduced
    assert () == result.notes
    assert (150, 150) == (result.totals.enqueued, result.totals.completed + result.totals.failed)


STEPS = st.one_of(
    st.builds(Answer, st.just("yes"), st.sampled_from([0.0, 0.1, 3.0])),
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
def test_every_run_keeps_to_the_rules(
    scripts: list[list[Step]], slots: int, policies: tuple[str, str], stop: float, seed: int
) -> None:
    """Whatever the tasks do, stopped at any time and resumed under another policy and another number of slots."""
    task = Scripted({f"case-{number}": steps for number, steps in enumerate(scripts)})
    it = define(task, numbered_cases(len(scripts)), slots=slots, timeout=2, retry=Retry(rate_limits=20))
    disk = SimulatedDisk()
    options = {**repeatable(seed), "files": disk, "grace": 0.5}
    virtually(lambda: arun(it, PATH, **options, policy=policies[0], deadline=stop + 0.001))
    virtually(lambda: arun(it, PATH, **options, resume=True, policy=policies[1], slots=slots + 1, deadline=None))

    result = judged(disk)
    assert ((), ()) == (result.findings, result.notes)
    assert len(scripts) == result.totals.completed + result.totals.failed


@pytest.mark.parametrize("seq", range(3, 120, 9))
def test_runs_that_were_cut_off_keep_to_the_rules(seq: int) -> None:
    """A run whose power fails at a record, three times, and that goes on each time, agrees with the rules to its end."""
    it, _ = flaky_evaluation(12)
    disk = SimulatedDisk()
    run_until_power_cut(it, disk, seq)
    for crash in (1, 2, 3):
        disk = disk.unplugged(random.Random(seq * 10 + crash))
        is_there = disk.is_directory(str(PATH)) and any(name.startswith("journal-") for name in disk.list_directory(str(PATH)))
        if is_there:
            assert () == judged(disk).findings
        run_until_power_cut(it, disk, seq + 30 * crash if crash < 3 else 10**9, resume=is_there)

    result = judged(disk)
    assert ((), ()) == (result.findings, result.notes)
    assert 12 == result.totals.completed + result.totals.failed


def test_a_run_that_met_a_full_disk_keeps_to_the_rules() -> None:
    """Decisions for which there was no space are not missed."""
    full = 0
    for writes in range(3, 60, 3):
        it, _ = flaky_evaluation(12)
        disk, left = SimulatedDisk(), [writes]

        def before(call: str, left: list[int] = left) -> int | None:
            left[0] -= call == "write"
            if call == "write" and left[0] == 0:
                raise OSError(28, "no space")
            return None

        disk.before = before
        try:
            outcome = virtually(functools.partial(arun, it, PATH, **repeatable(), files=disk))
        except DiskFull:
            continue
        full += outcome.stopped == "disk_full"
        disk.before = lambda _: None
        assert () == judged(disk).findings

    assert full > 3


def test_an_attempt_that_resists_is_told_to_the_policy() -> None:
    """An attempt that is left behind at a stop is recorded as interrupted, and the policy is asked about that too."""

    async def stubborn(_: Any) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    disk = SimulatedDisk()
    it = define(stubborn, numbered_cases(3), slots=2, timeout=None, deadline=5)
    virtually(lambda: arun(it, PATH, **repeatable(), files=disk, grace=1))

    assert any(isinstance(record.event, AttemptInterrupted) for record in read(PATH, files=disk))
    assert ((), ()) == (judged(disk).findings, judged(disk).notes)


@pytest.mark.parametrize("policy", ["adaptive", "aimd", "fixed"])
def test_each_back_end_is_judged_by_its_own_policy(policy: str) -> None:
    """Where back ends are told apart, each has limits, pauses and decisions of its own, in every session."""
    ends = {
        "a": SimulatedEndpoint(lambda _: 1, latency=0.5, rate=2, burst=2, retry_after=1.5),
        "b": SimulatedEndpoint(lambda _: 1, latency=0.2),
    }

    async def ask(value: Any) -> Any:
        return await ends[value["model"]](value)

    it = define(ask, [Case(name=f"{key}{n}", input={"model": key}) for n in range(30) for key in "ab"], slots=4)
    disk = SimulatedDisk()
    options = {**repeatable(), "files": disk, "policy": policy, "limit_key": "model"}
    virtually(functools.partial(arun, it, PATH, **options, deadline=5.0, grace=0))
    virtually(functools.partial(arun, it, PATH, **options, resume=True, deadline=None))
    result = judged(disk)
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


def test_a_run_that_was_cancelled_keeps_to_the_rules() -> None:
    """Attempts that end because everything around them was cancelled are not the policy's concern any more."""
    disk = SimulatedDisk()
    it = define(Difficult(), numbered_cases(60), slots=24, timeout=4)

    async def main() -> None:
        for seconds in (1.0, 2.9, 6.0):
            with trio.move_on_after(seconds):
                await arun(it, PATH, **repeatable(), files=disk, resume=seconds > 1)
        await arun(it, PATH, **repeatable(), files=disk, resume=True)

    virtually(main)
    result = judged(disk)
    cut = [record.event.why for record in read(PATH, files=disk) if isinstance(record.event, AttemptInterrupted)]

    assert ((), ()) == (result.findings, result.notes)
    assert cut.count("cancelled") > 3


Change = Callable[[list[Told]], list[Told]]


def in_a_slot_that_is_held(told: list[Told]) -> list[Told]:
    """Let one of the last attempts start in the slot of another that is in flight; no later start depends on it."""
    last = place(told, AttemptStarted, -3)
    held: dict[str, int] = {}
    for _, event in told[:last]:
        if isinstance(event, AttemptStarted):
            held[event.trial] = event.slot
        elif isinstance(event, AttemptEnding):
            held.pop(event.trial, None)
    return changed(told, last, slot=next(iter(held.values())))


def took_less(told: list[Told]) -> list[Told]:
    """Let the last attempt take less time of which a record before its end shows that it took more; no decision follows it."""
    for at in range(len(told) - 1, 0, -1):
        t, event = told[at]
        if isinstance(event, AttemptSucceeded) and told[at - 1][0] - (t - event.elapsed) > 0.02:
            return changed(told, at, elapsed=0.01)
    raise AssertionError("every attempt began right after the record before its end")


def without(told: list[Told], at: int) -> list[Told]:
    return [*told[:at], *told[at + 1 :]]


def twice(told: list[Told], at: int) -> list[Told]:
    return [*told[:at], told[at], *told[at:]]


CHANGES: dict[str, tuple[str, Change]] = {
    "an attempt in a slot that is held": ("slots", in_a_slot_that_is_held),
    "an attempt in a slot that never was": ("slots", lambda told: changed(told, place(told, AttemptStarted, 3), slot=24)),
    "an attempt in no slot": ("slots", lambda told: changed(told, place(told, AttemptStarted, 3), slot=-1)),
    "a limit that is lower than what is in flight": ("limit", lambda told: changed(told, place(told, LimitChanged), after=1)),
    "a limit above the slots": ("limit", lambda told: changed(told, place(told, LimitChanged), after=25)),
    "a limit of none": ("limit", lambda told: changed(told, place(told, LimitChanged, -1), after=0)),
    "a limit that was another one before": ("limit", lambda told: changed(told, place(told, LimitChanged, 2), before=3)),
    "a start in a pause": ("intake", lambda told: changed(told, place(told, IntakePaused), until=1000.0)),
    "an end of no pause": ("intake", lambda told: twice(told, place(told, IntakeResumed))),
    "a retry before its time": ("delay", lambda told: changed(told, place(told, RetryScheduled), delay=1000.0)),
    "an attempt that took less": ("elapsed", took_less),
    "an attempt that took more": ("elapsed", lambda told: changed(told, place(told, AttemptSucceeded), elapsed=3.0)),
    "a failure that took no time": ("elapsed", lambda told: changed(told, place(told, AttemptFailed), elapsed=-1.0)),
    "a timeout with another limit": ("elapsed", lambda told: changed(told, place(told, AttemptTimedOut), timeout=3.5)),
    "a timeout before its limit": ("elapsed", lambda told: changed(told, place(told, AttemptTimedOut), timeout=5.0)),
    "a scorer that took more": ("elapsed", lambda told: changed(told, place(told, TrialScored, -1), elapsed=500.0)),
    "a time that runs back": ("time", lambda told: [*told[:9], (told[9][0] - 5, told[9][1]), *told[10:]]),
    "a count": ("totals", lambda told: changed(told, place(told, RunFinished), completed=3)),
    "a count of what failed": ("totals", lambda told: changed(told, place(told, RunFinished), failed=0)),
    "a count of what was withdrawn": ("totals", lambda told: changed(told, place(told, RunFinished), withdrawn=1)),
    "the head of another run": ("totals", lambda told: changed(told, place(told, RunFinished), head="0" * 32)),
    "no limit at first": ("policy", lambda told: without(told, place(told, LimitChanged))),
    "another limit at first": ("policy", lambda told: changed(told, place(told, LimitChanged), cause="climbing")),
    "a limit that was not moved": ("policy", lambda told: without(told, place(told, LimitChanged, 1))),
    "a pause that was not made": ("policy", lambda told: without(told, place(told, IntakePaused))),
    "a pause that was not made at last": ("policy", lambda told: twice(told, place(told, IntakePaused, -1))),
    "other evidence": ("policy", lambda told: changed(told, place(told, IntakePaused), evidence="because")),
    "another kind of failure": (
        "policy",
        lambda told: changed(told, place(told, AttemptFailed, category="unavailable"), category="error"),
    ),
    "another delay": ("retry", lambda told: changed(told, place(told, RetryScheduled), delay=0.0)),
    "another cause": ("retry", lambda told: changed(told, place(told, RetryScheduled), cause="asked")),
    "another reason to give up": ("retry", lambda told: changed(told, place(told, TrialFailed), cause="exhausted")),
    "an output that could be written": ("retry", lambda told: changed(told, place(told, TrialFailed), cause="unserialisable")),
}


@pytest.mark.parametrize(("check", "change"), CHANGES.values(), ids=CHANGES.keys())
def test_each_rule_notices(check: str, change: Change) -> None:
    """What the rules do not allow is found, named by its rule, in a journal whose hashes hold."""
    result = audit(retold(change(story())), rules=session_rules)

    assert check in {finding.check for finding in result.findings}


@pytest.mark.parametrize(
    "name",
    [
        "an attempt in a slot that is held",
        "an attempt in a slot that never was",
        "an attempt that took less",
        "a scorer that took more",
        "a count",
        "the head of another run",
        "other evidence",
        "another cause",
        "another reason to give up",
    ],
)
def test_one_lie_is_one_finding(name: str) -> None:
    """A change that nothing else rests on is found once, at its own record."""
    check, change = CHANGES[name]
    told = change(story())
    lie = next(at for at, (new, old) in enumerate(zip(told, story(), strict=True)) if new != old)
    records = retold(told)
    result = audit(records, rules=session_rules)

    told_records = [record for record in records if not isinstance(record.event, FileEvent)]
    assert [(told_records[lie].seq, check)] == [(finding.seq, finding.check) for finding in result.findings]


def test_without_rules_the_rest_is_still_judged() -> None:
    """Slots, times and totals need no policy; a retry that starts too early is found without one."""
    told = changed(story(), place(story(), RetryScheduled), delay=1000.0)

    assert {"delay"} == {finding.check for finding in audit(retold(told)).findings}
    assert audit(retold(story())).ok


def test_a_policy_disagrees_once_a_session() -> None:
    """Every decision rests on the one before: after the first that differs, the rest of the session is not compared."""
    told = without(story(), place(story(), LimitChanged, 1))
    result = audit(retold(told), rules=session_rules)

    assert 1 == sum(finding.check == "policy" for finding in result.findings)
    assert any("decisions of session 1 after record" in said for said in result.notes)


def told_settings(told: list[Told], **settings: Any) -> list[Told]:
    at = place(told, RunStarted)
    begun: Any = told[at][1]
    return changed(told, at, settings={**begun.settings, **settings})


@pytest.mark.parametrize(
    ("settings", "said"),
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
def test_a_policy_that_cannot_be_made_again_is_a_note(settings: dict[str, Any], said: str) -> None:
    """What cannot be recomputed is said, and is no finding against the policy."""
    result = audit(retold(told_settings(story(), **settings)), rules=session_rules)

    assert set() == {finding.check for finding in result.findings} & {"policy", "retry"}
    assert any(each.startswith(said) for each in result.notes)
    assert 0 == result.decisions_reproduced


def test_a_policy_of_the_users_own_is_a_note() -> None:
    """A run whose limits came from the user's own policy says so, and is judged by everything else."""

    class Careful(Fixed):
        """One at a time, whatever was allowed."""

        def __init__(self, slots: int) -> None:
            super().__init__(min(slots, 1))

    disk = SimulatedDisk()
    it = define(Scripted(lambda *_: Answer(1, 1)), numbered_cases(4), slots=3)
    virtually(functools.partial(arun, it, PATH, **repeatable(), files=disk, limits=Careful))
    result = judged(disk)

    assert () == result.findings
    assert result.notes[0].startswith("decisions of session 1 were not recomputed: policy ")
    assert result.notes[0].endswith("Careful' is not a built-in policy")


def test_what_another_release_decided_is_doubted_not_denied() -> None:
    """A policy may change with a release, so a run of another one is told as a note where it differs."""
    told = changed(story(), place(story(), IntakePaused), evidence="because")
    told = changed(told, place(told, RunStarted), environment={"evaljournal": "0.0.1"})
    result = audit(retold(told), rules=session_rules)

    assert () == result.findings
    assert any("the run was started by evaljournal 0.0.1" in said for said in result.notes)


def test_a_session_is_judged_by_its_own_settings() -> None:
    """Rules are made again from the settings in force: a session under another policy disagrees with this one's."""
    at = place(story(), SessionStarted)
    result = audit(retold(changed(story(), at, settings={"policy": "aimd"})), rules=session_rules)

    assert ["policy"] == [finding.check for finding in result.findings if finding.check == "policy"]


def test_records_that_make_no_sense_end_the_audit(tmp_path: Path) -> None:
    """A record that may not follow is named, and nothing behind it is judged."""
    path = forge(
        tmp_path, [opened(), started(), session(), enqueued("a"), TrialCompleted(trial="a", attempts=0), enqueued("a")]
    )
    result = audit(read(path), rules=session_rules)

    assert [(5, "lifecycle")] == [(finding.seq, finding.check) for finding in result.findings]
    assert "nothing after record 5 was checked" in result.notes


def test_trials_that_are_not_accounted_for_are_missed() -> None:
    """What was enqueued is completed, failed, withdrawn or open; two counts are kept, and compared."""
    auditor = Auditor()
    for record in recorded("adaptive"):
        auditor.apply(record)
    auditor._lifecycle.open += 1

    finding = Finding(recorded("adaptive")[-1].seq, "totals", "150 trials enqueued, but 151 accounted for")
    assert (finding,) == auditor.result().findings


def test_so_many_findings_are_kept() -> None:
    """A log in which nothing fits is no reason to run out of memory."""
    told = changed(story(), place(story(), TrialScored), elapsed=1e9)
    at = place(told, TrialScored)
    result = audit(retold([*told[:at], *[told[at]] * 250, *told[at:]]))

    assert (MAX_FINDINGS, 251) == (len(result.findings), len(result.findings) + result.findings_omitted)


NUMBERS = st.sampled_from([0, -1, 1, 10**18, -(10**18), 1e300, -1e300, 1e-300, 5e-324, 0.1, 3])


@examples(60)
@given(choices=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10), NUMBERS), min_size=1, max_size=5))
def test_no_number_ends_an_audit(choices: list[tuple[int, int, float]]) -> None:
    """Whatever numbers a record holds, the audit comes to its end."""
    told = story()
    for which, field, number in choices:
        at = which % len(told)
        t, event = told[at]
        kinds = {each.name: each.type for each in fields_of(type(event))}
        names = [name for name, kind in kinds.items() if "float" in str(kind) or kind is int]
        if names:
            name = names[field % len(names)]
            value = int(number) if kinds[name] is int else float(number)
            told[at] = (t, attrs.evolve(event, **{name: value}))  # type: ignore[misc]
    records = [record._replace(t=t, event=event) for record, (t, event) in zip(recorded("adaptive"), told, strict=True)]

    assert isinstance(audit(records, rules=session_rules), Audit)


async def test_a_salvaged_journal_is_judged_by_what_came_after(tmp_path: Path) -> None:
    """Between records that were saved others are missing, so nothing is held against them; what follows is judged again."""
    it, _ = flaky_evaluation(12)
    await arun(it, tmp_path / "run", **repeatable())
    file = tmp_path / "run" / "journal-000001.jsonl"
    file.chmod(0o600)
    lines = file.read_bytes().splitlines(keepends=True)
    middle = next(at for at, line in enumerate(lines) if at > len(lines) // 2 and b"attempt_succeeded" in line)
    lines[middle] = lines[middle].replace(b'"t":', b'"t":1')
    file.write_bytes(b"".join(lines))
    await salvage(tmp_path / "run", tmp_path / "new")
    saved = audit(read(tmp_path / "new"), rules=session_rules)
    await arun(it, tmp_path / "new", **repeatable(), resume=True)
    resumed = audit(read(tmp_path / "new"), rules=session_rules)

    assert (True, True) == (saved.ok, resumed.ok)
    assert any("salvaged from a damaged journal" in said for said in saved.notes)
    assert resumed.decisions_reproduced > saved.decisions_reproduced


async def test_forks_keep_to_the_rules(tmp_path: Path) -> None:
    """A run that was forked between what happened and what was decided agrees; and so does what goes on from there."""
    await arun(define(Difficult(), numbered_cases(60), slots=24, timeout=4), tmp_path / "run", **repeatable())
    records = list(read(tmp_path / "run"))
    decisions = [record.seq for record in records if isinstance(record.event, LimitChanged | IntakePaused | IntakeResumed)]
    for seq in decisions[::3]:
        await fork(tmp_path / "run", tmp_path / str(seq), seq - 1, in_thread=inline)

        assert () == audit(read(tmp_path / str(seq)), rules=session_rules).findings
    last = tmp_path / str(decisions[::3][-1])
    await arun(define(Difficult(), numbered_cases(60), slots=24, timeout=4), last, **repeatable(), resume=True)
    resumed = audit(read(last), rules=session_rules)
    assert ((), 0) == (resumed.findings, resumed.totals.open)


def test_the_golden_run_keeps_to_the_rules() -> None:
    """What the runner wrote when the golden run was made is still what the rules decide."""
    result = audit(read(GOLDEN.parent / "run-v1"), rules=session_rules)

    assert ((), ()) == (result.findings, result.notes)
    assert result.decisions_reproduced > 10


def test_the_golden_journal_was_told_by_hand() -> None:
    """The golden journal is whole, but its times were counted and its head invented: the audit says so, and no more."""
    result = audit(read(GOLDEN), rules=session_rules)

    assert verify(GOLDEN).holds
    assert {"elapsed", "delay", "limit", "totals"} == {finding.check for finding in result.findings}
    assert (3, 1, 1, 1, 0) == attrs.astuple(result.totals)


def test_times_may_be_a_hair_apart() -> None:
    """Two roundings to the microsecond are no disagreement; more is."""
    told, at = story(), place(story(), AttemptSucceeded)
    elapsed: Any = told[at][1]

    assert audit(retold(changed(told, at, elapsed=elapsed.elapsed + TIME_TOLERANCE / 2))).ok
    assert not audit(retold(changed(told, at, elapsed=elapsed.elapsed + TIME_TOLERANCE * 3))).ok


def test_a_stop_for_want_of_space_excuses_what_is_missing() -> None:
    """A run that stopped because the disk was full may lack its last decision; one that was stopped may not."""
    at = place(story(), LimitChanged, 2)
    told = story()[:at]
    full = audit(retold([*told, (told[-1][0], RunStopped(reason="disk_full"))]), rules=session_rules)
    stopped = audit(retold([*told, (told[-1][0], RunStopped(reason="interrupted"))]), rules=session_rules)

    assert () == full.findings
    assert ["policy"] == [finding.check for finding in stopped.findings]


def test_cases_of_one_slot_are_enough() -> None:
    """The smallest run there is agrees too."""
    disk = SimulatedDisk()
    it = define(Scripted({"a": [Answer(1)]}), [Case(name="a", input="a")], slots=1)
    virtually(lambda: arun(it, PATH, **repeatable(), files=disk))

    assert (True, 1) == (judged(disk).ok, judged(disk).totals.completed)


class Limited:
    """An endpoint that grants five calls a second."""

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


def test_a_start_before_its_pace_is_found() -> None:
    """An attempt that starts at the time of the record before it, although the policy paces it, is found."""
    disk = SimulatedDisk()
    virtually(functools.partial(arun, define(Limited(), numbered_cases(150), slots=24), PATH, **repeatable(7), files=disk))
    told: list[Told] = [
        (record.t, record.event) for record in read(PATH, files=disk) if not isinstance(record.event, FileEvent)
    ]
    paced = place(told, PaceChanged)
    at = next(
        at
        for at, (t, event) in enumerate(told)
        if at > paced + 100 and isinstance(event, AttemptStarted) and event.attempt == 1 and t - told[at - 1][0] > 0.02
    )
    (t, event), earlier = told[at], told[at - 1][0]
    assert isinstance(event, AttemptStarted)
    end = ended_of(told, event.trial, event.attempt)
    ended: Any = told[end][1]
    told = changed([*told[:at], (earlier, event), *told[at + 1 :]], end, elapsed=round(ended.elapsed + t - earlier, 6))

    result = audit(retold(told), rules=session_rules)
    assert "policy" in {finding.check for finding in result.findings}
