"""Weaknesses of Inspect that evaljournal must not have: logs after a crash, a move, a resume or a change.

Tested elsewhere:

- SIGTERM stops a run: `tests/crash/test_kills.py`; so does Ctrl-C, with exit code 3: `test_ctrl_c_then_resume` in
  `tests/runner_cli/test_interrupts.py`
- a full disk ends with 3: `tests/cases/test_bad_input.py`
- an edited task is rejected: `test_resume_of_a_changed_task` in `tests/runner_cli/test_resume.py`
- rate-limit pauses are recorded: `tests/runner/test_session.py`, `tests/runner/test_concurrency.py`
"""

import shutil
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from evaljournal import Case, Retry, note, run
from evaljournal.journal import read, verify
from evaljournal.journal.events import (
    AttemptFailed,
)
from evaljournal.replay import fold
from evaljournal.runner.cli import cli
from evaljournal.runner.testing import Fail, Return, Scripted
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import content
from tests.runs import PATH, define, events, numbered_cases, run_killed, run_virtual


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
