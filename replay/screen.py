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
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from replay.formatting import digits, duration, number, plural, printable
from replay.idle import in_backoff, one_line, reasons
from replay.intake import CAUSES, PROBING
from replay.state import LastError, RunState, TrialState
from replay.summary import Latency, Part, Score, Summary, crashes, forked_sessions, latency, score_of, summarise

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

_RECENT: Final = 1_000
"""Answers whose times are looked at while a run goes on; the end looks at all of them."""
_LONGEST: Final = 4
"""Attempts that are shown one by one: those that have run longest."""
_SHOWN: Final = 5
"""Failures that are told one by one at the end."""
_LABELS: Final = 6
_FEW: Final = 3
"""Trials that must be done before it is said how long the rest will take."""
LONG: Final = 5.0
"""Seconds from which on a pause is worth more than a glance; shorter ones are part of the pace."""
_QUIET: Final = 10.0
"""Seconds in which nothing is done before that is said; in a slow run, as many times what a trial takes on average as below."""
_TIMES: Final = 5
_MINUTE: Final = 60

_ENDINGS: Final = {
    "finished": "finished",
    "interrupted": "interrupted",
    "failed_fast": "stopped because too many trials failed",
    "unauthorized": "stopped because the key or the account was refused",
    "deadline": "stopped at its deadline",
    "disk_full": "stopped because the disk is full",
    "intake_failed": "stopped because its cases could not be read",
}
"""How a session ended, in words."""

_CUT_OFF: Final = "cut off without a word"
_WORDLESS: Final = "killed, unplugged, or on a disk that was full"
"""What may have been the matter with a session that left no word."""

_REASONS: Final = {
    "failed_fast": "too many trials failed",
    "unauthorized": "the key or the account was refused",
    "deadline": "its time is over",
    "disk_full": "the disk is full",
    "intake_failed": "its cases could not be read",
}
"""Why a session is being stopped, where nobody has asked for it."""


def remaining(state: RunState, *, now: float, total: int | None, before: int) -> float | None:
    """Seconds that the rest will take at the pace of this session so far; None where that is not known, or not the pace now."""
    here = state.done - before
    if total is None or here < _FEW or now <= 0 or held_up(state, now=now, before=before):
        return None
    return max(0, total - state.done) * now / here


def held_up(state: RunState, *, now: float, before: int, least: float = LONG) -> str:
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
    why, here = held_up(state, now=now, before=before), state.done - before
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
        yield "error", _error(error, now), "yellow"
    yield "trials", _trials(state), ""
    yield from (("adopted", sentence, "yellow") for sentence in _adopted(state))
    if state.failed:
        yield "failed", f"{state.failed:,} of {state.done:,} done", "red"
    scores = {scorer: score_of(tally) for scorer, tally in state.scores.items()}
    for row in score_lines(scores, failed=state.failed):
        yield "scores", row, ""
    if state.latencies:
        recent = latency(state.latencies[-_RECENT:])
        answers = plural(recent.answers, "answer")
        of = answers if recent.answers == len(state.latencies) else f"the last {answers}"
        yield "answers", _latency(recent, of, "p50", "p95"), ""
    yield from (("answers", sentence, "yellow") for sentence in _cut_short(state))
    used = usage_of(state.usage)
    if used:
        yield "usage", _usage(used), ""
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


def _error(error: LastError, now: float | None = None) -> str:
    """Tell what went wrong last, how long ago that was, and how many have since the last answer."""
    said = [f"{error.in_a_row:,} in a row"] if error.in_a_row > 1 else []
    said += [f"the last {duration(now - error.t)} ago" if said else f"{duration(now - error.t)} ago"] if now is not None else []
    return f"{', '.join(said)}{': ' if said else ''}{printable(' '.join(error.said.split()), 120)}"


def _trials(state: RunState) -> str:
    parts = [f"{state.completed:,} ok of {state.done:,} done"]
    if state.recovered:
        parts.append(f"{state.recovered:,} of {state.completed:,} ok recovered after a failure")
    if state.stages["withdrawn"]:
        parts.append(f"{state.stages['withdrawn']:,} withdrawn")
    return " · ".join(parts)


def score_lines(scores: Mapping[str, Score], *, failed: int) -> Iterator[str]:
    """Tell what each scorer has said so far, with its denominator, its interval, and how many trials failed beside it."""
    names = {scorer: printable(scorer, 24) for scorer in scores}
    wide = max(map(len, names.values()), default=0)
    for scorer, score in scores.items():
        yield f"{names[scorer]:<{wide}}  {score_in_words(score, failed=failed)}"


def score_in_words(score: Score, *, failed: int = 0) -> str:
    """Tell what one scorer has said: `91.4 %  53 of 58 right (95 %: 81.4–96.3 %); not in it: 2 failed`."""
    within = f" in {plural(score.cases, 'case')}" if score.cases < score.numbers else ""
    said: list[str] = []
    if score.passed is not None and score.mean is not None:
        said.append(f"{100 * score.mean:.1f} %  {score.passed:,} of {score.numbers:,}{within} right")
        if score.low is not None and score.high is not None:
            said.append(f"(95 %: {100 * score.low:.1f}–{100 * score.high:.1f} %)")
    elif score.mean is not None:
        said.append(f"{digits(score.mean, 3)}  mean of {score.numbers:,} scored{within}")
        if score.low is not None and score.high is not None:
            said.append(f"(95 %: {digits(score.low, 3)} to {digits(score.high, 3)})")
    if score.labels:
        said.append(_labels(score))
    unscored = "could not be scored" + (f" ({printable(' '.join(score.error.split()), 200)})" if score.error else "")
    missing = [(failed, "failed"), (score.not_scored, unscored), (score.beyond, "not finite or too large")]
    without = ", ".join(f"{count:,} {why}" for count, why in missing if count)
    mixed = _versions(score.versions, score.from_older_version)
    if not said:
        return f"no score: {without}" if without else "nothing yet"
    return f"{' '.join(said)}{f'; not in it: {without}' if without else ''}{f'; {mixed}' if mixed else ''}"


def _versions(versions: int, from_older_version: int) -> str:
    if from_older_version and versions == 1:
        return "all by an older version of the scorer"
    return (
        f"by {plural(versions, 'version')} of the scorer, {from_older_version:,} by an older one" if from_older_version else ""
    )


def _labels(score: Score) -> str:
    common = list(islice(score.labels.items(), _LABELS))
    said = ", ".join(f"{printable(label, 24)} {100 * count / score.scored:.0f} %" for label, count in common)
    others = len(score.labels) - len(common)
    more = f" and {plural(others, 'more label')}" if others else ""
    return f"{said}{more}  of {score.scored:,} scored"


def _pass_lines(scores: Mapping[str, Score]) -> Iterator[str]:
    """Tell what to expect of several trials of a case, where cases were asked several times."""
    for scorer, score in scores.items():
        several = [each for each in score.passes if each.k > 1]
        if several:
            any_of = ", ".join(f"pass@{each.k} {100 * each.at_least_one:.1f} %" for each in several)
            all_of = ", ".join(f"pass^{each.k} {100 * each.all:.1f} %" for each in several)
            yield f"{printable(scorer, 24)}  {any_of} · {all_of} of {plural(several[0].cases, 'case')}"


def group_lines(groups: Mapping[str, Part], by: str, *, most: int | None = None) -> Iterator[str]:
    """Tell the trials of each group apart: how they ended, and what the scorers said."""
    yield f"by {printable(by)}:"
    for label, group in islice(groups.items(), most):
        trials = group.trials
        counts = [f"{trials.completed:,} ok of {plural(trials.enqueued, 'trial')}"]
        counts += [f"{trials.failed:,} failed"] if trials.failed else []
        counts += [f"{trials.open:,} open"] if trials.open else []
        yield f"  {printable(label, 40)}  {' · '.join(counts)}"
        yield from (f"    {row}" for row in score_lines(group.scores, failed=trials.failed))
    if most is not None and len(groups) > most:
        yield f"  … and {plural(len(groups) - most, 'more group')}"


def _latency(times: Latency, of: str, *names: str) -> str:
    quantiles = {"p50": times.p50, "p95": times.p95, "p99": times.p99, "longest": times.max}
    said = [f"{name} {duration(quantiles[name] or 0.0)}" for name in names or quantiles]
    return f"{' · '.join(said)} of {of}"


def _cut_short(state: RunState) -> Iterator[str]:
    """Tell of answers that the model had not ended: a scorer may have found them wrong for no other reason."""
    if state.truncated:
        of = plural(state.stages["completed"] + state.stages["answered"], "answer")
        yield f"{state.truncated:,} of {of} cut short by the limit of tokens; a larger --max-tokens would let them end"


def usage_of(usage: Mapping[str, float]) -> dict[str, float]:
    """Pick what is paid for out of all that was noted: tokens and cost. The sum of temperatures says nothing."""
    return {name: value for name, value in usage.items() if "token" in name.lower() or "cost" in name.lower()}


def _usage(used: dict[str, float]) -> str:
    return " · ".join(f"{printable(name, 24)} {number(value)}" for name, value in used.items())


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
        parts.append(_error(state.last_error, now))
    parts.append(f"seq {state.seq:,}, on disk to {durable:,}")
    return " · ".join(parts)


def unscored_lines(missing: Mapping[str, int], path: Path | str) -> Iterator[str]:
    """Tell which scorers have said nothing of how many outputs, and what makes them."""
    if missing:
        what = ", ".join(
            f"{plural(count, 'output')} without a score of {printable(scorer, 24)}" for scorer, count in missing.items()
        )
        yield f"{what}: evaljournal rescore {printable(shlex.quote(str(path)), 1_000)}"


def ending(state: RunState, *, path: Path | str, total: int | None = None, stopped: str = "", why: str = "") -> str:
    """Tell how a run ended, and which command comes next."""
    return f"{account(state, path=path, total=total, stopped=stopped, why=why)}\nnext: {next_command(state, path)}"


def account(state: RunState, *, path: Path | str, total: int | None = None, stopped: str = "", why: str = "") -> str:
    """Tell how a run ended: the counts, the scores, what was lost or paid twice, and what failed.

    `stopped` says why it was stopped where the last record could not any more, because the disk was full.
    """
    lines, summary = [_verdict(state, path, total, stopped)], summarise(state)
    if why:
        lines.append(f"  {printable(' '.join(why.split()), 500)}")
    elif how_it_ended(state, stopped) == _CUT_OFF:
        lines.append(f"  what cut it off is not recorded: it was {_WORDLESS}")
    lines += [f"  {row}" for row in _summary_lines(state, summary)]
    lines += [f"  {sentence}" for sentence in _notable(state, why)]
    lines += _failures(state)
    lines += [f"look closer: {closer}" for closer in _closer(state, path)]
    lines += unscored_lines(summary.unscored, path)
    lines += _to_mend(state, path)
    return "\n".join(lines)


def _summary_lines(state: RunState, summary: Summary) -> Iterator[str]:
    yield _trials(state)
    yield from score_lines(summary.scores, failed=summary.trials.failed)
    yield from _pass_lines(summary.scores)
    if summary.latency.answers:
        yield _latency(summary.latency, plural(summary.latency.answers, "answer"))
    yield from _cut_short(state)
    used = usage_of(summary.usage)
    if used:
        lost = usage_of(summary.usage_lost)
        yield f"{_usage(used)}{f'; of it {_usage(lost)} by attempts without an output' if lost else ''}"


def how_it_ended(state: RunState, stopped: str = "") -> str:
    """Say how the last session ended, in words."""
    how = state.ending or stopped
    if not how and state.sessions and state.sessions[-1].n in forked_sessions(state):
        return "forked while it was going on"
    return _ENDINGS.get(how, printable(how)) if how else _CUT_OFF


def _verdict(state: RunState, path: Path | str, total: int | None, stopped: str) -> str:
    name = printable(state.started.evaluation) if state.started else "the run"
    how, where = how_it_ended(state, stopped), printable(str(path), 500)
    return f"{name} {how}: {how_many(state, total)} done, in {where}"


def how_many(state: RunState, total: int | None = None) -> str:
    """Say how many of how many trials are done; of cases that come one after the other, nobody knows how many there will be."""
    whole = trials_in_all(state, total)
    return plural(state.done, "trial") if whole is None else f"{state.done:,} of {plural(whole, 'trial')}"


def trials_in_all(state: RunState, total: int | None = None) -> int | None:
    """Say how many trials a run has, those to come included; None where that is not known before its end."""
    if state.ending == "finished":
        return max(total or 0, state.total)
    return max(total or 0, state.total, state.planned) if total or state.planned else None


def _adopted(state: RunState) -> Iterator[str]:
    """Tell what was changed on the way: then not all numbers are about the same thing."""
    for session in state.sessions:
        if session.adopted:
            yield f"session {session.n} adopted what had changed: {printable(', '.join(session.adopted), 200)}"
    if state.from_older_task:
        answers = state.stages["completed"] + state.stages["answered"]
        are = "is" if state.from_older_task == 1 else "are"
        yield f"{state.from_older_task:,} of {plural(answers, 'answer')} {are} by an older version of the task"


def mixtures(state: RunState) -> Iterator[str]:
    """Tell all that makes the numbers of a run not those of one thing: what was adopted, and scores of several versions."""
    yield from _adopted(state)
    for scorer, tally in state.scores.items():
        if mixed := _versions(tally.versions, tally.from_older_version):
            yield f"{plural(tally.scored, 'score')} of {printable(scorer, 24)} {mixed}"


def _notable(state: RunState, why: str) -> Iterator[str]:
    yield from _adopted(state)
    if state.retries:
        asked = {"asked": "asked for", "stopped": "because the run was stopped"}
        causes = ", ".join(f"{count:,} × {asked.get(cause, printable(cause))}" for cause, count in state.retries.most_common())
        yield f"{plural(sum(state.retries.values()), 'retry', 'retries')}: {causes}"
    if state.interrupted:
        were = "was" if state.interrupted == 1 else "were"
        again = ": if tried again, the call may have been paid for twice"
        if state.repeated_calls:
            again = f", and {state.repeated_calls:,} made again: as many calls may have been paid for twice"
        yield f"{plural(state.interrupted, 'attempt')} {were} cut off{again}"
    if state.ending == "unauthorized" and state.unauthorized_error:
        scorer, _, said = state.unauthorized_error.partition(": ")
        words = f": {printable(' '.join(said.split()), 200)}" if said not in why else ""
        yield f"the scorer {printable(scorer, 24)} was refused{words}"
    error = state.last_error
    is_last = error is not None and error.answers == len(state.latencies) and state.ending != "finished"
    if error is not None and is_last and error.said not in why:
        yield f"no answer has come since the last error{', ' if error.in_a_row > 1 else ': '}{_error(error)}"
    if state.running:
        yield f"{plural(len(state.running), 'attempt')} had no ending yet, and will be made again"
    if cut := crashes(state):
        yield f"{cut:,} of {plural(len(state.sessions), 'session')} ended without a word: {_WORDLESS}"
    if state.late:
        yield f"{plural(state.late, 'attempt')} went on beyond the limit; what came of that is not used"
    if state.recoveries:
        yield f"the journal was recovered {plural(state.recoveries, 'time')} after a crash; what was set aside is under torn/"


def _failures(state: RunState) -> Iterator[str]:
    """Tell a few failures, different ones first: of a hundred times the same, one is enough."""
    if not state.failed:
        return
    yield f"{plural(state.failed, 'trial')} failed:"
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
        yield f"  {printable(name)}: {printable(error, 200)} ({printable(trial.cause)}, {plural(trial.attempts, 'attempt')})"
    if state.failed > len(told):
        yield f"  and {state.failed - len(told):,} more"


def failed_trials(state: RunState) -> Iterator[tuple[str, TrialState]]:
    """Find the trials that were given up, in the order in which they were taken in."""
    return ((name, trial) for name, trial in state.trials.items() if trial.stage == "failed")


def next_command(state: RunState, path: Path | str) -> str:
    """Name the command that somebody would use next, so that it can be copied as it stands."""
    run = printable(shlex.quote(str(path)), 1_000)
    is_known = state.started is not None and state.started.task
    where = "" if is_known else " --task FILE.py:NAME"  # It was begun from Python, which is not found again by itself.
    if state.ending != "finished":
        return f"evaljournal resume {run}{where}"
    if state.failed:
        return f"evaljournal resume {run} --retry-failed{where}"
    return f"evaljournal verify {run}"


def _closer(state: RunState, path: Path | str) -> Iterator[str]:
    """Name the commands that show more of what went wrong."""
    run = printable(shlex.quote(str(path)), 1_000)
    for name, _ in islice(failed_trials(state), 1):
        yield f"evaljournal log {run} {printable(shlex.quote(name), 200)}"
    if any(tally.failed for tally in state.scores.values()):
        yield f"evaljournal log {run} --type scoring_failed"


def _to_mend(state: RunState, path: Path | str) -> Iterator[str]:
    """Name the command that lets each scorer judge everything, where one could not, and in one version, where several have."""
    rescore = f"evaljournal rescore {printable(shlex.quote(str(path)), 1_000)}"
    own = state.started.scorers if state.started and state.started.task else {}
    if state.ending == "finished" and any(tally.failed and scorer in own for scorer, tally in state.scores.items()):
        yield f"score what could not be scored, when that is mended: {rescore}"
    mixed = [printable(scorer, 24) for scorer, tally in state.scores.items() if tally.from_older_version]
    if mixed:
        yield f"judge all by one version of {', '.join(mixed)}: {rescore}"
