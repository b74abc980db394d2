"""JUnit's XML, read by a parser of it and held against what Ant's schema demands."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped

from journal.events import AttemptFailed, AttemptStarted, TrialFailed
from tests.journal.samples import enqueued, examples, session, started, trial, written
from tests.replay.eventful_run import eventful_run, exported, scored


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Make the run in which everything happens."""
    return eventful_run(tmp_path / "run")


def parsed(path: Path) -> JUnitXml:
    return JUnitXml.fromstring(exported(path, "junit"))


def test_a_parser_reads_it(run: Path) -> None:
    """A failed trial and one that nobody could judge are errors, a scorer that said false is a failure, the rest is skipped."""
    suite = next(iter(parsed(run)))

    assert [
        ("peru", []),
        ("chad", [Error]),
        ("chad#2", [Failure]),
        ("oslo", [Error]),
        ("later", [Skipped]),
    ] == [(case.name, [type(result) for result in case.result]) for case in suite]
    assert (5, 1, 2, 1) == (suite.tests, suite.failures, suite.errors, suite.skipped)


def test_what_went_wrong_is_told(run: Path) -> None:
    """An error tells every attempt, a failure the question, what was expected and what came."""
    cases = {case.name: case.result for case in next(iter(parsed(run)))}

    assert ("timeout", "timed out after 30 s") == (cases["chad"][0].type, cases["chad"][0].message)
    assert "attempt 1: RateLimited: slow down" in cases["chad"][0].text
    assert ("exact", "exact: false") == (cases["chad#2"][0].type, cases["chad#2"][0].message)
    assert 'input: {"q":"Chad?"}' in cases["chad#2"][0].text
    assert "exact failed: no verdict" == cases["oslo"][0].message


REQUIRED = {
    "testsuite": {"name", "package", "id", "timestamp", "hostname", "tests", "failures", "errors", "time"},
    "testcase": {"name", "classname", "time"},
    "property": {"name", "value"},
    "error": {"type"},
    "failure": {"type"},
}
"""What Ant's schema demands; it allows few things more."""
ALLOWED = {"testsuite": {"skipped"}, "error": {"message"}, "failure": {"message"}}


def test_it_is_what_the_common_schemas_demand(run: Path) -> None:
    """Every attribute that is demanded is there, and none that is not allowed; a test has one remark at the most."""
    root = ET.fromstring(exported(run, "junit"))  # noqa: S314  # our own
    suite = root[0]

    assert ("testsuites", {}, ["testsuite"]) == (root.tag, root.attrib, [each.tag for each in root])
    assert ["properties", *["testcase"] * 5, "system-out", "system-err"] == [each.tag for each in suite]
    for element in suite.iter():
        required = REQUIRED.get(element.tag, set())
        assert required <= set(element.attrib) <= required | ALLOWED.get(element.tag, set())
    assert all(len(case) <= 1 for case in suite.iter("testcase"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    assert all(re.fullmatch(r"\d+\.\d{6}", each.attrib["time"]) for each in (suite, *suite.iter("testcase")))


@examples(60)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_can_be_told(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Whatever a model says, a scorer finds and a case is called, the XML holds it, and names what XML cannot hold."""
    path = tmp_path_factory.mktemp("junit") / "run"
    life = trial(text, text)
    life[3] = scored(text, "exact", value=False, reason=text)
    written(path, [started(), session(), *life])
    (case,) = next(iter(parsed(path)))
    shown = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", lambda found: ascii(found[0])[1:-1], text)

    assert shown == case.name
    assert f"exact: false: {shown}\n" in (case.result[0].text or "")


def test_large_outputs_are_cut_short(tmp_path: Path) -> None:
    """A report that people look at does not show a megabyte of text."""
    life = trial("a", "y" * 400_000)
    life[3] = scored("a", "exact", value=False)
    written(tmp_path / "run", [started(), session(), *life])

    assert "… (400,000 characters)" in exported(tmp_path / "run", "junit").decode()
    assert len(exported(tmp_path / "run", "junit")) < 20_000


def test_a_trial_that_was_cut_off_without_a_word_has_a_type(tmp_path: Path) -> None:
    """An exception without a name or a message is an error all the same."""
    failed = AttemptFailed(trial="a", attempt=1, error="", message="", category="fatal", elapsed=0.1)
    begun = AttemptStarted(trial="a", attempt=1, slot=0)
    given_up = TrialFailed(trial="a", attempts=1, cause="fatal")
    written(tmp_path / "run", [started(), session(), enqueued("a"), begun, failed, given_up])
    (case,) = next(iter(parsed(tmp_path / "run")))

    assert "fatal" == case.result[0].type
