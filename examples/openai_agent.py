"""Evaluate an agent with two tools, written with the OpenAI SDK.

With `durable="http"` its model calls are recorded as steps. Interrupt it and resume it: recorded calls are not paid for again.

pip install evaljournal openai
export OPENAI_API_KEY=…
evaljournal run examples/openai_agent.py
"""

import json
from typing import Any

from openai import OpenAI

from evaljournal import Case, durable, evaluation

CASES = [
    Case(name="lima", input="What should I wear in Lima tomorrow?", expected="jacket"),
    Case(name="oslo", input="What should I wear in Oslo tomorrow?", expected="coat"),
]
client = OpenAI()


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
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": function.__doc__, "parameters": CITY}}
    for name, function in FUNCTIONS.items()
]


@evaluation(cases=CASES, timeout=120, durable="http")
def agent(question: str) -> str:
    """Call the model and the tools that it requests, until it returns an answer without tool calls."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        reply = client.chat.completions.create(model="gpt-5.4-mini", messages=messages, tools=TOOLS)
        message = reply.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message)
        for call in message.tool_calls:
            if call.type == "function":
                result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})


@agent.score
def contains(output: str, expected: str) -> bool:
    """Pass if the answer names the right piece of clothing."""
    return expected in output.lower()
