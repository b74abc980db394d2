"""Where a task's calls go: an address, what is sent along, who passes it on, and what of all that is secret.

`$NAME` stands for a variable of the environment, and is read here, before anything starts; its value is written down nowhere.
"""

import base64
import hashlib
import os
import re
import string
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Final, Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import attrs
import httpcore2

from runner.data.templates import Fields, Text
from runner.errors import MissingVariable, UsageError
from runner.secrets import SHORTEST, add_secret, is_secret_name, mask

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_PROCESS: Final = os.urandom(32)
"""Keys the digests of this process, so that no secret could be recognised by its digest."""
_PORTS: Final = {"http": 80, "https": 443}
_SAFE: Final = "/%:@!$&'()*+,;=~?-._"
"""Left as they are: the user's own escapes, and what has a meaning in a URL."""


def expanded(text: str, what: str, secrets: set[str] | None = None, written: Callable[[str], str] = str) -> str:
    """Put the environment's values in for `$NAME`, `written` as the place wants it; those whose name says so are secrets."""
    template = string.Template(text)
    if not template.is_valid():
        raise UsageError(f"{what} has a '$' that begins no name; $NAME stands for a variable of the environment, $$ for a '$'")
    for name in template.get_identifiers():
        if not os.environ.get(name):
            raise MissingVariable(f"{what} needs ${name}, and the environment has none; set it: export {name}=…")
        if secrets is not None and (is_secret_name(name) or is_secret_name(what)):
            secrets.add(os.environ[name])
    return template.substitute({name: written(os.environ[name]) for name in template.get_identifiers()})


@attrs.frozen
class Address:
    """Where calls go, what is sent with each of them, and what of it is secret."""

    shown: str
    """The URL as it may be written down."""
    origin: httpcore2.Origin
    path: Text
    """Path and query, as they are sent, but for the fields of a case."""
    headers: tuple[tuple[bytes, bytes], ...]
    secrets: frozenset[bytes] = attrs.field(repr=False)
    proxy: "Proxy | None" = attrs.field(repr=False)
    """Who passes calls on."""
    is_template: bool = attrs.field(init=False, default=attrs.Factory(lambda self: bool(self.path.fields), takes_self=True))
    """Whether the cases decide what is sent to."""

    @property
    def target(self) -> str:
        """What is sent for every case, where no fields are in it."""
        return "".join(piece if isinstance(piece, str) else f"{{{piece[0]}}}" for piece in self.path.pieces)

    @property
    def rate_limit_identity(self) -> str:
        """A digest of the base URL and the API key that means nothing outside this process; it is never written down."""
        base = f"{self.origin}{self.target.partition('?')[0]}".rstrip("/").removesuffix("/chat/completions")
        keyed = hashlib.blake2b(base.encode(), key=_PROCESS)
        keys = {value for name, value in self.headers if is_secret_name(name.decode())}
        for secret in sorted({*self.secrets, *keys}):
            keyed.update(b"\0" + secret)
        return keyed.hexdigest()

    def target_for(self, fields: Fields) -> str:
        """Say what is sent for a case; nothing that is filled in can lead to another path."""
        return self.path.fill(fields, lambda text: quote(text, safe=""))

    @classmethod
    def parse(cls, url: str, headers: Mapping[str, str]) -> Self:
        """Read a URL and headers, in which `$NAME` stands for a variable of the environment."""
        secrets: set[str] = set()
        parts = urlsplit(expanded(url, f"the address {mask(url)!r}", secrets, _without_braces))
        if parts.scheme not in _PORTS or not parts.hostname or not _has_port(parts):
            raise UsageError(f"{mask(url)!r} is not an address; give one that begins with http:// or https://")
        if "{" in parts.netloc:
            raise UsageError(f"the host in {mask(url)!r} may not come from a case; its path and its parameters may")
        try:
            host, port = parts.hostname.encode("idna"), parts.port or _PORTS[parts.scheme]
        except ValueError as exc:  # a UnicodeError is one
            raise UsageError(f"{mask(url)!r} is not an address: {exc}") from exc
        sent = _sent(headers, secrets)
        if parts.username is not None and "authorization" not in {name.lower() for name in headers}:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            basic = base64.b64encode(login.encode()).decode()
            secrets |= {unquote(parts.password or ""), basic}
            sent.append((b"Authorization", f"Basic {basic}".encode()))
        secrets |= {value for name, value in parse_qsl(parts.query) if is_secret_name(name)}
        proxy = Proxy.to(parts.scheme, parts.hostname, port, secrets)
        for secret in secrets:
            add_secret(secret)
        query = f"?{parts.query}" if parts.query else ""
        named = b"[%b]" % host if b":" in host else host  # The colons of an IPv6 address are not that of the port.
        return cls(
            shown=mask(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{query}"),
            origin=httpcore2.Origin(parts.scheme.encode(), host, port),
            path=_written(Text.parse(f"{parts.path or '/'}{query}", f"the address {mask(url)!r}")),
            headers=(
                (b"Host", named if port == _PORTS[parts.scheme] else b"%b:%d" % (named, port)),
                (b"Accept-Encoding", b"identity"),
                (b"User-Agent", b"evaljournal"),
                *sent,
            ),
            secrets=frozenset(secret.encode() for secret in secrets if len(secret) >= SHORTEST),
            proxy=proxy,
        )


@attrs.frozen
class Proxy:
    """Who passes our calls on, where the environment says that somebody must."""

    url: str
    login: tuple[bytes, bytes] | None = attrs.field(repr=False)

    @property
    def is_secure(self) -> bool:
        """Whether it is spoken to over TLS itself."""
        return self.url.startswith("https:")

    @classmethod
    def to(cls, scheme: str, host: str, port: int, secrets: set[str]) -> Self | None:
        """Find it: HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, but not for this machine, nor for what NO_PROXY names."""
        named = getproxies_environment()
        url = named.get(scheme) or named.get("all")
        if not url or _is_here(host) or proxy_bypass(f"{host}:{port}"):
            return None
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in _PORTS or not parts.hostname or not _has_port(parts):
            said = f"the environment names the proxy {mask(url)!r} for {scheme}, to which we cannot speak"
            raise UsageError(f"{said}; give an address that begins with http:// or https://, or go without: NO_PROXY={host}")
        login = None
        if parts.username is not None:
            user, word = unquote(parts.username), unquote(parts.password or "")
            login = user.encode(), word.encode()
            secrets |= {word, base64.b64encode(f"{user}:{word}".encode()).decode()}
        return cls(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", login)


def _has_port(parts: SplitResult) -> bool:
    """Whether the port is one, where there is any."""
    try:
        return parts.port != 0
    except ValueError:
        return False


def _is_here(host: str) -> bool:
    """Whether a host is this machine, which a proxy on another could not reach."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _without_braces(value: str) -> str:
    """Keep a variable of the environment from bringing fields along."""
    return value.replace("{", "%7B").replace("}", "%7D")


def _written(path: Text) -> Text:
    return Text(tuple(quote(piece, safe=_SAFE) if isinstance(piece, str) else piece for piece in path.pieces))


def _sent(headers: Mapping[str, str], secrets: set[str]) -> list[tuple[bytes, bytes]]:
    sent: list[tuple[bytes, bytes]] = []
    for name, text in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot be the name of a header")
        value = expanded(text, f"the header {name!r}", secrets)
        if not _HEADER_VALUE.fullmatch(value):
            raise UsageError(f"the header {name!r} holds a line break, or a character that headers cannot have")
        if is_secret_name(name):
            secrets |= {value, value.rpartition(" ")[2]}
        sent.append((name.encode(), value.strip().encode()))
    return sent


def described(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers as they may be written down: `$NAME` unexpanded, and what is a secret itself left out."""
    return {name: text if "$" in text or not is_secret_name(name) else "***" for name, text in headers.items()}
