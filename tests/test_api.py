"""The public face of the three packages: what is in `__all__` is promised, so a change to it is made here first."""

import attrs

import journal
import replay
import runner
import runner.executors
from runner import scorers
from runner.cli.run import run
from runner.definition.settings import Settings
from runner.retries.retry import NUMBERS
from runner.scorers.llm_judge import Judge
from runner.tasks.chat import Chat
from runner.tasks.command import Command
from runner.tasks.endpoint import Endpoint
from runner.tasks.recorded_output import RecordedOutput


def test_the_journals_face() -> None:
    """What `journal` offers."""
    assert [
        "Blob",
        "Durability",
        "Event",
        "Journal",
        "JournalError",
        "Lines",
        "Reading",
        "Record",
        "Salvaged",
        "Stamp",
        "Verification",
        "fetch",
        "follow",
        "read",
        "salvage",
        "verify",
        "writing",
    ] == journal.__all__


def test_the_replays_face() -> None:
    """What `replay` offers."""
    assert [
        "LoadedRun",
        "RunState",
        "Span",
        "Summary",
        "Timeline",
        "Times",
        "TrialState",
        "audit",
        "compare",
        "fold",
        "load",
        "summarise",
    ] == replay.__all__


def test_the_runners_face() -> None:
    """What `runner` offers, and that each of it can really be had."""
    assert [
        "Case",
        "Dataset",
        "Evaluation",
        "Fatal",
        "Outcome",
        "RateLimited",
        "Rescored",
        "Retry",
        "Score",
        "UsageError",
        "arun",
        "evaluation",
        "note",
        "rescore",
        "run",
        "stamps",
    ] == runner.__all__
    assert all(getattr(runner, name).__name__ == name for name in runner.__all__)


def test_what_evaluates_without_code() -> None:
    """What the tasks without code, and a judge, can be told; and which scorers there are by name."""
    http = ["connect_timeout", "read_timeout"]
    assert {
        Endpoint: ["url", "method", "body", "headers", "output_path", "error_path", "done_path", *http, "idempotency_header"],
        Chat: [
            *("model", "base_url", "key_env", "prompt", "messages", "system", "temperature", "max_tokens", "seed", "schema"),
            *("stream", "more", "headers", "prices", *http),
        ],
        Command: ["command", "shell", "output", "output_path"],
        RecordedOutput: ["output_key"],
        Judge: ["chat", "rubric", "choices", "timeout"],
    } == {
        task: [each.name for each in attrs.fields(task) if each.init]
        for task in (Endpoint, Chat, Command, RecordedOutput, Judge)
    }
    assert ("exact", "iexact", "contains", "one_of", "json_equal", "f1", "regex", "close_to", "similarity") == scorers.NAMES
    assert all(callable(getattr(scorers, name)) for name in (*scorers.NAMES, "judge"))


def test_every_setting_has_a_flag() -> None:
    """What Python can say of a run, of its retries and of its tasks can be said by a flag, and so by a key of a file."""
    flags = {option.removeprefix("--").replace("-", "_") for each in run.params for option in each.opts}
    settings = {field.name for field in attrs.fields(Settings)} - {
        "loop",
        "retry",
    }  # A loop is for functions; see below.
    about_tasks = {"seed": "model_seed", "output": "output_format", "headers": "header", "url": "endpoint", "model": "chat"}
    tasks = {field.name for task in (Endpoint, Chat, Command, RecordedOutput) for field in attrs.fields(task) if field.init}

    assert settings <= flags
    assert {f"retry_{name}" for name in NUMBERS} <= flags
    assert {about_tasks.get(name, name) for name in tasks} <= flags


def test_the_executors_face() -> None:
    """What `runner.executors` offers: Phoenix's six names, and what goes with them."""
    assert [
        "AsyncExecutor",
        "ConcurrencyController",
        "ExecutionDetails",
        "ExecutionStatus",
        "Fatal",
        "Incomplete",
        "RateLimited",
        "SyncExecutor",
        "get_executor_on_sync_context",
    ] == runner.executors.__all__
