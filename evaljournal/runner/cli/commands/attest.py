"""The command `evaljournal attest`."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from evaljournal.replay.claims.statement import Statement
from evaljournal.replay.text import printable
from evaljournal.runner.cli import FAILED
from evaljournal.runner.cli.arguments import find_run, output_option
from evaljournal.runner.cli.commands.export import check_target
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError
from evaljournal.runner.sessions.claims.claim import UNNAMED, plan_statement
from evaljournal.runner.sessions.claims.claim import attest as attest_run
from evaljournal.runner.sessions.claims.files import keep_statement, read_statement, write_statement

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+")


@click.command()
@click.argument("reference", metavar="[RUN]", required=False)
@click.option("--claim", "claims", metavar="NAME>=NUMBER", multiple=True, help="What is claimed about a mean; repeatable.")
@click.option("--key", type=click.Path(path_type=Path), metavar="FILE", help="SSH key that signs it (default: unsigned).")
@click.option("--evaluator", metavar="URI", default=UNNAMED, help="Who evaluated, such as https://example.org.")
@click.option("--plan", "is_plan", is_flag=True, help="RUN is an evaluation; state what will be claimed about its next run.")
@click.option("--planned", type=click.Path(path_type=Path), metavar="FILE", help="Claim what this plan has announced.")
@output_option("FILE", "Also write the statement to this new file; --plan needs it.")
def attest(
    reference: str | None,
    *,
    claims: Sequence[str],
    key: Path | None,
    evaluator: str,
    is_plan: bool,
    planned: Path | None,
    target: Path | None,
) -> None:
    """State a result of a finished run, in a form that others can check without trusting you.

    The statement commits to the journal, the labels and every trial, and contains none of them. It is kept in RUN/claims/ with
    the secret that hides the trials; `disclose` shows some or all of them to a checker. A claim is about the mean of a score,
    or of labels (label:NAME), with >=, >, <= or <. With variants, it is made for each; NAME@VARIANT names one.

    A run that `verify` rejects or that is not finished cannot be attested. Exit code 1 if a claim does not hold; it is stated
    nevertheless, as not passed.

    \b
    evaljournal attest runs/capitals/0001 --claim 'exact>=0.9' --key ~/.ssh/id_ed25519
    evaljournal attest --plan evals/capitals.py --claim 'exact>=0.9' -o plan.json
    evaljournal attest runs/capitals/0002 --planned plan.json
    """
    if bool(claims) == (planned is not None) or is_plan > (claims != () and reference is not None and target is not None):
        raise click.UsageError("pass --claim, or --planned FILE; with --plan also an evaluation and -o FILE")
    if not _URI.fullmatch(evaluator):
        raise UsageError(f"--evaluator {evaluator!r:.100} is not a URI, such as https://example.org")
    if target is not None:
        check_target(target, directory=False, force=False)

    if is_plan:
        statement, file = _plan(reference or "", claims, evaluator, key), None
    else:
        run, plan = find_run(reference), None if planned is None else read_statement(planned, is_plan=True)
        statement = attest_run(run, claims, plan, evaluator=evaluator, key=key)
        file = keep_statement(run, statement)
    if target is not None:
        write_statement(statement, target)

    for text in (*statement.claim_texts, *statement.commitment_texts):
        echo(printable(text, 200))
    echo(f"statement {target or file}")
    if not statement.signatures:
        echo("anyone can have written an unsigned statement; sign it with --key ~/.ssh/id_ed25519", err=True)
    if not all(item.get("passed", True) for item in statement.predicate["claims"]):
        sys.exit(FAILED)


def _plan(reference: str, claims: Sequence[str], evaluator: str, key: Path | None) -> Statement:
    from evaljournal.runner.cli.suites.discovery import load_toml  # noqa: PLC0415  # slow to import, and only a plan loads an evaluation
    from evaljournal.runner.cli.terminal.user_code import user_code  # noqa: PLC0415
    from evaljournal.runner.definition.loading import load_evaluation  # noqa: PLC0415
    from evaljournal.runner.runs.changes import effective_settings  # noqa: PLC0415
    from evaljournal.runner.sessions.plan import select_trials  # noqa: PLC0415

    with user_code():
        evaluation, _ = load_toml(reference) if reference.endswith(".toml") else load_evaluation(reference)
        settings, _ = effective_settings(evaluation.settings, {}, {})
        selection = select_trials(evaluation, settings, None, yes=True)
        return plan_statement(selection, settings, claims, evaluator=evaluator, key=key)
