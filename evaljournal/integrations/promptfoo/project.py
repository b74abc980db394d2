"""The files that a configuration names, and the list of what cannot be imported.

A configuration is untrusted: only regular files in its directory and below are read, because their content is copied.
"""

import json
import re
from glob import glob
from pathlib import Path
from typing import Any, Final

import attrs

from evaljournal.integrations.promptfoo.yaml_file import MAX_BYTES, Value, parse_json, parse_yaml
from evaljournal.replay.text import escape_controls
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import mask_literal

FILE: Final = "file://"
_GLOB: Final = frozenset("*?[")


class NotMapped(Exception):  # not an error: with `--partial` the rest is imported
    """Something has no counterpart; the message names it."""


@attrs.frozen
class Omission:
    """Something in a file that is not imported."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return one_line(f"{self.path}, line {self.line:,}: {mask_literal(self.text)}")


@attrs.define
class Project:
    """The project of a configuration."""

    config: Path
    omissions: dict[Omission, None] = attrs.field(factory=dict[Omission, None])
    """In order, each once."""
    _parts: dict[str, dict[int, tuple[Value, bool]]] = attrs.field(factory=dict[str, dict[int, tuple[Value, bool]]])
    """Kind of a part → identity → the part, and whether it is converted; the value is kept so that its identity is its own."""
    _root: Path = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._root = self.config.absolute().parent.resolve()

    def omit(self, value: Value, text: str) -> None:
        """Add something to the list of what is not imported."""
        self.omissions[Omission(value.path, value.line, text)] = None

    def convert_part(self, kind: str, value: Value) -> None:
        """Count a part, such as one of the `tests`, as converted, unless it was omitted where it is used elsewhere."""
        self._parts.setdefault(kind, {}).setdefault(id(value), (value, True))

    def omit_part(self, kind: str, value: Value, text: str) -> None:
        """Count a part as not converted, and add it to the list of what is not imported."""
        self._parts.setdefault(kind, {})[id(value)] = value, False
        self.omit(value, text)

    @property
    def shares(self) -> str:
        """The share of each kind of parts that was converted: `3 of 3 prompts, 12 of 14 assertions`."""
        flags = {kind: [is_converted for _, is_converted in parts.values()] for kind, parts in self._parts.items()}
        return ", ".join(f"{sum(converted)} of {len(converted)} {kind}" for kind, converted in flags.items())

    def omit_keys(self, fields: dict[str, Value], name: str) -> None:
        """Add all remaining keys of a mapping to that list."""
        for key, value in fields.items():
            self.omit(value, f"{name}.{key} is not mapped" if name else f"{key} is not mapped")

    def path(self, reference: str, value: Value, directory: Path | None = None) -> Path:
        """Return the path of a file that a value names; raise an error if it is not a file in the project.

        It is relative to a directory, by default that of the configuration.
        """
        path = (directory or self.config.parent) / reference.removeprefix(FILE)
        try:
            is_inside = path.resolve(strict=True).is_relative_to(self._root)
        except (OSError, ValueError, RuntimeError) as exc:
            problem = exc.strerror if isinstance(exc, OSError) and exc.strerror else "not a valid path"
            raise value.error(f"{reference!r} cannot be read: {problem}") from exc
        if not is_inside:
            raise value.error(f"{reference!r} is outside {self._root}, the directory of the configuration; copy it there")
        if not path.is_file():
            raise value.error(f"{reference!r} is not a regular file")
        return path

    def paths(self, reference: str, value: Value, directory: Path | None = None) -> list[Path]:
        """Return the files that a reference with `*` names, in order; without one, the file itself."""
        name, directory = reference.removeprefix(FILE), directory or self.config.parent
        if not _GLOB & set(name):
            return [self.path(reference, value, directory)]
        try:
            names = sorted(glob(name, root_dir=directory, recursive=True))
        except (OSError, ValueError, re.error) as exc:
            raise value.error(f"{reference!r} is not a valid pattern: {exc}") from exc
        if not names:
            raise value.error(f"no file matches {reference!r}")
        return [self.path(name, value, directory) for name in names]

    def read(self, path: Path) -> str:
        """Read a text file."""
        try:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as exc:
            raise UsageError(f"cannot be read: {exc.strerror}", path=path) from exc
        if len(content) > MAX_BYTES:
            raise UsageError(f"larger than {MAX_BYTES // 1_000_000} MB; split it, or convert it to a dataset", path=path)
        try:
            return content.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as exc:
            line = content[: exc.start].count(b"\n") + 1
            raise UsageError("not UTF-8; save it as UTF-8", path=path, line=line) from exc

    def read_values(self, path: Path) -> Value:
        """Read a YAML or JSON file."""
        text = self.read(path)
        try:
            return parse_yaml(text, path)
        except UsageError:
            if path.suffix != ".json":
                raise
            return parse_json(text, path)  # JSON that is not YAML, such as pairs of surrogates; its lines are unknown.

    def content(self, value: Value) -> Value:
        """Return a value; if it is `file://` of YAML, JSON or text, the content of that file."""
        if not (isinstance(value.data, str) and value.data.startswith(FILE)):
            return value
        path = self.path(value.data, value)
        if path.suffix in {".yaml", ".yml", ".json"}:
            return self.read_values(path)
        if path.suffix in {".txt", ".md"}:
            return Value(self.read(path), path, 1)
        raise NotMapped(f"{value.data} would be executed or needs a reader of its own")


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters, for a comment."""
    return escape_controls(text).replace("\n", "\\n")


def json_text(data: Any) -> str:
    """Return a value as JSON text, as JavaScript writes it."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))
