"""The scorer `assertions` has the verdicts of promptfoo."""

import json
from pathlib import Path
from typing import Any

import pytest

from evaljournal import Case, UsageError, scorers
from tests.integrations.promptfoo.generated import Test, generated_tests
from tests.integrations.promptfoo.runs import HERE, Verdict, promptfoo_verdicts

STORED = HERE / "generated.json"
"""Generated tests with the verdicts of promptfoo. Delete it, then run the exhaustive test, to make a new one."""
SLICE = 300


def our_verdict(test: Test) -> Verdict:
    """Return the verdict of our scorer."""
    metadata = {"assert": {key: value for key, value in test.items() if key != "output"}}
    scorer, case = scorers.assertions(), Case(name="c", input="x", metadata=metadata)
    try:
        scorer.check(case)
    except UsageError:
        return ["error"]
    scores: dict[str, Any] = {name: score.value for name, score in scorer(test["output"], case, 0.005, 0.002).items()}
    is_passed, score = scores.pop("pass"), scores.pop("score")
    return ["pass" if is_passed else "fail", round(score, 9), {name: round(scores[name], 9) for name in sorted(scores)}]


def differences(tests: list[Test], verdicts: list[Verdict]) -> list[tuple[Test, Verdict, Verdict]]:
    """Return the tests with another verdict, each with that of promptfoo and ours."""
    pairs = [(test, verdict, our_verdict(test)) for test, verdict in zip(tests, verdicts, strict=True)]
    return [(test, verdict, ours) for test, verdict, ours in pairs if verdict != ours]


def test_stored_verdicts() -> None:
    """Verdicts, scores and metrics equal those that promptfoo returned for the same tests."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))

    assert [] == differences([pair[0] for pair in stored], [pair[1] for pair in stored])
    assert {"pass", "fail", "error"} == {pair[1][0] for pair in stored}


@pytest.mark.exhaustive
def test_generated_verdicts(tmp_path: Path) -> None:
    """They are equal for thousands of generated tests; promptfoo still returns the stored verdicts."""
    tests = generated_tests(1, SLICE)
    further_tests = generated_tests(2, 8_000)
    verdicts = promptfoo_verdicts([*tests, *further_tests], tmp_path)
    stored = list(zip(tests, verdicts, strict=False))
    if not STORED.exists():
        STORED.write_text("[\n" + ",\n".join(map(json.dumps, stored)) + "\n]\n")

    assert [] == differences(further_tests, verdicts[len(tests) :])
    assert [[test, verdict] for test, verdict in stored] == json.loads(STORED.read_text(encoding="utf-8"))
