"""Score outputs with an LLM judge, and with a scorer that uses the case's metadata.

export OPENAI_API_KEY=…
evaljournal run examples/llm_judge.py
"""

import os
from collections.abc import Mapping
from typing import Any

from evaljournal import Case, Score, evaluation, scorers

CASES = [
    Case(name="peru", input="Tell me about Lima.", expected="the capital of Peru", metadata={"max_words": 20}),
    Case(name="nepal", input="Tell me about Kathmandu.", expected="the capital of Nepal", metadata={"max_words": 20}),
]
RUBRIC = """Does the answer say that the city is {expected}?

{output}"""


@evaluation(cases=CASES)
def describe(request: str) -> str:
    """Simulate the application under test."""
    city = request.removeprefix("Tell me about ").rstrip(".")
    return f"{city} is a capital, and well worth a visit."


@describe.score
def brief(output: str, metadata: Mapping[str, Any]) -> Score:
    """Pass if the answer is short enough."""
    words = len(output.split())
    return Score(words <= metadata["max_words"], reason=f"{words} words")


describe.score(
    scorers.judge(
        "gpt-5.6-luna",
        rubric=RUBRIC,
        choices={"yes": True, "no": False},
        base_url=os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1"),
        key_env="OPENAI_API_KEY",
    )
)
