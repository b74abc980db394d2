"""The inputs of an executor as a dataset.

An input may be any object. With a journal, it must be recognizable in another process: by its JSON, or by its pickle.
"""

import itertools
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from evaljournal.runner.data.case import Case, ContentNames, Trial
from evaljournal.runner.data.dataset import Dataset, Selection, Trials
from evaljournal.runner.data.fingerprint import digest
from evaljournal.runner.data.to_json import to_json
from evaljournal.runner.errors import UsageError

_MAX_REPR = 1_000
"""Maximum characters that are recorded of the repr of an input that is not JSON."""


class Inputs(Dataset):
    """A dataset of inputs, read lazily, with generated names."""

    def __init__(self, inputs: Iterable[Any], *, journaled: bool) -> None:
        super().__init__(())
        if not isinstance(inputs, Iterable):
            raise UsageError("expected a list or another iterable", setting="inputs", value=inputs)
        self.source = inputs
        self._is_journaled = journaled
        self._content_names = ContentNames()
        self._cases = self._read(inputs)
        self.names: list[str] = []
        """Names of the inputs read so far, in order."""
        self.by_name: dict[str, Any] = {}
        """Name → input, until its trial is done."""
        self.count = len(inputs) if isinstance(inputs, Sized) else None
        self.failure: Exception | None = None

    def read_ahead(self) -> bool:
        """Read the first input, or all of a journaled list, to find errors early; return whether there are any inputs."""
        cases = deque(self._cases if self._is_journaled and self.count is not None else itertools.islice(self._cases, 1))
        first_cases = (cases.popleft() for _ in range(len(cases)))  # Frees each case when it is taken.
        self._cases = itertools.chain(first_cases, self._cases)
        return bool(cases)

    def select(self, *_: Any, **__: Any) -> Trials:
        """Return all inputs, once each: an executor has no options that select some."""
        return _InputTrials(self)

    def cases(self) -> Iterator[Case]:
        """Return the inputs as cases."""
        return self._cases

    def _read(self, inputs: Iterable[Any]) -> Iterator[Case]:
        try:
            for position, value in enumerate(inputs):
                case = self._named_case(position, value) if self._is_journaled else _numbered_case(position)
                self.names.append(case.name)
                self.by_name[case.name] = value
                yield case
        except Exception as exc:
            self.failure = exc
            raise

    def _named_case(self, position: int, value: Any) -> Case:
        """Name an input after its content, so that the order of inputs does not matter; duplicates get a number."""
        try:
            case: Case = Case(input=to_json(value))
        except UsageError as exc:
            case = Case(input=_placeholder(position, value, exc))
        return self._content_names.rename(case)


class _InputTrials(Trials):
    def __init__(self, inputs: Inputs) -> None:
        super().__init__(inputs, Selection(), 1, ("",), None)
        self._inputs = inputs
        self.cases = inputs.count

    def _check(self) -> None:
        """Nothing to check: names are unique."""

    def __iter__(self) -> Iterator[Trial]:
        return (Trial(case=case, repeat=1) for case in self._inputs.cases())


def _numbered_case(position: int) -> Case:
    case: Case = Case(input=None, name=str(position))
    case.__dict__["fingerprint"] = ""  # It is not needed, and slow to compute.
    return case


def _placeholder(position: int, value: Any, exc: UsageError) -> dict[str, str]:
    """Describe an input that is not JSON by its repr and a digest of its pickle."""
    try:
        content = pickle.dumps(value, protocol=4)  # Fixed, because the default may change between Python versions.
    except Exception as error:
        raise UsageError(
            f"input {position} cannot be journaled: it is neither JSON ({exc}) nor can it be pickled ({error}); "
            "use plain values or dataclasses, or remove journal="
        ) from error
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  # the user's class may raise anything
        text = f"(repr raised {type(error).__name__})"
    return {"type": type(value).__qualname__, "repr": text[:_MAX_REPR], "content": digest(content)}
