"""Check, on import, that `journal`, `replay` and `runner` are evaljournal's own, and that no file hides a dependency.

These names are common. Another distribution or a file of the user may take one of them, and pip overwrites a package of the
same name without a warning. A file such as `rich.py` in the working directory hides the package of that name.
"""

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parent.parent
_MARK: Final = b"Part of evaljournal."
"""A phrase that the docstring of each of our packages contains."""
_DEPENDENCIES: Final = ("attrs", "cattrs", "click", "httpcore2", "orjson", "rich", "trio")
"""Packages that evaljournal needs; some are imported only when they are used."""


def _check(name: str) -> None:
    """Raise an ImportError unless `import name` would load our package."""
    file = _file_of(name)
    if file is None:
        raise ImportError(f"evaljournal's package {name!r} is missing; install evaljournal again", name=name)
    if file == _ROOT / name / "__init__.py" and _MARK in file.read_bytes():
        return
    owner = _owner(name, file)
    if owner is None:
        source, fix = "which no installed distribution owns", "rename or move it"
    else:
        source, fix = f"from the distribution {owner!r}", f"use an environment without {owner} and install evaljournal again"
    message = f"{name!r} is {file}, {source}; it hides evaljournal's package of that name in {_ROOT}; {fix}"
    raise ImportError(message, name=name, path=str(file))


def _check_dependency(name: str) -> None:
    """Raise an ImportError if `import name` would load a single file instead of a package."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # It is in sys.modules and has no spec.
        return
    if spec is not None and spec.submodule_search_locations is None:
        message = f"{spec.origin} hides the package {name!r}, which evaljournal needs; rename the file"
        raise ImportError(message, name=name, path=spec.origin)


def _file_of(name: str) -> Path | None:
    """Find the file that `import name` loads, without loading it."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # It is in sys.modules and has no spec.
        return None
    if spec is None:
        return None
    directories = list(spec.submodule_search_locations or ())
    origin = spec.origin if spec.has_location and spec.origin else directories[0] if directories else None
    return None if origin is None else Path(origin).resolve()


def _owner(name: str, file: Path) -> str | None:
    """Find the distribution, other than our own, that installed a file."""
    paths = {f"{name}/__init__.py", f"{name}.py"}
    for distribution in importlib.metadata.distributions():
        if distribution.name == "evaljournal":
            continue
        for path in distribution.files or ():
            if path.as_posix() in paths and Path(str(path.locate())).resolve() == file:
                return distribution.name
    return None


for _name in ("journal", "replay", "runner"):
    _check(_name)
for _name in _DEPENDENCIES:
    _check_dependency(_name)
