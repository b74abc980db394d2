"""The gateway: an agent in any language calls models through it, and each call is a step of its attempt."""

import json
import sys
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from evaljournal import Endpoint, UsageError, gateway_env, verify
from evaljournal.journal.events import AttemptFailed, RunStopped, StepCompleted, StepFailed, StepReused
from evaljournal.runner.calls.command import Command
from tests.gateway import KEY, ask, evaluate, statuses
from tests.processes import TIMEOUT
from tests.programs import find_program
from tests.runs import events, outputs
from tests.server import Server

OTHER_VARIABLES: Final = ("ANTHROPIC_AUTH_TOKEN", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_API_KEY", "GEMINI_API_KEY")
PYTHON_AGENT: Final = """
import json, os, sys, urllib.request
conversation = []
for question in json.load(sys.stdin):
    conversation.append({"role": "user", "content": question})
    body = json.dumps({"model": "gpt-4o-mini", "messages": conversation}).encode()
    with urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body) as reply:
        conversation.append(json.load(reply)["choices"][0]["message"])
print(conversation[-1]["content"])
"""
NODE_AGENT: Final = """
let conversation = [];
for (const question of JSON.parse(require("fs").readFileSync(0))) {
  conversation.push({role: "user", content: question});
}
fetch(process.env.ANTHROPIC_BASE_URL + "/v1/messages", {
  method: "POST",
  headers: {"content-type": "application/json", "x-api-key": process.env.ANTHROPIC_API_KEY, "anthropic-version": "2023-06-01"},
  body: JSON.stringify({model: "claude-haiku", max_tokens: 10, messages: conversation}),
}).then(reply => reply.json()).then(reply => console.log(reply.content[0].text));
"""
SHELL_AGENT: Final = """
curl --silent --fail-with-body "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" \
  --json '{"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Peru?"}]}'
"""


@pytest.mark.parametrize(
    ("program", "text", "step"),
    [
        (sys.executable, PYTHON_AGENT, "chat.completions gpt-4o-mini"),
        ("node", NODE_AGENT, "messages claude-haiku"),
        ("sh", SHELL_AGENT, "chat.completions gpt-4o-mini"),
    ],
    ids=["python", "node", "sh"],
)
def test_agents_in_several_languages(path: Path, provider: Callable[[str], None], program: str, text: str, step: str) -> None:
    """A command calls the real provider through the gateway; its calls are steps with usage."""
    if program == "node":
        find_program("node", package="nodejs")
    elif program == "sh":
        find_program("curl", package="curl")
    Path("agent").write_text(text)
    outcome = evaluate(Command([program, "agent"]), path, "Peru?")
    (completed,) = events(path, StepCompleted)

    assert "PERU?" in outputs(path)[0]
    assert (step, "model", 200) == (completed.name, completed.kind, completed.output["status"])
    assert (1000, 100) == (outcome.state.usage["input_tokens"], outcome.state.usage["output_tokens"])
    assert verify(path).ok


def test_keys_stay_in_the_process_of_the_run(
    path: Path, server: Server, name: str, provider: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider gets the real key; the agent a dummy, in every variable that contains a key; the journal has neither."""
    provider("echo")
    monkeypatch.setenv("COPY_OF_KEY", KEY)
    monkeypatch.setenv("CONFIG_WITH_KEYS", json.dumps({"openai": KEY, "url": f"https://me:{KEY}-of-anthropic@proxy.example/"}))
    evaluate(Command("sh -c 'env; curl -s --json 1 $OPENAI_BASE_URL/chat/completions'"), path, "Peru?")
    (output,) = outputs(path)
    variables = dict(line.partition("=")[::2] for line in output.splitlines())
    journal = b"".join(file.read_bytes() for file in path.glob("*.jsonl"))

    assert [f"Bearer {KEY}"] == [call["headers"]["authorization"] for call in server.requests(name)]
    assert {"sk-evaljournal-gateway"} == {variables[name] for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "COPY_OF_KEY")}
    config = {"openai": "sk-evaljournal-gateway", "url": "https://me:sk-evaljournal-gateway@proxy.example/"}
    assert config == json.loads(variables["CONFIG_WITH_KEYS"])
    assert variables["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
    assert variables["OPENAI_BASE_URL"].endswith("/openai/v1")
    assert "/***-" in variables["OPENAI_BASE_URL"], "the token is masked"
    assert "127.0.0.1" in variables["NO_PROXY"].split(",")
    assert KEY.encode() not in journal


def test_headers_that_the_provider_gets(path: Path, server: Server, name: str, provider: Callable[[str], None]) -> None:
    """Headers of the API are forwarded; all others are not: they could change the path, the method or the credentials."""

    def agent(_: Any) -> int:
        url = urlsplit(gateway_env()["ANTHROPIC_BASE_URL"] + "/v1/messages?beta=true")
        headers = {
            "anthropic-version": "2023-06-01",
            "Anthropic-Beta": "b",
            "Idempotency-Key": "i",
            "x-api-key": "dummy",
            "Authorization": "Bearer dummy",
            "Cookie": "c",
            "X-Stainless-Lang": "python",
            "Accept-Encoding": "gzip",
            "Keep-Alive": "5",
            "X-Original-URL": "/v1/files",
            "X-HTTP-Method-Override": "DELETE",
            "Origin": "https://elsewhere.example",
            "X-Forwarded-Host": "elsewhere.example",
        }
        with closing(HTTPConnection(url.netloc, timeout=TIMEOUT)) as connection:
            connection.request("POST", f"{url.path}?{url.query}", '{"messages": [{"content": "a"}]}', headers)
            return connection.getresponse().status

    evaluate(agent, path)
    (call,) = server.requests(name)

    assert [200] == outputs(path)
    assert call["target"].endswith("/api/v1/messages?beta=true")
    assert {"anthropic-version": "2023-06-01", "anthropic-beta": "b", "idempotency-key": "i"}.items() <= call["headers"].items()
    assert {"x-api-key": f"{KEY}-of-anthropic", "accept-encoding": "identity"}.items() <= call["headers"].items()
    own_headers = {"host", "connection", "user-agent", "accept-encoding", "x-api-key", "content-length"}
    assert {"anthropic-version", "anthropic-beta", "idempotency-key"} == call["headers"].keys() - own_headers


def _ask_gemini(path: str, body: Any) -> tuple[int, str]:
    url = urlsplit(gateway_env()["GOOGLE_GEMINI_BASE_URL"] + path)
    with closing(HTTPConnection(url.netloc, timeout=TIMEOUT)) as connection:
        connection.request("POST", f"{url.path}?{url.query}", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


@pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent"])
def test_geminis_paths(path: Path, server: Server, name: str, provider: Callable[[str], None], method: str) -> None:
    """The model is in the path; the call is a step with usage, and the key of the agent in the query is not forwarded."""
    provider("429,sse" if method.startswith("stream") else "429,ok")

    def agent(questions: list[str]) -> list[Any]:
        body = {"contents": [{"role": "user", "parts": [{"text": questions[0]}]}]}
        key = gateway_env()["GEMINI_API_KEY"]
        return [*_ask_gemini(f"/v1beta/models/gemini-3.8-flash:{method}?alt=sse&key={key}", body)]

    outcome = evaluate(agent, path, "Peru?")
    (completed,) = events(path, StepCompleted)
    calls = server.requests(name)

    assert 200 == outputs(path)[0][0]
    assert '"finishReason":"STOP"' in outputs(path)[0][1].replace(" ", "")
    assert (f"{method} gemini-3.8-flash", "model") == (completed.name, completed.kind)
    assert {1000, 100} == {outcome.state.usage["input_tokens"], outcome.state.usage["output_tokens"]}
    assert [f"/api/v1beta/models/gemini-3.8-flash:{method}?alt=sse"] * 2 == [
        f"/api{call['target'].partition('/api')[2]}" for call in calls
    ]
    assert {f"{KEY}-of-gemini"} == {call["headers"]["x-goog-api-key"] for call in calls}
    assert (1, 1) == (len(events(path, StepFailed)), len(events(path, AttemptFailed)) + 1)


def test_a_model_in_a_path_cannot_change_the_path(
    path: Path, server: Server, name: str, provider: Callable[[str], None]
) -> None:
    """A model has letters, digits and a few other characters; any other path is not forwarded."""
    provider("ok")
    models = ("../files", "a/b", "..", "a%2f..%2fb", "a:b", "", "x" * 201)

    def agent(_: Any) -> list[int]:
        return [_ask_gemini(f"/v1beta/models/{model}:generateContent", {})[0] for model in models]

    evaluate(agent, path)

    assert [[404] * len(models)] == outputs(path)
    assert [] == server.requests(name)


def test_an_outage_ends_the_attempt(path: Path, server: Server, name: str, provider: Callable[[str], None]) -> None:
    """A 500 ends the attempt immediately; the next one continues with the call that failed."""
    provider("ok,500,ok")
    evaluate(Command([sys.executable, "-c", PYTHON_AGENT.replace("{", "{{").replace("}", "}}")]), path, "a", "b", "c")
    (failed,) = events(path, AttemptFailed)

    assert ("unavailable", "evaljournal.BadStatus") == (failed.category, failed.error)
    assert [(1, 2)] == [(step.attempt, step.step) for step in events(path, StepFailed)]
    assert [(2, 1)] == [(step.attempt, step.step) for step in events(path, StepReused)]
    assert [(1, 1), (2, 2), (2, 3)] == [(step.attempt, step.step) for step in events(path, StepCompleted)]
    assert 4 == len(server.requests(name))
    assert ["C"] == outputs(path)
    assert verify(path).ok


@pytest.mark.parametrize(
    ("step", "status", "category"),
    [
        ("500", 500, "unavailable"),
        *((step, 502, "unavailable") for step in ("reset", "close", "cut")),
        ("notjson", 200, "unavailable"),
        ("redirect", 502, "fatal"),
    ],
)
def test_a_provider_that_fails(  # noqa: PLR0917  # fixtures
    path: Path, server: Server, name: str, provider: Callable[[str], None], step: str, status: int, category: str
) -> None:
    """The attempt of an agent that ignores the error fails: an outage must not become a wrong answer.

    The error has the header that turns off the retries of SDKs, and calls after it fail without a request.
    """
    provider(f"{step},ok")
    replies: list[tuple[int, str | None]] = []

    def agent(questions: list[str]) -> str:
        replies.extend((status, headers.get("x-should-retry")) for status, headers, _ in map(ask, questions))
        return "done"

    evaluate(agent, path, "a", "b")

    assert [(status, "false"), (503, "false")] == replies[:2]
    assert [(200, None)] * (0 if category == "fatal" else 2) == replies[2:]
    assert (1 if category == "fatal" else 3) == len(server.requests(name))
    assert [category] == [failed.category for failed in events(path, AttemptFailed)]
    assert 1 == len(events(path, StepFailed))
    assert ["done"] * (category != "fatal") == outputs(path)


@pytest.mark.parametrize("step", ["401", "403", "spent"])
def test_a_key_that_is_not_accepted_stops_the_run(path: Path, provider: Callable[[str], None], step: str) -> None:
    """Every other call would fail in the same way, as for a chat model."""
    provider(step)
    outcome = evaluate(statuses, path, "a")

    assert "unauthorized" == outcome.stop_reason
    assert ["unauthorized"] == [stopped.reason for stopped in events(path, RunStopped)]


def test_a_request_that_is_wrong_is_the_agents_own_error(path: Path, provider: Callable[[str], None]) -> None:
    """A 400 is recorded and returned; the agent decides."""
    provider("400,404,ok")
    evaluate(statuses, path, "a", "b", "c")

    assert [[400, 404, 200]] == outputs(path)
    assert ["evaljournal.BadStatus"] * 2 == [step.error for step in events(path, StepFailed)]


def test_a_missing_key_stops_the_run(path: Path, provider: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider without a key is an error when it is called, with the variable to set."""
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.delenv("OPENAI_BASE_URL")
    outcome = evaluate(statuses, path, "a")
    (failed,) = events(path, AttemptFailed)

    assert "unauthorized" == outcome.stop_reason
    assert failed.message.startswith("OPENAI_API_KEY is not set")


@pytest.mark.parametrize(
    ("variables", "task", "match"),
    [
        ({}, statuses, "OPENAI_API_KEY or ANTHROPIC_API_KEY or GEMINI_API_KEY"),
        ({"OPENAI_BASE_URL": "ftp://x"}, statuses, "OPENAI_BASE_URL"),
        ({"OPENAI_API_KEY": KEY}, Endpoint("http://127.0.0.1:9/"), "only commands and functions"),
    ],
)
def test_wrong_use_is_found_before_the_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], task: Any, match: str
) -> None:
    """Without a key, with an invalid address, or with a task that makes its own calls, nothing starts."""
    for name in (*(f"{api}_{part}" for api in ("OPENAI", "ANTHROPIC") for part in ("BASE_URL", "API_KEY")), *OTHER_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=match):
        evaluate(task, path, "a")

    assert not path.exists()


def test_outside_an_attempt_there_is_no_gateway() -> None:
    """A function can be tested without a run: its client then uses the usual variables."""
    assert {} == gateway_env()
