"""A skill's `evals.json` as a dataset, and skills as variants: the files that a variant adds to its workspaces."""

import json
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from evaljournal import Case, UsageError
from evaljournal.runner.calls.acp import Acp
from evaljournal.runner.calls.command import Command
from evaljournal.runner.calls.workspaces import variant_files as module
from evaljournal.runner.calls.workspaces.variant_files import variant_files
from evaljournal.runner.data.dataset import Dataset
from tests.runs import define_real, outputs, run_real

EVALS: Final[dict[str, Any]] = {
    "skill_name": "csv",
    "evals": [
        {
            "id": 1,
            "prompt": "Sum it.",
            "expected_output": "7",
            "files": ["evals/files/a.csv"],
            "assertions": ["It prints 7.", {"text": "It reads a.csv."}],
        },
        {"prompt": "Count it.", "expectations": ["It counts."]},
    ],
}


@pytest.fixture
def skill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a skill with evals, beside an empty directory `repo`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "repo").mkdir()
    directory = tmp_path / "skills" / "csv"
    (directory / "evals" / "files").mkdir(parents=True)
    (directory / "SKILL.md").write_text("Use awk.")
    (directory / "evals" / "files" / "a.csv").write_text("3,4\n")
    (directory / "evals" / "evals.json").write_text(json.dumps(EVALS))
    return directory


def cases(path: Path) -> list[Case[Any, Any]]:
    """Return the cases of a file."""
    return [trial.case for trial in Dataset(path).select(None)]


def read(path: Path, value: Any) -> list[Case[Any, Any]]:
    """Return the cases of a file with this content."""
    path.write_text(json.dumps(value))
    return cases(path)


def test_evals_are_cases(skill: Path) -> None:
    """The prompt is the input; assertions are those of the scorer `assertions`, with one score each; files are of the skill."""
    first, second = cases(skill / "evals" / "evals.json")
    rubric = {"type": "llm-rubric", "value": "It prints 7.", "metric": "assertion-1"}

    assert ("1", "Sum it.", "7", "csv") == (first.name, first.input, first.expected, first.metadata["skill_name"])
    assert [rubric, {**rubric, "value": "It reads a.csv.", "metric": "assertion-2"}] == first.metadata["assert"]
    assert ["files/a.csv"] == first.metadata["files"]
    assert ("2", "Count it.", "It counts.") == (second.name, second.input, second.metadata["assert"][0]["value"])


@pytest.mark.parametrize(
    ("evals", "message"),
    [
        ([{"id": 1}], "eval 1 of 1: expected an object with a text 'prompt'"),
        (["x"], "eval 1 of 1: expected an object"),
        ([{"prompt": "x", "assertions": "y"}], "'assertions' must be a list"),
        ([{"prompt": "x", "assertions": [1]}], "eval 1 of 1, assertion 1: expected a text"),
        ([{"prompt": "x", "files": [1]}], "a file must be a path"),
        ([{"prompt": "x", "files": {}}], "'files' must be a list"),
    ],
)
def test_invalid_evals(tmp_path: Path, evals: Any, message: str) -> None:
    """An error names the file and the eval."""
    with pytest.raises(UsageError, match=r"evals\.json.*") as caught:
        read(tmp_path / "evals.json", {"skill_name": "csv", "evals": evals})

    assert message in str(caught.value)


def test_another_object_is_no_dataset(tmp_path: Path) -> None:
    """A JSON file with an object that has no evals is an error, as before."""
    with pytest.raises(UsageError, match="expected a list of objects"):
        read(tmp_path / "a.json", {"cases": []})


def test_a_skill_is_where_agents_look_for_skills(skill: Path) -> None:
    """Any other directory is added to the top of the workspace."""
    names = ["SKILL.md", "evals/evals.json", "evals/files/a.csv"]
    places = [f"{place}/csv/{name}" for place in (".claude/skills", ".agents/skills") for name in names]

    assert sorted(places) == sorted(variant_files(str(skill)))
    assert {"evals.json", "files/a.csv"} == variant_files(str(skill / "evals")).keys()
    assert {} == variant_files("")


def test_a_directory_that_cannot_be_added(skill: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is missing, has a link to the outside, or is too large."""
    with pytest.raises(UsageError, match="is not a directory"):
        Command("true", variant_files="missing").definition  # noqa: B018
    monkeypatch.setattr(module, "MAX_FILES", 2)
    with pytest.raises(UsageError, match="more than 2 files"):
        variant_files(str(skill))
    (skill / "link").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="link"):
        variant_files(str(skill))


@pytest.mark.parametrize("kind", ["command", "acp"])
def test_skills_as_variants(path: Path, skill: Path, kind: str) -> None:
    """The workspaces of a variant have its files, and those of the case; the other variant has only those of the case."""
    find, agent = "find . -type f | sort", Path(__file__).parent.parent / "stand_ins" / "acp_agent.py"
    task: Any = (
        Command(["/bin/sh", "-c", find]) if kind == "command" else Acp(f"{sys.executable} {agent}", prompt=f"run {find}\nsay x")
    )
    evaluation = define_real(
        task,
        Dataset(skill / "evals" / "evals.json"),
        variants={"with": {"variant_files": str(skill)}, "without": {"variant_files": ""}},
        workspace="repo",
        only="1",
    )
    outcome = run_real(evaluation, path)

    assert 2 == outcome.state.completed
    if kind == "command":
        without, with_skill = sorted((set(output.split()) for output in outputs(path)), key=len)
        assert {"./files/a.csv"} == without
        assert {f"./{place}/skills/csv/SKILL.md" for place in (".claude", ".agents")} < with_skill


def test_a_changed_skill_is_a_changed_variant(skill: Path) -> None:
    """The digest of the files is a part of the definition, which a resumed run compares; without files, nothing is added."""
    before = Command("true", variant_files=str(skill)).fingerprint
    (skill / "SKILL.md").write_text("Use sed.")

    assert before != Command("true", variant_files=str(skill)).fingerprint
    assert Command("true").definition == Command("true", variant_files="").definition
    assert "variant_files" not in Command("true").definition


def test_files_need_a_workspace(path: Path, skill: Path) -> None:
    """Without a workspace there is no place for the files, and nothing starts."""
    with pytest.raises(UsageError, match="pass --workspace DIR"):
        run_real(define_real(Command("true", variant_files=str(skill))), path)

    assert not path.exists()
