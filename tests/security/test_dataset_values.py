"""A hostile dataset: its texts cannot become formulas, file names outside a directory, options of a program or other paths."""

import csv
import io
import re
import sys
import zipfile
from pathlib import Path

import pytest

from evaljournal import Case, UsageError
from evaljournal.journal.events import RunStarted
from evaljournal.runner.calls.command import Command
from evaljournal.runner.calls.endpoint import Endpoint
from tests.journal.samples import session, started, trial, write_sync
from tests.replay.eventful_run import export_of
from tests.runs import define_real, events, run_real

FORMULA = '=HYPERLINK("http://attacker.example")'


@pytest.mark.parametrize("prefix", ["", ";", "\t", "a;", "a\t", "a\n", "a\r\n", "a; ", 'a;"', ";;", "a;b;"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_has_no_formula_for_any_delimiter(tmp_path: Path, prefix: str, delimiter: str) -> None:
    """In some locales, spreadsheets separate cells at semicolons or tabs, and then rows at every line break."""
    text = prefix + FORMULA
    write_sync(tmp_path / "run", [started(), session(), *trial("a", text)])
    content = export_of(tmp_path / "run", "csv").decode()
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter)
    cells = [cell.strip(' "') for row in reader for cell in row]

    assert [] == [cell for cell in cells if cell.startswith("=")]
    (row,) = csv.DictReader(io.StringIO(content, newline=""))
    assert text == re.sub(r"(^|[;\t\r\n])'", r"\1", row["output"])


@pytest.mark.parametrize("text", ["- one\n- two", "a; b", "tab\tseparated", "it's; 'quoted'", "a\n'b'", "x;'y"])
def test_other_text_in_csv_can_be_restored(tmp_path: Path, text: str) -> None:
    """The documented rule restores text with separators and apostrophes."""
    write_sync(tmp_path / "run", [started(), session(), *trial("a", text)])
    (row,) = csv.DictReader(io.StringIO(export_of(tmp_path / "run", "csv").decode(), newline=""))

    assert text == re.sub(r"(^|[;\t\r\n])'", r"\1", row["output"])


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "..\\..\\evil", "a/../../../evil", "a//b", "a/./b", "..", "."])
def test_files_of_an_inspect_log_stay_in_its_directory(tmp_path: Path, name: str) -> None:
    """A case name cannot place an extracted file outside the directory."""
    write_sync(tmp_path / "run", [started(), session(), *trial(name)])
    names = zipfile.ZipFile(io.BytesIO(export_of(tmp_path / "run", "inspect"))).namelist()

    assert [name for name in names if name.startswith("samples/")]
    assert [] == [name for name in names if "\\" in name or {"", ".", ".."} & set(name.split("/"))]


def test_a_value_is_not_an_option_of_a_program(path: Path) -> None:
    """A value that begins with - is rejected before the run starts, because the program could read it as an option."""
    command = Command([sys.executable, "-c", "pass", "{question}"])
    with pytest.raises(UsageError, match="as an option") as caught:
        run_real(define_real(command, [Case(name="a", input={"question": "--output=/etc/passwd"})]), path)

    assert "put -- before {question}" in str(caught.value)
    assert not path.exists()


@pytest.mark.parametrize("arguments", [["--", "{question}"], ["--text={question}"], ["-x", "--", "a", "{question}"]])
def test_a_value_after_two_hyphens_or_an_option_is_allowed(path: Path, arguments: list[str]) -> None:
    """After `--`, or as the value of an option, a text that begins with - is passed unchanged."""
    command = Command([sys.executable, "-c", "import sys; print(sys.argv[-1])", *arguments])
    outcome = run_real(define_real(command, [Case(name="a", input={"question": "-5 + 3"})]), path)

    assert 1 == outcome.state.completed
    assert 1 == len(events(path, RunStarted))


@pytest.mark.parametrize("value", ["..", "."])
def test_a_field_cannot_change_the_path_of_a_url(value: str) -> None:
    """`..` as a part of the path is rejected; as a part of a name, and in the query, it is text."""
    endpoint = Endpoint("http://127.0.0.1:9/users/{name}/orders?next={name}")
    with pytest.raises(UsageError, match="path of the URL"):
        endpoint.check(Case(name="a", input={"name": value}))

    assert "/users/a..b/orders?next=a..b" == endpoint.request(Case(name="b", input={"name": "a..b"}))["path"]
    assert "/users/..%2Fadmin/orders?next=..%2Fadmin" == endpoint.request(Case(name="c", input={"name": "../admin"}))["path"]
    query = Endpoint("http://127.0.0.1:9/users?next={name}").request(Case(name="d", input={"name": value}))
    assert f"/users?next={value}" == query["path"]
