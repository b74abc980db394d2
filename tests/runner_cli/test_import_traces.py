"""`import --atif` and `import --otlp`: a recorded trace becomes a case that can be run."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.replay.agent_run import ANSWER, QUESTION, agent_run
from tests.replay.eventful_run import export_of, otlp_json_of
from tests.runner_cli.commands import evaljournal, printed, rejected


def rows(path: str = "evals/traces.jsonl") -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in Path(path).read_bytes().splitlines()]


def attributes(**values: Any) -> list[dict[str, Any]]:
    """Return attributes as in OTLP JSON; `__` stands for a dot."""
    return [{"key": name.replace("__", "."), "value": {"stringValue": value}} for name, value in values.items()]


def span(number: int, parent: int = 0, trace: str = "a1", **values: Any) -> dict[str, Any]:
    parent_id = {"parentSpanId": f"{parent:02}"} if parent else {}
    times = {"startTimeUnixNano": str(number), "endTimeUnixNano": str(number + 1)}
    return {"traceId": trace, "spanId": f"{number:02}", "name": "span", "attributes": attributes(**values)} | parent_id | times


def otlp(*spans: dict[str, Any]) -> bytes:
    return orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}) + b"\n"


@pytest.mark.parametrize("kind", ["atif", "otlp"])
def test_what_we_export_can_be_imported(kind: str, tmp_path: Path) -> None:
    """The cases of an exported run have its question, its answer and the tools in their order, and can be scored."""
    run = agent_run(tmp_path / "agents")
    Path("traces.jsonl").write_bytes(export_of(run, "atif") if kind == "atif" else otlp_json_of(run))

    result = evaljournal("import", f"--{kind}", "traces.jsonl")
    row = rows()[0]

    assert "evals/traces.jsonl written: " in result.stderr
    assert ("weather", ANSWER) == (row["id"], row["output"])
    assert (QUESTION if kind == "atif" else "weather") == row["input"]  # A span has the input of the trial.
    assert "get_weather" in row["tools"]
    assert {"celsius": 21} == orjson.loads(
        next(
            call["result"]
            for message in row["trajectory"]
            for call in message.get("tool_calls", ())
            if call["name"] == "get_weather"
        )
    )
    columns = ("--output-key", "output", "--score", f"tools_used:{row['tools'][0]}", "-o", "again")
    assert 0 == evaljournal("run", "--data", "evals/traces.jsonl", *columns).exit_code
    assert 0 == printed("status", "again")["trials"]["failed"]


def test_expected_outputs_are_annotations(tmp_path: Path) -> None:
    """The expected output is the annotation with the name that is passed, in any span; without one, there is none."""
    spans = [span(1, input__value="Capital of Peru?", output__value="Quito"), span(2, 1, review__answer="Lima")]
    Path("traces.json").write_bytes(otlp(*spans))

    evaljournal("import", "--otlp", "traces.json", "--expected", "review.answer")
    evaljournal("import", "--otlp", "traces.json", "-o", "other")

    (row,) = rows()
    assert ("a1", "Capital of Peru?", "Lima", "Quito", []) == tuple(
        row[name] for name in ("id", "input", "expected", "output", "tools")
    )
    assert "expected" not in rows("other/traces.jsonl")[0]


def test_spans_of_both_conventions(tmp_path: Path) -> None:
    """Messages of OpenTelemetry and requests in OpenInference's attributes are read; several turns are in `turns`."""
    request = '{"model": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi?"}]}'
    parts = '[{"role":"user","parts":[{"type":"text","content":"One?"}]},{"role":"assistant","parts":[{"type":"text","content":"1"}]},{"role":"user","parts":[{"type":"text","content":"Two?"}]}]'  # noqa: E501  # one value
    reply = '[{"role":"assistant","parts":[{"type":"text","content":"2"}],"finish_reason":"stop"}]'
    Path("traces.jsonl").write_bytes(
        otlp(span(1, trace="a", openinference__span__kind="LLM", input__value=request, output__value="Hello."))
        + otlp(
            span(2, trace="b", gen_ai__operation__name="chat", gen_ai__input__messages=parts, gen_ai__output__messages=reply)
        )
    )

    evaljournal("import", "--otlp", "traces.jsonl")

    first, second = rows()
    assert ("Hi?", "Hello.", None) == (first["input"], first["output"], first["turns"])
    assert ("One?", "2", ["One?", "Two?"]) == (second["input"], second["output"], second["turns"])
    assert ["Be brief.", "Hi?", "Hello."] == [message["content"] for message in first["trajectory"]]


@pytest.mark.parametrize(
    ("kind", "content", "error"),
    [
        ("otlp", b"{}", "no spans; expected OTLP as JSON"),
        ("otlp", b"[1]", "expected JSON: an object"),
        ("otlp", b'{"a": 1}\nx\n', "line 2: not JSON"),
        ("atif", b'{"schema_version": "ATIF-v1.7"}', "object 1 is no trajectory"),
        ("atif", b"", "expected JSON: an object"),
    ],
)
def test_invalid_files(kind: str, content: bytes, error: str, tmp_path: Path) -> None:
    """A file that has no traces is an error with its place, and nothing is written."""
    Path("traces.jsonl").write_bytes(content)

    assert error in rejected("import", f"--{kind}", "traces.jsonl")
    assert not Path("evals").exists()


def test_repeated_names_and_one_that_looks_numbered() -> None:
    """The number that a repeated name gets is not one that another trace has as its name."""
    steps = [{"source": "user", "message": "Hi"}]
    documents = [{"schema_version": "ATIF-v1.8", "session_id": name, "steps": steps} for name in ("s", "s", "s-2", "s")]
    Path("traces.json").write_bytes(orjson.dumps(documents))

    assert 0 == evaljournal("import", "--atif", "traces.json").exit_code
    assert ["s", "s-3", "s-2", "s-4"] == [row["id"] for row in rows()]


def test_untrusted_values(tmp_path: Path) -> None:
    """Any value may have any type; what is not recognized is omitted; a repeated name gets a number; files are not replaced."""
    odd: list[Any] = [None, 1, "x", [], {}, {"resourceSpans": 3}]
    steps = [
        {"source": "user", "message": "Hi"},
        {
            "source": "agent",
            "message": [{"type": "text", "text": "Yo"}, *odd],
            "tool_calls": [*odd, {"tool_call_id": odd}],
            "observation": {"results": [*odd, {"source_call_id": odd}]},
        },
        *odd,
    ]
    document = {"schema_version": "ATIF-v1.8", "session_id": "s", "steps": steps, "extra": {"expected": {"a": [1]}}}
    Path("traces.json").write_bytes(orjson.dumps([document, document, {**document, "steps": odd, "extra": 3}]))

    assert 0 == evaljournal("import", "--atif", "traces.json").exit_code
    assert [("s", "Hi", "Yo", {"a": [1]}), ("s-2", "Hi", "Yo", {"a": [1]})] == [
        (row["id"], row["input"], row["output"], row["expected"]) for row in rows()
    ]
    assert "already exists; move it" in rejected("import", "--atif", "traces.json")
    broken = span(1, input__value="Hi") | {
        "attributes": [*attributes(input__value="Hi"), *odd, {"key": "k", "value": odd}],
        "startTimeUnixNano": [],
        "spanId": [],
        "parentSpanId": {},
    }
    Path("spans.json").write_bytes(orjson.dumps({"resourceSpans": [*odd, {"scopeSpans": [*odd, {"spans": [*odd, broken]}]}]}))
    assert 0 == evaljournal("import", "--otlp", "spans.json").exit_code
    assert ["Hi"] == [row["input"] for row in rows("evals/spans.jsonl")]
