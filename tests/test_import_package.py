"""The distribution installs one import package, so that a user's own `journal.py`, `replay/` and `runner/` are never ours."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import zipfile
from pathlib import Path
from typing import Final

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from tests.processes import ROOT, run_command

pytestmark = pytest.mark.slow

COMMON_NAMES: Final = ("journal", "replay", "runner")
"""Names of our directories, which a user may have as well."""
AS_MODULE: Final = ("-m", "evaljournal")
AS_COMMAND: Final = ("-P", "-c", "from evaljournal.__main__ import main; main()")
"""What the installed command `evaljournal` does."""
GEO: Final = """
    import journal, replay, runner
    from replay.rivers import LONGEST

    import evaljournal

    @evaljournal.evaluation(cases=[evaljournal.Case(name="peru", input="Peru", expected="Lima")], slots=1)
    def capitals(country):
        return journal.CAPITALS[country]

    @capitals.score
    def own_modules(output, case):
        import evaljournal.journal

        return (LONGEST, runner.SPEED, evaljournal.journal is not journal) == ("Nile", 5, True) and output == case.expected
"""
USER_FILES: Final = {
    "journal.py": "CAPITALS = {'Peru': 'Lima'}",
    "replay/__init__.py": "",
    "replay/rivers.py": "LONGEST = 'Nile'",
    "runner/__init__.py": "SPEED = 5",
    "geo.py": GEO,
    "test_geo.py": """
        import evaljournal
        from geo import capitals

        def test_capitals(tmp_path):
            assert evaljournal.run(capitals, tmp_path / "run", fail_under=["own_modules=1"]).passed
    """,
}


def build(target: str, source: Path, directory: Path) -> Path:
    """Build a wheel or an sdist, and return its file."""
    builder = WheelBuilder if target == "wheel" else SdistBuilder
    [file] = builder(str(source)).build(directory=str(directory), versions=["standard"])
    return Path(file)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this checkout."""
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel in an empty directory."""
    directory = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(directory)  # noqa: S202  # our own wheel
    return directory


@pytest.fixture
def evals(tmp_path: Path) -> Path:
    """Write an evaluation, and beside it modules of the user with our names."""
    for name, text in USER_FILES.items():
        file = tmp_path / "evals" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return tmp_path / "evals"


def clean_python(site: Path, *arguments: object, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run Python with the wheel and the dependencies, without this checkout: `-S` ignores the editable installation."""
    path = os.pathsep.join([str(site), sysconfig.get_path("purelib")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return run_command(sys.executable, "-S", *arguments, env=environment, cwd=cwd)


def test_the_wheel_contains_one_package(wheel: Path) -> None:
    """The wheel contains `evaljournal` with everything in it, and nothing else."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "evaljournal").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }

    assert sources == names


def test_the_sdist_contains_each_file_once(wheel: Path, tmp_path: Path) -> None:
    """The sdist has the modules below `evaljournal/` only, without links, and its wheel is the same."""
    with tarfile.open(build("sdist", ROOT, tmp_path / "sdist")) as archive:
        if hasattr(tarfile, "data_filter"):  # Since Python 3.11.4.
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)  # noqa: S202  # our own archive
        top_level = {member.name.split("/")[1] for member in archive.getmembers()}
        links = [member.name for member in archive.getmembers() if not member.isfile()]
        names = archive.getnames()
    [source] = tmp_path.glob("evaljournal-*")

    assert (set(), []) == (top_level & {*COMMON_NAMES}, links)
    assert len({*names}) == len(names)
    assert wheel.read_bytes() == build("wheel", source, tmp_path / "wheel").read_bytes()


def test_a_clone_without_links_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """Where Git writes no symbolic links, they are small files; the wheel is the same, and the quick start runs.

    The files are those that `git -c core.symlinks=false clone` writes.
    """
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "evaljournal", tree / "evaljournal", ignore=shutil.ignore_patterns("__pycache__"))
    for name in (".gitignore", "LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tree)
    for name in COMMON_NAMES:
        (tree / name).write_text(f"evaljournal/{name}")

    assert [f"evaljournal/{name}" for name in COMMON_NAMES] == [os.readlink(ROOT / name) for name in COMMON_NAMES]
    assert wheel.read_bytes() == build("wheel", tree, tmp_path / "wheel").read_bytes()
    (tree / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "quickstart.py", tree / "examples")
    result = clean_python(tree, "-m", "evaljournal", "run", "examples/quickstart.py", cwd=tree)
    assert (0, True) == (result.returncode, "evaljournal report" in result.stderr + result.stdout), result.stderr


def test_our_directories_are_no_top_level_packages(site: Path, tmp_path: Path) -> None:
    """Where evaljournal is installed, `import journal` fails, also after evaljournal was imported."""
    code = f"""
import importlib, evaljournal
evaljournal.run
for name in {COMMON_NAMES}:
    importlib.import_module(f"evaljournal.{{name}}")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as exc:
        print(exc)
"""
    result = clean_python(site, "-c", code, cwd=tmp_path)

    assert [f"No module named '{name}'" for name in COMMON_NAMES] == result.stdout.splitlines(), result.stderr


@pytest.mark.parametrize(
    ("command", "place", "options"),
    [
        (AS_COMMAND, ".", ()),
        (AS_MODULE, "evals", ("--workers", "processes:1")),
        pytest.param(AS_MODULE, ".", (), marks=pytest.mark.exhaustive),
        pytest.param(AS_COMMAND, "evals", (), marks=pytest.mark.exhaustive),
    ],
)
def test_modules_of_the_user_with_our_names(
    site: Path, evals: Path, command: tuple[str, ...], place: str, options: tuple[str, ...]
) -> None:
    """An evaluation may import its own `journal`, `replay` and `runner`, from either directory and in a worker."""
    cwd = evals if place == "." else evals.parent
    file = os.path.relpath(evals / "geo.py", cwd)
    arguments = [file, "-o", "run", "--plain", "--fail-under", "own_modules=1", *options]
    result = clean_python(site, *command, "run", *arguments, cwd=cwd)
    verified = clean_python(site, *command, "verify", "run", cwd=cwd)

    assert (0, 0) == (result.returncode, verified.returncode), result.stderr + verified.stderr


def test_pytest_next_to_modules_of_the_user_with_our_names(site: Path, evals: Path) -> None:
    """A test that runs the evaluation passes next to these modules."""
    result = clean_python(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_geo.py", cwd=evals)

    assert (0, "1 passed") == (result.returncode, result.stdout.splitlines()[-1][:8]), result.stdout


def test_the_plug_in_of_pytest_imports_nothing_else(site: Path, evals: Path) -> None:
    """The wheel has an entry point for pytest that imports three small modules, and the rest only with `--evals`."""
    names = ["evaljournal", "evaljournal.lazy_names", "evaljournal.pytest_plugin"]
    code = f"assert {names} == sorted(name for name in sys.modules if name.split('.')[0] == 'evaljournal')"
    (evals / "test_plain.py").write_text(f"import sys\ndef test_imports():\n    {code}\n")
    others = ("cacheprovider", "hypothesispytest", "anyio")
    # `plain`: pytest would compile all modules of the plug-in's package again, with its own assertions.
    options = ("--assert=plain", *(word for name in others for word in ("-p", f"no:{name}")))
    command = ("-m", "pytest", "-q", "-p", "evaljournal", *options)
    plain = clean_python(site, *command, "test_plain.py", cwd=evals)
    result = clean_python(site, *command, "--evals", "test_geo.py", cwd=evals)

    assert (0, "1 passed") == (plain.returncode, plain.stdout.splitlines()[-1][:8]), plain.stdout
    assert (0, "2 passed") == (result.returncode, result.stdout.splitlines()[-1][:8]), result.stdout + result.stderr


def test_files_in_the_working_directory_hide_no_dependency(site: Path, tmp_path: Path) -> None:
    """`python -m evaljournal` imports nothing from the working directory if there is an installed package of that name."""
    for name in ("attrs", "click", "json", "orjson", "rich", "trio"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working directory')\n")
    result = clean_python(site, "-m", "evaljournal", "run", "--help", cwd=tmp_path)

    assert (0, "") == (result.returncode, result.stderr)
