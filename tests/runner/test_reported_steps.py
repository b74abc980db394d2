"""Replies of NeMo Agent Toolkit's server (`/generate/full`): the output, the steps and its errors.

The lines have the form that NAT 1.9.0 sends; `tests/integrations/nat` has its output files.
"""

import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from evaljournal.journal import read, verify
from evaljournal.journal.events import AttemptFailed, StepCompleted
from evaljournal.replay.auditing.auditor import audit
from evaljournal.runner.calls import ReportedStep
from evaljournal.runner.calls.endpoint import Endpoint
from evaljournal.runner.calls.http.reply import ErrorReply, Reply, ReplyTooLarge
from evaljournal.runner.calls.reported_steps import read_steps
from tests.runs import define_real, events, outputs, run_real
from tests.server import Server

MODEL: Final = "meta/llama-3.1-70b-instruct"
TOKENS: Final = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
OUTPUT: Final = 'data: {"value": "It is "}\n\n', 'data: {"value": "time."}\n\n'
ERROR: Final = '{"code":"workflow_error","message":"Error code: 500","details":"OpenAIAPIError"}'


def line(event_type: str, step: str, time: float, *, parent: str = "root", name: str = "", **payload: Any) -> str:
    """Return a step as the server sends it."""
    fields = {"event_type": event_type, "event_timestamp": time, "span_event_timestamp": None, "name": name, "UUID": step}
    wrapper = {"id": step, "parent_id": parent, "type": event_type, "name": name, "payload": json.dumps({**fields, **payload})}
    return f"intermediate_data: {json.dumps(wrapper)}\n\n"


STREAM: Final = [
    line("WORKFLOW_START", "w", 100.0, name="react_agent"),
    line("FUNCTION_START", "f", 100.0, parent="w", name="<workflow>"),
    line("LLM_START", "l", 100.001, parent="f", name=MODEL),
    OUTPUT[0],
    line(
        "LLM_END",
        "l",
        100.003,
        parent="f",
        name=MODEL,
        span_event_timestamp=100.001,
        data={"input": "What time is it?", "output": "Action: clock"},
        usage_info={"token_usage": TOKENS, "num_llm_calls": 1},
    ),
    line("FUNCTION_START", "c", 100.004, parent="f", name="clock"),
    line("TOOL_START", "t", 100.005, parent="c", name="clock"),
    line("TOOL_END", "t", 100.006, parent="c", name="clock", data={"input": {"zone": "UTC"}, "output": "12:00"}),
    line("FUNCTION_END", "c", 100.007, parent="f", name="clock", data={"input": None, "output": "12:00"}),
    OUTPUT[1],
    line("FUNCTION_END", "f", 100.009, parent="w", name="<workflow>", data={"output": ["It is time."]}),
    line("WORKFLOW_END", "w", 100.009, name="react_agent", data={"output": "It is time."}),
]


def reply(*lines: str, media: str = "text/event-stream") -> Reply:
    """Return a reply with these lines."""
    received = Reply(200, {"content-type": f"{media}; charset=utf-8"})
    received.feed("".join(lines).encode())
    return received


def test_output_and_steps(server: Server, path: Path, name: str) -> None:
    """The output is joined; model calls, tools and functions are steps with their parents, times and tokens."""
    url = server.url(name, quote(f"raw:{quote(''.join(STREAM), safe='')}"))
    run_real(define_real(Endpoint(url, output_path="value")), path)
    steps = {event.step: event for event in events(path, StepCompleted)}

    assert ["It is time."] == outputs(path)
    assert [
        (1, "model", MODEL, {"model": MODEL, "input": "What time is it?"}, "Action: clock", 0),
        (2, "other", "clock", None, "12:00", 0),
        (3, "tool", "clock", {"zone": "UTC"}, "12:00", 2),
    ] == [(step, event.kind, event.name, event.input, event.output, event.parent) for step, event in sorted(steps.items())]
    assert {"input_tokens": 11, "output_tokens": 7} == steps[1].usage
    assert not any(event.reusable for event in steps.values())
    assert all(0 < event.elapsed < 1 for event in steps.values())
    assert (True, True) == (verify(path).ok, audit(read(path)).ok)


def test_times() -> None:
    """A step lasts from its start, in its own line or in that of its end; a time that is missing or reversed is 0 seconds."""
    steps = read_steps(
        reply(
            *STREAM,
            line("TOOL_END", "x", 5.0, name="late"),
            line("TOOL_END", "y", 5.0, name="reversed", span_event_timestamp=6.0),
        )
    )

    assert [("l", 0.002), ("t", 0.001), ("c", 0.003), ("x", 0.0), ("y", 0.0)] == [
        (step.id, round(step.elapsed, 6)) for step in steps
    ]


@pytest.mark.parametrize(
    "text",
    [
        "intermediate_data: {not json}\n\n",
        "intermediate_data: [1]\n\n",
        'intermediate_data: {"payload": 5}\n\n',
        'intermediate_data: {"payload": "[]"}\n\n',
        line("TOOL_END", "t", float("nan"), name="clock"),
        line("TOOL_END", "t", 1.0, name="clock", data=[1]),
        line("LLM_END", "t", 1.0, name="clock", usage_info={"token_usage": [1]}),
        line("LLM_NEW_TOKEN", "t", 1.0, name="clock"),
        'event: intermediate_data\ndata: {"value": "a"}\n\n',
    ],
)
def test_other_lines_are_ignored(text: str) -> None:
    """A line that is not the end of a step is no step, and no error."""
    assert [] == read_steps(reply(OUTPUT[0], text))


def test_a_reply_of_another_type_has_no_steps() -> None:
    """Only event streams are searched."""
    assert [] == read_steps(reply(*STREAM, media="application/json"))


def test_an_error_of_the_workflow_fails_the_attempt(server: Server, path: Path, name: str) -> None:
    """NAT ends the stream with an error that is no event; a part of the output before it is not an output."""
    url = server.url(name, quote(f"raw:{quote(OUTPUT[0] + ERROR, safe='')}"))
    run_real(define_real(Endpoint(url, output_path="value")), path)
    (failed,) = events(path, AttemptFailed)

    assert (True, True) == (failed.error.endswith("ErrorReply"), "Error code: 500" in failed.message)
    with pytest.raises(ErrorReply) as caught:
        read_steps(reply(*STREAM, ERROR))
    assert "workflow_error" == caught.value.code


def test_too_many_steps() -> None:
    """A reply with more than 10,000 steps is rejected."""
    tool_line = line("TOOL_END", "t", 1.0, name="clock")

    assert 10_000 == len(read_steps(reply(*[tool_line] * 10_000)))
    with pytest.raises(ReplyTooLarge):
        read_steps(reply(*[tool_line] * 10_001))


def test_a_step_without_data() -> None:
    """A step without input and output is recorded without them."""
    assert [ReportedStep("t", "root", "clock", "tool", 1.0, 0.0, None, None, None)] == read_steps(
        reply(line("TOOL_END", "t", 1.0, name="clock"))
    )
