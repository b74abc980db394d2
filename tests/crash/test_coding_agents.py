"""Real coding agents, called as commands through the gateway against a scripted provider on loopback."""

import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from evaljournal import verify
from evaljournal.journal.events import AttemptFailed, AttemptStarted, StepCompleted, StepFailed, StepReused
from evaljournal.runner.calls.workspaces.programs import end_programs
from tests.coding_agents import CASES, COMMANDS, QUIET, TURNS, Provider, find_agent, serving_agents
from tests.processes import ROOT, Process, wait_until
from tests.runs import events, outputs

SLOTS: Final = 2
OWN_HOME: Final = ["--agent-home", "own", "--key-without", "/tmp/workspace[-0-9]*"]  # noqa: S108  # in its prompts
"""Gemini CLI reads how it is authorized in its home, where it numbers the directories in which it was started."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """Return the environment of a run, with homes of its own for the agents; no program and no workspace may remain."""
    for name in ("home", "codex", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "cases.csv").write_text("id,input\n" + "".join(f"{case},say it: case {case}\n" for case in CASES))
    settings = tmp_path / "home" / ".gemini" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
    homes = {"HOME": "home", "CODEX_HOME": "codex", "XDG_STATE_HOME": "state", "XDG_CACHE_HOME": "cache"}
    yield {"PATH": os.environ["PATH"], **QUIET, **{name: str(tmp_path / directory) for name, directory in homes.items()}}

    assert 0 == end_programs("HOME", str(tmp_path / "home"))
    assert [] == list((tmp_path / "cache" / "evaljournal").glob("workspaces/*/*"))


def start(agent: str, environment: Mapping[str, str], provider: Provider, directory: Path) -> Process:
    """Start a session of the run, or resume it; with a directory `repo`, in workspaces."""
    is_new = not (directory / "run").exists()
    options = ["--data", "cases.csv", *COMMANDS[agent], "--gateway", "-s", "write-ahead=true", "-o", "run", f"--slots={SLOTS}"]
    if (directory / "repo").exists():
        options += ["--workspace", "repo", *(OWN_HOME if agent == "gemini" else [])]
    return run_evaljournal(environment, provider, directory, ["run", *options] if is_new else ["resume", "run"])


def run_evaljournal(environment: Mapping[str, str], provider: Provider, directory: Path, arguments: list[str]) -> Process:
    """Start a command with the provider's addresses in its environment."""
    urls = dict.fromkeys(("ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"), provider.url)
    urls["OPENAI_BASE_URL"] = f"{provider.url}/v1"
    keys = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"), "sk-a-key-of-a-test")
    with (directory / "log.txt").open("a") as log:
        return Process(
            [sys.executable, "-m", "evaljournal", *arguments, "--plain"],
            cwd=directory,
            env={**environment, **urls, **keys},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def kill(process: Process) -> None:
    """Kill a session; its agents live on, and the next session ends them."""
    process.kill()
    process.wait()


def kill_later(process: Process, provider: Provider, random_source: random.Random) -> bool:
    """Kill a session after three to five more calls and a part of a second; return whether it had not ended."""
    target = provider.requests + random_source.randint(3, 5)
    try:
        while process.poll() is None and provider.requests < target:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        with suppress(subprocess.TimeoutExpired):
            process.wait(random_source.uniform(0.0, 0.2))
        return process.poll() is None
    finally:
        kill(process)


def finish(agent: str, environment: Mapping[str, str], provider: Provider, directory: Path) -> None:
    """Let a session run to its end, and check what every run must have: its outputs, and no recorded call was sent again."""
    process = start(agent, environment, provider, directory)
    try:
        code = process.wait()
    finally:
        kill(process)
    assert (0, [f"done after {TURNS} tools"] * len(CASES)) == (code, outputs(directory / "run")), (
        directory / "log.txt"
    ).read_text()[-3000:]
    assert {(case, results) for case in CASES for results in range(TURNS + 1)} <= provider.answered.keys()
    calls = [(step.trial, step.fingerprint) for step in events(directory / "run", StepCompleted) if step.kind == "model"]
    assert len(set(calls)) == len(calls)
    assert verify(directory / "run").ok


@pytest.mark.parametrize("agent", COMMANDS)
def test_a_rate_limit_at_every_sixth_call(agent: str, environment: Mapping[str, str], tmp_path: Path) -> None:
    """Each trial has one attempt, its output, and no call that was answered twice."""
    find_agent(agent)
    with serving_agents(reject_every=6) as provider:
        finish(agent, environment, provider, tmp_path / "work")
    run = tmp_path / "work" / "run"

    assert [] == events(run, AttemptFailed)
    assert len(CASES) == len(events(run, AttemptStarted))
    assert provider.requests // 6 == len(events(run, StepFailed)) >= 1
    assert {1} == {provider.answered[case, results] for case in CASES for results in range(TURNS + 1)}


@pytest.mark.parametrize(
    ("has_workspace", "kills"),
    [(True, 1), *(pytest.param(has_workspace, 20, marks=pytest.mark.exhaustive) for has_workspace in (False, True))],
)
@pytest.mark.parametrize("agent", COMMANDS)
def test_kills(agent: str, *, has_workspace: bool, kills: int, environment: Mapping[str, str], tmp_path: Path) -> None:
    """After `kill -9`, only the calls that were in flight are sent again, although the agent starts a session of its own.

    Each attempt has another workspace, and the agents of the killed session are still running.
    """
    find_agent(agent)
    if has_workspace:
        (tmp_path / "work" / "repo").mkdir()
        (tmp_path / "work" / "repo" / "a.txt").write_text("a")
    random_source, killed, again, reused = random.Random(kills), 0, 0, 0
    while killed < kills:
        directory = tmp_path / f"work{killed}"
        shutil.copytree(tmp_path / "work", directory)
        with serving_agents() as provider:
            while killed < kills and kill_later(start(agent, environment, provider, directory), provider, random_source):
                killed += 1
            finish(agent, environment, provider, directory)
        again += sum(provider.answered.values()) - len(provider.answered)
        reused += len(events(directory / "run", StepReused))
    sys.stdout.write(f"{agent}, workspace {has_workspace}: {killed} kills, {reused} steps reused, {again} calls sent again\n")

    assert reused
    assert again <= SLOTS * killed


@pytest.mark.parametrize("pattern", [None, r"Today.s date is [0-9-]+|current month is \w+ \d+"])
def test_another_day(pattern: str | None, environment: Mapping[str, str], tmp_path: Path) -> None:
    """A session on another day reuses no step of an agent that is asked for today's date, unless the keys leave it out."""
    find_agent("claude")
    options = ["--data", "cases.csv", *COMMANDS["claude"], "--gateway", "-s", "write-ahead=true", "-o", "run", "--slots=1"]
    options += [] if pattern is None else ["--key-without", pattern]
    with serving_agents() as provider:
        east, west = ({**environment, "TZ": zone} for zone in ("Pacific/Kiritimati", "Etc/GMT+12"))  # 26 hours apart.
        process = run_evaljournal(east, provider, tmp_path / "work", ["run", *options])
        assert wait_until(lambda: provider.requests >= 3)
        kill(process)
        code = run_evaljournal(west, provider, tmp_path / "work", ["resume", "run"]).wait()

    assert (0, [f"done after {TURNS} tools"] * len(CASES)) == (code, outputs(tmp_path / "work" / "run"))
    assert bool(pattern) == bool(events(tmp_path / "work" / "run", StepReused))


@pytest.mark.parametrize(
    ("agent", "line"), [("claude-code-acp", "claude-code-acp"), ("gemini", "gemini -m gemini-3.8-flash --acp")]
)
def test_acp(agent: str, line: str, environment: Mapping[str, str], tmp_path: Path) -> None:
    """A real agent of the Agent Client Protocol works in a workspace; its tool calls are steps."""
    find_agent(agent)
    (tmp_path / "work" / "repo").mkdir()
    options = [
        "--data",
        "cases.csv",
        "--acp",
        line,
        "--acp-allow",
        "all",
        "-o",
        "run",
        "--workspace",
        "repo",
        *(["--agent-home", "own"] if agent == "gemini" else []),
    ]
    with serving_agents() as provider:
        process = run_evaljournal(environment, provider, tmp_path / "work", ["run", *options])
        try:
            code = process.wait()
        finally:
            kill(process)
    steps = events(tmp_path / "work" / "run", StepCompleted)

    assert (0, [f"done after {TURNS} tools"] * len(CASES)) == (code, outputs(tmp_path / "work" / "run"))
    assert len(CASES) * TURNS == len([step for step in steps if step.name == "execute"])


RECIPES: Final = re.findall(
    r"^```sh no-run (\S+)\n(.*?)```", (ROOT / "docs" / "coding-agents.md").read_text(), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize(("name", "text"), [(name, line) for name, text in RECIPES for line in text.splitlines()])
@pytest.mark.exhaustive
def test_the_recipes_of_the_documentation(name: str, text: str, environment: Mapping[str, str], tmp_path: Path) -> None:
    """Each command of docs/coding-agents.md returns an output and has steps."""
    find_agent("claude-code-acp" if "claude-code-acp" in text else name.partition("-")[0].replace("acp", "gemini"))
    _, *words = shlex.split(text.replace("npx @zed-industries/", ""))
    (tmp_path / "work" / "tasks.jsonl").write_text('{"id": "a", "task": "say it: case alpha", "expected": "done"}\n')
    with serving_agents() as provider:
        if name == "codex-lines":
            own = f"-c model_provider=x -c model_providers.x.name=x -c model_providers.x.base_url={provider.url}/v1 "
            words = [word.replace("-- {", f"{own}-c model_providers.x.env_key=OPENAI_API_KEY -- {{") for word in words]
        process = run_evaljournal(environment, provider, tmp_path / "work", [*words, "-o", "run"])
        try:
            code = process.wait()
        finally:
            kill(process)

    assert (0, 1) == (code, len(outputs(tmp_path / "work" / "run"))), (tmp_path / "work" / "log.txt").read_text()[-3000:]
    assert events(tmp_path / "work" / "run", StepCompleted)
