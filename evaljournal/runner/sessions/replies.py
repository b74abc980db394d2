"""Tasks and judges that are answered from recorded replies, around the task and the judges of a session.

**What is answered**: steps inside an attempt; the call of a chat model or an endpoint; calls of judges. All else runs again:
the task's own code, its set-up, steps with `reuse=False`, and functions that score.

**A miss** is a call without a recorded reply. It is made, or its trial ends with an error, whatever the task makes of that.
What an earlier attempt of this run has executed comes after the replies of the sources, as it did in that attempt.

**Before a call starts**, it is known whether its reply is recorded: chat models, endpoints and judges ask exactly what follows
from their case or output. So limits, budget and policy guard only the calls that are made; see `ReplyDesk`.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import trio

from evaljournal.journal import JournalError
from evaljournal.journal.ownership import start_events
from evaljournal.journal.threads import InThread
from evaljournal.replay import RunState, TrialState
from evaljournal.replay.state.totals import REPLAYED
from evaljournal.runner.calls import OnLateResult, OpenableTask, Task, WrappedTask
from evaljournal.runner.calls.dialects.dialect import Answer
from evaljournal.runner.calls.notes import engine_note
from evaljournal.runner.concurrency.fixed import Fixed
from evaljournal.runner.concurrency.key_policy import KeyPolicy
from evaljournal.runner.data.case import Case
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.engine.executor import TrialExecutor
from evaljournal.runner.engine.jobs import ANY_JOB, Job, Lane, ScorerCall, StartGate, TrialWork
from evaljournal.runner.engine.layers import Layer, unless_failed
from evaljournal.runner.errors import RunChanged, UsageError
from evaljournal.runner.scorers.scorer import OpenScorer, ScorerInput
from evaljournal.runner.secrets.masking import mask_values
from evaljournal.runner.steps.attempt_steps import AttemptSteps, Key, RecordedResult, Step, current_steps
from evaljournal.runner.steps.replies.recorded import (
    CALL,
    RecordedReply,
    ReplyMissing,
    TrialReplies,
    fingerprint_of,
    is_own_tool,
    judge_name,
    missing_reply,
)
from evaljournal.runner.steps.replies.rewrite import Rewrite
from evaljournal.runner.steps.replies.source import ReplySource, asked_of, asked_of_judge, open_run

if TYPE_CHECKING:
    from evaljournal.runner.scorers.llm_judge import JudgeClient, OpenChatScorer

_Ending = RecordedReply | TrialReplies | Exception | None
"""The reply to the call of an attempt, what is recorded for the trial of a judge's, or the error that ends it."""
_LOOKED_UP: Final = 100
"""Calls that are looked up at a time."""
_WITHOUT_BATCHES: Final[Mapping[str, Any]] = {"batch": False, "batch_fallback": False, "batch_tokens": None}
"""Settings of a session with recorded replies: nothing is sent in batches."""
_WITHOUT_GATES: Final[Mapping[str, Any]] = {"limits": None, "budget": None, "policy": "fixed"}
"""Those of a session that makes no call: nothing keeps an attempt from starting."""


@attrs.frozen(kw_only=True)
class Replies:
    """The recorded replies of a session, and when they are used."""

    sources: Sequence[ReplySource]
    settings: Settings

    @property
    def before(self) -> float:
        """The first live step: its replies and later ones are not used, and a call there is no miss but made."""
        return self.settings.live_from or math.inf

    @property
    def names(self) -> str:
        """The sources, for messages."""
        return ", ".join(source.name for source in self.sources)

    def to_json(self) -> list[dict[str, str]]:
        """Return the sources as the run records them."""
        return [{"path": str(Path(source.name)), **source.identity} for source in self.sources]

    def find(self, state: TrialState, case: str) -> TrialReplies | None:
        """Return what the first source that has something has recorded for a trial; call it in a thread.

        What cannot be read, or is ambiguous, is an error that is not retried.
        """
        keys = [(state.fingerprint, state.variant, state.repeat)]
        if self.before < math.inf and state.repeat > 1:  # More repeats go on from the same steps.
            keys.append((state.fingerprint, state.variant, 1))
        try:
            matches = (source.find(key, case) for key in keys for source in self.sources)
            return next((replies for replies in matches if replies is not None and (replies.steps or replies.calls)), None)
        except (UsageError, JournalError, OSError) as exc:
            raise ReplyMissing(str(exc)) from exc

    def has_output(self, case: Case, variant: str, repeat: int) -> bool:
        """Return whether a source has an output of a trial: a run from some step on has only such trials."""
        return any(source.has_output((case.fingerprint, variant, repeat)) for source in self.sources)

    def pooled(self, key: Key, used: AbstractSet[str] = frozenset()) -> RecordedReply | None:
        """Return a reply of any trial that is not used yet; None if there is none, or only those of the same trial are used."""
        matches = (source.pooled(key, used) for source in (self.sources if self.settings.replies_any_trial else ()))
        return next((reply for reply in matches if reply is not None), None)

    def reply_to(self, recorded: TrialReplies | None, trial: str, name: str, asked: Any) -> RecordedReply | None:
        """Return the last reply to a call that is no step; None if it is to be made; raise if it may not be made."""
        key = name, fingerprint_of(asked)
        own = [reply for reply in recorded.calls if reply.name == name] if recorded is not None else []
        reply = next((reply for reply in reversed(own) if reply.key == key), None) or self.pooled(key)
        if reply is None and not self.settings.goes_live:
            raise missing_reply(trial, key, asked, own, self.names)
        return reply


def open_replies(
    evaluation: Evaluation[Any, Any, Any], settings: Settings, state: RunState, path: Path, *, trust: bool
) -> tuple[Replies | None, Settings, Collection[str]]:
    """Return the replies of a session, its settings, and the names of those that do not apply.

    What does not apply is not recorded as an option of the run, so a later session that makes calls does not inherit it.
    """
    sources = [open_source(name, pools=settings.replies_any_trial) for name in settings.replies]
    replies = Replies(sources=sources, settings=settings) if sources else None
    if state.started is not None:
        _check_sources(state.settings.get("reply_sources"), replies, path)
    if replies is None:
        return None, settings, ()
    _check_answerable(evaluation, settings)
    if state.started is None or not all(is_own for _, is_own in start_events(path)):  # Its own start has checked it.
        _check_trust(evaluation, replies, trust=trust)
    changes = _WITHOUT_BATCHES if settings.goes_live else {**_WITHOUT_BATCHES, **_WITHOUT_GATES}
    return replies, attrs.evolve(settings, **changes), changes.keys()


def open_source(name: str, *, pools: bool = False) -> ReplySource:
    """Open a run or a packed file."""
    if Path(name).is_file():
        from evaljournal.runner.steps.replies.packed import open_packed  # noqa: PLC0415  # not needed for a run

        return open_packed(name, pools=pools)
    return open_run(name, pools=pools)


def _check_answerable(evaluation: Evaluation[Any, Any, Any], settings: Settings) -> None:
    """Raise a `UsageError` if all calls of a program would be made, and perhaps paid for, again."""
    has_judge = any(map(_only_sends_requests, (scorer.function for scorer in evaluation.scorers.values())))
    for task in evaluation.tasks.values() if not settings.gateway else ():
        is_agent = getattr(task, "reports_steps", False)
        if is_agent or (getattr(task, "starts_processes", False) and not has_judge):
            program = "an agent" if is_agent else "a command"
            problem = f"{program} is executed again, and only its calls through a gateway are answered"
            fix = "record a run with --gateway, and pass --gateway with its replies, or remove --replies"
            raise UsageError(f"{problem}; {fix}", setting="replies", value=", ".join(settings.replies))


def _check_trust(evaluation: Evaluation[Any, Any, Any], replies: Replies, *, trust: bool) -> None:
    """Raise a `UsageError` if replies of others would decide what the user's code does, such as the tools that it calls."""
    scorers = [scorer.function for scorer in evaluation.scorers.values() if not scorer.is_local]
    callees: list[object] = [*evaluation.tasks.values(), *scorers, *(hook.function for hook in evaluation.hooks.values())]
    foreign = [source.name for source in replies.sources if not source.is_own]
    if foreign and not trust and not all(map(_only_sends_requests, callees)):
        names = ", ".join(foreign)
        problem = f"the replies in {names} decide what your code does, and are not from a run that has ended on this machine"
        raise UsageError(problem, hint="if you trust them, add --trust (trust=True)")


def _only_sends_requests(callee: object) -> bool:
    """Return whether something is a chat model, an endpoint or a judge, which execute nothing."""
    if not isinstance(callee, OpenableTask):
        return False
    from evaljournal.runner.calls.endpoint import HttpTask  # noqa: PLC0415  # functions need no HTTP client
    from evaljournal.runner.scorers.llm_judge import ChatScorer  # noqa: PLC0415  # the same

    return isinstance(callee, HttpTask | ChatScorer)


def _check_sources(recorded: Any, replies: Replies | None, path: Path) -> None:
    """Raise a `UsageError` unless a resumed run has the replies that it was started with."""
    expected: list[Any] = recorded if isinstance(recorded, list) else []
    actual = [] if replies is None else replies.to_json()
    if [(source.get("run"), source.get("head")) for source in expected] == [(own["run"], own["head"]) for own in actual]:
        return
    if not expected:
        raise RunChanged(f"{path} was started without recorded replies", hint="start a new run")
    names = ", ".join(str(source.get("path")) for source in expected)
    raise RunChanged(f"{path} was started with other replies: {names}", hint="pass the same ones, unchanged")


@attrs.define(eq=False)
class _Attempt:
    _replies: Replies
    recorded: TrialReplies
    live_from: float
    """Number of the first step that is live."""
    misses: list[ReplyMissing] = attrs.field(init=False, factory=list[ReplyMissing])
    _used: set[str] = attrs.field(factory=set[str])
    """Hashes of the records of replies of other trials that were used."""

    def handle_miss(self, steps: AttemptSteps, step: Step) -> RecordedResult | None:
        """Return the reply of another trial, or None if the step is executed; raise if it may not be. From any thread."""
        if not step.reusable or step.phase != "task" or step.number >= self.live_from:
            return None
        key = step.name, step.input.fingerprint
        own = {reply.head for reply in self.recorded.steps}
        if (reply := self._replies.pooled(key, self._used | own)) is not None:
            self._used.add(reply.head)
            return reply

        # What precedes the first live step must be as recorded.
        goes_live = self._replies.settings.goes_live and self._replies.before == math.inf
        if goes_live or self._is_failing_tool(step, key):
            return None

        unused = [reply for _, reply in steps.available_results if isinstance(reply, RecordedReply)]
        unused += [reply for reply in self.recorded.steps if reply.error]
        names, rules = self._replies.names, steps.key_rules
        error = missing_reply(steps.trial, key, step.input.value, unused, names, step=step.number, rules=rules)
        self.misses.append(error)
        steps.fail(step, error)
        raise error

    def _is_failing_tool(self, step: Step, key: Key) -> bool:
        """Return whether a step is a tool of the user's code that raised an error when it was recorded: it runs again."""
        failed_keys = (reply.key for reply in self.recorded.all_steps if reply.error)
        return is_own_tool(step.kind, step.name) and key in failed_keys


class ReplyDesk(StartGate):
    """Finds the replies to the calls of chat models, endpoints and judges before these start.

    A call with a reply needs no slot and passes no gate: it gets a lane of its own, with a rate-limit key that stands for
    records. So does one that may not be made, which fails. All others wait in their lane. While calls are being looked up, no
    other starts: a budget must not stop the session before the calls that cost nothing.
    """

    is_sending = False

    def __init__(
        self,
        executor: TrialExecutor,
        replies: Replies,
        definitions: Mapping[str, object],
        tasks: Mapping[str, Task],
        in_thread: InThread,
    ) -> None:
        """`definitions` are those of the open `tasks`, by variant."""
        executor.helper, self._scheduler = self, executor.scheduler
        self._replies, self._in_thread = replies, in_thread
        self._definitions, self._tasks = definitions, tasks
        self._lane = Lane(REPLAYED, KeyPolicy(Fixed, 1, patience=0.0), (self,))
        self._trials: deque[Job] = deque()
        self._calls: deque[Job] = deque()
        """Scorer calls; they are looked up before attempts, so that outputs do not accumulate."""
        self._is_busy = False
        self._event = trio.Event()
        """Set when a call may be looked up."""
        self._scheduler.queues.hold = self.hold
        self._scheduler.gates = (*self._scheduler.gates, self)

    def hold(self, job: Job) -> bool:
        """Take a job that would start now, if its call may be answered."""
        if isinstance(job, ScorerCall):
            jobs, is_call = self._calls, getattr(job.scorer.task, "is_answered", None) is not None
        else:
            jobs, is_call = self._trials, is_single_call(self._definitions[job.state.variant])
            self._scheduler.queues.waiting_trials += is_call  # As in its lane, so that not all trials are read.
        if is_call:
            jobs.append(job)
            self._event.set()
        return is_call

    def leave(self, job: Job, *, is_answered: bool) -> None:  # noqa: ARG002  # as in `StartGate`
        self._event.set()

    def completed(self, work: TrialWork) -> None:  # noqa: ARG002  # as in `StartGate`
        """Look up more attempts: fewer outputs wait for scores."""
        self._event.set()

    def reach(self, lane: Lane) -> int:  # noqa: ARG002  # as in `StartGate`
        """Return that nothing starts while calls are being looked up."""
        has_trials = self._trials and not self._scheduler.queues.is_behind
        return 0 if self._is_busy or self._calls or has_trials else ANY_JOB

    async def run(self) -> None:
        while True:
            self._event = trio.Event()
            while jobs := self._next_jobs():
                self._is_busy = True
                endings = await self._in_thread(partial(list[_Ending], map(self._find, jobs)))

                for job, ending in zip(jobs, endings, strict=True):
                    await self._place(job, ending)
                self._is_busy = False
                self._scheduler.wake()
            await self._event.wait()

    def _next_jobs(self) -> list[Job]:
        """Take the calls to look up now; none if many that have a reply, or outputs, are waiting."""
        queues = self._scheduler.queues
        jobs = self._calls or (deque() if queues.is_behind else self._trials)
        count = 0 if len(queues.answered) >= _LOOKED_UP else min(len(jobs), _LOOKED_UP)
        return [jobs.popleft() for _ in range(count)]

    def _find(self, job: Job) -> _Ending:
        """Return the reply to an attempt's call, or what is recorded for the trial of a judge's; an error ends the call."""
        work = job.work if isinstance(job, ScorerCall) else job
        try:
            recorded = self._replies.find(work.state, work.case.name)
            if isinstance(job, ScorerCall):
                return recorded
            variant = job.state.variant
            definition, task = cast("Any", self._definitions[variant]).definition, cast("Any", self._tasks[variant])
            return self._replies.reply_to(recorded, job.trial, CALL, asked_of(mask_values(task.request(job.case)), definition))
        except Exception as exc:  # noqa: BLE001  # the attempt fails with it
            return exc

    async def _place(self, job: Job, ending: _Ending) -> None:
        goes_live = self._replies.settings.goes_live
        is_answered = ending is not None or not goes_live
        if isinstance(job, ScorerCall) and goes_live and not isinstance(ending, Exception):
            is_answered = await cast("Any", job.scorer.task).is_answered(job, ending)
        job.permits[REPLAYED] = ending
        self._scheduler.queues.waiting_trials -= not isinstance(job, ScorerCall)
        if is_answered:
            self._scheduler.queues.answered.append((self._lane, job))
        else:
            self._scheduler.queues.put_live(job)


def is_single_call(definition: object) -> bool:
    """Return whether a task is a chat model or an endpoint that makes one call, without steps of its own."""
    return _only_sends_requests(definition) and getattr(definition, "turns", None) is None


class ReplayedCall:
    """A chat model, or an endpoint, whose one call is answered from recorded replies."""

    takes_trial: bool = True

    def __init__(self, task: Any) -> None:
        self._task = task
        self.request = task.request

    async def call(self, trial: TrialWork, on_late: OnLateResult, /) -> Any:
        reply = trial.permits[REPLAYED]
        if isinstance(reply, Exception):
            raise reply
        if reply is None:
            return await self._task.call(trial, on_late)
        if reply.inner and (steps := current_steps()) is not None:
            reply.record_inner(steps, 0)
        if reply.facts:
            engine_note(answer=reply.facts)
        engine_note(replayed=reply.note)
        return reply.output


class ReplayedJudge:
    """A judge whose calls are answered from recorded replies."""

    takes_trial: bool = True

    def __init__(self, task: "OpenChatScorer", version: str, replies: Replies) -> None:
        self._task, self._version, self._replies = task, version, replies

    async def call(self, job: ScorerCall, on_late: OnLateResult, /) -> Any:
        if isinstance(recorded := job.permits[REPLAYED], Exception):
            raise recorded
        client = _RecordedClient(self._task.client, self._version, job.input, recorded, self._replies)
        return await attrs.evolve(self._task, client=client).call(job.input, on_late)

    async def is_answered(self, job: ScorerCall, recorded: TrialReplies | None) -> bool:
        """Return whether all that a call asks is recorded: it is made without a model, and its result discarded."""
        scorer_input = attrs.evolve(job.input, replies=dict(job.input.replies))
        settings = attrs.evolve(self._replies.settings, on_miss="fail")
        client = _RecordedClient(None, self._version, scorer_input, recorded, attrs.evolve(self._replies, settings=settings))
        with trio.move_on_after(math.inf if self._task.scorer.timeout is None else self._task.scorer.timeout):
            try:
                await attrs.evolve(self._task, client=client).call(scorer_input, None)
            except Exception as exc:  # noqa: BLE001  # the call fails with it
                return not isinstance(exc, ReplyMissing)
            return True
        return False


@attrs.frozen
class _RecordedClient:
    """The client of a judge: the last recorded reply to the same question is the answer."""

    _client: "JudgeClient | None"
    _version: str
    _input: ScorerInput
    _recorded: TrialReplies | None
    _replies: Replies

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], /, *, note_usage: Callable[[Mapping[str, Any]], None]
    ) -> Answer:
        asked = asked_of_judge(self._version, [str(message["content"]) for message in messages if message["role"] == "user"])
        scorer, trial = self._input.scorer, self._input.trial
        reply = self._replies.reply_to(self._recorded, trial, judge_name(scorer), asked)
        if reply is None:
            assert self._client is not None
            return await self._client.complete(messages, note_usage=note_usage)
        engine_note(replayed={"scorer": scorer, **reply.note})
        model = str((reply.facts or {}).get("served_model", ""))
        return Answer(text=reply.output, model=model, usage={}, outcome="complete" if reply.output else "declined")


@attrs.frozen
class RepliesLayer(Layer):
    _definitions: Mapping[str, object]
    """Those of the tasks, by variant."""
    _replies: Replies
    _in_thread: InThread

    def wrap(self, task: Task, variant: str) -> Task:
        if is_single_call(self._definitions[variant]):
            return ReplayedCall(task)
        return WrappedTask(task, self._replay)

    async def _replay(self, task: Task, trial: TrialWork, on_late: OnLateResult) -> Any:
        """Call the task; end the attempt with the first call that has no reply, whatever the task makes of it."""
        recorded = await self._in_thread(partial(self._replies.find, trial.state, trial.case.name))
        steps, settings = current_steps(), self._replies.settings
        assert steps is not None
        recorded, before = recorded or TrialReplies(), self._replies.before
        omitted = 0 if settings.replay_errors else recorded.omitted(before=before)
        attempt = _Attempt(self._replies, recorded, before - omitted)
        steps.offer_first(recorded.offered(before=before, errors=settings.replay_errors))
        steps.on_miss = attempt.handle_miss
        if settings.live_from is not None:
            steps.rewrite = Rewrite(settings.live_from - omitted, settings.live_model, settings.live_system)
        return await unless_failed(task.call(trial if task.takes_trial else trial.case.input, on_late), attempt.misses)


def scorers_with_replies(scorers: Iterable[OpenScorer], replies: Replies) -> list[OpenScorer]:
    """Return scorers of which the judges are answered from recorded replies."""
    return [
        attrs.evolve(scorer, task=ReplayedJudge(cast("Any", scorer.task), scorer.scorer.version, replies))
        if _only_sends_requests(scorer.scorer.function)
        else scorer
        for scorer in scorers
    ]
