"""A command as a scorer: executed in a copy of the workspace in which the output was made.

Exit code 0 passes, and what the command prints is the reason; JSON such as `{"score": 0.5, "reason": "…"}` gives a number. An
agent can edit the tests that check it, so the files that the scorer names are those of the original, and whatever else is in
their directories is removed. The command gets no keys. It can hang, print without end or leave programs behind it, as any
command that runs code of a model: it has a timeout, its output is bounded, and its programs are ended.
"""

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import orjson
import trio

from evaljournal.journal.threads import run_in_thread
from evaljournal.runner.calls.command import CANNOT_RUN, CommandMissing, ProcessTask, exit_text, open_program, read_program
from evaljournal.runner.calls.http.reply import ReplyMemory
from evaljournal.runner.calls.workspaces import HOMES, directory_of, name_of
from evaljournal.runner.calls.workspaces.original import Original, case_files
from evaljournal.runner.calls.workspaces.programs import RUN, WORKSPACE, end_programs
from evaljournal.runner.calls.workspaces.trees import WorkspaceProblem, copy_agent_tree, relative_path, remove_tree, write_file
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.fingerprint import canonical, digest
from evaljournal.runner.errors import UsageError
from evaljournal.runner.retries.classify import Fatal
from evaljournal.runner.scorers.scorer import Score, ScorerInput
from evaljournal.runner.secrets.masking import environment_without_secrets

_MAX_REASON: Final = 4_000
_NOT_IN_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


def _words(line: str | Sequence[str]) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(line) if isinstance(line, str) else line)
    except ValueError as exc:
        raise UsageError(f"cannot parse the command {line!r}: {exc}; check its quotes") from exc
    if not words:
        raise UsageError("the command of the scorer is missing: write --score 'command:pytest -q'")
    if "/" not in words[0] and shutil.which(words[0]) is None:
        raise UsageError(f"command {words[0]!r} not found")
    return words


def _restored(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(relative_path(path, "score-files") for path in ([paths] if isinstance(paths, str) else paths))


@attrs.frozen
class CommandScorer(ProcessTask):
    """A command that scores the workspace of an output."""

    takes_trial = False
    needs_workspace = True

    command: tuple[str, ...] = attrs.field(converter=_words)
    """Its words. A string is split like a shell command, but no shell is used. It gets input, output and expected output on
    stdin."""
    files: tuple[str, ...] = attrs.field(default=(), converter=_restored)
    """Files and directories that are restored from the original before the command is executed."""

    @property
    def __name__(self) -> str:  # the name of a scorer
        return _NOT_IN_NAME.sub("-", Path(self.command[0]).stem).strip("-") or "command"

    @property
    def definition(self) -> dict[str, Any]:
        return {"command": list(self.command), "files": list(self.files)}

    @property
    def fingerprint(self) -> str:
        return digest(canonical([list(self.command), list(self.files)], "the command"))

    def __call__(self, output: Any) -> Score:  # noqa: ARG002  # as scorers are called
        """Raise: without a run, there is no workspace."""
        raise UsageError("a command scores the workspace of a run; it cannot be called alone")

    def check_workspace(self, run: str, trial: str, attempt: int) -> bool:
        """Return whether the workspace of an attempt still exists."""
        return (directory_of(run) / "attempts" / name_of(trial, attempt) / "workspace").is_dir()

    async def execute(self, value: ScorerInput, run: str) -> Score:
        """Copy the workspace of an output, and run the command in the copy."""
        owner = value.workspace_run or run
        directory = directory_of(owner)
        attempt = directory / "attempts" / name_of(value.trial, value.attempt)
        if not attempt.exists():
            problem = "was removed" if owner == run else f"is not on this machine, or was removed: run {owner} made it"
            raise WorkspaceProblem(f"the workspace of the output {problem}; run the trial again, with --keep all")

        copy = directory_of(run) / "scoring" / f"{attempt.name}-{value.scorer}"
        try:
            with trio.CancelScope(shield=True):
                await run_in_thread(partial(self._prepare, value.case, directory, attempt / "workspace", copy))
            await trio.lowlevel.checkpoint_if_cancelled()
            return await self._score(value, run, copy)
        finally:
            with trio.CancelScope(shield=True):
                await run_in_thread(partial(_clean, copy))

    def _prepare(self, case: Case, directory: Path, workspace: Path, copy: Path) -> None:
        remove_tree(copy)
        copy_agent_tree(workspace, copy)
        if not self.files:
            return

        original = Original.at(directory / "original").with_files(case_files(case))
        for name in self.files:
            paths = [path for path in original.index if path == name or path.startswith(f"{name}/")]
            if not paths:
                raise Fatal(f"score-files: {name!r} is not in the directory that workspaces are copied from")
            if os.path.lexists(copy / name):
                write_file(copy, name, b"")  # In place of a link or a directory.
                (copy / name).unlink()
            for path in paths:
                fact = original.index[path]
                if fact.sha256 and not fact.target:
                    write_file(copy, path, original.content(path), fact.mode & 0o777)

    async def _score(self, scorer_input: ScorerInput, run: str, copy: Path) -> Score:
        fields = {"input": scorer_input.case.input, "output": scorer_input.output, "expected": scorer_input.case.expected}
        environment = {name: value for name, value in environment_without_secrets().items() if name not in HOMES}
        environment |= {"PWD": str(copy), WORKSPACE: str(copy), RUN: run, "EVALJOURNAL_TRIAL": scorer_input.trial}
        environment["GIT_CEILING_DIRECTORIES"] = str(copy.parent)  # Without, git would find a repository around the copy.

        with ReplyMemory("the output of the scorer's command") as memory:
            stdin = orjson.dumps(fields, default=str) + b"\n"
            process = await open_program(self.command, environment, copy)
            code, stdout, stderr = await read_program(process, stdin, memory)

        if code in CANNOT_RUN:
            raise CommandMissing(f"{self.command[0]!r} {exit_text(code)}: {_text(stderr)}")
        if (score := _json_score(stdout)) is not None:
            return score
        reason = "\n".join(filter(None, [_text(stdout), _text(stderr), "" if code == 0 else exit_text(code)]))
        return Score(code == 0, reason[-_MAX_REASON:])


def _clean(copy: Path) -> None:
    end_programs(WORKSPACE, str(copy))
    remove_tree(copy)


def _text(content: bytes) -> str:
    return content[-2 * _MAX_REASON :].decode("utf-8", "replace").strip()


def _json_score(stdout: bytes) -> Score | None:
    """Return the score in a printed object; None if there is none."""
    try:
        value = orjson.loads(stdout)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("score"), bool | int | float | str):
        return None
    reason = value.get("reason", "")
    return Score(value["score"], reason[:_MAX_REASON] if isinstance(reason, str) else "")
