"""Trajectories in the Agent Trajectory Interchange Format (ATIF), which Harbor and NeMo Agent Toolkit read.

A trial is a trajectory of its last attempt: the messages before the first reply, then a step for each call of a model, with the
tool calls that it requested and their results. A tool call that no model requested is a step without a model. The version is
1.7: nothing of 1.8 is used, and readers such as NeMo Agent Toolkit 1.9 reject a version that they do not know.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
import orjson

from evaljournal.replay.export.formats import File
from evaljournal.replay.export.model_call import call_of_step
from evaljournal.replay.export.source import Source
from evaljournal.replay.provider.messages import Message, messages_of, reply_of
from evaljournal.replay.render.trajectory import message_text
from evaljournal.replay.runs.trajectory import StepDetails
from evaljournal.replay.runs.trial import TrialDetails
from evaljournal.replay.state.trial import DONE_STAGES
from evaljournal.replay.state.usage import add, as_integer
from evaljournal.replay.text import as_text

VERSION: Final = "ATIF-v1.7"
_SOURCES: Final = {"system": "system", "developer": "system", "user": "user"}
_TOKENS: Final = {
    "prompt_tokens": ("input_tokens", "prompt_tokens"),
    "completion_tokens": ("output_tokens", "completion_tokens"),
    "cached_tokens": ("cached_tokens",),
}


def atif(source: Source) -> Iterator[bytes]:
    """Write a trajectory per line, for each trial that is done."""
    for trial in source.trials(*DONE_STAGES):
        yield orjson.dumps(trajectory(source, trial), option=orjson.OPT_APPEND_NEWLINE)


def trajectory(source: Source, trial: TrialDetails) -> dict[str, Any]:
    """Return the trajectory of a trial: its last attempt, with scores and expected output as `extra`."""
    run_started, attempt = source.state.started, trial.attempts[-1] if trial.attempts else None
    steps = list(_Steps(trial).all()) if attempt is not None else []
    usage = {} if attempt is None else attempt.total_usage

    totals = {f"total_{name}": value for name, value in _metrics(usage).items()}
    extra = {
        "trial": trial.trial,
        "case": trial.case,
        "variant": trial.variant or None,
        "repeat": trial.repeat,
        "expected": trial.expected,
        "metadata": trial.metadata,
        "scores": {scorer: score.value for scorer, score in trial.values.items()},
        "error": trial.failure or None,
        "attempts": len(trial.attempts),
    }
    return {
        "schema_version": VERSION,
        "session_id": source.run_id,
        "trajectory_id": f"{source.run_id}/{trial.trial}",
        "agent": {
            "name": run_started.evaluation if run_started is not None else "unknown",
            "version": run_started.task_fingerprint if run_started is not None else "unknown",
        },
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": {**totals, "total_steps": len(steps)},
        "extra": {name: value for name, value in extra.items() if value is not None},
    }


@attrs.define
class _Steps:
    """The steps of a trial's last attempt; the results of tools belong to the call that requested them."""

    _trial: TrialDetails
    _by_call: dict[str, dict[str, Any]] = attrs.field(factory=dict[str, dict[str, Any]])
    """Id of a tool call → the step with it."""
    _open_calls: list[tuple[str, str]] = attrs.field(factory=list[tuple[str, str]])
    """Names and ids of tool calls that have no result."""

    def all(self) -> Iterator[dict[str, Any]]:
        """Return the steps without their numbers."""
        trial, attempt = self._trial, self._trial.attempts[-1]
        models = [step for step in attempt.steps if step.kind == "model"]
        first = messages_of(models[0].input if models else attempt.request)
        steps = [*map(_before, first)] or [{"source": "user", "message": as_text(trial.input)}]
        own_steps = (self._model(step) if step.kind == "model" else self._other(step) for step in attempt.steps)
        steps += [step for step in own_steps if step is not None]

        if attempt.has_output and not models:
            metrics = _metrics(attempt.own_usage)
            answer = {"source": "agent", "message": as_text(attempt.output), "timestamp": attempt.ended_at or None}
            steps.append(answer | {"metrics": metrics or None, "model_name": attempt.served_model or None})

        for step in steps:
            yield {name: value for name, value in step.items() if value is not None}

    def _model(self, step: StepDetails) -> dict[str, Any]:
        messages, reply = messages_of(step.input), reply_of(step.output)
        for message in messages:
            if message.role == "tool" and message.call_id:
                self._add_result(message.call_id, message.text)

        usage: dict[str, float] = {}
        add(usage, step.usage)
        fields: dict[str, Any] = {
            "source": "agent",
            "timestamp": step.at or None,
            "model_name": call_of_step(step.input).model or None,
            "message": reply.text if reply is not None else _result(step),
            "metrics": _metrics(usage) or None,
            "llm_call_count": 1,
            "extra": {"step": step.number, "outcome": step.outcome, "seconds": step.elapsed},
        }

        calls = []
        for number, call in enumerate(reply.tool_calls if reply is not None else ()):
            call_id = call.id or f"{step.number}-{number}"
            arguments = _arguments(call.arguments)
            calls.append({"tool_call_id": call_id, "function_name": call.name or "unknown", "arguments": arguments})
            self._by_call[call_id] = fields
            self._open_calls.append((call.name, call_id))
        if calls:
            fields["tool_calls"] = calls
        return fields

    def _other(self, step: StepDetails) -> dict[str, Any] | None:
        """Return the step of a tool or of the task's own code; None if it is the result of a tool call."""
        result = _result(step)
        call_id = next((call_id for name, call_id in self._open_calls if name == step.name), None)
        if step.kind == "tool" and call_id is not None:
            self._add_result(call_id, result)
            return None

        call_id = f"step-{step.number}"
        return {
            "source": "agent",
            "timestamp": step.at or None,
            "message": "",
            "tool_calls": [{"tool_call_id": call_id, "function_name": step.name, "arguments": _arguments(step.input)}],
            "observation": {"results": [{"source_call_id": call_id, "content": result}]},
            "llm_call_count": 0,
            "extra": {"step": step.number, "outcome": step.outcome, "seconds": step.elapsed},
        }

    def _add_result(self, call_id: str, text: str) -> None:
        """Add the first result of a tool call: a later request repeats those of the conversation."""
        if any(call_id == open_id for _, open_id in self._open_calls):
            self._open_calls = [call for call in self._open_calls if call[1] != call_id]
            results = self._by_call[call_id].setdefault("observation", {"results": []})["results"]
            results.append({"source_call_id": call_id, "content": text})


def _result(step: StepDetails) -> str:
    return f"{step.error}: {step.message}" if step.error else as_text(step.output)


def _before(message: Message) -> dict[str, Any]:
    """Return a message of the conversation with which the attempt began."""
    source = _SOURCES.get(message.role, "agent" if message.role == "assistant" else "user")
    return {"source": source, "message": message_text(message) if source == "agent" else message.text}


def _arguments(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {} if value is None else {"input": value}


def _metrics(usage: Mapping[str, float]) -> dict[str, Any]:
    values = {name: next((usage[key] for key in keys if key in usage), None) for name, keys in _TOKENS.items()}
    metrics: dict[str, Any] = {name: as_integer(value) for name, value in values.items() if value is not None}
    return metrics | ({"cost_usd": usage["cost"]} if "cost" in usage else {})


FORMAT: Final = File("trajectories of agents (ATIF), one per line", atif)
