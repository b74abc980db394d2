"""What a session decided by, made again from what its journal says of it.

An audit asks here what the policy and the retries would have decided; a simulation asks what they were. Where a setting is
found in a journal is known here, and nowhere else.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from journal import Record
from journal.events import RetryScheduled, RunStarted, TrialFailed
from replay import TrialState
from replay.audit import Decided, Settled
from runner.concurrency import AIMD_NUMBERS, POLICIES, Aimd, Policy, Steering
from runner.errors import UsageError
from runner.resume import ended, spent
from runner.retry import Again, OneBudget, Retry, chance


def recorded_policy(settings: Mapping[str, Any]) -> str | None:
    """Find by which policy a session was run; None if its journal does not say."""
    policy = settings.get("policy")
    return policy if isinstance(policy, str) else None


def recorded_retry(settings: Mapping[str, Any]) -> Retry:
    """Make the retries again that were in force; how exceptions were told apart is left out: what came of it is recorded."""
    given: Mapping[str, Any] = settings.get("retry", {})
    numbers = {name: given[name] for name in ("errors", "timeouts", "rate_limits", "base_delay", "max_delay")}
    return OneBudget(**numbers, total=given["total"]) if "total" in given else Retry(**numbers)


def _policy(name: str, slots: int, settings: Mapping[str, Any]) -> Policy:
    """Make the policy again; an AIMD may have been given numbers of its own."""
    aimd: Mapping[str, Any] | None = settings.get("aimd")
    if name != "aimd" or aimd is None:
        return POLICIES[name](slots)
    numbers: dict[str, Any] = {name: float(aimd[name]) for name in AIMD_NUMBERS}
    return Aimd(slots, **numbers)


def remake(started: RunStarted, settings: Mapping[str, Any]) -> "Remade | str":
    """Make the rules of a session again, or say why that cannot be."""
    name, slots, seed = recorded_policy(settings), settings.get("slots"), settings.get("seed")
    if name is None or not isinstance(slots, int) or not isinstance(seed, int):
        return "the journal does not say by which policy and seed"
    if settings.get("limit_key") is not None:
        return "each back end has a policy of its own"
    if name not in POLICIES:
        return f"policy {name!r} is not one of ours"
    try:
        policy, retry = _policy(name, slots, settings), recorded_retry(settings)
    except (ValueError, TypeError, KeyError, UsageError) as exc:
        return f"the settings make no sense ({exc})"
    return Remade(policy, retry, seed, _doubt(started))


def _doubt(started: RunStarted) -> str:
    """Policies may change with a release; what an older one decided was right then."""
    try:
        ours = version("evaljournal")
    except PackageNotFoundError:
        return ""
    theirs = started.environment.get("evaljournal", ours)
    return "" if theirs == ours else f"the run was begun by evaljournal {theirs}, and this is {ours}"


class Remade:
    """The policy and the retries of one session; an audit's `Rules`."""

    def __init__(self, policy: Policy, retry: Retry, seed: int, doubt: str) -> None:
        self._steering = Steering(policy, patience=retry.rate_limits)
        self._retry = retry
        self._seed = seed
        self.doubt = doubt

    def begin(self) -> Decided:
        """Give the limit that holds first."""
        return self._steering.begin()

    def take(self, record: Record) -> Sequence[Decided]:
        """Tell the policy; give what it decides."""
        return self._steering.take(record)

    def closed(self, t: float) -> str:
        """Say why no attempt may start."""
        gate = self._steering.may_start(t)
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
        luck, probe = chance(self._seed, trial, attempts), trial in self._steering.free
        decided = self._retry.after(ended(known), spent(known), luck, probe=probe)
        if isinstance(decided, Again):
            return RetryScheduled(trial=trial, attempt=attempts + 1, delay=decided.delay, cause=decided.cause)
        is_unwritten = decided.cause == "fatal" and known.error.startswith("Unserialisable: ")
        if is_unwritten and isinstance(event, TrialFailed) and event.cause == "unserialisable":
            return event  # The task may also have raised an error of that name, so either is right.
        return TrialFailed(trial=trial, attempts=attempts, cause=decided.cause)
