"""Datasets: values are read exactly, or rejected with their position."""

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.runner.data import dataset
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.dataset import Dataset, Selection, Source
from evaljournal.runner.errors import MAX_WHOLE_NUMBER, UsageError
from tests.processes import TIMEOUT

LINES = '{"id": "a", "question": "1?", "answer": "one"}\n{"id": "b", "question": "2?", "answer": "two", "topic": "odd"}\n'
CASES = [
    Case(name="a", input="1?", expected="one"),
    Case(name="b", input="2?", expected="two", metadata={"topic": "odd"}),
]


def write(directory: Path, name: str, content: str | bytes) -> Path:
    """Write a file, byte for byte."""
    path = directory / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def cases(source: Source, selection: Selection | None = None, **keys: Any) -> list[Case]:
    """Return all cases."""
    return [trial.case for trial in Dataset(source, **keys).select(selection)]


def error_of(source: Source, selection: Selection | None = None, repeats: int = 1, **keys: Any) -> str:
    """Return the error for a dataset, before anything runs."""
    with pytest.raises(UsageError) as raised:
        Dataset(source, **keys).select(selection, repeats=repeats)
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("qa.jsonl", LINES),
        ("qa.ndjson", LINES),
        ("QA.JSONL", LINES),
        ("qa.jsonl", LINES.strip()),
        ("qa.jsonl", LINES.replace("\n", "\r\n")),
        ("qa.jsonl", "\n" + LINES.replace("\n", "\n  \n")),
        ("qa.jsonl", b"\xef\xbb\xbf" + LINES.encode()),
        ("qa.json", "[" + LINES.strip().replace("\n", ",") + "]"),
        ("qa.json", b"\xef\xbb\xbf\r\n [ " + LINES.strip().replace("\n", "\r\n,\r\n").encode() + b"\n]\n "),
    ],
)
def test_json(tmp_path: Path, name: str, content: str | bytes) -> None:
    """JSON lines and JSON lists are read, with or without CRLF and byte order mark."""
    assert CASES == cases(write(tmp_path, name, content))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("qa.csv", "id,question,answer,topic\na,1?,one,\nb,2?,two,odd\n"),
        ("qa.csv", b"\xef\xbb\xbfid,question,answer,topic\r\na,1?,one,\r\n\r\nb,2?,two,odd"),
        ("qa.tsv", "id\tquestion\tanswer\ttopic\na\t1?\tone\t\nb\t2?\ttwo\todd\n"),
    ],
)
def test_separated_values(tmp_path: Path, name: str, content: str | bytes) -> None:
    """An empty field of a table is an empty string."""
    first = Case(name="a", input="1?", expected="one", metadata={"topic": ""})

    assert [first, CASES[1]] == cases(write(tmp_path, name, content))


def test_parquet(tmp_path: Path) -> None:
    """Parquet files are read in batches, with their declared types."""
    pyarrow = pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "qa.parquet"
    ids, questions = [f"{n:04}" for n in range(3000)], list(range(3000))
    parquet.write_table(pyarrow.table({"id": ids, "question": questions}), path, row_group_size=1000)

    assert [Case(name=name, input=question) for name, question in zip(ids, questions, strict=True)] == cases(path)

    parquet.write_table(pyarrow.table({"question": [1.0, float("nan")]}), path)

    assert "row 2: input is nan" in error_of(path)
    assert "qa.parquet: after row 0" in error_of(write(tmp_path, "qa.parquet", "not parquet"))


def test_parquet_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow, the error names what to install."""
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    assert "pip install 'evaljournal[parquet]'" in error_of(tmp_path / "qa.parquet")


def test_values_are_unchanged(tmp_path: Path) -> None:
    """An id "0042" is not 42, 1 is not 1.0, and large integers keep every digit."""
    content = '{"id": "0042", "input": [18446744073709551615, -9223372036854775808, 1, 1.0, "1", true, null, "\\u2028"]}\n'
    (case,) = cases(write(tmp_path, "qa.jsonl", content))

    assert "0042" == case.name
    assert "[18446744073709551615, -9223372036854775808, 1, 1.0, '1', True, None, '\\u2028']" == repr(case.input)

    (case,) = cases(write(tmp_path, "qa.csv", "id,input,expected\n0042,007,1e3\n"))

    assert ("0042", "007", "1e3") == (case.name, case.input, case.expected)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4),
    max_leaves=12,
)


@given(inputs=st.lists(st.tuples(JSON, JSON), min_size=1, max_size=4), ascii_only=st.booleans())
def test_json_round_trips(tmp_path_factory: pytest.TempPathFactory, *, inputs: list[tuple[Any, Any]], ascii_only: bool) -> None:
    """Any JSON value is read exactly as written, including the types of numbers."""
    rows = [{"id": n, "input": a, "expected": b, "more": a} for n, (a, b) in enumerate(inputs)]
    lines = "\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows)
    read = cases(write(tmp_path_factory.mktemp("any"), "any.jsonl", lines))

    assert [repr((a, b, {"more": a})) for a, b in inputs] == [repr((c.input, c.expected, dict(c.metadata))) for c in read]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "c"', "not JSON: expecting ',' delimiter at column 11"),
        ('{"id": "c', "not JSON: unterminated string starting at column 8"),
        ('{"id": "c\t"}', "not JSON: invalid control character at column 10"),
        ("[1, 2]\n", "expected an object, got list"),
        ('{"id": "c", "question": NaN}', "input is nan, which JSON does not support"),
        ('{"id": "c", "question": {"n": [0, 1e999]}}', "input.n[1] is inf"),
        ('{"id": "c", "question": "", "m": 18446744073709551616}', "metadata.m is an integer of more"),
        ('{"id": "c", "question": "\\ud800"}', "input contains a lone surrogate"),
        ('{"id": "c", "question": 1, "question": 2}', "duplicate key 'question'"),
        ('{"id": "c", "question": {"x": 1, "x": 1}}', "duplicate key 'x'"),
        ('{"id": "c", "question": ' + "[" * 100_000, "nested too deeply"),
        ('{"id": "c", "question": ' + "9" * 5000 + "}", ""),
        (b'{"id": "\xff"}', "not UTF-8 (byte 0xff at column 9)"),
        ('{"id": "", "question": 1}', "the id in 'id' is empty"),
        ('{"id": " ", "question": 1}', "the id in 'id' is empty"),
        ('{"id": null, "question": 1}', "the id in 'id' is empty"),
        ('{"id": 1.5, "question": 1}', "the id in 'id' is 1.5; an id must be a string or an integer"),
        ('{"id": "c\\u001b[2J", "question": 1}', "the name 'c\\x1b[2J' contains a control"),
        ('{"id": "a", "question": 1}', "the id 'a' is already used by {folder}qa.jsonl, line 1"),
        ('{"id": "c", "prompt": 1}', "the input seems to be in 'prompt' here, but was in 'question' before"),
        ('{"id": "c", "topic": 1}', "no input column; expected 'question', got"),
    ],
)
def test_an_invalid_line_is_rejected(tmp_path: Path, line: str | bytes, message: str) -> None:
    """Before anything runs, the error names the file, the line, the field and the fix."""
    error = error_of(write(tmp_path, "qa.jsonl", LINES.encode() + (line if isinstance(line, bytes) else line.encode())))

    assert error.startswith(f"{tmp_path}/qa.jsonl, line 3: {message}".replace("{folder}", f"{tmp_path}/"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("qa.jsonl", LINES + "\nnot json\n", "qa.jsonl, line 4: not JSON"),
        ("qa.jsonl", LINES.encode("utf-16"), "qa.jsonl: the file is UTF-16 or UTF-32; save it as UTF-8"),
        ("qa.jsonl", '{"q": 1, "a": 2}', "line 1: no input column; expected one of 'input', 'inputs', 'question'"),
        (
            "qa.jsonl",
            '{"question": 1, "prompt": 2}',
            "'question', 'prompt' could each be the input; choose the column with --input-key, or input_key=… in Python",
        ),
        ("qa.jsonl", '{"input": 1, "target": 1, "label": 2}', "'target', 'label' could each be the expected"),
        ("qa.jsonl", "", "qa.jsonl has no cases"),
        ("qa.jsonl", "\n\n", "qa.jsonl has no cases"),
        ("qa.json", "[]", "qa.json has no cases"),
        ("qa.json", LINES, "qa.json, line 1: expected a list of objects; if each line is an object, name the file .jsonl"),
        ("qa.json", '[{"input": 1},\n{"input": 2}\n{"input": 3}]', "line 3: expected ',' or ']' after an object"),
        ("qa.json", '[{"input": 1},\n{"input": 2},\n]', "qa.json, line 3: not JSON: expecting value"),
        ("qa.json", '[{"input": 1},\n{"input": 2,\n"input": 2}]', "qa.json, line 2: duplicate key 'input'"),
        ("qa.json", '[{"input": 1},\n\n{"input": NaN}]', "qa.json, line 3: input is nan"),
        ("qa.json", '[{"input": 1}]\n[]', "qa.json, line 2: unexpected text after the list: '[]'"),
        ("qa.json", '[{"input": 1}', "qa.json, line 1: expected ',' or ']' after an object"),
        ("qa.json", "[1]", "qa.json, line 1: expected an object"),
        ("qa.csv", "id,input\na,1\nb\n", "qa.csv, line 3: 1 columns, expected 2"),
        ("qa.csv", 'id,input\na,"1\n2"\nb,2,3\n', "qa.csv, line 4: 3 columns, expected 2"),
        ("qa.csv", 'id,input\na,"1', "qa.csv, line 2: unexpected end of data"),
        ("qa.csv", 'id,input\na,"1\n2"\na,3\n', "qa.csv, line 4: the id 'a' is already used by {folder}qa.csv, line 2"),
        ("qa.csv", "id,input\n,1\n", "qa.csv, line 2: the id in 'id' is empty"),
        ("qa.csv", "id,input,input\na,1,2\n", "qa.csv, line 1: duplicate columns in the header: 'input'"),
        ("qa.csv", "id\na\n", "qa.csv, line 2: no input column"),
        ("qa.csv", "id,input\n", "qa.csv has no cases"),
        ("qa.csv", "", "qa.csv has no cases"),
        ("qa.txt", "", "qa.txt: unknown suffix '.txt', expected one of .jsonl,"),
        ("-", "", ".xlsx; save piped data to a file"),
        ("qa.csv", "sep=;\nid;question\na;b\nc\n", "qa.csv, line 4: 1 columns, expected 2"),
        ("qa.csv", "id;a|question\na;b|c\n", "qa.csv, line 1: fields may be separated by ';' or '|'; add -s delimiter=…"),
        ("qa.csv", "my question; or task\nWhy?\n", "qa.csv, line 2: 1 columns, expected 2; the columns are separated by ';'"),
        ("qa.csv", "id,questoin\na,b\n", "got 'id', 'questoin'; is it 'questoin'?; choose the column with --input-key"),
    ],
)
def test_an_invalid_file_is_rejected(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    """The error for a file names it, and the line where there is one."""
    error = error_of(write(tmp_path, name, content))

    assert message.replace("{folder}", f"{tmp_path}/") in error
    assert error.startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("qa.csv", 'id;question\r\na;"b;c"\r\n'),
        ("qa.csv", "id\tquestion\na\tb;c\n"),
        ("qa.csv", '"id";"question"\n"a";"b;c"\n'),
        ("qa.tsv", 'id,question\na,"b;c"\n'),
        ("qa.csv", "id|question\na|b;c\n"),
        ("qa.csv", "id,question\na,b;c\n"),
        ("qa.csv", '\ufeffsep=;\r\nid;question\r\na;"b;c"\r\n'),
        ("qa.csv", '"sep=,"\nid,question\na,b;c\n'),
    ],
)
def test_the_delimiter_is_detected_in_the_header(tmp_path: Path, name: str, content: str) -> None:
    """The separator of the suffix is used if it separates the header; otherwise the only other one that does.

    Excel's first line `sep=;` names the separator; it is not the header.
    """
    assert [Case(name="a", input="b;c")] == cases(write(tmp_path, name, content))


def test_a_delimiter_can_be_set(tmp_path: Path) -> None:
    """`delimiter` overrides the header; it is one character or `tab`, and other formats have none."""
    path = write(tmp_path, "qa.csv", "input;id,x\n1;a,b\n")

    assert ["a,b"] == [case.name for case in cases(path, delimiter=";", id_key="id,x")]
    assert ["1"] == [case.input for case in cases(write(tmp_path, "t.csv", "input\tid\n1\ta\n"), delimiter="tab")]
    assert "only a CSV file has a delimiter" in error_of(write(tmp_path, "qa.jsonl", "{}"), delimiter=";")
    with pytest.raises(UsageError, match="must be one character"):
        Dataset(path, delimiter="ab")


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    """A missing file, or a path that is not a file, is an error; similar files are suggested."""
    assert "cannot read the file: No such file or directory" in error_of(tmp_path / "qa.jsonl")
    write(tmp_path, "questions.jsonl", "")
    assert error_of(tmp_path / "question.jsonl").endswith(f"; did you mean {tmp_path}/questions.jsonl?")
    (tmp_path / "folder.jsonl").mkdir()

    assert "folder.jsonl: cannot read the file: " in error_of(tmp_path / "folder.jsonl")


def test_keys_can_be_named(tmp_path: Path) -> None:
    """Columns that the user names must exist; the others have their usual names."""
    path = write(tmp_path, "qa.jsonl", '{"input": "context", "question": "1?", "ref": "one", "answer": "x", "name": "a"}')
    (case,) = cases(path, input_key="question", expected_key="ref")

    assert Case(name="a", input="1?", expected="one", metadata={"input": "context", "answer": "x"}) == case
    error = error_of(path, input_key="question", expected_key="refs")
    assert "line 1: 'refs' is not a column (--expected-key, expected_key in Python); columns: 'input', 'question'" in error
    assert error.endswith("; did you mean 'ref'?")


def test_usual_names() -> None:
    """Usual names are not case sensitive; next to an id, a name is metadata."""
    (case,) = cases([{"ID": 7, "Prompt": "1?", "Target": "one"}])

    assert Case(name="7", input="1?", expected="one") == case

    (case,) = cases([{"id": 7, "name": "Eva", "input": "1?"}])

    assert Case(name="7", input="1?", metadata={"name": "Eva"}) == case


@pytest.mark.parametrize("wrap", [list, tuple, iter, lambda rows: lambda: iter(rows), lambda rows: (row for row in rows)])
def test_iterables(wrap: Any) -> None:
    """Cases, mappings, pairs and plain inputs come from any iterable or function."""
    rows = [CASES[0], {"id": "b", "question": "2?", "answer": "two", "topic": "odd"}, ("3?", "three"), "4?", 5, ["6?"]]
    expected = [*CASES, Case(input="3?", expected="three"), Case(input="4?"), Case(input=5), Case(input=["6?"])]

    assert expected == cases(wrap(rows))


def test_a_generator_is_read_lazily() -> None:
    """A generator is read only as needed, and its errors are raised when they are reached."""
    yielded = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal yielded
        while True:
            yielded += 1
            yield {"id": min(yielded, 3), "input": yielded}

    trials = iter(Dataset(endless()).select())

    assert 0 == yielded
    assert ["1", "2", "3"] == [next(trials).id for _ in range(3)]
    assert 3 == yielded
    with pytest.raises(UsageError, match=r"case 4: the id '3' is already used by an earlier case"):
        next(trials)


def test_a_generator_is_read_once() -> None:
    """A generator that was used up is not an empty dataset; a function that returns one can be read again."""
    generator = Dataset(iter(["1?"]))
    rereadable = Dataset(lambda: iter(["1?"]))

    assert [1, 1, 1] == [len(list(generator.select())), len(list(rereadable.select())), len(list(rereadable.select()))]
    with pytest.raises(UsageError, match="pass a function that returns one"):
        list(generator.select())
    with pytest.raises(UsageError, match="the dataset has no cases"):
        list(Dataset(iter([])).select())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([("a", "b", "c")], "case 1: a tuple must be (input, expected), but has 3 items"),
        ([{"input": {3: 4}}], "case 1: input has the key 3; JSON keys must be strings"),
        ([{"input": object()}], "case 1: input is of type object, which cannot be stored as JSON"),
        ([{"input": b"x"}], "case 1: input is of type bytes"),
        ([{3: 4, "input": 1}], "case 1: metadata has the key 3"),
        ([], "the dataset has no cases"),
    ],
)
def test_an_invalid_list_is_rejected(source: Source, message: str) -> None:
    """A list is checked before anything runs, like a file."""
    assert message in error_of(source)


@pytest.mark.parametrize("source", [{"a": 1}, b"qa.jsonl", 3, None, type("DataFrame", (), {"columns": []})()])
def test_other_sources_are_rejected(source: Any) -> None:
    """What has no rows, or would be iterated by its columns, is rejected."""
    with pytest.raises(UsageError, match=r"pass a list|must be a file"):
        Dataset(source)


def names(selection: Selection, source: Source | None = None) -> list[str]:
    """Read the names of the selected cases, in order."""
    letters = [Case(name=name, input=name) for name in ("geo/paris", "geo/rome", "geo/Rome", "bio/cell", "q[1]", "q1")]
    return [case.name for case in cases(letters if source is None else source, selection)]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(only="geo/*"), ["geo/paris", "geo/rome", "geo/Rome"]),
        (Selection(only=["geo/r*", "bio/*"]), ["geo/rome", "bio/cell"]),
        (Selection(only="geo/*", skip="*rome"), ["geo/paris", "geo/Rome"]),
        (Selection(skip=["geo/*", "q?"]), ["bio/cell", "q[1]"]),
        (Selection(only="q[1]"), ["q[1]", "q1"]),
        (Selection(limit=2), ["geo/paris", "geo/rome"]),
        (Selection(only="*/*", limit=100), ["geo/paris", "geo/rome", "geo/Rome", "bio/cell"]),
    ],
)
def test_selection(selection: Selection, expected: list[str]) -> None:
    """Names are selected by case-sensitive wildcards; the limit applies to the selected cases."""
    assert expected == names(selection)


def test_a_selection_of_nothing() -> None:
    """A pattern that matches no name is an error, not an empty run."""
    letters = [Case(name=name, input=name) for name in "abcd"]

    assert "no case of the dataset matches only=['z*']; names are, for example, 'a', 'b', 'c'" == error_of(
        letters, Selection(only="z*")
    )
    assert "matches only=['a'] and skip=['a', 'b']; names are" in error_of(letters, Selection(only="a", skip=["a", "b"]))


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
def test_a_limit_is_checked(limit: Any) -> None:
    """A limit below 1 is rejected."""
    with pytest.raises(UsageError, match=f"limit={limit}"):
        Selection(limit=limit)


def test_unread_rows_are_not_checked(tmp_path: Path) -> None:
    """With a limit, the rows after the selected cases are not read, unless the cases are shuffled."""
    path = write(tmp_path, "qa.jsonl", LINES + "broken")

    assert CASES == cases(path, Selection(limit=2))
    assert "line 3" in error_of(path, Selection(limit=2, shuffle=True))


@given(
    st.lists(
        st.text(st.characters(min_codepoint=0xA1, codec="utf-8", exclude_categories=["Z"]), min_size=1),
        unique=True,
        min_size=1,
    ),
    st.integers(-MAX_WHOLE_NUMBER, MAX_WHOLE_NUMBER),
    st.randoms(),
)
def test_shuffling_is_a_permutation(letters: list[str], seed: int, rng: Any) -> None:
    """Shuffling neither loses nor repeats a case, and the order depends on the seed and the names, not on the file."""
    selection = Selection(shuffle=True, seed=seed)
    order = names(selection, [Case(name=name, input=1) for name in letters])
    rng.shuffle(letters)

    assert sorted(letters) == sorted(order)
    assert order == names(selection, [Case(name=name, input=1) for name in letters])
    assert order == names(selection, (Case(name=name, input=1) for name in letters))
    assert order[:3] == names(Selection(shuffle=True, seed=seed, limit=3), [Case(name=name, input=1) for name in letters])


def test_seeds_differ() -> None:
    """Different seeds give different orders, the same ones on every machine."""
    orders = {tuple(names(Selection(shuffle=True, seed=seed))) for seed in range(20)}

    assert len(orders) > 15
    assert ["q[1]"] == names(Selection(shuffle=True, limit=1))


def test_shuffling_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file larger than one block is shuffled into the same order, without keeping it in memory."""
    path = write(tmp_path, "n.jsonl", "".join(f'{{"id": {n}, "input": {n}}}\n' for n in range(100)))
    expected = names(Selection(shuffle=True), path)
    for block in (1, 7, 100):
        monkeypatch.setattr(dataset, "_BLOCK", block)

        assert expected == names(Selection(shuffle=True), path)


def test_repeats() -> None:
    """A case with three repeats has three trials with different ids."""
    trials = list(Dataset(CASES).select(repeats=3))

    assert ["a", "a#2", "a#3", "b", "b#2", "b#3"] == [trial.id for trial in trials]
    assert [1, 2, 3, 1, 2, 3] == [trial.repeat for trial in trials]


@pytest.mark.parametrize("ids", [["a", "a#2"], ["a#3", "a"], ["a#2#2", "b", "a#2"]])
def test_repeats_do_not_clash(ids: list[str]) -> None:
    """A name that a repeat of another case would have is rejected, but only where there is such a repeat."""
    source = [Case(name=name, input=1) for name in ids]

    assert f"case {len(ids)}: the id {ids[-1]!r} is also the id of a repeat of another case" in error_of(source, repeats=3)
    assert ids == [trial.id for trial in Dataset(source).select(repeats=1)]


def test_fingerprints() -> None:
    """A fingerprint does not depend on the order of the cases, and changes with one letter of one case."""

    def fingerprint(source: list[Case]) -> str | None:
        return Dataset(source).select().fingerprint

    assert fingerprint(CASES) == fingerprint(CASES[::-1])
    changes: list[dict[str, Any]] = [{"name": "c"}, {"input": "2"}, {"expected": 2}, {"metadata": {}}]
    changed = [[CASES[0], attrs.evolve(CASES[1], **change)] for change in changes]
    changed += [[CASES[0]], [attrs.evolve(CASES[0], name="b"), attrs.evolve(CASES[1], name="a")]]

    assert 7 == len({fingerprint(source) for source in [CASES, *changed]})
    assert Dataset(iter(CASES)).select().fingerprint is None


def test_fingerprints_hold_across_processes(tmp_path: Path) -> None:
    """A fingerprint is the same in another process, which has another hash seed."""
    path = write(tmp_path, "qa.jsonl", LINES)
    local = Dataset(path).select()
    code = "import sys; from evaljournal.runner.data.dataset import Dataset; print(Dataset(sys.argv[1]).select().fingerprint)"
    process = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=TIMEOUT)

    assert (2, "d5e3974e19d9c26c") == (local.cases, local.fingerprint)
    assert local.fingerprint == process.stdout.strip()


def test_a_large_file_streams(tmp_path: Path) -> None:
    """Reading a file keeps a few bytes per name in memory, and no rows."""
    path = tmp_path / "large.jsonl"
    path.write_text("".join(f'{{"id": {n}, "input": "{"x" * 2000}"}}\n' for n in range(2000)))
    tracemalloc.start()
    count = sum(1 for _ in Dataset(path).select())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert 2000 == count
    assert peak < 800_000 < path.stat().st_size / 4
