"""The keys of a configuration file, and the options of `run`, `resume` and `rescore`: one table.

A new setting is a field of `Settings` and one row here. The help, `init`, docs/configuration.md, the reader of configuration
files and of `-s KEY=VALUE`, and the messages about settings follow from the row. A row has an option of its own if people type
it while they work; everything else is a key, which a file or `-s` sets, so that the help stays short enough to be read.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import click

from evaljournal.replay.state.steps import REUSES
from evaljournal.runner import scorers
from evaljournal.runner.calls.arguments import TARGETS
from evaljournal.runner.definition.amounts import OFF
from evaljournal.runner.definition.limits import HEADER_MODES
from evaljournal.runner.definition.settings import EXPERIMENT_SETTINGS, Settings
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.retry import Retry

FILE: Final = click.Path(path_type=Path)
_CHOICES: Final = {
    "CHOICE": ("error", "null"),
    "METHOD": ("POST", "GET"),
    "FORMAT": ("text", "json", "claude-stream-json", "codex-jsonl", "gemini-stream-json"),
    "POLICY": ("adaptive", "fixed"),
    "ACTION": ("score", "error", "exclude"),
    "WHEN": REUSES,
    "MODE": ("sync", "os"),
    "HOME": ("fresh", "own"),
    "WHICH": ("failing", "all", "none"),
}
_TYPES: Final[dict[str | None, Any]] = {"N": int, "S": float, "T": float, "FILE": FILE, "DIR": FILE}
_TYPES.update({metavar: click.Choice(choices) for metavar, choices in _CHOICES.items()})
"""Types of values by their metavar; others are text."""


def seconds(text: str) -> float | str:
    """Parse a number of seconds, or `none`."""
    if text == OFF:
        return text
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a number of seconds (such as 30 or 0.5) or {OFF!r}") from None


def failures(text: str) -> int | float | str:
    """Parse a number of trials, a percentage, or `none`."""
    if text == OFF:
        return text
    percent = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text)
    if percent and float(percent[1]) <= 100:  # noqa: PLR2004 - percent
        return float(percent[1]) / 100
    if text.isdecimal():
        return int(text)
    raise click.BadParameter(f"{text!r} is not a number of trials (such as 10), a percentage (such as 5%) or {OFF!r}")


def count(text: str) -> int | str:
    """Parse a number of trials, or `none`."""
    if text == OFF:
        return text
    if text.isdecimal():
        return int(text)
    raise click.BadParameter(f"{text!r} is not a number of trials (such as 20) or {OFF!r}")


def _derived_field(value: Callable[["Option"], Any]) -> Any:
    """Return a field that is computed from the others."""
    return attrs.field(init=False, default=attrs.Factory(value, takes_self=True))


@attrs.frozen
class Option:
    """A row of the table: a key of a configuration file, and the flag of the same name if it has one."""

    spec: str
    """The flag and its metavar, `--timeout S`; of a row without a flag, the key and its metavar: `retry.errors N`."""
    text: str
    """Help text; the help of `run` adds the default of a setting."""
    targets: str = ""
    """The objects that take the value, separated by spaces: `settings`, or `chat.seed` if its argument has another name."""
    example: str = ""
    metavar: str | None = _derived_field(lambda option: option.spec.partition(" ")[2] or None)
    """The placeholder of the value; None for a switch."""
    default: str = attrs.field(default="", kw_only=True)
    """The default that the help of `run` shows, if it is not the value of a setting."""
    type: Any = attrs.field(default=attrs.Factory(lambda option: _TYPES.get(option.metavar), takes_self=True), kw_only=True)
    """The click type (default: by the metavar)."""
    varies: bool = attrs.field(default=False, kw_only=True)
    """Whether several values make variants: one for each combination."""
    multiple: bool = attrs.field(default=attrs.Factory(lambda option: option.varies, takes_self=True), kw_only=True)
    in_file: bool = attrs.field(default=True, kw_only=True)
    """Whether it is a key, too; otherwise it is an option for one run only."""
    table: str = attrs.field(default="", kw_only=True)
    """The table of its key, if the flag does not name it: `limits` of `--rpm`."""
    flag: str = _derived_field(lambda option: option.spec.split()[0].partition("/")[0] if option.spec[0] == "-" else "")
    """The long flag; empty if it has none."""
    key: str = _derived_field(
        lambda option: ".".join(filter(None, (option.table, option.spec.split()[0].partition("/")[0].removeprefix("--"))))
    )
    """The key in a configuration file; `retry.errors` is `errors` in the table `[retry]`."""
    name: str = _derived_field(lambda option: re.sub(r"\W", "_", option.flag.removeprefix("--") or option.key))
    """The name of the value, and of the click parameter."""
    can_be_off: bool = _derived_field(lambda option: option.type in (seconds, failures, count))
    """Whether its value is a number or `none`, which turns it off."""

    @property
    def label(self) -> str:
        """What an error calls it: its flag, or its key."""
        return self.flag or f"-s {self.key}"

    @property
    def in_a_file(self) -> str:
        """An example of the key in a configuration file, in one line."""
        table, dot, key = self.key.rpartition(".")
        return f"[{table}] {key} = {self.example or 'true'}" if dot else f"{self.key} = {self.example or 'true'}"

    @property
    def help(self) -> str:
        """The help text with the default."""
        default = self.default or self._setting_default()
        return f"{self.text[:-1]} (default: {default})." if default else self.text

    def arguments(self, target: str) -> Iterator[str]:
        """Yield the arguments of a target that take the value."""
        for text in self.targets.split():
            owner, _, argument = text.partition(".")
            if owner == target:
                yield argument or self.name

    def _setting_default(self) -> str:
        for owner, kind in (("settings", Settings), ("retry", Retry)):
            for argument in self.arguments(owner):
                default = getattr(attrs.fields(kind), argument).default
                if default is None or self.metavar is None or default == ():
                    return OFF if self.can_be_off else ""
                return f"{default:g}" if isinstance(default, float) else str(default)
        return ""


ONLY_VARIANT: Final = Option(
    "--only-variant NAME", "Only this variant; repeatable.", "settings.only_variants", '["mini"]', multiple=True
)

TABLE: Final[Mapping[str, tuple[Option, ...]]] = {
    "Dataset": (
        Option(
            "--data FILE", "Cases: JSONL, JSON, CSV, TSV, Parquet or .xlsx, or hf://owner/name.", "dataset.source", '"qa.jsonl"'
        ),
        Option("--id-key COLUMN", "Column of the case name (default: id, name, key, …).", "dataset", '"id"'),
        Option("--input-key COLUMN", "Column of the input (default: input, question, prompt, …).", "dataset", '"question"'),
        Option("--expected-key COLUMN", "Column of the expected output (default: expected, answer, …).", "dataset", '"answer"'),
        Option("delimiter CHAR", "Column separator of a CSV file, or 'tab' (default: that of its header).", "dataset", '";"'),
        Option(
            "nan CHOICE",
            "NaN in the dataset: 'error' rejects it, 'null' reads it as null (default: error).",
            "dataset",
            '"null"',
        ),
        Option("--only PATTERN", "Only cases whose name matches, e.g. peru*; repeatable.", "settings", '["p*"]', multiple=True),
        Option("--skip PATTERN", "Exclude cases whose name matches; repeatable.", "settings", '["test-*"]', multiple=True),
        Option("--limit N", "Maximum number of cases.", "settings", "20", default="all"),
        Option("--shuffle", "Shuffle the cases, in an order that depends on --seed.", "settings"),
        Option("--seed N", "Seed of the order and of the retry jitter.", "settings", "1"),
        Option("--repeats N", "Trials per case and variant.", "settings", "3"),
        ONLY_VARIANT,
    ),
    "Target": (
        Option(
            "--chat MODEL",
            "Call a chat model: MODEL (chat completions), anthropic:MODEL, responses:MODEL or gemini:MODEL; repeatable: "
            "several models, prompts, system prompts and temperatures make variants.",
            "chat.model",
            '"gpt-5.6-luna"',
            varies=True,
        ),
        Option(
            "--base-url URL",
            "Base URL of the API (default: OPENAI_BASE_URL, ANTHROPIC_BASE_URL, …, or the URL of the model's provider).",
            "chat",
            '"http://localhost:8000/v1"',
        ),
        Option(
            "--key-env NAME",
            "Environment variable with the key (default: OPENAI_API_KEY, ANTHROPIC_API_KEY, …, unless --base-url is set).",
            "chat",
            '"MY_KEY"',
        ),
        Option(
            "--endpoint URL", "Call an HTTP endpoint with the input as JSON.", "endpoint.url", '"http://localhost:8000/ask"'
        ),
        Option("method METHOD", "HTTP method: POST or GET (default: POST).", "endpoint", '"POST"'),
        Option(
            "--body JSON",
            "Request body with {fields} of the case; @FILE reads it from a file (default: the input if it is an object, "
            'otherwise {"input": …}).',
            "endpoint",
            '{ question = "{question}" }',
        ),
        Option(
            "--output-path PATH",
            "Path of the output in the reply, such as choices.0.text (default: the whole reply).",
            "endpoint command",
            '"choices.0.text"',
        ),
        Option("error-path PATH", "Path of an error in a reply with a success status.", "endpoint", '"error"'),
        Option("done-path PATH", "Path that is true in the last chunk of a complete stream.", "endpoint", '"done"'),
        Option(
            "idempotency-header NAME",
            "Header with a key that is the same for all attempts at a trial; '' turns it off (default: Idempotency-Key).",
            "endpoint",
            '"Idempotency-Key"',
        ),
        Option(
            "--header 'NAME: VALUE'",
            "Request header; $NAME is replaced from the environment; repeatable.",
            "endpoint.headers chat.headers",
            '{ Authorization = "Bearer $MY_KEY" }',
            multiple=True,
        ),
        Option("connect-timeout S", "Connection timeout in seconds (default: 10).", "endpoint chat", "10", type=seconds),
        Option("read-timeout S", "Maximum seconds without data (default: --timeout).", "endpoint chat", "60", type=seconds),
        Option(
            "--command LINE",
            "Run a command; the input is JSON on standard input, or in place of {input}.",
            "command",
            '"./answer.sh"',
        ),
        Option("--shell", "Run the command in a shell.", "command"),
        Option(
            "output-format FORMAT",
            "Output of the command: text, json, or the JSON lines of a coding agent (claude-stream-json, codex-jsonl, "
            "gemini-stream-json), whose calls are recorded as steps (default: text).",
            "command.output",
            '"text"',
        ),
        Option(
            "--acp LINE",
            "Run an agent that speaks the Agent Client Protocol (ACP); the input, or --prompt, is its prompt.",
            "acp",
            '"npx @zed-industries/claude-code-acp"',
        ),
        Option(
            "--acp-allow WHICH",
            "Permissions that the agent gets when it asks: 'read' (reading and searching), 'all' or 'none' (default: read).",
            "acp.allow",
            '"all"',
            type=click.Choice(("read", "all", "none")),
        ),
        Option(
            "--gateway",
            "Forward the model calls of a command or a function and record each as a step; a command gets no keys.",
            "settings",
        ),
        Option(
            "--workspace DIR",
            "Give each attempt a fresh copy of DIR, of a git repository its commit, as the command's working directory.",
            "settings",
            '"repo"',
        ),
        Option("--workspace-dirty", "Also copy the uncommitted changes of a git repository.", "settings"),
        Option(
            "--agent-home HOME",
            "Configuration and memory of agents in a workspace: 'fresh', or your 'own', with your login.",
            "settings",
            '"fresh"',
        ),
        Option(
            "--keep WHICH",
            "Workspaces to keep: 'failing' (error, failed score or none), 'all' or 'none'.",
            "settings",
            '"failing"',
        ),
        Option(
            "--variant-files NAME=DIR",
            "Add the files of DIR, such as a skill, to workspaces; repeatable: each makes a variant NAME; 'NAME=' has none.",
            "command.variant_files acp.variant_files",
            '["with=skills/csv", "without="]',
            varies=True,
        ),
        Option("--output-key COLUMN", "No calls; read the outputs from this column of the dataset.", "output_key", '"output"'),
    ),
    "Prompt": (
        Option(
            "--prompt TEXT",
            "User prompt with {fields} of the case; @FILE reads it from a file; repeatable (default: the input). If each of "
            "several is NAME=TEXT, the names are those of the variants.",
            "chat acp",
            '"Answer briefly: {question}"',
            varies=True,
        ),
        Option("--system TEXT", "System prompt; @FILE reads it from a file; repeatable.", "chat", '"@system.txt"', varies=True),
        Option("messages FILE", "JSON file with the list of messages, with {fields} of the case.", "chat", '"messages.json"'),
        Option(
            "--turns COLUMN",
            "Column with a list of user messages, sent one after the other with the conversation so far; each is a step.",
            "chat endpoint acp",
            '"turns"',
        ),
        Option(
            "image COLUMN",
            "Column with images for the user message: paths relative to the dataset, or data: URLs; repeatable.",
            "chat.images",
            '["photo"]',
            multiple=True,
        ),
        Option(
            "file COLUMN",
            "Column with files for the user message, such as PDF documents; repeatable.",
            "chat.files",
            '["document"]',
            multiple=True,
        ),
        Option("--temperature T", "Sampling temperature; repeatable (default: the model's).", "chat", "0.0", varies=True),
        Option("--max-tokens N", "Maximum tokens of a reply (default: the model's).", "chat", "500"),
        Option("effort LEVEL", "How much the model reasons: low, medium, high, … (default: the model's).", "chat", '"low"'),
        Option("model-seed N", "Sampling seed, if the model supports it.", "chat.seed", "1"),
        Option("schema FILE", "JSON schema of the reply; the output is parsed as JSON.", "chat", '"schema.json"'),
        Option("--stream", "Stream the reply and record the time to its first token.", "chat"),
        Option(
            "extra-body JSON", "Further request parameters as JSON; @FILE reads them from a file.", "chat", "{ top_p = 0.9 }"
        ),
        Option("--prices FILE", "TOML file with token prices (default: built-in table).", "chat judge", '"prices.toml"'),
    ),
    "Scoring": (
        Option(
            "--score SCORER",
            f"{', '.join(scorers.NAMES)}, assertions (assertions:checks.py, regex:PATTERN, close_to:0.01, "
            "tools_used:search,book, max_steps:10), 'command:LINE' (exit code 0 passes) or file.py:function; repeatable.",
            "scorers",
            '["exact"]',
            multiple=True,
        ),
        Option(
            "--score-files PATH",
            "File or directory, such as tests, that is restored before a command scores a workspace; repeatable.",
            "command_scorer.files",
            '["tests"]',
            multiple=True,
        ),
        Option(
            "--judge MODEL",
            "Score the outputs with a chat model; repeatable. NAME=MODEL names the scorer (default: judge, judge-2, …). "
            "With --score assertions, the model that grades assertions.",
            "judge.model",
            '["gpt-5.6-terra"]',
            multiple=True,
        ),
        Option(
            "--rubric TEXT",
            "The judge's prompt with {output}, {trajectory}, {expected} and {fields}; @FILE reads it from a file "
            "(default: built-in).",
            "judge",
            '"@rubric.txt"',
        ),
        Option(
            "choice WORD=VALUE",
            "A verdict of the judge and its score; repeatable (default: correct=1, incorrect=0).",
            "judge.choices",
            "{ good = 1, bad = 0 }",
            multiple=True,
        ),
        Option(
            "--judge-url URL",
            "Base URL of the judge.",
            "judge.base_url",
            '"http://localhost/v1"',
            default="--base-url, if its model is of the same provider",
        ),
        Option(
            "judge-key-env NAME",
            "Environment variable with the judge's key.",
            "judge.key_env",
            '"MY_KEY"',
            default="--key-env, if the judge uses --base-url",
        ),
        Option(
            "--fail-under GATE",
            "Exit with 1 unless each variant reaches a mean score: exact=0.9, or 'exact>=0.9@lower' for the lower end of its "
            "95 % confidence interval; repeatable. Of a review: 'corrected:judge>=0.9@lower', 'agreement:judge>=0.7@lower'.",
            "settings",
            '["exact=0.9"]',
            multiple=True,
        ),
    ),
    "Retries": (
        Option("retry.errors N", "Retries of a trial after errors.", "retry.errors", "4"),
        Option("retry.parse-errors N", "Retries after KeyError, IndexError or ValueError.", "retry.parse_errors", "1"),
        Option("retry.timeouts N", "Retries of a trial after timeouts.", "retry.timeouts", "2"),
        Option("retry.deaths N", "Retries of a trial after attempts that ended their worker.", "retry.deaths", "2"),
        Option("retry.rate-limits S", "Total seconds a trial may wait on rate limits.", "retry.rate_limits", "600"),
        Option("retry.base-delay S", "Maximum seconds before the first retry; doubles each time.", "retry.base_delay", "1"),
        Option("retry.max-delay S", "Upper bound of that delay in seconds.", "retry.max_delay", "60"),
    ),
    "Concurrency": (
        Option(
            "--slots N",
            "Maximum concurrent attempts per rate-limit key, and concurrent calls per scorer.",
            "settings",
            "8",
            default="100, or what a known rate limit can use; plain functions and --output-key: 32; commands: the number of "
            "CPUs, at least 4",
        ),
        Option(
            "--workers WHERE",
            f"Run attempts in N processes, M at once in each ('processes', 'processes:N', 'processes:NxM'), on a Ray cluster "
            f"('ray', 'ray:HOST:PORT') or in workers that a command starts ('command:ssh gpu1 …', 'command:NxM:docker run …'); "
            f"with 'scorers:' before it, only scorers run there; '{OFF}' turns it off.",
            "settings",
            '"processes:8"',
            default="this process",
        ),
        *(
            Option(spec, f"{text}; repeatable{further}.", f"limits.{name}", example, table=table, type=str, multiple=True)
            for spec, table, name, text, further, example in (
                ("--rpm N", "limits", "rpm", "Maximum requests per minute to each model, or to one: MODEL=500", "", "500"),
                ("--tpm N", "limits", "tpm", "Maximum tokens per minute, such as 200k", ", like --rpm", '"200k"'),
                ("limits.itpm N", "", "itpm", "Maximum input tokens per minute", ", like --rpm", '"100k"'),
                ("limits.otpm N", "", "otpm", "Maximum output tokens per minute", ", like --rpm", '"20k"'),
                ("limits.rpd N", "", "rpd", "Maximum requests in 24 hours; the run then stops", ", like --rpm", '"10k"'),
            )
        ),
        Option(
            "limits.headers MODE",
            "Rate limits in the headers of replies: 'read' or 'ignore', if a proxy sends wrong ones.",
            "limits.headers",
            '"ignore"',
            default="read",
            type=click.Choice(HEADER_MODES),
        ),
        Option(
            "--batch/--no-batch",
            "Send the calls of chat models and judges in batches of the provider: half the price, results within 24 hours; "
            "`resume` collects them.",
            "settings",
            default="--no-batch",
        ),
        Option(
            "batch-fallback",
            "Make the calls that had no result in a batch, or an error that is retried, live, at the full price.",
            "settings",
        ),
        Option("batch-tokens N", "Maximum input tokens in all open batches.", "settings", "2000000", default="no limit"),
        Option(
            "batch-poll S",
            "Polling interval for open batches in seconds; it doubles, up to ten times this value, while nothing changes.",
            "settings",
            "60",
        ),
        Option(
            "policy POLICY", f"How concurrency is adjusted: {', '.join(_CHOICES['POLICY'])}.", "settings.policy", '"adaptive"'
        ),
        Option(
            "limit-key FIELD",
            "Field of the case, or parameter of the variant, that holds its rate-limit key; each key has its own slots.",
            "settings",
            '"model"',
        ),
    ),
    "Replies": (
        Option(
            "--replies RUN",
            "Answer calls from what this run, or a file of `evaljournal pack`, has recorded; repeatable.",
            "settings",
            '["runs/capitals/0001"]',
            multiple=True,
        ),
        Option(
            "--offline/--no-offline", "Connect to this machine only; no API key is needed.", "settings", default="--no-offline"
        ),
        Option(
            "--on-miss ACTION",
            "A call without a recorded reply: 'fail' ends its trial and shows what has changed, 'live' makes the call.",
            "settings",
            '"fail"',
            default="'fail' with --offline, otherwise 'live'",
            type=click.Choice(["fail", "live"]),
        ),
        Option("--replies-any-trial", "Also use steps of other trials, as a cache.", "settings"),
        Option("live-from N", "With replies: the step from which each attempt makes its calls; see what-if.", "settings", "3"),
        Option("live-model MODEL", "The model that these calls are sent to.", "settings", '"gpt-5.4-mini"'),
        Option("live-system TEXT", "The system prompt of these calls.", "settings", '"Answer briefly."'),
        Option("--replay-errors", "Let calls that failed fail again, to test the task's own retries.", "settings"),
    ),
    "Limits": (
        Option("--timeout S", f"Timeout of an attempt in seconds; '{OFF}' turns it off.", "settings", "60", type=seconds),
        Option("--deadline S", "Stop after this many seconds; `resume` continues.", "settings", "3600", type=seconds),
        Option(
            "--budget UNIT=AMOUNT",
            "Stop before the run uses more: cost=5 (dollars), input_tokens=500k or output_tokens=2M; `resume` with a larger "
            "budget continues; repeatable.",
            "settings",
            "{ cost = 5 }",
            multiple=True,
        ),
        Option(
            "budget-per-trial UNIT=AMOUNT",
            "End a trial with an error when its attempts use more, in the same units; repeatable.",
            "settings",
            "{ cost = 0.5 }",
            multiple=True,
        ),
        Option(
            "--max-failures N", "Stop when more than N trials, or N% of them, have an error.", "settings", '"5%"', type=failures
        ),
        Option(
            "stop-on-same-error N",
            f"Stop when the first N trials, or calls of a scorer, all end with the same error; '{OFF}' turns it off.",
            "settings",
            "20",
            type=count,
        ),
        Option("--fail-fast/--no-fail-fast", "Stop at the first error.", "settings", default="--no-fail-fast"),
        Option("grace S", "Seconds that in-flight attempts get to finish when the run is stopped.", "settings", "5"),
    ),
    "Output": (
        Option("--name NAME", "Name of the evaluation, for runs/NAME (default: name of the data file).", "evaluation", '"qa"'),
        Option(
            "durability MODE",
            "'os' skips fsync: faster, but a power failure can lose about 30 s of records.",
            "settings",
            '"sync"',
        ),
        Option(
            "write-ahead",
            "Sync the start of each attempt before its call, and each step before it returns (needed for at-most-once).",
            "settings",
        ),
        Option(
            "durable WHAT",
            "HTTP requests of a Python task to record as steps: 'http' for model calls, or the start of a URL; repeatable.",
            "settings",
            '["http"]',
            multiple=True,
        ),
        Option(
            "--key-without REGEX",
            "Text in model requests that is not compared when steps are reused, such as a date in a prompt; repeatable.",
            "settings",
            '["today is .*"]',
            multiple=True,
        ),
        Option(
            "on-declined ACTION",
            "What to do with declined answers: 'score', 'error' (the trial has an error) or 'exclude' (no scores).",
            "settings",
            '"score"',
        ),
        Option(
            "on-truncated ACTION",
            "What to do with truncated answers; see `on-declined`.",
            "settings",
            '"score"',
        ),
        Option(
            "reuse-steps WHEN",
            "When the next attempt reuses completed steps: 'transient' (after an interruption, a rate limit or an outage), "
            "'interrupted', 'always' or 'never'.",
            "settings",
            '"transient"',
        ),
        Option(
            "requests",
            "Record the rendered request of each attempt.",
            "settings.record_requests",
            "false",
            default="true",
        ),
        Option(
            "--export NAME:PATH",
            "Also write another format, updated with each trial; nat:DIR has the files of `nat eval`.",
            example='"nat:results"',
        ),
        Option(
            "--otlp [URL]",
            "Send spans and scores to an OpenTelemetry collector while the run goes on; not recorded.",
            default="$OTEL_EXPORTER_OTLP_ENDPOINT",
            in_file=False,
        ),
        Option("--otlp-content", "With --otlp, also send inputs, outputs and error messages.", in_file=False),
        Option("--head-file FILE", "Write the hash of the last record to FILE, for `verify --expect-head`.", in_file=False),
        Option("--plain", "Plain progress lines (every 10 %) instead of the live screen.", in_file=False),
        Option("--verbose", "Also print tokens, workers and the hash of the last record at the end.", in_file=False),
        Option("--json", "Print a summary as JSON at the end.", in_file=False),
    ),
}
"""Group of the help → its options, in the order in which the help and `init --all` list them."""

OPTIONS: Final = tuple(option for options in TABLE.values() for option in options)
_ADVANCED: Final = """
id-key only skip shuffle seed only-variant shard yes key-env header shell gateway output-key turns stream judge-url tpm batch
prices leave workers deadline fail-fast name export otlp otlp-content head-file verbose key-without
replies offline on-miss replies-any-trial replay-errors trust
workspace workspace-dirty agent-home keep score-files
acp acp-allow variant-files
"""
ADVANCED: Final = frozenset(f"--{name}" for name in _ADVANCED.split())
"""Flags that only `--help-all` shows, because few people need them."""
BY_KEY: Final = {option.key: option for option in OPTIONS if option.in_file}
"""Key of a configuration file → its row."""


def removed_option(flag: str) -> Option | None:
    """Return the key that a mistyped or removed option stands for: `retry.errors` for --retry-errors."""
    name = flag.removeprefix("--").removeprefix("no-")
    names = {text: option for key, option in BY_KEY.items() for text in (key, key.replace(".", "-"), key.rpartition(".")[2])}
    return names.get(name) or names.get(name.replace("limit-", "limits-"))


NESTED: Final = ("retry", "limits")
"""Settings that have several options; their keys are written as tables: `[retry]`."""


def is_setting(option: Option, *, experiment: bool) -> bool:
    """Return whether an option is a setting; without `experiment`, whether `resume` can change it."""
    names = [*option.arguments("settings"), *(name for owner in NESTED for name in option.arguments(owner))]
    return bool(names) and (experiment or names[0] not in EXPERIMENT_SETTINGS)


def is_definition(option: Option) -> bool:
    """Return whether an option describes what is evaluated, not how."""
    return bool(option.targets) and not is_setting(option, experiment=True)


def is_task_option(option: Option) -> bool:
    """Return whether an option describes the task, so that variants may differ in it."""
    return any(any(option.arguments(target)) for target in TARGETS)


def overrides(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among parsed options, as `Settings.with_values` takes them; those without a value are omitted."""
    settings: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {owner: {} for owner in NESTED}
    for option in OPTIONS:
        value = values.get(option.name)
        if value is None or value == ():
            continue
        settings.update(dict.fromkeys(option.arguments("settings"), None if value == OFF else value))
        for owner, items in nested.items():
            items.update(dict.fromkeys(option.arguments(owner), value))
    return settings | {owner: items for owner, items in nested.items() if items}


def render_error(error: UsageError) -> str:
    """Return the message of an error; it names a setting by its flag, or by its key in a configuration file."""
    for option in OPTIONS:
        nested_names = {f"{owner}.{name}" for owner in NESTED for name in option.arguments(owner)}
        if error.setting in {*option.arguments("settings"), *nested_names}:
            value = f"{100 * error.value:g}%" if option.type is failures and isinstance(error.value, float) else error.value
            if error.path is None and option.flag:
                prefix = option.flag if value is True else f"{option.flag} {value}"
            else:
                place = "" if error.path is None else f"{error.path}: "
                prefix = f"{place}{option.key} = {str(value).lower() if isinstance(value, bool) else value}"
            return f"{prefix}: {error.message}{f'; {OFF!r} turns it off' if option.can_be_off else ''}"
    return str(error)
