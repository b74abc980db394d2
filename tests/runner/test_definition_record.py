"""What a run records about what is sent: its definition, and the request of each attempt."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from evaljournal import Case, run
from evaljournal.journal import read
from evaljournal.journal.events import AttemptStarted, RunStarted, SessionStarted
from evaljournal.journal.format.blobs import LIMIT
from evaljournal.replay import load
from evaljournal.replay.state.definition import definition_diff, definition_lines
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.command import Command
from evaljournal.runner.calls.endpoint import Endpoint
from evaljournal.runner.data.fingerprint import definition_of
from evaljournal.runner.errors import RunChanged
from evaljournal.runner.secrets.masking import mask_values
from tests.runner_cli.commands import evaljournal
from tests.runs import AnyEvaluation, define_real, events, run_real
from tests.server import Server

SECRET = "v3ry-secret-value"  # noqa: S105


def requests(path: Path) -> list[Any]:
    return [event.request for event in events(path, AttemptStarted)]


def test_options_and_files_are_resolved(server: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model, prompts, parameters and address are recorded, including those from files; keys are not."""
    monkeypatch.setenv("MY_KEY", SECRET)
    Path("qa.jsonl").write_text('{"id": "peru", "question": "Capital of Peru?"}\n')
    Path("prompt.txt").write_text("Answer in one word: {question}")
    Path("chat.toml").write_text(f'system = "You know {SECRET}."\nscore = ["regex:^L"]\njudge = "large"\n')
    options: tuple[str, ...] = (
        "--data",
        "qa.jsonl",
        "--chat",
        "small",
        "--base-url",
        server.url(name, "ok", "v1"),
        "--temperature",
        "0.5",
    )
    options += ("--config", "chat.toml", "--prompt", "@prompt.txt", "--key-env", "MY_KEY", "-s", "retry.errors=0")
    ended = evaljournal("run", *options, "-o", "run")

    assert 1 == ended.exit_code, ended.output  # The judge's replies have no verdict.
    (started,) = events(tmp_path / "run", RunStarted)
    task, scorers = started.definition["task"], started.definition["scorers"]
    expected = {"model": "small", "temperature": 0.5, "system": "You know ***.", "prompt": "Answer in one word: {question}"}
    address = f"{server.url(name, 'ok', 'v1')}/chat/completions"
    assert {**expected, "address": address}.items() <= task.items()
    assert ("^L", "large") == (scorers["regex"]["pattern"], scorers["judge"]["model"])
    assert "{output}" in scorers["judge"]["rubric"]
    messages = [
        {"role": "system", "content": "You know ***."},
        {"role": "user", "content": "Answer in one word: Capital of Peru?"},
    ]
    assert [{"model": "small", "messages": messages, "temperature": 0.5}] == requests(tmp_path / "run")
    assert not [file for file in (tmp_path / "run").rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]


def test_source_of_functions(path: Path) -> None:
    """The source of a task and of a scorer is recorded, with the arguments of a partial."""

    def answer(value: str, *, suffix: str) -> str:
        return value + suffix

    defined = define_real(functools.partial(answer, suffix="!"), [Case(name="a", input="a")], name="it")

    @defined.score
    def is_short(output: str) -> bool:
        return len(output) < 5

    run_real(defined, path)
    (started,) = events(path, RunStarted)
    assert "return value + suffix" in started.definition["task"]["source"]
    assert {"suffix": "!"} == started.definition["task"]["keyword_arguments"]
    assert "return len(output) < 5" in started.definition["scorers"]["is_short"]["source"]
    assert [None] == requests(path)  # What a function sends is unknown.


def test_function_without_source() -> None:
    """A function without source has only its name."""
    assert {"name": "len"} == definition_of(len)


def test_a_request_is_recorded_once_per_session(server: Server, path: Path, name: str) -> None:
    """Retries send the same request, which is not recorded again; views show it for every attempt."""
    endpoint = Endpoint(server.url(name, "503,503,ok"), body={"q": "{input}"})
    run_real(define_real(endpoint, [Case(name="a", input="lima")], retry={"base_delay": 0.01}), path)

    assert [{"body": {"q": "lima"}}, None, None] == requests(path)
    details = load(path).trial("a")
    assert [{"body": {"q": "lima"}}] * 3 == [attempt.request for attempt in details.attempts]
    rows = [json.loads(line) for line in evaljournal("export", str(path), "--rows", "attempts").output.splitlines()]
    assert [{"body": {"q": "lima"}}] * 3 == [row["request"] for row in rows]
    assert 1 == evaljournal("show", str(path), "a").output.count('{"body":{"q":"lima"}}')


@pytest.mark.parametrize(
    ("task", "request_"),
    [
        (lambda url: Endpoint(f"{url}/{{input}}", method="GET", body={"n": 1}), {"path": "/{}/lima", "query": {"n": 1}}),
        (lambda _: Command(["echo", "{input}"]), {"command": ["echo", "lima"]}),
        (lambda _: Command("cat"), {"command": ["cat"], "stdin": "lima"}),
    ],
    ids=["get", "arguments", "stdin"],
)
def test_requests_of_targets(task: Any, request_: Any, server: Server, path: Path, name: str) -> None:
    """Path and query of a GET are recorded, and arguments and standard input of a command."""
    url = server.url(name, "ok")
    run_real(define_real(task(url), [Case(name="a", input="lima")]), path)
    if "path" in request_:
        request_ = {**request_, "path": url[url.index("/", 8) :] + "/lima"}
    assert [request_] == requests(path)


def test_no_requests(server: Server, path: Path, name: str) -> None:
    """Requests are not recorded if the setting is off."""
    run_real(define_real(Endpoint(server.url(name, "ok")), record_requests=False), path)
    assert [None] == requests(path)


def test_large_requests_are_blobs(server: Server, path: Path, name: str) -> None:
    """Equal large requests are stored once."""
    endpoint = Endpoint(server.url(name, "ok"), body={"q": "x" * LIMIT})
    run_real(define_real(endpoint, [Case(name="a", input="lima")], repeats=3), path)
    blobs = {record.event.request for record in read(path, load_blobs=False) if isinstance(record.event, AttemptStarted)}
    assert 1 == len(blobs)
    assert {"body": {"q": "x" * LIMIT}} == load(path).trial("a#2").request


def test_an_edit_is_shown_as_a_diff(path: Path) -> None:
    """A changed prompt is shown line by line; `--adopt` records the new definition."""

    def defined(prompt: str) -> AnyEvaluation:
        return define_real(
            Chat("small", base_url="http://127.0.0.1:9/v1", prompt=prompt), [Case(name="a", input="a")], name="it"
        )

    run(defined("Answer briefly:\n{input}"), path, fail_fast=True, retry={"errors": 0, "timeouts": 0}, grace=0)
    changed = defined("Answer in one word:\n{input}")
    with pytest.raises(RunChanged) as raised:
        run(changed, path, resume=True, retry_failed=True)
    assert ["the task has changed", "-    Answer briefly:", "+    Answer in one word:"] == [
        line.strip() for line in raised.value.changes if line.strip()[0] in "t-+"
    ]
    run(changed, path, resume=True, retry_failed=True, adopt=True, fail_fast=True, retry={"errors": 0, "timeouts": 0})
    (_, second) = events(path, SessionStarted)
    assert "Answer in one word:\n{input}" == second.definition["task"]["prompt"]
    shown = evaljournal("show", str(path), "--definition")
    assert (0, True, False) == (shown.exit_code, "Answer in one word" in shown.output, "briefly" in shown.output)


def test_changed_messages_are_a_change(tmp_path: Path) -> None:
    """The messages of a file are part of the fingerprint."""
    file = tmp_path / "messages.json"
    fingerprints: list[str] = []
    for text in ("one", "two"):
        file.write_text(json.dumps([{"role": "user", "content": text}]))
        fingerprints.append(Chat("small", base_url="http://127.0.0.1:9", messages=file).fingerprint)
    assert fingerprints[0] != fingerprints[1]


def test_a_long_diff_is_shortened() -> None:
    """Only the first lines of a diff are shown."""
    before, now = ({"source": "\n".join(f"{word} {number}" for number in range(500))} for word in ("old", "new"))
    diff = definition_diff(before, now)
    assert (61, "… 941 more lines") == (len(diff), diff[-1])
    assert [] == definition_diff(None, now)


def test_definitions_have_no_control_characters() -> None:
    """The definition of a foreign run cannot move the cursor."""
    assert ["task:", "  \\x1b[2J: \\x1b[31m"] == list(definition_lines({"task": {"\x1b[2J": "\x1b[31m"}}))


def test_fields_with_secret_names_are_masked() -> None:
    """Values are masked by their form, or because of the name of their field."""
    value = {"api_key": "abc", "nested": [{"password": "hunter2", "text": "sk-abcdefghijkl"}], "key": "a", "token_count": 3}
    expected = {"api_key": "***", "nested": [{"password": "***", "text": "***"}], "key": "a", "token_count": 3}
    assert expected == mask_values(value)
