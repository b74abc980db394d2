"""How every test runs: `async def` under trio, on a virtual clock, with tasks in an order that one number decides."""

import functools
import inspect
from collections.abc import Iterator

import hypothesis
import pytest
import trio
import trio.testing
from trio._core import _run as scheduler

from tests.server import Server, serving

hypothesis.settings.register_profile("unhurried", deadline=None)  # How busy the machine is decides nothing.
hypothesis.settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `--seed N` choose the order in which trio runs tasks that are ready together."""
    parser.addoption("--seed", type=int, default=0, help="order of trio's tasks; the same number, the same run")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test under trio; leave the others to pytest."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # trio's own switch for tests, declared Final
    scheduler._r.seed(pyfuncitem.config.getoption("--seed"))
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    trio.run(functools.partial(pyfuncitem.obj, **arguments), clock=trio.testing.MockClock(autojump_threshold=0))
    return True


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A real HTTP server, in a process of its own."""
    with serving() as server:
        yield server
