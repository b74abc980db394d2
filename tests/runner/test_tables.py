"""Cases from DataFrames and Hugging Face datasets: the same cases as from files, with exact values."""

import csv
import json
import sys
from array import array
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import datasets
import numpy as np
import openpyxl
import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it has no stubs
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it has no stubs
import pytest

import evaljournal
from evaljournal import Case, Dataset, UsageError, evaluation, load
from evaljournal.replay.export import MissingExtra

TEXTS = [
    {"id": "0042", "question": "The capital of Peru?", "answer": "Lima", "topic": "geography"},
    {"id": "b", "question": "=1+1, naïve\n2nd line", "answer": "", "topic": "東京"},
]
VALUES = [
    {"id": 1, "question": "a?", "answer": 1.5, "user": 7, "flag": True, "topic": None},
    {"id": 2, "question": "b?", "answer": 2.0, "user": None, "flag": None, "topic": "x"},
    {"id": 2**53 + 1, "question": "c?", "answer": -0.25, "user": 9, "flag": False, "topic": ""},
]
NESTED = [
    {"question": ["a", None], "answer": {"x": [1, 2], "y": None}, "at": "2024-05-06T07:08:09.123456+00:00", "price": "1.10"},
    {"question": [], "answer": {"x": [], "y": "z"}, "at": None, "price": "0.05"},
]


def read(source: Any, **options: Any) -> tuple[str | None, list[Case]]:
    """Return the fingerprint of a dataset and its cases."""
    trials = Dataset(source, **options).select()
    return trials.fingerprint, [trial.case for trial in trials]


def error_of(source: Any) -> str:
    """Return the error for a source of cases."""
    with pytest.raises(UsageError) as raised:
        list(Dataset(source).select())
    return str(raised.value)


def sources(rows: list[dict[str, Any]], directory: Path) -> Iterator[tuple[str, Any]]:
    """Yield the same rows as a JSONL file, a Parquet file, DataFrames, datasets and a function."""
    (directory / "qa.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), directory / "qa.parquet")
    yield "jsonl", directory / "qa.jsonl"
    yield "parquet", directory / "qa.parquet"
    yield "pandas", pd.DataFrame(rows)
    yield "pandas nullable", pd.DataFrame(rows).convert_dtypes()
    yield "pandas pyarrow", pd.read_parquet(directory / "qa.parquet", dtype_backend="pyarrow")
    yield "pandas from parquet", pd.read_parquet(directory / "qa.parquet")
    yield "polars", pl.DataFrame(rows)
    yield "datasets", datasets.Dataset.from_list(rows)
    yield "datasets in another format", datasets.Dataset.from_list(rows).with_format("numpy")
    yield "a function", lambda: pl.DataFrame(rows)
    yield "streamed", datasets.Dataset.from_list(rows).to_iterable_dataset()


def workbook(rows: list[dict[str, Any]], path: Path) -> Path:
    """Write an Excel file."""
    book = openpyxl.Workbook()
    sheet: Any = book.active
    sheet.append(list(rows[0]))
    for number, row in enumerate(rows, 2):
        for column, value in enumerate(row.values(), 1):
            sheet.cell(number, column, value).data_type = {str: "s", bool: "b"}.get(type(value), "n")  # "=" begins no formula.
    book.save(path)
    return path


@pytest.mark.parametrize("rows", [TEXTS, VALUES, NESTED], ids=["texts", "values", "nested"])
def test_all_sources_have_the_same_cases(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    """Names, inputs, expected outputs, metadata and fingerprints are those of a list of dicts."""
    fingerprint, cases = read(rows)
    results = {name: read(source) for name, source in sources(rows, tmp_path)}

    assert dict.fromkeys(results, repr(cases)) == {name: repr(result[1]) for name, result in results.items()}
    assert {fingerprint, None} == {result[0] for result in results.values()}
    assert {"a function", "streamed"} == {name for name, result in results.items() if result[0] is None}
    assert [case.fingerprint for case in cases] == [case.fingerprint for case in results["pandas"][1]]


def test_text_files_have_the_same_cases(tmp_path: Path) -> None:
    """A CSV file and a workbook of texts have them, too; an empty cell of a workbook is null, as everywhere but in CSV."""
    with (tmp_path / "qa.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(TEXTS[0]))
        writer.writeheader()
        writer.writerows(TEXTS)

    assert read(TEXTS) == read(tmp_path / "qa.csv")
    assert read(TEXTS[:1]) == read(workbook(TEXTS[:1], tmp_path / "texts.xlsx"))
    numbers = [{**row, "topic": row["topic"] or None, "answer": 2} for row in VALUES[:2]]
    assert repr(read(numbers)) == repr(read(workbook(numbers, tmp_path / "values.xlsx")))


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT, np.nan])
def test_a_missing_value_is_null(missing: Any) -> None:
    """Every missing value of pandas is null, also in a column of objects."""
    frame = pd.DataFrame({"question": ["a?", "b?"], "topic": pd.Series(["x", missing], dtype=object)})

    assert [{"topic": "x"}, {"topic": None}] == [case.metadata for case in read(frame)[1]]


def test_integers_stay_integers() -> None:
    """Integers that pandas has converted to floats are integers again; if a float has lost digits, that is an error."""
    users = pd.DataFrame({"question": ["a?", "b?", "c?"], "user": [1, None, 3], "share": [1.0, None, 0.5]})
    numbers = pd.DataFrame({"id": [1, 2**62], "question": [0.5, 1.0]})
    large_numbers = pd.DataFrame({"question": ["a?", "b?"], "user": [2**60 + 1, None]})

    assert "[1, None, 3]" == repr([case.metadata["user"] for case in read(users)[1]])
    assert "[1.0, None, 0.5]" == repr([case.metadata["share"] for case in read(users)[1]])
    assert [("1", 0.5), (str(2**62), 1.0)] == [(case.name, case.input) for case in read(numbers)[1]]
    assert "column 'user' has missing values, so pandas has converted its integers" in error_of(large_numbers)
    assert "1.152921504606847e+18" == repr(read(large_numbers.astype({"user": "Float64"}))[1][0].metadata["user"])


def test_values_of_other_types() -> None:
    """Dates, times, decimals, UUIDs and categories are text; arrays are lists."""
    uuid = UUID(int=1)
    frame = pd.DataFrame(
        {
            "question": pd.Categorical(["x", None]),
            "at": pd.to_datetime(["2024-01-02T03:04:05.000000006", None], format="ISO8601"),
            "day": [date(2024, 1, 2), None],
            "time": [time(1, 2, 3), None],
            "price": [Decimal("1.10"), None],
            "number": [uuid, None],
            "list": [np.array([1, 2]), None],
            "numbers": [array("d", [0.5]), None],
            "level": pd.Categorical([1, None]),
        }
    )
    first, second = (case.metadata for case in read(frame)[1])

    assert {
        "at": "2024-01-02T03:04:05.000000006",
        "day": "2024-01-02",
        "time": "01:02:03",
        "price": "1.10",
        "number": str(uuid),
        "list": [1, 2],
        "numbers": [0.5],
        "level": 1,
    } == first
    assert [None] * 8 == list(second.values())
    frame = pl.DataFrame(
        {"question": ["x"], "at": [datetime(2024, 1, 2, tzinfo=UTC)], "day": [date(2024, 1, 2)], "price": [Decimal("1.10")]}
    )
    assert {"at": "2024-01-02T00:00:00+00:00", "day": "2024-01-02", "price": "1.10"} == read(frame)[1][0].metadata


def test_the_index_of_a_frame() -> None:
    """A level of the index that has a name is a column; one without a name is ignored."""
    frame = pd.DataFrame({"id": ["peru"], "question": ["a?"]})

    assert read(frame)[1] == read(frame.set_index("id"))[1] == read(frame.set_index("id", drop=False))[1]
    assert read(frame)[1] == read(frame.set_axis(["unnamed"]))[1]

    frame.index = pd.Index(["other"] * len(frame), name="id")
    with pytest.raises(UsageError, match="the index and a column are named 'id', but their values differ"):
        read(frame)


class Frame(pd.DataFrame):  # type: ignore[misc]  # pandas has no types
    """A subclass, as of GeoPandas."""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            datasets.DatasetDict(train=datasets.Dataset.from_list(TEXTS), test=datasets.Dataset.from_list(TEXTS)),
            "'train', 'test'",
        ),
        (pl.DataFrame(TEXTS).lazy(), "pass the result of its collect()"),
        (pa.Table.from_pylist(TEXTS), "cases of type Table are not supported"),
        (pl.DataFrame({"question": [1.0, float("nan")]}), "case 2: input is nan"),
        (pl.DataFrame({"question": [b"x"]}), "input is of type bytes"),
        (pd.DataFrame({"question": [b"x"]}), "input is of type bytes"),
        (pd.DataFrame([["a", "b"]], columns=["input", "input"]), "duplicate columns: 'input'"),
        (Frame([["a", 1]], columns=["input", 0]), "metadata has the key 0"),
        (pd.DataFrame({"id": [1.0, 2.0], "input": ["a", "b"]}), "the id in 'id' is 1.0"),
        (pd.DataFrame({"id": [1, None], "input": ["a", "b"]}), "case 2: the id in 'id' is empty"),
        (pd.DataFrame({"input": [[pd.Timedelta(1)]]}), "input[0] is of type Timedelta"),
        (pd.DataFrame({"input": [np.array(["2024"], dtype="M8[ns]")]}), "input is of type ndarray"),
        (pd.DataFrame(), "the dataset has no cases"),
        (datasets.Dataset.from_list([]), "the dataset has no cases"),
        (lambda: {"a": 1}, "cases of type dict are not supported"),
    ],
)
def test_what_cannot_be_read_is_an_error(source: Any, message: str) -> None:
    """An error names the splits, the row, the column or the type."""
    assert message in error_of(source)


def test_images_are_not_decoded() -> None:
    """An image of a dataset is an error that names its column; it is not decoded."""
    images = datasets.Dataset.from_list([{"question": "a?", "image": {"bytes": b"\x89PNG broken", "path": None}}])
    images = images.cast_column("image", datasets.Image())

    assert "metadata.image.bytes is of type bytes" in error_of(images)
    assert 1 == len(read(images.remove_columns("image"))[1])


def test_a_streamed_dataset_is_read_lazily(tmp_path: Path) -> None:
    """A streamed dataset is not read ahead."""
    read_rows: list[int] = []

    def rows() -> Iterator[dict[str, int]]:
        for number in range(100):
            read_rows.append(number)
            yield {"input": number}

    stream = datasets.IterableDataset.from_generator(rows)

    @evaluation(cases=stream, limit=3)
    def same(number: int) -> int:
        return number

    outcome = evaljournal.run(same, tmp_path / "run", quiet=True)

    assert [0, 1, 2] == sorted(dict(load(outcome.path).outputs()).values())
    assert len(read_rows) < 10


def test_frames_of_a_run(tmp_path: Path) -> None:
    """Both kinds of frames have the rows of an export, with a type for each column."""

    @evaluation(cases=pd.DataFrame(TEXTS), repeats=2)
    def lima(_: str) -> dict[str, Any]:
        evaljournal.step("call", int)
        return {"city": "Lima"}

    @lima.score
    def right(output: dict[str, str], expected: str) -> bool:
        return output["city"] == expected

    @lima.score
    def length(output: dict[str, str]) -> float:
        if len(output["city"]) > 3:
            raise ValueError("too long")
        return 0.5

    outcome = evaljournal.run(lima, tmp_path / "run", quiet=True)
    run = load(outcome.path)
    pandas_trials, polars_trials = outcome.to_pandas(), outcome.to_polars()

    assert {"input": "object", "repeat": "Int64", "ended_at": "datetime64[us, UTC]"} == {
        name: str(pandas_trials[name].dtype) for name in ("input", "repeat", "ended_at")
    }
    assert ("boolean", "float64", "string") == tuple(map(str, pandas_trials.dtypes[["score.right", "latency", "trial"]]))
    assert {"city": "Lima"} == pandas_trials["output"][0]
    assert pl.Datetime("us", "UTC") == polars_trials.schema["ended_at"]
    assert (pl.Boolean, pl.Float64, pl.Int64) == tuple(
        polars_trials.schema[name] for name in ("score.right", "latency", "repeat")
    )
    assert '{"city":"Lima"}' == polars_trials["output"][0]
    assert list(pandas_trials["trial"]) == polars_trials["trial"].to_list()
    assert ["call"] * 4 == list(run.to_pandas(rows="steps")["name"]) == run.to_polars("steps")["name"].to_list()
    assert [pd.NA] * 4 == list(run.to_pandas("steps")["parent"])
    scores = run.to_polars("scores")
    assert {("right", True, None), ("right", False, None), ("length", None, "ValueError")} == set(
        scores.select("scorer", "score", "error").rows()
    )
    assert (4, 8) == (len(outcome.to_pandas("attempts")), len(outcome.to_pandas("scores")))
    assert run.seq == len(run.to_polars("events"))
    assert 0 == len(load(outcome.path, at=3).to_pandas())
    message = "rows must be one of 'trials', 'attempts', 'steps', 'scores', 'labels', 'events', not 'cases'"
    with pytest.raises(Exception, match=message):
        run.to_pandas("cases")  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_frames_without_the_package(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package."""
    outcome = evaljournal.run(evaluation(cases=[1], name="one")(abs), tmp_path / "run", quiet=True)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(MissingExtra, match=f"pip install {package}"):
        getattr(outcome, f"to_{package}")()
