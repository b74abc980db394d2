"""Cases and trials: their content, names and fingerprints. Datasets of cases are in `runner.data.dataset`."""

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, Generic, cast

import orjson
from attrs import Attribute, Factory, evolve, field, frozen
from typing_extensions import TypeVar

from evaljournal.runner.data.fingerprint import canonical, digest
from evaljournal.runner.errors import UsageError

InputT_co = TypeVar("InputT_co", covariant=True, default=Any)
ExpectedT_co = TypeVar("ExpectedT_co", covariant=True, default=Any)


MAX_NAME: Final = 10_000
"""Maximum characters of a case's name, which every record of a trial contains, and of a rate-limit key."""
_UNPRINTABLE_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MAX_SLUG: Final = 32
"""Maximum characters of the input in the name of a case without an id."""
_DIGITS: Final = 6
_MORE_DIGITS: Final = 10
"""Digits of the fingerprint in a name whose words are only the start of the input, which many rows may share."""
_WORD: Final = re.compile(r"[A-Za-z0-9]+")
_MAX_SCAN: Final = 128
"""Maximum characters of a non-ASCII text that are searched for words."""


def content_name(value: Any, fingerprint: str, *, digits: int | None = None) -> str:
    """Name a case after its content: the first words of its input and some digits of its fingerprint."""
    words: list[str] = []
    length, is_complete = -1, True
    for word in _words(value):
        length += 1 + len(word)
        if length > _MAX_SLUG:
            is_complete = False
            words = words or [word[:_MAX_SLUG]]
            break
        words.append(word)

    if digits is None:
        digits = _DIGITS if words and is_complete else _MORE_DIGITS
    return f"{'-'.join(words) or 'case'}-{fingerprint[:digits]}"


def _words(value: Any) -> Iterator[str]:
    """Yield the words of a JSON value in lower case; the keys of objects are omitted."""
    match value:
        case None:
            return
        case str() if value.isascii():
            yield from (match[0].lower() for match in _WORD.finditer(value.replace("'", "")))
        case str():
            letters = (char if char.isalnum() or unicodedata.category(char)[0] == "M" else " " for char in value[:_MAX_SCAN])
            yield from "".join(letters).lower().split()
        case bool() | int() | float():
            yield from _words(str(value))
        case Mapping():
            for _, item in sorted(cast("Mapping[str, Any]", value).items()):
                yield from _words(item)
        case list() | tuple():
            for item in cast("list[Any]", value):
                yield from _words(item)
        case _:  # Anything else that JSON can represent, such as a dataclass.
            yield from _words(orjson.loads(canonical(value, "input")))


def check_name(name: object) -> None:
    """Raise a UsageError if a case cannot have this name."""
    if not isinstance(name, str):
        raise UsageError(f"the name of a case must be a string, not {name!r}")
    if not name.strip():
        raise UsageError(f"the name {name!r} is empty; omit it to name the case after its content")
    if len(name) > MAX_NAME:
        raise UsageError(f"the name {name[:40]!r}… has {len(name):,} characters; at most {MAX_NAME:,} are allowed")
    if not name.isprintable() and _UNPRINTABLE_CHARACTER.search(name):  # isprintable is faster, but rejects a no-break space.
        raise UsageError(f"the name {name!r} contains a control character or a lone surrogate, which cannot be printed")


def _validate_name(_: "Case[Any, Any]", __: "Attribute[str]", name: object) -> None:
    check_name(name)


@frozen(kw_only=True, slots=False)
class Case(Generic[InputT_co, ExpectedT_co]):
    """An input with its expected output and metadata."""

    input: InputT_co
    """The argument of the task."""
    expected: ExpectedT_co = cast("Any", None)  # noqa: RUF009  # typed as ExpectedT_co
    """The expected output, for scorers."""
    metadata: Mapping[str, Any] = field(factory=dict[str, Any])
    """Anything else about the case."""
    files: Mapping[str, Mapping[str, Any]] = field(factory=dict[str, Mapping[str, Any]], repr=False)
    """Path of an image or a file of the case → its `sha256` and `size`, or the `error` of reading it."""
    name: str = field(
        default=Factory(lambda case: content_name(case.input, case.fingerprint), takes_self=True), validator=_validate_name
    )
    """Unique in a dataset. Default: the first words of the input and some digits of the fingerprint."""
    input_name: str = field(default="input", eq=False, repr=False)
    """Name of the input's column in the dataset, which templates may use."""
    directory: str = field(default="", eq=False, repr=False)
    """Directory of the dataset, to which the paths of images and files are relative; empty: the working directory."""

    @cached_property
    def fingerprint(self) -> str:
        """Digest of input, expected output, metadata and files, without the name."""
        content = [canonical(self.input, "input"), canonical(self.expected, "expected")]
        content.append(canonical(self.metadata, "metadata") if self.metadata else b"{}")
        if self.files:
            content.append(canonical(self.files, "files"))
        return digest(b"\n".join(content))


class ContentNames:
    """Unique names for cases that are named after their content.

    Equal cases are numbered in order: `-2`, `-3`. Different cases with the same name get all digits of their fingerprints; the
    first of them only if its name is in `ambiguous_names`.
    """

    def __init__(self, ambiguous_names: Collection[str] = (), equal_case_names: Collection[str] | None = None) -> None:
        self._ambiguous_names = frozenset(ambiguous_names)
        self._counts = dict.fromkeys(equal_case_names or (), 0)
        self._fingerprints: dict[str, str] | None = {} if equal_case_names is None else None
        """Name → fingerprint; None if `equal_case_names` has all names of equal cases, and no others need to be remembered."""
        self.collisions: set[str] = set()
        """Names that different cases have. With these as `ambiguous_names`, names do not depend on the order of the cases."""

    @property
    def equal_case_names(self) -> Collection[str]:
        return self._counts.keys()

    def rename(self, case: Case[Any, Any]) -> Case[Any, Any]:
        """Return a case with a unique name; a name that the user chose is kept."""
        fingerprint = case.fingerprint
        name = case.name
        if fingerprint[:_DIGITS] not in name or name != content_name(case.input, fingerprint):  # The first check is faster.
            return case

        first_fingerprint = (self._fingerprints or {}).get(name, fingerprint)
        if name in self._ambiguous_names or first_fingerprint != fingerprint:
            self.collisions.add(name)
            name = content_name(case.input, fingerprint, digits=len(fingerprint))

        number = self._number(name, fingerprint)
        if number > 1:
            name = f"{name}-{number}"
        return case if name == case.name else evolve(case, name=name)

    def _number(self, name: str, fingerprint: str) -> int:
        """Count a case; return its number among those with this name, from 1."""
        if name in self._counts:
            self._counts[name] += 1
            return self._counts[name]
        if self._fingerprints is not None:
            if name in self._fingerprints:
                self._counts[name] = 2
                return 2
            self._fingerprints[name] = fingerprint
        return 1


def _trial_id(trial: "Trial") -> str:
    name = trial.case.name
    first_repeat = f"{name}@{trial.variant}" if trial.variant else name
    return first_repeat if trial.repeat == 1 else f"{first_repeat}#{trial.repeat}"


@frozen(kw_only=True)
class Trial:
    """One repeat of a case with one variant of the task."""

    case: Case
    variant: str = ""
    """Name of the variant; empty if the task has none."""
    repeat: int
    """Counted from 1."""
    id: str = field(init=False, default=Factory(_trial_id, takes_self=True))
    """The case's name, its variant, and from the second repeat on its number: `paris`, `paris#2`, `paris@mini`, `paris@mini#2`.
    It is never parsed."""
