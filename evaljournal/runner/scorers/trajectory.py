"""Built-in scorers of trajectories: which tools an agent called, in which order and how, and how many steps it took.

The tool calls of a trajectory are those that model replies request, and the steps of kind `tool`. A tool step that executes a
call requested by a model is not counted again.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import attrs

from evaljournal.replay.provider.messages import Message, ToolCall, messages_of, reply_of
from evaljournal.replay.runs.trajectory import StepDetails, tool_calls
from evaljournal.replay.text import as_text
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.data.templates import Fields
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.scorers.local import (
    LocalScorerWithParameters,
    MissingExpected,
    bool_score,
    difference_of,
    quote,
    require_expected,
)
from evaljournal.runner.scorers.scorer import Score

_COLUMN: Final = re.compile(r"\{([\w. -]+)\}")
_MAX_VALUE: Final = 4_000
"""Maximum characters of one message, input or output in the text of a trajectory."""
_MAX_STEP: Final = 20_000
"""Maximum characters of one step."""
_MAX_TEXT: Final = 60_000
"""Maximum characters of the text of a trajectory; steps in the middle are omitted."""


class MissingSteps(Fatal):
    """The attempt has no recorded steps."""


def _expected_value(argument: Any, case: Case) -> Any:
    """Return the expected value: the scorer's argument, the column that `{column}` names, or the expected output."""
    if argument is None:
        return require_expected(case.expected)
    column = _COLUMN.fullmatch(argument) if isinstance(argument, str) else None
    return argument if column is None else Fields(case).get(column[1])


def _parse_json(value: Any) -> Any:
    """Return a value; a text that starts like JSON is parsed."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return read_json(value)
    except ValueError as exc:
        raise UsageError(f"{quote(value)} is not JSON: {exc}") from exc


def _names(value: Any) -> list[str]:
    value = _parse_json(value)
    names: Any = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in cast("list[Any]", names)):
        raise MissingExpected(f"expected a list of tool names, not {quote(value)}")
    return list(cast("list[str]", names))


def _call_names(calls: Sequence[ToolCall]) -> str:
    return f"called: {', '.join(call.name for call in calls) or 'no tool'}"


@attrs.frozen
class _Tools(LocalScorerWithParameters):
    tools: str | tuple[str, ...] | None = None
    """Names of tools, or `{column}` for a column with them. None: the expected output is the list."""

    def check(self, case: Case) -> None:
        """Raise a UsageError if the case lacks the column."""
        if self.tools is not None:
            _expected_value(self.tools, case)


@attrs.frozen
class ToolsUsed(_Tools):
    """Passes if each of the tools was called; others may have been called, too."""

    __name__ = "tools_used"

    def __call__(self, trajectory: list[StepDetails], case: Case) -> Score:
        """Score a trajectory."""
        calls = tool_calls(trajectory)
        names = {call.name for call in calls}
        missing_tools = [name for name in _names(_expected_value(self.tools, case)) if name not in names]
        return bool_score(not missing_tools, f"not called: {', '.join(missing_tools)}; {_call_names(calls)}")


@attrs.frozen
class ToolsInOrder(_Tools):
    """Passes if the tools were called in this order; other calls may come before, between and after them."""

    __name__ = "tools_in_order"

    def __call__(self, trajectory: list[StepDetails], case: Case) -> Score:
        """Score a trajectory."""
        calls = tool_calls(trajectory)
        remaining_names = iter([call.name for call in calls])
        missing_tool = next((name for name in _names(_expected_value(self.tools, case)) if name not in remaining_names), None)
        return bool_score(missing_tool is None, f"not called in this order: {missing_tool}; {_call_names(calls)}")


@attrs.frozen
class ToolArgs(LocalScorerWithParameters):
    """Passes if each of the calls was made with at least these arguments."""

    __name__ = "tool_args"

    calls: Any = None
    """Tool → arguments, a list of `{"name": …, "arguments": …}`, or `{column}`. None: the expected output."""

    def check(self, case: Case) -> None:
        """Raise a UsageError if the case lacks the column."""
        if self.calls is not None:
            _expected_value(self.calls, case)

    def __call__(self, trajectory: list[StepDetails], case: Case) -> Score:
        """Score a trajectory."""
        calls = tool_calls(trajectory)
        for name, arguments in _expected_calls(_expected_value(self.calls, case)):
            differences = [_args_difference(call.arguments, arguments) for call in calls if call.name == name]
            if not differences:
                return Score(value=False, reason=f"not called: {name}; {_call_names(calls)}")
            if None not in differences:
                return Score(value=False, reason=f"{name}: {differences[-1]}")
        return Score(value=True)


def _expected_calls(value: Any) -> list[tuple[str, Any]]:
    value = _parse_json(value)
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, list):
        for call in value:
            if not isinstance(call, Mapping) or "name" not in call:
                raise MissingExpected(f'an expected call is {{"name": …, "arguments": …}}, not {quote(call)}')
            pairs.append((call["name"], _parse_json(call.get("arguments", call.get("args", {})))))
    elif isinstance(value, Mapping):
        pairs += value.items()
    else:
        raise MissingExpected(f'expected {{"tool": {{"argument": value}}}} or a list of calls, not {quote(value)}')
    return [(str(name), arguments) for name, arguments in pairs]


def _args_difference(arguments: Any, expected: Any) -> str | None:
    """Describe where the arguments of a call differ from the expected ones; further arguments are ignored."""
    if isinstance(arguments, Mapping) and isinstance(expected, Mapping):
        arguments = {name: value for name, value in cast("Mapping[str, Any]", arguments).items() if name in expected}
        expected = dict(cast("Mapping[str, Any]", expected))
    return difference_of(arguments, expected, "arguments")


@attrs.frozen
class MaxSteps(LocalScorerWithParameters):
    """Passes if the attempt took at most this many steps, reused ones included."""

    __name__ = "max_steps"

    steps: int

    def __attrs_post_init__(self) -> None:
        value: Any = self.steps
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"max_steps({value!r}): expected a number of steps, 1 or more")

    def __call__(self, trajectory: list[StepDetails]) -> Score:
        """Score a trajectory; raise `MissingSteps` if it has no steps."""
        if not trajectory:
            raise MissingSteps("the attempt has no recorded steps; record its calls with step or @durable")
        return bool_score(len(trajectory) <= self.steps, f"{len(trajectory)} steps")


def tools_used(*tools: str) -> ToolsUsed:
    """Return a scorer that passes if each tool was called (default: the expected output is the list of tools)."""
    return ToolsUsed(_tools(tools))


def tools_in_order(*tools: str) -> ToolsInOrder:
    """Return a scorer that passes if the tools were called in this order (default: the expected output is the list)."""
    return ToolsInOrder(_tools(tools))


def _tools(tools: tuple[str, ...]) -> str | tuple[str, ...] | None:
    return None if not tools else tools[0] if len(tools) == 1 and _COLUMN.fullmatch(tools[0]) else tools


def tool_args(calls: Any = None) -> ToolArgs:
    """Return a scorer that passes if tools were called with these arguments: `{"search": {"query": "Lima"}}`."""
    if calls is not None and not (isinstance(calls, str) and _COLUMN.fullmatch(calls)):
        try:
            _expected_calls(calls)
        except MissingExpected as exc:
            raise UsageError(f"tool_args: {exc}") from exc
    return ToolArgs(calls)


max_steps = MaxSteps


def scorer_by_name(name: str, argument: str | None) -> Callable[..., Score] | None:
    """Return a scorer by its name and the text of its argument; None if the name is unknown."""
    is_column = argument is not None and _COLUMN.fullmatch(argument) is not None
    match name:
        case "tools_used" | "tools_in_order":
            tools = () if argument is None else (argument,) if is_column else _names(argument)
            return tools_used(*tools) if name == "tools_used" else tools_in_order(*tools)
        case "tool_args":
            return tool_args(argument if is_column else _parse_json(argument))
        case "max_steps":
            if argument is None or not argument.isdecimal():
                argument_text = "" if argument is None else f", not {argument!r}"
                raise UsageError(f"max_steps takes a number of steps, such as max_steps:10{argument_text}")
            return max_steps(int(argument))
        case _:
            return None


def trajectory_text(trajectory: Iterable[StepDetails]) -> str:
    """Return a trajectory as readable text of limited length: each step with the messages that are new in it."""
    conversation: list[Message] = []
    texts: list[str] = []
    for step in trajectory:
        failure = f" failed: {step.error}: {_clip(step.message)}" if step.error else ""
        lines = [f"{step.number}. {step.kind} {step.name}{failure}"]
        messages = messages_of(step.input) if step.kind == "model" else []
        reply = reply_of(step.output) if step.kind == "model" and not failure else None

        if messages:
            pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(messages, conversation, strict=False))
            lines += map(_line, messages[len(list(pairs)) :])
            conversation = [*messages, reply] if reply is not None else messages
        else:
            lines.append(f"input: {_clip(as_text(step.input))}")

        if not failure:
            lines.append(f"output: {_clip(as_text(step.output))}" if reply is None else _line(reply))

        texts.append(_clip("\n   ".join(lines), _MAX_STEP))
    return _join_steps(texts)


def _line(message: Message) -> str:
    calls = "".join(f"\n   {message.role} calls {call.name}({_clip(as_text(call.arguments))})" for call in message.tool_calls)
    return f"{message.role or 'message'}: {_clip(message.text)}{calls}"


def _clip(text: str, limit: int = _MAX_VALUE) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


def _join_steps(texts: list[str]) -> str:
    """Join the texts of steps; if that is too long, those in the middle are omitted."""
    if sum(map(len, texts)) <= _MAX_TEXT:
        return "\n".join(texts)
    head, tail = _fitting_count(texts, _MAX_TEXT // 2), _fitting_count(texts[::-1], _MAX_TEXT // 2)
    return "\n".join([*texts[:head], f"… ({len(texts) - head - tail} steps omitted)", *texts[len(texts) - tail :]])


def _fitting_count(texts: list[str], limit: int) -> int:
    return next(count for count, length in enumerate(itertools.accumulate(map(len, texts))) if length > limit)
