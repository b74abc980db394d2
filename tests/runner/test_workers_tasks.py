"""Endpoints, chat models and commands in workers: requests, outputs, usage, notes and steps as in the process of the run.

Both sides of the connection are in this process; `test_worker_processes` has real processes.
"""

import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import orjson
import pytest

from evaljournal import Case, Chat, Command, Endpoint, Retry, verify
from evaljournal.journal.events import AttemptFailed, AttemptSucceeded, Noted, StepCompleted
from evaljournal.replay import load
from evaljournal.runner.calls.arguments import arguments_of, new_task
from evaljournal.runner.calls.prices import DEFAULT_PRICES
from evaljournal.runner.calls.recorded_output import RecordedOutput
from evaljournal.runner.testing import events_of
from tests.runs import define_real, events, outputs, run_real
from tests.server import Server
from tests.workers import AGENT, MemoryWorkers

RETRY = Retry(errors=1, rate_limits=5, base_delay=0.01)
MAY_DIFFER = {"elapsed", "delay", "worker", "slot"}


def attempt_events(path: Path) -> list[dict[str, Any]]:
    """Return what the attempts of a run recorded, without times and workers."""
    kinds = (AttemptSucceeded, AttemptFailed, Noted, StepCompleted)
    recorded = [attrs.asdict(event) for event in events_of(path) if isinstance(event, kinds)]  # type: ignore[arg-type]
    return [{name: value for name, value in fields.items() if name not in MAY_DIFFER} for fields in recorded]


def run_twice(task: Any, path: Path, cases: Any = "lima", **options: Any) -> list[dict[str, Any]]:
    """Run a task in this process and in a worker; return what the second run recorded, which is the same."""
    defined = define_real(task, cases, retry=RETRY, seed=1, **options)
    run_real(defined, path)
    in_worker = path.with_name("in_worker")
    run_real(defined, in_worker, task="it.py:it", workers=MemoryWorkers(defined, workers=1))
    assert attempt_events(path) == attempt_events(in_worker)
    assert () == verify(in_worker).audit.findings
    assert {"process 1"} == {event.worker for event in events(in_worker, AttemptSucceeded)}
    return attempt_events(in_worker)


@pytest.mark.parametrize(
    "task",
    [
        Chat("m", base_url="http://h/v1", prompt="{input}", extra_body=MappingProxyType({"top_p": 0.5}), prices=DEFAULT_PRICES),
        Endpoint("http://h/{id}", headers={"X-Key": "$HOME"}, body={"q": ["{input}"]}, read_timeout=None),
        Command(["cat", "{input}"], output="json"),
        RecordedOutput("column"),
    ],
)
def test_a_task_is_built_from_its_arguments(task: Any) -> None:
    """The arguments are JSON, and make an equal task; they do not name the price table of this machine."""
    arguments = arguments_of(task)
    assert arguments is not None
    target, values = orjson.loads(orjson.dumps(arguments))

    assert (task, "prices" in values) == (new_task(target, values), False)
    assert arguments_of(len) is None


def test_an_endpoint(path: Path, server: Server, name: str) -> None:
    """A rate limit is classified in the worker, with the wait that its header asks for."""
    failed, succeeded = run_twice(Endpoint(server.url(name, "429:0.01,ok,429:0.01,ok")), path)

    assert ("rate_limited", 0.01) == (failed["category"], failed["retry_after"])
    assert "LIMA" == succeeded["output"]["output"]


def test_a_chat_model(path: Path, server: Server, name: str) -> None:
    """The usage and the notes of a chat model are recorded."""
    recorded = run_twice(Chat("small", base_url=server.url(name, "ok", "v1"), system="s"), path)

    assert ["LIMA"] == outputs(path.with_name("in_worker"))
    assert load(path.with_name("in_worker")).state.usage == load(path).state.usage != {}
    assert {"name", "value"} <= recorded[0].keys()


def test_turns_of_a_chat_model(path: Path, server: Server, name: str) -> None:
    """Each turn is a step."""
    cases = [Case(name="talk", input="lima", metadata={"turns": ["oslo", "rome"]})]
    recorded = run_twice(Chat("small", base_url=server.url(name, "ok", "v1"), turns="turns"), path, cases)

    assert 2 == sum("step" in fields for fields in recorded)


def test_a_command(path: Path) -> None:
    """A command runs as a process of the worker."""
    assert "lima" == run_twice(Command("cat"), path)[-1]["output"].strip('"')


@pytest.mark.usefixtures("provider")
def test_the_gateway(path: Path) -> None:
    """A command in a worker on this machine calls models through the gateway of the run; its calls are steps with usage."""
    Path("agent.py").write_text(AGENT)
    recorded = run_twice(Command([sys.executable, "agent.py"]), path, gateway=True)

    (completed,) = (fields for fields in recorded if "step" in fields)
    assert "model" == completed["kind"]
    assert load(path.with_name("in_worker")).state.usage["input_tokens"] > 0
