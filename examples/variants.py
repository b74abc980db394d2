"""Compare two models and two prompts in one run.

pip install evaljournal openai
export OPENAI_API_KEY=…
evaljournal run examples/variants.py
evaljournal compare
"""

from openai import AsyncOpenAI

from evaljournal import Case, evaluation, note

CASES = [
    Case(name="peru", input="Peru", expected="Lima"),
    Case(name="japan", input="Japan", expected="Tokyo"),
    Case(name="kenya", input="Kenya", expected="Nairobi"),
]
client = AsyncOpenAI(max_retries=0)  # evaljournal does the retries and records each attempt.


@evaluation(
    cases=CASES,
    variants={
        "model": ["gpt-5.6-luna", "gpt-5.6-terra"],
        "prompt": ["Capital of {country}?", "You know geography. Answer with one word: what is the capital of {country}?"],
    },
    limit_key="model",  # Each model has its own rate limit.
    timeout=60,
)
async def capitals(country: str, *, model: str, prompt: str) -> str:
    """Ask a model for the capital of a country."""
    reply = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": prompt.format(country=country)}]
    )
    if reply.usage is not None:
        note(input_tokens=reply.usage.prompt_tokens, output_tokens=reply.usage.completion_tokens)
    return reply.choices[0].message.content or ""


@capitals.score
def contains(output: str, expected: str) -> bool:
    """Pass if the answer contains the capital."""
    return expected.lower() in output.lower()
