"""Read a run for a page: state, columns and audit in one pass over the records."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, Self

import attrs

from evaljournal.journal import Record
from evaljournal.journal.disk.lock import is_held
from evaljournal.journal.disk.segments import total_size
from evaljournal.replay.auditing.auditor import Auditor
from evaljournal.replay.page.page import PageRun, comparison_data, page, variants_data
from evaljournal.replay.page.page_content import Content
from evaljournal.replay.results.comparison import Side, compare, output_digests
from evaljournal.replay.runs.loaded_run import LoadedRun, load
from evaljournal.runner.retries.rules import retry_rules

_GROWTH: Final = 1.02
"""Factor by which the records of a live run must grow before its variants, and so all trials, are compared again."""


class PageReader:
    """The content of a page and the audit so far; both use the state of the run."""

    def __init__(self, size: int) -> None:
        """Prepare for a journal of `size` bytes."""
        self.content = Content(size)
        self._auditor: Auditor | None = None
        self._variants: Mapping[str, Any] | None = None
        self._compared_seq = 0
        """The last record when the variants were compared."""

    def apply(self, run: LoadedRun, record: Record) -> None:
        """Audit a record against the state before it, then apply it to the run and the content."""
        if self._auditor is None:
            self._auditor = Auditor(retry_rules, run.state)
        self._auditor.apply(record)
        self.content.apply(run, record)

    def run(self, run: LoadedRun) -> PageRun:
        if run.seq > self._compared_seq * (_GROWTH if run.is_live else 1):
            self._variants, self._compared_seq = variants_data(run.state), run.seq
        audit = (self._auditor or Auditor()).result()
        return PageRun(run=run, content=self.content, audit=audit, variants=self._variants)


def read_page_run(path: Path) -> PageRun:
    """Read a run for a page: state, columns and audit in one pass over its journal."""
    is_live = is_held(path)  # Checked first, as in `open_run`.
    reader = PageReader(total_size(path))
    run = load(path, apply=reader.apply)
    run.is_live = is_live
    return reader.run(run)


def side_by_side(sides: Sequence[tuple[PageRun, str | None]]) -> Iterator[bytes]:
    """Yield the page of two runs, or of a variant of each, which are compared."""
    runs = list({id(page_run): page_run for page_run, _ in sides}.values())
    a, b = (Side(item.run.state, output_digests(item.run.outputs(load_blobs=False)), variant) for item, variant in sides)
    comparison = comparison_data(compare(a, b), (a, b), [page_run.run.state for page_run in runs])
    return page([page_run.data() for page_run in runs], comparison)


@attrs.frozen
class InlinePage:
    """The page of a run in a cell of a notebook: in a frame without access to the notebook."""

    path: Path
    content: str = attrs.field(repr=False)
    """The page, which is untrusted: it has outputs."""

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(path, b"".join(page([read_page_run(path).data()])).decode())

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 640px; border: 1px solid #8888"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.content)}"></iframe>'
