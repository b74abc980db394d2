"""The files of NVIDIA's `nat eval`: their shape to the letter, and what theirs gets wrong got right."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from replay.export.nat import file_names
from tests.journal.samples import session, started, trial, written
from tests.replay.eventful_run import FORMULA, LARGE, NASTY, eventful_run, exported_files, scored


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Make the run in which everything happens."""
    return eventful_run(tmp_path / "run")


def test_an_item_has_their_shape(run: Path) -> None:
    """An item has what NAT's have, in that order, and every other field of the dataset."""
    items = orjson.loads(exported_files(run, "nat")["workflow_output.json"])

    assert {
        "id": "peru",
        "question": "The capital of Peru?",
        "answer": "Lima",
        "difficulty": "easy",
        "metadata_id": 7,
        "generated_answer": "Lima",
        "intermediate_steps": [],
        "expected_intermediate_steps": [],
    } == items[0]
    assert ["id", "question", "answer"] == list(items[0])[:3]
    assert ["generated_answer", "intermediate_steps", "expected_intermediate_steps"] == list(items[0])[-3:]


def test_only_what_has_come_to_its_end_is_there(run: Path) -> None:
    """A trial that runs, or that was withdrawn, is in no file."""
    items = orjson.loads(exported_files(run, "nat")["workflow_output.json"])

    assert ["peru", "chad", "chad#2", "oslo"] == [item["id"] for item in items]


def test_a_failed_trial_has_no_answer_and_carries_its_error(run: Path) -> None:
    """A call that failed is no empty answer."""
    chad = orjson.loads(exported_files(run, "nat")["workflow_output.json"])[1]

    assert (None, "timed_out: timeout: timed out after 30 s") == (chad["generated_answer"], chad["error"])


def test_the_lines_are_the_same_objects(run: Path) -> None:
    """The lines hold what the list holds, in the order in which trials ended."""
    made = exported_files(run, "nat")
    lines = [orjson.loads(line) for line in made["workflow_output.jsonl"].splitlines()]

    assert sorted(orjson.loads(made["workflow_output.json"]), key=lambda item: str(item["id"])) == sorted(
        lines, key=lambda item: str(item["id"])
    )
    assert ["peru", "chad", "chad#2", "oslo"] == [line["id"] for line in lines]
    assert [LARGE, {"answer": NASTY}, FORMULA] == [
        lines[3]["generated_answer"],
        lines[2]["generated_answer"],
        lines[3]["question"],
    ]


def test_a_scorers_file_has_their_shape(run: Path) -> None:
    """A failed trial, and one that could not be judged, have an error, no score, and no part in the average."""
    made = orjson.loads(exported_files(run, "nat")["exact_output.json"])

    assert {
        "average_score": 0.5,
        "eval_output_items": [
            {"id": "peru", "score": 1.0, "reasoning": None, "error": None},
            {"id": "chad", "score": None, "reasoning": None, "error": "timed_out: timeout: timed out after 30 s"},
            {"id": "chad#2", "score": 0.0, "reasoning": NASTY, "error": None},
            {"id": "oslo", "score": None, "reasoning": None, "error": "ValueError: no verdict"},
        ],
    } == made


def test_labels_have_no_average(run: Path) -> None:
    """What is not a number is not averaged."""
    made = orjson.loads(exported_files(run, "nat")["tone_output.json"])

    assert (None, "polite") == (made["average_score"], made["eval_output_items"][0]["score"])


def test_nothing_done_is_an_empty_list(tmp_path: Path) -> None:
    """A run of which nothing is done has files that say so."""
    written(tmp_path / "run", [started(), session()])

    assert {"workflow_output.json": "[]", "workflow_output.jsonl": ""} == exported_files(tmp_path / "run", "nat")


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
def test_no_scorer_leads_out_of_the_directory(scorers: list[str], names: list[str]) -> None:
    """Whatever a scorer is called, its file is in the directory, is its own, and hides no other."""
    assert names == list(file_names(scorers).values())


def test_what_is_expected_of_the_steps_is_kept(tmp_path: Path) -> None:
    """A dataset that says which steps are expected finds them where NAT has them."""
    life: list[Any] = trial("a")
    life[0].metadata = {"expected_intermediate_steps": ["look", "say"]}
    life[3] = scored("a", "exact", value=True)
    written(tmp_path / "run", [started(), session(), *life])
    item = orjson.loads(exported_files(tmp_path / "run", "nat")["workflow_output.json"])[0]

    assert ["look", "say"] == item["expected_intermediate_steps"]
    assert "metadata_expected_intermediate_steps" not in item
