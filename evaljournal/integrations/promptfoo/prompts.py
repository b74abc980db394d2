"""Prompts of a promptfoo configuration: texts, files and lists of chat messages."""

import csv
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any, Final

import attrs

from evaljournal.integrations.promptfoo import nunjucks
from evaljournal.integrations.promptfoo.project import FILE, NotMapped, Project, Value, json_text, parse_yaml, pop_text
from evaljournal.runner.calls.chat import is_messages
from evaljournal.runner.data.exact_json import read_json
from evaljournal.runner.errors import UsageError

_READABLE: Final = frozenset({".txt", ".md", ".json", ".jsonl", ".yaml", ".yml", ".j2", ".csv"})
_CODE: Final = frozenset(
    {".py", ".js", ".cjs", ".mjs", ".ts", ".cts", ".mts", ".sh", ".bash", ".rb", ".pl", ".exe", ".bat", ".ps1"}
)
_DELIMITER: Final = re.compile(r"^\s*---\s*$", re.MULTILINE)


@attrs.frozen
class Prompt:
    label: str
    """The label in the configuration; empty if it has none."""
    source: Value = attrs.field(repr=False)
    raw: Any
    """A Nunjucks text, or a list of messages with such texts."""
    names: frozenset[str] = frozenset()
    """Names by which providers and tests may select it."""

    @property
    def is_chat(self) -> bool:
        """Whether it is a list of messages."""
        return not isinstance(self.raw, str)


def read_prompts(value: Value | None, project: Project) -> list[Prompt]:
    """Return the prompts; those that have no counterpart are omitted."""
    if value is None or value.data in (None, [], {}):
        return [Prompt("", value or Value(None, project.config, 1), "{{prompt}}")]
    if isinstance(value.data, dict):  # An older form: file → label.
        items = [(Value(key, item.path, item.line), item.text("the label of a prompt")) for key, item in value.data.items()]
    else:
        entries = value.items("prompts") if isinstance(value.data, list) else [value]
        items = [(entry, "") for entry in entries]

    prompts: list[Prompt] = []
    for item, label in items:
        try:
            prompts += _prompts(item, label, project)
        except NotMapped as exc:
            project.omit_part("prompts", item, f"the prompt is not imported: {exc}")
    for prompt in prompts:
        project.convert_part("prompts", prompt.source)
    return prompts


def _prompts(item: Value, label: str, project: Project) -> Iterator[Prompt]:
    name = ""
    if isinstance(item.data, dict):
        fields = item.fields("a prompt")
        name, label = pop_text(fields, "id"), pop_text(fields, "label", label)
        raw = fields.pop("raw", None) or Value(name, item.path, item.line)
        project.omit_keys(fields, "prompts")
    else:
        raw = item

    text = raw.text("a prompt")
    if not text.strip():
        raise raw.error("the prompt is empty")

    names = {name, label, text} - {""}
    for content, source in _contents(text, raw, project):
        prompt = Prompt(label, source, messages_in(content, source) or content, frozenset(names | {content}))
        nunjucks.variables(prompt.raw)  # Raises an error if it has more than plain variables.
        yield prompt


def _contents(text: str, value: Value, project: Project) -> Iterator[tuple[str, Value]]:
    """Yield the texts of the prompts in a file; if it is not a file, the text itself."""
    if "\n" in text or text.startswith(("exec:", "portkey://", "langfuse://", "helicone://")):
        if "://" in text[:12] or text.startswith("exec:"):
            raise NotMapped(f"{text.partition(':')[0]}: would be executed or fetched")
        yield text, value
        return

    suffix = Path(text.rpartition(":")[0] if re.search(r"\.\w+:[\w.]+$", text) else text).suffix.lower()
    if not text.startswith(FILE) and suffix not in _READABLE | _CODE:
        yield text, value
        return

    if suffix in _CODE:
        raise NotMapped(f"{text} would be executed")
    for path in project.paths(text, value):
        if path.suffix in _CODE:
            raise NotMapped(f"{path.name} would be executed")
        for content in _file_contents(path, project):
            yield content, Value(content, path, 1)


def _file_contents(path: Path, project: Project) -> list[str]:
    match path.suffix.lower():
        case ".txt":
            return [part.strip() for part in _DELIMITER.split(project.read(path)) if part.strip()]
        case ".yaml" | ".yml":
            return [json_text(project.read_values(path).plain)]
        case ".jsonl":
            return [line for line in project.read(path).split("\n") if line.strip()]
        case ".csv":
            rows = csv.DictReader(StringIO(project.read(path), newline=""), skipinitialspace=True)
            if "prompt" not in (rows.fieldnames or ()):
                raise UsageError("a CSV file of prompts needs a column 'prompt'", path=path, line=1)
            return [row["prompt"] for row in rows if row["prompt"]]
        case _:
            return [project.read(path)]


def messages_in(text: str, source: Value) -> Any:
    """Return a list of chat messages in a text; None if the text is a prompt itself."""
    start = text.lstrip()[:1]
    if start in {"[", "{"}:
        try:
            messages = read_json(text)
        except ValueError:
            if '"role"' in text:
                raise NotMapped("the messages are JSON only after their templates are filled") from None
            return None
    elif text.lstrip().startswith("- role:"):
        messages = parse_yaml(text, source.path).plain
    else:
        return None

    if not is_messages(messages):
        raise NotMapped("it is JSON, but not a list of messages")
    return messages
