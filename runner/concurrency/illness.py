"""Whether the endpoint is ill: the breaker, for errors that are not about how much we ask.

Illness does not teach a limit. While it lasts, whatever we send is lost and spends a trial's attempts; so intake stops,
one probe at a time asks whether it is over, and afterwards the slots come back quickly, but not all in one moment.

Failures are weighed against successes among attempts that began after the first of them, because attempts that began
earlier tell of an earlier time. A trial that had failed before that, while others did not, says little when it fails again:
it may be the trial that is ill.
"""

from attrs import define, field

from runner.concurrency.start import Begun

FAILURES, FEW = 5, 3
"""Less are no illness; the second while fewer than the first are in flight, lest one trial has to fail five times."""
OUTWEIGH = 1.5
"""Failures per success that make an illness."""
SHORTEST, LONGEST = 1.0, 30.0
"""Seconds between two probes; a tenth of the outage so far in between."""
RELAPSE = 30.0
"""Seconds after a recovery in which a new illness is the old one."""
RAMP_FIRST, RAMP_STEP = 8, 3
"""Slots after an illness, and how many each success adds."""


@define(kw_only=True)
class Illness:
    """The failures being weighed, and the breaker."""

    first: int | None = None
    """Place of the first failed attempt; those after it are weighed."""
    first_t: float = 0.0
    """When it failed."""
    failures: int = 0
    successes: int = 0
    open: bool = False
    began: float = 0.0
    """When the illness began."""
    ended: float | None = None
    """When the last one was over."""
    next_probe: float = 0.0
    """When the next probe may start."""
    barrier: int = 0
    """The last attempt begun before the breaker last opened or closed; those up to it are not weighed any more."""
    ramp: int | None = None
    """The limit while the slots come back; None when they all have."""
    suspects: dict[str, int] = field(factory=dict[str, int])
    """Trials that failed and were not answered since, each with the place of the first attempt that failed."""

    def failed(self, begun: Begun, t: float, newest: int, in_flight: int) -> str | None:
        """Weigh a failure among so many in flight; tell what was seen if it opens the breaker, or keeps it open."""
        if self.open:
            if not begun.probe:
                return None
            self.next_probe = t + self._gap(t)
            return f"probe failed {t - self.began:.0f} s into the illness"
        if begun.order <= self.barrier or self._is_suspect(begun):
            return None
        if self.first is None:
            self.first, self.first_t, self.failures, self.successes = begun.order, t, 0, 0
        if begun.order < self.first:
            return None
        self.failures += 1
        needed = FAILURES if in_flight >= FAILURES else FEW
        if self.failures < needed or self.failures < OUTWEIGH * self.successes:
            return None
        if self.ended is None or t - self.ended > RELAPSE:
            self.began = self.first_t
            self.suspects.clear()  # It was not their fault; unless they fail while others are answered again.
        self.open, self.first, self.ramp, self.barrier = True, None, None, newest
        self.next_probe = t + self._gap(t)
        return f"{self.failures} failed and {self.successes} succeeded in {t - self.first_t:.1f} s"

    def _is_suspect(self, begun: Begun) -> bool:
        """Tell whether the trial had failed before what is being weighed now, and remember that it fails."""
        return self.suspects.setdefault(begun.trial, begun.order) < (begun.order if self.first is None else self.first)

    def answered(self, begun: Begun, t: float, newest: int) -> str | None:
        """Weigh an answer, a refusal included; tell what was seen if it closes the breaker."""
        self.suspects.pop(begun.trial, None)
        if self.open:
            if not begun.probe:
                return None
            self.open, self.ended, self.barrier, self.ramp = False, t, newest, RAMP_FIRST
            return f"probe answered {t - self.began:.0f} s after the illness began"
        if self.first is not None and begun.order > self.first:
            self.successes += 1
            if self.successes > 2 * self.failures:
                self.first = None  # It was no illness; a later one shall not have to outweigh these successes.
        return None

    def regain(self, limit: int) -> None:
        """Give some slots back after a success, until there are `limit` of them."""
        if self.ramp is not None:
            self.ramp += RAMP_STEP
            if self.ramp >= limit:
                self.ramp = None

    def probing(self, t: float) -> None:
        """Wait for the answer of a probe that has left, but not for ever, since it may hang."""
        self.next_probe = t + max(LONGEST / 3, self._gap(t))

    def _gap(self, t: float) -> float:
        return min(max((t - self.began) / 10, SHORTEST), LONGEST)
