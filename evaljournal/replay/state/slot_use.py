"""How a rate-limit key uses its known limits and its slots: how long the limits held starts, and how long all slots were busy.

Only attempts count whose start has a need, so that a run without known limits costs nothing.
"""

from typing import Final

import attrs

from evaljournal.replay.state.known_limits import SLOTS_PER_CALL

_GENERATIONS: Final = 3
"""Starts per slot after which the use of a limit is known: slots that follow from the limit are raised before that."""
_MOSTLY_USED: Final = 0.9
"""Share of a limit from which more slots would not help: starts are never quite even."""
_ROUNDED: Final = 10
"""Slots that are named are a multiple of this; they are an estimate."""


@attrs.define
class SlotUse:
    """The starts of a rate-limit key since its concurrency limit last changed."""

    begin: float
    """When the limit changed, or the first of them."""
    starts: int = 0
    seconds_needed: float = 0.0
    """Seconds in which the most restrictive known limit allows these starts."""
    full_seconds: float = 0.0
    """Seconds in which all slots were busy, while another trial was ready."""
    last_start: float = 0.0
    in_flight: int = 0
    is_full: bool = False
    _free_since: float = 0.0
    """When the last call started, or a slot became free after all had been busy."""
    _held_until: float = 0.0
    """When the known limits allow the next call, as far as the needs so far show."""

    def start(self, t: float, seconds: float) -> tuple[float, float]:
        """Count a start for which a limit needs some seconds; return from when until when the limits held it."""
        wait = self._free_since, min(t, self._held_until)
        self._free_since, self._held_until = t, max(t, self._held_until) + seconds
        self.starts += 1
        self.seconds_needed += seconds
        self.last_start = t
        self.in_flight += 1
        return wait

    def end(self, t: float) -> None:
        """Count the end of a call."""
        self.in_flight -= 1
        if self.is_full:
            self.full_seconds += t - self.last_start
            self.is_full, self._free_since = False, t

    def change_limit(self, t: float) -> None:
        """Begin again: the concurrency limit has changed."""
        self.begin, self.starts, self.seconds_needed, self.full_seconds, self.is_full = t, 0, 0.0, 0.0, False

    def share(self, until: float) -> float:
        """Return the used share of the most restrictive known limit, until a time."""
        return self.seconds_needed / max(until - self.begin, self.seconds_needed, 1e-9)

    def better_slots(self, slots: int, until: float) -> int | None:
        """Return how many slots would use the limit; None if more than `slots` would not help, or that is not known yet."""
        share = self.share(until)
        if self.starts < _GENERATIONS * slots or share >= _MOSTLY_USED:
            return None
        return -(-int(SLOTS_PER_CALL * slots / share) // _ROUNDED) * _ROUNDED
