"""One session of a suite, as `run` and `resume` start it: its progress on standard error, its summary and its exit code.

It is a session of each run that is not finished, all in one loop. Nothing is written before all of them are prepared, so that a
mistake in one evaluation is reported before anything starts. An error that ends one run later does not end the others.
"""

import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs
import trio

from evaljournal.journal.disk import segments
from evaljournal.journal.disk.lock import is_held
from evaljournal.journal.errors import JournalError
from evaljournal.journal.threads import run_in_thread
from evaljournal.replay import RunState
from evaljournal.replay.render.suite import SuiteRow, suite_panel
from evaljournal.replay.state.budget import UNITS
from evaljournal.replay.text import one_line, printable
from evaljournal.runner.cli import BUG, DAMAGED, UNFINISHED, USAGE, CommandError
from evaljournal.runner.cli.options.locate import enter_offline, load_reference, locate_evaluation, settings_text
from evaljournal.runner.cli.options.no_code import read_settings
from evaljournal.runner.cli.options.table import overrides
from evaljournal.runner.cli.session import draw
from evaljournal.runner.cli.suites.discovery import discover
from evaljournal.runner.cli.suites.views import finish_suite, run_details
from evaljournal.runner.cli.terminal.display import (
    FRAME_INTERVAL,
    ProgressPrinter,
    open_intact_run,
    open_run,
    progress_tenths,
    supports_screen,
)
from evaljournal.runner.cli.terminal.errors import exit_code as error_code
from evaljournal.runner.cli.terminal.errors import render
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.cli.terminal.user_code import exit_immediately, user_code
from evaljournal.runner.definition.limits import parse_budget
from evaljournal.runner.definition.loading import LoadedEvaluation
from evaljournal.runner.errors import UsageError, command, unwrap_exception_groups
from evaljournal.runner.gates.shared_budget import BudgetShare, shared_budget
from evaljournal.runner.retries.classify import describe
from evaljournal.runner.runs.paths import next_paths, run_finish
from evaljournal.runner.sessions.api import run_in_trio
from evaljournal.runner.sessions.options import LiveRun
from evaljournal.runner.sessions.session import Outcome, Session
from evaljournal.runner.sessions.suite_file import Suite, SuiteEntry, read_suite
from evaljournal.runner.signals import STOP_SIGNALS, handle_signals

_SESSION_OPTIONS: Final = ("adopt", "retry_failed", "on_ambiguous", "yes")


def run_suite(
    references: tuple[str, ...], path: Path | None, values: Mapping[str, Any], options: Mapping[str, Any]
) -> NoReturn:
    """`values` are those of the command line."""
    with user_code():
        new_suite = discover(references, values)
        entries = [
            SuiteEntry(name=evaluation.name, reference=reference, run=evaluation.name)
            for evaluation, reference in new_suite.evaluations
        ]
        paths = [path] if path is not None else next_paths(new_suite.name)
        suite = Suite(path=path or Path(), name=new_suite.name, settings=new_suite.settings, entries=tuple(entries))
        command_suite = CommandSuite(suite, options, paths=iter(paths))
        for item in new_suite.evaluations:
            command_suite.add(item.evaluation.name, item, RunState(), new_suite.changes)
        command_suite.run(is_shared="budget" in new_suite.settings)
    command_suite.finish()


def resume_suite(
    path: Path, values: Mapping[str, Any], options: Mapping[str, Any], reference: str | None, *, trust: bool
) -> NoReturn:
    """Resume a suite: evaluations that are not finished continue, or start."""
    names = [name for name in ("export", "otlp", "otlp_content", "head_file") if options[name] is not None]
    if reference is not None or names:
        flag = "--task" if reference is not None else f"--{names[0].replace('_', '-')}"
        raise UsageError(f"{flag} applies to a single run, not to a suite; omit it, or pass the path of the run")

    suite, changes = read_suite(path), overrides(values)
    if any(is_held(run) for run in suite.runs.values()):
        raise UsageError(f"{path} is running; {command('watch', path)} shows it live")

    with user_code():
        command_suite = CommandSuite(suite, options, trust=trust)
        items: dict[str, LoadedEvaluation] = {}
        for entry in suite.entries:
            try:
                item, state = _load(suite, entry, options, trust=trust)
            except JournalError as exc:
                if error_code(exc) != DAMAGED:
                    raise
                command_suite.errors[entry.name] = exc  # The other runs continue.
                item, state = None, open_run(suite.runs[entry.name]).state  # What it had spent counts.
            except UsageError as exc:
                others = [run for run in suite.runs.values() if run.name != entry.run and segments.is_run(run)]
                commands = ", ".join(command("resume", run) for run in others if run_finish(run) is None)
                exc.hint = exc.hint or (f"to resume the others without it: {commands}" if commands else "")
                raise
            command_suite.states[entry.name] = state
            if item is not None:
                items[entry.name] = item

        is_shared = _merge_budget(suite, command_suite.states.values(), changes)
        for name, item in items.items():
            state = command_suite.states[name]
            settings = {} if state.started is not None else read_settings(suite.settings, path)
            command_suite.add(name, item, state, settings | changes)
        command_suite.run(is_shared=is_shared)
    command_suite.finish()


def _load(
    suite: Suite, entry: SuiteEntry, options: Mapping[str, Any], *, trust: bool
) -> tuple[LoadedEvaluation | None, RunState]:
    """Return an evaluation of a suite, None if its run is finished, and the state of the run."""
    run, state = suite.runs[entry.name], RunState()
    if segments.is_run(run):
        finish = run_finish(run)
        if finish is not None and not options["adopt"] and not (options["retry_failed"] and finish.failed):
            return None, open_intact_run(run).state
        try:
            return locate_evaluation(run, trust=trust, state=state), state
        except UsageError:
            if state.started is not None:
                raise  # Otherwise nothing was recorded in it, and it starts.

    if not (trust or suite.is_own):
        reference = printable(entry.reference, 200)
        problem = f"{suite.path} was not started by you on this machine, and names {reference}"
        raise UsageError(problem, hint=f"pass --trust{settings_text(suite.settings)}")
    enter_offline(suite.settings)
    return load_reference(entry.reference), state


def _merge_budget(suite: Suite, states: Iterable[RunState], changes: dict[str, Any]) -> bool:
    """Set the budget that the runs share: that of the last session, with the changes of this one; return whether they do."""
    last_state = max((state for state in states if shares_budget(state)), key=lambda state: state.sessions[-1].at, default=None)
    recorded = read_settings(suite.settings, suite.path).get("budget") if last_state is None else last_state.settings["budget"]
    if recorded is None and "budget" not in changes:
        return False
    budget = parse_budget("budget", changes.get("budget", {}), parse_budget("budget", recorded))
    changes["budget"] = None if budget is None else {**dict.fromkeys(UNITS), **budget}
    return budget is not None


def shares_budget(state: RunState) -> bool:
    """Return whether a run has recorded what other runs of its suite had spent."""
    return state.budget is not None and bool(state.budget.limits and state.budget.other_runs)


def budget_share(run: Path) -> BudgetShare | None:
    """Return the part in a shared budget of a run of a suite that is resumed alone; None if it shares none."""
    run = run.resolve()
    suite = read_suite(run.parent)
    states = {path.name: open_run(path).state for path in suite.runs.values() if segments.is_run(path)}
    is_shared = "budget" in suite.settings or any(map(shares_budget, states.values()))
    return shared_budget(states).get(run.name) if is_shared else None


class CommandSuite:
    def __init__(
        self, suite: Suite, options: Mapping[str, Any], *, paths: Iterator[Path] | None = None, trust: bool = False
    ) -> None:
        """`paths` are where a new suite may be created; without them it exists."""
        self._suite = suite
        self._options = options
        self._paths = paths
        self._trust = trust

        self._parts: dict[str, tuple[LoadedEvaluation, dict[str, Any]]] = {}
        self.states: dict[str, RunState] = {}
        """Name → the state of its run; a run that has not started has no record."""
        self.errors: dict[str, BaseException] = {}
        """Name → why its run ended, or cannot be resumed."""
        self._outcomes: dict[str, Outcome] = {}
        self._live_runs: dict[str, LiveRun] = {}
        """Name → its run, once it has started."""

        self._sessions: dict[str, Session] = {}
        self._unprepared = set[str]()
        self._unended = set[str]()
        self._is_unresponsive = False
        self._start_event = trio.Event()
        """Set when all runs are prepared, so that some may have started."""

    def add(self, name: str, item: LoadedEvaluation, state: RunState, settings: Mapping[str, Any]) -> None:
        self._parts[name] = item, dict(settings)
        self.states[name] = state

    def run(self, *, is_shared: bool) -> None:
        """`is_shared`: the runs have one budget."""
        if not self._parts:
            echo(f"{self._suite.path}: nothing to resume", err=True)
            return

        shares = shared_budget(self.states) if is_shared else {}
        session_options = {name: self._options[name] for name in _SESSION_OPTIONS if name in self._options}
        leaves = False
        for name, ((evaluation, reference), settings) in self._parts.items():
            run = self._suite.runs[name]
            resume = {"resume": True, "trust": self._trust, "state": self.states[name]} if segments.is_run(run) else {}
            options = {**settings, **session_options, **resume, "task": reference, "budget_share": shares.get(name)}
            has_batches = bool(resume) or settings.get("batch", evaluation.settings.batch)
            options["leave"] = self._options["leave"] and has_batches
            leaves = leaves or options["leave"]
            options |= {"observer": partial(self._observe, name), "wait_ready": partial(self._wait_start, name)}
            session = self._sessions[name] = Session(evaluation, run, **options)
            session.on_unresponsive = partial(self._abandon, name)

        if self._paths is not None and self._options["leave"] and not leaves:
            raise UsageError("leave=True (--leave) has no effect without batches; add --batch (batch=True)")
        self._unprepared, self._unended = set(self._sessions), set(self._sessions)

        with unwrap_exception_groups():
            try:
                with handle_signals(lambda *_: self._interrupt(), *STOP_SIGNALS):
                    run_in_trio(self._run_sessions)
            except KeyboardInterrupt:
                if not self._start_event.is_set():
                    raise
                message = f"interrupted; continue with {command('resume', self._suite.path)}"
                raise CommandError(message, UNFINISHED) from None

    def _interrupt(self) -> None:
        """Stop all runs gracefully; the second time, cancel calls in flight. Called by a signal handler."""
        for name, session in self._sessions.items():
            if name in self._unended:
                session.interrupt()

    async def _run_sessions(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show)
            async with trio.open_nursery() as sessions:
                for name, session in self._sessions.items():
                    sessions.start_soon(self._run_session, name, session)
            nursery.cancel_scope.cancel()

    async def _run_session(self, name: str, session: Session) -> None:
        try:
            self._outcomes[name] = await session.run()
        except (Exception, KeyboardInterrupt) as exc:  # The other runs continue.
            if isinstance(exc, UsageError):
                exc.message = f"{name}: {exc.message}"
            if not self._start_event.is_set():
                raise
            self.errors[name] = exc
        self._end(name)
        await self._prepare(name)

    async def _observe(self, name: str, live_run: LiveRun) -> None:
        self._live_runs[name] = live_run
        await trio.sleep_forever()

    async def _wait_start(self, name: str) -> None:
        await self._prepare(name)
        await self._start_event.wait()

    async def _prepare(self, name: str) -> None:
        """Count a run that is prepared, or needs no preparation; the last one starts all."""
        if name in self._unprepared:
            self._unprepared.discard(name)
            if not self._unprepared:
                await self._start()
                self._start_event.set()

    def _abandon(self, name: str, outcome: Outcome) -> None:
        """Keep the outcome of a run whose calls do not end; the session waits for them if other runs do not."""
        self._outcomes[name] = outcome
        self._is_unresponsive = True
        self._end(name)

    def _end(self, name: str) -> None:
        """Print the summary and exit immediately if only calls are left that do not respond to cancellation."""
        self._unended.discard(name)
        if not self._unended and self._is_unresponsive:
            exit_immediately(self.finish)

    async def _start(self) -> None:
        """Create the directory of a new suite; several processes may start one at the same time."""
        for path in self._paths or ():
            self._suite = attrs.evolve(self._suite, path=path)
            try:
                await run_in_thread(self._suite.create)
            except FileExistsError as exc:
                if self._options["path"] is not None:
                    raise UsageError(f"{path} exists; pass another -o, or resume it: {command('resume', path)}") from exc
                continue
            for name, session in self._sessions.items():
                session.path = self._suite.runs[name]
            break

    def _rows(self) -> list[SuiteRow]:
        return [self._row(entry.name) for entry in self._suite.entries]

    def _row(self, name: str) -> SuiteRow:
        state, error, live_run = self.states.get(name), self.errors.get(name), self._live_runs.get(name)
        if (outcome := self._outcomes.get(name)) is not None:
            return SuiteRow(name=name, state=outcome.state if outcome.state.started else None, stop_reason=outcome.stop_reason)
        if live_run is None or error is not None:
            state = live_run.state if live_run is not None else state
            text = "" if error is None else f"ended early: {one_line(_message(error))}"
            return SuiteRow(name=name, state=state if state and state.started else None, error=text)
        return SuiteRow(
            name=name,
            state=live_run.state,
            now=live_run.now(),
            total=live_run.total,
            stop_status=live_run.stop_status(),
        )

    async def _show(self) -> None:
        await self._start_event.wait()
        is_drawn = not self._options["plain"] and supports_screen(sys.stderr)
        await (self._draw() if is_drawn else self._print_lines())

    async def _draw(self) -> None:
        title = f"{self._suite.name}  {self._suite.path}"
        await draw(lambda console: suite_panel(self._rows(), title=title, width=console.width, height=console.height))

    async def _print_lines(self) -> None:
        echo(
            f"{self._suite.name} in {self._suite.path}; Ctrl-C stops it; {command('resume', self._suite.path)} continues",
            err=True,
        )
        printers: dict[str, ProgressPrinter] = {}
        while True:
            for name, live_run in self._live_runs.items():
                state, now = live_run.state, live_run.now()
                if name not in printers:
                    prefix = f"{printable(name, 40)}: "
                    printers[name] = ProgressPrinter(progress_tenths(state, live_run.total), now, err=True, prefix=prefix)
                if name not in self._outcomes:
                    printers[name].update(state, now=now, total=live_run.total)
            await trio.sleep(FRAME_INTERVAL)

    def finish(self) -> NoReturn:
        rows = self._rows()
        finish_suite(self._suite, rows, {row.name: self._details(row) for row in rows}, as_json=self._options["json"])

    def _details(self, row: SuiteRow) -> tuple[int, list[str]]:
        if (error := self.errors.get(row.name)) is not None:
            if (code := _exit_code(error)) == BUG:
                lines = "".join(traceback.format_exception(error))
                echo(f"{lines}\nThis is a bug in evaljournal; the journals are safe. Please report the lines above.", err=True)
            return code, [_message(error)]
        outcome = self._outcomes.get(row.name)
        detail = outcome.detail if outcome is not None and outcome.stop_reason else ""
        return run_details(row.state, self._suite.runs[row.name], detail)


def _message(error: BaseException) -> str:
    if isinstance(error, JournalError):
        return render(error)
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    description = describe(error)
    return f"{description.type}: {description.message}"


def _exit_code(error: BaseException) -> int:
    match error:
        case JournalError():
            return error_code(error)
        case UsageError():
            return USAGE
        case KeyboardInterrupt() | OSError() | SystemExit():
            return UNFINISHED
        case _:
            return BUG
