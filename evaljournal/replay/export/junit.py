"""JUnit XML for CI: a trial is a test case, the run is one test suite, or one for each variant.

A trial with an error, or with an error of a scorer, is an error; a trial with a false score is a failure; an open trial is
skipped. The XML is valid in the schemas of Ant and Jenkins: one result per test case, and forbidden characters are escaped.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

from evaljournal.replay.export.source import Source
from evaljournal.replay.render.test_result import error_text, failure_text
from evaljournal.replay.runs.timeline import Timeline, times_of
from evaljournal.replay.runs.trial import TrialDetails
from evaljournal.replay.state.trial import Outcome, outcome_of
from evaljournal.replay.text import escape_char

_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WHITESPACE: Final = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
"""Escaped in attributes, where a parser would turn them into spaces."""


def junit(source: Source) -> Iterator[bytes]:
    yield b'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n'
    for number, variant in enumerate(source.variants or [""]):
        yield from _suite(source, variant, number)
    yield b"</testsuites>\n"


def _suite(source: Source, variant: str, number: int) -> Iterator[bytes]:
    """Write the trials of a variant, or all trials of a run without variants."""
    state, run_started = source.state, source.state.started
    outcomes: dict[str, Outcome] = {
        name: outcome_of(trial)
        for name, trial in state.trials.items()
        if trial.stage != "withdrawn" and trial.variant == variant
    }
    counts = Counter(outcomes.values())
    name = run_started.evaluation if run_started is not None and run_started.evaluation.strip() else "evaluation"
    name = f"{name}@{variant}" if variant else name
    first_session = state.sessions[0] if state.sessions else None
    if variant:
        seconds = sum(_run_time(source, trial) for trial in outcomes)
    else:
        seconds = sum(session.end - session.start for session in Timeline(source.index).sessions)

    suite = {
        "name": name,
        "package": name,
        "id": number,
        "timestamp": first_session.at[:19] if first_session is not None else "1970-01-01T00:00:00",
        "hostname": (first_session.host.strip() if first_session is not None else "") or "localhost",
        "tests": counts.total(),
        "failures": counts["failure"],
        "errors": counts["error"],
        "skipped": counts["skipped"],
        "time": f"{seconds:.3f}",
    }
    yield _tag("testsuite", suite) + b"\n  <properties>\n"

    properties = {"run": source.run_id, "seq": state.seq, "head": state.head, "outcome": state.outcome or "not ended"}
    properties |= {"variant": variant} if variant else {}
    if run_started is not None:
        properties |= {"task": run_started.task, "dataset": run_started.dataset} | dict(run_started.environment)
    for key, value in properties.items():
        yield b"    " + _tag("property", {"name": key, "value": value}, closed=True) + b"\n"
    yield b"  </properties>\n"

    for trial, outcome in outcomes.items():
        yield _test_case(source, name, trial, outcome)
    yield b"  <system-out/>\n  <system-err/>\n</testsuite>\n"


def _run_time(source: Source, trial: str) -> float:
    return times_of(source.index.trial(trial), source.index.now).run_time


def _test_case(source: Source, suite: str, trial: str, outcome: Outcome) -> bytes:
    tag = _tag("testcase", {"name": trial, "classname": suite, "time": f"{_run_time(source, trial):.3f}"})
    match outcome:
        case "error":
            content = _error(source.trial(trial))
        case "failure":
            content = _failure(source.trial(trial))
        case "skipped":
            content = b"<skipped/>"
        case "passed":
            content = b""
    return b"  " + tag + content + b"</testcase>\n"


def _error(trial: TrialDetails) -> bytes:
    if trial.stage == "failed":
        last_error = trial.last_error
        kind, message = (last_error.error, last_error.message) if last_error is not None else ("", "")
    else:
        scorer, failure = next(iter(trial.scorer_failures.items()))
        kind, message = failure.error, f"scorer {scorer}: {failure.message}"
    return _tag("error", {"message": message, "type": kind or trial.reason}) + _text(error_text(trial)) + b"</error>"


def _failure(trial: TrialDetails) -> bytes:
    scorers = ", ".join(score.scorer for score in trial.scores.values() if score.value is False)
    return _tag("failure", {"message": f"{scorers}: fail", "type": scorers}) + _text(failure_text(trial)) + b"</failure>"


def _tag(name: str, attributes: dict[str, Any], *, closed: bool = False) -> bytes:
    texts = (f" {key}={quoteattr(_escape_forbidden(str(value)), _WHITESPACE)}" for key, value in attributes.items())
    return f"<{name}{''.join(texts)}{'/' if closed else ''}>".encode()


def _text(text: str) -> bytes:
    return escape(_escape_forbidden(text), {"\r": "&#13;"}).encode()


def _escape_forbidden(text: str) -> str:
    r"""Replace characters that XML forbids by escapes such as \x1b."""
    return _FORBIDDEN.sub(lambda match: escape_char(match[0]), text)
