"""A run from another user: nothing that its journal names is imported, executed, connected to or read without `--trust`."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from evaljournal.journal import Event, verify, writing
from evaljournal.journal.events import RunStarted, RunStopped, SessionStarted
from evaljournal.journal.fact import evolve_fact
from evaljournal.journal.format import chain
from evaljournal.journal.ownership import Start, add_own_hashes, start_events
from evaljournal.replay import load
from evaljournal.runner.definition.loading import load_evaluation
from evaljournal.runner.sessions.api import run as run_in_python
from evaljournal.runner.sessions.outputs import Outputs
from tests.journal.samples import inline, lines_of, overwrite, segment, session, started
from tests.processes import ROOT, run_command
from tests.runner_cli.commands import evaljournal
from tests.runs import events
from tests.security.audited import VARIABLE

OWN = """
from evaljournal import Case, evaluation

@evaluation(cases=[Case(name="peru", input="Lima")])
def own(question):
    return question

@own.score
def exact(output):
    return True
"""
EVIL = OWN.replace("own", "evil").replace("exact", "score")
URL = "http://127.0.0.1:9"
"""The discard port of this machine, where nothing listens."""


def definition(**keys: Any) -> str:
    """Return the record of an evaluation without code."""
    return json.dumps({"options": {name.replace("_", "-"): value for name, value in keys.items()}})


ATTACKS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "file": ("evil.py:evil", {"opened": ["evil.py"], "imported": ["evil.py"]}),
    "module": ("evil_module:evil", {"opened": ["evil_module.py"], "imported": ["evil_module.py"]}),
    "config": ("evil.toml", {"opened": ["evil.toml", "qa.jsonl"]}),
    "scorer": (
        definition(data="qa.jsonl", output_key="question", score=["evil.py:score"]),
        {"opened": ["evil.py", "qa.jsonl"], "imported": ["evil.py"]},
    ),
    "command": (
        definition(data="qa.jsonl", command="./evil.sh", score=["exact"]),
        {"executed": ["./evil.sh"], "opened": ["evil.sh", "qa.jsonl"]},
    ),
    "endpoint": (
        definition(
            data="qa.jsonl", endpoint=f"{URL}/", header=[f"Authorization: ${VARIABLE}"], body="@id_rsa", score=["exact"]
        ),
        {"connected": ["127.0.0.1:9"], "expanded": [VARIABLE], "opened": ["id_rsa", "qa.jsonl"]},
    ),
    "chat": (
        definition(data="qa.jsonl", chat="gpt", base_url=URL, key_env=VARIABLE, prompt="@id_rsa", score="exact"),
        {"connected": ["127.0.0.1:9"], "expanded": [VARIABLE], "opened": ["id_rsa", "qa.jsonl"]},
    ),
    "judge": (
        definition(
            data="qa.jsonl", output_key="question", judge="gpt", judge_url=URL, judge_key_env=VARIABLE, rubric="@evil.txt"
        ),
        {"connected": ["127.0.0.1:9"], "expanded": [VARIABLE], "opened": ["evil.txt", "qa.jsonl"]},
    ),
}
"""What a journal names, and what `resume --trust` does because of it."""
QUICK_OPTIONS = ["--adopt", "-s", "retry.errors=0", "--deadline", "0.2", "-s", "grace=0", "--plain"]


def write_run(path: Path, events: Sequence[Event], *, signed: Sequence[bool] | bool = False, run: str | None = None) -> Path:
    """Write a run of these events; `signed` selects those that the user has written."""
    own_flags = [signed] * len(events) if isinstance(signed, bool) else signed

    async def main() -> None:
        async with writing(path, new=True, run=run, in_thread=inline) as journal:
            for event, is_own in zip(events, own_flags, strict=True):
                record = journal.append(event)
                if is_own and isinstance(event, Start):
                    add_own_hashes(journal.run, [record.h])

    trio.run(main)
    return path


def run_started(task: str) -> RunStarted:
    """Return the start of a run whose evaluation is at this location."""
    return evolve_fact(started(), task=task)


def adopting_session(task: str, number: int = 2) -> SessionStarted:
    """Return the start of a session that moves the evaluation to this location."""
    return evolve_fact(session(number), adopted={"task": task})


STOPPED = RunStopped(reason="interrupted")


def foreign_run(path: Path, task: str) -> Path:
    """Write an interrupted run that was started elsewhere."""
    return write_run(path, [run_started(task), session(), STOPPED])


def is_own(path: Path) -> bool:
    """Whether `resume` continues the run without `--trust`; otherwise it must exit with 2 and name the command."""
    shutil.copytree(path, copy := path.with_name(f"{path.name}-resumed"))
    result = evaljournal("resume", copy, "--adopt", "--plain")
    shutil.rmtree(copy)
    if result.exit_code == 2 and f"`evaljournal resume {copy} --trust`" in result.output:
        return False
    assert 0 == result.exit_code, result.output
    return True


def audited(calls: Sequence[Sequence[str] | str]) -> list[dict[str, Any]]:
    """Make the calls in a child process under an audit hook; return what each did."""
    script = ROOT / "tests" / "security" / "audited.py"
    environment = {**os.environ, VARIABLE: "sesame", "PYTHONDONTWRITEBYTECODE": "1"}
    process = run_command(sys.executable, script, input=json.dumps(calls), env=environment)
    assert 0 == process.returncode, process.stderr
    results: list[dict[str, Any]] = json.loads(process.stdout)
    return results


FILES = {
    "own.py": OWN,
    "own.jsonl": '{"id": "peru", "question": "Lima", "expected": "Lima"}\n',
    "evil.py": EVIL,
    "evil_module.py": EVIL,
    "evil.toml": 'data = "qa.jsonl"\noutput-key = "question"\nscore = ["exact"]\n',
    "evil.sh": "#!/bin/sh\ncat\n",
    "evil.txt": "{output}",
    "id_rsa": '"{question}"',
    "qa.jsonl": '{"id": "peru", "question": "Lima", "expected": "Lima"}\n',
}
"""The user's evaluation, and the canaries."""


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    """Create the files in the working directory."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "evil.sh").chmod(0o700)


IMPORTS = "import sys\nsys.path.append('.')\nimport evaljournal, own\nfrom evaljournal.executors import SyncExecutor\n"


def test_nothing_is_done_without_trust(tmp_path: Path) -> None:
    """Without `--trust`, `resume` and `rescore` of a foreign run exit with 2, show what it names, and touch nothing.

    With it, `resume` does what the journal names, and the same hook reports that.
    """
    runs = {name: str(foreign_run(tmp_path / name, task)) for name, (task, _) in ATTACKS.items()}
    untrusted = [[verb, run] for run in runs.values() for verb in ("resume", "rescore")]
    trusted = [["resume", run, "--trust", *QUICK_OPTIONS] for run in runs.values()]
    results = audited([*untrusted, *trusted])

    for (verb, run), result in zip(untrusted, results, strict=False):
        assert ({"code", "output"}, 2) == (set(result), result["code"]), (verb, run, result)
        assert f"`evaljournal {verb} {run} --trust`" in result["output"]
        task = ATTACKS[Path(run).name][0]
        words = re.findall(r"[\w@./:$]+", task.replace('"options"', ""))
        assert all(word in result["output"] for word in words), result["output"]
    for (name, (_, effects)), result in zip(ATTACKS.items(), results[len(untrusted) :], strict=True):
        observed = {kind: values for kind, values in result.items() if kind not in {"code", "output"}}
        assert effects == observed, (name, result["output"])


def test_other_commands_and_python_use_nothing_that_a_journal_names(tmp_path: Path) -> None:
    """Views and copies touch nothing either, nor do `run`, `rescore` and executors with the user's own code."""
    calls: list[list[str] | str] = []
    for name in ("file", "endpoint"):
        foreign_run(tmp_path / name, ATTACKS[name][0])
        calls += [
            *([verb, name] for verb in ("status", "show", "log", "verify", "replay", "report", "ls")),
            ["fork", name, "-o", f"fork-of-{name}"],
            ["fork", name, "-o", f"second-fork-of-{name}"],
            ["resume", f"fork-of-{name}"],
            f"{IMPORTS}SyncExecutor(len, journal='second-fork-of-{name}', options={{'adopt': True}}).run(['a'])",
            ["export", name, "-f", "csv"],
            ["compare", name, name],
            ["gate", name, "--baseline", name],
            f"{IMPORTS}evaljournal.run(own.own, '{name}', resume=True, adopt=True, quiet=True)",
            f"{IMPORTS}evaljournal.rescore(own.own, '{name}', all_outputs=True)",
            ["resume", name, "--adopt"],
            ["rescore", name, "--score", "exact"],
        ]

    for call, result in zip(calls, audited(calls), strict=True):
        assert {"code", "output"} == set(result), call
        is_rejected = (result["code"], "--trust`" in result["output"]) == (2, True)
        assert is_rejected == (call[0] == "resume"), (call, result)


@pytest.mark.parametrize(
    "arguments", ["own.py", "--data own.jsonl --output-key question --score exact"], ids=["file", "no-code"]
)
def test_run_resumes_an_unfinished_run_with_its_own_arguments_only(tmp_path: Path, arguments: str) -> None:
    """`run -o` of a foreign run uses nothing that the journal names, and no setting that it records."""
    command = ["run", *arguments.split(), "--plain", "-o"]
    assert 0 == evaljournal(*command, "first").exit_code
    (own_start,) = events("first", RunStarted)
    settings = {**own_start.settings, "slots": 7, "timeout": 1.0, "overridden": ["slots", "timeout"]}
    for name, (task, _) in ATTACKS.items():
        start = evolve_fact(own_start, task=task, settings=settings)
        write_run(tmp_path / name, [start, session(), STOPPED])
    calls = [[*command, name] for name in ATTACKS]

    for name, call, result in zip(ATTACKS, calls, audited(calls), strict=True):
        assert ({"code", "output"}, 0) == (set(result), result["code"]), (call, result)
        assert own_start.settings == {key: load(tmp_path / name).state.settings[key] for key in own_start.settings}
        assert is_own(tmp_path / name)


def test_run_resumes_no_other_shard(tmp_path: Path) -> None:
    """A recorded shard cannot hide cases: `run -o` without --shard rejects a run that has one."""
    assert 0 == evaljournal("run", "own.py", "-o", "first").exit_code
    (start,) = events("first", RunStarted)
    start = evolve_fact(start, shard="1/2")
    result = evaljournal("run", "own.py", "-o", write_run(tmp_path / "half", [start, session(), STOPPED]))

    assert (2, True) == (result.exit_code, "half is shard 1/2; pass shard 1/2 or" in result.output)


FOREIGN_SETTINGS: dict[str, Any] = {"gateway": False, "slots": 5_000, "budget": None, "retry": {"errors": 9}, "timeout": 1.0}
OVERRIDDEN = ["gateway", "slots", "budget", "retry.errors"]


def foreign_run_with_settings(path: Path, task: str = "own.py:own", **settings: Any) -> Path:
    """Write an interrupted run of another user, who has passed these settings."""
    if not Path("first").exists():
        assert 0 == evaljournal("run", "own.py", "-o", "first", "--plain").exit_code
    (own_start,) = events("first", RunStarted)
    start = evolve_fact(own_start, task=task, settings={**own_start.settings, **settings})
    return write_run(path, [start, session(), STOPPED])


def test_an_evaluation_of_the_user_has_its_own_settings(tmp_path: Path) -> None:
    """`resume --task` of a foreign run uses no setting that it records, and those of this session from then on."""
    run = foreign_run_with_settings(tmp_path / "run", **FOREIGN_SETTINGS, overridden=OVERRIDDEN)
    (own_start,) = events("first", RunStarted)
    expected = {**own_start.settings, "timeout": 7.0, "overridden": ["timeout"]}

    for command in (["--task", "own.py", "--timeout", "7"], ["--adopt"], ["--adopt", "--task", "own.py"]):
        result = evaljournal("resume", run, *command, "--plain")

        assert 0 == result.exit_code, result.output
        assert expected == load(run).state.settings


def test_a_foreign_number_of_repeats_is_a_change(tmp_path: Path) -> None:
    """A recorded setting that defines the experiment, and that the user's evaluation does not have, is a change."""
    run = foreign_run_with_settings(tmp_path / "run", repeats=1_000, overridden=["repeats"])
    result = evaljournal("resume", run, "--task", "own.py")
    trusted = evaljournal("resume", run, "--task", "own.py", "--trust", "--max-failures", "0", "--deadline", "0.01")

    assert (2, True) == (result.exit_code, "setting repeats: 1000 is now 1" in result.output), result.output
    assert (3, 1_000) == (trusted.exit_code, load(run).state.settings["repeats"]), trusted.output


def test_recorded_settings_are_shown_before_they_are_trusted(tmp_path: Path) -> None:
    """The error that asks for `--trust` lists the settings that would apply, escaped and shortened."""
    evil = "\x1b[2J\n" + "x" * 10_000
    run = foreign_run_with_settings(
        tmp_path / "run", **{**FOREIGN_SETTINGS, "only": [evil]}, overridden=[*OVERRIDDEN, "only", "evil"], evil="evil"
    )
    lines = evaljournal("resume", run).output.splitlines()
    start = lines.index("These recorded settings would replace those of the evaluation:") + 1

    names = ["only", "slots", "gateway", "budget", "retry"]
    assert names == [line.strip().partition(":")[0] for line in lines[start : start + 5]]
    assert ["  slots: 5000", "  gateway: false", "  budget: null"] == lines[start + 1 : start + 4]
    assert (True, 208) == (lines[start].startswith(r'  only: ["\u001b[2J\nxxx'), len(lines[start]))
    assert lines[start + 5].startswith("Nothing was executed.")


def test_a_run_that_changes_after_it_was_read_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that is replaced after `resume` has checked whose it is, is not used, whatever it records."""
    own_run = write_run(tmp_path / "run", [run_started("own.py:own"), session(), STOPPED], signed=True)
    foreign_run_with_settings(tmp_path / "other", **FOREIGN_SETTINGS, overridden=OVERRIDDEN)

    def replace(_: object) -> Outputs:
        shutil.rmtree(own_run)
        (tmp_path / "other").rename(own_run)
        return Outputs()

    monkeypatch.setattr("evaljournal.runner.cli.commands.resume.run_output", replace)
    result = evaljournal("resume", own_run, "--adopt", "--plain")

    assert (2, True) == (result.exit_code, "was changed after it was read" in result.output), result.output
    assert 1 == len(load(own_run).state.sessions)


def test_the_reference_is_escaped(tmp_path: Path) -> None:
    """What a foreign journal names cannot control the terminal, add lines of its own, or be hidden by its length."""
    evil = "\x1b[2J\r\u202e\n  If you trust it: evil"
    shown = evaljournal("resume", foreign_run(tmp_path / "a", f"evil.py:{evil}")).output
    assert r"evil.py:\x1b[2J\r\u202e\n  If" in shown
    scorers = [f"a{number}" for number in range(1_000)]
    shown = evaljournal(
        "resume", foreign_run(tmp_path / "b", definition(score=scorers, data="x", command=f"evil{evil}"))
    ).output
    assert '\n  command = "evil\\u001b[2J\\r\\u202e\\n  If' in shown.replace(r"\\", "\\").replace("\u202e", r"\u202e")
    shown = evaljournal("resume", foreign_run(tmp_path / "d", definition(data="x" * 100_000))).output
    assert ("… and 80,009 more characters; `evaljournal log" in shown, len(shown) < 25_000) == (True, True)
    assert '{"options"\n' in evaljournal("resume", foreign_run(tmp_path / "c", '{"options"')).output


def rewrite(path: Path, change: Callable[[list[bytes]], list[bytes]], *, tail: bytes = b"") -> None:
    """Change the lines of a run, which has one file, compute all hashes again, and add bytes, as an attacker can."""
    bodies = [parts[0] for line in lines_of(path) if (parts := chain.split(line[:-1])) and b'"segment_sealed"' not in line]
    bodies = change(bodies)
    run = json.loads(bodies[0] + b"}")["run"].encode()
    h, lines = chain.GENESIS, list[bytes]()
    for body in bodies:
        h = chain.link(run, h, body).encode()
        lines.append(chain.add_hash(body, h))
    overwrite(segment(path), b"".join(lines) + tail)


@pytest.mark.parametrize("task", [5, ["evil.py"], {"task": "evil.py"}])
def test_a_reference_that_is_not_text_is_not_used(tmp_path: Path, task: Any) -> None:
    """A location of another type is damage, not a reference."""
    run = foreign_run(tmp_path / "run", "evil.py:evil")
    rewrite(run, lambda bodies: [body.replace(b'"evil.py:evil"', json.dumps(task).encode()) for body in bodies])

    result = evaljournal("resume", run, "--trust")
    assert 4 == result.exit_code, result.output


def test_an_own_run_needs_no_flag(tmp_path: Path) -> None:
    """A run is resumed and re-scored by the user who started it, also after it was moved and after each session."""
    assert 0 == evaljournal("run", "own.py", "-o", "first", "--plain").exit_code
    (tmp_path / "first").rename(tmp_path / "moved")

    for command in ("resume", "rescore", "resume"):
        flag = "--adopt" if command == "resume" else "--all"
        result = evaljournal(command, "moved", flag)
        assert 0 == result.exit_code, result.output
    assert [True] * 5 == [is_listed for _, is_listed in start_events(tmp_path / "moved")]
    assert verify(tmp_path / "moved").ok


def test_on_another_machine_a_run_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another list, a run needs `--trust`, or an evaluation named on the command line; then it is the user's own."""
    write_run(tmp_path / "run", [run_started("own.py:own"), session(), STOPPED], signed=True)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    assert is_own(tmp_path / "run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    assert not is_own(tmp_path / "run")

    assert 0 == evaljournal("resume", "run", "--adopt", "--trust").exit_code
    assert is_own(tmp_path / "run")
    assert 0 == evaljournal("resume", "other", "--adopt", "--task", "own.py").exit_code
    assert is_own(tmp_path / "other")


def test_sessions_that_do_not_name_the_evaluation_leave_a_run_foreign(tmp_path: Path) -> None:
    """Re-scoring a foreign run, or resuming it from Python, is listed, but does not make its evaluation the user's."""
    run = foreign_run(tmp_path / "run", "own.py:own")
    run_in_python(load_evaluation("own.py").evaluation, run, resume=True, adopt=True, quiet=True)
    assert 0 == evaljournal("rescore", run, "--score", "regex:.").exit_code
    assert 0 == evaljournal("rescore", run, "--trust", "--all").exit_code

    assert [True, True, True, False, False] == [is_listed for _, is_listed in start_events(run)]
    assert not is_own(run)


HISTORY: list[Event] = [run_started("own.py:own"), session(), STOPPED, adopting_session("./own.py:own"), STOPPED]
"""Two sessions; the second one moved the evaluation."""


def session_body(number: int, *, session: int, task: str) -> bytes:
    """Return the line of a session that another user has added."""
    start = {"type": "session_started", "session": session, "pid": 1, "host": "", "boot_id": ""}
    record = {"seq": number, "at": "2026-11-15T00:00:00.000000Z", "t": 0.5, **start}
    return json.dumps({**record, **({"adopted": {"task": task}} if task else {}), "d": 0}, separators=(",", ":")).encode()[:-1]


def renumbered(body: bytes, seq: int, session: int) -> bytes:
    """Return a line with another number, for another session."""
    body = re.sub(rb'"seq":[0-9]+', b'"seq":%d' % seq, body)
    return re.sub(rb'"session":[0-9]+', b'"session":%d' % session, body)


TAMPERED: dict[str, Callable[[list[bytes], list[bytes]], list[bytes]]] = {
    "altered task": lambda own, _: [body.replace(b"own.py:own", b"evil.py:evil") for body in own],
    "altered settings": lambda own, _: [*own[:4], own[4].replace(b'"pid":4711', b'"pid":4712'), *own[5:]],
    "record of another run": lambda own, other: [*own[:4], other[4], *own[5:]],
    "records of another run": lambda own, other: [own[0], *other[1:]],
    "earlier history altered": lambda own, _: [*own[:3], own[3].replace(b"interrupted", b"deadline"), *own[4:]],
    "earlier record at another position": lambda own, _: [*own, renumbered(own[4], 7, 3)],
    "evaluation adopted by another user": lambda own, _: [*own, session_body(7, session=3, task="evil.py:evil")],
    "session of another user": lambda own, _: [*own, session_body(7, session=3, task="")],
    "run id changed": lambda own, _: [re.sub(rb'"run":"[0-9a-f]+"', b'"run":"%b"' % (b"e" * 32), own[0]), *own[1:]],
}
"""Changes by an attacker to the lines of the user's own run, given those of another own run with the same history."""


@pytest.mark.parametrize("attack", TAMPERED)
def test_a_changed_run_is_foreign(tmp_path: Path, attack: str) -> None:
    """A run of the user counts as foreign once its lines are changed, although every hash is correct."""
    run, other = tmp_path / "run", tmp_path / "other"
    write_run(run, HISTORY, signed=True)
    write_run(other, HISTORY, signed=True)
    others = [parts[0] for line in lines_of(other) if (parts := chain.split(line[:-1]))]
    rewrite(run, list)
    assert is_own(run)

    rewrite(run, lambda own: TAMPERED[attack](own, others[: len(own)]))
    assert not is_own(run)


def test_a_truncated_own_run_uses_an_earlier_evaluation_of_the_user(tmp_path: Path) -> None:
    """Removing records from the end can only bring back what the user has written; without its start, a run is not resumed."""
    history: list[Event] = [run_started("own.py:own"), session(), STOPPED, adopting_session("gone.py:own"), STOPPED]
    run = write_run(tmp_path / "run", history, signed=True)
    rewrite(run, lambda bodies: bodies[:4])
    assert is_own(run)

    rewrite(run, lambda bodies: [bodies[0], *bodies[2:]])
    assert 2 <= evaljournal("resume", run, "--adopt").exit_code <= 4
    overwrite(segment(run), b"".join(lines_of(run)[1:]))
    assert 2 <= evaljournal("resume", run, "--adopt").exit_code <= 4


@pytest.mark.parametrize(("at", "own"), [(3, True), (6, False), (None, False)])
def test_a_fork_is_own_if_all_of_its_source_was(tmp_path: Path, *, at: int | None, own: bool) -> None:
    """A fork of the user's own run is the user's own; with a session of another user in it, it is foreign."""
    signed = [True, True, True, False, False, True, True]
    events: list[Event] = [
        run_started("own.py:own"),
        session(),
        STOPPED,
        adopting_session("evil.py:evil"),
        STOPPED,
        adopting_session("own.py:own", 3),
        STOPPED,
    ]
    run = write_run(tmp_path / "run", events, signed=signed)

    fork = tmp_path / "fork"
    assert 0 == evaljournal("fork", run, "-o", fork, *([] if at is None else ["--at", at])).exit_code
    assert own == is_own(fork)
    assert verify(fork).ok


@pytest.mark.parametrize(
    ("signed", "own"), [([True] * 5, True), ([False] * 5, False), ([False, False, False, True, True], False)]
)
def test_a_salvaged_run_is_own_if_its_source_was(tmp_path: Path, *, signed: list[bool], own: bool) -> None:
    """Salvage lists nothing that the user has not written; one foreign start makes the new run foreign."""
    run = write_run(tmp_path / "run", [run_started("own.py:own"), session(), STOPPED, session(2), STOPPED], signed=signed)
    lines = lines_of(run)
    overwrite(segment(run), b"".join([*lines[:3], lines[3].replace(b"interrupted", b"deadlines!!"), *lines[4:]]))

    salvaged = tmp_path / "salvaged"
    assert 0 == evaljournal("salvage", run, "-o", salvaged).exit_code
    assert {own} == {is_listed for _, is_listed in start_events(salvaged)}
    assert own == is_own(salvaged)


def test_without_a_list_a_run_works_and_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the list cannot be written, a warning is printed, and `resume` names the reason."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    result = evaljournal("run", "own.py", "-o", "run", "--plain")
    assert 0 == result.exit_code
    assert 1 == result.stderr.count("Warning: the list of your own runs ")

    result = evaljournal("resume", "run", "--adopt")
    assert (2, True) == (result.exit_code, "cannot be recognized as your own (the list of your own runs " in result.output)
    assert 0 == evaljournal("resume", "run", "--adopt", "--trust").exit_code


@pytest.mark.parametrize("filler", ["x ", "\x07", "\u202e", '"', "\U000e0001"])
def test_nothing_hides_what_would_be_executed(tmp_path: Path, filler: str) -> None:
    """A command of 13,000 characters is shown to its end, however long it is when escaped; many blanks are only counted."""
    hidden = f"--command 'echo {' ' * 5_000} touch /canary {filler * (8_000 // len(filler))} touch /second'"
    result = evaljournal("resume", foreign_run(tmp_path / "run", hidden))

    assert 2 == result.exit_code
    assert all(text in result.stderr for text in ("touch /canary", "touch /second", "blanks)"))
