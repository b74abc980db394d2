"""Policies and settings as a journal records them."""

from collections.abc import Mapping
from typing import Any

from journal.events import SCORER_PREFIX
from runner.concurrency import AIMD_NUMBERS, POLICIES, Aimd, Policy


def recorded_policy(settings: Mapping[str, Any]) -> str | None:
    """Return the name of the policy of a session; None if the journal does not record it."""
    policy = settings.get("policy")
    return policy if isinstance(policy, str) else None


def new_policy(name: str, slots: int, settings: Mapping[str, Any], trials: int) -> Policy:
    """Return a policy as the settings of a session describe it. 0 `trials`: unknown."""
    aimd: Mapping[str, Any] | None = settings.get("aimd")
    if name != "aimd" or aimd is None:
        return POLICIES[name](slots, trials=trials or None)
    numbers: dict[str, Any] = {name: float(aimd[name]) for name in AIMD_NUMBERS}
    return Aimd(slots, **numbers)


def policy_of_key(name: str, slots: int, settings: Mapping[str, Any], trials: int, key: str) -> Policy:
    """Return the policy of a rate-limit key; a scorer may have slots of its own."""
    scorer_slots: Mapping[str, int] = settings.get("scorer_slots", {})
    if key.startswith(SCORER_PREFIX):
        slots = scorer_slots.get(key.removeprefix(SCORER_PREFIX), slots)
    return new_policy(name, slots, settings, trials)
