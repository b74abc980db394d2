"""The budget of a run: the amounts spent and reserved, and whether another attempt may start.

An attempt starts if the amount spent, the reserves of the attempts in flight and its own reserve fit into the limit. The engine
and the audit use this one rule; it depends on recorded facts only: settings, reserves and usage.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs

from evaljournal.journal import Record, events
from evaljournal.journal.format.batches import BatchLines, OpenBatch
from evaljournal.replay.state.totals import REPLAYED
from evaljournal.replay.state.trial import TrialState
from evaljournal.replay.state.usage import is_amount, noted_usage

UNITS: Final = ("cost", "input_tokens", "output_tokens")
"""Units that a budget can limit; `cost` is in dollars. A judge's usage counts, too."""
MAX_UNKNOWN: Final = 4
"""Attempts of a variant that may be in flight without a reserve, until one of them has reported its usage."""
MAX_UNREPORTED: Final = 20
"""Trials of a variant that may be completed without any usage; then the session is stopped, because nothing can be counted."""
OVER_BUDGET: Final = "OverBudget"
"""Error type of an attempt that exceeded the budget per trial and did not fail with another error."""
_MAX_TRIALS: Final = 10**9
"""Maximum of `more_trials`; a foreign journal may have any budget."""
DECIMALS: Final = 9
"""Decimals of a sum; costs are recorded with as many, so sums are exact."""

Amounts: TypeAlias = dict[str, float]
"""Unit → amount."""


def amounts(value: object, *, zero: bool = True) -> Amounts:
    """Return the amounts in a JSON value, without those of 0 if `zero` is False; any other content is ignored."""
    if not isinstance(value, Mapping):
        return {}
    pairs = ((unit, _amount(value.get(unit))) for unit in UNITS)
    return {unit: amount for unit, amount in pairs if amount is not None and (zero or amount > 0)}


def _amount(value: object) -> float | None:
    return value if is_amount(value) and math.isfinite(value) and value >= 0 else None


def _add(sums: Amounts, unit: str, amount: float) -> float:
    sums[unit] = round(sums.get(unit, 0.0) + amount, DECIMALS)
    return sums[unit]


@attrs.define(eq=False)
class _OpenAttempt:
    """An attempt that is in flight, or whose output is being scored."""

    number: int
    variant: str
    is_from_batch: bool
    """Whether it uses a line of a batch; it calls nothing, so an interruption costs nothing."""
    usage: Amounts = attrs.field(factory=dict[str, float])
    makes_calls: bool | None = None
    """Whether it makes calls itself; False: all that are known had a recorded reply; None: unknown."""


@attrs.define(eq=False)
class _VariantUsage:
    largest: Amounts = attrs.field(factory=dict[str, float])
    """The most that one attempt has used, its judges included."""
    estimate: Amounts = attrs.field(factory=dict[str, float])
    """The largest reserve of an attempt that was started with a budget."""
    reported_units: set[str] = attrs.field(factory=set[str])
    """Units that a completed trial has reported."""
    unreported_trials: Counter[str] = attrs.field(factory=Counter[str])
    """Unit → trials completed in this session without it."""
    open_attempts: int = 0
    """Attempts in flight, and outputs that are not fully scored."""
    open_usage: Amounts = attrs.field(factory=dict[str, float])
    uncounted_attempts: Counter[str] = attrs.field(factory=Counter[str])
    """Unit → interrupted attempts without a reserve; each counts as the first attempt that reports it."""

    def reserve(self, unit: str, estimate: float | None) -> float | None:
        """Return the most that one attempt has used; before the first report, at least the estimate; None if unknown."""
        if unit in self.reported_units:
            return self.largest[unit]
        return None if estimate is None else max(estimate, self.largest.get(unit, 0.0))

    def unused_reserves(self, unit: str) -> float:
        reserve = self.reserve(unit, self.estimate.get(unit))
        return 0.0 if reserve is None else self.open_attempts * reserve - self.open_usage.get(unit, 0.0)


@attrs.frozen(kw_only=True)
class Block:
    """Why no attempt of a variant may start."""

    reason: Literal["limit", "unknown", "unreported"]
    """`limit`: it could exceed the budget. `unknown`: its reserve is unknown, and `MAX_UNKNOWN` such attempts are in flight.
    `unreported`: completed trials have reported no usage."""
    unit: str
    reserve: float | None = None
    """The reserve that does not fit."""


@attrs.frozen(kw_only=True)
class BudgetUse:
    """How much of the budget is used, in one unit."""

    limit: float
    spent: float
    """Usage of attempts, steps and judges, and the unused reserves of calls that were interrupted or timed out."""
    reserved: float
    """Unused reserves of attempts in flight and of outputs that are not fully scored."""
    other_runs: float
    """What the other runs of the suite had spent and reserved when the last attempt started."""
    overshoot: float
    """The worst possible overshoot: by how much the sum of the three exceeds the limit."""


@attrs.define(eq=False)
class Budget:
    limits: Amounts = attrs.field(factory=dict[str, float])
    """The budget of the run; empty if it has none."""
    trial_limits: Amounts = attrs.field(factory=dict[str, float])
    """The budget of each trial; empty if they have none."""
    spent: Amounts = attrs.field(factory=lambda: dict.fromkeys(UNITS, 0.0))
    other_runs: Amounts = attrs.field(factory=dict[str, float])
    """What the other runs of the suite had spent and reserved, as last recorded."""
    _has_ended: bool = False
    """Whether the session has ended with a final record, so that nothing is in flight."""
    _calls_are_steps: bool = False
    """Whether an attempt without steps is known to call nothing: so is one of a run from some step on."""
    _open: dict[str, _OpenAttempt] = attrs.field(factory=dict[str, _OpenAttempt])
    _variants: defaultdict[str, _VariantUsage] = attrs.field(factory=lambda: defaultdict(_VariantUsage))
    _batches: dict[int, tuple[Amounts, OpenBatch]] = attrs.field(factory=dict[int, tuple[Amounts, OpenBatch]])
    """Number of a batch → what was reserved for all of its lines, and the batch; ended ones have no open lines."""
    _usage_by_trial: dict[str, Amounts] = attrs.field(factory=dict[str, Amounts])
    """Trial that is not done → usage of its attempts; only with `trial_limits`."""

    def reserve(self, variant: str, estimate: Mapping[str, float]) -> Amounts:
        """Return the reserve of the next attempt; a unit that is neither reported nor estimated is missing."""
        usage = self._variants[variant]
        reserves = ((unit, usage.reserve(unit, estimate.get(unit))) for unit in self.limits)
        return {unit: amount for unit, amount in reserves if amount is not None}

    def block(self, variant: str, reserve: Mapping[str, float], other_runs: Mapping[str, float]) -> Block | None:
        """Return why an attempt with this reserve may not start; None if it may.

        `other_runs` is what the other runs of the suite have spent and reserved.
        """
        usage = self._variants[variant]
        for unit, limit in self.limits.items():
            unit_reserve = reserve.get(unit)
            parts = self.spent[unit], self._unused_reserves(unit), unit_reserve or 0.0, other_runs.get(unit, 0.0)
            total = round(sum(parts), DECIMALS)
            if unit not in usage.reported_units and usage.unreported_trials[unit] >= MAX_UNREPORTED:
                return Block(reason="unreported", unit=unit)
            if total > limit or (unit_reserve is None and total == limit):
                return Block(reason="limit", unit=unit, reserve=unit_reserve)
            if unit_reserve is None and usage.open_attempts >= MAX_UNKNOWN:
                return Block(reason="unknown", unit=unit)
        return None

    def exceeded_by(self, reserve: Mapping[str, float]) -> str:
        """Return the unit in which a batch with this reserve does not fit into the budget; empty if it fits."""
        for unit, limit in self.limits.items():
            parts = self.spent[unit], self._unused_reserves(unit), reserve.get(unit, 0.0), self.other_runs.get(unit, 0.0)
            if round(sum(parts), DECIMALS) > limit:
                return unit
        return ""

    def _unused_reserves(self, unit: str) -> float:
        attempts = sum(usage.unused_reserves(unit) for usage in self._variants.values())
        return round(attempts + self._batch_reserves(unit), DECIMALS)

    def _batch_reserves(self, unit: str) -> float:
        """Return what the open lines of all batches may use: their share of the reserve of their batch."""
        return sum(reserved.get(unit, 0.0) * batch.open_lines / len(batch.trials) for reserved, batch in self._batches.values())

    def blocks(self, other_runs: Mapping[str, float]) -> Iterator[Block]:
        """Yield why the next attempt of each variant may not start, estimated from the reserves of earlier ones."""
        for name, usage in self._variants.items():
            if (block := self.block(name, self.reserve(name, usage.estimate), other_runs)) is not None:
                yield block

    @property
    def unknown_attempts(self) -> int:
        """The number of open attempts without a reserve in one of the units."""
        return sum(
            usage.open_attempts
            for usage in self._variants.values()
            if any(usage.reserve(unit, usage.estimate.get(unit)) is None for unit in self.limits)
        )

    @property
    def has_recorded_reserves(self) -> bool:
        """Whether the reserves of all variants follow from recorded usage, not from estimates."""
        return bool(self._variants) and all(usage.reported_units.issuperset(self.limits) for usage in self._variants.values())

    def over_trial_limit(self, trial: str, usage: object) -> Amounts:
        """Return the units in which a trial exceeds the budget per trial, with the usage of its attempts.

        `usage` is that of the attempt in flight, if it is not recorded yet.
        """
        if not self.trial_limits:
            return {}
        parts = self._usage_by_trial.get(trial, {}), amounts(usage)
        sums = {unit: round(sum(part.get(unit, 0.0) for part in parts), DECIMALS) for unit in self.trial_limits}
        return {unit: amount for unit, amount in sums.items() if amount > self.trial_limits[unit]}

    def use(self) -> dict[str, BudgetUse]:
        """Return how much of the budget is used, by unit."""
        uses = dict[str, BudgetUse]()
        for unit, limit in self.limits.items():
            spent = self.spent[unit]
            reserve = round(self._batch_reserves(unit), DECIMALS) if self._has_ended else self._unused_reserves(unit)
            other_runs = self.other_runs.get(unit, 0.0)
            overshoot = max(0.0, round(spent + reserve + other_runs - limit, DECIMALS))
            uses[unit] = BudgetUse(limit=limit, spent=spent, reserved=reserve, other_runs=other_runs, overshoot=overshoot)
        return uses

    def more_trials(self, done: int) -> int | None:
        """Return how many more trials fit into the budget, at the average of those that are done; None if unknown."""
        counts = [
            int(min(max(0.0, limit - self.spent[unit] - self.other_runs.get(unit, 0.0)) / self.spent[unit] * done, _MAX_TRIALS))
            for unit, limit in self.limits.items()
            if done and self.spent[unit] > 0
        ]
        return min(counts, default=None)

    def larger_limits(self, open_trials: int, done: int) -> Amounts:
        """Return a larger budget, in round numbers, that is probably enough for the open trials.

        Twice the budget if nothing is known, or only the first estimate, which did not fit. Empty if no larger one helps.
        """
        blocks, limits = list(self.blocks(self.other_runs)), dict[str, float]()
        if any(block.reason == "unreported" for block in blocks):
            return {}
        for unit in dict.fromkeys(block.unit for block in blocks if block.reason == "limit"):
            spent = self.spent[unit]
            average = spent / done if done else 0.0
            reserve = max(block.reserve or 0.0 for block in blocks if block.unit == unit)
            need = max(reserve + max(1, open_trials) * average, 2 * reserve)
            limits[unit] = round_up(spent + self.other_runs.get(unit, 0.0) + need if need else 2 * self.limits[unit])
        return limits or {unit: round_up(2 * limit) for unit, limit in self.limits.items()}

    def begin_session(self, settings: Mapping[str, Any], being_scored: Iterable[str]) -> None:
        """Use the limits of a session; `being_scored` are the trials with a scorer call in flight before it."""
        self._has_ended = False
        self._calls_are_steps = bool(settings.get("live_from"))
        self.limits = amounts(settings.get("budget"), zero=False)
        self.trial_limits = amounts(settings.get("budget_per_trial"), zero=False)
        for trial in being_scored:
            self.spend_reserve(trial)
        for usage in self._variants.values():
            usage.unreported_trials.clear()

    def reserve_batch(self, number: int, reserved: object, batch: OpenBatch) -> None:
        if batch_amounts := amounts(reserved):
            self._batches[number] = batch_amounts, batch

    def spend(self, usage: Any, trial: str = "", number: int = 0) -> None:
        """Count usage; it is covered by the reserve of its attempt, if that is in flight or being scored."""
        attempt = self._open.get(trial)
        for unit, amount in _with_judges(usage):
            _add(self.spent, unit, amount)
            if attempt is not None and attempt.number == number:
                variant = self._variants[attempt.variant]
                _add(variant.open_usage, unit, amount)
                variant.largest[unit] = max(variant.largest.get(unit, 0.0), _add(attempt.usage, unit, amount))
                if self.trial_limits:
                    _add(self._usage_by_trial.setdefault(trial, {}), unit, amount)

    def start(self, event: events.AttemptStarted, variant: str) -> None:
        """Reserve amounts for an attempt."""
        attempt = _OpenAttempt(event.attempt, variant, bool(event.batch), makes_calls=False if self._calls_are_steps else None)
        self._open[event.trial], usage = attempt, self._variants[variant]
        self.other_runs = amounts(event.other_runs)
        usage.open_attempts += 1
        for unit, amount in amounts(event.reserved).items():
            usage.estimate[unit] = max(usage.estimate.get(unit, 0.0), amount)

    def spend_reserve(self, trial: str) -> None:
        """Count the unused reserve of an attempt as spent: a call ended without reporting its usage."""
        if (attempt := self._open.get(trial)) is not None:
            usage = self._variants[attempt.variant]
            for unit in UNITS:
                if (reserve := usage.reserve(unit, usage.estimate.get(unit))) is not None:
                    _add(self.spent, unit, reserve - attempt.usage.get(unit, 0.0))
                else:
                    usage.uncounted_attempts[unit] += 1

    def end(self, trial: str, *, interrupted: bool = False) -> _OpenAttempt | None:
        """Release the reserve of an attempt and return it; if the attempt was interrupted, its unused reserve is spent."""
        if interrupted and not (trial in self._open and self._open[trial].is_from_batch):
            self.spend_reserve(trial)
        attempt = self._open.pop(trial, None)
        if attempt is not None:
            usage = self._variants[attempt.variant]
            usage.open_attempts -= 1
            for unit, amount in attempt.usage.items():
                _add(usage.open_usage, unit, -amount)
        return attempt

    def reuse_reply(self, trial: str) -> None:
        """Count that a call of an attempt was not made: its reply was recorded."""
        if (attempt := self._open.get(trial)) is not None and attempt.makes_calls is None:
            attempt.makes_calls = False

    def make_call(self, trial: str) -> None:
        """Count that an attempt, or the judge of its output, has made a call."""
        if (attempt := self._open.get(trial)) is not None:
            attempt.makes_calls = True

    def withdraw(self, trial: str) -> None:
        """Release the reserve of a trial that has failed, or that is no longer part of the run."""
        self.end(trial)
        self._usage_by_trial.pop(trial, None)

    def end_session(self, other_runs: object) -> None:
        """Count nothing as in flight any more; `other_runs` is what the other runs of the suite had spent and reserved."""
        self._has_ended = True
        self.other_runs = amounts(other_runs) or self.other_runs

    def complete(self, trial: str) -> None:
        """Release the reserve of a completed trial; the reserves of later attempts follow from its usage."""
        self._usage_by_trial.pop(trial, None)
        if (attempt := self.end(trial)) is None:
            return
        usage = self._variants[attempt.variant]
        for unit in UNITS:
            if unit not in attempt.usage:
                # What costs nothing need not be reported.
                usage.unreported_trials[unit] += usage.estimate.get(unit) != 0 and attempt.makes_calls is not False
            elif unit not in usage.reported_units:
                usage.reported_units.add(unit)
                _add(self.spent, unit, usage.uncounted_attempts.pop(unit, 0) * usage.largest[unit])


@attrs.define(eq=False)
class BudgetEvents:
    """Which events spend from the budget, or reserve and release amounts? It exists only in a run with a budget.

    It is the last of the projections: the reserve of a batch needs its lines, and that of an attempt the variant of its trial.
    """

    budget: Budget
    _trials: Mapping[str, TrialState]
    _lines: BatchLines

    def _on_attempt_started(self, event: events.AttemptStarted, _: Record) -> None:
        if event.key != REPLAYED:  # It calls nothing.
            self.budget.start(event, self._trials[event.trial].variant)
        if event.request is not None:
            self.budget.make_call(event.trial)

    def _on_noted(self, event: events.Noted, _: Record) -> None:
        if event.name == REPLAYED:
            self.budget.reuse_reply(event.trial)
        self.budget.spend(noted_usage(event.name, event.value), event.trial, event.attempt)

    def _on_attempt_succeeded(self, event: events.AttemptSucceeded | events.StepCompleted, _: Record) -> None:
        self.budget.spend(event.usage, event.trial, event.attempt)

    def _on_step_completed(self, event: events.StepCompleted, record: Record) -> None:
        self._on_attempt_succeeded(event, record)
        self._count_step(event, record)

    def _count_step(self, event: events.StepCompleted | events.StepFailed, _: Record) -> None:
        if event.phase == "task" and event.kind != "tool":
            self.budget.make_call(event.trial)

    _on_step_failed = _count_step

    def _on_step_replayed(self, event: events.StepReplayed | events.StepReused, _: Record) -> None:
        self.budget.reuse_reply(event.trial)

    _on_step_reused = _on_step_replayed

    def _on_attempt_failed(self, event: events.AttemptFailed, _: Record) -> None:
        self.budget.spend(event.usage, event.trial, event.attempt)
        self.budget.end(event.trial, interrupted=event.error == OVER_BUDGET)

    def _on_attempt_timed_out(self, event: events.AttemptTimedOut, _: Record) -> None:
        self.budget.spend(event.usage, event.trial, event.attempt)
        self.budget.end(event.trial, interrupted=True)

    def _on_attempt_interrupted(self, event: events.AttemptInterrupted, _: Record) -> None:
        self.budget.end(event.trial, interrupted=True)

    def _on_scorer_call_started(self, event: events.ScorerCallStarted, _: Record) -> None:
        if event.key != REPLAYED:
            self.budget.make_call(event.trial)

    def _on_scorer_call_failed(self, event: events.ScorerCallFailed, _: Record) -> None:
        if event.category == "timed_out":
            self.budget.spend_reserve(event.trial)

    def _on_trial_completed(self, event: events.TrialCompleted, _: Record) -> None:
        self.budget.complete(event.trial)

    def _on_trial_failed(self, event: events.TrialFailed | events.TrialWithdrawn, _: Record) -> None:
        self.budget.withdraw(event.trial)

    _on_trial_withdrawn = _on_trial_failed

    def _on_batch_prepared(self, event: events.BatchPrepared, _: Record) -> None:
        self.budget.reserve_batch(event.batch, event.reserved, self._lines.open[event.batch])

    def _on_run_stopped(self, event: events.RunStopped | events.RunFinished, _: Record) -> None:
        self.budget.end_session(event.other_runs if isinstance(event, events.RunStopped) else None)

    _on_run_finished = _on_run_stopped


def _with_judges(usage: Any) -> Iterator[tuple[str, float]]:
    if isinstance(usage, Mapping):
        for unit in UNITS:
            parts = [amount for name in (unit, f"judge.{unit}") if (amount := _amount(usage.get(name))) is not None]
            if parts:
                yield unit, sum(parts)


def round_up(amount: float) -> float:
    """Round an amount up to two significant digits."""
    if amount <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(amount)) - 1)
    return round(math.ceil(round(amount / step, 6)) * step, DECIMALS)
