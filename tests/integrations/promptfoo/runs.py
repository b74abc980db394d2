"""Runs of promptfoo, without network and telemetry, and their verdicts."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.integrations.promptfoo.generated import Test
from tests.programs import skip_or_fail

HERE = Path(__file__).parent
Verdict = list[Any]
"""`pass`, `fail` or `error`, the score and the named scores; only `error` for an error."""


def run_promptfoo(config: Path, results: Path, **environment: str) -> list[dict[str, Any]]:
    """Return the results of a configuration, one for each test and provider; without promptfoo, skip the test."""
    program = os.environ.get("PROMPTFOO") or shutil.which("promptfoo")
    if program is None:
        skip_or_fail("no promptfoo on the PATH; install it with `npm install -g promptfoo`, or set PROMPTFOO to its path")
    off = {f"PROMPTFOO_DISABLE_{name}": "1" for name in ("TELEMETRY", "UPDATE", "REMOTE_GENERATION", "SHARING")}
    off |= {"PROMPTFOO_CONFIG_DIR": str(results.parent / "promptfoo"), "PROMPTFOO_CACHE_ENABLED": "false"}
    options = ("--no-cache", "--no-table", "--no-progress-bar", "--no-write")
    subprocess.run(  # the program that the user named
        [program, "eval", "-c", str(config), "-o", str(results), *options],
        cwd=config.parent,
        env={**os.environ, **off, **environment},
        capture_output=True,
        check=False,  # It exits with 100 if a test fails.
        timeout=1200,
    )
    return list(json.loads(results.read_text(encoding="utf-8"))["results"]["results"])


def verdict_of(result: dict[str, Any]) -> Verdict:
    """Return the verdict of a result; an invalid pattern, which promptfoo counts as a failed test, is an error."""
    grading = result.get("gradingResult")
    if grading is None or result["failureReason"] == 2:  # an error
        return ["error"]
    if any((component.get("reason") or "").startswith("Invalid regex") for component in grading.get("componentResults") or ()):
        return ["error"]
    metrics = {name: round(score, 9) for name, score in sorted((grading.get("namedScores") or {}).items())}
    return ["pass" if grading["pass"] else "fail", round(grading["score"], 9), metrics]


def promptfoo_verdicts(tests: list[Test], directory: Path) -> list[Verdict]:
    """Return what promptfoo says about tests with recorded outputs."""
    shutil.copy(HERE / "outputs.js", directory)
    (directory / "outputs.json").write_text(json.dumps([test["output"] for test in tests]))
    config = {
        "prompts": ["{{number}}"],
        "providers": ["file://outputs.js"],
        "tests": [{**_without_objects(test), "vars": {"number": str(number)}} for number, test in enumerate(tests)],
    }
    path = directory / "promptfooconfig.json"
    path.write_text(json.dumps(config))
    results = {int(result["vars"]["number"]): verdict_of(result) for result in run_promptfoo(path, directory / "results.json")}
    return [results[number] for number in range(len(tests))]


def _without_objects(value: dict[str, Any]) -> dict[str, Any]:
    """Return a test or an assertion without its output and with schemas as text: promptfoo resolves each `$ref` in a file."""
    fields = {key: item for key, item in value.items() if key != "output"}
    if "assert" in fields:
        fields["assert"] = [_without_objects(assertion) for assertion in fields["assert"]]
    elif fields["type"].endswith("-json") and "value" in fields:
        fields["value"] = json.dumps(fields["value"])
    return fields
