"""Workers in real processes: crashes, hangs, Ctrl-C, the end of the session, and commands that start a worker.

A small slice runs in every test run; `pytest -m exhaustive` runs the others, which start dozens of processes.
"""

import os
import signal
import sys
import time
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest
import trio

from evaljournal import CommandWorkers, Outcome, ProcessWorkers, UsageError, run, verify
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptInterrupted,
    AttemptSucceeded,
    AttemptTimedOut,
    RunStopped,
    TrialFailed,
)
from evaljournal.runner.definition.loading import load_evaluation
from evaljournal.runner.workers.pool import WorkerDied
from evaljournal.runner.workers.processes import _open_processes
from tests.processes import Process, is_alive, wait_until
from tests.runs import events, outputs

TASK = '''
import asyncio, ctypes, os, signal, subprocess, sys, time
from pathlib import Path
import trio
from evaljournal import Case, RateLimited, Retry, evaluation, note

CASES = [Case(name=name, input=name) for name in Path("cases.txt").read_text().split()]
RETRY = Retry(errors=0, timeouts=0, rate_limits=3, deaths=1, base_delay=0.01, max_delay=0.01)
LINGERING = """
import time
from pathlib import Path
for _ in range(100):
    with Path("lingering.txt").open("a") as file:
        file.write(f"{time.time()}\\\\n")
    time.sleep(0.05)
"""


class Unpicklable(Exception):
    def __init__(self, left, right):
        super().__init__(left)

    def __reduce__(self):
        raise TypeError


def act(name):
    match name.partition("-")[0]:
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "block":
            time.sleep(1000)
        case "unserializable":
            return object()
        case "unpicklable":
            raise Unpicklable(1, 2)
        case "limited":
            error = RateLimited(message="slow down")
            error.headers = {"retry-after": "7"}
            raise error
        case "memory":
            import resource
            limits = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (1 << 33, limits[1]))
            try:
                return len(bytearray(1 << 34))
            finally:
                resource.setrlimit(resource.RLIMIT_AS, limits)
        case "print":
            print("printed \\x1b[31m")
        case "variable":
            return str(os.environ["EVALJOURNAL_VALUE"] == "value-of-a-variable")
        case "linger":
            line = [sys.executable, "-c", LINGERING]
            subprocess.Popen(line, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        case "children":
            Path("group.txt").write_text(str(subprocess.Popen(["sleep", "60"]).pid))
            if os.fork() == 0:  # It keeps the pipe of the worker open.
                os.setsid()
                time.sleep(60)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        case "nap":
            time.sleep(0.02)
        case "sleep":
            time.sleep(0.6)
        case "mark":
            for _ in range(1_000):
                if Path("enough.txt").exists():
                    break
                with Path("effects.txt").open("a") as file:
                    file.write(f"{time.time()}\\n")
                time.sleep(0.05)
    return name


@evaluation(cases=CASES, timeout=3.0, grace=0.3, retry=RETRY, slots=8, stop_on_same_error=None, durability="os", policy="fixed")
async def on_asyncio(name):
    await asyncio.sleep(0.02)
    if name == "hang":
        await asyncio.sleep(1000)
    while name == "swallow":
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass
    return act(name)


@evaluation(cases=CASES, timeout=3.0, grace=0.3, retry=RETRY, slots=8, stop_on_same_error=None, durability="os", policy="fixed")
async def on_trio(name):
    await trio.sleep(0.02)
    if name == "hang":
        await trio.sleep(1000)
    with trio.CancelScope(shield=name == "swallow"):
        await trio.sleep(1000 if name == "swallow" else 0)
    return act(name)


@evaluation(cases=CASES, timeout=3.0, grace=0.3, retry=RETRY, slots=8, stop_on_same_error=None, durability="os", policy="fixed")
def plain(name):
    return act(name)
'''

COMMAND = f"sh -c 'exec {sys.executable} -P -m evaljournal.worker'"


def run_in(name: str, cases: str, **options: Any) -> Outcome:
    """Run an evaluation of `TASK` in workers."""
    Path("cases.txt").write_text(cases)
    Path("it.py").write_text(TASK)
    loaded = load_evaluation(f"it.py:{name}")
    outcome = run(loaded.evaluation, "run", task=loaded.reference, quiet=True, **{"workers": ProcessWorkers(1), **options})
    assert () == verify("run").audit.findings
    return outcome


def reasons(kind: type[Any]) -> dict[str, str]:
    """Return trial → reason, of the last event of a kind."""
    return {event.trial: event.reason for event in events(Path("run"), kind)}


def test_a_crash_ends_a_worker_and_not_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    """A process that ends fails its own trial; what the task prints in another is escaped and printed."""
    outcome = run_in("plain", "print exit", retry={"deaths": 0})

    assert (1, 1) == (outcome.state.completed, outcome.state.failed)
    assert {"exit code 3"} == {event.detail for event in events(Path("run"), AttemptInterrupted)}
    assert {"exit": "exhausted"} == reasons(TrialFailed)
    assert r"printed \x1b[31m" in capfd.readouterr().err


def test_children_of_a_worker_do_not_hide_its_end() -> None:
    """Its death is noticed while a process that it has forked keeps its pipe open; those in its group end with it."""
    started_at = time.monotonic()
    run_in("plain", "children", retry={"deaths": 0}, timeout=None)

    assert time.monotonic() < started_at + 50
    assert {"signal 9 (SIGKILL)"} == {event.detail for event in events(Path("run"), AttemptInterrupted)}
    assert not is_alive(int(Path("group.txt").read_text()))


ALL = "exit segfault kill hang swallow block unserializable unpicklable limited memory print a b c"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["on_asyncio", "on_trio", "plain"])
def test_every_fault_is_recorded_for_its_trial_only(name: str, workers: str) -> None:
    """Crashes, hangs, ignored cancellations and outputs that cannot be sent do not affect other trials."""
    cases = ALL if name != "plain" else ALL.replace("hang ", "").replace("swallow ", "")
    run_in(name, cases, workers=workers)

    assert {"print", "a", "b", "c"} == set(outputs(Path("run")))
    details = {event.trial: event.detail for event in events(Path("run"), AttemptInterrupted) if event.reason == "worker_died"}
    assert {"exit": "exit code 3", "segfault": "signal 11 (SIGSEGV)", "kill": "signal 9 (SIGKILL)"} == details
    assert {"hang", "swallow", "block"} & set(cases.split()) == {event.trial for event in events(Path("run"), AttemptTimedOut)}
    failed = {event.trial: (event.category, event.retry_after) for event in events(Path("run"), AttemptFailed)}
    assert {
        "unserializable": ("fatal", None),
        "unpicklable": ("error", None),
        "limited": ("rate_limited", 7.0),
        "memory": ("error", None),
    } == failed
    assert {"exit", "segfault", "kill", "limited", "memory", "unpicklable"} == {
        trial for trial, reason in reasons(TrialFailed).items() if reason == "exhausted"
    }


def start(cases: str, *command: str, **variables: str) -> Process:
    """Start a command in another process."""
    Path("cases.txt").write_text(cases)
    Path("it.py").write_text(TASK)
    line = [sys.executable, "-m", "evaljournal", *command, "--plain"]
    with Path("stderr.txt").open("a") as stderr:
        return Process(line, env={**os.environ, **variables}, stdout=DEVNULL, stderr=stderr)


@pytest.fixture(params=["processes:2", "ray"])
def workers(request: pytest.FixtureRequest) -> str:
    """Where attempts run, as the command line has it."""
    return request.param if request.param != "ray" else f"ray:{request.getfixturevalue('cluster').address}"


RUN = ("run", "it.py:plain", "-o", "run")


def wait_for_effects(count: int, file: str = "effects.txt") -> None:
    """Wait until the task has had some effects."""
    assert wait_until(lambda: Path(file).exists() and Path(file).read_text().count("\n") >= count)


def wait_for_output(process: Process, count: int) -> None:
    """Wait until a run has some outputs, or its process has ended."""
    assert wait_until(lambda: process.poll() is not None or (has_journal() and len(outputs(Path("run"))) >= count))


def has_journal() -> bool:
    """Whether the run was started."""
    return Path("run", "journal-000001.jsonl").exists()


def last_effect(file: str = "effects.txt") -> float:
    """Return when the task last had an effect."""
    return float(Path(file).read_text().splitlines()[-1])


@pytest.mark.exhaustive
def test_workers_end_with_a_killed_session(workers: str) -> None:
    """A blocked worker has no effect later than a second after its session was killed; the run can be resumed without it.

    A process in a session of its own is the control: its effects are seen later than that.
    """
    with start("mark linger a", *RUN, "--workers", workers, "--timeout", "60") as process:
        wait_for_effects(3)
        wait_for_effects(3, "lingering.txt")
        wait_for_output(process, 2)
        process.kill()
        killed_at = time.time()
    time.sleep(1.5)

    assert last_effect() < killed_at + 1.0 < last_effect("lingering.txt")
    Path("enough.txt").touch()
    run_in("plain", "mark linger a", workers=None, resume=True, timeout=60)
    assert {"mark", "linger", "a"} == set(outputs(Path("run")))
    assert {"mark": "process_died"} == reasons(AttemptInterrupted)


@pytest.mark.exhaustive
def test_ctrl_c_stops_the_run_and_its_workers(workers: str) -> None:
    """The session records the end, and no worker outlives it."""
    with start("mark a", *RUN, "--workers", workers, "--timeout", "60", "-s", "grace=0.2") as process:
        wait_for_effects(3)
        os.kill(process.pid, signal.SIGINT)
        assert 3 == process.wait()
        stopped_at = time.time()
    time.sleep(1.5)

    assert last_effect() < stopped_at + 1.0
    assert {"mark": "stopped"} == reasons(AttemptInterrupted)
    assert ["interrupted"] == [event.reason for event in events(Path("run"), RunStopped)]


@pytest.mark.exhaustive
def test_a_command_leads_to_workers() -> None:
    """Any command whose standard streams are those of a worker can be used; its exit code is that of the worker."""
    outcome = run_in("plain", "a exit b", workers=CommandWorkers(COMMAND, workers=2))

    assert (2, 1) == (outcome.state.completed, outcome.state.failed)
    assert {"exit code 3"} == {event.detail for event in events(Path("run"), AttemptInterrupted)}
    (name,) = {event.worker.rpartition("/")[0] for event in events(Path("run"), AttemptSucceeded)}
    assert os.uname().nodename == name


def test_a_command_that_is_not_a_worker_is_rejected() -> None:
    """Nothing is written, and the exit code is reported."""
    with pytest.raises(UsageError, match=r"ended before it was ready \(exit code 7\)"):
        run_in("plain", "a", workers=CommandWorkers("sh -c 'exit 7'"))
    with pytest.raises(UsageError, match="not JSON"):
        run_in("plain", "a", workers=CommandWorkers("echo Welcome"))

    assert not Path("run").exists()


async def test_a_process_that_starts_after_the_end_of_its_session() -> None:
    """Starting a process cannot be cancelled; it is ended, and reported as a worker that died."""
    async with _open_processes([sys.executable, "-c", "input()"]) as start:
        pass

    with pytest.raises(WorkerDied, match="session has ended"):
        await start(1)


def test_last_lines_of_a_worker_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """What a process prints while it exits is printed, although the session has ended."""

    async def start_and_end() -> None:
        async with _open_processes([sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit('last')"]) as start:
            await start(1)

    trio.run(start_and_end)

    assert "last\n" == capfd.readouterr().err
