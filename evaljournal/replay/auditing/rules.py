"""Rules of an audit that are recomputed from the records before: budgets, reused steps, the remaining timeout, starts, limits.

**Starts**: the recorded limit, pause, pace and circuit breaker of a rate-limit key bound every start.

**Known rate limits**: in every window, the needs of the calls that started are bounded by the limit. The start of a step is
known at its end only, so calls are checked in the order of their starts, once no earlier one can follow.
"""

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, NamedTuple

import attrs

from evaljournal.journal import Record, events
from evaljournal.replay.state.batches import UNSENT_STATES
from evaljournal.replay.state.budget import OVER_BUDGET, amounts
from evaljournal.replay.state.known_limits import KNOWN_LIMIT, MAX_SLOTS, MINUTE, Need, is_valid, parse_need
from evaljournal.replay.state.pauses import BREAKER_REASONS, LATE_TOLERANCE, NO_RESPONSE, PACE_CHANGE, PROBE_PATIENCE, Pause
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.steps import earlier_reuse_of, remaining_timeout, reuse_of
from evaljournal.replay.state.usage import JUDGE_USAGE, noted_usage, real_tokens
from evaljournal.replay.text import as_words, number, window_text

TIME_TOLERANCE: Final = 2e-6
"""Seconds by which two times may differ, since each is rounded to the microsecond."""

Start = events.AttemptStarted | events.ScorerCallStarted

_FULL_BUCKET: Final = 2
"""An advertised limit allows its size twice in one window: what a full bucket has, and what flows in."""
_TOLERANCE: Final = 1.0
"""Seconds of a limit, at most a 60th of its window, that calls may need more, because recorded times are not exact."""
_MIN_ENTRIES: Final = 4_096

Call = tuple[str, str | int]
"""The trial and, for a call of a scorer or a step, its scorer or number; otherwise empty."""


def start_problems(state: RunState, event: events.AttemptStarted) -> Iterator[str]:
    """Yield the problems with the reserve or the admission of an attempt, in the state before it.

    Before the first report the reserve may be an estimate. An estimate is not recomputed, but must fit into the budget.
    """
    budget, variant = state.budget, state.trials[event.trial].variant
    if budget is None or not budget.limits:
        if event.reserved is not None:
            yield f"{event.trial!r} has a reserve, but the run has no budget"
        return

    expected = budget.reserve(variant, amounts(event.reserved))
    if event.reserved != expected:
        yield f"the reserve of {event.trial!r} is {event.reserved!r}, but the budget reserves {expected!r}"
    elif (block := budget.block(variant, expected, amounts(event.other_runs))) is not None:
        yield f"{event.trial!r} starts, but the budget does not allow it: {block.reason} ({block.unit})"


def batch_problems(state: RunState, event: events.BatchPrepared | events.BatchCollected) -> Iterator[tuple[str, str]]:
    """Yield the rules that the start or the end of a batch breaks, each with a message."""
    if isinstance(event, events.BatchPrepared):
        budget = state.budget
        if budget is None or not budget.limits:
            if event.reserved is not None:
                yield "budget", f"batch {event.batch} has a reserve, but the run has no budget"
        elif unit := budget.exceeded_by(amounts(event.reserved)):
            yield "budget", f"batch {event.batch} is prepared, but the budget does not allow it ({unit})"
        return

    batch, lines = state.batches[event.batch], state.batches.lines.open[event.batch]
    if event.results != lines.used_lines:
        yield "batches", f"it counts {event.results:,} results of batch {event.batch}, but {lines.used_lines:,} were used"
    if event.results + event.missing > batch.lines:
        yield "batches", f"it counts {event.results + event.missing:,} lines of batch {event.batch}, which has {batch.lines:,}"
    if (event.state in UNSENT_STATES) == lines.is_submitted:
        was_submitted = "was" if lines.is_submitted else "was not"
        yield "batches", f"it ends batch {event.batch} as {event.state!r}, but the batch {was_submitted} submitted"


def limit_problems(state: RunState, event: events.LimitChanged) -> Iterator[str]:
    """Yield the problems with a change of a concurrency limit, in the state before it."""
    limit, slots = state.policy.limits.get(event.key, 0), state.slots_of(event.key)
    if event.before != limit:
        yield f"it changes a limit of {event.before}, but the limit was {limit}"

    max_limit = None if slots is None else max(slots, MAX_SLOTS if event.reason == KNOWN_LIMIT else 0)
    if event.after < 1 or (max_limit is not None and event.after > max_limit):
        yield f"it sets a limit of {event.after}, but the settings have slots={slots!r}"


def end_problems(state: RunState, event: events.AttemptEnd) -> Iterator[str]:
    """Yield the problems with the end of an attempt under the budget per trial."""
    match event:
        case events.AttemptSucceeded() if state.is_over_budget(event.trial, event.usage):
            yield f"{event.trial!r} has an output, but exceeded the budget per trial"
        case events.AttemptFailed(error=error) if error == OVER_BUDGET and not state.is_over_budget(event.trial, event.usage):
            yield f"{event.trial!r} fails because of the budget per trial, but did not exceed it"
        case _:
            pass


def stop_problems(state: RunState, event: events.RunStopped) -> Iterator[str]:
    """Yield the problems with a stop because of the budget."""
    budget = state.budget
    if budget is None or not budget.limits:
        yield "it stops the run because of its budget, but the run has none"
    elif budget.has_recorded_reserves and next(budget.blocks(amounts(event.other_runs)), None) is None:
        yield "it stops the run because of its budget, but the budget allows another attempt"


class StepRules:
    def __init__(self, state: RunState) -> None:
        self._state = state
        """The state before the record that is checked."""
        self._numbers: dict[str, set[int]] = {}
        """Trial → the numbers of its attempt's steps."""
        self._reused_seqs: dict[str, set[int]] = {}
        """Trial → the records that its attempt has reused."""
        self._seconds_spent: dict[str, float] = {}
        """Trial → `spent` of its attempt, if not 0."""

    def start(self, event: events.AttemptStarted) -> Iterator[str]:
        """Check which steps an attempt may reuse, and how much of its timeout they have used."""
        state, steps = self._state, self._state.steps.open.get(event.trial)
        trial, reuse = state.trials[event.trial], state.settings.get("reuse_steps", "")
        first_attempt, seconds_spent = expected = reuse_of(steps, trial, reuse)
        if (event.reuses, event.spent) not in (expected, earlier_reuse_of(steps, trial, reuse)):
            yield (
                f"{event.trial!r} reuses steps from attempt {event.reuses} on and has spent {event.spent:g} s, "
                f"but its settings and its earlier attempts give {first_attempt} and {seconds_spent:g} s"
            )
        if event.spent:
            self._seconds_spent[event.trial] = event.spent

    def end(self, event: events.StepEvent) -> Iterator[str]:
        numbers = self._numbers.setdefault(event.trial, set())
        if event.step < 1 or event.step in numbers:
            yield f"{event.trial!r} has a second step {event.step} in attempt {event.attempt}"
        if not isinstance(event, events.StepReused):
            if event.continues and event.continues not in numbers:
                yield f"step {event.step} of {event.trial!r} continues step {event.continues}, which had not ended"
        else:
            steps, reused_seqs = self._state.steps.open.get(event.trial), self._reused_seqs.setdefault(event.trial, set())
            step = None if steps is None else steps.steps.get(event.completed_seq)
            if step is None or step.attempt == event.attempt:
                yield f"{event.trial!r} reuses record {event.completed_seq}, which is not a step that it may reuse"
            elif event.completed_seq in reused_seqs:
                yield f"{event.trial!r} reuses record {event.completed_seq} twice in attempt {event.attempt}"
            reused_seqs.add(event.completed_seq)
        numbers.add(event.step)

    def clear(self, trial: str) -> None:
        for per_attempt in (self._numbers, self._reused_seqs, self._seconds_spent):
            per_attempt.pop(trial, None)

    def timeout(self, trial: str, timeout: float | None) -> float | None:
        """Return the timeout of the attempt in flight; `timeout` is that of the settings."""
        return remaining_timeout(timeout, self._seconds_spent.get(trial, 0.0))


class StartRules:
    """The attempts and scorer calls in flight in a session, and the bounds of the next start, by rate-limit key."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        """The state before the record that is checked."""
        self._open: dict[Hashable, tuple[str, int]] = {}
        """Attempt (by its trial) or call (by trial and scorer) → its rate-limit key, and the epoch in which it started."""
        self._counts: Counter[str] = Counter()
        self._epochs: Counter[str] = Counter()
        """Rate-limit key → number of times its endpoint has stopped responding."""
        self._paced_starts: dict[str, float] = {}
        """Rate-limit key → when its last start was due at its pace."""
        self._highest_paces: dict[str, float] = {}
        """Rate-limit key → the highest pace since its last start; infinite if starts were not paced."""
        self._probes: dict[str, tuple[Hashable, float]] = {}
        """Rate-limit key → its last probe, if it is in flight, and when it started."""

    def __contains__(self, name: Hashable) -> bool:
        return name in self._open

    def start(self, name: Hashable, subject: str, event: Start, record: Record) -> Iterator[tuple[str, str]]:
        """Add a start; yield the rules that it breaks, each with a message."""
        key, t = event.key, record.t
        self._open[name] = key, self._epochs[key]
        self._counts[key] += 1

        pause = self._state.policy.pauses.get(key, Pause(0.0, ""))
        if t < pause.until - TIME_TOLERANCE:
            yield (
                "intake",
                f"{subject} starts at {t:.6f} s, while starts are paused until {pause.until:.6f} s ({pause.reason!r})",
            )
        limit = self._state.policy.limits.get(key, math.inf)
        if self._counts[key] > limit and not event.probe:  # A probe may start while hung attempts fill all slots.
            yield "limit", f"{subject} starts with {self._counts[key]} in flight, above the limit of {limit}"

        yield from self._check_breaker(name, subject, event, pause.reason, t)
        yield from self._check_pace(subject, event, t)

    def add(self, name: Hashable) -> None:
        """Add a call that uses a line of a batch; no limit applies to it."""
        self._open[name] = "", -1

    def _check_breaker(self, name: Hashable, subject: str, event: Start, reason: str, t: float) -> Iterator[tuple[str, str]]:
        is_open = reason in BREAKER_REASONS
        if is_open and not event.probe:
            yield "breaker", f"{subject} starts and is not a probe, but the circuit breaker is open ({reason!r})"
        if not event.probe:
            return

        if not is_open:
            yield "breaker", f"{subject} starts as a probe, but the circuit breaker is not open"
        _, last_t = self._probes.get(event.key, (None, -math.inf))
        if t < last_t + PROBE_PATIENCE - TIME_TOLERANCE:
            yield "breaker", f"{subject} starts as a probe at {t:.6f} s, while another one is in flight since {last_t:.6f} s"
        self._probes[event.key] = name, t

    def _check_pace(self, subject: str, event: Start, t: float) -> Iterator[tuple[str, str]]:
        """Check a start against the pace; a probe has no pace."""
        pace = math.inf if event.probe else self._highest_paces.get(event.key, math.inf)
        self._highest_paces[event.key] = self._state.policy.paces.get(event.key, math.inf)
        gap = 1 / ((1 + PACE_CHANGE) * pace) if pace > 0 else 0.0
        due_time = self._paced_starts.get(event.key, t) + gap
        # Late starts are made up for, and a start need not keep its distance when a test of the pace ends.
        if t < due_time - max(gap, LATE_TOLERANCE) - gap - TIME_TOLERANCE:
            yield "pace", f"{subject} starts at {t:.6f} s, but at a pace of {pace:g}/s it is due at {due_time:.6f} s"
        self._paced_starts[event.key] = max(due_time, t)

    def end(self, name: Hashable) -> None:
        key, epoch = self._open.pop(name, ("", -1))
        if epoch == self._epochs[key]:
            self._counts[key] -= 1
        if self._probes and self._probes.get(key, ("", 0.0))[0] == name:
            del self._probes[key]

    def change(self, event: events.PolicyEvent) -> None:
        """Follow a decision of a policy: count a pace, or stop counting hung attempts and calls against the limit."""
        if isinstance(event, events.PaceChanged):
            paces = event.before, event.after
            pace = math.inf if None in paces else max(event.after or 0.0, self._highest_paces.get(event.key, 0.0))
            self._highest_paces[event.key] = pace
        elif isinstance(event, events.IntakePaused) and event.reason == NO_RESPONSE:
            self._counts[event.key] = 0
            self._epochs[event.key] += 1


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
        if is_valid(limit):
            self._append(_Entry(self._origin + record.t, record.seq, limit.key, {}, None, limit))

    def start(self, event: events.AttemptStarted | events.ScorerCallStarted, record: Record) -> None:
        need, scorer = parse_need(event.need), event.scorer if isinstance(event, events.ScorerCallStarted) else ""
        self._open.setdefault(event.trial, {})[scorer] = event.key, need
        self._append(_Entry(self._origin + record.t, record.seq, event.key, need, (event.trial, scorer)))

    def step(self, event: events.StepCompleted | events.StepFailed, record: Record) -> None:
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
        count = bisect_left(self._entries, until, key=lambda entry: entry.time)
        for entry in self._entries[:count]:
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
