"""A promptfoo configuration that is imported and run has the verdicts that promptfoo returns for it, on one local model."""

import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from evaljournal.journal.events import TrialEnqueued
from evaljournal.replay import load
from tests.integrations.promptfoo.model import serving_model
from tests.integrations.promptfoo.runs import HERE, Verdict, run_promptfoo, verdict_of
from tests.runner_cli.commands import evaljournal
from tests.runs import events

CONFIGS = sorted((HERE / "configs").glob("*.yaml"))
NAMES = [path.stem for path in CONFIGS if "-" not in path.stem]

Results = dict[str, Verdict]
"""Number of a test, repeats included, and number of its prompt and provider → verdict."""


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Copy the configurations to the working directory, with the address of a model."""
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    with serving_model() as url:
        shutil.copytree(HERE / "configs", ".", dirs_exist_ok=True)
        for path in Path().glob("*.yaml"):
            path.write_text(path.read_text().replace("ADDRESS", url))
        yield url


def our_results(name: str) -> Results:
    """Import and run a configuration; return its verdicts."""
    result = evaljournal("import", f"{name}.yaml")
    assert 0 == result.exit_code, result.stderr
    result = evaljournal("run", "--config", f"evals/{name}.toml")
    assert result.exit_code in {0, 1}, result.output
    run = next(Path("runs").rglob("journal-000001.jsonl")).parent
    table = tomllib.loads(Path(f"evals/{name}.toml").read_text())
    variants = [variant["name"] for variant in table.get("variant", [{"name": ""}])]
    enqueued_trials = events(run, TrialEnqueued)
    cases = list(dict.fromkeys(event.case for event in enqueued_trials))
    trials, results = load(run).state.trials, Results()
    for event in enqueued_trials:
        scores = {scorer.partition(".")[2]: value for scorer, (_, value) in trials[event.trial].scores.items()}
        verdict, score = "pass" if scores.pop("pass") else "fail", scores.pop("score")
        metrics = {metric: round(float(scores[metric]), 9) for metric in sorted(scores)}
        number = cases.index(event.case) * table.get("repeats", 1) + event.repeat - 1
        results[f"{number} {variants.index(event.variant)}"] = [verdict, round(float(score), 9), metrics]
    return results


def promptfoo_results(name: str, directory: Path) -> Results:
    """Run promptfoo; return its verdicts."""
    results = run_promptfoo(Path(f"{name}.yaml").absolute(), directory / "results.json", PROMPTFOO_PYTHON=sys.executable)
    results.sort(key=lambda result: (result["testIdx"], result["promptIdx"]))
    return {f"{result['testIdx']} {result['promptIdx']}": verdict_of(result) for result in results}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("address")
def test_stored_verdicts(name: str) -> None:
    """Verdicts, scores and metrics equal those that promptfoo returned."""
    assert json.loads((HERE / "configs" / f"{name}.verdicts.json").read_text()) == our_results(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("address")
def test_promptfoo_has_the_stored_verdicts(name: str, tmp_path: Path) -> None:
    """Promptfoo returns the stored verdicts; delete the file to make a new one."""
    results, stored = promptfoo_results(name, tmp_path), HERE / "configs" / f"{name}.verdicts.json"
    if not stored.exists():
        stored.write_text("{\n" + ",\n".join(f'"{key}": {json.dumps(results[key])}' for key in results) + "\n}\n")

    assert json.loads(stored.read_text()) == results
