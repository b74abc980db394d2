"""Tests of a promptfoo configuration as rows of a dataset: one for each combination of variables.

In a CSV file of tests, a row is a test, `__expected` its assertion, and most other columns are variables.
"""

import csv
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Final

import attrs

from evaljournal.integrations.promptfoo import nunjucks
from evaljournal.integrations.promptfoo.assertions import AssertionReader
from evaljournal.integrations.promptfoo.project import (
    FILE,
    MAX_BYTES,
    NotMapped,
    Project,
    Value,
    json_text,
    parse_json,
    pop_text,
    present,
    with_place,
)
from evaljournal.integrations.promptfoo.prompts import Prompt
from evaljournal.integrations.promptfoo.providers import ImportedProvider
from evaljournal.integrations.promptfoo.scorer.json_checks import number_text
from evaljournal.runner.errors import UsageError

_ALL_TYPES: Final = """
agent-rubric answer-relevance bleu classifier contains contains-all contains-any contains-html contains-json contains-sql
contains-xml context-faithfulness context-recall context-relevance conversation-relevance cost equals factuality finish-reason
g-eval gleu guardrails icontains icontains-all icontains-any is-html is-json is-refusal is-sql is-valid-function-call
is-valid-openai-function-call is-valid-openai-tools-call is-xml javascript latency levenshtein llm-rubric pi meteor
model-graded-closedqa model-graded-factuality moderation perplexity perplexity-score python regex rouge-n ruby similar
similar:cosine similar:dot similar:euclidean starts-with tool-call-f1 skill-used search-rubric webhook word-count
"""
_TYPES: Final = frozenset(_ALL_TYPES.split())
"""Types of assertions in promptfoo; a cell that starts with anything else is compared as text."""
_THRESHOLDS: Final = frozenset({"cost", "latency", "levenshtein", "starts-with"})
_EXPECTED: Final = re.compile(r"(not-)?([a-z][a-z0-9:-]*?)(?:\((\d+(?:\.\d+)?)\))?(?::(.*))?", re.DOTALL)
_COLUMN_NAMES: Final = """
__expected __description __providerOutput __prefix __suffix __metric __threshold __metadata
"""
_COLUMNS: Final = tuple(_COLUMN_NAMES.split())
_METADATA: Final = "__metadata:"
_THRESHOLD: Final = re.compile(r"__config:__expected([1-9]\d{0,3}|):threshold")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")

_MAX_ROWS: Final = 100_000
_MAX_LENGTH: Final = 10 * MAX_BYTES
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f#@]{1,80}")
"""A description that can be the name of a case."""
_NOT_TEXT_SUFFIXES: Final = """
.py .js .cjs .mjs .ts .cts .mts .pdf .png .jpg .jpeg .gif .bmp .webp .svg .tif .tiff .ico .avif .heic .heif .mp3 .wav .ogg .m4a
.flac .aac .opus .wma .aiff .mp4 .mov .avi .webm .mkv .wmv .m4v
"""
_NOT_TEXT: Final = frozenset(_NOT_TEXT_SUFFIXES.split())
"""Files that promptfoo executes or sends as data."""
_CHANGES_TEST: Final = ("provider", "providerOutput", "assertScoringFunction")
"""Keys of a test without which it would be another test."""
_CHANGES_PROMPT: Final = ("transformVars", "prefix", "suffix", "storeOutputAs")
_CHANGES_OUTPUT: Final = ("transform", "postprocess")
_OPTIONS: Final = (
    "provider",
    "rubricPrompt",
    "factuality",
    "disableVarExpansion",
    "disableDefaultAsserts",
    "disableConversationVar",
)


def csv_tests(text: str, path: Path) -> Iterator[Value]:
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    header: list[str] = []
    line = 1
    try:
        for row in reader:
            start, line = line, reader.line_num + 1
            if not header:
                header = [name.strip() for name in row]
                if len(set(header)) < len(header):
                    raise UsageError("duplicate columns in the header", path=path, line=start)
            elif row:
                if len(row) != len(header):
                    raise UsageError(f"{len(row)} columns, expected {len(header)}", path=path, line=start)
                yield with_place(_csv_test(dict(zip(header, row, strict=True)), path, start), path, start)
    except csv.Error as exc:
        raise UsageError(f"not valid CSV: {exc}", path=path, line=line) from exc


def _csv_test(cells: dict[str, str], path: Path, line: int) -> dict[str, Any]:
    """Return a row as a test; columns that start with `__` are not variables."""
    texts = {name: text for name, text in cells.items() if text.strip()}
    assertions = [assertion_from_text(text.strip()) for name, text in texts.items() if name.startswith("__expected")]

    if metric := texts.get("__metric"):
        assertions = [{**assertion, "metric": metric} for assertion in assertions]

    for name, text in cells.items():
        if match := _THRESHOLD.fullmatch(name):
            if not _NUMBER.fullmatch(text.strip()):
                raise UsageError(f"{name} must be a number, not {text!r}", path=path, line=line)
            if (index := int(match[1] or 1) - 1) < len(assertions):
                assertions[index]["threshold"] = float(text)

    metadata = [_metadata(name.removeprefix(_METADATA), text) for name, text in texts.items() if name.startswith(_METADATA)]
    test: dict[str, Any] = {"vars": {name: text for name, text in cells.items() if not name.startswith("__")}}
    test |= {"assert": assertions, "metadata": dict(metadata)}
    test["options"] = {name[2:]: texts[name] for name in ("__prefix", "__suffix") if name in texts}
    test |= {name[2:]: texts[name] for name in ("__description", "__providerOutput") if name in texts}
    if _NUMBER.fullmatch(texts.get("__threshold", "").strip()):
        test["threshold"] = float(texts["__threshold"])

    unknown_names = [name for name in texts if name.startswith("__") and not name.startswith(_COLUMNS)]
    return test | {name: texts[name] for name in unknown_names if not _THRESHOLD.fullmatch(name)}


def _metadata(key: str, text: str) -> tuple[str, Any]:
    """Return a cell of metadata; a name that ends with `[]` has several values."""
    if not key.endswith("[]"):
        return key, text
    return key[:-2], [item.strip().replace("\\,", ",") for item in re.split(r"(?<!\\),", text)]


def assertion_from_text(text: str) -> dict[str, Any]:
    """Return the assertion in a cell of `__expected`: `contains:Lima`, `levenshtein(5):Lima`, or a text that must be equal."""
    if match := re.match(r"(javascript|fn|eval):", text):
        return {"type": "javascript", "value": text[match.end() :].strip()}
    if match := re.match(r"(grade|llm-rubric):", text):
        return {"type": "llm-rubric", "value": text[match.end() :]}
    if re.fullmatch(r"file://.*\.[cm]?[jt]s(:\w+)?", text):
        return {"type": "javascript", "value": text}
    if match := re.match(r"python:|file://(?=.*\.py(?:$|:))", text):
        return {"type": "python", "value": text[match.end() :].strip()}

    match = _EXPECTED.fullmatch(text)
    if match is None or match[2] not in _TYPES:
        return {"type": "equals", "value": text}
    assertion: dict[str, Any] = {"type": f"{match[1] or ''}{match[2]}"}
    if match[4] is not None:
        assertion["value"] = match[4] if match[2].endswith("-json") else match[4].strip()
    if match[2] in _THRESHOLDS:
        assertion["threshold"] = float(match[3]) if match[3] else 0.75
    return assertion


@attrs.define
class Cases:
    project: Project
    assertions: AssertionReader
    prompts: Sequence[Prompt]
    providers: Sequence[ImportedProvider]
    default: dict[str, Value] = attrs.field(factory=dict[str, Value])
    rows: list[dict[str, Any]] = attrs.field(factory=list[dict[str, Any]])
    _length: int = 0

    def read(self, tests: Value | None, scenarios: Value | None, default: Value | None) -> None:
        if default is not None:
            try:
                self.default = present(self.project.content(default).fields("defaultTest"))
            except NotMapped as exc:
                self.project.omit(default, f"defaultTest is not imported: {exc}")

        entries = [] if tests is None else self._entries(tests)
        for scenario in [] if scenarios is None else scenarios.items("scenarios"):
            entries += self._scenario_entries(scenario)
        if not entries and scenarios is None and (tests is None or tests.data == []):
            entries = [(Value({}, self.project.config, 1), {})]

        for source, fields in entries:
            try:
                self._add(source, fields)
                self.project.convert_part("tests", source)
            except NotMapped as exc:
                self.project.omit_part("tests", source, f"the test is not imported: {exc}")
        self._name_rows()

    def _entries(self, value: Value) -> list[tuple[Value, dict[str, Value]]]:
        """Return each test with its fields."""
        return [(test, test.fields("a test")) for test in self._tests(value)]

    def _tests(self, value: Value) -> Iterator[Value]:
        """Yield the tests of a list, or of the files that it names."""
        for item in value.items("tests") if isinstance(value.data, list) else [value]:
            try:
                if isinstance(item.data, dict) and "path" not in item.data:
                    yield item
                else:
                    path = item.fields("tests")["path"] if isinstance(item.data, dict) else item
                    yield from self._file_tests(path)
            except NotMapped as exc:
                self.project.omit_part("tests", item, f"the tests are not imported: {exc}")

    def _file_tests(self, value: Value) -> Iterator[Value]:
        reference = value.text("tests")
        if "://" in reference and not reference.startswith(FILE):
            raise NotMapped(f"{reference} would be fetched")
        if re.search(r"\.(py|[cm]?[jt]s)(:\w+)?$", reference):
            raise NotMapped(f"{reference} would be executed")

        for path in self.project.paths(reference, value):
            match path.suffix:
                case ".csv":
                    yield from csv_tests(self.project.read(path), path)
                case ".jsonl":
                    for number, line in enumerate(self.project.read(path).split("\n"), 1):
                        if line.strip():
                            yield parse_json(line, path, number)
                case ".json" | ".yaml" | ".yml":
                    content = self.project.read_values(path)
                    yield from content.items("tests") if isinstance(content.data, list) else [content]
                case _:
                    raise NotMapped(f"{path.name} is not CSV, JSON, JSONL or YAML")

    def _scenario_entries(self, value: Value) -> list[tuple[Value, dict[str, Value]]]:
        """Return the tests of a scenario: each of its tests with each of its configurations."""
        try:
            contents = self.project.content(value)
        except NotMapped as exc:
            self.project.omit(value, f"the scenario is not imported: {exc}")
            return []

        entries: list[tuple[Value, dict[str, Value]]] = []
        for scenario in contents.items("scenarios") if isinstance(contents.data, list) else [contents]:
            fields = scenario.fields("a scenario")
            fields.pop("description", None)
            configs = self._entries(fields.pop("config")) if "config" in fields else []
            if not configs:
                raise scenario.error("the scenario has no config")
            tests = self._entries(fields.pop("tests")) if "tests" in fields else [(scenario, {})]
            self.project.omit_keys(fields, "scenarios")

            for (_, config), (source, test) in itertools.product(configs, tests):
                merged = {**config, **test}
                for key in ("vars", "options", "metadata"):
                    if key in config and key in test:
                        merged[key] = attrs.evolve(test[key], data={**config[key].fields(key), **test[key].fields(key)})
                if "assert" in config and "assert" in test:
                    merged["assert"] = attrs.evolve(
                        test["assert"], data=[*config["assert"].items("assert"), *test["assert"].items("assert")]
                    )
                entries.append((source, merged))
        return entries

    def _add(self, source: Value, fields: dict[str, Value]) -> None:
        fields, default = present(fields), dict(self.default)
        options, metadata = (
            {**_fields(default.pop(key, None), key), **_fields(fields.pop(key, None), key)} for key in ("options", "metadata")
        )

        variables = {**self._vars(default.pop("vars", None)), **self._vars(fields.pop("vars", None))}
        is_default_used = not _is_true(options.get("disableDefaultAsserts"))
        default_assertions = default.pop("assert").items("assert") if "assert" in default else []
        own_assertions = fields.pop("assert").items("assert") if "assert" in fields else []
        assertions = [*(default_assertions if is_default_used else []), *own_assertions]

        description = pop_text(fields, "description")
        fields = {**default, **fields}
        threshold = fields.pop("threshold").number("threshold") if "threshold" in fields else None
        self._check_keys(fields, options)

        row: dict[str, Any] = {"description": description} if description else {}
        row |= {"metadata": {key: value.plain for key, value in metadata.items()}} if metadata else {}
        is_expanded = not _is_true(options.get("disableVarExpansion"))

        for values in self._products(variables, source, is_expanded=is_expanded):
            resolved = self._resolve(values)
            checks, omitted_types = self._read_assertions(assertions, resolved, options)
            if omitted_types and not checks:
                self.project.omit(source, "no assertion of this test is imported: its output would not be checked")
            column: Any = checks if threshold is None else {"assert": checks, "threshold": threshold}
            self._append(
                {"vars": resolved, **row, "assert": column, **({"omitted_assertions": omitted_types} if omitted_types else {})},
                source,
            )

    def _check_keys(self, fields: dict[str, Value], options: dict[str, Value]) -> None:
        """Raise `NotMapped` for keys without which it would be another test; list others that are not mapped."""
        for key, items in (
            ("providers", [{provider.id, provider.label} for provider in self.providers]),
            ("prompts", [prompt.names for prompt in self.prompts]),
        ):
            names = {item.text(key) for item in fields.pop(key).items(key)} if key in fields else None
            if names is not None and not all(names & item for item in items):
                raise NotMapped(f"it is for some {key} only")

        for names_of_keys, owner in ((_CHANGES_TEST, fields), (_CHANGES_PROMPT, options)):
            for name in names_of_keys:
                if name in owner:
                    raise NotMapped(f"{name!r} has no counterpart")

        self.project.omit_keys(fields, "tests")
        self.project.omit_keys({key: options[key] for key in options if key not in {*_OPTIONS, *_CHANGES_OUTPUT}}, "options")

    def _append(self, row: dict[str, Any], source: Value) -> None:
        self._length += len(json_text(row))
        if len(self.rows) >= _MAX_ROWS or self._length > _MAX_LENGTH:
            limit = f"{_MAX_ROWS:,} tests or {_MAX_LENGTH // 1_000_000} MB"
            raise source.error(f"the variables expand to more than {limit}; convert them to a dataset")
        self.rows.append(row)

    def _vars(self, value: Value | None) -> dict[str, Value]:
        """Return variables; they may be in YAML files."""
        if value is None or isinstance(value.data, dict):
            return _fields(value, "vars")
        variables: dict[str, Value] = {}
        for item in value.items("vars") if isinstance(value.data, list) else [value]:
            for path in self.project.paths(item.text("vars"), item, item.path.parent):
                variables |= self.project.read_values(path).fields("vars")
        return variables

    def _products(self, variables: dict[str, Value], source: Value, *, is_expanded: bool) -> Iterator[dict[str, Any]]:
        lists: dict[str, list[Any]] = {}
        for name, value in variables.items():
            is_list = is_expanded and isinstance(value.data, list) and value.data and isinstance(value.data[0].data, str)
            items = value.items("") if is_list else [value]
            lists[name] = [content for item in items for content in self._contents(item)]

        if math.prod(map(len, lists.values())) > _MAX_ROWS:
            raise source.error(f"the variables have more than {_MAX_ROWS:,} combinations")
        for combination in itertools.product(*lists.values()):
            yield dict(zip(lists, combination, strict=True))

    def _contents(self, value: Value) -> list[Any]:
        """Return the value of a variable; for a file, its content."""
        if not (isinstance(value.data, str) and value.data.startswith(FILE)):
            return [value.plain]
        contents: list[Any] = []
        for path in self.project.paths(value.data, value):
            match path.suffix.lower():
                case ".yaml" | ".yml":
                    contents.append(json_text(self.project.read_values(path).plain))
                case suffix if suffix in _NOT_TEXT:
                    raise NotMapped(f"the variable {value.data} would be executed or is not text")
                case _:
                    contents.append(self.project.read(path).strip())
        return contents

    def _resolve(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return variables with references to other variables replaced, and those that prompts need."""
        resolved = self._fill_variables({name: _normal(value) for name, value in values.items()})
        for prompt in self.prompts:
            for path in nunjucks.variables(prompt.raw):
                self._fill_missing(resolved, path)
                text = nunjucks.text_of(nunjucks.value_at(resolved, path), path)
                if prompt.is_chat and len(path) == 1:
                    resolved[path[0]] = text  # A number alone would otherwise be the content of a message.

        for path in {path for provider in self.providers for path in provider.variables}:
            self._fill_missing(resolved, path)
        return resolved

    def _fill_variables(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Replace the references of variables to others."""
        for _ in range(5):  # As in promptfoo.
            for name, text in _templates(variables):
                if all(len(path) == 1 and path[0] in variables for path in nunjucks.variables(text)):
                    variables[name] = nunjucks.render(text, variables)

        for name, text in _templates(variables):
            if any(prompt.is_chat for prompt in self.prompts):  # There, promptfoo does not fill it.
                raise NotMapped(f"the variable {name} contains a template")
            if all(path[0] in variables for path in nunjucks.variables(text)):
                variables[name] = nunjucks.render(text, variables)
        return variables

    @staticmethod
    def _fill_missing(variables: dict[str, Any], path: tuple[str, ...]) -> None:
        """Add a variable that a prompt has and the test does not: promptfoo leaves its place empty."""
        if len(path) == 1:
            variables.setdefault(path[0], "")
        elif nunjucks.value_at(variables, path) is None:
            raise NotMapped(f"it has no variable {'.'.join(path)}")

    def _read_assertions(
        self, values: list[Value], variables: Mapping[str, Any], options: Mapping[str, Value]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the assertions, and the type and line of each that is not imported."""
        assertions: list[dict[str, Any]] = []
        omitted_types: list[str] = []
        for value in values:
            try:
                for name in _CHANGES_OUTPUT:
                    if name in options:
                        raise NotMapped(f"options.{name} changes the output before it is checked")
                assertions.append(self.assertions.read(value, variables, options))
                self.project.convert_part("assertions", value)
            except NotMapped as exc:
                self.project.omit_part("assertions", value, f"the assertion is not imported: {exc}")
                omitted_types.append(f"{_type_of(value)} (line {value.line})")
        return assertions, omitted_types

    def _name_rows(self) -> None:
        """Use the descriptions that are unique as names of the cases."""
        counts = Counter(row.get("description", "") for row in self.rows)
        for index, row in enumerate(self.rows):
            description = row.get("description", "")
            if counts[description] == 1 and description.strip() and _NAME.fullmatch(description):
                self.rows[index] = {"id": row.pop("description"), **row}


def _fields(value: Value | None, name: str) -> dict[str, Value]:
    return {} if value is None else value.fields(name)


def _templates(variables: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, text) for name, text in variables.items() if isinstance(text, str) and nunjucks.is_template(text)]


def _is_true(value: Value | None) -> bool:
    return value is not None and value.data is True


def _type_of(value: Value) -> str:
    kind = value.data.get("type") if isinstance(value.data, dict) else None
    return kind.data[:60] if isinstance(kind, Value) and isinstance(kind.data, str) else "assertion"


def _normal(value: Any) -> Any:
    """Return the value of a variable as promptfoo uses it: without a final line break, never null, numbers as in JavaScript."""
    match value:
        case None:
            return ""
        case str():
            return value.removesuffix("\n")
        case float():
            text = number_text(value)
            return value if json_text(value) == text else text
        case _:
            return value
