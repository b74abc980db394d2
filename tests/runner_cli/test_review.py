"""The commands `review` and `annotate`."""

import csv
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from evaljournal.journal.events import TrialScored
from evaljournal.replay.review.labels import Label, read_review
from tests.journal.samples import (
    RUN,
    annotated,
    complete_run,
    enqueued,
    fake_clock,
    flip,
    segment,
    session,
    started,
    trial,
    write_sync,
)
from tests.runner_cli.commands import evaljournal, printed, rejected


def labels(run: Path) -> list[tuple[Any, ...]]:
    """Return the labels that count."""
    return [(label.trial, label.name, label.value, label.reviewer, label.note) for label in read_review(run).labels]


def listed(*arguments: Any) -> dict[str, Any]:
    """Return the sample that `review --list --json` prints."""
    sample: dict[str, Any] = printed("review", *arguments, "--list")
    return sample


def test_a_sample_is_drawn_once(run: Path) -> None:
    """The same options, or none, show the recorded sample with the labels given since; another seed draws another one."""
    first = listed(run, "--sample", 1, "--seed", 3)
    (name,) = [item["trial"] for item in first["trials"]]
    evaljournal("annotate", run, name, "exact=no", "--reviewer", "ada")
    again = listed(run)

    assert first["sample"] == again["sample"] == listed(run, "--sample", 1, "--seed", 3)["sample"]
    assert [[], [False]] == [[label["value"] for item in view["trials"] for label in item["labels"]] for view in (first, again)]
    assert [1, 2] == [listed(run)["sample"]["id"], listed(run, "--seed", 4)["sample"]["id"]]
    assert (2, 0.5) == (first["sample"]["population"], first["trials"][0]["probability"])


def test_the_list_is_for_people(run: Path) -> None:
    """Without --json, a table is printed, and what to do next."""
    evaljournal("annotate", run, "case-1", "exact=yes", "--reviewer", "ada")
    result = evaljournal("review", run, "--sample", 2, "--list")

    assert ["TRIAL", "SCORE", "LABELS", "OUTPUT"] == result.stdout.splitlines()[0].split()
    assert ["case-1", "yes", "yes", "(ada)", "Lima"] == next(
        line.split() for line in result.stdout.splitlines() if line.startswith("case-1")
    )
    assert "sample 1 of exact: 2 outputs of 2, uniform, seed 1; 0 labeled" in result.stderr


def test_blind_hides_the_scores(run: Path) -> None:
    """With --blind, neither the table nor the JSON has scores."""
    assert all("scores" not in item for item in listed(run, "--blind")["trials"])
    assert "SCORE" not in evaljournal("review", run, "--blind", "--list").stdout


def test_a_label_is_recorded(run: Path) -> None:
    """`annotate` records a label with note and reviewer, and reports if its output was not drawn."""
    result = evaljournal("annotate", run, "case-1", "exact=no", "--note", "wrong continent", "--reviewer", "ada", "--blind")

    assert (0, f"{run}: 1 label recorded, 0 already recorded\n") == (result.exit_code, result.stdout)
    assert "1 label of outputs that are in no sample" in result.stderr
    assert [("case-1", "exact", False, "ada", "wrong continent")] == labels(run)
    assert read_review(run).labels[0].is_blind


def test_the_same_label_is_recorded_once(run: Path) -> None:
    """A repeated command records nothing; a label given again for a sample counts for it."""
    commands = [evaljournal("annotate", run, "case-1", "exact=no", "--reviewer", "ada").stdout for _ in range(2)]
    listed(run, "--sample", 2)
    evaljournal("annotate", run, "case-1", "exact=no", "--reviewer", "ada")
    review = read_review(run)

    assert [f"{run}: 1 label recorded, 0 already recorded\n", f"{run}: 0 labels recorded, 1 already recorded\n"] == commands
    assert [0, 1] == [label.sample for label in review.history]
    assert ["case-1"] == [label.trial for label in review.answers(review.samples[1])]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["case-9", "exact=yes"], "has no trial 'case-9'; did you mean"),
        (["case-1", "exakt=yes"], "has no scorer 'exakt'; did you mean 'exact'?"),
        (["case-1", "exact=maybe"], "invalid label 'maybe' for scorer 'exact': expected yes or no"),
        (["case-1", "exact=yes", "exact=no"], "'exact=yes' and 'exact=no' contradict each other"),
        (["case-1", "exact=", "--reviewer", "ada"], "'ada' has given 'case-1' no label 'exact' that could be withdrawn"),
        (["case-1", "exact=yes", "--note", "x" * 70_000], "the label with its note is larger than 64 KiB"),
        (["case-1", "exact"], "'exact' is not a label; write it as NAME=LABEL, such as judge=yes"),
        (["case-1", "=yes"], "'' is not a name for a label"),
        (["case-1"], "pass TRIAL and NAME=LABEL, or --import FILE"),
        ([], "pass TRIAL and NAME=LABEL, or --import FILE"),
        (["case-1", "exact=yes", "--import", "x.csv"], "pass TRIAL and NAME=LABEL, or --import FILE"),
        (["--import", "missing.csv"], "cannot read the file"),
        (["--import", "."], "it is a directory; pass a file with labels"),
        (["case-1", "exact=yes", "--reviewer", " "], "the name of the reviewer is empty"),
    ],
)
def test_wrong_labels_are_rejected(run: Path, arguments: list[str], problem: str) -> None:
    """A label that cannot be recorded is a usage error, and nothing is written."""
    assert problem in rejected("annotate", run, *arguments)
    assert not (run / "review").exists()


def test_a_label_may_answer_another_question(run: Path) -> None:
    """A name that is not a scorer's is kept, with a note; its labels are numbers, passes or texts."""
    result = evaljournal("annotate", run, "case-1", "tone=polite", "fluency=4.5", "safe=yes", "--reviewer", "ada")

    assert "has no scorer 'tone': these labels are compared between reviewers only" in result.stderr
    assert {"tone": "polite", "fluency": 4.5, "safe": True} == {name: value for _, name, value, *_ in labels(run)}


def test_labels_have_the_type_of_the_scores() -> None:
    """For a scorer with labels, `yes` is a label; for one with numbers, only numbers are accepted."""
    *opening, _, completed = trial("case-1")
    score: dict[str, Any] = {"trial": "case-1", "version": "v1", "elapsed": 0.1}
    scores = [TrialScored(scorer="genre", value="no", **score), TrialScored(scorer="length", value=3, **score)]
    write_sync(Path("run"), [started(), session(), *opening, *scores, completed])
    evaljournal("annotate", "run", "case-1", "genre=yes", "length=7", "--reviewer", "ada")

    assert {"genre": "yes", "length": 7} == {name: value for _, name, value, *_ in labels(Path("run"))}
    assert (
        "invalid label 'yes' for scorer 'length': expected a number"
        in evaljournal("annotate", "run", "case-1", "length=yes").stderr
    )


def test_a_run_without_outputs_has_nothing_to_review() -> None:
    """A run whose trials have no output yet cannot be sampled, and no review is started."""
    write_sync(Path("run"), [started(), session(), enqueued("case-1")])
    result = evaljournal("review", "run", "--question", "exact", "--list")

    assert (2, True) == (result.exit_code, "run has no output to review" in result.stderr)
    assert "trial 'case-1' has no output to label" in evaljournal("annotate", "run", "case-1", "exact=yes").stderr
    assert not Path("run/review").exists()


ROW = {"trial": "case-1", "name": "exact", "value": "yes", "reviewer": "ada"}
ROWS = [
    {"trial": "case-1", "name": "exact", "value": "no", "reviewer": "ada", "note": "=1+1", "output": "Lima"},
    {"trial": "case-2", "name": "exact", "value": "yes", "reviewer": "grace", "note": "", "output": "Lima"},
]
EXPECTED = [("case-1", "exact", False, "ada", "=1+1"), ("case-2", "exact", True, "grace", "")]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json"])
def test_labels_are_imported(run: Path, suffix: str) -> None:
    """Labels in CSV, JSONL and JSON are recorded; a second import records nothing."""
    file = Path(f"labels.{suffix}")
    if suffix == "csv":
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, ROWS[0])
            writer.writeheader()
            writer.writerows(ROWS)
    else:
        file.write_text(json.dumps(ROWS) if suffix == "json" else "".join(f"{json.dumps(row)}\n" for row in ROWS))
    results = [evaljournal("annotate", run, "--import", file).stdout for _ in range(2)]

    assert [f"{run}: 2 labels recorded, 0 already recorded\n", f"{run}: 0 labels recorded, 2 already recorded\n"] == results
    assert EXPECTED == labels(run)


def test_a_column_may_have_the_name_of_the_scorer(run: Path) -> None:
    """Rows with a column for each scorer are imported; empty cells are no labels; the default reviewer is an option."""
    Path("labels.csv").write_text("trial,exact,comment\ncase-1,0,wrong\ncase-2,,\n")
    evaljournal("annotate", run, "--import", "labels.csv", "--reviewer", "ada")

    assert [("case-1", "exact", False, "ada", "wrong")] == labels(run)


LABEL_STUDIO = [
    {
        "id": 41,
        "data": {"trial": "case-1", "output": "Lima"},
        "annotations": [
            {
                "id": 7,
                "completed_by": {"id": 1, "email": "ada@example.org"},
                "was_cancelled": False,
                "lead_time": 12.5,
                "result": [
                    {"id": "a", "from_name": "exact", "to_name": "output", "type": "choices", "value": {"choices": ["no"]}},
                    {"id": "b", "from_name": "note", "to_name": "output", "type": "textarea", "value": {"text": ["vague"]}},
                    {"id": "c", "from_name": "fluency", "to_name": "output", "type": "rating", "value": {"rating": 4}},
                ],
            },
            {"id": 8, "completed_by": 2, "was_cancelled": True, "result": []},
        ],
        "project": 3,
    }
]
"""An export of Label Studio in its format JSON: a task with an annotation by one person and a skipped one."""
LABEL_STUDIO_CSV = """annotation_id,annotator,created_at,exact,id,lead_time,note,output,trial,updated_at
7,1,2026-11-15T00:00:00Z,no,41,12.5,vague,Lima,case-1,2026-11-15T00:00:00Z
"""
"""An export of Label Studio in its format CSV."""
TWO_CHOICES = {"from_name": "exact", "type": "choices", "value": {"choices": ["yes", "no"]}}
ARGILLA = [
    {
        "id": "case-1",
        "fields": {"output": "Lima"},
        "metadata": {},
        "suggestions": {},
        "responses": {
            "exact": [{"value": "no", "user_id": "ada"}, {"value": "yes", "user_id": "grace"}],
            "note": [{"value": "vague", "user_id": "ada"}],
        },
        "vectors": {},
        "_server_id": "0d4a",
    }
]
"""An export of Argilla 2: `dataset.records.to_json(path)`."""
ARGILLA_FLAT = [
    {
        "id": "0d4b",
        "trial": "case-1",
        "output": "Lima",
        "exact.responses": ["no", "yes", "yes"],
        "exact.responses.users": ["ada", "grace", "joan"],
        "exact.responses.status": ["submitted", "submitted", "draft"],
        "exact.suggestion": "yes",
    }
]
"""The same as `to_list(flatten=True)`, with the trial in a field."""


@pytest.mark.parametrize(
    ("export", "expected"),
    [
        (
            LABEL_STUDIO,
            [
                ("case-1", "exact", False, "ada@example.org", "vague"),
                ("case-1", "fluency", 4, "ada@example.org", "vague"),
            ],
        ),
        (LABEL_STUDIO_CSV, [("case-1", "exact", False, "1", "vague")]),
        (ARGILLA, [("case-1", "exact", False, "ada", "vague"), ("case-1", "exact", True, "grace", "")]),
        (ARGILLA_FLAT, [("case-1", "exact", False, "ada", ""), ("case-1", "exact", True, "grace", "")]),
    ],
    ids=["label-studio", "label-studio-csv", "argilla", "argilla-flat"],
)
def test_exports_of_other_tools_are_imported(run: Path, export: Any, expected: list[tuple[Any, ...]]) -> None:
    """Exports of Label Studio and Argilla are imported as they are."""
    file = Path("export.csv" if isinstance(export, str) else "export.json")
    file.write_text(export if isinstance(export, str) else json.dumps(export))
    result = evaljournal("annotate", run, "--import", file)

    assert 0 == result.exit_code, result.stderr
    assert expected == labels(run)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{**ROW, "value": ""}], "the file has no labels"),
        ([{**ROW, "trial": "case-9"}], "line 1: run has no trial 'case-9'"),
        ([{**ROW, "trial": 1}], "line 1: run has no trial '1'"),  # The number of a trial is its name, as in CSV.
        ([ROW, {**ROW, "value": "?"}], "line 2: invalid label '?' for scorer 'exact': expected yes or no"),
        ([ROW, {**ROW, "value": "no"}], "labels.jsonl, line 1 and labels.jsonl, line 2 contradict each other"),
        ([{**ROW, "output": "Quito"}], "line 1: the label is for another output than that of 'case-1'"),
        ([{"trial": "case-1", "text": "Lima"}], "line 1: no label; expected the columns `name` and `value`, or one of exact"),
        ([{"name": "exact", "value": "yes"}], "line 1: no trial"),
        ([{**ROW, "value": ["a"]}], "line 1: exact: a label is yes, no, a number or text"),
        ([{**ROW, "name": "exakt"}], "line 1: run has no scorer 'exakt'; did you mean 'exact'?"),
        ([{**ROW, "note": ["a"]}], "line 1: the note is not text: ['a']"),
        ([{**ROW, "note": "\ud800"}], "line 1: the label is not valid Unicode"),
        ([{**ROW, "note": "x" * 70_000}], "line 1: the label with its note is larger than 64 KiB"),
        ([{**ROW, "reviewer": 7}], "line 1: the reviewer is not text: 7"),
        ([{"data": {"trial": "case-1"}, "annotations": [{"result": [TWO_CHOICES]}]}], "line 1: 2 choices, expected 1"),
        ([{"id": "case-1", "responses": {"exact": "yes"}}], "line 1: not a row of labels"),
        ([{"id": "case-1", "exact.responses": ["yes"], "exact.responses.users": []}], "line 1: not a row of labels"),
    ],
)
def test_a_file_is_imported_completely_or_not_at_all(run: Path, rows: list[Any], problem: str) -> None:
    """If one row cannot be recorded, the error names its line, and no label is recorded."""
    Path("labels.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    assert problem in rejected("annotate", run, "--import", "labels.jsonl")
    assert not (run / "review").exists()


def test_labels_of_other_runs_are_carried_over() -> None:
    """A sample of a later run records the labels that its outputs have in other runs, and shows them as answered."""
    for number in (1, 2):
        write_sync(Path(f"runs/{number}"), complete_run(), run=str(number) * 32)
    evaljournal("annotate", "runs/1", "case-2", "exact=no", "--reviewer", "ada")
    sample = listed("runs/2", "--sample", 2)
    review = read_review(Path("runs/2"))
    carried: list[Label] = review.answers(review.samples[1])

    assert [("case-2", False, "ada", "1" * 32, 0)] == [
        (label.trial, label.value, label.reviewer, label.carried_from, label.sample) for label in carried
    ]
    assert ["1" * 32] == [label["carried_from"] for item in sample["trials"] for label in item["labels"]]


def review_of(path: Path) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Return the labels of a run and how many answers each of its samples has; check that it verifies."""
    result = evaljournal("verify", path, "--json")
    assert 0 == result.exit_code, result.output
    review = read_review(path)
    answers = [f"{sample.name} {len(review.answers(sample))}/{sample.n}" for sample in review.samples.values()]
    return [(label.trial, label.value, label.carried_from) for label in review.labels], answers


def test_a_fork_takes_the_labels_along(timed_run: Path, tmp_path: Path) -> None:
    """A fork has the labels and samples of its source; a fork before an output was there does not have its label."""
    listed(timed_run, "--sample", 2)
    evaljournal("annotate", timed_run, "case-1", "exact=no")
    evaljournal("annotate", timed_run, "case-2", "exact=yes")
    result = evaljournal("fork", timed_run, "-o", tmp_path / "fork")
    evaljournal("fork", timed_run, "--at", 8, "-o", tmp_path / "early")

    assert "2 labels carried over" in result.stderr
    assert ([("case-1", False, RUN), ("case-2", True, RUN)], ["exact 2/2"]) == review_of(tmp_path / "fork")
    assert ([("case-1", False, RUN)], []) == review_of(tmp_path / "early")


def test_a_salvaged_run_has_its_labels(damaged_run: Path, tmp_path: Path) -> None:
    """Salvage keeps the labels of the outputs that it keeps."""
    intact = tmp_path / "intact"
    write_sync(intact, complete_run(), clock=fake_clock(1.0))
    evaljournal("annotate", intact, "case-1", "exact=no")
    evaljournal("annotate", intact, "case-2", "exact=yes")
    (intact / "review").rename(damaged_run / "review")
    result = evaljournal("salvage", damaged_run, "-o", tmp_path / "new")

    assert "1 label carried over" in result.stderr
    assert [("case-1", False, RUN)] == review_of(tmp_path / "new")[0]


@pytest.mark.parametrize("line", [1, 2, 3], ids=["header", "start", "label"])
def test_a_damaged_review_is_salvaged(timed_run: Path, tmp_path: Path, line: int) -> None:
    """The intact labels of a damaged review are copied; moved to the run, they are its review."""
    for name in ("case-1", "case-2"):
        evaljournal("annotate", timed_run, name, "exact=no")
    lines = segment(timed_run / "review").read_bytes().splitlines(keepends=True)
    flip(segment(timed_run / "review"), sum(map(len, lines[: line - 1])) + 60)
    assert 4 == evaljournal("verify", timed_run).exit_code
    assert 4 == evaljournal("annotate", timed_run, "case-1", "exact=yes").exit_code
    result = evaljournal("salvage", timed_run / "review", "-o", tmp_path / "new")
    assert 0 == result.exit_code, result.output
    (timed_run / "review").rename(tmp_path / "damaged")
    (tmp_path / "new").rename(timed_run / "review")

    assert {("case-2", False, "")} | ({("case-1", False, "")} if line < 3 else set()) == set(review_of(timed_run)[0])


def test_a_review_is_printed_as_a_log(run: Path) -> None:
    """`log RUN/review` prints the records of a review; other commands ask for the run."""
    evaljournal("annotate", run, "case-1", "exact=no", "--note", "\x1b[31mred")
    result = evaljournal("log", run / "review", "--type", "annotated")

    assert ["annotated"] == [line.split()[3] for line in result.stdout.splitlines()]
    assert "\x1b" not in result.stdout
    for command in ("status", "show", "verify", "report"):
        other = evaljournal(command, run / "review")
        assert (2, True) == (other.exit_code, "is the review of a run; pass run" in other.stderr), other.output


def test_verify_reports_the_review(timed_run: Path) -> None:
    """`verify` prints how many labels and samples are right, and what is wrong."""
    listed(timed_run, "--sample", 2)
    evaljournal("annotate", timed_run, "case-1", "exact=no", "--reviewer", "ada")
    result = evaljournal("verify", timed_run)

    assert "review OK: 6 records, 1 label by 1 reviewer; 1 sample drawn again; head " in result.stdout
    write_sync(timed_run / "review", [annotated("case-2", replaces=3, sample=1)], new=False)
    forged = evaljournal("verify", timed_run)

    assert (4, "") == (forged.exit_code, forged.stdout)
    assert "(label): it replaces record 3" in forged.stderr
    review = orjson.loads(evaljournal("verify", timed_run, "--json").stdout)["review"]
    assert (False, [(7, "label")]) == (review["ok"], [(finding["seq"], finding["check"]) for finding in review["findings"]])


def test_merged_shards_have_their_labels() -> None:
    """A merged run has the labels of its shards; a sample of it has them as answers."""
    Path("cases.jsonl").write_text("".join(f'{{"id": "c{number}", "input": "{number}"}}\n' for number in range(20)))
    options = ["--data", "cases.jsonl", "--command", "cat", "--score", "contains"]
    for number in (1, 2):
        evaljournal("run", *options, "--shard", f"{number}/2", "-o", f"shard{number}")
        name = listed(f"shard{number}", "--sample", 1)["trials"][0]["trial"]
        evaljournal("annotate", f"shard{number}", name, "contains=no")
    result = evaljournal("merge", "shard1", "shard2", "-o", "merged/all")

    assert "2 labels carried over" in result.stderr, result.output
    listed("merged/all", "--sample", 99)
    assert [2, ["contains 2/99"]] == [len(labels(Path("merged/all"))), review_of(Path("merged/all"))[1]]


def test_labels_are_exported(run: Path) -> None:
    """`--rows labels` has one row per label; the rows of trials have a column for each name and reviewer."""
    evaljournal("annotate", run, "case-1", "exact=no", "--reviewer", "ada", "--note", "=1+1")
    evaljournal("annotate", run, "case-1", "exact=yes", "--reviewer", "grace")

    def exported_lines(*options: str) -> list[str]:
        return evaljournal("export", run, "--format", *options).stdout.splitlines()

    exported, rows = (map(orjson.loads, exported_lines("jsonl", "--rows", kind)) for kind in ("trials", "labels"))
    header, first, second = csv.reader(exported_lines("csv"))
    notes = [row["note"] for row in csv.DictReader(exported_lines("csv", "--rows", "labels"))]

    assert [{"exact": {"ada": False, "grace": True}}, {}] == [row["labels"] for row in exported]
    assert [("ada", False, "=1+1"), ("grace", True, None)] == [(row["reviewer"], row["value"], row["note"]) for row in rows]
    assert ["label.exact.ada", "label.exact.grace"] == header[-2:]
    assert [["false", "true"], ["", ""]] == [first[-2:], second[-2:]]
    assert ["'=1+1", ""] == notes


def test_a_trial_is_shown_with_its_labels(run: Path) -> None:
    """`show TRIAL` has the labels with reviewer and note, without control characters."""
    evaljournal("annotate", run, "case-1", "exact=no", "--reviewer", "ada", "--note", "\x1b[31mred")
    lines = [" ".join(line.split()) for line in evaljournal("show", run, "case-1").stdout.splitlines()]
    labels = orjson.loads(evaljournal("show", run, "case-1", "--json").stdout)["labels"]

    assert "label exact fail by ada \\x1b[31mred" in lines
    assert ["\x1b[31mred"] == [label["note"] for label in labels]


def test_a_damaged_review_of_another_run_does_not_matter() -> None:
    """A run can be reviewed although the review of a run beside it is damaged."""
    for number in (1, 2):
        write_sync(Path(f"runs/{number}"), complete_run(), run=str(number) * 32)
        evaljournal("annotate", f"runs/{number}", "case-2", "exact=no", "--reviewer", "ada")
    flip(segment(Path("runs/1/review")), 60)

    assert 0 == evaljournal("show", "runs/2", "case-1").exit_code
    assert "no labels: runs/1/review is damaged at record 1 " in evaljournal("show", "runs/1", "case-1").stderr
    assert 4 == evaljournal("annotate", "runs/1", "case-1", "exact=no", "--reviewer", "ada").exit_code


def test_a_repeated_import_keeps_corrections(run: Path) -> None:
    """A label that the reviewer has corrected after an import is not reverted by the same import."""
    Path("labels.csv").write_text("trial,name,value,reviewer\ncase-1,exact,yes,ada\ncase-2,exact,yes,ada\n")
    evaljournal("annotate", run, "--import", "labels.csv")
    evaljournal("annotate", run, "case-1", "exact=no", "--reviewer", "ada")
    again = evaljournal("annotate", run, "--import", "labels.csv")

    assert f"{run}: 0 labels recorded, 2 already recorded\n" == again.stdout
    assert {"case-1": False, "case-2": True} == {label.trial: label.value for label in read_review(run).labels}


def test_an_empty_cell_withdraws_nothing(run: Path) -> None:
    """An empty value in a file is no label; only `NAME=` withdraws one, and says so."""
    Path("labels.csv").write_text("trial,name,value,reviewer\ncase-1,exact,,ada\ncase-2,exact,yes,ada\n")
    evaljournal("annotate", run, "case-1", "exact=no", "--reviewer", "ada")
    evaljournal("annotate", run, "--import", "labels.csv")
    labeled = {label.trial: label.value for label in read_review(run).labels}
    withdrawn = evaljournal("annotate", run, "case-1", "exact=", "--reviewer", "ada")

    assert {"case-1": False, "case-2": True} == labeled
    assert f"{run}: 1 label withdrawn, 0 already recorded\n" == withdrawn.stdout


def test_the_suggested_command_is_quoted(tmp_path: Path) -> None:
    """The name of a scorer, which may come from a foreign run, is quoted in a command to be copied."""
    path = tmp_path / "foreign"
    write_sync(path, complete_run())
    result = evaljournal("review", path, "--question", "a;b$(id)", "--list", "--reviewer", "ada")

    assert f"next: `evaljournal annotate {path} TRIAL 'a;b$(id)=yes'`" in result.stderr


def test_the_reason_of_an_unreadable_review_comes_first(run: Path) -> None:
    """`verify` of a review that contains something else names the damage, and compares nothing; a file is named as such."""
    (run / "review").mkdir()
    (run / "review" / "journal-000001.jsonl").write_text("garbage\n")
    garbage = evaljournal("verify", run)
    (run / "review" / "journal-000001.jsonl").unlink()
    (run / "review").rmdir()
    (run / "review").write_text("x")
    file = evaljournal("annotate", run, "case-1", "exact=yes", "--reviewer", "ada")

    assert 4 == garbage.exit_code
    assert garbage.stderr.startswith(f"{run / 'review'}: 0 records verified, then: ")
    assert f"{run / 'review'} is a file; a review is a directory in its run" in file.stderr
