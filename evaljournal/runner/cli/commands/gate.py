"""The command `evaljournal gate`."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, cast

import attrs
import click

from evaljournal.journal import JournalError, Record
from evaljournal.journal.disk.segments import is_run
from evaljournal.journal.errors import InvalidRecord, JournalDamaged
from evaljournal.journal.format.lifecycle import Lifecycle
from evaljournal.replay.render.comparison import answer_lines, change_text
from evaljournal.replay.render.phrases import figures, mean_text, p_text, size_text, unpaired_text
from evaljournal.replay.results.comparison import NothingInCommon, Side
from evaljournal.replay.results.gate import (
    BROKEN,
    COMPLETED,
    Check,
    GateReport,
    GateRules,
    Limit,
    NotComparable,
    ScoreRule,
    UnchangedValues,
    Verdict,
    minimum_detectable_drops,
    repeats,
    worst_verdict,
)
from evaljournal.replay.results.gate import gate as check_gate
from evaljournal.replay.results.view_json import view_json
from evaljournal.replay.runs.loaded_run import Apply, LoadedRun
from evaljournal.replay.state.definition import definition_key, substitution
from evaljournal.replay.text import as_words, digits, one_line, plural, printable
from evaljournal.runner.cli import DAMAGED, FAILED, UNDECIDED, USAGE
from evaljournal.runner.cli.arguments import RunReference, RunType, SuiteGiven, find_reference
from evaljournal.runner.cli.digests import DigestCache
from evaljournal.runner.cli.suites.views import suite_exit_code
from evaljournal.runner.cli.terminal.display import check_variant, open_intact_run, open_side, print_json, print_table
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.data.toml_file import read_toml
from evaljournal.runner.definition.gates import Gate, GateResult, check_gates, trial_problems
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.runs.paths import RUNS, run_finish, run_start, runs_newest_first
from evaljournal.runner.sessions.suite_file import earlier_suites, find_suite, read_suite

_LIMITS: Final = ("cost", "tokens", "p95")
"""Amounts that a rules file can limit."""
_NEWEST: Final = "newest"
_HISTORY_RUNS: Final = 10
"""Number of newest runs in the directory of the baseline that are searched for unchanged trials."""
_EXIT_CODES: Final = {
    "passed": 0,
    "regressed": FAILED,
    "too_little_evidence": UNDECIDED,
    "new": 0,
    "missing": FAILED,
    "not_comparable": USAGE,
    "damaged": DAMAGED,
}
"""Verdict → exit code; the last four are verdicts on an evaluation of a suite."""
RuleT = TypeVar("RuleT", ScoreRule, Limit)


@click.command()
@click.argument("run", required=False, metavar="[RUN]", shell_complete=RunType().shell_complete)
@click.option(
    "--baseline",
    metavar="RUN",
    help="The run to compare with; `newest`: the newest other finished run of the evaluation. Required without --fail-under.",
)
@click.option(
    "--fail-under",
    "fail_under",
    metavar="GATE",
    multiple=True,
    help="Minimum, as in `run`, also of a review: 'corrected:judge>=0.9@lower', 'agreement:judge>=0.7@lower'; repeatable.",
)
@click.option("--suite", "is_suite_gate", is_flag=True, help="RUN and --baseline are suites; compare each evaluation by name.")
@click.option("--rules", metavar="FILE", type=click.Path(path_type=Path), help="TOML file with the rules; see docs/gate.md.")
@click.option("--no-broken", is_flag=True, help="Also fail if any trial that passed in the baseline now fails; lists them.")
@click.option("--allow-mixed-models", is_flag=True, help="Decide even if several models served one variant.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON, with the heads of both journals.")
def gate(
    run: str | None,
    *,
    baseline: str | None,
    fail_under: tuple[str, ...],
    is_suite_gate: bool,
    rules: Path | None,
    no_broken: bool,
    allow_mixed_models: bool,
    as_json: bool,
) -> None:
    """Check whether a run, or one variant of it (RUN@VARIANT), is worse than a baseline.

    Each score is compared over the cases that both runs have. A run regressed if a one-sided test finds that a score is worse
    (p < 0.05), and it dropped by more than is tolerated: by 0.02 without --rules. If it dropped by more, but p is between 0.05
    and 0.2, or there are too few cases for p < 0.05, there is too little evidence. The share of trials with all scores is
    checked in the same way.

    With --suite, the evaluations of two suites are paired by name, and each has a verdict; `newest` is the newest finished
    suite with a lower number. A new evaluation is listed; a missing one fails the gate.

    With --fail-under, also check minimum scores, or only these without --baseline: of the run, of its scores corrected by the
    labels of a review, or of the agreement of a scorer with these labels.

    Exit codes: 0 passed, 1 regressed, 2 the runs cannot be compared, 4 a journal is damaged, 5 too little evidence. For a
    suite: the first of 4, 2, 1, 5, 0 that occurs.

    \b
    evaljournal gate --baseline newest
    evaljournal gate --suite --baseline newest
    evaljournal gate runs/capitals/0002 --baseline runs/capitals/0001 --rules gate.toml
    evaljournal gate @mini --baseline @large
    evaljournal gate --fail-under 'corrected:judge>=0.9@lower'
    """
    if baseline is None and (not fail_under or is_suite_gate or rules is not None or no_broken):
        raise click.UsageError("pass --baseline, or --fail-under alone")
    if is_suite_gate and fail_under:
        raise click.UsageError("--fail-under applies to a run, not to a suite")

    gate_rules = GateRules() if rules is None else _read_rules(rules)
    gate_rules = attrs.evolve(gate_rules, no_broken=no_broken, allow_mixed_models=allow_mixed_models)

    is_newest = baseline == _NEWEST and not Path(baseline).exists()
    if is_suite_gate:
        _gate_suite(run, None if is_newest else baseline, gate_rules, as_json=as_json)
    if baseline is None:
        _gate_alone(find_reference(run), fail_under, as_json=as_json)

    try:
        reference = find_reference(run)
        base = RunReference(_newest_other_run(reference.path), reference.variant) if is_newest else find_reference(baseline)
    except SuiteGiven as exc:
        exc.hint = "or compare two suites with --suite"
        raise

    if base.path.resolve() == reference.path.resolve() and base.variant == reference.variant:
        raise UsageError(f"--baseline {base} is the run itself", hint="pass another run, or --baseline newest")
    try:
        minimums = _minimums(reference, fail_under)[0] if fail_under else []
        report, heads, sides = _check(base, reference, gate_rules)
    except (NotComparable, NothingInCommon) as exc:
        raise UsageError(f"the baseline {base} (A) and {reference} (B) cannot be compared: {exc}") from exc

    report = attrs.evolve(report, verdict=worst_verdict([report.verdict, *map(_verdict, minimums)]))
    if as_json:
        noise_source, drops = _detectable_drops(report, base, reference, sides)
        detectable = {"noise_source": noise_source, "minimum_detectable_drops": drops}
        print_json({**_report_json(report, heads), **detectable, "gates": [view_json(result) for result in minimums]})
    else:
        drop_lines = _detectable_drop_lines(report, base, reference, sides)
        *lines, last_line = _report_lines(report, heads, drop_lines, no_broken=no_broken)
        echo("\n".join([*lines, *map(_minimum_line, minimums), last_line]))
    sys.exit(_EXIT_CODES[report.verdict])


def _minimums(run: RunReference, gates: Sequence[str]) -> tuple[list[GateResult], list[str]]:
    """Check minimum scores of a run or a variant; return also its errors and unscored outputs, which no minimum shows."""
    view = open_intact_run(run.path, apply=_checked_apply())
    check_variant(view, run.variant)
    if view.state.outcome != "finished":
        raise UsageError(f"{run} is not finished")
    check_gates(gates, view.state.scores, view.state.scores)
    parsed = [Gate.parse(gate) for gate in gates]
    problems = trial_problems(view.state, (gate.scorer for gate in parsed), run.variant)
    return [gate.result(view.state, view.path, run.variant) for gate in parsed], problems


def _gate_alone(run: RunReference, gates: Sequence[str], *, as_json: bool) -> NoReturn:
    """Check minimum scores of a run without a baseline. As at the end of the run, any error fails: it is in no mean."""
    results, problems = _minimums(run, gates)
    worst = worst_verdict([*map(_verdict, results), *(["regressed"] if problems else ())])
    verdict = _without_baseline(worst)
    if as_json:
        path = {"path": str(run.path), "variant": run.variant}
        print_json({"verdict": verdict, "run": path, "gates": [view_json(result) for result in results], "problems": problems})
    else:
        lines = (f"{'failed':<20}{printable(problem, 500)}" for problem in problems)
        echo("\n".join([f"run       {printable(str(run), 200)}", *map(_minimum_line, results), *lines, as_words(verdict)]))
    sys.exit(_EXIT_CODES[worst])


def _verdict(result: GateResult) -> Verdict:
    return "passed" if result.passed else "too_little_evidence" if result.is_undecided else "regressed"


def _minimum_line(result: GateResult) -> str:
    return f"{as_words(_without_baseline(_verdict(result))):<20}{printable(result.problem or result.gate, 500)}"


def _without_baseline(verdict: Verdict) -> str:
    """Return a verdict on minimum scores, which cannot regress: they are compared with a number."""
    return "failed" if verdict == "regressed" else verdict


def _check(base: RunReference, run: RunReference, rules: GateRules) -> "tuple[GateReport, _Heads, tuple[Side, Side]]":
    (view_a, side_a), (view_b, side_b) = (open_side(reference, apply=_checked_apply()) for reference in (base, run))
    for view in (view_a, view_b):
        if view.problem is not None:
            raise view.problem
    heads = {"baseline": (base, view_a.state.head), "run": (run, view_b.state.head)}
    return check_gate(side_a, side_b, rules), heads, (side_a, side_b)


def _detectable_drops(
    report: GateReport, base: RunReference, run: RunReference, sides: tuple[Side, Side]
) -> tuple[str | None, Mapping[str, float | None]]:
    """Return where the noise of unchanged trials is known from, None if it is unknown, and the minimum detectable drops."""
    if drops := minimum_detectable_drops(*sides, report.checks, repeats(sides[0])):
        return "repeats", drops
    if drops := minimum_detectable_drops(*sides, report.checks, _history(base, run.path)):
        return "history", drops
    return None, {}


def _history(base: RunReference, excluded: Path) -> UnchangedValues:
    """Return the values of each score, by case, in the baseline and in other runs of its directory with the same definition."""
    values: dict[str, dict[tuple[str, str, str], list[float]]] = {}
    others = (
        path for path in runs_newest_first(base.path.parent) if path.resolve() not in {base.path.resolve(), excluded.resolve()}
    )
    with DigestCache() as cache:
        run = cache.run(base.path)
        for path in (base.path, *islice(others, _HISTORY_RUNS)):
            other, all_columns = cache.read(path)
            for variant, columns in zip(other.variants, all_columns, strict=True):
                key = definition_key(run.identity, variant.variant)
                is_unchanged = key is not None and key == definition_key(other.identity, variant.variant)
                if not is_unchanged or base.variant not in {None, variant.variant}:
                    continue
                for scorer, numbers in columns.values.items():
                    by_case = values.setdefault(scorer, {})
                    for case, fingerprint, value in zip(columns.cases, columns.fingerprints, numbers, strict=True):
                        if value is not None:
                            numbers_of_case = by_case.setdefault((case, fingerprint, variant.variant), [])
                            numbers_of_case.extend(value if isinstance(value, list) else [value])
    return {scorer: [*by_case.values()] for scorer, by_case in values.items()}


def _gate_suite(argument: str | None, baseline: str | None, rules: GateRules, *, as_json: bool) -> NoReturn:
    """Check each evaluation of a suite against that of a baseline, by default the newest finished suite before it."""
    path = find_suite(argument)
    if path is None:
        raise UsageError(f"{argument or RUNS} is not a suite; omit --suite to check a run")

    suite = read_suite(path)
    base_path = next(iter(earlier_suites(suite)), None) if baseline is None else find_suite(baseline)
    if base_path is None:
        name = printable(baseline or "")
        problem = f"{suite.path} has no finished suite before it" if baseline is None else f"--baseline {name} is not a suite"
        raise UsageError(problem, hint="pass the path of a suite to --baseline")

    if base_path.resolve() == suite.path.resolve():
        raise UsageError(f"--baseline {base_path} is the suite itself", hint="pass another suite, or --baseline newest")

    base, results = read_suite(base_path), list[dict[str, Any]]()
    for name in dict.fromkeys([*suite.runs, *base.runs]):
        results.append({"name": name, **_suite_verdict(base.runs.get(name), suite.runs.get(name), rules)})
    code = suite_exit_code(_EXIT_CODES[result["verdict"]] for result in results)
    verdict = next((item["verdict"] for item in results if code and _EXIT_CODES[item["verdict"]] == code), "passed")

    if as_json:
        paths_json = {"baseline": str(base.path), "suite": str(suite.path)}
        print_json({"verdict": verdict, "exit_code": code, **paths_json, "evaluations": results})
    else:
        echo(
            "\n".join(
                f"{label:<8}  {printable(str(path), 200)}" for label, path in (("baseline", base.path), ("suite", suite.path))
            )
        )
        print_table([(printable(item["name"], 40), as_words(item["verdict"]), item["reason"]) for item in results])
        missing = [printable(item["name"], 40) for item in results if item["verdict"] == "missing"]
        is_or_are = "is" if len(missing) == 1 else "are"
        echo(f"failed: {', '.join(missing)} {is_or_are} missing" if verdict == "missing" else as_words(verdict))
    sys.exit(code)


def _suite_verdict(base: Path | None, run: Path | None, rules: GateRules) -> dict[str, Any]:
    if base is None:
        return {"verdict": "new", "reason": "not in the baseline"}
    if run is None:
        return {"verdict": "missing", "reason": "only in the baseline"}
    if not is_run(run):
        return {"verdict": "not_comparable", "reason": "not started"}

    try:
        report, heads, _ = _check(RunReference(base), RunReference(run), rules)
    except (JournalDamaged, InvalidRecord) as exc:
        return {"verdict": "damaged", "reason": one_line(str(exc), 200)}
    except (NotComparable, NothingInCommon, JournalError) as exc:
        return {"verdict": "not_comparable", "reason": one_line(str(exc), 200)}

    reasons = [_sentence(check) for check in report.checks if check.verdict == report.verdict != "passed"]
    if report.has_mixed_models and not report.allows_mixed_models:
        reasons.append("several models served one variant")
    reason = "; ".join(reasons) or f"{plural(report.comparison.common, 'trial')} in common"
    return {"verdict": report.verdict, "reason": reason, "report": _report_json(report, heads)}


def _checked_apply() -> Apply:
    """Return a function that applies the records of a run if they follow the rules of the writer, as in `verify`."""
    lifecycle = Lifecycle()

    def apply(run: LoadedRun, record: Record) -> None:
        lifecycle.replay_record(record, run.path)
        run.apply(record)

    return apply


def _newest_other_run(path: Path) -> Path:
    """Return the newest finished run of the same evaluation, other than the run itself and those of `what-if`."""
    start = run_start(path)
    if start is None:
        raise UsageError(f"{path} ends before its evaluation was recorded")
    for candidate in runs_newest_first(path.parent):
        if candidate.resolve() != path.resolve() and run_finish(candidate) is not None:
            candidate_start = run_start(candidate)
            if candidate_start is None or candidate_start[0].evaluation != start[0].evaluation:
                continue
            if not substitution(candidate_start[0].settings):
                return candidate
    name = printable(start[0].evaluation)
    raise UsageError(f"{path.parent} has no other finished run of {name!r}", hint="pass the path of a run to --baseline")


def _read_rules(path: Path) -> GateRules:
    """Read a rules file: a table `[score.NAME]` for each score, and `[cost]`, `[tokens]` and `[p95]`."""
    table = read_toml(path)
    scores: object = table.pop("score", {})
    if not isinstance(scores, dict):
        raise UsageError("`score` must be a table for each score; write [score.NAME]", path=path)
    for name in table:
        if name not in _LIMITS:
            raise UsageError(f"unknown key {name!r}{suggest(name, ['score', *_LIMITS])}", path=path)

    rules = GateRules(
        {name: _parse_rule(ScoreRule, rule, f"score.{name}", path) for name, rule in cast("dict[str, Any]", scores).items()},
        {name: _parse_rule(Limit, rule, name, path) for name, rule in table.items()},
    )
    if not rules.scores and not rules.limits:
        raise UsageError("contains no rule", path=path, hint="write for example [score.exact] with max_drop = 0.02")
    return rules


def _parse_rule(cls: type[RuleT], rule: object, name: str, path: Path) -> RuleT:
    names = [field.name for field in attrs.fields(cls)]
    if isinstance(rule, list):
        raise UsageError(f"[[{name}]] is a list of tables; write [{name}]", path=path)
    if not isinstance(rule, Mapping) or not rule:
        raise UsageError(f"[{name}] needs {' or '.join(names)}", path=path)
    for key, value in cast("Mapping[str, object]", rule).items():
        if key not in names:
            raise UsageError(f"[{name}] has an unknown key {key!r}{suggest(key, names)}", path=path)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise UsageError(f"[{name}] {key} = {value!r}: expected a number that is not negative", path=path)
    return cls(**{key: float(value) for key, value in cast("Mapping[str, float]", rule).items()})


_Heads = Mapping[str, tuple[RunReference, str]]
"""`baseline` and `run` → the run or variant, and the hash of the last record of its journal."""


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
        "broken_trials": [change.trial for change in comparison.broken],
        "answers": {"baseline": view_json(comparison.answers_a), "run": view_json(comparison.answers_b)},
        "mixed_models": report.has_mixed_models,
        "model_drift": comparison.model_drift,
        "checks": [view_json(check) for check in report.checks],
    }


def _report_lines(report: GateReport, heads: _Heads, drop_lines: Iterable[str], *, no_broken: bool) -> Iterator[str]:
    comparison = report.comparison
    for name, (reference, head) in heads.items():
        yield f"{name:<8}  {printable(str(reference), 200)}  head {head}"
    trials = unpaired_text(comparison, "the baseline", "the run")
    unpaired_note = f"; not compared: {trials}" if trials else ""
    yield f"{plural(comparison.common, 'trial')} in common{unpaired_note}"

    if tests := [check for check in report.checks if check.rule == "max_drop"]:
        corrected = f"; p-values are Holm-corrected over {len(tests) - 1} scores" if len(tests) > 2 else ""  # noqa: PLR2004 - and `completed`
        yield f"one-sided tests that the run is worse: McNemar's for pass/fail, sign-flip for numbers{corrected}"
    for check in report.checks:
        yield f"{as_words(check.verdict):<20}{_sentence(check)}"

    if report.has_mixed_models and not report.allows_mixed_models:
        reason = "several models served one variant; pass --allow-mixed-models to decide anyway"
        yield f"{'too little evidence':<20}{reason}"
    yield from drop_lines
    yield from answer_lines(comparison, "baseline", "run")

    if no_broken:
        yield from (f"  {printable(change.trial)}: {change_text(change)}" for change in comparison.broken)
    elif comparison.broken or comparison.fixed:
        counts = f"{len(comparison.broken):,} broken, {len(comparison.fixed):,} fixed"
        yield f"{counts}; `evaljournal compare BASELINE RUN` lists them"
    yield as_words(report.verdict)


def _sentence(check: Check) -> str:
    """Describe a check: `exact 91.2 % → 87.4 %: -3.8 points (95 % CI …, n = 300, p = 0.2); 9 cases broke, 2 were fixed; …`."""
    name = "trials with all scores" if check.name == COMPLETED else printable(check.name, 40)
    if check.name == BROKEN:
        return f"{name} {plural(int(check.value or 0), 'trial')} (required: none)"

    if check.rule != "max_drop":
        relation = {"at_least": "≥", "at_most": "≤", "at_most_ratio": "≤"}[check.rule]
        unit = " × the baseline" if check.rule == "at_most_ratio" else ""
        return f"{name} {digits(check.value or 0.0, 3)}{unit} (required: {relation} {digits(check.bound, 4)})"

    means = f"{mean_text(check.kind, check.baseline)} → {mean_text(check.kind, check.value)}"
    difference = figures(check.kind, check.difference or 0.0, check.low, check.high, check.n or 0, p_text(check.p))

    lower, higher = check.lower or 0, check.higher or 0
    if check.name == COMPLETED:
        changes = f"{plural(lower, 'case')} lost scores, {higher:,} gained some"
    elif check.kind == "pass":
        changes = f"{plural(lower, 'case')} broke, {higher:,} {'was' if higher == 1 else 'were'} fixed"
    else:
        changes = f"{plural(lower, 'case')} {'is' if lower == 1 else 'are'} lower, {higher:,} higher"

    parts = [f"{name} {means}: {difference}", changes, f"drop tolerated: {size_text(check.kind, check.bound)}"]
    if check.more_cases is not None:
        no_broken = ", or --no-broken," if check.kind == "pass" and check.name != COMPLETED else ""
        parts.append(f"about {plural(check.more_cases, 'more case')}{no_broken} would decide")
    return "; ".join(parts)


def _detectable_drop_lines(
    report: GateReport, base: RunReference, run: RunReference, sides: tuple[Side, Side]
) -> Iterator[str]:
    """Yield the minimum detectable drops: `minimum detectable drop: 16.6 points (exact), from the baseline's repeats`.

    Only if the gate passed: otherwise there is a drop to look at.
    """
    if report.verdict != "passed":
        return

    noise_source, drops = _detectable_drops(report, base, run, sides)
    kinds = {check.name: check.kind for check in report.checks if check.rule == "max_drop"}
    if noise_source is None:
        if kinds.keys() - {COMPLETED}:
            reason = "the baseline has no repeats, and its directory no other run with its definition"
            yield f"minimum detectable drop unknown: {reason}; run the baseline twice, or with --repeats 3"
        return

    source = "the baseline's repeats" if noise_source == "repeats" else "runs with the baseline's definition"
    if sizes := [f"{size_text(kinds[name], drop)} ({printable(name, 40)})" for name, drop in drops.items() if drop is not None]:
        yield f"minimum detectable drop: {', '.join(sizes)}, from {source}"
    if undetectable := [printable(name, 40) for name, drop in drops.items() if drop is None]:
        yield f"too few cases to detect any drop of {', '.join(undetectable)}"
