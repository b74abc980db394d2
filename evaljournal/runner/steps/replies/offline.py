"""`--offline`: while it is on, this process connects to nothing but this machine.

An audit hook sees every connection and every name lookup of Python code in this process, whichever library makes it, and raises
instead. It cannot see the connections of other processes, such as commands, or those of a library that opens sockets in C.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Any, Final

from evaljournal.runner.calls import OnLateResult, Task
from evaljournal.runner.calls.dialects import dialect_by_name, names
from evaljournal.runner.calls.http import address
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal

PLACEHOLDER: Final = "no-key-because-offline"
"""What stands for an API key that is not set."""
_MAX_CAUSES: Final = 20
_CONNECTS: Final = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOKUPS: Final = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"})
_errors: Final[ContextVar[list["OfflineError"] | None]] = ContextVar("evaljournal_offline_errors", default=None)
_active = 0
_is_hooked = False


class OfflineError(Fatal):
    """A connection that was not made, because the run is offline."""


def fill_keys() -> list[str]:
    """Set the API keys of the known providers that are not set, because an SDK does not start without one; return them."""
    variables: list[str] = []
    for name in names():
        with suppress(UsageError):  # That of another package cannot be loaded.
            variables += [variable for variable in dict(dialect_by_name(name).key_variables) if variable not in os.environ]
    os.environ.update(dict.fromkeys(variables, PLACEHOLDER))
    return variables


@contextmanager
def offline() -> Generator[None]:
    """Prevent connections of this process to other machines, for the duration of the block; keys need not be set."""
    global _active, _is_hooked  # noqa: PLW0603  # an audit hook belongs to the process and cannot be removed
    if not _is_hooked:
        _is_hooked = True
        sys.addaudithook(_audit)
    variables = fill_keys()
    address.missing_variable = PLACEHOLDER
    _active += 1
    try:
        yield
    finally:
        _active -= 1
        if not _active:
            address.missing_variable = None
        for variable in variables:  # A later run of this process needs its own.
            os.environ.pop(variable, None)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _active or not event.startswith("socket."):
        return
    if event in _CONNECTS:
        target: Any = arguments[1]
    elif event in _LOOKUPS:
        target = arguments[0], arguments[1] if len(arguments) > 1 else None
    else:
        return
    if isinstance(target, tuple) and not _is_local(target[0]):
        host, port = (part.decode("idna") if isinstance(part, bytes) else part for part in target[:2])
        error = OfflineError(f"offline, so nothing connects to {host}{'' if port is None else f':{port}'}")
        errors = _errors.get()
        if errors is not None:
            errors.append(error)
        raise error


def _is_local(host: Any) -> bool:
    if isinstance(host, int):  # An address of the kernel, or of the host of a virtual machine.
        return not host
    text = host.decode("idna") if isinstance(host, bytes) else host
    if not text or text == "localhost" or text.endswith(".localhost"):
        return True
    try:
        ip = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return ip.is_loopback or ip.is_unspecified


class OfflineTask:
    """A task, or a scorer, whose call fails if it tried to connect to another machine, whatever it made of the error."""

    def __init__(self, task: Task, label: str) -> None:
        self._task, self._label = task, label
        self.takes_trial = task.takes_trial
        self.request = getattr(task, "request", None)
        self.loop = getattr(task, "loop", "trio")
        self.is_answered = getattr(task, "is_answered", None)

    @property
    def blocking_calls(self) -> int:
        """Number of consecutive calls, up to the last one, that blocked the event loop; see `FunctionTask`."""
        return getattr(self._task, "blocking_calls", 0)

    async def call(self, value: Any, on_late: OnLateResult, /) -> Any:
        """Call the task."""
        errors: list[OfflineError] = []
        _errors.set(errors)
        try:
            output = await self._task.call(value, on_late)
        except Exception as exc:
            error = _error_in(exc) or (errors[0] if errors else None)
            if error is None:
                raise
            raise self._named(error) from exc
        if errors:
            raise self._named(errors[0])
        return output

    def _named(self, error: OfflineError) -> OfflineError:
        return OfflineError(f"{self._label} is {error}; record its reply, or run without --offline")


def _error_in(exc: BaseException) -> OfflineError | None:
    """Return the error of a connection among the causes of an exception."""
    link: BaseException | None = exc
    for _ in range(_MAX_CAUSES):
        if link is None or isinstance(link, OfflineError):
            return link
        link = link.__cause__ or link.__context__
    return None
