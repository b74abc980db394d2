"""The files that the results of an evaluation depend on, and the part of its own file that counts."""

import sys
from pathlib import Path
from typing import Any

import pytest

from evaljournal import Case, evaluation
from evaljournal.replay.state.definition import changed_files
from evaljournal.runner.data.fingerprint import strip_comments
from evaljournal.runner.definition.code_files import code_files, relevant_source
from evaljournal.runner.definition.loading import load_evaluation
from evaljournal.runner.errors import UsageError

EVALUATION = """
from evaljournal import evaluation
{header}
@evaluation(cases=[1])
def task(number):
    return number
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the directory of a project."""
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


def write(files: dict[str, str]) -> None:
    """Write files below the working directory."""
    for name, content in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def loaded(header: str, **files: str) -> dict[str, str]:
    """Return the digests of an evaluation that is loaded from evals/task_.py."""
    write({"evals/task_.py": EVALUATION.format(header=header), **files})
    return digests(load_evaluation("evals/task_.py").evaluation)


def digests(evaluated: Any) -> dict[str, str]:
    """Return path → digest of an evaluation's files."""
    files: dict[str, str] = code_files(evaluated)["code"]["files"]
    return files


@pytest.mark.usefixtures("project")
def test_files_that_are_read_on_loading() -> None:
    """Imported modules and files opened for reading count; written files, hidden and installed ones, and runs do not."""
    write(
        {
            "evals/helper.py": "import sys",
            "evals/dynamic.py": "",
            "a.txt": "a",
            "b.txt": "b",
            ".venv/c.txt": "c",
            "env/site-packages/d.txt": "d",
            "runs/x/journal-000001.jsonl": "",
            "runs/x/e.txt": "e",
            "gone.txt": "",
        }
    )
    header = """
import importlib, os
import helper
importlib.import_module("dynamic")
open("a.txt").close()
os.close(os.open(b"b.txt", os.O_RDONLY))
for name in (".venv/c.txt", "env/site-packages/d.txt", "runs/x/e.txt", "gone.txt", "evals", "/etc/hostname"):
    try:
        open(name).close()
    except OSError:
        pass
open("written.txt", "w").close()
if os.path.exists("gone.txt"):
    os.remove("gone.txt")
"""
    files = loaded(header)

    assert ["../a.txt", "../b.txt", "dynamic.py", "helper.py", "task_.py"] == sorted(files)
    assert files == loaded(header), "a second load, which imports no module again"


def test_a_python_run_has_the_modules_that_are_imported(project: Path) -> None:
    """Without the loader, the modules that the evaluation's module imports outside functions count, directly or not."""
    write(
        {
            "evals/__init__.py": "",
            "evals/task_.py": EVALUATION.format(header="from .direct import x\nif True:\n    import other_top"),
            "evals/direct.py": "from . import indirect\nx = 1\ndef f():\n    from evals import lazy",
            "evals/indirect.py": "",
            "evals/lazy.py": "",
            "evals/unrelated.py": "",
            "other_top.py": "",
        }
    )
    sys.path.append(str(project))
    import evals.lazy  # type: ignore[import-not-found]  # written above
    import evals.task_  # type: ignore[import-not-found]
    import evals.unrelated  # type: ignore[import-not-found]

    assert ["../other_top.py", "__init__.py", "direct.py", "indirect.py", "task_.py"] == sorted(digests(evals.task_.task))
    assert not code_files(evals.task_.task)["code"]["includes_opened"]


def test_a_notebook_has_the_modules_that_its_function_uses(project: Path) -> None:
    """A cell of a notebook has no file: the modules of what the function uses count."""
    write({"used.py": "def ask(): pass", "unused.py": "", "prompt.txt": ""})
    sys.path.append(str(project))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cell = EVALUATION.format(header="import unused\nfrom used import ask").replace("return", "return ask() or")
    exec(cell.replace("cases=[1]", "cases=[1], depends='prompt.txt'"), namespace)  # noqa: S102  # as a notebook does

    assert ["prompt.txt", "used.py"] == list(digests(namespace["task"]))


@pytest.mark.usefixtures("project")
def test_the_dataset_has_its_own_fingerprint() -> None:
    """A file that is passed as cases is not one of the files."""
    write({"evals/qa.csv": "input\n1\n"})
    header = "from pathlib import Path\nDATA = Path(__file__).with_name('qa.csv')\nDATA.read_text()"
    source = EVALUATION.format(header=header).replace("cases=[1]", "cases=DATA")
    write({"evals/task_.py": source})

    assert ["task_.py"] == list(digests(load_evaluation("evals/task_.py").evaluation))


@pytest.mark.usefixtures("project")
def test_a_new_key_is_no_change() -> None:
    """API keys in a file do not count; other values do."""
    header = "open('.env').close()"
    key = "OPENAI_API_KEY=sk-proj-{}\nMODEL=gpt-5\n"
    first = loaded(header, **{".env": key.format("a" * 40)})

    assert first == loaded(header, **{".env": key.format("b" * 40)})
    assert first != loaded(header, **{".env": key.format("b" * 40).replace("gpt-5", "gpt-6")})


@pytest.mark.usefixtures("project")
def test_a_large_file_is_sampled() -> None:
    """Of a file above 16 MiB, the size, the beginning and the end count."""
    header, large = "open('large').close()", b"0" * 17 * 2**20
    results = []
    for content in (large, large + b"0", b"1" + large[1:], large[:-1] + b"1"):
        Path("large").write_bytes(content)
        results.append(loaded(header)["../large"])

    assert 4 == len(set(results))


def test_a_dependency_must_be_a_file(tmp_path: Path) -> None:
    """A directory in `depends` is an error; a missing file is one, too."""
    for name, problem in ((str(tmp_path), "is not a file"), ("none.json", "does not exist")):
        with pytest.raises(UsageError, match=problem):
            evaluation(cases=[Case(name="a", input=1)], depends=name)(abs)


OWN = '''"""Docstring."""
import os, helper
from data import CASES, extra
PROMPT = "a"  # comment
ROWS = [1]
INLINE = []
for row in ROWS:
    INLINE.append(row)
os.environ["A"] = "1"

def norm(text):
    return text

def unused():
    return PROMPT

@helper.tool
def search(query):
    return query

@evaluation(cases=INLINE, timeout=1)
def task(number):
    return helper.ask(PROMPT)

@task.score
def exact(output):
    return norm(output)

@evaluation(cases=CASES)
def other(number):
    return extra

outcome = run(task, resume=True)
print(outcome)

def main():
    run(task)

if __name__ == "__main__":
    main()
'''


def own(source: str, *functions: str) -> str:
    """Return what counts of the file of an evaluation."""
    lines = source.splitlines()
    starts = {next(index for index, line in enumerate(lines) if line.startswith(function)) for function in functions}
    return relevant_source(source, frozenset(starts), frozenset({"task", "other"}))


def test_the_relevant_part_of_an_evaluation() -> None:
    """What the task and scorers use counts, and statements with an effect; not cases, settings, runs and other evaluations."""
    source = """import helper
import os
PROMPT = "a"  # comment
os.environ["A"] = "1"
def norm(text):
    return text
@helper.tool
def search(query):
    return query
"""

    assert source == own(OWN, "def task", "def exact")


def test_a_function_that_is_decorated_with_the_cases_does_not_count() -> None:
    """A decorator that takes the cases, such as one of a test, makes neither its function nor the cases count."""
    source = OWN + "\n@parametrize(INLINE)\ndef test_rows(row):\n    assert row\n"

    assert own(OWN, "def task", "def exact") == own(source, "def task", "def exact")


def test_another_evaluation_counts_if_it_is_called() -> None:
    """An evaluation that calls another one, through a function, depends on it."""
    source = OWN.replace("helper.ask(PROMPT)", "second(number)") + "\ndef second(number):\n    return other(number)\n"

    assert "def other" in own(source, "def task", "def exact")
    assert "from data import extra" in own(source, "def task", "def exact")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("# a\n\nx = 1  # b\n\n  # c\ny = 2\n", "x = 1\ny = 2"),
        ('x = """a\n\n# b  \n"""  # c', 'x = """a\n\n# b  \n"""'),
        ("x = '#' + \"\\\"#\"  # it's", 'x = \'#\' + "\\"#"'),
        ('x = f"{d["a#b"]}"', 'x = f"{d["a#b"]}"'),
    ],
)
def test_comments_are_removed(source: str, expected: str) -> None:
    """Comments and blank lines are removed, but nothing inside a string."""
    assert expected == strip_comments(source)


def code(*, opened: bool = True, **files: str) -> dict[str, Any]:
    """Return a recorded definition with these files."""
    return {"code": {"includes_opened": opened, "files": files}}


def test_changed_files() -> None:
    """A file that only one definition has counts if both were found in the same way; one that was moved does not."""
    old = code(a="1", b="1", c="3", e="5")

    assert {"b": "changed", "c": "removed", "d": "added"} == changed_files(old, code(a="1", b="2", d="4", f="5"))
    assert {"b": "changed"} == changed_files(old, code(opened=False, b="2"))
    assert {} == changed_files(old, old)


@pytest.mark.parametrize("definition", [None, {}, {"task": {}}, {"code": 1}, {"code": {"files": []}}, code()])
def test_a_run_without_files_has_no_changed_files(definition: Any) -> None:
    """A journal of an earlier release, or with a damaged definition, has no files to compare."""
    assert {} == changed_files(definition, code(a="1")) == changed_files(code(a="1"), definition)
