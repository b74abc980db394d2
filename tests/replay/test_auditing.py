"""The audit: runs of the engine pass, whatever happens to them."""

import functools
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from evaljournal import Case, Fatal, RateLimited, Retry
from evaljournal.journal import read, salvage, verify
from evaljournal.journal.errors import DiskFull
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptTimedOut,
    IntakePaused,
    IntakeResumed,
    LimitChanged,
    RetryScheduled,
    RunStopped,
    TrialFailed,
)
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.format import blobs
from evaljournal.replay.auditing.auditor import Auditor, audit
from evaljournal.runner.retries.rules import retry_rules
from evaljournal.runner.runs.verification import verify as verify_run
from evaljournal.runner.sessions.api import arun
from evaljournal.runner.testing import Action, Fail, Hang, Return, Scripted, SimulatedEndpoint, deterministic_options
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import enqueued, examples, lines_of, overwrite, segment, session, started, write_sync
from tests.journal.test_format import GOLDEN
from tests.replay.recorded_run import UnreliableTask, audit_of, changing, records_of_run, run_virtually, with_settings
from tests.runs import PATH, define, flaky_evaluation, numbered_cases


@pytest.mark.parametrize("policy", ["adaptive", "fixed"])
def test_every_prefix_passes(policy: str) -> None:
    """Under every policy, a difficult run passes the audit after each of its records."""
    auditor = Auditor(retry_rules)
    for record in records_of_run(policy):
        auditor.apply(record)
        assert auditor.result().ok

    result = auditor.result()
    kinds = {type(record.event) for record in records_of_run(policy)}
    assert {LimitChanged, IntakePaused, IntakeResumed, RetryScheduled, TrialFailed, AttemptTimedOut} <= kinds
    decided = RetryScheduled | TrialFailed
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
    policies=st.tuples(*[st.sampled_from(["adaptive", "fixed"])] * 2),
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
        full += outcome.stop_reason == "disk_full"
        disk.on_call = lambda _: None
        assert () == audit_of(disk).findings

    assert full > 3


@pytest.mark.parametrize("policy", ["adaptive", "fixed"])
def test_each_key_has_its_own_policy(policy: str, disk: SimulatedDisk) -> None:
    """Each rate-limit key has its own limits, pauses and decisions, in every session."""
    endpoints = {
        "a": SimulatedEndpoint(lambda _: 1, latency=0.5, rate=2, burst=2, retry_after=1.5),
        "b": SimulatedEndpoint(lambda _: 1, latency=0.2),
    }

    async def ask(value: Any) -> Any:
        return await endpoints[value["model"]](value)

    evaluation = define(ask, [Case(name=f"{key}{n}", input={"model": key}) for n in range(30) for key in "ab"], slots=4)
    options = {**deterministic_options(), "files": disk, "policy": policy, "limit_key": "model"}
    run_virtually(functools.partial(arun, evaluation, PATH, **options, deadline=5.0, grace=0))
    run_virtually(functools.partial(arun, evaluation, PATH, **options, resume=True, deadline=None))
    result = audit_of(disk)
    records = list(read(PATH, files=disk))
    swapped = [
        record._replace(event=evolve_fact(record.event, key="b")) if isinstance(record.event, AttemptStarted) else record
        for record in records
    ]

    assert ((), ()) == (result.findings, result.notes)
    assert {"a", "b"} == {record.event.key for record in records if isinstance(record.event, LimitChanged)}
    assert {"limit"} <= {finding.check for finding in audit(swapped, rules=retry_rules).findings}


def test_a_stop_for_the_same_error_is_recomputed(disk: SimulatedDisk) -> None:
    """A stop without twenty equal failures is a finding, and so is an attempt after them."""
    evaluation = define(Scripted(lambda *_: Fail(Fatal("no"), 1)), numbered_cases(60), slots=4)
    run_virtually(functools.partial(arun, evaluation, PATH, **deterministic_options(), files=disk))
    records = list(read(PATH, files=disk))

    result = audit_of(disk)
    decided = TrialFailed | RunStopped
    assert ((), ()) == (result.findings, result.notes)
    assert sum(isinstance(record.event, decided) for record in records) == result.decisions_reproduced
    not_found = [  # As an earlier version recorded it, which did not stop after two.
        record._replace(event=evolve_fact(record.event, message="404")) if isinstance(record.event, AttemptFailed) else record
        for record in records
    ]
    assert () == audit(not_found, rules=retry_rules).findings
    for change in (changing(AttemptFailed, location="elsewhere.py:1"), with_settings(stop_on_same_error=10)):
        assert {"stop"} == {finding.check for finding in audit(change(records), rules=retry_rules).findings}
    assert {"stop"} == {
        finding.check for finding in audit(with_settings(stop_on_same_error=10)(not_found), rules=retry_rules).findings
    }


def test_cancelled_runs_pass(disk: SimulatedDisk) -> None:
    """A run that was cancelled several times passes the audit."""
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


async def test_salvaged_journal(tmp_path: Path) -> None:
    """Salvaged records have gaps and are not checked against each other; later sessions are."""
    evaluation, _ = flaky_evaluation(12)
    await arun(evaluation, tmp_path / "run", **deterministic_options())
    lines = lines_of(tmp_path / "run")
    middle = next(index for index, line in enumerate(lines) if index > len(lines) // 2 and b"attempt_succeeded" in line)
    lines[middle] = lines[middle].replace(b'"t":', b'"t":1')
    overwrite(segment(tmp_path / "run"), b"".join(lines))
    await salvage(tmp_path / "run", tmp_path / "new")
    salvaged = audit(read(tmp_path / "new"), rules=retry_rules)
    await arun(evaluation, tmp_path / "new", **deterministic_options(), resume=True)
    resumed = audit(read(tmp_path / "new"), rules=retry_rules)

    assert (True, True) == (salvaged.ok, resumed.ok)
    assert any("salvaged from a damaged journal" in note for note in salvaged.notes)
    assert (1, 0) == (salvaged.totals.open, resumed.totals.open)


def test_handwritten_journal() -> None:
    """The golden journal was written by hand, so its hashes are correct, but not its times, decisions and totals."""
    result = audit(read(GOLDEN), rules=retry_rules)

    assert verify(GOLDEN).ok
    assert {"elapsed", "delay", "limit", "totals", "budget", "retry"} == {finding.check for finding in result.findings}
    assert (3, 1, 1, 1, 0) == attrs.astuple(result.totals)


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
