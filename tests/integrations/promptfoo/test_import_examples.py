"""promptfoo's own example configurations. `PROMPTFOO_EXAMPLES` names the directory `examples` of a clone of promptfoo."""

import os
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.runner_cli.commands import evaljournal

VARIABLE = "PROMPTFOO_EXAMPLES"
KEYS = "OPENAI ANTHROPIC GOOGLE OPENROUTER MISTRAL GROQ TOGETHER"


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} does not name promptfoo's directory `examples`")
def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is imported, or rejected with a line; whatever is written without code is accepted by `run`."""
    monkeypatch.chdir(os.environ[VARIABLE])
    for name in [*(f"{key}_API_KEY" for key in KEYS.split()), "API_KEY"]:
        monkeypatch.setenv(name, "a key for a test")
    paths = sorted(path for path in Path().rglob("*promptfooconfig*") if path.suffix in {".yaml", ".yml", ".json"})
    counts: Counter[str] = Counter()
    for path in paths:
        output = tmp_path / "evals"
        shutil.rmtree(output, ignore_errors=True)
        result = evaljournal("import", path, "-o", output, "--partial")
        assert result.exit_code in {0, 2}, (path, result.output, result.exception)
        assert result.exit_code == 0 or re.search(r", line [\d,]+: ", result.stderr), (path, result.stderr)
        is_whole = "no counterpart" not in result.stderr
        counts["rejected" if result.exit_code else "whole" if is_whole else "partial"] += 1
        for config in output.glob("*.toml"):
            if not list(output.glob("*.py")):  # Nothing of promptfoo is executed.
                dry_run = evaljournal("run", "--config", config, "--dry-run")
                assert 0 == dry_run.exit_code, (path, dry_run.stderr)
    print(dict(counts))  # noqa: T201  # with `pytest -s`

    assert counts["whole"] > 30
    assert counts["partial"] > 90
