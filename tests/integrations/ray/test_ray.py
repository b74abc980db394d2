"""Workers on Ray: a small slice in every test run; `pytest -m exhaustive` adds the faults of `test_worker_processes`.

The tests with a cluster share one.
"""

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from benchmarks._ray_cluster import RayCluster, ray_cluster
from evaljournal import RayWorkers, Settings, UsageError
from evaljournal.integrations.ray.actor import EXITED, STARTED, RayActor
from evaljournal.integrations.ray.workers import RayPipe
from evaljournal.journal.events import AttemptInterrupted, AttemptSucceeded, RunStarted, RunStopped
from evaljournal.runner.runs.changes import effective_settings
from evaljournal.runner.workers.pool import WorkerDied
from tests.processes import TIMEOUT, wait_until
from tests.programs import import_optional
from tests.runner.test_worker_processes import RUN, run_in, start
from tests.runs import events, outputs


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265", "local", "", "127.0.0.1", "head:", ":6379", 8])
def test_an_address_that_is_not_a_cluster_is_rejected(address: Any) -> None:
    """Clients of Ray cannot stream, and no cluster is started. A number is meant to be that of the workers."""
    with pytest.raises(UsageError) as caught:
        RayWorkers(address)

    assert ("workers.address", address) == (caught.value.setting, caught.value.value)


def replace_ray(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    """Replace Ray by some of its functions."""
    client = SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: False))
    ray = SimpleNamespace(util=SimpleNamespace(client=client), **functions)
    monkeypatch.setattr("evaljournal.integrations.ray.workers._import_ray", lambda: ray)


async def test_an_invalid_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is that of RAY_ADDRESS, so this is what the user has to change."""
    replace_ray(monkeypatch, is_initialized=lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with trio.fail_after(10), pytest.RaisesGroup(UsageError) as caught:
        async with RayWorkers().open() as start_worker:
            await start_worker(1)

    error = caught.value.exceptions[0]
    assert isinstance(error, UsageError)
    assert ("RAY_ADDRESS", "local") == (error.setting, error.value)


def test_an_error_of_the_cluster_counts_as_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ray cannot list the nodes, the cluster counts as lost, as if it did not answer."""
    is_ended = threading.Event()

    def nodes() -> None:
        raise ConnectionError("no head")

    replace_ray(monkeypatch, is_initialized=lambda: True, nodes=nodes, remote=lambda _: is_ended.wait(TIMEOUT))
    monkeypatch.setattr("evaljournal.integrations.ray.workers.CHECK_INTERVAL", 0.0)

    async def start_worker() -> None:
        with trio.fail_after(TIMEOUT):
            async with RayWorkers().open() as start:
                await start(1)

    with pytest.RaisesGroup(WorkerDied) as caught:
        trio.run(start_worker)  # On the real clock: threads make the calls of Ray.
    is_ended.set()

    assert "the Ray cluster does not answer" == str(caught.value.exceptions[0])


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        ("workers", {"workers": -1}),
        ("concurrency", {"concurrency": 0}),
        ("num_cpus", {"num_cpus": 0}),
        ("num_gpus", {"num_gpus": float("nan")}),
        ("resources", {"resources": {"fpga": -1}}),
        ("runtime_env", {"runtime_env": {"env_vars": {"KEY": "secret"}}}),
        ("environment", {"environment": "OPENAI_API_KEY"}),
        ("start_timeout", {"start_timeout": 0}),
    ],
)
def test_options_are_checked(setting: str, options: dict[str, Any]) -> None:
    """An invalid option is named; values of variables cannot be passed to Ray, and are not printed."""
    with pytest.raises(UsageError) as caught:
        RayWorkers(**options)

    assert f"workers.{setting}" == caught.value.setting
    assert "secret" not in str(caught.value)


def test_children_of_a_worker_do_not_hide_its_end() -> None:
    """The actor notices that its process has died while a process that it has forked has its streams."""
    forks = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n    os._exit(0)\nos._exit(5)"
    started_at = time.monotonic()

    actor = RayActor(forks, None, 1.0)
    messages = [*actor.read()]
    actor.close()

    assert [STARTED, EXITED + b"5"] == messages
    assert time.monotonic() < started_at + 50


def test_what_a_journal_records_names_no_cluster_to_trust() -> None:
    """A run on Ray is resumed with workers that are passed again; neither values nor a runtime environment are recorded."""
    pool = RayWorkers("head:6379", environment=("KEY",), runtime_env={"pip": ["https://user:secret@host/x.whl"]})
    recorded = Settings(workers=pool).to_json()

    assert (["KEY"], ["pip"]) == (recorded["workers"]["environment"], recorded["workers"]["runtime_env"])
    assert "secret" not in f"{recorded} {pool}"
    with pytest.raises(UsageError, match="on Ray"):
        effective_settings(Settings(), {}, {**recorded, "overridden": ["workers"]})
    assert effective_settings(Settings(), {"workers": "none"}, {**recorded, "overridden": ["workers"]})[0].workers is None


def test_a_run_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is not set, a cluster that does not run (Ray would retry for minutes), or no Ray: nothing is written."""

    def error_with(pool: RayWorkers) -> str:
        with pytest.raises(UsageError) as caught:
            run_in("plain", "a", workers=pool)
        assert not Path("run").exists()
        return str(caught.value)

    assert "EVALJOURNAL_NOT_SET" in error_with(RayWorkers("127.0.0.1:9", environment=("EVALJOURNAL_NOT_SET",)))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        patch.setitem(sys.modules, "ray.util.client", None)
        assert "evaljournal[ray]" in error_with(RayWorkers("127.0.0.1:9"))
    import_optional("ray")
    assert "refused" in error_with(RayWorkers("127.0.0.1:9"))


def test_attempts_run_on_a_cluster(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A crash ends a worker with its exit code; prints are escaped; values of variables reach the task, not the journal."""
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    monkeypatch.setenv("EVALJOURNAL_VALUE", "value-of-a-variable")
    pool = RayWorkers(cluster.address, workers=1, environment=("EVALJOURNAL_VALUE",))

    outcome = run_in("on_asyncio", "print exit variable a b c", workers=pool, retry={"deaths": 0})
    handler = signal.signal(signal.SIGTERM, handler)

    assert (5, 1) == (outcome.state.completed, outcome.state.failed)
    assert {"print", "a", "b", "c", "True"} == set(outputs(Path("run")))
    died = [event for event in events(Path("run"), AttemptInterrupted) if event.reason == "worker_died"]
    assert [("exit", "exit code 3")] == [(event.trial, event.detail) for event in died]
    (name,) = {event.worker.rpartition("/")[0] for event in events(Path("run"), AttemptSucceeded)}
    assert os.uname().nodename == name
    assert signal.default_int_handler is handler
    assert r"printed \x1b[31m" in capfd.readouterr().err
    (started,) = events(Path("run"), RunStarted)
    assert ["EVALJOURNAL_VALUE"] == started.settings["workers"]["environment"]
    assert "value-of-a-variable" not in "".join(file.read_text() for file in Path("run").rglob("*.jsonl"))


def test_a_resource_that_no_node_has(cluster: RayCluster) -> None:
    """Ray would wait for it forever; it is named after a while, and nothing is written."""
    pool = RayWorkers(cluster.address, resources={"fpga": 2}, start_timeout=0.3)

    with pytest.raises(UsageError, match=r"no node of the Ray cluster has fpga 2; waited 0\.3 s"):
        run_in("plain", "a", workers=pool)

    assert not Path("run").exists()


ECHO = "import sys, time; time.sleep(0.3); [print(line, end='', flush=True) for line in sys.stdin]"


def test_frames_keep_their_order(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods of an actor that runs several at once do not; a frame waits until those before it are written."""
    monkeypatch.setattr("evaljournal.integrations.ray.workers.START_CODE", ECHO)
    sent = [b"large" * 600_000, *(b"%d" % number for number in range(1_000))]

    async def exchange() -> list[bytes]:
        received: list[bytes] = []
        with trio.fail_after(TIMEOUT):
            async with RayWorkers(cluster.address, workers=1).open() as start:
                pipe = await start(1)
                for number, frame in enumerate(sent):
                    pipe.send(frame)
                    if number % 250 == 0:
                        await trio.sleep(0.02)
                async with aclosing(pipe.frames()) as batches:
                    async for batch in batches:
                        received += batch
                        if len(received) >= len(sent):
                            break
        return received

    received = trio.run(exchange)
    assert [len(frame) for frame in sent] == [len(frame) for frame in received]
    assert sent == received


def test_last_lines_of_a_worker_are_printed(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a worker prints before a frame arrives before it, and what it prints while it exits is not lost either."""
    code = "import sys; print('first', file=sys.stderr); print('frame', flush=True); sys.stdin.read(); sys.exit('last')"
    monkeypatch.setattr("evaljournal.integrations.ray.workers.START_CODE", code)

    async def receive_one() -> str:
        with trio.fail_after(TIMEOUT):
            async with RayWorkers(cluster.address, workers=1).open() as start:
                async with aclosing((await start(1)).frames()) as batches:
                    await anext(batches)
                return capfd.readouterr().err

    assert "first\n" == trio.run(receive_one)
    assert "last\n" == capfd.readouterr().err


def test_no_thread_outlives_the_connection(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of Ray after the end of the connection would make a new one, or start a cluster."""
    deliver = RayPipe._deliver

    def deliver_late(pipe: RayPipe, message: bytes | WorkerDied) -> None:
        if isinstance(message, WorkerDied) or message.startswith(EXITED):
            time.sleep(0.3)
        deliver(pipe, message)

    async def start_and_end() -> None:
        async with RayWorkers(cluster.address, workers=1).open() as start:
            await start(1)

    monkeypatch.setattr("evaljournal.integrations.ray.workers.START_CODE", ECHO)
    monkeypatch.setattr(RayPipe, "_deliver", deliver_late)
    trio.run(start_and_end)

    assert "evaljournal-ray" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.exhaustive
def test_nodes_come_and_go(cluster: RayCluster, capfd: pytest.CaptureFixture[str]) -> None:
    """Workers on an added node take attempts; those of a lost node cost their trials nothing, and every trial is done.

    What Ray reports about the cluster is printed on standard error, a line each; so is the wait for the first worker.
    """
    names = " ".join(f"sleep-{number}" for number in range(60))
    pool = RayWorkers(cluster.address, resources={"extra": 1}, concurrency=1, start_timeout=60)

    def change_nodes() -> None:
        cluster.send_command("add")  # The run waits for it.
        cluster.send_command("add")
        assert wait_until(lambda: number_of_workers() > 2)
        cluster.send_command("remove")

    with ThreadPoolExecutor(1) as thread:
        changes = thread.submit(change_nodes)
        outcome = run_in("plain", names, workers=pool, slots=4, timeout=30, grace=5)
        changes.result(timeout=TIMEOUT)
    cluster.send_command("remove")

    assert 60 == outcome.state.completed
    lost = events(Path("run"), AttemptInterrupted)
    assert {"worker_lost"} == {event.reason for event in lost}
    assert 1 <= len(lost) <= 2
    printed = capfd.readouterr()
    lines = [line for line in printed.err.splitlines() if not line.startswith("waiting for workers: 0 of 1 ready after ")]
    assert ("", []) == (printed.out, [line for line in lines if not line.startswith("Ray: ")])


@pytest.mark.exhaustive
def test_sigterm_is_handled_by_the_run(cluster: RayCluster) -> None:
    """Ray installs a handler that prints a stack trace; that of the run is installed after it."""
    with start("mark a", *RUN, "--workers", f"ray:{cluster.address}", "--timeout", "60", "-s", "grace=0.2") as process:
        assert wait_until(Path("effects.txt").exists)
        process.terminate()
        assert 3 == process.wait()

    assert "SIGTERM received" not in Path("stderr.txt").read_text()
    assert ["interrupted"] == [event.reason for event in events(Path("run"), RunStopped)]


@pytest.mark.exhaustive
def test_a_cluster_that_rejects_the_token_of_the_run() -> None:
    """The error has Ray's explanation; nothing is written without the token, and the token is not recorded."""
    token = "0123456789abcdef" * 4
    with ray_cluster({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}) as cluster:
        line = (*RUN, "--workers", f"ray:{cluster.address}")
        with start("a", *line, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="wrong" + token) as process:
            code = process.wait()
        is_written = Path("run").exists()
        with start("a", *line, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token) as process:
            assert 0 == process.wait()

    assert (2, False) == (code, is_written)
    assert "token" in Path("stderr.txt").read_text().partition("Error: ")[2]
    texts = [file.read_text() for file in (Path("stderr.txt"), *Path("run").rglob("*.jsonl"))]
    assert not any(token in text for text in texts)


@pytest.mark.exhaustive
def test_a_lost_cluster_stops_the_run() -> None:
    """Ray may report no worker, and ends the process after a minute; the end of the run is recorded before that.

    The exit code is not checked: Ray may crash while the interpreter exits.
    """
    with ray_cluster() as cluster:
        process = start("mark a", *RUN, "--workers", f"ray:{cluster.address}", "--timeout", "600", "-s", "grace=0.2")
        assert wait_until(Path("effects.txt").exists)
    with process:
        process.wait()

    assert ["interrupted"] == [event.reason for event in events(Path("run"), RunStopped)]
    assert {"worker_lost"} == {event.reason for event in events(Path("run"), AttemptInterrupted)}


def number_of_workers() -> int:
    """Return how many workers have completed an attempt."""
    is_started = Path("run", "journal-000001.jsonl").exists()
    return len({event.worker for event in events(Path("run"), AttemptSucceeded)}) if is_started else 0
