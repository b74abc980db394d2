"""`evaljournal init`."""

import re
import tomllib
from pathlib import Path

import pytest

from evaljournal.runner.cli.commands.run import run
from evaljournal.runner.cli.options.config_file import read_config
from tests.runner_cli.commands import evaljournal

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


def test_init_of_all_keys_has_no_target() -> None:
    """`--all` together with a target is a usage error."""
    assert 2 == evaljournal("init", "--all", "--chat").exit_code
    assert not Path("eval.toml").exists()


def test_the_values_of_init_are_valid() -> None:
    """Every key of `init --all` has a valid value."""
    evaljournal("init", "--all")
    keys = [
        line.removeprefix("# ") for line in Path("eval.toml").read_text().splitlines() if re.match(r"(# )?[a-z-]+ = ", line)
    ]
    Path("all.toml").write_text("\n".join(keys))
    result = evaljournal("run", "--config", "all.toml")

    assert "are mutually exclusive" in result.stderr  # All are valid, but there are four targets.
    assert "…" not in Path("all.toml").read_text()


def test_the_keys_of_init_are_known() -> None:
    """Each commented key of `init --all` is valid TOML and a known key."""
    evaljournal("init", "--all")
    lines = [line.removeprefix("# ") for line in Path("eval.toml").read_text().splitlines() if re.match(r"# [\w-]+ = ", line)]
    Path("all.toml").write_text("\n".join(lines))
    values, _ = read_config(Path("all.toml"), run)

    assert len(lines) == len(values) > 50
    assert ("Authorization: Bearer $MY_KEY",) == tuple(values["header"])
    assert '{"top_p":0.9}' == values["extra_body"]
