"""Words that people bring from other tools: the error names ours."""

import re
from pathlib import Path

import pytest

from evaljournal.runner.calls.http.reply import NoResponse
from evaljournal.runner.cli import COMMANDS
from evaljournal.runner.cli.options.foreign_words import WORDS
from evaljournal.runner.cli.options.table import OPTIONS, removed_option
from tests.runner_cli.commands import evaljournal, rejected

FLAGS = {option.flag for option in OPTIONS} | {"--config", "-o", "--retry-failed", "--format", "--open", "--evals"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("eval x.yaml", "eval is `evaljournal run` here"),
        ("retry", "retry is `evaljournal resume` here"),
        ("run --model x", "--model is --chat MODEL here"),
        ("run --max-concurrency=4", "--max-concurrency is --slots N here"),
        ("run -j 8", "-j is --slots N here"),
        ("run -j8", "-j is --slots N here"),
        ("show --log-dir x", "--log-dir is -o RUN here"),
        ("run cases.csv", "cases.csv is not an evaluation; it has cases: evaljournal run --data cases.csv --chat"),
        ("run promptfooconfig.yaml", "evaljournal import promptfooconfig.yaml"),
        ("run --data cases.csv --chat openai:gpt-x", "unknown prefix 'openai'; write --chat gpt-x"),
        ("run --data cases.csv --chat google:g", "write --chat gemini:g"),
        ("run --data cases.csv --chat groq:llama", "write --chat llama with --base-url URL and --key-env NAME"),
        ("frobnicate", "No such command 'frobnicate'"),
        ("run --frobnicate", "No such option"),
    ],
)
def test_a_foreign_word_is_explained(tmp_path: Path, arguments: str, text: str) -> None:
    """A command, an option, a file or a model as in another tool is an error that shows how it is written here."""
    assert text in rejected(*arguments.split())


def test_the_words_are_foreign_and_the_answers_ours() -> None:
    """No word is one of ours, and each command and option in an answer exists."""
    answers = " ".join(WORDS.values())

    assert 45 <= len(WORDS) <= 60
    assert not [word for word in WORDS if word in COMMANDS or word in FLAGS or (word[:2] == "--" and removed_option(word))]
    assert set(re.findall(r"`evaljournal ([\w-]+)", answers)) <= COMMANDS.keys()
    assert set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", answers)) - {"-s", "-r"} <= FLAGS


def test_a_column_that_the_prompt_names_is_the_input(tmp_path: Path) -> None:
    """Without a column of a usual name, or with several, the first column in the prompt is the input; never the answer."""
    Path("cases.csv").write_text("country,year,answer\nPeru,2020,Lima\n")
    Path("both.csv").write_text("question,text,answer\nWhy?,A long text.,42\n")

    def dry_run(data: str, prompt: str) -> str:
        address = ("--chat", "m", "--base-url", "http://127.0.0.1:9/v1")
        return evaljournal("run", "--data", data, *address, "--prompt", prompt, "--dry-run").output

    assert "Capital of Peru in 2020?" in dry_run("cases.csv", "Capital of {country} in {year}?")
    assert "A long text. Why?" in dry_run("both.csv", "{text} {question}")
    assert "no input column" in dry_run("cases.csv", "{answer}")


@pytest.mark.parametrize(("field", "text"), [("task", "do it"), ("answer", "no input column")])
def test_a_column_that_the_command_names_is_the_input(tmp_path: Path, field: str, text: str) -> None:
    """A task is passed to an agent with `{task}` alone; the workspace is no column, and the answer no input."""
    Path("cases.csv").write_text("id,task,answer\na,do it,42\n")
    Path("repo").mkdir()
    line = ("--command", f"echo {{workspace}} {{{field}}}", "--workspace", "repo")

    assert text in evaljournal("run", "--data", "cases.csv", *line, "--dry-run").output


def test_a_base_url_may_have_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of an API is not doubled, whether or not the base URL ends with it."""
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    Path("cases.jsonl").write_text('{"input": "x"}\n')
    for path in ("", "/v1beta", "/v1beta/"):
        address = ("--chat", "gemini:g", "--base-url", f"http://127.0.0.1:9{path}")
        output = evaljournal("run", "--data", "cases.jsonl", *address, "--prompt", "{input}", "--dry-run").output

        assert " to http://127.0.0.1:9/v1beta/models/g:generateContent: " in output


def test_a_refused_connection_asks_for_the_server() -> None:
    """The message of a refused connection asks whether the server is running; that of another error does not."""
    refused, reset = (
        NoResponse(exc(111, "text"), "http://h.example") for exc in (ConnectionRefusedError, ConnectionResetError)
    )

    assert str(refused).endswith("; is the server running?")
    assert "running" not in str(reset)
