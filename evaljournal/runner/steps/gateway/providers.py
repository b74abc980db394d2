"""The providers that the gateway forwards to, and the environment variables with which agents call the gateway.

Addresses and keys are read from the environment of the run when it starts. An agent chooses a provider and one of the paths
listed here, never an address. Gemini's paths contain a model, which may have no character that changes the path, and its
clients may send their key in the query: that of an agent, a dummy, is not forwarded.
"""

import os
import re
from collections.abc import Collection, Mapping
from typing import Final

import attrs

from evaljournal.runner.calls.dialects.anthropic import Anthropic
from evaljournal.runner.calls.dialects.completions import Completions
from evaljournal.runner.calls.dialects.dialect import Dialect
from evaljournal.runner.calls.dialects.gemini import Gemini
from evaljournal.runner.calls.http.address import Address
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import MIN_LENGTH
from evaljournal.runner.secrets.shapes import is_secret_name
from evaljournal.runner.steps.durable_requests import model_endpoint

DUMMY_KEY: Final = "sk-evaljournal-gateway"
"""The API key that agents get; the gateway ignores it."""


@attrs.frozen
class _Api:
    dialect: Dialect
    """Has its address, and the environment variables that configure it."""
    prefix: str
    """Path in the gateway, after the token of the attempt, that stands for its base URL."""
    paths: Mapping[str, str]
    """Path after the base URL → HTTP method, of the calls that are forwarded; `{model}` stands for a model."""
    key_variable: str
    """The environment variable in which agents get a dummy."""


MODEL: Final = "{model}"
_MODEL_NAME: Final = re.compile(r"(?<=/models/)(?!\.)[\w.-]{1,200}(?=:\w+$|$)", re.ASCII)
_APIS: Final = (
    _Api(
        Completions(),
        "/openai/v1",
        {"/chat/completions": "POST", "/responses": "POST", "/embeddings": "POST", "/models": "GET"},
        "OPENAI_API_KEY",
    ),
    _Api(
        Anthropic(),
        "/anthropic",
        {"/v1/messages": "POST", "/v1/messages/count_tokens": "POST", "/v1/models": "GET"},
        "ANTHROPIC_API_KEY",
    ),
    _Api(
        Gemini(),
        "/gemini",
        {
            "/v1beta/models/{model}:generateContent": "POST",
            "/v1beta/models/{model}:streamGenerateContent": "POST",
            "/v1beta/models/{model}:countTokens": "POST",
            "/v1beta/models/{model}": "GET",
            "/v1beta/models": "GET",
        },
        "GEMINI_API_KEY",
    ),
)


def split_model(path: str) -> tuple[str, str]:
    """Return a path with `{model}` in place of the model in it, and the model; empty if there is none."""
    match = _MODEL_NAME.search(path)
    return (path, "") if match is None else (f"{path[: match.start()]}{MODEL}{path[match.end() :]}", match[0])


@attrs.frozen
class Provider:
    api: _Api
    address: Address
    missing_key: str = ""
    """The environment variable that must be set before it can be called; empty if none is missing."""

    @property
    def api_keys(self) -> list[str]:
        headers = ((name.decode(), value.decode("latin-1")) for name, value in self.address.headers)
        return [value.rpartition(" ")[2] for name, value in headers if is_secret_name(name)]

    def masked_url(self, path: str) -> str:
        return f"{self.address.masked_url.partition('?')[0].rstrip('/')}{path}"


@attrs.frozen
class Route:
    """A path that an agent may call."""

    provider: Provider
    method: str
    path: str
    """Path after the base URL of the provider."""
    is_recorded: bool
    """Whether its calls are steps."""
    origin: str
    target: str
    """Path and query at the provider."""

    def with_model(self, model: str) -> "Route":
        """Return the route to a model, if its path contains one."""
        path, target = (text.replace(MODEL, model) for text in (self.path, self.target))
        return attrs.evolve(self, path=path, target=target) if model else self

    def target_with(self, query: str) -> str:
        """Return path and query at the provider, with the query of a call added, but not its key."""
        query = "&".join(part for part in query.split("&") if part.partition("=")[0] != "key")
        return f"{self.target}{'&' if '?' in self.target else '?'}{query}" if query else self.target


def providers_from_environment() -> list[Provider]:
    """Read the addresses and keys of the providers; raise a `UsageError` if none can be called or an address is invalid."""
    providers = [_provider(api) for api in _APIS]
    if all(provider.missing_key for provider in providers):
        names = " or ".join(provider.missing_key for provider in providers)
        raise UsageError(f"set {names}: the gateway has no key for any provider", setting="gateway", value=True)
    return providers


def _provider(api: _Api) -> Provider:
    dialect, keys = api.dialect, api.dialect.key_variables
    base_url = os.environ.get(dialect.url_variable, "").strip()
    key = next((name for name in keys if os.environ.get(name)), None)
    headers = {} if key is None else {keys[key][0]: f"{keys[key][1]}${{{key}}}"}
    literal_url = (base_url or dialect.base_url).replace("$", "$$").replace("{", "%7B").replace("}", "%7D")
    try:
        address = Address.parse(literal_url, headers)
    except UsageError as exc:
        raise UsageError(f"{dialect.url_variable}: {exc.message}", setting="gateway", value=True) from exc
    return Provider(api, address, api.key_variable if key is None and not base_url else "")


def routes(provider: Provider) -> dict[str, Route]:
    """Return the routes to a provider, by the path after the token of the attempt."""
    origin = str(provider.address.origin)
    base, question_mark, query = provider.address.target.partition("?")
    routes_by_path: dict[str, Route] = {}
    for path, method in provider.api.paths.items():
        is_recorded = model_endpoint(method, path) is not None
        target = f"{base.rstrip('/')}{path}{question_mark}{query}"
        routes_by_path[f"{provider.api.prefix}{path}"] = Route(provider, method, path, is_recorded, origin, target)
    return routes_by_path


def agent_environment(base_url: str, common_variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which an agent calls the gateway at `base_url`; `common_variables` are those of all agents."""
    urls = {api.dialect.url_variable: f"{base_url}{api.prefix}" for api in _APIS}
    return {**common_variables, **urls, "OPENAI_API_BASE": urls["OPENAI_BASE_URL"]}  # Older libraries read this one.


def common_environment(host: str) -> dict[str, str]:
    """Return the variables that are the same for all agents.

    Keys are replaced, also inside longer values, and `host` is called without a proxy.
    """
    keys = {key for api in _APIS for name in api.dialect.key_variables if (key := os.environ.get(name, "").strip())}
    safe_values = {name: text for name, value in os.environ.items() if (text := _replace_keys(value, keys)) != value}
    dummies = dict.fromkeys([api.key_variable for api in _APIS], DUMMY_KEY)
    no_proxy = {name: ",".join(filter(None, (os.environ.get(name), host))) for name in ("NO_PROXY", "no_proxy")}
    return safe_values | dummies | no_proxy


def _replace_keys(value: str, keys: Collection[str]) -> str:
    """Return the value of a variable with dummies in place of the keys; a short key only if it is the whole value."""
    if value.strip() in keys:
        return DUMMY_KEY
    for key in sorted(keys, key=len, reverse=True):  # One may contain another.
        value = value.replace(key, DUMMY_KEY) if len(key) >= MIN_LENGTH else value
    return value
