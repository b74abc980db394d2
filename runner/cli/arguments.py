"""What the words on the command line mean: which run, which trial, which type of event."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

RUNS: Final = Path("runs")
"""Where runs are kept unless somebody says otherwise."""


def newest_run() -> Path:
    """Find the run under `runs/` that was written last."""
    segments = [*RUNS.glob("journal-*.jsonl"), *RUNS.glob("*/journal-*.jsonl"), *RUNS.glob("*/*/journal-*.jsonl")]
    if not segments:
        raise click.UsageError(f"no RUN was given, and there is none under {RUNS}/ here; `evaljournal run FILE.py` makes one")
    return max(segments, key=lambda segment: (segment.stat().st_mtime_ns, segment.name)).parent


def chosen_run(run: Path | None) -> Path:
    """Take the run that was named, or the newest."""
    return run if run is not None else newest_run()


def nearest(word: str, words: Iterable[str]) -> str:
    """Say which of the words may have been meant; nothing if none is near."""
    close = difflib.get_close_matches(word, list(words), n=3)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
