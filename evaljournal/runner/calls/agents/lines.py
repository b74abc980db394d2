"""Lines of a program that may print without end."""

from collections.abc import AsyncGenerator
from typing import Final

import trio

from evaljournal.runner.calls.http.reply_memory import MAX_BYTES, ReplyTooLarge

MAX_LINE: Final = 16 * 1024 * 1024
"""Maximum bytes of a line, which is kept in memory."""


async def read_lines(stream: trio.abc.ReceiveStream) -> AsyncGenerator[bytes]:
    """Yield the lines of a stream without line breaks; the last one need not have any.

    Raises `ReplyTooLarge` if a line has more than `MAX_LINE` bytes, or all together more than `MAX_BYTES`: their steps are
    recorded, and an endless stream must not fill the disk.
    """
    pending = bytearray()
    size = 0
    async for chunk in stream:
        size += len(chunk)
        if size > MAX_BYTES:
            raise ReplyTooLarge(f"the agent has printed more than {MAX_BYTES // 1024 // 1024} MiB; it may be endless")
        for number, line in enumerate(bytes(chunk).split(b"\n")):
            if number:
                yield bytes(pending)
                pending.clear()
            if len(pending) + len(line) > MAX_LINE:
                raise ReplyTooLarge(f"the agent has printed a line of more than {MAX_LINE // 1024 // 1024} MiB")
            pending += line
    if pending:
        yield bytes(pending)
