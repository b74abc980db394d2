"""Dialects by name: which prefixes are dialects, those of other packages, and the example in docs/dialects.md."""

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from evaljournal import Chat, Dialect, UsageError
from evaljournal.journal.events import Noted
from evaljournal.runner.calls.dialects import dialect_by_name, names, split_model
from evaljournal.runner.calls.dialects.anthropic import Anthropic
from evaljournal.runner.calls.dialects.completions import Completions
from evaljournal.runner.calls.dialects.gemini import Gemini
from evaljournal.runner.calls.dialects.responses import Responses
from tests.packages import install
from tests.processes import ROOT, run_command
from tests.runs import define_real, events, outputs, run_real
from tests.security.replies import replying
from tests.server import Server
from tests.test_docs import blocks


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("gpt-5.6-terra", ("", "gpt-5.6-terra")),
        ("llama3:8b", ("", "llama3:8b")),
        ("ollama/llama3:8b", ("", "ollama/llama3:8b")),
        ("ft:gpt-5.6-luna:org::id", ("", "ft:gpt-5.6-luna:org::id")),
        ("Responses:m", ("", "Responses:m")),
        ("responses:ft:m:org", ("responses", "ft:m:org")),
        ("anthropic:claude-haiku-5-5", ("anthropic", "claude-haiku-5-5")),
        ("chat:anthropic:x", ("chat", "anthropic:x")),
        ("chat:chat:x", ("chat", "chat:x")),
    ],
)
def test_prefixes(model: str, expected: tuple[str, str]) -> None:
    """Only the name of a dialect is a prefix, and only the first one; `chat:` forces chat completions."""
    assert expected == split_model(model)
    assert expected[1] == Chat(model, base_url="http://h").model_name


def test_unknown_and_contradicting_dialects() -> None:
    """A dialect that does not exist, and one that differs from the prefix, are usage errors."""
    with pytest.raises(UsageError, match=r"unknown dialect 'cohere'; use anthropic, chat, .*responses"):
        Chat("m", dialect="cohere")
    with pytest.raises(UsageError, match="name two dialects"):
        Chat("anthropic:m", dialect="responses")


def run_python(code: str, environment: dict[str, str]) -> str:
    return run_command(sys.executable, "-c", code, env=environment, check=True).stdout


def test_dialects_of_other_packages(tmp_path: Path) -> None:
    """An entry point is a prefix; a built-in name is not replaced, and one that fails to import is a usage error."""
    environment = install(
        tmp_path,
        {"broken.py": "raise RuntimeError('no library')"},
        {"dialects": {"chat": "broken:Chat", "own": "broken:Own", "lost": "missing:Lost", "other": "fractions:Fraction"}},
    )
    code = """
from evaljournal import Chat, UsageError
from evaljournal.runner.calls.dialects import split_model
print(split_model("own:m"), split_model("others:m"), type(Chat("chat:m", base_url="http://h").api).__name__)
for model in ("own:m", "lost:m", "other:m"):
    try:
        Chat(model)
    except UsageError as exc:
        print(exc)
"""
    lost = "the entry point 'lost' of example 1.0 (evaljournal.dialects: missing:Lost)"
    assert [
        "('own', 'm') ('', 'others:m') Completions",
        "the entry point 'own' of example 1.0 (evaljournal.dialects: broken:Own) cannot be used: RuntimeError: no library",
        f"{lost} cannot be used: ModuleNotFoundError: No module named 'missing'",
        f"the dialect 'other' (fractions:Fraction) lacks {', '.join(name for name in vars(Dialect) if name[0] != '_')}",
    ] == run_python(code, environment).splitlines()


def test_entry_points_are_read_only_for_unknown_prefixes() -> None:
    """Models without a colon, and those of built-in dialects, do not read the metadata of installed packages."""
    code = """
from evaljournal import entry_points
from evaljournal.runner.calls import dialects
for model in ("gpt-5.6-terra", "anthropic:x", "chat:a:b"):
    dialects.dialect_by_name(dialects.split_model(model)[0] or "chat")
print(entry_points.others.cache_info().misses)
dialects.split_model("llama3:8b"), dialects.split_model("llama3:8b")
print(entry_points.others.cache_info().misses)
"""
    assert "0\n1\n" == run_python(code, dict(os.environ))


def test_built_in_dialects() -> None:
    """Each built-in dialect has the members of `Dialect`; the default is chat completions."""
    typed: list[Dialect] = [Anthropic(), Completions(), Gemini(), Responses()]  # The type checkers compare these.
    members = {name for name in (*vars(Dialect), *Dialect.__annotations__) if not name.startswith("_")}

    assert {type(dialect) for dialect in typed} <= {type(dialect_by_name(name)) for name in names()}
    assert [] == [(name, member) for name in names() for member in members if not hasattr(dialect_by_name(name), member)]
    assert isinstance(Chat("m", base_url="http://h").api, Completions)


@pytest.mark.parametrize("stream", [False, True], ids=["reply", "stream"])
@pytest.mark.parametrize(
    ("dialect", "base", "target"),
    [
        ("chat", "v1", "/v1/chat/completions"),
        ("responses", "v1", "/v1/responses"),
        ("anthropic", "", "/v1/messages"),
        ("gemini", "", "/v1beta/models/m:generateContent"),
    ],
)
def test_a_run(server: Server, path: Path, name: str, *, dialect: str, base: str, target: str, stream: bool) -> None:
    """The path of the API is called, which may name the model of a case; a stream has a time to its first token."""
    base_url = server.url(name, "sse" if stream else "ok", base)
    target = target.replace(":generateContent", ":streamGenerateContent?alt=sse") if stream else target
    chat = Chat("{model}", dialect=dialect, base_url=base_url, prompt="{question}", stream=stream)
    run_real(define_real(chat, [{"question": "lima", "model": "m"}]), path)
    (request,) = server.requests(name)

    assert ["LIMA"] == outputs(path)
    assert request["target"].endswith(target)
    assert (stream and dialect != "gemini") == json.loads(request["body"]).get("stream", False)
    notes = [event.value for event in events(path, Noted) if event.name == "evaljournal.stream"]
    assert [{"first_byte", "first_token", "bytes"}] * stream == [set(value) for value in notes]


@pytest.mark.parametrize("stream", [False, True], ids=["reply", "stream"])
def test_the_documented_example(tmp_path: Path, *, stream: bool) -> None:
    """The dialect in docs/dialects.md runs as `--chat ollama:MODEL`, with its variable as the URL."""
    files = {file: text for _, file, text in blocks(ROOT / "docs" / "dialects.md") if file}
    (entry_points,) = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"].values()
    message: dict[str, Any] = {"role": "assistant", "content": "Lima"}
    end = {"done": True, "done_reason": "length", "model": "llama3:8b", "prompt_eval_count": 9, "eval_count": 2}
    lines = [{"message": {**message, "content": "Li"}}, {"message": {**message, "content": "ma"}, **end}]
    content = "\n".join(json.dumps(line) for line in lines) if stream else json.dumps({"message": message, **end})
    (tmp_path / "qa.jsonl").write_text('{"id": "peru", "question": "Capital of Peru?"}\n')
    environment = install(tmp_path, files, {"dialects": entry_points})
    command = [sys.executable, "-m", "evaljournal", "run", "--data", "qa.jsonl", "--chat", "ollama:llama3:8b"]
    command += ["--max-tokens", "2", *(["--stream"] if stream else [])]
    with replying(content.encode(), "application/x-ndjson" if stream else "application/json") as server:
        environment["OLLAMA_BASE_URL"] = server.url
        result = run_command(*command, cwd=tmp_path, env=environment)
    (request,) = server.requests

    assert 0 == result.returncode, result.stderr
    assert {
        "model": "llama3:8b",
        "messages": [{"role": "user", "content": "Capital of Peru?"}],
        "stream": stream,
        "options": {"num_predict": 2},
    } == json.loads(request.body)
    assert "/api/chat" == request.path
    assert ["Lima"] == outputs(tmp_path / "runs" / "qa" / "0001")
    assert "1 output truncated" in result.stdout
