"""The packages `journal`, `replay` and `runner` must be evaljournal's own, and the wheel contains nothing else."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Final

import pytest

from evaljournal import _own_packages
from tests.processes import TIMEOUT

ROOT: Final = Path(__file__).parent.parent


def python(*arguments: str, path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with a directory at the front of `sys.path`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment, cwd=cwd, timeout=TIMEOUT
    )


def install_foreign(directory: Path, name: str, *, distribution: str | None) -> Path:
    """Write a package as another distribution would install it."""
    file = directory / name / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text("splitters = ()\n")
    if distribution is not None:
        info = directory / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"{name}/__init__.py,,\n")
    return file


@pytest.mark.parametrize("name", ["journal", "replay", "runner"])
@pytest.mark.parametrize(
    "code",
    ["from evaljournal import Case", "import evaljournal; evaljournal.run", "from evaljournal.journal import read"],
)
def test_a_foreign_package_is_an_import_error(tmp_path: Path, name: str, code: str) -> None:
    """The error names the foreign file and its distribution."""
    file = install_foreign(tmp_path, name, distribution="replay-rec")
    result = python("-c", code, path=tmp_path, cwd=tmp_path)

    last = result.stderr.splitlines()[-1]
    assert 1 == result.returncode
    assert last.startswith(f"ImportError: {name!r} is {file}, from the distribution 'replay-rec'; ")


def test_the_command_line_exits_with_2(tmp_path: Path) -> None:
    """The command prints the error in one line, and does not report it as a bug."""
    file = install_foreign(tmp_path, "replay", distribution=None)
    result = python("-m", "evaljournal", "ls", path=tmp_path, cwd=ROOT.parent)

    assert 2 == result.returncode
    assert "" == result.stdout
    assert [f"Error: 'replay' is {file}, which no installed distribution owns"] == [
        line.partition(";")[0] for line in result.stderr.splitlines()
    ]


def test_a_file_that_hides_a_dependency(tmp_path: Path) -> None:
    """A `rich.py` in the working directory is a usage error of the command, and an ImportError in Python."""
    file = tmp_path / "rich.py"
    file.write_text("")
    message = f"{file} hides the package 'rich', which evaljournal needs; rename the file"
    command = python("-m", "evaljournal", "ls", path=tmp_path, cwd=tmp_path)
    script = python("-c", "from evaljournal import Case", path=tmp_path, cwd=tmp_path)

    assert (2, "", f"Error: {message}\n") == (command.returncode, command.stdout, command.stderr)
    assert (1, f"ImportError: {message}") == (script.returncode, script.stderr.splitlines()[-1])


def test_dependencies_are_checked() -> None:
    """Every dependency that is a package is checked for a file that hides it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w-]", requirement)[0].replace("-", "_") for requirement in project["dependencies"]}

    assert names - {"typing_extensions"} == set(_own_packages._DEPENDENCIES)


def test_an_overwritten_package_is_found(tmp_path: Path) -> None:
    """Another distribution may overwrite our `replay/__init__.py` in its place."""
    for name in ("evaljournal", "journal", "runner"):
        (tmp_path / name).mkdir()
        for file in (ROOT / name).glob("*.py"):
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
    install_foreign(tmp_path, "replay", distribution="replay-rec")
    result = python("-m", "evaljournal", "ls", path=tmp_path, cwd=tmp_path)

    assert 2 == result.returncode
    assert "from the distribution 'replay-rec'" in result.stderr


def test_the_command_line_runs_as_a_module(tmp_path: Path) -> None:
    """`python -m evaljournal` is the command."""
    result = python("-m", "evaljournal", "--help", path=ROOT, cwd=tmp_path)

    assert (0, "") == (result.returncode, result.stderr)
    assert "resume" in result.stdout


def test_the_wheel_contains_four_packages(tmp_path: Path) -> None:
    """The top level of the built wheel is exactly our packages and the metadata."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=TIMEOUT,
    )
    [wheel] = tmp_path.glob("*.whl")
    top_level = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}

    assert {"evaljournal", "journal", "replay", "runner"} == {name for name in top_level if not name.endswith(".dist-info")}
