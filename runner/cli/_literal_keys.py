"""Reject keys in a header, URL or command on the command line: other users can see them, and they would be recorded."""

import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from runner.data.templates import Template
from runner.errors import UsageError
from runner.secret_shapes import MASK
from runner.secrets import add_environment, mask_literal, mask_literal_words, secret_variables

_URLS: Final = ("endpoint", "base_url", "judge_url")
_PART: Final = re.compile(r"""(?s)'(?P<literal>[^']*)'|"(?:\\.|[^"\\])*"|(?:\\.|[^'"\\])+|.""")
"""A part of a shell command: in single quotes, in double quotes, or unquoted."""


def reject_literal_keys(values: Mapping[str, Any]) -> None:
    """Raise a UsageError if a header, a URL or a command contains a key; it shows what to pass instead."""
    add_environment()
    for text in values.get("header", ()):
        name, _, value = text.partition(":")
        if mask_literal(value.strip(), name) != value.strip():
            scheme = value.strip().partition(" ")[0] if " " in value.strip() else ""
            raise _literal_key_error("--header", f"{name}: {scheme} {_variable(value)}".replace("  ", " "))
    for name in _URLS:
        url = values.get(name, "")
        if mask_literal(url) != url:
            raise _literal_key_error(f"--{name.replace('_', '-')}", mask_literal(url).replace(MASK, _variable(url)))
    if "command" in values:
        _check_command(values["command"], shell="shell" in values)


def _check_command(line: str, *, shell: bool) -> None:
    try:
        words = shlex.split(line)
    except ValueError:  # Reported where it is parsed; a shell may accept it.
        words = []
    masked_words = mask_literal_words(words)
    if masked_words != words or (shell and mask_literal(line) != line):
        variable = _variable(line)
        suggestion = _replace_keys(line, variable) if shell else _shell_command(words, masked_words, variable)
        raise _literal_key_error("--command", suggestion)


def _literal_key_error(flag: str, suggestion: str | None) -> UsageError:
    problem = f"{flag} contains a key, which other users can see and which would be recorded; put it in an environment variable"
    if suggestion is None:
        return UsageError(f"{problem} and write a script that uses the variable: {flag} ./SCRIPT")
    needs_shell = flag == "--command" and not suggestion.startswith("sh -c ")
    return UsageError(f"{problem} and pass {flag} {shlex.quote(suggestion)}{' --shell' if needs_shell else ''}")


def _variable(text: str) -> str:
    """Return the variable whose value is in a text, because the shell has replaced it; `$NAME` if there is none."""
    return next((f"${name}" for name, value in secret_variables().items() if value in text), "$NAME")


def _replace_keys(line: str, variable: str) -> str | None:
    """Return a shell command with a variable in place of its keys; None if that is not possible."""

    def replacement(part: re.Match[str]) -> str:
        if MASK not in part[0]:
            return part[0]
        if part["literal"] is not None:  # A shell expands nothing in single quotes.
            return _quote_word(part["literal"], variable)
        return _replace_mask(part[0], variable) if part[0].startswith('"') else part[0].replace(MASK, f'"{variable}"')

    suggestion = _PART.sub(replacement, mask_literal(line))
    try:
        words = shlex.split(suggestion)
    except ValueError:  # The mask replaced a closing quote.
        return None
    return suggestion if mask_literal_words(words) == words else None


def _shell_command(words: list[str], masked_words: list[str], variable: str) -> str | None:
    """Return the shell command for words with a variable in place of their keys; None if that is not possible.

    Fields are passed to it as arguments: in the command itself, a case could inject commands.
    """
    try:
        templates = [Template.parse(word, "") for word in masked_words]
    except UsageError:
        return None
    arguments = [word for word, template in zip(masked_words, templates, strict=True) if template.fields]
    if any(MASK in word for word in arguments):
        return None
    shell_words: list[str] = []
    for word, masked_word, template in zip(words, masked_words, templates, strict=True):
        text = masked_word if arguments else "".join(map(str, template.pieces))  # With arguments, words are templates again.
        if template.fields:
            shell_words.append(f'"${arguments.index(masked_word) + 1}"')
        else:
            shell_words.append(shlex.quote(text) if masked_word == word else _quote_word(text, variable))
    script = " ".join(shell_words)
    return shlex.join(["sh", "-c", script, "sh", *arguments]) if arguments else script


def _quote_word(masked_word: str, variable: str) -> str:
    """Return a word for a shell. Quotes start at the variable if possible: a quoted `NAME=…` would not set a variable."""
    prefix = masked_word.partition(MASK)[0]
    unquoted_part = prefix if re.fullmatch(r"[\w@%+=:,./-]*", prefix) else ""
    quoted_part = re.sub(r'([\\"$`])', r"\\\1", masked_word.removeprefix(unquoted_part))
    return f'{unquoted_part}"{_replace_mask(quoted_part, variable)}"'


def _replace_mask(masked_text: str, variable: str) -> str:
    """Replace the mask in a double-quoted text by a variable; more quotes end its name where a letter follows."""
    return re.sub(re.escape(MASK) + r"(?=\w)", f'{variable}""', masked_text).replace(MASK, variable)
