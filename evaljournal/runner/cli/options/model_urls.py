"""URLs and keys of chat models and judges: which options and environment variables apply to the models of which provider.

A key is never sent to another provider: an option, or a variable such as OPENAI_BASE_URL, applies to one provider only.
"""

import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

from evaljournal.runner.calls.arguments import TARGETS
from evaljournal.runner.calls.dialects import DEFAULT_DIALECT, dialect_by_name, split_model
from evaljournal.runner.calls.dialects.dialect import Dialect
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import add_environment, mask_literal
from evaljournal.runner.secrets.shapes import MASK

_NAMED_JUDGE: Final = re.compile(r"(\w[\w-]*)=(.*)")
_FIX: Final = "use a [[variant]] table with base-url and key-env for each model"


def options_from_environment(*tables: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that variables such as OPENAI_BASE_URL set: the URL of the chat model or the judge, and its key.

    `tables` are the options of the evaluation and of its variants. If they name a URL or a key, none is set for the same model,
    so that no other key is sent to the URL.
    """
    names = {name for table in tables for name in table}
    chat_providers = providers_of(chat_models(*tables))
    judge_models = judges_by_name(text for table in tables for text in table.get("judge", ())).values()
    judges = [model for model in judge_models if not providers_of([model]).keys() <= chat_providers.keys()]

    options: dict[str, str] = {}
    has_other_key = any("$" in header for table in tables for header in table.get("header", ()))
    is_inherited = len(judges) < len(judge_models) and "judge_url" not in names
    conflicting_options = {"base_url", "key_env", *TARGETS, *(["judge_key_env"] if is_inherited else [])} - {"chat"}
    if not has_other_key and names.isdisjoint(conflicting_options):
        options |= _provider_options(chat_providers, "base_url", "key_env")

    if names.isdisjoint({"judge_url", "judge_key_env"}):
        is_shared = len(judges) < len(judge_models)
        options |= _provider_options(providers_of(judges), "judge_url", "judge_key_env", is_shared=is_shared)
    return options


def chat_models(*tables: Mapping[str, Any]) -> list[str]:
    values = [table["chat"] for table in tables if "chat" in table]
    return [model for value in values for model in (value if isinstance(value, tuple) else (value,))]


def judges_by_name(texts: Iterable[str]) -> dict[str, str]:
    """Return the models of the judges by scorer: NAME=MODEL; a model without a name is `judge`, `judge-2` and so on."""
    models: dict[str, str] = {}
    unnamed_count = 0
    for text in texts:
        match = _NAMED_JUDGE.fullmatch(text)
        unnamed_count += match is None
        name, model = match.groups() if match else ("judge" if unnamed_count == 1 else f"judge-{unnamed_count}", text)
        if name in models:
            raise UsageError(f"--judge {text!r}: two judges have the name {name!r}; write --judge NAME=MODEL")
        models[name] = model
    return models


def providers_of(models: Iterable[str]) -> dict[str, Dialect]:
    """Return the own URLs of the models' providers, each with a dialect; chat completions and responses have the same."""
    dialects = [dialect_by_name(split_model(model)[0] or DEFAULT_DIALECT) for model in models]
    return {dialect.base_url: dialect for dialect in dialects}


def check_shared_options(
    values: Mapping[str, Any], tables: Sequence[Mapping[str, Any]], command_line_values: Container[str] = ()
) -> None:
    """Raise a `UsageError` if an option with a URL or a key applies to models of several providers.

    `values` are the options of all models, `tables` those of the variants, if there are tables; options on the command line
    replace those of the tables.
    """
    judges = judges_by_name(values.get("judge", ())).values()
    for name in ("base_url", "key_env", "header", "judge_url", "judge_key_env"):
        if name not in values or (name == "header" and not any("$" in header for header in values["header"])):
            continue
        is_shared = name in command_line_values
        models = chat_models(
            *({"chat": values.get("chat", ()), **table} for table in tables or [{}] if is_shared or name not in table)
        )
        if len(providers_of(judges if name.startswith("judge") else models)) > 1:
            raise UsageError(
                f"--{name.replace('_', '-')} would apply to models of several providers",
                hint="pass judges of one provider" if name.startswith("judge") else _FIX,
            )


def _provider_options(
    providers: Mapping[str, Dialect], url_option: str, key_option: str, *, is_shared: bool = False
) -> dict[str, str]:
    """Return the URL of a provider in its environment variable, and its key, as options; empty if the variable is not set.

    `is_shared`: whether the options would apply to models of another provider, too.
    """
    urls = {dialect.url_variable: os.environ.get(dialect.url_variable, "").strip() for dialect in providers.values()}
    if not any(urls.values()):
        return {}
    if len(providers) > 1 or is_shared:
        variable = next(name for name, url in urls.items() if url)
        kind, fix = ("judges", "pass judges of one provider") if url_option == "judge_url" else ("models", _FIX)
        raise UsageError(f"{variable} is set, but the {kind} are of several providers", hint=f"unset it, or {fix}")
    (dialect,), ((variable, url),) = providers.values(), urls.items()
    options = {url_option: _literal_url(url, variable, f"--{url_option.replace('_', '-')}")}
    keys = sorted(dialect.key_variables, key=lambda name: not os.environ.get(name))  # The first one that is set, if any.
    return {**options, key_option: keys[0]} if keys else options


def _literal_url(url: str, variable: str, flag: str) -> str:
    """Return the URL as the value of an option, which expands `$NAME`; raise a `UsageError` if it contains a key."""
    add_environment()
    masked_url = mask_literal(url)
    if masked_url != url:
        raise UsageError(
            f"{variable} contains a key, which would be recorded; put it in another variable and pass "
            f"{flag} '{masked_url.replace(MASK, '$NAME')}'"
        )
    return url.replace("$", "$$").replace("{", "%7B").replace("}", "%7D")
