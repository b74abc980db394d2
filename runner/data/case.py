"""The things asked: a case, and a trial of it.

What a case is, what it is called and when two are the same. Where cases come from is `runner.data.dataset`.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Generic, cast

from attrs import Attribute, Factory, field, frozen
from typing_extensions import TypeVar

from runner.data.fingerprint import canonical, digest
from runner.errors import UsageError

InputT_co = TypeVar("InputT_co", covariant=True, default=Any)
ExpectedT_co = TypeVar("ExpectedT_co", covariant=True, default=Any)


_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def _content(case: "Case[Any, Any]") -> str:
    """Fingerprint what a case asks; its name is not part of it, so that a case without one can be named after it."""
    metadata = canonical(case.metadata, "metadata") if case.metadata else b"{}"
    return digest(b"\n".join((canonical(case.input, "input"), canonical(case.expected, "expected"), metadata)))


def _nameable(_: "Case[Any, Any]", __: "Attribute[str]", name: object) -> None:
    if not isinstance(name, str):
        raise UsageError(f"a case's name is text, not {name!r}")
    if not name.strip():
        raise UsageError(f"the name {name!r} is empty; leave it out, and the case is named after its content")
    if not name.isprintable() and _UNPRINTABLE.search(name):  # The first is the quicker; the second lets a hard space pass.
        raise UsageError(f"the name {name!r} holds a control character or half a character, and names are printed")


@frozen(kw_only=True, slots=False)
class Case(Generic[InputT_co, ExpectedT_co]):
    """One thing asked."""

    input: InputT_co
    """What the task is called with."""
    expected: ExpectedT_co = cast("Any", None)  # noqa: RUF009 - None, for the type checker's eyes
    """What a scorer may compare the output with."""
    metadata: Mapping[str, Any] = field(factory=dict[str, Any])
    """Anything else that is known of the case."""
    name: str = field(default=Factory(_content, takes_self=True), validator=_nameable)
    """How people call it; unique in a dataset. Left out, it is the fingerprint."""
    input_name: str = field(default="input", eq=False, repr=False)
    """What the input is called where it comes from, a column's name mostly; the fields of a template may call it so."""

    @cached_property
    def fingerprint(self) -> str:
        """Digest of input, expected and metadata: the same content has the same fingerprint, under any name."""
        return _content(self)


@frozen(kw_only=True)
class Trial:
    """One time that a case is asked."""

    case: Case
    repeat: int
    """Counted from 1."""
    id: str = field(init=False, default=Factory(lambda self: _numbered(self.case.name, self.repeat), takes_self=True))
    """The case's name, and from its second repeat on its number: `paris`, `paris#2`, `paris#3`."""


def _numbered(name: str, repeat: int) -> str:
    return name if repeat == 1 else f"{name}#{repeat}"
