"""A hostile dataset: patterns and texts that would block a run for hours do not block it."""

import itertools
import math
import random
import re
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no stubs
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal import Case, UsageError, rescore, scorers
from evaljournal.integrations.promptfoo.nunjucks import pieces
from evaljournal.integrations.promptfoo.project import NotMapped
from evaljournal.integrations.promptfoo.scorer.javascript_regex import to_python
from evaljournal.integrations.promptfoo.scorer.json_checks import _with_hash_comment
from evaljournal.journal.events import ScoringFailed, TrialScored
from evaljournal.runner.data.readers import rows
from evaljournal.runner.data.toml_file import read_toml
from evaljournal.runner.definition.evaluation import INHERITED, Inherited
from evaljournal.runner.scorers import bounded_search
from evaljournal.runner.scorers.bounded_search import SearchFailed, SearchTimedOut, is_quick, search
from evaljournal.runner.scorers.scorer import ScorerInput
from evaljournal.runner.secrets.masking import SecretValues, mask
from evaljournal.runner.secrets.shapes import _SHAPES
from tests.runs import define_real, events, run_real, signal_after
from tests.security.growth import FACTOR, LINEAR, growth


def identity(value: str) -> str:
    return value


UNITS = [
    *("eyJ", "_eyJ", "eyJaaaaaaaa.", "eyJaaaaaaaaa.eyJ-", "sk-", "gsk_a-", "hf_", "AIza", "AKIA", "ya29.", "xoxb-"),
    *("github_pat_", "authorization", "authorization ", "authorization:", "authorization: bearer "),
    *("authorization: digest\r", "api-key ", "cookie", "cookie:", "bearer ", "basic\n", "bearer a", "api_key"),
    *("api_key = ", "api_key='", "api_key:", "secret_", "secret=", "password: ", "-u ", "-u a:", "--user=", "--user a:'"),
    *("A_TOKEN=", "TOKEN", "A", "0_", "--token", "--a-b-token ", "-a-", "?key=", "&code=", "a://", "a://b:", "a://b@"),
    *("https://a", "a.", "a+", "-----BEGIN ", "-----BEGIN A PRIVATE KEY-----", "-----END ", "PRIVATE KEY", "\\", '\\"'),
    *("'", '"', "b'", " ", "\n", "\t", "{", "$", "=", "@", ":", "_", "-", "a"),
]
PREFIXES = ["", "eyJ", "api_key", "authorization:", "bearer", "-----BEGIN PRIVATE KEY-----", "a://", "cookie", "--token"]


@pytest.mark.parametrize(("size", "stride"), [(1_000, 5), pytest.param(10_000, 1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("shape", _SHAPES, ids=lambda shape: shape.markers[0])
def test_every_mask_takes_linear_time(shape: Any, size: int, stride: int) -> None:
    """No repetition of a part of a secret, after the beginning of one, takes more than linear time."""
    repetitions = list(itertools.product(PREFIXES, UNITS))
    random.Random(shape.markers[0]).shuffle(repetitions)
    texts = {(prefix, unit): (prefix + unit * (size // len(unit))) for prefix, unit in repetitions[::stride]}
    growths = {
        (prefix, unit): growth(lambda text: shape.mask(text, None), text, prefix + unit * (FACTOR * size // len(unit)))
        for (prefix, unit), text in texts.items()
    }

    assert {} == {key: value for key, value in growths.items() if value > LINEAR}


@pytest.mark.parametrize("unit", ["abcdefghijkl"[:11], "\\", "a\\/", "YWJjZGVmZ2hp", "%2f", "\\u002f"])
@pytest.mark.parametrize("value", ["abcdefghijkl", "/" * 12, "\\" * 12, "a\\/b\\/c\\/d\\/e", "-_-_-_-_-_-_x"])
def test_a_search_for_values_takes_linear_time(value: str, unit: str) -> None:
    """A search in backslashes or in almost complete values takes linear time."""
    values = SecretValues()
    values.add(value)
    small, large = (f"{unit * (size // len(unit))}{value[:-1]}" for size in (2_000, FACTOR * 2_000))

    assert growth(values._pattern.findall, small, large) <= LINEAR


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("qa.csv", ",".join),
        ("qa.jsonl", lambda names: "{" + ", ".join(f'"{name}": 1' for name in [*names, names[-1]]) + "}"),
    ],
)
def test_many_columns_take_linear_time(name: str, line: Callable[[list[str]], str]) -> None:
    """The search for duplicate columns and keys takes linear time."""

    def read(count: int) -> None:
        Path(name).write_text(line([f"c{number}" for number in range(count)]))
        with suppress(UsageError):  # The last key is a duplicate.
            list(rows(Path(name)))

    assert growth(read, 500, 500 * FACTOR) <= LINEAR


def write_parquet(array: Any, **options: Any) -> Path:
    """Write a small Parquet file with one column, and return its path."""
    options |= {"compression": "brotli", "write_statistics": False, "store_schema": False}
    pq.write_table(pa.table({"input": array}), "qa.parquet", **options)
    assert Path("qa.parquet").stat().st_size < 1_000
    return Path("qa.parquet")


@pytest.mark.parametrize("repeated", ["a" * 100, [None] * 3], ids=["a text", "a list"])
def test_a_small_parquet_file_with_much_data_is_rejected(repeated: Any) -> None:
    """A compressed text and a list of nulls of more than 64 MiB are errors that name the column, and nothing is read."""
    path = write_parquet(pa.array([repeated * 1_000_000]), use_dictionary=False)
    with pytest.raises(UsageError, match=r"column 'input.*' has \d+,\d+,\d+ bytes after decompression, more than a file of"):
        next(rows(path))


def test_a_text_in_many_rows_of_a_parquet_file_takes_little_memory() -> None:
    """A file that stores a text of a megabyte once, for 1,000 rows, is read in batches of a few rows."""
    path = write_parquet(pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int16()), pa.array(["a" * 1_000_000])))
    pool, usual_pool = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        count = sum(1 for _ in rows(path))
    finally:
        pa.set_memory_pool(usual_pool)

    assert 1_000 == count
    assert 0 < pool.max_memory() < 100_000_000


@pytest.mark.parametrize("prefix", ["", "{{x}}"])
@pytest.mark.parametrize("unit", ["{{", "{%", "{#", "{{}", "{{ a } "])
def test_a_search_for_tags_takes_linear_time(prefix: str, unit: str) -> None:
    """Tags that are not closed are not searched for again from each opening."""

    def split(text: str) -> None:
        with suppress(NotMapped):
            pieces(text)

    assert growth(split, prefix + unit * 1_000, prefix + unit * 1_000 * FACTOR) <= LINEAR


@pytest.mark.parametrize("unit", ["\\", '\\"', "a://", "a"])
def test_comments_in_json_are_found_in_linear_time(unit: str) -> None:
    """The text before a quotation mark or a slash is not searched again."""
    texts = [f'x://"{unit * size}' for size in (2_000, 2_000 * FACTOR)]
    assert growth(_with_hash_comment, *texts) <= LINEAR


def test_a_long_javascript_pattern_is_rejected() -> None:
    """A pattern has at most 10,000 characters."""
    with pytest.raises(UsageError, match="it has 10,001 characters; at most 10,000 are allowed"):
        to_python("()" * 5_000 + "a")


@pytest.mark.parametrize("text", ["a{key} = 1", "[a{key}]", "a = {{ b{key} = 1 }}", "'a'{key}=1"])
def test_a_toml_key_with_many_dots_is_rejected(text: str) -> None:
    """The error names the line."""
    path = Path("many.toml")
    path.write_text("# a\n" + text.format(key=' ."b"' * 20_000))
    with pytest.raises(UsageError, match=r"many\.toml, line 2: a key has more than 100 parts; shorten it"):
        read_toml(path)


def test_dots_in_a_toml_text_are_allowed() -> None:
    """Only keys are limited."""
    path = Path("texts.toml")
    path.write_text(f"""a = "{"x." * 500}"\nb.c = \'\'\'\n{"x." * 500}\n\'\'\'\n""")

    assert ["a", "b"] == list(read_toml(path))


@pytest.mark.parametrize("unit", ["x", "x.", '"x".', "x ."])
def test_a_toml_text_is_read_in_linear_time(unit: str) -> None:
    """Twice as long a text takes twice as long, also if it is one word."""
    paths = Path("short.toml"), Path("long.toml")
    for path, size in zip(paths, (2_000, 2_000 * FACTOR), strict=True):
        path.write_text(f"a = '''{unit * size}'''\n")

    assert growth(read_toml, *paths) <= LINEAR


def test_a_workbook_is_not_much_larger_than_its_file() -> None:
    """A sheet of zeros, which is compressed to a thousandth, is rejected before it is read."""
    with zipfile.ZipFile("qa.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", bytes(70 << 20))
    with pytest.raises(UsageError, match="the file has 73,400,320 bytes after decompression; at most 67,108,864 are allowed"):
        next(rows(Path("qa.xlsx")))


def test_a_megabyte_is_masked_quickly() -> None:
    """A megabyte of beginnings of a token is masked in less than a second."""
    start = time.thread_time()
    mask("_eyJ" * 250_000)

    assert time.thread_time() - start < 1


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+$", "a" * 50 + "b"),
        ("(a|a)*$", "a" * 50 + "b"),
        (r"(x+x+)+y", "x" * 60),
        (r"a*a*a*a*a*a*b", "a" * 3_000),
        (r"(?x)(a+) +$", "a" * 50 + "b"),
        (r"(a+)(?#comment)+$", "a" * 50 + "b"),
        (r"(\w+\s*)*!", "word " * 30),
    ],
)
def test_a_search_is_ended(pattern: str, text: str) -> None:
    """A search that would take years ends after its limit, and the next one works."""
    with pytest.raises(SearchTimedOut):
        search(pattern, text, 0.05)

    assert search("(b+)+$", "ab", 5)


@pytest.mark.parametrize("pattern", ["(a", "(a)+(" + "b" * 300, "[" * 300])
def test_an_invalid_pattern_is_an_error(pattern: str) -> None:
    """An invalid pattern, short or long, is reported as one."""
    with pytest.raises(UsageError):
        scorers.regex()("a", pattern)


def test_a_deep_pattern_is_an_error() -> None:
    """A pattern that is nested too deeply fails its score."""
    with pytest.raises(SearchFailed):
        search("(" * 5_000 + ")" * 5_000, "a", 5)


def test_a_killed_process_is_replaced() -> None:
    """If the system kills an idle process, the next search starts another."""
    assert search("(a)+", "a", 5)
    for process in bounded_search._idle_processes:
        process._process.kill()
        process._process.wait()

    assert search("(a)+", "a", 5)


@given(
    pattern=st.lists(
        st.sampled_from(["a", "b", ".", "[ab]", "a*", "b+", ".*", "a?", "a|", "b{1,3}", "^", "$", r"\w*?", "(a|b)"])
    ).map("".join),
    text=st.text("abc", max_size=12),
)
def test_quick_searches_are_quick(pattern: str, text: str) -> None:
    """The bound for the steps of a search holds: its time is in proportion to it, and its result is that of `re`."""
    try:
        expected = re.search(pattern, text) is not None
    except re.error:
        return
    length = next(length for length in (3_000, 1_000, 300, 100, 30, 10, 3, 1, 0) if is_quick(pattern, length) or not length)
    start = time.thread_time()
    if is_quick(pattern, length):
        re.search(pattern, "a" * length)

    assert time.thread_time() - start < 1
    assert expected == search(pattern, text, 5)


def test_a_pattern_of_a_case_fails_its_score_only(path: Path) -> None:
    """A case whose pattern never ends gets no score; the others do, and a re-scoring ends too."""
    cases = [Case(name="evil", input="a" * 60 + "b", expected="(a+)+$"), Case(name="good", input="Lima", expected="^L")]
    evaluation = define_real(identity, cases)
    evaluation.score(timeout=0.5)(scorers.regex())
    run_real(evaluation, path)
    rescore(evaluation, path, all_outputs=True)

    failed = events(path, ScoringFailed)
    assert [("evil", "evaljournal.SearchTimedOut")] * 2 == [(event.trial, event.error) for event in failed]
    assert [("good", True)] * 2 == [(event.trial, event.value) for event in events(path, TrialScored)]


def test_a_search_does_not_delay_a_signal(path: Path) -> None:
    """During a long search, the run can be stopped."""
    evaluation = define_real(identity, [Case(name="evil", input="a" * 60 + "b", expected="(a+)+$")])
    evaluation.score(timeout=60)(scorers.regex())
    start = time.monotonic()
    outcome = run_real(evaluation, path, **signal_after(0.1), grace=0.2)

    assert time.monotonic() - start < 50
    assert "interrupted" == outcome.stop_reason


def test_the_limit_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a search is ten seconds, the run's timeout if that is shorter, or the scorer's own timeout."""
    limits: list[float] = []

    def record(_: str, __: str, seconds: float) -> bool:
        limits.append(seconds)
        return True

    monkeypatch.setattr("evaljournal.runner.scorers.builtin.search", record)
    timeouts: list[tuple[float | Inherited | None, float | None]]
    timeouts = [(INHERITED, None), (INHERITED, 600), (INHERITED, 3), (60, 3), (None, 3)]
    for own_timeout, timeout in timeouts:
        evaluation = define_real(identity)
        evaluation.score(timeout=own_timeout)(scorers.regex("a"))
        (scorer,) = evaluation.scorers.values()
        scorer.with_defaults(scorer.retry, timeout).call(ScorerInput("a", Case(input="a")))

    assert [10, 10, 3, 60, 10] == limits


def test_long_texts_are_not_compared() -> None:
    """The similarity of texts whose comparison would take minutes is an error."""
    with pytest.raises(Exception, match="too long") as caught:
        scorers.similarity()("a" * 1_000_000, "b" * 1_000_000)

    assert "TextTooLong" == type(caught.value).__name__
    assert math.isclose(1.0, float(scorers.similarity()("a" * 10_000, "a" * 10_000).value))
