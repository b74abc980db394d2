"""Scorers that most evaluations need: is it the expected answer, does it hold it, how near is it.

Each is called with an output and its case, and says why where a bare number would not. Those that compare need an expected
answer, and fail where the case has none: to score it as wrong would be to guess. What a scorer is, is `runner.scorers.scorer`;
a model as a judge is `runner.scorers.llm_judge`.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from replay.text import as_text
from runner.data.case import Case
from runner.data.exact_json import read_json
from runner.data.fingerprint import canonical, digest, fingerprint_function
from runner.errors import UsageError
from runner.retries.classify import Fatal
from runner.scorers.scorer import Score

if TYPE_CHECKING:
    from runner.scorers.llm_judge import Judge

_WORD: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")
"""A word; in scripts that do not part words, a character."""

_NUMBER: Final = re.compile(
    r"(?<![\d.])[-+−]?(?:(?:\d{1,3}(?:[,\u00a0\u202f]\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
)
"""A number, with or without marks between its thousands; a dash behind a digit is no sign."""

_SHOWN: Final = 80


class MissingExpected(Fatal):
    """The case has no expected answer to compare with."""


def _expected(case: Case) -> Any:
    if case.expected is None:
        raise MissingExpected(f"the case {case.name!r} has no expected answer, and this scorer compares with it")
    return case.expected


def _shown(value: Any) -> str:
    text = as_text(value)
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _verdict(*, passed: bool, why: str) -> Score:
    return Score(passed, "" if passed else why)


def _same(left: Any, right: Any) -> bool:
    """Whether two JSON values are the same: true is not 1, and 1 is 1.0."""
    return _difference(left, right, "") is None


def _difference(left: Any, right: Any, at: str) -> str | None:  # noqa: PLR0911  # one way out for each kind of value
    """Say where two JSON values first differ; None where they do not."""
    match left, right:
        case dict(), dict():
            for key in dict.fromkeys([*right, *left]):
                path = f"{at}.{key}" if at else str(key)
                if key not in left or key not in right:
                    return f"{path} is {'missing' if key not in left else 'too much'}"
                if found := _difference(left[key], right[key], path):
                    return found
            return None
        case ((list() | tuple()), (list() | tuple())):
            pairs = zip(left, right, strict=False)
            for place, (mine, theirs) in enumerate(pairs):
                if found := _difference(mine, theirs, f"{at}[{place}]"):
                    return found
            return None if len(left) == len(right) else f"{at or 'it'} is {len(left)} long, not {len(right)}"
        case _:
            if isinstance(left, bool) == isinstance(right, bool) and left == right:
                return None
            return f"{at or 'it'} is {_shown(left)}, not {_shown(right)}"


class LocalScorer:
    """A scorer that only computes."""

    is_local: ClassVar[bool] = True

    def __init__(self, function: Callable[[Any, Case], Score]) -> None:
        functools.update_wrapper(self, function)
        self.__name__: str = function.__name__
        self._function = function
        self.fingerprint = fingerprint_function(function)

    def __call__(self, output: Any, case: Case) -> Score:
        """Score an output."""
        return self._function(output, case)


@LocalScorer
def exact(output: Any, case: Case) -> Score:
    """Whether the output is the expected answer, to the letter."""
    expected = _expected(case)
    difference = _difference(output, expected, "")
    kinds = "" if isinstance(output, str) == isinstance(expected, str) else " (one is text, the other is not)"
    return _verdict(passed=difference is None, why=f"{difference}{kinds}")


def _folded(value: Any) -> str:
    return " ".join(as_text(value).casefold().split())


@LocalScorer
def iexact(output: Any, case: Case) -> Score:
    """Whether the output is the expected answer, but for capitals and blanks."""
    expected = _expected(case)
    return _verdict(passed=_folded(output) == _folded(expected), why=f"it is {_shown(output)}, not {_shown(expected)}")


@LocalScorer
def contains(output: Any, case: Case) -> Score:
    """Whether the output holds the expected answer, or each of a list of them, whatever their capitals."""
    expected = _expected(case)
    text = _folded(output)
    wanted = expected if isinstance(expected, list) else [expected]
    if not all(_folded(each) for each in wanted):
        raise MissingExpected(f"the case {case.name!r} expects an empty text, which every output holds")
    missing = [each for each in wanted if _folded(each) not in text]
    return _verdict(passed=not missing, why=f"it lacks {', '.join(map(_shown, missing))}")


@LocalScorer
def one_of(output: Any, case: Case) -> Score:
    """Whether the output is one of the expected answers, but for capitals and blanks around and in texts."""
    expected = _expected(case)
    if not isinstance(expected, list):
        raise MissingExpected(f"the case {case.name!r} expects {_shown(expected)}; one_of needs a list of answers")
    passed = any(_same(output, each) or (isinstance(each, str) and _folded(output) == _folded(each)) for each in expected)
    return _verdict(passed=passed, why=f"{_shown(output)} is none of the {len(expected)}")


@LocalScorer
def json_equal(output: Any, case: Case) -> Score:
    """Whether the output is the same JSON value as the expected one, in whatever order and spacing; texts are read as JSON."""
    expected = _expected(case)
    if isinstance(expected, str):
        with suppress(ValueError):  # Then it is a text, and to be compared as one.
            expected = read_json(expected)
    if isinstance(output, str):
        try:
            output = read_json(output)
        except ValueError as exc:
            if not isinstance(expected, str):
                return Score(value=False, reason=f"it is not JSON: {exc}")
    difference = _difference(output, expected, "")
    return _verdict(passed=difference is None, why=difference or "")


@attrs.frozen
class Regex:
    """Whether a pattern is found in the output."""

    __name__ = "regex"
    is_local: ClassVar[bool] = True

    pattern: str | None = None
    """None: the expected answer is the pattern."""

    def __attrs_post_init__(self) -> None:
        if self.pattern is not None:
            _compiled(self.pattern)

    @property
    def fingerprint(self) -> str:
        """Digest of the pattern."""
        return digest(canonical(["regex", 1, self.pattern], "the pattern"))

    def __call__(self, output: Any, case: Case) -> Score:
        """Look for it."""
        pattern = str(_expected(case)) if self.pattern is None else self.pattern
        return _verdict(passed=_compiled(pattern).search(as_text(output)) is not None, why=f"{_shown(pattern)} is not in it")


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as exc:
        raise UsageError(f"{pattern!r} is not a pattern: {exc}") from exc


@attrs.frozen(kw_only=True)
class CloseTo:
    """Whether the number in the output is near the expected one."""

    __name__ = "close_to"
    is_local: ClassVar[bool] = True

    relative: float = 1e-6
    """The most that it may be off, as a part of the expected number."""
    absolute: float = 0.0
    """Or as a number."""

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise UsageError(f"close_to({name}={value!r}): give a number, 0 or more")

    @property
    def fingerprint(self) -> str:
        """Digest of how near is near."""
        return digest(canonical(["close_to", 1, self.relative, self.absolute], "close_to"))

    def __call__(self, output: Any, case: Case) -> Score:
        """Compare."""
        expected = _number(_expected(case))
        if expected is None:
            raise MissingExpected(f"the case {case.name!r} expects {_shown(case.expected)}, which is no number")
        found = _number(output)
        if found is None:
            return Score(value=False, reason=f"there is no number in {_shown(output)}")
        near = math.isclose(found, expected, rel_tol=0, abs_tol=max(self.absolute, self.relative * abs(expected)))
        return _verdict(passed=near, why=f"{found:g} is {abs(found - expected):g} off {expected:g}")


def _number(value: Any) -> float | None:
    """Read a number: as it is, as a text that is one, or as the last that a text holds, where answers stand."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    found = _NUMBER.findall(value) if isinstance(value, str) else []
    if not found:
        return None
    number = float(re.sub(r"[,\u00a0\u202f]", "", found[-1]).replace("−", "-"))
    return number if math.isfinite(number) else None


@LocalScorer
def f1(output: Any, case: Case) -> Score:
    """How many words output and expected answer share (0 to 1, of a list of answers the best): the F1 of question answering."""
    expected = _expected(case)
    answers = expected if isinstance(expected, list) else [expected]
    return Score(max((_f1(as_text(output), as_text(each)) for each in answers), default=0.0))


def _f1(output: str, expected: str) -> float:
    said, wanted = Counter(_WORD.findall(output.casefold())), Counter(_WORD.findall(expected.casefold()))
    if not said or not wanted:
        return float(said == wanted)
    shared = (said & wanted).total()
    return 2 * shared / (said.total() + wanted.total())


@attrs.frozen
class Similarity:
    """How few letters would have to change to make the output the expected answer: 1 for none, 0 for all."""

    __name__ = "similarity"
    is_local: ClassVar[bool] = True

    def __attrs_post_init__(self) -> None:
        try:
            import rapidfuzz  # noqa: F401, PLC0415  # an extra: only for those who use it
        except ImportError as exc:
            raise UsageError("similarity needs rapidfuzz: pip install 'evaljournal[similarity]'") from exc

    fingerprint: ClassVar[str] = digest(b"similarity 1")

    def __call__(self, output: Any, case: Case) -> Score:
        """Compare; of a list of answers the nearest counts."""
        from rapidfuzz.distance import Levenshtein  # noqa: PLC0415  # the same

        expected = _expected(case)
        answers = expected if isinstance(expected, list) else [expected]
        near = (Levenshtein.normalized_similarity(as_text(output), as_text(each)) for each in answers)
        return Score(max(near, default=0.0))


def judge(model: str, **options: Any) -> "Judge":
    """Make a judge of a chat model: `rubric` and `choices` are its own, all else is said of `Chat`."""
    from runner.scorers.llm_judge import Judge  # noqa: PLC0415  # most scorers need no client
    from runner.tasks.chat import Chat  # noqa: PLC0415  # the same

    own = {name: options.pop(name) for name in ("rubric", "choices", "timeout") if name in options}
    return Judge(chat=Chat(model, **{"temperature": 0.0, **options}), **own)


def regex(pattern: str | None = None) -> Regex:
    """Make a scorer that looks for a pattern; without one, the expected answer is the pattern."""
    return Regex(pattern)


def close_to(relative: float = 1e-6, absolute: float = 0.0) -> CloseTo:
    """Make a scorer that compares numbers."""
    return CloseTo(relative=relative, absolute=absolute)


def similarity() -> Similarity:
    """Make a scorer of how alike two texts are; it needs the extra `similarity`."""
    return Similarity()


PLAIN: Final[Mapping[str, LocalScorer]] = {each.__name__: each for each in (exact, iexact, contains, one_of, json_equal, f1)}
"""Scorers that need nothing but their name."""


def named(text: str) -> LocalScorer | Regex | CloseTo | Similarity | None:
    """Find a scorer of ours by its name, with an argument behind a colon where it takes one; None if we have none of that name.

    `exact`, `regex:^[A-Z]`, `close_to:0.01` (a part of the expected number), `similarity`.
    """
    name, colon, argument = text.partition(":")
    if name in PLAIN or name == "similarity":
        if colon:
            raise UsageError(f"{text!r}: {name} takes no argument")
        return PLAIN[name] if name in PLAIN else similarity()
    if name == "regex":
        return regex(argument if colon else None)
    if name == "close_to":
        try:
            return close_to(float(argument)) if colon else close_to()
        except ValueError:
            raise UsageError(f"{text!r}: close_to takes a number, such as close_to:0.01") from None
    return None


NAMES: Final = (*PLAIN, "regex", "close_to", "similarity")
"""What `named` knows."""
