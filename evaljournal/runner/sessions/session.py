"""One session of a run: from opening the journal to its last record.

Starting a run and resuming one differ only in what the journal already records.
"""

import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import trio

from evaljournal.journal import JournalError, read, writing
from evaljournal.journal.disk.files import DISK, Files
from evaljournal.journal.errors import DiskFull, JournalExists, JournalLocked, NotAJournal
from evaljournal.journal.events import RunStopped, SessionStarted
from evaljournal.journal.ownership import is_own_run
from evaljournal.journal.threads import InThread, run_in_thread
from evaljournal.replay import RunState, fold
from evaljournal.replay.render.ending import ending_text, final_report, final_summary
from evaljournal.replay.state.trial import failing_trials
from evaljournal.replay.text import plural, printable
from evaljournal.runner.calls import Task
from evaljournal.runner.data.dataset import as_strings
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.gates import GateResult, gate_problems, gate_results, problems
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.engine.admission import TrialSource
from evaljournal.runner.engine.executor import TrialExecutor
from evaljournal.runner.engine.layers import Layer
from evaljournal.runner.engine.recorder import Clock, Recorder
from evaljournal.runner.errors import RunFailed, UsageError, command, print_error, suggest
from evaljournal.runner.runs.changes import adopted_changes, effective_settings
from evaljournal.runner.runs.paths import sealed_head
from evaljournal.runner.scorers.scorer import OpenScorer
from evaljournal.runner.secrets.masking import add_environment
from evaljournal.runner.sessions.assembly import assemble
from evaljournal.runner.sessions.open_tasks import TaskOpener
from evaljournal.runner.sessions.options import LiveRun, Options
from evaljournal.runner.sessions.pending_trials import PendingTrials
from evaljournal.runner.sessions.plan import Plan, is_done, make_plan
from evaljournal.runner.sessions.rate_limits import scorer_keys
from evaljournal.runner.sessions.workers import new_workers

if TYPE_CHECKING:
    from evaljournal.replay.export.tables import Rows
    from evaljournal.runner.calls.batches.api import BatchApi
    from evaljournal.runner.gates.batch_targets import BatchTargets
    from evaljournal.runner.runs.page import InlinePage
    from evaljournal.runner.workers.driver import Workers

T = TypeVar("T")

_MAX_UNHANDLED_SIGNALS: Final = 3
"""Unhandled signals after which a task is assumed to block the loop, and KeyboardInterrupt is raised in it."""
_OBSERVER_GRACE: Final = 1.0
"""Seconds that an observer gets to restore the screen before the process exits."""


@attrs.frozen
class Outcome:
    """How a session of a run ended."""

    path: Path
    """Directory of the run."""
    state: RunState = attrs.field(repr=False)
    """State of the run at the end of the session."""
    head: str
    """Hash of the journal's last record. Keep it elsewhere to detect later that records were removed from the end."""
    stop_reason: str
    """Why the run is not finished; empty if it is."""
    detail: str
    """Details of the reason, or `already finished`."""

    @property
    def gates(self) -> list[GateResult]:
        """The gates of the run, and whether each passes so far."""
        return gate_results(self.state, self.path)

    @property
    def problems(self) -> list[str]:
        """Why the run did not pass; empty if it did."""
        if self.stop_reason:
            return [f"not finished: {ending_text(self.state, self.stop_reason)}"]
        return problems(self.state, self.path)

    @property
    def passed(self) -> bool:
        """Whether the run is finished, no trial has an error, all outputs are scored and every gate passes."""
        return not self.problems

    def check(self) -> None:
        """Raise a `RunFailed` unless the run has passed."""
        if self.problems:
            raise RunFailed(self.path, self.problems, failing_trials(self.state.trials))

    def to_pandas(self, rows: "Rows" = "trials") -> Any:
        """Return the trials of the run as a pandas DataFrame, or its attempts, steps, scores or events."""
        from evaljournal.replay.export.frames import data_frame  # noqa: PLC0415  # most runs need none

        return data_frame("pandas", self.path, rows)

    def to_polars(self, rows: "Rows" = "trials") -> Any:
        """Return a polars DataFrame, as `to_pandas` does; columns of mixed values have JSON."""
        from evaljournal.replay.export.frames import data_frame  # noqa: PLC0415  # most runs need none

        return data_frame("polars", self.path, rows)

    @property
    def summary_text(self) -> str:
        """The final summary, the next command and the gates that did not pass, as the command line prints them."""
        return render_report(self)

    def report(self) -> "InlinePage":
        """Return the HTML report of the run, which a notebook shows in the cell; `evaljournal report` writes it to a file."""
        from evaljournal.runner.runs.page import InlinePage  # noqa: PLC0415  # most runs need none

        return InlinePage.read(self.path)

    def _repr_html_(self) -> str:
        """Return the scores, failing cases and problems for a notebook."""
        from evaljournal.replay.render.html import results_html  # noqa: PLC0415  # for notebooks only

        return results_html(self.state, self.path, stop_reason=self.stop_reason, problems=self.problems)

    def __str__(self) -> str:
        """Return the final summary and the gates that did not pass."""
        text = final_summary(self.state, path=self.path, stop_reason=self.stop_reason, detail=self.detail)
        return "\n".join([text, *([] if self.stop_reason else gate_problems(self.state, self.path))])


def render_report(outcome: Outcome, **options: Any) -> str:
    """Return the final report and the gates that did not pass; `options` are those of `final_report`."""
    state, stop_reason = outcome.state, outcome.stop_reason
    text = final_report(state, path=outcome.path, head=outcome.head, stop_reason=stop_reason, detail=outcome.detail, **options)
    return "\n".join([text, *([] if stop_reason else gate_problems(state, outcome.path))])


async def seal(path: Path, *, files: Files = DISK, in_thread: InThread = run_in_thread) -> str | None:
    """Sync and seal a finished run whose process died before that, and set a torn tail aside; return the new head.

    None if the run is sealed, or another process is about to seal it.
    """
    if await in_thread(lambda: sealed_head(path, files)) is not None:
        return None
    with suppress(JournalLocked):
        async with writing(path, new=False, files=files, in_thread=in_thread) as journal:
            pass
        return journal.head
    return None


class Session:
    def __init__(self, evaluation: Evaluation[Any, Any, Any], path: Path, **options: Any) -> None:
        self.evaluation = evaluation
        self.path = path

        setting_names, option_names = ({field.name for field in attrs.fields(kind)} for kind in (Settings, Options))
        for name in options:
            if name not in setting_names | option_names:
                raise UsageError(f"unknown option {name!r}{suggest(name, setting_names | option_names, limit=1)}")
        self.overrides = {name: value for name, value in options.items() if name in setting_names}
        """Settings of this run that replace the evaluation's own."""
        selects_variants = options.get("resume") and not options.get("ignore_recorded")
        self.only_variants = as_strings(self.overrides.pop("only_variants", ())) if selects_variants else ()
        """Variants of this session, if it resumes only some of the run's."""
        self.options = Options(**{name: value for name, value in options.items() if name in option_names})

        self.on_unresponsive: Callable[[Outcome], object] | None = None
        """Called with the outcome if calls do not end. Without it, or if it returns for a finished run, the session waits."""
        self.is_started = False
        self._interrupts = 0
        self._unhandled_interrupts = 0
        self._token: trio.lowlevel.TrioToken | None = None
        self._preparation_scope = trio.CancelScope()
        self._executor: TrialExecutor | None = None
        self._observer_scope = trio.CancelScope()
        self._observer_end = trio.Event()
        self._outcome: Outcome | None = None
        """The outcome, if it was recorded while a call did not end."""

    def interrupt(self) -> None:
        """Stop gracefully; the second time, cancel calls in flight. It may be called by a signal handler or any thread."""
        self._interrupts += 1
        self._unhandled_interrupts += 1
        if self._unhandled_interrupts >= _MAX_UNHANDLED_SIGNALS:
            if self._executor is not None and trio.lowlevel.in_trio_task():
                self._executor.shutdown.stop("interrupted")  # Otherwise the next attempt would block the loop as well.
            raise KeyboardInterrupt
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._handle_interrupt)

    def _handle_interrupt(self) -> None:
        """Stop the preparation or the executor; an interrupt between the two is handled by the executor."""
        self._unhandled_interrupts = 0
        if self._executor is not None:
            self._executor.shutdown.interrupt()
        else:
            self._preparation_scope.cancel()

    async def run(self) -> Outcome:
        options = self.options
        self._token = trio.lowlevel.current_trio_token()

        async with AsyncExitStack() as stack:
            state, plan = await self._before_writing(partial(self._prepare, stack))
            if plan is None:
                is_finished = state.outcome == "finished"
                head = await seal(self.path, files=options.files, in_thread=options.in_thread) if is_finished else None
                return attrs.evolve(self._already_done(state), head=head or state.head)

            workers = None
            if plan.settings.workers is not None:
                workers = new_workers(plan.settings.workers, self.evaluation, plan.settings, plan.variants, options.task)
                await stack.enter_async_context(workers.open())
                await self._before_writing(workers.wait_ready)
            if options.wait_ready is not None:
                await self._before_writing(options.wait_ready)
            return await self._run_at_free_path(state, plan, workers)

    async def _before_writing(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call before anything is written; raise KeyboardInterrupt if the session was interrupted by its end."""
        self._preparation_scope = trio.CancelScope()
        if self._interrupts:
            self._handle_interrupt()
        with self._preparation_scope:
            result = await call()
            if not self._interrupts:
                return result
        raise KeyboardInterrupt

    async def _run_at_free_path(self, state: RunState, plan: Plan, workers: "Workers | None") -> Outcome:
        """Run the session at its path, or at the next one that no other process takes."""
        clock = Clock(self.options.wall)
        while True:
            try:
                return await self._run_with_journal(state, plan, clock, workers)
            except (JournalExists, JournalLocked):
                if self.is_started or self.options.next_path is None:
                    raise
                self.path = self.options.next_path()  # With the same plan: its cases may be readable only once.

    async def _prepare(self, stack: AsyncExitStack) -> tuple[RunState, Plan | None]:
        """Read the journal and plan the session; nothing is written."""
        add_environment()
        self._environment = await self._in_thread(self.options.environment)
        state = await self._in_thread(self._load_state)
        recorded_settings = {} if self.options.ignore_recorded else state.settings
        if effective_settings(self.evaluation.settings, self.overrides, recorded_settings)[0].offline:
            from evaljournal.runner.steps.replies.offline import offline  # noqa: PLC0415  # few runs need it

            stack.enter_context(offline())
        plan = await self._in_thread(lambda: self._plan(state))
        if plan is not None:
            self._batches(plan, state)
        return state, plan

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Make a call that changes nothing in a thread; it is abandoned if the session is interrupted."""
        if self.options.in_thread is not run_in_thread:
            return await self.options.in_thread(call)
        return await run_in_thread(call, abandon_on_cancel=True)

    def _load_state(self, seq: int | None = None) -> RunState:
        """Return the recorded state; an empty one for a new run."""
        if not self.options.resume:
            return RunState()
        if seq is None and self.options.state is not None:
            return self.options.state
        try:
            return fold(read(self.path, load_blobs=False, files=self.options.files), at=seq)
        except NotAJournal as exc:
            raise NotAJournal(f"{self.path} is not a run ({exc}); start one without resume=True") from exc

    def _plan(self, state: RunState) -> Plan | None:
        """Return the plan of the session; None if there is nothing left to do."""
        if is_done(state, self.options):
            return None
        return make_plan(
            self.evaluation,
            self.overrides,
            self.options,
            state,
            environment=self._environment,
            path=self.path,
            only_variants=self.only_variants,
        )

    def _already_done(self, state: RunState) -> Outcome:
        return Outcome(self.path, state, state.head, "", "already finished")

    async def _run_with_journal(self, state: RunState, plan: Plan, clock: Clock, workers: "Workers | None") -> Outcome:
        options = self.options
        try:
            async with writing(
                self.path,
                new=not options.resume,
                clock=clock.read,
                durability=plan.settings.durability,
                files=options.files,
                in_thread=options.in_thread,
                run=self._environment.run,
            ) as journal:
                self.is_started = True
                if journal.initial_head != state.head:  # Another process has written since it was read.
                    if options.state is not None:  # What was decided about the run, such as whose it is, may no longer hold.
                        raise JournalError(f"{self.path} was changed after it was read; try again", path=self.path)
                    state = await options.in_thread(lambda: self._load_state(journal.initial_seq))
                    new_plan = await options.in_thread(lambda: self._plan(state))
                    if new_plan is None:
                        return self._already_done(state)
                    plan = new_plan
                if journal.recovery_record is not None:
                    state.apply(journal.recovery_record)
                outcome = await self._run_plan(Recorder(journal, state, clock, options.listener), plan, workers)
            self._environment.list_end(journal.run, journal.head)
            return attrs.evolve(outcome, head=journal.head)
        except DiskFull as exc:
            await self._record_disk_full(clock)
            state = await options.in_thread(self._durable_state)
            detail = exc.message if state.started is None else str(exc)  # Otherwise its hint is to resume the run.
            return Outcome(self.path, state, "", "disk_full", detail)

    def _batches(self, plan: Plan, state: RunState) -> "tuple[BatchTargets, dict[int, BatchApi]] | None":
        """Return what can be sent in batches, and the open batches; raise a `UsageError` if they cannot be collected."""
        if not plan.settings.batch and not state.batches.lines.open:
            return None
        from evaljournal.runner.gates.batch_targets import BatchTargets, open_batch_apis  # noqa: PLC0415  # few runs need it

        evaluation = plan.evaluation
        targets = BatchTargets.of(evaluation) if plan.variants else BatchTargets.of_scorers(evaluation.scorers)
        return targets, open_batch_apis(state, targets, self.path, rescores=not plan.variants)

    async def _run_plan(self, recorder: Recorder, plan: Plan, workers: "Workers | None") -> Outcome:
        journal, state = recorder.journal, recorder.state
        batches = self._batches(plan, state)
        changed_settings = self._record_start(recorder, plan)
        seq = state.seq
        recorder.close_attempts()

        trials = self._trial_source(recorder, plan)
        await journal.wait_durable(seq)  # No call may start before the new file is on disk.
        async with AsyncExitStack() as stack:
            if workers is not None:
                workers.begin(journal.run)
            tasks, layers, scorers = await self._open_tasks(stack, plan, recorder, workers)
            clean = partial(self._clean, stack, plan, recorder)
            if plan.workspace is None:
                await clean()
            else:
                from evaljournal.runner.sessions.workspaces import open_workspaces  # noqa: PLC0415  # few runs need it

                opening = open_workspaces(journal.run, plan, state.trials, self.options.in_thread, clean)
                layers.append(await stack.enter_async_context(opening))

            executor = assemble(
                recorder,
                plan,
                self.options,
                tasks,
                scorers,
                layers=layers,
                in_thread=self._in_thread,
                workers=workers,
                batches=batches,
            )
            now, shutdown = recorder.clock.now, executor.shutdown

            def stop_status() -> tuple[str, float] | None:
                return shutdown.reason and (shutdown.reason, shutdown.grace_end - now())

            live_run = LiveRun(state, journal, plan.total, now, changed_settings, stop_status)
            nursery = await stack.enter_async_context(trio.open_nursery())
            nursery.start_soon(self._run_observer, live_run)
            await self._execute(executor, trials, recorder)
            nursery.cancel_scope.cancel()
        return self._outcome or self._record_end(recorder, trials, executor)

    def _trial_source(self, recorder: Recorder, plan: Plan) -> TrialSource:
        trials = PendingTrials(recorder, plan.trials, plan.settings, self.options, plan.variants)
        trials.withdraw_variants(plan.evaluation.tasks)
        return trials

    def _record_end(self, recorder: Recorder, trials: TrialSource, executor: TrialExecutor) -> Outcome:
        state, reason, detail = recorder.state, executor.shutdown.reason, executor.shutdown.detail
        is_planned = 0 < state.totals.total == state.sessions.planned
        is_partial = bool(self.only_variants) or self.options.trials is not None
        is_complete = is_planned or (trials.is_closed and not is_partial)
        is_finished = is_complete and state.totals.done == state.totals.total  # The last trial may end after a stop.

        if is_partial and reason is None and not is_finished:
            parts = (
                f"{', '.join(self.only_variants)} ran; other variants" if self.only_variants else "selected trials ran; others"
            )
            reason, detail = "interrupted", f"only {parts} are not finished"

        if reason is None or (is_finished and reason != "dataset_failed"):
            recorder.finish()
            return Outcome(self.path, state, recorder.journal.head, "", "")
        share = self.options.budget_share if reason == "budget" else None
        recorder.record(RunStopped(reason=reason, other_runs=None if share is None else share.blocked_by))
        return Outcome(self.path, state, recorder.journal.head, reason, self._with_batches(state, reason, detail))

    def _with_batches(self, state: RunState, reason: str, detail: str) -> str:
        """Return the details of a stop, and that batches are still running, unless the reason says so."""
        count = sum(batch.is_submitted for batch in state.batches.lines.open.values())
        if not count or reason == "batches":
            return detail
        batches = f"still running at the provider: {plural(count, 'batch', 'batches')}"
        return "; ".join(filter(None, [detail, f"{batches} ({self._cancel_command} cancels)"]))

    @property
    def _cancel_command(self) -> str:
        return command("cancel", self.path)

    def _record_start(self, recorder: Recorder, plan: Plan) -> dict[str, tuple[Any, Any]]:
        """Record the start of the run and of the session; return the changed settings, old and new values, for the observer."""
        state, environment = recorder.state, self._environment
        starts: list[str] = []
        if state.started is None:
            starts.append(recorder.record(plan.run_started).h)
        run_started, old_settings = plan.run_started, dict(state.settings)

        changes = adopted_changes(state.started or run_started, run_started, trusted=self.options.trust)
        new_settings = {
            name: value
            for name, value in run_started.settings.items()
            if name not in old_settings or old_settings[name] != value
        }
        git, old_git = (start.environment.get("git", "") for start in (run_started, state.started or run_started))

        session_started = recorder.record(
            SessionStarted(
                session=len(state.sessions) + 1,
                pid=environment.pid,
                host=environment.host,
                boot_id=environment.boot_id,
                settings=new_settings or None,
                trials=0 if run_started.trials == state.sessions.planned else run_started.trials,
                adopted=changes,
                definition=run_started.definition if changes is not None else None,
                git="" if git == old_git else git,
            )
        )
        # Blocking, so that the list is complete before the records are on disk: then a crash cannot make the run foreign.
        environment.list_own(recorder.journal.run, [*starts, session_started.h])

        visible_names = old_settings.keys() - {"overridden", "scorer_slots"}
        changed_settings = {name: (old_settings[name], value) for name, value in new_settings.items() if name in visible_names}
        return changed_settings if git in {"", old_git} else {**changed_settings, "git revision": (old_git or "none", git)}

    async def _open_tasks(
        self, stack: AsyncExitStack, plan: Plan, recorder: Recorder, workers: "Workers | None"
    ) -> tuple[dict[str, Task], list[Layer], list[OpenScorer]]:
        settings, hooks = plan.settings, plan.evaluation.hooks
        opener = TaskOpener(
            stack, recorder.journal.run, grace=settings.grace, in_thread=self.options.in_thread, workers=workers
        )
        scorers = [scorer.with_defaults(settings.retry, settings.timeout) for scorer in self.evaluation.scorers.values()]

        keys, tasks_to_open = scorer_keys(scorers, plan.keys), {name: plan.evaluation.tasks[name] for name in plan.variants}
        tasks = await opener.tasks(tasks_to_open, settings.loop, hooks)
        layers = await opener.layers(
            hooks,
            settings.loop,
            timeout=settings.timeout,
            grace=settings.grace,
            gateway=settings.gateway,
        )

        slots = plan.scorer_slots
        open_scorers = [await opener.scorer(scorer, keys[scorer.name], slots.get(scorer.name)) for scorer in scorers]
        if plan.replies is not None:
            from evaljournal.runner.sessions.replies import RepliesLayer, scorers_with_replies  # noqa: PLC0415  # few runs need it

            layers.append(RepliesLayer(tasks_to_open, plan.replies, self._in_thread))
            open_scorers = scorers_with_replies(open_scorers, plan.replies)
        if settings.offline:
            from evaljournal.runner.sessions.layers.offline import OfflineLayer, offline_scorers  # noqa: PLC0415  # few runs need it

            layers.append(OfflineLayer())
            open_scorers = offline_scorers(open_scorers)
        return tasks, layers, open_scorers

    async def _clean(self, stack: AsyncExitStack, plan: Plan, recorder: Recorder) -> None:
        """End the programs of earlier sessions, and tear down their set-ups."""
        state, hooks, options = recorder.state, plan.evaluation.hooks, self.options
        has_programs = any(getattr(task, "starts_processes", False) for task in plan.evaluation.tasks.values())
        has_set_ups = "teardown" in hooks and bool(state.set_ups.open or state.set_ups.died)
        if not options.resume or not (has_programs or has_set_ups):
            return
        if self._environment.lists_runs and not await options.in_thread(partial(is_own_run, self.path)):
            return  # The user may trust the code, but the name of the run and the handles are those of another user.
        if has_programs:
            from evaljournal.runner.calls.workspaces.programs import RUN, end_programs  # noqa: PLC0415  # few runs need it

            await options.in_thread(partial(end_programs, RUN, recorder.journal.run))
        if has_set_ups:
            from evaljournal.runner.sessions.set_ups import tear_down  # noqa: PLC0415  # the same

            opener = TaskOpener(stack, recorder.journal.run, grace=plan.settings.grace, in_thread=options.in_thread)
            teardown = await opener.hook(hooks["teardown"], hooks, plan.settings.loop)
            await tear_down(recorder, hooks, teardown, options.in_thread, plan.settings.timeout or math.inf)

    async def _execute(self, executor: TrialExecutor, trials: TrialSource, recorder: Recorder) -> None:
        """Run the executor; from here on, interrupts go to it."""
        self._executor = executor
        if self._interrupts:
            trio.lowlevel.current_trio_token().run_sync_soon(self._handle_interrupt)

        has_returned = False
        try:
            await executor.run(
                trials,
                on_unresponsive=partial(self._abandon_calls, executor, trials, recorder) if self.on_unresponsive else None,
            )
            has_returned = True
        finally:
            self._executor = None
            if self.options.budget_share is not None:
                self.options.budget_share.end()
            is_cancelled = not has_returned and trio.current_effective_deadline() == -math.inf
            if is_cancelled and recorder.journal.failure is None:
                recorder.record(RunStopped(reason=executor.shutdown.reason or "interrupted"))

    async def _run_observer(self, live_run: LiveRun) -> None:
        try:
            with self._observer_scope:
                if self.options.observer is not None:
                    await self.options.observer(live_run)
        finally:
            self._observer_end.set()

    async def _abandon_calls(self, executor: TrialExecutor, trials: TrialSource, recorder: Recorder) -> None:
        """End the session although a call does not end: sync all records, restore the screen and call `on_unresponsive`."""
        assert self.on_unresponsive is not None
        with trio.CancelScope(shield=True):
            outcome = self._outcome = self._record_end(recorder, trials, executor)
            await recorder.journal.wait_durable(recorder.state.seq)
            self._observer_scope.cancel()
            with trio.move_on_after(_OBSERVER_GRACE):
                await self._observer_end.wait()
            print_error(f"not responding to cancellation, abandoned: {', '.join(map(printable, executor.calls.unresponsive))}")
            if outcome.stop_reason and self.options.on_unresponsive is None:
                print_error(f"all records are on disk; to continue: {self.options.how_to_resume(self.path)}")
            self.on_unresponsive(outcome)
            if outcome.stop_reason:
                await trio.sleep_forever()  # Another thread has the outcome now, and this one is abandoned.

    def _durable_state(self) -> RunState:
        """Return the state of the records on disk; the one in memory may be ahead."""
        try:
            return fold(read(self.path, load_blobs=False, files=self.options.files))
        except NotAJournal:
            return RunState()

    async def _record_disk_full(self, clock: Clock) -> None:
        """Try to record why the run stopped: the line is short, and the one that did not fit was removed."""
        with trio.CancelScope(shield=True):
            try:
                async with writing(
                    self.path, new=False, clock=clock.read, files=self.options.files, in_thread=self.options.in_thread
                ) as journal:
                    if journal.lifecycle.stage == "in_session":
                        journal.append(RunStopped(reason="disk_full"))
            except (DiskFull, NotAJournal, JournalExists):
                pass
