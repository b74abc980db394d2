"""What a session decided by, made again from what its journal says of it.

An audit asks here what the policy and the retries would have decided; a simulation asks what they were.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from journal import Record
from journal.events import (
    SCORER_PREFIX,
    AttemptStarted,
    PolicyEvent,
    RetryScheduled,
    RunStarted,
    ScorerCallStarted,
    TrialFailed,
)
from journal.release import release
from replay import TrialState
from replay.auditing import Settled
from runner.concurrency import AIMD_NUMBERS, POLICIES, Aimd, CallEvent, Policy, Steering, call_id
from runner.engine.changes import ended, spent
from runner.errors import UsageError
from runner.retries.retry import NUMBERS, Again, OneBudget, Retry, chance


def recorded_policy(settings: Mapping[str, Any]) -> str | None:
    """Find by which policy a session was run; None if its journal does not say."""
    policy = settings.get("policy")
    return policy if isinstance(policy, str) else None


def recorded_retry(settings: Mapping[str, Any]) -> Retry:
    """Make the retries again that were in force; how exceptions were told apart is left out: what came of it is recorded."""
    given: Mapping[str, Any] = settings.get("retry", {})
    try:
        numbers = {name: given[name] for name in NUMBERS}
        return OneBudget(**numbers, total=given["total"]) if "total" in given else Retry(**numbers)
    except (KeyError, TypeError) as exc:
        raise UsageError(f"retry={given!r} is none") from exc


def new_policy(name: str, slots: int, settings: Mapping[str, Any], trials: int) -> Policy:
    """Return a policy as the settings of a session describe it; an AIMD may have numbers of its own. 0 `trials`: unknown."""
    aimd: Mapping[str, Any] | None = settings.get("aimd")
    if name != "aimd" or aimd is None:
        return POLICIES[name](slots, trials=trials or None)
    numbers: dict[str, Any] = {name: float(aimd[name]) for name in AIMD_NUMBERS}
    return Aimd(slots, **numbers)


def _policy_of(name: str, slots: int, settings: Mapping[str, Any], trials: int, key: str) -> Policy:
    """Return the policy of a rate-limit key; that of a scorer may have a limit of its own."""
    own: Mapping[str, int] = settings.get("scorer_slots", {})
    most = own.get(key.removeprefix(SCORER_PREFIX), slots) if key.startswith(SCORER_PREFIX) else slots
    return new_policy(name, most, settings, trials)


def remake(started: RunStarted, settings: Mapping[str, Any], trials: int) -> "Remade | str":
    """Make the rules of a session again, or say why that cannot be."""
    name, slots, seed = recorded_policy(settings), settings.get("slots"), settings.get("seed")
    if name is None or not isinstance(slots, int) or not isinstance(seed, int):
        return "the journal does not say by which policy and seed"
    if name not in POLICIES:
        return f"policy {name!r} is not one of ours"
    try:
        make, retry = partial(_policy_of, name, slots, settings, trials), recorded_retry(settings)
        make("")
    except (ValueError, TypeError, KeyError, UsageError) as exc:
        return f"the settings make no sense ({exc})"
    return Remade(make, retry, seed, _doubt(started))


def _doubt(started: RunStarted) -> str:
    """Policies may change with a release; what an older one decided was right then."""
    ours = release()
    theirs = started.environment.get("evaljournal", ours)
    return "" if theirs == ours or not ours else f"the run was begun by evaljournal {theirs}, and this is {ours}"


class Remade:
    """The policies and the retries of one session; an audit's `Rules`."""

    def __init__(self, policy: Callable[[str], Policy], retry: Retry, seed: int, doubt: str) -> None:
        self._new_policy = policy
        self._steerings: dict[str, Steering] = {}
        """Key → what steers that back end."""
        self._last: dict[str, Steering] = {}
        """Trial → what steered its last attempt; call → what steers that."""
        self._retry = retry
        self._seed = seed
        self.doubt = doubt

    def begin(self, key: str) -> PolicyEvent:
        """Give the limit that holds first."""
        steering = self._steerings[key] = Steering(self._new_policy(key), patience=self._retry.rate_limits, key=key)
        return steering.begin()

    def take(self, record: Record) -> Sequence[PolicyEvent]:
        """Tell the policy of the back end; give what it decides."""
        event = record.event
        name: str = getattr(event, "trial", "")
        if isinstance(event, AttemptStarted):
            self._last[name] = self._steerings[event.key]
        elif isinstance(event, CallEvent):
            name = call_id(name, event.scorer.partition(".")[0])
            if isinstance(event, ScorerCallStarted):
                self._last[name] = self._steerings[event.key]
        steering = self._last.get(name)
        return [] if steering is None else steering.take(record)

    def elapse(self, key: str, t: float) -> Sequence[PolicyEvent]:
        """Return what the policy decides because it is `t`."""
        return self._steerings[key].elapse(t) if key in self._steerings else []

    def closed(self, key: str, t: float) -> str:
        """Return why no attempt or call may start."""
        if key not in self._steerings:
            return "no limit was set before"
        gate = self._steerings[key].may_start(t)
        if gate.open:
            return ""
        return "every place is taken" if gate.at is None else f"the next may start at {gate.at:.6f} s"

    def settle(self, event: Settled, known: TrialState) -> Settled:
        """Decide of a trial what the executor, or a resumption, has decided of it."""
        trial, attempts = event.trial, known.attempts
        if known.stage == "failed":
            return RetryScheduled(trial=trial, attempt=attempts + 1, delay=0.0, cause="asked")
        if known.stage == "interrupted":
            return TrialFailed(trial=trial, attempts=attempts, cause="ambiguous")
        luck, probe = chance(self._seed, trial, attempts), trial in self._last and trial in self._last[trial].free
        decided = self._retry.after(ended(known), spent(known), luck, probe=probe)
        if isinstance(decided, Again):
            return RetryScheduled(trial=trial, attempt=attempts + 1, delay=decided.delay, cause=decided.cause)
        if decided.cause == "fatal" and isinstance(event, RetryScheduled):  # What stopped the run is not told by its category.
            return RetryScheduled(trial=trial, attempt=attempts + 1, delay=0.0, cause="stopped")
        is_unwritten = decided.cause == "fatal" and known.error.startswith("Unserialisable: ")
        if is_unwritten and isinstance(event, TrialFailed) and event.cause == "unserialisable":
            return event  # The task may also have raised an error of that name, so either is right.
        return TrialFailed(trial=trial, attempts=attempts, cause=decided.cause)
