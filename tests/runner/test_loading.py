"""Loading evaluations by file, module and name, and the errors if that fails."""

import importlib
import json
import os
import sys
from pathlib import Path

import pytest

from evaljournal import UsageError
from evaljournal.runner.definition.loading import AnyEvaluation, load_evaluation

ONE = """
from evaljournal import evaluation

@evaluation(cases=["a"])
def {name}(value: str) -> str:
    return value
"""


def write_module(path: str, *sources: str) -> str:
    """Write a Python file; return its path."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(sources))
    return path


def load(reference: str) -> AnyEvaluation:
    return load_evaluation(reference).evaluation


def error_of(reference: str) -> str:
    """Return the error of loading a reference."""
    with pytest.raises(UsageError) as caught:
        load(reference)
    return str(caught.value)


@pytest.mark.parametrize("reference", ["evals/capitals.py", "evals/capitals.py:capitals", "./evals/capitals.py"])
def test_a_file_with_one_evaluation(reference: str) -> None:
    """The only evaluation of a file need not be named; the result has its full name."""
    write_module("evals/capitals.py", ONE.format(name="capitals"))
    loaded = load_evaluation(reference)

    assert "capitals" == loaded.evaluation.name
    assert f"{reference.removesuffix(':capitals')}:capitals" == loaded.reference


def test_a_file_that_was_just_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is loaded as it is, also if its size and its time in seconds are those of a cached version."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for name in ("capitals", "cocktail"):
        os.utime(write_module("evals/geo.py", ONE.format(name=name)), (1e9, 1e9))
        assert name == load("evals/geo.py").name


def test_an_evaluation_under_two_names_is_one() -> None:
    """A second name for the same evaluation does not count."""
    write_module("geo.py", ONE.format(name="capitals"), "again = capitals")

    assert "geo.py:capitals" == load_evaluation("geo.py").reference


def test_an_evaluation_by_its_own_name() -> None:
    """An evaluation is also found by its `name`."""
    source = (
        "from evaljournal import evaluation\n@evaluation(cases=['a'], name='the-capitals')\ndef f(x: str) -> str: return x\n"
    )
    write_module("geo.py", source)

    assert "geo.py:f" == load_evaluation("geo.py:the-capitals").reference


def test_a_module() -> None:
    """A module in the working directory is found by its dotted name."""
    write_module("mypackage/__init__.py")
    write_module("mypackage/geo.py", ONE.format(name="capitals"))

    assert "mypackage.geo:capitals" == load_evaluation("mypackage.geo").reference
    assert "capitals" == load("mypackage.geo:capitals").name


def test_a_file_imports_modules_next_to_it() -> None:
    """A file can import modules next to it, and in a package relative ones."""
    write_module("evals/neighbour.py", "CASES = ['a']")
    write_module("evals/geo.py", "from neighbour import CASES", ONE.format(name="capitals"))
    write_module("pack/__init__.py")
    write_module("pack/neighbour.py", "CASES = ['a']")
    write_module("pack/geo.py", "from .neighbour import CASES", ONE.format(name="rivers"))

    assert ["capitals", "rivers"] == [load("evals/geo.py").name, load("pack/geo.py").name]


def test_a_file_imports_modules_of_the_working_directory() -> None:
    """`python -m pytest` has it on the path, and the command that it prints resumes its run."""
    write_module("a_helper_of_the_root.py", "VALUE = 1")
    write_module("evals/rooted.py", "from a_helper_of_the_root import VALUE", ONE.format(name="rooted"))

    assert "rooted" == load("evals/rooted.py").name


def test_a_users_directory_comes_last(tmp_path: Path) -> None:
    """The user's directory is last on the path, so that nothing in it can shadow evaljournal."""
    write_module("evals/geo.py", ONE.format(name="capitals"))
    load("evals/geo.py")

    assert [str(tmp_path / "evals"), str(tmp_path)] == sys.path[-2:]


def test_a_file_with_the_name_of_a_package() -> None:
    """A user's file may be called json.py."""
    write_module("evals/json.py", ONE.format(name="capitals"))

    assert "capitals" == load("evals/json.py").name
    assert json is sys.modules["json"]


def test_a_file_with_the_name_of_a_package_that_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file called rich.py is loaded, and `import rich` still finds the package, which may be imported later."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    loaded = load(write_module("rich.py", ONE.format(name="wealth")))

    assert "wealth" == loaded.name
    assert not Path(importlib.import_module("rich.console").__file__ or "").is_relative_to(Path.cwd())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("from json import DIARY", "cannot import name 'DIARY' from 'json'"),
        ("import json\njson.DIARY", "has no attribute 'DIARY'"),
    ],
)
def test_a_shadowed_module_is_named(tmp_path: Path, source: str, message: str) -> None:
    """If an import, or the use of an attribute, fails because a user's json.py is shadowed, the error has both paths."""
    write_module("evals/json.py", "DIARY = 1")
    write_module("evals/geo.py", source, ONE.format(name="capitals"))
    error = error_of("evals/geo.py")

    assert f"perhaps because {tmp_path}/evals/json.py is hidden by another 'json' ({json.__file__})" in error
    assert message in error


def test_a_package_with_the_name_of_another(tmp_path: Path) -> None:
    """A file in a user's package called json cannot import modules next to it; the error has the path of the package."""
    write_module("json/__init__.py")
    write_module("json/geo.py", ONE.format(name="capitals"))

    assert error_of("json/geo.py").startswith(f"{tmp_path}/json is hidden by another package 'json'")


@pytest.mark.parametrize(
    ("reference", "error"),
    [
        ("evals/captials.py", "evals/captials.py does not exist; did you mean evals/capitals.py?"),
        ("elsewhere/unlike_others.py:x", "elsewhere/unlike_others.py does not exist"),
        ("nothing", "no file or module 'nothing'"),
        ("nothing.at.all:x", "no file or module 'nothing.at.all'"),
        ("geo.py", "geo.py defines 2 evaluations; pass one of them: geo.py:capitals, geo.py:rivers"),
        ("geo.py:captials", "geo.py defines no evaluation 'captials'; did you mean 'capitals'?"),
        ("geo.py:x", "geo.py defines no evaluation 'x'; it defines 'capitals', 'rivers'"),
        ("geo.py:helper", "geo.py:helper is a function, not an evaluation; put @evaluation(cases=…) above the function"),
        ("empty.py", "empty.py defines no evaluation; put @evaluation(cases=…) above a function in it"),
        ("empty.py:y", "empty.py defines no evaluation 'y'"),
        ("evals", "evals is a directory; pass a Python file, such as evals/capitals.py"),
        ("cases.jsonl", "cases.jsonl is not a Python file; pass a file that ends with .py"),
        ("geo.py:", "'geo.py:' ends with a colon; add the evaluation's name after the colon, or remove the colon"),
        ("", "the reference is empty; pass a file, such as evals/capitals.py"),
    ],
)
def test_wrong_references(reference: str, error: str) -> None:
    """A missing file or name, one of several evaluations, or what is not Python is an error with what to type."""
    write_module("evals/capitals.py", ONE.format(name="capitals"))
    write_module("geo.py", "def helper(): ...", ONE.format(name="capitals"), ONE.format(name="rivers"))
    write_module("empty.py", "x = 1")
    write_module("cases.jsonl", "{}")

    assert error == error_of(reference)
    assert "rivers" == load("geo.py:rivers").name


def test_an_exception_while_importing(tmp_path: Path) -> None:
    """An exception of the user's file is shown with the user's lines only."""
    write_module("evals/helper.py", "def broken():", "    return {}['key']")
    write_module("evals/geo.py", "import helper", "helper.broken()")
    error = error_of("evals/geo.py")

    assert [
        f"{tmp_path}/evals/geo.py cannot be imported:",
        f'  File "{tmp_path}/evals/geo.py", line 2, in <module>',
        "    helper.broken()",
        f'  File "{tmp_path}/evals/helper.py", line 2, in broken',
        "    return {}['key']",
        "KeyError: 'key'",
    ] == [line for line in error.splitlines() if "^" not in line]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:", "SyntaxError"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import sys; sys.exit(7)", "SystemExit: 7"),
    ],
)
def test_other_ways_to_fail_while_importing(source: str, message: str) -> None:
    """A syntax error, a missing module and SystemExit are reported as errors."""
    write_module("geo.py", source)
    error = error_of("geo.py")

    assert message in error
    assert "loading.py" not in error
    assert "geo" not in sys.modules


def test_ctrl_c_while_importing() -> None:
    """Ctrl-C during the import is passed on."""
    write_module("geo.py", "raise KeyboardInterrupt")

    with pytest.raises(KeyboardInterrupt):
        load("geo.py")


def test_an_invalid_definition_has_its_line(tmp_path: Path) -> None:
    """A usage error in a definition is one sentence with the file and the line."""
    write_module("geo.py", ONE.format(name="capitals").replace('["a"]', '["a"], slots=0'))

    assert f"{tmp_path}/geo.py, line 4: slots=0: must be a whole number, 1 or more" == error_of("geo.py")


def test_an_error_of_an_integration_has_the_users_line(tmp_path: Path) -> None:
    """The lines of the whole package are ours, also those of lazy names and of integrations."""
    write_module("geo.py", "import evaljournal", "evaljournal.nothing")
    write_module("ray_runs.py", "from evaljournal import RayWorkers", "WORKERS = RayWorkers('bad')")

    assert f"{tmp_path}/ray_runs.py, line 2: workers.address='bad': must be HOST:PORT" in error_of("ray_runs.py")
    assert "lazy_names.py" not in error_of("geo.py")


def test_a_changed_file_is_loaded_again() -> None:
    """Loading again reads the changed file; so does another file of the same name."""
    write_module("one/geo.py", ONE.format(name="capitals"))
    first = load("one/geo.py").name
    write_module("one/geo.py", ONE.format(name="mountains"))
    write_module("two/geo.py", ONE.format(name="rivers"))

    assert ["capitals", "mountains", "rivers"] == [first, load("one/geo.py").name, load("two/geo.py").name]
