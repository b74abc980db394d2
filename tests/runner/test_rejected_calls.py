"""Model calls inside an attempt that the provider rejects for now: they wait in place, and are sent again."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from evaljournal import ProcessWorkers, Retry, verify
from evaljournal.journal.events import AttemptFailed, AttemptStarted, StepCompleted, StepFailed, StepReused, TrialFailed
from evaljournal.runner.definition.loading import load_evaluation
from tests.gateway import ask, evaluate, gateway_address, statuses
from tests.runs import define_real, events, outputs, run_real
from tests.sdk_agents import (
    CLIENTS,
    TURNS,
    Agent,
    Turn,
    chat,
    chat_async,
    chat_streamed,
    gateway_client,
    make_client,
    message_async_streamed,
    responses,
)
from tests.server import Server

RETRY: Final = Retry(rate_limits=30.0, errors=1, base_delay=0.01)
SLACK: Final = 0.001
"""Seconds by which recorded times may differ, because they are rounded."""


def kinds(path: Path) -> tuple[int, ...]:
    """Return how many attempts were started, and how many steps were completed, failed and reused."""
    return tuple(len(events(path, kind)) for kind in (AttemptStarted, StepCompleted, StepFailed, StepReused))


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # The OpenAI SDK leaves its own open.
@pytest.mark.parametrize("way", ["durable", "gateway"])
@pytest.mark.parametrize(
    ("turn", "loop"),
    [(chat, None), (chat_streamed, None), (responses, None), (chat_async, "asyncio"), (message_async_streamed, "trio")],
)
@pytest.mark.parametrize("rejection", ["429:0.05", "503"])
def test_the_attempt_of_an_sdk_continues(  # noqa: PLR0917  # fixtures
    path: Path, server: Server, name: str, provider: Callable[[str], None], turn: Turn, loop: Any, way: str, rejection: str
) -> None:
    """The SDK gets the reply of the second try; the first one is a failed step, and its wait is recorded."""
    ok = "sse" if "streamed" in turn.__name__ else "ok"
    steps = f"{ok},{ok},{rejection},{ok}"
    provider(steps)

    def new_client() -> Any:
        return gateway_client(turn) if way == "gateway" else make_client(server.url(name, steps, "api"), CLIENTS[turn])

    agent = Agent(new_client, turn)
    setting: Any = {"gateway": True} if way == "gateway" else {"durable": "http"}
    task = agent.plain if loop is None else agent.awaited
    outcome = run_real(define_real(task, loop=loop, retry=RETRY, **setting), path)
    [failed], completed = events(path, StepFailed), events(path, StepCompleted)

    assert ["LIMA 0 1"] == outputs(path)
    assert (1, TURNS, 1, 0) == kinds(path)
    assert TURNS + 1 == len(server.requests(name))
    assert failed.fingerprint == completed[-1].fingerprint
    assert [True, True] == [step.waited == 0 for step in completed[:2]]
    assert completed[-1].waited >= (0.05 if "429" in rejection else 0.0)
    assert outcome.state.steps.seconds_waited == pytest.approx(completed[-1].waited)
    assert verify(path).ok


def test_a_rate_limit_at_every_sixth_call_is_no_livelock(
    path: Path, server: Server, name: str, provider: Callable[[str], None]
) -> None:
    """A trial of nine calls makes ten: before, the attempt ended at the sixth, again and again."""
    provider(",".join([*["ok"] * 5, "429:0.05", *["ok"] * 4]))
    evaluate(statuses, path, *map(str, range(9)))

    assert [[200] * 9] == outputs(path)
    assert (1, 9, 1, 0) == kinds(path)
    assert 10 == len(server.requests(name))


@pytest.mark.parametrize(
    ("steps", "requests", "category"),
    [("429:60,ok", 1, "rate_limited"), ("503,503,503,ok", 3, "unavailable"), ("401", 1, "fatal")],
)
def test_used_up_retries_end_the_attempt(  # noqa: PLR0917  # fixtures
    path: Path, server: Server, name: str, provider: Callable[[str], None], steps: str, requests: int, category: str
) -> None:
    """A longer `Retry-After` than the budget, or more rejections, count once: the next attempt does not wait as long again."""
    provider(steps)
    evaluate(statuses, path, "a", retry=RETRY)

    assert requests == len(server.requests(name))
    assert {category} == {failure.category for failure in events(path, AttemptFailed)}
    assert (category != "fatal") == bool(events(path, TrialFailed))
    assert verify(path).ok


def test_nothing_is_sent_if_the_agent_hangs_up(path: Path, server: Server, name: str, provider: Callable[[str], None]) -> None:
    """The wait ends with the connection."""
    provider("429:1,ok")

    def agent(_: Any) -> str:
        url = gateway_address()
        connection = HTTPConnection(url.netloc, timeout=0.2)
        with suppress(TimeoutError):
            connection.request("POST", url.path, b'{"model": "m", "messages": []}')
            connection.getresponse()
        connection.close()
        time.sleep(1.2)
        return "gave up"

    evaluate(agent, path, "a")

    assert ["gave up"] == outputs(path)
    assert 1 == len(server.requests(name))
    assert (1, 0, 1, 0) == kinds(path)
    assert verify(path).ok


def test_the_wait_does_not_count_against_the_timeout(
    path: Path, server: Server, name: str, provider: Callable[[str], None]
) -> None:
    """An attempt may wait longer than its timeout."""
    provider("429:1.5,ok")

    def agent(questions: list[str]) -> int:
        return ask(questions[0])[0]

    outcome = evaluate(agent, path, "a", timeout=1.0)

    assert [200] == outputs(path)
    assert 2 == len(server.requests(name))
    latency = outcome.state.trials["it"].latency
    assert latency is not None
    assert latency < 1.0


def test_a_retry_after_closes_the_key(path: Path, server: Server, name: str) -> None:
    """Another call of the same key that starts during the wait is not sent before its end."""
    steps = "429:1,ok,ok"

    async def agent(_: Any) -> float:
        async with make_client(server.url(name, steps, "api"), openai.AsyncOpenAI) as client:
            rejected = asyncio.create_task(chat_async(client, [{"role": "user", "content": "first"}]))
            await asyncio.sleep(0.4)
            started_at = time.monotonic()
            await chat_async(client, [{"role": "user", "content": "second"}])
            await rejected
            return time.monotonic() - started_at

    run_real(define_real(agent, loop="asyncio", durable="http", retry=RETRY), path)
    [seconds] = outputs(path)

    assert seconds > 0.4
    assert 3 == len(server.requests(name))
    waits = [step.waited for step in events(path, StepCompleted)]
    assert [True, True] == [seconds > 0.4 for seconds in waits]
    assert [round(seconds, 6) for seconds in waits] == waits


AGENT: Final = """
import os
import httpx2, openai
from evaljournal import Case, Retry, evaluation

@evaluation(cases=[Case(name="it", input="lima")], durable="http", retry=Retry(rate_limits=30.0, errors=1, base_delay=0.01))
def it(value):
    with openai.OpenAI(base_url=os.environ["SERVER"], api_key="a-key", http_client=httpx2.Client(verify=False)) as client:
        reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": value}])
        return reply.choices[0].message.content
"""


def test_a_worker_waits_in_place(
    path: Path, tmp_path: Path, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session decides for the calls in its workers, too."""
    (tmp_path / "it.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERVER", server.url(name, "429:0.05,ok", "v1"))
    loaded = load_evaluation("it.py")
    run_real(loaded.evaluation, path, task=loaded.reference, quiet=True, workers=ProcessWorkers(1))

    assert (1, 1, 1, 0) == kinds(path)
    assert 2 == len(server.requests(name))
    assert events(path, StepCompleted)[0].waited >= 0.05 - SLACK
    assert verify(path).ok
