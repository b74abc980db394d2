"""An evaluation without code: a dataset, a target and scorers, described by options or a configuration file.

A run records this definition as data: the values of its keys, those of its configuration file included. `resume`, `rescore` and
other processes of the run build the evaluation from it, so that a file that was edited or deleted meanwhile changes nothing.
Files that the values name (the dataset, `@prompt.txt`, scorers in Python) are read again, and a change of one is detected like
one of code. A key is never recorded: a literal one is rejected, or masked in a text, which then cannot be used again.
"""

import contextlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from evaljournal import entry_points
from evaljournal.runner.calls.arguments import TARGETS, new_task
from evaljournal.runner.calls.dialects import split_model
from evaljournal.runner.cli.options.model_urls import (
    chat_models,
    check_shared_options,
    judges_by_name,
    options_from_environment,
    providers_of,
)
from evaljournal.runner.cli.options.table import BY_KEY, OPTIONS, TABLE, is_definition, is_setting, is_task_option, overrides
from evaljournal.runner.cli.options.values import parse_values, read_file, to_keys
from evaljournal.runner.cli.terminal.output import echo
from evaljournal.runner.data.dataset import Dataset
from evaljournal.runner.data.templates import Template
from evaljournal.runner.data.to_json import to_json
from evaljournal.runner.definition.amounts import OFF
from evaljournal.runner.definition.evaluation import Evaluation
from evaljournal.runner.definition.loading import AnyEvaluation, LoadedEvaluation, load_function
from evaljournal.runner.definition.settings import Settings
from evaljournal.runner.definition.variants import Variant, product, variants_by_name
from evaljournal.runner.errors import UsageError, suggest
from evaljournal.runner.secrets.masking import (
    add_environment,
    mask_keys,
    mask_literal,
    mask_literal_words,
    mask_values,
    secret_variables,
)
from evaljournal.runner.secrets.shapes import MASK

DEFINITION: Final = frozenset(option.name for option in OPTIONS if is_definition(option))
_LABELS: Final = {option.name: option.label for option in OPTIONS}
_TEXTS: Final = ("body", "extra_body", "prompt", "system", "rubric")
"""Values that may be read from a file: `@prompt.txt`."""
_NAMED_TEXT: Final = re.compile(r"([A-Za-z0-9][\w.-]*)=(.*)", re.DOTALL)
_CAN_BE_OFF: Final = frozenset(option.name for option in OPTIONS if option.can_be_off)
_URLS: Final = ("endpoint", "base_url", "judge_url")
_MASKED_KEY: Final = "***masked***"
"""Recorded instead of a key in one of `_TEXTS`."""


@attrs.frozen
class Definition:
    """What describes an evaluation without code: values by name."""

    options: Mapping[str, Any]
    """Values on the command line; they take precedence."""
    path: str = ""
    """The configuration file; empty if there is none."""
    file: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """Values in the file, settings included."""
    variants: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict[str, Mapping[str, Any]])
    """The tables `[[variant]]`: name → values."""

    @classmethod
    def read(cls, path: Path, options: Mapping[str, Any] | None = None) -> "Definition":
        return cls(options or {}, str(path), *read_file(path))

    @classmethod
    def decode(cls, record: str) -> "Definition":
        """Return what `encode` has recorded; the record may be foreign."""
        try:
            fields = json.loads(record)
            layers = [parse_values(layer, BY_KEY) for layer in (fields.get("options", {}), fields.get("file", {}))]
            variants = {name: parse_values(layer, BY_KEY, variant=name) for name, layer in fields.get("variants", {}).items()}
            return cls(layers[0], str(fields.get("path", "")), layers[1], variants)
        except (ValueError, TypeError, AttributeError, RecursionError, UsageError) as exc:
            raise UsageError(f"the recorded definition {record:.200} is invalid: {exc}") from exc

    def encode(self) -> str:
        """Return the record of the definition: the location of its task, as JSON."""
        fields = {
            "path": self.path,
            "options": _recorded(self.options),
            "file": _recorded(self.file),
            "variants": {name: _recorded(layer) for name, layer in self.variants.items()},
        }
        return json.dumps({name: field for name, field in fields.items() if field}, ensure_ascii=False)

    @property
    def layers(self) -> list[Mapping[str, Any]]:
        """All values, by where they are written."""
        return [self.options, self.file, *self.variants.values()]


def is_definition_record(reference: str) -> bool:
    return reference.startswith("{")


def build_evaluation(definition: Definition, *, is_new: bool = False) -> LoadedEvaluation:
    """Build the evaluation that a definition describes.

    Only a new run reads variables such as OPENAI_BASE_URL. The URL is recorded as if it had been passed, so that `resume` uses
    the same one.
    """
    tables = definition.variants
    if is_new:
        values = {**definition.file, **definition.options}
        variables = options_from_environment(values, *tables.values())
        definition = attrs.evolve(definition, options={**definition.options, **variables})
        if "base_url" not in definition.options and "base_url" not in values:
            _check_prefixes(chat_models(values, *tables.values()))

    options = definition.options
    file_values = {name: value for name, value in definition.file.items() if name not in options}
    values = {**file_values, **options}
    check_shared_options(values, [{**table, **options} for table in tables.values()], options)
    for layer in definition.layers:
        _reject_literal_keys(layer)
        _check_texts(layer)

    variants = _variants(values, file_values, tables, definition.path)
    task = next(iter(variants.values())).task if variants else _task(_single_values(values), file_values)
    if "data" not in values:
        raise UsageError("--data is missing: pass the file with the cases")

    try:
        settings = Settings().with_values(overrides(file_values))
    except UsageError as exc:
        exc.path = definition.path or None
        raise
    dataset = Dataset(**({"input_key": values["turns"]} if "turns" in values else {}) | _arguments("dataset", values))
    if dataset.address:  # A resumed run reads the same version.
        definition = attrs.evolve(definition, options={**definition.options, "data": Path(dataset.address)})

    evaluation: AnyEvaluation = Evaluation(
        task,
        cases=dataset.with_prompt_columns(_prompt_columns([variant.task for variant in variants.values()] or [task])),
        settings=settings,
        name=values.get("name") or re.sub(r"[^\w.-]+", "-", getattr(dataset.source, "stem", "data")).strip("-.") or "data",
        variants=variants or None,
    )
    for name, scorer in scorers_from_options(values, chat_models(values, *tables.values())):
        evaluation.score(name=name)(scorer)
    return LoadedEvaluation(evaluation, definition.encode())


def _check_prefixes(models: Iterable[str]) -> None:
    """Raise a UsageError for a model with the prefix of another tool; `llama3:8b` is the name of a model."""
    from evaljournal.runner.cli.options.foreign_words import explain_model  # noqa: PLC0415  # functions do not need it

    for model in models:
        if not split_model(model)[0] and (hint := explain_model(model)):
            raise UsageError(f"--chat {model}: unknown prefix {model.partition(':')[0]!r}; {hint}")


def _prompt_columns(tasks: Iterable[object]) -> list[str]:
    """Return the fields of the prompts and commands, which may be columns that have no usual name."""
    names: list[str] = []
    for task in tasks:
        prompt = getattr(task, "prompt", None)
        names += Template.parse(prompt, "the prompt").fields if isinstance(prompt, str) else getattr(task, "fields", ())
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def _recorded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they are recorded, with keys in texts masked."""
    masked_values = dict(values)
    for name in _TEXTS:
        if name in values:
            texts = tuple(_recorded_text(name, text) for text in _all_values(values[name]))
            masked_values[name] = texts if isinstance(values[name], tuple) else texts[0]
    return to_keys(masked_values)


def _variants(
    values: Mapping[str, Any], file_values: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]], path: str
) -> dict[str, Variant]:
    """Return the tables `[[variant]]`, or the product of the options with several values; empty if there are neither."""
    value_lists = {
        option.name: values[option.name] for option in OPTIONS if option.varies and len(values.get(option.name, ())) > 1
    }
    if not tables:
        if not value_lists:
            return {}
        labels = {name: [_label(name, value) for value in value_list] for name, value_list in value_lists.items()}
        for name in ("prompt", "variant_files"):
            if named_texts := _named_texts(name, value_lists.get(name, ())):
                labels[name], value_lists[name] = map(list, zip(*named_texts, strict=True))
        return variants_by_name(
            Variant(name, _parameters(combination), _task(_single_values({**values, **combination}), file_values))
            for name, combination in product(value_lists, labels).items()
        )

    if value_lists:
        raise UsageError(f"[[variant]] and several values of {_flag(min(value_lists))} are mutually exclusive; use one of them")

    command_line_values = {name: value for name, value in values.items() if name not in file_values}
    variants: list[Variant] = []
    for name, table in tables.items():
        options = {**_shared_options(file_values, table), **table, **command_line_values}
        try:
            task = _task(_single_values(options), options.keys() - command_line_values)
            variants.append(Variant(name, _parameters(table), task))
        except UsageError as exc:
            raise UsageError(f"variant {name!r}: {exc.message}", path=path or None, hint=exc.hint) from exc
    return variants_by_name(variants)


def _shared_options(file_values: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a file that apply to a variant; if it has its own target, without those of other targets."""
    targets = [name for name in TARGETS if name in table]
    if not targets:
        return dict(file_values)
    task_options = [option for option in OPTIONS if is_task_option(option)]
    other_names = {option.name for option in task_options if not any(any(option.arguments(target)) for target in targets)}
    return {name: value for name, value in file_values.items() if name not in other_names}


def _single_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as a task takes them: those of options that make variants are single values."""
    names = {option.name for option in OPTIONS if option.varies}
    return {name: value[0] if name in names and isinstance(value, tuple) else value for name, value in values.items()}


def _parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a variant as a run records them; texts are read from their files."""
    options = {name: _value(name, value) for name, value in _single_values(values).items()}
    return {name: str(value) if isinstance(value, Path) else to_json(value) for name, value in options.items()}


def _label(name: str, value: Any) -> Any:
    """Return a value as it is used in the names of variants: for a text in a file, the name of the file."""
    return Path(value[1:]).stem if name in _TEXTS and value.startswith("@") else value


def _named_texts(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names and texts of several values (`short=Answer briefly: {question}`); empty unless each has a name."""
    matches = [match for text in texts if (match := _NAMED_TEXT.fullmatch(text))]
    if len(matches) < len(texts):
        return []
    for name, count in Counter(match[1] for match in matches).items():
        if count > 1:
            kind = "prompts" if option == "prompt" else "values"
            raise UsageError(f"{_flag(option)}: {count} {kind} are named {name!r}; give each a name of its own")
    return [(match[1], match[2]) for match in matches]


def _arguments(target: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        argument: _value(option.name, values[option.name])
        for option in OPTIONS
        if option.name in values
        for argument in option.arguments(target)
    }


def _reject_literal_keys(values: Mapping[str, Any]) -> None:
    """Raise a UsageError if a header, a URL or a command contains a key, which other users can see and would be recorded."""
    add_environment()
    for flag, text, masked_text in _masked_options(values):
        if masked_text == text:
            continue
        variable = next((f"${name}" for name, value in secret_variables().items() if value in text), "$NAME")
        advice = f"pass {flag} {shlex.quote(masked_text.replace(MASK, variable))}"
        if flag in {"--command", "--acp"}:
            advice = f'use "{variable}" {"with --shell or " if flag == "--command" else ""}in a script'
        raise UsageError(
            f"{flag} contains a key, which other users can see and which would be recorded; put it in an environment variable "
            f"and {advice}"
        )


def _masked_options(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the flags that may contain keys, each with its value, and with the same value without keys."""
    for text in values.get("header", ()):
        name, _, value = text.partition(":")
        scheme, _, credentials = value.strip().rpartition(" ")
        masked_value = mask_literal(value.strip(), name)
        if masked_value == MASK and scheme and " " not in scheme and credentials:
            masked_value = f"{scheme} {MASK}"
        yield "--header", f"{name}: {value.strip()}", f"{name}: {masked_value}"
    for name in _URLS:
        if name in values:
            yield _flag(name), values[name], mask_literal(values[name])
    for name in ("command", "acp"):
        if name not in values:
            continue
        line: str = values[name]
        with contextlib.suppress(ValueError):  # An open quote is reported where the command is parsed; a shell may accept it.
            words = shlex.split(line)
            yield _flag(name), shlex.join(words), shlex.join(mask_literal_words(words))
        if name == "command" and "shell" in values:
            yield "--command", line, mask_literal(line)


def _recorded_text(name: str, text: str) -> str:
    masked_text = mask_keys(text)
    if name in {"body", "extra_body"}:
        with contextlib.suppress(ValueError, RecursionError):  # Reported where it is parsed.
            value = orjson.loads(text)
            if mask_values(value) != value:
                masked_text = orjson.dumps(mask_values(value)).decode()
    return text if masked_text == text else masked_text.replace(MASK, _MASKED_KEY)


def _check_texts(values: Mapping[str, Any]) -> None:
    """Print a warning if a text contains a key; reject a text that was recorded without its key."""
    texts = [(name, text) for name in _TEXTS if name in values for text in _all_values(values[name])]
    for name, text in texts:
        if _MASKED_KEY in text:
            key = name.replace("_", "-")
            raise UsageError(f"the recorded {_flag(name)} lacks its key; put the text in a file and pass -s {key}=@FILE")
        if _recorded_text(name, text) != text:
            echo(
                f"Warning: {_flag(name)} contains a key, which is recorded as {_MASKED_KEY}; "
                f"to be able to resume the run, put the text in a file and pass {_flag(name)} @FILE",
                err=True,
            )


def _all_values(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _flag(name: str) -> str:
    return _LABELS[name]


def _task(values: Mapping[str, Any], file_values: Container[str]) -> Any:
    """Build the task of the target; reject several targets, and options of another target."""

    def flag(name: str) -> str:
        return f"{_flag(name).removeprefix('-s ').removeprefix('--')} (in the file)" if name in file_values else _flag(name)

    targets = [name for name in TARGETS if name in values]
    if len(targets) != 1:
        problem = f"{' and '.join(map(flag, targets))} are mutually exclusive" if targets else "no target"
        raise UsageError(
            f"{problem}: pass one of --endpoint URL, --chat MODEL, --command LINE, --acp LINE or --output-key COLUMN"
        )

    (target,) = targets
    for option in OPTIONS:
        owners = [name for name in TARGETS if any(option.arguments(name))]
        if option.name in values and owners and target not in owners and not any(option.arguments("judge")):
            raise UsageError(f"{flag(option.name)} requires {' or '.join(map(_flag, owners))}, not {flag(target)}")
    return new_task(target, _arguments(target, values))


def _value(name: str, value: Any) -> Any:
    """Return the value of an option as its target expects it."""
    if name in _TEXTS and value.startswith("@"):
        try:
            value = Path(value[1:]).read_text(encoding="utf-8")
        except (OSError, ValueError) as exc:
            raise UsageError(f"{_flag(name)} {value}: cannot be read: {exc}") from exc
    match name:
        case "body":
            return value.strip()
        case "header":
            return dict(_pairs(value, ":", "header", "'Name: value'"))
        case "choice":
            return {word: _score(score) for word, score in _pairs(value, "=", "choice", "WORD=VALUE")}
        case "variant_files":  # A single value makes no variant, and its name is not used.
            match = _NAMED_TEXT.fullmatch(value)
            return value if match is None else match[2]
        case "extra_body":
            return _json_object(value)
        case _:
            return None if value == OFF and name in _CAN_BE_OFF else value


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except ValueError as exc:
        raise UsageError(f"extra-body is not JSON ({exc}): {text[:200]!r}") from exc
    if not isinstance(value, dict):
        raise UsageError(f"extra-body must be a JSON object, not {text[:200]!r}")
    return value


def _pairs(texts: Iterable[str], separator: str, name: str, form: str) -> Iterator[tuple[str, str]]:
    for text in texts:
        key, delimiter, value = text.partition(separator)
        if not delimiter or not key.strip():
            raise UsageError(f"{name} {text!r}: expected {form}")
        yield key.strip(), value.strip()


def scorers_from_options(values: Mapping[str, Any], models: Iterable[str] = ()) -> Iterator[tuple[str | None, Any]]:
    """Yield the scorers in the options, each with its name; None for a scorer that has its own name.

    A judge of the same provider as `models`, those of the task, uses their URL and key by default. With a scorer that takes a
    judge, such as `assertions`, the judge is a part of it and no scorer of its own.
    """
    from evaljournal.runner.scorers import builtin as scorers  # noqa: PLC0415  # slow to import
    from evaljournal.runner.scorers.added import GROUP, added_scorer  # noqa: PLC0415  # the same

    judge = _arguments("judge", values)
    judges = judges_by_name(judge.pop("model", ()))
    if not judges:
        judge_options = [option.name for option in TABLE["Scoring"] if option.name in values and any(option.arguments("judge"))]
        if judge_options:
            raise UsageError(f"{_flag(judge_options[0])} requires --judge")

    task_arguments = {name: values[name] for name in ("base_url", "key_env") if name in values and "base_url" not in judge}
    providers = providers_of(models) if judges else {}
    new_judges = {
        name: scorers.judge(model, **(task_arguments if providers_of([model]).keys() <= providers.keys() else {}) | judge)
        for name, model in judges.items()
    }

    if "score_files" in values and not any(text.startswith("command:") for text in values.get("score", ())):
        raise UsageError(f"{_flag('score_files')} requires --score 'command:LINE'")

    judging = [text for text in values.get("score", ()) if (added := added_scorer(text)) is not None and added.takes_judge]
    if len(judging) > 1 or (judging and len(new_judges) > 1):
        name = judging[0].partition(":")[0]
        raise UsageError(f"--score {name} can be used once, with at most one --judge, which becomes a part of it")

    for text in values.get("score", ()):
        added = added_scorer(text)
        inner_judge = next(iter(new_judges.values()), None) if text in judging else None
        scorer: Any = scorers.scorer_by_name(text) if added is None else added.create(inner_judge)
        if scorer is None and ":" not in text:
            names = [*scorers.NAMES, *entry_points.names(GROUP, excluding=scorers.NAMES)]
            raise UsageError(f"unknown scorer {text!r}; use {', '.join(names)} or file.py:function{suggest(text, names)}")
        if getattr(scorer, "needs_workspace", False):
            scorer = attrs.evolve(scorer, **_arguments("command_scorer", values))
        yield None, load_function(text) if scorer is None else scorer

    if not judging:
        yield from new_judges.items()


def _score(text: str) -> bool | float | str:
    if text in {"true", "false"}:
        return text == "true"
    try:
        return float(text)
    except ValueError:
        return text


def read_settings(table: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the settings in the table of a file that applies to several evaluations, as `Settings.with_values` takes them."""
    keys = {key: option for key, option in BY_KEY.items() if is_setting(option, experiment=True)}
    return overrides(parse_values(table, keys, path))
