"""Attempts that call models through the gateway: each has an address of its own, which works until the attempt ends."""

import functools
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import trio

from runner.secrets import add_secret
from runner.steps.attempt_steps import AttemptSteps

_TOKEN_BYTES: Final = 16


class GatewayAttempt:
    """An attempt in flight: its steps, its calls, and the failure that ends it."""

    def __init__(self, steps: AttemptSteps, *, is_cancellable: bool) -> None:
        self.steps = steps
        self.failure: Exception | None = None
        """Why a call to a provider failed. No further call is forwarded."""
        self.scope: Final = trio.CancelScope()
        """The cancel scope of its task."""
        self._is_cancellable = is_cancellable
        self.calls: Final = set[trio.CancelScope]()
        """The calls in flight."""

    def fail(self, failure: Exception) -> None:
        """Make the attempt fail, whatever its task returns, because a call to a provider failed; the first failure counts."""
        self.failure = self.failure or failure

    def end(self) -> None:
        """Cancel the task of an attempt that has failed, if it can be cancelled."""
        if self._is_cancellable:
            self.scope.cancel()

    def close(self) -> None:
        """Cancel the calls in flight."""
        for scope in self.calls:
            scope.cancel()


@contextmanager
def open_attempt(attempts: dict[str, GatewayAttempt], attempt: GatewayAttempt) -> Generator[str]:
    """Add an attempt to those in flight, with a new token as its key, for the duration of the block."""
    token = f"{_token_prefix()}-{secrets.token_hex(_TOKEN_BYTES)}"
    attempts[token] = attempt
    try:
        yield token
    finally:
        del attempts[token]
        attempt.close()


@functools.cache
def _token_prefix() -> str:
    """Return a random prefix for the tokens of this process, and mask it from now on.

    Masking whole tokens would get slower with each attempt.
    """
    prefix = secrets.token_hex(_TOKEN_BYTES)
    add_secret(prefix)
    return prefix
