"""Let a model write programs, and execute them in containers without network.

docker build -t sandbox examples/sandbox
export OPENAI_API_KEY=…
evaljournal run examples/code_execution.py
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from evaljournal import Case, CommandWorkers, Score, evaluation

CASES = [
    Case(name="square", input="Return the square of n.", metadata={"tests": [[[3], 9], [[-4], 16]]}),
    Case(name="total", input="Return the sum of a list of numbers.", metadata={"tests": [[[[1, 2]], 3], [[[]], 0]]}),
]
PROMPT = "Write a Python function named solve. Answer with the code only, without Markdown. "
CONTAINERS = CommandWorkers(
    "docker run -i --rm --init --network none --read-only --tmpfs /tmp --memory 512m --pids-limit 64 --user 65534 "
    "--cap-drop ALL --security-opt no-new-privileges -v .:/project:ro -w /project sandbox python -m evaljournal.worker",
    workers=4,
    runs_tasks=False,  # Only the scorer runs there.
)
HARNESS = """
import json, sys
source, inputs = json.load(sys.stdin)
namespace = {}
exec(source, namespace)
solve = namespace["solve"]
print(json.dumps([solve(*arguments) for arguments in inputs]))
"""


@evaluation(cases=CASES, workers=CONTAINERS)
async def write(problem: str) -> str:
    """Ask a model for a program, in the process of the run: containers have neither network nor keys."""
    from openai import AsyncOpenAI  # noqa: PLC0415  # the image does not need it

    messages: Any = [{"role": "user", "content": PROMPT + problem}]
    reply = await AsyncOpenAI(max_retries=0).chat.completions.create(model="gpt-5.6-luna", messages=messages)
    return reply.choices[0].message.content or ""


@write.score(workers=True, timeout=60)
def unit_tests(output: str, metadata: Mapping[str, Any]) -> Score:
    """Execute the program in a process of the container; it gets the inputs, but not the expected results."""
    inputs, expected = zip(*metadata["tests"], strict=True)
    command, payload = [sys.executable, "-I", "-c", HARNESS], json.dumps([output, inputs])
    try:
        process = subprocess.run(command, input=payload, cwd="/tmp", capture_output=True, text=True, timeout=10, check=False)  # noqa: S108, S603
        results = json.loads(process.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Score(value=False, reason="no result within 10 s")
    except (IndexError, ValueError):
        return Score(value=False, reason=f"exit code {process.returncode}: {process.stderr[-200:]}")
    return Score(value=results == list(expected), reason=f"returned {json.dumps(results)[:200]}")
