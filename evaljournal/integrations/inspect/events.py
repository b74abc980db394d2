"""The events of a sample in an Inspect log: model calls, tool calls and scores.

An attempt without steps is one model call; an attempt with steps is a span. A step of kind `model` or `tool` is a model call or
a tool call; a step that calls others, or is of kind `other`, is a span.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from evaljournal.replay.export.model_call import ModelCall, TaskModel, call_of_step
from evaljournal.replay.export.source import Source, iso_time
from evaljournal.replay.provider.messages import Message, finish_reason_of, messages_of, reply_of
from evaljournal.replay.runs.trajectory import StepDetails, steps_with_depth
from evaljournal.replay.runs.trial import AttemptDetails, ScoreDetails, TrialDetails
from evaljournal.replay.state.usage import add, as_integer, noted_usage
from evaljournal.replay.text import as_text

_NO_MODEL: Final = "none/none"
"""Inspect's own value for a log without a model."""
_PROVIDERS: Final = {
    "aws.bedrock": "bedrock",
    "azure.ai.openai": "azureai",
    "gcp.gemini": "google",
    "gcp.vertex_ai": "vertex",
    "mistral_ai": "mistral",
    "x_ai": "grok",
}
"""Provider's name in OpenTelemetry's conventions → its name in Inspect, where they differ."""
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Role of a message → role in Inspect; any other is `user`."""
_PARAMETERS: Final[dict[str, Callable[[float], float]]] = {
    "temperature": float,
    "top_p": float,
    "frequency_penalty": float,
    "presence_penalty": float,
    "max_tokens": as_integer,
    "seed": as_integer,
}
"""Fields of a request that an Inspect log can hold → their types."""
_STOP_REASONS: Final = {"stop": "stop", "length": "max_tokens", "tool_call": "tool_calls", "content_filter": "content_filter"}


def sample_events(source: Source, trial: TrialDetails, task: TaskModel) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for attempt in trial.attempts:
        events += _step_events(source, trial, attempt) if attempt.steps else [_model_event(source, trial, attempt, task)]
    return events + [_score_event(source, trial, score) for score in sorted(trial.scores.values(), key=lambda score: score.seq)]


def sample_messages(source: Source, trial: TrialDetails, call: ModelCall) -> list[dict[str, Any]]:
    """Return the conversation with the model in the last attempt, or the messages that were sent and the output."""
    last_attempt = trial.attempts[-1] if trial.attempts else None
    steps = [] if last_attempt is None else last_attempt.steps
    model_steps = [step for step in steps if step.kind == "model" and messages_of(step.input)]
    if model_steps:
        step = model_steps[-1]
        reply = reply_of(step.output)
        messages = _messages(source, trial, [*messages_of(step.input), *([] if reply is None else [reply])])
    else:
        messages = _request_messages(source, trial, call)

    if last_attempt is not None and last_attempt.has_output and trial.stage == "completed":
        text = as_text(last_attempt.output)
        if not model_steps or (messages[-1]["role"], messages[-1]["content"]) != ("assistant", text):
            messages.append(_output_message(source, trial, last_attempt))
    return messages


def _step_events(source: Source, trial: TrialDetails, attempt: AttemptDetails) -> Iterator[dict[str, Any]]:
    """Yield the events of an attempt with steps; each span ends after the steps that it contains."""
    span, number = attempt.span, str(attempt.span.attempt)
    callers = {step.parent for step in attempt.steps}
    start, end = source.session_time(span.session, span.start), source.session_time(span.session, span.end)
    open_spans = [(uuid_of(source, trial.trial, "span", number), number, end)]
    """Id, key and end of each span that contains the next step."""
    yield _span_begin(source, trial, (open_spans[0][0], None, "agent", f"attempt {number}"), start, number)

    for depth, step in steps_with_depth(attempt.steps):
        while len(open_spans) > depth + 1:
            yield _span_end(source, trial, *open_spans.pop())

        key = f"{number}/{step.number}"
        start, step_end = (source.session_time(span.session, t) for t in (step.start, step.t))
        parent = open_spans[-1][0]
        if step.kind not in {"model", "tool"} or step.number in callers:
            span_id = uuid_of(source, trial.trial, "span", key)
            details = {"input": step.input, "output": step.output} if step.kind == "other" else {}
            span_fields = (span_id, parent, step.kind, step.name)
            yield _span_begin(source, trial, span_fields, start, key, **details, **_error_of(step))
            open_spans.append((span_id, key, step_end))
            parent = span_id

        if step.kind in {"model", "tool"}:
            event = {
                **_event(source, trial, step.kind, start, key),
                "span_id": parent,
                "completed": iso_time(step_end),
                "working_time": step.elapsed,
                "metadata": {"evaljournal": {"attempt": span.attempt, "step": step.number, "outcome": step.outcome}},
            }
            yield event | (_model_step(source, trial, step) if step.kind == "model" else _tool_step(key, step))

    while open_spans:
        if len(open_spans) == 1 and attempt.category:
            error = {"message": f"{attempt.error}: {attempt.message}", "traceback": attempt.traceback, "traceback_ansi": ""}
            yield _event(source, trial, "error", end, number) | {"span_id": open_spans[0][0], "error": error}
        yield _span_end(source, trial, *open_spans.pop())


def _span_begin(
    source: Source, trial: TrialDetails, fields: tuple[str, str | None, str, str], time: int, key: str, **details: Any
) -> dict[str, Any]:
    span_id, parent, kind, name = fields
    event = _event(source, trial, "span_begin", time, key)
    event |= {"span_id": span_id, "id": span_id, "parent_id": parent, "type": kind, "name": name}
    return event | ({"metadata": {"evaljournal": details}} if details else {})


def _span_end(source: Source, trial: TrialDetails, span_id: str, key: str, time: int) -> dict[str, Any]:
    return _event(source, trial, "span_end", time, key) | {"span_id": span_id, "id": span_id}


def _error_of(step: StepDetails) -> dict[str, Any]:
    return {"error": f"{step.error}: {step.message}"} if step.error else {}


def _model_step(source: Source, trial: TrialDetails, step: StepDetails) -> dict[str, Any]:
    call, reply = call_of_step(step.input), reply_of(step.output)
    model, messages = model_name(call), messages_of(step.input) or [Message("user", as_text(step.input))]
    output: dict[str, Any] = {"model": model, "choices": [], "completion": "", "time": step.elapsed}
    if not step.error:
        reply = Message("assistant", as_text(step.output)) if reply is None else attrs.evolve(reply, role="assistant")
        stop_reason = _STOP_REASONS.get(finish_reason_of(step.output), "unknown")
        message = _messages(source, trial, [*messages, reply])[-1]
        output |= {"choices": [{"message": message, "stop_reason": stop_reason}], "completion": reply.text}

    step_usage: dict[str, float] = {}
    add(step_usage, None if step.is_reused else step.usage)
    if usage := usage_of(model, step_usage).get(model):
        output["usage"] = usage

    return {
        "model": model,
        "input": _messages(source, trial, messages),
        "tools": [],
        "tool_choice": "auto",
        "config": _config(call),
        "output": output,
        **({"cache": "read"} if step.is_reused else {}),
        **_error_of(step),
    }


def _tool_step(key: str, step: StepDetails) -> dict[str, Any]:
    error = {"type": "unknown", "message": f"{step.error}: {step.message}"}
    return {
        "type": "function",
        "id": key,
        "function": step.name,
        "arguments": step.input if isinstance(step.input, dict) else {"input": step.input},
        "result": "" if step.output is None else as_text(step.output),
        **({"error": error, "failed": True} if step.error else {}),
    }


def _messages(source: Source, trial: TrialDetails, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages in Inspect's form; the same message at the same position in several calls has the same id."""
    return [
        _message(uuid_of(source, trial.trial, str(position), message.role, message.text), message)
        for position, message in enumerate(messages)
    ]


def _message(message_id: str, message: Message) -> dict[str, Any]:
    role = _ROLES.get(message.role, "user")
    result: dict[str, Any] = {"id": message_id, "role": role, "content": message.text}
    result["source"] = "generate" if role == "assistant" else "input"
    if role == "assistant" and message.tool_calls:
        result["tool_calls"] = [
            {
                "id": call.id,
                "function": call.name,
                "arguments": call.arguments if isinstance(call.arguments, dict) else {"arguments": call.arguments},
                "type": "function",
            }
            for call in message.tool_calls
        ]
    return result


def _config(call: ModelCall) -> dict[str, Any]:
    return {name: kind(call.parameters[name]) for name, kind in _PARAMETERS.items() if name in call.parameters}


def _request_messages(source: Source, trial: TrialDetails, call: ModelCall) -> list[dict[str, Any]]:
    """Return the messages that were sent; without a recorded request, the input."""
    return _messages(source, trial, call.messages or [Message("user", as_text(trial.input))])


def _output_message(source: Source, trial: TrialDetails, attempt: AttemptDetails) -> dict[str, Any]:
    number = str(attempt.span.attempt)
    text = as_text(attempt.output)
    return {"id": uuid_of(source, trial.trial, "output", number), "role": "assistant", "content": text, "source": "generate"}


def output_of(source: Source, trial: TrialDetails, attempt: AttemptDetails, model: str) -> dict[str, Any]:
    usage = usage_of(model, attempt.total_usage).get(model)
    output: dict[str, Any] = {"model": model, "choices": [], "completion": ""} | ({"usage": usage} if usage else {})
    if attempt.has_output:
        is_last, message = attempt is trial.attempts[-1], _output_message(source, trial, attempt)
        reason = "max_tokens" if trial.truncated and is_last else "content_filter" if trial.declined and is_last else "stop"
        output["choices"] = [{"message": message, "stop_reason": reason}]
        output["completion"] = message["content"]
    return output


def _model_event(source: Source, trial: TrialDetails, attempt: AttemptDetails, task: TaskModel) -> dict[str, Any]:
    span, call = attempt.span, task.call(attempt.request)
    start, end = source.session_time(span.session, span.start), source.session_time(span.session, span.end)
    event = {
        **_event(source, trial, "model", start, str(span.attempt)),
        "model": model_name(call),
        "input": _request_messages(source, trial, call),
        "tools": [],
        "tool_choice": "none",
        "config": _config(call),
        "output": output_of(source, trial, attempt, model_name(call)) | {"time": round(span.end - span.start, 6)},
        "completed": iso_time(end),
        "working_time": round(span.end - span.start, 6),
    }
    if attempt.category:
        event |= {"error": f"{attempt.error}: {attempt.message}", "traceback": attempt.traceback or None}
    return event


def _score_event(source: Source, trial: TrialDetails, score: ScoreDetails) -> dict[str, Any]:
    return {
        **_event(source, trial, "score", source.wall_time(score.seq, score.t), score.scorer),
        "score": inspect_score(score),
        "target": target_of(trial.expected),
        "scorer": score.scorer,
    }


def _event(source: Source, trial: TrialDetails, kind: str, time: int, key: str) -> dict[str, Any]:
    return {
        "event": kind,
        "uuid": uuid_of(source, trial.trial, kind, key),
        "timestamp": iso_time(time),
        "working_start": max(0.0, round((time - source.enqueue_time(trial)) / 1_000_000_000, 6)),
    }


def inspect_score(score: ScoreDetails) -> dict[str, Any]:
    """Return a score; the score of a failed scorer is NaN, which means unscored in Inspect, with the error as its reason."""
    if score.value is None:
        return {"value": math.nan, "reason": score.error or "error", "explanation": f"{score.error}: {score.message}"}
    return {"value": score.value, "explanation": score.reason} if score.reason else {"value": score.value}


def usage_of(model: str, usage: Mapping[str, float]) -> dict[str, Any]:
    """Return the tokens and cost of a model under Inspect's names; empty if there are none."""

    def sum_of(*names: str) -> float:
        return sum(usage.get(name, 0) for name in names)

    prompt, completion = sum_of("input_tokens", "prompt_tokens"), sum_of("output_tokens", "completion_tokens")
    total = sum_of("total_tokens") or sum_of("tokens") or prompt + completion
    if not total and "cost" not in usage:
        return {}
    counts = {"input_tokens": prompt, "output_tokens": completion, "total_tokens": total}
    tokens = {name: as_integer(count) for name, count in counts.items()}
    return {model: tokens | ({"total_cost": usage["cost"]} if "cost" in usage else {})}


def call_of_trial(trial: TrialDetails, task: TaskModel) -> ModelCall:
    """Return the model call of a trial; without a model of the task, one to the model that its steps called most."""
    call = task.call(trial.request)
    if call.model or not (counts := Counter(map(model_name, step_calls(trial)))):
        return call
    return next(call for call in step_calls(trial) if model_name(call) == counts.most_common(1)[0][0])


def step_calls(trial: TrialDetails) -> Iterator[ModelCall]:
    """Yield the model calls among the steps of a trial, as far as their models are known."""
    calls = (call_of_step(step.input) for attempt in trial.attempts for step in attempt.steps if step.kind == "model")
    return (call for call in calls if call.model)


def model_usage(trial: TrialDetails, call: ModelCall) -> dict[str, Any]:
    """Return the usage of a trial by model; the usage of a step counts for the model that it called."""
    by_model: dict[str, dict[str, float]] = {}
    for attempt in trial.attempts:
        add(by_model.setdefault(model_name(call), {}), attempt.own_usage)
        for step in attempt.steps:
            if not step.is_reused and step.usage is not None:
                add(by_model.setdefault(model_name(call_of_step(step.input)), {}), step.usage)
    for name, value in trial.notes:
        add(by_model.setdefault(model_name(call), {}), noted_usage(name, value))
    return {name: usage for model, sums in by_model.items() for name, usage in usage_of(model, sums).items()}


def model_name(call: ModelCall) -> str:
    """Return the model as Inspect names it: `openai/gpt-5.6-terra`."""
    return f"{_PROVIDERS.get(call.provider, call.provider)}/{call.model}" if call.model else _NO_MODEL


def target_of(expected: Any) -> str | list[str]:
    if isinstance(expected, list) and all(isinstance(item, str) for item in expected):
        return expected
    return "" if expected is None else as_text(expected)


def uuid_of(source: Source, *parts: str) -> str:
    """Return an id that depends only on the run and `parts`."""
    return hashlib.sha256("/".join((source.run_id, *parts)).encode()).hexdigest()[:22]
