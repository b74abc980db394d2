"""A chat model for tests that answers by a function of the prompt, in a thread of the test; it keeps the prompts."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import attrs
import orjson

from tests.security.replies import Request, answering


@attrs.frozen
class JudgeServer:
    """A running server."""

    url: str
    """The base URL of its API."""
    prompts: list[str]
    """Those of all requests, in the order in which they arrived."""


@contextmanager
def judge_server(answer: Callable[[str], str]) -> Iterator[JudgeServer]:
    """Run a server; `answer` returns the reply to a prompt."""
    prompts: list[str] = []

    def reply(request: Request) -> tuple[int, Mapping[str, str], bytes]:
        prompt = orjson.loads(request.body)["messages"][-1]["content"]
        prompts.append(prompt)
        choice = {"message": {"role": "assistant", "content": answer(prompt)}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1_000, "completion_tokens": 2}
        return 200, {}, orjson.dumps({"model": "judge", "choices": [choice], "usage": usage})

    with answering(reply) as server:
        yield JudgeServer(f"{server.url}v1", prompts)
