"""Cases from recorded traces: what was asked, what is expected, and what the agent did.

A trace is a list of messages, `{"role", "content", "tool_calls": [{"name", "arguments", "result"}]}`, whichever format it was
recorded in. Traces are untrusted: any value may have any type.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from evaljournal.runner.errors import UsageError

EXPECTED: Final = ("expected", "expected_output", "reference", "ground_truth")
"""Names of annotations with the expected output, unless another one is passed."""
Message = dict[str, Any]


def documents(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file: one, a list of them, or one per line."""
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise UsageError(f"cannot read the file: {exc.strerror}", path=path) from exc
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        value = [_line(path, number, line) for number, line in enumerate(content.splitlines(), 1) if line.strip()]

    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, dict) for item in items):
        raise UsageError("expected JSON: an object, a list of objects, or an object per line", path=path)
    yield from items


def _line(path: Path, number: int, line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as exc:
        raise UsageError(f"not JSON: {exc}", path=path, line=number) from exc


def annotation(expected: str | None, *annotations: Any) -> Any:
    """Return the expected output: the first annotation with the name that was passed, or with a usual one; None without."""
    names = EXPECTED if expected is None else (expected,)
    values = (fields[name] for fields in annotations if isinstance(fields, Mapping) for name in names if name in fields)
    return next((value for value in values if value is not None), None)


def case_of(name: str, messages: Sequence[Message], expected: Any, *, output: Any = None) -> dict[str, Any] | None:
    """Return the row of a case; None without a message of a user. `output` is the final answer, by default the last one.

    The input is what the user wrote before the first answer: a text, or several messages as a list. What they wrote later is in
    `turns`, with the first, for `--turns turns`.
    """
    users = [message for message in messages if message["role"] == "user" and message["content"]]
    first_answer = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    asked = [message["content"] for message in messages[:first_answer] if message in users]
    if not asked:
        return None

    answers = [message["content"] for message in messages if message["role"] == "assistant" and message["content"]]
    row = {
        "id": name,
        "input": asked[0] if len(asked) == 1 else [{"role": "user", "content": text} for text in asked],
        "expected": expected,
        "output": output if output is not None else answers[-1] if answers else None,
        "turns": [message["content"] for message in users] if len(users) > len(asked) else None,
        "tools": [call["name"] for message in messages for call in message.get("tool_calls", ())],
        "trajectory": list(messages),
    }
    return {key: value for key, value in row.items() if value is not None}


def write_cases(rows: Iterable[Mapping[str, Any]], file: Path) -> int:
    """Write rows as JSONL to a new file; return their number. All get the same columns, and a repeated name gets a number."""
    rows = list(rows)
    columns = dict.fromkeys(key for row in rows for key in row)
    lines = [
        orjson.dumps({**columns, **row, "id": name}, option=orjson.OPT_APPEND_NEWLINE)
        for row, name in zip(rows, _unique_names([row["id"] for row in rows]), strict=True)
    ]

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as exc:
        raise UsageError("already exists; move it, or pass another directory with -o", path=file) from exc
    with open(descriptor, "wb") as stream:
        stream.writelines(lines)
    return len(lines)


def _unique_names(names: Sequence[str]) -> Iterator[str]:
    """Yield the names; from its second time on, a name gets a number with which it is not one of the others."""
    taken_names, numbers = set(names), dict[str, Iterator[int]]()
    for name in names:
        if name in numbers:
            yield next(new_name for number in numbers[name] if (new_name := f"{name}-{number}") not in taken_names)
        else:
            numbers[name] = itertools.count(2)
            yield name
