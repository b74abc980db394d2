"""The batches of a session: jobs are held, sent as lines of batches, and given their replies when the batches have ended.

A batch is recorded and synced before it is submitted, and submitted once; if the reply is lost, or the process dies, the
provider is asked whether it has the batch. The engine executes a job with its reply as it executes a live call, without the
network.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

import attrs
import orjson
import trio

from evaljournal.journal.events import MAX_BATCH_TRIALS, BatchChanged, BatchCollected, BatchPrepared, BatchSubmitted
from evaljournal.replay.state.batches import BatchState
from evaljournal.replay.text import plural, printable
from evaljournal.runner.calls import Task
from evaljournal.runner.calls.batches.api import (
    BatchApi,
    BatchNotFound,
    BatchStatus,
    NotSubmitted,
    OwnerUnknown,
    ResultsArchived,
    SubmissionUnclear,
    TokenLimitExceeded,
    WrongAccount,
    digest_of,
)
from evaljournal.runner.calls.batches.results import Results
from evaljournal.runner.calls.call_size import text_bytes
from evaljournal.runner.calls.http.batch_line import BatchLine, Unsent, set_line
from evaljournal.runner.concurrency.fixed import Fixed
from evaljournal.runner.concurrency.key_policy import KeyPolicy
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.engine.jobs import Job, Lane, ScorerCall, StartGate
from evaljournal.runner.engine.scheduler import Scheduler
from evaljournal.runner.errors import print_error
from evaljournal.runner.gates.batch_targets import PREFIX, BatchTarget, BatchTargets, is_same_account
from evaljournal.runner.gates.budget import BudgetGate
from evaljournal.runner.retries.classify import Fatal

_SECOND_LISTING: Final = 30.0
"""Seconds after which a batch that was not listed is looked for again, before its lines are free."""
_MAX_POLL: Final = 10
"""Maximum interval between two polls, as a multiple of the shortest one."""
_BYTES_PER_TOKEN: Final = 4
"""Bytes of text per token, to compare the tokens of batches with the limit of an account."""
_READ_AHEAD: Final = 100
"""Collected replies that are kept in memory at a time."""
_CANCELLED: Final = frozenset({"cancelled", "canceled", "cancelling", "canceling"})
_MAX_PROBLEM: Final = 500
"""Maximum characters of a problem that is printed."""
_MAX_DIGITS: Final = 10
"""Digits of a line number that are read; a result may have any id."""


@attrs.define(eq=False)
class _Group:
    """Jobs whose lines may be in one batch."""

    target: BatchTarget
    jobs: deque[Job] = attrs.field(factory=deque)
    max_lines: int = 0
    """Maximum lines of the next batch; smaller after the provider's limit of enqueued tokens was exceeded."""
    not_before: float = 0.0
    """When the next batch may be submitted."""
    interval: float = 0.0
    """Seconds since the last rejection until then."""
    waits_for_end: bool = False
    """Whether it waits until another batch has ended, because of a limit of enqueued tokens."""


@attrs.define(eq=False)
class _OpenBatch:
    """What the session knows of an open batch, besides its records."""

    api: BatchApi
    due: float = 0.0
    interval: float = 0.0
    is_cancelled: bool = False
    """Whether this session has cancelled it."""
    is_checked: bool = False
    """Whether the provider was asked in this session, or the batch was submitted in it."""
    is_unlisted: bool = False
    status: BatchStatus | None = None
    """The last status, once it has ended."""


class BatchGate(StartGate):
    """Passes the line of a job, if it has one, on to its call; all lanes of a session with batches have it."""

    def fields(self, job: Job) -> Mapping[str, Any]:
        line: BatchLine | None = job.permits.get(self)
        return {"batch": line.batch, "line": line.number} if line is not None and line.batch else {}

    def check(self, job: Job) -> None:
        """Set the line that the call of a job is; None if it is made now."""
        set_line(job.permits.get(self))


class Batcher:
    def __init__(
        self,
        scheduler: Scheduler,
        gate: BatchGate,
        targets: BatchTargets,
        open_batches: Mapping[int, BatchApi],
        *,
        settings: Settings,
        budget: BudgetGate | None,
        tasks: Mapping[str, Task],
        in_flight: Collection[object],
        leave: bool,
        cancels: bool,
    ) -> None:
        """`open_batches` are those of earlier sessions, by number; see `open_batch_apis`. `in_flight`: calls of the session.

        With `leave`, the session ends when all lines are submitted, and those of ended batches are collected. With `cancels`,
        the open batches are cancelled, and nothing is sent, not even live.
        """
        self._scheduler = scheduler
        self._budget = budget
        self._gate = gate

        # Their replies are there, so nothing limits how many are in flight; the gates still see their records.
        policy = KeyPolicy(Fixed, 1, patience=0.0)
        self._answered_lane = Lane("", policy, scheduler.gates, is_live=False)

        self._shutdown = scheduler.shutdown
        self._tasks = tasks
        self._in_flight = in_flight
        self._targets = targets
        self._leave = leave
        self._cancels = cancels
        self._settings = settings

        recorder = scheduler.recorder
        self._journal = recorder.journal
        self._state = recorder.state
        self._lines = recorder.state.batches.lines
        self._record = recorder.record
        self._wall = recorder.clock.wall

        scheduler.on_idle = self.wake
        scheduler.queues.hold_with(self.hold)

        self._groups: dict[BatchTarget, _Group] = {}
        self._jobs: dict[tuple[str, str], Job] = {}
        """Trial and scorer → job whose line is in an open batch."""
        self._open = {number: _OpenBatch(api) for number, api in open_batches.items()}
        self._wake_event = trio.Event()
        self.is_sending = False
        self._problem = ""
        """Why the provider could not be asked."""

    def wake(self) -> bool:
        """Check what can be done: nothing is in flight, or a batch is full. Return whether this session can end a batch."""
        self._wake_event.set()
        return self._has_work

    @property
    def _has_work(self) -> bool:
        """Whether a batch is open that this session can end."""
        return any(batch.due < math.inf for batch in self._open.values())

    @property
    def _is_quiet(self) -> bool:
        """Whether all trials were read, and nothing is in flight or about to start."""
        return self._scheduler.is_waiting and not self._in_flight

    @property
    def _has_live_jobs(self) -> bool:
        """Whether a job is queued in a lane that does not wait for the budget."""
        is_blocked = self._budget is not None and self._budget.is_blocking
        return any(lane.calls or (lane.trials and not is_blocked) for lane in self._scheduler.queues.lanes.values())

    @property
    def _collected_jobs(self) -> int:
        """Number of queued jobs that have their reply."""
        return len(self._scheduler.queues.answered)

    def _target_of(self, job: Job) -> BatchTarget | None:
        if isinstance(job, ScorerCall):
            return self._targets.of_scorer(job.scorer.scorer.name)
        return self._targets.of_attempt(job.case, job.state.variant)

    def _end_if_done(self) -> None:
        """End the session if every trial is done; otherwise, the end of a batch may allow a start."""
        self._scheduler.end_if_done()
        self._scheduler.wake()

    def _put_live(self, job: Job) -> None:
        self._scheduler.queues.put_live(job)
        self._scheduler.wake()

    def hold(self, job: Job) -> bool:
        """Take a job that would start now; return False if it is to be called live."""
        if self._lines.line_of(*job.id) is not None:
            self._jobs[job.id] = job
            return True

        job.permits.pop(self._gate, None)
        if self._cancels and (not job.id[1] or self._target_of(job) is not None):
            return True  # The session ends with the batches.

        target, missed = self._target_of(job) if self._settings.batch else None, self._lines.missed_batches(*job.id)
        if target is None or (self._settings.batch_fallback and (job.was_sent or missed)):
            return False
        if missed > self._settings.retry.errors:
            job.permits[self._gate] = BatchLine(failure=Fatal(f"no result in {plural(missed, 'batch', 'batches')}"))
            return False

        self._group(target).jobs.append(job)
        self.wake()
        return True

    async def run(self) -> None:
        while not self._shutdown.is_stopping:
            self._wake_event = trio.Event()
            await self._check_open_batches()
            await self._submit_held()
            self._stop_if_left()
            with trio.move_on_after(self._wait_seconds()):
                await self._wake_event.wait()

    def _wait_seconds(self) -> float:
        """Return the seconds until something is due, unless the engine wakes the batcher before."""
        times = [batch.due for batch in self._open.values() if batch.status is None]
        times += [group.not_before for group in self._groups.values() if group.jobs and group.not_before > trio.current_time()]
        return max(0.0, min(times, default=math.inf) - trio.current_time())

    async def _check_open_batches(self) -> None:
        """Ask the provider about the batches that are due, and collect those that have ended."""
        for number, batch in list(self._open.items()):
            if self._shutdown.is_stopping:
                return
            if not self._lines.open[number].open_lines:  # The process died when all of its results were used.
                self._end(number, self._state.batches[number].state)
                continue
            if batch.status is None and batch.due <= trio.current_time():
                await (self._poll(number, batch) if self._state.batches[number].id else self._find(number, batch))
            if batch.status is not None and self._is_quiet:
                await self._collect(number, batch, batch.status)

    async def _find(self, number: int, batch: _OpenBatch) -> None:
        """Look for a batch whose submission is unclear; if it is not listed twice, its lines are free."""
        state, now = self._state.batches[number], trio.current_time()
        known_ids = {other.id for other in self._state.batches.values() if other.id}

        try:
            submitted = await batch.api.find(state.prepared, datetime.fromisoformat(state.prepared_at), known_ids)
        except OwnerUnknown as exc:
            batch.is_checked, batch.is_unlisted = True, False
            self._report(str(exc))
            self._postpone(batch)
        except Exception as exc:  # noqa: BLE001  # the provider, or the way to it
            self._handle_problem(number, batch, exc)
        else:
            if submitted is not None:
                self._record_submission(batch, submitted)
            elif batch.is_unlisted:
                self._end(number, "not_sent", message="the provider has no such batch")
            else:
                batch.is_unlisted, batch.due = True, now + _SECOND_LISTING

    async def _poll(self, number: int, batch: _OpenBatch) -> None:
        state = self._state.batches[number]
        ask = batch.api.cancel if self._cancels and not batch.is_cancelled else batch.api.poll
        try:
            status = await ask(state.id)
        except Exception as exc:  # noqa: BLE001  # the provider, or the way to it
            self._handle_problem(number, batch, exc)
            return

        batch.is_checked, batch.is_cancelled, self._problem = True, self._cancels, ""
        is_changed = (state.state, state.completed, state.failed) != (status.state, status.completed, status.failed)
        is_asked_again = state.state == "incomplete" and status.is_ended
        if not is_asked_again and (is_changed or (status.message and status.message != state.message)):
            self._record_change(number, status, status.state, status.message)
            batch.interval = 0.0

        if status.is_ended:
            batch.status = status
        else:
            self._postpone(batch)

    def _record_change(self, number: int, counts: BatchStatus | BatchState, state: str, message: str) -> None:
        self._record(
            BatchChanged(
                batch=number,
                state=state,
                completed=counts.completed,
                failed=counts.failed,
                total=counts.total if isinstance(counts, BatchStatus) else counts.lines,
                expires=counts.expires,
                message=message,
            )
        )

    def _lose(self, number: int, batch: _OpenBatch, state: str, message: str, *, is_final: bool = True) -> None:
        """Record that a batch has no results, or not all; ask again later, or in the next session if it `is_final`."""
        last = self._state.batches[number]
        if (last.state, last.message) != (state, message):
            self._record_change(number, last, state, message)
        cancel = "the same command with --cancel" if self._state.batches.is_rescored(number) else "`evaljournal cancel`"
        self._problem = f"{message}; {cancel} records the batch as ended, then its lines can be sent again"
        batch.status, batch.is_checked = None, True
        self._postpone(batch)
        if is_final:
            batch.due = math.inf

    def _handle_problem(self, number: int, batch: _OpenBatch, exc: Exception) -> None:
        """Stop if a call about a batch would fail again; otherwise repeat it later."""
        failure, error = self._settings.retry.classify_and_describe(exc, now=self._wall())
        problem = f"{error.type}: {error.message}"
        submitted = self._state.batches[number]

        if isinstance(exc, BatchNotFound | WrongAccount) and not is_same_account(batch.api, submitted):
            text = f"{exc}; batch {number} was submitted with another API key: use that one, or one of the same project"
            fork = f"`evaljournal fork --at {submitted.prepared_seq - 1}` continues before it, and its lines are paid again"
            self._shutdown.stop("unauthorized", f"{text}; if there is none, {fork}")
        elif isinstance(exc, BatchNotFound | ResultsArchived):
            state = "deleted" if isinstance(exc, BatchNotFound) else "archived"
            if self._cancels:
                self._end(number, state, message=str(exc))
            else:
                self._lose(number, batch, state, str(exc))
        elif isinstance(exc, WrongAccount) or failure.stop_reason is not None:
            self._shutdown.stop(failure.stop_reason or "unauthorized", problem)
        else:
            batch.is_checked = True
            self._report(problem)
            self._postpone(batch)

    def _report(self, problem: str) -> None:
        """Print a new problem of a session that waits; one that does not wait ends with it."""
        if problem != self._problem and not self._leave:
            print_error(f"the provider of the batches is asked again later: {printable(problem, _MAX_PROBLEM)}")
        self._problem = problem

    def _postpone(self, batch: _OpenBatch) -> None:
        """Ask the provider again later, and ever more rarely while nothing changes."""
        batch.interval = self._longer(batch.interval)
        batch.due = trio.current_time() + batch.interval

    def _longer(self, interval: float) -> float:
        shortest = self._settings.batch_poll
        return min(2 * interval, _MAX_POLL * shortest) or shortest

    async def _collect(self, number: int, batch: _OpenBatch, status: BatchStatus) -> None:
        """Give the jobs of an ended batch their replies, and end it when they are used."""
        try:
            results = await batch.api.results(status)
        except Exception as exc:  # noqa: BLE001  # the provider, or the way to it
            batch.status = None
            self._handle_problem(number, batch, exc)
            return

        with results:
            lines, unused = await self._distribute(number, results)
        await self._wait_used(number)
        if self._shutdown.is_stopping:
            return

        open_lines = self._lines.open_lines(number)
        if lines & open_lines.keys():  # Trials that are not part of this session; another one uses their results.
            batch.status, batch.due = None, math.inf
            self._end_if_done()
            return

        counted = min(status.completed, self._state.batches[number].lines)
        if len(lines) < counted and open_lines and not self._cancels:
            text = f"batch {number} has {plural(len(lines), 'result')}, but the provider counts {counted:,} and may charge all"
            self._lose(number, batch, "incomplete", text, is_final=batch.interval >= _MAX_POLL * self._settings.batch_poll)
            return

        self._end(number, status.state, unused=unused, message=status.message)
        if self._cancels:
            return
        if status.is_over_token_limit:
            prepared = self._state.batches[number].prepared
            group = self._group(BatchTarget(batch.api, prepared.model, prepared.scorer, prepared.version))
            self._make_smaller(group, status.total or len(open_lines), status.message)
        elif open_lines and status.state in _CANCELLED:
            count = plural(len(open_lines), "line")
            text = f"batch {number} was cancelled at the provider; the next session sends its {count} again"
            self._shutdown.stop("interrupted", text)
        elif status.state == "failed" and open_lines:
            self._shutdown.stop("interrupted", f"batch {number} failed: {status.message or 'the provider gives no reason'}")

    async def _distribute(self, number: int, results: Results) -> tuple[set[int], int]:
        """Give the jobs of a batch their replies; return the lines with a reply, and the number of replies without a use."""
        prepared, open_lines = self._state.batches[number].prepared, self._lines.open_lines(number)
        lines, unused = set[int](), 0
        for result in results:
            text = result.custom_id.removeprefix(prepared.prefix)
            line = int(text) if result.custom_id != text and text.isdecimal() and len(text) < _MAX_DIGITS else 0
            if not 1 <= line <= len(prepared.trials) or line in lines:
                unused += 1
                continue

            lines.add(line)
            trial = prepared.trials[line - 1]
            unused += line not in open_lines and (not trial or self._state.trials[trial].stage == "withdrawn")
            job = self._jobs.get((trial, prepared.scorer)) if line in open_lines else None
            if job is not None:
                job.permits = {self._gate: BatchLine(batch=number, number=line, status=result.status, body=result.body)}
                del self._jobs[job.id]
                self._scheduler.queues.answered.append((self._answered_lane, job))
                self._scheduler.wake()

            if self._collected_jobs >= _READ_AHEAD:
                await self._wait_used(number)
            if self._shutdown.is_stopping:
                break
        return lines, unused + results.broken

    async def _wait_used(self, number: int) -> None:
        while not self._shutdown.is_stopping and (self._collected_jobs or self._lines.open[number].in_flight):
            self._wake_event = trio.Event()
            await self._wake_event.wait()

    def _end(self, number: int, state: str, *, unused: int = 0, message: str = "") -> None:
        """Record the end of a batch; jobs without a reply are held again, or called live."""
        batch, lines = self._lines.open[number], self._lines.open_lines(number)
        self._record(
            BatchCollected(
                batch=number, state=state, results=batch.used_lines, missing=len(lines), unused=unused, message=message
            )
        )
        del self._open[number]
        for group in self._groups.values():
            group.waits_for_end = False

        for trial in lines.values():
            job = self._jobs.pop((trial, batch.scorer), None)
            if job is not None and not self.hold(job):
                self._put_live(job)
        self._end_if_done()

    async def _submit_held(self) -> None:
        """Submit the groups that are full, or all if the engine is quiet."""
        for group in list(self._groups.values()):
            while group.jobs and (self._is_quiet or len(group.jobs) >= group.max_lines):
                is_waiting = group.not_before > trio.current_time() or (group.waits_for_end and self._open)
                if self._shutdown.is_stopping or is_waiting or not await self._submit(group):
                    break

    async def _submit(self, group: _Group) -> bool:
        """Prepare and submit one batch; return whether another one may follow."""
        number, target = self._lines.last_batch + 1, group.target
        prefix = f"{PREFIX}{self._journal.run}-{number}-"
        jobs, lines, tokens, reserved = await self._take(group, prefix)
        if not jobs or self._shutdown.is_stopping:
            group.jobs.extendleft(reversed(jobs))
            return False

        prepared = BatchPrepared(
            batch=number,
            trials=[job.id[0] for job in jobs],
            scorer=target.scorer,
            version=target.version,
            model=target.model,
            api=target.api.name,
            address=target.api.address,
            prefix=prefix,
            digest=digest_of(lines),
            bytes=sum(map(len, lines)) + len(lines),
            reserved=reserved,
            tokens=tokens,
            account=target.api.account(self._journal.run),
        )
        record = self._record(prepared)
        batch = self._open[number] = _OpenBatch(target.api)
        self._jobs.update((job.id, job) for job in jobs)

        self.is_sending = True
        try:
            await self._journal.wait_durable(record.seq)
            submitted = await target.api.submit(prepared, lines)
        except SubmissionUnclear as exc:
            self._report(str(exc))
        except NotSubmitted as exc:
            self._end(number, "not_sent", message=str(exc))
            return self._handle_rejection(group, exc, len(lines))
        else:
            group.interval = 0.0
            self._record_submission(batch, submitted)
        finally:
            self.is_sending = False
            self._end_if_done()
        return True

    async def _take(self, group: _Group, prefix: str) -> tuple[list[Job], list[bytes], int, dict[str, float] | None]:
        """Take the jobs of the next batch from a group; return them with their lines, input tokens and part of the budget."""
        jobs, lines, api = list[Job](), list[bytes](), group.target.api
        tokens = size = names = 0
        reserved: dict[str, float] | None = None
        max_tokens = math.inf if self._settings.batch_tokens is None else self._settings.batch_tokens - self._open_tokens(api)

        while group.jobs and len(lines) < group.max_lines:
            job = group.jobs[0]
            content = await self._render(job)
            if content is None:
                group.jobs.popleft()
                self._put_live(job)
                continue

            line = api.encode(f"{prefix}{len(lines) + 1}", orjson.loads(content))
            line_tokens = -(-text_bytes(content) // _BYTES_PER_TOKEN)
            size, names, tokens = size + len(line) + 1, names + len(orjson.dumps(job.id[0])) + 1, tokens + line_tokens
            is_too_large = size > api.max_bytes or names > MAX_BATCH_TRIALS
            if is_too_large and not lines:
                problem = f"its request has {size:,} bytes; a batch has at most {api.max_bytes:,}"
                job.permits[self._gate] = BatchLine(failure=Fatal(problem))
                group.jobs.popleft()
                self._put_live(job)
                tokens = size = names = 0
                continue

            if is_too_large or tokens > max_tokens:
                tokens -= line_tokens
                if not lines and not self._open:
                    text = f"one line has about {plural(line_tokens, 'token')}, more than batch-tokens (batch_tokens) allows"
                    self._shutdown.stop("quota", text)
                break

            need = {} if self._budget is None else self._budget.reserve_line(job, reserved or {})
            if need is None:
                tokens -= line_tokens
                if self._budget is not None and not lines and not self._open and self._is_quiet:
                    self._budget.stop_over_budget()
                break
            if need:
                reserved = {unit: round((reserved or {}).get(unit, 0.0) + amount, 9) for unit, amount in need.items()}

            group.jobs.popleft()
            jobs.append(job)
            lines.append(line)
        return jobs, lines, tokens, reserved

    def _open_tokens(self, api: BatchApi) -> int:
        """Return the input tokens of the open batches of an account."""
        return sum(self._state.batches[number].prepared.tokens for number, batch in self._open.items() if batch.api == api)

    async def _render(self, job: Job) -> bytes | None:
        """Return the request of a job; None if it makes no call, or fails before that, and its line has the error."""
        job.permits[self._gate] = BatchLine()
        await trio.lowlevel.checkpoint()
        self._gate.check(job)

        try:
            if isinstance(job, ScorerCall):
                await job.scorer.task.call(job.input, lambda _: None)
            else:
                await self._tasks[job.state.variant].call(job, lambda _: None)
        except Unsent as exc:
            return exc.content
        except Exception as exc:  # noqa: BLE001  # the attempt fails with it
            job.permits[self._gate] = BatchLine(failure=exc)
        return None

    def _record_submission(self, batch: _OpenBatch, submitted: BatchSubmitted) -> None:
        self._record(submitted)
        batch.is_checked, self._problem = True, ""
        self._postpone(batch)

    def _handle_rejection(self, group: _Group, exc: NotSubmitted, lines: int) -> bool:
        """Stop, wait or send less after a batch was not accepted; return whether another one may follow now."""
        if isinstance(exc, TokenLimitExceeded):
            self._make_smaller(group, lines, str(exc))
            return not group.waits_for_end
        cause = exc.__cause__ if isinstance(exc.__cause__, Exception) else exc
        failure, _ = self._settings.retry.classify_and_describe(cause, now=self._wall())
        if failure.stop_reason is not None or failure.category == "fatal" or self._leave:
            self._shutdown.stop(failure.stop_reason or "interrupted", str(exc))
        self._report(str(exc))
        group.interval = self._longer(group.interval)
        group.not_before = trio.current_time() + max(group.interval, failure.retry_after or 0.0)
        return False

    def _make_smaller(self, group: _Group, lines: int, message: str) -> None:
        """Send half as many lines in the next batch, when another one has ended, after too many tokens were enqueued."""
        if lines <= 1:
            self._shutdown.stop("quota", f"one line exceeds the limit of enqueued tokens: {message}")
        group.max_lines, group.waits_for_end = max(1, lines // 2), True

    def _group(self, target: BatchTarget) -> _Group:
        if target not in self._groups:
            self._groups[target] = _Group(target, max_lines=target.api.max_lines)
        return self._groups[target]

    def _stop_if_left(self) -> None:
        """Stop a session that does not wait, when all lines are submitted and the provider was asked about every batch."""
        if self._cancels and not self._open and not self._collected_jobs and not self._shutdown.is_stopping:
            self._shutdown.stop("interrupted", "its batches were cancelled")
        if not self._open or not self._is_quiet or self._has_live_jobs:
            return
        is_waiting = all(batch.is_checked and batch.status is None for batch in self._open.values())
        has_lost = any(self._state.batches[number].is_lost for number in self._open)
        is_left = self._leave or (has_lost and not self._has_work)
        if is_left and is_waiting:
            self._shutdown.stop("batches", self._problem)
        if not self._has_work and self._wait_seconds() == math.inf:
            text = "an open batch has results for trials that are not part of this session; resume without --only-variant"
            self._shutdown.stop("batches", text)
