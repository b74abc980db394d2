"""`evaljournal init`."""

import re
import tomllib
from pathlib import Path

import pytest

from evaljournal.runner.cli.options.table import BY_KEY
from evaljournal.runner.cli.options.values import read_file
from tests.runner_cli.commands import evaljournal, rejected

pytestmark = pytest.mark.usefixtures("dataset")


def test_init_writes_a_file_that_runs() -> None:
    """`init --command` writes a short file that runs as it is; a file is never overwritten."""
    result = evaljournal("init", "--command")
    text = Path("eval.toml").read_text()
    repeated = evaljournal("init")

    assert (0, 2) == (result.exit_code, repeated.exit_code)
    assert text == Path("eval.toml").read_text()
    assert {"data", "command", "score"} == set(tomllib.loads(text))
    assert 0 == evaljournal("run", "--config", "eval.toml").exit_code
    assert "no/eval.toml: cannot be written: No such file or directory; create" in evaljournal("init", "no/eval.toml").stderr


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        (["--chat"], {"data", "chat", "prompt", "score"}),
        (["--endpoint"], {"data", "endpoint", "body", "output-path", "score"}),
        (["--command"], {"data", "command", "score"}),
        ([], {"data", "score"}),
        (["--all"], set()),
    ],
)
def test_init_writes_a_file_for_a_target(flags: list[str], keys: set[str]) -> None:
    """A short file has the keys of its target, the rest as comments; the long one has every key as a comment."""
    result = evaljournal("init", *flags)
    text = Path("eval.toml").read_text()

    assert 0 == result.exit_code
    assert keys == set(tomllib.loads(text))
    assert (len(text.splitlines()) > 100) == (flags == ["--all"])


def test_all_keys_of_init_are_valid() -> None:
    """Each commented key of `init --all` is a known key with a valid value; with a target, `--all` is a usage error."""
    assert "--all and --chat are mutually exclusive" in rejected("init", "--all", "--chat")
    evaljournal("init", "--all")
    matches = re.finditer(r"^# (\[\w+\]|[\w-]+ = .*)$", Path("eval.toml").read_text(), re.MULTILINE)
    Path("all.toml").write_text("\n".join(match[1] for match in matches))
    values, _ = read_file(Path("all.toml"))

    assert len(BY_KEY) == len(values) > 80
    assert ("Authorization: Bearer $MY_KEY",) == tuple(values["header"])
    assert '{"top_p":0.9}' == values["extra_body"]
    assert "are mutually exclusive" in rejected("run", "--config", "all.toml")  # All are valid, but there are four targets.
