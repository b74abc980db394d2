"""The session's side of its workers: it assigns calls to them, handles their frames and replaces those that end.

A job gets a place in a worker before its start is recorded, so that the wait for one is not part of an attempt's time. Each
call ends exactly once: with its last frame, when its worker ends, or when a worker that does not respond is killed.
"""

import itertools
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary, WeakSet

import attrs
import orjson
import trio

from evaljournal.journal.errors import JournalError, RecordTooLarge
from evaljournal.journal.events import StepCompleted, StepEvent, StepFailed, StepReused
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.format.codec import decode
from evaljournal.journal.threads import run_in_thread
from evaljournal.runner.calls import WorkerEnd, WorkerEnded
from evaljournal.runner.calls.notes import Sink
from evaljournal.runner.errors import UsageError, print_error, unwrap_exception_groups
from evaljournal.runner.retries.classify import Failure
from evaljournal.runner.steps.attempt_steps import (
    NO_ADMISSION,
    AttemptEnded,
    AttemptSteps,
    CallAdmission,
    CallGate,
    LimitedCall,
    OverLimit,
)
from evaljournal.runner.workers.frames import (
    CANCELLED,
    InvalidFrame,
    parse_admit,
    parse_again,
    parse_end,
    parse_frame,
    parse_notes,
    parse_question,
    parse_reply,
)
from evaljournal.runner.workers.pool import Pipe, StartWorker, WorkerDied, WorkerPool

START_TIMEOUT: Final = 120.0
"""Seconds that a worker gets to import the evaluation."""
FIRST_REPORT_DELAY: Final = 2.0
"""Seconds after which it is reported that the first workers are not ready."""
REPORT_INTERVAL: Final = 30.0
"""Seconds between two such reports."""
MAX_FAILED_STARTS: Final = 3
"""Number of workers in a row that may end before they run anything; after that, workers that end are not replaced."""
FAILED_START_WINDOW: Final = 10.0
"""If a worker ends within this many seconds after it was ready, and has not run anything, its start counts as failed."""
STOP_GRACE: Final = 0.5
"""Seconds that a call without a teardown gets to end when the run is stopped; shorter than the executor's own wait."""
MAX_PER_CALL: Final = 10_000
"""Maximum notes, steps and other frames of one call; a worker that sends more of one kind is killed."""
_LARGE_FRAME: Final = 2 << 20
"""Bytes above which a frame is parsed in a thread."""
_FRAMES_PER_CHECKPOINT: Final = 50
"""Number of frames after which the loop runs other work."""
_MAX_STEP: Final = 1 << 31
_MAX_DETAIL: Final = 1_000
"""Maximum characters of what is recorded about an invalid frame."""


Job = object
"""An attempt or a scorer call that needs a place in a worker."""


@attrs.define(eq=False)
class RemoteCall:
    sink: Sink | None
    steps: AttemptSteps | None
    reusable_seqs: frozenset[int]
    """Records of the step results that the worker may reuse."""
    end_event: trio.Event = attrs.field(factory=trio.Event)
    outcome: Any = None
    """The result, an exception, or `CANCELLED`."""
    _started_at: float = attrs.field(factory=trio.current_time)
    _counts: dict[str, int] = attrs.field(factory=dict[str, int])
    _steps_ended: set[int] = attrs.field(factory=set[int])
    _reused_seqs: set[int] = attrs.field(factory=set[int])
    admissions: dict[int, CallAdmission] = attrs.field(factory=dict[int, CallAdmission])
    """Step → what is recorded of its model call."""
    rejected_seconds: float = 0.0
    """Seconds that its model calls have waited after they were rejected."""

    @property
    def gate(self) -> CallGate | None:
        """Where its model calls wait for rate limits; None: nowhere."""
        return None if self.steps is None else self.steps.gate

    def count(self, kind: Literal["notes", "steps", "syncs", "admissions", "rejections", "replies"], number: int = 1) -> None:
        """Count what its worker sent; raise `InvalidFrame` if it is too much."""
        self._counts[kind] = count = self._counts.get(kind, 0) + number
        if count > MAX_PER_CALL:
            raise InvalidFrame(f"it sent more than {MAX_PER_CALL:,} {kind} for one call")

    def record_step(self, fields: Any) -> None:
        """Record a step that ran in a worker, unless it would make the journal invalid.

        It belongs to the attempt of the call, whatever the frame contains, and took no longer than the call.
        """
        self.count("steps")
        if self.steps is None:
            return
        try:
            event = decode({**fields, "trial": self.steps.trial, "attempt": self.steps.attempt})
        except (TypeError, KeyError, ValueError, JournalError) as exc:
            raise InvalidFrame(f"it sent an invalid step ({exc})") from exc

        if not isinstance(event, StepEvent):
            raise InvalidFrame("it sent an event that is not a step")
        if event.step in self._steps_ended or event.step > _MAX_STEP:
            raise InvalidFrame(f"it sent a step with the number {event.step}")
        if isinstance(event, StepReused):
            if event.completed_seq not in self.reusable_seqs or event.completed_seq in self._reused_seqs:
                raise InvalidFrame(f"it reused record {event.completed_seq}, which it may not reuse")
            self._reused_seqs.add(event.completed_seq)
        else:
            if event.continues and event.continues not in self._steps_ended:
                raise InvalidFrame(f"it sent a step that continues step {event.continues}")
            event = self._end_step(event)

        self._steps_ended.add(event.step)
        self.steps.record(event)

    def read_reply(self, fields: dict[str, Any]) -> None:
        """Read the rate limits in the head of the reply to a model call in the worker."""
        self.count("replies")
        if self.gate is not None:
            self.gate.read(*parse_reply(fields))

    def _end_step(self, event: StepCompleted | StepFailed) -> StepCompleted | StepFailed:
        """Return the end of a step with what is known here: the longest time that it can have taken, and its admission."""
        seconds = trio.current_time() - self._started_at
        changes: dict[str, Any] = {"elapsed": round(seconds, 6)} if event.elapsed > seconds else {}
        admission = self.admissions.pop(event.step, NO_ADMISSION)
        admission = admission._replace(waited=admission.waited + min(max(event.waited, 0.0), self.rejected_seconds))
        if admission != (event.key, event.need, event.waited):
            changes |= admission._asdict()
        if isinstance(event, StepCompleted) and self.gate is not None:
            self.gate.end(event.step, event.usage)
        return evolve_fact(event, **changes) if changes else event

    def end(self, outcome: Any) -> None:
        """Set the outcome; only the first one counts."""
        if not self.end_event.is_set():
            self.outcome = outcome
            self.end_event.set()


@attrs.define(eq=False)
class Worker:
    """A worker that is ready, or has ended."""

    name: str
    pipe: Pipe
    places: int
    calls: dict[int, RemoteCall] = attrs.field(factory=dict[int, RemoteCall])
    places_used: int = 0
    """Places that are reserved or in use."""
    is_alive: bool = True
    owner: Job | None = None
    """The job that has the whole worker."""
    is_draining: bool = False
    """Whether it takes no more jobs, because one that needs a worker of its own waits for it."""
    detail: str = ""
    """Why it ended."""
    ready_at: float = attrs.field(factory=trio.current_time)
    has_run_call: bool = False

    @property
    def has_room(self) -> bool:
        return self.owner is None and not self.is_draining and self.places_used < self.places


class Workers:
    def __init__(
        self,
        pool: WorkerPool,
        opening: Mapping[str, Any],
        *,
        places: int,
        grace: float,
        stop_grace: float = STOP_GRACE,
        slots: float = math.inf,
    ) -> None:
        """A cancelled call gets `grace` seconds to end, and `stop_grace` if the run is stopped.

        `slots`: how many jobs can be in flight, if that is limited.
        """
        self._pool = pool
        self._size = min(pool.workers, slots)
        """Number of workers; 0: as many as the jobs need, and the pool can start."""
        self.runs_tasks: Final = pool.runs_tasks
        """Whether attempts run in workers; scorers that are defined with `workers=True` always do."""
        self._max_workers = math.ceil(slots / places) if slots < math.inf else slots
        self._opening = orjson.dumps({"open": dict(opening)})
        self._places = places
        self._grace = grace
        self._stop_grace = min(stop_grace, grace)

        self._nursery: trio.Nursery
        self._start_worker: StartWorker
        self._numbers, self._calls = itertools.count(1), itertools.count(1)
        self._workers: list[Worker] = []
        """The workers that take jobs."""
        self._spares: list[Worker] = []
        self.places = WeakKeyDictionary[Job, Worker]()
        """Job → the worker that has a place for it."""
        self.names = WeakKeyDictionary[Job, str]()
        """Job → the name of the worker that ran its last call."""
        self.interrupted_calls = WeakSet[Job]()
        """Jobs of scorers whose last call ended with its worker."""
        self._jobs_for_own_worker: deque[tuple[Job, Callable[[], None]]] = deque()
        """Jobs that wait for a worker of their own, and what to call when they have one."""
        self._is_draining = False
        """Whether workers may be draining for such jobs."""

        self._starting_count = 0
        self._failed_starts = 0
        self._begin = b""
        self._problem: UsageError | None = None
        self._change_event = trio.Event()

        self.on_room: Callable[[], None] = lambda: None
        """Called when a job may find a place."""
        self.on_problem: Callable[[str], None] = lambda _: None
        """Called once after `begin`, with the reason, if a worker rejects the evaluation or no more can be started."""
        self.on_end: Callable[[str, WorkerEnd, str], None] = lambda *_: None
        """Called with the name of a worker that has ended, the reason and its detail."""
        self.is_stopping: Callable[[], bool] = lambda: False
        """Whether the session is being stopped."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Open the pool; its workers end with the block."""
        with unwrap_exception_groups():
            async with trio.open_nursery() as nursery, self._pool.open() as self._start_worker:
                self._nursery = nursery
                try:
                    yield
                finally:
                    nursery.cancel_scope.cancel()

    async def wait_ready(self) -> None:
        """Start the workers, or the first one if their number is not fixed; raise a `UsageError` if one does not get ready.

        There is no journal yet that could record the reason for the wait, so it is printed.
        """
        self._grow()
        self._start(int(self._size))

        started_at = trio.current_time()
        report_at = started_at + FIRST_REPORT_DELAY
        while len(self._workers) < (count := max(1, int(self._size))) and self._problem is None:
            self._change_event = trio.Event()
            with trio.move_on_at(report_at) as wait:
                await self._change_event.wait()
            if wait.cancelled_caught:
                seconds, report_at = report_at - started_at, report_at + REPORT_INTERVAL
                progress = f"{len(self._workers)} of {count} ready after {seconds:g} s"
                print_error(f"waiting for workers: {progress}; the run starts when all are ready")
        if self._problem is not None:
            raise self._problem

    def begin(self, run: str) -> None:
        """Let the workers open the tasks for a run, and start the spares; called once the journal is open."""
        self._begin = orjson.dumps({"begin": run})
        for worker in self._workers:
            worker.pipe.send(self._begin)
        self._start(self._pool.spares)

    @property
    def has_room(self) -> bool:
        return any(worker.has_room for worker in self._workers)

    def has_place(self, job: Job) -> bool:
        return job in self.places and self.places[job].is_alive

    def reserve(self, job: Job) -> None:
        """Give a job a place in the worker with the fewest jobs, unless it has a worker of its own; there must be room."""
        if job not in self.places:
            worker = min((worker for worker in self._workers if worker.has_room), key=lambda worker: worker.places_used)
            self.places[job] = worker
            worker.places_used += 1
            self._grow()

    def reserve_own_worker(self, job: Job, on_reserved: Callable[[], None]) -> None:
        """Give a job a worker of its own as soon as one runs nothing else; then call `on_reserved`."""
        self.places.pop(job, None)
        self._jobs_for_own_worker.append((job, on_reserved))
        self._assign_own_workers()

    def release(self, job: Job) -> None:
        worker = self.places.pop(job, None)
        if worker is None or not worker.is_alive:
            return
        worker.places_used -= 1
        if worker.owner is job:
            worker.owner = None
        self._use_room()

    def _use_room(self) -> None:
        """Give workers to the jobs that need one of their own, then places to others."""
        self._assign_own_workers()
        if self.has_room:
            self.on_room()

    def _assign_own_workers(self) -> None:
        """Give free workers to jobs that need one of their own, or drain some for them: one worker, or at most half of them."""
        if not self._jobs_for_own_worker and not self._is_draining:
            return

        limit = max(1, len(self._workers) // 2)
        while self._jobs_for_own_worker and sum(worker.owner is not None for worker in self._workers) < limit:
            worker = next((worker for worker in self._workers if not worker.places_used), None)
            if worker is None:
                break
            job, on_reserved = self._jobs_for_own_worker.popleft()
            self.places[job] = worker
            worker.owner, worker.places_used, worker.is_draining = job, 1, False
            on_reserved()

        for worker in sorted(self._workers, key=lambda worker: worker.places_used):
            reserved_workers = sum(worker.owner is not None or worker.is_draining for worker in self._workers)
            worker.is_draining = bool(self._jobs_for_own_worker) and (
                worker.is_draining or (worker.owner is None and reserved_workers < limit)
            )
        self._is_draining = bool(self._jobs_for_own_worker)

    async def call(self, job: Job, fields: dict[str, Any], call: RemoteCall) -> Any:
        """Make a call in the place of a job, and free the place; `fields`: the kind of its frame → the other fields.

        A call that does not end within the grace period after its cancellation ends with its worker, as `worker_lost` if it is
        not the only one there.
        """
        worker, number = self.places[job], next(self._calls)
        self.names[job] = worker.name
        try:
            if not worker.is_alive:
                raise WorkerEnded("worker_lost", worker.detail)
            worker.calls[number] = call
            if not worker.has_run_call:
                worker.has_run_call, self._failed_starts = True, 0
            kind, *_ = fields
            worker.pipe.send(orjson.dumps({kind: number, **fields[kind]}))
            try:
                await call.end_event.wait()
            except trio.Cancelled:
                await self._cancel(worker, number, call)
                if call.outcome is CANCELLED or (
                    isinstance(call.outcome, WorkerEnded) and call.outcome.reason == "worker_died"
                ):
                    raise
        finally:
            worker.calls.pop(number, None)
            self.release(job)

        if call.outcome is CANCELLED:
            raise WorkerEnded("worker_lost", "the worker ended the call")
        if isinstance(call.outcome, BaseException):
            raise call.outcome
        return call.outcome

    async def _cancel(self, worker: Worker, number: int, call: RemoteCall) -> None:
        worker.pipe.send(orjson.dumps({"cancel": number}))
        grace = self._stop_grace if self.is_stopping() else self._grace
        with trio.CancelScope(shield=True), trio.move_on_after(grace):
            await call.end_event.wait()
        if not call.end_event.is_set():
            if len(worker.calls) == 1:
                call.end(CANCELLED)  # With others it is not known which one blocks the worker.
            self._end(worker, "killed: a call did not respond to its cancellation", reason="worker_lost")

    def _grow(self) -> None:
        """Double the workers if all places are taken, up to the need of the slots; not if the pool has a fixed number."""
        if self._size == 0 and not self.has_room and not self.is_stopping():
            count = len(self._workers)
            self._start(int(min(max(1, count), self._max_workers - count)) - self._starting_count)

    def _start(self, count: int) -> None:
        for _ in range(count):
            self._starting_count += 1
            self._nursery.start_soon(self._run_worker, next(self._numbers))

    async def _run_worker(self, number: int) -> None:
        worker: Worker | None = None
        try:
            pipe = await self._start_worker(number)
        except WorkerDied as exc:
            self._handle_end(None, exc.detail)
            return

        try:
            pipe.send(self._opening)
            with trio.move_on_after(START_TIMEOUT) as start:
                async with aclosing(pipe.frames()) as stream:
                    async for frames in stream:
                        for index, frame in enumerate(frames, 1):
                            if not index % _FRAMES_PER_CHECKPOINT:
                                await trio.lowlevel.checkpoint()
                            if len(frame) > _LARGE_FRAME:
                                fields = await run_in_thread(partial(parse_frame, frame))
                            else:
                                fields = parse_frame(frame)
                            if worker is not None:
                                self._receive(worker, fields, len(frame))
                            elif (worker := self._add_worker(pipe, fields)) is None:
                                pipe.kill()
                                return
                            else:
                                start.deadline = math.inf
            raise WorkerDied(f"killed: it was not ready within {START_TIMEOUT:g} s")
        except WorkerDied as exc:
            pipe.kill()
            self._handle_end(worker, exc.detail, is_external=exc.is_external)
        except (InvalidFrame, RecordTooLarge) as exc:
            pipe.kill()
            self._handle_end(worker, f"killed: {exc}"[:_MAX_DETAIL])

    def _add_worker(self, pipe: Pipe, fields: dict[str, Any]) -> Worker | None:
        """Add the worker that reports that it is ready, and return it; None if it cannot run the evaluation."""
        report = fields.get("ready")
        if not isinstance(report, dict):
            message = fields.get("rejected")
            self._fail(message if isinstance(message, str) else self._with_advice("a worker did not report that it is ready"))
            return None

        self._starting_count -= 1
        worker = Worker(pipe.name or str(report.get("name"))[:200], pipe, self._places)
        if self._begin:
            pipe.send(self._begin)
        is_spare = 0 < self._size <= len(self._workers)
        (self._spares if is_spare else self._workers).append(worker)
        self._change_event.set()
        self._use_room()
        return worker

    def _receive(self, worker: Worker, fields: dict[str, Any], size: int) -> None:
        """Handle a frame of a call, of `size` bytes; frames of a call that has ended are ignored."""
        kind, number = next(iter(fields.items()), ("", 0))
        call = worker.calls.get(number) if isinstance(number, int) else None
        if call is None:
            return

        match kind:
            case "end":
                call.end(parse_end(fields))
            case "note":
                values = parse_notes(fields, size)
                call.count("notes", len(values))
                if call.sink is not None:
                    call.sink(values)
            case "step":
                call.record_step(fields.get("event"))
            case "admit":
                call.count("admissions")
                self._nursery.start_soon(self._admit, worker, parse_question(fields), *parse_admit(fields), call)
            case "again":
                call.count("rejections")
                self._nursery.start_soon(self._wait_again, worker, parse_question(fields), *parse_again(fields), call)
            case "reply":
                call.read_reply(fields)
            case "sync":
                call.count("syncs")
                self._nursery.start_soon(self._sync, worker, parse_question(fields), call)
            case _:
                raise InvalidFrame(f"it sent a frame of an unknown kind: {kind[:80]!r}")

    async def _admit(self, worker: Worker, question: int, step: int, limited_call: LimitedCall, call: RemoteCall) -> None:
        """Report to the worker when a model call may start, or why it never can."""
        answer: dict[str, Any] = {"silent": True}
        if (gate := call.gate) is not None:
            try:
                admission = gate.admit_now(step, limited_call, can_wait=True)
                answer = {"silent": admission is not None}
                call.admissions[step] = admission if admission is not None else await gate.admit(step, limited_call)
            except (OverLimit, AttemptEnded) as exc:
                answer = {"error": str(exc)}
        worker.pipe.send(orjson.dumps({"answer": question, **answer}))

    async def _wait_again(self, worker: Worker, question: int, step: int, failure: Failure, call: RemoteCall) -> None:
        """Report to the worker when a model call that was rejected may be sent again."""
        waited = None
        if (gate := call.gate) is not None:
            with suppress(AttemptEnded):
                waited = await gate.wait_again(step, failure)
        call.rejected_seconds += waited or 0.0
        worker.pipe.send(orjson.dumps({"answer": question, "waited": waited}))

    async def _sync(self, worker: Worker, question: int, call: RemoteCall) -> None:
        if call.steps is not None and call.steps.sync is not None:
            with suppress(JournalError):  # The journal has failed, which ends the run.
                await call.steps.sync()
        worker.pipe.send(orjson.dumps({"answer": question}))

    def _handle_end(self, worker: Worker | None, detail: str, *, is_external: bool = False) -> None:
        """Handle the end of a worker; None: it was not ready yet."""
        if worker is None:
            self._starting_count -= 1
            self._failed_starts += 1
            self._start_missing(self._with_advice(f"a worker ended before it was ready ({detail})"))
        elif worker.is_alive:
            is_call_cause = len(worker.calls) == 1 and not is_external
            self._end(worker, detail, reason="worker_died" if is_call_cause else "worker_lost")

    def _end(self, worker: Worker, detail: str, *, reason: WorkerEnd) -> None:
        """End the calls of a worker, kill it if it is still running, and replace it."""
        worker.is_alive, worker.detail = False, detail
        worker.pipe.kill()
        self.on_end(worker.name, reason, detail)
        for call in worker.calls.values():
            call.end(WorkerEnded(reason, detail))

        for workers in (self._workers, self._spares):
            if worker in workers:
                workers.remove(worker)
        if self._spares and len(self._workers) < self._size:
            self._workers.append(self._spares.pop())

        if not worker.has_run_call and trio.current_time() < worker.ready_at + FAILED_START_WINDOW:
            self._failed_starts += 1
        self._start_missing(f"a worker ended before it ran anything ({detail})")
        self._use_room()

    def _start_missing(self, problem: str) -> None:
        """Start the missing workers, unless starts have failed.

        The problem is reported at the first failed start before `begin`, and later if no worker is left.
        """
        has_failed = self._failed_starts >= (MAX_FAILED_STARTS if self._begin else 1)
        if has_failed and not (self._begin and (self._workers or self._starting_count)):
            self._fail(problem)
        elif not has_failed and not self.is_stopping():
            self._start(int(self._size) + self._pool.spares - len(self._workers) - len(self._spares) - self._starting_count)
            self._grow()

    def _with_advice(self, problem: str) -> str:
        command = self._pool.describe().get("command")
        advice = "connect its standard input and output to `python -m evaljournal.worker`, and print nothing else there"
        return problem if command is None else f"{problem}; the command must {advice}: {command}"

    def _fail(self, message: str) -> None:
        """Report the first problem that keeps workers from running the evaluation."""
        if self._problem is None:
            self._problem = UsageError(message)
            self._change_event.set()
            if self._begin:
                self.on_problem(message)
