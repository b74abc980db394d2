"""The rooms: journal ← replay ← runner ← runner.cli ← evaljournal. An import points to the left, or stays in its room."""

import ast
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

import journal
import replay
import runner

ROOT: Final = Path(__file__).parent.parent
ROOMS: Final = ("journal", "replay", "runner", "runner.cli", "evaljournal")
IMPURE: Final = frozenset(
    {"asyncio", "http", "multiprocessing", "random", "secrets", "select", "socket", "subprocess", "threading", "time", "trio"}
)


def files_in(room: str) -> list[Path]:
    """List the modules of a room, without those of a room inside it."""
    inside = [ROOT / other.replace(".", "/") for other in ROOMS if other.startswith(f"{room}.")]
    files = (ROOT / room.replace(".", "/")).rglob("*.py")
    return sorted(file for file in files if not any(file.is_relative_to(other) for other in inside))


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Find every import in a module, wherever in it: the line, and the module (or the name in a package) that it asks for."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
            case ast.ImportFrom():
                yield node.lineno, "runner.cli"  # Relative: we have none, and none could be told apart.
            case _:
                pass


def room_of(module: str) -> str | None:
    """Say which room a module is in; None for somebody else's."""
    return next((room for room in reversed(ROOMS) if f"{module}.".startswith(f"{room}.")), None)


def astray(room: str, source: str) -> list[str]:
    """List the imports of a module in a room that point to the right."""
    there = ((line, module, room_of(module)) for line, module in imported(source))
    return [f"line {line}: {module}" for line, module, to in there if to and ROOMS.index(to) > ROOMS.index(room)]


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    """No module asks for one of a room further on, not even inside a function or for its types alone."""
    found = {str(file.relative_to(ROOT)): astray(room, file.read_text()) for file in files_in(room)}

    assert found
    assert {} == {name: lines for name, lines in found.items() if lines}


def test_views_depend_on_nothing_but_the_records() -> None:
    """`replay` asks for no clock, no chance, no nursery and no network."""
    found = {
        f"{file.relative_to(ROOT)}, line {line}: {module}"
        for file in files_in("replay")
        for line, module in imported(file.read_text())
        if module.partition(".")[0] in IMPURE
    }

    assert set() == found


@pytest.mark.parametrize(
    ("room", "source", "expected"),
    [
        ("journal", "import journal.files\nfrom journal import Record", []),
        ("journal", "def f():\n    from replay import fold", ["line 2: replay.fold"]),
        ("replay", "import runner", ["line 1: runner"]),
        ("runner", "from runner import cli", ["line 1: runner.cli"]),
        ("runner", "from runner.cli._display import open_run", ["line 1: runner.cli._display.open_run"]),
        ("runner", "import runners.cli", []),
        ("runner.cli", "from runner.cli import status\nfrom journal import read", []),
    ],
)
def test_an_import_that_goes_astray_is_found(room: str, source: str, expected: list[str]) -> None:
    """The test above sees what it is there to see."""
    assert expected == astray(room, source)


@pytest.mark.parametrize("package", [journal, replay, runner], ids=lambda package: package.__name__)
def test_no_public_name_is_a_submodule(package: ModuleType) -> None:
    """Importing a submodule binds its name in the package, so a public name must not be the name of a submodule."""
    submodules = {module.name for module in pkgutil.iter_modules(package.__path__)}

    assert set() == submodules & set(package.__all__)
