"""Draw a run for people: where it stands, how it goes on, and how it ended.

Everything is derived from a `RunState` and from what the caller says about the moment; nothing here reads a clock, a file
or the size of a terminal. The live run, `status` and whoever travels back in time see the same picture, because one function
draws it.

Names, errors and labels come from elsewhere, and are not trusted: they reach the terminal as plain text, without a character
that could do anything to it.
"""

import heapq
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson

from journal import Blob
from replay.state import RunState, Tally, TrialState

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

_WIDTH: Final = 60
_RECENT: Final = 1_000
"""Answers whose times are looked at while a run goes on; the end looks at all of them."""
_LONGEST: Final = 4
"""Attempts that are shown one by one: those that have run longest."""
_SHOWN: Final = 5
"""Failures that are told one by one at the end."""
_LABELS: Final = 6
_FEW: Final = 3
"""Trials that must be done before it is said how long the rest will take."""
_Z: Final = 1.959964
"""Standard deviations on either side of the mean that hold 95 % of a normal distribution."""
_MINUTE: Final = 60
_HOUR: Final = 3600

_PAUSES: Final = {
    "retry_after": "429 Retry-After",
    "rate_limited": "429, too many requests",
    "quota": "the quota is used up",
    "illness": "the other side is ill, one probe at a time",
}
"""Why nothing may start, in words; any other cause is shown as it stands."""

_ENDINGS: Final = {
    "finished": "finished",
    "interrupted": "interrupted",
    "failed_fast": "stopped because too many trials failed",
    "deadline": "stopped at its deadline",
    "disk_full": "stopped because the disk is full",
    "intake_failed": "stopped because its cases could not be read",
}
"""How a session ended, in words; one that left no word died."""

_REASONS: Final = {
    "failed_fast": "too many trials failed",
    "deadline": "its time is over",
    "disk_full": "the disk is full",
    "intake_failed": "its cases could not be read",
}
"""Why a session is being stopped, where nobody has asked for it."""


def printable(value: Any, width: int = _WIDTH) -> str:
    """Show a value in a few characters, none of which can do anything to a terminal."""
    if isinstance(value, Blob):
        return f"({value.bytes:,} bytes in a blob)"
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[: width + 1])
    return text if len(text) <= width else f"{text[: width - 1]}…"


def duration(seconds: float) -> str:
    """Tell a time as people do: `0.93 ms`, `0.24 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if 0 < seconds < 0.1:  # noqa: PLR2004 - below, the zeros would be in the way
        return f"{1000 * seconds:.2g} ms"
    if seconds < 10:  # noqa: PLR2004 - below, parts of a second are worth telling
        return f"{max(0.0, seconds):.2g} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR:,} h {whole % _HOUR // _MINUTE} min"


@attrs.frozen
class Interval:
    """An estimate, and the range that holds the true value 95 times in 100."""

    mean: float
    low: float
    high: float


def interval(tally: Tally) -> Interval | None:
    """Say what a scorer's mean is and how sure that is; None for labels, or where nothing was scored.

    Pass or fail: Wilson's interval, which stays true for few trials and near 0 or 1. Numbers: the normal one, from two on.
    """
    mean, n = tally.mean, tally.scored
    if mean is None:
        return None
    if tally.is_pass_or_fail:
        spread = _Z * math.sqrt(mean * (1 - mean) / n + _Z**2 / (4 * n**2))
        middle, scale = mean + _Z**2 / (2 * n), 1 + _Z**2 / n
        return Interval(mean, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))
    if n == 1:
        return Interval(mean, mean, mean)
    variance = max(0.0, (tally.squares - n * mean**2) / (n - 1))
    half = _Z * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Find the value below which this share of the ordered values lies: the nearest rank, never a value that did not occur."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def limit(state: RunState) -> int | None:
    """How many attempts may run at once, over all keys; None where nobody has said."""
    if state.limits:
        return sum(state.limits.values())
    slots = state.settings.get("slots")
    return slots if isinstance(slots, int) else None


def remaining(state: RunState, *, now: float, total: int | None, before: int) -> float | None:
    """Seconds that the rest will take at the pace of this session so far; None while that is not known."""
    here = state.done - before
    if total is None or here < _FEW or now <= 0:
        return None
    return max(0, total - state.done) * now / here


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
) -> "Group":
    """Draw where a run stands, a line for each thing that there is something to say about.

    `now` is in the seconds of `t`; `durable` is the last record that is known to be on disk; `total` is how many trials there
    will be, if that is known; `before` is how many were done when this session began, for the pace; `stopping` is why the run
    is being stopped, and how many seconds attempts in the air have left.
    """
    from rich.console import Group  # noqa: PLC0415  # slow to import, and `log` needs only the words
    from rich.text import Text  # noqa: PLC0415  # the same

    lines = [_heading(state, title, Text()), _progress(state, Text(), now=now, total=total, width=width, before=before)]
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


def _progress(state: RunState, line: "Text", *, now: float, total: int | None, width: int, before: int) -> "Text":
    if total is None:
        return line.append(f"{state.done:,} done of {state.total:,} so far; how many there will be is not known")
    share = min(1.0, state.done / total) if total else 1.0
    words = f"  {state.done:,} of {total:,} · {math.floor(100 * share)} %"
    here = state.done - before
    if here >= _FEW and now > 0:
        words += f" · {here / now:.3g}/s"
    left = remaining(state, now=now, total=total, before=before)
    if left:
        words += f" · about {duration(max(1, round(left)))} left"
    bar = max(10, min(40, width - len(words)))
    filled = round(bar * share)
    line.append("━" * filled, style="green")
    line.append("─" * (bar - filled), style="dim")
    return line.append(words)


def stopping_in_words(state: RunState, why: str, left: float) -> str:
    """Tell what is still in the air of a run that is being stopped, and for how long it may be."""
    flying = len(state.running) + state.stages["answered"]
    because, again = ("", " again") if why == "interrupted" else (f"{_REASONS.get(why, printable(why))}; ", "")
    if not flying:
        return f"{because}nothing is in the air any more"
    if left <= 0:
        return f"{because}{_plural(flying, 'attempt')} {'is' if flying == 1 else 'are'} being cut off"
    has, them = ("has", "it") if flying == 1 else ("have", "them")
    return f"{because}{_plural(flying, 'attempt')} {has} {duration(left)} left; Ctrl-C{again} to cut {them} off"


_Row = tuple[str, str, str]
"""A label, what is said under it, and a style of rich's."""


def _rows(state: RunState, now: float, durable: int, total: int | None) -> Iterator[_Row]:
    yield "slots", _slots(state, total), ""
    for until, cause in state.pauses.values():
        if until > now:
            yield "paused", f"waiting {duration(until - now)}: {_PAUSES.get(cause, printable(cause))}", "yellow"
    if state.backing_off:
        yield "back-off", _back_off(state.backing_off, now), "yellow"
    yield "trials", _trials(state), ""
    if state.failed:
        yield "failed", f"{state.failed:,} of {state.done:,} done", "red"
    for row in score_lines(state):
        yield "scores", row, ""
    if state.latencies:
        yield "answers", _latency(state.latencies[-_RECENT:], len(state.latencies)), ""
    used = usage_of(state)
    if used:
        yield "usage", _usage(used), ""
    for name, trial in heapq.nsmallest(_LONGEST, state.running.items(), key=lambda item: item[1].since):
        yield "longest", *_running(name, trial, now, state.settings.get("timeout"))
    yield "journal", f"seq {state.seq:,} · on disk to {durable:,}", "dim"


def _slots(state: RunState, total: int | None) -> str:
    most = limit(state)
    parts = [f"{len(state.running):,}{'' if most is None else f' of {most:,}'} busy"]
    if state.stages["answered"]:
        parts.append(f"{state.stages['answered']:,} being scored")
    waiting = state.stages["queued"] + state.stages["interrupted"]
    parts.append(f"{waiting:,} queued")
    if total is not None and total > state.total:
        parts.append(f"{total - state.total:,} to come")
    return " · ".join(parts)


def _back_off(waiting: dict[str, TrialState], now: float) -> str:
    causes = Counter(trial.trouble.category if trial.trouble else "interrupted" for trial in waiting.values())
    soonest = min(trial.due for trial in waiting.values()) - now
    why = ", ".join(f"{count:,} × {printable(cause)}" for cause, count in causes.most_common())
    return f"{_plural(len(waiting), 'trial')}, the next in {duration(soonest)}: {why}"


def _trials(state: RunState) -> str:
    parts = [f"{state.completed:,} ok of {state.done:,} done"]
    if state.recovered:
        parts.append(f"{state.recovered:,} of {state.completed:,} ok recovered after a failure")
    if state.stages["withdrawn"]:
        parts.append(f"{state.stages['withdrawn']:,} withdrawn")
    return " · ".join(parts)


def score_lines(state: RunState) -> Iterator[str]:
    """Tell what each scorer has said so far, with its denominator and its interval."""
    names = {scorer: printable(scorer, 24) for scorer in state.scores}
    wide = max(map(len, names.values()), default=0)
    for scorer, tally in state.scores.items():
        yield f"{names[scorer]:<{wide}}  {score_in_words(tally)}"


def score_in_words(tally: Tally) -> str:
    """Tell what one scorer has said so far: `91.4 %  53 of 58 scored (95 %: 81.4–96.3 %)`."""
    found = interval(tally)
    if found is None:
        said = _labels(tally) if tally.labels else "nothing yet"
    elif tally.is_pass_or_fail:
        said = (
            f"{100 * found.mean:.1f} %  {round(tally.total):,} of {tally.scored:,} scored "
            f"(95 %: {100 * found.low:.1f}–{100 * found.high:.1f} %)"
        )
    else:
        said = f"{found.mean:.3g}  mean of {tally.scored:,} scored"
        if tally.scored > 1:
            said += f" (95 %: {found.low:.3g} to {found.high:.3g})"
    if not tally.failed:
        return said
    why = f" ({printable(' '.join(tally.error.split()), 200)})" if tally.error else ""
    return f"{said}, {tally.failed:,} could not be scored{why}"


def _labels(tally: Tally) -> str:
    common = [(label, count) for label, count in tally.labels.most_common(_LABELS) if count]
    said = ", ".join(f"{printable(label, 24)} {100 * count / tally.scored:.0f} %" for label, count in common)
    others = sum(count > 0 for count in tally.labels.values()) - len(common)  # One that was taken back is still there, as 0.
    more = f" and {_plural(others, 'more label')}" if others else ""
    return f"{said}{more}  of {tally.scored:,} scored"


def _latency(times: Iterable[float], answers: int) -> str:
    ordered = sorted(times)
    of = f"{answers:,} answers" if len(ordered) == answers else f"the last {len(ordered):,} answers"
    return f"p50 {duration(percentile(ordered, 0.5))} · p95 {duration(percentile(ordered, 0.95))} of {of}"


def usage_of(state: RunState) -> dict[str, float]:
    """Pick what is paid for out of all that was noted: tokens and cost. The sum of temperatures says nothing."""
    return {name: value for name, value in state.usage.items() if "token" in name.lower() or "cost" in name.lower()}


def _usage(used: dict[str, float]) -> str:
    return " · ".join(f"{printable(name, 24)} {number(value)}" for name, value in used.items())


def number(value: float) -> str:
    """Show a count in full, and anything else in four digits."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


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
    if state.backing_off:
        parts.append(f"{len(state.backing_off):,} in back-off")
    for scorer, tally in state.scores.items():
        found = interval(tally)
        if found is not None:
            mean = f"{100 * found.mean:.1f} %" if tally.is_pass_or_fail else f"{found.mean:.3g}"
            parts.append(f"{printable(scorer, 24)} {mean}")
    left = remaining(state, now=now, total=total, before=before)
    if left:
        parts.append(f"about {duration(max(1, round(left)))} left")
    parts.append(f"seq {state.seq:,}, on disk to {durable:,}")
    return " · ".join(parts)


def ending(state: RunState, *, path: Path | str, total: int | None = None, stopped: str = "", why: str = "") -> str:
    """Tell how a run ended: the counts, the scores, what was lost or paid twice, what failed, and which command comes next.

    `stopped` says why it was stopped where the last record could not any more, because the disk was full.
    """
    lines = [_verdict(state, path, total, stopped)]
    if why:
        lines.append(f"  {printable(' '.join(why.split()), 500)}")
    lines.append(f"  {_trials(state)}")
    lines += [f"  {row}" for row in score_lines(state)]
    if state.latencies:
        lines.append(f"  {_latency(state.latencies, len(state.latencies))}")
    used = usage_of(state)
    if used:
        lines.append(f"  {_usage(used)}")
    lines += [f"  {sentence}" for sentence in _notable(state)]
    lines += _failures(state)
    lines += [f"look closer: {closer}" for closer in _closer(state, path)]
    lines.append(f"next: {next_command(state, path)}")
    return "\n".join(lines)


def how_it_ended(state: RunState, stopped: str = "") -> str:
    """Say how the last session ended, in words."""
    how = state.ending or stopped
    return _ENDINGS.get(how, printable(how)) if how else "cut off without a word"


def _verdict(state: RunState, path: Path | str, total: int | None, stopped: str) -> str:
    name = printable(state.started.evaluation) if state.started else "the run"
    known = max(total or 0, state.total, state.planned if state.ending != "finished" else 0)
    how, where = how_it_ended(state, stopped), printable(str(path), 500)
    return f"{name} {how}: {state.done:,} of {_plural(known, 'trial')} done, in {where}"


def _notable(state: RunState) -> Iterator[str]:
    if state.retries:
        asked = {"asked": "asked for"}
        causes = ", ".join(f"{count:,} × {asked.get(cause, printable(cause))}" for cause, count in state.retries.most_common())
        yield f"{_plural(sum(state.retries.values()), 'retry', 'retries')}: {causes}"
    if state.interrupted:
        were = "was" if state.interrupted == 1 else "were"
        yield f"{_plural(state.interrupted, 'attempt')} {were} cut off: if tried again, the call may have been paid for twice"
    if state.running:
        yield f"{_plural(len(state.running), 'attempt')} had no ending yet, and will be made again"
    if state.late:
        yield f"{_plural(state.late, 'answer')} came after the limit, and {'is' if state.late == 1 else 'are'} not used"
    if state.recoveries:
        yield f"the journal was recovered {_plural(state.recoveries, 'time')} after a crash; what was set aside is under torn/"


def _failures(state: RunState) -> Iterator[str]:
    """Tell a few failures, different ones first: of a hundred times the same, one is enough."""
    if not state.failed:
        return
    yield f"{_plural(state.failed, 'trial')} failed:"
    told: dict[str, TrialState] = {}
    seen: set[tuple[str, str]] = set()
    same: list[tuple[str, TrialState]] = []
    for name, trial in failed_trials(state):
        if (trial.cause, trial.error) in seen:
            same += [(name, trial)] if len(same) < _SHOWN else []
        elif len(told) < _SHOWN:
            seen.add((trial.cause, trial.error))
            told[name] = trial
    told.update(islice(same, _SHOWN - len(told)))
    for name, trial in told.items():
        error = "cut off while it ran, and not tried again" if trial.cause == "ambiguous" else " ".join(trial.error.split())
        yield f"  {printable(name)}: {printable(error, 200)} ({printable(trial.cause)}, {_plural(trial.attempts, 'attempt')})"
    if state.failed > len(told):
        yield f"  and {state.failed - len(told):,} more"


def failed_trials(state: RunState) -> Iterator[tuple[str, TrialState]]:
    """Find the trials that were given up, in the order in which they were taken in."""
    return ((name, trial) for name, trial in state.trials.items() if trial.stage == "failed")


def next_command(state: RunState, path: Path | str) -> str:
    """Name the command that somebody would use next, so that it can be copied as it stands."""
    run = printable(shlex.quote(str(path)), 1_000)
    if state.ending != "finished":
        return f"evaljournal resume {run}"
    if state.failed:
        return f"evaljournal resume {run} --retry-failed"
    return f"evaljournal verify {run}"


def _closer(state: RunState, path: Path | str) -> Iterator[str]:
    """Name the commands that show more of what went wrong."""
    run = printable(shlex.quote(str(path)), 1_000)
    for name, _ in islice(failed_trials(state), 1):
        yield f"evaljournal log {run} {printable(shlex.quote(name), 200)}"
    if any(tally.failed for tally in state.scores.values()):
        yield f"evaljournal log {run} --type scoring_failed"


def summary(state: RunState) -> dict[str, Any]:
    """Say the same in JSON, for a program: every count, score and sum, under names that stay."""
    started = state.started
    latencies = sorted(state.latencies)
    return {
        "evaluation": started.evaluation if started else None,
        "task": started.task if started else None,
        "dataset": started.dataset if started else None,
        "started_at": state.sessions[0].at if state.sessions else None,
        "last_at": state.at or None,
        "seq": state.seq,
        "sessions": len(state.sessions),
        "ending": state.ending or None,
        "trials": {
            "planned": state.planned or None,
            "enqueued": state.total,
            "completed": state.completed,
            "failed": state.failed,
            "recovered": state.recovered,
            "withdrawn": state.stages["withdrawn"],
            "queued": state.stages["queued"],
            "running": len(state.running),
            "backing_off": len(state.backing_off),
            "being_scored": state.stages["answered"],
            "interrupted": state.stages["interrupted"],
        },
        "attempts": {
            "started": state.attempts,
            "timed_out": state.timeouts,
            "interrupted": state.interrupted,
            "returned_late": state.late,
        },
        "retries": dict(state.retries),
        "errors": dict(state.errors),
        "failures": dict(Counter(trial.cause for _, trial in failed_trials(state))),
        "scores": {scorer: _score_in_json(tally) for scorer, tally in state.scores.items()},
        "latency": {
            "answers": len(latencies),
            "p50": percentile(latencies, 0.5) if latencies else None,
            "p95": percentile(latencies, 0.95) if latencies else None,
        },
        "usage": dict(state.usage),
        "limit": limit(state),
    }


def _score_in_json(tally: Tally) -> dict[str, Any]:
    found = interval(tally)
    return {
        "kind": "label" if tally.labels else "pass" if tally.is_pass_or_fail else "number",
        "scored": tally.scored,
        "not_scored": tally.failed,
        "mean": found.mean if found else None,
        "low": found.low if found else None,
        "high": found.high if found else None,
        "labels": {label: count for label, count in tally.labels.items() if count},
    }


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
