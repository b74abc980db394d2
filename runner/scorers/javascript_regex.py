r"""Regular expressions of JavaScript, translated to those of Python's `re`.

`to_python` returns a pattern that matches where JavaScript's does, or raises a UsageError. Not supported: lookbehind of
variable length, `\p{…}` and other escaped letters without a meaning, and octal escapes. A group inside a repeated one keeps its
last match for a backreference; JavaScript forgets it. Without the flag `u`, JavaScript matches UTF-16 code units: `code_units`
converts the text.
"""

import functools
import re
from typing import Final

from evaljournal.runner.errors import UsageError

_CLASSES: Final = {
    "d": "0-9",
    "D": r"\x00-/:-\U0010ffff",
    "w": "0-9A-Z_a-z",
    "W": r"\x00-/:-@\[-\^`{-\U0010ffff",
    "s": r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
    "S": (
        r"\x00-\x08\x0e-\x1f!-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\ufefe"
        r"\uff00-\U0010ffff"
    ),
}
"""Class escape → the inside of a class with the same characters."""
_CONTROLS: Final = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "0": "\0"}
_SPECIAL: Final = {".": r"[^\n\r\u2028\u2029]", "|": "|", "^": "^", "$": r"\Z", ")": ")"}
_ATOM: Final = r"(?:\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]{1,6}\}|c[A-Za-z]|0[0-9]|.)|[^\\])"
"""A character or an escape."""
_QUANTIFIER: Final = r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})"
_TOKEN: Final = re.compile(
    rf"""
    (?P<group>\((?!\?)|\(\?(?:[:=!]|<[=!]|<(?P<name>\w+)>))
  | (?P<quantifier>{_QUANTIFIER}\??)(?![*+?])
  | \[(?P<negation>\^?)(?P<class>(?:\\.|[^\]\\])*)\]
  | \\(?P<reference>[1-9][0-9]*|k<(?P<referenced>\w+)>)
  | \\(?P<boundary>[bB])
  | (?P<atom>(?!{_QUANTIFIER}|[(\[]){_ATOM})
  | (?P<unknown>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_RANGE: Final = re.compile(rf"({_ATOM})(?:-({_ATOM}))?", re.DOTALL)


def code_units(text: str) -> str:
    """Return a text in which each character outside the basic plane is a pair of surrogates, as in JavaScript."""
    if text.isascii() or max(text) <= "\uffff":
        return text
    data = text.encode("utf-16-le", "surrogatepass")
    return "".join(map(chr, memoryview(data).cast("H")))


@functools.lru_cache(1_000)
def to_python(pattern: str, *, unicode: bool = False) -> str:
    """Return the pattern for `re`; with `unicode`, JavaScript's flag `u` is set."""
    try:
        units = pattern if unicode else code_units(pattern)
        python_pattern = _TOKEN.sub(functools.partial(_translate, unicode=unicode), units)
        re.compile(python_pattern)
    except (re.error, RecursionError, OverflowError) as exc:
        raise UsageError(f"the regular expression {pattern[:200]!r} is invalid or not supported: {exc}") from exc
    return python_pattern


def _translate(token: re.Match[str], *, unicode: bool) -> str:
    match token.lastgroup:
        case "group":
            return f"(?P<{token['name']}>" if token["name"] else token["group"]
        case "quantifier":
            return token["quantifier"]
        case "class":
            return _class(token["class"], is_negated=bool(token["negation"]), unicode=unicode)
        case "reference":
            group = token["referenced"] or token["reference"]
            reference = f"(?P={group})" if token["referenced"] else rf"\{group}"
            return f"(?:(?({group}){reference}|))"  # A group without a match is the empty text.
        case "boundary":
            return r"(?a:\b)" if token["boundary"] == "b" else r"(?!(?a:\b))"
        case "atom":
            atom = token["atom"]
            inside = _SPECIAL.get(atom) or _inside(atom, unicode=unicode)
            return f"[{inside}]" if atom[1:] in _CLASSES else inside
        case _:
            raise re.error(f"unknown syntax at {token.string[token.start() : token.start() + 5]!r}")


def _class(content: str, *, is_negated: bool, unicode: bool) -> str:
    if not content:
        return r"[\x00-\U0010ffff]" if is_negated else "(?!)"
    items = ""
    for first, last in _RANGE.findall(content):
        hyphen = r"\-" if {first[1:], last[1:]} & _CLASSES.keys() else "-"
        items += _inside(first, unicode=unicode) + (hyphen + _inside(last, unicode=unicode) if last else "")
    return f"[{'^' if is_negated else ''}{items}]"


def _inside(atom: str, *, unicode: bool) -> str:
    """Return a character, or a class escape, as it is written inside a class."""
    escape = atom[1:]
    if escape in _CLASSES:
        return _CLASSES[escape]
    if not escape:
        char = atom
    elif escape[0] in "xu" and escape[1:] and (unicode or "{" not in escape):
        char = chr(int(escape[1:].strip("{}"), 16))
    elif escape[0] == "c" and escape[1:]:
        char = chr(ord(escape[1]) % 32)
    elif escape in _CONTROLS or escape == "b":
        char = _CONTROLS.get(escape, "\b")
    elif len(escape) == 1 and not (escape.isascii() and escape.isalnum()):
        char = escape
    else:
        raise re.error(f"the escape {atom}")
    return char if char.isascii() and char.isalnum() else rf"\u{ord(char):04x}" if char <= "\uffff" else rf"\U{ord(char):08x}"
