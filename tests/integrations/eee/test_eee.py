"""The export `eee`: logs and samples as the data store of Every Eval Ever expects them.

Both were validated with its schemas 0.3.0; what they require is asserted here.
"""

from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson

from evaljournal.journal.fact import evolve_fact
from tests.journal.samples import session, started, write_sync, write_trials
from tests.replay.agent_run import ANSWER, agent_run
from tests.replay.eventful_run import export_files
from tests.replay.trial_events import answered, failed


def logs_of(run: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return the log and the samples of each variant; their names and the checksum must fit."""
    files = export_files(run, "eee")
    logs = []
    for name in (name for name in files if name.endswith(".json")):
        log, text = orjson.loads(files[name]), files[f"{name.removesuffix('.json')}_samples.jsonl"]
        details = log["detailed_evaluation_results"]
        samples = [orjson.loads(line) for line in text.splitlines()]
        assert (f"{name.removesuffix('.json')}_samples.jsonl", len(samples)) == (details["file_path"], details["total_rows"])
        assert sha256(text.encode()).hexdigest() == details["checksum"]
        assert 4 == UUID(Path(name).stem).version
        assert {(log["evaluation_id"], log["model_info"]["id"])} >= {(row["evaluation_id"], row["model_id"]) for row in samples}
        logs.append((log, samples))
    assert 2 * len(logs) == len(files)
    return logs


def test_results_and_samples(tmp_path: Path) -> None:
    """A score has its mean and interval, and each output a sample; an error is counted, and in neither."""
    trials = [answered(f"case-{at}", {"exact": at < 3, "length": 2.5, "kind": "short"}) for at in range(4)]
    definition = {"task": {"model": "gpt-x", "address": "https://api.openai.com/v1"}}
    run = write_trials(tmp_path / "run", *trials, failed("case-4"), definition=definition)

    ((log, samples),) = logs_of(run)
    exact, length = log["evaluation_results"]

    assert "openai/gpt-x" == log["model_info"]["id"]
    assert (0.75, 4, {"errors": "1", "cases": "4"}) == (
        exact["score_details"]["score"],
        exact["score_details"]["uncertainty"]["num_samples"],
        exact["score_details"]["details"],
    )
    assert ("binary", 0, 1) == tuple(exact["metric_config"][name] for name in ("score_type", "min_score", "max_score"))
    assert ("continuous", "-Infinity", 2.5) == (
        length["metric_config"]["score_type"],
        length["metric_config"]["min_score"],
        length["score_details"]["score"],
    )
    own = [row for row in samples if row["evaluation_result_id"] == exact["evaluation_result_id"]]
    assert [("case-0", 1.0, True), ("case-3", 0.0, False)] == [
        (row["sample_id"], row["evaluation"]["score"], row["evaluation"]["is_correct"]) for row in (own[0], own[3])
    ]
    assert (8, "single_turn", None) == (len(samples), own[0]["interaction_type"], own[0]["messages"])


def test_agents_have_messages(tmp_path: Path) -> None:
    """The sample of an agent has messages and the number of its tool calls, and no output, as the schema requires."""
    ((_, samples),) = logs_of(agent_run(tmp_path / "run"))
    sample = samples[0]

    assert ("agentic", None) == (sample["interaction_type"], sample["output"])
    assert (ANSWER, True) == (sample["messages"][-1]["content"], sample["evaluation"]["tool_calls_count"] > 0)


def test_variants_have_logs_of_their_own(tmp_path: Path) -> None:
    """Each variant has a log and samples in the directory of its model; the names contain nothing that leaves the directory."""
    definition = {"variants": {name: {"task": {"model": f"../{name}"}} for name in ("a", "b")}}
    cases = [event for name in ("a", "b") for event in answered(f"x@{name}", {"exact": name == "a"}, variant=name)]
    write_sync(tmp_path / "run", [evolve_fact(started(), definition=definition), session(), *cases])

    logs = logs_of(tmp_path / "run")

    assert {1.0, 0.0} == {log["evaluation_results"][0]["score_details"]["score"] for log, _ in logs}
    assert not [name for name in export_files(tmp_path / "run", "eee") if ".." in name or not name.startswith("data/")]
