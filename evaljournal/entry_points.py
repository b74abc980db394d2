"""What other packages add to evaljournal: entry points, in a group for each kind of thing.

    [project.entry-points."evaljournal.formats"]
    mine = "my_package.evals:MY_FORMAT"

Our own integrations are found in the same way, so that the core imports none of them. A name is looked up in this order:

1. in the core, by the caller: what is built in is never replaced, and using it reads no metadata;
2. in the entry points of our own distribution, which takes 0.3 ms;
3. in those of all installed distributions, which takes 20 ms and more. Therefore, nothing that most commands do, such as
   `--help`, may ask for a name that does not exist, or for all names.

An entry point is imported when its name is used. One that fails is an error of that use only; the error names the distribution
that has to be repaired. What an entry point must be is written down in docs/extending.md and, for dialects, docs/dialects.md.
"""

import functools
from contextlib import contextmanager

from evaljournal.lazy_names import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from importlib.metadata import EntryPoint
    from typing import Any

_OURS = "evaljournal"
"""The name of our distribution."""


def find(group: str, name: str) -> "EntryPoint | None":
    """Return an entry point of the group `evaljournal.GROUP`; None if no installed package has one of this name."""
    return _own(group).get(name) or others(group).get(name)


def names(group: str, *, excluding: "Collection[str]" = ()) -> list[str]:
    """Return the names in a group, our own first, without those that are built in."""
    return [name for entries in (_own(group), others(group)) for name in sorted(entries) if name not in excluding]


@functools.cache
def _own(group: str) -> "dict[str, EntryPoint]":
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415  # slow to import

    try:
        entries = distribution(_OURS).entry_points
    except PackageNotFoundError:  # It runs from its source, without having been installed.
        return {}
    return {entry.name: entry for entry in entries.select(group=f"{_OURS}.{group}")}


@functools.cache
def others(group: str) -> "dict[str, EntryPoint]":
    """Return the entry points of other packages, without those that have a name of ours."""
    from importlib.metadata import entry_points  # noqa: PLC0415  # slow to import

    return {entry.name: entry for entry in entry_points(group=f"{_OURS}.{group}") if entry.name not in _own(group)}


@contextmanager
def using(entry: "EntryPoint", error: "Callable[[str], Exception]") -> "Iterator[None]":
    """Convert an exception inside the block, in which an entry point is loaded or called, to an error that names it.

    An error of the same type passes: with it, the entry point rejects its arguments.
    """
    try:
        yield
    except Exception as exc:  # It is code of another package.
        if isinstance(error, type) and isinstance(exc, error):
            raise
        package = "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
        place = f"the entry point {entry.name!r} of {package} ({entry.group}: {entry.value})"
        raise error(f"{place} cannot be used: {type(exc).__name__}: {exc}") from exc


def checked(
    entry: "EntryPoint", error: "Callable[[str], Exception]", call: "Callable[[], Any]", kind: "Any", *, noun: str, verb: str
) -> "Any":
    """Return what a call returns that loads or calls an entry point; an exception, or another type, is an error that names it.

    The error of another type is worded with `verb` and `noun`: `it is a list, not a Format`.
    """
    with using(entry, error):
        value = call()
        if not isinstance(value, kind):
            raise TypeError(f"it {verb} a {type(value).__name__}, not {noun}")
    return value
