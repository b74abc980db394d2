"""How a rate-limit key uses its known limits and its slots: how long the limits held starts, and how long all slots were busy.

Only attempts count whose start has a need: with the first of them, `SlotUses` is attached to the ends of attempts. A run
without known limits pays nothing for it.
"""

from typing import Final

import attrs

from evaljournal.journal import Record, events
from evaljournal.replay.state.handlers import EventTable
from evaljournal.replay.state.known_limits import SLOTS_PER_CALL
from evaljournal.replay.state.usage import as_integer

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
        self.in_flight -= 1
        if self.is_full:
            self.full_seconds += t - self.last_start
            self.is_full, self._free_since = False, t

    def change_limit(self, t: float) -> None:
        self.begin, self.starts, self.seconds_needed, self.full_seconds, self.is_full = t, 0, 0.0, 0.0, False

    def share(self, until: float) -> float:
        """Return the used share of the most restrictive known limit, until a time."""
        return self.seconds_needed / max(until - self.begin, self.seconds_needed, 1e-9)

    def better_slots(self, slots: int, until: float) -> int | None:
        """Return how many slots would use the limit; None if more than `slots` would not help, or that is not known yet."""
        share = self.share(until)
        if self.starts < _GENERATIONS * slots or not 0 < share < _MOSTLY_USED:  # 0: no limit is believed any more.
            return None
        return -(-as_integer(SLOTS_PER_CALL * slots / share) // _ROUNDED) * _ROUNDED


class SlotUses(dict[str, SlotUse]):
    """How does each rate-limit key with known limits use them and its slots? Keys that a judge shares are excluded."""

    def __init__(self, table: EventTable) -> None:
        super().__init__()
        self._table = table
        self._is_attached = False
        self._keys: dict[str, str] = {}
        """Trial → the rate-limit key of its attempt in flight."""

    def start(self, trial: str, key: str, t: float, seconds: float) -> tuple[SlotUse, tuple[float, float]]:
        """Count a start for which a limit needs some seconds; return the use of the key, and the time in which it was held."""
        if not self._is_attached:
            self._table.attach(self)
            self._is_attached = True
        use = self.get(key) or self.setdefault(key, SlotUse(begin=t))
        self._keys[trial] = key
        return use, use.start(t, seconds)

    def clear(self) -> None:
        """Begin again with a session."""
        super().clear()
        self._keys.clear()

    def _on_attempt_succeeded(self, event: events.AttemptEnd, record: Record) -> None:
        if (key := self._keys.pop(event.trial, None)) is not None:
            self[key].end(record.t)

    _on_attempt_failed = _on_attempt_timed_out = _on_attempt_interrupted = _on_attempt_succeeded
