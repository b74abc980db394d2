"""Tasks and judges that are answered from recorded replies, around the task and the judges of a session.

**What is answered**: steps inside an attempt; the call of a chat model or an endpoint; calls of judges. All else runs again:
the task's own code, its set-up, steps with `reuse=False`, and functions that score.

**A miss** is a call without a recorded reply. It is made, or its trial ends with an error, whatever the task makes of that.
What an earlier attempt of this run has executed comes after the replies of the sources, as it did in that attempt.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
import orjson

from evaljournal.journal import JournalError
from evaljournal.journal.ownership import is_own_run
from evaljournal.journal.threads import InThread
from evaljournal.replay import RunState
from evaljournal.replay.state.trial import TrialState
from evaljournal.replay.text import printable
from evaljournal.runner.calls import OnLateResult, Task, TrialInput, WrappedTask
from evaljournal.runner.calls.dialects.dialect import Answer
from evaljournal.runner.calls.endpoint import HttpTask
from evaljournal.runner.calls.notes import engine_note
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.engine.layers import Layer
from evaljournal.runner.errors import RunChanged, UsageError
from evaljournal.runner.scorers.llm_judge import ChatScorer, JudgeClient, OpenChatScorer
from evaljournal.runner.scorers.scorer import OpenScorer, ScorerInput
from evaljournal.runner.secrets.masking import mask_values
from evaljournal.runner.steps.attempt_steps import AttemptSteps, RecordedResult, Step, current_steps
from evaljournal.runner.steps.keys import first_difference
from evaljournal.runner.steps.replies.journal import destination, open_run, question_key, request_key
from evaljournal.runner.steps.replies.miss import ReplyMissing, difference_text, missing_step
from evaljournal.runner.steps.replies.recorded import (
    RecordedAnswer,
    RecordedReply,
    RecordedVerdict,
    ReplySource,
    TrialKey,
    TrialReplies,
)
from evaljournal.runner.steps.replies.rewrite import Rewrite

_HTTP_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_WITHOUT_BATCHES: Final[Mapping[str, Any]] = {"batch": False, "batch_fallback": False, "batch_tokens": None}
"""Settings of a session with recorded replies: nothing is sent in batches."""
_WITHOUT_GATES: Final[Mapping[str, Any]] = {"limits": None, "budget": None, "policy": "fixed"}
"""Those of a session that makes no call: nothing keeps an attempt from starting."""
RECORDED_SOURCES = "reply_sources"
"""The recorded setting with the identities of the sources, which a resumed run must find again."""


@attrs.frozen(kw_only=True)
class Replies:
    """The recorded replies of a session, and when they are used."""

    sources: Sequence[ReplySource]
    goes_live: bool
    """Whether a call without a reply is made."""
    any_trial: bool = False
    errors: bool = False
    """Whether recorded failures are replayed."""
    rewrite: Rewrite | None = None
    """How model calls are changed from that step on."""
    before: float = float("inf")
    """Replies of steps with this number, or a larger one, are not used, and a call there is no miss: it is made."""

    @classmethod
    def open(cls, settings: Settings) -> "Replies | None":
        """Open the sources that the settings name; None if they name none. Call it in a thread."""
        if not settings.replies:
            return None
        sources = [open_source(name, pools=settings.replies_any_trial) for name in settings.replies]
        return cls(
            sources=sources,
            goes_live=settings.goes_live,
            any_trial=settings.replies_any_trial,
            errors=settings.replay_errors,
            before=settings.live_from or math.inf,
            rewrite=Rewrite(settings.live_from, settings.live_model, settings.live_system) if settings.live_from else None,
        )

    @property
    def names(self) -> str:
        """The sources, for messages."""
        return ", ".join(source.name for source in self.sources)

    def to_json(self) -> list[dict[str, str]]:
        """Return the sources as the run records them."""
        return [{"path": str(Path(source.name)), **source.identity} for source in self.sources]

    def find(self, state: TrialState, case: str) -> TrialReplies | None:
        """Return what the first source that has something has recorded for a trial; call it in a thread."""
        keys = [(state.fingerprint, state.variant, state.repeat)]
        if self.before < math.inf and state.repeat > 1:  # More repeats go on from the same steps.
            keys.append((state.fingerprint, state.variant, 1))
        matches = (_read(source, key, case) for key in keys for source in self.sources)
        return next((replies for replies in matches if replies is not None), None)

    def find_answer(self, state: TrialState, case: str) -> tuple[ReplySource, TrialReplies] | None:
        """Return the first source that has the output of a trial, and what it has recorded."""
        for source in self.sources:
            replies = _read(source, (state.fingerprint, state.variant, state.repeat), case)
            if replies is not None and replies.answer is not None:
                return source, replies
        return None

    def pooled(self, step: Step, used_seqs: set[tuple[str, int]]) -> RecordedReply | None:
        """Return a reply of any trial that is not used yet; None if there is none, or only those of the same trial are used."""
        for source in self.sources if self.any_trial else ():
            seqs = {seq for run, seq in used_seqs if run == source.run}
            reply = source.pooled((step.name, step.input.fingerprint), seqs)
            if reply is not None:
                return reply
        return None


def _read(source: ReplySource, key: TrialKey, case: str) -> TrialReplies | None:
    """Return what a source has for a trial; if it cannot be read, or has several, raise an error that is not retried."""
    try:
        return source.find(key, case)
    except (UsageError, JournalError, OSError) as exc:
        raise ReplyMissing(str(exc)) from exc


def open_replies(
    evaluation: Evaluation[Any, Any, Any], settings: Settings, state: RunState, path: Path, *, trust: bool
) -> tuple[Replies | None, Settings, Collection[str]]:
    """Return the replies of a session, its settings, and the names of those that do not apply.

    What does not apply is not recorded as an option of the run, so a later session that makes calls does not inherit it.
    """
    replies = Replies.open(settings)
    if state.started is not None:
        _check_sources(state.settings.get(RECORDED_SOURCES), replies, path)
    if replies is None:
        return None, settings, ()
    if state.started is None or not is_own_run(path):  # Its own start has checked it.
        _check_trust(evaluation, replies, trust=trust)
    changes = _WITHOUT_BATCHES if settings.goes_live else {**_WITHOUT_BATCHES, **_WITHOUT_GATES}
    return replies, attrs.evolve(settings, **changes), changes.keys()


def open_source(name: str, *, pools: bool = False) -> ReplySource:
    """Open a run or a packed file."""
    if Path(name).is_file():
        from evaljournal.runner.steps.replies.packed import open_packed  # noqa: PLC0415  # not needed for a run

        return open_packed(name, pools=pools)
    return open_run(name, pools=pools)


def _check_trust(evaluation: Evaluation[Any, Any, Any], replies: Replies, *, trust: bool) -> None:
    """Raise a `UsageError` if replies of others would decide what the user's code does, such as the tools that it calls."""
    scorers = [scorer.function for scorer in evaluation.scorers.values() if not scorer.is_local]
    callees: list[object] = [*evaluation.tasks.values(), *scorers, *(hook.function for hook in evaluation.hooks.values())]
    foreign = [source.name for source in replies.sources if not source.is_own]
    if foreign and not trust and not all(isinstance(callee, HttpTask | ChatScorer) for callee in callees):
        names = ", ".join(foreign)
        problem = f"the replies in {names} decide what your code does, and are not from a run that has ended on this machine"
        raise UsageError(problem, hint="if you trust them, add --trust (trust=True)")


def _check_sources(recorded: Any, replies: Replies | None, path: Path) -> None:
    """Raise a `UsageError` unless a resumed run has the replies that it was started with."""
    expected: list[Any] = recorded if isinstance(recorded, list) else []
    actual = [] if replies is None else replies.to_json()
    heads = [[(source.get("run"), source.get("head")) for source in sources] for sources in (expected, actual)]
    if heads[0] != heads[1]:
        names = ", ".join(str(source.get("path")) for source in expected)
        problem = (
            f"{path} was started with other replies: {names}" if expected else f"{path} was started without recorded replies"
        )
        hint = "pass the same ones, unchanged" if expected else "start a new run"
        raise RunChanged(problem, hint=hint)


class _TrialWork(TrialInput, Protocol):
    """A trial, with its recorded state."""

    @property
    def state(self) -> TrialState: ...


@attrs.define(eq=False)
class _Attempt:
    """An attempt with recorded replies, and its first miss."""

    _replies: Replies
    _recorded: TrialReplies | None
    miss: ReplyMissing | None = None
    _used_seqs: set[tuple[str, int]] = attrs.field(factory=set[tuple[str, int]])
    """Run and record of the replies of other trials that were used."""

    def handle_miss(self, steps: AttemptSteps, step: Step) -> RecordedResult | None:
        """Return the reply of another trial, or None if the step is executed; raise if it may not be. From any thread."""
        if not step.reusable or step.phase != "task" or step.number >= self._replies.before:
            return None
        if self._replies.any_trial and (reply := self._replies.pooled(step, self._used)) is not None:
            self._used_seqs.add((reply.origin.run, reply.origin.seq))
            return reply
        # What precedes the first live step must be as recorded.
        goes_live = self._replies.goes_live and self._replies.before == math.inf
        if goes_live or self._is_failing_tool(step):
            return None
        unused = [reply for _, reply in steps.available_results if isinstance(reply, RecordedReply)]
        unused += [reply for reply in self._recorded.steps if reply.error] if self._recorded is not None else []
        error = missing_step(steps.trial, step, unused, steps.key_rules, self._replies.names)
        self.miss = self.miss or error
        steps.fail(step, error)
        raise error

    @property
    def _used(self) -> set[tuple[str, int]]:
        steps = () if self._recorded is None else self._recorded.steps
        return self._used_seqs | {(reply.origin.run, reply.origin.seq) for reply in steps}

    def _is_failing_tool(self, step: Step) -> bool:
        """Return whether a step is a tool of the user's code that raised an error when it was recorded: it runs again."""
        if step.kind != "tool" or step.name.partition(" ")[0] in _HTTP_METHODS or self._recorded is None:
            return False
        key = step.name, step.input.fingerprint
        return any(reply.error and reply.key == key for reply in (*self._recorded.steps, *_all_inner(self._recorded)))


def _all_inner(recorded: TrialReplies) -> list[RecordedReply]:
    return [inner for reply in recorded.steps for inner in reply.all_inner]


class ReplayedCall:
    """A chat model, or an endpoint, whose one call is answered from recorded replies."""

    takes_trial: bool = True

    def __init__(self, task: Any, target: HttpTask, replies: Replies, in_thread: InThread) -> None:
        self._task, self._target, self._replies, self._in_thread = task, target, replies, in_thread
        self.request = task.request

    async def call(self, trial: _TrialWork, on_late: OnLateResult, /) -> Any:
        """Return the recorded output if the request is the same; otherwise make the call, or raise."""
        recorded = await self._in_thread(partial(self._replies.find_answer, trial.state, trial.case.name))
        request = mask_values(self._task.request(trial.case))
        key = request_key(request)
        source, replies = recorded if recorded is not None else (None, None)
        answer = None if replies is None else replies.answer
        if (
            answer is None
            or source is None
            or answer.key != key
            or source.destination(trial.state.variant) != destination(self._target.definition)
        ):
            if self._replies.goes_live:
                return await self._task.call(trial, on_late)
            raise self._missing(trial, request, source, answer, key)
        if replies is not None and replies.steps and (steps := current_steps()) is not None:
            caller = RecordedReply(
                seq=0, output=None, step=0, name="", kind="other", fingerprint="", origin=answer.origin, inner=replies.steps
            )
            caller.record_inner(steps, 0)
        if answer.facts:
            engine_note(answer=answer.facts)
        engine_note(replayed=answer.origin.to_json(answer.usage))
        return answer.output

    def _missing(
        self, trial: _TrialWork, request: Any, source: ReplySource | None, answer: RecordedAnswer | None, key: str
    ) -> ReplyMissing:
        problem = f"no reply is recorded for the call of {printable(trial.trial, 60)}"
        if answer is None or source is None:
            return ReplyMissing(f"{problem}; {self._replies.names} has no output for this trial, or not its request")
        if answer.key != key and answer.request is None:
            return ReplyMissing(f"{problem}: its request has changed; pass the run itself, not a packed file, to see how")
        if answer.key != key:
            return ReplyMissing(f"{problem}{difference_text(first_difference(_text(answer.request), _text(request)))}")
        difference = first_difference(
            _text(source.destination(trial.state.variant)), _text(destination(self._target.definition))
        )
        return ReplyMissing(f"{problem}: its request is the same, but not where it goes{difference_text(difference)}")


def _text(value: Any) -> str:
    return orjson.dumps(value, default=repr, option=orjson.OPT_SORT_KEYS).decode()


class ReplayedJudge:
    """A judge whose calls are answered from recorded replies."""

    takes_trial: bool = False

    def __init__(
        self, task: OpenChatScorer, version: str, replies: Replies, in_thread: InThread, states: Mapping[str, TrialState]
    ) -> None:
        """`states` has the trials of the run."""
        self._task, self._version, self._replies, self._in_thread, self._states = task, version, replies, in_thread, states

    async def call(self, scorer_input: ScorerInput, on_late: OnLateResult, /) -> Any:
        """Score an output."""
        state = self._states[scorer_input.trial]
        recorded = await self._in_thread(partial(self._replies.find, state, scorer_input.case.name))
        verdicts = () if recorded is None else recorded.verdicts
        client = _RecordedClient(self._task.client, self._version, scorer_input, verdicts, self._replies)
        return await OpenChatScorer(self._task.scorer, client).call(scorer_input, on_late)


@attrs.frozen
class _RecordedClient:
    """The client of a judge: the last recorded reply to the same question is the answer."""

    _client: JudgeClient
    _version: str
    _input: ScorerInput
    _verdicts: Sequence[RecordedVerdict]
    _replies: Replies

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], /, *, note_usage: Callable[[Mapping[str, Any]], None]
    ) -> Answer:
        """Return the answer to messages."""
        texts = [str(message["content"]) for message in messages if message["role"] == "user"]
        key, own = (
            question_key(self._version, texts),
            [verdict for verdict in self._verdicts if verdict.scorer == self._input.scorer],
        )
        verdict = next((verdict for verdict in reversed(own) if verdict.key == key), None)
        if verdict is None and self._replies.goes_live:
            return await self._client.complete(messages, note_usage=note_usage)
        if verdict is None:
            hint = "was asked something else, or its definition has changed" if own else "has no verdict on this trial"
            problem = f"no reply is recorded for the judge {self._input.scorer!r} and {self._input.trial!r}"
            raise ReplyMissing(f"{problem}; in {self._replies.names}, it {hint}")
        engine_note(replayed={"scorer": verdict.scorer, **verdict.origin.to_json(verdict.usage)})
        return Answer(text=verdict.reply, model=verdict.model, usage={}, outcome="complete" if verdict.reply else "declined")


class RepliesLayer(Layer):
    """Answers the calls of tasks from recorded replies."""

    def __init__(self, targets: Mapping[str, object], replies: Replies, in_thread: InThread) -> None:
        """`targets` are the definitions of the tasks, by variant."""
        self._targets = targets
        self._replies = replies
        self._in_thread = in_thread

    def wrap(self, task: Task, variant: str) -> Task:
        """Return a task that is answered from recorded replies."""
        target = self._targets[variant]
        if isinstance(target, HttpTask) and getattr(target, "turns", None) is None:
            return ReplayedCall(task, target, self._replies, self._in_thread)
        return WrappedTask(task, self._replay)

    async def _replay(self, task: Task, trial: _TrialWork, on_late: OnLateResult) -> Any:
        """Call the task; end the attempt with the first call that has no reply, whatever the task makes of it."""
        recorded = await self._in_thread(partial(self._replies.find, trial.state, trial.case.name))
        steps = current_steps()
        assert steps is not None
        attempt = _Attempt(self._replies, recorded)
        if recorded is not None:
            steps.offer_first(recorded.offered(before=self._replies.before, errors=self._replies.errors))
        steps.on_miss, steps.rewrite = attempt.handle_miss, self._replies.rewrite
        try:
            output = await task.call(trial if task.takes_trial else trial.case.input, on_late)
        except Exception as exc:
            if attempt.miss is None or exc is attempt.miss:
                raise
            raise attempt.miss from exc
        if attempt.miss is not None:
            raise attempt.miss
        return output


def scorers_with_replies(
    scorers: Sequence[OpenScorer], replies: Replies, in_thread: InThread, states: Mapping[str, TrialState]
) -> list[OpenScorer]:
    """Return scorers of which the judges are answered from recorded replies; `states` has the trials of the run."""

    def replayed(scorer: OpenScorer) -> OpenScorer:
        if not isinstance(scorer.task, OpenChatScorer):
            return scorer
        task = ReplayedJudge(scorer.task, scorer.scorer.version, replies, in_thread, states)
        return attrs.evolve(scorer, task=task)

    return list(map(replayed, scorers))
