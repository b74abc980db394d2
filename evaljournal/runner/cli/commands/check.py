"""The command `evaljournal check`."""

import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import click

from evaljournal.replay.claims.checking import BUNDLE, Line, check_bundle, claim_lines
from evaljournal.replay.claims.statement import InvalidClaim, Means
from evaljournal.replay.text import printable
from evaljournal.runner.cli import DAMAGED
from evaljournal.runner.cli.arguments import RunType
from evaljournal.runner.cli.terminal.display import print_json
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.sessions.claims.claim import check_journal, check_plan
from evaljournal.runner.sessions.claims.files import read_statement
from evaljournal.runner.sessions.claims.recompute import Recomputation
from evaljournal.runner.sessions.claims.signing import check_signatures, read_public_keys


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--journal", type=RunType(), metavar="RUN", help="The run that it is about, to recompute everything.")
@click.option("--key", type=click.Path(path_type=Path), metavar="FILE", help="Public keys, one of which must have signed it.")
@click.option(
    "--statement",
    "expected",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The statement that the bundle must be about.",
)
@click.option("--plan", type=click.Path(path_type=Path), metavar="FILE", help="The plan that it refers to.")
@click.option("--json", "as_json", is_flag=True, help="Print the lines as JSON.")
def check(
    file: Path, *, journal: Path | None, key: Path | None, expected: Path | None, plan: Path | None, as_json: bool
) -> None:
    """Check a statement of `attest` or a bundle of `disclose`, and list what was checked and what cannot be.

    Signature, root, proofs and values are recomputed, and so are the scores of built-in scorers that make no calls and, if all
    trials are known, the claim. With --journal, the run is verified, and everything is computed from its records again. Nothing
    in the file is executed. docs/claims.md specifies the formats; examples/check_claim.py checks them without evaljournal.

    Exit code 4 if something is wrong.

    \b
    evaljournal check bundle.jsonl --key signer.pub --statement statement.json
    evaljournal check bundle.jsonl --journal runs/capitals/0001
    """
    keys, lines = None if key is None else read_public_keys(key), list[Line]()
    try:
        lines.extend(_lines(file, journal, keys, expected, plan))
    except InvalidClaim as exc:
        lines.append(Line("file", "failed", str(exc)))

    is_ok = all(line.status != "failed" for line in lines)
    if as_json:
        print_json({"path": str(file), "ok": is_ok, "lines": [line._asdict() for line in lines]})
    else:
        for line in lines:
            echo(f"{line.status:<10} {line.subject:<10} {printable(line.text, 500)}", err=line.status == "failed")
        echo(f"{file}: {'nothing is wrong in what was checked' if is_ok else 'not as stated, see above'}", err=not is_ok)
    if not is_ok:
        sys.exit(DAMAGED)


def _lines(
    file: Path, journal: Path | None, keys: Sequence[str] | None, expected: Path | None, plan_file: Path | None
) -> Iterator[Line]:
    statement, plan = read_statement(file), None if plan_file is None else read_statement(plan_file, is_plan=True)
    name = f"SHA-256 {sha256(statement.payload).hexdigest()}"
    if not statement.is_plan:
        name += f", root {statement.own['tree']['root']} of {statement.own['tree']['size']:,} trials"

    if expected is None:  # It is named in any case.
        yield Line("statement", "unchecked", f"{name}: if you were given one before, pass it with --statement")
    else:
        is_equal = statement.payload == read_statement(expected).payload
        yield Line.comparing("statement", is_equal, "that of --statement", f"{name}: ")

    yield from check_signatures(statement, keys)
    if statement.is_plan:
        yield from (Line("claim", "unchecked", f"{claim}: planned") for claim in statement.claims)
        return
    if plan is not None:
        yield from check_plan(statement, plan)
    elif "preRegistration" in statement.predicate:
        yield Line("plan", "unchecked", "the statement refers to a plan; pass it with --plan")

    recorded = None
    if journal is None:
        yield Line("journal", "unchecked", "chain and audit: pass --journal")
    else:
        recorded = yield from check_journal(journal, statement, plan)

    with file.open("rb") as stream:
        if stream.read(len(BUNDLE)) == BUNDLE:
            stream.seek(0)
            yield from check_bundle(stream, statement, Recomputation, recorded)
        elif recorded is None:
            yield Line("root", "unchecked", "no trial is disclosed; neither are the claims recomputed")
            yield from claim_lines(statement, Means(statement.claims).members(), "", is_complete=False)
    yield Line("assurance", "unchecked", "self_attested: that the calls were made as recorded is the issuer's word")
