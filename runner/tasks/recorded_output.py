"""Outputs that are there already, as a task: each case brings its own along, and nobody is asked.

So outputs from elsewhere are scored, compared and reported like any others.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import attrs
import trio

from runner.data.case import Case
from runner.data.fingerprint import digest
from runner.data.templates import Fields
from runner.tasks import TrialInput


@attrs.frozen
class RecordedOutput:
    """The column of the dataset, or the member of the input, that holds the output."""

    __name__ = "given"
    default_slots: ClassVar[int] = 32

    output_key: str

    @property
    def fingerprint(self) -> str:
        """Digest of where the outputs are; the outputs themselves are part of the dataset's."""
        return digest(f"given {self.output_key}".encode())

    def check(self, case: Case) -> None:
        """Refuse a case that brings no output."""
        self.output(case)

    def output(self, case: Case) -> Any:
        """Find the output that a case brings."""
        return Fields(case).get(self.output_key)

    @asynccontextmanager
    async def open_session(self, _: str, /) -> "AsyncGenerator[_Live]":
        """Nothing is kept."""
        await trio.lowlevel.checkpoint()
        yield _Live(self)

    async def __call__(self, value: Any, /) -> Any:
        """Give the output that stands in an input."""
        await trio.lowlevel.checkpoint()
        return self.output(Case(input=value))


class _Live:
    takes_trial: bool = True

    def __init__(self, given: RecordedOutput) -> None:
        self._given = given

    async def call(self, asked: TrialInput, _: object) -> Any:
        return self._given.output(asked.case)
