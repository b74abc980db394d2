"""Evaluate a model with the Anthropic SDK.

pip install evaljournal anthropic
export ANTHROPIC_API_KEY=…
evaljournal run examples/anthropic_sdk.py
"""

from anthropic import AsyncAnthropic

from evaljournal import Case, evaluation, note

CASES = [
    Case(name="peru", input="What is the capital of Peru?", expected="Lima"),
    Case(name="nepal", input="What is the capital of Nepal?", expected="Kathmandu"),
    Case(name="ghana", input="What is the capital of Ghana?", expected="Accra"),
]
client = AsyncAnthropic(max_retries=0)  # evaljournal does the retries and records each attempt.


@evaluation(cases=CASES, timeout=60)
async def capitals(question: str) -> str:
    """Return the model's answer."""
    reply = await client.messages.create(
        model="claude-haiku-5-5",
        max_tokens=100,
        system="Answer with one word.",
        messages=[{"role": "user", "content": question}],
    )
    note(input_tokens=reply.usage.input_tokens, output_tokens=reply.usage.output_tokens)
    return "".join(block.text for block in reply.content if block.type == "text")


@capitals.score
def contains(output: str, expected: str) -> bool:
    """Pass if the answer contains the capital."""
    return expected.lower() in output.lower()
