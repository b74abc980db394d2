"""The commands in docs/providers.md, against a server that answers as each provider does; only the hosts are replaced."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from evaljournal.journal.events import Noted
from evaljournal.replay import load
from evaljournal.replay.results.summary import summarize
from evaljournal.runner.calls.dialects import dialect_by_name, names
from tests.processes import ROOT
from tests.providers import HOSTS, Providers, serving_providers
from tests.runner_cli.commands import evaljournal
from tests.runs import events, outputs
from tests.test_docs import blocks, commands

PAGE: Final = ROOT / "docs" / "providers.md"
CASES: Final = next(text for language, name, text in blocks(PAGE) if name == "qa.jsonl")
COMMANDS: Final = [command for language, _, text in blocks(PAGE) if language == "sh" for command, _ in commands(text)]
KEYS: Final = {
    name: f"key-of-{name.lower()}"
    for name in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", PAGE.read_text())
    if "KEY" in name or "TOKEN" in name
}
CHAT: Final = "/chat/completions"


@attrs.frozen
class Expected:
    """What a provider receives, and what a run records."""

    host: str
    target: str
    key: str
    """Header and variable of the key; empty without one."""
    attempts: int = 2
    body: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """Some parameters of every request."""
    outputs: tuple[str, ...] = ("Lima", "Tokyo")
    code: int = 0
    usage: Mapping[str, float] = attrs.field(factory=dict[str, float])
    declined: int = 0
    warnings: int = 0


GEMINI: Final = "generativelanguage.googleapis.com"
AZURE: Final = "my-resource.openai.azure.com"
DECLINED: Final[Any] = {"key": "api-key AZURE_OPENAI_API_KEY", "outputs": ("", "Lima"), "declined": 1, "warnings": 1}
EXPECTED: Final = [
    Expected(
        "api.openai.com",
        f"/v1{CHAT}",
        "authorization OPENAI_API_KEY",
        attempts=3,
        usage={"cached_tokens": 1000, "cache_write_tokens": 400},
    ),
    Expected("api.openai.com", "/v1/responses", "authorization OPENAI_API_KEY", attempts=3, body={"store": False}),
    Expected(
        "api.anthropic.com",
        "/v1/messages",
        "x-api-key ANTHROPIC_API_KEY",
        attempts=3,
        body={"max_tokens": 4096},
        usage={"input_tokens": 2000, "cached_tokens": 1000},
    ),
    Expected(
        GEMINI,
        "/v1beta/models/gemini-3.8-flash:generateContent",
        "x-goog-api-key GEMINI_API_KEY",
        attempts=3,
        usage={"output_tokens": 200, "reasoning_tokens": 80},
    ),
    Expected(GEMINI, f"/v1beta/openai{CHAT}", "authorization GEMINI_API_KEY", attempts=3),
    Expected(AZURE, f"/openai/v1{CHAT}", **DECLINED, body={"model": "gpt-5.6-luna"}),
    Expected(AZURE, f"/openai/deployments/my-deployment{CHAT}?api-version=2024-10-21", **DECLINED),
    Expected(
        "bedrock-runtime.us-east-1.amazonaws.com",
        f"/openai/v1{CHAT}",
        "authorization AWS_BEARER_TOKEN_BEDROCK",
        attempts=3,
        body={"model": "openai.gpt-oss-120b-1:0", "max_tokens": 1000},
    ),
    Expected("openrouter.ai", f"/api/v1{CHAT}", "authorization OPENROUTER_API_KEY", attempts=3, usage={"cost": 0.5}),
    Expected("api.groq.com", f"/openai/v1{CHAT}", "authorization GROQ_API_KEY", attempts=3),
    Expected("api.together.xyz", f"/v1{CHAT}", "authorization TOGETHER_API_KEY", attempts=3),
    Expected("api.mistral.ai", f"/v1{CHAT}", "authorization MISTRAL_API_KEY"),
    Expected("localhost:8000", f"/v1{CHAT}", "", outputs=("Lima",), code=1),
    Expected("localhost:11434", f"/v1{CHAT}", "", body={"model": "qwen3:8b"}, usage={"input_tokens": 4}, warnings=1),
    Expected(
        "localhost:4000", f"/v1{CHAT}", "authorization LITELLM_API_KEY", body={"model": "team-default"}, usage={"cost": 0.0003}
    ),  # That of the model that answered.
]
"""What is expected of each command of the page, in its order."""


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Serve as the providers, under their hosts, with their keys."""
    with serving_providers() as providers:
        urls = {type(dialect): dialect.base_url for dialect in map(dialect_by_name, names())}
        for kind, url in urls.items():
            monkeypatch.setattr(kind, "base_url", local(url, providers))
        for name, key in KEYS.items():
            monkeypatch.setenv(name, key)
        Path("qa.jsonl").write_text(CASES)
        yield providers


def local(text: str, providers: Providers) -> str:
    """Replace the hosts of URLs."""
    return re.sub(r"https?://([\w.:-]+)", rf"{providers.root}/\1", text)


@pytest.mark.parametrize("number", range(len(EXPECTED)), ids=[expected.host for expected in EXPECTED])
def test_command(number: int, providers: Providers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of a provider sends the right request to the right place with the right key, and reads its replies."""
    for name in ("ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name)
    command, expected = COMMANDS[number], EXPECTED[number]
    result = evaljournal(*[local(word, providers) for word in command[1:]], "--slots", "1", "-s", "policy=fixed", "-o", "run")
    state = load(Path("run")).state
    summary = summarize(state)

    assert expected.code == result.exit_code, result.output
    assert {(expected.host, expected.target)} == {(request.host, request.target) for request in providers.requests}
    assert expected.attempts == len(providers.requests) == state.totals.attempts
    for request in providers.requests:
        assert keys_in(request.headers) == [expected.key] * bool(expected.key)
        assert expected.body == {name: request.body[name] for name in expected.body}
    assert expected.outputs == tuple(sorted(outputs(Path("run"))))
    assert expected.usage == {name: round(state.usage[name], 9) for name in expected.usage}
    assert expected.warnings == len(summary.warnings)
    answers = [note.value for note in events(Path("run"), Noted) if note.name == "evaljournal.answer"]
    assert expected.declined == sum(answer.get("outcome") == "declined" for answer in answers)


def keys_in(headers: Mapping[str, str]) -> list[str]:
    """Return the headers with a key, each with the variable of the key."""
    variables = {key: name for name, key in KEYS.items()}
    return [f"{name} {variables[value.removeprefix('Bearer ')]}" for name, value in headers.items() if "key-of-" in value]


def test_every_command_is_tested() -> None:
    """The page has a command for each provider of the server, and no other."""
    assert len(COMMANDS) == len(EXPECTED)
    assert HOSTS.keys() == {expected.host for expected in EXPECTED}
    for command, expected in zip(COMMANDS, EXPECTED, strict=True):
        urls = re.findall(r"https?://([\w.:-]+)", " ".join(command))
        assert urls in ([expected.host], []), command
