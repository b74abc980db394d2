"""JUnit's XML, which every CI shows: a trial is a test.

A trial that was given up, or that a scorer could not judge, is an error: nobody knows whether the output is right. One that a
scorer said false of is a failure. One that has not come to its end is skipped. What Ant's schema and Jenkins' both allow is
written, and no more: one remark a test, and what XML cannot hold is told in words.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, Literal
from xml.sax.saxutils import escape, quoteattr

from replay.export.source import Source
from replay.export.story import Result, Setback, Story, described
from replay.state import TrialState
from replay.text import as_text, escaped, plural

_LONGEST: Final = 10_000
"""Characters of an input, an output or a reason that are shown."""
_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(source: Source) -> Iterator[bytes]:
    """Write the whole run as one suite of tests."""
    story = Story.of(source)
    state, started = story.state, story.state.started
    verdicts = Counter(_verdict(story, *each) for each in state.trials.items())
    del verdicts["left out"]
    name = started.evaluation if started is not None and started.evaluation.strip() else "evaluation"
    first = state.sessions[0] if state.sessions else None
    suite = {
        "name": name,
        "package": name,
        "id": 0,
        "timestamp": first.at[:19] if first is not None else "1970-01-01T00:00:00",
        "hostname": (first.host.strip() if first is not None else "") or "localhost",
        "tests": verdicts.total(),
        "failures": verdicts["failure"],
        "errors": verdicts["error"],
        "skipped": verdicts["skipped"],
        "time": f"{sum(session.end - session.start for session in story.timeline.sessions):.6f}",
    }
    yield b'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n'
    yield _tag("testsuite", suite) + b"\n  <properties>\n"
    about = {"run": source.run, "seq": state.seq, "head": state.head, "ended": state.ending or "not ended"}
    if started is not None:
        about |= {"task": started.task, "dataset": started.dataset} | dict(started.environment)
    for key, value in about.items():
        yield b"    " + _tag("property", {"name": key, "value": value}, closed=True) + b"\n"
    yield b"  </properties>\n"
    for trial, each in state.trials.items():
        if (verdict := _verdict(story, trial, each)) != "left out":
            yield _test(story, name, trial, verdict)
    yield b"  <system-out/>\n  <system-err/>\n</testsuite>\n</testsuites>\n"


Verdict = Literal["passed", "failure", "error", "skipped", "left out"]


def _verdict(story: Story, name: str, trial: TrialState) -> Verdict:
    """Say what a trial is as a test."""
    match trial.stage:
        case "withdrawn":
            return "left out"
        case "failed":
            return "error"
        case "completed":
            if story.lives[name].unscored:
                return "error"
            return "failure" if any(value is False for _, value in (trial.scores or {}).values()) else "passed"
        case _:
            return "skipped"


def _test(story: Story, suite: str, trial: str, verdict: Verdict) -> bytes:
    tag = _tag("testcase", {"name": trial, "classname": suite, "time": f"{story.timeline.times[trial].served:.6f}"})
    match verdict:
        case "error":
            inside = _error(story.result(trial))
        case "failure":
            inside = _failure(story.result(trial))
        case "skipped":
            inside = b"<skipped/>"
        case _:
            inside = b""
    return b"  " + tag + inside + b"</testcase>\n"


def _error(result: Result) -> bytes:
    if result.stage == "failed":
        kind, message = result.error
        told = [
            f"given up after {plural(result.attempts, 'attempt')}: {result.cause}",
            *(_told(each) for each in result.setbacks),
        ]
    else:
        scorer, failed = next(iter(result.unscored.items()))
        kind, message = failed.error, f"{scorer} could not judge: {failed.message}"
        told = [f"{name}: {each.error}: {each.message}\n{each.traceback}" for name, each in result.unscored.items()]
    return _tag("error", {"message": message, "type": kind or result.cause}) + _text("\n\n".join(told)) + b"</error>"


def _failure(result: Result) -> bytes:
    failed = [score for score in result.scores.values() if score.value is False]
    told = [f"{score.scorer} said false{f': {_short(score.reason)}' if score.reason else ''}" for score in failed]
    shown = {"input": result.asked.input, "expected": result.asked.expected, "output": result.output}
    told += [f"{name}: {_short(value)}" for name, value in shown.items()]
    scorers = ", ".join(score.scorer for score in failed)
    return _tag("failure", {"message": f"{scorers} said false", "type": scorers}) + _text("\n".join(told)) + b"</failure>"


def _told(setback: Setback) -> str:
    kind, message = described(setback)
    return f"attempt {setback.attempt}: {kind}: {message}\n{getattr(setback, 'traceback', '')}".rstrip()


def _short(value: Any) -> str:
    text = as_text(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _tag(name: str, attributes: dict[str, Any], *, closed: bool = False) -> bytes:
    members = "".join(f" {key}={quoteattr(_allowed(str(value)), _SPACE)}" for key, value in attributes.items())
    return f"<{name}{members}{'/' if closed else ''}>".encode()


_SPACE: Final = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
"""A reader would make mere blanks of these."""


def _text(text: str) -> bytes:
    return escape(_allowed(text), {"\r": "&#13;"}).encode()


def _allowed(text: str) -> str:
    r"""Tell characters that no XML may hold by their numbers, such as \x1b."""
    return _FORBIDDEN.sub(lambda found: escaped(found[0]), text)
