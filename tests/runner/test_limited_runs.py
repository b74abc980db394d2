"""Chat models and judges follow known rate limits, over real HTTP; requests that never fit are not sent."""

import json
import os
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks._provider_server import Served, serving
from benchmarks.simulated.providers import Anthropic, OpenAI, Server
from evaljournal import Case, Chat, RecordedOutput, verify
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptStarted,
    RateLimitSeen,
    ScorerCallStarted,
    ScoringFailed,
    StepCompleted,
)
from evaljournal.runner.scorers.llm_judge import Judge
from tests.processes import start_forked
from tests.runner.test_limited_calls import AGENT, RETRY, limited, unlimited
from tests.runner_cli.commands import evaljournal
from tests.runs import define_real, events, run_real
from tests.sdk_agents import KEY

CALLS: Final = 40
CASES: Final[list[Case[Any, Any]]] = [Case(name=f"case{number}", input=f"question {number}") for number in range(CALLS)]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


def chat_of(provider: type[Server], served: Served, **options: Any) -> Chat:
    if provider is Anthropic:
        return Chat("anthropic:claude", base_url=f"{served.root}/v1", **options)
    return Chat("gpt", base_url=f"{served.root}/v1", **options)


def echo(value: str) -> str:
    return value


@pytest.mark.parametrize("provider", [OpenAI, Anthropic])
def test_a_chat_model_follows_advertised_limits(path: Path, provider: type[Server]) -> None:
    """No call is rejected, and starts record what they need."""
    with serving(limited(provider)) as served:
        run_real(define_real(chat_of(provider, served), CASES, retry=RETRY, slots=8), path)
    [server] = served.servers.values()
    assert (CALLS, 0) == (server.accepted, server.rejected)
    assert sum(start.need is not None and start.need["requests"] == 1 for start in events(path, AttemptStarted)) >= CALLS - 8
    assert {"advertised"} == {event.source for event in events(path, RateLimitSeen)}
    assert verify(path).ok


def test_headers_are_ignored(path: Path) -> None:
    """With `headers: ignore`, limits in replies do not apply, and none is recorded."""
    with serving(limited(OpenAI)) as served:
        run_real(define_real(chat_of(OpenAI, served), CASES[:4], slots=4, limits={"headers": "ignore"}), path)
    assert [] == events(path, RateLimitSeen)
    assert all(start.need is None for start in events(path, AttemptStarted))


def test_a_chat_model_follows_declared_limits(path: Path) -> None:
    """Without headers, starts follow the limits that the user declares."""
    with serving(unlimited) as served:
        started = time.monotonic()
        run_real(define_real(chat_of(OpenAI, served), CASES, slots=8, limits={"rpm": 900}), path)
    assert time.monotonic() - started > 0.9 * CALLS / 15 - 1
    assert CALLS == sum(start.need == {"requests": 1} for start in events(path, AttemptStarted))
    assert verify(path).ok


def test_a_judge_follows_advertised_limits(path: Path) -> None:
    """Calls of a judge wait for the limits of its model."""
    with serving(limited(OpenAI)) as served:
        defined = define_real(echo, CASES, slots=8, stop_on_same_error=None)  # The server's answer has no verdict.
        defined.score(Judge(chat=chat_of(OpenAI, served), rubric="{output}\ncorrect"))
        run_real(defined, path)
    [server] = served.servers.values()
    assert (CALLS, 0) == (server.accepted, server.rejected)
    assert any(start.need == {"requests": 1} for start in events(path, ScorerCallStarted))
    assert verify(path).ok


def test_a_request_of_a_chat_model_that_never_fits(path: Path) -> None:
    """It fails its trial for good before anything is sent, takes nothing from the limit, and names it and the numbers."""
    with serving(unlimited) as served:
        chat = chat_of(OpenAI, served, max_tokens=5000)
        outcome = run_real(define_real(chat, CASES[:4], limits={"tpm": 1000}, retry=RETRY), path)
    assert (4, {}) == (outcome.state.failed, served.servers)
    assert outcome.state.t < 20
    for failure in events(path, AttemptFailed):
        assert ("fatal", "OverLimit") == (failure.category, failure.error.rpartition(".")[2])
        assert "but the limit is 1,000 per minute (tpm, declared)" in failure.message
    assert verify(path).ok


def test_a_request_of_a_judge_that_never_fits(path: Path) -> None:
    """The score fails, and nothing is sent."""
    with serving(unlimited) as served:
        defined = define_real(echo, "lima", limits={"gpt": {"tpm": 1000}}, retry=RETRY)
        defined.score(Judge(chat=chat_of(OpenAI, served, max_tokens=5000), rubric="{output}\ncorrect"))
        run_real(defined, path)
    assert {} == served.servers
    [failure] = events(path, ScoringFailed)
    assert "but the limit is 1,000 per minute (tpm, declared)" in failure.message


def test_a_declared_limit_holds_across_a_kill(tmp_path: Path) -> None:
    """After `kill -9` and a resume, the calls of both sessions together follow the limit; completed steps are not repeated."""
    (tmp_path / "it.py").write_text(AGENT)
    arguments = ["evaljournal", "run", "it.py:awaited", "--rpm", "600", "-o", "run"]
    times: list[float] = []

    class Recording(OpenAI):
        def start(self, t: float, request: Any) -> Any:
            times.append(time.monotonic())
            return super().start(t, request)

    with serving(lambda: Recording(limits=(), median=0.05)) as served:
        environment = {**os.environ, "SERVER": served.root, "MAX_TOKENS": "10"}
        with start_forked(arguments, tmp_path, environment) as process:
            while len(times) < 15:
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        with start_forked(arguments, tmp_path, environment) as process:
            assert 0 == process.wait()
    assert 40 <= len(times) <= 40 + 8
    # On a busy machine, some arrive late and so at once; `verify` checks each minute of the recorded starts.
    assert times[-1] - times[0] >= (len(times) - 10) / 10
    assert verify(tmp_path / "run").ok


def test_a_day_limit_lets_calls_in_flight_end(path: Path) -> None:
    """A declared limit per day starts nothing more, and the calls that it allowed keep their time, whatever the grace.

    `status` says what the ending of the run says, and `status --json` has the time to resume.
    """
    with serving(lambda: OpenAI(limits=(), median=0.5)) as served:
        outcome = run_real(define_real(chat_of(OpenAI, served), CASES, limits={"rpd": 3}, grace=0.0), path)
    status, status_json = evaljournal("status", path), evaljournal("status", path, "--json")
    after = datetime.fromisoformat(json.loads(status_json.stdout)["resume_after"]).timestamp()

    text = "; the declared limit of requests per day (rpd) is used up"
    assert (3, "quota") == (outcome.state.completed, outcome.stop_reason)
    assert [True] == [line.startswith("  resume after ") for line in status.stdout.splitlines() if line.endswith(text)]
    assert 86_000 < after - time.time() <= 86_400


def test_recorded_outputs_do_not_wait(path: Path) -> None:
    """Nothing is called for a recorded output, so a limit of requests does not apply to it."""
    outcome = run_real(define_real(RecordedOutput("input"), CASES, limits={"rpm": 10}), path)

    assert (CALLS, []) == (outcome.state.completed, outcome.problems)
    assert {None} == {start.need for start in events(path, AttemptStarted)}


def test_the_first_turn_is_counted_once(path: Path) -> None:
    """The first call of a conversation is admitted with its attempt, which has its need; later turns have their own."""
    with serving(lambda: OpenAI(limits=(), median=0.01)) as served:
        chat = Chat("m", base_url=f"{served.root}/v1", turns="input")
        cases = [Case(name="a", input=["one", "two", "three"])]
        run_real(define_real(chat, cases, limits={"rpm": 6000}), path)
    assert [None, {"requests": 1}, {"requests": 1}] == [step.need for step in events(path, StepCompleted)]
    assert [{"requests": 1}] == [start.need for start in events(path, AttemptStarted)]
    assert verify(path).ok
    for rows, needs in (("attempts", [{"requests": 1}]), ("steps", [None, {"requests": 1}, {"requests": 1}])):
        lines = evaljournal("export", path, "--rows", rows, "--format", "jsonl").stdout.splitlines()
        assert needs == [json.loads(line)["need"] for line in lines]
