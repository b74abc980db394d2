"""`evaljournal attest`, `disclose` and `check`, and the checker of the examples."""

import importlib.util
import json
import random
import shutil
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import attrs
import orjson
import pytest

from evaljournal.replay import load
from evaljournal.replay.claims.statement import InvalidClaim, canonical, envelope
from evaljournal.runner.runs.page import read_page_run
from evaljournal.runner.sessions.claims.files import claim_summaries, read_statement
from evaljournal.scorers import exact
from tests.claims import checked, claimed_run, forged, make_key
from tests.journal.samples import flip, segment
from tests.processes import ROOT, run_command
from tests.runner_cli.commands import evaljournal, printed, rejected

CHECKER = ROOT / "examples" / "check_claim.py"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run in the working directory."""
    return claimed_run(tmp_path / "run").relative_to(tmp_path)


def check_alone(*arguments: object) -> tuple[int, str, str]:
    """Run the checker of the examples with the standard library alone."""
    command = [sys.executable, "-I", "-S", str(CHECKER), *map(str, arguments)]
    result = run_command(*command, check=False)
    return result.returncode, result.stdout, result.stderr


def change_statement(source: str, target: str, change: Callable[[Any, Any], object]) -> None:
    """Change the unsigned statement in a file, given that in another."""
    contents = [orjson.loads(read_statement(Path(file)).payload) for file in (source, target)]
    change(*contents)
    Path(target).write_bytes(canonical(envelope(canonical(contents[1]), [])))


def statuses(result: Any) -> dict[str, set[str]]:
    """Return subject → statuses of the lines of a check."""
    subjects: dict[str, set[str]] = {}
    for line in result["lines"]:
        subjects.setdefault(line["subject"], set()).add(line["status"])
    return subjects


def test_a_result_is_attested_disclosed_and_checked(run: Path, tmp_path: Path) -> None:
    """The whole way with a key: every line is ok, except for what no checker can know."""
    key = make_key(tmp_path)
    attested = evaljournal(
        "attest", run, "--claim", "exact>=0.7", "--claim", "f1>0.5", "--key", key, "--evaluator", "https://a.example"
    )
    disclosed = evaljournal("disclose", run, "--all", "--reveal", "model", "--reveal", "dataset")
    [file] = (run / "claims").glob("*.json")
    result = printed("check", "bundle.jsonl", "--journal", run, "--key", f"{key}.pub", "--statement", file)

    assert (0, 0) == (attested.exit_code, disclosed.exit_code)
    assert attested.stdout.startswith("exact >= 0.7 holds: 7 values, 0 missing\nf1 > 0.5 holds: 7 values, 0 missing\nroot ")
    assert "signature by SHA256:" in attested.stdout
    assert result["ok"]
    assert {"assurance": {"unchecked"}, "members": {"ok", "unchecked"}} == {
        name: values for name, values in statuses(result).items() if values != {"ok"}
    }


def test_a_claim_that_does_not_hold(run: Path) -> None:
    """It is stated as not passed, with exit code 1; the check agrees that it does not hold."""
    result = evaljournal("attest", run, "--claim", "exact>=0.9")
    evaljournal("disclose", run, "--all")
    checked = evaljournal("check", "bundle.jsonl")

    assert (1, "exact >= 0.9 does not hold: 7 values, 0 missing") == (result.exit_code, result.stdout.splitlines()[0])
    assert "unsigned" in result.stderr
    assert (0, True) == (checked.exit_code, "exact >= 0.9 does not hold: 7 values" in checked.stdout)


def test_the_checker_keeps_the_statement(run: Path) -> None:
    """A bundle of a later statement about the same run is rejected with `--statement`; without, its digest is printed."""
    evaljournal("attest", run, "--claim", "exact>=0.7", "-o", "first.json")
    evaljournal("attest", run, "--claim", "exact>=0.1", "-o", "second.json")
    evaljournal("disclose", run, "--all", "--statement", "second.json")
    results = [printed("check", "bundle.jsonl", "--statement", file) for file in ("first.json", "second.json")]

    assert [{"failed"}, {"ok"}] == [statuses(result)["statement"] for result in results]
    assert sha256(read_statement(Path("second.json")).payload).hexdigest() in evaljournal("check", "bundle.jsonl").stdout
    assert "exact >= 0.7 holds: 7 values, 0 missing; stated, not recomputed" in evaljournal("check", "first.json").stdout
    assert {"ok"} == statuses(printed("check", "first.json", "--journal", run))["claim"]


def test_leaves_are_compared_without_the_secret(run: Path) -> None:
    """A copy of the journal without salts shows that a disclosed leaf is not the trial in it."""
    evaljournal("attest", run, "--claim", "exact>=0.7")
    evaljournal("disclose", run, "--all")
    shutil.copytree(run, "copy", ignore=shutil.ignore_patterns("claims"))
    own = statuses(printed("check", "bundle.jsonl", "--journal", "copy"))

    def swap(leaves: list[Any]) -> None:
        for name in ("output", "scores", "expected", "input"):
            leaves[0][name], leaves[2][name] = leaves[2][name], leaves[0][name]

    lines = forged(Path("bundle.jsonl").read_bytes().splitlines(), swap)
    items = [orjson.loads(line) for line in lines]
    for name in ("output", "expected", "input"):
        items[1][name], items[3][name] = items[3][name], items[1][name]
    Path("swapped.jsonl").write_bytes(b"".join(canonical(item) + b"\n" for item in items))
    swapped, alone = (statuses(printed("check", "swapped.jsonl", *options)) for options in (("--journal", "copy"), ()))

    assert ({"ok"}, {"ok", "unchecked"}) == (own["leaves"], own["root"])
    assert ({"failed"}, {"ok"}) == (swapped["leaves"], alone["scores"])


@pytest.mark.parametrize(
    "options",
    [
        ("--all",),
        ("--sample", 3, "--seed", 1),
        *(pytest.param(options, marks=pytest.mark.exhaustive) for options in (("--trials", "case-1,case-2"), ("--failing",))),
    ],
)
def test_the_checker_of_the_examples_agrees(run: Path, tmp_path: Path, options: tuple[object, ...]) -> None:
    """150 lines of standard library accept what `check` accepts, and reject what it rejects."""
    key = make_key(tmp_path)
    evaljournal("attest", run, "--claim", "exact>=0.7", "--key", key)
    evaljournal("disclose", run, *options)
    lines = Path("bundle.jsonl").read_bytes().splitlines(keepends=True)
    fields = orjson.loads(lines[1])
    changes = {"leaf": fields["leaf"].replace('"repeat":1', '"repeat":2'), "salt": "0" * 32, "output": '"x"', "index": 6}
    bad_bundles = [[lines[0], orjson.dumps({**fields, name: value}) + b"\n", *lines[2:]] for name, value in changes.items()]
    bad_bundles += [lines[:-1], [*lines, lines[-1]]]

    assert len(CHECKER.read_text().splitlines()) <= 150
    assert f'VERSION_OF_EXACT = "{exact.fingerprint}"' in CHECKER.read_text()
    code, out, _ = check_alone("bundle.jsonl", f"{key}.pub")
    assert (0, True, options == ("--all",)) == (
        code,
        out.startswith("signature valid"),
        "exact >= 0.7: True, recomputed" in out,
    )
    for bad_lines in bad_bundles:
        Path("bad.jsonl").write_bytes(b"".join(bad_lines))
        assert (1, 4) == (check_alone("bad.jsonl")[0], evaljournal("check", "bad.jsonl").exit_code)
    other_key = make_key(tmp_path)
    assert (1, 4) == (
        check_alone("bundle.jsonl", f"{other_key}.pub")[0],
        evaljournal("check", "bundle.jsonl", "--key", f"{other_key}.pub").exit_code,
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda leaves: leaves[2].update(output=None), "is not that of a trial"),
        (lambda leaves: leaves[2]["scores"]["f1"].update(value="1"), "no finite number"),
        (lambda leaves: leaves[2]["scores"]["exact"].update(value=True), "the score of leaf 2 is wrong"),
        (lambda leaves: leaves[2].update(case="case-1"), "a case twice"),
    ],
)
def test_the_checker_of_the_examples_rejects_false_leaves(run: Path, change: Callable[[Any], None], reason: str) -> None:
    """A leaf that no run gives is wrong, although the root is that of the statement."""
    evaljournal("attest", run, "--claim", "f1>=0.1")
    evaljournal("disclose", run, "--all")
    Path("bad.jsonl").write_bytes(b"".join(forged(Path("bundle.jsonl").read_bytes().splitlines(), change)))
    code, _, errors = check_alone("bad.jsonl")

    assert (1, True) == (code, reason in errors)


ODD_NUMBERS: Final[tuple[Any, ...]] = (None, True, False, 0, 1, -1, 1.0, 0.5, 7)
ODD_VALUES: Final = (*ODD_NUMBERS, "", "0", "1", "exact", "A" * 64, "0" * 64, [], [1], {}, {"value": 1})
NOT_CHECKED_ALONE = {"scorers", "commitments", "statement", "missing"}  # The checker of the examples says so.


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a value with each of its keys."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            if key not in NOT_CHECKED_ALONE:
                yield value, key
                yield from _places(value[key])


def _change(value: Any, rng: random.Random) -> None:
    """Replace, remove or add one member somewhere in a value."""
    container, key = rng.choice(list(_places(value)))
    kind = rng.randrange(4)
    if kind == 0 and isinstance(container, dict):
        container[rng.choice(["exact", "note", "x"])] = rng.choice(ODD_VALUES)
    elif kind == 1:
        del container[key]
    else:
        container[key] = rng.choice(ODD_VALUES)


def _compare_checkers(run: Path, directory: Path, tries: int) -> int:
    """Change bundles, compare the verdicts of both checkers, and return how many changes both of them reject."""
    spec = importlib.util.spec_from_file_location("check_claim", CHECKER)
    assert spec is not None
    assert spec.loader is not None
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    evaljournal("attest", run, "--claim", "exact>=0.7", "--claim", "f1>0.1")
    bundles = list[list[bytes]]()
    for options in (("--all",), ("--trials", "case-1,case-4,case-5")):
        evaljournal("disclose", run, *options, "--force")
        bundles.append(Path("bundle.jsonl").read_bytes().splitlines())
    rng, rejected = random.Random(7), 0
    for _ in range(tries):
        lines, own_failures = list(rng.choice(bundles)), {"scores"}  # What the checker of the examples does not check.
        match rng.randrange(3):
            case 0:
                lines = forged(bundles[0], lambda leaves: _change(rng.choice(leaves), rng))
            case 1:
                number = rng.randrange(len(lines))
                fields = orjson.loads(lines[number])
                _change(fields, rng)
                lines[number] = canonical(fields)
            case _:
                lines, own_failures = list(bundles[0]), {"scores", "statement"}
                header = orjson.loads(lines[0])
                content = orjson.loads(b64decode(header["statement"]["payload"]))
                own = content["predicate"]["evaljournal"]
                _change(rng.choice([own["tree"], own["figures"], content["predicate"]["claims"]]), rng)
                header["statement"] = envelope(canonical(content), [])
                lines[0] = canonical(header)
        lines = [line.rstrip(b"\n") + b"\n" for line in lines]
        Path("changed.jsonl").write_bytes(b"".join(lines))
        try:
            failed = {line.subject for line in checked(directory, lines) if line.status == "failed"}
        except InvalidClaim:
            failed = {"statement"}
        try:
            alone.main(Path("changed.jsonl"))
            is_accepted = True
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
            is_accepted = False
        assert not (is_accepted and failed - own_failures), lines
        assert is_accepted or failed, lines
        rejected += not is_accepted and bool(failed)
    return rejected


def test_both_checkers_agree(run: Path, tmp_path: Path) -> None:
    """What one of them accepts of changed leaves, lines and statements, the other accepts."""
    assert _compare_checkers(run, tmp_path, 200) > 100


@pytest.mark.exhaustive
def test_both_checkers_agree_in_many_tries(run: Path, tmp_path: Path) -> None:
    """The same for 10,000 changes."""
    assert _compare_checkers(run, tmp_path, 10_000) > 5_000


def test_the_checker_of_the_examples_escapes_and_continues(run: Path) -> None:
    """A missing score and one of another version are not recomputed; a metric that is not its figure's is wrong and escaped."""

    def remove(leaves: list[Any]) -> None:
        del leaves[0]["scores"]["exact"]
        leaves[1]["scores"]["exact"].update(value=False, version="0" * 16)

    evaljournal("attest", run, "--claim", "f1>=0.1", "-o", "a.json")
    evaljournal("disclose", run, "--all")
    Path("other.jsonl").write_bytes(b"".join(forged(Path("bundle.jsonl").read_bytes().splitlines(), remove)))
    code, out, _ = check_alone("other.jsonl")
    content = orjson.loads(read_statement(Path("a.json")).payload)
    content["predicate"]["claims"][0]["metric"] = "f1\x1b[2J"
    Path("bad.json").write_bytes(canonical(envelope(canonical(content), [])))

    assert (0, True) == (code, "exact recomputed for 5" in out)
    assert (1, False) == (check_alone("bad.json")[0], "\x1b" in "".join(check_alone("bad.json")[1:]))


def test_an_envelope_may_be_written_by_another_program(run: Path) -> None:
    """Both checkers read a statement in another notation, and neither one with an unknown member."""
    evaljournal("attest", run, "--claim", "exact>=0.7", "-o", "own.json")
    fields = orjson.loads(Path("own.json").read_bytes())
    for accepted, other in ((True, fields), (False, {**fields, "note": "verified"})):
        Path("other.json").write_text(json.dumps(dict(reversed(other.items())), indent=2))
        assert (accepted, accepted) == (not check_alone("other.json")[0], not evaljournal("check", "other.json").exit_code)


def test_a_plan_precedes_its_result(tmp_path: Path) -> None:
    """A plan is made before the run, referred to by its result, and compared with the journal; another run is rejected."""
    Path("evals.py").write_text(
        "from evaljournal import Case, evaluation\nfrom evaljournal.scorers import exact\n"
        'CASES = [Case(name=name, input=name, expected=name) for name in ("a", "b")]\n'
        "@evaluation(cases=CASES)\ndef echo(text: str) -> str:\n    return text\necho.score(exact)\n"
    )
    plan = ("attest", "--plan", "evals.py", "--claim", "exact>=0.9")
    early = evaljournal("run", "evals.py", "-o", "early")
    planned, again = evaljournal(*plan, "-o", "plan.json"), rejected(*plan, "-o", "plan.json")
    late = evaljournal("run", "evals.py", "-o", "late")
    shorter = evaljournal("run", "evals.py", "--limit", "1", "-o", "short")

    assert (0, 0, 0, 0) == (early.exit_code, planned.exit_code, late.exit_code, shorter.exit_code)
    assert "exact >= 0.9 planned" in planned.stdout
    assert "plan.json exists" in again
    assert 0 == evaljournal("attest", "late", "--planned", "plan.json").exit_code
    assert "times (the run started before the plan) differ" in rejected("attest", "early", "--planned", "plan.json")
    assert "trials, cases differ" in rejected("attest", "short", "--planned", "plan.json")
    [file] = Path("late/claims").glob("*.json")
    result = printed("check", file, "--plan", "plan.json", "--journal", "late")
    assert (True, {"ok", "unchecked"}) == (result["ok"], statuses(result)["plan"])
    assert {"unchecked"} == statuses(printed("check", file))["plan"]
    evaljournal("attest", "early", "--claim", "exact>=0.9")
    [other] = Path("early/claims").glob("*.json")
    assert {"failed", "unchecked"} == statuses(printed("check", other, "--plan", "plan.json"))["plan"]
    assert 0 == evaljournal("check", "plan.json").exit_code


ECHO = (
    "from evaljournal import Case, evaluation\nfrom evaljournal.scorers import exact\n"
    'CASES = [Case(name=name, input=name, expected=name) for name in ("a", "b")]\n'
    "@evaluation(cases=CASES)\ndef echo(text: str) -> str:\n    return 'a'\necho.score(exact)\n"
)


@pytest.mark.parametrize(
    ("old", "new"),
    [("    return 'a'\n", "    return text\n"), ("echo.score(exact)\n", "@echo.score\ndef exact(output):\n    return True\n")],
)
def test_a_planned_run_has_one_definition(tmp_path: Path, old: str, new: str) -> None:
    """Outputs of another task, or scores of another scorer, do not count because the run adopted the planned one later."""
    Path("evals.py").write_text(ECHO)
    evaljournal("attest", "--plan", "evals.py", "--claim", "exact>=0.9", "-o", "plan.json")
    Path("evals.py").write_text(ECHO.replace(old, new))
    evaljournal("run", "evals.py", "-o", "run")
    Path("evals.py").write_text(ECHO)
    resumed = evaljournal("resume", "run", "--adopt")

    assert 0 == resumed.exit_code, resumed.output
    assert "changed after the start" in rejected("attest", "run", "--planned", "plan.json")


def test_a_plan_names_the_variants(tmp_path: Path) -> None:
    """A plan is for each variant, so a result about one of them is not the planned one."""
    Path("evals.py").write_text(ECHO.replace("CASES)", 'CASES, variants={"end": ["", "!"]})').replace("text: str", "text, end"))
    planned = evaljournal("attest", "--plan", "evals.py", "--claim", "exact>=0", "-o", "plan.json")
    evaljournal("run", "evals.py", "-o", "run")
    names = [line.split()[0] for line in planned.stdout.splitlines() if line.startswith("exact@")]

    assert 2 == len(names)
    evaljournal("attest", "run", "--planned", "plan.json", "-o", "both.json")
    evaljournal("attest", "run", "--claim", f"{names[0]}>=0", "-o", "one.json")
    change_statement(
        "both.json", "one.json", lambda both, one: one["predicate"].update(preRegistration=both["predicate"]["preRegistration"])
    )
    assert {"ok", "unchecked"} == statuses(printed("check", "both.json", "--plan", "plan.json", "--journal", "run"))["plan"]
    assert {"failed", "unchecked"} == statuses(printed("check", "one.json", "--plan", "plan.json"))["plan"]


def test_no_export_or_report_has_the_secret(run: Path) -> None:
    """What is made for others contains neither the secret nor a salt, and a fork has none."""
    evaljournal("attest", run, "--claim", "exact>=0.7")
    evaljournal("disclose", run, "--all")
    salts = [orjson.loads(line)["salt"].encode() for line in Path("bundle.jsonl").read_bytes().splitlines()[1:]]
    secret = (run / "claims" / "secret").read_bytes()
    evaljournal("report", run, "-o", "report.html")
    evaljournal("export", run, "--format", "jsonl", "-o", "rows.jsonl")
    evaljournal("fork", run, "-o", "fork")
    files = [
        file
        for path in ("report.html", "rows.jsonl", "fork")
        for file in (Path(path), *Path(path).rglob("*"))
        if file.is_file()
    ]

    assert len(files) >= 3
    assert not [file for file in files for value in (secret, secret.hex().encode(), *salts) if value in file.read_bytes()]


def test_wrong_arguments(run: Path, tmp_path: Path) -> None:
    """Each usage error names what to pass; nothing is written."""
    assert "pass --claim" in rejected("attest", run)
    assert "is not a claim" in rejected("attest", run, "--claim", "exact=0.9")
    assert "no trial has a value of exakt" in rejected("attest", run, "--claim", "exakt>=0.9")
    assert "is not a URI" in rejected("attest", run, "--claim", "exact>=0.9", "--evaluator", "me")
    assert "there is no key" in rejected("attest", run, "--claim", "exact>=0.9", "--key", "none")
    assert "has no claim" in rejected("disclose", run, "--all")
    evaljournal("attest", run, "--claim", "exact>=0.7")
    assert "pass one of" in rejected("disclose", run)
    assert "pass one of" in rejected("disclose", run, "--sample", 3)
    assert "no trial 'case-x'" in rejected("disclose", run, "--trials", "case-1,case-x")
    assert "has no public key" in rejected("check", next((run / "claims").glob("*.json")), "--key", segment(run))


def test_what_is_neither_statement_nor_bundle(run: Path, tmp_path: Path) -> None:
    """A check of anything else ends with exit code 4 and a reason, and a damaged journal fails its line."""
    for data in (b"", b"{}", b"[1]", b'{"payload":"e30=","payloadType":"x","signatures":[]}', b'{"bundle":1}\n', b"\x00\xff"):
        Path("file").write_bytes(data)
        result = evaljournal("check", "file")
        assert (4, True) == (result.exit_code, result.stderr.startswith("failed     file"))
    evaljournal("attest", run, "--claim", "exact>=0.7")
    flip(segment(run), 3_000)
    [file] = (run / "claims").glob("*.json")
    checked = printed("check", file, "--journal", run)
    assert (False, {"failed"}) == (checked["ok"], statuses(checked)["chain"])
    assert 4 == evaljournal("attest", run, "--claim", "exact>=0.7").exit_code


def test_variants_have_a_claim_each(tmp_path: Path) -> None:
    """Without a variant, each has a claim of its own; NAME@VARIANT claims one."""
    Path("evals.py").write_text(
        "from evaljournal import Case, evaluation\nfrom evaljournal.scorers import exact\n"
        '@evaluation(cases=[Case(name="a", input="a", expected="a")], variants={"end": ["", "!"]})\n'
        "def echo(text: str, end: str) -> str:\n    return text + end\necho.score(exact)\n"
    )
    evaljournal("run", "evals.py", "-o", "run")
    both = evaljournal("attest", "run", "--claim", "exact>=0.9").stdout.splitlines()
    names = [line.partition(" ")[0] for line in both[:2]]

    assert {"exact@"} == {name[:6] for name in names}
    assert [True, False] == sorted((" holds" in line for line in both[:2]), reverse=True)
    one = evaljournal("attest", "run", "--claim", f"{names[0]}>=0").stdout.splitlines()
    assert [names[0]] == [line.partition(" ")[0] for line in one if line.startswith("exact")]
    evaljournal("disclose", "run", "--all")
    assert 0 == evaljournal("check", "bundle.jsonl").exit_code
    assert 0 == check_alone("bundle.jsonl")[0]


def test_the_report_shows_claims(run: Path) -> None:
    """The report has what each statement claims and commits to; a file that is no statement is named with the reason."""
    evaljournal("attest", run, "--claim", "exact>=0.7")
    (run / "claims" / "x.json").write_text("{}")
    first, second = claim_summaries(run, load(run).state.head)
    [other, _] = claim_summaries(run, "0" * 32)

    assert first.startswith("exact >= 0.7 holds: 7 values, 0 missing; root ")
    assert "; commitment to model " in first
    assert first.endswith("; not verified here: evaljournal check")
    assert "; about another run, or earlier records; not verified here" in other
    assert second.startswith("x.json: not a statement")
    assert [first, second] == attrs.evolve(read_page_run(run), claims=[first, second]).data()["claims"]
    assert 0 == evaljournal("report", run).exit_code
