"""Notebooks: live progress, results and reports in cells; a killed kernel loses nothing. The cells run in a real kernel."""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import ipykernel  # type: ignore[import-not-found,unused-ignore]  # noqa: F401  # it is the kernel
import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

import evaljournal
from evaljournal import load
from tests.processes import TIMEOUT, wait_until
from tests.server import Server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]

DEFINITION = """
import asyncio, json, os, urllib.request
from pathlib import Path
import evaljournal
from evaljournal import Case, Score, evaluation

Path("kernel").write_text(str(os.getpid()))


cases = [Case(name=f"<b>{n}</b>", input=n, expected="0") for n in range(CASES)]


@evaluation(cases=cases, slots=3, policy="fixed", write_ahead=True)
async def digits(n):
    if URL:
        request = urllib.request.Request(URL, json.dumps({"input": n}).encode(), {"Content-Type": "application/json"})
        await asyncio.to_thread(lambda: urllib.request.urlopen(request).read())
    await asyncio.sleep(0.1)
    return str(n)


@digits.score
def exact(output, expected):
    return Score(output == expected, reason="<script>alert(1)</script>")
"""


class Client(NotebookClient):  # type: ignore[misc,unused-ignore]  # it has no types
    """A client that keeps every update of a display."""

    updates: list[dict[str, str]]

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "update_display_data":
            self.updates.append(msg["content"]["data"])
        return super().process_message(msg, cell, cell_index)


def client(directory: Path, *cells: str, cases: int, url: str = "") -> Client:
    """Return a client for a notebook with these cells, after that of an evaluation."""
    definition = f"CASES, URL = {cases}, {url!r}\n{DEFINITION}"
    v4: Any = nbformat.v4
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in (definition, *cells)])
    new_client = Client(notebook, timeout=TIMEOUT, kernel_name="python3", resources={"metadata": {"path": str(directory)}})
    new_client.updates = []
    return new_client


def outputs(executed: Client, kind: str) -> list[str]:
    """Return the outputs of one kind, of all cells."""
    data = (
        output.get("data", {"text": output.get("text")}) for cell in executed.nb.cells for output in cell.get("outputs", [])
    )
    return [item[kind] for item in data if item.get(kind) is not None]


def ledger(server: Server, name: str) -> Counter[int]:
    """Return how often each case was sent to the server."""
    return Counter(json.loads(request["body"])["input"] for request in server.requests(name))


def test_a_cell_shows_progress_and_results(tmp_path: Path) -> None:
    """The cell of `await arun` is updated; an outcome has scores, failing cases and a link, a report is in a sandbox."""
    cells = ["outcome = await evaljournal.arun(digits)", "outcome", "outcome.report()", "evaljournal.load(outcome.path)"]
    executed = client(tmp_path, *cells, cases=21)
    executed.execute()
    progress, results, report = outputs(executed, "text/html")
    *frames, last_frame = [update["text/html"] for update in executed.updates]

    assert last_frame == progress
    assert "21 of 21 (100 %) · 21 outputs · 0 errors · exact 4.8 %" in progress
    assert any(re.search(r"of 21 · \d+ %", frame) for frame in frames)
    assert any("&lt;b&gt;" in frame for frame in frames)
    assert executed.updates[-1]["text/plain"] in progress
    assert '<a href="runs/digits/0001" target="_blank">' in results
    assert ("4.8 %  1 of 21 passed" in results, "20 of 21 outputs fail" in results) == (True, True)
    assert "exact: fail (&lt;script&gt;alert(1)&lt;/script&gt;)" in results
    assert not re.search(r"<(script|b)>[^d]", "".join([*frames, results]))  # The heading is bold.
    content = re.fullmatch(r'<iframe sandbox="allow-scripts" style="[^"]*" srcdoc="([^"]*)"></iframe>', report)
    assert content is not None
    assert unescape(content[1]).startswith("<!doctype html>")
    assert "<digits finished: 21 of 21 trials done, exact 4.8 %, in runs/digits/0001>" == outputs(executed, "text/plain")[-1]


def test_run_shows_progress_from_its_thread(tmp_path: Path) -> None:
    """`run` in a cell shows the same progress, and prints the summary; `quiet` does neither."""
    executed = client(tmp_path, "first = evaljournal.run(digits)", "second = evaljournal.run(digits, quiet=True)", cases=21)
    executed.execute()

    assert ["21 of 21 (100 %)"] == [text[:16] for text in outputs(executed, "text/plain")]
    assert ["digits finished: 21 of 21 trials done, in runs/digits/0001"] == [
        text.splitlines()[0] for text in outputs(executed, "text") if "digits" in text
    ]
    assert len(executed.updates) > 1


def execute_until(
    executed: Client, directory: Path, condition: Callable[[], bool], stop: Callable[[int], None]
) -> BaseException:
    """Execute a notebook, stop its kernel as soon as a condition holds, and return the error."""

    def stop_kernel() -> None:
        wait_until(condition)
        stop(int((directory / "kernel").read_text()))

    async def execute() -> BaseException:
        results: Any = await asyncio.gather(executed.async_execute(), asyncio.to_thread(stop_kernel), return_exceptions=True)
        assert isinstance(results[0], BaseException)
        return results[0]

    return asyncio.run(execute())


@pytest.mark.parametrize("call", ["evaljournal.run(digits)", "await evaljournal.arun(digits)"])
def test_an_interrupted_cell_stops_gracefully(call: str, tmp_path: Path, server: Server) -> None:
    """Interrupting the kernel lets attempts in flight end; `resume=True` makes the remaining calls, none twice."""
    name = f"interrupted-cell-{len(call)}"
    executed = client(tmp_path, call, cases=30, url=server.url(name, "ok"))
    error = execute_until(executed, tmp_path, lambda: len(ledger(server, name)) >= 6, lambda pid: os.kill(pid, signal.SIGINT))

    assert isinstance(error, CellExecutionError)
    assert re.search("KeyboardInterrupt|CancelledError", str(error))
    assert "runs/digits/0001 was stopped gracefully; `run(…, resume=True)` resumes it" in str(error)
    run = load(tmp_path / "runs/digits/0001")
    assert ("stopped", "interrupted") == (run.status, run.state.outcome)
    client(tmp_path, call.replace(")", ", resume=True)"), cases=30, url=server.url(name, "ok")).execute()
    assert dict.fromkeys(range(30), 1) == ledger(server, name)
    run = load(run.path)
    assert ("finished", 30) == (run.status, run.state.completed)


@pytest.mark.parametrize("call", ["evaljournal.run(digits)", "await evaljournal.arun(digits)"])
def test_a_killed_kernel_is_resumed(call: str, tmp_path: Path, server: Server) -> None:
    """After `kill -9` of the kernel, the notebook is executed again: only calls in flight are made twice."""
    name = f"killed-kernel-{len(call)}"
    executed = client(tmp_path, call, cases=30, url=server.url(name, "ok"))
    error = execute_until(executed, tmp_path, lambda: len(ledger(server, name)) >= 9, lambda pid: os.kill(pid, signal.SIGKILL))

    assert isinstance(error, DeadKernelError)
    run = load(tmp_path / "runs/digits/0001")
    interrupted = {trial.case for trial in run.trials.values() if trial.stage == "running"}
    completed = run.state.completed
    client(tmp_path, call.replace(")", ", resume=True)"), cases=30, url=server.url(name, "ok")).execute()
    calls = ledger(server, name)
    assert set(range(30)) == set(calls)
    assert {f"<b>{case}</b>" for case, count in calls.items() if count > 1} <= interrupted
    assert (True, True) == (0 < completed < 30, len(interrupted) <= 3)
    run = load(run.path)
    assert ("finished", 30, 2) == (run.status, run.state.completed, len(run.state.sessions))
    assert evaljournal.verify(run.path).ok
