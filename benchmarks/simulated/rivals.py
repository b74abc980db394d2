"""Other rules for the number of calls at once, written from their descriptions, to be run beside ours.

None of them knows Retry-After: it delays only the trial that met it, which is the executor's part.
"""

from runner.concurrency import Decision, Gate, Signal, Started

_OPEN = Gate(open=True)
_FULL = Gate(open=False)


class Fixed:
    """So many calls at once, whatever happens."""

    def __init__(self, slots: int) -> None:
        """Allow `slots` calls at once."""
        self.limit = slots
        self.state = None
        self._in_flight = 0
        self._decision = Decision(limit=slots)

    def take(self, signal: Signal) -> Decision:
        """Count the calls in flight."""
        self._in_flight += 1 if isinstance(signal, Started) else -1
        return self._decision

    def may_start(self, t: float) -> Gate:  # noqa: ARG002  # part of the protocol
        """Open while fewer than `slots` are in flight."""
        return _OPEN if self._in_flight < self.limit else _FULL
