"""Checks of the decisions of policies and retries: each is recomputed from the records before it."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from evaljournal.journal import Event, Record, events
from evaljournal.journal.codec import event_type
from evaljournal.journal.fact import non_default_fields
from evaljournal.replay.audit_types import Findings, Rules, Settlement
from evaljournal.replay.state import RunState

T = TypeVar("T")

POLICY_FAILED: Final = f"{events.NOTE_PREFIX}policy_failed"
"""The note that a policy raised an exception, and a fixed limit has taken over."""
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
        self._due_decisions: deque[tuple[int, events.PolicyEvent | events.Noted]] = deque()
        """Decisions that must come next, each with the record that caused it."""
        self._shared_keys: set[str] = set()
        """Rate-limit keys whose policy is shared with another run."""
        self._excluded_keys: set[str] = set()
        """Rate-limit keys whose decisions are not recomputed: these, and those whose policy failed."""
        self._excluded_trials: set[str] = set()
        """Trials whose last attempt used one of these keys."""
        self.reproduced_count = 0
        self.not_reproduced_count = 0

    def begin_session(self, rules: Rules | None) -> None:
        """Use the rules of a new session; the last decisions before a crash may be missing."""
        self._rules = rules
        self._due_decisions.clear()
        self._shared_keys.clear()
        self._excluded_keys.clear()
        self._excluded_trials.clear()

    def stop(self) -> None:
        """Recompute no more decisions of this session."""
        self._rules = None
        self._due_decisions.clear()

    def share(self, key: str) -> None:
        """Recompute no more decisions of a rate-limit key whose policy is shared with another run."""
        self._shared_keys.add(key)
        self._exclude(key)

    def fail(self, key: str, record: Record) -> None:
        """Recompute no more decisions of a rate-limit key whose policy failed; a fixed limit has taken over."""
        self._findings.note(f"decisions after record {record.seq:,} were not recomputed: the policy failed")
        self._exclude(key)

    def _exclude(self, key: str) -> None:
        self._excluded_keys.add(key)
        self._due_decisions = deque((seq, decision) for seq, decision in self._due_decisions if _key_of(decision) != key)

    def is_shared(self, key: str) -> bool:
        """Return whether the policy of a rate-limit key is shared with another run."""
        return key in self._shared_keys

    def start(self, event: events.AttemptStarted) -> None:
        """Keep whether the decisions about an attempt are recomputed: they may settle its trial."""
        (self._excluded_trials.add if event.key in self._excluded_keys else self._excluded_trials.discard)(event.trial)

    def inform(self, record: Record, key: str | None) -> None:
        """Pass a record to the policy of a rate-limit key, unless its decisions are not recomputed."""
        if self._rules is None or key is None or key in self._excluded_keys:
            return
        self.require_no_due(record)
        rules = self._rules
        if rules is not None:  # Otherwise a decision was missing.
            try:
                self._expect(record, rules.take(record))
            except Exception as exc:  # noqa: BLE001  # the run's own policy may have failed here, too
                self._excluded_trials.add(getattr(record.event, "trial", ""))
                error = f"{type(exc).__name__}: {exc}"
                self._expect(record, [events.Noted(name=POLICY_FAILED, value={"key": key, "error": error})])

    def _expect(self, record: Record, decisions: Sequence[events.PolicyEvent | events.Noted]) -> None:
        self._due_decisions.extend((record.seq, decision) for decision in decisions)

    def require_no_due(self, record: Record) -> None:
        """Report a decision that was due and is missing before this record."""
        if self._due_decisions:
            seq, decision = self._due_decisions[0]
            message = f"missing before this record: after record {seq:,} the policy decides {_decision_text(decision)}"
            self._report_decision(record, message)

    def check_start(self, subject: str, key: str, record: Record) -> None:
        """Check whether the policy of a rate-limit key allows a start."""
        rules = self._rules
        if rules is None or key in self._excluded_keys:
            return
        block_reason = self._call_rules(record, lambda: rules.block_reason(key, record.t + TIME_TOLERANCE), "")
        if block_reason:
            self._report_decision(record, f"{subject} starts, but the policy does not allow it: {block_reason}")

    def check_policy(self, event: events.PolicyEvent, record: Record) -> None:
        """Check a decision of a policy."""
        rules = self._rules
        if rules is None:
            return
        if event.key in self._excluded_keys:
            self.not_reproduced_count += 1
            return
        if event.key not in self._state.limits:
            self._expect(record, [self._call_rules(record, lambda: rules.begin(event.key), event)])
        elif not self._due_decisions:
            self._expect(record, self._call_rules(record, lambda: rules.elapse(event.key, record.t), ()))
        if not self._due_decisions:
            self._report_decision(record, f"the policy does not decide {_decision_text(event)}")
            return
        seq, expected = self._due_decisions.popleft()
        if expected == event:
            self.reproduced_count += 1
        else:
            message = f"the policy decides {_decision_text(expected)}, but the record is {_decision_text(event)}"
            self._report_decision(record, f"after record {seq:,} {message}")

    def check_settlement(self, event: Settlement, record: Record) -> None:
        """Check the decision to retry a trial or to let it fail."""
        rules, trial = self._rules, self._state.trials[event.trial]
        if rules is None:
            return
        over_budget = self._state.is_over_budget(event.trial)
        expected = self._call_rules(record, lambda: rules.settle(event, trial, over_budget=over_budget), event)
        if expected == event:
            self.reproduced_count += 1
        elif event.trial in self._excluded_trials:
            self.not_reproduced_count += 1  # This journal does not record whether the attempt was a probe.
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
        self._report_difference(record, "policy", message)
        decisions = f"decisions of session {len(self._state.sessions)} after record {record.seq:,}"
        self._findings.note(f"{decisions} were not recomputed: they depend on it")
        self.stop()

    def _report_difference(self, record: Record, check: str, message: str) -> None:
        caveat = self._rules.caveat if self._rules is not None else ""
        if caveat:
            self._findings.note(f"record {record.seq:,}: {message}; but {caveat}")
        else:
            self._findings.add(record, check, message)


def _key_of(decision: events.PolicyEvent | events.Noted) -> str:
    if isinstance(decision, events.Noted):
        return str(decision.value["key"]) if isinstance(decision.value, dict) else ""
    return decision.key


def _decision_text(event: Event) -> str:
    return " ".join([event_type(event), *(f"{name}={value!r}" for name, value in non_default_fields(event).items())])
