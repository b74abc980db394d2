"""What Claude Code, Codex and Gemini CLI print as JSON lines, and what is read from it. The lines are theirs, shortened."""

import json
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from evaljournal import Outcome
from evaljournal.journal.events import AttemptFailed, StepCompleted
from evaljournal.runner.calls.agents import reported
from evaljournal.runner.calls.command import Command, OutputFormat
from tests.runs import define_real, events, outputs, run_real

PRINT: Final = "import sys; sys.stdout.write(open('transcript').read())"


def _message(message_id: str, *parts: Any, parent: str | None = None) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": 1}
    message = {"id": message_id, "role": "assistant", "model": "claude-opus-4-8", "content": list(parts), "usage": usage}
    return {"type": "assistant", "message": message, "parent_tool_use_id": parent}


def _call(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _result(call_id: str, content: Any, *, parent: str | None = None, is_error: bool = False) -> dict[str, Any]:
    part = {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": is_error}
    return {"type": "user", "message": {"role": "user", "content": [part]}, "parent_tool_use_id": parent}


CLAUDE_END: Final[dict[str, Any]] = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "num_turns": 5,
    "result": "done",
    "total_cost_usd": 0.000875,
    "usage": {"input_tokens": 50, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 8, "output_tokens": 25},
    "modelUsage": {"claude-opus-4-8[1m]": {"inputTokens": 50, "outputTokens": 25, "costUSD": 0.000875}},
}
CLAUDE: Final[list[dict[str, Any]]] = [
    {"type": "system", "subtype": "init", "session_id": "517b", "tools": ["Bash"], "model": "claude-opus-4-8[1m]"},
    _message("msg_0", {"type": "text", "text": "I ask."}),
    _message("msg_0", _call("toolu_0", "Task", prompt="look")),
    _message("msg_1", _call("toolu_1", "Bash", command="ls"), parent="toolu_0"),
    _result("toolu_1", "a.txt", parent="toolu_0", is_error=True),
    _result("toolu_0", [{"type": "text", "text": "one file"}]),
    _message("msg_2", {"type": "text", "text": "done"}),
    CLAUDE_END,
]
CODEX: Final[list[dict[str, Any]]] = [
    {"type": "thread.started", "thread_id": "01a1"},
    {"type": "turn.started"},
    {"type": "item.completed", "item": {"id": "item_0", "type": "reasoning", "text": "hm"}},
    {"type": "item.started", "item": {"id": "item_1", "type": "command_execution", "command": "ls", "status": "in_progress"}},
    {
        "type": "item.completed",
        "item": {"id": "item_1", "type": "command_execution", "command": "ls", "aggregated_output": "a.txt", "exit_code": 0},
    },
    {"type": "item.completed", "item": {"id": "item_2", "type": "file_change", "changes": [{"path": "a", "kind": "add"}]}},
    {"type": "item.completed", "item": {"id": "item_3", "type": "agent_message", "text": "done"}},
    {"type": "turn.completed", "usage": {"input_tokens": 50, "cached_input_tokens": 8, "output_tokens": 25}},
]
GEMINI: Final[list[dict[str, Any]]] = [
    {"type": "init", "session_id": "7092", "model": "gemini-3.8-flash"},
    {"type": "message", "role": "user", "content": "say it"},
    {"type": "message", "role": "assistant", "content": "I ", "delta": True},
    {"type": "message", "role": "assistant", "content": "look", "delta": True},
    {"type": "tool_use", "tool_name": "run_shell_command", "tool_id": "run-1", "parameters": {"command": "ls"}},
    {"type": "tool_result", "tool_id": "run-1", "status": "success", "output": "a.txt"},
    {"type": "message", "role": "assistant", "content": "done", "delta": True},
    {"type": "result", "status": "success", "stats": {"input_tokens": 50, "output_tokens": 25, "cached": 8, "tool_calls": 1}},
]


def evaluate(path: Path, output: OutputFormat, printed: Any, code: str = "", **options: Any) -> Outcome:
    """Run a command that prints a transcript: a list of events, or text."""
    text = printed if isinstance(printed, str) else "".join(f"{json.dumps(event)}\n" for event in printed)
    Path("transcript").write_text(text)
    return run_real(define_real(Command([sys.executable, "-c", f"{PRINT}; {code}"], output=output), **options), path)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("output", "printed", "names", "cost"),
    [
        ("claude-stream-json", CLAUDE, ["claude-opus-4-8", "Bash", "claude-opus-4-8", "Task", "claude-opus-4-8"], 0.000875),
        ("codex-jsonl", CODEX, ["command_execution", "file_change", "codex"], None),
        ("gemini-stream-json", GEMINI, ["gemini-3.8-flash", "run_shell_command", "gemini-3.8-flash"], None),
    ],
)
def test_transcripts(path: Path, *, output: OutputFormat, printed: Any, names: list[str], cost: float | None) -> None:
    """Replies and tool calls are steps, the final text is the output, and tokens and cost are counted once."""
    outcome = evaluate(path, output, printed)
    steps = events(path, StepCompleted)
    usage = outcome.state.usage

    assert ["done"] == outputs(path)
    assert sorted(names) == sorted(step.name for step in steps)
    assert names[-1] == steps[-1].name
    assert "a.txt" in str([step.output for step in steps if step.kind == "tool"])
    assert (25, cost, None if cost else 1) == (usage["output_tokens"], usage.get("cost"), usage.get("unpriced_calls"))
    assert (58 if output == "claude-stream-json" else 50, 8) == (usage["input_tokens"], usage["cached_tokens"])
    assert {False} == {step.reusable for step in steps}


def test_a_subagent_is_inside_its_tool_call(path: Path) -> None:
    """A message that is printed in parts is one step, and the steps of a subagent are inside the call that started it."""
    evaluate(path, "claude-stream-json", CLAUDE)
    steps = {(step.name, step.parent != 0): step for step in events(path, StepCompleted)}
    task = steps["Task", False]

    assert [task.step] * 2 == [steps[name, True].parent for name in ("Bash", "claude-opus-4-8")]
    assert {"content": "a.txt", "is_error": True} == steps["Bash", True].output
    first = min(events(path, StepCompleted), key=lambda step: step.step)
    assert ["text", "tool_use"] == [part["type"] for part in first.output["content"]]


def _failed_claude(**fields: Any) -> list[Any]:
    return [*CLAUDE[:-1], {**CLAUDE_END, "is_error": True, **fields}]


@pytest.mark.parametrize(
    ("output", "printed", "code", "category", "message"),
    [
        (
            "claude-stream-json",
            _failed_claude(result="API Error: slow", api_error_status=429),
            "exit(1)",
            "rate_limited",
            "API Error",
        ),
        ("claude-stream-json", _failed_claude(result="", subtype="error_max_turns"), "exit(1)", "error", "error_max_turns"),
        ("claude-stream-json", CLAUDE, "exit(3)", "error", "exited with code 3"),
        ("claude-stream-json", CLAUDE[:-1], "", "error", "no complete transcript of claude; it begins with"),
        (
            "codex-jsonl",
            [*CODEX[:-1], {"type": "turn.failed", "error": {"message": "no quota"}}],
            "exit(1)",
            "error",
            "no quota",
        ),
        ("codex-jsonl", "Error: not logged in\n", "", "error", "it begins with 'Error: not logged in'"),
        ("gemini-stream-json", [{"type": "result", "status": "error", "error": {"message": "bad"}}], "", "error", "bad"),
        ("gemini-stream-json", "", "", "error", "no complete transcript of gemini"),
        ("codex-jsonl", '{"type": "x", "y": "' + "z" * 300 + '"}', "", "fatal", "a line of more than 0 MiB"),
        ("codex-jsonl", [CODEX[-2]] * 30, "", "fatal", "more than 20 steps"),
        (
            "codex-jsonl",
            [{**CODEX[3], "item": {"id": str(number), "type": "x"}} for number in range(30)],
            "",
            "fatal",
            "20 steps",
        ),
    ],
)
def test_failures(  # noqa: PLR0917  # fixtures
    path: Path, monkeypatch: pytest.MonkeyPatch, output: OutputFormat, printed: Any, code: str, category: str, message: str
) -> None:
    """An agent that reports an error, or no end, fails; a flood ends the attempt. What it has used is counted."""
    monkeypatch.setattr(reported, "MAX_STEPS", 20)
    if "0 MiB" in message:
        monkeypatch.setattr(reported, "MAX_LINE", 200)
    outcome = evaluate(path, output, printed, code)
    (failed,) = events(path, AttemptFailed)

    assert (category, True) == (failed.category, message in failed.message)
    is_complete = isinstance(printed, list) and printed[-1].get("usage") == CLAUDE_END["usage"]
    assert (25 if is_complete else None) == outcome.state.usage.get("output_tokens")


@pytest.mark.parametrize("output", ["claude-stream-json", "codex-jsonl", "gemini-stream-json"])
def test_anything_may_be_of_any_type(path: Path, output: OutputFormat) -> None:
    """Unknown types, lines that are not JSON, and values of other types are ignored or recorded as they are."""
    values: list[Any] = [None, 1, "x", [], [1, None], {}, {"id": 1, "type": "tool_use"}, json.loads("[" * 300 + "]" * 300)]
    transcript = {"claude-stream-json": CLAUDE, "codex-jsonl": CODEX, "gemini-stream-json": GEMINI}[output]
    printed = ["not json", "{", "[]", "NaN", *map(json.dumps, values)]
    for event in transcript[:-1]:
        for name in event:
            printed += [json.dumps({**event, name: value}) for value in values]
        for outer in ("message", "item"):
            for name in event.get(outer, {}):
                printed += [json.dumps({**event, outer: {**event[outer], name: value}}) for value in values]
    evaluate(path, output, "\n".join([*printed, *map(json.dumps, transcript)]))

    assert ["done"] == outputs(path)


def test_a_timeout_keeps_the_steps(path: Path) -> None:
    """Steps are recorded as they end; a tool call that has not ended is recorded as such."""
    code = "sys.stdout.flush(); import time; time.sleep(100)"
    evaluate(path, "claude-stream-json", CLAUDE[:5], code, timeout=1.5)

    assert ["Bash", "Task", "claude-opus-4-8", "claude-opus-4-8"] == sorted(step.name for step in events(path, StepCompleted))


def test_through_the_gateway_only_the_output_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway records the calls of a model, with their usage; they must not count twice."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-a-test-0123456789")
    outcome = evaluate(path, "claude-stream-json", CLAUDE, gateway=True)

    assert ["done"] == outputs(path)
    assert [] == events(path, StepCompleted)
    assert {} == dict(outcome.state.usage)
