"""A child process that makes calls under an audit hook and reports what they opened, executed, connected to and looked up.

Standard input: a JSON list of calls, each a list of arguments of the command line, or a string of Python code. Standard
output: a JSON list with what each of them did.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

CANARIES = frozenset({"evil.py", "evil_module.py", "evil.toml", "evil.sh", "evil.txt", "id_rsa", "qa.jsonl"})
"""Files that nothing may open or execute."""
VARIABLE = "CANARY_KEY"
"""The environment variable that nothing may read."""

_PROCESSES = {"subprocess.Popen": 1, "os.exec": 1, "os.posix_spawn": 1, "os.system": 0}
"""Audit event → position of the command in its arguments."""
_actions: dict[str, set[str]] = {}


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    kind, value = "", ""
    if event == "open" and Path(str(arguments[0])).name in CANARIES:
        kind, value = "opened", Path(str(arguments[0])).name
    elif event == "exec" and Path(arguments[0].co_filename).name in CANARIES:
        kind, value = "imported", Path(arguments[0].co_filename).name
    elif event in _PROCESSES:
        command = arguments[_PROCESSES[event]]
        words = [os.fsdecode(word) for word in ([command] if isinstance(command, str | bytes) else command)]
        if CANARIES.intersection(Path(word).name for word in words):  # The standard library executes ldconfig and uname.
            kind, value = "executed", " ".join(words)
    elif event == "socket.connect":
        kind, value = "connected", "{}:{}".format(*arguments[1])
    if kind:
        _actions.setdefault(kind, set()).add(value)


class _Environment(dict[str, str]):
    """An environment that records when the variable is read."""

    def __getitem__(self, name: str) -> str:
        if name == VARIABLE:
            _actions.setdefault("expanded", set()).add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


def _call(call: "list[str] | str") -> dict[str, Any]:
    from evaljournal.runner.cli import cli

    _actions.clear()
    output, code = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            if isinstance(call, str):
                exec(call, {})  # noqa: S102  # written by the test
            else:
                cli.main(call, standalone_mode=False)
        except click.ClickException as exc:
            code = exc.exit_code
            exc.show()
        except SystemExit as exc:
            code = int(exc.code or 0)
    return {
        "code": code,
        "output": output.buffer.getvalue().decode(),
        **{kind: sorted(values) for kind, values in _actions.items()},
    }


if __name__ == "__main__":
    sys.path[:1] = [str(Path(__file__).parents[2])]
    os.environ = _Environment(os.environ)  # type: ignore[assignment]  # noqa: B003  # for this test
    calls = json.load(sys.stdin)
    sys.addaudithook(_audit)
    results = [_call(call) for call in calls]
    print(json.dumps(results))  # noqa: T201  # for the test
