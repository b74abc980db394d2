"""TOML files of the user."""

import tomllib
from pathlib import Path
from typing import Any

from evaljournal.runner.errors import UsageError


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise a UsageError that names it if that is not possible."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise UsageError(f"cannot be read: {exc.strerror}", path=path) from exc
    except ValueError as exc:  # The file is not TOML or not UTF-8.
        raise UsageError(f"not valid TOML: {exc}", path=path) from exc
    except RecursionError as exc:
        raise UsageError("nested too deeply", path=path) from exc
