"""The command `evaljournal gate`."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click

from journal.events import RunFinished
from replay.comparison import NothingInCommon
from replay.gating import COMPLETED, Check, GateReport, GateRules, NotComparable
from replay.gating import gate as check_gate
from replay.text import digits, plural, printable
from replay.view_json import view_json
from runner.cli._common import RunReference, find_reference, reference_argument
from runner.cli._display import exit_if_damaged, print_json
from runner.cli._output import echo
from runner.cli._sides import open_side
from runner.definition.gate_rules import read_rules
from runner.errors import UsageError
from runner.run_paths import last_record, run_start, runs_newest_first

_NEWEST: Final = "newest"
_EXIT_CODES: Final = {"passed": 0, "regressed": 1, "too_little_evidence": 5}


@click.command()
@reference_argument
@click.option(
    "--baseline",
    metavar="RUN",
    required=True,
    help="The run to compare with; `newest`: the newest other finished run of the evaluation.",
)
@click.option("--rules", metavar="FILE", type=click.Path(path_type=Path), help="TOML file with the rules; see docs/gate.md.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON, with the heads of both journals.")
def gate(run: RunReference, baseline: str, rules: Path | None, as_json: bool) -> None:
    """Check whether a run, or one variant of it (RUN@VARIANT), is worse than a baseline.

    Each score is compared over the cases that both runs have. Without --rules, each score and the share of completed
    trials may drop by at most 0.02.

    Exit codes: 0 passed, 1 regressed, 2 the runs cannot be compared, 4 a journal is damaged, 5 too little evidence.

    \b
    evaljournal gate --baseline newest
    evaljournal gate runs/capitals/0002 --baseline runs/capitals/0001 --rules gate.toml
    evaljournal gate @mini --baseline @large
    """
    gate_rules = GateRules() if rules is None else read_rules(rules)
    is_newest = baseline == _NEWEST and not Path(baseline).exists()
    base = RunReference(_newest_other(run.path), run.variant) if is_newest else find_reference(baseline)
    if base.path.resolve() == run.path.resolve() and base.variant == run.variant:
        raise UsageError(f"{base} is the run itself", hint="pass another run, or --baseline newest", setting="baseline")
    (view_a, before), (view_b, after) = open_side(base), open_side(run)
    for view in (view_a, view_b):
        exit_if_damaged(view.problem, quiet=as_json)
    try:
        report = check_gate(before, after, gate_rules)
    except (NotComparable, NothingInCommon) as exc:
        raise UsageError(f"the baseline {base} (A) and {run} (B) cannot be compared: {exc}") from exc
    heads = {"baseline": (base, view_a.state.head), "run": (run, view_b.state.head)}
    if as_json:
        print_json(_report_json(report, heads))
    else:
        echo("\n".join(_report_lines(report, heads)))
    sys.exit(_EXIT_CODES[report.verdict])


def _newest_other(path: Path) -> Path:
    """Return the newest finished run of the same evaluation, other than the run itself."""
    start = run_start(path)
    if start is None:
        raise UsageError(f"{path} ends before its evaluation was recorded")
    for other in runs_newest_first(path.parent):
        last = last_record(other)
        if other.resolve() != path.resolve() and last is not None and isinstance(last.event, RunFinished):
            other_start = run_start(other)
            if other_start is not None and other_start[0].evaluation == start[0].evaluation:
                return other
    name = printable(start[0].evaluation)
    raise UsageError(f"{path.parent} has no other finished run of {name!r}", hint="pass the path of a run to --baseline")


_Heads = Mapping[str, tuple[RunReference, str]]
"""`baseline` and `run` → what it is, and the hash of the last record of its journal."""


def _report_json(report: GateReport, heads: _Heads) -> dict[str, object]:
    runs = {
        name: {"path": str(reference.path), "variant": reference.variant, "head": head}
        for name, (reference, head) in heads.items()
    }
    comparison = report.comparison
    return {
        "verdict": report.verdict,
        **runs,
        "common": comparison.common,
        "compared": comparison.compared,
        "not_done": comparison.not_done,
        "only_in_baseline": len(comparison.only_a),
        "only_in_run": len(comparison.only_b),
        "different_content": len(comparison.different_content),
        "broken": len(comparison.broken),
        "fixed": len(comparison.fixed),
        "checks": [view_json(check) for check in report.checks],
    }


def _report_lines(report: GateReport, heads: _Heads) -> Iterator[str]:
    comparison = report.comparison
    for name, (reference, head) in heads.items():
        yield f"{name:<8}  {printable(str(reference), 200)}  head {head}"
    not_paired = [
        *([f"{len(comparison.only_a):,} only in the baseline"] if comparison.only_a else ()),
        *([f"{len(comparison.only_b):,} only in the run"] if comparison.only_b else ()),
        *([f"{len(comparison.different_content):,} with other content"] if comparison.different_content else ()),
    ]
    excluded = f"; not compared: {', '.join(not_paired)}" if not_paired else ""
    yield f"{plural(comparison.common, 'trial')} in common{excluded}"
    for check in report.checks:
        yield f"{check.verdict.replace('_', ' '):<20}{_sentence(check)}"
    if comparison.broken or comparison.fixed:
        yield f"{len(comparison.broken):,} broken, {len(comparison.fixed):,} fixed; `evaljournal diff` lists them"
    yield report.verdict.replace("_", " ")


def _sentence(check: Check) -> str:
    """Describe a check: `exact 0.912 → 0.874: -0.038 (95 % CI -0.061 to -0.015, n = 300); drop tolerated: 0.02`."""
    name = "completed trials" if check.name == COMPLETED else printable(check.name, 40)
    if check.rule != "max_drop":
        relation = {"at_least": "≥", "at_most": "≤", "at_most_ratio": "≤"}[check.rule]
        unit = " × the baseline" if check.rule == "at_most_ratio" else ""
        return f"{name} {_text(check.value)}{unit} (required: {relation} {digits(check.bound, 4)})"
    interval = (
        "no interval" if check.low is None or check.high is None else f"95 % CI {_text(check.low)} to {_text(check.high)}"
    )
    sentence = (
        f"{name} {_text(check.baseline)} → {_text(check.value)}: {_text(check.difference)} ({interval}, n = {check.n:,}); "
        f"drop tolerated: {digits(check.bound, 4)}"
    )
    if check.verdict == "too_little_evidence":
        power = (
            "cannot show a drop"
            if check.minimum_detectable is None
            else f"would show a drop of {_text(check.minimum_detectable)} or more"
        )
        sentence += f"; {plural(check.n or 0, 'case')} {power}"
    return sentence


def _text(value: float | None) -> str:
    return "unknown" if value is None else digits(value, 3)
