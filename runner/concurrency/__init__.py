"""How many attempts may run at once, and when the next may start.

The policies decide about the future without touching it: signals in, decisions out, no clock and no chance. One policy
serves one key, so that two endpoints never share a limit. `policy` tells how to drive one.
"""

from collections.abc import Callable
from typing import Final

from runner.concurrency.adaptive import Adaptive, AdaptiveState
from runner.concurrency.aimd import AIMD_NUMBERS, Aimd, AimdState
from runner.concurrency.fixed import Fixed, FixedState
from runner.concurrency.policy import (
    Change,
    Decision,
    Failed,
    Gate,
    Interrupted,
    LimitMoved,
    Paused,
    Policy,
    Quota,
    Resumed,
    Signal,
    Started,
    Succeeded,
    TimedOut,
)
from runner.concurrency.registry import REGISTRY, Identity, Member
from runner.concurrency.steering import POISONED, CallEvent, Steering, call_id

__all__ = [
    "AIMD_NUMBERS",
    "POISONED",
    "POLICIES",
    "REGISTRY",
    "Adaptive",
    "AdaptiveState",
    "Aimd",
    "AimdState",
    "CallEvent",
    "Change",
    "Decision",
    "Failed",
    "Fixed",
    "FixedState",
    "Gate",
    "Identity",
    "Interrupted",
    "LimitMoved",
    "Member",
    "Paused",
    "Policy",
    "Quota",
    "Resumed",
    "Signal",
    "Started",
    "Steering",
    "Succeeded",
    "TimedOut",
    "call_id",
]

POLICIES: Final[dict[str, Callable[[int], Policy]]] = {"adaptive": Adaptive, "aimd": Aimd, "fixed": Fixed}
"""Name → what makes a policy for so many slots."""
