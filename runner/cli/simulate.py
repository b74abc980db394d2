"""The command `evaljournal simulate`."""

from pathlib import Path

import attrs
import click

from replay.text import duration, plural
from runner.cli._common import run_argument
from runner.cli._display import exit_if_damaged, open_run, print_json
from runner.cli._output import echo
from runner.concurrency import POLICIES
from runner.errors import UsageError
from runner.recompute.simulation import LIMITATION, Figures, Recording


@click.command()
@run_argument
@click.option("--policy", type=click.Choice(list(POLICIES)), help="Concurrency policy (default: that of the run).")
@click.option(
    "--slots", type=click.IntRange(min=1), metavar="N", help="Maximum concurrent attempts (default: those of the run)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def simulate(path: Path, policy: str | None, slots: int | None, as_json: bool) -> None:
    """Simulate a run on a virtual clock with another policy or number of slots, and compare the figures.

    Latencies and failures are those that were recorded, so the figures are estimates: under more load, an
    endpoint may be slower and rate limit more calls. Nothing is called or written.

    \b
    evaljournal simulate --policy aimd --slots 64
    evaljournal simulate runs/capitals/0001 --slots 4 --json | jq .simulated.duration
    """
    view = open_run(path)
    recording = Recording.of(view.records())
    try:
        figures = recording.simulate(policy=policy, slots=slots)
    except UsageError as exc:
        raise UsageError(f"{view.path}: {exc}") from exc
    if as_json:
        print_json(_as_json(view.path, recording, figures))
    else:
        echo(_in_words(view.path, recording, figures))
    exit_if_damaged(view.problem)


def _as_json(path: Path, recording: Recording, figures: Figures) -> dict[str, object]:
    return {
        "path": str(path),
        "recorded": attrs.asdict(recording.figures),
        "simulated": attrs.asdict(figures),
        "trials": len(recording.ended),
        "trials_excluded": recording.excluded,
        "limitation": LIMITATION,
    }


def _in_words(path: Path, recording: Recording, figures: Figures) -> str:
    was = recording.figures
    rows = [
        ("", "recorded", "simulated"),
        ("policy", was.policy or "unknown", figures.policy or ""),
        ("slots", str(was.slots), str(figures.slots)),
        ("duration", duration(was.duration), duration(figures.duration)),
        *(
            (name, f"{before:,}", f"{after:,}")
            for name, before, after in (
                ("calls", was.calls, figures.calls),
                ("rate limited", was.rate_limited, figures.rate_limited),
                ("most in flight", was.most_in_flight, figures.most_in_flight),
                ("completed", was.completed, figures.completed),
                ("failed", was.failed, figures.failed),
            )
        ),
    ]
    first, second, third = (max(len(row[at]) for row in rows) for at in range(3))
    table = [f"{name:<{first}}  {before:>{second}}  {after:>{third}}".rstrip() for name, before, after in rows]
    head = f"{path}: {plural(len(recording.ended), 'trial')} simulated on a virtual clock"
    if recording.excluded:
        head += f"; excluded: {recording.excluded:,} unfinished"
    return "\n".join([head, *table, LIMITATION])
