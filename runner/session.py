"""One process life of a run: from opening the journal to the last word in it.

Everything meets here: the evaluation, its journal, the state so far, the executor. To begin a run and to resume one is the same
thing, but for what the journal already says.
"""

import contextvars
import difflib
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import attrs
import trio

from journal import Journal, read, writing
from journal.errors import DiskFull, JournalExists, NotAJournal, command
from journal.events import RunFinished, RunStarted, RunStopped, SessionStarted
from journal.files import DISK, Files
from journal.writer import InThread, in_a_thread
from replay import RunState, fold
from runner.concurrency import POLICIES
from runner.dataset import Trials
from runner.definition import Evaluation, Settings
from runner.errors import RunChanged, UsageError
from runner.executor import Executor
from runner.recorder import Clock, Recorder
from runner.resume import Remainder, differences, in_force
from runner.score import Scorer
from runner.tasks import Opens, Task
from runner.tasks.function import AsyncioThread, FunctionTask, Loop


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
    changed: Mapping[str, tuple[Any, Any]]
    """Settings that differ from those of the session before: what they were, and what they are."""


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
    """What is wanted of one session. How the evaluation is run is not said here, but by its settings."""

    resume: bool = False
    task: str = ""
    """Where the evaluation can be found again, such as `evals/capitals.py:capitals`."""
    adopt: bool = False
    """Whether to go on with what has changed since the run began."""
    retry_failed: bool = False
    """Whether to try trials again that were given up."""
    on_ambiguous: Literal["retry", "fail"] = "retry"
    """What becomes of an attempt that was cut off, whose call may have taken effect."""
    signals: bool = False
    """Whether SIGINT and SIGTERM stop the run; only in the main thread."""
    onlooker: Callable[[Live], Awaitable[None]] | None = None
    """Started with the run, cancelled at its end."""
    surroundings: "Callable[[], Surroundings]" = attrs.field(factory=lambda: Surroundings.here)
    files: Files = DISK
    in_thread: InThread = in_a_thread
    wall: Callable[[], float] = time.time


@attrs.frozen
class Plan:
    """What a session is about to do."""

    settings: Settings
    trials: Trials
    begun: RunStarted
    """What this is a run of, to be recorded or to be held against what was recorded."""

    @property
    def total(self) -> int | None:
        """How many trials there are, where that is known beforehand."""
        return None if self.trials.cases is None else self.trials.cases * self.settings.repeats


async def arun(evaluation: Evaluation[Any, Any, Any], path: Path | str, **options: Any) -> Outcome:
    """Run an evaluation, or go on with a run of it (`resume=True`), inside trio.

    Every setting can be given (`slots=4, only="c*"`): it then holds instead of the evaluation's own, in this session and in all
    that resume it, until another is given; see `Settings`, and `Options` for the rest.
    """
    return await Session(evaluation, Path(path), **options).run()


def run(evaluation: Evaluation[Any, Any, Any], path: Path | str, **options: Any) -> Outcome:
    """Run an evaluation from a script, a thread, or a notebook's cell in which another loop is running."""
    call = partial(arun, evaluation, path, **options)
    if not _is_in_a_loop():
        return _run(call)
    results: list[Outcome | BaseException] = []

    def in_own_thread() -> None:
        try:
            results.append(_run(call))
        except BaseException as exc:  # noqa: BLE001  # it is raised again where it is waited for
            results.append(exc)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(in_own_thread,), name="evaljournal")
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def _run(call: Callable[[], Awaitable[Outcome]]) -> Outcome:
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

    def __init__(self, evaluation: Evaluation[Any, Any, Any], path: Path, **options: Any) -> None:
        self.evaluation = evaluation
        self.path = path
        settings, others = ({field.name for field in attrs.fields(kind)} for kind in (Settings, Options))
        for name in options:
            if name not in settings | others:
                close = difflib.get_close_matches(name, settings | others, n=1)
                raise UsageError(f"there is no option {name!r}{f'; did you mean {close[0]!r}?' if close else ''}")
        self.given = {name: value for name, value in options.items() if name in settings}
        """Settings that are given for this run, instead of the evaluation's own."""
        self.options = Options(**{name: value for name, value in options.items() if name in others})

    async def run(self) -> Outcome:
        """Live through it."""
        options = self.options
        self.here = await options.in_thread(options.surroundings)
        state = await options.in_thread(self._state)
        if self._is_done(state):
            return Outcome(self.path, state, state.head, "", "it was finished already")
        plan = await options.in_thread(lambda: self._plan(state))
        clock = Clock(options.wall)
        try:
            async with writing(
                self.path,
                new=not options.resume,
                stamp=clock.stamp,
                durability=plan.settings.durability,
                files=options.files,
                in_thread=options.in_thread,
                run=self.here.run,
            ) as journal:
                if journal.found != state.seq:  # Somebody was quicker between looking and locking: look again.
                    state = await options.in_thread(lambda: self._state(at=journal.found))
                    plan = await options.in_thread(lambda: self._plan(state))
                outcome = await self._live(Recorder(journal, state, clock), plan)
            return attrs.evolve(outcome, head=journal.head)
        except DiskFull as exc:
            await self._say_disk_full(clock)
            return Outcome(self.path, state, "", "disk_full", str(exc))

    def _is_done(self, state: RunState) -> bool:
        return state.ending == "finished" and not (self.options.adopt or self.options.retry_failed)

    def _state(self, at: int | None = None) -> RunState:
        """Fold what is there; of a new run, nothing is."""
        if not self.options.resume:
            return RunState()
        return fold(read(self.path, load_blobs=False, files=self.options.files), at=at)

    def _plan(self, state: RunState) -> Plan:
        """Say what is to be run, and refuse to go on with something else than was begun."""
        settings, given = in_force(self.evaluation.settings, self.given, state.settings)
        trials = self.evaluation.cases.select(settings, repeats=settings.repeats)
        begun = self._begun(trials, settings, given)
        if state.started is None or self._is_done(state) or self.options.adopt:
            return Plan(settings, trials, begun)
        found = differences(state.started, begun, state.settings)
        if found:
            raise RunChanged(
                f"{self.path} was begun with something else:\n  "
                + "\n  ".join(found)
                + f"\n{command('resume', self.path, ' --adopt')} takes the changes: what is unchanged keeps its results"
            )
        return Plan(settings, trials, begun)

    def _begun(self, trials: Trials, settings: Settings, given: list[str]) -> RunStarted:
        source = self.evaluation.cases.source
        return RunStarted(
            evaluation=self.evaluation.name,
            task=self.options.task,
            task_fingerprint=self.evaluation.fingerprint,
            scorers={scorer.name: scorer.version for scorer in self.evaluation.scorers.values()},
            dataset=str(source) if isinstance(source, Path) else f"{type(source).__name__} in Python",
            dataset_fingerprint=trials.fingerprint or "",
            trials=(trials.cases or 0) * settings.repeats,
            settings={**settings.facts(), "given": given},
            settings_fingerprint=settings.fingerprint,
            durability=settings.durability,
            environment=self.here.environment,
        )

    async def _live(self, recorder: Recorder, plan: Plan) -> Outcome:
        options, journal, state, settings = self.options, recorder.journal, recorder.state, plan.settings
        if state.started is None:
            recorder.record(plan.begun)
        elif self._is_done(state):
            return Outcome(self.path, state, "", "", "it was finished already")
        before = dict(state.settings)
        changed = {name: value for name, value in plan.begun.settings.items() if name not in before or before[name] != value}
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
            plan.trials,
            settings.retry,
            seed=settings.seed,
            adopt=options.adopt,
            retry_failed=options.retry_failed,
            on_ambiguous=options.on_ambiguous,
            files=options.files,
        )
        remainder.close_attempts()
        async with AsyncExitStack() as stack:
            task, scorers = await self._tasks(stack, settings, journal.run)
            executor = Executor(
                recorder,
                task,
                scorers,
                POLICIES[settings.policy](settings.slots),
                settings,
                seed=settings.seed,
                grace=settings.grace,
                most_failures=_most_failures(settings, plan.total),
                in_thread=options.in_thread,
            )
            told = {name: (before[name], value) for name, value in changed.items() if name in before and name != "given"}
            live = Live(state, journal, plan.total, recorder.clock.now, told)
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

    async def _tasks(self, stack: AsyncExitStack, settings: Settings, run: str) -> tuple[Task, dict[str, tuple[Scorer, Task]]]:
        opening = Opening(stack, run, grace=settings.grace, in_thread=self.options.in_thread)
        task = await opening.task(self.evaluation.task, settings.loop)
        return task, {name: (scorer, await opening.scorer(scorer)) for name, scorer in self.evaluation.scorers.items()}

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


def _most_failures(settings: Settings, total: int | None) -> float:
    most = 0 if settings.fail_fast else settings.max_failures
    if most is None:
        return float("inf")
    if isinstance(most, float):
        return most * total if total is not None else float("inf")
    return most


class Opening:
    """Makes what can be asked of functions, and opens what has to be opened; all of it is closed with the stack."""

    def __init__(self, stack: AsyncExitStack, run: str, *, grace: float, in_thread: InThread) -> None:
        self._stack = stack
        self._run = run
        self._grace = grace
        self._instead = None if in_thread is in_a_thread else in_thread
        self._thread: AsyncioThread | None = None

    async def task(self, asked: Any, loop: Loop | None) -> Task:
        """Open a task."""
        return await self._open(asked, asked, loop)

    async def scorer(self, scorer: Scorer) -> Task:
        """Open a scorer, to be asked with an output and a case."""
        return await self._open(scorer.function, _as_task(scorer), None)

    async def _open(self, asked: object, function: Callable[[Any], Any], loop: Loop | None) -> Task:
        if isinstance(asked, Opens):
            return await self._stack.enter_async_context(asked.opened(self._run))
        if self._thread is None:
            self._thread = await self._stack.enter_async_context(AsyncioThread(grace=self._grace))
        return FunctionTask(function, loop=loop, asyncio_thread=self._thread, in_thread=self._instead)


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
