"""The inputs of a run, and what each of them is called.

An input may be any object. Without a journal it is nobody's business what it is. With one it must be possible to say, in
another process, whether it is still the same: by its JSON, or, for what has none, by what pickle makes of it.
"""

import itertools
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from runner.data.case import Case, Trial
from runner.data.dataset import Dataset, Selection, Trials
from runner.data.fingerprint import digest
from runner.data.to_json import plain
from runner.errors import UsageError

_SHOWN = 1_000
"""Characters that are recorded of an input which is not JSON."""


class Inputs(Dataset):
    """A dataset of inputs, each asked once: read as they are needed, named by us, so that nothing about them can be wrong."""

    def __init__(self, inputs: Iterable[Any], *, journaled: bool) -> None:
        super().__init__(())
        if not isinstance(inputs, Iterable):
            raise UsageError(f"inputs={inputs!r}: give a list, or something else that can be iterated over")
        self.source = inputs
        self._journaled = journaled
        self._times: dict[str, int] = {}
        self._cases = self._read(inputs)
        self.names: list[str] = []
        """Of all that were read, in order."""
        self.given: dict[str, Any] = {}
        """Name → the input itself, until it is done."""
        self.count = len(inputs) if isinstance(inputs, Sized) else None
        """How many there are, where that is known."""
        self.failure: Exception | None = None
        """What the iterable raised, if it did."""

    def look(self) -> bool:
        """Say whether there are any. Of a list that is journaled, look at all: what cannot be recorded is told beforehand."""
        first = self._cases if self._journaled and self.count is not None else itertools.islice(self._cases, 1)
        read = deque(first)
        self._cases = itertools.chain(
            (read.popleft() for _ in range(len(read))), self._cases
        )  # Each is let go when it is taken.
        return bool(read)

    def select(self, selection: Selection | None = None, *, repeats: int = 1) -> Trials:
        """Give all of them, once."""
        return _Once(self, selection or Selection(), repeats)

    def cases(self) -> Iterator[Case]:
        """Give them as cases."""
        return self._cases

    def _read(self, inputs: Iterable[Any]) -> Iterator[Case]:
        try:
            for position, given in enumerate(inputs):
                case = self._recorded(position, given) if self._journaled else _named(None, str(position), "")
                self.names.append(case.name)
                self.given[case.name] = given
                yield case
        except Exception as exc:
            self.failure = exc
            raise

    def _recorded(self, position: int, given: Any) -> Case:
        """Name an input after its content, so that it is found again in another order; its like get a number."""
        try:
            case: Case = Case(input=plain(given))
        except UsageError as exc:
            case = Case(input=_stand_in(position, given, exc))
        content = case.__dict__["fingerprint"] = case.name  # It would be made anew when it is first asked for.
        times = self._times[content] = self._times.get(content, 0) + 1
        return case if times == 1 else _named(case.input, f"{content}-{times}", content)


class _Once(Trials):
    def __init__(self, inputs: Inputs, selection: Selection, repeats: int) -> None:
        super().__init__(inputs, selection, repeats)
        self._inputs = inputs
        self.cases = inputs.count

    def _check(self) -> None:
        """There is nothing to check: no two names are the same."""

    def __iter__(self) -> Iterator[Trial]:
        return (Trial(case=case, repeat=1) for case in self._inputs.cases())


def _named(value: Any, name: str, fingerprint: str) -> Case:
    case: Case = Case(input=value, name=name)
    case.__dict__["fingerprint"] = fingerprint
    return case


def _stand_in(position: int, given: Any, exc: UsageError) -> dict[str, str]:
    """Describe an input that JSON cannot say: how it looks, for people, and a digest of its content, to tell it from others."""
    try:
        content = pickle.dumps(given, protocol=4)  # A fixed one: the next version of Python may prefer another.
    except Exception as second:
        raise UsageError(
            f"input {position} cannot be told from others in a journal: it is not JSON ({exc}), and it cannot be pickled "
            f"({second}); give plain values or dataclasses, or leave journal= out"
        ) from second
    try:
        look = repr(given)
    except Exception as second:  # noqa: BLE001  # the user's class may do anything here
        look = f"(its repr raised {type(second).__name__})"
    return {"type": type(given).__qualname__, "repr": look[:_SHOWN], "content": digest(content)}
