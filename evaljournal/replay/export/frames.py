"""Tables of a run as DataFrames of pandas and polars; neither is a dependency."""

from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from evaljournal.replay.export.source import Source
from evaljournal.replay.export.tables import Kind, MissingExtra, Rows, table, typed_value
from evaljournal.replay.render.ending import progress_text
from evaljournal.replay.render.phrases import mean_text
from evaljournal.replay.runs import loaded_run
from evaljournal.replay.runs.loaded_run import LoadedRun
from evaljournal.replay.text import printable

_DTYPES: Final[dict[str, dict[Kind, str]]] = {
    "pandas": {
        "text": "string",
        "time": "datetime64[us, UTC]",
        "integer": "Int64",
        "number": "float64",
        "boolean": "boolean",
        "any": "object",
    },
    "polars": {"text": "String", "integer": "Int64", "number": "Float64", "boolean": "Boolean", "any": "String"},
}


def data_frame(package: Literal["pandas", "polars"], path: Path, rows: Rows, at: int | None = None) -> Any:
    """Return a table, with the types of a Parquet file; values that are JSON in a file are objects in pandas."""
    try:
        module: Any = import_module(package)
    except ImportError as exc:
        raise MissingExtra(f"a DataFrame needs {package}, which is not installed: pip install {package}") from exc

    content = table(Source(path, at), rows)
    columns, dtypes, is_pandas = content.columns, _DTYPES[package], package == "pandas"
    values: list[list[Any]] = [[] for _ in columns]
    for row in content.rows:
        for column, column_values in zip(columns, values, strict=True):
            is_object = is_pandas and column.kind == "any"
            column_values.append(column.get(row) if is_object else typed_value(column, row))

    named_values = list(zip(columns, values, strict=True))
    if is_pandas:
        return module.DataFrame({column.name: module.Series(data, dtype=dtypes[column.kind]) for column, data in named_values})
    types = {kind: getattr(module, name) for kind, name in dtypes.items()} | {"time": module.Datetime("us", "UTC")}
    return module.DataFrame([module.Series(column.name, data, types[column.kind]) for column, data in named_values])


@attrs.define
class TabularRun(LoadedRun):
    """A loaded run with its tables as DataFrames."""

    def __repr__(self) -> str:
        """Return the run in one line: `<qa finished: 60 of 60 trials done, exact 91.4 %, in runs/qa/0001>`."""
        name = printable(self.state.started.evaluation) if self.state.started else "a run that has not started"
        scores = [f"{printable(name, 24)} {mean_text(tally.kind, tally.mean)}" for name, tally in self.state.scores.items()]
        parts = [f"{progress_text(self.state)} done", *scores, f"in {printable(str(self.path), 500)}"]
        return f"<{name} {self.status}: {', '.join(parts)}>"

    def to_pandas(self, rows: Rows = "trials") -> Any:
        """Return the trials as a pandas DataFrame, or the attempts, steps, scores or events, with the columns of an export."""
        return data_frame("pandas", self.path, rows, self.seq)

    def to_polars(self, rows: Rows = "trials") -> Any:
        """Return a polars DataFrame, as `to_pandas` does; columns of mixed values have JSON."""
        return data_frame("polars", self.path, rows, self.seq)


def load(path: Path | str, at: int | None = None) -> TabularRun:
    """Load a run (live, stopped, finished or damaged) in full, or up to record `at`.

    Damage and invalid records do not raise an error unless record `at` comes after them; they are described in `problem`.
    """
    run = TabularRun(Path(path))
    loaded_run.load(path, at, run=run)
    return run
