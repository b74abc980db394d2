"""`evaljournal show`: the steps of each attempt."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.journal import Event
from evaljournal.journal.events import AttemptInterrupted, AttemptStarted, StepCompleted, StepReused
from evaljournal.replay.runs.trajectory import StepDetails, steps_with_depth
from tests.journal.samples import enqueued, session, started, write_sync
from tests.replay.agent_run import QUESTION, agent_run, completed, nested_run
from tests.runner_cli.commands import evaljournal, printed


def shown(trial: str) -> Any:
    """Return a trial of the agent's run as JSON."""
    return printed("show", "run", trial)


def lines(*args: str) -> list[str]:
    """Return the lines about steps, without their indentation."""
    return [line.strip() for line in evaljournal("show", "run", *args).stdout.splitlines()]


@pytest.fixture(autouse=True)
def run(tmp_path: Path) -> Path:
    """Write the run of an agent into the working directory."""
    return agent_run(tmp_path / "run")


def test_json() -> None:
    """JSON has every step with its complete input, and what each attempt reused."""
    first, second = shown("weather")["attempts"]
    names = ("number", "parent", "kind", "outcome", "reused_from", "elapsed")

    assert [
        (1, 0, "model", "completed", 0, 0.001),
        (2, 0, "tool", "completed", 0, 0.001),
        (3, 0, "model", "failed", 0, 0.001),
    ] == [tuple(step[name] for name in names) for step in first["steps"]]
    assert [(1, "reused"), (2, "reused"), (3, "completed"), (5, "completed"), (4, "completed")] == [
        (step["number"], step["outcome"]) for step in second["steps"]
    ]
    assert ["system", "user", "assistant", "tool"] == [message["role"] for message in second["steps"][2]["input"]["messages"]]
    assert 1 == len(second["steps"][2]["input"]["tools"])
    assert [(0, 0, 0), (2, 0, 0)] == [
        (attempt["reused_steps"], attempt["unused_steps"], attempt["diverged_at"]) for attempt in (first, second)
    ]


def test_divergence() -> None:
    """An attempt whose calls differ from the recorded ones has diverged at its first executed step."""
    attempt = shown("route")["attempts"][1]

    assert (1, 1, 2) == (attempt["reused_steps"], attempt["unused_steps"], attempt["diverged_at"])
    assert "reused 1 of 2 steps and diverged at step 2" in lines("route")
    assert "reused 2 of 2 steps and continued at step 3" in lines("weather")


def test_the_first_difference(tmp_path: Path) -> None:
    """`show` prints where the request of a diverged step differs, and which fields were not compared."""
    system = "Today is "

    def step(attempt: int, number: int, text: str) -> StepCompleted:
        request = {"metadata": {"user_id": f"session {attempt}"}, "messages": [{"role": "user", "content": text}]}
        return completed("a", attempt, number, "messages m", kind="model", input=request, output=1)

    records: list[Event] = [
        *(started(), session(1), enqueued("a"), AttemptStarted(trial="a", attempt=1, slot=0)),
        *(step(1, 1, "first"), step(1, 2, f"{system}Tuesday{'.' * 200}")),
        session(2),
        AttemptInterrupted(trial="a", attempt=1, reason="process_died"),
        AttemptStarted(trial="a", attempt=2, slot=0, reuses=1),
        StepReused(trial="a", attempt=2, step=1, completed_seq=6),
        step(2, 2, f"{system}Wednesday{'.' * 200}"),
    ]
    write_sync(tmp_path / "dated", records)
    text = [line.strip() for line in evaljournal("show", "dated", "a").stdout.splitlines()]
    attempt = printed("show", "dated", "a")["attempts"][1]

    assert "compared without: metadata" in text
    recorded, asked = f'"content":"Today is Tuesday{"." * 53}', f'"content":"Today is Wednesday{"." * 51}'
    assert f"recorded: {recorded}" in text
    assert f"asked:    {asked}" in text
    assert {"recorded": recorded, "asked": asked} == attempt["difference"]


def test_a_reused_step_includes_the_steps_inside_it(tmp_path: Path) -> None:
    """The steps that a reused step had called are not executed again, and do not count as divergence."""
    nested_run(tmp_path / "nested")
    attempt = printed("show", "nested", "a")["attempts"][1]

    assert (1, 0, 0) == (attempt["reused_steps"], attempt["unused_steps"], attempt["diverged_at"])
    assert "reused 1 of 1 step and continued at step 2" in evaljournal("show", "nested", "a").stdout


def test_short() -> None:
    """Each step is one line: number, kind, time, name, input, output, tokens and cost; nested ones are indented."""
    assert [
        '1  model    reused  chat.completions gpt-5-mini  How warm is <b>Lima</b>? → get_weather({"city":"Lima"})',
        '2  tool     reused  get_weather  {"city":"Lima"} → {"celsius":21}',
        '3  model      1 ms  chat.completions gpt-5-mini  {"celsius":21} → It is 21 °C in Lima.  (100 in, 20 out, $0.250)',
        '4  other      2 ms  check  {"answer":"It is 21 °C in Lima."} → true',
        '5  tool       1 ms    units  {"of":"°C"} → Celsius',
    ] == lines("weather")[-5:]
    assert any(line.endswith("→ error: BadStatus: 429 Too Many Requests") for line in lines("weather"))


def test_full() -> None:
    """All messages and tool calls are shown, those of an earlier step once."""
    text = "\n".join(lines("weather", "--steps", "full"))

    assert 1 == text.count(f"user      {QUESTION}")
    assert 'reply     get_weather({"city":"Lima"})' in text
    assert '(2 messages as in step 1)\nassistant get_weather({"city":"Lima"})\ntool      {"celsius":21}\nreply' in text


def test_a_result_that_could_not_be_read_is_reported() -> None:
    """The note of a step that is executed again because of a missing blob is shown in words."""
    assert "step walk is executed again; its result could not be read: blobs/ab/cd is missing" in lines("route")


def test_missing_blob(tmp_path: Path) -> None:
    """A step whose result is missing is shown without it, with exit code 4."""
    step = completed("a", 1, 1, "read", kind="tool", output="x" * 300_000)
    write_sync(tmp_path / "large", [started(), session(), enqueued("a"), AttemptStarted(trial="a", attempt=1, slot=0), step])
    (blob,) = (path for path in (tmp_path / "large" / "blobs").rglob("*") if path.is_file())
    blob.unlink()

    for options in ([], ["--steps", "full"], ["--json"]):
        result = evaljournal("show", "large", "a", *options)
        assert (4, True) == (result.exit_code, "300,002 bytes" in result.stdout or '"bytes": 300002' in result.stdout)


@pytest.mark.parametrize("steps", ["short", "full"])
@pytest.mark.parametrize("kind", ["model", "tool"])
def test_hostile_text(tmp_path: Path, steps: str, kind: Any) -> None:
    """Names, inputs and outputs cannot control the terminal."""
    attack = "\x1b[31m\u202e\x07"
    step: StepCompleted = completed(
        "a", 1, 1, attack, kind=kind, input={"messages": [{"role": attack, "content": attack}]}, output=attack
    )
    write_sync(tmp_path / "foreign", [started(), session(), enqueued("a"), AttemptStarted(trial="a", attempt=1, slot=0), step])
    result = evaljournal("show", "foreign", "a", "--steps", steps)

    assert (0, True) == (result.exit_code, "\\x1b" in result.stdout)
    assert not {"\x1b", "\u202e", "\x07"} & set(result.stdout)


@given(st.lists(st.integers(1, 6).flatmap(lambda number: st.tuples(st.just(number), st.integers(0, number - 1))), max_size=8))
def test_every_step_is_shown_once(numbers: list[tuple[int, int]]) -> None:
    """Whichever earlier step a journal names as the caller of a step, each step is yielded once, and after its caller."""
    steps = [
        StepDetails(number=number, name="", kind="other", parent=parent, seq=0, t=0.0, elapsed=0.0, input=None)
        for number, parent in numbers
    ]
    yielded = list(steps_with_depth(steps))

    assert sorted(numbers) == sorted((step.number, step.parent) for _, step in yielded)
    numbers_so_far: set[int] = set()
    for depth, step in yielded:
        assert depth == 0 or step.parent in numbers_so_far
        numbers_so_far.add(step.number)
