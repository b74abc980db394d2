# pyright: reportUnnecessaryTypeIgnoreComment=true
"""The types of the public API; mypy and pyright check this file, nothing runs it.

A line that both must reject has an ignore comment; to both, an unused ignore comment is an error.
"""

from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, assert_type

from evaljournal import (
    Answer,
    Case,
    Chat,
    ChatRequest,
    Command,
    Dataset,
    Dialect,
    Endpoint,
    Evaluation,
    Outcome,
    ProcessWorkers,
    RateLimited,
    RayWorkers,
    RecordedOutput,
    RescoreResult,
    Retry,
    Score,
    audit,
    compare,
    evaluation,
    load,
    note,
    rescore,
    run,
    scorers,
    summarize,
    verify,
)
from evaljournal.executors import (
    AsyncExecutor,
    ConcurrencyController,
    ExecutionDetails,
    ExecutionStatus,
    Executor,
    SyncExecutor,
    get_executor_on_sync_context,
)
from evaljournal.replay import Span, Summary

CASES = [
    Case(name="fr", input="Capital of France?", expected="Paris"),
    Case(input="Capital of Italy?", expected="Rome"),
]
assert_type(CASES, list[Case[str, str]])


@evaluation(cases=CASES, slots=8, timeout=30, retry=Retry(errors=4, on=TypeError), repeats=1)
async def capitals(question: str) -> str:
    """An async task."""
    note(tokens=len(question), cost=0.001)
    raise RateLimited(3)


@evaluation(cases=CASES, variants={"mini": {"model": "gpt-5-mini"}, "large": {"model": "gpt-5"}})
async def variant_answers(question: str, *, model: str) -> str:
    """An async task with variants."""
    return f"{model}: {question}"


assert_type(variant_answers, Evaluation[str, str, Coroutine[Any, Any, str]])


@evaluation(cases=CASES, variants={"model": ["gpt-5", "gpt-5-mini"], "k": (1, 2)})
def variant_lengths(question: str, model: str, k: int) -> int:
    """A plain function with the product of two parameters."""
    return len(question) + len(model) + k


assert_type(variant_lengths, Evaluation[str, int, int])


@evaluation(cases=Dataset("qa.jsonl", input_key="q"), timeout=None, depends=["prompt.json", Path("tools.json")])
def length(question: str) -> int:
    """A plain function."""
    return len(question)


async def calls() -> None:
    """An evaluation can be called like its function."""
    coroutine: Coroutine[Any, Any, str] = capitals("?")
    assert_type(await coroutine, str)
    assert_type(await capitals("?"), str)
    assert_type(length("?"), int)
    await capitals(3)  # type: ignore[arg-type]
    length(b"?")  # type: ignore[arg-type]


def takes_text(text_evaluation: Evaluation[str, str]) -> None:
    """The type parameters of an evaluation are the types of input and output."""


takes_text(capitals)
takes_text(length)  # type: ignore[arg-type]


@evaluation(cases=CASES)
def coder(question: str, sandbox: Path) -> str:
    """A task that gets the value of its set-up."""
    return f"{sandbox / question}"


@coder.setup
def sandbox(case: Case[str, str], trial: str) -> Path:
    """A set-up stays the function that it is."""
    return Path(trial) / case.input


@coder.teardown
def remove(sandbox: Path) -> None:
    """A teardown, too."""
    sandbox.rmdir()


assert_type(sandbox(CASES[0], "fr"), Path)
assert_type(coder("?", sandbox=Path()), str)


@capitals.score
def exact(output: str, expected: str) -> bool:
    """Parameters are passed by name."""
    return output == expected


assert_type(exact("Paris", "Paris"), bool)


@capitals.score
def typed(output: str, case: Case[str, str]) -> Score:
    """The case has the types of its input and its expected output."""
    return Score(output == case.expected, reason=case.expected.upper())


@capitals.score(name="judge", retry=Retry(errors=1))
async def several_scores(output: str, expected: str) -> Mapping[str, float]:
    """An async scorer with several scores."""
    return {"length": len(output) / len(expected)}


@capitals.score
def mixed_scores(output: object, metadata: Mapping[str, Any]) -> dict[str, bool | str | Score]:
    """A scorer with several scores of different types."""
    return {"known": output in metadata, "label": "good", "why": Score(0.5, "half")}


@capitals.score  # type: ignore[type-var]
def wrong_verdict(output: str, case: Case) -> list[str]:
    """A list is not a score."""
    return [output, case.name]


evaluation(cases=CASES, workers=ProcessWorkers(2, concurrency=4))
evaluation(cases=CASES, workers=RayWorkers(workers=4, num_gpus=0.5, resources={"fpga": 1}, environment=("OPENAI_API_KEY",)))
evaluation(cases=CASES, workers="processes:8")
evaluation(cases=CASES, workers=8)  # type: ignore[arg-type]
evaluation(cases=CASES, policy="fixed", limit_key="model", grace=1, max_failures=0.1, fail_under="exact=0.9", durability="os")
evaluation(cases=CASES, durability="ram")  # type: ignore[arg-type]
evaluation(cases=CASES, slots="8")  # type: ignore[arg-type]
evaluation(cases=CASES, loop="curio")  # type: ignore[arg-type]
evaluation(cases=3)  # type: ignore[arg-type]
evaluation(cases=CASES, only="f*", skip=["it"], limit=1, shuffle=True, seed=3, retry={"errors": 2})
evaluation(cases=CASES, slotz=4)  # type: ignore[call-arg]
evaluation(capitals)  # type: ignore[arg-type, call-arg]
evaluation()  # type: ignore[call-arg]
Retry(classify=lambda _: "maybe")  # type: ignore[arg-type, return-value]

without_code = evaluation(cases="qa.jsonl", retry=Retry(errors=0))(Endpoint("http://h/{id}", method="GET", done_path="done"))
assert_type(without_code, Evaluation[Any, Any, Coroutine[Any, Any, Any]])
without_code.score(scorers.exact)
without_code.score(scorers.regex("^[A-Z]"))
without_code.score(name="judge", retry=Retry(errors=1))(
    scorers.judge("m", rubric="{output}", choices={"good": 1.0, "bad": False})
)
evaluation(cases="qa.jsonl")(Chat("m", prompt="{question}", extra_body={"top_p": 0.9}, schema={"type": "object"}))
evaluation(cases="qa.jsonl")(Command(["./answer.sh", "{question}"], output="json"))
evaluation(cases="qa.jsonl")(RecordedOutput("generated"))
Endpoint("http://h/", method="PUT")  # type: ignore[arg-type]
Command("cat", output="xml")  # type: ignore[arg-type]
Chat("m", temperature="hot")  # type: ignore[arg-type]


async def call_without_a_run() -> None:
    """A task without code can be called like a function."""
    assert_type(await without_code("?"), Any)


assert_type(run(capitals, "runs/capitals/0001"), Outcome)
assert_type(run(capitals), Outcome)
assert_type(run(capitals, resume=True, slots=4), Outcome)
assert_type(run(capitals, budget={"cost": 5}, budget_per_trial="output_tokens=2k"), Outcome)
assert_type(run(capitals, replies=Path("runs/capitals/0001"), offline=True), Outcome)
assert_type(run(capitals, replies=["replies.jsonl.gz", Path("runs/capitals/0001")]), Outcome)
run(capitals, replies=5)  # type: ignore[arg-type]
run(capitals, budget=5)  # type: ignore[arg-type]
run(capitals, 1)  # type: ignore[arg-type]
run(capitals, slotz=4)  # type: ignore[call-arg]
run(capitals, slots="4")  # type: ignore[arg-type]
assert_type(run(capitals, only="f*", retry=Retry(errors=1), adopt=True, on_ambiguous="fail", signals=False), Outcome)
assert_type(verify("runs/capitals/0001", expect_head="1570f2fd").ok, bool)
assert_type(verify(load("runs/capitals/0001")).ok, bool)
assert_type(rescore(capitals), RescoreResult)
assert_type(rescore(capitals, "runs/capitals/0001", all_outputs=True), RescoreResult)
loaded = load("runs/capitals/0001", at=725)
assert_type(loaded.trials["fr"].stage, str)
assert_type(compare("runs/capitals/0001@mini", loaded).common, int)
assert_type(summarize(loaded).trials.completed, int)
assert_type(summarize("runs/capitals/0001"), Summary)
assert_type(audit(loaded).ok, bool)
compare(loaded, 1)  # type: ignore[arg-type]
assert_type(next(loaded.outputs()), tuple[str, Any])
assert_type(loaded.timeline().spans[0], Span)
assert_type(loaded.timeline().spans[1:], list[Span])
assert_type(loaded.timeline().times["fr"].queue_time, float)
assert_type(loaded.timeline().points("in_flight", session=1), list[tuple[float, int, int]])
loaded.timeline().points("speed")  # type: ignore[arg-type]
load("runs/capitals/0001", at="725")  # type: ignore[arg-type]


def executors() -> None:
    """Phoenix's interface."""
    outputs, details = AsyncExecutor(capitals, 8, timeout=30, journal="runs/capitals").run(["?"])
    assert_type(outputs, list[Any])
    assert_type(details, list[ExecutionDetails])
    assert_type(details[0].status, ExecutionStatus)
    assert_type(details[0].exceptions, list[BaseException])
    chosen = get_executor_on_sync_context(length, capitals, concurrency=4, fallback_return_value=0)
    assert_type(chosen, AsyncExecutor | SyncExecutor)
    executor: Executor = chosen
    assert_type(executor.run(["?"]), tuple[list[Any], list[ExecutionDetails]])
    assert_type(chosen.run(str(number) for number in range(3)), tuple[list[Any], list[ExecutionDetails]])
    assert_type(ConcurrencyController(10, 3, clock=lambda: 0.0).target_concurrency, int)
    AsyncExecutor(capitals, concurrency="8")  # type: ignore[arg-type]
    AsyncExecutor("capitals")  # type: ignore[arg-type]
    SyncExecutor(length, timeout=3)  # type: ignore[call-arg]


async def awaited() -> None:
    """The async method of an executor."""
    assert_type(await AsyncExecutor(capitals).execute(["?"]), tuple[list[Any], list[ExecutionDetails]])


def read_reply(dialect: Dialect, reply: object) -> str:
    """A dialect makes requests and reads replies."""
    assert_type(dialect.body(ChatRequest(model="m", messages=[{"role": "user", "content": "q"}])), dict[str, Any])
    assert_type(dialect.read(reply), Answer)
    return dialect.read(reply).text


IMAGES = Chat("m", images=["photo"], files="document")
