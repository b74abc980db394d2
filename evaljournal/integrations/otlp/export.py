"""OpenTelemetry spans, as requests to post to `/v1/traces`.

A trial is a trace; its attempts are child spans of the trial's span, and steps are child spans of their attempt. Attributes
have the names of OpenTelemetry's conventions for generative AI and of OpenInference, which Phoenix reads. Scores are events of
the trial: its span ends after them, while that of the attempt may have been sent. All ids are derived from the run, so a span
that is sent again replaces itself.

A run that is exported and one that is sent live have the same spans: `trial_spans` is the only place that makes them. Live, it
yields those that have ended since a record; a span that has ended does not change, except that of a trial with an error that is
retried.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

from evaljournal.integrations.otlp.encoding import json_requests, protobuf_requests
from evaljournal.replay.export.formats import Directory
from evaljournal.replay.export.model_call import ModelCall, TaskModels, call_of_step
from evaljournal.replay.export.source import Source
from evaljournal.replay.provider.messages import Message, finish_reason_of, messages_of, reply_of, response_id_of
from evaljournal.replay.runs.timeline import Span
from evaljournal.replay.runs.trajectory import StepDetails
from evaljournal.replay.runs.trial import AttemptDetails, ScoreDetails, TrialDetails
from evaljournal.replay.state.usage import add
from evaljournal.replay.text import as_text

_INTERNAL, _CLIENT = 1, 3
"""Span kinds."""
_OK, _ERROR = 1, 2
_INPUT_TOKENS: Final = ("input_tokens", "prompt_tokens")
_OUTPUT_TOKENS: Final = ("output_tokens", "completion_tokens")
_TOTAL_TOKENS: Final = ("total_tokens", "tokens")
_TOKEN_PARTS: Final = {
    "cached_tokens": ("gen_ai.usage.cache_read.input_tokens", "llm.token_count.prompt_details.cache_read"),
    "cache_write_tokens": ("gen_ai.usage.cache_creation.input_tokens", "llm.token_count.prompt_details.cache_write"),
    "reasoning_tokens": ("gen_ai.usage.reasoning.output_tokens", "llm.token_count.completion_details.reasoning"),
}
"""Tokens that are a part of those of the input or the output → names in both conventions."""
_PARAMETERS: Final = frozenset({"temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty"})
"""Fields of a request that are attributes `gen_ai.request.NAME`."""


_ALL: Final = -1
"""Also spans that have not ended: the record of their end is 0."""


def otlp(source: Source) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Write the requests as protobuf, one per file."""
    requests = protobuf_requests(_exported_resource(source), scope_of(source), _spans(source))
    return ((f"spans-{number:05}.pb", pieces) for number, pieces in enumerate(requests, 1))


def otlp_json(source: Source) -> Iterator[bytes]:
    """Write the requests as JSON, one per line."""
    return json_requests(_exported_resource(source), scope_of(source), _spans(source))


def _spans(source: Source) -> Iterator[dict[str, Any]]:
    models = models_of(source)
    for trial in source.trials():
        yield from trial_spans(source, trial, models)


def models_of(source: Source) -> TaskModels:
    return TaskModels(source.state.started and source.state.started.definition)


def trial_spans(source: Source, trial: TrialDetails, models: TaskModels, after: int = _ALL) -> Iterator[dict[str, Any]]:
    """Yield the spans of a trial that ended after a record; by default, all, also those that have not ended."""
    task = models.for_variant(trial.variant)
    if trial.row.end_seq > after:
        yield _trial_span(source, trial)
    for attempt in trial.attempts:
        if attempt.span.end_seq > after:
            yield _attempt_span(source, trial, attempt, ModelCall() if attempt.steps else task.call(attempt.request))
        numbers = {step.number for step in attempt.steps}
        for step in attempt.steps:
            if step.seq > after:
                yield _step_span(source, attempt, step, step.parent if step.parent in numbers else 0)


def score_events(source: Source, trial: TrialDetails, after: int = _ALL) -> Iterator[dict[str, Any]]:
    """Yield the scores of a trial that were recorded after a record, as events with the ids of the attempt with the output."""
    attempt = next((attempt for attempt in reversed(trial.attempts) if attempt.has_output), None)
    for score in sorted(trial.scores.values(), key=lambda score: score.seq):
        if score.seq > after and attempt is not None:
            event = _score(source, score)
            event["attributes"] |= {"gen_ai.response.id": attempt.response_id or None, "evaljournal.seq": score.seq}
            yield event | _ids(source, trial.trial, attempt.span.attempt)


def scope_of(source: Source) -> dict[str, Any]:
    run_started = source.state.started
    version = "" if run_started is None else run_started.environment.get("evaljournal", "")
    return {"name": "evaljournal", "version": as_text(version)}


def _exported_resource(source: Source) -> dict[str, Any]:
    return resource_of(source) | {"evaljournal.seq": source.state.seq}


def resource_of(source: Source) -> dict[str, Any]:
    """Return the attributes of the run, which are the same from its start to its end."""
    run_started = source.state.started
    run: dict[str, Any] = {"evaljournal.run": source.run_id}
    if run_started is None:
        return {"service.name": "evaljournal", **run}
    return {
        "service.name": run_started.evaluation,
        "service.version": run_started.task_fingerprint,
        **run,
        "evaljournal.task": run_started.task,
        "evaljournal.dataset": run_started.dataset,
        **{f"evaljournal.environment.{name}": value for name, value in run_started.environment.items()},
    }


def _trial_span(source: Source, trial: TrialDetails) -> dict[str, Any]:
    times = [_times(source, attempt.span) for attempt in trial.attempts]
    start = min([source.enqueue_time(trial), *(start for start, _ in times)])
    end = max([start, source.end_time(trial), *(end for _, end in times)])

    attributes = {
        "evaljournal.trial": trial.trial,
        "evaljournal.case": trial.case,
        "evaljournal.variant": trial.variant or None,
        "evaljournal.repeat": trial.repeat,
        "evaljournal.stage": trial.stage,
        "evaljournal.attempts": len(trial.attempts),
        "evaljournal.queue_time": trial.times.queue_time,
        "evaljournal.backoff_time": trial.times.backoff_time,
        "evaljournal.run_time": trial.times.run_time,
        "evaljournal.latency": trial.latency,
        "evaljournal.time_to_completion": trial.time_to_completion,
        "evaljournal.expected": trial.expected,
        "evaljournal.metadata": trial.metadata,
        "openinference.span.kind": "CHAIN",
        **_content("input", trial.input),
        **(_content("output", trial.output) if trial.stage in {"scoring", "completed"} else {}),
    }

    status: dict[str, Any] = {"code": _OK} if trial.stage == "completed" else {}
    if trial.stage == "failed":
        status = {"code": _ERROR, "message": trial.failure}
        attributes["error.type"] = (trial.last_error.error if trial.last_error else "") or trial.reason

    span = _span(_ids(source, trial.trial), f"trial {trial.trial}", _INTERNAL, (start, end), attributes, status)
    events = [_score(source, score) for score in sorted(trial.scores.values(), key=lambda score: score.seq)]
    return span | {"events": events} if events else span


def _attempt_span(source: Source, trial: TrialDetails, attempt: AttemptDetails, call: ModelCall) -> dict[str, Any]:
    span, run_started = attempt.span, source.state.started
    agent = run_started.evaluation if run_started is not None else ""
    is_last = span.attempt == len(trial.attempts)
    attributes: dict[str, Any] = {
        **(
            _call_attributes(call)
            if call.model
            else {"gen_ai.operation.name": "invoke_agent", "openinference.span.kind": "AGENT"}
        ),
        "gen_ai.agent.name": agent,
        "evaljournal.trial": span.trial,
        "evaljournal.variant": trial.variant or None,
        "evaljournal.attempt": span.attempt,
        "evaljournal.slot": None if span.batch else span.slot,
        "evaljournal.batch": span.batch or None,
        "evaljournal.line": span.line or None,
        "evaljournal.session": span.session,
        "evaljournal.seq": span.seq,
        "evaljournal.steps": len(attempt.steps) or None,
        "evaljournal.reused_steps": attempt.reused_steps or None,
        "gen_ai.input.messages": [*map(_message, call.messages or [Message("user", as_text(trial.input))])],
        **_content("input", trial.input),
    }

    events: list[dict[str, Any]] = []
    status: dict[str, Any] = {}
    start, end = _times(source, span)
    if attempt.has_output:
        status = {"code": _OK}
        finish_reason = "length" if trial.truncated and is_last else "content_filter" if trial.declined and is_last else "stop"
        attributes |= {
            "gen_ai.response.model": attempt.served_model or None,
            "gen_ai.response.id": attempt.response_id or None,
        }
        output_message = _message(Message("assistant", as_text(attempt.output)))
        attributes["gen_ai.output.messages"] = [output_message | {"finish_reason": finish_reason}]
        attributes |= _content("output", attempt.output)
    elif attempt.category:
        status = {"code": _ERROR, "message": attempt.message}
        attributes["error.type"] = attempt.error
        attributes["evaljournal.category"] = attempt.category
        if attempt.category not in {"timed_out", "interrupted"}:
            exception = {"type": attempt.error, "message": attempt.message, "stacktrace": attempt.traceback}
            events = [_event("exception", end, {f"exception.{name}": value for name, value in exception.items()})]

    attributes |= _usage(attempt.own_usage)  # The usage of steps is in their spans.
    name, kind = (f"chat {call.model}", _CLIENT) if call.model else (f"invoke_agent {agent}", _INTERNAL)
    result = _span(_ids(source, span.trial, span.attempt), name, kind, (start, end), attributes, status)
    return result | {"events": events} if events else result


def _step_span(source: Source, attempt: AttemptDetails, step: StepDetails, parent_step: int) -> dict[str, Any]:
    """Return a step as a child of its attempt, or of the step that called it."""
    span = attempt.span
    attributes: dict[str, Any] = {
        "evaljournal.trial": span.trial,
        "evaljournal.attempt": span.attempt,
        "evaljournal.step": step.number,
        "evaljournal.seq": step.seq,
        "evaljournal.reused_from": step.reused_from or None,
        **_content("input", step.input),
        **({} if step.error else _content("output", step.output)),
    }

    name, kind = step.name, _INTERNAL
    match step.kind:
        case "model":
            operation = "embeddings" if step.name.startswith("embeddings") else "chat"
            call = call_of_step(step.input)
            attributes |= _model_step_attributes(step, call, operation)
            name, kind = f"{operation} {call.model}" if call.model else step.name, _CLIENT
        case "tool":
            name = f"execute_tool {step.name}"
            attributes |= {
                "gen_ai.operation.name": "execute_tool",
                "openinference.span.kind": "TOOL",
                "gen_ai.tool.name": step.name,
                "tool.name": step.name,
                "gen_ai.tool.call.arguments": as_text(step.input),
                "gen_ai.tool.call.result": None if step.error else as_text(step.output),
            }
        case _:
            attributes["openinference.span.kind"] = "CHAIN"

    if not step.is_reused:
        step_usage: dict[str, float] = {}
        add(step_usage, step.usage)
        attributes |= _usage(step_usage)

    start, end = source.session_time(span.session, step.start), source.session_time(span.session, step.t)
    status: dict[str, Any] = {"code": _OK}
    if step.error:
        status = {"code": _ERROR, "message": step.message}
        attributes["error.type"] = step.error

    ids = _ids(source, span.trial, span.attempt, step.number, parent_step)
    return _span(ids, name, kind, (min(start, end), end), attributes, status)


def _model_step_attributes(step: StepDetails, call: ModelCall, operation: str) -> dict[str, Any]:
    messages, reply = messages_of(step.input), reply_of(step.output)
    attributes: dict[str, Any] = _call_attributes(call) if call.model else {"openinference.span.kind": "LLM"}
    attributes["gen_ai.operation.name"] = operation

    if messages:
        attributes["gen_ai.input.messages"] = [*map(_message, messages)]
    if reply is not None and operation == "chat":
        reason = finish_reason_of(step.output)
        output_message = _message(reply) | {"role": "assistant", "finish_reason": reason or "stop"}
        attributes["gen_ai.output.messages"] = [output_message]
        attributes["gen_ai.response.id"] = response_id_of(step.output) or None
        attributes["gen_ai.response.finish_reasons"] = [reason] if reason else None
    return attributes


def _message(message: Message) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if message.role == "tool":
        parts = [{"type": "tool_call_response", "response": message.text}]
    elif message.text:
        parts = [{"type": "text", "content": message.text}]
    calls = message.tool_calls
    parts += [{"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments} for call in calls]
    return {"role": message.role or "user", "parts": parts}


def _call_attributes(call: ModelCall) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "chat",
        "openinference.span.kind": "LLM",
        "gen_ai.provider.name": call.provider,
        "gen_ai.request.model": call.model,
        "llm.model_name": call.model,
        "llm.provider": call.provider,
        "server.address": call.host or None,
        **{f"gen_ai.request.{name}": value for name, value in call.parameters.items() if name in _PARAMETERS},
    }


def _usage(usage: dict[str, float]) -> dict[str, Any]:
    """Return tokens under the names of both conventions, and any other usage under its own name."""

    def tokens(names: tuple[str, ...]) -> float | None:
        value = next((usage[name] for name in names if name in usage), None)
        return value if value is None or not float(value).is_integer() else int(value)

    prompt, completion, total = tokens(_INPUT_TOKENS), tokens(_OUTPUT_TOKENS), tokens(_TOTAL_TOKENS)
    if total is None and not (prompt is None and completion is None):
        total = (prompt or 0) + (completion or 0)
    token_names = {*_INPUT_TOKENS, *_OUTPUT_TOKENS}
    parts = {name: usage[key] for key, names in _TOKEN_PARTS.items() if key in usage for name in names}
    return {
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.output_tokens": completion,
        "llm.token_count.prompt": prompt,
        "llm.token_count.completion": completion,
        "llm.token_count.total": total,
        **parts,
        **{f"evaljournal.usage.{name}": value for name, value in usage.items() if name not in token_names},
    }


def _content(name: str, value: Any) -> dict[str, str]:
    """Return the attributes of an input or output under OpenInference's names."""
    kind = "text/plain" if isinstance(value, str) else "application/json"
    return {f"{name}.value": as_text(value), f"{name}.mime_type": kind}


def _times(source: Source, span: Span) -> tuple[int, int]:
    return source.session_time(span.session, span.start), source.session_time(span.session, span.end)


def _span(  # noqa: PLR0917  # the fields of a span
    ids: dict[str, str], name: str, kind: int, times: tuple[int, int], attributes: dict[str, Any], status: dict[str, Any]
) -> dict[str, Any]:
    return {
        **ids,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": times[0],
        "endTimeUnixNano": times[1],
        "attributes": attributes,
        "status": status,
    }


def _ids(source: Source, trial: str, attempt: int = 0, step: int = 0, parent_step: int = 0) -> dict[str, str]:
    """Derive the ids of a span from the run; attempt 0 stands for the trial, step 0 for the attempt."""
    name = f"{source.run_id}/{trial}"
    span, parent = f"{name}/{attempt}", f"{name}/0"
    if step:
        span, parent = f"{span}/{step}", f"{span}/{parent_step}" if parent_step else span
    trace, parent, span = (sha256(text.encode()).hexdigest() for text in (name, parent, span))
    return {"traceId": trace[:32], "spanId": span[:16]} | ({"parentSpanId": parent[:16]} if attempt else {})


def _score(source: Source, score: ScoreDetails) -> dict[str, Any]:
    """Return a score, or a scorer's failure, as a span event."""
    attributes: dict[str, Any] = {"gen_ai.evaluation.name": score.scorer}
    value = score.value
    if value is None:
        attributes |= {"error.type": score.error, "gen_ai.evaluation.explanation": score.message}
    else:
        if isinstance(value, bool | str):
            attributes["gen_ai.evaluation.score.label"] = value if isinstance(value, str) else "pass" if value else "fail"
        if not isinstance(value, str):
            attributes["gen_ai.evaluation.score.value"] = float(value)
        attributes["gen_ai.evaluation.explanation"] = score.reason or None
    return _event("gen_ai.evaluation.result", source.wall_time(score.seq, score.t), attributes)


def _event(name: str, time: int, attributes: dict[str, Any]) -> dict[str, Any]:
    return {"timeUnixNano": time, "name": name, "attributes": attributes}


FORMAT: Final = Directory(
    "OpenTelemetry spans as OTLP protobuf, one request per file in a directory; with --json, one per line of a file",
    otlp,
    write_json=otlp_json,
)
