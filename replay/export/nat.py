"""The files that `nat eval` of NVIDIA's NeMo Agent Toolkit leaves behind, for whatever reads those.

Trials that have come to their end are in them, and no others. One that failed has no answer; it carries its error, and stays
out of the averages. `workflow_output.jsonl` has its lines in the order in which trials ended, so that a file that grows with
the run and one that is made afterwards are the same.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson

from replay.export.source import Source
from replay.export.story import Result, Story
from replay.state import DONE, Value
from replay.summary import score_of

LINES: Final = "workflow_output.jsonl"
LIST: Final = "workflow_output.json"
_OWN: Final = ("id", "question", "answer", "generated_answer", "intermediate_steps", "expected_intermediate_steps", "error")
_LONGEST: Final = 200
"""Characters of a file's name, all that belongs to it not counted."""


def nat(source: Source) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Make the files: each one's name, and what is in it."""
    story = Story.of(source)
    yield LIST, _listed(item(result) for result in story.results(*DONE))
    yield LINES, (line(story.result(trial)) for trial in story.ended)
    names = file_names(story.scorers)
    for scorer in story.scorers:
        yield names[scorer], _scored(story, scorer)


def line(result: Result) -> bytes:
    """Write a trial as a line of `workflow_output.jsonl`."""
    return orjson.dumps(item(result), option=orjson.OPT_APPEND_NEWLINE)


def item(result: Result) -> dict[str, Any]:
    """Make a trial into what NAT calls an item."""
    asked = result.asked
    metadata = asked.metadata if isinstance(asked.metadata, dict) else {}
    others = {f"metadata_{name}" if name in _OWN else name: value for name, value in metadata.items()}
    made = {
        "id": asked.trial,
        "question": asked.input,
        "answer": asked.expected,
        **others,
        "generated_answer": result.output,
        "intermediate_steps": [],
        "expected_intermediate_steps": metadata.get("expected_intermediate_steps") or [],
    }
    made.pop("metadata_expected_intermediate_steps", None)
    return made if result.stage == "completed" else made | {"error": result.failure}


def file_names(scorers: list[str]) -> dict[str, str]:
    """Name each scorer's file; a journal may come from elsewhere, and must not lead us out of the directory."""
    taken = {LIST}
    names: dict[str, str] = {}
    for scorer in scorers:
        plain = re.sub(r"[^\w.-]", "_", scorer, flags=re.ASCII)[:_LONGEST].lstrip(".") or "_"
        name, number = f"{plain}_output.json", 1
        while name.casefold() in taken:
            number += 1
            name = f"{plain}-{number}_output.json"
        taken.add(name.casefold())
        names[scorer] = name
    return names


def _scored(story: Story, scorer: str) -> Iterator[bytes]:
    score = score_of(story.state.scores[scorer])
    average = score.mean if score.kind in {"pass", "number"} else None
    yield b'{\n  "average_score": ' + orjson.dumps(average) + b',\n  "eval_output_items": '
    yield from _listed((_verdict(result, scorer) for result in story.results(*DONE)), b"  ")
    yield b"\n}\n"


def _verdict(result: Result, scorer: str) -> dict[str, Any]:
    score, failed = result.scores.get(scorer), result.unscored.get(scorer) or result.unscored.get(scorer.partition(".")[0])
    error = result.failure if result.stage == "failed" else None
    if failed is not None:
        error = f"{failed.error}: {failed.message}"
    return {
        "id": result.asked.trial,
        "score": None if score is None else _number(score.value),
        "reasoning": (score.reason or None) if score is not None else None,
        "error": error,
    }


def _number(value: Value) -> float | str:
    """Count true as 1; a label stays a label."""
    return value if isinstance(value, str) else float(value)


def _listed(items: Iterator[dict[str, Any]], indent: bytes = b"") -> Iterator[bytes]:
    """Write a list as people read it, an item at a time."""
    before = b"[\n"
    for each in items:
        text = orjson.dumps(each, option=orjson.OPT_INDENT_2)
        yield before + indent + b"  " + text.replace(b"\n", b"\n" + indent + b"  ")
        before = b",\n"
    yield b"[]" if before == b"[\n" else b"\n" + indent + b"]"
