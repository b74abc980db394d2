"""A chat model as a task: the case becomes messages, the answer's text is the output.

A dialect makes the request and reads the reply; no SDK is needed.
"""

import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson

from evaljournal.journal.threads import run_in_thread
from evaljournal.replay.provider.reports import Report
from evaljournal.replay.text import as_text
from evaljournal.runner.calls import TrialInput
from evaljournal.runner.calls.call_size import CallSize, max_output, text_bytes, unread_words
from evaljournal.runner.calls.dialects import DEFAULT_DIALECT, dialect_by_name, split_model
from evaljournal.runner.calls.dialects.dialect import Answer, ChatRequest, Dialect
from evaljournal.runner.calls.endpoint import HttpTask, idempotency_headers, raise_error_in
from evaljournal.runner.calls.http.address import Address, masked_headers
from evaljournal.runner.calls.http.batch_line import current_line
from evaljournal.runner.calls.http.client import Client
from evaljournal.runner.calls.http.reply import BadStatus, ErrorReply, IncompleteReply, InvalidReply, Reply
from evaljournal.runner.calls.notes import engine_note, model_step, note
from evaljournal.runner.calls.prices import BATCH, DEFAULT_PRICES, Price, Tokens, price_of, read_prices
from evaljournal.runner.calls.turns import converse, turns_of
from evaljournal.runner.calls.usage import priced_usage
from evaljournal.runner.data.attachments import CaseFile, InvalidAttachment, Kind, attachment_records, attachments_of
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.dataset import as_strings
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.data.templates import Fields, Template, fill_body, has_fields, parse_body
from evaljournal.runner.errors import UsageError, is_whole_number
from evaljournal.runner.retries.classify import Fatal, is_declined
from evaljournal.runner.secrets.masking import excerpt, mask, mask_definition
from evaljournal.runner.secrets.shapes import mask_shapes

if TYPE_CHECKING:
    from evaljournal.runner.calls.batches.api import BatchApi

_HEADERS: Final = ((b"Content-Type", b"application/json"), (b"Accept", b"application/json, text/event-stream"))
_VARIABLE: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MESSAGE_FIELDS: Final = ("role", "content", "tool_calls")
_BYTES_PER_TOKEN: Final = 3
"""Bytes of JSON per token of a prompt, for an upper estimate: English has 4 to 5, Chinese about 3."""


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


def _dialect_name(chat: "Chat") -> str:
    prefix, _ = split_model(chat.model)
    if prefix and chat.dialect not in {None, prefix}:
        raise UsageError(f"the model {chat.model!r} and dialect={chat.dialect!r} name two dialects; pass one")
    return prefix or chat.dialect or DEFAULT_DIALECT


def _model(chat: "Chat") -> Template:
    if not chat.model_name.strip():
        raise UsageError("the model is empty; pass its name")
    return Template.parse(chat.model_name, "the model")


def _one_model(chat: "Chat") -> str | None:
    template = chat._model  # noqa: SLF001  # the field before
    return None if template.fields else "".join(map(str, template.pieces))


def _template(chat: "Chat") -> list[Any]:
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


def is_messages(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) and "role" in item for item in value)


def _address(chat: "Chat") -> Address:
    """Return the address of the API. A key is sent only if `key_env` names it, or to the provider's own URL."""
    dialect = chat.api
    base, _, query = chat.url.partition("?")
    path, _, path_query = dialect.path(chat.model_name, stream=chat.stream).partition("?")

    version = path.split("/")[1]
    if re.fullmatch(r"v\d\w*", version):  # A provider's documentation may show the URL with the version, or without.
        base = base.rstrip("/").removesuffix(f"/{version}")
    if Template.parse(base, "base_url").fields:
        raise UsageError(f"base_url {mask(chat.url)!r} must not contain fields; the model may")

    headers = {**dialect.headers, **chat.headers}
    key_headers = dict(dialect.key_variables)
    if chat.key_env is not None:
        if not _VARIABLE.fullmatch(chat.key_env):
            raise UsageError("key_env must be the name of an environment variable, not the key itself")
        default_header = next(iter(key_headers.values()), ("Authorization", "Bearer "))
        key_headers = {chat.key_env: key_headers.get(chat.key_env, default_header)}
    elif base.rstrip("/") != dialect.base_url.rstrip("/"):
        key_headers = {}
    # A header that the user sets replaces the one with the key.
    if not {name.lower() for name, _ in key_headers.values()} & {name.lower() for name in chat.headers}:
        key = next((name for name in key_headers if os.environ.get(name)), next(iter(key_headers), None))
        if key is not None:
            header, prefix = key_headers[key]
            headers[header] = f"{prefix}${{{key}}}"

    query = "&".join(filter(None, (path_query, query)))
    return Address.parse(f"{base.rstrip('/')}{path}{'?' if query else ''}{query}", headers)


def _max_output(chat: "Chat") -> int | None:
    """Return the maximum tokens of a reply; None if that is unknown, or there are several answers."""
    body = chat.body([])
    limits = [limit for limit in (chat.max_tokens, max_output(body)) if limit is not None]
    return max(limits) if limits and body.get("n", 1) == 1 else None


@attrs.frozen(kw_only=True)
class Chat(HttpTask):
    """A chat model, its address and parameters, and how a case becomes messages.

    `evaluation(cases="qa.jsonl")(Chat("gpt-5.6-luna", prompt="Answer briefly: {question}"))` is an evaluation.
    """

    __name__ = "chat"

    model: str = attrs.field(kw_only=False)
    """Its name. It may contain `{fields}`, so that cases can name models; `limit_key="model"` separates their rate limits."""
    dialect: str | None = None
    """The API: `chat` (chat completions) or the name of another dialect. None: the prefix of the model, as in
    `anthropic:claude-haiku-5-5`, otherwise `chat`."""
    base_url: str | None = attrs.field(default=None, repr=lambda url: repr(url and mask(url)))
    """URL of the API, as the provider's SDK takes it. None: the provider's own URL."""
    key_env: str | None = None
    """Environment variable with the API key. None: that of the provider's SDK for its own URL, no key for others."""
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
    effort: str | None = None
    """How much the model reasons: `low`, `medium`, `high`, … None: the model's default."""
    seed: int | None = None
    """Sampling seed, if the model supports it."""
    schema: Any = None
    """A JSON schema, or the path of a file with one; the output is then a JSON value."""
    stream: bool = False
    """Whether to stream the reply and record the times to its first byte and its first token."""
    extra_body: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """Further request parameters: `{"top_p": 0.9}`. They replace those of the request; objects are merged."""
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=lambda headers: repr(masked_headers(headers)))
    """Request headers; `$NAME` stands for an environment variable."""
    turns: str | None = None
    """Column with a list of user messages, sent one after the other, each with the conversation so far; not together with
    `prompt`."""
    images: Sequence[str] = attrs.field(default=(), converter=as_strings)
    """Columns with images that are added to the last user message, with turns to the first: paths relative to the dataset, or
    `data:` URLs, or lists of them; null for none."""
    files: Sequence[str] = attrs.field(default=(), converter=as_strings)
    """Columns with files, such as PDF documents; see `images`."""
    prices: Path | str = DEFAULT_PRICES
    """A TOML file with token prices."""
    connect_timeout: float | None = 10.0
    """Seconds to connect, within the timeout of the attempt."""
    read_timeout: float | None = None
    """Maximum seconds between two received bytes. None: only the timeout of the attempt applies."""
    dialect_name: str = attrs.field(init=False, repr=False, default=attrs.Factory(_dialect_name, takes_self=True))
    api: Dialect = attrs.field(
        init=False,
        repr=False,
        eq=False,
        default=attrs.Factory(lambda self: dialect_by_name(self.dialect_name), takes_self=True),
    )
    has_files: bool = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: bool(self.images or self.files), takes_self=True)
    )
    """Whether there are columns with images or files."""
    _model: Template = attrs.field(init=False, repr=False, default=attrs.Factory(_model, takes_self=True))
    _one_model: str | None = attrs.field(init=False, repr=False, default=attrs.Factory(_one_model, takes_self=True))
    """The model of all cases; None if they name it."""
    _template: list[Any] = attrs.field(init=False, repr=False, default=attrs.Factory(_template, takes_self=True))
    _schema: Any = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: _load_value(self.schema, "the schema"), takes_self=True)
    )
    _prices: Mapping[str, Price] = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: read_prices(Path(self.prices)), takes_self=True)
    )
    _address: Address = attrs.field(init=False, repr=False, default=attrs.Factory(_address, takes_self=True))
    _max_output: int | None = attrs.field(init=False, repr=False, default=attrs.Factory(_max_output, takes_self=True))

    def __attrs_post_init__(self) -> None:
        """Raise a UsageError if a parameter is invalid, or the dialect does not have it."""
        if self.max_tokens is not None and not is_whole_number(self.max_tokens, 1):
            raise UsageError(f"max_tokens={self.max_tokens!r}: expected a whole number of at least 1")
        self.body([])

    @property
    def model_name(self) -> str:
        """The model without the prefix of its dialect."""
        return split_model(self.model)[1]

    @property
    def url(self) -> str:
        return self.base_url or self.api.base_url

    @property
    def definition(self) -> dict[str, Any]:
        definition = {
            **({} if self.dialect_name == DEFAULT_DIALECT else {"dialect": self.dialect_name}),
            "model": self.model_name,
            **self.body([]),
            "system": self.system,
            "messages": _load_value(self.messages, "the messages"),
            "prompt": self.prompt,
            **({} if self.turns is None else {"turns": self.turns}),
            **{f"{kind}s": list(columns) for kind, columns in self._columns.items() if columns},
        }
        address = {"base_url": mask_shapes(self.url), "headers": masked_headers(self.headers)}
        return {**mask_definition(definition), **address}

    def body(self, messages: Sequence[Mapping[str, Any]], model: str | None = None) -> dict[str, Any]:
        request = ChatRequest(
            model=model or self.model_name,
            messages=messages,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=self.seed,
            effort=self.effort,
            schema=self._schema,
            stream=self.stream,
        )
        body = self.api.body(request)
        return _merge(body, self.extra_body) if self.extra_body else body

    def check(self, case: Case) -> None:
        """Raise a UsageError if the case lacks a field of the messages or the model, or the dialect has no such message."""
        messages, model = self.conversation(case), self.model_for(case)
        if self.messages is not None or is_messages(case.input):
            self.body(messages, model)

    @property
    def file_columns(self) -> list[str]:
        return [*self.images, *self.files]

    @property
    def _columns(self) -> dict[Kind, Sequence[str]]:
        return {"image": self.images, "file": self.files}

    def attachments(self, case: Case) -> list[CaseFile]:
        """Read the images and files of a case; raise an `InvalidAttachment` if one cannot be sent."""
        return attachments_of(case, self._columns)

    def recorded_request(self, messages: Sequence[Mapping[str, Any]], case: Case) -> dict[str, Any]:
        """Return the request for a case as it is recorded: its images and files are listed separately, without their content.

        It names the model, which some dialects have in the path.
        """
        model = self.model_for(case)
        return self.as_recorded(self.body(messages, model), model, case)

    def as_recorded(self, body: Mapping[str, Any], model: str, case: Case) -> dict[str, Any]:
        """Return the body of a request as it is recorded; see `recorded_request`."""
        request = {"model": model, **body}
        if self.has_files and (records := attachment_records(case, self._columns)):
            request["attachments"] = records
        return request

    @property
    def constant_template(self) -> str:
        """The template that makes the request the same for all cases; empty if requests differ."""
        if self.turns is not None or self.file_columns or not self.has_one_model or has_fields(self._template):
            return ""
        return "the prompt" if self.prompt is not None else "the list of messages" if self.messages is not None else ""

    @property
    def has_one_model(self) -> bool:
        return self._one_model is not None

    def model_for(self, case: Case) -> str:
        return self._model.fill(Fields(case)) if self._one_model is None else self._one_model

    def target_for(self, case: Case) -> str | None:
        """Return path and query for a case; None if they are the same for all."""
        return self._address.target_for(Fields(case)) if self._address.is_template else None

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
        """Return the request for a case, or for its first turn, as it is recorded."""
        return self.recorded_request(self.conversation(case), case)

    def check_price(self, case: Case, /) -> None:
        model = self.model_for(case)
        if price_of(model, self._prices) is None:
            raise UsageError(
                f"model {model!r} has no price, so a cost budget cannot be enforced",
                hint="add the price to a table and pass it with --prices, or limit tokens instead",
            )

    def call_size(self, case: Case, /) -> CallSize:
        """Return the size of the call for a case, or for its first turn, without images and files."""
        return self.size_of(self.conversation(case))

    def size_of(self, messages: Sequence[Any]) -> CallSize:
        return CallSize(text_bytes(orjson.dumps(messages)), self._max_output)

    def estimate(self, case: Case, _: float | None = None, tier: str = "", /) -> dict[str, float]:
        """Return an upper estimate of the usage of an attempt; tokens of the reply are known only with `max_tokens`."""
        if self.turns is not None:
            return {}
        messages = self.conversation(case)
        if self.file_columns:
            messages = [{"role": "user"}]  # The tokens of an image depend on the model.
        return self.estimate_messages(messages, self.model_for(case), tier=tier)

    def estimate_messages(
        self, messages: Sequence[Any], model: str, further_tokens: float = 0, *, tier: str = ""
    ) -> dict[str, float]:
        """Return an upper estimate of the usage of a call with these messages and further tokens of input."""
        usage: dict[str, float] = {}
        if all(isinstance(message.get("content"), str) for message in messages):
            usage["input_tokens"] = -(-len(orjson.dumps(messages)) // _BYTES_PER_TOKEN) + further_tokens
        if self._max_output is not None:
            usage["output_tokens"] = self._max_output

        price = price_of(model, self._prices)
        if price is not None and len(usage) == 2:  # noqa: PLR2004  # input and output
            tokens = Tokens(input=int(usage["input_tokens"]), output=int(usage["output_tokens"]))
            usage["cost"] = price.cost(tokens, tier) or 0.0
        return usage

    def batch_api(self) -> "BatchApi":
        """Return the batches of the provider; raise a `UsageError` if it has none."""
        from evaljournal.runner.calls.batches.providers import batch_api  # noqa: PLC0415  # only for runs with batches

        return batch_api(self.dialect_name, self.api.path(self.model_name, stream=False), self._address)

    @asynccontextmanager
    async def open_session(self, run: str, /) -> "AsyncGenerator[OpenChat]":
        async with Client(self._address, connect_timeout=self.connect_timeout, read_timeout=self.read_timeout) as client:
            yield OpenChat(self, client, self._prices, run)


class AttachmentError(Fatal):
    """An image or a file of the case cannot be sent; nothing was called."""


@attrs.define(eq=False)
class OpenChat:
    """A chat model with open connections.

    An attempt records its request, then sends it: what was rendered for the record is sent, unless another case came between.
    """

    takes_trial = True

    _chat: Chat
    _client: Client
    _prices: Mapping[str, Price]
    _run: str
    _rendered: tuple[Case | None, list[Any], dict[str, Any] | None] = (None, [], None)
    """Case, messages and body of the last request that was recorded and not sent."""

    def request(self, case: Case) -> dict[str, Any]:
        chat = self._chat
        messages, model = chat.conversation(case), chat.model_for(case)
        body = chat.body(messages, model)
        self._rendered = case, messages, body
        return chat.as_recorded(body, model, case)

    async def call(self, trial: TrialInput, _: object, /) -> Any:
        chat = self._chat
        (case, messages, body), self._rendered = self._rendered, (None, [], None)
        if case is not trial.case:
            messages, body = chat.conversation(trial.case), None

        if chat.turns is not None:
            attach = await self._read_attachments(messages, trial.case)
            turns = turns_of(trial.case, chat.turns)
            send = partial(self._send_turn, trial, attach, (len(turns), set[str]()))
            return await converse(turns, messages[:-1], send)

        if chat.has_files:
            attach = await self._read_attachments(messages, trial.case)
            messages, body = attach(messages), None

        answer = await self._answer(messages, trial, trial.trial, body)
        if facts := {**answer.facts, **({"usage": answer.usage} if answer.usage else {})}:
            engine_note(answer=facts)
        return _message(answer) if answer.tool_calls else self._output(answer.text, answer.outcome)

    async def _read_attachments(self, messages: Sequence[Any], case: Case) -> Callable[[list[Any]], list[Any]]:
        """Return a function that adds the images and files of a case to the last user message in `messages`."""
        chat = self._chat
        if not chat.has_files:
            return lambda messages: messages
        try:
            parts = [_part(attachment) for attachment in await run_in_thread(lambda: chat.attachments(case))]
            positions = [position for position, message in enumerate(messages) if message.get("role") == "user"]
            if parts and not positions:
                raise InvalidAttachment("there is no user message to add the images and files to")
        except UsageError as exc:
            raise AttachmentError(exc.message) from None
        return partial(_attach, parts=parts, position=positions[-1] if positions else 0)

    async def _send_turn(
        self,
        trial: TrialInput,
        attach: Callable[[list[Any]], list[Any]],
        conversation: tuple[int, set[str]],
        number: int,
        messages: list[Any],
    ) -> Any:
        """Send one turn of a conversation as a step; return the text of the reply, or the last message if it calls tools.

        `conversation` is the number of turns and the outcomes so far: the answer is declined if one is, otherwise truncated if
        one is.
        """
        turn_count, outcomes = conversation
        usages: list[Mapping[str, float | str]] = []

        async def call() -> dict[str, Any]:
            answer = await self._answer(attach(messages), trial, f"{trial.trial}\0{number}")
            usages.append(answer.usage)
            return {**_message(answer), **answer.facts}

        request = self._chat.recorded_request(messages, trial.case)
        size = self._chat.size_of(messages)
        message = await model_step(f"turn {number}", request, call, lambda: usages[0] or None, size)
        if number < turn_count and message.get("tool_calls"):
            raise Fatal(f"turn {number}: the model calls a tool; a scripted conversation cannot answer it")

        outcomes.add(message.get("outcome", ""))
        facts = {name: value for name, value in message.items() if name not in _MESSAGE_FIELDS}
        if number == turn_count and (outcome := min(outcomes - {""}, default="")):
            facts["outcome"] = outcome
        if number == turn_count and facts:
            engine_note(answer=facts)  # The steps have the usage.

        if message.get("tool_calls"):
            return {name: message[name] for name in _MESSAGE_FIELDS}
        return message["content"] if number < turn_count else self._output(message["content"], message.get("outcome"))

    def _answer(
        self, messages: Sequence[Mapping[str, Any]], trial: TrialInput, identity: str, body: dict[str, Any] | None = None
    ) -> Awaitable[Answer]:
        headers = idempotency_headers("Idempotency-Key", self._run, identity)
        chat, case = self._chat, trial.case
        model, target = chat.model_for(case), chat.target_for(case)
        return self.complete(messages, *headers, model=model, target=target, body=body)

    def _output(self, reply: str, outcome: object) -> Any:
        """Return the output for a reply; with a schema, the value of its JSON. An incomplete answer need not be JSON."""
        if self._chat.schema is None:
            return reply
        try:
            return read_json(reply)
        except ValueError as exc:
            if outcome in {"truncated", "declined"}:
                return reply
            raise InvalidReply(f"the model's reply is not JSON ({exc}): {excerpt(reply, 300)!r}") from exc

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *headers: tuple[bytes, bytes],
        model: str | None = None,
        target: str | None = None,
        note_usage: Callable[[Mapping[str, Any]], None] = lambda usage: note(usage=usage),
        body: dict[str, Any] | None = None,
    ) -> Answer:
        """Return the model's answer, with the priced usage; its text is empty if the provider declined the request.

        `body` is the request for these messages, if it was made before. `note_usage` is called with the usage of a reply that
        is not an answer: it is paid for, too.
        """
        try:
            content = orjson.dumps(self._chat.body(messages, model) if body is None else body)
        except UsageError as exc:  # The dialect has no such image or file; all else was checked with the case.
            raise AttachmentError(exc.message) from None

        lost_usage: dict[str, float | str] = {}
        line = current_line()
        tier = "" if line is None else BATCH

        def read(reply: Reply) -> Answer:
            try:
                answer = self._read(reply)
            except (InvalidReply, IncompleteReply, ErrorReply):
                report = _report(reply)
                if report.usage:
                    served_model = report.model or model or self._chat.model_name
                    lost_usage.update(priced_usage(report.usage, served_model, self._prices, tier or report.tier))
                raise
            served_model = answer.model or model or self._chat.model_name
            answer.usage = priced_usage(answer.usage, served_model, self._prices, tier or answer.service_tier)
            return answer

        first_token = self._chat.api.first_token if self._chat.stream else None
        try:
            answer: Answer
            if line is not None:
                answer = self._client.parse(*line.reply(content), read)
            else:
                answer = await self._client.call(
                    "POST", content, *_HEADERS, *headers, read=read, target=target, first_token=first_token
                )
        except (BadStatus, ErrorReply, InvalidReply, IncompleteReply) as exc:
            if is_declined(exc):
                return Answer(text="", outcome="declined", usage=lost_usage, explanation=str(exc))
            if lost_usage:
                note_usage(lost_usage)
            raise
        if words := unread_words(messages, answer.usage):
            engine_note(short_prompt={"input_tokens": answer.usage["input_tokens"], "words": words})
        return answer

    def _read(self, reply: Reply) -> Answer:
        dialect = self._chat.api
        if not reply.is_stream:
            value = reply.json()
            raise_error_in(value, "error")
            return dialect.read(value)
        try:
            return dialect.read_stream(_checked(reply.chunks()))
        except IncompleteReply as exc:
            if reply.is_done:
                raise InvalidReply(str(exc)) from None  # As a cause, it would be an outage.
            raise


def _merge(body: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request body with further parameters, which replace its own; objects are merged at any depth."""
    merged = dict(body)
    for name, value in further.items():
        is_object = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merge(merged[name], value) if is_object else value
    return merged


def _message(answer: Answer) -> dict[str, Any]:
    calls = {"tool_calls": list(answer.tool_calls)} if answer.tool_calls else {}
    return {"role": "assistant", "content": answer.text, **calls}


def _part(attachment: CaseFile) -> dict[str, Any]:
    url = f"data:{attachment.media_type};base64,{attachment.data}"
    if attachment.kind == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": attachment.name, "file_data": url}}


def _attach(messages: Sequence[Any], parts: Sequence[Any], position: int) -> list[Any]:
    if not parts:
        return list(messages)
    content = messages[position].get("content")
    texts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    message = {**messages[position], "content": [*texts, *parts]}
    return [*messages[:position], message, *messages[position + 1 :]]


def _report(reply: Reply) -> Report:
    """Return what a reply that is not an answer reports, as far as it can be read: it is paid for, too."""
    report = Report()
    with suppress(InvalidReply, IncompleteReply, ErrorReply):
        for chunk in reply.chunks() if reply.is_stream else [reply.json()]:
            report.add_event(chunk)
    return report


def _checked(chunks: Iterable[Any]) -> Iterator[Any]:
    for chunk in chunks:
        raise_error_in(chunk, "error")
        yield chunk
