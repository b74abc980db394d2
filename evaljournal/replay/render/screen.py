"""The status of a run for people: the live screen, and one line for a log.

Nothing here reads a clock, a file or the terminal's size, so the live run, `status` and `replay` show the same screen. Names,
errors and labels are untrusted and are printed escaped.
"""

import heapq
import math
import textwrap
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from evaljournal.replay.render import summary as summary_text
from evaljournal.replay.render.batches import batch_lines
from evaljournal.replay.render.phrases import mean_text
from evaljournal.replay.results.budget_text import spent_text
from evaljournal.replay.results.summary import latency, score_of, steps_of
from evaljournal.replay.runs.idle import in_backoff, one_line, pause_reason, reasons
from evaljournal.replay.state.pauses import BREAKER_REASONS
from evaljournal.replay.state.run import RunState
from evaljournal.replay.state.trial import NO_SLOT, RunningAttempt
from evaljournal.replay.state.workers import ended_workers
from evaljournal.replay.text import digits, duration, escape_controls, plural, printable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

LONG_PAUSE: Final = 5.0
"""Seconds from which a pause is reported; shorter pauses are normal."""
_RECENT_OUTPUTS: Final = 1_000
"""Outputs in the latency on the screen; the final report includes all."""
_LONGEST_RUNNING: Final = 4
_MIN_DONE: Final = 3
"""Trials that must be done before the remaining time is estimated."""
_QUIET_SECONDS: Final = 10.0
_QUIET_TRIALS: Final = 5
"""Without a finished trial for 10 s and for 5 times the average time per trial, a run counts as stalled."""
_MINUTE: Final = 60
_LABEL_WIDTH: Final = 9
_MAX_ERROR_ROWS: Final = 3

_STOP_REASONS: Final = {
    "failed_fast": "too many errors",
    "same_error": "always the same error",
    "unauthorized": "unauthorized",
    "quota": "a quota is used up",
    "deadline": "deadline reached",
    "disk_full": "disk full",
    "dataset_failed": "the cases could not be read",
    "budget": "budget reached",
    "batches": "waiting for batches",
}
"""Why a run is being stopped, if the user has not interrupted it."""


def time_left_text(state: RunState, *, now: float, total: int | None) -> str:
    """Return the estimated time left at this session's rate; empty if unknown, if none is left or if the run is stalled."""
    done = state.totals.done - state.trials.done_before
    if total is None or total <= state.totals.done or done < _MIN_DONE or now <= 0 or stall_reason(state, now=now):
        return ""
    return f"about {duration(max(1, round((total - state.totals.done) * now / done)))} left"


def stall_reason(state: RunState, *, now: float, min_pause: float = LONG_PAUSE) -> str:
    """Return why the run is stalled: all starts are paused, or no trial has ended for a long time; empty if it is not.

    A pause of at most `min_pause` seconds is ignored.
    """
    return _pause_text(state, now, min_pause) or _quiet_text(state, now)


def _pause_text(state: RunState, now: float, min_pause: float = LONG_PAUSE) -> str:
    """Return why the attempts of all rate-limit keys are paused; empty if those of any key are not."""
    if state.outcome:
        return ""
    active_pauses = {key: pause for key, pause in state.policy.pauses.items() if pause.is_in_force(now)}
    if not active_pauses or not active_pauses.keys() >= (state.policy.attempt_limits or state.policy.limits).keys():
        return ""
    for pause in active_pauses.values():
        if pause.reason in BREAKER_REASONS:
            return f"{pause_reason(state, pause)}; probing"
    time_left = min(pause.until for pause in active_pauses.values()) - now
    return f"paused for {duration(time_left)}" if time_left > min_pause else ""


def _quiet_text(state: RunState, now: float) -> str:
    """Return how long no trial has ended; empty unless that is a long time."""
    is_waiting = (
        state.trials.running
        or state.trials.backing_off
        or state.scoring.open
        or state.scoring.delayed
        or any(pause.is_in_force(now) for pause in state.policy.pauses.values())
    )
    if not is_waiting or state.outcome or state.batches.lines.open:
        return ""

    quiet_seconds, done = now - state.trials.done_at, state.totals.done - state.trials.done_before
    min_seconds = max(_QUIET_SECONDS, _QUIET_TRIALS * now / done if done > 0 else 0.0)
    return f"no trial done for {duration(quiet_seconds)}" if quiet_seconds > min_seconds else ""


def panel(
    state: RunState,
    *,
    now: float,
    durable: int,
    total: int | None,
    width: int,
    title: str = "",
    stop_status: tuple[str, float] | None = None,
    show_rate: bool = True,
) -> "Group":
    """Return the live screen.

    `now` is in seconds of `t`; `durable` is the last record known to be on disk; `total` is the number of trials, if known;
    `stop_status` is why the run is being stopped, and how many seconds attempts in flight have left. `show_rate` is False for a
    run that may not be running, such as a damaged one.
    """
    from rich.console import Group  # noqa: PLC0415  # slow to import
    from rich.text import Text  # noqa: PLC0415  # slow to import

    rate = _rate(state, now=now, total=total) if show_rate else ""

    lines = [_heading(state, title, Text()), _progress(state, Text(), total=total, width=width, rate=rate)]
    previous_label = ""
    if stop_status is not None:
        lines.append(Text(f"stopping {stopping_text(state, *stop_status)}", style="bold yellow"))
    for label, text, style in _rows(state, now, durable, total):
        # An error may end with its cause, so it is not truncated to one line.
        for row in textwrap.wrap(text, max(20, width - _LABEL_WIDTH))[:_MAX_ERROR_ROWS] if label == "error" else [text]:
            line = Text()
            line.append(f"{label if label != previous_label else '':<{_LABEL_WIDTH}}", style="dim")
            line.append(row, style=style)
            lines.append(line)
            previous_label = label

    for line in lines:
        line.plain = escape_controls(line.plain)
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines)


def _heading(state: RunState, title: str, line: "Text") -> "Text":
    line.append(printable(state.started.evaluation) if state.started else "a run that has not started", style="bold")
    if title:
        line.append(f"  {printable(title, 200)}", style="dim")
    if len(state.sessions) > 1:
        line.append(f"  session {len(state.sessions)}", style="dim")
    return line


def _progress(state: RunState, line: "Text", *, total: int | None, width: int, rate: str) -> "Text":
    if total is None:
        return line.append(f"{state.totals.done:,} done of {state.totals.total:,} so far; total unknown{rate}")
    return progress_line(line, state.totals.done, total, width=width, rate=rate)


def progress_line(line: "Text", done: int, total: int, *, width: int, rate: str = "") -> "Text":
    share = min(1.0, done / total) if total else 1.0
    text = f"  {done:,} of {total:,} · {math.floor(100 * share)} %{rate}"
    bar_width = max(10, min(40, width - len(text)))
    filled_width = round(bar_width * share)

    line.append("━" * filled_width, style="green")
    line.append("─" * (bar_width - filled_width), style="dim")
    return line.append(text)


def _rate(state: RunState, *, now: float, total: int | None) -> str:
    stall, done = stall_reason(state, now=now), state.totals.done - state.trials.done_before
    if stall:
        return f" · {stall}"
    rate = f" · {digits(done / now, 3)}/s" if total is not None and done >= _MIN_DONE and now > 0 else ""
    time_left = time_left_text(state, now=now, total=total)
    return f"{rate} · {time_left}" if time_left else rate


def stopping_text(state: RunState, reason: str, time_left: float) -> str:
    """Return how many attempts are in flight in a run that is being stopped, and how long they may still take."""
    in_flight = len(state.trials.running) + state.totals.stages["scoring"]
    cause, suffix = ("", " again") if reason == "interrupted" else (f"{_STOP_REASONS.get(reason, printable(reason))}; ", "")
    if not in_flight:
        return f"{cause}no attempt in flight"
    attempts = f"{plural(in_flight, 'attempt')} in flight"
    if time_left <= 0:
        return f"{cause}interrupting {attempts}"
    return (
        f"{cause}{attempts}, {duration(time_left)} left; press Ctrl-C{suffix} to interrupt {'it' if in_flight == 1 else 'them'}"
    )


_Row = tuple[str, str, str]
"""A label, its text, and a style."""


def _rows(state: RunState, now: float, durable: int, total: int | None) -> Iterator[_Row]:
    yield "slots", _slots(state, now, total), ""
    if idle_reasons := reasons(state, now=now, total=total):
        yield "waiting", one_line(idle_reasons), "" if idle_reasons[0].reason == "none_left" else "yellow"

    if (error := state.sessions.errors.last_error) is not None and (
        error.outputs == state.trials.attempts.outputs or now - error.t < _MINUTE
    ):
        yield "error", summary_text.error_text(error, now), "yellow"
    yield from (
        ("error", sentence, "yellow") for sentence in summary_text.scorer_error_lines(state.sessions.errors.scorer_errors, now)
    )

    yield "trials", summary_text.trials_text(state), "red" if state.failed else ""
    if (steps := steps_of(state)) is not None:
        yield "steps", summary_text.steps_text(steps, _steps_per_second(state, now)), ""
    yield from (("steps", sentence, "yellow") for sentence in summary_text.missing_step_lines(state))
    yield from (("calls", sentence, "yellow") for sentence in summary_text.blocking_call_lines(state))
    yield from (("adopted", sentence, "yellow") for sentence in summary_text.adopted_lines(state))

    yield from (("variants", row, "") for row in summary_text.variant_lines(state))
    scores = {scorer: score_of(tally) for scorer, tally in state.scores.items()}
    for row in summary_text.score_lines(scores, state.totals):
        yield "scores", row, ""
    if state.trials.attempts.latencies:
        recent_latency = latency(state.trials.attempts.latencies[-_RECENT_OUTPUTS:])
        outputs = plural(recent_latency.count, "output")
        scope = outputs if recent_latency.count == len(state.trials.attempts.latencies) else f"the last {outputs}"
        yield "latency", summary_text.latency_text(recent_latency, scope, "p50", "p95"), ""
    yield from (("outputs", sentence, "yellow") for sentence in summary_text.answer_lines(state))

    if usage := summary_text.billed_usage(state.usage):
        yield "usage", summary_text.usage_text(usage, state.usage_parts.unpriced_models), ""
    yield from (("workers", sentence, "yellow") for sentence in ended_workers(state.workers))
    if budget_text := spent_text(state):
        yield "budget", budget_text, ""
    if state.batches:
        wall = datetime.fromisoformat(state.at) + timedelta(seconds=max(0.0, now - state.t))
        yield from (("batches", sentence, "") for sentence in batch_lines(state, wall))

    in_slots = ((name, attempt) for name, attempt in state.trials.running.items() if attempt.slot != NO_SLOT)
    for name, attempt in heapq.nsmallest(_LONGEST_RUNNING, in_slots, key=lambda item: item[1].start):
        # A timeout does not count the time in which calls inside the attempt wait for rate limits.
        timeout = None if state.policy.known_limits.inner_waits else state.settings.get("timeout")
        yield "longest", *_running_text(name, attempt, now, timeout)
    yield "journal", f"seq {state.seq:,} · synced up to {durable:,}", "dim"


def _slots(state: RunState, now: float, total: int | None) -> str:
    limit, stages, backoff = state.policy.limit, state.totals.stages, in_backoff(state, now)
    parts = [f"{len(state.trials.running):,}{'' if limit is None else f' of {limit:,}'} busy"]
    if stages["scoring"]:
        parts.append(f"{stages['scoring']:,} being scored")
    parts.append(f"{stages['queued'] + stages['interrupted'] + len(state.trials.backing_off) - backoff:,} queued")
    if backoff:
        parts.append(f"{backoff:,} in backoff")
    if total is not None and total > state.totals.total:
        parts.append(f"{total - state.totals.total:,} to come")
    return " · ".join(parts)


def _running_text(name: str, attempt: RunningAttempt, now: float, timeout: object) -> tuple[str, str]:
    elapsed = max(0.0, now - attempt.start)
    text = f"slot {attempt.slot:>3}  {printable(name, 40):<20}  attempt {attempt.attempt}  {duration(elapsed)}"
    step = ""
    if attempt.ended_steps:
        age = duration(max(0.0, now - attempt.last_step_end))
        step = f" · {plural(attempt.ended_steps, 'step')}, the last {age} ago: {printable(attempt.last_step, 40)}"
    if not isinstance(timeout, int | float):
        return f"{text}{step}", "dim"
    if elapsed > timeout:
        return f"{text}, over its timeout; not responding to cancellation{step}", "red"
    return f"{text} of {duration(timeout)}{step}", "dim"


def _steps_per_second(state: RunState, now: float) -> float | None:
    return (state.steps.executed - state.steps.before_session) / now if now > 0 and not state.outcome else None


def line(state: RunState, *, now: float, total: int | None) -> str:
    """Return the status of a run in one line, for a log."""
    if total is None:
        parts = [f"{state.totals.done:,} done"]
    else:
        share = min(1.0, state.totals.done / total) if total else 1.0
        parts = [f"{state.totals.done:,} of {total:,} ({math.floor(100 * share)} %)"]
    parts.append(summary_text.trials_text(state))

    idle_reasons = [reason for reason in reasons(state, now=now, total=total) if reason.reason != "none_left"]
    if (backoff := in_backoff(state, now)) and not any(reason.reason == "backoff" for reason in idle_reasons):
        parts.append(f"{backoff:,} in backoff")

    for scorer, tally in state.scores.items():
        if tally.mean is not None:
            parts.append(f"{printable(scorer, 24)} {mean_text(tally.kind, tally.mean)}")
    if state.steps and (per_second := _steps_per_second(state, now)) is not None:
        parts.append(f"{plural(state.steps.executed, 'step')}, {digits(per_second, 2)}/s")
    parts += [f"{plural(count, 'attempt')} without a step"] if (count := state.steps.attempts_without_steps) else []
    if time_left := time_left_text(state, now=now, total=total):
        parts.append(time_left)

    parts += [f"budget: {budget_text}"] if (budget_text := spent_text(state)) else []
    if idle_reasons:
        parts.append(f"waiting: {one_line(idle_reasons)}")
    if quiet_text := _quiet_text(state, now):
        parts.append(quiet_text)

    if state.sessions.errors.last_error and (quiet_text or _pause_text(state, now)):
        parts.append(summary_text.error_text(state.sessions.errors.last_error, now))
    parts += summary_text.scorer_error_lines(state.sessions.errors.scorer_errors, now)
    return " · ".join(parts)
