"""Assertions: each case lists its own checks, as in promptfoo; an output has one verdict.

The column `assert` of a case is a list of assertions, or an object with that list and the `threshold` of the case:

    {"assert": [{"type": "icontains", "value": "lima"}, {"type": "not-regex", "value": "^As an AI"}], "threshold": 0.5}

It is data and never contains code: `python` names a function that the evaluation defines. All
assertions are checked when the cases are read. An assertion has a `type`, with `not-` before it to negate it, and, as the
type needs them, a `value` and a `threshold`; `weight` (default: 1; 0: it cannot fail) and `metric`, the name of a score.
An `assert-set` has assertions of its own, and passes like a case.

The scorer returns `pass`, the verdict, `score`, the weighted mean of the scores of the assertions, and a score for each metric.
A case passes if all its assertions do; with a threshold, if the score reaches it.

Texts, numbers, JSON and regular expressions mean what they mean in JavaScript: a text has UTF-16 code units, and numbers are
floats. Assertions that a model grades are in `integrations.promptfoo.scorer.graded_assertions`.
"""

import asyncio
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, ClassVar, Final, cast

import attrs

from evaljournal.integrations.promptfoo.scorer.javascript_regex import code_units, to_python
from evaljournal.integrations.promptfoo.scorer.json_checks import (
    EXTRA,
    InvalidJson,
    check_schema,
    is_same,
    javascript_text,
    objects_in,
    parse_json,
    parse_yaml,
    schema_error,
)
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.data.fingerprint import canonical, digest, fingerprint_function
from evaljournal.runner.data.templates import Fields, MissingField
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.scorers.bounded_search import search
from evaljournal.runner.scorers.local import quote
from evaljournal.runner.scorers.scorer import MAX_SECONDS, Score, ScorerInput, parameters_of

COLUMN: Final = "assert"
_SET: Final = "assert-set"
_KEYS: Final = frozenset({"type", "value", "threshold", "weight", "metric", "prompt", "scores"})
GRADED: Final = ("llm-rubric", "model-graded-closedqa", "factuality")
"""Types that a model grades."""
_FUNCTION_PARAMETERS: Final = ("output", "expected", "input", "metadata", "case", "latency", "cost")
_MAX_DISTANCE: Final = 5
"""The default threshold of `levenshtein`."""
_MAX_PRODUCT: Final = 200_000**2
"""Maximum product of the lengths of two texts whose distance is computed; it takes about a second."""


class MissingCost(Fatal):
    """The cost of the output is unknown."""


@attrs.frozen(kw_only=True)
class Assertion:
    """One assertion, or a set of them."""

    type: str
    """Without `not-`."""
    is_negated: bool = False
    value: Any = None
    threshold: float | None = None
    weight: float = 1.0
    metric: str = ""
    prompt: Any = None
    """The prompt of a model that grades: a text, or messages of a chat; None: the default of its type."""
    scores: Mapping[str, float] = attrs.field(factory=dict[str, float])
    """The scores of the categories of `factuality`."""
    assertions: "tuple[Assertion, ...]" = ()
    """Those of a set."""

    @property
    def label(self) -> str:
        return f"not-{self.type}" if self.is_negated else self.type


@attrs.frozen
class AssertionResult:
    is_passed: bool
    score: float
    reason: str = ""
    """Why it failed."""
    metrics: Mapping[str, tuple[float, float]] = attrs.field(factory=dict[str, tuple[float, float]])
    """Name → mean and weight."""


def assertions_of(case: Case) -> Assertion:
    """Return the assertions of a case as a set; raise a UsageError if they are invalid."""
    try:
        value = Fields(case).get(COLUMN)
        if isinstance(value, str):  # A cell of a CSV file.
            value = read_json(value)
        return _set_of({"assert": value} if isinstance(value, list) else value, "threshold", "assert")
    except MissingField as exc:
        raise UsageError(f"the case {case.name!r} has no column {COLUMN!r} with assertions") from exc
    except RecursionError as exc:
        raise UsageError(f"the assertions of case {case.name!r} are nested too deeply") from exc
    except ValueError as exc:
        raise UsageError(f"the assertions of case {case.name!r}: {exc}") from exc


def _set_of(value: Any, *keys: str) -> Assertion:
    if not isinstance(value, Mapping) or not isinstance(value.get("assert"), list):
        raise UsageError(f"expected a list of assertions, or an object with the list `assert`, not {quote(value)}")
    _check_keys(cast("Mapping[str, Any]", value), keys)
    return Assertion(
        type=_SET,
        threshold=_number(value, "threshold"),
        weight=_weight(value),
        metric=_metric(value),
        assertions=tuple(map(_assertion, value["assert"])),
    )


def _assertion(value: Any) -> Assertion:
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise UsageError(f"an assertion is an object with a type, not {quote(value)}")
    if value["type"] == _SET:
        inner_set = _set_of(value, "type", "threshold", "weight", "metric", "assert")
        if any(assertion.type == _SET for assertion in inner_set.assertions):
            raise UsageError("an assert-set cannot contain another one")
        return inner_set

    name = value["type"].removeprefix("not-")
    if name not in _CHECKS:
        raise UsageError(f"unknown assertion type {quote(value['type'])}; types: {', '.join(_CHECKS)}, {_SET}")
    _check_keys(cast("Mapping[str, Any]", value), _KEYS)
    assertion = Assertion(
        type=name,
        is_negated=value["type"] != name,
        value=_schema(value.get("value")) if name.endswith("-json") else value.get("value"),
        threshold=_number(value, "threshold"),
        weight=_weight(value),
        metric=_metric(value),
        prompt=value.get("prompt"),
        scores=value.get("scores") or {},
    )

    if name == "equals" and "value" not in value:
        raise UsageError("equals needs a value")
    try:
        _CHECKS[name][0](assertion)
    except UsageError as exc:
        raise UsageError(f"{assertion.label}: {exc}") from exc
    return assertion


def _schema(value: Any) -> Any:
    """Return a JSON schema; a text is JSON or YAML. None: there is none."""
    schema = parse_yaml(value) if isinstance(value, str) else value
    if value and not isinstance(schema, dict):
        raise UsageError(f"the value of is-json and contains-json must be a JSON schema, not {quote(value)}")
    return schema


def _check_keys(value: Mapping[str, Any], keys: Iterable[str]) -> None:
    if unknown_keys := [key for key in value if key not in keys]:
        raise UsageError(f"unexpected key {unknown_keys[0]!r} in an assertion; keys: {', '.join(sorted(keys))}")


def _number(value: Mapping[str, Any], key: str) -> float | None:
    number = value.get(key)
    if number is not None and (isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number)):
        raise UsageError(f"{key} must be a number, not {quote(number)}")
    return None if number is None else float(number)


def _weight(value: Mapping[str, Any]) -> float:
    weight = _number(value, "weight")
    if weight is not None and weight < 0:
        raise UsageError(f"weight must be 0 or more, not {weight:g}")
    return 1.0 if weight is None else weight


def _metric(value: Mapping[str, Any]) -> str:
    metric = value.get("metric") or ""
    if not isinstance(metric, str) or metric in {"pass", "score"}:
        raise UsageError(f"metric must be a name other than pass and score, not {quote(metric)}")
    return metric


def _require_text(assertion: Assertion) -> None:
    if not isinstance(assertion.value, str) or not assertion.value:
        raise UsageError(f"value must be a text, not {quote(assertion.value)}")


def _require_text_or_number(assertion: Assertion) -> None:
    if isinstance(assertion.value, bool) or not isinstance(assertion.value, int | float):
        _require_text(assertion)


def _require_list(assertion: Assertion) -> None:
    values = _values(assertion)
    if not isinstance(values, list) or any(isinstance(item, dict | list) for item in values):
        raise UsageError(f"value must be a list of texts, or a text with commas between them, not {quote(assertion.value)}")


def _require_pattern(assertion: Assertion) -> None:
    _require_text(assertion)
    to_python(assertion.value)


def _require_schema(assertion: Assertion) -> None:
    if assertion.type == "contains-json":
        parse_yaml("")  # It needs an extra.
    if assertion.value is not None:
        check_schema(assertion.value)


def _require_threshold(assertion: Assertion) -> None:
    if assertion.threshold is None:
        raise UsageError("it needs a threshold, in milliseconds" if assertion.type == "latency" else "it needs a threshold")


def _require_levenshtein(assertion: Assertion) -> None:
    if assertion.value != "":
        _require_text(assertion)
    try:
        import rapidfuzz  # noqa: F401, PLC0415  # an extra
    except ImportError as exc:
        raise UsageError(f"it needs rapidfuzz: {EXTRA}") from exc


_SPACES: Final = "\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(map(chr, range(0x2000, 0x200B)))
"""Whitespace in JavaScript."""
_ITEM: Final = re.compile(rf'[,{_SPACES}]*+(?:"((?:\\["\\]|""|[^"])*+)("?)[{_SPACES}]*|([^,]+))')
"""A text of a list: in quotation marks, with those in it doubled or escaped, or up to the next comma."""


def _values(assertion: Assertion) -> Any:
    """Return the texts of `contains-any` and `contains-all`; a text with commas is split, except inside quotation marks."""
    text = assertion.value
    if not isinstance(text, str) or not text:
        return text
    values: list[str] = []
    end = 0
    while match := _ITEM.match(text, end):
        quoted_text, closing_mark, plain_text = match.groups()
        if closing_mark == "":
            raise UsageError(f"a quotation mark is not closed in {quote(text)}")
        if text[match.end() : match.end() + 1] not in {"", ","}:
            raise UsageError(f"expected a comma after a quoted text in {quote(text)}")
        values.append(plain_text.strip(_SPACES) if quoted_text is None else re.sub(r'[\\"](["\\])', r"\1", quoted_text))
        end = match.end()
    return values


@attrs.frozen(kw_only=True)
class Evidence:
    """The output that is checked, and what its checks need."""

    scorer_input: ScorerInput
    text: str
    seconds: float
    """Time limit of a search, or of the check of a JSON schema."""
    functions: Mapping[str, Callable[..., Any]]


def _check_equals(assertion: Assertion, evidence: Evidence) -> bool:
    if assertion.value is not None and not isinstance(assertion.value, dict | list):
        return javascript_text(assertion.value) == evidence.text
    try:
        return is_same(assertion.value, parse_json(evidence.text))
    except InvalidJson:
        return False


def _check_contains(assertion: Assertion, evidence: Evidence) -> bool:
    text, values = evidence.text, _values(assertion) if assertion.type.endswith(("-any", "-all")) else [assertion.value]
    texts = map(javascript_text, values)
    if assertion.type.startswith("i"):
        text, texts = text.lower(), map(str.lower, texts)
    return (any if assertion.type.endswith("-any") else all)(value in text for value in texts)


def _check_regex(assertion: Assertion, evidence: Evidence) -> bool:
    return search(to_python(assertion.value), code_units(evidence.text), evidence.seconds)


def _check_is_json(assertion: Assertion, evidence: Evidence) -> bool | str:
    try:
        value = parse_json(evidence.text)
    except InvalidJson as exc:
        return f"the output is not JSON: {exc}"
    return True if assertion.value is None else schema_error(value, assertion.value, monotonic() + evidence.seconds) or True


def _check_contains_json(assertion: Assertion, evidence: Evidence) -> bool | str:
    error: str | None = "the output contains no JSON object"
    deadline = monotonic() + evidence.seconds
    for value in objects_in(evidence.text):
        error = None if assertion.value is None else schema_error(value, assertion.value, deadline)
        if error is None:
            break
    return error or True


def _check_levenshtein(assertion: Assertion, evidence: Evidence) -> bool | str:
    from rapidfuzz.distance import Levenshtein  # noqa: PLC0415  # an extra

    texts = code_units(evidence.text), code_units(assertion.value)
    if len(texts[0]) * len(texts[1]) > _MAX_PRODUCT:
        raise Fatal(f"an output of {len(texts[0]):,} characters is too long for levenshtein")
    distance = Levenshtein.distance(*texts)
    threshold = _MAX_DISTANCE if assertion.threshold is None else assertion.threshold
    return distance <= threshold or f"the distance is {distance}, the threshold {threshold:g}"


def _check_latency(assertion: Assertion, evidence: Evidence) -> bool | str:
    if evidence.scorer_input.latency is None:
        raise Fatal("an output of a batch has no latency; remove the assertion or run without --batch")
    milliseconds = evidence.scorer_input.latency * 1000
    assert assertion.threshold is not None
    return milliseconds <= assertion.threshold or f"it took {milliseconds:.0f} ms, the threshold is {assertion.threshold:g} ms"


def _check_cost(assertion: Assertion, evidence: Evidence) -> bool | str:
    cost = evidence.scorer_input.cost
    if cost is None:
        raise MissingCost("the cost of the output is unknown; the model needs a price, see `evaljournal prices`")
    assert assertion.threshold is not None
    return cost <= assertion.threshold or f"it cost ${cost:g}, the threshold is ${assertion.threshold:g}"


Check = Callable[[Assertion, Evidence], bool | str]
"""Returns whether an output fulfils an assertion that is not negated, or why it does not."""
_CHECKS: Final[Mapping[str, tuple[Callable[[Assertion], None], Check | None]]] = {
    "equals": (lambda _: None, _check_equals),
    **{
        f"{name}{suffix}": (_require_list if suffix else _require_text_or_number, _check_contains)
        for name in ("contains", "icontains")
        for suffix in ("", "-any", "-all")
    },
    "starts-with": (_require_text, lambda assertion, evidence: evidence.text.startswith(assertion.value)),
    "regex": (_require_pattern, _check_regex),
    "is-json": (_require_schema, _check_is_json),
    "contains-json": (_require_schema, _check_contains_json),
    "levenshtein": (_require_levenshtein, _check_levenshtein),
    "latency": (_require_threshold, _check_latency),
    "cost": (_require_threshold, _check_cost),
    **dict.fromkeys(("python", *GRADED), (_require_text, None)),
}
"""Type → the check of its parameters, and that of an output; None: a function or a model checks it."""
TYPES: Final = tuple(_CHECKS)
"""The types of assertions, without `assert-set`."""
_SLOW_TYPES: Final = frozenset({"regex", "is-json", "contains-json", "levenshtein"})
"""Types whose checks may take longer than a loop can be blocked."""


def leaves(assertion: Assertion) -> Iterator[Assertion]:
    """Yield the assertions of a set, and those of the sets in it."""
    for inner_assertion in assertion.assertions:
        if inner_assertion.type == _SET:
            yield from leaves(inner_assertion)
        else:
            yield inner_assertion


def _local_result(assertion: Assertion, evidence: Evidence) -> AssertionResult:
    if assertion.type == "python":
        return _function_result(assertion, evidence)
    check = _CHECKS[assertion.type][1]
    assert check is not None
    outcome = check(assertion, evidence)
    if (outcome is True) != assertion.is_negated:
        return AssertionResult(is_passed=True, score=1.0)
    value = "" if assertion.value is None else f"value {quote(assertion.value)}, "
    reason = outcome if isinstance(outcome, str) else f"{value}output {quote(evidence.text)}"
    return AssertionResult(is_passed=False, score=0.0, reason=reason)


def _function_result(assertion: Assertion, evidence: Evidence) -> AssertionResult:
    """Return the result of a function; one that raises an exception, or returns anything else, fails."""
    function = evidence.functions[assertion.value]
    arguments = {
        name: getattr(evidence.scorer_input if hasattr(evidence.scorer_input, name) else evidence.scorer_input.case, name)
        for name in parameters_of(function, assertion.value, _FUNCTION_PARAMETERS)
    }
    try:
        value = function(**arguments)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        return _result_of(value, assertion)
    except Exception as exc:  # noqa: BLE001  # the user's code
        return AssertionResult(is_passed=False, score=0.0, reason=f"{assertion.value}: {type(exc).__name__}: {exc}")


def _result_of(value: Any, assertion: Assertion) -> AssertionResult:
    """Return the result of a function that returned a bool, a number, a `Score`, a text with one, or promptfoo's mapping."""
    threshold, metrics, reason = assertion.threshold, dict[str, tuple[float, float]](), ""
    if isinstance(value, Score):
        value, reason = value.value, value.reason
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if isinstance(value, str):
        value = read_json(value) if value.startswith("{") else float(value)

    match value:
        case {"score": int() | float() as number, "pass": bool(is_passed)} | {
            "score": int() | float() as number,
            "pass_": bool(is_passed),
        }:
            score, reason = float(number), str(value.get("reason") or "")
            is_passed = is_passed and (threshold is None or score >= threshold)
            named_scores = value.get("named_scores") or value.get("namedScores") or {}
            metrics = {str(name): (float(mean), 1.0) for name, mean in named_scores.items()}
        case bool(is_passed):
            score = float(is_passed != assertion.is_negated)
        case int() | float():
            score = float(value)
            is_passed = score > 0 if threshold is None else score >= threshold
        case _:
            raise TypeError(f"it returned {quote(value)}, not a bool, a number or a mapping with pass and score")

    if not math.isfinite(score):
        raise ValueError(f"its score is {score}")

    is_passed = is_passed != assertion.is_negated
    default = f"{assertion.value} returned {quote(value)}"
    reason = "" if is_passed else default if assertion.is_negated else reason or default
    return AssertionResult(is_passed=is_passed, score=score, reason=reason, metrics=metrics)


def combine(assertion_set: Assertion, results: Mapping[int, AssertionResult]) -> AssertionResult:
    """Return the result of a set from those of the assertions in it, by their identity."""
    total = total_weight = 0.0
    sums: dict[str, list[float]] = {}
    reasons: list[str] = []
    is_passed = True
    for assertion in assertion_set.assertions:
        result = combine(assertion, results) if assertion.type == _SET else results[id(assertion)]
        weight = assertion.weight
        total += result.score * weight
        total_weight += weight

        means = {**result.metrics, **({assertion.metric: (result.score, 1.0)} if assertion.metric else {})}
        for name, (mean, inner_weight) in means.items():
            metric_sum = sums.setdefault(name, [0.0, 0.0])
            metric_sum[0] += mean * inner_weight * weight
            metric_sum[1] += inner_weight * weight

        if not result.is_passed and (weight or assertion.type == _SET):
            is_passed = False
            reasons.append(f"{assertion.label}: {result.reason}" if result.reason else assertion.label)

    score = total / total_weight if total_weight else 0.0
    if assertion_set.threshold is not None:
        is_passed = score >= assertion_set.threshold
        reasons.insert(0, f"the score is {score:.2f}, the threshold {assertion_set.threshold:g}")
    metrics = {name: (total / weight if weight else 0.0, weight) for name, (total, weight) in sums.items()}
    return AssertionResult(is_passed=is_passed, score=score, reason="" if is_passed else "; ".join(reasons), metrics=metrics)


Functions = Mapping[str, Callable[..., Any]] | Sequence[Callable[..., Any]]


def _by_name(functions: Functions) -> dict[str, Callable[..., Any]]:
    return dict(functions) if isinstance(functions, Mapping) else {function.__name__: function for function in functions}


@attrs.frozen(kw_only=True)
class Assertions:
    """Checks the assertions of each case."""

    __name__ = "assertions"
    can_grade: ClassVar[bool] = False

    functions: Mapping[str, Callable[..., Any]] = attrs.field(factory=dict[str, Callable[..., Any]], converter=_by_name)
    """The functions that `python` names; their parameters are those of a scorer."""
    _seconds: float = attrs.field(default=MAX_SECONDS, repr=False, eq=False)

    @property
    def is_local(self) -> bool:
        """Whether it only computes; functions may do anything."""
        return not self.functions and not self.can_grade

    @property
    def definition(self) -> dict[str, Any]:
        return {"functions": {name: fingerprint_function(function) for name, function in self.functions.items()}}

    @property
    def fingerprint(self) -> str:
        return digest(canonical([self.__name__, 1, self.definition], self.__name__))

    def with_time_limit(self, seconds: float) -> "Assertions":
        return attrs.evolve(self, seconds=seconds)

    def check(self, case: Case) -> None:
        """Raise a UsageError if the assertions of a case are invalid, or need a function or a judge that is not defined."""
        for assertion in leaves(assertions_of(case)):
            if assertion.type == "python":
                self._check_function(assertion.value, case)
            if assertion.type in GRADED and not self.can_grade:
                raise UsageError(f"case {case.name!r}: {assertion.label} needs a judge: --judge, or judge= in Python")

    def _check_function(self, name: str, case: Case) -> None:
        if name not in self.functions:
            names = ", ".join(self.functions) or "none"
            raise UsageError(f"case {case.name!r}: unknown function {quote(name)}; functions: {names}")
        parameters_of(self.functions[name], f"function {name!r}", _FUNCTION_PARAMETERS)

    def is_slow(self, scorer_input: ScorerInput) -> bool:
        """Return whether the checks of an output run in a thread."""
        return any(assertion.type in _SLOW_TYPES for assertion in leaves(assertions_of(scorer_input.case)))

    def local_results(self, assertion_set: Assertion, scorer_input: ScorerInput) -> dict[int, AssertionResult]:
        """Return the results of the assertions that no model grades, by their identity."""
        text = javascript_text(scorer_input.output)
        evidence = Evidence(scorer_input=scorer_input, text=text, seconds=self._seconds, functions=self.functions)
        local_assertions = [assertion for assertion in leaves(assertion_set) if assertion.type not in GRADED]
        return {id(assertion): _local_result(assertion, evidence) for assertion in local_assertions}

    def __call__(self, output: Any, case: Case, latency: float | None, cost: float | None) -> dict[str, Score]:
        assertion_set = assertions_of(case)
        results = self.local_results(assertion_set, ScorerInput(output, case, latency=latency, cost=cost))
        return scores_of(assertion_set, results)


def scores_of(assertion_set: Assertion, results: Mapping[int, AssertionResult]) -> dict[str, Score]:
    """Return the scores of a case: the verdict, the score and the metrics; a case without assertions passes."""
    result = combine(assertion_set, results) if assertion_set.assertions else AssertionResult(is_passed=True, score=1.0)
    metrics = {name: Score(mean) for name, (mean, _) in result.metrics.items()}
    return {"pass": Score(result.is_passed, result.reason), "score": Score(result.score), **metrics}
