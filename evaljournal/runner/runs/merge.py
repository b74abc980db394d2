"""Merge shards: copy the sessions of the runs of all shards, one shard after the other, into a new run.

Each shard keeps its records, their times and its results. The new run has its own hash chain, and its `RunStarted` names every
shard with its head. Nothing that a shard names is executed, and the shards are only read.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from evaljournal.journal import Event, JournalError, Record, events, read
from evaljournal.journal.copies.staging import RunCopy, check_target, copied_run
from evaljournal.journal.disk.files import DISK, Files
from evaljournal.journal.disk.lock import is_held
from evaljournal.journal.errors import InvalidRecord, JournalLocked
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.format.blobs import with_loaded_blobs
from evaljournal.journal.format.lifecycle import Lifecycle
from evaljournal.journal.ownership import Start, own_hashes
from evaljournal.journal.readers.verification import Verification, Verifier
from evaljournal.journal.readers.verification import verify as verify_journal
from evaljournal.journal.threads import InThread, run_in_thread
from evaljournal.replay import RunState
from evaljournal.replay.runs.loaded_run import reject_invalid_record
from evaljournal.replay.state.shards import Shard, missing_shards
from evaljournal.replay.text import plural
from evaljournal.runner.definition.settings import EXPERIMENT_SETTINGS
from evaljournal.runner.errors import RunChanged, UsageError, command
from evaljournal.runner.runs.changes import adopted_changes, differences
from evaljournal.runner.runs.paths import last_record, sealed_head

_RECORDS_PER_TURN: Final = 256
"""Records that are copied before other tasks, such as the writer's, get their turn."""


@attrs.frozen(kw_only=True)
class SourceShard:
    """A shard that is merged, described by its first and last records and the first records of its sessions."""

    path: Path
    shard: Shard
    run: str
    """Id of the run."""
    head: str
    """Hash of its last record."""
    trials: int | None
    """Number of trials to run; None if unknown."""
    sessions: int
    is_finished: bool
    start: Record
    """The record of its `RunStarted`."""
    run_started: events.RunStarted
    """The same, with adopted changes applied and the settings of the last session."""

    def entry(self) -> dict[str, Any]:
        """Return the entry for `RunStarted.merged_from`."""
        entry = {"run": self.run, "shard": str(self.shard), "head": self.head, "trials": self.trials, "sessions": self.sessions}
        return entry if self.run_started.forked_from is None else {**entry, "forked_from": self.run_started.forked_from}


@attrs.frozen
class MergeResult:
    path: Path
    state: RunState
    head: str
    """Hash of its last record."""
    shards: tuple[SourceShard, ...]
    """The shards in the order in which they were copied."""


async def merge(
    sources: Sequence[Path | str],
    target: Path | str,
    *,
    run: str | None = None,
    files: Files = DISK,
    in_thread: InThread = run_in_thread,
) -> MergeResult:
    """Verify shards and copy them into a new run with the id `run` (default: random); the shards are only read."""
    target = Path(target)
    shards = await in_thread(lambda: _check([Path(source) for source in sources], target, files))
    is_complete = not missing_shards([shard.shard for shard in shards])
    first_record = min((shard.start for shard in shards), key=lambda record: record.at)
    state = RunState()
    async with copied_run(target, first_record, run=run, durability="os", files=files, in_thread=in_thread) as copy:
        is_own = shards[0].start.h in own_hashes(shards[0].run)
        state.apply(copy.append(_run_started(shards, is_complete=is_complete), is_own=is_own))
        for shard in shards:
            with reject_invalid_record(shard.path, lambda: copy.source.seq):
                await _ShardCopier(copy, state, shard, is_complete=is_complete).add()
    return MergeResult(target, state, copy.journal.head, tuple(shards))


def _check(paths: list[Path], target: Path, files: Files) -> list[SourceShard]:
    """Check that the shards belong together; return them in the order in which they are copied."""
    for path in paths:
        check_target(path, target, files)
    shards: dict[Shard, SourceShard] = {}
    for path in paths:
        source = _describe(path)
        if (other_source := shards.get(source.shard)) is not None:
            raise UsageError(f"{other_source.path} and {path} are both shard {source.shard}", hint="pass one of them")
        shards[source.shard] = source
    first_source, *other_sources = shards.values()
    for source in other_sources:
        _check_same(first_source, source)
    # Unfinished shards come last: their open trials would make the `RunFinished` of a later shard illegal.
    return sorted(shards.values(), key=lambda source: (not source.is_finished, source.shard))


def _describe(path: Path) -> SourceShard:
    """Describe a shard; its records are verified while they are copied."""
    if is_held(path):
        raise JournalLocked(f"{path} is still running", path=path, hint="watch")
    records = iter(read(path, load_blobs=False))
    header = next(records, None)
    starts = [record for record in records if isinstance(record.event, Start)]
    start = next((record for record in starts if isinstance(record.event, events.RunStarted)), None)
    if header is None or not isinstance(header.event, events.SegmentOpened) or start is None:
        raise UsageError(f"{path} ends before its evaluation was recorded; start the shard again")

    state = RunState()
    with reject_invalid_record(path, lambda: start.seq):
        for record in starts:
            state.apply(record)
    assert state.started is not None

    try:
        shard = Shard.parse(state.started.shard)
    except ValueError:
        raise UsageError(f"{path} is not a shard: it was not started with --shard") from None

    end = last_record(path)
    run_finished = end.event if end is not None and isinstance(end.event, events.RunFinished) else None
    is_empty = run_finished is not None and not run_finished.completed + run_finished.failed + run_finished.withdrawn

    return SourceShard(
        path=path,
        shard=shard,
        run=header.event.run,
        head=sealed_head(path) or verify_journal(path).head,
        trials=state.sessions.planned if state.sessions.planned or is_empty else None,
        sessions=len(state.sessions),
        is_finished=run_finished is not None,
        start=start,
        run_started=evolve_fact(state.started, settings=state.settings),
    )


def _check_same(base: SourceShard, shard: SourceShard) -> None:
    if base.shard.count != shard.shard.count:
        shards = f"{base.path} is shard {base.shard}, and {shard.path} is shard {shard.shard}"
        raise UsageError(f"the shards are not parts of one run: {shards}")
    settings: dict[str, Any] = {name: shard.run_started.settings.get(name) for name in EXPERIMENT_SETTINGS}
    run_started = evolve_fact(shard.run_started, settings=settings)
    if changes := differences(base.run_started, run_started, base.run_started.settings):
        hint = "merge shards of one evaluation and dataset only"
        raise RunChanged(f"{shard.path} differs from {base.path}", changes=changes, hint=hint)


def _run_started(shards: Sequence[SourceShard], *, is_complete: bool) -> events.RunStarted:
    run_started, trials = shards[0].start.event, [shard.trials for shard in shards]
    environments = [shard.run_started.environment for shard in shards]
    names = dict.fromkeys(itertools.chain.from_iterable(environments))
    assert isinstance(run_started, events.RunStarted)
    return evolve_fact(
        run_started,
        trials=sum(number or 0 for number in trials) if is_complete and None not in trials else 0,
        environment={name: ", ".join(dict.fromkeys(str(env[name]) for env in environments if name in env)) for name in names},
        forked_from=None,
        shard="",
        merged_from=[shard.entry() for shard in shards],
    )


class _ShardCopier:
    """Copies a shard to the new run, and changes the events that refer to their journal."""

    def __init__(self, copy: RunCopy, state: RunState, shard: SourceShard, *, is_complete: bool) -> None:
        """`is_complete`: no shard is missing."""
        self._copy, self._journal, self._is_complete = copy, copy.journal, is_complete
        self._state = state
        """The state of the new run."""
        self._shard = shard
        self._source = RunState()
        """The definition and the settings of the shard."""
        self._lifecycle = Lifecycle()
        """The stages of the shard's trials."""
        self._withdrawn_trials: set[str] = set()
        self._own_starts = own_hashes(shard.run)
        self._is_own = True
        """Whether the user has written every copied start; see `journal.ownership`."""

    async def add(self) -> None:
        copy, shard = self._copy, self._shard

        verifier = Verifier(shard.path, lifecycle=self._lifecycle)
        earlier_batches = self._journal.lifecycle.batch_lines.last_batch
        for record in verifier:
            copy.source, event = record, self._adapt(record)
            if event is None:
                continue
            if earlier_batches and (batch := getattr(event, "batch", 0)):
                event = evolve_fact(event, batch=batch + earlier_batches)
            if verifier.has_blobs:
                event = with_loaded_blobs(record._replace(event=event), DISK).event
            self._state.apply(copy.append(event, is_own=self._is_own))
            if verifier.has_blobs or not record.seq % _RECORDS_PER_TURN:
                await self._journal.wait_room()

        _check_unchanged(shard, verifier.result(), self._source)
        if open_batches := self._lifecycle.batch_lines.open:
            problem = f"{shard.path} has {plural(len(open_batches), 'open batch', 'open batches')}"
            hint = f"collect with {command('resume', shard.path, ' --wait')}, or end with {command('cancel', shard.path)}"
            raise UsageError(problem, hint=hint)

    def _adapt(self, record: Record) -> Event | None:
        """Return the event for the new run; None if it has no such event. Raise if another shard also has the trial."""
        event = record.event
        match event:
            case events.TrialEnqueued():
                self._check_absent(event.trial)
            case events.TrialWithdrawn():
                self._withdrawn_trials.add(event.trial)
            case events.SessionStarted():
                self._apply_start(record)
                return self._adapt_session(event)
            case events.RunFinished():
                return self._adapt_end(event, record)
            case events.RunStarted():  # The new run has it once.
                self._apply_start(record)
                return None
            case events.SegmentOpened() | events.SegmentSealed() | events.JournalRecovered():
                return None  # It is about the files of the shard.
            case _:
                pass  # Nearly all are copied as they are.
        return event

    def _apply_start(self, record: Record) -> None:
        self._is_own = self._is_own and record.h in self._own_starts
        self._source.apply(record)

    def _check_absent(self, trial: str) -> None:
        """Raise if an earlier shard has the trial; a shard may enqueue a trial again that it has withdrawn."""
        if trial not in self._withdrawn_trials and self._journal.lifecycle.stage_of(trial) != "absent":
            problem = f"the trial {trial!r} of {self._shard.path} is also in another shard"
            raise UsageError(problem, hint="the cases were changed between the shards; start them again with the same cases")

    def _adapt_session(self, event: events.SessionStarted) -> Event:
        """Return the start of the new run's next session; its changes are relative to the session before it."""
        merged_start, shard_start = self._state.started, self._source.started
        assert merged_start is not None
        assert shard_start is not None
        base, settings = self._state.settings, self._source.settings
        changes = {name: settings.get(name) for name in {**base, **settings} if base.get(name) != settings.get(name)}

        adopted_fields = adopted_changes(merged_start, shard_start)
        return evolve_fact(
            event,
            session=self._journal.lifecycle.sessions + 1,
            settings=changes or None,
            trials=self._source.sessions.planned,
            adopted=adopted_fields,
            definition=shard_start.definition if adopted_fields is not None else None,
        )

    def _adapt_end(self, event: events.RunFinished, record: Record) -> Event:
        """Return the end of a finished shard with the totals so far; a stop if shards are missing or earlier trials are open.

        The totals of the shard are replaced, so they are checked first.
        """
        counts, state, journal = self._lifecycle.counts(), self._state, self._journal
        if (event.completed, event.failed, event.withdrawn) != (counts["completed"], counts["failed"], counts["withdrawn"]):
            raise InvalidRecord(self._shard.path, record.seq, "its totals are not those of the trials")
        if journal.lifecycle.open_trials or not self._is_complete:
            return events.RunStopped(reason="interrupted")
        totals = {"completed": state.completed, "failed": state.failed, "withdrawn": state.totals.stages["withdrawn"]}
        elapsed = None if event.elapsed is None else state.elapsed
        return events.RunFinished(**totals, head=journal.head if event.head else "", elapsed=elapsed)


def _check_unchanged(shard: SourceShard, verification: Verification, source: RunState) -> None:
    if verification.problem is not None:
        raise verification.problem
    if (verification.run, verification.head, len(source.sessions)) != (shard.run, shard.head, shard.sessions):
        raise JournalError(f"{shard.path} was changed while it was merged; merge again", path=shard.path)
