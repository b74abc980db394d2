"""The steps of an agent in every export format, read by the tools that the formats belong to."""

import csv
import io
import warnings
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow.parquet  # type: ignore[import-untyped]  # it has no types
import pytest
from atif import Trajectory
from pydantic import BaseModel, ConfigDict

from evaljournal.integrations.nat.files import nat, parse_step_filter
from evaljournal.replay import load
from evaljournal.replay.export import FORMATS, Source
from tests.journal.samples import session, started, trial, write_sync
from tests.replay.agent_run import ANSWER, QUESTION, USAGE, agent_run, completed
from tests.replay.eventful_run import export_files, export_of, otlp_json_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Warnings of Inspect's own imports.
    from inspect_ai.event import ModelEvent, SpanBeginEvent, SpanEndEvent, ToolEvent, event_tree
    from inspect_ai.log import EvalSample, read_eval_log, read_eval_log_sample

ROWS = [
    ("weather", 1, 1, "completed"),
    ("weather", 1, 2, "completed"),
    ("weather", 1, 3, "failed"),
    ("weather", 2, 1, "reused"),
    ("weather", 2, 2, "reused"),
    ("weather", 2, 3, "completed"),
    ("weather", 2, 4, "completed"),
    ("weather", 2, 5, "completed"),
    ("route", 1, 1, "completed"),
    ("route", 1, 2, "completed"),
    ("route", 1, 3, "completed"),
    ("route", 2, 1, "reused"),
    ("route", 2, 2, "completed"),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write the run of an agent."""
    return agent_run(tmp_path / "run")


def rows(run: Path) -> list[dict[str, Any]]:
    """Return the rows of steps."""
    return [orjson.loads(line) for line in export_of(run, "jsonl", "steps").splitlines()]


def test_rows(run: Path) -> None:
    """There is a row for each step, by trial and attempt, in the order of their starts."""
    table = rows(run)

    assert ROWS == [(row["trial"], row["attempt"], row["step"], row["outcome"]) for row in table]
    assert [None, None, 1, 1] == [table[number]["reused_from"] for number in (0, 2, 3, 4)]
    assert ("BadStatus", "429 Too Many Requests", None) == tuple(table[2][name] for name in ("error", "message", "output"))
    assert 4 == len(table[5]["input"]["messages"]) == len(table[2]["input"]["messages"])
    assert (4, {"of": "°C"}, "Celsius") == tuple(table[7][name] for name in ("parent", "input", "output"))
    assert (USAGE, "2026-11-15T00:00:00.006000Z", 0.005) == tuple(table[0][name] for name in ("usage", "ended_at", "start"))


def test_rows_as_csv_and_parquet(run: Path) -> None:
    """CSV and Parquet have the same rows."""
    lines = list(csv.DictReader(io.StringIO(export_of(run, "csv", "steps").decode())))
    table = pyarrow.parquet.read_table(io.BytesIO(export_of(run, "parquet", "steps"))).to_pylist()
    names = ("trial", "attempt", "step", "outcome")

    assert ROWS == [(line["trial"], int(line["attempt"]), int(line["step"]), line["outcome"]) for line in lines]
    assert ROWS == [tuple(row[name] for name in names) for row in table]
    assert {"city": "Lima"} == orjson.loads(table[1]["input"])


def test_a_run_without_steps_has_no_rows(tmp_path: Path) -> None:
    """Without steps there is only the header."""
    write_sync(tmp_path / "plain", [started(), session(), *trial("a")])

    assert b"" == export_of(tmp_path / "plain", "jsonl", "steps")
    assert 1 == len(export_of(tmp_path / "plain", "csv", "steps").splitlines())


def spans(run: Path) -> list[dict[str, Any]]:
    """Return the exported spans, with their attributes as a dict."""
    requests = map(orjson.loads, otlp_json_of(run).splitlines())
    spans = [span for request in requests for span in request["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    for span in spans:
        span["attributes"] = {item["key"]: next(iter(item["value"].values())) for item in span["attributes"]}
    return spans


def test_spans(run: Path) -> None:
    """A step is a span under its attempt, or under the step that called it."""
    exported_spans = spans(run)
    by_id = {span["spanId"]: span for span in exported_spans}
    steps = [span for span in exported_spans if "evaljournal.step" in span["attributes"]]
    named = {tuple(span["attributes"][f"evaljournal.{name}"] for name in ("attempt", "step")): span for span in steps[:8]}

    assert len(by_id) == len(exported_spans)
    assert "check" == by_id[named["2", "5"]["parentSpanId"]]["name"]
    assert "invoke_agent capitals" == by_id[named["2", "3"]["parentSpanId"]]["name"]
    assert {1: "chat gpt-5-mini", 2: "execute_tool get_weather", 4: "check", 5: "execute_tool units"} == {
        number: named["2", str(number)]["name"] for number in (1, 2, 4, 5)
    }
    assert (2, "BadStatus") == (named["1", "3"]["status"]["code"], named["1", "3"]["attributes"]["error.type"])
    start, end = int(named["2", "4"]["startTimeUnixNano"]), int(named["2", "4"]["endTimeUnixNano"])
    assert start <= int(named["2", "5"]["startTimeUnixNano"]) <= int(named["2", "5"]["endTimeUnixNano"]) <= end


def test_attributes_of_a_model_call(run: Path) -> None:
    """A model call has the attributes of the conventions: model, parameters, messages, tool calls and tokens."""
    called = next(span["attributes"] for span in spans(run) if span["name"].startswith("chat"))

    assert ("chat", "gpt-5-mini", "openai", 0.5) == tuple(
        called[f"gen_ai.{name}"] for name in ("operation.name", "request.model", "provider.name", "request.temperature")
    )
    assert ("100", "20", "LLM") == (
        called["gen_ai.usage.input_tokens"],
        called["gen_ai.usage.output_tokens"],
        called["openinference.span.kind"],
    )
    (answer,) = orjson.loads(called["gen_ai.output.messages"])
    call = {"type": "tool_call", "id": "call_1", "name": "get_weather", "arguments": {"city": "Lima"}}
    assert {"role": "assistant", "parts": [call], "finish_reason": "tool_call"} == answer
    assert ["system", "user"] == [message["role"] for message in orjson.loads(called["gen_ai.input.messages"])]


def test_no_tokens_are_counted_twice(run: Path) -> None:
    """The tokens of all spans add up to those of the run: attempts do not repeat those of their steps."""
    tokens = [int(span["attributes"].get("gen_ai.usage.input_tokens", 0)) for span in spans(run)]

    assert 500 == sum(tokens)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TokenUsage(_Strict):
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class UsageInfo(_Strict):
    """The usage of a step."""

    token_usage: TokenUsage
    num_llm_calls: int
    seconds_between_calls: int


class InvocationNode(_Strict):
    """The function that made a step."""

    function_id: str
    function_name: str
    parent_id: str | None
    parent_name: str | None


class EventData(_Strict):
    """The input and the output of a step."""

    input: Any
    output: Any
    chunk: Any


class Payload(_Strict):
    """What happened."""

    event_type: Literal["WORKFLOW_START", "WORKFLOW_END", "LLM_END", "TOOL_END", "FUNCTION_END"]
    event_timestamp: float
    span_event_timestamp: float | None
    framework: None
    name: str | None
    tags: list[str] | None
    metadata: dict[str, Any] | None
    data: EventData | None
    usage_info: UsageInfo | None
    UUID: str


class IntermediateStep(_Strict):
    """The schema of NeMo Agent Toolkit, as far as these files use it."""

    parent_id: str
    function_ancestry: InvocationNode
    payload: Payload


def test_nat(run: Path) -> None:
    """NAT's items have the steps of the last attempt, as its schema defines them; those of models have the model's name.

    Reused steps have their tokens and costs, because the attempt that executed them is not in the file.
    """
    (default_item,) = orjson.loads(export_files(run, "nat")["workflow_output.json"])
    every_type = "WORKFLOW_START,LLM_END,TOOL_END,FUNCTION_END,WORKFLOW_END"
    (item,) = orjson.loads(b"".join(dict(nat(Source(run), parse_step_filter(every_type)))["workflow_output.json"]))
    steps = [IntermediateStep.model_validate(step) for step in item["intermediate_steps"]]

    assert [
        ("WORKFLOW_START", "workflow"),
        ("LLM_END", "gpt-5-mini"),
        ("TOOL_END", "get_weather"),
        ("LLM_END", "gpt-5-mini"),
        ("TOOL_END", "units"),
        ("FUNCTION_END", "check"),
        ("WORKFLOW_END", "workflow"),
    ] == [(step.payload.event_type, step.payload.name) for step in steps]
    filtered_steps = [step for step in item["intermediate_steps"] if step["payload"]["event_type"] in {"LLM_END", "TOOL_END"}]
    assert filtered_steps == default_item["intermediate_steps"]
    assert steps[5].payload.UUID == steps[4].parent_id
    assert ["root", "weather/2/0"] == [step.parent_id for step in steps[:2]]
    contents = {step.payload.UUID: step.payload.data for step in steps if step.payload.data is not None}
    assert [(QUESTION, 'get_weather({"city":"Lima"})'), ('{"celsius":21}', ANSWER)] == [
        (contents[f"weather/2/{number}"].input, contents[f"weather/2/{number}"].output) for number in (1, 3)
    ]
    usages = [step.payload.usage_info for step in steps]
    assert [None, 120, 0, 120, 0, 0, None] == [usage and usage.token_usage.total_tokens for usage in usages]
    costs = [(step.payload.metadata or {}).get("cost_usd") for step in steps]
    assert [None, 0.25, None, 0.25, None, None, 0.5] == costs
    ends = [step.payload.event_timestamp for step in steps]
    assert (sorted(ends), ends[0]) == (ends, steps[-1].payload.span_event_timestamp)


def test_atif(run: Path) -> None:
    """A model call is a step with its tool calls and their results; other steps have no model. `atif` validates it."""
    (line,) = export_of(run, "atif").splitlines()
    trajectory = Trajectory.model_validate_json(line)
    calls = {
        call.function_name: [
            result.content for result in step.observation.results if result.source_call_id == call.tool_call_id
        ]
        for step in trajectory.steps
        for call in step.tool_calls or ()
        if step.observation is not None
    }

    messages = [step.message for step in trajectory.steps]
    assert ["Use the tools.", QUESTION] == messages[:2]
    assert ANSWER in messages[2:]
    assert {"get_weather", "units", "check"} == set(calls)
    assert ['{"celsius":21}'] == calls["get_weather"]
    assert "gpt-5-mini" in {step.model_name for step in trajectory.steps}
    assert "weather" == (trajectory.extra or {})["trial"]


@pytest.fixture
def sample(run: Path, tmp_path: Path) -> EvalSample:
    """Return the sample that Inspect reads from the exported log."""
    (tmp_path / "run.eval").write_bytes(export_of(run, "inspect"))
    return read_eval_log_sample(str(tmp_path / "run.eval"), "weather", 1)


def test_inspect_names_the_models_of_the_steps(tmp_path: Path) -> None:
    """The log of a function agent has the model that its steps called most; the usage has all of them."""
    usage = {"input_tokens": 1, "output_tokens": 2, "cost": 0.5}
    events: list[Any] = trial("a")
    events[2:2] = [
        completed("a", 1, number, "ask", kind="model", input={"model": model, "messages": []}, output="Lima", usage=usage)
        for number, model in enumerate(["claude-5", "gpt-5-mini", "gpt-5-mini"], 1)
    ]
    write_sync(tmp_path / "run", [started(), session(), *events])
    (tmp_path / "run.eval").write_bytes(export_of(tmp_path / "run", "inspect"))
    log = read_eval_log(str(tmp_path / "run.eval"))
    (sample,) = log.samples or []

    assert "openai/gpt-5-mini" == log.eval.model == sample.output.model
    assert {"anthropic/claude-5": (3, 0.5), "openai/gpt-5-mini": (6, 1.0)} == {
        model: (usage.total_tokens, usage.total_cost) for model, usage in log.stats.model_usage.items()
    }
    assert log.stats.model_usage == sample.model_usage


def test_inspect_reads_model_and_tool_events(sample: EvalSample) -> None:
    """Model and tool steps are Inspect's own events; a failed step has an error, and a reused one is a cache read."""
    models = [event for event in sample.events if isinstance(event, ModelEvent)]
    tools = [event for event in sample.events if isinstance(event, ToolEvent)]

    assert [(None, None), ("BadStatus: 429 Too Many Requests", None), (None, "read"), (None, None)] == [
        (event.error, event.cache) for event in models
    ]
    assert [("get_weather", {"city": "Lima"}, '{"celsius":21}')] * 2 + [("units", {"of": "°C"}, "Celsius")] == [
        (event.function, event.arguments, event.result) for event in tools
    ]
    assert {"openai/gpt-5-mini"} == {event.model for event in models}
    assert ["system", "user", "assistant", "tool"] == [message.role for message in models[3].input]
    assert (ANSWER, "stop") == (models[3].output.completion, models[3].output.stop_reason)
    calls = models[0].output.message.tool_calls
    assert calls is not None
    assert [("get_weather", {"city": "Lima"})] == [(call.function, call.arguments) for call in calls]
    assert models[0].output.usage is not None
    assert 120 == models[0].output.usage.total_tokens


def test_inspect_has_spans(sample: EvalSample) -> None:
    """Attempts and steps that call others are spans, which Inspect can arrange as a tree."""
    starts = [event for event in sample.events if isinstance(event, SpanBeginEvent)]
    ended = [event.id for event in sample.events if isinstance(event, SpanEndEvent)]

    assert [("agent", "attempt 1"), ("agent", "attempt 2"), ("other", "check")] == [
        (event.type, event.name) for event in starts
    ]
    assert sorted(event.id for event in starts) == sorted(ended)
    assert starts[1].id == starts[2].parent_id
    assert ["attempt 1", "attempt 2"] == [getattr(node, "name", "") for node in event_tree(sample.events)][:2]


def test_inspect_has_the_conversation(sample: EvalSample) -> None:
    """The messages of the sample are those of the last attempt, and its usage is that of the model."""
    assert ["system", "user", "assistant", "tool", "assistant"] == [message.role for message in sample.messages]
    assert ANSWER == sample.messages[-1].content
    assert {"openai/gpt-5-mini": 240} == {model: usage.total_tokens for model, usage in sample.model_usage.items()}


def test_exports_and_show_have_the_same_attempts(run: Path) -> None:
    """What an export reads of a trial is what `show` reads, also about reused steps."""
    source = Source(run)
    for name in ("weather", "route"):
        pairs = list(zip(source.trial(name).attempts, load(run).trial(name).attempts, strict=True))
        assert [True] * 2 == [one.steps == other.steps for one, other in pairs]
        assert [(0, 0.0), (1, 0.004)] == [(one.reuses, one.spent) for one, _ in pairs]
        assert [other.diverged_at for _, other in pairs] == [one.diverged_at for one, _ in pairs]


@pytest.mark.parametrize("amount", [1e308, -1e308, 1.5])
def test_any_number_of_tokens(tmp_path: Path, amount: float) -> None:
    """Usage with any number of tokens, even an invalid one, can be exported in every format."""
    request = {"model": "m", "messages": [], "max_tokens": amount, "seed": amount}
    step = completed("a", 1, 1, "ask", kind="model", input=request, output="b", usage={"input_tokens": amount})
    trial_events = trial("a")
    write_sync(tmp_path / "foreign", [started(), session(), *trial_events[:2], step, *trial_events[2:]])

    assert all(export_of(tmp_path / "foreign", name) for name in FORMATS)
    (tmp_path / "run.eval").write_bytes(export_of(tmp_path / "foreign", "inspect"))
    assert 1 == len(read_eval_log_sample(str(tmp_path / "run.eval"), "a", 1).model_usage)
