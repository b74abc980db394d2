"""Imported promptfoo projects run: verdicts, Python functions, and a run that is killed and resumed."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from benchmarks._provider_server import Served, serving
from benchmarks.simulated.providers import OpenAI
from evaljournal.journal.events import AttemptSucceeded
from evaljournal.runner.runs.verification import verify
from tests.processes import wait_until
from tests.runner_cli.commands import evaljournal, process, run_process, scores
from tests.runs import events
from tests.server import Server

TRIALS = 80
SLOTS = 2


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test")


def import_config(config: dict[str, Any]) -> None:
    """Import a configuration; JSON is YAML."""
    Path("qa.yaml").write_text(json.dumps(config))
    result = evaljournal("import", "qa.yaml")
    assert 0 == result.exit_code, result.stderr


def test_verdicts(server: Server) -> None:
    """Chats, endpoints and commands get the rendered prompt, and every assertion of a test counts."""
    Path("say.py").write_text("import json, sys; print(sys.argv[1].upper(), json.loads(sys.argv[3])['vars']['word'])")
    endpoint = {"body": {"input": "{{prompt}}"}, "transformResponse": "json.output"}
    import_config(
        {
            "prompts": ['[{"role": "user", "content": "Say {{word}}, {{user.name}}"}]', "Say {{word}}, {{user.name}}"],
            "providers": [
                {"id": "openai:chat:m", "label": "chat", "config": {"apiBaseUrl": server.url("verdicts", "ok", "v1")}},
                {"id": server.url("verdicts", "ok"), "label": "http", "config": endpoint, "prompts": ["Say*"]},
                {"id": f"exec: {sys.executable} say.py", "label": "exec", "prompts": ["Say*"]},
            ],
            "defaultTest": {"vars": {"user": {"name": "Ada"}}, "assert": [{"type": "contains", "value": "SAY {{word}}"}]},
            "tests": [
                {
                    "description": "capitals",
                    "vars": {"word": "LIMA"},
                    "assert": [{"type": "python", "value": "'LIMA' in output"}],
                },
                {"description": "small", "vars": {"word": "lima"}},
                {
                    "description": "half",
                    "vars": {"word": "x"},
                    "threshold": 0.5,
                    "assert": [{"type": "not-contains", "value": "y"}],
                },
            ],
        }
    )
    result = evaljournal("run", "--config", "evals/qa.toml", "-o", "run")
    variants = ["chat-prompt-1", "chat-prompt-2", "http-prompt-2", "exec-prompt-2"]

    assert 0 == result.exit_code, result.stderr
    assert {
        **{f"capitals@{variant}": True for variant in variants},
        **{f"small@{variant}": False for variant in variants},
        **{f"half@{variant}": True for variant in variants},
    } == scores("run", "assertions.pass")
    assert "SAY LIMA, ADA LIMA" in {event.output for event in events("run", AttemptSucceeded)}


def test_python_providers_and_functions() -> None:
    """A provider and an assertion in Python files of the project are called as promptfoo calls them."""
    Path("model.py").write_text(
        "import helper\n"
        "async def call_api(prompt, options, context):\n"
        "    if context['vars']['word'] == 'bad':\n"
        "        return {'error': 'no answer'}\n"
        "    return {'output': helper.mark(prompt) * options['config']['times'], 'cost': 0.5}\n"
    )
    Path("helper.py").write_text("def mark(text):\n    return f'<{text}>'\n")
    Path("checks.py").write_text(
        "def get_assert(output, context):\n"
        "    size = context['config']['size'] if 'config' in context else 0\n"
        "    return {'pass': len(output) > size, 'score': 0.5, 'reason': context['vars']['word']}\n"
    )
    import_config(
        {
            "prompts": ["Say {{word}}"],
            "providers": [{"id": "file://model.py", "label": "twice", "config": {"times": 2}}],
            "defaultTest": {
                "assert": [
                    {"type": "python", "value": "file://checks.py"},
                    {"type": "python", "value": "file://checks.py", "config": {"size": 18}},
                    {"type": "cost", "threshold": 0.5},
                ]
            },
            "tests": [{"description": word, "vars": {"word": word}} for word in ("lima", "la-paz", "bad")],
            "evaluateOptions": {"maxConcurrency": 2},
        }
    )
    code, _, _ = run_process("run", "evals/qa.py", "-o", "run", "-s", "retry.errors=0")

    assert 1 == code
    assert {"lima@twice": "<Say lima><Say lima>", "la-paz@twice": "<Say la-paz><Say la-paz>"} == {
        event.trial: event.output for event in events("run", AttemptSucceeded)
    }
    assert {"lima@twice": True, "la-paz@twice": True} == scores("run", "assertions.pass")
    Path("model.py").write_text("def call_api(prompt, options, context):\n    return {'output': 'another model'}\n")
    assert 2 == run_process("resume", "run", "--retry-failed")[0]


@pytest.mark.slow
def test_a_killed_run_is_resumed(server: Server) -> None:
    """Nothing is called twice except what was in flight, neither a model nor the judge."""
    verdict = quote('{"pass": true%2C "score": 1}', safe="%")
    grader = {"id": "openai:chat:judge", "config": {"apiBaseUrl": server.url("grader", f"reply:{verdict}", "v1")}}
    rubric = {"type": "llm-rubric", "value": "names {{word}}", "provider": grader}
    words = [f"w{number:03}" for number in range(TRIALS // 2)]
    with serving(lambda: OpenAI(limits=(), median=0.03)) as served:
        import_config(
            {
                "prompts": ["Say {{word}}", "Shout {{word}}"],
                "providers": [{"id": "openai:chat:m", "config": {"apiBaseUrl": f"{served.root}/v1"}}],
                "tests": [{"vars": {"word": word}, "assert": [{"type": "icontains", "value": word}, rubric]} for word in words],
                "evaluateOptions": {"maxConcurrency": SLOTS},
            }
        )
        with process("run", "--config", "evals/qa.toml", "-o", "run", "--plain") as running:
            is_half_done = wait_until(lambda: accepted(served) >= TRIALS // 2)
            os.kill(running.pid, signal.SIGKILL)
        calls, completed = accepted(served), len(events("run", AttemptSucceeded))
        code, _, stderr = run_process("resume", "run")

    assert (True, 0) == (is_half_done, code), stderr
    assert TRIALS - completed == accepted(served) - calls
    assert completed <= calls <= completed + 2 * SLOTS  # In flight, or answered in the last millisecond.
    assert TRIALS <= len(server.requests("grader")) <= TRIALS + 2 * SLOTS
    assert [True] * TRIALS == list(scores("run", "assertions.pass").values())
    assert verify("run").ok


def accepted(served: Served) -> int:
    """Return the number of calls that the server has answered."""
    return sum(provider.accepted for provider in served.servers.values())
