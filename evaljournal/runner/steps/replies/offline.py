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

from evaljournal.runner.calls import http
from evaljournal.runner.calls.dialects import dialect_by_name, names
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal

PLACEHOLDER: Final = "no-key-because-offline"
"""What stands for an API key that is not set."""
_CONNECTS: Final = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOKUPS: Final = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"})
watched_call: Final[ContextVar[tuple[str, list["OfflineError"]]]] = ContextVar("evaljournal_offline_call")
"""What is being called, for errors, and its errors."""
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
    http.missing_variable = PLACEHOLDER
    _active += 1

    try:
        yield
    finally:
        _active -= 1
        if not _active:
            http.missing_variable = None
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
        label, errors = watched_call.get(("", []))
        address_text = f"{host}{'' if port is None else f':{port}'}"
        error = OfflineError(
            f"{label}offline, so nothing connects to {address_text}; record its reply, or run without --offline"
        )
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
