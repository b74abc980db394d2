"""One session of a run, as `run` and `resume` start it: its progress on standard error, its summary and its exit code.

`--head-file` keeps the hash of the run's last record in a file.
"""

import functools
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import trio

from evaljournal.journal.errors import RecordTooLarge, WriteFailed
from evaljournal.journal.threads import run_in_thread
from evaljournal.replay.render.screen import panel, stopping_text
from evaljournal.replay.render.summary import blocking_call_lines
from evaljournal.replay.text import printable
from evaljournal.runner.cli import INTERRUPTED, UNFINISHED, CommandError
from evaljournal.runner.cli.terminal.display import (
    FRAME_INTERVAL,
    ProgressPrinter,
    finish,
    live_screen,
    progress_tenths,
    redraw,
    supports_screen,
)
from evaljournal.runner.cli.terminal.output import echo, line_width
from evaljournal.runner.cli.terminal.user_code import exit_immediately
from evaljournal.runner.definition.amounts import OFF
from evaljournal.runner.definition.loading import AnyEvaluation
from evaljournal.runner.errors import UsageError, command, unwrap_exception_groups
from evaljournal.runner.retries.classify import describe
from evaljournal.runner.runs.atomic_write import write_atomically
from evaljournal.runner.runs.paths import has_started, next_paths
from evaljournal.runner.sessions.api import run as run_evaluation
from evaljournal.runner.sessions.options import LiveRun
from evaljournal.runner.sessions.outputs import Outputs, RunOutput, output_from_text
from evaljournal.runner.sessions.session import Outcome, render_report

if TYPE_CHECKING:
    from rich.console import Console, Group

_HEAD: Final = re.compile(rb"[0-9a-f]{32}\s*")
_MAX_BYTES: Final = 64

_SESSION_OPTIONS: Final = (
    "resume",
    "adopt",
    "trust",
    "ignore_recorded",
    "retry_failed",
    "on_ambiguous",
    "leave",
    "cancel_batches",
    "yes",
    "shard",
    "state",
    "budget_share",
)


def check_head_file(file: Path | None) -> None:
    """Raise a UsageError unless the file, if one was given, is new or contains a head: nothing else is replaced."""
    if file is None:
        return
    if not file.parent.is_dir():
        raise UsageError(f"the directory {file.parent} of --head-file does not exist; create it, or pass another path")
    if os.path.lexists(file):
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES or not _HEAD.fullmatch(file.read_bytes()):
            raise UsageError(f"--head-file {file} exists and does not contain a head; pass another name")


def write_head(file: Path | None, head: str) -> None:
    """Write a head to the file, if one was given; print it if that fails. A run without records has no head."""
    if file is None or not head:
        return
    try:
        check_head_file(file)
        write_atomically(file, [f"{head}\n".encode()])
    except (OSError, UsageError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        echo(f"--head-file {printable(str(file))} could not be written: {reason}; the head is {head}", err=True)


def run_output(options: Mapping[str, Any]) -> RunOutput:
    """Return the outputs that `--export` and `--otlp` name, if they were given."""
    outputs, arguments = [], {"retry_failed": options.get("retry_failed", False)}
    if options["export"] is not None:
        outputs.append(output_from_text(options["export"], **arguments))
    if options["otlp"] is not None:
        outputs.append(output_from_text(f"otlp:{options['otlp']}", has_content=bool(options["otlp_content"]), **arguments))
    elif options["otlp_content"]:
        raise UsageError("--otlp-content needs --otlp, which sends the run")
    return Outputs(*filter(None, outputs))


class CommandSession:
    def __init__(
        self, evaluation: AnyEvaluation, reference: str, settings: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        self._evaluation = evaluation
        self._options = options
        self._output = run_output(options)
        check_head_file(options["head_file"])
        self._path = Path()
        self._is_started = False
        self._session_options: dict[str, Any] = {
            **settings,
            "task": reference,
            **{name: options[name] for name in _SESSION_OPTIONS if name in options},
        }

    def run(self, path: Path) -> Outcome:
        self._path = path
        try:
            with unwrap_exception_groups():
                options = {**self._session_options, "observer": self._observe, "on_unresponsive": self._exit_immediately}
                return run_evaluation(self._evaluation, path, signals=True, quiet=True, **options)
        except KeyboardInterrupt:
            if not has_started(self._path):
                raise
            raise CommandError(f"interrupted; continue with {command('resume', self._path)}", UNFINISHED) from None
        except WriteFailed as exc:
            if has_started(self._path):
                raise
            raise CommandError(f"{exc.message}; nothing was recorded; check the disk, then start again", UNFINISHED) from exc
        except (OSError, SystemExit, RecordTooLarge) as exc:  # A task may close all files, including the journal's.
            if not self._is_started or isinstance(exc, BrokenPipeError):
                raise
            error = describe(exc)
            message = f"{error.type}: {error.message}; to continue: {command('resume', self._path)}"
            raise CommandError(f"the run ended early: {message}", UNFINISHED) from exc

    def run_numbered(self) -> Outcome:
        """Run under the next free number; if another process takes it first, under the one after."""
        paths = next_paths(self._evaluation.name, self._options.get("shard"))

        def next_path() -> Path:
            self._path = next(paths)
            return self._path

        self._session_options["next_path"] = next_path
        return self.run(next(paths))

    async def _observe(self, live_run: LiveRun) -> None:
        self._is_started = True
        show = self._draw if not self._options["plain"] and supports_screen(sys.stderr) else self._print_lines
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._output.update, live_run)
            nursery.start_soon(show, live_run)

    def _exit_immediately(self, outcome: Outcome) -> None:
        exit_immediately(lambda: self.finish(outcome))

    def finish(self, outcome: Outcome) -> NoReturn:
        if outcome.stop_reason and outcome.state.started is None:
            code = INTERRUPTED if outcome.stop_reason == "interrupted" else UNFINISHED
            raise CommandError(f"{outcome.detail or outcome.stop_reason}; nothing was recorded; start again", code)

        problem = self._output.finish(outcome.path)
        write_head(self._options["head_file"], outcome.head)
        finish(
            outcome.state,
            outcome.path,
            as_json=self._options["json"],
            output_problem=problem,
            report=render_report(outcome, verbose=self._options["verbose"], width=line_width()),
            stop_reason=outcome.stop_reason,
            detail=outcome.detail or None,
            head=outcome.head,
        )

    async def _draw(self, live_run: LiveRun) -> None:
        for line in _setting_change_lines(live_run):
            echo(line, err=True)
        await draw(
            lambda console: panel(
                live_run.state,
                now=live_run.now(),
                durable=live_run.journal.durable_seq,
                total=live_run.total,
                width=console.width,
                title=str(self._path),
                stop_status=live_run.stop_status(),
            )
        )

    async def _print_lines(self, live_run: LiveRun) -> None:
        printer = ProgressPrinter(progress_tenths(live_run.state, live_run.total), live_run.now(), err=True)
        is_stopping = is_hint_printed = False
        echo(f"{self._evaluation.name} in {self._path}; Ctrl-C stops it; `evaljournal resume` continues", err=True)
        for line in _setting_change_lines(live_run):
            echo(line, err=True)

        while True:
            await trio.sleep(FRAME_INTERVAL)
            stop_status = live_run.stop_status()
            if stop_status and not is_stopping:
                is_stopping = True
                echo(f"stopping: {stopping_text(live_run.state, *stop_status)}", err=True)
            if live_run.state.trials.warnings.blocking_calls and not is_hint_printed:
                is_hint_printed = True
                echo("\n".join(blocking_call_lines(live_run.state)), err=True)
            printer.update(live_run.state, now=live_run.now(), total=live_run.total)


async def draw(render: "Callable[[Console], Group]") -> None:
    """Draw the live screen on standard error until cancelled; `render` returns a frame for the size of the terminal."""
    with live_screen(stderr=True) as screen:
        while True:
            frame = render(screen.console)
            await run_in_thread(functools.partial(redraw, screen, frame))  # Ctrl-S must not block the run.
            await trio.sleep(FRAME_INTERVAL)


def _setting_change_lines(live_run: LiveRun) -> Iterator[str]:
    for name, (old_value, value) in live_run.changed_settings.items():
        changes = [(name, old_value, value)]
        if isinstance(old_value, dict) and isinstance(value, dict):
            changes = [(f"{name}.{key}", old_value.get(key), field) for key, field in value.items()]
        for label, old_setting, setting in changes:
            if old_setting != setting:
                yield f"{label}: {_setting_text(setting)} (was {_setting_text(old_setting)})"


def _setting_text(value: Any) -> str:
    if isinstance(value, dict):  # Each field is shortened on its own.
        return " ".join(f"{name}={printable(field)}" for name, field in value.items() if field not in (None, [], {}))
    return OFF if value is None else printable(value)
