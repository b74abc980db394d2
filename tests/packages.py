"""An installed package with entry points, as child processes of a test find it."""

import os
from collections.abc import Mapping
from pathlib import Path


def install(directory: Path, files: Mapping[str, str], entry_points: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Write modules and the metadata of the package `example`; return the environment in which Python finds them."""
    for name, text in files.items():
        (directory / name).write_text(text)
    metadata = directory / "example-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
    lines = [line for group, entries in entry_points.items() for line in (f"[evaljournal.{group}]", *_lines(entries))]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return {**os.environ, "PYTHONPATH": str(directory)}


def _lines(entries: Mapping[str, str]) -> list[str]:
    return [f"{name} = {value}" for name, value in entries.items()]
