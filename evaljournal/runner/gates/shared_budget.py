"""The budget that the runs of a suite share.

Each run counts its own spending from its own journal; what the others have spent and reserved is added when it decides whether
an attempt may start, and is recorded with the attempt.
"""

from collections.abc import Callable, Iterator

import attrs

from evaljournal.replay import RunState
from evaljournal.replay.state.budget import DECIMALS, MAX_UNKNOWN, UNITS, Amounts, Budget


@attrs.define(eq=False)
class BudgetShare:
    """One run's part in a budget; call it in the loop of the runs."""

    _shares: "list[BudgetShare]"
    """Those of all runs of the suite."""
    _budget: Budget
    _wake: Callable[[], None] | None = None
    """Lets the run check again whether an attempt may start; None if it is not running."""
    _is_idle: Callable[[], bool] = lambda: True
    """Returns whether no attempt is in flight and no output is being scored."""
    is_blocked: bool = False
    """Whether the budget did not allow its next attempt."""
    blocked_by: Amounts | None = None
    """What the other runs had spent and reserved when it was stopped by the budget."""

    def begin(self, budget: Budget, wake: Callable[[], None], is_idle: Callable[[], bool]) -> None:
        """Start to spend from this budget, which counts the earlier sessions of the run, too."""
        self._budget, self._wake, self._is_idle = budget, wake, is_idle

    def end(self) -> None:
        """Reserve nothing more; the others may use what is left."""
        self._wake, self._is_idle, self.is_blocked = None, lambda: True, False
        self.wake_others()

    def wake_others(self) -> None:
        """Let the other runs that wait for the budget check it again: an attempt of this one has ended."""
        for share in self._others():
            if share.is_blocked and share._wake is not None:  # noqa: SLF001
                share._wake()  # noqa: SLF001

    def other_runs(self) -> Amounts:
        """Return what the other runs have spent and reserved."""
        uses = [share._use() for share in self._others()]  # noqa: SLF001
        return {unit: round(sum(use[unit] for use in uses), DECIMALS) for unit in self._budget.limits}

    @property
    def may_explore(self) -> bool:
        """Whether an attempt whose use is unknown may start: only a few such attempts may be in flight in all runs."""
        return sum(share._budget.unknown_attempts for share in self._running()) < MAX_UNKNOWN  # noqa: SLF001

    @property
    def others_may_release(self) -> bool:
        """Whether another run has reserves that it may not use up."""
        return any(not share._is_idle() for share in self._running() if share is not self)  # noqa: SLF001

    def _others(self) -> "Iterator[BudgetShare]":
        return (share for share in self._shares if share is not self)

    def _running(self) -> "Iterator[BudgetShare]":
        return (share for share in self._shares if share._wake is not None)  # noqa: SLF001

    def _use(self) -> Amounts:
        budget = self._budget
        reserves = budget.use() if self._wake is not None else {}
        return {unit: budget.spent[unit] + (reserves[unit].reserved if unit in reserves else 0.0) for unit in UNITS}


def shared_budget(states: "dict[str, RunState]") -> dict[str, BudgetShare]:
    """Return the shares of the runs in a budget, given what they have recorded so far."""
    shares: list[BudgetShare] = []
    for state in states.values():
        if (budget := state.budget) is None:
            budget = Budget()
            budget.spend(state.usage)
        shares.append(BudgetShare(shares, budget))
    return dict(zip(states, shares, strict=True))
