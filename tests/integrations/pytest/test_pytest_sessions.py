"""Sessions of pytest that are killed, interrupted or divided among workers: nothing is called twice but what was in flight."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from evaljournal import load
from evaljournal.journal import verify
from tests.integrations.pytest.test_pytest_plugin import AUTOLOAD, PLUGINS
from tests.processes import Forked, start_forked, wait_until
from tests.server import Server

pytestmark = pytest.mark.slow

PROJECT = """
import json
from urllib.request import urlopen

import trio
from evaljournal import evaluation

def call(text):
    with urlopen(URL, data=json.dumps({"input": text}).encode()) as reply:
        return json.load(reply)["output"]

@evaluation(cases=[f"t{number}" for number in range(10)], slots=2, policy="fixed", grace=0)
async def numbers(text):
    with trio.CancelScope(shield=STUCK):
        return await trio.to_thread.run_sync(call, text, abandon_on_cancel=True)

@evaluation(cases=["x", "y"])
def letters(text):
    return call(text)

def test_plain():
    pass
"""
PATHS = ["runs/letters/0001", "runs/numbers/0001"]
INPUTS = Counter([*(f"t{number}" for number in range(10)), "x", "y"])


def session(directory: Path, project: str, *options: str) -> Forked:
    """Start a session of pytest."""
    (directory / "test_calls.py").write_text(project)
    command = ["python", "-m", "pytest", *PLUGINS, "-q", "--evals", *options]
    return start_forked(command, directory, {**os.environ, AUTOLOAD: "1"})


def calls(server: Server, name: str) -> list[str]:
    """Return the inputs that the server was called with."""
    return [json.loads(request["body"])["input"] for request in server.requests(name)]


@pytest.mark.parametrize(
    ("number", "is_stuck", "code"),
    [
        pytest.param(signal.SIGKILL, "False", -signal.SIGKILL, id="kill"),
        pytest.param(signal.SIGINT, "False", pytest.ExitCode.INTERRUPTED, id="ctrl-c", marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGINT, "True", 3, id="ctrl-c-stuck"),
    ],
)
def test_the_next_session_resumes(  # noqa: PLR0917  # parametrized
    tmp_path: Path, server: Server, name: str, number: signal.Signals, is_stuck: str, code: int
) -> None:
    """After `kill -9` or Ctrl-C, the next session continues the run: only the calls in flight are repeated.

    Ctrl-C prints the report and how to continue, also if a call does not end and the process must exit.
    """
    project = PROJECT.replace("URL", repr(server.url(name, "ok,ok,ok,ok,ok,hang,hang,ok"))).replace("STUCK", is_stuck)
    with session(tmp_path, project) as stopped:
        assert wait_until(lambda: len(calls(server, name)) == 7)
        assert wait_until(lambda: load(tmp_path / PATHS[1]).state.completed == 5)
        stopped.send_signal(number)
        output = "".join(stopped.communicate())
    in_flight = calls(server, name)[5:]
    with session(tmp_path, project) as resumed:
        resumed_output, _ = resumed.communicate()

    assert code == stopped.returncode, output
    assert (number == signal.SIGINT) == (f"next: evaljournal resume {PATHS[1]}" in output), output
    assert "api.py" not in output, output
    assert (0, True) == (resumed.returncode, "13 passed" in resumed_output), resumed_output
    assert INPUTS + Counter(in_flight) == Counter(calls(server, name))
    assert PATHS == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("runs/*/*"))
    assert [None, None] == [verify(tmp_path / path).problem for path in PATHS]


def test_a_finished_evaluation_of_a_killed_session_is_not_repeated(tmp_path: Path, server: Server, name: str) -> None:
    """A session that is killed in its second evaluation does not repeat the first; one that has ended is repeated."""
    project = PROJECT.replace("URL", repr(server.url(name, ",".join(["ok"] * 10 + ["hang"] * 2 + ["ok"])))).replace(
        "STUCK", "False"
    )
    with session(tmp_path, project) as killed:
        assert wait_until(lambda: len(calls(server, name)) == 12)
        killed.kill()
        killed.communicate()
    numbers_of_calls = []
    for _ in range(2):
        with session(tmp_path, project) as repeated:
            output, _ = repeated.communicate()
        assert (0, True) == (repeated.returncode, "13 passed" in output), output
        numbers_of_calls.append(len(calls(server, name)))

    assert [12 + 2, 12 + 2 + 12] == numbers_of_calls


def test_workers_of_xdist(tmp_path: Path, server: Server, name: str) -> None:
    """With `--dist loadgroup`, an evaluation runs in one worker; a killed session is resumed, and `--lf` retries the error."""
    project = PROJECT.replace("URL", repr(server.url(name, "ok,ok,hang,hang,400,ok"))).replace("STUCK", "False")
    options = ("-n", "2", "--dist", "loadgroup", "-k", "not letters")
    with session(tmp_path, project, *options) as killed:
        assert wait_until(lambda: len(calls(server, name)) == 4)
        killed.kill()
        killed.communicate()
    in_flight = calls(server, name)[2:]
    assert wait_until(lambda: load(tmp_path / PATHS[1]).state.outcome == "interrupted")  # Its worker stops the run.
    outputs = []
    for further_options in ((), ("--lf",)):
        with session(tmp_path, project, *options, *further_options) as resumed:
            outputs.append(resumed.communicate()[0])
    numbers = [text for text in INPUTS if text.startswith("t")]
    [failed] = (Counter(calls(server, name)) - Counter(numbers) - Counter(in_flight)).elements()

    assert ["10 passed, 1 error", "1 passed"] == [output.splitlines()[-1].partition(" in ")[0] for output in outputs], outputs
    assert failed in in_flight
    assert PATHS[1:] == [str(path.relative_to(tmp_path)) for path in tmp_path.glob("runs/*/*")]
    assert "finished" == load(tmp_path / PATHS[1]).status
