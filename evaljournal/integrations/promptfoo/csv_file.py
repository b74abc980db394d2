"""CSV files of promptfoo tests: a row is a test, `__expected` its assertion, and most other columns are variables."""

import csv
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any, Final

from evaljournal.integrations.promptfoo.yaml_file import Value, with_place
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


def csv_tests(text: str, path: Path) -> Iterator[tuple[Value, dict[str, Value]]]:
    """Yield the rows of a CSV file as tests."""
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
                test = with_place(_csv_test(dict(zip(header, row, strict=True)), path, start), path, start)
                yield test, test.fields("a test")
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
