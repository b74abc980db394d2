"""Regular expressions of JavaScript match in Python where they match in Node."""

import json
import random
import re
import subprocess

import pytest

from evaljournal import UsageError
from evaljournal.integrations.promptfoo.scorer.javascript_regex import code_units, to_python
from tests.programs import find_program

PRINTABLE_ATOMS = r"""
a b c x _ 0 . ^ $ \d \w \s \D \W \S \b \B [abc] [^abc] [a-c] [\w-a] [] [^] [\s\S] \. \/ \u0061 \x61 \u{2} \cA
\0 \t { } {,2} {2} ] - [-a] [a-] [\b] [\d-] [[a] [a&&b] 😀 [😀] é É \p{L} \k<x> \1 \2 \k \A \Z \- [\-a]
[^\d\s] [\W] [\S] [\D] [^\S] " ' # / ~ \a \e \8 \01 (?i) (?P<x>a)
"""
ATOMS = (*PRINTABLE_ATOMS.split(), "\n", " ", "\u2028", "\u00a0")
QUANTIFIERS = ("", "", "", "", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,}", "{0,2}", "{1,2}?", "++", "{,1}", "{2,1}")
GROUPS = ("(", "(?:", "(?=", "(?!", "(?<x>", "(?<y>", "(?<=", "(?<!")
TEXTS = (*'abcAéÉ😀0_9-{}][^$.xupL"/\\12,', "\n", "\r", " ", "\u2028", "\u00a0", "\0", "\x01", "\u3000", "\ufeff", "aa", "k<x>")
NOT_SUPPORTED = ("look-behind", "there is no group", "the escape", "a backreference to a repeated group", "nothing to repeat")
PROGRAM = """
const lines = require('fs').readFileSync(0, 'utf8').trim().split('\\n').map(JSON.parse);
console.log(JSON.stringify(lines.map(([pattern, flags, text]) => {
  try { return new RegExp(pattern, flags).test(text); } catch { return null; }
})));
"""


def random_pattern(rng: random.Random, depth: int = 0) -> str:
    """Return a pattern, which may be invalid."""
    pattern = ""
    for _ in range(rng.randint(1, 4)):
        number = rng.random()
        if number < 0.2 and depth < 3:  # levels
            pattern += f"{rng.choice(GROUPS)}{random_pattern(rng, depth + 1)})"
        else:
            pattern += "|" if number < 0.27 else rng.choice(ATOMS)  # some alternatives
        pattern += rng.choice(QUANTIFIERS)
    return pattern


def our_match(pattern: str, flags: str, text: str) -> bool | str | None:
    """Return whether a pattern matches; None if it is invalid, and why if it is not supported."""
    try:
        python_pattern = to_python(pattern, unicode=flags == "u")
    except UsageError as exc:
        problem = str(exc).partition("supported: ")[2]
        return problem if problem.startswith(NOT_SUPPORTED) else None
    return re.search(python_pattern, text if flags == "u" else code_units(text)) is not None


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=pytest.mark.exhaustive)])
def test_random_patterns(count: int) -> None:
    """A pattern matches where it does in Node, is invalid in both, or is rejected for a stated reason."""
    rng = random.Random(count)  # reproducible
    cases = [
        (random_pattern(rng), rng.choice(("", "", "u")), "".join(rng.choices(TEXTS, k=rng.randint(0, 8)))) for _ in range(count)
    ]
    program = find_program("node", package="nodejs")
    lines = "\n".join(map(json.dumps, cases))
    process = subprocess.run([program, "-e", PROGRAM], input=lines, capture_output=True, text=True, check=True, timeout=600)
    results = [(case, expected, our_match(*case)) for case, expected in zip(cases, json.loads(process.stdout), strict=True)]
    compared = [expected for _, expected, ours in results if isinstance(ours, bool)]

    assert [] == [result for result in results if result[1] != result[2] and not isinstance(result[2], str)]
    assert len(compared) > count / 5
    assert {True, False} == set(compared)
