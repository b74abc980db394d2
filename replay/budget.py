"""The budget of a run: the amounts spent and reserved, and whether another attempt may start.

The engine and the audit use this one rule. It depends on recorded facts only: settings, reserves and usage.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs

from replay.usage import is_amount

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
_DECIMALS: Final = 9
"""Decimals of a sum; costs are recorded with as many, so sums are exact."""

_NAMES_IN_USAGE: Final = tuple((unit, f"judge.{unit}") for unit in UNITS)

Amounts: TypeAlias = dict[str, float]
"""Unit → amount."""


def amounts(value: object, *, zero: bool = True) -> Amounts:
    """Return the amounts in a JSON value, without those of 0 if `zero` is False; any other content is ignored."""
    if not isinstance(value, Mapping):
        return {}
    pairs = ((unit, _amount(value.get(unit))) for unit in UNITS)
    return {unit: amount for unit, amount in pairs if amount is not None and (zero or amount > 0)}


def _amount(value: object) -> float | None:
    return value if value is not None and is_amount(value) and math.isfinite(value) and value >= 0 else None


def _zero_amounts() -> Amounts:
    return dict.fromkeys(UNITS, 0.0)


@attrs.define(eq=False)
class _OpenAttempt:
    """An attempt that is in flight, or whose output is being scored."""

    number: int
    variant: str
    reserve: Amounts
    usage: Amounts = attrs.field(factory=dict[str, float])

    def unused_reserve(self, unit: str) -> float:
        return max(0.0, round(self.reserve.get(unit, 0.0) - self.usage.get(unit, 0.0), _DECIMALS))


@attrs.define(eq=False)
class _VariantUsage:
    maximum: Amounts = attrs.field(factory=dict[str, float])
    """The most that one attempt has used, its judges included."""
    reported_units: set[str] = attrs.field(factory=set[str])
    """Units that a completed trial has reported."""
    unreported_trials: Counter[str] = attrs.field(factory=Counter[str])
    """Unit → trials completed in this session without it."""
    interrupted_attempts: Counter[str] = attrs.field(factory=Counter[str])
    """Unit → interrupted attempts without a reserve; each may have used as much as the first attempt that reports it."""
    last_reserve: Amounts | None = None
    """The reserve of the last attempt that was started with a budget."""


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
    """Recorded usage: of attempts, steps and judges."""
    possibly_paid: float
    """Unused reserves of interrupted and timed-out calls, which may have been paid for without a report."""
    reserved: float
    """Unused reserves of attempts in flight and of outputs that are not fully scored."""
    overshoot: float
    """The worst possible overshoot: by how much the sum of the three exceeds the limit."""


@attrs.define(eq=False)
class Budget:
    """The amounts that a run has spent and reserved."""

    limits: Amounts = attrs.field(factory=dict[str, float])
    """The budget of the run; empty if it has none."""
    trial_limits: Amounts = attrs.field(factory=dict[str, float])
    """The budget of each trial; empty if they have none."""
    spent: Amounts = attrs.field(factory=_zero_amounts)
    possibly_paid: Amounts = attrs.field(factory=_zero_amounts)
    unused_reserves: Amounts = attrs.field(factory=_zero_amounts)
    """Reserves that are not used yet, of attempts in flight and of outputs that are not fully scored."""
    has_ended: bool = False
    """Whether the session has ended with a final record, so that nothing is in flight."""
    _open: dict[str, _OpenAttempt] = attrs.field(factory=dict[str, _OpenAttempt])
    """Trial → its attempt in flight or being scored."""
    _variants: dict[str, _VariantUsage] = attrs.field(factory=dict[str, _VariantUsage])
    _usage_by_trial: dict[str, Amounts] = attrs.field(factory=dict[str, Amounts])
    """Trial that is not done → usage of its attempts; only with `trial_limits`."""

    def reserve(self, variant: str, estimate: Mapping[str, float]) -> Amounts:
        """Return the reserve of the next attempt: the most that one has used; before the first report, at least the estimate.

        A unit that is neither reported nor estimated is missing.
        """
        usage, reserve = self._variants.get(variant) or _VariantUsage(), {}
        for unit in self.limits:
            if unit in usage.reported_units:
                reserve[unit] = usage.maximum[unit]
            elif unit in estimate:
                reserve[unit] = max(estimate[unit], usage.maximum.get(unit, 0.0))
        return reserve

    def block(self, variant: str, reserve: Mapping[str, float]) -> Block | None:
        """Return why an attempt with this reserve may not start; None if it may."""
        usage = self._variants.get(variant) or _VariantUsage()
        for unit, limit in self.limits.items():
            commitment, unit_reserve = self._commitment(unit), reserve.get(unit)
            if unit not in usage.reported_units and usage.unreported_trials[unit] >= MAX_UNREPORTED:
                return Block(reason="unreported", unit=unit)
            if round(commitment + (unit_reserve or 0.0), _DECIMALS) > limit or (unit_reserve is None and commitment >= limit):
                return Block(reason="limit", unit=unit, reserve=unit_reserve)
            if unit_reserve is None and self._unknown_in_flight(variant, unit) >= MAX_UNKNOWN:
                return Block(reason="unknown", unit=unit)
        return None

    def excess(self) -> Block | None:
        """Return why no attempt may start if the budget is exceeded already; None if it is not."""
        exceeded_units = (unit for unit, limit in self.limits.items() if self._commitment(unit) > limit)
        return next((Block(reason="limit", unit=unit) for unit in exceeded_units), None)

    def over_trial_limit(self, trial: str, usage: object = None) -> Amounts:
        """Return the units in which a trial exceeds the budget per trial, with the usage of its attempts.

        `usage` is that of the attempt in flight, if it is not recorded yet.
        """
        if not self.trial_limits:
            return {}
        parts = self._usage_by_trial.get(trial, {}), amounts(usage)
        sums = {unit: round(sum(part.get(unit, 0.0) for part in parts), _DECIMALS) for unit in self.trial_limits}
        return {unit: amount for unit, amount in sums.items() if amount > self.trial_limits[unit]}

    def blocks(self) -> Iterator[Block]:
        """Yield why the next attempt of each variant may not start, estimated from the reserve of its last one."""
        for name, usage in self._variants.items():
            reserve = usage.last_reserve
            if reserve is not None and (block := self.block(name, self.reserve(name, reserve))) is not None:
                yield block

    @property
    def has_recorded_reserves(self) -> bool:
        """Whether the reserves of all variants follow from recorded usage, not from estimates."""
        return bool(self._variants) and all(usage.reported_units.issuperset(self.limits) for usage in self._variants.values())

    def use(self) -> dict[str, BudgetUse]:
        """Return how much of the budget is used, by unit."""
        return {unit: self._use(unit, limit) for unit, limit in self.limits.items()}

    def _use(self, unit: str, limit: float) -> BudgetUse:
        spent, possibly_paid = self.spent[unit], self.possibly_paid[unit]
        reserve = 0.0 if self.has_ended else self.unused_reserves[unit]
        overshoot = max(0.0, round(spent + possibly_paid + reserve - limit, _DECIMALS))
        return BudgetUse(limit=limit, spent=spent, possibly_paid=possibly_paid, reserved=reserve, overshoot=overshoot)

    def more_trials(self, done: int) -> int | None:
        """Return how many more trials fit into the budget, at the average of those that are done; None if unknown."""
        counts = [
            int(min(max(0.0, limit - self.spent[unit] - self.possibly_paid[unit]) / self.spent[unit] * done, _MAX_TRIALS))
            for unit, limit in self.limits.items()
            if done and self.spent[unit] > 0
        ]
        return min(counts, default=None)

    def larger_limits(self, open_trials: int, done: int) -> Amounts:
        """Return a larger budget, in round numbers, that is probably enough for the open trials.

        Twice the budget if only the first estimate is known and did not fit. Empty if a larger budget does not help.
        """
        blocks, limits = list(self.blocks()), dict[str, float]()
        if any(block.reason == "unreported" for block in blocks):
            return {}
        for unit in dict.fromkeys(block.unit for block in blocks if block.reason == "limit"):
            amount_used = self.spent[unit] + self.possibly_paid[unit]
            average = self.spent[unit] / done if done else 0.0
            reserve = max((usage.last_reserve or {}).get(unit, 0.0) for usage in self._variants.values())
            limits[unit] = round_up(max(amount_used + reserve + max(1, open_trials) * average, amount_used + 2 * reserve))
        return limits or {unit: round_up(2 * limit) for unit, limit in self.limits.items()}

    def begin_session(self, settings: Mapping[str, Any], being_scored: Iterable[str]) -> None:
        """Use the limits of a session; `being_scored` are the trials with a scorer call in flight before it."""
        self.has_ended = False
        self.limits = amounts(settings.get("budget"), zero=False)
        self.trial_limits = amounts(settings.get("budget_per_trial"), zero=False)
        for trial in being_scored:
            self.interrupt_call(trial)
        for usage in self._variants.values():
            usage.unreported_trials.clear()

    def start(self, trial: str, number: int, variant: str, reserve: Any) -> None:
        """Reserve the amounts of an attempt; `reserve` is the recorded value."""
        usage = self._usage_of(variant)
        attempt = self._open[trial] = _OpenAttempt(number, variant, amounts(reserve))
        if reserve is not None:
            usage.last_reserve = dict(attempt.reserve)
        for unit in usage.reported_units:
            attempt.reserve.setdefault(unit, usage.maximum[unit])
        for unit, amount in attempt.reserve.items():
            self._add(self.unused_reserves, unit, amount)

    def spend(self, usage: Any, trial: str = "", number: int = 0) -> None:
        """Count recorded usage, also against the reserve of its attempt, if that is in flight or being scored."""
        if not isinstance(usage, Mapping):
            return
        attempt = self._open.get(trial)
        if attempt is not None and attempt.number != number:
            attempt = None
        for names in _NAMES_IN_USAGE:
            unit, judge_unit = names
            if unit not in usage and judge_unit not in usage:
                continue
            reported_amounts = [amount for name in names if (amount := _amount(usage.get(name))) is not None]
            if not reported_amounts:
                continue
            amount = sum(reported_amounts)
            self._add(self.spent, unit, amount)
            if attempt is not None:
                old_reserve = attempt.unused_reserve(unit)
                self._add(attempt.usage, unit, amount)
                self._add(self.unused_reserves, unit, attempt.unused_reserve(unit) - old_reserve)
                maximum = self._usage_of(attempt.variant).maximum
                maximum[unit] = max(maximum.get(unit, 0.0), attempt.usage[unit])
                if self.trial_limits:
                    self._add(self._usage_by_trial.setdefault(trial, {}), unit, amount)

    def interrupt_call(self, trial: str) -> None:
        """Count the unused reserve of an attempt as possibly paid: a scorer call ended without reporting its usage."""
        if (attempt := self._open.get(trial)) is not None:
            for unit in UNITS:
                self._add(self.possibly_paid, unit, attempt.unused_reserve(unit))

    def interrupt(self, trial: str) -> None:
        """Release the reserve of an attempt that was interrupted or timed out; count the unused part as possibly paid."""
        if (attempt := self.release(trial)) is None:
            return
        interrupted_attempts = self._usage_of(attempt.variant).interrupted_attempts
        for unit in UNITS:
            if unit in attempt.reserve:
                self._add(self.possibly_paid, unit, attempt.unused_reserve(unit))
            else:
                interrupted_attempts[unit] += 1

    def complete(self, trial: str) -> None:
        """Release the reserve of a completed trial; the reserves of later attempts follow from its usage."""
        self._usage_by_trial.pop(trial, None)
        if (attempt := self.release(trial)) is None:
            return
        usage = self._usage_of(attempt.variant)
        for unit in UNITS:
            if unit in attempt.usage:
                self._report(attempt.variant, usage, unit)
            elif attempt.reserve.get(unit) != 0:
                usage.unreported_trials[unit] += 1

    def drop(self, trial: str) -> None:
        """Release the reserve of a trial that failed or was withdrawn."""
        self.release(trial)
        self._usage_by_trial.pop(trial, None)

    def _report(self, variant: str, usage: _VariantUsage, unit: str) -> None:
        """Process the first report of a unit: attempts that were started without a reserve get one."""
        if unit in usage.reported_units:
            return
        usage.reported_units.add(unit)
        maximum = usage.maximum[unit]
        self._add(self.possibly_paid, unit, usage.interrupted_attempts.pop(unit, 0) * maximum)
        for attempt in self._open.values():
            if attempt.variant == variant and unit not in attempt.reserve:
                attempt.reserve[unit] = maximum
                self._add(self.unused_reserves, unit, attempt.unused_reserve(unit))

    def release(self, trial: str) -> _OpenAttempt | None:
        """Release the reserve of an attempt; return the attempt, or None if the trial has none."""
        attempt = self._open.pop(trial, None)
        if attempt is not None:
            for unit in attempt.reserve:
                self._add(self.unused_reserves, unit, -attempt.unused_reserve(unit))
        return attempt

    def _usage_of(self, variant: str) -> _VariantUsage:
        usage = self._variants.get(variant)
        if usage is None:
            usage = self._variants[variant] = _VariantUsage()
        return usage

    def _commitment(self, unit: str) -> float:
        return round(self.spent[unit] + self.possibly_paid[unit] + self.unused_reserves[unit], _DECIMALS)

    def _unknown_in_flight(self, variant: str, unit: str) -> int:
        return sum(attempt.variant == variant and unit not in attempt.reserve for attempt in self._open.values())

    @staticmethod
    def _add(sums: Amounts, unit: str, amount: float) -> None:
        sums[unit] = round(sums.get(unit, 0.0) + amount, _DECIMALS)


def round_up(amount: float) -> float:
    """Round an amount up to two significant digits."""
    if amount <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(amount)) - 1)
    return round(math.ceil(round(amount / step, 6)) * step, _DECIMALS)
