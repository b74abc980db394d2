"""The command `evaljournal merge`."""

from pathlib import Path

import click
import trio

from evaljournal.replay.render.ending import final_report
from evaljournal.replay.text import plural, printable
from evaljournal.runner.cli.arguments import output_option
from evaljournal.runner.cli.commands.annotate import carry_over
from evaljournal.runner.cli.terminal.display import finish
from evaljournal.runner.cli.terminal.output import echo, line_width
from evaljournal.runner.definition.gates import gate_problems
from evaljournal.runner.runs.merge import merge as merge_shards


@click.command()
@click.argument("shards", nargs=-1, required=True, metavar="SHARD…", type=click.Path(path_type=Path))
@output_option("NEW", "Directory of the merged run.", required=True)
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
def merge(shards: tuple[Path, ...], target: Path, as_json: bool) -> None:
    """Merge the runs of all shards into a new run, NEW.

    Every shard is verified; shards that differ in the evaluation, the cases or their selection are rejected. NEW is a run like
    any other: it can be shown, exported, compared and re-scored, and its gates are checked. If shards are missing or not
    finished, NEW is not finished, either: `resume NEW` runs the missing trials. The shards are not changed.

    Exit codes as for `run`; 3 if shards are missing or not finished, 4 if one is damaged.

    \b
    evaljournal run evals/capitals.py --shard 1/2 -o runs/capitals/0001-1of2
    evaljournal run evals/capitals.py --shard 2/2 -o runs/capitals/0001-2of2
    evaljournal merge runs/capitals/0001-*of2 -o runs/capitals/0001
    """
    new_run = trio.run(merge_shards, shards, target)
    state = new_run.state
    unfinished_count = sum(not shard.is_finished for shard in new_run.shards)
    note = f", {unfinished_count:,} of them not finished" if unfinished_count else ""
    echo(f"{printable(str(target), 500)}: merged {plural(len(new_run.shards), 'shard')}{note}", err=True)
    carry_over(target, shards)

    stop_reason = "" if state.outcome == "finished" else state.outcome or "interrupted"
    report = [final_report(state, path=target, width=line_width()), *([] if stop_reason else gate_problems(state, target))]
    finish(
        state,
        target,
        as_json=as_json,
        report="\n".join(report),
        stop_reason=stop_reason,
        head=new_run.head,
        shards=[{"path": str(shard.path), **shard.entry(), "finished": shard.is_finished} for shard in new_run.shards],
    )
