"""Concurrency policies: how many attempts may be in flight, and when the next one may start.

A policy is a pure state machine: signals in, decisions out, no clock and no randomness. Each rate-limit key has a policy of its
own. The module `policy` defines the interface.
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
"""Name → class of the policy; called with the number of slots and, if it is known, of `trials`."""
