"""The findings and the result of an audit, and the interface of the rules that it recomputes retries with."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import attrs

from evaljournal.journal.events import Record, RetryScheduled, RunStarted, TrialFailed
from evaljournal.replay.state.budget import BudgetUse
from evaljournal.replay.state.trial import TrialState

MAX_FINDINGS: Final = 100
"""Maximum number of findings to keep; further findings are only counted."""

RetryDecision = RetryScheduled | TrialFailed
"""The decision about a trial after an attempt without an output."""


class RetryRules(Protocol):
    """The retry rules of one session, rebuilt from its settings."""

    @property
    def caveat(self) -> str:
        """Why they may differ from the rules that were in force, such as another release; empty if they do not."""
        ...

    def settle(self, event: RetryDecision, trial: TrialState, *, probe: bool, over_budget: bool) -> RetryDecision:
        """Return the decision for a trial in this state; `event` is the recorded one. `probe`: its last attempt was a probe."""
        ...


RulesFactory = Callable[[RunStarted, Mapping[str, Any]], RetryRules | str]
"""Rebuilds a session's retry rules from the run's definition and its settings; or returns why it cannot."""


@attrs.frozen
class Finding:
    """A record that breaks a rule."""

    seq: int
    check: str
    """Name of the rule, such as `lifecycle` or `elapsed`."""
    message: str


class Findings:
    def __init__(self) -> None:
        self.findings: list[Finding] = []
        """The first `MAX_FINDINGS`."""
        self.count = 0
        """Number of all findings."""
        self.notes: dict[str, None] = {}
        """Checks that were skipped, and why, each once."""

    def add(self, record: Record, check: str, message: str) -> None:
        self.add_at(record.seq, check, message)

    def add_at(self, seq: int, check: str, message: str) -> None:
        self.count += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(seq, check, message))

    def add_all(self, record: Record, check: str, messages: Iterable[str]) -> None:
        for message in messages:
            self.add(record, check, message)

    def add_all_at(self, seqs: Iterable[int], check: str, message: str) -> None:
        for seq in seqs:
            self.add_at(seq, check, message)

    def note(self, text: str) -> None:
        """Add a note, unless there is an equal one."""
        self.notes[text] = None

    def truncate(self, length: int, count: int) -> None:
        """Remove the findings after the first `length`, and restore the count that they had then."""
        del self.findings[length:]
        self.count = count


@attrs.frozen(kw_only=True)
class TrialTotals:
    """Numbers of trials; `enqueued` is the sum of the others."""

    enqueued: int = 0
    completed: int = 0
    failed: int = 0
    withdrawn: int = 0
    open: int = 0


@attrs.frozen(kw_only=True)
class Audit:
    findings: tuple[Finding, ...]
    findings_omitted: int
    """Further findings that are only counted."""
    notes: tuple[str, ...]
    """Checks that were skipped, and why."""
    totals: TrialTotals
    decisions_reproduced: int
    """Recorded decisions about retries, budgets and stops that were recomputed, with the same result."""
    budget: Mapping[str, BudgetUse] = attrs.field(factory=dict[str, BudgetUse])
    """Unit → how much of the budget is used; empty without a budget."""

    @property
    def ok(self) -> bool:
        return not self.findings
