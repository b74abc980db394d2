"""Built-in scorers of outputs; most compare with the expected output.

Each returns a reason where the value needs one. A case that lacks the expected output is an error, not a
wrong output. Scorers of an agent's steps are in `runner.scorers.trajectory`, the LLM judge is in
`runner.scorers.llm_judge`.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from evaljournal.replay.runs.trajectory import tool_calls
from evaljournal.replay.text import as_text
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.data.fingerprint import fingerprint_function
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.scorers import NAMES, trajectory
from evaljournal.runner.scorers.bounded_search import is_quick, search
from evaljournal.runner.scorers.local import (
    LocalScorerWithParameters,
    MissingExpected,
    bool_score,
    difference_of,
    quote,
    require_expected,
)
from evaljournal.runner.scorers.scorer import MAX_SECONDS, Score, ScorerInput
from evaljournal.runner.scorers.trajectory import (
    MaxSteps,
    ToolArgs,
    ToolsInOrder,
    ToolsUsed,
    max_steps,
    tool_args,
    tools_in_order,
    tools_used,
)

if TYPE_CHECKING:
    from evaljournal.runner.scorers.command import CommandScorer
    from evaljournal.runner.scorers.llm_judge import Judge

__all__ = [
    "NAMES",
    "CloseTo",
    "MaxSteps",
    "MissingExpected",
    "Regex",
    "Similarity",
    "ToolArgs",
    "ToolsInOrder",
    "ToolsUsed",
    "close_to",
    "command",
    "contains",
    "exact",
    "f1",
    "iexact",
    "json_equal",
    "judge",
    "max_steps",
    "one_of",
    "regex",
    "scorer_by_name",
    "similarity",
    "tool_args",
    "tool_calls",
    "tools_in_order",
    "tools_used",
]

_WORD: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")
"""A word; in Chinese, Japanese and Korean, a character."""

_NUMBER: Final = re.compile(
    r"(?<![\d.])[-+−]?(?:(?:\d{1,3}(?:[,\u00a0\u202f]\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
)
"""A number, with or without thousands separators; a dash after a digit is not a sign."""


_MAX_PRODUCT: Final = 200_000**2
"""Maximum product of the lengths of two texts; at this size, their similarity takes about a second."""


class TextTooLong(Fatal):
    """The texts are too long to be compared in a second or two."""


class LocalScorer:
    """A scorer that makes no calls."""

    is_local: ClassVar[bool] = True
    definition: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, function: Callable[[Any, Any], Score]) -> None:
        functools.update_wrapper(self, function)
        self.__name__: str = function.__name__
        self._function = function
        self.fingerprint = fingerprint_function(function)

    def __call__(self, output: Any, expected: Any) -> Score:
        """Score an output."""
        return self._function(output, require_expected(expected))


@LocalScorer
def exact(output: Any, expected: Any) -> Score:
    """Pass if the output equals the expected output."""
    difference = difference_of(output, expected)
    type_hint = "" if isinstance(output, str) == isinstance(expected, str) else " (one is text, the other is not)"
    return bool_score(difference is None, f"{difference}{type_hint}")


def _fold(value: Any) -> str:
    return " ".join(as_text(value).casefold().split())


@LocalScorer
def iexact(output: Any, expected: Any) -> Score:
    """Pass if the output equals the expected output, ignoring case and extra whitespace."""
    return bool_score(_fold(output) == _fold(expected), f"output is {quote(output)}, expected {quote(expected)}")


@LocalScorer
def contains(output: Any, expected: Any) -> Score:
    """Pass if the output contains the expected output, or each of a list of them, ignoring case and extra whitespace."""
    text = _fold(output)
    answers = expected if isinstance(expected, list) else [expected]
    if not all(_fold(answer) for answer in answers):
        raise MissingExpected("an expected output is empty, so every output would pass; remove it from the case")
    missing_answers = [answer for answer in answers if _fold(answer) not in text]
    return bool_score(not missing_answers, f"missing: {', '.join(map(quote, missing_answers))}")


@LocalScorer
def one_of(output: Any, expected: Any) -> Score:
    """Pass if the output equals one of a list of expected outputs; texts ignoring case and extra whitespace."""
    if not isinstance(expected, list):
        raise MissingExpected(f"one_of needs a list of expected outputs, not {quote(expected)}")
    is_match = any(
        difference_of(output, answer) is None or (isinstance(answer, str) and _fold(output) == _fold(answer))
        for answer in expected
    )
    return bool_score(is_match, f"output is {quote(output)}, expected one of {len(expected)} values")


@LocalScorer
def json_equal(output: Any, expected: Any) -> Score:
    """Pass if output and expected output are the same JSON value; texts are parsed as JSON."""
    if isinstance(expected, str):
        with suppress(ValueError):  # It is not JSON and is compared as text.
            expected = read_json(expected)
    if isinstance(output, str):
        try:
            output = read_json(output)
        except ValueError as exc:
            if not isinstance(expected, str):
                return Score(value=False, reason=f"the output is not JSON: {exc}")
    difference = difference_of(output, expected)
    return bool_score(difference is None, difference or "")


@attrs.frozen
class Regex(LocalScorerWithParameters):
    """Passes if a pattern is found in the output."""

    __name__ = "regex"

    pattern: str | None = None
    """None: the expected output is the pattern."""
    _seconds: float = attrs.field(default=MAX_SECONDS, kw_only=True, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except (re.error, RecursionError, OverflowError) as exc:
                raise _invalid_pattern_error(self.pattern, exc) from exc

    def with_time_limit(self, seconds: float) -> "Regex":
        """Return this scorer with another time limit."""
        return attrs.evolve(self, seconds=seconds)

    def is_slow(self, scorer_input: ScorerInput) -> bool:
        """Return whether the search runs in another process."""
        pattern = scorer_input.case.expected if self.pattern is None else self.pattern
        return isinstance(pattern, str) and not is_quick(pattern, len(as_text(scorer_input.output)))

    def __call__(self, output: Any, expected: Any) -> Score:
        """Score an output; raise an error if the search exceeds its time limit."""
        pattern = str(require_expected(expected)) if self.pattern is None else self.pattern
        try:
            is_match = search(pattern, as_text(output), self._seconds)
        except re.error as exc:
            raise _invalid_pattern_error(pattern, exc) from exc
        return bool_score(is_match, "" if is_match else f"no match for {quote(pattern)}")


def _invalid_pattern_error(pattern: str, exc: Exception) -> UsageError:
    return UsageError(f"regex: {quote(pattern)} is not a valid regular expression: {exc}")


@attrs.frozen
class CloseTo(LocalScorerWithParameters):
    """Passes if the number in the output is close to the expected one."""

    __name__ = "close_to"

    relative: float = 1e-6
    """Tolerance as a fraction of the expected number."""
    absolute: float = 0.0
    """Absolute tolerance; the larger of the two tolerances applies."""

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise UsageError(f"close_to({name}={value!r}): expected a number, 0 or more")

    def __call__(self, output: Any, expected: Any) -> Score:
        """Score an output."""
        target = _number(require_expected(expected))
        if target is None:
            raise MissingExpected(f"close_to needs a number as expected output, not {quote(expected)}")
        number = _number(output)
        if number is None:
            return Score(value=False, reason=f"no number in {quote(output)}")
        is_close = math.isclose(number, target, rel_tol=0, abs_tol=max(self.absolute, self.relative * abs(target)))
        return bool_score(is_close, f"{number:g} differs from {target:g} by {abs(number - target):g}")


def _number(value: Any) -> float | None:
    """Return a number, or the last number in a text, where final answers are."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    numbers = _NUMBER.findall(value) if isinstance(value, str) else []
    if not numbers:
        return None
    number = float(re.sub(r"[,\u00a0\u202f]", "", numbers[-1]).replace("−", "-"))
    return number if math.isfinite(number) else None


@LocalScorer
def f1(output: Any, expected: Any) -> Score:
    """Return the F1 score of the words in common, from 0 to 1; of a list of expected outputs, the best counts."""
    answers = expected if isinstance(expected, list) else [expected]
    return Score(max((_f1(as_text(output), as_text(answer)) for answer in answers), default=0.0))


def _f1(output: str, expected: str) -> float:
    words, expected_words = Counter(_WORD.findall(output.casefold())), Counter(_WORD.findall(expected.casefold()))
    if not words or not expected_words:
        return float(words == expected_words)
    return 2 * (words & expected_words).total() / (words.total() + expected_words.total())


@attrs.frozen
class Similarity(LocalScorerWithParameters):
    """Normalized Levenshtein similarity to the expected output, from 0 to 1; needs the extra `similarity`."""

    __name__ = "similarity"

    def __attrs_post_init__(self) -> None:
        try:
            import rapidfuzz  # noqa: F401, PLC0415  # an extra
        except ImportError as exc:
            raise UsageError("similarity needs rapidfuzz: pip install 'evaljournal[similarity]'") from exc

    def __call__(self, output: Any, expected: Any) -> Score:
        """Score an output; of a list of expected outputs, the most similar counts."""
        from rapidfuzz.distance import Levenshtein  # noqa: PLC0415  # an extra

        answers = require_expected(expected) if isinstance(expected, list) else [require_expected(expected)]
        text = as_text(output)
        if len(text) * sum(len(as_text(answer)) for answer in answers) > _MAX_PRODUCT:
            raise TextTooLong(f"an output of {len(text):,} characters is too long for similarity; use f1 or exact")
        return Score(max((Levenshtein.normalized_similarity(text, as_text(answer)) for answer in answers), default=0.0))


def judge(model: str, **options: Any) -> "Judge":
    """Return an LLM judge: `rubric`, `choices` and `timeout` are its own options, others those of `Chat`.

    Its temperature is 0 by default, if the API is known to take one for the model.
    """
    from evaljournal.runner.calls.chat import Chat  # noqa: PLC0415  # it imports the HTTP client
    from evaljournal.runner.scorers.llm_judge import Judge  # noqa: PLC0415  # most scorers need no HTTP client

    judge_options = {name: options.pop(name) for name in ("rubric", "choices", "timeout") if name in options}
    chat = Chat(model, **options)
    if "temperature" not in options and chat.api.takes_temperature(chat.model_name):
        chat = attrs.evolve(chat, temperature=0.0)
    return Judge(chat=chat, **judge_options)


def command(line: str | Sequence[str], files: Sequence[str] = ()) -> "CommandScorer":
    """Return a scorer that executes a command in a copy of the output's workspace; exit code 0 passes.

    `files` are the files and directories that are restored from the original before, such as the tests.
    """
    from evaljournal.runner.scorers.command import CommandScorer  # noqa: PLC0415  # most scorers start no process

    return CommandScorer(line, files)


regex, close_to, similarity = Regex, CloseTo, Similarity
PLAIN_SCORERS: Final[Mapping[str, LocalScorer]] = {
    scorer.__name__: scorer for scorer in (exact, iexact, contains, one_of, json_equal, f1)
}


def scorer_by_name(text: str) -> Callable[..., Any] | None:
    """Return a built-in scorer by its name, with an argument after a colon where it takes one; None if the name is unknown.

    `exact`, `regex:^[A-Z]`, `close_to:0.01` (a fraction of the expected number), `similarity`, `tools_used:search,book`.
    """
    name, colon, argument = text.partition(":")
    if name in PLAIN_SCORERS or name == "similarity":
        if colon:
            raise UsageError(f"{text!r}: {name} takes no argument; remove the colon and what follows")
        return PLAIN_SCORERS[name] if name in PLAIN_SCORERS else similarity()
    if name == "command" and colon:
        return command(argument)
    if name == "regex":
        return regex(argument if colon else None)
    if name == "close_to":
        try:
            return close_to(float(argument)) if colon else close_to()
        except ValueError:
            raise UsageError(f"{text!r}: close_to takes a number, such as close_to:0.01") from None
    return trajectory.scorer_by_name(name, argument if colon else None)
