"""The budget: an attempt starts only if what it may use fits into what is left.

The amounts that attempts in flight may use are reserved, so that a budget is never exceeded by more than the last attempts
turn out to use beyond their estimates. A reserve counts from the record of the start, which has it: a resumed session and a
reader compute the same. Scorer calls are part of what is reserved for their attempts.

If the budget allows no start, and nothing in flight could release a part of it, here or in the other runs that share it, the
session stops with the reason.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from evaljournal.journal.events import AttemptStarted, Record
from evaljournal.replay.results.budget_text import block_text
from evaljournal.replay.state.budget import Amounts, Block, Budget
from evaljournal.runner.calls.prices import BATCH
from evaljournal.runner.concurrency.policy import Change
from evaljournal.runner.data.case import Case
from evaljournal.runner.engine.jobs import Job, ScorerCall, StartGate, TrialWork
from evaljournal.runner.engine.scheduler import Scheduler
from evaljournal.runner.gates.shared_budget import BudgetShare

Estimate = Callable[[Case, str, str], Amounts]
"""Returns what an attempt at a case with a variant may use in a service tier."""


@attrs.frozen
class _Reserve:
    reserved: Amounts
    other_runs: Amounts | None
    """Amounts that the other runs of the suite have spent and reserved; None without a shared budget."""


class BudgetGate(StartGate):
    def __init__(
        self, budget: Budget, estimate: Estimate, share: BudgetShare | None, scheduler: Scheduler, *, calls_scorers: bool
    ) -> None:
        """`share` is the run's part if other runs spend from the same budget.

        `calls_scorers`: scores may cost something, because there are judges or functions.
        """
        self._budget = budget
        self._estimate = estimate
        self._share = share
        self._scheduler = scheduler
        self._calls_scorers = calls_scorers
        self._state = scheduler.recorder.state
        self.is_blocking = False
        """Whether it did not allow the last start."""
        self._block: Block | None = None
        """Why it did not allow the last line of a batch."""
        if share is not None:
            share.begin(budget, scheduler.wake, self._is_settled)

    def admit(self, job: Job, now: float) -> float | None:  # noqa: ARG002
        """Refuse an attempt that does not fit; keep its reserve otherwise."""
        if not isinstance(job, TrialWork):
            return None

        budget, share, variant = self._budget, self._share, job.state.variant
        reserved = budget.reserve(variant, {})
        if len(reserved) < len(budget.limits):
            reserved = budget.reserve(variant, self._estimate(job.case, variant, ""))
        other_runs = None if share is None else share.other_runs()
        job.permits[self] = _Reserve(reserved, other_runs)

        if share is not None and len(reserved) < len(budget.limits) and not share.may_explore:
            block: Block | None = Block(reason="unknown", unit=min(budget.limits.keys() - reserved.keys()))
        else:
            block = budget.block(variant, reserved, other_runs or {})
        return None if self._is_allowed(block) else math.inf

    def fields(self, job: Job) -> Mapping[str, Any]:
        reserve: _Reserve | None = job.permits.get(self)
        return {} if reserve is None else {"reserved": reserve.reserved, "other_runs": reserve.other_runs}

    def observe(self, job: Job, record: Record) -> Iterable[Change]:  # noqa: ARG002
        """Let the other runs check again after an end, which may have released a part."""
        if self._share is not None and record.event.__class__ is not AttemptStarted:
            self._share.wake_others()
        return ()

    def completed(self, work: TrialWork) -> None:  # noqa: ARG002
        """Let the other runs check again: the session may be idle now."""
        if self._share is not None:
            self._share.wake_others()

    def may_score(self, work: TrialWork) -> bool:
        """Refuse the output of an earlier session if the budget is exceeded, and judges cost."""
        budget = self._budget
        if not self._calls_scorers:
            return True
        other_runs = {} if self._share is None else self._share.other_runs()
        return self._is_allowed(budget.block(work.state.variant, dict.fromkeys(budget.limits, 0.0), other_runs))

    def reserve_line(self, job: Job, reserved: Mapping[str, float]) -> Amounts | None:
        """Return what is reserved for a line of a batch whose other lines need `reserved`; None if it does not fit."""
        if isinstance(job, ScorerCall):
            return {}
        variant = job.state.variant
        reserve = self._budget.reserve(variant, self._estimate(job.case, variant, BATCH))
        other_runs = {} if self._share is None else self._share.other_runs()
        total = {unit: reserved.get(unit, 0.0) + amount for unit, amount in reserve.items()}
        self._block = self._budget.block(variant, total, other_runs)
        return reserve if self._block is None else None

    def stop_over_budget(self) -> None:
        """Stop the session because no line of a batch fits, unless other runs may release a part."""
        self._is_allowed(self._block)

    def _is_allowed(self, block: Block | None) -> bool:
        """Return whether there is no block; if there is one, stop the session if nothing can release a part."""
        share, scheduler = self._share, self._scheduler
        if share is not None:
            share.is_blocked = block is not None
        self.is_blocking = block is not None
        if block is None:
            return True
        if self._is_idle and not (share is not None and share.others_may_release):
            if share is not None:
                share.blocked_by = self._budget.other_runs = share.other_runs()  # Recorded with the stop.
            scheduler.shutdown.stop("budget", block_text(self._state, block))
            scheduler.close()
        return False

    def _is_settled(self) -> bool:
        """Whether the session will release no reserve: nothing is in flight, and outputs to score must wait for the budget."""
        return self._is_idle and (not self._scheduler.queues.unscored_outputs or self.is_blocking)

    @property
    def _is_idle(self) -> bool:
        return self._scheduler.is_idle and not self._state.batches.lines.open
