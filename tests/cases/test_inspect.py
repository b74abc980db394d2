"""Weaknesses of Inspect that evaljournal must not have: logs after a crash, a move, a resume or a change.

Tested elsewhere:

- SIGTERM stops a run: `tests/crash/test_kills.py`; so does Ctrl-C, with exit code 3: `test_ctrl_c_then_resume` in
  `tests/runner_cli/test_interrupts.py`
- a full disk ends with 3: `tests/cases/test_bad_input.py`
- an edited task is rejected: `test_resume_of_a_changed_task` in `tests/runner_cli/test_resume.py`
- rate-limit pauses are recorded: `tests/runner/test_session.py`, `tests/runner/test_concurrency.py`
"""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from evaljournal import Case, RateLimited, Retry, note, run
from evaljournal.journal import read, verify
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    LimitChanged,
    TrialFailed,
    TrialWithdrawn,
)
from evaljournal.replay import fold
from evaljournal.runner.cli import cli
from evaljournal.runner.errors import RunChanged
from evaljournal.runner.testing import Fail, Return, Scripted, SimulatedEndpoint
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import content, overwrite, segment
from tests.runs import PATH, define, events, numbered_cases, run_killed, run_virtual, signal_after


def test_a_moved_run_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run consists of its directory alone: it can be moved and resumed; nothing is stored in the home directory."""
    home = tmp_path / "home"
    home.mkdir()
    for variable in ("HOME", "USERPROFILE", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, str(home))
    task = Scripted(lambda value, _: Fail(ValueError("no")) if value == "case-5" and not is_fixed else Return("yes"))
    is_fixed = False
    evaluation = define(task, numbered_cases(10), slots=1, retry=Retry(errors=0))
    outcome = run(evaluation, tmp_path / "here", fail_fast=True, policy="fixed")
    assert ("failed_fast", 5) == (outcome.stop_reason, outcome.state.completed)

    shutil.copytree(tmp_path / "here", tmp_path / "elsewhere" / "there")
    shutil.rmtree(tmp_path / "here")
    is_fixed = True
    outcome = run(evaluation, tmp_path / "elsewhere" / "there", resume=True, retry_failed=True, policy="fixed")

    assert ("", 10, 11) == (outcome.stop_reason, outcome.state.completed, task.calls.total())
    assert verify(tmp_path / "elsewhere" / "there", expect_head=outcome.head).ok
    assert {} == content(home)


async def test_concurrency_can_be_read_from_the_journal() -> None:
    """Starts and ends are recorded when they happen: there are never more than ten attempts in flight."""
    task = Scripted(lambda _, times: Fail(ValueError("no"), 1) if times == 1 else Return("yes", 2))
    disk = SimulatedDisk()
    await run_virtual(define(task, numbered_cases(100), slots=10), disk, policy="fixed")

    in_flight = max_in_flight = 0
    previous_time = 0.0
    for record in read(PATH, files=disk):
        assert previous_time <= record.t
        previous_time = record.t
        in_flight += isinstance(record.event, AttemptStarted)
        in_flight -= isinstance(record.event, AttemptSucceeded | AttemptFailed | AttemptTimedOut)
        max_in_flight = max(max_in_flight, in_flight)
    assert 10 == max_in_flight == task.max_in_flight


async def test_the_history_of_the_limit_survives_a_crash() -> None:
    """After a kill, the journal has every change of the limit with its time and reason."""
    endpoint = SimulatedEndpoint(lambda value: value, latency=0.5, max_in_flight=20)
    evaluation = define(endpoint, numbered_cases(2_000), slots=64)
    disk = SimulatedDisk()
    killed_disk = await run_killed(evaluation, disk, after=20.25, durability="os")

    changes = events(killed_disk, LimitChanged)
    assert changes[0].before == 0
    assert all(earlier.after == later.before for earlier, later in itertools.pairwise(changes))
    assert any("429" in change.evidence for change in changes)
    assert 15 <= changes[-1].after <= 21
    assert {"": changes[-1].after} == fold(read(PATH, files=killed_disk)).limits


async def test_resuming_keeps_earlier_usage() -> None:
    """Tokens, attempts, failures and latencies of earlier sessions are added to, not replaced."""

    async def task(value: str) -> str:
        note(tokens=10)
        await trio.sleep(1)
        if value == "case-0" and not failed:
            failed.append(value)
            raise ConnectionError("no")
        return "yes"

    failed: list[str] = []
    evaluation, disk = define(task, numbered_cases(10), slots=2), SimulatedDisk()
    disk = await run_killed(evaluation, disk, after=2.5, policy="fixed")
    before = fold(read(PATH, files=disk))
    assert (60, 6, 3) == (before.usage["tokens"], before.attempts, len(before.latencies))
    outcome = await run_virtual(evaluation, disk, resume=True, policy="fixed")

    state = outcome.state
    assert (10, 130, 13, 10) == (state.completed, state.usage["tokens"], state.attempts, len(state.latencies))
    assert (2, {"ConnectionError": 1}, 2) == (state.interrupted, dict(state.errors), len(state.sessions))
    assert ["case-0"] == [event.trial for event in events(disk, AttemptFailed)]


async def test_edited_prompts_are_rejected() -> None:
    """If every prompt was edited before resuming, the run is rejected without a call or a write."""
    task = Scripted(lambda *_: Return("yes", 1))
    disk = await run_killed(define(task, numbered_cases(40), slots=4), SimulatedDisk(), after=5.5, policy="fixed")
    before, calls = {name: bytes(inode.visible) for name, inode in disk.files()}, task.calls.total()
    edited = [Case(name=case.name, input=f"Think hard. {case.input}", expected="yes") for case in numbered_cases(40)]

    with pytest.raises(RunChanged, match="the cases have changed"):
        await run_virtual(define(task, edited, slots=4), disk, resume=True)
    assert calls == task.calls.total()
    assert before == {name: bytes(inode.visible) for name, inode in disk.files()}


async def test_edited_prompts_of_a_generator_are_rejected() -> None:
    """Cases of a generator are compared one by one: the first difference stops the run."""
    task = Scripted(lambda *_: Return("yes", 1))
    disk = await run_killed(define(task, lambda: iter(numbered_cases(40)), slots=4), SimulatedDisk(), after=5.5, policy="fixed")
    calls = task.calls.total()
    edited = [Case(name=case.name, input=f"Think hard. {case.input}", expected="yes") for case in numbered_cases(40)]
    outcome = await run_virtual(define(task, lambda: iter(edited), slots=4), disk, resume=True)

    assert "dataset_failed" == outcome.stop_reason
    assert "case 'case-0' has changed since the run was started" in outcome.detail
    assert "adopt=True" in outcome.detail
    assert calls == task.calls.total()


async def test_removing_a_case_repeats_no_call() -> None:
    """With one of forty cases removed and adopted, the others keep their outputs, and each was called once."""
    task = Scripted(lambda *_: Return("yes", 1))
    disk = SimulatedDisk()
    await run_virtual(define(task, numbered_cases(40), slots=4), disk, policy="fixed", **signal_after(5.5))
    remaining_cases = [case for case in numbered_cases(40) if case.name != "case-3"]
    outcome = await run_virtual(define(task, remaining_cases, slots=4), disk, policy="fixed", resume=True, adopt=True)

    assert ("", 39, 39) == (outcome.stop_reason, outcome.state.completed, outcome.state.total)
    assert {f"case-{number}": 1 for number in range(40)} == task.calls
    assert [TrialWithdrawn(trial="case-3", reason="removed")] == events(disk, TrialWithdrawn)


def test_a_run_in_which_everything_failed_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all trials failed, the exit code is 1, and the summary reports it."""
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text(
        "from evaljournal import evaluation\n\n"
        "@evaluation(cases=['a', 'b'])\n"
        "def broken(question):\n"
        "    raise TypeError('no such argument')\n"
    )
    result = CliRunner().invoke(cli, ["run", "broken.py"])

    assert 1 == result.exit_code
    assert "0 ok of 2 done" in result.stdout
    assert "2 trials failed:" in result.stdout
    assert result.stdout.endswith("broken.py:5, then evaljournal resume runs/broken/0001 --adopt --retry-failed\n")


@pytest.mark.parametrize("exc", [RateLimited(), RateLimited(7.0), ConnectionError("down"), ValueError("odd")])
@pytest.mark.parametrize("policy", ["adaptive", "aimd", "fixed"])
async def test_retries_have_an_end(exc: Exception, policy: str) -> None:
    """A permanent failure ends its trial within the hour, after a bounded number of recorded calls."""
    task = Scripted(lambda *_: Fail(exc, 0.1))
    disk = SimulatedDisk()
    start = trio.current_time()
    outcome = await run_virtual(define(task, numbered_cases(3)), disk, policy=policy)

    assert ("", 3) == (outcome.stop_reason, outcome.state.failed)
    assert trio.current_time() - start <= 3_600
    assert task.calls.total() == len(events(disk, AttemptFailed)) <= 1_000
    assert {"exhausted"} == {event.reason for event in events(disk, TrialFailed)}


@pytest.mark.parametrize(("old", "new"), [(b'"value":true', b'"value":false'), (b'"output":"no"', b'"output":"yes"')])
def test_a_changed_score_or_output_is_detected(tmp_path: Path, old: bytes, new: bytes) -> None:
    """A score or an output cannot be changed undetected."""
    evaluation = define(Scripted(lambda value, _: Return("no" if value == "case-0" else "yes")), numbered_cases(2))

    @evaluation.score
    def exact(output: Any, case: Case[Any, Any]) -> bool:
        return bool(output == case.expected)

    run(evaluation, tmp_path / "run")
    assert verify(tmp_path / "run").ok
    file = segment(tmp_path / "run")
    overwrite(file, file.read_bytes().replace(old, new, 1))

    assert not verify(tmp_path / "run").ok
    result = CliRunner().invoke(cli, ["verify", str(tmp_path / "run")])
    assert (4, True) == (result.exit_code, "is damaged at record" in result.stderr)


async def test_interrupted_attempts_are_not_failures() -> None:
    """After a crash, attempts in flight are recorded as interrupted (process_died), and retried."""
    task = Scripted(lambda *_: Return("yes", 10))
    evaluation = define(task, numbered_cases(6), slots=3)
    disk = await run_killed(evaluation, SimulatedDisk(), after=15, policy="fixed")
    outcome = await run_virtual(evaluation, disk, resume=True, policy="fixed")

    interrupted = [AttemptInterrupted(trial=f"case-{number}", attempt=1, reason="process_died") for number in (3, 4, 5)]
    assert interrupted == events(disk, AttemptInterrupted)
    assert (6, 0, 9) == (outcome.state.completed, outcome.state.recovered, task.calls.total())
