"""An evaluation without code: a dataset, a target and the names of scorers, in options or in a TOML file."""

import re
import shlex
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import attrs
import click
import orjson
from click.core import ParameterSource

from runner import scorers
from runner.cli._common import OFF, options, seconds
from runner.data.dataset import Dataset
from runner.definition.evaluation import Evaluation
from runner.definition.loading import AnyEvaluation, LoadedEvaluation, load_function
from runner.definition.settings import Settings
from runner.errors import UsageError
from runner.retries.retry import NUMBERS, Retry
from runner.secrets import is_secret_name, mask
from runner.suggest import nearest

_HTTP: Final = ("header", "connect_timeout", "read_timeout")

TASKS: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    "endpoint": ("Endpoint", "url", ("method", "body", "output_path", "error_path", "done_path", "idempotency_header", *_HTTP)),
    "chat": (
        "Chat",
        "model",
        (
            *("base_url", "key_env", "prompt", "messages", "system", "temperature", "max_tokens", "model_seed"),
            *("schema", "stream", "more", "prices", *_HTTP),
        ),
    ),
    "command": ("Command", "command", ("shell", "output_format", "output_path")),
    "output_key": ("RecordedOutput", "output_key", ()),
}
"""What says who is asked → the task's class, what it calls that, and which options are about it."""

_JUDGE: Final = ("rubric", "choice", "judge_url", "judge_key_env")

_NAMES: Final = {"model_seed": "seed", "output_format": "output"}
"""Options that have another name than what they are given to."""

_TEXTS: Final = ("body", "more", "prompt", "system", "rubric")
"""Options whose text may stand in a file: `@prompt.txt`."""

_VARIABLE: Final = re.compile(r"\$(?:\w+|\{\w+\})")

_SHOWN: Final = ("endpoint", "base_url", "judge_url", "command")
"""Options in which people put keys, and which are recorded."""


def _read_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Let a file say what the flags do not."""
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **configured(path, ctx.command)}
    return path


def configured(path: Path, command: click.Command) -> dict[str, Any]:
    """Read a file whose keys are the long names of a command's options."""
    try:
        table = tomllib.loads(path.read_text())
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:  # not TOML, or not text
        raise UsageError(f"{path} is not TOML: {exc}") from exc
    known: dict[str, click.Parameter] = {
        option.removeprefix("--"): each for each in command.params for option in each.opts if option.startswith("--")
    }
    known = {name: each for name, each in known.items() if name not in {"config", "help", "json", "plain", "dry-run"}}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name not in known:
            raise UsageError(f"{path} has the key {key!r}, which there is not{nearest(name, known)}")
        option = known[name]
        try:
            given = _as_given(value, option, name)
            for each in given if isinstance(given, list) else [given]:
                option.type.convert(each, option, None)
        except (click.BadParameter, UsageError) as exc:
            said = exc.message.rstrip(".") if isinstance(exc, click.BadParameter) else exc
            raise UsageError(f"{path}: {key}={value!r}: {said}") from exc
        values[str(option.name)] = given
    return values


def _as_given(value: Any, option: click.Parameter, name: str) -> Any:
    """Put a value of the file into the words that a flag would have been given."""
    if name in {"body", "more"} and not isinstance(value, str):
        return orjson.dumps(value).decode()
    if not getattr(option, "multiple", False):
        is_flag = getattr(option, "is_flag", False)
        if isinstance(value, list | dict) or (isinstance(value, bool) and not is_flag):
            raise UsageError("give true or false" if is_flag else "give one value, as after its flag")
        return value if is_flag else str(value)
    if isinstance(value, dict):
        between = ": " if name == "header" else "="
        return [f"{key}{between}{each}" for key, each in cast("dict[str, Any]", value).items()]
    return [str(each) for each in (value if isinstance(value, list) else [value])]


recipe_options = options(
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        is_eager=True,
        callback=_read_config,
        metavar="FILE",
        help="A TOML file with the names of these flags; flags win. `evaljournal init` writes one.",
    ),
    click.option("--data", type=click.Path(path_type=Path), metavar="FILE", help="Cases: JSONL, JSON, CSV, TSV or Parquet."),
    click.option("--id-key", metavar="COLUMN", help="The column of the names, if it has none of the usual names."),
    click.option("--input-key", metavar="COLUMN", help="The column of the input."),
    click.option("--expected-key", metavar="COLUMN", help="The column of the expected answer."),
    click.option("--name", metavar="NAME", help="What runs are filed under; else the name of the data."),
    click.option("--endpoint", metavar="URL", help="Ask an HTTP endpoint: the case is sent as JSON."),
    click.option("--method", type=click.Choice(["POST", "GET"]), help="How; else POST."),
    click.option("--body", metavar="JSON", help="What is sent, with {fields} of the case; @FILE reads it from a file."),
    click.option("--header", multiple=True, metavar="'NAME: VALUE'", help="Sent too; $NAME is read from the environment."),
    click.option("--output-path", metavar="PATH", help="Where the output is in the reply, such as choices.0.text."),
    click.option("--error-path", metavar="PATH", help="Where an error is in a reply whose status says success."),
    click.option("--done-path", metavar="PATH", help="Where a stream says that it is complete; one that does not was cut off."),
    click.option(
        "--idempotency-header", metavar="NAME", help="Carries a key that is the same for all attempts at a trial; '' for none."
    ),
    click.option("--connect-timeout", type=seconds, metavar="S", help="Seconds to get through; else 10."),
    click.option("--read-timeout", type=seconds, metavar="S", help="Seconds without a byte; else as long as --timeout."),
    click.option("--chat", metavar="MODEL", help="Ask a chat model that speaks as OpenAI's do."),
    click.option("--base-url", metavar="URL", help="Where it is; else OpenAI's own address."),
    click.option("--key-env", metavar="NAME", help="The variable that holds its key; else OPENAI_API_KEY, at OpenAI only."),
    click.option("--prompt", metavar="TEXT", help="What is asked, with {fields} of the case; @FILE reads it from a file."),
    click.option("--system", metavar="TEXT", help="What is said before; @FILE reads it from a file."),
    click.option("--messages", type=click.Path(path_type=Path), metavar="FILE", help="A conversation in JSON, with {fields}."),
    click.option("--temperature", type=float, metavar="T", help="How much is left to chance in an answer; 0 is least."),
    click.option("--max-tokens", type=int, metavar="N", help="The most tokens of an answer."),
    click.option("--model-seed", type=int, metavar="N", help="The model's own seed, where it has one."),
    click.option("--schema", type=click.Path(path_type=Path), metavar="FILE", help="A JSON schema; the output is JSON then."),
    click.option("--stream", is_flag=True, default=None, help="Have the reply in pieces, and time the first."),
    click.option("--more", metavar="JSON", help="What else it is sent: '{\"top_p\": 0.9}'; @FILE reads it from a file."),
    click.option(
        "--prices", type=click.Path(path_type=Path), metavar="FILE", help="What tokens cost, in TOML; else our table."
    ),
    click.option("--command", metavar="LINE", help="Run a command: the input as JSON on its standard input, or as {input}."),
    click.option("--shell", is_flag=True, default=None, help="Let a shell run it."),
    click.option("--output-format", type=click.Choice(["text", "json"]), help="How its output is read; else text."),
    click.option("--score-only", is_flag=True, default=None, help="Ask nobody: the data has the outputs, in --output-key."),
    click.option("--output-key", metavar="COLUMN", help="The column of the outputs that are there already."),
)
"""What makes up an evaluation without code, but for its scorers."""

scorer_options = options(
    click.option(
        "--score",
        multiple=True,
        metavar="SCORER",
        help=f"{', '.join(scorers.NAMES)} (regex:PATTERN, close_to:0.01), or file.py:function; can be given again.",
    ),
    click.option("--judge", metavar="MODEL", help="Let a chat model judge the outputs."),
    click.option("--rubric", metavar="TEXT", help="What it is asked, with {output}, {expected} and {fields}; @FILE reads it."),
    click.option("--choice", multiple=True, metavar="WORD=VALUE", help="A verdict and its score; else correct=1, incorrect=0."),
    click.option("--judge-url", metavar="URL", help="Where the judge is; else where --chat is, or OpenAI's own address."),
    click.option("--judge-key-env", metavar="NAME", help="The variable that holds its key."),
)
"""Who judges the outputs."""

retry_options = (
    click.option("--retry-errors", type=int, metavar="N", help="How many times a trial is tried again after errors; else 4."),
    click.option("--retry-timeouts", type=int, metavar="N", help="And after timeouts; else 2."),
    click.option(
        "--retry-rate-limits", type=float, metavar="S", help="Seconds that a trial may wait after its own refusals; else 600."
    ),
    click.option("--retry-base-delay", type=float, metavar="S", help="Seconds before the first retry, at most; else 1."),
    click.option("--retry-max-delay", type=float, metavar="S", help="Seconds to which that may grow; else 60."),
)
"""The numbers of a `Retry`."""


@recipe_options
@scorer_options
def _described() -> None:
    """Stand in for a command that has these options, and no others."""


DESCRIBES: Final = frozenset(str(param.name) for param in getattr(_described, "__click_params__"))  # noqa: B009  # click's own
"""The options that say what is evaluated; all others say how."""


def evaluation_from_options(ctx: click.Context) -> LoadedEvaluation:
    """Make the evaluation that a command line describes."""
    given = {name: value for name, value in ctx.params.items() if value is not None and value != ()}
    said = {name: value for name, value in given.items() if is_on_command_line(ctx, name)}
    _refuse_keys(said)
    names = {field.name for field in attrs.fields(Settings)}
    filed = {name: value for name, value in given.items() if name not in said}
    own: dict[str, Any] = {name: None if value == OFF else value for name, value in filed.items() if name in names}
    task = _task(given, filed)
    if "data" not in given:
        raise UsageError("--data is missing: the file that holds the cases")
    evaluation: AnyEvaluation = Evaluation(
        task,
        cases=Dataset(
            given["data"], **{name: given[name] for name in ("id_key", "input_key", "expected_key") if name in given}
        ),
        settings=Settings(**own, retry=Retry(**retry_numbers(filed))),
        name=given.get("name") or re.sub(r"[^\w.-]+", "-", given["data"].stem).strip("-.") or "data",
    )
    for name, scorer in scorers_in(given):
        evaluation.score(name=name)(scorer)
    return LoadedEvaluation(evaluation, _reference(ctx, said))


def is_on_command_line(ctx: click.Context, name: str) -> bool:
    """Whether an option was given on the command line, not in a file."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def retry_numbers(given: Mapping[str, Any]) -> dict[str, Any]:
    """Pick out what was said of retries."""
    return {name: given[f"retry_{name}"] for name in NUMBERS if given.get(f"retry_{name}") is not None}


def _refuse_keys(said: Mapping[str, Any]) -> None:
    """A key on the command line is seen by everyone on the machine, and would be recorded."""
    headers = [text for text in said.get("header", ()) if is_secret_name(text.partition(":")[0]) and "$" not in text]
    for name, text in [("header", headers[0])] if headers else [(name, said[name]) for name in _SHOWN if name in said]:
        bare = _VARIABLE.sub("", text)
        if headers or mask(bare) != bare:
            flag = _flag(name)
            raise UsageError(f"{flag} holds a key, which would be recorded; put it into the environment, and write $NAME here")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _task(given: Mapping[str, Any], filed: Container[str]) -> Any:
    """Make the task; there is exactly one, and what is said of another is a mistake."""

    def named(name: str) -> str:
        return f"{_flag(name)} (in the file)" if name in filed else _flag(name)

    chosen = [name for name in TASKS if name in given]
    if given.get("score_only") and chosen != ["output_key"]:
        raise UsageError("--score-only asks nobody: say with --output-key which column holds the outputs, and nothing to ask")
    if len(chosen) != 1:
        few = "say whom to ask" if not chosen else f"{' and '.join(map(named, chosen))} were given; choose one"
        raise UsageError(f"{few}: --endpoint URL, --chat MODEL, --command LINE, or --output-key COLUMN to ask nobody")
    class_, first, about = TASKS[chosen[0]]
    module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", class_).lower()
    make = getattr(import_module(f"runner.tasks.{module}"), class_)  # Here, because an HTTP client is slow to import.
    for name in dict.fromkeys(name for _, _, names in TASKS.values() for name in names):
        if name in given and name not in about:
            whose = " or ".join(_flag(task) for task, (_, _, names) in TASKS.items() if name in names)
            raise UsageError(f"{named(name)} is about {whose}, and {named(chosen[0])} was given")
    settings = {_NAMES.get(name, name): _value(name, given[name]) for name in about if name in given}
    if "more" in settings:
        settings["more"] = _object(settings["more"])
    if "header" in settings:
        settings["headers"] = settings.pop("header")
    return make(**{first: given[chosen[0]], **settings})


def _value(name: str, value: Any) -> Any:
    if name in _TEXTS and value.startswith("@"):
        try:
            return Path(value[1:]).read_text()
        except (OSError, ValueError) as exc:
            raise UsageError(f"{_flag(name)}={value!r} cannot be read: {exc}") from exc
    if name == "header":
        return dict(_parts(value, ":", "header", "'Name: value'"))
    return None if value == OFF else value


def _object(text: str) -> dict[str, Any]:
    """Read what else is sent."""
    try:
        value = orjson.loads(text)
    except ValueError as exc:
        raise UsageError(f"--more is not JSON ({exc}): {text[:200]!r}") from exc
    if not isinstance(value, dict):
        raise UsageError(f"--more is an object, {{…}}, and not {text[:200]!r}")
    return value


def _parts(texts: Iterable[str], between: str, name: str, form: str) -> Iterator[tuple[str, str]]:
    for text in texts:
        key, found, value = text.partition(between)
        if not found or not key.strip():
            raise UsageError(f"--{name} {text!r}: give {form}")
        yield key.strip(), value.strip()


def scorers_in(given: Mapping[str, Any]) -> Iterator[tuple[str | None, Any]]:
    """Make the scorers that were named, each with the name that it is to have, where it has none of its own."""
    for text in given.get("score", ()):
        scorer: Any = scorers.named(text)
        if scorer is None and ":" not in text:
            there = f"there are {', '.join(scorers.NAMES)}, or give file.py:function"
            raise UsageError(f"there is no scorer {text!r}; {there}{nearest(text, scorers.NAMES)}")
        yield None, load_function(text) if scorer is None else scorer
    about = {name: given[name] for name in _JUDGE if name in given}
    if "judge" not in given:
        if about:
            raise UsageError(f"{_flag(next(iter(about)))} is about --judge, which was not given")
        return
    options: dict[str, Any] = {}
    if "rubric" in about:
        options["rubric"] = _value("rubric", about["rubric"])
    if "choice" in about:
        options["choices"] = {word: _score(value) for word, value in _parts(about["choice"], "=", "choice", "WORD=VALUE")}
    url, key = about.get("judge_url"), about.get("judge_key_env")
    if url is None and "base_url" in given:
        url, key = given["base_url"], key or given.get("key_env")
    address = {name: value for name, value in (("base_url", url), ("key_env", key)) if value is not None}
    prices = {"prices": given["prices"]} if "prices" in given else {}
    yield "judge", scorers.judge(given["judge"], **options, **address, **prices)


def _score(text: str) -> bool | float | str:
    if text in {"true", "false"}:
        return text == "true"
    try:
        return float(text)
    except ValueError:
        return text


def _reference(ctx: click.Context, said: Mapping[str, Any]) -> str:
    """Say the command line again, but for what is about one run of it."""
    words: list[str] = []
    for param in ctx.command.params:
        name = str(param.name)
        if name not in said or name not in DESCRIBES:
            continue
        flag = next(option for option in param.opts if option.startswith("--"))
        values = said[name] if isinstance(said[name], tuple) else [said[name]]
        for value in values:
            words += [flag] if value is True else [flag, str(value)]
    return shlex.join(words)


def is_option_reference(reference: str) -> bool:
    """Whether a reference is a command line, not a place in a file."""
    return reference.startswith("--")


def evaluation_from_reference(reference: str, command: click.Command) -> LoadedEvaluation:
    """Make the evaluation again that a command line described."""
    try:
        return evaluation_from_options(command.make_context("run", shlex.split(reference)))
    except click.ClickException as exc:
        raise UsageError(f"{reference!r} can no longer be understood: {exc.format_message()}") from exc
