"""The scorer `assertions`: each case lists its own checks, which mean what they mean in promptfoo.

Start with `case_assertions`. JSON, JSON schemas and regular expressions of JavaScript are here only: no other scorer has to
agree with a program in another language.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaljournal.integrations.promptfoo.scorer.case_assertions import Assertions
    from evaljournal.runner.scorers.llm_judge import Judge


def assertions(
    *, judge: "Judge | None" = None, functions: "Mapping[str, Callable[..., Any]] | Sequence[Callable[..., Any]]" = ()
) -> "Assertions":
    """Return a scorer that checks the assertions in the column `assert` of each case, as in promptfoo.

    `judge` grades `llm-rubric`, `model-graded-closedqa` and `factuality`. `functions` are those that assertions of the type
    `python` name; their parameters are passed by name: any of output, expected, input, metadata, case, latency and cost.
    """
    if judge is None:
        from evaljournal.integrations.promptfoo.scorer.case_assertions import Assertions  # noqa: PLC0415  # most runs have none

        return Assertions(functions=functions)
    from evaljournal.integrations.promptfoo.scorer.graded_assertions import (  # noqa: PLC0415  # it imports the HTTP client
        GradedAssertions,
    )

    return GradedAssertions(functions=functions, judge=judge)


def assertions_from_text(path: str | None, *, judge: "Judge | None" = None) -> "Assertions":
    """Return the scorer of `--score assertions`, or of `assertions:FILE`, a Python file with functions."""
    from evaljournal.runner.definition.loading import load_functions  # noqa: PLC0415  # Python users load their own

    return assertions(judge=judge, functions={} if path is None else load_functions(path))
