"""Python functions of a promptfoo project, called as promptfoo calls them: providers and assertions."""

import asyncio
import functools
import inspect
import json
from collections.abc import Mapping
from typing import Any, cast

from evaljournal.runner.calls.notes import note
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.templates import Fields, Template, fill_body, parse_body
from evaljournal.runner.definition.loading import load_function

__all__ = ["call_api", "load_function"]

_load = functools.cache(load_function)


def call_api(variables: Any, *, function: str, prompt: Any, id: str = "", config: Mapping[str, Any] | None = None) -> Any:  # noqa: A002  # as in promptfoo
    """Call a provider, a function with the parameters prompt, options and context, and return its output.

    `function` is a reference such as `provider.py:call_api`. A cost that it returns is recorded.
    """
    fields = Fields(Case(input=variables, input_name="vars"))
    if isinstance(prompt, str):
        text = Template.parse(prompt, "the prompt").fill(fields)
    else:
        text = json.dumps(fill_body(parse_body(prompt, "the prompt"), fields), ensure_ascii=False, indent=2)

    result = _load(function)(text, {"id": id, "config": dict(config or {})}, {"vars": variables})
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    if not isinstance(result, Mapping):
        raise TypeError(f"{function} returned {type(result).__name__}, not a mapping with output or error")

    reply = cast("Mapping[str, Any]", result)
    if isinstance(reply.get("cost"), int | float):
        note(cost=reply["cost"])
    if reply.get("error"):
        raise RuntimeError(str(reply["error"]))
    if "output" not in reply:
        raise TypeError(f"{function} returned a mapping without output or error")
    return reply["output"]
