"""Keyword arguments of `evaluation`, typed for editors and type checkers.

They mirror `Settings`, which documents and validates them; a test compares the names.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from typing_extensions import TypedDict

from journal import Durability
from runner.retries.retry import Retry


class SettingOptions(TypedDict, total=False):
    """Settings by name; see `Settings`."""

    only: str | Iterable[str]
    skip: str | Iterable[str]
    limit: int | None
    shuffle: bool
    seed: int
    slots: int | None
    timeout: float | None
    deadline: float | None
    repeats: int
    loop: Literal["trio", "asyncio"] | None
    write_ahead: bool
    retry: Retry | Mapping[str, float]
    policy: str
    grace: float
    fail_fast: bool
    max_failures: float | None
    limit_key: str | None
    fail_under: str | Iterable[str]
    durability: Durability
