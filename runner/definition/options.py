"""Keyword arguments of `evaluation`, `run` and `arun`, typed, so that editors complete them and type checkers know them.

They mirror `Settings` and the session's `Options`, which document and validate them; a test compares the names.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from typing_extensions import TypedDict

from journal import Durability, Record
from journal.files import Files
from journal.threads import InThread
from runner.concurrency import Policy
from runner.retries.retry import Retry

if TYPE_CHECKING:
    from runner.engine.environment import Environment
    from runner.engine.session import Live


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


class RunOptions(SettingOptions, total=False):
    """Options of a single run: every setting, and how its session behaves; see `runner.engine.session.Options`."""

    resume: bool
    adopt: bool
    retry_failed: bool
    on_ambiguous: Literal["retry", "fail"]
    task: str
    elsewhere: Callable[[], Path] | None
    observer: "Callable[[Live], Awaitable[None]] | None"
    listener: Callable[[Record], None] | None
    limits: Callable[[int], Policy] | None
    environment: "Callable[[], Environment]"
    files: Files
    in_thread: InThread
    wall: Callable[[], float]
