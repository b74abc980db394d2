"""Did a run keep to its own rules?

`journal.verify` proves that a journal is what was written. Here is asked whether what was written could have happened so: who
held which slot, what started when nothing might, which time does not fit, which number is not what a recount gives, which
decision the rules would not have made. A finding is a disagreement between the log and the rules, never damage: damage is found
before, by the hashes.

Nothing here is known but the records. The rules by which a session decided are the runner's; they are handed in, are told the
records, and are asked what they would have decided.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, get_args

import attrs

from journal import Event, Record
from journal.codec import event_type
from journal.errors import IllegalEvent
from journal.events import (
    SCORER_PREFIX,
    AttemptEnding,
    AttemptFailed,
    AttemptInterrupted,
    AttemptStarted,
    AttemptSucceeded,
    AttemptTimedOut,
    FileEvent,
    IntakePaused,
    IntakeResumed,
    JournalRecovered,
    JournalSalvaged,
    LimitChanged,
    PaceChanged,
    PolicyEvent,
    PolicyShared,
    RetryScheduled,
    RunFinished,
    RunStarted,
    RunStopped,
    ScorerCallFailed,
    ScorerCallStarted,
    ScoringFailed,
    SessionStarted,
    TrialCompleted,
    TrialFailed,
    TrialScored,
    fields_of,
)
from journal.lifecycle import Lifecycle
from replay.in_flight import InFlight
from replay.intake import NO_RESPONSE, PROBING, Pause
from replay.state import RunState, TrialState
from replay.summary_text import version_notes
from replay.text import plural

T = TypeVar("T")

HAIR: Final = 2e-6
"""Seconds by which two times may differ because each was rounded to the microsecond."""
MOST: Final = 100
"""Findings that are kept; of more, only the number."""

Settled = RetryScheduled | TrialFailed
"""What is decided of a trial whose attempt did not work out."""


class Rules(Protocol):
    """What decided in one session, made again. It depends on the records that it is told, and on nothing else."""

    @property
    def doubt(self) -> str:
        """Why it may not be what decided then, though it goes by the same name; empty if nothing speaks for that."""
        ...

    def begin(self, key: str) -> PolicyEvent:
        """Give what is decided before the first attempt of a back end, which has a policy of its own from here on."""
        ...

    def take(self, record: Record) -> Sequence[PolicyEvent]:
        """Learn from a start or an end of an attempt or a scorer call, or from a note; return the decisions that follow."""
        ...

    def elapse(self, key: str, t: float) -> Sequence[PolicyEvent]:
        """Return what the policy of a rate-limit key decides because it is `t`, although nothing has happened."""
        ...

    def closed(self, key: str, t: float) -> str:
        """Say why no attempt of a back end may start at `t`; empty if one may."""
        ...

    def settle(self, event: Settled, known: TrialState) -> Settled:
        """Give what is to be decided of a trial that stands like this, where `event` is what was."""
        ...


Remake = Callable[[RunStarted, Mapping[str, Any], int], Rules | str]
"""Makes the rules again by which a session decided, from how its run began and from the settings in force; or says why not."""


@attrs.frozen
class Finding:
    """A place where the log and the rules disagree."""

    seq: int
    """The record that disagrees."""
    check: str
    """One word: lifecycle, time, slots, limit, intake, delay, calls, elapsed, policy, retry or totals."""
    what: str


@attrs.frozen(kw_only=True)
class Totals:
    """The trials of a run by where they stand: `enqueued` is the sum of the others."""

    enqueued: int = 0
    completed: int = 0
    failed: int = 0
    withdrawn: int = 0
    open: int = 0


@attrs.frozen(kw_only=True)
class Audit:
    """What came of holding a log against the rules."""

    findings: tuple[Finding, ...]
    more: int
    """How many findings there were beyond those."""
    notes: tuple[str, ...]
    """What could not be held against anything, and why."""
    totals: Totals
    decisions: int
    """Recorded decisions that were made again, and came out the same."""
    unreproduced: int = 0
    """Decisions of policies that were shared with another run: checked against the other rules, but not recomputed."""

    @property
    def agrees(self) -> bool:
        """Say whether the log and the rules agree."""
        return not self.findings


def audit(records: Iterable[Record], *, remake: Remake | None = None) -> Audit:
    """Hold the records of a run, from the first on, against the rules."""
    auditor = Auditor(remake)
    for record in records:
        auditor.take(record)
    return auditor.result()


class Auditor:
    """The state so far, who holds which slot, and what the rules say must come next."""

    def __init__(self, remake: Remake | None = None, state: RunState | None = None) -> None:
        """Judge by a state of its own, or by one that somebody else takes each record into after it was judged here."""
        self._remake = remake
        self._keeps_state = state is None
        self._lifecycle = Lifecycle()
        self._state = RunState() if state is None else state
        self._findings: list[Finding] = []
        self._found = 0
        self._notes: dict[str, None] = {}
        self._is_over = False
        """Whether a record made no sense, so that nothing behind it does."""
        self._decisions = 0

        self._t = 0.0
        """The time of the record before, in this session."""
        self._h = ""
        """The hash of the last record that is not about a file."""
        self._slots: dict[int, str] = {}
        """Slot → the trial that holds it."""
        self._in_flight = InFlight()
        self._hung = 0
        """Attempts that were in flight when their endpoint stopped responding, in this session."""
        self._highest = 0
        """The highest limit of attempts in this session."""
        self._calls: dict[tuple[str, str], int] = {}
        """Trial and scorer → the number of its last call in this session."""
        self._shared: set[str] = set()
        """Rate-limit keys whose policy is shared with another run from here on."""
        self._of_shared: set[str] = set()
        """Trials whose last attempt counted for one of them."""
        self._unreproduced = 0
        self._answered: dict[str, float] = {}
        """Trials that were answered in this session and wait for scores, and since when."""
        self._rules: Rules | None = None
        self._due: deque[tuple[int, PolicyEvent]] = deque()
        """Decisions that must come next, each with the record that calls for it."""

    def take(self, record: Record) -> None:
        """Judge the next record."""
        if self._is_over:
            return
        is_of_a_file = record.event.__class__ in _OF_A_FILE
        try:
            if not is_of_a_file:
                self._lifecycle.advance(record.event)
                self._judge(record)
            if self._keeps_state:
                self._state.apply(record)
        except IllegalEvent as exc:
            self._end(record, str(exc))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
            self._end(record, f"it makes no sense ({type(exc).__name__}: {exc})")
        if not is_of_a_file:
            self._h = record.h

    def result(self) -> Audit:
        """Say what was found so far."""
        state = self._state
        totals = Totals(
            enqueued=len(state.trials),
            completed=state.completed,
            failed=state.failed,
            withdrawn=state.stages["withdrawn"],
            open=self._lifecycle.open,
        )
        rest = totals.completed + totals.failed + totals.withdrawn + totals.open
        findings, found = list(self._findings), self._found
        if not self._is_over and totals.enqueued != rest:
            found += 1
            what = f"{plural(totals.enqueued, 'trial')} enqueued, and {rest:,} accounted for"
            findings.append(Finding(state.seq, "totals", what))
        return Audit(
            findings=tuple(findings),
            more=found - len(findings),
            notes=(*self._notes, *version_notes(state)),
            totals=totals,
            decisions=self._decisions,
            unreproduced=self._unreproduced,
        )

    def _find(self, record: Record, check: str, what: str) -> None:
        self._found += 1
        if len(self._findings) < MOST:
            self._findings.append(Finding(record.seq, check, what))

    def _end(self, record: Record, what: str) -> None:
        self._find(record, "lifecycle", what)
        self._notes[f"nothing behind record {record.seq:,} was judged"] = None
        self._is_over = True

    def _judge(self, record: Record) -> None:
        event = record.event
        if isinstance(event, SessionStarted):
            self._begin_session(event, record)
        elif isinstance(event, JournalRecovered) or isinstance(event, JournalSalvaged):  # noqa: SIM101  # asked of every record
            self._begin_anew(event, record)
        elif self._lifecycle.stage == "session" or isinstance(event, RunStopped | RunFinished):
            if record.t < self._t:
                self._find(record, "time", f"its time, {record.t:.6f} s, is before that of the record before, {self._t:.6f} s")
            judge = _JUDGES.get(event.__class__)
            if judge is not None:
                judge(self, event, record)
            self._t = max(self._t, record.t)

    def _begin_session(self, event: SessionStarted, record: Record) -> None:
        self._t, self._highest, self._rules = record.t, 0, None
        self._slots.clear()
        self._in_flight.clear()
        self._hung = 0
        self._calls.clear()
        self._shared.clear()
        self._of_shared.clear()
        self._answered.clear()
        self._due.clear()  # The process before died; what it decided last did not reach the disk.
        started = self._state.started
        if self._remake is None or started is None:
            return
        given = event.settings if isinstance(event.settings, dict) else {}
        rules = self._remake(started, {**self._state.settings, **given}, event.trials or self._state.planned)
        if isinstance(rules, str):
            self._notes[f"not recomputed in session {event.n}: {rules}"] = None
            return
        self._rules = rules

    def _begin_anew(self, event: JournalRecovered | JournalSalvaged, record: Record) -> None:
        self._rules = None
        self._due.clear()
        if isinstance(event, JournalSalvaged):
            self._findings.clear()
            self._found = 0
            self._notes[
                f"the records up to {record.seq:,} were copied out of a damaged journal, and others are missing between them: "
                "only their order was judged"
            ] = None

    @property
    def _is_forked(self) -> bool:
        return self._state.started is not None and self._state.started.forked_from is not None

    # Attempts, and their scores.

    def _judge_score(self, event: TrialScored | ScoringFailed, record: Record) -> None:
        name = event.trial, event.scorer.partition(".")[0]
        if name in self._in_flight:
            self._judge_call_end(name, event.elapsed, record)
            return
        answered = self._answered.get(event.trial)
        since = "the session began" if answered is None else "its trial was answered"
        self._judge_elapsed(record, event.elapsed, 0.0, record.t - (answered or 0.0), since)

    def _judge_call(self, event: ScorerCallStarted, record: Record) -> None:
        name, found = (event.trial, event.scorer), self._found
        subject = f"{event.scorer!r} is called for {event.trial!r}"
        if name in self._in_flight:
            self._find(record, "calls", f"{subject} while call {self._calls[name]} is in flight")
            self._in_flight.end(name)
        expected = self._calls.get(name, 0) + 1
        if event.call != expected:
            self._find(record, "calls", f"{subject} as call {event.call}, expected call {expected}")
        self._calls[name] = event.call
        due = self._state.delayed_calls.get(name, 0.0)
        if record.t < due - HAIR:
            self._find(record, "delay", f"{subject} at {record.t:.6f} s, and the delay after the last call ends at {due:.6f} s")
        in_flight = self._in_flight.start(name, event.key)
        self._judge_room(subject, event.key, in_flight, record)
        self._judge_open(subject, event.key, record, judged=found != self._found)
        self._tell(record, event.key)

    def _judge_call_failure(self, event: ScorerCallFailed, record: Record) -> None:
        name = event.trial, event.scorer
        if name not in self._in_flight or event.call != self._calls[name]:
            self._find(
                record, "calls", f"call {event.call} of {event.scorer!r} for {event.trial!r} fails, and is not in flight"
            )
            return
        self._judge_call_end(name, event.elapsed, record)

    def _judge_call_end(self, name: tuple[str, str], elapsed: float, record: Record) -> None:
        key, since = self._in_flight.end(name), self._state.scorer_calls[name].since
        self._judge_elapsed(record, elapsed, self._t - since, record.t - since, "its call began")
        self._tell(record, key)

    def _judge_sharing(self, event: PolicyShared, _: Record) -> None:
        self._shared.add(event.key)
        self._due = deque((seq, decision) for seq, decision in self._due if decision.key != event.key)

    def _judge_completion(self, event: TrialCompleted, _: Record) -> None:
        self._answered.pop(event.trial, None)

    def _judge_interruption(self, event: AttemptInterrupted, record: Record) -> None:
        if event.why in {"process_died", "forked"}:
            return  # Of another session, whose clock, slots and policy are gone.
        if event.why == "cancelled" or (self._is_forked and event.elapsed is None):
            self._judge_end(event, record)
            self._rules = None  # The run was cancelled as a whole, or forked here: no policy has heard of it any more.
            self._due.clear()
        else:
            self._judge_ending(event, record)

    def _judge_ending(self, event: AttemptEnding, record: Record) -> None:
        key = self._in_flight.key_of(event.trial)
        self._judge_end(event, record)
        self._tell(record, key)

    def _judge_start(self, event: AttemptStarted, record: Record) -> None:
        state, found = self._state, self._found
        known = state.trials[event.trial]
        holder = self._slots.get(event.slot)
        if holder is not None:
            self._find(record, "slots", f"{event.trial!r} starts in slot {event.slot}, which {holder!r} still holds")
        self._slots[event.slot] = event.trial
        in_flight, subject = self._in_flight.start(event.trial, event.key), f"{event.trial!r} starts"
        if self._judge_room(subject, event.key, in_flight, record):
            self._judge_slot(event, record)
        if known.stage == "backing_off" and record.t < known.due - HAIR:
            what = f"{event.trial!r} starts at {record.t:.6f} s, and its backoff ends at {known.due:.6f} s"
            self._find(record, "delay", what)
        self._judge_open(subject, event.key, record, judged=found != self._found)
        (self._of_shared.add if event.key in self._shared else self._of_shared.discard)(event.trial)
        self._tell(record, event.key)

    def _judge_room(self, subject: str, key: str, in_flight: int, record: Record) -> bool:
        """Check a start against the limit and the pause of its rate-limit key; return whether the limit leaves room for it."""
        until, cause, _ = self._state.pauses.get(key, Pause(0.0, ""))
        if record.t < until - HAIR:
            self._find(
                record, "intake", f"{subject} at {record.t:.6f} s, while intake is paused until {until:.6f} s ({cause!r})"
            )
        limit = self._state.limits.get(key, in_flight)
        if in_flight > limit and cause not in PROBING:  # A probe may start although hung attempts fill every place.
            self._find(record, "limit", f"{subject} as number {in_flight} in flight, and the limit is {limit}")
            return False
        return key in self._state.limits

    def _judge_slot(self, event: AttemptStarted, record: Record) -> None:
        if not 0 <= event.slot < max(self._highest + self._hung, len(self._slots)):
            what = f"{event.trial!r} starts in slot {event.slot}, and there were never more than {self._highest} of them"
            self._find(record, "slots", what)

    def _judge_open(self, subject: str, key: str, record: Record, *, judged: bool) -> None:
        """Ask the policy whether a start is allowed, unless a finding says already that it is not."""
        rules = self._rules
        if judged or rules is None or key in self._shared:
            return
        closed = self._asked(record, lambda: rules.closed(key, record.t + HAIR), "")
        if closed:
            self._disagree(record, f"{subject}, and the policy does not let it: {closed}")

    def _judge_end(self, event: AttemptEnding, record: Record) -> None:
        known = self._state.trials[event.trial]
        self._in_flight.end(event.trial)
        if self._slots.get(known.slot) == event.trial:
            del self._slots[known.slot]
        if isinstance(event, AttemptSucceeded):
            self._answered[event.trial] = record.t
        if event.elapsed is None:
            return
        # It is measured when the attempt is back and recorded at once, so nothing else was recorded in between.
        soonest, latest = self._t - known.since, record.t - known.since
        self._judge_elapsed(record, event.elapsed, soonest, latest, "its attempt began")
        if isinstance(event, AttemptTimedOut):
            timeout = self._state.settings.get("timeout", event.timeout)
            if event.elapsed < event.timeout - HAIR:
                self._find(record, "elapsed", f"it was out of time after {event.elapsed:g} s, and had {event.timeout:g} s")
            if timeout != event.timeout:
                self._find(record, "elapsed", f"it had {event.timeout:g} s, and the settings give an attempt {timeout!r}")

    def _judge_elapsed(self, record: Record, elapsed: float, soonest: float, latest: float, since: str) -> None:
        if not soonest - HAIR <= elapsed <= latest + HAIR:
            what = f"it says {elapsed:.6f} s, and {max(soonest, 0):.6f} to {latest:.6f} s have passed since {since}"
            self._find(record, "elapsed", what)

    # Decisions.

    def _tell(self, record: Record, key: str | None) -> None:
        """Tell the policy of a rate-limit key what happened; one that is shared has consumed more than this journal has."""
        if self._rules is None or key is None or key in self._shared:
            return
        self._demand_none(record)
        rules = self._rules
        if rules is not None:
            self._expect(record, self._asked(record, lambda: rules.take(record), ()))

    def _expect(self, record: Record, decisions: Sequence[PolicyEvent]) -> None:
        self._due.extend((record.seq, decision) for decision in decisions)

    def _demand_none(self, record: Record) -> None:
        """Miss a decision that was not recorded, although something has happened since that depends on it."""
        if self._due:
            seq, expected = self._due[0]
            self._disagree(record, f"after record {seq:,} the policy decides {_in_words(expected)}; it is missing before this")

    def _judge_decision(self, event: PolicyEvent, record: Record) -> None:
        self._judge_invariants(event, record)
        rules = self._rules
        if rules is None:
            return
        if event.key in self._shared:
            self._unreproduced += 1
            return
        if event.key not in self._state.limits:
            self._expect(record, [self._asked(record, lambda: rules.begin(event.key), event)])
        elif not self._due:
            self._expect(record, self._asked(record, lambda: rules.elapse(event.key, record.t), ()))
        if not self._due:
            self._disagree(record, f"nothing that happened before makes the policy decide {_in_words(event)}")
            return
        seq, expected = self._due.popleft()
        if expected == event:
            self._decisions += 1
        else:
            what = f"the policy decides {_in_words(expected)}, and this is {_in_words(event)}"
            self._disagree(record, f"after record {seq:,} {what}")

    def _judge_invariants(self, event: PolicyEvent, record: Record) -> None:
        """Check what must hold of a decision whichever policy has made it."""
        state = self._state
        if isinstance(event, LimitChanged):
            limits = {**state.limits, event.key: event.after}
            self._highest = max(self._highest, sum(limit for key, limit in limits.items() if not key.startswith(SCORER_PREFIX)))
            slots = self._slots_of(event.key)
            if event.before != state.limits.get(event.key, event.before):
                self._find(record, "limit", f"it changes a limit of {event.before}, and {state.limits[event.key]} was in force")
            is_own = event.key not in self._shared  # A shared policy may use the slots of all runs.
            if event.after < 1 or (is_own and isinstance(slots, int) and event.after > slots):
                self._find(record, "limit", f"it sets a limit of {event.after}, and the settings have slots={slots!r}")
        elif isinstance(event, IntakeResumed) and event.key not in state.pauses:
            self._find(record, "intake", "it resumes an intake that was not paused")
        elif isinstance(event, IntakePaused) and event.cause == NO_RESPONSE:
            self._in_flight.give_up_hung(event.key)
            self._hung = len(self._slots)

    def _slots_of(self, key: str) -> object:
        """Return the most that a limit may be, by the settings."""
        settings = self._state.settings
        slots, own = settings.get("slots"), settings.get("scorer_slots")
        return (
            own.get(key.removeprefix(SCORER_PREFIX), slots)
            if key.startswith(SCORER_PREFIX) and isinstance(own, dict)
            else slots
        )

    def _judge_settlement(self, event: Settled, record: Record) -> None:
        rules, known = self._rules, self._state.trials[event.trial]
        if rules is None:
            return
        expected = self._asked(record, lambda: rules.settle(event, known), event)
        if expected == event:
            self._decisions += 1
        elif event.trial in self._of_shared:
            self._unreproduced += 1  # Whether its attempt was a probe is not in this journal.
        else:
            what = f"the rules decide {_in_words(expected)}, and this is {_in_words(event)}"
            self._differ(record, "retry", f"after attempt {known.attempts} of {event.trial!r} {what}")

    def _asked(self, record: Record, ask: Callable[[], T], otherwise: T) -> T:
        try:
            return ask()
        except Exception as exc:  # noqa: BLE001  # numbers that nobody ever wrote must not end an audit
            self._disagree(record, f"the rules cannot make sense of it ({type(exc).__name__}: {exc})")
            return otherwise

    def _disagree(self, record: Record, what: str) -> None:
        """Say it once a session: every decision rests on the one before."""
        n = len(self._state.sessions)
        self._differ(record, "policy", what)
        self._notes[f"not recomputed in the rest of session {n}, since it would only follow from record {record.seq:,}"] = None
        self._rules = None
        self._due.clear()

    def _differ(self, record: Record, check: str, what: str) -> None:
        doubt = self._rules.doubt if self._rules is not None else ""
        if doubt:
            self._notes[f"record {record.seq:,}: {what}; but {doubt}"] = None
        else:
            self._find(record, check, what)

    # Sums.

    def _judge_last_word(self, event: RunStopped | RunFinished, record: Record) -> None:
        if isinstance(event, RunFinished):
            self._judge_totals(event, record)
        elif event.reason == "disk_full" or self._is_forked:
            return  # There was no space for what was decided last, or the fork was made before it.
        self._demand_none(record)

    def _judge_totals(self, event: RunFinished, record: Record) -> None:
        state = self._state
        counts = {"completed": state.completed, "failed": state.failed, "withdrawn": state.stages["withdrawn"]}
        for name, count in counts.items():
            if getattr(event, name) != count:
                self._find(record, "totals", f"it says {getattr(event, name):,} {name}, and a recount gives {count:,}")
        if event.head not in ("", self._h):
            self._find(record, "totals", f"it says that the head before it is {event.head!r}, and that is {self._h!r}")


def _in_words(event: Event) -> str:
    said = ((field.name, getattr(event, field.name), field.default) for field in fields_of(type(event)))
    return " ".join([event_type(event), *(f"{name}={value!r}" for name, value, default in said if value != default)])


_OF_A_FILE: Final = frozenset(get_args(FileEvent))
_JUDGES: Final[dict[type[Event], Callable[[Auditor, Any, Record], None]]] = {
    LimitChanged: Auditor._judge_decision,
    PaceChanged: Auditor._judge_decision,
    IntakePaused: Auditor._judge_decision,
    IntakeResumed: Auditor._judge_decision,
    RetryScheduled: Auditor._judge_settlement,
    TrialFailed: Auditor._judge_settlement,
    PolicyShared: Auditor._judge_sharing,
    ScorerCallStarted: Auditor._judge_call,
    ScorerCallFailed: Auditor._judge_call_failure,
    TrialScored: Auditor._judge_score,
    ScoringFailed: Auditor._judge_score,
    TrialCompleted: Auditor._judge_completion,
    RunStopped: Auditor._judge_last_word,
    RunFinished: Auditor._judge_last_word,
    AttemptStarted: Auditor._judge_start,
    AttemptSucceeded: Auditor._judge_ending,
    AttemptFailed: Auditor._judge_ending,
    AttemptTimedOut: Auditor._judge_ending,
    AttemptInterrupted: Auditor._judge_interruption,
}
"""What is held against a record within a session, by its type."""
