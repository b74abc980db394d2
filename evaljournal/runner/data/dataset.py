"""Datasets: reading, checking, selecting and shuffling cases.

A file, or anything with a length, is read before the run, to check the selected cases, and again lazily during it. A source
that can be read only once, such as a generator, is checked while it is read. Cases are kept in memory only to shuffle them.

With shards, a hash of a case's content decides its shard, so that a new case does not move the others.
"""

import copy
import hashlib
import heapq
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal, cast

from attrs import evolve, field, frozen

from evaljournal.replay.state.shards import Shard
from evaljournal.runner.data import readers
from evaljournal.runner.data.case import Case, ContentNames, Trial
from evaljournal.runner.data.columns import Columns, column_hint
from evaljournal.runner.data.remote import RemoteCases, remote_cases
from evaljournal.runner.data.tables import reject_unsupported, table_rows
from evaljournal.runner.errors import MAX_WHOLE_NUMBER, UsageError, rule, whole_number

Source = str | os.PathLike[str] | Iterable[Any] | Callable[[], Iterable[Any]]
"""The path of a file (a sheet of a workbook: `qa.xlsx#Sheet`); an address, `hf://owner/name:config/split`; a DataFrame of
pandas or polars; a Hugging Face dataset; an iterable of cases, mappings, (input, expected) pairs or inputs; or a function that
returns one of these."""

_NAN_HINT: Final = "-s nan=null, or Dataset(…, nan='null') in Python, reads NaN as null"

_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]+:/")
"""The start of an address: a scheme of two letters or more, because one is a drive of Windows."""

_BLOCK = 65_536
"""Cases in memory while shuffling; a larger dataset is read several times."""

_MAX_EXAMPLES = 3

_PAIR = 2
_REPEAT = re.compile(r"(?P<name>.*)#(?P<repeat>[1-9]\d{0,8})", re.DOTALL)
_MODULUS = 2**256


def parse_shard(value: Shard | str | None) -> Shard | None:
    """Return a shard, or None for all cases; raise a `UsageError` if the text is not `K/N`."""
    if value is None or isinstance(value, Shard):
        return value
    try:
        return Shard.parse(value)
    except ValueError as exc:
        raise UsageError(str(exc), setting="shard", value=value) from exc


def is_in_shard(case: Case, shard: Shard | None) -> bool:
    """Return whether a case belongs to the shard; all of its variants and repeats do."""
    return shard is None or int(case.fingerprint, 16) % shard.count == shard.number - 1


def as_strings(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _are_utf8(values: tuple[str, ...]) -> bool:
    try:
        "".join(values).encode()
    except (TypeError, UnicodeEncodeError):
        return False
    return True


optional_count: Final = whole_number(1, optional=True)
_patterns: Final = rule(_are_utf8, "must be strings that UTF-8 can encode")


@frozen(kw_only=True)
class Selection:
    """Which cases of a dataset are used, and in what order."""

    only: tuple[str, ...] = field(default=(), converter=as_strings, validator=_patterns)
    """Name patterns with `*`, `?` and `[…]`, case-sensitive. Empty: all."""
    skip: tuple[str, ...] = field(default=(), converter=as_strings, validator=_patterns)
    """Name patterns of cases to exclude; has precedence over `only`."""
    limit: int | None = field(default=None, validator=optional_count)
    """Maximum number of cases, applied last."""
    shuffle: bool = False
    """Whether to shuffle; the order depends only on `seed` and the names."""
    seed: int = field(default=0, validator=whole_number(-MAX_WHOLE_NUMBER))
    """Seed of the shuffled order and of the retry jitter."""

    def matches(self, name: str) -> bool:
        return (not self.only or _matches(name, self.only)) and not (self.skip and _matches(name, self.skip))

    def rank(self, name: str) -> bytes:
        """Return the sort key of the shuffled order: a digest, so that a new row does not move the others."""
        return hashlib.sha256(f"{self.seed}\0{name}".encode()).digest()


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


class Dataset:
    """A source of cases, and the roles of its columns. With `nan="null"`, NaN is read as None; by default it is an error.

    `delimiter` separates the columns of a CSV file; by default it is detected in the header.
    """

    def __init__(
        self,
        source: Source,
        *,
        id_key: str | None = None,
        input_key: str | None = None,
        expected_key: str | None = None,
        nan: Literal["error", "null"] = "error",
        delimiter: str | None = None,
    ) -> None:
        self.source: Path | RemoteCases | Iterable[Any] | Callable[[], Iterable[Any]]
        self._sheet: str | None = None
        reject_unsupported(source)
        if isinstance(source, str | os.PathLike) and _ADDRESS.match(address := os.fspath(cast("str", source))):
            self.source = remote_cases(address)
        elif isinstance(source, str | os.PathLike):
            path, self._sheet = readers.split_sheet(os.fspath(cast("str", source)))
            self.source = Path(path)
        elif not (isinstance(source, Iterable) or callable(source)):
            raise UsageError(f"cases must be a file or an iterable, not {source!r}")
        else:
            self.source = source
        self._keys = {"id_key": id_key, "input_key": input_key, "expected_key": expected_key}
        self._prompt_columns: Sequence[str] = ()
        self.input_name = input_key or "input"
        """Name of the input's column, if it was set."""
        if nan not in {"error", "null"}:
            raise UsageError("must be 'error' or 'null'", setting="nan", value=nan)
        self._nan = nan
        self._delimiter = "\t" if delimiter == "tab" else delimiter
        if self._delimiter is not None and (len(self._delimiter) != 1 or self._delimiter in '"\r\n'):
            raise UsageError("must be one character, or 'tab'", setting="delimiter", value=delimiter)
        self._is_used_up = False
        self._checks: tuple[Callable[[Case], object], ...] = ()
        self._file_columns: frozenset[str] = frozenset()

    def with_check(self, check: Callable[[Case], object]) -> "Dataset":
        """Return a copy that calls `check` with each case it reads; `check` raises if the case cannot be used."""
        dataset = copy.copy(self)
        dataset._checks = (*self._checks, check)  # noqa: SLF001  # our own copy
        return dataset

    def with_prompt_columns(self, names: Iterable[str]) -> "Dataset":
        """Return a copy whose input may be in a column that a prompt names, if none, or several, have a usual name."""
        dataset = copy.copy(self)
        dataset._prompt_columns = tuple(names)  # noqa: SLF001  # our own copy
        return dataset

    def with_files(self, columns: Iterable[str]) -> "Dataset":
        """Return a copy whose cases have the digests of the files that these columns name."""
        dataset = copy.copy(self)
        dataset._file_columns = self._file_columns.union(columns)  # noqa: SLF001  # our own copy
        return dataset

    def select(
        self,
        selection: Selection | None = None,
        *,
        repeats: int = 1,
        variants: Iterable[str] = ("",),
        shard: Shard | None = None,
    ) -> "Trials":
        """Check the dataset if it can be read again, and return the trials: each case with all variants and repeats."""
        return Trials(self, selection or Selection(), repeats, tuple(variants), shard)

    @property
    def address(self) -> str:
        """The address of the version that is read, if the cases are at an address; otherwise empty."""
        return self.source.address if isinstance(self.source, RemoteCases) else ""

    @property
    def is_rereadable(self) -> bool:
        """Whether it can be read twice: a file, or anything with a length."""
        return isinstance(self.source, Path | RemoteCases) or (isinstance(self.source, Sized) and not callable(self.source))

    def read(self) -> Iterator[tuple[int, Case]]:
        """Yield all cases in order with their positions; names are not yet checked for duplicates."""
        columns, file_columns = Columns(**self._keys, prompt_columns=self._prompt_columns), sorted(self._file_columns)
        directory = (self.source if isinstance(self.source, Path) else Path("cases")).absolute().parent
        files: Mapping[str, Mapping[str, Any]] = {}

        for position, row in self._rows():
            try:
                case = _case(_without_nan(row) if self._nan == "null" else row, columns)
                if file_columns:
                    from evaljournal.runner.data.attachments import add_file_digests  # noqa: PLC0415  # few cases have files

                    case = add_file_digests(case, file_columns, directory, files)
                    files = case.files
                case.fingerprint  # noqa: B018  # raises if the journal cannot store it
                for check in self._checks:
                    check(case)
            except UsageError as exc:
                hint = _NAN_HINT if self._nan == "error" and _without_nan(row) is not row else ""
                raise UsageError(f"{self.place(position)}: {exc}", hint=hint) from exc
            yield position, case

    def place(self, position: int) -> str:
        if isinstance(self.source, RemoteCases):
            return f"{self.source.address}, row {position:,}"
        return readers.place(self.source, position) if isinstance(self.source, Path) else f"case {position:,}"

    def _rows(self) -> Iterator[tuple[int, Any]]:
        if isinstance(self.source, Path):
            return readers.rows(self.source, self._delimiter, self._sheet)
        if isinstance(self.source, RemoteCases):
            return self.source.rows(self._delimiter)

        source: Any = self.source() if callable(self.source) else self.source
        reject_unsupported(source)
        if (rows := table_rows(source)) is not None:
            return enumerate(rows, 1)
        if isinstance(self.source, Iterator):
            if self._is_used_up:
                raise UsageError("the generator of cases was already used; pass a function that returns one")
            self._is_used_up = True
        return enumerate(source, 1)


def _case(row: Any, columns: Columns) -> Case:
    match row:
        case Case():
            return row  # pyright: ignore[reportUnknownVariableType]  # of any types
        case Mapping():
            return columns.case(cast("Mapping[str, Any]", row))
        case tuple():
            pair = cast("Any", row)
            if len(pair) != _PAIR:
                raise UsageError(f"a tuple must be (input, expected), but has {len(pair)} items; use Case(input=…)")
            return Case(input=pair[0], expected=pair[1])
        case _:
            return Case(input=row)


def _without_nan(value: Any) -> Any:
    """Replace NaN with None, in a case, in rows and in their values; return the value itself if it has no NaN."""
    match value:
        case float():
            return None if math.isnan(value) else value
        case Case():
            content = {name: getattr(value, name) for name in ("input", "expected", "metadata")}
            new_content = _without_nan(content)
            return value if new_content is content else evolve(value, **new_content)
        case Mapping():
            values = {key: _without_nan(item) for key, item in value.items()}
            return value if all(values[key] is value[key] for key in values) else values
        case list() | tuple():
            items = [_without_nan(item) for item in cast("list[Any]", value)]
            is_same = all(new_item is item for new_item, item in zip(items, value, strict=True))
            return value if is_same else tuple(items) if isinstance(value, tuple) else items
        case _:
            return value


class Trials:
    """The trials of a run, with their number and fingerprint if these are known in advance."""

    cases: int | None = None
    """Number of selected cases in the shard; None if unknown, because they can be read only once."""
    all_cases: int | None = None
    """Number of selected cases in all shards; None if unknown."""
    fingerprint: str | None = None
    """Digest of the names and contents of the selected cases, in any order: trials are matched by name and content. None if
    unknown. It is the same for all shards."""

    def __init__(
        self, dataset: Dataset, selection: Selection, repeats: int, variants: tuple[str, ...], shard: Shard | None
    ) -> None:
        self._dataset = dataset
        self._selection = selection
        self._repeats = repeats
        self._variants = variants
        self._shard = shard
        self._ambiguous_names: set[str] = set()
        """Short names that different cases have."""
        self._equal_case_names: frozenset[str] = frozenset()
        self._names = ContentNames()
        """The names of the last check."""
        if dataset.is_rereadable:
            self._check()

    def __iter__(self) -> Iterator[Trial]:
        for case in self._selected_cases(check_names=not self._dataset.is_rereadable):
            if self._shard is not None and not is_in_shard(case, self._shard):
                continue
            # All variants of a case precede the next case, so that the variants of a stopped run have the same cases.
            for variant in self._variants:
                for repeat in range(1, self._repeats + 1):
                    yield Trial(case=case, variant=variant, repeat=repeat)

    def _check(self) -> None:
        """Read all cases, again if different ones have the same short name: then no name depends on the order."""
        self._read_all()
        while not self._names.collisions <= self._ambiguous_names:
            self._ambiguous_names |= self._names.collisions
            self._read_all()
        self._equal_case_names = frozenset(self._names.equal_case_names)
        self._names = ContentNames()  # Frees the names of all cases.

    def _read_all(self) -> None:
        """Count the cases, and add up their digests, because a sum does not depend on the order."""
        cases = shard_cases = total = 0
        for case in self._selected_cases(check_names=True, in_order=self._selection.limit is not None):
            cases += 1
            shard_cases += is_in_shard(case, self._shard)
            content = hashlib.sha256(f"{case.name}\0{case.fingerprint}".encode()).digest()
            total = (total + int.from_bytes(content, "big")) % _MODULUS

        self.cases, self.all_cases = shard_cases, cases
        self.fingerprint = hashlib.sha256(f"{cases} {total}".encode()).hexdigest()[:16]

    def _selected_cases(self, *, check_names: bool, in_order: bool = True) -> Iterator[Case]:
        selection = self._selection
        excluded_names: list[str] = []

        def matching_cases() -> Iterator[Case]:
            cases = self._unique_cases() if check_names else self._checked_cases()
            if not selection.only and not selection.skip:
                return map(itemgetter(1), cases)
            return (case for _, case in cases if matches(case))

        def matches(case: Case) -> bool:
            if selection.matches(case.name):
                return True
            if len(excluded_names) < _MAX_EXAMPLES:
                excluded_names.append(case.name)
            return False

        cases = self._shuffle(matching_cases) if selection.shuffle and in_order else matching_cases()
        is_empty = True
        for case in islice(cases, selection.limit):
            is_empty = False
            yield case
        if is_empty:
            raise self._no_cases_error(excluded_names)

    def _checked_cases(self) -> Iterator[tuple[int, Case]]:
        """Return the cases with the names that they had when the dataset was checked; without equal names, those they have."""
        if not self._ambiguous_names and not self._equal_case_names:
            return self._dataset.read()
        names = ContentNames(self._ambiguous_names, self._equal_case_names)
        return ((position, names.rename(case)) for position, case in self._dataset.read())

    def _unique_cases(self) -> Iterator[tuple[int, Case]]:
        """Yield cases; reject duplicate names, and names that a repeat of another case has."""
        names, repeated_names = set[str](), set[str]()  # The strings are shared with the run's state.
        self._names = ContentNames(self._ambiguous_names)
        for position, source_case in self._dataset.read():
            case = self._names.rename(source_case)
            name = case.name
            if name in names:
                raise self._duplicate_error(position, case)

            names.add(name)
            is_taken = name in repeated_names
            if self._repeats > 1 and (match := _REPEAT.fullmatch(case.name)) and 1 < int(match["repeat"]) <= self._repeats:
                repeated_names.add(match["name"])
                is_taken = is_taken or match["name"] in names

            if is_taken:
                raise UsageError(
                    f"{self._dataset.place(position)}: the id {case.name!r} is also the id of a repeat of another case; "
                    "rename one of the two cases"
                )
            yield position, case

    def _shuffle(self, matching_cases: Callable[[], Iterator[Case]]) -> Iterator[Case]:
        """Yield cases by rank, a block at a time: read all, and keep the lowest ranks above those of the previous block."""
        if not self._dataset.is_rereadable:
            cases = list(matching_cases())
            matching_cases = partial(iter, cases)

        size = min(_BLOCK, self._selection.limit or _BLOCK)
        last_rank = b""
        while True:
            pairs = ((self._selection.rank(case.name), case) for case in matching_cases())
            block = heapq.nsmallest(size, (pair for pair in pairs if pair[0] > last_rank), key=lambda pair: pair[0])
            for last_rank, case in block:  # noqa: B007  # the next block starts after it
                yield case
            if len(block) < size:
                return

    def _duplicate_error(self, position: int, case: Case) -> UsageError:
        place = self._dataset.place(position)
        first_place = "an earlier case"
        if self._dataset.is_rereadable:
            names = ContentNames(self._ambiguous_names)
            cases = self._dataset.read()
            first_place = self._dataset.place(next(number for number, item in cases if names.rename(item).name == case.name))

        problem = f"{place}: the id {case.name!r} is already used by {first_place}"
        return UsageError(problem, hint=f"if ids are in another column, {column_hint('id')}")

    def _no_cases_error(self, excluded_names: list[str]) -> UsageError:
        source = self._dataset.source if isinstance(self._dataset.source, Path) else "the dataset"
        if not excluded_names:
            return UsageError(f"{source} has no cases")

        patterns = {"only": list(self._selection.only), "skip": list(self._selection.skip)}
        filters = " and ".join(f"{name}={values}" for name, values in patterns.items() if values)
        names = ", ".join(map(repr, excluded_names))
        return UsageError(f"no case of {source} matches {filters}; names are, for example, {names}")
