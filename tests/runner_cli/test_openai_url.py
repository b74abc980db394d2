"""OPENAI_BASE_URL as the URL of a chat model or a judge."""

from pathlib import Path

import pytest

from evaljournal.journal.events import RunStarted
from evaljournal.runner.cli.options.openai_url import options_from_environment
from tests.runner_cli.commands import evaljournal
from tests.runs import events
from tests.server import Server

pytestmark = pytest.mark.usefixtures("dataset")

CHAT = ("run", "--data", "qa.jsonl", "--chat", "m", "--limit", 1)


@pytest.fixture(autouse=True)
def url(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set both variables; return the URL of a server whose first reply is 401."""
    address = server.url(name, "401,ok", "v1")
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
    return address


def test_a_new_run_records_the_url(server: Server, name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run calls the URL with OPENAI_API_KEY and records it; `resume` uses the recorded URL."""
    dry_run = evaljournal(*CHAT, "--dry-run")
    stopped = evaljournal(*CHAT)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    resumed = evaljournal("resume")
    reference = f"--data qa.jsonl --chat m --base-url {url} --key-env OPENAI_API_KEY"

    assert (3, 0) == (stopped.exit_code, resumed.exit_code), resumed.stderr
    assert ["Bearer key-of-openai"] * 2 == [request["headers"]["authorization"] for request in server.requests(name)]
    assert reference == events("runs/qa/0001", RunStarted)[0].task
    assert reference in dry_run.stdout


def test_a_resumed_run_does_not_read_the_variable(server: Server, name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was started without the variable keeps its URL when the variable is set later."""
    Path("eval.toml").write_text(f'data = "qa.jsonl"\nchat = "m"\nlimit = 1\nbase-url = "{url}"\n')
    monkeypatch.delenv("OPENAI_BASE_URL")
    evaljournal("run", "--config", "eval.toml")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    resumed = evaljournal("resume")

    assert 0 == resumed.exit_code, resumed.stderr
    assert [None, None] == [request["headers"].get("authorization") for request in server.requests(name)]


def test_rescore_with_a_judge(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that is added later is called at the URL."""
    evaljournal("run", "--data", "qa.jsonl", "--output-key", "question", "--limit", 1)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url(f"{name}-judge", "reply:verdict: correct", "v1"))
    result = evaljournal("rescore", "--judge", "big")

    assert 0 == result.exit_code, result.stderr
    assert ["Bearer key-of-openai"] == [request["headers"]["authorization"] for request in server.requests(f"{name}-judge")]


def test_no_other_key_is_sent_to_the_url(url: str) -> None:
    """The variable is not used if an option or a variant names a URL or a key."""
    chat = {"chat": ("m",)}
    chat_options = {"base_url": url, "key_env": "OPENAI_API_KEY"}
    judge_options = {"judge_url": url, "judge_key_env": "OPENAI_API_KEY"}

    assert chat_options == options_from_environment(chat)
    assert chat_options == options_from_environment({**chat, "header": ("X-Team: qa",)}, {"temperature": 0.0})
    assert chat_options == options_from_environment({**chat, "judge": "g", "judge_url": "http://h", "judge_key_env": "OTHER"})
    assert judge_options == options_from_environment({"endpoint": "http://h", "judge": "g"})
    for options in (
        ({},),
        ({"endpoint": "http://h"},),
        ({**chat, "base_url": "http://h"},),
        ({**chat, "key_env": "OTHER"},),
        ({**chat, "header": ("api-key: $OTHER",)},),
        ({**chat, "judge": "g", "judge_key_env": "OTHER"},),
        (chat, {"key_env": "OTHER"}),
        (chat, {"endpoint": "http://h"}),
        ({"endpoint": "http://h", "judge": "g", "judge_key_env": "OTHER"},),
    ):
        assert {} == options_from_environment(*options), options


def test_special_characters_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value is literal; a key in it is a usage error that does not repeat it."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://h/$x/{y}")
    literal = options_from_environment({"chat": ("m",)})["base_url"]
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:a-secret-1234@127.0.0.1:9/v1")
    rejected = evaljournal(*CHAT)

    assert "http://h/$$x/%7By%7D" == literal
    assert (2, False) == (rejected.exit_code, "a-secret-1234" in rejected.stderr)
    assert "pass --base-url 'http://$NAME@127.0.0.1:9/v1'" in rejected.stderr


def test_a_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OPENAI_API_KEY, nothing is started."""
    monkeypatch.delenv("OPENAI_API_KEY")
    result = evaljournal(*CHAT)

    assert (2, False) == (result.exit_code, Path("runs").exists())
    assert "needs the environment variable OPENAI_API_KEY" in result.stderr
