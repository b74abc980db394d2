"""One process life of a run: from opening the journal to the last word in it.

Everything meets here: the evaluation, its journal, the state so far, the executor. To begin a run and to resume one is the same
thing, but for what the journal already says.
"""

import itertools
import math
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import attrs
import trio

from journal import Journal, Record, read, writing
from journal.errors import DiskFull, JournalError, JournalExists, JournalLocked, NotAJournal, WriteFailed, command
from journal.events import SCORER_PREFIX, RunStarted, RunStopped, SessionStarted
from journal.files import DISK, Files
from journal.threads import InThread, run_in_thread
from replay import RunState, fold
from replay.ending import final_summary
from runner.concurrency import POLICIES, REGISTRY, Policy
from runner.data.case import Trial
from runner.data.dataset import Trials
from runner.definition.evaluation import Evaluation
from runner.definition.settings import Settings
from runner.engine.changes import Remainder, adoption, changed_cases, differences, in_force
from runner.engine.environment import Environment
from runner.engine.executor import Executor
from runner.engine.open_tasks import Opening
from runner.engine.rate_limits import default_slots, scorer_keys, scorer_slots, shared_identity
from runner.engine.recorder import Clock, Recorder
from runner.engine.trial_work import key_of
from runner.errors import RunChanged, UsageError
from runner.retries.classify import describe
from runner.scorers.scorer import OpenScorer
from runner.suggest import nearest
from runner.tasks import Task

T = TypeVar("T")

_UNHEARD: Final = 3
"""Signals that go unnoticed before it is clear that somebody's code holds up the loop, and is broken into."""
_FAREWELL: Final = 1.0
"""Seconds that an observer gets to put the screen in order before the process is left."""


@attrs.define
class Live:
    """What an observer sees while a run goes on."""

    state: RunState
    """Kept by the run itself; to be looked at, not to be changed."""
    journal: Journal
    total: int | None
    """How many trials there are to be made, where that is known beforehand."""
    now: Callable[[], float]
    """Tells the time, in the seconds of `t`."""
    changed: Mapping[str, tuple[Any, Any]]
    """Settings that differ from those of the session before: what they were, and what they are."""
    stopping: Callable[[], tuple[str, float] | None]
    """Tells, once the run is being stopped, why that is, and how many seconds attempts in the air have left."""


@attrs.frozen
class Outcome:
    """How a session of a run ended."""

    path: Path
    state: RunState = attrs.field(repr=False)
    head: str
    """The hash of the journal's last record. Keep it elsewhere, and nobody can take records off the end unnoticed."""
    stopped: str
    """Empty if the run is finished; otherwise why it is not."""
    why: str
    """More about that, for people."""

    def __str__(self) -> str:
        """Tell what came of it, as the command does at the end of a run."""
        return final_summary(self.state, path=self.path, stopped=self.stopped, why=self.why)


@attrs.frozen(kw_only=True)
class Options:
    """What is wanted of one session. How the evaluation is run is not said here, but by its settings."""

    resume: bool = False
    elsewhere: Callable[[], Path] | None = None
    """Says where else the run may be, if somebody else has begun one at its path meanwhile."""
    task: str = ""
    """Where the evaluation can be found again, such as `evals/capitals.py:capitals`."""
    adopt: bool = False
    """Whether to go on with what has changed since the run began."""
    retry_failed: bool = False
    """Whether to try trials again that were given up."""
    on_ambiguous: Literal["retry", "fail"] = "retry"
    """What becomes of an attempt that was cut off, whose call may have taken effect."""
    observer: Callable[[Live], Awaitable[None]] | None = None
    """Started with the run, cancelled at its end."""
    listener: Callable[[Record], None] | None = None
    """Told of every record as it is made; it must neither wait nor raise."""
    limits: Callable[[int], Policy] | None = None
    """Makes the policy for so many slots, instead of the one that the settings name."""
    environment: "Callable[[], Environment]" = attrs.field(factory=lambda: Environment.here)
    files: Files = DISK
    in_thread: InThread = run_in_thread
    wall: Callable[[], float] = time.time


@attrs.frozen
class Plan:
    """What a session is about to do."""

    settings: Settings
    trials: Iterable[Trial]
    begun: RunStarted
    """What this is a run of, to be recorded or to be held against what was recorded."""
    scorer_slots: Mapping[str, int]
    """The limits of scorers that have a rate-limit key of their own, by their names."""

    @property
    def total(self) -> int | None:
        """How many trials there are, where that is known beforehand."""
        return self.begun.trials or None


class Session:
    """One evaluation, one journal, one life."""

    def __init__(self, evaluation: Evaluation[Any, Any, Any], path: Path, **options: Any) -> None:
        self.evaluation = evaluation
        self.path = path
        settings, others = ({field.name for field in attrs.fields(kind)} for kind in (Settings, Options))
        for name in options:
            if name not in settings | others:
                raise UsageError(f"there is no option {name!r}{nearest(name, settings | others, most=1)}")
        self.given = {name: value for name, value in options.items() if name in settings}
        """Settings that are given for this run, instead of the evaluation's own."""
        self.options = Options(**{name: value for name, value in options.items() if name in others})
        self.leave: Callable[[Outcome], object] | None = None
        """Gets away from a run that was stopped, and whose last attempts do not end. Without it, they are waited for."""
        self.is_begun = False
        """Whether the journal was opened."""
        self._asked = 0
        """How many times it was asked to stop."""
        self._unheard = 0
        """How many of those have not been noticed yet."""
        self._loop: trio.lowlevel.TrioToken | None = None
        self._opening = trio.CancelScope()
        self._executor: Executor | None = None
        self._onlooking = trio.CancelScope()
        self._onlooked = trio.Event()

    def interrupt(self) -> None:
        """Stop in good order; asked again, cut off what is in the air. It may be called by a signal's handler or any thread."""
        self._asked += 1
        self._unheard += 1
        if self._unheard >= _UNHEARD:
            if self._executor is not None and trio.lowlevel.in_trio_task():
                self._executor.stop("interrupted")  # Or the next attempt would hold up the loop as well.
            raise KeyboardInterrupt
        if self._loop is not None:
            with suppress(trio.RunFinishedError):
                self._loop.run_sync_soon(self._heed)

    def _heed(self) -> None:
        """There are two moments in which a session can be asked to stop: before the journal is opened, and while trials run.

        What comes in between, or before the loop runs, is heeded at the next of these.
        """
        self._unheard = 0
        if self._executor is not None:
            self._executor.interrupt()
        else:
            self._opening.cancel()

    async def run(self) -> Outcome:
        """Live through it."""
        options = self.options
        self._loop = trio.lowlevel.current_trio_token()
        if self._asked:
            self._heed()
        prepared: tuple[RunState, Plan | None] | None = None
        with self._opening:
            prepared = await self._prepare()
        if prepared is None or self._asked:
            raise KeyboardInterrupt  # Nothing was written, so there is nothing to be said about a run.
        state, plan = prepared
        if plan is None:
            return Outcome(self.path, state, state.head, "", "it was finished already")
        clock = Clock(options.wall)
        while True:
            try:
                return await self._write(state, plan, clock)
            except (JournalExists, JournalLocked):
                if self.is_begun or options.elsewhere is None:
                    raise
                self.path = options.elsewhere()  # With the same plan: its cases may be such as can be read only once.

    async def _write(self, state: RunState, plan: Plan, clock: Clock) -> Outcome:
        """Carry the plan out in the journal at the path."""
        options = self.options
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
                self.is_begun = True
                if journal.initial_seq != state.seq:  # Somebody was quicker between looking and locking: look again.
                    state = await options.in_thread(lambda: self._state(journal.initial_seq))
                    plan = await options.in_thread(lambda: self._plan(state))
                if journal.recovered is not None:
                    state.apply(journal.recovered)
                outcome = await self._live(Recorder(journal, state, clock, options.listener), plan)
            return attrs.evolve(outcome, head=journal.head)
        except DiskFull as exc:
            await self._say_disk_full(clock)
            return Outcome(self.path, await options.in_thread(self._on_disk), "", "disk_full", self._said(exc))
        except (JournalExists, WriteFailed) as exc:
            exc.args = (self._said(exc),)
            raise

    def _way_on(self, *, adopt: bool = False) -> str:
        """Say what goes on with the run: a command, if one can find the evaluation again, or else a call."""
        if self.options.task:
            return command("resume", self.path, " --adopt" if adopt else "")
        return f"`run(…, resume=True{', adopt=True' if adopt else ''})`"

    def _said(self, exc: JournalError) -> str:
        """Repeat what the journal says, which knows of commands only."""
        return str(exc).replace(command("resume", self.path), self._way_on())

    async def _prepare(self) -> tuple[RunState, Plan | None]:
        """Find out how things stand, and what is to be done, if anything; nothing is changed."""
        self.here = await self._look(self.options.environment)
        state = await self._look(self._state)
        return state, None if self._is_done(state) else await self._look(lambda: self._plan(state))

    async def _look(self, call: Callable[[], T]) -> T:
        """Make a call that changes nothing: whoever asks the session to stop need not wait for it."""
        if self.options.in_thread is not run_in_thread:
            return await self.options.in_thread(call)
        return await run_in_thread(call, abandon_on_cancel=True)

    def _is_done(self, state: RunState) -> bool:
        return state.ending == "finished" and not (self.options.adopt or self.options.retry_failed)

    def _state(self, at: int | None = None) -> RunState:
        """Fold what is there; of a new run, nothing is."""
        if not self.options.resume:
            return RunState()
        try:
            return fold(read(self.path, load_blobs=False, files=self.options.files), at=at)
        except NotAJournal as exc:
            raise NotAJournal(
                f"{self.path} is no run that could be resumed ({exc}); `run(…)` without resume=True begins it"
            ) from exc

    def _plan(self, state: RunState) -> Plan:
        """Say what is to be run, and refuse to go on with something else than was begun."""
        settings, given = in_force(self.evaluation.settings, self.given, state.settings)
        try:
            cases, field = self.evaluation.cases, settings.limit_key
            if field is not None:
                cases = cases.checked(lambda case: key_of(case, field))
            chosen = cases.select(settings, repeats=settings.repeats)
            trials = chosen if chosen.cases else _looked_into(chosen)
        except UsageError:
            raise
        except Exception as exc:
            said = describe(exc)
            raise UsageError(f"the cases cannot be read: {said.type}: {said.message}") from exc
        settings.most_failures(chosen.cases)  # It may refuse to say, and nothing has begun yet.
        slots = scorer_slots(self.evaluation.scorers, self.evaluation.task, settings.limit_key, settings.slots)
        if settings.slots is None:
            settings = attrs.evolve(settings, slots=default_slots(self.evaluation.task))
        begun = self._begun(chosen, settings, given, slots)
        plan = Plan(settings, trials, begun, slots)
        if state.started is None or self._is_done(state) or self.options.adopt:
            return plan
        found = differences(state.started, begun, state.settings)
        if begun.dataset_fingerprint != state.started.dataset_fingerprint:
            found += changed_cases(state, chosen)
        if found:
            raise RunChanged(
                f"{self.path} was begun with something else:\n  "
                + "\n  ".join(found)
                + f"\n{self._way_on(adopt=True)} takes the changes: what is unchanged keeps its results"
            )
        return plan

    def _begun(self, trials: Trials, settings: Settings, given: list[str], slots: Mapping[str, int]) -> RunStarted:
        source, limits, facts = self.evaluation.cases.source, self.options.limits, settings.facts()
        if limits is not None and "aimd" not in facts:  # A policy of the user's own: an audit must not take it for one of ours.
            facts["policy"] = getattr(limits, "__qualname__", repr(limits))
        return RunStarted(
            evaluation=self.evaluation.name,
            task=self.options.task,
            task_fingerprint=self.evaluation.fingerprint,
            scorers={scorer.name: scorer.version for scorer in self.evaluation.scorers.values()},
            dataset=str(source) if isinstance(source, Path) else f"{type(source).__name__} in Python",
            dataset_fingerprint=trials.fingerprint or "",
            trials=(trials.cases or 0) * settings.repeats,
            settings={**facts, "scorer_slots": dict(slots), "given": given},
            settings_fingerprint=settings.fingerprint,
            durability=settings.durability,
            environment=self.here.versions,
        )

    async def _live(self, recorder: Recorder, plan: Plan) -> Outcome:
        options, journal, state, settings = self.options, recorder.journal, recorder.state, plan.settings
        if state.started is None:
            recorder.record(plan.begun)
        elif self._is_done(state):
            return Outcome(self.path, state, "", "", "it was finished already")
        before = dict(state.settings)
        changed = {name: value for name, value in plan.begun.settings.items() if name not in before or before[name] != value}
        started = recorder.record(
            SessionStarted(
                n=len(state.sessions) + 1,
                pid=self.here.pid,
                host=self.here.host,
                boot_id=self.here.boot_id,
                settings=changed or None,
                trials=0 if plan.begun.trials == state.planned else plan.begun.trials,
                adopted=adoption(state.started or plan.begun, plan.begun),
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
        recorder.close_attempts()
        await journal.wait_durable(started.seq)  # A new file takes a while; no call may leave before it is there.
        async with AsyncExitStack() as stack:
            task, scorers = await self._tasks(stack, plan, journal.run)
            executor = Executor(
                recorder,
                task,
                scorers,
                self._policies(plan, recorder),
                settings,
                most_failures=settings.most_failures(plan.total),
                in_thread=self._look,
            )
            shown = changed.keys() & before.keys() - {"given", "scorer_slots"}
            others = {name: (before[name], value) for name, value in changed.items() if name in shown}
            now = recorder.clock.now
            live = Live(
                state,
                journal,
                plan.total,
                now,
                others,
                lambda: executor.stopped and (executor.stopped, executor.cut_at - now()),
            )
            await stack.enter_async_context(self._company(live))
            await self._execute(executor, remainder, recorder)
        is_all = remainder.is_closed or state.total == plan.total  # What came with the last trial leaves nothing to resume.
        if executor.stopped is None or (is_all and state.done == state.total and executor.stopped != "dataset_failed"):
            recorder.finish()
            return Outcome(self.path, state, "", "", "")
        recorder.record(RunStopped(reason=executor.stopped))
        return Outcome(self.path, state, "", executor.stopped, executor.why)

    async def _tasks(self, stack: AsyncExitStack, plan: Plan, run: str) -> tuple[Task, list[OpenScorer]]:
        settings, task = plan.settings, self.evaluation.task
        opening = Opening(stack, run, grace=settings.grace, in_thread=self.options.in_thread)
        scorers = [scorer.under(settings.retry, settings.timeout) for scorer in self.evaluation.scorers.values()]
        keys = scorer_keys(scorers, task, settings.limit_key)
        opened = await opening.task(task, settings.loop)
        return opened, [await opening.scorer(scorer, keys[scorer.name]) for scorer in scorers]

    def _policies(self, plan: Plan, recorder: Recorder) -> Callable[[str], Policy]:
        """Return what makes the policy of a rate-limit key, or joins that of another run."""
        settings, trials = plan.settings, recorder.state.planned or None
        new = self.options.limits or partial(POLICIES[settings.policy], trials=trials)
        own = {f"{SCORER_PREFIX}{name}": most for name, most in plan.scorer_slots.items()}
        scorers, task = self.evaluation.scorers, self.evaluation.task

        def policy(key: str) -> Policy:
            slots = own.get(key, settings.slots or 0)
            whose = shared_identity(key, task, scorers, settings.limit_key)
            if whose is None or self.options.limits is not None or settings.policy == "fixed":
                return new(slots)
            identity = (settings.policy, *whose)
            return REGISTRY.join(identity, recorder.journal.run, slots, recorder.clock.now(), partial(new, slots))

        return policy

    async def _execute(self, executor: Executor, remainder: Remainder, recorder: Recorder) -> None:
        """Let the executor make the trials; from here on, whoever asks to stop asks it."""
        self._executor = executor
        if self._asked:
            trio.lowlevel.current_trio_token().run_sync_soon(self._heed)
        is_done = False
        try:
            await executor.run(remainder, leave=partial(self._leave, executor, recorder) if self.leave else None)
            is_done = True
        finally:
            self._executor = None
            is_cancelled = not is_done and trio.current_effective_deadline() == -math.inf
            if is_cancelled and recorder.journal.failure is None:
                recorder.record(RunStopped(reason=executor.stopped or "interrupted"))

    @asynccontextmanager
    async def _company(self, live: Live) -> AsyncGenerator[None]:
        """Let somebody look on as long as it lasts."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_on, live)
            yield
            nursery.cancel_scope.cancel()

    async def _look_on(self, live: Live) -> None:
        try:
            with self._onlooking:
                if self.options.observer is not None:
                    await self.options.observer(live)
        finally:
            self._onlooked.set()

    async def _leave(self, executor: Executor, recorder: Recorder) -> None:
        """Get away although an attempt does not end: with everything recorded and synced, and the screen in order."""
        assert executor.stopped is not None
        assert self.leave is not None
        with trio.CancelScope(shield=True):
            stopped = recorder.record(RunStopped(reason=executor.stopped))
            await recorder.journal.wait_durable(stopped.seq)
            self._onlooking.cancel()
            with trio.move_on_after(_FAREWELL):
                await self._onlooked.wait()
            sys.stderr.write(
                f"stuck, and left behind: {', '.join(executor.stuck)}\n"
                f"everything recorded is on disk; {self._way_on()} goes on\n"
            )
            sys.stderr.flush()
            self.leave(Outcome(self.path, recorder.state, stopped.h, executor.stopped, executor.why))
            await trio.sleep_forever()  # In a thread of its own, which nobody waits for any more.

    def _on_disk(self) -> RunState:
        """Fold what has reached the disk: what is in memory goes further."""
        try:
            return fold(read(self.path, load_blobs=False, files=self.options.files))
        except NotAJournal:
            return RunState()

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


def _looked_into(trials: Iterable[Trial]) -> Iterator[Trial]:
    """Take the first trial of those that can be read only once: if there is none, that is known before anything is written."""
    rest = iter(trials)
    return itertools.chain([next(rest)], rest)
