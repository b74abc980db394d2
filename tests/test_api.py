"""The public API: a change to an `__all__` must also be made here."""

import attrs
import pytest

import evaljournal
from evaljournal import Acp, journal, replay, scorers
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.calls.command import Command
from evaljournal.runner.calls.endpoint import Endpoint
from evaljournal.runner.calls.recorded_output import RecordedOutput
from evaljournal.runner.cli.options.table import BY_KEY
from evaljournal.runner.definition.settings import SettingOptions, Settings
from evaljournal.runner.scorers.llm_judge import Judge
from evaljournal.runner.sessions.options import Options, RunOptions


def test_public_names_of_journal() -> None:
    """`journal` exports these names."""
    assert [
        *("Blob", "Clock", "Durability", "Event", "Journal", "JournalError", "Record", "SalvageResult", "Verification"),
        *("follow", "read", "salvage", "verify", "writing"),
    ] == journal.__all__


def test_public_names_of_replay() -> None:
    """`replay` exports these names."""
    assert [
        *("LoadedRun", "RunState", "Span", "StepDetails", "Summary", "Timeline", "Times", "TrialState", "audit"),
        *("compare", "fold", "load", "summarize"),
    ] == replay.__all__


def test_public_names_of_evaljournal() -> None:
    """`evaljournal` exports these names and modules, and each can be imported."""
    views = ["audit", "compare", "load", "summarize"]
    names = [
        *("Acp", "Answer", "Case", "Chat", "ChatRequest", "Command", "CommandWorkers", "Dataset", "Dialect", "Endpoint"),
        *("Evaluation", "Fatal", "IncompleteReply", "InvalidReply", "Outcome"),
        *("ProcessWorkers", "RateLimited", "RayWorkers", "RecordedOutput", "RescoreResult", "Retry", "RunFailed"),
        *("RunOptions", "RunVerification", "Score", "Settings", "UsageError", "arun", "audit", "compare", "current_workspace"),
        *("durable", "evaluation", "gateway_env", "load", "note", "rescore", "run", "step", "summarize", "verify"),
    ]
    modules = ["executors", "journal", "promptfoo", "replay", "scorers", "testing"]

    assert [*names, *modules] == evaljournal.__all__
    assert names == [getattr(evaljournal, name).__name__ for name in names]
    assert [f"evaljournal.{name}" for name in modules] == [getattr(evaljournal, name).__name__ for name in modules]
    assert all(getattr(evaljournal, name) is getattr(replay, name) for name in views)
    assert set(evaljournal.__all__) <= set(dir(evaljournal))
    with pytest.raises(AttributeError, match="no attribute 'Trial'"):
        evaljournal.Trial  # noqa: B018


def test_run_options_are_the_settings_and_the_session_options() -> None:
    """The typed options of `run` are those that it takes, without those that only the command line passes."""
    settings, options = ({field.name for field in attrs.fields(kind)} for kind in (Settings, Options))

    assert settings == set(SettingOptions.__annotations__)
    internal = {"state", "ignore_recorded", "trials", "wait_ready", "budget_share", "cancel_batches"}
    assert settings | options - internal == set(RunOptions.__annotations__)


def test_parameters_of_tasks_without_code() -> None:
    """Tasks without code and the judge have these parameters; these scorers have a name on the command line."""
    http = ["connect_timeout", "read_timeout"]
    assert {
        Endpoint: [
            "url",
            "method",
            "body",
            "headers",
            "output_path",
            "error_path",
            "done_path",
            *http,
            "idempotency_header",
            "turns",
        ],
        Chat: [
            *("model", "dialect", "base_url", "key_env", "prompt", "messages", "system", "temperature", "max_tokens"),
            *("effort", "seed", "schema", "stream", "extra_body", "headers", "turns", "images", "files", "prices", *http),
        ],
        Command: ["command", "shell", "output", "output_path", "variant_files"],
        Acp: ["acp", "allow", "prompt", "turns", "variant_files"],
        RecordedOutput: ["output_key"],
        Judge: ["chat", "rubric", "choices", "timeout"],
    } == {
        task: [field.name for field in attrs.fields(task) if field.init]
        for task in (Endpoint, Chat, Command, Acp, RecordedOutput, Judge)
    }
    assert (
        *("exact", "iexact", "contains", "one_of", "json_equal", "f1", "regex", "close_to", "similarity"),
        *("tools_used", "tools_in_order", "tool_args", "max_steps"),
    ) == scorers.NAMES
    assert all(callable(getattr(scorers, name)) for name in (*scorers.NAMES, "assertions", "judge"))


def test_every_parameter_of_a_task_has_a_key() -> None:
    """Each parameter of a task without code has a key in the configuration file; those of settings are in `test_options`."""
    renamed = {
        "seed": "model_seed",
        "output": "output_format",
        "headers": "header",
        "images": "image",
        "files": "file",
        "url": "endpoint",
        "model": "chat",
        "dialect": "chat",  # The prefix of the model.
    }
    tasks = {field.name for task in (Endpoint, Chat, Command, RecordedOutput) for field in attrs.fields(task) if field.init}

    assert {renamed.get(name, name).replace("_", "-") for name in tasks} <= set(BY_KEY)


def test_public_names_of_executors() -> None:
    """`executors` exports Phoenix's seven names, and three more."""
    assert [
        *("AsyncExecutor", "ConcurrencyController", "ExecutionDetails", "ExecutionStatus", "Executor", "Fatal"),
        *("Incomplete", "RateLimited", "SyncExecutor", "get_executor_on_sync_context"),
    ] == evaljournal.executors.__all__
