"""The trials of a run as a DataFrame."""

import sys
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it has no stubs
import pytest

from evaljournal import Case, evaluation, run
from evaljournal.replay.export import MissingExtra

CASES = [Case(name=name, input={"city": name}, expected=name.title()) for name in ("lima", "rome")]


def test_trials_and_attempts(tmp_path: Path) -> None:
    """Columns are those of an export; inputs and outputs are objects, times are timestamps."""

    @evaluation(cases=CASES, variants={"title": {"upper": False}, "upper": {"upper": True}})
    def cities(value: dict[str, str], *, upper: bool) -> str:
        return value["city"].upper() if upper else value["city"].title()

    @cities.score
    def exact(output: str, expected: str) -> bool:
        return output == expected

    outcome = run(cities, tmp_path / "run", quiet=True)
    trials: Any = outcome.to_pandas()

    assert ["lima@title", "lima@upper", "rome@title", "rome@upper"] == list(trials["trial"])
    assert ["title", "upper", "title", "upper"] == list(trials["variant"])
    assert {"city": "lima"} == trials["input"][0]
    assert [True, False, True, False] == list(trials["score.exact"])
    assert pd.api.types.is_datetime64_any_dtype(trials["ended_at"])
    assert 4 == len(outcome.to_pandas("attempts"))
    assert list(range(1, outcome.state.seq)) == list(outcome.to_pandas("events")["seq"])[: outcome.state.seq - 1]


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_without_the_package(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package."""
    outcome = run(evaluation(cases=[1], name="one")(abs), tmp_path / "run", quiet=True)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(MissingExtra, match=f"pip install {package}"):
        getattr(outcome, f"to_{package}")()
