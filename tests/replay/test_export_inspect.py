"""A log for Inspect, read by Inspect itself."""

import warnings
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from journal.events import Noted, RunStopped
from tests.journal.samples import finished, forge, opened, session, started, trial, written
from tests.replay.eventful_run import FORMULA, LARGE, NASTY, eventful_run, exported

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # What Inspect's own imports complain about is not ours.
    from inspect_ai.log import EvalLog, read_eval_log, read_eval_log_sample, read_eval_log_sample_summaries


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Export the run in which everything happens."""
    target = tmp_path / "run.eval"
    target.write_bytes(exported(eventful_run(tmp_path / "run"), "inspect"))
    return str(target)


def read(path: Path) -> EvalLog:
    target = path.with_suffix(".eval")
    target.write_bytes(exported(path, "inspect"))
    return read_eval_log(str(target))


def test_inspect_reads_it(file: str) -> None:
    """Inspect finds the evaluation, how it ended, and the trials that have come to their end."""
    log = read_eval_log(file)

    assert ("capitals", "cancelled", "none/none") == (log.eval.task, log.status, log.eval.model)
    assert [("chad", 1), ("chad", 2), ("oslo", 1), ("peru", 1)] == sorted((s.id, s.epoch) for s in log.samples or ())


def test_a_sample_has_everything(file: str) -> None:
    """Input, target, output, scores with their reasons, metadata and times are where Inspect looks for them."""
    peru = read_eval_log_sample(file, "peru", 1)

    assert ("The capital of Peru?", "Lima", "Lima") == (peru.input, peru.target, peru.output.completion)
    assert [("user", "The capital of Peru?"), ("assistant", "Lima")] == [(each.role, each.content) for each in peru.messages]
    assert {"exact": True, "tone": "polite", "closeness": 1.0} == {
        name: score.value for name, score in (peru.scores or {}).items()
    }
    assert "+ it says please" == (peru.scores or {})["tone"].explanation
    assert "easy" == peru.metadata["difficulty"]
    assert (0.013, 0.003) == (peru.total_time, peru.working_time)


def test_an_output_that_was_cut_short_says_so(tmp_path: Path) -> None:
    """What the limit of tokens has cut short has another reason to end than what is whole."""
    short = Noted(name="evaljournal.finish_reason", value="length", trial="a", attempt=1)
    events = trial("a")
    written(tmp_path / "run", [started(), session(), *events[:2], short, *events[2:], *trial("b")])
    samples = read(tmp_path / "run").samples or []

    assert {"a": "max_tokens", "b": "stop"} == {str(sample.id): sample.output.stop_reason for sample in samples}


def test_a_failed_trial_is_a_sample_with_an_error(file: str) -> None:
    """A trial that was given up has no score and its error; what was tried before is among the retries."""
    chad = read_eval_log_sample(file, "chad", 1)

    assert chad.error is not None
    assert ("timeout: timed out after 30 s", {}, "") == (chad.error.message, chad.scores, chad.output.completion)
    assert ["RateLimited: slow down"] == [each.message for each in chad.error_retries or ()]


def test_any_value_is_told(file: str) -> None:
    """What is not text is told in JSON, what is nasty or large as it is."""
    again, oslo = read_eval_log_sample(file, "chad", 2), read_eval_log_sample(file, "oslo", 1)

    assert ('{"q":"Chad?"}', ["N'Djamena"]) == (again.input, again.target)
    assert {"answer": NASTY} == orjson.loads(again.output.completion)
    assert (FORMULA, LARGE) == (oslo.input, oslo.output.completion)


def test_the_totals_are_ours(file: str) -> None:
    """The header has a mean and its standard error per scorer, and says of how many; labels have none."""
    log = read_eval_log(file, header_only=True)
    assert log.results is not None

    assert (5, 3) == (log.results.total_samples, log.results.completed_samples)
    assert [("exact", 2, {"accuracy": 0.5, "stderr": 0.5}), ("tone", 1, {}), ("closeness", 1, {"mean": 1.0})] == [
        (score.name, score.scored_samples, {name: metric.value for name, metric in score.metrics.items()})
        for score in log.results.scores
    ]


def test_the_viewer_has_its_summaries(file: str) -> None:
    """Every sample is in the list that Inspect's viewer shows first."""
    summaries = read_eval_log_sample_summaries(file)

    assert {("peru", None), ("chad", "timeout: timed out after 30 s"), ("chad", None), ("oslo", None)} == {
        (each.id, each.error) for each in summaries
    }
    assert all(each.completed for each in summaries)


@pytest.mark.parametrize(
    ("ending", "status"), [("finished", "success"), ("interrupted", "cancelled"), ("failed_fast", "error"), ("", "started")]
)
def test_how_it_ended(tmp_path: Path, ending: str, status: str) -> None:
    """A finished run is a success, a stopped one is not, and one that has no end is going on."""
    ends: dict[str, list[Any]] = {"": [], "finished": [finished()]}
    last = ends.get(ending, [RunStopped(reason=ending)])  # type: ignore[arg-type]  # one of those that there are
    written(tmp_path / "run", [started(), session(), *trial("a"), *last])

    assert status == read(tmp_path / "run").status


@pytest.mark.parametrize("name", ["a/b", "../../etc/passwd", "x\0y", "é" * 40_000, "samples/a_epoch_1.json", " "])
def test_any_name_is_a_sample(tmp_path: Path, name: str) -> None:
    """Whatever a case is called, it is a sample of its own beside the others."""
    written(tmp_path / "run", [started(), session(), *trial("a"), *trial(name)])

    assert {"a", name} == {sample.id for sample in read(tmp_path / "run").samples or ()}


def test_a_run_from_elsewhere_is_read_too(tmp_path: Path) -> None:
    """A journal whose times and settings are nonsense makes a log that Inspect still reads."""
    begun = attrs.evolve(started(), settings={"repeats": "many"})  # type: ignore[misc]  # a fact is an attrs class
    forge(tmp_path / "run", [opened(), begun, session(), *trial("a")])

    assert ["a"] == [sample.id for sample in read(tmp_path / "run").samples or ()]
