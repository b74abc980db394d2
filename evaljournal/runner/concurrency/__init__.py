"""Concurrency policies: how many attempts may be in flight, and when the next one may start.

A policy is a pure state machine: events in, decisions out, no clock and no randomness. Each rate-limit key has a policy of its
own. The module `policy` defines the interface.
"""

from collections.abc import Callable
from typing import Final

from evaljournal.runner.concurrency.adaptive import Adaptive
from evaljournal.runner.concurrency.fixed import Fixed
from evaljournal.runner.concurrency.policy import Policy

POLICIES: Final[dict[str, Callable[..., Policy]]] = {"adaptive": Adaptive, "fixed": Fixed}
"""Name → class of the policy; called with the number of slots and, if it is known, of `trials`."""
