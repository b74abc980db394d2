"""The final report of a run: how it ended, the counts and scores, what failed, and the next command."""

import shlex
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from replay.state import RunState, TrialState
from replay.summary import Summary, crashes, forked_sessions, summarise
from replay.summary_text import (
    adopted_lines,
    billed_usage,
    error_in_words,
    latency_in_words,
    pass_lines,
    score_lines,
    trials_in_words,
    truncated_lines,
    usage_in_words,
)
from replay.text import plural, printable

_SHOWN: Final = 5
"""Failures that are told one by one at the end."""
_ENDINGS: Final = {
    "finished": "finished",
    "interrupted": "interrupted",
    "failed_fast": "stopped because too many trials failed",
    "unauthorized": "stopped because the key or the account was refused",
    "deadline": "stopped at its deadline",
    "disk_full": "stopped because the disk is full",
    "dataset_failed": "stopped because its cases could not be read",
}
"""How a session ended, in words."""
_CUT_OFF: Final = "cut off without a word"
_WORDLESS: Final = "killed, unplugged, or on a disk that was full"
"""What may have been the matter with a session that left no word."""


def unscored_lines(missing: Mapping[str, int], path: Path | str) -> Iterator[str]:
    """Tell which scorers have said nothing of how many outputs, and what makes them."""
    if missing:
        what = ", ".join(
            f"{plural(count, 'output')} without a score of {printable(scorer, 24)}" for scorer, count in missing.items()
        )
        yield f"{what}: evaljournal rescore {printable(shlex.quote(str(path)), 1_000)}"


def final_report(state: RunState, *, path: Path | str, total: int | None = None, stopped: str = "", why: str = "") -> str:
    """Tell how a run ended, and which command comes next."""
    return f"{final_summary(state, path=path, total=total, stopped=stopped, why=why)}\nnext: {next_command(state, path)}"


def final_summary(state: RunState, *, path: Path | str, total: int | None = None, stopped: str = "", why: str = "") -> str:
    """Tell how a run ended: the counts, the scores, what was lost or paid twice, and what failed.

    `stopped` says why it was stopped where the last record could not any more, because the disk was full.
    """
    lines, summary = [_verdict(state, path, total, stopped)], summarise(state)
    if why:
        lines.append(f"  {printable(' '.join(why.split()), 500)}")
    elif ending_in_words(state, stopped) == _CUT_OFF:
        lines.append(f"  what cut it off is not recorded: it was {_WORDLESS}")
    lines += [f"  {row}" for row in _summary_lines(state, summary)]
    lines += [f"  {sentence}" for sentence in _notable(state, why)]
    lines += _failures(state)
    lines += [f"look closer: {closer}" for closer in _closer(state, path)]
    lines += unscored_lines(summary.unscored, path)
    lines += _to_mend(state, path)
    return "\n".join(lines)


def _summary_lines(state: RunState, summary: Summary) -> Iterator[str]:
    yield trials_in_words(state)
    yield from score_lines(summary.scores, failed=summary.trials.failed)
    yield from pass_lines(summary.scores)
    if summary.latency.answers:
        yield latency_in_words(summary.latency, plural(summary.latency.answers, "answer"))
    yield from truncated_lines(state)
    used = billed_usage(summary.usage)
    if used:
        lost = billed_usage(summary.usage_lost)
        yield f"{usage_in_words(used)}{f'; of it {usage_in_words(lost)} by attempts without an output' if lost else ''}"


def ending_in_words(state: RunState, stopped: str = "") -> str:
    """Say how the last session ended, in words."""
    how = state.ending or stopped
    if not how and state.sessions and state.sessions[-1].n in forked_sessions(state):
        return "forked while it was going on"
    return _ENDINGS.get(how, printable(how)) if how else _CUT_OFF


def _verdict(state: RunState, path: Path | str, total: int | None, stopped: str) -> str:
    name = printable(state.started.evaluation) if state.started else "the run"
    how, where = ending_in_words(state, stopped), printable(str(path), 500)
    return f"{name} {how}: {progress_in_words(state, total)} done, in {where}"


def progress_in_words(state: RunState, total: int | None = None) -> str:
    """Say how many of how many trials are done; of cases that come one after the other, nobody knows how many there will be."""
    whole = total_trials(state, total)
    return plural(state.done, "trial") if whole is None else f"{state.done:,} of {plural(whole, 'trial')}"


def total_trials(state: RunState, total: int | None = None) -> int | None:
    """Say how many trials a run has, those to come included; None where that is not known before its end."""
    if state.ending == "finished":
        return max(total or 0, state.total)
    return max(total or 0, state.total, state.planned) if total or state.planned else None


def _notable(state: RunState, why: str) -> Iterator[str]:
    yield from adopted_lines(state)
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
        yield f"no answer has come since the last error{', ' if error.in_a_row > 1 else ': '}{error_in_words(error)}"
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
