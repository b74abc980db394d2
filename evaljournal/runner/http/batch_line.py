"""A call that is a line of a batch: its request, which is not sent, and its collected reply."""

import attrs


@attrs.define(eq=False)
class BatchLine:
    """A call whose request is a line of a batch: the client raises `Unsent`, or reads the collected reply."""

    batch: int = 0
    """Number of the batch; 0 until its reply is collected."""
    number: int = 0
    """Number of the line in the batch, from 1."""
    status: int = 0
    """HTTP status of the collected reply; 0 if there is none."""
    body: bytes = b""
    failure: Exception | None = None
    """Why the request cannot be a line of a batch."""


class Unsent(Exception):
    """The request of a call that is not sent, because it is a line of a batch."""

    def __init__(self, content: bytes) -> None:
        super().__init__("the request is a line of a batch")
        self.content = content
