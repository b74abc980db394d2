"""Masking of secrets: values that the run sends, environment variables with secret names, and anything that looks like a key.

Error messages quote requests, and requests contain keys. A secret is replaced by `***`.
"""

import base64
import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import orjson

from evaljournal.journal.disk.files import MAX_SIZE
from evaljournal.journal.format.codec import exceeds
from evaljournal.runner.secrets.shapes import (
    MASK,
    is_secret_field,
    is_secret_name,
    mask_after_flag,
    mask_literals,
    mask_shapes,
    may_have_shape,
    without_variables,
)

MIN_LENGTH: Final = 8
"""Minimum characters of a value that is masked; shorter ones occur in texts by chance."""

MIN_LENGTH_IN_OUTPUTS: Final = 12
"""Minimum characters of a value that is masked in outputs, and of a variable that is secret by its name."""

_VARIABLE_NAME: Final = re.compile(
    r"(?i)(?:^|_)(?:(?:api)?keys?|tokens?|secrets?|passwords?|passwd|passphrase|credentials?|auth|cookies?|pat)(?:_|$)|_pwd$"
)
_HEADER: Final = re.compile(r"(([\w-]+):\s*(?:(?i:bearer|basic|token)\s+)?)(\S.*)", re.DOTALL)
_CHARACTERS: Final = re.compile(r"\\+|[^\\]", re.DOTALL)
_MAX_ESCAPES: Final = 7
"""Maximum backslashes before a character: JSON inside JSON inside JSON."""


class SecretValues:
    """A set of values, and one search for all of them."""

    def __init__(self) -> None:
        self.values: dict[str, None] = {}
        self._adding = threading.Lock()
        self._markers: tuple[str, ...] = ()
        self._pattern = re.compile(r"(?!)")

    def add(self, value: str) -> None:
        """Search for a value from now on; another thread that adds the same one may rely on that, too."""
        if value in self.values:
            return
        with self._adding:  # Otherwise a thread could replace the search by one without the value of another.
            values = sorted([*self.values, value], key=len, reverse=True)
            forms = [form for any_value in values for form in _forms(any_value)]
            markers = (max(re.findall(r"[A-Za-z0-9]+", form), key=len, default="") for form, _ in forms)
            self._pattern = re.compile("|".join(pattern for _, pattern in forms))
            self._markers = tuple(dict.fromkeys(markers))
            self.values[value] = None

    def may_be_in(self, text: str) -> bool:
        """Return whether a text may contain one of the values; false positives are rare."""
        for marker in self._markers:  # noqa: SIM110  # a generator expression is slower
            if marker in text:
                return True
        return False

    def mask(self, text: str) -> str:
        """Replace the values, including escaped and encoded ones."""
        return self._pattern.sub(MASK, text) if self.may_be_in(text) else text

    def spans(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for match in self._pattern.finditer(text)] if self.may_be_in(text) else []

    def __bool__(self) -> bool:
        return bool(self.values)


def _forms(value: str) -> Iterator[tuple[str, str]]:
    """Yield the forms in which a value may occur, each with its pattern: escaped for JSON or a URL, and in base64."""
    yield value, "".join(map(_character_pattern, _CHARACTERS.findall(value)))
    content = value.encode(errors="surrogatepass")
    for offset in range(3):  # Its position in the encoded bytes; characters that depend on other bytes are omitted.
        encoded_text = base64.b64encode(bytes(offset) + content).decode().rstrip("=")
        form = encoded_text[(0, 2, 3)[offset] : len(encoded_text) - bool((offset + len(content)) % 3)]
        yield form, "".join(map(_character_pattern, form)).replace(re.escape("+"), "[+-]").replace("/", "[/_]")


def _character_pattern(part: str) -> str:
    """Return the pattern of a character, or of several backslashes."""
    if part.isascii() and part.isalnum():
        return part
    if part.startswith("\\"):
        count = len(part)
        escaped_pattern = rf"(?i:(?:%5c){{{count}}}|(?:\\{{1,{_MAX_ESCAPES}}}u005c){{{count}}})"
        return rf"(?:{escaped_pattern}|\\{{{count},{count * (_MAX_ESCAPES + 1)}}})"
    code = "".join(f"%{byte:02x}" for byte in part.encode(errors="surrogatepass"))
    return rf"(?:\\{{0,{_MAX_ESCAPES}}}{re.escape(part)}|(?i:{code}|\\{{1,{_MAX_ESCAPES}}}u{ord(part):04x}))"


_all_secrets: Final = SecretValues()
"""Every secret value that this process masks."""
sent_secrets: Final = SecretValues()
"""The secrets that the runs of this process expand or send; also masked in outputs."""


def add_secret(value: str) -> None:
    """Mask a value that a run sends in all texts from now on; in outputs too, unless it is short."""
    if len(value) >= MIN_LENGTH:
        _all_secrets.add(value)
    if len(value) >= MIN_LENGTH_IN_OUTPUTS:
        sent_secrets.add(value)


def is_secret_variable(name: str, value: str) -> bool:
    """Return whether the value of a variable that a run expands is masked; a short one only if its name looks secret."""
    return is_secret_name(name) or len(value) >= MIN_LENGTH_IN_OUTPUTS


def secret_variables() -> dict[str, str]:
    """Return the environment variables whose names suggest secret values; paths of existing files are not secrets."""
    return {
        name: value
        for name, value in os.environ.items()
        if len(value) >= MIN_LENGTH_IN_OUTPUTS and _VARIABLE_NAME.search(name) and not os.path.exists(value)
    }


def environment_without_secrets() -> dict[str, str]:
    """Return the environment without the variables whose names suggest secret values, however short."""
    return {
        name: value
        for name, value in os.environ.items()
        if not is_secret_name(name) and (not _VARIABLE_NAME.search(name) or os.path.exists(value))
    }


def add_environment() -> None:
    """Mask the values of `secret_variables` in all texts from now on, except outputs."""
    for value in secret_variables().values():
        _all_secrets.add(value)


def mask(text: str) -> str:
    """Replace known secrets, and anything that looks like a key, a password or a token, by `***`."""
    return mask_shapes(_all_secrets.mask(text))


def mask_keys(text: str) -> str:
    """Replace known secrets, and what is certainly a key, in a text that a user wrote, such as a prompt."""
    return mask_shapes(_all_secrets.mask(text), certain=True)


def excerpt(text: str, length: int) -> str:
    """Return the beginning of a text with secrets masked, including one that continues beyond it."""
    masked_text = mask(text[: length + _MARGIN])
    return masked_text if len(text) <= length and len(masked_text) <= length else f"{masked_text[:length]}…"


_MARGIN: Final = 2_000
"""Characters after an excerpt in which a secret may end."""


def mask_literal(text: str, name: str = "") -> str:
    """Mask the secrets in a text that are not in variables; `name`: the header whose value the text is."""
    if is_secret_name(name) and text and without_variables(text) == text:
        return MASK
    return mask_literals(_all_secrets.mask(text))


def mask_literal_words(words: Sequence[str]) -> list[str]:
    """Mask the secrets in the words of a command line that are not in variables."""
    return [_mask_literal_word(flag, word) for flag, word in zip(["", *words], words, strict=False)]


def _mask_literal_word(flag: str, word: str) -> str:
    header = _HEADER.fullmatch(word) if flag in {"-H", "--header"} else None
    if header is not None:
        return f"{header[1]}{mask_literal(header[3], header[2])}"
    name, equals, value = word.partition("=")
    masked_value = mask_after_flag(name, value) if equals else value
    return mask_literal(mask_after_flag(flag, word) if masked_value == value else f"{name}={masked_value}")


def mask_header(name: str, value: str) -> str:
    """Return the value of a header as it may be recorded: variables are kept, secrets are masked."""
    return MASK if is_secret_name(name) and without_variables(value) == value else mask_shapes(value)


def mask_values(value: Any) -> Any:
    """Return a JSON value with the secrets in its texts masked, and those that the name of a field suggests."""
    try:  # Searching its JSON once is faster than searching each of its texts.
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
    except TypeError:
        return _mask_texts(value, mask)
    return _mask_texts(value, mask) if _all_secrets.may_be_in(text) or may_have_shape(text) else value


def mask_definition(value: Any) -> Any:
    """Mask a JSON value that is fingerprinted: the same on every machine, and only what is certainly a key."""
    return _mask_texts(value, partial(mask_shapes, certain=True))


def may_contain_secrets(text: str) -> bool:
    """Return whether a text must be searched for secrets; false positives are rare."""
    return _all_secrets.may_be_in(text) or may_have_shape(text)


def _mask_texts(value: Any, mask_text: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value).items()
        return {
            mask_text(str(key)): MASK
            if isinstance(item, str) and is_secret_field(str(key), item)
            else _mask_texts(item, mask_text)
            for key, item in fields
        }
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return [
            _mask_texts(mask_after_flag(flag, item) if isinstance(flag, str) and isinstance(item, str) else item, mask_text)
            for flag, item in zip([None, *items], items, strict=False)
        ]
    return value


def mask_output(output: Any) -> Any:
    """Return an output without the values that runs of this process send; the same object if it has none.

    A value may be split over the chunks of a stream: texts at the same path of a list's items are searched as one.
    """
    if not sent_secrets or exceeds(output, MAX_SIZE):  # The journal rejects what is larger.
        return output
    if isinstance(output, str):
        masked_output = sent_secrets.mask(output)
        return output if masked_output == output else masked_output
    if not isinstance(output, dict | list):
        return output

    texts_by_path = _texts(output)
    objects = (container for container in _containers(output) if isinstance(container, dict))
    keys = (key for fields in objects for key in fields)
    has_keys = any(isinstance(key, str) and sent_secrets.may_be_in(key) for key in keys)  # The journal rejects any other key.
    if not has_keys and not any(sent_secrets.spans(texts.text) for texts in texts_by_path.values()):
        return output

    try:
        masked_output = orjson.loads(orjson.dumps(output))
    except TypeError:  # It is not JSON or nested too deeply, and cannot be recorded.
        return output
    for texts in _texts(masked_output).values():
        texts.mask(sent_secrets.spans(texts.text))
    if has_keys:
        _mask_object_keys(masked_output)
    return masked_output


def _containers(value: Any) -> Iterator[Any]:
    """Yield the objects and lists in a JSON value; each may be changed before the next."""
    containers = [value]
    while containers:
        container = containers.pop()
        yield container
        items = container.values() if isinstance(container, dict) else container
        containers += [item for item in items if isinstance(item, dict | list)]


def _mask_object_keys(value: Any) -> None:
    """Mask the keys of the objects in a JSON value; keys that become equal get a number."""
    for container in _containers(value):
        if not isinstance(container, dict):
            continue
        fields: dict[str, Any] = {}
        for key, item in container.items():
            name = sent_secrets.mask(key)
            while name in fields:
                name += f"-{len(fields) + 1}"
            fields[name] = item
        container.clear()
        container.update(fields)


class _Texts:
    """The texts at one path of a JSON value."""

    def __init__(self) -> None:
        self.positions: list[tuple[Any, Any]] = []
        """Container, and key or index, of each text."""

    @property
    def text(self) -> str:
        return "".join(container[key] for container, key in self.positions)

    def mask(self, spans: list[tuple[int, int]]) -> None:
        """Mask spans of the joined text: the mask is put where a span begins."""
        offset = 0
        for container, key in self.positions:
            text, pieces, end_of_mask = container[key], list[str](), 0
            for begin, end in spans:
                start, stop = max(begin - offset, 0), min(end - offset, len(text))
                if start < len(text) and stop > 0:
                    pieces += [text[end_of_mask:start], MASK if begin >= offset else ""]
                    end_of_mask = stop
            container[key] = "".join([*pieces, text[end_of_mask:]])
            offset += len(text)


def _texts(value: dict[str, Any] | list[Any]) -> dict[tuple[Any, ...], _Texts]:
    """Collect the texts in a JSON value by the keys that lead to them; the items of a list have the same path."""
    texts: defaultdict[tuple[Any, ...], _Texts] = defaultdict(_Texts)
    containers: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while containers:
        path, container = containers.pop()
        children: list[tuple[tuple[Any, ...], Any]] = []
        is_list = isinstance(container, list)
        for key, item in enumerate(container) if is_list else container.items():
            item_path = path if is_list else (*path, key)
            if isinstance(item, str):
                texts[item_path].positions.append((container, key))
            elif isinstance(item, dict | list):
                children.append((item_path, item))
        containers += reversed(children)
    return texts
