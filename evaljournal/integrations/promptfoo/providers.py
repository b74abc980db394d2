"""Providers of a promptfoo configuration as options of `evaljournal run`: chat models, endpoints, commands and functions."""

import re
import shlex
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, cast
from urllib.parse import quote

import attrs

from evaljournal.integrations.promptfoo import nunjucks
from evaljournal.integrations.promptfoo.project import FILE, NotMapped, Project, Value, json_text, pop_text, present, with_place
from evaljournal.integrations.promptfoo.prompts import Prompt
from evaljournal.runner.calls.call_size import TOKEN_LIMITS
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.secrets.masking import mask_literal, mask_literal_words, mask_values

_OTHER_OPENAI_APIS: Final = re.compile(
    r"(agents|assistant|chatkit|codex|completion|embedding|image|moderation|realtime|speech|transcription|tts|video)\b.*"
    r"|.*(instruct|davinci|babbage|-tts|realtime|transcribe|whisper|dall-e|gpt-image|sora|audio).*"
)
_COMPATIBLE: Final = {
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "groq": ("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": ("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "together": ("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
}
"""Providers with chat completions, whose URL and key are written into the file."""
_KEYS: Final = {
    "": "OPENAI_API_KEY",
    "responses:": "OPENAI_API_KEY",
    "anthropic:": "ANTHROPIC_API_KEY",
    "gemini:": "GOOGLE_API_KEY",
}
"""Dialect → the variable of its key."""
_CHAT_KEYS: Final = """
top_p presence_penalty frequency_penalty stop response_format logit_bias user store metadata service_tier verbosity
prompt_cache_key prompt_cache_retention parallel_tool_calls
"""
_RESPONSES_KEYS: Final = "top_p instructions text metadata user store service_tier truncation prompt_cache_key"
_ANTHROPIC_KEYS: Final = "top_p top_k thinking metadata service_tier stop_sequences"
_GEMINI_KEYS: Final = "generationConfig safetySettings systemInstruction"
_BODY_KEYS: Final = {
    "": _CHAT_KEYS.split(),
    "responses:": _RESPONSES_KEYS.split(),
    "anthropic:": _ANTHROPIC_KEYS.split(),
    "gemini:": _GEMINI_KEYS.split(),
}
"""Dialect → keys of `config` that are parameters of the API."""
_GENERATION_KEYS: Final = ("topP", "topK", "stopSequences")
"""Keys of `config` that Gemini has in `generationConfig`."""
_REASONING_MODEL: Final = re.compile(r"(?:.*/)?(?:o\d|gpt-[5-9]).*")
_ENVIRONMENT: Final = re.compile(r"\{\{\s*env(?:\.(\w+)|\[['\"](\w+)['\"]\])\s*\}\}(?!\w)")
_RESPONSE_PATH: Final = re.compile(
    r"\s*(?:\(?\s*json\s*(?:,\s*\w+\s*)*\)?\s*=>\s*)?json"
    r"((?:\??\.[A-Za-z_$][\w$]*|(?:\?\.)?\[(?:\d+|'[^']+'|\"[^\"]+\")\])*)\s*;?\s*"
)
_PATH_PART: Final = re.compile(r"[A-Za-z_$][\w$]*|\d+|'[^']+'|\"[^\"]+\"")

_REQUEST_KEYS: Final = ("request", "transformRequest", "requestTransform", "session", "auth", "signatureAuth", "multipart")
"""Keys of `config` without which a request would be another one."""

_URL_CHARACTERS: Final = ":/?#[]@!$&'()*+,;=%~"
"""Characters with a meaning in a URL, and escapes."""

Kind = Literal["chat", "endpoint", "command", "python"]


@attrs.frozen
class ImportedProvider:
    id: str
    label: str
    """Its label, or its id without the prefix."""
    kind: Kind
    options: Mapping[str, Any]
    """Keys of a configuration file; for a Python function, `function` and `config`."""
    prompts: frozenset[str] | None = None
    """Names of the prompts it is used with; None: all."""
    source: Value = attrs.field(repr=False, kw_only=True)

    def takes(self, prompt: Prompt) -> bool:
        return self.prompts is None or any(
            name in self.prompts or fnmatchcase(name, pattern) for name in prompt.names for pattern in self.prompts
        )

    @property
    def variables(self) -> set[tuple[str, ...]]:
        """The variables that its requests contain in addition to those of the prompt."""
        request = [self.options.get(name, "") for name in ("endpoint", "query", "body")] if self.kind == "endpoint" else []
        return nunjucks.variables(request) - {("prompt",)}

    def with_prompt(self, prompt: Prompt) -> dict[str, Any]:
        """Return the options for a prompt, which is in `prompt` or `messages`; raise `NotMapped` if it cannot take it."""
        options = dict(self.options)
        match self.kind:
            case "chat":
                return options | {"messages" if prompt.is_chat else "prompt": nunjucks.to_templates(prompt.raw)}
            case "python":
                return options | {"prompt": nunjucks.to_templates(prompt.raw)}
            case "endpoint":
                if "body" in options:
                    options["body"] = nunjucks.map_texts(partial(_fill_text, prompt), options["body"])
                options["endpoint"] = _fill_url(options["endpoint"], options.pop("query", {}), prompt)
                return options
            case "command":
                if prompt.is_chat:
                    raise NotMapped("a list of messages as the argument of a command has no counterpart")
                words = [*options["command"], nunjucks.to_template(prompt.raw), *options["arguments"]]
                return {"command": shlex.join(words)}


def read_providers(value: Value | None, project: Project) -> list[ImportedProvider]:
    """Return the providers; those that have no counterpart are omitted."""
    if value is None or value.data in (None, []):
        raise (value or Value(None, project.config, 1)).error("there are no providers")
    providers: list[ImportedProvider] = []
    for item in value.items("providers") if isinstance(value.data, list) else [value]:
        for entry in _entries(item, project):
            try:
                providers.append(read_provider(entry, project))
                project.convert_part("providers", entry)
            except NotMapped as exc:
                project.omit_part("providers", entry, f"the provider is not imported: {exc}")
    return providers


def _entries(item: Value, project: Project) -> list[Value]:
    """Return the providers of an entry, which may be a YAML file with some."""
    if isinstance(item.data, str) and item.data.startswith(FILE) and Path(item.data).suffix in {".yaml", ".yml", ".json"}:
        content = project.content(item)
        return content.items("providers") if isinstance(content.data, list) else [content]
    return [item]


def read_provider(entry: Value, project: Project) -> ImportedProvider:
    """Return a provider; raise `NotMapped` if it has no counterpart."""
    fields: dict[str, Value] = {}
    if isinstance(entry.data, dict):
        fields = entry.fields("a provider")
        if "id" not in fields and len(fields) == 1:  # `openai:MODEL: {config: …}`
            ((name, options),) = fields.items()
            fields = {"id": Value(name, entry.path, options.line), **options.fields("a provider")}
        if "id" not in fields:
            raise entry.error("the provider has no id")
        identity = fields.pop("id").text("id")
    else:
        identity = entry.text("a provider")

    label = pop_text(fields, "label")
    prompts = fields.pop("prompts", None)
    names = None if prompts is None else frozenset(item.text("a prompt") for item in prompts.items("prompts"))
    config = present(project.content(fields.pop("config")).fields("config")) if "config" in fields else {}

    kind, task_options = _options(identity, config, entry, project)
    project.omit_keys(config, "config")
    project.omit_keys(fields, "providers")

    name = identity.removeprefix("python:")
    default_label = name.rpartition("/")[2] if kind in {"endpoint", "python"} else identity.partition(":")[2]
    return ImportedProvider(identity, label or default_label or identity, kind, task_options, names, source=entry)


def _options(identity: str, config: dict[str, Value], entry: Value, project: Project) -> tuple[Kind, dict[str, Any]]:
    """Return the options of a provider; keys of `config` that they contain are removed from it."""
    prefix, _, name = identity.partition(":")
    if identity in {"http", "https"} or identity.startswith(("http://", "https://")):
        options = _endpoint(identity, config)
        headers = _headers(config, project)
        return "endpoint", options | ({"header": headers} if headers else {})
    if prefix == "exec":
        return "command", _command(identity, name, config, entry, project)
    if prefix == "python" or (identity.startswith(FILE) and re.search(r"\.py(:\w+)?$", identity)):
        return "python", _python(name if prefix == "python" else identity, identity, config, entry, project)
    return "chat", _chat(identity, config, project)


def _chat(identity: str, config: dict[str, Value], project: Project) -> dict[str, Any]:
    provider, _, name = identity.partition(":")
    dialect, options = "", dict[str, Any]()
    configured_model = pop_text(config, "model")

    match provider:
        case "openai":
            api, _, model = name.partition(":")
            if api in {"chat", "responses"}:
                dialect, model = ("responses:" if api == "responses" else ""), model or configured_model
            elif _OTHER_OPENAI_APIS.fullmatch(name):
                raise NotMapped(f"{identity} is not a chat model")
            else:
                model = name
        case "anthropic":
            if not name.startswith(("messages", "claude-")) or name.startswith("claude-agent"):
                raise NotMapped(f"{identity} is not a chat model")
            dialect, model = "anthropic:", name.removeprefix("messages").removeprefix(":") or configured_model
        case "google" | "gemini":
            if not name.startswith("gemini-") or "image" in name or "live" in name or "tts" in name:
                raise NotMapped(f"{identity} is not a chat model")
            dialect, model = "gemini:", name
        case _ if provider in _COMPATIBLE:
            model = name
            options["base-url"], options["key-env"] = _COMPATIBLE[provider]
        case _:
            raise NotMapped(f"{identity} has no counterpart")

    if not model:
        raise NotMapped(f"{identity} names no model")
    has_prefix = ":" in model and not dialect
    chat = {"chat": f"{dialect}{'chat:' if has_prefix else ''}{nunjucks.to_template(model)}"}
    return chat | _address(config, options, dialect, project) | _parameters(config, dialect, model, project)


def _address(config: dict[str, Value], options: dict[str, Any], dialect: str, project: Project) -> dict[str, Any]:
    """Return URL, key and headers of a chat model."""
    if "apiHost" in config and dialect in {"", "responses:"}:
        options["base-url"] = f"https://{_plain_text(config.pop('apiHost'), 'apiHost')}/v1"
    if "apiBaseUrl" in config:
        options["base-url"] = _plain_text(config.pop("apiBaseUrl"), "apiBaseUrl")
    if "base-url" in options:
        options.setdefault("key-env", _KEYS[dialect])

    if "apiKeyEnvar" in config:
        options["key-env"] = config.pop("apiKeyEnvar").text("apiKeyEnvar")
    if "apiKey" in config:
        value = config.pop("apiKey")
        match = _ENVIRONMENT.fullmatch(value.text("apiKey"))
        if match:
            options["key-env"] = match[1] or match[2]
        else:
            project.omit(value, "config.apiKey is a key, which is not written; use apiKeyEnvar and an environment variable")

    if headers := _headers(config, project):
        options["header"] = headers
    return options


def _parameters(config: dict[str, Value], dialect: str, model: str, project: Project) -> dict[str, Any]:
    """Return the parameters of requests; those that promptfoo sends by default are written, too."""
    options: dict[str, Any] = {}
    has_defaults = not (config.pop("omitDefaults").data if "omitDefaults" in config else False)
    if has_defaults and dialect != "gemini:" and not _REASONING_MODEL.fullmatch(model):
        options |= {"max-tokens": 1024} if dialect == "anthropic:" else {"max-tokens": 1024, "temperature": 0}

    if "temperature" in config:
        options["temperature"] = config.pop("temperature").number("temperature")
    for key in TOKEN_LIMITS:
        if key in config:
            options["max-tokens"] = config.pop(key).count(key)
    if "seed" in config and dialect != "anthropic:":
        options["model-seed"] = config.pop("seed").number("seed")

    if "reasoning_effort" in config:
        options["effort"] = _plain_text(config.pop("reasoning_effort"), "reasoning_effort")
    elif "reasoning" in config and list(config["reasoning"].fields("reasoning")) == ["effort"]:
        options["effort"] = _plain_text(config.pop("reasoning").data["effort"], "effort")

    body = _body(config, dialect, project)
    return options | ({"extra-body": body} if body else {})


def _body(config: dict[str, Value], dialect: str, project: Project) -> dict[str, Any]:
    """Return the parameters of requests that have no option of their own."""
    for key in ("generationConfig", "passthrough"):
        if key in config:
            config[key].fields(key)
    body = {key: _literal_json(project.content(config.pop(key)), key) for key in _BODY_KEYS[dialect] if key in config}
    if dialect == "gemini:":
        generation = {key: _literal_json(config.pop(key), key) for key in _GENERATION_KEYS if key in config}
        body |= {"generationConfig": {**body.get("generationConfig", {}), **generation}} if generation else {}
    if "passthrough" in config:
        body |= _literal_json(config.pop("passthrough"), "passthrough")
    return body


def _literal_json(value: Value, name: str) -> Any:
    """Return a JSON value without templates and keys."""

    def check(text: str) -> None:
        if nunjucks.is_template(text) or text.startswith(FILE):
            raise NotMapped(f"config.{name} contains a template or a file, which has no counterpart there")

    nunjucks.map_texts(check, value.plain)
    return _without_keys(value, name)


def _without_keys(value: Value, name: str) -> Any:
    """Return a JSON value; raise `NotMapped` if it contains an API key or a password."""
    plain_value = {name: value.plain}
    if mask_values(plain_value) != plain_value:
        raise NotMapped(f"config.{name} contains a key, which is not written")
    return value.plain


def _plain_text(value: Value, name: str) -> str:
    """Return a text of a URL with environment variables as `$NAME`."""
    text = _with_environment(value.text(name))
    if nunjucks.is_template(text):
        raise NotMapped(f"config.{name} contains a template, which has no counterpart there")
    if mask_literal(text) != text:
        raise NotMapped(f"config.{name} contains a key, which is not written; put it in an environment variable")
    return text


def _with_environment(text: str) -> str:
    """Return a text in which `$NAME` stands for an environment variable."""
    return _ENVIRONMENT.sub(lambda match: f"${match[1] or match[2]}", text.replace("$", "$$"))


def _headers(config: dict[str, Value], project: Project) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in (config.pop("headers").fields("headers") if "headers" in config else {}).items():
        text = str(value.plain) if not isinstance(value.data, list | dict) else value.text("a header")
        if name.lower() == "content-type" and text.startswith("application/json"):
            continue  # The default.
        masked_text = mask_literal(text, name)
        if masked_text != text and not _ENVIRONMENT.search(text):
            project.omit(value, f"the header {name} contains a key, which is not written; use {{{{env.NAME}}}}")
            continue
        header = _with_environment(text)
        if nunjucks.is_template(header) or name.lower() == "content-type":
            raise NotMapped(f"the header {name} has no counterpart")
        headers[name] = header
    return headers


def _endpoint(identity: str, config: dict[str, Value]) -> dict[str, Any]:
    for key in _REQUEST_KEYS:
        if key in config:
            raise NotMapped(f"config.{key} has no counterpart")

    url = _with_environment(pop_text(config, "url", identity))
    if not url.startswith(("http://", "https://", "$")):
        raise NotMapped("the provider has no URL")
    if mask_literal(url) != url:
        raise NotMapped("the URL contains a key, which is not written; use {{env.NAME}}")

    body = config.pop("body", None)
    method = pop_text(config, "method", "GET" if body is None else "POST").upper()
    if method not in {"GET", "POST"}:
        raise NotMapped(f"the method {method} has no counterpart")

    options: dict[str, Any] = {"endpoint": url} | ({"method": method, "body": {}} if method == "GET" else {})
    if body is not None:
        options["body"] = _json_body(body)
    if "queryParams" in config:
        options["query"] = _without_keys(config.pop("queryParams"), "queryParams")
    return options | _output_path(config.pop("transformResponse", None) or config.pop("responseParser", None))


def _json_body(value: Value) -> Any:
    if not isinstance(value.data, str):
        return _without_keys(value, "body")
    try:
        return _without_keys(with_place(read_json(value.data), value.path, value.line), "body")
    except ValueError:
        raise NotMapped("a body that is not JSON has no counterpart") from None


def _output_path(value: Value | None) -> dict[str, str]:
    if value is None:
        return {}
    match = _RESPONSE_PATH.fullmatch(value.text("transformResponse"))
    if match is None:
        raise NotMapped(f"transformResponse {value.data.strip()[:60]!r} is not a plain path such as json.a.b[0]")
    parts = [part.strip("'\"") for part in _PATH_PART.findall(match[1])]
    return {"output-path": ".".join(parts)} if parts else {}


def _fill_text(prompt: Prompt, text: str) -> Any:
    """Return a text of a body as a template, with the prompt in place of `{{prompt}}`."""
    parts = nunjucks.pieces(text)
    if ("prompt",) not in parts:
        return nunjucks.to_template(text)
    if not prompt.is_chat:
        return "".join(nunjucks.to_template(prompt.raw) if part == ("prompt",) else nunjucks.to_field(part) for part in parts)
    if len(parts) > 1:
        raise NotMapped("a list of messages inside a text has no counterpart")
    return nunjucks.to_templates(prompt.raw)


def _fill_url(url: str, query: Any, prompt: Prompt) -> str:
    """Return a URL with query parameters, and the prompt in place of `{{prompt}}`."""

    def fill(text: str, *, is_part: bool) -> str:
        pieces = nunjucks.pieces(text)
        if ("prompt",) in pieces and prompt.is_chat:
            raise NotMapped("a list of messages in a URL has no counterpart")
        pieces = [part for piece in pieces for part in (nunjucks.pieces(prompt.raw) if piece == ("prompt",) else [piece])]
        return "".join(
            nunjucks.to_field(piece if isinstance(piece, tuple) else quote(piece, safe="" if is_part else _URL_CHARACTERS))
            for piece in pieces
        )

    if not isinstance(query, dict):
        raise NotMapped("queryParams that are not a mapping have no counterpart")
    parameters = "&".join(
        f"{quote(name, safe='')}={fill(nunjucks.text_of(item, (name,)), is_part=True)}"
        for name, item in cast("dict[str, Any]", query).items()
    )
    target = fill(url, is_part=False)
    return f"{target}{'&' if '?' in target else '?'}{parameters}" if parameters else target


def _command(identity: str, line: str, config: dict[str, Value], entry: Value, project: Project) -> dict[str, Any]:
    """Return a command; like promptfoo, it passes the prompt, the options and the variables as the last arguments."""
    try:
        words = shlex.split(line)
    except ValueError as exc:
        raise entry.error(f"cannot parse the command: {exc}; check its quotes") from exc
    if not words:
        raise entry.error("the command is empty")
    if mask_literal_words(words) != words:
        raise NotMapped("the command contains a key, which is not written")

    settings = {key: _literal_json(value, key) for key, value in config.items()}
    config.clear()
    words = [_relative(word, project) for word in words]
    arguments = [nunjucks.escape_braces(json_text({"id": identity, "config": settings})), '{{"vars":{vars}}}']
    return {"command": list(map(nunjucks.escape_braces, words)), "arguments": arguments}


def _relative(word: str, project: Project) -> str:
    """Return a path of a script relative to the working directory of the run, not of the configuration."""
    path = project.config.parent / word
    return str(path) if not word.startswith(("-", "/")) and ("." in word or "/" in word) and path.is_file() else word


def _python(reference: str, identity: str, config: dict[str, Value], entry: Value, project: Project) -> dict[str, Any]:
    path, _, function = reference.removeprefix(FILE).partition(":")
    file = project.path(path, entry)
    for key in ("pythonExecutable", "workers", "timeout"):
        if key in config:
            project.omit(config.pop(key), f"config.{key} is not mapped")
    settings = {key: _literal_json(value, key) for key, value in config.items()}
    config.clear()
    return {"function": f"{file}:{function or 'call_api'}", "id": identity, "config": settings}
