"""The assembly: the only module that knows both the kernel and the capabilities around it.

It looks at what the definition of a run needs, and attaches that: gates to the lanes, and a helper beside the consumers.
What is not needed is not attached, so a run without a budget, limits, workers or batches executes none of their code.

**The order of gates** is that of the cheapest refusal: a place in a worker, then the budget, then the known limits. Known
limits are last because they alone take something when they admit a job; see `runner.engine.jobs.StartGate`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from evaljournal.journal.errors import JournalError
from evaljournal.journal.events import Noted
from evaljournal.journal.threads import InThread
from evaljournal.replay.state.trial import RetryHistory
from evaljournal.replay.state.workers import WORKER_ENDED
from evaljournal.runner.calls import Task, WorkerEnd
from evaljournal.runner.definition.limits import ignores_headers
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.engine.call import CallScope
from evaljournal.runner.engine.executor import CANCEL_TIMEOUT, TrialExecutor
from evaljournal.runner.engine.jobs import Lane, StartGate, TrialWork
from evaljournal.runner.engine.layers import Layer
from evaljournal.runner.engine.recorder import Recorder
from evaljournal.runner.gates.inner_calls import InnerCalls
from evaljournal.runner.gates.known_limits import KnownLimits, LimitsGate
from evaljournal.runner.scorers.scorer import OpenScorer
from evaljournal.runner.secrets.masking import mask_values
from evaljournal.runner.sessions.layers.outputs import (
    AnswersLayer,
    ConversionLayer,
    LargeOutputsLayer,
    MaskingLayer,
    RequestsLayer,
    error_outcomes,
)
from evaljournal.runner.sessions.layers.steps import ReuseLayer, StepsLayer, recorded_trajectory
from evaljournal.runner.sessions.options import Options
from evaljournal.runner.sessions.plan import Plan
from evaljournal.runner.sessions.rate_limits import call_size, limits_by_key, policy_maker

if TYPE_CHECKING:
    from evaljournal.runner.calls.batches.api import BatchApi
    from evaljournal.runner.gates.batch_targets import BatchTargets
    from evaljournal.runner.gates.budget import BudgetGate
    from evaljournal.runner.workers.driver import Workers


def assemble(
    recorder: Recorder,
    plan: Plan,
    options: Options,
    tasks: Mapping[str, Task],
    scorers: Sequence[OpenScorer],
    *,
    layers: Sequence[Layer],
    in_thread: InThread,
    workers: "Workers | None" = None,
    batches: "tuple[BatchTargets, Mapping[int, BatchApi]] | None" = None,
) -> TrialExecutor:
    """Return the executor of a session with what the definition of its run needs.

    `tasks` are those of the variants; without any, outputs are only scored. `layers` are around them. With `batches`, calls are
    sent in batches, or the open ones of earlier sessions are collected.
    """
    settings, keys = plan.settings, plan.keys
    known_limits = KnownLimits(
        recorder.record,
        recorder.clock.wall,
        plan.declared_limits,
        lambda key: recorder.state.policy.known_limits.recent_needs(key, recorder.clock.now()),
        reads_headers=not ignores_headers(settings.limits),
    )

    rejections = WeakKeyDictionary[TrialWork, RetryHistory]()
    """Trial → the rejections of its calls since one succeeded."""

    def new_calls(work: TrialWork, scope: CallScope) -> InnerCalls:
        own_gate = next((gate for gate in work.lane.gates if isinstance(gate, LimitsGate)), None)
        history = rejections.setdefault(work, RetryHistory())
        return InnerCalls(work, scope, own_gate, known_limits, scheduler, rejections=history)

    executor = TrialExecutor(
        recorder,
        settings,
        tasks,
        scorers,
        in_thread=in_thread,
        key_of=(lambda work: keys.key_of(work.case, work.state.variant)) if keys.has_several else None,
        max_failures=settings.failure_limit(plan.total),
        fail_ambiguous=options.on_ambiguous == "fail",
        cancel_timeout=CANCEL_TIMEOUT + (settings.grace if "teardown" in plan.evaluation.hooks or plan.workspace else 0.0),
    )
    scheduler = executor.scheduler
    executor.late_recorder.mask = mask_values
    if tasks:
        steps = StepsLayer(recorder, executor.late_recorder, scheduler.loop, settings, new_calls=new_calls)
        reuse = ReuseLayer(steps, recorder, executor.late_recorder, settings, in_thread)
        executor.attach([steps, *layers, *_layers(recorder, settings, tasks.values(), executor, in_thread)])
        if recorder.state.steps.open:
            executor.attach([reuse])
        else:
            steps.on_first = partial(executor.attach, [reuse])
    if any(scorer.scorer.takes_trajectory for scorer in scorers):
        executor.scoring.read_trajectory = partial(recorded_trajectory, recorder, in_thread)
    gates = list[StartGate]()

    if workers is not None:
        from evaljournal.runner.gates.places import PlacesGate  # noqa: PLC0415  # few runs need it

        gates.append(PlacesGate(workers, scheduler))
        workers.is_stopping = lambda: executor.shutdown.is_stopping
        workers.on_problem = partial(executor.shutdown.stop, "interrupted")
        workers.on_end = partial(_note_worker_end, executor, recorder)

    budget_gate: BudgetGate | None = None
    if tasks and (budget := recorder.state.budget) is not None and budget.limits:
        from evaljournal.runner.gates import budget as budget_module  # noqa: PLC0415  # few runs need it

        calls_scorers = any(not scorer.scorer.is_local for scorer in scorers)
        budget_gate = budget_module.BudgetGate(
            budget, plan.estimate, options.budget_share, scheduler, calls_scorers=calls_scorers
        )
        gates.append(budget_gate)

    if batches is not None:
        from evaljournal.runner.gates.batcher import Batcher, BatchGate  # noqa: PLC0415  # few runs need it

        batch_gate = BatchGate()
        gates.append(batch_gate)
        scheduler.gates = tuple(gates)
        executor.helper = Batcher(
            scheduler,
            batch_gate,
            *batches,
            settings=settings,
            budget=budget_gate,
            tasks=tasks,
            in_flight=executor.calls.jobs,
            leave=options.leave,
            cancels=options.cancel_batches,
        )

    scheduler.gates = tuple(gates)
    _answer_from_replies(executor, plan, tasks, in_thread)

    new_policy = policy_maker(settings, plan.scorer_slots, recorder, policy_factory=options.policy_factory)
    limits_of = limits_by_key(known_limits, keys, plan.evaluation.scorers, sees_calls=settings.sees_model_calls)

    def new_lane(key: str) -> Lane:
        if (limits := limits_of(key)) is None:
            return Lane(key, new_policy(key), scheduler.gates)
        gate = LimitsGate(
            limits,
            lambda job: call_size(job, plan.evaluation.tasks),
            scheduler,
            is_elastic=plan.has_elastic_slots(key),
        )
        lane = Lane(key, new_policy(key), (*scheduler.gates, gate))
        gate.raise_limit(lane)  # The first limit of the lane is recorded when it is opened.
        return lane

    scheduler.new_lane = new_lane
    return executor


def _answer_from_replies(executor: TrialExecutor, plan: Plan, tasks: Mapping[str, Task], in_thread: InThread) -> None:
    """Look up recorded replies before calls start. Such a session has no batches, so the executor's helper is free."""
    if plan.replies is not None:
        from evaljournal.runner.sessions.replies import ReplyDesk  # noqa: PLC0415  # few runs need it

        ReplyDesk(executor, plan.replies, plan.evaluation.tasks, tasks, in_thread)


def _layers(
    recorder: Recorder, settings: Settings, tasks: Iterable[Task], executor: TrialExecutor, in_thread: InThread
) -> Iterator[Layer]:
    """Yield the layers that need nothing to be opened, in the order in which they change an output."""
    if settings.record_requests and any(getattr(task, "request", None) is not None for task in tasks):
        yield RequestsLayer()
    yield MaskingLayer(executor.late_recorder, in_thread)
    yield LargeOutputsLayer(recorder)
    yield ConversionLayer(recorder)
    if outcomes := error_outcomes(settings):
        yield AnswersLayer(outcomes)
    if recorder.state.budget is not None:
        from evaljournal.runner.sessions.layers.budget import TrialBudgetLayer  # noqa: PLC0415  # few runs need it

        yield TrialBudgetLayer(recorder, executor)


def _note_worker_end(executor: TrialExecutor, recorder: Recorder, worker: str, reason: WorkerEnd, detail: str) -> None:
    if not executor.shutdown.is_over:
        with suppress(JournalError):  # The journal has failed, which ends the run.
            recorder.record(Noted(name=WORKER_ENDED, value={"worker": worker, "reason": reason, "detail": detail}))
