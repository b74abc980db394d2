"""A log that Inspect reads: `inspect view`, `inspect_ai.log.read_eval_log`, and everything built on them.

It is a zip of JSON files: a header, a file for each sample, and a list of summaries. A trial is a sample, its repeat an epoch,
and those that have come to their end are in it. Inspect has no word for waits and attempts; they stand under `metadata`.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import orjson

from journal.events import AttemptFailed
from replay.export.source import Source
from replay.export.spool import Spool
from replay.export.story import Result, Setback, Story, described
from replay.state import DONE
from replay.summary import Score, score_of
from replay.text import as_text

_VERSION: Final = 2
"""Of Inspect's format."""
_MODEL: Final = "none/none"
"""What Inspect itself says where no model of its own was asked."""
_NAME: Final = 60_000
"""Bytes that a file's name in a zip may have, roughly."""
_SHOWN: Final = 1_000
"""Characters of an input or a target in a summary."""


def inspect(source: Source) -> Iterator[bytes]:
    """Write the zip, a sample at a time."""
    story = Story.of(source)
    spool = Spool()
    header = _header(story)
    with ZipFile(spool, "w", ZIP_DEFLATED) as log:

        def put(name: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
            with log.open(_entry(name, story), "w") as file:
                for piece in pieces:
                    file.write(piece)
                    yield spool.taken()

        yield from put("_journal/start.json", _json({"version": _VERSION, "eval": header["eval"], "plan": header["plan"]}))
        for result in story.results(*DONE):
            yield from put(_member(result), _json(_sample(story, result)))
        yield from put("summaries.json", _listed(_summary(story, result) for result in story.results(*DONE)))
        yield from put("header.json", _json(header))
    yield spool.taken()


def _json(value: Any) -> Iterator[bytes]:
    yield orjson.dumps(value)


def _listed(values: Iterator[Any]) -> Iterator[bytes]:
    before = b"["
    for value in values:
        yield before + orjson.dumps(value)
        before = b","
    yield b"]" if before == b"," else b"[]"


def _entry(name: str, story: Story) -> ZipInfo:
    """Describe a file in the zip by nothing that another day would change."""
    at = story.state.sessions[0].at if story.state.sessions else ""
    try:
        year, month, day = (int(part) for part in at[:10].split("-"))
        entry = ZipInfo(name, (max(year, 1980), month, day, 0, 0, 0))
    except ValueError:
        entry = ZipInfo(name)
    entry.compress_type = ZIP_DEFLATED
    entry.external_attr = 0o600 << 16
    return entry


def _member(result: Result) -> str:
    """Name a sample's file as Inspect does; a name that no zip can hold is told by its hash."""
    case = result.asked.case
    if "\0" in case or len(case.encode()) > _NAME:
        case = hashlib.sha256(case.encode()).hexdigest()
    return f"samples/{case}_epoch_{result.asked.repeat}.json"


def _header(story: Story) -> dict[str, Any]:
    state, started = story.state, story.state.started
    about: dict[str, Any] = {"run": story.source.run, "seq": state.seq, "head": state.head}
    created = state.sessions[0].at if state.sessions else "1970-01-01T00:00:00Z"
    name, task = (started.evaluation, started.task) if started is not None else ("evaluation", "")
    environment = dict(started.environment) if started is not None else {}
    git = environment.pop("git", None)
    repeats = state.settings.get("repeats", 1)
    spec = {
        "eval_id": _uuid(story, "eval"),
        "run_id": story.source.run,
        "created": created,
        "task": name,
        "task_id": _uuid(story, "task"),
        "task_version": started.task_fingerprint if started is not None and started.task_fingerprint else 0,
        "task_file": task.partition(":")[0] or None,
        "task_attribs": {},
        "task_args": {},
        "dataset": {"name": started.dataset if started is not None else None, "samples": state.total},
        "model": _MODEL,
        "config": {"epochs": repeats if isinstance(repeats, int) and repeats > 0 else 1},
        "packages": {key: str(value) for key, value in environment.items()},
        "revision": {"type": "git", "origin": "", "commit": git} if git else None,
        "scorers": [{"name": scorer} for scorer in story.scorers],
        "metadata": about,
    }
    header: dict[str, Any] = {
        "version": _VERSION,
        "status": _status(state.ending),
        "eval": spec,
        "plan": {"name": "plan", "steps": [{"solver": task or name, "params": {}}], "config": {}},
        "results": {
            "total_samples": state.total,
            "completed_samples": state.completed,
            "scores": [_score(scorer, score_of(tally), state.done) for scorer, tally in state.scores.items()],
        },
        "stats": {"started_at": created, "completed_at": state.at if state.ending else "", "model_usage": _usage(state.usage)},
    }
    if header["status"] == "error":
        header["error"] = _error(f"the run was stopped: {state.ending}", "")
    return header


def _status(ending: str) -> str:
    match ending:
        case "finished":
            return "success"
        case "interrupted" | "deadline":
            return "cancelled"
        case "":
            return "started"
        case _:
            return "error"


def _score(scorer: str, score: Score, done: int) -> dict[str, Any]:
    """Tell what a scorer said in all, in the metrics that Inspect has for it; labels have none."""
    metrics = {"accuracy" if score.kind == "pass" else "mean": score.mean, "stderr": score.standard_error}
    return {
        "name": scorer,
        "scorer": scorer,
        "scored_samples": score.scored,
        "unscored_samples": max(0, done - score.scored),
        "params": {},
        "metrics": {name: {"name": name, "value": value, "params": {}} for name, value in metrics.items() if value is not None},
    }


def _sample(story: Story, result: Result) -> dict[str, Any]:
    asked, times = result.asked, result.times
    question, answer = as_text(asked.input), as_text(result.output)
    messages = [{"id": _uuid(story, asked.trial, "asked"), "role": "user", "content": question, "source": "input"}]
    sample: dict[str, Any] = {
        **_outline(story, result),
        "input": question,
        "target": _target(asked.expected),
        "metadata": {
            **(asked.metadata if isinstance(asked.metadata, dict) else {}),
            "evaljournal": {
                "trial": asked.trial,
                "attempts": result.attempts,
                "waited": times.waited,
                "backed_off": times.backed_off,
                "output": result.output if not isinstance(result.output, str) else None,
            },
        },
        "store": {},
        "events": [],
        "attachments": {},
        "scores": {scorer: _verdict(score.value, score.reason) for scorer, score in result.scores.items()},
        "error_retries": [_setback(each) for each in _before_the_last(result)] or None,
    }
    if result.stage == "completed":
        message = {"id": _uuid(story, asked.trial, "answered"), "role": "assistant", "content": answer, "source": "generate"}
        messages.append(message)
        choice = {"message": message, "stop_reason": "max_tokens" if result.truncated else "stop"}
        sample["output"] = {"model": _MODEL, "choices": [choice], "completion": answer, "time": times.served}
    else:
        sample["error"] = _setback(result.setbacks[-1]) if result.setbacks else _error(result.cause, "")
    return {key: value for key, value in {**sample, "messages": messages}.items() if value is not None}


def _before_the_last(result: Result) -> tuple[Setback, ...]:
    """Tell those setbacks that were tried again; the last of a trial that was given up is its error."""
    return result.setbacks if result.stage == "completed" else result.setbacks[:-1]


def _summary(story: Story, result: Result) -> dict[str, Any]:
    asked = result.asked
    target = _target(asked.expected)
    summary = {
        **_outline(story, result),
        "input": as_text(asked.input)[:_SHOWN],
        "target": target[:_SHOWN] if isinstance(target, str) else target,
        "scores": {scorer: _verdict(score.value, "") for scorer, score in result.scores.items()},
        "error": ": ".join(result.error) if result.stage == "failed" else None,
        "retries": len(_before_the_last(result)) or None,
        "completed": True,
    }
    return {key: value for key, value in summary.items() if value is not None}


def _outline(story: Story, result: Result) -> dict[str, Any]:
    """Tell what a sample and its summary have in common."""
    return {
        "id": result.asked.case,
        "epoch": result.asked.repeat,
        "uuid": _uuid(story, result.asked.trial),
        "started_at": result.enqueued_at,
        "completed_at": result.ended_at,
        "total_time": round((result.ended - result.enqueued) / 1_000_000_000, 6),
        "working_time": round(result.times.served, 6),
        "model_usage": _usage(result.usage),
    }


def _verdict(value: Any, reason: str) -> dict[str, Any]:
    return {"value": value, "explanation": reason} if reason else {"value": value}


def _setback(setback: Setback) -> dict[str, Any]:
    kind, message = described(setback)
    return _error(f"{kind}: {message}", setback.traceback if isinstance(setback, AttemptFailed) else "")


def _error(message: str, traceback: str) -> dict[str, Any]:
    return {"message": message, "traceback": traceback, "traceback_ansi": traceback}


def _usage(usage: Mapping[str, float]) -> dict[str, Any]:
    """Tell tokens and cost under the names that Inspect has for them; nothing if there were none."""

    def used(*names: str) -> float:
        return sum(usage.get(name, 0) for name in names)

    asked, answered = used("input_tokens", "prompt_tokens"), used("output_tokens", "completion_tokens")
    total = used("total_tokens") or used("tokens") or asked + answered
    if not total and "cost" not in usage:
        return {}
    tokens = {"input_tokens": int(asked), "output_tokens": int(answered), "total_tokens": int(total)}
    return {_MODEL: tokens | ({"total_cost": usage["cost"]} if "cost" in usage else {})}


def _target(expected: Any) -> str | list[str]:
    if isinstance(expected, list) and all(isinstance(each, str) for each in expected):
        return expected
    return "" if expected is None else as_text(expected)


def _uuid(story: Story, *parts: str) -> str:
    """Derive an id that is the same for the same run."""
    return hashlib.sha256("/".join((story.source.run, *parts)).encode()).hexdigest()[:22]
