"""Batches as text: their state, counts, age, expiry and cost."""

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from evaljournal.replay.results.summary import BatchSummary, batches_of
from evaljournal.replay.state.batches import UNSENT_STATES
from evaljournal.replay.state.run import RunState
from evaljournal.replay.text import duration, money, plural, printable

_MAX_BATCHES: Final = 5
_CANCELLED: Final = frozenset({"cancelled", "canceled"})


def waiting_text(state: RunState) -> str:
    """Return what a run waits for: `waiting for a batch (1,200 of 5,000 lines done, expires at 2026-11-18 10:15 UTC)`."""
    batches = [batch for batch in batches_of(state) if batch.is_open]
    if not batches:
        return "waiting for batches"
    if lost := sum(batch.is_lost for batch in state.batches.values()):
        return f"stopped ({'a batch has' if lost == 1 else f'{lost:,} batches have'} no results to collect)"
    done, lines = sum(batch.completed + batch.failed for batch in batches), sum(batch.lines for batch in batches)
    ends = [end for batch in batches if (end := _time(batch.expires)) is not None]
    count, subject = ("a batch", "") if len(batches) == 1 else (plural(len(batches), "batch", "batches"), "the first ")
    expiry = f", {subject}expires at {min(ends):%Y-%m-%d %H:%M} UTC" if ends else ""
    return f"waiting for {count} ({done:,} of {plural(lines, 'line')} done{expiry})"


def batch_lines(state: RunState, wall: datetime | None = None) -> Iterator[str]:
    """Yield a line for each open batch, the first few, and one for the others; `wall` is now (default: the last record)."""
    batches = batches_of(state)
    open_batches, cost = [batch for batch in batches if batch.is_open], sum(batch.cost or 0.0 for batch in batches)
    now = wall or _time(state.at)

    yield from (_open_text(batch, now) for batch in open_batches[:_MAX_BATCHES])
    if len(open_batches) > _MAX_BATCHES:
        yield f"and {len(open_batches) - _MAX_BATCHES:,} more"

    if ended := [batch for batch in batches if not batch.is_open and batch.state not in UNSENT_STATES]:
        results, missing, unused = (sum(getattr(batch, name) for batch in ended) for name in ("results", "missing", "unused"))
        parts = [f"{plural(len(ended), 'batch', 'batches')} collected: {plural(results, 'result')} used"]
        parts += [f"{missing:,} without a result"] if missing else []
        parts += [f"{plural(unused, 'result')} not used"] if unused else []
        parts += [f"{count:,} cancelled"] if (count := sum(batch.state in _CANCELLED for batch in ended)) else []
        parts += [money(cost)] if cost else []
        yield ", ".join(parts)

    for state_name, text in (("failed", "failed"), ("not_sent", "not accepted")):
        if rejected := [batch for batch in batches if not batch.is_open and batch.state == state_name]:
            reason = f": {printable(rejected[-1].message, 120)}" if rejected[-1].message else ""
            yield f"{plural(len(rejected), 'batch', 'batches')} {text}{reason}"


def _open_text(batch: BatchSummary, now: datetime | None) -> str:
    scorer = f" of {printable(batch.scorer, 24)}" if batch.scorer else ""
    state = "prepared (the provider may already have it)" if batch.id is None else printable(batch.state, 24).replace("_", " ")
    parts = [state, f"{batch.completed + batch.failed:,} of {batch.lines:,} done"]
    parts += [f"{batch.failed:,} with an error"] if batch.failed else []
    start, end = _time(batch.submitted_at or batch.prepared_at), _time(batch.expires)
    if now is not None and start is not None:
        parts.append(f"{duration(max(0.0, (now - start).total_seconds()))} old")
    if now is not None and end is not None:
        seconds_left = (end - now).total_seconds()
        parts.append(f"expires in {duration(seconds_left)}" if seconds_left > 0 else "expired")
    parts += [money(batch.cost)] if batch.cost else []
    parts += [printable(batch.message, 80)] if batch.message else []
    return f"batch {batch.batch}{scorer}: {', '.join(parts)}"


def _time(text: str | None) -> datetime | None:
    """Return a recorded time; None if it is unknown or not a time, because a journal may be foreign."""
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text or "").astimezone(UTC)
    return None
