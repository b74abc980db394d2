"""Nunjucks templates with plain variables, `{{ name }}` and `{{ user.name }}`, as templates of evaljournal or as text.

Filters, loops, calls and expressions have no counterpart.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from evaljournal.integrations.promptfoo.project import MAX_BYTES, NotMapped
from evaljournal.integrations.promptfoo.scorer.json_checks import number_text

_OPENING: Final = re.compile(r"\{[{%#]")
_CLOSINGS: Final = {"{{": "}}", "{%": "%}", "{#": "#}"}
_OPEN_TAGS: Final = (("{%", "%"), ("{{", "}"), ("{#", "#"))
"""The openings of tags, and the character that must follow in the same line."""
_NAME: Final = r"[A-Za-z_$][\w$]*"
_VARIABLE: Final = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME}|\[\d+\]|\[(?:'[^'\]]+'|\"[^\"\]]+\")\])*)\s*")
_PART: Final = re.compile(rf"{_NAME}|\d+|'[^']+'|\"[^\"]+\"")
_KEYWORDS: Final = frozenset({"true", "false", "none", "null", "not", "and", "or", "if", "else", "in", "is", "loop"})

Piece = str | tuple[str, ...]
"""Literal text, or the path of a variable."""


def is_template(text: str) -> bool:
    """Return whether a text has tags; promptfoo takes a text with a tag that is not closed in its line literally."""
    return next(_tags(text), None) is not None and not any(map(_has_open_tag, text.split("\n")))


def _has_open_tag(line: str) -> bool:
    return any((start := line.rfind(opening)) >= 0 and closing not in line[start + 2 :] for opening, closing in _OPEN_TAGS)


def _tags(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each tag, in linear time: a closing that is missing is searched for only once."""
    position, unclosed = 0, set[str]()
    while match := _OPENING.search(text, position):
        opening, position = match[0], match.start() + 1
        end = -1 if opening in unclosed else text.find(_CLOSINGS[opening], match.end())
        if end < 0:
            unclosed.add(opening)
        else:
            position = end + 2
            yield match.start(), position


def pieces(text: str) -> list[Piece]:
    """Split a template; raise `NotMapped` if it has anything but plain variables."""
    if not is_template(text):
        return [text] if text else []
    parts: list[Piece] = []
    end = 0
    for start, tag_end in _tags(text):
        parts += [text[end:start]] if start > end else []
        end, tag = tag_end, text[start:tag_end]
        variable = _VARIABLE.fullmatch(tag[2:-2]) if tag.startswith("{{") else None
        path = tuple(part.strip("'\"") for part in _PART.findall(variable[1])) if variable else ()
        if not path or path[0] in _KEYWORDS:
            raise NotMapped(f"the template {_short(tag)} is not a plain variable")
        if path[0] in {"env", "_conversation"} or "." in "".join(path):
            raise NotMapped(f"the template {_short(tag)} has no counterpart")
        parts.append(path)
    return [*parts, text[end:]] if text[end:] else parts


def to_template(text: str) -> str:
    """Return a template of evaljournal."""
    return "".join(map(to_field, pieces(text)))


def to_field(piece: Piece) -> str:
    return escape_braces(piece) if isinstance(piece, str) else f"{{{'.'.join(piece)}}}"


def escape_braces(text: str) -> str:
    """Return a literal text as a template of evaljournal."""
    return text.replace("{", "{{").replace("}", "}}")


def map_texts(convert: Callable[[str], Any], value: Any) -> Any:
    """Return a JSON value with each text converted, except keys."""
    match value:
        case str():
            return convert(value)
        case dict():
            return {key: map_texts(convert, item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [map_texts(convert, item) for item in value]
        case _:
            return value


def to_templates(value: Any) -> Any:
    return map_texts(to_template, value)


def variables(value: Any) -> set[tuple[str, ...]]:
    """Return the paths of all variables in the texts of a JSON value."""
    paths: set[tuple[str, ...]] = set()
    map_texts(lambda text: paths.update(piece for piece in pieces(text) if isinstance(piece, tuple)), value)
    return paths


def render(text: str, values: Mapping[str, Any]) -> str:
    """Return the text with values of variables; one that is missing is empty, as in promptfoo."""
    parts: list[str] = []
    length = 0
    for piece in pieces(text):
        parts.append(piece if isinstance(piece, str) else text_of(value_at(values, piece), piece))
        length += len(parts[-1])
        if length > MAX_BYTES:
            raise NotMapped(f"the variables expand to more than {MAX_BYTES // 1_000_000} MB")
    return "".join(parts)


def value_at(values: Any, path: tuple[str, ...]) -> Any:
    """Return the value of a variable; None if it is missing."""
    for part in path:
        if isinstance(values, Mapping):
            values = cast("Mapping[str, Any]", values).get(part)
        elif isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        else:
            return None
    return values


def text_of(value: Any, path: tuple[str, ...]) -> str:
    """Return a value as Nunjucks prints it."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case str() | int():
            return str(value)
        case float():
            return number_text(value)
        case _:
            raise NotMapped(f"the variable {'.'.join(path)} is a list or a mapping, which has no text")


def _short(text: str) -> str:
    return " ".join(text.split())[:60]
