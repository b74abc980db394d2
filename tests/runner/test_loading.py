"""How an evaluation is found by what somebody types, and what is said where it cannot be."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import journal
from runner import UsageError
from runner.definition.loading import AnyEvaluation, find

ONE = """
from runner import evaluation

@evaluation(cases=["a"])
def {name}(value: str) -> str:
    return value
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in an empty directory, and leave Python's modules as they were."""
    path = list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = path
    theirs = [name for name, module in sys.modules.items() if str(tmp_path) in (getattr(module, "__file__", None) or "")]
    for name in theirs:
        del sys.modules[name]


def written(path: str, *sources: str) -> str:
    """Write a Python file, and give its path back."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(sources))
    return path


def load(reference: str) -> AnyEvaluation:
    return find(reference).evaluation


def refusal(reference: str) -> str:
    """Say why an evaluation cannot be loaded."""
    with pytest.raises(UsageError) as caught:
        load(reference)
    return str(caught.value)


@pytest.mark.parametrize("reference", ["evals/capitals.py", "evals/capitals.py:capitals", "./evals/capitals.py"])
def test_a_file_with_one_evaluation(reference: str) -> None:
    """One evaluation in a file need not be named; it is told how it is named in full."""
    written("evals/capitals.py", ONE.format(name="capitals"))
    found = find(reference)

    assert "capitals" == found.evaluation.name
    assert f"{reference.removesuffix(':capitals')}:capitals" == found.reference


def test_one_of_several_evaluations() -> None:
    """Several evaluations in a file have to be told apart; the refusal names them all, as they are to be typed."""
    written("evals/geo.py", ONE.format(name="capitals"), ONE.format(name="rivers"))

    assert "rivers" == load("evals/geo.py:rivers").name
    assert "evals/geo.py defines 2 evaluations; pass one of them: evals/geo.py:capitals, evals/geo.py:rivers" == refusal(
        "evals/geo.py"
    )


def test_an_evaluation_under_two_names_is_one() -> None:
    """A second name for the same evaluation does not make two of it."""
    written("geo.py", ONE.format(name="capitals"), "again = capitals")

    assert "geo.py:capitals" == find("geo.py").reference


def test_an_evaluation_by_its_own_name() -> None:
    """An evaluation that was given a name is found by it as well."""
    source = "from runner import evaluation\n@evaluation(cases=['a'], name='the-capitals')\ndef f(x: str) -> str: return x\n"
    written("geo.py", source)

    assert "geo.py:f" == find("geo.py:the-capitals").reference


def test_a_module() -> None:
    """A module of the directory that one is in is found by its dotted name."""
    written("mypackage/__init__.py")
    written("mypackage/geo.py", ONE.format(name="capitals"))

    assert "mypackage.geo:capitals" == find("mypackage.geo").reference
    assert "capitals" == load("mypackage.geo:capitals").name


def test_a_file_imports_its_neighbours() -> None:
    """A file finds the modules beside it, and in a package the relative ones."""
    written("evals/neighbour.py", "CASES = ['a']")
    written("evals/geo.py", "from neighbour import CASES", ONE.format(name="capitals"))
    written("pack/__init__.py")
    written("pack/neighbour.py", "CASES = ['a']")
    written("pack/geo.py", "from .neighbour import CASES", ONE.format(name="rivers"))

    assert ["capitals", "rivers"] == [load("evals/geo.py").name, load("pack/geo.py").name]


def test_a_users_folder_comes_last(here: Path) -> None:
    """The user's folder is searched after everything else, so that nothing in it can take the place of ours."""
    written("evals/geo.py", ONE.format(name="capitals"))
    load("evals/geo.py")

    assert str(here / "evals") == sys.path[-1]


@pytest.mark.parametrize("name", ["runner", "journal", "replay", "json"])
def test_a_file_with_a_name_of_ours(name: str) -> None:
    """A user's file may be called runner.py: it is loaded, and ours stays what it was."""
    ours = importlib.import_module(name)
    written(f"evals/{name}.py", ONE.format(name="capitals"))

    assert "capitals" == load(f"evals/{name}.py").name
    assert ours is sys.modules[name]


def test_a_hidden_neighbour_is_named(here: Path) -> None:
    """A user's journal.py is hidden by ours; where that is why an import fails, both are named by their paths."""
    written("evals/journal.py", "DIARY = 1")
    written("evals/geo.py", "from journal import DIARY", ONE.format(name="capitals"))
    said = refusal("evals/geo.py")

    assert f"perhaps because {here}/evals/journal.py is hidden by evaljournal's own 'journal' ({journal.__file__})" in said
    assert "cannot import name 'DIARY' from 'journal'" in said


def test_a_hidden_neighbour_is_named_where_an_attribute_is_missing(here: Path) -> None:
    """The same where the hidden module was imported as a whole."""
    written("evals/journal.py", "DIARY = 1")
    written("evals/geo.py", "import journal", "journal.DIARY", ONE.format(name="capitals"))

    assert f"perhaps because {here}/evals/journal.py is hidden by evaljournal's own 'journal'" in refusal("evals/geo.py")


def test_a_package_with_a_name_of_ours(here: Path) -> None:
    """A file in a package called runner cannot have its neighbours; that is said, with the path of the package."""
    written("runner/__init__.py")
    written("runner/geo.py", ONE.format(name="capitals"))

    assert refusal("runner/geo.py").startswith(f"{here}/runner is hidden by another package 'runner'")


def test_a_module_of_ours_is_no_evaluation() -> None:
    """A dotted name that is ours is not the user's."""
    assert "'runner.data.case' is a module of evaljournal itself; to load your own file, pass its path" == refusal(
        "runner.data.case"
    )


def test_no_such_file() -> None:
    """A file that is not there is said so, with those that have a name like it."""
    written("evals/capitals.py", ONE.format(name="capitals"))

    assert "evals/captials.py does not exist; did you mean evals/capitals.py?" == refusal("evals/captials.py")
    assert "elsewhere/x.py does not exist" == refusal("elsewhere/x.py:x")
    assert "no file or module 'nothing'" == refusal("nothing")
    assert "no file or module 'nothing.at.all'" == refusal("nothing.at.all:x")


def test_no_such_name() -> None:
    """A name that is not there is said so, with the nearest; a plain function is told from an evaluation."""
    written("geo.py", "def helper(): ...", ONE.format(name="capitals"), ONE.format(name="rivers"))

    assert "geo.py defines no evaluation 'captials'; did you mean 'capitals'?" == refusal("geo.py:captials")
    assert "geo.py defines no evaluation 'x'; it defines 'capitals', 'rivers'" == refusal("geo.py:x")
    assert "geo.py:helper is a function, not an evaluation; put @evaluation(cases=…) above the function" == refusal(
        "geo.py:helper"
    )


def test_no_evaluation() -> None:
    """A file without an evaluation is told what it lacks."""
    written("geo.py", "x = 1")

    assert "geo.py defines no evaluation; put @evaluation(cases=…) above a function in it" == refusal("geo.py")
    assert "geo.py defines no evaluation 'y'" == refusal("geo.py:y")


def test_not_python() -> None:
    """A directory, another kind of file and half a reference are told from a Python file."""
    written("evals/geo.py", ONE.format(name="capitals"))
    written("cases.jsonl", "{}")

    assert "evals is a directory; pass a Python file, such as evals/geo.py" == refusal("evals")
    assert refusal("cases.jsonl").startswith("cases.jsonl is not a Python file")
    assert "'evals/geo.py:' ends with a colon" in refusal("evals/geo.py:")
    assert "the reference is empty" in refusal("")


def test_an_exception_while_importing(here: Path) -> None:
    """What the user's file raises is told with the user's lines, and none of ours."""
    written("evals/helper.py", "def broken():", "    return {}['key']")
    written("evals/geo.py", "import helper", "helper.broken()")
    said = refusal("evals/geo.py")

    assert [
        f"{here}/evals/geo.py cannot be imported:",
        f'  File "{here}/evals/geo.py", line 2, in <module>',
        "    helper.broken()",
        f'  File "{here}/evals/helper.py", line 2, in broken',
        "    return {}['key']",
        "KeyError: 'key'",
    ] == [each for each in said.splitlines() if "^" not in each]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(:", "SyntaxError"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import sys; sys.exit(7)", "SystemExit: 7"),
    ],
)
def test_other_ways_to_fail_while_importing(source: str, said: str) -> None:
    """A mistake in the syntax, a module that is missing, or a file that ends the process: all are told, and nothing ends."""
    written("geo.py", source)
    told = refusal("geo.py")

    assert said in told
    assert "loading.py" not in told
    assert "geo" not in sys.modules


def test_ctrl_c_while_importing_is_no_fault_of_the_file() -> None:
    """Who stops an import wants to stop, not to hear about the file."""
    written("geo.py", "raise KeyboardInterrupt")

    with pytest.raises(KeyboardInterrupt):
        load("geo.py")


def test_a_wrong_definition_is_told_by_its_line(here: Path) -> None:
    """What our own decorator refuses is told as one sentence, with the file and the line."""
    written("geo.py", ONE.format(name="capitals").replace('["a"]', '["a"], slots=0'))

    assert f"{here}/geo.py, line 4: slots=0: must be a whole number, 1 or more" == refusal("geo.py")


def test_a_file_that_was_changed_is_loaded_anew() -> None:
    """Loading again sees what the file says now; so does another file of the same name."""
    written("one/geo.py", ONE.format(name="capitals"))
    first = load("one/geo.py").name
    written("one/geo.py", ONE.format(name="mountains"))
    written("two/geo.py", ONE.format(name="rivers"))

    assert ["capitals", "mountains", "rivers"] == [first, load("one/geo.py").name, load("two/geo.py").name]
