"""TOML files of the user."""

import re
from pathlib import Path
from typing import Any, Final

from evaljournal.runner.errors import UsageError

_PART: Final = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY: Final = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PART}\.[ \t]*+){{100}}{_PART}[]=]")
"""A key with more than 100 parts, for which `tomllib` takes quadratic time and memory.

It is searched for at the start of a word only; otherwise a long word would take quadratic time here."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise a UsageError that names it if that is not possible."""
    import tomllib  # noqa: PLC0415  # most runs read no such file

    try:
        text = path.read_text(encoding="utf-8")
        if key := _LONG_KEY.search(text):
            raise UsageError("a key has more than 100 parts; shorten it", path=path, line=text.count("\n", 0, key.start()) + 1)
        return tomllib.loads(text)
    except OSError as exc:
        raise UsageError(f"cannot be read: {exc.strerror}", path=path) from exc
    except ValueError as exc:  # The file is not TOML or not UTF-8.
        raise UsageError(f"not valid TOML: {exc}", path=path) from exc
    except RecursionError as exc:
        raise UsageError("nested too deeply", path=path) from exc
