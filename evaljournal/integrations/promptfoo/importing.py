"""Converts a promptfoo configuration to files for evaljournal, and lists what has no counterpart.

The importer is frozen: it is kept correct and safe, but gets no more types of assertions, providers or files. What it does not
convert is listed with its line, and its share is printed, so that a user knows what is left to write by hand.
"""

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from keyword import iskeyword
from pathlib import Path
from string import Template
from typing import Any, Final, cast
from urllib.parse import urlsplit

import attrs

from evaljournal.integrations.promptfoo import nunjucks
from evaljournal.integrations.promptfoo.assertions import AssertionReader, Function
from evaljournal.integrations.promptfoo.cases import Cases
from evaljournal.integrations.promptfoo.project import (
    NotMapped,
    Omission,
    Project,
    Value,
    json_text,
    numbered,
    one_line,
    pop_text,
    present,
)
from evaljournal.integrations.promptfoo.prompts import Prompt, read_prompts
from evaljournal.integrations.promptfoo.providers import ImportedProvider, read_providers
from evaljournal.runner.calls.dialects import DEFAULT_DIALECT, dialect_by_name, split_model
from evaljournal.runner.calls.dialects.dialect import Dialect
from evaljournal.runner.errors import UsageError

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

_SLUG: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_SLUG: Final = 40
_NO_EFFECT: Final = ("tags", "$schema")
"""Keys that change nothing."""


def toml_value(value: Any) -> str:
    """Return a value; one with null, which TOML does not have, as a string with JSON."""
    if _has_null(value):
        return toml_value(json.dumps(value, ensure_ascii=False))
    match value:
        case str():
            return _string(value)
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case dict():
            items = [f"{_key(key)} = {toml_value(item)}" for key, item in cast("dict[str, Any]", value).items()]
            return f"{{ {', '.join(items)} }}" if items else "{}"
        case _:
            return f"[{', '.join(map(toml_value, value))}]"


def toml_lines(table: dict[str, Any]) -> str:
    return "".join(f"{_key(key)} = {toml_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _basic_string(key)


def _string(text: str) -> str:
    if "\n" in text and "'''" not in text and not text.endswith("'") and not _CONTROL.search(text):
        return f"'''\n{text}'''"
    return _basic_string(text)


def _basic_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _has_null(value: Any) -> bool:
    match value:
        case None:
            return True
        case dict():
            return any(map(_has_null, cast("dict[str, Any]", value).values()))
        case list():
            return any(map(_has_null, value))
        case _:
            return False


@attrs.frozen
class Imported:
    files: Mapping[Path, str]
    """Path → content; the configuration file is the last one. Empty if no test or no provider can be imported."""
    commands: tuple[str, ...]
    """The commands that run it."""
    omissions: tuple[Omission, ...]
    tests: int
    variants: int
    shares: str
    """How much of the configuration was converted, by kind of part."""
    sent_variables: Mapping[str, Iterable[str]] = attrs.field(factory=dict[str, Iterable[str]])
    """Host → environment variables, such as keys, whose values a run sends there because the configuration says so."""


@attrs.frozen
class _Variant:
    name: str
    provider: ImportedProvider
    prompt: Prompt
    options: dict[str, Any]


def import_config(config: Path, directory: Path) -> Imported:
    """Read a configuration; return the files for `evaljournal run`. Nothing is written, executed or fetched."""
    if config.suffix in {".js", ".cjs", ".mjs", ".ts"}:
        raise UsageError("a configuration in JavaScript would be executed; convert it to YAML or JSON", path=config)
    project = Project(config)
    fields = present(project.read_values(config).fields("a configuration"))
    if not fields:
        raise UsageError("the configuration is empty", path=config)

    description = pop_text(fields, "description")
    for key in _NO_EFFECT:
        fields.pop(key, None)
    if "targets" in fields and "providers" not in fields:
        fields["providers"] = fields.pop("targets")

    prompts = read_prompts(fields.pop("prompts", None), project)
    providers = read_providers(fields.pop("providers", None), project)
    assertions = AssertionReader(project)
    cases = Cases(project, assertions, prompts, providers)
    cases.read(fields.pop("tests", None), fields.pop("scenarios", None), fields.pop("defaultTest", None))

    settings = _settings(fields, project)
    project.omit_keys(fields, "")

    if len(cases.rows) > 1:
        for prompt in [prompt for prompt in prompts if not nunjucks.variables(prompt.raw)]:
            prompts.remove(prompt)
            reason = "it has no variable, so all tests would send the same request"
            project.omit_part("prompts", prompt.source, f"the prompt is not imported: {reason}")

    variants = _variants(providers, prompts, project)
    if not variants or not cases.rows:
        return Imported({}, (), tuple(project.omissions), len(cases.rows), len(variants), project.shares)
    return _Writer(project, directory, description, settings, assertions, cases.rows).write(variants)


def _settings(fields: dict[str, Value], project: Project) -> dict[str, Any]:
    """Return the settings of a run; keys that are mapped are removed from the fields."""
    settings: dict[str, Any] = {}
    for name in ("evaluateOptions", "commandLineOptions"):
        options = fields.pop(name).fields(name) if name in fields else {}
        for key, option in (("maxConcurrency", "slots"), ("repeat", "repeats")):
            if key in options:
                settings[option] = options.pop(key).count(key)
        if "cache" in options and options["cache"].data is False:
            del options["cache"]  # There is no cache.
        project.omit_keys(options, name)
    return settings


def _variants(providers: Iterable[ImportedProvider], prompts: list[Prompt], project: Project) -> list[_Variant]:
    """Return every provider with every prompt it takes."""
    variants: list[_Variant] = []
    names: set[str] = set()
    for provider in providers:
        if not any(map(provider.takes, prompts)):
            project.omit_part("providers", provider.source, "the provider is not imported: it has no prompt")
        for number, prompt in enumerate(prompts, 1):
            if not provider.takes(prompt):
                continue
            try:
                options = provider.with_prompt(prompt)
            except NotMapped as exc:
                project.omit(provider.source, f"the provider is not imported for prompt {number}: {exc}")
                continue
            suffix = f"-{slug(prompt.label) or f'prompt-{number}'}" if len(prompts) > 1 else ""
            name = _unused(f"{slug(provider.label) or provider.kind}{suffix}", names)
            variants.append(_Variant(name, provider, prompt, options))
    return variants


def slug(text: str) -> str:
    return _SLUG.sub("-", text)[:_MAX_SLUG].strip("-.")


def _unused(name: str, names: set[str]) -> str:
    """Return a name, with a number if it is used already, and add it."""
    unused_name = next(candidate for candidate in numbered(name) if candidate.lower() not in names)
    names.add(unused_name.lower())
    return unused_name


@attrs.define
class _Writer:
    project: Project
    directory: Path
    description: str
    settings: dict[str, Any]
    assertions: AssertionReader
    rows: list[dict[str, Any]]
    files: dict[Path, str] = attrs.field(factory=dict[Path, str])
    _prompt_files: dict[str, Path] = attrs.field(factory=dict[str, Path])
    _name: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        config = self.project.config.absolute()
        words = [word for word in config.name.split(".")[:-1] if word != "promptfooconfig"]
        self._name = slug("-".join(words)) or slug(config.parent.name) or "evaluation"

    def write(self, variants: list[_Variant]) -> Imported:
        data = self._file("jsonl", "".join(f"{json_text(row)}\n" for row in self.rows))
        if self.assertions.functions:
            self.files[self._functions_path] = _functions_source(self.project.config, self.assertions.functions)

        commands: list[str] = []
        without_code = [variant for variant in variants if variant.provider.kind != "python"]
        functions = [variant for variant in variants if variant.provider.kind == "python"]

        if functions:
            path = self._file("py", self._evaluation(functions, data))
            commands.append(f"evaljournal run {shlex.quote(str(path))}")
        if without_code:
            path = self._file("toml", self._configuration(without_code, data))
            commands.append(f"evaljournal run --config {shlex.quote(str(path))}")

        omissions = tuple(self.project.omissions)
        sent_variables = _sent_variables([*(variant.options for variant in variants), *self._judge_options()])
        return Imported(
            self.files, tuple(commands), omissions, len(self.rows), len(variants), self.project.shares, sent_variables
        )

    def _judge_options(self) -> Iterator[dict[str, Any]]:
        """Yield the options of the judge with the names of those of a chat model."""
        names = {"judge": "chat", "judge-url": "base-url", "judge-key-env": "key-env"}
        if self.assertions.grader is not None:
            yield {names[key]: value for key, value in self.assertions.grader.items()}

    def _file(self, suffix: str, content: str) -> Path:
        path = self.directory / f"{self._name}.{suffix}"
        self.files[path] = content
        return path

    @property
    def _comments(self) -> str:
        """The first lines of a file."""
        lines = [f"Imported from {self.project.config} by `evaljournal import`. Paths are relative to the working directory."]
        lines += [line for line in self.description.splitlines() if line.strip()]
        if self.project.omissions:
            lines += ["", "Not imported:", *(f"  {omission}" for omission in self.project.omissions)]
        return "".join(f"# {one_line(line)}".rstrip() + "\n" for line in lines)

    @property
    def _functions_path(self) -> Path:
        return self.directory / f"{_identifier(self._name)}_assertions.py"

    def _configuration(self, variants: list[_Variant], data: Path) -> str:
        table: dict[str, Any] = {"name": self._name, "data": str(data), "input-key": "vars"}
        tables = [self._with_prompt_files(variant, variants) for variant in variants]
        shared = {key: value for key, value in tables[0].items() if all(other.get(key) == value for other in tables)}

        kinds = {variant.provider.kind for variant in variants}
        if len(kinds) == 1 and len(tables) > 1:
            tables = [{key: value for key, value in other.items() if key not in shared} for other in tables]
            table |= shared
        elif len(tables) == 1:
            table |= tables[0]

        table["score"] = [f"assertions:{self._functions_path}" if self.assertions.functions else "assertions"]
        if self.assertions.grader is not None:
            table |= _judge(self.assertions.grader, has_url="base-url" in table)

        text = f"{self._comments}\n{toml_lines(table | self.settings)}"
        if len(tables) > 1:
            for variant, other in zip(variants, tables, strict=True):
                text += f"\n[[variant]]\n{toml_lines({'name': variant.name, **other})}"
        return text

    def _with_prompt_files(self, variant: _Variant, variants: list[_Variant]) -> dict[str, Any]:
        """Return the options of a variant; messages, and long prompts that several variants share, are in files."""
        options = dict(variant.options)
        if "messages" in options:
            messages = json.dumps(options["messages"], ensure_ascii=False, indent=2) + "\n"
            options["messages"] = str(self._prompt_file(messages, variant, "json"))
        elif "prompt" in options:
            text = cast("str", options["prompt"])
            other_prompts = {other.options.get("prompt") for other in variants} - {text}
            is_shared = sum(other.options.get("prompt") == text for other in variants) > 1
            if text.startswith("@") or ("\n" in text and is_shared and other_prompts):
                options["prompt"] = f"@{self._prompt_file(text, variant, 'txt')}"
        return options

    def _prompt_file(self, content: str, variant: _Variant, suffix: str) -> Path:
        if content not in self._prompt_files:
            label = slug(variant.prompt.label) or f"prompt-{len(self._prompt_files) + 1}"
            paths = (self.directory / f"{name}.{suffix}" for name in numbered(f"{self._name}.{label}"))
            path = next(path for path in paths if path not in self.files)
            self._prompt_files[content] = path
            self.files[path] = content
        return self._prompt_files[content]

    def _evaluation(self, variants: list[_Variant], data: Path) -> str:
        """Return the Python file of an evaluation whose providers are Python functions."""
        name, functions = _identifier(self._name), sorted(self.assertions.functions)
        settings = "".join(f"    {key}={value!r},\n" for key, value in self.settings.items())

        scorer: list[str] = []
        if self.assertions.grader is not None:
            names = {"judge-url": "base_url", "judge-key-env": "key_env"}
            options = "".join(f", {names[key]}={value!r}" for key, value in self.assertions.grader.items() if key in names)
            scorer.append(f"judge=scorers.judge({self.assertions.grader['judge']!r}{options})")
        module = self._functions_path.stem
        if functions:
            scorer.append(f"functions=[{', '.join(f'{module}.{function}' for function in functions)}]")

        paths = sorted({variant.options["function"].rpartition(":")[0] for variant in variants})
        files = [os.path.relpath(path, self.directory) for path in paths]  # As `depends` takes them.
        variant_lines = "".join(f"    {variant.name!r}: {variant.options!r},\n" for variant in variants)
        return (
            f"{self._comments}\n{f'import {module}{chr(10)}{chr(10)}' if functions else ''}"
            f"from evaljournal import Dataset, evaluation, promptfoo, scorers\n\nVARIANTS = {{\n{variant_lines}}}\n\n"
            f"{name} = evaluation(\n    cases=Dataset({str(data)!r}, input_key='vars'),\n    name={self._name!r},\n"
            f"    variants=VARIANTS,\n    depends={files!r},\n{settings})(promptfoo.call_api)\n"
            f"{name}.score(scorers.assertions({', '.join(scorer)}))\n"
        )


def _sent_variables(tables: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, None]]:
    """Return host → environment variables in the URLs, headers and keys of chat models and endpoints, in order."""
    variables: dict[str, dict[str, None]] = {}
    for table in tables:
        url = table.get("endpoint") or table.get("base-url") or ("chat" in table and _dialect(table["chat"]).base_url)
        if not url:
            continue

        names = [name for text in (url, *table.get("header", {}).values()) for name in Template(text).get_identifiers()]
        names += [table["key-env"]] if "key-env" in table else []
        if names:
            variables.setdefault(_host(url), {}).update(dict.fromkeys(names))
    return variables


def _host(url: str) -> str:
    """Return the host and the port of a URL, as a run reads it; the whole text if it is not a valid one."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2] or url
    except ValueError:
        return url


def _dialect(model: str) -> Dialect:
    return dialect_by_name(split_model(model)[0] or DEFAULT_DIALECT)


def _judge(grader: Mapping[str, Any], *, has_url: bool) -> dict[str, Any]:
    """Return the options of the judge; by default, it would use the URL of the chat model."""
    options = {**grader, "judge": [grader["judge"]]}
    if has_url and "judge-url" not in grader:
        dialect = _dialect(grader["judge"])
        options |= {"judge-url": dialect.base_url}
        options.setdefault("judge-key-env", next(iter(dialect.key_variables)))
    return options


def _identifier(name: str) -> str:
    identifier = re.sub(r"\W", "_", name)
    return identifier if identifier.isidentifier() and not iskeyword(identifier) else f"evaluation_{identifier}"


def _functions_source(config: Path, functions: Mapping[str, Function]) -> str:
    """Return the Python file with the functions of assertions; they are called as scorers are."""
    loads: list[str] = []
    sources: list[str] = []
    for name, function in functions.items():
        context = '{"vars": input}' if function.config is None else f'{{"vars": input, "config": {function.config!r}}}'
        body = f"    context = {context}\n{function.body}"
        if function.reference:
            loads.append(f"_{name} = promptfoo.load_function({function.reference!r})\n")
            body = f"    return _{name}(output, {context})"
        sources.append(f"\n\ndef {name}(output, input):\n{body}\n")
    imports = "from evaljournal import promptfoo\n\n" if loads else ""
    if any("json" in function.body for function in functions.values()):
        imports = f"import json\n\n{imports}"
    return (
        f"# Assertions in Python, imported from {one_line(str(config))} by `evaljournal import`.\n\n"
        f"{imports}{''.join(loads)}{''.join(sources)}"
    )
