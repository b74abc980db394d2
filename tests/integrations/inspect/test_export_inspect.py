"""The Inspect export, read by Inspect itself."""

import math
import warnings
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from evaljournal.journal.events import Noted, RunStopped
from tests.journal.samples import finished, forge, opened, session, started, trial, write_sync
from tests.replay.eventful_run import FORMULA, LARGE, UNSAFE, eventful_run, export_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Warnings of Inspect's own imports.
    from inspect_ai.analysis import events_df, messages_df, samples_df
    from inspect_ai.event import ModelEvent, ScoreEvent
    from inspect_ai.log import EvalLog, read_eval_log, read_eval_log_sample, read_eval_log_sample_summaries


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Export the eventful run."""
    target = tmp_path / "run.eval"
    target.write_bytes(export_of(eventful_run(tmp_path / "run"), "inspect"))
    return str(target)


def read(path: Path) -> EvalLog:
    target = path.with_suffix(".eval")
    target.write_bytes(export_of(path, "inspect"))
    return read_eval_log(str(target))


def test_inspect_reads_the_log(file: str) -> None:
    """Inspect finds the evaluation, its status, and the completed and failed trials."""
    log = read_eval_log(file)

    assert ("capitals", "cancelled", "none/none") == (log.eval.task, log.status, log.eval.model)
    assert [("chad", 1), ("chad", 2), ("oslo", 1), ("peru", 1)] == sorted((s.id, s.epoch) for s in log.samples or ())


def test_sample(file: str) -> None:
    """A sample has the input, target, output, scores with reasons, metadata and times."""
    peru = read_eval_log_sample(file, "peru", 1)

    assert ("The capital of Peru?", "Lima", "Lima") == (peru.input, peru.target, peru.output.completion)
    assert [("user", "The capital of Peru?"), ("assistant", "Lima")] == [
        (message.role, message.content) for message in peru.messages
    ]
    assert {"exact": True, "tone": "polite", "closeness": 1.0} == {
        name: score.value for name, score in (peru.scores or {}).items()
    }
    assert "+ it says please" == (peru.scores or {})["tone"].explanation
    assert "easy" == peru.metadata["difficulty"]
    assert (0.013, 0.003) == (peru.total_time, peru.working_time)


def test_truncated_and_declined_outputs(tmp_path: Path) -> None:
    """A truncated output has the stop reason `max_tokens`, a declined one `content_filter`."""
    truncated = Noted(name="evaljournal.answer", value={"outcome": "truncated"}, trial="a", attempt=1)
    declined = Noted(name="evaljournal.answer", value={"outcome": "declined"}, trial="c", attempt=1)
    first, last = trial("a"), trial("c")
    events = [*first[:2], truncated, *first[2:], *trial("b"), *last[:2], declined, *last[2:]]
    write_sync(tmp_path / "run", [started(), session(), *events])
    samples = read(tmp_path / "run").samples or []

    assert {"a": "max_tokens", "b": "stop", "c": "content_filter"} == {
        str(sample.id): sample.output.stop_reason for sample in samples
    }


def test_failed_scorer(file: str) -> None:
    """A failed scorer is unscored, with its error; Inspect excludes it from its metrics."""
    score = (read_eval_log_sample(file, "oslo", 1).scores or {})["exact"]

    assert isinstance(score.value, float)
    assert math.isnan(score.value)
    assert ("ValueError", "ValueError: no verdict") == (score.reason, score.explanation)


def test_the_dataset_counts_samples(file: str) -> None:
    """A case that is repeated is one sample of the dataset and several epochs."""
    assert 4 == read_eval_log(file, header_only=True).eval.dataset.samples


def test_a_model(tmp_path: Path) -> None:
    """The model, its parameters, messages and usage are where Inspect has its own."""
    definition = {"task": {"model": "small", "address": "https://api.mistral.ai/v1/chat/completions"}}
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Peru?"}]
    body = {"model": "small", "messages": messages, "temperature": 0, "max_completion_tokens": 9}
    trial_events = trial("a", retries=1)
    trial_events[1] = attrs.evolve(trial_events[1], request=body)  # type: ignore[misc]  # an event is an attrs class
    trial_events[-3] = attrs.evolve(trial_events[-3], usage={"input_tokens": 7, "output_tokens": 2})  # type: ignore[misc]  # an event is an attrs class
    run_started = attrs.evolve(started(), definition=definition)  # type: ignore[misc]  # an event is an attrs class
    write_sync(tmp_path / "run", [run_started, session(), *trial_events])
    log = read(tmp_path / "run")
    assert log.samples is not None
    (sample,) = log.samples
    failed, answered, scored = sample.events
    assert isinstance(failed, ModelEvent)
    assert isinstance(answered, ModelEvent)
    assert isinstance(scored, ScoreEvent)

    assert {"mistral/small"} == {log.eval.model, sample.output.model, failed.model, answered.model, *sample.model_usage}
    assert [("system", "Be brief."), ("user", "Peru?"), ("assistant", "Lima")] == [
        (message.role, message.content) for message in sample.messages
    ]
    assert sample.messages[:2] == failed.input == answered.input
    assert (0.0, 9) == (answered.config.temperature, answered.config.max_tokens)
    assert answered.output.usage is not None
    assert (7, 2) == (answered.output.usage.input_tokens, answered.output.usage.output_tokens)
    assert (None, "Lima", "exact") == (answered.error, answered.output.completion, scored.scorer)
    assert failed.error is not None
    assert failed.timestamp < answered.timestamp <= (answered.completed or answered.timestamp) < scored.timestamp


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Of pandas, in Inspect's code.
def test_data_frames(file: str) -> None:
    """Inspect's data frames have the samples, messages and events."""
    samples = samples_df(file, quiet=True)
    messages = messages_df(file, quiet=True)
    events = events_df(file, quiet=True)

    assert 4 == len(samples)
    assert {("user", "The capital of Peru?"), ("assistant", "Lima")} <= set(
        zip(messages["role"], messages["content"], strict=True)
    )
    assert 3 == sum(messages["role"] == "assistant")
    assert {"model": 6, "score": 5} == events["event"].value_counts().to_dict()


def test_failed_trial(file: str) -> None:
    """A failed trial has an error and no score; its earlier attempts are error retries."""
    chad = read_eval_log_sample(file, "chad", 1)

    assert chad.error is not None
    assert ("timeout: timed out after 30 s", {}, "") == (chad.error.message, chad.scores, chad.output.completion)
    assert ["RateLimited: slow down"] == [retry.message for retry in chad.error_retries or ()]


def test_values(file: str) -> None:
    """Values other than text are exported as JSON; control characters and large texts are kept."""
    repeat, oslo = read_eval_log_sample(file, "chad", 2), read_eval_log_sample(file, "oslo", 1)

    assert ('{"q":"Chad?"}', ["N'Djamena"]) == (repeat.input, repeat.target)
    assert {"answer": UNSAFE} == orjson.loads(repeat.output.completion)
    assert (FORMULA, LARGE) == (oslo.input, oslo.output.completion)


def test_totals(file: str) -> None:
    """The header has the mean, standard error and number of samples per scorer; labels have no mean."""
    log = read_eval_log(file, header_only=True)
    assert log.results is not None

    assert (5, 3) == (log.results.total_samples, log.results.completed_samples)
    assert [("exact", 2, {"accuracy": 0.5, "stderr": 0.5}), ("tone", 1, {}), ("closeness", 1, {"mean": 1.0})] == [
        (score.name, score.scored_samples, {name: metric.value for name, metric in score.metrics.items()})
        for score in log.results.scores
    ]


def test_summaries(file: str) -> None:
    """Every sample is in the list that Inspect's viewer shows first."""
    summaries = read_eval_log_sample_summaries(file)

    assert {("peru", None), ("chad", "timeout: timed out after 30 s"), ("chad", None), ("oslo", None)} == {
        (summary.id, summary.error) for summary in summaries
    }
    assert all(summary.completed for summary in summaries)


@pytest.mark.parametrize(
    ("outcome", "status"), [("finished", "success"), ("interrupted", "cancelled"), ("failed_fast", "error"), ("", "started")]
)
def test_status(tmp_path: Path, outcome: str, status: str) -> None:
    """A finished run is a success, a stopped one is not, and one without an end has started."""
    ends: dict[str, list[Any]] = {"": [], "finished": [finished()]}
    last = ends.get(outcome, [RunStopped(reason=outcome)])  # type: ignore[arg-type]  # one of the reasons
    write_sync(tmp_path / "run", [started(), session(), *trial("a"), *last])

    assert status == read(tmp_path / "run").status


@pytest.mark.parametrize("name", ["a/b", "../../etc/passwd", "x\0y", "é" * 40_000, "samples/a_epoch_1.json", " "])
def test_unusual_names(tmp_path: Path, name: str) -> None:
    """Every case name gives a sample of its own."""
    write_sync(tmp_path / "run", [started(), session(), *trial("a"), *trial(name)])

    assert {"a", name} == {sample.id for sample in read(tmp_path / "run").samples or ()}


def test_invalid_settings(tmp_path: Path) -> None:
    """Inspect reads the log of a journal with invalid settings."""
    run_started = attrs.evolve(started(), settings={"repeats": "many"})  # type: ignore[misc]  # an event is an attrs class
    forge(tmp_path / "run", [opened(), run_started, session(), *trial("a")])

    assert ["a"] == [sample.id for sample in read(tmp_path / "run").samples or ()]
