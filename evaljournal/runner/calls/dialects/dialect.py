"""What the dialects of chat APIs have in common: a request, an answer, and the interface of a dialect."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import attrs

from evaljournal.runner.secrets.masking import excerpt

AnswerOutcome = Literal["complete", "truncated", "declined"]
"""Whether a model finished its answer, was stopped by the token limit, the context window or a pause, or declined."""
_MAX_FACT: Final = 500
"""Maximum characters of a recorded fact, which comes from an untrusted server."""


@attrs.frozen(kw_only=True)
class ChatRequest:
    """A call of a chat model, in the terms of all dialects."""

    model: str
    """Its name, without the prefix of the dialect."""
    messages: Sequence[Mapping[str, Any]]
    """As in OpenAI's chat completions: roles, and content that is a text or a list of parts."""
    temperature: float | None = None
    """Sampling temperature. None, here and below: it is not sent."""
    max_tokens: int | None = None
    """Maximum tokens of the answer."""
    seed: int | None = None
    """Sampling seed."""
    effort: str | None = None
    """How much a model reasons: `low`, `medium`, `high`, …"""
    schema: Any = None
    """JSON schema of the answer."""
    stream: bool = False
    """Whether to stream the reply."""


@attrs.define(kw_only=True)
class Answer:
    """A model's answer, in the terms of all dialects."""

    text: str
    """All texts of the answer, joined; without its reasoning."""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """As in chat completions: `{"id": …, "type": "function", "function": {"name": …, "arguments": "{…}"}}`."""
    outcome: AnswerOutcome = "complete"
    """`complete`, `truncated` (by the token limit, the context window or a pause of the provider's tools), or `declined`."""
    finish_reason: str = ""
    """Why the model stopped, in the provider's words; empty if it is unknown."""
    model: str = ""
    """The model that answered, as named in the reply; it may differ from the requested model."""
    fingerprint: str = ""
    """The provider's name for the version of the system that answered; empty if it is unknown."""
    service_tier: str = ""
    """The provider's class of service, which prices may depend on."""
    usage: Any = None
    """The provider's count of tokens, as one of the built-in dialects has it: `{"input_tokens": 9, "output_tokens": 1}`.
    The chat model replaces it by the tokens in one meaning, and their cost."""
    explanation: str = ""
    """Why the provider declined to answer, in its words; empty if unknown, or if the text is the reason."""

    @property
    def reason(self) -> str:
        """Why a model declined to answer, shortened, with secrets masked; empty if it is unknown."""
        return excerpt(self.explanation or self.text or self.finish_reason, _MAX_FACT)

    @property
    def facts(self) -> dict[str, str]:
        """All but the text, the tool calls and the usage, as it is recorded: without what is empty, and shortened."""
        outcome = "" if self.outcome == "complete" else self.outcome
        facts = {
            "outcome": outcome,
            "finish_reason": self.finish_reason,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "service_tier": self.service_tier,
            "explanation": self.explanation,
        }
        return {name: text if len(text) <= _MAX_FACT else excerpt(text, _MAX_FACT) for name, text in facts.items() if text}


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class Dialect(Protocol):
    """How a chat API is called, and how its replies are read.

    Replies are untrusted: any value may have any type. A reply that is not an answer raises an `InvalidReply`, an unfinished
    stream an `IncompleteReply`. An `error` in a reply or a chunk is raised before it is read.
    """

    @property
    def base_url(self) -> str:
        """The provider's own URL, as its SDK has it."""
        ...

    @property
    def url_variable(self) -> str:
        """Environment variable with another base URL."""
        ...

    @property
    def key_variables(self) -> Mapping[str, tuple[str, str]]:
        """Environment variable with a key → its header, and the text before the key; the first one that is set is used."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Further headers of every call."""
        ...

    @property
    def first_token(self) -> re.Pattern[bytes]:
        """Matches the first bytes of a stream with a token of text, reasoning or tool arguments; at most 256 bytes."""
        ...

    def takes_temperature(self, model: str) -> bool:
        """Return whether the API is known to take a temperature for this model; a judge then has a default."""
        ...

    def path(self, model: str, *, stream: bool) -> str:
        """Return the path and query after the base URL."""
        ...

    def body(self, request: ChatRequest) -> dict[str, Any]:
        """Return the body of a call; raise a `UsageError` for a parameter or a message that the API does not have."""
        ...

    def read(self, reply: Any) -> Answer:
        """Return the answer in a reply."""
        ...

    def read_stream(self, chunks: Iterable[Any]) -> Answer:
        """Return the answer in the chunks of a stream."""
        ...
