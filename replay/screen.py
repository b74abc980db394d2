"""The status of a run for people: the live screen, and one line for a log.

Everything is derived from a `RunState` and what the caller passes; nothing here reads a clock, a file or the terminal's size,
so the live run, `status` and `replay` draw the same picture. Names, errors and labels are untrusted and are printed escaped.
"""

import heapq
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from replay.idle import in_backoff, one_line, reasons
from replay.intake import CAUSES, PROBING
from replay.state import RunState, TrialState
from replay.summary import latency, score_of
from replay.summary_text import (
    adopted_lines,
    billed_usage,
    error_in_words,
    latency_in_words,
    score_lines,
    trials_in_words,
    truncated_lines,
    usage_in_words,
)
from replay.text import digits, duration, plural, printable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

_RECENT: Final = 1_000
"""Answers whose times are looked at while a run goes on; the end looks at all of them."""
_LONGEST: Final = 4
"""Attempts that are shown one by one: those that have run longest."""
_FEW: Final = 3
"""Trials that must be done before it is said how long the rest will take."""
LONG: Final = 5.0
"""Seconds from which on a pause is worth more than a glance; shorter ones are part of the pace."""
_QUIET: Final = 10.0
"""Seconds in which nothing is done before that is said; in a slow run, as many times what a trial takes on average as below."""
_TIMES: Final = 5
_MINUTE: Final = 60
_REASONS: Final = {
    "failed_fast": "too many trials failed",
    "unauthorized": "the key or the account was refused",
    "deadline": "its time is over",
    "disk_full": "the disk is full",
    "dataset_failed": "its cases could not be read",
}
"""Why a session is being stopped, where nobody has asked for it."""


def remaining(state: RunState, *, now: float, total: int | None, before: int) -> float | None:
    """Seconds that the rest will take at the pace of this session so far; None where that is not known, or not the pace now."""
    here = state.done - before
    if total is None or here < _FEW or now <= 0 or stall_reason(state, now=now, before=before):
        return None
    return max(0, total - state.done) * now / here


def stall_reason(state: RunState, *, now: float, before: int, least: float = LONG) -> str:
    """Return why the pace so far does not predict the rest: nothing may start, or nothing was done for long. Otherwise empty.

    A pause that is over in `least` seconds does not count.
    """
    return _paused(state, now, least) or _quiet(state, now, before)


def _paused(state: RunState, now: float, least: float = LONG) -> str:
    """Return that the attempts of all rate-limit keys are paused, if they are."""
    if state.ending:
        return ""
    paused = {key: pause for key, pause in state.pauses.items() if pause.is_in_force(now)}
    if not paused or not paused.keys() >= (state.attempt_limits or state.limits).keys():  # Otherwise another key goes on.
        return ""
    for pause in paused.values():
        if pause.cause in PROBING:
            return f"{CAUSES[pause.cause]}; probing"
    left = min(pause.until for pause in paused.values()) - now
    return f"paused for {duration(left)}" if left > least else ""


def _quiet(state: RunState, now: float, before: int) -> str:
    """Return for how long nothing was done, if that is long."""
    quiet, here = now - state.done_at, state.done - before
    is_waiting = state.running or state.backing_off or any(pause.is_in_force(now) for pause in state.pauses.values())
    if not state.ending and is_waiting and quiet > max(_QUIET, _TIMES * now / here if here > 0 else 0.0):
        return f"nothing done for {duration(quiet)}"
    return ""


def panel(
    state: RunState,
    *,
    now: float,
    durable: int,
    total: int | None,
    width: int,
    before: int = 0,
    title: str = "",
    stopping: tuple[str, float] | None = None,
    goes_on: bool = True,
) -> "Group":
    """Draw where a run stands, a line for each thing that there is something to say about.

    `now` is in the seconds of `t`; `durable` is the last record that is known to be on disk; `total` is how many trials there
    will be, if that is known; `before` is how many were done when this session began, for the pace; `stopping` is why the run
    is being stopped, and how many seconds attempts in the air have left. Where nobody knows that it `goes_on`, as behind a
    damage, neither a pace nor an end is told.
    """
    from rich.console import Group  # noqa: PLC0415  # slow to import, and `log` needs only the words
    from rich.text import Text  # noqa: PLC0415  # the same

    pace = _pace(state, now=now, total=total, before=before) if goes_on else ""
    lines = [_heading(state, title, Text()), _progress(state, Text(), total=total, width=width, pace=pace)]
    last = ""
    if stopping is not None:
        lines.append(Text(f"stopping {stopping_in_words(state, *stopping)}", style="bold yellow"))
    for label, words, style in _rows(state, now, durable, total):
        line = Text()
        line.append(f"{label if label != last else '':<9}", style="dim")
        line.append(words, style=style)
        lines.append(line)
        last = label
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines)


def _heading(state: RunState, title: str, line: "Text") -> "Text":
    line.append(printable(state.started.evaluation) if state.started else "a run that has not begun", style="bold")
    if title:
        line.append(f"  {printable(title, 200)}", style="dim")
    if len(state.sessions) > 1:
        line.append(f"  session {len(state.sessions)}", style="dim")
    return line


def _progress(state: RunState, line: "Text", *, total: int | None, width: int, pace: str) -> "Text":
    if total is None:
        return line.append(f"{state.done:,} done of {state.total:,} so far; how many there will be is not known{pace}")
    share = min(1.0, state.done / total) if total else 1.0
    words = f"  {state.done:,} of {total:,} · {math.floor(100 * share)} %{pace}"
    bar = max(10, min(40, width - len(words)))
    filled = round(bar * share)
    line.append("━" * filled, style="green")
    line.append("─" * (bar - filled), style="dim")
    return line.append(words)


def _pace(state: RunState, *, now: float, total: int | None, before: int) -> str:
    """Tell how fast it goes and how long the rest will take, or why that cannot be said."""
    why, here = stall_reason(state, now=now, before=before), state.done - before
    if why:
        return f" · {why}"
    pace = f" · {digits(here / now, 3)}/s" if total is not None and here >= _FEW and now > 0 else ""
    left = remaining(state, now=now, total=total, before=before)
    return f"{pace} · about {duration(max(1, round(left)))} left" if left else pace


def stopping_in_words(state: RunState, why: str, left: float) -> str:
    """Tell what is still in the air of a run that is being stopped, and for how long it may be."""
    flying = len(state.running) + state.stages["answered"]
    because, again = ("", " again") if why == "interrupted" else (f"{_REASONS.get(why, printable(why))}; ", "")
    if not flying:
        return f"{because}nothing is in the air any more"
    if left <= 0:
        return f"{because}{plural(flying, 'attempt')} {'is' if flying == 1 else 'are'} being cut off"
    has, them = ("has", "it") if flying == 1 else ("have", "them")
    return f"{because}{plural(flying, 'attempt')} {has} {duration(left)} left; Ctrl-C{again} to cut {them} off"


_Row = tuple[str, str, str]
"""A label, what is said under it, and a style of rich's."""


def _rows(state: RunState, now: float, durable: int, total: int | None) -> Iterator[_Row]:
    yield "slots", _slots(state, now, total), ""
    if idle := reasons(state, now=now, total=total):
        yield "waiting", one_line(idle), "" if idle[0].reason == "none_left" else "yellow"
    if (error := state.last_error) is not None and (error.answers == len(state.latencies) or now - error.t < _MINUTE):
        yield "error", error_in_words(error, now), "yellow"
    yield "trials", trials_in_words(state), ""
    yield from (("adopted", sentence, "yellow") for sentence in adopted_lines(state))
    if state.failed:
        yield "failed", f"{state.failed:,} of {state.done:,} done", "red"
    scores = {scorer: score_of(tally) for scorer, tally in state.scores.items()}
    for row in score_lines(scores, failed=state.failed):
        yield "scores", row, ""
    if state.latencies:
        recent = latency(state.latencies[-_RECENT:])
        answers = plural(recent.answers, "answer")
        of = answers if recent.answers == len(state.latencies) else f"the last {answers}"
        yield "answers", latency_in_words(recent, of, "p50", "p95"), ""
    yield from (("answers", sentence, "yellow") for sentence in truncated_lines(state))
    used = billed_usage(state.usage)
    if used:
        yield "usage", usage_in_words(used), ""
    for name, trial in heapq.nsmallest(_LONGEST, state.running.items(), key=lambda item: item[1].since):
        yield "longest", *_running(name, trial, now, state.settings.get("timeout"))
    yield "journal", f"seq {state.seq:,} · on disk to {durable:,}", "dim"


def _slots(state: RunState, now: float, total: int | None) -> str:
    most = state.limit
    parts = [f"{len(state.running):,}{'' if most is None else f' of {most:,}'} busy"]
    if state.stages["answered"]:
        parts.append(f"{state.stages['answered']:,} being scored")
    backoff = in_backoff(state, now)
    parts.append(f"{state.stages['queued'] + state.stages['interrupted'] + len(state.backing_off) - backoff:,} queued")
    if backoff:
        parts.append(f"{backoff:,} in backoff")
    if total is not None and total > state.total:
        parts.append(f"{total - state.total:,} to come")
    return " · ".join(parts)


def _running(name: str, trial: TrialState, now: float, timeout: object) -> tuple[str, str]:
    elapsed = max(0.0, now - trial.since)
    said = f"slot {trial.slot:>3}  {printable(name, 40):<20}  attempt {trial.attempts}  {duration(elapsed)}"
    if not isinstance(timeout, int | float):
        return said, "dim"
    if elapsed > timeout:
        return f"{said} of {duration(timeout)}: it resists being stopped", "red"
    return f"{said} of {duration(timeout)}", "dim"


def line(state: RunState, *, now: float, durable: int, total: int | None, before: int = 0) -> str:
    """Tell where a run stands in one plain line, for a log."""
    if total is None:
        parts = [f"{state.done:,} done"]
    else:
        parts = [f"{state.done:,} of {total:,} ({math.floor(100 * min(1.0, state.done / total)) if total else 100} %)"]
    parts.append(f"{state.completed:,} ok, {state.failed:,} failed, {state.recovered:,} recovered")
    idle = [reason for reason in reasons(state, now=now, total=total) if reason.reason != "none_left"]
    if (backoff := in_backoff(state, now)) and not any(reason.reason == "backoff" for reason in idle):
        parts.append(f"{backoff:,} in backoff")
    for scorer, tally in state.scores.items():
        if tally.mean is not None:
            mean = f"{100 * tally.mean:.1f} %" if tally.kind == "pass" else digits(tally.mean, 3)
            parts.append(f"{printable(scorer, 24)} {mean}")
    left = remaining(state, now=now, total=total, before=before)
    if left:
        parts.append(f"about {duration(max(1, round(left)))} left")
    if idle:
        parts.append(f"waiting: {one_line(idle)}")
    if quiet := _quiet(state, now, before):
        parts.append(quiet)
    if state.last_error and (quiet or _paused(state, now)):
        parts.append(error_in_words(state.last_error, now))
    parts.append(f"seq {state.seq:,}, on disk to {durable:,}")
    return " · ".join(parts)
