"""The scorer `assertions`: what it accepts, its verdicts, and what it gets from the engine."""

from pathlib import Path
from typing import Any

import pytest
from orjson import loads

from evaljournal import Case, Retry, Score, UsageError, note, rescore, scorers
from evaljournal.integrations.promptfoo.scorer.json_checks import TooComplex, javascript_text
from evaljournal.journal.events import Noted, ScoringFailed, TrialScored
from evaljournal.replay import load
from tests.runs import define_real, events, run_real
from tests.security.growth import FACTOR, LINEAR, growth
from tests.server import Server

NO_SERVER = "http://127.0.0.1:1/v1"


def case_with(assertions: Any) -> Case[str, None]:
    """Return a case with assertions."""
    return Case(name="c", input="question", metadata={"assert": assertions})


def passes(output: Any, *assertions: dict[str, Any], threshold: float | None = None) -> bool:
    """Return the verdict of an output."""
    scorer, case = scorers.assertions(), case_with({"assert": list(assertions), "threshold": threshold})
    scorer.check(case)
    verdict: Any = scorer(output, case, 0.25, 0.01)
    return bool(verdict["pass"].value)


@pytest.mark.parametrize(
    ("output", "assertion"),
    [
        ("1", {"type": "equals", "value": 1.0}),
        ('{"b": [1], "a": null}', {"type": "equals", "value": {"a": None, "b": [1.0]}}),
        ({"a": 1.0}, {"type": "equals", "value": '{"a":1}'}),
        ("It is Lima.", {"type": "contains", "value": "Lima"}),
        ("it is lima", {"type": "icontains-all", "value": "LIMA, is"}),
        ('say "x, y"', {"type": "contains-any", "value": '"x, y", z'}),
        ("Lima", {"type": "starts-with", "value": "Li"}),
        ("a\n", {"type": "not-regex", "value": "a$"}),
        ("😀", {"type": "regex", "value": "^..$"}),
        ("[1]", {"type": "is-json", "value": {"type": "array", "items": {"type": "integer"}}}),
        ("Dear {name},", {"type": "contains-json"}),
        ('x {"a": 1} {"b": 2}', {"type": "contains-json", "value": {"required": ["b"]}}),
        ("kitten", {"type": "levenshtein", "value": "sitting", "threshold": 3}),
        ("x", {"type": "latency", "threshold": 250}),
        ("x", {"type": "cost", "threshold": 0.01}),
    ],
)
def test_types(output: Any, assertion: dict[str, Any]) -> None:
    """Each type passes where promptfoo passes, and its negation fails."""
    name = str(assertion["type"])
    negated_type = name.removeprefix("not-") if name.startswith("not-") else f"not-{name}"

    assert passes(output, assertion)
    assert not passes(output, {**assertion, "type": negated_type})


def test_verdict() -> None:
    """All assertions must pass, or the weighted mean must reach the threshold; weight 0 cannot fail; an empty list passes."""
    good, bad = {"type": "equals", "value": "x"}, {"type": "equals", "value": "y"}

    assert not passes("x", good, bad)
    assert passes("x", good, bad, threshold=0.5)
    assert not passes("x", good, {**bad, "weight": 2}, threshold=0.5)
    assert passes("x", good, {**bad, "weight": 0})
    assert passes("x", {"type": "assert-set", "assert": [good, bad], "threshold": 0.5})
    assert not passes("x", {"type": "assert-set", "assert": [good, bad]}, good)
    assert passes("x")


def test_metrics() -> None:
    """A metric is the weighted mean of its assertions, those in sets included."""
    good, bad = {"type": "equals", "value": "x", "metric": "m"}, {"type": "equals", "value": "y", "metric": "m"}
    case = case_with([good, {"type": "assert-set", "assert": [{**bad, "weight": 2}], "metric": "set", "weight": 3}])

    assert {"pass": False, "score": 0.25, "m": 1 / 7, "set": 0.0} == {
        name: score.value for name, score in scorers.assertions()("x", case, 0.0, None).items()
    }


@pytest.mark.parametrize(
    ("assertions", "problem"),
    [
        ("[", "unexpected end"),
        (7, "expected a list of assertions"),
        ([7], "an object with a type"),
        ([{"type": "similar", "value": "x"}], "unknown assertion type"),
        ([{"type": "equals", "value": "x", "thresold": 1}], "unexpected key 'thresold'"),
        ([{"type": "equals"}], "needs a value"),
        ([{"type": "contains", "value": ""}], "must be a text"),
        ([{"type": "contains-any", "value": '"x'}], "not closed"),
        ([{"type": "regex", "value": "(?<=a*)b"}], "look-behind"),
        ([{"type": "regex", "value": "("}], "not closed"),
        ([{"type": "is-json", "value": "x"}], "must be a JSON schema"),
        ([{"type": "is-json", "value": {"type": "text"}}], "invalid at $.type"),
        ([{"type": "is-json", "value": {"minContains": 1}}], "unknown keyword 'minContains'"),
        ([{"type": "is-json", "value": {"$ref": "http://127.0.0.1:1/schema"}}], "unknown reference"),
        ([{"type": "is-json", "value": {"pattern": r"\p{L}"}}], "the escape"),
        ([{"type": "latency"}], "needs a threshold"),
        ([{"type": "latency", "threshold": "fast"}], "threshold must be a number"),
        ([{"type": "equals", "value": "x", "weight": -1}], "0 or more"),
        ([{"type": "equals", "value": "x", "metric": "pass"}], "other than pass"),
        ([{"type": "python", "value": "os.system"}], "unknown function"),
        ([{"type": "llm-rubric", "value": "polite"}], "needs a judge"),
        ([{"type": "assert-set", "assert": [{"type": "assert-set", "assert": []}]}], "cannot contain"),
    ],
)
def test_invalid_assertions(assertions: Any, problem: str) -> None:
    """Invalid assertions are errors before a run starts; nothing in them is executed or fetched."""
    with pytest.raises(UsageError) as raised:
        scorers.assertions().check(case_with(assertions))

    assert problem in str(raised.value)


def test_column_is_required() -> None:
    """A case without the column is an error: a mistyped name must not pass all outputs."""
    with pytest.raises(UsageError, match="no column 'assert'"):
        scorers.assertions().check(Case(name="c", input="x"))


def test_functions() -> None:
    """A function returns a bool, a number, a Score or promptfoo's mapping; one that raises an exception fails."""

    def mapping(output: str, metadata: dict[str, Any]) -> dict[str, Any]:
        return {"pass": output == "x", "score": 0.5, "reason": "half", "named_scores": {"part": 0.25, "assert": len(metadata)}}

    async def number() -> float:
        return 0.4

    def broken() -> bool:
        raise KeyError("x")

    def plain(output: str) -> Score:
        return Score(output == "x", "not x")

    scorer = scorers.assertions(functions={"mapping": mapping, "number": number, "broken": broken, "plain": plain})

    def result(**assertion: Any) -> list[Any]:
        case = case_with([{"type": "python", **assertion}])
        scorer.check(case)
        verdict: Any = scorer("x", case, 0.0, None)
        return [verdict["pass"].value, verdict["score"].value, verdict["pass"].reason]

    assert [True, 0.5, ""] == result(value="mapping")
    assert [False, 0.5, "python: half"] == result(value="mapping", threshold=0.6)
    assert [True, 0.4, ""] == result(value="number")
    assert [False, 0.4, "python: number returned '0.4'"] == result(value="number", threshold=0.5)
    assert [False, 0.0, "python: broken: KeyError: 'x'"] == result(value="broken")
    assert [False, 0.0, "not-python: plain returned 'true'"] == result(type="not-python", value="plain")


def test_graded_assertions(server: Server, tmp_path: Path) -> None:
    """A reply that cannot be read is retried, without the assertions that are graded already; `not-` negates each type."""
    replies = "reply:Well. Y,reply:maybe,reply:Hm. N,reply:(b) more,reply:(D) differs"
    judge = scorers.judge("m", base_url=server.url("graded", replies, "v1"))
    case = case_with(
        [
            {"type": "model-graded-closedqa", "value": "names Lima"},
            {"type": "not-model-graded-closedqa", "value": "is rude"},
            {"type": "not-factuality", "value": "Lima", "scores": {"B": 0}},
            {"type": "factuality", "value": "Quito", "prompt": "{output} or {ideal}?", "metric": "facts"},
        ]
    )
    evaluation = define_real(lambda question: question, [case], name="graded")
    evaluation.score(retry=Retry(errors=1, base_delay=0.01))(scorers.assertions(judge=judge))
    run_real(evaluation, tmp_path / "run")
    prompts = [loads(request["body"])["messages"][-1]["content"] for request in server.requests("graded")]

    assert {"assertions.pass": False, "assertions.score": 0.75, "assertions.facts": 0.0} == {
        event.scorer: event.value for event in events(tmp_path / "run", TrialScored)
    }
    assert ["names Lima", "is rude", "is rude", "Lima", "question or Quito?"] == [
        next(text for text in ("names Lima", "is rude", "question or Quito?", "Lima") if text in prompt) for prompt in prompts
    ]
    assert 5 == sum(event.name == "evaljournal.judge" for event in events(tmp_path / "run", Noted))


@pytest.mark.parametrize(
    ("assertion", "problem"),
    [
        ({"type": "llm-rubric", "value": "polite", "prompt": "no field"}, "has no field"),
        ({"type": "llm-rubric", "value": "polite", "prompt": "{output} {missing}"}, "no field {missing}"),
        ({"type": "llm-rubric", "value": "polite", "prompt": [{"role": "user"}]}, "a list of messages"),
        ({"type": "llm-rubric", "value": {"a": 1}}, "must be a text"),
        ({"type": "factuality", "value": "x", "scores": {"F": 1}}, "categories A to E"),
        ({"type": "factuality", "value": "x", "scores": [1]}, "categories A to E"),
    ],
)
def test_invalid_graded_assertions(assertion: dict[str, Any], problem: str) -> None:
    """Their prompts and scores are checked before a run starts."""
    with pytest.raises(UsageError) as raised:
        scorers.assertions(judge=scorers.judge("m", base_url=NO_SERVER)).check(case_with([assertion]))

    assert problem in str(raised.value)


def test_a_judge_of_assertions_has_no_rubric() -> None:
    """Its own rubric would be ignored."""
    with pytest.raises(UsageError, match="no rubric and no choices"):
        scorers.assertions(judge=scorers.judge("m", base_url=NO_SERVER, rubric="{output}"))


def test_hostile_outputs() -> None:
    """An output with countless braces, deep nesting or a pattern that backtracks is a scorer error, not a hang."""
    contains_json = {"type": "contains-json", "value": {"required": ["x"]}}
    with pytest.raises(TooComplex, match="too many braces"):
        passes("{" * 50_000, contains_json)
    with pytest.raises(TooComplex, match="nested too deeply"):
        passes("[" * 100_000, {"type": "is-json"})


@pytest.mark.parametrize("keyword", ["allOf", "anyOf"])
@pytest.mark.parametrize("type_", ["is-json", "contains-json"])
def test_the_check_of_a_schema_has_a_time_limit(keyword: str, type_: str) -> None:
    """References that double at each level end with an error at the time limit of the scorer."""
    levels = 13
    definitions: dict[str, Any] = {
        f"level-{level}": {keyword: [{"$ref": f"#/definitions/level-{level + 1}"}] * 2} for level in range(levels)
    }
    definitions[f"level-{levels}"] = {"type": "object" if keyword == "allOf" else "string"}
    case = case_with([{"type": type_, "value": {"definitions": definitions, "$ref": "#/definitions/level-0"}}])
    scorer: Any = scorers.assertions()
    with pytest.raises(TooComplex, match="the JSON schema was not checked within the time limit"):
        scorer.with_time_limit(0.05)('{"a": 1}', case, 0.0, None)


def test_unique_items_are_compared_in_linear_time() -> None:
    """Objects in a list are not compared with each other."""

    def verdict(size: int) -> bool:
        items = [{"a": number} for number in range(size)]
        return passes(items, {"type": "is-json", "value": {"type": "array", "uniqueItems": True}})

    assert verdict(10)
    assert growth(verdict, 100, 100 * FACTOR) <= LINEAR


@pytest.mark.parametrize("items", ["[1, 1.0]", "[0, -0]", '[{"a": [1]}, {"a": [1]}]'])
def test_equal_items_are_not_unique(items: str) -> None:
    """Numbers are equal as in JavaScript, and lists and objects if all they contain is."""
    assert not passes(items, {"type": "is-json", "value": {"type": "array", "uniqueItems": True}})


def test_unique_items() -> None:
    """True is not 1, and a list is not an object."""
    output = "[true, 1, [1], [true], {}, [], null]"
    assert passes(output, {"type": "is-json", "value": {"type": "array", "uniqueItems": True}})


def test_text_of_outputs() -> None:
    """An output that is not text is compared as JavaScript writes it."""
    assert '{"a":[1,0.5,1e+21,"é",null,true]}' == javascript_text({"a": [1.0, 0.5, 1e21, "é", None, True]})


def test_latency_and_cost_in_a_run(tmp_path: Path) -> None:
    """Scorers get the latency and the cost that are recorded, also when they are re-scored; an unknown cost is an error."""

    def task(question: str) -> str:
        if question == "paid":
            note(usage={"cost": 0.25})
            note(usage={"cost": 0.5})
        return question

    def facts(latency: float, cost: float | None) -> dict[str, Score]:
        return {"latency": Score(latency), "cost": Score("unknown" if cost is None else cost)}

    budget = [{"type": "cost", "threshold": 0.75}]
    cases = [Case(name=name, input=name, metadata={"assert": budget}) for name in ("paid", "free")]
    evaluation = define_real(task, cases)
    evaluation.score(facts)
    evaluation.score(scorers.assertions())
    run_real(evaluation, tmp_path / "run")
    trials = load(tmp_path / "run").state.trials

    def scores() -> dict[tuple[str, str], Any]:
        return {(event.trial, event.scorer): event.value for event in events(tmp_path / "run", TrialScored)}

    expected = {
        ("paid", "facts.latency"): trials["paid"].latency,
        ("paid", "facts.cost"): 0.75,
        ("paid", "assertions.pass"): True,
        ("paid", "assertions.score"): 1.0,
        ("free", "facts.latency"): trials["free"].latency,
        ("free", "facts.cost"): "unknown",
    }
    assert expected == scores()
    assert ["evaljournal.MissingCost"] == [event.error for event in events(tmp_path / "run", ScoringFailed)]
    rescore(evaluation, tmp_path / "run", all_outputs=True)
    assert expected == scores()
    assert 2 * len(expected) == len(events(tmp_path / "run", TrialScored))
