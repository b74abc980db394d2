"""Rules of an audit about known rate limits: in every window, the needs of the calls that started are bounded by the limit.

The start of a step is known at its end only, so calls are checked in the order of their starts, once no earlier one can follow.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import attrs

from evaljournal.journal import Record, events
from evaljournal.replay.state.known_limits import MINUTE, Need, is_valid, parse_need
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.usage import JUDGE_USAGE, noted_usage, real_tokens
from evaljournal.replay.text import as_words, number, window_text

_FULL_BUCKET: Final = 2
"""An advertised limit allows its size twice in one window: what a full bucket has, and what flows in."""
_TOLERANCE: Final = 1.0
"""Seconds of a limit, at most a 60th of its window, that calls may need more, because recorded times are not exact."""
_MIN_ENTRIES: Final = 4_096

Call = tuple[str, str | int]
"""The trial and, for a call of a scorer or a step, its scorer or number; otherwise empty."""


class _Entry(NamedTuple):
    """A call that started, the difference of its real tokens to its need, or a limit that was seen."""

    time: float
    seq: int
    key: str
    amounts: Need
    call: Call | None = None
    limit: events.RateLimitSeen | None = None


@attrs.define
class _Window:
    """The calls of the last window of a limit."""

    limit: events.RateLimitSeen
    is_active: bool = True
    """False for a limit of an earlier session."""
    entries: deque[tuple[float, float, bool]] = attrs.field(factory=deque[tuple[float, float, bool]])
    """Time, amount, and whether it is the need of a call."""
    needs: float = 0.0
    real: float = 0.0
    """The needs, corrected by the tokens that calls really used."""

    def add(self, time: float, amount: float, *, is_need: bool) -> None:
        """Add an amount, and remove those before the window."""
        self._count(amount, is_need=is_need)
        self.entries.append((time, amount, is_need))
        while self.entries[0][0] <= time - self.limit.window:
            _, amount, is_need = self.entries.popleft()
            self._count(-amount, is_need=is_need)

    def _count(self, amount: float, *, is_need: bool) -> None:
        self.real += amount
        if is_need:
            self.needs += amount

    def excess(self) -> float | None:
        """Return what the calls of the window need, if that is too much; None otherwise."""
        limit, used = self.limit, min(self.needs, self.real)
        size = limit.size * (1 if limit.source == "declared" else _FULL_BUCKET)
        tolerance = limit.size * min(_TOLERANCE / limit.window, 1 / MINUTE)
        if not self.is_active or used <= size + tolerance:
            return None
        largest_need = max(amount for _, amount, is_need in self.entries if is_need)
        return None if used <= size + tolerance + largest_need else used


class LimitRules:
    """The calls that were admitted by known rate limits."""

    def __init__(self, state: RunState, add: Callable[[int, str, str], None]) -> None:
        """`add` takes the record, the rule and the message of a finding."""
        self._state = state
        """The state before the record that is checked."""
        self._add = add
        self._origin = 0.0
        """Time when `t` was 0, as the run counts it."""
        self._entries: list[_Entry] = []
        """Not checked yet, in the order of their records."""
        self._max_entries = _MIN_ENTRIES
        self._windows: dict[str, dict[str, _Window]] = {}
        """Rate-limit key → header → its window."""
        self._open: dict[str, dict[str, tuple[str, Need]]] = {}
        """Trial → scorer (empty: the attempt) → key and need of its call, until its real tokens are known."""

    def begin_session(self, record: Record, *, is_independent: bool) -> None:
        """Start a session: the limits are recorded again, and earlier calls count, unless it is independent of them."""
        self.flush()
        self._open.clear()
        if is_independent:
            self._windows.clear()
        for windows in self._windows.values():
            for header, window in list(windows.items()):
                window.is_active = False
                if window.limit.source != "declared":
                    del windows[header]
        self._origin = self._state.policy.known_limits.session_origin(record.at, record.t, is_independent=is_independent)

    def see(self, limit: events.RateLimitSeen, record: Record) -> None:
        """Add a limit that was seen."""
        if is_valid(limit):
            self._append(_Entry(self._origin + record.t, record.seq, limit.key, {}, None, limit))

    def start(self, event: events.AttemptStarted | events.ScorerCallStarted, record: Record) -> None:
        """Add an attempt or a scorer call with a need."""
        need, scorer = parse_need(event.need), event.scorer if isinstance(event, events.ScorerCallStarted) else ""
        self._open.setdefault(event.trial, {})[scorer] = event.key, need
        self._append(_Entry(self._origin + record.t, record.seq, event.key, need, (event.trial, scorer)))

    def step(self, event: events.StepCompleted | events.StepFailed, record: Record) -> None:
        """Add a step with a need."""
        need, time = parse_need(event.need), self._origin + record.t
        call = event.trial, event.step
        self._append(_Entry(time - max(event.elapsed, 0.0), record.seq, event.key, need, call))
        if isinstance(event, events.StepCompleted):
            self._settle(event.key, need, event.usage, record)

    def note(self, event: events.Noted, record: Record) -> None:
        """Correct the need of a call in flight by the usage in a note of its task or judge."""
        calls = self._open.get(event.trial)
        if not calls or not isinstance(usage := noted_usage(event.name, event.value), dict):
            return
        is_judge = event.name == JUDGE_USAGE
        scorer = next((scorer for scorer in calls if bool(scorer) == is_judge), None)
        if scorer is not None:
            key, need = calls[scorer]
            usage = {name.removeprefix("judge."): amount for name, amount in usage.items()}
            if self._settle(key, need, usage, record):
                del calls[scorer]

    def end(self, trial: str) -> None:
        """Forget the calls of a trial that is done."""
        self._open.pop(trial, None)

    def _settle(self, key: str, need: Need, usage: Any, record: Record) -> bool:
        tokens = real_tokens(usage if isinstance(usage, dict) else None)
        changes: Need = {unit: tokens[unit] - need[unit] for unit in tokens if unit in need}
        if changes:
            self._append(_Entry(self._origin + record.t, record.seq, key, changes))
        return bool(changes)

    def _append(self, entry: _Entry) -> None:
        self._entries.append(entry)
        if len(self._entries) >= self._max_entries:
            start = min((attempt.start for attempt in self._state.trials.running.values()), default=self._state.t)
            self.flush(self._origin + start)
            self._max_entries = 2 * len(self._entries) + _MIN_ENTRIES

    def flush(self, until: float = float("inf")) -> None:
        """Check the calls that started before a time."""
        self._entries.sort(key=lambda entry: entry[:2])
        count = 0
        for entry in self._entries:
            if entry.time >= until:
                break
            count += 1
            self._check(entry)
        del self._entries[:count]

    def _check(self, entry: _Entry) -> None:
        windows = self._windows.setdefault(entry.key, {})
        if entry.limit is not None:
            self._set_limit(windows, entry.limit)
            return
        for window in windows.values():
            amount = entry.amounts.get(window.limit.unit)
            if amount is None:
                continue
            window.add(entry.time, amount, is_need=entry.call is not None)
            if entry.call is not None and (used := window.excess()) is not None:
                self._add(entry.seq, "rate_limit", _message(entry.call, used, window.limit))

    def _set_limit(self, windows: dict[str, _Window], limit: events.RateLimitSeen) -> None:
        window = windows.get(limit.header)
        if window is not None and limit.source == "declared":
            window.limit, window.is_active = limit, True
        elif limit.is_believed:
            windows[limit.header] = _Window(limit)
        else:
            windows.pop(limit.header, None)


def _message(call: Call, used: float, limit: events.RateLimitSeen) -> str:
    trial, part = call
    subject = (
        f"step {part} of {trial!r}" if isinstance(part, int) else f"call of {part!r} for {trial!r}" if part else repr(trial)
    )
    return (
        f"{subject} starts when the calls of the last {window_text(limit.window)} need {number(used)} {as_words(limit.unit)}; "
        f"the {limit.source} limit is {number(limit.size)} ({limit.header})"
    )
