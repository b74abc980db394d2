"""URL, headers and proxy of a task's calls, and which parts of them are secret.

`$NAME` stands for an environment variable, which is read here, before the run starts. Only its name is part of the definition.
Its value is masked, unless it is the host, has fewer than 8 characters, or has fewer than 12 and a name that does not look
secret. In outputs, only values of 12 or more characters are masked.
"""

import base64
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

from evaljournal.runner.calls import http
from evaljournal.runner.calls.http.identity import PORTS, base_of, key_digest, rate_limit_identity
from evaljournal.runner.data.templates import Fields, Template
from evaljournal.runner.errors import MissingVariable, UsageError
from evaljournal.runner.secrets.masking import MIN_LENGTH, add_secret, is_secret_variable, mask, mask_header
from evaljournal.runner.secrets.shapes import is_secret_name

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_DOT_PARTS: Final = frozenset({".", ".."})
"""Parts of a path that a server resolves to another path."""
_SAFE_CHARACTERS: Final = "/%:@!$&'()*+,;=~?-._"
"""Characters that are not escaped: the user's own escapes, and those with a meaning in a URL."""


def _expand(text: str, label: str, escape: Callable[[str], str] = str) -> tuple[str, dict[str, str]]:
    """Replace `$NAME` with environment variables; return the text, and the variables with their values."""
    template = string.Template(text)
    if not template.is_valid():
        raise UsageError(f"{label} has a '$' without a name; write $NAME for an environment variable, $$ for a '$'")
    variables: dict[str, str] = {}
    for name in template.get_identifiers():
        value = os.environ.get(name) or http.missing_variable
        if not value:
            raise MissingVariable(f"{label} needs the environment variable {name}; set it: export {name}=…")
        variables[name] = value
    return template.substitute({name: escape(value) for name, value in variables.items()}), variables


@attrs.frozen
class Address:
    masked_url: str
    origin: httpcore2.Origin
    path: Template
    """Path and query, with fields of the case."""
    headers: tuple[tuple[bytes, bytes], ...]
    secrets: frozenset[bytes] = attrs.field(repr=False)
    proxy: "Proxy | None" = attrs.field(repr=False)
    is_template: bool = attrs.field(init=False, default=attrs.Factory(lambda self: bool(self.path.fields), takes_self=True))
    """Whether path and query depend on the case."""

    @property
    def is_secure(self) -> bool:
        return self.origin.scheme == b"https"

    @property
    def authority(self) -> str:
        """Host and port, as in a URL."""
        host = self.origin.host.decode()
        return f"[{host}]:{self.origin.port}" if ":" in host else f"{host}:{self.origin.port}"

    @property
    def uses_tls(self) -> bool:
        return self.is_secure or (self.proxy is not None and self.proxy.is_secure)

    @property
    def target(self) -> str:
        """Path and query; a field of the case appears as `{name}`."""
        return "".join(piece if isinstance(piece, str) else f"{{{piece[0]}}}" for piece in self.path.pieces)

    @property
    def key_digests(self) -> set[str]:
        """Digests of the API keys, the same in all processes."""
        keys = {value.rpartition(b" ")[2] for name, value in self.headers if is_secret_name(name.decode())}
        return {key_digest(key) for key in {*self.secrets, *keys}}

    @property
    def rate_limit_identity(self) -> str:
        """A digest of the base URL and the API key, meaningless outside this process and never recorded."""
        return rate_limit_identity(base_of(f"{self.origin}{self.target.partition('?')[0]}"), self.key_digests)

    def target_for(self, fields: Fields) -> str:
        """Return path and query for a case; values are escaped, so that none can change the path."""
        target = self.path.fill(fields, lambda text: quote(text, safe=""))
        if not _DOT_PARTS.isdisjoint(target.partition("?")[0].split("/")):
            raise UsageError(f"the path of the URL has a part '.' or '..' for the case {fields.case.name!r}: {target!r}")
        return target

    @classmethod
    def parse(cls, url: str, headers: Mapping[str, str]) -> Self:
        """Parse a URL and headers, in which `$NAME` stands for an environment variable."""
        url_text, variables = _expand(url, f"the URL {mask(url)!r}", _escape_braces)
        parts = _split(url_text)
        if parts.scheme not in PORTS or not parts.hostname or not _has_valid_port(parts):
            raise UsageError(f"{mask(url)!r} is not a valid http:// or https:// URL; check its scheme, host and port")
        if "{" in parts.netloc:
            raise UsageError(f"the host of {mask(url)!r} must not contain fields; path and query may")
        try:
            host, port = parts.hostname.encode("idna"), parts.port or PORTS[parts.scheme]
        except ValueError as exc:  # a UnicodeError is one
            raise UsageError(f"{mask(url)!r} is not a valid URL: {exc}") from exc

        secrets = _secrets_in_url(parts, variables)
        request_headers = _expand_headers(headers, secrets)
        if parts.username is not None and "authorization" not in {name.lower() for name in headers}:
            request_headers.append((b"Authorization", _basic_authorization(parts, secrets)))
        proxy = Proxy.from_environment(parts.scheme, parts.hostname, port, secrets)
        for secret in secrets:
            add_secret(secret)

        query = f"?{parts.query}" if parts.query else ""
        host_name = b"[%b]" % host if b":" in host else host  # IPv6
        return cls(
            masked_url=mask(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{query}"),
            origin=httpcore2.Origin(parts.scheme.encode(), host, port),
            path=_quote_path(Template.parse(f"{parts.path or '/'}{query}", f"the URL {mask(url)!r}")),
            headers=(
                (b"Host", host_name if port == PORTS[parts.scheme] else b"%b:%d" % (host_name, port)),
                (b"Accept-Encoding", b"identity"),
                (b"User-Agent", b"evaljournal"),
                *request_headers,
            ),
            secrets=frozenset(secret.encode() for secret in secrets if len(secret) >= MIN_LENGTH),
            proxy=proxy,
        )


@attrs.frozen
class Proxy:
    host: str
    port: int
    is_secure: bool
    """Whether the connection to the proxy uses TLS."""
    headers: list[tuple[bytes, bytes]] = attrs.field(repr=False)
    """Headers for the proxy: its user and password."""

    @classmethod
    def from_environment(cls, scheme: str, host: str, port: int, secrets: set[str]) -> Self | None:
        """Return the proxy in HTTP_PROXY, HTTPS_PROXY or ALL_PROXY; None for this machine, or if NO_PROXY excludes the host."""
        proxies = getproxies_environment()
        url = proxies.get(scheme) or proxies.get("all")
        if not url or _is_local(host) or proxy_bypass(f"{host}:{port}"):
            return None

        parts = _split(url if "://" in url else f"http://{url}")
        if parts.scheme not in PORTS or not parts.hostname or not _has_valid_port(parts):
            raise UsageError(
                f"the proxy {mask(url)!r} for {scheme}, from the environment, is not a valid http:// or https:// URL; "
                f"change it, or bypass it: NO_PROXY={host}"
            )

        headers: list[tuple[bytes, bytes]] = []
        if parts.username is not None:
            headers.append((b"Proxy-Authorization", _basic_authorization(parts, secrets)))
        return cls(parts.hostname, parts.port or PORTS[parts.scheme], parts.scheme == "https", headers)


def _basic_authorization(parts: SplitResult, secrets: set[str]) -> bytes:
    """Return the value of a header with the user and the password in a URL, which are added to the secrets."""
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    credentials = base64.b64encode(f"{user}:{password}".encode())
    secrets |= {password, credentials.decode()}
    return b"Basic " + credentials


def _secrets_in_url(parts: SplitResult, variables: Mapping[str, str]) -> set[str]:
    """Return the secrets outside the host: password or long user name, parameters with a secret name, values of variables."""
    secrets = {unquote(parts.password or "")}
    if parts.password is None and is_secret_variable("", parts.username or ""):
        secrets.add(unquote(parts.username or ""))
    secrets |= {value for name, value in parse_qsl(parts.query) if is_secret_name(name) or name == "code"}
    host = parts.netloc.split("@")[-1]
    for name, value in variables.items():
        pieces = [] if is_secret_name(name) else re.split(r"[/?&=#]", value)
        values = [] if pieces and host in value else [value]
        secrets |= {piece for piece in [*values, *pieces] if is_secret_variable(name, piece) and piece not in host}
    return secrets


def _split(url: str) -> SplitResult:
    """Split a URL; an invalid one, such as `http://[`, has no parts."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _has_valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


def _is_local(host: str) -> bool:
    """Return whether a host is this machine, which a proxy cannot reach."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _escape_braces(value: str) -> str:
    """Escape braces, so that an environment variable cannot contain fields."""
    return value.replace("{", "%7B").replace("}", "%7D")


def _quote_path(path: Template) -> Template:
    return Template(tuple(quote(piece, safe=_SAFE_CHARACTERS) if isinstance(piece, str) else piece for piece in path.pieces))


def _expand_headers(headers: Mapping[str, str], secrets: set[str]) -> list[tuple[bytes, bytes]]:
    header_pairs: list[tuple[bytes, bytes]] = []
    for name, text in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not a valid header name")
        value, variables = _expand(text, f"the header {name!r}")
        if not _HEADER_VALUE.fullmatch(value):
            raise UsageError(f"the header {name!r} contains a character that is not allowed in headers")
        if is_secret_name(name):
            secrets |= {value, value.rpartition(" ")[2]}
        secrets |= {content for variable, content in variables.items() if is_secret_variable(variable, content)}
        header_pairs.append((name.encode(), value.strip().encode()))
    return header_pairs


def masked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers that can be recorded: `$NAME` is not expanded, and secrets are masked."""
    return {name: mask_header(name, text) for name, text in headers.items()}
