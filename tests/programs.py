"""Programs and packages that some tests need: programs that pip cannot install, and packages of the extra `compat`.

Without one, a test is skipped. With EVALJOURNAL_REQUIRE_PROGRAMS=1 (set in CI) it fails.
"""

import importlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

REQUIRE_PROGRAMS: Final = "EVALJOURNAL_REQUIRE_PROGRAMS"
_PACKAGES: Final = """
agents aiohttp anthropic datasets google in_toto_attestation inspect_ai ipykernel krippendorff langchain langchain_openai
nbclient nbformat numpy openai pandas playwright polars ppi_py pydantic_ai ray scipy securesystemslib sklearn statsmodels
"""
OPTIONAL_PACKAGES: Final = frozenset(_PACKAGES.split())
"""The packages of the extra `compat`, as they are imported."""
STAND_INS: Final = Path(__file__).parent / "stand_ins"
"""A directory of programs that stand in for others, such as docker."""
needs_stand_ins: Final = pytest.mark.skipif(os.name != "posix", reason="the stand-ins are shell scripts")


def find_program(*names: str, package: str) -> str:
    """Return the path of the first of these programs; without any, skip the test, or fail it if programs are required."""
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        skip_or_fail(f"no {' or '.join(names)} on the PATH; install one with `apt-get install {package}`")
    return path


def import_optional(module: str) -> Any:
    """Return a module of an optional package; without the package, skip the test, or fail it if programs are required."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        skip_or_fail(_missing_package(exc) or repr(exc))


def skip_or_fail(reason: str) -> NoReturn:
    """Skip a test that needs what is not installed, or fail it if programs are required."""
    if os.environ.get(REQUIRE_PROGRAMS) == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def import_test_module(file: Path) -> None:
    """Import a module of tests, before pytest does."""
    importlib.import_module(".".join(file.relative_to(Path(__file__).parents[1]).with_suffix("").parts))


def _missing_package(error: ModuleNotFoundError) -> str:
    """Return how to install the optional package that an import did not find, or an empty string."""
    package = str(error.name).partition(".")[0]
    is_optional = package in OPTIONAL_PACKAGES
    return f"{package} is not installed; install it with `pip install -e '.[compat]'`" if is_optional else ""


class OptionalModule(pytest.Module):
    """A test module that may import optional packages: without one of them, its only test is skipped or fails."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            import_test_module(self.path)  # An import by pytest formats the traceback of each error, which takes longer.
        except ModuleNotFoundError as exc:
            if reason := _missing_package(exc):
                return [_MissingPackage.from_parent(self, name=reason, nodeid=self.nodeid)]
        return super().collect()


class _MissingPackage(pytest.Item):
    def runtest(self) -> None:
        skip_or_fail(self.name)


class SkippedTests:
    """The tests and modules that were skipped, kept in pytest's cache; `--skipped` runs these only."""

    KEY: Final = "evaljournal/skipped"

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._skipped: set[str] = set()

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if not self._config.getoption("--skipped") or collection_path.is_dir():
            return None
        files = {nodeid.partition("::")[0] for nodeid in self._config.cache.get(self.KEY, [])}
        return collection_path.relative_to(self._config.rootpath).as_posix() not in files or None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._config.getoption("--skipped"):
            skipped = set(self._config.cache.get(self.KEY, []))
            items[:] = [item for item in items if skipped & {item.nodeid, item.nodeid.partition("::")[0]}]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._skipped.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if not hasattr(self._config, "workerinput"):
            self._config.cache.set(self.KEY, sorted(self._skipped))
