"""Which refusals are nobody's fault: the machine for endpoints that refuse a few calls by chance, whatever we ask for.

A limit that is met refuses many in a row, and none while we stay below it. A stray refusal comes alone, and just as often
when we ask for less. So there is a credit: every start adds a little, a refusal takes one, and while there is one to take,
nothing is learned from the refusal. What comes in numbers uses the credit up, and is a lesson for the other machines.

How much a start adds depends on where we are. Where no limit explains a refusal, since we are below whatever was
measured, or nothing was measured yet, it adds much. And what is refused there is counted, once the credit is whole again:
the part that it is of all starts is what may be refused by chance where we are above a limit, too.
"""

from attrs import define

from runner.concurrency.start import Begun

BELOW, ABOVE = 0.1, 0.02
"""Credit per start where no limit explains a refusal, and where one does. A limit that is met refuses more than that."""
CLUSTER = 2.0
"""Credit per start and part of strays, on top: chance makes clusters."""
MOST = 4.0
"""The most credit."""
UNCHECKED = 0.01
"""The part of all starts that may be refused without a test whether less are when we ask for less."""
PROOF = 3
"""Strays that prove that there are strays."""
MEMORY = 1000
"""Starts after which what was counted weighs half."""


@define(kw_only=True)
class Strays:
    """The credit, and what was refused where no limit explains it."""

    credit: float = 1.0
    last: int = 0
    """The last refused attempt that was weighed, by its place in the order of starts."""
    doubtful: int = 0
    """Refusals that no limit explains, but the credit is not whole again since: they may be the first of many."""
    strays: float = 0.0
    """Those that came alone, recent ones weighing more."""
    starts: float = 0.0
    """Starts among which they came."""

    checked: float = 0.0
    """The part that was last put to the test."""

    part: float | None = None
    """How many of the starts are refused by chance; None if nothing proves that any are."""

    def tolerate(self, begun: Begun, below: float) -> bool:
        """Decide whether a refusal teaches nothing.

        `below` is the part of the starts of late that were made where no limit explains a refusal; 1: this one too.
        """
        passed = max(begun.order - self.last, 0)
        self.last += passed
        part = self.part or 0.0
        gain, most = (BELOW, MOST) if below == 1 else (ABOVE + CLUSTER * part, min(1 + 200 * part, MOST))
        self.credit = min(self.credit + gain * passed, most)
        self.starts += passed * below
        if self.credit == most:
            self.strays, self.doubtful = self.strays + self.doubtful, 0
        if self.starts > MEMORY:
            self.starts, self.strays = self.starts / 2, self.strays / 2
        self.part = min(self.strays / self.starts, BELOW) if self.strays >= PROOF else None
        if self.credit < 1:
            self.doubtful, self.checked = 0, 0.0
            return False
        self.credit -= 1
        self.doubtful += below == 1
        return True

    def check(self) -> float | None:
        """Count anew if more is refused than before, and tell how much it was: the pace is to show whether it is a limit."""
        part = self.part
        if part is None or part <= UNCHECKED + 2 * self.checked:
            return None
        self.checked, self.strays, self.starts, self.doubtful, self.part = part, 0.0, 0.0, 0, None
        return part
