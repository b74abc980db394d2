"""A local OpenAI-compatible server whose replies depend only on the prompt.

`Say: X` is answered with X, `Upper: X` with X in capitals. A text with `[WORD ? A : B]` is a prompt of a grader: the answer is
A if the text has the word outside the brackets, otherwise B, in the form that graders use.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.security.replies import Request, answering

_DIRECTIVE = re.compile(r"\[(\w+) \? ([^:\]]+) : ([^\]]+)\]")


def answer(messages: list[dict[str, Any]]) -> str:
    """Return the answer to a conversation."""
    text = "\n".join(message["content"] for message in messages)
    if directive := _DIRECTIVE.search(text):
        return _grade(directive[2] if directive[1] in _DIRECTIVE.sub("", text) else directive[3])
    for start, change in (("Say: ", str), ("Upper: ", str.upper)):
        if start in text:
            return change(text.partition(start)[2])
    return ""


def _grade(verdict: str) -> str:
    if verdict in {"Y", "N"}:
        return f"I have thought about it.\n{verdict}\n{verdict}"
    if len(verdict) == 1:
        return json.dumps({"category": verdict, "reason": "compared"})
    word, score = verdict.split()
    return f"Verdict: {json.dumps({'reason': 'graded', 'pass': word == 'pass', 'score': float(score)})}"


def _reply(request: Request) -> tuple[int, Mapping[str, str], bytes]:
    body = json.loads(request.body)
    message = {"role": "assistant", "content": answer(body["messages"])}
    reply = {
        "id": "reply",
        "object": "chat.completion",
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
    }
    return 200, {}, json.dumps(reply).encode()


@contextmanager
def serving_model() -> Iterator[str]:
    """Serve the model; yields the address of its API."""
    with answering(_reply) as server:
        yield f"{server.url}v1"
