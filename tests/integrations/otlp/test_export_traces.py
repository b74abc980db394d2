"""OpenTelemetry spans, read with the protocol's own parser."""

import base64
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from google.protobuf import json_format  # type: ignore[import-untyped,unused-ignore]  # whether it has types depends on its age
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from evaljournal.integrations.otlp import encoding
from evaljournal.integrations.otlp.export import otlp
from evaljournal.journal.events import Noted
from evaljournal.replay.export import Source
from evaljournal.replay.export.model_call import TaskModels
from tests.journal.samples import RUN, session, started, trial, write_sync
from tests.replay.eventful_run import LARGE, UNSAFE, eventful_run, otlp_json_of


def request(path: Path) -> Any:
    """Parse the request as a collector does: ids are hexadecimal, and unknown fields are errors."""
    document = orjson.loads(otlp_json_of(path))
    for span in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in span:
                span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return json_format.ParseDict(document, ExportTraceServiceRequest())


def spans_of(path: Path) -> list[Any]:
    return list(request(path).resource_spans[0].scope_spans[0].spans)


def attributes(part: Any) -> dict[str, Any]:
    return {attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in part.attributes}


def test_collector_reads_the_request(run: Path) -> None:
    """The request follows the protocol, with one span per attempt under a span per trial."""
    spans = spans_of(run)
    trials = {span.span_id: span for span in spans if not span.parent_span_id}

    assert 6 == len(trials)
    assert 8 == len(spans) - len(trials)
    assert all(span.trace_id == trials[span.parent_span_id].trace_id for span in spans if span.parent_span_id)
    assert len(spans) == len({span.span_id for span in spans})
    assert all((16, 8) == (len(span.trace_id), len(span.span_id)) for span in spans)


def test_attempts_lie_within_their_trial(run: Path) -> None:
    """A trial's span covers those of its attempts, and none ends before it starts."""
    spans = spans_of(run)
    trials = {span.span_id: span for span in spans if not span.parent_span_id}

    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    assert all(
        trials[span.parent_span_id].start_time_unix_nano <= span.start_time_unix_nano
        and span.end_time_unix_nano <= trials[span.parent_span_id].end_time_unix_nano
        for span in spans
        if span.parent_span_id
    )
    assert 1_794_700_800_005_000_000 == spans[0].start_time_unix_nano


def test_spans_follow_the_conventions(run: Path) -> None:
    """An attempt is an `invoke_agent` span with its messages and tokens."""
    peru = spans_of(run)[1]
    fields = attributes(peru)

    assert ("invoke_agent capitals", 1) == (peru.name, peru.status.code)
    assert ("invoke_agent", "capitals", 5) == (
        fields["gen_ai.operation.name"],
        fields["gen_ai.agent.name"],
        fields["gen_ai.usage.input_tokens"],
    )
    assert [{"role": "assistant", "parts": [{"type": "text", "content": "Lima"}], "finish_reason": "stop"}] == orjson.loads(
        fields["gen_ai.output.messages"]
    )


def test_truncated_output(tmp_path: Path) -> None:
    """A truncated output has the finish reason `length`."""
    truncated = Noted(name="evaljournal.answer", value={"outcome": "truncated"}, trial="a", attempt=2)
    events = trial("a", retries=1)
    write_sync(tmp_path / "run", [started(), session(), *events[:5], truncated, *events[5:]])
    messages = attributes(spans_of(tmp_path / "run")[-1])["gen_ai.output.messages"]

    assert ["length"] == [message["finish_reason"] for message in orjson.loads(messages)]


def test_declined_output(tmp_path: Path) -> None:
    """A declined output has the finish reason `content_filter`; the span has the model that answered."""
    declined = Noted(name="evaljournal.answer", value={"outcome": "declined", "model": "m-1"}, trial="a", attempt=1)
    events = trial("a")
    write_sync(tmp_path / "run", [started(), session(), *events[:2], declined, *events[2:]])
    fields = attributes(spans_of(tmp_path / "run")[-1])

    assert ["content_filter"] == [message["finish_reason"] for message in orjson.loads(fields["gen_ai.output.messages"])]
    assert "m-1" == fields["gen_ai.response.model"]


def test_scores_are_events(run: Path) -> None:
    """Scores are evaluation results on their trial; a failed scorer has an error instead of a score."""
    spans = spans_of(run)
    results = {
        attributes(span)["evaljournal.trial"]: [attributes(event) for event in span.events]
        for span in spans
        if not span.parent_span_id
    }

    assert [
        {"gen_ai.evaluation.name": "exact", "gen_ai.evaluation.score.label": "pass", "gen_ai.evaluation.score.value": 1.0},
        {
            "gen_ai.evaluation.name": "tone",
            "gen_ai.evaluation.score.label": "polite",
            "gen_ai.evaluation.explanation": "+ it says please",
        },
        {"gen_ai.evaluation.name": "closeness", "gen_ai.evaluation.score.value": 1.0},
    ] == results["peru"]
    assert [
        {"gen_ai.evaluation.name": "exact", "error.type": "ValueError", "gen_ai.evaluation.explanation": "no verdict"}
    ] == results["oslo"]
    assert {
        "gen_ai.evaluation.name": "exact",
        "gen_ai.evaluation.score.label": "fail",
        "gen_ai.evaluation.score.value": 0.0,
        "gen_ai.evaluation.explanation": UNSAFE,
    } == results["chad#2"][0]


def test_failed_attempts_are_errors(run: Path) -> None:
    """A failed attempt has its exception; timed-out and interrupted ones have types of their own."""
    spans = [span for span in spans_of(run) if span.parent_span_id and span.status.code == 2]

    assert [
        ("RateLimited", "slow down"),
        ("timeout", "timed out after 30 s"),
        ("interrupted", "interrupted: process died"),
    ] == [(attributes(span)["error.type"], span.status.message) for span in spans]
    assert {"exception.type": "RateLimited", "exception.message": "slow down", "exception.stacktrace": ""} == attributes(
        spans[0].events[0]
    )


def test_ids(run: Path, tmp_path: Path) -> None:
    """Ids are derived from the run, so two exports have the same ids; a large output is complete."""
    other = eventful_run(tmp_path / "again")

    assert [span.span_id for span in spans_of(run)] == [span.span_id for span in spans_of(other)]
    assert RUN == attributes(request(run).resource_spans[0].resource)["evaljournal.run"]
    assert LARGE in otlp_json_of(run).decode()


def protobuf_requests(path: Path) -> list[bytes]:
    """Return the protobuf files, in order."""
    source = Source(path)
    return [b"".join(pieces) for _, pieces in otlp(source)]


def test_protobuf_equals_json(run: Path) -> None:
    """The protocol's own parser reads the same request from protobuf as from JSON."""
    (body,) = protobuf_requests(run)

    assert request(run) == ExportTraceServiceRequest.FromString(body)


def test_protobuf_values(tmp_path: Path) -> None:
    """Negative and large integers, floats and any text keep their values."""
    metadata = {"text": UNSAFE}
    usage = {"cost": -0.5, "a": -3, "b": 2**63 - 1, "c": 0}
    trial_events = trial("a")
    trial_events[0] = attrs.evolve(trial_events[0], metadata=metadata)  # type: ignore[misc]  # an event is an attrs class
    trial_events[2] = attrs.evolve(trial_events[2], usage=usage)  # type: ignore[misc]  # an event is an attrs class
    write_sync(tmp_path / "run", [started(), session(), *trial_events])
    (body,) = protobuf_requests(tmp_path / "run")
    parsed = ExportTraceServiceRequest.FromString(body)
    fields = attributes(parsed.resource_spans[0].scope_spans[0].spans[1])

    assert request(tmp_path / "run") == parsed
    assert usage == {name: fields[f"evaljournal.usage.{name}"] for name in usage}


@pytest.mark.parametrize("limit", [1, 3_000, 12_000])
def test_requests_are_split(run: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Requests are below the limit, unless one span is larger; together they have all spans."""
    unsplit = spans_of(run)
    monkeypatch.setattr(encoding, "MAX_BODY", limit)
    bodies, lines = protobuf_requests(run), otlp_json_of(run).splitlines()
    parsed = [ExportTraceServiceRequest.FromString(body).resource_spans[0] for body in bodies]
    counts = [len(part.scope_spans[0].spans) for part in parsed]

    assert unsplit == [span for part in parsed for span in part.scope_spans[0].spans]
    assert all(len(body) <= limit or count == 1 for body, count in zip(bodies, counts, strict=True))
    assert [RUN] * len(bodies) == [attributes(part.resource)["evaljournal.run"] for part in parsed]
    json_counts = [len(orjson.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]) for line in lines]
    assert len(unsplit) == sum(json_counts)
    assert all(len(line) < limit or count == 1 for line, count in zip(lines, json_counts, strict=True))
    assert len(bodies) > 1 < len(lines)


def model_run(path: Path, definition: Any, request_: Any, usage: Any = None) -> dict[str, Any]:
    """Write a run of one trial with a definition and a request; return the attributes of the attempt."""
    trial_events = trial("a")
    trial_events[1] = attrs.evolve(trial_events[1], request=request_)  # type: ignore[misc]  # an event is an attrs class
    trial_events[2] = attrs.evolve(trial_events[2], usage=usage)  # type: ignore[misc]  # an event is an attrs class
    run_started = attrs.evolve(started(), definition=definition)  # type: ignore[misc]  # an event is an attrs class
    write_sync(path, [run_started, session(), *trial_events])
    span = spans_of(path)[1]
    return {"name": span.name, "kind": span.kind, **attributes(span)}


def test_a_model_call(tmp_path: Path) -> None:
    """A chat has model, provider, parameters, messages and tokens where Phoenix and the conventions expect them."""
    definition = {"task": {"model": "small", "address": "https://api.openai.com/v1/chat/completions"}}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Peru?"}]}]
    body = {"model": "large", "messages": messages, "temperature": 0.5, "max_completion_tokens": 9, "stream": True}
    fields = model_run(tmp_path / "run", definition, body, {"prompt_tokens": 7, "completion_tokens": 2, "cost": 0.1})

    expected = {
        "name": "chat large",
        "kind": 3,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "large",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "server.address": "api.openai.com",
        "openinference.span.kind": "LLM",
        "llm.model_name": "large",
        "llm.provider": "openai",
        "llm.token_count.prompt": 7,
        "llm.token_count.completion": 2,
        "llm.token_count.total": 9,
        "input.value": "Where is the capital?",
        "input.mime_type": "text/plain",
        "output.value": "Lima",
        "output.mime_type": "text/plain",
        "evaljournal.usage.cost": 0.1,
    }
    assert expected == {name: fields[name] for name in expected}
    assert [("system", "Be brief."), ("user", "Peru?")] == [
        (message["role"], message["parts"][0]["content"]) for message in orjson.loads(fields["gen_ai.input.messages"])
    ]


@pytest.mark.parametrize(
    ("definition", "request_", "model"),
    [
        ({"task": {"model": "m", "base_url": "http://localhost:8000/v1"}}, None, ("m", "openai")),
        ({"task": {"address": "https://x.api.mistral.ai/chat"}}, {"body": {"model": "m"}}, ("m", "mistral_ai")),
        ({"task": {"body": {"model": "{model}"}}}, {"body": {"q": 1}}, None),
        ({"task": {"source": "def f(): ..."}}, None, None),
        ({"task": {"model": ["m"], "address": 5}}, {"model": 5, "messages": {"a": 1}}, None),
        ({"task": {"model": "m", "address": "http://[::1"}}, {"messages": [5, {"content": None}]}, ("m", "openai")),
        ("text", "text", None),
    ],
)
def test_the_model_of_other_tasks(tmp_path: Path, definition: Any, request_: Any, model: Any) -> None:
    """The model is found in the request or the definition, whatever types these have; other tasks are agents."""
    fields = model_run(tmp_path / "run", definition, request_)

    assert model == (
        None if "gen_ai.request.model" not in fields else (fields["gen_ai.request.model"], fields["gen_ai.provider.name"])
    )
    assert ("LLM" if model else "AGENT") == fields["openinference.span.kind"]


def test_the_model_of_a_variant() -> None:
    """It is that of the variant's task, otherwise that of the evaluation, otherwise the parameter of this name."""
    variants = {"own": {"task": {"model": "a"}, "parameters": {"model": "b"}}, "parameter": {"parameters": {"model": "c"}}}
    names = ("own", "parameter", "other")

    models = TaskModels({"task": {"source": "def ask(): …"}, "variants": variants})
    assert ["a", "c", ""] == [models.for_variant(name).model for name in names]
    models = TaskModels({"task": {"body": {"model": "d"}}, "variants": variants})
    assert ["a", "d", "d"] == [models.for_variant(name).model for name in names]


def test_the_trial_has_input_and_output(run: Path) -> None:
    """Phoenix lists the input and output of a trace's first span."""
    peru, chad = (attributes(span) for span in spans_of(run) if span.name in {"trial peru", "trial chad"})

    assert ("CHAIN", "The capital of Peru?", "Lima") == tuple(
        peru[name] for name in ("openinference.span.kind", "input.value", "output.value")
    )
    assert ("application/json", False) == (chad["input.mime_type"], "output.value" in chad)


def test_large_integers_are_text(run: Path) -> None:
    """Integers and times are strings, as the protocol's JSON requires."""
    spans = orjson.loads(otlp_json_of(run))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    values = [attribute["value"] for span in spans for attribute in span["attributes"]]

    assert all(isinstance(span["startTimeUnixNano"], str) and isinstance(span["endTimeUnixNano"], str) for span in spans)
    assert all(isinstance(value["intValue"], str) for value in values if "intValue" in value)
