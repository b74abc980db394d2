"""Reject keys in a header, URL or command on the command line: other users can see them, and they would be recorded."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from evaljournal.runner.errors import UsageError
from evaljournal.runner.secret_shapes import MASK
from evaljournal.runner.secrets import add_environment, mask_literal, mask_literal_words, secret_variables

_URLS: Final = ("endpoint", "base_url", "judge_url")


def reject_literal_keys(values: Mapping[str, Any]) -> None:
    """Raise a UsageError if a header, a URL or a command contains a key; it shows what to pass instead."""
    add_environment()
    for flag, text, masked_text in _masked_options(values):
        if masked_text == text:
            continue
        variable = next((f"${name}" for name, value in secret_variables().items() if value in text), "$NAME")
        advice = f"pass {flag} {shlex.quote(masked_text.replace(MASK, variable))}"
        if flag == "--command":
            advice = f'use "{variable}" with --shell or in a script'
        raise UsageError(
            f"{flag} contains a key, which other users can see and which would be recorded; put it in an environment variable "
            f"and {advice}"
        )


def _masked_options(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the flags that may contain keys, each with its value, and with the same value without keys."""
    for text in values.get("header", ()):
        name, _, value = text.partition(":")
        scheme, _, credentials = value.strip().rpartition(" ")
        masked_value = mask_literal(value.strip(), name)
        if masked_value == MASK and scheme and " " not in scheme and credentials:
            masked_value = f"{scheme} {MASK}"
        yield "--header", f"{name}: {value.strip()}", f"{name}: {masked_value}"
    for name in _URLS:
        if name in values:
            yield f"--{name.replace('_', '-')}", values[name], mask_literal(values[name])
    if "command" in values:
        line: str = values["command"]
        with suppress(ValueError):  # An open quote is reported where the command is parsed; a shell may accept it.
            words = shlex.split(line)
            yield "--command", shlex.join(words), shlex.join(mask_literal_words(words))
        if "shell" in values:
            yield "--command", line, mask_literal(line)
