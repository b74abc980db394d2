"""`--otlp` sends a run while it goes on, from its journal."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from evaljournal.integrations.otlp import live
from evaljournal.integrations.otlp.export import otlp
from evaljournal.integrations.otlp.live import OtlpOutput, otlp_output
from evaljournal.replay.export import Source
from evaljournal.runner.errors import UsageError
from tests.integrations.otlp.collector import Collector, collecting
from tests.replay.eventful_run import UNSAFE
from tests.runner_cli.commands import evaljournal, rejected

TASK = """
from pathlib import Path
import time
from evaljournal import Case, evaluation

CASES = [{"input": f"Ask Ada {number}", "answer": "Lima"} for number in range(6)] + [Case(name="peru", input="Ask Ada")]

@evaluation(cases=CASES, retry={"errors": 0})
def ask(question: str) -> str:
    if question.endswith("3"):
        raise RuntimeError("Ada is wrong")
    return "Lima is the answer"

@ask.score
def exact(output: str, expected: str) -> tuple[bool, str]:
    return output == expected, "Lima, again"
"""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(live, "_INTERVAL", 0.05)
    with collecting() as collector:
        yield collector


def send(output: OtlpOutput, run: Path) -> None:
    """Send a recorded run as the end of a session does."""
    output._thread = threading.Thread(target=output._run, args=(run,))
    output._thread.start()
    output.finish(run)


def attributes(part: Any) -> dict[str, Any]:
    return {attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in part.attributes}


def exported_spans(run: Path) -> list[Any]:
    (_, pieces), *_ = otlp(Source(run))
    return list(ExportTraceServiceRequest.FromString(b"".join(pieces)).resource_spans[0].scope_spans[0].spans)


def test_a_run_is_sent_as_it_is_exported(collector: Collector) -> None:
    """With content, the spans that have ended are those of the export; sending them again changes none."""
    Path("ask.py").write_text(TASK)
    result = evaljournal("run", "ask.py", "-o", "run", "--otlp", collector.url, "--otlp-content")
    spans = {span.span_id: span for span in exported_spans(Path("run"))}
    sent = collector.spans

    assert (1, 14) == (result.exit_code, len(spans)), result.stderr
    assert [] == [span for span in sent if span != spans[span.span_id]]
    assert set(spans) == {span.span_id for span in sent}
    assert {b"https://opentelemetry.io/schemas/gen-ai/1.42.0" in body for _, _, body in collector.requests} == {True}
    send(otlp_output(collector.url, has_content=True), Path("run"))
    assert 2 * len(sent) == len(collector.spans)
    assert [] == [span for span in collector.spans if span != spans[span.span_id]]


def test_scores_are_log_events(collector: Collector, run: Path) -> None:
    """A score is an event `gen_ai.evaluation.result` with the ids of the attempt that it belongs to."""
    send(otlp_output(collector.url, has_content=True), run)
    attempts = {span.span_id: attributes(span)["evaljournal.trial"] for span in collector.spans if span.parent_span_id}
    scores = [(attempts[log.span_id], attributes(log)["gen_ai.evaluation.name"]) for log in collector.logs]

    assert {"gen_ai.evaluation.result"} == {log.event_name for log in collector.logs}
    assert {("peru", "exact"), ("peru", "tone"), ("chad#2", "exact")} <= set(scores)
    assert UNSAFE in {attributes(log).get("gen_ai.evaluation.explanation") for log in collector.logs}
    assert len(scores) == len({attributes(log)["evaljournal.seq"] for log in collector.logs})


def test_content_is_sent_only_on_request(collector: Collector) -> None:
    """Without --otlp-content, no input, output, explanation or error message is sent, nor a name made of an input."""
    Path("ask.py").write_text(TASK)
    evaljournal("run", "ask.py", "-o", "run", "--otlp", collector.url)
    content = b"".join(body for _, _, body in collector.requests)
    names = {attributes(span)["evaljournal.case"] for span in collector.spans if not span.parent_span_id}

    assert (14, 6) == (len(collector.spans), len(collector.logs))
    assert [] == [text for text in (b"Ada", b"ada", b"Lima", b"wrong") if text in content]
    assert "peru" in names
    assert 6 == sum(name.startswith("case-") for name in names)


def test_the_options_of_a_task_are_content(collector: Collector) -> None:
    """The task of an evaluation without code is its options, with prompts and commands, which need --otlp-content."""
    Path("cases.jsonl").write_text('{"id": "peru", "input": "Peru"}\n')
    options = ["--data", "cases.jsonl", "--command", "echo Lima"]
    evaljournal("run", *options, "-o", "run", "--otlp", collector.url)
    content = b"".join(body for _, _, body in collector.requests)
    evaljournal("run", *options, "-o", "again", "--otlp", collector.url, "--otlp-content")

    assert [] == [text for text in (b"echo", b"Lima") if text in content]
    assert b"service.name" in content
    assert b"echo Lima" in b"".join(body for _, _, body in collector.requests)


def test_headers_and_address_of_the_environment(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a URL, that of the environment is used; headers are sent, and are in no record and no message."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cret%20$value, x-team = blue")
    collector.statuses = [503]
    Path("ask.py").write_text(TASK)
    result = evaljournal("run", "--otlp", "ask.py", "-o", "run")
    headers = [headers for _, headers, _ in collector.requests]

    assert {("s3cret $value", "blue")} == {(each["api-key"], each["x-team"]) for each in headers}
    recorded = b"".join(path.read_bytes() for path in Path("run").rglob("*") if path.is_file())
    assert not [text for text in ("s3cret", collector.url) if text.encode() in recorded]
    assert "s3cret" not in result.output + caplog.text
    assert "503 from" in caplog.text
    assert 14 == len({span.span_id for span in collector.spans})


@pytest.mark.parametrize("statuses", [[429, 503], [307], [401], [400]])
def test_a_receiver_that_rejects_requests(
    collector: Collector, caplog: pytest.LogCaptureFixture, run: Path, statuses: list[int]
) -> None:
    """A busy receiver gets the request again; another error ends the sending with a warning, and never the run."""
    collector.statuses = list(statuses)
    caplog.set_level(logging.WARNING)
    send(otlp_output(collector.url, has_content=True), run)

    assert (len(statuses) > 1) == bool(collector.spans)
    assert f"{statuses[0]} from {collector.url}/v1/traces" in caplog.text


def test_a_receiver_without_logs(collector: Collector, run: Path) -> None:
    """A receiver that takes only traces gets all spans, with the scores as events of the trial."""
    collector.unknown_paths = {"/v1/logs"}
    send(otlp_output(collector.url, has_content=True), run)

    assert [] == collector.logs
    assert "gen_ai.evaluation.result" in {event.name for span in collector.spans for event in span.events}


def test_a_receiver_that_is_not_there(run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The end of a session does not wait for it; the warning names what has the rest."""
    monkeypatch.setattr(live, "_FINAL_TIME", 1.0)
    send(otlp_output("http://127.0.0.1:9", has_content=True), run)

    assert "not all of" in caplog.text
    assert "export --format otlp" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--otlp"], "--otlp needs a URL"),
        (["--otlp-content"], "--otlp-content needs --otlp"),
        (["--export", "otlp:http://127.0.0.1:9"], "pass --otlp URL"),
        (["--otlp=ask.py"], "it is not an http:// or https:// URL"),
    ],
)
def test_only_the_option_sends(arguments: list[str], message: str) -> None:
    """No value of a configuration file, and nothing but a URL, makes a run send anything."""
    Path("ask.py").write_text(TASK)

    assert message in rejected("run", "ask.py", *arguments)


def test_headers_that_are_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error does not contain the value."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "a=1,s3cret")
    with pytest.raises(UsageError, match="item 2 has no '='"):
        otlp_output("http://localhost:4318", has_content=False)
