"""The order of packages and modules: an import points to an earlier package, or stays in its own, and there are no cycles."""

import ast
import functools
import graphlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

import evaljournal
from evaljournal import journal, replay

ROOT: Final = Path(__file__).parent.parent
ORDER: Final = (
    "evaljournal.lazy_names",
    "evaljournal.entry_points",
    "evaljournal.version",
    "journal",
    "replay",
    "runner.errors",
    "runner.signals",
    "runner.secrets",
    "runner.data",
    "runner.retries",
    "runner.calls",
    "runner.review",
    "runner.steps",
    "runner.scorers",
    "runner.workers",
    "runner.concurrency",
    "runner.engine",
    "runner.definition",
    "runner.gates",
    "runner.runs",
    "runner.sessions",
    "runner.testing",
    "runner",
    "runner.cli",
    "integrations",
    "evaljournal",
)
"""Packages and modules; `journal`, `replay`, `runner` and `integrations` stand for those below `evaljournal`."""
IMPURE: Final = frozenset(
    {"asyncio", "http", "multiprocessing", "random", "secrets", "select", "socket", "subprocess", "threading", "time", "trio"}
)


def module_name(file: Path) -> str:
    """Return the name of the module in a file."""
    return _short_name(".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))


def _short_name(name: str) -> str:
    """Return the name of a module as in `ORDER`: `evaljournal.journal.disk.files` is `journal.disk.files`."""
    short_name = name.removeprefix("evaljournal.")
    return short_name if short_name.partition(".")[0] in {"journal", "replay", "runner", "integrations"} else name


MODULES: Final = {module_name(file): file for file in (ROOT / "evaljournal").rglob("*.py")}


@functools.cache
def imports(source: str) -> list[tuple[int, str]]:
    """List every import in a module, also inside functions and for types only: its line, and the imported name."""
    return list(_imports(ast.parse(source)))


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from ((node.lineno, _short_name(alias.name)) for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                yield from ((node.lineno, _short_name(f"{module}.{alias.name}")) for alias in node.names)
            case ast.ImportFrom():
                yield node.lineno, "evaljournal"  # Relative imports are not used.
            case _:
                pass


def package_of(name: str) -> str | None:
    """Return the entry of `ORDER` that a module or a name in it belongs to; None if it is not one of ours."""
    return max((package for package in ORDER if f"{name}.".startswith(f"{package}.")), key=len, default=None)


def wrong_imports(package: str, source: str) -> list[str]:
    """List the imports of a module that point to a later package."""
    targets = ((line, name, package_of(name)) for line, name in imports(source))
    return [
        f"line {line}: {name}"
        for line, name, to_package in targets
        if to_package and ORDER.index(to_package) > ORDER.index(package)
    ]


@pytest.mark.parametrize("package", ORDER)
def test_imports_point_one_way(package: str) -> None:
    """No module imports one of a later package, not even inside a function or for types only."""
    files = {name: file for name, file in MODULES.items() if package_of(name) == package}
    if package == "runner":
        assert ["runner"] == list(files), "add the new package to ORDER"
        return

    assert files
    assert {} == {name: wrong for name, file in files.items() if (wrong := wrong_imports(package, file.read_text()))}


def test_the_kernel_knows_no_capability() -> None:
    """The engine imports no gate, layer, batch, worker, step, secret, provider, budget, limit or suite; `assembly` does."""
    rooms = ("gates", "workers", "sessions", "steps", "secrets", "calls.batches", "calls.chat", "calls.dialects", "calls.http")
    parts = ("calls.usage", "calls.prices", "definition.limits", "definition.hooks")
    views = ("batches", "budget", "known_limits", "steps", "usage", "workers")
    names = (*(f"runner.{name}" for name in (*rooms, *parts)), *(f"replay.state.{name}" for name in views))
    engine = {module: file for module, file in MODULES.items() if module.startswith("runner.engine")}
    targets = {(module, target) for module, file in engine.items() for _, target in imports(file.read_text())}

    assert "runner.engine.executor" in engine
    assert set() == {(module, target) for module, target in targets if target.startswith(names)}


def test_there_are_no_import_cycles() -> None:
    """No module imports itself through others. `runner`, `runner.cli` and `evaljournal` import their own modules lazily."""
    graph: dict[str, set[str]] = {}
    for name, file in MODULES.items():
        if name not in {"runner", "runner.cli", "evaljournal"}:
            targets = (_module_of(target) for _, target in imports(file.read_text()))
            graph[name] = {target for target in targets if target is not None and target != name}

    graphlib.TopologicalSorter(graph).prepare()


def _module_of(name: str) -> str | None:
    """Return the module that an imported name is in, or is."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


def test_the_core_imports_no_integration() -> None:
    """Integrations are found by entry points; only modules of public names, such as `evaljournal.executors`, import them."""
    importers = {
        name
        for name, file in MODULES.items()
        for _, target in imports(file.read_text())
        if package_of(name) != "integrations" and f"{target}.".startswith("integrations.")
    }

    assert {f"evaljournal.{name}" for name in ("executors", "promptfoo", "pytest_plugin", "scorers")} | {
        "evaljournal"
    } == importers


def test_integrations_are_independent() -> None:
    """No integration imports another one: each can be read, tested and removed alone."""
    parts = {name: name.split(".")[1] for name in MODULES if name.startswith("integrations.")}
    foreign = {
        f"{name}, line {line}: {target}"
        for name, part in parts.items()
        for line, target in imports(MODULES[name].read_text())
        if f"{target}.".startswith("integrations.") and target.split(".")[1] != part
    }

    assert {"inspect", "promptfoo", "ray"} < set(parts.values())
    assert set() == foreign


def test_views_depend_on_records_only() -> None:
    """`replay` imports no clock, random numbers, nursery or network."""
    impure = {
        f"{name}, line {line}: {target}"
        for name, file in MODULES.items()
        if package_of(name) == "replay"
        for line, target in imports(file.read_text())
        if target.partition(".")[0] in IMPURE
    }

    assert set() == impure


def test_benchmarks_import_no_tests() -> None:
    """Benchmarks run without the tests; tests may import from them."""
    files = sorted((ROOT / "benchmarks").rglob("*.py"))
    names = {(file.name, name) for file in files for _, name in imports(file.read_text()) if name.partition(".")[0] == "tests"}

    assert files
    assert set() == names


@pytest.mark.parametrize(
    ("package", "source", "expected"),
    [
        ("replay", "from evaljournal.integrations.nat.files import nat", ["line 1: integrations.nat.files.nat"]),
        ("journal", "import evaljournal.journal.disk.files\nfrom evaljournal.journal import Record", []),
        ("journal", "def f():\n    from evaljournal.replay import fold", ["line 2: replay.fold"]),
        ("replay", "from evaljournal import runner", ["line 1: runner"]),
        ("replay", "from evaljournal import run", ["line 1: evaljournal.run"]),
        ("runner.sessions", "from evaljournal.runner import cli", ["line 1: runner.cli"]),
        ("runner.data", "from evaljournal.runner.retries.retry import Retry", ["line 1: runner.retries.retry.Retry"]),
        ("runner.engine", "from evaljournal.runner.retries.retry import Retry\nimport runners.cli", []),
        ("runner.cli", "from evaljournal.runner.cli import status\nfrom evaljournal.journal import read", []),
    ],
)
def test_a_wrong_import_is_found(package: str, source: str, expected: list[str]) -> None:
    """The test above detects wrong imports."""
    assert expected == wrong_imports(package, source)


@pytest.mark.parametrize("package", [journal, replay, evaljournal], ids=lambda package: package.__name__)
def test_no_public_name_is_a_submodule(package: ModuleType) -> None:
    """Importing a submodule binds its name in the package, so a public name must not be the name of a submodule."""
    submodules = {module.name for module in pkgutil.iter_modules(package.__path__)}

    assert set() == {name for name in submodules & set(package.__all__) if not inspect.ismodule(getattr(package, name))}


LIMITS: Final = {
    "journal": (11, 6, 31),
    "replay": (15, 8, 57),
    "runner.cli": (11, 5, 22),
    "runner": (18, 9, 93),
    "runner.engine": (11, 7, 33),
}
"""Package → maxima: modules and packages directly inside, the longest chain of imports among them, imports between them."""


def figures(package: str) -> tuple[int, int, int]:
    """Count the parts of a package, the longest chain of imports among them, and the imports between them."""
    parts = {name: name.removeprefix(f"{package}.").partition(".")[0] for name in MODULES if name.startswith(f"{package}.")}
    graph: dict[str, set[str]] = {part: set() for part in parts.values()}
    for name, part in parts.items():
        modules = (_module_of(target) for _, target in imports(MODULES[name].read_text()))
        graph[part] |= {parts[module] for module in modules if module in parts} - {part}
    depths: dict[str, int] = {}
    for part in graphlib.TopologicalSorter(graph).static_order():
        depths[part] = 1 + max((depths[target] for target in graph[part]), default=0)
    return len(graph), max(depths.values()), sum(map(len, graph.values()))


@pytest.mark.parametrize("package", LIMITS)
def test_a_package_has_few_parts(package: str) -> None:
    """A package has few parts and few imports between them, and no two of them import each other. `pytest -s` shows them."""
    actual = figures(package)
    sys.stdout.write(f"{package}: {actual[0]} parts, longest chain {actual[1]}, {actual[2]} imports between them\n")

    assert all(figure <= limit for figure, limit in zip(actual, LIMITS[package], strict=True)), actual
