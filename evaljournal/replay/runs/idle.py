"""Why nothing starts, derived from a `RunState` and a time: why slots are idle, or that all of them are busy."""

import math
from collections.abc import Container, Iterator
from typing import Final, Literal

import attrs

from evaljournal.journal.events import SCORER_PREFIX
from evaljournal.replay.results.budget_text import block_text, reserved_text
from evaljournal.replay.state.known_limits import LimitUse
from evaljournal.replay.state.pauses import BREAKER_REASONS, Pause
from evaljournal.replay.state.run import RunState
from evaljournal.replay.text import (
    as_words,
    digits,
    duration,
    plural,
    printable,
    rate_limit_text,
    short_amount,
    window_text,
)

IdleReason = Literal[
    "breaker",
    "retry_after",
    "pause",
    "rate_limit",
    "pace",
    "limit",
    "slots",
    "scorers",
    "same_error",
    "budget",
    "workers",
    "batches",
    "backoff",
    "cases",
    "none_left",
]
"""The cause of the wait: the circuit breaker, a Retry-After, another pause, a known rate limit, the pace, the concurrency
limit, too few slots for a known limit, scorers, the same error of the first trials, budget, workers, batches, backoff or unread
cases; or no trial is left."""

_MAX_REASONS: Final = 3
"""Maximum number of reasons on one line."""
_EVIDENCE_CHARS: Final = 80
_MOSTLY_USED: Final = 0.8
"""Share of a limit in its last window from which the limit itself is the reason, not how its starts are spread."""
_QUIET_SECONDS: Final = 1.0
"""Seconds without a start from which a limit that this run hardly uses is a reason: others may use it."""
_FIRST_LIMIT: Final = "first limit, rises while calls succeed"


@attrs.frozen(kw_only=True)
class Reason:
    """One reason why a slot is idle."""

    key: str = ""
    """The rate-limit key; `scorer:NAME` for a scorer's own, empty if there is only one or the reason applies to all."""
    reason: IdleReason
    seconds: float | None = None
    """Seconds until the next start, if known."""
    number: float | None = None
    """Used amount for `rate_limit`, starts per second for `pace`, attempts for `limit`, the slots that would use the limit for
    `slots`, outputs for `scorers`, open lines for `batches`, trials for `same_error`, `backoff` and `cases`."""
    evidence: str = ""
    """The policy's observation, as recorded."""
    text: str
    """The reason as text; safe for a terminal."""


def reasons(state: RunState, *, now: float, total: int | None = None) -> list[Reason]:
    """Return why nothing starts at a time, in seconds of `t`; empty if the run has ended or uses all of its slots well.

    `total` is the number of trials, if known.
    """
    if state.outcome or not state.sessions:
        return []

    ready_trials = state.totals.stages["queued"] + state.totals.stages["interrupted"] + state.totals.stages["unsettled"]
    ready_trials += len(state.trials.backing_off) - in_backoff(state, now)
    batches = state.batches.lines.open.values()
    ready_trials = max(0, ready_trials - sum(batch.open_lines for batch in batches if not batch.scorer))

    keys = [
        key for key in {**state.policy.limits, **state.policy.paces, **state.policy.pauses} if not key.startswith(SCORER_PREFIX)
    ] or [""]
    has_idle_slot = any((slots := state.slots_of(key)) is None or state.in_flight(key) < slots for key in keys)
    if has_idle_slot:
        attempts = list(_attempt_reasons(state, keys, now, ready_trials, total))
        if ready_trials and not attempts:
            attempts = list(_unrecorded_reasons(state))
    else:
        attempts = list(_key_reasons(state, keys, now, is_waiting=ready_trials > 0, show_keys=len(keys) > 1))

    if batches and not ready_trials:
        lines, count = sum(batch.open_lines for batch in batches), plural(len(batches), "batch", "batches")
        text = f"{count} with {plural(lines, 'open line')}"
        attempts = [reason for reason in attempts if reason.reason != "none_left"]
        attempts.append(Reason(reason="batches", number=lines, text=text))

    attempts += _inner_reasons(state, now, {reason.key for reason in attempts})
    return attempts + list(_scorer_reasons(state, keys, now))


def _unrecorded_reasons(state: RunState) -> Iterator[Reason]:
    """Yield what holds ready trials if no record says it: the budget, as the next estimate is not recorded, or the workers."""
    workers = state.settings.get("workers")
    if text := reserved_text(state):
        yield Reason(reason="budget", text=f"budget: {text}")
    elif isinstance(workers, dict) and workers.get("tasks", True):
        is_busy = state.trials.running or state.scoring.open
        yield Reason(reason="workers", text="all workers are busy" if is_busy else "no worker is ready")


def in_backoff(state: RunState, now: float) -> int:
    """Return how many trials are in backoff; a trial whose delay has passed is ready, without a record."""
    return sum(end > now for end in state.trials.backing_off.values())


def one_line(idle_reasons: list[Reason]) -> str:
    """Return the first reasons on one line; empty if there are none."""
    suffix = f" · {len(idle_reasons) - _MAX_REASONS} more" if len(idle_reasons) > _MAX_REASONS else ""
    return " · ".join(reason.text for reason in idle_reasons[:_MAX_REASONS]) + suffix


def pause_reason(state: RunState, pause: Pause) -> str:
    """Return the reason of a pause as text.

    If outputs were returned, and only trials that have failed are left, their inputs may be the reason, not the endpoint.
    """
    is_last = not state.totals.stages["queued"] and 0 < state.sessions.planned <= state.totals.total
    if pause.reason == "unavailable" and is_last and state.trials.attempts.outputs:
        return "only trials that have failed are left"
    return pause.text


def pause_text(pause: Pause, now: float, reason: str = "") -> str:
    """Return what a pause waits for: `Retry-After: 12 s left`, `endpoint unavailable; probing, next probe in 3 s`."""
    seconds_left, reason = pause.until - now, reason or pause.text
    if pause.reason in BREAKER_REASONS:
        return f"{reason}; probing" + (f", next probe in {duration(seconds_left)}" if seconds_left > 0 else "")
    return f"{reason}: {duration(seconds_left)} left"


def pace_text(pace: float, evidence: str = "") -> str:
    """Return a pace as `pace: 4.2 starts/s; 429 after 38 calls in 9 s`."""
    reason = f"; {_short_evidence(evidence)}" if evidence else ""
    return f"pace: {digits(pace, 2 if pace < 100 else 3)} starts/s{reason}"  # noqa: PLR2004


def limit_text(limit: int, slots: int | None, evidence: str = "") -> str:
    """Return a limit as `concurrency limit 16 of 100: 429 at 17 in flight`."""
    maximum = "" if slots is None else f" of {slots:,}"
    reason = f": {_short_evidence(evidence)}" if evidence else ""
    return f"concurrency limit {limit:,}{maximum}{reason}"


def _short_evidence(evidence: str) -> str:
    return printable(" ".join(evidence.split()), _EVIDENCE_CHARS)


def busy_text(slots: int, better_slots: int) -> str:
    """Return that all slots are busy although a known limit has room: ``all 100 slots are busy; `--slots 250` would use …``."""
    return f"all {slots:,} slots are busy; `--slots {better_slots}` would use the limit"


def rate_limit_use_text(use: LimitUse) -> str:
    """Return how a limit holds starts.

    `tokens: 148k of 150k per minute used, next start in 0.8 s (advertised)` if it is mostly used. If this run has used less in
    the last window, `10 requests per minute, spread evenly: next start in 4 s (declared)`, or others use the rest.
    """
    limit, source = use.limit, printable(use.limit.source)
    wait = f"next start in {duration(use.next_start)}" if use.next_start > 0 else ""
    size = f"{short_amount(limit.size)} per {window_text(limit.window)}"
    amount = f"{as_words(limit.unit)}: {short_amount(use.used)} of {size} used"
    if use.used >= _MOSTLY_USED * limit.size:
        return f"{amount}{wait and f', {wait}'} ({source})"
    if limit.source == "declared" and wait:
        return f"{rate_limit_text(limit.unit, limit.size, limit.window)}, spread evenly: {wait} ({source})"
    return f"{amount} by this run, others may use the rest ({source})"


def limit_use(state: RunState, key: str, now: float) -> LimitUse | None:
    """Return the known limit of a key that holds starts longest, or is used most."""
    uses = (use for use in state.policy.known_limits.uses(now) if use.limit.key == key)
    return max(uses, key=lambda use: (use.next_start, use.used / use.limit.size), default=None)


def _rate_limit_reason(key: str, name: str, use: LimitUse) -> Reason:
    text, seconds = f"{name}{rate_limit_use_text(use)}", use.next_start or None
    return Reason(key=key, reason="rate_limit", number=use.used, seconds=seconds, evidence=use.limit.header, text=text)


def _inner_reasons(state: RunState, now: float, other_keys: Container[str]) -> Iterator[Reason]:
    """Yield the limits for which calls inside attempts wait: the last one did, or the next one has to."""
    waits = state.policy.known_limits.inner_waits if state.trials.running else {}
    for key, waited in waits.items():
        use = None if key in other_keys else limit_use(state, key, now)
        if use is not None and (waited > 0 or use.next_start > 0):
            name = f"{_name(key)}: " if len(waits) > 1 else ""
            yield _rate_limit_reason(key, name, use)


def _attempt_reasons(state: RunState, keys: list[str], now: float, ready_trials: int, total: int | None) -> Iterator[Reason]:
    unread_trials = None if total is None else max(0, total - state.totals.total)
    is_held = state.holds_attempts
    if is_held:
        outputs = state.totals.stages["scoring"]
        yield Reason(reason="scorers", number=outputs, text=f"scorers: {plural(outputs, 'output')} to score")
    if ready_trials and state.is_held(""):
        is_held, count = True, len(state.sessions.errors.repeated_errors[""].failed_trials)
        text = f"no output yet, the same error in {plural(count, 'trial')}: waiting for their outcome"
        yield Reason(reason="same_error", number=count, text=text)

    if ready_trials and state.budget is not None:
        blocks = {block_text(state, block): None for block in state.budget.blocks(state.budget.other_runs)}
        yield from (Reason(reason="budget", text=f"budget: {text}") for text in blocks)

    if ready_trials or state.trials.backing_off or unread_trials:
        yield from _key_reasons(state, keys, now, is_waiting=ready_trials > 0 and not is_held, show_keys=len(keys) > 1)

    if ready_trials:
        return
    if state.trials.backing_off:  # None of them is ready.
        count, seconds_left = len(state.trials.backing_off), min(state.trials.backing_off.values()) - now
        text = f"{plural(count, 'trial')} in backoff, next in {duration(seconds_left)}"
        yield Reason(reason="backoff", number=count, seconds=seconds_left, text=text)

    if unread_trials:
        yield Reason(reason="cases", number=unread_trials, text=f"dataset: {plural(unread_trials, 'trial')} to come")
    elif unread_trials is None:
        yield Reason(reason="cases", text="dataset: cases to come")
    elif not state.trials.backing_off:
        outputs = state.totals.stages["scoring"] if not state.trials.running else 0
        scoring = f"; scorers: {plural(outputs, 'output')} to score" if outputs else ""
        yield Reason(reason="none_left", text=f"no trials left to start{scoring}")


def _key_reasons(state: RunState, keys: list[str], now: float, *, is_waiting: bool, show_keys: bool) -> Iterator[Reason]:
    """Yield why the policies of some keys delay starts; `is_waiting` is whether something is ready to start."""
    for key in keys:
        pause, limit = state.policy.pauses.get(key), state.policy.limits.get(key)
        in_flight, slots = state.in_flight(key), state.slots_of(key)
        use = limit_use(state, key, now) if is_waiting else None
        name = f"{_name(key)}: " if show_keys or key.startswith(SCORER_PREFIX) else ""
        is_full = limit is not None and in_flight >= limit

        if slots is not None and in_flight >= slots:
            if is_waiting and (better_slots := _better_slots(state, key, slots, now)) is not None:
                yield Reason(key=key, reason="slots", number=better_slots, text=f"{name}{busy_text(slots, better_slots)}")
            continue

        if pause is not None and pause.is_in_force(now):
            kind: IdleReason = (
                "breaker" if pause.reason in BREAKER_REASONS else "retry_after" if pause.reason == "retry_after" else "pause"
            )
            seconds_left = pause.until - now if pause.until > now else None
            text = f"{name}{pause_text(pause, now, pause_reason(state, pause))}"
            yield Reason(key=key, reason=kind, seconds=seconds_left, evidence=pause.evidence, text=text)
        elif use is not None and not is_full and (use.next_start > 0 or (key not in state.policy.paces and _is_reason(use))):
            yield _rate_limit_reason(key, name, use)
        elif is_waiting and is_full and limit is not None and slots is not None and limit < slots:
            change = state.policy.limit_changes[key]
            evidence = change.evidence or (_FIRST_LIMIT if change.reason == "start" else "")
            text = f"{name}{limit_text(limit, slots, evidence)}"
            yield Reason(key=key, reason="limit", number=limit, evidence=change.evidence, text=text)
        elif is_waiting and not is_full and key in state.policy.paces:
            pace, evidence = state.policy.paces[key], state.policy.pace_evidence.get(key, "")
            yield Reason(key=key, reason="pace", number=pace, evidence=evidence, text=f"{name}{pace_text(pace, evidence)}")


def _is_reason(use: LimitUse) -> bool:
    """Return whether a limit with room, as far as the calls of this run show, is why nothing starts: others may use it, too."""
    return use.used >= _MOSTLY_USED * use.limit.size or use.quiet_seconds >= _QUIET_SECONDS


def _better_slots(state: RunState, key: str, slots: int, until: float) -> int | None:
    """Return how many slots of a key would use its known limits; None if its slots are enough, or not all of them are used."""
    use = state.policy.slot_use.get(key)
    return None if use is None or state.policy.limits.get(key, 0) < slots else use.better_slots(slots, until)


def busy_slots_text(state: RunState) -> str:
    """Return for which keys all slots were busy for half of the time although the known limit had room; empty if for none.

    `all 100 slots were busy for 52 s, and 60 % of 5k requests per minute were used; --slots 250 would use all`
    """
    texts: list[str] = []
    for key, use in state.policy.slot_use.items():
        slots, rate = state.slots_of(key) or 0, state.policy.known_limits.call_rate(key)
        better_slots = _better_slots(state, key, slots, use.last_start)
        if better_slots is not None and rate is not None and use.full_seconds >= (use.last_start - use.begin) / 2:
            limit = rate_limit_text(rate.limit.unit, rate.limit.size, rate.limit.window)
            name = f"{_name(key)}: " if len(state.policy.attempt_limits) > 1 else ""
            used = f"{math.floor(100 * use.share(use.last_start))} % of {limit} were used"
            texts.append(
                f"{name}all {slots:,} slots were busy for {duration(use.full_seconds)}, and {used}; `--slots {better_slots}` "
                "would use the limit"
            )
    return "; ".join(texts)


def _scorer_reasons(state: RunState, attempt_keys: list[str], now: float) -> Iterator[Reason]:
    """Yield why scorer calls with their own rate-limit keys are delayed."""
    if not state.totals.stages["scoring"]:
        return
    keys = [key for key in {**state.policy.limits, **state.policy.paces, **state.policy.pauses} if key not in attempt_keys]
    started_trials = {trial for trial, _ in (*state.scoring.open, *state.scoring.delayed)}
    yield from _key_reasons(state, keys, now, is_waiting=state.totals.stages["scoring"] > len(started_trials), show_keys=True)


def _name(key: str) -> str:
    return f"scorer {printable(key.removeprefix(SCORER_PREFIX), 24)}" if key.startswith(SCORER_PREFIX) else printable(key, 24)
