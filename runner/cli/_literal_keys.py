"""Keys in a header, URL or command on the command line are rejected: other users see them, and they would be recorded."""

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
    masked = mask_literal_words(words)
    if masked != words or (shell and mask_literal(line) != line):
        suggestion = _with_variable_for_keys(line, _variable(line)) if shell else _shell_command(words, masked, _variable(line))
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


def _with_variable_for_keys(line: str, variable: str) -> str | None:
    """Return a shell command with a variable in place of its keys; None if that is not possible."""

    def replacement(part: re.Match[str]) -> str:
        if MASK not in part[0]:
            return part[0]
        if part["literal"] is not None:  # A shell expands nothing in single quotes.
            return _in_double_quotes(part["literal"], variable)
        return _with_variable(part[0], variable) if part[0].startswith('"') else part[0].replace(MASK, f'"{variable}"')

    suggestion = _PART.sub(replacement, mask_literal(line))
    try:
        words = shlex.split(suggestion)
    except ValueError:  # A closing quote was part of what was masked.
        return None
    return suggestion if mask_literal_words(words) == words else None


def _shell_command(words: list[str], masked: list[str], variable: str) -> str | None:
    """Return the shell command for words with a variable in place of their keys; None if that is not possible.

    Fields are passed to it as arguments: in the command itself, a case could inject commands.
    """
    try:
        templates = [Template.parse(word, "") for word in masked]
    except UsageError:
        return None
    arguments = [word for word, template in zip(masked, templates, strict=True) if template.fields]
    if any(MASK in word for word in arguments):
        return None
    shell_words: list[str] = []
    for word, without_key, template in zip(words, masked, templates, strict=True):
        text = without_key if arguments else "".join(map(str, template.pieces))  # With arguments, it is a template again.
        if template.fields:
            shell_words.append(f'"${arguments.index(without_key) + 1}"')
        else:
            shell_words.append(shlex.quote(text) if without_key == word else _in_double_quotes(text, variable))
    script = " ".join(shell_words)
    return shlex.join(["sh", "-c", script, "sh", *arguments]) if arguments else script


def _in_double_quotes(masked: str, variable: str) -> str:
    """Return a word for a shell. Quotes start at the variable if possible: a quoted `NAME=…` would not set a variable."""
    before, _, after = masked.partition(MASK)
    unquoted, quoted = (before, "") if re.fullmatch(r"[\w@%+=:,./-]*", before) else ("", before)
    escaped = re.sub(r'([\\"$`])', r"\\\1", quoted + MASK + after)
    return f'{unquoted}"{_with_variable(escaped, variable)}"'


def _with_variable(masked: str, variable: str) -> str:
    """Put a variable in place of the mask, in double quotes; more quotes end its name where a letter follows."""
    return re.sub(re.escape(MASK) + r"(?=\w)", f'{variable}""', masked).replace(MASK, variable)
