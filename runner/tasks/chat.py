"""A chat model as a task: a case becomes messages, the reply's text is the output, and its tokens are written down.

Any server will do that speaks the chat completions of OpenAI, hosted or at home; no SDK is needed. How calls are made is
`runner.tasks.client`; whether one is made again is decided elsewhere.
"""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from replay.text import as_text
from runner.data.case import Case
from runner.data.exact_json import read_json
from runner.data.fingerprint import canonical, digest
from runner.data.templates import Body, Fields, MissingField, Text, find
from runner.errors import UsageError
from runner.notes import note
from runner.secrets import mask
from runner.tasks import TrialInput
from runner.tasks.address import Address, described
from runner.tasks.client import Client, InvalidReply, Reply, TruncatedReply
from runner.tasks.endpoint import call_once, heed, idempotency, raise_error_in
from runner.tasks.prices import OURS, Prices, read_prices

OPENAI: Final = "https://api.openai.com/v1"

_HEADERS: Final = ((b"Content-Type", b"application/json"), (b"Accept", b"application/json, text/event-stream"))
_COUNTS_REASONING: Final = re.compile(r"o\d|gpt-[5-9]")
"""Models of OpenAI that call the most tokens of an answer by another name, since what they think is among them."""


@attrs.frozen(kw_only=True)
class Completion:
    """What a model said, and what that took."""

    text: str
    message: Mapping[str, Any]
    usage: Mapping[str, float]
    """Tokens, and their cost where the model's price is known."""
    finish: str
    """Why it ended: `stop`, or `length` where it was cut off."""


def _contents(given: Any, what: str) -> Any:
    """Read a JSON file, where a path is given in place of a value."""
    if not isinstance(given, str | Path):
        return given
    try:
        return orjson.loads(Path(given).read_bytes())
    except OSError as exc:
        raise UsageError(f"{what} in {given} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise UsageError(f"{what} in {given} is not JSON: {exc}") from exc


def _template(chat: "Chat") -> Body:
    """Make one template of all that the messages are made from."""
    if chat.prompt is not None and chat.messages is not None:
        raise UsageError("there is a prompt, and there are messages; give one of the two")
    system = [] if chat.system is None else [{"role": "system", "content": Text.parse(chat.system, "the system prompt")}]
    messages = _contents(chat.messages, "the messages") if chat.messages is not None else []
    if not is_messages(messages) and messages != []:
        raise UsageError('messages are a list of {"role": …, "content": …}')
    prompt = [] if chat.prompt is None else [{"role": "user", "content": Text.parse(chat.prompt, "the prompt")}]
    return Body([*system, *Body.parse(messages, "messages").value, *prompt])


def is_messages(value: object) -> bool:
    """Whether a value is a conversation."""
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) and "role" in each for each in value)


def _address(chat: "Chat") -> Address:
    """Say where calls go. A key is only sent where it was said that it should be, or to whom it belongs."""
    base, _, query = chat.base_url.partition("?")
    key = chat.key_env or ("OPENAI_API_KEY" if base.rstrip("/") == OPENAI else None)
    named = {name.lower() for name in chat.headers}
    headers = dict(chat.headers)
    if key is not None and "authorization" not in named:
        headers["Authorization"] = f"Bearer ${{{key}}}"
    address = Address.parse(f"{base.rstrip('/')}/chat/completions{f'?{query}' if query else ''}", headers)
    if address.is_template:
        raise UsageError(f"the address {mask(chat.base_url)!r} is the same for all cases; the model may come from them")
    return address


@attrs.frozen(kw_only=True)
class Chat:
    """Which model is asked, where, and how a case is put to it.

    `evaluation(cases="qa.jsonl")(Chat("gpt-4o-mini", prompt="Answer briefly: {question}"))` is an evaluation.
    """

    __name__ = "chat"

    model: str = attrs.field(kw_only=False)
    """Its name; with `{fields}`, each case may name its own (`{model}`; `limit_key="model"` then keeps their limits apart)."""
    base_url: str = attrs.field(default=OPENAI, repr=lambda url: repr(mask(url)))
    """What `/chat/completions` is put behind."""
    key_env: str | None = None
    """The variable of the environment that holds the key. None: OPENAI_API_KEY for OpenAI's own address, no key elsewhere."""
    prompt: str | None = None
    """The user's message, with `{fields}` of the case. None, without messages: the input; it may be a conversation itself."""
    messages: Any = None
    """A conversation with `{fields}`, or the path of a JSON file that holds one, in place of the prompt."""
    system: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    schema: Any = None
    """A JSON schema, or the path of a file that holds one; the output is then a JSON value of that form."""
    stream: bool = False
    """Whether to have the reply in pieces; the time to the first of them is then written down."""
    more: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """Anything else that is to be sent, as it is: `{"top_p": 0.9}`."""
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=lambda headers: repr(described(headers)))
    prices: Path | str = OURS
    """A table of prices in TOML; ours, until another is given."""
    connect_timeout: float | None = 10.0
    """Seconds to get through to the other side, within the attempt's own limit."""
    read_timeout: float | None = None
    """Seconds without a byte from the other side; None: as long as the attempt may take."""
    _model: Text = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: Text.parse(self.model, "the model"), takes_self=True)
    )
    _template: Body = attrs.field(init=False, repr=False, default=attrs.Factory(_template, takes_self=True))
    _schema: Any = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: _contents(self.schema, "the schema"), takes_self=True)
    )
    _prices: Prices = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: read_prices(Path(self.prices)), takes_self=True)
    )
    _address: Address = attrs.field(init=False, repr=False, default=attrs.Factory(_address, takes_self=True))

    @property
    def fingerprint(self) -> str:
        """Digest of all that decides the outputs, but for what is secret."""
        facts = {
            "base_url": mask(self.base_url),
            "headers": described(self.headers),
            "messages": _contents(self.messages, "the messages"),
            "prompt": self.prompt,
            "system": self.system,
            **self.body([]),
        }
        return digest(canonical(facts, "the chat"))

    @property
    def rate_limit_identity(self) -> str:
        """Tells endpoints and API keys apart, whose rate limits differ, whichever the model; to be kept in memory only."""
        return self._address.rate_limit_identity

    def body(self, messages: Sequence[Mapping[str, Any]], model: str | None = None) -> dict[str, Any]:
        """Say what is sent with these messages, to the model that a case names."""
        model = model or self.model
        most = "max_completion_tokens" if _COUNTS_REASONING.match(model) else "max_tokens"
        said = {"temperature": self.temperature, most: self.max_tokens, "seed": self.seed}
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            **{name: value for name, value in said.items() if value is not None},
        }
        if self._schema is not None:
            form = {"name": "output", "strict": True, "schema": self._schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return {**body, **self.more}

    def check(self, case: Case) -> None:
        """Refuse a case that lacks a field of the messages."""
        self.conversation(case)
        self.model_for(case)

    @property
    def has_one_model(self) -> bool:
        """Whether all cases are put to the same model."""
        return not self._model.fields

    def model_for(self, case: Case) -> str:
        """Say which model a case is put to."""
        return self._model.fill(Fields(case))

    def conversation(self, case: Case) -> list[Any]:
        """Put a case into messages."""
        messages: list[Any] = self._template.fill(Fields(case))
        if self.prompt is not None or self.messages is not None:
            return messages
        if is_messages(case.input):
            return [*messages, *case.input]
        return [*messages, {"role": "user", "content": as_text(case.input)}]

    @asynccontextmanager
    async def connected(self) -> "AsyncGenerator[ChatClient]":
        """Keep connections to the model."""
        async with Client(self._address, connect_timeout=self.connect_timeout, read_timeout=self.read_timeout) as client:
            yield ChatClient(self, client, self._prices)

    @asynccontextmanager
    async def open_session(self, run: str, /) -> "AsyncGenerator[_Live]":
        """Keep connections for a session."""
        async with self.connected() as line:
            yield _Live(self, line, run)

    async def __call__(self, value: Any, /) -> Any:
        """Ask it once, by hand, inside trio."""
        return await call_once(self, value)


class ChatClient:
    """A line to a model: messages in, completions out."""

    def __init__(self, chat: Chat, client: Client, prices: Prices) -> None:
        self._chat = chat
        self._client = client
        self._prices = prices

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], *headers: tuple[bytes, bytes], model: str | None = None
    ) -> Completion:
        """Have the model go on with a conversation."""
        reply = await self._client.call("POST", orjson.dumps(self._chat.body(messages, model)), *_HEADERS, *headers)
        heed(reply)
        if reply.is_stream:
            return self._gathered(reply, model)
        value = reply.json()
        raise_error_in(value, "error")
        try:
            message, choice = find(value, "choices.0.message"), find(value, "choices.0")
        except MissingField as exc:
            raise InvalidReply(f"the reply is not a chat completion: {exc}") from exc
        if not isinstance(message, Mapping):
            raise InvalidReply(f"the reply is not a chat completion: its message is {as_text(message)[:200]!r}")
        return self._completion(value, message, choice.get("finish_reason"), model)

    def _gathered(self, reply: Reply, model: str | None) -> Completion:
        """Put a reply together that came in pieces."""
        text: list[str] = []
        last: dict[str, Any] = {}
        finish: object = None
        for piece in reply.pieces():
            raise_error_in(piece, "error")
            try:
                last |= {name: value for name, value in piece.items() if value}
                for choice in (piece.get("choices") or [])[:1]:
                    text.append(str((choice.get("delta") or {}).get("content") or ""))
                    finish = choice.get("finish_reason") or finish
            except (AttributeError, TypeError) as exc:
                raise InvalidReply(f"a piece of the stream is not a chat completion: {as_text(piece)[:200]!r}") from exc
        if finish is None:
            cut = InvalidReply if reply.is_done else TruncatedReply  # What says itself that it is whole was not cut on the way.
            raise cut("the stream ended before the model had said that it was done")
        return self._completion(last, {"content": "".join(text)}, finish, model)

    def _completion(
        self, reply: Mapping[str, Any], message: Mapping[str, Any], finish: object, asked: str | None
    ) -> Completion:
        content = message.get("content")
        if isinstance(content, list):  # Some send text in parts.
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
        if not content and isinstance(message.get("refusal"), str):
            content = message["refusal"]  # What the model has said, though under another name.
        model = str(reply.get("model") or asked or self._chat.model)
        return Completion(
            text=content if isinstance(content, str) else "",
            message=message,
            usage=self._usage(model, reply.get("usage")),
            finish=str(finish or ""),
        )

    def _usage(self, model: str, said: object) -> dict[str, float]:
        """Say what was used. Whose price it is, is for the reply to say: another model may have answered than was asked."""

        def count(path: str) -> int | None:
            try:
                found = find(said, path)
            except MissingField:
                return None
            is_number = isinstance(found, int | float) and not isinstance(found, bool)
            return int(found) if is_number and found >= 0 else None

        if not isinstance(said, Mapping):
            return {}
        asked, answered = count("prompt_tokens"), count("completion_tokens")
        cached = count("prompt_tokens_details.cached_tokens") or 0
        known = {"input_tokens": asked, "output_tokens": answered, "cached_tokens": cached or None}
        usage: dict[str, float] = {name: value for name, value in known.items() if value is not None}
        price = self._prices.of(model)
        if price is not None and asked is not None and answered is not None:  # Better no cost than a wrong one.
            usage["cost"] = price.cost(asked=asked, answered=answered, cached=cached)
        return usage


class _Live:
    """A chat model while a session lasts."""

    takes_trial: bool = True

    def __init__(self, chat: Chat, line: ChatClient, run: str) -> None:
        self._chat = chat
        self._line = line
        self._run = run

    async def call(self, asked: TrialInput, _: object) -> Any:
        """Put the case to the model, and give what it says."""
        key = idempotency("Idempotency-Key", self._run, asked.trial)
        model = self._chat.model_for(asked.case)
        said = await self._line.complete(self._chat.conversation(asked.case), *key, model=model)
        if said.usage:
            note(usage=said.usage)
        if said.finish not in {"", "stop"}:
            note(finish=said.finish)
        if said.message.get("tool_calls"):
            return dict(said.message)
        if self._chat.schema is None:
            return said.text
        try:
            return read_json(said.text)
        except ValueError as exc:
            raise InvalidReply(f"the model was asked for JSON, and said {said.text[:300]!r} ({exc})") from exc
