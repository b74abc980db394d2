"""One process life of a run: from opening the journal to the last word in it.

Everything meets here: the evaluation, its journal, the state so far, the executor. To begin a run and to resume one is the same
thing, but for what the journal already says.
"""

import contextvars
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import attrs
import outcome
import trio

from journal import Durability, Journal, Record, read, writing
from journal.errors import DiskFull, JournalExists, NotAJournal, command
from journal.events import RunFinished, RunStarted, RunStopped, SessionStarted
from journal.files import DISK, Files
from journal.writer import InThread, in_a_thread
from replay import RunState, fold
from runner.concurrency import Adaptive, Aimd, Fixed, Policy
from runner.dataset import Selection, Trials
from runner.definition import Evaluation, Settings
from runner.errors import RunChanged, UsageError
from runner.executor import Executor
from runner.recorder import Clock, Recorder
from runner.resume import Remainder, differences
from runner.score import Scorer
from runner.tasks import Opens, Task
from runner.tasks.function import AsyncioThread, FunctionTask, Loop

T = TypeVar("T")

POLICIES: Final[dict[str, Callable[[int], Policy]]] = {"adaptive": Adaptive, "aimd": Aimd, "fixed": Fixed}


@attrs.define
class Live:
    """What an onlooker sees while a run goes on."""

    state: RunState
    """Kept by the run itself; to be looked at, not to be changed."""
    journal: Journal
    total: int | None
    """How many trials there are to be made, where that is known beforehand."""
    now: Callable[[], float]
    """Tells the time, in the seconds of `t`."""
    stop: Callable[[], None]
    """Stops the run as a signal does: with its grace the first time, at once the second."""


@attrs.frozen
class Outcome:
    """How a session of a run ended."""

    path: Path
    state: RunState
    head: str
    """The hash of the journal's last record. Keep it elsewhere, and nobody can take records off the end unnoticed."""
    stopped: str
    """Empty if the run is finished; otherwise why it is not."""
    why: str
    """More about that, for people."""


@attrs.frozen(kw_only=True)
class Surroundings:
    """What a session records of the place where it runs; a test that wants the same bytes again gives its own."""

    pid: int
    host: str
    boot: str
    """Identity of the machine's boot."""
    environment: dict[str, str]
    run: str | None = None
    """The identity of a new run; None to draw one."""

    @classmethod
    def here(cls) -> "Surroundings":
        """Look around."""
        return cls(pid=os.getpid(), host=socket.gethostname(), boot=_boot(), environment=_environment())


@attrs.frozen(kw_only=True)
class Options:
    """How one session is run, beyond the settings of the evaluation."""

    resume: bool = False
    settings: Settings | None = None
    """Instead of the evaluation's own."""
    selection: Selection | None = None
    task: str = ""
    """Where the evaluation can be found again, such as `evals/capitals.py:capitals`."""
    adopt: bool = False
    """Whether to go on with what has changed since the run began."""
    retry_failed: bool = False
    """Whether to try trials again that were given up."""
    on_ambiguous: Literal["retry", "fail"] = "retry"
    """What becomes of an attempt that was cut off, whose call may have taken effect."""
    durability: Durability = "sync"
    policy: str = "adaptive"
    grace: float = 5.0
    """Seconds that attempts in the air get when the run is stopped."""
    fail_fast: bool = False
    """Whether the first trial that fails stops the run."""
    max_failures: int | float | None = None
    """How many trials may fail (a whole number), or which part of them (a fraction), before the run is stopped."""
    seed: int = 0
    """Decides the jitter of delays."""
    signals: bool = False
    """Whether SIGINT and SIGTERM stop the run; only in the main thread."""
    onlooker: Callable[[Live], Awaitable[None]] | None = None
    """Started with the run, cancelled at its end."""
    listener: Callable[[Record], None] | None = None
    """Told of every record as it is made; it must neither wait nor raise."""
    limits: Callable[[int], Policy] | None = None
    """Makes the policy for so many slots, instead of the one that is named."""
    surroundings: "Callable[[], Surroundings]" = attrs.field(factory=lambda: Surroundings.here)
    files: Files = DISK
    in_thread: InThread = in_a_thread
    wall: Callable[[], float] = time.time

    def __attrs_post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(f"there is no policy {self.policy!r}; there are {', '.join(POLICIES)}")
        if self.grace < 0:
            raise UsageError(f"grace={self.grace!r}: give seconds, 0 or more")
        if self.max_failures is not None and self.max_failures < 0:
            raise UsageError(f"max_failures={self.max_failures!r}: give a number of trials, or a fraction of them")


async def arun(evaluation: Evaluation[Any, Any, Any], path: Path | str, **options: Any) -> Outcome:
    """Run an evaluation, or go on with a run of it (`resume=True`), inside trio; see `Options` for what can be said."""
    return await Session(evaluation, Path(path), Options(**options)).run()


def run(evaluation: Evaluation[Any, Any, Any], path: Path | str, **options: Any) -> Outcome:
    """Run an evaluation from a script, a thread, or a notebook's cell in which another loop is running."""
    return anywhere(partial(arun, evaluation, path, **options))


def anywhere(call: Callable[[], Awaitable[T]]) -> T:
    """Run trio here, or, where a loop is running already, in a thread of its own."""
    if not _is_in_a_loop():
        return _run(call)
    results: list[outcome.Outcome[T]] = []

    def in_own_thread() -> None:
        results.append(outcome.capture(_run, call))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(in_own_thread,), name="evaljournal")
    thread.start()
    thread.join()
    return results[0].unwrap()


def _run(call: Callable[[], Awaitable[T]]) -> T:
    """Run it, and take a Ctrl-C that came before signals were heeded out of the nurseries' groups."""
    try:
        return trio.run(call)
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is None:
            raise KeyboardInterrupt from group
        raise


def _is_in_a_loop() -> bool:
    import asyncio  # noqa: PLC0415  # a plain script need not pay for it

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return trio.lowlevel.in_trio_run()
    return True


class Session:
    """One evaluation, one journal, one life."""

    def __init__(self, evaluation: Evaluation[Any, Any, Any], path: Path, options: Options) -> None:
        self.evaluation = evaluation
        self.path = path
        self.options = options
        self.settings = options.settings or evaluation.settings

    async def run(self) -> Outcome:
        """Live through it."""
        options = self.options
        self.here = await options.in_thread(options.surroundings)
        trials = await options.in_thread(lambda: self.evaluation.cases.select(options.selection, repeats=self.settings.repeats))
        begun = self._begun(trials)
        state = await options.in_thread(lambda: self._state(begun))
        if self._is_done(state):
            return Outcome(self.path, state, state.head, "", "it was finished already")
        clock = Clock(options.wall)
        try:
            async with writing(
                self.path,
                new=not options.resume,
                stamp=clock.stamp,
                durability=options.durability,
                files=options.files,
                in_thread=options.in_thread,
                run=self.here.run,
            ) as journal:
                if journal.found != state.seq:  # Somebody was quicker between looking and locking: look again.
                    state = await options.in_thread(lambda: self._state(begun, at=journal.found))
                outcome = await self._live(Recorder(journal, state, clock, options.listener), trials, begun)
            return attrs.evolve(outcome, head=journal.head)
        except DiskFull as exc:
            await self._say_disk_full(clock)
            return Outcome(self.path, state, "", "disk_full", str(exc))

    def _begun(self, trials: Trials) -> RunStarted:
        """Say what this is a run of."""
        source = self.evaluation.cases.source
        return RunStarted(
            evaluation=self.evaluation.name,
            task=self.options.task,
            task_fingerprint=self.evaluation.fingerprint,
            scorers={scorer.name: scorer.version for scorer in self.evaluation.scorers.values()},
            dataset=str(source) if isinstance(source, Path) else f"{type(source).__name__} in Python",
            dataset_fingerprint=trials.fingerprint or "",
            trials=(trials.cases or 0) * self.settings.repeats,
            settings=self.settings.facts(),
            settings_fingerprint=self.settings.fingerprint,
            durability=self.options.durability,
            environment=self.here.environment,
        )

    def _is_done(self, state: RunState) -> bool:
        return state.ending == "finished" and not (self.options.adopt or self.options.retry_failed)

    def _state(self, begun: RunStarted, at: int | None = None) -> RunState:
        """Fold what is there; refuse to begin where a run is, and to go on with what has changed."""
        if not self.options.resume:
            return RunState()
        state = fold(read(self.path, load_blobs=False, files=self.options.files), at=at)
        if state.started is None or self._is_done(state):
            return state
        found = differences(state.started, begun, state.settings)
        if found and not self.options.adopt:
            raise RunChanged(
                f"{self.path} was begun with something else:\n  "
                + "\n  ".join(found)
                + f"\n{command('resume', self.path, ' --adopt')} takes the changes: what is unchanged keeps its results"
            )
        return state

    async def _live(self, recorder: Recorder, trials: Trials, begun: RunStarted) -> Outcome:
        options, journal, state = self.options, recorder.journal, recorder.state
        if state.started is None:
            recorder.record(begun)
        elif self._is_done(state):
            return Outcome(self.path, state, "", "", "it was finished already")
        changed = {name: value for name, value in begun.settings.items() if state.settings.get(name) != value}
        recorder.record(
            SessionStarted(
                n=len(state.sessions) + 1,
                pid=self.here.pid,
                host=self.here.host,
                boot=self.here.boot,
                settings=changed or None,
            )
        )
        remainder = Remainder(
            recorder,
            trials,
            self.settings.retry,
            seed=options.seed,
            adopt=options.adopt,
            retry_failed=options.retry_failed,
            on_ambiguous=options.on_ambiguous,
            files=options.files,
        )
        remainder.close_attempts()
        total = None if trials.cases is None else trials.cases * self.settings.repeats
        async with AsyncExitStack() as stack:
            task, scorers = await self._tasks(stack, journal.run)
            executor = Executor(
                recorder,
                task,
                scorers,
                (options.limits or POLICIES[options.policy])(self.settings.slots),
                self.settings,
                seed=options.seed,
                grace=options.grace,
                most_failures=self._most_failures(total),
                in_thread=options.in_thread,
            )
            live = Live(state, journal, total, recorder.clock.now, executor.interrupt)
            await stack.enter_async_context(self._company(executor, live))
            await executor.run(remainder, leave=partial(self._leave, executor, journal) if options.signals else None)
        if executor.stopped is None:
            recorder.record(
                RunFinished(
                    completed=state.completed, failed=state.failed, withdrawn=state.stages["withdrawn"], head=journal.head
                )
            )
        else:
            recorder.record(RunStopped(reason=executor.stopped))
        return Outcome(self.path, state, "", executor.stopped or "", executor.why)

    async def _tasks(self, stack: AsyncExitStack, run: str) -> tuple[Task, dict[str, tuple[Scorer, Task]]]:
        thread = await stack.enter_async_context(AsyncioThread(grace=self.options.grace))
        instead = None if self.options.in_thread is in_a_thread else self.options.in_thread
        make = partial(FunctionTask, asyncio_thread=thread, in_thread=instead)

        async def open_(asked: Any, function: Callable[[Any], Any], loop: Loop | None) -> Task:
            if isinstance(asked, Opens):
                return await stack.enter_async_context(asked.opened(run))
            return make(function, loop=loop)

        task = await open_(self.evaluation.task, self.evaluation.task, self.settings.loop)
        scorers: dict[str, tuple[Scorer, Task]] = {}
        for scorer in self.evaluation.scorers.values():
            scorers[scorer.name] = (scorer, await open_(scorer.function, _as_task(scorer), None))
        return task, scorers

    def _most_failures(self, total: int | None) -> float:
        most = 0 if self.options.fail_fast else self.options.max_failures
        if most is None:
            return float("inf")
        if isinstance(most, float):
            return most * total if total is not None else float("inf")
        return most

    @asynccontextmanager
    async def _company(self, executor: Executor, live: Live) -> AsyncGenerator[None]:
        """Let signals reach the run, and let somebody look on, as long as it lasts."""
        async with trio.open_nursery() as nursery:
            if self.options.signals:
                await nursery.start(_heed_signals, executor)
            if self.options.onlooker is not None:
                nursery.start_soon(self.options.onlooker, live)
            yield
            nursery.cancel_scope.cancel()

    async def _leave(self, executor: Executor, journal: Journal) -> None:
        """Leave the process although an attempt does not end: with everything recorded and synced."""
        assert executor.stopped is not None
        with trio.CancelScope(shield=True):
            await journal.wait_durable(journal.append(RunStopped(reason=executor.stopped)).seq)
        sys.stderr.write(
            f"\nstuck, and left behind: {', '.join(executor.stuck)}\n"
            f"everything recorded is on disk; {command('resume', self.path)} goes on\n"
        )
        sys.stderr.flush()
        os._exit(3)

    async def _say_disk_full(self, clock: Clock) -> None:
        """Try to leave a last word; a line is short, and the one that did not fit was taken back."""
        with trio.CancelScope(shield=True):
            try:
                async with writing(
                    self.path, new=False, stamp=clock.stamp, files=self.options.files, in_thread=self.options.in_thread
                ) as journal:
                    if journal.lifecycle.stage == "session":
                        journal.append(RunStopped(reason="disk_full"))
            except (DiskFull, NotAJournal, JournalExists):
                pass


def _as_task(scorer: Scorer) -> Callable[[Any], Any]:
    """Let a scorer, which takes an output and a case, be asked like any other task."""
    function: Any = scorer.function
    if scorer.is_async:

        async def ask(pair: tuple[Any, Any]) -> Any:
            return await function(*pair)

        ask.__wrapped__ = function  # type: ignore[attr-defined]  # which loop it needs is seen from its own code
        return ask
    return lambda pair: function(*pair)


async def _heed_signals(executor: Executor, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Stop the run at the first signal, at once at the second."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            executor.interrupt()


def _environment() -> dict[str, str]:
    """Say what the run was run with: versions of Python, of packages and of the platform, and the git revision."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in ("evaljournal", "trio", "orjson"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607  # whichever git the user has
            capture_output=True,
            text=True,
            timeout=2,
            check=True,
        )
        found["git"] = head.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass  # Not every evaluation lives in a repository.
    return found


def _boot() -> str:
    """Tell this boot of the machine from others; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
