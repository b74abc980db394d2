"""Agents that speak the Agent Client Protocol: what they report, what they may do, and what they do wrong."""

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from evaljournal import Outcome, UsageError
from evaljournal.journal.events import AttemptFailed, AttemptInterrupted, StepCompleted, StepReused
from evaljournal.runner.calls.acp import Acp
from evaljournal.runner.calls.agents import files, reported
from evaljournal.runner.calls.agents.session import AgentSession
from tests.processes import is_alive
from tests.runs import define_real, events, outputs, run_real

AGENT: Final = f"{sys.executable} {Path(__file__).parent.parent / 'stand_ins' / 'acp_agent.py'}"


def evaluate(path: Path, *prompt: str, **options: Any) -> Outcome:
    """Run the stand-in with a prompt, one action per line."""
    arguments = {name: options.pop(name) for name in ("allow", "prompt", "turns") if name in options}
    case = options.pop("case", None) or {"id": "it", "input": "\n".join(prompt)}
    return run_real(define_real(Acp(AGENT, **arguments), [case], **options), path)


def steps(path: Path) -> list[tuple[str, str, Any]]:
    """Return name, kind and output of the steps."""
    return [(step.name, step.kind, step.output) for step in events(path, StepCompleted)]


def test_its_calls_are_not_answered_from_recorded_replies(tmp_path: Path) -> None:
    """It would make all of them again; only those through a gateway can be answered."""
    evaluate(tmp_path / "recorded", "run true")

    with pytest.raises(UsageError, match="pass --gateway with its replies"):
        evaluate(tmp_path / "replayed", "run true", replies=tmp_path / "recorded")


def test_what_an_agent_reports_is_recorded(path: Path) -> None:
    """Messages, thoughts, tool calls and plans are steps, in their order; the output is the last message."""
    outcome = evaluate(path, "say I will ", "say look", "run echo hi", "think hm", "plan first", "cost 0.25", "say done")
    first, *_ = events(path, StepCompleted)

    assert ["done"] == outputs(path)
    python = Path(sys.executable).name
    names = [(python, "model"), ("execute", "tool"), ("plan", "other"), (python, "model")]
    assert names == [(name, kind) for name, kind, _ in steps(path)]
    assert "I will look" == steps(path)[0][2]["content"][0]["text"]
    assert "hi\n" == steps(path)[1][2]["content"][0]["content"]["text"]
    assert {"type": "thinking", "thinking": "hm"} == steps(path)[3][2]["content"][1]
    assert "user" == first.input["messages"][0]["role"]
    usage = {"input_tokens": 10, "output_tokens": 5, "cost": 0.25}
    assert usage == {name: outcome.state.usage[name] for name in usage}


def test_an_unknown_cost_is_stated(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The protocol names no model, so the summary says that the cost of a call is unknown."""
    outcome = evaluate(path, "say done")

    assert 1 == outcome.state.usage["unpriced_calls"]
    assert "without a price" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("allow", "allowed"), [("read", ["read", "search"]), ("all", ["read", "search", "edit", "execute", ""]), ("none", [])]
)
def test_permissions(path: Path, allow: Any, allowed: list[str]) -> None:
    """A permission is answered at once, by the policy; a kind that is not stated is no reading."""
    kinds = ["read", "search", "edit", "execute", ""]
    evaluate(path, *(f"permit {kind}" for kind in kinds), allow=allow)
    answers = [output["answer"] for name, _, output in steps(path) if name == "permission"]

    assert ["allowed" if kind in allowed else "rejected" for kind in kinds] == answers
    assert len(allowed) == outputs(path)[0].count("allow_once") + sum("allow_once" in str(step) for step in steps(path)[:-1])


def test_turns_are_prompts_of_one_session(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn is a prompt; our messages are valid by the schema of the protocol."""
    from acp import schema  # Its models take longer to import than all tests here.

    monkeypatch.setenv("ACP_LOG", str(tmp_path / "log"))
    evaluate(path, case={"id": "it", "input": "", "turns": ["say one", "permit read\nsay two"]}, turns="turns")
    messages = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]

    assert outputs(path)[0].endswith("two")
    methods = ["initialize", "session/new", "session/prompt", "session/prompt", None]
    assert methods == [message.get("method") for message in messages]
    models: tuple[Any, ...] = (schema.InitializeRequest, schema.NewSessionRequest, schema.PromptRequest, schema.PromptRequest)
    for message, model in zip(messages, models, strict=False):
        assert "2.0" == message["jsonrpc"]
        assert (
            model.model_validate(message["params"]).model_dump(by_alias=True, exclude_none=True).keys()
            >= message["params"].keys()
        )
    outcome: Any = schema.RequestPermissionResponse.model_validate(messages[-1]["result"]).outcome
    assert "option-allow_once" == outcome.option_id


@pytest.mark.parametrize(
    ("action", "expected"),
    [("stop max_tokens", "truncated"), ("stop max_turn_requests", "truncated"), ("stop refusal", "declined")],
)
def test_stop_reasons(path: Path, action: str, expected: str) -> None:
    """An agent that runs out of tokens or turns is truncated; one that refuses has declined."""
    outcome = evaluate(path, "say so far", action)

    assert ["so far"] == outputs(path)
    assert 1 == getattr(outcome.state.totals, expected)


@pytest.mark.parametrize(
    ("mode", "prompt", "message"),
    [
        ("", "stop cancelled", "has stopped with the reason 'cancelled'"),
        ("", "stop", "without a reason"),
        ("", "error -32603 it broke", "it broke"),
        ("", "exit 3", "exited with code 3: the agent has crashed"),
        ("", "exit 0", "has ended before it has answered session/prompt: the agent has crashed"),
        ("", "raw {not json", "no JSON-RPC message: '{not json'"),
        ("", "raw {}", "no JSON-RPC message"),
        ("", "line 300", "more than 0 MiB"),
        ("", "flood 30", "more than 20 steps"),
        ("version", "", "version 7 of the Agent Client Protocol"),
        ("login", "", "asks for a login (Log in with a browser)"),
        ("exit", "", "npm error: no such package"),
    ],
)
def test_what_an_agent_does_wrong(path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, prompt: str, message: str) -> None:
    """Each is an error with its reason."""
    monkeypatch.setenv("ACP_STAND_IN", mode)
    monkeypatch.setattr(reported, "MAX_STEPS", 20)
    monkeypatch.setattr(reported, "MAX_LINE", 200)
    outcome = evaluate(path, prompt)
    (failed,) = events(path, AttemptFailed)

    assert message in failed.message
    assert [] == outputs(path)
    assert (mode == "login") == (outcome.stop_reason == "unauthorized")


@pytest.mark.parametrize("mode", ["silent", ""])
def test_an_agent_that_never_answers(path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """The timeout ends the attempt and its processes; the steps so far are recorded, an unfinished tool call as such."""
    monkeypatch.setenv("ACP_STAND_IN", mode)
    evaluate(path, "run echo $PPID", "run sleep 100", timeout=1.5)

    assert [] == outputs(path)
    if not mode:
        pid = int(steps(path)[0][2]["content"][0]["content"]["text"])
        assert {"status": "not ended"} == steps(path)[1][2]
        assert not is_alive(pid)


def test_unknown_lines_and_methods(path: Path) -> None:
    """Text that is no message is skipped, and a method that is not offered gets an error."""
    evaluate(path, "raw npm warn: old", "raw", "call terminal/create", "call fs/read_text_file", "say done")

    assert 2 == outputs(path)[0].count("is not offered")


def test_a_value_that_is_nested_too_deeply(path: Path) -> None:
    """It is replaced in its step, and the attempt goes on."""
    call = {"sessionUpdate": "tool_call", "toolCallId": "deep", "kind": "read", "status": "completed", "rawOutput": "HERE"}
    message = json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": {"update": call}})
    evaluate(path, "raw " + message.replace('"HERE"', "[" * 900 + "]" * 900), "say done")

    assert ["done"] == outputs(path)
    assert ["(nested too deeply)"] == [output for name, _, output in steps(path) if name == "read"]


def test_files_of_the_workspace(tmp_path: Path) -> None:
    """Files below the workspace are read and written; neither `..` nor a link leads outside."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (tmp_path / "secret").write_text("s")
    (workspace / "link").symlink_to(tmp_path)
    (workspace / "own-link").symlink_to(workspace / "a.txt")
    os.mkfifo(workspace / "fifo")
    files.write_text(workspace, str(workspace / "new" / "b.txt"), "long text")
    files.write_text(workspace, str(workspace / "new" / "b.txt"), "b")
    files.write_text(workspace, str(workspace / "a.txt"), "1\n2\n3\n")

    assert "b" == (workspace / "new" / "b.txt").read_text()
    assert "1\n2\n3\n" == files.read_text(workspace, str(workspace / "own-link"), None, None)
    assert "2\n" == files.read_text(workspace, str(workspace / "a.txt"), 2, 1)
    paths = ("../secret", "link/secret", "link/new", "new/../../secret", "fifo", "new", ".", "missing", "a\0b")
    for name in paths:
        with pytest.raises(files.FileRejected):
            files.read_text(workspace, f"{workspace}/{name}", None, None)
    for name in ("secret", "../secret", "link/secret", "link/new", "fifo", "new", "a.txt/b"):
        with pytest.raises(files.FileRejected):
            files.write_text(workspace, f"{workspace}/{name}" if name != "secret" else name, "x")
    assert ["s"] == [file.read_text() for file in tmp_path.iterdir() if file.is_file()]


def test_a_session_offers_files_of_its_workspace(tmp_path: Path) -> None:
    """A request for a file is answered with its text, or with an error that names the path."""
    (tmp_path / "a.txt").write_text("text")

    async def answers() -> list[Any]:
        session = AgentSession(reported.AgentSteps(None), tmp_path, "read", has_files=True, name="it")
        replies = [await session.answer("fs/write_text_file", {"path": f"{tmp_path}/b.txt", "content": "new"})]
        replies.append(await session.answer("fs/read_text_file", {"path": f"{tmp_path}/a.txt", "line": 1, "limit": None}))
        with pytest.raises(Exception, match="/etc/passwd: the path is outside the workspace"):
            await session.answer("fs/read_text_file", {"path": "/etc/passwd"})
        return replies

    assert [{}, {"content": "text"}] == trio.run(answers)
    assert "new" == (tmp_path / "b.txt").read_text()


def test_an_interrupted_attempt_starts_again(path: Path) -> None:
    """Steps that an agent has reported are never reused."""
    marker = path.parent / "started"
    evaluation = define_real(
        Acp(AGENT),
        [
            {
                "id": "it",
                "input": f"run echo hi; test -e {marker} || (touch {marker}; kill -INT {os.getpid()}; sleep 9)\nsay done",
            }
        ],
    )
    with pytest.raises(KeyboardInterrupt):
        run_real(evaluation, path)
    run_real(evaluation, path, resume=True)

    assert ["done"] == outputs(path)
    assert 1 == len(events(path, AttemptInterrupted))
    assert [] == events(path, StepReused)
    assert ["execute", "execute"] == [name for name, _, _ in steps(path) if name == "execute"]
