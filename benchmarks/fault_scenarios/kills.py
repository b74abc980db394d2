"""Kills with SIGKILL: how many of the calls that had returned a killed run loses, compared with a ledger outside its journal.

The ledger is a file to which a call appends one line as the last thing that it does.
"""

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trio

from benchmarks._figures import Figures
from evaljournal import Case, evaluation, run
from evaljournal.journal.events import AttemptSucceeded, TrialCompleted
from evaljournal.runner.calls.command import Command
from evaljournal.runner.calls.endpoint import Endpoint
from evaljournal.runner.runs.verification import verify
from evaljournal.runner.testing import events_of

LARGE = 300_000
"""Bytes of a large output; a small one has a few."""
SLOTS = 32
SECONDS = 0.05
"""Seconds of a call."""
TIMEOUT = 60.0
"""Seconds after which a process counts as hanging."""


def kill_large_outputs(figures: Figures, directory: Path, kills: int = 30) -> None:
    """Kills of a run with 300 kB and small outputs: the loss of large outputs is at most twice that of small ones."""
    for durability in ("sync", "os"):
        returned, lost = Counter[bool](), Counter[bool]()
        for number in range(kills):
            path, ledger = directory / f"{durability}-{number}", Ledger(directory / f"{durability}-{number}.ledger")
            with killed_process(lambda: run(mixed(ledger, 5_000), path, durability=durability, policy="fixed")):  # noqa: B023
                ledger.wait_for(random.Random(number).randint(200, 400))
            recorded = {event.trial for event in events_of(path) if isinstance(event, AttemptSucceeded)}
            for name in ledger.calls():
                returned[is_large(name)] += 1
                lost[is_large(name)] += name not in recorded
        print(f"  {durability}: {kills} kills, {SLOTS} slots, calls of {SECONDS * 1000:.0f} ms")
        shares = {large: lost[large] / returned[large] for large in (False, True)}
        for large, name in ((False, "small"), (True, "large")):
            figures.show(f"calls with {name} outputs that had returned and were lost, per kill", lost[large] / kills)
            figures.show(f"… share of {returned[large]:,} returned calls", shares[large] * 100, unit="%")
        min_loss = 1 / returned[False]  # No loss at all counts as one call.
        figures.show("loss of large outputs relative to small ones", shares[True] / max(shares[False], min_loss), maximum=2)


def kill_every_kind(figures: Figures, directory: Path, kills: int = 4) -> None:
    """Kills of every kind of task: runs verify, trials complete once; a kill repeats, on average, at most one call per slot."""
    for kind, define in KINDS.items():
        ledger = Ledger(directory / f"{kind}.ledger")
        path, lost, problems = directory / kind, 0, 0
        with serving(ledger) as url:
            task = define(ledger, url)
            for kill in range(kills):
                before = len(ledger.calls())
                with killed_process(lambda: run(task, path, resume=path.exists(), policy="fixed")):  # noqa: B023
                    ledger.wait_for(before + random.Random(kill).randint(20, 60))
                recorded = Counter(event.trial for event in events_of(path) if isinstance(event, AttemptSucceeded))
                lost = sum((Counter(ledger.calls()) - recorded).values())
                problems += not verify(path).ok
            run(task, path, resume=True, policy="fixed")
        completed = Counter(event.trial for event in events_of(path) if isinstance(event, TrialCompleted))
        problems += not verify(path).ok
        problems += sum(completed[name] != 1 for name in names(CASES_OF_A_KIND))
        figures.show(f"{kind}: runs that do not verify, trials not completed once", problems, maximum=0)
        figures.show(f"{kind}: calls that had returned and were repeated, per kill", lost / kills, maximum=SLOTS)


class Ledger:
    """Calls that have returned, one line each in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, name: str) -> None:
        """Add a call, as the last thing that it does."""
        os.write(self._fd, f"{name}\n".encode())

    def calls(self) -> list[str]:
        """Return the names of the calls."""
        return self.path.read_text().split()

    def wait_for(self, calls: int) -> None:
        """Wait until so many calls have returned."""
        until = time.monotonic() + TIMEOUT
        while len(self.calls()) < calls:
            if time.monotonic() > until:
                raise TimeoutError(f"{self.path.name}: {len(self.calls())} of {calls} calls returned")
            time.sleep(0.001)


@contextmanager
def killed_process(call: Callable[[], object]) -> Iterator[None]:
    """Make a call in a forked process, and kill it with SIGKILL at the end of the block."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            call()
        finally:
            os._exit(70)
    try:
        yield
    finally:
        os.killpg(child, signal.SIGKILL)  # The commands that it has started are killed, too.
        os.waitpid(child, 0)


def names(count: int) -> list[str]:
    """Return names of cases, every second with a large output."""
    return [f"{('small', 'large')[number % 2]}-{number}" for number in range(count)]


def is_large(name: str) -> bool:
    """Whether the case with this name has a large output."""
    return name.startswith("large")


def output_of(name: str) -> str:
    """Return the output of a case; no two are equal."""
    return name.ljust(LARGE, "x") if is_large(name) else name


def cases(count: int) -> list[Case[str, str]]:
    """Return cases with their names as input."""
    return [Case(name=name, input=name) for name in names(count)]


CASES_OF_A_KIND = 400


def mixed(ledger: Ledger, count: int) -> Any:
    """Return an evaluation with small and large outputs."""
    rng = random.Random(0)

    async def task(name: str) -> str:
        await trio.sleep(SECONDS * (0.5 + rng.random()))
        output = output_of(name)
        ledger.add(name)
        return output

    return evaluation(cases=cases(count), slots=SLOTS, loop="trio")(task)


def _trio(ledger: Ledger, _: str) -> Any:
    return mixed(ledger, CASES_OF_A_KIND)


def _asyncio(ledger: Ledger, _: str) -> Any:
    async def task(name: str) -> str:
        await asyncio.sleep(SECONDS)
        ledger.add(name)
        return output_of(name)

    return evaluation(cases=cases(CASES_OF_A_KIND), slots=SLOTS, loop="asyncio")(task)


def _thread(ledger: Ledger, _: str) -> Any:
    def task(name: str) -> str:
        time.sleep(SECONDS)
        ledger.add(name)
        return output_of(name)

    return evaluation(cases=cases(CASES_OF_A_KIND), slots=SLOTS)(task)


def _command(ledger: Ledger, _: str) -> Any:
    script = f'case $1 in large*) head -c {LARGE} /dev/zero | tr "\\0" x;; esac; printf %s "$1"; echo "$1" >> "$2"'
    task = Command(["sh", "-c", script, "sh", "{input}", str(ledger.path)])
    return evaluation(cases=cases(CASES_OF_A_KIND), slots=8)(task)


def _endpoint(_: Ledger, url: str) -> Any:
    return evaluation(cases=cases(CASES_OF_A_KIND), slots=SLOTS)(Endpoint(url))


KINDS = {"trio": _trio, "asyncio": _asyncio, "thread": _thread, "command": _command, "endpoint": _endpoint}


@contextmanager
def serving(ledger: Ledger) -> Iterator[str]:
    """Serve outputs, as JSON, and add each to the ledger when it was sent; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            name = next(word for word in body.decode().split('"') if word.startswith(("small-", "large-")))
            data = f'"{output_of(name)}"'.encode()
            time.sleep(SECONDS)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            ledger.add(name)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # A client was killed.

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
