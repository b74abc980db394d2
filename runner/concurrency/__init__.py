"""How many attempts may run at once, and when the next may start.

The policies decide about the future without touching it: signals in, decisions out, no clock and no chance. One policy
serves one key, so that two endpoints never share a limit. `policy` tells how to drive one.
"""

from collections.abc import Callable
from typing import Final

from runner.concurrency.adaptive import Adaptive
from runner.concurrency.aimd import AIMD_NUMBERS, Aimd
from runner.concurrency.constants import POISONED
from runner.concurrency.fixed import Fixed
from runner.concurrency.policy import (
    Change,
    Decision,
    Failed,
    Gate,
    Interrupted,
    LimitMoved,
    PaceMoved,
    Paused,
    Policy,
    Resumed,
    Signal,
    Started,
    Succeeded,
    TimedOut,
)
from runner.concurrency.registry import REGISTRY, Identity, Member
from runner.concurrency.steering import CallEvent, Steering, call_id

__all__ = [
    "AIMD_NUMBERS",
    "POISONED",
    "POLICIES",
    "REGISTRY",
    "Adaptive",
    "Aimd",
    "CallEvent",
    "Change",
    "Decision",
    "Failed",
    "Fixed",
    "Gate",
    "Identity",
    "Interrupted",
    "LimitMoved",
    "Member",
    "PaceMoved",
    "Paused",
    "Policy",
    "Resumed",
    "Signal",
    "Started",
    "Steering",
    "Succeeded",
    "TimedOut",
    "call_id",
]

POLICIES: Final[dict[str, Callable[..., Policy]]] = {"adaptive": Adaptive, "aimd": Aimd, "fixed": Fixed}
"""Name → what makes a policy for so many slots and, where that is known, so many `trials`."""
