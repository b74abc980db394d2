"""Evaluate an agent with two tools, written with the async client of the Anthropic SDK.

With `durable="http"` its model calls are recorded as steps. Interrupt it and resume it: recorded calls are not paid for again.

pip install evaljournal anthropic
export ANTHROPIC_API_KEY=…
evaljournal run examples/anthropic_agent.py
"""

import json
from typing import Any

from anthropic import AsyncAnthropic

from evaljournal import Case, durable, evaluation

CASES = [
    Case(name="lima", input="What should I wear in Lima tomorrow?", expected="jacket"),
    Case(name="oslo", input="What should I wear in Oslo tomorrow?", expected="coat"),
]
client = AsyncAnthropic()


@durable(kind="tool")
def weather(city: str) -> dict[str, Any]:
    """Return the forecast for tomorrow."""
    return {"city": city, "degrees": 17 if city.lower() == "lima" else -3}


@durable(kind="tool")
def clothes(city: str) -> list[str]:
    """Return the clothes that are sold in a city."""
    return ["jacket", "shirt"] if city.lower() == "lima" else ["coat", "scarf"]


FUNCTIONS: dict[str, Any] = {"weather": weather, "clothes": clothes}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"name": name, "description": function.__doc__, "input_schema": CITY} for name, function in FUNCTIONS.items()]


@evaluation(cases=CASES, timeout=120, durable="http")
async def agent(question: str) -> str:
    """Call the model and the tools that it requests, until it returns an answer without tool calls."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        reply = await client.messages.create(model="claude-haiku-5-5", max_tokens=1000, messages=messages, tools=TOOLS)
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in reply.content if block.type == "text")
        messages.append({"role": "assistant", "content": reply.content})
        results = [(call.id, FUNCTIONS[call.name](**call.input)) for call in calls]
        content = [{"type": "tool_result", "tool_use_id": call, "content": json.dumps(result)} for call, result in results]
        messages.append({"role": "user", "content": content})


@agent.score
def contains(output: str, expected: str) -> bool:
    """Pass if the answer names the right piece of clothing."""
    return expected in output.lower()
