# pyright: reportUnnecessaryTypeIgnoreComment=true
"""What type checkers know about an evaluation, and what they refuse; mypy and pyright read this file, nothing runs it.

A line that both must refuse carries an ignore, and to both of them an ignore that is not needed is itself an error.
"""

from collections.abc import Coroutine, Mapping
from typing import Any, assert_type

from replay import Span, load
from runner import (
    Case,
    Dataset,
    Evaluation,
    Outcome,
    RateLimited,
    Rescored,
    Retry,
    Score,
    evaluation,
    note,
    rescore,
    run,
    scorers,
)
from runner.executors import (
    AsyncExecutor,
    ConcurrencyController,
    ExecutionDetails,
    ExecutionStatus,
    SyncExecutor,
    get_executor_on_sync_context,
)
from runner.tasks.chat import Chat
from runner.tasks.command import Command
from runner.tasks.endpoint import Endpoint
from runner.tasks.recorded_output import RecordedOutput

CASES = [
    Case(name="fr", input="Capital of France?", expected="Paris"),
    Case(input="Capital of Italy?", expected="Rome"),
]
assert_type(CASES, list[Case[str, str]])


@evaluation(cases=CASES, slots=8, timeout=30, retry=Retry(errors=4, on=TypeError), repeats=1)
async def capitals(question: str) -> str:
    """Answer as an async task does."""
    note(tokens=len(question), cost=0.001)
    raise RateLimited(3)


@evaluation(cases=Dataset("qa.jsonl", input_key="q"), timeout=None)
def length(question: str) -> int:
    """Answer as a plain function does."""
    return len(question)


async def calls() -> None:
    """An evaluation is called like its function."""
    coroutine: Coroutine[Any, Any, str] = capitals("?")
    assert_type(await coroutine, str)
    assert_type(await capitals("?"), str)
    assert_type(length("?"), int)
    await capitals(3)  # type: ignore[arg-type]
    length(b"?")  # type: ignore[arg-type]


def takes_any(given: Evaluation[str, str]) -> None:
    """The two types of an evaluation are what is asked and what is answered."""


takes_any(capitals)
takes_any(length)  # type: ignore[arg-type]


@capitals.score
def exact(output: str, case: Case) -> bool:
    """A bare Case is enough."""
    return bool(output == case.expected)


assert_type(exact("Paris", CASES[0]), bool)


@capitals.score
def typed(output: str, case: Case[str, str]) -> Score:
    """Types of input and expected can be given."""
    return Score(output == case.expected, reason=case.expected.upper())


@capitals.score(name="judge", retry=Retry(errors=1))
async def several(output: str, case: Case[str, str]) -> Mapping[str, float]:
    """An async scorer with several scores."""
    return {"length": len(output) / len(case.expected)}


@capitals.score
def mixed(output: object, case: Case[Any, Any]) -> dict[str, bool | str | Score]:
    """A scorer may accept more than the task returns, and score in several ways."""
    return {"known": output is not case, "label": "good", "why": Score(0.5, "half")}


@capitals.score  # type: ignore[arg-type]
def wrong_output(output: int, case: Case) -> bool:
    """The task returns text, so a scorer of numbers is a mistake."""
    return bool(output == case.expected)


@capitals.score  # type: ignore[arg-type]
def wrong_case(output: str, case: Case[int, str]) -> bool:
    """The task is asked with text, so a case of numbers is a mistake."""
    return bool(output == case.expected)


@capitals.score(name="other")  # type: ignore[arg-type]
def wrong_output_again(output: int, case: Case) -> bool:
    """The same with a name."""
    return bool(output == case.expected)


@length.score  # type: ignore[arg-type]
def wrong_output_of_a_plain_task(output: str, case: Case) -> bool:
    """The same for a plain function."""
    return bool(output == case.expected)


@capitals.score  # type: ignore[type-var]
def wrong_verdict(output: str, case: Case) -> list[str]:
    """A list is no verdict."""
    return [output, case.name]


evaluation(cases=CASES, policy="aimd", limit_key="model", grace=1, max_failures=0.1, fail_under="exact=0.9", durability="os")
evaluation(cases=CASES, durability="ram")  # type: ignore[arg-type]
evaluation(cases=CASES, slots="8")  # type: ignore[arg-type]
evaluation(cases=CASES, loop="curio")  # type: ignore[arg-type]
evaluation(cases=3)  # type: ignore[arg-type]
Retry(classify=lambda _: "maybe")  # type: ignore[arg-type, return-value]

asked = evaluation(cases="qa.jsonl", retry=Retry(errors=0))(Endpoint("http://h/{id}", method="GET", done_path="done"))
assert_type(asked, Evaluation[Any, Any, Coroutine[Any, Any, Any]])
asked.score(scorers.exact)
asked.score(scorers.regex("^[A-Z]"))
asked.score(name="judge", retry=Retry(errors=1))(scorers.judge("m", rubric="{output}", choices={"good": 1.0, "bad": False}))
evaluation(cases="qa.jsonl")(Chat("m", prompt="{question}", more={"top_p": 0.9}, schema={"type": "object"}))
evaluation(cases="qa.jsonl")(Command(["./answer.sh", "{question}"], output="json"))
evaluation(cases="qa.jsonl")(RecordedOutput("generated"))
Endpoint("http://h/", method="PUT")  # type: ignore[arg-type]
Command("cat", output="xml")  # type: ignore[arg-type]
Chat("m", temperature="hot")  # type: ignore[arg-type]


async def by_hand() -> None:
    """A task without code is called like a function."""
    assert_type(await asked("?"), Any)


assert_type(run(capitals, "runs/capitals/0001"), Outcome)
assert_type(run(capitals), Outcome)
assert_type(run(capitals, resume=True, slots=4), Outcome)
run(capitals, 1)  # type: ignore[arg-type]
assert_type(rescore(capitals), Rescored)
assert_type(rescore(capitals, "runs/capitals/0001", again=True), Rescored)
history = load("runs/capitals/0001", at=725)
assert_type(history.trials["fr"].stage, str)
assert_type(next(history.outputs()), tuple[str, Any])
assert_type(history.timeline().spans[0], Span)
assert_type(history.timeline().spans[1:], list[Span])
assert_type(history.timeline().times["fr"].waited, float)
assert_type(history.timeline().steps("in_flight", session=1), list[tuple[float, int, int]])
history.timeline().steps("speed")  # type: ignore[arg-type]
load("runs/capitals/0001", at="725")  # type: ignore[arg-type]


def executors() -> None:
    """Phoenix's interface: what goes in, and what comes out."""
    outputs, details = AsyncExecutor(capitals, 8, timeout=30, journal="runs/capitals").run(["?"])
    assert_type(outputs, list[Any])
    assert_type(details, list[ExecutionDetails])
    assert_type(details[0].status, ExecutionStatus)
    assert_type(details[0].exceptions, list[BaseException])
    chosen = get_executor_on_sync_context(length, capitals, concurrency=4, fallback_return_value=0)
    assert_type(chosen, AsyncExecutor | SyncExecutor)
    assert_type(chosen.run(str(number) for number in range(3)), tuple[list[Any], list[ExecutionDetails]])
    assert_type(ConcurrencyController(10, 3, clock=lambda: 0.0).target_concurrency, int)
    AsyncExecutor(capitals, concurrency="8")  # type: ignore[arg-type]
    AsyncExecutor("capitals")  # type: ignore[arg-type]
    SyncExecutor(length, timeout=3)  # type: ignore[call-arg]


async def awaited() -> None:
    """The same, awaited."""
    assert_type(await AsyncExecutor(capitals).execute(["?"]), tuple[list[Any], list[ExecutionDetails]])
