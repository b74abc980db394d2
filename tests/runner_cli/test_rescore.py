"""`evaljournal rescore`."""

import errno
import itertools
import re
import signal
from pathlib import Path

import orjson
import pytest

from evaljournal.journal import read, verify
from evaljournal.journal.disk.files import DISK, Files
from evaljournal.journal.disk.lock import Lock
from evaljournal.journal.events import AttemptStarted, Noted, RunFinished, RunStopped, SessionStarted, TrialScored
from evaljournal.replay import fold
from evaljournal.replay.auditing.auditor import audit
from evaljournal.runner.retries.rules import retry_rules
from tests.processes import wait_until
from tests.runner_cli.commands import COMMANDED, evaljournal, printed, process, rejected, scores
from tests.runs import events
from tests.server import Server

pytestmark = pytest.mark.usefixtures("dataset")


def test_rescore() -> None:
    """`rescore` calls no task, adds scores to the journal, and supersedes the old ones."""
    evaljournal(*COMMANDED)
    Path("mine.py").write_text("def exact(output, case):\n    return output.lower() == case.expected.strip('!').lower()\n")
    result = evaljournal("rescore", "--score", "mine.py:exact", "--score", "f1")
    state = fold(read("runs/qa/0001"))

    assert 0 == result.exit_code, result.stderr
    assert "3 outputs re-scored by exact, f1" in result.stderr
    assert 3 == len(events("runs/qa/0001", AttemptStarted))
    assert [2, 3] == [
        sum(event.value is True for event in events("runs/qa/0001", TrialScored) if event.version == version)
        for version in dict.fromkeys(event.version for event in events("runs/qa/0001", TrialScored) if event.scorer == "exact")
    ]
    assert (1.0, 3, "finished") == (state.scores["exact"].mean, state.completed, state.outcome)
    assert () == tuple(audit(read("runs/qa/0001"), rules=retry_rules).findings)
    assert verify("runs/qa/0001").ok
    shown = evaljournal("show", "chile").stdout
    assert "(superseded)" in shown
    assert [False] == [score["value"] for score in printed("show", "chile")["superseded_scores"]]


@pytest.mark.parametrize("records", [0, 2])
def test_rescore_on_a_full_disk(monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    """Outputs that a re-scoring could not record, because the disk is full, are counted as not scored."""
    evaljournal(*COMMANDED)
    writes, write = itertools.count(), type(DISK).write

    def write_or_fail(self: Files, fd: int, data: memoryview) -> int:
        if next(writes) >= records:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "write", write_or_fail)
        full = evaljournal("rescore", "--score", "f1")
    again = evaljournal("rescore", "--score", "f1")
    scored, unscored = (int(count) for count in re.findall("([0-9]+) (?:outputs? re-scored|not scored)", full.stderr))

    assert (3, 3, False) == (full.exit_code, scored + unscored, "already scored" in full.stderr), full.stderr
    assert (f"{scored} already scored" in again.stderr) == (scored > 0), again.stderr


def test_rescore_without_the_dataset() -> None:
    """The cases are read from the journal."""
    evaljournal(*COMMANDED)
    Path("qa.jsonl").unlink()

    assert 0 == evaljournal("rescore", "--all").exit_code


def test_rescore_skips_current_scores() -> None:
    """Without --all, outputs that the current version of a scorer has scored are skipped, and nothing is written."""
    evaljournal(*COMMANDED)
    before = len(list(read("runs/qa/0001")))
    skipped = evaljournal("rescore", "runs/qa/0001")
    after = len(list(read("runs/qa/0001")))
    repeated = evaljournal("rescore", "runs/qa/0001", "--all")

    assert "0 outputs re-scored by exact; 3 already scored" in skipped.stderr
    assert before == after
    assert "3 outputs re-scored by exact" in repeated.stderr
    assert 6 == len(events("runs/qa/0001", TrialScored))


def test_rescore_of_an_unfinished_run() -> None:
    """The existing outputs are scored; the run stays unfinished."""
    Path("some.sh").write_text('#!/bin/sh\n[ "$1" = lima ] || exit 127\necho LIMA\n')
    Path("some.sh").chmod(0o700)
    options = ("--slots", 1, "-s", "policy=fixed", "--max-failures", 0)
    evaljournal("run", "--data", "qa.jsonl", "--command", "./some.sh {question}", *options)
    result = evaljournal("rescore", "--score", "exact")

    assert 3 == result.exit_code
    assert {"peru": True} == scores("runs/qa/0001", "exact")
    assert ["failed_fast", "failed_fast"] == [event.reason for event in events("runs/qa/0001", RunStopped)]
    assert [] == events("runs/qa/0001", RunFinished)


def test_rescore_of_a_run_in_progress() -> None:
    """A run that is being written cannot be re-scored."""
    evaljournal(*COMMANDED)
    lock = Lock(Path("runs/qa/0001"), DISK)
    error = rejected("rescore", "--score", "f1")
    lock.release()

    assert "is a run in progress" in error


def test_rescore_with_a_judge(server: Server, name: str) -> None:
    """A judge can score recorded outputs; its answer is recorded."""
    evaljournal(*COMMANDED)
    url = server.url(name, "500,reply:verdict: correct", "v1")
    result = evaljournal("rescore", "--judge", "m", "--judge-url", url, "--slots", 1, "--json")

    assert 0 == result.exit_code, result.stderr
    assert {"peru": True, "cuba": True, "chile": True} == scores("runs/qa/0001", "judge")
    assert 3 == len([event for event in events("runs/qa/0001", Noted) if event.name == "evaljournal.judge"])
    assert 1.0 == orjson.loads(result.stdout)["scores"]["judge"]["mean"]


def test_a_rubric_with_the_input_column(server: Server, name: str) -> None:
    """A rubric can use the name of the input column, in a run and in `rescore`."""
    Path("fragen.jsonl").write_text('{"id": "peru", "frage": "peru?"}\n')
    judge = ("--judge", "m", "--judge-url", server.url(name, "reply:verdict: correct", "v1"), "--rubric", "{frage} {output}")
    evaljournal("run", "--data", "fragen.jsonl", "--input-key", "frage", "--command", "echo LIMA", *judge)
    repeated = evaljournal("rescore", "--all")

    assert 0 == repeated.exit_code, repeated.stderr
    assert 2 == sum("peru?" in request["body"] for request in server.requests(name))


def test_an_unauthorized_judge_stops_the_rescoring(server: Server, name: str) -> None:
    """An unauthorized key is reported once, with exit code 3; the same command continues."""
    evaljournal(*COMMANDED)
    line = ("rescore", "--judge", "m", "--judge-url", server.url(name, "401,reply:verdict: correct", "v1"), "--slots", 1)
    unauthorized = evaljournal(*line)
    repeated = evaljournal(*line)

    assert 3 == unauthorized.exit_code
    assert "0 outputs re-scored by judge; 3 not scored; run the same command again" in unauthorized.stderr
    assert "every other call would fail in the same way: evaljournal.BadStatus: 401" in unauthorized.stdout
    assert "\n  scorer judge: unauthorized\n" in unauthorized.stdout
    assert "unauthorized" == events("runs/qa/0001", RunStopped)[-1].reason
    assert 0 == repeated.exit_code, repeated.stderr
    assert "qa finished: 3 of 3 trials done" in repeated.stdout
    assert {"peru": True, "cuba": True, "chile": True} == scores("runs/qa/0001", "judge")
    assert () == tuple(audit(read("runs/qa/0001"), rules=retry_rules).findings)


def test_a_failed_rescore_does_not_fail_the_run() -> None:
    """A scorer that failed in `rescore` exits with 1 there; later only the run's own scorers count."""
    Path("mine.py").write_text("from evaljournal import Fatal\ndef broken(output, case):\n    raise Fatal('no use')\n")
    evaljournal(*COMMANDED)
    failed = evaljournal("rescore", "--score", "mine.py:broken")
    later = [evaljournal("rescore", "--score", "contains"), evaljournal("resume"), evaljournal("status")]
    gated = evaljournal("resume", "--fail-under", "broken=0.5")
    evaljournal("run", "--data", "qa.jsonl", "--command", "cat", "--score", "mine.py:broken")

    assert (1, [0, 0, 0], 1) == (failed.exit_code, [result.exit_code for result in later], gated.exit_code)
    assert "no score: 3 scorer errors (evaljournal.Fatal: no use)" in later[0].stdout
    assert "no score: 3 scorer errors (evaljournal.Fatal: no use)" in later[2].stdout
    assert 1 == evaljournal("resume").exit_code


@pytest.mark.parametrize(
    ("replies", "reason", "error"),
    [("401", "unauthorized", "401 Unauthorized"), ("404,day", "quota used up", "429 Too Many Requests")],
)
def test_a_judge_that_stops_the_run(server: Server, name: str, replies: str, reason: str, error: str) -> None:
    """The scorer is named once at the end, and by `status` until a session continues, also if another output failed before."""
    judge = ("--judge", "m", "--judge-url", server.url(name, f"{replies},reply:verdict: correct", "v1"))
    stopped = evaljournal("run", "--data", "qa.jsonl", "--command", "cat", *judge, "--slots", 1)
    status, summary = evaljournal("status"), printed("status")
    resumed = printed("resume")

    assert (3, 1) == (stopped.exit_code, stopped.stdout.count(error))
    assert f"\n  scorer judge: {reason}\n" in stopped.stdout
    assert re.search(r"\d outputs? without all scores · 0 errors", stopped.stdout)
    assert f"\n  scorer judge: {reason}: evaljournal.BadStatus: {error} from " in status.stdout
    assert (reason == "unauthorized") == bool(summary["unauthorized_scorer"])
    assert (None, None) == (resumed["stopped"], resumed["unauthorized_scorer"])
    assert reason not in evaljournal("status").stdout


def test_an_interrupted_rescore(server: Server, name: str) -> None:
    """Ctrl-C exits with 3 and keeps the scores; the run stays finished."""
    evaljournal(*COMMANDED)
    slow = ["rescore", "--judge", "m", "--judge-url", server.url(name, "reply:verdict: correct,hang", "v1"), "--slots", "1"]
    with process(*slow) as stopped:
        assert wait_until(lambda: len(server.requests(name)) >= 2)
        stopped.send_signal(signal.SIGINT)
        _, message = stopped.communicate()

    assert 3 == stopped.returncode, message
    assert 1 == len(scores("runs/qa/0001", "judge"))
    assert 2 == len(events("runs/qa/0001", SessionStarted))
    assert "interrupted" == events("runs/qa/0001", RunStopped)[-1].reason
    assert 0 == evaljournal("resume", "runs/qa/0001").exit_code
