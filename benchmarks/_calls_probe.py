"""The cost of one trial, measured in this process: `_calls_probe.py KIND calls|all-calls|cpu [URL]` prints a number.

It is started with the packages of a checkout on the path, which may be an old one: only names that version 1 has are used for
the kinds that are compared with it.
"""

import contextlib
import io
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

try:
    from evaljournal import Case, evaluation, run
except ImportError:  # Version 1 had no package of that name.
    from runner import Case, evaluation, run  # type: ignore[attr-defined,no-redef]  # noqa: TID251

FEW, MANY = 300, 900
"""Trials of the two runs whose difference is measured, so that what a run costs once does not count."""


async def _async(number: int) -> int:
    return number


def _plain(number: int) -> int:
    return number


async def _with_usage(number: int) -> int:
    from evaljournal import note  # noqa: PLC0415  # version 1 had no budgets

    note(usage={"output_tokens": 1})
    return number


async def _with_step(number: int) -> int:
    from evaljournal import step  # noqa: PLC0415  # version 1 had no steps

    async def call() -> int:
        return number

    result: int = await step("call", call)
    return result


def _equal(output: int, case: Any) -> bool:
    return bool(output == case.input)


async def _equal_async(output: int, case: Any) -> bool:
    return bool(output == case.input)


TASKS: dict[str, tuple[Callable[..., Any], Any, dict[str, Any]]] = {
    "trio": (_async, "trio", {}),
    "asyncio": (_async, "asyncio", {}),
    "plain function": (_plain, None, {}),
    "plain scorer": (_async, "trio", {}),
    "async scorer": (_async, "trio", {}),
    "timeout": (_async, "trio", {"timeout": 60.0}),
    "step": (_with_step, "trio", {}),
    "budget": (_with_usage, "trio", {"budget": {"output_tokens": 1_000_000_000}}),
    "limit": (_async, "trio", {"limits": {"rpm": 10_000_000}}),
    "key": (_async, "trio", {"limit_key": "group"}),
}
"""Kind → its task, the loop that it runs on, and the settings that switch a feature on."""


def _run(kind: str, count: int, url: str) -> None:
    options: dict[str, Any] = {"metadata": {"group": "key"}} if kind == "key" else {}
    cases = [Case(name=f"c{number}", input=number, **options) for number in range(count)]
    if kind == "chat":
        from evaljournal import Chat  # noqa: PLC0415  # the name is new

        chat: Any = Chat("model", base_url=f"{url}/chat/0", prompt="What is {input}?")
        definition: Any = evaluation(cases=cases, name="calls", slots=100)(chat)
    else:
        task, loop, settings = TASKS[kind]
        definition = evaluation(cases=cases, name="calls", slots=100, loop=loop, **settings)(task)
        if kind.endswith("scorer"):
            definition.score(_equal if kind.startswith("plain") else _equal_async)
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(io.StringIO()):
        outcome = run(definition, Path(directory) / "run")
    if outcome.state.completed != count:
        raise SystemExit(f"{outcome.state.completed} of {count} trials were completed")


def _count_from_now_on(*, all_threads: bool) -> Callable[[], int]:
    """Count the Python functions that are entered from now on, in this thread or in all; return how to read the count.

    It begins before the first run: threads are kept between runs, and one that was started before has no profiler.
    """
    entered = 0

    def profile(_: FrameType, event: str, __: Any) -> None:
        nonlocal entered
        entered += event == "call"

    if all_threads:
        threading.setprofile(profile)
    sys.setprofile(profile)
    return lambda: entered


def main(kind: str, unit: str, url: str = "") -> None:
    """Print the Python calls in the loop's thread or in all threads, or the CPU seconds in all, of one trial."""
    is_cpu = unit == "cpu"
    read: Callable[[], float] = time.process_time if is_cpu else _count_from_now_on(all_threads=unit == "all-calls")
    few, many = (FEW, 4 * MANY) if is_cpu else (FEW, MANY)
    _run(kind, few, url)  # Imports, and fills the caches.
    marks = [read()]
    for count in (few, many):
        _run(kind, count, url)
        marks.append(read())
    sys.setprofile(None)
    print((marks[2] - 2 * marks[1] + marks[0]) / (many - few))


main(*sys.argv[1:])
