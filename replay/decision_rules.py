"""Decisions of policies and retries: each is recomputed from the records before it, and compared with the recorded one."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from journal import Event, Record, events
from journal.codec import event_type
from journal.fact import non_default_fields
from replay.audit_types import Rules, Settlement
from replay.findings import Findings
from replay.state import RunState

T = TypeVar("T")

TIME_TOLERANCE: Final = 2e-6
"""Seconds by which two times may differ, since each is rounded to the microsecond."""


class DecisionRules:
    """Checks the decisions of each session."""

    def __init__(self, state: RunState, findings: Findings) -> None:
        self._state = state
        """The state before the record that is checked."""
        self._findings = findings
        self._rules: Rules | None = None
        """None if decisions are not recomputed."""
        self._due: deque[tuple[int, events.PolicyEvent]] = deque()
        """Decisions that must come next, each with the record that caused it."""
        self._shared: set[str] = set()
        """Rate-limit keys whose policy is shared with another run."""
        self._shared_trials: set[str] = set()
        """Trials whose last attempt used one of these keys."""
        self.reproduced = 0
        self.not_reproduced = 0

    def begin_session(self, rules: Rules | None) -> None:
        """Use the rules of a new session; the last decisions before a crash may be missing."""
        self._rules = rules
        self._due.clear()
        self._shared.clear()
        self._shared_trials.clear()

    def stop(self) -> None:
        """Recompute no more decisions of this session."""
        self._rules = None
        self._due.clear()

    def share(self, key: str) -> None:
        """Recompute no more decisions of a rate-limit key whose policy is shared with another run."""
        self._shared.add(key)
        self._due = deque((seq, decision) for seq, decision in self._due if decision.key != key)

    def is_shared(self, key: str) -> bool:
        """Return whether the policy of a rate-limit key is shared with another run."""
        return key in self._shared

    def start(self, event: events.AttemptStarted) -> None:
        """Add an attempt: its trial may be settled by a shared policy."""
        (self._shared_trials.add if event.key in self._shared else self._shared_trials.discard)(event.trial)

    def inform(self, record: Record, key: str | None) -> None:
        """Pass a record to the policy of a rate-limit key, unless the policy is shared with another run."""
        if self._rules is None or key is None or key in self._shared:
            return
        self.require_no_due(record)
        rules = self._rules
        if rules is not None:
            self._expect(record, self._call_rules(record, lambda: rules.take(record), ()))

    def _expect(self, record: Record, decisions: Sequence[events.PolicyEvent]) -> None:
        self._due.extend((record.seq, decision) for decision in decisions)

    def require_no_due(self, record: Record) -> None:
        """Report a decision that was due and is missing before this record."""
        if self._due:
            seq, expected = self._due[0]
            self._report_decision(
                record, f"missing before this record: after record {seq:,} the policy decides {_decision_text(expected)}"
            )

    def check_start(self, subject: str, key: str, record: Record) -> None:
        """Check whether the policy of a rate-limit key allows a start."""
        rules = self._rules
        if rules is None or key in self._shared:
            return
        block_reason = self._call_rules(record, lambda: rules.block_reason(key, record.t + TIME_TOLERANCE), "")
        if block_reason:
            self._report_decision(record, f"{subject} starts, but the policy does not allow it: {block_reason}")

    def check_policy(self, event: events.PolicyEvent, record: Record) -> None:
        """Check a decision of a policy."""
        rules = self._rules
        if rules is None:
            return
        if event.key in self._shared:
            self.not_reproduced += 1
            return
        if event.key not in self._state.limits:
            self._expect(record, [self._call_rules(record, lambda: rules.begin(event.key), event)])
        elif not self._due:
            self._expect(record, self._call_rules(record, lambda: rules.elapse(event.key, record.t), ()))
        if not self._due:
            self._report_decision(record, f"the policy does not decide {_decision_text(event)}")
            return
        seq, expected = self._due.popleft()
        if expected == event:
            self.reproduced += 1
        else:
            message = f"the policy decides {_decision_text(expected)}, but the record is {_decision_text(event)}"
            self._report_decision(record, f"after record {seq:,} {message}")

    def check_settlement(self, event: Settlement, record: Record) -> None:
        """Check whether a trial had to be retried or to fail."""
        rules, trial = self._rules, self._state.trials[event.trial]
        if rules is None:
            return
        over_budget = self._state.is_over_budget(event.trial)
        expected = self._call_rules(record, lambda: rules.settle(event, trial, over_budget=over_budget), event)
        if expected == event:
            self.reproduced += 1
        elif event.trial in self._shared_trials:
            self.not_reproduced += 1  # This journal does not record whether the attempt was a probe.
        else:
            message = f"the retry rules decide {_decision_text(expected)}, but the record is {_decision_text(event)}"
            self._report_difference(record, "retry", f"after attempt {trial.attempts} of {event.trial!r} {message}")

    def _call_rules(self, record: Record, call: Callable[[], T], default: T) -> T:
        try:
            return call()
        except Exception as exc:  # noqa: BLE001  # forged values must not end an audit
            self._report_decision(record, f"the rules cannot process this record ({type(exc).__name__}: {exc})")
            return default

    def _report_decision(self, record: Record, message: str) -> None:
        """Report a wrong decision, once per session: every later decision depends on it."""
        session = len(self._state.sessions)
        self._report_difference(record, "policy", message)
        self._findings.note(
            f"decisions of session {session} after record {record.seq:,} were not recomputed: they depend on it"
        )
        self.stop()

    def _report_difference(self, record: Record, check: str, message: str) -> None:
        caveat = self._rules.caveat if self._rules is not None else ""
        if caveat:
            self._findings.note(f"record {record.seq:,}: {message}; but {caveat}")
        else:
            self._findings.add(record, check, message)


def _decision_text(event: Event) -> str:
    return " ".join([event_type(event), *(f"{name}={value!r}" for name, value in non_default_fields(event).items())])
