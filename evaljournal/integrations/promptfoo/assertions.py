"""Assertions of a test as the scorer `assertions` takes them: literal values, and Python functions by name."""

import keyword
import re
import textwrap
from collections.abc import Mapping
from typing import Any, Final

import attrs

from evaljournal.integrations.promptfoo import nunjucks
from evaljournal.integrations.promptfoo.project import FILE, NotMapped, Project, Value, json_text, numbered
from evaljournal.integrations.promptfoo.prompts import messages_in
from evaljournal.integrations.promptfoo.providers import read_provider
from evaljournal.integrations.promptfoo.scorer.case_assertions import COLUMN, GRADED, TYPES, assertions_of
from evaljournal.runner.calls.chat import is_messages
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.fingerprint import parse
from evaljournal.runner.errors import UsageError

_KEYS: Final = ("type", "value", "threshold", "weight", "metric", "provider", "config", "rubricPrompt")
_CATEGORIES: Final = {"subset": "A", "superset": "B", "agree": "C", "disagree": "D", "differButFactual": "E"}
"""Categories of `factuality`."""
_GRADING_FIELDS: Final = ("output", "completion", "input", "rubric", "criteria", "ideal")
"""Variables of grading prompts in addition to those of the test."""
DEFAULT_GRADER: Final = "gpt-5.5-2026-04-23"
"""The model that promptfoo grades with if the configuration names none."""
_PYTHON_FILE: Final = re.compile(r"(?:file://)?(.+\.py)(?::(\w+))?")


@attrs.frozen
class Function:
    reference: str
    """`checks.py:get_assert`; empty if the configuration has its code."""
    body: str
    """The indented code; empty if it is in a file."""
    config: Any


@attrs.define
class AssertionReader:
    """Reads assertions, and collects what they need: Python functions and a model that grades."""

    project: Project
    functions: dict[str, Function] = attrs.field(factory=dict[str, Function])
    grader: dict[str, Any] | None = None
    """Options of the model that grades; None if none is needed."""

    def read(self, value: Value, variables: Mapping[str, Any], options: Mapping[str, Value]) -> dict[str, Any]:
        """Return an assertion; raise `NotMapped` if it has no counterpart."""
        fields = value.fields("an assertion")
        if "type" not in fields:
            if "$ref" in fields:
                raise NotMapped("$ref has no counterpart")
            raise value.error("the assertion has no type")
        kind = fields["type"].text("type")
        if kind == "assert-set":
            return _checked(self._read_set(value, fields, variables, options))

        base = kind.removeprefix("not-").replace("model-graded-factuality", "factuality")
        if base not in TYPES:
            raise NotMapped(f"the type {kind[:60]!r} has no counterpart")
        for key in fields:
            is_other_key = key in {"provider", "rubricPrompt"} and base not in GRADED
            if key not in _KEYS or is_other_key or (key == "config" and base != "python"):
                raise NotMapped(f"{key!r} of the assertion has no counterpart")

        assertion: dict[str, Any] = {"type": kind.replace("model-graded-factuality", "factuality")}
        if "value" in fields and fields["value"].data is not None:
            is_python = base == "python"
            assertion["value"] = self._function(fields) if is_python else self._value(fields["value"], variables)

        graded = self._grading({**options, **fields}, base, variables) if base in GRADED else {}
        return _checked(assertion | graded | _common(fields, variables))

    def _grading(self, fields: Mapping[str, Value], base: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of an assertion that a model grades, and set that model."""
        self._use_grader(fields.get("provider"))
        grading: dict[str, Any] = {}
        if "rubricPrompt" in fields:
            grading["prompt"] = self._grading_prompt(fields["rubricPrompt"], variables)
        if base == "factuality" and "factuality" in fields:
            scores = fields["factuality"].fields("factuality")
            names = {name: category for name, category in _CATEGORIES.items() if name in scores}
            grading["scores"] = {category: scores.pop(name).number(name) for name, category in names.items()}
            self.project.omit_keys(scores, "factuality")
        return grading

    def _read_set(
        self, value: Value, fields: dict[str, Value], variables: Mapping[str, Any], options: Mapping[str, Value]
    ) -> dict[str, Any]:
        for key in fields:
            if key not in {"type", "assert", "threshold", "weight", "metric"}:
                raise NotMapped(f"{key!r} of an assert-set has no counterpart")
        if "assert" not in fields:
            raise value.error("the assert-set has no assert")
        items = [self.read(item, variables, options) for item in fields["assert"].items("assert")]
        return {"type": "assert-set", "assert": items, **_common(fields, variables)}

    def _value(self, value: Value, variables: Mapping[str, Any]) -> Any:
        """Return the value of an assertion, with variables replaced and files read."""
        match value.data:
            case str() if value.data.startswith(FILE):
                content = self.project.content(value).plain
                return content.strip() if isinstance(content, str) else content
            case str():
                return nunjucks.render(value.data, variables)
            case list():
                return [self._value(item, variables) if isinstance(item.data, str) else item.plain for item in value.items("")]
            case _:
                if '"$ref":' in json_text(value.plain):
                    raise NotMapped("$ref has no counterpart: promptfoo resolves it in the configuration")
                return value.plain

    def _grading_prompt(self, value: Value, variables: Mapping[str, Any]) -> Any:
        content = self.project.content(value)
        prompt = content.plain
        if isinstance(prompt, str):
            prompt = messages_in(prompt, content) or prompt
        elif not is_messages(prompt):
            raise NotMapped("a rubricPrompt that is not one prompt has no counterpart")

        for path in nunjucks.variables(prompt):
            if path[0] not in {*_GRADING_FIELDS, *variables}:
                raise NotMapped(f"the rubricPrompt has an unknown variable {path[0]!r}")
        # promptfoo also calls the output completion.
        return nunjucks.map_texts(lambda text: nunjucks.to_template(text).replace("{completion}", "{output}"), prompt)

    def _function(self, fields: Mapping[str, Value]) -> str:
        """Return the name of a Python function: one in a file, or one made of the code in the assertion."""
        value = fields["value"]
        code, config = value.text("the value of a python assertion"), fields["config"].plain if "config" in fields else None
        if match := _PYTHON_FILE.fullmatch(code.strip()):
            name = match[2] or "get_assert"
            if not name.isidentifier() or keyword.iskeyword(name):
                raise value.error(f"{name!r} is not the name of a function")
            return self._name(name, Function(f"{self.project.path(match[1], value)}:{name}", "", config))

        if nunjucks.is_template(code):  # Data would become code.
            raise NotMapped("a template in code has no counterpart; use context['vars']")
        body = textwrap.indent(code.rstrip() if "\n" in code else f"return {code.strip()}", "    ")
        try:
            parse(f"def check(output, context):\n{body}\n")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
            raise value.error(f"the code of the assertion is not valid Python: {exc}") from exc
        return self._name("check", Function("", body, config))

    def _name(self, name: str, function: Function) -> str:
        """Return the name of a function, a new one if there is none yet."""
        for other_name, other_function in self.functions.items():
            if other_function == function:
                return other_name
        unused_name = next(candidate for candidate in numbered(name, "_") if candidate not in self.functions)
        self.functions[unused_name] = function
        return unused_name

    def _use_grader(self, value: Value | None) -> None:
        """Set the model that grades; raise `NotMapped` if another one was set."""
        options: dict[str, Any] = {"judge": DEFAULT_GRADER}
        if value is not None:
            is_nested = isinstance(value.data, dict) and "text" in value.data
            entry = value.fields("provider")["text"] if is_nested else value
            provider = read_provider(entry, self.project)
            if provider.kind != "chat":
                raise NotMapped("a grader that is not a chat model has no counterpart")
            names = {"chat": "judge", "base-url": "judge-url", "key-env": "judge-key-env"}
            options = {names[key]: item for key, item in provider.options.items() if key in names}
            defaults = {"temperature": 0, "max-tokens": 1024}  # promptfoo's; our judge has its own.
            for key, item in sorted(provider.options.items()):
                if key not in names and defaults.get(key) != item:
                    self.project.omit(entry, f"{key} of the grader is not mapped")

        if self.grader not in (None, options):
            raise NotMapped("its grader differs from that of the assertions before it")
        self.grader = options


def _common(fields: Mapping[str, Value], variables: Mapping[str, Any]) -> dict[str, Any]:
    common: dict[str, Any] = {key: fields[key].number(key) for key in ("threshold", "weight") if key in fields}
    if "metric" in fields and fields["metric"].data is not None:
        common["metric"] = nunjucks.render(fields["metric"].text("metric"), variables)
    return common


def _checked(assertion: dict[str, Any]) -> dict[str, Any]:
    """Return an assertion; raise `NotMapped` if the scorer rejects it."""
    try:
        assertions_of(Case(input=None, metadata={COLUMN: [assertion]}))
    except UsageError as exc:
        raise NotMapped(str(exc)) from exc
    return assertion
