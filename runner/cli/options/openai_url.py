"""Use OPENAI_BASE_URL as the URL of `--chat` and `--judge`, as OpenAI's SDK does."""

import os
from collections.abc import Mapping
from typing import Any

from evaljournal.runner.errors import UsageError
from evaljournal.runner.secret_shapes import MASK
from evaljournal.runner.secrets import add_environment, mask_literal
from evaljournal.runner.tasks.arguments import TARGETS


def options_from_environment(*tables: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that OPENAI_BASE_URL sets: the URL of the chat model or the judge, and OPENAI_API_KEY.

    `tables` are the options of the evaluation and of its variants. If they name a URL or a key, the result is empty, so that no
    other key is sent to the URL.
    """
    url = os.environ.get("OPENAI_BASE_URL", "").strip()
    names = {name for table in tables for name in table}
    if not url or names.isdisjoint({"chat", "judge"}):
        return {}
    if "chat" in names:
        url_option, key_option = "base_url", "key_env"
        conflicting_options = {*TARGETS} - {"chat"} if "judge_url" in names else {*TARGETS, "judge_key_env"} - {"chat"}
        has_other_key = any("$" in header for table in tables for header in table.get("header", ()))
    else:
        url_option, key_option = "judge_url", "judge_key_env"
        conflicting_options, has_other_key = set[str](), False
    if has_other_key or not names.isdisjoint({url_option, key_option, *conflicting_options}):
        return {}
    return {url_option: _literal_url(url, f"--{url_option.replace('_', '-')}"), key_option: "OPENAI_API_KEY"}


def _literal_url(url: str, flag: str) -> str:
    """Return the URL as the value of an option, which expands `$NAME`; raise a `UsageError` if it contains a key."""
    add_environment()
    masked_url = mask_literal(url)
    if masked_url != url:
        raise UsageError(
            "OPENAI_BASE_URL contains a key, which would be recorded; put it in another variable and pass "
            f"{flag} '{masked_url.replace(MASK, '$NAME')}'"
        )
    return url.replace("$", "$$").replace("{", "%7B").replace("}", "%7D")
