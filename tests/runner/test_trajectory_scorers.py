"""Scorers that get the steps of an attempt: what they get, and what the built-in ones return."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from evaljournal import Case, Fatal, RateLimited, UsageError, durable, scorers
from evaljournal.journal import read
from evaljournal.journal.events import ScoringFailed, TrialScored
from evaljournal.replay.runs.trajectory import StepDetails, tool_calls
from evaljournal.runner.scorers.scorer import ScorerInput
from evaljournal.runner.scorers.trajectory import trajectory_text
from evaljournal.runner.sessions.rescore import Rescoring
from tests.journal.disk import SimulatedDisk
from tests.journal.samples import inline
from tests.runs import PATH, AnyEvaluation, define, define_real, events, run_killed, run_real, run_virtual


@durable(kind="model")
async def ask(messages: list[str]) -> dict[str, Any]:
    """Call a model that requests a tool twice."""
    await trio.sleep(1)
    name = ["search", "book", ""][len(messages) // 2]
    calls = [{"id": name, "function": {"name": name, "arguments": '{"city": "Lima"}'}}] if name else []
    return {"content": f"reply {len(messages)}", "tool_calls": calls}


@durable(kind="tool")
def search(city: str) -> tuple[str, int]:
    """Find something; the result is recorded as a list."""
    return city, 3


class Agent:
    """An agent that is rate limited once for case a, after three steps."""

    def __init__(self) -> None:
        self.rate_limited = {"a"}
        self.__name__ = "agent"

    async def __call__(self, question: str) -> str:
        """Take four steps."""
        messages = [question]
        for number in range(3):
            reply = await ask(messages)
            messages += [reply["content"], "tool result"]
            if number == 0:
                search("Lima")
            elif number == 1 and question in self.rate_limited:
                self.rate_limited.remove(question)
                raise RateLimited(1.0)
        return messages[-2]


def scored(agent: Any, scorer: Callable[..., Any], **options: Any) -> AnyEvaluation:
    """Return an evaluation of an agent with one scorer."""
    evaluation = define(agent, [Case(name="a", input="a"), Case(name="b", input="b")], policy="fixed", **options)
    evaluation.score(scorer)
    return evaluation


async def test_the_trajectory_is_the_same_live_on_resume_and_on_rescore() -> None:
    """A scorer gets the steps of the attempt that returned the output, reused ones included, whenever it is called."""
    calls: dict[str, dict[str, list[StepDetails]]] = {}
    disk, agent, is_blocked = SimulatedDisk(), Agent(), True

    async def steps(trajectory: list[StepDetails], case: Case) -> bool:
        if is_blocked:
            calls.setdefault("live", {})[case.name] = trajectory
            await trio.sleep_forever()
        calls.setdefault("rescore" if "resume" in calls and len(calls["resume"]) == 2 else "resume", {})[case.name] = trajectory
        return True

    disk = await run_killed(scored(agent, steps, timeout=60.0), disk, after=20.0)
    is_blocked = False
    evaluation = scored(agent, steps, timeout=60.0)
    await run_virtual(evaluation, disk, resume=True)
    await Rescoring(evaluation, PATH, all_outputs=True, files=disk, in_thread=inline).rescore()
    live = calls["live"]["a"]

    assert {"live", "resume", "rescore"} == calls.keys()
    assert calls["live"] == calls["resume"] == calls["rescore"]
    assert [(1, "ask", "model", 1), (2, "search", "tool", 1), (3, "ask", "model", 1), (4, "ask", "model", 0)] == [
        (step.number, step.name, step.kind, step.reused_from) for step in live
    ]
    assert [0, 0, 0, 0] == [step.reused_from for step in calls["live"]["b"]]
    assert ["a", "reply 1", "tool result", "reply 3", "tool result"] == live[-1].input["messages"]
    assert ["Lima", 3] == live[1].output


def test_a_trajectory_that_cannot_be_read_fails_its_scorers(path: Path) -> None:
    """Without the blob of a step there is no score, and the other scorers are not affected."""

    @durable
    def big(text: str) -> str:
        return text * 100_000

    def first(text: str) -> str:
        return big(text)[:3]

    evaluation = define_real(first)
    run_real(evaluation, path)
    for blob in (path / "blobs").glob("*/*"):
        blob.unlink()
    evaluation.score(scorers.max_steps(1))
    evaluation.score(scorers.regex("lim"))
    trio.run(Rescoring(evaluation, path).rescore)

    recorded = [record.event for record in read(path, load_blobs=False)]

    assert ["max_steps"] == [event.scorer for event in recorded if isinstance(event, ScoringFailed)]
    assert [("regex", True)] == [(event.scorer, event.value) for event in recorded if isinstance(event, TrialScored)]


def test_a_task_without_steps_has_an_empty_trajectory(path: Path) -> None:
    """A scorer that takes the trajectory gets an empty list."""
    evaluation = define_real(unchanged)

    @evaluation.score
    def is_empty(trajectory: list[StepDetails]) -> bool:
        return trajectory == []

    run_real(evaluation, path)

    assert [True] == [event.value for event in events(path, TrialScored)]


def unchanged(value: Any) -> Any:
    """A task without steps."""
    return value


def step(number: int, name: str, kind: str, input_: Any = None, output: Any = None, *, error: str = "") -> StepDetails:
    return StepDetails(
        number=number, name=name, kind=kind, parent=0, seq=number, t=0.0, elapsed=0.0, input=input_, output=output, error=error
    )


def requesting(number: int, *calls: tuple[str, str], messages: list[Any] | None = None) -> StepDetails:
    """Return a model step whose reply requests tools."""
    calls_in_reply = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return step(
        number, "ask", "model", {"messages": messages or []}, {"role": "assistant", "content": "", "tool_calls": calls_in_reply}
    )


TRAJECTORY = [
    step(1, "load", "tool", {"path": "x"}),
    requesting(2, ("search", '{"query": "Lima", "limit": 5}'), ("search", '{"query": "Oslo"}')),
    step(3, "search", "tool", {"query": "Lima", "limit": 5}),
    step(4, "search", "tool", {"query": "Oslo"}),
    step(5, "search", "tool", {"query": "Suva"}, error="ValueError"),
    requesting(6, ("book", '{"hotel": {"id": 1}}')),
    step(7, "plan", "other", {}, {"tool_calls": [{"function": {"name": "never", "arguments": ""}}]}),
]


def test_tool_calls_are_counted_once() -> None:
    """A tool step that executes a call requested by a model is the same call; others are calls of their own."""
    assert [
        ("load", {"path": "x"}),
        ("search", {"query": "Lima", "limit": 5}),
        ("search", {"query": "Oslo"}),
        ("search", {"query": "Suva"}),
        ("book", {"hotel": {"id": 1}}),
    ] == [(call.name, call.arguments) for call in tool_calls(TRAJECTORY)]


CASE: Case[Any, Any] = Case(name="a", input="a", expected=["search", "book"], metadata={"tools": "book, search", "none": []})


@pytest.mark.parametrize(
    ("scorer", "is_passed"),
    [
        ("tools_used", True),
        ("tools_used:search,book,load", True),
        ("tools_used:search,pay", False),
        ("tools_used:{tools}", True),
        ("tools_used:{none}", True),
        ("tools_in_order", True),
        ("tools_in_order:load,search,search,book", True),
        ("tools_in_order:book,search", False),
        ("tools_in_order:search,search,search,search", False),
        ("tools_in_order:{tools}", False),
        ('tool_args:{"search": {"query": "Oslo"}, "book": {}}', True),
        ('tool_args:{"search": {"query": "Rome"}}', False),
        ('tool_args:{"book": {"hotel": {}}}', False),
        ('tool_args:{"pay": {}}', False),
        ('tool_args:[{"name": "search", "arguments": {"limit": 5}}, {"name": "search", "args": {"query": "Suva"}}]', True),
        ("max_steps:7", True),
        ("max_steps:6", False),
    ],
)
def test_built_in_scorers(scorer: str, is_passed: bool) -> None:  # noqa: FBT001
    """Names, order and arguments of tool calls, and the number of steps, by the name of the scorer on the command line."""
    evaluation, function = define_real(unchanged), scorers.scorer_by_name(scorer)
    assert function is not None
    evaluation.score(name="s")(function)
    (defined,) = evaluation.scorers.values()
    score = defined.call(ScorerInput("x", CASE, TRAJECTORY))

    assert defined.is_local
    assert is_passed == score.value
    assert is_passed == (score.reason == "")


@pytest.mark.parametrize("text", ["max_steps", "max_steps:0", "max_steps:x", 'tool_args:{"a"', "tool_args:3", "tool_args:[3]"])
def test_wrong_arguments_are_errors(text: str) -> None:
    """What a scorer cannot use is an error before the run."""
    with pytest.raises((UsageError, Fatal)):
        scorers.scorer_by_name(text)


@pytest.mark.parametrize("scorer", [scorers.tools_used(), scorers.tools_in_order(), scorers.tool_args()])
@pytest.mark.parametrize("expected", [None, 3, [1]])
def test_an_unsuitable_expected_output_is_an_error(scorer: Any, expected: Any) -> None:
    """A case without expected tools has no score."""
    with pytest.raises(Fatal):
        scorer(TRAJECTORY, attrs.evolve(CASE, expected=expected))


def test_without_steps_their_number_is_unknown() -> None:
    """A task that records no steps has no score of `max_steps`; otherwise it could not fail."""
    with pytest.raises(Fatal):
        scorers.max_steps(3)([])


def test_a_missing_column_is_found_before_the_start(path: Path) -> None:
    """Nothing is called if a case lacks the column of a scorer."""
    evaluation = define_real(unchanged)
    evaluation.score(scorers.tools_used("{tools}"))

    with pytest.raises(UsageError, match=r"has no field {tools}"):
        run_real(evaluation, path)


def test_the_text_of_a_trajectory_shows_each_message_once() -> None:
    """A conversation that grows is not repeated, and failed steps have their error."""
    question = {"role": "user", "content": "Where?"}
    reply = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "search", "arguments": '{"q": 1}'}}]}
    text = trajectory_text(
        [
            requesting(1, ("search", '{"q": 1}'), messages=[question]),
            step(2, "search", "tool", {"q": 1}, error="ValueError"),
            requesting(3, messages=[question, reply, {"role": "tool", "content": "nothing"}]),
        ]
    )

    assert (
        '1. model ask\n   user: Where?\n   assistant: \n   assistant calls search({"q":1})\n'
        '2. tool search failed: ValueError: \n   input: {"q":1}\n'
        "3. model ask\n   tool: nothing\n   assistant: "
    ) == text


def test_the_text_of_a_trajectory_is_bounded() -> None:
    """The first and the last steps of a long trajectory are kept, and long values are shortened."""
    text = trajectory_text([step(number, f"s{number}", "tool", "x" * 10_000, "y" * 10_000) for number in range(1, 101)])

    assert len(text) < 70_000
    assert text.startswith("1. tool s1\n")
    assert "\n100. tool s100\n" in text
    assert "94 steps omitted" in text
    messages = [{"role": "user", "content": "z" * 5_000}] * 50
    assert 10_000 < len(trajectory_text([requesting(1, messages=messages), requesting(2, messages=messages[:1] * 70)])) < 70_000


def test_a_judge_gets_the_trajectory() -> None:
    """`{trajectory}` is filled in between the same unguessable tags as the output."""
    judge = scorers.judge("m", base_url="http://h/", rubric="Was {output} found well? {trajectory}")
    prompt = judge.prompt("x", CASE, TRAJECTORY)
    tag = prompt.partition("<")[2].partition(">")[0]

    assert judge.takes_trajectory
    assert f"<{tag}>\n1. tool load\n" in prompt
    assert 2 == prompt.count(f"\n</{tag}>")
