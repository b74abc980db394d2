"""The command `evaljournal status`."""

import shutil
import time
from datetime import UTC, datetime
from typing import Any, Final

import click

from evaljournal.replay import LoadedRun, RunState
from evaljournal.replay.render.ending import final_report
from evaljournal.replay.render.summary import group_lines, score_lines, variant_result
from evaljournal.replay.results.summary import summarize
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.text import day_limit_text, plural, printable
from evaljournal.runner.cli.arguments import RunReference, suite_or_reference_argument
from evaljournal.runner.cli.terminal.display import (
    check_variant,
    corrected_json,
    corrected_lines,
    current_time,
    exit_if_damaged,
    groups_by,
    open_run,
    print_json,
    print_screen,
    status_json,
)
from evaljournal.runner.cli.terminal.output import echo, line_width
from evaljournal.runner.errors import UsageError
from evaljournal.runner.sessions.suite_file import is_suite, read_suite

_MAX_GROUPS: Final = 20
"""Maximum groups that are listed; `--json` has all."""

_MIN_FREE_BYTES: Final = 1 << 20
"""Free bytes below which a disk counts as full."""


@click.command()
@suite_or_reference_argument
@click.option("--by", "key", metavar="KEY", help="Also show the results by this key of the metadata, or by `variant`.")
@click.option("--verbose", is_flag=True, help="Also print tokens, workers and the hash of the last record.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
def status(run: RunReference, key: str | None, verbose: bool, as_json: bool) -> None:
    """Show the status of a run or a suite, or the results of one variant (RUN@VARIANT), during the run or at any later time.

    A damaged run is shown up to the damage, with exit code 4. Nothing is written.

    \b
    evaljournal status
    evaljournal status runs/capitals/0001 --by difficulty
    evaljournal status runs/capitals/0001 --json | jq .trials
    """
    if is_suite(run.path):
        if key is not None:
            raise UsageError(f"{run.path} is a suite; pass one of its runs with --by")
        from evaljournal.runner.cli.suites.views import print_status  # noqa: PLC0415  # slow to import

        print_status(read_suite(run.path), as_json=as_json)
        return

    view = open_run(run.path)
    if run.variant is not None:
        if key is not None:
            raise click.UsageError(f"--by and {run} are mutually exclusive; pass one of them")
        _print_variant(view, run.variant, as_json=as_json)
        exit_if_damaged(view.problem, quiet=as_json)
        return

    if key is not None and not as_json:
        groups = summarize(view.state, groups=groups_by(view, key)).groups
        echo("\n".join(group_lines(groups or {}, key, limit=_MAX_GROUPS)))
    if as_json:
        print_json(status_json(view, key))
    elif view.is_live or view.problem is not None:
        print_screen(view, current_time(view) if view.problem is None else None)
        if view.problem is None:
            session = view.state.sessions[-1] if view.state.sessions else None
            process = f" in process {session.pid} on {printable(session.host)}" if session else ""
            echo(f"running{process}; last record at {printable(view.state.at)}")
    else:
        detail, head = _day_limit_text(view.state, time.time()), view.state.head
        options: dict[str, Any] = {
            "width": line_width(),
            "detail": detail,
            "corrected": corrected_lines(view),
            "wall": datetime.now(UTC),
        }
        echo(final_report(view.state, path=view.path, head=head, verbose=verbose, **options))
        free_bytes = shutil.disk_usage(view.path).free
        if view.status == "interrupted" and free_bytes < _MIN_FREE_BYTES:  # Its final record may be missing for that reason.
            echo(
                f"its disk has {plural(free_bytes, 'byte')} free, which may be why it ended; free some space before you resume"
            )

    exit_if_damaged(view.problem, quiet=as_json)


def _day_limit_text(state: RunState, wall: float) -> str:
    """Return when a run that was stopped by a declared limit per day can continue; empty: now."""
    wait = state.policy.resume_after - wall
    return day_limit_text(wait, wall) if wait > 0 else ""


def _print_variant(view: LoadedRun, variant: str, *, as_json: bool) -> None:
    check_variant(view, variant)
    results = (summarize(view.state).variants or {})[variant]
    if as_json:
        problem = None if view.problem is None else str(view.problem)
        header = {"path": str(view.path), "variant": variant, "status": view.status, "problem": problem}
        print_json({**header, **view_json(results), "corrected": corrected_json(view, variant)})
        return
    echo(f"{printable(f'{view.path}@{variant}', 500)}: {variant_result(view.state, view.state.variants[variant])}")
    for line in (*score_lines(results.scores, results.trials), *corrected_lines(view, variant)):
        echo(f"  {line}")
