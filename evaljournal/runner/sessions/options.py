"""Options of a single session, besides the settings of its evaluation, and the live run that its observer gets."""

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from evaljournal.journal import Journal, Record
from evaljournal.journal.disk.files import DISK, Files
from evaljournal.journal.threads import InThread, run_in_thread
from evaljournal.replay import RunState
from evaljournal.replay.state.shards import Shard
from evaljournal.runner.concurrency.policy import Policy
from evaljournal.runner.data.dataset import parse_shard
from evaljournal.runner.definition.settings import SettingOptions
from evaljournal.runner.errors import command
from evaljournal.runner.gates.shared_budget import BudgetShare
from evaljournal.runner.sessions.environment import Environment


@attrs.define
class LiveRun:
    """A run in progress, as its observer sees it."""

    state: RunState
    """Updated by the run; read only."""
    journal: Journal
    total: int | None
    """Number of trials, if known in advance."""
    now: Callable[[], float]
    """Returns the current time on the clock of a record's `t`, in seconds."""
    changed_settings: Mapping[str, tuple[Any, Any]]
    """Settings that differ from those of the previous session: old and new value."""
    stop_status: Callable[[], tuple[str, float] | None]
    """Returns the reason and the rest of the grace period in seconds, once the run is being stopped."""


@attrs.frozen(kw_only=True)
class Options:
    """Options of one session."""

    resume: bool = False
    """Whether to resume a run instead of starting one."""
    state: RunState | None = None
    """The state of the run to resume, if its journal was already read; the run is not resumed if it has changed since."""
    next_path: Callable[[], Path] | None = None
    """Returns another path if another process has started a run at the first one."""
    task: str = ""
    """Location of the evaluation, recorded as the field `task` of `RunStarted`; for example `evals/capitals.py:capitals`."""
    adopt: bool = False
    """Whether to accept changes to the task, its files, the cases, the scorers or the variants. Outputs of unchanged cases and
    variants are kept, even if the task has changed; a new run costs more, but mixes nothing."""
    trust: bool = False
    """Whether to record `task` again, so that `evaljournal resume` uses it without --trust if another user started the run."""
    ignore_recorded: bool = False
    """Whether a resumed run uses only the settings of this call, not those that were passed in earlier sessions; for the
    command line."""
    retry_failed: bool = False
    """Whether to retry the trials that have an error, with a new retry budget."""
    trials: Collection[str] | None = None
    """Ids of the trials of this session; the others stay open. None: all. For the pytest plug-in."""
    yes: bool = False
    """Whether more than 1,000 variants may run; otherwise they are an error."""
    shard: Shard | None = attrs.field(default=None, converter=parse_shard)
    """The part of the cases to run, such as `3/8`; None: all. A resumed run keeps its own."""
    on_ambiguous: Literal["retry", "fail"] = "retry"
    """After an interrupted attempt, whose call may have had an effect: `retry` may pay for a call twice; `fail` ends the trial
    with an error and, with `write_ahead=True`, makes no call twice."""
    leave: bool = False
    """Whether to end the session when all lines of its batches are submitted, and those of ended batches are collected; the run
    is resumed later. Otherwise it waits for the batches."""
    cancel_batches: bool = False
    """Whether the session only cancels the open batches and collects their results, for `evaljournal cancel`."""
    wait_ready: Callable[[], Awaitable[None]] | None = None
    """Awaited when everything is prepared, and before anything is written; for the other runs of a suite."""
    budget_share: BudgetShare | None = None
    """The run's part in the budget of its suite."""
    observer: Callable[[LiveRun], Awaitable[None]] | None = None
    """Started with the run and cancelled at its end."""
    listener: Callable[[Record], None] | None = None
    """Called with every record of the session, except those about the journal's files; it must not block or raise."""
    on_unresponsive: Callable[[Any], object] | None = None
    """Called with the recorded outcome if a call does not respond to cancellation. The callback may end the process. It is
    called only by `run`, and only if `run` handles signals and no event loop runs in its thread. Default: a stopped run exits
    with code 3, and a finished one waits for the call."""
    policy_factory: Callable[[int], Policy] | None = None
    """Returns the policy for a number of slots, instead of the one that the settings name. A policy takes the events of
    attempts and scorer calls as they are recorded (`evaljournal.runner.concurrency.policy`). If it or the policy raises an
    exception, a fixed limit takes over."""
    environment: Callable[[], Environment] = attrs.field(factory=lambda: Environment.current)
    """Returns the versions and the process that are recorded."""
    files: Files = DISK
    """File operations of the journal; tests replace them."""
    in_thread: InThread = run_in_thread
    """Runs a function in a thread; tests replace it."""
    wall: Callable[[], float] = time.time
    """Returns the wall-clock time in seconds since 1970."""

    def how_to_resume(self, path: Path, *, adopt: bool = False) -> str:
        """Return the command that resumes a run or its suite or, for a run that was started from Python, the call."""
        if self.task:
            is_in_suite = self.wait_ready is not None
            return command("resume", path.parent if is_in_suite else path, " --adopt" if adopt else "")
        return f"`run(…, resume=True{', adopt=True' if adopt else ''})`"


class RunOptions(SettingOptions, total=False):
    """Keyword arguments of `run` and `arun`: every setting (see `Settings`), and these options."""

    resume: bool
    adopt: bool
    trust: bool
    retry_failed: bool
    yes: bool
    shard: str | None
    on_ambiguous: Literal["retry", "fail"]
    leave: bool
    task: str
    next_path: Callable[[], Path] | None
    observer: Callable[[LiveRun], Awaitable[None]] | None
    listener: Callable[[Record], None] | None
    on_unresponsive: Callable[[Any], object] | None
    policy_factory: Callable[[int], Policy] | None
    environment: Callable[[], Environment]
    files: Files
    in_thread: InThread
    wall: Callable[[], float]
