"""An OpenAI-compatible chat model as a task: the case becomes messages, the reply's text is the output.

Works with any server that has OpenAI's chat completions API; no SDK is needed.
"""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from evaljournal.replay.text import as_text
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.data.templates import Fields, MissingField, Template, fill_body, has_fields, parse_body, value_at
from evaljournal.runner.errors import UsageError, is_whole_number
from evaljournal.runner.http.address import Address, masked_headers
from evaljournal.runner.http.client import Client
from evaljournal.runner.http.reply import ErrorReply, IncompleteReply, InvalidReply, Reply
from evaljournal.runner.notes import engine_note, note
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.secret_shapes import mask_shapes
from evaljournal.runner.secrets import excerpt, mask, mask_definition
from evaljournal.runner.tasks import TrialInput
from evaljournal.runner.tasks.endpoint import HttpTask, idempotency_headers, raise_error_in
from evaljournal.runner.tasks.prices import DEFAULT_PRICES, Price, Tokens, price_of, read_prices
from evaljournal.runner.tasks.turns import converse, turns_of
from evaljournal.runner.tasks.usage import priced_usage

OPENAI: Final = "https://api.openai.com/v1"

_HEADERS: Final = ((b"Content-Type", b"application/json"), (b"Accept", b"application/json, text/event-stream"))
_REASONING_MODELS: Final = re.compile(r"o\d|gpt-[5-9]")
"""OpenAI models whose token limit includes reasoning and is called `max_completion_tokens`."""
_BYTES_PER_TOKEN: Final = 3
"""Bytes of JSON per token of a prompt, for an upper estimate: English has 4 to 5, Chinese about 3."""


@attrs.frozen(kw_only=True)
class Completion:
    """A model's reply and its usage."""

    text: str
    message: Mapping[str, Any]
    usage: Mapping[str, float | str]
    """Tokens, and their cost if the model's price is known."""
    finish_reason: str
    """`stop`, `length` (truncated), `content_filter`, …; empty if unknown."""


def _load_value(value: Any, label: str) -> Any:
    """Return a value; if it is a path, the value in that JSON file."""
    if not isinstance(value, str | Path):
        return value
    try:
        return orjson.loads(Path(value).read_bytes())
    except OSError as exc:
        raise UsageError(f"cannot read {label}: {exc.strerror}", path=value) from exc
    except ValueError as exc:
        raise UsageError(f"{label}: not JSON: {exc}", path=value) from exc


def _model(chat: "Chat") -> Template:
    if not chat.model.strip():
        raise UsageError("the model is empty; pass its name")
    return Template.parse(chat.model, "the model")


def _template(chat: "Chat") -> list[Any]:
    """Combine system prompt, messages and prompt into one template."""
    if chat.prompt is not None and chat.messages is not None:
        raise UsageError("prompt and messages are mutually exclusive; pass one of them")
    if chat.prompt is not None and chat.turns is not None:
        raise UsageError("prompt and turns are mutually exclusive: the turns are the prompts")
    system = [] if chat.system is None else [{"role": "system", "content": Template.parse(chat.system, "the system prompt")}]
    messages = _load_value(chat.messages, "the messages") if chat.messages is not None else []
    if not is_messages(messages) and messages != []:
        raise UsageError('messages must be a non-empty list of {"role": …, "content": …}')
    prompt = [] if chat.prompt is None else [{"role": "user", "content": Template.parse(chat.prompt, "the prompt")}]
    return [*system, *parse_body(messages, "messages"), *prompt]


def _first_choice(choices: Any) -> Any:
    """Return the choice with the lowest `index`; choices may have any order."""
    choice = value_at(choices, "0")
    if all(isinstance(item, Mapping) and is_whole_number(item.get("index"), 0) for item in choices):
        return min(choices, key=lambda item: item["index"])
    return choice


def _joined_message(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the message of a stream: its texts joined, and its tool calls by their `index`."""
    message: dict[str, Any] = {"content": "".join(str(delta.get("content") or "") for delta in deltas)}
    if refusal := "".join(str(delta.get("refusal") or "") for delta in deltas):
        message["refusal"] = refusal
    calls: dict[Any, dict[str, Any]] = {}
    for part in (part for delta in deltas for part in delta.get("tool_calls") or []):
        call = calls.setdefault(part.get("index"), {"type": "function", "function": {"name": "", "arguments": ""}})
        call |= {name: part[name] for name in ("id", "type") if part.get(name)}
        for name, text in (part.get("function") or {}).items():
            call["function"][name] = call["function"].get(name, "") + text
    return {**message, "tool_calls": list(calls.values())} if calls else message


def is_messages(value: object) -> bool:
    """Return whether a value is a list of chat messages."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) and "role" in item for item in value)


def _address(chat: "Chat") -> Address:
    """Return the address of the API. A key is sent only if `key_env` names it, or to OpenAI's own URL."""
    base, _, query = chat.base_url.partition("?")
    key = chat.key_env or ("OPENAI_API_KEY" if base.rstrip("/") == OPENAI else None)
    headers = dict(chat.headers)
    if key is not None and "authorization" not in {name.lower() for name in headers}:
        headers["Authorization"] = f"Bearer ${{{key}}}"
    address = Address.parse(f"{base.rstrip('/')}/chat/completions{f'?{query}' if query else ''}", headers)
    if address.is_template:
        raise UsageError(f"base_url {mask(chat.base_url)!r} must not contain fields; the model may")
    return address


@attrs.frozen(kw_only=True)
class Chat(HttpTask):
    """A chat model, its address and parameters, and how a case becomes messages.

    `evaluation(cases="qa.jsonl")(Chat("gpt-4o-mini", prompt="Answer briefly: {question}"))` is an evaluation.
    """

    __name__ = "chat"

    model: str = attrs.field(kw_only=False)
    """Its name. It may contain `{fields}`, so that cases can name models; `limit_key="model"` separates their rate limits."""
    base_url: str = attrs.field(default=OPENAI, repr=lambda url: repr(mask(url)))
    """URL of the API, without `/chat/completions`."""
    key_env: str | None = None
    """Environment variable with the API key. None: OPENAI_API_KEY for OpenAI's own URL, no key for others."""
    prompt: str | None = None
    """The user message, with `{fields}` of the case. None, without messages: the input, which may be a list of messages."""
    messages: Any = None
    """A list of messages with `{fields}`, or the path of a JSON file with one; not together with `prompt`."""
    system: str | None = None
    """System prompt, with `{fields}` of the case."""
    temperature: float | None = None
    """Sampling temperature. None: the model's default."""
    max_tokens: int | None = None
    """Maximum tokens of a reply. None: the model's default."""
    seed: int | None = None
    """Sampling seed, if the model supports it."""
    schema: Any = None
    """A JSON schema, or the path of a file with one; the output is then a JSON value."""
    stream: bool = False
    """Whether to stream the reply and record the time to its first byte."""
    extra_body: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """Further request parameters: `{"top_p": 0.9}`."""
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=lambda headers: repr(masked_headers(headers)))
    """Request headers; `$NAME` stands for an environment variable."""
    turns: str | None = None
    """Column with a list of user messages, sent one after the other, each with the conversation so far; not together with
    `prompt`."""
    prices: Path | str = DEFAULT_PRICES
    """A TOML file with token prices."""
    connect_timeout: float | None = 10.0
    """Seconds to connect, within the timeout of the attempt."""
    read_timeout: float | None = None
    """Maximum seconds between two received bytes. None: only the timeout of the attempt applies."""
    _model: Template = attrs.field(init=False, repr=False, default=attrs.Factory(_model, takes_self=True))
    _template: list[Any] = attrs.field(init=False, repr=False, default=attrs.Factory(_template, takes_self=True))
    _schema: Any = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: _load_value(self.schema, "the schema"), takes_self=True)
    )
    _prices: Mapping[str, Price] = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: read_prices(Path(self.prices)), takes_self=True)
    )
    _address: Address = attrs.field(init=False, repr=False, default=attrs.Factory(_address, takes_self=True))

    @property
    def definition(self) -> dict[str, Any]:
        """Everything that affects the outputs, with secrets masked."""
        definition = {
            **self.body([]),
            "system": self.system,
            "messages": _load_value(self.messages, "the messages"),
            "prompt": self.prompt,
            **({} if self.turns is None else {"turns": self.turns}),
        }
        address = {"base_url": mask_shapes(self.base_url), "headers": masked_headers(self.headers)}
        return {**mask_definition(definition), **address}

    def body(self, messages: Sequence[Mapping[str, Any]], model: str | None = None) -> dict[str, Any]:
        """Return the request for these messages."""
        model = model or self.model
        max_tokens = "max_completion_tokens" if _REASONING_MODELS.match(model) else "max_tokens"
        parameters = {"temperature": self.temperature, max_tokens: self.max_tokens, "seed": self.seed}
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            **{name: value for name, value in parameters.items() if value is not None},
        }
        if self._schema is not None:
            json_schema = {"name": "output", "strict": True, "schema": self._schema}
            body["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return {**body, **self.extra_body}

    def check(self, case: Case) -> None:
        """Raise a UsageError if the case lacks a field of the messages or the model."""
        self.conversation(case)
        self.model_for(case)

    @property
    def constant_template(self) -> str:
        """The template that makes the request the same for all cases; empty if requests differ."""
        if self.turns is not None or not self.has_one_model or has_fields(self._template):
            return ""
        return "the prompt" if self.prompt is not None else "the list of messages" if self.messages is not None else ""

    @property
    def has_one_model(self) -> bool:
        """Whether all cases use the same model."""
        return not self._model.fields

    def model_for(self, case: Case) -> str:
        """Return the model for a case."""
        return self._model.fill(Fields(case))

    def conversation(self, case: Case) -> list[Any]:
        """Return the messages for a case; with turns, up to the first of them."""
        messages: list[Any] = fill_body(self._template, Fields(case))
        if self.turns is not None:
            return [*messages, {"role": "user", "content": turns_of(case, self.turns)[0]}]
        if self.prompt is not None or self.messages is not None:
            return messages
        if is_messages(case.input):
            return [*messages, *case.input]
        return [*messages, {"role": "user", "content": as_text(case.input)}]

    def request(self, case: Case) -> dict[str, Any]:
        """Return the request for a case, or for its first turn."""
        return self.body(self.conversation(case), self.model_for(case))

    def check_price(self, case: Case, /) -> None:
        """Raise a `UsageError` if the model for a case has no price."""
        model = self.model_for(case)
        if price_of(model, self._prices) is None:
            raise UsageError(
                f"model {model!r} has no price, so a cost budget cannot be enforced",
                hint="add the price to a table and pass it with --prices, or limit tokens instead",
            )

    def estimate(self, case: Case, _: float | None = None, /) -> dict[str, float]:
        """Return an upper estimate of the usage of an attempt; tokens of the reply are known only with `max_tokens`."""
        if self.turns is not None:
            return {}
        return self.estimate_messages(self.conversation(case), self.model_for(case))

    def estimate_messages(self, messages: Sequence[Any], model: str, further_tokens: float = 0) -> dict[str, float]:
        """Return an upper estimate of the usage of a call with these messages and further tokens of input."""
        body = self.body(messages, model)
        limits = [body[name] for name in ("max_tokens", "max_completion_tokens") if is_whole_number(body.get(name), 0)]
        usage: dict[str, float] = {}
        if all(isinstance(message.get("content"), str) for message in messages):
            usage["input_tokens"] = -(-len(orjson.dumps(messages)) // _BYTES_PER_TOKEN) + further_tokens
        if limits and body.get("n", 1) == 1:
            usage["output_tokens"] = max(limits)
        price = price_of(model, self._prices)
        if price is not None and len(usage) == 2:  # noqa: PLR2004  # input and output
            usage["cost"] = price.cost(Tokens(input=int(usage["input_tokens"]), output=int(usage["output_tokens"]))) or 0.0
        return usage

    @asynccontextmanager
    async def open_session(self, run: str, /) -> "AsyncGenerator[OpenChat]":
        """Keep connections open for a session."""
        async with Client(self._address, connect_timeout=self.connect_timeout, read_timeout=self.read_timeout) as client:
            yield OpenChat(self, client, self._prices, run)


@attrs.frozen
class OpenChat:
    """A chat model with open connections."""

    takes_trial = True

    _chat: Chat
    _client: Client
    _prices: Mapping[str, Price]
    _run: str

    def request(self, case: Case) -> dict[str, Any]:
        """Return the request for a case."""
        return self._chat.request(case)

    async def call(self, trial: TrialInput, _: object, /) -> Any:
        """Send the messages for the case, or its turns, and return the last reply."""
        chat, messages = self._chat, self._chat.conversation(trial.case)
        if chat.turns is not None:
            turns = turns_of(trial.case, chat.turns)
            return self._output(await converse(turns, messages[:-1], partial(self._send_turn, trial, len(turns))))
        completion = await self._reply(messages, trial, trial.trial)
        if completion.usage:
            note(usage=completion.usage)
        return self._output(dict(completion.message) if completion.message.get("tool_calls") else completion.text)

    async def _send_turn(self, trial: TrialInput, turn_count: int, number: int, messages: list[Any]) -> Any:
        """Send one turn of a conversation as a step; return the text of the reply, or the last message if it calls tools."""
        usages: list[Mapping[str, float | str]] = []

        async def call() -> dict[str, Any]:
            completion = await self._reply(messages, trial, f"{trial.trial}\0{number}")
            usages.append(completion.usage)
            return {"role": "assistant", **completion.message, "content": completion.text}

        request = self._chat.body(messages, self._chat.model_for(trial.case))
        message = await trial.model_step(f"turn {number}", request, call, lambda: usages[0] or None)
        if not message.get("tool_calls"):
            return message["content"]
        if number < turn_count:
            raise Fatal(f"turn {number}: the model calls a tool; a scripted conversation cannot answer it")
        return message

    async def _reply(self, messages: Sequence[Mapping[str, Any]], trial: TrialInput, identity: str) -> Completion:
        """Return the reply to these messages; note if it is truncated or filtered."""
        headers = idempotency_headers("Idempotency-Key", self._run, identity)
        completion = await self.complete(messages, *headers, model=self._chat.model_for(trial.case))
        if completion.finish_reason not in {"", "stop"}:
            engine_note(finish_reason=completion.finish_reason)
        return completion

    def _output(self, reply: Any) -> Any:
        if self._chat.schema is None or not isinstance(reply, str):
            return reply
        try:
            return read_json(reply)
        except ValueError as exc:
            raise InvalidReply(f"the model's reply is not JSON ({exc}): {excerpt(reply, 300)!r}") from exc

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], *headers: tuple[bytes, bytes], model: str | None = None
    ) -> Completion:
        """Return the model's next message."""
        content = orjson.dumps(self._chat.body(messages, model))
        return await self._client.call("POST", content, *_HEADERS, *headers, read=lambda reply: self._read(reply, model))

    def _read(self, reply: Reply, model: str | None) -> Completion:
        if reply.is_stream:
            return self._read_stream(reply, model)
        value = reply.json()
        raise_error_in(value, "error")
        try:
            choice = _first_choice(value_at(value, "choices"))
            raise_error_in(choice, "error")
            message = value_at(choice, "message")
        except MissingField as exc:
            raise InvalidReply(f"the reply is not a chat completion: {exc}") from exc
        if not isinstance(message, Mapping):
            raise InvalidReply(f"the reply is not a chat completion: its message is {excerpt(as_text(message), 200)!r}")
        return self._completion(value, message, choice.get("finish_reason"), model)

    def _read_stream(self, reply: Reply, model: str | None) -> Completion:
        deltas: list[Mapping[str, Any]] = []
        fields: dict[str, Any] = {}
        finish_reason: object = None
        for chunk in reply.chunks():
            raise_error_in(chunk, "error")
            try:
                fields |= {name: value for name, value in chunk.items() if value}
                for choice in [choice for choice in chunk.get("choices") or [] if not choice.get("index")]:
                    raise_error_in(choice, "error")
                    deltas.append(choice.get("delta") or {})
                    finish_reason = choice.get("finish_reason") or finish_reason
            except (AttributeError, TypeError) as exc:
                raise InvalidReply(f"a chunk of the stream is not a chat completion: {excerpt(as_text(chunk), 200)!r}") from exc
        if finish_reason is None:
            error = InvalidReply if reply.is_done else IncompleteReply
            raise error("the stream ended without a finish_reason")
        try:
            message = _joined_message(deltas)
        except (AttributeError, TypeError) as exc:
            raise InvalidReply(f"a message of the stream is not a chat completion: {excerpt(as_text(deltas), 200)!r}") from exc
        return self._completion(fields, message, finish_reason, model)

    def _completion(
        self, reply: Mapping[str, Any], message: Mapping[str, Any], finish_reason: object, requested_model: str | None
    ) -> Completion:
        if finish_reason == "error":  # OpenRouter: the provider failed after it had begun to answer.
            raise ErrorReply("the reply ended with finish_reason 'error'")
        content = message.get("content")
        if isinstance(content, list):  # Some APIs return text in parts.
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
        if not content and isinstance(message.get("refusal"), str):
            content = message["refusal"]
        model = str(reply.get("model") or requested_model or self._chat.model)
        return Completion(
            text=content if isinstance(content, str) else "",
            message=message,
            usage=priced_usage(reply.get("usage"), model, self._prices, reply.get("service_tier")),
            finish_reason=str(finish_reason or ""),
        )
