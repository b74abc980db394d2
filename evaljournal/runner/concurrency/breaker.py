"""The circuit breaker, for errors that do not depend on the load: 5xx, connection errors, timeouts, and bans.

During an outage every call would fail and cost its trial a retry. So only single probes start, with growing gaps, until one is
answered.

The breaker opens after several failures of calls since which no later one was accepted. Sporadic errors do not open it.

**An input that always fails is no outage.** A trial is the cause of its own failures if a call was answered since the first of
them, and either a call that was sent later was answered, or the trial has failed several times. Its failures do not count,
and if too few others are left, the breaker closes. In an outage, where nothing is answered, no trial is a cause.

**Some endpoints fail a share of all calls at any load.** An outage shows in many calls together. So failures that later calls
did not share are counted, and with many of them, more in a row are needed for an outage, or for an overload by timeouts. They
count once a call is answered: when an outage begins, all calls in flight fail, also those sent before an answered one.
"""

from typing import Final

from attrs import define, field

from evaljournal.replay.state.pauses import PROBE_PATIENCE
from evaljournal.runner.concurrency.pace import PLATEAU_LONGEST
from evaljournal.runner.concurrency.start import SEVERAL, WINDOW, Start

PROBE_SOONEST: Final = 1.0
"""Minimum seconds between two probes."""
_PROBES, _LIMITED_PROBES = 10, 4
"""The seconds between two probes are the outage so far divided by this. Rate-limited ones may use up quota."""
_WEIGHT: Final = 1 / (SEVERAL * WINDOW)
"""Weight of one call in the share of single failures: it follows a change within so many calls."""


@define
class _FailedTrial:
    """A trial that failed and was not answered since."""

    first_start: int
    t: float
    """When its first failure began."""
    failures: int = 0


@define(kw_only=True)
class Breaker:
    """The failures since the last accepted call, and the outage if there is one."""

    outage: str = ""
    """`unavailable`, `no_response`, or `all_rate_limited`: every call is rate limited at any pace; empty if it is closed."""
    outage_start: float = 0.0
    next_probe: float = 0.0
    barrier: int = 0
    """Failures of starts up to this one are not counted, and answers to them do not end an outage."""
    failures: dict[int, Start] = field(factory=dict[int, Start])
    """Failed starts that no accepted start has followed, whose trials are not the cause."""
    failed_trials: dict[str, _FailedTrial] = field(factory=dict[str, _FailedTrial])
    newest_answered: int = 0
    """The newest start that was answered."""
    last_answer: float = 0.0
    """When a call was last answered."""
    single_share: float = 0.0
    """Share of calls that failed although calls that were sent later were accepted. It fades with every answer."""
    unshared: int = 0
    """Such failures since the last answer, which do not count yet."""

    def is_cause(self, trial: str) -> bool:
        """Return whether a trial is the cause of its failures; that is unknown without an answer since the first of them."""
        failed = self.failed_trials.get(trial)
        if failed is None:
            return False
        return failed.t < self.last_answer and (failed.first_start <= self.newest_answered or failed.failures >= SEVERAL)

    def count(self, start: Start, t: float, newest_accepted: int) -> int:
        """Count a failure that may be one of an outage; return how many there are.

        `t` is when it began: for a timeout, when the call was sent, because an answer since then shows that others were served.
        """
        failed = self.failed_trials.setdefault(start.trial, _FailedTrial(start.order, t))
        failed.failures += 1
        if newest_accepted and self.is_cause(start.trial):
            self._count_single(1)
        elif start.order <= max(newest_accepted, self.barrier):
            self.unshared += 1
        else:
            self.failures[start.order] = start
        return len(self.failures)

    def accept(self, newest_accepted: int) -> None:
        """Forget the failures since which a call was accepted, and those that their trials have caused."""
        failures = {n: start for n, start in self.failures.items() if n > newest_accepted and not self.is_cause(start.trial)}
        self.unshared += len(self.failures) - len(failures)
        self.failures = failures

    def _count_single(self, failures: int) -> None:
        self.single_share = 1 - (1 - self.single_share) * (1 - _WEIGHT) ** failures

    def in_a_row(self, count: int) -> float:
        """Return how many failures in a row are as improbable as `count` are where hardly any single call fails."""
        return count / (1 - self.single_share)

    def open_for_failures(self, t: float) -> str:
        """Open the breaker because of the failures; return the evidence."""
        first_start = min(start.t for start in self.failures.values())
        # A call that was sent after the newest failed one shows that the endpoint is available, also if it is in flight now.
        self.begin("unavailable", first_start, t, max(self.failures))
        return f"{len(self.failures)} calls failed in {t - first_start:.1f} s, and none was answered"

    def begin(self, outage: str, outage_start: float, t: float, newest_start: int, *, probe_at: float | None = None) -> None:
        """Open the breaker: only probes may start."""
        self.outage, self.outage_start, self.barrier, self.unshared = outage, outage_start, newest_start, 0
        self.next_probe = t + self._gap(t) if probe_at is None else max(probe_at, t)

    def record_probe(self, t: float) -> None:
        """Wait for the probe, for a limited time: it may hang."""
        self.next_probe = t + max(PROBE_PATIENCE, self._gap(t))

    def record_failed_probe(self, t: float, *, not_before: float = 0.0) -> str:
        """Schedule the next probe; return the evidence."""
        self.next_probe = max(t + self._gap(t), not_before)
        return f"probe failed, {t - self.outage_start:.0f} s into the outage"

    def answer(self, start: Start, t: float, newest_start: int) -> str | None:
        """Record that a call was answered; return the evidence if that closes the breaker."""
        self.newest_answered, self.last_answer = max(self.newest_answered, start.order), t
        if self.failed_trials:
            self.failed_trials.pop(start.trial, None)
        self._count_single(self.unshared)
        self.unshared = 0
        self.single_share -= _WEIGHT * self.single_share
        if self.outage and start.order > self.barrier:
            return self._close(newest_start, f"call answered {t - self.outage_start:.0f} s after the outage began")
        return self.close_without_outage(newest_start) if self.failures else None

    def close_without_outage(self, newest_start: int) -> str | None:
        """Close the breaker if too few failures are left whose trials are not the cause; return the evidence."""
        self.accept(self.newest_answered)
        if self.outage != "unavailable" or len(self.failures) >= SEVERAL:
            return None
        return self._close(newest_start, "only inputs fail that have failed while others were answered")

    def _close(self, newest_start: int, evidence: str) -> str:
        self.outage, self.barrier = "", newest_start
        self.failures.clear()
        return evidence

    def _gap(self, t: float) -> float:
        probes = _LIMITED_PROBES if self.outage == "all_rate_limited" else _PROBES
        return min(max((t - self.outage_start) / probes, PROBE_SOONEST), PLATEAU_LONGEST)
