"""Facts that are stated in several files of the repository are the same in all of them."""

import ast
import re
import tomllib

from tests.processes import ROOT
from tests.programs import OPTIONAL_PACKAGES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = (ROOT / ".github" / "workflows" / "test.yml").read_text()


def test_classifiers_claim_what_the_workflow_tests() -> None:
    """The Python versions of the classifiers are those of the workflow, and the first is the required one."""
    claimed = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))

    assert [claimed] == [re.findall(r'"(3\.\d+)"', row) for row in re.findall(r"python: (\[.*\])", WORKFLOW)]
    assert f">={claimed[0]}" == PROJECT["requires-python"]


def test_the_changelog_has_the_version() -> None:
    """The newest entry of the changelog is the version of the package."""
    assert PROJECT["version"] == re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]


def test_the_version_is_the_same_everywhere() -> None:
    """The citation has the version of the package; the workflows use the same version of mkdocs-material as the extra."""
    [requirement] = PROJECT["optional-dependencies"]["docs"]

    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'"{requirement}"' in WORKFLOW


def test_the_readme_has_the_two_commands_that_ci_runs() -> None:
    """`.ci/run` finds the quick start and the test command in the README, in this order."""
    quick_start, tests = re.findall(r"^python3 -m venv .*$", (ROOT / "README.md").read_text(), re.MULTILINE)

    assert "evaljournal run " in quick_start
    assert tests.endswith("pytest")


def test_only_packages_of_compat_are_optional() -> None:
    """Tests are skipped only without packages of the extra `compat`, which the README's second command does not install."""
    compat = {
        re.split(r"[>;\[]", requirement)[0].replace("-", "_") for requirement in PROJECT["optional-dependencies"]["compat"]
    }

    imported = {
        "evaljournal": "ray",
        "google_genai": "google",
        "openai_agents": "agents",
        "ppi_python": "ppi_py",
        "pydantic_ai_slim": "pydantic_ai",
        "scikit_learn": "sklearn",
    }
    assert OPTIONAL_PACKAGES == {imported.get(name, name) for name in compat}
    assert ".[test]" in (ROOT / "README.md").read_text()


def test_no_test_waits_for_a_process_without_limit() -> None:
    """Tests pass `timeout` to `subprocess.run`; other processes are of the class `tests.processes.Process`."""
    unbounded = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "subprocess." in source else ():
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name.startswith("subprocess.") and isinstance(node, ast.Call):
                is_bounded = name == "subprocess.run" and "timeout" in {keyword.arg for keyword in node.keywords}
                unbounded += [] if is_bounded else [f"{path.relative_to(ROOT)}, line {node.lineno}: {name}"]

    assert [] == unbounded


def test_actions_are_pinned_by_commit() -> None:
    """Every action that is used or documented is pinned by a commit hash, with its version behind it; a tag can be moved.

    Exceptions: the action itself, and its name in the documentation.
    """
    files = [*ROOT.glob("*.yml"), *ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.yml"), *ROOT.glob("docs/*.md")]
    uses = [
        (path.name, action)
        for path in files
        for action in re.findall(r"^[\s-]*uses:\s*(\S.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        if action != "./" and not action.startswith("OWNER/evaljournal@")
    ]

    assert {"action.yml", "test.yml", "release.yml", "pull-requests.md", "tutorial-pull-request.md", "shards.md"} == {
        name for name, _ in uses
    }
    assert [] == [use for use in uses if not re.fullmatch(r"[\w-]+/[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", use[1])]
