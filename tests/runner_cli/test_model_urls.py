"""URLs and keys of models and judges: options, and variables such as OPENAI_BASE_URL."""

from pathlib import Path

import orjson
import pytest

from evaljournal import UsageError
from evaljournal.journal.events import RunStarted
from evaljournal.runner.cli.options.model_urls import options_from_environment
from evaljournal.runner.cli.options.no_code import scorers_from_options
from tests.runner_cli.commands import evaljournal, rejected
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
    dry_run = evaljournal(*CHAT, "--dry-run", "--json")
    stopped = evaljournal(*CHAT)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    resumed = evaljournal("resume")
    options = {"data": "qa.jsonl", "chat": ["m"], "base-url": url, "key-env": "OPENAI_API_KEY"}

    assert (3, 0) == (stopped.exit_code, resumed.exit_code), resumed.stderr
    assert ["Bearer key-of-openai"] * 2 == [request["headers"]["authorization"] for request in server.requests(name)]
    reference = events("runs/qa/0001", RunStarted)[0].task
    assert {"options": options} == orjson.loads(reference)
    assert reference == orjson.loads(dry_run.stdout)["task"]


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
    assert chat_options == options_from_environment(
        {**chat, "judge": ("g",), "judge_url": "http://h", "judge_key_env": "OTHER"}
    )
    assert judge_options == options_from_environment({"endpoint": "http://h", "judge": ("g",)})
    for options in (
        ({},),
        ({"endpoint": "http://h"},),
        ({**chat, "base_url": "http://h"},),
        ({**chat, "key_env": "OTHER"},),
        ({**chat, "header": ("api-key: $OTHER",)},),
        ({**chat, "judge": ("g",), "judge_key_env": "OTHER"},),
        (chat, {"key_env": "OTHER"}),
        (chat, {"endpoint": "http://h"}),
        ({"endpoint": "http://h", "judge": ("g",), "judge_key_env": "OTHER"},),
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


def test_the_variables_of_a_dialect(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables are those of the model's provider; the first key that is set is used."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://claude")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    unset_key = options_from_environment({"chat": ("anthropic:a", "anthropic:b")})
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token")

    assert {"base_url": "http://claude", "key_env": "ANTHROPIC_API_KEY"} == unset_key
    assert {"base_url": "http://claude", "key_env": "ANTHROPIC_AUTH_TOKEN"} == options_from_environment({"chat": "anthropic:a"})
    assert {"base_url": url, "key_env": "OPENAI_API_KEY"} == options_from_environment({"chat": ("m", "responses:m", "chat:m")})


def test_a_judge_of_another_provider(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not use the URL and the key of the task; its own variables apply, and one of the same provider inherits."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-anthropic")
    monkeypatch.delenv("OPENAI_BASE_URL")
    task = {"base_url": "http://h", "key_env": "OPENAI_API_KEY"}
    texts = ("g", "claude=anthropic:a", "same=responses:g")
    judges = dict(scorers_from_options({"judge": texts, **task}, ["m"]))
    monkeypatch.setenv("OPENAI_BASE_URL", url)

    assert {
        "judge": ("http://h", "OPENAI_API_KEY"),
        "claude": (None, None),
        "same": ("http://h", "OPENAI_API_KEY"),
    } == {name: (judge.chat.base_url, judge.chat.key_env) for name, judge in judges.items()}
    assert {"judge_url": url, "judge_key_env": "OPENAI_API_KEY"} == options_from_environment(
        {"chat": "anthropic:a", "judge": ("g",)}
    )
    assert {"base_url": url, "key_env": "OPENAI_API_KEY"} == options_from_environment(
        {"chat": "m", "judge": ("anthropic:a",), "judge_key_env": "OTHER"}
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--chat", "anthropic:a"), "OPENAI_BASE_URL is set, but the models are of several providers"),
        (("--chat", "anthropic:a", "--base-url", "http://h"), "--base-url would apply to models of several providers"),
        (("--chat", "anthropic:a", "--key-env", "OTHER"), "--key-env would apply to models of several providers"),
        (("--chat", "anthropic:a", "--header", "x-key: $OTHER"), "--header would apply to models of several providers"),
        (("--judge", "anthropic:a", "--judge", "m", "--judge-url", "http://h"), "--judge-url would apply to models of several"),
    ],
)
def test_models_of_several_providers(options: tuple[str, ...], message: str) -> None:
    """An option or a variable that would send a key of one provider to another is a usage error; nothing is started."""
    assert message in rejected(*CHAT, *options)
    assert not Path("runs").exists()


def test_a_variable_for_some_of_the_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL that would apply to all judges is a usage error if they are of several providers."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://claude")
    with pytest.raises(UsageError, match="ANTHROPIC_BASE_URL is set, but the judges are of several providers"):
        options_from_environment({"chat": "m", "judge": ("g", "anthropic:a")})


def test_models_of_several_providers_without_options(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables with a URL and a key for each variant may have models of several providers."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-anthropic")
    claude, gpt = (server.url(f"{name}-{model}", "ok", end) for model, end in (("claude", ""), ("gpt", "v1")))
    Path("eval.toml").write_text(
        'data = "qa.jsonl"\nlimit = 1\n'
        f'[[variant]]\nname = "claude"\nchat = "anthropic:c"\nbase-url = "{claude}"\nkey-env = "ANTHROPIC_API_KEY"\n'
        f'[[variant]]\nname = "gpt"\nchat = "g"\nbase-url = "{gpt}"\nkey-env = "OPENAI_API_KEY"\n'
    )
    shared = rejected("run", "--config", "eval.toml", "--base-url", claude)
    assert "--base-url would apply to models of several providers" in shared
    result = evaljournal("run", "--config", "eval.toml")
    (claude_request,), (gpt_request,) = server.requests(f"{name}-claude"), server.requests(f"{name}-gpt")

    assert 0 == result.exit_code, result.stderr
    assert ("key-of-anthropic", None) == tuple(claude_request["headers"].get(key) for key in ("x-api-key", "authorization"))
    assert (None, "Bearer key-of-openai") == tuple(gpt_request["headers"].get(key) for key in ("x-api-key", "authorization"))
