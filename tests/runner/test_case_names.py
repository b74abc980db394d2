"""Cases without an id are named after their content."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.runner.data import case as case_module
from evaljournal.runner.data.case import Case, ContentNames
from evaljournal.runner.data.dataset import Dataset, Selection
from evaljournal.runner.errors import UsageError
from tests.runner.test_dataset import JSON


def names_of(rows: Any, selection: Selection | None = None) -> list[str]:
    """Return the names of the cases of a dataset, in order."""
    return [trial.id for trial in Dataset(rows).select(selection)]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("Capital of Peru", "capital-of-peru-ac61a0"),
        ("  What's the capital\nof Peru?! ", "whats-the-capital-of-peru-"),
        ("The quick brown fox jumps over the lazy dog", "the-quick-brown-fox-jumps-over-"),
        ("x" * 100, "x" * 32 + "-"),
        ("ペルーの首都は?", "ペルーの首都は-"),
        ("पेरू की राजधानी", "पेरू-की-राजधानी-"),
        ({"question": "Capital of Peru", "context": ["Lima", 3]}, "lima-3-capital-of-peru-"),
        (1.5, "1-5-"),
        (True, "true-"),
        (None, "case-"),
        ("?!", "case-"),
        ("\x1b[2J", "2j-"),
    ],
)
def test_names(value: Any, name: str) -> None:
    """The name has the first words of the input; the digits are those of the fingerprint."""
    case: Case = Case(input=value)
    words, _, digits = case.name.rpartition("-")

    assert case.name.startswith(name)
    assert case.fingerprint.startswith(digits)
    assert (10 if words == "case" or len(words) > 28 else 6) == len(digits)


@given(JSON)
def test_any_content_has_a_name(value: Any) -> None:
    """A name is printable and short, and two cases that differ only in their expected answer have different names."""
    case: Case = Case(input=value)

    assert case.name.isprintable()
    assert len(case.name) <= 43
    assert case.name != Case(input=value, expected="other").name


@given(st.lists(st.text("ab ", max_size=3), min_size=1), st.randoms())
def test_names_do_not_depend_on_the_order(inputs: list[str], rng: random.Random) -> None:
    """Rows can be sorted or inserted: the names stay the same, from a list, a generator and in a shuffled run."""
    before = names_of(inputs)
    rng.shuffle(inputs)

    assert sorted(before) == sorted(names_of(inputs)) == sorted(names_of(iter(inputs)))
    assert sorted(before) == sorted(names_of(inputs, Selection(shuffle=True)))
    assert set(before) <= set(names_of(["new", *inputs]))


def test_equal_rows_are_numbered(tmp_path: Path) -> None:
    """Equal rows without an id are numbered in order, in the same way when a file is read again."""
    path = tmp_path / "qa.jsonl"
    rows = [{"question": "a"}, {"question": "b"}, {"question": "a"}, {"question": "a"}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    a, b = Case(input="a").name, Case(input="b").name
    trials = Dataset(path).select()

    assert [a, b, f"{a}-2", f"{a}-3"] == [trial.id for trial in trials] == [trial.id for trial in trials]
    assert [a, b, f"{a}-2"] == names_of(path, Selection(limit=3))
    assert [a, f"{a}-2", f"{a}-3"] == names_of(path, Selection(only=f"{a}*"))
    assert 1 == len({trial.case.fingerprint for trial in trials if trial.id != b})


def test_an_id_is_never_changed() -> None:
    """An id that equals a generated name is a duplicate, not renumbered."""
    name = Case(input="a").name
    with pytest.raises(UsageError, match=r"case 2: the id .* is already used by case 1"):
        names_of(["a", Case(name=name, input="b")])
    with pytest.raises(UsageError, match=r"case 3: the id .* is already used by case 2"):
        names_of(["a", "a", Case(name=f"{name}-2", input="b")])


@pytest.fixture
def one_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the digits, so that names of different cases collide."""
    monkeypatch.setattr(case_module, "_DIGITS", 1)


@pytest.mark.usefixtures("one_digit")
def test_colliding_names_are_lengthened() -> None:
    """Different cases of one name get all digits, in any order; other cases keep their names."""
    rows: list[Any] = [("same", n) for n in range(30)] + [("same", 3)]
    names = dict(zip(map(str, rows), names_of(rows), strict=True))
    lengthened = [name for name in names.values() if len(name.split("-")[1]) == 16]

    assert 31 == len(set(names_of(rows)))
    assert len(lengthened) > 20
    assert sorted(names_of(rows)) == sorted(names_of(rows[::-1]))
    assert names == dict(zip(map(str, rows[::-1]), names_of(rows[::-1]), strict=True)) | {str(rows[3]): names[str(rows[3])]}

    def read_once() -> Iterator[Any]:
        yield from rows

    assert 31 == len(set(names_of(read_once())))


@pytest.mark.usefixtures("one_digit")
def test_names_of_a_second_reading() -> None:
    """With the collisions of a first reading, the second needs no memory of all names to arrive at the same ones."""
    cases: list[Case] = [Case(input="same", expected=n % 25) for n in range(40)]
    first = ContentNames()
    for case in cases:
        first.rename(case)
    second = ContentNames(first.collisions)
    names = [second.rename(case).name for case in cases]
    third = ContentNames(second.collisions, second.equal_case_names)

    assert 40 == len(set(names))
    assert names == [third.rename(case).name for case in cases]


def test_nan(tmp_path: Path) -> None:
    """NaN is an error that names the option, or is read as null, in a row, a list and a case."""
    nan = float("nan")
    path = tmp_path / "qa.jsonl"
    path.write_text('{"id": "a", "input": NaN, "score": [1.5, NaN]}\n')
    with pytest.raises(UsageError, match=r"line 1: input is nan, .*-s nan=null, or Dataset\(…, nan='null'\)"):
        Dataset(path).select()
    with pytest.raises(UsageError, match="nan='zero'"):
        Dataset(path, nan="zero")  # type: ignore[arg-type]
    rows = [{"id": "b", "input": "b", "expected": nan}, ("c", {"n": nan}), nan, Case(name="d", input="d", expected=(nan, 1))]
    read = [trial.case for rows in (path, rows) for trial in Dataset(rows, nan="null").select()]

    assert [
        ("a", None, None, {"score": [1.5, None]}),
        ("b", "b", None, {}),
        (Case(input="c", expected={"n": None}).name, "c", {"n": None}, {}),
        (Case(input=None).name, None, None, {}),
        ("d", "d", (None, 1), {}),
    ] == [(case.name, case.input, case.expected, case.metadata) for case in read]
    with pytest.raises(UsageError, match="case 1: input is inf") as raised:
        Dataset([float("inf")], nan="null").select()

    assert "nan=null" not in str(raised.value)
