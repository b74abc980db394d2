"""The policies and retries of a session, rebuilt from its journal, so that an audit can recompute their decisions."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from evaljournal.journal import Record, events
from evaljournal.replay import TrialState
from evaljournal.replay.audit_types import Settlement
from evaljournal.runner.concurrency import POLICIES
from evaljournal.runner.concurrency.policy import Change, Policy
from evaljournal.runner.concurrency.steering import CallEvent, Steering, call_id
from evaljournal.runner.engine.environment import installed_version
from evaljournal.runner.engine.rate_limits import new_policy, recorded_policy
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.retry import Retry, settle


def session_rules(run_started: events.RunStarted, settings: Mapping[str, Any], trials: int) -> "SessionRules | str":
    """Return the rules of a session, or why they cannot be rebuilt."""
    name, slots, seed = recorded_policy(settings), settings.get("slots"), settings.get("seed")
    if name is None or not isinstance(slots, int) or not isinstance(seed, int):
        return "the journal does not record the policy and the seed"
    if name not in POLICIES:
        return f"policy {name!r} is not a built-in policy"
    try:
        policy, retry = partial(_policy_of_key, name, slots, settings, trials), Retry.from_settings(settings)
        policy("")
    except (ValueError, TypeError, KeyError, UsageError) as exc:
        return f"invalid settings ({exc})"
    return SessionRules(policy, retry, seed, _caveat(run_started))


def _policy_of_key(name: str, slots: int, settings: Mapping[str, Any], trials: int, key: str) -> Policy:
    """Return the policy of a rate-limit key; a scorer may have slots of its own."""
    scorer_slots: Mapping[str, int] = settings.get("scorer_slots", {})
    if key.startswith(events.SCORER_PREFIX):
        slots = scorer_slots.get(key.removeprefix(events.SCORER_PREFIX), slots)
    return new_policy(name, slots, settings, trials)


def _caveat(run_started: events.RunStarted) -> str:
    """Return why recomputed decisions may differ: another release may have other policies."""
    version = installed_version()
    recorded_version = run_started.environment.get("evaljournal", version)
    if recorded_version == version or not version:
        return ""
    return f"the run was started by evaljournal {recorded_version}, and this is {version}; only that release can reproduce it"


_FINAL_EVENTS: Final = (events.AttemptSucceeded, events.TrialScored, events.ScoringFailed)


class SessionRules:
    """The policies and retries of one session; an audit's `Rules`."""

    def __init__(self, policy: Callable[[str], Policy], retry: Retry, seed: int, caveat: str) -> None:
        self._new_policy = policy
        self._steerings: dict[str, Steering] = {}
        """Rate-limit key → its steering."""
        self._last_steerings: dict[str, Steering] = {}
        """Trial → the steering of its last attempt until it succeeds; scorer call → its steering until it returns."""
        self._retry = retry
        self._seed = seed
        self.caveat = caveat

    def begin(self, key: str) -> events.PolicyEvent:
        """Return the first limit of a rate-limit key."""
        steering = self._steerings[key] = Steering(self._new_policy(key), patience=self._retry.rate_limits, key=key)
        return steering.begin()

    def take(self, record: Record) -> Sequence[Change]:
        """Pass the start or end of an attempt or a call to its policy; return the policy's decisions."""
        event = record.event
        name: str = getattr(event, "trial", "")
        if isinstance(event, events.AttemptStarted):
            self._last_steerings[name] = self._steerings[event.key]
        elif isinstance(event, CallEvent):
            name = call_id(name, event.scorer.partition(".")[0])
            if isinstance(event, events.ScorerCallStarted):
                self._last_steerings[name] = self._steerings[event.key]
        steering = self._last_steerings.get(name)
        if isinstance(event, _FINAL_EVENTS):
            self._last_steerings.pop(name, None)
        return [] if steering is None else steering.take(record)

    def elapse(self, key: str, t: float) -> Sequence[Change]:
        """Return the decisions of the policy at time `t`, without a new record."""
        return self._steerings[key].elapse(t) if key in self._steerings else []

    def block_reason(self, key: str, t: float) -> str:
        """Return why no attempt or call may start; empty if one may."""
        if key not in self._steerings:
            return "no limit was set before"
        permit = self._steerings[key].may_start(t)
        if permit.open:
            return ""
        return "the limit is reached" if permit.check_at is None else f"the next may start at {permit.check_at:.6f} s"

    def settle(self, event: Settlement, trial: TrialState, *, over_budget: bool) -> Settlement:
        """Return the event that the rules require in place of the recorded `event`."""
        name = event.trial
        probe = name in self._last_steerings and name in self._last_steerings[name].free_probes
        history = trial.retry_history
        is_fatal = trial.stage == "unsettled" and history is not None and history.category == "fatal"
        stop_run = is_fatal and not isinstance(
            event, events.TrialFailed
        )  # Not recorded; of fatal failures, only these are retried.
        return settle(
            name,
            trial,
            self._retry,
            self._seed,
            probe=probe,
            stop_run=stop_run,
            over_budget=over_budget,
            ambiguous=isinstance(event, events.TrialFailed)
            and event.reason == "ambiguous",  # An option, which is not recorded.
        )
