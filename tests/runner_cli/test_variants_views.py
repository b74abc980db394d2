"""Views of a run with variants: status, show, log, exports and fork."""

import csv
import io
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import orjson
import pytest

from evaljournal import run
from evaljournal.journal.events import TrialCompleted
from evaljournal.replay import RunState, load, summarize
from evaljournal.replay.render.ending import final_report
from evaljournal.replay.render.summary import best_variant_lines, variant_lines
from evaljournal.runner.definition.gates import gate_results
from evaljournal.runner.definition.loading import load_evaluation
from tests.journal.samples import session, started, write_sync
from tests.replay.screens import screen_lines
from tests.replay.trial_events import answered, failed, state_of
from tests.runner_cli.commands import evaljournal, printed

SOURCE = """
from evaljournal import Case, evaluation, note

@evaluation(
    cases=[Case(name="peru", input=1, expected=2), Case(name="cuba", input=2, expected=4)],
    variants={"double": {"factor": 2}, "triple": {"factor": 3}},
    policy="fixed",
    durability="os",
)
def times(value, *, factor):
    note(cost=factor / 4)
    if factor == 3 and value == 2:
        raise TypeError("no")
    return value * factor

@times.score
def right(output, expected):
    return output == expected
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two variants, one of which fails once."""
    directory = tmp_path_factory.mktemp("variants")
    (directory / "times.py").write_text(SOURCE)
    run(load_evaluation(f"{directory}/times.py").evaluation, directory / "run", quiet=True)
    return directory / "run"


def test_status_has_a_line_for_each_variant(finished: Path) -> None:
    """The status lists trials, failures, scores and cost of each variant; JSON has all of them."""
    text, answer = evaljournal("status", finished).stdout, printed("status", finished)

    assert "double  2 of 2 done · right 100.0 % · $1.00" in text
    assert "triple  2 of 2 done · 1 error · right 0.0 % · $1.50" in text
    assert "  best by right: double  100.0 % (95 % CI 34.2–100.0 %)\n" in text
    assert "all variants" not in text
    assert f"details: evaljournal compare {finished}" in text
    assert ["double", "triple"] == list(answer["variants"])
    triple, trials = answer["variants"]["triple"], answer["variants"]["triple"]["trials"]
    assert (1, 1, 2, 1.5) == (trials["failed"], trials["completed"], triple["attempts"], triple["usage"]["cost"])
    assert "  triple  1 output of 2 trials · 1 error" in evaljournal("status", finished, "--by", "variant").stdout


def test_many_variants_are_shortened() -> None:
    """Of many variants the first eight are listed, and the others are counted."""
    state = state_of([event for number in range(11) for event in answered("a", variant=f"v{number}")])

    assert (9, "… and 3 more") == (len(list(variant_lines(state))), list(variant_lines(state))[-1])
    assert "v7" in final_report(state, path="runs/a/1")


def test_the_best_variant_without_an_interval() -> None:
    """The mean of a single number has no interval, and no empty parentheses."""
    state = state_of([*answered("a", {"length": 7}, variant="mini"), *answered("a", {"length": 5}, variant="large")])

    assert ["best by length: mini  7"] == list(best_variant_lines(state))


def test_scorer_errors_of_variants_are_shown() -> None:
    """The errors of a scorer are counted for each variant; variants with the same mean share no interval of one of them."""
    scores = {"exact": True, "boom": ValueError()}
    state = state_of(
        [
            *answered("a", scores, variant="mini"),
            *answered("b", scores, variant="mini"),
            *answered("a", scores, variant="large"),
        ]
    )

    assert "mini   2 done · exact 100.0 % · boom 2 scorer errors" == next(variant_lines(state))
    assert ["best by exact: mini, large  100.0 %"] == list(best_variant_lines(state))


def test_trials_that_failed_before_variants_were_adopted() -> None:
    """Trials without a variant are listed separately, until they are withdrawn."""
    state = state_of([*failed("a"), *answered("a", variant="mini")])

    assert ["(no variant)  1 done · 1 error", "mini          1 done"] == list(variant_lines(state))
    assert ["", "mini"] == list(summarize(state).variants or {})


def test_the_screen_has_a_line_for_each_variant() -> None:
    """The live screen lists the variants under one label, next to the scores of all.

    Trials that are not enqueued yet may be of any variant, so only those that are done are counted.
    """
    state = state_of([*answered("a", {"exact": True}, variant="mini"), *failed("a", variant="large")])
    lines = screen_lines(state, now=5.0, total=4)

    first = next(at for at, line in enumerate(lines) if line.startswith("variants"))
    assert ["variants mini   1 done · exact 100.0 %", "         large  1 done · 1 error"] == lines[first : first + 2]
    assert any(line.startswith("scores   exact") for line in lines)


def test_show_lists_the_trials_of_a_case(finished: Path) -> None:
    """`show` takes the id of a trial, or the name of a case; if that has several trials, it shows their outputs."""
    listed, shown = evaljournal("show", finished, "peru"), evaljournal("show", finished, "peru@triple", "--json")
    entries = printed("show", finished, "cuba")["trials"]
    unknown = evaljournal("show", finished, "per")

    assert ["peru@double", "peru@triple"] == listed.stdout.splitlines()[4].split()
    assert ("peru", "triple", 1) == tuple(orjson.loads(shown.stdout)[name] for name in ("case", "variant", "repeat"))
    assert [("cuba@double", "double", 1), ("cuba@triple", "triple", 1)] == [
        (entry["trial"], entry["variant"], entry["repeat"]) for entry in entries
    ]
    assert (2, True) == (unknown.exit_code, "has no trial 'per'" in unknown.stderr)


def test_log_prints_all_variants_of_a_case(finished: Path) -> None:
    """`log` with the name of a case prints the records of its trials in all variants."""
    lines = evaljournal("log", finished, "peru", "--type", "trial_completed").stdout

    assert (2, True, True) == (len(lines.splitlines()), "peru@double" in lines, "peru@triple" in lines)
    assert 2 == evaljournal("log", finished, "lima").exit_code


@pytest.mark.parametrize("rows", ["trials", "attempts"])
def test_tables_have_a_column(finished: Path, rows: str) -> None:
    """Tables of a run with variants have the variant after the trial, in JSONL and CSV."""
    objects = [orjson.loads(line) for line in evaljournal("export", finished, "--rows", rows).stdout.splitlines()]
    table = list(csv.DictReader(io.StringIO(evaljournal("export", finished, "-f", "csv", "--rows", rows).stdout)))

    assert ["trial", "variant"] == list(objects[0])[:2] == list(table[0])[:2]
    assert {row["trial"].partition("@")[2] for row in objects} == {"double", "triple"}
    assert all(row["trial"].partition("@")[2] == row["variant"] for row in [*objects, *table])


def test_junit_has_a_suite_for_each_variant(finished: Path) -> None:
    """JUnit has one suite per variant, each with its own counts."""
    xml = evaljournal("export", finished, "-f", "junit").stdout
    suites = ET.fromstring(xml).findall("testsuite")  # noqa: S314  # our own

    assert [("times@double", "2", "0", "0"), ("times@triple", "2", "1", "1")] == [
        (suite.get("name"), suite.get("tests"), suite.get("errors"), suite.get("failures")) for suite in suites
    ]
    assert ["peru@triple", "cuba@triple"] == [case.get("name") for case in suites[1].findall("testcase")]


def test_nat_has_a_directory_for_each_variant(finished: Path, tmp_path: Path) -> None:
    """NAT's files are written for each variant; the averages are those of the variant."""
    assert 0 == evaljournal("export", finished, "-f", "nat", "-o", tmp_path / "nat").exit_code

    assert {"double", "triple", "workflow_output.jsonl"} == {file.name for file in (tmp_path / "nat").iterdir()}
    averages = {
        name: orjson.loads((tmp_path / "nat" / name / "right_output.json").read_bytes())["average_score"]
        for name in ("double", "triple")
    }
    assert {"double": 1.0, "triple": 0.0} == averages
    items = orjson.loads((tmp_path / "nat" / "triple" / "workflow_output.json").read_bytes())
    assert ["peru@triple", "cuba@triple"] == [item["id"] for item in items]
    assert 4 == len((tmp_path / "nat" / "workflow_output.jsonl").read_bytes().splitlines())


def test_inspect_has_a_log_for_each_variant(finished: Path, tmp_path: Path) -> None:
    """Inspect gets one log per variant, with its parameters as the arguments of the task."""
    rejected = evaljournal("export", finished, "-f", "inspect")
    assert 0 == evaljournal("export", finished, "-f", "inspect", "-o", tmp_path / "logs").exit_code

    assert (2, True) == (rejected.exit_code, "pass -o DIRECTORY" in rejected.stderr)
    assert {"double.eval", "triple.eval"} == {file.name for file in (tmp_path / "logs").iterdir()}
    with zipfile.ZipFile(tmp_path / "logs" / "triple.eval") as log:
        header = orjson.loads(log.read("header.json"))
        assert {"samples/peru_epoch_1.json", "samples/cuba_epoch_1.json"} <= set(log.namelist())
    assert ("times@triple", {"factor": 3}) == (header["eval"]["task"], header["eval"]["task_args"])
    assert (2, 1) == (header["results"]["total_samples"], header["results"]["completed_samples"])


@pytest.mark.parametrize("name", ["nat", "inspect", "junit", "markdown", "csv"])
def test_hostile_names_of_variants(tmp_path: Path, name: str) -> None:
    """The names of variants in a foreign journal stay within the directory of an export and cannot break out of its text."""
    variants = ["../../x", "..", "a/b", "A/B", "\x1b[31m|<b>", "con\ntrol"]
    trials = [event for variant in variants for event in answered("t", {"exact": True}, variant=variant)]
    write_sync(tmp_path / "run", [started(), session(), *trials])
    (tmp_path / "in").mkdir()
    result = evaljournal("export", tmp_path / "run", "-f", name, "-o", tmp_path / "in" / "out")

    assert 0 == result.exit_code, result.stderr
    assert {"run", "in"} == {file.name for file in tmp_path.iterdir()}
    assert {"out"} == {file.name for file in (tmp_path / "in").iterdir()}
    if name in {"nat", "inspect"}:
        assert len(variants) + (name == "nat") == len({file.name.lower() for file in (tmp_path / "in" / "out").iterdir()})
    elif name in {"junit", "markdown"}:
        text = (tmp_path / "in" / "out").read_text()
        assert ("<b>" in text, "\x1b" in text) == (False, False)
    status = evaljournal("status", tmp_path / "run").stdout
    assert "\x1b" not in status


def test_traces_and_markdown_name_the_variant(finished: Path) -> None:
    """Spans have an attribute with the variant, and Markdown has a row for each."""
    otlp = evaljournal("export", finished, "-f", "otlp", "--json").stdout
    markdown = evaljournal("export", finished, "-f", "markdown").stdout

    assert 8 == otlp.count('"evaljournal.variant"')
    assert "| <code>triple</code> |" in markdown


def test_a_session_resumes_one_variant(finished: Path, tmp_path: Path) -> None:
    """`resume --only-variant` leaves the others open, with exit code 3; the next `resume` runs them."""
    Path("times.py").write_text(SOURCE)
    seq = next(record.seq for record in load(finished).records() if isinstance(record.event, TrialCompleted))
    evaljournal("fork", finished, "--at", seq, "-o", tmp_path / "forked")
    options = ("resume", tmp_path / "forked", "--task", "times.py", "--trust", "--adopt", "--plain")
    partial = evaljournal(*options, "--only-variant", "triple")
    done = {name: totals.done for name, totals in load(tmp_path / "forked").state.variants.items()}
    every = evaljournal(*options)

    assert (3, 2) == (partial.exit_code, done["triple"]), partial.stderr
    assert done["double"] < 2
    assert "only triple ran; other variants are not finished" in partial.stdout
    assert 1 == every.exit_code, every.stderr  # One trial fails.
    assert {"double": 2, "triple": 2} == {
        name: totals.done for name, totals in load(tmp_path / "forked").state.variants.items()
    }


def test_run_resumes_an_unfinished_run_of_some_variants() -> None:
    """For `run -o`, --only-variant is a setting of the run, as it was in the first session."""
    Path("times.py").write_text(SOURCE)
    command = ("run", "times.py", "--only-variant", "triple", "-o")
    evaljournal(*command, "first")
    seq = next(record.seq for record in load("first").records() if isinstance(record.event, TrialCompleted))
    evaljournal("fork", "first", "--at", seq, "-o", "forked")
    result = evaljournal(*command, "forked")

    assert 1 == result.exit_code, result.stderr  # One trial fails.
    assert {"triple": 2} == {name: totals.done for name, totals in load("forked").state.variants.items()}


def test_a_run_without_variants_has_no_column(tmp_path: Path) -> None:
    """Without variants, tables have no column for them, and `status --json` has null."""
    Path("times.py").write_text(
        SOURCE.replace('variants={"double": {"factor": 2}, "triple": {"factor": 3}},', "").replace(
            ", *, factor", ", *, factor=2"
        )
    )
    evaljournal("run", "times.py", "-o", tmp_path / "plain")
    rows = [orjson.loads(line) for line in evaljournal("export", tmp_path / "plain").stdout.splitlines()]

    assert {True} == {"variant" not in row for row in rows}
    assert printed("status", tmp_path / "plain")["variants"] is None


def test_status_of_one_variant(finished: Path) -> None:
    """`status RUN@VARIANT` has the results of the variant only."""
    text = evaljournal("status", f"{finished}@triple").stdout
    answer = printed("status", f"{finished}@triple")

    assert f"{finished}@triple: 2 of 2 done · 1 error · right 0.0 % · $1.50" in text
    assert "double" not in text
    assert (str(finished), "triple") == (answer["path"], answer["variant"])
    assert (1, 0.0) == (answer["trials"]["failed"], answer["scores"]["right"]["mean"])
    assert 2 == evaljournal("status", f"{finished}@unknown").exit_code
    assert 2 == evaljournal("status", f"{finished}@triple", "--by", "variant").exit_code


def test_variants_are_compared_in_markdown(finished: Path) -> None:
    """`export --baseline` takes one variant of a run; then it exports one variant, too."""
    options = ("--format", "markdown", "--baseline", f"{finished}@double")
    result = evaljournal("export", f"{finished}@triple", *options)

    assert 0 == result.exit_code, result.stderr
    assert "2 trials compared with the baseline&#58; 2 broken" in result.stdout
    assert ", variant <code>double</code>, seq" in result.stdout
    assert 2 == evaljournal("export", f"{finished}@unknown", *options).exit_code
    assert 2 == evaljournal("export", f"{finished}@triple").exit_code


def test_an_unknown_variant_of_a_finished_run_is_an_error(finished: Path) -> None:
    """`resume --only-variant` rejects it before it reports that there is nothing to resume."""
    unknown = evaljournal("resume", finished, "--only-variant", "unknown")

    assert (2, True) == (unknown.exit_code, "no variant 'unknown'" in unknown.stderr)
    assert 1 == evaljournal("resume", finished, "--only-variant", "triple").exit_code  # One trial has failed.


def test_every_variant_must_reach_a_gate(finished: Path) -> None:
    """The mean over all variants reaches the gate, but that of one variant does not."""
    result = evaljournal("resume", finished, "--fail-under", "right=0.5", "--json")

    (gate,) = gate_results(load_with_gates(finished, "right=0.5"))
    assert (1, False, "right=0.5: variant triple: the mean of right is 0") == (result.exit_code, gate.passed, gate.problem)
    assert gate_results(load_with_gates(finished, "right=0"))[0].passed


def load_with_gates(path: Path, *gates: str) -> RunState:
    """Load a run and set its gates."""
    state = load(path).state
    state.settings["fail_under"] = list(gates)
    return state
