"""Cases and trials: their content, names and fingerprints. Datasets of cases are in `runner.data.dataset`."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, Generic, cast

from attrs import Attribute, Factory, field, frozen
from typing_extensions import TypeVar

from runner.data.fingerprint import canonical, digest
from runner.errors import UsageError

InputT_co = TypeVar("InputT_co", covariant=True, default=Any)
ExpectedT_co = TypeVar("ExpectedT_co", covariant=True, default=Any)


MAX_NAME: Final = 10_000
"""Characters of a case's name, and of a rate-limit key: every record of a trial contains them."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def _content(case: "Case[Any, Any]") -> str:
    """Fingerprint the content of a case, without its name: a case without a name is named after its content."""
    metadata = canonical(case.metadata, "metadata") if case.metadata else b"{}"
    return digest(b"\n".join((canonical(case.input, "input"), canonical(case.expected, "expected"), metadata)))


def _nameable(_: "Case[Any, Any]", __: "Attribute[str]", name: object) -> None:
    if not isinstance(name, str):
        raise UsageError(f"the name of a case must be a string, not {name!r}")
    if not name.strip():
        raise UsageError(f"the name {name!r} is empty; leave it out to name the case after its content")
    if len(name) > MAX_NAME:
        raise UsageError(f"the name {name[:40]!r}… has {len(name):,} characters; at most {MAX_NAME:,} are allowed")
    if not name.isprintable() and _UNPRINTABLE.search(name):  # isprintable is faster, but rejects a no-break space.
        raise UsageError(f"the name {name!r} contains a control character or a lone surrogate, which cannot be printed")


@frozen(kw_only=True, slots=False)
class Case(Generic[InputT_co, ExpectedT_co]):
    """An input with its expected answer and metadata."""

    input: InputT_co
    """What the task is called with."""
    expected: ExpectedT_co = cast("Any", None)  # noqa: RUF009  # typed as ExpectedT_co
    """The expected answer, for scorers."""
    metadata: Mapping[str, Any] = field(factory=dict[str, Any])
    """Anything else about the case."""
    name: str = field(default=Factory(_content, takes_self=True), validator=_nameable)
    """Unique in a dataset. Default: the fingerprint."""
    input_name: str = field(default="input", eq=False, repr=False)
    """Name of the input's column in the dataset, which templates may use."""

    @cached_property
    def fingerprint(self) -> str:
        """Digest of input, expected answer and metadata, without the name."""
        return _content(self)


@frozen(kw_only=True)
class Trial:
    """One repeat of a case."""

    case: Case
    repeat: int
    """Counted from 1."""
    id: str = field(init=False, default=Factory(lambda self: _numbered(self.case.name, self.repeat), takes_self=True))
    """The case's name, from the second repeat on with its number: `paris`, `paris#2`, `paris#3`."""


def _numbered(name: str, repeat: int) -> str:
    return name if repeat == 1 else f"{name}#{repeat}"
