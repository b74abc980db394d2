"""Budgets on the command line: exit codes, the next command, `verify`, `status`, and mistakes."""

import re
import shlex
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from evaljournal.journal.events import AttemptStarted
from evaljournal.runner.cli import cli
from tests.runs import events
from tests.server import Server

TASK = """
from evaljournal import Case, evaluation, note


@evaluation(cases=[Case(name=f"case-{n}", input=n) for n in range(8)], slots=1, policy="fixed")
def priced(number):
    note(cost=0.01, output_tokens=10)
    return number
"""


def invoke(command: str) -> Result:
    return CliRunner().invoke(cli, shlex.split(command))


def limits() -> dict[str, float]:
    """Return the budget of the newest run."""
    budget = orjson.loads(invoke("status --json").stdout)["budget"]
    return {unit: use["limit"] for unit, use in budget["run"].items()}


@pytest.fixture(autouse=True)
def task() -> None:
    """Write the evaluation to the working directory."""
    Path("priced.py").write_text(TASK)


def test_a_run_is_stopped_and_resumed() -> None:
    """A run ends with exit code 3 and the command to resume it with a larger budget, which finishes it."""
    stopped = invoke("run priced.py --budget cost=0.05 --budget output_tokens=2M")
    resumed = invoke("resume")

    assert (3, 3) == (stopped.exit_code, resumed.exit_code)
    (command,) = re.findall(r"^next: evaljournal (.*)$", stopped.stdout, re.MULTILINE)
    assert command.endswith("--budget cost=0.09")
    assert command in resumed.stdout
    assert 0 == invoke(command).exit_code
    assert {"cost": 0.09, "output_tokens": 2e6} == limits()


def test_a_budget_for_each_trial() -> None:
    """Trials over the budget per trial fail, are counted separately, and pass when they are retried with a larger one."""
    failed = invoke("run priced.py -s budget-per-trial=output_tokens=9 -s stop-on-same-error=none")

    assert 1 == failed.exit_code
    assert "budget per trial: output_tokens 9; exceeded by 8 trials" in failed.stdout
    assert {"budget": 8} == orjson.loads(invoke("status --json").stdout)["failed_by_reason"]
    assert 0 == invoke("resume --retry-failed -s budget-per-trial=output_tokens=1k").exit_code
    assert 0 == invoke("verify").exit_code


def test_a_chat_model(server: Server, name: str) -> None:
    """The first reserve is estimated from the prompt and --max-tokens; the next one is what the first trial has cost."""
    Path("qa.jsonl").write_text("".join(f'{{"id": "{number}", "input": "question"}}\n' for number in range(4)))
    Path("prices.toml").write_text('[models."gpt-4o-mini"]\ninput = 1\noutput = 2\n')
    options = f"--chat gpt-4o-mini --max-tokens 50 --base-url {server.url(name, 'ok', 'v1')} --prices prices.toml --slots 1"

    result = invoke(f"run --data qa.jsonl {options} --budget cost=0.003")

    assert 3 == result.exit_code, result.output
    reserves = [event.reserved for event in events(Path("runs/qa/0001"), AttemptStarted)]
    assert [{"cost": 0.000113}, {"cost": 0.0012}] == reserves  # 13 and 50 tokens; then 1,000 and 100, as the server reports.
    assert 0 == invoke("verify").exit_code


def test_a_dry_run() -> None:
    """A dry run shows the budget, and reports a model without a price."""
    Path("qa.jsonl").write_text('{"id": "a", "input": "x"}\n')

    assert "before it exceeds its budget (cost $5.00)" in invoke("run priced.py --dry-run --budget cost=5").stdout
    unpriced = invoke("run --data qa.jsonl --chat no-price --base-url http://127.0.0.1:9 --dry-run --budget cost=5")
    assert 2 == unpriced.exit_code
    assert "model 'no-price' has no price" in unpriced.stderr


def test_a_configuration_file() -> None:
    """A budget in a configuration file is a table."""
    Path("qa.jsonl").write_text('{"id": "a", "input": "x", "made": "y"}\n')
    Path("qa.toml").write_text('data = "qa.jsonl"\noutput-key = "made"\nbudget = { cost = 0.5, output_tokens = "2k" }\n')

    assert 0 == invoke("run --config qa.toml").exit_code
    assert {"cost": 0.5, "output_tokens": 2000.0} == limits()
