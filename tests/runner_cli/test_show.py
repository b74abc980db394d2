"""`evaljournal show`."""

import itertools
import re
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import orjson
import pytest

from evaljournal.journal import Event, read
from evaljournal.journal.events import (
    AttemptFailed,
    AttemptStarted,
    AttemptTimedOut,
    Noted,
    PaceChanged,
    RetryScheduled,
    ScorerCallFailed,
    ScorerCallStarted,
    ScoringFailed,
    TrialFailed,
    TrialScored,
)
from evaljournal.journal.fact import evolve_fact
from evaljournal.replay.text import printable
from tests.journal.samples import (
    complete_run,
    enqueued,
    event_fields,
    flip,
    forge,
    opened,
    segment,
    session,
    started,
    trial,
    write_sync,
)
from tests.replay.trial_events import answered, failed
from tests.replay.trial_events import enqueued as case_enqueued
from tests.runner_cli.commands import evaljournal, printed, rejected

FAILED_TRIAL: list[Event] = [
    started(),
    session(),
    enqueued("peru", {"question": "Where?\n\tReally?"}),
    AttemptStarted(trial="peru", attempt=1, slot=3),
    Noted(name="tokens", value=7, trial="peru", attempt=1),
    AttemptFailed(
        trial="peru",
        attempt=1,
        error="RateLimited",
        message="slow down",
        traceback="Traceback (most recent call last):\n  File x\nRateLimited: slow down",
        category="rate_limited",
        retry_after=2.0,
        elapsed=0.25,
        usage={"tokens": 3},
    ),
    RetryScheduled(trial="peru", attempt=2, delay=0.0005, reason="rate_limited"),
    AttemptStarted(trial="peru", attempt=2, slot=0),
    AttemptTimedOut(trial="peru", attempt=2, timeout=30.0, elapsed=30.0),
    TrialFailed(trial="peru", attempts=2, reason="timed_out"),
]
"""A trial that is rate limited, retried, and failed: records 4 to 11, a millisecond apart."""


def shown(*arguments: Any) -> dict[str, Any]:
    """Return a trial as JSON."""
    answer: dict[str, Any] = printed("show", *arguments)
    return answer


def test_a_trial_as_text() -> None:
    """The text has the input, the times and every attempt with its error and waits; what is zero is omitted."""
    write_sync(Path("run"), FAILED_TRIAL)
    result = evaljournal("show", "run", "peru")

    assert (0, "") == (result.exit_code, result.stderr)
    assert [
        "peru  error (timed out), 2 attempts",
        'input     {"question":"Where?\\n\\tReally?"}',
        (
            "times     queued at 2026-11-15T00:00:00.004000Z · waited 1.5 ms · backoff 0.5 ms · attempts 3 ms · "
            "time to completion 5 ms"
        ),
        "attempt 1  rate limited after 2 ms  slot 3 · session 1 · seq 5–7 · waited 1 ms",
        "          RateLimited: slow down",
        "          Traceback (most recent call last):",
        "            File x",
        "          RateLimited: slow down",
        "          Retry-After: 2 s",
        '          usage {"tokens":3}',
        "          tokens 7",
        "          retry in 0.5 ms: rate limited",
        "attempt 2  timed out after 1 ms of 30 s  slot 0 · session 1 · seq 9–10 · waited 0.5 ms · backoff 0.5 ms",
    ] == result.stdout.splitlines()


def test_an_output_and_its_scores() -> None:
    """The scores come first, then the output, line by line."""
    unscored = ScoringFailed(trial="a", scorer="judge", version="1", error="OSError", message="gone", elapsed=0.0)
    trial_events = trial("a", "Lima\n\x1b[31mPeru")
    write_sync(Path("run"), [started(), session(), *trial_events[:-1], unscored, trial_events[-1]])
    result = evaljournal("show", "run", "a")

    assert [
        "score     exact pass",
        "score     judge error: OSError: gone",
        "output    Lima",
        "          \\x1b[31mPeru",
    ] == result.stdout.splitlines()[1:5]


def test_notes() -> None:
    """Notes keep their order; nested ones have a line each, short ones in a row share a line."""
    judged = {"model": "big", "prompt": "Judge whether " * 20, "reply": "purple"}
    notes = [("tokens", 7), ("cost", 0.5), ("judge", judged), ("rank", 1)]
    trial_events = trial("a")
    notes_events = [Noted(name=name, value=value, trial="a", attempt=1) for name, value in notes]
    write_sync(Path("run"), [started(), session(), *trial_events[:-1], *notes_events, trial_events[-1]])
    lines = evaljournal("show", "run", "a").stdout.splitlines()

    index = lines.index("          tokens 7 · cost 0.5")
    assert [
        f"          judge: model big · prompt {printable(judged['prompt'])} · reply purple",
        "          rank 1",
    ] == lines[index + 1 : index + 3]


def test_a_trial_as_json() -> None:
    """JSON is complete, the waits of each attempt add up, and the names are stable."""
    write_sync(Path("run"), FAILED_TRIAL)
    details = shown("run", "peru")

    assert ("run", None, "failed", "timed_out") == (details["path"], details["problem"], details["stage"], details["reason"])
    assert {"question": "Where?\n\tReally?"} == details["input"]
    first, second = details["attempts"]
    assert ["rate_limited", "timed_out"] == [first["outcome"], second["outcome"]]
    assert (3, 5, 7, 2.0, [["tokens", 7]]) == tuple(first[name] for name in ("slot", "seq", "end_seq", "retry_after", "notes"))
    assert details["times"]["queue_time"] == pytest.approx(first["queue_time"] + second["queue_time"])
    assert details["times"]["backoff_time"] == pytest.approx(first["backoff_time"] + second["backoff_time"])
    assert details["times"]["run_time"] == pytest.approx(first["run_time"] + second["run_time"])


def test_a_trial_as_of_a_record() -> None:
    """As of an earlier record, an open attempt is in flight and later records are ignored."""
    write_sync(Path("run"), FAILED_TRIAL)
    result = evaljournal("show", "run", "peru", "--at", 6)

    assert "peru  running, 1 attempt" == result.stdout.splitlines()[0]
    assert "attempt 1  in flight after 1 ms  slot 3 · session 1 · seq 5 · waited 1 ms" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("e", "run has no trial 'e'; `evaljournal show run` lists its trials\n"),
        ("aa", "run has no trial 'aa'; did you mean 'a'?"),
        ("d --at 5", "run has no trial 'd' at record 5"),
        ("zzz --definition", "run has no trial 'zzz'; `evaljournal show run` lists its trials\n"),
        ("a --at 99", "run has no record 99; the last is"),
        ("--score exakt=fail", "the run has no score 'exakt'; did you mean 'exact'?"),
        ("--score exact", "--score exact needs a value: exact=fail"),
    ],
)
def test_usage_errors(arguments: str, message: str) -> None:
    """An unknown trial, record or score exits with 2 and suggestions."""
    several_trials()

    assert message in rejected("show", "run", *arguments.split())


def test_the_list_of_trials() -> None:
    """Without a trial, all are listed with scores, output or error, input, status and latency."""
    unscored = ScoringFailed(trial="b", scorer="judge", version="1", error="OSError", message="gone", elapsed=0.0)
    b = trial("b")
    write_sync(Path("run"), [*FAILED_TRIAL, *trial("a"), *b[:-1], unscored, b[-1], enqueued("c\x1b", 50 * "x\x1b")])
    result, listed = evaljournal("show", "run"), shown("run")

    assert (0, "") == (result.exit_code, result.stderr)
    assert [
        ["TRIAL", "exact", "judge", "OUTPUT", "INPUT", "STATUS", "ATTEMPTS", "LATENCY"],
        ["peru", "–", "–", "timed out after 30 s", '{"question":"Where?\\n\\tReally?"}', "error (timed out)", "2", "–"],
        ["a", "pass", "–", "Lima", "Where is the capital?", "output", "1", "0.25 s"],
        ["b", "pass", "error", "Lima", "Where is the capital?", "output", "1", "0.25 s"],
        ["c\\x1b", "–", "–", "–", 5 * "x\\x1b" + "x…x1b" + 2 * "x\\x1b", "queued", "0", "–"],
    ] == [re.split(r"  +", line) for line in result.stdout.splitlines()]
    assert ({"exact": True}, "Where is the capital?") == (listed["trials"][1]["scores"], listed["trials"][1]["input"])
    first = listed["trials"][0]
    assert ("failed", "timed_out", 2, None) == tuple(first[name] for name in ("stage", "reason", "attempts", "latency"))
    assert ["peru", "a"] == [entry["trial"] for entry in shown("run", "--at", 16)["trials"]]


def test_the_list_of_large_outputs() -> None:
    """The values of a trial are shortened before those of the next one are read."""
    size, count = 200_000, 40
    write_sync(
        Path("run"), [started(), session(), *itertools.chain(*(answered(f"c{i}", output="x" * size) for i in range(count)))]
    )
    evaljournal("show", "run")
    tracemalloc.start()
    try:
        result = evaljournal("show", "run")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert count == result.stdout.count("x…x")
    assert count * size // 2 > peak


def test_adopted_changes_of_the_task() -> None:
    """The version of a trial has the changes of parameters, also if their names begin like other changes."""
    first = evolve_fact(started(), definition={"task": {"name_style": "short", "model": "a"}})
    task = {"name_style": "long", "model": "a"}
    changes = {"task_fingerprint": "t2", "dataset_fingerprint": "d2", "evaluation": "cities", "scorers": {"tone": "v1"}}
    adopting = evolve_fact(session(2), adopted=changes, definition={"task": task})
    write_sync(Path("run"), [first, session(), *answered("a"), adopting, *answered("b")])

    assert "version   1 of 2 of the task; session 2 adopted name_style short → long\n" in evaljournal("show", "run", "a").stdout


def test_a_trial_of_a_damaged_run() -> None:
    """A trial is shown up to the damage, with exit code 4; an unknown one may be after it."""
    write_sync(Path("run"), complete_run())
    flip(segment(Path("run")), list(read("run"))[11].offset + 60)
    damaged, missing = evaljournal("show", "run", "case-2"), evaljournal("show", "run", "case-3")

    assert (4, True) == (damaged.exit_code, damaged.stdout.startswith("case-2  being scored, 1 attempt"))
    assert (4, "") == (missing.exit_code, missing.stdout)
    assert "run is damaged at record 12" in damaged.stderr
    assert "run is damaged at record 12" in missing.stderr
    assert "run is damaged at record 12" in shown("run", "case-1")["problem"]


def test_a_missing_blob() -> None:
    """A missing blob is shown as such, with exit code 4."""
    write_sync(Path("run"), [started(), session(), *trial("a", ["x" * 100] * 3_000)])
    assert ["x" * 100] * 3_000 == shown("run", "a")["output"]
    assert "… 2,962 more lines; --json has all" in evaljournal("show", "run", "a").stdout

    shutil.rmtree("run/blobs")
    result = evaljournal("show", "run", "a")
    assert (4, True) == (result.exit_code, "(missing blob of " in result.stdout)
    assert "is missing" in result.stderr
    assert "blob" in shown("run", "a")["output"]


def test_an_invalid_record() -> None:
    """An invalid record exits with 4; it is not reported as a bug."""
    fact = {"type": "attempt_timed_out", "trial": "a", "attempt": 1, "timeout": "long", "elapsed": 1.0}
    forge(Path("run"), [opened(), started(), session(), *trial("a")[:2], fact])
    result = evaljournal("show", "run", "a")

    assert (4, True) == (result.exit_code, "record 6 has a correct hash but is invalid" in result.stderr)


@pytest.mark.parametrize("command", [["show", "run"], ["show", "run", "a", "--steps", "full"], ["report", "run"]])
@pytest.mark.parametrize("depth", [260, 600])
def test_deeply_nested_values(depth: int, command: list[str]) -> None:
    """Values of a foreign run that are nested deeper than its writer allows are shown; the run is not damaged."""
    deep: Any = orjson.loads("[" * depth + "]" * depth)
    fields = {"trial_enqueued": ("input", "expected", "metadata"), "attempt_succeeded": ("output", "usage")}
    step = {"type": "step_completed", "trial": "a", "attempt": 1, "step": 1, "parent": 0, "name": "f", "kind": "tool"}
    step |= {"fingerprint": "", "input": deep, "output": deep, "elapsed": 0.1}
    entries: list[dict[str, Any]] = []
    for event in map(event_fields, answered("a")):
        if event["type"] == "attempt_succeeded":
            entries += [step, {"type": "noted", "trial": "a", "attempt": 1, "name": "n", "value": deep}]
        entries.append(event | dict.fromkeys(fields.get(event["type"], ()), deep))
    forge(Path("run"), [opened(), event_fields(started()), event_fields(session()), *entries])
    result = evaljournal(*command)

    assert (0, False) == (result.exit_code, "damage" in result.stderr)


def test_calls_of_scorers() -> None:
    """Each call of a scorer is shown with its outcome, error, retry and waits, as text and in JSON."""
    key, trial_events = "scorer:judge", trial("a")
    call_failed = ScorerCallFailed(
        trial="a",
        scorer="judge",
        call=1,
        error="RateLimited",
        message="slow\x1b down",
        category="rate_limited",
        retry_after=2.0,
        elapsed=0.001,
        delay=0.0,
    )
    calls: list[Event] = [
        PaceChanged(after=4.2, reason="rate_limit", key=key),
        ScorerCallStarted(trial="a", scorer="judge", call=1, key=key),
        call_failed,
        ScorerCallStarted(trial="a", scorer="judge", call=2, key=key),
        TrialScored(trial="a", scorer="judge", version="1", value=True, elapsed=0.001),
    ]
    write_sync(Path("run"), [started(), session(), *trial_events[:-1], *calls, trial_events[-1]])
    lines, details = evaljournal("show", "run", "a").stdout.splitlines(), shown("run", "a")

    assert [
        "score     exact pass",
        "score     judge pass",
        "output    Lima",
    ] == lines[1:4]
    assert [
        "call 1    judge rate limited after 1 ms  session 1 · seq 9 · waited 1 ms (pace: 4.2 starts/s)",
        "          RateLimited: slow\\x1b down",
        "          Retry-After: 2 s",
        "          retry in 0 s",
        "call 2    judge succeeded after 1 ms  session 1 · seq 11 · waited 1 ms (pace: 4.2 starts/s)",
    ] == lines[-5:]
    assert [("rate_limited", "pace"), ("succeeded", "pace")] == [
        (call["outcome"], call["waits"][0]["reason"]) for call in details["scorer_calls"]
    ]


def test_what_an_attempt_waited_for() -> None:
    """The longest wait of an attempt is shown with its reason; JSON lists all."""
    trial_events = trial("a")
    paced = PaceChanged(after=4.2, reason="rate_limit")
    write_sync(Path("run"), [started(), session(), trial_events[0], paced, *trial_events[1:]])

    assert "waited 2 ms (pace: 4.2 starts/s)\n" in evaljournal("show", "run", "a").stdout
    (attempt,) = shown("run", "a")["attempts"]
    assert [{"reason": "pace", "seconds": pytest.approx(0.001), "text": "pace: 4.2 starts/s"}] == attempt["waits"]


def several_trials() -> None:
    """Write a run with a failing score, an error, an error of a scorer, labels and numbers."""
    unscored = ScoringFailed(trial="c", scorer="exact", version="1", error="OSError", message="gone", elapsed=0.0)
    passing = answered("a", {"exact": True, "tone": "kind", "near": 1.0})
    failing = [
        evolve_fact(case_enqueued("b"), expected="Lima"),
        *answered("b", {"exact": False, "near": 0.5}, output="Lina")[1:],
    ]
    c = answered("c", {"tone": "rude"})
    write_sync(
        Path("run"), [started(), session(), *passing, *failing, *c[:-1], unscored, c[-1], *failed("d", message="no city")]
    )


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--failing"], ["b"]),
        (["--errors"], ["c", "d"]),
        (["--failing", "--errors"], ["b", "c", "d"]),
        (["--score", "exact=fail"], ["b"]),
        (["--score", "exact=pass"], ["a"]),
        (["--score", "exact=1.0"], ["a"]),
        (["--score", "exact=0"], ["b"]),
        (["--score", "near=1"], ["a"]),
        (["--score", "tone=rude"], ["c"]),
        (["--score", "near=0.50"], ["b"]),
        (["--score", "near=x"], []),
        (["--score", "exact=pass", "--score", "tone=kind"], ["a"]),
        (["--failing", "--score", "exact=pass"], []),
        (["a", "--failing"], []),
    ],
)
def test_filters(options: list[str], names: list[str]) -> None:
    """The list can be restricted to trials with a failing score, an error or some score."""
    several_trials()

    assert names == [entry["trial"] for entry in shown("run", *options)["trials"]]


def test_output_and_expected_output_of_failing_trials() -> None:
    """The list has outputs and expected outputs; values of different types do not look the same."""
    several_trials()
    number = [evolve_fact(case_enqueued("n"), expected="42"), *answered("n", {"exact": False}, output=42)[1:]]
    write_sync(Path("numbers"), [started(), session(), *number])

    rows = [re.split(r"  +", line) for line in evaljournal("show", "run", "--failing").stdout.splitlines()]
    assert ["TRIAL", "exact", "tone", "near", "OUTPUT", "EXPECTED", "INPUT", "STATUS", "ATTEMPTS", "LATENCY"] == rows[0]
    assert [["b", "fail", "–", "0.5", "Lina", "Lima", "b", "output", "1", "0.25 s"]] == rows[1:]
    assert 'n      fail   42      "42"      n' in evaljournal("show", "numbers").stdout
    entry = shown("run", "--failing")["trials"][0]
    assert ("Lina", "Lima", {"exact": False, "near": 0.5}) == (entry["output"], entry["expected"], entry["scores"])


def test_the_outputs_of_a_case_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case with several trials has the outputs of its variants side by side, repeat by repeat; long ones are wrapped."""
    monkeypatch.setenv("COLUMNS", "60")
    outputs = {"mini": "Lima is the capital of Peru", "large": "Lima"}
    trials = [
        answered("peru", {"exact": name == "large"}, output=output, variant=name, repeat=repeat)
        for name, output in outputs.items()
        for repeat in (1, 2)
    ]
    write_sync(Path("run"), [started(), session(), *itertools.chain(*trials), *failed("chad")])
    result = evaljournal("show", "run", "peru")

    first, second = (
        [
            f"peru@mini{repeat}".ljust(31) + f"peru@large{repeat}",
            "exact fail".ljust(31) + "exact pass",
            "Lima is the capital of Peru".ljust(31) + "Lima",
        ]
        for repeat in ("", "#2")
    )
    assert ["peru  4 trials", "input     peru", "", *first, "", *second] == result.stdout.splitlines()


def test_wide_outputs_are_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide characters, which take two columns of a terminal, do not move the columns to the right of them."""
    monkeypatch.setenv("COLUMNS", "60")
    outputs = {"mini": "東京都は日本の首都です。人口は千四百万人です。", "large": "Tokyo"}
    trials = [answered("tokyo", output=output, variant=name) for name, output in outputs.items()]
    write_sync(Path("run"), [started(), session(), *itertools.chain(*trials)])

    listed = evaljournal("show", "run").stdout.splitlines()
    assert ["tokyo@mini   東京都は日本の首都です。人…百万人です。", "tokyo@large  Tokyo" + " " * 34] == [
        line.partition("  tokyo  ")[0] for line in listed[1:]
    ]
    side_by_side = evaljournal("show", "run", "tokyo").stdout.splitlines()
    assert ["東京都は日本の首都です。人口   Tokyo", "は千四百万人です。"] == side_by_side[-2:]


def test_numbers_neither_pass_nor_fail() -> None:
    """If no score of a run passes or fails, `--failing` says so."""
    write_sync(Path("run"), [started(), session(), *answered("a", {"near": 0.5})])
    result = evaljournal("show", "run", "--failing")

    message = "no trial matches; no score of this run passes or fails, list all: evaljournal show\n"
    assert ("", message) == (result.stdout, result.stderr)
    assert "no trial matches\n" == evaljournal("show", "run", "--errors").stderr


def test_scorer_errors_of_a_case_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scorer has its row in every column, also where it failed, so that outputs are in one row."""
    monkeypatch.setenv("COLUMNS", "60")
    trials = [
        answered("peru", {"exact": True, "length": 4}, variant="mini"),
        answered("peru", {"exact": True, "length": ValueError()}, variant="large"),
    ]
    write_sync(Path("run"), [started(), session(), *itertools.chain(*trials)])
    lines = evaljournal("show", "run", "peru").stdout.splitlines()

    assert ["length 4".ljust(31) + "length error", "Lima".ljust(31) + "Lima"] == lines[-2:]
