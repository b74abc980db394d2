"""The steps in a reply of NeMo Agent Toolkit's server (`/generate/full`): lines of `intermediate_data` between those of `data`.

They are recorded as steps of the attempt when the reply is complete, and are never reused: the server executes them. The reply
is untrusted: any field may have any type, and a line that is not a step is ignored.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from evaljournal.journal.events import StepKind
from evaljournal.runner.calls import ReportedStep
from evaljournal.runner.calls.http.reply import ErrorReply, Reply, ReplyTooLarge
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.errors import is_whole_number
from evaljournal.runner.secrets.masking import excerpt

_PREFIX: Final = "intermediate_data:"
_KINDS: Final[Mapping[str, StepKind]] = {"LLM_END": "model", "TOOL_END": "tool"}
_USAGE: Final = (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
_WORKFLOW: Final = "<workflow>"
"""Name of the function that contains all other steps."""
_MAX_STEPS: Final = 10_000


def read_steps(reply: Reply) -> list[ReportedStep]:
    """Return the steps in a reply, in the order of their ends; raise an `ErrorReply` if the server ended it with an error."""
    if reply.media != "text/event-stream":
        return []
    lines = reply.text().split("\n")
    _raise_error_in(lines[-1])
    starts: dict[str, float] = {}
    steps = [step for line in lines if line.startswith(_PREFIX) for step in _read_step(line.removeprefix(_PREFIX), starts)]
    if len(steps) > _MAX_STEPS:
        raise ReplyTooLarge(f"the reply has more than {_MAX_STEPS:,} steps")
    return steps


def _raise_error_in(line: str) -> None:
    """Raise an `ErrorReply` if the last line is NAT's error, a JSON object without `data:`; the status was sent before it."""
    if not line.startswith("{"):
        return
    with suppress(ValueError):
        error = read_json(line)
        if {"code", "message"} <= error.keys():
            raise ErrorReply(f"the stream ended with an error: {excerpt(line, 500)}", error)


def _read_step(text: str, starts: dict[str, float]) -> Iterator[ReportedStep]:
    """Yield the step that ends in a line; a line that starts a step only adds its time to `starts`."""
    with suppress(ValueError, TypeError, KeyError, AttributeError, OverflowError):
        line = read_json(text)
        payload = read_json(line["payload"])
        event_type, step_id, time = str(payload["event_type"]), str(payload["UUID"]), float(payload["event_timestamp"])
        name = str(payload["name"] or event_type)

        if event_type.endswith("_START"):
            starts[step_id] = time
        is_workflow = event_type == "WORKFLOW_END" or name == _WORKFLOW
        if is_workflow or not event_type.endswith("_END") or not math.isfinite(time):
            return  # The output has the end of the workflow.

        start = float(payload.get("span_event_timestamp") or starts.get(step_id, time))
        kind: StepKind = _KINDS.get(event_type, "other")
        data, usage = payload.get("data") or {}, None
        value = data.get("input")
        if kind == "model":  # NAT names the step after the model.
            value = {"model": name, "input": value}
            tokens = (payload.get("usage_info") or {}).get("token_usage") or {}
            usage = {unit: tokens[nat_unit] for nat_unit, unit in _USAGE if is_whole_number(tokens.get(nat_unit), 1)}

        parent, elapsed = str(line.get("parent_id")), max(0.0, time - start)
        yield ReportedStep(step_id, parent, name, kind, start, elapsed, value, data.get("output"), usage or None)
