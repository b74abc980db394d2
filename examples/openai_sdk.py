"""Evaluate a model with the OpenAI SDK.

pip install evaljournal openai
export OPENAI_API_KEY=…
evaljournal run examples/openai_sdk.py
"""

from openai import AsyncOpenAI

from evaljournal import Case, evaluation, note

CASES = [
    Case(name="peru", input="What is the capital of Peru?", expected="Lima"),
    Case(name="nepal", input="What is the capital of Nepal?", expected="Kathmandu"),
    Case(name="ghana", input="What is the capital of Ghana?", expected="Accra"),
]
client = AsyncOpenAI(max_retries=0)  # evaljournal does the retries and records each attempt.


@evaluation(cases=CASES, timeout=60)
async def capitals(question: str) -> str:
    """Return the model's answer."""
    reply = await client.chat.completions.create(
        model="gpt-5.6-luna",
        messages=[{"role": "system", "content": "Answer with one word."}, {"role": "user", "content": question}],
    )
    if reply.usage is not None:
        note(input_tokens=reply.usage.prompt_tokens, output_tokens=reply.usage.completion_tokens)
    return reply.choices[0].message.content or ""


@capitals.score
def contains(output: str, expected: str) -> bool:
    """Pass if the answer contains the capital."""
    return expected.lower() in output.lower()
