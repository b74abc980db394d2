r"""Regular expressions of JavaScript, translated to those of Python's `re`.

`to_python` returns a pattern that matches a text exactly where JavaScript's does, or raises a UsageError: a pattern is never
searched with another meaning. Without the flag `u`, JavaScript matches UTF-16 code units: `code_units` converts the text.
Not supported: lookbehind of variable length, `\p{…}`, octal escapes, and backreferences to a group inside a repeated one.
"""

import functools
import re
from typing import Final

from evaljournal.runner.errors import UsageError

_SPACES: Final = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_NOT_SPACES: Final = (
    r"\x00-\x08\x0e-\x1f!-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\ufefe"
    r"\uff00-\U0010ffff"
)
_CLASSES: Final = {
    "d": "0-9",
    "D": r"\x00-/:-\U0010ffff",
    "w": "0-9A-Z_a-z",
    "W": r"\x00-/:-@\[-\^`{-\U0010ffff",
    "s": _SPACES,
    "S": _NOT_SPACES,
}
"""Class escape → the inside of a class with the same characters."""
_CONTROLS: Final = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "0": "\0"}
_SPECIAL: Final = {".": r"[^\n\r\u2028\u2029]", "|": "|", "^": "^", "$": r"\Z"}
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??")
_GROUP: Final = re.compile(r"\((?:\?(?:[:=!]|<[=!]|<(?P<name>[A-Za-z_$][\w$]*)>))?")
_HEX: Final = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})")
_CODE_POINT: Final = re.compile(r"u\{([0-9A-Fa-f]{1,8})\}")
_GROUPS: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\((?!\?)|\(\?<(?P<name>[A-Za-z_$][\w$]*)>", re.DOTALL)
"""Whatever may contain or start a capturing group."""
_SYNTAX_CHARACTERS: Final = "^$\\.*+?()[]{}|/"
"""The characters that may be escaped in a pattern with the flag `u`."""
_MAX_LENGTH: Final = 10_000
"""Maximum characters of a pattern; its groups take quadratic time."""


def code_units(text: str) -> str:
    """Return a text in which each character outside the basic plane is a pair of surrogates, as in JavaScript."""
    if text.isascii() or max(text) <= "\uffff":
        return text
    data = text.encode("utf-16-le", "surrogatepass")
    return "".join(map(chr, memoryview(data).cast("H")))


@functools.lru_cache(1_000)
def to_python(pattern: str, *, unicode: bool = False) -> str:
    """Return the pattern for `re`; with `unicode`, JavaScript's flag `u` is set."""
    if len(pattern) > _MAX_LENGTH:
        raise _error(pattern, f"it has {len(pattern):,} characters; at most {_MAX_LENGTH:,} are allowed")
    translation = _Translation(pattern if unicode else code_units(pattern), unicode=unicode)
    try:
        python_pattern = translation.translate()
        re.compile(python_pattern)
    except (re.error, RecursionError, OverflowError) as exc:
        raise _error(pattern, str(exc)) from exc
    return python_pattern


def _error(pattern: str, problem: str) -> UsageError:
    return UsageError(f"the regular expression {pattern[:200]!r} is invalid or not supported: {problem}")


class _Translation:
    def __init__(self, pattern: str, *, unicode: bool) -> None:
        self._pattern = pattern
        self._unicode = unicode
        self._position = 0
        groups = [match["name"] for match in _GROUPS.finditer(pattern) if match[0][0] == "("]
        self._group_count = len(groups)
        names = [name for name in groups if name is not None]
        if len(set(names)) < len(names):
            raise _error(pattern, "two groups have the same name")
        self._numbers = {name: groups.index(name) + 1 for name in names}
        self._captures = 0
        self._open_groups: list[tuple[int, set[int], bool]] = []
        """Number of each open group, 0 if it captures nothing, the groups closed before it, and whether it can be repeated."""
        self._closed_groups: set[int] = set()
        self._repeated_groups: set[int] = set()
        """Closed groups inside a repeated one, which JavaScript resets before each repetition."""

    def translate(self) -> str:
        """Return the translated pattern; `(?a)` makes a word boundary ASCII, as in JavaScript."""
        output = ["(?a)"]
        while self._position < len(self._pattern):
            char = self._pattern[self._position]
            if char == "(":
                output.append(self._open_group())
                continue

            can_repeat, closed_before = True, set(self._closed_groups)
            if char == ")":
                can_repeat, closed_before = self._close_group()
                output.append(")")
            elif char == "\\":
                can_repeat = self._pattern[self._position + 1 : self._position + 2] not in {"b", "B"}
                output.append(self._escape())
            elif char == "[":
                output.append(self._class())
            else:
                self._position += 1
                can_repeat = char not in "|^$"
                output.append(_SPECIAL[char] if char in _SPECIAL else self._literal(char))

            self._add_quantifier(output, closed_before, can_repeat=can_repeat)

        if self._open_groups:
            raise _error(self._pattern, "a group is not closed")
        return "".join(output)

    def _open_group(self) -> str:
        match = _GROUP.match(self._pattern, self._position)
        assert match is not None
        if self._pattern.startswith("(?", self._position) and match[0] == "(":
            raise _error(self._pattern, f"unknown group at {self._pattern[match.start() : match.start() + 5]!r}")

        is_capture = match[0] == "(" or match["name"] is not None
        self._captures += is_capture
        number = self._captures if is_capture else 0
        self._open_groups.append((number, set(self._closed_groups), is_capture or match[0] == "(?:"))
        self._position = match.end()
        return "(" if is_capture else match[0]

    def _close_group(self) -> tuple[bool, set[int]]:
        """Return whether the group can be repeated, and the groups that were closed before it."""
        if not self._open_groups:
            raise _error(self._pattern, "unmatched ')'")
        number, closed_before, can_repeat = self._open_groups.pop()
        if number:
            self._closed_groups.add(number)
        self._position += 1
        return can_repeat, closed_before

    def _literal(self, char: str) -> str:
        if char in "*+?" or (char == "{" and (self._unicode or _QUANTIFIER.match(self._pattern, self._position - 1))):
            raise _error(self._pattern, f"nothing to repeat before {char!r}")
        if self._unicode and char in "]}":
            raise _error(self._pattern, f"{char!r} must be escaped")
        return _escaped(char)

    def _add_quantifier(self, output: list[str], closed_before: set[int], *, can_repeat: bool) -> None:
        match = _QUANTIFIER.match(self._pattern, self._position)
        if match is None:
            return
        if not can_repeat:
            raise _error(self._pattern, f"nothing to repeat before {match[0]!r}")
        self._repeated_groups |= self._closed_groups - closed_before
        output[-1] += match[0]
        self._position = match.end()
        if self._pattern[self._position : self._position + 1] in {"*", "+", "?"}:
            raise _error(self._pattern, f"nothing to repeat before {self._pattern[self._position]!r}")

    def _escape(self) -> str:
        """Return the translation of an escape outside a class."""
        tail = self._pattern[self._position + 1 :]
        if not tail:
            raise _error(self._pattern, "it ends with a backslash")
        char = tail[0]
        if char in _CLASSES:
            self._position += 2
            return f"[{_CLASSES[char]}]"
        if char in "bB":
            self._position += 2
            return r"\b" if char == "b" else r"(?!\b)"
        if char == "k" and (self._numbers or self._unicode):
            name = re.match(r"k<([^>]*)>", tail)
            if name is None or name[1] not in self._numbers:
                raise _error(self._pattern, r"\k names no group")
            self._position += 1 + name.end()
            return self._reference(self._numbers[name[1]])
        if char in "123456789":
            digits = re.match("[0-9]+", tail)
            assert digits is not None
            if int(digits[0]) > self._group_count:
                raise _error(self._pattern, f"there is no group {digits[0]}")
            self._position += 1 + digits.end()
            return self._reference(int(digits[0]))
        return _escaped(self._character_escape())

    def _reference(self, number: int) -> str:
        """Return a backreference; one to a group without a match, or that is still open, matches the empty text."""
        if number not in self._closed_groups:
            return "(?:)"
        if number in self._repeated_groups:
            raise _error(self._pattern, "a backreference to a repeated group")
        return rf"(?:(?({number})\{number}|))"

    def _character_escape(self) -> str:
        """Return the character of an escape, and move after it."""
        tail = self._pattern[self._position + 1 : self._position + 12]
        char = tail[:1]
        if not char:
            raise _error(self._pattern, "it ends with a backslash")
        if (match := _HEX.match(tail)) or (self._unicode and (match := _CODE_POINT.match(tail))):
            self._position += 1 + match.end()
            code = int(next(group for group in match.groups() if group), 16)
            if code > 0x10FFFF:  # noqa: PLR2004
                raise _error(self._pattern, f"{match[0]!r} is not a character")
            return chr(code)
        if char == "c" and re.match("c[A-Za-z]", tail):
            self._position += 3
            return chr(ord(tail[1]) % 32)
        if char in _CONTROLS and not re.match("0[0-9]", tail):
            self._position += 2
            return _CONTROLS[char]
        if char.isdecimal() or char == "c" or (self._unicode and char not in _SYNTAX_CHARACTERS):
            raise _error(self._pattern, rf"the escape \{char}")
        self._position += 2
        return char

    def _class(self) -> str:
        self._position += 1
        is_negated = self._pattern.startswith("^", self._position)
        self._position += is_negated
        items: list[str] = []
        while (atom := self._class_atom()) is not None:
            after = self._pattern[self._position : self._position + 2]
            if after[:1] != "-" or after == "-]":
                items.append(atom if len(atom) > 1 else _escaped(atom))
                continue
            self._position += 1
            last = self._class_atom()
            if last is None:
                raise _error(self._pattern, "a class is not closed")
            if len(atom) == len(last) == 1:
                if atom > last:
                    raise _error(self._pattern, f"the range {atom}-{last} is out of order")
                items.append(f"{_escaped(atom)}-{_escaped(last)}")
            elif self._unicode:
                raise _error(self._pattern, "a class escape is the end of a range")
            else:  # The hyphen is itself.
                items += [item if len(item) > 1 else _escaped(item) for item in (atom, "-", last)]

        if not items:
            return r"[\x00-\U0010ffff]" if is_negated else "(?!)"
        return f"[{'^' if is_negated else ''}{''.join(items)}]"

    def _class_atom(self) -> str | None:
        """Return the next character of a class, or the inside of a class; None at its end."""
        char = self._pattern[self._position : self._position + 1]
        if not char:
            raise _error(self._pattern, "a class is not closed")
        if char != "\\":
            self._position += 1
            return None if char == "]" else char
        escape = self._pattern[self._position + 1 : self._position + 2]
        if escape in _CLASSES:
            self._position += 2
            return _CLASSES[escape]
        if escape == "b" or (escape == "-" and self._unicode):
            self._position += 2
            return "\b" if escape == "b" else "-"
        return self._character_escape()


def _escaped(char: str) -> str:
    if char.isascii() and char.isalnum():
        return char
    return rf"\u{ord(char):04x}" if char <= "\uffff" else rf"\U{ord(char):08x}"
