"""Recorded outputs as a task: each case contains its output, and nothing is called.

Outputs from elsewhere can be scored, compared and reported this way.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Self

import attrs
import trio

from evaljournal.runner.calls import TrialInput
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.fingerprint import digest
from evaljournal.runner.data.templates import Fields


@attrs.frozen
class RecordedOutput:
    """A column of the dataset, or a key of the input, that contains the output."""

    __name__ = "recorded_output"
    default_slots: ClassVar[int] = 32
    takes_trial = True

    output_key: str
    """Name of the column or key."""

    @property
    def definition(self) -> dict[str, Any]:
        """The column's name; the outputs are part of the dataset."""
        return {"output_key": self.output_key}

    @property
    def fingerprint(self) -> str:
        return digest(f"recorded output {self.output_key}".encode(errors="surrogatepass"))

    def check(self, case: Case) -> None:
        """Raise a UsageError if the case has no output."""
        self.output(case)

    def check_price(self, _: Case, /) -> None:
        """Accept every case: nothing is called."""

    def estimate(self, _: Case, __: float | None = None, ___: str = "", /) -> dict[str, float]:
        """Return zero usage: nothing is called."""
        return {"cost": 0, "input_tokens": 0, "output_tokens": 0}

    def output(self, case: Case) -> Any:
        return Fields(case).get(self.output_key)

    @asynccontextmanager
    async def open_session(self, _: str, /) -> AsyncGenerator[Self]:
        await trio.lowlevel.checkpoint()
        yield self

    async def call(self, trial: TrialInput, _: object, /) -> Any:
        return self.output(trial.case)

    async def __call__(self, value: Any, /) -> Any:
        await trio.lowlevel.checkpoint()
        return self.output(Case(input=value))
