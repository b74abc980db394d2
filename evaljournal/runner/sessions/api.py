"""The Python API: `run`, `arun` and `rescore`.

It chooses the thread in which a session runs, and handles signals; the session itself is in `runner.sessions.session`.
"""

import contextvars
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from typing_extensions import Unpack

from evaljournal.replay.runs.loaded_run import split_variant
from evaljournal.runner.data.dataset import parse_shard
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.loading import imports_for_worker
from evaljournal.runner.errors import UsageError
from evaljournal.runner.runs.paths import RUNS, newest_run, newest_unfinished_run, next_paths
from evaljournal.runner.sessions.options import RunOptions
from evaljournal.runner.sessions.session import Outcome, Session
from evaljournal.runner.signals import POLL_INTERVAL, STOP_SIGNALS, handle_signals

if TYPE_CHECKING:
    from evaljournal.runner.scorers.llm_judge import Judge
    from evaljournal.runner.sessions.rescore import RescoreResult

T = TypeVar("T")
Deliver = Callable[[T | BaseException], None]
"""Takes the result of a call in another thread, or its exception; only the first one counts."""


async def arun(
    evaluation: Evaluation[Any, Any, Any],
    path: Path | str | None = None,
    *,
    quiet: bool = False,
    **options: Unpack[RunOptions],
) -> Outcome:
    """Run an evaluation inside trio or asyncio, or resume a run of it (`resume=True`).

    Default path: the next number under `runs/NAME/`; with `resume=True`, the newest unfinished run there.

    Options override the evaluation's own settings for this run and for every session that resumes it, until they are
    overridden again; see `Settings` for the settings and `RunOptions` for the others. In IPython, the cell shows the progress,
    unless `quiet` is true. In asyncio, the run has its own thread; cancelling the call stops it gracefully, and cancelling it
    again cancels calls in flight.
    """
    session = _session(evaluation, path, options, quiet=quiet)
    if trio.lowlevel.in_trio_task():
        return await session.run()
    if not is_in_event_loop():
        raise UsageError("arun() runs inside trio or asyncio; call run(…)")
    import asyncio  # noqa: PLC0415  # a plain script does not need it

    try:
        return await run_from_asyncio(_run_and_deliver(session), session.interrupt)
    except asyncio.CancelledError as exc:
        _add_note(exc, session)
        raise


def run(
    evaluation: Evaluation[Any, Any, Any],
    path: Path | str | None = None,
    *,
    signals: bool | None = None,
    quiet: bool = False,
    **options: Unpack[RunOptions],
) -> Outcome:
    """Run an evaluation from a script, a thread or a notebook cell; see `arun`.

    In the main thread, Ctrl-C, SIGTERM and SIGHUP stop the run gracefully and then have their usual effect: KeyboardInterrupt,
    or the end of the process. `signals=True`: they only stop the run. `signals=False`: they are not handled.

    The final summary and the gates that did not pass are printed, and in IPython the progress is shown, unless `quiet` is true.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    if signals and not is_main_thread:
        raise UsageError("signals are handled in the main thread only; omit the option", setting="signals", value=signals)
    session = _session(evaluation, path, options, quiet=quiet)
    handled_signals = () if signals is False or not is_main_thread else STOP_SIGNALS
    if handled_signals:
        session.on_unresponsive = session.options.on_unresponsive or (
            lambda outcome: os._exit(3) if outcome.stop_reason else None
        )
    received_signals: list[int] = []

    def stop(number: int, _: object) -> None:
        received_signals.append(number)
        session.interrupt()

    try:
        with handle_signals(stop, *handled_signals):
            # A new thread is abandoned if the last attempts do not end.
            outcome = _call_in_new_thread(_run_and_deliver(session)) if is_in_event_loop() else run_in_trio(session.run)
            if not quiet:
                print(outcome.summary_text)  # noqa: T201  # for people, as the command prints it
            return outcome
    finally:
        if received_signals and signals is None:
            _raise_signal(received_signals[0], session)


def _session(evaluation: Evaluation[Any, Any, Any], path: Path | str | None, options: RunOptions, *, quiet: bool) -> Session:
    name = _check_evaluation(evaluation).name
    if imports_for_worker.get():
        raise UsageError("a worker imports this file, which starts a run; put the call under `if __name__ == '__main__':`")
    if not quiet and "observer" not in options and "IPython" in sys.modules:
        from evaljournal.runner.sessions.outputs import output_from_text  # noqa: PLC0415  # for notebooks only

        with suppress(UsageError):  # Without a display, the run is the same.
            output = output_from_text("ipython")
            options["observer"] = None if output is None else output.update
    if path is not None:
        return Session(evaluation, Path(path), **options)
    if options.get("resume"):
        return Session(evaluation, newest_unfinished_run(name), **options)
    paths = next_paths(name, parse_shard(options.get("shard")))
    return Session(evaluation, next(paths), **{"next_path": paths.__next__, **options})


def _check_evaluation(evaluation: Evaluation[Any, Any, Any]) -> Evaluation[Any, Any, Any]:
    if not isinstance(evaluation, Evaluation):
        raise UsageError(f"{evaluation!r} is not an evaluation; write @evaluation(cases=…) above the function")
    return evaluation


def rescore(
    evaluation: Evaluation[Any, Any, Any],
    path: Path | str | None = None,
    *,
    all_outputs: bool = False,
    slots: int | None = None,
    only_variants: str | Iterable[str] = (),
    batch: bool = False,
    leave: bool = False,
    against: Path | str | None = None,
    judge: "Judge | None" = None,
) -> "RescoreResult":
    """Score the recorded outputs of a run with the evaluation's current scorers; the task is not called.

    Default path: the newest run of this evaluation under `runs/`, not one of `what-if`. It can be called wherever `run` can.
    Scores from the current version of a scorer are kept, unless `all_outputs` is true. With `only_variants`, only outputs of
    these variants are scored. With `batch`, the calls of judges are sent in batches; with `leave`, too, the same call collects
    them later.

    With `against`, a run or RUN@VARIANT, only `judge` scores: it compares each output with that of the same trial there, in
    both orders. The score `judge-vs-RUN` is `win` or `loss` if both agree, otherwise `tie`.
    """
    from evaljournal.runner.sessions.rescore import Rescoring, pairwise_evaluation  # noqa: PLC0415  # `run` does not need it

    name = _check_evaluation(evaluation).name
    run_path = newest_run(name) if path is None else Path(path)
    other_run = None
    if against is not None and judge is not None:
        other_path, variant = split_variant(str(against), RUNS)
        evaluation, other_run = pairwise_evaluation(evaluation, {"judge": judge}, Path(other_path), variant)
    elif against is not None or judge is not None:
        raise UsageError("against and judge require each other: rescore(…, against=RUN, judge=judge(MODEL))")
    options: dict[str, Any] = {"slots": slots, "only_variants": only_variants, "batch": batch, "leave": leave}
    return run_async(Rescoring(evaluation, run_path, all_outputs=all_outputs, other_run=other_run, **options).rescore)


def _raise_signal(number: int, session: Session) -> None:
    """Let a signal take its usual effect, after the run has stopped."""
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt as exc:
        _add_note(exc, session)
        raise


def _add_note(exc: BaseException, session: Session) -> None:
    if session.is_started:
        exc.add_note(f"{session.path} was stopped gracefully; {session.options.how_to_resume(session.path)} resumes it")


def run_in_trio(call: Callable[[], Awaitable[T]]) -> T:
    """Run an async call in a new trio loop; an exception group of KeyboardInterrupts only is raised as a KeyboardInterrupt."""
    try:
        return trio.run(call)
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is None:
            raise KeyboardInterrupt from group
        raise


def run_async(call: Callable[[], Awaitable[T]]) -> T:
    """Run an async call in a new trio loop: in this thread, or in a new one if this one runs an event loop."""
    return _call_in_new_thread(lambda _: run_in_trio(call)) if is_in_event_loop() else run_in_trio(call)


def _run_and_deliver(session: Session) -> Callable[[Deliver[Outcome]], Outcome]:
    def call(deliver: Deliver[Outcome]) -> Outcome:
        session.on_unresponsive = deliver
        return run_in_trio(session.run)

    return call


async def run_from_asyncio(call: Callable[[Deliver[T]], T], stop: Callable[[], None]) -> T:
    """Make a call in a new thread; the event loop continues meanwhile. A cancellation stops the call, and waits for its end."""
    import asyncio  # noqa: PLC0415  # a plain script does not need it

    loop = asyncio.get_running_loop()
    future: asyncio.Future[T | BaseException] = loop.create_future()
    cancellation: asyncio.CancelledError | None = None

    def set_result(result: T | BaseException) -> None:
        if not future.done():
            future.set_result(result)

    def deliver(result: T | BaseException) -> None:
        with suppress(RuntimeError):  # The loop was closed.
            loop.call_soon_threadsafe(set_result, result)

    _start_thread(call, deliver)
    while not future.done():
        try:
            await asyncio.wait([future], timeout=POLL_INTERVAL)  # A kernel's handler of SIGINT does not wake an idle loop.
        except asyncio.CancelledError as exc:
            cancellation = exc
            stop()
    if cancellation is not None:
        raise cancellation
    return _result(future.result())


def _call_in_new_thread(call: Callable[[Deliver[T]], T]) -> T:
    """Make a call in a new thread; return its result, or the one that it delivers before it ends."""
    results: list[T | BaseException] = []
    has_result = threading.Event()

    def deliver(result: T | BaseException) -> None:
        results.append(result)
        has_result.set()

    _start_thread(call, deliver)
    while not has_result.wait(POLL_INTERVAL):
        pass
    return _result(results[0])


def _start_thread(call: Callable[[Deliver[T]], T], deliver: Deliver[T]) -> None:
    def target() -> None:
        try:
            deliver(call(deliver))
        except BaseException as exc:  # noqa: BLE001  # raised again by the caller
            deliver(exc)

    threading.Thread(target=contextvars.copy_context().run, args=(target,), name="evaljournal", daemon=True).start()


def _result(result: T | BaseException) -> T:
    if isinstance(result, BaseException):
        raise result
    return result


def is_in_event_loop() -> bool:
    """Return whether an event loop, of asyncio or trio, runs in this thread."""
    asyncio = sys.modules.get("asyncio")  # Where a loop of asyncio runs, it is imported; a plain script does not need it.
    return (asyncio is not None and asyncio._get_running_loop() is not None) or trio.lowlevel.in_trio_run()  # noqa: SLF001  # `get_running_loop` raises instead
