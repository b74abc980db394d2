"""The export for NVIDIA's `nat eval`: the same shape, without its defects."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from atif import Trajectory

from evaljournal.integrations.nat.files import _llm_latency, nat, parse_step_filter
from evaljournal.replay.export import Source
from evaljournal.replay.export.file_names import file_names
from evaljournal.runner.errors import UsageError
from tests.journal.samples import session, started, trial, write_sync
from tests.replay.eventful_run import FORMULA, LARGE, UNSAFE, export_files, scored


def test_item(run: Path) -> None:
    """An item has the fields of NAT's items, in their order, and every other field of the dataset."""
    items = orjson.loads(export_files(run, "nat")["workflow_output.json"])

    assert {**items[0], "intermediate_steps": []} == {
        "id": "peru",
        "question": "The capital of Peru?",
        "answer": "Lima",
        "difficulty": "easy",
        "metadata_id": 7,
        "generated_answer": "Lima",
        "llm_latency": 0.0,
        "intermediate_steps": [],
        "expected_intermediate_steps": [],
    }
    assert ["id", "question", "answer"] == list(items[0])[:3]
    assert ["generated_answer", "llm_latency", "intermediate_steps", "expected_intermediate_steps"] == list(items[0])[-4:]


def test_question_and_answer_of_the_workflow(run: Path) -> None:
    """NAT's trajectory evaluator reads the question from the start of the workflow; it is there without steps, too."""
    files = nat(Source(run), parse_step_filter("WORKFLOW_START, LLM_END, WORKFLOW_END"))
    peru, chad = orjson.loads(b"".join(dict(files)["workflow_output.json"]))[:2]
    payloads = [step["payload"] for step in peru["intermediate_steps"]]

    assert [("WORKFLOW_START", "The capital of Peru?", None), ("WORKFLOW_END", None, "Lima")] == [
        (payload["event_type"], payload["data"]["input"], payload["data"]["output"]) for payload in payloads
    ]
    assert [payloads[0]["UUID"]] * 2 == [payload["UUID"] for payload in payloads]
    assert (payloads[0]["event_timestamp"], None) == (
        payloads[1]["span_event_timestamp"],
        payloads[0]["span_event_timestamp"],  # NAT's schema allows it at an end only.
    )
    assert "timed_out" == chad["intermediate_steps"][-1]["payload"]["metadata"]["outcome"]


def test_an_unknown_type_of_steps() -> None:
    """A type that NAT does not have is an error that names it."""
    with pytest.raises(UsageError, match="'LLM' is not a type"):
        parse_step_filter("LLM,TOOL_END")


def test_the_latency_of_model_calls() -> None:
    """It is the 95th percentile of an item's model calls, interpolated as numpy does it; reused steps are no calls."""
    times = [(3.0, "model", False), (10.0, "model", False), (1.0, "model", False), (2.0, "model", False)]
    steps = [SimpleNamespace(elapsed=time, kind=kind, is_reused=is_reused) for time, kind, is_reused in times]
    others = [
        SimpleNamespace(elapsed=99.0, kind="tool", is_reused=False),
        SimpleNamespace(elapsed=0, kind="model", is_reused=True),
    ]
    item_of: Any = lambda steps: SimpleNamespace(attempts=[SimpleNamespace(steps=steps)])  # noqa: E731

    assert (8.95, 3.0, 0.0) == tuple(_llm_latency(item_of(part)) for part in ([*steps, *others], steps[:1], others))


def test_atif_samples(run: Path) -> None:
    """The ATIF file has a sample per item, with a trajectory that the package `atif` validates."""
    samples = orjson.loads(export_files(run, "nat")["workflow_output_atif.json"])
    trajectories = [Trajectory.model_validate(sample["trajectory"]) for sample in samples]

    assert ["peru", "chad", "chad#2", "oslo"] == [sample["item_id"] for sample in samples]
    assert ("Lima", "Lima", {"llm_latency": 0.0}) == tuple(
        samples[0][name] for name in ("output_obj", "expected_output_obj", "metadata")
    )
    steps = [(step.source, step.message) for step in trajectories[0].steps]
    assert [("user", "The capital of Peru?"), ("agent", "Lima")] == steps
    assert None is samples[1]["output_obj"]


def test_open_and_withdrawn_trials_are_excluded(run: Path) -> None:
    """A running or withdrawn trial is in no file."""
    items = orjson.loads(export_files(run, "nat")["workflow_output.json"])

    assert ["peru", "chad", "chad#2", "oslo"] == [item["id"] for item in items]


def test_failed_trial(run: Path) -> None:
    """A failed trial has an error and an empty answer, as NAT writes it."""
    chad = orjson.loads(export_files(run, "nat")["workflow_output.json"])[1]

    assert ("", "timed out: timeout: timed out after 30 s") == (chad["generated_answer"], chad["error"])


def test_lines(run: Path) -> None:
    """The JSONL file has the objects of the list, in the order in which trials ended."""
    content = export_files(run, "nat")
    lines = [orjson.loads(line) for line in content["workflow_output.jsonl"].splitlines()]

    assert sorted(orjson.loads(content["workflow_output.json"]), key=lambda item: str(item["id"])) == sorted(
        lines, key=lambda item: str(item["id"])
    )
    assert ["peru", "chad", "chad#2", "oslo"] == [line["id"] for line in lines]
    assert [LARGE, {"answer": UNSAFE}, FORMULA] == [
        lines[3]["generated_answer"],
        lines[2]["generated_answer"],
        lines[3]["question"],
    ]


def test_scorer_file(run: Path) -> None:
    """A failed trial and a failed scorer have an error and no score, and are excluded from the average."""
    content = orjson.loads(export_files(run, "nat")["exact_output.json"])

    assert {
        "average_score": 0.5,
        "eval_output_items": [
            {"id": "peru", "score": 1.0, "reasoning": None, "error": None},
            {"id": "chad", "score": None, "reasoning": None, "error": "timed out: timeout: timed out after 30 s"},
            {"id": "chad#2", "score": 0.0, "reasoning": UNSAFE, "error": None},
            {"id": "oslo", "score": None, "reasoning": None, "error": "ValueError: no verdict"},
        ],
    } == content


def test_labels_have_no_average(run: Path) -> None:
    """Values other than numbers are not averaged."""
    content = orjson.loads(export_files(run, "nat")["tone_output.json"])

    assert (None, "polite") == (content["average_score"], content["eval_output_items"][0]["score"])


def test_no_trial_done(tmp_path: Path) -> None:
    """Without a completed or failed trial, the list is empty."""
    write_sync(tmp_path / "run", [started(), session()])

    files = {"workflow_output.json": "[]", "workflow_output.jsonl": "", "workflow_output_atif.json": "[]"}
    assert files == export_files(tmp_path / "run", "nat")


@pytest.mark.parametrize(
    ("scorers", "names"),
    [
        (["exact", "judge.tone"], ["exact_output.json", "judge.tone_output.json"]),
        (["../../etc/passwd"], ["_.._etc_passwd_output.json"]),
        (["workflow"], ["workflow-2_output.json"]),
        (
            ["Exact", "exact", "a/b", "a b"],
            ["Exact_output.json", "exact-2_output.json", "a_b_output.json", "a_b-2_output.json"],
        ),
        (["", ".", "é", "x" * 300], ["__output.json", "_-2_output.json", "_-3_output.json", f"{'x' * 200}_output.json"]),
    ],
)
def test_file_names_of_scorers(scorers: list[str], names: list[str]) -> None:
    """Every scorer has a file of its own inside the directory, whatever its name."""
    assert names == list(file_names(scorers, "_output.json", reserved_names=["workflow_output.json"]).values())


def test_expected_steps(tmp_path: Path) -> None:
    """Expected steps in the dataset are exported where NAT has them."""
    events: list[Any] = trial("a")
    events[0].metadata = {"expected_intermediate_steps": ["look", "say"]}
    events[3] = scored("a", "exact", value=True)
    write_sync(tmp_path / "run", [started(), session(), *events])
    item = orjson.loads(export_files(tmp_path / "run", "nat")["workflow_output.json"])[0]

    assert ["look", "say"] == item["expected_intermediate_steps"]
    assert "metadata_expected_intermediate_steps" not in item
