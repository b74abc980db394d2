"""Definitions of evaluations: settings, tasks, scorers and fingerprints are checked where they are written."""

import ast
import copy
import functools
import importlib.util
import inspect
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from evaljournal import Case, Retry, Score, UsageError, evaluation
from evaljournal.runner.data.fingerprint import _normalize, definition_of, fingerprint_function
from evaljournal.runner.definition.code_files import imports, relevant_source
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.scorers.scorer import ScorerInput
from tests.processes import TIMEOUT, run_command

CASES = [Case(name="fr", input="France?", expected="Paris")]


@evaluation(cases=CASES, slots=8, timeout=30, retry=Retry(errors=1), repeats=2, deadline=60)
async def capitals(question: str) -> str:
    """Name the capital."""
    await trio.lowlevel.checkpoint()
    return question.removesuffix("?")


async def answer(question: str) -> str:
    """Return the capital; a task that is not an evaluation yet."""
    return question


def plain(question: str) -> str:
    """Return the capital, as a plain function."""
    return question


async def test_an_evaluation_is_still_its_function() -> None:
    """An evaluation has the name, docstring and call of its function."""
    assert "France" == await capitals("France?")
    assert "capitals" == capitals.name == capitals.__name__  # type: ignore[attr-defined]  # as of any function
    assert "Name the capital." == capitals.__doc__
    assert "Paris" == evaluation(cases=CASES)(plain)("Paris")


def test_settings_are_kept() -> None:
    """Settings of the decorator are kept, with numbers as floats."""
    expected = Settings(slots=8, timeout=30.0, deadline=60.0, repeats=2, retry=Retry(errors=1))
    options: dict[str, Any] = {"policy": "fixed", "grace": 1.0, "fail_fast": True, "max_failures": 0.1, "durability": "os"}
    options |= {"limit_key": "model", "fail_under": ("exact=0.9",), "timeout": None}

    assert expected == capitals.settings
    assert Settings(**options) == evaluation(cases=CASES, **options)(plain).settings
    assert [Case(name="fr", input="France?", expected="Paris")] == [trial.case for trial in capitals.cases.select()]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slots": 0}, "slots=0: must be a whole number, 1 or more"),
        ({"slots": -1}, "slots=-1"),
        ({"slots": True}, "slots=True"),
        ({"slots": 2.5}, "slots=2.5"),
        ({"timeout": 0}, "timeout=0.0: must be a number of seconds above 0; None turns it off"),
        ({"timeout": -1}, "timeout=-1.0"),
        ({"timeout": float("inf")}, "timeout=inf"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"timeout": "30"}, "timeout='30'"),
        ({"timeout": True}, "timeout=True"),
        ({"deadline": 0}, "deadline=0.0"),
        ({"grace": False}, "grace=False: must be a number of seconds, 0 or more"),
        ({"repeats": 0}, "repeats=0"),
        ({"loop": "curio"}, "loop='curio': must be one of 'trio', 'asyncio'"),
        ({"loop": "trio"}, "loop='trio': 'plain' is not an `async def`"),
        ({"retry": 3}, "retry=3: must be a Retry"),
        ({"write_ahead": 1}, "write_ahead=1: must be a bool"),
        ({"policy": "best"}, "policy='best': must be one of 'adaptive'"),
        ({"fail_under": "exact"}, "fail_under='exact': expected SCORER=NUMBER"),
        ({"name": "a/b"}, "'a/b' is not a valid name"),
        ({"name": ""}, "'' is not a valid name"),
        ({"name": "..", "cases": CASES}, "'..' is not a valid name"),
        ({"cases": 3}, "cases must be a file or an iterable, not 3"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    """The error for an invalid setting names it and what is valid."""
    with pytest.raises(UsageError) as raised:
        evaluation(**{"cases": CASES, **settings})(plain)

    assert message in str(raised.value)


def test_an_unknown_attribute_is_reported_with_a_hint() -> None:
    """`@NAME.scorer` names the right form; other attributes are missing without a hint, even in a copy."""
    capitals: Any = evaluation(cases=CASES)(plain)
    with pytest.raises(AttributeError, match=r"no attribute 'scorer'; write @NAME\.score to add a scorer"):
        capitals.scorer(plain)

    assert not hasattr(copy.copy(capitals), "timeout")
    assert plain is copy.copy(capitals).task


def yields(question: str) -> Iterator[str]:
    """Yield the answer."""
    yield question


async def yields_too(question: str) -> AsyncIterator[str]:
    """Yield the answer, in an async generator."""
    yield question


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (3, "a task is a function, not 3"),
        (lambda: "no", "'<lambda>' is not a valid name"),
        (lambda question: question, "'<lambda>' is not a valid name"),
        (functools.partial(plain, "bound"), "task 'partial' is called with one argument, the case's input, but takes ()"),
        (yields, "task 'yields' is a generator"),
        (yields_too, "task 'yields_too' is a generator"),
        (capitals, "'capitals' is already an evaluation"),
    ],
)
def test_invalid_tasks_are_rejected(task: Any, message: str) -> None:
    """A task must be callable with the input alone, and return a value."""
    with pytest.raises(UsageError) as raised:
        evaluation(cases=CASES)(task)

    assert message in str(raised.value)


class CallableTask:
    """A task that is an object."""

    fingerprint = "its own"

    async def __call__(self, question: str) -> str:
        """Answer."""
        return question


@pytest.mark.parametrize(
    ("task", "is_async"),
    [(answer, True), (plain, False), (functools.partial(answer), True), (CallableTask(), True), (len, False)],
)
def test_async_is_recognized(task: Callable[[str], Any], *, is_async: bool) -> None:
    """Coroutine functions are recognized, even in a `partial` or as `__call__`."""
    assert is_async == evaluation(cases=CASES)(task).is_async


def test_scorers() -> None:
    """Scorers are kept in order, by name, with their own retries, and remain functions."""
    defined = evaluation(cases=CASES, retry=Retry(errors=7))(answer)

    @defined.score
    def exact(output: str, case: Case) -> bool:
        return bool(output == case.expected)

    @defined.score(name="judge", retry=Retry(errors=1))
    async def judged(output: str, case: Case) -> float:
        return len(output) / len(case.input)

    assert ["exact", "judge"] == list(defined.scorers)
    assert [Retry(errors=7), Retry(errors=1)] == [scorer.retry for scorer in defined.scorers.values()]
    assert [False, True] == [scorer.is_async for scorer in defined.scorers.values()]
    assert exact("Paris", CASES[0])
    assert fingerprint_function(judged) == defined.scorers["judge"].version


BY_NAME = "parameters are passed by name, any of: output, expected, input, metadata, case"


@pytest.mark.parametrize(
    ("scorer", "name", "message"),
    [
        (lambda result: result, "one", f"scorer 'one': parameter 'result' is unknown; {BY_NAME}"),
        (lambda output, reference: output == reference, "one", "parameter 'reference' is unknown"),
        (lambda output, /: output, "one", f"scorer 'one': parameter 'output' is positional-only; {BY_NAME}"),
        (max, "one", "scorer 'one': its parameters are unknown; wrap it in a function"),
        (lambda: True, "first", "has a scorer 'first' already"),
        (lambda: True, "a.b", "'a.b' is not a valid name"),
        (lambda: True, None, "'<lambda>' is not a valid name"),
        ("exact", "exact", "a scorer is a function, not 'exact'"),
    ],
)
def test_invalid_scorers_are_rejected(scorer: Any, name: str | None, message: str) -> None:
    """The parameters of a scorer must have known names, and its own name must be free."""
    defined = evaluation(cases=CASES)(answer)
    defined.score(name="first")(lambda: True)
    with pytest.raises(UsageError) as raised:
        defined.score(name=name)(scorer)

    assert message in str(raised.value)


def _some(case: Case, *args: Any, output: str, limit: int = 3, **kwargs: Any) -> Any:
    return case, args, output, limit, kwargs


CASE = Case(name="fr", input="France?", expected="Paris", metadata={"topic": "cities"})
OTHERS = {
    "expected": "Paris",
    "input": "France?",
    "metadata": {"topic": "cities"},
    "trajectory": [],
    "declined": False,
    "truncated": False,
    "latency": 0.0,
    "cost": None,
    "files": [],
    "diff": "",
}


@pytest.mark.parametrize(
    ("scorer", "expected"),
    [
        (lambda: "nothing", "nothing"),
        (lambda output: output, "Paris"),
        (lambda expected, output: (output, expected), ("Paris", "Paris")),
        (lambda input, metadata: (input, metadata), ("France?", {"topic": "cities"})),  # noqa: A006
        (lambda case: case, CASE),
        (lambda expected=None: expected, None),
        (lambda *args: args, ()),
        (
            lambda **values: sorted(values),
            sorted(["output", "case", *OTHERS]),
        ),
        (_some, (CASE, (), "Paris", 3, OTHERS)),
        (functools.partial(_some, limit=4), (CASE, (), "Paris", 4, OTHERS)),
    ],
)
def test_parameters_are_passed_by_name(scorer: Any, expected: Any) -> None:
    """A scorer gets the parameters that it names; those with a default keep it."""
    defined = evaluation(cases=[CASE])(answer)
    defined.score(name="s")(scorer)

    assert expected == defined.scorers["s"].call(ScorerInput("Paris", CASE))


def test_the_decorator_needs_cases() -> None:
    """`@evaluation` without parentheses or without cases is an error that shows what to write."""
    decorator: Any = evaluation
    for arguments, options in [((answer,), {}), ((), {}), ((answer,), {"cases": CASES})]:
        with pytest.raises(UsageError, match=r"write `@evaluation\(cases=…\)` above "):
            decorator(*arguments, **options)


def test_the_decorator_takes_every_setting() -> None:
    """What `run` takes as a setting, the decorator takes too; an unknown one is an error."""
    options: Any = {"only": "f*", "skip": ["x"], "limit": 1, "shuffle": True, "seed": 3, "retry": {"errors": 2}}
    settings = evaluation(cases=CASES, **options)(answer).settings

    assert Settings(only="f*", skip=["x"], limit=1, shuffle=True, seed=3, retry=Retry(errors=2)) == settings
    with pytest.raises(UsageError, match=r"write @NAME\.score above each of them"):
        evaluation(cases=CASES, scorers=[answer])  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="unknown setting 'slotz'; did you mean 'slots'"):
        evaluation(cases=CASES, slotz=4)  # type: ignore[call-arg]  # that is the point
    for option in ("id_key", "input_key", "expected_key", "nan"):
        with pytest.raises(UsageError, match=rf"{option!r} is an option of the dataset; write cases=Dataset\(…, {option}=…\)"):
            evaluation(cases=CASES, **cast("Any", {option: "x"}))


class Wrapped:
    """A number like numpy's."""

    def item(self) -> bool:
        """Return the number."""
        return True


@pytest.mark.parametrize(
    ("verdicts", "scores"),
    [
        (True, {"s": Score(value=True)}),
        (0.5, {"s": Score(0.5)}),
        (1, {"s": Score(1.0)}),
        (Fraction(1, 2), {"s": Score(0.5)}),
        (Wrapped(), {"s": Score(value=True)}),
        ("good", {"s": Score("good")}),
        (Score(0.5, "half"), {"s": Score(0.5, "half")}),
        ({"tone": "good", "facts": Score(1, "all")}, {"s.tone": Score("good"), "s.facts": Score(1.0, "all")}),
    ],
)
def test_verdicts(verdicts: Any, scores: dict[str, Score]) -> None:
    """Every kind of verdict becomes named scores; a bool stays a bool, and a number is a float."""
    defined = evaluation(cases=CASES)(answer)
    defined.score(name="s")(lambda: True)
    actual = defined.scorers["s"].scores(verdicts)

    assert scores == actual
    assert [type(score.value) for score in scores.values()] == [type(score.value) for score in actual.values()]


@pytest.mark.parametrize("verdicts", [None, [True], float("nan"), Decimal(1), {}, {3: True}, {"a": None}, {"a": {"b": True}}])
def test_invalid_verdicts_are_rejected(verdicts: Any) -> None:
    """The error for an invalid verdict names the scorer."""
    defined = evaluation(cases=CASES)(answer)
    defined.score(name="s")(lambda: True)
    with pytest.raises(UsageError, match="scorer 's"):
        defined.scorers["s"].scores(verdicts)


def task_of(directory: Path, source: str) -> Any:
    """Load the function `task` from a file with this source."""
    path = directory / f"module{len(list(directory.iterdir()))}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.task


SOURCE = '''
async def task(question):
    """Ask."""
    return f"""
# A title
{question}
"""
'''


@pytest.mark.parametrize(
    ("source", "same"),
    [
        (SOURCE, True),
        ("import functools\n\n\n" + SOURCE, True),
        (
            SOURCE.replace("(question):", "(question):  # of the user").replace("    return", "    # now\n\n    return  "),
            False,
        ),
        (
            SOURCE.replace("(question):", "(question):  # of the user  ").replace("    return", "    # now\n\n    return"),
            True,
        ),
        (SOURCE.replace("async", "def same(f):\n    return f\n\n@same\n@same\nasync"), True),
        (SOURCE.replace("A title", "a title"), False),
        (SOURCE.replace("# A title\n", ""), False),
        (SOURCE.replace("# A title", "# A title "), False),
        (SOURCE.replace("question", "query"), False),
    ],
)
def test_fingerprint_of_source(tmp_path: Path, source: str, *, same: bool) -> None:
    """Comments, decorators and blank lines do not change it; a letter of a prompt does, even after a #."""
    assert same == (fingerprint_function(task_of(tmp_path, SOURCE)) == fingerprint_function(task_of(tmp_path, source)))


def test_fingerprint_of_a_nested_function(tmp_path: Path) -> None:
    """A nested function is fingerprinted by its source, even with a prompt at the left margin."""
    nested = SOURCE.replace("async def", "def outer():\n    async def").replace('    """Ask."""\n    return', "        return")
    nested += "    return task\n\ntask = outer()\n"
    first, second = task_of(tmp_path, nested), task_of(tmp_path, nested.replace("(question):", "(question):  # asked"))

    assert "async def task" in _normalize(inspect.getsource(first))
    assert fingerprint_function(first) == fingerprint_function(second)


def test_sources_are_parsed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent `ast.parse` in two threads can raise a SystemError in Python 3.11."""
    is_free, calls, original = threading.Lock(), list[bool](), ast.parse

    def watched_parse(*arguments: Any, **options: Any) -> Any:
        is_alone = is_free.acquire(timeout=0)
        calls.append(is_alone)
        time.sleep(0.05)  # So that the other threads would meet this one.
        if is_alone:
            is_free.release()
        return original(*arguments, **options)

    monkeypatch.setattr(ast, "parse", watched_parse)
    parsers: list[Callable[[], object]] = [
        lambda: fingerprint_function(plain),
        lambda: definition_of(CallableTask()),
        lambda: imports("import os"),
        lambda: relevant_source("import os", frozenset(), frozenset()),
    ]
    threads = [threading.Thread(target=parser) for parser in parsers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)

    assert {True} == set(calls)


def test_fingerprint_of_settings() -> None:
    """Settings are canonical JSON, with classes by name and functions by source."""
    settings = Settings(retry=Retry(on=ValueError, fail_on=(KeyError, UsageError), classify=lambda _: None), timeout=3)
    recorded = settings.to_json()

    assert 3.0 == recorded["timeout"]
    assert ["builtins.KeyError", "evaljournal.runner.errors.UsageError"] == list(recorded["retry"]["fail_on"])
    assert isinstance(recorded["retry"]["classify"], str)
    assert Settings(timeout=30).fingerprint == Settings(timeout=30.0).fingerprint
    assert 3 == len({settings.fingerprint, Settings().fingerprint, Settings(retry=Retry(errors=3)).fingerprint})


def test_objects_have_fingerprints() -> None:
    """An object may define its fingerprint; bound arguments count; a builtin has its name."""
    assert "its own" == fingerprint_function(CallableTask())
    assert fingerprint_function(functools.partial(plain, "a")) == fingerprint_function(functools.partial(plain, "a"))
    assert fingerprint_function(functools.partial(plain, "a")) != fingerprint_function(functools.partial(plain, "b"))
    assert fingerprint_function(len) != fingerprint_function(abs)
    with pytest.raises(UsageError, match=r"partial of 'print': args\[0\] is of type object, .*; convert it to a string"):
        fingerprint_function(functools.partial(print, object()))


def test_fingerprints_are_equal_across_processes() -> None:
    """Without source, bytecode and constants are used: no address, no path, no order of a set."""
    code = """
import sys
from evaljournal.runner.data.fingerprint import _normalize, definition_of, fingerprint_function
source = "def task(q):\\n    return [x for x in q if x in {'a', 'b', 'c', 'd', 3}]"
exec(compile(source, sys.argv[1], "exec"))
print(fingerprint_function(task))
"""

    def run(seed: str, file: str) -> str:
        settings = {**os.environ, "PYTHONHASHSEED": seed}
        return run_command(sys.executable, "-c", code, file, env=settings, check=True).stdout

    assert 1 == len({run("1", "/a.py"), run("2", "/b.py"), run("3", "c.py")})


def test_retries_may_be_changed_in_part() -> None:
    """Some numbers of `Retry` can be set, and the others stay; an unknown one is rejected."""
    settings = Settings(retry=Retry(errors=1, timeouts=1, on=TypeError))

    assert Retry(errors=3, timeouts=1, on=TypeError) == settings.with_values({"retry": {"errors": 3}}).retry
    with pytest.raises(UsageError, match="no number 'eror'; did you mean 'errors'"):
        settings.with_values({"retry": {"eror": 3}})
