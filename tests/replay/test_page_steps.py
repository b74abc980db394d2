"""The steps on a page: complete, of limited size, and absent from a run without steps."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from evaljournal.journal import read
from evaljournal.journal.events import AttemptStarted, AttemptSucceeded, Noted
from evaljournal.replay import LoadedRun
from evaljournal.replay.page import page_content
from evaljournal.replay.page.page_columns import PageCursor, columns, encode_json
from evaljournal.replay.page.page_content import Content
from tests.journal.samples import enqueued, session, started, write_sync
from tests.replay.agent_run import agent_run, completed, request


def page_of(path: Path) -> tuple[Content, LoadedRun]:
    """Return the content of a page, and the run."""
    run, content = LoadedRun(path), Content()
    for record in read(path, load_blobs=False):
        content.apply(run, record)
    return content, run


def steps_of(content: Content, run: LoadedRun, cursor: PageCursor = PageCursor()) -> Any:  # noqa: B008  # immutable
    """Return the columns of steps; None if there are none."""
    return orjson.loads(b"".join(encode_json(columns(content, run.state, cursor)))).get("steps")


def long_run(path: Path, *, steps: int, chars: int, **fields: Any) -> Path:
    """Write a run of one attempt with steps whose outputs are long."""
    calls = [completed("a", 1, number, "read", output="x" * chars, **fields) for number in range(1, steps + 1)]
    write_sync(path, [started(), session(), enqueued("a"), AttemptStarted(trial="a", attempt=1, slot=0), *calls])
    return path


def test_columns(tmp_path: Path) -> None:
    """Every step has its number, kind, name, outcome and times; a reused one names the record of the completed step."""
    steps = steps_of(*page_of(agent_run(tmp_path / "run")))

    assert [1, 2, 3, 1, 2, 3, 5, 4, 1, 2, 3, 1, 2] == steps["number"]
    assert [0, 0, 1, 2, 2, 0, 3, 0, 0, 0, 3, 2, 0] == steps["outcome"]
    assert [0, 0, 0, 6, 7, 0, 0, 0, 0, 0, 0, 22, 0] == steps["completed_seq"]
    assert ["chat.completions gpt-5-mini", "get_weather", "units", "check", "plan", "walk", "rest"] == steps["names"]
    assert [0, 1, 0] == [steps["kind"][index] for index in (0, 1, 2)]
    call = ["get_weather", ['{"city":"Lima"}'], "call_1"]
    assert ([["assistant", "", [call]], ["tool", '{"celsius":21}', [], "call_1"]], 1) == (
        steps["content"][5]["messages"],
        steps["content"][5]["continues"],
    )
    assert ["assistant", "", [call]] == steps["content"][0]["reply"]
    assert (0, 0) == (steps["content"][3], steps["omitted"])


def test_updates_have_new_steps_only(tmp_path: Path) -> None:
    """A live page gets the steps that have ended since its last update."""
    path = agent_run(tmp_path / "run")
    content, run = Content(), LoadedRun(path)
    received: list[int] = []
    cursor = PageCursor()
    for record in read(path, load_blobs=False):
        content.apply(run, record)
        if record.seq % 4 == 0:
            received += (steps_of(content, run, cursor) or {"number": []})["number"]
            cursor = PageCursor.end(content)
    received += steps_of(content, run, cursor)["number"]

    assert steps_of(content, run)["number"] == received


def test_a_run_without_steps(tmp_path: Path) -> None:
    """A page without steps has no columns for them."""
    write_sync(tmp_path / "run", [started(), session(), enqueued("a"), AttemptStarted(trial="a", attempt=1, slot=0)])

    assert steps_of(*page_of(tmp_path / "run")) is None


def test_the_number_of_steps_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps beyond the limit are counted."""
    monkeypatch.setattr(page_content, "MAX_STEPS", 3)
    steps = steps_of(*page_of(long_run(tmp_path / "run", steps=5, chars=1)))

    assert ([1, 2, 3], 2) == (steps["number"], steps["omitted"])


def test_the_text_of_steps_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All values together have a maximum length; steps after it have none, and the page reports that."""
    monkeypatch.setattr(page_content, "MAX_CHARS", 20_000)
    contents = steps_of(*page_of(long_run(tmp_path / "run", steps=600, chars=1_000)))["content"]
    shown = [len(content["output"]["beginning"]) for content in contents if "output" in content]

    assert 20_000 // 128 == shown[0]
    assert sum(shown) <= 20_000
    assert sorted(shown, reverse=True) == shown
    assert 1 == contents[-1]["shortened"]


def test_long_conversations_are_shortened(tmp_path: Path) -> None:
    """A long conversation shows its last messages."""
    messages = [{"role": "user", "content": "y" * 2_000} for _ in range(80)]
    path = long_run(tmp_path / "run", steps=1, chars=1, kind="model", input=request(*messages))
    (content,) = steps_of(*page_of(path))["content"]

    assert [["", "(30 earlier messages)"], *[["user", "y" * 2_000]] * 50] == content["messages"]


def judged_run(path: Path, *values: Any) -> Path:
    """Write a run with calls of a judge, all for one output."""
    notes = [Noted(name="evaljournal.judge", value=value, trial="a", attempt=1) for value in values]
    attempt = AttemptStarted(trial="a", attempt=1, slot=0), AttemptSucceeded(trial="a", attempt=1, output="x", elapsed=0.0)
    write_sync(path, [started(), session(), enqueued("a"), *attempt, *notes])
    return path


def judge_calls_of(path: Path) -> Any:
    """Return the columns of the calls of judges; None if there are none."""
    content, run = page_of(path)
    return orjson.loads(b"".join(encode_json(columns(content, run.state)))).get("judge_calls")


def test_calls_of_judges(tmp_path: Path) -> None:
    """A page has the prompts and replies of judges, and not among the notes."""
    call = {"scorer": "fair", "model": "gpt-4o", "prompt": "Is it right?", "reply": "verdict: correct"}
    large_call = {
        "scorer": "fair",
        "model": "gpt-4o",
        "prompt": "y" * 300_000,
        "reminder": "Reply.",
        "reply": "verdict: correct",
    }
    path = judged_run(tmp_path / "run", call, large_call, "a foreign value")

    calls = judge_calls_of(path)

    assert ([7, 1, 1], [0, 0, 0]) == (calls["seq"], calls["span"])
    shortened_prompt = {"beginning": "y" * 16_384, "length": 300_000}
    assert [call, {**large_call, "prompt": shortened_prompt}, {"scorer": "", "model": ""}] == calls["content"]
    content, run = page_of(path)
    assert [0] == list(columns(content, run.state)["spans"]["details"])
    assert judge_calls_of(agent_run(tmp_path / "agent")) is None


def test_large_values_are_truncated(tmp_path: Path) -> None:
    """A page has the beginning of a value in a blob."""
    (content,) = steps_of(*page_of(long_run(tmp_path / "run", steps=1, chars=300_000)))["content"]

    assert {"beginning": "x" * 16_384, "bytes": 300_002} == content["output"]
