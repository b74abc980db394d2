"""The ways into a run: from inside trio, from a script, from a thread, and beside a loop that is running already.

Here is decided in which thread a session lives, and who is told of signals meanwhile. What happens in it is the session's own.
"""

import contextvars
import functools
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import trio

from runner.definition.evaluation import Evaluation
from runner.engine.rescore import Rescored
from runner.engine.rescore import rescore as score_anew
from runner.engine.session import Outcome, Session
from runner.errors import UsageError
from runner.run_paths import newest_of, newest_unfinished, next_paths
from runner.signals import A_WHILE, STOPS, told

T = TypeVar("T")


async def arun(evaluation: Evaluation[Any, Any, Any], path: Path | str | None = None, **options: Any) -> Outcome:
    """Run an evaluation, or go on with a run of it (`resume=True`), inside trio.

    Without a path, a new run gets the next number under `runs/`, as the command does it, and the run to go on with is the
    newest of this evaluation there that is not finished.

    Every setting can be given (`slots=4, only="c*"`): it then holds instead of the evaluation's own, in this session and in all
    that resume it, until another is given; see `Settings`, and `Options` for the rest.
    """
    if not trio.lowlevel.in_trio_task():
        raise UsageError(
            "arun() is awaited inside trio, and this is another loop; inside asyncio, `await asyncio.to_thread(runner.run, …)` "
            "does the same, and so does `runner.run(…)`, but while it lasts nothing else runs there"
        )
    return await _session(evaluation, path, options).run()


def run(
    evaluation: Evaluation[Any, Any, Any],
    path: Path | str | None = None,
    *,
    signals: bool | None = None,
    **options: Any,
) -> Outcome:
    """Run an evaluation from a script, a thread, or a notebook's cell in which another loop is running; see `arun`.

    In the main thread, Ctrl-C and SIGTERM first stop the run in good order, and then do what they would have done anyway: raise
    KeyboardInterrupt, and end the process. With `signals=True` they only stop the run; with False they do not even do that.
    """
    hears = threading.current_thread() is threading.main_thread()
    if signals and not hears:
        raise UsageError("signals=True: only the main thread hears of signals; leave it out in others")
    session = _session(evaluation, path, options)
    live = _in_own_thread if is_in_a_loop() else _in_this_thread
    if signals is False or not hears:
        return live(session)
    session.leave = _exit
    heard: list[int] = []

    def stop(number: int, _: object) -> None:
        heard.append(number)
        session.interrupt()

    try:
        with told(stop, *STOPS):
            return live(session)
    finally:
        if heard and signals is None:
            _pass_on(heard[0], session)


def _session(evaluation: Evaluation[Any, Any, Any], path: Path | str | None, options: Mapping[str, Any]) -> Session:
    """Make a session of the run that is meant: the one at a path, the newest to be gone on with, or a new one with a number."""
    name = _checked(evaluation).name
    if path is not None:
        return Session(evaluation, Path(path), **options)
    if options.get("resume"):
        return Session(evaluation, newest_unfinished(name), **options)
    places = next_paths(name)
    return Session(evaluation, next(places), **{"elsewhere": places.__next__, **options})


def _checked(evaluation: Evaluation[Any, Any, Any]) -> Evaluation[Any, Any, Any]:
    if not isinstance(evaluation, Evaluation):
        raise UsageError(f"{evaluation!r} is no evaluation; make one of the function: @evaluation(cases=…)")
    return evaluation


def rescore(
    evaluation: Evaluation[Any, Any, Any], path: Path | str | None = None, *, again: bool = False, slots: int | None = None
) -> Rescored:
    """Let the scorers of an evaluation, as they are now, judge the outputs of a run; nobody is asked anything.

    Without a path, the newest run of this evaluation under `runs/` is meant.

    It can be called wherever `run` can. Outputs that a scorer has judged in its present version are left as they are, unless
    `again` says otherwise.
    """
    name = _checked(evaluation).name
    known = newest_of(name) if path is None else Path(path)
    scorers, asked = list(evaluation.scorers.values()), evaluation.cases.input_name
    anew = functools.partial(score_anew, known, scorers, again=again, slots=slots, input_name=asked)
    return _beside(lambda _: in_trio(anew)) if is_in_a_loop() else in_trio(anew)


def _pass_on(number: int, session: Session) -> None:
    """Let a signal do what it would have done had nobody been told of it."""
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt as exc:
        if session.is_begun:
            exc.add_note(f"{session.path} was stopped in good order; run(…, resume=True) goes on with it")
        raise


def _exit(_: Outcome) -> None:
    os._exit(3)


def _in_this_thread(session: Session) -> Outcome:
    return in_trio(session.run)


def in_trio(call: Callable[[], Awaitable[T]]) -> T:
    """Run it here; take an interruption out of the nurseries' groups."""
    try:
        return trio.run(call)
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is None:
            raise KeyboardInterrupt from group
        raise


def _in_own_thread(session: Session) -> Outcome:
    """Run it beside a loop that runs in this thread. If its last attempts do not end, the thread is left behind with them."""

    def here(leave: Callable[[Outcome], None]) -> Outcome:
        session.leave = leave
        return _in_this_thread(session)

    return _beside(here)


def _beside(call: Callable[[Callable[[T], None]], T]) -> T:
    """Make a call in a thread of its own, and wait for what it returns, or for what it delivers before its end."""
    results: list[T | BaseException] = []
    there = threading.Event()

    def deliver(result: T | BaseException) -> None:
        results.append(result)
        there.set()

    def live() -> None:
        try:
            deliver(call(deliver))
        except BaseException as exc:  # noqa: BLE001  # it is raised again where it is waited for
            deliver(exc)

    threading.Thread(target=contextvars.copy_context().run, args=(live,), name="evaljournal", daemon=True).start()
    while not there.wait(A_WHILE):
        pass
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def is_in_a_loop() -> bool:
    """Say whether an event loop, of asyncio or of trio, runs in this thread."""
    import asyncio  # noqa: PLC0415  # a plain script need not pay for it

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return trio.lowlevel.in_trio_run()
    return True
