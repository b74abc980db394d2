"""Say what came of a run, in numbers: how many trials ended how, what the scorers said and how sure that is, what it took.

A summary is derived from a `RunState` alone, in one pass over the trials at most. No failure is averaged away: a mean is that
of the trials that were scored, and those that failed, are open or could not be scored are counted beside it.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from journal import Blob, Record
from journal.events import TrialEnqueued
from journal.lifecycle import STAGES
from replay.state import LastError, RunState, TrialState
from replay.statistics import mean_of_shares, pass_all, pass_at, quantile
from replay.tally import Tally
from replay.text import as_text

NO_GROUP: Final = "(none)"
"""The group of trials whose metadata does not have the key."""


@attrs.frozen
class Trials:
    """How many trials stand where."""

    enqueued: int
    """All that count: taken in, and not withdrawn since."""
    answered: int
    """Those that have an output: completed, or being scored."""
    completed: int
    failed: int
    """Those that were given up; they have no output, and are in no mean."""
    recovered: int
    """Those of the completed that had an attempt that failed before."""
    open: int
    """Those that are neither completed nor failed: the next six together."""
    queued: int
    running: int
    being_scored: int
    unsettled: int
    interrupted: int
    backing_off: int
    withdrawn: int
    """Those that no longer count."""


@attrs.frozen
class PassK:
    """What to expect of `k` trials of one case: that at least one passes (pass@k), or that all do (pass^k)."""

    k: int
    cases: int
    """Cases that have at least `k` verdicts; the estimates are the mean over these."""
    at_least_one: float
    at_least_one_low: float | None
    at_least_one_high: float | None
    all: float
    all_low: float | None
    all_high: float | None


@attrs.frozen
class Score:
    """What one scorer said of the trials that it could judge."""

    kind: Literal["pass", "number", "label", "mixed", "nothing"]
    scored: int
    """Trials that have a value of this scorer: what every share of a label is a share of."""
    not_scored: int
    """Outputs at which the scorer itself failed."""
    error: str
    """What it said the last time that it did."""
    numbers: int
    """Values that the mean is the mean of: true is 1, false is 0."""
    passed: int | None
    """Where every value is true or false: how many are true."""
    beyond: int
    """Numbers that are not finite, or beyond 1e100; they are not in the mean."""
    cases: int
    """Cases that the numbers are about; repeats of a case are taken together for the error and the range."""
    mean: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    """The range that holds the true mean 95 times in 100."""
    labels: Mapping[str, int]
    """Label → how many times, the most frequent first."""
    versions: int
    """How many versions of the scorer the values are of; more than one where it was changed on the way."""
    from_older_version: int
    """Values of another version than the one that spoke last; `evaljournal rescore` makes them all one."""
    passes: Sequence[PassK]
    """Where cases have repeats and every value is true or false: for 1, 2, 4, … trials, and for as many as there are."""


@attrs.frozen
class Latency:
    """How long the attempts took that gave an output which counts, in seconds."""

    answers: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


@attrs.frozen
class Attempts:
    """What became of all attempts."""

    started: int
    succeeded: int
    failed: int
    timed_out: int
    interrupted: int
    """Cut off from outside; whether the call took effect, and was paid for, is not known."""
    repeated_calls: int
    """Made because the one before was cut off: calls that may have been paid for twice."""
    returned_late: int


@attrs.frozen
class Scoring:
    """What waits for scorers, and what became of their calls; built-in scorers that only compute make none."""

    outputs_waiting: int
    """Outputs that are not completely scored yet."""
    calls_in_flight: Mapping[str, int]
    """By scorer."""
    calls_delayed: int
    """Calls that wait to be repeated after one that failed."""
    calls_started: Mapping[str, int]
    """By scorer, over all sessions."""
    calls_failed: Mapping[str, int]
    """By category, over all sessions."""
    limits: Mapping[str, int]
    """Rate-limit key → calls that may be in flight at once; `scorer:NAME`, or that of the task where they share one."""
    holds_attempts: bool
    """Whether no attempt starts because too many outputs wait for their scores."""


@attrs.frozen
class Adoption:
    """What a session took over that had changed since the one before."""

    session: int
    what: Sequence[str]
    """`task`, `cases`, `scorer exact`."""


@attrs.frozen
class Part:
    """The same for the trials that have something in common."""

    trials: Trials
    scores: Mapping[str, Score]
    latency: Latency


@attrs.frozen
class Summary:
    """What came of a run, up to some record."""

    evaluation: str | None
    task: str | None
    dataset: str | None
    started_at: str | None
    last_at: str | None
    seq: int
    sessions: int
    crashes: int
    """Sessions that another followed although they had no ending: they were killed, or had no room for a last word. The last
    one's ending is below; and one that was forked while it lived is none of these."""
    ending: str | None
    """`finished`, or why the last session stopped; None while it lives, or if it died."""
    planned: int
    """How many trials there are to be made; 0 where that was not known beforehand."""
    adopted: Sequence["Adoption"]
    """Which sessions took over something that had changed."""
    from_older_task: int
    """Outputs that count, and are those of a task that was changed since."""
    truncated: int
    """Outputs that count, and that the limit of tokens has cut short, as far as their attempts have noted it."""
    trials: Trials
    attempts: Attempts
    scoring: Scoring
    retries: Mapping[str, int]
    errors: Mapping[str, int]
    last_error: LastError | None
    """What went wrong last in the present session."""
    unauthorized_error: str | None
    """Which scorer was refused, and in which words, where that has stopped the run."""
    failures: Mapping[str, int]
    """Cause → trials that were given up for it."""
    scores: Mapping[str, Score]
    unscored: Mapping[str, int]
    """Scorer of the run → outputs of which it has said nothing, though their trials are completed: what it said is lost, or the
    scorer is newer than they are. `evaljournal rescore` asks it."""
    latency: Latency
    usage: Mapping[str, float]
    """The sums of every number that was noted or came with an attempt, lost ones included."""
    usage_lost: Mapping[str, float]
    """What of it attempts have used that gave no output."""
    limit: int | None
    groups: Mapping[str, Part] | None
    """Part → the same of its trials alone; None where nobody asked."""


def summarise(state: RunState, *, groups: Mapping[str, str] | None = None) -> Summary:
    """Sum a run up; with `groups` (trial → group, see `Grouping`), also each group by itself."""
    started = state.started
    return Summary(
        evaluation=started.evaluation if started else None,
        task=started.task if started else None,
        dataset=started.dataset if started else None,
        started_at=state.sessions[0].at if state.sessions else None,
        last_at=state.at or None,
        seq=state.seq,
        sessions=len(state.sessions),
        crashes=crashes(state),
        ending=state.ending or None,
        planned=state.planned,
        adopted=[Adoption(session.n, session.adopted) for session in state.sessions if session.adopted],
        from_older_task=state.from_older_task,
        truncated=state.truncated,
        trials=_trials(state.stages, state.recovered),
        attempts=Attempts(
            started=state.attempts,
            succeeded=len(state.latencies),
            failed=sum(state.errors.values()),
            timed_out=state.timeouts,
            interrupted=state.interrupted,
            repeated_calls=state.repeated_calls,
            returned_late=state.late,
        ),
        scoring=Scoring(
            outputs_waiting=state.stages["answered"],
            calls_in_flight=dict(Counter(scorer for _, scorer in state.scorer_calls)),
            calls_delayed=len(state.delayed_calls),
            calls_started=dict(state.calls_started),
            calls_failed=dict(state.calls_failed),
            limits=state.scorer_limits,
            holds_attempts=state.holds_attempts,
        ),
        retries=dict(state.retries),
        errors=dict(state.errors),
        last_error=state.last_error,
        unauthorized_error=state.unauthorized_error if state.ending == "unauthorized" and state.unauthorized_error else None,
        failures=dict(Counter(trial.cause for trial in state.trials.values() if trial.stage == "failed")),
        scores=_scores(state.scores),
        unscored=unscored(state),
        latency=latency(_times(state)),
        usage=dict(state.usage),
        usage_lost=dict(state.lost),
        limit=state.limit,
        groups=None if groups is None else _groups(state, groups),
    )


def unscored(state: RunState) -> dict[str, int]:
    """Count, for each scorer of the run, the completed trials that it has neither scored nor failed to score."""
    scorers = set(state.started.scorers) if state.started else set[str]()
    if not state.stages["answered"]:  # Who has scored as many as there are has left none out: there are many trials to look at.
        scorers -= {name for name, tally in state.scores.items() if tally.scored == state.completed}
    missing: Counter[str] = Counter()
    for trial in state.trials.values() if scorers else ():
        if trial.stage == "completed" and not (trial.scores and trial.scores.keys() >= scorers):
            said = {name.partition(".")[0] for name in trial.scores or ()}
            missing.update(scorer for scorer in scorers if scorer not in said and scorer not in trial.unscored)
    return dict(missing)


def crashes(state: RunState) -> int:
    """Count the sessions that left no last word, as far as they are over, and were not only left behind by a fork."""
    forked = forked_sessions(state)
    return sum(not session.ended and session.n not in forked for session in state.sessions[:-1])


def forked_sessions(state: RunState) -> set[int]:
    """Find the sessions that had not ended when the run was forked from another, in which they may have gone on."""
    origin, found = state.started.forked_from if state.started else None, set[int]()
    while isinstance(origin, dict):
        if isinstance(session := origin.get("session"), int):
            found.add(session)
        origin = origin.get("forked_from")
    return found


def in_json(summary: Summary) -> dict[str, Any]:
    """Say a summary in values that JSON has, under names that stay."""
    return attrs.asdict(summary)


def _trials(stages: Mapping[str, int], recovered: int) -> Trials:
    count = {stage: stages.get(stage, 0) for stage in STAGES}
    enqueued = sum(count.values()) - count["withdrawn"]
    return Trials(
        enqueued=enqueued,
        answered=count["completed"] + count["answered"],
        completed=count["completed"],
        failed=count["failed"],
        recovered=recovered,
        open=enqueued - count["completed"] - count["failed"],
        queued=count["queued"],
        running=count["running"],
        being_scored=count["answered"],
        unsettled=count["unsettled"],
        interrupted=count["interrupted"],
        backing_off=count["backing_off"],
        withdrawn=count["withdrawn"],
    )


def _times(state: RunState) -> Iterable[float]:
    """Find how long the answers took that count: all there were, unless some have been withdrawn."""
    if len(state.latencies) == state.stages["completed"] + state.stages["answered"]:
        return state.latencies
    return (trial.elapsed for trial in state.trials.values() if _counts(trial))


def _counts(trial: TrialState) -> bool:
    """Say whether a trial has an answer, and was not withdrawn."""
    return trial.answer is not None and trial.stage != "withdrawn"


def _scores(tallies: Mapping[str, Tally]) -> dict[str, Score]:
    return {scorer: attrs.evolve(score_of(tally), passes=_passes(tally)) for scorer, tally in tallies.items()}


def score_of(tally: Tally) -> Score:
    """Say what a scorer has said, but for what it takes a look at every case to say."""
    found, kind = tally.estimate, tally.kind
    return Score(
        kind=kind,
        scored=tally.scored,
        not_scored=tally.failed,
        error=tally.error,
        numbers=tally.numbers,
        passed=tally.passed if kind == "pass" else None,
        beyond=tally.beyond,
        cases=tally.cases,
        mean=found.mean if found else None,
        standard_error=found.standard_error if found else None,
        low=found.low if found else None,
        high=found.high if found else None,
        labels={label: count for label, count in tally.labels.most_common() if count},
        versions=tally.versions,
        from_older_version=tally.from_older_version,
        passes=[],
    )


def _passes(tally: Tally) -> list[PassK]:
    if tally.kind != "pass" or tally.cases == tally.numbers:
        return []
    cases = tally.passes_by_case()
    most = max(n for n, _ in cases)
    powers = {1 << at for at in range(most.bit_length())}
    return [_pass_k(k, cases) for k in sorted({*powers, most})]


def _pass_k(k: int, passes: Mapping[tuple[int, int], int]) -> PassK:
    """Take the mean over all cases that have been asked often enough; each case counts once."""
    enough = [(n, passed, cases) for (n, passed), cases in passes.items() if n >= k]
    count = sum(cases for _, _, cases in enough)
    verdicts = sum(n * cases for n, _, cases in enough)
    said: list[float | None] = []
    for estimate in (pass_at, pass_all):
        each = [(estimate(k, n=n, passed=passed), cases) for n, passed, cases in enough]
        mean = sum(value * cases for value, cases in each) / count
        scatter = (verdicts / count) ** 2 * sum(cases * (value - mean) ** 2 for value, cases in each)
        found = mean_of_shares(mean, n=verdicts, cases=count, scatter=scatter)
        said += [found.mean, found.low, found.high]
    return PassK(k, count, *said)  # type: ignore[arg-type]  # the means are never None


def latency(times: Iterable[float]) -> Latency:
    """Tell the quantiles of so many seconds; each is a time that occurred."""
    ordered = sorted(times)
    if not ordered:
        return Latency(0, None, None, None, None)
    p50, p95, p99 = (quantile(ordered, share) for share in (0.5, 0.95, 0.99))
    return Latency(len(ordered), p50, p95, p99, ordered[-1])


class Grouping:
    """Which group each trial belongs to, collected in one pass over the records: the metadata stand only on disk."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.groups: dict[str, str] = {}
        """Trial → group."""
        self.keys: set[str] = set()
        """The keys that the metadata do have, for one that was mistyped."""
        self._labels: dict[str, str] = {}

    def take(self, record: Record) -> None:
        """Take in one record."""
        event = record.event
        if not isinstance(event, TrialEnqueued):
            return
        metadata = event.metadata.load() if isinstance(event.metadata, Blob) else event.metadata
        value = None
        if isinstance(metadata, dict):
            self.keys.update(metadata)
            value = metadata.get(self.key)
        label = NO_GROUP if value is None else as_text(value)
        self.groups[event.trial] = self._labels.setdefault(label, label)  # A label that thousands share is kept once.


class _Gathered:
    """What is known of a group while its trials are gone through."""

    def __init__(self) -> None:
        self.stages: dict[str, int] = {}
        self.recovered = 0
        self.scores: dict[str, Tally] = {}
        self.latencies = array("d")

    def take(self, trial: TrialState, *, has_repeats: bool) -> None:
        self.stages[trial.stage] = self.stages.get(trial.stage, 0) + 1
        self.recovered += trial.recovered
        if _counts(trial):
            self.latencies.append(trial.elapsed)
        for scorer, (version, value) in (trial.scores or {}).items():
            tally = self._tally(scorer, has_repeats)
            if version != tally.version:
                tally.hear(version)
            tally.add(value, 1, trial.case)
        for scorer in trial.unscored:
            self._tally(scorer, has_repeats).failed += 1

    def _tally(self, scorer: str, has_repeats: bool) -> Tally:  # noqa: FBT001  # it is handed through
        tally = self.scores.get(scorer)
        if tally is None:
            tally = self.scores[scorer] = Tally(by_case={} if has_repeats else None)
        return tally


def _groups(state: RunState, groups: Mapping[str, str]) -> dict[str, Part]:
    gathered: dict[str, _Gathered] = {}
    for name, trial in state.trials.items():
        gathered.setdefault(groups.get(name, NO_GROUP), _Gathered()).take(trial, has_repeats=state.has_repeats)
    for group in gathered.values():
        for scorer, tally in group.scores.items():
            tally.hear(state.scores[scorer].version)  # Trials are not gone through in the order in which they were scored.
    return {
        label: Part(
            trials=_trials(group.stages, group.recovered),
            scores=_scores({scorer: group.scores[scorer] for scorer in state.scores if scorer in group.scores}),
            latency=latency(group.latencies),
        )
        for label, group in sorted(gathered.items())
    }
