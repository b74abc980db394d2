"""Conversations with scripted user messages, for chat models and endpoints."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from evaljournal import Case, Chat, Endpoint, Retry, UsageError, verify
from evaljournal.journal.events import StepCompleted, StepReused, TrialFailed
from evaljournal.replay.provider.messages import Message, messages_of, reply_of
from evaljournal.replay.runs.trajectory import StepDetails
from evaljournal.runner.cli import cli
from tests.runs import define_real, events, outputs, run_real
from tests.server import Server

TURNS = ["hello", "one more", "thanks"]
CASES = [{"id": "a", "question": "greet", "turns": TURNS}]


def bodies(server: Server, name: str) -> list[Any]:
    """Return the bodies of all requests."""
    return [json.loads(request["body"]) for request in server.requests(name)]


def conversation(*texts: str) -> list[dict[str, str]]:
    """Return a conversation that starts with the user."""
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


def test_a_conversation_with_a_chat_model(server: Server, path: Path, name: str) -> None:
    """Each turn is sent with the replies before it and is a step; the output is the last reply, and usage is counted once."""
    chat = Chat("small", base_url=server.url(name, "ok", "v1/"), system="Be {question}.", turns="turns", temperature=0.5)
    defined = define_real(chat, CASES)
    steps: list[StepDetails] = []

    @defined.score
    def turns(trajectory: list[StepDetails]) -> bool:
        steps.extend(trajectory)
        return True

    outcome = run_real(defined, path)
    system = [{"role": "system", "content": "Be greet."}]

    assert ["THANKS"] == outputs(path)
    assert (
        [
            [*system, *conversation("hello")],
            [*system, *conversation("hello", "HELLO", "one more")],
            [*system, *conversation("hello", "HELLO", "one more", "ONE MORE", "thanks")],
        ]
        == [body["messages"] for body in bodies(server, name)]
        == [step.input["messages"] for step in steps]
    )
    assert [("turn 1", "model", "HELLO"), ("turn 2", "model", "ONE MORE"), ("turn 3", "model", "THANKS")] == [
        (step.name, step.kind, step.output["content"]) for step in steps
    ]
    assert {0.5} == {body["temperature"] for body in bodies(server, name)}
    assert (3000, 300) == (outcome.state.usage["input_tokens"], outcome.state.usage["output_tokens"])
    assert 3 == len({request["headers"]["idempotency-key"] for request in server.requests(name)})
    assert verify(path).ok


@pytest.mark.parametrize(("dialect", "base"), [("chat", "v1"), ("anthropic", ""), ("responses", "v1"), ("gemini", "")])
def test_a_conversation_in_each_dialect(server: Server, path: Path, name: str, dialect: str, base: str) -> None:
    """The recorded request of a turn reads as the same conversation in every dialect, and names the model."""
    chat = Chat(f"{dialect}:small", base_url=server.url(name, "ok", base), system="Be {question}.", turns="turns")
    defined = define_real(chat, CASES)
    steps: list[StepDetails] = []

    @defined.score
    def turns(trajectory: list[StepDetails]) -> bool:
        steps.extend(trajectory)
        return True

    run_real(defined, path)

    replies = [Message("system", "Be greet."), Message("user", "hello"), Message("assistant", "HELLO")]
    assert ("THANKS", "small") == (outputs(path)[0], steps[1].input["model"])
    assert [*replies, Message("user", "one more")] == messages_of(steps[1].input)
    assert Message("assistant", "ONE MORE") == reply_of(steps[1].output)


@pytest.mark.parametrize("kind", ["chat", "endpoint"])
def test_an_attempt_continues_at_the_turn(server: Server, path: Path, name: str, kind: str) -> None:
    """After a rate limit at the second turn, and a run that was stopped at the third, completed turns are not sent again."""
    script = "ok,429:0,ok,401,ok"
    task = (
        Chat("small", base_url=server.url(name, script, "v1/"), turns="turns")
        if kind == "chat"
        else Endpoint(server.url(name, script, "generate"), turns="turns", output_path="output", body={"input": "{turn}"})
    )
    defined = define_real(task, CASES, retry=Retry(rate_limits=30.0, base_delay=0.01))
    stopped = run_real(defined, path).stop_reason
    outcome = run_real(defined, path, resume=True)
    requests = server.requests(name)
    keys = [request["headers"]["idempotency-key"] for request in requests]

    assert ("unauthorized", 1) == (stopped, outcome.state.completed)
    assert ["THANKS"] == outputs(path)
    assert 5 == len(requests)
    assert [keys[0], keys[1], keys[1], keys[3], keys[3]] == keys
    assert ["turn 1", "turn 2", "turn 3"] == [event.name for event in events(path, StepCompleted)]
    assert 1 + 2 == len(events(path, StepReused))


def test_a_conversation_with_an_endpoint(server: Server, path: Path, name: str) -> None:
    """Without a body the conversation is sent as messages; the reply in it is the output of the turn."""
    endpoint = Endpoint(server.url(name, "number:1,number:2,number:3", "generate"), turns="turns", output_path="output")
    run_real(define_real(endpoint, CASES), path)

    assert [3] == outputs(path)
    assert [
        {"messages": conversation("hello")},
        {"messages": conversation("hello", "1", "one more")},
        {"messages": conversation("hello", "1", "one more", "2", "thanks")},
    ] == bodies(server, name)


@pytest.mark.parametrize("turns", ["hello", [], [1], {"a": 1}, None, ["a", {"role": "user"}], '["a", 1]'])
def test_a_column_that_is_not_a_list_of_strings(path: Path, turns: Any) -> None:
    """The case and the column are named, and nothing is called."""
    with pytest.raises(UsageError, match=r"'a'.*'turns' must be a list of strings"):
        run_real(define_real(Chat("m", base_url="http://127.0.0.1:9/", turns="turns"), [{**CASES[0], "turns": turns}]), path)


def test_a_missing_column(path: Path) -> None:
    """A case without the column is found before the start."""
    endpoint = Endpoint("http://127.0.0.1:9/", turns="turn_list")

    with pytest.raises(UsageError, match="turn_list"):
        run_real(define_real(endpoint, CASES), path)


def test_the_json_of_a_list_is_a_list() -> None:
    """In a CSV file, a cell holds the JSON of the list."""
    chat = Chat("m", base_url="http://127.0.0.1:9/", turns="turns")

    assert conversation("a") == chat.conversation(Case(name="a", input="x", metadata={"turns": '["a", "b"]'}))


def test_wrong_combinations() -> None:
    """Turns replace the prompt, and a body without them would be sent again and again."""
    with pytest.raises(UsageError, match="prompt and turns"):
        Chat("m", prompt="{question}", turns="turns")
    with pytest.raises(UsageError, match="same request"):
        Endpoint("http://127.0.0.1:9/", body={"q": "{question}"}, turns="turns").check(
            Case(name="a", input="x", metadata={"turns": ["a"]}, input_name="question")
        )


def test_a_tool_call_ends_a_scripted_conversation(server: Server, path: Path, name: str) -> None:
    """A tool call before the last turn fails the trial, because nothing can answer it; in the last turn it is the output."""
    reply = quote('raw:{"choices": [{"message": {"tool_calls": [{"function": {"name": "f"}}]}}]}')
    first, last = server.url(name, reply, "v1/"), server.url(f"{name}-last", f"ok,ok,{reply}", "v1/")
    run_real(define_real(Chat("m", base_url=first, turns="turns"), CASES), path)
    run_real(define_real(Chat("m", base_url=last, turns="turns"), CASES), path.with_name("last"))

    assert ["fatal"] == [event.reason for event in events(path, TrialFailed)]
    assert ["f"] == [output["tool_calls"][0]["function"]["name"] for output in outputs(path.with_name("last"))]


def test_the_command_line(server: Server, name: str) -> None:
    """With `--turns`, the column is the input; `--command` takes no turns."""
    Path("talks.jsonl").write_text(json.dumps({"id": "a", "talk": TURNS}) + "\n")
    options = ["run", "--data", "talks.jsonl", "--turns", "talk", "--score", "max_steps:3", "--fail-under", "max_steps=1"]
    ended = CliRunner().invoke(cli, [*options, "--chat", "small", "--base-url", server.url(name, "ok", "v1/")])
    wrong = CliRunner().invoke(cli, [*options, "--command", "cat"])
    missing = CliRunner().invoke(cli, [*options, "--turns", "talks", "--endpoint", "http://127.0.0.1:9"])

    assert 0 == ended.exit_code, ended.output
    assert 3 == len(server.requests(name))
    assert 2 == wrong.exit_code
    assert "--turns requires --endpoint or --chat" in wrong.output
    assert 2 == missing.exit_code
    assert "'talks' is not a column (--input-key or --turns, input_key in Python); columns: 'id', 'talk'" in missing.output
