"""The steps of an attempt as text: one line for each, or with all messages and tool calls. Their content is untrusted."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from evaljournal.journal import Blob
from evaljournal.replay.provider.messages import Message, messages_of, reply_of
from evaljournal.replay.render import summary as summary_text
from evaljournal.replay.render.phrases import waited_text
from evaljournal.replay.runs.trajectory import StepDetails, steps_with_depth
from evaljournal.replay.runs.trial import AttemptDetails
from evaljournal.replay.state.known_limits import parse_need
from evaljournal.replay.state.usage import is_amount
from evaljournal.replay.text import (
    as_lines,
    as_text,
    as_words,
    duration,
    escape_controls,
    money,
    number,
    one_line,
    plural,
    printable,
)

_VALUE_CHARS: Final = 60
_ERROR_CHARS: Final = 200
_NAME_CHARS: Final = 40
_LABEL_WIDTH: Final = 10
_UNITS: Final = {
    "input_tokens": "in",
    "prompt_tokens": "in",
    "output_tokens": "out",
    "completion_tokens": "out",
    "tokens": "tokens",
    "cost": "",
}
_JSON_LINE_CHARS: Final = 100
"""Longer JSON is indented."""


def trajectory_lines(attempt: AttemptDetails, *, full: bool, comparison: Iterable[str] = ()) -> Iterator[str]:
    """Yield the steps of an attempt; with `full`, all of their messages and tool calls.

    `comparison` are lines about how its steps were compared with those of earlier attempts.
    """
    if attempt.reuses:
        yield reuse_text(attempt)
        yield from comparison
    if not attempt.steps:
        return

    usage = summary_text.billed_usage(attempt.step_usage)
    usage_suffix = f" · {summary_text.usage_text(usage, {})}" if usage else ""
    replayed = sum(step.is_replayed for step in attempt.steps)
    replayed_text = f", {replayed:,} replayed" if replayed else ""
    executed = plural(len(attempt.steps) - attempt.reused_steps - replayed, "step")
    yield f"{executed} executed{replayed_text}{usage_suffix}"

    steps_by_number = {step.number: step for step in attempt.steps}
    for depth, step in steps_with_depth(attempt.steps):
        if full:
            yield from (f"{'  ' * depth}{line}" for line in _step_lines(step, steps_by_number.get(step.continues)))
        else:
            yield _step_line(step, depth)


def reuse_text(attempt: AttemptDetails) -> str:
    """Return how many steps of earlier attempts an attempt reused: `reused 9 of 12 steps and diverged at step 10`."""
    text = f"reused {attempt.reused_steps:,} of {plural(attempt.reused_steps + attempt.unused_steps, 'step')}"
    if attempt.diverged_at:
        return f"{text} and diverged at step {attempt.diverged_at:,}"
    return f"{text} and continued at step {attempt.first_executed_step:,}" if attempt.first_executed_step else text


def not_reused_text(note: Any) -> str:
    """Return the note that a step is executed again, because its recorded result cannot be read."""
    fields = note if isinstance(note, Mapping) else {}
    step, problem = as_text(fields.get("step", "")), as_text(fields.get("problem", ""))
    return f"step {one_line(step, _NAME_CHARS)} is executed again; its result could not be read: {one_line(problem, 200)}"


def _step_line(step: StepDetails, depth: int) -> str:
    elapsed = step.outcome if step.is_reused or step.is_replayed else duration(step.elapsed)
    name = f"{'  ' * depth}{printable(step.name, _NAME_CHARS)}"
    result = f"error: {one_line(f'{step.error}: {step.message}', _ERROR_CHARS)}" if step.error else _one_line(_result(step))
    text = f"{step.number:>4,}  {step.kind:<5}  {elapsed:>8}  {name}"
    if step.input is None:  # A set-up or a teardown has neither an input nor an output.
        return f"{text}  {result}" if step.error or step.output is not None else text
    return f"{text}  {_one_line(_request(step))} → {result}{_use(step)}"


def _usage(step: StepDetails) -> str:
    """Return the tokens and the cost of a step, if it was executed: `  (1,203 in, 56 out, $0.0123)`."""
    if step.is_reused or not isinstance(step.usage, dict):
        return ""
    parts = [(unit, step.usage[name]) for name, unit in _UNITS.items() if is_amount(step.usage.get(name))]
    amounts = [money(value) if not unit else f"{number(value)} {unit}" for unit, value in parts]
    return f"  ({', '.join(amounts)})" if amounts else ""


def need_text(need: Any) -> str:
    """Return what a call took from rate limits: `needs 812 tokens, 1 request`; empty if no limit was known."""
    amounts = [plural(round(amount), as_words(unit).removesuffix("s")) for unit, amount in sorted(parse_need(need).items())]
    return f"needs {', '.join(reversed(amounts))}" if amounts else ""


def _use(step: StepDetails) -> str:
    """Return what a step used, and how long it waited for rate limits: `  (9 in, 4 out)  needs 812 tokens, waited 1.3 s`."""
    waited = waited_text(step.waited) if step.waited > 0 else ""
    text = ", ".join(filter(None, (need_text(step.need), waited)))
    return f"{_usage(step)}{f'  {text}' if text else ''}"


def _request(step: StepDetails) -> Any:
    """Return the input of a step, or the last message that it sent to a model."""
    messages = messages_of(step.input) if step.kind == "model" else []
    return messages[-1] if messages else step.input


def _result(step: StepDetails) -> Any:
    reply = reply_of(step.output) if step.kind == "model" else None
    return step.output if reply is None else reply


def _one_line(value: Any) -> str:
    if isinstance(value, Blob):
        return printable(value)
    return one_line(message_text(value, " ") if isinstance(value, Message) else as_text(value), _VALUE_CHARS)


def message_text(message: Message, separator: str = "\n") -> str:
    calls = (f"{call.name}({as_text(call.arguments)})" for call in message.tool_calls)
    return separator.join(filter(None, (message.text, *calls)))


def _step_lines(step: StepDetails, previous_step: StepDetails | None) -> Iterator[str]:
    """Yield all messages of a step, without those of the step that it continues."""
    outcome = step.outcome if step.is_replayed else f"{step.outcome} after {duration(step.elapsed)}"
    if step.is_reused:
        outcome = f"reused from attempt {step.reused_from}"
    yield f"step {step.number:,}  {step.kind}  {printable(step.name, 200)}  {outcome} · seq {step.seq:,}{_use(step)}"
    if step.is_reused:
        return

    messages = messages_of(step.input) if step.kind == "model" else []
    if messages:
        previous_messages = messages_of(previous_step.input) if previous_step is not None else []
        if previous_messages and messages[: len(previous_messages)] == previous_messages:
            yield f"  {'':<{_LABEL_WIDTH}}({plural(len(previous_messages), 'message')} as in step {step.continues:,})"
            messages = messages[len(previous_messages) :]
        for message in messages:
            yield from _block(message.role or "other", message_text(message))
    else:
        yield from _block("input", _text(step.input))

    if step.error:
        yield from _block("error", f"{step.error}: {step.message}")
    else:
        reply = _result(step)
        is_reply = isinstance(reply, Message)
        yield from _block("reply" if is_reply else "output", message_text(reply) if is_reply else _text(reply))


def _text(value: Any) -> str:
    if isinstance(value, Blob):
        return f"(missing blob of {value.bytes:,} bytes)"
    return as_lines(value, _JSON_LINE_CHARS)


def _block(label: str, text: str) -> Iterator[str]:
    """Yield the lines of a text, the first one with a label."""
    for index, line in enumerate(text.splitlines() or [""]):
        name = "" if index else printable(label, _LABEL_WIDTH - 1)
        yield f"  {name:<{_LABEL_WIDTH}}{escape_controls(line.expandtabs())}".rstrip()
