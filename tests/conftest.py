"""Set-up of every test: a temporary working directory, trio with a virtual clock, a seeded order of tasks, a timeout."""

import contextlib
import functools
import gc
import inspect
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
import trio
import trio.testing
from trio._core import _run as scheduler

import evaljournal
from benchmarks._ray_cluster import ENVIRONMENT, RayCluster, ray_cluster
from evaljournal.journal.writers import segment_file
from evaljournal.runner.concurrency.key_policy import RAISE_VARIABLE
from tests.gateway import KEY
from tests.journal.disk import SimulatedDisk
from tests.programs import OptionalModule, SkippedTests, import_optional, import_test_module
from tests.server import Server, serving

# No deadline: the result must not depend on the load of the machine.
hypothesis.settings.register_profile("slice", deadline=None, derandomize=True, max_examples=20)
hypothesis.settings.register_profile("exhaustive", deadline=None, derandomize=True, max_examples=300)

if sys.platform == "win32":  # These need POSIX signals, terminals or commands.
    collect_ignore_glob = [
        "crash/*",
        "integrations/nat/test_nat_output.py",
        "integrations/phoenix/test_executors_*.py",
        "integrations/phoenix/test_phoenix.py",
        "integrations/promptfoo/test_import*.py",
        "integrations/promptfoo/test_promptfoo_configs.py",
        "integrations/pytest/test_pytest_sessions.py",
        "integrations/ray/*",
        "runner/test_command.py",
        "runner/test_gateway*.py",
        "runner/test_signals.py",
        "runner/test_workers_tasks.py",
        "runner_cli/test_*.py",
        "security/test_foreign_*.py",
        "test_action.py",
    ]

# Otherwise every process that a test starts would compile the packages again, and pytest itself those and all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests that send Ctrl-C would hang.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--seed` and `--skipped`."""
    parser.addoption("--seed", type=int, default=0, help="Seed for the order in which trio runs ready tasks (default: 0).")
    parser.addoption("--skipped", action="store_true", help="Run the tests that the last run skipped.")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the suite in one process more than there are cores, because many tests wait for other processes or for real limits.

    Tests that are named on the command line run in one process, without its start-up.
    """
    is_suite = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if is_suite and config.getoption("numprocesses", 0) is None and not hasattr(config, "workerinput"):
        config.option.numprocesses = (os.cpu_count() or 1) + 1
        config.option.dist = "worksteal"


def pytest_configure(config: pytest.Config) -> None:
    """Remember which tests are skipped; choose how many examples of a property are tried."""
    hypothesis.settings.load_profile("exhaustive" if config.option.markexpr == "exhaustive" else "slice")
    if config.pluginmanager.hasplugin("cacheprovider"):
        config.pluginmanager.register(SkippedTests(config))


def pytest_report_header() -> str:
    """Show which copy of the package is tested: the source tree or an installed wheel."""
    return f"evaljournal from {Path(evaljournal.__file__).parents[1]}"


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Skip a test module that imports a package that is not installed and that only some tests need."""
    return OptionalModule.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage while modules are imported, nor later among them and the tests: all stay until the end."""
    gc.disable()
    try:
        workers = getattr(session.config, "workerinput", None)
        if workers is not None and session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            _import_share(int(workers["workerid"].removeprefix("gw")), workers["workercount"])
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _import_share(number: int, processes: int) -> None:
    """Import a share of the test modules before they are collected: in a new clone, each process compiles a part for all.

    Without it, all processes compile each module at the same time, which takes twice as long as everything else before the
    first test. A module that cannot be imported here is reported when it is collected.
    """
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    for file in files[number::processes]:
        with contextlib.suppress(Exception, pytest.skip.Exception):
            import_test_module(file)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, object, object]:
    """Mark tests by the fixtures they use; give exhaustive tests half an hour instead of the timeout in pyproject.toml.

    `pytest -m exhaustive` also tries every property, with up to 300 examples instead of 20. If the suite runs in several
    processes, each begins with slow tests, so that none waits at the end for a slow test of another.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "browser" in fixtures:
            item.add_marker(pytest.mark.browser)
        if "cluster" in fixtures:
            item.add_marker(pytest.mark.ray)
        if config.option.markexpr == "exhaustive" and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.exhaustive)
        if item.get_closest_marker("exhaustive"):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(1800))
    result = yield  # Tests are deselected.
    if (workers := getattr(config, "workerinput", None)) is not None:
        items[:] = _slow_first(items, workers["workercount"])
    return result


def _slow_first(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Order tests for `--dist worksteal`: a process gets equal, consecutive parts of the slow tests and of the others."""
    groups: tuple[list[pytest.Item], ...] = ([], [])
    for item in items:
        groups[item.get_closest_marker("slow") is None].append(item)
    return [
        item
        for number in range(processes)
        for group in groups
        for item in group[len(group) * number // processes : len(group) * (number + 1) // processes]
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test under trio with a virtual clock."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # trio's own switch for tests, declared Final
    scheduler._r.seed(pyfuncitem.config.getoption("--seed"))
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    trio.run(functools.partial(pyfuncitem.obj, **arguments), clock=trio.testing.MockClock(autojump_threshold=0))
    return True


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the test in its temporary directory; afterwards, unload the modules that it has imported from there."""
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield
    if before != sys.path:
        sys.path[:] = before
        for name in [
            name for name, module in sys.modules.items() if str(tmp_path) in (getattr(module, "__file__", None) or "")
        ]:
            del sys.modules[name]


@pytest.fixture(autouse=True, scope="session")
def state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the list of own runs in a temporary directory, for child processes too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def one_name_per_module() -> Iterator[None]:
    """Fail at the end if a module of ours was also imported by another name: in a checkout, `import journal` would do it."""
    yield
    directory = Path(evaljournal.__file__).resolve().parent
    files = {name: Path(file).resolve() for name, module in sys.modules.items() if (file := getattr(module, "__file__", None))}
    ours = [name for name, file in files.items() if file.is_relative_to(directory)]

    assert [] == [name for name in ours if name.partition(".")[0] != "evaljournal"]


@pytest.fixture(autouse=True, scope="session")
def policy_errors() -> Iterator[None]:
    """Let an exception inside a policy end the run, in child processes too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RAISE_VARIABLE, "1")
        yield


@pytest.fixture(autouse=True, scope="session")
def ray_environment() -> Iterator[None]:
    """Set the variables of Ray before a test imports it: it reads them once."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """An HTTP server in its own process."""
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """A Ray cluster in its own processes."""
    import_optional("ray")
    with ray_cluster() as cluster:
        yield cluster


@pytest.fixture
def disk() -> SimulatedDisk:
    """An empty disk in memory."""
    return SimulatedDisk()


@pytest.fixture
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a writer check its files before each write."""
    monkeypatch.setattr(segment_file, "CHECK_INTERVAL", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a run may be created."""
    return tmp_path / "run"


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The name under which the server counts the calls of this test."""
    return "".join(letter if letter.isalnum() else "-" for letter in f"{request.path.stem}-{request.node.name}")


@pytest.fixture
def provider(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the test server be the providers of the gateway: each call takes the next of the steps that are set (default: ok)."""

    def use(steps: str) -> None:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url(name, steps, "api/v1"))
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url(name, steps, "api"))
        monkeypatch.setenv("ANTHROPIC_API_KEY", f"{KEY}-of-anthropic")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url(name, steps, "api"))
        monkeypatch.setenv("GEMINI_API_KEY", f"{KEY}-of-gemini")

    use("ok")
    return use
