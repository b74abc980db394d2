"""What the commands, options and files of other tools are called here.

An error of the command line answers with the entry of a word, before it guesses by similarity: `--model` is nearer to `--name`
than to `--chat`. Only words that we do not have are entries. The texts stand after "is".
"""

import re
from collections.abc import Mapping
from typing import Final

_CHAT: Final = "--chat MODEL here, with the prefix of an API such as anthropic: if it is not chat completions"
_SLOTS: Final = "--slots N here, the maximum of concurrent attempts"
_REPEATS: Final = "--repeats N here"
_ERRORS: Final = "-s retry.errors=N here; rate limits are waited for"

WORDS: Final[Mapping[str, str]] = {
    # Commands
    "delete": "`rm -r RUN` here: a run is a directory",
    "diff": "`evaljournal compare` here",
    "eval": "`evaljournal run` here",
    "evaluate": "`evaljournal run` here",
    "eval-retry": "`evaljournal resume` here",
    "list": "`evaljournal ls` here",
    "logs": "`evaljournal log` here, and `evaljournal show` for one trial",
    "open": "`evaljournal view` here, or `evaljournal report --open`",
    "retry": "`evaljournal resume` here, with --retry-failed if it has finished with errors",
    "score": "`evaljournal rescore` here",
    "share": "`evaljournal report` here: one HTML file that you can send",
    "start": "`evaljournal run` here",
    "test": "`evaljournal run` here, then `evaljournal gate`; `pytest --evals` runs evaluations as tests",
    "trace": "`evaljournal show RUN TRIAL` here; `evaljournal export --format otlp` writes spans",
    "ui": "`evaljournal view` here",
    # Options
    "--assertions": "--score or --judge here, and the scorer `assertions` for a column `assert`",
    "--cache": "not needed here: `evaljournal resume` repeats no call that was answered",
    "--concurrency": _SLOTS,
    "--config-file": "--config FILE here",
    "--cost-limit": "--budget cost=USD here",
    "--dataset": "--data FILE here",
    "--epochs": _REPEATS,
    "--fail-threshold": "--fail-under SCORE=MEAN here",
    "--fail-on-error": "--fail-fast here",
    "--filter": "--only PATTERN here",
    "--input": "--data FILE here, and --input-key COLUMN",
    "--jobs": _SLOTS,
    "--log-dir": "-o RUN here, the directory of the run",
    "--max-concurrency": _SLOTS,
    "--max-connections": _SLOTS,
    "--max-cost": "--budget cost=USD here",
    "--max-retries": _ERRORS,
    "--max-samples": _SLOTS,
    "--max-workers": f"{_SLOTS}; --workers starts processes",
    "--metrics": "--score SCORER here",
    "--model": _CHAT,
    "--no-cache": "not needed here: nothing is cached, and each new run makes its own calls",
    "--num-threads": _SLOTS,
    "--out": "-o RUN here; other formats are written by `evaljournal export` or --export NAME:PATH",
    "--output-dir": "-o RUN here, the directory of the run",
    "--parallel": _SLOTS,
    "--provider": _CHAT,
    "--repeat": _REPEATS,
    "--retries": _ERRORS,
    "--sample-id": "--only NAME here",
    "--scorer": "--score SCORER here",
    "--system-prompt": "--system TEXT here",
    "--test-cases": "--data FILE here",
    "--threads": _SLOTS,
    "--time-limit": "--timeout S here for an attempt, and --deadline S for the run",
    "--token-limit": "--budget tokens=N here for the run, and --max-tokens N for a reply",
    "--trials": _REPEATS,
    "-c": "--config FILE here",
    "-j": _SLOTS,
    "-m": _CHAT,
    "-n": "--limit N here for cases, --repeats N for trials of each, and --slots N for concurrent attempts",
}
_PREFIXES: Final = dict.fromkeys(("azure", "groq", "mistral", "openai", "together"), "") | {"google": "gemini:"}
"""Providers that others write before a model → our prefix; without one, the API is chat completions."""
_FILES: Final = {".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xlsx"}


def explain(word: str) -> str:
    """Return what a command or an option of another tool is here, as the rest of a sentence; empty if it is not known."""
    return f"{word} is {WORDS[word]}" if word in WORDS else ""


def explain_file(path: str) -> str:
    """Return how to use a file that is no evaluation; empty if there is nothing to say."""
    if re.search(r"promptfooconfig[^/\\]*\.ya?ml$", path):
        return f"import it first: evaljournal import {path}"
    if any(path.endswith(suffix) for suffix in _FILES):
        return f"it has cases: evaljournal run --data {path} --chat MODEL --prompt TEXT"
    return "describe an evaluation in a TOML file; `evaljournal init` writes one" if path.endswith((".yaml", ".yml")) else ""


def explain_model(model: str) -> str:
    """Return how to write a model with the prefix of another tool; empty if it has none."""
    prefix, separator, name = model.partition(":")
    if not separator or prefix not in _PREFIXES:
        return ""
    name = name.removeprefix("chat:")
    if prefix in {"openai", "google"}:
        return f"write --chat {_PREFIXES[prefix]}{name}"
    return f"write --chat {name} with --base-url URL and --key-env NAME (docs/providers.md)"
