"""The environment variables with which an attempt calls models through the gateway."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_environment: Final[ContextVar[Mapping[str, str]]] = ContextVar("evaljournal_gateway", default={})  # noqa: B039  # never changed


def gateway_env() -> dict[str, str]:
    """Return environment variables with which an SDK or a process calls models through the gateway (`gateway=True`).

    `OPENAI_BASE_URL` and `ANTHROPIC_BASE_URL` are addresses that work until the attempt ends; the API keys are dummies. Pass
    the variables to a process, `subprocess.run(["node", "agent.js"], env=os.environ | gateway_env())`, or to a client:
    `OpenAI(base_url=gateway_env().get("OPENAI_BASE_URL"))`. Empty outside an attempt, and without a gateway.
    """
    return dict(_environment.get())


@contextmanager
def set_gateway_env(environment: Mapping[str, str]) -> Generator[None]:
    """Make `gateway_env` return these variables, in this context and for the duration of the block."""
    token = _environment.set(environment)
    try:
        yield
    finally:
        _environment.reset(token)
