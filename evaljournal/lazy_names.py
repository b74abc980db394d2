"""Names of a package that are imported when they are first used, so that a command imports only what it needs."""

import sys
from importlib import import_module

TYPE_CHECKING = False  # True for type checkers, as in `typing`, whose import takes longer than all others here.
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(package: str, modules: "Mapping[str, str]") -> "Callable[[str], Any]":
    """Return the `__getattr__` of a package; `modules` has the module in it that defines each name."""

    def import_name(name: str) -> "Any":
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return import_name
