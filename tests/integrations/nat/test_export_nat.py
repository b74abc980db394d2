"""The export for NVIDIA's `nat eval`: the same shape, without its defects."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from evaljournal.replay.export.file_names import file_names
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
        "intermediate_steps": [],
        "expected_intermediate_steps": [],
    }
    assert ["id", "question", "answer"] == list(items[0])[:3]
    assert ["generated_answer", "intermediate_steps", "expected_intermediate_steps"] == list(items[0])[-3:]


def test_question_and_answer_of_the_workflow(run: Path) -> None:
    """NAT's trajectory evaluator reads the question from the start of the workflow; it is there without steps, too."""
    peru, chad = orjson.loads(export_files(run, "nat")["workflow_output.json"])[:2]
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

    assert {"workflow_output.json": "[]", "workflow_output.jsonl": ""} == export_files(tmp_path / "run", "nat")


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
