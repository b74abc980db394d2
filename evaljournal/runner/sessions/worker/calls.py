"""The calls in a worker: it opens tasks and scorers, calls them as the session requests, and reports how the calls end."""

import itertools
import math
import os
import platform
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Final, Protocol

import attrs
import orjson
import trio

from evaljournal.journal.errors import Unserializable
from evaljournal.journal.events import NOTE_PREFIX, AttemptSucceeded, Noted, StepEvent
from evaljournal.journal.format.codec import encode, encode_payloads, exceeds
from evaljournal.journal.threads import run_in_thread
from evaljournal.replay.runs.trajectory import StepDetails
from evaljournal.runner.calls import Task
from evaljournal.runner.calls.arguments import new_task
from evaljournal.runner.calls.gateway_env import set_gateway_env
from evaljournal.runner.calls.http.reply import MAX_VALUES, has_too_many_values
from evaljournal.runner.calls.notes import PHASE_NOTE, StepRecorder, attachments_of, set_attachments, set_note_sink
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.dataset import Dataset
from evaljournal.runner.data.to_json import to_json
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.loading import AnyEvaluation, imports_for_worker, load_evaluation
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.definition.variants import Variant
from evaljournal.runner.engine.layers import surround
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Description, Failure, describe
from evaljournal.runner.retries.limit_headers import limit_headers
from evaljournal.runner.retries.retry import UNSERIALIZABLE, Retry
from evaljournal.runner.scorers.scorer import OpenScorer, ScorerInput
from evaljournal.runner.secrets.masking import add_environment, mask, mask_output, mask_values, sent_secrets
from evaljournal.runner.sessions.open_tasks import TaskOpener
from evaljournal.runner.steps.attempt_steps import (
    NO_ADMISSION,
    AttemptSteps,
    CallAdmission,
    LimitedCall,
    OverLimit,
    RecordedResult,
    failed_step,
)
from evaljournal.runner.steps.durable import DurableSteps
from evaljournal.runner.steps.durable_requests import DurableRequests
from evaljournal.runner.steps.keys import KeyRules
from evaljournal.runner.workers.frames import MAX_FRAME, MAX_NOTE, failure_fields, score_fields

_MAX_STEP: Final = MAX_FRAME - 64
"""Maximum bytes of a step, which is sent with the number of its call."""


class Connection(Protocol):
    def send(self, frame: bytes, /) -> None:
        """Send a frame, from any thread."""
        ...

    def deliver_to(self, deliver: Any, /) -> None:
        """Deliver frames to a function from now on, called in another thread; None at the end of the session."""
        ...


def serve(connection: Connection, opening: bytes) -> None:
    session = open_evaluation(connection, opening, _load)
    if session is not None:
        trio.run(Calls(connection, *session).run)


def open_evaluation(
    connection: Connection, opening: bytes, load: Callable[[dict[str, Any]], AnyEvaluation]
) -> tuple[AnyEvaluation, dict[str, Any]] | None:
    """Load the evaluation, and report whether it is the session's; return it and the fields of the first frame if it is."""
    try:
        fields: dict[str, Any] = orjson.loads(opening)["open"]
        os.environ.update(fields.pop("environment", {}))
        add_environment()
        evaluation = load(fields)
        _check_same(evaluation, fields)
        if fields["durable"]:
            from evaljournal.runner.steps.http_clients import watch_clients  # noqa: PLC0415  # an HTTP client is slow to import

            watch_clients()
    except UsageError as exc:
        connection.send(orjson.dumps({"rejected": f"worker {_worker_name()} in {os.getcwd()}: {exc}"}))
        return None
    connection.send(orjson.dumps({"ready": {"name": _worker_name()}}))
    return evaluation, fields


def _worker_name() -> str:
    return f"{platform.node()}/{os.getpid()}"


def _load(fields: dict[str, Any]) -> AnyEvaluation:
    """Build the tasks that the first frame has as data, or import the evaluation that it names."""
    if fields["tasks"]:
        tasks = {name: new_task(*arguments) for name, arguments in fields["tasks"].items()}
        variants = {name: Variant(name, {}, task) for name, task in tasks.items() if name}
        task = next(iter(tasks.values()))
        return Evaluation(task, cases=Dataset([]), settings=Settings(), name=None, variants=variants or None)
    token = imports_for_worker.set(True)
    try:
        return load_evaluation(fields["task"]).evaluation
    finally:
        imports_for_worker.reset(token)


def _check_same(evaluation: AnyEvaluation, fields: dict[str, Any]) -> None:
    """Raise a `UsageError` if the session has another version of the evaluation."""
    versions = {name: scorer.version for name, scorer in evaluation.scorers.items()}
    changed_parts = [f"scorer {name!r}" for name, version in fields["scorers"].items() if versions.get(name) != version]
    if evaluation.fingerprint != fields["fingerprint"]:
        changed_parts.insert(0, "the task")
    for name, fingerprint in fields["variants"].items():
        if name and (name not in evaluation.variants or evaluation.variants[name].fingerprint != fingerprint):
            changed_parts.append(f"variant {name!r}")
    if changed_parts:
        raise UsageError(f"{fields['task'] or 'this directory'} has another version of {', '.join(changed_parts)} than the run")


@attrs.frozen
class _TrialInput:
    """The trial of a call; see `runner.calls.TrialInput`."""

    trial: str
    case: Case
    line: None = None


@attrs.frozen
class _RemoteGate:
    """Where the model calls of an attempt wait until the session admits them; see `CallGate`."""

    _number: int
    _send: Callable[[bytes], None]
    _ask: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    _silent_keys: set[tuple[object, ...]]

    @property
    def failure(self) -> None:
        """None: the session fails the trial."""

    def close(self) -> None:
        """Do nothing: the session ends the calls that still wait."""

    def admit_now(self, step: int, call: LimitedCall, *, can_wait: bool) -> CallAdmission | None:
        """Admit a call if no limit of its key is known, or if it cannot wait."""
        if not can_wait:
            self._send(orjson.dumps(self._frame(step, call)))
        return NO_ADMISSION if not can_wait or call[:3] in self._silent_keys else None

    async def admit(self, step: int, call: LimitedCall) -> CallAdmission:
        answer = await self._ask(self._frame(step, call))
        if error := answer.get("error"):
            raise OverLimit(error)
        if answer["silent"]:
            self._silent_keys.add(call[:3])
        return NO_ADMISSION

    async def wait_again(self, step: int, failure: Failure) -> float | None:
        frame = {"again": self._number, "step": step, "category": failure.category, "retry_after": failure.retry_after}
        answer = await self._ask(frame)
        waited: float | None = answer["waited"]
        return waited

    def _frame(self, step: int, call: LimitedCall) -> dict[str, Any]:
        return {"admit": self._number, "step": step, "call": [*call[:3], *call.size]}

    def read(self, step: int, status: int, headers: Mapping[str, str]) -> None:
        if (relevant_headers := limit_headers(status, headers)) is not None:
            self._silent_keys.clear()
            self._send(orjson.dumps({"reply": self._number, "step": step, "status": status, "headers": relevant_headers}))

    def end(self, step: int, usage: Any) -> None:
        """The session reads the usage of the step."""


class Calls:
    def __init__(self, connection: Connection, evaluation: AnyEvaluation, opening: dict[str, Any]) -> None:
        self._send = connection.send
        self._connection = connection
        self._evaluation = evaluation
        self._opening = opening
        self._retry: Retry = evaluation.settings.retry
        self._is_step = DurableRequests.parse(opening["durable"]).includes if opening["durable"] else None
        self._key_rules = KeyRules.parse(opening.get("key_without", ()))

        self._scopes: dict[int, trio.CancelScope] = {}
        self._answers: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}
        """Question to the session → where its answer is awaited."""
        self._questions = itertools.count(1)
        """Numbers of questions; the answer to one that was cancelled may arrive during another."""
        self._silent_keys: set[tuple[object, ...]] = set()
        """Rate-limit keys of which no limit is known."""
        self._tasks: dict[str, Task] = {}
        """Variant → its task."""
        self._scorers: dict[str, OpenScorer] = {}

    async def run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        send, receive = trio.open_memory_channel[Any](math.inf)

        def deliver(lines: list[bytes] | None) -> None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(send.send_nowait, lines)

        self._connection.deliver_to(deliver)
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            async for lines in receive:
                if lines is None:
                    nursery.cancel_scope.cancel()
                    return
                for line in lines:
                    await self._handle(orjson.loads(line), stack, nursery)

    async def _handle(self, fields: dict[str, Any], stack: AsyncExitStack, nursery: trio.Nursery) -> None:
        kind, value = next(iter(fields.items()))
        match kind:
            case "begin":
                await self._open(stack, value)
            case "call" | "score":
                self._scopes[value] = scope = trio.CancelScope()
                nursery.start_soon(self._call if kind == "call" else self._score, value, fields, scope)
            case "cancel":
                if value in self._scopes:
                    self._scopes[value].cancel()
            case "answer":
                if value in self._answers:
                    self._answers[value].send_nowait(fields)
            case _:
                pass

    async def _open(self, stack: AsyncExitStack, run: str) -> None:
        # The session kills a worker whose call does not end in time, so that none has to be abandoned here.
        opener = TaskOpener(stack, run, grace=math.inf, in_thread=run_in_thread)
        tasks = {variant: self._evaluation.tasks[variant] for variant in self._opening["variants"]}
        hooks, loop = self._evaluation.hooks, self._opening["loop"]
        layers = await opener.layers(hooks, loop, timeout=self._opening["timeout"], grace=self._opening["grace"])
        self._tasks = surround(await opener.tasks(tasks, loop, hooks), layers)
        for name in self._opening["scorers"]:
            scorer = self._evaluation.scorers[name].with_defaults(self._retry, None)
            self._scorers[name] = await opener.scorer(scorer, "")

    async def _call(self, number: int, fields: dict[str, Any], scope: trio.CancelScope) -> None:
        steps = AttemptSteps(
            fields["trial"],
            fields["attempt"],
            record=partial(self._record_step, number),
            clock=trio.lowlevel.current_clock().current_time,
            token=self._token,
            wait_durable=partial(self._wait_durable, number) if self._opening["write_ahead"] else None,
            sync=partial(self._wait_durable, number),
            is_step=self._is_step,
            key_rules=self._key_rules,
            gate=_RemoteGate(number, self._send, self._ask, self._silent_keys),
        )

        steps.offer(((name, fingerprint), _recorded_result(result)) for name, fingerprint, result in fields.get("results", ()))
        set_attachments(attachments_of({AttemptSteps: steps, StepRecorder: DurableSteps()}))

        value = fields["input"] if "input" in fields else _TrialInput(fields["trial"], Case(**fields["case"]))
        with set_gateway_env(fields.get("gateway_env", {})):
            encode_output = partial(self._encode_output, number)
            await self._run_call(
                number, self._tasks[fields["variant"]], value, scope, retry=self._retry, encode_result=encode_output
            )

    async def _score(self, number: int, fields: dict[str, Any], scope: trio.CancelScope) -> None:
        open_scorer = self._scorers[fields["scorer"]]
        trajectory = [StepDetails(**step) for step in fields["trajectory"]]
        scorer_input = ScorerInput(
            fields["output"],
            Case(**fields["case"]),
            trajectory,
            open_scorer.scorer.name,
            declined=fields["declined"],
            truncated=fields["truncated"],
            latency=fields["latency"],
            cost=fields["cost"],
        )

        def encode_scores(value: Any) -> bytes:
            scores, name = open_scorer.scorer.scores(value), open_scorer.scorer.name
            if name in scores:
                return _end_frame(number, score_fields(scores[name]))
            return _end_frame(number, score_fields({key.removeprefix(f"{name}."): score for key, score in scores.items()}))

        await self._run_call(
            number, open_scorer.task, scorer_input, scope, retry=open_scorer.scorer.retry, encode_result=encode_scores
        )

    async def _run_call(
        self,
        number: int,
        task: Task,
        value: Any,
        scope: trio.CancelScope,
        *,
        retry: Retry,
        encode_result: Callable[[Any], bytes],
    ) -> None:
        phase = "task"

        def send_note(values: dict[str, Any]) -> None:
            nonlocal phase
            phase = values.get(PHASE_NOTE, phase)
            self._note(number, values)

        set_note_sink(send_note)
        thread_ended = trio.Event()
        end_frame = b""
        is_started = not scope.cancel_called
        with scope:
            try:
                if is_started:
                    end_frame = encode_result(await task.call(value, lambda _: thread_ended.set()))
            except trio.Cancelled:
                raise
            except BaseException as exc:  # noqa: BLE001  # reported
                is_cancelled = isinstance(exc, BaseExceptionGroup) and exc.split(trio.Cancelled)[1] is None
                if not (scope.cancel_called and is_cancelled):
                    end_frame = _end_frame(number, failure_fields(*retry.classify_and_describe(exc, now=time.time())))
        if len(end_frame) > MAX_FRAME or has_too_many_values(end_frame):
            end_frame = _too_large_frame(number)
        if not end_frame and is_started and phase != "setup" and getattr(task, "loop", "trio") is None:
            await thread_ended.wait()  # A plain function cannot be cancelled.
        del self._scopes[number]
        self._send(end_frame or _end_frame(number, {"cancelled": True}))

    def _encode_output(self, number: int, output: Any) -> bytes:
        """Return the last frame of a call that returned an output."""
        if exceeds(output, MAX_FRAME):
            return _too_large_frame(number)
        if sent_secrets:
            masked_output = mask_output(output)
            if masked_output is not output:
                output = masked_output
                self._note(number, {f"{NOTE_PREFIX}masked": {"output": True}})

        try:
            try:
                text, suffix = _payload(output), b""
            except (Unserializable, RecursionError):
                text, suffix = _payload(mask_output(to_json(output))), b',"converted":true'
        except (Unserializable, RecursionError) as exc:
            return _unserializable_frame(number, describe(exc).message)
        return b'{"end":%d,"output":%b%b}' % (number, text, suffix)

    def _record_step(self, number: int, event: StepEvent) -> None:
        try:
            text = encode(event, 0, "", 0.0)
            if len(text) > _MAX_STEP or has_too_many_values(text):
                raise Unserializable(
                    "a step", "", f"has more than {_MAX_STEP:,} bytes or {MAX_VALUES:,} values as JSON, the maximum in a worker"
                )
        except (Unserializable, RecursionError) as exc:
            text = encode(failed_step(event, exc), 0, "", 0.0)
        self._send(b'{"step":%d,"event":%b}}' % (number, text))

    async def _wait_durable(self, number: int) -> None:
        await self._ask({"sync": number})

    async def _ask(self, frame: dict[str, Any]) -> dict[str, Any]:
        """Send a frame with a question to the session; return the fields of the answer."""
        send, receive = trio.open_memory_channel[dict[str, Any]](1)
        self._answers[question := next(self._questions)] = send
        self._send(orjson.dumps({**frame, "question": question}))
        try:
            return await receive.receive()
        finally:
            del self._answers[question]

    def _note(self, number: int, values: dict[str, Any]) -> None:
        for original_name, value in values.items():
            try:
                ((name, note),) = mask_values({original_name: to_json(value)}).items()
                encode_payloads(Noted(name=name, value=note))
            except (Unserializable, RecursionError) as exc:
                name, note = mask(original_name), describe(exc).message
            frame = orjson.dumps({"note": number, "values": {name: note}})
            if len(frame) > MAX_NOTE:
                note = f"omitted: more than {MAX_NOTE:,} bytes as JSON, the maximum for a note from a worker"
                frame = orjson.dumps({"note": number, "values": {name: note}})
            self._send(frame)


def _payload(output: Any) -> bytes:
    """Encode an output as the journal does."""
    event = AttemptSucceeded(trial="", attempt=1, output=output, elapsed=0.0)
    return encode_payloads(event).get("output", b"null")


def _end_frame(number: int, fields: dict[str, Any]) -> bytes:
    return orjson.dumps({"end": number, **fields})


def _unserializable_frame(number: int, message: str) -> bytes:
    error = Description(type=UNSERIALIZABLE, message=message, traceback="")
    return _end_frame(number, failure_fields(Failure(category="fatal"), error))


def _too_large_frame(number: int) -> bytes:
    maximum = f"{MAX_FRAME:,} bytes or {MAX_VALUES:,} values as JSON, the maximum in a worker"
    return _unserializable_frame(number, f"the result has more than {maximum}; write it to a file")


def _recorded_result(fields: dict[str, Any]) -> RecordedResult:
    return RecordedResult(**{**fields, "number": tuple(fields["number"]), "parent": tuple(fields["parent"])})
