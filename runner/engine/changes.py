"""Going on with a run: what the journal says was begun, held against what there is to do now.

A resumption is a run that starts from `fold(journal)` instead of from nothing. Here is decided, trial by trial, what is left
of it; nothing here waits or calls anything.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Literal

import attrs

from journal.events import (
    AttemptSucceeded,
    RetryScheduled,
    RunStarted,
    TrialEnqueued,
    TrialFailed,
    TrialWithdrawn,
    fact,
)
from journal.files import Files
from journal.reader import fetch
from replay import RunState, TrialState
from replay.state import PINNED
from replay.text import plural
from runner.data.case import Trial
from runner.definition.settings import WHAT_IS_ASKED, Settings
from runner.engine.intake import SOON
from runner.engine.recorder import Recorder
from runner.engine.trial_work import Work
from runner.errors import RunChanged, UsageError
from runner.retries.classify import Failure
from runner.retries.retry import NUMBERS, Again, GiveUp, Retry, Spent, TimedOut, chance


def in_force(own: Settings, given: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """Say which settings hold for a session, and which of them were given for this run and hold for the next as well.

    There are three places a setting can come from: it is given now; it was given to an earlier session, `before`; or it is the
    evaluation's `own`, as that stands now.
    """
    names = [field.name for field in attrs.fields(Settings) if field.name != "retry"]
    earlier = before.get("given")
    earlier = earlier if isinstance(earlier, list) else []
    kept = {name: before[name] for name in names if name in earlier and name in before and name not in given}
    # Of the retries, only numbers are read from a journal: the rest of them are functions and classes.
    retry, recorded = given.get("retry", {}), before.get("retry")
    numbers: dict[str, Any] = {}
    if isinstance(retry, Mapping) and isinstance(recorded, Mapping):
        numbers = {name: recorded[name] for name in NUMBERS if f"retry.{name}" in earlier and name in recorded}
    try:
        settings = own.changed({**kept, "retry": numbers})
    except (UsageError, TypeError) as exc:
        raise UsageError(f"the journal has a setting that cannot be ({exc}); give another in its place") from exc
    said = {*numbers, *(retry if isinstance(retry, Mapping) else ())}
    names = [name for name in names if name in kept or name in given] + [f"retry.{name}" for name in NUMBERS if name in said]
    return settings.changed(given), names


def changes(before: RunStarted, now: RunStarted) -> dict[str, Any]:
    """Pick out what a run is now to be the run of, where that is not what it was."""
    return {field: new for field in PINNED if (new := getattr(now, field)) != getattr(before, field)}


def adoption(before: RunStarted, now: RunStarted) -> dict[str, Any] | None:
    """Say what a session records that it takes over, if anything: changes, and where the task is found from now on.

    A place is no change of the task, which is known by its source; and in Python nobody says where it is.
    """
    place = {"task": now.task} if now.task not in {"", before.task} else {}
    return {**changes(before, now), **place} or None


def changed_cases(state: RunState, trials: Iterable[Trial]) -> Iterator[str]:
    """Say which of the cases that were taken in are no longer what they were, or are gone; others are not known by name."""
    known = {name: trial for name, trial in state.trials.items() if trial.stage != "withdrawn"}
    changed: dict[str, None] = {}
    gone = dict.fromkeys(trial.case for trial in known.values())
    for trial in trials:
        gone.pop(trial.case.name, None)
        if trial.id in known and known[trial.id].fingerprint != trial.case.fingerprint:
            changed[trial.case.name] = None
    for names, what in ((changed, "changed"), (gone, "no longer there")):
        if names:
            yield f"{plural(len(names), 'case')} {'is' if len(names) == 1 else 'are'} {what}: {_some(names)}"
    if not changed and not gone:
        yield "none of the cases that were taken in so far has changed; others have, are new, or are gone"


def _some(names: Iterable[str]) -> str:
    """Name a few."""
    first = list(islice(names, _NAMED + 1))
    return ", ".join(map(repr, first[:_NAMED])) + (", …" if len(first) > _NAMED else "")


_MEANS: Final = {
    "task_fingerprint": " (its source was changed)",
    "dataset_fingerprint": " (these are not the same cases)",
    "scorers": " (their source, or which there are, was changed)",
}
"""What it says of an experiment that a fingerprint is another one."""


def differences(before: RunStarted, now: RunStarted, settings: Mapping[str, Any]) -> list[str]:
    """Say, field by field, how what is to be resumed asks or judges otherwise than what was begun.

    How it is carried out (slots, timeouts, retries and so on) may change from one session to the next.
    """
    found = [
        f"{field.replace('_', ' ')}: {getattr(before, field)!r} is now {new!r}{_MEANS.get(field, '')}"
        for field, new in changes(before, now).items()
    ]
    found += [
        f"setting {name}: {settings[name]!r} is now {now.settings[name]!r}"
        for name in WHAT_IS_ASKED
        if name in settings and settings[name] != now.settings[name]
    ]
    return found


_NAMED: Final = 5
"""Cases that are named as examples."""


@fact
class Left:
    """A trial of which something may be left to do."""

    trial: Trial
    output: Any
    """What the task has answered already, where it has."""


class Remainder:
    """What is left to do of a run, found out while its cases are read. Of a new run, that is everything."""

    def __init__(
        self,
        recorder: Recorder,
        trials: Iterable[Trial],
        retry: Retry,
        *,
        seed: int,
        adopt: bool,
        retry_failed: bool,
        on_ambiguous: Literal["retry", "fail"],
        files: Files,
    ) -> None:
        self._recorder = recorder
        self._state = recorder.state
        self._path = recorder.journal.path
        self._files = files
        self._left = self._look(trials)
        self._retry = retry
        self._seed = seed
        self._adopt = adopt
        self._retry_failed = retry_failed
        self._on_ambiguous = on_ambiguous
        self._failure: Exception | None = None
        self.is_closed = False
        """Whether every case was read, and nothing is left out that should not be."""
        self.found: deque[Left] = deque()
        """Filled in a thread, emptied by whoever takes them in."""
        self._known = {trial for trial, state in recorder.state.trials.items() if state.stage != "withdrawn"}
        """Trials that the journal knows and the cases have not named yet."""

    def read(self, most: int) -> bool:
        """Go on through the cases; find those of which something is left to do. It reads files, and records nothing."""
        if self._failure is not None:
            raise self._failure
        now, number = self._recorder.clock.now, 0
        until = now() + SOON
        try:
            for number, left in enumerate(self._left, 1):
                self.found.append(left)
                if number == most or now() > until:
                    break
        except Exception as exc:
            if not number:
                raise
            self._failure = exc  # First what was read before it.
        return number > 0

    def _look(self, trials: Iterable[Trial]) -> Iterator["Left"]:
        for trial in trials:
            known = self._state.trials.get(trial.id)
            output = None
            if known is not None and known.fingerprint == trial.case.fingerprint:
                self._known.discard(trial.id)
                if known.stage == "completed" or (known.stage == "failed" and not self._retry_failed):
                    continue
                if known.answer is not None and known.stage == "answered":
                    event = fetch(self._path, *known.answer, files=self._files).event
                    assert isinstance(event, AttemptSucceeded)
                    output = event.output
            yield Left(trial=trial, output=output)

    def admit(self, item: "Left") -> Work | None:
        """Record what follows from what is known of a trial; give the work that is left, if any."""
        trial = item.trial
        known = self._state.trials.get(trial.id)
        if known is not None and known.stage != "withdrawn" and known.fingerprint != trial.case.fingerprint:
            if not self._adopt:
                raise RunChanged(
                    f"the case {trial.case.name!r} is not what it was when this run began; "
                    "--adopt runs it again and keeps the results of the others"
                )
            self._known.discard(trial.id)
            self._recorder.record(TrialWithdrawn(trial=trial.id, why="changed"))
            known = None
        if known is None or known.stage == "withdrawn":
            return self._enqueue(trial)
        work = Work(trial=trial.id, case=trial.case, attempts=known.attempts, spent=spent(known), output=item.output)
        return self._go_on(work, known)

    def _enqueue(self, trial: Trial) -> Work:
        case = trial.case
        self._recorder.record(
            TrialEnqueued(
                trial=trial.id,
                case=case.name,
                repeat=trial.repeat,
                input=case.input,
                expected=case.expected,
                metadata=dict(case.metadata) or None,
                fingerprint=case.fingerprint,
            )
        )
        return Work(trial=trial.id, case=case, attempts=self._state.trials[trial.id].attempts)

    def _go_on(self, work: Work, known: TrialState) -> Work | None:
        """There are seven ways a trial can stand when its run is resumed, the two that are done not counted:"""
        match known.stage:
            case "answered":
                work.is_answered = True
                work.scored = frozenset(name.partition(".")[0] for name in (*(known.scores or ()), *known.unscored))
            case "backing_off":
                work.delay = known.due
            case "unsettled":
                return self._settle(work, known)
            case "interrupted" if self._on_ambiguous == "fail":
                self._recorder.record(TrialFailed(trial=work.trial, attempts=work.attempts, cause="ambiguous"))
                return None
            case "failed":
                self._recorder.record(RetryScheduled(trial=work.trial, attempt=work.attempts + 1, delay=0.0, cause="asked"))
                work.spent = Spent()
            case _:
                pass  # Queued, or interrupted and to be tried again: as if it had just been taken in.
        return work

    def _settle(self, work: Work, known: TrialState) -> Work | None:
        """Decide what the process that died did not come to decide: the same, for it depends on nothing else."""
        match self._retry.after(ended(known), work.spent, chance(self._seed, work.trial, work.attempts)):
            case Again(delay=delay, cause=cause) as again:
                self._recorder.record(RetryScheduled(trial=work.trial, attempt=work.attempts + 1, delay=delay, cause=cause))
                work.spent = work.spent.plus(again)
                work.delay = delay
                return work
            case GiveUp(cause=cause):
                self._recorder.record(TrialFailed(trial=work.trial, attempts=work.attempts, cause=cause))
                return None

    def close(self) -> None:
        """After the last case: leave out the trials whose cases are gone, or refuse to go on without them."""
        if self._known and not self._adopt:
            one = len(self._known) == 1
            raise RunChanged(
                f"{plural(len(self._known), 'trial')} of this run {'is' if one else 'are'} no longer among the cases: "
                f"{_some(sorted(self._known))}; --adopt leaves {'it' if one else 'them'} out"
            )
        for trial in sorted(self._known):
            self._recorder.record(TrialWithdrawn(trial=trial, why="removed"))
        self.is_closed = True


def ended(known: TrialState) -> Failure | TimedOut:
    """Say how the last attempt of a trial ended that is not settled yet."""
    trouble = known.retry_history
    assert trouble is not None
    if trouble.category == "timed_out":
        return TimedOut()
    return Failure(kind=trouble.category, retry_after=trouble.retry_after)  # type: ignore[arg-type]  # as it was recorded


def spent(known: TrialState) -> Spent:
    """Say what a trial has used of its budgets, the last attempt included."""
    trouble = known.retry_history
    if trouble is None:
        return Spent()
    return Spent(
        errors=trouble.errors,
        timeouts=trouble.timeouts,
        rate_limit_failures=trouble.rate_limit_failures,
        rate_limit_wait=trouble.rate_limit_wait,
    )
