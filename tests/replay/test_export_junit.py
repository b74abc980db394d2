"""The JUnit export, read by a parser and compared with Ant's schema."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped

from evaljournal.journal.events import AttemptFailed, AttemptStarted, TrialFailed
from tests.journal.samples import enqueued, examples, session, started, trial, write_sync
from tests.replay.eventful_run import export_of, scored


def parsed(path: Path) -> JUnitXml:
    return JUnitXml.fromstring(export_of(path, "junit"))


def test_parser_reads_the_file(run: Path) -> None:
    """A failed trial and a failed scorer are errors, a false score is a failure, an open trial is skipped."""
    suite = next(iter(parsed(run)))

    assert [
        ("peru", []),
        ("chad", [Error]),
        ("chad#2", [Failure]),
        ("oslo", [Error]),
        ("later", [Skipped]),
    ] == [(case.name, [type(result) for result in case.result]) for case in suite]
    assert (5, 1, 2, 1) == (suite.tests, suite.failures, suite.errors, suite.skipped)


def test_texts(run: Path) -> None:
    """An error lists every attempt; a failure has the input, expected and actual output."""
    cases = {case.name: case.result for case in next(iter(parsed(run)))}

    assert ("timeout", "timed out after 30 s") == (cases["chad"][0].type, cases["chad"][0].message)
    assert "attempt 1: RateLimited: slow down" in cases["chad"][0].text
    assert ("exact", "exact: fail") == (cases["chad#2"][0].type, cases["chad#2"][0].message)
    assert 'input: {"q":"Chad?"}' in cases["chad#2"][0].text
    assert "scorer exact: no verdict" == cases["oslo"][0].message


REQUIRED = {
    "testsuite": {"name", "package", "id", "timestamp", "hostname", "tests", "failures", "errors", "time"},
    "testcase": {"name", "classname", "time"},
    "property": {"name", "value"},
    "error": {"type"},
    "failure": {"type"},
}
"""Attributes that Ant's schema requires."""
ALLOWED = {"testsuite": {"skipped"}, "error": {"message"}, "failure": {"message"}}
"""Other attributes that the export has."""


def test_schema(run: Path) -> None:
    """Every required attribute is present, and only allowed ones besides; a test case has at most one result."""
    root = ET.fromstring(export_of(run, "junit"))  # noqa: S314  # our own
    suite = root[0]

    assert ("testsuites", {}, ["testsuite"]) == (root.tag, root.attrib, [child.tag for child in root])
    assert ["properties", *["testcase"] * 5, "system-out", "system-err"] == [child.tag for child in suite]
    for element in suite.iter():
        required = REQUIRED.get(element.tag, set())
        assert required <= set(element.attrib) <= required | ALLOWED.get(element.tag, set())
    assert all(len(case) <= 1 for case in suite.iter("testcase"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    assert all(re.fullmatch(r"\d+\.\d{3}", child.attrib["time"]) for child in (suite, *suite.iter("testcase")))


@examples(60)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Any text in an output, a reason or a name gives valid XML; characters that XML excludes are escaped."""
    path = tmp_path_factory.mktemp("junit") / "run"
    events = trial(text, text)
    events[3] = scored(text, "exact", value=False, reason=text)
    write_sync(path, [started(), session(), *events])
    (case,) = next(iter(parsed(path)))
    shown = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", lambda match: ascii(match[0])[1:-1], text)

    assert shown == case.name
    assert f"exact: fail: {shown}\n" in (case.result[0].text or "")


def test_large_outputs_are_truncated(tmp_path: Path) -> None:
    """A large output is truncated."""
    events = trial("a", "y" * 400_000)
    events[3] = scored("a", "exact", value=False)
    write_sync(tmp_path / "run", [started(), session(), *events])

    assert "… (400,000 characters)" in export_of(tmp_path / "run", "junit").decode()
    assert len(export_of(tmp_path / "run", "junit")) < 20_000


def test_exception_without_name_or_message(tmp_path: Path) -> None:
    """An exception without a name or a message is an error with a type."""
    failed = AttemptFailed(trial="a", attempt=1, error="", message="", category="fatal", elapsed=0.1)
    attempt = AttemptStarted(trial="a", attempt=1, slot=0)
    trial_failed = TrialFailed(trial="a", attempts=1, reason="fatal")
    write_sync(tmp_path / "run", [started(), session(), enqueued("a"), attempt, failed, trial_failed])
    (case,) = next(iter(parsed(tmp_path / "run")))

    assert "fatal" == case.result[0].type
