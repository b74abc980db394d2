"""A call that is a line of a batch: its request, which is not sent, and its collected reply.

What a chat model does with a request depends on the context of its call: without a line it is sent, and with one it is put on
the line, or the reply that was collected is read. Only the chat model and the batches know about it.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

import attrs

from evaljournal.runner.calls.http.reply import Reply


@attrs.define(eq=False)
class BatchLine:
    batch: int = 0
    """Number of the batch; 0 until its reply is collected."""
    number: int = 0
    """Number of the line in the batch, from 1."""
    status: int = 0
    """HTTP status of the collected reply; 0 if there is none."""
    body: bytes = b""
    failure: Exception | None = None
    """Why the request cannot be a line of a batch."""

    def reply(self, content: bytes) -> tuple[Reply, bytes]:
        """Return the collected reply and its body; if there is none, raise the request as `Unsent`."""
        if self.failure is not None:
            raise self.failure
        if not self.status:
            raise Unsent(content)
        return Reply(self.status, {"content-type": "application/json"}, ends_by_closing=False), self.body


class Unsent(Exception):
    """The request of a call that is not sent, because it is a line of a batch."""

    def __init__(self, content: bytes) -> None:
        super().__init__("the request is a line of a batch")
        self.content = content


_line: Final[ContextVar[BatchLine | None]] = ContextVar("evaljournal_batch_line", default=None)

current_line: Final[Callable[[], BatchLine | None]] = _line.get
"""Return the line that the call in this context is; None if it is made now."""
set_line: Final[Callable[[BatchLine | None], object]] = _line.set
"""Set the line that the next call in this context is; None: it is made now."""
