"""Traces for Perfetto, and OpenTelemetry spans, read with the protocol's own definition."""

import base64
import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson
from google.protobuf import json_format  # type: ignore[import-untyped,unused-ignore]  # whether it has types depends on its age
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from journal.events import Noted
from replay import load
from tests.journal.samples import RUN, session, started, trial, written
from tests.replay.eventful_run import LARGE, NASTY, eventful_run, exported


def events_of(path: Path, *phases: str) -> list[dict[str, Any]]:
    return [event for event in orjson.loads(exported(path, "chrome-trace"))["traceEvents"] if event["ph"] in phases]


def test_sessions_are_processes_and_slots_are_threads(run: Path) -> None:
    """Every session and every slot used in it has a name."""
    names = [
        (event["pid"], event.get("tid"), event["args"]["name"]) for event in events_of(run, "M") if "name" in event["args"]
    ]

    assert [
        (1, None, "session 1: process 4711 on here"),
        (1, 0, "run"),
        (2, None, "session 2: process 4711 on here"),
        (2, 0, "run"),
        (1, 1, "slot 0"),
        (1, 2, "slot 1"),
        (2, 1, "slot 0"),
        (2, 2, "slot 1"),
    ] == names


def test_slices(run: Path) -> None:
    """An attempt is a slice on its slot, in microseconds on one axis, with the gap between sessions."""
    spans = [
        (event["pid"], event["tid"], event["ts"], event["dur"], event["name"], event["cat"]) for event in events_of(run, "X")
    ]

    assert (1, 1, 11_000, 3_000, "peru", "succeeded") == spans[0]
    assert (1, 2, 24_000, 1_000, "chad (attempt 2)", "timed_out") == spans[2]
    assert (2, 1, 600_006_000, 2_000, "chad#2 (attempt 2)", "succeeded") == spans[5]
    assert len(load(run).timeline().spans) == len(spans)


def test_no_two_attempts_overlap_on_a_slot(run: Path) -> None:
    """A slot is held by one attempt at a time."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events_of(run, "X"):
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))

    assert all(before[1] <= after[0] for track in tracks.values() for before, after in itertools.pairwise(track))


def test_counters(run: Path) -> None:
    """Counters equal the step functions of the timeline."""
    timeline = load(run).timeline()
    counted = [event["args"]["in flight"] for event in events_of(run, "C") if event["name"] == "in flight"]

    assert [value for session in (1, 2) for _, value, _ in timeline.steps("in_flight", session)] == counted
    assert {"in flight", "limit", "queued", "in backoff"} == {event["name"] for event in events_of(run, "C")}


def test_limits_pauses_and_retries_are_instants(run: Path) -> None:
    """Changes of the limit, pauses and retries are instant events with their causes."""
    assert [
        (1, 0, "p", "limit 0 → 2: start"),
        (1, 2, "t", "retry of chad: rate_limited"),
        (1, 0, "p", "paused: rate_limited"),
        (1, 0, "p", "limit 2 → 1: rate_limited"),
        (1, 0, "p", "resumed: rate_limited"),
        (2, 0, "p", "limit 0 → 2: start"),
    ] == [(event["pid"], event["tid"], event["s"], event["name"]) for event in events_of(run, "i")]


def test_trace_events_are_valid(run: Path) -> None:
    """Every event has what Perfetto's importer requires: a process, a name and non-negative integer times."""
    for event in orjson.loads(exported(run, "chrome-trace"))["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["name"], str)
        if event["ph"] != "M":
            assert isinstance(event["ts"], int)
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0


def request(path: Path) -> Any:
    """Parse the request as a collector does: ids are hexadecimal, and unknown fields are errors."""
    document = orjson.loads(exported(path, "otlp"))
    for span in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in span:
                span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return json_format.ParseDict(document, ExportTraceServiceRequest())


def spans_of(path: Path) -> list[Any]:
    return list(request(path).resource_spans[0].scope_spans[0].spans)


def attributes(part: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in part.attributes}


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
    about = attributes(peru)

    assert ("invoke_agent capitals", 1) == (peru.name, peru.status.code)
    assert ("invoke_agent", "capitals", 5) == (
        about["gen_ai.operation.name"],
        about["gen_ai.agent.name"],
        about["gen_ai.usage.input_tokens"],
    )
    assert [{"role": "assistant", "parts": [{"type": "text", "content": "Lima"}], "finish_reason": "stop"}] == orjson.loads(
        about["gen_ai.output.messages"]
    )


def test_truncated_output(tmp_path: Path) -> None:
    """A truncated output has the finish reason `length`."""
    short = Noted(name="evaljournal.finish_reason", value="length", trial="a", attempt=2)
    events = trial("a", retries=1)
    written(tmp_path / "run", [started(), session(), *events[:5], short, *events[5:]])
    messages = attributes(spans_of(tmp_path / "run")[-1])["gen_ai.output.messages"]

    assert ["length"] == [message["finish_reason"] for message in orjson.loads(messages)]


def test_scores_are_events(run: Path) -> None:
    """Scores are evaluation results on their attempt; a failed scorer has an error instead of a score."""
    spans = spans_of(run)
    results = {
        attributes(span)["evaljournal.trial"]: [attributes(event) for event in span.events]
        for span in spans
        if span.parent_span_id
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
        "gen_ai.evaluation.explanation": NASTY,
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
    assert LARGE in exported(run, "otlp").decode()


def test_large_integers_are_text(run: Path) -> None:
    """Integers and times are strings, as the protocol's JSON requires."""
    spans = orjson.loads(exported(run, "otlp"))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    values = [each["value"] for span in spans for each in span["attributes"]]

    assert all(isinstance(span["startTimeUnixNano"], str) and isinstance(span["endTimeUnixNano"], str) for span in spans)
    assert all(isinstance(value["intValue"], str) for value in values if "intValue" in value)
