"""Where cases come from, which of them are chosen, and that they can be trusted.

A file, or anything that has a length, is read twice: once to check every case before anything runs, then again lazily
while the run goes on. What can be read only once, such as a generator, is checked while it is read.
Memory holds one case at a time, and a digest of each name.
"""

import copy
import hashlib
import heapq
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, cast

from attrs import Attribute, field, frozen

from runner.data import readers
from runner.data.case import Case, Trial
from runner.data.columns import Columns, which
from runner.errors import UsageError

Source = str | os.PathLike[str] | Iterable[Any] | Callable[[], Iterable[Any]]
"""A file's path; or cases, mappings, (input, expected) pairs or plain inputs; or a function that returns these."""

_BLOCK = 65_536
"""Cases held at once while shuffling; a larger dataset is read several times instead."""

_SOME = 3
"""Names that are told as examples."""

_PAIR = 2
_REPEAT = re.compile(r"(?P<name>.*)#(?P<repeat>[1-9]\d{0,8})", re.DOTALL)
_MODULUS = 2**256


def texts(given: str | Iterable[str]) -> tuple[str, ...]:
    """Take one text for several."""
    return (given,) if isinstance(given, str) else tuple(given)


def _positive(_: "Selection", attribute: "Attribute[Any]", given: object) -> None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
        raise UsageError("must be a whole number, 1 or more", setting=attribute.name, value=given)


@frozen(kw_only=True)
class Selection:
    """Which cases of a dataset are used, and in which order."""

    only: tuple[str, ...] = field(default=(), converter=texts)
    """Names, with `*`, `?` and `[…]` as in file names; capital and small letters differ. Empty: all."""
    skip: tuple[str, ...] = field(default=(), converter=texts)
    """The same, for what is left out; it wins over `only`."""
    limit: int | None = field(default=None, validator=_positive)
    """The most cases to use, counted after all else."""
    shuffle: bool = False
    """Whether to take them in an order that depends on `seed` and the names alone, not on where they stand."""
    seed: int = 0

    def wants(self, name: str) -> bool:
        """Whether a case of this name is used."""
        return (not self.only or _matches(name, self.only)) and not (self.skip and _matches(name, self.skip))

    def rank(self, name: str) -> bytes:
        """Where a name comes in the shuffled order: a digest, so that a new row does not move the others."""
        return hashlib.sha256(f"{self.seed}\0{name}".encode()).digest()


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


class Dataset:
    """A source of cases, and what its columns mean."""

    def __init__(
        self,
        source: Source,
        *,
        id_key: str | None = None,
        input_key: str | None = None,
        expected_key: str | None = None,
    ) -> None:
        self.source: Path | Iterable[Any] | Callable[[], Iterable[Any]]
        if isinstance(source, str | os.PathLike):
            self.source = Path(cast("str", source))
        elif isinstance(source, Mapping | bytes) or hasattr(source, "columns"):
            kind = type(cast("object", source)).__name__
            raise UsageError(f"cases of type {kind} have no order of rows; give a list, such as df.to_dict('records')")
        elif not (isinstance(source, Iterable) or callable(source)):
            raise UsageError(f"cases come from a file or an iterable, not from {source!r}")
        else:
            self.source = source
        self._keys = {"id_key": id_key, "input_key": input_key, "expected_key": expected_key}
        self.input_name = input_key or "input"
        """What its cases call the input, as far as that was said."""
        self._used_up = False
        self._checks: tuple[Callable[[Case], object], ...] = ()

    def checked(self, check: Callable[[Case], object]) -> "Dataset":
        """Give the same cases, each of which must pass a check (it raises) before anything runs."""
        checked = copy.copy(self)
        checked._checks = (*self._checks, check)  # noqa: SLF001  # a copy of our own
        return checked

    def select(self, selection: Selection | None = None, *, repeats: int = 1) -> "Trials":
        """Check the dataset as far as it can be checked before anything runs, and return the trials to be made."""
        return Trials(self, selection or Selection(), repeats)

    @property
    def rereadable(self) -> bool:
        """Whether reading has no side effect and may be done twice: a file, or what has a length."""
        return isinstance(self.source, Path) or (isinstance(self.source, Sized) and not callable(self.source))

    def read(self) -> Iterator[tuple[int, Case]]:
        """Yield all cases in order, each with its place; names may still be there twice."""
        columns = Columns(**self._keys)
        for at, row in self._rows():
            try:
                case = _case(row, columns)
                case.fingerprint  # noqa: B018 - shows whether the journal can keep it
                for check in self._checks:
                    check(case)
            except UsageError as exc:
                raise UsageError(f"{self.place(at)}: {exc}") from exc
            yield at, case

    def place(self, at: int) -> str:
        """Say where a case stands, for people."""
        return readers.place(self.source, at) if isinstance(self.source, Path) else f"case {at:,}"

    def _rows(self) -> Iterator[tuple[int, Any]]:
        if isinstance(self.source, Path):
            return readers.rows(self.source)
        if callable(self.source):
            return enumerate(self.source(), 1)
        if isinstance(self.source, Iterator):
            if self._used_up:
                raise UsageError("the cases were a generator, and it was read before; give a function that returns it")
            self._used_up = True
        return enumerate(self.source, 1)


def _case(row: Any, columns: Columns) -> Case:
    """There are four things a row can be: a case, a mapping, a pair, or the input itself."""
    match row:
        case Case():
            return row  # pyright: ignore[reportUnknownVariableType]  # of whatever types the user gave it
        case Mapping():
            return columns.case(cast("Mapping[str, Any]", row))
        case tuple():
            pair = cast("Any", row)
            if len(pair) != _PAIR:
                raise UsageError(f"a tuple is (input, expected), and this one is {len(pair)} long; give Case(input=…)")
            return Case(input=pair[0], expected=pair[1])
        case _:
            return Case(input=row)


class Trials:
    """The trials of a run, to be iterated once or more; and what is known of them beforehand."""

    cases: int | None = None
    """How many cases were chosen; None while that is unknown, because they can be read only once."""
    fingerprint: str | None = None
    """Digest of the names and contents of the chosen cases, whatever their order: trials are matched by name and
    content, never by row number, so the order of the rows must not make two datasets different. None while unknown."""

    def __init__(self, dataset: Dataset, selection: Selection, repeats: int) -> None:
        self._dataset = dataset
        self._selection = selection
        self._repeats = repeats
        if dataset.rereadable:
            self._check()

    def __iter__(self) -> Iterator[Trial]:
        for case in self._chosen(checking=not self._dataset.rereadable):
            for repeat in range(1, self._repeats + 1):
                yield Trial(case=case, repeat=repeat)

    def _check(self) -> None:
        """Read everything that will be read, keep nothing, and add up the digests: a sum has no order."""
        cases = total = 0
        for case in self._chosen(checking=True, in_order=self._selection.limit is not None):
            cases += 1
            content = hashlib.sha256(f"{case.name}\0{case.fingerprint}".encode()).digest()
            total = (total + int.from_bytes(content, "big")) % _MODULUS
        self.cases = cases
        self.fingerprint = hashlib.sha256(f"{cases} {total}".encode()).hexdigest()[:16]

    def _chosen(self, *, checking: bool, in_order: bool = True) -> Iterator[Case]:
        wants, limit = self._selection.wants, self._selection.limit
        passed_over: list[str] = []

        def wanted() -> Iterator[Case]:
            for _, case in self._unique() if checking else self._dataset.read():
                if wants(case.name):
                    yield case
                elif len(passed_over) < _SOME:
                    passed_over.append(case.name)

        chosen = self._shuffled(wanted) if self._selection.shuffle and in_order else wanted()
        empty = True
        for case in islice(chosen, limit):
            empty = False
            yield case
        if empty:
            raise self._nothing(passed_over)

    def _unique(self) -> Iterator[tuple[int, Case]]:
        """Refuse a name that two cases share, or that a repeat of another case would have."""
        names, repeated = set[str](), set[str]()  # The same texts that the run's state keeps: the set itself is small.
        for at, case in self._dataset.read():
            name = case.name
            if name in names:
                raise self._twice(at, case)
            names.add(name)
            clash = name in repeated
            if self._repeats > 1 and (found := _REPEAT.fullmatch(case.name)) and 1 < int(found["repeat"]) <= self._repeats:
                of = found["name"]
                repeated.add(of)
                clash = clash or of in names
            if clash:
                raise UsageError(
                    f"{self._dataset.place(at)}: the id {case.name!r} and another differ only by the '#2' with which "
                    "repeats are numbered; rename one of the two cases"
                )
            yield at, case

    def _shuffled(self, wanted: Callable[[], Iterator[Case]]) -> Iterator[Case]:
        """Yield cases by rank, a block at a time: read all, keep the lowest ranks, go on behind them.

        So a file of any size is shuffled in bounded memory. What can be read only once is held whole.
        """
        if not self._dataset.rereadable:
            held = list(wanted())
            wanted = lambda: iter(held)  # noqa: E731 - the same thing, from memory
        block = min(_BLOCK, self._selection.limit or _BLOCK)
        last = b""
        while True:
            ranked = ((self._selection.rank(case.name), case) for case in wanted())
            lowest = heapq.nsmallest(block, (each for each in ranked if each[0] > last), key=lambda each: each[0])
            for last, case in lowest:  # noqa: B007 - where the next block begins
                yield case
            if len(lowest) < block:
                return

    def _twice(self, at: int, case: Case) -> UsageError:
        here = self._dataset.place(at)
        first = "an earlier case"
        if self._dataset.rereadable:
            first = self._dataset.place(next(place for place, other in self._dataset.read() if other.name == case.name))
        if case.name == case.fingerprint:
            return UsageError(
                f"{here}: the same as {first}; give them ids, or ask each case several times: --repeats, or repeats=… in Python"
            )
        return UsageError(
            f"{here}: the id {case.name!r} is taken by {first}; ids must differ; if another column has them, say {which('id')}"
        )

    def _nothing(self, passed_over: list[str]) -> UsageError:
        source = self._dataset.source if isinstance(self._dataset.source, Path) else "the dataset"
        if not passed_over:
            return UsageError(f"{source} has no cases")
        patterns = {"only": list(self._selection.only), "skip": list(self._selection.skip)}
        given = " and ".join(f"{name}={each}" for name, each in patterns.items() if each)
        names = ", ".join(map(repr, passed_over))
        return UsageError(f"no case of {source} is left by {given}; there are names such as {names}")
