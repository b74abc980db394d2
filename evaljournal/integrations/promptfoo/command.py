"""What `evaljournal import` does with a promptfoo configuration: it writes files, and reports what has no counterpart."""

import os
from contextlib import suppress
from pathlib import Path

from evaljournal.integrations.promptfoo.importing import Imported, import_config
from evaljournal.replay.text import plural, printable
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.errors import UsageError


def import_promptfoo(config: Path, output: Path, *, partial: bool) -> None:
    imported = import_config(config, output)
    for omission in imported.omissions:
        echo(str(omission), err=True)
    count = len(imported.omissions)
    what = f"{count} {'part has' if count == 1 else 'parts have'} no counterpart"
    if imported.omissions:
        echo(f"converted {imported.shares}", err=True)

    if not imported.files:
        left = "test" if imported.variants else "provider with a prompt"
        raise UsageError(f"{what}, and no {left} is left; nothing was written", path=config)
    if imported.omissions and not partial:
        raise UsageError(f"{what}; nothing was written. Change the file, or import the rest with --partial")

    _write(imported, output)
    for path in imported.files:
        echo(f"{path} written", err=True)
    if imported.omissions:
        echo(f"{what}; see the comments in {list(imported.files)[-1]}", err=True)
    for host, names in imported.sent_variables.items():
        echo(f"a run sends {', '.join(map(printable, names))} to {printable(host)}", err=True)
    echo(
        f"{plural(imported.tests, 'test')}, {plural(imported.variants, 'variant')}; next: {' and '.join(imported.commands)}",
        err=True,
    )


def _write(imported: Imported, directory: Path) -> None:
    """Write all files, or none of them; the files of an import that was killed are completed."""
    contents: dict[Path, bytes] = {}
    for path, text in imported.files.items():
        try:
            contents[path] = text.encode()
        except UnicodeEncodeError as exc:
            raise UsageError("a text contains a lone surrogate, which UTF-8 cannot encode", path=path) from exc

    partial_paths = [path for path, content in contents.items() if _is_part(path, content)]
    is_complete = all(path in partial_paths and path.stat().st_size == len(content) for path, content in contents.items())
    for path in contents:
        if os.path.lexists(path) and (is_complete or path not in partial_paths):
            raise UsageError("already exists; move it, or pass another directory with -o", path=path)

    written_paths: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            with path.open("r+b" if path in partial_paths else "xb") as file:
                written_paths.append(path)
                file.write(content)
    except BaseException as exc:
        for path in written_paths:
            with suppress(OSError):
                path.unlink()
        if isinstance(exc, OSError):
            raise UsageError(f"cannot be written: {exc.strerror}", path=exc.filename or directory) from exc
        raise


def _is_part(path: Path, content: bytes) -> bool:
    """Return whether a file has the start of a content, or all of it, so that nothing is lost if it is written again."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > len(content):
        return False
    return content.startswith(path.read_bytes())
