"""Parts of a summary as text: scores, groups, latency, usage, errors. Used by the live screen and the final report."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from replay.state import LastError, RunState
from replay.summary import Latency, Part, Score
from replay.text import digits, duration, number, plural, printable

_LABELS: Final = 6


def trials_in_words(state: RunState) -> str:
    """Return how many trials succeeded, recovered and were withdrawn."""
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


def pass_lines(scores: Mapping[str, Score]) -> Iterator[str]:
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


def latency_in_words(times: Latency, of: str, *names: str) -> str:
    """Return quantiles: `p50 0.24 s · p95 0.9 s of 60 answers`."""
    quantiles = {"p50": times.p50, "p95": times.p95, "p99": times.p99, "longest": times.max}
    said = [f"{name} {duration(quantiles[name] or 0.0)}" for name in names or quantiles]
    return f"{' · '.join(said)} of {of}"


def truncated_lines(state: RunState) -> Iterator[str]:
    """Tell of answers that the model had not ended: a scorer may have found them wrong for no other reason."""
    if state.truncated:
        of = plural(state.stages["completed"] + state.stages["answered"], "answer")
        yield f"{state.truncated:,} of {of} cut short by the limit of tokens; a larger --max-tokens would let them end"


def billed_usage(usage: Mapping[str, float]) -> dict[str, float]:
    """Pick what is paid for out of all that was noted: tokens and cost. The sum of temperatures says nothing."""
    return {name: value for name, value in usage.items() if "token" in name.lower() or "cost" in name.lower()}


def usage_in_words(used: dict[str, float]) -> str:
    """Return sums of usage: `input_tokens 1,200 · cost 0.034`."""
    return " · ".join(f"{printable(name, 24)} {number(value)}" for name, value in used.items())


def adopted_lines(state: RunState) -> Iterator[str]:
    """Tell what was changed on the way: then not all numbers are about the same thing."""
    for session in state.sessions:
        if session.adopted:
            yield f"session {session.n} adopted what had changed: {printable(', '.join(session.adopted), 200)}"
    if state.from_older_task:
        answers = state.stages["completed"] + state.stages["answered"]
        are = "is" if state.from_older_task == 1 else "are"
        yield f"{state.from_older_task:,} of {plural(answers, 'answer')} {are} by an older version of the task"


def version_notes(state: RunState) -> Iterator[str]:
    """Tell all that makes the numbers of a run not those of one thing: what was adopted, and scores of several versions."""
    yield from adopted_lines(state)
    for scorer, tally in state.scores.items():
        if mixed := _versions(tally.versions, tally.from_older_version):
            yield f"{plural(tally.scored, 'score')} of {printable(scorer, 24)} {mixed}"


def error_in_words(error: LastError, now: float | None = None) -> str:
    """Tell what went wrong last, how long ago that was, and how many have since the last answer."""
    said = [f"{error.in_a_row:,} in a row"] if error.in_a_row > 1 else []
    said += [f"the last {duration(now - error.t)} ago" if said else f"{duration(now - error.t)} ago"] if now is not None else []
    return f"{', '.join(said)}{': ' if said else ''}{printable(' '.join(error.said.split()), 120)}"
