"""The workspaces of a session: made before each attempt, compared after it, and removed when they are no longer needed.

**Where.** The directory of the run has the original and one directory per trial in `attempts/`, named after the trial and the
number of its last attempt. The names follow from the journal, so that what a kill has not removed is found without a list:
every directory in it that no trial still needs is removed by the next session, or by `evaljournal clean`.

**In which order.** The set-up records the name before it copies. After the attempt its programs are ended, then its changes are
recorded, then it has ended: what is scored is what was recorded. A workspace is removed once its trial is done, because scorers
execute commands in copies of it, and kept if the settings say so.

Nothing is removed outside this directory, whatever a journal says.
"""

import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from evaljournal.journal.disk.files import DISK
from evaljournal.journal.disk.lock import Lock
from evaljournal.journal.errors import JournalLocked
from evaljournal.journal.threads import InThread
from evaljournal.replay.state.trial import TrialState
from evaljournal.replay.state.workspaces import CHANGES, MAKE_WORKSPACE
from evaljournal.replay.text import plural
from evaljournal.runner.calls import OnLateResult, Task, WrappedTask
from evaljournal.runner.calls.command import CommandFailed
from evaljournal.runner.calls.notes import note_sink, start_phase
from evaljournal.runner.calls.workspaces import HOMES, Workspace, attempts_of, directory_of, name_of, set_workspace
from evaljournal.runner.calls.workspaces.changes import changes_of
from evaljournal.runner.calls.workspaces.original import Original, case_files
from evaljournal.runner.calls.workspaces.programs import WORKSPACE, end_programs
from evaljournal.runner.calls.workspaces.trees import copy_tree, remove_tree, write_file
from evaljournal.runner.calls.workspaces.variant_files import variant_files
from evaljournal.runner.definition.settings import Keep
from evaljournal.runner.engine.jobs import TrialWork
from evaljournal.runner.errors import UsageError, print_error
from evaljournal.runner.sessions.layers.hooks import PhasesLayer
from evaljournal.runner.sessions.plan import Plan
from evaljournal.runner.steps.attempt_steps import Step, current_steps
from evaljournal.runner.steps.inputs import step_input

_NO_LOGIN: Final = re.compile(
    r"(?i)/login|not logged in|log ?in (?:first|again|required)|(?:please|must|need to) (?:log|sign) ?in|invalid api key"
    r"|set an auth method|authentication (?:required|failed)|no api key|missing api key|401 unauthorized"
)
_LOCK: Final = "LOCK"
"""Name of the file that `Lock` makes."""


def is_needed(trial: TrialState, keep: Keep) -> bool:
    """Return whether the workspace of the last attempt at a trial stays: its output is not scored yet, or it is kept."""
    match trial.stage:
        case "scoring":
            return True
        case "failed":
            return keep != "none"
        case "completed":
            has_failed = bool(trial.unscored) or any(value in (False, 0) for _, value in (trial.scores or {}).values())
            return keep == "all" or (keep == "failing" and has_failed)
        case _:
            return False


def remove_leftovers(run: str, trials: Mapping[str, TrialState], keep: Keep) -> tuple[int, list[Path]]:
    """Remove every workspace of a run that is not needed, and the original if none is left.

    Returns how many were removed, and those that could not be. Call it while no attempt is in flight, and with the lock.
    """
    directory = directory_of(run)
    _remove_links(directory)
    needed = {name_of(name, trial.attempts) for name, trial in trials.items() if is_needed(trial, keep)}
    attempts = list(directory.glob("attempts/*"))
    unneeded = [path for path in attempts if path.name not in needed]
    remaining = [path for path in unneeded if not remove_tree(path)]
    kept_names = {_LOCK} if len(unneeded) == len(attempts) else {_LOCK, "attempts", "original"}
    for path in directory.glob("*"):
        if path.name not in kept_names:
            remove_tree(path)
    return len(unneeded) - len(remaining), remaining


@contextmanager
def lock_workspaces(run: str) -> Generator[None]:
    """Keep other sessions away from the workspaces of a run: a copy of its directory has the same id."""
    directory = directory_of(run)
    _remove_links(directory)
    directory.mkdir(parents=True, exist_ok=True)

    try:
        lock = Lock(directory, DISK)
    except JournalLocked as exc:
        hint = "wait for its end, or continue a fork: evaljournal fork"
        raise UsageError("a copy of this run is in progress, and uses its workspaces", hint=hint) from exc
    try:
        yield
    finally:
        with suppress(OSError):  # An agent may have removed it.
            if os.listdir(directory) == [_LOCK]:
                remove_tree(directory)
        lock.release()


def _remove_links(directory: Path) -> None:
    """Remove links that a program has put in place of our directories: we would remove what they point to."""
    for path in (directory, directory / "attempts"):
        if path.is_symlink():
            path.unlink()


class WorkspaceLayer(PhasesLayer):
    """Gives each attempt a workspace; around all other layers, so that set-ups and teardowns can use it."""

    def __init__(self, run: str, original: Original, plan: Plan, in_thread: InThread) -> None:
        """Making a workspace may take as long as an attempt may."""
        super().__init__(plan.settings.timeout)
        self._directory = directory_of(run)
        self._original = original
        self._keep = plan.settings.keep
        self._has_home = plan.settings.agent_home == "fresh"
        self._in_thread = in_thread
        tasks: Mapping[str, Any] = plan.evaluation.tasks
        self._files = {variant: variant_files(getattr(task, "variant_files", None)) for variant, task in tasks.items()}
        self._copies = trio.Semaphore(max(2, os.cpu_count() or 1))
        """Copies and comparisons at the same time; more would only compete for the disk."""
        self._ended: dict[str, tuple[Path, TrialState]] = {}
        """Trial → the workspace of an attempt that has ended, until its trial is done."""

    def wrap(self, task: Task, variant: str) -> Task:
        return WrappedTask(task, partial(self._call, self._files[variant]))

    async def _call(self, files: Mapping[str, bytes], task: Task, work: TrialWork, on_late: OnLateResult) -> Any:
        """Make a workspace, call the task, end its programs, and note the changes."""
        steps = current_steps()
        assert steps is not None

        start_phase("setup")
        set_up = Step(MAKE_WORKSPACE, "other", step_input(None, "workspace"), reusable=False, phase="setup")
        steps.begin(set_up)
        with trio.CancelScope(shield=True):  # A thread cannot be cancelled.
            workspace, compare = await self._run(partial(self._make, work, files))
        steps.complete(set_up, {"workspace": str(workspace.path)}, None)
        set_workspace(workspace)
        steps.key_rules = steps.key_rules.with_paths(workspace.constants)

        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            start_phase("task")
            return await task.call(work if task.takes_trial else work.case.input, on_late)
        except CommandFailed as exc:
            if workspace.has_home and _NO_LOGIN.search(str(exc)):
                hint = "the agent's home is fresh, without your login: pass an API key or --gateway, or use --agent-home own"
                raise CommandFailed(f"{exc}; {hint}") from exc
            raise
        finally:
            start_phase("teardown")
            tear_down = Step("compare workspace", "other", step_input(None, "workspace"), reusable=False, phase="teardown")
            steps.begin(tear_down)
            with trio.CancelScope(shield=True):
                changes = await self._run(compare)
                if (sink := note_sink()) is not None:
                    sink({CHANGES: changes})
                steps.complete(tear_down, None, None)
                await self._end(work, workspace.directory)

    async def _run(self, call: Callable[[], Any]) -> Any:
        async with self._copies:
            return await self._in_thread(call)

    def _make(self, work: TrialWork, files: Mapping[str, bytes]) -> tuple[Workspace, Callable[[], Mapping[str, Any]]]:
        """Make the workspace of an attempt, in place of that of the previous one; return it, and what compares it."""
        _remove_links(self._directory)
        for old in attempts_of(self._directory, work.trial):
            remove_tree(old)
        workspace = Workspace(self._directory / "attempts" / name_of(work.trial, work.state.attempts), self._has_home)
        places, files = copy_tree(self._original.path, workspace.path, self._original.index), {**files, **case_files(work.case)}
        for path, content in files.items():
            write_file(workspace.path, path, content)
            status = os.lstat(workspace.path / path)
            places[path] = status.st_ino, status.st_ctime_ns
        for name in HOMES.values() if self._has_home else ():
            (workspace.home / name).mkdir(parents=True)

        original = self._original.with_files(files) if files else self._original

        def compare() -> Mapping[str, Any]:
            end_programs(WORKSPACE, str(workspace.path))
            try:
                return changes_of(workspace.path, original, places)
            except OSError as exc:  # Such as: the agent has removed its workspace.
                return {"files": [], "diff": "", "problems": [f"the workspace cannot be read: {exc.strerror}"]}

        return workspace, compare

    async def _end(self, work: TrialWork, directory: Path) -> None:
        """Keep the workspace of an attempt until its trial is done, and remove those of the trials that are."""
        self._ended[work.trial] = directory, work.state
        done = [name for name, (_, trial) in self._ended.items() if trial.stage in ("completed", "failed", "withdrawn")]
        for path, trial in [self._ended.pop(name) for name in done]:
            if not is_needed(trial, self._keep):
                await self._run(partial(remove_tree, path))


@asynccontextmanager
async def open_workspaces(
    run: str, plan: Plan, trials: Mapping[str, TrialState], in_thread: InThread, clean: Callable[[], Awaitable[None]]
) -> AsyncGenerator[WorkspaceLayer]:
    """Remove what earlier sessions could not, after `clean` has ended their programs; its end removes what is not kept."""
    remove = partial(remove_leftovers, run, trials, plan.settings.keep)
    assert plan.workspace is not None
    with lock_workspaces(run):
        await clean()
        await in_thread(remove)
        try:
            original = await in_thread(partial(Original.make, plan.workspace, directory_of(run) / "original"))
            yield WorkspaceLayer(run, original, plan, in_thread)
        finally:
            with trio.CancelScope(shield=True):
                _, remaining = await in_thread(remove)
                if remaining:
                    print_error(f"{plural(len(remaining), 'workspace')} could not be removed, such as {remaining[0]}")
