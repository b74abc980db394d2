"""What a page is made from: a run, its columns, and what the rules say to it, all in one pass over the records."""

from journal import Record
from replay import LoadedRun
from replay.auditing import Auditor
from replay.export.page import Shown
from replay.export.page_content import Content, longest
from runner.cli.look import Seen
from runner.recompute.rules import remake


class Showing:
    """The columns and the audit so far; they share the state of the history that they go along with."""

    def __init__(self, size: int) -> None:
        """Prepare for a journal of so many bytes."""
        self.content = Content(longest(size))
        self._auditor: Auditor | None = None

    def take(self, history: LoadedRun, record: Record) -> None:
        """Take in the next record: judged by the state before it, told by the state after it."""
        if self._auditor is None:
            self._auditor = Auditor(remake, history.state)
        self._auditor.take(record)
        history.take(record)
        self.content.take(history, record)

    def shown(self, seen: Seen) -> Shown:
        """Give the run as it stands."""
        audit = (self._auditor or Auditor()).result()
        return Shown(history=seen.history, content=self.content, audit=audit, status=seen.status, problem=seen.problem)
